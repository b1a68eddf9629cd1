//! The writers of a file and the programs that are run from it, of which a file has one kind at a time.

use core::sync::atomic::{AtomicI32, Ordering};

use crate::error::Error;

/// Number of those that write to a file; or, below 0, of those that keep writers away, because a program is run from
/// it.
#[derive(Debug, Default)]
#[doc(alias = "i_writecount")]
pub struct Writers(AtomicI32);

impl Writers {
    /// Begins with no one.
    #[must_use]
    pub const fn new() -> Writers {
        Writers(AtomicI32::new(0))
    }

    fn change(&self, by: i32, may: impl Fn(i32) -> bool) -> Result<(), Error> {
        let next = |count: i32| count.checked_add(by).filter(|_| may(count));
        let changed = self.0.try_update(Ordering::AcqRel, Ordering::Acquire, next);
        changed.map(drop).map_err(|_| Error::TextBusy)
    }

    /// Adds a writer.
    ///
    /// # Errors
    /// [`Error::TextBusy`] if a program is run from the file.
    #[doc(alias = "get_write_access")]
    pub fn begin(&self) -> Result<(), Error> {
        self.change(1, |count| count >= 0)
    }

    /// Takes away a writer that was added.
    pub fn end(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Keeps writers away.
    ///
    /// # Errors
    /// [`Error::TextBusy`] if there are any.
    #[doc(alias = "deny_write_access")]
    pub fn deny(&self) -> Result<(), Error> {
        self.change(-1, |count| count <= 0)
    }

    /// Ends what [`deny`](Self::deny) began.
    pub fn allow(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether writers are kept away.
    pub fn are_denied(&self) -> bool {
        self.0.load(Ordering::Acquire) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_or_run() {
        let writers = Writers::new();
        assert_eq!((writers.begin(), writers.begin()), (Ok(()), Ok(())));
        assert_eq!(writers.deny(), Err(Error::TextBusy));
        writers.end();
        assert_eq!(writers.deny(), Err(Error::TextBusy));
        writers.end();
        assert_eq!((writers.deny(), writers.deny()), (Ok(()), Ok(())));
        writers.allow();
        assert_eq!((writers.begin(), writers.are_denied()), (Err(Error::TextBusy), true));
        writers.allow();
        assert_eq!((writers.are_denied(), writers.begin()), (false, Ok(())));
    }
}
