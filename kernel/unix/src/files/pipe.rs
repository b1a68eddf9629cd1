//! Pipes: a bounded queue of bytes between a reading and a writing end (pipe(7)).
//!
//! Rules that callers rely on, as on Linux: a write of at most [`ATOMIC`] bytes is not interleaved with others; reading
//! from an empty pipe without writers gives end of file; writing without readers fails with `EPIPE` (there are no
//! signal handlers, so it behaves as if `SIGPIPE` were ignored).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::epoll as event;
use spin::Mutex;
use waiters::Waiters;

use crate::asynchronous::operation::length_of;
use crate::files::byte_queue::ByteQueue;
use crate::process::Process;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::UserBuffer;

/// Bytes that a pipe holds (Linux's default).
pub(crate) const CAPACITY: usize = 65536;
/// Writes up to this size are atomic (`PIPE_BUF`).
pub(crate) const ATOMIC: usize = 4096;

struct State {
    queue: ByteQueue,
    /// For the queue's buffer. The process that made the pipe pays for it, whichever process writes.
    charge: Charge,
    readers_waiting: Waiters,
    writers_waiting: Waiters,
}

/// The shared middle of a pipe.
pub(crate) struct Pipe {
    state: Mutex<State>,
    readers: AtomicUsize,
    writers: AtomicUsize,
}

/// The reading end. The pipe has no reader after the last one was dropped.
pub(crate) struct Reader(Arc<Pipe>);
/// The writing end. The pipe has no writer after the last one was dropped.
pub(crate) struct Writer(Arc<Pipe>);

/// Creates a pipe, for a process with this account. The ends are charged as open files.
pub(crate) fn pipe(account: &Arc<Account>) -> (Reader, Writer) {
    let state = State {
        queue: ByteQueue::new(),
        charge: account.nothing(Resource::Memory),
        readers_waiting: Waiters::new(),
        writers_waiting: Waiters::new(),
    };
    let pipe = Arc::new(Pipe { state: Mutex::new(state), readers: AtomicUsize::new(1), writers: AtomicUsize::new(1) });
    (Reader(pipe.clone()), Writer(pipe))
}

impl State {
    /// Makes room for `more` bytes in the queue. `ENOMEM` if the pipe's owner may not have them, or if memory is
    /// exhausted.
    #[cold]
    fn grow(&mut self, more: usize) -> Result<(), Errno> {
        self.charge.account().admit()?;
        self.charge.resize(self.queue.memory_with(more, CAPACITY))?;
        let grown = self.queue.reserve(more, CAPACITY);
        if grown.is_err() {
            self.charge.shrink_to(self.queue.memory());
        }
        grown
    }
}

impl Reader {
    /// Reads the bytes that are there, up to the buffer's length, into the memory of `process`.
    ///
    /// Pending means that the pipe is empty; `waker` is then registered if there is one.
    pub(crate) fn read(
        &self,
        process: &Process,
        buffer: UserBuffer,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.0.state.lock();
        if state.queue.is_empty() {
            // Acquire: pairs with the writer's release on drop; its last bytes are in the queue under the lock.
            if self.0.writers.load(Ordering::Acquire) == 0 {
                return Poll::Ready(Ok(0));
            }
            if let Some(waker) = waker {
                state.readers_waiting.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        }
        let mut done = 0;
        while done < buffer.len() {
            let piece = state.queue.front();
            let count = piece.len().min(buffer.len() - done);
            if count == 0 {
                break;
            }
            if let Err(error) = process.copy_out(buffer.address() + done, &piece[..count]) {
                if done == 0 {
                    return Poll::Ready(Err(error));
                }
                break;
            }
            state.queue.consume(count);
            done += count;
        }
        // The queue may have given its buffer back.
        let memory = state.queue.memory();
        state.charge.shrink_to(memory);
        state.writers_waiting.wake_all();
        Poll::Ready(Ok(done))
    }

    /// Registers a waker for input; returns `false` if input or its end is there already, or if there is no memory.
    pub(crate) fn register_for_input(&self, waker: &Waker) -> bool {
        let mut state = self.0.state.lock();
        let must_wait = state.queue.is_empty() && self.0.writers.load(Ordering::Acquire) != 0;
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
    /// Writes buffers from the memory of `process`, starting at `*done` bytes into them and advancing it. If all of
    /// them have at most [`ATOMIC`] bytes, these come out of the pipe without others in between.
    ///
    /// Ready when everything was written, or with an error. Pending means that the pipe is full; `waker` is then
    /// registered if there is one. Without a waker and with something written the caller decides about the result.
    pub(crate) fn write(
        &self,
        process: &Process,
        buffers: &[UserBuffer],
        done: &mut usize,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        let total = length_of(buffers);
        let mut state = self.0.state.lock();
        let mut begin = 0;
        for buffer in buffers {
            let end = begin + buffer.len();
            while *done < end {
                let rest = total - *done;
                if self.0.readers.load(Ordering::Acquire) == 0 {
                    return Poll::Ready(if *done == 0 { Err(Errno::EPIPE) } else { Ok(*done) });
                }
                let room = CAPACITY - state.queue.len();
                // A short write waits until there is room for all of it, and does not stop before its end then.
                let wanted = if total > ATOMIC { rest.min(room) } else { rest };
                if room < wanted || wanted == 0 {
                    let registered = waker.map_or(Ok(()), |waker| state.writers_waiting.register(waker));
                    return match registered {
                        Ok(()) => Poll::Pending,
                        // The bytes written so far are in `done`: the caller decides whether the call ends here.
                        Err(_) => Poll::Ready(Err(Errno::ENOMEM)),
                    };
                }
                // EVERY-BYTE, ADMISSION: bytes that wait in pipes must not use up the memory that others need.
                let grown = if state.queue.would_grow(wanted, CAPACITY) { state.grow(wanted) } else { Ok(()) };
                if let Err(error) = grown {
                    return Poll::Ready(if *done == 0 { Err(error) } else { Ok(*done) });
                }
                let piece = state.queue.back();
                let count = wanted.min(end - *done).min(piece.len());
                if let Err(error) = process.copy_in(buffer.address() + (*done - begin), &mut piece[..count]) {
                    return Poll::Ready(if *done == 0 { Err(error) } else { Ok(*done) });
                }
                state.queue.produce(count);
                *done += count;
                state.readers_waiting.wake_all();
            }
            begin = end;
        }
        Poll::Ready(Ok(*done))
    }

    /// Returns the epoll events for which a call would not wait; `waker` is registered if there is one.
    pub(crate) fn readiness(&self, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut state = self.0.state.lock();
        if let Some(waker) = waker {
            state.writers_waiting.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        let room = if CAPACITY - state.queue.len() >= ATOMIC { event::OUT | event::WRNORM } else { 0 };
        let end = if self.0.readers.load(Ordering::Acquire) == 0 { event::ERR } else { 0 };
        Ok(room | end)
    }

    /// Takes back the registration of [`write`](Self::write) or [`readiness`](Self::readiness).
    pub(crate) fn forget(&self, waker: &Waker) {
        self.0.state.lock().writers_waiting.forget(waker);
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
