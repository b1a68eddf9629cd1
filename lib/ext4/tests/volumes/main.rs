//! Volumes that Debian's `mke2fs` has made, and that `e2fsck` looks at afterwards. Without e2fsprogs on the computer
//! each test says so in one line, and passes.

mod damage;
mod differential;
mod hostile;
mod image;
mod random;

use ext4::{Access, Change, Error, NewFile, Refusal, Replacement, Stamp, Unlinked, Volume, kind};

use crate::image::{Image, are_tools_missing, now};

const FILE: NewFile = NewFile { owner: (0, 0), permissions: 0o644 };
const DIRECTORY: NewFile = NewFile { owner: (0, 0), permissions: 0o755 };

fn mount(image: &Image) -> Volume<Image> {
    Volume::mount(image.clone(), now, Access::Write).expect("a volume of mke2fs")
}

fn end(mut volume: Volume<Image>, image: &Image) {
    volume.unmount().expect("nothing is in use");
    image.check();
}

/// A directory grows over its first block, gets an index, and loses all of its names again.
#[test]
fn a_directory_has_thousands_of_names() {
    for block_size in [4096, 1024] {
        let size = block_size.to_string();
        let Some(image) = Image::make(24, &["-N", "3000", "-b", &size]) else { return };
        let mut volume = mount(&image);
        let directory = volume.make_directory(volume.root(), b"d", DIRECTORY).unwrap().inode;
        let name = |number: u32| format!("file-{number}-{}", "x".repeat(number as usize % 60)).into_bytes();
        for number in 0..1200 {
            let file = volume.create(directory, &name(number), FILE);
            let file = file.unwrap_or_else(|error| panic!("{block_size}: name {number}: {error:?}"));
            if number % 50 == 0 {
                volume.write(file.inode, 0, &name(number)).unwrap();
                volume.synchronise().unwrap();
            }
            if number % 7 == 0 {
                let other = format!("other-{number}").into_bytes();
                let outcome = volume.rename((directory, &name(number)), (directory, &other), Replacement::Replace);
                assert_eq!(outcome, Ok(None), "{block_size}: {number}");
                assert_eq!(
                    volume.rename((directory, &other), (directory, &name(number)), Replacement::Refuse),
                    Ok(None)
                );
            }
        }
        let mut listed = Vec::new();
        let mut place = 0;
        loop {
            let entries = volume.list(directory, place, 33).unwrap();
            let Some(last) = entries.last() else { break };
            place = last.next;
            listed.extend(entries.into_iter().map(|entry| entry.name));
        }
        let mut expected: Vec<_> = (0..1200).map(name).chain([b".".to_vec(), b"..".to_vec()]).collect();
        expected.sort();
        listed.sort();
        assert!(listed == expected, "{block_size}: {} names and not {}", listed.len(), expected.len());
        volume.synchronise().unwrap();
        let cut = image.copy();
        end(mount(&cut), &cut);
        for number in 0..1200 {
            let gone = volume.unlink(directory, &name(number)).unwrap();
            assert!(gone.is_nameless);
            assert_eq!(volume.end_file(gone.inode), Ok(true));
        }
        let gone = volume.remove_directory(volume.root(), b"d").unwrap().unwrap();
        assert_eq!(volume.end_file(gone), Ok(true));
        end(volume, &image);
    }
}

