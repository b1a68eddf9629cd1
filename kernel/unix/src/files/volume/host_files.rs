//! The files of a folder of the host, by the numbers that the volume knows them by.
//!
//! Another machine may change the folder at any time, so nothing of it is known for longer than a request: names are
//! looked up each time, bytes are read from the host and written to it at once. Only pages that are mapped are kept,
//! and those of a file that has changed are read again for the next mapping.
//!
//! # Numbers
//! A file has the number that the host tells, if that is short and no other file in use has it; else the next free one.
//! A file keeps its number, and the host holds the file, as long as it is in use.
//!
//! # Files without names
//! The host finds files by their paths, so a file in use is opened before it loses its last name; bytes are read and
//! written by that opening from then on, and its attributes are those of the moment before.

use abi_unix::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ext4::{Access, Attributes, Change, Entry, ListingPlace, NewFile, Replacement, Stamp, Unlinked, Usage, kind};
use shared_folder::{Channel, ChannelFailed, Error, Folder, Held, Opening};
use tables::Ordered;

use super::device::WaitsOnStack;
use super::{MountedVolume, ROOT};
use crate::files::host_folder::HostFolder;
use crate::process::user::LONGEST_PATH;

/// Numbers that are tried for a file.
const MOST_TRIES: u32 = 64;

/// Messages to the host and back, for which the volume's stack waits.
struct HostChannel<'a, W> {
    folder: &'static HostFolder,
    waits: &'a W,
}

impl<W: WaitsOnStack> Channel for HostChannel<'_, W> {
    fn most_bytes(&self) -> usize {
        virtio::LONGEST_MESSAGE
    }

    fn exchange(&mut self, message: &[u8], answer: &mut [u8]) -> Result<usize, ChannelFailed> {
        let mut exchange = self.folder.begin(message).map_err(|_| ChannelFailed)?;
        self.waits.wait(|waker| exchange.poll(answer, waker)).map_err(|_| ChannelFailed)
    }
}

/// A file that the host holds.
struct HostFile {
    /// The number that the host tells.
    number: u64,
    held: Held,
    /// It held once more and opened, and whether for writing too.
    open: Option<(Held, bool)>,
    /// Something was written to it since it was made lasting.
    was_written: bool,
    /// As the host told last.
    known: Attributes,
    /// It has lost its last name.
    is_nameless: bool,
}

/// Bytes that a file takes here as long as it is in use.
pub(super) const MEMORY_OF_A_FILE: usize = size_of::<(u64, HostFile)>();

/// The files of a folder of the host.
pub(super) struct HostFiles<'a, W> {
    folder: Folder<HostChannel<'a, W>>,
    shared: &'a Arc<MountedVolume>,
    files: Ordered<HostFile>,
    /// Files that the present request has found.
    touched: Vec<u32>,
    access: Access,
    usage: Usage,
}

fn errno_of(error: Error) -> Errno {
    match error {
        Error::Refused(reason) => u16::try_from(reason).ok().and_then(Errno::from_number),
        Error::Damaged | Error::Failed => None,
        Error::OutOfMemory => Some(Errno::ENOMEM),
    }
    .unwrap_or(Errno::EIO)
}

fn file_of(files: &Ordered<HostFile>, number: u32) -> Result<&HostFile, Errno> {
    files.get(number.into()).ok_or(Errno::EIO)
}

/// Returns a short number for one of the host.
fn short(number: u64) -> u32 {
    let short = (number ^ number >> 32) as u32;
    if short <= ROOT { short + 0x8000_0000 } else { short }
}

fn stamp((seconds, nanoseconds): (i64, u32)) -> Stamp {
    Stamp { seconds, nanoseconds }
}

