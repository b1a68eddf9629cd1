//! Volumes that were changed here, as the tools of e2fsprogs find them, and the other way round.

use std::path::Path;

use ext4::{AttributeMode, Error, Growth, RangeChange, Replacement};

use crate::image::Image;
use crate::random::{self, Item, Names, name};
use crate::{DIRECTORY, FILE, end, mount};

/// Fails unless a folder has exactly these names and contents.
fn compare(folder: &Path, names: &Names) {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_encoded_bytes())
        .filter(|name| name != b"lost+found")
        .collect();
    let mut expected: Vec<_> = names.keys().map(|number| name(*number)).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{}", folder.display());
    for (number, item) in names {
        let path = folder.join(String::from_utf8(name(*number)).unwrap());
        match item {
            Item::Directory(inner) => compare(&path, inner),
            Item::File(bytes) => assert!(std::fs::read(&path).unwrap() == *bytes, "{}", path.display()),
        }
    }
}

/// After random operations, `debugfs` finds exactly what the model has, and `e2fsck` nothing.
#[test]
fn debugfs_finds_what_the_model_has() {
    for (seed, options) in (100..).zip([
        &[][..],
        &["-O", "^metadata_csum"],
        &["-O", "^64bit"],
        &["-O", "^extent,^64bit,^metadata_csum"],
        &["-b", "1024"],
        &["-b", "1024", "-O", "^metadata_csum"],
        &["-b", "2048", "-I", "128"],
        &["-g", "1024", "-N", "256"],
    ]) {
        let Some(image) = Image::make(16, options) else { return };
        let mut volume = mount(&image);
        let model = random::change(&mut volume, seed, 700).lasting;
        end(volume, &image);
        image.dump(|folder| compare(folder, &model));
        // Once more, with what is there.
        let mut volume = mount(&image);
        random::compare(&mut volume, 2, &model);
        end(volume, &image);
    }
}

/// An index that `e2fsck` has made is used, and grows; and `e2fsck` finds names by the hashes that are taken here.
#[test]
fn indexes_of_others_are_used() {
    for block in ["1024", "4096"] {
        for hash in ["half_md4", "tea", "legacy"] {
            let hash = format!("hash_alg={hash}");
            let Some(image) = Image::make(24, &["-b", block, "-N", "4000", "-O", "^dir_index"]) else { return };
            let mut volume = mount(&image);
            let directory = volume.make_directory(volume.root(), b"d", DIRECTORY).unwrap().inode;
            let name = |number: u32| format!("\u{e9}{number}-{}", "x".repeat(number as usize * 7 % 120)).into_bytes();
            for number in 0..900 {
                volume.create(directory, &name(number), FILE).unwrap();
            }
            end(volume, &image);
            let image = image.changed_by("tune2fs", &["-O", "dir_index", "-E", &hash]);
            let image = image.changed_by("e2fsck", &["-f", "-y", "-D"]);
            let mut volume = mount(&image);
            for number in 0..900 {
                assert!(volume.look_up(directory, &name(number)).unwrap().is_some(), "{hash}: {number}");
            }
            for number in 900..1500 {
                volume.create(directory, &name(number), FILE).unwrap();
            }
            for number in (0..1500).step_by(3) {
                let gone = volume.unlink(directory, &name(number)).unwrap().inode;
                assert_eq!(volume.end_file(gone), Ok(true));
            }
            let (mut place, mut count) = (0, 0);
            while let Some(last) = volume.list(directory, place, 50).unwrap().iter().inspect(|_| count += 1).last() {
                place = last.next;
            }
            assert_eq!(count, 1000 + 2, "{hash}");
            end(volume, &image);
        }
    }
}