#[test]
fn names_links_and_attributes_are_as_linux_has_them() {
    let Some(image) = Image::make(8, &[]) else { return };
    let mut volume = mount(&image);
    let root = volume.root();
    let file = volume.create(root, b"a", FILE).unwrap();
    assert!(file.is(kind::REGULAR) && file.links == 1 && file.mode & 0o7777 == 0o644);
    assert_eq!(volume.create(root, b"a", FILE), Err(Error::AlreadyExists));
    for name in [&b""[..], b"x/y", &[b'n'; 256], b"z\0"] {
        assert_eq!(volume.create(root, name, FILE), Err(Error::Invalid));
    }
    assert_eq!(volume.look_up(file.inode, b"x"), Err(Error::NotADirectory));
    assert_eq!(volume.look_up(root, b"b"), Ok(None));
    volume.write(file.inode, 10_000, b"text").unwrap();
    let mut bytes = [1; 20];
    assert_eq!(volume.read(file.inode, 9_990, &mut bytes), Ok(14));
    assert_eq!(&bytes[..14], b"\0\0\0\0\0\0\0\0\0\0text");
    assert_eq!(volume.read(file.inode, 20_000, &mut bytes), Ok(0));
    volume.truncate(file.inode, 10_002).unwrap();
    volume.truncate(file.inode, 10_010).unwrap();
    assert_eq!(volume.read(file.inode, 9_999, &mut bytes), Ok(11));
    assert_eq!(&bytes[..11], b"\0te\0\0\0\0\0\0\0\0");
    for length in [1, 59, 60, 61, 1000, 4095] {
        let (name, target) = (format!("l{length}").into_bytes(), vec![b't'; length]);
        let link = volume.make_symbolic_link(root, &name, &target, (0, 0));
        assert_eq!(volume.read_link(link.unwrap().inode), Ok(target));
    }
    assert_eq!(volume.make_symbolic_link(root, b"long", &[b't'; 4096], (0, 0)), Err(Error::NameTooLong));
    assert_eq!(volume.read_link(file.inode), Err(Error::Invalid));
    assert_eq!(volume.link(file.inode, root, b"b").unwrap().links, 2);
    let directory = volume.make_directory(root, b"d", DIRECTORY).unwrap();
    assert_eq!(volume.link(directory.inode, root, b"e"), Err(Error::IsADirectory));
    assert_eq!(volume.unlink(root, b"d"), Err(Error::IsADirectory));
    assert_eq!(volume.remove_directory(root, b"a"), Err(Error::NotADirectory));
    let inner = volume.make_directory(directory.inode, b"inner", DIRECTORY).unwrap();
    assert_eq!(volume.remove_directory(root, b"d"), Err(Error::NotEmpty));
    assert_eq!(volume.look_up(inner.inode, b"..").unwrap().unwrap().inode, directory.inode);
    let replace = Replacement::Replace;
    assert_eq!(volume.rename((root, b"d"), (inner.inode, b"x"), replace), Err(Error::Invalid));
    assert_eq!(volume.rename((root, b"d"), (root, b"a"), replace), Err(Error::NotADirectory));
    assert_eq!(volume.rename((root, b"a"), (root, b"d"), replace), Err(Error::IsADirectory));
    assert_eq!(volume.rename((root, b"a"), (root, b"b"), replace), Ok(None), "one file");
    assert_eq!(volume.rename((root, b"no"), (root, b"b"), replace), Err(Error::NotFound));
    assert_eq!(volume.rename((directory.inode, b"inner"), (root, b"inner"), replace), Ok(None));
    assert_eq!(volume.look_up(inner.inode, b"..").unwrap().unwrap().inode, root);
    assert_eq!(volume.attributes(directory.inode).unwrap().links, 2);
    let other = volume.create(root, b"other", FILE).unwrap();
    assert_eq!(volume.rename((root, b"other"), (root, b"a"), Replacement::Exchange), Ok(None));
    assert_eq!(volume.look_up(root, b"a").unwrap().unwrap().inode, other.inode);
    for (name, is_nameless) in [(&b"b"[..], false), (b"other", true)] {
        assert_eq!(volume.unlink(root, name), Ok(Unlinked { inode: file.inode, is_nameless }));
    }
    // It lives on without a name.
    assert_eq!(volume.read(file.inode, 10_000, &mut bytes[..2]), Ok(2));
    assert_eq!(&bytes[..2], b"te");
    assert_eq!(volume.unmount(), Err(Error::Busy));
    assert_eq!(volume.remount(Access::Read), Err(Error::Busy));
    assert_eq!(volume.end_file(file.inode), Ok(true));
    assert_eq!(volume.attributes(file.inode), Err(Error::NotFound));
    // Before 1970, and after the seconds of 32 bits.
    let accessed = Stamp { seconds: -1_000_000, nanoseconds: 5 };
    let modified = Stamp { seconds: 5_000_000_000, nanoseconds: 999_999_999 };
    let change = Change { permissions: Some(0o4711), owner: None, accessed: Some(accessed), modified: Some(modified) };
    let changed = volume.set_attributes(other.inode, change).unwrap();
    assert_eq!((changed.mode & 0o7777, changed.times[0], changed.times[1]), (0o4711, accessed, modified));
    let owned = volume.set_attributes(other.inode, Change { owner: Some((70_000, 3)), ..Change::default() });
    assert_eq!(owned.unwrap().owner, (70_000, 3));
    volume.remount(Access::Read).unwrap();
    assert_eq!(volume.create(root, b"no", FILE), Err(Error::ReadOnly));
    assert_eq!(volume.read(other.inode, 0, &mut bytes), Ok(0));
    volume.remount(Access::Write).unwrap();
    volume.create(root, b"yes", FILE).unwrap();
    end(volume, &image);
}

