//! Files and directories of volumes: a kind of open file.

use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::{self, Status, open};
use alloc::sync::Arc;
use alloc::vec::Vec;
use ext4::{Entry, kind};
use filesystem::Access;
use spin::Mutex;
use waiters::Waiters;

use crate::files::file::{Attempt, FileOperations, Properties};
use crate::files::mounts::{Mount, Node, Place};
use crate::files::stored::{DirectoryRecord, status_in};
use crate::files::volume::{VolumeAnswer, VolumeNode, VolumeRequest, VolumeSubmission};
use crate::process::accounts::{Charge, Resource};
use crate::process::user::{Caller, UserBuffer};
use crate::scheduling::steps;

/// A transfer that was submitted.
struct VolumeTransfer {
    submission: VolumeSubmission,
    /// The waker of the task whose transfer it is: a task makes one at a time.
    owner: Waker,
    /// The place that is read; a write is done as it was submitted.
    reads_from: Option<u64>,
    length: usize,
    _charge: Charge,
}

/// The changing parts of an open file.
#[derive(Default)]
struct Stage {
    position: u64,
    appends: bool,
    transfer: Option<VolumeTransfer>,
    waiters: Waiters,
}

/// An open file or directory of a volume. One transfer is under way at a time; others wait.
pub(crate) struct VolumeFile {
    node: VolumeNode,
    mount: Arc<Mount>,
    access: Access,
    stage: Mutex<Stage>,
}

impl VolumeFile {
    /// Opens a file. `EROFS` to write where that is not possible.
    pub(crate) fn open(
        node: VolumeNode,
        mount: Arc<Mount>,
        access: Access,
        appends: bool,
    ) -> Result<VolumeFile, Errno> {
        if access != Access::Read {
            let mut writers = node.volume().writers.lock();
            if writers.0 == ext4::Access::Read {
                return Err(Errno::EROFS);
            }
            writers.1 += 1;
        }
        Ok(VolumeFile { node, mount, access, stage: Mutex::new(Stage { appends, ..Stage::default() }) })
    }

    /// Returns the file.
    pub(crate) fn node(&self) -> &VolumeNode {
        &self.node
    }

    fn is_directory(&self) -> bool {
        self.node.attributes().is(kind::DIRECTORY)
    }

    /// Submits a request for the file.
    pub(crate) fn submit(&self, caller: &dyn Caller, request: VolumeRequest) -> Result<VolumeSubmission, Errno> {
        self.node.volume().submit(caller.account(), caller.number(), request)
    }

    /// Returns the place of the listing.
    pub(crate) fn listed_up_to(&self) -> u64 {
        self.stage.lock().position
    }

