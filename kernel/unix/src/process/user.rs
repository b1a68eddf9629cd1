//! User addresses and lengths, unvalidated.
//!
//! An address that comes from a process is a number until the process's address space has validated it. These types
//! carry such numbers, with overflow and range checked once at construction; only [`Process`](crate::process::Process)
//! turns them into bytes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use core::net::SocketAddr;
use core::ops::Deref;

use abi_unix::Errno;
use abi_unix::types::{TimeSpec, bytes_of_address};
use memory::SharedBytes;
use memory::space::MapError;
use usermode::Fault;

use crate::process::accounts::{Account, Charge};
use crate::process::identity::Whom;
use crate::scheduling::steps::Ends;

/// First address behind the user half.
pub(crate) const USER_END: usize = 0x40_0000_0000;
/// Size of the largest transfer of one call (Linux: `MAX_RW_COUNT`); longer ones are shortened.
pub(crate) const LARGEST_TRANSFER: usize = 0x7fff_f000;

/// Size of the longest path with its NUL in bytes (Linux: `PATH_MAX`).
pub(crate) const LONGEST_PATH: usize = 4096;

/// Memory of a program, as objects use it that know nothing else of processes.
#[doc(alias = "uaccess")]
pub(crate) trait UserMemory {
    /// Copies from the memory. `EFAULT` if any byte is not readable for the program; `ENOMEM` if a page that it was
    /// promised cannot be made.
    fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno>;

    /// Copies to the memory. `EFAULT` if any byte is not writable for the program; `ENOMEM` as above.
    fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno>;

    /// Copies from the memory to the pages of a file; returns the number of bytes, and the reason if these are not all.
    fn copy_in_to(&self, address: usize, to: &SharedBytes<'_>) -> (usize, Result<(), Errno>) {
        let mut piece = [0; PIECE];
        for done in (0..to.len()).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(to.len() - done)];
            if let Err(error) = self.copy_in(address + done, piece) {
                return (done, Err(error));
            }
            let _ = to.slice(done..to.len()).map_or(0, |to| to.copy_from(piece));
        }
        (to.len(), Ok(()))
    }

    /// Copies to the memory from the pages of a file.
    fn copy_out_from(&self, address: usize, from: &SharedBytes<'_>) -> Result<(), Errno> {
        let mut piece = [0; PIECE];
        for done in (0..from.len()).step_by(PIECE) {
            let count = from.slice(done..from.len()).map_or(0, |from| from.copy_to(&mut piece));
            self.copy_out(address + done, &piece[..count])?;
        }
        Ok(())
    }
}

/// Bytes that are copied at a time where they cannot go directly from memory to memory.
const PIECE: usize = 512;

/// The process that makes a call, as the objects see it that the call is about: they know nothing else of processes.
pub(crate) trait Caller: UserMemory + Ends {
    /// Returns its number.
    fn number(&self) -> u32;

    /// Returns the account that pays for everything that the kernel keeps for it.
    fn account(&self) -> &Arc<Account>;

    /// Returns its users and groups.
    fn whom(&self) -> Whom;

    /// Receives the signal for writing to a pipe or connection without a reader (`SIGPIPE`). Called without any lock of
    /// a file.
    fn has_no_reader(&self);

    /// Fills a buffer with zeros. `EFAULT` if it is not writable for the program; `ENOMEM` as above.
    fn zero(&self, buffer: UserBuffer) -> Result<(), Errno>;
}

/// A process as local sockets tell of it (`struct ucred`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ucred")]
pub(crate) struct Credentials {
    /// Its number; 0 for none.
    pub process: u32,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

impl Credentials {
    /// None.
    pub(crate) const NONE: Credentials = Credentials { process: 0, user: u32::MAX, group: u32::MAX };

    /// Returns those with which a process sends messages: its real ones.
    pub(crate) fn of_sender(caller: &dyn Caller) -> Credentials {
        let (user, group) = caller.whom().map_or((0, 0), |whom| (whom.users.real, whom.groups.real));
        Credentials { process: caller.number(), user, group }
    }

    /// Returns those with which a process connects and listens: its effective ones.
    pub(crate) fn of_peer(caller: &dyn Caller) -> Credentials {
        let (user, group) = caller.whom().map_or((0, 0), |whom| (whom.users.effective, whom.groups.effective));
        Credentials { process: caller.number(), user, group }
    }

