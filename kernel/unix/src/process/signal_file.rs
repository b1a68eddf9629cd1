//! Signals behind a descriptor, which are read instead of handled (signalfd(2)).
//!
//! The file is a set of signals and no more: reading takes those that are pending for the process that reads, so a copy
//! of a process reads its own. The process should block them. Each process that has waited at the file knows it
//! ([`SignalWatch`]), and the sender of a signal wakes the waiters of these files.
//!
//! Signals to one thread alone are read by any thread of the process, not only by that one as on Linux: a file knows
//! its caller as a process.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};

use ::signals::{Details, Information, Set};
use abi_unix::Errno;
use abi_unix::types::{SIGNAL_RECORD, Status, epoll as event};

use crate::files::file::{Attempt, FileOperations, status_of_anonymous};
use crate::process::signals::SignalWatch;
use crate::process::user::{Caller, UserBuffer};
use crate::process::{Process, signal_delivery, table};
use crate::scheduling::steps;

/// The object of `signalfd4`.
#[doc(alias = "signalfd_ctx")]
pub(crate) struct SignalFile(Arc<SignalWatch>);

impl SignalFile {
    /// Makes one for these signals.
    pub(crate) fn new(set: Set) -> SignalFile {
        SignalFile(Arc::new(SignalWatch::new(set)))
    }

    /// Replaces its signals; who waits looks again.
    pub(crate) fn set(&self, set: Set) {
        self.0.set.store(set.bits(), Ordering::Relaxed);
        self.0.wake_all();
    }

    fn signals(&self) -> Set {
        Set::from_bits(self.0.set.load(Ordering::Relaxed))
    }

    /// Registers a waker for the next signal to a process. Registered before the look: a later sender finds it.
    fn register(&self, process: &Process, waker: &Waker) -> Result<(), Errno> {
        process.signals.watch(&self.0)?;
        self.0.waiting.lock().register(waker).map_err(|_| Errno::ENOMEM)
    }
}

/// Returns a signal as it is read (`struct signalfd_siginfo`).
fn record(information: &Information) -> [u8; SIGNAL_RECORD] {
    let mut bytes = [0; SIGNAL_RECORD];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &u32::from(information.signal.number()).to_le_bytes());
    put(8, &information.code.to_le_bytes());
    let mut value_of = |value: u64| {
        put(44, &(value as u32).to_le_bytes());
        put(48, &value.to_le_bytes());
    };
    match information.details {
        Details::None => {}
        Details::Sender { process, user, value } => {
            value_of(value);
            put(12, &process.to_le_bytes());
            put(16, &user.to_le_bytes());
        }
        Details::Child { process, user, status } => {
            put(12, &process.to_le_bytes());
            put(16, &user.to_le_bytes());
            put(40, &status.to_le_bytes());
        }
        Details::Fault(address) => put(72, &address.to_le_bytes()),
        Details::Timer { id, overrun, value } => {
            value_of(value);
            put(24, &id.to_le_bytes());
            put(32, &overrun.to_le_bytes());
        }
    }
    bytes
}

impl FileOperations for SignalFile {
    fn status(&self) -> Status {
        status_of_anonymous()
    }

    /// Tries to read signals that are pending: as many as the buffer has room for, if there are so many.
    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        let room = (buffer.len() / SIGNAL_RECORD).min(steps::ENTRIES);
        if room == 0 {
            return Poll::Ready(Err(Errno::EINVAL));
        }
        let process = table::find(caller.number()).ok_or(Errno::ESRCH)?;
        let mut done = 0;
        if let Some(waker) = waker {
            self.register(&process, waker)?;
        }
        while done < room * SIGNAL_RECORD {
            let Some(information) = signal_delivery::take_pending(&process, self.signals()) else { break };
            if let Err(error) = caller.copy_out(buffer.address() + done, &record(&information)) {
                return Poll::Ready(if done == 0 { Err(error) } else { Ok(done) });
            }
            done += SIGNAL_RECORD;
        }
        if done == 0 {
            return Poll::Pending;
        }
        if let Some(waker) = waker {
            self.forget_reader(waker);
        }
        Poll::Ready(Ok(done))
    }

    fn readiness(&self, caller: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let process = table::find(caller.number()).ok_or(Errno::ESRCH)?;
        if let Some(waker) = waker {
            self.register(&process, waker)?;
        }
        let is_ready = signal_delivery::has_pending(&process, self.signals());
        Ok(if is_ready { event::IN | event::RDNORM } else { 0 })
    }

    fn forget_reader(&self, waker: &Waker) {
        self.0.waiting.lock().forget(waker);
    }
}

#[cfg(test)]
mod tests {
    use ::signals::Signal;
    use abi_unix::SystemCall;
    use abi_unix::types::{TimeSpec, open, signal};

    use super::*;
    use crate::testing::{Program, run};

    const USR1: usize = 10;
    const CHLD: usize = signal::CHLD as usize;

    fn bits(numbers: &[usize]) -> u64 {
        numbers.iter().fold(0, |bits, number| bits | 1 << (number - 1))
    }

    fn open_signals(program: &mut Program, file: i32, numbers: &[usize], flags: u32) -> Result<usize, Errno> {
        let place = program.store(&bits(numbers).to_le_bytes());
        program.call(SystemCall::SignalFile, [file as usize, place, 8, flags as usize])
    }

