//! Descriptors that close themselves.

use abi_unix::types::control;

use crate::{Result, call};

/// An open file, pipe, socket or directory of this process, closed when it is dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Descriptor(i32);

impl Descriptor {
    /// Takes over a descriptor by its number.
    ///
    /// The kernel checks the number: if it is of no open file, calls return `EBADF`. No other code should continue to
    /// use or close it, or it may affect another file; memory safety is not at stake.
    pub const fn from_raw(number: i32) -> Descriptor {
        Descriptor(number)
    }

    /// Takes over the descriptor in the result of a call.
    pub const fn from_result(result: usize) -> Descriptor {
        Descriptor(result as i32)
    }

    /// Returns the number, for calls. The descriptor stays open as long as the `Descriptor` lives.
    #[doc(alias = "as_raw_fd")]
    #[inline]
    pub const fn raw(&self) -> i32 {
        self.0
    }

    /// Returns the number without closing the descriptor.
    pub const fn into_raw(self) -> i32 {
        let number = self.0;
        core::mem::forget(self);
        number
    }

    /// Makes another descriptor for the same open file.
    ///
    /// # Errors
    ///
    /// `EMFILE` if the process has no free number.
    #[doc(alias("dup", "try_clone"))]
    pub fn duplicate(&self) -> Result<Descriptor> {
        // SAFETY: the call has no pointers.
        unsafe { call!(FileControl, self.0, control::DUPFD_CLOEXEC, 0) }.map(Descriptor::from_result)
    }

    /// Closes the descriptor and returns an error if that fails.
    ///
    /// # Errors
    ///
    /// `EBADF` if the number was of no open file.
    pub fn close(self) -> Result<()> {
        let number = self.into_raw();
        // SAFETY: the call has no pointers.
        unsafe { call!(Close, number) }.map(|_| ())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the call has no pointers. An error cannot be returned here.
        let _ = unsafe { call!(Close, self.0) };
    }
}
