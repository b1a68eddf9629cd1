//! Equal random operations on our tree and on a file system of the Linux that runs the test: every result, down to the
//! error code, must be the same.
//!
//! Linux's answers cannot be observed outside a directory of our own; so paths never lead above it: `..` comes only
//! after a name, and a name never means the root, because symbolic links end in names.

#![cfg(target_os = "linux")]

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use filesystem::{
    Access, Contents, Creation, Error, Expect, FileKind, Filesystem, LastLink, Node, OpenFile, OpenOptions,
    Replacement, SeekFrom, SpecialFile, Timestamp, Writes,
};
use proptest::prelude::*;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{self, Errno};

const NOW: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

/// An index into the open directories or files, modulo their number.
type Which = usize;

#[derive(Clone, Debug)]
enum Operation {
    OpenDirectory(Which, String),
    Open(Which, String, OpenOptions),
    Read(Which, usize),
    ReadAt(Which, u64, usize),
    Write(Which, usize),
    WriteAt(Which, u64, usize),
    Seek(Which, SeekFrom),
    Truncate(Which, u64),
    MakeDirectory(Which, String),
    MakeFifo(Which, String),
    MakeLink(Which, String, String),
    ReadLink(Which, String),
    Link(Which, String, LastLink, Which, String),
    Unlink(Which, String),
    RemoveDirectory(Which, String),
    Rename(Which, String, Which, String, Replacement),
    Inspect(Which, String, LastLink),
    InspectFile(Which),
    List(Which),
    SetPermissions(Which, String, u16),
}

/// Result reported by both sides.
#[derive(Debug, PartialEq)]
enum Report {
    Nothing,
    Number(u64),
    Bytes(Vec<u8>),
    Names(Vec<(String, FileKind)>),
    Metadata { kind: FileKind, permissions: u16, links: u32, size: u64 },
}

fn errno(error: Error) -> Errno {
    match error {
        Error::NotFound => Errno::NOENT,
        Error::AlreadyExists => Errno::EXIST,
        Error::NotADirectory => Errno::NOTDIR,
        Error::IsADirectory => Errno::ISDIR,
        Error::DirectoryNotEmpty => Errno::NOTEMPTY,
        Error::TooManySymbolicLinks => Errno::LOOP,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::InvalidArgument => Errno::INVAL,
        Error::Busy => Errno::BUSY,
        Error::Unfinished => Errno::AGAIN,
        Error::NotPermitted => Errno::PERM,
        Error::AccessDenied => Errno::ACCESS,
        Error::NotOpenForThis => Errno::BADF,
        Error::CrossFilesystem | Error::Crossing => Errno::XDEV,
        Error::TooManyLinks => Errno::MLINK,
        Error::TextBusy => Errno::TXTBSY,
        Error::ReadOnly => Errno::ROFS,
        Error::FileTooLarge => Errno::FBIG,
        Error::NoSpace => Errno::NOSPC,
        Error::OutOfMemory => Errno::NOMEM,
    }
}

/// Bytes that differ from one place and one write to the next.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + seed * 31 + 1) as u8).collect()
}

struct Ours {
    filesystem: Filesystem,
    directories: Vec<Node>,
    files: Vec<OpenFile>,
}

impl Ours {
    fn new() -> Ours {
        let filesystem = Filesystem::new(1 << 30).unwrap();
        Ours { directories: vec![filesystem.root()], files: Vec::new(), filesystem }
    }

    fn base(&self, which: Which) -> &Node {
        &self.directories[which % self.directories.len()]
    }

    fn file(&self, which: Which) -> Result<&OpenFile, Error> {
        self.files.get(which % self.files.len().max(1)).ok_or(Error::NotOpenForThis)
    }

    fn metadata(node: &Node) -> Report {
        let metadata = node.metadata();
        Report::Metadata {
            kind: metadata.kind,
            permissions: metadata.permissions,
            links: metadata.links,
            size: match metadata.kind {
                FileKind::Directory => 0,
                _ => metadata.size,
            },
        }
    }

