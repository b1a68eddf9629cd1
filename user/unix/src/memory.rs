//! Memory mappings and the end of the heap.

use abi_unix::types::{mapping, protection, remapping};

use crate::{Result, call};

/// Maps `size` bytes of zeroed memory, readable and writable, wherever there is room. Pages come at their first use.
///
/// # Errors
///
/// `ENOMEM`, `EINVAL` for a size of 0.
#[doc(alias = "mmap")]
pub fn map(size: usize) -> Result<*mut u8> {
    let flags = mapping::PRIVATE | mapping::ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that exists.
    unsafe { map_with(0, size, protection::READ | protection::WRITE, flags, -1, 0) }
}

/// Makes a mapping with all options: see mmap(2).
///
/// # Errors
///
/// `ENOMEM`, `EINVAL`, `EBADF`, `EACCES`, `EEXIST` for `MAP_FIXED_NOREPLACE`.
///
/// # Safety
///
/// With `MAP_FIXED` the mapping replaces the present one: no code may depend on that memory any more.
#[doc(alias = "mmap")]
pub unsafe fn map_with(
    address: usize,
    size: usize,
    protection: u32,
    flags: u32,
    descriptor: i32,
    offset: u64,
) -> Result<*mut u8> {
    // SAFETY: the effect of a fixed mapping on other memory is covered by the caller's promise.
    unsafe { call!(Map, address, size, protection, flags, descriptor, offset) }.map(|address| address as *mut u8)
}

/// Removes mappings.
///
/// # Errors
///
/// `EINVAL` for an address that is not a page's or a size of 0.
///
/// # Safety
///
/// No code may use this memory any more.
#[doc(alias = "munmap")]
pub unsafe fn unmap(address: *mut u8, size: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { call!(Unmap, address, size) }.map(drop)
}

/// Gives a mapping another length, at another place if it cannot grow where it is; returns its address.
///
/// # Errors
///
/// `EFAULT` if it is not one mapping with the same rights everywhere, `ENOMEM`, `EINVAL`.
///
/// # Safety
///
/// No code may use the old addresses any more, unless the result is the same, nor those that are cut off.
#[doc(alias = "mremap")]
pub unsafe fn remap(address: *mut u8, size: usize, new_size: usize) -> Result<*mut u8> {
    // SAFETY: the caller's promise; no other mapping is replaced.
    unsafe { call!(Remap, address, size, new_size, remapping::MAY_MOVE, 0) }.map(|address| address as *mut u8)
}

/// Changes the access rights of mappings.
///
/// # Errors
///
/// `EINVAL`, `ENOMEM` if part of the range is not mapped, `EACCES` for memory that would be writable and executable.
///
/// # Safety
///
/// No code may use this memory in a way that is no longer allowed.
#[doc(alias = "mprotect")]
pub unsafe fn protect(address: *mut u8, size: usize, protection: u32) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { call!(Protect, address, size, protection) }.map(drop)
}

/// Moves the end of the heap to `end` if that is possible, and returns the end in force; 0 only queries it.
///
/// # Safety
///
/// No code may use the memory between a lower new end and the old one any more.
#[doc(alias("brk", "sbrk"))]
pub unsafe fn set_break(end: usize) -> usize {
    // SAFETY: the caller's promise. The call reports failure by the end it returns.
    unsafe { call!(Break, end) }.unwrap_or(0)
}
