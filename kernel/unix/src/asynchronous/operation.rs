//! Calls that may have to wait, as values.
//!
//! Decoding a call's arguments gives an [`Operation`]. It is first [`attempt`](Operation::attempt)ed in place: most
//! calls are ready, and then nothing was created and nothing registered. Otherwise it is awaited: a synchronous call by
//! the worker's own coroutine, an asynchronous one by the process's completer ([`input`]) if it waits for input of a
//! pipe or a socket, and by a fresh kernel coroutine otherwise. The value and the code are the same.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::Future;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use ::signals::{Details, Information, Signal};
use abi_unix::types::{self, SocketAddress};
use abi_unix::{Counter, Errno, SystemCall};
use hal_api::Machine as _;
use platform::Machine;

use crate::asynchronous::batch::MessageBatch;
use crate::asynchronous::input;
use crate::asynchronous::limited::LimitedWait;
use crate::asynchronous::messages::{MessageToReceive, MessageToSend, must_not_wait};
use crate::asynchronous::relay::Relay;
use crate::asynchronous::splice::Splice;
use crate::asynchronous::submission::{Submission, Submitted};
use crate::files::carriers::LookAround;
use crate::files::descriptor;
use crate::files::disk::Synchronisation;
use crate::files::disk_file::DiskFile;
use crate::files::epoll::{EpollWait, PollFiles};
use crate::files::fifo::Opening;
use crate::files::file::{OpenFile, move_at_place};
use crate::files::local_socket::connecting::LocalConnect;
use crate::files::locks::LockWait;
use crate::files::message_queue::QueueTransfer;
use crate::files::owners::Awaited;
use crate::files::semaphores::SemaphoreWait;
use crate::observing::counters;
use crate::process::exit_status;
use crate::process::futex::FutexWait;
use crate::process::futex_list::FutexList;
use crate::process::owned_lock::LockRequest;
use crate::process::signals::{Interruption, Restart};
use crate::process::table::Children;
use crate::process::user::{AddressOut, Buffers, Caller, UserBuffer};
use crate::process::worker::Worker;
use crate::process::{CallOwner, Process, table};
use crate::random;
use crate::scheduling::executor::{self, SpawnError};
use crate::scheduling::steps::{self, Long};
use crate::scheduling::stretch;
use crate::time::{self, Alarm};

/// The form in which a wait for a child tells about it, with the address; 0 for none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChildAnswer {
    /// A word of status, with the child's number as result.
    Status(usize),
    /// A `siginfo_t`.
    Information(usize),
}

/// Option of a wait for a child beside those of `waitid`: through a descriptor that does not wait.
pub(crate) const MUST_NOT_WAIT: u32 = 1 << 16;

impl ChildAnswer {
    /// Writes number and status of a child, or that there is none; returns the result of the call.
    fn write(self, process: &Process, child: Option<(u32, u32)>) -> Result<usize, Errno> {
        match (self, child) {
            (ChildAnswer::Status(_), None) => Ok(0),
            (ChildAnswer::Status(address), Some((id, status))) => {
                if address != 0 {
                    process.copy_out(address, &status.to_le_bytes())?;
                }
                Ok(id as usize)
            }
            (ChildAnswer::Information(0), _) => Ok(0),
            (ChildAnswer::Information(address), child) => {
                let bytes = child.map_or([0; Information::SIZE], |(id, status)| {
                    let (code, status) = exit_status::code_and_status(status);
                    let details = Details::Child { process: id, user: 0, status };
                    Information { signal: Signal::CHLD, code, details }.to_bytes()
                });
                process.copy_out(address, &bytes).map(|()| 0)
            }
        }
    }
}

/// A transfer of several buffers from or to a place in a file (`preadv`, `pwritev`).
pub(crate) struct VectorAtPlace {
    /// The file.
    pub(crate) file: Arc<OpenFile>,
    /// The bytes.
    pub(crate) buffers: Buffers,
    /// The place.
    pub(crate) offset: u64,
    /// Bytes that were moved.
    pub(crate) done: usize,
    /// To the file.
    pub(crate) writes: bool,
}

impl VectorAtPlace {
    fn poll(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        let VectorAtPlace { file, buffers, offset, done, writes } = self;
        move_at_place(caller, buffers, *offset, done, waker, |rest, at| match *writes {
            true => file.object().poll_write_at(caller, rest, at, waker),
            false => file.object().poll_read_at(caller, rest, at, waker),
        })
    }
}

