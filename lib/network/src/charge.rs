//! Charging of the memory that the stack holds.
//!
//! Much of that memory outlives the call that caused it, or was not caused by a call: a stranger's request, a
//! connection that was not accepted yet, one that was closed and still delivers, the record of one that has ended. Each
//! of them belongs to the owner of the listener, or to the owner that requested the connection, and is charged from
//! before its memory is taken until after it is given back. Without the owner's consent nothing is made: a request is
//! dropped as if the backlog were full, an ended connection is not remembered, and bytes that have come are dropped as
//! if the wire had lost them.

use alloc::sync::Arc;

use crate::Error;

/// Kind of thing that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A request for a connection that was answered and is not yet acknowledged.
    Request,
    /// A connection in a listener's queue, held by a program, or orphaned. Its buffers have no memory at first.
    Connection,
    /// The accepted end of a connection within the host. The other end counts for the owner that requested the
    /// connection.
    AcceptedEnd,
    /// The record of a connection that has ended.
    Record,
}

/// Reason for which something is made, or a buffer grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program has asked for something that could not go on without.
    Call,
    /// A packet has come that could not be taken in without. It comes again: no program should be ended for it.
    Packet,
    /// It is faster so. A stranger may have caused it: the owner does well to keep memory for other things.
    Speed,
}

/// Memory of a buffer that is needed for progress: what the other side was told at first, wherever in the first page it
/// begins, and the list of pages.
const NEEDED: usize = tcp::FIRST_LIMIT + tcp::BLOCK + tcp::SMALLEST;
/// Memory of a buffer that is charged with the connection, whether there are bytes or not: its first step.
pub(crate) const RESERVED: usize = tcp::SMALLEST;

/// An account that pays for memory.
#[doc(alias = "cgroup")]
#[doc(alias = "memcg")]
pub trait Owner: Send + Sync {
    /// Charges `bytes` for one thing more. `free` is the number of further things of its kind that the system allows.
    ///
    /// # Errors
    /// The owner's limit is reached: [`Error::OutOfMemory`] or [`Error::Limit`].
    fn charge(&self, held: Held, bytes: usize, free: usize, need: Need) -> Result<(), Error>;

    /// Charges `bytes` more for a thing that is charged already.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    fn charge_more(&self, bytes: usize, need: Need) -> Result<(), Error>;

    /// Refunds `bytes` of a thing that stays.
    fn refund_some(&self, bytes: usize);

    /// Refunds one charge, with what is left of it.
    fn refund(&self, held: Held, bytes: usize);
}

/// Charge for one thing; dropping it refunds it.
pub(crate) struct Charge {
    owner: Option<Arc<dyn Owner>>,
    bytes: u32,
    held: Held,
}

impl Charge {
    /// Charges `owner`, if there is one.
    pub(crate) fn new(
        owner: Option<&Arc<dyn Owner>>,
        held: Held,
        (bytes, free): (usize, usize),
        need: Need,
    ) -> Result<Charge, Error> {
        let bytes = u32::try_from(bytes).map_err(|_| Error::OutOfMemory)?;
        if let Some(owner) = owner {
            owner.charge(held, bytes as usize, free, need)?;
        }
        Ok(Charge { owner: owner.cloned(), bytes, held })
    }

    /// Asks the owner and the machine for a step of a buffer's memory, after which it has `memory`. `need` is the
    /// reason while that is needed for progress. Without a holder that receives, there is none for speed only.
    pub(crate) fn step(
        &mut self,
        (step, memory): (usize, usize),
        need: Need,
        is_held: bool,
        admits: fn(Need) -> bool,
    ) -> bool {
        let more = memory.max(RESERVED) - (memory - step).max(RESERVED);
        let need = if memory <= NEEDED { need } else { Need::Speed };
        more == 0 || (need != Need::Speed || is_held) && self.grow(more, need) && admits(need)
    }

    /// Charges `bytes` more. Returns whether the owner has consented.
    fn grow(&mut self, bytes: usize, need: Need) -> bool {
        let Some(sum) = u32::try_from(bytes).ok().and_then(|more| self.bytes.checked_add(more)) else { return false };
        if self.owner.as_ref().is_some_and(|owner| owner.charge_more(bytes, need).is_err()) {
            return false;
        }
        self.bytes = sum;
        true
    }

    /// Refunds what is beyond so many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let beyond = (self.bytes as usize).saturating_sub(bytes);
        if beyond > 0 {
            self.bytes -= beyond as u32;
            if let Some(owner) = &self.owner {
                owner.refund_some(beyond);
            }
        }
    }

    /// Returns the charged owner.
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
