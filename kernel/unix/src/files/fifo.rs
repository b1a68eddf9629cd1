//! FIFOs: pipes with a name (fifo(7)).
//!
//! A FIFO's node keeps no bytes. Its openings meet in one [`Fifo`], which the first of them makes and pays for, and
//! which the last one takes along with the bytes that are left. The bytes are a [pipe](crate::files::pipe)'s; only the
//! beginning is different: an opening for reading or for writing waits until the other side is opened too. It counts as
//! an end of the pipe from the beginning, so that the other side sees it, and it goes on when the other side *has been*
//! opened: a writer that came and went meanwhile has met it, as on Linux.
//!
//! Rejected: a table of all FIFOs by their numbers. A node leads to its openings without a search, and forgets them
//! with the last one.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};

use abi_queue::Priority;
use abi_unix::Errno;
use abi_unix::types::{Status, epoll as event};
use filesystem::{Access, FileKind, Meeting};
use spin::Mutex;
use waiters::Waiters;

use crate::files::descriptor::Descriptors;
use crate::files::file::{Attempt, FileOperations, OpenFile, Properties, Unit, Waits};
use crate::files::message::MessageSpace;
use crate::files::mounts::{Mount, Node, Place};
use crate::files::pipe::{ATOMIC, Pipe, Reader, Writer};
use crate::files::sent_files::{OutgoingMessage, Receipt, ReceivedMessage};
use crate::files::stored::status_of;
use crate::files::tree::errno_of;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{Caller, UserBuffer};
use crate::scheduling::steps;

/// Numbers of openings that there have been, and those that wait for the other side.
struct Openings {
    for_reading: u64,
    for_writing: u64,
    waiting: Waiters,
}

/// The middle of a FIFO that is open.
struct Fifo {
    pipe: Arc<Pipe>,
    openings: Mutex<Openings>,
    node: Node,
    /// Charge for this and for the pipe, without its bytes.
    _charge: Charge,
}

impl Fifo {
    /// Returns that of a node, for a process with this account.
    fn of(node: &Node, account: &Arc<Account>) -> Result<Arc<Fifo>, Errno> {
        let make = || {
            let charge = account.charge(Resource::Memory, size_of::<Fifo>() + size_of::<Pipe>())?;
            let openings = Mutex::new(Openings { for_reading: 0, for_writing: 0, waiting: Waiters::new() });
            let fifo = Fifo { pipe: Pipe::without_ends(account), openings, node: node.clone(), _charge: charge };
            let meeting: Meeting = Arc::new(fifo);
            Ok(meeting)
        };
        let meeting = match node {
            Node::Stored(node) => {
                let mut refused = None;
                let meeting = node.meeting(|| {
                    make().map_err(|error| {
                        refused = Some(error);
                        filesystem::Error::OutOfMemory
                    })
                });
                meeting.map_err(|error| refused.unwrap_or(errno_of(error)))?
            }
            Node::OnVolume(node) => node.meeting(make)?,
            Node::Generated(_) => return Err(Errno::ENXIO),
        };
        meeting.downcast().map_err(|_| Errno::EIO)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        match &self.node {
            Node::Stored(node) => node.end_meeting(),
            Node::OnVolume(node) => node.end_meeting(),
            Node::Generated(_) => {}
        }
    }
}

/// An open FIFO: one end of its pipe or both.
// The order of the fields matters: a tree that is given up has no nodes.
pub(crate) struct FifoEnd {
    reader: Option<Reader>,
    writer: Option<Writer>,
    fifo: Arc<Fifo>,
    /// For a reader that did not wait for a writer: the number of writers that there had been. That there is none is no
    /// end of the file until one has come.
    before_writers: Option<u64>,
    place: Place,
}

impl FifoEnd {
    /// Returns its reading end. `EBADF` if it was opened for writing only.
    pub(crate) fn reader(&self) -> Result<&Reader, Errno> {
        self.reader.as_ref().ok_or(Errno::EBADF)
    }

