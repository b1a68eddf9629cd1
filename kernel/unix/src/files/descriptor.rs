//! Descriptor tables: small numbers for open files.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::task::{Poll, Waker};

use abi_unix::{Errno, types};
use filesystem::Access;
use spin::Mutex;

use crate::files::carriers::ReferenceToSent;
use crate::files::file::{self, AcceptedConnection, Attempt, OpenFile};
use crate::files::local_name::LONGEST_LOCAL_ADDRESS;
use crate::files::locks;
use crate::files::message::MessageSender;
use crate::files::message_queue;
use crate::process::accounts::{Account, Charge, MAXIMUM_DESCRIPTORS, Resource};
use crate::process::user::{AddressOut, Caller};

struct DescriptorEntry {
    file: Arc<OpenFile>,
    close_on_execute: bool,
}

/// Least number of entries for which a table has room.
const SMALLEST: usize = 16;

/// Entries of a piece of the table. Only the first piece begins smaller, so growing moves no more than one piece.
const PIECE: usize = 256;

/// Pieces whose files are weighed when memory is short.
const WEIGHED: usize = 64;

/// A part of a table.
#[derive(Default)]
struct TablePiece {
    /// Empty if no descriptor of the piece was used so far.
    entries: Vec<Option<DescriptorEntry>>,
    /// Number of open descriptors.
    used: usize,
}

/// The file of a descriptor that was closed. Dropping it, when no lock is held, frees the locks that the process has on
/// ranges of that file, whichever of its descriptors they were made with, and ends its notice of messages. If it is a
/// socket that only messages may hold from now on, it is looked after ([`carriers`](crate::files::carriers)).
#[must_use]
pub(crate) struct ClosedFile {
    file: Arc<OpenFile>,
    locker: Option<u32>,
    // Dropped after the file.
    _sent: Option<ReferenceToSent>,
}

impl ClosedFile {
    fn new(file: Arc<OpenFile>, locker: Option<u32>) -> ClosedFile {
        let _sent = file.reference_to_sent();
        ClosedFile { file, locker, _sent }
    }
}

impl Deref for ClosedFile {
    type Target = Arc<OpenFile>;

    fn deref(&self) -> &Arc<OpenFile> {
        &self.file
    }
}

impl Drop for ClosedFile {
    #[inline]
    fn drop(&mut self) {
        if let Some(process) = self.locker {
            locks::process_has_closed(&self.file, process);
            message_queue::process_has_closed(&self.file, process);
        }
    }
}

/// The open files of a process.
#[doc(alias = "files_struct")]
#[doc(alias = "fdtable")]
pub(crate) struct Descriptors {
    pieces: Vec<TablePiece>,
    /// No descriptor below this one is free.
    lowest_free: usize,
    /// Sockets that were in messages have been closed.
    has_closed_sent: bool,
    /// The process's number, once it has locked a range of a file, or was told of messages to a queue.
    locker: Option<u32>,
    /// Charge for the entries.
    charge: Charge,
}

impl Descriptors {
    /// Creates an empty table for a process with this account.
    pub(crate) fn new(account: &Arc<Account>) -> Descriptors {
        Descriptors {
            pieces: Vec::new(),
            lowest_free: 0,
            has_closed_sent: false,
            locker: None,
            charge: account.nothing(Resource::Memory),
        }
    }

    /// Returns one more than the largest descriptor allowed.
    fn limit(&self) -> usize {
        self.charge.account().descriptors().min(MAXIMUM_DESCRIPTORS)
    }

    /// Returns whether sockets that were in messages have been closed, one by one.
    pub(crate) fn has_closed_sent(&self) -> bool {
        self.has_closed_sent
    }

    /// Takes all descriptors out. The caller drops them when it holds no lock.
    #[must_use]
    pub(crate) fn take(&mut self) -> Descriptors {
        let none = Descriptors::new(self.charge.account());
        core::mem::replace(self, none)
    }

    #[inline(always)]
    fn entry(&self, descriptor: usize) -> Option<&DescriptorEntry> {
        self.pieces.get(descriptor / PIECE)?.entries.get(descriptor % PIECE)?.as_ref()
    }

