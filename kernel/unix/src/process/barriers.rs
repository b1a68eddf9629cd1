//! Barriers of memory on all harts of a process (membarrier(2)).
//!
//! A program that pairs rare stores with very frequent loads can leave the fence of the loads out, and have one made on
//! every hart that could have needed it. The harts that are in the process's memory now get theirs in machine mode, as
//! they flush translations there. A thread that is on no hart has let go of its last one under a lock that this call
//! takes after that, and takes its next one under a lock that this call has released before: its accesses are ordered
//! by these.
//!
//! Registration has no effect but that the barriers are permitted, as on Linux: nothing here costs a process that uses
//! none.

use core::sync::atomic::{AtomicU32, Ordering};

use abi_unix::Errno;
use abi_unix::types::memory_barrier as command;
use usermode::Space;

use crate::machine;

/// All commands but `MEMBARRIER_CMD_QUERY`, which tells them.
const ALL: u32 = command::GLOBAL
    | command::PRIVATE
    | command::REGISTER_PRIVATE
    | command::PRIVATE_INSTRUCTIONS
    | command::REGISTER_PRIVATE_INSTRUCTIONS
    | command::REGISTRATIONS;

/// The barriers that a process has registered for, as the bits of the commands that register.
#[derive(Default)]
pub(crate) struct Barriers(AtomicU32);

impl Barriers {
    /// Takes over those of the process of which this one is a copy.
    pub(crate) fn inherit(&self, other: &Barriers) {
        self.0.store(other.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Forgets all: another program begins.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn register(&self, which: u32) {
        self.0.fetch_or(which, Ordering::Relaxed);
    }

    fn require(&self, which: u32) -> Result<(), Errno> {
        if self.0.load(Ordering::Relaxed) & which != 0 { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Performs `membarrier` for a process in this space.
    #[doc(alias = "sys_membarrier")]
    pub(crate) fn perform(&self, space: &Space, which: u32) -> Result<usize, Errno> {
        match which {
            command::QUERY => return Ok(ALL as usize),
            command::REGISTRATIONS => return Ok(self.0.load(Ordering::Relaxed) as usize),
            command::REGISTER_PRIVATE | command::REGISTER_PRIVATE_INSTRUCTIONS => self.register(which),
            command::GLOBAL => usermode::order_accesses_of((1 << machine::harts()) - 1),
            command::PRIVATE => {
                self.require(command::REGISTER_PRIVATE)?;
                space.order_accesses();
            }
            command::PRIVATE_INSTRUCTIONS => {
                self.require(command::REGISTER_PRIVATE_INSTRUCTIONS)?;
                // Others fetch anew when they enter.
                space.fetch_anew();
                space.order_accesses();
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run};

    fn barrier(program: &mut Program, which: u32) -> Result<usize, Errno> {
        program.call(SystemCall::MemoryBarrier, [which as usize, 0, 0])
    }

    #[test]
    fn barriers_need_their_registration_which_copies_have_and_other_programs_do_not() {
        run(|program| {
            assert_eq!(barrier(program, command::QUERY), Ok(ALL as usize));
            assert_eq!(program.call(SystemCall::MemoryBarrier, [0, 1, 0]), Err(Errno::EINVAL));
            for which in [3, command::PRIVATE | command::GLOBAL, 1 << 30, u32::MAX, 2, 4, 128, 256] {
                assert_eq!(barrier(program, which), Err(Errno::EINVAL), "{which}");
            }
            for which in [command::PRIVATE, command::PRIVATE_INSTRUCTIONS] {
                assert_eq!(barrier(program, which), Err(Errno::EPERM), "{which}");
            }
            assert_eq!(barrier(program, command::GLOBAL), Ok(0));
            assert_eq!(barrier(program, command::REGISTER_PRIVATE), Ok(0));
            assert_eq!(barrier(program, command::PRIVATE), Ok(0));
            assert_eq!(barrier(program, command::PRIVATE_INSTRUCTIONS), Err(Errno::EPERM), "the other one");
            assert_eq!(barrier(program, command::REGISTER_PRIVATE_INSTRUCTIONS), Ok(0));
            assert_eq!(barrier(program, command::PRIVATE_INSTRUCTIONS), Ok(0));
            let both = command::REGISTER_PRIVATE | command::REGISTER_PRIVATE_INSTRUCTIONS;
            assert_eq!(barrier(program, command::REGISTRATIONS), Ok(both as usize));
            let copy = program.fork(move |program| {
                assert_eq!(barrier(program, command::REGISTRATIONS), Ok(both as usize));
                let path = program.store(crate::testing::PATH);
                program.goes_on_as(|program| assert_eq!(barrier(program, command::REGISTRATIONS), Ok(0)));
                let _ = program.call(SystemCall::Execute, [path, 0, 0]);
            });
            let copy = copy.unwrap();
            assert_eq!(program.wait_for(copy), Ok((copy, 0)));
        });
    }
}
