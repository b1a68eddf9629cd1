//! The block of one worker, or of one thread: its index, its magazines of the heap, its call records, its request ring,
//! its random numbers.
//!
//! On COPS the thread pointer `tp` holds the address of the running worker's block: the start-up code sets it for
//! worker 0, the kernel for the others (`worker_create`, `clone`). In programs with the standard library blocks are
//! thread-local data instead. A coroutine may continue on another worker after each `await`, so a reference to the
//! block must not be kept over one; within a poll the worker does not change.

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
    /// Number of the worker, below [`abi_queue::MAXIMUM_WORKERS`]; [`NO_WORKER`] for threads.
    pub index: Cell<usize>,
    /// The worker's published word: the ready priorities, and the running one.
    word: Cell<&'static ReadyWord>,
    /// Cache of [`Local::priority()`]: the running word of its last call; `priority` is the result.
    running: Cell<u64>,
    priority: Cell<Priority>,
    /// Call records.
    pub calls: call::LocalCalls,
    /// The request ring.
    pub ring: submission::LocalRing,
    /// State of the random numbers for scheduling and tests; 0 until seeded.
    pub random: Cell<u64>,
    /// Free blocks of the heap.
    pub cache: heap::Cache,
    /// Thread-local values.
    pub values: thread::Values,
    /// Number of [`Section`](crate::lock::Section)s that the code here is in.
    pub sections: Cell<usize>,
    /// State of this block's stack while it is set aside by preemption.
    pub stack: preemption::Stack,
    /// Address up to which this block's stack is surely in use, for the list of callers in a panic's report; 0 until
    /// the executor runs on it.
    pub stack_top: Cell<usize>,
}

/// The word of a thread, and of a worker that has not begun.
static NOTHING_RUNS: ReadyWord = ReadyWord::new();

/// Number in the block of a thread that is no worker.
pub const NO_WORKER: usize = usize::MAX;

impl Local {
    /// Creates the block of a worker or a thread that has not begun.
    pub const fn new() -> Local {
        Local::with_index(0)
    }

    const fn with_index(index: usize) -> Local {
        Local {
            index: Cell::new(index),
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
            stack_top: Cell::new(0),
        }
    }

    /// Sets the word in which the worker publishes its ready and running priorities. For the executor, when the worker
    /// begins.
    pub fn set_word(&self, word: &'static ReadyWord) {
        self.word.set(word);
    }

    /// Returns the worker's published word.
    #[inline(always)]
    pub fn word(&self) -> &'static ReadyWord {
        self.word.get()
    }

    /// Returns the priority of the coroutine that the worker polls; the default one outside of a poll.
    #[inline(always)]
    pub fn priority(&self) -> Priority {
        let running = self.word().1.load(Ordering::Relaxed);
        // Usually the word has not changed since the last call, and finding the bit in it takes many instructions.
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

#[cfg(target_os = "none")]
mod machine {
    use super::Local;
    use abi_queue::MAXIMUM_WORKERS;

    struct Locals([Local; MAXIMUM_WORKERS]);

    // SAFETY: each element is used by its own worker alone.
    unsafe impl Sync for Locals {}

    static LOCALS: Locals = Locals([const { Local::new() }; MAXIMUM_WORKERS]);

    /// Returns the running worker's block.
    #[inline(always)]
    pub fn current() -> &'static Local {
        let address: *const Local;
        // SAFETY: reads a register.
        unsafe { core::arch::asm!("mv {}, tp", out(reg) address, options(nomem, nostack, preserves_flags)) };
        // SAFETY: `enter` ran on this worker before any other code, and put the address of its block there.
        unsafe { &*address }
    }

    fn thread_pointer(index: usize) -> usize {
        LOCALS.0[index].index.set(index);
        &raw const LOCALS.0[index] as usize
    }

    /// The block of a worker that is to be made.
    pub struct Prepared(usize);

    impl Prepared {
        /// Prepares the block of a worker.
        ///
        /// # Errors
        ///
        /// None here.
        pub fn new(index: usize) -> unix::Result<Prepared> {
            Ok(Prepared(thread_pointer(index)))
        }

        /// Returns the value of `tp` for the worker.
        pub fn thread_pointer(&self) -> usize {
            self.0
        }

        /// Leaves the block to the worker, which exists now.
        pub fn leave(self) {}
    }

    /// Sets `tp` to worker 0's block. For the start-up code, before anything else.
    pub fn enter_first() {
        // SAFETY: `tp` is used by this module alone.
        unsafe { core::arch::asm!("mv tp, {}", in(reg) thread_pointer(0), options(nomem, nostack, preserves_flags)) };
    }
}

