//! Event counters, with which programs wake each other's event loops (eventfd(2)).

use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::Status;
use abi_unix::types::epoll as event;
use spin::Mutex;
use waiters::Waiters;

use crate::files::file::{Attempt, FileOperations, status_of_anonymous};
use crate::process::user::{Caller, UserBuffer};

/// An event counter, the object of `eventfd2`: a number that writers add to and readers take.
#[doc(alias = "eventfd_ctx")]
pub(crate) struct EventCounter {
    takes_one: bool,
    value: AtomicU64,
    waiting: Mutex<(Waiters, Waiters)>,
}

impl EventCounter {
    /// The largest value; a write that would exceed it waits.
    const LARGEST: u64 = u64::MAX - 1;

    /// Creates a counter with a value; each read takes one (`EFD_SEMAPHORE`), or all.
    pub(crate) fn new(value: u64, takes_one: bool) -> EventCounter {
        EventCounter { takes_one, value: AtomicU64::new(value), waiting: Mutex::default() }
    }
}

impl FileOperations for EventCounter {
    fn status(&self) -> Status {
        status_of_anonymous()
    }

    /// Tries to read eight bytes: the value, or one of it.
    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        if buffer.len() < 8 {
            return Poll::Ready(Err(Errno::EINVAL));
        }
        let mut waiting = self.waiting.lock();
        // Relaxed: the value changes under the lock only.
        let value = self.value.load(Ordering::Relaxed);
        if value == 0 {
            if let Some(waker) = waker {
                waiting.0.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        }
        let taken = if self.takes_one { 1 } else { value };
        caller.copy_out(buffer.address(), &taken.to_le_bytes())?;
        self.value.store(value - taken, Ordering::Relaxed);
        waiting.1.wake_all();
        Poll::Ready(Ok(8))
    }

    /// Tries to write eight bytes: a number to add.
    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        if buffer.len() < 8 {
            return Poll::Ready(Err(Errno::EINVAL));
        }
        let mut bytes = [0; 8];
        caller.copy_in(buffer.address(), &mut bytes)?;
        let number = u64::from_le_bytes(bytes);
        if number > Self::LARGEST {
            return Poll::Ready(Err(Errno::EINVAL));
        }
        let mut waiting = self.waiting.lock();
        let value = self.value.load(Ordering::Relaxed);
        if number > Self::LARGEST - value {
            if let Some(waker) = waker {
                waiting.1.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        }
        self.value.store(value + number, Ordering::Relaxed);
        waiting.0.wake_all();
        *done = 8;
        Poll::Ready(Ok(8))
    }

    /// Returns the epoll events for which a call would not wait; `waker` is registered if there is one.
    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut waiting = self.waiting.lock();
        if let Some(waker) = waker {
            waiting.0.register(waker).map_err(|_| Errno::ENOMEM)?;
            waiting.1.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(match self.value.load(Ordering::Relaxed) {
            0 => event::OUT,
            Self::LARGEST => event::IN,
            _ => event::IN | event::OUT,
        })
    }

    /// Takes back a reader's registration.
    fn forget_reader(&self, waker: &Waker) {
        self.waiting.lock().0.forget(waker);
    }

    /// Takes back a writer's registration.
    fn forget_writer(&self, waker: &Waker) {
        self.waiting.lock().1.forget(waker);
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::open;

    use super::*;
    use crate::testing::{Program, run};

    fn counter(program: &mut Program, value: usize, flags: u32) -> usize {
        program.call(SystemCall::EventCounter, [value, flags as usize]).unwrap()
    }

    #[test]
    fn a_counter_adds_up_and_gives_all_or_one() {
        run(|program| {
            let all = counter(program, 3, open::NONBLOCK);
            assert_eq!(program.write_to(all, &4u64.to_le_bytes()), Ok(8));
            assert_eq!(program.read_from(all, 8), Ok(7u64.to_le_bytes().to_vec()));
            assert_eq!(program.read_from(all, 8), Err(Errno::EAGAIN));
            let one = counter(program, 2, open::NONBLOCK | abi_unix::types::EFD_SEMAPHORE);
            for expected in [Ok(1u64.to_le_bytes().to_vec()), Ok(1u64.to_le_bytes().to_vec()), Err(Errno::EAGAIN)] {
                assert_eq!(program.read_from(one, 8), expected);
            }
            assert_eq!(program.read_from(one, 7), Err(Errno::EINVAL));
            assert_eq!(program.write_to(one, &[0; 7]), Err(Errno::EINVAL));
            assert_eq!(program.write_to(one, &u64::MAX.to_le_bytes()), Err(Errno::EINVAL));
            assert_eq!(program.write_to(one, &(u64::MAX - 1).to_le_bytes()), Ok(8));
            assert_eq!(program.write_to(one, &1u64.to_le_bytes()), Err(Errno::EAGAIN), "it is full");
            assert_eq!(program.write_to(one, &0u64.to_le_bytes()), Ok(8));
        });
    }

    #[test]
    fn readers_and_writers_of_a_counter_wake_each_other() {
        run(|program| {
            let shared = counter(program, 0, 0);
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    assert_eq!(program.write_to(shared, &(u64::MAX - 1).to_le_bytes()), Ok(8));
                    // Waits until the first worker has read.
                    assert_eq!(program.write_to(shared, &5u64.to_le_bytes()), Ok(8));
                })
                .unwrap();
            assert_eq!(program.read_from(shared, 8), Ok((u64::MAX - 1).to_le_bytes().to_vec()));
            assert_eq!(program.read_from(shared, 8), Ok(5u64.to_le_bytes().to_vec()));
        });
    }
}
