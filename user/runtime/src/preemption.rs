//! Preemption inside a process: a coroutine that runs for long is put aside in the middle of a poll when a more
//! important one is ready, and goes on later, with all its registers.
//!
//! Without it a coroutine gives way at an `await`, and nowhere else. A program that computes for long and must answer
//! quickly all the same calls [`enable`].
//!
//! # How
//!
//! The handler of user interrupts has woken whom it could, and looks whether something more important is ready than
//! what it has interrupted. If so, it suspends that coroutine in the scheduler, makes it ready again at its place, and
//! switches to another stack, on which the worker's executor runs as before. When that takes the suspended coroutine,
//! it switches back: the handler ends, and the coroutine goes on behind the instruction at which it was interrupted.
//! The stack that was left waits in the executor for the next time. So there are as many stacks as coroutines that were
//! put aside at once and one, each less important than the next: at most [`STACKS`].
//!
//! ```text
//!   stack A:  run -> poll a ... interrupt -> handler -> suspend a, switch ......................... handler ends, a goes on
//!   stack B:                                             run -> poll b -> ready -> take a -> switch
//! ```
//!
//! Who calls the handler: what wakes somebody from outside (a signal, a completion); with the back end `imsic` the
//! worker's own timer, every [`PERIOD_NS`]; with every back end the kernel's tick.
//!
//! # What must not be interrupted
//!
//! * The scheduler's image: no handler is called there.
//! * What the runtime does under a lock, or otherwise by halves: a section (in `lock`). The handler comes back a little
//!   later.
//! * What the executor does outside of its image and of a poll: then nothing is current.
//! * What belongs to the worker. Each stack has a block of its own instead, with its own free blocks and call records,
//!   so that allocating and calling cost nothing for this.
//!
//! A program has its own such code, if coroutines of different priorities wait for each other otherwise than by
//! `await`: by spinning, or in a system call. That is why preemption is a choice, and [`without`] is there.

use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi_queue::MAXIMUM_WORKERS;
use coroutine::{Cid, Worker};
use unix::interrupt::Context;

use crate::local::Local;
use crate::lock::Section;

/// Most stacks of a worker.
pub const STACKS: usize = 7;

/// How often the handler looks, where the worker has a timer of its own.
pub const PERIOD_NS: u64 = 1_000_000;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// How often a coroutine was put aside.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Lets more important coroutines interrupt less important ones from now on, on all workers, also in the middle of a
/// poll.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
    rearm();
}

/// Ends that. What was put aside goes on in its turn.
pub fn disable() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Whether coroutines are interrupted.
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// How often the process has put a coroutine aside.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Runs something during which the coroutine is not put aside.
pub fn without<R>(act: impl FnOnce() -> R) -> R {
    let _section = Section::begin();
    act()
}

/// What a stack needs to be put aside.
pub struct Stack {
    /// Where it was left, while it waits in the executor.
    context: UnsafeCell<Context>,
    /// The next stack that waits.
    next: Cell<*const Local>,
    /// The executor's worker for it, until it begins.
    worker: Cell<Option<Worker>>,
}

impl Stack {
    /// The stack that runs.
    pub const fn new() -> Stack {
        Stack { context: UnsafeCell::new(Context::NEW), next: Cell::new(ptr::null()), worker: Cell::new(None) }
    }
}

impl Default for Stack {
    fn default() -> Self {
        Stack::new()
    }
}

/// The priorities of what each worker has put aside, one bit each, for the others: a hint.
static ASIDE_BITS: [AtomicU64; MAXIMUM_WORKERS] = [const { AtomicU64::new(0) }; MAXIMUM_WORKERS];

/// The priorities of what a worker has put aside.
pub(crate) fn aside_of(worker: usize) -> u64 {
    ASIDE_BITS[worker % MAXIMUM_WORKERS].load(Ordering::Relaxed)
}

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub(crate) use machine::{consider, resume, work_on_this_stack};

/// Has the handler look after a while, if the worker has a timer. After each sleep, and each look.
#[inline]
pub(crate) fn rearm() {
    #[cfg(all(target_arch = "riscv64", target_os = "none"))]
    if ENABLED.load(Ordering::Relaxed) {
        unix::interrupt::call_handler_after(PERIOD_NS / crate::time::tick_ns().max(1));
    }
}

/// Nobody is interrupted on this machine.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
pub(crate) fn consider() {}

/// Nobody was put aside on this machine.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
pub(crate) fn resume(_: Cid) {}

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
mod machine {
    use super::*;
    use crate::{executor, interrupt, local};

    /// Bytes of a stack with its block; below it lies a page that cannot be used.
    const BYTES: usize = 256 * 1024;
    const GUARD: usize = 4096;

    /// A coroutine that was put aside: lies on its stack.
    struct Suspended {
        context: UnsafeCell<Context>,
        cid: Cid,
        next: Cell<*const Suspended>,
    }