    fn run(&mut self, number: usize, operation: &Operation) -> Result<Report, Error> {
        let filesystem = &self.filesystem;
        Ok(match operation {
            Operation::OpenDirectory(base, path) => {
                let node = filesystem.look_up(self.base(*base), path.as_bytes(), LastLink::Follow)?;
                if node.kind() != FileKind::Directory {
                    return Err(Error::NotADirectory);
                }
                self.directories.push(node);
                Report::Nothing
            }
            Operation::Open(base, path, options) => {
                let file = filesystem.open(self.base(*base), path.as_bytes(), options, NOW)?;
                if file.node().kind() == FileKind::Regular {
                    self.files.push(file);
                }
                Report::Nothing
            }
            Operation::Read(which, length) => {
                let mut buffer = vec![0; *length];
                let count = self.file(*which)?.read(&mut buffer)?;
                buffer.truncate(count);
                Report::Bytes(buffer)
            }
            Operation::ReadAt(which, offset, length) => {
                let mut bytes = Vec::new();
                self.file(*which)?.read_at_with(*offset, *length, |piece| {
                    bytes.extend_from_slice(piece);
                    piece.len()
                })?;
                Report::Bytes(bytes)
            }
            Operation::Write(which, length) => {
                let count = self.file(*which)?.write(&pattern(number, *length), NOW)?;
                Report::Number(count as u64)
            }
            Operation::WriteAt(which, offset, length) => {
                let data = pattern(number, *length);
                let mut rest = &data[..];
                let count = self.file(*which)?.write_at_with(None, *offset, *length, NOW, |piece| {
                    piece.copy_from_slice(&rest[..piece.len()]);
                    rest = &rest[piece.len()..];
                    piece.len()
                })?;
                Report::Number(count as u64)
            }
            Operation::Seek(which, from) => Report::Number(self.file(*which)?.seek(*from)?),
            Operation::Truncate(which, length) => {
                self.file(*which)?.truncate(*length, NOW)?;
                Report::Nothing
            }
            Operation::MakeDirectory(base, path) => {
                filesystem.make_directory(self.base(*base), path.as_bytes(), 0o755, NOW)?;
                Report::Nothing
            }
            Operation::MakeFifo(base, path) => {
                filesystem.make_special_file(self.base(*base), path.as_bytes(), SpecialFile::Fifo, 0o644, NOW)?;
                Report::Nothing
            }
            Operation::MakeLink(base, path, target) => {
                filesystem.make_symbolic_link(self.base(*base), path.as_bytes(), target.as_bytes(), NOW)?;
                Report::Nothing
            }
            Operation::ReadLink(base, path) => {
                let node = filesystem.look_up(self.base(*base), path.as_bytes(), LastLink::Keep)?;
                Report::Bytes(node.read_link(<[u8]>::to_vec)?)
            }
            Operation::Link(existing_base, existing, last, base, path) => {
                filesystem.link(
                    self.base(*existing_base),
                    existing.as_bytes(),
                    *last,
                    self.base(*base),
                    path.as_bytes(),
                    NOW,
                )?;
                Report::Nothing
            }
            Operation::Unlink(base, path) => {
                filesystem.unlink(self.base(*base), path.as_bytes(), NOW)?;
                Report::Nothing
            }
            Operation::RemoveDirectory(base, path) => {
                filesystem.remove_directory(self.base(*base), path.as_bytes(), NOW)?;
                Report::Nothing
            }
            Operation::Rename(old_base, old, new_base, new, replacement) => {
                filesystem.rename(
                    self.base(*old_base),
                    old.as_bytes(),
                    self.base(*new_base),
                    new.as_bytes(),
                    *replacement,
                    NOW,
                )?;
                Report::Nothing
            }
            Operation::Inspect(base, path, last) => {
                Ours::metadata(&filesystem.look_up(self.base(*base), path.as_bytes(), *last)?)
            }
            Operation::InspectFile(which) => Ours::metadata(self.file(*which)?.node()),
            Operation::List(which) => {
                let mut names = Vec::new();
                let listed = self.base(*which).read_directory(0, |entry| {
                    let name = String::from_utf8(entry.name.to_vec()).unwrap();
                    names.push((name, entry.kind));
                    ControlFlow::Continue(())
                });
                // Linux says that a removed directory does not exist; C libraries, and the crate that calls Linux here,
                // say that it has no entries.
                if listed != Err(Error::NotFound) {
                    listed?;
                }
                names.sort_by(|one, other| one.0.cmp(&other.0));
                Report::Names(names)
            }
            Operation::SetPermissions(base, path, permissions) => {
                filesystem
                    .look_up(self.base(*base), path.as_bytes(), LastLink::Follow)?
                    .set_permissions(*permissions, NOW);
                Report::Nothing
            }
        })
    }
}