/// Extended attributes in inodes and in blocks, as `debugfs` finds them; and files share a block.
#[test]
fn attributes_are_found_by_others() {
    for options in [&[][..], &["-I", "128"], &["-b", "1024"], &["-O", "^metadata_csum"]] {
        let Some(image) = Image::make(8, options) else { return };
        let mut volume = mount(&image);
        let file = volume.create(volume.root(), b"a", FILE).unwrap().inode;
        let mut all = std::collections::BTreeMap::new();
        let mut numbers = random::Numbers(options.len() as u64 + 77);
        for _ in 0..300 {
            let name = format!("user.{}", "n".repeat(1 + numbers.below(12) as usize)).into_bytes();
            if numbers.below(3) == 0 {
                let expected = if all.remove(&name).is_some() { Ok(()) } else { Err(Error::NotFound) };
                assert_eq!(volume.remove_extended_attribute(file, &name), expected);
                continue;
            }
            let value = vec![numbers.below(256) as u8; numbers.below(200) as usize];
            match volume.set_extended_attribute(file, &name, &value, AttributeMode::Any) {
                Ok(()) => drop(all.insert(name, value)),
                Err(error) => assert_eq!(error, Error::NoSpace),
            }
        }
        for (name, value) in &all {
            assert_eq!(volume.extended_attribute(file, name).as_ref(), Ok(value));
        }
        let listed = volume.extended_attributes(file).unwrap();
        let mut listed: Vec<_> = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        listed.sort_unstable();
        assert_eq!(listed, all.keys().map(Vec::as_slice).collect::<Vec<_>>());
        end(volume, &image);
        let mut volume = mount(&image);
        for (name, value) in &all {
            assert_eq!(volume.extended_attribute(file, name).as_ref(), Ok(value));
        }
        volume.unlink(volume.root(), b"a").unwrap();
        assert_eq!(volume.end_file(file), Ok(true));
        end(volume, &image);
    }
}

/// Directories move between others of one volume, are exchanged and replaced, also as indexes grow meanwhile.
#[test]
fn renamed_directories_are_whole() {
    for options in [&[][..], &["-b", "1024"]] {
        let Some(image) = Image::make(16, options) else { return };
        let mut volume = mount(&image);
        let root = volume.root();
        let homes: Vec<u32> = (0..3)
            .map(|number| volume.make_directory(root, format!("h{number}").as_bytes(), DIRECTORY).unwrap().inode)
            .collect();
        let mut numbers = random::Numbers(4711);
        let name = |number: u64| format!("{number}{}", "d".repeat(150)).into_bytes();
        for _ in 0..1500 {
            let [from, to] = [0; 2].map(|_| homes[numbers.below(3) as usize]);
            let [old, new] = [0; 2].map(|_| name(numbers.below(60)));
            match numbers.below(4) {
                0 => drop(volume.make_directory(from, &old, DIRECTORY)),
                1 => match volume.remove_directory(from, &old) {
                    Ok(Some(gone)) => assert_eq!(volume.end_file(gone), Ok(true)),
                    other => assert!(matches!(other, Err(Error::NotFound)), "{other:?}"),
                },
                2 => match volume.rename((from, &old), (to, &new), Replacement::Replace) {
                    Ok(Some(gone)) => assert_eq!(volume.end_file(gone), Ok(true)),
                    other => assert!(matches!(other, Ok(None) | Err(Error::NotFound)), "{other:?}"),
                },
                _ => {
                    let exchanged = volume.rename((from, &old), (to, &new), Replacement::Exchange);
                    assert!(matches!(exchanged, Ok(None) | Err(Error::NotFound)), "{exchanged:?}");
                }
            }
        }
        end(volume, &image);
    }
}

