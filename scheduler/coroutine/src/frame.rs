//! Wakers, and the frames that hold them during a poll.
//!
//! # What a waker is
//!
//! Two words: the data word is the coroutine's cid, and the vtable word says which executor, because each executor has
//! a vtable of its own, in the order of [`EXECUTORS`]. So cloning and dropping a waker is nothing, waking costs no
//! reference count, and a waker that outlives its coroutine is harmless: its cid is stale. The rejected ways: a
//! reference-counted box (what everyone does), which costs two atomic operations for each clone; and the address of the
//! control block, which may belong to somebody else by the time of the wake.
//!
//! # What a frame is for
//!
//! While a coroutine is polled, the waker in its context lies in the [`Frame`] of the worker that polls, and all frames
//! lie in one static array. So [`yield_now`] can tell by the *address* of its waker that it is polled directly by an
//! executor, and which: then it leaves a mark beside the waker instead of waking, and the poll answers "yielded". A
//! reference to a waker in a frame cannot outlive the poll, which is why the address is proof enough; a clone of the
//! waker lies elsewhere and is woken the ordinary way. That makes a yield a store instead of a lookup and an atomic
//! operation. (A waker of another kind during the poll, with a pointer to the block in it, would do the same, but then
//! [`Waker::will_wake`] would say no to a clone of it, and there are primitives that wake whom they replace.)

use core::cell::UnsafeCell;
use core::future::Future;
use core::mem::MaybeUninit;
use core::pin::Pin;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use scheduler::{PENDING, YIELDED};

use crate::executor::Executor;
use crate::trace::tracer;

/// How many executors a program can have. A kernel or process needs one; tests on the host have many.
pub(crate) const MAXIMUM_EXECUTORS: usize = 32;
/// How many workers, of all executors together, a program can have at a time.
const FRAMES_LENGTH: usize = 64;

/// The executors by number: see the module's documentation.
pub(crate) static EXECUTORS: [AtomicPtr<Executor>; MAXIMUM_EXECUTORS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAXIMUM_EXECUTORS];

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "a cid must fit into the data word of a waker");

static VTABLES: [RawWakerVTable; MAXIMUM_EXECUTORS] = {
    macro_rules! vtables {
        ($($number:literal)*) => { [$(vtable::<$number>(),)*] };
    }
    vtables!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
};

const fn vtable<const NUMBER: usize>() -> RawWakerVTable {
    fn clone<const NUMBER: usize>(data: *const ()) -> RawWaker {
        RawWaker::new(data, &VTABLES[NUMBER])
    }
    fn wake<const NUMBER: usize>(data: *const ()) {
        // Relaxed: whoever has the waker got it from a poll, which came after the executor was made.
        let executor = EXECUTORS[NUMBER].load(Ordering::Relaxed);
        // SAFETY: an executor is registered before it gives out wakers, and lives for ever.
        unsafe { (*executor).wake_from_waker(data.addr() as u64) };
    }
    fn drop(_: *const ()) {}
    RawWakerVTable::new(clone::<NUMBER>, wake::<NUMBER>, wake::<NUMBER>, drop)
}

/// The vtables of executors whose workers were made while there was a trace.
static TRACED_VTABLES: [RawWakerVTable; MAXIMUM_EXECUTORS] = {
    macro_rules! vtables {
        ($($number:literal)*) => { [$(traced_vtable::<$number>(),)*] };
    }
    vtables!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
};

const fn traced_vtable<const NUMBER: usize>() -> RawWakerVTable {
    fn clone<const NUMBER: usize>(data: *const ()) -> RawWaker {
        RawWaker::new(data, &TRACED_VTABLES[NUMBER])
    }
    fn wake<const NUMBER: usize>(data: *const ()) {
        if let Some(tracer) = tracer() {
            (tracer.woken)(data.addr() as u64);
        }
        let executor = EXECUTORS[NUMBER].load(Ordering::Relaxed);
        // SAFETY: as for the untraced vtable.
        unsafe { (*executor).wake_from_waker(data.addr() as u64) };
    }
    fn drop(_: *const ()) {}
    RawWakerVTable::new(clone::<NUMBER>, wake::<NUMBER>, wake::<NUMBER>, drop)
}

/// The vtable of the wakers of the executor with this number.
#[inline]
pub(crate) fn vtable_of(executor: usize) -> &'static RawWakerVTable {
    let vtables = if tracer().is_some() { &TRACED_VTABLES } else { &VTABLES };
    &vtables[executor]
}

/// Whether this is the vtable of the executor with this number.
#[inline]
pub(crate) fn is_vtable_of(executor: usize, vtable: &'static RawWakerVTable) -> bool {
    core::ptr::eq(vtable, &VTABLES[executor]) || core::ptr::eq(vtable, &TRACED_VTABLES[executor])
}

