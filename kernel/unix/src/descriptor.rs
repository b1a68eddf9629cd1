//! Descriptor tables: small numbers for open files.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::Errno;

use crate::accounts::{Account, Charge, Resource};
use crate::file::OpenFile;

/// Descriptors that a process can have, and what it may have unless it sets another limit (Linux's default
/// `RLIMIT_NOFILE` is 1,024; servers raise it, so the limit here is what a server would ask for).
pub const MAXIMUM_DESCRIPTORS: usize = 16384;

struct Entry {
    file: Arc<OpenFile>,
    close_on_execute: bool,
}

/// Entries that a table has room for at least.
const SMALLEST: usize = 16;

/// The open files of a process.
pub struct Descriptors {
    entries: Vec<Option<Entry>>,
    /// No descriptor below this one is free.
    lowest_free: usize,
    /// For the entries.
    charge: Charge,
}

impl Descriptors {
    /// None, of a process with this account.
    pub fn new(account: &Arc<Account>) -> Descriptors {
        Descriptors { entries: Vec::new(), lowest_free: 0, charge: account.nothing(Resource::Memory) }
    }

    /// One more than the largest descriptor that there may be.
    fn limit(&self) -> usize {
        self.charge.account().descriptors().min(MAXIMUM_DESCRIPTORS)
    }

    /// Takes all of them out. The caller drops them when it holds no lock.
    #[must_use]
    pub fn take(&mut self) -> Descriptors {
        let none = Descriptors::new(self.charge.account());
        core::mem::replace(self, none)
    }

    /// The file behind a descriptor; `EBADF` if there is none.
    pub fn get(&self, descriptor: usize) -> Result<&Arc<OpenFile>, Errno> {
        match self.entries.get(descriptor) {
            Some(Some(entry)) => Ok(&entry.file),
            _ => Err(Errno::EBADF),
        }
    }

    /// Gives a file the lowest free descriptor that is at least `least`; `EMFILE` if there is none, `EINVAL` if `least`
    /// is beyond the limit.
    pub fn add(&mut self, file: Arc<OpenFile>, close_on_execute: bool, least: usize) -> Result<usize, Errno> {
        Ok(self.vacancy(least)?.fill(file, close_on_execute))
    }

    /// The lowest free descriptor that is at least `least`, with memory for its entry, for callers that must know that
    /// there is one before they take the file from somewhere. Errors are those of [`add`](Self::add).
    pub fn vacancy(&mut self, least: usize) -> Result<Vacancy<'_>, Errno> {
        if least >= self.limit() {
            return Err(Errno::EINVAL);
        }
        let mut at = least.max(self.lowest_free);
        while self.entries.get(at).is_some_and(Option::is_some) {
            at += 1;
        }
        self.make_room(at, Errno::EMFILE)?;
        Ok(Vacancy { descriptors: self, at, least })
    }

    /// Gives a file this descriptor; gives back the file that had it.
    pub fn replace(
        &mut self,
        at: usize,
        file: Arc<OpenFile>,
        close_on_execute: bool,
    ) -> Result<Option<Arc<OpenFile>>, Errno> {
        self.make_room(at, Errno::EBADF)?;
        let old = self.entries[at].replace(Entry { file, close_on_execute });
        Ok(old.map(|entry| entry.file))
    }

    /// Makes the table long enough for this descriptor; `beyond` if it is beyond the limit.
    fn make_room(&mut self, at: usize, beyond: Errno) -> Result<(), Errno> {
        // Also where the table is long enough: the limit may have been lowered.
        if at >= self.limit() {
            return Err(beyond);
        }
        if at >= self.entries.len() {
            let room = (at + 1).next_power_of_two().max(SMALLEST);
            if room > self.entries.capacity() {
                self.charge.resize(room * size_of::<Option<Entry>>())?;
                self.entries.try_reserve_exact(room - self.entries.len()).map_err(|_| Errno::ENOMEM)?;
            }
            self.entries.resize_with(at + 1, || None);
        }
        Ok(())
    }

    /// Takes a descriptor away. The caller drops the file when it holds no lock.
    pub fn remove(&mut self, descriptor: usize) -> Result<Arc<OpenFile>, Errno> {
        let entry = self.entries.get_mut(descriptor).and_then(Option::take).ok_or(Errno::EBADF)?;
        self.lowest_free = self.lowest_free.min(descriptor);
        Ok(entry.file)
    }

    /// Whether `execve` closes the descriptor.
    pub fn closes_on_execute(&self, descriptor: usize) -> Result<bool, Errno> {
        match self.entries.get(descriptor) {
            Some(Some(entry)) => Ok(entry.close_on_execute),
            _ => Err(Errno::EBADF),
        }
    }

    /// Sets whether `execve` closes the descriptor.
    pub fn set_close_on_execute(&mut self, descriptor: usize, close: bool) -> Result<(), Errno> {
        match self.entries.get_mut(descriptor) {
            Some(Some(entry)) => {
                entry.close_on_execute = close;
                Ok(())
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// Bytes of files in memory that would be free if these descriptors were closed. Each of several that lead to
    /// one open file answers for its share.
    pub fn memory_of_files(&self) -> usize {
        let files = self.entries.iter().flatten().map(|entry| &entry.file);
        files.map(|file| file.memory_if_closed() / Arc::strong_count(file).max(1)).sum()
    }

    /// All files, each taken out; those of several descriptors several times.
    pub fn into_files(self) -> impl Iterator<Item = Arc<OpenFile>> {
        let Descriptors { entries, charge, .. } = self;
        entries.into_iter().flatten().map(move |entry| {
            // For the table, which is there as long as there are entries.
            let _ = &charge;
            entry.file
        })
    }

    /// Takes out the next file, from `*at` on, that `execve` closes; advances `*at` beyond it. One at a time, because a
    /// list of them would need memory when nothing may fail any more.
    pub fn take_closing(&mut self, at: &mut usize) -> Option<Arc<OpenFile>> {
        while let Some(slot) = self.entries.get_mut(*at) {
            *at += 1;
            if let Some(entry) = slot.take_if(|entry| entry.close_on_execute) {
                self.lowest_free = self.lowest_free.min(*at - 1);
                return Some(entry.file);
            }
        }
        None
    }
}

/// A free descriptor of a table, which stays free as long as this borrows the table.
pub struct Vacancy<'a> {
    descriptors: &'a mut Descriptors,
    at: usize,
    least: usize,
}

impl Vacancy<'_> {
    /// Gives the descriptor to a file. Cannot fail.
    pub fn fill(self, file: Arc<OpenFile>, close_on_execute: bool) -> usize {
        let Vacancy { descriptors, at, least } = self;
        descriptors.entries[at] = Some(Entry { file, close_on_execute });
        if least <= descriptors.lowest_free {
            descriptors.lowest_free = at + 1;
        }
        at
    }
}
