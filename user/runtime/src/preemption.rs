//! Preemption inside a process: a coroutine that runs for long is preempted in the middle of a poll when a more
//! important one is ready, and continues later, with all its registers.
//!
//! Without preemption a coroutine gives up its worker at an `await` only. A program that computes for long and still
//! has to answer quickly calls [`enable`].
//!
//! # Mechanism
//!
//! The handler of user interrupts first wakes coroutines, and then checks whether one is ready that is more important
//! than the interrupted one. If so, it suspends the interrupted coroutine in the scheduler, makes it ready again at its
//! place, and switches to another stack, on which the worker's executor runs as before. When the executor takes the
//! suspended coroutine, it switches back: the handler returns, and the coroutine continues behind the instruction at
//! which it was interrupted. The stack that was left waits in the executor for the next time. So a worker has one stack
//! more than coroutines that are preempted at once, each less important than the next: at most [`STACKS`].
//!
//! ```text
//!   stack A:  run -> poll a ... interrupt -> handler -> suspend a, switch .................... a continues
//!   stack B:                                             run -> poll b -> ready -> take a -> switch
//! ```
//!
//! The handler is called by every wake-up from outside (a signal, a completion); with the back ends `imsic` and `uintc`
//! by the worker's own timer, every [`PERIOD_NS`]; with every back end by the kernel's tick.
//!
//! # Code that must not be interrupted
//!
//! * The scheduler's image: no handler is called there.
//! * Code of the runtime under a lock, or with an inconsistent state otherwise: a section (in `lock`). The handler is
//!   called again a little later.
//! * The executor outside of its image and of a poll: no coroutine is current then.
//! * Data of the worker. Each stack has a block of its own instead, with its own free blocks and call records, so that
//!   allocating and calling cost nothing for this.
//!
//! A program has such code of its own if coroutines of different priorities wait for each other otherwise than by
//! `await`: by spinning, or in a system call. That is why preemption is a choice, and [`without`] exists.

use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi_queue::MAXIMUM_WORKERS;
use coroutine::{Cid, Worker};
use unix::interrupt::Context;

use crate::local::Local;
use crate::lock::Section;

/// Largest number of stacks of a worker.
pub const STACKS: usize = 7;

/// Period of the handler's checks, where the worker has a timer of its own.
pub const PERIOD_NS: u64 = 1_000_000;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Number of preemptions.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Lets more important coroutines preempt less important ones from now on, on all workers, also in the middle of a
/// poll.
///
/// # Panics
///
/// In a program with the standard library: its C library keeps data for each thread, and a coroutine that is preempted
/// in the middle of a change leaves them in disorder for the next.
#[doc(alias("coop", "unconstrained"))]
pub fn enable() {
    if cfg!(all(on_cops, feature = "std")) {
        panic!("a program with the standard library cannot preempt its coroutines");
    }
    ENABLED.store(true, Ordering::Relaxed);
    rearm();
}

/// Ends preemption. Preempted coroutines continue in their turn.
pub fn disable() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Returns whether coroutines are preempted.
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Returns how often the process has preempted a coroutine.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Calls a function during which the coroutine is not preempted.
#[doc(alias("critical_section", "preempt_disable"))]
pub fn without<R>(act: impl FnOnce() -> R) -> R {
    let _section = Section::begin();
    act()
}

/// State of a stack for preemption.
pub struct Stack {
    /// Registers, while the stack waits in the executor.
    context: UnsafeCell<Context>,
    /// The next waiting stack.
    next: Cell<*const Local>,
    /// The executor's worker for the stack, until the stack begins.
    worker: Cell<Option<Worker>>,
}

impl Stack {
    /// Describes a running stack.
    pub const fn new() -> Stack {
        Stack { context: UnsafeCell::new(Context::NEW), next: Cell::new(ptr::null()), worker: Cell::new(None) }
    }
}

impl Default for Stack {
    fn default() -> Self {
        Stack::new()
    }
}

/// Priorities of the coroutines that each worker has preempted, one bit each, for the other workers: a hint.
static ASIDE_BITS: [AtomicU64; MAXIMUM_WORKERS] = [const { AtomicU64::new(0) }; MAXIMUM_WORKERS];

