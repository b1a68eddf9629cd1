//! Files whose contents are made when they are read: the file system `proc`, as far as it is files.
//!
//! The names and contents are those of a [`Source`], which knows processes and is above all files; it is registered
//! when the machine starts. An [`Entry`] names one of its files by numbers, so that it holds nothing: a process that
//! ends while a file of it is open is not kept, and reading answers `ESRCH`, whoever gets its number later.
//!
//! An open file is read with the rights of the process that has opened it ([`Opener`]) beside those of the reader. So
//! nobody opens a file of a process for a more privileged program that is made to read it.
//!
//! Contents come in *records*, each made by itself: a line, or all of a short text. A read makes as many as it needs
//! for a page, within a limit, so that the longest contents are no longer stretch than others; a program reads again,
//! as it must with Linux.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::{self, Status};
use filesystem::{
    FileKind, LastComponent, LastLink, MAX_NAME_LENGTH, MAX_SYMBOLIC_LINKS, MAX_WAY_LENGTH, Metadata, leading_slashes,
};
use spin::{Mutex, Once};

use crate::files::file::{Attempt, FileOperations, OpenFile, Properties, Waits};
use crate::files::mounts::{COMPONENTS_OF_A_STEP, Mount, Node, Place};
use crate::files::stored::{DirectoryRecord, status_in};
use crate::process::accounts::{Charge, Resource, has_machine_memory};
use crate::process::capabilities::Rights;
use crate::process::user::{Caller, UserBuffer};
use crate::process::{Process, authority};
use crate::scheduling::steps;

/// One generated file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Line of the source's table.
    pub line: u32,
    /// The process whose file it is; 0 for those of the machine.
    pub process: u32,
    /// The time at which that process was made, because another may get its number.
    pub made: u64,
    /// A thread or a descriptor of it.
    pub number: u32,
}

/// The root.
pub(crate) const TOP: Entry = Entry { line: 0, process: 0, made: 0, number: 0 };

/// The end of a symbolic link.
pub(crate) enum Target {
    /// A path.
    Path(Vec<u8>),
    /// A file, which need not have a path any more. The text of the link is its path, made in steps
    /// ([`PathOfPlace`](crate::files::mounts::PathOfPlace)).
    Place(Place),
    /// An open file without a place; and the text of the link.
    File(Arc<OpenFile>, Vec<u8>),
}

/// The process that has opened a file, with the rights that it had then.
pub(crate) struct Opener {
    pub process: Weak<Process>,
    pub rights: Rights,
}

/// The names and the contents of generated files. `caller` is the number of the process that looks.
pub(crate) trait Source: Sync {
    /// Returns the kind of a file.
    fn kind(&self, entry: Entry) -> FileKind;

    /// Returns the directory above.
    fn parent(&self, entry: Entry) -> Entry;

    /// Returns the process whose directory, with all of its files, this is. `EBADF` for another file; `ESRCH` for the
    /// directory of an ended process.
    fn process(&self, entry: Entry) -> Result<Arc<Process>, Errno>;

    /// Finds a name in a directory. `ENOENT` if there is none.
    fn find(&self, directory: Entry, name: &[u8]) -> Result<Entry, Errno>;

    /// Returns an entry of a directory: the first one from this cursor on, its name, and the cursor behind it.
    fn next(&self, directory: Entry, cursor: u64) -> Option<(Entry, String, u64)>;

    /// Fails with `ENOENT` for a file of a process that has ended, and with `EACCES` if the caller may not look at it.
    fn permit(&self, entry: Entry, caller: u32) -> Result<(), Errno>;

    /// Fails as `permit` does for the process that has opened a file and uses it again, or has left that to another.
    fn permit_again(&self, entry: Entry, opener: &Opener) -> Result<(), Errno>;

    /// Returns the permissions of a file, as Linux shows them.
    fn permissions(&self, entry: Entry) -> u16;

    /// Returns the user and the group of a file.
    fn owner(&self, entry: Entry) -> (u32, u32);

    /// Fails with `EACCES` if the caller may not have the open file at the end of a symbolic link.
    fn permit_file(&self, entry: Entry, caller: u32) -> Result<(), Errno>;

    /// Returns the end of a symbolic link.
    fn target(&self, entry: Entry, caller: u32) -> Result<Target, Errno>;

