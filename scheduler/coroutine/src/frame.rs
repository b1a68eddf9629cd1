//! Wakers, and the frames that hold them during a poll.
//!
//! # Representation of a waker
//!
//! A waker is two words: the data word is the coroutine's cid, and the vtable word identifies the executor, because
//! each executor has a vtable of its own, in the order of [`EXECUTORS`]. So cloning and dropping a waker costs nothing,
//! waking needs no reference count, and a waker that outlives its coroutine is harmless: its cid is stale. Two
//! representations were rejected: the usual reference-counted box, which costs two atomic operations for each clone;
//! and the address of the control block, which may belong to another coroutine by the time of the wake.
//!
//! # Purpose of a frame
//!
//! While a coroutine is polled, the waker in its context lies in the [`Frame`] of the worker that polls, and all frames
//! lie in one static array. So [`yield_now`] can tell by the *address* of its waker that it is polled directly by an
//! executor, and by which one: then it sets a mark beside the waker instead of waking, and the poll returns "yielded".
//! A reference to a waker in a frame cannot outlive the poll, so the address is sufficient proof; a clone of the waker
//! lies elsewhere and is woken in the ordinary way. A yield is therefore a store instead of a lookup and an atomic
//! operation. (A special waker during the poll, with a pointer to the block, would have the same effect, but then
//! [`Waker::will_wake`] would return `false` for a clone of it, and some primitives wake the waker that they replace.)

use core::cell::UnsafeCell;
use core::future::Future;
use core::mem::MaybeUninit;
use core::pin::Pin;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use scheduler::{PENDING, YIELDED};

use crate::executor::Executor;
use crate::observer::observer;
use crate::trace::tracer;

/// The largest number of executors in a program. A kernel or process needs one; tests on the host have many.
pub(crate) const MAXIMUM_EXECUTORS: usize = 32;
/// The largest number of workers of all executors of a program together at a time.
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
        // Relaxed: the waker comes from a poll, which happened after the executor was registered.
        let executor = EXECUTORS[NUMBER].load(Ordering::Relaxed);
        // SAFETY: an executor is registered before it gives out wakers, and lives for ever.
        unsafe { (*executor).wake_from_waker(data.addr() as u64) };
    }
    fn drop(_: *const ()) {}
    RawWakerVTable::new(clone::<NUMBER>, wake::<NUMBER>, wake::<NUMBER>, drop)
}

/// Vtables of the wakers of workers that were made while there was a tracer.
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

/// Vtables of the wakers in the frames while there is an observer: a clone, which a future makes that is about to wait,
/// is reported, and is a *marked* waker.
static OBSERVED_VTABLES: [RawWakerVTable; MAXIMUM_EXECUTORS] = {
    macro_rules! vtables {
        ($($number:literal)*) => { [$(observed_vtable::<$number>(),)*] };
    }
    vtables!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
};

/// Vtables of marked wakers: they are as the others, but their drop is reported.
static MARKED_VTABLES: [RawWakerVTable; MAXIMUM_EXECUTORS] = {
    macro_rules! vtables {
        ($($number:literal)*) => { [$(marked_vtable::<$number>(),)*] };
    }
    vtables!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
};

const fn observed_vtable<const NUMBER: usize>() -> RawWakerVTable {
    // A function of its own in the list of callers.
    #[inline(never)]
    fn clone<const NUMBER: usize>(data: *const ()) -> RawWaker {
        if let Some(observer) = observer() {
            (observer.waits)(data.addr() as u64);
        }
        RawWaker::new(data, &MARKED_VTABLES[NUMBER])
    }
    fn wake<const NUMBER: usize>(data: *const ()) {
        let executor = EXECUTORS[NUMBER].load(Ordering::Relaxed);
        // SAFETY: as for the usual vtable.
        unsafe { (*executor).wake_from_waker(data.addr() as u64) };
    }
    fn drop(_: *const ()) {}
    RawWakerVTable::new(clone::<NUMBER>, wake::<NUMBER>, wake::<NUMBER>, drop)
}

const fn marked_vtable<const NUMBER: usize>() -> RawWakerVTable {
    fn clone<const NUMBER: usize>(data: *const ()) -> RawWaker {
        RawWaker::new(data, vtable_of(NUMBER))
    }
    fn wake<const NUMBER: usize>(data: *const ()) {
        let executor = EXECUTORS[NUMBER].load(Ordering::Relaxed);
        // SAFETY: as for the usual vtable.
        unsafe { (*executor).wake_from_waker(data.addr() as u64) };
    }
    fn drop(data: *const ()) {
        if let Some(observer) = observer() {
            (observer.forgets)(data.addr() as u64);
        }
    }
    RawWakerVTable::new(clone::<NUMBER>, wake::<NUMBER>, wake::<NUMBER>, drop)
}

