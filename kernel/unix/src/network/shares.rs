//! Shares of processes in things of which the network has a limited number.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use network::{Error, Held, Need};

use crate::process::accounts::Account;

/// A thing of which the whole system has a limited number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limited {
    Datagrams,
    Connections,
    Records,
}

/// A process's share of things of which the whole system has a limited number. Sockets belong to the process that made
/// them, and connections to the maker of the listening socket, whichever process uses them. Connections and the records
/// of ended ones may outlive their sockets and the process.
pub(crate) struct Shares {
    /// Numbers of datagram sockets, of connections, and of records of connections that have ended.
    pub(super) taken: [AtomicUsize; 3],
    pub account: Arc<Account>,
}

impl Shares {
    /// Creates the empty share of a process with this account.
    pub(crate) fn new(account: Arc<Account>) -> Arc<Shares> {
        Arc::new(Shares { taken: Default::default(), account })
    }

    /// Counts one more if `free` are left in the system; returns `false` for a process that has that many already. So
    /// no process gets more than half, and as long as any is left, a process that has none gets one.
    pub(crate) fn take(&self, of: Limited, free: usize) -> bool {
        let limit = |taken| (taken < free).then_some(taken + 1);
        self.taken[of as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, limit).is_ok()
    }

    pub(crate) fn give_back(&self, of: Limited) {
        self.taken[of as usize].fetch_sub(1, Ordering::Relaxed);
    }

    fn limited(held: Held) -> Option<Limited> {
        match held {
            // Bounded by the listener's backlog, and by the share of the connecting process.
            Held::Request | Held::AcceptedEnd => None,
            Held::Connection => Some(Limited::Connections),
            Held::Record => Some(Limited::Records),
        }
    }
}

/// EVERY-BYTE: memory that the stack keeps for a process.
impl network::Owner for Shares {
    fn charge(&self, held: Held, bytes: usize, free: usize, need: Need) -> Result<(), Error> {
        self.charge_more(bytes, need)?;
        if Shares::limited(held).is_some_and(|of| !self.take(of, free)) {
            self.account.give_memory(bytes);
            return Err(Error::Limit);
        }
        Ok(())
    }

    fn charge_more(&self, bytes: usize, need: Need) -> Result<(), Error> {
        match need {
            Need::Call => self.account.take_memory(bytes),
            Need::Packet => self.account.take_memory_for_strangers(bytes),
            Need::Speed => self.account.take_spare_memory(bytes),
        }
        .map_err(|_| Error::OutOfMemory)
    }

    fn refund_some(&self, bytes: usize) {
        self.account.give_memory(bytes);
    }

    fn refund(&self, held: Held, bytes: usize) {
        if let Some(of) = Shares::limited(held) {
            self.give_back(of);
        }
        self.account.give_memory(bytes);
    }
}

#[cfg(test)]
mod tests {
    use network::Owner as _;

    use super::*;
    use crate::process::accounts::{Resource, ResourceLimit};

    #[test]
    fn memory_held_by_the_stack_is_charged_and_counted() {
        let account = Account::of_the_first();
        account.set_limit(Resource::Memory, ResourceLimit::both(100));
        let owner = Shares::new(account.clone());
        assert_eq!(owner.charge(Held::Connection, 40, 1, Need::Packet), Ok(()));
        // The process already has as many as are left in the system.
        assert_eq!(owner.charge(Held::Connection, 40, 1, Need::Packet), Err(Error::Limit));
        assert_eq!(owner.charge(Held::Record, 40, 1, Need::Packet), Ok(()));
        assert_eq!(owner.charge(Held::Request, 40, 1, Need::Packet), Err(Error::OutOfMemory));
        assert_eq!(owner.charge(Held::Request, 20, 0, Need::Packet), Ok(()));
        assert_eq!(account.used(Resource::Memory), 100);
        owner.refund(Held::Connection, 40);
        owner.refund(Held::Record, 40);
        // Buffers that make a connection faster leave half; those without which it could not go on do not.
        assert_eq!(owner.charge_more(31, Need::Speed), Err(Error::OutOfMemory));
        assert_eq!(owner.charge_more(30, Need::Speed), Ok(()));
        assert_eq!(owner.charge_more(1, Need::Speed), Err(Error::OutOfMemory));
        assert_eq!(owner.charge_more(50, Need::Call), Ok(()));
        assert_eq!(owner.charge_more(1, Need::Call), Err(Error::OutOfMemory));
        owner.refund_some(60);
        assert_eq!(account.used(Resource::Memory), 40);
        owner.refund(Held::Request, 40);
        assert_eq!(account.used(Resource::Memory), 0);
        assert_eq!(owner.taken.each_ref().map(|count| count.load(Ordering::Relaxed)), [0; 3]);
    }
}
