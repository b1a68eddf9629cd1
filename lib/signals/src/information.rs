//! Origin and details of a signal (`siginfo_t`).

use crate::set::Signal;

/// Origins of signals (`si_code`; sigaction(2)).
#[allow(missing_docs)]
pub mod code {
    /// `kill`.
    pub const USER: i32 = 0;
    /// The kernel.
    pub const KERNEL: i32 = 0x80;
    /// `sigqueue`.
    pub const QUEUE: i32 = -1;
    pub const TIMER: i32 = -2;
    /// A message has come to a queue.
    pub const MESSAGE_QUEUE: i32 = -3;
    /// `tkill` or `tgkill`.
    pub const THREAD: i32 = -6;

    /// SIGCHLD: ended by `exit`.
    pub const CHILD_EXITED: i32 = 1;
    /// SIGCHLD: ended by a signal.
    pub const CHILD_KILLED: i32 = 2;
    /// SIGCHLD: ended by a signal, with a core.
    pub const CHILD_DUMPED: i32 = 3;
    /// SIGCHLD: stopped by a signal.
    pub const CHILD_STOPPED: i32 = 5;
    /// SIGCHLD: continued.
    pub const CHILD_CONTINUED: i32 = 6;

    /// SIGSEGV: nothing is mapped at the address.
    pub const NOT_MAPPED: i32 = 1;
    /// SIGSEGV: the mapping forbids the access.
    pub const NOT_PERMITTED: i32 = 2;
    /// SIGBUS: not aligned.
    pub const NOT_ALIGNED: i32 = 1;
    /// SIGBUS: no such physical address.
    pub const NO_ADDRESS: i32 = 2;
    /// SIGILL: illegal operation code.
    pub const ILLEGAL_CODE: i32 = 1;
    /// SIGTRAP: a breakpoint.
    pub const BREAKPOINT: i32 = 1;

    /// A file (`F_SETSIG`): there is input.
    pub const FILE_INPUT: i32 = 1;
    /// There is room for output.
    pub const FILE_ROOM: i32 = 2;
    /// An error.
    pub const FILE_ERROR: i32 = 4;
    /// The other end is gone.
    pub const FILE_HANG_UP: i32 = 6;
}

/// The part of a signal's information that depends on its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Details {
    /// Nothing.
    None,
    /// The sending process and its user, with the value of `sigqueue`.
    Sender {
        /// Process.
        process: u32,
        /// User.
        user: u32,
        /// `sival_t`.
        value: u64,
    },
    /// A child of the process.
    Child {
        /// The child.
        process: u32,
        /// Its user.
        user: u32,
        /// Status of its exit, or the signal that ended, stopped or continued it.
        status: i32,
    },
    /// The address of a fault.
    Fault(u64),
    /// An event of a file: the events that there are, as of `poll`, and its descriptor.
    File {
        /// `si_band`.
        events: i64,
        /// `si_fd`.
        descriptor: i32,
    },
    /// A timer: its identifier, the number of expirations that were missed, and its value.
    Timer {
        /// Identifier.
        id: i32,
        /// Missed expirations.
        overrun: i32,
        /// `sival_t`.
        value: u64,
    },
}

/// A signal with its information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "siginfo_t")]
pub struct Information {
    /// The signal.
    pub signal: Signal,
    /// Origin; one of [`code`].
    pub code: i32,
    /// Details.
    pub details: Details,
}

impl Information {
    /// Bytes of a `siginfo_t`.
    pub const SIZE: usize = 128;

    /// Makes the information of a signal whose own found no room.
    pub(crate) const fn without_details(signal: Signal) -> Information {
        Information { signal, code: code::USER, details: Details::Sender { process: 0, user: 0, value: 0 } }
    }

    /// Makes the information of a signal that the kernel sends without details.
    pub const fn of_kernel(signal: Signal) -> Information {
        Information { signal, code: code::KERNEL, details: Details::None }
    }

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(&self) -> [u8; Information::SIZE] {
        let mut bytes = [0; Information::SIZE];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &i32::from(self.signal.number()).to_le_bytes());
        put(8, &self.code.to_le_bytes());
        match self.details {
            Details::None => {}
            Details::Sender { process, user, value } => {
                put(16, &process.to_le_bytes());
                put(20, &user.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
            Details::Child { process, user, status } => {
                put(16, &process.to_le_bytes());
                put(20, &user.to_le_bytes());
                put(24, &status.to_le_bytes());
            }
            Details::Fault(address) => put(16, &address.to_le_bytes()),
            Details::File { events, descriptor } => {
                put(16, &events.to_le_bytes());
                put(24, &descriptor.to_le_bytes());
            }
            Details::Timer { id, overrun, value } => {
                put(16, &id.to_le_bytes());
                put(20, &overrun.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads the information that a program sends with `rt_sigqueueinfo`, for this signal.
    pub fn from_program(signal: Signal, bytes: &[u8; Information::SIZE]) -> Information {
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let value = u64::from(word(24)) | u64::from(word(28)) << 32;
        Information {
            signal,
            code: word(8) as i32,
            details: Details::Sender { process: word(16), user: word(20), value },
        }
    }
}
