//! The calls about the system as a whole: its name, its counters and its log.

use abi_unix::{Act, Counter};

use crate::calls::call::{Call, Decoding};
use crate::observing::counters;
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
    process.lines.print(format_args!("{}", line.escape_ascii()));
    Ok(line.len().into())
}

#[cfg(test)]
mod tests {
    use abi_unix::{Errno, SystemCall};

    use super::*;
    use crate::testing::{run, simulation};

    #[test]
    fn the_system_has_a_name_and_tells_it_where_it_can() {
        run(|program| {
            let place = program.place(400);
            assert_eq!(program.call(SystemCall::SystemName, [place]), Ok(0));
            assert_eq!(program.read(place, crate::system_name().len()), crate::system_name());
            assert_eq!(program.call(SystemCall::SystemName, [0x1000]), Err(Errno::EFAULT));
        });
    }

    /// A line of a process cannot look like one of the kernel's, and is cut off.
    #[test]
    fn lines_are_escaped_and_cut_off_and_need_a_permission() {
        run(|program| {
            let text = program.store(b"two\nlines\x1b");
            let may = authority::permit(&program.process(), Act::Log).is_ok();
            let result = program.call(SystemCall::Log, [text, 10]);
            assert_eq!(result, if may { Ok(10) } else { Err(Errno::EPERM) });
            assert_eq!(simulation().output().contains("two\\nlines\\x1b"), may);
            let place = program.place(16);
            let counters = program.call(SystemCall::Counters, [place, 16]);
            let may = authority::permit(&program.process(), Act::Count).is_ok();
            assert_eq!(counters, if may { Ok(Counter::ALL.len()) } else { Err(Errno::EPERM) });
        });
    }
}
