//! User interrupts between processes and between workers: one signals, a coroutine of the other is woken.
//!
//! A [`Receiver`] belongs to the worker that made it; a coroutine waits at it with [`Receiver::wait`]. A [`SendRight`]
//! signals it, from another worker or another process. Signals carry nothing and add up: several before the next `wait`
//! are one, as with a semaphore of one place. What there is to say stands in memory, in a file or in a pipe that both
//! know.
//!
//! ```ignore
//! let receiver = cops::interrupt::Receiver::new()?;
//! // The child finds the right as its descriptor 0: `SendRight::from_descriptor(Descriptor::from_raw(0))`.
//! let child = Command::new("/bin/child").descriptor(0, receiver.grant()?.into_descriptor()).spawn()?;
//! receiver.wait().await;
//! ```
//!
//! # Trust
//!
//! What a sender can do is to wake a coroutine. An identity is a hint: with some back ends whoever may send to one
//! receiver of a worker can make its other receivers wake too. So `wait` may return without a signal that was meant for
//! it, and what it is about must be looked up. A right ends when its receiver is dropped or revokes it.
//!
//! # In the handler
//!
//! The handler runs between any two instructions of a coroutine. It sets marks and wakes by cid, which both may be done
//! anywhere. A waker that is not the executor's own may do anything, allocate among it, so such wakers are left to the
//! executor: the handler raises the worker's attention word, and the worker wakes them between two polls.

use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll};

use abi_queue::{MAXIMUM_WORKERS, ProcessPage};
use atomic_waker::AtomicWaker;

use crate::{call, executor, local, preemption};
use unix::interrupt::SendPage;
use unix::{Descriptor, Errno, Result};

/// The largest identity; 0 stands for completions.
const LARGEST_IDENTITY: usize = 62;

/// Where a signal finds the one who waits.
///
/// | field | who may touch it |
/// |---|---|
/// | `signalled` | the handler sets it (release), the one who waits takes it (acquire) |
/// | `cid` | the one who waits, before it looks at `signalled`; the handler, after it set it. Both with a swap, which puts these in one order: at least one of the two sees the other |
/// | `waker` | likewise; an `AtomicWaker` sorts them out |
struct Place {
    signalled: AtomicBool,
    cid: AtomicU64,
    waker: AtomicWaker,
}

static PLACES: [Place; LARGEST_IDENTITY + 1] =
    [const { Place { signalled: AtomicBool::new(false), cid: AtomicU64::new(0), waker: AtomicWaker::new() } };
        LARGEST_IDENTITY + 1];

/// Bit `n`: a receiver has identity `n`. Bits 0 and 63 are nobody's.
static TAKEN: AtomicU64 = AtomicU64::new(1 | 1 << 63);

/// Bit `n`: the waker of identity `n` is to be woken between two polls.
static DEFERRED: AtomicU64 = AtomicU64::new(0);

/// What makes a worker come out of its run and call [`attend`].
static ATTENTION: [AtomicU64; MAXIMUM_WORKERS] = [const { AtomicU64::new(0) }; MAXIMUM_WORKERS];

/// The page in which the kernel shows interrupts; null before the start-up code has found it.
static PAGE: AtomicPtr<ProcessPage> = AtomicPtr::new(core::ptr::null_mut());

/// Learns where the process page is.
pub(crate) fn set_page(page: &'static ProcessPage) {
    PAGE.store(core::ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
}

/// The attention word of a worker.
pub(crate) fn attention(worker: usize) -> &'static AtomicU64 {
    &ATTENTION[worker % MAXIMUM_WORKERS]
}

/// Does what the handler has left, between two polls.
pub(crate) fn attend(worker: usize) {
    // Before the look, so that what comes after it raises attention again.
    attention(worker).store(0, Ordering::Relaxed);
    let mut bits = DEFERRED.swap(0, Ordering::Acquire);
    while bits != 0 {
        PLACES[bits.trailing_zeros() as usize].waker.wake();
        bits &= bits - 1;
    }
}

