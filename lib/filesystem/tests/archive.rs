//! Archives: the reader accepts every archive of the writer, and refuses damaged ones.

use filesystem::cpio::{self, EntryKind, WriteError, Writer};
use filesystem::{DeviceNumber, Error, FileKind, Filesystem, LastLink, PopulateError, Timestamp};
use proptest::prelude::*;

const NOW: Timestamp = Timestamp { seconds: 7, nanoseconds: 0 };

#[derive(Clone, Debug, PartialEq)]
enum Item {
    Directory(u16),
    File(u16, Vec<u8>),
    Link(Vec<u8>),
    Device(u16, u32, u32),
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        (0..0o10000u16).prop_map(Item::Directory),
        (0..0o10000u16, property::filled(property::edges(0..300, &[4, 110, 256])))
            .prop_map(|(permissions, data)| Item::File(permissions, data)),
        prop::collection::vec(1..=255u8, 1..60).prop_map(Item::Link),
        (0..0o10000u16, any::<u32>(), any::<u32>()).prop_map(|(permissions, major, minor)| Item::Device(
            permissions,
            major,
            minor
        )),
    ]
}

fn write(items: &[(Vec<u8>, Item)], modified: u32) -> Vec<u8> {
    let mut writer = Writer::new(modified);
    for (path, item) in items {
        match item {
            Item::Directory(permissions) => writer.directory(path, *permissions),
            Item::File(permissions, data) => writer.file(path, *permissions, data),
            Item::Link(target) => writer.symbolic_link(path, target),
            Item::Device(permissions, major, minor) => {
                writer.device(path, *permissions, DeviceNumber { major: *major, minor: *minor })
            }
        }
        .unwrap();
    }
    writer.finish()
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn reader_returns_the_written_entries(
        items in prop::collection::vec((prop::collection::vec(1..=255u8, 1..60), item()), 0..20),
        modified in any::<u32>(),
        rest in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut archive = write(&items, modified);
        prop_assert_eq!(archive.len() % 4, 0);
        archive.extend(rest);
        let entries: Vec<_> = cpio::entries(&archive).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(entries.len(), items.len());
        for (entry, (path, item)) in entries.iter().zip(&items) {
            prop_assert_eq!(entry.path, &path[..]);
            prop_assert_eq!(entry.modified, modified);
            let (permissions, kind, data) = match item {
                Item::Directory(permissions) => (*permissions, EntryKind::Directory, &[][..]),
                Item::File(permissions, data) => (*permissions, EntryKind::Regular, &data[..]),
                Item::Link(target) => (0o777, EntryKind::SymbolicLink, &target[..]),
                Item::Device(permissions, major, minor) => {
                    let device = DeviceNumber { major: *major, minor: *minor };
                    (*permissions, EntryKind::CharacterDevice(device), &[][..])
                }
            };
            prop_assert_eq!(entry.permissions, permissions);
            prop_assert_eq!(entry.kind, kind);
            prop_assert_eq!(entry.data, data);
        }
    }

    #[test]
    fn contents_of_an_aligned_archive_lie_at_multiples(
        lengths in prop::collection::vec(0..3000usize, 1..9),
        exponent in 0..13u32,
    ) {
        let alignment = 1 << exponent;
        let mut writer = Writer::new(0).aligned(alignment);
        let contents: Vec<_> = lengths.iter().map(|length| vec![*length as u8 | 1; *length]).collect();
        for (number, content) in contents.iter().enumerate() {
            writer.file(format!("file{number}").as_bytes(), 0o644, content).unwrap();
        }
        let archive = writer.finish();
        let entries: Vec<_> = cpio::entries(&archive).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(entries.len(), contents.len());
        for (number, (entry, content)) in entries.iter().zip(&contents).enumerate() {
            let name = format!("file{number}");
            prop_assert_eq!(entry.path, name.as_bytes());
            prop_assert_eq!(entry.data, &content[..]);
            let offset = entry.data.as_ptr().addr() - archive.as_ptr().addr();
            prop_assert!(content.len() < alignment || offset.is_multiple_of(alignment), "{}", offset);
        }
    }

    #[test]
    fn archive_that_is_cut_short_is_refused(
        items in prop::collection::vec((prop::collection::vec(b'a'..=b'z', 1..9), item()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let archive = write(&items, 0);
        // Without its last three bytes, which are padding after the trailer's name, an archive is still complete.
        let length = cut.index(archive.len() - 3);
        let last = cpio::entries(&archive[..length]).last();
        prop_assert!(matches!(last, Some(Err(_))));
        prop_assert!(cpio::entries(&archive[..length]).take_while(Result::is_ok).count() <= items.len());
    }

    #[test]
    fn damaged_archive_is_refused_or_becomes_a_tree(
        items in prop::collection::vec((prop::collection::vec(prop::sample::select(&b"ab/."[..]), 1..9), item()), 1..9),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..9),
        limit in prop_oneof![Just(1u64 << 30), 400..6000u64],
    ) {
        let mut archive = write(&items, 0);
        for (place, value) in changes {
            let place = place.index(archive.len());
            archive[place] = value;
        }
        let archive: &'static [u8] = archive.leak();
        let filesystem = Filesystem::new(limit).unwrap();
        if let Err(error) = filesystem.populate(archive) {
            prop_assert!(!error.to_string().is_empty());
        }
        prop_assert!(filesystem.usage().used <= limit);
    }

    #[test]
    fn noise_is_refused(archive in prop::collection::vec(any::<u8>(), 0..500)) {
        prop_assert!(matches!(cpio::entries(&archive).last(), Some(Err(_))));
    }
}

#[test]
fn fuzz_cpio() {
    let good = write(
        &[
            (b"bin".to_vec(), Item::Directory(0o755)),
            (b"bin/tool".to_vec(), Item::File(0o755, vec![7; 300])),
            (b"bin/alias".to_vec(), Item::Link(b"tool".to_vec())),
            (b"dev/null".to_vec(), Item::Device(0o666, 1, 3)),
            (b"./etc//motd".to_vec(), Item::File(0o644, b"one".to_vec())),
        ],
        7,
    );
    property::fuzz("cpio", &[&good], |archive| {
        const LIMIT: u64 = 1 << 20;
        for entry in cpio::entries(archive).flatten() {
            assert!(!entry.path.is_empty() && entry.data.len() <= archive.len());
        }
        // A tree borrows its archive for ever. The leak is as long as the input, and each run is short.
        let archive: &'static [u8] = archive.to_vec().leak();
        let filesystem = Filesystem::new(LIMIT).unwrap();
        if let Err(error) = filesystem.populate(archive) {
            assert!(!error.to_string().is_empty());
        }
        assert!(filesystem.usage().used <= LIMIT);
    });
}

#[test]
fn errors_say_where_and_why() {
    let good = write(
        &[(b"etc".to_vec(), Item::Directory(0o755)), (b"etc/motd".to_vec(), Item::File(0o644, b"hello".to_vec()))],
        0,
    );
    let second = 116;
    let problem = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut archive = good.clone();
        change(&mut archive);
        let error = cpio::entries(&archive).find_map(Result::err).expect("the archive is damaged");
        error.to_string()
    };
    let at = |message: &str| format!("damaged cpio archive at byte {second}: {message}");
    assert_eq!(problem(&|archive| archive[second + 5] = b'7'), at("not the newc format"));
    assert_eq!(problem(&|archive| archive[second + 9] = b'g'), at("a number is not hexadecimal"));
    assert_eq!(problem(&|archive| archive[second + 6 + 11 * 8] = b'f'), at("a name is cut short"));
    assert_eq!(problem(&|archive| archive[second + 6 + 6 * 8] = b'f'), at("a file's contents are cut short"));
    assert_eq!(problem(&|archive| archive[second + 110 + 8] = b'x'), at("a name does not end with a zero"));
    assert_eq!(problem(&|archive| archive[second + 110] = 0), at("a name is empty or contains a zero"));
    assert_eq!(problem(&|archive| archive[second + 5] = b'2'), at("a file's contents do not match its checksum"));
    assert_eq!(problem(&|archive| archive.truncate(second + 50)), at("it ends before its trailer"));
    // The right checksum is accepted.
    let mut archive = good.clone();
    archive[second + 5] = b'2';
    let sum: u32 = b"hello".iter().map(|byte| u32::from(*byte)).sum();
    archive[second + 102..second + 110].copy_from_slice(format!("{sum:08X}").as_bytes());
    assert!(cpio::entries(&archive).all(|entry| entry.is_ok()));
}

