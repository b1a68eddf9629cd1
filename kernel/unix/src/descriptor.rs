//! Descriptor tables: small numbers for open files.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::Errno;

use crate::file::OpenFile;

/// Descriptors that a process can have (Linux's default `RLIMIT_NOFILE` is 1,024; servers raise it, so the limit here is
/// what a server would ask for).
pub const MAXIMUM_DESCRIPTORS: usize = 16384;

#[derive(Clone)]
struct Entry {
    file: Arc<OpenFile>,
    close_on_execute: bool,
}

/// The open files of a process.
#[derive(Clone, Default)]
pub struct Descriptors {
    entries: Vec<Option<Entry>>,
    /// No descriptor below this one is free.
    lowest_free: usize,
}

impl Descriptors {
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
        if least >= MAXIMUM_DESCRIPTORS {
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
        if at >= MAXIMUM_DESCRIPTORS {
            return Err(beyond);
        }
        if at >= self.entries.len() {
            self.entries.try_reserve(at + 1 - self.entries.len()).map_err(|_| Errno::ENOMEM)?;
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

    /// Bytes of kernel memory that go with the files. A file that several descriptors or processes share is shared between
    /// them.
    pub fn memory(&self) -> usize {
        let files = self.entries.iter().flatten().map(|entry| &entry.file);
        let shares = files.map(|file| file.memory() / Arc::strong_count(file).max(1));
        self.entries.capacity() * size_of::<Option<Entry>>() + shares.sum::<usize>()
    }

    /// Takes out the next file, from `*at` on, that `execve` closes; advances `*at` beyond it. One at a time, because a list
    /// of them would need memory when nothing may fail any more.
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