    fn entry_mut(&mut self, descriptor: usize) -> Option<&mut DescriptorEntry> {
        self.pieces.get_mut(descriptor / PIECE)?.entries.get_mut(descriptor % PIECE)?.as_mut()
    }

    /// Returns the file behind a descriptor; `EBADF` if there is none.
    pub(crate) fn get(&self, descriptor: usize) -> Result<&Arc<OpenFile>, Errno> {
        self.entry(descriptor).map(|entry| &entry.file).ok_or(Errno::EBADF)
    }

    /// Returns the file behind a descriptor, of which this process is about to lock a range, or of whose messages it is
    /// about to be told: until it closes a descriptor of it. `EBADF`.
    pub(crate) fn get_until_closed(&mut self, descriptor: usize, process: u32) -> Result<Arc<OpenFile>, Errno> {
        let file = self.get(descriptor)?.clone();
        self.locker = Some(process);
        Ok(file)
    }

    /// Returns the number of descriptors for which there are entries: none behind them is open.
    pub(crate) fn end(&self) -> usize {
        self.pieces.len() * PIECE
    }

    /// Returns the lowest open descriptor that is at least `least`.
    pub(crate) fn next_open(&self, least: usize) -> Option<usize> {
        let mut at = least;
        while let Some(piece) = self.pieces.get(at / PIECE) {
            let end = (at / PIECE + 1) * PIECE;
            if piece.used > 0 {
                let open = piece.entries.iter().zip(end - PIECE..).skip(at % PIECE).find(|(entry, _)| entry.is_some());
                if let Some((_, descriptor)) = open {
                    return Some(descriptor);
                }
            }
            at = end;
        }
        None
    }

    /// Gives a file the lowest free descriptor that is at least `least`; `EMFILE` if there is none, `EINVAL` if `least`
    /// is beyond the limit.
    pub(crate) fn add(&mut self, file: Arc<OpenFile>, close_on_execute: bool, least: usize) -> Result<usize, Errno> {
        Ok(self.vacancy(least)?.fill(file, close_on_execute))
    }

    /// Gives each of these files the lowest free descriptor, and passes that on, as long as there is one.
    pub(crate) fn add_many(&mut self, files: &[Arc<OpenFile>], close_on_execute: bool, mut pass: impl FnMut(usize)) {
        let limit = self.limit();
        for file in files {
            let Ok(vacancy) = self.vacancy_below(limit, 0) else { break };
            pass(vacancy.fill(file.clone(), close_on_execute));
        }
    }

