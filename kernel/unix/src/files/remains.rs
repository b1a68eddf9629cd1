//! What is left of files and epolls that are gone, and is freed in steps.

use crate::files::{epoll, tree};

/// Frees some pages of files that are gone, or takes back some registrations of epolls that are; `false` if there are
/// none.
pub(crate) fn free_some() -> bool {
    epoll::free_remains() || tree::root().free_remains()
}

/// Whether there is something for [`free_some`].
pub(crate) fn are_left() -> bool {
    epoll::has_remains() || tree::root().has_remains()
}
