//! The calls on readiness: event counters, `epoll` and `ppoll`.

use alloc::sync::Arc;

use abi_unix::{Errno, types};

use crate::asynchronous::operation::{self, Operation};
use crate::calls::call::{Call, Decoding, kept};
use crate::files::epoll;
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
    let counter = epoll::EventCounter::new(value.into(), flags & types::EFD_SEMAPHORE != 0);
    let file = Arc::new(OpenFile::of_event_counter(counter, flags & types::open::NONBLOCK != 0, charge));
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
    let file = Arc::new(OpenFile::of_epoll(epoll::Epoll::new(&process.account), charge));
    process.descriptors.lock().add(file, flags & types::open::CLOEXEC != 0, 0).map(Into::into)
}

#[inline(never)]
pub(super) fn control_epoll(call: Call<'_>) -> Decoding {
    let (process, command) = (call.process(), call.unsigned(1));
    if command != types::epoll::CTL_DEL {
        call.admitted()?;
    }
    let (epoll, watched) = (call.descriptor(0)?, call.descriptor(2)?);
    epoll::control(process, epoll, command, watched, call.address(3)).map(Into::into)
}

#[inline(always)]
pub(super) fn wait_for_epoll(call: Call<'_>) -> Decoding {
    call.check_signal_mask(4)?;
    // A negative count is too large a one.
    let count = call.signed(2) as usize;
    let wait = epoll::Wait::new(call.file(0)?, call.address(1), count, call.signed(3))?;
    Ok(Operation::Epoll(kept(wait)).into())
}

#[inline(never)]
pub(super) fn poll(call: Call<'_>) -> Decoding {
    let (process, count) = (call.process(), call.unsigned(1) as usize);
    // A list that is longer than the memory kept for a worker's wait needs memory like everything else.
    if count > epoll::SHORT_LIST {
        call.admitted()?;
    }
    call.check_signal_mask(3)?;
    let limit = match call.address(2) {
        0 => TimeLimit::Never,
        address => TimeLimit::after_ns(operation::read_time(process, address)?),
    };
    Ok(Operation::PollFiles(kept(epoll::PollFiles::read(process, call.address(0), count, limit)?)).into())
}
