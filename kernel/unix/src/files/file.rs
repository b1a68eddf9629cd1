//! Open files: the objects to which descriptors lead, of every kind.
//!
//! The common part of all kinds is here: access, flags, charges, and the loops that move buffers in steps. The trait
//! [`FileOperations`] has their differences; its methods answer with Linux's error for the kinds that do not support an
//! operation. So a kind is one type with one `impl`, in a file of its own, and this file depends on the objects of none
//! of them: regular files and directories ([`stored`](crate::files::stored)), ends of pipes, devices, generated files,
//! terminals, local sockets, epolls, event counters, timers, sockets, rights and receivers of user interrupts.
//!
//! A kind knows its caller by the trait [`Caller`] alone: memory, account and number. So files are below processes,
//! which have them.
//!
//! Rejected: an enumeration of all kinds with a `match` in each operation. It is no faster, since properties that the
//! loops need are read once when the file is made ([`Properties`]), and each new kind would have to be entered in a
//! dozen places, of which the compiler asks for half.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::Errno;
use abi_unix::types::{self, SocketAddress, Status, epoll as event, mode, open};
use filesystem::{Access, DeviceNumber, seal};
use memory::MemoryObject;
use memory::space::Sharing;

use crate::files::carriers::ReferenceToSent;
use crate::files::epoll::Watchers;
use crate::files::gathered::{are_many, are_many_to_fill};
use crate::files::locks;
use crate::files::message::{MessageSender, MessageSpace, Recipient};
use crate::files::mounts::{Mount, Node, Place};
use crate::files::owners::{self, Awaited, Ownership};
use crate::files::sent_files::{OutgoingMessage, Receipt};
use crate::observing::latency;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::capabilities::Rights;
use crate::process::user::{AddressOut, Caller, UserBuffer, length_of};
use crate::scheduling::steps::{self, Effort};

/// Outcome of one attempt at a call on a file: its result, or that it has to wait.
pub(crate) type Attempt = Poll<Result<usize, Errno>>;

/// The events of a file whose readiness never changes.
const ALWAYS_READY: u32 = event::IN | event::RDNORM | event::OUT | event::WRNORM;

/// The occasions on which calls on a file wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Never: reading and writing go on in steps, and readiness does not change.
    Never,
    /// For events.
    ForEvents,
    /// For input of a pipe or a connection, for which asynchronous calls wait without a coroutine
    /// ([`input`](crate::asynchronous::input)).
    ForInput,
}

/// The number of bytes that a read gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// The bytes that are there.
    Present,
    /// All that was wanted, in steps, or those up to the end.
    Everything,
}

/// The bytes that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Each byte by itself: a call's buffers are moved one after the other.
    Byte,
    /// The bytes of one call: the kind gets all buffers ([`FileOperations::read_all`], [`FileOperations::write_all`]).
    Call,
    /// Those of one call, if these are at most so many: none may come between them. The kind gets all buffers.
    Message(usize),
}

/// Properties of a kind that never change, and that are looked at in each call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    /// The occasions on which calls wait.
    pub waits: Waits,
    /// The number of bytes that a read gives.
    pub reads: Reads,
    /// The bytes that belong together.
    pub unit: Unit,
    /// Bytes to move in one step ([`steps`]); all ones for a kind that is limited by its contents.
    pub largest_step: u32,
}

impl Properties {
    /// Those of a kind that is limited by its contents and waits for events.
    pub(crate) const USUAL: Properties =
        Properties { waits: Waits::ForEvents, reads: Reads::Present, unit: Unit::Byte, largest_step: u32::MAX };

    /// Those of a kind whose contents are there, or come soon, and are copied in steps.
    pub(crate) const IN_STEPS: Properties = Properties {
        waits: Waits::Never,
        reads: Reads::Everything,
        largest_step: steps::BYTES as u32,
        ..Properties::USUAL
    };
}

/// A connection that `accept` has taken.
pub(crate) enum AcceptedConnection {
    /// An object, which is to be opened.
    Made(Box<dyn FileOperations>),
    /// An open file, which has waited as one.
    Open(Arc<OpenFile>),
}

/// A connection that `accept` has taken, and its peer.
pub(crate) type Accepted = (AcceptedConnection, MessageSender);

/// Memory that processes have in common with a file, and a value that lasts as long as their mapping.
pub(crate) type CommonMemory = (Arc<MemoryObject>, Arc<dyn Any + Send + Sync>);

/// The operations of a kind of open file (Linux: `struct file_operations`).
///
/// Each method has the answer of kinds that do not support the operation. Methods that wait get a waker, which they
/// register before they answer [`Poll::Pending`]; without one the caller only tries.
#[doc(alias = "file_operations")]
pub(crate) trait FileOperations: Any + Send + Sync {
    /// Returns the properties. Called once.
    fn properties(&self) -> Properties {
        Properties::USUAL
    }

    /// Performs `fstat`.
    fn status(&self) -> Status;

    /// Returns the bytes that closing the file frees and that are not charged to `account`.
    fn memory_if_closed(&self, _account: &Account) -> usize {
        0
    }

    // ---- reading, writing and waiting ----

    /// Tries to read into a buffer.
    fn read(&self, _: &dyn Caller, _: UserBuffer, _: Option<&Waker>) -> Attempt {
        Poll::Ready(Err(Errno::EINVAL))
    }

    /// Tries to write a buffer from `*done` bytes on, and advances it.
    fn write(&self, _: &dyn Caller, _: UserBuffer, _done: &mut usize, _: Option<&Waker>) -> Attempt {
        Poll::Ready(Err(Errno::EINVAL))
    }