/// Files with many pieces, whose trees have several levels, with holes, cut off in steps and made longer again.
#[test]
fn files_of_many_pieces_are_whole() {
    for options in [&["-b", "1024"][..], &["-b", "1024", "-t", "ext3"], &[]] {
        let Some(image) = Image::make(32, options) else { return };
        let mut volume = mount(&image);
        let root = volume.root();
        let block = volume.usage().unwrap().block_size;
        let files = [b"a", b"b"].map(|name| volume.create(root, name, FILE).unwrap().inode);
        let mut expected = [Vec::new(), Vec::new()];
        let mut numbers = random::Numbers(99);
        for round in 0..2500_u64 {
            let which = numbers.below(2) as usize;
            // Every second block, in no order: each is a piece of its own.
            let at = numbers.below(3000) * 2 * block;
            let bytes = vec![round as u8 | 1; block as usize];
            volume.write(files[which], at, &bytes).unwrap();
            let end = (at + block) as usize;
            expected[which].resize(expected[which].len().max(end), 0);
            expected[which][at as usize..end].copy_from_slice(&bytes);
            if round % 700 == 699 {
                let length = expected[which].len() / 3;
                volume.truncate(files[which], length as u64).unwrap();
                expected[which].truncate(length);
                volume.synchronise().unwrap();
                image.copy().check_replayed();
            }
        }
        for (file, expected) in files.into_iter().zip(&expected) {
            let mut found = vec![0; expected.len()];
            assert_eq!(volume.read(file, 0, &mut found), Ok(found.len()));
            assert!(found == *expected);
        }
        end(volume, &image);
        let mut volume = mount(&image);
        for name in [b"a", b"b"] {
            let gone = volume.unlink(root, name).unwrap().inode;
            while !volume.end_file(gone).unwrap() {}
        }
        end(volume, &image);
    }
}

/// Parts of a file with many pieces are reserved, cleared and freed, and the others stay.
#[test]
fn parts_of_files_of_many_pieces_are_changed() {
    for options in [&["-b", "1024"][..], &["-b", "1024", "-O", "^metadata_csum"], &[]] {
        let Some(image) = Image::make(32, options) else { return };
        let mut volume = mount(&image);
        let file = volume.create(volume.root(), b"file", FILE).unwrap().inode;
        let block = volume.usage().unwrap().block_size;
        let (mut expected, mut numbers) = (Vec::new(), random::Numbers(4242));
        let compare = |volume: &mut ext4::Volume<Image>, expected: &[u8], round: u64| {
            assert_eq!(volume.attributes(file).unwrap().size, expected.len() as u64, "{round}");
            let mut found = vec![1; expected.len()];
            assert_eq!(volume.read(file, 0, &mut found), Ok(found.len()));
            assert!(found == *expected, "{options:?}: {round}");
        };
        for round in 0..4000_u64 {
            let at = numbers.below(3000) * block + [0, 0, 1, block - 1][numbers.below(4) as usize];
            // At first mostly small pieces, which are then freed in large parts.
            let few = if round < 3000 { 12 } else { 2 };
            if numbers.below(few) > 1 {
                let bytes = vec![round as u8 | 1; (block * (1 + numbers.below(2))) as usize];
                volume.write(file, at, &bytes).unwrap();
                let end = at as usize + bytes.len();
                expected.resize(expected.len().max(end), 0);
                expected[at as usize..end].copy_from_slice(&bytes);
            } else {
                let length = [1, block, 3 * block + 5, 40 * block, 700 * block][numbers.below(5) as usize];
                let change = random::any_change(&mut numbers);
                assert_eq!(random::change_range(&mut volume, file, at..at + length, change), Ok(true));
                random::change_bytes(&mut expected, at as usize..(at + length) as usize, change);
            }
            if round % 500 == 499 {
                compare(&mut volume, &expected, round);
                volume.synchronise().unwrap();
                image.copy().check_replayed();
            }
        }
        end(volume, &image);
        let mut volume = mount(&image);
        compare(&mut volume, &expected, 4000);
        let whole = 0..expected.len() as u64;
        assert_eq!(random::change_range(&mut volume, file, whole, RangeChange::Punch), Ok(true));
        expected.fill(0);
        compare(&mut volume, &expected, 4001);
        volume.unlink(volume.root(), b"file").unwrap();
        while !volume.end_file(file).unwrap() {}
        end(volume, &image);
    }
}