struct Theirs {
    path: PathBuf,
    directories: Vec<OwnedFd>,
    files: Vec<OwnedFd>,
}

impl Theirs {
    fn new() -> Theirs {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // A tmpfs if there is one, our model. Other file systems report other numbers of links.
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("filesystem-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let root = fs::open(&path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        fs::fchmod(&root, Mode::from_raw_mode(0o755)).unwrap();
        Theirs { path, directories: vec![root], files: Vec::new() }
    }

    fn base(&self, which: Which) -> &OwnedFd {
        &self.directories[which % self.directories.len()]
    }

    fn file(&self, which: Which) -> Result<&OwnedFd, Errno> {
        self.files.get(which % self.files.len().max(1)).ok_or(Errno::BADF)
    }

    fn metadata(stat: fs::Stat) -> Report {
        let kind = kind(FileType::from_raw_mode(stat.st_mode));
        Report::Metadata {
            kind,
            permissions: (stat.st_mode & 0o7777) as u16,
            links: stat.st_nlink as u32,
            size: match kind {
                FileKind::Directory => 0,
                _ => stat.st_size as u64,
            },
        }
    }

    fn run(&mut self, number: usize, operation: &Operation) -> Result<Report, Errno> {
        Ok(match operation {
            Operation::OpenDirectory(base, path) => {
                let flags = OFlags::DIRECTORY | OFlags::RDONLY;
                let directory = fs::openat(self.base(*base), path.as_str(), flags, Mode::empty())?;
                self.directories.push(directory);
                Report::Nothing
            }
            Operation::Open(base, path, options) => {
                let mode = Mode::from_raw_mode(u32::from(options.permissions));
                // Whether a FIFO has a reader is not the tree's business.
                let file = match fs::openat(self.base(*base), path.as_str(), flags(options) | OFlags::NONBLOCK, mode) {
                    Err(Errno::NXIO) => return Ok(Report::Nothing),
                    file => file?,
                };
                let stat = fs::fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                    self.files.push(file);
                }
                Report::Nothing
            }
            Operation::Read(which, length) => {
                let mut buffer = vec![0; *length];
                let count = io::read(self.file(*which)?, &mut buffer)?;
                buffer.truncate(count);
                Report::Bytes(buffer)
            }
            Operation::ReadAt(which, offset, length) => {
                let mut buffer = vec![0; *length];
                let count = io::pread(self.file(*which)?, &mut buffer, *offset)?;
                buffer.truncate(count);
                Report::Bytes(buffer)
            }
            Operation::Write(which, length) => {
                let count = io::write(self.file(*which)?, &pattern(number, *length))?;
                Report::Number(count as u64)
            }
            Operation::WriteAt(which, offset, length) => {
                let data = pattern(number, *length);
                Report::Number(io::pwrite(self.file(*which)?, &data, *offset)? as u64)
            }
            Operation::Seek(which, from) => {
                let from = match from {
                    SeekFrom::Start(offset) => fs::SeekFrom::Start(*offset),
                    SeekFrom::Current(distance) => fs::SeekFrom::Current(*distance),
                    SeekFrom::End(distance) => fs::SeekFrom::End(*distance),
                };
                Report::Number(fs::seek(self.file(*which)?, from)?)
            }
            Operation::Truncate(which, length) => {
                fs::ftruncate(self.file(*which)?, *length)?;
                Report::Nothing
            }
            Operation::MakeDirectory(base, path) => {
                let mode = Mode::from_raw_mode(0o755);
                fs::mkdirat(self.base(*base), path.as_str(), mode)?;
                Report::Nothing
            }
            Operation::MakeFifo(base, path) => {
                let mode = Mode::from_raw_mode(0o644);
                fs::mknodat(self.base(*base), path.as_str(), FileType::Fifo, mode, 0)?;
                Report::Nothing
            }
            Operation::MakeLink(base, path, target) => {
                fs::symlinkat(target.as_str(), self.base(*base), path.as_str())?;
                Report::Nothing
            }
            Operation::ReadLink(base, path) => {
                let target = fs::readlinkat(self.base(*base), path.as_str(), Vec::new())?;
                Report::Bytes(target.into_bytes())
            }
            Operation::Link(existing_base, existing, last, base, path) => {
                let flags = match last {
                    LastLink::Follow => AtFlags::SYMLINK_FOLLOW,
                    LastLink::Keep => AtFlags::empty(),
                };
                fs::linkat(self.base(*existing_base), existing.as_str(), self.base(*base), path.as_str(), flags)?;
                Report::Nothing
            }
            Operation::Unlink(base, path) => {
                fs::unlinkat(self.base(*base), path.as_str(), AtFlags::empty())?;
                Report::Nothing
            }
            Operation::RemoveDirectory(base, path) => {
                fs::unlinkat(self.base(*base), path.as_str(), AtFlags::REMOVEDIR)?;
                Report::Nothing
            }
            Operation::Rename(old_base, old, new_base, new, replacement) => {
                let flags = match replacement {
                    Replacement::Replace => RenameFlags::empty(),
                    Replacement::Refuse => RenameFlags::NOREPLACE,
                    Replacement::Exchange => RenameFlags::EXCHANGE,
                };
                fs::renameat_with(self.base(*old_base), old.as_str(), self.base(*new_base), new.as_str(), flags)?;
                Report::Nothing
            }
            Operation::Inspect(base, path, last) => {
                let flags = match last {
                    LastLink::Follow => AtFlags::empty(),
                    LastLink::Keep => AtFlags::SYMLINK_NOFOLLOW,
                };
                Theirs::metadata(fs::statat(self.base(*base), path.as_str(), flags)?)
            }
            Operation::InspectFile(which) => Theirs::metadata(fs::fstat(self.file(*which)?)?),
            Operation::List(which) => {
                let mut names = Vec::new();
                for entry in fs::Dir::read_from(self.base(*which))? {
                    let entry = entry?;
                    let name = entry.file_name().to_str().unwrap().to_owned();
                    names.push((name, kind(entry.file_type())));
                }
                names.sort_by(|one, other| one.0.cmp(&other.0));
                Report::Names(names)
            }
            Operation::SetPermissions(base, path, permissions) => {
                let mode = Mode::from_raw_mode(u32::from(*permissions));
                fs::chmodat(self.base(*base), path.as_str(), mode, AtFlags::empty())?;
                Report::Nothing
            }
        })
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // The test may run as a user without all permissions.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::SymbolicLink,
        FileType::RegularFile => FileKind::Regular,
        FileType::Fifo => FileKind::Fifo,
        other => panic!("the model has no {other:?}"),
    }
}

