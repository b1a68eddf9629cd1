//! Descriptors that close themselves.

use abi_unix::types::control;

use crate::{Result, call};

/// An open file, pipe, socket or directory of this process, closed when it is dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Descriptor(i32);

impl Descriptor {
    /// Takes over a descriptor by its number.
    ///
    /// The number is the kernel's to check: if it names nothing, calls answer `EBADF`. Nobody else should go on using
    /// or closing it, or that one ends up with somebody else's file; no memory is at stake.
    pub const fn from_raw(number: i32) -> Descriptor {
        Descriptor(number)
    }

    /// From the result of a call that opens something.
    pub const fn from_result(result: usize) -> Descriptor {
        Descriptor(result as i32)
    }

    /// Its number, for calls. It stays open as long as the `Descriptor` lives.
    #[inline]
    pub const fn raw(&self) -> i32 {
        self.0
    }

    /// Gives up the number without closing it.
    pub const fn into_raw(self) -> i32 {
        let number = self.0;
        core::mem::forget(self);
        number
    }

    /// Another descriptor for the same open file.
    ///
    /// # Errors
    ///
    /// `EMFILE` if the process has no number free.
    pub fn duplicate(&self) -> Result<Descriptor> {
        // SAFETY: the call has no pointers.
        unsafe { call!(FileControl, self.0, control::DUPFD_CLOEXEC, 0) }.map(Descriptor::from_result)
    }

    /// Closes it and says whether that worked.
    ///
    /// # Errors
    ///
    /// `EBADF` if the number named nothing.
    pub fn close(self) -> Result<()> {
        let number = self.into_raw();
        // SAFETY: the call has no pointers.
        unsafe { call!(Close, number) }.map(|_| ())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the call has no pointers. Nobody is there to hear an error.
        let _ = unsafe { call!(Close, self.0) };
    }
}
