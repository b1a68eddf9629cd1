//! The calls on sets of semaphores (System V's).

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi_unix::Errno;
use abi_unix::types::segment as shared;
use abi_unix::types::semaphore::{self as number, SemaphoreOperation, SetStatus};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding, kept_steps};
use crate::files::semaphores::{self, SemaphoreWait};
use crate::process::accounts::Resource;
use crate::process::authority;
use crate::process::capabilities::Maker;
use crate::process::user::read_time;
use crate::scheduling::steps;
use crate::time::limit::TimeLimit;

/// Number of values that one step copies.
const AT_A_TIME: usize = 32;

/// Performs `semget`.
#[inline(never)]
pub(super) fn get(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let maker = authority::maker(process)?;
    let id = semaphores::get(&process.account, maker, call.signed(0), call.signed(1), call.unsigned(2))?;
    Ok((id as usize).into())
}

/// Performs `semop` and `semtimedop`.
#[inline(never)]
pub(super) fn operate(call: Call<'_>, has_limit: bool) -> Decoding {
    let (process, count) = (call.admitted()?, call.length(2));
    let limit = match has_limit && call.address(3) != 0 {
        true => TimeLimit::after_ns(read_time(&**process, call.address(3))?),
        false => TimeLimit::Never,
    };
    if count == 0 || call.signed(0) < 0 {
        return Err(Errno::EINVAL);
    }
    if count > number::MOST_OPERATIONS {
        return Err(Errno::E2BIG);
    }
    let size = SemaphoreOperation::SIZE;
    let charge = process.account.charge(Resource::Memory, count * size_of::<SemaphoreOperation>() + 256)?;
    let (mut operations, mut bytes) = (Vec::new(), Vec::new());
    bytes.try_reserve_exact(count * size).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(count * size, 0);
    process.copy_in(call.address(1), &mut bytes)?;
    operations.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    operations.extend(bytes.as_chunks().0.iter().map(SemaphoreOperation::from_bytes));
    let set = semaphores::find(call.signed(0))?;
    let changes = operations.iter().any(|operation| operation.change != 0);
    set.permit_use(&process.authority, if changes { Maker::WRITE } else { Maker::READ })?;
    let wait = SemaphoreWait::new(set, operations, limit, process.id, charge)?;
    Ok(Operation::Semaphores(Box::new(wait)).into())
}

