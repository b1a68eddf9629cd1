//! Signals to the owners of files that tell of their events (`SIGIO`; [`owners`](crate::files::owners)).
//!
//! One coroutine of the kernel looks at the files whose heralds were woken, sends the signals, and registers the
//! heralds again. Its time is charged to the processes that have asked for the signals. They have the rights with which
//! a process has named the owner or the signal last, and end with it: a holder of the file can have it send only what
//! it may send itself, also if the process is given more rights later, by a program that runs as its owner. Events that
//! come before the coroutine's look are told once. Those that come while signals to a group are on their way are told
//! by another round, as far as they are still there at its end.
//!
//! The coroutine takes files in the order of their events, and is as important as an ordinary program: a process could
//! keep a more important one busy with files of its own.

use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use core::sync::atomic::Ordering;
use core::task::Waker;

use ::signals::{Details, Information, Signal, code};
use abi_queue::Priority;
use abi_unix::Errno;
use abi_unix::types::epoll as event;
use hal_api::Machine as _;
use platform::Machine;

use crate::files::file::OpenFile;
use crate::files::owners::{Awaited, Herald, TELLER};
use crate::files::remains::{Remain, leave};
use crate::process::capabilities::Rights;
use crate::process::table::{Walk, find};
use crate::process::worker::Worker;
use crate::process::{Process, signal_sending, thread};
use crate::scheduling::standing::worth_of;
use crate::scheduling::{executor, payers};

/// Members of a group that one step reaches.
const AT_A_TIME: usize = 4;

/// Starts the coroutine.
pub(crate) fn start() {
    executor::spawn_for_kernel(worth_of(Priority::DEFAULT), async {
        loop {
            while let Some(herald) = Herald::next_entered() {
                let start = Machine::now();
                tell(&herald);
                payers::work_for(herald.process);
                payers::charge(herald.process, Machine::now().saturating_sub(start));
                executor::yield_now().await;
            }
            TELLER.summoned().await;
        }
    });
}

/// Returns the thread with this number, which has its process's number in it.
pub(crate) fn thread(number: i32) -> Option<(Arc<Process>, Arc<Worker>)> {
    let process = find(thread::process_of(u32::try_from(number).ok()?))?;
    let worker = process.worker_or_thread(number as usize >> 16)?;
    Some((process, worker))
}

/// Returns the process in whose name the signals of a file are sent, if it has not ended, and the rights with which it
/// has asked for them.
fn namer(file: &OpenFile) -> Option<(Arc<Process>, Rights)> {
    let namer = file.namer()?;
    let process = find(namer.process)?;
    core::ptr::eq(namer.account.as_ptr(), Arc::as_ptr(&process.account)).then_some((process, namer.rights))
}

/// Looks at the file of a herald, and tells its owner if there are events.
fn tell(herald: &Arc<Herald>) {
    let Some(file) = herald.file() else { return };
    let Some((asker, rights)) = namer(&file) else { return };
    let ownership = file.ownership();
    if !ownership.is_told {
        return;
    }
    let waker = Waker::from(herald.clone());
    let events = herald.awaited.events();
    let found = match herald.awaited {
        Awaited::Input => file.readiness(&*asker, events, Some(&waker)),
        // It is registered by the next call that finds no room, and before that only if there was none here.
        Awaited::Room => match file.readiness(&*asker, events, None) {
            Ok(0) => file.readiness(&*asker, events, Some(&waker)),
            found => found,
        },
    };
    if !file.ownership().is_told {
        // It tells no more since the look above: the registration came too late to be forgotten with the others.
        return file.forget_herald(herald.clone());
    }
    let Some(found) = found.ok().filter(|found| *found != 0) else { return };
    let information = information(ownership.signal, found, herald);
    match ownership.owner {
        0 => {}
        owner @ 1.. if ownership.is_thread => {
            if let Some((process, worker)) = thread(owner) {
                send(&rights, &asker, &process, Some(&worker), information);
            }
        }
        owner @ 1.. => {
            if let Some(process) = find(owner.unsigned_abs()) {
                send(&rights, &asker, &process, None, information);
            }
        }
        group => {
            // Later ones are seen by the end of the round.
            if herald.told.fetch_add(1, Ordering::AcqRel) == 0 {
                let members = Walk::of_group(group.unsigned_abs());
                let asker = Arc::downgrade(&asker);
                leave(ToldGroup { herald: herald.clone(), asker, rights, members, information });
            }
        }
    }
}