fn flags(options: &OpenOptions) -> OFlags {
    let mut flags = match options.access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::WRONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    flags |= match options.creation {
        Creation::Never => OFlags::empty(),
        Creation::IfMissing => OFlags::CREATE,
        Creation::Always => OFlags::CREATE | OFlags::EXCL,
    };
    flags.set(OFlags::TRUNC, options.contents == Contents::Discard);
    flags.set(OFlags::APPEND, options.writes == Writes::AtEnd);
    flags.set(OFlags::DIRECTORY, options.expect == Expect::Directory);
    flags.set(OFlags::NOFOLLOW, options.last_link == LastLink::Keep);
    flags
}

const MAX_NAME: usize = 255;

/// A name, sometimes one that is as long as possible, or as `longest`.
fn name(longest: usize) -> impl Strategy<Value = String> {
    prop_oneof![
        60 => prop::sample::select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned),
        1 => (MAX_NAME - 1..=longest).prop_map(|length| "n".repeat(length)),
    ]
}

/// One or more names, with dots and repeated slashes between them, that never leads above its base.
fn path() -> impl Strategy<Value = String> {
    path_of_names(MAX_NAME + 2)
}

/// One of two paths: which of two errors is reported first is unspecified, so no name is too long.
fn short_path() -> impl Strategy<Value = String> {
    path_of_names(MAX_NAME)
}