    /// Tries to read into all buffers of a call, for a kind whose bytes of one call belong together.
    fn read_all(&self, _: &dyn Caller, _: &[UserBuffer], _: Option<&Waker>) -> Attempt {
        Poll::Ready(Err(Errno::EINVAL))
    }

    /// Tries to write all buffers of a call from `*done` bytes on, for such a kind.
    fn write_all(&self, _: &dyn Caller, _: &[UserBuffer], _done: &mut usize, _: Option<&Waker>) -> Attempt {
        Poll::Ready(Err(Errno::EINVAL))
    }

    /// Returns the events for which a file that can wait is ready, and perhaps others than those wanted. Registers the
    /// waker, if there is one, for the others, on behalf of this caller.
    #[doc(alias = "vfs_poll")]
    fn readiness(&self, _: &dyn Caller, _wanted: u32, _: Option<&Waker>) -> Result<u32, Errno> {
        Ok(0)
    }

    /// Takes back the registration of an attempt at reading.
    fn forget_reader(&self, _: &Waker) {}

    /// Takes back the registration of an attempt at writing.
    fn forget_writer(&self, _: &Waker) {}

    /// Tries `ioctl`, as a writer if it waits.
    #[doc(alias = "ioctl")]
    #[doc(alias = "unlocked_ioctl")]
    fn control(&self, _: &dyn Caller, _command: u32, _argument: usize, _: Option<&Waker>) -> Attempt {
        Poll::Ready(Err(Errno::ENOTTY))
    }

    // ---- waiting for input, without a coroutine ----

    /// Registers a waker for input, for a call of this priority. Returns `false` if input or its end is there already,
    /// or if registering fails: then the caller must simply try.
    fn register_for_input(&self, _: &dyn Caller, _: Priority, _: &Waker) -> bool {
        false
    }

    /// Sets the reader: a registered call of this priority waits for input.
    fn set_reader(&self, _: &dyn Caller, _: Priority) {}

    /// Records that a process has looked for input without waiting.
    fn is_asked_by(&self, _: &dyn Caller) {}

    /// Records that a process has found no room to write, and does not wait for it.
    fn is_filled_by(&self, _: &dyn Caller) {}

    /// Returns the request that its next answer is for, if latency is measured.
    fn request(&self) -> Option<&latency::Request> {
        None
    }

    // ---- contents ----

    /// Returns the directory.
    fn directory(&self) -> Result<Place, Errno> {
        Err(Errno::ENOTDIR)
    }

    /// Returns the place of a file that has one.
    fn place(&self) -> Option<Place> {
        None
    }

    /// Returns the mount that a stored file belongs to.
    fn mount(&self) -> Option<&Arc<Mount>> {
        None
    }

    /// Returns the size of a regular file in bytes.
    fn length(&self) -> Option<u64> {
        None
    }

    /// Performs `lseek`.
    fn seek(&self, _offset: i64, _whence: u32) -> Result<usize, Errno> {
        Err(Errno::ESPIPE)
    }

    /// Copies from a place in the file, as far as a step goes.
    fn read_at(&self, _: &dyn Caller, _: UserBuffer, _offset: u64) -> Result<usize, Errno> {
        Err(Errno::ESPIPE)
    }

    /// Copies to a place in the file, as far as a step goes.
    fn write_at(&self, _: &dyn Caller, _: UserBuffer, _offset: u64) -> Result<usize, Errno> {
        Err(Errno::ESPIPE)
    }