    /// Returns its writing end. `EBADF` if it was opened for reading only.
    pub(crate) fn writer(&self) -> Result<&Writer, Errno> {
        self.writer.as_ref().ok_or(Errno::EBADF)
    }

    fn forget(&self, waker: &Waker) {
        self.reader.iter().for_each(|reader| reader.forget(waker));
        self.writer.iter().for_each(|writer| writer.forget(waker));
    }
}

/// An opening of a FIFO that may have to wait for the other side.
pub(crate) struct FifoOpening {
    /// The end, until it gets its descriptor.
    opened: Option<(FifoEnd, Charge)>,
    access: Access,
    is_non_blocking: bool,
    closes_on_execute: bool,
    /// The number of openings of the other side when this one began, if it waits for another.
    seen: Option<u64>,
}

impl FifoOpening {
    /// Begins to open the FIFO in this place. `ENXIO` for a writer that does not wait, if there is no reader.
    pub(crate) fn begin(
        place: Place,
        access: Access,
        (is_non_blocking, closes_on_execute): (bool, bool),
        account: &Arc<Account>,
        charge: Charge,
    ) -> Result<FifoOpening, Errno> {
        if place.node.kind() != FileKind::Fifo {
            return Err(Errno::ENXIO);
        }
        let fifo = Fifo::of(&place.node, account)?;
        let mut openings = fifo.openings.lock();
        let (reads, writes) = (access != Access::Write, access != Access::Read);
        // An opening comes under this lock. A close does not, and may go unnoticed, as if it had come later.
        let (has_readers, has_writers) = (fifo.pipe.has_readers(), fifo.pipe.has_writers());
        if access == Access::Write && is_non_blocking && !has_readers {
            return Err(Errno::ENXIO);
        }
        let (mut seen, mut before_writers) = (None, None);
        match access {
            Access::Read if has_writers => {}
            Access::Read if is_non_blocking => before_writers = Some(openings.for_writing),
            Access::Read => seen = Some(openings.for_writing),
            Access::Write if !has_readers => seen = Some(openings.for_reading),
            Access::Write | Access::ReadWrite => {}
        }
        openings.for_reading += u64::from(reads);
        openings.for_writing += u64::from(writes);
        let reader = reads.then(|| fifo.pipe.reader());
        let writer = writes.then(|| fifo.pipe.writer());
        openings.waiting.wake_all();
        drop(openings);
        let opened = Some((FifoEnd { reader, writer, fifo, before_writers, place }, charge));
        Ok(FifoOpening { opened, access, is_non_blocking, closes_on_execute, seen })
    }

    /// Gives the end its descriptor, if the other side has been opened.
    fn poll(&mut self, descriptors: &Mutex<Descriptors>, waker: Option<&Waker>) -> Attempt {
        if let (Some(seen), Some((end, _))) = (self.seen, &self.opened) {
            let mut openings = end.fifo.openings.lock();
            let now = if self.access == Access::Read { openings.for_writing } else { openings.for_reading };
            if now == seen {
                if let Some(waker) = waker {
                    openings.waiting.register(waker).map_err(|_| Errno::ENOMEM)?;
                }
                return Poll::Pending;
            }
        }
        let (end, charge) = self.opened.take().ok_or(Errno::ENOMEM)?;
        let file = Arc::new(OpenFile::new(end, self.access, self.is_non_blocking, charge));
        Poll::Ready(descriptors.lock().add(file, self.closes_on_execute, 0))
    }

    fn forget(&self, waker: &Waker) {
        if let Some((end, _)) = &self.opened {
            end.fifo.openings.lock().waiting.forget(waker);
        }
    }
}

/// The file to which the path of an `open` has led.
pub(crate) enum FoundFile {
    /// It has its descriptor.
    Descriptor(usize),
    /// A FIFO.
    Fifo(FifoOpening),
}

/// The rest of an `open` that could not be done at once.
pub(crate) enum Opening {
    /// Its path is followed, in steps.
    Walking(Pin<Box<dyn Future<Output = Result<FoundFile, Errno>> + Send>>),
    /// The other side of a FIFO is awaited.
    Meeting(FifoOpening),
}

