//! Open files: the objects to which descriptors lead, of every kind.
//!
//! Every call on a descriptor comes through here and is answered by kind: regular files and directories by the file
//! system, pipes by their ends, sockets by the network, devices here. A kind that does not support an operation answers
//! with Linux's error.

use alloc::sync::Arc;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::Errno;
use abi_unix::types::{self, SocketAddress, Status, TimeSpec, epoll as event, mode, open};
use filesystem::{Access, DeviceNumber, FileKind, Metadata, SeekFrom, Writes};

use crate::asynchronous::interrupts::{Receiver, Right};
use crate::asynchronous::operation::AddressOut;
use crate::files::console;
use crate::files::epoll::{Epoll, EventCounter, Watchers};
use crate::files::pipe::{Reader, Writer};
use crate::files::tree::{self, CONSOLE, NULL, RANDOM, ZERO, errno_of};
pub(crate) use crate::network::socket::Socket;
use crate::process::Process;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::UserBuffer;
use crate::process::user::errno_of_fault;
use crate::scheduling::steps;

/// Device number that `stat` shows for the root file system.
const ROOT_DEVICE: u64 = 1;

#[doc(alias = "file_operations")]
enum Kind {
    /// A regular file or a directory.
    Stored(filesystem::OpenFile),
    Reader(Reader),
    Writer(Writer),
    Socket(Socket),
    Null,
    Zero,
    Random,
    Console,
    InterruptReceiver(Arc<Receiver>),
    InterruptRight(Arc<Right>),
    Epoll(Arc<Epoll>),
    Event(EventCounter),
}

/// An open file description (open(2)): descriptors that were duplicated share it, with its position and flags.
#[doc(alias = "struct file")]
#[doc(alias = "fdget")]
pub(crate) struct OpenFile {
    kind: Kind,
    access: Access,
    non_blocking: AtomicBool,
    /// Charge for the open file, and for its share of the object behind it, as far as that is constant.
    _charge: Charge,
    /// The epolls that watch it.
    pub watchers: Watchers,
}

/// Bytes of kernel memory for an open file of any kind, without the contents of the object behind it.
const MEMORY: usize = size_of::<OpenFile>() + 256;

/// Charges an open file to this account. `ENOMEM` if the process may not have it.
pub(crate) fn charge(account: &Arc<Account>) -> Result<Charge, Errno> {
    account.charge(Resource::Memory, MEMORY)
}

/// Returns the `struct stat` of a stored file.
pub(crate) fn status_of(metadata: &Metadata) -> Status {
    let time =
        |stamp: filesystem::Timestamp| TimeSpec { seconds: stamp.seconds, nanoseconds: stamp.nanoseconds as i64 };
    Status {
        device: ROOT_DEVICE,
        inode: metadata.inode,
        mode: metadata.mode(),
        links: metadata.links,
        represented_device: encode_device(metadata.device),
        size: metadata.size as i64,
        block_size: 4096,
        blocks: metadata.size.div_ceil(512) as i64,
        accessed: time(metadata.accessed),
        modified: time(metadata.modified),
        changed: time(metadata.changed),
        ..Status::default()
    }
}

fn reads(access: Access) -> bool {
    access != Access::Write
}

fn writes(access: Access) -> bool {
    access != Access::Read
}

/// Moves bytes of one buffer to or from the kernel in a closure that cannot return an error, and keeps the first error.
struct Transfer<'a> {
    process: &'a Process,
    address: usize,
    done: usize,
    error: Option<Errno>,
}

impl<'a> Transfer<'a> {
    fn new(process: &'a Process, buffer: UserBuffer) -> Transfer<'a> {
        Transfer { process, address: buffer.address(), done: 0, error: None }
    }

    fn out(&mut self, piece: &[u8]) -> usize {
        match self.process.copy_out(self.address + self.done, piece) {
            Ok(()) => {
                self.done += piece.len();
                piece.len()
            }
            Err(error) => {
                self.error = Some(error);
                0
            }
        }
    }

    fn fill(&mut self, piece: &mut [u8]) -> usize {
        match self.process.copy_in(self.address + self.done, piece) {
            Ok(()) => {
                self.done += piece.len();
                piece.len()
            }
            Err(error) => {
                self.error = Some(error);
                0
            }
        }
    }

    /// Returns the number of bytes moved, or the reason why none were.
    fn result(self, outcome: Result<usize, filesystem::Error>) -> Result<usize, Errno> {
        match (self.error, outcome) {
            (Some(error), _) if self.done == 0 => Err(error),
            (_, Err(error)) => Err(errno_of(error)),
            (_, Ok(count)) => Ok(count),
        }
    }
}

impl OpenFile {
    fn new(kind: Kind, access: Access, non_blocking: bool, charge: Charge) -> OpenFile {
        let non_blocking = AtomicBool::new(non_blocking);
        OpenFile { kind, access, non_blocking, _charge: charge, watchers: Watchers::default() }
    }

