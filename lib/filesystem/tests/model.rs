//! The tree against a naive model: inodes in a map, contents in vectors, paths resolved by recursion. It goes where the
//! comparison with Linux cannot: absolute symbolic links, `..` at the root, links that loop, devices, times, the limit.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use filesystem::{
    Access, Creation, DeviceNumber, Error, FileKind, Filesystem, LastLink, MAX_SYMBOLIC_LINKS, Node, OpenOptions,
    Replacement, SpecialFile, Timestamp,
};
use proptest::prelude::*;

type Id = u64;

const ROOT: Id = 0;

#[derive(Clone, Debug, PartialEq)]
enum Thing {
    File(Vec<u8>),
    Directory { names: BTreeMap<String, Id>, parent: Id },
    Link(String),
    Device(DeviceNumber),
    Fifo,
}

#[derive(Clone, Debug)]
struct Inode {
    thing: Thing,
    links: u32,
    modified: i64,
    changed: i64,
}

#[derive(Clone, Debug)]
enum Operation {
    Directory(String),
    Link(String, String),
    Device(String, u32),
    Fifo(String),
    HardLink(String, LastLink, String),
    Write(String, usize, usize),
    Truncate(String, usize),
    Unlink(String),
    RemoveDirectory(String),
    Rename(String, String, Replacement),
    Look(String, LastLink),
}

/// End of a path: an entry of a directory, or the directory itself.
struct Place {
    directory: Id,
    name: Option<String>,
    slash: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Follow,
    Keep,
    /// For names that are made or removed: not even a slash makes it follow.
    Name,
    /// For opening a file that may be made.
    Make,
}

struct Model {
    inodes: HashMap<Id, Inode>,
    next: Id,
}

impl Model {
    fn new() -> Model {
        let mut model = Model { inodes: HashMap::new(), next: ROOT };
        let root = model.add(Model::directory(ROOT), 0);
        assert_eq!(root, ROOT);
        model.inodes.get_mut(&ROOT).unwrap().links = 1;
        model
    }

    fn directory(parent: Id) -> Thing {
        Thing::Directory { names: BTreeMap::new(), parent }
    }

    fn add(&mut self, thing: Thing, now: i64) -> Id {
        let id = self.next;
        self.next += 1;
        self.inodes.insert(id, Inode { thing, links: 0, modified: now, changed: now });
        id
    }

    fn names(&self, id: Id) -> Result<&BTreeMap<String, Id>, Error> {
        match &self.inodes[&id].thing {
            Thing::Directory { names, .. } => Ok(names),
            _ => Err(Error::NotADirectory),
        }
    }

    fn names_mut(&mut self, id: Id) -> &mut BTreeMap<String, Id> {
        match &mut self.inodes.get_mut(&id).unwrap().thing {
            Thing::Directory { names, .. } => names,
            other => panic!("{other:?} is not a directory"),
        }
    }

    fn parent(&self, id: Id) -> Id {
        match &self.inodes[&id].thing {
            Thing::Directory { parent, .. } => *parent,
            other => panic!("{other:?} is not a directory"),
        }
    }

    fn is_directory(&self, id: Id) -> bool {
        self.names(id).is_ok()
    }

    fn touch(&mut self, id: Id, now: i64) {
        let inode = self.inodes.get_mut(&id).unwrap();
        (inode.modified, inode.changed) = (now, now);
    }