/// Performs `semctl`.
#[inline(never)]
pub(super) fn control(call: Call<'_>) -> Decoding {
    let (process, argument) = (call.process(), call.address(3));
    let set = semaphores::find(call.signed(0))?;
    let index = usize::try_from(call.signed(1)).map_err(|_| Errno::EINVAL);
    match call.unsigned(2) {
        shared::REMOVE | shared::SET | number::SET_VALUE | number::SET_ALL => {
            set.maker().permit_control(&process.authority)?;
        }
        _ => set.permit_use(&process.authority, Maker::READ)?,
    }
    match call.unsigned(2) {
        shared::REMOVE => set.remove(),
        shared::STATUS => process.copy_out(argument, &set.status()?.to_bytes())?,
        shared::SET => {
            let mut bytes = [0; SetStatus::SIZE];
            process.copy_in(argument, &mut bytes)?;
            set.change_status(&SetStatus::from_bytes(&bytes))?;
        }
        what @ (number::GET_VALUE | number::GET_LAST | number::GET_WAITING_FOR_MORE | number::GET_WAITING_FOR_ZERO) => {
            return set.tell(index?, what).map(Into::into);
        }
        number::SET_VALUE => {
            let value = u16::try_from(call.signed(3)).map_err(|_| Errno::ERANGE)?;
            set.set_values(index?, &[value], process.id)?;
        }
        command @ (number::GET_ALL | number::SET_ALL) => {
            let process = process.clone();
            return Ok(kept_steps(call.number, async move {
                let count = set.count()?;
                for from in (0..count).step_by(AT_A_TIME) {
                    let mut values = [0u16; AT_A_TIME];
                    let values = &mut values[..AT_A_TIME.min(count - from)];
                    let at = argument.checked_add(2 * from).ok_or(Errno::EFAULT)?;
                    let mut bytes = [0; 2 * AT_A_TIME];
                    let bytes = &mut bytes[..2 * values.len()];
                    if command == number::GET_ALL {
                        set.values(from, values)?;
                        let halves = bytes.as_chunks_mut().0.iter_mut();
                        halves.zip(&*values).for_each(|(half, value)| *half = value.to_le_bytes());
                        process.copy_out(at, bytes)?;
                    } else {
                        process.copy_in(at, bytes)?;
                        let halves = bytes.as_chunks().0.iter();
                        values.iter_mut().zip(halves).for_each(|(value, half)| *value = u16::from_le_bytes(*half));
                        set.set_values(from, values, process.id)?;
                    }
                    steps::pause(&process).await;
                }
                Ok(0)
            }));
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0.into())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::TimeSpec;

    use super::*;
    use crate::testing::{Program, run};

    const CREATE: usize = shared::CREATE as usize | 0o600;

    fn get(program: &mut Program, key: i32, count: usize, flags: usize) -> Result<usize, Errno> {
        program.call(SystemCall::SemaphoreGet, [key as usize, count, flags])
    }

    fn list(program: &mut Program, operations: &[(u16, i16, u16)]) -> usize {
        let bytes: Vec<u8> = operations
            .iter()
            .flat_map(|(index, change, flags)| {
                [index.to_le_bytes(), change.to_le_bytes(), flags.to_le_bytes()].concat()
            })
            .collect();
        program.store(&bytes)
    }

    fn operate(program: &mut Program, id: usize, operations: &[(u16, i16, u16)]) -> Result<usize, Errno> {
        let at = list(program, operations);
        program.call(SystemCall::SemaphoreOperate, [id, at, operations.len()])
    }

    fn control(program: &mut Program, id: usize, index: usize, command: u32, value: usize) -> Result<usize, Errno> {
        program.call(SystemCall::SemaphoreControl, [id, index, command as usize, value])
    }

    fn value(program: &mut Program, id: usize, index: usize) -> usize {
        control(program, id, index, number::GET_VALUE, 0).unwrap()
    }

    #[test]
    fn sets_are_found_changed_and_removed() {
        run(|program| {
            const KEY: i32 = 0x4321;
            for (count, flags, error) in [
                (1, 0, Errno::ENOENT),
                (0, CREATE, Errno::EINVAL),
                (usize::MAX, CREATE, Errno::EINVAL),
                (number::MOST_OF_A_SET + 1, CREATE, Errno::EINVAL),
            ] {
                assert_eq!(get(program, KEY, count, flags), Err(error), "{count}");
            }
            let id = get(program, KEY, 3, CREATE).unwrap();
            assert_eq!((get(program, KEY, 0, 0), get(program, KEY, 3, CREATE)), (Ok(id), Ok(id)));
            assert_eq!(get(program, KEY, 4, 0), Err(Errno::EINVAL));
            assert_eq!(get(program, KEY, 1, CREATE | shared::EXCLUSIVE as usize), Err(Errno::EEXIST));
            assert_eq!(control(program, id, 1, number::SET_VALUE, 5), Ok(0));
            for (index, command, argument, error) in [
                (3, number::GET_VALUE, 0, Errno::EINVAL),
                (usize::MAX, number::GET_VALUE, 0, Errno::EINVAL),
                (3, number::SET_VALUE, 0, Errno::EINVAL),
                (0, number::SET_VALUE, 32768, Errno::ERANGE),
                (0, number::SET_VALUE, usize::MAX, Errno::ERANGE),
                (0, 99, 0, Errno::EINVAL),
                (0, shared::STATUS, 0x1000, Errno::EFAULT),
                (0, number::GET_ALL, 0x1000, Errno::EFAULT),
                (0, number::SET_ALL, 0x1000, Errno::EFAULT),
            ] {
                assert_eq!(control(program, id, index, command, argument), Err(error), "{index} {command}");
            }
            let values = program.store(&[1u16, 2, 3].map(u16::to_le_bytes).concat());
            assert_eq!(control(program, id, 0, number::SET_ALL, values), Ok(0));
            let found = program.place(8);
            assert_eq!(control(program, id, 0, number::GET_ALL, found), Ok(0));
            assert_eq!(program.read(found, 6), program.read(values, 6));
            let place = program.place(SetStatus::SIZE);
            assert_eq!(control(program, id, 0, shared::STATUS, place), Ok(0));
            let bytes: [u8; SetStatus::SIZE] = program.read(place, SetStatus::SIZE).try_into().unwrap();
            let status = SetStatus::from_bytes(&bytes);
            assert_eq!((status.key, status.count, status.mode), (KEY, 3, 0o600));
            assert_eq!(control(program, id, 0, shared::SET, place), Ok(0));
            assert_eq!(control(program, id, 0, shared::REMOVE, 0), Ok(0));
            assert_eq!(control(program, id, 0, shared::REMOVE, 0), Err(Errno::EINVAL));
            assert_eq!(get(program, KEY, 1, 0), Err(Errno::ENOENT));
        });
    }

    #[test]
    fn all_changes_are_made_or_none() {
        run(|program| {
            let id = get(program, 0, 2, CREATE).unwrap();
            let nowait = number::MUST_NOT_WAIT;
            assert_eq!(operate(program, id, &[(0, 3, 0), (1, 1, 0)]), Ok(0));
            for (operations, error) in [
                (&[(0, -1, 0), (1, -2, nowait)][..], Errno::EAGAIN),
                (&[(0, -1, 0), (1, 0, nowait)], Errno::EAGAIN),
                (&[(0, 1, 0), (2, 1, 0)], Errno::EFBIG),
                (&[(1, 5, 0), (0, 32767, 0)], Errno::ERANGE),
            ] {
                assert_eq!(operate(program, id, operations), Err(error), "{operations:?}");
                assert_eq!((value(program, id, 0), value(program, id, 1)), (3, 1));
            }
            assert_eq!(operate(program, id, &[(1, -1, 0), (1, 0, 0), (1, 2, 0), (0, -3, 0)]), Ok(0));
            assert_eq!((value(program, id, 0), value(program, id, 1)), (0, 2));
            assert_eq!(control(program, id, 0, number::GET_LAST, 0), Ok(program.id as usize));
            assert_eq!(program.call(SystemCall::SemaphoreOperate, [id, 0x1000, 1]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::SemaphoreOperate, [id, 0, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SemaphoreOperate, [id, 0, 257]), Err(Errno::E2BIG));
            assert_eq!(operate(program, usize::MAX, &[(0, 1, 0)]), Err(Errno::EINVAL));
            assert_eq!(control(program, id, 0, shared::REMOVE, 0), Ok(0));
        });
    }

    #[test]
    fn waits_end_by_changes_times_and_removal() {
        run(|program| {
            let id = get(program, 0, 1, CREATE).unwrap();
            let (take, zero) = (list(program, &[(0, -2, 0)]), list(program, &[(0, 0, 0)]));
            assert_eq!(program.submit(SystemCall::SemaphoreOperate, [id, take, 1], 1), None);
            program.sleep_ns(1_000_000);
            assert_eq!(control(program, id, 0, number::GET_WAITING_FOR_MORE, 0), Ok(1));
            assert_eq!(operate(program, id, &[(0, 1, 0)]), Ok(0));
            assert_eq!(program.submit(SystemCall::SemaphoreOperate, [id, zero, 1], 2), None);
            program.sleep_ns(1_000_000);
            assert_eq!(control(program, id, 0, number::GET_WAITING_FOR_ZERO, 0), Ok(1));
            assert_eq!(program.completions(), []);
            assert_eq!(operate(program, id, &[(0, 1, 0)]), Ok(0));
            let mut done = program.await_completions();
            while done.len() < 2 {
                done.extend(program.await_completions());
            }
            done.sort_by_key(|(token, _)| *token);
            assert_eq!(done, [(1, Ok(0)), (2, Ok(0))]);
            for count in [number::GET_WAITING_FOR_MORE, number::GET_WAITING_FOR_ZERO] {
                assert_eq!(control(program, id, 0, count, 0), Ok(0));
            }
            let time = program.store(&TimeSpec::from_ns(1_000_000).to_bytes());
            assert_eq!(program.call(SystemCall::SemaphoreOperateUntil, [id, take, 1, time]), Err(Errno::EAGAIN));
            assert_eq!(program.submit(SystemCall::SemaphoreOperate, [id, take, 1], 3), None);
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::Cancel, [3]), Ok(0));
            assert_eq!(program.await_completions(), [(3, Err(Errno::ECANCELED))]);
            assert_eq!(control(program, id, 0, number::GET_WAITING_FOR_MORE, 0), Ok(0));
            assert_eq!(program.submit(SystemCall::SemaphoreOperate, [id, take, 1], 4), None);
            program.sleep_ns(1_000_000);
            assert_eq!(control(program, id, 0, shared::REMOVE, 0), Ok(0));
            assert_eq!(program.await_completions(), [(4, Err(Errno::EIDRM))]);
        });
    }

    /// A process that ends pays what it owes, but to semaphores that were set since.
    #[test]
    fn changes_are_undone_at_the_end_of_their_process() {
        run(|program| {
            let id = get(program, 0, 2, CREATE).unwrap();
            let undo = number::UNDO;
            assert_eq!(operate(program, id, &[(0, 5, 0), (1, 5, 0)]), Ok(0));
            let child = program.fork(move |program| {
                assert_eq!(operate(program, id, &[(0, -2, undo), (1, -1, undo)]), Ok(0));
                assert_eq!(operate(program, id, &[(0, -1, undo), (0, 1, 0)]), Ok(0));
                assert_eq!(value(program, id, 0), 3);
                assert_eq!(control(program, id, 1, number::SET_VALUE, 2), Ok(0));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!((value(program, id, 0), value(program, id, 1)), (6, 2));
            assert_eq!(control(program, id, 0, shared::REMOVE, 0), Ok(0));
        });
    }
}
