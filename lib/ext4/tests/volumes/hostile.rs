//! Volumes that were damaged on purpose, at places where random damage seldom is, and devices that fail in the middle.

use std::cell::Cell;
use std::rc::Rc;

use ext4::{Access, AttributeMode, Device, DeviceFailed, Error, Stamp, Volume};

use crate::image::{Image, now};
use crate::{DIRECTORY, FILE, end, mount};

/// Nothing has a checksum, so that all damage is believed at first.
const WITHOUT_CHECKSUMS: &[&str] = &["-O", "^metadata_csum"];

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Returns the offset of a descriptor of a volume with wide ones and blocks of 4 KiB.
fn descriptor_at(group: usize) -> usize {
    4096 + group * 64
}

/// Returns the offset of an inode of the first group.
fn inode_at(image: &Image, number: u32) -> usize {
    let bytes = image.bytes();
    let (first, block) = if word(&bytes, 1024 + 24) == 0 { (2, 1024) } else { (1, 4096) };
    word(&bytes, first * block + 8) * block + (number as usize - 1) * 256
}

fn is_damage<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Damaged(_))), "{outcome:?}");
}

/// Values of attributes that lie one over the other have no room beside each other.
#[test]
fn values_of_attributes_over_each_other_are_damage() {
    let Some(image) = Image::make(8, WITHOUT_CHECKSUMS) else { return };
    let mut volume = mount(&image);
    let file = volume.create(volume.root(), b"file", FILE).unwrap().inode;
    let names = [b"user.a", b"user.b", b"user.c", b"user.d"];
    for name in names {
        volume.set_extended_attribute(file, name, b"", AttributeMode::Any).unwrap();
    }
    volume.unmount().unwrap();
    // Behind the fields and the magic number.
    let first = inode_at(&image, file) + 160 + 4;
    for number in 0..4 {
        image.change(first + number * 20 + 2, &[0, 0]);
        image.change(first + number * 20 + 8, &[88, 0, 0, 0]);
    }
    let mut volume = mount(&image);
    assert_eq!(volume.extended_attribute(file, b"user.b").map(|value| value.len()), Ok(88));
    is_damage(volume.remove_extended_attribute(file, b"user.a"));
    is_damage(volume.set_extended_attribute(file, b"user.a", b"", AttributeMode::Any));
}

/// A leaf that says that it has room for nothing cannot be split.
#[test]
fn a_leaf_without_room_is_damage() {
    let Some(image) = Image::make(8, WITHOUT_CHECKSUMS) else { return };
    let mut volume = mount(&image);
    let file = volume.create(volume.root(), b"file", FILE).unwrap().inode;
    for number in 0..8 {
        volume.write(file, number * 8192, b"text").unwrap();
    }
    volume.unmount().unwrap();
    let leaf = word(&image.bytes(), inode_at(&image, file) + 40 + 12 + 4) * 4096;
    assert_eq!(image.bytes()[leaf..leaf + 2], [0x0a, 0xf3]);
    for most in 0..4 {
        image.change(leaf + 2, &[most, 0, most, 0]);
        let mut volume = mount(&image);
        is_damage(volume.write(file, 100 << 12, b"text"));
    }
}

/// Places and counts at the end of their numbers are damage.
#[test]
fn numbers_at_their_ends_are_damage() {
    let Some(image) = Image::make(8, WITHOUT_CHECKSUMS) else { return };
    let mut volume = mount(&image);
    let root = volume.root();
    let file = volume.create(root, b"file", FILE).unwrap().inode;
    volume.write(file, 0, &[1; 8192]).unwrap();
    let directory = volume.make_directory(root, b"d", DIRECTORY).unwrap().inode;
    volume.unmount().unwrap();
    for (low, high) in [(0, 32), (4, 36), (8, 40)] {
        let image = image.copy();
        for at in [low, high] {
            image.change(descriptor_at(0) + at, &[0xff; 4]);
        }
        for access in [Access::Read, Access::Write] {
            assert!(Volume::mount(image.copy(), now, access).is_err());
        }
    }
    let copy = image.copy();
    for at in [12, 44] {
        copy.change(descriptor_at(0) + at, &[0xff; 2]);
    }
    is_damage(mount(&copy).truncate(file, 0));
    // A number of names after which no other one comes.
    image.change(inode_at(&image, directory) + 26, &[0xff; 2]);
    let mut volume = mount(&image);
    volume.make_directory(directory, b"inner", DIRECTORY).unwrap();
    assert_eq!(volume.attributes(directory).unwrap().links, 1, "they are not counted any more");
}