/// A call that may have to wait, decoded and checked.
#[doc(alias = "io_kiocb")]
#[doc(alias = "io_op_def")]
#[allow(missing_docs)]
pub(crate) enum Operation {
    /// Read from a file into buffers, in order; done as soon as something was read. A stored file is read to the end of
    /// the buffers or of the file.
    Read { file: Arc<OpenFile>, buffers: Buffers, done: usize },
    /// Write buffers to a file, in order; done when all was written.
    Write { file: Arc<OpenFile>, buffers: Buffers, written: usize },
    /// Read from a place in a stored file.
    ReadAt { file: Arc<OpenFile>, buffer: UserBuffer, offset: u64, done: usize },
    /// Write to a place in a stored file.
    WriteAt { file: Arc<OpenFile>, buffer: UserBuffer, offset: u64, done: usize },
    /// Read or write several buffers at a place. Boxed: each call, however short, pays for a larger operation.
    VectorAt(Box<VectorAtPlace>),
    /// Move bytes from one file to another.
    Relay(Box<Relay>),
    /// Move bytes from a pipe, or to one.
    Splice(Box<Splice>),
    /// Take a connection of a listening socket.
    Accept { file: Arc<OpenFile>, address: Option<AddressOut>, flags: u32 },
    /// Connect a socket.
    Connect { file: Arc<OpenFile>, address: SocketAddr, started: bool },
    /// Connect a local socket.
    ConnectLocal(Box<LocalConnect>),
    /// Send through a socket.
    Send { file: Arc<OpenFile>, buffer: UserBuffer, flags: u32, address: Option<SocketAddress>, sent: usize },
    /// Receive from a socket.
    Receive { file: Arc<OpenFile>, buffer: UserBuffer, flags: u32, address: Option<AddressOut> },
    /// Send a message of several buffers.
    SendMessage(Box<MessageToSend>),
    /// Receive a message into several buffers.
    ReceiveMessage(Box<MessageToReceive>),
    /// Send or receive several messages.
    Messages(Box<MessageBatch>),
    /// Control a device.
    Control { file: Arc<OpenFile>, command: u32, argument: usize },
    /// Sleep until a tick.
    Sleep { deadline: u64, alarm: Option<Alarm> },
    /// Wait for a child.
    WaitChild { parent: u32, which: Children, answer: ChildAnswer, options: u32, usage: usize },
    /// Lock a file.
    Lock(Box<LockWait>),
    /// Open a FIFO, or a file at the end of a long path.
    Open(Box<Opening>),
    /// Wait at a futex.
    Futex(Box<FutexWait>),
    /// Wait at several futexes.
    FutexList(Box<FutexList>),
    /// Wait for a lock with an owner.
    OwnedLock(Box<LockRequest>),
    /// Change semaphores.
    Semaphores(Box<SemaphoreWait>),
    /// Send a message to a queue, or receive one.
    Queue(Box<QueueTransfer>),
    /// Fill a buffer with random bytes, step by step.
    Random { buffer: UserBuffer, flags: u32, done: usize },
    /// Wait for the descriptors of an epoll.
    Epoll(Box<EpollWait>),
    /// Wait for one of a list of descriptors.
    PollFiles(Box<PollFiles>),
    /// Wait until disks have made lasting what was written; for an open file, which reports failures.
    Synchronise { file: Option<Arc<OpenFile>>, wait: Box<Synchronisation> },
    /// Go on in steps, and wait for nothing.
    Long(SystemCall, Long),
    /// Wait at a socket for a limited time.
    Limited(Box<LimitedWait>),
}

// Every call moves one a few times, and up to this size registers do that. Rare, larger variants are boxed.
const _: () = assert!(size_of::<Operation>() <= 64);

/// Each call moves it: an empty one took 29 instructions more when it was larger.
const _: () = assert!(size_of::<Operation>() <= 56);

impl Operation {
    /// Stands for an operation that was taken out; holds nothing.
    pub(crate) const NOTHING: Operation = Operation::Sleep { deadline: 0, alarm: None };

    /// Drops everything that it holds: before the completion is posted, whose reader may rely on this.
    pub(crate) fn let_go(&mut self) {
        *self = Operation::NOTHING;
    }

    /// Records the user of a socket, although the call does not wait.
    #[cold]
    pub(crate) fn note_caller(&self, process: &Process) {
        match self {
            Operation::Write { file, .. } | Operation::Send { file, .. } | Operation::Connect { file, .. } => {
                file.is_filled_by(process);
            }
            _ => {
                if let Some(file) = self.waits_for_input_of() {
                    file.object().is_asked_by(process);
                }
            }
        }
    }

    /// Does the call if it can be done now. `EAGAIN` instead of waiting if the file does not wait.
    pub(crate) fn attempt(&mut self, process: &Arc<Process>) -> Poll<Result<usize, Errno>> {
        match self.poll(process, None) {
            Poll::Pending if self.is_impatient() => self.attempt_impatiently(process),
            other => other,
        }
    }

    /// Gives a call up that must not wait, or gives it the time limit that it has. `ENOMEM` if there is no memory for
    /// that.
    #[cold]
    #[inline(never)]
    fn attempt_impatiently(&mut self, process: &Arc<Process>) -> Poll<Result<usize, Errno>> {
        if self.must_not_wait() {
            if self.may_have_stopped() && process.account.admit().is_ok() {
                let operation = core::mem::replace(self, Operation::NOTHING);
                *self = Operation::Limited(Box::new(LimitedWait::going_on(operation)));
                return Poll::Pending;
            }
            self.note_caller(process);
            return Poll::Ready(self.give_up(Errno::EAGAIN));
        }
        let limit = self.limited_at().map_or(0, |(file, awaited)| file.time_limit_ms(awaited));
        if limit != 0 {
            if let Err(error) = process.account.admit() {
                return Poll::Ready(self.give_up(error));
            }
            let operation = core::mem::replace(self, Operation::NOTHING);
            *self = Operation::Limited(Box::new(LimitedWait::new(operation, limit)));
        }
        Poll::Pending
    }

    /// Returns whether the call has sent something and may have stopped for an interrupt, not for a lack of room.
    fn may_have_stopped(&self) -> bool {
        let has_begun =
            matches!(self, Operation::Write { written: sent, .. } | Operation::Send { sent, .. } if *sent > 0);
        has_begun && steps::has_interrupts()
    }

