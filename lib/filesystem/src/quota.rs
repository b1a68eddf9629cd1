//! Limits on the memory of a file system.
//!
//! All objects that a program can make are charged: pages at their size, inodes and names at roughly the memory they
//! occupy. So the limit bounds the memory of the whole tree and not only that of file contents; a million empty files
//! reach it too.

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::node::Timestamp;

/// An account charged beside the whole tree: to the tree's user, a process.
#[doc(alias = "cgroup")]
#[doc(alias = "memcg")]
pub trait Owner: Any + Send + Sync {
    /// Charges `bytes`; returns `false` at the account's limit.
    fn charge(&self, bytes: u64) -> bool;

    /// Refunds `bytes`.
    fn refund(&self, bytes: u64);
}

/// Account and time of a change.
#[derive(Clone, Copy)]
pub struct Maker<'owner> {
    /// Time recorded for the created and changed files.
    pub now: Timestamp,
    /// Account charged for names and inodes as long as they exist; if `None`, only the tree is charged.
    pub owner: Option<&'owner Arc<dyn Owner>>,
}

impl From<Timestamp> for Maker<'_> {
    fn from(now: Timestamp) -> Self {
        Maker { now, owner: None }
    }
}

/// Bytes that are charged to an owner, until this is dropped.
pub(crate) struct Share {
    owner: Arc<dyn Owner>,
    bytes: u64,
}

impl Share {
    /// Charges bytes to the owner, if there is one.
    pub(crate) fn of(owner: Option<&Arc<dyn Owner>>, bytes: u64) -> Result<Option<Share>, Error> {
        let Some(owner) = owner else { return Ok(None) };
        if owner.charge(bytes) { Ok(Some(Share { owner: owner.clone(), bytes })) } else { Err(Error::NoSpace) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.owner.refund(self.bytes);
    }
}

/// A limit and its use, in bytes.
pub(crate) struct Quota {
    limit: AtomicU64,
    // Only a count: no memory is published through it, so that `Relaxed` is enough.
    used: AtomicU64,
}

impl Quota {
    pub(crate) fn new(limit: u64) -> Quota {
        Quota { limit: AtomicU64::new(limit), used: AtomicU64::new(0) }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit, to one that is not exceeded now.
    pub(crate) fn set_limit(&self, limit: u64) -> Result<(), Error> {
        if limit < self.used() {
            return Err(Error::InvalidArgument);
        }
        self.limit.store(limit, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn charge(&self, bytes: u64) -> Result<(), Error> {
        let limit = self.limit();
        self.used
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= limit)
            })
            .map(|_| ())
            .map_err(|_| Error::NoSpace)
    }

    pub(crate) fn refund(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}
