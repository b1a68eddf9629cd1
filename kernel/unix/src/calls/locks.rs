//! The calls on locks of files: `flock`, and the commands of `fcntl`.

use abi_unix::types::lock::{self, Kind, NO_LOCK, Record};
use abi_unix::types::{self, control};
use abi_unix::{Errno, SystemCall};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding, kept};
use crate::files::file::OpenFile;
use crate::files::locks::{self, Holder, LockChange, LockFamily, LockWait, TO_THE_END};

/// A command of `fcntl` about locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockCommand {
    /// Whether an open file holds the lock, and not a process.
    is_of_open_file: bool,
    does: Does,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Ask,
    Try,
    Wait,
}

impl LockCommand {
    /// Returns the command of this number, if it is about locks.
    pub(super) fn of(number: u32) -> Option<LockCommand> {
        let (is_of_open_file, does) = match number {
            control::GETLK => (false, Does::Ask),
            control::SETLK => (false, Does::Try),
            control::SETLKW => (false, Does::Wait),
            control::OFD_GETLK => (true, Does::Ask),
            control::OFD_SETLK => (true, Does::Try),
            control::OFD_SETLKW => (true, Does::Wait),
            _ => return None,
        };
        Some(LockCommand { is_of_open_file, does })
    }
}

/// Returns the first and the last byte of a range. `EINVAL` before the beginning of the file, `EOVERFLOW` beyond the
/// largest place.
fn range(file: &OpenFile, record: Record) -> Result<(u64, u64), Errno> {
    let origin = match u32::from(record.whence) {
        types::SEEK_SET => 0,
        types::SEEK_CUR => file.object().seek(0, types::SEEK_CUR)? as i64,
        types::SEEK_END => file.object().length().unwrap_or(0) as i64,
        _ => return Err(Errno::EINVAL),
    };
    let start = origin.checked_add(record.start).ok_or(Errno::EOVERFLOW)?;
    let (first, last) = match record.length {
        0 => (start, i64::MAX),
        length if length > 0 => (start, start.checked_add(length - 1).ok_or(Errno::EOVERFLOW)?),
        length => (start.checked_add(length).ok_or(Errno::EINVAL)?, start - 1),
    };
    let first = u64::try_from(first).map_err(|_| Errno::EINVAL)?;
    Ok((first, last as u64))
}

/// Performs the commands of `fcntl` about locks.
#[inline(never)]
pub(super) fn control(call: Call<'_>, command: LockCommand) -> Decoding {
    let process = call.admitted()?;
    let (descriptor, address) = (call.descriptor(0)?, call.word(2));
    let file = call.file(0)?;
    let mut bytes = [0; Record::SIZE];
    process.copy_in(address, &mut bytes)?;
    let record = Record::from_bytes(&bytes);
    let kind = record.wanted()?;
    let holder = if command.is_of_open_file {
        if record.process != 0 {
            return Err(Errno::EINVAL);
        }
        Holder::OpenFile(core::ptr::from_ref(&*file).addr())
    } else {
        Holder::Process(process.id)
    };
    let (first, last) = range(&file, record)?;
    let change = LockChange { family: LockFamily::Ranges, holder, kind, first, last };
    if command.does == Does::Ask {
        if kind.is_none() {
            return Err(Errno::EINVAL);
        }
        let answer = locks::excluding(&file, &change).unwrap_or(Record { kind: NO_LOCK, ..record });
        process.copy_out(address, &answer.to_bytes())?;
        return Ok(0.into());
    }
    match kind {
        Some(Kind::Read) => file.require_readable()?,
        Some(Kind::Write) => file.require_writable()?,
        None => {}
    }
    let waits = command.does == Does::Wait;
    let file = match holder {
        // The lock goes with any descriptor of this file, also one that another thread closes from now on.
        Holder::Process(number) => process.descriptors.lock().get_until_closed(descriptor, number)?,
        Holder::OpenFile(_) => {
            file.will_lock();
            file
        }
    };
    Ok(Operation::Lock(kept(LockWait::new(file, descriptor, change, waits))).into())
}

/// Performs `flock`.
#[inline(never)]
pub(super) fn lock_file(call: Call<'_>) -> Decoding {
    debug_assert_eq!(call.number, SystemCall::Lock);
    call.admitted()?;
    let (file, operation) = (call.file(0)?, call.unsigned(1));
    let kind = match operation & !lock::NON_BLOCKING {
        lock::SHARED => Some(Kind::Read),
        lock::EXCLUSIVE => Some(Kind::Write),
        lock::UNLOCK => None,
        _ => return Err(Errno::EINVAL),
    };
    file.will_lock();
    let holder = Holder::OpenFile(core::ptr::from_ref(&*file).addr());
    let change = LockChange { family: LockFamily::Whole, holder, kind, first: 0, last: TO_THE_END };
    let waits = operation & lock::NON_BLOCKING == 0;
    Ok(Operation::Lock(kept(LockWait::new(file, call.descriptor(0)?, change, waits))).into())
}