impl Opening {
    /// Returns whether it waits for the other side, and does not only go on in steps.
    pub(crate) fn waits(&self) -> bool {
        matches!(self, Opening::Meeting(_))
    }

    /// Tries to open.
    pub(crate) fn poll(&mut self, descriptors: &Mutex<Descriptors>, waker: Option<&Waker>) -> Attempt {
        loop {
            match self {
                Opening::Walking(walk) => {
                    let mut context = Context::from_waker(waker.unwrap_or(steps::IN_PLACE));
                    match ready!(walk.as_mut().poll(&mut context))? {
                        FoundFile::Descriptor(descriptor) => return Poll::Ready(Ok(descriptor)),
                        FoundFile::Fifo(opening) => *self = Opening::Meeting(opening),
                    }
                }
                Opening::Meeting(opening) => return opening.poll(descriptors, waker),
            }
        }
    }

    /// Takes back the registration of [`poll`](Self::poll).
    pub(crate) fn forget(&self, waker: &Waker) {
        if let Opening::Meeting(opening) = self {
            opening.forget(waker);
        }
    }
}

impl FileOperations for FifoEnd {
    fn properties(&self) -> Properties {
        match self.writer {
            None => Properties { waits: Waits::ForInput, ..Properties::USUAL },
            Some(_) => Properties { unit: Unit::Message(ATOMIC), ..Properties::USUAL },
        }
    }

    fn status(&self) -> Status {
        status_of(&self.place)
    }

    fn place(&self) -> Option<Place> {
        Some(self.place.clone())
    }

    fn mount(&self) -> Option<&Arc<Mount>> {
        Some(&self.place.mount)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        FileOperations::read(self.reader()?, caller, buffer, waker)
    }

    fn read_all(&self, caller: &dyn Caller, buffers: &[UserBuffer], waker: Option<&Waker>) -> Attempt {
        let reader = self.reader()?;
        let mut done = 0;
        for &buffer in buffers {
            // Only the first may wait; further bytes are taken if they are there.
            match FileOperations::read(reader, caller, buffer, if done == 0 { waker } else { None }) {
                Poll::Ready(Ok(count)) => {
                    done += count;
                    if count < buffer.len() {
                        break;
                    }
                }
                attempt if done == 0 => return attempt,
                _ => break,
            }
        }
        Poll::Ready(Ok(done))
    }

    fn receive_message(&self, caller: &dyn Caller, space: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        self.read_all(caller, space.buffers(), waker).map_ok(ReceivedMessage::of_stream)
    }

    fn write_all(&self, from: &dyn Caller, buffers: &[UserBuffer], done: &mut usize, waker: Option<&Waker>) -> Attempt {
        self.writer()?.write(from, buffers, done, waker)
    }

    fn send_message(&self, from: &dyn Caller, message: OutgoingMessage<'_>, waker: Option<&Waker>) -> Attempt {
        let (buffers, sent) = message.bytes();
        self.writer()?.write(from, buffers, sent, waker)
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut ready = 0;
        if let Some(reader) = &self.reader {
            // Before the look: a writer that opens meanwhile makes no end of what had no writer yet.
            let writers = self.fifo.openings.lock().for_writing;
            ready |= reader.readiness(waker)?;
            if self.before_writers == Some(writers) {
                ready &= !event::HUP;
            }
        }
        if let Some(writer) = &self.writer {
            ready |= writer.readiness(waker)?;
        }
        Ok(ready)
    }

    fn unread(&self) -> Result<usize, Errno> {
        Ok(self.fifo.pipe.unread())
    }

    fn capacity(&self, caller: &Account, wanted: Option<usize>) -> Result<usize, Errno> {
        self.fifo.pipe.capacity(caller, wanted)
    }

    fn forget_reader(&self, waker: &Waker) {
        self.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        self.forget(waker);
    }

