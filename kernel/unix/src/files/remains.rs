//! Remains of files and epolls that have gone, which are freed in steps.

use crate::files::{epoll, tree};

/// Frees some pages of files that have gone, or takes back some registrations of epolls that have; returns `false` if
/// there are none.
pub(crate) fn free_some() -> bool {
    epoll::free_remains() || tree::root().free_remains()
}

/// Returns whether there is something for [`free_some`].
pub(crate) fn are_left() -> bool {
    epoll::has_remains() || tree::root().has_remains()
}
