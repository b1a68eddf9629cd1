//! Errors of operations on files.

use core::fmt;

/// Failure of an operation. Each variant is one errno of Unix, named in its description; converting is the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// `ENOENT`: no such name, or the directory has been removed.
    NotFound,
    /// `EEXIST`: the name is taken.
    AlreadyExists,
    /// `ENOTDIR`: a component of the path, or the required directory itself, is not a directory.
    NotADirectory,
    /// `EISDIR`: it is a directory, and the operation is for any other kind of file.
    IsADirectory,
    /// `ENOTEMPTY`: the directory is not empty.
    DirectoryNotEmpty,
    /// `ELOOP`: too many symbolic links, or one where none may be.
    TooManySymbolicLinks,
    /// `ENAMETOOLONG`: one name or the whole path.
    NameTooLong,
    /// `EINVAL`: the request makes no sense, such as moving a directory into itself.
    InvalidArgument,
    /// `EBUSY`: the root, or a path that ends in `.` or `..`, cannot be renamed or removed; or directories are moved
    /// all the time.
    Busy,
    /// `EPERM`: directories have one name only; a seal of the file forbids it; or it is the right of the file's owner.
    NotPermitted,
    /// `EACCES`: the permissions of the file, or of a directory on the way, do not grant it.
    AccessDenied,
    /// `EBADF`: the file was not opened for this.
    NotOpenForThis,
    /// `EXDEV`: the two paths are on different file systems.
    CrossFilesystem,
    /// The path goes on in another file system: [`Filesystem::way_on`](crate::Filesystem::way_on) tells where.
    Crossing,
    /// A part of the work is done: [`Filesystem::rename_in_parts`](crate::Filesystem::rename_in_parts), called again,
    /// goes on from there.
    Unfinished,
    /// `EMLINK`: the file has the maximum number of names.
    TooManyLinks,
    /// `ETXTBSY`: a program is run from the file, or it is open for writing and cannot be run.
    TextBusy,
    /// `EROFS`: the file system must not be changed.
    ReadOnly,
    /// `EFBIG`: the end would lie beyond the largest file.
    FileTooLarge,
    /// `ENOSPC`: the file system has reached its limit.
    NoSpace,
    /// `ENOMEM`: the machine has no memory left.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::NotFound => "no such file or directory",
            Error::AlreadyExists => "file exists",
            Error::NotADirectory => "not a directory",
            Error::IsADirectory => "is a directory",
            Error::DirectoryNotEmpty => "directory not empty",
            Error::TooManySymbolicLinks => "too many symbolic links",
            Error::NameTooLong => "name too long",
            Error::InvalidArgument => "invalid argument",
            Error::Busy => "busy",
            Error::NotPermitted => "not permitted",
            Error::AccessDenied => "permission denied",
            Error::NotOpenForThis => "file not opened for this",
            Error::CrossFilesystem => "not on the same file system",
            Error::Crossing => "continued in another file system",
            Error::Unfinished => "not yet done",
            Error::TooManyLinks => "too many links",
            Error::TextBusy => "text file busy",
            Error::ReadOnly => "read-only file system",
            Error::FileTooLarge => "file too large",
            Error::NoSpace => "no space left on the file system",
            Error::OutOfMemory => "out of memory",
        })
    }
}

impl core::error::Error for Error {}