    /// Writes names that were listed from a place on to a buffer, and moves the place behind those that fit. `EINVAL`
    /// if not even one does.
    pub(crate) fn write_entries(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        entries: &[Entry],
    ) -> Result<usize, Errno> {
        let mut done = 0;
        for entry in entries {
            let record = DirectoryRecord::of_kind(entry.inode.into(), entry.next, entry.kind, &entry.name);
            if done + record.bytes().len() > buffer.len() {
                if done == 0 {
                    return Err(Errno::EINVAL);
                }
                break;
            }
            match caller.copy_out(buffer.address() + done, record.bytes()) {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += record.bytes().len();
            self.stage.lock().position = entry.next;
        }
        Ok(done)
    }

    /// Looks at the transfer that is under way; `None` if there is none. It is of another task, or is this task's and
    /// has ended.
    fn look(stage: &mut Stage, waker: &Waker) -> Option<Poll<Result<(VolumeTransfer, VolumeAnswer), Errno>>> {
        let transfer = stage.transfer.as_ref()?;
        if !transfer.owner.will_wake(waker) {
            return Some(match stage.waiters.register(waker) {
                Ok(()) => Poll::Pending,
                Err(_) => Poll::Ready(Err(Errno::ENOMEM)),
            });
        }
        let Poll::Ready(answer) = transfer.submission.poll(waker) else { return Some(Poll::Pending) };
        let transfer = stage.transfer.take()?;
        stage.waiters.wake_all();
        Some(Poll::Ready(answer.map(|answer| (transfer, answer))))
    }

    /// Reads at a place, or at the position, which moves.
    fn read_from(&self, caller: &dyn Caller, buffer: UserBuffer, at: Option<u64>, waker: Option<&Waker>) -> Attempt {
        if self.is_directory() {
            return Poll::Ready(Err(Errno::EISDIR));
        }
        // A transfer is its task's, which has a waker. The first attempt in place has none.
        let Some(waker) = waker else { return Poll::Pending };
        let mut stage = self.stage.lock();
        let offset = at.unwrap_or(stage.position);
        match Self::look(&mut stage, waker) {
            None => {}
            Some(Poll::Pending) => return Poll::Pending,
            Some(Poll::Ready(Err(error))) => return Poll::Ready(Err(error)),
            Some(Poll::Ready(Ok((transfer, answer)))) => {
                if let (Some(from), VolumeAnswer::Bytes(bytes, count)) = (transfer.reads_from, answer)
                    && from == offset
                {
                    let count = count.min(buffer.len());
                    caller.copy_out(buffer.address(), &bytes[..count])?;
                    if at.is_none() {
                        stage.position = offset + count as u64;
                    }
                    return Poll::Ready(Ok(count));
                }
                // Of an earlier call that was given up, or another thread has moved the position: once more.
            }
        }
        let length = buffer.len().min(steps::BYTES);
        if length == 0 || offset >= self.node.attributes().size {
            return Poll::Ready(Ok(0));
        }
        let charge = caller.account().charge(Resource::Memory, length)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        let request = VolumeRequest::Read { node: self.node.clone(), offset, bytes };
        self.begin(&mut stage, caller, waker, request, (Some(offset), length, charge))
    }

    /// Writes at a place, or at the position, which moves.
    fn write_to(&self, caller: &dyn Caller, buffer: UserBuffer, at: Option<u64>, waker: Option<&Waker>) -> Attempt {
        let Some(waker) = waker else { return Poll::Pending };
        let mut stage = self.stage.lock();
        match Self::look(&mut stage, waker) {
            None => {}
            Some(Poll::Pending) => return Poll::Pending,
            Some(Poll::Ready(Err(error))) => return Poll::Ready(Err(error)),
            Some(Poll::Ready(Ok((transfer, answer)))) => {
                if let (None, VolumeAnswer::WrittenTo(end)) = (transfer.reads_from, answer) {
                    if at.is_none() {
                        stage.position = end;
                    }
                    return Poll::Ready(Ok(transfer.length));
                }
            }
        }
        let length = buffer.len().min(steps::BYTES);
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        caller.account().admit()?;
        let offset = match at {
            // As on Linux, the place does not count for a file that is written at its end.
            _ if stage.appends => None,
            at => Some(at.unwrap_or(stage.position)),
        };
        if offset.is_some_and(|offset| offset.checked_add(length as u64).is_none_or(|end| end > i64::MAX as u64)) {
            return Poll::Ready(Err(Errno::EFBIG));
        }
        let charge = caller.account().charge(Resource::Memory, length)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(length, 0);
        caller.copy_in(buffer.address(), &mut bytes)?;
        let request = VolumeRequest::Write { node: self.node.clone(), offset, bytes };
        self.begin(&mut stage, caller, waker, request, (None, length, charge))
    }

    fn begin(
        &self,
        stage: &mut Stage,
        caller: &dyn Caller,
        waker: &Waker,
        request: VolumeRequest,
        (reads_from, length, charge): (Option<u64>, usize, Charge),
    ) -> Attempt {
        let submission = self.submit(caller, request)?;
        submission.register(waker);
        let transfer = VolumeTransfer { submission, owner: waker.clone(), reads_from, length, _charge: charge };
        stage.transfer = Some(transfer);
        Poll::Pending
    }

    fn forget(&self, waker: &Waker) {
        let mut stage = self.stage.lock();
        if stage.transfer.as_ref().is_some_and(|transfer| transfer.owner.will_wake(waker)) {
            stage.transfer = None;
            stage.waiters.wake_all();
        } else {
            stage.waiters.forget(waker);
        }
    }
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        if self.access != Access::Read {
            self.node.volume().writers.lock().1 -= 1;
        }
    }
}

impl FileOperations for VolumeFile {
    fn properties(&self) -> Properties {
        // As a disk.
        Properties::IN_STEPS
    }

    fn status(&self) -> Status {
        status_in(&Node::OnVolume(self.node.clone()), &self.mount)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        self.read_from(caller, buffer, None, waker)
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        let rest = UserBuffer::new(buffer.address() + *done, buffer.len() - *done)?;
        let attempt = self.write_to(caller, rest, None, waker);
        if let Poll::Ready(Ok(written)) = attempt {
            *done += written;
        }
        attempt
    }

