//! Locks on files, between processes and open files, and timers behind descriptors and with signals.
//!
//! The rules of ranges and expirations are tested on the host; here are the ways through the machine: the end of a
//! process that holds or waits, deadlines that are met by an interrupt, and calls that wait beside their worker.

use abi_unix::types::timer::Setting;
use abi_unix::types::{TimeSpec, clock, control, lock, open, signal};
use abi_unix::{Errno, SystemCall, WILL_BE_POSTED};
use cops::system::{self, Descriptor, file};
use cops::time::Instant;

use crate::fork::{fork, status_of};
use crate::harness::{Outcome, call};
use crate::{check, check_eq, must};

const MS: u64 = 1_000_000;
const PATH: &core::ffi::CStr = c"/tmp/locks";

fn open_it() -> Result<Descriptor, Errno> {
    file::open(PATH, open::CREAT | open::RDWR, 0o600)
}

/// Makes a change of the lock on one byte.
fn change(descriptor: &Descriptor, command: u32, kind: u16, byte: i64) -> Result<usize, Errno> {
    let record = lock::Record { kind, start: byte, length: 1, ..Default::default() }.to_bytes();
    let [file, command] = [descriptor.raw() as usize, command as usize];
    call(SystemCall::FileControl, [file, command, &raw const record as usize, 0, 0, 0])
}

/// Returns whether another process has a lock on a byte to write.
fn is_held(descriptor: &Descriptor, byte: i64) -> Result<bool, Errno> {
    let mut record = lock::Record { start: byte, length: 1, ..Default::default() }.to_bytes();
    let file = descriptor.raw() as usize;
    call(SystemCall::FileControl, [file, control::GETLK as usize, &raw mut record as usize, 0, 0, 0])?;
    Ok(lock::Record::from_bytes(&record).kind != lock::NO_LOCK)
}

fn flock(descriptor: &Descriptor, operation: u32) -> Result<usize, Errno> {
    call(SystemCall::Lock, [descriptor.raw() as usize, operation as usize, 0, 0, 0, 0])
}

