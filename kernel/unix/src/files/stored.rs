//! Stored files and directories: the kind of open file whose contents are in a file system.

use alloc::sync::Arc;
use core::ops::ControlFlow;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::{self, Status, TimeSpec, open};
use filesystem::{Access, DeviceNumber, FileKind, SeekFrom, Writes};
use memory::space::Sharing;

use crate::files::file::{Attempt, CommonMemory, FileOperations, Properties, encode_device};
use crate::files::mounts::{Mount, Node, Place};
use crate::files::shared_memory::{FileMapping, FilePages};
use crate::files::tree::{self, errno_of};
use crate::files::volume::VolumeNode;
use crate::process::accounts::Account;
use crate::process::user::{Caller, UserBuffer};
use crate::scheduling::steps;

/// A regular file or a directory.
// The order of the fields matters: a tree that is given up has no open files.
pub(crate) struct Stored {
    file: filesystem::OpenFile,
    mount: Arc<Mount>,
}

impl Stored {
    /// Makes the object of a file that was opened by a mount. `EROFS` if that is read-only by now.
    pub(crate) fn new(file: filesystem::OpenFile, mount: Arc<Mount>) -> Result<Stored, Errno> {
        if file.is_counted()
            && let Err(error) = mount.begin_writing()
        {
            drop(file);
            return Err(error);
        }
        Ok(Stored { file, mount })
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if self.file.is_counted() {
            self.mount.end_writing();
        }
    }
}

/// Returns the `struct stat` of a stored file.
pub(crate) fn status_of(place: &Place) -> Status {
    status_in(&place.node, &place.mount)
}

/// Returns the `struct stat` of a file in this mount.
pub(crate) fn status_in(node: &Node, mount: &Mount) -> Status {
    if let Node::OnVolume(node) = node {
        return status_on_volume(node, mount);
    }
    status_with(&node.metadata(), mount)
}

/// Returns the `struct stat` of a file with this metadata in this mount.
fn status_with(metadata: &filesystem::Metadata, mount: &Mount) -> Status {
    let time =
        |stamp: filesystem::Timestamp| TimeSpec { seconds: stamp.seconds, nanoseconds: stamp.nanoseconds as i64 };
    Status {
        device: mount.device(),
        inode: metadata.inode,
        mode: metadata.mode(),
        links: metadata.links,
        user: metadata.user,
        group: metadata.group,
        represented_device: encode_device(metadata.device),
        size: metadata.size as i64,
        block_size: 4096,
        blocks: metadata.blocks as i64,
        accessed: time(metadata.accessed),
        modified: time(metadata.modified),
        changed: time(metadata.changed),
        ..Status::default()
    }
}

/// Returns the `struct stat` of a file on a volume.
pub(crate) fn status_on_volume(node: &VolumeNode, mount: &Mount) -> Status {
    let attributes = node.attributes();
    let time = |stamp: ext4::Stamp| TimeSpec { seconds: stamp.seconds, nanoseconds: stamp.nanoseconds.into() };
    let (major, minor) = attributes.device;
    Status {
        device: mount.device(),
        inode: attributes.inode.into(),
        mode: attributes.mode.into(),
        links: attributes.links.into(),
        user: attributes.owner.0,
        group: attributes.owner.1,
        represented_device: encode_device(DeviceNumber { major, minor }),
        size: attributes.size as i64,
        block_size: 4096,
        blocks: attributes.sectors as i64,
        accessed: time(attributes.times[0]),
        modified: time(attributes.times[1]),
        changed: time(attributes.times[2]),
        ..Status::default()
    }
}

/// One entry of a listing, as `getdents64` writes it (`struct linux_dirent64`): inode, offset of the next, length,
/// type, name with its NUL; 8-byte aligned.
pub(crate) struct DirectoryRecord {
    bytes: [u8; 280],
    length: usize,
}

impl DirectoryRecord {
    /// Makes a record of a name that is not too long.
    pub(crate) fn new(inode: u64, next: u64, kind: FileKind, name: &[u8]) -> DirectoryRecord {
        DirectoryRecord::of_kind(inode, next, (kind.mode_bits() >> 12) as u8, name)
    }