/// Returns the priorities of the coroutines that a worker has preempted.
pub(crate) fn aside_of(worker: usize) -> u64 {
    ASIDE_BITS[worker % MAXIMUM_WORKERS].load(Ordering::Relaxed)
}

#[cfg(target_os = "none")]
pub(crate) use machine::{consider, resume, work_on_this_stack};

/// Arms the worker's timer, if it has one, to call the handler later. To be called after each sleep and each check.
#[inline]
pub(crate) fn rearm() {
    #[cfg(target_os = "none")]
    if ENABLED.load(Ordering::Relaxed) {
        unix::interrupt::call_handler_after(period_ticks());
    }
}

/// Returns [`PERIOD_NS`] in ticks.
#[cfg(target_os = "none")]
fn period_ticks() -> u64 {
    PERIOD_NS / crate::time::tick_ns().max(1)
}

/// No coroutine is interrupted on this machine.
#[cfg(not(target_os = "none"))]
pub(crate) fn consider() {}

/// No coroutine was preempted on this machine.
#[cfg(not(target_os = "none"))]
pub(crate) fn resume(_: Cid) {}

#[cfg(target_os = "none")]
mod machine {
    use super::*;
    use crate::{executor, interrupt, local};

    /// Bytes of a stack with its block; a guard page lies below it.
    const BYTES: usize = 256 * 1024;
    const GUARD: usize = 4096;

    /// A preempted coroutine: lies on its own stack.
    struct Suspended {
        context: UnsafeCell<Context>,
        cid: Cid,
        next: Cell<*const Suspended>,
    }

    /// The preempted coroutines and idle stacks of a worker. Only the worker uses it: the handler outside of sections,
    /// all other code within one.
    struct Aside {
        /// Stacks whose executor waits in [`resume`].
        idle: Cell<*const Local>,
        suspended: Cell<*const Suspended>,
        /// Number of stacks beside the first.
        stacks: Cell<usize>,
    }

    struct AllAsides([Aside; MAXIMUM_WORKERS]);

    // SAFETY: each element is used by its own worker alone.
    unsafe impl Sync for AllAsides {}

    static ASIDE: AllAsides = AllAsides(
        [const { Aside { idle: Cell::new(ptr::null()), suspended: Cell::new(ptr::null()), stacks: Cell::new(0) } };
            MAXIMUM_WORKERS],
    );

    /// The handler's last step: preempts the interrupted coroutine if a more important one is ready.
    pub(crate) fn consider() {
        if !ENABLED.load(Ordering::Relaxed) {
            return;
        }
        let local = local::current();
        let number = local.index.get();
        if number >= MAXIMUM_WORKERS || !executor::has_more_important(number) && !interrupt::has_attention(number) {
            rearm();
            return;
        }
        if local.sections.get() != 0 || executor::current_or_none().is_none() {
            // A section is short: look again soon.
            look_again(number, unix::interrupt::AGAIN_TICKS);
            return;
        }
        rearm();
        if !put_aside(local, number) {
            look_again(number, period_ticks());
        }
    }

    /// Has the handler called again after this many ticks, or at the kernel's tick where the worker has no timer.
    fn look_again(number: usize, ticks: u64) {
        if !unix::interrupt::call_handler_after(ticks) {
            interrupt::call_handler_at_tick(number);
        }
    }

    /// Preempts the interrupted coroutine; returns `true` when it continues, and `false` if it could not be preempted.
    fn put_aside(local: &'static Local, number: usize) -> bool {
        let aside = &ASIDE.0[number];
        // Until the coroutine continues, this stack runs no coroutine that could be preempted.
        let _section = Section::begin();
        let mut stack = aside.idle.get();
        if stack.is_null() {
            stack = match make_stack(aside, number) {
                Some(stack) => stack,
                None => return false,
            };
        } else {
            // SAFETY: blocks of stacks stay for ever.
            aside.idle.set(unsafe { (*stack).stack.next.get() });
        }
        // SAFETY: this is the handler on this worker. It has interrupted a poll, since a coroutine is current, and no
        // other part of the executor, since that would be a section; and it continues when `resume` comes back here.
        let Some(cid) = (unsafe { executor::executor().suspend(number) }) else {
            // SAFETY: as above.
            unsafe { (*stack).stack.next.set(aside.idle.get()) };
            aside.idle.set(stack);
            return false;
        };
        let suspended =
            Suspended { context: UnsafeCell::new(Context::NEW), cid, next: Cell::new(aside.suspended.get()) };
        aside.suspended.set(&raw const suspended);
        publish(aside, number);
        COUNT.fetch_add(1, Ordering::Relaxed);
        crate::trace::put_aside(cid.raw());
        // The coroutine exists: it is suspended, and only this worker ends that.
        let _ = executor::executor().resume(cid);
        debug_assert!(ptr::eq(local, local::current()));
        // SAFETY: the stack is idle, or about to begin; no other code of this worker runs between.
        unsafe { unix::interrupt::switch(suspended.context.get(), (*stack).stack.context.get()) };
        // `resume` has taken it out of the list.
        unix::interrupt::enter_handler_again();
        crate::trace::goes_on(cid.raw());
        true
    }

