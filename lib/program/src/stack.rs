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
//! The image is built in a buffer and not in the new process's memory, so that it can be checked against a limit before
//! the old program is given up, and so that this code knows nothing of address spaces. The numbers of auxiliary types
//! belong to the system-call interface; here they are only numbers.

use alloc::vec::Vec;
use core::fmt;

/// The alignment the RISC-V calling convention demands of the stack pointer.
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

/// Why a stack could not be built.
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

/// What goes on the stack.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'data, Text> {
    /// `argv`, the program's name first.
    pub arguments: &'data [Text],
    /// `envp`, each `NAME=value`.
    pub environment: &'data [Text],
    /// Types and values, without the pair of zeros that ends the vector.
    pub auxiliary: &'data [(u64, AuxiliaryValue<'data>)],
}

/// The finished bytes: copy them to [`StackImage::pointer`] and start the program with that stack pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackImage {
    pointer: u64,
    bytes: Vec<u8>,
}

impl StackImage {
    /// The initial stack pointer, 16-byte aligned: the address of the first byte.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// What lies from the stack pointer upwards.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<Text: AsRef<[u8]>> Contents<'_, Text> {
    /// Lays the contents out below `top`, the first address above the stack, in at most `limit` bytes.
    ///
    /// # Errors
    /// [`StackError`]; nothing is allocated beyond `limit`.
    pub fn build(&self, top: u64, limit: usize) -> Result<StackImage, StackError> {
        for text in self.arguments.iter().chain(self.environment) {
            check_text(text.as_ref())?;
        }
        for (_, value) in self.auxiliary {
            if let AuxiliaryValue::Text(text) = value {
                check_text(text)?;
            }
        }

        // The size first, with checked arithmetic; from then on nothing can fail.
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
        let length = usize::try_from(length).map_err(|_| StackError::TooBig)?;
        if length > limit {
            return Err(StackError::TooBig);
        }

        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| StackError::OutOfMemory)?;
        bytes.resize(length, 0);
        let (vectors, data) = bytes.split_at_mut(length - data_length as usize);
        let mut writer =
            Writer { vectors: vectors.chunks_exact_mut(WORD as usize), data, data_address: top - data_length, used: 0 };
        writer.lay_out(self);
        Ok(StackImage { pointer, bytes })
    }

    fn word_count(&self) -> Option<u64> {
        let pointers = self.arguments.len().checked_add(self.environment.len())?;
        let pairs = self.auxiliary.len().checked_add(1)?;
        // The count and the two null pointers are the three.
        let words = pointers.checked_add(pairs.checked_mul(2)?)?.checked_add(3)?;
        u64::try_from(words).ok()
    }

    /// The bytes of the part above the vectors. Aligned bytes come first, so that nothing is lost between them and
    /// text.
    fn data_length(&self) -> Option<u64> {
        let mut length = 0u64;
        for (_, value) in self.auxiliary {
            if let AuxiliaryValue::Bytes(bytes) = value {
                length = length.checked_add(bytes.len() as u64)?.checked_next_multiple_of(ALIGNMENT)?;
            }
        }
        let texts = self.auxiliary.iter().filter_map(|(_, value)| match value {
            AuxiliaryValue::Text(text) => Some(*text),
            _ => None,
        });
        let strings = self.arguments.iter().chain(self.environment);
        for text in texts.chain(strings.map(AsRef::as_ref)) {
            length = length.checked_add(text.len() as u64)?.checked_add(1)?;
        }
        Some(length)
    }
}

fn check_text(text: &[u8]) -> Result<(), StackError> {
    if text.contains(&0) { Err(StackError::NulInString) } else { Ok(()) }
}

/// Fills the two parts of the image. The sizes were computed by [`Contents::build`], in the same order.
struct Writer<'bytes> {
    vectors: core::slice::ChunksExactMut<'bytes, u8>,
    data: &'bytes mut [u8],
    data_address: u64,
    used: usize,
}

impl Writer<'_> {
    fn lay_out<Text: AsRef<[u8]>>(&mut self, contents: &Contents<'_, Text>) {
        // Aligned bytes go to the start of the data, in the order of the vector; their addresses follow from their
        // lengths again below, when the vector itself is written.
        for (_, value) in contents.auxiliary {
            if let AuxiliaryValue::Bytes(bytes) = value {
                self.put(bytes);
                self.used = self.used.next_multiple_of(ALIGNMENT as usize);
            }
        }
        self.word(contents.arguments.len() as u64);
        self.texts(contents.arguments);
        self.texts(contents.environment);
        let mut aligned = self.data_address;
        for &(kind, value) in contents.auxiliary {
            self.word(kind);
            let value = match value {
                AuxiliaryValue::Number(number) => number,
                AuxiliaryValue::Bytes(bytes) => {
                    let address = aligned;
                    aligned = (aligned + bytes.len() as u64).next_multiple_of(ALIGNMENT);
                    address
                }
                AuxiliaryValue::Text(text) => self.text(text),
            };
            self.word(value);
        }
        self.word(0);
        self.word(0);
    }

    fn texts<Text: AsRef<[u8]>>(&mut self, texts: &[Text]) {
        for text in texts {
            let address = self.text(text.as_ref());
            self.word(address);
        }
        self.word(0);
    }

    fn text(&mut self, text: &[u8]) -> u64 {
        let address = self.put(text);
        self.used += 1; // the NUL: the buffer is zero
        address
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let address = self.data_address + self.used as u64;
        self.data[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
        address
    }

    fn word(&mut self, word: u64) {
        if let Some(place) = self.vectors.next() {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
}