/// The longest extent of written blocks is longer than the longest one of others.
#[test]
fn long_parts_are_cleared_and_freed() {
    const LENGTH: u64 = 44 << 20;
    let Some(image) = Image::make(64, &["-b", "1024", "-N", "256"]) else { return };
    let mut volume = mount(&image);
    let file = volume.create(volume.root(), b"file", FILE).unwrap().inode;
    let is_all = |volume: &mut ext4::Volume<Image>, byte: u8| {
        let mut found = vec![1; LENGTH as usize];
        assert_eq!(volume.read(file, 0, &mut found), Ok(found.len()));
        found.iter().all(|found| *found == byte)
    };
    assert_eq!(random::change_range(&mut volume, file, 0..LENGTH, RangeChange::Reserve(Growth::Grow)), Ok(true));
    assert!(is_all(&mut volume, 0));
    let sectors = volume.attributes(file).unwrap().sectors;
    assert!(sectors >= LENGTH / 512, "{sectors}");
    for at in (0..LENGTH).step_by(1 << 20) {
        volume.write(file, at, &vec![1; 1 << 20]).unwrap();
    }
    assert!(is_all(&mut volume, 1));
    volume.synchronise().unwrap();
    image.copy().check_replayed();
    assert_eq!(random::change_range(&mut volume, file, 0..LENGTH, RangeChange::Zero(Growth::Keep)), Ok(true));
    assert!(is_all(&mut volume, 0));
    assert!(volume.attributes(file).unwrap().sectors >= LENGTH / 512);
    volume.synchronise().unwrap();
    image.copy().check_replayed();
    assert_eq!(random::change_range(&mut volume, file, 0..LENGTH, RangeChange::Punch), Ok(true));
    assert!(is_all(&mut volume, 0));
    let file = volume.attributes(file).unwrap();
    assert_eq!((file.sectors, file.size), (0, LENGTH));
    end(volume, &image);
}

/// Blocks that were reserved can be written when no others are free, and a part for which there is no room is not
/// begun.
#[test]
fn reserved_blocks_are_there_when_the_volume_is_full() {
    let Some(image) = Image::make(8, &[]) else { return };
    let mut volume = mount(&image);
    let root = volume.root();
    let [file, other] = [b"a", b"b"].map(|name| volume.create(root, name, FILE).unwrap().inode);
    let (block, free) = (4096, volume.usage().unwrap().blocks.1);
    assert_eq!(volume.require_range(file, 0..(free + 1) * block), Err(Error::NoSpace));
    assert_eq!(volume.require_range(file, u64::MAX - 5..u64::MAX), Err(Error::TooLarge));
    assert_eq!(volume.require_range(root, 0..5), Err(Error::IsADirectory));
    let reserved = (free - 100) * block;
    assert_eq!(random::change_range(&mut volume, file, 0..reserved, RangeChange::Reserve(Growth::Keep)), Ok(true));
    let attributes = volume.attributes(file).unwrap();
    assert!(attributes.size == 0 && attributes.sectors >= reserved / 512);
    let mut written = 0;
    while volume.write(other, written * block, &[2; 4096]).is_ok() {
        written += 1;
    }
    assert_eq!(volume.write(other, written * block, &[2; 4096]), Err(Error::NoSpace));
    for number in 0..300_u64 {
        let at = number * 7919 % (reserved / block) * block + number;
        volume.write(file, at, &number.to_le_bytes()).unwrap();
        let mut found = [0; 8];
        volume.read(file, at, &mut found).unwrap();
        assert_eq!(found, number.to_le_bytes());
    }
    assert_eq!(volume.write(file, reserved, &[1]), Err(Error::NoSpace));
    volume.synchronise().unwrap();
    image.copy().check_replayed();
    // A length that is set, also the one that the file has, gives back what is behind it.
    volume.truncate(file, 4096).unwrap();
    assert!(volume.usage().unwrap().blocks.1 > free - 150);
    // A block of the file, and perhaps a node of its tree.
    assert!(volume.attributes(file).unwrap().sectors <= 16);
    end(volume, &image);
}
