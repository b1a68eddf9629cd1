//! Edge cases: lengths, depths, counts, and a file system that is full.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use filesystem::{
    Access, Contents, Creation, Error, Expect, FileKind, Filesystem, LastLink, MAX_FILE_LENGTH, MAX_NAME_LENGTH,
    MAX_PATH_LENGTH, MAX_SYMBOLIC_LINKS, MAX_WAY_LENGTH, Maker, Node, OpenOptions, Owner, PAGE_SIZE, PathSoFar,
    RenameSoFar, Replacement, SeekFrom, Timestamp, Writes,
};

const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

fn new() -> (Filesystem, Node) {
    let filesystem = Filesystem::new(1 << 30).unwrap();
    let root = filesystem.root();
    (filesystem, root)
}

fn write_options() -> OpenOptions {
    OpenOptions {
        access: Access::ReadWrite,
        creation: Creation::IfMissing,
        permissions: 0o644,
        ..OpenOptions::default()
    }
}

/// An account with a limit in bytes.
#[derive(Default)]
struct Account {
    limit: AtomicU64,
    used: AtomicU64,
}

impl Owner for Account {
    fn charge(&self, bytes: u64) -> bool {
        let fits = self.used.load(Relaxed) + bytes <= self.limit.load(Relaxed);
        self.used.fetch_add(if fits { bytes } else { 0 }, Relaxed);
        fits
    }