    /// Finds the lowest free descriptor that is at least `least`, and makes room for its entry, for callers that need
    /// both before they take the file from somewhere. Errors are those of [`add`](Self::add).
    pub(crate) fn vacancy(&mut self, least: usize) -> Result<FreeDescriptor<'_>, Errno> {
        let limit = self.limit();
        if least >= limit {
            return Err(if least == 0 { Errno::EMFILE } else { Errno::EINVAL });
        }
        self.vacancy_below(limit, least)
    }

    #[inline(always)]
    fn vacancy_below(&mut self, limit: usize, least: usize) -> Result<FreeDescriptor<'_>, Errno> {
        let mut at = least.max(self.lowest_free);
        // Pieces whose descriptors are all open are skipped.
        while let Some(piece) = self.pieces.get(at / PIECE) {
            if piece.used == PIECE {
                at = (at / PIECE + 1) * PIECE;
            } else if piece.entries.get(at % PIECE).is_some_and(Option::is_some) {
                at += 1;
            } else {
                break;
            }
        }
        // Looked at even if there is room: the limit may have been lowered.
        if at >= limit {
            return Err(Errno::EMFILE);
        }
        self.make_room(at)?;
        Ok(FreeDescriptor { descriptors: self, at, least })
    }

    /// Gives a file this descriptor; returns the file that had it.
    pub(crate) fn replace(
        &mut self,
        at: usize,
        file: Arc<OpenFile>,
        close_on_execute: bool,
    ) -> Result<Option<ClosedFile>, Errno> {
        if at >= self.limit() {
            return Err(Errno::EBADF);
        }
        self.make_room(at)?;
        let old = self.put(at, DescriptorEntry { file, close_on_execute });
        Ok(old.map(|file| self.closed(file)))
    }

    fn closed(&mut self, file: Arc<OpenFile>) -> ClosedFile {
        self.has_closed_sent |= file.was_sent();
        ClosedFile::new(file, self.locker)
    }

    /// Makes room for the entry of this descriptor, whatever the limit is.
    #[inline]
    fn make_room(&mut self, at: usize) -> Result<(), Errno> {
        match self.pieces.get(at / PIECE) {
            Some(piece) if at % PIECE < piece.entries.len() => Ok(()),
            _ => self.grow(at),
        }
    }

    #[cold]
    fn grow(&mut self, at: usize) -> Result<(), Errno> {
        let number = at / PIECE;
        let room = if at < PIECE { (at + 1).next_power_of_two().max(SMALLEST) } else { PIECE };
        let before = self.pieces.get(number).map_or(0, |piece| piece.entries.len());
        let pieces = (number + 1).saturating_sub(self.pieces.len());
        let more = pieces * size_of::<TablePiece>() + (room - before) * size_of::<Option<DescriptorEntry>>();
        let charge = self.charge.account().charge(Resource::Memory, more)?;
        self.pieces.try_reserve(pieces).map_err(|_| Errno::ENOMEM)?;
        let mut entries = Vec::new();
        entries.try_reserve_exact(room).map_err(|_| Errno::ENOMEM)?;
        self.charge.merge(charge);
        self.pieces.resize_with(self.pieces.len().max(number + 1), TablePiece::default);
        entries.append(&mut self.pieces[number].entries);
        entries.resize_with(room, || None);
        self.pieces[number].entries = entries;
        Ok(())
    }

    /// Puts an entry where there is [room](Self::make_room); returns the file that was there.
    fn put(&mut self, at: usize, entry: DescriptorEntry) -> Option<Arc<OpenFile>> {
        let piece = &mut self.pieces[at / PIECE];
        let old = piece.entries[at % PIECE].replace(entry);
        piece.used += usize::from(old.is_none());
        old.map(|entry| entry.file)
    }

    /// Removes a descriptor. The caller drops the file when it holds no lock.
    pub(crate) fn remove(&mut self, descriptor: usize) -> Result<ClosedFile, Errno> {
        let piece = self.pieces.get_mut(descriptor / PIECE).ok_or(Errno::EBADF)?;
        let entry = piece.entries.get_mut(descriptor % PIECE).and_then(Option::take).ok_or(Errno::EBADF)?;
        piece.used -= 1;
        self.lowest_free = self.lowest_free.min(descriptor);
        Ok(self.closed(entry.file))
    }

    /// Returns whether `execve` closes the descriptor.
    pub(crate) fn closes_on_execute(&self, descriptor: usize) -> Result<bool, Errno> {
        self.entry(descriptor).map(|entry| entry.close_on_execute).ok_or(Errno::EBADF)
    }

    /// Sets whether `execve` closes the descriptor.
    pub(crate) fn set_close_on_execute(&mut self, descriptor: usize, close: bool) -> Result<(), Errno> {
        self.entry_mut(descriptor).ok_or(Errno::EBADF)?.close_on_execute = close;
        Ok(())
    }

    /// Returns the bytes that would be free if these descriptors were closed and that are not charged to `account`.
    /// Each of several descriptors for one open file counts its share. The first thousands are enough to tell processes
    /// apart.
    pub(crate) fn memory_of_files(&self, account: &Account) -> usize {
        let files =
            self.pieces.iter().take(WEIGHED).flat_map(|piece| &piece.entries).flatten().map(|entry| &entry.file);
        files.map(|file| file.memory_if_closed(account) / Arc::strong_count(file).max(1)).sum()
    }

    /// Takes all files out; a file of several descriptors comes several times. `None` comes behind the files of each
    /// piece: thousands of descriptors may have been closed before.
    pub(crate) fn into_files(self) -> impl Iterator<Item = Option<ClosedFile>> {
        let Descriptors { pieces, charge, locker, .. } = self;
        pieces.into_iter().flat_map(move |piece| {
            // The table's charge lasts as long as there are entries.
            let _ = &charge;
            let files = piece.entries.into_iter().flatten().map(move |entry| ClosedFile::new(entry.file, locker));
            files.map(Some).chain([None])
        })
    }

    /// Gives another table the files of this one from the descriptor `at` on, as far as one piece goes, which is a
    /// step; returns the descriptor to go on with, `None` at the end. `ENOMEM`.
    #[doc(alias = "dup_fd")]
    pub(crate) fn copy_part(&self, other: &mut Descriptors, at: usize) -> Result<Option<usize>, Errno> {
        let first = at / PIECE * PIECE;
        let Some(piece) = self.pieces.get(at / PIECE) else { return Ok(None) };
        for (entry, number) in piece.entries.iter().zip(first..) {
            if let Some(DescriptorEntry { file, close_on_execute }) = entry {
                // The limit may be lower than a descriptor that was opened before.
                other.make_room(number)?;
                let entry = DescriptorEntry { file: file.clone(), close_on_execute: *close_on_execute };
                let replaced = other.put(number, entry);
                debug_assert!(replaced.is_none());
            }
        }
        Ok(Some(first + PIECE))
    }

    /// Takes the next file out whose descriptor is at least `*at` and at most `last`, and advances `*at` beyond it.
    /// Looks at one piece, which is a step: `Some(None)` if that has none. `None` at the end.
    pub(crate) fn take_up_to(&mut self, at: &mut usize, last: usize) -> Option<Option<ClosedFile>> {
        let piece = self.pieces.get(*at / PIECE)?;
        if *at > last {
            return None;
        }
        let end = (*at / PIECE + 1) * PIECE;
        let open = piece.entries.iter().zip(end - PIECE..).skip(*at % PIECE);
        let found = open.filter(|(entry, _)| entry.is_some()).map(|(_, descriptor)| descriptor).next();
        let Some(descriptor) = found.filter(|descriptor| *descriptor <= last) else {
            *at = end;
            return Some(None);
        };
        *at = descriptor + 1;
        Some(self.remove(descriptor).ok())
    }

    /// Lets `execve` close the open descriptors of the piece from `*at` on that are at most `last`, and advances `*at`
    /// beyond the piece. `None` at the end.
    pub(crate) fn mark_up_to(&mut self, at: &mut usize, last: usize) -> Option<()> {
        let piece = self.pieces.get_mut(*at / PIECE)?;
        if *at > last {
            return None;
        }
        let end = (*at / PIECE + 1) * PIECE;
        for (entry, descriptor) in piece.entries.iter_mut().zip(end - PIECE..).skip(*at % PIECE) {
            if let Some(entry) = entry.as_mut().filter(|_| descriptor <= last) {
                entry.close_on_execute = true;
            }
        }
        *at = end;
        Some(())
    }

    /// Finds, from `*at` on, the next file that `execve` closes, takes it out, and advances `*at` beyond it. Takes
    /// one file at a time, because a list of them would need memory after the point at which `execve` may still fail.
    /// Looks at one piece, which is a step: `Some(None)` if that has no such file. `None` at the end.
    pub(crate) fn take_closing(&mut self, at: &mut usize) -> Option<Option<ClosedFile>> {
        let piece = self.pieces.get_mut(*at / PIECE)?;
        let (first, end) = (*at % PIECE, (*at / PIECE + 1) * PIECE);
        for (slot, descriptor) in piece.entries.iter_mut().zip(end - PIECE..).skip(first) {
            if let Some(entry) = slot.take_if(|entry| entry.close_on_execute) {
                piece.used -= 1;
                self.lowest_free = self.lowest_free.min(descriptor);
                *at = descriptor + 1;
                return Some(Some(self.closed(entry.file)));
            }
        }
        *at = end;
        Some(None)
    }
}

