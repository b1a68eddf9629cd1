//! Queues of messages with names and priorities (POSIX's, mq_overview(7)).
//!
//! A queue lasts as long as its name, or an open file of it. Its maker pays for the most that it can ever hold, when it
//! makes it (`Resource::Files`), so that no message fails for a lack of room that the queue has promised. Limits are
//! low enough that every call is short: a queue has at most [`MOST_MESSAGES`](number::MOST_MESSAGES) messages. Below
//! these are the limits of processes without `CAP_SYS_RESOURCE`, which are settings ([`LimitOfQueues`]).
//!
//! Queues have names in a file system of their own, which is mounted at `/dev/mqueue`: rights are those of its files,
//! and are changed there, and a file that is read tells the state of its queue. A file that is made there is a queue
//! with the usual attributes.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::message_queue::{self as number, Attributes};
use abi_unix::types::timer::Notification;
use abi_unix::types::{Status, epoll as event, open};
use filesystem::rights::{self, READ, WRITE};
use filesystem::{Access, Departure, Error, LastLink, Object, Owner, WayOn};
use spin::Mutex;
use waiters::Waiters;

use crate::files::file::{Attempt, FileOperations, OpenFile, position_behind};
use crate::files::mounts::{self, Mount, Node, Place};
use crate::files::stored::status_of;
use crate::files::tree::{errno_of, made_by, now};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::identity;
use crate::process::table;
use crate::process::user::{Caller, UserBuffer};
use crate::time::limit::TimeLimit;

/// Bytes for a queue beside its messages: itself, its name, and its place in the list.
const BYTES: usize = size_of::<Queue>() + number::LONGEST_NAME + 128;

/// A message.
struct Message {
    priority: u32,
    bytes: Vec<u8>,
}

/// A process that is told when a message comes to an empty queue, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Its number, and the time at which it was made, in ticks: another process may get the number.
    pub process: u32,
    pub started: u64,
    /// The signal, and its value; none for a process that only keeps others from being told.
    pub signal: Option<(u8, u64)>,
}

struct QueueState {
    /// The most important first, and of one priority in their order.
    messages: VecDeque<Message>,
    receivers: Waiters,
    senders: Waiters,
    /// Number of calls that wait for a message.
    waiting: usize,
    notice: Option<Notice>,
}

/// A queue.
#[doc(alias = "mqueue_inode_info")]
pub(crate) struct Queue {
    most: usize,
    size: usize,
    state: Mutex<QueueState>,
    _place: PlaceAmongAll,
    _charge: Charge,
}

/// An open file of a queue.
pub(crate) struct QueueFile {
    queue: Arc<Queue>,
    place: Place,
    access: Access,
    /// Number of bytes of its text that were read.
    position: Mutex<u64>,
}

/// Length that a file of a queue is said to have, as on Linux.
const LENGTH: u64 = 80;

/// A limit of queues, which is a setting of the machine (`/proc/sys/fs/mqueue`). (Relaxed: it orders nothing.)
pub(crate) struct LimitOfQueues {
    value: AtomicUsize,
    range: RangeInclusive<usize>,
}

/// Number of queues with which processes make no more.
pub(crate) static MOST_QUEUES: LimitOfQueues = LimitOfQueues::new(number::USUAL_MOST_QUEUES, 0..=i32::MAX as usize);

/// Messages and bytes of the largest message that processes can have promised by a queue.
pub(crate) static MOST_MESSAGES: LimitOfQueues = of_messages(number::USUAL_MOST_MESSAGES);
pub(crate) static LARGEST_MESSAGE: LimitOfQueues = of_bytes(number::LARGEST_MESSAGE);

/// Those of a queue whose maker has not chosen.
pub(crate) static USUAL_MESSAGES: LimitOfQueues = of_messages(number::DEFAULT_MESSAGES);
pub(crate) static USUAL_SIZE: LimitOfQueues = of_bytes(number::DEFAULT_SIZE);

const fn of_messages(value: usize) -> LimitOfQueues {
    LimitOfQueues::new(value, 1..=number::MOST_MESSAGES)
}

const fn of_bytes(value: usize) -> LimitOfQueues {
    LimitOfQueues::new(value, number::LEAST_LARGEST_MESSAGE..=number::LARGEST_MESSAGE)
}

