//! Bytes from a pipe or to one without a buffer of the program: `splice` and `tee` (splice(2)).
//!
//! A step copies a piece of the input to a buffer of the kernel, and from there to the output, which is called as for a
//! program whose memory the piece is ([`Gathered`]). Bytes of a pipe stay in it until the output has taken them: it is
//! [borrowed](Reader::borrow) meanwhile, so that no other reader sees them, also while a volume writes them. Bytes of a
//! file are read at a place, which is moved on afterwards. Bytes of a socket or a terminal have left it when they were
//! read, so these read into the pipe itself, as into a program's memory ([`PipeMemory`]): without room or memory for a
//! piece, it stays where it is.
//!
//! A call waits for the first bytes, and for room for them. When some were moved it goes on as long as it need not
//! wait. So bytes that are moved are never followed by a wait, and the places that the program keeps are right.
//!
//! Rejected: pages that are handed over instead of copied. A pipe here is one queue of bytes, as small as its contents.
//! Bytes of a stream in a buffer of the call: no signal could end the wait for a pipe that another writer has filled,
//! and bytes were lost that the pipe had no memory for.

use alloc::sync::Arc;
use core::cell::Cell;
use core::task::{Poll, Waker};

use abi_unix::types::SEEK_SET;
use abi_unix::{Errno, SystemCall};

use crate::asynchronous::relay::{PIECE, Relay, RelayPlace};
use crate::files::fifo;
use crate::files::file::{Attempt, OpenFile};
use crate::files::pipe::{Reader, Writer};
use crate::files::volume::file::VolumeFile;
use crate::process::accounts::Account;
use crate::process::identity::Whom;
use crate::process::user::{Caller, UserBuffer, UserMemory};
use crate::scheduling::steps::{self, Effort, Ends};

/// Returns the end of a pipe that an open file reads from, if it is one.
pub(crate) fn source_of(file: &OpenFile) -> Option<&Reader> {
    file.as_kind::<Reader>().or_else(|| file.as_kind::<fifo::FifoEnd>()?.reader().ok())
}

/// Returns the end of a pipe that an open file writes to, if it is one.
pub(crate) fn sink_of(file: &OpenFile) -> Option<&Writer> {
    file.as_kind::<Writer>().or_else(|| file.as_kind::<fifo::FifoEnd>()?.writer().ok())
}

/// A `splice` or `tee`, decoded: one of its files is a pipe.
pub(crate) struct Splice {
    /// Files, places and progress.
    relay: Relay,
    /// The call does not wait, whatever its files say.
    must_not_wait: bool,
    /// Bytes of a borrowed pipe that a volume is writing.
    held: usize,
}

impl Splice {
    /// Makes one of a relay between its files.
    pub(crate) fn new(mut relay: Relay, must_not_wait: bool) -> Splice {
        if relay.call == SystemCall::Tee {
            // Bytes that stay are copied once.
            relay.length = relay.length.min(PIECE);
        }
        Splice { relay, must_not_wait, held: 0 }
    }

    /// Whether bytes of a pipe are being written, so that the call has to be completed.
    pub(crate) fn holds(&self) -> bool {
        self.held > 0
    }

    /// Returns the call.
    pub(crate) fn call(&self) -> SystemCall {
        self.relay.call
    }

    /// Returns the number of bytes that were moved.
    pub(crate) fn done(&self) -> usize {
        self.relay.done
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&self, waker: &Waker) {
        self.relay.input.object().forget_reader(waker);
        self.relay.output.object().forget_writer(waker);
    }