    fn walk(&self, base: Id, path: &str, mode: Mode, links: &mut usize) -> Result<Place, Error> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        let mut directory = if path.starts_with('/') { ROOT } else { base };
        let slash = path.ends_with('/');
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        for (index, part) in parts.iter().enumerate() {
            let is_last = index + 1 == parts.len();
            if *part == "." {
                continue;
            }
            if *part == ".." {
                directory = self.parent(directory);
                continue;
            }
            if is_last && slash && mode == Mode::Make {
                return Err(Error::IsADirectory);
            }
            let child = self.names(directory)?.get(*part).copied();
            let target = child.and_then(|child| match &self.inodes[&child].thing {
                Thing::Link(target) => Some(target.clone()),
                _ => None,
            });
            let follows = !is_last
                || match mode {
                    Mode::Follow | Mode::Make => true,
                    Mode::Keep => slash,
                    Mode::Name => false,
                };
            match target {
                Some(target) if follows => {
                    *links += 1;
                    if *links > MAX_SYMBOLIC_LINKS {
                        return Err(Error::TooManySymbolicLinks);
                    }
                    if is_last {
                        let tail = if slash { "/" } else { "" };
                        return self.walk(directory, &(target + tail), mode, links);
                    }
                    let place = self.walk(directory, &(target + "/"), Mode::Follow, links)?;
                    directory = self.target(&place)?;
                }
                _ if is_last => {
                    return Ok(Place { directory, name: Some((*part).to_owned()), slash });
                }
                _ => {
                    directory = child.ok_or(Error::NotFound)?;
                    self.names(directory)?;
                }
            }
        }
        Ok(Place { directory, name: None, slash })
    }

    fn target(&self, place: &Place) -> Result<Id, Error> {
        let id = match &place.name {
            None => place.directory,
            Some(name) => *self.names(place.directory)?.get(name).ok_or(Error::NotFound)?,
        };
        if place.slash && !self.is_directory(id) {
            return Err(Error::NotADirectory);
        }
        Ok(id)
    }

    fn find(&self, path: &str, mode: Mode) -> Result<Id, Error> {
        self.target(&self.walk(ROOT, path, mode, &mut 0)?)
    }

    fn new_name(&self, path: &str, is_directory: bool) -> Result<(Id, String), Error> {
        let place = self.walk(ROOT, path, Mode::Name, &mut 0)?;
        let name = place.name.ok_or(Error::AlreadyExists)?;
        if self.names(place.directory)?.contains_key(&name) {
            return Err(Error::AlreadyExists);
        }
        if place.slash && !is_directory {
            return Err(Error::NotFound);
        }
        Ok((place.directory, name))
    }

    fn enter(&mut self, directory: Id, name: String, id: Id, now: i64) {
        self.names_mut(directory).insert(name, id);
        self.inodes.get_mut(&id).unwrap().links += 1;
        self.touch(directory, now);
    }

    fn leave(&mut self, directory: Id, name: &str, now: i64) {
        let id = self.names_mut(directory).remove(name).unwrap();
        let inode = self.inodes.get_mut(&id).unwrap();
        inode.links -= 1;
        inode.changed = now;
        if inode.links == 0 {
            self.inodes.remove(&id);
        }
        self.touch(directory, now);
    }

    fn is_above(&self, above: Id, mut below: Id) -> bool {
        while below != above && below != ROOT {
            below = self.parent(below);
        }
        below == above
    }

    fn run(&mut self, now: i64, operation: &Operation) -> Result<Option<Id>, Error> {
        match operation {
            Operation::Directory(path) => {
                let (directory, name) = self.new_name(path, true)?;
                let id = self.add(Model::directory(directory), now);
                self.enter(directory, name, id, now);
            }
            Operation::Link(path, target) => {
                if target.is_empty() {
                    return Err(Error::NotFound);
                }
                let (directory, name) = self.new_name(path, false)?;
                let id = self.add(Thing::Link(target.clone()), now);
                self.enter(directory, name, id, now);
            }
            Operation::Device(path, minor) => {
                let (directory, name) = self.new_name(path, false)?;
                let device = DeviceNumber { major: 1, minor: *minor };
                let id = self.add(Thing::Device(device), now);
                self.enter(directory, name, id, now);
            }
            Operation::Fifo(path) => {
                let (directory, name) = self.new_name(path, false)?;
                let id = self.add(Thing::Fifo, now);
                self.enter(directory, name, id, now);
            }
            Operation::HardLink(existing, last, path) => {
                let id = self.find(existing, mode(*last))?;
                let (directory, name) = self.new_name(path, false)?;
                if self.is_directory(id) {
                    return Err(Error::NotPermitted);
                }
                self.enter(directory, name, id, now);
                self.inodes.get_mut(&id).unwrap().changed = now;
            }
            Operation::Write(path, offset, length) => {
                let place = self.walk(ROOT, path, Mode::Make, &mut 0)?;
                let name = place.name.clone().ok_or(Error::IsADirectory)?;
                let id = match self.names(place.directory)?.get(&name) {
                    Some(id) => *id,
                    None => {
                        let id = self.add(Thing::File(Vec::new()), now);
                        self.enter(place.directory, name, id, now);
                        id
                    }
                };
                match &mut self.inodes.get_mut(&id).unwrap().thing {
                    Thing::Directory { .. } => return Err(Error::IsADirectory),
                    Thing::File(bytes) => {
                        let end = offset + length;
                        if *length > 0 {
                            bytes.resize(bytes.len().max(end), 0);
                            bytes[*offset..end].fill(now as u8);
                        }
                    }
                    _ => return Err(Error::InvalidArgument),
                }
                if *length > 0 {
                    self.touch(id, now);
                }
            }
            Operation::Truncate(path, length) => {
                let id = self.find(path, Mode::Follow)?;
                match &mut self.inodes.get_mut(&id).unwrap().thing {
                    Thing::Directory { .. } => return Err(Error::IsADirectory),
                    Thing::File(bytes) => bytes.resize(*length, 0),
                    _ => return Err(Error::InvalidArgument),
                }
                self.touch(id, now);
            }
            Operation::Unlink(path) => {
                let place = self.walk(ROOT, path, Mode::Name, &mut 0)?;
                let name = place.name.ok_or(Error::IsADirectory)?;
                let names = self.names(place.directory)?;
                let id = *names.get(&name).ok_or(Error::NotFound)?;
                if self.is_directory(id) {
                    return Err(Error::IsADirectory);
                }
                if place.slash {
                    return Err(Error::NotADirectory);
                }
                self.leave(place.directory, &name, now);
            }
            Operation::RemoveDirectory(path) => {
                let place = self.walk(ROOT, path, Mode::Name, &mut 0)?;
                let name = place.name.ok_or(match path.trim_end_matches('/').rsplit('/').next() {
                    Some("..") => Error::DirectoryNotEmpty,
                    Some(".") => Error::InvalidArgument,
                    _ => Error::Busy,
                })?;
                let names = self.names(place.directory)?;
                let id = *names.get(&name).ok_or(Error::NotFound)?;
                if !self.names(id)?.is_empty() {
                    return Err(Error::DirectoryNotEmpty);
                }
                self.leave(place.directory, &name, now);
            }
            Operation::Rename(old, new, replacement) => {
                self.rename(now, old, new, *replacement)?;
            }
            Operation::Look(path, last) => return self.find(path, mode(*last)).map(Some),
        }
        Ok(None)
    }

    fn rename(&mut self, now: i64, old: &str, new: &str, replacement: Replacement) -> Result<(), Error> {
        let old = self.walk(ROOT, old, Mode::Name, &mut 0)?;
        let new = self.walk(ROOT, new, Mode::Name, &mut 0)?;
        let old_name = old.name.ok_or(Error::Busy)?;
        let new_name =
            new.name.ok_or(if replacement == Replacement::Refuse { Error::AlreadyExists } else { Error::Busy })?;
        let source = *self.names(old.directory)?.get(&old_name).ok_or(Error::NotFound)?;
        let target = self.names(new.directory)?.get(&new_name).copied();
        let exchanges = replacement == Replacement::Exchange;
        if replacement == Replacement::Refuse && target.is_some() {
            return Err(Error::AlreadyExists);
        }
        if exchanges {
            let target = target.ok_or(Error::NotFound)?;
            if new.slash && !self.is_directory(target) {
                return Err(Error::NotADirectory);
            }
        }
        if !self.is_directory(source) && (old.slash || new.slash && !exchanges) {
            return Err(Error::NotADirectory);
        }
        if self.is_directory(source) && self.is_above(source, new.directory) {
            return Err(Error::InvalidArgument);
        }
        if let Some(target) = target {
            if self.is_directory(target) && self.is_above(target, old.directory) {
                return Err(if exchanges { Error::InvalidArgument } else { Error::DirectoryNotEmpty });
            }
            if source == target {
                return Ok(());
            }
            if !exchanges {
                match (self.is_directory(source), self.is_directory(target)) {
                    (true, false) => return Err(Error::NotADirectory),
                    (false, true) => return Err(Error::IsADirectory),
                    (true, true) if !self.names(target)?.is_empty() => {
                        return Err(Error::DirectoryNotEmpty);
                    }
                    _ => {}
                }
                self.leave(new.directory, &new_name, now);
            }
        }
        self.names_mut(old.directory).remove(&old_name);
        if let (true, Some(target)) = (exchanges, target) {
            self.names_mut(old.directory).insert(old_name, target);
            self.adopt(old.directory, target);
            self.inodes.get_mut(&target).unwrap().changed = now;
        }
        self.names_mut(new.directory).insert(new_name, source);
        self.adopt(new.directory, source);
        self.touch(old.directory, now);
        self.touch(new.directory, now);
        self.inodes.get_mut(&source).unwrap().changed = now;
        Ok(())
    }

    fn adopt(&mut self, directory: Id, child: Id) {
        if let Thing::Directory { parent, .. } = &mut self.inodes.get_mut(&child).unwrap().thing {
            *parent = directory;
        }
    }
}

