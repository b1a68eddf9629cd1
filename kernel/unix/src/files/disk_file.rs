//! `/dev/vda` and its like: the kind of open file that is a whole disk.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::{Status, block_control, mode};
use filesystem::{Access, DeviceNumber};
use spin::Mutex;

use crate::files::disk::{self, Disk, READ_AHEAD};
use crate::files::file::{Attempt, FileOperations, Properties, position_behind, status_without_contents};
use crate::files::mounts::Place;
use crate::process::user::{Caller, UserBuffer};
use crate::scheduling::steps;

/// An open disk.
pub(crate) struct DiskFile {
    disk: &'static Disk,
    place: Place,
    access: Access,
    position: Mutex<u64>,
    /// End of the last read: one that begins there goes from page to page.
    read_up_to: AtomicU64,
    /// Number of failures to write that it has reported, or that were before it was opened.
    reported: AtomicU64,
}

impl DiskFile {
    /// Opens a disk. `ENXIO` if there is none with this number.
    pub(crate) fn open(number: DeviceNumber, access: Access, place: Place) -> Result<DiskFile, Errno> {
        let disk = disk::all().iter().find(|disk| disk.device() == number).ok_or(Errno::ENXIO)?;
        let reported = AtomicU64::new(disk.write_errors());
        Ok(DiskFile { disk, place, access, position: Mutex::new(0), read_up_to: AtomicU64::new(0), reported })
    }

    fn read_from(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, waker: Option<&Waker>) -> Attempt {
        let ahead = if self.read_up_to.load(Ordering::Relaxed) == offset { READ_AHEAD } else { 0 };
        let attempt = self.disk.read(caller, buffer, offset, ahead, waker);
        if let Poll::Ready(Ok(count)) = attempt {
            self.read_up_to.store(offset + count as u64, Ordering::Relaxed);
        }
        attempt
    }

    /// Returns the disk.
    pub(crate) fn disk(&self) -> &'static Disk {
        self.disk
    }

    /// Returns `EIO` if anything could not be written since this was last reported for the open file.
    pub(crate) fn report_failures(&self) -> Result<usize, Errno> {
        let errors = self.disk.write_errors();
        if self.reported.swap(errors, Ordering::Relaxed) == errors { Ok(0) } else { Err(Errno::EIO) }
    }

    /// Reads the range of a call that discards bytes or fills them with zeros. `EBADF` if the disk is not open to be
    /// written, `EINVAL` if it is not a range of whole blocks of the disk.
    pub(crate) fn range(&self, caller: &dyn Caller, argument: usize) -> Result<Range<u64>, Errno> {
        if self.access == Access::Read {
            return Err(Errno::EBADF);
        }
        self.require_writable()?;
        let mut bytes = [0; 16];
        caller.copy_in(argument, &mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        let (start, length, block) = (word(0), word(8), u64::from(self.disk.block_size()));
        let end = start.checked_add(length).filter(|end| *end <= self.disk.bytes()).ok_or(Errno::EINVAL)?;
        let is_whole = length > 0 && start.is_multiple_of(block) && length.is_multiple_of(block);
        if is_whole { Ok(start..end) } else { Err(Errno::EINVAL) }
    }

    /// Fails with `EPERM` for a disk that is read-only.
    fn require_writable(&self) -> Result<(), Errno> {
        if self.disk.is_read_only() { Err(Errno::EPERM) } else { Ok(()) }
    }
}

impl FileOperations for DiskFile {
    fn properties(&self) -> Properties {
        // A disk answers soon: as on Linux no signal interrupts a transfer, and `O_NONBLOCK` changes nothing.
        Properties::IN_STEPS
    }

    fn status(&self) -> Status {
        status_without_contents(mode::BLOCK | 0o660, Some(self.disk.device()))
    }

    fn place(&self) -> Option<Place> {
        Some(self.place.clone())
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        let mut position = self.position.lock();
        let attempt = self.read_from(caller, buffer, *position, waker);
        if let Poll::Ready(Ok(count)) = attempt {
            *position += count as u64;
        }
        attempt
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        self.require_writable()?;
        let mut position = self.position.lock();
        let before = *done;
        let attempt = self.disk.write(caller, buffer, position.wrapping_sub(before as u64), done, waker);
        *position += (*done - before) as u64;
        attempt
    }

