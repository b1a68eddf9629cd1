//! Asynchronous system calls through a ring: requests are written to memory that the kernel reads, many for one trap.
//!
//! # When the kernel is notified
//!
//! A request in the ring is not made yet: on one hart the kernel does not read the ring while coroutines run. So each
//! ring has a *flusher*, a coroutine that is woken with the first request of a batch, at that request's priority. It is
//! queued behind all coroutines that were ready then, so each of them has had a turn and has added its request before
//! the flusher runs. The flusher enters the kernel once; the kernel takes the whole batch and posts the completions of
//! all calls that could be done at once. Requests never wait for less important coroutines, and never for the clock. If
//! the kernel's side is awake, on another hart, no call is made.
//!
//! The batch is taken by this worker or by an idle hart, depending on the ready coroutines. If none is ready, the
//! worker takes it in that one entry: it would only wait for another hart, which has to be called first. If a less
//! important coroutine is ready, the flusher wakes the kernel's own side, and an idle hart takes the batch while the
//! worker continues (`RING_WAKE`; without an idle hart the worker takes the batch as before).
//!
//! # Direct or ring
//!
//! A direct call costs a trap; a request costs a few stores, a wake-up and one more poll, and a part of the trap. The
//! ring pays if several calls share a trap. Whether they will is unknown before a call is made, but the ready bitmap
//! shows whether another coroutine that is at least as important could make a call too. If there is none, the call is
//! made directly, so that a lone coroutine pays one look at a word. If there is one, the ring is tried, and the flusher
//! counts the requests that came together. If they are fewer than [`WORTHWHILE`], the next [`PAUSE`] calls of the
//! worker are direct; twice as many each time, up to [`LONGEST_PAUSE`], as long as no batch is worthwhile: the ready
//! coroutine may never make a call.
//!
//! # Shared fields
//!
//! Only its worker writes to a ring ([`LocalRing`]). The flusher is an ordinary coroutine and may be polled by any
//! worker, so the fields that it shares with the ring's owner are atomics ([`Flusher`]). `armed` is swapped on both
//! sides: the owner sets it after it has published a request, the flusher clears it before it enters the kernel. If the
//! owner's swap finds it set, the flusher's comes later and acquires the owner's release, the request included; if not,
//! the owner wakes the flusher.

use core::cell::{Cell, UnsafeCell};
use core::future::poll_fn;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::task::Poll;

use abi_queue::{MAXIMUM_WORKERS, Priority, Request, RequestHeader, request};
use abi_unix::SystemCall;
use abi_unix::call::RING_WAKE;
use ring::{Producer, Requests};

use crate::meeting::Armed;
use crate::{call, executor, local};

/// Entries of a worker's ring, and of the completion ring of a process with such a ring.
const ENTRIES: usize = 1024;
/// Smallest batch that costs less than as many direct calls.
const WORTHWHILE: u64 = 6;
/// Number of direct calls after a batch that was not worthwhile.
const PAUSE: u32 = 64;
/// Largest number of direct calls after such a batch.
const LONGEST_PAUSE: u32 = 512;

/// The way in which asynchronous calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// Direct if no other coroutine that is as important is ready, or if the last batch was too small; else through the
    /// ring.
    Adaptive = 0,
    /// Each call traps into the kernel, which returns at once.
    Direct = 1,
    /// All calls go through the worker's request ring.
    Ring = 2,
}

static WAY: AtomicU8 = AtomicU8::new(Way::Direct as u8);

/// Sets the way in which the process makes its asynchronous calls from now on.
///
/// A process begins with [`Way::Direct`], because a request costs more instructions than the trap that it saves
/// (`cargo xtask bench async-calls`; decision 018); where traps are expensive, [`Way::Adaptive`] is better.
///
/// The results are the same either way, and so is the order, which is undefined for calls of *different* coroutines.
#[doc(alias = "io_uring")]
pub fn set_way(way: Way) {
    // Relaxed: a call that is made a moment earlier goes the old way.
    WAY.store(way as u8, Ordering::Relaxed);
}

