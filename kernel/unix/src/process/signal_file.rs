//! Signals behind a descriptor, which are read instead of handled (signalfd(2)).
//!
//! The file is a set of signals and no more: reading takes those that are pending for the reader, to its own thread or
//! to its process, so a copy of a process reads its own. The process should block them. An asynchronous call that goes
//! on by itself has no thread, and takes those to its process alone.
//!
//! # Waiting
//!
//! A process has one list of all waiters for its signals at files ([`Signals::wake_readers`]), and each signal wakes
//! all of them in portions, as on Linux. So a signal costs its sender as much for thousands of files as for one, and
//! each entry of the list is a wait that its process has been charged for. A file notes in which process's list it has
//! registered a waker, since the waker alone is known when the wait is given up. An epoll's item waits for the signals
//! of one process: of that which has looked at it last.
//!
//! Rejected: a list of waiters in each file, and a list of such files in the process. A signal then goes through all
//! files, and through those that have gone.

use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};

use ::signals::{Details, Information, Set};
use abi_unix::Errno;
use abi_unix::types::{SIGNAL_RECORD, Status, epoll as event};
use spin::Mutex;
use tables::Table;

use crate::files::file::{Attempt, FileOperations, status_of_anonymous};
use crate::files::remains::{Remain, leave};
#[cfg(doc)]
use crate::process::signals::Signals;
use crate::process::user::{Caller, UserBuffer};
use crate::process::{Process, signal_delivery, table};
use crate::scheduling::steps;

/// The object of `signalfd4`.
#[doc(alias = "signalfd_ctx")]
pub(crate) struct SignalFile {
    /// Its signals, as bits. A waiter that finds an old set is woken after the change.
    set: AtomicU64,
    /// The waits that have registered here and have not been taken back. Locked before the process's list.
    registrations: Mutex<Table<Registration>>,
}

/// A waker that was registered with a process.
struct Registration {
    waker: Waker,
    /// Number of the process.
    process: u32,
}

impl SignalFile {
    /// Makes one for these signals.
    pub(crate) fn new(set: Set) -> SignalFile {
        SignalFile { set: AtomicU64::new(set.bits()), registrations: Mutex::new(Table::new()) }
    }

    /// Replaces its signals; the waiters of the caller look again.
    pub(crate) fn set(&self, set: Set, caller: &Process) {
        self.set.store(set.bits(), Ordering::Relaxed);
        caller.signals.wake_readers();
    }

    fn signals(&self) -> Set {
        Set::from_bits(self.set.load(Ordering::Relaxed))
    }

    /// Registers a waker for the next signal to a process. Called before the look: a later sender finds it.
    fn register(&self, process: &Process, waker: &Waker) -> Result<(), Errno> {
        let mut registrations = self.registrations.lock();
        let hash = waiters::hash(waker);
        let noted = registrations.find(hash, |registration| registration.waker.will_wake(waker));
        if noted.is_none() {
            registrations.reserve().map_err(|_| Errno::ENOMEM)?;
        }
        process.signals.readers.lock().register(waker).map_err(|_| Errno::ENOMEM)?;
        match noted.and_then(|at| registrations.get_mut(at)) {
            Some(Registration { process: number, .. }) => {
                let before = core::mem::replace(number, process.id);
                if before != process.id {
                    forget_in(before, waker);
                }
            }
            None => {
                registrations.insert(hash, Registration { waker: waker.clone(), process: process.id });
            }
        }
        Ok(())
    }

    fn take(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        let room = (buffer.len() / SIGNAL_RECORD).min(steps::ENTRIES);
        if room == 0 {
            return Poll::Ready(Err(Errno::EINVAL));
        }
        let process = table::find(caller.number()).ok_or(Errno::ESRCH)?;
        if let Some(waker) = waker {
            self.register(&process, waker)?;
        }
        let reader = process.present_worker();
        let mut done = 0;
        while done < room * SIGNAL_RECORD {
            let taken = signal_delivery::take_readable(&process, reader.as_deref(), self.signals());
            let Some(information) = taken else { break };
            if let Err(error) = caller.copy_out(buffer.address() + done, &record(&information)) {
                return Poll::Ready(if done == 0 { Err(error) } else { Ok(done) });
            }
            done += SIGNAL_RECORD;
        }
        if done == 0 { Poll::Pending } else { Poll::Ready(Ok(done)) }
    }
}

