//! The first contents of a process's stack: arguments, environment and auxiliary vector.
//!
//! Linux defines the layout and every C library and language runtime reads it before `main`. From low addresses to
//! high:
//!
//! ```text
//! stack pointer -> argument count            8 bytes, and the pointer is 16-byte aligned
//!                  argument pointers         8 bytes each, then a null pointer
//!                  environment pointers      8 bytes each, then a null pointer
//!                  auxiliary vector          pairs of 8 bytes (type, value), then a pair of zeros
//!                  padding
//!                  bytes of the auxiliary vector, arguments, environment, all strings NUL-terminated
//! top ->           the first address above the stack, rounded down to 16
//! ```
//!
//! The layout is decided before anything is written, so that it can be checked against a limit before the old program
//! is given up, and this code is independent of address spaces. It yields words and pieces of bytes one after the
//! other: with thousands of arguments the whole takes long, and the code that copies them can pause in between. The
//! numbers of auxiliary types belong to the system-call interface; here they are only numbers.

use alloc::vec::Vec;
use core::fmt;

use tables::Segments;

/// Alignment of the stack pointer in the RISC-V calling convention.
const ALIGNMENT: u64 = 16;
const WORD: u64 = 8;

/// The value of an entry of the auxiliary vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuxiliaryValue<'data> {
    /// The value itself, as for `AT_PAGESZ`.
    Number(u64),
    /// The address of a copy of these bytes, 16-byte aligned, as for `AT_RANDOM`.
    Bytes(&'data [u8]),
    /// The address of a NUL-terminated copy of these bytes, as for `AT_EXECFN`.
    Text(&'data [u8]),
}

/// Reason why a stack could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackError {
    /// The arguments and the environment together do not fit: `E2BIG`.
    TooBig,
    /// A string contains a NUL byte, so that the program would see only its start: `EINVAL`.
    NulInString,
    /// `ENOMEM`.
    OutOfMemory,
}

impl fmt::Display for StackError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            StackError::TooBig => "the arguments and the environment are too long",
            StackError::NulInString => "an argument or a variable contains a NUL byte",
            StackError::OutOfMemory => "not enough memory for the arguments and the environment",
        })
    }
}

impl core::error::Error for StackError {}

/// Strings, one behind the other as they will lie on the stack, each with its NUL. They are kept in pieces, so that
/// adding one moves no other.
#[derive(Debug, Default)]
pub struct Texts {
    pieces: Vec<Vec<u8>>,
    /// Length of each string, with its NUL.
    lengths: Segments<u32>,
    /// Length of all strings.
    total: usize,
    /// Length of the unfinished string.
    unfinished: usize,
}

/// Bytes of a piece.
const PIECE: usize = 4096;

impl Texts {
    /// Makes an empty list.
    pub const fn new() -> Texts {
        Texts { pieces: Vec::new(), lengths: Segments::new(), total: 0, unfinished: 0 }
    }

    /// Makes a list of these strings.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn of<Text: AsRef<[u8]>>(strings: &[Text]) -> Result<Texts, StackError> {
        let mut texts = Texts::new();
        for string in strings {
            texts.push(string.as_ref())?;
        }
        Ok(texts)
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Returns the length of all strings, with their NULs, in bytes.
    pub fn bytes(&self) -> usize {
        self.total
    }

    /// Adds a string.
    ///
    /// # Errors
    /// [`StackError`]; then the list must be discarded.
    pub fn push(&mut self, string: &[u8]) -> Result<(), StackError> {
        self.push_part(string)?;
        self.end()
    }

