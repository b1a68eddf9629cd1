//! The folder, and the files of it that are held.

use alloc::vec::Vec;

use crate::wire::{self, HEADER, NO_TAG, Reader, TAG, Writer, kind};
use crate::{Channel, Error};

/// The dialect of the protocol.
const VERSION: &[u8] = b"9P2000.L";
/// Number of files that may be held at once.
const MOST_HELD: u32 = 1 << 16;
/// The shortest message on which both sides may agree.
const LEAST_BYTES: usize = 4096;
/// Bytes of a message around those that are read or written.
const AROUND_DATA: usize = HEADER + 16;
/// No file that is held, in a message.
const NOTHING: u32 = u32::MAX;
/// No user, in a message to begin.
const NOBODY: u32 = u32::MAX;
/// The attributes of a file that are asked for: those of Linux's `stat`.
const BASIC: u64 = 0x7ff;
/// Of the removal of a directory.
const REMOVES_DIRECTORY: u32 = 0x200;

/// Linux's flags of an opening.
mod open_flag {
    pub const WRITE_ONLY: u32 = 1;
    pub const READ_WRITE: u32 = 2;
    pub const CREATE: u32 = 0o100;
    pub const EXCLUSIVE: u32 = 0o200;
    pub const APPEND: u32 = 0o2000;
    pub const LARGE_FILE: u32 = 0o100_000;
    pub const DIRECTORY: u32 = 0o200_000;
    pub const NO_FOLLOW: u32 = 0o400_000;
}

/// Bits of a change of attributes.
mod change_bit {
    pub const MODE: u32 = 1;
    pub const USER: u32 = 2;
    pub const GROUP: u32 = 4;
    pub const SIZE: u32 = 8;
    pub const ACCESSED: u32 = 0x10;
    pub const MODIFIED: u32 = 0x20;
    pub const ACCESSED_IS_GIVEN: u32 = 0x80;
    pub const MODIFIED_IS_GIVEN: u32 = 0x100;
}

/// A file that the other machine holds for this one. It must be [let go](Folder::let_go).
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Held(u32);

impl Held {
    /// Nothing that is held, in the place of something that will be. Only letting it go has no effect.
    pub const NOTHING: Held = Held(NOTHING);
}

/// The identity of a file, which others of the folder do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Its number.
    pub number: u64,
}

/// The use for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A file is read.
    Read,
    /// A file is written.
    Write,
    /// Both.
    ReadWrite,
    /// A file is written at its end, wherever a message says.
    Append,
    /// A directory is listed.
    List,
}

impl Opening {
    fn flags(self) -> u32 {
        let access = match self {
            Opening::Read => 0,
            Opening::Write => open_flag::WRITE_ONLY,
            Opening::ReadWrite => open_flag::READ_WRITE,
            Opening::Append => open_flag::WRITE_ONLY | open_flag::APPEND,
            Opening::List => open_flag::DIRECTORY,
        };
        access | open_flag::LARGE_FILE | open_flag::NO_FOLLOW
    }
}

/// A time: seconds since 1970, and nanoseconds after that.
pub type Time = (i64, u32);

/// A file as `stat` tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub number: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Number of names.
    pub links: u64,
    /// The number of a device.
    pub device: u64,
    /// Length in bytes.
    pub size: u64,
    /// Units of 512 bytes that it takes.
    pub sectors: u64,
    /// The last access, the last change of contents and the last change.
    pub times: [Time; 3],
}

/// Attributes to be changed. `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// The permissions.
    pub permissions: Option<u32>,
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// The length.
    pub size: Option<u64>,
    /// The last access.
    pub accessed: Option<Time>,
    /// The last change of contents.
    pub modified: Option<Time>,
}

/// A name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the file.
    pub number: u64,
    /// The place of the next name.
    pub next: u64,
    /// The type, as in a listing of Linux (`DT_REG` and its like).
    pub kind: u8,
    /// The name.
    pub name: Vec<u8>,
}

/// Sizes of the file system that the folder is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of a block.
    pub block_size: u32,
    /// Number of blocks, and of those that may be used.
    pub blocks: (u64, u64),
    /// Number of files that it can have, and of those that it can have yet.
    pub files: (u64, u64),
}

/// A folder of the other machine.
#[derive(Debug)]
pub struct Folder<C> {
    channel: C,
    /// A message, and its answer.
    message: Vec<u8>,
    answer: Vec<u8>,
    /// The tag of the present message.
    tag: u16,
    /// Numbers of files that were let go, and the lowest one that was never used.
    free: Vec<u32>,
    next: u32,
}

fn buffer(bytes: usize) -> Result<Vec<u8>, Error> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| Error::OutOfMemory)?;
    buffer.resize(bytes, 0);
    Ok(buffer)
}