#[cfg(test)]
mod tests {
    use abi_unix::types::open;
    use abi_unix::types::{SEEK_CUR, SEEK_END, SEEK_SET};

    use super::*;
    use crate::process::accounts::Resource;
    use crate::testing::{Program, run};

    const PATH: &[u8] = b"/tmp/locked\0";
    const READ: u16 = 0;
    const WRITE: u16 = 1;

    fn record(kind: u16, start: i64, length: i64) -> Record {
        Record { kind, whence: SEEK_SET as u16, start, length, process: 0 }
    }

    fn control(program: &mut Program, file: usize, command: u32, record: Record) -> Result<Record, Errno> {
        let place = program.store(&record.to_bytes());
        program.call(SystemCall::FileControl, [file, command as usize, place])?;
        Ok(Record::from_bytes(&program.read(place, Record::SIZE).try_into().unwrap()))
    }

    fn lock(program: &mut Program, file: usize, command: u32, kind: u16, start: i64, length: i64) -> Result<(), Errno> {
        control(program, file, command, record(kind, start, length)).map(drop)
    }

    fn open_it(program: &mut Program) -> usize {
        program.create(PATH, open::RDWR)
    }

    #[test]
    fn nonsense_locks_nothing() {
        run(|program| {
            let file = open_it(program);
            let place = program.store(&record(READ, 0, 0).to_bytes());
            let call = |program: &mut Program, file, command: u32, place| {
                program.call(SystemCall::FileControl, [file, command as usize, place])
            };
            assert_eq!(call(program, 77, control::SETLK, place), Err(Errno::EBADF));
            assert_eq!(call(program, file, control::SETLK, 0x1000), Err(Errno::EFAULT));
            for bad in [
                record(3, 0, 0),
                Record { whence: 3, ..record(READ, 0, 0) },
                record(READ, -1, 0),
                record(READ, 5, -6),
                record(NO_LOCK, -1, 0),
            ] {
                assert_eq!(control(program, file, control::SETLK, bad), Err(Errno::EINVAL), "{bad:?}");
            }
            assert_eq!(control(program, file, control::SETLK, record(READ, i64::MAX, 2)), Err(Errno::EOVERFLOW));
            assert_eq!(control(program, file, control::GETLK, record(NO_LOCK, 0, 0)), Err(Errno::EINVAL));
            let of_other = Record { process: 5, ..record(READ, 0, 0) };
            assert_eq!(control(program, file, control::OFD_SETLK, of_other), Err(Errno::EINVAL));
            let (reads, writes) = (program.create(PATH, open::RDONLY), program.create(PATH, open::WRONLY));
            assert_eq!(lock(program, reads, control::SETLK, WRITE, 0, 1), Err(Errno::EBADF));
            assert_eq!(lock(program, writes, control::SETLK, READ, 0, 1), Err(Errno::EBADF));
            for operation in [0, 3, 5 | 2, 16] {
                assert_eq!(program.call(SystemCall::Lock, [file, operation]), Err(Errno::EINVAL), "{operation}");
            }
            assert_eq!(program.call(SystemCall::Lock, [77, 1]), Err(Errno::EBADF));
            program.remove(PATH);
        });
    }