/// With the standard library `tp` belongs to the C library, and blocks are thread-local data.
///
/// The C library makes thread-local data only with a thread of its own. So each worker but the first has such a thread
/// beside it, which made them, lends its thread pointer to the worker, and sleeps for ever without touching them.
#[cfg(all(on_cops, feature = "std"))]
mod machine {
    use core::mem::ManuallyDrop;
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::boxed::Box;

    use unix::thread::{futex_wait, futex_wake};
    use unix::{Errno, Result};

    use super::{Local, NO_WORKER};

    std::thread_local! {
        // Without a destructor, for which every use would have to look whether it has run.
        static LOCAL: ManuallyDrop<Local> = const { ManuallyDrop::new(Local::with_index(NO_WORKER)) };
    }

    /// Returns the running worker's or thread's block.
    #[inline(always)]
    pub fn current() -> &'static Local {
        // SAFETY: the block lives as long as the thread, and only code of this thread has the reference.
        LOCAL.with(|local| unsafe { &*core::ptr::from_ref::<Local>(local) })
    }

    /// Bytes of a lending thread's stack, in which the C library puts its thread-local data, too.
    const STACK: usize = 64 * 1024;

    const STARTING: u32 = 0;
    const READY: u32 = 1;
    const NOT_WANTED: u32 = 2;

    /// The words between a lending thread and its maker.
    struct Lending {
        state: AtomicU32,
        // Stored before `READY` (release), loaded after it (acquire).
        thread_pointer: core::sync::atomic::AtomicUsize,
    }

    /// The thread-local data of a worker that is to be made.
    pub struct Prepared(&'static Lending);

    impl Prepared {
        /// Starts the thread that lends its thread-local data to a worker.
        ///
        /// # Errors
        ///
        /// `EAGAIN` if no thread could be started.
        pub fn new(index: usize) -> Result<Prepared> {
            // A worker lives as long as the program.
            let lending: &'static Lending = Box::leak(Box::new(Lending {
                state: AtomicU32::new(STARTING),
                thread_pointer: core::sync::atomic::AtomicUsize::new(0),
            }));
            let lend = move || {
                current().index.set(index);
                let thread_pointer: usize;
                // SAFETY: reads a register.
                unsafe { core::arch::asm!("mv {}, tp", out(reg) thread_pointer, options(nomem, nostack)) };
                lending.thread_pointer.store(thread_pointer, Ordering::Relaxed);
                lending.state.store(READY, Ordering::Release);
                futex_wake(&lending.state, 1);
                // Calls of the kernel alone: all else could use thread-local data, which are the worker's from here on.
                while lending.state.load(Ordering::Acquire) != NOT_WANTED {
                    let _ = futex_wait(&lending.state, READY, None);
                }
            };
            let name = alloc::format!("for worker {index}");
            std::thread::Builder::new().name(name).stack_size(STACK).spawn(lend).map_err(|_| Errno::EAGAIN)?;
            while lending.state.load(Ordering::Acquire) == STARTING {
                let _ = futex_wait(&lending.state, STARTING, None);
            }
            Ok(Prepared(lending))
        }

        /// Returns the value of `tp` for the worker.
        pub fn thread_pointer(&self) -> usize {
            self.0.thread_pointer.load(Ordering::Relaxed)
        }

        /// Leaves the data to the worker, which exists now.
        pub fn leave(self) {
            core::mem::forget(self);
        }
    }

    impl Drop for Prepared {
        /// There is no such worker: ends the thread.
        fn drop(&mut self) {
            self.0.state.store(NOT_WANTED, Ordering::Release);
            futex_wake(&self.0.state, 1);
        }
    }

    /// Makes the calling thread worker 0. For the start-up code, before anything else.
    pub fn enter_first() {
        current().index.set(0);
    }
}

#[cfg(on_cops)]
pub use machine::{Prepared, current, enter_first};

/// Returns the calling thread's block: on the host every thread is a worker of its own, so that tests can have several.
#[cfg(not(on_cops))]
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