    /// Returns the file that may limit the time of the call, and what the call waits for.
    fn limited_at(&self) -> Option<(&OpenFile, Awaited)> {
        match self {
            Operation::Read { file, .. } | Operation::Receive { file, .. } | Operation::Accept { file, .. } => {
                Some((file, Awaited::Input))
            }
            Operation::Write { file, .. } | Operation::Send { file, .. } | Operation::Connect { file, .. } => {
                Some((file, Awaited::Room))
            }
            Operation::ReceiveMessage(receiving) => Some((receiving.file(), Awaited::Input)),
            Operation::SendMessage(sending) => Some((sending.file(), Awaited::Room)),
            Operation::Messages(batch) => Some(match batch.call() {
                SystemCall::SendMessages => (batch.file(), Awaited::Room),
                _ => (batch.file(), Awaited::Input),
            }),
            Operation::ConnectLocal(connect) => Some((connect.file(), Awaited::Room)),
            _ => None,
        }
    }

    /// Tries the call: does it, or registers `waker` with the object that it waits for.
    pub(crate) fn poll(&mut self, process: &Arc<Process>, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        let caller: &Process = process;
        match self {
            Operation::Read { file, buffers, done } => file.read(caller, buffers, done, waker),
            Operation::Write { file, buffers, written } => file.write(caller, buffers, written, waker),
            _ => self.poll_rarer(process, waker),
        }
    }

