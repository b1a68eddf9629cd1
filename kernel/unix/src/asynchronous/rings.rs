//! The request rings of a process: frames, the lock of their takers, and their end. [`ring`](crate::asynchronous::ring)
//! takes and performs the requests.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ::ring::{Consumer, Words as _};
use abi_queue::pages::PAGE_SIZE;
use abi_queue::request::{self, priority_of};
use abi_queue::{MAXIMUM_WORKERS, Priority};
use abi_unix::Errno;
use memory::SharedFrame;
use spin::Mutex;

use crate::asynchronous::ring_words::RequestView;
use crate::process::accounts::{Charge, Resource};
use crate::process::shared::zeroed_frames;
use crate::process::user::Caller;
use crate::scheduling::executor::{self, Cid};
use crate::scheduling::standing::Standing;

/// Bit of a ring's `attention`: no request may be taken any more.
pub(super) const CLOSED: u32 = 1 << 31;
/// Added to `attention` by each worker that waits for the lock.
pub(super) const WAITING: u32 = 1;

/// The taking of requests, as far as it has come.
pub(super) struct Taking<H> {
    pub(super) consumer: Consumer,
    /// Work that has begun and found no room among the calls in flight. The server goes on with it before the next
    /// request; a place for its completion is promised.
    pub(super) held: Option<H>,
}

/// A worker's request ring, which holds work of this type.
#[doc(alias = "io_uring")]
#[doc(alias = "io_sq_ring")]
pub(crate) struct Ring<H> {
    pub(super) frames: Vec<SharedFrame>,
    /// Charge for the frames, the ring itself and its server.
    _charge: Charge,
    pub(super) taker: Mutex<Taking<H>>,
    /// Not 0: the taker must stop, because another waits for the lock, or for good.
    // Release and acquire: a taker that sees `CLOSED` performs nothing after what its closer did before.
    pub(super) attention: AtomicU32,
    pub(super) broken: AtomicBool,
    /// Number of requests performed; written under the lock. Words that the process can write are not used for this.
    pub(super) performed: AtomicU64,
    /// The server, once there is one.
    // Stored with release when the server has been spawned; a caller that finds it (acquire) can wake it.
    pub(super) server: AtomicU64,
}

/// Bytes of kernel memory for a ring and its server, without its frames.
const fn memory_of_a_ring<H>() -> usize {
    size_of::<Ring<H>>() + 1024
}

impl<H> Ring<H> {
    /// Makes a ring with so many entries, in steps. `ENOMEM`.
    ///
    /// # Cancellation
    /// Dropping it frees everything.
    pub(super) async fn new(capacity: usize, payer: &impl Caller) -> Result<Ring<H>, Errno> {
        let count = request::pages(capacity);
        let charge = payer.account().charge(Resource::Memory, count * PAGE_SIZE + memory_of_a_ring::<H>())?;
        if !memory::frames::available_to_programs(count) {
            return Err(Errno::ENOMEM);
        }
        let frames = zeroed_frames(payer, count).await?;
        let view = RequestView::new(&frames);
        view.capacity().store(capacity as u64, Ordering::Relaxed);
        view.state().store(request::SLEEPING, Ordering::Relaxed);
        Ok(Ring {
            taker: Mutex::new(Taking { consumer: Consumer::new(capacity), held: None }),
            frames,
            _charge: charge,
            attention: AtomicU32::new(0),
            broken: AtomicBool::new(false),
            performed: AtomicU64::new(0),
            server: AtomicU64::new(0),
        })
    }

    /// Returns whether there are requests; the answer may be stale immediately.
    pub(super) fn has_requests(&self) -> bool {
        let tail = RequestView::new(&self.frames).tail().load(Ordering::Relaxed);
        tail != self.performed.load(Ordering::Relaxed) && !self.is_over()
    }

