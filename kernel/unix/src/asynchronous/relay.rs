//! Bytes from one file to another without a buffer of the program: `sendfile` and `copy_file_range`.
//!
//! A relay reads a piece of the input at a place and writes it to the output, again and again. Both files are called as
//! for a program, whose memory is the piece ([`Gathered`]): so every kind of output will do, and no kind knows of this.
//! Bytes that the output does not take are read again. Only those of a write that waits for a disk are kept until it is
//! done, because the disk may have them already.
//!
//! Rejected: pages of the input that the output keeps. Only sockets could gain by it, and theirs copy.

use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_unix::{Errno, SystemCall, types};

use crate::files::file::{Attempt, OpenFile};
use crate::files::gathered::Gathered;
use crate::process::accounts::Account;
use crate::process::user::{Caller, LARGEST_TRANSFER, UserBuffer};
use crate::scheduling::steps::{self, Effort};

/// Bytes that are moved at once. A kind that moves bytes in steps moves so many in one.
pub(super) const PIECE: usize = steps::BYTES;

/// A place at which a relay reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayPlace {
    /// The file's own position.
    Position,
    /// A place of the program's, and the address at which it is kept.
    Kept(u64, usize),
}

impl RelayPlace {
    /// Returns the number of the byte in this file.
    pub(crate) fn of(self, file: &OpenFile) -> Result<u64, Errno> {
        match self {
            RelayPlace::Position => Ok(file.object().seek(0, types::SEEK_CUR)? as u64),
            RelayPlace::Kept(place, _) => Ok(place),
        }
    }
}

/// A `sendfile` or `copy_file_range`, decoded.
pub(crate) struct Relay {
    pub(super) call: SystemCall,
    pub(super) input: Arc<OpenFile>,
    pub(super) output: Arc<OpenFile>,
    pub(super) from: RelayPlace,
    pub(super) to: RelayPlace,
    pub(super) length: usize,
    pub(super) done: usize,
    pub(super) piece: Gathered,
    /// Bytes of the piece that were read and are being written.
    held: usize,
    /// It is the output that was waited for last.
    is_full: bool,
}

impl Relay {
    /// Makes one of so many bytes, at most, with its memory, which the account pays.
    pub(crate) fn new(
        account: &Arc<Account>,
        call: SystemCall,
        (input, from): (Arc<OpenFile>, RelayPlace),
        (output, to): (Arc<OpenFile>, RelayPlace),
        length: usize,
    ) -> Result<Relay, Errno> {
        let length = length.min(LARGEST_TRANSFER);
        let piece = Gathered::new(account, length.min(PIECE))?;
        Ok(Relay { call, input, output, from, to, length, done: 0, piece, held: 0, is_full: false })
    }

    /// Returns the call.
    pub(crate) fn call(&self) -> SystemCall {
        self.call
    }

    /// Returns the file that is written.
    pub(crate) fn output(&self) -> &OpenFile {
        &self.output
    }