    /// Wraps a file that `open` found in the file system; a device node becomes its device.
    pub(crate) fn stored(file: filesystem::OpenFile, non_blocking: bool, charge: Charge) -> Result<OpenFile, Errno> {
        let access = file.access();
        let kind = match file.node().device() {
            None => Kind::Stored(file),
            Some(NULL) => Kind::Null,
            Some(ZERO) => Kind::Zero,
            Some(RANDOM) => Kind::Random,
            Some(CONSOLE) => Kind::Console,
            Some(_) => return Err(Errno::ENXIO),
        };
        Ok(OpenFile::new(kind, access, non_blocking, charge))
    }

    /// Opens the console, for the first process.
    pub(crate) fn console(charge: Charge) -> OpenFile {
        OpenFile::new(Kind::Console, Access::ReadWrite, false, charge)
    }

    /// Wraps the reading end of a pipe.
    pub(crate) fn reader(reader: Reader, non_blocking: bool, charge: Charge) -> OpenFile {
        OpenFile::new(Kind::Reader(reader), Access::Read, non_blocking, charge)
    }

    /// Wraps the writing end of a pipe.
    pub(crate) fn writer(writer: Writer, non_blocking: bool, charge: Charge) -> OpenFile {
        OpenFile::new(Kind::Writer(writer), Access::Write, non_blocking, charge)
    }

    /// Wraps a socket.
    pub(crate) fn socket_file(socket: Socket, non_blocking: bool, charge: Charge) -> OpenFile {
        OpenFile::new(Kind::Socket(socket), Access::ReadWrite, non_blocking, charge)
    }

    /// Wraps a receiver of user interrupts.
    pub(crate) fn interrupt_receiver(receiver: Arc<Receiver>, charge: Charge) -> OpenFile {
        OpenFile::new(Kind::InterruptReceiver(receiver), Access::Read, false, charge)
    }

    /// Wraps a right to send user interrupts.
    pub(crate) fn interrupt_right(right: Arc<Right>, charge: Charge) -> OpenFile {
        OpenFile::new(Kind::InterruptRight(right), Access::Write, false, charge)
    }

