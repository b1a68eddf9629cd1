//! The microkernel: seL4's programming interface for riscv64, in safe Rust.
//!
//! Programs that were built for seL4 (without its MCS extension) run on it unmodified. The kernel has no heap: every
//! object lives in memory that users gave by retyping, and `objects` is the one crate that turns such memory into
//! objects. Everything here is safe code over cells.
//!
//! # The way through
//!
//! A hart runs [`run`]: it enters the current thread, gets back why it stopped, takes the kernel's lock, and lets
//! [`Kernel`] (`kernel`, of the parts in `state`) handle it (`syscall`): look-ups in capability spaces (`cspace`),
//! messages and signals (`ipc`), invocations of objects (`untyped`, `cnode`, `thread`, `vspace`, `interrupt`,
//! `domain`), faults (`fault`). What that means for who runs is decided once, at the end (`schedule`), from what stands
//! in the hart's `node`. Decoders get their arguments as `invocation` says, out of a thread's `message`. Invocations
//! can also be asked for in shared memory, and are carried out beside the program or all at once (`asynchronous`).
//! Signals can interrupt a thread that runs (`user_interrupt`), without the kernel where the machine can do that
//! (`interrupt_file`). Capabilities are values (`capability`), and the tree of which came from which is a list through
//! their slots (`derivation`). `delete` takes objects apart, which `ring` keeps together. `boot` makes the first
//! thread.
//!
//! # One lock
//!
//! A kernel entry is a few hundred instructions and never waits, so one lock serves all harts; the few operations that
//! take long look for interrupts in between and are made again. What belongs to a thread that runs on another hart is
//! touched only after that hart has come into the kernel (`smp`, over the words of `hart`).
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

mod asynchronous;
pub mod boot;
pub mod capability;
mod check;
mod cnode;
pub mod console;
mod cspace;
mod delete;
pub mod derivation;
mod domain;
mod fastpath;
mod fault;
mod hart;
mod interrupt;
mod interrupt_file;
mod invocation;
mod ipc;
mod kernel;
pub mod machine;
mod message;
mod node;
mod ring;
mod schedule;
mod smp;
mod state;
mod syscall;
#[cfg(test)]
mod tests;
mod thread;
mod untyped;
mod user_interrupt;
mod vspace;

use hal_api::{Machine as _, Status, Trap};
use objects::{Ref, Space, Tcb, ThreadState};
use platform::Machine;

use crate::hart::Harts;
use crate::kernel::Kernel;
pub use crate::node::MAXIMUM_NODES;
use crate::node::{Action, Next};
use crate::smp::Shared;

impl Kernel {
    fn timer_interrupt(&self) {
        self.tick();
        let now = Machine::now();
        let next = self.node().next_tick.get().saturating_add(self.tick_length.get());
        // A hart that was away for long does not make up for it.
        let next = if next <= now { now + self.tick_length.get() } else { next };
        self.node().next_tick.set(next);
        Machine::set_timer(next);
        self.interrupt_after_tick();
    }

    /// Makes ticks come on this hart.
    fn start_ticks(&self) {
        let next = Machine::now() + self.tick_length.get();
        self.node().next_tick.set(next);
        Machine::set_timer(next);
    }

    fn halt(&self) {
        console::print(format_args!("the machine is halted by a program\n"));
        Machine::shutdown(Status::Success);
    }

    /// Writes who runs and who could to the console.
    fn print_scheduler(&self) {
        for (index, node) in self.nodes.iter().enumerate().take(self.node_count.get()) {
            match node.current.get() {
                Some(thread) => console::print(format_args!(
                    "hart {index}: thread at {:#x}, priority {}, pc {:#x}\n",
                    thread.physical(),
                    thread.priority.get(),
                    thread.pc().get()
                )),
                None => console::print(format_args!("hart {index}: idle\n")),
            }
            for ready in &node.ready {
                for priority in (0..=u8::MAX).rev() {
                    let mut next = ready.first(priority);
                    while let Some(thread) = next {
                        let pc = thread.pc().get();
                        console::print(format_args!(
                            "  ready: thread at {:#x}, priority {priority}, pc {pc:#x}\n",
                            thread.physical()
                        ));
                        next = thread.ready_next.get();
                    }
                }
            }
        }
    }
}

/// The words that harts of this machine touch without the lock.
static HARTS: Harts = Harts::new();
/// The kernel of this machine, and its one lock.
static KERNEL: Shared = Shared::new(&HARTS);