    fn forget_reader(&self, waker: &Waker) {
        self.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        self.forget(waker);
    }

    fn directory(&self) -> Result<Place, Errno> {
        if !self.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        Ok(Place { node: Node::OnVolume(self.node.clone()), mount: self.mount.clone() })
    }

    fn place(&self) -> Option<Place> {
        Some(Place { node: Node::OnVolume(self.node.clone()), mount: self.mount.clone() })
    }

    fn mount(&self) -> Option<&Arc<Mount>> {
        Some(&self.mount)
    }

    fn length(&self) -> Option<u64> {
        Some(self.node.attributes().size)
    }

    fn unread(&self) -> Result<usize, Errno> {
        let attributes = self.node.attributes();
        if !attributes.is(kind::REGULAR) {
            return Err(Errno::ENOTTY);
        }
        Ok(attributes.size.saturating_sub(self.stage.lock().position) as usize)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<usize, Errno> {
        let mut stage = self.stage.lock();
        let from = match whence {
            types::SEEK_SET => 0,
            types::SEEK_CUR => stage.position,
            types::SEEK_END => self.node.attributes().size,
            _ => return Err(Errno::EINVAL),
        };
        let to = from.checked_add_signed(offset).filter(|to| *to <= i64::MAX as u64).ok_or(Errno::EINVAL)?;
        stage.position = to;
        Ok(to as usize)
    }

    fn poll_read_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, waker: Option<&Waker>) -> Attempt {
        if self.access == Access::Write {
            return Poll::Ready(Err(Errno::EBADF));
        }
        self.read_from(caller, buffer, Some(offset), waker)
    }

    fn poll_write_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, waker: Option<&Waker>) -> Attempt {
        if self.access == Access::Read {
            return Poll::Ready(Err(Errno::EBADF));
        }
        self.write_to(caller, buffer, Some(offset), waker)
    }

    fn flags(&self) -> u32 {
        if self.stage.lock().appends { open::APPEND } else { 0 }
    }

    fn set_flags(&self, flags: u32) {
        self.stage.lock().appends = flags & open::APPEND != 0;
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::files::volume::tests::{mount, open, unmount, with_volume};

    #[test]
    fn files_have_positions_and_directories_entries() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let flags = types::open::CREAT | types::open::RDWR;
            let file = open(program, "file", flags).unwrap();
            let (data, place) = (program.store(&[7; 6000]), program.place(6000));
            assert_eq!(program.call(SystemCall::Write, [file, data, 6000]), Ok(6000));
            assert_eq!(program.call(SystemCall::Read, [file, place, 10]), Ok(0));
            assert_eq!(program.call(SystemCall::WriteAt, [file, data, 1, 9999]), Ok(1));
            assert_eq!(
                program.call(SystemCall::Seek, [file, 0usize.wrapping_sub(4001), types::SEEK_END as usize]),
                Ok(5999)
            );
            assert_eq!(program.call(SystemCall::Read, [file, place, 3]), Ok(3));
            assert_eq!(program.read(place, 3), [7, 0, 0], "between two writes there are zeros");
            assert_eq!(program.call(SystemCall::Seek, [file, 0, types::SEEK_CUR as usize]), Ok(6002));
            assert_eq!(program.call(SystemCall::Read, [file, 8, 3]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::WriteAt, [file, data, 1, usize::MAX >> 1]), Err(Errno::EFBIG));
            let end = open(program, "file", types::open::WRONLY | types::open::APPEND).unwrap();
            assert_eq!(program.call(SystemCall::Write, [end, data, 2]), Ok(2));
            assert_eq!(program.call(SystemCall::ReadAt, [end, place, 1, 0]), Err(Errno::EBADF));
            let status = program.place(128);
            program.call(SystemCall::Status, [file, status]).unwrap();
            assert_eq!(program.read_u64(status + 48), 10_002);
            let root = open(program, ".", 0).unwrap();
            assert_eq!(program.call(SystemCall::Read, [root, place, 1]), Err(Errno::EISDIR));
            assert_eq!(program.call(SystemCall::ReadDirectory, [root, place, 10]), Err(Errno::EINVAL));
            let length = program.call(SystemCall::ReadDirectory, [root, place, 4096]).unwrap();
            let listed = program.read(place, length);
            assert!(
                listed.windows(4).any(|name| name == b"file") && listed.windows(10).any(|name| name == b"lost+found")
            );
            assert_eq!(program.call(SystemCall::ReadDirectory, [root, place, 4096]), Ok(0));
            for file in [file, end, root] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }
}
