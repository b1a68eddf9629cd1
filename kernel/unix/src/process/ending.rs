//! Ends of processes, as their parents see them.

/// End of a process, with the parts of `wait4`'s status (wait(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `exit`, with this status.
    Exited(u8),
    /// By this signal, or by a fault for which it stands.
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