    /// Tries a call that is neither `read` nor `write`: those do without the registers that all others together save.
    #[inline(never)]
    fn poll_rarer(&mut self, process: &Arc<Process>, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        let caller: &Process = process;
        match self {
            Operation::Read { .. } | Operation::Write { .. } => unreachable!("poll() does them"),
            Operation::ReadAt { file, buffer, offset, done } => {
                move_at_place(caller, &[*buffer], *offset, done, waker, |rest, at| {
                    file.object().poll_read_at(caller, rest, at, waker)
                })
            }
            Operation::WriteAt { file, buffer, offset, done } => {
                move_at_place(caller, &[*buffer], *offset, done, waker, |rest, at| {
                    file.object().poll_write_at(caller, rest, at, waker)
                })
            }
            Operation::VectorAt(transfer) => transfer.poll(caller, waker),
            Operation::Relay(relay) => relay.poll(caller, waker),
            Operation::Splice(splice) => splice.poll(caller, waker),
            Operation::Accept { file, address, flags } => {
                descriptor::accept(&process.descriptors, caller, file, *address, *flags, waker)
            }
            Operation::Connect { file, address, started } => file.connect(caller, *address, started, waker),
            Operation::ConnectLocal(connect) => connect.poll(caller, waker),
            Operation::Send { file, buffer, flags, address, sent } => {
                file.send(caller, *buffer, *flags, *address, sent, waker)
            }
            Operation::Receive { file, buffer, flags, address } => {
                file.receive(caller, *buffer, *flags, *address, waker)
            }
            Operation::SendMessage(sending) => sending.poll(caller, waker),
            Operation::ReceiveMessage(receiving) => receiving.poll(caller, &process.descriptors, waker),
            Operation::Messages(batch) => batch.poll(process, waker),
            Operation::Control { file, command, argument } => file.object().control(caller, *command, *argument, waker),
            Operation::Sleep { deadline, alarm } => {
                if Machine::now() >= *deadline {
                    return Poll::Ready(Ok(0));
                }
                if let (Some(waker), None) = (waker, &alarm) {
                    *alarm = Some(time::set(*deadline, waker)?);
                }
                Poll::Pending
            }
            Operation::WaitChild { which, answer, options, usage, .. } => {
                match process.poll_child(*which, *options, waker) {
                    Poll::Ready(Ok((id, status, time))) => {
                        if *usage != 0 {
                            process.copy_out(*usage, &types::usage::of_time(time.ns()))?;
                        }
                        Poll::Ready(answer.write(process, Some((id, status))))
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Pending if *options & types::WNOHANG != 0 => Poll::Ready(answer.write(process, None)),
                    Poll::Pending => Poll::Pending,
                }
            }
            Operation::Random { buffer, flags, done } => random::fill(caller, *buffer, *flags, done, waker),
            Operation::Lock(wait) => wait.poll(caller, &process.descriptors, waker),
            Operation::Open(opening) => opening.poll(&process.descriptors, waker),
            Operation::Futex(wait) => wait.poll(process.space(), waker),
            Operation::FutexList(list) => list.poll(caller, process.space(), waker),
            Operation::OwnedLock(request) => request.poll(process.space(), waker),
            Operation::Semaphores(wait) => wait.poll(caller, &process.debts, waker),
            Operation::Queue(transfer) => transfer.poll(caller, waker, |notice| process.tell_of_message(notice)),
            Operation::Epoll(wait) => wait.poll(caller, waker),
            Operation::PollFiles(wait) => wait.poll(caller, &process.descriptors, waker),
            Operation::Synchronise { file, wait } => match wait.poll(waker) {
                Poll::Ready(Ok(())) => {
                    let file = file.as_ref().and_then(|file| file.as_kind::<DiskFile>());
                    Poll::Ready(file.map_or(Ok(0), DiskFile::report_failures))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            },
            Operation::Long(_, work) => {
                let mut cx = Context::from_waker(waker.unwrap_or(steps::IN_PLACE));
                process.standing.kernel.measure(|| work.as_mut().poll(&mut cx))
            }
            Operation::Limited(wait) => wait.poll(process, waker),
        }
    }

    /// Returns the call that it is, as far as the measurement of stretches tells calls apart.
    pub(crate) fn call(&self) -> SystemCall {
        match self {
            Operation::Read { .. } => SystemCall::Read,
            Operation::Write { .. } => SystemCall::Write,
            Operation::ReadAt { .. } => SystemCall::ReadAt,
            Operation::WriteAt { .. } => SystemCall::WriteAt,
            Operation::VectorAt(transfer) if transfer.writes => SystemCall::WriteVectorAt,
            Operation::VectorAt(_) => SystemCall::ReadVectorAt,
            Operation::Relay(relay) => relay.call(),
            Operation::Splice(splice) => splice.call(),
            Operation::Accept { .. } => SystemCall::Accept,
            Operation::Connect { .. } | Operation::ConnectLocal(_) => SystemCall::Connect,
            Operation::Send { .. } => SystemCall::SendTo,
            Operation::Receive { .. } => SystemCall::ReceiveFrom,
            Operation::SendMessage(_) => SystemCall::SendMessage,
            Operation::ReceiveMessage(_) => SystemCall::ReceiveMessage,
            Operation::Messages(batch) => batch.call(),
            Operation::Control { .. } => SystemCall::DeviceControl,
            Operation::Sleep { .. } => SystemCall::Sleep,
            Operation::WaitChild { .. } => SystemCall::Wait,
            Operation::Lock(_) => SystemCall::Lock,
            Operation::Open(_) => SystemCall::Open,
            Operation::Futex(_) | Operation::OwnedLock(_) => SystemCall::Futex,
            Operation::FutexList(_) => SystemCall::FutexWaits,
            Operation::Semaphores(_) => SystemCall::SemaphoreOperate,
            Operation::Queue(transfer) if transfer.sends() => SystemCall::QueueSend,
            Operation::Queue(_) => SystemCall::QueueReceive,
            Operation::Epoll(_) => SystemCall::EpollWait,
            Operation::PollFiles(_) => SystemCall::Poll,
            Operation::Random { .. } => SystemCall::GetRandom,
            Operation::Synchronise { wait, .. } => wait.call(),
            Operation::Long(call, _) => *call,
            Operation::Limited(wait) => wait.operation().call(),
        }
    }

    /// Returns whether it goes on when it is cancelled, or when there is no room for it in flight: work that has begun,
    /// and waits for nothing.
    pub(crate) fn must_be_completed(&self) -> bool {
        match self {
            Operation::Long(..) => true,
            Operation::Open(opening) => !opening.waits(),
            Operation::ConnectLocal(connect) => !connect.waits(),
            Operation::ReceiveMessage(receiving) => receiving.must_be_completed(),
            Operation::Messages(batch) => batch.must_be_completed(),
            Operation::Limited(wait) => wait.operation().must_be_completed(),
            _ => false,
        }
    }

    /// Returns whether it may not wait for any time, as far as its file says so.
    #[inline]
    fn is_impatient(&self) -> bool {
        match self {
            Operation::Read { file, .. } | Operation::Write { file, .. } => file.is_impatient() && !file.never_waits(),
            Operation::Accept { file, .. } | Operation::Connect { file, .. } => file.is_impatient(),
            Operation::Send { file, flags, .. } | Operation::Receive { file, flags, .. } => {
                file.is_impatient() || must_not_wait(file, *flags)
            }
            _ => self.must_not_wait() || self.limited_at().is_some_and(|(file, _)| file.is_impatient()),
        }
    }

    fn must_not_wait(&self) -> bool {
        match self {
            // A kind that never waits goes on in steps.
            Operation::Read { file, .. } | Operation::Write { file, .. } => {
                file.is_non_blocking() && !file.never_waits()
            }
            Operation::Accept { file, .. } | Operation::Connect { file, .. } => file.is_non_blocking(),
            Operation::Send { file, flags, .. } | Operation::Receive { file, flags, .. } => must_not_wait(file, *flags),
            // A call that has begun needs its next step, which is no wait.
            Operation::Random { flags, done, .. } => *done == 0 && !random::may_wait(*flags),
            Operation::ReadAt { .. } | Operation::WriteAt { .. } | Operation::VectorAt(_) | Operation::Long(..) => {
                false
            }
            Operation::Synchronise { .. } | Operation::Control { .. } | Operation::Sleep { .. } => false,
            Operation::WaitChild { options, .. } => *options & MUST_NOT_WAIT != 0,
            // A time limit of 0 has passed.
            Operation::Futex(_) | Operation::FutexList(_) | Operation::Epoll(_) | Operation::PollFiles(_) => false,
            // They answer themselves.
            Operation::OwnedLock(_) | Operation::Semaphores(_) | Operation::Queue(_) => false,
            Operation::Relay(_) | Operation::Splice(_) | Operation::Lock(_) | Operation::Open(_) => false,
            Operation::ConnectLocal(_) | Operation::Limited(_) => false,
            Operation::SendMessage(_) | Operation::ReceiveMessage(_) | Operation::Messages(_) => false,
        }
    }

    /// Returns the result of a call that stops before it is complete: the number of bytes moved so far, or else the
    /// reason.
    pub(crate) fn give_up(&self, reason: Errno) -> Result<usize, Errno> {
        match self {
            Operation::Read { done, .. }
            | Operation::ReadAt { done, .. }
            | Operation::WriteAt { done, .. }
            | Operation::Write { written: done, .. }
            | Operation::Send { sent: done, .. }
            | Operation::Random { done, .. }
                if *done > 0 =>
            {
                Ok(*done)
            }
            Operation::VectorAt(transfer) if transfer.done > 0 => Ok(transfer.done),
            Operation::Relay(relay) if relay.done() > 0 => Ok(relay.done()),
            Operation::Splice(splice) if splice.done() > 0 => Ok(splice.done()),
            Operation::SendMessage(sending) if sending.sent() > 0 => Ok(sending.sent()),
            Operation::ReceiveMessage(receiving) if receiving.received() > 0 => Ok(receiving.received()),
            Operation::Messages(batch) if batch.done() > 0 => Ok(batch.done()),
            Operation::Connect { started: true, .. } if reason == Errno::EAGAIN => Err(Errno::EINPROGRESS),
            // The waking thread counts on this wake-up.
            Operation::Futex(wait) if wait.was_woken_before_its_end() => Ok(0),
            Operation::OwnedLock(request) if request.was_granted_before_its_end() => Ok(0),
            Operation::FutexList(list) => list.woken_before_its_end().ok_or(reason),
            Operation::Limited(wait) => wait.operation().give_up(reason),
            _ => Err(reason),
        }
    }

    /// Returns whether a waker may still be registered when the operation is done: with deadlines, and with lists
    /// shared by many.
    fn registers_in_two_places(&self) -> bool {
        matches!(
            self,
            Operation::Sleep { .. }
                | Operation::WaitChild { .. }
                | Operation::Lock(_)
                // The next message may be done before the waker of this one was taken out.
                | Operation::Messages(_)
                | Operation::Futex(_)
                | Operation::FutexList(_)
                | Operation::OwnedLock(_)
                | Operation::Semaphores(_)
                | Operation::Queue(_)
                | Operation::Epoll(_)
                | Operation::PollFiles(_)
                | Operation::Synchronise { .. }
                | Operation::Limited(_)
        )
    }

    /// Returns the pipe or socket for whose input it waits.
    pub(crate) fn waits_for_input_of(&self) -> Option<&Arc<OpenFile>> {
        match self {
            Operation::Read { file, .. } | Operation::Receive { file, .. } | Operation::Accept { file, .. } => {
                if file.waits_for_input() { Some(file) } else { None }
            }
            _ => None,
        }
    }

    /// Returns whether a signal can interrupt it: whether it waits, and not only goes on in steps.
    pub(crate) fn can_be_interrupted(&self) -> bool {
        match self {
            Operation::Read { file, .. } | Operation::Write { file, .. } => !file.never_waits(),
            Operation::ReadAt { .. } | Operation::WriteAt { .. } | Operation::VectorAt(_) | Operation::Long(..) => {
                false
            }
            // As transfers of a disk.
            Operation::Synchronise { .. } => false,
            Operation::ReceiveMessage(receiving) => !receiving.must_be_completed(),
            Operation::Messages(batch) => !batch.must_be_completed(),
            Operation::Open(opening) => opening.waits(),
            Operation::ConnectLocal(connect) => connect.waits(),
            Operation::Relay(relay) => !relay.output().never_waits(),
            Operation::Splice(splice) => !splice.holds(),
            Operation::Limited(wait) => wait.operation().can_be_interrupted(),
            _ => true,
        }
    }

    /// Returns what becomes of the call when a handler has interrupted it (signal(7), "Interruption of system calls").
    pub(crate) fn restart(&self) -> Restart {
        match self {
            Operation::Sleep { deadline, .. } => Restart::Sleep { deadline: *deadline },
            Operation::Epoll(_) | Operation::PollFiles(_) => Restart::Never,
            Operation::Futex(wait) if wait.has_limit() => Restart::Never,
            // As on Linux, with and without a time limit.
            Operation::Semaphores(_) => Restart::Never,
            // Its time limit is absolute.
            Operation::OwnedLock(_) => Restart::Always,
            // Made again it would find the connection begun, or have its time anew.
            Operation::Connect { .. } | Operation::Limited(_) => Restart::Never,
            _ => Restart::ByFlag,
        }
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&mut self, waker: &Waker) {
        match self {
            Operation::Read { file, .. }
            | Operation::ReadAt { file, .. }
            | Operation::Receive { file, .. }
            | Operation::Accept { file, .. } => file.object().forget_reader(waker),
            Operation::Write { file, .. }
            | Operation::WriteAt { file, .. }
            | Operation::Send { file, .. }
            | Operation::Connect { file, .. }
            | Operation::Control { file, .. } => file.object().forget_writer(waker),
            Operation::VectorAt(transfer) if transfer.writes => transfer.file.object().forget_writer(waker),
            Operation::VectorAt(transfer) => transfer.file.object().forget_reader(waker),
            Operation::Relay(relay) => relay.forget(waker),
            Operation::Splice(splice) => splice.forget(waker),
            Operation::SendMessage(sending) => sending.forget(waker),
            Operation::ConnectLocal(connect) => connect.forget(waker),
            Operation::ReceiveMessage(receiving) => receiving.file().object().forget_reader(waker),
            Operation::Messages(batch) => batch.forget(waker),
            Operation::Sleep { alarm, .. } => {
                if let Some(alarm) = alarm.take() {
                    time::clear(alarm);
                }
            }
            Operation::WaitChild { parent, .. } => table::forget_child_waiter(*parent, waker),
            Operation::Random { .. } => random::forget(waker),
            Operation::Lock(wait) => wait.forget(waker),
            Operation::Open(opening) => opening.forget(waker),
            Operation::Futex(wait) => wait.forget(),
            Operation::FutexList(list) => list.forget(),
            Operation::OwnedLock(request) => request.forget(),
            Operation::Semaphores(wait) => wait.forget(waker),
            Operation::Queue(transfer) => transfer.forget(waker),
            Operation::Epoll(wait) => wait.forget(waker),
            Operation::PollFiles(wait) => wait.forget(waker),
            Operation::Synchronise { wait, .. } => wait.forget(waker),
            Operation::Long(..) => {}
            Operation::Limited(wait) => wait.forget(waker),
        }
    }

    /// Waits in a worker's own coroutine until the call is done, or until `look`, which is called at each turn, says
    /// that the wait is over, which gives `EINTR` (or the number of bytes moved so far).
    ///
    /// # Cancellation
    /// Dropping it takes all registrations back. Bytes that were written or sent before stay so.
    pub(crate) fn wait<'a, F: Fn(&Operation, &Waker) -> Interruption + Unpin>(
        self,
        worker: &'a Worker,
        look: F,
    ) -> Wait<'a, F> {
        Wait { waiting: Waiting::new(self), worker, alarm: None, look }
    }
}