/// A full volume refuses, keeps what it has, and is usable when something is removed.
#[test]
fn a_volume_can_be_full() {
    for options in [&[][..], &["-O", "^has_journal"]] {
        let Some(image) = Image::make(6, options) else { return };
        let mut volume = mount(&image);
        let root = volume.root();
        let file = volume.create(root, b"a", FILE).unwrap().inode;
        let mut offset = 0;
        let error = loop {
            match volume.write(file, offset, &[7; 16 << 10]) {
                Ok(()) => offset += 16 << 10,
                Err(error) => break error,
            }
        };
        assert_eq!(error, Error::NoSpace);
        assert!(offset > 1 << 20, "{offset}");
        let mut bytes = vec![0; 16 << 10];
        assert_eq!(volume.read(file, offset - (16 << 10), &mut bytes), Ok(16 << 10));
        assert!(bytes.iter().all(|byte| *byte == 7));
        volume.synchronise().unwrap();
        assert_eq!(volume.unlink(root, b"a"), Ok(Unlinked { inode: file, is_nameless: true }));
        while !volume.end_file(file).unwrap() {}
        let file = volume.create(root, b"b", FILE).unwrap().inode;
        volume.write(file, 0, &[7; 100_000]).unwrap();
        end(volume, &image);
    }
}

/// A device that fails ends the changes; what was synchronised can still be read.
#[test]
fn after_a_failure_a_volume_is_read_only() {
    let Some(image) = Image::make(8, &[]) else { return };
    let mut volume = mount(&image);
    let root = volume.root();
    let file = volume.create(root, b"a", FILE).unwrap().inode;
    volume.write(file, 0, b"kept").unwrap();
    volume.synchronise().unwrap();
    image.fail_writes(true);
    let _ = volume.create(root, b"b", FILE);
    assert!(matches!(volume.synchronise(), Err(Error::Device | Error::ReadOnly)));
    assert_eq!(volume.access(), Access::Read);
    image.fail_writes(false);
    assert_eq!(volume.create(root, b"c", FILE), Err(Error::ReadOnly));
    let file = volume.look_up(root, b"a").unwrap().unwrap().inode;
    let mut bytes = [0; 4];
    assert_eq!(volume.read(file, 0, &mut bytes), Ok(4));
    assert_eq!(&bytes, b"kept");
    drop(volume);
    end(mount(&image), &image);
}

