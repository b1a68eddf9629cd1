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

/// What the owner of a handle calls the scheduler's finish with, to free a block whose future is gone: with its output,
/// or without. The function knows the future's type, and with these there need not be another one in each block.
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

/// What a coroutine is when it is spawned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    Ready,
    Blocked,
}

impl Block {
    /// Allocates a block, for a coroutine that is ready at once or one that begins blocked; gives the future back if
    /// there is no memory.
    #[inline]
    pub fn allocate<F: Future>(future: F, kind: u16, priority: u8, begins: Begins) -> Result<NonNull<Block>, F> {
        let layout = Layout::new::<Task<F>>();
        let poll = if tracer().is_some() { traced_poll::<F> } else { poll::<F> };
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
        // SAFETY: the future is there, as it was never polled; the block is ours.
        unsafe {
            let future = ManuallyDrop::take(&mut (*(*task.as_ptr()).stage.get()).future);
            dealloc(task.as_ptr().cast(), Layout::new::<Task<F>>());
            future
        }
    }

    /// The header, as the scheduler wants it.
    pub fn header(block: NonNull<Block>) -> *mut Header {
        block.as_ptr().cast()
    }

    /// Moves the output out.
    ///
    /// # Safety
    /// The block was allocated for a future with this output, the join state says that the output is the caller's, and
    /// it is taken only once.
    pub unsafe fn take_output<T>(block: NonNull<Block>) -> T {
        // SAFETY: as above.
        unsafe { block.byte_add((*block.as_ptr()).join.output() as usize).cast::<T>().read() }
    }

    /// Does what the join state says.
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
        // SAFETY: we are the last owner, and the function belongs to this block.
        unsafe { ((*block.as_ptr()).header.finish())(Block::header(block), outcome) }
    }
}

/// Frees a block, whose future is gone.
///
/// # Safety
/// The block was allocated for `F`; the join state answered `after`.
unsafe fn free<F: Future>(block: NonNull<Block>, after: After) {
    let task = block.cast::<Task<F>>().as_ptr();
    // SAFETY: we are the last owner.
    unsafe {
        if after == (After::Free { output: true }) {
            ManuallyDrop::drop(&mut (*(*task).stage.get()).output);
        }
        core::ptr::drop_in_place(&raw mut (*task).block.join);
        dealloc(task.cast(), Layout::new::<Task<F>>());
    }
}

/// The scheduler's poll.
///
/// # Safety
/// Called by the scheduler: `header` is that of a `Task<F>` whose future is there, and `frame` the frame of the worker.
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

/// The scheduler's poll, for a coroutine that was spawned while there was a trace.
///
/// # Safety
/// As for [`poll`].
#[cold]
unsafe extern "C" fn traced_poll<F: Future>(header: *mut Header, frame: *mut c_void) -> u32 {
    // SAFETY: no spawn of this header is going on, and the other promises are the same.
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

/// The scheduler's finish, and [`Block::after`]'s.
///
/// # Safety
/// Called by the scheduler: `header` is that of a `Task<F>`; with `COMPLETED` its output is there, else its future. Or
/// called by the block's last owner with how to free it.
unsafe extern "C" fn finish<F: Future>(header: *mut Header, outcome: u32) {
    let task = header.cast::<Task<F>>();
    // SAFETY: as above, and the executor's share of the block is ours until `complete`.
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
