//! Files, directories and pipes.

use core::ffi::CStr;

use abi_unix::types::{AT_FDCWD, Status, TimeSpec, control};

use crate::{Descriptor, Result, call};

/// Opens a file: `flags` of [`abi_unix::types::open`], `mode` for a file that is created.
///
/// # Errors
///
/// `ENOENT`, `EEXIST`, `EACCES`, `EISDIR`, `ENOTDIR`, `EROFS`, `EMFILE`, `ENAMETOOLONG`, `ENOSPC`.
pub fn open(path: &CStr, flags: u32, mode: u32) -> Result<Descriptor> {
    // SAFETY: the path is NUL-terminated memory that lives through the call.
    unsafe { call!(Open, AT_FDCWD, path.as_ptr(), flags, mode) }.map(Descriptor::from_result)
}

/// Reads at most `buffer.len()` bytes; 0 at the end. Waits if no bytes are there yet.
///
/// # Errors
///
/// `EBADF`, `EISDIR`, `ECONNRESET`, `EAGAIN` for a descriptor that must not wait.
#[inline]
pub fn read(descriptor: i32, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes to an exclusively borrowed buffer.
    unsafe { call!(Read, descriptor, buffer.as_mut_ptr(), buffer.len()) }
}

/// Writes at most `buffer.len()` bytes and returns their number. Waits if there is no room.
///
/// # Errors
///
/// `EBADF`, `EPIPE`, `ENOSPC`, `ECONNRESET`, `EAGAIN` for a descriptor that must not wait.
#[inline]
pub fn write(descriptor: i32, buffer: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads at most `len` bytes of a buffer that lives through the call.
    unsafe { call!(Write, descriptor, buffer.as_ptr(), buffer.len()) }
}

/// Writes the whole buffer, in as many calls as needed.
///
/// # Errors
///
/// As [`write()`]; part of the buffer may have been written. A write of 0 bytes is reported as `EIO`.
pub fn write_all(descriptor: i32, mut buffer: &[u8]) -> Result<()> {
    while !buffer.is_empty() {
        let written = write(descriptor, buffer)?;
        if written == 0 {
            return Err(crate::Errno::EIO);
        }
        buffer = &buffer[written..];
    }
    Ok(())
}

/// Reads at `offset`, without moving the position.
///
/// # Errors
///
/// `EBADF`, `ESPIPE` for pipes and sockets, `EINVAL`.
#[doc(alias = "pread")]
pub fn read_at(descriptor: i32, buffer: &mut [u8], offset: u64) -> Result<usize> {
    // SAFETY: as in `read`.
    unsafe { call!(ReadAt, descriptor, buffer.as_mut_ptr(), buffer.len(), offset) }
}

/// Writes at `offset`, without moving the position.
///
/// # Errors
///
/// `EBADF`, `ESPIPE` for pipes and sockets, `EINVAL`, `ENOSPC`.
#[doc(alias = "pwrite")]
pub fn write_at(descriptor: i32, buffer: &[u8], offset: u64) -> Result<usize> {
    // SAFETY: as in `write`.
    unsafe { call!(WriteAt, descriptor, buffer.as_ptr(), buffer.len(), offset) }
}

/// Writes bytes of a regular file to another file without a buffer, from `place` on, which is moved on, or else from
/// the position of the input. Returns their number, fewer than `size` at the end of the input.
///
/// # Errors
///
/// `EBADF`, `EINVAL` if the input is no regular file or the output appends, errors of writing.
#[doc(alias = "sendfile")]
pub fn send_file(output: i32, input: i32, place: Option<&mut u64>, size: usize) -> Result<usize> {
    // SAFETY: the place is a word of the caller's, or there is none.
    unsafe { call!(SendFile, output, input, address_of(place), size) }
}

