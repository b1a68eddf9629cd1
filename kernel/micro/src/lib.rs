//! The microkernel: seL4's programming interface for riscv64, in safe Rust.
//!
//! Programs that were built for seL4 (without its MCS extension) run on it unmodified. The kernel has no heap: every
//! object lives in memory that users gave by retyping, and `objects` is the one crate that turns such memory into objects.
//! Everything here is safe code over cells.
//!
//! # The way through
//!
//! A hart runs [`run`]: it enters the current thread, gets back why it stopped, takes the kernel's lock, and lets
//! [`Kernel`] handle it (`syscall`): look-ups in capability spaces (`cspace`), messages and signals (`ipc`),
//! invocations of objects (`untyped`, `cnode`, `thread`, `vspace`, `interrupt`, `domain`), faults (`fault`). What that means for who
//! runs is decided once, at the end (`schedule`). Invocations can also be asked for in shared memory, and are carried out beside the
//! program or all at once (`asynchronous`). Signals can interrupt a thread that runs (`user_interrupt`), without the kernel where the machine can do that
//! (`interrupt_file`). Capabilities are values (`capability`), and the tree of which came from
//! which is a list through their slots (`derivation`). `delete` takes objects apart, which `ring` keeps together. `boot` makes the first thread.
//!
//! # One lock
//!
//! A kernel entry is a few hundred instructions and never waits, so one lock serves all harts; the few operations that
//! take long look for interrupts in between and are made again. What belongs to a thread that runs on another hart is
//! touched only after that hart has come into the kernel (`smp`).
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
pub mod error;
mod fault;
mod interrupt;
mod interrupt_file;
mod ipc;
pub mod machine;
mod ring;
pub mod schedule;
mod short;
mod smp;
mod syscall;
#[cfg(test)]
mod tests;
mod thread;
mod untyped;
mod user_interrupt;
mod vspace;

use core::cell::Cell;

use abi_sel4::configuration::{self, DOMAINS};
use hal_api::{Machine as _, Status, Trap};
use objects::{AsidPool, Ref, Slot, Space, Tcb, ThreadState};
use platform::Machine;

use crate::interrupt::{IRQ_SLOTS, IrqState};
use crate::interrupt_file::Sender;
use crate::schedule::{Action, MAXIMUM_SCHEDULE, Node, Ready};
use crate::smp::{Harts, Shared};

/// The most harts that the kernel uses.
pub const MAXIMUM_NODES: usize = if cfg!(feature = "smp") { 4 } else { 1 };
/// Ticks until the next thread of the same priority has its turn.
pub const TICKS_IN_A_TURN: u16 = configuration::TICKS_IN_A_TURN as u16;

/// The state of the microkernel, apart from its objects. What every kernel entry looks at comes first, so that instructions
/// reach it with their offsets.
#[repr(C)]
pub struct Kernel {
    /// The node of the hart that holds the lock.
    here: Cell<usize>,
    node_count: Cell<usize>,
    /// Grows whenever an address space or a capability to one goes; see [`Kernel::space_of`].
    space_epoch: Cell<u64>,
    /// How many handlers do not sleep.
    handlers_awake: Cell<u32>,
    /// The words that harts touch without the lock.
    harts: &'static Harts,
    nodes: [Node; MAXIMUM_NODES],
    /// The domain whose threads run.
    domain: Cell<u8>,
    /// How many domains programs know.
    domains: Cell<u8>,
    /// Ticks that are left for the domain.
    domain_time: Cell<u64>,
    /// Domain and ticks; ticks of 0 end the schedule.
    domain_schedule: [Cell<(u8, u64)>; MAXIMUM_SCHEDULE],
    schedule_index: Cell<usize>,
    schedule_start: Cell<usize>,
    asid_pools: [Cell<Option<Ref<AsidPool>>>; vspace::POOLS],
    irq_states: [Cell<IrqState>; IRQ_SLOTS as usize],
    /// The first of the slots that hold interrupts' notifications.
    irq_slots: Cell<Option<Ref<Slot>>>,
    /// Time units between two ticks.
    tick_length: Cell<u64>,
    /// Where the consistency checker begins: the first thread's capability space.
    root: Cell<Option<Ref<Slot>>>,
    /// Handlers of asynchronous invocations that wait for a hart, by domain.
    handlers: [Ready<true>; schedule::MAXIMUM_DOMAINS],
    /// Whether harts are told later which translations to forget.
    defers_flushes: Cell<bool>,
    /// Of which address space these are; 0 for none. And of which page, or `usize::MAX` for several.
    deferred_asid: Cell<u16>,
    deferred_address: Cell<usize>,
    /// Kernel entries so far, in kernels that check themselves.
    entries: Cell<u64>,
    /// Pages for sending, whose numbers capabilities have.
    senders: [Sender; interrupt_file::SENDERS],
    senders_in_use: Cell<usize>,
    /// Whether there ever was one.
    had_senders: Cell<bool>,
}