/// Returns the information of a signal about events that were found: only a signal that was chosen tells of them.
fn information(signal: u32, found: u32, herald: &Herald) -> Information {
    let Some(signal) = Signal::new(signal) else { return Information::of_kernel(Signal::IO) };
    let code = match () {
        () if found & event::ERR != 0 => code::FILE_ERROR,
        () if found & event::HUP != 0 => code::FILE_HANG_UP,
        () if herald.awaited == Awaited::Room => code::FILE_ROOM,
        () => code::FILE_INPUT,
    };
    let details = Details::File { events: found.into(), descriptor: herald.descriptor };
    Information { signal, code, details }
}

/// Sends a signal, if the process that has named its target might then; `SIGIO` instead of one for which there is no
/// place.
#[doc(alias = "sigio_perm")]
fn send(rights: &Rights, asker: &Process, process: &Process, target: Option<&Worker>, information: Information) {
    if signal_sending::send_with(rights, asker, process, target, information) == Err(Errno::EAGAIN) {
        let _ = signal_sending::send_with(rights, asker, process, target, Information::of_kernel(Signal::IO));
    }
}

/// Signals to a group on their way.
struct ToldGroup {
    herald: Arc<Herald>,
    asker: Weak<Process>,
    rights: Rights,
    members: Walk,
    information: Information,
}

impl Remain for ToldGroup {
    fn owner(&self) -> Option<u32> {
        Some(self.herald.process)
    }