fn mode(last: LastLink) -> Mode {
    match last {
        LastLink::Follow => Mode::Follow,
        LastLink::Keep => Mode::Keep,
    }
}

fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

fn run(filesystem: &Filesystem, root: &Node, now: i64, operation: &Operation) -> Result<Option<Node>, Error> {
    let seconds = now;
    let now = time(now);
    match operation {
        Operation::Directory(path) => {
            filesystem.make_directory(root, path.as_bytes(), 0o755, now)?;
        }
        Operation::Link(path, target) => {
            filesystem.make_symbolic_link(root, path.as_bytes(), target.as_bytes(), now)?;
        }
        Operation::Device(path, minor) => {
            let device = DeviceNumber { major: 1, minor: *minor };
            filesystem.make_special_file(root, path.as_bytes(), SpecialFile::CharacterDevice(device), 0o666, now)?;
        }
        Operation::Fifo(path) => {
            filesystem.make_special_file(root, path.as_bytes(), SpecialFile::Fifo, 0o644, now)?;
        }
        Operation::HardLink(existing, last, path) => {
            filesystem.link(root, existing.as_bytes(), *last, root, path.as_bytes(), now)?;
        }
        Operation::Write(path, offset, length) => {
            let options = OpenOptions {
                access: Access::ReadWrite,
                creation: Creation::IfMissing,
                permissions: 0o644,
                ..OpenOptions::default()
            };
            let file = filesystem.open(root, path.as_bytes(), &options, now)?;
            let data = vec![seconds as u8; *length];
            let count = file.node().write_at(*offset as u64, &data, now)?;
            assert_eq!(count, *length);
        }
        Operation::Truncate(path, length) => {
            filesystem.look_up(root, path.as_bytes(), LastLink::Follow)?.truncate(*length as u64, now)?;
        }
        Operation::Unlink(path) => filesystem.unlink(root, path.as_bytes(), now)?,
        Operation::RemoveDirectory(path) => {
            filesystem.remove_directory(root, path.as_bytes(), now)?;
        }
        Operation::Rename(old, new, replacement) => {
            let (old, new) = (old.as_bytes(), new.as_bytes());
            filesystem.rename(root, old, root, new, *replacement, now)?;
        }
        Operation::Look(path, last) => {
            return filesystem.look_up(root, path.as_bytes(), *last).map(Some);
        }
    }
    Ok(None)
}

