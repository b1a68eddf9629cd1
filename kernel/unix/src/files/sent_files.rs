//! Open files in messages (`SCM_RIGHTS`), from the call that sends them to the one that receives them.
//!
//! The sender pays for them while they are under way. Files that nobody receives are closed in steps, like other
//! [remains](crate::files::remains): closing a socket must not close hundreds of files in one stretch.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::Errno;

use crate::files::file::OpenFile;
use crate::files::remains::{Remain, leave};
use crate::process::accounts::{Account, Charge, FilesUnderWay, Resource};
use crate::process::user::Caller;

/// Files that are closed in one step.
const CLOSED_AT_ONCE: usize = 8;
/// Bytes of kernel memory for a message with files, without its entries for them.
const MEMORY: usize = 128;

/// The open files of one message.
#[doc(alias = "scm_fp_list")]
#[doc(alias = "SCM_RIGHTS")]
pub(crate) struct SentFiles {
    files: Vec<Arc<OpenFile>>,
    /// The process that sends them.
    owner: u32,
    /// Their count, while they are in a message.
    under_way: Option<FilesUnderWay>,
    _charge: Charge,
}

impl SentFiles {
    /// Makes the files of a message; the caller, who sends them, is charged. `ENOMEM`.
    pub(crate) fn new(files: Vec<Arc<OpenFile>>, caller: &dyn Caller) -> Result<SentFiles, Errno> {
        let charge = caller.account().charge(Resource::Memory, MEMORY + files.capacity() * size_of::<Arc<OpenFile>>());
        match charge {
            Ok(charge) => Ok(SentFiles { files, owner: caller.number(), under_way: None, _charge: charge }),
            Err(error) => {
                leave_files(files, caller.number());
                Err(error)
            }
        }
    }

    /// Returns the same files once more, for a caller that looks at the message and leaves it. `ENOMEM`.
    pub(crate) fn copy(&self, caller: &dyn Caller) -> Result<SentFiles, Errno> {
        let mut files = Vec::new();
        files.try_reserve_exact(self.files.len()).map_err(|_| Errno::ENOMEM)?;
        files.extend(self.files.iter().cloned());
        SentFiles::new(files, caller)
    }

    /// Counts them among those that a process has in messages; `is_free` if no limit holds it. `ETOOMANYREFS`.
    pub(crate) fn count(mut self, account: &Arc<Account>, is_free: bool) -> Result<SentFiles, Errno> {
        self.under_way = Some(account.send_files(self.files.len(), is_free)?);
        Ok(self)
    }

    /// Returns the files.
    pub(crate) fn files(&self) -> &[Arc<OpenFile>] {
        &self.files
    }
}

impl Drop for SentFiles {
    fn drop(&mut self) {
        if !self.files.is_empty() {
            leave_files(core::mem::take(&mut self.files), self.owner);
        }
    }
}

fn leave_files(files: Vec<Arc<OpenFile>>, owner: u32) {
    leave(UnreceivedFiles { files, owner });
}

/// A message in a queue: the number of its bytes there, and its files.
pub(crate) struct QueuedMessage {
    /// The bytes that are left of it.
    pub length: usize,
    /// The files that came with it, until they are received.
    pub files: Option<SentFiles>,
}

/// Files that nobody receives any more.
pub(crate) struct UnreceivedFiles {
    files: Vec<Arc<OpenFile>>,
    /// The process that pays for closing them.
    owner: u32,
}

impl Remain for UnreceivedFiles {
    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    /// Closes some of the files.
    fn step(&mut self) -> bool {
        for _ in 0..CLOSED_AT_ONCE {
            let Some(file) = self.files.pop() else { break };
            let sent = file.reference_to_sent().map(|sent| sent.paid_by(self.owner));
            drop(file);
            drop(sent);
        }
        self.files.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn files_under_way_are_charged_to_their_sender() {
        run(|program| {
            let process = program.process();
            let (reader, _) = program.pipe(0);
            let file = process.descriptors.lock().get(reader).unwrap().clone();
            let before = process.account.used(Resource::Memory);
            let sent = SentFiles::new(alloc::vec![file.clone(); 3], &*process).unwrap();
            let one = process.account.used(Resource::Memory) - before;
            assert!(one > MEMORY);
            let copy = sent.copy(&*process).unwrap();
            assert_eq!(copy.files().len(), 3);
            assert_eq!(process.account.used(Resource::Memory) - before, 2 * one);
            drop(copy);
            drop(sent);
            assert_eq!(process.account.used(Resource::Memory), before);
            // The descriptor and this test's own.
            assert_eq!(Arc::strong_count(&file), 2);
        });
    }

    #[test]
    fn files_that_nobody_receives_are_closed_in_steps() {
        run(|program| {
            let process = program.process();
            let (reader, _) = program.pipe(0);
            let file = process.descriptors.lock().get(reader).unwrap().clone();
            let files = alloc::vec![file.clone(); 2 * CLOSED_AT_ONCE];
            let mut left = UnreceivedFiles { files, owner: process.id };
            let mut steps = 0;
            while !left.step() {
                steps += 1;
                assert!(steps < 5, "there is an end");
            }
            assert!(steps >= 1);
            assert_eq!(Arc::strong_count(&file), 2);
        });
    }
}