/// Gives the frames of this executor's workers wakers that report, or the usual ones.
pub(crate) fn set_observed(executor: usize, is_observed: bool) {
    let (from, to): (&'static _, &'static _) = match is_observed {
        true => (vtable_of(executor), &OBSERVED_VTABLES[executor]),
        false => (&OBSERVED_VTABLES[executor], vtable_of(executor)),
    };
    for frame in &FRAMES {
        let (from, to) = (core::ptr::from_ref(from).cast_mut(), core::ptr::from_ref(to).cast_mut());
        // Relaxed: both are statics. A frame of another executor, or without a worker, has another vtable, or one that
        // its next worker replaces.
        let _ = frame.vtable.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Returns the vtable of the wakers of the executor with this number.
#[inline]
pub(crate) fn vtable_of(executor: usize) -> &'static RawWakerVTable {
    let vtables = if tracer().is_some() { &TRACED_VTABLES } else { &VTABLES };
    &vtables[executor]
}

/// Returns whether this is the vtable of the executor with this number.
#[inline]
pub(crate) fn is_vtable_of(executor: usize, vtable: &'static RawWakerVTable) -> bool {
    core::ptr::eq(vtable, &VTABLES[executor]) || core::ptr::eq(vtable, &TRACED_VTABLES[executor])
}

/// Registers an executor and returns its number; `None` if there are too many.
pub(crate) fn register(executor: &'static Executor) -> Option<usize> {
    let pointer = core::ptr::from_ref(executor).cast_mut();
    EXECUTORS.iter().position(|place| {
        // Release: a thread that reads the pointer sees the executor as it is now.
        place.compare_exchange(core::ptr::null_mut(), pointer, Ordering::Release, Ordering::Relaxed).is_ok()
    })
}

/// The waker and the answer of a worker's poll.
#[repr(C, align(64))]
pub(crate) struct Frame {
    waker: UnsafeCell<MaybeUninit<Waker>>,
    /// Answer of a pending poll: PENDING, or YIELDED after `yield_now`.
    answer: UnsafeCell<u32>,
    /// The waker's vtable: one of the statics above.
    vtable: AtomicPtr<RawWakerVTable>,
}

// SAFETY: a frame belongs to one worker at a time, which `claim` ensures; during a poll other threads can at most read
// the waker.
unsafe impl Sync for Frame {}

static FRAMES: [Frame; FRAMES_LENGTH] = [const {
    Frame {
        waker: UnsafeCell::new(MaybeUninit::uninit()),
        answer: UnsafeCell::new(PENDING),
        vtable: AtomicPtr::new((&raw const VTABLES[0]).cast_mut()),
    }
}; FRAMES_LENGTH];

/// One bit for each frame that has a worker.
static CLAIMED: AtomicU64 = AtomicU64::new(0);

/// Panics that leave a future. They end where the scheduler called, which aborts the process; before that they are told
/// to the process's own code, which may end it in another way. Where panics abort there is nothing of this.
#[cfg(panic = "unwind")]
pub mod unwinding {
    use core::sync::atomic::{AtomicPtr, Ordering};

    /// A `fn()`, or null.
    static HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

    /// Sets the function that is called when a panic leaves a future.
    pub fn handle_by(handler: fn()) {
        HANDLER.store(handler as *mut (), Ordering::Relaxed);
    }

    /// Lives while a future is polled, and is forgotten afterwards.
    pub(super) struct Guard;

    impl Drop for Guard {
        fn drop(&mut self) {
            let handler = HANDLER.load(Ordering::Relaxed);
            if !handler.is_null() {
                // SAFETY: only `handle_by` writes here, and it writes such a function's address.
                unsafe { core::mem::transmute::<*mut (), fn()>(handler)() };
            }
        }
    }
}

impl Frame {
    /// Claims a frame for a worker of this executor; `None` if all are in use.
    pub fn claim(executor: usize) -> Option<&'static Frame> {
        loop {
            let claimed = CLAIMED.load(Ordering::Relaxed);
            let frame = claimed.trailing_ones() as usize;
            let place = FRAMES.get(frame)?;
            // Acquire: pairs with the release by the frame's last owner.
            let ours = claimed | 1 << frame;
            if CLAIMED.compare_exchange(claimed, ours, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                place.vtable.store(core::ptr::from_ref(vtable_of(executor)).cast_mut(), Ordering::Relaxed);
                return Some(place);
            }
        }
    }

    /// Releases a frame, whose worker will not poll any more.
    pub fn release(&'static self) {
        // SAFETY: both lie in FRAMES.
        let index = unsafe { core::ptr::from_ref(self).offset_from(FRAMES.as_ptr()) };
        CLAIMED.fetch_and(!(1 << index), Ordering::Release);
    }

    /// Polls a future in this frame; returns the output, or the scheduler's answer for a pending poll.
    ///
    /// # Safety
    /// The caller is the frame's worker, and polls no other future in it. `cid` is the cid of the coroutine that is
    /// polled.
    #[inline(always)]
    pub unsafe fn poll<F: Future>(&self, cid: u64, future: Pin<&mut F>) -> Result<F::Output, u32> {
        // SAFETY: the frame belongs to the caller, and no reference to the waker of the last poll can remain. The
        // vtable is a static.
        let waker = unsafe {
            let vtable = &*self.vtable.load(Ordering::Relaxed);
            (*self.waker.get()).write(Waker::new(core::ptr::without_provenance(cid as usize), vtable))
        };
        let mut context = Context::from_waker(waker);
        #[cfg(panic = "unwind")]
        let unwinding = unwinding::Guard;
        let answer = future.poll(&mut context);
        #[cfg(panic = "unwind")]
        core::mem::forget(unwinding);
        // SAFETY: the frame belongs to the caller; `yield_now` writes only during a poll.
        let pending = unsafe { self.answer.get().replace(PENDING) };
        match answer {
            Poll::Ready(output) => Ok(output),
            Poll::Pending => Err(pending),
        }
    }
}

/// Lets other ready coroutines of the same or higher importance run first.
///
/// Works in any executor; in this crate's it is cheaper than a wake.
///
/// # Cancellation
/// Strict. Dropping it has no effect, except that the coroutine may be polled spuriously once.
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
            // SAFETY: the reference proves that the worker of this frame is in a poll, and that this is that poll: the
            // waker is borrowed from it, on this thread or on one that it waits for.
            unsafe { frame.answer.get().write(YIELDED) };
        } else {
            wake_elsewhere(waker);
        }
        Poll::Pending
    }
}

/// Yields by a wake: for a combinator's waker, or another executor's.
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
                // Other tests of this program claim frames too, but not all of them.
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
