//! The calls on readiness: event counters, `epoll` and `ppoll`.

use alloc::sync::Arc;

use abi_unix::types::epoll::{self as event, Event};
use abi_unix::{Errno, types};
use filesystem::Access;

use crate::asynchronous::operation::{self, Operation};
use crate::calls::call::{Call, Decoding, kept};
use crate::files::epoll::{self, EpollWait};
use crate::files::event_counter::EventCounter;
use crate::files::file::{self, OpenFile};
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
    let wait = EpollWait::new(&*call.file(0)?, call.address(1), count, call.signed(3))?;
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
        address => TimeLimit::after_ns(operation::read_time(process, address)?),
    };
    let files = epoll::PollFiles::read(&**process, &process.descriptors, call.address(0), count, limit)?;
    call.replace_signal_mask(mask);
    Ok(Operation::PollFiles(kept(files)).into())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{DATA, run};

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
    fn counts_masks_and_times_that_make_no_sense_are_refused() {
        run(|program| {
            let epoll = program.call(SystemCall::EpollCreate, [0]).unwrap();
            for count in [0, u32::MAX as usize, 1 << 30] {
                assert_eq!(program.call(SystemCall::EpollWait, [epoll, DATA, count, 0, 0, 0]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::EpollWait, [epoll, DATA, 1, 0, DATA, 4]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::EpollWait, [epoll, DATA, 1, 0, 0x1000, 8]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::EpollWait, [epoll, DATA, 1, 0, DATA, 8]), Ok(0));
            let negative = program.store(&[u64::MAX, 0].map(u64::to_le_bytes).concat());
            assert_eq!(program.call(SystemCall::Poll, [DATA, 0, negative, 0, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Poll, [DATA, 0, 0x1000, 0, 0]), Err(Errno::EFAULT));
            let ms = program.store(&types::TimeSpec::from_ns(1_000_000).to_bytes());
            assert_eq!(program.call(SystemCall::Poll, [DATA, 0, ms, 0, 0]), Ok(0), "a list of nothing is a sleep");
        });
    }
}