impl<'a, W: WaitsOnStack> HostFiles<'a, W> {
    /// Begins to use a folder. `EIO` if its device does not speak the protocol.
    pub(super) fn mount(
        shared: &'a Arc<MountedVolume>,
        folder: &'static HostFolder,
        waits: &'a W,
        access: Access,
    ) -> Result<HostFiles<'a, W>, Errno> {
        let (folder, held, found) = Folder::begin(HostChannel { folder, waits }).map_err(errno_of)?;
        if !found.is_directory {
            return Err(Errno::ENOTDIR);
        }
        let top = HostFile {
            number: found.number,
            held,
            open: None,
            was_written: false,
            known: Attributes::default(),
            is_nameless: false,
        };
        let mut files = Ordered::default();
        files.insert(ROOT.into(), top).map_err(|_| Errno::ENOMEM)?;
        let (touched, usage) = (Vec::new(), Usage::default());
        let mut host = HostFiles { folder, shared, files, touched, access, usage };
        host.attributes(ROOT)?;
        host.look_at_usage();
        Ok(host)
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    fn look_at_usage(&mut self) {
        let Some(top) = self.files.get(ROOT.into()) else { return };
        if let Ok(sizes) = self.folder.sizes(&top.held) {
            self.usage = Usage { block_size: sizes.block_size.into(), blocks: sizes.blocks, inodes: sizes.files };
        }
    }

    fn require_changes(&self) -> Result<(), Errno> {
        if self.access == Access::Write { Ok(()) } else { Err(Errno::EROFS) }
    }

    /// Lets files go that the last request has found, and that nothing uses.
    pub(super) fn let_unused_go(&mut self) {
        while let Some(number) = self.touched.pop() {
            self.let_go(number);
        }
    }

    /// Lets a file go that nothing uses.
    fn let_go(&mut self, number: u32) {
        if number == ROOT || self.shared.used(number).is_some() {
            return;
        }
        let Some(file) = self.files.remove(number.into()) else { return };
        if let Some((open, _)) = file.open {
            self.folder.let_go(open);
        }
        self.folder.let_go(file.held);
    }

    /// Enters a file that the host holds; returns its number.
    fn enter(&mut self, held: Held, number: u64) -> Result<u32, Errno> {
        let first = short(number);
        if self.touched.try_reserve(1).is_err() {
            self.folder.let_go(held);
            return Err(Errno::ENOMEM);
        }
        for at in (0..MOST_TRIES).map(|turn| first.wrapping_add(turn)).filter(|at| *at > ROOT) {
            match self.files.get_mut(at.into()) {
                Some(known) if known.number == number && !known.is_nameless => {
                    // Another may have moved it: this is where it is now.
                    let before = core::mem::replace(&mut known.held, held);
                    self.folder.let_go(before);
                    self.touched.push(at);
                    return Ok(at);
                }
                Some(_) => {}
                None => {
                    let known = Attributes::default();
                    let file = HostFile { number, held, open: None, was_written: false, known, is_nameless: false };
                    self.files.insert(at.into(), file).map_err(|_| Errno::ENOMEM)?;
                    self.touched.push(at);
                    return Ok(at);
                }
            }
        }
        self.folder.let_go(held);
        Err(Errno::ENFILE)
    }

    /// Returns the attributes of a file.
    pub(super) fn attributes(&mut self, number: u32) -> Result<Attributes, Errno> {
        let Some(file) = self.files.get_mut(number.into()) else { return Err(Errno::EIO) };
        if file.is_nameless {
            return Ok(file.known);
        }
        let found = self.folder.attributes(&file.held).map_err(errno_of)?;
        let mode = (found.mode & 0xffff) as u16;
        // A file stays of its kind, and a link is no directory below.
        if file.known.mode != 0 && file.known.mode & kind::MASK != mode & kind::MASK {
            return Err(Errno::EIO);
        }
        let device = ((found.device >> 8 & 0xfff) as u32, (found.device & 0xff | found.device >> 12 & 0xf_ff00) as u32);
        file.known = Attributes {
            inode: number,
            mode,
            owner: found.owner,
            links: found.links.clamp(1, u16::MAX.into()) as u16,
            size: found.size,
            sectors: found.sectors,
            times: found.times.map(stamp),
            device,
        };
        Ok(file.known)
    }

