//! Files. Opening, closing and reading the status never wait here, but for the opening of a FIFO; reading and writing
//! may.
//!
//! ```no_run
//! use cops::file::{self, File, OpenOptions};
//!
//! # async fn example() -> Result<(), cops::Errno> {
//! file::write("/tmp/notes", "first line\n").await?;
//! let notes = OpenOptions::new().append(true).open("/tmp/notes")?;
//! notes.write_all("second line\n").await.0?;
//! cops::println!("{}", file::read_to_string("/tmp/notes").await?);
//!
//! // A read returns the number of bytes, and the buffer.
//! let (length, buffer) = File::open("/tmp/notes")?.read(vec![0; 512]).await;
//! cops::println!("{:?}", &buffer[..length?]);
//! for entry in file::read_dir("/tmp")? {
//!     cops::println!("{}", entry?.name());
//! }
//! file::remove("/tmp/notes")?;
//! # Ok(())
//! # }
//! ```

use abi_unix::SystemCall;
use abi_unix::types::{
    AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_NOFOLLOW, SEEK_CUR, SEEK_END, SEEK_SET, Status, entry, mode, open,
};
use alloc::ffi::CString;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::call::Operation;
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

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFrom {
    /// Bytes from the beginning.
    Start(u64),
    /// Bytes from the end, usually a negative number.
    End(i64),
    /// Bytes from the current position.
    Current(i64),
}

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

    /// Moves the position, and returns the new one.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a place before the beginning or beyond all files, `ESPIPE`.
    #[doc(alias = "lseek")]
    pub fn seek(&self, position: SeekFrom) -> Result<u64> {
        let (offset, whence) = match position {
            SeekFrom::Start(offset) => (i64::try_from(offset).map_err(|_| Errno::EINVAL)?, SEEK_SET),
            SeekFrom::Current(offset) => (offset, SEEK_CUR),
            SeekFrom::End(offset) => (offset, SEEK_END),
        };
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

/// Makes a FIFO.
///
/// # Errors
///
/// `EEXIST`, `ENOENT`, `ENOTDIR`, `EROFS`, `ENOSPC`.
pub fn make_fifo(path: &str) -> Result<()> {
    unix::file::make_node(&c_string(path)?, mode::PIPE | 0o666)
}

/// Opens a FIFO with flags of [`abi_unix::types::open`], and waits until its other side is opened, too.
///
/// # Errors
///
/// As openat(2).
///
/// # Cancellation
///
/// Weak. The other side may have met it; the file is closed.
pub async fn open_fifo(path: &str, flags: u32) -> Result<File> {
    let place = c_string(path)?;
    let arguments = [AT_FDCWD as usize, place.as_ptr() as usize, (flags | open::CLOEXEC) as usize, 0];
    // SAFETY: the kernel reads the path only, which the operation keeps.
    let operation = unsafe { Operation::new(SystemCall::Open, arguments, place) }
        .or_discard(|descriptor| drop(Descriptor::from_result(descriptor)));
    let (result, _) = operation.await;
    Ok(File { descriptor: Descriptor::from_result(result?) })
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

/// The way in which a file is opened, as of `tokio::fs::OpenOptions`.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    is_read: bool,
    is_written: bool,
    flags: u32,
}

impl OpenOptions {
    /// Chooses nothing: at least one of reading and writing is to be added.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    fn flag(&mut self, flag: u32, is_chosen: bool) -> &mut OpenOptions {
        self.flags = if is_chosen { self.flags | flag } else { self.flags & !flag };
        self
    }

    /// Opens for reading.
    pub fn read(&mut self, is_chosen: bool) -> &mut OpenOptions {
        self.is_read = is_chosen;
        self
    }

    /// Opens for writing.
    pub fn write(&mut self, is_chosen: bool) -> &mut OpenOptions {
        self.is_written = is_chosen;
        self
    }

    /// Opens for writing behind the end, wherever that is at each write.
    pub fn append(&mut self, is_chosen: bool) -> &mut OpenOptions {
        self.flag(open::APPEND, is_chosen)
    }

    /// Empties the file.
    pub fn truncate(&mut self, is_chosen: bool) -> &mut OpenOptions {
        self.flag(open::TRUNC, is_chosen)
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, is_chosen: bool) -> &mut OpenOptions {
        self.flag(open::CREAT, is_chosen)
    }

    /// Creates the file, and fails if it exists.
    pub fn create_new(&mut self, is_chosen: bool) -> &mut OpenOptions {
        self.flag(open::CREAT | open::EXCL, is_chosen)
    }

    /// Returns the flags of openat(2).
    fn to_flags(&self) -> Result<u32> {
        let is_written = self.is_written || self.flags & open::APPEND != 0;
        let access = match (self.is_read, is_written) {
            (true, true) => open::RDWR,
            (true, false) => open::RDONLY,
            (false, true) => open::WRONLY,
            (false, false) => return Err(Errno::EINVAL),
        };
        Ok(access | self.flags)
    }

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// As openat(2); `EINVAL` for neither reading nor writing.
    pub fn open(&self, path: &str) -> Result<File> {
        File::open_with(path, self.to_flags()?)
    }
}