#[test]
fn writer_refuses_unreadable_entries() {
    let mut writer = Writer::new(0);
    for path in [&b""[..], b"a\0b", b"TRAILER!!!", &[b'a'; 4096]] {
        assert_eq!(writer.file(path, 0, b""), Err(WriteError::BadPath));
    }
    for target in [&b""[..], b"a\0b", b"\0", &[b'a'; 4096]] {
        assert_eq!(writer.symbolic_link(b"a", target), Err(WriteError::BadContents));
    }
    assert_eq!(writer.finish(), Writer::new(0).finish());
    // The longest path, of a file and in a link.
    let longest = b"d/".repeat(2047);
    let mut writer = Writer::new(0);
    assert_eq!(longest.len(), 4094);
    assert_eq!(writer.file(&[&longest[..], b"f"].concat(), 0o644, b""), Ok(()));
    assert_eq!(writer.symbolic_link(b"link", &[&longest[..], b"f"].concat()), Ok(()));
    let archive = writer.finish();
    let lengths: Vec<_> = cpio::entries(&archive).map(|entry| entry.map(|entry| entry.path.len())).collect();
    assert!(matches!(lengths[..], [Ok(4095), Ok(4)]), "{lengths:?}");
    let messages = [WriteError::BadPath, WriteError::BadContents].map(|error| error.to_string());
    assert!(messages.iter().all(|message| message.len() > 8) && messages[0] != messages[1], "{messages:?}");
}