    /// Makes a record of a file of this kind, as Linux numbers them (`DT_REG` and its like).
    pub(crate) fn of_kind(inode: u64, next: u64, kind: u8, name: &[u8]) -> DirectoryRecord {
        let length = (19 + name.len() + 1).next_multiple_of(8);
        let mut bytes = [0; 280];
        bytes[..8].copy_from_slice(&inode.to_le_bytes());
        bytes[8..16].copy_from_slice(&next.to_le_bytes());
        bytes[16..18].copy_from_slice(&(length as u16).to_le_bytes());
        bytes[18] = kind;
        bytes[19..19 + name.len()].copy_from_slice(name);
        DirectoryRecord { bytes, length }
    }

    /// Returns its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Moves bytes of one buffer to or from the kernel in a closure that cannot return an error, and keeps the first error.
struct Transfer<'a> {
    caller: &'a dyn Caller,
    address: usize,
    done: usize,
    error: Option<Errno>,
}

impl<'a> Transfer<'a> {
    fn new(caller: &'a dyn Caller, buffer: UserBuffer) -> Transfer<'a> {
        Transfer { caller, address: buffer.address(), done: 0, error: None }
    }

    fn out(&mut self, piece: &[u8]) -> usize {
        match self.caller.copy_out(self.address + self.done, piece) {
            Ok(()) => {
                self.done += piece.len();
                piece.len()
            }
            Err(error) => {
                self.error = Some(error);
                0
            }
        }
    }

    fn fill(&mut self, piece: &mut [u8]) -> usize {
        match self.caller.copy_in(self.address + self.done, piece) {
            Ok(()) => {
                self.done += piece.len();
                piece.len()
            }
            Err(error) => {
                self.error = Some(error);
                0
            }
        }
    }

    /// Returns the number of bytes moved, or the reason why none were.
    fn result(self, outcome: Result<usize, filesystem::Error>) -> Result<usize, Errno> {
        match (self.error, outcome) {
            (Some(error), _) if self.done == 0 => Err(error),
            (_, Err(error)) => Err(errno_of(error)),
            (_, Ok(count)) => Ok(count),
        }
    }
}

impl FileOperations for Stored {
    fn properties(&self) -> Properties {
        Properties::IN_STEPS
    }

    fn status(&self) -> Status {
        status_with(&self.file.node().metadata(), &self.mount)
    }

    fn memory_if_closed(&self, _: &Account) -> usize {
        let node = self.file.node();
        if node.is_last_reference() { node.metadata().allocated as usize } else { 0 }
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, _: Option<&Waker>) -> Attempt {
        let mut transfer = Transfer::new(caller, buffer);
        let outcome = self.file.read_with(buffer.len(), |piece| transfer.out(piece));
        Poll::Ready(transfer.result(outcome))
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, _: Option<&Waker>) -> Attempt {
        caller.account().admit()?;
        let rest = UserBuffer::new(buffer.address() + *done, buffer.len() - *done)?;
        let mut transfer = Transfer::new(caller, rest);
        let owner: Arc<dyn filesystem::Owner> = caller.account().clone();
        let outcome = self.file.write_with(Some(&owner), rest.len(), tree::now(), |piece| transfer.fill(piece));
        let result = transfer.result(outcome);
        *done += result.unwrap_or(0);
        Poll::Ready(result)
    }

    fn directory(&self) -> Result<Place, Errno> {
        let node = self.file.node();
        if node.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        Ok(Place { node: Node::Stored(node.clone()), mount: self.mount.clone() })
    }

    fn place(&self) -> Option<Place> {
        Some(Place { node: Node::Stored(self.file.node().clone()), mount: self.mount.clone() })
    }

    fn mount(&self) -> Option<&Arc<Mount>> {
        Some(&self.mount)
    }

    fn length(&self) -> Option<u64> {
        Some(self.file.node().metadata().size)
    }

