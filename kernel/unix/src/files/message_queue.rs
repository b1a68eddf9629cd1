//! Queues of messages with names and priorities (POSIX's, mq_overview(7)).
//!
//! A queue lasts as long as its name, or an open file of it. Its maker pays for the most that it can ever hold, when it
//! makes it (`Resource::Files`), so that no message fails for a lack of room that the queue has promised. Limits are
//! low enough that every call is short: a queue has at most [`MOST_MESSAGES`](number::MOST_MESSAGES) messages.
//!
//! Rights are those of a file with the queue's owner and mode. Names are in a list of their own: no file system shows
//! them.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::message_queue::{self as number, Attributes};
use abi_unix::types::{Status, epoll as event, mode, open};
use filesystem::Access;
use filesystem::rights::{self, Ownership, READ, Subject, WRITE};
use spin::Mutex;
use waiters::Waiters;

use crate::files::file::{FileOperations, OpenFile, status_of_anonymous};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::identity;
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
    ownership: Ownership,
    most: usize,
    size: usize,
    state: Mutex<QueueState>,
    _charge: Charge,
}

/// An open file of a queue.
pub(crate) struct QueueFile(Arc<Queue>);

/// The queues with names.
static NAMES: Mutex<Vec<(Vec<u8>, Arc<Queue>)>> = Mutex::new(Vec::new());

/// The choices of a process that opens a queue.
pub(crate) struct Opening<'a> {
    /// The name, without a slash.
    pub name: &'a [u8],
    /// Flags of `open`.
    pub flags: u32,
    /// The permissions of a new queue, and its attributes, if it has chosen some.
    pub permissions: u16,
    pub attributes: Option<Attributes>,
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
    let Opening { name, flags, .. } = *opening;
    let creates = flags & open::CREAT != 0;
    match find(name, flags) {
        Ok(queue) => {
            let permitted = rights::permits(subject, queue.ownership, wanted(access));
            return if permitted { Ok((QueueFile(queue), false)) } else { Err(Errno::EACCES) };
        }
        Err(Errno::ENOENT) if creates => {}
        Err(error) => return Err(error),
    }
    let queue = Arc::new(Queue::new(caller.account(), subject, opening)?);
    let mut kept = Vec::new();
    kept.try_reserve_exact(name.len()).map_err(|_| Errno::ENOMEM)?;
    kept.extend_from_slice(name);
    let mut names = NAMES.lock();
    if names.iter().any(|(known, _)| known == name) {
        // Another process was faster.
        drop(names);
        return find_or_make(caller, access, opening);
    }
    if names.len() == number::MOST_QUEUES {
        return Err(Errno::ENOSPC);
    }
    names.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    names.push((kept, queue.clone()));
    Ok((QueueFile(queue), true))
}

fn find(name: &[u8], flags: u32) -> Result<Arc<Queue>, Errno> {
    let names = NAMES.lock();
    let (_, queue) = names.iter().find(|(known, _)| known == name).ok_or(Errno::ENOENT)?;
    if flags & open::CREAT != 0 && flags & open::EXCL != 0 { Err(Errno::EEXIST) } else { Ok(queue.clone()) }
}

/// Performs `mq_unlink`. `EPERM` for a user that does not own the queue.
pub(crate) fn unlink(caller: &dyn Caller, name: &[u8]) -> Result<(), Errno> {
    let whom = caller.whom();
    let removed = {
        let mut names = NAMES.lock();
        let at = names.iter().position(|(known, _)| known == name).ok_or(Errno::ENOENT)?;
        rights::permit_owner(identity::subject(&whom), names[at].1.ownership).map_err(|_| Errno::EPERM)?;
        names.swap_remove(at)
    };
    // Its messages are freed without the lock.
    drop(removed);
    Ok(())
}

impl Queue {
    fn new(account: &Arc<Account>, subject: Option<&Subject>, opening: &Opening<'_>) -> Result<Queue, Errno> {
        let (most, size) = match opening.attributes {
            None => (number::DEFAULT_MESSAGES, number::DEFAULT_SIZE),
            Some(Attributes { most, size, .. }) => {
                let within = |value: i64, limit: usize| usize::try_from(value).ok().filter(|n| (1..=limit).contains(n));
                let most = within(most, number::MOST_MESSAGES).ok_or(Errno::EINVAL)?;
                (most, within(size, number::LARGEST_MESSAGE).ok_or(Errno::EINVAL)?)
            }
        };
        let charge = account.charge(Resource::Files, BYTES + most * (size + size_of::<Message>() + 32))?;
        let mut messages = VecDeque::new();
        messages.try_reserve_exact(most).map_err(|_| Errno::ENOMEM)?;
        let state =
            QueueState { messages, receivers: Waiters::new(), senders: Waiters::new(), waiting: 0, notice: None };
        let (user, group) = subject.map_or((0, 0), |subject| (subject.user, subject.group));
        let ownership = Ownership { user, group, permissions: opening.permissions };
        Ok(Queue { ownership, most, size, state: Mutex::new(state), _charge: charge })
    }
}

impl QueueFile {
    /// Performs `mq_notify`: tells a process of the next message to the empty queue, or this one no more. `EBUSY` if
    /// one is told already.
    pub(crate) fn notify(&self, caller: (u32, u64), notice: Option<Notice>) -> Result<(), Errno> {
        let mut state = self.0.state.lock();
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
        let notice = self.0.state.lock().notice;
        if let Some(notice) = notice
            && !lives(notice)
        {
            let mut state = self.0.state.lock();
            if state.notice == Some(notice) {
                state.notice = None;
            }
        }
    }

    /// Returns the attributes, with the flags of its open file.
    pub(crate) fn attributes(&self, is_non_blocking: bool) -> Attributes {
        let flags = if is_non_blocking { open::NONBLOCK.into() } else { 0 };
        let present = self.0.state.lock().messages.len() as i64;
        Attributes { flags, most: self.0.most as i64, size: self.0.size as i64, present }
    }
}

impl FileOperations for QueueFile {
    fn status(&self) -> Status {
        let Ownership { user, group, permissions } = self.0.ownership;
        Status { mode: mode::REGULAR | u32::from(permissions), user, group, ..status_of_anonymous() }
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut state = self.0.state.lock();
        if let Some(waker) = waker {
            state.receivers.register(waker).map_err(|_| Errno::ENOMEM)?;
            state.senders.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        let input = if state.messages.is_empty() { 0 } else { event::IN | event::RDNORM };
        let output = if state.messages.len() < self.0.most { event::OUT | event::WRNORM } else { 0 };
        Ok(input | output)
    }

    fn forget_reader(&self, waker: &Waker) {
        self.0.state.lock().receivers.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        self.0.state.lock().senders.forget(waker);
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
        let queue = file.as_kind::<QueueFile>().ok_or(Errno::EBADF)?.0.clone();
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
