//! The memory calls: `brk`, `mmap`, `munmap`, `mprotect`.

use abi_unix::Errno;
use abi_unix::types::{mapping, protection};
use memory::space::Placement;
use memory::sv39::Protection;

use crate::file::OpenFile;
use crate::interrupts;
use crate::process::Process;
use crate::program::map_error;
use crate::user::{USER_END, UserBuffer};

const PAGE: usize = abi_queue::pages::PAGE_SIZE;

/// Writable and executable at once is refused (W^X), with `EACCES` as hardened Linux systems answer. Without any right a
/// page stays reserved and every access faults.
fn decode_protection(bits: u32) -> Result<Protection, Errno> {
    if bits & !(protection::READ | protection::WRITE | protection::EXECUTE) != 0 {
        return Err(Errno::EINVAL);
    }
    Protection::from_bits(bits).map_err(|_| Errno::EACCES)
}

fn round_up(length: usize) -> Result<usize, Errno> {
    length.checked_next_multiple_of(PAGE).filter(|&length| length <= USER_END).ok_or(Errno::ENOMEM)
}

/// `brk`: Linux's own form, which answers with the end that is in force and never with an error.
pub fn set_break(process: &Process, end: usize) -> usize {
    let moved = process.space.lock().set_break(end as u64);
    if let Ok(changed) = moved {
        usermode::flush(changed);
    }
    process.space.lock().break_end() as usize
}

/// `mmap`: private mappings, anonymous or with a copy of a file's contents.
pub fn map(
    process: &Process,
    address: usize,
    length: usize,
    bits: u32,
    flags: u32,
    descriptor: usize,
    offset: usize,
) -> Result<usize, Errno> {
    let protection = decode_protection(bits)?;
    if length == 0 || !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let known = mapping::PRIVATE
        | mapping::FIXED
        | mapping::FIXED_NOREPLACE
        | mapping::ANONYMOUS
        | mapping::NORESERVE
        | mapping::POPULATE
        | mapping::STACK;
    if flags & mapping::SHARED != 0 {
        // Memory is not shared between processes in this version.
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & mapping::PRIVATE == 0 || flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let length = round_up(length)?;
    let content = if flags & mapping::ANONYMOUS != 0 {
        None
    } else {
        let number = usize::try_from(descriptor as i32).map_err(|_| Errno::EBADF)?;
        Some(process.descriptors.lock().get(number)?.clone())
    };
    if let Some(file) = &content {
        file.require_mappable()?;
    }
    let fixed = flags & (mapping::FIXED | mapping::FIXED_NOREPLACE) != 0;
    let is_outside = !address.is_multiple_of(PAGE) || address == 0 || length > USER_END - address.min(USER_END);
    let is_reserved = interrupts::has_send_pages(address, length);
    if fixed && (is_outside || is_reserved) {
        return Err(Errno::EINVAL);
    }
    let placement = match (fixed, flags & mapping::FIXED_NOREPLACE != 0) {
        (true, false) => Placement::Fixed(address as u64),
        (true, true) => Placement::FixedIfFree(address as u64),
        (false, _) if address != 0 && !is_reserved => Placement::Near((address - address % PAGE) as u64),
        (false, _) => Placement::Anywhere,
    };
    let initial = if content.is_some() { Protection::ReadWrite } else { protection };
    let mapped = process.space.lock().map_anonymous(placement, length as u64, initial, "");
    let (start, changed) = mapped.map_err(map_error)?;
    usermode::flush(changed);
    let start = start as usize;
    if let Some(file) = content {
        let filled = fill(process, &file, start, length, offset);
        let done = filled.and_then(|()| protect_pages(process, start, length, protection));
        if let Err(error) = done {
            unmap_pages(process, start, length)?;
            return Err(error);
        }
    }
    Ok(start)
}

/// Copies a file to a fresh mapping, as far as the file goes.
fn fill(process: &Process, file: &OpenFile, start: usize, length: usize, offset: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < length {
        let position = offset.checked_add(done).ok_or(Errno::EOVERFLOW)? as u64;
        match file.read_at(process, UserBuffer::new(start + done, length - done)?, position) {
            Ok(0) => break,
            Ok(count) => done += count,
            // The mapping is there and writable: what it lacks is memory. (Another worker may have unmapped it, too.)
            Err(_) => return Err(Errno::ENOMEM),
        }
    }
    Ok(())
}

fn unmap_pages(process: &Process, start: usize, length: usize) -> Result<(), Errno> {
    let removed = process.space.lock().unmap(start as u64..(start + length) as u64);
    usermode::flush(removed.map_err(map_error)?);
    Ok(())
}

fn protect_pages(process: &Process, start: usize, length: usize, protection: Protection) -> Result<(), Errno> {
    let changed = process.space.lock().protect(start as u64..(start + length) as u64, protection);
    usermode::flush(changed.map_err(map_error)?);
    Ok(())
}

/// `munmap`.
pub fn unmap(process: &Process, address: usize, length: usize) -> Result<usize, Errno> {
    let is_outside = !address.is_multiple_of(PAGE) || length == 0 || length > USER_END - address.min(USER_END);
    if is_outside || interrupts::has_send_pages(address, length) {
        return Err(Errno::EINVAL);
    }
    unmap_pages(process, address, round_up(length)?)?;
    Ok(0)
}

/// `mprotect`.
pub fn protect(process: &Process, address: usize, length: usize, bits: u32) -> Result<usize, Errno> {
    let protection = decode_protection(bits)?;
    if !address.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if length == 0 {
        return Ok(0);
    }
    if length > USER_END - address.min(USER_END) {
        return Err(Errno::ENOMEM);
    }
    if interrupts::has_send_pages(address, length) {
        return Err(Errno::EINVAL);
    }
    protect_pages(process, address, round_up(length)?, protection)?;
    Ok(0)
}