    /// Returns the receiver of user interrupts; `EINVAL` for any other kind.
    pub(crate) fn as_interrupt_receiver(&self) -> Result<&Arc<Receiver>, Errno> {
        match &self.kind {
            Kind::InterruptReceiver(receiver) => Ok(receiver),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns the right to send user interrupts; `EINVAL` for any other kind.
    pub(crate) fn as_interrupt_right(&self) -> Result<&Arc<Right>, Errno> {
        match &self.kind {
            Kind::InterruptRight(right) => Ok(right),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Wraps an epoll.
    pub(crate) fn of_epoll(epoll: Arc<Epoll>, charge: Charge) -> OpenFile {
        OpenFile::new(Kind::Epoll(epoll), Access::ReadWrite, false, charge)
    }

    /// Wraps an event counter.
    pub(crate) fn of_event_counter(counter: EventCounter, non_blocking: bool, charge: Charge) -> OpenFile {
        OpenFile::new(Kind::Event(counter), Access::ReadWrite, non_blocking, charge)
    }

    /// Returns the epoll; `EINVAL` for any other kind.
    pub(crate) fn epoll(&self) -> Result<&Epoll, Errno> {
        match &self.kind {
            Kind::Epoll(epoll) => Ok(epoll),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns whether the file's readiness can change.
    pub(crate) fn can_be_polled(&self) -> bool {
        !matches!(self.kind, Kind::Stored(_) | Kind::Null | Kind::Zero)
    }

    /// Returns the wanted events for which the file is ready. Registers `waker`, if there is one, for the others, on
    /// behalf of this process.
    #[doc(alias = "vfs_poll")]
    pub(crate) fn readiness(&self, process: &Process, wanted: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let found = match &self.kind {
            Kind::Reader(reader) => reader.readiness(waker)?,
            Kind::Writer(writer) => writer.readiness(waker)?,
            Kind::Socket(socket) => socket.readiness(process, wanted, waker)?,
            Kind::Event(counter) => counter.readiness(waker)?,
            Kind::Console => {
                let input = if console::is_readable(waker)? { event::IN | event::RDNORM } else { 0 };
                input | event::OUT | event::WRNORM
            }
            Kind::Random | Kind::Null | Kind::Zero | Kind::Stored(_) => {
                event::IN | event::RDNORM | event::OUT | event::WRNORM
            }
            Kind::InterruptReceiver(_) | Kind::InterruptRight(_) | Kind::Epoll(_) => 0,
        };
        Ok(found & wanted)
    }

    /// Registers a waker for input of a pipe or a socket, for a call of this priority. Returns `false` if input or its
    /// end is there already, if registering fails, and for every other kind: then the caller must simply try.
    pub(crate) fn register_for_input(&self, process: &Process, priority: Priority, waker: &Waker) -> bool {
        match &self.kind {
            Kind::Reader(reader) => reader.register_for_input(waker),
            Kind::Socket(socket) => socket.register_for_input(process, priority, waker),
            _ => false,
        }
    }

    /// Returns the socket; `ENOTSOCK` for any other kind.
    pub(crate) fn socket(&self) -> Result<&Socket, Errno> {
        match &self.kind {
            Kind::Socket(socket) => Ok(socket),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    /// Returns the directory; `ENOTDIR` for any other kind.
    pub(crate) fn directory(&self) -> Result<&filesystem::Node, Errno> {
        match &self.kind {
            Kind::Stored(file) if file.node().kind() == FileKind::Directory => Ok(file.node()),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Returns whether calls fail with `EAGAIN` instead of waiting.
    pub(crate) fn is_non_blocking(&self) -> bool {
        self.non_blocking.load(Ordering::Relaxed)
    }

    /// Returns the flags as `fcntl(F_GETFL)` reports them.
    pub(crate) fn flags(&self) -> u32 {
        let mut flags = match self.access {
            Access::Read => open::RDONLY,
            Access::Write => open::WRONLY,
            Access::ReadWrite => open::RDWR,
        };
        if self.is_non_blocking() {
            flags |= open::NONBLOCK;
        }
        if let Kind::Stored(file) = &self.kind
            && file.writes() == Writes::AtEnd
        {
            flags |= open::APPEND;
        }
        flags
    }

    /// Performs `fcntl(F_SETFL)`: other flags than these are ignored, as on Linux.
    pub(crate) fn set_flags(&self, flags: u32) {
        self.non_blocking.store(flags & open::NONBLOCK != 0, Ordering::Relaxed);
        if let Kind::Stored(file) = &self.kind {
            file.set_writes(if flags & open::APPEND != 0 { Writes::AtEnd } else { Writes::AtPosition });
        }
    }

    /// Returns the bytes that closing this file frees and that are not charged to `account`: those of a file without a
    /// name that no other open file holds, and those of a socket that another process has made.
    pub(crate) fn memory_if_closed(&self, account: &Account) -> usize {
        match &self.kind {
            Kind::Stored(file) if file.node().is_last_reference() => file.node().metadata().allocated as usize,
            Kind::Socket(socket) if !socket.is_charged_to(account) => socket.memory(),
            _ => 0,
        }
    }

    // ---- reading and writing ----

    /// Bytes to move in one step ([`steps`]), unless a smaller limit holds.
    fn largest_step(&self) -> usize {
        match self.kind {
            Kind::Console => 1024,
            Kind::Random => crate::random::STEP,
            Kind::Stored(_) | Kind::Zero => steps::BYTES,
            // Limited by their contents.
            Kind::Reader(_) | Kind::Writer(_) | Kind::Socket(_) | Kind::Null => usize::MAX,
            Kind::InterruptReceiver(_) | Kind::InterruptRight(_) | Kind::Epoll(_) | Kind::Event(_) => usize::MAX,
        }
    }

    /// Fails with `EBADF` unless the file was opened for reading.
    pub(crate) fn require_readable(&self) -> Result<(), Errno> {
        if reads(self.access) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Fails with `EBADF` unless the file was opened for writing.
    pub(crate) fn require_writable(&self) -> Result<(), Errno> {
        if writes(self.access) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Returns whether reading and writing never wait, so that the caller's permission to wait does not matter.
    pub(crate) fn never_waits(&self) -> bool {
        matches!(self.kind, Kind::Stored(_) | Kind::Zero | Kind::Null)
    }

    /// Returns whether a read gives everything that was wanted, in steps, and not only the bytes that are there.
    fn reads_on(&self) -> bool {
        matches!(self.kind, Kind::Stored(_) | Kind::Zero | Kind::Random)
    }

    /// Reads into buffers from `*done` bytes on, and advances it. Ready as soon as something was read; a kind that
    /// gives everything that was wanted reads on to the end of the buffers or of the file.
    pub(crate) fn read(
        &self,
        process: &Process,
        buffers: &[UserBuffer],
        done: &mut usize,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        self.require_readable()?;
        if let Kind::Socket(socket) = &self.kind
            && socket.is_for_datagrams()
        {
            return socket.receive_datagram(process, buffers, 0, None, waker);
        }
        // The first step was the attempt in place.
        if *done > 0 && self.reads_on() && waker.is_some() && steps::must_pause(process, waker) {
            return Poll::Pending;
        }
        let limit = self.largest_step();
        let (mut before, mut left) = (0, limit);
        for &buffer in buffers {
            let mut part = done.saturating_sub(before).min(buffer.len());
            before += buffer.len();
            if part == buffer.len() && *done > 0 {
                continue;
            }
            loop {
                if left == 0 {
                    if !self.reads_on() {
                        return Poll::Ready(Ok(*done));
                    }
                    if steps::must_pause(process, waker) {
                        return Poll::Pending;
                    }
                    left = limit;
                }
                let wanted = (buffer.len() - part).min(left);
                let piece = UserBuffer::new(buffer.address() + part, wanted)?;
                // Only the first buffer may wait; further bytes are taken if they are there.
                let count = match self.read_one(process, piece, if *done == 0 { waker } else { None }) {
                    Poll::Ready(Ok(count)) => count,
                    Poll::Ready(Err(error)) if *done == 0 => return Poll::Ready(Err(error)),
                    Poll::Pending if *done == 0 => return Poll::Pending,
                    _ => return Poll::Ready(Ok(*done)),
                };
                *done += count;
                part += count;
                left -= count;
                if count < wanted {
                    return Poll::Ready(Ok(*done));
                }
                if part == buffer.len() {
                    break;
                }
            }
        }
        Poll::Ready(Ok(*done))
    }

    fn read_one(&self, process: &Process, buffer: UserBuffer, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        match &self.kind {
            Kind::Reader(reader) => reader.read(process, buffer, waker),
            Kind::Socket(socket) => socket.receive(process, buffer, 0, None, waker),
            Kind::Stored(file) => Poll::Ready({
                let mut transfer = Transfer::new(process, buffer);
                let outcome = file.read_with(buffer.len(), |piece| transfer.out(piece));
                transfer.result(outcome)
            }),
            Kind::Null => Poll::Ready(Ok(0)),
            Kind::Zero => Poll::Ready(zero(process, buffer)),
            Kind::Random => crate::random::read(process, buffer, waker),
            Kind::Console => console::read(process, buffer, waker),
            Kind::Event(counter) => counter.read(process, buffer, waker),
            Kind::InterruptReceiver(_) | Kind::InterruptRight(_) | Kind::Epoll(_) => Poll::Ready(Err(Errno::EINVAL)),
            Kind::Writer(_) => Poll::Ready(Err(Errno::EBADF)),
        }
    }

    /// Does one step of writing buffers from `*written` bytes on, and advances it.
    pub(crate) fn write(
        &self,
        process: &Process,
        buffers: &[UserBuffer],
        written: &mut usize,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        self.require_writable()?;
        match &self.kind {
            // The bytes of one call are one datagram; in a pipe they come out together if they are few.
            Kind::Socket(socket) if socket.is_for_datagrams() => {
                return socket.send_datagram(process, buffers, None, written, waker);
            }
            Kind::Writer(writer) => return writer.write(process, buffers, written, waker),
            _ => {}
        }
        let mut before = 0;
        let limit = self.largest_step();
        // The first step was the attempt in place.
        if *written > 0 && limit != usize::MAX && waker.is_some() && steps::must_pause(process, waker) {
            return Poll::Pending;
        }
        let mut left = limit;
        for &buffer in buffers {
            let mut part = written.saturating_sub(before).min(buffer.len());
            before += buffer.len();
            if part == buffer.len() && *written > 0 {
                continue;
            }
            loop {
                if left == 0 {
                    if steps::must_pause(process, waker) {
                        return Poll::Pending;
                    }
                    left = limit;
                }
                let start = part;
                let piece = UserBuffer::new(buffer.address(), buffer.len().min(start.saturating_add(left)))?;
                let step = self.write_one(process, piece, &mut part, waker);
                *written += part - start;
                left -= part - start;
                match step {
                    Poll::Ready(Ok(_)) if part == buffer.len() => break,
                    Poll::Ready(Ok(_)) if part == piece.len() => {}
                    Poll::Ready(Err(error)) if *written == 0 => return Poll::Ready(Err(error)),
                    Poll::Ready(_) => return Poll::Ready(Ok(*written)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        }
        Poll::Ready(Ok(*written))
    }

    fn write_one(
        &self,
        process: &Process,
        buffer: UserBuffer,
        done: &mut usize,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        match &self.kind {
            Kind::Writer(writer) => writer.write(process, &[buffer], done, waker),
            Kind::Socket(socket) => socket.send(process, buffer, None, done, waker),
            Kind::Stored(file) => Poll::Ready({
                process.account.admit()?;
                let rest = UserBuffer::new(buffer.address() + *done, buffer.len() - *done)?;
                let mut transfer = Transfer::new(process, rest);
                let owner: Arc<dyn filesystem::Owner> = process.account.clone();
                let outcome = file.write_with(Some(&owner), rest.len(), tree::now(), |piece| transfer.fill(piece));
                let result = transfer.result(outcome);
                *done += result.unwrap_or(0);
                result
            }),
            Kind::Null | Kind::Zero | Kind::Random => {
                *done = buffer.len();
                Poll::Ready(Ok(buffer.len()))
            }
            Kind::Console => Poll::Ready(console::write(process, buffer, done)),
            Kind::Event(counter) => counter.write(process, buffer, done, waker),
            Kind::InterruptReceiver(_) | Kind::InterruptRight(_) | Kind::Epoll(_) => Poll::Ready(Err(Errno::EINVAL)),
            Kind::Reader(_) => Poll::Ready(Err(Errno::EBADF)),
        }
    }

    fn stored_file(&self) -> Result<&filesystem::OpenFile, Errno> {
        match &self.kind {
            Kind::Stored(file) => Ok(file),
            _ => Err(Errno::ESPIPE),
        }
    }

    /// Copies from a place in the file, as far as a step goes, for callers that make steps of their own.
    pub(crate) fn read_step(&self, process: &Process, buffer: UserBuffer, offset: u64) -> Result<usize, Errno> {
        let file = self.stored_file()?;
        let length = buffer.len().min(steps::BYTES);
        let mut transfer = Transfer::new(process, buffer);
        let outcome = file.read_at_with(offset, length, |piece| transfer.out(piece));
        transfer.result(outcome)
    }

    fn write_step(&self, process: &Process, buffer: UserBuffer, offset: u64) -> Result<usize, Errno> {
        let file = self.stored_file()?;
        process.account.admit()?;
        let length = buffer.len().min(steps::BYTES);
        let mut transfer = Transfer::new(process, buffer);
        let owner: Arc<dyn filesystem::Owner> = process.account.clone();
        let now = tree::now();
        let outcome = file.write_at_with(Some(&owner), offset, length, now, |piece| transfer.fill(piece));
        transfer.result(outcome)
    }

    /// Performs `pread64` from `*done` bytes on, and advances it.
    pub(crate) fn read_at(
        &self,
        process: &Process,
        buffer: UserBuffer,
        offset: u64,
        done: &mut usize,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        in_steps(process, buffer, offset, done, waker, |rest, offset| self.read_step(process, rest, offset))
    }

    /// Performs `pwrite64` from `*done` bytes on, and advances it.
    pub(crate) fn write_at(
        &self,
        process: &Process,
        buffer: UserBuffer,
        offset: u64,
        done: &mut usize,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        in_steps(process, buffer, offset, done, waker, |rest, offset| self.write_step(process, rest, offset))
    }

    /// Performs `lseek`.
    pub(crate) fn seek(&self, offset: i64, whence: u32) -> Result<usize, Errno> {
        let file = self.stored_file()?;
        let from = match whence {
            types::SEEK_SET => SeekFrom::Start(u64::try_from(offset).map_err(|_| Errno::EINVAL)?),
            types::SEEK_CUR => SeekFrom::Current(offset),
            types::SEEK_END => SeekFrom::End(offset),
            _ => return Err(Errno::EINVAL),
        };
        file.seek(from).map(|position| position as usize).map_err(errno_of)
    }

    /// Returns the size of a regular file in bytes.
    pub(crate) fn length(&self) -> Option<u64> {
        match &self.kind {
            Kind::Stored(file) => Some(file.node().metadata().size),
            _ => None,
        }
    }

    /// Performs `ftruncate`.
    pub(crate) fn truncate(&self, length: u64) -> Result<usize, Errno> {
        match &self.kind {
            Kind::Stored(file) => file.truncate(length, tree::now()).map(|()| 0).map_err(errno_of),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Succeeds if `mmap` can copy from the file.
    pub(crate) fn require_mappable(&self) -> Result<(), Errno> {
        match &self.kind {
            Kind::Stored(file) if file.node().kind() == FileKind::Regular => {
                if reads(self.access) {
                    Ok(())
                } else {
                    Err(Errno::EACCES)
                }
            }
            _ => Err(Errno::ENODEV),
        }
    }

    /// Performs `getdents64`: whole entries only, at most as many as one step copies; `EINVAL` if not even one fits.
    pub(crate) fn read_directory(&self, process: &Process, buffer: UserBuffer) -> Result<usize, Errno> {
        let Kind::Stored(file) = &self.kind else { return Err(Errno::ENOTDIR) };
        let (mut done, mut left) = (0, steps::ENTRIES);
        let mut failed = None;
        file.read_directory(|entry| {
            if left == 0 {
                // A program repeats the call until there are no more entries.
                return ControlFlow::Break(());
            }
            left -= 1;
            // struct linux_dirent64: inode, offset of the next, length, type, name with its NUL; 8-byte aligned.
            let length = (19 + entry.name.len() + 1).next_multiple_of(8);
            if done + length > buffer.len() {
                failed = Some(Errno::EINVAL);
                return ControlFlow::Break(());
            }
            let mut bytes = [0u8; 280];
            bytes[..8].copy_from_slice(&entry.inode.to_le_bytes());
            bytes[8..16].copy_from_slice(&entry.next.to_le_bytes());
            bytes[16..18].copy_from_slice(&(length as u16).to_le_bytes());
            bytes[18] = (entry.kind.mode_bits() >> 12) as u8;
            bytes[19..19 + entry.name.len()].copy_from_slice(entry.name);
            match process.copy_out(buffer.address() + done, &bytes[..length]) {
                Ok(()) => {
                    done += length;
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })
        .map_err(errno_of)?;
        match failed {
            Some(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Performs `fstat`.
    pub(crate) fn status(&self) -> Status {
        let (kind, device) = match &self.kind {
            Kind::Stored(file) => return status_of(&file.node().metadata()),
            Kind::Reader(_) | Kind::Writer(_) => (mode::PIPE | 0o600, None),
            Kind::Socket(_) => (mode::SOCKET | 0o777, None),
            Kind::Null => (mode::CHARACTER | 0o666, Some(NULL)),
            Kind::Zero => (mode::CHARACTER | 0o666, Some(ZERO)),
            Kind::Random => (mode::CHARACTER | 0o666, Some(RANDOM)),
            Kind::Console => (mode::CHARACTER | 0o600, Some(CONSOLE)),
            // As Linux shows its anonymous inodes: without a type.
            Kind::InterruptReceiver(_) | Kind::InterruptRight(_) | Kind::Epoll(_) | Kind::Event(_) => (0o600, None),
        };
        Status {
            mode: kind,
            links: 1,
            block_size: 4096,
            represented_device: device.map_or(0, encode_device),
            ..Status::default()
        }
    }

    /// Performs `ioctl`, for terminals only.
    #[doc(alias = "ioctl")]
    #[doc(alias = "unlocked_ioctl")]
    pub(crate) fn device_control(&self, process: &Process, command: u32, argument: usize) -> Result<usize, Errno> {
        match self.kind {
            Kind::Console => console::control(process, command, argument),
            _ => Err(Errno::ENOTTY),
        }
    }

    // ---- sockets ----

    /// Does one step of `accept`: makes a descriptor of the connection.
    ///
    /// The descriptor and the memory are reserved first. A connection taken from the queue could not be put back, so it
    /// must stay there while it has no descriptor. As on Linux, `EMFILE` is the answer even if no connection waits.
    pub(crate) fn accept(
        &self,
        process: &Process,
        address: Option<AddressOut>,
        flags: u32,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        let listener = self.socket()?;
        let mut descriptors = process.descriptors.lock();
        let vacancy = descriptors.vacancy(0)?;
        process.account.admit()?;
        let charge = charge(&process.account)?;
        let (socket, from) = match listener.accept(process, waker) {
            Poll::Ready(accepted) => accepted?,
            Poll::Pending => return Poll::Pending,
        };
        let file = Arc::new(OpenFile::socket_file(socket, flags & types::SOCK_NONBLOCK != 0, charge));
        if let Some(out) = address
            && let Err(error) = out.write(process, from)
        {
            // As on Linux, a caller without room for the peer's address loses the connection. It is closed outside the
            // lock.
            drop(descriptors);
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(vacancy.fill(file, flags & types::SOCK_CLOEXEC != 0)))
    }

    /// Does one step of `connect`.
    pub(crate) fn connect(
        self: &Arc<OpenFile>,
        process: &Process,
        to: SocketAddress,
        started: &mut bool,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        let was_started = *started;
        let step = self.socket()?.connect(process, to, started, waker);
        if *started && !was_started || step.is_ready() {
            // The stack has a new object for the socket.
            Watchers::wake(self, process);
        }
        step
    }

    /// Does one step of `sendto`.
    pub(crate) fn send(
        &self,
        process: &Process,
        buffer: UserBuffer,
        flags: u32,
        to: Option<SocketAddress>,
        sent: &mut usize,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        if flags & !(types::message::DONTWAIT | types::message::NOSIGNAL) != 0 {
            return Poll::Ready(Err(Errno::EOPNOTSUPP));
        }
        self.socket()?.send(process, buffer, to, sent, waker)
    }

    /// Does one step of `recvfrom`.
    pub(crate) fn receive(
        &self,
        process: &Process,
        buffer: UserBuffer,
        flags: u32,
        address: Option<AddressOut>,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        if flags & !(types::message::DONTWAIT | types::message::PEEK | types::message::NOSIGNAL) != 0 {
            return Poll::Ready(Err(Errno::EOPNOTSUPP));
        }
        self.socket()?.receive(process, buffer, flags, address, waker)
    }

    /// Returns whether its input comes through a pipe or a connection.
    pub(crate) fn is_pipe_or_socket(&self) -> bool {
        matches!(self.kind, Kind::Reader(_) | Kind::Writer(_) | Kind::Socket(_))
    }

    /// Takes back the registration of a reading step.
    pub(crate) fn forget_reader(&self, waker: &Waker) {
        match &self.kind {
            Kind::Reader(reader) => reader.forget(waker),
            Kind::Socket(socket) => socket.forget_receiver(waker),
            Kind::Console => console::forget(waker),
            Kind::Random => crate::random::forget(waker),
            Kind::Event(counter) => counter.forget_reader(waker),
            _ => {}
        }
    }

    /// Takes back the registration of a writing step.
    pub(crate) fn forget_writer(&self, waker: &Waker) {
        match &self.kind {
            Kind::Writer(writer) => writer.forget(waker),
            Kind::Socket(socket) => socket.forget_sender(waker),
            Kind::Event(counter) => counter.forget_writer(waker),
            _ => {}
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.watchers.close();
    }
}

fn encode_device(device: DeviceNumber) -> u64 {
    // Linux's makedev for small numbers.
    (device.major as u64) << 8 | device.minor as u64
}

/// Moves a buffer from `*done` bytes on to or from a place in a file, and advances it, until a step moves fewer bytes
/// than it may.
fn in_steps(
    process: &Process,
    buffer: UserBuffer,
    offset: u64,
    done: &mut usize,
    waker: Option<&Waker>,
    mut step: impl FnMut(UserBuffer, u64) -> Result<usize, Errno>,
) -> Poll<Result<usize, Errno>> {
    // The first step was the attempt in place.
    if *done > 0 && waker.is_some() && steps::must_pause(process, waker) {
        return Poll::Pending;
    }
    loop {
        let rest = UserBuffer::new(buffer.address() + *done, buffer.len() - *done)?;
        // The offset is below 2^63, and no buffer is that long.
        let moved = match step(rest, offset + *done as u64) {
            Ok(moved) => moved,
            Err(error) if *done == 0 => return Poll::Ready(Err(error)),
            Err(_) => return Poll::Ready(Ok(*done)),
        };
        *done += moved;
        if moved < steps::BYTES || *done == buffer.len() {
            return Poll::Ready(Ok(*done));
        }
        if steps::must_pause(process, waker) {
            return Poll::Pending;
        }
    }
}

fn zero(process: &Process, buffer: UserBuffer) -> Result<usize, Errno> {
    let zeroed = process.space.lock().zero(buffer.address() as u64, buffer.len());
    zeroed.map(|()| buffer.len()).map_err(errno_of_fault)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{DATA, LENGTH, Program, run};

    fn create(program: &mut Program, path: &[u8], flags: u32) -> usize {
        let path = program.store(path);
        program.call(SystemCall::Open, [0, path, (flags | open::CREAT) as usize, 0o644]).unwrap()
    }

    fn remove(program: &mut Program, path: &[u8]) {
        let path = program.store(path);
        program.call(SystemCall::Unlink, [0, path, 0]).unwrap();
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Read(usize),
        WriteAt(usize, usize),
        ReadAt(usize, usize),
        Seek(i64, u32),
        Truncate(usize),
        Append(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let length = || prop_oneof![0..50usize, 4000..4200usize, Just(20_000)];
        let place = || prop_oneof![0..100usize, 4000..9000usize];
        prop_oneof![
            length().prop_map(Step::Write),
            length().prop_map(Step::Read),
            (length(), place()).prop_map(|(length, at)| Step::WriteAt(length, at)),
            (length(), place()).prop_map(|(length, at)| Step::ReadAt(length, at)),
            (-5000..5000i64, 0..4u32).prop_map(|(offset, whence)| Step::Seek(offset, whence)),
            place().prop_map(Step::Truncate),
            any::<bool>().prop_map(Step::Append),
        ]
    }

    fn put(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            model.resize(model.len().max(at + bytes.len()), 0);
            model[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Does the steps with a file, and with a vector and a position.
    fn compare(program: &mut Program, steps: &[Step]) {
        let file = create(program, b"/tmp/model\0", open::RDWR | open::TRUNC);
        let place = program.place(20_000);
        let (mut model, mut position, mut appends) = (Vec::new(), 0usize, false);
        for (number, step) in steps.iter().enumerate() {
            let bytes = |length: usize| -> Vec<u8> { (0..length).map(|index| (index + 7 * number) as u8).collect() };
            match *step {
                Step::Write(length) => {
                    let bytes = bytes(length);
                    program.write(place, &bytes);
                    assert_eq!(program.call(SystemCall::Write, [file, place, length]), Ok(length));
                    if appends && length > 0 {
                        position = model.len();
                    }
                    put(&mut model, position, &bytes);
                    position += length;
                }
                Step::WriteAt(length, at) => {
                    let bytes = bytes(length);
                    program.write(place, &bytes);
                    assert_eq!(program.call(SystemCall::WriteAt, [file, place, length, at]), Ok(length));
                    // As on Linux, the place does not count for a file that is written at its end.
                    let at = if appends { model.len() } else { at };
                    put(&mut model, at, &bytes);
                }
                Step::Read(length) => {
                    let end = model.len().min(position + length).max(position);
                    let expected = model.get(position..end).unwrap_or_default();
                    assert_eq!(program.call(SystemCall::Read, [file, place, length]), Ok(expected.len()));
                    assert_eq!(program.read(place, expected.len()), expected);
                    position += expected.len();
                }
                Step::ReadAt(length, at) => {
                    let expected = model.get(at..model.len().min(at + length)).unwrap_or_default();
                    assert_eq!(program.call(SystemCall::ReadAt, [file, place, length, at]), Ok(expected.len()));
                    assert_eq!(program.read(place, expected.len()), expected);
                }
                Step::Seek(offset, whence) => {
                    let base = match whence {
                        0 => Some(0),
                        1 => Some(position as i64),
                        2 => Some(model.len() as i64),
                        _ => None,
                    };
                    let to = base.map(|base| base + offset).filter(|&to| to >= 0).ok_or(Errno::EINVAL);
                    let result = program.call(SystemCall::Seek, [file, offset as usize, whence as usize]);
                    assert_eq!(result, to.map(|to| to as usize));
                    position = to.map_or(position, |to| to as usize);
                }
                Step::Truncate(length) => {
                    assert_eq!(program.call(SystemCall::Truncate, [file, length]), Ok(0));
                    model.resize(length, 0);
                }
                Step::Append(on) => {
                    appends = on;
                    let flags = if on { open::APPEND } else { 0 };
                    program.call(SystemCall::FileControl, [file, 4, flags as usize]).unwrap();
                    let found = program.call(SystemCall::FileControl, [file, 3, 0]).unwrap() as u32;
                    assert_eq!(found, open::RDWR | flags);
                }
            }
            let status = program.place(128);
            program.call(SystemCall::Status, [file, status]).unwrap();
            assert_eq!(program.read_u64(status + 48) as usize, model.len());
        }
        let mut found = Vec::new();
        while found.len() < model.len() {
            let count = program.call(SystemCall::ReadAt, [file, place, 20_000, found.len()]).unwrap();
            found.extend(program.read(place, count));
        }
        assert_eq!(found, model);
        remove(program, b"/tmp/model\0");
    }

    proptest! {
        #![proptest_config(property::cases(48))]

        #[test]
        fn a_file_behaves_as_a_vector_with_a_position(steps in prop::collection::vec(step(), 0..40)) {
            run(move |program| compare(program, &steps));
        }
    }

    #[test]
    fn access_is_checked_before_anything_else() {
        run(|program| {
            let (reads, writes) =
                (create(program, b"/tmp/a\0", open::RDONLY), create(program, b"/tmp/a\0", open::WRONLY));
            assert_eq!(program.write_to(reads, b"x"), Err(Errno::EBADF));
            assert_eq!(program.read_from(writes, 1), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::WriteAt, [reads, DATA, 1, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::ReadAt, [writes, DATA, 1, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::Truncate, [reads, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::ReadAt, [reads, DATA, 1, usize::MAX]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Read, [reads, DATA, usize::MAX]), Err(Errno::EINVAL));
            remove(program, b"/tmp/a\0");
        });
    }

    /// A transfer that meets a bad address has moved the bytes before it, and returns their number.
    #[test]
    fn a_transfer_stops_at_the_end_of_memory() {
        run(|program| {
            let file = create(program, b"/tmp/edge\0", open::RDWR);
            let edge = DATA + LENGTH;
            program.write(edge - 8192, &[5; 8192]);
            let result = program.call(SystemCall::Write, [file, edge - 8192, 20_000]);
            let written = result.expect("what lies before the edge");
            assert!(written > 0 && written <= 8192, "{written}");
            assert_eq!(program.call(SystemCall::Seek, [file, 0, 1]), Ok(written));
            assert_eq!(program.call(SystemCall::Write, [file, edge, 8]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ReadAt, [file, edge, 8, 0]), Err(Errno::EFAULT));
            let more = create(program, b"/tmp/edge\0", open::WRONLY);
            program.call(SystemCall::WriteAt, [more, edge - 8192, 8192, 0]).unwrap();
            let read = program.call(SystemCall::ReadAt, [file, edge - 4096, 8192, 0]);
            assert_eq!(read, Ok(4096));
            remove(program, b"/tmp/edge\0");
        });
    }

    #[test]
    fn devices_answer_as_their_names_promise() {
        run(|program| {
            let device = |program: &mut Program, name: &[u8]| {
                let path = program.store(name);
                program.call(SystemCall::Open, [0, path, open::RDWR as usize, 0]).unwrap()
            };
            let null = device(program, b"/dev/null\0");
            assert_eq!(program.read_from(null, 10), Ok(vec![]));
            assert_eq!(program.call(SystemCall::Write, [null, DATA, 100]), Ok(100));
            let zero = device(program, b"/dev/zero\0");
            let place = program.store(&[7; 40_000]);
            assert_eq!(program.call(SystemCall::Read, [zero, place, 39_999]), Ok(39_999));
            assert_eq!(program.read(place, 39_999), vec![0; 39_999]);
            assert_eq!(program.read(place + 39_999, 1), [7]);
            assert_eq!(program.call(SystemCall::Write, [zero, DATA, 100]), Ok(100));
            let random = device(program, b"/dev/urandom\0");
            let (first, second) = (program.read_from(random, 64).unwrap(), program.read_from(random, 64).unwrap());
            assert!(first.len() == 64 && first != second && first != [0; 64]);
            for file in [null, zero, random] {
                assert_eq!(program.call(SystemCall::DeviceControl, [file, 0x5401, DATA]), Err(Errno::ENOTTY));
                assert_eq!(program.call(SystemCall::ReadDirectory, [file, DATA, 100]), Err(Errno::ENOTDIR));
                let status = program.place(128);
                program.call(SystemCall::Status, [file, status]).unwrap();
                assert_eq!(program.read_u32(status + 16) & mode::TYPE, mode::CHARACTER);
            }
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

    #[test]
    fn a_directory_is_listed_completely_through_buffers_of_any_length() {
        run(|program| {
            let path = program.store(b"/tmp/list\0");
            program.call(SystemCall::MakeDirectory, [0, path, 0o755]).unwrap();
            let mut names: Vec<String> = (0..40).map(|number| format!("file{}", number * number)).collect();
            for name in &names {
                create(program, format!("/tmp/list/{name}\0").as_bytes(), open::RDWR);
            }
            let directory = program.call(SystemCall::Open, [0, path, open::DIRECTORY as usize, 0]).unwrap();
            assert_eq!(program.call(SystemCall::ReadDirectory, [directory, DATA, 10]), Err(Errno::EINVAL));
            let place = program.place(200);
            let mut found = Vec::new();
            loop {
                let count = program.call(SystemCall::ReadDirectory, [directory, place, 200]).unwrap();
                if count == 0 {
                    break;
                }
                let bytes = program.read(place, count);
                let mut at = 0;
                while at < count {
                    let length = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
                    let name = &bytes[at + 19..at + length];
                    let end = name.iter().position(|&byte| byte == 0).unwrap();
                    found.push(String::from_utf8(name[..end].to_vec()).unwrap());
                    at += length;
                }
                assert_eq!(at, count);
            }
            names.extend([".".into(), "..".into()]);
            names.sort();
            found.sort();
            assert_eq!(found, names);
            assert_eq!(program.read_from(directory, 10), Err(Errno::EISDIR));
            assert_eq!(program.call(SystemCall::Unlink, [0, path, 0x200]), Err(Errno::ENOTEMPTY));
            for name in names.iter().filter(|name| !name.starts_with('.')) {
                remove(program, format!("/tmp/list/{name}\0").as_bytes());
            }
            assert_eq!(program.call(SystemCall::Unlink, [0, path, 0x200]), Ok(0));
        });
    }
}
