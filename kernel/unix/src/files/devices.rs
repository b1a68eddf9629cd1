//! Devices: the kinds of open file behind device nodes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::{Status, epoll as event, open};
use filesystem::{Access, DeviceNumber, FileKind};

use crate::files::disk_file::DiskFile;
use crate::files::file::{Attempt, FileOperations, Properties, Reads, Waits, status_of_device};
use crate::files::message_queue::QueueFile;
use crate::files::mounts::{self, Mount, Node, Place};
use crate::files::pseudo_terminal::MasterFile;
use crate::files::stored::Stored;
use crate::files::terminal::TerminalFile;
use crate::files::tree::{CONSOLE, FULL, MULTIPLEXER, NULL, RANDOM, SLAVES, TTY, ZERO};
use crate::files::{console, job_control, pseudo_terminal};
use crate::process::Process;
use crate::process::user::{Caller, UserBuffer};
use crate::random;
use crate::scheduling::steps;

/// Wraps a file that `open` with these flags found in the file system; a device node becomes its device. `ENXIO` for a
/// node without a device, and for the terminal of a process that has none; `EACCES` if devices of its mount may not be
/// opened.
// The last argument is dropped first: a tree that is given up has no open files.
pub(crate) fn kind_of(
    process: &Process,
    flags: u32,
    mount: Arc<Mount>,
    file: filesystem::OpenFile,
) -> Result<Box<dyn FileOperations>, Errno> {
    if !matches!(file.node().kind(), FileKind::CharacterDevice | FileKind::BlockDevice) {
        return Ok(match QueueFile::of_node(file.node(), &mount, file.access()) {
            Some(queue) => Box::new(queue),
            None => Box::new(Stored::new(file, mount)?),
        });
    }
    mounts::require_devices(&mount)?;
    let (device, disk) = (file.node().device(), file.node().block_device());
    if let Some(disk) = disk {
        return Ok(Box::new(DiskFile::open(disk, file.access(), place_of(file, mount))?));
    }
    Ok(match device.ok_or(Errno::ENXIO)? {
        NULL => Box::new(Null(file.access())),
        ZERO => Box::new(Zero { access: file.access(), is_full: false }),
        FULL => Box::new(Zero { access: file.access(), is_full: true }),
        RANDOM => Box::new(Random(file.access())),
        // It becomes no session's terminal by being opened, as on Linux.
        CONSOLE => Box::new(TerminalFile::new(console::terminal().clone(), Some(place_of(file, mount)))?),
        TTY => {
            let terminal = job_control::terminal_of(process).ok_or(Errno::ENXIO)?;
            Box::new(TerminalFile::new(terminal, Some(place_of(file, mount)))?)
        }
        MULTIPLEXER => Box::new(MasterFile::open(process, place_of(file, mount))?),
        DeviceNumber { major: SLAVES, minor } => {
            let controls = flags & open::NOCTTY == 0 && file.access() != Access::Write;
            let opened = pseudo_terminal::open_slave(minor, Some(place_of(file, mount)))?;
            if controls {
                opened.becomes_controlling(process);
            }
            Box::new(opened)
        }
        _ => return Err(Errno::ENXIO),
    })
}

/// Returns the place of a node that was opened.
fn place_of(file: filesystem::OpenFile, mount: Arc<Mount>) -> Place {
    Place { node: Node::Stored(file.node().clone()), mount }
}

/// `/dev/null`: the end of a file, and room for everything.
struct Null(Access);

/// `/dev/zero`: zeros, and room for everything; or `/dev/full`: zeros, and no room at all.
struct Zero {
    access: Access,
    is_full: bool,
}

impl Zero {
    /// Fails with `ENOSPC` if there is no room for so many bytes.
    fn make_room(&self, bytes: usize) -> Result<(), Errno> {
        if self.is_full && bytes != 0 { Err(Errno::ENOSPC) } else { Ok(()) }
    }
}

/// `/dev/random` and `/dev/urandom`: random bytes.
struct Random(Access);

