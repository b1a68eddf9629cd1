//! Files. Opening, closing and reading the status never wait here; reading and writing may.

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

/// Converts a path to the NUL-terminated form that the kernel takes.
///
/// # Errors
///
/// `EINVAL` if it contains a NUL.
pub(crate) fn c_string(path: &str) -> Result<CString> {
    CString::new(path).map_err(|_| Errno::EINVAL)
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EACCES`, `ENOTDIR`, `EMFILE`.
    pub fn open(path: &str) -> Result<File> {
        File::open_with(path, open::RDONLY)
    }

    /// Opens a file for reading and writing; creates it if it does not exist, and empties it if it does.
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

    /// Returns the file's metadata.
    ///
    /// # Errors
    ///
    /// `EBADF` if the descriptor was closed behind its back.
    #[doc(alias("fstat", "metadata"))]
    pub fn status(&self) -> Result<Status> {
        unix::file::status(self.descriptor.raw())
    }

    /// Moves the position; `whence` is one of `SEEK_SET`, `SEEK_CUR`, `SEEK_END`. Returns the new position.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `ESPIPE`.
    #[doc(alias = "lseek")]
    pub fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        unix::file::seek(self.descriptor.raw(), offset, whence)
    }

    /// Sets the length.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `EROFS`, `ENOSPC`.
    #[doc(alias("ftruncate", "set_len"))]
    pub fn truncate(&self, length: u64) -> Result<()> {
        unix::file::truncate(self.descriptor.raw(), length)
    }
}

/// Reads the whole contents of a file.
///
/// # Errors
///
/// As opening and reading.
///
/// # Cancellation
///
/// Weak. The bytes read so far are lost; the file is closed.
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

/// Reads the whole contents of a text file.
///
/// # Errors
///
/// As opening and reading; `EINVAL` if it is not UTF-8.
///
/// # Cancellation
///
/// Weak. The bytes read so far are lost; the file is closed.
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
/// Weak. The file may have been created, and part of it written.
pub async fn write(path: &str, contents: impl crate::buffer::Buffer) -> Result<()> {
    File::create(path)?.write_all(contents).await.0
}

/// Removes a file.
///
/// # Errors
///
/// `ENOENT`, `EISDIR`, `EROFS`.
#[doc(alias("unlink", "remove_file"))]
pub fn remove(path: &str) -> Result<()> {
    unix::file::unlink(&c_string(path)?, 0)
}

/// Returns standard input: a duplicate of descriptor 0, so that dropping it does not close that one.
///
/// # Errors
///
/// `EBADF` if the program was started without it.
#[doc(alias = "stdin")]
pub fn standard_input() -> Result<File> {
    let input = core::mem::ManuallyDrop::new(Descriptor::from_raw(0));
    Ok(File { descriptor: input.duplicate()? })
}