    fn block(program: &mut Program, numbers: &[usize]) {
        let place = program.store(&bits(numbers).to_le_bytes());
        assert_eq!(program.call(SystemCall::SignalMask, [2, place, 0, 8]), Ok(0));
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn nonsense_is_refused() {
        run(|program| {
            let set = program.store(&bits(&[USR1]).to_le_bytes());
            let (reader, _) = program.pipe(0);
            let none = usize::MAX;
            for (arguments, error) in [
                ([none, set, 7, 0], Errno::EINVAL),
                ([none, set, 8, 1], Errno::EINVAL),
                ([none, 0x1000, 8, 0], Errno::EFAULT),
                ([99, set, 8, 0], Errno::EBADF),
                ([reader, set, 8, 0], Errno::EINVAL),
            ] {
                assert_eq!(program.call(SystemCall::SignalFile, arguments), Err(error), "{arguments:?}");
            }
            let file = open_signals(program, -1, &[USR1], open::NONBLOCK).unwrap();
            assert_eq!(program.read_from(file, SIGNAL_RECORD - 1), Err(Errno::EINVAL));
            assert_eq!(program.read_from(file, SIGNAL_RECORD), Err(Errno::EAGAIN));
            assert_eq!(program.write_to(file, &[0; 8]), Err(Errno::EINVAL));
        });
    }

    #[test]
    fn pending_signals_are_read_once_in_their_order() {
        run(|program| {
            block(program, &[USR1, CHLD, 40]);
            let file = open_signals(program, -1, &[USR1, CHLD, 40], open::NONBLOCK).unwrap();
            let own = program.id as usize;
            let child = program.spawn(|program| {
                let _ = program.call(SystemCall::ExitGroup, [7]);
            });
            let child = child.unwrap();
            program.sleep_ns(5_000_000);
            for number in [40, 40, USR1] {
                assert_eq!(program.call(SystemCall::Kill, [own, number]), Ok(0));
            }
            let found = program.read_from(file, 10 * SIGNAL_RECORD).unwrap();
            let of: Vec<u32> = found.chunks(SIGNAL_RECORD).map(|record| word(record, 0)).collect();
            assert_eq!(of, [10, 17, 40, 40]);
            assert_eq!(word(&found, 12), own as u32);
            let record = &found[SIGNAL_RECORD..];
            assert_eq!((word(record, 8), word(record, 12), word(record, 40)), (1, child as u32, 7));
            assert_eq!(program.read_from(file, SIGNAL_RECORD), Err(Errno::EAGAIN));
            // One to a thread alone, and another set.
            assert_eq!(program.call(SystemCall::KillThread, [own, USR1]), Ok(0));
            assert_eq!(open_signals(program, file as i32, &[40], 0), Ok(file));
            assert_eq!(program.read_from(file, SIGNAL_RECORD), Err(Errno::EAGAIN));
            assert_eq!(open_signals(program, file as i32, &[USR1], 0), Ok(file));
            assert_eq!(program.read_from(file, SIGNAL_RECORD).map(|found| word(&found, 0)), Ok(10));
            assert_eq!(program.wait_for(child), Ok((child, 7 << 8)));
        });
    }

    /// A reader, and one that polls, are woken by the signal; a copy reads its own.
    #[test]
    fn a_signal_wakes_who_waits_for_it() {
        run(|program| {
            block(program, &[USR1]);
            let file = open_signals(program, -1, &[USR1], 0).unwrap();
            let own = program.id as usize;
            let sends = move |program: &mut Program| {
                for _ in 0..2 {
                    program.sleep_ns(1_000_000);
                    assert_eq!(program.call(SystemCall::Kill, [own, USR1]), Ok(0));
                }
            };
            program.add_worker(sends).unwrap();
            let list = program.store(&[(file as u32).to_le_bytes(), 1u32.to_le_bytes()].concat());
            assert_eq!(program.call(SystemCall::Poll, [list, 1, 0, 0, 0]), Ok(1));
            for _ in 0..2 {
                assert_eq!(program.read_from(file, SIGNAL_RECORD).map(|found| word(&found, 12)), Ok(own as u32));
            }
            let child = program.fork(move |program| {
                let own = program.id as usize;
                let sends = move |program: &mut Program| {
                    program.sleep_ns(1_000_000);
                    assert_eq!(program.call(SystemCall::Kill, [own, USR1]), Ok(0));
                };
                program.add_worker(sends).unwrap();
                assert_eq!(program.read_from(file, SIGNAL_RECORD).map(|found| word(&found, 12)), Ok(own as u32));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            // A call beside its worker that is cancelled leaves nothing.
            let place = program.place(SIGNAL_RECORD);
            assert_eq!(program.submit(SystemCall::Read, [file, place, SIGNAL_RECORD], 5), None);
            assert_eq!(program.call(SystemCall::Cancel, [5]), Ok(0));
            assert_eq!(program.await_completions(), [(5, Err(Errno::ECANCELED))]);
            let soon = program.store(&TimeSpec::from_ns(1_000_000).to_bytes());
            assert_eq!(program.call(SystemCall::Poll, [list, 1, soon, 0, 0]), Ok(0));
        });
    }

    #[test]
    fn a_record_has_the_fields_of_its_origin() {
        let information = |details| Information { signal: Signal::CHLD, code: -2, details };
        let timer = record(&information(Details::Timer { id: 3, overrun: 4, value: 0x5_0000_0006 }));
        assert_eq!((word(&timer, 0), word(&timer, 24), word(&timer, 32), word(&timer, 44)), (17, 3, 4, 6));
        assert_eq!(word(&timer, 8) as i32, -2);
        assert_eq!(timer[48..56], 0x5_0000_0006u64.to_le_bytes());
        let fault = record(&information(Details::Fault(0x1234)));
        assert_eq!((word(&fault, 72), word(&fault, 12)), (0x1234, 0));
    }
}