    /// Adds a part of a string, which is added when it [ends](Self::end).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_part(&mut self, part: &[u8]) -> Result<(), StackError> {
        check_text(part)?;
        self.put(part)
    }

    /// Ends a string.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn end(&mut self) -> Result<(), StackError> {
        self.put(&[0])?;
        self.lengths.reserve(1).map_err(|_| StackError::OutOfMemory)?;
        let length = u32::try_from(core::mem::take(&mut self.unfinished)).map_err(|_| StackError::TooBig)?;
        self.lengths.push(length);
        self.total += length as usize;
        Ok(())
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<(), StackError> {
        self.unfinished += bytes.len();
        while !bytes.is_empty() {
            match self.pieces.last_mut() {
                Some(piece) if piece.len() < PIECE => {
                    let (now, later) = bytes.split_at(bytes.len().min(PIECE - piece.len()));
                    // The first piece grows by doubling.
                    piece.try_reserve(now.len()).map_err(|_| StackError::OutOfMemory)?;
                    piece.extend_from_slice(now);
                    bytes = later;
                }
                others => {
                    let mut piece = Vec::new();
                    if others.is_some() {
                        piece.try_reserve_exact(PIECE).map_err(|_| StackError::OutOfMemory)?;
                    }
                    self.pieces.try_reserve(1).map_err(|_| StackError::OutOfMemory)?;
                    self.pieces.push(piece);
                }
            }
        }
        Ok(())
    }

    /// Returns the address of each string, if the first is at `start`.
    fn addresses(&self, start: u64) -> impl Iterator<Item = u64> {
        self.lengths.iter().scan(start, |next, &length| Some(core::mem::replace(next, *next + u64::from(length))))
    }

    /// Returns the pieces with their addresses, if the first is at `start`.
    fn pieces(&self, start: u64) -> impl Iterator<Item = (u64, &[u8])> {
        self.pieces
            .iter()
            .scan(start, |next, piece| Some((core::mem::replace(next, *next + piece.len() as u64), &piece[..])))
    }
}

/// Contents of the first stack.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'data> {
    /// `argv`, the program's name first.
    pub arguments: &'data Texts,
    /// `envp`, each `NAME=value`.
    pub environment: &'data Texts,
    /// Types and values, without the pair of zeros that ends the vector.
    pub auxiliary: &'data [(u64, AuxiliaryValue<'data>)],
}

/// Layout of the first stack: start the program with [`StackImage::pointer`], and before that copy the
/// [words](StackImage::words) there and the [data](StackImage::data) to their addresses. The bytes in between are 0,
/// like fresh memory.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "argv")]
#[doc(alias = "auxv")]
pub struct StackImage<'data> {
    contents: Contents<'data>,
    pointer: u64,
    /// First byte above the words.
    data: u64,
}

impl<'data> Contents<'data> {
    /// Lays the contents out below `top`, the first address above the stack, in at most `limit` bytes.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn lay_out(&self, top: u64, limit: usize) -> Result<StackImage<'data>, StackError> {
        for (_, value) in self.auxiliary {
            if let AuxiliaryValue::Text(text) = value {
                check_text(text)?;
            }
        }
        // Checked arithmetic; from then on nothing can fail.
        let words = self.word_count().ok_or(StackError::TooBig)?;
        let data = self.data_length().ok_or(StackError::TooBig)?;
        let top = top & !(ALIGNMENT - 1);
        let data_length = data.checked_next_multiple_of(ALIGNMENT).ok_or(StackError::TooBig)?;
        let length = words
            .checked_mul(WORD)
            .and_then(|length| length.checked_next_multiple_of(ALIGNMENT))
            .and_then(|length| length.checked_add(data_length))
            .ok_or(StackError::TooBig)?;
        let pointer = top.checked_sub(length).ok_or(StackError::TooBig)?;
        if length > limit as u64 {
            return Err(StackError::TooBig);
        }
        Ok(StackImage { contents: *self, pointer, data: top - data_length })
    }

    fn word_count(&self) -> Option<u64> {
        let pointers = self.arguments.len().checked_add(self.environment.len())?;
        let pairs = self.auxiliary.len().checked_add(1)?;
        // The three are the count and the two null pointers.
        let words = pointers.checked_add(pairs.checked_mul(2)?)?.checked_add(3)?;
        u64::try_from(words).ok()
    }

    /// Returns the length of the part above the vectors. Aligned bytes come first, so that no padding is needed between
    /// them and text.
    fn data_length(&self) -> Option<u64> {
        let mut length = self.aligned_length()?;
        for text in self.texts() {
            length = length.checked_add(text.len() as u64)?.checked_add(1)?;
        }
        length.checked_add(self.arguments.bytes() as u64)?.checked_add(self.environment.bytes() as u64)
    }

    /// Returns the length of the aligned bytes.
    fn aligned_length(&self) -> Option<u64> {
        let mut length = 0u64;
        for (_, value) in self.auxiliary {
            if let AuxiliaryValue::Bytes(bytes) = value {
                length = length.checked_add(bytes.len() as u64)?.checked_next_multiple_of(ALIGNMENT)?;
            }
        }
        Some(length)
    }

    /// Returns the texts of the auxiliary vector.
    fn texts(&self) -> impl Iterator<Item = &'data [u8]> {
        self.auxiliary.iter().filter_map(|(_, value)| match value {
            AuxiliaryValue::Text(text) => Some(*text),
            _ => None,
        })
    }
}

