//! Random operations, compared with a model in memory; and power cuts among them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ext4::{Access, Device, Error, Growth, RangeChange, Replacement, Volume, kind};

use crate::image::{Image, now};
use crate::{DIRECTORY, FILE, end, mount};

/// A row of numbers that only looks random.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// A file or directory of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    File(Vec<u8>),
    Directory(BTreeMap<u64, Item>),
}

pub type Names = BTreeMap<u64, Item>;

pub fn name(number: u64) -> Vec<u8> {
    format!("{number}-{}", "n".repeat((number * 37 % 90) as usize)).into_bytes()
}

fn finish<D: Device>(volume: &mut Volume<D>, nameless: Option<u32>) -> Result<(), Error> {
    while let Some(inode) = nameless {
        if volume.end_file(inode)? {
            break;
        }
    }
    Ok(())
}

/// Returns a change of a part of a file.
pub fn any_change(numbers: &mut Numbers) -> RangeChange {
    let growth = [Growth::Keep, Growth::Grow][numbers.below(2) as usize];
    [RangeChange::Reserve(growth), RangeChange::Zero(growth), RangeChange::Punch][numbers.below(3) as usize]
}

/// Changes a part of a file, in as many steps as that takes; returns whether the volume can.
pub fn change_range<D: Device>(
    volume: &mut Volume<D>,
    inode: u32,
    range: Range<u64>,
    change: RangeChange,
) -> Result<bool, Error> {
    match volume.require_range(inode, range.clone()) {
        Err(Error::Unsupported) => {
            assert_eq!(volume.change_range(inode, range, change), Err(Error::Unsupported));
            return Ok(false);
        }
        outcome => outcome?,
    }
    let mut from = range.start;
    while from < range.end {
        let reached = volume.change_range(inode, from..range.end, change)?;
        assert!(reached > from && reached <= range.end);
        from = reached;
    }
    Ok(true)
}

/// Changes a part of the bytes of a file in the same way.
pub fn change_bytes(bytes: &mut Vec<u8>, range: Range<usize>, change: RangeChange) {
    if !matches!(change, RangeChange::Reserve(_)) {
        let length = bytes.len();
        bytes[range.start.min(length)..range.end.min(length)].fill(0);
    }
    if matches!(change, RangeChange::Reserve(Growth::Grow) | RangeChange::Zero(Growth::Grow)) {
        bytes.resize(bytes.len().max(range.end), 0);
    }
}

/// A name, after that of its directory; the root is [`ROOT`].
type Place = (u64, u64);

const ROOT: u64 = u64::MAX;

/// The state that was synchronised last, and the names that operations have touched since.
#[derive(Default)]
pub struct Progress {
    pub lasting: Names,
    touched: BTreeSet<Place>,
}

