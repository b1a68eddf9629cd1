//! User interrupts between processes and between workers: one side signals, a coroutine of the other is woken.
//!
//! A [`Receiver`] belongs to the worker that made it; a coroutine waits at it with [`Receiver::wait`]. A [`SendRight`]
//! signals it, from another worker or another process. Signals carry no data and do not add up: several before the next
//! `wait` are one, as with a binary semaphore. Data for the receiver is in memory, in a file or in a pipe that both
//! sides have.
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
//! A sender can only wake a coroutine. An identity is a hint: with some back ends a sender with a right to one receiver
//! of a worker can wake its other receivers too. So `wait` may return without a signal for this receiver (a spurious
//! wake-up), and the reason must be looked up. A right ends when its receiver is dropped or revokes it.
//!
//! # The handler
//!
//! The handler runs between any two instructions of a coroutine. It sets marks and wakes by cid, which are both allowed
//! anywhere. A foreign waker may run anything, including an allocation, so it is left to the executor: the handler
//! raises the worker's attention word, and the worker wakes it between two polls.

use core::future::poll_fn;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll};

use abi_queue::{MAXIMUM_WORKERS, ProcessPage};
use atomic_waker::AtomicWaker;

use crate::{call, executor, local, preemption};
use unix::interrupt::SendPage;
use unix::{Descriptor, Errno, Result};

/// Largest identity; 0 stands for completions.
const LARGEST_IDENTITY: usize = 62;

/// State of one receiver: its mark, and its waiting coroutine.
///
/// * `signalled`: the handler makes it 1 (release), the waiter 0 (acquire). A word, since a byte takes more
///   instructions.
/// * `cid`: the waiter writes it before it looks at `signalled`; the handler after it set `signalled`. Both swap, which
///   puts these in one order: at least one of the two sees the other.
/// * `waker`: likewise; an `AtomicWaker` orders them.
struct ReceiverState {
    signalled: AtomicU32,
    cid: AtomicU64,
    waker: AtomicWaker,
}

static RECEIVERS: [ReceiverState; LARGEST_IDENTITY + 1] =
    [const { ReceiverState { signalled: AtomicU32::new(0), cid: AtomicU64::new(0), waker: AtomicWaker::new() } };
        LARGEST_IDENTITY + 1];

/// Bit `n`: a receiver has identity `n`. Bits 0 and 63 are never given.
static TAKEN: AtomicU64 = AtomicU64::new(1 | 1 << 63);

/// Bit `n`: the waker of identity `n` is to be woken between two polls.
static DEFERRED: AtomicU64 = AtomicU64::new(0);

/// The page in which the kernel shows interrupts; null before the start-up code has found it.
static PAGE: AtomicPtr<ProcessPage> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the address of the process page.
pub(crate) fn set_page(page: &'static ProcessPage) {
    PAGE.store(core::ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
}

/// Returns the attention word of a worker: while it is not 0, the worker leaves its run and calls [`attend`]. Before
/// the process page is known there are no workers, and the word is nobody's.
pub(crate) fn attention(worker: usize) -> &'static AtomicU64 {
    static NOBODYS: AtomicU64 = AtomicU64::new(0);
    // SAFETY: the page stays mapped, and every word of it is atomic.
    let page = unsafe { PAGE.load(Ordering::Relaxed).as_ref() };
    page.map_or(&NOBODYS, |page| &page.attention[worker % MAXIMUM_WORKERS])
}

/// Does the work that the handler has left, between two polls.
pub(crate) fn attend(worker: usize) {
    // Before the look, so that a later deferral raises attention again.
    attention(worker).store(0, Ordering::Relaxed);
    let mut bits = DEFERRED.swap(0, Ordering::Acquire);
    while bits != 0 {
        RECEIVERS[bits.trailing_zeros() as usize].waker.wake();
        bits &= bits - 1;
    }
}

