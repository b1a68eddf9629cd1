//! The calls on scheduling, and those that observe it.

#[cfg(feature = "fail-allocations")]
use abi_unix::Act;

use crate::calls::call::{Call, Decoding};
use crate::observing::{snapshot, trace};
use crate::scheduling;

#[inline(never)]
pub(super) fn get(call: Call<'_>) -> Decoding {
    scheduling::get(call.process(), call.unsigned(0), call.buffer(1)?).map(Into::into)
}

#[inline(never)]
pub(super) fn set(call: Call<'_>) -> Decoding {
    let (id, attribute) = (call.unsigned(0), call.unsigned(1));
    scheduling::set(call.process(), id, attribute, call.word(2) as u64, call.word(3) as u64).map(Into::into)
}

#[inline(never)]
pub(super) fn set_system(call: Call<'_>) -> Decoding {
    #[cfg(feature = "fail-allocations")]
    if call.unsigned(0) == abi_unix::types::system_scheduling::FAIL_ALLOCATION {
        crate::process::authority::permit(call.process(), Act::ScheduleSystem)?;
        return Ok(memory::faults::arm(call.process().id, call.word(1)).into());
    }
    scheduling::set_system(call.process(), call.unsigned(0), call.word(1) as u64).map(Into::into)
}

#[inline(never)]
pub(super) fn read_trace(call: Call<'_>) -> Decoding {
    trace::read(call.process(), call.buffer(0)?).map(Into::into)
}

#[inline(never)]
pub(super) fn write_trace(call: Call<'_>) -> Decoding {
    trace::write(call.worker, call.buffer(0)?).map(Into::into)
}

#[inline(never)]
pub(super) fn snapshot(call: Call<'_>) -> Decoding {
    snapshot::take(call.process(), call.unsigned(0), call.unsigned(1), call.buffer(2)?).map(Into::into)
}