    /// Tries to copy from a place in the file, as far as a step goes.
    fn poll_read_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, _: Option<&Waker>) -> Attempt {
        Poll::Ready(self.read_at(caller, buffer, offset))
    }

    /// Tries to copy to a place in the file, as far as a step goes.
    fn poll_write_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, _: Option<&Waker>) -> Attempt {
        Poll::Ready(self.write_at(caller, buffer, offset))
    }

    /// Performs `ftruncate`.
    fn truncate(&self, _length: u64) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Succeeds if `mmap` can copy from the file, which was opened for this access.
    fn require_mappable(&self, _: Access) -> Result<(), Errno> {
        Err(Errno::ENODEV)
    }

    /// Returns the memory of the pages that processes map in common, for a mapping with this access, and a value that
    /// lasts as long as the mapping.
    fn common_memory(&self, _: &dyn Caller, _: Sharing) -> Result<CommonMemory, Errno> {
        Err(Errno::ENODEV)
    }

    /// Returns the file's seals (`F_GET_SEALS`): bits of [`filesystem::seal`].
    fn seals(&self) -> Result<u32, Errno> {
        Err(Errno::EINVAL)
    }

    /// Performs `F_ADD_SEALS`.
    fn add_seals(&self, _: u32) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Moves a page to that memory; returns `false` if it is beyond the end of the file.
    fn share_page(&self, _: &dyn Caller, _page: u64) -> Result<bool, Errno> {
        Err(Errno::ENODEV)
    }

    /// Performs `getdents64`: whole entries only, at most as many as one step copies; `EINVAL` if not even one fits.
    fn read_directory(&self, _: &dyn Caller, _: UserBuffer) -> Result<usize, Errno> {
        Err(Errno::ENOTDIR)
    }

    /// Returns the flags of `fcntl(F_GETFL)` that are the kind's own.
    fn flags(&self) -> u32 {
        0
    }

    /// Sets the flags of `fcntl(F_SETFL)` that are the kind's own.
    fn set_flags(&self, _flags: u32) {}

    // ---- connections ----

    /// Tries `accept`: makes the next connection an object, and returns its peer's address.
    fn accept(&self, _: &dyn Caller, _: Option<&Waker>) -> Poll<Result<Accepted, Errno>> {
        Poll::Ready(Err(Errno::ENOTSOCK))
    }

    /// Tries `connect`. `started` tells whether an earlier attempt began it.
    fn connect(&self, _: &dyn Caller, _: SocketAddr, _started: &mut bool, _: Option<&Waker>) -> Attempt {
        Poll::Ready(Err(Errno::ENOTSOCK))
    }

    /// Tries `sendto`.
    fn send(
        &self,
        _: &dyn Caller,
        _: UserBuffer,
        _: Option<SocketAddr>,
        _sent: &mut usize,
        _: Option<&Waker>,
    ) -> Attempt {
        Poll::Ready(Err(Errno::ENOTSOCK))
    }

    /// Tries `recvfrom`.
    fn receive(&self, _: &dyn Caller, _: UserBuffer, _flags: u32, _: Option<AddressOut>, _: Option<&Waker>) -> Attempt {
        Poll::Ready(Err(Errno::ENOTSOCK))
    }

    /// Tries `sendmsg`, from the bytes on that were sent already; takes the files when they are sent.
    fn send_message(&self, _: &dyn Caller, _: OutgoingMessage<'_>, _: Option<&Waker>) -> Attempt {
        Poll::Ready(Err(Errno::ENOTSOCK))
    }

    /// Tries `recvmsg`.
    fn receive_message(&self, _: &dyn Caller, _: MessageSpace<'_>, _: Option<&Waker>) -> Receipt {
        Poll::Ready(Err(Errno::ENOTSOCK))
    }

    /// Takes back the registration of an attempt at sending to a receiver.
    fn forget_sender(&self, _: &Recipient, waker: &Waker) {
        self.forget_writer(waker);
    }

    /// Returns whether a call that fails with `EPIPE` also sends the caller a signal.
    fn signals_broken_pipe(&self) -> bool {
        true
    }

    /// Returns a value that is to be dropped after a reference to a socket that was in a message.
    fn reference_to_sent(&self) -> Option<ReferenceToSent> {
        None
    }

    /// Returns the bytes that a read would find (`FIONREAD`).
    fn unread(&self) -> Result<usize, Errno> {
        Err(Errno::ENOTTY)
    }

    /// Returns the number of bytes that a pipe holds (`F_GETPIPE_SZ`), after that was changed (`F_SETPIPE_SZ`) on
    /// behalf of a caller with this account.
    fn capacity(&self, _caller: &Account, _wanted: Option<usize>) -> Result<usize, Errno> {
        Err(Errno::EBADF)
    }
}

/// An open file description (open(2)): descriptors that were duplicated share it, with its position and flags.
#[doc(alias = "struct file")]
#[doc(alias = "fdget")]
pub(crate) struct OpenFile {
    object: Box<dyn FileOperations>,
    properties: Properties,
    access: Access,
    /// How its calls wait: [`NON_BLOCKING`] and [`LIMITED`].
    waiting: AtomicU8,
    /// Whether it ever held a lock, had an owner, or was a socket in a message: [`LOCKED`], [`OWNED`] and [`SENT`].
    history: AtomicU8,
    /// The times for which calls wait for input (`SO_RCVTIMEO`) and for room (`SO_SNDTIMEO`), each a [`ShortTime`].
    time_limits: [AtomicU16; 2],
    /// Charge for the open file, and for its share of the object behind it, as far as that is constant.
    _charge: Charge,
    /// The epolls that watch it.
    pub watchers: Watchers,
}

/// Bits of [`OpenFile::waiting`]: calls fail instead of waiting, or wait for a limited time.
const NON_BLOCKING: u8 = 1;
const LIMITED: u8 = 2;

/// A time of milliseconds in half a word: 13 bits of a number of units, and the power of ten that the unit has. Times
/// up to eight seconds are exact, longer ones have four digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShortTime(u16);

impl ShortTime {
    const BITS: u32 = 13;
    const MOST: u64 = (1 << Self::BITS) - 1;

    /// Rounds a time up; 0 if it is longer than any that can be told.
    fn of_milliseconds(time: u64) -> ShortTime {
        let fits = |power: &u32| time.div_ceil(10u64.pow(*power)) <= Self::MOST;
        let found = (0..1 << (u16::BITS - Self::BITS)).find(fits);
        ShortTime(found.map_or(0, |power| (power << Self::BITS) as u16 | time.div_ceil(10u64.pow(power)) as u16))
    }

    fn milliseconds(self) -> u64 {
        (u64::from(self.0) & Self::MOST) * 10u64.pow(u32::from(self.0) >> Self::BITS)
    }
}

/// Bits of [`OpenFile::history`].
const LOCKED: u8 = 1;
const OWNED: u8 = 2;
const SENT: u8 = 4;

/// Bytes of the largest object.
const LARGEST_OBJECT: usize = 256;

/// With its two counts an open file fits into a block of 128 bytes: every connection has one.
const _: () = assert!(size_of::<OpenFile>() + 2 * size_of::<usize>() <= 128);

/// Bytes of kernel memory for an open file of any kind, without the contents of the object behind it.
const MEMORY: usize = size_of::<OpenFile>() + LARGEST_OBJECT + 128;

