//! Ends of processes, as their parents see them.

use ::signals::code;
use abi_unix::types::{self, signal};

/// End of a process, with the parts of `wait4`'s status (wait(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `exit`, with this status.
    Exited(u8),
    /// By this signal, or by a fault that this signal represents.
    Killed(u8),
    /// By such a signal, and with a core file.
    Dumped(u8),
}

impl Ending {
    /// Returns the status word that `wait4` writes.
    pub fn status(self) -> u32 {
        match self {
            Ending::Exited(code) => (code as u32) << 8,
            Ending::Killed(signal) => signal as u32 & 0x7f,
            Ending::Dumped(signal) => signal as u32 & 0x7f | types::CORE_DUMPED,
        }
    }
}

/// Translates a status word of `wait4` into the code and the status of a `siginfo_t`.
pub(crate) fn code_and_status(status: u32) -> (i32, i32) {
    let high = (status >> 8 & 0xff) as i32;
    match status & 0x7f {
        _ if status == types::CONTINUED => (code::CHILD_CONTINUED, signal::CONT as i32),
        0 => (code::CHILD_EXITED, high),
        0x7f => (code::CHILD_STOPPED, high),
        killed if status & types::CORE_DUMPED != 0 => (code::CHILD_DUMPED, killed as i32),
        killed => (code::CHILD_KILLED, killed as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_word_becomes_a_code_and_a_status() {
        assert_eq!(code_and_status(Ending::Exited(3).status()), (code::CHILD_EXITED, 3));
        assert_eq!(code_and_status(Ending::Killed(15).status()), (code::CHILD_KILLED, 15));
        assert_eq!(code_and_status(Ending::Dumped(11).status()), (code::CHILD_DUMPED, 11));
        assert_eq!(code_and_status(0x137f), (code::CHILD_STOPPED, 0x13));
        assert_eq!(code_and_status(types::CONTINUED), (code::CHILD_CONTINUED, 18));
    }

    #[test]
    fn a_status_says_how_a_process_has_ended() {
        assert_eq!(Ending::Exited(0).status(), 0);
        assert_eq!(Ending::Exited(0x7f).status(), 0x7f00);
        assert_eq!(Ending::Killed(9).status(), 9);
        assert_eq!(Ending::Killed(0x89).status(), 9, "no core was dumped");
        assert_eq!(Ending::Dumped(11).status(), 0x8b);
    }
}