/// A free descriptor of a table, which stays free as long as this borrows the table.
pub(crate) struct FreeDescriptor<'a> {
    descriptors: &'a mut Descriptors,
    at: usize,
    least: usize,
}

impl FreeDescriptor<'_> {
    /// Gives the descriptor to a file. Cannot fail.
    pub(crate) fn fill(self, file: Arc<OpenFile>, close_on_execute: bool) -> usize {
        let FreeDescriptor { descriptors, at, least } = self;
        descriptors.put(at, DescriptorEntry { file, close_on_execute });
        if least <= descriptors.lowest_free {
            descriptors.lowest_free = at + 1;
        }
        at
    }
}

/// Tries `accept`: makes a descriptor of a listening socket's next connection.
///
/// The descriptor and the memory are reserved first. A connection taken from the queue could not be put back, so it
/// must stay there while it has no descriptor. As on Linux, `EMFILE` is the answer even if no connection waits.
pub(crate) fn accept(
    descriptors: &Mutex<Descriptors>,
    caller: &dyn Caller,
    listener: &OpenFile,
    address: Option<AddressOut>,
    flags: u32,
    waker: Option<&Waker>,
) -> Attempt {
    let mut descriptors = descriptors.lock();
    let vacancy = descriptors.vacancy(0)?;
    caller.account().admit()?;
    let charge = file::charge(caller.account())?;
    let (connection, from) = match listener.object().accept(caller, waker) {
        Poll::Ready(accepted) => accepted?,
        Poll::Pending => return Poll::Pending,
    };
    let is_non_blocking = flags & types::SOCK_NONBLOCK != 0;
    let file = match connection {
        AcceptedConnection::Made(object) => Arc::new(OpenFile::of(object, Access::ReadWrite, is_non_blocking, charge)),
        AcceptedConnection::Open(file) => {
            file.set_non_blocking(is_non_blocking);
            file
        }
    };
    listener.pass_time_limits_to(&file);
    if let Some(out) = address
        && let Err(error) = write_peer(caller, out, &from)
    {
        // As on Linux, a caller without room for the peer's address loses the connection. It is closed outside the
        // lock.
        drop(descriptors);
        return Poll::Ready(Err(error));
    }
    Poll::Ready(Ok(vacancy.fill(file, flags & types::SOCK_CLOEXEC != 0)))
}