    /// Returns the number of bytes that were moved.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&self, waker: &Waker) {
        self.input.object().forget_reader(waker);
        self.output.object().forget_writer(waker);
    }

    /// Moves bytes until all were, or the input ends. `EAGAIN` instead of waiting if the output does not wait; a disk
    /// is waited for.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        let attempt = self.attempt(caller, waker);
        // A file of a volume may still have the waker, if the other one has failed.
        if let (Poll::Ready(Err(_)), Some(waker)) = (attempt, waker) {
            self.forget(waker);
        }
        attempt
    }

    fn attempt(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        // The first step was the attempt in place.
        if self.done > 0 && waker.is_some() && steps::must_pause(caller, waker) {
            return Poll::Pending;
        }
        let mut effort = Effort::of(2 * PIECE);
        while self.done < self.length {
            let before = self.done;
            match self.step(caller, waker) {
                Poll::Ready(Ok(())) if self.done == before => break,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) if self.done == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(_)) => break,
                Poll::Pending if self.is_full && self.output.is_non_blocking() && !self.output.never_waits() => {
                    if let Some(waker) = waker {
                        self.output.object().forget_writer(waker);
                    }
                    self.output.is_filled_by(caller);
                    return Poll::Ready(if self.done == 0 { Err(Errno::EAGAIN) } else { Ok(self.done) });
                }
                Poll::Pending => return Poll::Pending,
            }
            // Each byte is copied twice.
            if effort.add(2 * (self.done - before)) && self.done < self.length && steps::must_stop(caller, waker) {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(self.done))
    }

    /// Moves a piece: nothing at the end of the input. Pending if the output has no room for all of it.
    fn step(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Poll<Result<(), Errno>> {
        let (from, to) = (self.from.of(&self.input)?, self.to);
        self.piece.fill();
        self.is_full = false;
        let (memory, buffer) = self.piece.caller(caller);
        if self.held == 0 {
            let wanted = UserBuffer::of_kernel(buffer.len().min(self.length - self.done));
            match self.input.object().poll_read_at(&memory, wanted, from, waker) {
                Poll::Ready(count) => self.held = count?,
                Poll::Pending => return Poll::Pending,
            }
        }
        let read = UserBuffer::of_kernel(self.held);
        let mut moved = 0;
        let written = match to {
            _ if self.held == 0 => return Poll::Ready(Ok(())),
            RelayPlace::Kept(place, _) => self.output.object().poll_write_at(&memory, read, place, waker),
            RelayPlace::Position => self.output.write(&memory, &[read], &mut moved, waker),
        };
        match written {
            Poll::Ready(Ok(count)) => moved = count,
            Poll::Ready(Err(error)) => {
                self.held = 0;
                return Poll::Ready(Err(error));
            }
            Poll::Pending => self.is_full = true,
        }
        // A write that waits is one of these bytes as long as none of them was taken.
        if !self.is_full || moved > 0 {
            self.held = 0;
            self.advance(caller, from, moved)?;
        }
        if self.is_full { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// Records that bytes were moved, for the program too.
    fn advance(&mut self, caller: &dyn Caller, from: u64, moved: usize) -> Result<(), Errno> {
        self.done += moved;
        if self.from == RelayPlace::Position {
            self.input.object().seek((from + moved as u64) as i64, types::SEEK_SET)?;
        }
        for place in [&mut self.from, &mut self.to] {
            if let RelayPlace::Kept(at, address) = place {
                *at += moved as u64;
                caller.copy_out(*address, &at.to_le_bytes())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::types::open;

    use super::*;
    use crate::files::volume::tests::{mount, open as open_on_volume, unmount, with_volume};
    use crate::testing::{Program, run};

    fn contents(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index / 7) as u8).collect()
    }

    fn send(program: &mut Program, output: usize, input: usize, place: usize, count: usize) -> Result<usize, Errno> {
        program.call(SystemCall::SendFile, [output, input, place, count])
    }

    #[test]
    fn files_that_cannot_be_relayed_are_refused() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let file = program.create(b"/tmp/relay\0", open::RDWR);
            let appends = program.create(b"/tmp/relay\0", open::RDWR | open::APPEND);
            let negative = program.store(&(-1i64).to_le_bytes());
            for (output, input, place, error) in [
                (writer, 99, 0, Errno::EBADF),
                (99, file, 0, Errno::EBADF),
                (reader, file, 0, Errno::EBADF),
                (writer, writer, 0, Errno::EBADF),
                (file, reader, 0, Errno::EINVAL),
                (appends, file, 0, Errno::EINVAL),
                (writer, file, negative, Errno::EINVAL),
                (writer, file, 0x1000, Errno::EFAULT),
            ] {
                assert_eq!(send(program, output, input, place, 5), Err(error), "{output} {input} {place:#x}");
            }
            let path = program.store(b"/tmp\0");
            let here = types::AT_FDCWD as usize;
            let directory = program.call(SystemCall::Open, [here, path, open::DIRECTORY as usize, 0]).unwrap();
            assert_eq!(send(program, writer, directory, 0, 5), Err(Errno::EINVAL));
            assert_eq!(send(program, writer, file, 0, usize::MAX), Err(Errno::EINVAL));
            // Ranges of one file that overlap.
            assert_eq!(program.write_to(file, &contents(200)), Ok(200));
            let places = program.store(&[100u64.to_le_bytes(), 104u64.to_le_bytes()].concat());
            let copy = |program: &mut Program, input, from, output, to, flags| {
                program.call(SystemCall::CopyFileRange, [input, from, output, to, 5, flags])
            };
            for (input, from, output, to, flags, error) in [
                (file, 0, file, 0, 1, Errno::EINVAL),
                (file, 0, writer, 0, 0, Errno::EINVAL),
                (reader, 0, file, 0, 0, Errno::EINVAL),
                (file, 0, appends, 0, 0, Errno::EBADF),
                (file, negative, file, 0, 0, Errno::EOVERFLOW),
                (directory, 0, file, 0, 0, Errno::EISDIR),
                (file, 0, directory, 0, 0, Errno::EBADF),
                (file, places, file, places + 8, 0, Errno::EINVAL),
                (file, 0x1000, file, 0, 0, Errno::EFAULT),
                (file, 0, file, 0x1000, 0, Errno::EFAULT),
            ] {
                assert_eq!(copy(program, input, from, output, to, flags), Err(error), "{input} {output} {flags}");
            }
            program.remove(b"/tmp/relay\0");
        });
    }

    #[test]
    fn a_file_is_sent_to_whatever_can_be_written() {
        run(|program| {
            let bytes = contents(10_000);
            let input = program.create(b"/tmp/input\0", open::RDWR);
            let output = program.create(b"/tmp/output\0", open::RDWR);
            assert_eq!(program.write_to(input, &bytes), Ok(10_000));
            assert_eq!(send(program, output, input, 0, 100), Ok(0), "the position is at the end");
            assert_eq!(program.call(SystemCall::Seek, [input, 10, 0]), Ok(10));
            assert_eq!(send(program, output, input, 0, 5000), Ok(5000));
            assert_eq!(program.call(SystemCall::Seek, [input, 0, 1]), Ok(5010));
            let place = program.store(&9_000u64.to_le_bytes());
            assert_eq!(send(program, output, input, place, usize::MAX >> 1), Ok(1000));
            assert_eq!((program.read_u64(place), program.call(SystemCall::Seek, [input, 0, 1])), (10_000, Ok(5010)));
            let found = program.place(6000);
            assert_eq!(program.call(SystemCall::ReadAt, [output, found, 8000, 0]), Ok(6000));
            assert_eq!(program.read(found, 6000), [&bytes[10..5010], &bytes[9000..]].concat());
            // A copy within a file, to places of its own.
            let places = program.store(&[100u64.to_le_bytes(), 9_990u64.to_le_bytes()].concat());
            let copied = program.call(SystemCall::CopyFileRange, [input, places, input, places + 8, 3000, 0]);
            assert_eq!(copied, Ok(3000));
            assert_eq!((program.read_u64(places), program.read_u64(places + 8)), (3100, 12_990));
            assert_eq!(program.call(SystemCall::ReadAt, [input, found, 3000, 9_990]), Ok(3000));
            assert_eq!(program.read(found, 3000), bytes[100..3100]);
            program.remove(b"/tmp/input\0");
            program.remove(b"/tmp/output\0");
        });
    }

    /// Files of volumes are read and written as others, whether their pages are in memory or not.
    #[test]
    fn files_of_volumes_are_relayed() {
        with_volume(|program| {
            let bytes = contents(16_000);
            let write_at = |program: &mut Program, file, at: usize| {
                for (number, part) in bytes.chunks(4_000).enumerate() {
                    let data = program.store(part);
                    let place = at + number * 4_000;
                    assert_eq!(program.call(SystemCall::WriteAt, [file, data, part.len(), place]), Ok(part.len()));
                }
            };
            let found = program.place(4_000);
            let check = |program: &mut Program, file, at: usize| {
                for (number, part) in bytes.chunks(4_000).enumerate() {
                    let place = at + number * 4_000;
                    assert_eq!(program.call(SystemCall::ReadAt, [file, found, 4_000, place]), Ok(4_000));
                    assert!(program.read(found, 4_000) == part, "from {place} on");
                }
            };
            assert_eq!(mount(program, 0), Ok(0));
            let file = open_on_volume(program, "file", open::CREAT | open::RDWR).unwrap();
            write_at(program, file, 0);
            program.close(file).unwrap();
            // Nothing of it is in memory then.
            assert_eq!(unmount(program), Ok(0));
            assert_eq!(mount(program, 0), Ok(0));
            let file = open_on_volume(program, "file", open::RDWR).unwrap();
            let stored = program.create(b"/tmp/stored\0", open::RDWR);
            let other = open_on_volume(program, "other", open::CREAT | open::RDWR).unwrap();
            assert_eq!(send(program, stored, file, 0, 32_000), Ok(16_000));
            check(program, stored, 0);
            assert_eq!(program.call(SystemCall::Seek, [file, 0, 1]), Ok(16_000));
            let zero = |program: &mut Program| program.store(&0u64.to_le_bytes());
            let from = zero(program);
            assert_eq!(send(program, other, stored, from, 16_000), Ok(16_000));
            check(program, other, 0);
            // From one volume's file to another, and within one.
            let places = program.store(&[0u64.to_le_bytes(), 16_000u64.to_le_bytes()].concat());
            let copy = [file, places, other, places + 8, 16_000, 0];
            assert_eq!(program.call(SystemCall::CopyFileRange, copy), Ok(16_000));
            check(program, other, 16_000);
            let places = program.store(&[0u64.to_le_bytes(), 48_000u64.to_le_bytes()].concat());
            let copy = [file, places, file, places + 8, 16_000, 0];
            assert_eq!(program.call(SystemCall::CopyFileRange, copy), Ok(16_000));
            check(program, file, 48_000);
            let (reader, writer) = program.pipe(open::NONBLOCK);
            let from = zero(program);
            assert_eq!(send(program, writer, file, from, 16_000), Ok(16_000));
            assert_eq!(program.read_u64(from), 16_000);
            assert_eq!(program.read_from(reader, 16_000).unwrap(), bytes);
            for file in [file, stored, other, reader, writer] {
                program.close(file).unwrap();
            }
            program.remove(b"/tmp/stored\0");
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// A full pipe makes the call wait, or end with what was moved.
    #[test]
    fn a_full_output_is_waited_for() {
        run(|program| {
            let bytes = contents(200_000);
            let input = program.create(b"/tmp/long\0", open::RDWR);
            for part in bytes.chunks(20_000) {
                assert_eq!(program.write_to(input, part), Ok(part.len()));
            }
            let (reader, writer) = program.pipe(open::NONBLOCK);
            let place = program.store(&0u64.to_le_bytes());
            let moved = send(program, writer, input, place, 200_000).unwrap();
            assert!((1024..200_000).contains(&moved) && program.read_u64(place) == moved as u64);
            assert_eq!(send(program, writer, input, place, 200_000), Err(Errno::EAGAIN));
            assert_eq!(program.read_from(reader, moved).unwrap(), bytes[..moved]);
            let (reader, writer) = program.pipe(0);
            let child = program.fork(move |program| {
                let _ = program.call(SystemCall::Close, [reader]);
                let zero = program.store(&0u64.to_le_bytes());
                assert_eq!(send(program, writer, input, zero, 200_000), Ok(200_000));
            });
            let child = child.unwrap();
            assert_eq!(program.call(SystemCall::Close, [writer]), Ok(0));
            let mut found = Vec::new();
            loop {
                let part = program.read_from(reader, 4096).unwrap();
                if part.is_empty() {
                    break;
                }
                found.extend(part);
            }
            assert!(found == bytes);
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            program.remove(b"/tmp/long\0");
        });
    }

    /// An asynchronous one tells how far it has come, when it is cancelled and in the place of the program.
    #[test]
    fn one_that_is_cancelled_says_how_far_it_came() {
        run(|program| {
            let input = program.create(b"/tmp/cancelled\0", open::RDWR);
            assert_eq!(program.write_to(input, &contents(100_000)), Ok(100_000));
            let (reader, writer) = program.pipe(0);
            let place = program.store(&10u64.to_le_bytes());
            assert_eq!(program.submit(SystemCall::SendFile, [writer, input, place, 100_000, 0, 0], 1), None);
            program.sleep_ns(100_000);
            assert_eq!((program.completions(), program.read_u64(place)), (vec![], 10 + 65_536));
            assert_eq!(program.call(SystemCall::Cancel, [1]), Ok(0));
            assert_eq!(program.await_completions(), [(1, Ok(65_536))]);
            assert_eq!(program.read_from(reader, 10), Ok(contents(100)[10..20].to_vec()));
            program.remove(b"/tmp/cancelled\0");
        });
    }
}
