//! Messages with open files (`SCM_RIGHTS`), from the call that sends them to the one that receives them.
//!
//! The sender pays for them while they are under way. Files that nobody receives are closed in steps, like other
//! [remains](crate::files::remains): closing a socket must not close hundreds of files in one stretch.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Poll;

use abi_unix::Errno;

use crate::files::file::OpenFile;
use crate::files::message::{MessageDetails, MessageSender, Recipient};
use crate::files::remains::{Remain, leave};
use crate::process::accounts::{Account, Charge, FilesUnderWay, Resource};
use crate::process::user::{Caller, UserBuffer};

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
    /// No limit holds that process.
    is_free: bool,
    /// Their count, from the time when they are put into a message until they are received or closed.
    under_way: Option<FilesUnderWay>,
    charge: Option<Charge>,
}

impl SentFiles {
    /// Makes the files of a message; the caller, who sends them, is charged. `ENOMEM`.
    pub(crate) fn new(files: Vec<Arc<OpenFile>>, caller: &dyn Caller) -> Result<SentFiles, Errno> {
        let charge = caller.account().charge(Resource::Memory, MEMORY + files.capacity() * size_of::<Arc<OpenFile>>());
        match charge {
            Ok(charge) => {
                let owner = caller.number();
                Ok(SentFiles { files, owner, is_free: false, under_way: None, charge: Some(charge) })
            }
            Err(error) => {
                leave(UnreceivedFiles { files, owner: caller.number(), _under_way: None, _charge: None });
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

    /// Has limits of the sender not hold them, if it `is_free`.
    pub(crate) fn of_sender_who(mut self, is_free: bool) -> SentFiles {
        self.is_free = is_free;
        self
    }

    /// Counts them among those that their sender has in messages, as they are put into one. `ETOOMANYREFS`.
    pub(super) fn are_put_in(&mut self, account: &Arc<Account>) -> Result<(), Errno> {
        self.under_way = Some(account.send_files(self.files.len(), self.is_free)?);
        Ok(())
    }

    /// Counts them no more.
    pub(super) fn are_received(&mut self) {
        self.under_way = None;
    }

    /// Returns the only file, if it is one.
    pub(super) fn into_only(mut self) -> Option<Arc<OpenFile>> {
        if self.files.len() == 1 { self.files.pop() } else { None }
    }

    /// Returns the files.
    pub(crate) fn files(&self) -> &[Arc<OpenFile>] {
        &self.files
    }
}

impl Drop for SentFiles {
    fn drop(&mut self) {
        if !self.files.is_empty() {
            leave(UnreceivedFiles {
                files: core::mem::take(&mut self.files),
                owner: self.owner,
                _under_way: self.under_way.take(),
                _charge: self.charge.take(),
            });
        }
    }
}

/// A message that is sent: its buffers, its receiver, its files until they are sent, and the number of bytes that were.
pub(crate) struct OutgoingMessage<'a> {
    buffers: &'a [UserBuffer],
    to: &'a Recipient,
    files: &'a mut Option<SentFiles>,
    sent: &'a mut usize,
}

impl<'a> OutgoingMessage<'a> {
    /// Makes it of its parts.
    pub(crate) fn new(
        buffers: &'a [UserBuffer],
        to: &'a Recipient,
        files: &'a mut Option<SentFiles>,
        sent: &'a mut usize,
    ) -> OutgoingMessage<'a> {
        OutgoingMessage { buffers, to, files, sent }
    }

    /// Returns its buffers and the number of bytes that were sent, which is to be advanced.
    pub(crate) fn bytes(self) -> (&'a [UserBuffer], &'a mut usize) {
        (self.buffers, self.sent)
    }

    /// Returns its parts.
    pub(crate) fn parts(self) -> (&'a [UserBuffer], &'a Recipient, &'a mut Option<SentFiles>, &'a mut usize) {
        (self.buffers, self.to, self.files, self.sent)
    }

    /// Returns its receiver.
    pub(crate) fn to(&self) -> &Recipient {
        self.to
    }
}

/// The outcome of one attempt at receiving.
pub(crate) type Receipt = Poll<Result<ReceivedMessage, Errno>>;

/// A message that was received, or a part of a stream.
#[derive(Default)]
pub(crate) struct ReceivedMessage {
    /// Bytes that were copied.
    pub count: usize,
    /// Bytes that the message has.
    pub length: usize,
    /// The open files that came with it.
    pub files: Option<SentFiles>,
    /// It is a part of a stream, of which more may come.
    pub goes_on: bool,
    /// Its sender.
    pub sender: MessageSender,
    /// Its details, of those that its receiver asks for.
    pub details: MessageDetails,
}

impl ReceivedMessage {
    /// Returns a part of a stream with so many bytes.
    pub(crate) fn of_stream(count: usize) -> ReceivedMessage {
        ReceivedMessage { count, length: count, goes_on: true, ..ReceivedMessage::default() }
    }
}

/// Files that nobody receives any more.
pub(crate) struct UnreceivedFiles {
    files: Vec<Arc<OpenFile>>,
    /// The process that pays for closing them.
    owner: u32,
    /// Until all are closed, they count and are paid for.
    _under_way: Option<FilesUnderWay>,
    _charge: Option<Charge>,
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

    /// A sender cannot have more open by closing the sockets with its messages faster than the cleaner closes files.
    #[test]
    fn files_count_and_are_paid_for_until_they_are_closed() {
        run(|program| {
            let process = program.process();
            let (reader, _) = program.pipe(0);
            let file = process.descriptors.lock().get(reader).unwrap().clone();
            let before = process.account.used(Resource::Memory);
            let mut sent = SentFiles::new(alloc::vec![file.clone(); 2 * CLOSED_AT_ONCE], &*process).unwrap();
            sent.are_put_in(&process.account).unwrap();
            let mut left = UnreceivedFiles {
                files: core::mem::take(&mut sent.files),
                owner: process.id,
                _under_way: sent.under_way.take(),
                _charge: sent.charge.take(),
            };
            drop(sent);
            assert!(!left.step() && process.account.used(Resource::Memory) > before);
            assert_eq!(process.account.sent_files(), 2 * CLOSED_AT_ONCE);
            while !left.step() {}
            drop(left);
            assert_eq!((process.account.used(Resource::Memory), process.account.sent_files()), (before, 0));
        });
    }

    #[test]
    fn files_that_nobody_receives_are_closed_in_steps() {
        run(|program| {
            let process = program.process();
            let (reader, _) = program.pipe(0);
            let file = process.descriptors.lock().get(reader).unwrap().clone();
            let files = alloc::vec![file.clone(); 2 * CLOSED_AT_ONCE];
            let mut left = UnreceivedFiles { files, owner: process.id, _under_way: None, _charge: None };
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
