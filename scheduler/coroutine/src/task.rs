//! A coroutine's block: one allocation with the scheduler's header, the join state, and the future or its output.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::ptr::NonNull;

use abi_queue::{PRIORITIES, Priority};
use scheduler::{CANCELLED_OUTCOME, COMPLETED, DONE, Header, PENDING, StepOf, step_of};

use crate::frame::Frame;
use crate::join::{After, End, Join};
use crate::trace::tracer;

/// The part of a block that does not depend on the future's type.
#[repr(C)]
pub(crate) struct Block {
    header: Header,
    pub join: Join,
}

/// Offset of a coroutine's future from its control block, for debuggers; of futures that are aligned to words at most.
pub const OFFSET_OF_FUTURE: usize = size_of::<Block>();

/// Outcomes with which a handle finishes a block whose future is gone, to free it: with its output, or without. The
/// step function has the future's type, so each block needs no second function pointer.
const FREE_WITH_OUTPUT: u32 = 2;
const FREE: u32 = 3;
const _: () = assert!(COMPLETED < FREE_WITH_OUTPUT && CANCELLED_OUTCOME < FREE_WITH_OUTPUT);

#[repr(C)]
struct Task<F: Future> {
    block: Block,
    stage: UnsafeCell<Stage<F>>,
}

/// The future until it is finished, then its output.
#[repr(C)]
union Stage<F: Future> {
    future: ManuallyDrop<F>,
    output: ManuallyDrop<F::Output>,
}

/// State of a coroutine when it is spawned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    Ready,
    Blocked,
}

impl Block {
    /// Allocates a block, for a coroutine that is ready at once or one that begins blocked; returns the future if there
    /// is no memory.
    #[inline]
    pub fn allocate<F: Future>(future: F, kind: u16, priority: Priority, begins: Begins) -> Result<NonNull<Block>, F> {
        let priority = priority.number();
        // SAFETY: a priority's number is smaller; the compiler cannot know, and would limit it once more.
        unsafe { core::hint::assert_unchecked(usize::from(priority) < PRIORITIES) };
        let layout = Layout::new::<Task<F>>();
        // SAFETY: a task is not of size 0.
        let Some(task) = NonNull::new(unsafe { alloc(layout) }.cast::<Task<F>>()) else {
            return Err(future);
        };
        let header = Header::new(poll::<F>, kind, priority);
        // SAFETY: fresh memory of this layout.
        unsafe {
            task.write(Task {
                block: Block {
                    header: if begins == Begins::Blocked { header.blocked() } else { header },
                    join: Join::new(const { core::mem::offset_of!(Task<F>, stage) as u32 }),
                },
                stage: UnsafeCell::new(Stage { future: ManuallyDrop::new(future) }),
            });
        }
        Ok(task.cast())
    }

    /// Makes the polls of a coroutine tell the tracer.
    ///
    /// # Safety
    /// The block was allocated for `F` and not spawned yet.
    pub unsafe fn trace<F: Future>(block: NonNull<Block>) {
        // SAFETY: the block is the caller's alone.
        unsafe { (*block.as_ptr()).header.set_step(traced_poll::<F>) };
    }

    /// Takes a future back out of a block that was not spawned.
    ///
    /// # Safety
    /// The block was allocated for `F` and has no user.
    pub unsafe fn withdraw<F: Future>(block: NonNull<Block>) -> F {
        let task = block.cast::<Task<F>>();
        // SAFETY: the future is present, as it was never polled; the caller owns the block.
        unsafe {
            let future = ManuallyDrop::take(&mut (*(*task.as_ptr()).stage.get()).future);
            dealloc(task.as_ptr().cast(), Layout::new::<Task<F>>());
            future
        }
    }

    /// Returns the pointer to the block's header, for the scheduler.
    pub fn header(block: NonNull<Block>) -> *mut Header {
        block.as_ptr().cast()
    }

    /// Moves the output out.
    ///
    /// # Safety
    /// The block was allocated for a future with this output, the output belongs to the caller by the join state, and
    /// it is taken only once.
    pub unsafe fn take_output<T>(block: NonNull<Block>) -> T {
        // SAFETY: as above.
        unsafe { block.byte_add((*block.as_ptr()).join.output() as usize).cast::<T>().read() }
    }

    /// Frees the block if the join state requires it.
    ///
    /// # Safety
    /// `after` is its answer.
    #[inline]
    pub unsafe fn after(block: NonNull<Block>, after: After) {
        let outcome = match after {
            After::Leave => return,
            After::Free { output: true } => FREE_WITH_OUTPUT,
            After::Free { output: false } => FREE,
        };
        // SAFETY: the caller is the last owner, and the function belongs to this block.
        unsafe { Header::finish(&raw mut (*block.as_ptr()).header, outcome) }
    }
}

