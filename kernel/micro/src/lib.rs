//! The microkernel: seL4's programming interface for riscv64, in safe Rust.
//!
//! Programs that were built for seL4 (without its MCS extension) run on it unmodified. The kernel has no heap: every
//! object lives in memory that users have retyped, and only the crate `objects` converts such memory into objects. This
//! crate is safe code over cells.
//!
//! # Modules
//!
//! A hart executes [`run`]: it enters the current thread, gets the reason of the trap, takes the kernel's lock, and
//! calls `Kernel` (`kernel`, with the parts in `state`) to handle it. `fastpath` serves short calls, replies and
//! faults; `syscall` is the slowpath: lookups in capability spaces (`cspace`), messages and signals (`ipc`),
//! invocations of objects (`untyped`, `cnode`, `thread`, `vspace`, `interrupt`, `domain`), faults (`fault`). The next
//! thread is chosen once, at the end (`schedule`), from the state of the hart's `node`. Decoders get their arguments
//! (`invocation`) from a thread's `message`. Invocations can also be requested in shared memory, and are executed in
//! parallel with the program or in batches (`asynchronous`). Signals can interrupt a running thread (`user_interrupt`),
//! without the kernel if the machine supports that (`user_interrupt_imsic`, `user_interrupt_uintc`). Capabilities are
//! values (`capability`), and the capability derivation tree is a list through their slots (`derivation`). `delete`
//! destroys objects, and `deletion_ring` links those that are destroyed together. `boot` creates the first thread.
//!
//! Six modules have the names of modules of [`abi_sel4`]: `asynchronous`, `boot`, `debug_call`, `fault`, `invocation`
//! and `message`. The contract stands there (numbers, layouts, errors), and the kernel's part in it here.
//!
//! # One lock
//!
//! A kernel entry is a few hundred instructions, so one lock serves all harts; the few long operations have preemption
//! points and are restarted. The state of a thread that runs on another hart is accessed only after that hart has
//! entered the kernel (`smp`, over the words of `hart`). Besides the lock, a kernel entry waits only for that, for
//! harts that must leave an address space, and for one that must empty an interrupt file.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

mod asynchronous;
pub mod boot;
pub mod boot_words;
pub mod capability;
mod check;
mod cnode;
pub mod console;
mod cspace;
mod debug_call;
mod delete;
mod deletion_ring;
pub mod derivation;
mod domain;
mod entry_log;
mod fastpath;
mod fault;
mod hart;
mod interrupt;
mod invocation;
mod ipc;
mod kernel;
pub mod machine;
mod message;
mod node;
mod paging;
mod schedule;
mod sender_page;
mod smp;
mod state;
mod syscall;
#[cfg(test)]
mod tests;
mod thread;
mod uintc;
mod untyped;
mod user_interrupt;
mod user_interrupt_imsic;
mod user_interrupt_uintc;
mod utilisation;
mod vspace;

use hal_api::{Machine as _, Status, Trap};
use objects::{Ref, Space, Tcb, ThreadState};
use platform::Machine;

use crate::entry_log::Path;
use crate::hart::Harts;
use crate::kernel::Kernel;
pub use crate::node::MAXIMUM_NODES;
use crate::node::{Decision, Next};
use crate::smp::Shared;

impl Kernel {
    fn timer_interrupt(&self) {
        self.tick();
        let now = Machine::now();
        let next = self.node().next_tick.get().saturating_add(self.tick_length.get());
        // Ticks that a hart missed are not made up for.
        let next = if next <= now { now + self.tick_length.get() } else { next };
        self.node().next_tick.set(next);
        Machine::set_timer(next);
        self.interrupt_after_tick();
        self.look_at_watched_files();
    }

    /// Starts the ticks of this hart.
    fn start_ticks(&self) {
        let next = Machine::now() + self.tick_length.get();
        self.node().next_tick.set(next);
        Machine::set_timer(next);
    }

    fn halt(&self) {
        console::print(format_args!("the machine is halted by a program\n"));
        platform::shut_down(Status::Success);
    }

    /// Writes the current thread and the ready threads of each hart to the console.
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
            for ready in node.ready.iter() {
                ready.for_each(|thread| {
                    console::print(format_args!(
                        "  ready: thread at {:#x}, priority {}, pc {:#x}\n",
                        thread.physical(),
                        thread.priority.get(),
                        thread.pc().get()
                    ));
                });
            }
        }
    }
}

/// The words that harts of this machine access without the lock.
static HARTS: Harts = Harts::new();
/// The kernel of this machine with its lock.
static KERNEL: Shared = Shared::new(&HARTS);

/// Number of pauses of a hart between two polls of an empty buffer.
const PAUSE: u32 = 32;

impl Kernel {
    /// Chooses the hart's next action and prepares it, and notifies other harts.
    #[inline(always)]
    fn leave_and_poke(&self) -> Next {
        let next = self.leave();
        self.end_log_entry(Path::Slow);
        self.poke_others();
        self.check_after_entry();
        next
    }

