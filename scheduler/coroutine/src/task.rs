//! A coroutine's block: one allocation with the scheduler's header, the join state, and the future or its output.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::ptr::NonNull;

use scheduler::{CANCELLED_OUTCOME, COMPLETED, DONE, Header};

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

/// Outcomes with which a handle calls the scheduler's finish function, to free a block whose future is gone: with its
/// output, or without. The finish function has the future's type, so each block needs no second function pointer.
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
    /// Allocates a block, for a coroutine that is ready at once or one that begins blocked, with the poll function
    /// that tells the tracer or the one that does not; returns the future if there is no memory.
    #[inline]
    pub fn allocate<F: Future, const TRACED: bool>(
        future: F,
        kind: u16,
        priority: u8,
        begins: Begins,
    ) -> Result<NonNull<Block>, F> {
        let layout = Layout::new::<Task<F>>();
        let poll = if TRACED { traced_poll::<F> } else { poll::<F> };
        // SAFETY: a task is not of size 0.
        let Some(task) = NonNull::new(unsafe { alloc(layout) }.cast::<Task<F>>()) else {
            return Err(future);
        };
        let header = Header::new(poll, finish::<F>, kind, priority);
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
        unsafe { ((*block.as_ptr()).header.finish())(Block::header(block), outcome) }
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

/// The scheduler's poll function.
///
/// # Safety
/// Called by the scheduler: `header` is that of a `Task<F>` whose future is present, and `frame` the frame of the
/// worker.
unsafe extern "C" fn poll<F: Future>(header: *mut Header, frame: *mut c_void) -> u32 {
    let task = header.cast::<Task<F>>();
    // SAFETY: as above; the scheduler polls a coroutine on one worker at a time, and the block does not move.
    unsafe {
        let stage = (*task).stage.get();
        let future = Pin::new_unchecked(&mut *(*stage).future);
        match (*frame.cast::<Frame>()).poll((*header).cid(), future) {
            Err(answer) => answer,
            Ok(output) => {
                ManuallyDrop::drop(&mut (*stage).future);
                (*stage).output = ManuallyDrop::new(output);
                DONE
            }
        }
    }
}

/// The scheduler's poll function for a coroutine that was spawned while there was a tracer.
///
/// # Safety
/// As for [`poll`].
#[cold]
unsafe extern "C" fn traced_poll<F: Future>(header: *mut Header, frame: *mut c_void) -> u32 {
    // SAFETY: the spawn of this header is over, and the other promises are those of `poll`.
    unsafe {
        let cid = (*header).cid();
        if let Some(tracer) = tracer() {
            (tracer.poll_begins)(cid);
        }
        let answer = poll::<F>(header, frame);
        if let Some(tracer) = tracer() {
            (tracer.poll_ends)(cid, answer);
        }
        answer
    }
}

/// The finish function, called by the scheduler and by [`Block::after`].
///
/// # Safety
/// Called by the scheduler: `header` is that of a `Task<F>`; with `COMPLETED` its output is present, else its future.
/// The block's last owner calls it with `FREE` or `FREE_WITH_OUTPUT`.
unsafe extern "C" fn finish<F: Future>(header: *mut Header, outcome: u32) {
    let task = header.cast::<Task<F>>();
    // SAFETY: as above, and this function has the executor's share of the block until `complete`.
    unsafe {
        let end = match outcome {
            COMPLETED => End::Output,
            FREE | FREE_WITH_OUTPUT => {
                let after = After::Free { output: outcome == FREE_WITH_OUTPUT };
                return free::<F>(NonNull::new_unchecked(task).cast(), after);
            }
            _ => {
                ManuallyDrop::drop(&mut (*(*task).stage.get()).future);
                End::Cancelled
            }
        };
        let after = (*task).block.join.complete(end);
        if after != After::Leave {
            free::<F>(NonNull::new_unchecked(task).cast(), after);
        }
    }
}