/// Swallows a buffer.
fn swallow(buffer: UserBuffer, done: &mut usize) -> Attempt {
    *done = buffer.len();
    Poll::Ready(Ok(buffer.len()))
}

/// Fails with `EBADF` for a device that was opened to read alone, or to write alone, and is used in the other way.
fn require_other_than(access: Access, wrong: Access) -> Result<(), Errno> {
    if access == wrong { Err(Errno::EBADF) } else { Ok(()) }
}

impl FileOperations for Null {
    fn properties(&self) -> Properties {
        Properties { waits: Waits::Never, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status_of_device(NULL, 0o666)
    }

    fn read(&self, _: &dyn Caller, _: UserBuffer, _: Option<&Waker>) -> Attempt {
        Poll::Ready(Ok(0))
    }

    fn write(&self, _: &dyn Caller, buffer: UserBuffer, done: &mut usize, _: Option<&Waker>) -> Attempt {
        swallow(buffer, done)
    }

    // Every place is the beginning.
    fn seek(&self, _: i64, _: u32) -> Result<usize, Errno> {
        Ok(0)
    }

    fn read_at(&self, _: &dyn Caller, _: UserBuffer, _: u64) -> Result<usize, Errno> {
        require_other_than(self.0, Access::Write)?;
        Ok(0)
    }

    fn write_at(&self, _: &dyn Caller, buffer: UserBuffer, _: u64) -> Result<usize, Errno> {
        require_other_than(self.0, Access::Read).map(|()| buffer.len())
    }
}

impl FileOperations for Zero {
    fn properties(&self) -> Properties {
        Properties::IN_STEPS
    }

    fn status(&self) -> Status {
        status_of_device(if self.is_full { FULL } else { ZERO }, 0o666)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, _: Option<&Waker>) -> Attempt {
        Poll::Ready(caller.zero(buffer).map(|()| buffer.len()))
    }

    fn write(&self, _: &dyn Caller, buffer: UserBuffer, done: &mut usize, _: Option<&Waker>) -> Attempt {
        self.make_room(buffer.len())?;
        swallow(buffer, done)
    }

    // Every place is the beginning.
    fn seek(&self, _: i64, _: u32) -> Result<usize, Errno> {
        Ok(0)
    }

    fn read_at(&self, caller: &dyn Caller, buffer: UserBuffer, _: u64) -> Result<usize, Errno> {
        require_other_than(self.access, Access::Write)?;
        let step = UserBuffer::new(buffer.address(), buffer.len().min(steps::BYTES))?;
        caller.zero(step).map(|()| step.len())
    }