    /// Returns whether a file is a setting, which can be written.
    fn is_setting(&self, entry: Entry) -> bool;

    /// Sets a setting. `EINVAL` for bytes that mean no value; `EPERM` if the caller or the opener may not.
    fn set(&self, entry: Entry, caller: u32, opener: &Opener, bytes: &[u8]) -> Result<(), Errno>;

    /// Makes the record of a file at this cursor; returns the cursor of the next, if there is one. Cursors begin at 0.
    fn record(&self, entry: Entry, cursor: u64) -> Result<(Vec<u8>, Option<u64>), Errno>;
}

static SOURCE: Once<&'static dyn Source> = Once::new();

/// Registers the source. Called once.
pub(crate) fn register(source: &'static dyn Source) {
    SOURCE.call_once(|| source);
}

fn source() -> &'static dyn Source {
    *SOURCE.get().expect("the source is registered before any process starts")
}

impl Entry {
    /// Returns the kind of the file.
    pub(crate) fn kind(self) -> FileKind {
        source().kind(self)
    }

    /// Returns whether the file can be written.
    pub(crate) fn is_setting(self) -> bool {
        source().is_setting(self)
    }

    /// Returns the metadata. The size is 0, as Linux shows it.
    pub(crate) fn metadata(self) -> Metadata {
        let kind = self.kind();
        let now = crate::files::tree::now();
        let (user, group) = source().owner(self);
        Metadata {
            inode: 1 + (u64::from(self.process) << 40 | u64::from(self.number) << 8 | u64::from(self.line)),
            kind,
            permissions: source().permissions(self),
            user,
            group,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            size: 0,
            allocated: 0,
            blocks: 0,
            device: Default::default(),
            accessed: now,
            modified: now,
            changed: now,
        }
    }

    /// Returns the end of the symbolic link; `EINVAL` if it is none.
    pub(crate) fn target(self, caller: u32) -> Result<Target, Errno> {
        if self.kind() != FileKind::SymbolicLink {
            return Err(Errno::EINVAL);
        }
        require_memory()?;
        source().permit(self, caller)?;
        source().target(self, caller)
    }

    /// Returns the path of a file below a directory of its file system, or below itself; `ENOENT` if it is not there.
    pub(crate) fn path_from(self, top: Entry) -> Result<Vec<u8>, Errno> {
        require_memory()?;
        let mut names = Vec::new();
        let mut entry = self;
        while entry != top {
            if entry == TOP {
                return Err(Errno::ENOENT);
            }
            let parent = source().parent(entry);
            let mut cursor = 0;
            let name = loop {
                let (found, name, next) = source().next(parent, cursor).ok_or(Errno::ENOENT)?;
                if found == entry {
                    break name;
                }
                cursor = next;
            };
            names.push(name);
            entry = parent;
        }
        Ok(names.iter().rev().flat_map(|name| b"/".iter().chain(name.as_bytes())).copied().collect())
    }
}