/// An operation and the registration that it has made, which is taken back with it.
struct Waiting {
    operation: Operation,
    registered: Option<Waker>,
    /// Dropped after the operation, which may have held a local socket.
    look: Option<LookAround>,
}

impl Waiting {
    fn new(operation: Operation) -> Waiting {
        Waiting { operation, registered: None, look: Some(LookAround) }
    }

    fn poll(&mut self, process: &Arc<Process>, waker: &Waker) -> Poll<Result<usize, Errno>> {
        let result = self.operation.poll(process, Some(waker));
        match result {
            // It may have registered in some of several places before memory for another was missing.
            Poll::Pending | Poll::Ready(Err(Errno::ENOMEM)) if self.registered.is_none() => {
                self.registered = Some(waker.clone());
            }
            // The wake-up that made it ready has taken the waker out, and with it the registration.
            Poll::Ready(_) if !self.operation.registers_in_two_places() => self.registered = None,
            _ => {}
        }
        result
    }
}

impl Waiting {
    fn leave_lists(&mut self) {
        if let Some(waker) = self.registered.take() {
            self.operation.forget(&waker);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.leave_lists();
    }
}

/// The future of [`Operation::wait`].
///
/// A wait needs no memory that others could have taken. Sleeping uses the worker's reserved deadline. A place in a list
/// of waiters is free for the first waiter; if there is no memory for a further one, the worker looks again after
/// [`BETWEEN_LOOKS_NS`], by that same deadline, and tries to get a place each time.
#[doc(alias = "wait_event")]
#[doc(alias = "prepare_to_wait")]
pub(crate) struct Wait<'a, F: Fn(&Operation, &Waker) -> Interruption + Unpin> {
    waiting: Waiting,
    worker: &'a Worker,
    alarm: Option<Alarm>,
    look: F,
}