/// Frees a block, whose future is gone.
///
/// # Safety
/// The block was allocated for `F`; the join state answered `after`.
unsafe fn free<F: Future>(block: NonNull<Block>, after: After) {
    let task = block.cast::<Task<F>>().as_ptr();
    // SAFETY: the caller is the last owner.
    unsafe {
        if after == (After::Free { output: true }) {
            ManuallyDrop::drop(&mut (*(*task).stage.get()).output);
        }
        core::ptr::drop_in_place(&raw mut (*task).block.join);
        dealloc(task.cast(), Layout::new::<Task<F>>());
    }
}

/// The scheduler's step function.
///
/// # Safety
/// Called by the scheduler, or as [`finish`] says: `header` is that of a `Task<F>`; for a poll its future is present,
/// and the frame is that of the worker.
unsafe extern "C" fn poll<F: Future>(header: *mut Header, argument: *mut c_void, cid: u64) -> u32 {
    let (frame, cid) = match step_of(argument, cid) {
        StepOf::Poll { frame, cid } => (frame, cid),
        StepOf::Finish { outcome } => {
            // SAFETY: the caller's promise.
            return unsafe { finish::<F>(header, outcome) };
        }
    };
    let task = header.cast::<Task<F>>();
    // SAFETY: as above; the scheduler polls a coroutine on one worker at a time, and the block does not move.
    unsafe {
        let stage = (*task).stage.get();
        let future = Pin::new_unchecked(&mut *(*stage).future);
        match (*frame.cast::<Frame>()).poll(cid, future) {
            Err(answer) => answer,
            Ok(output) => {
                ManuallyDrop::drop(&mut (*stage).future);
                (*stage).output = ManuallyDrop::new(output);
                DONE
            }
        }
    }
}

/// The scheduler's step function for a coroutine that was spawned while there was a tracer.
///
/// # Safety
/// As for [`poll`].
#[cold]
unsafe extern "C" fn traced_poll<F: Future>(header: *mut Header, argument: *mut c_void, cid: u64) -> u32 {
    let tracer = || if cid == 0 { None } else { tracer() };
    // SAFETY: the promises are those of `poll`.
    unsafe {
        if let Some(tracer) = tracer() {
            (tracer.poll_begins)(cid);
        }
        let answer = poll::<F>(header, argument, cid);
        if let Some(tracer) = tracer() {
            (tracer.poll_ends)(cid, answer);
        }
        answer
    }
}

/// Finishes a coroutine, for the scheduler and for [`Block::after`].
///
/// Returns an answer of the step, which does not matter: `DONE` if the block is freed, else `PENDING`. Were it always
/// the same, the compiler would put it behind the call in the step function, which would then need a stack frame.
///
/// # Safety
/// For the scheduler: `header` is that of a `Task<F>`; with `COMPLETED` its output is present, else its future. The
/// block's last owner calls it with `FREE` or `FREE_WITH_OUTPUT`.
// A function of its own, so that polls save no registers for it. Its usual case, a coroutine that nobody waits for,
// needs no stack frame; the other cases are a tail call. Such calls need equal conventions.
#[inline(never)]
unsafe extern "C" fn finish<F: Future>(header: *mut Header, outcome: u32) -> u32 {
    let task = header.cast::<Task<F>>();
    // SAFETY: as above, and this function has the executor's share of the block, which is the only one if the handle
    // has left.
    unsafe {
        if outcome == COMPLETED && (*task).block.join.is_left_without_waker() {
            ManuallyDrop::drop(&mut (*(*task).stage.get()).output);
            dealloc(task.cast(), Layout::new::<Task<F>>());
            return DONE;
        }
        finish_with_handle::<F>(header, outcome)
    }
}

/// Finishes a coroutine whose handle may exist or may have left a waker.
///
/// # Safety
/// As for [`finish`].
#[inline(never)]
unsafe extern "C" fn finish_with_handle<F: Future>(header: *mut Header, outcome: u32) -> u32 {
    let task = header.cast::<Task<F>>();
    // SAFETY: as for `finish`, and this function has the executor's share of the block until `complete`.
    unsafe {
        let after = match outcome {
            COMPLETED => (*task).block.join.complete(End::Output),
            FREE => After::Free { output: false },
            FREE_WITH_OUTPUT => After::Free { output: true },
            _ => {
                ManuallyDrop::drop(&mut (*(*task).stage.get()).future);
                (*task).block.join.complete(End::Cancelled)
            }
        };
        if after == After::Leave {
            return PENDING;
        }
        free::<F>(NonNull::new_unchecked(task).cast(), after);
        DONE
    }
}
