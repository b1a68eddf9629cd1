//! Asynchronous system calls, the ring way: requests are written to memory that the kernel reads, many for one trap.
//!
//! # When the kernel is told
//!
//! A request that is in the ring is not made yet: on one hart nobody looks there while coroutines run. So each ring has
//! a
//! *flusher*, a coroutine that is woken with the first request of a batch, at that request's priority. It stands in the
//! ready list behind all that were ready then, so when its turn comes each of them has had one and has added its
//! request; then it enters the kernel once, which takes the whole batch and posts what could be done at once. Requests
//! never wait for less important coroutines, and never for the clock. If the kernel's side is awake, on another hart,
//! no call is made.
//!
//! Who takes the batch is decided by what else there is to run. If nothing is, the worker does it itself in that one
//! entry: it would only wait for another hart, which has to be called first. If something less important is ready, the
//! flusher asks for the kernel's own side, and an idle hart takes the batch while the worker goes on (`RING_WAKE`;
//! without an idle hart it is the same as before).
//!
//! # Direct or ring
//!
//! A direct call costs a trap; a request costs a few stores, a wake-up and one more poll, and a part of the trap. The
//! ring pays if several calls share a trap. Before a call is made nobody knows whether it will, but the ready bitmap
//! says whether another coroutine that is at least as important could make one too: if none could, the call is made
//! directly, so that a lone coroutine pays one look at a word. If some could, the ring is tried, and the flusher sees
//! how many requests came together. Fewer than [`WORTHWHILE`], and the next [`PAUSE`] calls of the worker are direct;
//! twice as many each time, up to [`LONGEST_PAUSE`], as long as no batch is worthwhile: somebody ready may never make a
//! call.
//!
//! # Who may touch what
//!
//! A worker alone writes to its ring ([`LocalRing`]). The flusher is an ordinary coroutine and may be polled by any
//! worker, so what it shares with the ring's owner are atomics ([`Flusher`]). `armed` is swapped on both sides: the
//! owner sets it after it has published a request, the flusher clears it before it enters the kernel. If the owner's
//! swap finds it set, the flusher's comes later and acquires what the owner released, the request included; if not, the
//! owner wakes the flusher.

use core::cell::{Cell, UnsafeCell};
use core::future::poll_fn;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::task::Poll;

use abi_queue::{MAXIMUM_WORKERS, Priority, Request, RequestHeader, request};
use abi_unix::SystemCall;
use abi_unix::call::RING_WAKE;
use ring::{Producer, Requests};

use crate::{call, executor, local};

/// Entries of a worker's ring, and of the completion ring of a process with such a ring.
const ENTRIES: usize = 1024;
/// A batch of so many requests costs less than as many direct calls.
const WORTHWHILE: u64 = 6;
/// So many calls are made directly after a batch that was not worthwhile.
const PAUSE: u32 = 64;
/// No more than so many calls are.
const LONGEST_PAUSE: u32 = 512;

/// How asynchronous calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// By what is in flight: directly as long as little is, else through the ring.
    Adaptive = 0,
    /// Each traps into the kernel, and returns at once.
    Direct = 1,
    /// All go through the worker's request ring.
    Ring = 2,
}

static WAY: AtomicU8 = AtomicU8::new(Way::Direct as u8);

/// Says how the process makes its asynchronous calls from now on.
///
/// A process begins with [`Way::Direct`], because a request costs more instructions than the trap that it spares
/// (`cargo xtask bench async-calls`; decision 018); where traps are dear, [`Way::Adaptive`] is better.
///
/// The results are the same, and the order in which calls of *different* coroutines take effect is undefined, either
/// way.
pub fn set_way(way: Way) {
    // Relaxed: whoever makes a call a moment earlier makes it the old way.
    WAY.store(way as u8, Ordering::Relaxed);
}

/// How the process makes its asynchronous calls.
pub fn way() -> Way {
    match WAY.load(Ordering::Relaxed) {
        1 => Way::Direct,
        2 => Way::Ring,
        _ => Way::Adaptive,
    }
}

