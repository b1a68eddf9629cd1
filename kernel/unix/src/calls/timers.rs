//! The calls on timers: interval timers, timers that send signals, and timers behind descriptors.

use alloc::sync::Arc;

use ::signals::Signal;
use abi_unix::Errno;
use abi_unix::types::timer::{self, Notification, Setting};
use abi_unix::types::{clock, open};
use filesystem::Access;

use crate::calls::call::{Call, Decoding};
use crate::calls::signals::thread_of;
use crate::files::file::{self, OpenFile};
use crate::files::timer::TimerFile;
use crate::process::timers::{Counts, Description, SignalReceiver};
use crate::time;

impl Call<'_> {
    /// Reads a setting with this reader. `EINVAL` if a field is out of its range.
    fn setting(&self, argument: usize, read: fn(&[u8; Setting::SIZE]) -> Option<Setting>) -> Result<Setting, Errno> {
        let mut bytes = [0; Setting::SIZE];
        self.process().copy_in(self.address(argument), &mut bytes)?;
        read(&bytes).ok_or(Errno::EINVAL)
    }

    /// Writes a setting, if its address is not 0.
    fn write_setting(&self, argument: usize, bytes: [u8; Setting::SIZE]) -> Decoding {
        if self.address(argument) != 0 {
            self.process().copy_out(self.address(argument), &bytes)?;
        }
        Ok(0.into())
    }
}

#[inline(never)]
pub(super) fn get_interval(call: Call<'_>) -> Decoding {
    let left = call.process().timers.interval_left(call.process(), call.unsigned(0) as usize)?;
    call.process().copy_out(call.address(1), &left.to_val())?;
    Ok(0.into())
}

#[inline(never)]
pub(super) fn set_interval(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    // As on Linux, no setting is one of zeros.
    let setting = match call.address(1) {
        0 => Setting::default(),
        _ => call.setting(1, Setting::from_val)?,
    };
    let left = process.timers.set_interval(process, call.unsigned(0) as usize, setting)?;
    call.write_setting(2, left.to_val())
}

/// Returns the clock that a timer counts.
fn counted(clock: u32) -> Result<Counts, Errno> {
    match clock {
        clock::REALTIME => Ok(Counts::Time { ahead_ns: time::epoch_ns() }),
        clock::MONOTONIC | clock::BOOTTIME => Ok(Counts::Time { ahead_ns: 0 }),
        clock::PROCESS_CPUTIME => Ok(Counts::Processor),
        clock::THREAD_CPUTIME | clock::MONOTONIC_RAW | clock::REALTIME_COARSE | clock::MONOTONIC_COARSE => {
            Err(Errno::EOPNOTSUPP)
        }
        _ => Err(Errno::EINVAL),
    }
}

#[inline(never)]
pub(super) fn create(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let counts = counted(call.unsigned(0))?;
    let description = match call.address(1) {
        0 => Description { counts, tells: SignalReceiver::Process(Signal::ALRM), value: None },
        address => {
            let mut bytes = [0; timer::NOTIFICATION];
            process.copy_in(address, &mut bytes)?;
            let Notification { value, signal, kind, thread } = Notification::from_bytes(&bytes);
            let signal = Signal::new(signal).ok_or(Errno::EINVAL);
            let tells = match kind {
                Notification::NONE => SignalReceiver::Nobody,
                Notification::SIGNAL | Notification::THREAD => SignalReceiver::Process(signal?),
                Notification::THREAD_ID => {
                    let thread = thread_of(process, thread as i32).map_err(|_| Errno::EINVAL)?;
                    SignalReceiver::Thread(signal?, thread.index())
                }
                _ => return Err(Errno::EINVAL),
            };
            Description { counts, tells, value: Some(value) }
        }
    };
    let number = process.timers.create(&process.account, description)?;
    let written = process.copy_out(call.address(2), &(number as i32).to_le_bytes());
    if let Err(error) = written {
        process.timers.delete(number)?;
        return Err(error);
    }
    Ok(0.into())
}

