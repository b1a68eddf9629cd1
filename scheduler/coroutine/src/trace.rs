//! Hooks for a trace of polls and wakes.
//!
//! They cost nothing without a tracer. A coroutine that is spawned while there is a tracer has another poll function,
//! and a worker that is made then uses wakers with another vtable, so polls and wakes need no check. The tracer must
//! therefore be installed first: coroutines and workers that are older are not in the trace.

use core::panic::Location;
use core::sync::atomic::{AtomicPtr, Ordering, fence};

/// Functions that are called at each event, on the thread that polls, wakes or spawns. They may be called in the middle
/// of any operation, and must not use the executor.
#[derive(Clone, Copy, Debug)]
pub struct Tracer {
    /// A coroutine with this cid was spawned at this place. It may have been polled already, by another worker.
    pub spawned: fn(cid: u64, place: &'static Location<'static>),
    /// A coroutine with this cid is about to be polled.
    pub poll_begins: fn(cid: u64),
    /// The poll has ended with this answer.
    pub poll_ends: fn(cid: u64, answer: u32),
    /// The coroutine with this cid is woken through a waker.
    pub woken: fn(cid: u64),
}

static TRACER: AtomicPtr<Tracer> = AtomicPtr::new(core::ptr::null_mut());

/// Installs a tracer for all coroutines that are spawned from now on, and for wakes through wakers of workers that are
/// made from now on.
pub fn trace_with(tracer: &'static Tracer) {
    // Release: a thread that loads the pointer sees the tracer.
    TRACER.store(core::ptr::from_ref(tracer).cast_mut(), Ordering::Release);
}

/// Returns the tracer, if there is one.
#[inline]
pub(crate) fn tracer() -> Option<&'static Tracer> {
    let tracer = TRACER.load(Ordering::Relaxed);
    if tracer.is_null() {
        return None;
    }
    // Pairs with `trace_with`. Without a tracer there is nothing to see, and no need to wait for loads.
    fence(Ordering::Acquire);
    // SAFETY: only `trace_with` writes it, from a static reference.
    unsafe { tracer.as_ref() }
}
