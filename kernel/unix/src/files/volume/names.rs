//! The names of a volume's files that were looked up last (Linux: the dentry cache).
//!
//! A name that was found leads to its file at once, and a name that there was not is known not to be there, without the
//! volume's stack. Names are entered, and forgotten when they change, on that stack alone: so what is known was right
//! at the last change, and stays right until the next. The files of names that are known stay in use, with their pages
//! in memory. The table has a fixed size; a name takes the place of another one.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::files::volume::VolumeNode;

/// Number of names that are known.
pub(super) const MOST: usize = 512;
/// Bytes of the longest name that is known.
const LONGEST: usize = 64;

/// Bytes that the names of a volume take, with the files that they keep in use.
pub(super) const MEMORY: usize = MOST * (size_of::<Option<KnownName>>() + LONGEST + super::MEMORY_OF_A_NODE);

/// A name that was looked up.
struct KnownName {
    directory: u32,
    name: Box<[u8]>,
    /// `None` if there is no such name.
    file: Option<VolumeNode>,
}

/// The names of a volume that were looked up last.
#[derive(Default)]
pub(super) struct KnownNames {
    /// Empty before the first one.
    names: Vec<Option<KnownName>>,
}

fn place_of(directory: u32, name: &[u8]) -> usize {
    // FNV-1a.
    let begin = 0xcbf2_9ce4_8422_2325 ^ u64::from(directory);
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let hash = name.iter().fold(begin.wrapping_mul(0x100_0000_01b3), step);
    (hash ^ hash >> 32) as usize % MOST
}

impl KnownNames {
    fn known(&self, directory: u32, name: &[u8]) -> Option<&KnownName> {
        let known = self.names.get(place_of(directory, name))?.as_ref()?;
        (known.directory == directory && *known.name == *name).then_some(known)
    }

    /// Returns the file of a name, or `None` in it if there is none, as far as that is known.
    pub(super) fn find(&self, directory: u32, name: &[u8]) -> Option<Option<VolumeNode>> {
        self.known(directory, name).map(|known| known.file.clone())
    }

    /// Notes what a look has found. Returns the file whose name was forgotten for it, to be let go without the lock.
    pub(super) fn enter(&mut self, directory: u32, name: &[u8], file: Option<VolumeNode>) -> Option<VolumeNode> {
        // The directory above is known by itself.
        if name.len() > LONGEST || name == b"." || name == b".." {
            return file;
        }
        if self.names.is_empty() {
            if self.names.try_reserve_exact(MOST).is_err() {
                return file;
            }
            self.names.resize_with(MOST, || None);
        }
        let mut copy = Vec::new();
        if copy.try_reserve_exact(name.len()).is_err() {
            return file;
        }
        copy.extend_from_slice(name);
        let known = KnownName { directory, name: copy.into_boxed_slice(), file };
        self.names[place_of(directory, name)].replace(known)?.file
    }

    /// Forgets a name, which changes. Returns its file, to be let go without the lock.
    pub(super) fn forget(&mut self, directory: u32, name: &[u8]) -> Option<VolumeNode> {
        self.known(directory, name)?;
        self.names[place_of(directory, name)].take()?.file
    }