fn tree(archive: Vec<u8>) -> Result<Filesystem, PopulateError<'static>> {
    let filesystem = Filesystem::new(1 << 20).unwrap();
    filesystem.populate(archive.leak()).map(|()| filesystem)
}

fn contents(filesystem: &Filesystem, path: &[u8]) -> Vec<u8> {
    let node = filesystem.look_up(&filesystem.root(), path, LastLink::Follow).unwrap();
    let mut buffer = vec![0; 100];
    let length = node.read_at(0, &mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

#[test]
fn archive_becomes_a_tree_without_copies() {
    let data: Vec<u8> = (0..10_000u32).map(|index| index as u8).collect();
    let items = [
        (b".".to_vec(), Item::Directory(0o700)),
        (b"bin".to_vec(), Item::Directory(0o755)),
        (b"bin/tool".to_vec(), Item::File(0o755, data.clone())),
        (b"bin/alias".to_vec(), Item::Link(b"tool".to_vec())),
        (b"dev/null".to_vec(), Item::Device(0o666, 1, 3)),
        (b"./etc//motd".to_vec(), Item::File(0o644, b"one".to_vec())),
        // A second entry replaces the first; a directory only changes its permissions.
        (b"etc/motd".to_vec(), Item::File(0o600, b"two".to_vec())),
        (b"bin".to_vec(), Item::Directory(0o555)),
    ];
    let archive: &'static [u8] = write(&items, 1234).leak();
    let filesystem = Filesystem::new(1 << 20).unwrap();
    filesystem.populate(archive).unwrap();
    let root = filesystem.root();
    let find = |path: &[u8]| filesystem.look_up(&root, path, LastLink::Keep).unwrap();

    assert_eq!(root.metadata().permissions, 0o700);
    assert_eq!(root.metadata().links, 2 + 3);
    assert_eq!(find(b"bin").metadata().permissions, 0o555);
    assert_eq!(contents(&filesystem, b"etc/motd"), b"two");
    assert_eq!(find(b"/dev/null").device(), Some(DeviceNumber { major: 1, minor: 3 }));
    assert_eq!(find(b"dev/null").metadata().mode(), 0o020_666);
    assert_eq!(find(b"bin/alias").kind(), FileKind::SymbolicLink);
    assert_eq!(contents(&filesystem, b"bin/alias"), data[..100]);
}

#[test]
fn directories_above_a_file_are_made() {
    let file = |path: &[u8]| (path.to_vec(), Item::File(0o644, path.to_vec()));
    let directory = (b"made/".to_vec(), Item::Directory(0o700));
    let items = [file(b"a/b"), file(b"x/y/z"), file(b"//p//q"), directory, file(b"./here"), file(b"a/c")];
    let filesystem = tree(write(&items, 0)).unwrap();
    for path in [&b"a/b"[..], b"x/y/z", b"//p//q", b"here", b"a/c"] {
        assert!(contents(&filesystem, path).ends_with(&path[path.len() - 1..]));
    }
    let find = |path: &[u8]| filesystem.look_up(&filesystem.root(), path, LastLink::Keep).unwrap().metadata();
    assert_eq!((find(b"a").permissions, find(b"x/y").permissions, find(b"made").permissions), (0o755, 0o755, 0o700));
    assert_eq!([find(b"/").links, find(b"x").links, find(b"a").links], [2 + 4, 3, 2]);
}

#[test]
fn files_are_the_archives_until_they_are_written_to() {
    let data: Vec<u8> = (0..10_000u32).map(|index| index as u8).collect();
    let items = [(b"tool".to_vec(), Item::File(0o755, data.clone()))];
    let archive: &'static [u8] = write(&items, 1234).leak();
    let filesystem = Filesystem::new(1 << 20).unwrap();
    filesystem.populate(archive).unwrap();
    let root = filesystem.root();
    let tool = filesystem.look_up(&root, b"tool", LastLink::Follow).unwrap();
    let metadata = tool.metadata();
    assert!(metadata.is_executable());
    assert_eq!(metadata.size, 10_000);
    assert_eq!(metadata.modified.seconds, 1234);
    let bytes = tool.archived_bytes().unwrap();
    assert_eq!(bytes, data);
    assert!(archive.as_ptr_range().contains(&bytes.as_ptr()));

    // One byte costs one page, and the archive does not change.
    let before = filesystem.usage().used;
    assert_eq!(tool.write_at(5000, b"!", NOW), Ok(1));
    assert_eq!(filesystem.usage().used, before + 4096);
    assert_eq!(tool.archived_bytes(), None);
    assert_eq!(bytes, data);
    let mut read = vec![0; 20_000];
    assert_eq!(tool.read_at(0, &mut read), Ok(10_000));
    assert_eq!(read[5000], b'!');
    read[5000] = data[5000];
    assert_eq!(read[..10_000], data);
}

#[test]
fn entries_with_several_links_are_one_file() {
    let mut archive = write(
        &[(b"one".to_vec(), Item::File(0o644, Vec::new())), (b"two".to_vec(), Item::File(0o644, b"data".to_vec()))],
        0,
    );
    // Both get two links and the same number.
    for start in [0, 116] {
        archive[start + 13] = b'9';
        archive[start + 45] = b'2';
    }
    let filesystem = tree(archive).unwrap();
    assert_eq!(contents(&filesystem, b"one"), b"data");
    let find = |path: &[u8]| filesystem.look_up(&filesystem.root(), path, LastLink::Follow).unwrap();
    assert_eq!(find(b"one"), find(b"two"));
    assert_eq!(find(b"one").metadata().links, 2);
}

#[test]
fn entries_with_one_link_are_files_of_their_own() {
    let file = |path: &[u8]| (path.to_vec(), Item::File(0o644, path.to_vec()));
    let mut archive = write(&[file(b"one"), file(b"two"), (b"dir".to_vec(), Item::Directory(0o755))], 0);
    let entries: Vec<_> = cpio::entries(&archive).map(Result::unwrap).collect();
    assert_eq!(entries.iter().map(|entry| entry.links).collect::<Vec<_>>(), [1, 1, 2]);
    assert!(entries[0].identity != entries[1].identity && entries[1].identity != entries[2].identity);
    // Some writers give all files the same number.
    for start in [entries[0].offset, entries[1].offset] {
        archive[start + 13] = b'9';
    }
    let filesystem = tree(archive).unwrap();
    assert_eq!([contents(&filesystem, b"one"), contents(&filesystem, b"two")], [b"one", b"two"]);
}

#[test]
fn impossible_entries_are_named() {
    let file = |path: &[u8]| (path.to_vec(), Item::File(0o644, Vec::new()));
    let below_file = write(&[file(b"a"), file(b"a/b")], 0);
    let error = tree(below_file).err().unwrap();
    assert_eq!(error.to_string(), "a/b: not a directory");
    let replaces_directory = write(&[(b"d".to_vec(), Item::Directory(0)), file(b"d")], 0);
    assert_eq!(tree(replaces_directory).err(), Some(PopulateError::Entry { path: b"d", error: Error::IsADirectory }));
    let mut pipe = write(&[file(b"p")], 0);
    pipe[14 + 4] = b'1';
    assert_eq!(tree(pipe).err(), Some(PopulateError::Unsupported { path: b"p" }));
}