/// Does one operation with a volume and the model, after the names that it may touch were noted; an error is the
/// device's.
fn step<D: Device>(
    volume: &mut Volume<D>,
    model: &mut Names,
    numbers: &mut Numbers,
    touched: &mut BTreeSet<Place>,
) -> Result<(), Error> {
    // Two levels: the root, or one of its directories.
    let outer = numbers.below(6);
    let (directory, names) = match model.get_mut(&outer) {
        Some(Item::Directory(_)) if numbers.below(4) > 0 => {
            let directory = volume.look_up(volume.root(), &name(outer))?.expect("a directory of the model").inode;
            let Some(Item::Directory(names)) = model.get_mut(&outer) else { unreachable!() };
            (directory, names)
        }
        _ => (volume.root(), &mut *model),
    };
    let number = numbers.below(40);
    let own = name(number);
    let is_root = directory == volume.root();
    let place = if is_root { ROOT } else { outer };
    touched.extend([(place, number), (ROOT, outer)].into_iter().take(1 + usize::from(is_root)));
    match numbers.below(14) {
        0 | 1 => match names.contains_key(&number) {
            true => assert_eq!(volume.create(directory, &own, FILE), Err(Error::AlreadyExists)),
            false => {
                volume.create(directory, &own, FILE)?;
                names.insert(number, Item::File(Vec::new()));
            }
        },
        2 if is_root && !names.contains_key(&outer) => {
            volume.make_directory(directory, &name(outer), DIRECTORY)?;
            names.insert(outer, Item::Directory(BTreeMap::new()));
        }
        3 | 4 => match names.get(&number) {
            None => assert_eq!(volume.unlink(directory, &own), Err(Error::NotFound)),
            Some(Item::File(_)) => {
                let gone = volume.unlink(directory, &own)?;
                let nameless = gone.is_nameless.then_some(gone.inode);
                names.remove(&number);
                finish(volume, nameless)?;
            }
            Some(Item::Directory(inner)) if inner.is_empty() => {
                let nameless = volume.remove_directory(directory, &own)?;
                names.remove(&number);
                finish(volume, nameless)?;
            }
            Some(Item::Directory(_)) => {
                assert_eq!(volume.remove_directory(directory, &own), Err(Error::NotEmpty));
            }
        },
        5 | 6 => {
            let other = numbers.below(40);
            touched.insert((place, other));
            let is_file = |item: Option<&Item>| matches!(item, Some(Item::File(_)) | None);
            if is_file(names.get(&number)) && is_file(names.get(&other)) {
                let from = (directory, &own[..]);
                let renamed = volume.rename(from, (directory, &name(other)), Replacement::Replace);
                match names.get(&number).cloned() {
                    None => assert_eq!(renamed, Err(Error::NotFound)),
                    Some(item) => {
                        let nameless = renamed?;
                        names.remove(&number);
                        names.insert(other, item);
                        finish(volume, nameless)?;
                    }
                }
            }
        }
        7 => {
            if let Some(Item::File(bytes)) = names.get_mut(&number) {
                let length = [0, 1, 1024, 4096, 10_000, 200_000][numbers.below(6) as usize] + numbers.below(3) as usize;
                let inode = volume.look_up(directory, &own)?.expect("a file of the model").inode;
                volume.truncate(inode, length as u64)?;
                bytes.resize(length, 0);
            }
        }
        8 | 9 => {
            if let Some(Item::File(bytes)) = names.get_mut(&number) {
                let at = [0, 1000, 4096, 8192, bytes.len(), 60_000][numbers.below(6) as usize];
                let range = at..at + [1, 511, 4096, 8192, 20_000][numbers.below(5) as usize];
                let change = any_change(numbers);
                let inode = volume.look_up(directory, &own)?.expect("a file of the model").inode;
                if change_range(volume, inode, range.start as u64..range.end as u64, change)? {
                    change_bytes(bytes, range, change);
                }
            }
        }
        _ => {
            if let Some(Item::File(bytes)) = names.get_mut(&number) {
                let at = [0, 1000, 4095, 8192, bytes.len(), 60_000][numbers.below(6) as usize];
                let length = [1, 511, 1024, 5000, 16_384][numbers.below(5) as usize];
                let written: Vec<u8> = (0..length).map(|index| (index as u64 + number) as u8).collect();
                let inode = volume.look_up(directory, &own)?.expect("a file of the model").inode;
                volume.write(inode, at as u64, &written)?;
                bytes.resize(bytes.len().max(at + length), 0);
                bytes[at..at + length].copy_from_slice(&written);
            }
        }
    }
    Ok(())
}

/// Fails unless a directory has exactly these names and contents.
pub fn compare<D: Device>(volume: &mut Volume<D>, directory: u32, names: &Names) {
    let (mut listed, mut place) = (Vec::new(), 0);
    loop {
        let entries = volume.list(directory, place, 7).unwrap();
        let Some(last) = entries.last() else { break };
        place = last.next;
        listed.extend(entries.into_iter().map(|entry| entry.name));
    }
    listed.retain(|name| name != b"." && name != b".." && name != b"lost+found");
    let mut expected: Vec<_> = names.keys().map(|number| name(*number)).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for (number, item) in names {
        let file = volume.look_up(directory, &name(*number)).unwrap().expect("it is listed");
        match item {
            Item::Directory(inner) => {
                assert!(file.is(kind::DIRECTORY));
                compare(volume, file.inode, inner);
            }
            Item::File(bytes) => {
                assert_eq!(file.size, bytes.len() as u64);
                let mut found = vec![0; bytes.len() + 1];
                assert_eq!(volume.read(file.inode, 0, &mut found), Ok(bytes.len()));
                assert!(found[..bytes.len()] == bytes[..], "contents of {number}");
            }
        }
    }
}