/// Charges an open file to this account. `ENOMEM` if the process may not have it.
pub(crate) fn charge(account: &Arc<Account>) -> Result<Charge, Errno> {
    account.charge(Resource::Memory, MEMORY)
}

/// Returns the `struct stat` of a file that is not stored: its type and permissions, and the device that it is.
pub(crate) fn status_without_contents(mode: u32, device: Option<DeviceNumber>) -> Status {
    let represented_device = device.map_or(0, encode_device);
    Status { mode, links: 1, block_size: 4096, represented_device, ..Status::default() }
}

/// Returns the position to which `lseek` goes from this one, in bytes up to an end. `EINVAL` for a position before the
/// first byte or beyond all that there may be, and for another base.
pub(crate) fn position_behind(offset: i64, whence: u32, now: u64, end: impl FnOnce() -> u64) -> Result<u64, Errno> {
    let from = match whence {
        types::SEEK_SET => 0,
        types::SEEK_CUR => now,
        types::SEEK_END => end(),
        _ => return Err(Errno::EINVAL),
    };
    from.checked_add_signed(offset).filter(|to| *to <= i64::MAX as u64).ok_or(Errno::EINVAL)
}

/// Returns the `struct stat` of a file without a type, as Linux shows its anonymous inodes.
pub(crate) fn status_of_anonymous() -> Status {
    status_without_contents(0o600, None)
}

/// Returns the `struct stat` of a device.
pub(crate) fn status_of_device(device: DeviceNumber, permissions: u32) -> Status {
    status_without_contents(mode::CHARACTER | permissions, Some(device))
}

/// Encodes a device number as Linux's `makedev` does, for small numbers.
pub(crate) fn encode_device(device: DeviceNumber) -> u64 {
    (device.major as u64) << 8 | device.minor as u64
}

fn reads(access: Access) -> bool {
    access != Access::Write
}

fn writes(access: Access) -> bool {
    access != Access::Read
}

impl OpenFile {
    /// Opens an object of any kind.
    pub(crate) fn new<K: FileOperations>(object: K, access: Access, non_blocking: bool, charge: Charge) -> OpenFile {
        const { assert!(size_of::<K>() <= LARGEST_OBJECT) };
        OpenFile::of(Box::new(object), access, non_blocking, charge)
    }

    /// Opens an object whose kind only its maker knows.
    pub(crate) fn of(object: Box<dyn FileOperations>, access: Access, non_blocking: bool, charge: Charge) -> OpenFile {
        let (properties, waiting) = (object.properties(), if non_blocking { NON_BLOCKING } else { 0 });
        OpenFile {
            object,
            properties,
            access,
            waiting: AtomicU8::new(waiting),
            history: AtomicU8::new(0),
            time_limits: [const { AtomicU16::new(0) }; 2],
            _charge: charge,
            watchers: Watchers::default(),
        }
    }

    /// Returns the object behind it.
    pub(crate) fn object(&self) -> &dyn FileOperations {
        &*self.object
    }

    /// Returns the object behind it, if it is of this kind.
    pub(crate) fn as_kind<K: FileOperations>(&self) -> Option<&K> {
        let object: &dyn Any = &*self.object;
        object.downcast_ref()
    }

    /// Returns numbers that the open files of one file have in common, and those of others do not: of its inode, or of
    /// the object of a file without one.
    pub(crate) fn identity(&self) -> (usize, u32) {
        match self.object.place() {
            Some(Place { node: Node::Stored(node), .. }) => node.identity(),
            Some(Place { node: Node::OnVolume(node), .. }) => node.identity(),
            _ => (core::ptr::from_ref(&*self.object).addr(), 0),
        }
    }

    /// Records that it is about to hold a lock, which goes with it.
    pub(crate) fn will_lock(&self) {
        self.history.fetch_or(LOCKED, Ordering::Relaxed);
    }

    /// Records that it is in a message that may hold it open with nothing else.
    pub(super) fn is_sent(&self) {
        self.history.fetch_or(SENT, Ordering::Relaxed);
    }

    /// Returns whether it ever was in such a message.
    pub(crate) fn was_sent(&self) -> bool {
        self.history.load(Ordering::Relaxed) & SENT != 0
    }

    /// Returns a value that is to be dropped after a reference to it.
    #[inline]
    pub(super) fn reference_to_sent(&self) -> Option<ReferenceToSent> {
        if self.was_sent() { self.object.reference_to_sent() } else { None }
    }

    /// Changes whom it tells of its events, at the expense of the caller, and with these rights of it. `ENOMEM`.
    pub(crate) fn change_ownership(
        &self,
        caller: &dyn Caller,
        rights: Rights,
        change: impl FnOnce(&mut Ownership),
    ) -> Result<(), Errno> {
        self.history.fetch_or(OWNED, Ordering::Relaxed);
        owners::change(core::ptr::from_ref(self).addr(), caller, rights, change)
    }

    /// Returns whom it would tell of its events.
    pub(crate) fn ownership(&self) -> Ownership {
        if self.history.load(Ordering::Relaxed) & OWNED != 0 {
            owners::of(core::ptr::from_ref(self).addr())
        } else {
            Ownership::default()
        }
    }

