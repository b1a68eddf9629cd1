//! Pipes: a bounded queue of bytes between a reading and a writing end (pipe(7)).
//!
//! Rules that callers rely on, as on Linux: a write of at most [`ATOMIC`] bytes is not interleaved with others; reading
//! from an empty pipe without writers gives end of file; writing without readers raises
//! `SIGPIPE`, which is ignored unless the program has chosen otherwise, and fails with `EPIPE`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_queue::pages::PAGE_SIZE;
use abi_unix::Errno;
use abi_unix::types::{Status, epoll as event, mode};
use spin::Mutex;
use waiters::Waiters;

use crate::files::byte_queue::ByteQueue;
use crate::files::file::{self, Attempt, FileOperations, Properties, Unit, Waits};
use crate::files::pipe_bytes::{BLOCK, PipeBytes};
use crate::files::sent_files::OutgoingMessage;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{Caller, UserBuffer, UserMemory, length_of};
use crate::scheduling::steps::{self, Effort};

/// Bytes that a pipe holds unless it is given another size (Linux's default).
pub(crate) const CAPACITY: usize = 65536;
/// Bytes that a pipe can be made to hold (`/proc/sys/fs/pipe-max-size`). Those of larger ones could not be freed in one
/// step.
pub(crate) const LARGEST: usize = 1 << 20;
/// Bytes of the greatest size that Linux has a number for.
const GREATEST_NUMBER: usize = 1 << 31;
/// Writes up to this size are atomic (`PIPE_BUF`).
pub(crate) const ATOMIC: usize = 4096;

struct PipeState {
    queue: PipeBytes,
    /// Number of bytes that it holds at most.
    capacity: usize,
    /// Charge for the queue's buffers. The process that made the pipe pays for it, whichever process writes.
    charge: Charge,
    readers_waiting: Waiters,
    writers_waiting: Waiters,
    /// Its first bytes are on their way to another file, from where they may come back: readers wait.
    is_borrowed: bool,
}

/// The shared middle of a pipe.
#[doc(alias = "pipe_inode_info")]
pub(crate) struct Pipe {
    state: Mutex<PipeState>,
    // Numbers of ends. The last end counts itself out (release) before it takes the lock to wake the waiters, and a
    // caller looks (acquire) with the lock held before it waits: so one of the two sees the other.
    readers: AtomicUsize,
    writers: AtomicUsize,
}

/// The reading end. The pipe has no reader after the last one was dropped.
pub(crate) struct Reader(Arc<Pipe>);
/// The writing end. The pipe has no writer after the last one was dropped.
pub(crate) struct Writer(Arc<Pipe>);

/// Creates a pipe, for a process with this account. The ends are charged as open files.
pub(crate) fn pipe(account: &Arc<Account>) -> (Reader, Writer) {
    let pipe = Pipe::without_ends(account);
    (pipe.reader(), pipe.writer())
}

impl Pipe {
    /// Creates a pipe that nothing reads or writes yet.
    pub(crate) fn without_ends(account: &Arc<Account>) -> Arc<Pipe> {
        let state = PipeState {
            queue: PipeBytes::new(),
            capacity: CAPACITY,
            charge: account.nothing(Resource::Memory),
            readers_waiting: Waiters::new(),
            writers_waiting: Waiters::new(),
            is_borrowed: false,
        };
        Arc::new(Pipe { state: Mutex::new(state), readers: AtomicUsize::new(0), writers: AtomicUsize::new(0) })
    }

    /// Makes another reading end.
    pub(crate) fn reader(self: &Arc<Pipe>) -> Reader {
        self.readers.fetch_add(1, Ordering::Relaxed);
        Reader(self.clone())
    }

    /// Makes another writing end.
    pub(crate) fn writer(self: &Arc<Pipe>) -> Writer {
        self.writers.fetch_add(1, Ordering::Relaxed);
        Writer(self.clone())
    }

    /// Returns whether it has a reading end.
    pub(crate) fn has_readers(&self) -> bool {
        self.readers.load(Ordering::Acquire) != 0
    }

