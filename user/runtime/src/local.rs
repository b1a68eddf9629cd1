//! What belongs to one worker, or to one thread: its index, its magazines of the heap, its call records, its request
//! ring, its random numbers.
//!
//! On COPS the thread pointer `tp` names the block of the running worker: the start-up code sets it for worker 0, the
//! kernel for the others (`worker_create`, `clone`). A coroutine may go on at another worker after each `await`, so
//! nobody may keep a reference over one; within a poll the worker does not change.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use abi_queue::{Priority, ReadyWord};

use crate::call;
use crate::heap;
use crate::preemption;
use crate::submission;
use crate::thread;

/// The block of one worker, or of one of its stacks if it has several: see [`preemption`]. Only that worker uses it.
#[repr(align(64))]
pub struct Local {
    /// The number of the worker, below [`abi_queue::MAXIMUM_WORKERS`]; [`NO_WORKER`] for threads.
    pub index: Cell<usize>,
    /// What the worker publishes: what is ready, and what it runs.
    word: Cell<&'static ReadyWord>,
    /// The running word when it was last asked how important that is, and the answer.
    running: Cell<u64>,
    priority: Cell<Priority>,
    /// Call records.
    pub calls: call::LocalCalls,
    /// The request ring.
    pub ring: submission::LocalRing,
    /// State of the random numbers for scheduling and tests; 0 until seeded.
    pub random: Cell<u64>,
    /// Free blocks.
    pub cache: heap::Cache,
    /// Thread-local values.
    pub values: thread::Values,
    /// How many [`Section`](crate::lock::Section)s the code here is in.
    pub sections: Cell<usize>,
    /// What the worker needs of this block's stack to put it aside.
    pub stack: preemption::Stack,
}

/// What a thread publishes, and a worker that has not begun.
static NOTHING_RUNS: ReadyWord = ReadyWord::new();

/// The number of whoever is a thread and no worker.
pub const NO_WORKER: usize = usize::MAX;

impl Local {
    /// A block for a worker or a thread that has not begun.
    pub const fn new() -> Local {
        Local {
            index: Cell::new(0),
            word: Cell::new(&NOTHING_RUNS),
            running: Cell::new(0),
            priority: Cell::new(Priority::DEFAULT),
            calls: call::LocalCalls::new(),
            ring: submission::LocalRing::new(),
            random: Cell::new(0),
            cache: heap::Cache::new(),
            values: thread::Values::new(),
            sections: Cell::new(0),
            stack: preemption::Stack::new(),
        }
    }

    /// Says where the worker publishes what is ready and what it runs. For the executor, when the worker begins.
    pub fn set_word(&self, word: &'static ReadyWord) {
        self.word.set(word);
    }

    /// What the worker publishes.
    #[inline(always)]
    pub fn word(&self) -> &'static ReadyWord {
        self.word.get()
    }

    /// The priority of what the worker polls; the default one outside of a poll.
    #[inline(always)]
    pub fn priority(&self) -> Priority {
        let running = self.word().1.load(Ordering::Relaxed);
        // Mostly it is that of the last time, and to find the bit of a word takes many instructions.
        if running == self.running.get() { self.priority.get() } else { self.priority_of(running) }
    }

    #[cold]
    #[inline(never)]
    fn priority_of(&self, running: u64) -> Priority {
        let priority = Priority::most_important_in(running).unwrap_or_default();
        self.priority.set(priority);
        self.running.set(running);
        priority
    }
}

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
mod machine {
    use super::Local;
    use abi_queue::MAXIMUM_WORKERS;

    struct Locals([Local; MAXIMUM_WORKERS]);

    // SAFETY: each element is used by its own worker alone.
    unsafe impl Sync for Locals {}

    static LOCALS: Locals = Locals([const { Local::new() }; MAXIMUM_WORKERS]);

    /// The running worker's block.
    #[inline(always)]
    pub fn current() -> &'static Local {
        let address: *const Local;
        // SAFETY: reads a register.
        unsafe { core::arch::asm!("mv {}, tp", out(reg) address, options(nomem, nostack, preserves_flags)) };
        // SAFETY: `enter` ran on this worker before anything else did, and put the address of its block there.
        unsafe { &*address }
    }

    /// The value of `tp` for a worker.
    pub fn thread_pointer(index: usize) -> usize {
        LOCALS.0[index].index.set(index);
        &raw const LOCALS.0[index] as usize
    }

    /// Makes worker 0's block the running worker's. For the start-up code, before anything else.
    pub fn enter_first() {
        // SAFETY: nothing uses `tp` but this module.
        unsafe { core::arch::asm!("mv tp, {}", in(reg) thread_pointer(0), options(nomem, nostack, preserves_flags)) };
    }
}

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub use machine::{current, enter_first, thread_pointer};

/// On other machines every thread is a worker of its own, so that tests can have several.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
pub fn current() -> &'static Local {
    use core::sync::atomic::{AtomicUsize, Ordering};
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static LOCAL: &'static Local = {
            let local = std::boxed::Box::leak(std::boxed::Box::new(Local::new()));
            local.index.set(THREADS.fetch_add(1, Ordering::Relaxed) % abi_queue::MAXIMUM_WORKERS);
            local
        };
    }
    LOCAL.with(|local| *local)
}