    /// Forgets the first name from a place of the table on, of a directory or of any. Returns the place behind it and
    /// its file, to be let go without the lock; `None` at the end of the table.
    pub(super) fn forget_from(&mut self, from: usize, directory: Option<u32>) -> Option<(usize, Option<VolumeNode>)> {
        let is_meant = |known: &KnownName| directory.is_none_or(|directory| known.directory == directory);
        let mut places = self.names.iter_mut().enumerate().skip(from);
        let (place, known) = places.find(|(_, known)| known.as_ref().is_some_and(is_meant))?;
        Some((place + 1, known.take()?.file))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::format;

    use abi_unix::SystemCall;
    use abi_unix::types::{AT_FDCWD, AT_REMOVEDIR, open};
    use proptest::prelude::*;

    use super::*;
    use crate::files::volume::tests::{mount, text, unmount, with_volume};
    use crate::testing::Program;

    const HERE: usize = AT_FDCWD as usize;
    const NAMES: [&str; 5] = ["a", "b", "d", "d/a", "d/b"];

    #[derive(Clone, Debug)]
    enum Step {
        Create(usize),
        MakeDirectory(usize),
        Remove(usize, bool),
        Rename(usize, usize),
        Link(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let name = || 0..NAMES.len();
        prop_oneof![
            name().prop_map(Step::Create),
            name().prop_map(Step::MakeDirectory),
            (name(), any::<bool>()).prop_map(|(name, is_directory)| Step::Remove(name, is_directory)),
            (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
            (name(), name()).prop_map(|(from, to)| Step::Link(from, to)),
        ]
    }

    /// Returns the inode of a name, as the path finds it.
    fn found(program: &mut Program, path: usize, place: usize) -> Option<u64> {
        program.call(SystemCall::StatusAt, [HERE, path, place, 0]).ok()?;
        Some(program.read_u64(place + 8))
    }

    /// Returns the inodes of all names, as directories list them.
    fn listed(program: &mut Program, directories: [usize; 2], place: usize) -> BTreeMap<&'static str, u64> {
        let mut names = BTreeMap::new();
        for (directory, prefix) in directories.into_iter().zip(["", "d/"]) {
            let opened = program.call(SystemCall::Open, [HERE, directory, open::DIRECTORY as usize, 0]);
            let Ok(file) = opened else { continue };
            while let Ok(count @ 1..) = program.call(SystemCall::ReadDirectory, [file, place, 4096]) {
                let (bytes, mut at) = (program.read(place, count), 0);
                while at < count {
                    let length = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
                    let name = bytes[at + 19..at + length].split(|byte| *byte == 0).next().unwrap();
                    let name = format!("{prefix}{}", str::from_utf8(name).unwrap());
                    if let Some(name) = NAMES.iter().find(|known| **known == name) {
                        names.insert(*name, u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
                    }
                    at += length;
                }
            }
            program.call(SystemCall::Close, [file]).unwrap();
        }
        names
    }

    fn compare(program: &mut Program, steps: &[Step]) {
        assert_eq!(mount(program, 0), Ok(0));
        let paths = NAMES.map(|name| text(program, &format!("/tmp/volume/{name}")));
        let (directories, place) = ([text(program, "/tmp/volume"), paths[2]], program.place(4096));
        for step in steps {
            let _ = match *step {
                Step::Create(name) => program
                    .call(SystemCall::Open, [HERE, paths[name], open::CREAT as usize, 0o644])
                    .and_then(|file| program.call(SystemCall::Close, [file])),
                Step::MakeDirectory(name) => program.call(SystemCall::MakeDirectory, [HERE, paths[name], 0o755]),
                Step::Remove(name, is_directory) => {
                    let flags = if is_directory { AT_REMOVEDIR as usize } else { 0 };
                    program.call(SystemCall::Unlink, [HERE, paths[name], flags])
                }
                Step::Rename(from, to) => program.call(SystemCall::Rename, [HERE, paths[from], HERE, paths[to], 0]),
                Step::Link(from, to) => program.call(SystemCall::Link, [HERE, paths[from], HERE, paths[to], 0]),
            };
            let listed = listed(program, directories, place);
            for (name, path) in NAMES.into_iter().zip(paths) {
                assert_eq!(found(program, path, place), listed.get(name).copied(), "{name} after {step:?}");
            }
        }
        assert_eq!(unmount(program), Ok(0));
    }

    proptest! {
        #![proptest_config(property::cases(16))]

        #[test]
        fn names_that_are_known_are_those_of_the_directories(steps in prop::collection::vec(step(), 0..24)) {
            with_volume(move |program| compare(program, &steps));
        }
    }

    #[test]
    fn names_take_the_place_of_others_and_are_forgotten() {
        let mut names = KnownNames::default();
        assert!(names.find(2, b"name").is_none());
        for number in 0..4 * MOST {
            assert!(names.enter(2, format!("name-{number}").as_bytes(), None).is_none());
        }
        let is_known =
            |names: &KnownNames, number: usize| names.known(2, format!("name-{number}").as_bytes()).is_some();
        let known = (0..4 * MOST).filter(|number| is_known(&names, *number)).count();
        assert!((MOST / 2..=MOST).contains(&known), "{known}");
        assert!(is_known(&names, 4 * MOST - 1) && names.find(3, format!("name-{}", 4 * MOST - 1).as_bytes()).is_none());
        assert!(names.forget(2, format!("name-{}", 4 * MOST - 1).as_bytes()).is_none());
        assert!(!is_known(&names, 4 * MOST - 1));
        for special in [&b"."[..], b"..", &[b'x'; LONGEST + 1]] {
            names.enter(2, special, None);
            assert!(names.find(2, special).is_none());
        }
        assert!(names.enter(3, b"other", None).is_none());
        let mut from = 0;
        let mut forget = |directory: Option<u32>| {
            core::iter::from_fn(|| {
                let (next, _) = names.forget_from(core::mem::take(&mut from), directory)?;
                from = next;
                Some(next)
            })
            .count()
        };
        let of_one = forget(Some(2));
        assert!((known - 2..=known - 1).contains(&of_one), "the other name may have taken a place: {of_one}");
        assert_eq!((forget(Some(2)), forget(None), forget(None)), (0, 1, 0));
    }
}