/// Returns the way in which the process makes its asynchronous calls.
pub fn way() -> Way {
    match WAY.load(Ordering::Relaxed) {
        1 => Way::Direct,
        2 => Way::Ring,
        _ => Way::Adaptive,
    }
}

/// The state that a ring's owner shares with the ring's flusher.
struct Flusher {
    /// Set: there are requests that the kernel has not been notified of.
    armed: Armed,
    /// Cid of the flusher; 0 before there is one.
    cid: AtomicU64,
    /// Priority that the owner gave the flusher last.
    priority: AtomicU8,
    /// Number of calls that are still to be made directly.
    direct: AtomicU32,
    header: AtomicPtr<RequestHeader>,
}

static FLUSHERS: [Flusher; MAXIMUM_WORKERS] = [const {
    Flusher {
        armed: Armed::new(),
        cid: AtomicU64::new(0),
        priority: AtomicU8::new(0),
        direct: AtomicU32::new(0),
        header: AtomicPtr::new(ptr::null_mut()),
    }
}; MAXIMUM_WORKERS];

/// A ring, and the state shared with its flusher.
#[derive(Clone, Copy)]
struct OwnRing {
    requests: Requests<'static>,
    flusher: &'static Flusher,
}

/// The request ring of a worker. Only that worker uses it.
pub struct LocalRing {
    ring: Cell<Option<OwnRing>>,
    producer: UnsafeCell<Producer>,
    /// Whether the worker has requested a ring from the kernel.
    was_tried: Cell<bool>,
}

impl LocalRing {
    /// Creates the state of a worker without a ring.
    pub const fn new() -> LocalRing {
        LocalRing {
            ring: Cell::new(None),
            producer: UnsafeCell::new(Producer::new(ENTRIES)),
            was_tried: Cell::new(false),
        }
    }
}

impl Default for LocalRing {
    fn default() -> Self {
        LocalRing::new()
    }
}

/// Returns whether the next call of the running coroutine should go through the ring.
#[inline(always)]
pub(crate) fn prefers_ring() -> bool {
    match WAY.load(Ordering::Relaxed) {
        0 => executor::has_company() && is_worthwhile(),
        1 => false,
        _ => true,
    }
}

/// Returns whether a coroutine's next `count` calls should go through the ring.
pub(crate) fn prefers_ring_for(count: usize) -> bool {
    match WAY.load(Ordering::Relaxed) {
        0 => count as u64 >= WORTHWHILE || prefers_ring(),
        1 => false,
        _ => true,
    }
}

/// Returns whether the last batch was large enough, or long enough ago.
#[inline]
fn is_worthwhile() -> bool {
    let flusher = &FLUSHERS[local::current().index.get() % MAXIMUM_WORKERS];
    let direct = flusher.direct.load(Ordering::Relaxed);
    if direct == 0 {
        return true;
    }
    flusher.direct.store(direct - 1, Ordering::Relaxed);
    false
}

/// Puts a call into the worker's ring. `false` if it has to be made directly.
// A closure for the arguments: each branch evaluates it itself, and the usual one has them in registers.
#[inline(always)]
pub(crate) fn submit(call: SystemCall, arguments: impl Fn() -> [usize; 6], priority: Priority, token: u64) -> bool {
    let local = &local::current().ring;
    let Some(OwnRing { requests, flusher }) = local.ring.get() else {
        return set_up() && submit_late(call, arguments(), priority, token);
    };
    // SAFETY: the ring is this worker's, and neither this function nor its callees here use the producer again.
    let producer = unsafe { &mut *local.producer.get() };
    let Ok(place) = producer.next_place(&requests) else { return submit_late(call, arguments(), priority, token) };
    requests.submit_at(producer, place, request_of(call, arguments(), priority, token), request::urgency(priority));
    if flusher.armed.set() || flusher.priority.load(Ordering::Relaxed) > priority.number() {
        rouse(flusher, priority);
    }
    true
}

