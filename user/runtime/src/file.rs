//! Files. Opening, closing and describing never wait here; reading and writing may.

use abi_unix::types::{Status, open};
use alloc::ffi::CString;
use alloc::string::String;
use alloc::vec::Vec;

use crate::io::{owns_descriptor, stream};
use unix::{Descriptor, Errno, Result};

/// An open file or device.
#[derive(Debug)]
pub struct File {
    descriptor: Descriptor,
}

stream!(File, read);
stream!(File, write);
owns_descriptor!(File);

/// A path as the kernel wants it.
///
/// # Errors
///
/// `EINVAL` if there is a NUL in it.
pub(crate) fn c_string(path: &str) -> Result<CString> {
    CString::new(path).map_err(|_| Errno::EINVAL)
}

impl File {
    /// Opens a file to read it.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EACCES`, `ENOTDIR`, `EMFILE`.
    pub fn open(path: &str) -> Result<File> {
        File::open_with(path, open::RDONLY)
    }

    /// Opens a file to read and write it; it is created if it does not exist, and emptied if it does.
    ///
    /// # Errors
    ///
    /// `EROFS`, `EACCES`, `EISDIR`, `ENOTDIR`, `EMFILE`, `ENOSPC`.
    pub fn create(path: &str) -> Result<File> {
        File::open_with(path, open::RDWR | open::CREAT | open::TRUNC)
    }

    /// Opens a file with flags of [`abi_unix::types::open`].
    ///
    /// # Errors
    ///
    /// As openat(2).
    pub fn open_with(path: &str, flags: u32) -> Result<File> {
        let descriptor = unix::file::open(&c_string(path)?, flags | open::CLOEXEC, 0o644)?;
        Ok(File { descriptor })
    }

    /// Describes the file.
    ///
    /// # Errors
    ///
    /// `EBADF` if the descriptor was closed behind its back.
    pub fn status(&self) -> Result<Status> {
        unix::file::status(self.descriptor.raw())
    }

    /// Moves the position; `whence` is one of `SEEK_SET`, `SEEK_CUR`, `SEEK_END`. Returns the new position.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `ESPIPE`.
    pub fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        unix::file::seek(self.descriptor.raw(), offset, whence)
    }

    /// Sets the length.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `EROFS`, `ENOSPC`.
    pub fn truncate(&self, length: u64) -> Result<()> {
        unix::file::truncate(self.descriptor.raw(), length)
    }
}

/// The whole contents of a file.
///
/// # Errors
///
/// As opening and reading.
///
/// # Cancellation
///
/// What was read so far is lost; the file is closed.
pub async fn read(path: &str) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut contents = Vec::new();
    let mut buffer = alloc::vec![0; 4096.max(file.status()?.size as usize)];
    loop {
        let (result, returned) = file.read(buffer).await;
        buffer = returned;
        match result? {
            0 => return Ok(contents),
            count => contents.extend_from_slice(&buffer[..count]),
        }
    }
}

/// The whole contents of a file of text.
///
/// # Errors
///
/// As opening and reading; `EINVAL` if it is not UTF-8.
///
/// # Cancellation
///
/// What was read so far is lost; the file is closed.
pub async fn read_to_string(path: &str) -> Result<String> {
    String::from_utf8(read(path).await?).map_err(|_| Errno::EINVAL)
}

/// Writes a file, creating or replacing it.
///
/// # Errors
///
/// As opening and writing.
///
/// # Cancellation
///
/// The file may have been created, and part of it written.
pub async fn write(path: &str, contents: impl crate::buffer::Buffer) -> Result<()> {
    File::create(path)?.write_all(contents).await.0
}

/// Removes a file.
///
/// # Errors
///
/// `ENOENT`, `EISDIR`, `EROFS`.
pub fn remove(path: &str) -> Result<()> {
    unix::file::unlink(&c_string(path)?, 0)
}

/// Standard input: descriptor 0, another number for it, so that dropping this closes nothing.
///
/// # Errors
///
/// `EBADF` if the program was started without it.
pub fn standard_input() -> Result<File> {
    let input = core::mem::ManuallyDrop::new(Descriptor::from_raw(0));
    Ok(File { descriptor: input.duplicate()? })
}
