//! The calls about the system as a whole: its name, its counters and its log.

use alloc::sync::Arc;

use abi_queue::pages::PAGE_SIZE;
use abi_unix::{Act, Counter, Errno};
use hal_api::Machine as _;
use platform::Machine;

use crate::calls::call::{Call, Decoding};
use crate::observing::counters;
use crate::process::user::UserBuffer;
use crate::process::worker::Worker;
use crate::process::{Process, authority, table, thread};
use crate::scheduling::attributes;
use crate::time;

/// Greatest number of bytes of a line that a process can write to the kernel's log.
const LONGEST_LINE: usize = 256;

#[inline(never)]
pub(super) fn name(call: Call<'_>) -> Decoding {
    call.process().copy_out(call.address(0), &crate::system_name()).map(Into::into)
}

#[inline(never)]
pub(super) fn information(call: Call<'_>) -> Decoding {
    let memory = memory::frames::statistics();
    let mut bytes = [0; 112];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(0, time::now_ns() / 1_000_000_000);
    put(32, (memory.total * PAGE_SIZE) as u64);
    put(40, (memory.free * PAGE_SIZE) as u64);
    let processes = counters::read(Counter::Processes).min(u16::MAX.into());
    put(80, processes);
    // Amounts of memory are in bytes.
    put(104, 1);
    call.process().copy_out(call.address(0), &bytes).map(Into::into)
}

/// Returns all harts that run the system as a bit mask.
fn all_harts() -> u64 {
    u64::MAX >> (64 - crate::machine::harts())
}

/// Returns the thread with this number, 0 being the caller's, of its process; `None` for one that has ended, while
/// others of the process go on.
fn thread_of(call: &Call<'_>, process: &Process, id: i32) -> Option<Arc<Worker>> {
    match id {
        0 => Some(call.worker.clone()),
        id => thread::living(process, id as usize).ok(),
    }
}

/// Performs `sched_getaffinity`.
#[inline(never)]
pub(super) fn affinity(call: Call<'_>) -> Decoding {
    let id = call.signed(0);
    let chosen = match attributes::meant_by_thread(call.process(), id) {
        Ok(process) => thread_of(&call, &process, id).map_or(u8::MAX, |thread| thread.affinity()),
        Err(_) if u32::try_from(id).is_ok_and(table::exists) => u8::MAX,
        Err(_) => return Err(Errno::ESRCH),
    };
    let harts = crate::machine::harts();
    let size = call.length(1);
    if size < harts.div_ceil(8) || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mask = all_harts() & u64::from(chosen);
    call.process().copy_out(call.address(2), &mask.to_le_bytes())?;
    Ok(size_of_val(&mask).into())
}

/// Performs `sched_setaffinity`. The choice is kept and told, for programs that count the harts that they may use; work
/// goes to whichever hart is free.
#[inline(never)]
pub(super) fn set_affinity(call: Call<'_>) -> Decoding {
    let mut mask = [0; 8];
    let length = call.length(1).min(mask.len());
    call.process().copy_in(call.address(2), &mut mask[..length])?;
    let id = call.signed(0);
    let process = attributes::meant_by_thread(call.process(), id).map_err(|_| Errno::ESRCH)?;
    authority::permit_towards(call.process(), &process, Act::Schedule)?;
    let chosen = u64::from_le_bytes(mask) & all_harts();
    if chosen == 0 {
        return Err(Errno::EINVAL);
    }
    if let Some(thread) = thread_of(&call, &process, id) {
        // There are no more harts than bits.
        thread.set_affinity(chosen as u8);
    }
    Ok(0.into())
}

#[inline(never)]
pub(super) fn hart(call: Call<'_>) -> Decoding {
    let hart = Machine::hart() as u32;
    for (argument, word) in [(0, hart), (1, 0)] {
        if call.address(argument) != 0 {
            call.process().copy_out(call.address(argument), &word.to_le_bytes())?;
        }
    }
    Ok(0.into())
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
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run, simulation};

    #[test]
    fn the_system_tells_its_memory_and_harts() {
        run(|program| {
            let place = program.place(112);
            assert_eq!(program.call(SystemCall::SystemInformation, [place]), Ok(0));
            let (total, free) = (program.read_u64(place + 32), program.read_u64(place + 40));
            assert!(free > 0 && free < total);
            assert!(program.read_u64(place + 80) >= 1);
            assert_eq!(program.call(SystemCall::GetAffinity, [0, 8, place]), Ok(8));
            assert_eq!(program.read_u64(place), u64::MAX >> (64 - crate::machine::harts()));
            for size in [0, 12, 1 << 61 | 1, usize::MAX] {
                assert_eq!(program.call(SystemCall::GetAffinity, [0, size, place]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::GetAffinity, [30_000, 8, place]), Err(Errno::ESRCH));
            let set = |program: &mut Program, id: usize, size: usize, mask: u64| {
                let place = program.store(&mask.to_le_bytes());
                program.call(SystemCall::SetAffinity, [id, size, place])
            };
            let all = u64::MAX >> (64 - crate::machine::harts());
            assert_eq!((set(program, 0, 8, all), set(program, 0, 1000, u64::MAX)), (Ok(0), Ok(0)));
            for (size, mask) in [(8, 0), (0, u64::MAX), (8, !all)] {
                assert_eq!(set(program, 0, size, mask), Err(Errno::EINVAL), "{size} {mask:#x}");
            }
            assert_eq!(set(program, 30_000, 8, all), Err(Errno::ESRCH));
            assert_eq!(set(program, 1, 8, all), Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::SetAffinity, [0, 8, 0x1000]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::GetGroups, [0, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::GetGroups, [usize::MAX, 0]), Err(Errno::EINVAL));
        });
    }

    /// A choice of harts is that of one thread, which its threads and children have from it.
    #[test]
    fn chosen_harts_are_told_and_inherited() {
        run(|program| {
            let get = |program: &mut Program, id: usize| {
                let place = program.place(8);
                assert_eq!(program.call(SystemCall::GetAffinity, [id, 8, place]), Ok(8));
                program.read_u64(place)
            };
            let set = |program: &mut Program, id: usize, mask: u64| {
                let place = program.store(&mask.to_le_bytes());
                program.call(SystemCall::SetAffinity, [id, 8, place])
            };
            let all = u64::MAX >> (64 - crate::machine::harts());
            let (first, last) = (all & all.wrapping_neg(), all & !(all >> 1));
            let own = program.id as usize;
            assert_eq!((get(program, own), set(program, 0, last | 1 << 60)), (all, Ok(0)));
            assert_eq!((get(program, 0), get(program, own)), (last, last));
            let child = program.fork(move |program| {
                assert_eq!((get(program, 0), set(program, own, all)), (last, Err(Errno::EPERM)));
                assert_eq!((set(program, 0, first), get(program, 0)), (Ok(0), first));
            });
            let child = child.unwrap();
            program.sleep_ns(10_000_000);
            assert_eq!(get(program, child), all, "a zombie has none");
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000)).unwrap();
            assert_eq!((get(program, child), set(program, child, first)), (last, Ok(0)));
            assert_eq!((get(program, child), get(program, 0)), (first, last));
            assert_eq!(program.call(SystemCall::Kill, [child, 9]), Ok(0));
        });
    }

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