/// Time between two looks of a worker for which there is no memory to register.
const BETWEEN_LOOKS_NS: u64 = 1_000_000;

impl<F: Fn(&Operation, &Waker) -> Interruption + Unpin> Wait<'_, F> {
    fn set_alarm(&mut self, ticks: u64, waker: &Waker) {
        self.clear_alarm();
        self.alarm = Some(self.worker.deadline().set(ticks, waker));
    }

    fn clear_alarm(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            time::clear(alarm);
        }
    }

    #[inline(always)]
    fn poll_operation(&mut self, waker: &Waker) -> Poll<Result<usize, Errno>> {
        if let Operation::Sleep { deadline, .. } = self.waiting.operation {
            if Machine::now() >= deadline {
                return Poll::Ready(Ok(0));
            }
            if self.alarm.is_none() {
                // Here alone: a coroutine that sleeps asks for the time that it means.
                let slack = time::ticks_at_ns(self.worker.timer_slack_ns());
                self.set_alarm(deadline.saturating_add(slack), waker);
            }
            return Poll::Pending;
        }
        if let Operation::Long(..) = self.waiting.operation {
            let worker = self.worker;
            return worker.measure_too(|| self.poll_registered(waker));
        }
        self.poll_registered(waker)
    }

    #[inline(always)]
    fn poll_registered(&mut self, waker: &Waker) -> Poll<Result<usize, Errno>> {
        match self.waiting.poll(&self.worker.process, waker) {
            // Either the call fails so, or it could not be registered with the object that it waits for: without a
            // waker only the call itself can fail.
            Poll::Ready(Err(Errno::ENOMEM)) if !self.waiting.operation.must_be_completed() => {
                let tried = self.waiting.operation.poll(&self.worker.process, None);
                if tried.is_pending() {
                    let soon = Machine::now() + time::ticks_at_ns(BETWEEN_LOOKS_NS);
                    self.set_alarm(soon, waker);
                }
                tried
            }
            other => other,
        }
    }
}

impl<F: Fn(&Operation, &Waker) -> Interruption + Unpin> Drop for Wait<'_, F> {
    fn drop(&mut self) {
        self.clear_alarm();
    }
}

impl<F: Fn(&Operation, &Waker) -> Interruption + Unpin> Future for Wait<'_, F> {
    type Output = Result<usize, Errno>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        stretch::goes_on_with(this.waiting.operation.call());
        let is_interrupted = match (this.look)(&this.waiting.operation, cx.waker()) {
            Interruption::GoOn => false,
            Interruption::Handler => true,
            Interruption::Hold => return Poll::Pending,
            Interruption::Leave => return Poll::Ready(this.waiting.operation.give_up(Errno::EINTR)),
        };
        let polled = this.poll_operation(cx.waker());
        // An event that has come goes before the handler, and so does a message that was taken.
        if is_interrupted && polled.is_pending() && !this.waiting.operation.must_be_completed() {
            return Poll::Ready(this.waiting.operation.give_up(Errno::EINTR));
        }
        polled
    }
}

/// The kernel coroutine of an asynchronous call that waits for something else than input: waits, then posts the
/// completion.
///
/// Written by hand because its size is the cost of a blocked call.
struct AsynchronousCall {
    waiting: Waiting,
    process: Arc<Process>,
    call: Submitted,
}

fn is_cancelled_batch(call: &AsynchronousCall) -> bool {
    let operation = &call.waiting.operation;
    matches!(operation, Operation::Messages(_)) && call.call.is_given_up(&call.process, operation)
}