/// Does random operations with an empty volume. Ends early when the power is cut.
pub fn change<D: Device>(volume: &mut Volume<D>, seed: u64, count: u64) -> Progress {
    let (mut model, mut numbers) = (Names::new(), Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
    let mut progress = Progress::default();
    for number in 0..count {
        match step(volume, &mut model, &mut numbers, &mut progress.touched) {
            Ok(()) => {}
            Err(Error::Device | Error::ReadOnly) => return progress,
            Err(error) => panic!("seed {seed}, step {number}: {error:?}"),
        }
        if numbers.below(20) == 0 {
            match volume.synchronise() {
                Ok(()) => progress = Progress { lasting: model.clone(), touched: BTreeSet::new() },
                Err(Error::Device | Error::ReadOnly) => return progress,
                Err(error) => panic!("seed {seed}, step {number}: {error:?}"),
            }
        }
    }
    compare(volume, volume.root(), &model);
    match volume.synchronise() {
        Ok(()) => Progress { lasting: model, touched: BTreeSet::new() },
        Err(_) => progress,
    }
}

/// Number of times that a test is tried.
fn times(usual: u64) -> u64 {
    property::cases(usual as u32).cases.into()
}

#[test]
fn random_operations_leave_what_the_model_has() {
    for seed in 1..=times(4) {
        let Some(image) = Image::make(16, &[]) else { return };
        let mut volume = mount(&image);
        change(&mut volume, seed, 1500);
        end(volume, &image);
    }
}

/// After a cut at any write, the journal is replayed, the volume is whole, and every name that no operation has touched
/// since all was synchronised is there, with its contents.
#[test]
fn power_cuts_lose_nothing_that_was_synchronised() {
    let (mut cuts, mut kept) = (0, 0);
    for seed in 1..=times(16) {
        let Some(image) = Image::make(8, &[]) else { return };
        let mut numbers = Numbers(seed * 77_777 + 5);
        let mut volume = mount(&image);
        image.cut_after(20 + numbers.below(1500));
        let progress = change(&mut volume, seed, 600);
        cuts += u64::from(image.is_cut());
        drop(volume);
        let cut = image.after_the_cut(|| numbers.below(2) == 0);
        let volume = Volume::mount(cut.clone(), now, Access::Write);
        let mut volume = volume.unwrap_or_else(|refusal| panic!("seed {seed}: {refusal}"));
        let root = volume.root();
        for (number, item) in &progress.lasting {
            if !progress.touched.contains(&(ROOT, *number)) {
                kept += 1;
                require(&mut volume, (root, *number), item, &progress.touched, seed);
            }
        }
        end(volume, &cut);
    }
    assert!(cuts > 0 && kept > 0, "{cuts} cuts, {kept} names");
}

/// Fails unless a name is as it was synchronised.
fn require<D: Device>(
    volume: &mut Volume<D>,
    (directory, number): (u32, u64),
    item: &Item,
    touched: &BTreeSet<Place>,
    seed: u64,
) {
    let found = volume.look_up(directory, &name(number)).unwrap();
    let found = found.unwrap_or_else(|| panic!("seed {seed}: {number} of {directory} is lost"));
    match item {
        Item::File(bytes) => {
            let mut read = vec![0; bytes.len() + 1];
            assert_eq!(volume.read(found.inode, 0, &mut read), Ok(bytes.len()), "seed {seed}: {number}");
            assert!(read[..bytes.len()] == bytes[..], "seed {seed}: contents of {number}");
        }
        Item::Directory(inner) => {
            for (inner, item) in inner.iter().filter(|(inner, _)| !touched.contains(&(number, **inner))) {
                require(volume, (found.inode, *inner), item, touched, seed);
            }
        }
    }
}
