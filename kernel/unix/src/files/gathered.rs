//! Bytes that belong together, in many buffers: messages, and short writes to a pipe.
//!
//! A kind of file moves the bytes of one call in one stretch, under its lock. For each buffer it may have to make a
//! page, and a call can have a thousand buffers. So many buffers are first gathered in one of the kernel, in steps, and
//! a message for many buffers is received into one and scattered from there, in steps. The kind sees a caller whose
//! memory is that buffer ([`Gathered::caller`]).
//!
//! Rejected: looks for interrupts inside of the kinds. A stream may end a call early and does that ([`Effort`]), but a
//! message that is half there must be seen by none.
//!
//! [`Effort`]: crate::scheduling::steps::Effort

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use memory::bytes::copy;

use crate::process::accounts::{Account, Charge, Resource};
use crate::process::identity::Whom;
use crate::process::user::{Caller, UserBuffer, UserMemory, length_of};
use crate::scheduling::steps::{self, Effort, Ends};

/// Most buffers and bytes that a kind moves in one stretch.
const FEW: usize = Effort::BUFFERS;
pub(crate) const MOST_BYTES: usize = Effort::BYTES;

/// Returns whether inseparable bytes of these buffers have to be gathered.
#[inline]
pub(crate) fn are_many(buffers: &[UserBuffer]) -> bool {
    are_many_to_fill(buffers) || length_of(buffers) > MOST_BYTES
}

/// Returns whether inseparable bytes have to be scattered to these buffers. One large buffer does not count: filling it
/// with the largest message takes no look, and programs pass larger ones than they need.
#[inline]
pub(crate) fn are_many_to_fill(buffers: &[UserBuffer]) -> bool {
    buffers.len() > FEW
}

/// Returns buffers of a stream that can be moved in one stretch, from `from` bytes on: the buffers, the byte at which
/// to begin in them, and the number of bytes from there on. Reading a list of many was work, so the first part is
/// small.
pub(crate) fn few(buffers: &[UserBuffer], from: usize) -> (&[UserBuffer], usize, usize) {
    let (mut first, mut before) = (0, 0);
    while let Some(buffer) = buffers.get(first).filter(|buffer| before + buffer.len() <= from) {
        before += buffer.len();
        first += 1;
    }
    let most = if from == 0 && buffers.len() > FEW { 1 } else { FEW };
    let few = &buffers[first..buffers.len().min(first + most)];
    let begin = from - before;
    (few, begin, length_of(few).saturating_sub(begin))
}

/// One buffer of the kernel, and how far it was filled from a program's, or emptied to them.
pub(crate) struct Gathered {
    bytes: Vec<u8>,
    /// Bytes for which there is room.
    size: usize,
    /// The next buffer of the program, bytes of it that were copied, and bytes that were copied in all.
    next: usize,
    part: usize,
    done: usize,
    _charge: Charge,
}

impl Gathered {
    /// Makes a buffer of this size for a call. `ENOMEM` if the account has no room for it.
    pub(crate) fn new(account: &Arc<Account>, size: usize) -> Result<Gathered, Errno> {
        account.admit()?;
        let charge = account.charge(Resource::Memory, size)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| Errno::ENOMEM)?;
        Ok(Gathered { bytes, size, next: 0, part: 0, done: 0, _charge: charge })
    }

    /// Copies the bytes of a program's buffers, until there are as many as it has room for. Pending means that the
    /// operation goes on with its next step.
    pub(crate) fn gather(
        &mut self,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        waker: Option<&Waker>,
    ) -> Poll<Result<(), Errno>> {
        let size = self.size;
        self.copy(caller, buffers, size, waker, |address, bytes| caller.copy_in(address, bytes))
    }

    /// Copies its first `count` bytes to a program's buffers, in this way.
    pub(crate) fn scatter(
        &mut self,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        count: usize,
        waker: Option<&Waker>,
    ) -> Poll<Result<(), Errno>> {
        self.copy(caller, buffers, count, waker, |address, bytes| caller.copy_out(address, bytes))
    }

    fn copy(
        &mut self,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        count: usize,
        waker: Option<&Waker>,
        copy: impl Fn(usize, &mut [u8]) -> Result<(), Errno>,
    ) -> Poll<Result<(), Errno>> {
        let mut effort = Effort::default();
        while self.done < count {
            let Some(buffer) = buffers.get(self.next) else { break };
            let length = (buffer.len() - self.part).min(count - self.done).min(effort.left());
            let end = self.done + length;
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            copy(buffer.address() + self.part, &mut self.bytes[self.done..end])?;
            self.done += length;
            self.part += length;
            if self.part == buffer.len() {
                (self.next, self.part) = (self.next + 1, 0);
            }
            // The work after the last buffer is a stretch of its own.
            if (effort.add(length) || self.done == count) && steps::must_stop(caller, waker) {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Makes all bytes, which are zero, to receive into. Returns whether they were not there.
    pub(crate) fn fill(&mut self) -> bool {
        let is_new = self.bytes.len() < self.size;
        self.bytes.resize(self.size, 0);
        is_new
    }

    /// Returns this caller with the gathered bytes as its memory, and the one buffer that they are.
    pub(crate) fn caller<'a>(&'a mut self, of: &'a dyn Caller) -> (GatheredCaller<'a>, UserBuffer) {
        let buffer = UserBuffer::of_kernel(self.bytes.len());
        (GatheredCaller { caller: of, bytes: RefCell::new(&mut self.bytes) }, buffer)
    }
}

/// A caller whose memory, from address 0 on, is a buffer of the kernel.
pub(crate) struct GatheredCaller<'a> {
    caller: &'a dyn Caller,
    bytes: RefCell<&'a mut [u8]>,
}