/// Moves bytes from a pipe or to one without a buffer. Places are those of regular files, and are moved on; without one
/// it is the file's position. Waits for the first bytes, unless `flags` has `SPLICE_F_NONBLOCK`
/// ([`abi_unix::types::splicing`]). Returns the number of bytes, 0 at the end of the input.
///
/// # Errors
///
/// `EBADF`; `EINVAL` if no file is a pipe, both are the same one, or the output appends; `ESPIPE` for a place in a
/// pipe; `EAGAIN`; errors of reading and writing.
pub fn splice(
    (input, from): (i32, Option<&mut u64>),
    (output, to): (i32, Option<&mut u64>),
    size: usize,
    flags: u32,
) -> Result<usize> {
    // SAFETY: each place is a word of the caller's, or there is none.
    unsafe { call!(Splice, input, address_of(from), output, address_of(to), size, flags) }
}

/// Copies bytes of a pipe to another one, and leaves them in the first.
///
/// # Errors
///
/// `EBADF`; `EINVAL` unless both are pipes, and different ones; `EAGAIN`, `EPIPE`.
pub fn tee(input: i32, output: i32, size: usize, flags: u32) -> Result<usize> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Tee, input, output, size, flags) }
}

/// Copies bytes of a regular file to a place in a regular file without a buffer. The places are moved on; without one
/// it is the file's position. Returns the number of bytes, fewer than `size` at the end of the input.
///
/// # Errors
///
/// `EBADF`, also if the output appends; `EINVAL` if one is no regular file or the ranges overlap; `EISDIR`; errors of
/// writing.
#[doc(alias = "copy_file_range")]
pub fn copy_range(input: i32, from: Option<&mut u64>, output: i32, to: Option<&mut u64>, size: usize) -> Result<usize> {
    // SAFETY: the places are words of the caller's, or there are none.
    unsafe { call!(CopyFileRange, input, address_of(from), output, address_of(to), size, 0) }
}

/// Makes an empty file without a name, open for reading and writing; the flags are those of
/// [`memory_file`](abi_unix::types::memory_file). The name says what it is for, and has no effect.
///
/// # Errors
///
/// `EINVAL` for other flags and a name of more than 249 bytes, `EMFILE`, `ENOMEM`, `ENOSPC`.
#[doc(alias = "memfd_create")]
pub fn create_in_memory(name: &CStr, flags: u32) -> Result<Descriptor> {
    // SAFETY: the kernel reads the name up to its NUL.
    unsafe { call!(MemoryFile, name.as_ptr(), flags) }.map(Descriptor::from_result)
}

/// Forbids changes of a file without a name; the seals are Linux's (`F_SEAL_GROW` is 4).
///
/// # Errors
///
/// `EINVAL` for unknown seals and for other kinds of files, `EPERM` if it can have no more seals or was not opened for
/// writing, `EBUSY` to seal bytes that are mapped for writing.
#[doc(alias = "F_ADD_SEALS")]
pub fn add_seals(descriptor: i32, seals: u32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(FileControl, descriptor, control::ADD_SEALS, seals) }.map(drop)
}

/// Returns the seals of a file.
///
/// # Errors
///
/// `EINVAL` for files that can have none.
#[doc(alias = "F_GET_SEALS")]
pub fn seals(descriptor: i32) -> Result<u32> {
    // SAFETY: the call has no pointers.
    unsafe { call!(FileControl, descriptor, control::GET_SEALS, 0) }.map(|seals| seals as u32)
}

fn address_of(place: Option<&mut u64>) -> *mut u64 {
    place.map_or(core::ptr::null_mut(), |place| place)
}

/// Moves the position of an open file; `whence` is one of `SEEK_SET`, `SEEK_CUR`, `SEEK_END`. Returns the new position.
///
/// # Errors
///
/// `EINVAL` if the result would lie before the start, `ESPIPE` for pipes and sockets.
#[doc(alias = "lseek")]
pub fn seek(descriptor: i32, offset: i64, whence: u32) -> Result<u64> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Seek, descriptor, offset, whence) }.map(|position| position as u64)
}

/// Sets the length of an open file.
///
/// # Errors
///
/// `EINVAL`, `EROFS`, `ENOSPC`.
#[doc(alias = "ftruncate")]
pub fn truncate(descriptor: i32, length: u64) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Truncate, descriptor, length) }.map(drop)
}