/// Registers an executor and gives its number.
pub(crate) fn register(executor: &'static Executor) -> Option<usize> {
    let pointer = core::ptr::from_ref(executor).cast_mut();
    EXECUTORS.iter().position(|place| {
        // Release: the executor is as it is now for whoever reads the pointer.
        place.compare_exchange(core::ptr::null_mut(), pointer, Ordering::Release, Ordering::Relaxed).is_ok()
    })
}

/// What a worker has of its own while it polls.
#[repr(C, align(64))]
pub(crate) struct Frame {
    waker: UnsafeCell<MaybeUninit<Waker>>,
    /// What a poll that is pending answers: PENDING, or YIELDED if `yield_now` has said so.
    answer: UnsafeCell<u32>,
    vtable: UnsafeCell<&'static RawWakerVTable>,
}

// SAFETY: a frame belongs to one worker at a time, which `claim` ensures; during a poll others can at most read the
// waker.
unsafe impl Sync for Frame {}

static FRAMES: [Frame; FRAMES_LENGTH] = [const {
    Frame {
        waker: UnsafeCell::new(MaybeUninit::uninit()),
        answer: UnsafeCell::new(PENDING),
        vtable: UnsafeCell::new(&VTABLES[0]),
    }
}; FRAMES_LENGTH];

/// One bit for each frame that has a worker.
static CLAIMED: AtomicU64 = AtomicU64::new(0);

impl Frame {
    /// Takes a frame for a worker of this executor.
    pub fn claim(executor: usize) -> Option<&'static Frame> {
        loop {
            let claimed = CLAIMED.load(Ordering::Relaxed);
            let frame = claimed.trailing_ones() as usize;
            let place = FRAMES.get(frame)?;
            // Acquire: pairs with the release by the frame's last owner.
            let ours = claimed | 1 << frame;
            if CLAIMED.compare_exchange(claimed, ours, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                // SAFETY: the bit says that the frame is ours alone.
                unsafe { *place.vtable.get() = vtable_of(executor) };
                return Some(place);
            }
        }
    }

    /// Gives a frame back; its worker will not poll any more.
    pub fn release(&'static self) {
        // SAFETY: both lie in FRAMES.
        let index = unsafe { core::ptr::from_ref(self).offset_from(FRAMES.as_ptr()) };
        CLAIMED.fetch_and(!(1 << index), Ordering::Release);
    }

    /// Polls a future in this frame; for a pending one, gives the scheduler's answer.
    ///
    /// # Safety
    /// The caller is the frame's worker, and polls nothing else in it. `cid` is the cid of the coroutine that is
    /// polled.
    #[inline(always)]
    pub unsafe fn poll<F: Future>(&self, cid: u64, future: Pin<&mut F>) -> Result<F::Output, u32> {
        // SAFETY: the frame is ours, and no reference to the waker of the last poll can be left.
        let waker = unsafe {
            (*self.waker.get()).write(Waker::new(core::ptr::without_provenance(cid as usize), *self.vtable.get()))
        };
        let mut context = Context::from_waker(waker);
        let answer = future.poll(&mut context);
        // SAFETY: the frame is ours; `yield_now` writes only during a poll.
        let pending = unsafe { self.answer.get().replace(PENDING) };
        match answer {
            Poll::Ready(output) => Ok(output),
            Poll::Pending => Err(pending),
        }
    }
}

/// Lets other ready coroutines of the same or higher importance run first.
///
/// Works in any executor; in ours it is cheaper than a wake.
///
/// # Cancellation
/// Dropping it has no effect, except that the coroutine may be polled once for nothing.
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// Future of [`yield_now`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        let waker = context.waker();
        let offset = core::ptr::from_ref(waker).addr().wrapping_sub(FRAMES.as_ptr().addr());
        if offset < size_of_val(&FRAMES) {
            let frame = &FRAMES[offset / size_of::<Frame>()];
            // SAFETY: the reference proves that the worker of this frame is in a poll, and that this is that poll: it
            // has lent the waker to us, on this thread or to one that it waits for.
            unsafe { frame.answer.get().write(YIELDED) };
        } else {
            wake_elsewhere(waker);
        }
        Poll::Pending
    }
}

/// For a yield under a combinator's waker, or another executor's.
#[cold]
#[inline(never)]
fn wake_elsewhere(waker: &Waker) {
    waker.wake_by_ref();
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_frame_has_one_owner_at_a_time() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 100_000 };
        static OWNED: [AtomicBool; FRAMES_LENGTH] = [const { AtomicBool::new(false) }; FRAMES_LENGTH];
        let claim_often = || {
            for _ in 0..ROUNDS {
                // The other tests of this program have frames, too, but leave some.
                let frame = Frame::claim(0).unwrap();
                let place = core::ptr::from_ref(frame).addr() - FRAMES.as_ptr().addr();
                let owned = &OWNED[place / size_of::<Frame>()];
                assert!(!owned.swap(true, Ordering::Relaxed), "two have the same frame");
                owned.store(false, Ordering::Relaxed);
                frame.release();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(claim_often);
            }
        });
    }
}
