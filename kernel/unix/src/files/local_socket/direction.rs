//! The contents of an inbox: a queue of bytes, and the list of records that these belong to.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use abi_unix::Errno;
use waiters::Waiters;

use super::connecting::Listening;
use super::{CAPACITY, FILES, MOST_MESSAGES, sockets_among};
use crate::files::byte_queue::ByteQueue;
use crate::files::carriers;
use crate::files::local_name::LocalName;
use crate::files::sent_files::SentFiles;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{Caller, Credentials, UserBuffer};

/// Records for which an empty direction keeps room.
const KEPT_RECORDS: usize = 16;

/// The contents of an inbox, and those that wait for them and for room.
pub(super) struct Direction {
    pub(super) queue: ByteQueue,
    pub(super) records: VecDeque<QueuedMessage>,
    /// Number of records that were there before these.
    pub(super) before: u64,
    /// Number of files in the records.
    pub(super) files: usize,
    /// Charge for the queue's buffer and the list of records.
    pub(super) charge: Charge,
    pub(super) readers: Waiters,
    pub(super) writers: Waiters,
    /// Nothing can be sent any more.
    pub(super) is_shut: bool,
    /// A receiver that finds nothing has come to the end.
    pub(super) is_ended: bool,
    /// The receiving socket is open.
    pub(super) has_receiver: bool,
    /// The receiving socket waits in a backlog.
    pub(super) awaits_acceptance: bool,
    /// The records are connections, of a socket that listens.
    pub(super) listening: Option<Listening>,
}

/// A message in a queue: the number of its bytes there, its files and its sender.
#[derive(Default)]
pub(super) struct QueuedMessage {
    /// The bytes that are left of it.
    pub(super) length: usize,
    /// The process that has sent it.
    pub(super) process: Credentials,
    /// The files that came with it, until they are received.
    pub(super) files: Option<SentFiles>,
    /// The name of the socket that a message came from; of a stream it is the peer's.
    pub(super) sender: Option<Arc<LocalName>>,
}

impl Direction {
    pub(super) fn new(account: &Arc<Account>) -> Direction {
        Direction {
            queue: ByteQueue::new(),
            records: VecDeque::new(),
            before: 0,
            files: 0,
            charge: account.nothing(Resource::Memory),
            readers: Waiters::new(),
            writers: Waiters::new(),
            is_shut: false,
            is_ended: false,
            has_receiver: true,
            awaits_acceptance: false,
            listening: None,
        }
    }

    /// Returns the bytes of kernel memory of its contents, with room for this many records.
    fn memory_with(&self, more: usize, records: usize) -> usize {
        self.queue.memory_with(more, CAPACITY) + records * size_of::<QueuedMessage>()
    }