fn path() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        12 => prop::sample::select(vec!["a", "b", "c"]),
        1 => Just("."),
        2 => Just(".."),
        1 => Just(""),
    ];
    (any::<bool>(), prop::collection::vec(part, 1..5), prop_oneof![5 => Just(""), 1 => Just("/")]).prop_map(
        |(absolute, parts, end)| {
            let start = if absolute { "/" } else { "" };
            format!("{start}{}{end}", parts.join("/"))
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let last = || prop_oneof![Just(LastLink::Follow), Just(LastLink::Keep)];
    let size = || property::edges(0..9000usize, &[4096, 8192]);
    let replacement = prop_oneof![
        3 => Just(Replacement::Replace),
        1 => Just(Replacement::Refuse),
        1 => Just(Replacement::Exchange)
    ];
    prop_oneof![
        5 => path().prop_map(Operation::Directory),
        3 => (path(), path()).prop_map(|(path, target)| Operation::Link(path, target)),
        1 => (path(), any::<u32>()).prop_map(|(path, minor)| Operation::Device(path, minor)),
        1 => path().prop_map(Operation::Fifo),
        2 => (path(), last(), path())
            .prop_map(|(existing, last, path)| Operation::HardLink(existing, last, path)),
        5 => (path(), size(), size())
            .prop_map(|(path, offset, length)| Operation::Write(path, offset, length)),
        1 => (path(), size()).prop_map(|(path, length)| Operation::Truncate(path, length)),
        2 => path().prop_map(Operation::Unlink),
        2 => path().prop_map(Operation::RemoveDirectory),
        5 => (path(), path(), replacement).prop_map(|(old, new, how)| Operation::Rename(old, new, how)),
        3 => (path(), last()).prop_map(|(path, last)| Operation::Look(path, last)),
    ]
}

/// Checks a directory and everything below it; returns the number of entries.
fn compare(filesystem: &Filesystem, model: &Model, node: &Node, id: Id, seen: &mut HashMap<Id, u64>) {
    let inode = &model.inodes[&id];
    let metadata = node.metadata();
    // Inode numbers identify files.
    assert_eq!(*seen.entry(id).or_insert(metadata.inode), metadata.inode);
    assert_eq!((metadata.modified.seconds, metadata.changed.seconds), (inode.modified, inode.changed));
    match &inode.thing {
        Thing::File(bytes) => {
            let mut read = vec![0xff; bytes.len() + 1];
            assert_eq!(node.read_at(0, &mut read), Ok(bytes.len()));
            assert_eq!(read[..bytes.len()], bytes[..]);
            assert_eq!((metadata.size, metadata.links), (bytes.len() as u64, inode.links));
        }
        Thing::Link(target) => {
            assert_eq!(node.read_link(<[u8]>::to_vec), Ok(target.clone().into()));
            assert_eq!(metadata.links, inode.links);
        }
        Thing::Device(device) => {
            assert_eq!(node.device(), Some(*device));
            assert_eq!(node.read_at(0, &mut [0]), Err(Error::InvalidArgument));
        }
        Thing::Fifo => {
            assert_eq!((node.kind(), metadata.links, metadata.size), (FileKind::Fifo, inode.links, 0));
            assert_eq!(node.read_at(0, &mut [0]), Err(Error::InvalidArgument));
        }
        Thing::Directory { names, parent } => {
            let mut entries = Vec::new();
            // One entry at a time, continuing at the cursor.
            let mut cursor = 0;
            loop {
                let mut found = None;
                let next = node
                    .read_directory(cursor, |entry| {
                        if found.is_some() {
                            return ControlFlow::Break(());
                        }
                        found = Some((
                            String::from_utf8(entry.name.to_vec()).unwrap(),
                            entry.inode,
                            entry.kind,
                            entry.next,
                        ));
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                let Some(entry) = found else { break };
                assert_eq!(entry.3, next);
                cursor = next;
                entries.push(entry);
            }
            assert_eq!(entries[0].0, ".");
            assert_eq!(entries[0].1, metadata.inode);
            assert_eq!(entries[1].0, "..");
            assert_eq!(entries[1].1, seen[parent]);
            assert_eq!(entries.len(), names.len() + 2);
            let mut subdirectories = 0;
            for (name, inode, kind, _) in &entries[2..] {
                let child = filesystem.look_up(node, name.as_bytes(), LastLink::Keep).unwrap();
                assert_eq!((child.metadata().inode, child.kind()), (*inode, *kind));
                subdirectories += u32::from(*kind == FileKind::Directory);
                compare(filesystem, model, &child, names[name], seen);
            }
            assert_eq!(metadata.links, 2 + subdirectories);
        }
    }
}

/// Removes everything from a directory.
fn clear(filesystem: &Filesystem, directory: &Node) {
    let mut names = Vec::new();
    directory
        .read_directory(2, |entry| {
            names.push((entry.name.to_vec(), entry.kind));
            ControlFlow::Continue(())
        })
        .unwrap();
    for (name, kind) in names {
        if kind == FileKind::Directory {
            let child = filesystem.look_up(directory, &name, LastLink::Keep).unwrap();
            clear(filesystem, &child);
            filesystem.remove_directory(directory, &name, time(0)).unwrap();
        } else {
            filesystem.unlink(directory, &name, time(0)).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(property::cases(600))]

    #[test]
    fn tree_behaves_like_the_model(operations in prop::collection::vec(operation(), 1..80)) {
        let filesystem = Filesystem::new(1 << 30).unwrap();
        let root = filesystem.root();
        let empty = filesystem.usage();
        let mut model = Model::new();
        for (now, operation) in (1..).zip(&operations) {
            let before = filesystem.usage();
            let expected = model.run(now, operation);
            let actual = run(&filesystem, &root, now, operation);
            match (&actual, &expected) {
                (Ok(Some(node)), Ok(Some(id))) => {
                    let kind = match model.inodes[id].thing {
                        Thing::File(_) => FileKind::Regular,
                        Thing::Directory { .. } => FileKind::Directory,
                        Thing::Link(_) => FileKind::SymbolicLink,
                        Thing::Device(_) => FileKind::CharacterDevice,
                        Thing::Fifo => FileKind::Fifo,
                    };
                    prop_assert_eq!(node.kind(), kind);
                    prop_assert_eq!(node.metadata().changed.seconds, model.inodes[id].changed);
                }
                (Ok(None), Ok(None)) => {}
                (Err(actual), Err(expected)) => {
                    prop_assert_eq!(actual, expected, "step {}: {:?}", now, operation);
                    prop_assert_eq!(before, filesystem.usage(), "{:?} failed and left something", operation);
                }
                _ => prop_assert!(false, "step {}: {:?}: {:?} but {:?}", now, operation, actual, expected),
            }
        }
        let mut seen = HashMap::from([(ROOT, root.metadata().inode)]);
        compare(&filesystem, &model, &root, ROOT, &mut seen);
        prop_assert_eq!(filesystem.usage().inodes, model.inodes.len() as u64);
        let mut numbers: Vec<_> = seen.values().collect();
        numbers.sort();
        numbers.dedup();
        prop_assert_eq!(numbers.len(), model.inodes.len());

        clear(&filesystem, &root);
        prop_assert_eq!(filesystem.usage(), empty);
    }
}
