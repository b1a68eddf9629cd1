//! Faults: messages from the kernel about a thread that cannot continue.

use abi_sel4::LookupFailureKind;
use abi_sel4::fault::{CapFault, Phase, UnknownSyscall, UserException, VMFault};

use crate::message::Received;

/// The reason why a thread cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A system call named a capability that was not found.
    Capability {
        /// The address of the instruction.
        ip: u64,
        /// The capability pointer.
        pointer: u64,
        /// Whether the capability was to be received from.
        receiving: bool,
        /// Reason of the failed lookup; `None` for an unknown reason number.
        reason: Option<LookupFailureKind>,
        /// The details, in the order of [`LookupFailureKind::details`].
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
        /// Address of the instruction.
        ip: u64,
        /// The stack pointer.
        sp: u64,
        /// RISC-V's exception cause.
        cause: u64,
    },
    /// An address that is not mapped, or not for this access.
    Memory {
        /// The address of the instruction.
        ip: u64,
        /// The address that was accessed.
        address: u64,
        /// Whether the instruction itself could not be fetched.
        fetch: bool,
        /// One of the constants of [`abi_sel4::fault::status`].
        status: u64,
    },
}

impl Fault {
    /// Decodes a message of the kernel; `None` if it is none, which only the badge can tell for sure.
    pub fn from_message(received: &Received) -> Option<Fault> {
        Some(match abi_sel4::Fault::from_label(received.label())? {
            abi_sel4::Fault::NullFault => return None,
            abi_sel4::Fault::CapFault => {
                let fault = CapFault::from_words(words(received));
                Fault::Capability {
                    ip: fault.ip,
                    pointer: fault.address,
                    receiving: fault.phase() == Phase::Receive,
                    reason: fault.lookup().map(|lookup| lookup.kind()),
                    details: [fault.bits_left, fault.guard_or_bits_found, fault.guard_bits_found],
                }
            }
            abi_sel4::Fault::UnknownSyscall => {
                let UnknownSyscall { fault_ip, sp, ra: _, a0, a1, a2, a3, a4, a5, a6, syscall } =
                    UnknownSyscall::from_words(words(received));
                let arguments = [a0, a1, a2, a3, a4, a5, a6];
                Fault::UnknownSystemCall { ip: fault_ip, sp, arguments, number: syscall }
            }
            abi_sel4::Fault::UserException => {
                let UserException { fault_ip, sp, number, code: _ } = UserException::from_words(words(received));
                Fault::Exception { ip: fault_ip, sp, cause: number }
            }
            abi_sel4::Fault::VMFault => {
                let VMFault { ip, address, instruction_fetch, status } = VMFault::from_words(words(received));
                Fault::Memory { ip, address, fetch: instruction_fetch != 0, status }
            }
        })
    }
}

/// Returns the first words of a message; words beyond its length are zero.
fn words<const COUNT: usize>(received: &Received) -> [u64; COUNT] {
    core::array::from_fn(|index| received.word(index).unwrap_or(0))
}