#[test]
fn unknown_features_are_refused_by_name() {
    if are_tools_missing() {
        return;
    }
    for (option, name, alone) in [
        ("inline_data", "inline_data", false),
        ("encrypt", "encrypt", false),
        ("casefold", "casefold", false),
        ("large_dir", "large_dir", false),
        ("ea_inode", "ea_inode", false),
        ("mmp", "mmp", false),
        ("bigalloc", "bigalloc", true),
        ("quota", "quota", true),
        ("verity", "verity", true),
    ] {
        let Some(image) = Image::make(16, &["-O", option]) else { return };
        let refusal = Volume::mount(image.clone(), now, Access::Write).err();
        assert_eq!(refusal, Some(Refusal::Feature { name, forbids_writing_alone: alone }), "{option}");
        assert!(format!("{}", refusal.unwrap()).contains(name));
        // Its clusters are nothing that can be read.
        assert_eq!(Volume::mount(image, now, Access::Read).is_ok(), alone, "{option}");
    }
    let Some(image) = Image::make(4, &[]) else { return };
    image.change(1024 + 96, &[0xc2, 0x02, 0, 0x80]);
    let refusal = Volume::mount(image, now, Access::Write).err();
    assert_eq!(refusal, Some(Refusal::Feature { name: "unknown", forbids_writing_alone: false }));
    let empty = Image::of(vec![0; 1 << 20]);
    assert_eq!(Volume::mount(empty, now, Access::Write).err(), Some(Refusal::NotExt4));
    assert_eq!(Volume::mount(Image::of(vec![0; 512]), now, Access::Read).err(), Some(Refusal::NotExt4));
}

