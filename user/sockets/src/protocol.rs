//! The protocol between programs and the network server.
//!
//! A request's first word is its [`Operation`], the next three are its arguments. An answer's first word is its
//! [`Status`], the next are results.
//!
//! | operation | arguments | results |
//! |---|---|---|
//! | `Listen` | port, backlog | socket |
//! | `Accept` | socket | socket of the connection, address and port of the other side |
//! | `Receive` | socket, offset, length | number of bytes at the offset; 0 at the end |
//! | `Send` | socket, offset, length | |
//! | `Close` | socket | |
//!
//! Offsets count from the start of the memory behind the rings. Numbers of sockets belong to one program, and are
//! meaningless for another.

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Listens on a port.
    Listen = 1,
    /// Waits for a connection.
    Accept = 2,
    /// Waits for bytes.
    Receive = 3,
    /// Sends bytes; answered when all of them are on their way.
    Send = 4,
    /// Ends a socket.
    Close = 5,
}

impl Operation {
    /// Returns the operation of this number.
    pub const fn from_number(number: u64) -> Option<Operation> {
        Some(match number {
            1 => Operation::Listen,
            2 => Operation::Accept,
            3 => Operation::Receive,
            4 => Operation::Send,
            5 => Operation::Close,
            _ => return None,
        })
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Done = 0,
    /// There is no such operation or socket, or the range of memory is invalid.
    Invalid = 1,
    /// The port is taken.
    InUse = 2,
    /// The other side has ended the connection, or does not answer.
    Reset = 3,
    /// There are too many sockets, or there is too little memory.
    Limit = 4,
}

impl Status {
    /// Returns the status of this number; an unknown one is a refusal.
    pub const fn from_number(number: u64) -> Status {
        match number {
            0 => Status::Done,
            2 => Status::InUse,
            3 => Status::Reset,
            4 => Status::Limit,
            _ => Status::Invalid,
        }
    }

    /// Returns the status in words.
    pub const fn text(self) -> &'static str {
        match self {
            Status::Done => "it was done",
            Status::Invalid => "the network server rejects the request as invalid",
            Status::InUse => "the port is in use",
            Status::Reset => "the connection was ended by the other side",
            Status::Limit => "the network server has no room for more",
        }
    }
}
