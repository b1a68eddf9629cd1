//! Owners of open files: whom a file would tell of its events (fcntl(2), "Managing signals").
//!
//! Few files have an owner, and an open file is small, so that these are entries of one table, by the addresses of the
//! files. An entry goes with its file. The signal itself is not sent: no program is known that relies on it beside
//! `epoll`, and servers only set it up, as nginx does for the channels to its workers.

use alloc::sync::Arc;

use abi_unix::Errno;
use spin::Mutex;
use tables::Table;

use crate::process::accounts::{Account, Charge, Resource};

/// Settings of an open file about its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ownership {
    /// The process, or the negative number of a group; 0 for none.
    pub owner: i32,
    /// The signal instead of `SIGIO`; 0 for that.
    pub signal: u32,
    /// Whether it is to be told of events at all (`O_ASYNC`).
    pub is_told: bool,
}

struct Owned {
    file: usize,
    ownership: Ownership,
    /// Memory of the entry.
    _charge: Charge,
}

static OWNED: Mutex<Table<Owned>> = Mutex::new(Table::new());

fn hash(address: usize) -> u32 {
    ((address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Returns the ownership of the open file with this address.
pub(crate) fn of(file: usize) -> Ownership {
    let owned = OWNED.lock();
    let found = owned.find(hash(file), |entry| entry.file == file).and_then(|at| owned.get(at));
    found.map_or(Ownership::default(), |entry| entry.ownership)
}

/// Changes the ownership of an open file, at the expense of this account if it has none yet. `ENOMEM`.
pub(crate) fn change(file: usize, account: &Arc<Account>, change: impl FnOnce(&mut Ownership)) -> Result<usize, Errno> {
    let mut owned = OWNED.lock();
    let at = match owned.find(hash(file), |entry| entry.file == file) {
        Some(at) => at,
        None => {
            account.admit()?;
            let _charge = account.charge(Resource::Memory, 2 * size_of::<Owned>())?;
            owned.reserve().map_err(|_| Errno::ENOMEM)?;
            owned.insert(hash(file), Owned { file, ownership: Ownership::default(), _charge })
        }
    };
    if let Some(entry) = owned.get_mut(at) {
        change(&mut entry.ownership);
    }
    Ok(0)
}

/// Forgets an open file that is closed.
pub(crate) fn closes(file: usize) {
    let mut owned = OWNED.lock();
    if let Some(at) = owned.find(hash(file), |entry| entry.file == file) {
        owned.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::types::{control, file_control, open};
    use abi_unix::{Errno, SystemCall};

    use crate::testing::run;

    #[test]
    fn the_owner_of_a_file_is_kept_as_long_as_the_file() {
        run(|program| {
            let (near, far) = program.socket_pair(1);
            let file = program.create(b"/tmp/owned\0", open::RDWR);
            let word = program.store(&1u32.to_le_bytes());
            let own = program.id as usize;
            let control_of = |program: &mut crate::testing::Program, file: usize, command: u32, value: usize| {
                program.call(SystemCall::FileControl, [file, command as usize, value])
            };
            assert_eq!(control_of(program, 99, control::SETOWN, own), Err(Errno::EBADF));
            assert_eq!(control_of(program, near, control::SETOWN, 99_999), Err(Errno::ESRCH));
            assert_eq!(control_of(program, near, control::SETOWN, (-99_999i64) as usize), Err(Errno::ESRCH));
            assert_eq!(control_of(program, near, control::SETOWN, 1 << 31), Err(Errno::EINVAL));
            assert_eq!(control_of(program, near, control::SETSIG, 65), Err(Errno::EINVAL));
            let request = file_control::FIOASYNC as usize;
            assert_eq!(program.call(SystemCall::DeviceControl, [near, request, 0x1000]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::DeviceControl, [file, request, word]), Err(Errno::ENOTTY));
            assert_eq!(control_of(program, near, control::GETOWN, 0), Ok(0));
            assert_eq!(control_of(program, near, control::SETOWN, own), Ok(0));
            assert_eq!(control_of(program, near, control::SETSIG, 10), Ok(0));
            assert_eq!(program.call(SystemCall::DeviceControl, [near, request, word]), Ok(0));
            assert_eq!(control_of(program, near, control::GETOWN, 0), Ok(own));
            assert_eq!(control_of(program, near, control::GETSIG, 0), Ok(10));
            assert_eq!(control_of(program, near, control::GETFL, 0), Ok((open::RDWR | open::ASYNC) as usize));
            let second = program.call(SystemCall::Duplicate, [near]).unwrap();
            program.close(near).unwrap();
            assert_eq!(control_of(program, second, control::GETOWN, 0), Ok(own), "it is the open file's");
            assert_eq!(control_of(program, second, control::SETFL, 0), Ok(0));
            assert_eq!(control_of(program, second, control::GETFL, 0), Ok(open::RDWR as usize));
            assert_eq!(control_of(program, far, control::GETOWN, 0), Ok(0));
            program.close(second).unwrap();
            assert!((0..40).all(|_| {
                let (near, far) = program.socket_pair(1);
                let owners = [near, far].map(|file| control_of(program, file, control::GETOWN, 0));
                program.close(near).unwrap();
                program.close(far).unwrap();
                owners == [Ok(0); 2]
            }));
            program.remove(b"/tmp/owned\0");
        });
    }
}