/// Bytes of kernel memory for a call in flight, at most: its coroutine or object, and its entries in tables and lists.
pub(crate) const MEMORY_OF_A_CALL: usize = {
    let (coroutine, object) = (size_of::<AsynchronousCall>(), size_of::<input::InputCall>());
    if coroutine > object { coroutine + 256 } else { object + 256 }
};

impl Future for AsynchronousCall {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        stretch::goes_on_with(this.waiting.operation.call());
        let result = if this.call.is_given_up(&this.process, &this.waiting.operation) {
            this.waiting.operation.give_up(Errno::ECANCELED)
        } else {
            // Other processes may have used memory up since it was submitted.
            let enters_tables = matches!(
                this.waiting.operation,
                Operation::Futex(_) | Operation::FutexList(_) | Operation::PollFiles(_)
            );
            let is_entering = enters_tables && this.waiting.registered.is_none();
            let admitted = if is_entering { this.process.account.admit() } else { Ok(()) };
            match admitted
                .map_or_else(|error| Poll::Ready(Err(error)), |()| this.waiting.poll(&this.process, cx.waker()))
            {
                // Bytes that were moved before memory for waiting ran out are the result.
                Poll::Ready(Err(Errno::ENOMEM)) => this.waiting.operation.give_up(Errno::ENOMEM),
                Poll::Ready(result) => result,
                // The message that had to be completed was, and another is awaited.
                Poll::Pending if is_cancelled_batch(this) => this.waiting.operation.give_up(Errno::ECANCELED),
                Poll::Pending => {
                    // It may have been boosted because it had been ready for long, for this time only.
                    let priority = this.process.standing.worth(this.call.priority());
                    if executor::current_priority() != priority {
                        executor::set_priority(executor::current(), priority);
                    }
                    return Poll::Pending;
                }
            }
        };
        this.waiting.leave_lists();
        this.call.complete(&this.process, &mut this.waiting.operation, result);
        Poll::Ready(())
    }
}

/// Goes on with an asynchronous call that has just been attempted: leaves it to the process's completer if it waits for
/// input, else makes a coroutine of it.
///
/// `ENOMEM`, `EBUSY` or `EEXIST` if there is no room for it or the token is in use. Then the operation is returned: it
/// may have moved bytes already, which the caller must report.
pub(crate) fn go_on_asynchronously(
    process: &Arc<Process>,
    operation: Operation,
    submission: Submission,
) -> Result<(), (Errno, Operation)> {
    let submission = Submission { priority: process.standing.within_ceiling(submission.priority), ..submission };
    let is_for_model = process.model.takes(&operation);
    process.begin_call(submission, operation, |call, operation| {
        if is_for_model {
            return process.model.submit(operation, call).map(CallOwner::Coroutine);
        }
        if operation.waits_for_input_of().is_some() {
            return input::begin(process, operation, call).map(CallOwner::Completer);
        }
        let waiting = Waiting::new(operation);
        let future = AsynchronousCall { waiting, process: process.clone(), call };
        let spawned = executor::spawn_for(process.clone(), process.standing.worth(call.priority()), future).map_err(
            |SpawnError(mut call)| {
                // Not under the lock of the calls, nor before the operation has gone.
                core::mem::forget(call.waiting.look.take());
                core::mem::replace(&mut call.waiting.operation, Operation::NOTHING)
            },
        );
        spawned.map(CallOwner::Coroutine)
    })?;
    counters::count(Counter::AsynchronousCalls);
    Ok(())
}

#[cfg(test)]
mod tests {
    use abi_unix::types::{TimeSpec, futex, open};

    use super::*;
    use crate::testing::{DATA, Program, run};

    fn vector(program: &mut Program, parts: &[(usize, usize)]) -> usize {
        let words: Vec<u8> = parts
            .iter()
            .flat_map(|&(address, length)| [address.to_le_bytes(), length.to_le_bytes()].concat())
            .collect();
        program.store(&words)
    }

    fn time(program: &mut Program, ns: u64) -> usize {
        program.store(&TimeSpec::from_ns(ns).to_bytes())
    }