/// How often a hart pauses between two looks at a buffer in which there was nothing.
const PAUSE: u32 = 32;

impl Kernel {
    /// Chooses what this hart does, and prepares it.
    #[inline(always)]
    fn leave_and_poke(&self) -> Next {
        let next = self.leave();
        self.poke_others();
        self.check_after_entry();
        next
    }

    /// Runs the consistency checker in kernels that are built for it.
    #[inline(always)]
    fn check_after_entry(&self) {
        if cfg!(feature = "checks") {
            self.entries.set(self.entries.get() + 1);
            self.check_now_and_then(self.entries.get());
        }
    }

    /// Whether the thread that made this kernel entry simply goes on.
    #[inline(always)]
    fn goes_on(&self, thread: Ref<Tcb>) -> bool {
        let node = self.node();
        // A fault may have been handed over by the fastpath, to the one that was entered since.
        debug_assert!(
            node.action.get() != Action::Resume
                || node
                    .current
                    .get()
                    .is_some_and(|current| { current == thread || node.entered.get() == Some(current) })
        );
        node.action.get() == Action::Resume
            && node.entered.get() == Some(thread)
            && thread.state() == ThreadState::Running
            && self.handlers_awake.get() == 0
    }

    #[inline(never)]
    fn leave(&self) -> Next {
        self.schedule();
        if self.handlers_awake.get() != 0
            && let Some(next) = self.leave_to_handler()
        {
            return next;
        }
        let Some(thread) = self.node().current.get() else {
            self.leave_space();
            return Next::Wait;
        };
        debug_assert_eq!(thread.state(), ThreadState::Running);
        if self.node().entered.get() != Some(thread) {
            let space = self.space_of(thread);
            if space.is_virtualised() {
                return self.enter_virtualised(thread, space);
            }
            self.enter_space(thread, space);
        }
        self.note_user();
        Next::Run(thread)
    }

    /// Makes this hart be in no program's address space.
    #[inline]
    fn leave_space(&self) {
        objects::activate::<Machine>(Space::kernel::<Machine>());
        self.node().entered.set(None);
        self.node().asid.set(0);
    }

    /// Makes a thread's address space the active one.
    #[inline(always)]
    fn enter_space(&self, thread: Ref<Tcb>, space: Space) {
        objects::activate::<Machine>(space);
        self.node().entered.set(Some(thread));
        if cfg!(feature = "smp") {
            self.node().asid.set(space.asid());
        }
    }
}

/// Runs threads, for ever. Every hart ends here.
pub fn run() -> ! {
    let hart = Machine::hart();
    let mut next = KERNEL.enter(hart).leave();
    loop {
        next = match next {
            Next::Run(thread) => run_thread(thread, hart),
            Next::RunVirtualised(thread) => interrupt_file::run(&KERNEL, thread, hart),
            Next::Serve => {
                let (next, pause) = {
                    let kernel = KERNEL.enter(hart);
                    kernel.look_or_serve();
                    let pause = if kernel.lingers() { PAUSE } else { 0 };
                    (kernel.leave_and_poke(), pause)
                };
                // Others want the lock too.
                (0..pause).for_each(|_| core::hint::spin_loop());
                next
            }
            Next::Wait => {
                Machine::wait_for_interrupt();
                let kernel = KERNEL.enter(hart);
                kernel.serve_interrupts();
                kernel.leave_and_poke()
            }
        };
    }
}

/// Runs a thread, and those it hands over to by the fastpath, until something else is to be decided. Two loops: what
/// is worked out about a thread is not worked out again while it goes on.
#[inline(always)]
fn run_thread(mut thread: Ref<Tcb>, hart: usize) -> Next {
    'threads: loop {
        loop {
            let trap = KERNEL.visit(thread, hart);
            let kernel = KERNEL.enter(hart);
            // Another hart may have stopped the thread in the meantime; then it makes its call again, some time.
            if cfg!(feature = "smp") && kernel.node().current.get().is_none() {
                kernel.serve_interrupts();
                return kernel.leave_and_poke();
            }
            if trap == Trap::SystemCall {
                if let Some(next) = kernel.fastpath(thread) {
                    thread = next;
                    kernel.check_after_entry();
                    kernel.note_user();
                    continue 'threads;
                }
                kernel.handle_call(thread);
            } else {
                kernel.handle_other(thread, trap);
            }
            if kernel.goes_on(thread) {
                kernel.poke_others();
                kernel.check_after_entry();
                kernel.note_user();
                continue;
            }
            return kernel.leave_and_poke();
        }
    }
}