impl Drop for SignalFile {
    fn drop(&mut self) {
        // Those of an epoll that watches it: their waits take them back only from a file that is there.
        let registrations = core::mem::take(self.registrations.get_mut());
        if !registrations.is_empty() {
            leave(OrphanedRegistrations(registrations));
        }
    }
}

/// Registrations of a file that has gone, which are still in the lists of processes.
struct OrphanedRegistrations(Table<Registration>);

impl Remain for OrphanedRegistrations {
    fn owner(&self) -> Option<u32> {
        Some(self.0.get(0)?.process)
    }

    fn step(&mut self) -> bool {
        for _ in 0..steps::ENTRIES {
            let Some(last) = self.0.len().checked_sub(1) else { break };
            if let Some(registration) = self.0.remove(last) {
                forget_in(registration.process, &registration.waker);
            }
        }
        self.0.is_empty()
    }
}

/// Takes a waker out of the list of the process with this number, if that has not gone.
fn forget_in(process: u32, waker: &Waker) {
    if let Some(process) = table::find(process) {
        process.signals.readers.lock().forget(waker);
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
        Details::File { events, descriptor } => {
            put(20, &descriptor.to_le_bytes());
            put(28, &(events as u32).to_le_bytes());
        }
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
        let attempt = self.take(caller, buffer, waker);
        if attempt.is_ready()
            && let Some(waker) = waker
        {
            self.forget_reader(waker);
        }
        attempt
    }

    fn readiness(&self, caller: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let process = table::find(caller.number()).ok_or(Errno::ESRCH)?;
        if let Some(waker) = waker {
            self.register(&process, waker)?;
        }
        let is_ready = signal_delivery::has_readable(&process, process.present_worker().as_deref(), self.signals());
        Ok(if is_ready { event::IN | event::RDNORM } else { 0 })
    }

    fn forget_reader(&self, waker: &Waker) {
        let mut registrations = self.registrations.lock();
        let noted = registrations.find(waiters::hash(waker), |registration| registration.waker.will_wake(waker));
        if let Some(registration) = noted.and_then(|at| registrations.remove(at)) {
            forget_in(registration.process, waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use ::signals::Signal;
    use abi_unix::SystemCall;
    use abi_unix::types::{TimeSpec, open, signal};
    use alloc::vec::Vec;

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

    /// A thousand waits at as many files: the signal reaches a reader of its file, and the others go on waiting.
    #[test]
    fn of_a_thousand_files_the_right_one_is_read() {
        const USR2: usize = 12;
        run(|program| {
            block(program, &[USR1, USR2]);
            let own = program.id as usize;
            let place = program.place(SIGNAL_RECORD);
            let mut files = Vec::new();
            for token in 0..1000 {
                let numbers = [if token == 700 { USR2 } else { USR1 }];
                let file = open_signals(program, -1, &numbers, 0).unwrap();
                assert_eq!(program.submit(SystemCall::Read, [file, place, SIGNAL_RECORD], token + 1), None);
                files.push(file);
            }
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::Kill, [own, USR2]), Ok(0));
            assert_eq!(program.await_completions(), [(701, Ok(SIGNAL_RECORD))]);
            assert_eq!(program.read_u32(place), USR2 as u32);
            assert_eq!(program.call(SystemCall::Kill, [own, USR1]), Ok(0));
            let first = program.await_completions();
            assert!(matches!(first[..], [(token, Ok(SIGNAL_RECORD))] if token != 701), "{first:?}");
            let left: Vec<u64> = (1..=1000).filter(|&token| token != 701 && token != first[0].0).collect();
            for &token in &left {
                assert_eq!(program.call(SystemCall::Cancel, [token as usize]), Ok(0));
            }
            let mut given_up = Vec::new();
            while given_up.len() < left.len() {
                given_up.extend(program.await_completions());
            }
            assert!(given_up.iter().all(|(_, result)| *result == Err(Errno::ECANCELED)));
            assert!(program.process().signals.readers.lock().is_empty());
        });
    }

    /// A signal to one thread is read by that alone, and does not make the file ready for others.
    #[test]
    fn signals_to_a_thread_are_read_by_itself() {
        run(|program| {
            block(program, &[USR1]);
            let file = open_signals(program, -1, &[USR1], open::NONBLOCK).unwrap();
            let list = program.store(&[(file as u32).to_le_bytes(), 1u32.to_le_bytes()].concat());
            let soon = program.store(&TimeSpec::from_ns(0).to_bytes());
            let done = program.place(8);
            let own = program.id as usize;
            program
                .add_worker(move |program| {
                    block(program, &[USR1]);
                    let other = program.call(SystemCall::GetThread, []).unwrap();
                    assert_eq!(program.call(SystemCall::KillThread, [other, USR1]), Ok(0));
                    program.sleep_ns(2_000_000);
                    assert_eq!(program.call(SystemCall::Poll, [list, 1, soon, 0, 0]), Ok(1));
                    assert_eq!(program.read_from(file, SIGNAL_RECORD).map(|found| word(&found, 0)), Ok(10));
                    program.write(done, &[1]);
                })
                .unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::Poll, [list, 1, soon, 0, 0]), Ok(0));
            assert_eq!(program.read_from(file, SIGNAL_RECORD), Err(Errno::EAGAIN));
            // Its own one comes before that to the process.
            assert_eq!(program.call(SystemCall::Kill, [own, USR1]), Ok(0));
            assert_eq!(program.call(SystemCall::KillThread, [own, USR1]), Ok(0));
            let found = program.read_from(file, SIGNAL_RECORD).unwrap();
            assert_eq!(word(&found, 8) as i32, ::signals::code::THREAD);
            let found = program.read_from(file, SIGNAL_RECORD).unwrap();
            assert_eq!(word(&found, 8) as i32, ::signals::code::USER);
            program.sleep_ns(5_000_000);
            assert_eq!(program.read(done, 1), [1]);
        });
    }

    /// An epoll that watches a file tells of the signals of the process that waits. Files and epolls that are closed
    /// leave no waker with any process.
    #[test]
    fn an_epoll_tells_of_the_signals_of_who_waits() {
        run(|program| {
            block(program, &[USR1]);
            let file = open_signals(program, -1, &[USR1], open::NONBLOCK).unwrap();
            let epoll = program.call(SystemCall::EpollCreate, [0]).unwrap();
            let event = program.store(&event::Event { events: event::IN, data: 5 }.to_bytes());
            let add = event::CTL_ADD as usize;
            let found = program.place(event::Event::SIZE);
            assert_eq!(program.call(SystemCall::EpollControl, [epoll, add, file, event]), Ok(0));
            let waits = move |program: &mut Program| {
                let own = program.id as usize;
                assert_eq!(program.call(SystemCall::EpollWait, [epoll, found, 1, 0, 0]), Ok(0));
                let sends = move |program: &mut Program| {
                    program.sleep_ns(1_000_000);
                    assert_eq!(program.call(SystemCall::Kill, [own, USR1]), Ok(0));
                };
                program.add_worker(sends).unwrap();
                assert_eq!(program.call(SystemCall::EpollWait, [epoll, found, 1, usize::MAX, 0]), Ok(1));
                assert_eq!(program.read_from(file, SIGNAL_RECORD).map(|found| word(&found, 12)), Ok(own as u32));
                assert_eq!(program.call(SystemCall::EpollWait, [epoll, found, 1, 0, 0]), Ok(0));
            };
            waits(program);
            assert!(!program.process().signals.readers.lock().is_empty());
            let process = program.process();
            assert_eq!(program.close(file), Ok(0));
            assert!(process.signals.readers.lock().is_empty(), "the file has gone");
            for _ in 0..100 {
                let file = open_signals(program, -1, &[USR1], 0).unwrap();
                assert_eq!(program.call(SystemCall::EpollControl, [epoll, add, file, event]), Ok(0));
            }
            assert!(!process.signals.readers.lock().is_empty());
            assert_eq!(program.close(epoll), Ok(0));
            while crate::files::remains::free_some() {}
            assert!(process.signals.readers.lock().is_empty(), "the epoll has gone");
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
