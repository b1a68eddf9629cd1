//! Priorities that owners of locks have from those who wait for them ([`owned_lock`](crate::process::owned_lock)).

use alloc::sync::Arc;

use abi_queue::Priority;

/// A thread as the locks see it that it owns.
pub(crate) trait LockOwner: Send + Sync {
    /// Returns its priority without what it has inherited.
    fn own_priority(&self) -> Priority;

    /// Inherits a priority.
    fn inherit(&self, priority: Priority);

    /// Gives an inherited priority back.
    fn disinherit(&self, priority: Priority);
}

/// A priority that the owner of a lock has inherited; given back when this is dropped.
pub(crate) struct Inheritance {
    key: usize,
    owner: Arc<dyn LockOwner>,
    priority: Priority,
}

impl Inheritance {
    /// Gives a priority to the owner of the lock with this key.
    pub(crate) fn new(key: usize, owner: Arc<dyn LockOwner>, priority: Priority) -> Inheritance {
        owner.inherit(priority);
        Inheritance { key, owner, priority }
    }

    /// Returns the key of the lock.
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    /// Returns the owner of the lock.
    pub(crate) fn owner(&self) -> &Arc<dyn LockOwner> {
        &self.owner
    }
}

impl Drop for Inheritance {
    fn drop(&mut self) {
        self.owner.disinherit(self.priority);
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
    }

    #[test]
    fn an_inherited_priority_is_given_back_once() {
        let owner = Arc::new(Counter::default());
        let inheritance = Inheritance::new(8, owner.clone(), Priority::HIGHEST);
        assert_eq!((inheritance.key(), owner.0.load(Ordering::Relaxed)), (8, 1));
        drop(inheritance);
        assert_eq!(owner.0.load(Ordering::Relaxed), 0);
    }
}