/// Makes the pages of a range of a file, or frees them ([`abi_unix::types::allocation`]).
///
/// # Errors
///
/// `EBADF`; `EINVAL` for an empty range; `EOPNOTSUPP` for other modes; `ENODEV` unless it is a regular file, `ESPIPE`
/// for a pipe; `EFBIG`, `ENOSPC`, `ENOMEM`; `EPERM` if it is sealed.
#[doc(alias = "fallocate")]
pub fn allocate(descriptor: i32, mode: u32, offset: u64, size: u64) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Allocate, descriptor, mode, offset, size) }.map(drop)
}

/// Creates a pipe: its reading end and its writing end. `flags` are `O_NONBLOCK` and `O_CLOEXEC`.
///
/// # Errors
///
/// `EMFILE`, `ENOMEM`, `EINVAL` for other flags.
pub fn pipe(flags: u32) -> Result<(Descriptor, Descriptor)> {
    let mut ends = [-1i32; 2];
    // SAFETY: the kernel writes two `i32` to exclusively borrowed memory.
    unsafe { call!(Pipe, ends.as_mut_ptr(), flags) }?;
    Ok((Descriptor::from_raw(ends[0]), Descriptor::from_raw(ends[1])))
}

/// Makes `new` another number for the open file `descriptor`, and closes the file that `new` named before.
///
/// # Errors
///
/// `EBADF`, and `EINVAL` if the two numbers are equal.
#[doc(alias("dup2", "dup3"))]
pub fn duplicate_to(descriptor: i32, new: i32, flags: u32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(DuplicateTo, descriptor, new, flags) }.map(drop)
}

/// Makes a FIFO, or an empty regular file, as the type in the mode says ([`abi_unix::types::mode`]).
///
/// # Errors
///
/// `EEXIST`, `ENOENT`, `ENOTDIR`, `EROFS`, `ENOSPC`; `EPERM` for other types.
#[doc(alias("mknod", "mkfifo"))]
pub fn make_node(path: &CStr, mode: u32) -> Result<()> {
    // SAFETY: the path is NUL-terminated memory that lives through the call.
    unsafe { call!(MakeNode, AT_FDCWD, path.as_ptr(), mode, 0) }.map(drop)
}

/// Creates a directory.
///
/// # Errors
///
/// `EEXIST`, `ENOENT`, `ENOTDIR`, `EROFS`, `ENOSPC`.
#[doc(alias = "mkdir")]
pub fn make_directory(path: &CStr, mode: u32) -> Result<()> {
    // SAFETY: the path is NUL-terminated memory that lives through the call.
    unsafe { call!(MakeDirectory, AT_FDCWD, path.as_ptr(), mode) }.map(drop)
}

/// Removes a file, or an empty directory with `AT_REMOVEDIR`.
///
/// # Errors
///
/// `ENOENT`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EROFS`, `EBUSY`.
pub fn unlink(path: &CStr, flags: u32) -> Result<()> {
    // SAFETY: the path is NUL-terminated memory that lives through the call.
    unsafe { call!(Unlink, AT_FDCWD, path.as_ptr(), flags) }.map(drop)
}

/// Mounts a new file system of a kind (`tmpfs`) on a directory, or changes the one whose root that is
/// ([`abi_unix::types::mounting::flag`]).
///
/// # Errors
///
/// `EPERM`, `ENODEV`, `ENOTDIR`, `EINVAL`, `EBUSY`, `ENOSPC`.
pub fn mount(target: &CStr, kind: &CStr, flags: u32, options: &CStr) -> Result<()> {
    // SAFETY: all texts are NUL-terminated memory that lives through the call.
    unsafe { call!(Mount, kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr()) }.map(drop)
}

/// Mounts the file system on a device (`/dev/vda`) on a directory: `ext4`.
///
/// # Errors
///
/// Those of [`mount`], `ENOTBLK`, `ENXIO` and `EIO`.
pub fn mount_device(device: &CStr, target: &CStr, kind: &CStr, flags: u32) -> Result<()> {
    // SAFETY: all texts are NUL-terminated memory that lives through the call.
    unsafe { call!(Mount, device.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, 0usize) }.map(drop)
}