#[inline(never)]
pub(super) fn get(call: Call<'_>) -> Decoding {
    let left = call.process().timers.left(call.process(), call.unsigned(0) as usize)?;
    call.process().copy_out(call.address(1), &left.to_spec())?;
    Ok(0.into())
}

#[inline(never)]
pub(super) fn overrun(call: Call<'_>) -> Decoding {
    call.process().timers.overrun(call.unsigned(0) as usize).map(Into::into)
}

#[inline(never)]
pub(super) fn set(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let setting = call.setting(2, Setting::from_spec)?;
    // Unknown flags are ignored, as on Linux.
    let is_absolute = call.unsigned(1) & timer::ABSOLUTE != 0;
    let left = process.timers.set(process, call.unsigned(0) as usize, setting, is_absolute)?;
    call.write_setting(3, left.to_spec())
}

#[inline(never)]
pub(super) fn delete(call: Call<'_>) -> Decoding {
    call.process().timers.delete(call.unsigned(0) as usize).map(Into::into)
}

#[inline(never)]
pub(super) fn create_file(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let (clock, flags) = (call.unsigned(0), call.unsigned(1));
    if flags & !(open::NONBLOCK | open::CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let Ok(Counts::Time { ahead_ns }) = counted(clock) else { return Err(Errno::EINVAL) };
    let charge = file::charge(&process.account)?;
    let timer = TimerFile::new(ahead_ns);
    let file = Arc::new(OpenFile::new(timer, Access::ReadWrite, flags & open::NONBLOCK != 0, charge));
    process.descriptors.lock().add(file, flags & open::CLOEXEC != 0, 0).map(Into::into)
}

#[inline(never)]
pub(super) fn set_file(call: Call<'_>) -> Decoding {
    let flags = call.unsigned(1);
    // The clock is never set, so that no such timer is cancelled.
    if flags & !(timer::ABSOLUTE | timer::CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let setting = call.setting(2, Setting::from_spec)?;
    let file = call.file(0)?;
    let timer = file.as_kind::<TimerFile>().ok_or(Errno::EINVAL)?;
    let left = timer.set(setting, flags & timer::ABSOLUTE != 0);
    call.write_setting(3, left.to_spec())
}

#[inline(never)]
pub(super) fn get_file(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    let left = file.as_kind::<TimerFile>().ok_or(Errno::EINVAL)?.left();
    call.process().copy_out(call.address(1), &left.to_spec())?;
    Ok(0.into())
}

#[cfg(test)]
mod tests {
    use ::signals::{Action, Details, Information, Set, code};
    use abi_unix::SystemCall;
    use abi_unix::types::epoll;

    use super::*;
    use crate::testing::{Program, SIGNAL_HANDLER, run, simulation};

    const MS: u64 = 1_000_000;
    const ALRM: u8 = 14;
    const REAL_TIME: u32 = 40;

    fn handle(program: &mut Program, signal: u8) {
        let action = Action { handler: SIGNAL_HANDLER as u64, flags: 0, mask: Set::EMPTY };
        let place = program.store(&action.to_bytes());
        assert_eq!(program.call(SystemCall::SignalAction, [signal.into(), place, 0, 8]), Ok(0));
    }

    /// Sleeps for so long, whatever signals come.
    fn sleep(program: &mut Program, ns: u64) {
        let end = time::now_ns() + ns;
        while time::now_ns() < end {
            let rest = program.store(&abi_unix::types::TimeSpec::from_ns(end - time::now_ns()).to_bytes());
            let _ = program.call(SystemCall::Sleep, [rest, 0]);
        }
    }

    fn handled(program: &Program) -> Vec<u8> {
        program.signals().iter().map(|frame| frame[0]).collect()
    }

    fn set_interval(program: &mut Program, which: u32, value_ns: u64, interval_ns: u64) -> Setting {
        let new = program.store(&Setting { value_ns, interval_ns }.to_val());
        let old = program.place(32);
        assert_eq!(program.call(SystemCall::SetIntervalTimer, [which as usize, new, old]), Ok(0));
        Setting::from_val(&program.read(old, 32).try_into().unwrap()).unwrap()
    }

    fn interval_left(program: &mut Program, which: u32) -> Setting {
        let place = program.place(32);
        assert_eq!(program.call(SystemCall::GetIntervalTimer, [which as usize, place]), Ok(0));
        Setting::from_val(&program.read(place, 32).try_into().unwrap()).unwrap()
    }

    fn create(program: &mut Program, clock: u32, notification: Notification) -> Result<usize, Errno> {
        let (event, place) = (program.store(&notification.to_bytes()), program.place(8));
        program.call(SystemCall::TimerCreate, [clock as usize, event, place])?;
        Ok(program.read_u32(place) as usize)
    }

    fn set(program: &mut Program, timer: usize, flags: u32, setting: Setting) -> Result<Setting, Errno> {
        let (new, old) = (program.store(&setting.to_spec()), program.place(32));
        program.call(SystemCall::TimerSet, [timer, flags as usize, new, old])?;
        Ok(Setting::from_spec(&program.read(old, 32).try_into().unwrap()).unwrap())
    }

    fn once(ns: u64) -> Setting {
        Setting { value_ns: ns, interval_ns: 0 }
    }

    const TO_ITSELF: Notification =
        Notification { value: 0x1234_5678_9abc, signal: REAL_TIME, kind: Notification::SIGNAL, thread: 0 };

    #[test]
    fn nonsense_sets_no_timer() {
        run(|program| {
            let place = program.place(64);
            let microseconds = [0u64, 0, 0, 1_000_000].map(u64::to_le_bytes).concat();
            let bad = program.store(&microseconds);
            for (which, new, error) in [(3, place, Errno::EINVAL), (0, bad, Errno::EINVAL), (0, 0x1000, Errno::EFAULT)]
            {
                assert_eq!(program.call(SystemCall::SetIntervalTimer, [which, new, 0]), Err(error));
            }
            assert_eq!(program.call(SystemCall::GetIntervalTimer, [3, place]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::GetIntervalTimer, [0, 0x1000]), Err(Errno::EFAULT));
            for (clock, error) in [(3, Errno::EOPNOTSUPP), (4, Errno::EOPNOTSUPP), (99, Errno::EINVAL)] {
                assert_eq!(create(program, clock, TO_ITSELF), Err(error), "{clock}");
            }
            for bad in [
                Notification { signal: 0, ..TO_ITSELF },
                Notification { signal: 65, ..TO_ITSELF },
                Notification { kind: 3, ..TO_ITSELF },
                Notification { kind: Notification::THREAD_ID, thread: 99, ..TO_ITSELF },
            ] {
                assert_eq!(create(program, clock::MONOTONIC, bad), Err(Errno::EINVAL), "{bad:?}");
            }
            let event = program.store(&TO_ITSELF.to_bytes());
            assert_eq!(program.call(SystemCall::TimerCreate, [1, event, 0x1000]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::TimerCreate, [1, 0x1000, place]), Err(Errno::EFAULT));
            for timer in [0, 1, usize::MAX] {
                assert_eq!(set(program, timer, 0, once(5)), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::TimerGet, [timer, place]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::TimerOverrun, [timer]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::TimerDelete, [timer]), Err(Errno::EINVAL));
            }
            for arguments in [[2, 0], [3, 0], [1, 1]] {
                assert_eq!(program.call(SystemCall::TimerFile, arguments), Err(Errno::EINVAL));
            }
            let (reader, _) = program.pipe(0);
            assert_eq!(program.call(SystemCall::TimerFileSet, [reader, 0, place, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::TimerFileGet, [reader, place]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::TimerFileSet, [77, 0, place, 0]), Err(Errno::EBADF));
        });
    }

    #[test]
    fn an_interval_timer_sends_its_signal_again_and_again() {
        run(|program| {
            handle(program, ALRM);
            assert_eq!(set_interval(program, timer::REAL, 5 * MS, 2 * MS), Setting::default());
            let left = interval_left(program, timer::REAL);
            assert!((4 * MS..=5 * MS).contains(&left.value_ns), "{left:?}");
            assert_eq!(left.interval_ns, 2 * MS);
            sleep(program, 4 * MS);
            assert!(handled(program).is_empty());
            sleep(program, 6 * MS);
            assert_eq!(handled(program), [ALRM; 3]);
            assert_eq!(set_interval(program, timer::REAL, 0, 0).interval_ns, 2 * MS);
            assert_eq!(interval_left(program, timer::REAL).value_ns, 0);
            sleep(program, 10 * MS);
            assert_eq!(handled(program).len(), 3, "it is not set any more");
            // A signal that interrupts a wait, as `alarm` is used.
            set_interval(program, timer::REAL, MS, 0);
            let (reader, _writer) = program.pipe(0);
            assert_eq!(program.read_from(reader, 1), Err(Errno::EINTR));
        });
    }

    #[test]
    fn processor_time_counts_while_the_program_runs() {
        run(|program| {
            handle(program, 26);
            handle(program, 27);
            set_interval(program, timer::VIRTUAL, 30 * MS, 0);
            set_interval(program, timer::PROFILE, 60 * MS, 0);
            sleep(program, 500 * MS);
            assert!(handled(program).is_empty(), "sleep is no use");
            simulation().advance(time::ticks_at_ns(35 * MS));
            sleep(program, 20 * MS);
            assert_eq!(handled(program), [26]);
            simulation().advance(time::ticks_at_ns(30 * MS));
            sleep(program, 20 * MS);
            assert_eq!(handled(program), [26, 27]);
        });
    }

    #[test]
    fn timers_of_a_copy_and_of_another_program_are_gone() {
        run(|program| {
            set_interval(program, timer::REAL, 1000 * MS, 0);
            let timer = create(program, clock::MONOTONIC, TO_ITSELF).unwrap();
            let child = program.fork(move |program| {
                assert_eq!(interval_left(program, timer::REAL), Setting::default());
                assert_eq!(program.call(SystemCall::TimerDelete, [timer]), Err(Errno::EINVAL));
                set_interval(program, timer::REAL, 1000 * MS, 0);
                create(program, clock::MONOTONIC, TO_ITSELF).unwrap();
                program.goes_on_as(move |program| {
                    assert_ne!(interval_left(program, timer::REAL), Setting::default(), "this one stays");
                    assert_eq!(program.call(SystemCall::TimerDelete, [timer]), Err(Errno::EINVAL));
                });
                let path = program.store(crate::testing::PATH);
                let _ = program.call(SystemCall::Execute, [path, 0, 0]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// The process ends by the signal of a timer that it does not catch, while it waits for ever.
    #[test]
    fn a_timer_ends_a_process_that_does_not_catch_it() {
        run(|program| {
            let child = program.spawn(|program| {
                set_interval(program, timer::REAL, 5 * MS, 0);
                let (reader, _writer) = program.pipe(0);
                let _ = program.read_from(reader, 1);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, ALRM.into())));
        });
    }

    #[test]
    fn signals_of_timers_have_values_and_count_what_they_missed() {
        run(|program| {
            handle(program, REAL_TIME as u8);
            let timer = create(program, clock::MONOTONIC, TO_ITSELF).unwrap();
            assert_eq!(set(program, timer, 0, Setting { value_ns: MS, interval_ns: MS }), Ok(Setting::default()));
            // Blocked for ten expirations.
            let mask = program.store(&(1u64 << (REAL_TIME - 1)).to_le_bytes());
            assert_eq!(program.call(SystemCall::SignalMask, [0, mask, 0, 8]), Ok(0));
            program.sleep_ns(10 * MS as usize + 500_000);
            assert_eq!(set(program, timer, 0, Setting::default()).unwrap().interval_ns, MS);
            assert_eq!(program.call(SystemCall::SignalMask, [1, mask, 0, 8]), Ok(0));
            sleep(program, MS);
            let frames = program.signals();
            assert_eq!(frames.len(), 1);
            let details = Details::Timer { id: timer as i32, overrun: 9, value: TO_ITSELF.value };
            let signal = Signal::new(REAL_TIME).unwrap();
            let expected = Information { signal, code: code::TIMER, details };
            assert_eq!(frames[0][..48], expected.to_bytes()[..48]);
            assert_eq!(program.call(SystemCall::TimerOverrun, [timer]), Ok(9));
            assert_eq!(program.call(SystemCall::TimerDelete, [timer]), Ok(0));
            assert_eq!(program.call(SystemCall::TimerDelete, [timer]), Err(Errno::EINVAL));
        });
    }

    #[test]
    fn an_absolute_time_is_one_of_its_clock() {
        run(|program| {
            handle(program, REAL_TIME as u8);
            for (clock, ahead) in [(clock::MONOTONIC, 0), (clock::REALTIME, time::epoch_ns())] {
                let before = handled(program).len();
                let timer = create(program, clock, TO_ITSELF).unwrap();
                let at = time::now_ns() + ahead + 5 * MS;
                set(program, timer, timer::ABSOLUTE, once(at)).unwrap();
                sleep(program, 4 * MS);
                assert_eq!(handled(program).len(), before);
                sleep(program, 3 * MS);
                assert_eq!(handled(program).len(), before + 1);
                set(program, timer, timer::ABSOLUTE, once(1)).unwrap();
                sleep(program, MS);
                assert_eq!(handled(program).len(), before + 2, "that was long ago");
            }
        });
    }

    #[test]
    fn a_timer_can_tell_one_thread_or_nobody() {
        run(|program| {
            handle(program, REAL_TIME as u8);
            let own = program.id;
            let to = |kind, thread| Notification { kind, thread, ..TO_ITSELF };
            let silent = create(program, clock::MONOTONIC, to(Notification::NONE, 0)).unwrap();
            let directed = create(program, clock::MONOTONIC, to(Notification::THREAD_ID, own)).unwrap();
            set(program, silent, 0, once(MS)).unwrap();
            sleep(program, 2 * MS);
            assert!(handled(program).is_empty());
            let mask = program.store(&(1u64 << (REAL_TIME - 1)).to_le_bytes());
            assert_eq!(program.call(SystemCall::SignalMask, [0, mask, 0, 8]), Ok(0));
            program.add_worker(|program| program.sleep_ns(10 * MS as usize)).unwrap();
            set(program, directed, 0, once(MS)).unwrap();
            program.sleep_ns(3 * MS as usize);
            assert!(handled(program).is_empty(), "the other worker would take one for the process");
            assert_eq!(program.call(SystemCall::SignalMask, [1, mask, 0, 8]), Ok(0));
            sleep(program, MS);
            assert_eq!(handled(program), [REAL_TIME as u8]);
            sleep(program, 10 * MS);
        });
    }

    /// More timers than signals that are sent at a time, each of which is due again at once.
    #[test]
    fn short_intervals_leave_every_timer_its_turn() {
        const TIMERS: usize = 20;
        run(|program| {
            handle(program, REAL_TIME as u8);
            let mask = program.store(&(1u64 << (REAL_TIME - 1)).to_le_bytes());
            assert_eq!(program.call(SystemCall::SignalMask, [0, mask, 0, 8]), Ok(0));
            let each = Setting { value_ns: 1, interval_ns: 1 };
            for number in 0..TIMERS {
                assert_eq!(create(program, clock::MONOTONIC, TO_ITSELF), Ok(number));
                set(program, number, 0, each).unwrap();
            }
            program.sleep_ns(MS as usize);
            for number in 0..TIMERS {
                set(program, number, 0, Setting::default()).unwrap();
            }
            assert_eq!(program.call(SystemCall::SignalMask, [1, mask, 0, 8]), Ok(0));
            sleep(program, MS);
            let mut told: Vec<_> = program.signals().iter().map(|frame| usize::from(frame[16])).collect();
            told.sort_unstable();
            assert_eq!(told, Vec::from_iter(0..TIMERS));
        });
    }

    #[test]
    fn the_number_of_timers_is_bounded() {
        run(|program| {
            let place = program.place(8);
            for number in 0..crate::process::timers::MOST {
                assert_eq!(program.call(SystemCall::TimerCreate, [1, 0, place]), Ok(0));
                assert_eq!(program.read_u32(place) as usize, number);
            }
            assert_eq!(program.call(SystemCall::TimerCreate, [1, 0, place]), Err(Errno::EAGAIN));
            assert_eq!(program.call(SystemCall::TimerDelete, [7]), Ok(0));
            assert_eq!(program.call(SystemCall::TimerCreate, [1, 0, place]), Ok(0));
            assert_eq!(program.read_u32(place), 7);
        });
    }

    fn timer_file(program: &mut Program, flags: u32) -> usize {
        program.call(SystemCall::TimerFile, [clock::MONOTONIC as usize, flags as usize]).unwrap()
    }

    fn set_file(program: &mut Program, file: usize, flags: u32, setting: Setting) -> Setting {
        let (new, old) = (program.store(&setting.to_spec()), program.place(32));
        assert_eq!(program.call(SystemCall::TimerFileSet, [file, flags as usize, new, old]), Ok(0));
        Setting::from_spec(&program.read(old, 32).try_into().unwrap()).unwrap()
    }

    #[test]
    fn expirations_are_read_as_a_number() {
        run(|program| {
            let file = timer_file(program, open::NONBLOCK);
            assert_eq!(program.read_from(file, 8), Err(Errno::EAGAIN), "it is not set");
            set_file(program, file, 0, Setting { value_ns: 2 * MS, interval_ns: MS });
            assert_eq!(program.read_from(file, 7), Err(Errno::EINVAL));
            assert_eq!(program.write_to(file, &[0; 8]), Err(Errno::EINVAL));
            program.sleep_ns(4 * MS as usize + 500_000);
            assert_eq!(program.read_from(file, 100), Ok(3u64.to_le_bytes().to_vec()));
            assert_eq!(program.read_from(file, 8), Err(Errno::EAGAIN));
            program.sleep_ns(2 * MS as usize);
            // Another setting forgets what was not read.
            assert_eq!(set_file(program, file, 0, once(5 * MS)).interval_ns, MS);
            assert_eq!(program.read_from(file, 8), Err(Errno::EAGAIN));
            let place = program.place(32);
            assert_eq!(program.call(SystemCall::TimerFileGet, [file, place]), Ok(0));
            let left = Setting::from_spec(&program.read(place, 32).try_into().unwrap()).unwrap();
            assert!((4 * MS..5 * MS).contains(&left.value_ns) && left.interval_ns == 0, "{left:?}");
        });
    }

    /// Two readers and an epoll wait; one that is set anew meanwhile wakes them at the new time.
    #[test]
    fn waiters_are_woken_by_the_setting_that_is_in_force() {
        run(|program| {
            let file = timer_file(program, 0);
            set_file(program, file, 0, once(1000 * MS));
            let (begin, woken) = (time::now_ns(), program.place(8));
            program
                .add_worker(move |program| {
                    assert_eq!(program.read_from(file, 8), Ok(1u64.to_le_bytes().to_vec()));
                    program.write(woken, &1u64.to_le_bytes());
                })
                .unwrap();
            program.sleep_ns(MS as usize);
            set_file(program, file, 0, once(5 * MS));
            program.sleep_ns(10 * MS as usize);
            assert_eq!(program.read_u64(woken), 1);
            set_file(program, file, timer::ABSOLUTE, once(begin + 20 * MS));
            let watching = program.call(SystemCall::EpollCreate, [0]).unwrap();
            let event = program.store(&epoll::Event { events: epoll::IN, data: 7 }.to_bytes());
            let add = [watching, epoll::CTL_ADD as usize, file, event];
            assert_eq!(program.call(SystemCall::EpollControl, add), Ok(0));
            let place = program.place(16);
            assert_eq!(program.call(SystemCall::EpollWait, [watching, place, 1, 1, 0, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::EpollWait, [watching, place, 1, usize::MAX, 0, 0]), Ok(1));
            assert!((20 * MS..21 * MS).contains(&(time::now_ns() - begin)));
            // One that is closed while its deadline is set leaves nothing behind.
            set_file(program, file, 0, once(1000 * MS));
            assert_eq!(program.submit(SystemCall::Read, [file, place, 8], 3), None);
            assert_eq!(program.call(SystemCall::Cancel, [3]), Ok(0));
            assert_eq!(program.await_completions(), [(3, Err(Errno::ECANCELED))]);
        });
    }
}