    /// Moves bytes until all were, or there are none without a wait. `EAGAIN` instead of waiting if the call or the
    /// file that it would wait for does not.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        let attempt = self.attempt(caller, waker);
        // One of the files may still have a waker that another woke.
        if let (Poll::Ready(_), Some(waker)) = (attempt, waker) {
            self.forget(waker);
        }
        attempt
    }

    fn attempt(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        // The first step was the attempt in place.
        if self.relay.done > 0 && waker.is_some() && steps::must_pause(caller, waker) {
            return Poll::Pending;
        }
        let mut effort = Effort::of(2 * PIECE);
        while self.relay.done < self.relay.length {
            let to_wait = if self.relay.done == 0 { waker } else { None };
            let moved = match self.step(caller, to_wait) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(moved)) => moved,
                Poll::Ready(Err(error)) if self.relay.done == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(_)) => break,
                Poll::Pending if self.relay.done > 0 => break,
                Poll::Pending => return Poll::Pending,
            };
            self.relay.done += moved;
            // The bytes of a tee are still there: once more they would come twice.
            if self.relay.call == SystemCall::Tee {
                break;
            }
            // Each byte is copied twice.
            if effort.add(2 * moved) && self.relay.done < self.relay.length && steps::must_stop(caller, waker) {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(self.relay.done))
    }

    /// Moves a piece; returns the number of its bytes, 0 at the end of the input.
    fn step(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        self.relay.piece.fill();
        if self.held > 0 {
            return self.step_from_pipe(caller, 0, waker);
        }
        // Nothing is taken that has no room.
        let mut wanted = PIECE.min(self.relay.length - self.relay.done);
        if let Some(sink) = sink_of(&self.relay.output) {
            match sink.room(waker) {
                Ok(0) => return waits(&self.relay.output, self.must_not_wait),
                Ok(room) => wanted = wanted.min(room),
                Err(error) => {
                    if error == Errno::EPIPE {
                        caller.has_no_reader();
                    }
                    return Poll::Ready(Err(error));
                }
            }
        }
        match (source_of(&self.relay.input), self.relay.from) {
            (Some(_), _) => self.step_from_pipe(caller, wanted, waker),
            (None, RelayPlace::Position) if !self.relay.input.is_regular() => {
                self.step_from_stream(caller, wanted, waker)
            }
            (None, from) => self.step_from_place(caller, from.of(&self.relay.input)?, wanted, waker),
        }
    }

    /// Moves bytes of a file to a pipe.
    fn step_from_place(&mut self, caller: &dyn Caller, from: u64, wanted: usize, waker: Option<&Waker>) -> Attempt {
        let (memory, _) = self.relay.piece.caller(caller);
        let count = match self.relay.input.object().poll_read_at(&memory, UserBuffer::of_kernel(wanted), from, waker) {
            Poll::Ready(count) => count?,
            Poll::Pending => return waits(&self.relay.input, self.must_not_wait),
        };
        let mut moved = 0;
        if count > 0
            && let Poll::Ready(Err(error)) =
                self.relay.output.write(&memory, &[UserBuffer::of_kernel(count)], &mut moved, waker)
        {
            return Poll::Ready(Err(error));
        }
        match &mut self.relay.from {
            RelayPlace::Position => {
                self.relay.input.object().seek((from + moved as u64) as i64, SEEK_SET)?;
            }
            RelayPlace::Kept(at, address) => {
                *at = from + moved as u64;
                caller.copy_out(*address, &at.to_le_bytes())?;
            }
        }
        if moved == 0 && count > 0 { waits(&self.relay.output, self.must_not_wait) } else { Poll::Ready(Ok(moved)) }
    }

    /// Moves bytes of a socket or a terminal to a pipe.
    fn step_from_stream(&mut self, caller: &dyn Caller, wanted: usize, waker: Option<&Waker>) -> Attempt {
        let Some(sink) = sink_of(&self.relay.output) else { return Poll::Ready(Err(Errno::EINVAL)) };
        let memory = PipeMemory { caller, sink, done: Cell::new(0), refused: Cell::new(None) };
        let mut count = 0;
        let taken = self.relay.input.read(&memory, &[UserBuffer::of_kernel(wanted)], &mut count, waker);
        match (taken, memory.refused.get()) {
            (Poll::Ready(_), _) if memory.done.get() > 0 => Poll::Ready(Ok(memory.done.get())),
            // Another writer came first. When there is room again, the next attempt begins anew.
            (Poll::Ready(_), Some(Errno::EAGAIN)) => {
                if let (1.., Some(waker)) = (sink.room(waker)?, waker) {
                    waker.wake_by_ref();
                }
                waits(&self.relay.output, self.must_not_wait)
            }
            (Poll::Ready(_), Some(error)) => {
                if error == Errno::EPIPE {
                    caller.has_no_reader();
                }
                Poll::Ready(Err(error))
            }
            (Poll::Ready(result), None) => Poll::Ready(result),
            (Poll::Pending, _) => waits(&self.relay.input, self.must_not_wait),
        }
    }

    /// Moves or copies bytes of a pipe.
    fn step_from_pipe(&mut self, caller: &dyn Caller, wanted: usize, waker: Option<&Waker>) -> Attempt {
        let Some(source) = source_of(&self.relay.input) else { return Poll::Ready(Err(Errno::EINVAL)) };
        let (memory, _) = self.relay.piece.caller(caller);
        let count = match self.held {
            0 => match source.borrow(&memory, UserBuffer::of_kernel(wanted), waker) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(0)),
                Poll::Ready(count) => count?,
                Poll::Pending => return waits(&self.relay.input, self.must_not_wait),
            },
            held => held,
        };
        let mut moved = 0;
        let buffer = UserBuffer::of_kernel(count);
        let outcome = match self.relay.to {
            RelayPlace::Kept(place, _) => {
                match self.relay.output.object().poll_write_at(&memory, buffer, place, waker) {
                    Poll::Ready(result) => result.map(|count| moved = count),
                    Poll::Pending => Ok(()),
                }
            }
            RelayPlace::Position => match self.relay.output.write(&memory, &[buffer], &mut moved, waker) {
                Poll::Ready(result) => result.map(drop),
                Poll::Pending => Ok(()),
            },
        };
        // A volume has the bytes from when the write was submitted, for a task that waits.
        let is_submitted = moved == 0 && outcome.is_ok() && waker.is_some();
        if is_submitted && self.relay.output.as_kind::<VolumeFile>().is_some() {
            self.held = count;
            return Poll::Pending;
        }
        self.held = 0;
        source.give_back(if self.relay.call == SystemCall::Tee { 0 } else { moved });
        outcome?;
        if moved == 0 {
            return waits(&self.relay.output, self.must_not_wait);
        }
        if let RelayPlace::Kept(place, address) = &mut self.relay.to {
            *place += moved as u64;
            caller.copy_out(*address, &place.to_le_bytes())?;
        }
        Poll::Ready(Ok(moved))
    }
}