    /// What a worker has put aside. Only the worker uses it: the handler outside of sections, everything else within
    /// one.
    struct Aside {
        /// Stacks whose executor waits in [`resume`].
        idle: Cell<*const Local>,
        suspended: Cell<*const Suspended>,
        /// How many stacks there are beside the first.
        stacks: Cell<usize>,
    }

    struct All([Aside; MAXIMUM_WORKERS]);

    // SAFETY: each element is used by its own worker alone.
    unsafe impl Sync for All {}

    static ASIDE: All =
        All(
            [const { Aside { idle: Cell::new(ptr::null()), suspended: Cell::new(ptr::null()), stacks: Cell::new(0) } };
                MAXIMUM_WORKERS],
        );

    /// The handler's last step: puts what it has interrupted aside if there is something more important.
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
            // These are short.
            unix::interrupt::call_handler_after(unix::interrupt::AGAIN_TICKS);
            return;
        }
        rearm();
        put_aside(local, number);
    }

    fn put_aside(local: &'static Local, number: usize) {
        let aside = &ASIDE.0[number];
        // Until the coroutine goes on nobody is put aside on this stack.
        let _section = Section::begin();
        let mut stack = aside.idle.get();
        if stack.is_null() {
            stack = match make_stack(aside, number) {
                Some(stack) => stack,
                None => return,
            };
        } else {
            // SAFETY: blocks of stacks stay for ever.
            aside.idle.set(unsafe { (*stack).stack.next.get() });
        }
        // SAFETY: this is the handler on this worker. It has interrupted a poll, since something is current, and
        // nothing that the executor does beside, since that would be a section; and it goes on when `resume` comes back
        // here.
        let Some(cid) = (unsafe { executor::executor().suspend(number) }) else {
            // SAFETY: as above.
            unsafe { (*stack).stack.next.set(aside.idle.get()) };
            aside.idle.set(stack);
            return;
        };
        let suspended =
            Suspended { context: UnsafeCell::new(Context::NEW), cid, next: Cell::new(aside.suspended.get()) };
        aside.suspended.set(&raw const suspended);
        publish(aside, number);
        COUNT.fetch_add(1, Ordering::Relaxed);
        crate::trace::put_aside(cid.raw());
        // It exists: it is suspended, and only this worker ends that.
        let _ = executor::executor().resume(cid);
        debug_assert!(ptr::eq(local, local::current()));
        // SAFETY: the stack is idle, or about to begin; nobody else of this worker runs between.
        unsafe { unix::interrupt::switch(suspended.context.get(), (*stack).stack.context.get()) };
        // `resume` has taken it out of the list.
        unix::interrupt::enter_handler_again();
        crate::trace::goes_on(cid.raw());
    }

    /// The scheduler has taken a coroutine that was put aside: goes on with it.
    pub(crate) fn resume(cid: Cid) {
        let _section = Section::begin();
        let local = local::current();
        let aside = &ASIDE.0[local.index.get() % MAXIMUM_WORKERS];
        let mut link = &aside.suspended;
        let suspended = loop {
            // SAFETY: what is in the list lies on stacks that are put aside, and goes on only from here.
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
        // SAFETY: it was put aside by `switch`, and this stack waits from now on.
        unsafe { unix::interrupt::switch(local.stack.context.get(), suspended.context.get()) };
        // The handler has put somebody aside and needs this stack.
        unix::interrupt::leave_handler();
    }

    /// Tells the other workers how important what this one has aside is, at this moment.
    fn publish(aside: &Aside, number: usize) {
        let (mut bits, mut next) = (0, aside.suspended.get());
        // SAFETY: what is in the list lies on stacks that are put aside, and only this worker takes it out.
        while let Some(suspended) = unsafe { next.as_ref() } {
            let priority = executor::executor().priority(suspended.cid);
            bits |= priority.map_or(0, |priority| 1 << priority.number());
            next = suspended.next.get();
        }
        ASIDE_BITS[number % MAXIMUM_WORKERS].store(bits, Ordering::Relaxed);
    }

    /// A new stack, which begins in [`begin`].
    fn make_stack(aside: &Aside, number: usize) -> Option<*const Local> {
        if aside.stacks.get() + 1 >= STACKS {
            return None;
        }
        // SAFETY: the worker exists, since it is interrupted; this one runs only while all others are put aside.
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
        // SAFETY: nobody else knows the block yet.
        unsafe { *local.stack.context.get() = Context::beginning(begin, top, top) };
        aside.stacks.set(aside.stacks.get() + 1);
        Some(local)
    }

    /// Where a stack begins: in the handler of what was put aside, in a section.
    extern "C" fn begin() -> ! {
        unix::interrupt::leave_handler();
        let local = local::current();
        local.sections.set(0);
        executor::work_on_another_stack(local.index.get())
    }

    /// The executor's worker for the stack that has just begun.
    pub(crate) fn work_on_this_stack() -> Option<Worker> {
        local::current().stack.worker.take()
    }
}