    /// Returns its bytes as they lie in memory.
    pub(crate) fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        for (place, word) in bytes.chunks_exact_mut(4).zip([self.process, self.user, self.group]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Reads and decodes a time from a program's memory, in nanoseconds.
pub(crate) fn read_time(memory: &(impl UserMemory + ?Sized), address: usize) -> Result<u64, Errno> {
    let mut bytes = [0; 16];
    memory.copy_in(address, &mut bytes)?;
    TimeSpec::from_bytes(bytes).to_ns().ok_or(Errno::EINVAL)
}

/// Place for a socket address: the structure, and the word with its size (which tells how much room there is).
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressOut {
    /// Address of the structure.
    pub address: usize,
    /// Address of its size, a `u32`.
    pub size: usize,
}

impl AddressOut {
    /// Writes an address as Linux does: cut to the room there is, with the full size reported.
    pub(crate) fn write(self, memory: &(impl UserMemory + ?Sized), value: SocketAddr) -> Result<(), Errno> {
        let (bytes, length) = bytes_of_address(value);
        self.write_bytes(memory, &bytes[..length])
    }

    /// Writes an address of any family in this way; that of a sender without one is empty.
    pub(crate) fn write_bytes(self, memory: &(impl UserMemory + ?Sized), bytes: &[u8]) -> Result<(), Errno> {
        let room = read_room(memory, self.size)?;
        memory.copy_out(self.address, &bytes[..room.min(bytes.len())])?;
        memory.copy_out(self.size, &(bytes.len() as u32).to_le_bytes())
    }
}

/// Reads the room that a program has for an address or an option. `EINVAL` if it is negative as a C `int`.
fn read_room(memory: &(impl UserMemory + ?Sized), size: usize) -> Result<usize, Errno> {
    let mut word = [0; 4];
    memory.copy_in(size, &mut word)?;
    let room = u32::from_le_bytes(word) as usize;
    if room > i32::MAX as usize { Err(Errno::EINVAL) } else { Ok(room) }
}

/// Place for the value of a socket option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionOut {
    value: usize,
    size: usize,
}

impl OptionOut {
    /// Creates one from the address of a value and that of its size, a `u32` with the room that there is.
    pub(crate) fn new(value: usize, size: usize) -> OptionOut {
        OptionOut { value, size }
    }

    /// Ends `getsockopt`: writes a value, cut to the room there is, and the size that was written.
    pub(crate) fn write(self, memory: &(impl UserMemory + ?Sized), bytes: &[u8]) -> Result<usize, Errno> {
        let count = read_room(memory, self.size)?.min(bytes.len());
        memory.copy_out(self.value, &bytes[..count])?;
        memory.copy_out(self.size, &(count as u32).to_le_bytes())?;
        Ok(0)
    }
}

/// Bytes of all buffers of a call.
pub(crate) fn length_of(buffers: &[UserBuffer]) -> usize {
    buffers.iter().map(|buffer| buffer.len()).sum()
}

/// A range of bytes that a process claims to own.
#[doc(alias = "__user")]
#[doc(alias = "iovec")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserBuffer {
    address: usize,
    length: usize,
}

impl UserBuffer {
    /// Creates a range that lies in the user half; `EFAULT` otherwise.
    pub(crate) fn new(address: usize, length: usize) -> Result<UserBuffer, Errno> {
        let length = length.min(LARGEST_TRANSFER);
        match address.checked_add(length) {
            Some(end) if end <= USER_END => Ok(UserBuffer { address, length }),
            _ => Err(Errno::EFAULT),
        }
    }

    /// Adds the ranges of a vector call's entries to a list that has room for them; bytes beyond those `left` are cut
    /// off. `EINVAL` if a length is no `ssize_t`, `EFAULT` if a range does not lie in the user half.
    // Checked together: a call can have a thousand, which are read in one stretch.
    pub(crate) fn add_to(list: &mut Vec<UserBuffer>, entries: &[[usize; 2]], left: &mut usize) -> Result<(), Errno> {
        let (mut lengths, mut is_outside) = (0, false);
        list.extend(entries.iter().map(|&[address, length]| {
            lengths |= length;
            let length = length.min(*left);
            *left -= length;
            let end = address.wrapping_add(length);
            is_outside |= end < address || end > USER_END;
            UserBuffer { address, length }
        }));
        match (lengths as isize, is_outside) {
            (..0, _) => Err(Errno::EINVAL),
            (_, true) => Err(Errno::EFAULT),
            _ => Ok(()),
        }
    }