fn path_of_names(longest: usize) -> impl Strategy<Value = String> {
    let part = prop_oneof![
        12 => name(longest),
        1 => name(longest).prop_map(|name| format!("./{name}")),
        1 => name(longest).prop_map(|name| format!("{name}/..")),
        1 => name(longest).prop_map(|name| format!("{name}/")),
    ];
    let end = prop_oneof![
        14 => Just(""),
        2 => Just("/"),
        1 => Just("//"),
        1 => Just("/."),
        1 => Just("/.."),
    ];
    let path = (prop::collection::vec(part, 1..4), end).prop_map(|(parts, end)| {
        let path = parts.join("/");
        if path.ends_with("..") && end.contains("..") { path } else { path + end }
    });
    prop_oneof![
        40 => path,
        1 => Just(".".to_owned()),
        1 => Just("./".to_owned()),
        1 => Just(String::new()),
    ]
}

/// The target of a symbolic link: ends in a name, so that it never means the root.
fn target() -> impl Strategy<Value = String> {
    (prop::collection::vec(name(MAX_NAME), 1..3), any::<bool>()).prop_map(|(names, slash)| {
        let mut target = names.join("/");
        if slash {
            target.push('/');
        }
        target
    })
}

fn options() -> impl Strategy<Value = OpenOptions> {
    (
        prop_oneof![
            1 => Just(Access::Read),
            1 => Just(Access::Write),
            3 => Just(Access::ReadWrite)
        ],
        prop_oneof![
            1 => Just(Creation::Never),
            2 => Just(Creation::IfMissing),
            1 => Just(Creation::Always)
        ],
        prop_oneof![3 => Just(Contents::Keep), 1 => Just(Contents::Discard)],
        prop_oneof![3 => Just(Writes::AtPosition), 1 => Just(Writes::AtEnd)],
        prop_oneof![5 => Just(Expect::Anything), 1 => Just(Expect::Directory)],
        prop_oneof![3 => Just(LastLink::Follow), 1 => Just(LastLink::Keep)],
    )
        .prop_map(|(access, creation, contents, writes, expect, last_link)| OpenOptions {
            access,
            creation,
            contents,
            writes,
            // To make a file and demand a directory is an error since Linux 6.4, and was something else before.
            expect: if creation == Creation::Never { expect } else { Expect::Anything },
            last_link,
            permissions: 0o644,
        })
}

fn operation() -> impl Strategy<Value = Operation> {
    let which = || 0..8usize;
    let last = || prop_oneof![Just(LastLink::Follow), Just(LastLink::Keep)];
    let length = || prop_oneof![0..50usize, property::edges(0..10_000usize, &[4096, 8192])];
    let offset = || prop_oneof![0..50u64, property::edges(0..20_000u64, &[4096, 8192]), 4090..4100u64];
    prop_oneof![
        2 => (which(), path()).prop_map(|(base, path)| Operation::OpenDirectory(base, path)),
        6 => (which(), path(), options())
            .prop_map(|(base, path, options)| Operation::Open(base, path, options)),
        2 => (which(), length()).prop_map(|(which, length)| Operation::Read(which, length)),
        2 => (which(), offset(), length())
            .prop_map(|(which, offset, length)| Operation::ReadAt(which, offset, length)),
        3 => (which(), length()).prop_map(|(which, length)| Operation::Write(which, length)),
        2 => (which(), offset(), length())
            .prop_map(|(which, offset, length)| Operation::WriteAt(which, offset, length)),
        2 => (which(), prop_oneof![
            offset().prop_map(SeekFrom::Start),
            property::edges(-9000..9000i64, &[0, -4096]).prop_map(SeekFrom::Current),
            property::edges(-9000..9000i64, &[0, -4096]).prop_map(SeekFrom::End),
        ]).prop_map(|(which, from)| Operation::Seek(which, from)),
        2 => (which(), offset()).prop_map(|(which, length)| Operation::Truncate(which, length)),
        5 => (which(), path()).prop_map(|(base, path)| Operation::MakeDirectory(base, path)),
        2 => (which(), path()).prop_map(|(base, path)| Operation::MakeFifo(base, path)),
        3 => (which(), path(), target())
            .prop_map(|(base, path, target)| Operation::MakeLink(base, path, target)),
        1 => (which(), path()).prop_map(|(base, path)| Operation::ReadLink(base, path)),
        3 => (which(), short_path(), last(), which(), short_path()).prop_map(
            |(existing_base, existing, last, base, path)| {
                Operation::Link(existing_base, existing, last, base, path)
            },
        ),
        3 => (which(), path()).prop_map(|(base, path)| Operation::Unlink(base, path)),
        3 => (which(), path()).prop_map(|(base, path)| Operation::RemoveDirectory(base, path)),
        8 => (
            which(), short_path(), which(), short_path(),
            prop_oneof![
                4 => Just(Replacement::Replace),
                1 => Just(Replacement::Refuse),
                2 => Just(Replacement::Exchange)
            ],
        ).prop_map(|(old_base, old, new_base, new, replacement)| {
            Operation::Rename(old_base, old, new_base, new, replacement)
        }),
        3 => (which(), path(), last())
            .prop_map(|(base, path, last)| Operation::Inspect(base, path, last)),
        2 => which().prop_map(Operation::InspectFile),
        3 => which().prop_map(Operation::List),
        1 => (which(), path(), 0o600..0o1000u16).prop_map(|(base, path, permissions)| {
            // The test itself must be able to go on.
            Operation::SetPermissions(base, path, permissions | 0o700)
        }),
    ]
}