/// Other layouts than the usual one: without a journal, without checksums, with the maps of ext2, with small inodes.
#[test]
fn older_layouts_are_read_and_written() {
    for options in [
        &["-O", "^has_journal"][..],
        &["-O", "^metadata_csum,^64bit"],
        &["-O", "^extent,^64bit"],
        &["-I", "128"],
        &["-O", "^dir_index"],
        &["-O", "^flex_bg"],
        &["-O", "^metadata_csum,uninit_bg"],
        &["-O", "metadata_csum_seed,sparse_super2"],
        &["-t", "ext2"],
        &["-t", "ext3"],
        &["-b", "1024"],
        &["-b", "2048"],
        &["-b", "1024", "-t", "ext3"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    ] {
        let Some(image) = Image::make(16, options) else { return };
        let mut volume = mount(&image);
        random::change(&mut volume, 3, 300);
        end(volume, &image);
    }
}

/// Blocks that were freed have no bytes of other files before it lasts that they are free: after a power cut they are
/// those of the files that had them.
#[test]
fn a_file_that_a_power_cut_brings_back_has_its_own_bytes() {
    type Freed = fn(&mut Volume<Image>, u32);
    let ways: [(&str, Freed); 3] = [
        ("cut off", |volume, file| volume.truncate(file, 0).unwrap()),
        ("cut off in part", |volume, file| volume.truncate(file, 10_000).unwrap()),
        ("removed", |volume, file| {
            volume.unlink(volume.root(), b"a").unwrap();
            while !volume.end_file(file).unwrap() {}
        }),
    ];
    for (way, free) in ways {
        const LENGTH: usize = 60_000;
        let Some(image) = Image::make(8, &[]) else { return };
        let mut volume = mount(&image);
        let root = volume.root();
        let file = volume.create(root, b"a", FILE).unwrap().inode;
        volume.write(file, 0, &[1; LENGTH]).unwrap();
        volume.synchronise().unwrap();
        free(&mut volume, file);
        for number in 0..40 {
            let other = volume.create(root, format!("b{number}").as_bytes(), FILE).unwrap().inode;
            volume.write(other, 0, &[2; LENGTH]).unwrap();
            let cut = image.copy();
            let mut after = mount(&cut);
            if let Some(found) = after.look_up(root, b"a").unwrap() {
                let mut bytes = vec![0; LENGTH];
                let length = after.read(found.inode, 0, &mut bytes).unwrap();
                assert!([0, 10_000, LENGTH].contains(&length), "{way}: {length} bytes");
                assert!(bytes[..length].iter().all(|byte| *byte == 1), "{way}: bytes of file {number}");
            }
            end(after, &cut);
        }
        end(volume, &image);
    }
}

/// Blocks that a file loses in the second step of a truncation are waited for, also if the first one was committed.
#[test]
fn a_truncation_in_steps_frees_in_each_of_them() {
    const STEP: u64 = 16 << 20;
    const LENGTH: usize = 60_000;
    // Numbers of blocks that wait for their commit before: with some of them the first step has enough.
    for waiting in 188..191 {
        let Some(image) = Image::make(8, &[]) else { return };
        let mut volume = mount(&image);
        let root = volume.root();
        // Their inodes lie in blocks of their own.
        let [file, filler] = [b"a", b"f"].map(|name| {
            for number in 0..20 {
                volume.create(root, &[name[0], b'0' + number], FILE).unwrap();
            }
            volume.create(root, name, FILE).unwrap().inode
        });
        volume.write(file, 0, &[1; LENGTH]).unwrap();
        volume.write(file, STEP + LENGTH as u64, &[1; LENGTH]).unwrap();
        volume.write(filler, 0, &[3; 4096]).unwrap();
        volume.synchronise().unwrap();
        volume.truncate(filler, 0).unwrap();
        // They may get a freed block, and go through the journal.
        let first = 2 + waiting % 2;
        for block in (first..waiting - 3).step_by(2) {
            volume.write(filler, block << 12, &[3; 2 << 12]).unwrap();
        }
        volume.write(filler, 0, &vec![3; (first as usize) << 12]).unwrap();
        volume.truncate(file, 0).unwrap();
        let other = volume.create(root, b"b", FILE).unwrap().inode;
        for number in 0.. {
            if volume.write(other, number * LENGTH as u64, &[2; LENGTH]) == Err(Error::NoSpace) {
                assert!(number > 20);
                break;
            }
            if number % 5 > 0 {
                continue;
            }
            let mut after = mount(&image.copy());
            let found = after.look_up(root, b"a").unwrap().unwrap();
            let mut bytes = vec![0; LENGTH];
            let length = after.read(found.inode, 0, &mut bytes).unwrap();
            assert!(bytes[..length].iter().all(|byte| *byte == 1), "{waiting} blocks wait: bytes of another file");
        }
        end(volume, &image);
    }
}

/// Bytes in the last block behind a file's end, as a power cut can leave them, never become a part of the file.
#[test]
fn a_write_behind_the_end_shows_nothing_of_the_last_block() {
    const MARK: &[u8] = b"the beginning of the file that is looked for on the disk";
    for write in [Volume::write, Volume::overwrite] {
        let Some(image) = Image::make(8, &[]) else { return };
        let mut volume = mount(&image);
        let root = volume.root();
        let file = volume.create(root, b"a", FILE).unwrap().inode;
        volume.write(file, 0, MARK).unwrap();
        end(volume, &image);
        let bytes = image.bytes();
        let place = bytes.windows(MARK.len()).rposition(|window| window == MARK).unwrap();
        let tail = place + MARK.len()..(place + 1).next_multiple_of(4096);
        image.change(tail.start, &vec![7; tail.len()]);
        let mut volume = mount(&image);
        write(&mut volume, file, 1000, b"x").unwrap();
        let mut found = vec![0; 2000];
        assert_eq!(volume.read(file, 0, &mut found), Ok(1001));
        assert_eq!(&found[..MARK.len()], MARK);
        assert!(found[MARK.len()..1000].iter().all(|byte| *byte == 0), "bytes from behind the end");
        end(volume, &image);
    }
}

/// Returns the offset of the journal's superblock in an image, and the blocks that the journal uses.
fn journal(image: &Image) -> (usize, u32) {
    let bytes = image.bytes();
    let is_there = |block: &&[u8]| block.starts_with(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4]);
    let (number, block) = bytes.chunks_exact(4096).enumerate().find(|(_, block)| is_there(block)).unwrap();
    (number * 4096, u32::from_be_bytes(block[16..20].try_into().unwrap()))
}

