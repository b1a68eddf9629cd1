//! The calls on readiness: event counters, `epoll`, `ppoll` and `pselect6`.

use alloc::sync::Arc;

use abi_unix::types::epoll::{self as event, Event};
use abi_unix::types::file_event;
use abi_unix::{Errno, types};
use filesystem::{Access, LastLink};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding, kept};
use crate::calls::paths::{Effect, follow, read_path_from_here};
use crate::files::epoll::{self, EpollWait};
use crate::files::event_counter::EventCounter;
use crate::files::file::{self, OpenFile};
use crate::files::file_events::EventFile;
use crate::process::user::read_time;
use crate::time::limit::TimeLimit;

#[inline(never)]
pub(super) fn create_event_counter(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let (value, flags) = (call.unsigned(0), call.unsigned(1));
    if flags & !(types::EFD_SEMAPHORE | types::open::NONBLOCK | types::open::CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let charge = file::charge(&process.account)?;
    let counter = EventCounter::new(value.into(), flags & types::EFD_SEMAPHORE != 0);
    let file = Arc::new(OpenFile::new(counter, Access::ReadWrite, flags & types::open::NONBLOCK != 0, charge));
    process.descriptors.lock().add(file, flags & types::open::CLOEXEC != 0, 0).map(Into::into)
}

/// Performs `inotify_init1`.
#[inline(never)]
pub(super) fn create_event_file(call: Call<'_>) -> Decoding {
    let (process, flags) = (call.admitted()?, call.unsigned(0));
    if flags & !(types::open::NONBLOCK | types::open::CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let charge = file::charge(&process.account)?;
    let events = EventFile::new(process.id, &process.account);
    let file = Arc::new(OpenFile::new(events, Access::Read, flags & types::open::NONBLOCK != 0, charge));
    process.descriptors.lock().add(file, flags & types::open::CLOEXEC != 0, 0).map(Into::into)
}

/// Performs `inotify_add_watch`.
#[inline(never)]
pub(super) fn watch_file(call: Call<'_>) -> Decoding {
    let mask = call.admitted().map(|_| call.unsigned(2))?;
    let contradicts = mask & file_event::ADD != 0 && mask & file_event::MUST_BE_NEW != 0;
    if mask & file_event::KNOWN == 0 || contradicts {
        return Err(Errno::EINVAL);
    }
    let file = call.file(0)?;
    if file.as_kind::<EventFile>().is_none() {
        return Err(Errno::EINVAL);
    }
    let path = read_path_from_here(&call, 1)?;
    let last = if mask & file_event::KEEP_LINK != 0 { LastLink::Keep } else { LastLink::Follow };
    follow(&call, [path], Effect::Keeps, move |_, [path]| {
        let place = path.take_readable(last)?;
        let events = file.as_kind::<EventFile>().ok_or(Errno::EINVAL)?;
        Ok(events.watch(place, mask)? as usize)
    })
}

/// Performs `inotify_rm_watch`.
#[inline(never)]
pub(super) fn end_watch(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    file.as_kind::<EventFile>().ok_or(Errno::EINVAL)?.end_watch(call.signed(1)).map(|()| 0.into())
}

#[inline(never)]
pub(super) fn create_epoll(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let flags = call.unsigned(0);
    if flags & !types::open::CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let charge = file::charge(&process.account)?;
    let file = Arc::new(OpenFile::new(epoll::Epoll::new(&**process), Access::ReadWrite, false, charge));
    process.descriptors.lock().add(file, flags & types::open::CLOEXEC != 0, 0).map(Into::into)
}

#[inline(never)]
pub(super) fn control_epoll(call: Call<'_>) -> Decoding {
    let (process, command) = (call.process(), call.unsigned(1));
    if command != event::CTL_DEL {
        call.admitted()?;
    }
    let (epoll, watched) = (call.descriptor(0)?, call.descriptor(2)?);
    let mut wanted = Event { events: 0, data: 0 };
    if command != event::CTL_DEL {
        let mut bytes = [0; Event::SIZE];
        process.copy_in(call.address(3), &mut bytes)?;
        wanted = Event::from_bytes(bytes);
        // These two are always reported.
        wanted.events |= event::ERR | event::HUP;
    }
    let (holder, file) = {
        let descriptors = process.descriptors.lock();
        (descriptors.get(epoll)?.clone(), descriptors.get(watched)?.clone())
    };
    epoll::control(&**process, &holder, command, (watched, &file), wanted).map(Into::into)
}

#[inline(always)]
pub(super) fn wait_for_epoll(call: Call<'_>) -> Decoding {
    let mask = call.signal_mask(4)?;
    // A negative count is too large a one.
    let count = call.signed(2) as usize;
    let wait = EpollWait::new(&*call.file(0)?, call.address(1), count, epoll::limit_of_ms(call.signed(3)))?;
    call.replace_signal_mask(mask);
    Ok(Operation::Epoll(kept(wait)).into())
}

/// Performs `epoll_pwait2`.
#[inline(never)]
pub(super) fn wait_for_epoll_with(call: Call<'_>) -> Decoding {
    let mask = call.signal_mask(4)?;
    let limit = match call.address(3) {
        0 => TimeLimit::Never,
        address => TimeLimit::after_ns(read_time(&**call.process(), address)?),
    };
    let wait = EpollWait::new(&*call.file(0)?, call.address(1), call.signed(2) as usize, limit)?;
    call.replace_signal_mask(mask);
    Ok(Operation::Epoll(kept(wait)).into())
}

#[inline(never)]
pub(super) fn poll(call: Call<'_>) -> Decoding {
    let (process, count) = (call.process(), call.unsigned(1) as usize);
    // A list that is longer than the memory kept for a worker's wait needs memory like everything else.
    if count > epoll::SHORT_LIST {
        call.admitted()?;
    }
    let mask = call.signal_mask(3)?;
    let limit = match call.address(2) {
        0 => TimeLimit::Never,
        address => TimeLimit::after_ns(read_time(&**process, address)?),
    };
    let files = epoll::PollFiles::read(&**process, &process.descriptors, call.address(0), count, limit)?;
    call.replace_signal_mask(mask);
    Ok(Operation::PollFiles(kept(files)).into())
}

#[inline(never)]
pub(super) fn select(call: Call<'_>) -> Decoding {
    let process = call.process();
    // As on Linux, descriptors behind the end of the table are not looked at.
    let wanted = usize::try_from(call.signed(0)).map_err(|_| Errno::EINVAL)?;
    let count = wanted.min(process.descriptors.lock().end());
    if count > epoll::SHORT_LIST {
        call.admitted()?;
    }
    let mask = match call.address(5) {
        0 => None,
        address => {
            let mut words = [0; 16];
            process.copy_in(address, &mut words)?;
            let word = |at: usize| usize::from_le_bytes(core::array::from_fn(|index| words[at + index]));
            call.signal_mask_at(word(0), word(8))?
        }
    };
    let limit = match call.address(4) {
        0 => TimeLimit::Never,
        address => TimeLimit::after_ns(read_time(&**process, address)?),
    };
    let sets = [call.address(1), call.address(2), call.address(3)];
    let files = epoll::PollFiles::read_sets(&**process, &process.descriptors, sets, count, limit)?;
    call.replace_signal_mask(mask);
    Ok(Operation::PollFiles(kept(files)).into())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{DATA, Program, run};

    #[test]
    fn flags_are_checked_and_close_on_execute_is_kept() {
        run(|program| {
            for flags in [2, 1 << 12, 1 << 31] {
                assert_eq!(program.call(SystemCall::EventCounter, [0, flags]), Err(Errno::EINVAL), "{flags:#x}");
                assert_eq!(program.call(SystemCall::EpollCreate, [flags]), Err(Errno::EINVAL));
            }
            let close = types::open::CLOEXEC as usize;
            let counter = program.call(SystemCall::EventCounter, [5, close]).unwrap();
            let epoll = program.call(SystemCall::EpollCreate, [close]).unwrap();
            for file in [counter, epoll] {
                assert_eq!(program.call(SystemCall::FileControl, [file, 1, 0]), Ok(1));
            }
            // Only the lower half of the initial value counts.
            let wide = program.call(SystemCall::EventCounter, [7 << 32 | 9, 0]).unwrap();
            assert_eq!(program.read_from(wide, 8), Ok(9u64.to_le_bytes().to_vec()));
        });
    }

    #[test]
    fn sets_of_descriptors_keep_the_bits_of_those_that_are_ready() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let (other, _) = program.pipe(0);
            let ms = program.store(&types::TimeSpec::from_ns(1_000_000).to_bytes());
            let bits = |program: &mut Program, numbers: &[usize]| {
                let mut words = [0u64; 32];
                numbers.iter().for_each(|number| words[number / 64] |= 1 << (number % 64));
                program.store(&words.map(u64::to_le_bytes).concat())
            };
            // A short list and a long one.
            for count in [other + 4, 1500] {
                let readable = bits(program, &[reader, other]);
                let select = |program: &mut Program, sets: [usize; 3], time: usize| {
                    program.call(SystemCall::Select, [count, sets[0], sets[1], sets[2], time, 0])
                };
                assert_eq!(select(program, [readable, 0, 0], ms), Ok(0));
                assert_eq!(program.read(readable, 256), vec![0; 256], "nothing is ready");
                program.write_to(writer, b"x").unwrap();
                let (readable, writable) = (bits(program, &[reader, other]), bits(program, &[writer]));
                let exceptional = bits(program, &[reader]);
                assert_eq!(select(program, [readable, writable, exceptional], 0), Ok(2));
                let expected = bits(program, &[reader]);
                assert_eq!(program.read(readable, 256), program.read(expected, 256));
                let expected = bits(program, &[writer]);
                assert_eq!(program.read(writable, 256), program.read(expected, 256));
                assert_eq!(program.read(exceptional, 256), vec![0; 256]);
                let closed = bits(program, &[other + 3]);
                assert_eq!(select(program, [closed, 0, 0], ms), Err(Errno::EBADF));
                assert_eq!(select(program, [0x1000, 0, 0], ms), Err(Errno::EFAULT));
                assert_eq!(program.read_from(reader, 1), Ok(b"x".to_vec()));
            }
            assert_eq!(program.call(SystemCall::Select, [0, 0, 0, 0, ms, 0]), Ok(0), "a sleep");
            assert_eq!(program.call(SystemCall::Select, [usize::MAX, 0, 0, 0, ms, 0]), Err(Errno::EINVAL));
            let mask = program.store(&[DATA, 4].map(usize::to_le_bytes).concat());
            assert_eq!(program.call(SystemCall::Select, [0, 0, 0, 0, ms, mask]), Err(Errno::EINVAL));
        });
    }

    #[test]
    fn a_wait_for_a_set_ends_when_another_writes() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let set = program.store(&(1u64 << reader).to_le_bytes());
            let child = program.fork(move |program| {
                program.sleep_ns(10_000_000);
                program.write_to(writer, b"x").unwrap();
            });
            assert_eq!(program.call(SystemCall::Select, [reader + 1, set, 0, 0, 0, 0]), Ok(1));
            assert_eq!(program.read_u64(set), 1 << reader);
            program.wait_for(child.unwrap()).unwrap();
        });
    }

    #[test]
    fn counts_masks_and_times_that_make_no_sense_are_refused() {
        run(|program| {
            let epoll = program.call(SystemCall::EpollCreate, [0]).unwrap();
            for count in [0, u32::MAX as usize, 1 << 30] {
                assert_eq!(program.call(SystemCall::EpollWait, [epoll, DATA, count, 0, 0, 0]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::EpollWait, [epoll, DATA, 1, 0, DATA, 4]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::EpollWait, [epoll, DATA, 1, 0, 0x1000, 8]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::EpollWait, [epoll, DATA, 1, 0, DATA, 8]), Ok(0));
            let times = [(0, 1_000_000_000), (0, u64::MAX), (u64::MAX, 0), (0, 0), (0, 1000)]
                .map(|(seconds, ns)| program.store(&[u64::to_le_bytes(seconds), u64::to_le_bytes(ns)].concat()));
            for time in &times[..3] {
                let wait = program.call(SystemCall::EpollWaitWith, [epoll, DATA, 1, *time, 0, 0]);
                assert_eq!(wait, Err(Errno::EINVAL));
            }
            for time in &times[3..] {
                assert_eq!(program.call(SystemCall::EpollWaitWith, [epoll, DATA, 1, *time, DATA, 8]), Ok(0));
                let wait = program.call(SystemCall::EpollWaitWith, [epoll, DATA, 0, *time, 0, 0]);
                assert_eq!(wait, Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::EpollWaitWith, [epoll, DATA, 1, 0x1000, 0, 0]), Err(Errno::EFAULT));
            let negative = program.store(&[u64::MAX, 0].map(u64::to_le_bytes).concat());
            assert_eq!(program.call(SystemCall::Poll, [DATA, 0, negative, 0, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Poll, [DATA, 0, 0x1000, 0, 0]), Err(Errno::EFAULT));
            let ms = program.store(&types::TimeSpec::from_ns(1_000_000).to_bytes());
            assert_eq!(program.call(SystemCall::Poll, [DATA, 0, ms, 0, 0]), Ok(0), "a list of nothing is a sleep");
        });
    }
}
