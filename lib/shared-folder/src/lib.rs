//! A folder of another machine, by the protocol 9P2000.L: the one that QEMU gives its guests.
//!
//! A [`Channel`] that carries messages is below, and above a [`Folder`] whose operations take files that are *held*
//! ([`Held`], a `fid` of the protocol) and one name, never a path. Each operation is one message and its answer, and is
//! synchronous: the channel returns when the answer is there. A kernel runs them on a stack of its own.
//!
//! # An answer is an allegation
//! The other machine may send anything. Its answers are read by [`wire`], which looks at each length before it is used:
//! an answer that is not one to the question, is longer than it may be, or ends too early is [`Error::Damaged`]. Names
//! in listings that cannot be names are left out. A file's number, length and times are what it says.
//!
//! # The protocol
//! Messages have their length, a type and a tag, which is always the same one here, since one message is under way at a
//! time; all numbers are little-endian. The words of 9P2000 (version, attach, walk, read, write, clunk) are those of
//! Plan 9's manual, section 5; those of the dialect L are the calls of Linux, with its numbers for flags and errors.
//!
//! Rejected: the crates for 9P that there are. They have servers alone, or clients that need threads or the standard
//! library; and virtio-fs, for which QEMU needs a second program with shared memory.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod folder;
pub mod wire;

pub use folder::{Attributes, Change, Entry, Folder, Held, Identity, Opening, Sizes, Time};

/// The channel has not carried a message, and carries no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelFailed;

/// A way for messages to the other machine and back.
pub trait Channel {
    /// Returns the number of bytes that a message may have, to the other machine and back.
    fn most_bytes(&self) -> usize;

    /// Sends a message, waits for the answer, and copies it to the start of `answer`, which has room for
    /// [`most_bytes`](Self::most_bytes); returns its length.
    ///
    /// # Errors
    /// [`ChannelFailed`].
    fn exchange(&mut self, message: &[u8], answer: &mut [u8]) -> Result<usize, ChannelFailed>;
}

/// Reason why an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The other machine refuses it, for this reason by Linux's numbers.
    Refused(u32),
    /// The answer is none of the protocol.
    Damaged,
    /// The channel has failed.
    Failed,
    /// As many files are held as may be, or there is no memory.
    OutOfMemory,
}

impl From<ChannelFailed> for Error {
    fn from(_: ChannelFailed) -> Error {
        Error::Failed
    }
}