    /// Runs the consistency checker in kernels with the feature `checks`.
    #[inline(always)]
    fn check_after_entry(&self) {
        if cfg!(feature = "checks") {
            self.entries.set(self.entries.get() + 1);
            self.check_now_and_then(self.entries.get());
        }
    }

    /// Returns whether the thread that made this kernel entry continues without a context switch.
    #[inline(always)]
    fn goes_on(&self, thread: Ref<Tcb>) -> bool {
        let node = self.node();
        // The fastpath may have passed a fault to its handler, which is the entered thread then.
        debug_assert!(
            node.decision.get() != Decision::Keep
                || node
                    .current
                    .get()
                    .is_some_and(|current| { current == thread || node.entered.get() == Some(current) })
        );
        node.decision.get() == Decision::Keep
            && node.entered.get() == Some(thread)
            && thread.state() == ThreadState::Running
            && self.handlers_awake.get() == 0
    }

    #[inline(never)]
    fn leave(&self) -> Next {
        if cfg!(feature = "benchmarks") && self.node().entered.get() == self.node().current.get() {
            self.count_exit(self.node().current.get());
        }
        self.decide();
        if self.handlers_awake.get() != 0
            && let Some(next) = self.leave_to_handler()
        {
            return next;
        }
        let Some(thread) = self.node().current.get() else {
            self.leave_space();
            self.count_switch(None);
            return Next::Wait;
        };
        debug_assert_eq!(thread.state(), ThreadState::Running);
        if self.node().entered.get() != Some(thread) {
            self.count_switch(Some(thread));
            let space = self.space_of(thread);
            if space.has_own_interrupts() {
                return self.enter_prepared(thread, space);
            }
            self.enter_space(thread, space);
        }
        self.note_user();
        Next::Run(thread)
    }

    /// Switches this hart to the kernel's address space.
    #[inline]
    fn leave_space(&self) {
        objects::activate::<Machine>(Space::kernel::<Machine>());
        self.node().entered.set(None);
        self.node().asid.set(0);
    }

    /// Activates a thread's address space.
    #[inline(always)]
    fn enter_space(&self, thread: Ref<Tcb>, space: Space) {
        objects::activate::<Machine>(space);
        self.node().entered.set(Some(thread));
        if cfg!(feature = "smp") {
            self.node().asid.set(space.asid());
        }
    }
}

/// Runs threads, for ever. Every hart calls this at the end of its start.
pub fn run() -> ! {
    let hart = Machine::hart();
    let mut next = KERNEL.enter(hart).leave();
    loop {
        next = match next {
            Next::Run(thread) => run_thread(thread, hart),
            Next::RunVirtualised(thread) => user_interrupt_imsic::run(&KERNEL, thread, hart),
            Next::RunArmed(thread) => user_interrupt_uintc::run(&KERNEL, thread, hart),
            Next::Serve => {
                let (next, pause) = {
                    let kernel = KERNEL.enter(hart);
                    kernel.look_or_serve();
                    let pause = if kernel.lingers() { PAUSE } else { 0 };
                    (kernel.leave_and_poke(), pause)
                };
                // Leave the lock to other harts for a moment.
                (0..pause).for_each(|_| core::hint::spin_loop());
                next
            }
            Next::Wait => {
                Machine::wait_for_interrupt();
                let kernel = KERNEL.enter(hart);
                kernel.count_entry(None);
                kernel.begin_log_entry(None, Trap::Interrupt);
                kernel.serve_interrupts();
                kernel.leave_and_poke()
            }
        };
    }
}

/// Runs a thread, and the threads to which the fastpath switches, until a scheduling decision is needed. Two loops:
/// values that the outer loop computes for a thread are kept while the thread continues.
#[inline(always)]
fn run_thread(mut thread: Ref<Tcb>, hart: usize) -> Next {
    'threads: loop {
        loop {
            let trap = KERNEL.visit(thread, hart);
            let kernel = KERNEL.enter(hart);
            // Another hart may have stopped the thread in the meantime, and then even deleted it, so that `thread` must
            // not be used any more. A stopped thread restarts its call later.
            if cfg!(feature = "smp") && kernel.node().current.get().is_none() {
                kernel.serve_interrupts();
                return kernel.leave_and_poke();
            }
            kernel.count_entry(Some(thread));
            kernel.begin_log_entry(Some(thread), trap);
            if trap == Trap::SystemCall {
                if let Some(next) = kernel.fastpath(thread) {
                    kernel.count_exit(Some(thread));
                    kernel.count_switch(Some(next));
                    kernel.end_log_entry(Path::Fast);
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
                kernel.count_exit(Some(thread));
                kernel.end_log_entry(Path::Slow);
                kernel.poke_others();
                kernel.check_after_entry();
                kernel.note_user();
                continue;
            }
            return kernel.leave_and_poke();
        }
    }
}