impl UserMemory for GatheredCaller<'_> {
    fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        let own = self.bytes.borrow();
        copy(own.get(address..address + bytes.len()).ok_or(Errno::EFAULT)?, bytes);
        Ok(())
    }

    fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        let mut own = self.bytes.borrow_mut();
        copy(bytes, own.get_mut(address..address + bytes.len()).ok_or(Errno::EFAULT)?);
        Ok(())
    }
}

impl Ends for GatheredCaller<'_> {
    fn has_ended(&self) -> bool {
        self.caller.has_ended()
    }
}

impl Caller for GatheredCaller<'_> {
    fn number(&self) -> u32 {
        self.caller.number()
    }

    fn account(&self) -> &Arc<Account> {
        self.caller.account()
    }

    fn whom(&self) -> Whom {
        self.caller.whom()
    }

    fn has_no_reader(&self) {
        self.caller.has_no_reader();
    }

    fn zero(&self, buffer: UserBuffer) -> Result<(), Errno> {
        let mut own = self.bytes.borrow_mut();
        let (begin, end) = (buffer.address(), buffer.address() + buffer.len());
        own.get_mut(begin..end).ok_or(Errno::EFAULT)?.fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(lengths: &[usize]) -> Vec<UserBuffer> {
        lengths.iter().map(|length| UserBuffer::new(0x1000, *length).unwrap()).collect()
    }

    #[test]
    fn many_buffers_or_bytes_are_gathered() {
        assert!(!are_many(&[]) && !are_many(&buffers(&[1; FEW])) && are_many(&buffers(&[0; FEW + 1])));
        assert!(!are_many(&buffers(&[MOST_BYTES])) && are_many(&buffers(&[MOST_BYTES, 1])));
        assert!(!are_many_to_fill(&buffers(&[MOST_BYTES + 1])) && are_many_to_fill(&buffers(&[0; FEW + 1])));
    }

    #[test]
    fn parts_of_a_stream_begin_where_the_last_one_ended() {
        let all = buffers(&[0, 3, 0, 5]);
        let lengths = |from| {
            let (few, begin, left) = few(&all, from);
            (few.len(), begin, left)
        };
        assert_eq!(lengths(2), (3, 2, 6));
        assert_eq!(lengths(3), (1, 0, 5));
        assert_eq!(lengths(7), (1, 4, 1));
        for at_the_end_or_beyond in [8, 9, usize::MAX] {
            assert_eq!(few(&all, at_the_end_or_beyond).0.len(), 0);
        }
        // All of few buffers, but only the first of many.
        assert_eq!(lengths(0).0, 3);
        let many = buffers(&[1; 3 * FEW]);
        assert_eq!(few(&many, 0).2, 1);
        assert_eq!(few(&many, 1).2, FEW);
        assert_eq!(few(&many, 3 * FEW - 2).2, 2);
        assert_eq!(few(&[], 0).2, 0);
    }
}
