//! Whose the memory is that the stack holds.
//!
//! Much of it outlives the call that caused it, or no call has caused it at all: a stranger's request, a connection
//! that nobody has accepted yet, one that was closed and still delivers, the record of one that has ended. Each of them
//! has the owner of the listener, or of whoever asked for the connection, and is charged from before its memory is
//! taken until after it is given back. What an owner may not have is not made: a request is dropped as if the backlog
//! were full, and an ended connection is not remembered.

use alloc::sync::Arc;

use crate::Error;

/// What is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A request for a connection that was answered and is not acknowledged yet.
    Request,
    /// A connection, whoever has it: a listener's queue, a program, or nobody any more. With buffers as large as they
    /// may become.
    Connection,
    /// The end of a connection within the host that was accepted: its memory. The other end is counted, with whoever
    /// has asked for the connection.
    AcceptedEnd,
    /// What is remembered of a connection that has ended.
    Record,
}

/// Somebody who answers for memory.
pub trait Owner: Send + Sync {
    /// Charges so many bytes for one thing more. `free` is how many more of its kind there may be in the system.
    ///
    /// # Errors
    /// The owner may not have it: [`Error::OutOfMemory`] or [`Error::Limit`].
    fn charge(&self, held: Held, bytes: usize, free: usize) -> Result<(), Error>;

    /// Takes that back.
    fn refund(&self, held: Held, bytes: usize);
}

/// What is charged for one thing; dropping it gives it back.
pub(crate) struct Charge {
    owner: Option<Arc<dyn Owner>>,
    bytes: u32,
    held: Held,
}

impl Charge {
    /// Charges something, if there is an owner.
    pub(crate) fn new(owner: Option<&Arc<dyn Owner>>, held: Held, bytes: usize, free: usize) -> Result<Charge, Error> {
        let bytes = u32::try_from(bytes).map_err(|_| Error::OutOfMemory)?;
        if let Some(owner) = owner {
            owner.charge(held, bytes as usize, free)?;
        }
        Ok(Charge { owner: owner.cloned(), bytes, held })
    }

    /// Who is charged.
    pub(crate) fn owner(&self) -> Option<&Arc<dyn Owner>> {
        self.owner.as_ref()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            owner.refund(self.held, self.bytes as usize);
        }
    }
}