/// Returns the metadata of the file at a path.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`, `EACCES`.
#[doc(alias = "stat")]
pub fn metadata(path: &str) -> Result<Status> {
    unix::file::status_at(&c_string(path)?, 0)
}

/// Returns the metadata of the file at a path, or of the symbolic link there.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`, `EACCES`.
#[doc(alias = "lstat")]
pub fn symlink_metadata(path: &str) -> Result<Status> {
    unix::file::status_at(&c_string(path)?, AT_SYMLINK_NOFOLLOW)
}

/// Creates a directory.
///
/// # Errors
///
/// `EEXIST`, `ENOENT`, `ENOTDIR`, `EROFS`, `ENOSPC`.
#[doc(alias = "mkdir")]
pub fn create_dir(path: &str) -> Result<()> {
    unix::file::make_directory(&c_string(path)?, 0o755)
}

/// Creates a directory, and those on the way to it that do not exist. One that exists is no error.
///
/// # Errors
///
/// As [`create_dir`]; `EEXIST` or `ENOTDIR` if something else has the name.
#[doc(alias = "mkdir")]
pub fn create_dir_all(path: &str) -> Result<()> {
    let ends = path.char_indices().filter(|(_, letter)| *letter == '/').map(|(place, _)| place);
    for end in ends.chain([path.len()]) {
        // The root, or two slashes.
        if path[..end].is_empty() || path[..end].ends_with('/') {
            continue;
        }
        match create_dir(&path[..end]) {
            Err(Errno::EEXIST) if is_directory(&path[..end]) => {}
            // The part may exist on a file system that cannot be written.
            Err(Errno::EROFS) if is_directory(&path[..end]) => {}
            other => other?,
        }
    }
    Ok(())
}

fn is_directory(path: &str) -> bool {
    metadata(path).is_ok_and(|status| status.mode & mode::TYPE == mode::DIRECTORY)
}

/// Returns whether there is something at a path, behind a symbolic link if there is one.
///
/// # Errors
///
/// Those that leave it open: `EACCES`, `ELOOP`.
#[doc(alias = "exists")]
pub fn try_exists(path: &str) -> Result<bool> {
    match metadata(path) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a directory with all that is in it. A symbolic link is removed, and not followed.
///
/// # Errors
///
/// As [`read_dir`], [`remove`] and [`remove_dir`]; a part is gone then.
pub fn remove_dir_all(path: &str) -> Result<()> {
    // Names first: the directory changes below a reader that goes on.
    let entries: Vec<DirEntry> = read_dir(path)?.collect::<Result<_>>()?;
    for entry in entries {
        let inner = alloc::format!("{path}/{}", entry.name);
        match entry.file_type {
            FileType::Directory => remove_dir_all(&inner)?,
            _ => remove(&inner)?,
        }
    }
    remove_dir(path)
}

/// Copies the contents of a file to another, which is created or replaced; returns the number of bytes.
///
/// # Errors
///
/// As opening, reading and writing.
///
/// # Cancellation
///
/// Weak. The new file may be there, with a part of the contents.
pub async fn copy(from: &str, to: &str) -> Result<u64> {
    let from = File::open(from)?;
    let to = File::create(to)?;
    crate::io::copy(&from, &to).await
}

/// Removes an empty directory.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EROFS`, `EBUSY`.
#[doc(alias = "rmdir")]
pub fn remove_dir(path: &str) -> Result<()> {
    unix::file::unlink(&c_string(path)?, AT_REMOVEDIR)
}

/// Renames a file or directory, and replaces one at its new path.
///
/// # Errors
///
/// `ENOENT`, `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EXDEV`, `EROFS`.
pub fn rename(from: &str, to: &str) -> Result<()> {
    unix::file::rename(&c_string(from)?, &c_string(to)?)
}

/// Returns the working directory.
///
/// # Errors
///
/// `ENOENT` if it has been removed.
#[doc(alias = "getcwd")]
pub fn current_dir() -> Result<String> {
    let mut buffer = alloc::vec![0; 4096];
    let length = unix::file::current_directory(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length.saturating_sub(1)]).into_owned())
}