/// Processes take turns by a lock: each adds to a number in the file, and none is lost.
pub async fn processes_exclude_each_other() -> Outcome {
    const ROUNDS: usize = 50;
    let file = must!(open_it());
    must!(file::write_at(file.raw(), &[0; 8], 0));
    let add = || -> Result<(), Errno> {
        let own = open_it()?;
        for round in 0..ROUNDS {
            // By a range and by the whole file in turn, both for all.
            change(&own, control::SETLKW, 1, 7)?;
            flock(&own, lock::EXCLUSIVE)?;
            let mut bytes = [0; 8];
            file::read_at(own.raw(), &mut bytes, 0)?;
            if round % 8 == 0 {
                system::worker::yield_now();
            }
            file::write_at(own.raw(), &(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0)?;
            flock(&own, lock::UNLOCK)?;
            change(&own, control::SETLK, lock::NO_LOCK, 7)?;
        }
        Ok(())
    };
    let mut children = [0; 4];
    for child in &mut children {
        *child = must!(fork(|| u8::from(add().is_err())));
    }
    for child in children {
        check_eq!(status_of(child), Ok(0));
    }
    let mut bytes = [0; 8];
    must!(file::read_at(file.raw(), &mut bytes, 0));
    check_eq!(u64::from_le_bytes(bytes), (children.len() * ROUNDS) as u64);
    must!(file::unlink(PATH, 0));
    Ok(())
}

/// A process that holds a lock and one that waits for it are killed: neither leaves anything.
pub async fn the_dead_hold_no_locks() -> Outcome {
    let file = must!(open_it());
    let kill = |child: usize| call(SystemCall::Kill, [child, signal::KILL as usize, 0, 0, 0, 0]);
    let holder = must!(fork(|| {
        let held = change(&file, control::SETLK, 1, 0);
        let _ = system::system::sleep(TimeSpec::from_ns(100_000 * MS));
        u8::from(held.is_err())
    }));
    while !must!(is_held(&file, 0)) {
        system::worker::yield_now();
    }
    let waiter = must!(fork(|| u8::from(change(&file, control::SETLKW, 1, 0).is_err())));
    must!(system::system::sleep(TimeSpec::from_ns(MS)));
    must!(kill(waiter));
    check_eq!(status_of(waiter), Ok(0x100 | 9));
    must!(kill(holder));
    // Frees the lock before its parent learns of its end.
    check_eq!(status_of(holder), Ok(0x100 | 9));
    check_eq!(change(&file, control::SETLK, 1, 0), Ok(0));
    // A child that would close a circle is told so.
    let child = must!(fork(|| {
        let own = change(&file, control::SETLK, 1, 1);
        let waits = change(&file, control::SETLKW, 1, 0);
        u8::from(own.is_err() || waits.is_err())
    }));
    while !must!(is_held(&file, 1)) {
        system::worker::yield_now();
    }
    must!(system::system::sleep(TimeSpec::from_ns(5 * MS)));
    check_eq!(change(&file, control::SETLKW, 0, 1), Err(Errno::EDEADLK));
    must!(change(&file, control::SETLK, lock::NO_LOCK, 0));
    check_eq!(status_of(child), Ok(0));
    must!(file::unlink(PATH, 0));
    Ok(())
}

fn timer_file() -> Result<Descriptor, Errno> {
    call(SystemCall::TimerFile, [clock::MONOTONIC as usize, 0, 0, 0, 0, 0]).map(Descriptor::from_result)
}

fn set_timer(timer: &Descriptor, value_ns: u64, interval_ns: u64) -> Result<usize, Errno> {
    let setting = Setting { value_ns, interval_ns }.to_spec();
    call(SystemCall::TimerFileSet, [timer.raw() as usize, 0, &raw const setting as usize, 0, 0, 0])
}

pub async fn timers_are_read() -> Outcome {
    let timer = must!(timer_file());
    let begin = Instant::now();
    must!(set_timer(&timer, 3 * MS, 2 * MS));
    let mut count = 0;
    while count < 5 {
        let mut bytes = [0; 8];
        check_eq!(file::read(timer.raw(), &mut bytes), Ok(8));
        count += u64::from_le_bytes(bytes);
    }
    check!(begin.elapsed().as_nanos() >= 11 * u128::from(MS), "{:?}", begin.elapsed());
    // Beside its worker, and given up with the process: the expiration of a later setting is for another reader.
    must!(set_timer(&timer, 1_000_000 * MS, 0));
    let child = must!(fork(|| {
        let mut bytes = [0u8; 8];
        let arguments = [timer.raw() as usize, bytes.as_mut_ptr() as usize, 8, 0, 0, 0];
        // SAFETY: the buffer lives until the process ends, which is the next thing.
        let result = unsafe { system::syscall_asynchronous(SystemCall::Read as usize, arguments, 0, 0, 1) };
        u8::from(result != WILL_BE_POSTED)
    }));
    check_eq!(status_of(child), Ok(0));
    must!(set_timer(&timer, 3 * MS, 0));
    let mut bytes = [0; 8];
    check_eq!(file::read(timer.raw(), &mut bytes), Ok(8));
    Ok(())
}

/// Signals of timers are awaited without handlers; an interval timer that is not caught ends its process.
pub async fn timers_send_signals() -> Outcome {
    const ALARM: usize = 14;
    let set: u64 = 1 << (ALARM - 1);
    let address = &raw const set as usize;
    must!(call(SystemCall::SignalMask, [0, address, 0, 8, 0, 0]));
    let wait = || call(SystemCall::SignalWait, [address, 0, 0, 8, 0, 0]);
    let setting = Setting { value_ns: 2 * MS, interval_ns: MS };
    let (micro, nano) = (setting.to_val(), setting.to_spec());
    let none = Setting::default().to_val();
    must!(call(SystemCall::SetIntervalTimer, [0, &raw const micro as usize, 0, 0, 0, 0]));
    for _ in 0..3 {
        check_eq!(wait(), Ok(ALARM));
    }
    must!(call(SystemCall::SetIntervalTimer, [0, &raw const none as usize, 0, 0, 0, 0]));
    let number = 0u32;
    must!(call(SystemCall::TimerCreate, [clock::MONOTONIC as usize, 0, &raw const number as usize, 0, 0, 0]));
    must!(call(SystemCall::TimerSet, [0, 0, &raw const nano as usize, 0, 0, 0]));
    for _ in 0..3 {
        check_eq!(wait(), Ok(ALARM));
    }
    must!(call(SystemCall::TimerDelete, [0; 6]));
    let child = must!(fork(|| {
        let armed = call(SystemCall::SetIntervalTimer, [0, &raw const micro as usize, 0, 0, 0, 0]);
        let unblocked = call(SystemCall::SignalMask, [1, address, 0, 8, 0, 0]);
        let _ = system::system::sleep(TimeSpec::from_ns(100_000 * MS));
        u8::from(armed.is_err() || unblocked.is_err())
    }));
    check_eq!(status_of(child), Ok(0x100 | ALARM as u32));
    Ok(())
}
