//! Limits as programs see them (`prlimit64`): numbers, pairs of words, and the authority to change them.
//!
//! A limit is one of an account's resources, or a setting that takes effect elsewhere. Linux's other limits can be read
//! and set and are inherited, so that programs that set them go on; they limit nothing.

use alloc::sync::Arc;

use abi_unix::Errno;
use abi_unix::authority::Act;
use abi_unix::types::limit as number;

use crate::process::accounts::MAXIMUM_DESCRIPTORS;
use crate::process::accounts::{Resource, ResourceLimit};
use crate::process::authority::{permit, permit_towards};
use crate::process::{Process, table};

/// Meaning of a limit's number.
enum Meaning {
    /// An account's resource.
    Resource(Resource),
    /// An account's setting, by its place.
    Setting(usize),
}

fn meaning(which: u32) -> Result<Meaning, Errno> {
    Ok(match which {
        number::PROCESSES => Meaning::Resource(Resource::Processes),
        number::KERNEL_MEMORY => Meaning::Resource(Resource::Memory),
        number::FILE_MEMORY => Meaning::Resource(Resource::Files),
        number::CALLS_IN_FLIGHT => Meaning::Resource(Resource::Calls),
        _ if which < number::COUNT => Meaning::Setting(which as usize),
        _ => return Err(Errno::EINVAL),
    })
}

/// Fails with `EINVAL` if there is no limit of this number.
pub(crate) fn require_known(which: u32) -> Result<(), Errno> {
    meaning(which).map(drop)
}