impl Drop for Splice {
    fn drop(&mut self) {
        if self.held > 0
            && let Some(source) = source_of(&self.relay.input)
        {
            source.give_back(0);
        }
    }
}

/// Returns the answer of a call that would have to wait for this file.
fn waits(file: &OpenFile, must_not_wait: bool) -> Attempt {
    // A disk answers soon.
    if (must_not_wait || file.is_non_blocking()) && !file.never_waits() {
        Poll::Ready(Err(Errno::EAGAIN))
    } else {
        Poll::Pending
    }
}

/// A caller whose memory is the end of a pipe: bytes that are copied out, in their order, are in it.
struct PipeMemory<'a> {
    caller: &'a dyn Caller,
    sink: &'a Writer,
    /// Bytes that were copied.
    done: Cell<usize>,
    /// The reason why the pipe did not take a piece.
    refused: Cell<Option<Errno>>,
}

impl UserMemory for PipeMemory<'_> {
    fn copy_in(&self, _: usize, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }

    fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        if address != self.done.get() {
            return Err(Errno::EFAULT);
        }
        match self.sink.append(bytes) {
            Ok(()) => {
                self.done.set(address + bytes.len());
                Ok(())
            }
            Err(error) => {
                self.refused.set(Some(error));
                Err(Errno::EFAULT)
            }
        }
    }
}

impl Caller for PipeMemory<'_> {
    fn zero(&self, buffer: UserBuffer) -> Result<(), Errno> {
        const ZEROS: [u8; 256] = [0; 256];
        let (mut at, end) = (buffer.address(), buffer.address() + buffer.len());
        while at < end {
            let count = ZEROS.len().min(end - at);
            self.copy_out(at, &ZEROS[..count])?;
            at += count;
        }
        Ok(())
    }

    fn has_no_reader(&self) {
        self.caller.has_no_reader();
    }

    fn account(&self) -> &Arc<Account> {
        self.caller.account()
    }

    fn whom(&self) -> Whom {
        self.caller.whom()
    }

    fn number(&self) -> u32 {
        self.caller.number()
    }
}