    /// Makes room for `more` bytes and one more record. `ENOMEM`; nothing has changed then.
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), Errno> {
        let room = self.records.capacity();
        let needs_record = self.records.len() == room;
        if !needs_record && !self.queue.would_grow(more, CAPACITY) {
            return Ok(());
        }
        let records = if needs_record { (room * 2).max(4) } else { room };
        self.charge.account().admit()?;
        self.charge.resize(self.memory_with(more, records))?;
        let reserved = self.queue.reserve(more, CAPACITY).and_then(|()| match needs_record {
            true => self.records.try_reserve_exact(records - room).map_err(|_| Errno::ENOMEM),
            false => Ok(()),
        });
        if reserved.is_err() {
            self.settle();
        }
        reserved
    }

    /// Gives the charge back that is not needed any more.
    pub(super) fn settle(&mut self) {
        let memory = self.memory_with(0, self.records.capacity());
        self.charge.shrink_to(memory);
    }

    /// Has this account pay for the contents from now on, and for those that are there. The one before goes on if that
    /// is too much for it.
    pub(super) fn has_payer(&mut self, account: &Arc<Account>) {
        let mut charge = account.nothing(Resource::Memory);
        if charge.resize(self.charge.amount()).is_ok() {
            self.charge = charge;
        }
    }

    /// Frees what an empty queue does not keep.
    pub(super) fn shrink(&mut self) {
        if self.records.is_empty() && self.records.capacity() > KEPT_RECORDS {
            self.records = VecDeque::new();
        }
        self.settle();
    }

    /// Returns whether there is room for these bytes, of a stream for some of them, and for files if there are any.
    pub(super) fn has_room(&self, is_stream: bool, length: usize, has_files: bool) -> bool {
        let room = CAPACITY - self.queue.len();
        let is_enough = if is_stream { room > 0 } else { length <= room && self.records.len() < MOST_MESSAGES };
        is_enough && (!has_files || self.files < FILES)
    }

    /// Takes the first record.
    pub(super) fn pop_record(&mut self) -> Option<QueuedMessage> {
        let record = self.records.pop_front()?;
        self.before += 1;
        Some(record)
    }

    /// Copies `count` bytes from a program's buffers, from `from` bytes on, to the end of the queue, which has room for
    /// them. None are added if the program has no memory there.
    pub(super) fn copy_in(
        &mut self,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        from: usize,
        count: usize,
    ) -> Result<(), Errno> {
        let (mut before, mut done) = (0, 0);
        for buffer in buffers {
            let mut part = (from + done).saturating_sub(before).min(buffer.len());
            before += buffer.len();
            while part < buffer.len() && done < count {
                let room = self.queue.back();
                let length = room.len().min(buffer.len() - part).min(count - done);
                if let Err(error) = caller.copy_in(buffer.address() + part, &mut room[..length]) {
                    self.queue.retract(done);
                    return Err(error);
                }
                self.queue.produce(length);
                part += length;
                done += length;
            }
        }
        Ok(())
    }

    /// Copies `count` bytes, beginning with the byte `from`, to a program's buffers, from `to` bytes on. Returns the
    /// number of bytes that were copied before an address that is none; `EFAULT` if there are none.
    pub(super) fn copy_out(
        &self,
        caller: &dyn Caller,
        (buffers, to): (&[UserBuffer], usize),
        from: usize,
        count: usize,
    ) -> Result<usize, Errno> {
        let (first, second) = self.queue.pieces();
        let second = &second[from.saturating_sub(first.len())..];
        let first = &first[from.min(first.len())..];
        let (mut before, mut done) = (0, 0);
        for buffer in buffers {
            let mut part = (to + done).saturating_sub(before).min(buffer.len());
            before += buffer.len();
            while part < buffer.len() && done < count {
                let piece = if done < first.len() { &first[done..] } else { &second[done - first.len()..] };
                let length = piece.len().min(buffer.len() - part).min(count - done);
                match caller.copy_out(buffer.address() + part, &piece[..length]) {
                    Ok(()) => {}
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => return Ok(done),
                }
                part += length;
                done += length;
            }
        }
        Ok(done)
    }

    /// Returns the number of bytes that one call may give of a stream, and the index of the record whose files it
    /// gives. All are of one sending process if the caller asks for that.
    pub(super) fn stream_run(&self, space: usize, is_of_one_process: bool) -> (usize, Option<usize>) {
        let mut count = 0;
        let first = self.records.front().map_or(Credentials::NONE, |record| record.process);
        for (index, record) in self.records.iter().enumerate() {
            if count == space || is_of_one_process && record.process != first {
                break;
            }
            count += record.length.min(space - count);
            if record.files.is_some() {
                return (count, Some(index));
            }
        }
        (count, None)
    }

    /// Copies the files of this record, if it has any.
    pub(super) fn copy_files(&self, record: Option<usize>, caller: &dyn Caller) -> Result<Option<SentFiles>, Errno> {
        let Some(files) = record.and_then(|index| self.records.get(index)?.files.as_ref()) else { return Ok(None) };
        let copy = files.copy(caller)?;
        sockets_among(&copy).for_each(|socket| carriers::is_seen(&*socket.inbox));
        Ok(Some(copy))
    }

    /// Removes bytes of a stream; returns the files of the last record that they belong to.
    pub(super) fn consume_stream(&mut self, count: usize) -> Option<SentFiles> {
        self.queue.consume(count);
        let (mut left, mut files) = (count, None);
        while let Some(record) = self.records.front_mut().filter(|_| left > 0) {
            let part = record.length.min(left);
            record.length -= part;
            left -= part;
            files = record.files.take();
            if record.length == 0 {
                self.pop_record();
            }
        }
        files
    }

    /// Removes the first message.
    pub(super) fn consume_message(&mut self) -> QueuedMessage {
        let record = self.pop_record().unwrap_or_default();
        self.queue.consume(record.length);
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    /// A run of a stream ends with the record that has files, and before another process's bytes if that is asked for.
    #[test]
    fn a_stream_is_cut_at_files_and_at_senders() {
        run(|program| {
            let process = program.process();
            let mut direction = Direction::new(&process.account);
            let (reader, _) = program.pipe(0);
            let file = process.descriptors.lock().get(reader).unwrap().clone();
            for (length, process_number) in [(3, 1), (4, 1), (5, 2)] {
                let files = (length == 4).then(|| SentFiles::new(alloc::vec![file.clone()], &*process).unwrap());
                let sender = Credentials { process: process_number, user: 0, group: 0 };
                direction.records.push_back(QueuedMessage { length, process: sender, files, sender: None });
            }
            assert_eq!(direction.stream_run(100, false), (7, Some(1)));
            assert_eq!(direction.stream_run(7, true), (7, Some(1)));
            assert_eq!(direction.stream_run(2, true), (2, None));
            direction.reserve(12).unwrap();
            let buffer = UserBuffer::new(program.store(b"abcdefghijkl"), 12).unwrap();
            direction.copy_in(&*process, &[buffer], 0, 12).unwrap();
            assert!(direction.consume_stream(3).is_none());
            assert!(direction.consume_stream(2).is_some(), "the files come with the first byte");
            assert!(direction.consume_stream(2).is_none());
            assert_eq!((direction.before, direction.stream_run(100, true)), (2, (5, None)));
            let place = program.place(8);
            let out = UserBuffer::new(place, 8).unwrap();
            assert_eq!(direction.copy_out(&*process, (&[out], 1), 2, 3), Ok(3));
            assert_eq!(program.read(place + 1, 3), b"jkl");
            let bad = UserBuffer::new(0x1000, 8).unwrap();
            assert_eq!(direction.copy_out(&*process, (&[bad], 0), 0, 3), Err(Errno::EFAULT));
        });
    }

    /// Contents that are there when another account begins to pay are charged to that one, and to one of both in any
    /// case.
    #[test]
    fn contents_are_charged_when_another_pays() {
        run(|program| {
            let process = program.process();
            let other = Account::of_the_first();
            let (before, of_other) = (process.account.used(Resource::Memory), other.used(Resource::Memory));
            let mut direction = Direction::new(&process.account);
            direction.reserve(1000).unwrap();
            let memory = direction.memory_with(0, direction.records.capacity());
            direction.has_payer(&other);
            assert_eq!(process.account.used(Resource::Memory), before);
            assert_eq!(other.used(Resource::Memory), of_other + memory);
            drop(direction);
            assert_eq!(other.used(Resource::Memory), of_other);
        });
    }

    /// A failed copy leaves the queue as it was, and memory goes back when the last record is gone.
    #[test]
    fn what_is_reserved_is_charged_and_given_back() {
        run(|program| {
            let process = program.process();
            let before = process.account.used(Resource::Memory);
            let mut direction = Direction::new(&process.account);
            direction.reserve(1000).unwrap();
            let charged = process.account.used(Resource::Memory) - before;
            assert_eq!(charged, direction.memory_with(0, direction.records.capacity()));
            let bad = UserBuffer::new(0x1000, 1000).unwrap();
            assert_eq!(direction.copy_in(&*process, &[bad], 0, 1000), Err(Errno::EFAULT));
            assert_eq!(direction.queue.len(), 0);
            for _ in 0..2 * KEPT_RECORDS {
                direction.reserve(0).unwrap();
                direction.records.push_back(QueuedMessage::default());
            }
            while direction.pop_record().is_some() {}
            direction.shrink();
            assert_eq!(direction.records.capacity(), 0);
            drop(direction);
            assert_eq!(process.account.used(Resource::Memory), before);
        });
    }
}