    fn unread(&self) -> Result<usize, Errno> {
        let metadata = self.file.node().metadata();
        if metadata.kind != FileKind::Regular {
            return Err(Errno::ENOTTY);
        }
        let position = self.seek(0, types::SEEK_CUR)?;
        Ok((metadata.size as usize).saturating_sub(position))
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<usize, Errno> {
        let from = match whence {
            types::SEEK_SET => SeekFrom::Start(u64::try_from(offset).map_err(|_| Errno::EINVAL)?),
            types::SEEK_CUR => SeekFrom::Current(offset),
            types::SEEK_END => SeekFrom::End(offset),
            _ => return Err(Errno::EINVAL),
        };
        self.file.seek(from).map(|position| position as usize).map_err(errno_of)
    }

    fn read_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64) -> Result<usize, Errno> {
        let length = buffer.len().min(steps::BYTES);
        let mut transfer = Transfer::new(caller, buffer);
        let outcome = self.file.read_at_with(offset, length, |piece| transfer.out(piece));
        transfer.result(outcome)
    }

    fn write_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64) -> Result<usize, Errno> {
        caller.account().admit()?;
        let length = buffer.len().min(steps::BYTES);
        let mut transfer = Transfer::new(caller, buffer);
        let owner: Arc<dyn filesystem::Owner> = caller.account().clone();
        let outcome = self.file.write_at_with(Some(&owner), offset, length, tree::now(), |piece| transfer.fill(piece));
        transfer.result(outcome)
    }

    fn truncate(&self, length: u64) -> Result<usize, Errno> {
        self.file.truncate(length, tree::now()).map(|()| 0).map_err(errno_of)
    }

    fn require_mappable(&self, access: Access) -> Result<(), Errno> {
        match (self.file.node().kind(), access) {
            (FileKind::Regular, Access::Write) => Err(Errno::EACCES),
            (FileKind::Regular, _) => Ok(()),
            _ => Err(Errno::ENODEV),
        }
    }

    fn common_memory(&self, caller: &dyn Caller, sharing: Sharing) -> Result<CommonMemory, Errno> {
        caller.account().admit()?;
        let writes = sharing == Sharing::ReadWrite;
        let mut refused = None;
        let pages = self.file.node().common_pages(writes, || {
            FilePages::make(caller.account(), caller.number()).map_err(|error| {
                refused = Some(error);
                filesystem::Error::OutOfMemory
            })
        });
        let pages = pages.map_err(|error| refused.unwrap_or(errno_of(error)))?;
        let mapping = FileMapping::new(caller.account(), pages, writes)?;
        Ok((mapping.object(), Arc::new(mapping)))
    }

    fn seals(&self) -> Result<u32, Errno> {
        self.file.node().seals().map_err(|_| Errno::EINVAL)
    }

    fn add_seals(&self, seals: u32) -> Result<(), Errno> {
        self.file.node().add_seals(seals).map_err(errno_of)
    }

    fn share_page(&self, caller: &dyn Caller, page: u64) -> Result<bool, Errno> {
        caller.account().admit()?;
        let owner: Arc<dyn filesystem::Owner> = caller.account().clone();
        self.file.node().share_page(Some(&owner), page).map_err(errno_of)
    }