    pub(super) fn look_up(&mut self, directory: u32, name: &[u8]) -> Result<Option<Attributes>, Errno> {
        let from = file_of(&self.files, directory)?;
        let (held, found) = match self.folder.walk(&from.held, name) {
            Ok(found) => found,
            Err(error) => {
                return match errno_of(error) {
                    Errno::ENOENT => Ok(None),
                    error => Err(error),
                };
            }
        };
        let number = self.enter(held, found.number)?;
        match self.attributes(number) {
            Ok(attributes) => Ok(Some(attributes)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn made(&mut self, directory: u32, name: &[u8]) -> Result<Attributes, Errno> {
        self.look_up(directory, name)?.ok_or(Errno::ENOENT)
    }

    pub(super) fn create(&mut self, directory: u32, name: &[u8], new: NewFile) -> Result<Attributes, Errno> {
        self.require_changes()?;
        let at = file_of(&self.files, directory)?;
        self.folder.create(&at.held, name, new.permissions.into(), new.owner.1).map_err(errno_of)?;
        self.made(directory, name)
    }

    pub(super) fn make_socket(&mut self, directory: u32, name: &[u8], new: NewFile) -> Result<Attributes, Errno> {
        self.require_changes()?;
        let (at, mode) = (file_of(&self.files, directory)?, u32::from(kind::SOCKET | new.permissions));
        self.folder.make_node(&at.held, name, mode, new.owner.1).map_err(errno_of)?;
        self.made(directory, name)
    }

    pub(super) fn make_directory(&mut self, directory: u32, name: &[u8], new: NewFile) -> Result<Attributes, Errno> {
        self.require_changes()?;
        let at = file_of(&self.files, directory)?;
        self.folder.make_directory(&at.held, name, new.permissions.into(), new.owner.1).map_err(errno_of)?;
        self.made(directory, name)
    }

    pub(super) fn make_symbolic_link(
        &mut self,
        directory: u32,
        name: &[u8],
        target: &[u8],
        owner: (u32, u32),
    ) -> Result<Attributes, Errno> {
        self.require_changes()?;
        let at = file_of(&self.files, directory)?;
        self.folder.make_link(&at.held, name, target, owner.1).map_err(errno_of)?;
        self.made(directory, name)
    }

    pub(super) fn link(&mut self, file: u32, directory: u32, name: &[u8]) -> Result<Attributes, Errno> {
        self.require_changes()?;
        let (file_held, at) = (file_of(&self.files, file)?, file_of(&self.files, directory)?);
        if file_held.is_nameless {
            return Err(Errno::ENOENT);
        }
        self.folder.link(&at.held, &file_held.held, name).map_err(errno_of)?;
        self.attributes(file)
    }

    /// Prepares a file for the loss of a name; returns its number, and whether that is its last one.
    fn prepare_loss(&mut self, directory: u32, name: &[u8]) -> Result<Option<(u32, bool)>, Errno> {
        let Some(found) = self.look_up(directory, name)? else { return Ok(None) };
        let is_last = found.is(kind::DIRECTORY) || found.links <= 1;
        if is_last && found.is(kind::REGULAR) && self.shared.used(found.inode).is_some() {
            // Without it, the bytes cannot be reached any more.
            let _ = self.opened(found.inode, false);
        }
        Ok(Some((found.inode, is_last)))
    }

    fn lose(&mut self, number: u32) {
        if let Some(file) = self.files.get_mut(number.into()) {
            file.is_nameless = true;
            file.known.links = 0;
        }
    }

    pub(super) fn unlink(&mut self, directory: u32, name: &[u8]) -> Result<Unlinked, Errno> {
        self.require_changes()?;
        let (inode, is_nameless) = self.prepare_loss(directory, name)?.ok_or(Errno::ENOENT)?;
        let at = file_of(&self.files, directory)?;
        self.folder.remove(&at.held, name, false).map_err(errno_of)?;
        if is_nameless {
            self.lose(inode);
        }
        Ok(Unlinked { inode, is_nameless })
    }

    pub(super) fn remove_directory(&mut self, directory: u32, name: &[u8]) -> Result<Option<u32>, Errno> {
        self.require_changes()?;
        let (inode, _) = self.prepare_loss(directory, name)?.ok_or(Errno::ENOENT)?;
        let at = file_of(&self.files, directory)?;
        self.folder.remove(&at.held, name, true).map_err(errno_of)?;
        self.lose(inode);
        Ok(Some(inode))
    }

    pub(super) fn rename(
        &mut self,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        replacement: Replacement,
    ) -> Result<Option<u32>, Errno> {
        self.require_changes()?;
        if replacement == Replacement::Exchange {
            return Err(Errno::EINVAL);
        }
        let moved = self.look_up(from.0, from.1)?.ok_or(Errno::ENOENT)?;
        let replaced = self.prepare_loss(to.0, to.1)?;
        if replaced.is_some() && replacement == Replacement::Refuse {
            return Err(Errno::EEXIST);
        }
        let sides = (file_of(&self.files, from.0)?, file_of(&self.files, to.0)?);
        self.folder.rename((&sides.0.held, from.1), (&sides.1.held, to.1)).map_err(errno_of)?;
        let nameless = replaced.filter(|(inode, is_last)| *is_last && *inode != moved.inode).map(|(inode, _)| inode);
        if let Some(nameless) = nameless {
            self.lose(nameless);
        }
        Ok(nameless)
    }

    /// Ends a file that nothing uses.
    pub(super) fn end_file(&mut self, number: u32) -> Result<bool, Errno> {
        self.let_go(number);
        Ok(true)
    }

    /// Opens a file, to write to it or not, if it is not; a directory is opened to be listed.
    fn opened(&mut self, number: u32, writes: bool) -> Result<(), Errno> {
        let file = file_of(&self.files, number)?;
        if file.open.as_ref().is_some_and(|(_, can_write)| *can_write || !writes) {
            return Ok(());
        }
        let held = self.folder.hold_again(&file.held).map_err(errno_of)?;
        let is_directory = file.known.is(kind::DIRECTORY);
        let ways: &[Opening] = match (is_directory, writes) {
            (true, _) => &[Opening::List],
            (false, true) => &[Opening::ReadWrite, Opening::Write],
            (false, false) if self.access == Access::Read => &[Opening::Read],
            // It may be written later, perhaps when it has no name any more.
            (false, false) => &[Opening::ReadWrite, Opening::Read],
        };
        let mut result = Err(Error::Failed);
        let mut way = Opening::Read;
        for next in ways {
            (result, way) = (self.folder.open(&held, *next), *next);
            if !matches!(result, Err(Error::Refused(_))) {
                break;
            }
        }
        if let Err(error) = result {
            self.folder.let_go(held);
            return Err(errno_of(error));
        }
        let can_write = matches!(way, Opening::ReadWrite | Opening::Write);
        let before = self.files.get_mut(number.into()).and_then(|file| file.open.replace((held, can_write)));
        if let Some((before, _)) = before {
            self.folder.let_go(before);
        }
        Ok(())
    }

    /// Reads from a place until the bytes are full or the file ends.
    pub(super) fn read(&mut self, number: u32, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.opened(number, false)?;
        let file = file_of(&self.files, number)?;
        let (open, _) = file.open.as_ref().ok_or(Errno::EIO)?;
        let mut done = 0;
        while done < bytes.len() {
            match self.folder.read(open, offset + done as u64, &mut bytes[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(errno_of(error)),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    pub(super) fn write(&mut self, number: u32, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.require_changes()?;
        self.opened(number, true)?;
        let file = self.files.get_mut(number.into()).ok_or(Errno::EIO)?;
        let (open, _) = file.open.as_ref().ok_or(Errno::EIO)?;
        file.was_written = true;
        let mut done = 0;
        while done < bytes.len() {
            done += self.folder.write(open, offset + done as u64, &bytes[done..]).map_err(errno_of)?;
        }
        if file.is_nameless {
            file.known.size = file.known.size.max(offset + bytes.len() as u64);
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, number: u32, length: u64) -> Result<(), Errno> {
        self.require_changes()?;
        let file = self.files.get_mut(number.into()).ok_or(Errno::EIO)?;
        let change = shared_folder::Change { size: Some(length), ..Default::default() };
        let held = file.open.as_ref().map(|(open, _)| open).filter(|_| file.is_nameless).unwrap_or(&file.held);
        self.folder.change(held, &change).map_err(errno_of)?;
        file.known.size = length;
        file.was_written |= file.open.is_some();
        Ok(())
    }

    pub(super) fn read_link(&mut self, number: u32) -> Result<Vec<u8>, Errno> {
        let file = file_of(&self.files, number)?;
        self.folder.read_link(&file.held, LONGEST_PATH).map_err(errno_of)
    }

    pub(super) fn set_attributes(&mut self, number: u32, change: Change) -> Result<Attributes, Errno> {
        self.require_changes()?;
        let file = self.files.get_mut(number.into()).ok_or(Errno::EIO)?;
        if file.is_nameless {
            // The host takes the file by its name, which may be another's by now.
            let known = &mut file.known;
            if let Some(permissions) = change.permissions {
                known.mode = known.mode & !0o7777 | permissions & 0o7777;
            }
            known.owner = change.owner.unwrap_or(known.owner);
            for (place, time) in [change.accessed, change.modified].into_iter().enumerate() {
                known.times[place] = time.unwrap_or(known.times[place]);
            }
            return Ok(file.known);
        }
        let time = |stamp: Stamp| (stamp.seconds, stamp.nanoseconds);
        let change = shared_folder::Change {
            permissions: change.permissions.map(u32::from),
            owner: change.owner,
            size: None,
            accessed: change.accessed.map(time),
            modified: change.modified.map(time),
        };
        self.folder.change(&file.held, &change).map_err(errno_of)?;
        self.attributes(number)
    }

    pub(super) fn list(&mut self, directory: u32, place: u64, most: usize) -> Result<Vec<Entry>, Errno> {
        self.opened(directory, false)?;
        let file = file_of(&self.files, directory)?;
        let (open, _) = file.open.as_ref().ok_or(Errno::EIO)?;
        let listed = self.folder.list(open, place, most).map_err(errno_of)?;
        let mut entries = Vec::new();
        entries.try_reserve_exact(listed.len()).map_err(|_| Errno::ENOMEM)?;
        entries.extend(listed.into_iter().map(|entry| Entry {
            inode: short(entry.number),
            kind: entry.kind,
            name: entry.name,
            next: entry.next,
            after: ListingPlace::START,
        }));
        Ok(entries)
    }

    pub(super) fn synchronise(&mut self) -> Result<(), Errno> {
        self.synchronise_all(false)
    }

    pub(super) fn synchronise_data(&mut self) -> Result<(), Errno> {
        self.synchronise_all(true)
    }

    /// Has the bytes of all files last that were written.
    fn synchronise_all(&mut self, is_of_data: bool) -> Result<(), Errno> {
        self.look_at_usage();
        let (mut from, mut result) = (0, Ok(()));
        while let Some(number) = self.files.first_from(from) {
            from = number + 1;
            let Some(file) = self.files.get_mut(number).filter(|file| file.was_written) else { continue };
            if let Some((open, _)) = &file.open {
                let done = self.folder.synchronise(open, is_of_data).map_err(errno_of);
                file.was_written = done.is_err();
                result = result.and(done);
            }
        }
        result
    }

    pub(super) fn remount(&mut self, access: Access) -> Result<(), Errno> {
        self.access = access;
        Ok(())
    }

    /// Lets all files go.
    pub(super) fn unmount(&mut self) -> Result<(), Errno> {
        let result = self.synchronise_all(false);
        while let Some(file) = self.files.first_from(0).and_then(|number| self.files.remove(number)) {
            if let Some((open, _)) = file.open {
                self.folder.let_go(open);
            }
            self.folder.let_go(file.held);
        }
        result
    }
}