/// Changes the working directory of the process, and so of all its coroutines.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`, `EACCES`.
#[doc(alias = "chdir")]
pub fn set_current_dir(path: &str) -> Result<()> {
    unix::file::change_directory(&c_string(path)?)
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, pipe or socket.
    Other,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    name: String,
    file_type: FileType,
}

impl DirEntry {
    /// Returns the name; bytes that are not UTF-8 are replaced.
    #[doc(alias = "file_name")]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of the file.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }
}

/// The names in a directory, without `.` and `..`, in no particular order.
#[derive(Debug)]
pub struct ReadDir {
    directory: File,
    buffer: Vec<u8>,
    /// Range of the bytes that were read and not used yet.
    start: usize,
    end: usize,
}

/// Opens a directory to read the names in it.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`, `EACCES`, `EMFILE`.
#[doc(alias("opendir", "readdir"))]
pub fn read_dir(path: &str) -> Result<ReadDir> {
    let directory = File::open_with(path, open::RDONLY | open::DIRECTORY)?;
    Ok(ReadDir { directory, buffer: alloc::vec![0; 2048], start: 0, end: 0 })
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        loop {
            if self.start == self.end {
                match unix::file::read_directory(self.directory.descriptor().raw(), &mut self.buffer) {
                    Ok(0) => return None,
                    Ok(length) => (self.start, self.end) = (0, length),
                    Err(error) => return Some(Err(error)),
                }
            }
            let Some((length, entry)) = first_entry(&self.buffer[self.start..self.end]) else {
                self.start = self.end;
                return Some(Err(Errno::EIO));
            };
            self.start += length;
            if entry.name != "." && entry.name != ".." {
                return Some(Ok(entry));
            }
        }
    }
}

/// Decodes the first `struct linux_dirent64`: inode, offset of the next, length, type, name with its NUL.
fn first_entry(bytes: &[u8]) -> Option<(usize, DirEntry)> {
    let length = usize::from(u16::from_le_bytes([*bytes.get(16)?, *bytes.get(17)?]));
    let file_type = match *bytes.get(18)? {
        entry::REGULAR => FileType::File,
        entry::DIRECTORY => FileType::Directory,
        entry::LINK => FileType::Link,
        _ => FileType::Other,
    };
    let name = bytes.get(19..length)?.split(|byte| *byte == 0).next()?;
    Some((length, DirEntry { name: String::from_utf8_lossy(name).to_string(), file_type }))
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

/// Returns standard output: a duplicate of descriptor 1, so that dropping it does not close that one.
///
/// # Errors
///
/// `EBADF` if the program was started without it.
#[doc(alias = "stdout")]
pub fn standard_output() -> Result<File> {
    let output = core::mem::ManuallyDrop::new(Descriptor::from_raw(1));
    Ok(File { descriptor: output.duplicate()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_the_flags_of_open() {
        let options = |choose: fn(&mut OpenOptions) -> &mut OpenOptions| choose(&mut OpenOptions::new()).to_flags();
        assert_eq!(options(|options| options), Err(Errno::EINVAL));
        assert_eq!(options(|options| options.read(true)), Ok(open::RDONLY));
        assert_eq!(options(|options| options.append(true).create(true)), Ok(open::WRONLY | open::APPEND | open::CREAT));
        assert_eq!(options(|options| options.read(true).write(true).truncate(true)), Ok(open::RDWR | open::TRUNC));
        assert_eq!(
            options(|options| options.write(true).create_new(true).truncate(true).truncate(false)),
            Ok(open::WRONLY | open::CREAT | open::EXCL)
        );
    }

    #[test]
    fn entries_of_directories_are_decoded() {
        let mut bytes = alloc::vec![0; 24];
        bytes[16..19].copy_from_slice(&[24, 0, entry::DIRECTORY]);
        bytes[19..22].copy_from_slice(b"tmp");
        bytes.push(7);
        let tmp = DirEntry { name: "tmp".into(), file_type: FileType::Directory };
        assert_eq!(first_entry(&bytes), Some((24, tmp)));
        assert_eq!(first_entry(&bytes[..23]), None);
        assert_eq!(first_entry(&[0; 24]), None);
        assert_eq!(first_entry(&[]), None);
    }
}