/// The handler of user interrupts: runs between any two instructions of a coroutine, except in the scheduler's image.
/// `come` holds the identities that have come in hardware.
pub(crate) extern "C" fn on_interrupt(come: u64) {
    let worker = local::current().index.get() % MAXIMUM_WORKERS;
    let mut bits = come;
    // SAFETY: the page stays mapped, and every word of it is atomic.
    if let Some(page) = unsafe { PAGE.load(Ordering::Relaxed).as_ref() } {
        let word = &page.interrupts[worker];
        // Bits added after the look come with an interrupt of their own.
        if word.0.load(Ordering::Relaxed) != 0 {
            // Acquire: the senders' earlier writes are visible to the coroutines that this wakes.
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

/// The quick part of the handler, where the hardware shows the identities that have come: marks receivers for which no
/// coroutine waits, if that is all there is to do. Otherwise returns `false`, and has done nothing that the handler may
/// not do again. It uses no floating point.
///
/// An interrupt of the kernel has no identity or 63. So completions and changes of the mode are the handler's; those
/// that have come without an interrupt of their own are left to the executor.
pub(crate) extern "C" fn on_interrupt_quickly(come: u64) -> bool {
    // 63 is the sign.
    if come as i64 <= 0 || preemption::is_enabled() {
        return false;
    }
    // SAFETY: the page stays mapped, and every word of it is atomic.
    let Some(page) = (unsafe { PAGE.load(Ordering::Relaxed).as_ref() }) else { return false };
    // Nothing waits at identity 0.
    let mut bits = come & TAKEN.load(Ordering::Relaxed);
    while bits != 0 {
        let Some(place) = RECEIVERS.get(bits.trailing_zeros() as usize) else { return false };
        bits &= bits - 1;
        place.signalled.swap(1, Ordering::AcqRel);
        // A read that writes, for the order of these two with the waiter's. The handler wakes a waiter.
        if place.cid.fetch_or(0, Ordering::AcqRel) != 0 {
            return false;
        }
    }
    let count = &page.interrupts[local::current().index.get() % MAXIMUM_WORKERS].1;
    count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    true
}

/// Has the handler called at the kernel's next tick. Its reason may be gone by then: completions that were taken remind
/// no worker.
pub(crate) fn call_handler_at_tick(worker: usize) {
    // SAFETY: the page stays mapped, and every word of it is atomic.
    if let Some(page) = unsafe { PAGE.load(Ordering::Relaxed).as_ref() } {
        // Relaxed: the kernel looks at the word when it has interrupted this worker.
        page.interrupts[worker % MAXIMUM_WORKERS].0.fetch_or(1 << 63, Ordering::Relaxed);
    }
}

/// Makes the calling worker leave its run when the poll has ended, to [`attend`] and to look at the clock.
pub(crate) fn raise_attention() {
    attention(local::current().index.get()).store(1, Ordering::Relaxed);
}

/// Returns whether work is left for a worker's executor: by the handler, in the completion ring, or because a deadline
/// has come.
pub(crate) fn has_attention(worker: usize) -> bool {
    if crate::time::is_due() {
        raise_attention();
    }
    attention(worker).load(Ordering::Relaxed) != 0 || call::has_completions()
}

/// Wakes the waiters of these identities.
fn signal(bits: u64, worker: usize) {
    let mut bits = bits & !(1 | 1 << 63);
    while bits != 0 {
        let identity = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        let place = &RECEIVERS[identity];
        place.signalled.swap(1, Ordering::AcqRel);
        match place.cid.swap(0, Ordering::AcqRel) {
            0 => {}
            FOREIGN => {
                DEFERRED.fetch_or(1 << identity, Ordering::Release);
                attention(worker).store(1, Ordering::Relaxed);
                // A worker without a current coroutine may be about to sleep, without another look at its attention
                // word: make that sleep return at once.
                if executor::current_or_none().is_none() {
                    let _ = unix::worker::wake(worker);
                }
            }
            cid => executor::wake_raw_in_handler(cid),
        }
    }
}

/// Stands for a waker that is not the executor's own. No cid has this value, whose index is beyond all slots.
const FOREIGN: u64 = u64::MAX;

/// The receiving end of user interrupts.
#[derive(Debug)]
pub struct Receiver {
    /// `Some` until it is dropped.
    descriptor: Option<Descriptor>,
    identity: usize,
}

impl Receiver {
    /// Makes a receiver on the calling worker, from which its coroutine will be woken.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the process has reached its limit of receivers, `EMFILE`, `ENOMEM`.
    pub fn new() -> Result<Receiver> {
        let identity = loop {
            let taken = TAKEN.load(Ordering::Relaxed);
            let identity = taken.trailing_ones() as usize;
            if identity > LARGEST_IDENTITY {
                return Err(Errno::EAGAIN);
            }
            // Acquire: pairs with the release when the last receiver of this identity was dropped.
            if TAKEN.fetch_or(1 << identity, Ordering::Acquire) & 1 << identity == 0 {
                break identity;
            }
        };
        RECEIVERS[identity].signalled.store(0, Ordering::Relaxed);
        match unix::interrupt::receiver(identity) {
            Ok(descriptor) => Ok(Receiver { descriptor: Some(descriptor), identity }),
            Err(error) => {
                TAKEN.fetch_and(!(1 << identity), Ordering::Release);
                Err(error)
            }
        }
    }

    /// Returns the number by which another process names this receiver, together with this process's number: see
    /// [`SendRight::open`].
    pub fn identity(&self) -> usize {
        self.identity
    }

    fn descriptor(&self) -> Result<&Descriptor> {
        self.descriptor.as_ref().ok_or(Errno::EBADF)
    }

    /// Grants a right to signal it, for this process or to be passed on as a descriptor.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENOMEM`.
    pub fn grant(&self) -> Result<SendRight> {
        unix::interrupt::grant(self.descriptor()?).map(SendRight::from_descriptor)
    }

    /// Grants another process a right to signal it, which that process gets by [`SendRight::open`].
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
    /// None in practice: this type excludes them.
    pub fn revoke_all(&self) -> Result<()> {
        unix::interrupt::revoke(self.descriptor()?)
    }

    /// Takes a signal that has come; `false` if none has.
    pub fn try_wait(&self) -> bool {
        // Acquire: publishes the sender's writes before its signal.
        RECEIVERS[self.identity].signalled.swap(0, Ordering::AcqRel) != 0
    }

    /// Waits for a signal, and takes it. One coroutine at a time: of several only the last to ask is woken.
    ///
    /// # Cancellation
    ///
    /// Strict. A signal that came stays for the next `wait`.
    pub async fn wait(&self) {
        poll_fn(|context| self.poll_wait(context)).await;
    }

    /// Polls [`Receiver::wait`].
    pub fn poll_wait(&self, context: &mut Context<'_>) -> Poll<()> {
        let place = &RECEIVERS[self.identity];
        if place.signalled.load(Ordering::Relaxed) != 0 && self.try_wait() {
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
        // Either the handler's swap came before this one, and its mark is seen here; or it comes after it, and finds
        // the cid.
        if place.signalled.load(Ordering::Relaxed) != 0 && self.try_wait() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // The kernel's receiver is dropped first: an identity that is free here must be free there.
        drop(self.descriptor.take());
        RECEIVERS[self.identity].cid.store(0, Ordering::Relaxed);
        RECEIVERS[self.identity].waker.take();
        TAKEN.fetch_and(!(1 << self.identity), Ordering::Release);
    }
}

/// Stands for a page: not requested yet.
const UNKNOWN_PAGE: usize = 0;
/// Stands for a page: there is none, the kernel sends.
const NO_PAGE: usize = 1;

/// The right to signal a [`Receiver`].
#[derive(Debug)]
pub struct SendRight {
    descriptor: Descriptor,
    /// Address of the page to which a store sends, once it was requested.
    page: AtomicUsize,
}

impl SendRight {
    /// Makes a right of a descriptor with which the process was started. A descriptor that is no right fails at its
    /// first use.
    pub fn from_descriptor(descriptor: Descriptor) -> SendRight {
        SendRight { descriptor, page: AtomicUsize::new(UNKNOWN_PAGE) }
    }

    /// Opens the right that a process has granted to this one for its receiver of this identity.
    ///
    /// # Errors
    ///
    /// `EPERM` if it has granted none, `ESRCH` if there is no such process, `EMFILE`, `ENOMEM`.
    pub fn open(process: u32, identity: usize) -> Result<SendRight> {
        unix::interrupt::open(process, identity).map(SendRight::from_descriptor)
    }

    /// Returns the descriptor, to be passed on.
    pub fn into_descriptor(self) -> Descriptor {
        self.descriptor
    }

    /// Makes a second right that ends with this one.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn duplicate(&self) -> Result<SendRight> {
        self.descriptor.duplicate().map(SendRight::from_descriptor)
    }

    /// Ends the right and all its copies. For the receiving process.
    ///
    /// # Errors
    ///
    /// `EPERM` if another process is the receiver.
    pub fn revoke(&self) -> Result<()> {
        unix::interrupt::revoke(&self.descriptor)
    }

    /// Signals the receiver (`send_msg` in the papers): wakes the coroutine that waits there.
    ///
    /// # Errors
    ///
    /// `EPERM` if the right was revoked, `EPIPE` if the receiver is gone.
    #[doc(alias("send_msg", "senduipi"))]
    #[inline]
    pub fn send(&self) -> Result<()> {
        let page = self.page.load(Ordering::Relaxed);
        if page == NO_PAGE {
            return unix::interrupt::send(&self.descriptor);
        }
        // SAFETY: `send_first` stored it.
        let way = unsafe { SendPage::from_raw(page) };
        // In the order of signed numbers: indexes, an unknown page, addresses.
        match page as isize {
            1.. => unix::interrupt::store(way),
            0 => self.send_first(),
            _ => unix::interrupt::send_by_instruction(way),
        }
    }

    /// Finds out how to send, and sends.
    #[cold]
    fn send_first(&self) -> Result<()> {
        let page = if unix::interrupt::is_in_hardware() { unix::interrupt::page(&self.descriptor).ok() } else { None };
        self.page.store(page.map_or(NO_PAGE, SendPage::raw), Ordering::Relaxed);
        match page {
            Some(index) if index.is_index() => unix::interrupt::send_by_instruction(index),
            Some(page) => unix::interrupt::store(page),
            None => unix::interrupt::send(&self.descriptor),
        }
    }
}