    pub(super) fn is_over(&self) -> bool {
        self.broken.load(Ordering::Relaxed) || self.attention.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns the effective priority that the ring as a whole claims.
    pub(super) fn claim(&self, standing: &Standing) -> Priority {
        standing.worth(priority_of(RequestView::new(&self.frames).urgency().load(Ordering::Relaxed)))
    }

    /// Makes the server run, at this priority.
    pub(super) fn wake_server(&self, priority: Priority) {
        let server = Cid::from_raw(self.server.load(Ordering::Acquire));
        executor::set_priority(server, priority);
        executor::wake(server);
    }

    pub(super) fn close(&self) {
        self.attention.fetch_or(CLOSED, Ordering::AcqRel);
        executor::wake(Cid::from_raw(self.server.load(Ordering::Acquire)));
    }

    /// Returns the number of performed requests at which all that are in the ring now have been performed. Later ones
    /// may wait, or a process that goes on submitting on another hart could keep this one for ever.
    pub(super) fn full_ring_from_now(&self) -> u64 {
        let capacity = (self.frames.len() - 1) * PAGE_SIZE / request::ENTRY_SIZE;
        self.performed.load(Ordering::Relaxed).wrapping_add(capacity as u64)
    }

    /// Returns whether so many requests have been performed.
    pub(super) fn has_performed(&self, enough: u64) -> bool {
        self.performed.load(Ordering::Relaxed).wrapping_sub(enough) as i64 >= 0
    }
}

/// The rings of a process, by worker.
pub(crate) struct Rings<H> {
    pub(super) rings: Mutex<[Option<Arc<Ring<H>>>; MAXIMUM_WORKERS]>,
    /// Set if there are any: most processes have none, and look no further.
    // Stored with release after the list has the ring: a look that finds it set (acquire) finds the ring there.
    pub(super) any: AtomicBool,
}

impl<H> Default for Rings<H> {
    fn default() -> Rings<H> {
        Rings { rings: Mutex::default(), any: AtomicBool::new(false) }
    }
}

impl<H> Rings<H> {
    pub(super) fn get(&self, worker: usize) -> Option<Arc<Ring<H>>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.rings.lock().get(worker)?.clone()
    }

    /// Returns whether the process has made a ring.
    pub(crate) fn has_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Returns whether there is a ring with this worker's index.
    pub(crate) fn exists(&self, worker: usize) -> bool {
        self.get(worker).is_some()
    }

    /// Gives the servers the present effective priority of the requests in their rings.
    pub(crate) fn order_anew(&self, standing: &Standing) {
        if self.any.load(Ordering::Acquire) {
            for ring in self.rings.lock().iter().flatten() {
                executor::set_priority(Cid::from_raw(ring.server.load(Ordering::Acquire)), ring.claim(standing));
            }
        }
    }

    /// Returns whether there are rings.
    pub(crate) fn exist(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Closes all rings: no request is performed after [`are_at_rest`](Self::are_at_rest) has returned `true`.
    pub(crate) fn close(&self) {
        if self.any.load(Ordering::Acquire) {
            self.rings.lock().iter().flatten().for_each(|ring| ring.close());
        }
    }

    /// Returns whether no taker is at work in the rings, which have been closed, and none holds work. Otherwise
    /// [`Process::ring_has_closed`](crate::process::Process::ring_has_closed) is called when that has changed.
    pub(crate) fn are_at_rest(&self) -> bool {
        let is_at_rest = |ring: &Arc<Ring<H>>| ring.taker.try_lock().is_some_and(|taking| taking.held.is_none());
        !self.any.load(Ordering::Acquire) || self.rings.lock().iter().flatten().all(is_at_rest)
    }

    /// Forgets the rings, which have been closed.
    pub(crate) fn clear(&self) {
        if self.any.swap(false, Ordering::AcqRel) {
            let rings = core::mem::take(&mut *self.rings.lock());
            // One may have been made when the others had been closed: its server ends, too.
            rings.iter().flatten().for_each(|ring| ring.close());
        }
    }
}

#[cfg(test)]
mod tests {
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

    use super::*;
    use crate::testing::run;

    #[test]
    fn closed_rings_are_at_rest_once_no_taker_is_at_work() {
        run(|program| {
            let process = program.process();
            let made = pin!(Ring::<()>::new(request::SMALLEST_CAPACITY, &*process));
            let Poll::Ready(ring) = made.poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("it takes steps")
            };
            let ring = Arc::new(ring.unwrap());
            let rings = Rings::default();
            assert!(!rings.exist() && rings.get(2).is_none() && rings.are_at_rest());
            rings.rings.lock()[2] = Some(ring.clone());
            rings.any.store(true, Ordering::Release);
            assert!(rings.exist() && rings.get(2).is_some() && rings.get(1).is_none());
            assert!(!ring.has_requests() && !ring.is_over());
            let taker = ring.taker.lock();
            rings.close();
            assert!(ring.is_over() && !rings.are_at_rest());
            drop(taker);
            assert!(rings.are_at_rest());
            rings.clear();
            assert!(!rings.exist() && rings.get(2).is_none());
        });
    }
}
