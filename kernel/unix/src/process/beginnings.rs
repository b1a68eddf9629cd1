//! Processes that a process is starting.
//!
//! A call that starts a process fills an address space, and `fork` a table of descriptors, in steps. It is dropped
//! between two of them when its caller ends or executes another program, and to drop what is full would free all of
//! it in one stretch. So both are in a list of the caller until the new process runs: a call that is dropped leaves
//! them there, and the end of the caller, or its next program, frees them in steps.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::Errno;
use memory::OutOfMemory;
use memory::space::Limits;
use spin::Mutex;
use usermode::Space;

use crate::asynchronous::user_interrupts;
use crate::files::descriptor::Descriptors;
use crate::files::remains;
use crate::process::accounts::Account;
use crate::scheduling::steps;

/// The parts of a process that is being started which can be large.
pub(crate) struct Beginning {
    /// Its memory.
    pub space: Arc<Space>,
    /// Its open files. Locked after those of the process that starts it.
    pub descriptors: Mutex<Descriptors>,
}

impl Beginning {
    /// Makes an empty one for a process with this account.
    pub(crate) fn new(account: &Arc<Account>) -> Result<Beginning, Errno> {
        let space =
            Space::new(Limits::DEFAULT, user_interrupts::kind_of_processes()).map_err(|OutOfMemory| Errno::ENOMEM)?;
        Ok(Beginning { space: Arc::new(space), descriptors: Mutex::new(Descriptors::new(account)) })
    }

    /// Frees it in steps.
    async fn clear(&self) {
        let mut at = 0;
        loop {
            // Dropped outside of the lock.
            let looked = self.descriptors.lock().take_up_to(&mut at, usize::MAX);
            let Some(file) = looked else { break };
            drop(file);
            steps::pause_at_the_end().await;
            while remains::free_some() {
                steps::pause_at_the_end().await;
            }
        }
        while self.space.clear_part() {
            steps::pause_at_the_end().await;
        }
    }
}

/// Processes that a process is starting, and those that dropped calls have left.
#[derive(Default)]
pub(crate) struct Beginnings(Mutex<Vec<Arc<Beginning>>>);

impl Beginnings {
    /// Adds an empty one for a process with this account. Each is removed or given up.
    pub(crate) fn add(&self, account: &Arc<Account>) -> Result<Arc<Beginning>, Errno> {
        let beginning = Arc::new(Beginning::new(account)?);
        let mut list = self.0.lock();
        list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        list.push(beginning.clone());
        Ok(beginning)
    }

    /// Removes one whose process runs.
    pub(crate) fn remove(&self, beginning: &Arc<Beginning>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, beginning));
    }

    /// Frees one whose process will not run, in steps, and removes it.
    ///
    /// # Cancellation
    /// Weak: the rest stays in the list.
    pub(crate) async fn give_up(&self, beginning: &Arc<Beginning>) {
        beginning.clear().await;
        self.remove(beginning);
    }

    /// Frees those that dropped calls have left, in steps. Called when no call of the process goes on.
    ///
    /// # Cancellation
    /// Weak: the rest stays in the list.
    pub(crate) async fn clear(&self) {
        loop {
            let left = self.0.lock().last().cloned();
            let Some(beginning) = left else { break };
            self.give_up(&beginning).await;
        }
    }

    /// Returns whether there is none.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
