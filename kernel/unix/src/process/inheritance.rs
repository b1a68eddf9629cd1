//! Priorities that owners of locks have from those who wait for them ([`owned_lock`](crate::process::owned_lock)).

use alloc::sync::{Arc, Weak};

use abi_queue::Priority;

/// A thread as the locks see it that it owns.
pub(crate) trait LockOwner: Send + Sync {
    /// Returns its priority without what it has inherited.
    fn own_priority(&self) -> Priority;

    /// Inherits a priority.
    fn inherit(&self, priority: Priority);

    /// Gives an inherited priority back.
    fn disinherit(&self, priority: Priority);

    /// Returns whether it may inherit from the thread with this number.
    fn may_inherit_from(&self, thread: u32) -> bool;
}

/// A priority that the owner of a lock has inherited; given back when this is dropped.
pub(crate) struct Inheritance {
    key: usize,
    /// A word that others may write names the owner: nothing of it is kept when it ends.
    owner: Weak<dyn LockOwner>,
    priority: Priority,
}

impl Inheritance {
    /// Gives a priority to the owner of the lock with this key.
    pub(crate) fn new(key: usize, owner: &Arc<dyn LockOwner>, priority: Priority) -> Inheritance {
        owner.inherit(priority);
        Inheritance { key, owner: Arc::downgrade(owner), priority }
    }

    /// Returns the key of the lock.
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    /// Returns the owner of the lock, if it goes on.
    pub(crate) fn owner(&self) -> Option<Arc<dyn LockOwner>> {
        self.owner.upgrade()
    }
}

impl Drop for Inheritance {
    fn drop(&mut self) {
        if let Some(owner) = self.owner() {
            owner.disinherit(self.priority);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// An owner that counts the priorities that it has inherited.
    #[derive(Default)]
    pub(crate) struct Counter(pub(crate) AtomicUsize);

    impl LockOwner for Counter {
        fn own_priority(&self) -> Priority {
            Priority::LOWEST
        }

        fn inherit(&self, _: Priority) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn disinherit(&self, _: Priority) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }

        fn may_inherit_from(&self, _: u32) -> bool {
            true
        }
    }

    #[test]
    fn an_inherited_priority_is_given_back_once() {
        let owner = Arc::new(Counter::default());
        let shared: Arc<dyn LockOwner> = owner.clone();
        let inheritance = Inheritance::new(8, &shared, Priority::HIGHEST);
        assert_eq!((inheritance.key(), owner.0.load(Ordering::Relaxed)), (8, 1));
        drop(inheritance);
        assert_eq!(owner.0.load(Ordering::Relaxed), 0);
        let inheritance = Inheritance::new(8, &shared, Priority::HIGHEST);
        drop(shared);
        assert_eq!(Arc::strong_count(&owner), 1, "an owner can end");
        drop(owner);
        assert!(inheritance.owner().is_none());
    }
}