/// A large journal is used in part, also if a file without a name stays in use, and is replayed after a power cut.
#[test]
fn a_part_of_a_large_journal_is_used() {
    const USED: usize = 1024;
    let Some(image) = Image::make(48, &["-J", "size=16"]) else { return };
    let (at, whole) = journal(&image);
    assert_eq!(whole, 4096);
    let mut volume = mount(&image);
    let root = volume.root();
    let nameless = volume.create(root, b"nameless", FILE).unwrap().inode;
    assert!(volume.unlink(root, b"nameless").unwrap().is_nameless);
    for number in 0..700 {
        let file = volume.create(root, format!("f{number}").as_bytes(), FILE).unwrap().inode;
        volume.write(file, 0, b"text").unwrap();
        volume.synchronise().unwrap();
        if number % 100 == 99 {
            let cut = image.copy();
            cut.check_replayed();
            let mut after = mount(&cut);
            assert!(after.look_up(root, format!("f{number}").as_bytes()).unwrap().is_some(), "{number}");
            end(after, &cut);
            assert_eq!(journal(&cut), (at, whole));
        }
    }
    let (bytes, blocks) = (image.bytes(), image.blocks_of("<8>"));
    assert_eq!((blocks.len(), blocks[0] * 4096), (whole as usize, at));
    let is_written = |block: &&usize| bytes[**block * 4096..][..4096].iter().any(|byte| *byte != 0);
    let written = blocks[..USED].iter().filter(is_written).count();
    assert!(written > USED * 4 / 10, "{written} blocks of its beginning are used");
    assert_eq!(blocks[USED..].iter().filter(is_written).count(), 0, "blocks of the rest are used");
    assert_eq!(volume.end_file(nameless), Ok(true));
    end(volume, &image);
    assert_eq!(journal(&image), (at, whole), "the volume was unmounted");
    // A mount for reading changes nothing.
    drop(Volume::mount(image.clone(), now, Access::Read).unwrap());
    assert_eq!(journal(&image), (at, whole));
}

/// A block of the journal that begins as a block of a journal does is replayed as it was.
#[test]
fn a_block_with_the_magic_number_of_journals_is_replayed() {
    const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];
    let Some(image) = Image::make(8, &[]) else { return };
    let mut volume = mount(&image);
    let root = volume.root();
    let (first, second) = (volume.create(root, b"a", FILE).unwrap(), volume.create(root, b"b", FILE).unwrap());
    volume.write(first.inode, 0, &[1; 8192]).unwrap();
    volume.synchronise().unwrap();
    // It may get the blocks that were freed, so its bytes go through the journal.
    volume.truncate(first.inode, 0).unwrap();
    let bytes: Vec<u8> = MAGIC.into_iter().cycle().take(8192).collect();
    volume.write(second.inode, 0, &bytes).unwrap();
    volume.synchronise().unwrap();
    let mut cut = image.copy();
    cut.check_replayed();
    for _ in 0..2 {
        let mut after = mount(&cut);
        let mut found = vec![0; bytes.len()];
        assert_eq!(after.read(second.inode, 0, &mut found), Ok(bytes.len()));
        assert!(found == bytes);
        drop(after);
        cut = cut.copy();
    }
    end(volume, &image);
}

/// Blocks that directories had get bytes of files, which a replay leaves as they are.
#[test]
fn a_replay_leaves_bytes_in_blocks_that_were_revoked() {
    let Some(image) = Image::make(8, &[]) else { return };
    let mut volume = mount(&image);
    let root = volume.root();
    for round in 0..6u8 {
        for number in 0..30 {
            let name = format!("d{number}");
            volume.make_directory(root, name.as_bytes(), DIRECTORY).unwrap();
        }
        volume.synchronise().unwrap();
        for number in 0..30 {
            let gone = volume.remove_directory(root, format!("d{number}").as_bytes()).unwrap().unwrap();
            assert_eq!(volume.end_file(gone), Ok(true));
        }
        volume.synchronise().unwrap();
        let name = format!("f{round}");
        let file = volume.create(root, name.as_bytes(), FILE).unwrap().inode;
        volume.write(file, 0, &[round + 1; 40 << 12]).unwrap();
        volume.synchronise().unwrap();
        let cut = image.copy();
        cut.check_replayed();
        let mut after = mount(&cut);
        let mut found = vec![0; 40 << 12];
        assert_eq!(after.read(file, 0, &mut found), Ok(40 << 12));
        assert!(found.iter().all(|byte| *byte == round + 1), "round {round}");
        end(after, &cut);
        let gone = volume.unlink(root, name.as_bytes()).unwrap();
        assert_eq!(volume.end_file(gone.inode), Ok(true));
    }
    end(volume, &image);
}

