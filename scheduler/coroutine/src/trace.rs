//! Hooks for a trace: who is polled and woken when.
//!
//! They cost nothing where there is no trace. A coroutine that is spawned while there is one gets another poll
//! function, and a worker that is made then gives out wakers with another vtable, so nothing is asked at a poll or at a
//! wake. So the tracer has to be there first: what is older is not in the trace.

use core::sync::atomic::{AtomicPtr, Ordering};

/// Functions that are told what happens. They are called on the worker, may be called in the middle of anything, and
/// must not use the executor.
#[derive(Clone, Copy, Debug)]
pub struct Tracer {
    /// A coroutine with this cid is about to be polled.
    pub poll_begins: fn(cid: u64),
    /// The poll has ended with this answer.
    pub poll_ends: fn(cid: u64, answer: u32),
    /// Somebody wakes the coroutine with this cid through a waker.
    pub woken: fn(cid: u64),
}

static TRACER: AtomicPtr<Tracer> = AtomicPtr::new(core::ptr::null_mut());

/// Tells this tracer of all coroutines that are spawned from now on, and of wakes through wakers of workers that are
/// made from now on.
pub fn trace_with(tracer: &'static Tracer) {
    // Release: whoever finds it finds what it points to.
    TRACER.store(core::ptr::from_ref(tracer).cast_mut(), Ordering::Release);
}

/// The tracer, if there is one.
#[inline]
pub(crate) fn tracer() -> Option<&'static Tracer> {
    // SAFETY: only `trace_with` writes it, from a static reference.
    unsafe { TRACER.load(Ordering::Acquire).as_ref() }
}
