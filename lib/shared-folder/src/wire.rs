//! Messages as bytes.

use crate::Error;

/// Bytes before a message's own ones: length, type and tag.
pub const HEADER: usize = 7;
/// The tag of all messages but the first.
pub const TAG: u16 = 1;
/// The tag of the first message.
pub const NO_TAG: u16 = 0xffff;
/// The longest name.
pub const LONGEST_NAME: usize = 255;

/// Types of messages. That of an answer is the one behind.
pub mod kind {
    /// An answer that refuses.
    pub const REFUSED: u8 = 7;
    /// Sizes of the file system.
    pub const SIZES: u8 = 8;
    /// Opens a file that is held.
    pub const OPEN: u8 = 12;
    /// Makes a file and opens it.
    pub const CREATE: u8 = 14;
    /// Makes a symbolic link.
    pub const MAKE_LINK: u8 = 16;
    /// Makes a device, FIFO or socket.
    pub const MAKE_NODE: u8 = 18;
    /// Reads a symbolic link.
    pub const READ_LINK: u8 = 22;
    /// Attributes.
    pub const ATTRIBUTES: u8 = 24;
    /// Changes attributes.
    pub const CHANGE: u8 = 26;
    /// Lists names.
    pub const LIST: u8 = 40;
    /// Has changes last.
    pub const SYNCHRONISE: u8 = 50;
    /// Gives a file another name.
    pub const LINK: u8 = 70;
    /// Makes a directory.
    pub const MAKE_DIRECTORY: u8 = 72;
    /// Renames.
    pub const RENAME: u8 = 74;
    /// Removes a name.
    pub const REMOVE: u8 = 76;
    /// Agrees on the version and the longest message.
    pub const VERSION: u8 = 100;
    /// Begins to use the folder.
    pub const ATTACH: u8 = 104;
    /// Goes from a file that is held to another.
    pub const WALK: u8 = 110;
    /// Reads.
    pub const READ: u8 = 116;
    /// Writes.
    pub const WRITE: u8 = 118;
    /// Lets a file go.
    pub const LET_GO: u8 = 120;
}

/// A message that is written. Bytes for which there is no room are left out, and noted.
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    length: usize,
    is_whole: bool,
}

impl<'a> Writer<'a> {
    /// Begins a message of this type.
    pub fn new(bytes: &'a mut [u8], kind: u8, tag: u16) -> Writer<'a> {
        let mut message = Writer { bytes, length: 0, is_whole: true };
        message.put(&[0; 4]);
        message.put(&[kind]);
        message.put(&tag.to_le_bytes());
        message
    }

    fn put(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.length..self.length + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.is_whole = false,
        }
    }

    /// Adds a number of 16 bits.
    pub fn u16(mut self, number: u16) -> Self {
        self.put(&number.to_le_bytes());
        self
    }

    /// Adds a number of 32 bits.
    pub fn u32(mut self, number: u32) -> Self {
        self.put(&number.to_le_bytes());
        self
    }

    /// Adds a number of 64 bits.
    pub fn u64(mut self, number: u64) -> Self {
        self.put(&number.to_le_bytes());
        self
    }

    /// Adds a text with its length.
    pub fn text(mut self, text: &[u8]) -> Self {
        match u16::try_from(text.len()) {
            Ok(length) => {
                self.put(&length.to_le_bytes());
                self.put(text);
            }
            Err(_) => self.is_whole = false,
        }
        self
    }

    /// Adds bytes with their number.
    pub fn data(mut self, bytes: &[u8]) -> Self {
        self.put(&(bytes.len() as u32).to_le_bytes());
        self.put(bytes);
        self
    }

    /// Ends the message; returns its length.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it is longer than a message may be.
    pub fn end(self) -> Result<usize, Error> {
        let Some(length) = self.bytes.get_mut(..4).filter(|_| self.is_whole) else { return Err(Error::OutOfMemory) };
        length.copy_from_slice(&(self.length as u32).to_le_bytes());
        Ok(self.length)
    }
}

/// An answer that is read.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads a part of an answer.
    pub fn of(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Begins to read the answer to a message of this type.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason, [`Error::Damaged`] if it is no such answer.
    pub fn of_answer(bytes: &'a [u8], kind: u8, tag: u16) -> Result<Reader<'a>, Error> {
        let mut answer = Reader(bytes);
        let (length, its_kind, its_tag) = (answer.u32()?, answer.u8()?, answer.u16()?);
        if length as usize != bytes.len() || its_tag != tag {
            return Err(Error::Damaged);
        }
        match its_kind {
            kind::REFUSED => match answer.u32()? {
                // An error that says that there is none.
                0 => Err(Error::Damaged),
                reason => Err(Error::Refused(reason)),
            },
            its_kind if its_kind == kind + 1 => Ok(answer),
            _ => Err(Error::Damaged),
        }
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// [`Error::Damaged`] at the end, here and below.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Error::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| Error::Damaged)
    }

    /// Takes a byte.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn u8(&mut self) -> Result<u8, Error> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Takes a number of 16 bits.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes a number of 32 bits.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a number of 64 bits.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes a text with its length.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn text(&mut self) -> Result<&'a [u8], Error> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether these bytes can be a file's name in a directory.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
