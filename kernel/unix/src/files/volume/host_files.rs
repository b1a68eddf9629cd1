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
//! # Paths and openings
//! The host (QEMU until version 10) finds the attributes of a file by a path, which it has from the walk to the file,
//! and bytes by an opening. A file that the host renames by itself, or replaces by another one, is not at its path any
//! more. So a program's file is opened there when the program opens it, each answer that tells of a file is compared
//! with the file's number, and nothing is changed by a path at which another file was found (`ESTALE`). Reads and
//! writes go on by the opening, and the attributes of such a file are those that were known last.
//!
//! # Files without names
//! A file in use is opened before it loses a name. When it has lost its last one, its attributes are known here alone;
//! the host cannot make it shorter, so that bytes behind its end are hidden here, and overwritten with zeros before the
//! file grows over them.

use abi_unix::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ext4::{
    Access, Attributes, Change, Entry, ListingPlace, NewFile, Replacement, Special, Stamp, Unlinked, Usage, kind,
};
use filesystem::Writes;
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

/// A use of a file's bytes for which it is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
    Append,
}

/// A file that the host holds.
struct HostFile {
    /// The number that the host tells.
    number: u64,
    held: Held,
    /// It held once more, and opened to be read or listed.
    reads: Option<Held>,
    /// It opened to be written, and whether it can be read that way, too.
    writes: Option<(Held, bool)>,
    /// It opened to be written at its end.
    appends: Option<Held>,
    /// Something was written to it since it was made lasting.
    was_written: bool,
    /// As the host told last.
    known: Attributes,
    /// It has lost its last name.
    is_nameless: bool,
    /// Of a file without a name: bytes from the first place on are zeros, whatever the host has up to the second.
    hidden: (u64, u64),
}

impl HostFile {
    fn new(number: u64, held: Held, known: Attributes) -> HostFile {
        HostFile {
            number,
            held,
            reads: None,
            writes: None,
            appends: None,
            was_written: false,
            known,
            is_nameless: false,
            hidden: (0, 0),
        }
    }

    /// Returns the opening for a use, if there is one.
    fn opened(&self, of: Use) -> Option<&Held> {
        match of {
            Use::Read => self.reads.as_ref().or(self.writes.as_ref().filter(|(_, reads)| *reads).map(|(held, _)| held)),
            Use::Write => self.writes.as_ref().map(|(held, _)| held),
            Use::Append => self.appends.as_ref(),
        }
    }

    /// Returns any opening.
    fn any_opening(&self) -> Option<&Held> {
        [Use::Write, Use::Append, Use::Read].into_iter().find_map(|of| self.opened(of))
    }
}

/// Bytes that a file takes here as long as it is in use.
pub(super) const MEMORY_OF_A_FILE: usize = size_of::<(u64, HostFile)>() + size_of::<(u64, u32)>();

/// Zeros that are written at a time.
static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];

/// The place of a file on the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whereabouts {
    /// At the path by which it is held.
    AtItsPath,
    /// The path leads to nothing or to another file.
    Elsewhere,
}

/// The whole name by which a file was found.
type Found = (Held, shared_folder::Attributes);

/// The files of a folder of the host.
pub(super) struct HostFiles<'a, W> {
    folder: Folder<HostChannel<'a, W>>,
    shared: &'a Arc<MountedVolume>,
    files: Ordered<HostFile>,
    /// The numbers here of the files that have names, by those of the host.
    by_number: Ordered<u32>,
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

fn mode_of(found: &shared_folder::Attributes) -> u16 {
    (found.mode & 0xffff) as u16
}

fn is_kind(found: &shared_folder::Attributes, kind: u16) -> bool {
    mode_of(found) & kind::MASK == kind
}