/// Performs the `prlimit64` call: 0 is the caller; an address of 0 means that nothing is set, or that nothing is read.
pub(crate) fn call(caller: &Arc<Process>, id: i32, which: u32, new: usize, old: usize) -> Result<usize, Errno> {
    let meaning = meaning(which)?;
    let id = u32::try_from(id).map_err(|_| Errno::ESRCH)?;
    let target = if id == 0 || id == caller.id { caller.clone() } else { table::find(id).ok_or(Errno::ESRCH)? };
    permit_towards(caller, &target, Act::SetLimit)?;
    let account = &target.account;
    let before = match meaning {
        Meaning::Resource(resource) => account.limit(resource),
        Meaning::Setting(place) => account.setting(place),
    };
    if new != 0 {
        let mut bytes = [0; number::SIZE];
        caller.copy_in(new, &mut bytes)?;
        let (soft, hard) = number::from_bytes(bytes);
        let limit = ResourceLimit { soft: soft as usize, hard: hard as usize };
        if limit.soft > limit.hard {
            return Err(Errno::EINVAL);
        }
        if limit.hard > before.hard {
            permit(caller, Act::RaiseLimit)?;
        }
        // As on Linux, where no process may go beyond the system's maximum.
        if which == number::DESCRIPTORS && limit.hard > MAXIMUM_DESCRIPTORS {
            return Err(Errno::EPERM);
        }
        match meaning {
            Meaning::Resource(resource) => account.set_limit(resource, limit),
            Meaning::Setting(place) => account.set_setting(place, limit),
        }
    }
    if old != 0 {
        caller.copy_out(old, &number::to_bytes(before.soft as u64, before.hard as u64))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run};

    fn set(program: &mut Program, id: usize, which: u32, soft: u64, hard: u64) -> Result<usize, Errno> {
        let bytes = program.store(&number::to_bytes(soft, hard));
        program.call(SystemCall::ProcessLimit, [id, which as usize, bytes, 0])
    }

    fn get(program: &mut Program, id: usize, which: u32) -> Result<(u64, u64), Errno> {
        let place = program.place(number::SIZE);
        program.call(SystemCall::ProcessLimit, [id, which as usize, 0, place])?;
        Ok((program.read_u64(place), program.read_u64(place + 8)))
    }

    #[test]
    fn limits_are_read_set_and_inherited() {
        run(|program| {
            for which in [number::DESCRIPTORS, number::STACK, number::KERNEL_MEMORY, number::CALLS_IN_FLIGHT] {
                assert_eq!(set(program, 0, which, 100_000_000, 99_999_999), Err(Errno::EINVAL));
                let (_, hard) = get(program, 0, which).unwrap();
                let small = hard.min(10_000_000) / 2;
                assert_eq!(set(program, 0, which, small - 1, small), Ok(0));
                assert_eq!(get(program, 0, which), Ok((small - 1, small)));
                let child = program.spawn(move |program| assert_eq!(get(program, 0, which), Ok((small - 1, small))));
                let child = child.unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            }
            let (old, new) = (program.place(16), program.store(&number::to_bytes(5, 6)));
            let before = get(program, 0, number::STACK).unwrap();
            assert_eq!(program.call(SystemCall::ProcessLimit, [0, number::STACK as usize, new, old]), Ok(0));
            assert_eq!((program.read_u64(old), program.read_u64(old + 8)), before, "what was before");
            let stack = number::STACK as usize;
            assert_eq!(program.call(SystemCall::GetLimit, [stack, old]), Ok(0));
            assert_eq!((program.read_u64(old), program.read_u64(old + 8)), (5, 6));
            let less = program.store(&number::to_bytes(3, 4));
            assert_eq!(program.call(SystemCall::SetLimit, [stack, less]), Ok(0));
            assert_eq!(get(program, 0, number::STACK), Ok((3, 4)));
            for call in [SystemCall::GetLimit, SystemCall::SetLimit] {
                assert_eq!(program.call(call, [stack, 0]), Err(Errno::EFAULT));
                assert_eq!(program.call(call, [stack, 0x1000]), Err(Errno::EFAULT));
                assert_eq!(program.call(call, [99, old]), Err(Errno::EINVAL));
            }
        });
    }

    #[test]
    fn only_the_privileged_raise_a_limit_that_is_hard() {
        run(|program| {
            assert_eq!(set(program, 0, number::DESCRIPTORS, 20, 30), Ok(0));
            assert_eq!(set(program, 0, number::DESCRIPTORS, 30, 30), Ok(0), "up to the hard one anybody may");
            // A child of the first process has been given the right; the child gives it up.
            let data = program.store(&[0; 24]);
            let header = program.store(&[0x2008_0522u32.to_le_bytes(), [0; 4]].concat());
            assert_eq!(program.call(SystemCall::SetCapabilities, [header, data]), Ok(0));
            assert_eq!(set(program, 0, number::DESCRIPTORS, 30, 31), Err(Errno::EPERM));
            assert_eq!(get(program, 0, number::DESCRIPTORS), Ok((30, 30)));
        });
    }

    #[test]
    fn no_process_has_more_descriptors_than_there_can_be() {
        run(|program| {
            let most = MAXIMUM_DESCRIPTORS as u64;
            assert_eq!(set(program, 0, number::DESCRIPTORS, 1, most + 1), Err(Errno::EPERM));
            assert_eq!(set(program, 0, number::DESCRIPTORS, 5, 5), Ok(0));
            // 0, 1 and 2 are open.
            assert_eq!(program.call(SystemCall::Duplicate, [0]), Ok(3));
            assert_eq!(program.call(SystemCall::Duplicate, [0]), Ok(4));
            assert_eq!(program.call(SystemCall::Duplicate, [0]), Err(Errno::EMFILE));
            assert_eq!(program.call(SystemCall::DuplicateTo, [0, 5, 0]), Err(Errno::EBADF));
        });
    }

    #[test]
    fn unknown_limits_and_processes_are_refused() {
        run(|program| {
            assert_eq!(get(program, 0, number::COUNT), Err(Errno::EINVAL));
            assert_eq!(get(program, 0, 0x2000), Err(Errno::EINVAL));
            assert_eq!(get(program, 99_999, number::STACK), Err(Errno::ESRCH));
            assert_eq!(get(program, usize::MAX, number::STACK), Err(Errno::ESRCH));
            assert_eq!(program.call(SystemCall::ProcessLimit, [0, 3, 0x1000, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ProcessLimit, [0, 3, 0, 0x1000]), Err(Errno::EFAULT));
        });
    }

    #[test]
    fn a_limit_of_processes_holds_for_all_descendants_together() {
        run(|program| {
            // The process itself is not one that it has started.
            assert_eq!(set(program, 0, number::PROCESSES, 2, 2), Ok(0));
            let child = program.spawn(|program| {
                let grandchild = program.spawn(|program| {
                    assert_eq!(program.spawn(|_| {}), Err(Errno::EAGAIN));
                });
                let grandchild = grandchild.unwrap();
                assert_eq!(program.wait_for(grandchild), Ok((grandchild, 0)));
                let again = program.spawn(|_| {}).unwrap();
                assert_eq!(program.wait_for(again), Ok((again, 0)));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }
}
