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

use crate::asynchronous::user_interrupts::back_end;
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
        let space = Space::new(Limits::DEFAULT, back_end::kind_of_processes()).map_err(|OutOfMemory| Errno::ENOMEM)?;
        Ok(Beginning { space: Arc::new(space), descriptors: Mutex::new(Descriptors::new(account)) })
    }

    /// Frees it in steps. The files stay in the table meanwhile, unlike those of a process that ends: this call can be
    /// dropped, and the next one goes on.
    async fn clear(&self) {
        let mut at = 0;
        loop {
            // Dropped outside of the lock.
            let looked = self.descriptors.lock().take_up_to(&mut at, usize::MAX);
            let Some(file) = looked else { break };
            drop(file);
            steps::pause_at_the_end().await;
            remains::free_at_the_end().await;
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
    /// Adds an empty one for a process with this account. Each is [finished](Self::finish).
    pub(crate) fn add(&self, account: &Arc<Account>) -> Result<Arc<Beginning>, Errno> {
        let beginning = Arc::new(Beginning::new(account)?);
        let mut list = self.0.lock();
        list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        list.push(beginning.clone());
        Ok(beginning)
    }

    /// Ends the beginning of a process: removes it, after it was freed in steps if the process could not be started.
    ///
    /// # Cancellation
    /// Weak: the rest of a process that could not be started stays in the list.
    pub(crate) async fn finish<Started, Error>(
        &self,
        beginning: &Arc<Beginning>,
        begun: Result<Started, Error>,
    ) -> Result<Started, Error> {
        if begun.is_err() {
            beginning.clear().await;
        }
        self.remove(beginning);
        begun
    }

    /// Frees those that dropped calls have left, in steps. Called when no call of the process goes on.
    ///
    /// # Cancellation
    /// Weak: the rest stays in the list.
    pub(crate) async fn clear(&self) {
        loop {
            let left = self.0.lock().last().cloned();
            let Some(beginning) = left else { break };
            beginning.clear().await;
            self.remove(&beginning);
        }
    }

    fn remove(&self, beginning: &Arc<Beginning>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, beginning));
    }

    /// Returns whether there is none.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Weak;
    use core::future::Future;
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

    use filesystem::Access;
    use memory::space::Placement;
    use memory::sv39::Protection;

    use super::*;
    use crate::files::console;
    use crate::files::file::{self, OpenFile};
    use crate::testing::{Bell, DATA, Program, run};

    /// Begins a process with an open file and some memory.
    fn begin(program: &Program) -> (Arc<Beginning>, Weak<OpenFile>) {
        let process = program.process();
        let account = process.account.of_a_child().unwrap();
        let beginning = process.beginnings.add(&account).unwrap();
        let charge = file::charge(&account).unwrap();
        let file = Arc::new(OpenFile::new(console::open().unwrap(), Access::ReadWrite, false, charge));
        let weak = Arc::downgrade(&file);
        beginning.descriptors.lock().replace(100, file, false).unwrap();
        let place = Placement::Fixed(DATA as u64);
        let mapped = beginning.space.lock().map_anonymous(place, 0x8000, Protection::ReadWrite, "test");
        usermode::flush(mapped.unwrap().1);
        (beginning, weak)
    }

    /// Polls a future that is left alone to its end.
    fn complete<T>(future: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Bell::default()));
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return result;
            }
        }
    }

    #[test]
    fn a_process_that_could_not_be_started_is_freed() {
        run(|program| {
            let process = program.process();
            let (beginning, file) = begin(program);
            let failure: Result<usize, Errno> = Err(Errno::EAGAIN);
            assert_eq!(complete(process.beginnings.finish(&beginning, failure)), Err(Errno::EAGAIN));
            assert!(process.beginnings.is_empty() && file.upgrade().is_none());
            assert!(!beginning.space.clear_part(), "its memory was freed");
        });
    }

    #[test]
    fn a_process_that_runs_keeps_its_parts() {
        run(|program| {
            let process = program.process();
            let ((beginning, file), (other, _)) = (begin(program), begin(program));
            assert_eq!(complete(process.beginnings.finish(&beginning, Ok::<_, Errno>(7))), Ok(7));
            assert!(!process.beginnings.is_empty(), "the other one is there");
            assert!(beginning.descriptors.lock().get(100).is_ok() && file.upgrade().is_some());
            assert!(beginning.space.clear_part(), "its memory is there");
            assert_eq!(complete(process.beginnings.finish(&other, Ok::<_, Errno>(8))), Ok(8));
            assert!(process.beginnings.is_empty());
        });
    }

    /// Steps that were dropped are done later, and nothing is freed twice.
    #[test]
    fn what_dropped_calls_have_left_is_freed_in_steps() {
        run(|program| {
            let process = program.process();
            let ((first, file), (_second, other)) = (begin(program), begin(program));
            let mut in_place = Context::from_waker(steps::IN_PLACE);
            {
                let failure: Result<(), Errno> = Err(Errno::EINTR);
                let mut call = pin!(process.beginnings.finish(&first, failure));
                assert_eq!(call.as_mut().poll(&mut in_place), Poll::Pending);
            }
            assert!(!process.beginnings.is_empty());
            assert!(pin!(process.beginnings.clear()).poll(&mut in_place).is_pending(), "there is more than one step");
            complete(process.beginnings.clear());
            assert!(process.beginnings.is_empty());
            assert!(file.upgrade().is_none() && other.upgrade().is_none() && !first.space.clear_part());
        });
    }
}