/// Writes the address of the peer of a connection. As on Linux, that of one without a name is its family.
fn write_peer(caller: &dyn Caller, out: AddressOut, from: &MessageSender) -> Result<(), Errno> {
    let mut room = [0; LONGEST_LOCAL_ADDRESS];
    match from {
        MessageSender::Unnamed => out.write_bytes(caller, &types::AF_UNIX.to_le_bytes()),
        from => out.write_bytes(caller, from.write_to(&mut room)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use abi_unix::SystemCall;
    use abi_unix::types::control;
    use proptest::prelude::*;

    use super::*;
    use crate::files::event_counter::EventCounter;
    use crate::testing::run;

    fn file(account: &Arc<Account>) -> Arc<OpenFile> {
        let charge = account.nothing(Resource::Memory);
        Arc::new(OpenFile::new(EventCounter::new(0, false), Access::ReadWrite, false, charge))
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(usize, bool),
        Replace(usize, bool),
        Remove(usize),
        CloseOnExecute,
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = || prop_oneof![4 => 0..20usize, 2 => 250..260usize, 1 => 0..1100usize];
        prop_oneof![
            4 => (number(), any::<bool>()).prop_map(|(least, close)| Step::Add(least, close)),
            4 => Just(Step::Add(0, false)),
            2 => (number(), any::<bool>()).prop_map(|(at, close)| Step::Replace(at, close)),
            4 => number().prop_map(Step::Remove),
            1 => Just(Step::CloseOnExecute),
        ]
    }

    proptest! {
        #![proptest_config(property::cases(128))]

        /// The lowest free number is given, across the pieces of the table, and each number leads to its own file.
        #[test]
        fn behaves_as_a_map_of_numbers(steps in prop::collection::vec(step(), 0..120)) {
            let _guard = crate::testing::alone();
            let account = Account::of_the_first();
            let mut table = Descriptors::new(&account);
            let mut model: BTreeMap<usize, (Arc<OpenFile>, bool)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Add(least, close) => {
                        let expected = (least..).find(|number| !model.contains_key(number)).unwrap();
                        let new = file(&account);
                        prop_assert_eq!(table.add(new.clone(), close, least), Ok(expected));
                        model.insert(expected, (new, close));
                    }
                    Step::Replace(at, close) => {
                        let new = file(&account);
                        let old = table.replace(at, new.clone(), close).unwrap();
                        let before = model.insert(at, (new, close)).map(|(file, _)| file);
                        prop_assert_eq!(old.map(|file| Arc::as_ptr(&file)), before.map(|file| Arc::as_ptr(&file)));
                    }
                    Step::Remove(at) => {
                        let removed = table.remove(at).map(|file| Arc::as_ptr(&file));
                        let expected = model.remove(&at).map(|(file, _)| Arc::as_ptr(&file)).ok_or(Errno::EBADF);
                        prop_assert_eq!(removed, expected);
                    }
                    Step::CloseOnExecute => {
                        let mut at = 0;
                        let mut closed = Vec::new();
                        while let Some(found) = table.take_closing(&mut at) {
                            closed.extend(found.map(|file| Arc::as_ptr(&file)));
                        }
                        let expected: Vec<_> =
                            model.values().filter(|(_, close)| *close).map(|(file, _)| Arc::as_ptr(file)).collect();
                        prop_assert_eq!(closed, expected);
                        model.retain(|_, (_, close)| !*close);
                    }
                }
            }
            for number in 0..1200 {
                let found = table.get(number).map(Arc::as_ptr);
                prop_assert_eq!(found, model.get(&number).map(|(file, _)| Arc::as_ptr(file)).ok_or(Errno::EBADF));
                let closes = table.closes_on_execute(number);
                prop_assert_eq!(closes, model.get(&number).map(|(_, close)| *close).ok_or(Errno::EBADF));
                prop_assert_eq!(table.next_open(number), model.range(number..).next().map(|(number, _)| *number));
            }
            let left: Vec<_> = table.into_files().flatten().map(|file| Arc::as_ptr(&file)).collect();
            prop_assert_eq!(left, model.values().map(|(file, _)| Arc::as_ptr(file)).collect::<Vec<_>>());
            prop_assert_eq!(account.used(Resource::Memory), 0, "the table's memory was not given back");
        }
    }

    #[test]
    fn duplicates_share_their_position_and_flags_and_nothing_else() {
        run(|program| {
            let path = program.store(b"/tmp/shared\0");
            let first = program.call(SystemCall::Open, [0, path, 0o102, 0o644]).unwrap();
            let second = program.call(SystemCall::Duplicate, [first]).unwrap();
            program.write_to(first, b"abcdef").unwrap();
            assert_eq!(program.call(SystemCall::Seek, [second, 0, 1]), Ok(6), "one position");
            let set = |program: &mut crate::testing::Program, file: usize, command: u32, value: usize| {
                program.call(SystemCall::FileControl, [file, command as usize, value])
            };
            set(program, first, control::SETFD, 1).unwrap();
            assert_eq!(set(program, first, control::GETFD, 0), Ok(1));
            assert_eq!(set(program, second, control::GETFD, 0), Ok(0), "its own");
            set(program, first, control::SETFL, 0o4000).unwrap();
            assert_eq!(set(program, second, control::GETFL, 0), Ok(0o4002), "common");
            assert_eq!(set(program, first, control::DUPFD, 40), Ok(40));
            assert_eq!(set(program, first, control::DUPFD_CLOEXEC, 40), Ok(41));
            assert_eq!(set(program, 41, control::GETFD, 0), Ok(1));
            assert_eq!(set(program, first, control::DUPFD, MAXIMUM_DESCRIPTORS), Err(Errno::EINVAL));
            assert_eq!(set(program, first, 99, 0), Err(Errno::EINVAL));
            assert_eq!(set(program, 77, control::GETFD, 0), Err(Errno::EBADF));
            program.call(SystemCall::Unlink, [0, path, 0]).unwrap();
        });
    }

    #[test]
    fn dup3_closes_the_file_that_had_the_number() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let (other_reader, other_writer) = program.pipe(0);
            assert_eq!(program.call(SystemCall::DuplicateTo, [writer, other_writer, 0]), Ok(other_writer));
            assert_eq!(program.read_from(other_reader, 1), Ok(vec![]), "its last writer is gone");
            program.close(writer).unwrap();
            program.write_to(other_writer, b"x").unwrap();
            assert_eq!(program.read_from(reader, 1), Ok(b"x".to_vec()));
            for arguments in [[reader, reader, 0], [reader, 50, 1]] {
                assert_eq!(program.call(SystemCall::DuplicateTo, arguments), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::DuplicateTo, [writer, 50, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::DuplicateTo, [reader, usize::MAX, 0]), Err(Errno::EBADF));
            // The upper half of the register does not count.
            assert_eq!(program.close(reader | 1 << 32), Ok(0));
        });
    }
}