    fn write_at(&self, _: &dyn Caller, buffer: UserBuffer, _: u64) -> Result<usize, Errno> {
        require_other_than(self.access, Access::Read)?;
        self.make_room(buffer.len()).map(|()| buffer.len())
    }
}

impl FileOperations for Random {
    fn properties(&self) -> Properties {
        Properties { reads: Reads::Everything, largest_step: random::STEP as u32, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status_of_device(RANDOM, 0o666)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        random::read(caller, buffer, waker)
    }

    fn write(&self, _: &dyn Caller, buffer: UserBuffer, done: &mut usize, _: Option<&Waker>) -> Attempt {
        swallow(buffer, done)
    }

    // Every place is the beginning.
    fn seek(&self, _: i64, _: u32) -> Result<usize, Errno> {
        Ok(0)
    }

    fn readiness(&self, _: &dyn Caller, _: u32, _: Option<&Waker>) -> Result<u32, Errno> {
        Ok(event::IN | event::RDNORM | event::OUT | event::WRNORM)
    }

    fn poll_read_at(&self, caller: &dyn Caller, buffer: UserBuffer, _: u64, waker: Option<&Waker>) -> Attempt {
        require_other_than(self.0, Access::Write)?;
        random::read(caller, buffer, waker)
    }

    fn write_at(&self, _: &dyn Caller, buffer: UserBuffer, _: u64) -> Result<usize, Errno> {
        require_other_than(self.0, Access::Read).map(|()| buffer.len())
    }

    fn forget_reader(&self, waker: &Waker) {
        random::forget(waker);
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{mode, open};

    use super::*;
    use crate::testing::{DATA, Program, run};

    #[test]
    fn devices_answer_as_their_names_promise() {
        run(|program| {
            let device = |program: &mut Program, name: &[u8]| {
                let path = program.store(name);
                program.call(SystemCall::Open, [0, path, open::RDWR as usize, 0]).unwrap()
            };
            let null = device(program, b"/dev/null\0");
            assert_eq!(program.read_from(null, 10), Ok(vec![]));
            assert_eq!(program.call(SystemCall::Write, [null, DATA, 100]), Ok(100));
            let zero = device(program, b"/dev/zero\0");
            let place = program.store(&[7; 40_000]);
            assert_eq!(program.call(SystemCall::Read, [zero, place, 39_999]), Ok(39_999));
            assert_eq!(program.read(place, 39_999), vec![0; 39_999]);
            assert_eq!(program.read(place + 39_999, 1), [7]);
            assert_eq!(program.call(SystemCall::Write, [zero, DATA, 100]), Ok(100));
            let full = device(program, b"/dev/full\0");
            assert_eq!(program.read_from(full, 3), Ok(vec![0; 3]));
            assert_eq!(program.call(SystemCall::Write, [full, DATA, 100]), Err(Errno::ENOSPC));
            assert_eq!(program.call(SystemCall::Write, [full, DATA, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::WriteAt, [full, DATA, 1, 7]), Err(Errno::ENOSPC));
            let random = device(program, b"/dev/urandom\0");
            let (first, second) = (program.read_from(random, 64).unwrap(), program.read_from(random, 64).unwrap());
            assert!(first.len() == 64 && first != second && first != [0; 64]);
            let only = |program: &mut Program, access: u32| {
                let path = program.store(b"/dev/zero\0");
                program.call(SystemCall::Open, [0, path, access as usize, 0]).unwrap()
            };
            let (reads, writes) = (only(program, open::RDONLY), only(program, open::WRONLY));
            let place = program.store(&[7; 40_000]);
            assert_eq!(program.call(SystemCall::ReadAt, [reads, place, 39_999, 5]), Ok(39_999));
            assert_eq!((program.read(place, 39_999), program.read(place + 39_999, 1)), (vec![0; 39_999], vec![7]));
            assert_eq!(program.call(SystemCall::ReadAt, [null, place, 10, 5]), Ok(0));
            assert_eq!(program.call(SystemCall::ReadAt, [random, place, 100, usize::MAX >> 1]), Ok(100));
            assert_ne!(program.read(place, 100), vec![0; 100]);
            for (file, call, expected) in [
                (random, SystemCall::WriteAt, Ok(10)),
                (null, SystemCall::WriteAt, Ok(10)),
                (writes, SystemCall::WriteAt, Ok(10)),
                (reads, SystemCall::WriteAt, Err(Errno::EBADF)),
                (writes, SystemCall::ReadAt, Err(Errno::EBADF)),
            ] {
                assert_eq!(program.call(call, [file, place, 10, 5]), expected, "{}", call.name());
            }
            for file in [null, zero, full, random] {
                assert_eq!(program.call(SystemCall::Seek, [file, 100, 0]), Ok(0), "as on Linux");
                assert_eq!(program.call(SystemCall::DeviceControl, [file, 0x5401, DATA]), Err(Errno::ENOTTY));
                assert_eq!(program.call(SystemCall::ReadDirectory, [file, DATA, 100]), Err(Errno::ENOTDIR));
                let status = program.place(128);
                program.call(SystemCall::Status, [file, status]).unwrap();
                assert_eq!(program.read_u32(status + 16) & mode::TYPE, mode::CHARACTER);
            }
        });
    }
}