fn identity(answer: &mut Reader<'_>) -> Result<Identity, Error> {
    const IS_DIRECTORY: u8 = 0x80;
    let kind = answer.u8()?;
    let _version = answer.u32()?;
    Ok(Identity { is_directory: kind & IS_DIRECTORY != 0, number: answer.u64()? })
}

fn time(answer: &mut Reader<'_>) -> Result<Time, Error> {
    let (seconds, nanoseconds) = (answer.u64()?, answer.u64()?);
    let nanoseconds = u32::try_from(nanoseconds).ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000);
    Ok((seconds as i64, nanoseconds.ok_or(Error::Damaged)?))
}

/// Whether a mode has the kind of a file: FIFO, device, directory, file, symbolic link or socket.
fn is_kind(mode: u32) -> bool {
    matches!(mode >> 12 & 0xf, 1 | 2 | 4 | 6 | 8 | 10 | 12)
}

/// Returns a copy of a name that can be one.
fn name_of(text: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    if !wire::is_name(text) {
        return Ok(None);
    }
    copy_of(text).map(Some)
}

fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Error::OutOfMemory)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

impl<C: Channel> Folder<C> {
    /// Begins to use the folder behind a channel; returns it with its topmost directory.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the other side does not know the protocol; else as all operations.
    pub fn begin(channel: C) -> Result<(Folder<C>, Held, Identity), Error> {
        let most = channel.most_bytes();
        if most < LEAST_BYTES {
            return Err(Error::Failed);
        }
        let (message, answer) = (buffer(most)?, buffer(most)?);
        let mut folder = Folder { channel, message, answer, tag: NO_TAG, free: Vec::new(), next: 0 };
        let mut agreed = folder.ask(kind::VERSION, |message| message.u32(most as u32).text(VERSION))?;
        let (bytes, version) = (agreed.u32()? as usize, agreed.text()?);
        if version != VERSION || !(LEAST_BYTES..=most).contains(&bytes) {
            return Err(Error::Damaged);
        }
        folder.message.truncate(bytes);
        folder.tag = TAG;
        let top = folder.new_number()?;
        let mut attached =
            folder.ask(kind::ATTACH, |message| message.u32(top).u32(NOBODY).text(b"").text(b"").u32(0))?;
        let found = identity(&mut attached)?;
        Ok((folder, Held(top), found))
    }

    /// Returns the channel.
    pub fn channel(&mut self) -> &mut C {
        &mut self.channel
    }

    /// Sends a message and returns its answer.
    fn ask(&mut self, kind: u8, write: impl FnOnce(Writer<'_>) -> Writer<'_>) -> Result<Reader<'_>, Error> {
        let length = write(Writer::new(&mut self.message, kind, self.tag)).end()?;
        let answered = self.channel.exchange(&self.message[..length], &mut self.answer)?;
        let answer = self.answer.get(..answered).ok_or(Error::Damaged)?;
        Reader::of_answer(answer, kind, self.tag)
    }