/// The root and the file system's own files are not ended, whatever the list of files without names says.
#[test]
fn own_files_in_the_list_of_those_without_names_are_damage() {
    let Some(image) = Image::make(8, WITHOUT_CHECKSUMS) else { return };
    for inode in [2_u8, 7, 8] {
        let image = image.copy();
        image.change(1024 + 232, &[inode, 0, 0, 0]);
        image.change(inode_at(&image, inode.into()) + 26, &[0; 2]);
        assert!(Volume::mount(image, now, Access::Write).is_err(), "{inode}");
    }
}

/// Blocks of numbers count as those of the file: a map of nothing else goes in steps, too.
#[test]
fn a_map_of_empty_maps_is_freed_in_steps() {
    let Some(image) = Image::make(8, &["-t", "ext3", "-b", "1024", "-I", "256"]) else { return };
    let mut volume = mount(&image);
    let file = volume.create(volume.root(), b"file", FILE).unwrap().inode;
    volume.write(file, 0, &[0; 300 << 10]).unwrap();
    volume.unmount().unwrap();
    let blocks = image.blocks_of("/file");
    let at = inode_at(&image, file) + 40;
    assert_eq!(blocks[12], word(&image.bytes(), at + 12 * 4), "of direct ones, then one of numbers");
    // A block with 256 numbers of blocks that have none.
    let numbers: Vec<u8> = blocks[20..220].iter().flat_map(|block| (*block as u32).to_le_bytes()).collect();
    image.change(blocks[13] * 1024, &numbers);
    image.change(at, &[0; 60]);
    image.change(at + 13 * 4, &(blocks[13] as u32).to_le_bytes());
    let mut volume = mount(&image);
    let gone = volume.unlink(volume.root(), b"file").unwrap();
    assert_eq!(volume.end_file(gone.inode), Ok(false));
    assert_eq!(volume.end_file(gone.inode), Ok(true));
}

/// Blocks of a hundred groups have a hundred bitmaps: they are not freed in one step.
#[test]
fn blocks_of_many_groups_are_freed_in_steps() {
    let Some(image) =
        Image::make(40, &["-b", "1024", "-g", "256", "-N", "2600", "-O", "^resize_inode", "-J", "size=1"])
    else {
        return;
    };
    let mut volume = mount(&image);
    let file = volume.create(volume.root(), b"file", FILE).unwrap().inode;
    let piece = vec![1; 1 << 20];
    for number in 0..34 {
        volume.write(file, number << 20, &piece).unwrap();
        volume.synchronise().unwrap();
    }
    let gone = volume.unlink(volume.root(), b"file").unwrap();
    assert_eq!(volume.end_file(gone.inode), Ok(false));
    while !volume.end_file(gone.inode).unwrap() {}
    end(volume, &image);
}

/// A machine without a clock begins in 1970, and `e2fsck` has nothing to say about files that it has ended.
#[test]
fn files_end_in_1970() {
    let Some(image) = Image::make(8, &[]) else { return };
    let early = || Stamp { seconds: 1, nanoseconds: 0 };
    let mut volume = Volume::mount(image.clone(), early, Access::Write).unwrap();
    let root = volume.root();
    for name in [b"a", b"b", b"c"] {
        volume.create(root, name, FILE).unwrap();
    }
    for name in [b"a", b"b"] {
        let gone = volume.unlink(root, name).unwrap();
        assert_eq!(volume.end_file(gone.inode), Ok(true));
    }
    end(volume, &image);
}

/// A device that counts pauses, and bytes that are read.
#[derive(Clone)]
struct Paused(Image, Rc<Cell<u32>>, Rc<Cell<usize>>);