#[inline(always)]
fn request_of(call: SystemCall, arguments: [usize; 6], priority: Priority, token: u64) -> Request {
    let number = unix::raw::asynchronous_number(call as usize, priority.number()) as u64;
    Request { call: number, token, arguments: arguments.map(|argument| argument as u64) }
}

/// Makes the flusher ready, at this priority.
#[cold]
#[inline(never)]
fn rouse(flusher: &Flusher, priority: Priority) {
    let cid = coroutine::Cid::from_raw(flusher.cid.load(Ordering::Relaxed));
    if flusher.priority.load(Ordering::Relaxed) != priority.number() {
        flusher.priority.store(priority.number(), Ordering::Relaxed);
        let _ = executor::set_priority(cid, priority);
    }
    let _ = executor::wake(cid);
}

/// Submits to a ring that is full, or new: first lets the kernel take the requests in it, which is the time that the
/// submitter waits. `false` if there is still no room, because completions have not been taken either; the call is made
/// directly then.
#[cold]
#[inline(never)]
fn submit_late(call: SystemCall, arguments: [usize; 6], priority: Priority, token: u64) -> bool {
    let local = local::current();
    let Some(OwnRing { requests, flusher }) = local.ring.ring.get() else { return false };
    let entered = unix::worker::ring_enter(local.index.get(), 0);
    // SAFETY: as in `submit`, which does not use its reference any more.
    let producer = unsafe { &mut *local.ring.producer.get() };
    let (true, Ok(place)) = (entered.is_ok(), producer.next_place(&requests)) else { return false };
    requests.submit_at(producer, place, request_of(call, arguments, priority, token), request::urgency(priority));
    flusher.armed.set();
    rouse(flusher, priority);
    true
}

/// Requests a ring from the kernel, once.
#[cold]
#[inline(never)]
fn set_up() -> bool {
    let local = local::current();
    if local.ring.was_tried.replace(true) {
        return false;
    }
    let index = local.index.get();
    let Some(flusher) = FLUSHERS.get(index) else { return false };
    let set_up = call::enlarge_while(|completions| unix::worker::ring_setup(ENTRIES, completions), ENTRIES);
    let Ok(address) = set_up else { return false };
    let header: *const RequestHeader = ptr::with_exposed_provenance(address);
    // SAFETY: the kernel has mapped a ring of that size there, for the life of the process; all of it is atomic words.
    let requests = unsafe {
        let entries = header.cast::<u8>().add(request::ENTRIES_OFFSET).cast::<request::Entry>();
        Requests::new(&*header, core::slice::from_raw_parts(entries, ENTRIES))
    };
    flusher.header.store(header.cast_mut(), Ordering::Relaxed);
    let coroutine = executor::spawn_at(executor::current_priority(), flush(index));
    flusher.priority.store(executor::current_priority().number(), Ordering::Relaxed);
    flusher.cid.store(coroutine.cid().raw(), Ordering::Relaxed);
    coroutine.detach();
    local.ring.ring.set(Some(OwnRing { requests, flusher }));
    true
}

/// The flusher of a worker's ring; it never ends.
async fn flush(index: usize) {
    let (mut before, mut pause) = (0, PAUSE);
    poll_fn(move |_| {
        let flusher = &FLUSHERS[index];
        if flusher.armed.take() {
            // SAFETY: the ring exists before its flusher, and stays mapped.
            let header = unsafe { &*flusher.header.load(Ordering::Relaxed) };
            let made = header.tail.load(Ordering::Relaxed);
            if made.wrapping_sub(before) < WORTHWHILE {
                flusher.direct.store(pause, Ordering::Relaxed);
                pause = (pause * 2).min(LONGEST_PAUSE);
            } else {
                pause = PAUSE;
            }
            before = made;
            if ring::must_be_called(&header.state) {
                // An error means that the ring is broken: this process has overwritten it.
                let flags = if executor::has_something_ready() { RING_WAKE } else { 0 };
                let _ = unix::worker::ring_enter(index, flags);
            }
        }
        Poll::<()>::Pending
    })
    .await;
}