    /// Continues a preempted coroutine, which the scheduler has taken.
    pub(crate) fn resume(cid: Cid) {
        let _section = Section::begin();
        let local = local::current();
        let aside = &ASIDE.0[local.index.get() % MAXIMUM_WORKERS];
        let mut link = &aside.suspended;
        let suspended = loop {
            // SAFETY: the entries lie on stacks of preempted coroutines, which continue only from here.
            let Some(suspended) = (unsafe { link.get().as_ref() }) else { return };
            if suspended.cid == cid {
                link.set(suspended.next.get());
                break suspended;
            }
            link = &suspended.next;
        };
        publish(aside, local.index.get());
        local.stack.next.set(aside.idle.get());
        aside.idle.set(local);
        // SAFETY: the coroutine was preempted by `switch`, and this stack waits from now on.
        unsafe { unix::interrupt::switch(local.stack.context.get(), suspended.context.get()) };
        // The handler has preempted a coroutine and needs this stack.
        unix::interrupt::leave_handler();
    }

    /// Publishes the priorities of this worker's preempted coroutines for the other workers.
    fn publish(aside: &Aside, number: usize) {
        let (mut bits, mut next) = (0, aside.suspended.get());
        // SAFETY: the entries lie on stacks of preempted coroutines, and only this worker removes them.
        while let Some(suspended) = unsafe { next.as_ref() } {
            let priority = executor::executor().priority(suspended.cid);
            bits |= priority.map_or(0, |priority| 1 << priority.number());
            next = suspended.next.get();
        }
        ASIDE_BITS[number % MAXIMUM_WORKERS].store(bits, Ordering::Relaxed);
    }

    /// Makes a new stack, which begins in [`begin`].
    fn make_stack(aside: &Aside, number: usize) -> Option<*const Local> {
        if aside.stacks.get() + 1 >= STACKS {
            return None;
        }
        // SAFETY: the worker exists, since it is interrupted; this one runs only while all others are set aside.
        let worker = unsafe { executor::executor().worker_on_another_stack(number) }.ok()?;
        let memory = unix::memory::map(GUARD + BYTES).ok()?;
        // SAFETY: the mapping is new; nothing uses its first page.
        let _ = unsafe { unix::memory::protect(memory, GUARD, 0) };
        let local = memory.wrapping_add(GUARD + BYTES - size_of::<Local>().next_multiple_of(4096)).cast::<Local>();
        // SAFETY: the mapping has room for it there, is aligned to pages, and stays for ever.
        let local: &'static Local = unsafe {
            local.write(Local::new());
            &*local
        };
        local.index.set(number);
        local.sections.set(1);
        local.stack.worker.set(Some(worker));
        let top = ptr::from_ref(local) as usize;
        // SAFETY: no other code has the block yet.
        unsafe { *local.stack.context.get() = Context::beginning(begin, top, top) };
        aside.stacks.set(aside.stacks.get() + 1);
        Some(local)
    }

    /// First function of a stack: runs in the handler of the preempted coroutine, in a section.
    extern "C" fn begin() -> ! {
        unix::interrupt::leave_handler();
        let local = local::current();
        local.sections.set(0);
        executor::work_on_another_stack(local.index.get())
    }

    /// Takes the executor's worker for the stack that has just begun.
    pub(crate) fn work_on_this_stack() -> Option<Worker> {
        local::current().stack.worker.take()
    }
}
