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
        if least >= MAXIMUM_DESCRIPTORS {
            return Err(Errno::EINVAL);
        }
        let mut at = least.max(self.lowest_free);
        while self.entries.get(at).is_some_and(Option::is_some) {
            at += 1;
        }
        self.place(at, Entry { file, close_on_execute }, Errno::EMFILE)?;
        if least <= self.lowest_free {
            self.lowest_free = at + 1;
        }
        Ok(at)
    }

    /// Gives a file this descriptor; gives back the file that had it.
    pub fn replace(
        &mut self,
        at: usize,
        file: Arc<OpenFile>,
        close_on_execute: bool,
    ) -> Result<Option<Arc<OpenFile>>, Errno> {
        let old = self.entries.get_mut(at).and_then(Option::take);
        self.place(at, Entry { file, close_on_execute }, Errno::EBADF)?;
        Ok(old.map(|entry| entry.file))
    }

    fn place(&mut self, at: usize, entry: Entry, beyond: Errno) -> Result<(), Errno> {
        if at >= MAXIMUM_DESCRIPTORS {
            return Err(beyond);
        }
        if at >= self.entries.len() {
            self.entries.try_reserve(at + 1 - self.entries.len()).map_err(|_| Errno::ENOMEM)?;
            self.entries.resize_with(at + 1, || None);
        }
        self.entries[at] = Some(entry);
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
