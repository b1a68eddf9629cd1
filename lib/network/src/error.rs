//! Errors, by the caller's next step.

use core::fmt;

/// Failure of an operation. Each variant's comment names the caller's next step; the conversion to error numbers is the
/// kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The identifier is stale: a defect of the caller, or a use after close.
    Stale,
    /// The address or port is taken by another socket: choose another, or share it.
    AddressInUse,
    /// The address is none of this host's, or no ephemeral port is free.
    AddressUnavailable,
    /// No interface leads to the remote address.
    Unreachable,
    /// The network leads to no such host: it, or a host on the way, said so.
    HostUnreachable,
    /// The other side answered that the port has no listener.
    Refused,
    /// The other side ended the connection abruptly; unacknowledged data may be lost.
    Reset,
    /// This host has lost the connection's address: connect again from the new one.
    Aborted,
    /// The other side has been silent for too long.
    TimedOut,
    /// The connection is not established (yet, or any more).
    NotConnected,
    /// The sending half is closed: nothing can be sent any more.
    Closed,
    /// The datagram does not fit into a packet or a buffer: send a smaller one.
    TooLong,
    /// A configured limit is reached: close something, or try again later.
    Limit,
    /// The allocator refused: nothing was changed.
    OutOfMemory,
    /// The arguments can never work.
    Invalid,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::Stale => "no such socket",
            Error::AddressInUse => "address in use",
            Error::AddressUnavailable => "address not available",
            Error::Unreachable => "network unreachable",
            Error::HostUnreachable => "host unreachable",
            Error::Refused => "connection refused",
            Error::Reset => "connection reset by peer",
            Error::Aborted => "connection aborted",
            Error::TimedOut => "timed out",
            Error::NotConnected => "not connected",
            Error::Closed => "sending half is closed",
            Error::TooLong => "message too long",
            Error::Limit => "too many sockets",
            Error::OutOfMemory => "out of memory",
            Error::Invalid => "invalid argument",
        })
    }
}

impl core::error::Error for Error {}

impl From<alloc::collections::TryReserveError> for Error {
    fn from(_: alloc::collections::TryReserveError) -> Self {
        Error::OutOfMemory
    }
}

impl From<waiters::OutOfMemory> for Error {
    fn from(_: waiters::OutOfMemory) -> Self {
        Error::OutOfMemory
    }
}

impl From<hashbrown::TryReserveError> for Error {
    fn from(_: hashbrown::TryReserveError) -> Self {
        Error::OutOfMemory
    }
}