/// What a ring's owner shares with the ring's flusher.
struct Flusher {
    /// Not 0: there are requests that the flusher has to tell the kernel of.
    armed: AtomicU32,
    /// Its cid; 0 before there is one.
    cid: AtomicU64,
    /// Its priority, as far as the owner knows.
    priority: AtomicU8,
    /// So many calls are still to be made directly.
    direct: AtomicU32,
    header: AtomicPtr<RequestHeader>,
}

static FLUSHERS: [Flusher; MAXIMUM_WORKERS] = [const {
    Flusher {
        armed: AtomicU32::new(0),
        cid: AtomicU64::new(0),
        priority: AtomicU8::new(0),
        direct: AtomicU32::new(0),
        header: AtomicPtr::new(ptr::null_mut()),
    }
}; MAXIMUM_WORKERS];

/// A ring, and what its owner shares with its flusher.
#[derive(Clone, Copy)]
struct OwnRing {
    requests: Requests<'static>,
    flusher: &'static Flusher,
}

/// A worker's request ring. Only that worker uses it.
pub struct LocalRing {
    ring: Cell<Option<OwnRing>>,
    producer: UnsafeCell<Producer>,
    /// Whether it has asked for one.
    was_tried: Cell<bool>,
}

impl LocalRing {
    /// No ring yet.
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

/// Whether the next call of the running coroutine should go through the ring.
#[inline(always)]
pub(crate) fn prefers_ring() -> bool {
    match WAY.load(Ordering::Relaxed) {
        0 => executor::has_company() && is_worthwhile(),
        1 => false,
        _ => true,
    }
}

/// The same for so many calls of one coroutine.
pub(crate) fn prefers_ring_for(count: usize) -> bool {
    match WAY.load(Ordering::Relaxed) {
        0 => count as u64 >= WORTHWHILE || prefers_ring(),
        1 => false,
        _ => true,
    }
}

/// Whether the last batch was large enough, or long enough ago.
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
// A function for the arguments: each way asks for them itself, and the usual one has them in registers.
#[inline(always)]
pub(crate) fn submit(call: SystemCall, arguments: impl Fn() -> [usize; 6], priority: Priority, token: u64) -> bool {
    let local = &local::current().ring;
    let Some(OwnRing { requests, flusher }) = local.ring.get() else {
        return set_up() && submit_late(call, arguments(), priority, token);
    };
    // SAFETY: the ring is this worker's, and neither this function nor what it calls here comes back to it.
    let producer = unsafe { &mut *local.producer.get() };
    let Ok(place) = producer.next_place(&requests) else { return submit_late(call, arguments(), priority, token) };
    requests.submit_at(producer, place, request_of(call, arguments(), priority, token), request::urgency(priority));
    // Release: the request, for the flusher. Acquire: nothing, but the two swaps have one order.
    if flusher.armed.swap(1, Ordering::AcqRel) == 0 || flusher.priority.load(Ordering::Relaxed) > priority.number() {
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

/// For a ring that is full, or new: has the kernel take what is in it, which is the time that the submitter waits, and
/// tries again. `false` if there is still no room, because completions have not been taken either; the call is made
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
    flusher.armed.store(1, Ordering::Release);
    rouse(flusher, priority);
    true
}

/// Asks the kernel for a ring, once.
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

/// The flusher of a worker's ring, which never ends.
async fn flush(index: usize) {
    let (mut before, mut pause) = (0, PAUSE);
    poll_fn(move |_| {
        let flusher = &FLUSHERS[index];
        // Acquire: the requests, see `submit`.
        if flusher.armed.swap(0, Ordering::AcqRel) != 0 {
            // SAFETY: the ring is there before its flusher, and stays.
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
                // An error says that the ring is broken: this process has written to it what it should not.
                let flags = if executor::has_something_ready() { RING_WAKE } else { 0 };
                let _ = unix::worker::ring_enter(index, flags);
            }
        }
        Poll::<()>::Pending
    })
    .await;
}
