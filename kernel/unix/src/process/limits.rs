//! Limits as programs see them (`prlimit64`): numbers, pairs of words, and the authority to change them.
//!
//! A limit is one of an account's resources, or a setting that takes effect elsewhere. Linux's other limits can be read
//! and set and are inherited, so that programs that set them go on; they limit nothing.

use alloc::sync::Arc;

use abi_unix::Errno;
use abi_unix::authority::Act;
use abi_unix::types::limit as number;

use crate::files::descriptor::MAXIMUM_DESCRIPTORS;
use crate::process::accounts::{Limit, Resource};
use crate::process::authority::{permit, permit_towards};
use crate::process::{self, Process};

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

/// Performs the `prlimit64` call: 0 is the caller; an address of 0 means that nothing is set, or that nothing is read.
pub(crate) fn call(caller: &Arc<Process>, id: i32, which: u32, new: usize, old: usize) -> Result<usize, Errno> {
    let meaning = meaning(which)?;
    let id = u32::try_from(id).map_err(|_| Errno::ESRCH)?;
    let target = if id == 0 || id == caller.id { caller.clone() } else { process::find(id).ok_or(Errno::ESRCH)? };
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
        let limit = Limit { soft: soft as usize, hard: hard as usize };
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