    /// Returns whether it has a writing end.
    pub(crate) fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Acquire) != 0
    }

    /// Returns the number of bytes in it.
    pub(crate) fn unread(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Returns the number of bytes that it holds at most, after that was changed if another one is wanted.
    pub(crate) fn capacity(&self, caller: &Account, wanted: Option<usize>) -> Result<usize, Errno> {
        wanted.map_or_else(|| Ok(self.state.lock().capacity), |wanted| self.set_capacity(caller, wanted))
    }

    /// Makes it hold at least so many bytes: a power of two of pages, which is returned. `EPERM` above [`LARGEST`], and
    /// for a caller who would make it larger at another one's expense; `EBUSY` if more is in it.
    #[doc(alias = "pipe_set_size")]
    fn set_capacity(&self, caller: &Account, wanted: usize) -> Result<usize, Errno> {
        if wanted > GREATEST_NUMBER {
            return Err(Errno::EINVAL);
        }
        let capacity = wanted.max(PAGE_SIZE).next_power_of_two();
        if capacity > LARGEST {
            return Err(Errno::EPERM);
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.queue.len() > capacity {
            return Err(Errno::EBUSY);
        }
        if capacity > state.capacity && !caller.answers_for(state.charge.account()) {
            return Err(Errno::EPERM);
        }
        state.charge.account().admit()?;
        state.charge.resize(state.queue.memory_for(capacity))?;
        let table = state.queue.prepare(capacity);
        state.charge.shrink_to(state.queue.memory());
        table?;
        state.capacity = capacity;
        // There may be room for what waits, or a writer that waits for room can know that it never comes.
        state.writers_waiting.wake_all();
        Ok(capacity)
    }
}

impl PipeState {
    /// Returns the number of bytes for which there is room.
    #[inline(always)]
    fn room(&self) -> usize {
        // A pipe is not made smaller than its contents.
        self.capacity - self.queue.len()
    }

    /// Makes room for `more` bytes in the queue, at most [`BLOCK`]. `ENOMEM` if the pipe's owner may not have them, or
    /// if memory is exhausted.
    #[cold]
    fn grow(&mut self, more: usize) -> Result<(), Errno> {
        self.charge.account().admit()?;
        self.charge.resize(self.queue.memory_with(more))?;
        let grown = self.queue.reserve(more);
        if grown.is_err() {
            self.charge.shrink_to(self.queue.memory());
        }
        grown
    }
}

/// Takes bytes of a block, up to this length.
#[inline(always)]
fn take(
    queue: &mut ByteQueue,
    memory: &(impl UserMemory + ?Sized),
    address: usize,
    length: usize,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < length {
        let piece = queue.front();
        let count = piece.len().min(length - done);
        if count == 0 {
            break;
        }
        if let Err(error) = memory.copy_out(address + done, &piece[..count]) {
            if done == 0 {
                return Err(error);
            }
            break;
        }
        queue.consume(count);
        done += count;
    }
    Ok(done)
}

/// Takes bytes of several blocks.
#[cold]
#[inline(never)]
fn take_divided(
    state: &mut PipeState,
    memory: &(impl UserMemory + ?Sized),
    buffer: UserBuffer,
) -> Result<usize, Errno> {
    let (mut done, wanted) = (0, buffer.len().min(CAPACITY));
    while done < wanted {
        let taken = state.queue.with_first(|first| take(first, memory, buffer.address() + done, wanted - done));
        match taken {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

impl Reader {
    /// Reads the bytes that are there, up to the buffer's length, into a program's memory; not more than [`CAPACITY`],
    /// which is what one step copies.
    ///
    /// Pending means that the pipe is empty; `waker` is then registered if there is one.
    pub(crate) fn read(
        &self,
        memory: &(impl UserMemory + ?Sized),
        buffer: UserBuffer,
        waker: Option<&Waker>,
    ) -> Attempt {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.0.state.lock();
        if state.queue.is_empty() || state.is_borrowed {
            // Acquire: pairs with the writer's release on drop; its last bytes are in the queue under the lock.
            if !state.is_borrowed && self.0.writers.load(Ordering::Acquire) == 0 {
                return Poll::Ready(Ok(0));
            }
            if let Some(waker) = waker {
                state.readers_waiting.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        }
        let done = match state.queue.undivided() {
            Some(queue) => take(queue, memory, buffer.address(), buffer.len())?,
            None => take_divided(&mut state, memory, buffer)?,
        };
        // The queue may have given its buffer back.
        let memory = state.queue.memory();
        state.charge.shrink_to(memory);
        state.writers_waiting.wake_all();
        Poll::Ready(Ok(done))
    }

    /// Copies the first bytes to `memory`, up to the buffer's length, and keeps other readers away from all bytes until
    /// [`give_back`](Self::give_back): there must be no wait before that. Pending and the end as of
    /// [`read`](Self::read).
    pub(crate) fn borrow(
        &self,
        memory: &(impl UserMemory + ?Sized),
        buffer: UserBuffer,
        waker: Option<&Waker>,
    ) -> Attempt {
        let mut state = self.0.state.lock();
        if state.queue.is_empty() || state.is_borrowed {
            if !state.is_borrowed && !self.0.has_writers() {
                return Poll::Ready(Ok(0));
            }
            if let Some(waker) = waker {
                state.readers_waiting.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        }
        let (first, second) = state.queue.pieces();
        let in_first = first.len().min(buffer.len());
        let in_second = second.len().min(buffer.len() - in_first);
        memory.copy_out(buffer.address(), &first[..in_first])?;
        memory.copy_out(buffer.address() + in_first, &second[..in_second])?;
        state.is_borrowed = true;
        Poll::Ready(Ok(in_first + in_second))
    }

    /// Ends what [`borrow`](Self::borrow) began, and removes so many bytes.
    pub(crate) fn give_back(&self, without: usize) {
        let mut state = self.0.state.lock();
        state.is_borrowed = false;
        state.readers_waiting.wake_all();
        if without > 0 {
            state.queue.consume(without);
            let memory = state.queue.memory();
            state.charge.shrink_to(memory);
            state.writers_waiting.wake_all();
        }
    }

    /// Registers a waker for input; returns `false` if input or its end is there already, or if there is no memory.
    pub(crate) fn register_for_input(&self, waker: &Waker) -> bool {
        let mut state = self.0.state.lock();
        let must_wait = state.is_borrowed || state.queue.is_empty() && self.0.writers.load(Ordering::Acquire) != 0;
        must_wait && state.readers_waiting.register(waker).is_ok()
    }

    /// Returns the epoll events for which a call would not wait; `waker` is registered if there is one.
    pub(crate) fn readiness(&self, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut state = self.0.state.lock();
        if let Some(waker) = waker {
            state.readers_waiting.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        let input = if state.queue.is_empty() { 0 } else { event::IN | event::RDNORM };
        let end = if self.0.writers.load(Ordering::Acquire) == 0 { event::HUP } else { 0 };
        Ok(input | end)
    }

    /// Takes back the registration of [`read`](Self::read) or [`readiness`](Self::readiness).
    pub(crate) fn forget(&self, waker: &Waker) {
        self.0.state.lock().readers_waiting.forget(waker);
    }
}

impl Writer {
    /// Writes buffers from a program's memory, starting at `*done` bytes into them and advancing it. If all of
    /// them have at most [`ATOMIC`] bytes, these come out of the pipe without others in between.
    ///
    /// Ready when everything was written, or with an error. Pending means that the pipe is full; `waker` is then
    /// registered if there is one; or that an interrupt waits after much was written, and `waker` is woken. Without a
    /// waker and with something written the caller decides about the result.
    pub(crate) fn write(
        &self,
        memory: &(impl UserMemory + ?Sized),
        buffers: &[UserBuffer],
        done: &mut usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        let mut state = self.0.state.lock();
        // The usual case: a short write that fits.
        let capacity = state.capacity;
        if let [buffer] = buffers
            && *done == 0
            && let Some(queue) = state.queue.undivided()
            && (1..=ATOMIC.min(capacity - queue.len())).contains(&buffer.len())
            && !queue.would_grow(buffer.len(), BLOCK)
            && self.0.readers.load(Ordering::Acquire) != 0
            && let Some(piece) = queue.back().get_mut(..buffer.len())
        {
            memory.copy_in(buffer.address(), piece)?;
            queue.produce(buffer.len());
            *done = buffer.len();
            state.readers_waiting.wake_all();
            return Poll::Ready(Ok(*done));
        }
        let total = length_of(buffers);
        let mut begin = 0;
        // A short write has few buffers.
        let is_long = total > ATOMIC;
        let mut effort = if is_long { Effort::with_buffers(usize::MAX, buffers.len()) } else { Effort::SHORT };
        for buffer in buffers {
            let end = begin + buffer.len();
            while *done < end {
                let rest = total - *done;
                if self.0.readers.load(Ordering::Acquire) == 0 {
                    return Poll::Ready(if *done == 0 { Err(Errno::EPIPE) } else { Ok(*done) });
                }
                let room = state.room();
                // A short write waits until there is room for all of it, and does not stop before its end then. A long
                // one goes in parts that end where it looks for interrupts.
                let wanted = if is_long { rest.min(room) } else { rest };
                if room < wanted || wanted == 0 {
                    let registered = waker.map_or(Ok(()), |waker| state.writers_waiting.register(waker));
                    return match registered {
                        Ok(()) => Poll::Pending,
                        // The bytes written so far are in `done`: the caller decides whether the call ends here.
                        Err(_) => Poll::Ready(Err(Errno::ENOMEM)),
                    };
                }
                // EVERY-BYTE, ADMISSION: bytes that wait in pipes must not use up the memory that others need.
                let mut most = wanted.min(effort.left());
                // Once for all of the call, but not after other work.
                let needed = if effort.is_spent() { most } else { wanted }.min(BLOCK);
                if state.queue.would_grow(needed) {
                    if let Err(error) = state.grow(needed) {
                        return Poll::Ready(if *done == 0 { Err(error) } else { Ok(*done) });
                    }
                    effort.spend(state.queue.memory().min(BLOCK));
                    most = most.min(effort.left());
                }
                let piece = state.queue.back();
                let count = most.min(end - *done).min(piece.len());
                if let Err(error) = memory.copy_in(buffer.address() + (*done - begin), &mut piece[..count]) {
                    return Poll::Ready(if *done == 0 { Err(error) } else { Ok(*done) });
                }
                state.queue.produce(count);
                *done += count;
                state.readers_waiting.wake_all();
                // Compared in this order: a write that is done at once, as most are, pays nothing for the looks.
                if *done < total && effort.add(count) && steps::stops_for_interrupts(waker) {
                    return Poll::Pending;
                }
            }
            begin = end;
        }
        Poll::Ready(Ok(*done))
    }

    /// Adds bytes of the kernel, all or none. `EAGAIN` without room for them, `ENOMEM` without memory, `EPIPE` without
    /// readers.
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut state = self.0.state.lock();
        if !self.0.has_readers() {
            return Err(Errno::EPIPE);
        }
        if state.room() < bytes.len() {
            return Err(Errno::EAGAIN);
        }
        if state.queue.would_grow(bytes.len()) {
            state.grow(bytes.len())?;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = state.queue.back();
            let count = piece.len().min(rest.len());
            piece[..count].copy_from_slice(&rest[..count]);
            state.queue.produce(count);
            rest = &rest[count..];
        }
        state.readers_waiting.wake_all();
        Ok(())
    }

    /// Returns whether an end reads from this pipe.
    pub(crate) fn is_read_by(&self, reader: &Reader) -> bool {
        Arc::ptr_eq(&self.0, &reader.0)
    }

    /// Returns the number of bytes for which there is room. `EPIPE` without readers. If there is no room the waker is
    /// registered.
    pub(crate) fn room(&self, waker: Option<&Waker>) -> Result<usize, Errno> {
        let mut state = self.0.state.lock();
        if !self.0.has_readers() {
            return Err(Errno::EPIPE);
        }
        let room = state.room();
        if let (0, Some(waker)) = (room, waker) {
            state.writers_waiting.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(room)
    }

    /// Returns the epoll events for which a call would not wait; `waker` is registered if there is one.
    pub(crate) fn readiness(&self, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut state = self.0.state.lock();
        if let Some(waker) = waker {
            state.writers_waiting.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        let room = if state.room() >= ATOMIC { event::OUT | event::WRNORM } else { 0 };
        let end = if self.0.readers.load(Ordering::Acquire) == 0 { event::ERR } else { 0 };
        Ok(room | end)
    }

    /// Takes back the registration of [`write`](Self::write) or [`readiness`](Self::readiness).
    pub(crate) fn forget(&self, waker: &Waker) {
        self.0.state.lock().writers_waiting.forget(waker);
    }
}

/// Returns the `struct stat` of an end of a pipe.
fn status() -> Status {
    file::status_without_contents(mode::PIPE | 0o600, None)
}

impl FileOperations for Reader {
    fn properties(&self) -> Properties {
        Properties { waits: Waits::ForInput, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status()
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        Reader::read(self, caller, buffer, waker)
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        Reader::readiness(self, waker)
    }

    fn unread(&self) -> Result<usize, Errno> {
        Ok(self.0.unread())
    }

    fn capacity(&self, caller: &Account, wanted: Option<usize>) -> Result<usize, Errno> {
        self.0.capacity(caller, wanted)
    }

    fn forget_reader(&self, waker: &Waker) {
        self.forget(waker);
    }

    fn register_for_input(&self, _: &dyn Caller, _: Priority, waker: &Waker) -> bool {
        Reader::register_for_input(self, waker)
    }
}

impl FileOperations for Writer {
    fn capacity(&self, caller: &Account, wanted: Option<usize>) -> Result<usize, Errno> {
        self.0.capacity(caller, wanted)
    }

    fn properties(&self) -> Properties {
        // The bytes of one call come out together if they are few.
        Properties { unit: Unit::Message(ATOMIC), ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status()
    }

    fn write_all(&self, from: &dyn Caller, buffers: &[UserBuffer], done: &mut usize, waker: Option<&Waker>) -> Attempt {
        Writer::write(self, from, buffers, done, waker)
    }

    fn send_message(&self, from: &dyn Caller, message: OutgoingMessage<'_>, waker: Option<&Waker>) -> Attempt {
        let (buffers, sent) = message.bytes();
        Writer::write(self, from, buffers, sent, waker)
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        Writer::readiness(self, waker)
    }

    fn unread(&self) -> Result<usize, Errno> {
        Ok(self.0.unread())
    }

    fn forget_writer(&self, waker: &Waker) {
        self.forget(waker);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Release: this end's actions happen before a writer sees that the reader has gone.
        if self.0.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.state.lock().writers_waiting.wake_all();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.0.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.state.lock().readers_waiting.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use abi_unix::SystemCall;
    use abi_unix::types::control as number;
    use abi_unix::types::open::NONBLOCK;
    use hal_api::Machine as _;
    use platform::Machine;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Program, run};

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Read(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let length = prop_oneof![0usize..100, ATOMIC - 1..ATOMIC + 2, Just(20_000)];
        prop_oneof![length.clone().prop_map(Step::Write), length.prop_map(Step::Read)]
    }

    /// Returns the bytes of a stream from this place on.
    fn pattern(begin: usize, length: usize) -> Vec<u8> {
        (begin..begin + length).map(|index| (index % 251) as u8).collect()
    }

    /// It goes on when the interrupt has been served, also if it may not wait: then up to what there is room for.
    #[test]
    fn a_write_of_much_stops_for_an_interrupt() {
        run(|program| {
            for (flags, expected) in [(NONBLOCK, CAPACITY), (0, CAPACITY)] {
                let (reader, writer) = program.pipe(flags);
                Machine::send_ipi(Machine::hart());
                assert_eq!(program.write_to(writer, &pattern(0, CAPACITY)), Ok(expected));
                assert_eq!(program.read_from(reader, CAPACITY), Ok(pattern(0, expected)));
                assert_eq!(program.write_to(writer, &pattern(0, CAPACITY)), Ok(CAPACITY), "without an interrupt");
                if flags == NONBLOCK {
                    assert_eq!(program.read_from(reader, CAPACITY / 2), Ok(pattern(0, CAPACITY / 2)));
                    Machine::send_ipi(Machine::hart());
                    assert_eq!(program.write_to(writer, &pattern(0, CAPACITY)), Ok(CAPACITY / 2), "room for a half");
                    assert_eq!(program.write_to(writer, &pattern(0, CAPACITY)), Err(Errno::EAGAIN));
                }
                program.close(reader).unwrap();
                program.close(writer).unwrap();
            }
        });
    }

    /// Stores the list of `count` buffers, all of them `length` bytes of a pattern.
    fn many(program: &mut Program, count: usize, length: usize) -> usize {
        let bytes = program.store(&pattern(0, length));
        let parts: Vec<u8> = [bytes, length].repeat(count).iter().flat_map(|word| word.to_le_bytes()).collect();
        program.store(&parts)
    }

    /// Each can cost a page that has to be made.
    #[test]
    fn transfers_of_many_buffers_stop_for_an_interrupt_after_a_few() {
        run(|program| {
            let (reader, writer) = program.pipe(NONBLOCK);
            let vector = many(program, 600, 100);
            Machine::send_ipi(Machine::hart());
            assert_eq!(program.call(SystemCall::WriteVector, [writer, vector, 600]), Ok(60_000), "it goes on");
            Machine::send_ipi(Machine::hart());
            // Reading the list was work.
            assert_eq!(program.call(SystemCall::ReadVector, [reader, vector, 600]), Ok(100));
            assert_eq!(program.call(SystemCall::ReadVector, [reader, vector, 600]), Ok(59_900));
        });
    }

    /// It is gathered in steps first.
    #[test]
    fn a_short_write_of_many_buffers_is_whole_whatever_comes_between() {
        run(|program| {
            let (reader, writer) = program.pipe(NONBLOCK);
            let vector = many(program, 1000, 4);
            let call = [writer, vector, 1000];
            for is_interrupted in [false, true] {
                if is_interrupted {
                    Machine::send_ipi(Machine::hart());
                }
                assert_eq!(program.call(SystemCall::WriteVector, call), Ok(4000));
                assert_eq!(program.read_from(reader, CAPACITY), Ok(pattern(0, 4).repeat(1000)));
            }
            program.write_to(writer, &pattern(0, CAPACITY - 3999)).unwrap();
            Machine::send_ipi(Machine::hart());
            assert_eq!(program.call(SystemCall::WriteVector, call), Err(Errno::EAGAIN), "there is room for 3,999");
            assert_eq!(program.read_from(reader, CAPACITY), Ok(pattern(0, CAPACITY - 3999)));
            // As on Linux, one that meets a bad address writes nothing.
            program.write(vector + 900 * 16, &0x1000usize.to_le_bytes());
            assert_eq!(program.call(SystemCall::WriteVector, call), Err(Errno::EFAULT));
            assert_eq!(program.read_from(reader, CAPACITY), Err(Errno::EAGAIN));
            program.close(reader).unwrap();
            let vector = many(program, 1000, 4);
            assert_eq!(program.call(SystemCall::WriteVector, [writer, vector, 1000]), Err(Errno::EPIPE));
        });
    }

    /// One that waits for room after it was gathered is ended like any other, and has written nothing.
    #[test]
    fn a_short_write_of_many_buffers_can_be_cancelled() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            program.write_to(writer, &pattern(0, CAPACITY)).unwrap();
            let vector = many(program, 1000, 4);
            assert_eq!(program.submit(SystemCall::WriteVector, [writer, vector, 1000], 1), None);
            program.sleep_ns(100_000);
            assert_eq!(program.call(SystemCall::Cancel, [1]), Ok(0));
            assert_eq!(program.await_completions(), [(1, Err(Errno::ECANCELED))]);
            assert_eq!(program.read_from(reader, CAPACITY), Ok(pattern(0, CAPACITY)));
            assert_eq!(program.submit(SystemCall::WriteVector, [writer, vector, 1000], 2), Some(Ok(4000)));
        });
    }

    /// Does the steps with a pipe that never waits, and with a queue.
    fn compare(program: &mut Program, steps: &[Step]) {
        let (reader, writer) = program.pipe(NONBLOCK);
        let mut model = VecDeque::new();
        let mut written = 0;
        for step in steps {
            match *step {
                Step::Write(length) => {
                    let room = CAPACITY - model.len();
                    let expected = match length {
                        0 => Ok(0),
                        length if length <= ATOMIC && length > room => Err(Errno::EAGAIN),
                        _ if room == 0 => Err(Errno::EAGAIN),
                        length => Ok(length.min(room)),
                    };
                    let bytes = pattern(written, length);
                    assert_eq!(program.write_to(writer, &bytes), expected, "{length} bytes, room for {room}");
                    let count = expected.unwrap_or(0);
                    model.extend(&bytes[..count]);
                    written += count;
                }
                Step::Read(0) => assert_eq!(program.read_from(reader, 0), Ok(vec![])),
                Step::Read(_) if model.is_empty() => assert_eq!(program.read_from(reader, 1), Err(Errno::EAGAIN)),
                Step::Read(length) => {
                    let expected: Vec<u8> = model.drain(..length.min(model.len())).collect();
                    assert_eq!(program.read_from(reader, length), Ok(expected));
                }
            }
        }
        program.close(writer).unwrap();
        while !model.is_empty() {
            let expected: Vec<u8> = model.drain(..model.len().min(10_000)).collect();
            assert_eq!(program.read_from(reader, 10_000), Ok(expected));
        }
        assert_eq!(program.read_from(reader, 10), Ok(vec![]), "the end of the file");
        program.close(reader).unwrap();
    }

    proptest! {
        #![proptest_config(property::cases(32))]

        #[test]
        fn a_pipe_behaves_as_a_bounded_queue(steps in prop::collection::vec(step(), 0..60)) {
            run(move |program| compare(program, &steps));
        }
    }

    #[test]
    fn a_reader_waits_for_bytes_and_for_the_last_writer() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let second = program.call(SystemCall::Duplicate, [writer]).unwrap();
            let done = program.place(8);
            let worker = program.add_worker(move |program| {
                assert_eq!(program.read_from(reader, 100), Ok(b"first".to_vec()));
                assert_eq!(program.read_from(reader, 100), Ok(vec![]));
                program.write(done, &[1]);
            });
            assert_eq!(worker, Ok(1));
            program.sleep_ns(100_000);
            assert_eq!(program.write_to(writer, b"first"), Ok(5));
            program.sleep_ns(100_000);
            program.close(writer).unwrap();
            program.sleep_ns(100_000);
            assert_eq!(program.read(done, 1), [0], "there is another writer");
            program.close(second).unwrap();
            program.sleep_ns(100_000);
            assert_eq!(program.read(done, 1), [1]);
        });
    }

    #[test]
    fn a_writer_waits_for_room_for_all_of_a_short_write() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let bytes = pattern(0, CAPACITY / 2);
            assert_eq!(program.write_to(writer, &bytes), Ok(CAPACITY / 2));
            assert_eq!(program.write_to(writer, &bytes), Ok(CAPACITY / 2));
            let done = program.place(8);
            program
                .add_worker(move |program| {
                    assert_eq!(program.write_to(writer, &[7; 100]), Ok(100));
                    program.write(done, &[1]);
                })
                .unwrap();
            program.sleep_ns(100_000);
            assert_eq!(program.read_from(reader, 99).map(|bytes| bytes.len()), Ok(99));
            program.sleep_ns(100_000);
            assert_eq!(program.read(done, 1), [0], "99 bytes are no room for 100");
            assert_eq!(program.read_from(reader, 1).map(|bytes| bytes.len()), Ok(1));
            program.sleep_ns(100_000);
            assert_eq!(program.read(done, 1), [1]);
        });
    }

    #[test]
    fn a_long_write_waits_until_a_reader_has_taken_enough() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let vector = program.place(64);
            let bytes = program.store(&pattern(0, 20_000));
            let parts: Vec<u8> = [bytes, 20_000].repeat(4).iter().flat_map(|word| word.to_le_bytes()).collect();
            program.write(vector, &parts);
            let done = program.place(8);
            program
                .add_worker(move |program| {
                    assert_eq!(program.call(SystemCall::WriteVector, [writer, vector, 4]), Ok(80_000));
                    program.write(done, &[1]);
                })
                .unwrap();
            program.sleep_ns(100_000);
            let mut taken = 0;
            while taken < 80_000 {
                let begin = taken % 20_000;
                let wanted = (20_000 - begin).min(7_000);
                let bytes = program.read_from(reader, wanted).unwrap();
                assert_eq!(bytes, pattern(begin, bytes.len()));
                taken += bytes.len();
            }
            program.sleep_ns(100_000);
            assert_eq!(program.read(done, 1), [1]);
        });
    }

    #[test]
    fn a_writer_without_reader_is_told_so_also_while_it_waits() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let bytes = pattern(0, CAPACITY / 2);
            for _ in 0..2 {
                program.write_to(writer, &bytes).unwrap();
            }
            let done = program.place(8);
            program
                .add_worker(move |program| {
                    assert_eq!(program.write_to(writer, b"x"), Err(Errno::EPIPE));
                    program.write(done, &[1]);
                })
                .unwrap();
            program.sleep_ns(100_000);
            program.close(reader).unwrap();
            program.sleep_ns(100_000);
            assert_eq!(program.read(done, 1), [1]);
            assert_eq!(program.write_to(writer, b"x"), Err(Errno::EPIPE));
        });
    }

    /// A call that meets a fault returns the bytes moved before it, and takes no bytes out of the pipe that were not
    /// copied.
    #[test]
    fn a_bad_address_loses_no_bytes() {
        run(|program| {
            let (reader, writer) = program.pipe(NONBLOCK);
            program.write_to(writer, b"kept").unwrap();
            assert_eq!(program.call(SystemCall::Read, [reader, 0x1000, 4]), Err(Errno::EFAULT));
            assert_eq!(program.read_from(reader, 10), Ok(b"kept".to_vec()));
            assert_eq!(program.call(SystemCall::Write, [writer, 0x1000, 4]), Err(Errno::EFAULT));
            assert_eq!(program.read_from(reader, 10), Err(Errno::EAGAIN));
            let edge = crate::testing::DATA + crate::testing::LENGTH;
            program.write(edge - 3, b"end");
            assert_eq!(program.call(SystemCall::Write, [writer, edge - 3, 10]), Err(Errno::EFAULT));
        });
    }

    #[test]
    fn writing_without_a_reader_raises_the_signal_that_is_ignored_at_first() {
        run(|program| {
            let child = program.spawn(|program| {
                let (reader, writer) = program.pipe(0);
                program.close(reader).unwrap();
                assert_eq!(program.write_to(writer, b"x"), Err(Errno::EPIPE));
                let default = program.store(&[0; 24]);
                assert_eq!(program.call(SystemCall::SignalAction, [13, default, 0, 8]), Ok(0));
                let _ = program.write_to(writer, b"x");
                panic!("the program goes on");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 13)));
        });
    }

    #[test]
    fn a_pipe_can_be_made_smaller_and_larger() {
        run(|program| {
            let (reader, writer) = program.pipe(NONBLOCK);
            let control = |program: &mut Program, end: usize, command: u32, argument: usize| {
                program.call(SystemCall::FileControl, [end, command as usize, argument])
            };
            let set = |program: &mut Program, size: usize| control(program, writer, number::SET_CAPACITY, size);
            let get = |program: &mut Program| control(program, reader, number::GET_CAPACITY, 0);
            assert_eq!(get(program), Ok(CAPACITY));
            for (size, expected) in [
                (0, Ok(4096)),
                (4097, Ok(8192)),
                (LARGEST + 1, Err(Errno::EPERM)),
                (GREATEST_NUMBER, Err(Errno::EPERM)),
                (GREATEST_NUMBER + 1, Err(Errno::EINVAL)),
                (usize::MAX, Err(Errno::EINVAL)),
                (LARGEST - 1, Ok(LARGEST)),
            ] {
                assert_eq!(set(program, size), expected, "{size}");
            }
            assert_eq!(get(program), Ok(LARGEST));
            let counter = program.call(SystemCall::EventCounter, [0, 0]).unwrap();
            assert_eq!(control(program, counter, number::GET_CAPACITY, 0), Err(Errno::EBADF));
            assert_eq!(control(program, counter, number::SET_CAPACITY, 4096), Err(Errno::EBADF));

            // It holds that much, and gives it back in the order in which it came, also across its blocks.
            let mut written = 0;
            while written < LARGEST {
                let piece = pattern(written, (LARGEST - written).min(30_001));
                assert_eq!(program.write_to(writer, &piece), Ok(piece.len()));
                written += piece.len();
            }
            assert_eq!(program.write_to(writer, b"x"), Err(Errno::EAGAIN));
            assert_eq!(set(program, CAPACITY), Err(Errno::EBUSY), "more is in it");
            let mut taken = 0;
            while taken < LARGEST - 100 {
                let bytes = program.read_from(reader, 30_011.min(LARGEST - 100 - taken)).unwrap();
                assert_eq!(bytes, pattern(taken, bytes.len()));
                taken += bytes.len();
            }
            assert_eq!(set(program, 1), Ok(4096));
            assert_eq!(program.write_to(writer, &pattern(LARGEST, 3997)), Err(Errno::EAGAIN), "room for 3,996");
            assert_eq!(program.write_to(writer, &pattern(LARGEST, 3996)), Ok(3996));
            assert_eq!(program.read_from(reader, CAPACITY), Ok(pattern(LARGEST - 100, 4096)));
        });
    }

    /// The process that made it pays for what is in it, and gets that back.
    #[test]
    fn a_large_pipe_is_charged_to_its_maker() {
        run(|program| {
            let charged = |program: &Program| program.process().account.used(Resource::Memory);
            let before = charged(program);
            let (reader, writer) = program.pipe(NONBLOCK);
            let set = [writer, number::SET_CAPACITY as usize, LARGEST];
            assert_eq!(program.call(SystemCall::FileControl, set), Ok(LARGEST));
            let empty = charged(program);
            for _ in 0..10 {
                assert_eq!(program.write_to(writer, &pattern(0, 30_000)), Ok(30_000));
            }
            assert!((300_000..300_000 + 2 * CAPACITY).contains(&(charged(program) - empty)));
            for _ in 0..10 {
                assert_eq!(program.read_from(reader, 30_000).map(|bytes| bytes.len()), Ok(30_000));
            }
            assert_eq!(charged(program), empty);
            program.close(reader).unwrap();
            program.close(writer).unwrap();
            assert_eq!(charged(program), before);
        });
    }

    /// A process with an end can make the pipe smaller, and only those who pay for it make it larger.
    #[test]
    fn a_pipe_does_not_grow_at_the_expense_of_another() {
        run(|program| {
            let (_, writer) = program.pipe(NONBLOCK);
            let set = move |program: &mut Program, size: usize| {
                program.call(SystemCall::FileControl, [writer, number::SET_CAPACITY as usize, size])
            };
            let copy = program.fork(move |program| {
                assert_eq!(set(program, LARGEST), Err(Errno::EPERM));
                assert_eq!((set(program, CAPACITY), set(program, 4096)), (Ok(CAPACITY), Ok(4096)));
                assert_eq!(set(program, CAPACITY), Err(Errno::EPERM));
            });
            let copy = copy.unwrap();
            assert_eq!(program.wait_for(copy), Ok((copy, 0)));
            assert_eq!(set(program, LARGEST), Ok(LARGEST));
            let parent = Account::of_the_first();
            let above = parent.of_a_child().unwrap();
            let (one, two) = (above.of_a_child().unwrap(), above.of_a_child().unwrap());
            assert!(parent.answers_for(&one) && above.answers_for(&one) && one.answers_for(&one));
            assert!(!one.answers_for(&above) && !one.answers_for(&two) && !one.answers_for(&parent));
        });
    }

    /// A writer that waits has room when the pipe was made larger.
    #[test]
    fn a_writer_that_waits_goes_on_when_the_pipe_grows() {
        run(|program| {
            let (_, writer) = program.pipe(0);
            program.write_to(writer, &pattern(0, CAPACITY)).unwrap();
            let done = program.place(8);
            program
                .add_worker(move |program| {
                    assert_eq!(program.write_to(writer, b"x"), Ok(1));
                    program.write(done, &[1]);
                })
                .unwrap();
            program.sleep_ns(100_000);
            let set = [writer, number::SET_CAPACITY as usize, 2 * CAPACITY];
            assert_eq!(program.call(SystemCall::FileControl, set), Ok(2 * CAPACITY));
            program.sleep_ns(100_000);
            assert_eq!(program.read(done, 1), [1]);
        });
    }

    #[test]
    fn each_end_does_one_thing() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            assert_eq!(program.write_to(reader, b"x"), Err(Errno::EBADF));
            assert_eq!(program.read_from(writer, 1), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::Seek, [reader, 0, 0]), Err(Errno::ESPIPE));
            assert_eq!(program.call(SystemCall::Pipe, [0x1000, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::Pipe, [crate::testing::DATA, 1 << 20]), Err(Errno::EINVAL));
            // Neither has left a descriptor.
            assert_eq!(program.call(SystemCall::Duplicate, [writer]), Ok(writer + 1));
        });
    }
}