    fn step(&mut self) -> bool {
        let asker = self.asker.upgrade();
        for _ in 0..AT_A_TIME {
            match (self.members.look(), &asker) {
                (Some(Some(process)), Some(asker)) => send(&self.rights, asker, &process, None, self.information),
                (None, Some(_)) => return false,
                _ => {
                    if self.herald.told.swap(0, Ordering::AcqRel) > 1 {
                        self.herald.wake_by_ref();
                    }
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{TimeSpec, control, file_control, open};

    use super::*;
    use crate::process::authority;
    use crate::testing::{Program, run};

    const IO: usize = 29;
    const CHOSEN: usize = 40;

    fn control_of(program: &mut Program, file: usize, command: u32, value: usize) -> Result<usize, Errno> {
        program.call(SystemCall::FileControl, [file, command as usize, value])
    }

    /// Takes a blocked signal: its number, code, events and descriptor.
    fn taken(program: &mut Program) -> Result<(usize, i32, u32, u32), Errno> {
        let set = program.store(&(1u64 << (IO - 1) | 1 << (CHOSEN - 1)).to_le_bytes());
        program.call(SystemCall::SignalMask, [0, set, 0, 8]).unwrap();
        program.sleep_ns(1_000_000);
        let (information, now) = (program.place(128), program.store(&TimeSpec::from_ns(0).to_bytes()));
        let number = program.call(SystemCall::SignalWait, [set, information, now, 8])?;
        let word = |at: usize| program.read_u32(information + at);
        Ok((number, word(8) as i32, word(16), word(24)))
    }

    fn tell(program: &mut Program, file: usize, owner: usize) {
        control_of(program, file, control::SETOWN, owner).unwrap();
        let flags = control_of(program, file, control::GETFL, 0).unwrap();
        assert_eq!(control_of(program, file, control::SETFL, flags | open::ASYNC as usize), Ok(0));
    }

    #[test]
    fn kinds_of_owners_are_checked_and_told() {
        run(|program| {
            let (reader, _) = program.pipe(0);
            let own = program.id as i32;
            let place = program.place(8);
            let set = |program: &mut Program, kind: i32, number: i32| {
                let pair = program.store(&[kind.to_le_bytes(), number.to_le_bytes()].concat());
                control_of(program, reader, control::SETOWN_EX, pair)
            };
            for (kind, number, error) in [
                (3, own, Errno::EINVAL),
                (-1, own, Errno::EINVAL),
                (control::OWNER_PROCESS, -own, Errno::EINVAL),
                (control::OWNER_PROCESS, 9999, Errno::ESRCH),
                (control::OWNER_GROUP, 9999, Errno::ESRCH),
                (control::OWNER_THREAD, 9999, Errno::ESRCH),
                (control::OWNER_THREAD, own + 50 * 0x1_0000, Errno::ESRCH),
            ] {
                assert_eq!(set(program, kind, number), Err(error), "{kind} {number}");
            }
            for command in [control::SETOWN_EX, control::GETOWN_EX] {
                assert_eq!(control_of(program, reader, command, 0x1000), Err(Errno::EFAULT));
                assert_eq!(control_of(program, 99, command, place), Err(Errno::EBADF));
            }
            let group = program.call(SystemCall::GetProcessGroup, [0]).unwrap() as i32;
            for (kind, number) in [
                (control::OWNER_THREAD, own),
                (control::OWNER_PROCESS, own),
                (control::OWNER_GROUP, group),
                (control::OWNER_PROCESS, 0),
            ] {
                assert_eq!(set(program, kind, number), Ok(0));
                assert_eq!(control_of(program, reader, control::GETOWN_EX, place), Ok(0));
                assert_eq!((program.read_u32(place) as i32, program.read_u32(place + 4) as i32), (kind, number));
                if kind != control::OWNER_GROUP {
                    // The negative number of a small group looks like an error, as on Linux.
                    assert_eq!(control_of(program, reader, control::GETOWN, 0), Ok(number as usize));
                }
            }
        });
    }

    #[test]
    fn owners_are_told_of_input_and_of_room_after_there_was_none() {
        run(|program| {
            let own = program.id as usize;
            let (reader, writer) = program.pipe(open::NONBLOCK);
            assert_eq!(taken(program), Err(Errno::EAGAIN));
            tell(program, reader, own);
            program.write_to(writer, b"first").unwrap();
            assert_eq!(taken(program), Ok((IO, code::KERNEL, 0, 0)));
            assert_eq!(taken(program), Err(Errno::EAGAIN), "once");
            control_of(program, reader, control::SETSIG, CHOSEN).unwrap();
            program.write_to(writer, b"second").unwrap();
            let events = event::IN | event::RDNORM;
            assert_eq!(taken(program), Ok((CHOSEN, code::FILE_INPUT, events, reader as u32)));
            // Room is none that was not missed.
            tell(program, writer, own);
            assert_eq!(program.read_from(reader, 100), Ok(b"firstsecond".to_vec()));
            assert_eq!(taken(program), Err(Errno::EAGAIN));
            program.write_to(writer, &[0; 60_000]).unwrap();
            assert!(program.write_to(writer, &[0; 60_000]).unwrap() < 60_000);
            assert_eq!(program.write_to(writer, &[0; 60_000]), Err(Errno::EAGAIN));
            while taken(program).is_ok() {}
            control_of(program, reader, control::SETFL, open::NONBLOCK as usize).unwrap();
            while program.read_from(reader, 30_000).is_ok_and(|bytes| !bytes.is_empty()) {}
            assert_eq!(taken(program), Ok((IO, code::KERNEL, 0, 0)));
            assert_eq!(taken(program), Err(Errno::EAGAIN));
            program.write_to(writer, b"x").unwrap();
            assert_eq!(taken(program), Err(Errno::EAGAIN), "the reader tells no more");
            program.close(reader).unwrap();
        });
    }

    /// A child has the files of its parent. It may name any owner, and the signals have its own authority then: its
    /// sibling is beyond that, and gets none.
    #[test]
    fn an_owner_that_its_namer_may_not_signal_is_told_nothing() {
        run(|program| {
            let (reader, writer) = program.pipe(open::NONBLOCK);
            tell(program, reader, program.id as usize);
            assert_eq!(taken(program), Err(Errno::EAGAIN));
            let victim = program.spawn(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
            assert_eq!(program.call(SystemCall::SetProcessGroup, [victim, victim]), Ok(0));
            let child = program.fork(move |program| {
                for owner in [victim as isize, -(victim as isize), 1] {
                    for signal in [0, 9, CHOSEN] {
                        let _ = control_of(program, reader, control::SETOWN, owner as usize);
                        let _ = control_of(program, reader, control::SETSIG, signal);
                        let _ = program.write_to(writer, b"x");
                        program.sleep_ns(1_000_000);
                    }
                }
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert!(find(victim as u32).is_some(), "no signal has ended it");
            assert_eq!(taken(program), Err(Errno::EAGAIN), "nor was the parent told");
            assert!(program.read_from(reader, 100).unwrap().len() == 9, "the child has the files");
            program.call(SystemCall::Kill, [victim, 9]).unwrap();
            program.wait_for(victim).unwrap();
        });
    }

    /// Events during the signals to a group are told after them, if they are still there.
    #[test]
    fn a_group_is_told_again_of_what_comes_meanwhile() {
        run(|program| {
            let (reader, writer) = program.pipe(open::NONBLOCK);
            let group = program.call(SystemCall::GetProcessGroup, [0]).unwrap();
            assert_eq!(taken(program), Err(Errno::EAGAIN));
            tell(program, reader, (-(group as isize)) as usize);
            let file = program.process().descriptors.lock().get(reader).unwrap().clone();
            let herald = crate::files::owners::herald_of(&file).unwrap();
            // A round is under way.
            herald.told.store(1, Ordering::Relaxed);
            program.write_to(writer, b"x").unwrap();
            assert_eq!(taken(program), Err(Errno::EAGAIN), "the round's signals are others");
            assert_eq!(herald.told.load(Ordering::Relaxed), 2);
            let (members, asker) = (Walk::of_group(99_999), Arc::downgrade(&program.process()));
            let (information, rights) = (Information::of_kernel(Signal::IO), authority::rights(&program.process()));
            assert!(ToldGroup { herald: herald.clone(), asker, rights, members, information }.step());
            assert_eq!(taken(program).map(|found| found.0), Ok(IO));
            assert_eq!(herald.told.load(Ordering::Relaxed), 0);
            assert_eq!(taken(program), Err(Errno::EAGAIN));
        });
    }

    #[test]
    fn threads_turn_telling_on_and_off_at_once() {
        run(|program| {
            let (reader, writer) = program.pipe(open::NONBLOCK);
            assert_eq!(taken(program), Err(Errno::EAGAIN));
            control_of(program, reader, control::SETOWN, program.id as usize).unwrap();
            let turn = move |program: &mut Program| {
                for round in 0..200 {
                    let flags = open::NONBLOCK | if round % 2 == 0 { open::ASYNC } else { 0 };
                    assert_eq!(control_of(program, reader, control::SETFL, flags as usize), Ok(0));
                    let _ = program.call(SystemCall::Yield, []);
                }
            };
            program.add_worker(turn).unwrap();
            for _ in 0..200 {
                program.write_to(writer, b"x").unwrap();
                program.read_from(reader, 1).unwrap();
                turn_once(program, reader);
            }
            program.sleep_ns(1_000_000_000);
            while taken(program).is_ok() {}
            // Either may have been the last. The file tells if its flag says so, once: no herald is registered twice.
            for (flags, expected) in [(open::NONBLOCK, false), (open::NONBLOCK | open::ASYNC, true)] {
                assert_eq!(control_of(program, reader, control::SETFL, flags as usize), Ok(0));
                program.write_to(writer, b"x").unwrap();
                assert_eq!(taken(program).is_ok(), expected);
                assert_eq!(taken(program), Err(Errno::EAGAIN));
                program.read_from(reader, 1).unwrap();
            }
        });
    }

    fn turn_once(program: &mut Program, file: usize) {
        for flags in [open::NONBLOCK | open::ASYNC, open::NONBLOCK] {
            assert_eq!(control_of(program, file, control::SETFL, flags as usize), Ok(0));
            let _ = program.call(SystemCall::Yield, []);
        }
    }

    #[test]
    fn threads_and_groups_are_told_and_processes_that_the_asker_may_signal() {
        run(|program| {
            let own = program.id as usize;
            let (near, far) = program.socket_pair(1);
            let group = program.call(SystemCall::GetProcessGroup, [0]).unwrap();
            let request = file_control::FIOASYNC as usize;
            let on = program.store(&1u32.to_le_bytes());
            assert_eq!(taken(program), Err(Errno::EAGAIN));
            control_of(program, near, control::SETSIG, CHOSEN).unwrap();
            let thread = program.store(&[control::OWNER_THREAD, own as i32].map(i32::to_le_bytes).concat());
            control_of(program, near, control::SETOWN_EX, thread).unwrap();
            assert_eq!(program.call(SystemCall::DeviceControl, [near, request, on]), Ok(0));
            program.write_to(far, b"x").unwrap();
            assert_eq!(taken(program).map(|found| (found.0, found.3)), Ok((CHOSEN, near as u32)));
            // The first process is in another group, and no one's to signal: not the owner that is set here.
            control_of(program, near, control::SETOWN, 1).unwrap();
            control_of(program, near, control::SETSIG, 9).unwrap();
            program.write_to(far, b"x").unwrap();
            program.sleep_ns(1_000_000);
            control_of(program, near, control::SETSIG, CHOSEN).unwrap();
            control_of(program, near, control::SETOWN, (-(group as isize)) as usize).unwrap();
            program.close(far).unwrap();
            let found = taken(program).unwrap();
            assert_eq!((found.0, found.1), (CHOSEN, code::FILE_HANG_UP));
            program.close(near).unwrap();
        });
    }
}