impl<'data> StackImage<'data> {
    /// Returns the initial stack pointer, 16-byte aligned: the address of the first byte.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Returns the addresses at which the arguments, the environment and the texts of the auxiliary vector begin. They
    /// lie one behind the other.
    pub fn starts(&self) -> [u64; 3] {
        let arguments = self.data + self.contents.aligned_length().unwrap_or(0);
        let environment = arguments + self.contents.arguments.bytes() as u64;
        [arguments, environment, environment + self.contents.environment.bytes() as u64]
    }

    /// Returns the words from the stack pointer upwards: the count, the pointers and the auxiliary vector.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        let Contents { arguments, environment, auxiliary } = self.contents;
        let [first, second, mut text] = self.starts();
        let mut aligned = self.data;
        let auxiliary = auxiliary.iter().flat_map(move |&(kind, value)| {
            let value = match value {
                AuxiliaryValue::Number(number) => number,
                AuxiliaryValue::Bytes(bytes) => {
                    let after = (aligned + bytes.len() as u64).next_multiple_of(ALIGNMENT);
                    core::mem::replace(&mut aligned, after)
                }
                AuxiliaryValue::Text(string) => {
                    let after = text + string.len() as u64 + 1;
                    core::mem::replace(&mut text, after)
                }
            };
            [kind, value]
        });
        let pointers = arguments.addresses(first).chain([0]).chain(environment.addresses(second)).chain([0]);
        [arguments.len() as u64].into_iter().chain(pointers).chain(auxiliary).chain([0, 0])
    }

    /// Returns the data above the words, in pieces with their addresses.
    pub fn data(&self) -> impl Iterator<Item = (u64, &'data [u8])> {
        let Contents { arguments, environment, auxiliary } = self.contents;
        let [first, second, text] = self.starts();
        let aligned = auxiliary.iter().filter_map(|(_, value)| match value {
            AuxiliaryValue::Bytes(bytes) => Some(*bytes),
            _ => None,
        });
        let aligned = aligned.scan(self.data, |next, bytes| {
            let after = (*next + bytes.len() as u64).next_multiple_of(ALIGNMENT);
            Some((core::mem::replace(next, after), bytes))
        });
        let texts = self
            .contents
            .texts()
            .scan(text, |next, string| Some((core::mem::replace(next, *next + string.len() as u64 + 1), string)));
        aligned.chain(arguments.pieces(first)).chain(environment.pieces(second)).chain(texts)
    }
}

fn check_text(text: &[u8]) -> Result<(), StackError> {
    if text.contains(&0) { Err(StackError::NulInString) } else { Ok(()) }
}
