//! Timers behind descriptors, whose expirations are read (timerfd_create(2)).
//!
//! A timer that nobody waits for is a [`Schedule`] and nothing else: expirations are counted when they are read. While
//! somebody waits, one deadline is set, whose waker is the timer itself, and wakes all that wait. So a timer has no
//! coroutine, however many wait.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::timer::Setting;
use abi_unix::types::{Status, epoll as event};
use spin::Mutex;
use waiters::Waiters;

use crate::files::file::{Attempt, FileOperations, status_of_anonymous};
use crate::process::user::{Caller, UserBuffer};
use crate::time::schedule::Schedule;
use crate::time::{self, Alarm};

/// A timer, the object of `timerfd_create`.
#[doc(alias = "timerfd_ctx")]
pub(crate) struct TimerFile {
    /// Nanoseconds by which its clock is ahead of the monotonic one.
    ahead_ns: u64,
    expiring: Arc<Expiring>,
}

/// The part of a timer that its deadline reaches.
struct Expiring(Mutex<TimerFileState>);

#[derive(Default)]
struct TimerFileState {
    schedule: Schedule,
    /// Expirations that were counted and not read.
    unread: u64,
    waiting: Waiters,
    /// The deadline, while anyone waits.
    alarm: Option<Alarm>,
}

impl Wake for Expiring {
    fn wake(self: Arc<Self>) {
        let mut state = self.0.lock();
        if let Some(alarm) = state.alarm.take() {
            // Met; or that of a later setting, which the waiters set again.
            time::clear(alarm);
        }
        state.waiting.wake_all();
    }
}

impl TimerFile {
    /// Makes a timer that is not set, on a clock that is so far ahead of the monotonic one.
    pub(crate) fn new(ahead_ns: u64) -> TimerFile {
        TimerFile { ahead_ns, expiring: Arc::new(Expiring(Mutex::default())) }
    }

    /// Sets the timer, and forgets what was not read; returns what was left of the old setting.
    pub(crate) fn set(&self, setting: Setting, is_absolute: bool) -> Setting {
        let now = time::now_ns();
        let mut state = self.expiring.0.lock();
        state.unread = 0;
        state.schedule.expirations(now);
        let left = state.schedule.left(now);
        state.schedule = if is_absolute { Schedule::at(setting, self.ahead_ns) } else { Schedule::after(setting, now) };
        let alarm = state.alarm.take();
        // They look again, and set the new deadline.
        state.waiting.wake_all();
        drop(state);
        if let Some(alarm) = alarm {
            time::clear(alarm);
        }
        left
    }

    /// Returns what is left of the setting.
    pub(crate) fn left(&self) -> Setting {
        let now = time::now_ns();
        let mut state = self.expiring.0.lock();
        state.count(now);
        state.schedule.left(now)
    }

    /// Registers a waker for the next expiration, and for another setting.
    fn register(&self, state: &mut TimerFileState, waker: &Waker) -> Result<(), Errno> {
        if state.alarm.is_none()
            && let Some(next_ns) = state.schedule.next_ns()
        {
            let waker = Waker::from(self.expiring.clone());
            state.alarm = Some(time::set(time::ticks_at_ns(next_ns), &waker)?);
        }
        state.waiting.register(waker).map_err(|_| Errno::ENOMEM)
    }
}

impl TimerFileState {
    /// Counts the expirations up to now; returns those that were not read.
    fn count(&mut self, now_ns: u64) -> u64 {
        self.unread = self.unread.saturating_add(self.schedule.expirations(now_ns));
        self.unread
    }
}

impl Drop for TimerFile {
    fn drop(&mut self) {
        let alarm = self.expiring.0.lock().alarm.take();
        if let Some(alarm) = alarm {
            time::clear(alarm);
        }
    }
}

impl FileOperations for TimerFile {
    fn status(&self) -> Status {
        status_of_anonymous()
    }