    fn forget_reader(&self, waker: &Waker) {
        self.disk.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        self.disk.forget(waker);
    }

    fn control(&self, caller: &dyn Caller, command: u32, argument: usize, _: Option<&Waker>) -> Attempt {
        let answer = |bytes: &[u8]| Poll::Ready(caller.copy_out(argument, bytes).map(|()| 0));
        match command {
            block_control::IS_READ_ONLY => answer(&u32::from(self.disk.is_read_only()).to_le_bytes()),
            block_control::SECTORS => answer(&(self.disk.bytes() / 512).to_le_bytes()),
            block_control::BYTES => answer(&self.disk.bytes().to_le_bytes()),
            block_control::LOGICAL_BLOCK | block_control::PHYSICAL_BLOCK | block_control::LEAST_TRANSFER => {
                answer(&self.disk.block_size().to_le_bytes())
            }
            block_control::CACHE_BLOCK => answer(&4096u32.to_le_bytes()),
            block_control::BEST_TRANSFER | block_control::ALIGNMENT => answer(&0u32.to_le_bytes()),
            block_control::IS_ROTATIONAL => answer(&0u16.to_le_bytes()),
            // Pages are kept as they are on the disk; those that were changed are written by `fsync`.
            block_control::FLUSH => Poll::Ready(Ok(0)),
            _ => Poll::Ready(Err(Errno::ENOTTY)),
        }
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<usize, Errno> {
        let mut position = self.position.lock();
        let to = position_behind(offset, whence, *position, || self.disk.bytes())?;
        if to > self.disk.bytes() {
            return Err(Errno::EINVAL);
        }
        *position = to;
        Ok(to as usize)
    }

    fn poll_read_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, waker: Option<&Waker>) -> Attempt {
        if self.access == Access::Write {
            return Poll::Ready(Err(Errno::EBADF));
        }
        self.read_from(caller, buffer, offset, waker)
    }

    fn poll_write_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, waker: Option<&Waker>) -> Attempt {
        if self.access == Access::Read {
            return Poll::Ready(Err(Errno::EBADF));
        }
        self.require_writable()?;
        let step = UserBuffer::new(buffer.address(), buffer.len().min(steps::BYTES))?;
        // Pages before the one that is awaited are written once more.
        self.disk.write(caller, step, offset, &mut 0, waker)
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{self, open};

    use super::*;
    use crate::testing::{DATA, run};

    #[test]
    fn a_disk_tells_its_size_and_has_positions_within_it() {
        run(|program| {
            let path = program.store(b"/dev/vda\0");
            let disk = program.call(SystemCall::Open, [0, path, open::RDONLY as usize, 0]).unwrap();
            let answer = program.place(8);
            assert_eq!(program.call(SystemCall::DeviceControl, [disk, block_control::BYTES as usize, answer]), Ok(0));
            let size = u64::from_le_bytes(program.read(answer, 8).try_into().unwrap()) as usize;
            assert_eq!(size % 512, 0);
            assert_eq!(program.call(SystemCall::DeviceControl, [disk, 0x5401, answer]), Err(Errno::ENOTTY));
            for (offset, whence, found) in [
                (10, types::SEEK_SET, Ok(10)),
                (0usize.wrapping_sub(11), types::SEEK_CUR, Err(Errno::EINVAL)),
                (0, types::SEEK_END, Ok(size)),
                (1, types::SEEK_END, Err(Errno::EINVAL)),
                (0, 9, Err(Errno::EINVAL)),
                (0usize.wrapping_sub(5), types::SEEK_CUR, Ok(size - 5)),
            ] {
                assert_eq!(program.call(SystemCall::Seek, [disk, offset, whence as usize]), found);
            }
            assert_eq!(program.call(SystemCall::WriteAt, [disk, DATA, 1, 0]), Err(Errno::EBADF));
            let status = program.place(128);
            program.call(SystemCall::Status, [disk, status]).unwrap();
            assert_eq!(program.read_u32(status + 16), mode::BLOCK | 0o660);
            let named = program.place(128);
            program.call(SystemCall::StatusAt, [types::AT_FDCWD as usize, path, named, 0]).unwrap();
            assert_eq!(program.read_u32(named + 16), mode::BLOCK | 0o660);
            assert_eq!(program.read(named + 32, 8), program.read(status + 32, 8), "the same numbers");
        });
    }
}