/// Returns the first bytes of the file `a` of a disk whose power was cut off with nothing written but what was to last.
fn lasting_bytes(image: &Image, count: usize) -> Vec<u8> {
    let cut = image.after_the_cut(|| false);
    cut.check_replayed();
    let mut after = mount(&cut);
    let file = after.look_up(after.root(), b"a").unwrap().expect("the file lasts").inode;
    let mut bytes = vec![0; count];
    assert_eq!(after.read(file, 0, &mut bytes), Ok(count));
    end(after, &cut);
    bytes
}

/// Bytes that are overwritten and synchronised without times last, however many blocks they have.
#[test]
fn overwritten_blocks_last_once_they_are_synchronised() {
    for blocks in 1..=3 {
        let Some(image) = Image::make(8, &[]) else { return };
        let mut volume = mount(&image);
        let file = volume.create(volume.root(), b"a", FILE).unwrap().inode;
        volume.write(file, 0, &[1; 3 << 12]).unwrap();
        volume.synchronise().unwrap();
        for round in 2..6 {
            volume.overwrite(file, 0, &vec![round; blocks << 12]).unwrap();
            volume.synchronise_data().unwrap();
            let found = lasting_bytes(&image, 3 << 12);
            assert!(found[..blocks << 12].iter().all(|byte| *byte == round), "{blocks} blocks, round {round}");
            assert!(found[blocks << 12..].iter().all(|byte| *byte == 1), "{blocks} blocks, round {round}: the rest");
        }
        end(volume, &image);
    }
}

/// Bytes that went through the journal are overwritten at their places, and synchronised without times: no replay
/// brings the old ones back.
#[test]
fn a_replay_leaves_overwritten_bytes_that_were_in_the_journal() {
    let Some(image) = Image::make(8, &[]) else { return };
    let mut volume = mount(&image);
    let root = volume.root();
    let (other, file) = (volume.create(root, b"b", FILE).unwrap(), volume.create(root, b"a", FILE).unwrap());
    volume.write(other.inode, 0, &[7; 60_000]).unwrap();
    volume.synchronise().unwrap();
    // From now on bytes that may get blocks of the other file go through the journal.
    volume.truncate(other.inode, 0).unwrap();
    volume.write(file.inode, 0, &[1; 8192]).unwrap();
    volume.synchronise().unwrap();
    for round in 2..5 {
        volume.overwrite(file.inode, 0, &[round; 8192]).unwrap();
        volume.synchronise_data().unwrap();
        assert!(lasting_bytes(&image, 8192).iter().all(|byte| *byte == round), "round {round}");
    }
    end(volume, &image);
}

