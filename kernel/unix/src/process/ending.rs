//! Ends of processes, as their parents see them.

/// End of a process, with the parts of `wait4`'s status (wait(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `exit`, with this status.
    Exited(u8),
    /// By this signal, or by a fault that this signal represents.
    Killed(u8),
}

impl Ending {
    /// Returns the status word that `wait4` writes.
    pub fn status(self) -> u32 {
        match self {
            Ending::Exited(code) => (code as u32) << 8,
            Ending::Killed(signal) => signal as u32 & 0x7f,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_how_a_process_has_ended() {
        assert_eq!(Ending::Exited(0).status(), 0);
        assert_eq!(Ending::Exited(0x7f).status(), 0x7f00);
        assert_eq!(Ending::Killed(9).status(), 9);
        assert_eq!(Ending::Killed(0x89).status(), 9, "no core was dumped");
    }
}