/// The handler of user interrupts: runs between any two instructions of a coroutine, except in the scheduler's image.
/// `come` are the identities that have come in hardware.
pub(crate) extern "C" fn on_interrupt(come: u64) {
    let worker = local::current().index.get() % MAXIMUM_WORKERS;
    let mut bits = come;
    // SAFETY: the page is there to stay, and every word of it is atomic.
    if let Some(page) = unsafe { PAGE.load(Ordering::Relaxed).as_ref() } {
        let word = &page.interrupts[worker];
        // What is added after the look comes with an interrupt of its own.
        if word.0.load(Ordering::Relaxed) != 0 {
            // Acquire: what the senders did before is seen by those whom this wakes.
            bits |= word.0.swap(0, Ordering::Acquire);
        }
        if come != 0 {
            word.1.store(word.1.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }
    signal(bits & TAKEN.load(Ordering::Relaxed), worker);
    call::on_interrupt();
    preemption::consider();
}

/// Makes the calling worker come out of its run when the poll has ended, to [`attend`] and to look at the clock.
pub(crate) fn raise_attention() {
    attention(local::current().index.get()).store(1, Ordering::Relaxed);
}

/// Whether something is left for a worker's executor: by the handler, in the completion ring, or because its time has
/// come.
pub(crate) fn has_attention(worker: usize) -> bool {
    if crate::time::is_due() {
        raise_attention();
    }
    attention(worker).load(Ordering::Relaxed) != 0 || call::has_completions()
}

/// Wakes those who wait for these identities.
fn signal(bits: u64, worker: usize) {
    let mut bits = bits & !(1 | 1 << 63);
    while bits != 0 {
        let identity = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        let place = &PLACES[identity];
        place.signalled.swap(true, Ordering::AcqRel);
        match place.cid.swap(0, Ordering::AcqRel) {
            0 => {}
            FOREIGN => {
                DEFERRED.fetch_or(1 << identity, Ordering::Release);
                attention(worker).store(1, Ordering::Relaxed);
                // A worker that has found nothing to run does not look there before it sleeps: it is not to.
                if executor::current_or_none().is_none() {
                    let _ = unix::worker::wake(worker);
                }
            }
            cid => executor::wake_raw(cid),
        }
    }
}

/// In the place of a cid: the waker is not the executor's own. No cid has this value, whose index is beyond all slots.
const FOREIGN: u64 = u64::MAX;

/// A place where signals arrive.
#[derive(Debug)]
pub struct Receiver {
    /// Always there until it is dropped.
    descriptor: Option<Descriptor>,
    identity: usize,
}

impl Receiver {
    /// Makes one, on the calling worker: there the coroutine is woken from.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the process has as many as it may have, `EMFILE`, `ENOMEM`.
    pub fn new() -> Result<Receiver> {
        let identity = loop {
            let taken = TAKEN.load(Ordering::Relaxed);
            let identity = taken.trailing_ones() as usize;
            if identity > LARGEST_IDENTITY {
                return Err(Errno::EAGAIN);
            }
            // Acquire: pairs with the release when the last one of this identity was dropped.
            if TAKEN.fetch_or(1 << identity, Ordering::Acquire) & 1 << identity == 0 {
                break identity;
            }
        };
        PLACES[identity].signalled.store(false, Ordering::Relaxed);
        match unix::interrupt::receiver(identity) {
            Ok(descriptor) => Ok(Receiver { descriptor: Some(descriptor), identity }),
            Err(error) => {
                TAKEN.fetch_and(!(1 << identity), Ordering::Release);
                Err(error)
            }
        }
    }

    /// The number by which another process names it, together with this process's number: see [`SendRight::open`].
    pub fn identity(&self) -> usize {
        self.identity
    }

    fn descriptor(&self) -> Result<&Descriptor> {
        self.descriptor.as_ref().ok_or(Errno::EBADF)
    }

    /// A right to signal it, for this process or to be passed on as a descriptor.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENOMEM`.
    pub fn grant(&self) -> Result<SendRight> {
        unix::interrupt::grant(self.descriptor()?).map(SendRight::from_descriptor)
    }

    /// Lets another process have a right to signal it, which it gets by [`SendRight::open`].
    ///
    /// # Errors
    ///
    /// `ESRCH` if there is no such process, `ENOSPC` if too many were granted, `ENOMEM`.
    pub fn grant_to(&self, process: u32) -> Result<()> {
        unix::interrupt::grant_to(self.descriptor()?, process)
    }

    /// Ends all rights that were granted so far.
    ///
    /// # Errors
    ///
    /// None that this type does not exclude.
    pub fn revoke_all(&self) -> Result<()> {
        unix::interrupt::revoke(self.descriptor()?)
    }

    /// Takes a signal that has come.
    pub fn try_wait(&self) -> bool {
        // Acquire: what the sender did before it signalled.
        PLACES[self.identity].signalled.swap(false, Ordering::AcqRel)
    }

    /// Waits for a signal, and takes it. One coroutine at a time: of several only the last to ask is woken.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost: a signal that came stays for the next `wait`.
    pub async fn wait(&self) {
        poll_fn(|context| self.poll_wait(context)).await;
    }

    /// The same as a function to be polled.
    pub fn poll_wait(&self, context: &mut Context<'_>) -> Poll<()> {
        let place = &PLACES[self.identity];
        if place.signalled.load(Ordering::Relaxed) && self.try_wait() {
            return Poll::Ready(());
        }
        let cid = match executor::cid_of(context.waker()) {
            Some(cid) => cid,
            None => {
                place.waker.register(context.waker());
                FOREIGN
            }
        };
        place.cid.swap(cid, Ordering::AcqRel);
        // The handler's swap came before this one, and its mark is seen here; or it comes after it, and finds the cid.
        if place.signalled.load(Ordering::Relaxed) && self.try_wait() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // The kernel's receiver goes first: an identity that is free here must be free there.
        drop(self.descriptor.take());
        PLACES[self.identity].cid.store(0, Ordering::Relaxed);
        PLACES[self.identity].waker.take();
        TAKEN.fetch_and(!(1 << self.identity), Ordering::Release);
    }
}

/// In the place of a page: nobody has asked yet.
const UNKNOWN_PAGE: usize = 0;
/// In the place of a page: there is none, the kernel sends.
const NO_PAGE: usize = 1;

/// The right to signal a [`Receiver`].
#[derive(Debug)]
pub struct SendRight {
    descriptor: Descriptor,
    /// Where a store sends, once that was asked for.
    page: AtomicUsize,
}

impl SendRight {
    /// The right that a descriptor stands for, as a process finds it that was started with one. What is no right fails
    /// when it is used.
    pub fn from_descriptor(descriptor: Descriptor) -> SendRight {
        SendRight { descriptor, page: AtomicUsize::new(UNKNOWN_PAGE) }
    }

    /// The right that a process has granted to this one for its receiver of this identity.
    ///
    /// # Errors
    ///
    /// `EPERM` if it has granted none, `ESRCH` if there is no such process, `EMFILE`, `ENOMEM`.
    pub fn open(process: u32, identity: usize) -> Result<SendRight> {
        unix::interrupt::open(process, identity).map(SendRight::from_descriptor)
    }

    /// The descriptor, to be passed on.
    pub fn into_descriptor(self) -> Descriptor {
        self.descriptor
    }

    /// A second one that ends with this one.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn duplicate(&self) -> Result<SendRight> {
        self.descriptor.duplicate().map(SendRight::from_descriptor)
    }

    /// Ends the right and all its copies. For the process that receives.
    ///
    /// # Errors
    ///
    /// `EPERM` if another process receives.
    pub fn revoke(&self) -> Result<()> {
        unix::interrupt::revoke(&self.descriptor)
    }

    /// Signals the receiver: the papers' `send_msg`. The coroutine that waits there is woken.
    ///
    /// # Errors
    ///
    /// `EPERM` if the right was revoked, `EPIPE` if the receiver is gone.
    #[inline]
    pub fn send(&self) -> Result<()> {
        match self.page.load(Ordering::Relaxed) {
            NO_PAGE => unix::interrupt::send(&self.descriptor),
            UNKNOWN_PAGE => self.send_first(),
            // SAFETY: `send_first` stored it.
            page => unix::interrupt::store(unsafe { SendPage::from_raw(page) }),
        }
    }

    /// Finds out how to send, and does.
    #[cold]
    fn send_first(&self) -> Result<()> {
        let page = if unix::interrupt::is_in_hardware() { unix::interrupt::page(&self.descriptor).ok() } else { None };
        self.page.store(page.map_or(NO_PAGE, SendPage::raw), Ordering::Relaxed);
        match page {
            Some(page) => unix::interrupt::store(page),
            None => unix::interrupt::send(&self.descriptor),
        }
    }
}