/// Shows a directory or another file in another place, too; with `RECURSIVE` also what is mounted below it. With
/// `REMOUNT` changes the flags of the mount whose root is at the target, and of it alone.
///
/// # Errors
///
/// Those of [`mount`], `ENOENT`.
#[doc(alias = "MS_BIND")]
pub fn bind(source: &CStr, target: &CStr, flags: u32) -> Result<()> {
    let flags = flags | abi_unix::types::mounting::flag::BIND;
    // SAFETY: both texts are NUL-terminated memory that lives through the call.
    unsafe { call!(Mount, source.as_ptr(), target.as_ptr(), 0usize, flags, 0usize) }.map(drop)
}

/// Takes the file system whose root is at a path from its place
/// ([`abi_unix::types::mounting::removal`]).
///
/// # Errors
///
/// `EPERM`, `EINVAL`, `EBUSY`.
#[doc(alias = "umount")]
pub fn unmount(target: &CStr, flags: u32) -> Result<()> {
    // SAFETY: the path is NUL-terminated memory that lives through the call.
    unsafe { call!(Unmount, target.as_ptr(), flags) }.map(drop)
}

/// Renames a file or directory.
///
/// # Errors
///
/// `ENOENT`, `EEXIST`, `ENOTEMPTY`, `EXDEV`, `EROFS`.
pub fn rename(old: &CStr, new: &CStr) -> Result<()> {
    // SAFETY: both paths are NUL-terminated memory that lives through the call.
    unsafe { call!(Rename, AT_FDCWD, old.as_ptr(), AT_FDCWD, new.as_ptr(), 0) }.map(drop)
}

/// Changes the working directory.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`.
#[doc(alias = "chdir")]
pub fn change_directory(path: &CStr) -> Result<()> {
    // SAFETY: the path is NUL-terminated memory that lives through the call.
    unsafe { call!(ChangeDirectory, path.as_ptr()) }.map(drop)
}

/// Writes the working directory's path with its NUL to `buffer`; returns its length, the NUL included.
///
/// # Errors
///
/// `ERANGE` if the buffer is too short.
#[doc(alias = "getcwd")]
pub fn current_directory(buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes to an exclusively borrowed buffer.
    unsafe { call!(GetCurrentDirectory, buffer.as_mut_ptr(), buffer.len()) }
}

/// Reads directory entries as `struct linux_dirent64`; 0 at the end.
///
/// # Errors
///
/// `ENOTDIR`, `EINVAL` if the buffer is too short for one entry.
#[doc(alias("getdents", "readdir"))]
pub fn read_directory(descriptor: i32, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes to an exclusively borrowed buffer.
    unsafe { call!(ReadDirectory, descriptor, buffer.as_mut_ptr(), buffer.len()) }
}

/// Returns the status of an open file.
///
/// # Errors
///
/// `EBADF`.
#[doc(alias = "fstat")]
pub fn status(descriptor: i32) -> Result<Status> {
    let mut status = Status::default();
    // SAFETY: the kernel writes one `struct stat` to exclusively borrowed memory; every bit pattern is a valid one.
    unsafe { call!(Status, descriptor, &raw mut status) }?;
    Ok(status)
}

/// Returns the status of the file at a path.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
#[doc(alias = "stat")]
pub fn status_at(path: &CStr, flags: u32) -> Result<Status> {
    let mut status = Status::default();
    // SAFETY: as in `status`; the path is NUL-terminated memory that lives through the call.
    unsafe { call!(StatusAt, AT_FDCWD, path.as_ptr(), &raw mut status, flags) }?;
    Ok(status)
}

/// Reads or changes descriptor flags: `command` of [`abi_unix::types::control`].
///
/// # Errors
///
/// `EBADF`, `EINVAL` for an unknown command.
#[doc(alias = "fcntl")]
pub fn control(descriptor: i32, command: u32, argument: usize) -> Result<usize> {
    // SAFETY: none of the commands takes a pointer.
    unsafe { call!(FileControl, descriptor, command, argument) }
}

// The kernel fills these; any bytes are values of the types.
const _: () = assert!(size_of::<TimeSpec>() == 16);