fn compare(operations: &[Operation]) {
    let mut ours = Ours::new();
    let mut theirs = Theirs::new();
    for (number, operation) in operations.iter().enumerate() {
        let expected = theirs.run(number, operation);
        let actual = ours.run(number, operation).map_err(errno);
        assert_eq!(actual, expected, "left ours, right Linux's; step {number}: {operation:?}");
    }
    // In the end the trees are equal.
    let (mut our_paths, mut their_paths) = (Vec::new(), Vec::new());
    describe_ours(&ours.filesystem, &ours.directories[0], "", &mut our_paths);
    describe_theirs(&theirs.directories[0], "", &mut their_paths);
    assert_eq!(our_paths, their_paths);
}

type Description = (String, Report, Vec<u8>);

fn describe_ours(filesystem: &Filesystem, directory: &Node, path: &str, result: &mut Vec<Description>) {
    let mut names = Vec::new();
    directory
        .read_directory(2, |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            ControlFlow::Continue(())
        })
        .unwrap();
    names.sort();
    for name in names {
        let path = format!("{path}/{name}");
        let node = filesystem.look_up(directory, name.as_bytes(), LastLink::Keep).unwrap();
        let mut bytes = Vec::new();
        match node.kind() {
            FileKind::Regular => {
                bytes.resize(node.metadata().size as usize, 0);
                node.read_at(0, &mut bytes).unwrap();
            }
            FileKind::SymbolicLink => bytes = node.read_link(<[u8]>::to_vec).unwrap(),
            _ => {}
        }
        result.push((path.clone(), Ours::metadata(&node), bytes));
        if node.kind() == FileKind::Directory {
            assert_eq!(filesystem.path_of(&node).unwrap(), path.as_bytes());
            describe_ours(filesystem, &node, &path, result);
        }
    }
}

fn describe_theirs(directory: &OwnedFd, path: &str, result: &mut Vec<Description>) {
    let mut names: Vec<_> = fs::Dir::read_from(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .filter(|name| name != "." && name != "..")
        .collect();
    names.sort();
    for name in names {
        let path = format!("{path}/{name}");
        let metadata = Theirs::metadata(fs::statat(directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).unwrap());
        let Report::Metadata { kind, size, .. } = metadata else { unreachable!() };
        let open = |flags| fs::openat(directory, name.as_str(), flags, Mode::empty()).unwrap();
        let mut bytes = Vec::new();
        match kind {
            FileKind::Regular => {
                bytes.resize(size as usize, 0);
                io::pread(open(OFlags::RDONLY), &mut bytes, 0).unwrap();
            }
            FileKind::SymbolicLink => {
                bytes = fs::readlinkat(directory, name.as_str(), Vec::new()).unwrap().into_bytes();
            }
            _ => {}
        }
        result.push((path.clone(), metadata, bytes));
        if kind == FileKind::Directory {
            describe_theirs(&open(OFlags::DIRECTORY), &path, result);
        }
    }
}

proptest! {
    #![proptest_config(property::cases(400))]

    #[test]
    fn tree_behaves_like_linuxs(operations in prop::collection::vec(operation(), 1..120)) {
        compare(&operations);
    }
}