    #[test]
    fn ranges_of_two_processes_exclude_each_other() {
        run(|program| {
            let file = open_it(program);
            program.write_to(file, &[0; 100]).unwrap();
            // The last 40 bytes before the position, and those from the end on.
            let before = Record { whence: SEEK_CUR as u16, ..record(WRITE, 0, -40) };
            assert!(control(program, file, control::SETLK, before).is_ok());
            let behind = Record { whence: SEEK_END as u16, ..record(READ, 0, 0) };
            assert!(control(program, file, control::SETLK, behind).is_ok());
            let parent = program.id as i32;
            let child = program.fork(move |program| {
                let ask = |program: &mut Program, kind, start, length| {
                    control(program, file, control::GETLK, record(kind, start, length)).unwrap()
                };
                let written = Record { process: parent, ..record(WRITE, 60, 40) };
                assert_eq!(ask(program, READ, 0, 61), written);
                assert_eq!(ask(program, READ, 100, 0).kind, NO_LOCK);
                assert_eq!(ask(program, WRITE, 500, 1), Record { process: parent, ..record(READ, 100, 0) });
                assert_eq!(lock(program, file, control::SETLK, READ, 99, 1), Err(Errno::EAGAIN));
                assert_eq!(lock(program, file, control::SETLK, READ, 200, 5), Ok(()));
                assert_eq!(lock(program, file, control::SETLK, WRITE, 0, 60), Ok(()));
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            // The child's went with it.
            assert_eq!(lock(program, file, control::SETLK, WRITE, 0, 0), Ok(()));
            program.remove(PATH);
        });
    }

    /// The locks of a process go with any descriptor of the file; those of an open file with its last one.
    #[test]
    fn locks_go_with_descriptors() {
        run(|program| {
            let (first, second) = (open_it(program), open_it(program));
            let used = program.process().account.used(Resource::Memory);
            for by in 0..4 {
                assert_eq!(lock(program, first, control::SETLK, WRITE, 0, 0), Ok(()));
                assert_eq!(lock(program, second, control::OFD_SETLK, READ, 0, 0), Err(Errno::EAGAIN));
                let other = open_it(program);
                match by {
                    0 => drop(program.close(other)),
                    1 => drop(program.call(SystemCall::DuplicateTo, [second, other, 0])),
                    2 => drop(program.call(SystemCall::CloseRange, [other, other, 0])),
                    _ => drop(lock(program, first, control::SETLK, NO_LOCK, 0, 0)),
                }
                assert_eq!(lock(program, second, control::OFD_SETLK, READ, 0, 0), Ok(()), "{by}");
                assert_eq!(lock(program, second, control::OFD_SETLK, NO_LOCK, 0, 0), Ok(()));
                let _ = program.close(other);
            }
            assert_eq!(program.process().account.used(Resource::Memory), used);
            // A process does not exclude itself, but two open files do.
            assert_eq!(lock(program, first, control::SETLK, WRITE, 0, 0), Ok(()));
            assert_eq!(lock(program, second, control::SETLK, READ, 0, 0), Ok(()));
            assert_eq!(lock(program, second, control::SETLK, NO_LOCK, 0, 0), Ok(()));
            let third = open_it(program);
            assert_eq!(lock(program, second, control::OFD_SETLK, WRITE, 0, 9), Ok(()));
            assert_eq!(lock(program, third, control::OFD_SETLK, WRITE, 5, 1), Err(Errno::EAGAIN));
            let asked = control(program, third, control::OFD_GETLK, record(READ, 0, 0)).unwrap();
            assert_eq!(asked, Record { process: -1, ..record(WRITE, 0, 9) });
            let copy = program.call(SystemCall::Duplicate, [second]).unwrap();
            program.close(second).unwrap();
            assert_eq!(lock(program, third, control::OFD_SETLK, WRITE, 5, 1), Err(Errno::EAGAIN), "the copy has it");
            program.close(copy).unwrap();
            assert_eq!(lock(program, third, control::OFD_SETLK, WRITE, 5, 1), Ok(()));
            program.remove(PATH);
        });
    }

    #[test]
    fn whole_files_are_locked_by_open_files() {
        run(|program| {
            let (first, second) = (open_it(program), open_it(program));
            let flock = |program: &mut Program, file, operation: u32| {
                program.call(SystemCall::Lock, [file, operation as usize])
            };
            let tries = lock::NON_BLOCKING;
            assert_eq!(flock(program, first, lock::SHARED), Ok(0));
            assert_eq!(flock(program, second, lock::SHARED | tries), Ok(0));
            assert_eq!(flock(program, first, lock::EXCLUSIVE | tries), Err(Errno::EAGAIN));
            assert_eq!(flock(program, second, lock::UNLOCK), Ok(0));
            assert_eq!(flock(program, first, lock::EXCLUSIVE | tries), Ok(0));
            // A copy of the process has the same open file.
            let child = program.fork(move |program| {
                assert_eq!(program.call(SystemCall::Lock, [first, (lock::EXCLUSIVE | tries) as usize]), Ok(0));
                assert_eq!(
                    program.call(SystemCall::Lock, [second, (lock::SHARED | tries) as usize]),
                    Err(Errno::EAGAIN)
                );
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(flock(program, second, lock::SHARED | tries), Err(Errno::EAGAIN));
            // One that waits gets it when the open file is closed.
            program
                .add_worker(move |program| {
                    program.sleep_ns(5_000_000);
                    program.close(first).unwrap();
                })
                .unwrap();
            assert_eq!(flock(program, second, lock::EXCLUSIVE), Ok(0));
            // Ranges are another matter.
            assert_eq!(lock(program, second, control::SETLK, WRITE, 0, 0), Ok(()));
            program.remove(PATH);
        });
    }

    #[test]
    fn a_wait_ends_with_the_lock_with_a_signal_and_with_the_process() {
        run(|program| {
            let file = open_it(program);
            assert_eq!(lock(program, file, control::SETLK, WRITE, 0, 10), Ok(()));
            let waits = program.fork(move |program| {
                assert_eq!(lock(program, file, control::SETLKW, WRITE, 5, 1), Ok(()));
            });
            let waits = waits.unwrap();
            let killed = program.fork(move |program| {
                let _ = lock(program, file, control::SETLKW, WRITE, 0, 0);
            });
            let killed = killed.unwrap();
            let interrupted = program.fork(move |program| {
                let action = program.store(&[crate::testing::SIGNAL_HANDLER.to_le_bytes(), [0; 8], [0; 8]].concat());
                program.call(SystemCall::SignalAction, [10, action, 0, 8]).unwrap();
                assert_eq!(lock(program, file, control::SETLKW, READ, 0, 1), Err(Errno::EINTR));
            });
            let interrupted = interrupted.unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::Kill, [interrupted, 10]), Ok(0));
            assert_eq!(program.wait_for(interrupted), Ok((interrupted, 0)));
            assert_eq!(program.call(SystemCall::Kill, [killed, 9]), Ok(0));
            assert_eq!(program.wait_for(killed), Ok((killed, 9)));
            assert_eq!(lock(program, file, control::SETLK, NO_LOCK, 5, 1), Ok(()));
            assert_eq!(program.wait_for(waits), Ok((waits, 0)));
            // An asynchronous one is cancelled, and leaves nothing.
            let other = open_it(program);
            assert_eq!(lock(program, file, control::OFD_SETLK, WRITE, 0, 0), Err(Errno::EAGAIN), "its own process's");
            assert_eq!(lock(program, file, control::SETLK, NO_LOCK, 0, 0), Ok(()));
            assert_eq!(lock(program, file, control::OFD_SETLK, WRITE, 0, 0), Ok(()));
            let place = program.store(&record(READ, 0, 1).to_bytes());
            let wait = [other, control::OFD_SETLKW as usize, place];
            assert_eq!(program.submit(SystemCall::FileControl, wait, 1), None);
            assert_eq!(program.submit(SystemCall::FileControl, wait, 2), None);
            assert_eq!(program.call(SystemCall::Cancel, [1]), Ok(0));
            assert_eq!(program.await_completions(), [(1, Err(Errno::ECANCELED))]);
            assert_eq!(lock(program, file, control::OFD_SETLK, NO_LOCK, 0, 0), Ok(()));
            assert_eq!(program.await_completions(), [(2, Ok(0))]);
            program.remove(PATH);
        });
    }

    #[test]
    fn a_process_does_not_wait_for_itself() {
        run(|program| {
            let file = open_it(program);
            assert_eq!(lock(program, file, control::SETLK, WRITE, 0, 1), Ok(()));
            let child = program.fork(move |program| {
                assert_eq!(lock(program, file, control::SETLK, WRITE, 1, 1), Ok(()));
                // Waits for its parent, which ends by an error and lets it have the byte.
                assert_eq!(lock(program, file, control::SETLKW, WRITE, 0, 1), Ok(()));
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(lock(program, file, control::SETLKW, READ, 1, 1), Err(Errno::EDEADLK));
            assert_eq!(lock(program, file, control::SETLK, NO_LOCK, 0, 1), Ok(()));
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            program.remove(PATH);
        });
    }

    /// A lock that is granted to a descriptor which was closed while the call waited is given up.
    #[test]
    fn a_descriptor_that_is_closed_meanwhile_gets_no_lock() {
        run(|program| {
            let file = open_it(program);
            assert_eq!(lock(program, file, control::SETLK, WRITE, 0, 1), Ok(()));
            let child = program.fork(move |program| {
                let own = open_it(program);
                program
                    .add_worker(move |program| {
                        program.sleep_ns(1_000_000);
                        program.close(own).unwrap();
                    })
                    .unwrap();
                assert_eq!(lock(program, own, control::SETLKW, WRITE, 0, 1), Err(Errno::EBADF));
                let free = control(program, file, control::OFD_GETLK, record(WRITE, 0, 0)).unwrap();
                assert_eq!(free.kind, NO_LOCK);
            });
            let child = child.unwrap();
            program.sleep_ns(5_000_000);
            assert_eq!(lock(program, file, control::SETLK, NO_LOCK, 0, 1), Ok(()));
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            program.remove(PATH);
        });
    }
}