impl Device for Paused {
    fn bytes(&self) -> u64 {
        Device::bytes(&self.0)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceFailed> {
        self.2.set(self.2.get() + bytes.len());
        self.0.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFailed> {
        self.0.write(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceFailed> {
        self.0.flush()
    }

    fn pause(&self) {
        self.1.set(self.1.get() + 1);
    }
}

/// A look at a large directory without an index lets others go on.
#[test]
fn looks_at_large_directories_pause() {
    let Some(image) = Image::make(16, &["-O", "^dir_index"]) else { return };
    let pauses = Rc::new(Cell::new(0));
    let mut volume = Volume::mount(Paused(image, pauses.clone(), Rc::default()), now, Access::Write).unwrap();
    let directory = volume.make_directory(volume.root(), b"d", DIRECTORY).unwrap().inode;
    for number in 0..800 {
        let name = format!("{number}-{}", "n".repeat(240)).into_bytes();
        volume.make_symbolic_link(directory, &name, b"target", (0, 0)).unwrap();
    }
    let blocks = (volume.attributes(directory).unwrap().size / 4096) as u32;
    assert!(blocks > 48, "{blocks}");
    let mut pauses_of = |act: &mut dyn FnMut(&mut Volume<Paused>)| {
        pauses.set(0);
        act(&mut volume);
        pauses.get()
    };
    assert!(pauses_of(&mut |volume| assert_eq!(volume.look_up(directory, b"missing"), Ok(None))) >= blocks / 8);
    for number in 0..800 {
        let name = format!("{number}-{}", "n".repeat(240)).into_bytes();
        pauses_of(&mut |volume| assert!(volume.unlink(directory, &name).is_ok()));
    }
    assert!(pauses_of(&mut |volume| assert_eq!(volume.list(directory, 0, 9).unwrap().len(), 2)) >= blocks / 8);
    let root = volume.root();
    pauses.set(0);
    volume.remove_directory(root, b"d").unwrap();
    assert!(pauses.get() >= blocks / 8);
}

/// A new file needs no block of inodes from the device in which there is no other file.
#[test]
fn blocks_of_new_inodes_are_not_read() {
    for options in [&[][..], &["-b", "1024", "-N", "1001"], &["-I", "1024"], WITHOUT_CHECKSUMS] {
        let Some(image) = Image::make(16, options) else { return };
        let read = Rc::new(Cell::new(0));
        let device = Paused(image.clone(), Rc::default(), read.clone());
        let mut volume = Volume::mount(device, now, Access::Write).unwrap();
        let root = volume.root();
        volume.create(root, b"first", FILE).unwrap();
        read.set(0);
        let numbers: Vec<u32> = (0..200)
            .map(|number| volume.create(root, format!("file-{number}").as_bytes(), FILE).unwrap().inode)
            .collect();
        assert!(read.get() < 20_000, "{options:?}: {} bytes", read.get());
        volume.synchronise().unwrap();
        // Blocks with other files are.
        for number in (0..200).filter(|number| number % 3 > 0) {
            let gone = volume.unlink(root, format!("file-{number}").as_bytes()).unwrap();
            while !volume.end_file(gone.inode).unwrap() {}
        }
        volume.unmount().unwrap();
        let mut volume = mount(&image);
        for number in 0..50 {
            volume.create(root, format!("new-{number}").as_bytes(), FILE).unwrap();
        }
        for number in (0..200).step_by(3) {
            let found = volume.look_up(root, format!("file-{number}").as_bytes()).unwrap().unwrap();
            assert_eq!((found.inode, found.mode & 0o777), (numbers[number], 0o644));
        }
        end(volume, &image);
    }
}

/// At whatever write of a mount the power is cut, and whichever of its writes are there, `e2fsck` finds a whole volume.
#[test]
fn a_mount_can_be_cut_off_at_any_write() {
    let Some(image) = Image::make(8, &[]) else { return };
    let mut volume = mount(&image);
    volume.create(volume.root(), b"file", FILE).unwrap();
    volume.unmount().unwrap();
    for writes in 0.. {
        let cut = image.copy();
        cut.cut_after(writes);
        let mounted = Volume::mount(cut.clone(), now, Access::Write);
        let is_cut = cut.is_cut();
        drop(mounted);
        // Of two writes that nothing orders, each may be there without the other.
        for there in 0..4_u32 {
            let mut number = 0;
            let after = cut.after_the_cut(|| {
                // Each superblock has two sectors.
                let write = number / 2;
                number += 1;
                there >> (write % 2) & 1 == 1
            });
            after.check_replayed();
        }
        if !is_cut {
            return;
        }
    }
}

/// A volume whose end fails, at whatever write, takes no changes any more: its log may have ended.
#[test]
fn a_volume_whose_end_fails_takes_no_changes() {
    let Some(image) = Image::make(8, &[]) else { return };
    for writes in 0.. {
        let image = image.copy();
        let mut volume = mount(&image);
        let root = volume.root();
        volume.create(root, b"file", FILE).unwrap();
        volume.synchronise().unwrap();
        image.cut_after(writes);
        if volume.remount(Access::Read).is_ok() {
            assert!(writes > 2);
            return;
        }
        image.cut_after(u64::MAX);
        assert_eq!(volume.create(root, b"new", FILE), Err(Error::ReadOnly), "after {writes} writes");
        assert_eq!(volume.remount(Access::Write), Ok(()), "after {writes} writes");
        volume.create(root, b"new", FILE).unwrap();
        end(volume, &image);
    }
}