/// Fails with `ENOMEM` if there is no memory for names, which are made with allocations that cannot fail: looking at a
/// path needs no admission otherwise.
fn require_memory() -> Result<(), Errno> {
    if has_machine_memory() { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// The point to which a path leads.
pub(crate) enum Walked {
    /// A file.
    At(Entry),
    /// An open file without a place.
    File(Arc<OpenFile>),
    /// A name that does not exist, in a directory that does.
    Missing,
    /// Another file system.
    Away {
        /// The place where the rest begins; `None` for the directory above the root of this one, if it has one, and
        /// then the rest begins with `..`.
        from: Option<Place>,
        /// The rest of the path.
        rest: Vec<u8>,
        /// Number of symbolic links that were followed.
        links: usize,
    },
    /// The work of a step is done.
    Later {
        /// The directory where the rest begins.
        from: Entry,
        /// The rest of the path.
        rest: Vec<u8>,
        /// Number of symbolic links that were followed.
        links: usize,
    },
}

/// Follows a path from an entry on, on which so many symbolic links were followed before.
pub(crate) fn walk(
    (base, top): (Entry, Entry),
    path: &[u8],
    before: usize,
    last: LastComponent,
    caller: u32,
) -> Result<Walked, Errno> {
    require_memory()?;
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    if path.len() > MAX_WAY_LENGTH {
        return Err(Errno::ENAMETOOLONG);
    }
    if base.kind() != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let (mut entry, mut path, mut at, mut links, mut components) = (base, path.to_vec(), 0, 0, 0);
    loop {
        let start = at + leading_slashes(&path[at..]);
        if start == path.len() {
            return Ok(Walked::At(entry));
        }
        if components >= COMPONENTS_OF_A_STEP {
            // From the next component on: the slashes before it would make the rest absolute.
            return Ok(Walked::Later { from: entry, rest: path.split_off(start), links });
        }
        components += 1;
        let end = path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |length| start + length);
        let is_last = end + leading_slashes(&path[end..]) == path.len();
        let has_slash = end < path.len();
        if entry.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        source().permit(entry, caller)?;
        let found = match &path[start..end] {
            b"." => entry,
            b".." if entry == top => return Ok(Walked::Away { from: None, rest: path.split_off(start), links }),
            b".." => source().parent(entry),
            name if name.len() > MAX_NAME_LENGTH => return Err(Errno::ENAMETOOLONG),
            name => match source().find(entry, name) {
                Err(Errno::ENOENT) if is_last => return Ok(Walked::Missing),
                found => found?,
            },
        };
        let follows = !is_last
            || match last {
                LastComponent::File(LastLink::Follow) | LastComponent::Made(LastLink::Follow) => true,
                LastComponent::File(LastLink::Keep) => has_slash,
                LastComponent::Made(LastLink::Keep) | LastComponent::Name => false,
            };
        if found.kind() != FileKind::SymbolicLink || !follows {
            if is_last {
                let is_directory = found.kind() == FileKind::Directory;
                return if has_slash && !is_directory { Err(Errno::ENOTDIR) } else { Ok(Walked::At(found)) };
            }
            (entry, at) = (found, end);
            continue;
        }
        links += 1;
        if before + links > MAX_SYMBOLIC_LINKS {
            return Err(Errno::ELOOP);
        }
        let mut rest = path.split_off(end);
        match found.target(caller)? {
            Target::Path(mut target) => {
                target.append(&mut rest);
                if target.first() == Some(&b'/') {
                    return Ok(Walked::Away { from: Some(crate::files::mounts::root()), rest: target, links });
                }
                (path, at) = (target, 0);
            }
            Target::File(file, _) if is_last => {
                source().permit_file(found, caller)?;
                return Ok(Walked::File(file));
            }
            Target::File(..) => return Err(Errno::ENOTDIR),
            Target::Place(place) if is_last && place.node.kind() != FileKind::Directory => {
                return match has_slash {
                    true => Err(Errno::ENOTDIR),
                    false => Ok(Walked::Away { from: Some(place), rest: Vec::new(), links }),
                };
            }
            Target::Place(place) => {
                rest.splice(0..0, *b".");
                return Ok(Walked::Away { from: Some(place), rest, links });
            }
        }
    }
}

/// Bytes of a read: records are made until there are so many.
const PAGE: usize = 4096;

/// Size of the longest value of a setting in bytes.
const LONGEST_SETTING: usize = 256;

/// Charge for the text of an open file: a page, and the record that exceeds it.
const TEXT: usize = 4 * PAGE;

/// Bytes of a record that count as one of the [`ENTRIES`](steps::ENTRIES) of a step.
const BYTES_OF_AN_ENTRY: usize = 32;
/// Number of them that a record without text counts as.
const ENTRIES_WITHOUT_TEXT: usize = 4;

/// An open file that is generated.
pub(crate) struct Generated {
    entry: Entry,
    mount: Arc<Mount>,
    opener: Opener,
    reading: Mutex<Reading>,
    _charge: Charge,
}

/// The progress of a program that reads from the beginning to the end.
#[derive(Default)]
struct Reading {
    /// Position of the open file; in a directory, the cursor.
    position: u64,
    /// Records that were made and not given up yet, and their place in the file.
    text: Vec<u8>,
    start: u64,
    /// Cursor of the next record; `None` behind the last.
    next: Option<u64>,
}

impl Generated {
    /// Opens an entry. `EACCES` if the caller may not.
    pub(crate) fn open(
        entry: Entry,
        mount: Arc<Mount>,
        caller: &Arc<Process>,
    ) -> Result<Box<dyn FileOperations>, Errno> {
        source().permit(entry, caller.id)?;
        let charge = caller.account.charge(Resource::Memory, TEXT)?;
        let reading = Mutex::new(Reading { next: Some(0), ..Reading::default() });
        let opener = Opener { process: Arc::downgrade(caller), rights: authority::rights(caller) };
        Ok(Box::new(Generated { entry, mount, opener, reading, _charge: charge }))
    }

    /// Returns the process whose directory it is, as [`Source::process`] does.
    pub(crate) fn process(&self) -> Result<Arc<Process>, Errno> {
        source().process(self.entry)
    }

    /// Fails if the caller, or the process that has opened the file, may not read it any more.
    fn permit(&self, caller: &dyn Caller) -> Result<(), Errno> {
        source().permit(self.entry, caller.number())?;
        source().permit_again(self.entry, &self.opener)
    }

    /// Copies from a position; returns fewer bytes than wanted, and 0 only at the end.
    fn copy(&self, reading: &mut Reading, caller: &dyn Caller, buffer: UserBuffer, at: u64) -> Result<usize, Errno> {
        if self.entry.kind() == FileKind::Directory {
            return Err(Errno::EISDIR);
        }
        caller.account().admit()?;
        // At each read: the process may have other users now.
        self.permit(caller)?;
        if buffer.is_empty() {
            return Ok(0);
        }
        // From the beginning again, unless this read is still on the way to the first text.
        let has_begun = reading.start > 0 || !reading.text.is_empty() || reading.next.is_none();
        if at < reading.start || at == 0 && has_begun {
            *reading = Reading { position: reading.position, next: Some(0), ..Reading::default() };
        }
        let mut left = steps::ENTRIES;
        let wanted = buffer.len().min(PAGE) as u64;
        while reading.start + (reading.text.len() as u64) < at.saturating_add(wanted) && left > 0 {
            let Some(cursor) = reading.next else { break };
            let (record, next) = source().record(self.entry, cursor)?;
            // Records with much text are made of many lines; those without any have looked at much for the next ones.
            let entries = if record.is_empty() { ENTRIES_WITHOUT_TEXT } else { 1 + record.len() / BYTES_OF_AN_ENTRY };
            left = left.saturating_sub(entries);
            let end = reading.start + reading.text.len() as u64;
            if end <= at {
                // Nothing before it is wanted any more.
                (reading.text, reading.start) = (record, end);
            } else {
                reading.text.extend_from_slice(&record);
            }
            reading.next = next;
        }
        let from = (at - reading.start).min(reading.text.len() as u64) as usize;
        let piece = &reading.text[from..];
        let piece = &piece[..piece.len().min(buffer.len())];
        if piece.is_empty() && reading.next.is_some() {
            // A place far behind is reached in steps, and there may be many records without text.
            return Err(Errno::EAGAIN);
        }
        caller.copy_out(buffer.address(), piece)?;
        Ok(piece.len())
    }

    /// Copies from a place, or else from the position, which moves, in steps.
    fn copy_in_steps(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        place: Option<u64>,
        waker: Option<&Waker>,
    ) -> Attempt {
        loop {
            let mut reading = self.reading.lock();
            // Not from the beginning at each step, whatever others read meanwhile.
            let at = place.unwrap_or(reading.position);
            match self.copy(&mut reading, caller, buffer, at) {
                Ok(count) => {
                    if place.is_none() {
                        reading.position += count as u64;
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(Errno::EAGAIN) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            drop(reading);
            if steps::must_pause(caller, waker) {
                return Poll::Pending;
            }
        }
    }
}

impl FileOperations for Generated {
    fn properties(&self) -> Properties {
        Properties { waits: Waits::Never, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status_in(&Node::Generated(self.entry), &self.mount)
    }

    fn place(&self) -> Option<Place> {
        Some(Place { node: Node::Generated(self.entry), mount: self.mount.clone() })
    }

    fn mount(&self) -> Option<&Arc<Mount>> {
        Some(&self.mount)
    }

    fn directory(&self) -> Result<Place, Errno> {
        match self.entry.kind() {
            FileKind::Directory => Ok(Place { node: Node::Generated(self.entry), mount: self.mount.clone() }),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        self.copy_in_steps(caller, buffer, None, waker)
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, _: Option<&Waker>) -> Attempt {
        // The whole value comes at once, wherever the position is.
        let mut value = [0; LONGEST_SETTING];
        let value = value.get_mut(..buffer.len()).ok_or(Errno::EINVAL)?;
        caller.copy_in(buffer.address(), value)?;
        self.permit(caller)?;
        source().set(self.entry, caller.number(), &self.opener, value)?;
        *done = buffer.len();
        Poll::Ready(Ok(buffer.len()))
    }

    fn poll_read_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, waker: Option<&Waker>) -> Attempt {
        self.copy_in_steps(caller, buffer, Some(offset), waker)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<usize, Errno> {
        let mut reading = self.reading.lock();
        let target = match whence {
            types::SEEK_SET => Some(offset),
            types::SEEK_CUR => offset.checked_add_unsigned(reading.position),
            _ => None,
        };
        reading.position = target.and_then(|target| u64::try_from(target).ok()).ok_or(Errno::EINVAL)?;
        Ok(reading.position as usize)
    }

    fn read_directory(&self, caller: &dyn Caller, buffer: UserBuffer) -> Result<usize, Errno> {
        if self.entry.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        caller.account().admit()?;
        self.permit(caller)?;
        let mut reading = self.reading.lock();
        let mut done = 0;
        for _ in 0..steps::ENTRIES {
            // Cursors 0 and 1 are `.` and `..`.
            let (entry, name, next) = match reading.position {
                0 => (self.entry, String::from("."), 1),
                1 => (source().parent(self.entry), String::from(".."), 2),
                cursor => match source().next(self.entry, cursor - 2) {
                    Some((entry, name, next)) => (entry, name, next + 2),
                    None => break,
                },
            };
            let metadata = entry.metadata();
            let record = DirectoryRecord::new(metadata.inode, next, metadata.kind, name.as_bytes());
            if done + record.bytes().len() > buffer.len() {
                if done == 0 {
                    return Err(Errno::EINVAL);
                }
                break;
            }
            caller.copy_out(buffer.address() + done, record.bytes())?;
            done += record.bytes().len();
            reading.position = next;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::open as how;

    use super::*;
    use crate::testing::{Program, run};

    fn open(program: &mut Program, path: &str) -> Result<usize, Errno> {
        let path = program.store(alloc::format!("{path}\0").as_bytes());
        program.call(SystemCall::Open, [types::AT_FDCWD as usize, path, how::RDONLY as usize, 0])
    }

    #[test]
    fn paths_that_lead_nowhere_are_refused() {
        run(|program| {
            let long = alloc::format!("/proc/{}", "a".repeat(MAX_NAME_LENGTH + 1));
            for (path, error) in [
                ("/proc/nothing", Errno::ENOENT),
                ("/proc/nothing/below", Errno::ENOENT),
                ("/proc/4000000000", Errno::ENOENT),
                ("/proc/version/", Errno::ENOTDIR),
                ("/proc/version/below", Errno::ENOTDIR),
                ("/proc/version/..", Errno::ENOTDIR),
                (&long, Errno::ENAMETOOLONG),
            ] {
                assert_eq!(open(program, path), Err(error), "{path}");
            }
        });
    }

    #[test]
    fn paths_turn_back_and_leave() {
        run(|program| {
            for path in ["/proc/./self//../version", "/proc/../proc/version", "/proc/self/../../proc/self/stat"] {
                let file = open(program, path).unwrap_or_else(|error| panic!("{path}: {error}"));
                assert!(!program.read_from(file, 100).unwrap().is_empty(), "{path}");
                program.close(file).unwrap();
            }
        });
    }

    #[test]
    fn contents_are_equal_whatever_the_length_of_reads() {
        run(|program| {
            let file = open(program, "/proc/version").unwrap();
            let whole = program.read_from(file, 1000).unwrap();
            let file = open(program, "/proc/version").unwrap();
            let mut bytes = Vec::new();
            while let Some(byte) = program.read_from(file, 1).unwrap().pop() {
                bytes.push(byte);
            }
            assert!(whole.ends_with(b"\n"));
            assert_eq!(bytes, whole);
        });
    }
}