    fn register_for_input(&self, _: &dyn Caller, _: Priority, waker: &Waker) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.register_for_input(waker))
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{self, mode, open};

    use super::*;
    use crate::files::volume::tests::in_memory_and_on_a_volume;
    use crate::testing::{DATA, Program};

    const HERE: usize = types::AT_FDCWD as usize;
    const NAME: &str = "/tmp/volume/fifo";

    fn text(program: &mut Program, text: &str) -> usize {
        program.store(format!("{text}\0").as_bytes())
    }

    fn make(program: &mut Program, name: &str, mode: u32) -> Result<usize, Errno> {
        let name = text(program, name);
        program.call(SystemCall::MakeNode, [HERE, name, mode as usize, 0])
    }

    fn open_it(program: &mut Program, flags: u32) -> Result<usize, Errno> {
        let name = text(program, NAME);
        program.call(SystemCall::Open, [HERE, name, flags as usize, 0])
    }

    /// Begins to open asynchronously.
    fn begin(program: &mut Program, flags: u32, token: u64) -> Option<Result<usize, Errno>> {
        let name = text(program, NAME);
        program.submit(SystemCall::Open, [HERE, name, flags as usize, 0], token)
    }

    fn poll(program: &mut Program, file: usize) -> u32 {
        let list = program.store(&[(file as u32).to_le_bytes(), 0xffffu32.to_le_bytes()].concat());
        let time = program.store(&[0; 16]);
        program.call(SystemCall::Poll, [list, 1, time, 0, 0]).unwrap();
        program.read_u32(list + 4) >> 16
    }

    #[test]
    fn nodes_that_cannot_be_made_are_refused() {
        in_memory_and_on_a_volume(|program| {
            for (kind, error) in [
                (mode::CHARACTER, Errno::EPERM),
                (mode::BLOCK, Errno::EPERM),
                (mode::DIRECTORY, Errno::EPERM),
                (mode::LINK, Errno::EINVAL),
                (0o170_000, Errno::EINVAL),
            ] {
                assert_eq!(make(program, NAME, kind | 0o600), Err(error), "{kind:o}");
            }
            assert_eq!(make(program, "/tmp/volume", mode::PIPE), Err(Errno::EEXIST));
            assert_eq!(make(program, "/tmp/volume/missing/fifo", mode::PIPE), Err(Errno::ENOENT));
            assert_eq!(make(program, "/proc/fifo", mode::PIPE), Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::MakeNode, [HERE, 0x1000, mode::PIPE as usize, 0]), Err(Errno::EFAULT));
            let name = text(program, "fifo");
            assert_eq!(program.call(SystemCall::MakeNode, [99, name, mode::PIPE as usize, 0]), Err(Errno::EBADF));
            assert_eq!(open_it(program, open::RDWR), Err(Errno::ENOENT));
            for (name, kind) in [("/tmp/volume/plain", 0), ("/tmp/volume/regular", mode::REGULAR)] {
                assert_eq!(make(program, name, kind | 0o644), Ok(0));
                let file = program.create(format!("{name}\0").as_bytes(), open::RDWR);
                assert_eq!(program.write_to(file, b"text"), Ok(4));
                program.close(file).unwrap();
                program.remove(format!("{name}\0").as_bytes());
            }
        });
    }

    #[test]
    fn a_fifo_is_a_pipe_and_has_the_status_of_its_node() {
        in_memory_and_on_a_volume(|program| {
            assert_eq!(make(program, NAME, mode::PIPE | 0o640), Ok(0));
            assert_eq!(make(program, NAME, mode::PIPE | 0o640), Err(Errno::EEXIST));
            for flags in [open::DIRECTORY, open::CREAT | open::EXCL | open::RDWR] {
                assert!(matches!(open_it(program, flags), Err(Errno::ENOTDIR | Errno::EEXIST)), "{flags:o}");
            }
            let both = open_it(program, open::RDWR | open::TRUNC).unwrap();
            let status = program.place(128);
            assert_eq!(program.call(SystemCall::Status, [both, status]), Ok(0));
            assert_eq!(program.read_u32(status + 16), mode::PIPE | 0o640);
            assert_eq!(program.call(SystemCall::Seek, [both, 0, 0]), Err(Errno::ESPIPE));
            assert_eq!(program.call(SystemCall::ReadAt, [both, DATA, 1, 0]), Err(Errno::ESPIPE));
            assert_eq!(program.call(SystemCall::Truncate, [both, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [both]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::AdviseFile, [both, 0, 0, 0]), Err(Errno::ESPIPE));
            assert_eq!(program.call(SystemCall::ChangeMode, [both, 0o600]), Ok(0));
            let name = text(program, NAME);
            assert_eq!(program.call(SystemCall::TruncateAt, [name, 0]), Err(Errno::EINVAL));
            assert_eq!(program.write_to(both, b"text"), Ok(4));
            // A reader and a writer of the same bytes, without a wait.
            let reader = open_it(program, open::RDONLY).unwrap();
            let writer = open_it(program, open::WRONLY).unwrap();
            assert_eq!(program.write_to(reader, b"x"), Err(Errno::EBADF));
            assert_eq!(program.read_from(writer, 1), Err(Errno::EBADF));
            assert_eq!(program.read_from(reader, 2), Ok(b"te".to_vec()));
            assert_eq!(program.read_from(both, 9), Ok(b"xt".to_vec()));
            // It is without a name, and goes on; with its last opening its bytes are gone.
            program.remove(b"/tmp/volume/fifo\0");
            assert_eq!(program.write_to(writer, b"more"), Ok(4));
            program.close(reader).unwrap();
            program.close(writer).unwrap();
            assert_eq!(program.read_from(both, 9), Ok(b"more".to_vec()));
            program.close(both).unwrap();
        });
    }

    #[test]
    fn bytes_are_gone_with_the_last_opening() {
        in_memory_and_on_a_volume(|program| {
            assert_eq!(make(program, NAME, mode::PIPE | 0o600), Ok(0));
            for text in [b"one", b"two"] {
                let both = open_it(program, open::RDWR | open::NONBLOCK).unwrap();
                assert_eq!(program.read_from(both, 9), Err(Errno::EAGAIN));
                assert_eq!(program.write_to(both, text), Ok(3));
                program.close(both).unwrap();
            }
            program.remove(b"/tmp/volume/fifo\0");
        });
    }

    #[test]
    fn an_opening_that_must_not_wait_does_not() {
        in_memory_and_on_a_volume(|program| {
            assert_eq!(make(program, NAME, mode::PIPE | 0o600), Ok(0));
            assert_eq!(open_it(program, open::WRONLY | open::NONBLOCK), Err(Errno::ENXIO));
            let reader = open_it(program, open::RDONLY | open::NONBLOCK).unwrap();
            assert_eq!(poll(program, reader), 0, "no writer has come, so none has gone");
            assert_eq!(program.read_from(reader, 9), Ok(vec![]));
            let writer = open_it(program, open::WRONLY | open::NONBLOCK).unwrap();
            assert_eq!(program.read_from(reader, 9), Err(Errno::EAGAIN));
            assert_eq!(program.write_to(writer, b"text"), Ok(4));
            assert_eq!(poll(program, reader), event::IN | event::RDNORM);
            program.close(writer).unwrap();
            assert_eq!(poll(program, reader), event::IN | event::RDNORM | event::HUP);
            assert_eq!(program.read_from(reader, 9), Ok(b"text".to_vec()));
            assert_eq!(poll(program, reader), event::HUP);
            program.close(reader).unwrap();
            program.remove(b"/tmp/volume/fifo\0");
        });
    }

    /// Each side waits for the other, and meets one that has gone again.
    #[test]
    fn the_sides_wait_for_each_other() {
        in_memory_and_on_a_volume(|program| {
            assert_eq!(make(program, NAME, mode::PIPE | 0o600), Ok(0));
            for (first, second) in [(open::RDONLY, open::WRONLY), (open::WRONLY, open::RDONLY)] {
                assert_eq!(begin(program, first, 1), None);
                // One more of the same side changes nothing.
                assert_eq!(begin(program, first, 2), None);
                program.sleep_ns(100_000);
                assert_eq!(program.completions(), []);
                let other = open_it(program, second | open::NONBLOCK).unwrap();
                program.close(other).unwrap();
                let mut met = program.await_completions();
                if met.len() < 2 {
                    met.extend(program.await_completions());
                }
                met.sort_by_key(|completion| completion.0);
                assert_eq!(met.iter().map(|completion| completion.0).collect::<Vec<_>>(), [1, 2]);
                for (_, descriptor) in met {
                    program.close(descriptor.unwrap()).unwrap();
                }
            }
            program.remove(b"/tmp/volume/fifo\0");
        });
    }

    /// One that is given up was no reader, and is seen by none.
    #[test]
    fn an_opening_can_be_cancelled_and_its_process_can_end() {
        in_memory_and_on_a_volume(|program| {
            assert_eq!(make(program, NAME, mode::PIPE | 0o600), Ok(0));
            assert_eq!(begin(program, open::RDONLY, 1), None);
            program.sleep_ns(100_000);
            assert_eq!(program.call(SystemCall::Cancel, [1]), Ok(0));
            assert_eq!(program.await_completions(), [(1, Err(Errno::ECANCELED))]);
            assert_eq!(open_it(program, open::WRONLY | open::NONBLOCK), Err(Errno::ENXIO));
            let child = program
                .spawn(|program| {
                    program
                        .add_worker(|program| {
                            let _ = open_it(program, open::RDONLY);
                        })
                        .unwrap();
                    program.sleep_ns(1_000_000);
                    let _ = program.call(SystemCall::ExitGroup, [5]);
                })
                .unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 5 << 8)));
            assert_eq!(open_it(program, open::WRONLY | open::NONBLOCK), Err(Errno::ENXIO));
            program.remove(b"/tmp/volume/fifo\0");
        });
    }

    /// A path that is followed in steps leads to a FIFO too, and the wait at its end can be cancelled.
    #[test]
    fn a_long_path_leads_to_a_fifo() {
        in_memory_and_on_a_volume(|program| {
            assert_eq!(make(program, NAME, mode::PIPE | 0o600), Ok(0));
            let path = "/tmp/../".repeat(400) + "tmp/volume/fifo";
            let path = text(program, &path);
            let both = program.call(SystemCall::Open, [HERE, path, open::RDWR as usize, 0]).unwrap();
            program.close(both).unwrap();
            let arguments = [HERE, path, open::RDONLY as usize, 0];
            assert_eq!(program.submit(SystemCall::Open, arguments, 7), None);
            program.sleep_ns(10_000_000);
            assert_eq!(program.call(SystemCall::Cancel, [7]), Ok(0));
            assert_eq!(program.await_completions(), [(7, Err(Errno::ECANCELED))]);
            program.remove(b"/tmp/volume/fifo\0");
        });
    }

    /// Vectors of many buffers go through an end that both reads and writes.
    #[test]
    fn many_buffers_go_both_ways() {
        in_memory_and_on_a_volume(|program| {
            assert_eq!(make(program, NAME, mode::PIPE | 0o600), Ok(0));
            let both = open_it(program, open::RDWR | open::NONBLOCK).unwrap();
            let bytes = program.store(&[7; 64]);
            let vector: Vec<u8> = [bytes, 4].repeat(200).iter().flat_map(|word| word.to_le_bytes()).collect();
            let vector = program.store(&vector);
            assert_eq!(program.call(SystemCall::ReadVector, [both, vector, 200]), Err(Errno::EAGAIN));
            assert_eq!(program.call(SystemCall::WriteVector, [both, vector, 200]), Ok(800));
            assert_eq!(program.call(SystemCall::ReadVector, [both, vector, 3]), Ok(12));
            assert_eq!(program.call(SystemCall::ReadVector, [both, vector, 200]), Ok(788));
            program.close(both).unwrap();
            program.remove(b"/tmp/volume/fifo\0");
        });
    }
}