    /// Sets whether it tells its owner of events, for a caller that knows it by this descriptor. Only pipes, sockets
    /// and terminals do; others ignore it. `ENOMEM`.
    pub(crate) fn set_told(
        self: &Arc<OpenFile>,
        caller: &dyn Caller,
        descriptor: i32,
        is_told: bool,
    ) -> Result<usize, Errno> {
        let own = Arc::as_ptr(self).addr();
        let tells = matches!(self.object.status().mode & mode::TYPE, mode::PIPE | mode::SOCKET | mode::CHARACTER);
        if !tells || self.never_waits() || self.ownership().is_told == is_told {
            return Ok(0);
        }
        if is_told {
            self.history.fetch_or(OWNED, Ordering::Relaxed);
            let Some([input, _]) = owners::begin(self, caller, descriptor)? else { return Ok(0) };
            let waker = Waker::from(input.clone());
            if let Err(error) = self.readiness(caller, input.awaited.events(), Some(&waker)) {
                self.forget_heralds(owners::end(own));
                return Err(error);
            }
        } else {
            self.forget_heralds(owners::end(own));
        }
        Ok(0)
    }

    /// Has the epolls that watch it, and its herald for input, look at it again: for a process.
    #[cold]
    pub(crate) fn wake_watchers(self: &Arc<OpenFile>, process: u32) {
        Watchers::wake(self, process);
        if self.history.load(Ordering::Relaxed) & OWNED != 0
            && let Some(waker) = owners::waker(Arc::as_ptr(self).addr(), Awaited::Input)
        {
            waker.wake();
        }
    }

    /// Returns the process whose rights its signals have.
    pub(crate) fn namer(&self) -> Option<owners::Namer> {
        owners::namer(core::ptr::from_ref(self).addr())
    }

    fn forget_heralds(&self, heralds: Option<[Arc<owners::Herald>; 2]>) {
        heralds.into_iter().flatten().for_each(|herald| self.forget_herald(herald));
    }

    /// Takes back the registrations of a herald.
    pub(crate) fn forget_herald(&self, herald: Arc<owners::Herald>) {
        let waker = Waker::from(herald);
        self.object.forget_reader(&waker);
        self.object.forget_writer(&waker);
    }

    /// Notes that a caller has found no room: the process that is asked to make some is told, and the file's owner when
    /// there is some.
    pub(crate) fn is_filled_by(&self, caller: &dyn Caller) {
        self.object.is_filled_by(caller);
        if self.history.load(Ordering::Relaxed) & OWNED != 0
            && let Some(waker) = owners::waker(core::ptr::from_ref(self).addr(), Awaited::Room)
            && self.readiness(caller, Awaited::Room.events(), Some(&waker)).is_ok_and(|found| found != 0)
        {
            waker.wake();
        }
    }

    /// Returns whether the file's readiness can change.
    pub(crate) fn can_be_polled(&self) -> bool {
        self.properties.waits != Waits::Never
    }

    /// Returns whether reading and writing never wait, so that the caller's permission to wait does not matter.
    pub(crate) fn never_waits(&self) -> bool {
        self.properties.waits == Waits::Never
    }

    /// Returns whether asynchronous calls wait for its input without a coroutine.
    pub(crate) fn waits_for_input(&self) -> bool {
        self.properties.waits == Waits::ForInput
    }

    /// Returns the wanted events for which the file is ready. Registers `waker`, if there is one, for the others, on
    /// behalf of this caller.
    pub(crate) fn readiness(&self, caller: &dyn Caller, wanted: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let found = match self.properties.waits {
            Waits::Never => ALWAYS_READY,
            Waits::ForEvents | Waits::ForInput => self.object.readiness(caller, wanted, waker)?,
        };
        Ok(found & wanted)
    }