    fn read_directory(&self, caller: &dyn Caller, buffer: UserBuffer) -> Result<usize, Errno> {
        let (mut done, mut left) = (0, steps::ENTRIES);
        let mut failed = None;
        self.file
            .read_directory(|entry| {
                if left == 0 {
                    // A program repeats the call until there are no more entries.
                    return ControlFlow::Break(());
                }
                left -= 1;
                let record = DirectoryRecord::new(entry.inode, entry.next, entry.kind, entry.name);
                if done + record.length > buffer.len() {
                    failed = Some(Errno::EINVAL);
                    return ControlFlow::Break(());
                }
                match caller.copy_out(buffer.address() + done, record.bytes()) {
                    Ok(()) => {
                        done += record.length;
                        ControlFlow::Continue(())
                    }
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            })
            .map_err(errno_of)?;
        match failed {
            Some(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    fn flags(&self) -> u32 {
        if self.file.writes() == Writes::AtEnd { open::APPEND } else { 0 }
    }

    fn set_flags(&self, flags: u32) {
        self.file.set_writes(if flags & open::APPEND != 0 { Writes::AtEnd } else { Writes::AtPosition });
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{DATA, LENGTH, Program, run};

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Read(usize),
        WriteAt(usize, usize),
        ReadAt(usize, usize),
        Seek(i64, u32),
        Truncate(usize),
        Append(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let length = || prop_oneof![0..50usize, 4000..4200usize, Just(20_000)];
        let place = || prop_oneof![0..100usize, 4000..9000usize];
        prop_oneof![
            length().prop_map(Step::Write),
            length().prop_map(Step::Read),
            (length(), place()).prop_map(|(length, at)| Step::WriteAt(length, at)),
            (length(), place()).prop_map(|(length, at)| Step::ReadAt(length, at)),
            (-5000..5000i64, prop_oneof![0..3u32, Just(9)]).prop_map(|(offset, whence)| Step::Seek(offset, whence)),
            place().prop_map(Step::Truncate),
            any::<bool>().prop_map(Step::Append),
        ]
    }

    fn put(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            model.resize(model.len().max(at + bytes.len()), 0);
            model[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Does the steps with a file, and with a vector and a position.
    fn compare(program: &mut Program, steps: &[Step]) {
        let file = program.create(b"/tmp/model\0", open::RDWR | open::TRUNC);
        let place = program.place(20_000);
        let (mut model, mut position, mut appends) = (Vec::new(), 0usize, false);
        for (number, step) in steps.iter().enumerate() {
            let bytes = |length: usize| -> Vec<u8> { (0..length).map(|index| (index + 7 * number) as u8).collect() };
            match *step {
                Step::Write(length) => {
                    let bytes = bytes(length);
                    program.write(place, &bytes);
                    assert_eq!(program.call(SystemCall::Write, [file, place, length]), Ok(length));
                    if appends && length > 0 {
                        position = model.len();
                    }
                    put(&mut model, position, &bytes);
                    position += length;
                }
                Step::WriteAt(length, at) => {
                    let bytes = bytes(length);
                    program.write(place, &bytes);
                    assert_eq!(program.call(SystemCall::WriteAt, [file, place, length, at]), Ok(length));
                    // As on Linux, the place does not count for a file that is written at its end.
                    let at = if appends { model.len() } else { at };
                    put(&mut model, at, &bytes);
                }
                Step::Read(length) => {
                    let end = model.len().min(position + length).max(position);
                    let expected = model.get(position..end).unwrap_or_default();
                    assert_eq!(program.call(SystemCall::Read, [file, place, length]), Ok(expected.len()));
                    assert_eq!(program.read(place, expected.len()), expected);
                    position += expected.len();
                }
                Step::ReadAt(length, at) => {
                    let expected = model.get(at..model.len().min(at + length)).unwrap_or_default();
                    assert_eq!(program.call(SystemCall::ReadAt, [file, place, length, at]), Ok(expected.len()));
                    assert_eq!(program.read(place, expected.len()), expected);
                }
                Step::Seek(offset, whence) => {
                    let base = match whence {
                        0 => Some(0),
                        1 => Some(position as i64),
                        2 => Some(model.len() as i64),
                        _ => None,
                    };
                    let to = base.map(|base| base + offset).filter(|&to| to >= 0).ok_or(Errno::EINVAL);
                    let result = program.call(SystemCall::Seek, [file, offset as usize, whence as usize]);
                    assert_eq!(result, to.map(|to| to as usize));
                    position = to.map_or(position, |to| to as usize);
                }
                Step::Truncate(length) => {
                    assert_eq!(program.call(SystemCall::Truncate, [file, length]), Ok(0));
                    model.resize(length, 0);
                }
                Step::Append(on) => {
                    appends = on;
                    let flags = if on { open::APPEND } else { 0 };
                    program.call(SystemCall::FileControl, [file, 4, flags as usize]).unwrap();
                    let found = program.call(SystemCall::FileControl, [file, 3, 0]).unwrap() as u32;
                    assert_eq!(found, open::RDWR | flags);
                }
            }
            let status = program.place(128);
            program.call(SystemCall::Status, [file, status]).unwrap();
            assert_eq!(program.read_u64(status + 48) as usize, model.len());
        }
        let mut found = Vec::new();
        while found.len() < model.len() {
            let count = program.call(SystemCall::ReadAt, [file, place, 20_000, found.len()]).unwrap();
            found.extend(program.read(place, count));
        }
        assert_eq!(found, model);
        program.remove(b"/tmp/model\0");
    }

    proptest! {
        #![proptest_config(property::cases(48))]

        #[test]
        fn a_file_behaves_as_a_vector_with_a_position(steps in prop::collection::vec(step(), 0..40)) {
            run(move |program| compare(program, &steps));
        }
    }

    /// A transfer that meets a bad address has moved the bytes before it, and returns their number.
    #[test]
    fn a_transfer_stops_at_the_end_of_memory() {
        run(|program| {
            let file = program.create(b"/tmp/edge\0", open::RDWR);
            let edge = DATA + LENGTH;
            program.write(edge - 8192, &[5; 8192]);
            let result = program.call(SystemCall::Write, [file, edge - 8192, 20_000]);
            let written = result.expect("what lies before the edge");
            assert!(written > 0 && written <= 8192, "{written}");
            assert_eq!(program.call(SystemCall::Seek, [file, 0, 1]), Ok(written));
            assert_eq!(program.call(SystemCall::Write, [file, edge, 8]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ReadAt, [file, edge, 8, 0]), Err(Errno::EFAULT));
            let more = program.create(b"/tmp/edge\0", open::WRONLY);
            program.call(SystemCall::WriteAt, [more, edge - 8192, 8192, 0]).unwrap();
            let read = program.call(SystemCall::ReadAt, [file, edge - 4096, 8192, 0]);
            assert_eq!(read, Ok(4096));
            program.remove(b"/tmp/edge\0");
        });
    }

    #[test]
    fn a_directory_is_listed_completely_through_buffers_of_any_length() {
        run(|program| {
            let path = program.store(b"/tmp/list\0");
            program.call(SystemCall::MakeDirectory, [0, path, 0o755]).unwrap();
            let mut names: Vec<String> = (0..40).map(|number| format!("file{}", number * number)).collect();
            for name in &names {
                program.create(format!("/tmp/list/{name}\0").as_bytes(), open::RDWR);
            }
            let directory = program.call(SystemCall::Open, [0, path, open::DIRECTORY as usize, 0]).unwrap();
            assert_eq!(program.call(SystemCall::ReadDirectory, [directory, DATA, 10]), Err(Errno::EINVAL));
            let place = program.place(200);
            let mut found = Vec::new();
            loop {
                let count = program.call(SystemCall::ReadDirectory, [directory, place, 200]).unwrap();
                if count == 0 {
                    break;
                }
                let bytes = program.read(place, count);
                let mut at = 0;
                while at < count {
                    let length = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
                    let name = &bytes[at + 19..at + length];
                    let end = name.iter().position(|&byte| byte == 0).unwrap();
                    found.push(String::from_utf8(name[..end].to_vec()).unwrap());
                    at += length;
                }
                assert_eq!(at, count);
            }
            names.extend([".".into(), "..".into()]);
            names.sort();
            found.sort();
            assert_eq!(found, names);
            assert_eq!(program.read_from(directory, 10), Err(Errno::EISDIR));
            assert_eq!(program.call(SystemCall::Unlink, [0, path, 0x200]), Err(Errno::ENOTEMPTY));
            for name in names.iter().filter(|name| !name.starts_with('.')) {
                program.remove(format!("/tmp/list/{name}\0").as_bytes());
            }
            assert_eq!(program.call(SystemCall::Unlink, [0, path, 0x200]), Ok(0));
        });
    }
}