    /// Creates the range of a caller whose memory is a buffer of the kernel of this length, from address 0 on.
    pub(crate) fn of_kernel(length: usize) -> UserBuffer {
        UserBuffer { address: 0, length }
    }

    /// Returns the first address.
    pub(crate) fn address(self) -> usize {
        self.address
    }

    /// Returns the length in bytes.
    pub(crate) fn len(self) -> usize {
        self.length
    }

    /// Returns whether the range is empty.
    pub(crate) fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Reads the number of an option. `EINVAL` if it is too short for one, `EFAULT`.
    pub(crate) fn read_number(self, caller: &dyn Caller) -> Result<u32, Errno> {
        let mut number = [0; 4];
        if self.length < number.len() {
            return Err(Errno::EINVAL);
        }
        caller.copy_in(self.address, &mut number)?;
        Ok(u32::from_le_bytes(number))
    }
}

/// Buffers of one call; a single buffer, the common case, needs no allocation.
pub(crate) enum Buffers {
    /// One.
    One([UserBuffer; 1]),
    /// Those of a vector call.
    // An array of one, because a box can be made fallibly on stable Rust only from a vector.
    Many(Box<[ManyBuffers; 1]>),
}

/// The list of a vector call's buffers, which its caller pays for: calls in flight keep theirs.
pub(crate) struct ManyBuffers {
    list: Vec<UserBuffer>,
    /// The charge for the list, unless it is short.
    _charge: Option<Charge>,
}

impl Buffers {
    /// Makes those of a vector call, with the charge for a list that is not short. `ENOMEM`.
    pub(crate) fn new(list: Vec<UserBuffer>, charge: Option<Charge>) -> Result<Buffers, Errno> {
        if let [buffer] = list[..] {
            return Ok(buffer.into());
        }
        let mut many = Vec::new();
        many.try_reserve_exact(1).map_err(|_| Errno::ENOMEM)?;
        many.push(ManyBuffers { list, _charge: charge });
        many.into_boxed_slice().try_into().map(Buffers::Many).map_err(|_| Errno::ENOMEM)
    }
}

impl From<UserBuffer> for Buffers {
    fn from(buffer: UserBuffer) -> Buffers {
        Buffers::One([buffer])
    }
}

impl Deref for Buffers {
    type Target = [UserBuffer];

    #[inline]
    fn deref(&self) -> &[UserBuffer] {
        match self {
            Buffers::One(buffer) => buffer,
            Buffers::Many(many) => &many[0].list,
        }
    }
}

/// Returns the error of a call whose copy met this fault.
pub(crate) fn errno_of_fault(fault: Fault) -> Errno {
    match fault {
        Fault::OutOfMemory => Errno::ENOMEM,
        _ => Errno::EFAULT,
    }
}

/// Translates errors of mappings into error numbers.
pub(crate) fn map_error(error: MapError) -> Errno {
    match error {
        MapError::InvalidRange => Errno::EINVAL,
        MapError::Occupied => Errno::EEXIST,
        MapError::Forbidden => Errno::EACCES,
        MapError::NoSpace | MapError::NotMapped | MapError::TooManyRegions | MapError::OutOfMemory => Errno::ENOMEM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_outside_the_user_half_are_refused() {
        assert!(UserBuffer::new(0x1000, 10).is_ok());
        assert_eq!(UserBuffer::new(USER_END - 4, 5), Err(Errno::EFAULT));
        assert_eq!(UserBuffer::new(usize::MAX, 2), Err(Errno::EFAULT));
        assert_eq!(UserBuffer::new(usize::MAX, 0), Err(Errno::EFAULT));
    }

    #[test]
    fn a_copy_that_lacks_memory_is_no_bad_address() {
        assert_eq!(errno_of_fault(Fault::OutOfMemory), Errno::ENOMEM);
        assert_eq!(errno_of_fault(Fault::NotMapped), Errno::EFAULT);
        assert_eq!(errno_of_fault(Fault::Protection), Errno::EFAULT);
    }
}