impl Kernel {
    /// A kernel without any thread, whose harts have these words.
    pub const fn new(harts: &'static Harts) -> Kernel {
        Kernel {
            harts,
            nodes: [const { Node::new() }; MAXIMUM_NODES],
            here: Cell::new(0),
            node_count: Cell::new(1),
            domain: Cell::new(0),
            domains: Cell::new(if cfg!(feature = "domains") { schedule::MAXIMUM_DOMAINS as u8 } else { DOMAINS as u8 }),
            domain_time: Cell::new(u64::MAX),
            domain_schedule: [const { Cell::new((0, 0)) }; MAXIMUM_SCHEDULE],
            schedule_index: Cell::new(0),
            schedule_start: Cell::new(0),
            space_epoch: Cell::new(1),
            asid_pools: [const { Cell::new(None) }; vspace::POOLS],
            irq_states: [const { Cell::new(IrqState::Inactive) }; IRQ_SLOTS as usize],
            irq_slots: Cell::new(None),
            tick_length: Cell::new(0),
            root: Cell::new(None),
            handlers: [const { Ready::new() }; schedule::MAXIMUM_DOMAINS],
            handlers_awake: Cell::new(0),
            defers_flushes: Cell::new(false),
            deferred_asid: Cell::new(0),
            deferred_address: Cell::new(0),
            entries: Cell::new(0),
            senders: [const { Sender::new() }; interrupt_file::SENDERS],
            senders_in_use: Cell::new(0),
            had_senders: Cell::new(false),
        }
    }

    /// The index of the hart that holds the lock.
    #[inline(always)]
    fn here(&self) -> usize {
        if MAXIMUM_NODES == 1 { 0 } else { self.here.get() }
    }

    #[inline(always)]
    fn node(&self) -> &Node {
        &self.nodes[self.here()]
    }

    #[inline(always)]
    fn node_of(&self, thread: Ref<Tcb>) -> usize {
        if MAXIMUM_NODES == 1 { 0 } else { usize::from(thread.affinity.get()) }
    }

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

/// What a hart does next.
enum Next {
    Run(Ref<Tcb>),
    /// A virtualised thread.
    RunVirtualised(Ref<Tcb>),
    /// A turn of a handler of asynchronous invocations.
    Serve,
    Wait,
}

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
        debug_assert!(node.action.get() != Action::Resume || node.current.get() == Some(thread));
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
            Next::RunVirtualised(thread) => interrupt_file::run(thread, hart),
            Next::Serve => {
                let (next, pause) = {
                    let kernel = KERNEL.enter(hart);
                    if !platform::machine::pending().is_empty() {
                        kernel.serve_interrupts();
                    }
                    kernel.serve();
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

/// Runs a thread, and those it hands over to by the short way, until something else is to be decided.
#[inline(always)]
fn run_thread(mut thread: Ref<Tcb>, hart: usize) -> Next {
    loop {
        let trap = KERNEL.visit(thread, hart);
        let kernel = KERNEL.enter(hart);
        // Another hart may have stopped the thread in the meantime; then it makes its call again, some time.
        if cfg!(feature = "smp") && kernel.node().current.get().is_none() {
            kernel.serve_interrupts();
            return kernel.leave_and_poke();
        }
        if trap == Trap::SystemCall
            && let Some(next) = kernel.short_way(thread)
        {
            thread = next;
            kernel.check_after_entry();
            kernel.note_user();
            continue;
        }
        kernel.handle(thread, trap);
        if kernel.goes_on(thread) {
            kernel.poke_others();
            kernel.check_after_entry();
            kernel.note_user();
            continue;
        }
        return kernel.leave_and_poke();
    }
}