    fn refund(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

#[test]
fn names_and_inodes_are_charged_to_their_makers() {
    let (filesystem, root) = new();
    let accounts = [Arc::<Account>::default(), Arc::<Account>::default()];
    let [one, two] = accounts.each_ref().map(|account| account.clone() as Arc<dyn Owner>);
    let by = |owner| Maker { now: NOW, owner: Some(owner) };
    let used = || accounts.each_ref().map(|account| account.used.load(Relaxed));
    // An owner without an allowance cannot make anything in any way.
    let free = filesystem.usage();
    assert_eq!(filesystem.make_directory(&root, b"directory", 0o755, by(&one)), Err(Error::NoSpace));
    assert_eq!(filesystem.make_symbolic_link(&root, b"link", b"target", by(&one)), Err(Error::NoSpace));
    assert!(matches!(filesystem.open(&root, b"file", &write_options(), by(&one)), Err(Error::NoSpace)));
    assert_eq!((filesystem.usage(), used()), (free, [0, 0]));
    accounts.iter().for_each(|account| account.limit.store(1 << 20, Relaxed));
    filesystem.make_directory(&root, b"directory", 0o755, by(&one)).unwrap();
    filesystem.make_symbolic_link(&root, b"directory/link", &[b't'; 1000], by(&one)).unwrap();
    drop(filesystem.open(&root, b"directory/file", &write_options(), by(&one)).unwrap());
    let [made, _] = used();
    assert!(made > 1000 && used() == [made, 0]);
    // A second name, and a name instead of another, are charged to the account that makes them.
    filesystem.link(&root, b"directory/file", LastLink::Keep, &root, b"other", by(&two)).unwrap();
    let [_, name] = used();
    assert!(name > 0 && used() == [made, name]);
    filesystem.rename(&root, b"directory/file", &root, b"directory/elif", Replacement::Replace, by(&two)).unwrap();
    let [rest, names] = used();
    assert!(rest < made && names > name && made - rest == names - name);
    // Each charge goes with its name, whichever task removes that; a file's with its last name.
    filesystem.unlink(&root, b"directory/elif", NOW).unwrap();
    assert_eq!(used(), [rest, name]);
    filesystem.unlink(&root, b"other", NOW).unwrap();
    assert_eq!(used()[1], 0);
    assert!(used()[0] < rest);
    filesystem.unlink(&root, b"directory/link", NOW).unwrap();
    filesystem.remove_directory(&root, b"directory", NOW).unwrap();
    assert_eq!((filesystem.usage(), used()), (free, [0, 0]));
}

#[test]
fn names_and_paths_have_a_greatest_length() {
    let (filesystem, root) = new();
    let longest = [b'n'; MAX_NAME_LENGTH];
    filesystem.make_directory(&root, &longest, 0o755, NOW).unwrap();
    let too_long = [b'n'; MAX_NAME_LENGTH + 1];
    assert_eq!(filesystem.make_directory(&root, &too_long, 0o755, NOW), Err(Error::NameTooLong));
    // A path of a program, and the targets of links that led here.
    let mut path = [&longest[..], b"/.."].concat();
    while path.len() < MAX_WAY_LENGTH {
        path.extend_from_slice(b"/.");
    }
    path.truncate(MAX_WAY_LENGTH);
    assert!(filesystem.look_up(&root, &path, LastLink::Follow).is_ok());
    path.push(b'/');
    assert_eq!(filesystem.look_up(&root, &path, LastLink::Follow), Err(Error::NameTooLong));
    let target = vec![b't'; MAX_PATH_LENGTH + 1];
    assert_eq!(filesystem.make_symbolic_link(&root, b"l", &target, NOW), Err(Error::NameTooLong));
    assert!(filesystem.make_symbolic_link(&root, b"l", &target[1..], NOW).is_ok());
    for (path, error) in [(&b""[..], Error::NotFound), (b"a\0b", Error::InvalidArgument)] {
        assert_eq!(filesystem.look_up(&root, path, LastLink::Follow), Err(error));
    }
}

/// Found by random operations beside Linux's: the path grows at each turn, beyond its greatest length before the link
/// has been followed too often.
#[test]
fn a_link_that_leads_through_itself_is_a_loop() {
    let (filesystem, root) = new();
    for length in [1, MAX_NAME_LENGTH, MAX_NAME_LENGTH + 1, MAX_PATH_LENGTH - 2] {
        let target = [b"a/", &vec![b'n'; length][..]].concat();
        filesystem.make_symbolic_link(&root, b"a", &target, NOW).unwrap();
        for path in [&b"a/a"[..], b"a", b"a/"] {
            let found = filesystem.look_up(&root, path, LastLink::Follow);
            assert_eq!(found.err(), Some(Error::TooManySymbolicLinks), "{length}");
        }
        filesystem.unlink(&root, b"a", NOW).unwrap();
    }
}

#[test]
fn symbolic_links_are_followed_so_many_times() {
    let (filesystem, root) = new();
    filesystem.make_directory(&root, b"0", 0o755, NOW).unwrap();
    for link in 1..=MAX_SYMBOLIC_LINKS + 1 {
        let (name, target) = (link.to_string(), (link - 1).to_string());
        filesystem.make_symbolic_link(&root, name.as_bytes(), target.as_bytes(), NOW).unwrap();
    }
    let last = MAX_SYMBOLIC_LINKS.to_string();
    let found = filesystem.look_up(&root, last.as_bytes(), LastLink::Follow).unwrap();
    assert_eq!(found.kind(), FileKind::Directory);
    let beyond = (MAX_SYMBOLIC_LINKS + 1).to_string();
    for path in [beyond.clone(), format!("{beyond}/x")] {
        assert_eq!(filesystem.look_up(&root, path.as_bytes(), LastLink::Follow), Err(Error::TooManySymbolicLinks));
    }
    assert!(filesystem.look_up(&root, beyond.as_bytes(), LastLink::Keep).is_ok());
}

#[test]
fn files_have_so_many_names() {
    let (filesystem, root) = new();
    filesystem.make_file(&root, b"0", b"", 0o644, NOW).unwrap();
    let mut count = 1;
    let error = loop {
        let name = count.to_string();
        match filesystem.link(&root, b"0", LastLink::Keep, &root, name.as_bytes(), NOW) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error, count), (Error::TooManyLinks, 65_000));
    let node = filesystem.look_up(&root, b"0", LastLink::Follow).unwrap();
    assert_eq!(node.metadata().links, 65_000);
    for name in 0..count {
        let name = name.to_string();
        filesystem.unlink(&root, name.as_bytes(), NOW).unwrap();
    }
    assert_eq!(node.metadata().links, 0);
    // A file without a name cannot get one again.
    assert_eq!(filesystem.link_node(&node, &root, b"new", NOW), Err(Error::NotFound));
    drop(node);
    assert_eq!(filesystem.usage().inodes, 1);
}

#[test]
fn long_chain_of_removed_directories_is_freed() {
    let (filesystem, root) = new();
    let empty = filesystem.usage();
    let mut chain = vec![root.clone()];
    for _ in 0..20_000 {
        let parent = chain.last().unwrap();
        chain.push(filesystem.make_directory(parent, b"d", 0o755, NOW).unwrap());
    }
    let innermost = chain.last().unwrap().clone();
    assert_eq!(filesystem.path_of(&chain[2047]).unwrap(), b"/d".repeat(2047));
    assert_eq!(filesystem.path_of(&chain[2048]), Err(Error::NameTooLong));
    assert_eq!(filesystem.path_of(&innermost), Err(Error::NameTooLong));
    chain.pop();
    while let Some(parent) = chain.pop() {
        filesystem.remove_directory(&parent, b"d", NOW).unwrap();
    }
    assert_eq!(filesystem.path_of(&innermost), Err(Error::NotFound));
    assert_eq!(filesystem.make_directory(&innermost, b"d", 0o755, NOW), Err(Error::NotFound));
    // The innermost one keeps all those above it, because `..` still leads there.
    assert_eq!(filesystem.usage().inodes, empty.inodes + 20_000);
    let above = filesystem.look_up(&innermost, b"../..", LastLink::Follow).unwrap();
    assert_eq!(above.metadata().links, 0);
    drop((above, innermost));
    assert_eq!(filesystem.usage(), empty);
}

#[test]
fn large_directory_is_listed_while_it_shrinks() {
    let (filesystem, root) = new();
    for number in 0..20_000 {
        let name = format!("file-{number}");
        filesystem.make_file(&root, name.as_bytes(), b"", 0o644, NOW).unwrap();
    }
    // As `rm -r` does it: list some, remove those, list on.
    let directory = filesystem.open(&root, b"/", &OpenOptions::default(), NOW).unwrap();
    let mut total = 0;
    loop {
        let mut names = Vec::new();
        directory
            .read_directory(|entry| {
                if names.len() == 100 {
                    return ControlFlow::Break(());
                }
                names.push(entry.name.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
        if names.is_empty() {
            break;
        }
        for name in names.iter().filter(|name| !name.starts_with(b".")) {
            filesystem.unlink(&root, name, NOW).unwrap();
            total += 1;
        }
    }
    assert_eq!(total, 20_000);
    assert_eq!(filesystem.usage().inodes, 1);
}

#[test]
fn full_file_system_says_so_and_changes_nothing() {
    let (big, root) = new();
    big.make_directory(&root, b"d", 0o755, NOW).unwrap();
    big.make_file(&root, b"f", b"", 0o644, NOW).unwrap();
    let needed = big.usage().used;

    // The bytes for two entries, and a page.
    let filesystem = Filesystem::new(needed + PAGE_SIZE as u64).unwrap();
    let root = filesystem.root();
    filesystem.make_directory(&root, b"d", 0o755, NOW).unwrap();
    let file = filesystem.make_file(&root, b"f", b"", 0o644, NOW).unwrap();
    assert_eq!(file.write_at(10, &[1; 10_000], NOW), Ok(PAGE_SIZE - 10));
    let full = filesystem.usage();
    assert_eq!(full.used, full.limit);

    assert_eq!(file.write_at(PAGE_SIZE as u64, b"x", NOW), Err(Error::NoSpace));
    assert_eq!(filesystem.make_directory(&root, b"e", 0o755, NOW), Err(Error::NoSpace));
    assert_eq!(filesystem.make_symbolic_link(&root, b"e", b"target", NOW), Err(Error::NoSpace));
    assert_eq!(filesystem.open(&root, b"e", &write_options(), NOW).err(), Some(Error::NoSpace));
    assert_eq!(filesystem.link(&root, b"f", LastLink::Keep, &root, b"e", NOW), Err(Error::NoSpace));
    assert_eq!(filesystem.rename(&root, b"f", &root, b"d/e", Replacement::Replace, NOW), Err(Error::NoSpace));
    assert_eq!(filesystem.usage(), full);
    assert_eq!(file.metadata().links, 1);

    // Operations without new memory work: writing to an existing page, and removing.
    assert_eq!(file.write_at(0, b"x", NOW), Ok(1));
    filesystem.unlink(&root, b"f", NOW).unwrap();
    drop(file);
    assert!(filesystem.make_file(&root, b"g", b"", 0o644, NOW).is_ok());

    assert!(matches!(Filesystem::new(10), Err(Error::NoSpace)));
}

#[test]
fn removed_but_open_file_stays_until_it_is_closed() {
    let (filesystem, root) = new();
    let empty = filesystem.usage();
    let file = filesystem.open(&root, b"temporary", &write_options(), NOW).unwrap();
    filesystem.unlink(&root, b"temporary", NOW).unwrap();
    assert_eq!(file.write(&[7; 10_000], NOW), Ok(10_000));
    assert_eq!(file.seek(SeekFrom::Start(9_999)), Ok(9_999));
    let mut buffer = [0; 10];
    assert_eq!(file.read(&mut buffer), Ok(1));
    assert_eq!(buffer[0], 7);
    assert_eq!(file.node().metadata().links, 0);
    assert!(filesystem.usage().used > 10_000);
    drop(file);
    assert_eq!(filesystem.usage(), empty);
}

#[test]
fn options_of_an_open_file_decide_the_permitted_operations() {
    let (filesystem, root) = new();
    let node = filesystem.make_file(&root, b"f", b"archived", 0o644, NOW).unwrap();
    let open = |options: OpenOptions| filesystem.open(&root, b"f", &options, NOW);

    let reader = open(OpenOptions::default()).unwrap();
    assert_eq!(reader.write(b"x", NOW), Err(Error::NotOpenForThis));
    assert_eq!(reader.truncate(0, NOW), Err(Error::InvalidArgument));
    let writer = open(OpenOptions { access: Access::Write, writes: Writes::AtEnd, ..OpenOptions::default() }).unwrap();
    assert_eq!(writer.read(&mut [0]), Err(Error::NotOpenForThis));
    assert_eq!(writer.write(b"!", NOW), Ok(1));
    assert_eq!(writer.seek(SeekFrom::Current(0)), Ok(9));
    writer.set_writes(Writes::AtPosition);
    assert_eq!(writer.writes(), Writes::AtPosition);
    assert_eq!(writer.seek(SeekFrom::Start(0)), Ok(0));
    assert_eq!(writer.write(b"A", NOW), Ok(1));
    let mut buffer = [0; 20];
    assert_eq!(reader.read(&mut buffer), Ok(9));
    assert_eq!(&buffer[..9], b"Archived!");

    // Discarding the archive's contents leaves nothing of them.
    let discarding = OpenOptions { access: Access::ReadWrite, contents: Contents::Discard, ..OpenOptions::default() };
    open(discarding).unwrap();
    assert_eq!(node.metadata().size, 0);
    node.truncate(4, NOW).unwrap();
    assert_eq!(node.read_at(0, &mut buffer), Ok(4));
    assert_eq!(buffer[..4], [0; 4]);

    // Positions stay within the range of a signed offset.
    for from in [
        SeekFrom::Start(MAX_FILE_LENGTH + 1),
        SeekFrom::Current(-1),
        SeekFrom::End(-5),
        SeekFrom::End(i64::MAX),
        SeekFrom::Current(i64::MIN),
    ] {
        let file = open(OpenOptions::default()).unwrap();
        assert_eq!(file.seek(from), Err(Error::InvalidArgument));
    }
    assert_eq!(filesystem.open(&root, b"/", &discarding, NOW).err(), Some(Error::IsADirectory));
}

#[test]
fn a_directory_may_be_demanded_and_a_reader_may_take_less() {
    let (filesystem, root) = new();
    filesystem.make_file(&root, b"f", b"contents", 0o644, NOW).unwrap();
    filesystem.make_directory(&root, b"d", 0o755, NOW).unwrap();
    let options = OpenOptions { expect: Expect::Directory, ..OpenOptions::default() };
    assert_eq!(filesystem.open(&root, b"f", &options, NOW).err(), Some(Error::NotADirectory));
    assert!(filesystem.open(&root, b"d", &options, NOW).is_ok());
    assert!(filesystem.open(&root, b"d", &OpenOptions::default(), NOW).is_ok());
    let file = filesystem.open(&root, b"f", &OpenOptions::default(), NOW).unwrap();
    let mut read = Vec::new();
    for (wanted, used, expected) in [(3, 2, &b"co"[..]), (3, 3, b"nte"), (100, 100, b"nts"), (100, 100, b"")] {
        read.clear();
        let count = file.read_with(wanted, |bytes| {
            let used = used.min(bytes.len());
            read.extend_from_slice(&bytes[..used]);
            used
        });
        assert_eq!((count, &read[..]), (Ok(expected.len()), expected));
    }
    assert_eq!(file.seek(SeekFrom::Current(0)), Ok(8));
}

#[test]
fn a_write_of_nothing_changes_nothing() {
    let (filesystem, root) = new();
    let later = Timestamp { seconds: 9, nanoseconds: 0 };
    let options = OpenOptions { writes: Writes::AtEnd, ..write_options() };
    let file = filesystem.open(&root, b"f", &options, NOW).unwrap();
    assert_eq!(file.write(b"text", NOW), Ok(4));
    assert_eq!(file.seek(SeekFrom::Start(1)), Ok(1));
    assert_eq!(file.write(b"", later), Ok(0));
    assert_eq!((file.seek(SeekFrom::Current(0)), file.access()), (Ok(1), Access::ReadWrite));
    let node = filesystem.look_up(&root, b"f", LastLink::Follow).unwrap();
    assert_eq!(node.metadata().modified, NOW);
    assert_eq!(node.truncate(MAX_FILE_LENGTH + 1, NOW), Err(Error::FileTooLarge));
    assert_eq!(node.truncate(MAX_FILE_LENGTH, NOW), Ok(()));
    assert_eq!(node.metadata().size, MAX_FILE_LENGTH);
}

/// A file that cannot be made for lack of room leaves nothing behind, whatever is missing; the charge for a link
/// depends on its target.
#[test]
fn what_is_not_made_is_not_charged() {
    let mut made = 0;
    for limit in 0..2000 {
        let Ok(filesystem) = Filesystem::new(limit) else { continue };
        let root = filesystem.root();
        let before = filesystem.usage();
        match filesystem.make_symbolic_link(&root, b"a name", b"a target", NOW) {
            Ok(_) => made += 1,
            Err(error) => assert_eq!((error, filesystem.usage()), (Error::NoSpace, before), "{limit}"),
        }
    }
    assert!(made > 0 && made < 2000);
    let (filesystem, root) = new();
    let before = filesystem.usage().used;
    let mut costs = Vec::new();
    for target in [&b"t"[..], b"a long target"] {
        filesystem.make_symbolic_link(&root, b"link", target, NOW).unwrap();
        costs.push(filesystem.usage().used - before);
        filesystem.unlink(&root, b"link", NOW).unwrap();
        assert_eq!(filesystem.usage().used, before);
    }
    assert_eq!(costs[1] - costs[0], 12);
}

#[test]
fn links_are_not_opened_and_directories_not_read() {
    let (filesystem, root) = new();
    filesystem.make_symbolic_link(&root, b"link", b"f", NOW).unwrap();
    let file = filesystem.make_file(&root, b"f", b"text", 0o644, NOW).unwrap();
    let options = OpenOptions { last_link: LastLink::Keep, ..OpenOptions::default() };
    assert_eq!(filesystem.open(&root, b"link", &options, NOW).err(), Some(Error::TooManySymbolicLinks));
    assert_eq!(root.read_at(0, &mut [0]), Err(Error::IsADirectory));
    assert_eq!(root.write_at(0, b"x", NOW), Err(Error::IsADirectory));
    // The last reference to a file without a name.
    assert!(!file.is_last_reference());
    filesystem.unlink(&root, b"f", NOW).unwrap();
    assert!(file.is_last_reference());
    let other = file.clone();
    assert!(!file.is_last_reference());
    drop(other);
    assert!(file.is_last_reference());
}

#[test]
fn nodes_have_numbers_and_know_the_root() {
    let (filesystem, root) = new();
    let other = filesystem.make_directory(&root, b"d", 0o755, NOW).unwrap();
    let numbers = [&root, &other].map(|node| node.metadata().inode);
    assert!(numbers[0] != 0 && numbers[1] != 0 && numbers[0] != numbers[1]);
    assert_eq!([root.is_root(), other.is_root()], [true, false]);
    let text = format!("{other:?}");
    assert!(text.contains(&numbers[1].to_string()) && text.contains("Directory"), "{text}");
}

/// A directory's links are two, and one for each subdirectory, wherever renames put them.
#[test]
fn links_of_directories_are_those_of_their_subdirectories() {
    let (filesystem, root) = new();
    for path in [&b"a"[..], b"b", b"a/x", b"b/y"] {
        filesystem.make_directory(&root, path, 0o755, NOW).unwrap();
    }
    for path in [&b"a/f"[..], b"b/g"] {
        filesystem.make_file(&root, path, b"", 0o644, NOW).unwrap();
    }
    let find = |path: &[u8]| filesystem.look_up(&root, path, LastLink::Keep).unwrap();
    let links = || [b"/", &b"a"[..], b"b"].map(|path| find(path).metadata().links);
    assert_eq!(links(), [4, 3, 3]);
    use Replacement::{Exchange, Replace};
    for (old, new, how, expected) in [
        (&b"a/x"[..], &b"b/g"[..], Exchange, [4, 2, 4]),
        (b"a/x", b"b/g", Exchange, [4, 3, 3]),
        (b"a/f", b"b/y", Exchange, [4, 4, 2]),
        (b"a/f", b"b/y", Exchange, [4, 3, 3]),
        (b"a/x", b"b/y", Exchange, [4, 3, 3]),
        (b"a/f", b"b/g", Exchange, [4, 3, 3]),
        (b"a/x", b"b/z", Replace, [4, 2, 4]),
        (b"b/z", b"b/y", Replace, [4, 2, 3]),
        (b"b/y", b"a/x", Replace, [4, 3, 2]),
        (b"b", b"a/b", Replace, [3, 4, 0]),
    ] {
        assert_eq!(filesystem.rename(&root, old, &root, new, how, NOW), Ok(()), "{old:?} to {new:?}");
        if expected[2] == 0 {
            assert_eq!([find(b"/").metadata().links, find(b"a").metadata().links], [3, 4]);
            assert_eq!(find(b"a/b/..").metadata().inode, find(b"a").metadata().inode);
        } else {
            assert_eq!(links(), expected, "{old:?} to {new:?}");
        }
    }
    // A slash behind a name means a directory, of both names, but of an exchange's second only by itself.
    let rename = |old: &[u8], new: &[u8], how| filesystem.rename(&root, old, &root, new, how, NOW);
    filesystem.make_directory(&root, b"d", 0o755, NOW).unwrap();
    filesystem.make_file(&root, b"f", b"", 0o644, NOW).unwrap();
    for (old, new, how) in
        [(&b"f/"[..], &b"g"[..], Replace), (b"f", b"g/", Replace), (b"f/", b"d", Exchange), (b"d", b"f/", Exchange)]
    {
        assert_eq!(rename(old, new, how), Err(Error::NotADirectory), "{old:?} to {new:?}");
    }
    assert_eq!(rename(b"f", b"d/", Exchange), Ok(()));
    assert_eq!((find(b"f").kind(), find(b"d").kind()), (FileKind::Directory, FileKind::Regular));
}

#[test]
fn nodes_of_another_file_system_are_refused() {
    let (one, one_root) = new();
    let (other, other_root) = new();
    assert_ne!(one_root, other_root);
    other.make_file(&other_root, b"f", b"", 0o644, NOW).unwrap();
    assert_eq!(one.look_up(&other_root, b"f", LastLink::Follow), Err(Error::CrossFilesystem));
    assert_eq!(
        other.rename(&other_root, b"f", &one_root, b"f", Replacement::Replace, NOW),
        Err(Error::CrossFilesystem)
    );
    assert_eq!(other.link(&other_root, b"f", LastLink::Follow, &one_root, b"f", NOW), Err(Error::CrossFilesystem));
}

#[test]
fn modes_and_times_are_kept() {
    let (filesystem, root) = new();
    let at = |seconds| Timestamp { seconds, nanoseconds: 5 };
    let node = filesystem.make_file(&root, b"f", b"data", 0o123_751, at(10)).unwrap();
    let metadata = node.metadata();
    assert_eq!(metadata.mode(), 0o103_751);
    assert_eq!((metadata.accessed, metadata.modified, metadata.changed), (at(10), at(10), at(10)));
    assert_eq!(root.metadata().modified, at(10));
    node.set_permissions(0o17_600, at(20));
    assert_eq!(node.metadata().permissions, 0o7600);
    assert!(!node.metadata().is_executable());
    node.set_times(Some(at(-1)), None, at(30));
    node.append(b"!", at(40)).unwrap();
    node.read_at(0, &mut [0; 4]).unwrap();
    let metadata = node.metadata();
    assert_eq!((metadata.accessed, metadata.modified, metadata.changed), (at(-1), at(40), at(40)));
    filesystem.link(&root, b"f", LastLink::Follow, &root, b"g", at(50)).unwrap();
    assert_eq!(node.metadata().changed, at(50));
    assert_eq!(node.metadata().modified, at(40));
}

/// The name of each is found by its place, not among all names of its parent.
#[test]
fn the_path_of_a_file_follows_its_renames() {
    let (filesystem, root) = new();
    for name in ["a", "b"] {
        filesystem.make_directory(&root, name.as_bytes(), 0o755, NOW).unwrap();
        for number in 0..100 {
            filesystem.open(&root, format!("{name}/{number}").as_bytes(), &write_options(), NOW).unwrap();
        }
    }
    let path = |node: &Node| filesystem.path_of(node).map(|path| String::from_utf8(path).unwrap());
    let rename = |old: &str, new: &str, replacement| {
        filesystem.rename(&root, old.as_bytes(), &root, new.as_bytes(), replacement, NOW).unwrap();
    };
    let (first, second) = (
        filesystem.look_up(&root, b"a/50", LastLink::Follow).unwrap(),
        filesystem.look_up(&root, b"b/7", LastLink::Follow).unwrap(),
    );
    rename("a/50", "a/new", Replacement::Refuse);
    assert_eq!(path(&first).as_deref(), Ok("/a/new"));
    rename("a/new", "b/7", Replacement::Exchange);
    assert_eq!((path(&first).as_deref(), path(&second).as_deref()), (Ok("/b/7"), Ok("/a/new")));
    rename("b", "a/b", Replacement::Refuse);
    assert_eq!(path(&first).as_deref(), Ok("/a/b/7"));
    rename("a/new", "a/b/7", Replacement::Replace);
    assert_eq!((path(&first), path(&second).as_deref()), (Err(Error::NotFound), Ok("/a/b/7")));
    // Another name is not looked for.
    filesystem.link_node(&second, &root, b"a/b/other", NOW).unwrap();
    filesystem.unlink(&root, b"a/b/7", NOW).unwrap();
    assert_eq!(path(&second), Err(Error::NotFound));
}

/// A directory above it moves between two parts: the path is that of one moment.
#[test]
fn a_path_that_is_made_in_parts_begins_anew_after_a_rename() {
    let (filesystem, root) = new();
    let mut directory = filesystem.make_directory(&root, b"top", 0o755, NOW).unwrap();
    for _ in 0..9 {
        directory = filesystem.make_directory(&directory, b"d", 0o755, NOW).unwrap();
    }
    let rename = |old: &[u8], new: &[u8]| {
        filesystem.rename(&root, old, &root, new, Replacement::Refuse, NOW).unwrap();
    };
    let mut so_far = PathSoFar::new(&directory);
    assert_eq!(filesystem.extend_path(&mut so_far, 8), Ok(None));
    rename(b"top", b"other");
    assert_eq!(filesystem.extend_path(&mut so_far, 8), Ok(None), "from the beginning");
    assert_eq!(filesystem.extend_path(&mut so_far, 8), Ok(Some([&b"/other"[..], &b"/d".repeat(9)].concat())));

    // However often that happens, it comes to its end.
    let mut so_far = PathSoFar::new(&directory);
    let parts = (0..100).find(|part| {
        let (old, new) = if part % 2 == 0 { (b"other", b"thing") } else { (b"thing", b"other") };
        rename(old, new);
        filesystem.extend_path(&mut so_far, 3).unwrap().is_some()
    });
    assert_eq!(parts, Some(8));
    assert_eq!(filesystem.extend_path(&mut PathSoFar::new(&root), 1), Ok(Some(b"/".to_vec())));
}

/// A chain of directories below `top`; returns the last.
fn chain(filesystem: &Filesystem, root: &Node, top: &[u8], length: usize) -> Node {
    let mut directory = filesystem.make_directory(root, top, 0o755, NOW).unwrap();
    for _ in 0..length {
        directory = filesystem.make_directory(&directory, b"d", 0o755, NOW).unwrap();
    }
    directory
}

/// Directories of any depth are looked at some at a time, with the outcome of one look.
#[test]
fn renames_between_deep_directories_are_made_in_parts() {
    let (filesystem, root) = new();
    let (one, two) = (chain(&filesystem, &root, b"one", 40), chain(&filesystem, &root, b"two", 30));
    filesystem.make_directory(&one, b"moved", 0o755, NOW).unwrap();
    let inner = filesystem.make_directory(&one, b"moved/inner", 0o755, NOW).unwrap();
    let parts = |old: (&Node, &[u8]), new: (&Node, &[u8]), how| {
        let mut so_far = RenameSoFar::new(8);
        let mut parts = 1;
        loop {
            match filesystem.rename_in_parts(&mut so_far, old, new, how, NOW) {
                Err(Error::Unfinished) => parts += 1,
                result => return (result, parts),
            }
        }
    };
    // Into itself, and onto a directory that it is in.
    assert_eq!(parts((&one, b"moved"), (&inner, b"x"), Replacement::Refuse).0, Err(Error::InvalidArgument));
    assert_eq!(parts((&inner, b"."), (&root, b"x"), Replacement::Refuse).0, Err(Error::Busy));
    let (result, count) = parts((&one, b"moved"), (&root, b"one"), Replacement::Replace);
    assert_eq!((result, count > 4), (Err(Error::DirectoryNotEmpty), true), "{count} parts");
    assert_eq!(parts((&root, b"one"), (&one, b"moved"), Replacement::Exchange).0, Err(Error::InvalidArgument));
    // Two walks: one that goes up 41 times to find which is locked first, and one that does 31 times.
    assert_eq!(parts((&one, b"moved"), (&two, b"here"), Replacement::Refuse), (Ok(()), 1 + 41 / 8 + 31 / 8));
    assert_eq!(filesystem.path_of(&inner).unwrap(), [&b"/two"[..], &b"/d".repeat(30), b"/here/inner"].concat());
    // Near the root one part is enough.
    assert_eq!(parts((&root, b"one"), (&root, b"three"), Replacement::Replace), (Ok(()), 1));
}

/// Other renames between two parts change neither the outcome nor, unless they move directories, the number of parts.
#[test]
fn a_rename_in_parts_begins_anew_when_directories_move() {
    let (filesystem, root) = new();
    let (one, two) = (chain(&filesystem, &root, b"one", 40), chain(&filesystem, &root, b"two", 40));
    filesystem.make_directory(&one, b"moved", 0o755, NOW).unwrap();
    filesystem.make_directory(&two, b"other", 0o755, NOW).unwrap();
    filesystem.make_file(&root, b"f", b"", 0o644, NOW).unwrap();
    let part = |so_far: &mut RenameSoFar| {
        filesystem.rename_in_parts(so_far, (&one, b"moved"), (&two, b"other/x"), Replacement::Refuse, NOW)
    };
    let rename = |old: &[u8], new: &[u8]| {
        filesystem.rename(&root, old, &root, new, Replacement::Refuse, NOW).unwrap();
    };

    // A file, and a directory that stays in its parent.
    let mut so_far = RenameSoFar::new(8);
    let mut count = 0;
    while part(&mut so_far) == Err(Error::Unfinished) {
        rename(b"f", b"one/f");
        rename(b"one/f", b"f");
        rename(b"two", b"2");
        rename(b"2", b"two");
        count += 1;
    }
    assert_eq!(count, 41 / 8 + 42 / 8);
    filesystem.rename(&two, b"other/x", &one, b"moved", Replacement::Refuse, NOW).unwrap();

    // In the middle its directory comes below the one that it is moved into: what was seen so far is worth nothing.
    let mut so_far = RenameSoFar::new(8);
    for _ in 0..41 / 8 + 2 {
        assert_eq!(part(&mut so_far), Err(Error::Unfinished));
    }
    filesystem.rename(&root, b"two", &one, b"moved/two", Replacement::Refuse, NOW).unwrap();
    let result = (0..100).map(|_| part(&mut so_far)).find(|result| *result != Err(Error::Unfinished));
    assert_eq!(result, Some(Err(Error::InvalidArgument)));
    filesystem.rename(&one, b"moved/two", &root, b"two", Replacement::Refuse, NOW).unwrap();

    // A chain may vanish with its walk, and another directory may get its inode.
    let gone = chain(&filesystem, &root, b"gone", 20);
    let mut so_far = RenameSoFar::new(8);
    let onto = |so_far: &mut RenameSoFar, new: &Node| {
        filesystem.rename_in_parts(so_far, (&one, b"moved"), (new, b"x"), Replacement::Refuse, NOW)
    };
    for _ in 0..41 / 8 + 1 {
        assert_eq!(onto(&mut so_far, &gone), Err(Error::Unfinished));
    }
    for depth in (0..=20).rev() {
        filesystem.remove_directory(&root, &[&b"gone"[..], &b"/d".repeat(depth)].concat(), NOW).unwrap();
    }
    let result = (0..100).map(|_| onto(&mut so_far, &gone)).find(|result| *result != Err(Error::Unfinished));
    assert_eq!(result, Some(Err(Error::NotFound)));

    // With a move after each part it ends with an error, not never.
    filesystem.make_directory(&root, b"m", 0o755, NOW).unwrap();
    let mut so_far = RenameSoFar::new(8);
    let results = (0..100).map(|turn| {
        let (old, new) = if turn % 2 == 0 { (&b"m"[..], &b"one/m"[..]) } else { (&b"one/m"[..], &b"m"[..]) };
        rename(old, new);
        part(&mut so_far)
    });
    let results: Vec<_> = results.take_while(|result| *result == Err(Error::Unfinished)).collect();
    assert_eq!(results.len(), 65);
    assert_eq!(part(&mut RenameSoFar::new(usize::MAX)), Ok(()));
}