impl Ends for PipeMemory<'_> {
    fn has_ended(&self) -> bool {
        self.caller.has_ended()
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::types::{limit, open, splicing};

    use super::*;
    use crate::files::volume::tests::{mount, open as open_on_volume, unmount, with_volume};
    use crate::process::accounts::Resource;
    use crate::testing::{DATA, Program, run};

    fn contents(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index / 7) as u8).collect()
    }

    /// Splices without places.
    fn splice(program: &mut Program, input: usize, output: usize, count: usize) -> Result<usize, Errno> {
        program.call(SystemCall::Splice, [input, 0, output, 0, count, 0])
    }

    /// A pipe's bytes are a volume's file's once, also if another reader comes while the volume writes.
    #[test]
    fn bytes_of_a_pipe_go_to_a_volume_once() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let (reader, writer) = program.pipe(0);
            let file = open_on_volume(program, "file", open::CREAT | open::RDWR).unwrap();
            program.write_to(writer, b"the first bytes").unwrap();
            let task = program.submit(SystemCall::Splice, [reader, 0, file, 0, 100, 0], 1);
            assert_eq!(task, None);
            // The other reader comes before it, or gets what is not being written.
            let read_at_once = program.submit(SystemCall::Read, [reader, DATA, 3, 0, 0, 0], 2).is_some();
            program.write_to(writer, b"then others").unwrap();
            let mut completions = program.await_completions();
            while completions.len() < 2 - usize::from(read_at_once) {
                completions.extend(program.await_completions());
            }
            let splice = completions.iter().find(|(identity, _)| *identity == 1);
            let Some((_, Ok(spliced))) = splice.copied() else { panic!("{completions:?}") };
            // An empty pipe would be waited for.
            let rest = match spliced + 3 < b"the first bytesthen others".len() {
                true => program.read_from(reader, 100).unwrap(),
                false => Vec::new(),
            };
            let taken = program.read(DATA, 3);
            let place = program.place(100);
            let written = program.call(SystemCall::ReadAt, [file, place, 100, 0]).unwrap();
            assert_eq!(written, spliced);
            let mut found = [program.read(place, written), taken, rest];
            if read_at_once {
                found.swap(0, 1);
            }
            assert_eq!(found.concat(), b"the first bytesthen others");
            // To a pipe again.
            let from = program.store(&0u64.to_le_bytes());
            assert_eq!(program.call(SystemCall::Splice, [file, from, writer, 0, 100, 0]), Ok(spliced));
            assert_eq!(program.read_from(reader, 100).unwrap(), program.read(place, written));
            for file in [reader, writer, file] {
                program.close(file).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn files_that_cannot_be_spliced_are_refused() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let (other_reader, other_writer) = program.pipe(0);
            let file = program.create(b"/tmp/splice\0", open::RDWR);
            let appends = program.create(b"/tmp/splice\0", open::RDWR | open::APPEND);
            let reads = program.create(b"/tmp/splice\0", open::RDONLY);
            let place = program.store(&[0; 8]);
            let negative = program.store(&(-1i64).to_le_bytes());
            program.write_to(writer, b"bytes").unwrap();
            for (input, from, output, to, flags, error) in [
                (99, 0, writer, 0, 0, Errno::EBADF),
                (file, 0, 99, 0, 0, Errno::EBADF),
                (writer, 0, file, 0, 0, Errno::EBADF),
                (reader, 0, reads, 0, 0, Errno::EBADF),
                (file, 0, reader, 0, 0, Errno::EBADF),
                (file, 0, file, 0, 0, Errno::EINVAL),
                (reader, 0, writer, 0, 0, Errno::EINVAL),
                (reader, 0, appends, 0, 0, Errno::EINVAL),
                (file, 0, writer, 0, 16, Errno::EINVAL),
                (file, negative, writer, 0, 0, Errno::EINVAL),
                (reader, 0, file, negative, 0, Errno::EINVAL),
                (file, 0x1000, writer, 0, 0, Errno::EFAULT),
                (reader, place, file, 0, 0, Errno::ESPIPE),
                (file, 0, writer, place, 0, Errno::ESPIPE),
                (reader, place, other_writer, 0, 0, Errno::ESPIPE),
                (reader, 0, other_writer, place, 0, Errno::ESPIPE),
            ] {
                let result = program.call(SystemCall::Splice, [input, from, output, to, 5, flags]);
                assert_eq!(result, Err(error), "{input} {from:#x} {output} {to:#x} {flags}");
            }
            assert_eq!(program.call(SystemCall::Splice, [99, 0, 99, 0, 0, 16]), Ok(0), "nothing is always allowed");
            for (input, output, flags, error) in [
                (99, writer, 0, Errno::EBADF),
                (writer, other_writer, 0, Errno::EBADF),
                (reader, other_reader, 0, Errno::EBADF),
                (reader, writer, 0, Errno::EINVAL),
                (reader, file, 0, Errno::EINVAL),
                (file, writer, 0, Errno::EINVAL),
                (reader, other_writer, 16, Errno::EINVAL),
            ] {
                assert_eq!(program.call(SystemCall::Tee, [input, output, 5, flags]), Err(error), "{input} {output}");
            }
            for (descriptor, list, count, flags, error) in [
                (99, place, 1, 0, Errno::EBADF),
                (file, place, 1, 0, Errno::EBADF),
                (writer, place, 1, 16, Errno::EINVAL),
                (writer, place, 1025, 0, Errno::EINVAL),
                (writer, 0x1000, 1, 0, Errno::EFAULT),
            ] {
                let result = program.call(SystemCall::SpliceMemory, [descriptor, list, count, flags]);
                assert_eq!(result, Err(error), "{descriptor} {count} {flags}");
            }
            assert_eq!(program.read_from(reader, 9), Ok(b"bytes".to_vec()), "none was lost");
            program.close(other_reader).unwrap();
            program.write_to(writer, b"bytes").unwrap();
            assert_eq!(splice(program, reader, other_writer, 5), Err(Errno::EPIPE));
            assert_eq!(splice(program, file, other_writer, 5), Err(Errno::EPIPE));
            assert_eq!(program.read_from(reader, 9), Ok(b"bytes".to_vec()), "none was lost");
            program.remove(b"/tmp/splice\0");
        });
    }

    #[test]
    fn bytes_go_between_files_and_pipes() {
        run(|program| {
            let bytes = contents(100_000);
            let input = program.create(b"/tmp/input\0", open::RDWR);
            let output = program.create(b"/tmp/output\0", open::RDWR);
            for part in bytes.chunks(20_000) {
                program.write_to(input, part).unwrap();
            }
            let (reader, writer) = program.pipe(0);
            assert_eq!(splice(program, input, writer, 10), Ok(0), "the position is at the end");
            let from = program.store(&10u64.to_le_bytes());
            let moved = program.call(SystemCall::Splice, [input, from, writer, 0, 1 << 20, 0]);
            assert_eq!((moved, program.read_u64(from)), (Ok(65_536), 65_546), "as much as there is room for");
            let to = program.store(&5u64.to_le_bytes());
            let moved = program.call(SystemCall::Splice, [reader, 0, output, to, 50_000, 0]);
            assert_eq!((moved, program.read_u64(to)), (Ok(50_000), 50_005));
            assert_eq!(splice(program, reader, output, 1 << 20), Ok(15_536), "at its position");
            assert_eq!(program.call(SystemCall::Seek, [output, 0, 1]), Ok(15_536));
            let place = program.place(60_000);
            assert_eq!(program.call(SystemCall::ReadAt, [output, place, 60_000, 0]), Ok(50_005));
            let mut expected = vec![0; 50_005];
            expected[5..].copy_from_slice(&bytes[10..50_010]);
            expected[..15_536].copy_from_slice(&bytes[50_010..65_546]);
            assert!(program.read(place, 50_005) == expected);
            program.close(writer).unwrap();
            assert_eq!(splice(program, reader, output, 9), Ok(0), "the end");
            program.remove(b"/tmp/input\0");
            program.remove(b"/tmp/output\0");
        });
    }

    #[test]
    fn bytes_go_between_pipes_and_sockets_and_are_copied_by_tee() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let (second_reader, second_writer) = program.pipe(0);
            let (near, far) = program.socket_pair(1);
            program.write_to(far, b"through").unwrap();
            assert_eq!(splice(program, near, writer, 100), Ok(7));
            assert_eq!(program.call(SystemCall::Tee, [reader, second_writer, 4, 0]), Ok(4));
            assert_eq!(program.call(SystemCall::Tee, [reader, second_writer, 100, 0]), Ok(7));
            assert_eq!(splice(program, reader, near, 100), Ok(7));
            assert_eq!(program.read_from(far, 100), Ok(b"through".to_vec()));
            assert_eq!(splice(program, second_reader, writer, 5), Ok(5));
            assert_eq!(program.read_from(reader, 100), Ok(b"throt".to_vec()));
            assert_eq!(program.read_from(second_reader, 100), Ok(b"hrough".to_vec()));
            for (input, output) in [(reader, second_writer), (near, writer), (reader, near)] {
                let call = [input, 0, output, 0, 5, splicing::NONBLOCK as usize];
                assert_eq!(program.call(SystemCall::Splice, call), Err(Errno::EAGAIN));
            }
            let tee = [reader, second_writer, 5, splicing::NONBLOCK as usize];
            assert_eq!(program.call(SystemCall::Tee, tee), Err(Errno::EAGAIN));
        });
    }

    #[test]
    fn memory_is_spliced_by_its_buffers() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let bytes = program.store(b"first second");
            let list = [bytes + 6, 6, bytes, 6].map(usize::to_le_bytes).concat();
            let list = program.store(&list);
            let flags = splicing::NONBLOCK as usize;
            assert_eq!(program.call(SystemCall::SpliceMemory, [reader, list, 2, flags]), Err(Errno::EAGAIN));
            assert_eq!(program.call(SystemCall::SpliceMemory, [writer, list, 2, flags]), Ok(12));
            assert_eq!(program.call(SystemCall::SpliceMemory, [reader, list, 1, 0]), Ok(6));
            assert_eq!(program.read(bytes, 12), b"first second");
            assert_eq!(program.read_from(reader, 9), Ok(b"first ".to_vec()));
            program.write_to(writer, &[0; 65_536]).unwrap();
            assert_eq!(program.call(SystemCall::SpliceMemory, [writer, list, 2, flags]), Err(Errno::EAGAIN));
            assert_eq!(program.call(SystemCall::SpliceMemory, [writer, list, 0, flags]), Ok(0));
        });
    }

    /// It waits for input and then for room, and can be cancelled without a loss.
    #[test]
    fn a_splice_waits_for_its_first_bytes() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let (full_reader, full_writer) = program.pipe(0);
            let call = [reader, 0, full_writer, 0, 100, 0];
            assert_eq!(program.submit(SystemCall::Splice, call, 1), None);
            program.sleep_ns(100_000);
            assert_eq!(program.completions(), []);
            program.write_to(writer, b"input").unwrap();
            assert_eq!(program.await_completions(), [(1, Ok(5))]);
            assert_eq!(program.read_from(full_reader, 9), Ok(b"input".to_vec()));
            program.write_to(full_writer, &contents(65_536)).unwrap();
            program.write_to(writer, b"input").unwrap();
            assert_eq!(program.submit(SystemCall::Splice, call, 2), None);
            program.sleep_ns(100_000);
            assert_eq!(program.call(SystemCall::Cancel, [2]), Ok(0));
            assert_eq!(program.await_completions(), [(2, Err(Errno::ECANCELED))]);
            assert_eq!(program.submit(SystemCall::Splice, call, 3), None);
            assert_eq!(program.read_from(full_reader, 3), Ok(contents(3)));
            assert_eq!(program.await_completions(), [(3, Ok(3))]);
            assert_eq!(program.read_from(reader, 9), Ok(b"ut".to_vec()));
        });
    }

    /// Bytes that a pipe has no memory for stay in the socket.
    #[test]
    fn bytes_of_a_stream_are_not_lost_when_the_pipe_cannot_grow() {
        run(|program| {
            let child = program.fork(|program| {
                let (reader, writer) = program.pipe(0);
                let (near, far) = program.socket_pair(1);
                assert_eq!(program.write_to(far, &contents(5000)), Ok(5000));
                let used = program.process().account.used(Resource::Memory);
                let (which, before) = (limit::KERNEL_MEMORY as usize, program.place(16));
                assert_eq!(program.call(SystemCall::ProcessLimit, [0, which, 0, before]), Ok(0));
                // Enough for the call, and not for the pipe's buffer beside it.
                let limit = program.store(&limit::to_bytes(used as u64 + 8192, program.read_u64(before + 8)));
                assert_eq!(program.call(SystemCall::ProcessLimit, [0, which, limit, 0]), Ok(0));
                assert_eq!(splice(program, near, writer, 5000), Err(Errno::ENOMEM));
                assert_eq!(program.call(SystemCall::ProcessLimit, [0, which, before, 0]), Ok(0));
                assert_eq!(splice(program, near, writer, 5000), Ok(5000));
                assert_eq!(program.read_from(reader, 5000), Ok(contents(5000)));
                let zeros = program.create(b"/dev/zero\0", open::RDONLY);
                assert_eq!(splice(program, zeros, writer, 700), Ok(700));
                assert_eq!(program.read_from(reader, 5000), Ok(vec![0; 700]));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    #[test]
    fn bytes_go_between_disks_and_pipes_at_places_and_positions() {
        run(|program| {
            let disk = program.create(b"/dev/vda\0", open::RDWR);
            let (reader, writer) = program.pipe(0);
            program.write_to(writer, &contents(9000)).unwrap();
            let (nonblock, at) = (splicing::NONBLOCK as usize, program.store(&20_000u64.to_le_bytes()));
            let mut moved = 0;
            while moved < 9000 {
                let rest = 9000 - moved;
                moved += program.call(SystemCall::Splice, [reader, 0, disk, at, rest, nonblock]).unwrap();
            }
            assert_eq!(program.read_u64(at), 29_000);
            let at = program.store(&20_000u64.to_le_bytes());
            assert_eq!(program.call(SystemCall::Splice, [disk, at, writer, 0, 5000, nonblock]), Ok(5000));
            assert_eq!(program.call(SystemCall::Seek, [disk, 25_000, 0]), Ok(25_000));
            assert_eq!(splice(program, disk, writer, 4000), Ok(4000));
            assert_eq!(program.call(SystemCall::Seek, [disk, 0, 1]), Ok(29_000));
            assert_eq!(program.read_from(reader, 9000), Ok(contents(9000)));
            program.write_to(writer, b"x").unwrap();
            assert_eq!(splice(program, reader, disk, 1), Ok(1));
            let end = program.store(&(1u64 << 40).to_le_bytes());
            assert_eq!(program.call(SystemCall::Splice, [disk, end, writer, 0, 1, 0]), Ok(0));
            program.write_to(writer, b"x").unwrap();
            assert_eq!(program.call(SystemCall::Splice, [reader, 0, disk, end, 1, 0]), Err(Errno::ENOSPC));
            assert_eq!(program.read_from(reader, 9), Ok(b"x".to_vec()), "it was not lost");
            let place = program.place(1);
            assert_eq!(program.call(SystemCall::ReadAt, [disk, place, 1, 29_000]), Ok(1));
            assert_eq!(program.read(place, 1), b"x");
        });
    }

    /// A signal or an end between two steps: bytes are in one of the pipes.
    #[test]
    fn two_splices_of_one_pipe_lose_nothing() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let outputs = [program.pipe(0), program.pipe(0)];
            for (token, (_, output)) in (1..).zip(outputs) {
                assert_eq!(program.submit(SystemCall::Splice, [reader, 0, output, 0, 30_000, 0], token), None);
            }
            program.write_to(writer, &contents(40_000)).unwrap();
            let mut moved = 0;
            let mut ended = 0;
            while ended < 2 && moved < 40_000 {
                for (_, count) in program.await_completions() {
                    ended += 1;
                    moved += count.unwrap();
                }
            }
            let left = 40_000 - moved;
            let mut found = 0;
            for (output, _) in outputs {
                let count = program.call(SystemCall::DeviceControl, [output, 0x541b, crate::testing::DATA]);
                assert_eq!(count, Ok(0));
                found += program.read_u32(crate::testing::DATA) as usize;
            }
            assert_eq!(found, moved);
            let rest = program.place(4);
            assert_eq!(program.call(SystemCall::DeviceControl, [reader, 0x541b, rest]), Ok(0));
            assert_eq!(program.read_u32(rest) as usize, left);
        });
    }
}
