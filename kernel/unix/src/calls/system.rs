//! The calls about the system as a whole: its name, its counters and its log.

use abi_unix::{Act, Counter};

use crate::calls::call::{Call, Decoding};
use crate::observing::{counters, report};
use crate::process::authority;
use crate::process::user::UserBuffer;

/// Greatest number of bytes of a line that a process can write to the kernel's log.
const LONGEST_LINE: usize = 256;

#[inline(never)]
pub(super) fn name(call: Call<'_>) -> Decoding {
    call.process().copy_out(call.address(0), &crate::system_name()).map(Into::into)
}

#[inline(never)]
pub(super) fn read_counters(call: Call<'_>) -> Decoding {
    let process = call.process();
    authority::permit(process, Act::Count)?;
    let buffer = call.buffer(0)?;
    for (position, &counter) in Counter::ALL.iter().enumerate().take(buffer.len() / 8) {
        process.copy_out(buffer.address() + position * 8, &counters::read(counter).to_le_bytes())?;
    }
    Ok(Counter::ALL.len().into())
}

#[inline(never)]
pub(super) fn log(call: Call<'_>) -> Decoding {
    let process = call.process();
    authority::permit(process, Act::Log)?;
    let buffer = UserBuffer::new(call.address(0), call.length(1).min(LONGEST_LINE))?;
    let mut line = [0; LONGEST_LINE];
    let line = &mut line[..buffer.len()];
    process.copy_in(buffer.address(), line)?;
    report::line(process, format_args!("{}", line.escape_ascii()));
    Ok(line.len().into())
}