/// The places of a file's bytes are told as long as they are on the device alone.
#[test]
fn the_places_of_bytes_are_those_of_the_device() {
    let Some(image) = Image::make(16, &[]) else { return };
    let mut volume = mount(&image);
    let file = volume.create(volume.root(), b"a", FILE).unwrap().inode;
    let bytes: Vec<u8> = (0..5 * 4096u32).map(|number| (number / 7) as u8).collect();
    volume.write(file, 0, &bytes).unwrap();
    volume.write(file, 10 * 4096, b"text").unwrap();
    assert!(volume.runs(file, 0, 4096).unwrap().is_some(), "they are on the device at once");
    let runs = volume.runs(file, 4096, 12 * 4096).unwrap().expect("they are on the device");
    let (mut next, mut found) = (4096, Vec::new());
    for run in &runs {
        assert_eq!(run.offset, next);
        next += run.length;
        let mut piece = vec![0; run.length as usize];
        if let Some(at) = run.at {
            ext4::Device::read(&image, at, &mut piece).unwrap();
        }
        found.extend(piece);
    }
    assert_eq!(next, 13 * 4096);
    let mut expected = vec![0; 12 * 4096];
    expected[..4 * 4096].copy_from_slice(&bytes[4096..]);
    expected[9 * 4096..][..4].copy_from_slice(b"text");
    assert!(found == expected);
    end(volume, &image);
}

/// A volume whose state cannot begin anew goes on read-only, at whatever write the device fails.
#[test]
fn a_new_beginning_that_fails_leaves_a_volume_that_is_read() {
    let Some(image) = Image::make(24, &["-N", "3000"]) else { return };
    let mut volume = mount(&image);
    let root = volume.root();
    let directory = volume.make_directory(root, b"d", DIRECTORY).unwrap().inode;
    // Blocks of other files lie between those of the directory, which gets a tree of extents.
    let mut made = 0;
    let grow = |volume: &mut Volume<Image>, made: &mut u32| {
        let size = volume.attributes(directory).unwrap().size;
        while volume.attributes(directory).unwrap().size == size {
            let name = format!("{made}-{}", "n".repeat(200)).into_bytes();
            let file = volume.create(directory, &name, FILE).unwrap().inode;
            volume.write(file, 0, b"text").unwrap();
            *made += 1;
        }
    };
    while volume.attributes(directory).unwrap().size < 40 << 10 {
        grow(&mut volume, &mut made);
    }
    volume.unmount().unwrap();
    let mut failures = 0;
    for writes in 0.. {
        let cut = image.copy();
        let mut volume = mount(&cut);
        let mut made = made;
        grow(&mut volume, &mut made);
        cut.cut_after(writes);
        let synchronised = volume.synchronise();
        if cut.is_cut() && synchronised.is_err() {
            failures += 1;
            assert_eq!(volume.access(), Access::Read, "after {writes} writes");
            let found = volume.look_up(root, b"d");
            assert!(matches!(found, Ok(Some(_))), "after {writes} writes: {found:?}");
            assert_eq!(volume.create(root, b"new", FILE), Err(Error::ReadOnly));
            cut.copy().check_replayed();
            let after = cut.copy();
            end(mount(&after), &after);
            continue;
        }
        assert_eq!(synchronised, Ok(()));
        break;
    }
    assert!(failures > 10, "{failures} failures");
}

/// At whatever write of its unmount the power is cut, a volume is replayed by Linux and here.
#[test]
fn an_unmount_can_be_cut_off_at_any_write() {
    let Some(image) = Image::make(32, &["-J", "size=8"]) else { return };
    for writes in 0.. {
        let cut = image.copy();
        let mut volume = mount(&cut);
        let root = volume.root();
        for number in 0..20 {
            let directory = volume.make_directory(root, format!("d{number}").as_bytes(), DIRECTORY).unwrap().inode;
            let file = volume.create(directory, b"file", FILE).unwrap().inode;
            volume.write(file, 0, b"text").unwrap();
        }
        volume.synchronise().unwrap();
        volume.create(root, b"last", FILE).unwrap();
        cut.cut_after(writes);
        let unmounted = volume.unmount();
        let is_cut = cut.is_cut();
        drop(volume);
        // Everything that was written since the last flush is there, or nothing of it.
        for is_there in [false, true] {
            let after = cut.after_the_cut(|| is_there);
            after.copy().check_replayed();
            let mut found = mount(&after);
            assert!(found.look_up(root, b"d19").unwrap().is_some(), "after {writes} writes");
            end(found, &after);
        }
        if unmounted.is_ok() {
            break;
        }
        assert!(is_cut);
    }
}
