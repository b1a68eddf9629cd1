//! The end of a process, as descriptors of it see it ([`process_file`](crate::process::process_file)).
//!
//! A process has a lifetime once a descriptor has asked for it, and its zombie keeps it: so a descriptor never means
//! another process that has got the number since.

use core::sync::atomic::{AtomicU8, Ordering};
use core::task::Waker;

use abi_unix::Errno;
use abi_unix::types::epoll as event;
use spin::Mutex;
use waiters::Waiters;

/// The states, in their order.
const GOES_ON: u8 = 0;
const HAS_ENDED: u8 = 1;
const IS_FORGOTTEN: u8 = 2;

/// The lifetime of a process.
#[derive(Default)]
pub(crate) struct Lifetime {
    // Raised with release before the waiters are woken, and read with acquire after a waiter has registered: one of the
    // two sees the other, since both take the lock in between.
    state: AtomicU8,
    waiters: Mutex<Waiters>,
}

impl Lifetime {
    /// Creates that of a process that has ended.
    pub(super) fn of_the_ended() -> Lifetime {
        Lifetime { state: AtomicU8::new(HAS_ENDED), ..Lifetime::default() }
    }

    fn reach(&self, state: u8) {
        self.state.fetch_max(state, Ordering::Release);
        self.waiters.lock().wake_all();
    }

    /// Records that the process has ended, and that its parent can wait for it, if it wants to know.
    pub(super) fn ends(&self) {
        self.reach(HAS_ENDED);
    }

    /// Records that nothing is left of the process.
    pub(super) fn is_over(&self) {
        self.reach(IS_FORGOTTEN);
    }

    /// Returns whether nothing is left of the process: its number may be another's.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.state.load(Ordering::Acquire) == IS_FORGOTTEN
    }

    /// Returns the events of a descriptor of the process: input when it has ended, and the end when its parent has
    /// waited for it. Registers the waker, if there is one, for the others.
    pub(crate) fn readiness(&self, waker: Option<&Waker>) -> Result<u32, Errno> {
        if let Some(waker) = waker {
            self.waiters.lock().register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(match self.state.load(Ordering::Acquire) {
            GOES_ON => 0,
            HAS_ENDED => event::IN | event::RDNORM,
            _ => event::IN | event::RDNORM | event::HUP,
        })
    }

    /// Takes back the registration of [`readiness`](Self::readiness).
    pub(crate) fn forget(&self, waker: &Waker) {
        self.waiters.lock().forget(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_goes_one_way() {
        let lifetime = Lifetime::default();
        assert_eq!(lifetime.readiness(None), Ok(0));
        lifetime.ends();
        assert_eq!((lifetime.readiness(None), lifetime.is_forgotten()), (Ok(event::IN | event::RDNORM), false));
        lifetime.is_over();
        lifetime.ends();
        assert!(lifetime.is_forgotten());
        assert_eq!(lifetime.readiness(None), Ok(event::IN | event::RDNORM | event::HUP));
        assert!(!Lifetime::of_the_ended().is_forgotten());
    }
}