    /// Tries to read eight bytes: the number of expirations since the last read or setting.
    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        if buffer.len() < 8 {
            return Poll::Ready(Err(Errno::EINVAL));
        }
        let mut state = self.expiring.0.lock();
        let count = state.count(time::now_ns());
        if count == 0 {
            if let Some(waker) = waker {
                self.register(&mut state, waker)?;
            }
            return Poll::Pending;
        }
        caller.copy_out(buffer.address(), &count.to_le_bytes())?;
        state.unread = 0;
        Poll::Ready(Ok(8))
    }

    /// Returns the epoll events for which a call would not wait; `waker` is registered if there is one.
    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut state = self.expiring.0.lock();
        let is_ready = state.count(time::now_ns()) != 0;
        if let Some(waker) = waker {
            self.register(&mut state, waker)?;
        }
        Ok(if is_ready { event::IN | event::RDNORM } else { 0 })
    }

    /// Takes back a reader's registration.
    fn forget_reader(&self, waker: &Waker) {
        self.expiring.0.lock().waiting.forget(waker);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::testing::{Bell, DATA, run, simulation};

    const MS: u64 = 1_000_000;

    fn pass_ns(ns: u64) {
        simulation().advance(time::ticks_at_ns(ns));
    }

    #[test]
    fn short_buffers_and_bad_addresses_are_refused_and_lose_no_expiration() {
        run(|program| {
            let (process, timer) = (program.process(), TimerFile::new(0));
            timer.set(Setting { value_ns: MS, interval_ns: MS }, false);
            pass_ns(3 * MS + MS / 2);
            let read = |buffer: UserBuffer| timer.read(&*process, buffer, None);
            let [short, unmapped, good] =
                [(DATA, 7), (0x1000, 8), (DATA, 8)].map(|(address, length)| UserBuffer::new(address, length).unwrap());
            assert_eq!(read(short), Poll::Ready(Err(Errno::EINVAL)));
            assert_eq!(read(unmapped), Poll::Ready(Err(Errno::EFAULT)));
            assert_eq!(read(good), Poll::Ready(Ok(8)));
            assert_eq!(program.read_u64(DATA), 3);
            assert_eq!(read(good), Poll::Pending, "they are read once");
        });
    }

    #[test]
    fn another_setting_forgets_what_was_not_read() {
        run(|program| {
            let (process, timer) = (program.process(), TimerFile::new(10 * MS));
            let is_ready = || timer.readiness(&*process, event::IN, None).unwrap() != 0;
            assert_eq!(timer.set(Setting { value_ns: MS, interval_ns: 0 }, false), Setting::default());
            assert!(timer.left().value_ns > MS / 2 && !is_ready());
            pass_ns(2 * MS);
            assert!(is_ready() && timer.left() == Setting::default());
            // On its own clock, which is ahead.
            let at = time::now_ns() + 10 * MS + 5 * MS;
            timer.set(Setting { value_ns: at, interval_ns: 0 }, true);
            assert!(!is_ready());
            let left = timer.left().value_ns;
            assert!((4 * MS..=5 * MS).contains(&left), "{left}");
            timer.set(Setting::default(), false);
            pass_ns(10 * MS);
            assert!(!is_ready(), "it is not set any more");
        });
    }

    /// A waiter is woken when the timer expires and when it is set anew; a forgotten one, or that of a timer that has
    /// gone, is not.
    #[test]
    fn waiters_are_woken_by_the_deadline_and_by_another_setting() {
        run(|program| {
            let process = program.process();
            let timer = TimerFile::new(0);
            let [waiting, forgotten] = [(); 2].map(|()| Arc::new(Bell::default()));
            let rings = |bell: &Arc<Bell>| bell.0.load(Ordering::Relaxed);
            let register = |timer: &TimerFile| {
                for bell in [&waiting, &forgotten] {
                    timer.readiness(&*process, event::IN, Some(&Waker::from(bell.clone()))).unwrap();
                }
                timer.forget_reader(&Waker::from(forgotten.clone()));
            };
            register(&timer);
            timer.set(Setting { value_ns: 5 * MS, interval_ns: 0 }, false);
            assert_eq!((rings(&waiting), rings(&forgotten)), (1, 0));
            register(&timer);
            program.sleep_ns(2_000_000);
            assert_eq!(rings(&waiting), 1, "it is too early");
            program.sleep_ns(10_000_000);
            assert_eq!((rings(&waiting), rings(&forgotten)), (2, 0));
            timer.set(Setting { value_ns: 5 * MS, interval_ns: 0 }, false);
            register(&timer);
            drop(timer);
            program.sleep_ns(10_000_000);
            assert_eq!((rings(&waiting), rings(&forgotten)), (2, 0));
        });
    }
}