impl LimitOfQueues {
    const fn new(value: usize, range: RangeInclusive<usize>) -> LimitOfQueues {
        LimitOfQueues { value: AtomicUsize::new(value), range }
    }

    /// Returns its value.
    pub(crate) fn value(&self) -> usize {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets it to a number in decimal digits. `EINVAL` for other text, and for a number that the kernel cannot keep.
    pub(crate) fn set(&self, text: &[u8]) -> Result<(), Errno> {
        // A write of nothing does nothing.
        if text.is_empty() {
            return Ok(());
        }
        let digits = text.trim_ascii();
        let is_number = digits.iter().all(u8::is_ascii_digit);
        let value = core::str::from_utf8(digits).ok().filter(|_| is_number).and_then(|digits| digits.parse().ok());
        let value = value.filter(|value| self.range.contains(value)).ok_or(Errno::EINVAL)?;
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// The bounds that hold for the maker of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounds {
    /// The settings of the machine.
    Settings,
    /// Those that no queue exceeds, for `CAP_SYS_RESOURCE`.
    Kernel,
}

impl Bounds {
    /// Returns the greatest number of queues with which there may be another, of messages, and of bytes of one.
    fn numbers(self) -> [usize; 3] {
        match self {
            Bounds::Settings => [MOST_QUEUES.value(), MOST_MESSAGES.value(), LARGEST_MESSAGE.value()],
            Bounds::Kernel => [usize::MAX, number::MOST_MESSAGES, number::LARGEST_MESSAGE],
        }
    }
}

/// Number of queues. (Relaxed: it orders nothing.)
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The count of one queue.
struct PlaceAmongAll;

impl PlaceAmongAll {
    /// Counts one more. `ENOSPC` if there are too many.
    fn take(most: usize) -> Result<PlaceAmongAll, Errno> {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        let taken = COUNT.try_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.map(|_| PlaceAmongAll).map_err(|_| Errno::ENOSPC)
    }
}

impl Drop for PlaceAmongAll {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The choices of a process that opens a queue.
pub(crate) struct Opening<'a> {
    /// The name, without a slash.
    pub name: &'a [u8],
    /// Flags of `open`.
    pub flags: u32,
    /// The permissions of a new queue, and its attributes, if it has chosen some.
    pub permissions: u16,
    pub attributes: Option<Attributes>,
    /// The bounds of a new queue.
    pub bounds: Bounds,
}

/// Returns the rights that an access needs.
fn wanted(access: Access) -> u16 {
    match access {
        Access::Read => READ,
        Access::Write => WRITE,
        Access::ReadWrite => READ | WRITE,
    }
}

/// Performs `mq_open`: finds a queue by its name, or makes it; returns whether it was made.
pub(crate) fn find_or_make(
    caller: &dyn Caller,
    access: Access,
    opening: &Opening<'_>,
) -> Result<(QueueFile, bool), Errno> {
    let whom = caller.whom();
    let subject = identity::subject(&whom);
    let Opening { name, flags, permissions, attributes, bounds } = *opening;
    let (mount, root) = root_of_names()?;
    loop {
        let mut way = None;
        let found = match mount.tree().look_up_noting(root.seen_by(subject), name, LastLink::Keep, &mut way) {
            // A mount that covers the file is met by paths alone: the name is still the queue's.
            Err(Error::Crossing) => match way {
                Some(WayOn { departure: Departure::Down(node), .. }) => Ok(node),
                _ => Err(Error::Crossing),
            },
            found => found,
        };
        match found {
            Ok(_) if flags & open::CREAT != 0 && flags & open::EXCL != 0 => return Err(Errno::EEXIST),
            Ok(node) => {
                rights::permit(subject, node.ownership(), wanted(access)).map_err(errno_of)?;
                // The root is the only other node.
                return QueueFile::of_node(&node, mount, access).map(|file| (file, false)).ok_or(Errno::EACCES);
            }
            Err(Error::NotFound) if flags & open::CREAT != 0 => {}
            Err(error) => return Err(errno_of(error)),
        }
        let account = caller.account();
        let object = (Arc::new(Queue::new(account, attributes, bounds)?) as Object, LENGTH);
        let owner: Arc<dyn Owner> = account.clone();
        match mount.tree().make_object(root.seen_by(subject), name, object, permissions, made_by(&owner)) {
            Ok(node) => return QueueFile::of_node(&node, mount, access).map(|file| (file, true)).ok_or(Errno::EACCES),
            // Another process was faster.
            Err(Error::AlreadyExists) => {}
            Err(error) => return Err(errno_of(error)),
        }
    }
}

/// Makes a queue with the usual attributes, for `open`.
pub(crate) fn make_usual(owner: Option<&Arc<dyn Owner>>) -> Result<(Object, u64), Error> {
    let account: Arc<dyn Any + Send + Sync> = owner.ok_or(Error::NotPermitted)?.clone();
    let account = account.downcast::<Account>().map_err(|_| Error::NotPermitted)?;
    let queue = Queue::new(&account, None, Bounds::Settings).map_err(|error| match error {
        Errno::ENOSPC => Error::NoSpace,
        _ => Error::OutOfMemory,
    })?;
    Ok((Arc::new(queue), LENGTH))
}

/// Returns the mount with the names of queues, and its root.
fn root_of_names() -> Result<(&'static Arc<Mount>, filesystem::Node), Errno> {
    let mount = mounts::queues();
    Ok((mount, mount.root().node.stored().ok_or(Errno::ENOENT)?.clone()))
}

/// Performs `mq_unlink`. `EPERM` for a user that does not own the queue.
pub(crate) fn unlink(caller: &dyn Caller, name: &[u8]) -> Result<(), Errno> {
    let whom = caller.whom();
    let (mount, root) = root_of_names()?;
    mount.tree().unlink(root.seen_by(identity::subject(&whom)), name, now()).map_err(errno_of)
}

impl Queue {
    fn new(account: &Arc<Account>, attributes: Option<Attributes>, bounds: Bounds) -> Result<Queue, Errno> {
        let [queues, messages, bytes] = bounds.numbers();
        let (most, size) = match attributes {
            // The usual numbers hold within the settings, whoever makes it, as on Linux.
            None => {
                let [_, messages, bytes] = Bounds::Settings.numbers();
                (USUAL_MESSAGES.value().min(messages), USUAL_SIZE.value().min(bytes))
            }
            Some(Attributes { most, size, .. }) => {
                let within = |value: i64, limit: usize| usize::try_from(value).ok().filter(|n| (1..=limit).contains(n));
                let most = within(most, messages).ok_or(Errno::EINVAL)?;
                (most, within(size, bytes).ok_or(Errno::EINVAL)?)
            }
        };
        let place = PlaceAmongAll::take(queues)?;
        let charge = account.charge(Resource::Files, BYTES + most * (size + size_of::<Message>() + 32))?;
        let mut messages = VecDeque::new();
        messages.try_reserve_exact(most).map_err(|_| Errno::ENOMEM)?;
        let state =
            QueueState { messages, receivers: Waiters::new(), senders: Waiters::new(), waiting: 0, notice: None };
        Ok(Queue { most, size, state: Mutex::new(state), _place: place, _charge: charge })
    }
}

/// Ends the notice of a process that has closed a descriptor of a queue.
pub(crate) fn process_has_closed(file: &OpenFile, process: u32) {
    if let Some(QueueFile { queue, .. }) = file.as_kind() {
        let mut state = queue.state.lock();
        if state.notice.is_some_and(|notice| notice.process == process) {
            state.notice = None;
        }
    }
}

/// Whether the process of a notice lives.
pub(crate) fn has_process(notice: Notice) -> bool {
    table::find(notice.process).is_some_and(|process| process.started == notice.started)
}

impl QueueFile {
    /// Opens the file of a queue; `None` if the node is none.
    pub(crate) fn of_node(node: &filesystem::Node, mount: &Arc<Mount>, access: Access) -> Option<QueueFile> {
        let queue = node.object()?.downcast::<Queue>().ok()?;
        let place = Place { node: Node::Stored(node.clone()), mount: mount.clone() };
        Some(QueueFile { queue, place, access, position: Mutex::new(0) })
    }

    /// Returns the text that tells of the queue: its bytes, and the process that is told of a message.
    fn text(&self) -> String {
        let (bytes, notice) = {
            let state = self.queue.state.lock();
            (state.messages.iter().map(|message| message.bytes.len()).sum::<usize>(), state.notice)
        };
        let (kind, signal, process) = match notice {
            None => (0, 0, 0),
            Some(Notice { process, signal: Some((signal, _)), .. }) => (Notification::SIGNAL, signal, process),
            Some(Notice { process, .. }) => (Notification::NONE, 0, process),
        };
        format!("QSIZE:{bytes:<10} NOTIFY:{kind:<5} SIGNO:{signal:<5} NOTIFY_PID:{process:<6}\n")
    }

    /// Performs `mq_notify`: tells a process of the next message to the empty queue, or this one no more. `EBUSY` if
    /// one is told already.
    pub(crate) fn notify(&self, caller: (u32, u64), notice: Option<Notice>) -> Result<(), Errno> {
        let mut state = self.queue.state.lock();
        match notice {
            Some(_) if state.notice.is_some() => return Err(Errno::EBUSY),
            Some(notice) => state.notice = Some(notice),
            None if state.notice.is_some_and(|notice| (notice.process, notice.started) == caller) => {
                state.notice = None;
            }
            None => {}
        }
        Ok(())
    }

    /// Forgets the notice if its process is no more.
    pub(crate) fn forget_notice_unless(&self, lives: impl FnOnce(Notice) -> bool) {
        let notice = self.queue.state.lock().notice;
        if let Some(notice) = notice
            && !lives(notice)
        {
            let mut state = self.queue.state.lock();
            if state.notice == Some(notice) {
                state.notice = None;
            }
        }
    }

    /// Returns the attributes, with the flags of its open file.
    pub(crate) fn attributes(&self, is_non_blocking: bool) -> Attributes {
        let flags = if is_non_blocking { open::NONBLOCK.into() } else { 0 };
        let present = self.queue.state.lock().messages.len() as i64;
        Attributes { flags, most: self.queue.most as i64, size: self.queue.size as i64, present }
    }
}

impl FileOperations for QueueFile {
    fn status(&self) -> Status {
        status_of(&self.place)
    }

    fn place(&self) -> Option<Place> {
        Some(self.place.clone())
    }

    fn mount(&self) -> Option<&Arc<Mount>> {
        Some(&self.place.mount)
    }

    fn length(&self) -> Option<u64> {
        Some(self.place.node.stored()?.metadata().size)
    }

    fn truncate(&self, length: u64) -> Result<usize, Errno> {
        self.place.node.stored().ok_or(Errno::EINVAL)?.truncate(length, now()).map(|()| 0).map_err(errno_of)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, _: Option<&Waker>) -> Attempt {
        let mut position = self.position.lock();
        let count = self.read_at(caller, buffer, *position)?;
        *position += count as u64;
        Poll::Ready(Ok(count))
    }

    fn read_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64) -> Result<usize, Errno> {
        if self.access == Access::Write {
            return Err(Errno::EBADF);
        }
        caller.account().admit()?;
        self.forget_notice_unless(has_process);
        let text = self.text();
        let rest = usize::try_from(offset).ok().and_then(|offset| text.as_bytes().get(offset..)).unwrap_or_default();
        let part = &rest[..rest.len().min(buffer.len())];
        caller.copy_out(buffer.address(), part)?;
        Ok(part.len())
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<usize, Errno> {
        let mut position = self.position.lock();
        *position = position_behind(offset, whence, *position, || self.length().unwrap_or(LENGTH))?;
        Ok(*position as usize)
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut state = self.queue.state.lock();
        if let Some(waker) = waker {
            state.receivers.register(waker).map_err(|_| Errno::ENOMEM)?;
            state.senders.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        let input = if state.messages.is_empty() { 0 } else { event::IN | event::RDNORM };
        let output = if state.messages.len() < self.queue.most { event::OUT | event::WRNORM } else { 0 };
        Ok(input | output)
    }

    fn forget_reader(&self, waker: &Waker) {
        self.queue.state.lock().receivers.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        self.queue.state.lock().senders.forget(waker);
    }
}

/// The act of a transfer.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    /// Sends a message of this priority.
    Send(u32),
    /// Receives one, and writes its priority to this address unless it is 0.
    Receive(usize),
}

/// A call that sends or receives a message.
pub(crate) struct QueueTransfer {
    file: Arc<OpenFile>,
    queue: Arc<Queue>,
    buffer: UserBuffer,
    act: Act,
    limit: TimeLimit,
    /// Whether it is one of those that wait for a message.
    is_counted: bool,
}

impl QueueTransfer {
    /// Creates one by an open file of a queue. `EBADF` for other files, and for one that was not opened for this;
    /// `EMSGSIZE` for a message that is too large, or a buffer that is too small.
    pub(crate) fn new(
        file: Arc<OpenFile>,
        buffer: UserBuffer,
        act: Act,
        limit: TimeLimit,
    ) -> Result<QueueTransfer, Errno> {
        let queue = file.as_kind::<QueueFile>().ok_or(Errno::EBADF)?.queue.clone();
        let is_wrong = match act {
            Act::Send(_) => {
                file.require_writable()?;
                buffer.len() > queue.size
            }
            Act::Receive(_) => {
                file.require_readable()?;
                buffer.len() < queue.size
            }
        };
        if is_wrong {
            return Err(Errno::EMSGSIZE);
        }
        Ok(QueueTransfer { file, queue, buffer, act, limit, is_counted: false })
    }

    /// Returns whether it sends.
    pub(crate) fn sends(&self) -> bool {
        matches!(self.act, Act::Send(_))
    }

    /// Tries it. Gives the notice that is due to `tell`, when the queue is not locked any more.
    pub(crate) fn poll(
        &mut self,
        caller: &dyn Caller,
        waker: Option<&Waker>,
        tell: impl FnOnce(Notice),
    ) -> Poll<Result<usize, Errno>> {
        match self.act {
            Act::Send(priority) => self.send(caller, priority, waker, tell),
            Act::Receive(address) => self.receive(caller, address, waker),
        }
    }

    fn send(
        &mut self,
        caller: &dyn Caller,
        priority: u32,
        waker: Option<&Waker>,
        tell: impl FnOnce(Notice),
    ) -> Poll<Result<usize, Errno>> {
        let queue = self.queue.clone();
        let mut state = queue.state.lock();
        if state.messages.len() == queue.most {
            self.wait(waker)?;
            if let Some(waker) = waker {
                state.senders.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.buffer.len()).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(self.buffer.len(), 0);
        caller.copy_in(self.buffer.address(), &mut bytes)?;
        let at = state.messages.partition_point(|message| message.priority >= priority);
        // The first message, for which nobody waits.
        let due = if state.messages.is_empty() && state.waiting == 0 { state.notice.take() } else { None };
        state.messages.insert(at, Message { priority, bytes });
        state.receivers.wake_all();
        drop(state);
        if let Some(notice) = due {
            tell(notice);
        }
        Poll::Ready(Ok(0))
    }

    fn receive(&mut self, caller: &dyn Caller, address: usize, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        let queue = self.queue.clone();
        let mut state = queue.state.lock();
        let Some(message) = state.messages.front() else {
            if let Err(error) = self.wait(waker) {
                self.count(&mut state, false);
                return Poll::Ready(Err(error));
            }
            if let Some(waker) = waker {
                state.receivers.register(waker).map_err(|_| Errno::ENOMEM)?;
                self.count(&mut state, true);
            }
            return Poll::Pending;
        };
        let copied = caller.copy_out(self.buffer.address(), &message.bytes);
        let told = match address {
            0 => Ok(()),
            address => caller.copy_out(address, &message.priority.to_le_bytes()),
        };
        self.count(&mut state, false);
        // The message stays for another call if this one cannot have it.
        copied.and(told)?;
        let message = state.messages.pop_front();
        state.senders.wake_all();
        drop(state);
        Poll::Ready(Ok(message.map_or(0, |message| message.bytes.len())))
    }

    /// Fails if it may not wait any more; else prepares for that.
    fn wait(&mut self, waker: Option<&Waker>) -> Result<(), Errno> {
        if self.file.is_non_blocking() {
            return Err(Errno::EAGAIN);
        }
        if self.limit.has_passed() {
            return Err(Errno::ETIMEDOUT);
        }
        waker.map_or(Ok(()), |waker| self.limit.arm(waker))
    }

    fn count(&mut self, state: &mut QueueState, waits: bool) {
        match (self.is_counted, waits) {
            (false, true) => state.waiting += 1,
            (true, false) => state.waiting -= 1,
            _ => {}
        }
        self.is_counted = waits;
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&mut self, waker: &Waker) {
        let queue = self.queue.clone();
        let mut state = queue.state.lock();
        state.receivers.forget(waker);
        state.senders.forget(waker);
        self.count(&mut state, false);
        self.limit.clear();
    }
}