/// Returns the attributes of the file with this number here.
fn attributes_of(inode: u32, found: &shared_folder::Attributes) -> Attributes {
    Attributes {
        inode,
        mode: mode_of(found),
        owner: found.owner,
        links: found.links.clamp(1, u16::MAX.into()) as u16,
        size: found.size,
        sectors: found.sectors,
        times: found.times.map(stamp),
        device: ((found.device >> 8 & 0xfff) as u32, (found.device & 0xff | found.device >> 12 & 0xf_ff00) as u32),
    }
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
        // The top is known by its path alone, which leads to it whatever its number is.
        let top = HostFile::new(found.number, held, Attributes::default());
        let mut files = Ordered::default();
        files.insert(ROOT.into(), top).map_err(|_| Errno::ENOMEM)?;
        let (by_number, touched, usage) = (Ordered::default(), Vec::new(), Usage::default());
        let mut host = HostFiles { folder, shared, files, by_number, touched, access, usage };
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
        self.forget_number(file.number, number);
        self.release(file);
    }

    fn release(&mut self, file: HostFile) {
        let openings = file.reads.into_iter().chain(file.writes.map(|(held, _)| held)).chain(file.appends);
        openings.chain([file.held]).for_each(|held| self.folder.let_go(held));
    }

    /// Has a number of the host lead no longer to this file.
    fn forget_number(&mut self, of_host: u64, number: u32) {
        if self.by_number.get(of_host) == Some(&number) {
            self.by_number.remove(of_host);
        }
    }

    /// Returns the file with these attributes that is known already. One with the number of a file of another kind is
    /// another one, to which the host has given the number of one that has gone.
    fn known_as(&mut self, found: &shared_folder::Attributes) -> Option<u32> {
        let at = *self.by_number.get(found.number)?;
        let file = self.files.get(at.into())?;
        if file.known.mode & kind::MASK == mode_of(found) & kind::MASK {
            return Some(at);
        }
        self.forget_number(found.number, at);
        None
    }

    /// Enters a file that the host holds; returns its number.
    fn enter(&mut self, (held, found): Found) -> Result<u32, Errno> {
        let number = match self.place_for(&found) {
            Ok(number) => number,
            Err(error) => {
                self.folder.let_go(held);
                return Err(error);
            }
        };
        if let Some(file) = self.files.get_mut(number.into()) {
            // Another may have moved it: this is where it is now.
            let before = core::mem::replace(&mut file.held, held);
            file.known = attributes_of(number, &found);
            self.folder.let_go(before);
        }
        self.touched.push(number);
        Ok(number)
    }

    /// Returns the number of the file with these attributes, which gets a place here, by which it is not held yet, if
    /// it has none; and makes room to note that it was touched.
    fn place_for(&mut self, found: &shared_folder::Attributes) -> Result<u32, Errno> {
        self.touched.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        if let Some(known) = self.known_as(found) {
            return Ok(known);
        }
        let number = self.free_number(found.number)?;
        self.by_number.insert(found.number, number).map_err(|_| Errno::ENOMEM)?;
        let file = HostFile::new(found.number, Held::NOTHING, attributes_of(number, found));
        if self.files.insert(number.into(), file).is_err() {
            self.forget_number(found.number, number);
            return Err(Errno::ENOMEM);
        }
        Ok(number)
    }

    /// Returns a number here for one of the host.
    fn free_number(&self, of_host: u64) -> Result<u32, Errno> {
        let first = short(of_host);
        let mut tries = (0..MOST_TRIES).map(|turn| first.wrapping_add(turn)).filter(|at| *at > ROOT);
        tries.find(|at| self.files.get((*at).into()).is_none()).ok_or(Errno::ENFILE)
    }

    /// Returns the attributes of a file.
    pub(super) fn attributes(&mut self, number: u32) -> Result<Attributes, Errno> {
        self.look(number).map(|(found, _)| found)
    }

    /// Returns the attributes of a file, and whether its path leads to it. `ESTALE` if that leads to another one, and
    /// there is no opening.
    fn look(&mut self, number: u32) -> Result<(Attributes, Whereabouts), Errno> {
        let file = self.files.get_mut(number.into()).ok_or(Errno::EIO)?;
        if file.is_nameless {
            return Ok((file.known, Whereabouts::Elsewhere));
        }
        let (of_host, before) = (file.number, file.known.mode);
        // A file stays of its kind, and a link is no directory below.
        let is_it = |found: &shared_folder::Attributes| {
            let is_of_its_kind = before == 0 || before & kind::MASK == mode_of(found) & kind::MASK;
            is_of_its_kind && (found.number == of_host || number == ROOT)
        };
        let failure = match self.folder.attributes(&file.held) {
            Ok(found) if is_it(&found) => {
                file.known = attributes_of(number, &found);
                return Ok((file.known, Whereabouts::AtItsPath));
            }
            Ok(_) => Errno::ESTALE,
            Err(Error::Refused(reason)) => errno_of(Error::Refused(reason)),
            Err(error) => return Err(errno_of(error)),
        };
        let opening = file.any_opening().ok_or(failure)?;
        // A newer host goes by the opening.
        if let Ok(found) = self.folder.attributes(opening)
            && is_it(&found)
        {
            file.known = attributes_of(number, &found);
        }
        Ok((file.known, Whereabouts::Elsewhere))
    }

    /// Fails with `ESTALE` if a file's path does not lead to it.
    fn require_path(&mut self, number: u32) -> Result<(), Errno> {
        match self.look(number)?.1 {
            Whereabouts::AtItsPath => Ok(()),
            Whereabouts::Elsewhere => Err(Errno::ESTALE),
        }
    }

    /// Finds a name in a directory.
    fn walk(&mut self, directory: u32, name: &[u8]) -> Result<Option<Found>, Errno> {
        let from = file_of(&self.files, directory)?;
        let missing = |error| match errno_of(error) {
            Errno::ENOENT => Ok(None),
            error => Err(error),
        };
        let (held, walked) = match self.folder.walk(&from.held, name) {
            Ok(found) => found,
            Err(error) => return missing(error),
        };
        match self.folder.attributes(&held) {
            Ok(found) if found.number == walked.number => Ok(Some((held, found))),
            result => {
                self.folder.let_go(held);
                match result {
                    // It was replaced at this moment.
                    Ok(_) => Err(Errno::ESTALE),
                    Err(error) => missing(error),
                }
            }
        }
    }

    pub(super) fn look_up(&mut self, directory: u32, name: &[u8]) -> Result<Option<Attributes>, Errno> {
        let Some(found) = self.walk(directory, name)? else { return Ok(None) };
        let number = self.enter(found)?;
        file_of(&self.files, number).map(|file| Some(file.known))
    }

    /// Returns the attributes of the file with a name, which stays held by the name that it had: this one may go.
    pub(super) fn find(&mut self, directory: u32, name: &[u8]) -> Result<Option<Attributes>, Errno> {
        let Some((held, found)) = self.walk(directory, name)? else { return Ok(None) };
        match self.known_as(&found) {
            Some(number) => {
                self.folder.let_go(held);
                let known = attributes_of(number, &found);
                self.files.get_mut(number.into()).ok_or(Errno::EIO)?.known = known;
                Ok(Some(known))
            }
            None => {
                let number = self.enter((held, found))?;
                file_of(&self.files, number).map(|file| Some(file.known))
            }
        }
    }

    fn made(&mut self, directory: u32, name: &[u8]) -> Result<Attributes, Errno> {
        self.look_up(directory, name)?.ok_or(Errno::ENOENT)
    }

    pub(super) fn create(&mut self, directory: u32, name: &[u8], new: NewFile) -> Result<Attributes, Errno> {
        self.require_changes()?;
        let at = file_of(&self.files, directory)?;
        let made = self.folder.create(&at.held, name, new.permissions.into(), new.owner.1).map_err(errno_of)?;
        let (open, opened) = made;
        let made = self.made(directory, name);
        let file = made.as_ref().ok().and_then(|made| self.files.get_mut(made.inode.into()));
        match file.filter(|file| file.number == opened.number && file.writes.is_none()) {
            Some(file) => file.writes = Some((open, true)),
            None => self.folder.let_go(open),
        }
        made
    }

    pub(super) fn make_special(
        &mut self,
        directory: u32,
        name: &[u8],
        special: Special,
        new: NewFile,
    ) -> Result<Attributes, Errno> {
        self.require_changes()?;
        let kind = if special == Special::Fifo { kind::FIFO } else { kind::SOCKET };
        let (at, mode) = (file_of(&self.files, directory)?, u32::from(kind | new.permissions));
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
        if file_of(&self.files, file)?.is_nameless {
            return Err(Errno::ENOENT);
        }
        self.require_path(file)?;
        let (file_held, at) = (file_of(&self.files, file)?, file_of(&self.files, directory)?);
        self.folder.link(&at.held, &file_held.held, name).map_err(errno_of)?;
        self.attributes(file)
    }

    /// Prepares a file for the loss of a name; returns its number, and whether that is its last one. If it is in use
    /// and cannot be opened, it must not lose its name: its bytes could not be reached any more.
    fn prepare_loss(&mut self, directory: u32, name: &[u8]) -> Result<Option<(u32, bool)>, Errno> {
        let Some((held, found)) = self.walk(directory, name)? else { return Ok(None) };
        let Some(number) = self.known_as(&found) else {
            // Nothing uses it.
            let is_last = is_kind(&found, kind::DIRECTORY) || found.links <= 1;
            return self.enter((held, found)).map(|number| Some((number, is_last)));
        };
        // It stays held by the name that it had, which may be another one.
        let known = attributes_of(number, &found);
        let file = self.files.get_mut(number.into());
        let is_open = file.is_some_and(|file| {
            file.known = known;
            file.any_opening().is_some()
        });
        let is_ready = match known.is(kind::REGULAR) && !is_open && self.shared.used(number).is_some() {
            true => self.open_at(&held, number, Use::Read),
            false => Ok(()),
        };
        self.folder.let_go(held);
        is_ready.map(|()| Some((number, known.is(kind::DIRECTORY) || known.links <= 1)))
    }

    fn lose(&mut self, number: u32) {
        let Some(file) = self.files.get_mut(number.into()) else { return };
        file.is_nameless = true;
        file.known.links = 0;
        file.hidden = (file.known.size, file.known.size);
        let of_host = file.number;
        self.forget_number(of_host, number);
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
        let moved = self.find(from.0, from.1)?.ok_or(Errno::ENOENT)?;
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

    /// Opens a file for the uses that a program will make of it.
    pub(super) fn open(&mut self, number: u32, access: filesystem::Access, writes: Writes) -> Result<(), Errno> {
        if access != filesystem::Access::Read {
            // Perhaps to be read as well.
            self.ready(number, Use::Write)?;
            if writes == Writes::AtEnd {
                self.ready(number, Use::Append)?;
            }
        }
        if access != filesystem::Access::Write {
            self.ready(number, Use::Read)?;
        }
        Ok(())
    }

    /// Opens a file for a use, if it is not.
    fn ready(&mut self, number: u32, of: Use) -> Result<(), Errno> {
        let file = file_of(&self.files, number)?;
        if file.opened(of).is_some() {
            return Ok(());
        }
        if file.is_nameless {
            return Err(Errno::ESTALE);
        }
        let held = self.folder.hold_again(&file.held).map_err(errno_of)?;
        let opened = self.open_at(&held, number, of);
        self.folder.let_go(held);
        opened
    }

    /// Opens a file for a use, by this path to it. `ESTALE` if the path leads to another one.
    fn open_at(&mut self, at: &Held, number: u32, of: Use) -> Result<(), Errno> {
        let file = self.files.get_mut(number.into()).ok_or(Errno::EIO)?;
        let ways: &[Opening] = match of {
            Use::Read if file.known.is(kind::DIRECTORY) => &[Opening::List],
            Use::Read => &[Opening::Read],
            Use::Write => &[Opening::ReadWrite, Opening::Write],
            Use::Append => &[Opening::Append],
        };
        let mut failure = Error::Failed;
        for way in ways {
            let held = self.folder.hold_again(at).map_err(errno_of)?;
            match self.folder.open(&held, *way) {
                Ok(found) if found.number == file.number || number == ROOT => {
                    match way {
                        Opening::Read | Opening::List => file.reads = Some(held),
                        Opening::Append => file.appends = Some(held),
                        Opening::ReadWrite | Opening::Write => file.writes = Some((held, *way == Opening::ReadWrite)),
                    }
                    return Ok(());
                }
                Ok(_) => {
                    self.folder.let_go(held);
                    return Err(Errno::ESTALE);
                }
                Err(error) => {
                    self.folder.let_go(held);
                    failure = error;
                }
            }
            if !matches!(failure, Error::Refused(_)) {
                break;
            }
        }
        Err(errno_of(failure))
    }

    /// Reads from a place until the bytes are full or the file ends.
    pub(super) fn read(&mut self, number: u32, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.ready(number, Use::Read)?;
        let file = file_of(&self.files, number)?;
        let open = file.opened(Use::Read).ok_or(Errno::EIO)?;
        let wanted = match file.is_nameless {
            true => file.known.size.saturating_sub(offset).min(bytes.len() as u64) as usize,
            false => bytes.len(),
        };
        let bytes = &mut bytes[..wanted];
        let (mut done, mut result) = (0, Ok(()));
        while done < bytes.len() {
            match self.folder.read(open, offset + done as u64, &mut bytes[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) => {
                    result = Err(errno_of(error));
                    break;
                }
            }
        }
        if file.is_nameless && result.is_ok() {
            let there = file.hidden.0.saturating_sub(offset).min(done as u64) as usize;
            bytes[there..].fill(0);
            done = wanted;
        }
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Writes to a place; returns the number of bytes that were written, which are fewer if the host refuses the rest.
    pub(super) fn write(&mut self, number: u32, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.require_changes()?;
        self.ready(number, Use::Write)?;
        self.clear_hidden(number, offset)?;
        let done = self.write_by(number, Use::Write, offset, bytes)?;
        if let Some(file) = self.files.get_mut(number.into()) {
            let end = offset + done as u64;
            file.hidden = (file.hidden.0.max(end), file.hidden.1.max(end));
        }
        Ok(done)
    }

    /// Writes to the end; returns the number of bytes that were written, and the place behind them as far as it is
    /// known.
    pub(super) fn append(&mut self, number: u32, bytes: &[u8]) -> Result<(usize, u64), Errno> {
        self.require_changes()?;
        let (known, _) = self.look(number)?;
        let count = match file_of(&self.files, number)?.is_nameless {
            // Bytes that are hidden here are the end for the host.
            true => self.write(number, known.size, bytes)?,
            false => {
                self.ready(number, Use::Append)?;
                self.write_by(number, Use::Append, known.size, bytes)?
            }
        };
        Ok((count, known.size + count as u64))
    }

    fn write_by(&mut self, number: u32, of: Use, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let file = self.files.get_mut(number.into()).ok_or(Errno::EIO)?;
        file.was_written = true;
        let open = file.opened(of).ok_or(Errno::EIO)?;
        let mut done = 0;
        while done < bytes.len() {
            match self.folder.write(open, offset + done as u64, &bytes[done..]) {
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(errno_of(error)),
                Err(_) => break,
            }
        }
        file.known.size = file.known.size.max(offset + done as u64);
        Ok(done)
    }

    /// Overwrites bytes with zeros that are hidden behind the end of a file without a name, up to a place to which it
    /// is written. Each was written by the program before.
    fn clear_hidden(&mut self, number: u32, up_to: u64) -> Result<(), Errno> {
        loop {
            let file = file_of(&self.files, number)?;
            let (from, to) = (file.hidden.0, file.hidden.1.min(up_to));
            if !file.is_nameless || from >= to {
                return Ok(());
            }
            let (open, count) = (file.opened(Use::Write).ok_or(Errno::EIO)?, (to - from).min(ZEROS.len() as u64));
            let done = self.folder.write(open, from, &ZEROS[..count as usize]).map_err(errno_of)?;
            if let Some(file) = self.files.get_mut(number.into()) {
                file.hidden.0 = from + done as u64;
            }
        }
    }

    pub(super) fn truncate(&mut self, number: u32, length: u64) -> Result<(), Errno> {
        self.require_changes()?;
        if !file_of(&self.files, number)?.is_nameless {
            self.require_path(number)?;
        }
        let file = self.files.get_mut(number.into()).ok_or(Errno::EIO)?;
        if file.is_nameless {
            file.hidden.0 = file.hidden.0.min(length);
        } else {
            let change = shared_folder::Change { size: Some(length), ..Default::default() };
            self.folder.change(&file.held, &change).map_err(errno_of)?;
            file.was_written = true;
        }
        file.known.size = length;
        Ok(())
    }

    pub(super) fn read_link(&mut self, number: u32) -> Result<Vec<u8>, Errno> {
        let file = file_of(&self.files, number)?;
        self.folder.read_link(&file.held, LONGEST_PATH).map_err(errno_of)
    }

    pub(super) fn set_attributes(&mut self, number: u32, change: Change) -> Result<Attributes, Errno> {
        self.require_changes()?;
        if !file_of(&self.files, number)?.is_nameless {
            self.require_path(number)?;
        }
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
        self.ready(directory, Use::Read)?;
        let open = file_of(&self.files, directory)?.opened(Use::Read).ok_or(Errno::EIO)?;
        let listed = self.folder.list(open, place, most).map_err(errno_of)?;
        let mut entries = Vec::new();
        entries.try_reserve_exact(listed.len()).map_err(|_| Errno::ENOMEM)?;
        entries.extend(listed.into_iter().map(|entry| Entry {
            inode: self.by_number.get(entry.number).copied().unwrap_or_else(|| short(entry.number)),
            kind: entry.kind,
            name: entry.name,
            next: entry.next,
            after: ListingPlace::START,
        }));
        Ok(entries)
    }

    /// Has the bytes of a file or of all files last, with their attributes or only those that are needed to find them.
    /// Failures are told to those that have the file open.
    pub(super) fn synchronise(&mut self, of: Option<u32>, is_of_data: bool) -> Result<(), Errno> {
        match of {
            Some(number) => self.synchronise_file(number, is_of_data),
            None => self.synchronise_all(is_of_data),
        }
    }

    /// Has the bytes of a file last, whoever has written them. `ESTALE` and other reasons if it cannot be opened.
    fn synchronise_file(&mut self, number: u32, is_of_data: bool) -> Result<(), Errno> {
        if file_of(&self.files, number)?.any_opening().is_none() {
            self.ready(number, Use::Read)?;
        }
        let file = self.files.get_mut(number.into()).ok_or(Errno::EIO)?;
        let open = file.any_opening().ok_or(Errno::EIO)?;
        let done = self.folder.synchronise(open, is_of_data);
        file.was_written = done.is_err();
        if done.is_err() {
            self.shared.note_failure_of(number);
        }
        Ok(())
    }

    /// Has the bytes of all files last that were written and are in use. Those that are closed are the host's to write,
    /// as with Linux's client without a cache.
    fn synchronise_all(&mut self, is_of_data: bool) -> Result<(), Errno> {
        self.look_at_usage();
        let (mut from, mut result) = (0, Ok(()));
        while let Some(number) = self.files.first_from(from) {
            from = number + 1;
            if self.files.get(number).is_some_and(|file| file.was_written) {
                result = result.and(self.synchronise_file(number as u32, is_of_data));
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
            self.release(file);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use abi_unix::SystemCall;
    use abi_unix::types::{AT_FDCWD, mapping, open as flag, protection};
    use shared_folder::wire::kind as message;

    use super::*;
    use crate::files::host_folder::fake::{count, go_on, open, path_of, server, with_folder};
    use crate::testing::Program;

    const HERE: usize = AT_FDCWD as usize;

    fn write(program: &mut Program, file: usize, bytes: &[u8]) -> Result<usize, Errno> {
        let place = program.store(bytes);
        program.call(SystemCall::Write, [file, place, bytes.len()])
    }

    fn write_at(program: &mut Program, file: usize, bytes: &[u8], at: usize) -> Result<usize, Errno> {
        let place = program.store(bytes);
        program.call(SystemCall::WriteAt, [file, place, bytes.len(), at])
    }

    fn read_at(program: &mut Program, file: usize, at: usize, most: usize) -> Result<Vec<u8>, Errno> {
        let place = program.place(most);
        let count = program.call(SystemCall::ReadAt, [file, place, most, at])?;
        Ok(program.read(place, count))
    }

    fn close(program: &mut Program, files: &[usize]) {
        files.iter().for_each(|file| assert_eq!(program.call(SystemCall::Close, [*file]), Ok(0)));
    }

    fn unlink(program: &mut Program, name: &str) -> Result<usize, Errno> {
        let path = path_of(program, name);
        program.call(SystemCall::Unlink, [HERE, path, 0])
    }

    /// Returns the inode, the number of names and the length.
    fn status(program: &mut Program, file: usize) -> (u64, u32, u64) {
        let place = program.place(128);
        assert_eq!(program.call(SystemCall::Status, [file, place]), Ok(0));
        (program.read_u64(place + 8), program.read_u32(place + 20), program.read_u64(place + 48))
    }

    fn map(program: &mut Program, file: usize, length: usize) -> usize {
        let access = (protection::READ | protection::WRITE) as usize;
        program.call(SystemCall::Map, [0, length, access, mapping::SHARED as usize, file, 0]).unwrap()
    }

    fn synchronise(program: &mut Program, file: usize) -> Result<usize, Errno> {
        program.call(SystemCall::SynchroniseFile, [file])
    }

    #[test]
    fn a_file_that_the_host_renames_is_written_on_and_no_other_one_is() {
        with_folder(|program, host| {
            fs::write(host.join("log"), "one ").unwrap();
            let file = open(program, "log", flag::RDWR).unwrap();
            let end = open(program, "log", flag::WRONLY | flag::APPEND).unwrap();
            fs::rename(host.join("log"), host.join("old")).unwrap();
            assert_eq!(write_at(program, file, b"ONE", 0), Ok(3), "there is nothing at the path");
            assert_eq!(write(program, end, b"two "), Ok(4));
            fs::write(host.join("log"), "another").unwrap();
            assert_eq!(write_at(program, file, b"t", 4), Ok(1), "there is another file at the path");
            assert_eq!(write(program, end, b"three"), Ok(5));
            assert_eq!(fs::read(host.join("log")).unwrap(), b"another");
            assert_eq!(fs::read(host.join("old")).unwrap(), b"ONE two three");
            assert_eq!(read_at(program, file, 0, 64).as_deref(), Ok(&b"ONE two three"[..]));
            // Changes by the path would be those of the other one.
            assert_eq!(program.call(SystemCall::Truncate, [file, 1]), Err(Errno::ESTALE));
            assert_eq!(program.call(SystemCall::ChangeMode, [file, 0o600]), Err(Errno::ESTALE));
            assert_eq!(fs::read(host.join("log")).unwrap(), b"another");
            assert_eq!(synchronise(program, file), Ok(0));
            let other = open(program, "log", flag::RDONLY).unwrap();
            assert_ne!(status(program, other).0, status(program, file).0);
            assert_eq!(read_at(program, other, 0, 64).as_deref(), Ok(&b"another"[..]));
            close(program, &[file, end, other]);
        });
    }

    #[test]
    fn bytes_that_the_host_appends_are_not_written_over() {
        with_folder(|program, host| {
            fs::write(host.join("log"), "").unwrap();
            let end = open(program, "log", flag::WRONLY | flag::APPEND).unwrap();
            assert_eq!(write(program, end, b"one "), Ok(4));
            fs::rename(host.join("log"), host.join("old")).unwrap();
            let text = fs::read_to_string(host.join("old")).unwrap();
            fs::write(host.join("old"), text + "by the host ").unwrap();
            assert_eq!(write(program, end, b"two"), Ok(3));
            assert_eq!(fs::read_to_string(host.join("old")).unwrap(), "one by the host two");
            close(program, &[end]);
        });
    }

    #[test]
    fn a_page_without_a_store_is_never_written() {
        with_folder(|program, host| {
            let path = host.join("file");
            fs::write(&path, [1; 3 * 4096]).unwrap();
            let file = open(program, "file", flag::RDWR).unwrap();
            let start = map(program, file, 3 * 4096);
            program.write(start + 4096, b"store");
            // The host changes all pages meanwhile.
            fs::write(&path, [2; 3 * 4096]).unwrap();
            let before = count(message::WRITE);
            assert_eq!(synchronise(program, file), Ok(0));
            assert_eq!(count(message::WRITE), before + 1);
            let found = fs::read(&path).unwrap();
            assert!(found[..4096].iter().chain(&found[2 * 4096..]).all(|byte| *byte == 2));
            assert_eq!(&found[4096..4103], b"store\x01\x01");
            // Again, and at the end of the mapping.
            fs::write(&path, [3; 3 * 4096]).unwrap();
            assert_eq!(synchronise(program, file), Ok(0));
            assert_eq!(program.call(SystemCall::Unmap, [start, 3 * 4096]), Ok(0));
            assert_eq!(synchronise(program, file), Ok(0));
            assert_eq!(count(message::WRITE), before + 1);
            assert_eq!(fs::read(&path).unwrap(), [3; 3 * 4096]);
            close(program, &[file]);
        });
    }

    #[test]
    fn writes_and_cuts_of_mapped_pages_are_no_stores() {
        with_folder(|program, host| {
            let path = host.join("file");
            fs::write(&path, [1; 2 * 4096]).unwrap();
            let file = open(program, "file", flag::RDWR).unwrap();
            let start = map(program, file, 2 * 4096);
            assert_eq!(write_at(program, file, b"written", 100), Ok(7));
            assert_eq!(program.call(SystemCall::Truncate, [file, 5000]), Ok(0));
            assert_eq!(program.read(start + 100, 7), b"written");
            assert_eq!(program.read(start + 5000, 7), [0; 7]);
            let before = count(message::WRITE);
            fs::write(&path, [2; 5000]).unwrap();
            assert_eq!(synchronise(program, file), Ok(0));
            assert_eq!(count(message::WRITE), before);
            program.write(start + 200, b"stored");
            assert_eq!(write_at(program, file, b"more", 300), Ok(4));
            assert_eq!(synchronise(program, file), Ok(0));
            let found = fs::read(&path).unwrap();
            assert_eq!((&found[200..206], &found[300..304], found.len()), (&b"stored"[..], &b"more"[..], 5000));
            // A file that the host has made shorter stays so.
            program.write(start + 4096, b"behind");
            fs::write(&path, [4; 10]).unwrap();
            assert_eq!(synchronise(program, file), Ok(0));
            assert_eq!(fs::read(&path).unwrap(), [4; 10]);
            assert_eq!(program.call(SystemCall::Unmap, [start, 2 * 4096]), Ok(0));
            close(program, &[file]);
        });
    }

    #[test]
    fn a_second_mapping_has_the_bytes_of_its_time() {
        with_folder(|program, host| {
            let path = host.join("file");
            fs::write(&path, [1; 8192]).unwrap();
            let file = open(program, "file", flag::RDWR).unwrap();
            let first = map(program, file, 8192);
            program.write(first + 4096, b"store");
            // Pages of another mapping are kept.
            fs::write(&path, [2; 8193]).unwrap();
            let second = map(program, file, 8192);
            assert_eq!((program.read(second, 1), program.read(second + 4096, 5)), (std::vec![1], b"store".to_vec()));
            for mapped in [first, second] {
                assert_eq!(program.call(SystemCall::Unmap, [mapped, 8192]), Ok(0));
            }
            let third = map(program, file, 8192);
            assert_eq!(program.read(third, 2), [2, 2]);
            assert_eq!(program.read(third + 4096, 6), b"store\x01");
            assert_eq!(fs::read(&path).unwrap()[4096..4101], *b"store", "before the pages were read again");
            assert_eq!(program.call(SystemCall::Unmap, [third, 8192]), Ok(0));
            fs::write(&path, [5; 8192]).unwrap();
            let fourth = map(program, file, 8192);
            assert_eq!((program.read(fourth, 1), program.read(fourth + 4096, 5)), (std::vec![5], std::vec![5; 5]));
            assert_eq!(program.call(SystemCall::Unmap, [fourth, 8192]), Ok(0));
            close(program, &[file]);
        });
    }

    #[test]
    fn bytes_beside_a_mapping_are_read_from_the_host() {
        with_folder(|program, host| {
            let path = host.join("file");
            fs::write(&path, [1; 8192]).unwrap();
            let file = open(program, "file", flag::RDWR).unwrap();
            let mapped = map(program, file, 4096);
            program.write(mapped, b"store");
            assert_eq!(read_at(program, file, 4096, 3), Ok(std::vec![1; 3]));
            fs::write(&path, [2; 8192]).unwrap();
            assert_eq!(read_at(program, file, 4096, 3), Ok(std::vec![2; 3]));
            assert_eq!(read_at(program, file, 0, 5).as_deref(), Ok(&b"store"[..]));
            assert_eq!(synchronise(program, file), Ok(0));
            fs::write(&path, [3; 8192]).unwrap();
            assert_eq!(read_at(program, file, 0, 5), Ok(std::vec![3; 5]), "nothing was stored since");
            assert_eq!(program.call(SystemCall::Unmap, [mapped, 4096]), Ok(0));
            close(program, &[file]);
        });
    }

    #[test]
    fn a_file_without_a_name_has_its_length_and_its_zeros() {
        with_folder(|program, host| {
            let file = open(program, "file", flag::CREAT | flag::RDWR).unwrap();
            assert_eq!(write(program, file, &[7; 100]), Ok(100));
            assert_eq!(unlink(program, "file"), Ok(0));
            // Another one gets the name.
            fs::write(host.join("file"), [9; 50]).unwrap();
            assert_eq!(program.call(SystemCall::Truncate, [file, 10]), Ok(0));
            assert_eq!(read_at(program, file, 0, 200), Ok(std::vec![7; 10]));
            assert_eq!(program.call(SystemCall::Truncate, [file, 60]), Ok(0));
            let zeros = |from: usize, to: usize| std::vec![0; to - from];
            assert_eq!(read_at(program, file, 0, 200), Ok([std::vec![7; 10], zeros(10, 60)].concat()));
            assert_eq!(write_at(program, file, &[8; 5], 30), Ok(5));
            let expected = [std::vec![7; 10], zeros(10, 30), std::vec![8; 5], zeros(35, 60)].concat();
            assert_eq!(read_at(program, file, 0, 200), Ok(expected.clone()));
            let end = program.store(&[6; 20]);
            assert_eq!(program.call(SystemCall::Seek, [file, 80, 0]), Ok(80));
            assert_eq!(program.call(SystemCall::Write, [file, end, 20]), Ok(20));
            let expected = [expected, zeros(60, 80), std::vec![6; 20]].concat();
            assert_eq!(read_at(program, file, 0, 200), Ok(expected));
            assert_eq!((status(program, file).1, status(program, file).2), (0, 100));
            assert_eq!(fs::read(host.join("file")).unwrap(), [9; 50]);
            close(program, &[file]);
        });
    }

    #[test]
    fn a_file_that_cannot_be_opened_keeps_its_name() {
        with_folder(|program, host| {
            fs::write(host.join("file"), "bytes").unwrap();
            let path = path_of(program, "file");
            // It is in use, and was never opened there.
            let volume = crate::files::volume::all().pop().unwrap();
            let account = program.process().account.clone();
            let root = volume.submit(&account, 0, crate::files::volume::VolumeRequest::Root).unwrap();
            program.sleep_ns(1_000_000);
            let core::task::Poll::Ready(Ok(crate::files::volume::VolumeAnswer::File(root, _))) =
                root.poll(core::task::Waker::noop())
            else {
                panic!("the root is there");
            };
            let look = crate::files::volume::VolumeRequest::LookUp(root, b"file".to_vec());
            let found = volume.submit(&account, 0, look).unwrap();
            program.sleep_ns(1_000_000);
            let found = found.poll(core::task::Waker::noop());
            assert!(matches!(&found, core::task::Poll::Ready(Ok(_))));
            server(|server| server.refuses.insert(message::OPEN, 13));
            assert_eq!(program.call(SystemCall::Unlink, [HERE, path, 0]), Err(Errno::EACCES));
            server(|server| server.refuses.clear());
            assert_eq!(fs::read(host.join("file")).unwrap(), b"bytes");
            assert_eq!(program.call(SystemCall::Unlink, [HERE, path, 0]), Ok(0));
            drop((found, volume));
            program.sleep_ns(1_000_000);
        });
    }

    #[test]
    fn a_name_that_goes_does_not_move_the_other_one() {
        with_folder(|program, host| {
            fs::write(host.join("one"), "bytes").unwrap();
            fs::hard_link(host.join("one"), host.join("two")).unwrap();
            let file = open(program, "one", flag::RDWR).unwrap();
            assert_eq!(unlink(program, "two"), Ok(0));
            assert_eq!(program.call(SystemCall::ChangeMode, [file, 0o600]), Ok(0));
            assert_eq!(fs::metadata(host.join("one")).unwrap().mode() & 0o777, 0o600);
            assert_eq!((status(program, file).1, status(program, file).2), (1, 5));
            // The name by which it is held goes, and the other one is found.
            fs::hard_link(host.join("one"), host.join("two")).unwrap();
            assert_eq!(unlink(program, "one"), Ok(0));
            assert_eq!(write_at(program, file, b"B", 0), Ok(1));
            assert_eq!(program.call(SystemCall::ChangeMode, [file, 0o640]), Err(Errno::ESTALE));
            let other = open(program, "two", flag::RDONLY).unwrap();
            assert_eq!(status(program, other).0, status(program, file).0);
            assert_eq!(program.call(SystemCall::ChangeMode, [file, 0o640]), Ok(0));
            assert_eq!(fs::read(host.join("two")).unwrap(), b"Bytes");
            close(program, &[file, other]);
        });
    }

    #[test]
    fn every_synchronisation_is_sent_and_fails_for_its_file_alone() {
        with_folder(|program, host| {
            let file = open(program, "file", flag::CREAT | flag::RDWR).unwrap();
            assert_eq!(write(program, file, b"bytes"), Ok(5));
            close(program, &[file]);
            let directory = open(program, ".", flag::DIRECTORY).unwrap();
            fs::write(host.join("other"), "").unwrap();
            let [file, again] = [(); 2].map(|()| open(program, "file", flag::RDONLY).unwrap());
            let other = open(program, "other", flag::WRONLY).unwrap();
            assert_eq!(write(program, other, b"bytes"), Ok(5));
            for (number, synchronised) in [file, directory, other].into_iter().enumerate() {
                assert_eq!(synchronise(program, synchronised), Ok(0));
                assert_eq!(count(message::SYNCHRONISE), number + 1);
            }
            server(|server| server.refuses.insert(message::SYNCHRONISE, 5));
            assert_eq!(synchronise(program, file), Err(Errno::EIO));
            server(|server| server.refuses.clear());
            // Once for each open file of it.
            assert_eq!((synchronise(program, again), synchronise(program, again)), (Err(Errno::EIO), Ok(0)));
            assert_eq!((synchronise(program, file), synchronise(program, other)), (Ok(0), Ok(0)));
            assert_eq!(program.call(SystemCall::SynchroniseFileSystem, [directory]), Err(Errno::EIO));
            assert_eq!(program.call(SystemCall::SynchroniseFileSystem, [directory]), Ok(0));
            close(program, &[directory, file, again, other]);
        });
    }

    #[test]
    fn a_write_that_is_partly_done_tells_how_far() {
        with_folder(|program, host| {
            let file = open(program, "file", flag::CREAT | flag::RDWR).unwrap();
            server(|server| server.room = Some(1000));
            assert_eq!(write(program, file, &[5; 3000]), Ok(1000));
            assert_eq!(write(program, file, &[5; 3000]), Err(Errno::ENOSPC));
            let end = open(program, "file", flag::WRONLY | flag::APPEND | flag::SYNC).unwrap();
            server(|server| server.room = Some(10));
            assert_eq!(write(program, end, &[6; 3000]), Ok(10));
            server(|server| server.room = None);
            assert_eq!(write(program, file, b"end"), Ok(3), "behind the bytes that were written");
            let found = fs::read(host.join("file")).unwrap();
            assert_eq!((found.len(), &found[1000..1003], found[1009]), (1010, &b"end"[..], 6));
            close(program, &[file, end]);
        });
    }

    #[test]
    fn a_file_is_there_once() {
        with_folder(|program, host| {
            // Files whose numbers here are the same at first: the answers are changed so.
            fn collide(asked: u8, answer: &mut [u8]) {
                let places: &[usize] = match asked {
                    _ if answer[4] == message::REFUSED => &[],
                    message::WALK if answer.len() > 9 => &[9 + 5],
                    message::OPEN | message::CREATE => &[7 + 5],
                    message::ATTRIBUTES => &[15 + 5],
                    _ => &[],
                };
                for place in places {
                    let number = u64::from_le_bytes(answer[*place..place + 8].try_into().unwrap());
                    // The sum of both halves is the same for all.
                    let other = number << 32 | (number ^ 0x1234_5678) & 0xffff_ffff;
                    answer[*place..place + 8].copy_from_slice(&other.to_le_bytes());
                }
            }
            server(|server| server.changes = Some(collide));
            for name in ["one", "two"] {
                fs::write(host.join(name), name).unwrap();
            }
            let one = open(program, "one", flag::RDWR).unwrap();
            let two = open(program, "two", flag::RDWR).unwrap();
            let numbers = (status(program, one).0, status(program, two).0);
            assert_eq!(numbers.1, numbers.0 + 1, "the next one");
            close(program, &[one]);
            program.sleep_ns(1_000_000);
            let again = open(program, "two", flag::RDONLY).unwrap();
            assert_eq!(status(program, again).0, numbers.1);
            close(program, &[two, again]);
        });
    }
    static IS_LONG_AGO: AtomicBool = AtomicBool::new(false);

    /// Has the host tell that a file was changed long ago, or at this moment.
    fn changed_long_ago_or_now(asked: u8, answer: &mut [u8]) {
        if asked == message::ATTRIBUTES && answer[4] != message::REFUSED {
            let seconds = if IS_LONG_AGO.load(Ordering::Relaxed) { 1_000_000 } else { super::super::now().seconds };
            for at in [89, 105] {
                answer[7 + at..7 + at + 8].copy_from_slice(&seconds.to_le_bytes());
                answer[7 + at + 8..7 + at + 16].fill(0);
            }
        }
    }

    /// A change can have the time of the one before. Pages of a file that has not changed for long are not read again.
    #[test]
    fn changes_of_one_moment_are_seen() {
        with_folder(|program, host| {
            let path = host.join("file");
            fs::write(&path, [1; 4096]).unwrap();
            server(|server| server.changes = Some(changed_long_ago_or_now));
            let file = open(program, "file", flag::RDWR).unwrap();
            let mapped_byte = |program: &mut Program, byte| {
                fs::write(&path, [byte; 4096]).unwrap();
                let start = map(program, file, 4096);
                program.touch(start, 1, hal_api::Access::Read);
                let found = program.read(start, 1);
                assert_eq!(program.call(SystemCall::Unmap, [start, 4096]), Ok(0));
                found[0]
            };
            assert_eq!([1, 2, 3].map(|byte| mapped_byte(program, byte)), [1, 2, 3]);
            IS_LONG_AGO.store(true, Ordering::Relaxed);
            assert_eq!([4, 4].map(|byte| mapped_byte(program, byte)), [4, 4]);
            let before = count(message::READ);
            assert_eq!(mapped_byte(program, 4), 4);
            assert_eq!(count(message::READ), before);
            close(program, &[file]);
        });
    }

    /// The pages of a long file come in pieces, of which none spoils those before, nor does another mapping.
    #[test]
    fn stores_to_a_file_that_was_just_changed_are_kept() {
        with_folder(|program, host| {
            const PAGES: usize = 100;
            const LENGTH: usize = PAGES * 4096;
            let path = host.join("file");
            fs::write(&path, std::vec![1; LENGTH]).unwrap();
            IS_LONG_AGO.store(false, Ordering::Relaxed);
            server(|server| server.changes = Some(changed_long_ago_or_now));
            let file = open(program, "file", flag::RDWR).unwrap();
            let before = count(message::READ);
            let first = map(program, file, LENGTH);
            program.write(first, b"store");
            let second = map(program, file, LENGTH);
            assert!(count(message::READ) - before <= PAGES);
            for mapped in [first, second] {
                assert_eq!(program.read(mapped, 6), b"store\x01");
            }
            assert_eq!(synchronise(program, file), Ok(0));
            assert_eq!(fs::read(&path).unwrap()[..6], *b"store\x01");
            for mapped in [first, second] {
                assert_eq!(program.call(SystemCall::Unmap, [mapped, LENGTH]), Ok(0));
            }
            server(|server| server.changes = None);
            close(program, &[file]);
        });
    }

    #[test]
    fn many_files_without_names_can_be_in_use() {
        with_folder(|program, _| {
            let files: Vec<_> = (0..300)
                .map(|_| {
                    let file = open(program, "file", flag::CREAT | flag::EXCL | flag::RDWR).unwrap();
                    assert_eq!(unlink(program, "file"), Ok(0));
                    file
                })
                .collect();
            close(program, &files);
        });
    }

    /// A directory that a host tells of below itself stays where it was, and nothing waits for the end of its path.
    #[test]
    fn a_directory_is_never_below_itself() {
        static NUMBERS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
        fn take_for_the_other(asked: u8, answer: &mut [u8]) {
            let place = match asked {
                _ if answer[4] == message::REFUSED => return,
                message::WALK if answer.len() > 9 => 9 + 5,
                message::OPEN => 7 + 5,
                message::ATTRIBUTES => 15 + 5,
                _ => return,
            };
            let [from, to] = [0, 1].map(|which| NUMBERS[which].load(Ordering::Relaxed).to_le_bytes());
            if answer[place..place + 8] == from {
                answer[place..place + 8].copy_from_slice(&to);
            }
        }
        with_folder(|program, host| {
            fs::create_dir_all(host.join("top/middle/below")).unwrap();
            fs::create_dir_all(host.join("other")).unwrap();
            let directory = |program: &mut Program, name| open(program, name, flag::DIRECTORY).unwrap();
            let [top, middle, other] = ["top", "top/middle", "other"].map(|name| directory(program, name));
            let rename = |program: &mut Program, from: (usize, &[u8]), to: (usize, &[u8])| {
                let names = [program.store(from.1), program.store(to.1)];
                program.call(SystemCall::Rename, [from.0, names[0], to.0, names[1], 0])
            };
            let root = open(program, ".", flag::DIRECTORY).unwrap();
            server(|server| server.renames_nothing = true);
            assert_eq!(rename(program, (root, b"top\0"), (middle, b"top\0")), Ok(0));
            for (which, name) in ["top/middle/below", "top"].into_iter().enumerate() {
                NUMBERS[which].store(fs::metadata(host.join(name)).unwrap().ino(), Ordering::Relaxed);
            }
            server(|server| server.changes = Some(take_for_the_other));
            let name = program.store(b"below\0");
            let below = program.call(SystemCall::Open, [middle, name, flag::DIRECTORY as usize, 0]).unwrap();
            assert_eq!(status(program, below).0, status(program, top).0, "the host says so");
            // Each looks at all directories above.
            assert_eq!(rename(program, (root, b"other\0"), (below, b"other\0")), Ok(0));
            for directory in [below, top, middle, other] {
                assert_eq!(program.call(SystemCall::ChangeDirectoryTo, [directory]), Ok(0));
                let place = program.place(4096);
                let _ = program.call(SystemCall::GetCurrentDirectory, [place, 4096]);
            }
            let up = program.store(b"/\0");
            assert_eq!(program.call(SystemCall::ChangeDirectory, [up]), Ok(0));
            close(program, &[root, below, top, middle, other]);
            server(|server| server.changes = None);
        });
    }

    /// Makes all calls on files of a folder.
    fn make_all_calls(program: &mut Program) {
        let path = |program: &mut Program, name: &str| path_of(program, name);
        let on = |program: &mut Program, call, name: &str, last| {
            let name = path(program, name);
            assert_eq!(program.call(call, [HERE, name, last]), Ok(0));
        };
        let both = |program: &mut Program, call, from: &str, to: &str| {
            let (from, to) = (path(program, from), path(program, to));
            assert_eq!(program.call(call, [HERE, from, HERE, to, 0]), Ok(0));
        };
        // Bytes.
        let file = open(program, "file", flag::RDWR).unwrap();
        let end = open(program, "directory/inside", flag::WRONLY | flag::APPEND).unwrap();
        assert_eq!(read_at(program, file, 0, 5).as_deref(), Ok(&b"bytes"[..]));
        assert_eq!(write_at(program, file, b"more", 5), Ok(4));
        assert_eq!(write(program, end, b"end"), Ok(3));
        assert_eq!(synchronise(program, file), Ok(0));
        assert_eq!(program.call(SystemCall::Truncate, [file, 9000]), Ok(0));
        assert_eq!(program.call(SystemCall::ChangeMode, [file, 0o600]), Ok(0));
        status(program, file);
        let mapped = map(program, file, 8192);
        program.touch(mapped + 4096, 1, hal_api::Access::Write);
        program.write(mapped + 4096, b"store");
        assert_eq!(program.call(SystemCall::SynchroniseMemory, [mapped, 8192, 4]), Ok(0));
        // Names.
        let new = open(program, "new", flag::CREAT | flag::EXCL | flag::RDWR).unwrap();
        both(program, SystemCall::Link, "new", "second");
        both(program, SystemCall::Rename, "second", "third");
        assert_eq!(unlink(program, "new"), Ok(0));
        assert_eq!(unlink(program, "third"), Ok(0));
        assert_eq!(write(program, new, b"nameless"), Ok(8));
        on(program, SystemCall::MakeDirectory, "made", 0o755);
        let (target, link) = (program.store(b"file\0"), path(program, "link"));
        assert_eq!(program.call(SystemCall::SymbolicLink, [target, HERE, link]), Ok(0));
        let through = open(program, "link", 0).unwrap();
        assert_eq!(unlink(program, "link"), Ok(0));
        let listed = open(program, "made", flag::DIRECTORY).unwrap();
        let room = program.place(1024);
        assert!(program.call(SystemCall::ReadDirectory, [listed, room, 1024]).unwrap() > 0);
        on(program, SystemCall::Unlink, "made", abi_unix::types::AT_REMOVEDIR as usize);
        // Below a bind.
        let bound = program.store(b"/tmp/bound/inside\0");
        let inside = program.call(SystemCall::Open, [HERE, bound, flag::RDWR as usize, 0]).unwrap();
        let bound = program.store(b"/tmp/bound/made\0");
        let made = program.call(SystemCall::Open, [HERE, bound, (flag::CREAT | flag::RDWR) as usize, 0o600]).unwrap();
        assert_eq!(program.call(SystemCall::Unlink, [HERE, bound, 0]), Ok(0));
        assert_eq!(program.call(SystemCall::Unmap, [mapped, 8192]), Ok(0));
        close(program, &[file, end, new, through, listed, inside, made]);
    }

    /// Its calls are dropped wherever they wait, and nothing of them is left.
    #[test]
    fn a_process_is_killed_at_each_message_of_its_calls() {
        with_folder(|program, host| {
            fs::create_dir(host.join("directory")).unwrap();
            let (from, to) = (path_of(program, "directory"), program.store(b"/tmp/bound\0"));
            assert_eq!(program.call(SystemCall::MakeDirectory, [HERE, to, 0o755]), Ok(0));
            let bind = abi_unix::types::mounting::flag::BIND as usize;
            assert_eq!(program.call(SystemCall::Mount, [from, to, 0, bind, 0]), Ok(0));
            let mut counts = Vec::new();
            for answers in 0.. {
                for name in ["new", "second", "third", "link", "directory/made"] {
                    let _ = fs::remove_file(host.join(name));
                }
                let _ = fs::remove_dir(host.join("made"));
                fs::write(host.join("file"), "bytes").unwrap();
                fs::write(host.join("directory/inside"), "inside").unwrap();
                counts.push(server(|server| server.held()));
                server(|server| server.answers = Some(answers));
                let child = program.fork(make_all_calls).unwrap();
                program.sleep_ns(1_000_000);
                let waits = server(|server| server.is_silent() && server.has_a_message());
                let signal = abi_unix::types::signal::KILL;
                assert_eq!(program.call(SystemCall::Kill, [child, signal as usize]), Ok(0));
                let (_, status) = program.wait_for(child).unwrap();
                go_on();
                // Pages to which it may have stored are in use until they are with the host, and looked at once more.
                for _ in 0..2 {
                    assert_eq!(program.call(SystemCall::Synchronise, []), Ok(0));
                }
                program.sleep_ns(1_000_000);
                if status == 0 && !waits {
                    break;
                }
                assert!(status == signal || status == 0, "after {answers} answers: {status}");
                assert!(answers < 1000, "it comes to no end");
            }
            assert!(counts.len() > 100 && counts.iter().all(|held| *held == counts[0]), "{counts:?}");
            assert_eq!(program.call(SystemCall::Unmount, [to, 0]), Ok(0));
            let removes = abi_unix::types::AT_REMOVEDIR as usize;
            assert_eq!(program.call(SystemCall::Unlink, [HERE, to, removes]), Ok(0));
        });
    }
}