    fn new_number(&mut self) -> Result<u32, Error> {
        if let Some(number) = self.free.pop() {
            return Ok(number);
        }
        if self.next == MOST_HELD {
            return Err(Error::OutOfMemory);
        }
        // So that there is room for it when it is let go.
        let room = (self.next as usize + 1).next_power_of_two();
        self.free.try_reserve(room.saturating_sub(self.free.len())).map_err(|_| Error::OutOfMemory)?;
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Takes a number back whose file the other machine does not hold.
    fn take_back(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Holds the file with a name in a directory that is held.
    ///
    /// # Errors
    /// [`Error`].
    pub fn walk(&mut self, from: &Held, name: &[u8]) -> Result<(Held, Identity), Error> {
        let number = self.new_number()?;
        let found = self.ask(kind::WALK, |message| message.u32(from.0).u32(number).u16(1).text(name));
        let found = found.and_then(|mut answer| match answer.u16()? {
            1 => identity(&mut answer),
            _ => Err(Error::Damaged),
        });
        match found {
            Ok(found) => Ok((Held(number), found)),
            Err(error) => {
                self.take_back(number);
                Err(error)
            }
        }
    }

    /// Holds a file once more.
    ///
    /// # Errors
    /// [`Error`].
    pub fn hold_again(&mut self, held: &Held) -> Result<Held, Error> {
        let number = self.new_number()?;
        match self.ask(kind::WALK, |message| message.u32(held.0).u32(number).u16(0)).map(drop) {
            Ok(()) => Ok(Held(number)),
            Err(error) => {
                self.take_back(number);
                Err(error)
            }
        }
    }

    /// Lets a file go, whatever the other machine answers.
    pub fn let_go(&mut self, held: Held) {
        if held == Held::NOTHING {
            return;
        }
        let _ = self.ask(kind::LET_GO, |message| message.u32(held.0));
        self.take_back(held.0);
    }

    /// Opens a file that is held. It leads to no other one from then on. Returns the identity of the file: the one that
    /// had its path at this moment.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(&mut self, held: &Held, opening: Opening) -> Result<Identity, Error> {
        identity(&mut self.ask(kind::OPEN, |message| message.u32(held.0).u32(opening.flags()))?)
    }

    /// Makes a file that there is not; returns it open, to read and write, with its identity.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create(
        &mut self,
        directory: &Held,
        name: &[u8],
        permissions: u32,
        group: u32,
    ) -> Result<(Held, Identity), Error> {
        let held = self.hold_again(directory)?;
        let flags = Opening::ReadWrite.flags() | open_flag::CREATE | open_flag::EXCLUSIVE;
        let made =
            self.ask(kind::CREATE, |message| message.u32(held.0).text(name).u32(flags).u32(permissions).u32(group));
        match made.and_then(|mut answer| identity(&mut answer)) {
            Ok(made) => Ok((held, made)),
            Err(error) => {
                self.let_go(held);
                Err(error)
            }
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn make_directory(&mut self, directory: &Held, name: &[u8], permissions: u32, group: u32) -> Result<(), Error> {
        let asked =
            self.ask(kind::MAKE_DIRECTORY, |message| message.u32(directory.0).text(name).u32(permissions).u32(group));
        asked.map(drop)
    }

    /// Makes a device, FIFO or socket, whose mode has its kind.
    ///
    /// # Errors
    /// [`Error`].
    pub fn make_node(&mut self, directory: &Held, name: &[u8], mode: u32, group: u32) -> Result<(), Error> {
        let asked =
            self.ask(kind::MAKE_NODE, |message| message.u32(directory.0).text(name).u32(mode).u32(0).u32(0).u32(group));
        asked.map(drop)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`Error`].
    pub fn make_link(&mut self, directory: &Held, name: &[u8], target: &[u8], group: u32) -> Result<(), Error> {
        let asked = self.ask(kind::MAKE_LINK, |message| message.u32(directory.0).text(name).text(target).u32(group));
        asked.map(drop)
    }

    /// Reads a symbolic link, whose target has at most so many bytes.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a longer one or one that is none; else [`Error`].
    pub fn read_link(&mut self, held: &Held, most: usize) -> Result<Vec<u8>, Error> {
        let mut answer = self.ask(kind::READ_LINK, |message| message.u32(held.0))?;
        let target = answer.text()?;
        if target.is_empty() || target.len() > most || target.contains(&0) {
            return Err(Error::Damaged);
        }
        copy_of(target)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// [`Error`].
    pub fn link(&mut self, directory: &Held, file: &Held, name: &[u8]) -> Result<(), Error> {
        self.ask(kind::LINK, |message| message.u32(directory.0).u32(file.0).text(name)).map(drop)
    }

    /// Renames a file, and replaces the one with the new name.
    ///
    /// # Errors
    /// [`Error`].
    pub fn rename(&mut self, from: (&Held, &[u8]), to: (&Held, &[u8])) -> Result<(), Error> {
        self.ask(kind::RENAME, |message| message.u32(from.0.0).text(from.1).u32(to.0.0).text(to.1)).map(drop)
    }

    /// Removes a name of a file, or of a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove(&mut self, directory: &Held, name: &[u8], is_directory: bool) -> Result<(), Error> {
        let flags = if is_directory { REMOVES_DIRECTORY } else { 0 };
        self.ask(kind::REMOVE, |message| message.u32(directory.0).text(name).u32(flags)).map(drop)
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attributes(&mut self, held: &Held) -> Result<Attributes, Error> {
        let mut answer = self.ask(kind::ATTRIBUTES, |message| message.u32(held.0).u64(BASIC))?;
        let valid = answer.u64()?;
        if valid & BASIC != BASIC {
            return Err(Error::Damaged);
        }
        let number = identity(&mut answer)?.number;
        let mode = answer.u32()?;
        let owner = (answer.u32()?, answer.u32()?);
        let (links, device, size) = (answer.u64()?, answer.u64()?, answer.u64()?);
        let (_block_size, sectors) = (answer.u64()?, answer.u64()?);
        let times = [time(&mut answer)?, time(&mut answer)?, time(&mut answer)?];
        if size > i64::MAX as u64 || sectors > u64::MAX / 512 || !is_kind(mode) {
            return Err(Error::Damaged);
        }
        Ok(Attributes { number, mode, owner, links, device, size, sectors, times })
    }

    /// Changes attributes of a file.
    ///
    /// # Errors
    /// [`Error`].
    pub fn change(&mut self, held: &Held, change: &Change) -> Result<(), Error> {
        use change_bit::*;
        let mut bits = 0;
        let mut note = |is_changed: bool, of: u32| bits |= if is_changed { of } else { 0 };
        note(change.permissions.is_some(), MODE);
        note(change.owner.is_some(), USER | GROUP);
        note(change.size.is_some(), SIZE);
        note(change.accessed.is_some(), ACCESSED | ACCESSED_IS_GIVEN);
        note(change.modified.is_some(), MODIFIED | MODIFIED_IS_GIVEN);
        let (user, group) = change.owner.unwrap_or_default();
        let (accessed, modified) = (change.accessed.unwrap_or_default(), change.modified.unwrap_or_default());
        let asked = self.ask(kind::CHANGE, |message| {
            let message = message.u32(held.0).u32(bits).u32(change.permissions.unwrap_or(0)).u32(user).u32(group);
            let message = message.u64(change.size.unwrap_or(0)).u64(accessed.0 as u64).u64(accessed.1.into());
            message.u64(modified.0 as u64).u64(modified.1.into())
        });
        asked.map(drop)
    }

    /// Reads bytes of an open file from a place on, fewer than wanted where a message ends; returns their number, 0 at
    /// the end.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(&mut self, held: &Held, offset: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        let wanted = bytes.len().min(self.message.len() - AROUND_DATA);
        let mut answer = self.ask(kind::READ, |message| message.u32(held.0).u64(offset).u32(wanted as u32))?;
        let count = answer.u32()? as usize;
        let found = answer.take(count)?;
        bytes.get_mut(..count).filter(|_| count <= wanted).ok_or(Error::Damaged)?.copy_from_slice(found);
        Ok(count)
    }

    /// Writes bytes to an open file from a place on, fewer than there are where a message ends; returns their number,
    /// at least 1.
    ///
    /// # Errors
    /// [`Error`].
    pub fn write(&mut self, held: &Held, offset: u64, bytes: &[u8]) -> Result<usize, Error> {
        let bytes = &bytes[..bytes.len().min(self.message.len() - AROUND_DATA)];
        let mut answer = self.ask(kind::WRITE, |message| message.u32(held.0).u64(offset).data(bytes))?;
        let count = answer.u32()? as usize;
        if (1..=bytes.len()).contains(&count) || bytes.is_empty() && count == 0 {
            Ok(count)
        } else {
            Err(Error::Damaged)
        }
    }

    /// Lists names of an open directory from a place on, 0 at first, at most so many; none at the end.
    ///
    /// # Errors
    /// [`Error::Damaged`] if there are only such as cannot be names; else [`Error`].
    pub fn list(&mut self, held: &Held, place: u64, most: usize) -> Result<Vec<Entry>, Error> {
        let wanted = self.message.len() - AROUND_DATA;
        let mut answer = self.ask(kind::LIST, |message| message.u32(held.0).u64(place).u32(wanted as u32))?;
        let count = answer.u32()? as usize;
        let mut listed = answer;
        let mut listed = Reader::of(listed.take(count)?);
        let (mut entries, mut were_others) = (Vec::new(), false);
        while !listed.is_empty() && entries.len() < most {
            let number = identity(&mut listed)?.number;
            let (next, kind) = (listed.u64()?, listed.u8()?);
            match name_of(listed.text()?)?.filter(|_| next <= i64::MAX as u64) {
                Some(name) => {
                    entries.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
                    entries.push(Entry { number, next, kind, name });
                }
                None => were_others = true,
            }
        }
        if entries.is_empty() && were_others { Err(Error::Damaged) } else { Ok(entries) }
    }

    /// Has the bytes of an open file last on the other machine, with its attributes or only those that are needed to
    /// find them.
    ///
    /// # Errors
    /// [`Error`].
    pub fn synchronise(&mut self, held: &Held, is_of_data: bool) -> Result<(), Error> {
        self.ask(kind::SYNCHRONISE, |message| message.u32(held.0).u32(is_of_data.into())).map(drop)
    }

    /// Returns the sizes of the file system.
    ///
    /// # Errors
    /// [`Error`].
    pub fn sizes(&mut self, held: &Held) -> Result<Sizes, Error> {
        let mut answer = self.ask(kind::SIZES, |message| message.u32(held.0))?;
        let (_kind, block_size) = (answer.u32()?, answer.u32()?);
        let (all, _free, usable) = (answer.u64()?, answer.u64()?, answer.u64()?);
        let files = (answer.u64()?, answer.u64()?);
        Ok(Sizes { block_size, blocks: (all, usable), files })
    }
}
