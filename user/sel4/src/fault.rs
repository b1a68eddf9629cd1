//! Faults: messages from the kernel about a thread that cannot go on.

use abi_sel4::LookupFailure;

use crate::message::Received;

/// What happened to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A system call named a capability that was not found.
    Capability {
        /// The address of the instruction.
        ip: u64,
        /// The capability pointer.
        pointer: u64,
        /// Whether it was to be received from.
        receiving: bool,
        /// Why it was not found; `None` for a number that does not exist.
        reason: Option<LookupFailure>,
        /// The details, in the order of [`LookupFailure::details`].
        details: [u64; 3],
    },
    /// A system call with a number that does not exist.
    UnknownSystemCall {
        /// The address of the instruction.
        ip: u64,
        /// The stack pointer.
        sp: u64,
        /// `a0` to `a6`.
        arguments: [u64; 7],
        /// The number.
        number: u64,
    },
    /// An instruction that could not be executed.
    Exception {
        /// Its address.
        ip: u64,
        /// The stack pointer.
        sp: u64,
        /// RISC-V's cause.
        cause: u64,
    },
    /// An address that is not mapped, or not for this access.
    Memory {
        /// The address of the instruction.
        ip: u64,
        /// The address that it used.
        address: u64,
        /// Whether it was the instruction itself that could not be fetched.
        fetch: bool,
        /// One of the constants of [`abi_sel4::fault::status`].
        status: u64,
    },
}

impl Fault {
    /// Reads a message of the kernel; `None` if it is none, which only the badge can tell for sure.
    pub fn from_message(received: &Received) -> Option<Fault> {
        let word = |index: usize| received.word(index).unwrap_or(0);
        match abi_sel4::Fault::from_label(received.label())? {
            abi_sel4::Fault::NullFault => None,
            abi_sel4::Fault::CapFault => Some(Fault::Capability {
                ip: word(0),
                pointer: word(1),
                receiving: word(2) != 0,
                reason: LookupFailure::from_number(word(3) as usize),
                details: [word(4), word(5), word(6)],
            }),
            abi_sel4::Fault::UnknownSyscall => Some(Fault::UnknownSystemCall {
                ip: word(0),
                sp: word(1),
                arguments: core::array::from_fn(|index| word(3 + index)),
                number: word(10),
            }),
            abi_sel4::Fault::UserException => Some(Fault::Exception { ip: word(0), sp: word(1), cause: word(2) }),
            abi_sel4::Fault::VMFault => {
                Some(Fault::Memory { ip: word(0), address: word(1), fetch: word(2) != 0, status: word(3) })
            }
        }
    }
}