    /// Returns whether calls fail with `EAGAIN` instead of waiting.
    pub(crate) fn is_non_blocking(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) & NON_BLOCKING != 0
    }

    /// Returns whether calls may not wait for any time: they fail instead of waiting, or have a time limit.
    pub(crate) fn is_impatient(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Returns the milliseconds for which calls wait for this; 0 for any time.
    pub(crate) fn time_limit_ms(&self, awaited: Awaited) -> u64 {
        ShortTime(self.time_limits[awaited as usize].load(Ordering::Relaxed)).milliseconds()
    }

    /// Sets the milliseconds for which calls wait for this; 0 for any time. Calls that wait already go on.
    pub(crate) fn set_time_limit_ms(&self, awaited: Awaited, limit: u64) {
        self.time_limits[awaited as usize].store(ShortTime::of_milliseconds(limit).0, Ordering::Relaxed);
        let is_limited = self.time_limits.iter().any(|limit| limit.load(Ordering::Relaxed) != 0);
        self.set_waiting(LIMITED, is_limited);
    }

    /// Gives its time limits to a connection that it has accepted.
    pub(crate) fn pass_time_limits_to(&self, connection: &OpenFile) {
        if self.waiting.load(Ordering::Relaxed) & LIMITED != 0 {
            for awaited in [Awaited::Input, Awaited::Room] {
                connection.set_time_limit_ms(awaited, self.time_limit_ms(awaited));
            }
        }
    }

    fn set_waiting(&self, bit: u8, is_set: bool) {
        if is_set {
            self.waiting.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.waiting.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Returns the flags as `fcntl(F_GETFL)` reports them.
    pub(crate) fn flags(&self) -> u32 {
        let access = match self.access {
            Access::Read => open::RDONLY,
            Access::Write => open::WRONLY,
            Access::ReadWrite => open::RDWR,
        };
        let is_told = self.ownership().is_told;
        let flags = if self.is_non_blocking() { open::NONBLOCK } else { 0 } | if is_told { open::ASYNC } else { 0 };
        access | flags | self.object.flags()
    }

    /// Sets whether calls fail instead of waiting.
    pub(crate) fn set_non_blocking(&self, is_non_blocking: bool) {
        self.set_waiting(NON_BLOCKING, is_non_blocking);
    }

    /// Performs `fcntl(F_SETFL)`: other flags than these are ignored, as on Linux.
    pub(crate) fn set_flags(&self, flags: u32) {
        self.set_non_blocking(flags & open::NONBLOCK != 0);
        self.object.set_flags(flags);
    }

    /// Returns the bytes that closing this file frees and that are not charged to `account`: those of a file without a
    /// name that no other open file holds, and those of a socket that another process has made.
    pub(crate) fn memory_if_closed(&self, account: &Account) -> usize {
        self.object.memory_if_closed(account)
    }

    /// Succeeds if `mmap` can copy from the file.
    pub(crate) fn require_mappable(&self) -> Result<(), Errno> {
        self.object.require_mappable(self.access)
    }

    /// Returns whether it is a regular file, with places to read and write at.
    pub(crate) fn is_regular(&self) -> bool {
        self.object.status().mode & mode::TYPE == mode::REGULAR
    }

    /// Returns whether its bytes have places: a regular file or a disk.
    pub(crate) fn has_places(&self) -> bool {
        matches!(self.object.status().mode & mode::TYPE, mode::REGULAR | mode::BLOCK)
    }

    /// Returns the access that a mapping in common with others can have. `EACCES` if the file was not opened for it,
    /// `EPERM` if it is sealed.
    pub(crate) fn sharing(&self, writes_now: bool) -> Result<Sharing, Errno> {
        self.require_mappable()?;
        let is_sealed = self.object.seals().is_ok_and(|seals| seals & (seal::WRITE | seal::FUTURE_WRITE) != 0);
        match writes(self.access) {
            true if !is_sealed => Ok(Sharing::ReadWrite),
            true if writes_now => Err(Errno::EPERM),
            false if writes_now => Err(Errno::EACCES),
            _ => Ok(Sharing::ReadOnly),
        }
    }

    // ---- reading and writing ----

    /// Fails with `EBADF` unless the file was opened for reading.
    pub(crate) fn require_readable(&self) -> Result<(), Errno> {
        if reads(self.access) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Fails with `EBADF` unless the file was opened for writing.
    pub(crate) fn require_writable(&self) -> Result<(), Errno> {
        if writes(self.access) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Returns the number of bytes of these buffers if a call that writes them must gather them: they are inseparable,
    /// and too many for one stretch.
    #[inline]
    pub(crate) fn must_gather(&self, buffers: &[UserBuffer]) -> Option<usize> {
        match self.properties.unit {
            Unit::Message(most) if are_many(buffers) => Some(length_of(buffers)).filter(|length| *length <= most),
            _ => None,
        }
    }

    /// Returns the number of bytes that a call must receive before it scatters them to these buffers, for such a file.
    pub(crate) fn must_scatter(&self, buffers: &[UserBuffer]) -> Option<usize> {
        match self.properties.unit {
            Unit::Message(most) if are_many_to_fill(buffers) => Some(length_of(buffers).min(most)),
            _ => None,
        }
    }

    /// Reads into buffers from `*done` bytes on, and advances it. Ready as soon as something was read; a kind that
    /// gives everything that was wanted reads on to the end of the buffers or of the file.
    ///
    /// Inlined into all of its callers, as [`write`](Self::write).
    #[inline(always)]
    pub(crate) fn read(
        self: &Arc<OpenFile>,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        done: &mut usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        self.require_readable()?;
        if !matches!(self.properties.unit, Unit::Byte) {
            return self.object.read_all(caller, buffers, waker);
        }
        let reads_on = self.properties.reads == Reads::Everything;
        // The usual case: one buffer, and one step is all.
        if let [buffer] = buffers
            && !reads_on
            && buffer.len() <= self.properties.largest_step as usize
        {
            let read = self.object.read(caller, *buffer, waker);
            if let Poll::Ready(Ok(count)) = read {
                *done = count;
                self.left_some(caller, count, buffer.len());
            }
            return read;
        }
        self.read_in_steps(caller, buffers, done, waker, reads_on)
    }

    /// Performs [`read`](Self::read) where there are several buffers, or several steps.
    fn read_in_steps(
        self: &Arc<OpenFile>,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        done: &mut usize,
        waker: Option<&Waker>,
        reads_on: bool,
    ) -> Attempt {
        // The first step was the attempt in place.
        if *done > 0 && reads_on && waker.is_some() && steps::must_pause(caller, waker) {
            return Poll::Pending;
        }
        let limit = self.properties.largest_step as usize;
        let (mut before, mut effort) = (0, Effort::with_buffers(limit, buffers.len()));
        let length = length_of(buffers);
        for &buffer in buffers {
            let mut part = done.saturating_sub(before).min(buffer.len());
            before += buffer.len();
            if part == buffer.len() && *done > 0 {
                continue;
            }
            loop {
                let wanted = (buffer.len() - part).min(effort.left());
                let piece = UserBuffer::new(buffer.address() + part, wanted)?;
                // Of a kind that does not read on only the first buffer may wait; further bytes are taken if they are
                // there.
                let may_wait = *done == 0 || reads_on;
                let count = match self.object.read(caller, piece, waker.filter(|_| may_wait)) {
                    Poll::Ready(Ok(count)) => count,
                    Poll::Ready(Err(error)) if *done == 0 => return Poll::Ready(Err(error)),
                    Poll::Pending if may_wait => return Poll::Pending,
                    _ => return Poll::Ready(Ok(*done)),
                };
                *done += count;
                part += count;
                if count < wanted {
                    return Poll::Ready(Ok(*done));
                }
                if effort.add(count) && *done < length {
                    match reads_on {
                        true if steps::must_pause(caller, waker) => return Poll::Pending,
                        false if steps::has_interrupts() => {
                            // Bytes that are there may be left for the next call; an edge-triggered epoll tells of
                            // them.
                            self.wake_watchers(caller.number());
                            return Poll::Ready(Ok(*done));
                        }
                        _ => {}
                    }
                }
                if part == buffer.len() {
                    break;
                }
            }
        }
        Poll::Ready(Ok(*done))
    }

    /// Tries to write buffers from `*written` bytes on, and advances it.
    ///
    /// Inlined into both of its callers: as a function of its own it costs a way through a pipe 36 instructions.
    #[inline(always)]
    pub(crate) fn write(
        &self,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        written: &mut usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        self.require_writable()?;
        if !matches!(self.properties.unit, Unit::Byte) {
            return self.told_of_broken_pipe(caller, self.object.write_all(caller, buffers, written, waker));
        }
        let mut before = 0;
        let is_limited = self.properties.largest_step != u32::MAX;
        let limit = self.properties.largest_step as usize;
        // The first step was the attempt in place.
        if *written > 0 && is_limited && waker.is_some() && steps::must_pause(caller, waker) {
            return Poll::Pending;
        }
        let (mut effort, length) = (Effort::with_buffers(limit, buffers.len()), length_of(buffers));
        for &buffer in buffers {
            let mut part = written.saturating_sub(before).min(buffer.len());
            before += buffer.len();
            if part == buffer.len() && *written > 0 {
                continue;
            }
            loop {
                let start = part;
                let piece = UserBuffer::new(buffer.address(), buffer.len().min(start.saturating_add(effort.left())))?;
                let attempt = self.object.write(caller, piece, &mut part, waker);
                *written += part - start;
                match attempt {
                    Poll::Ready(Ok(_)) if part == piece.len() => {}
                    Poll::Ready(Err(_)) if *written == 0 => return self.told_of_broken_pipe(caller, attempt),
                    Poll::Ready(_) => return Poll::Ready(Ok(*written)),
                    Poll::Pending => return Poll::Pending,
                }
                let must_pause = if is_limited { steps::must_pause } else { steps::must_stop };
                if effort.add(part - start) && *written < length && must_pause(caller, waker) {
                    return Poll::Pending;
                }
                if part == buffer.len() {
                    break;
                }
            }
        }
        Poll::Ready(Ok(*written))
    }

    /// Tells the caller of an attempt at writing if there is no reader any more.
    #[inline(always)]
    fn told_of_broken_pipe(&self, caller: &dyn Caller, attempt: Attempt) -> Attempt {
        if attempt == Poll::Ready(Err(Errno::EPIPE)) {
            self.tell_of_broken_pipe(caller);
        }
        attempt
    }

    #[cold]
    #[inline(never)]
    fn tell_of_broken_pipe(&self, caller: &dyn Caller) {
        if self.object.signals_broken_pipe() {
            caller.has_no_reader();
        }
    }

    // ---- connections ----

    /// Tries `connect`.
    pub(crate) fn connect(
        self: &Arc<OpenFile>,
        caller: &dyn Caller,
        to: SocketAddr,
        started: &mut bool,
        waker: Option<&Waker>,
    ) -> Attempt {
        let was_started = *started;
        let attempt = self.object.connect(caller, to, started, waker);
        if *started && !was_started || attempt.is_ready() {
            // The stack has a new object for the socket.
            self.wake_watchers(caller.number());
        }
        attempt
    }

    /// Tries `sendto`.
    pub(crate) fn send(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        flags: u32,
        to: Option<SocketAddress>,
        sent: &mut usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        if flags & !(types::message::DONTWAIT | types::message::NOSIGNAL | types::message::CONFIRM) != 0 {
            return Poll::Ready(Err(Errno::EOPNOTSUPP));
        }
        let to = to.map(|to| SocketAddr::from((to.address, to.port)));
        let attempt = self.object.send(caller, buffer, to, sent, waker);
        if flags & types::message::NOSIGNAL != 0 { attempt } else { self.told_of_broken_pipe(caller, attempt) }
    }

    /// Tries `sendmsg`.
    pub(crate) fn send_message(
        &self,
        caller: &dyn Caller,
        message: OutgoingMessage<'_>,
        flags: u32,
        waker: Option<&Waker>,
    ) -> Attempt {
        let attempt = self.object.send_message(caller, message, waker);
        if flags & types::message::NOSIGNAL != 0 { attempt } else { self.told_of_broken_pipe(caller, attempt) }
    }

    /// Tries `recvfrom`.
    pub(crate) fn receive(
        self: &Arc<OpenFile>,
        caller: &dyn Caller,
        buffer: UserBuffer,
        flags: u32,
        address: Option<AddressOut>,
        waker: Option<&Waker>,
    ) -> Attempt {
        if flags & !(types::message::DONTWAIT | types::message::PEEK | types::message::NOSIGNAL) != 0 {
            return Poll::Ready(Err(Errno::EOPNOTSUPP));
        }
        let attempt = self.object.receive(caller, buffer, flags, address, waker);
        if let (Poll::Ready(Ok(count)), 0) = (attempt, flags & types::message::PEEK) {
            self.left_some(caller, count, buffer.len());
        }
        attempt
    }

    /// Has an edge-triggered epoll tell of bytes again that may have been left at an interrupt, after a step of many.
    #[inline(always)]
    fn left_some(self: &Arc<OpenFile>, caller: &dyn Caller, count: usize, wanted: usize) {
        if count >= Effort::BYTES && count < wanted {
            self.wake_watchers(caller.number());
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.watchers.close();
        let history = self.history.load(Ordering::Relaxed);
        if history & LOCKED != 0 {
            locks::open_file_closes(self);
        }
        if history & OWNED != 0 {
            self.forget_heralds(owners::closes(core::ptr::from_ref(self).addr()));
        }
    }
}

/// Performs `pread64`, `preadv` and their like: moves buffers from `*done` bytes on to or from a place in a file, and
/// advances it, until a step moves fewer bytes than it may.
pub(crate) fn move_at_place(
    caller: &dyn Caller,
    buffers: &[UserBuffer],
    offset: u64,
    done: &mut usize,
    waker: Option<&Waker>,
    mut step: impl FnMut(UserBuffer, u64) -> Attempt,
) -> Attempt {
    // The first step was the attempt in place.
    if *done > 0 && waker.is_some() && steps::must_pause(caller, waker) {
        return Poll::Pending;
    }
    let (length, mut effort) = (length_of(buffers), Effort::with_buffers(steps::BYTES, buffers.len()));
    let (mut index, mut part) = (0, *done);
    loop {
        while part > 0 && buffers.get(index).is_some_and(|buffer| buffer.len() <= part) {
            part -= buffers[index].len();
            index += 1;
        }
        let buffer = buffers.get(index).copied().unwrap_or(UserBuffer::new(0, 0)?);
        let wanted = (buffer.len() - part).min(effort.left());
        // Nothing is moved for an empty buffer before others.
        if wanted == 0 && *done < length {
            index += 1;
            continue;
        }
        let rest = UserBuffer::new(buffer.address() + part, wanted)?;
        // The offset is below 2^63, and no buffers are that long.
        let moved = match step(rest, offset + *done as u64) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(moved)) => moved,
            Poll::Ready(Err(error)) if *done == 0 => return Poll::Ready(Err(error)),
            Poll::Ready(Err(_)) => return Poll::Ready(Ok(*done)),
        };
        *done += moved;
        part += moved;
        if moved < wanted || *done == length {
            return Poll::Ready(Ok(*done));
        }
        if effort.add(moved) && steps::must_pause(caller, waker) {
            return Poll::Pending;
        }
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{DATA, Program, run};

    proptest! {
        #![proptest_config(property::cases(256))]

        /// A time is rounded up, by a thousandth at most, and told as it is kept.
        #[test]
        fn short_times_are_rounded_up(time in prop_oneof![0..9000u64, 0..u64::from(u32::MAX), any::<u64>()]) {
            let short = ShortTime::of_milliseconds(time);
            let told = short.milliseconds();
            prop_assert_eq!(ShortTime::of_milliseconds(told), short);
            let most = ShortTime(u16::MAX).milliseconds();
            let range = if time > most { 0..=0 } else { time..=time + time / 800 };
            prop_assert!(range.contains(&told));
            prop_assert!(time > ShortTime::MOST || told == time);
        }
    }

    #[test]
    fn access_is_checked_before_anything_else() {
        run(|program| {
            let (reads, writes) =
                (program.create(b"/tmp/a\0", open::RDONLY), program.create(b"/tmp/a\0", open::WRONLY));
            assert_eq!(program.write_to(reads, b"x"), Err(Errno::EBADF));
            assert_eq!(program.read_from(writes, 1), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::WriteAt, [reads, DATA, 1, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::ReadAt, [writes, DATA, 1, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::Truncate, [reads, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::ReadAt, [reads, DATA, 1, usize::MAX]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Read, [reads, DATA, usize::MAX]), Err(Errno::EINVAL));
            program.remove(b"/tmp/a\0");
        });
    }

    #[test]
    fn every_kind_has_its_type_and_no_call_of_another() {
        run(|program| {
            let (reader, _) = program.pipe(0);
            let counter = program.call(SystemCall::EventCounter, [0, 0]).unwrap();
            let epoll = program.call(SystemCall::EpollCreate, [0]).unwrap();
            let socket = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            let kind = |program: &mut Program, file: usize| {
                let status = program.place(128);
                program.call(SystemCall::Status, [file, status]).unwrap();
                program.read_u32(status + 16) & mode::TYPE
            };
            assert_eq!(kind(program, reader), mode::PIPE);
            assert_eq!(kind(program, socket), mode::SOCKET);
            for file in [reader, counter, epoll, socket] {
                assert_eq!(program.call(SystemCall::Seek, [file, 0, 0]), Err(Errno::ESPIPE));
                assert_eq!(program.call(SystemCall::ReadAt, [file, DATA, 1, 0]), Err(Errno::ESPIPE));
                assert_eq!(program.call(SystemCall::Truncate, [file, 0]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::ReadDirectory, [file, DATA, 100]), Err(Errno::ENOTDIR));
            }
            for file in [reader, counter, epoll] {
                for call in [SystemCall::Listen, SystemCall::Shutdown, SystemCall::Accept, SystemCall::GetPeerName] {
                    assert_eq!(program.call(call, [file, 0, 0]), Err(Errno::ENOTSOCK), "{}", call.name());
                }
            }
            assert_eq!(program.read_from(epoll, 8), Err(Errno::EINVAL));
            assert_eq!(program.write_to(epoll, b"x"), Err(Errno::EINVAL));
        });
    }
}