    /// Each kind of call that can wait is cancelled, and leaves nothing registered: its input goes to others.
    #[test]
    fn every_wait_can_be_cancelled() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let (_full_reader, full_writer) = program.pipe(0);
            program.write_to(full_writer, &[0; 65536]).unwrap();
            let place = program.place(64);
            let time = time(program, 1_000_000_000_000);
            let epoll = program.call(SystemCall::EpollCreate, [0]).unwrap();
            let list = program.store(&[(reader as u32).to_le_bytes(), 1u32.to_le_bytes()].concat());
            let child = program.spawn(move |program| {
                program.sleep_ns(1_000_000_000);
            });
            let child = child.unwrap();
            let waits = [
                (SystemCall::Read, [reader, place, 8, 0, 0, 0]),
                (SystemCall::Write, [full_writer, place, 8, 0, 0, 0]),
                (SystemCall::Sleep, [time, 0, 0, 0, 0, 0]),
                (SystemCall::Futex, [place, futex::WAIT as usize, 0, 0, 0, 0]),
                (SystemCall::EpollWait, [epoll, place, 1, usize::MAX, 0, 0]),
                (SystemCall::Poll, [list, 1, 0, 0, 0, 0]),
                (SystemCall::Wait, [usize::MAX, 0, 0, 0, 0, 0]),
            ];
            for (token, (call, arguments)) in (1..).zip(waits) {
                assert_eq!(program.submit(call, arguments, token as u64), None, "{}", call.name());
                program.sleep_ns(100_000);
                assert_eq!(program.completions(), [], "{}", call.name());
                assert_eq!(program.call(SystemCall::Cancel, [token]), Ok(0), "{}", call.name());
                assert_eq!(program.await_completions(), [(token as u64, Err(Errno::ECANCELED))], "{}", call.name());
                assert_eq!(program.call(SystemCall::Cancel, [token]), Err(Errno::ENOENT));
            }
            program.write_to(writer, b"bytes").unwrap();
            assert_eq!(program.read_from(reader, 10), Ok(b"bytes".to_vec()), "nobody has taken them");
            assert_eq!(program.call(SystemCall::Futex, [place, futex::WAKE as usize, 9]), Ok(0), "nobody waits");
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// Bytes that were moved before the end are the result.
    #[test]
    fn a_write_that_is_cancelled_in_the_middle_says_how_far_it_came() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let parts = vector(program, &[(DATA, 50_000), (DATA, 50_000)]);
            assert_eq!(program.submit(SystemCall::WriteVector, [writer, parts, 2], 1), None);
            program.sleep_ns(100_000);
            assert_eq!(program.call(SystemCall::Cancel, [1]), Ok(0));
            assert_eq!(program.await_completions(), [(1, Ok(65536))]);
            let mut left = 65536;
            while left > 0 {
                left -= program.read_from(reader, 30_000).unwrap().len();
            }
        });
    }

    #[test]
    fn a_descriptor_may_be_closed_while_a_call_waits_at_it() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let place = program.place(8);
            assert_eq!(program.submit(SystemCall::Read, [reader, place, 8], 1), None);
            program.close(reader).unwrap();
            // The call holds the file.
            assert_eq!(program.write_to(writer, b"abc"), Ok(3));
            assert_eq!(program.await_completions(), [(1, Ok(3))]);
            assert_eq!(program.write_to(writer, b"abc"), Err(Errno::EPIPE));
        });
    }

    #[test]
    fn a_file_that_must_not_wait_does_not() {
        run(|program| {
            let (reader, writer) = program.pipe(open::NONBLOCK);
            let place = program.place(8);
            assert_eq!(program.submit(SystemCall::Read, [reader, place, 8], 1), Some(Err(Errno::EAGAIN)));
            let parts = vector(program, &[(DATA, 40_000), (DATA, 40_000)]);
            assert_eq!(program.call(SystemCall::WriteVector, [writer, parts, 2]), Ok(65536));
            assert_eq!(program.submit(SystemCall::WriteVector, [writer, parts, 2], 2), Some(Err(Errno::EAGAIN)));
        });
    }

    #[test]
    fn vectors_are_checked_and_moved_in_their_order() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let (first, second) = (program.store(b"first "), program.store(b"second"));
            let parts = vector(program, &[(first, 6), (0x1000, 0), (second, 6)]);
            assert_eq!(program.call(SystemCall::WriteVector, [writer, parts, 3]), Ok(12));
            let place = program.place(16);
            let parts = vector(program, &[(place + 8, 4), (place, 8)]);
            assert_eq!(program.call(SystemCall::ReadVector, [reader, parts, 2]), Ok(12));
            assert_eq!(program.read(place, 12), b"t secondfirs");
            assert_eq!(program.call(SystemCall::ReadVector, [reader, parts, 0]), Ok(0), "nothing is waited for");
            assert_eq!(program.call(SystemCall::ReadVector, [reader, parts, 1025]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::ReadVector, [reader, 0x1000, 1]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ReadVector, [writer, parts, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::WriteVector, [reader, parts, 0]), Err(Errno::EBADF));
            let beyond = vector(program, &[(usize::MAX - 4, 8)]);
            assert_eq!(program.call(SystemCall::WriteVector, [writer, beyond, 1]), Err(Errno::EFAULT));
        });
    }

    #[test]
    fn a_worker_that_waits_leaves_when_its_process_ends() {
        run(|program| {
            let child = program.spawn(|program| {
                let (reader, _writer) = program.pipe(0);
                let place = program.place(8);
                program.submit(SystemCall::Read, [reader, place, 8], 1);
                program.add_worker(move |program| drop(program.read_from(reader, 8))).unwrap();
                let word = program.place(8);
                program
                    .add_worker(move |program| {
                        let _ = program.call(SystemCall::Futex, [word, 0, 0, 0]);
                    })
                    .unwrap();
                program.sleep_ns(1_000_000);
                let _ = program.call(SystemCall::ExitGroup, [5]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 5 << 8)));
        });
    }

    #[test]
    fn sleeps_are_as_long_as_they_should_be() {
        run(|program| {
            let now = Machine::now;
            let begin = now();
            let ms = time(program, 2_000_000);
            assert_eq!(program.call(SystemCall::Sleep, [ms, 0]), Ok(0));
            let slept = time::ns_at_ticks(now() - begin);
            assert!((2_000_000..3_000_000).contains(&slept), "{slept}");
            let until = time(program, time::now_ns() + 5_000_000);
            let begin = now();
            assert_eq!(program.call(SystemCall::SleepOn, [1, 1, until, 0]), Ok(0));
            let slept = time::ns_at_ticks(now() - begin);
            assert!((4_000_000..6_000_000).contains(&slept), "{slept}");
            assert_eq!(program.call(SystemCall::SleepOn, [1, 1, ms, 0]), Ok(0), "that was long ago");
            let nonsense = program.store(&[1u64.to_le_bytes(), 1_000_000_000u64.to_le_bytes()].concat());
            assert_eq!(program.call(SystemCall::Sleep, [nonsense, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SleepOn, [99, 0, ms, 0]), Err(Errno::EINVAL));
        });
    }
}
