//! Damaged volumes: whatever an image says, it is refused or used, without a panic, a loop or a look beyond the device.

use std::cell::Cell;
use std::sync::OnceLock;

use ext4::{Access, Device, DeviceFailed, Growth, RangeChange, Volume};
use property::Numbers;

use crate::image::{Image, now};
use crate::{FILE, random};

/// Requests to the device in one attempt: more are a loop.
const MOST_REQUESTS: u32 = 200_000;

/// A disk that counts its requests.
#[derive(Clone)]
struct Counting<'a>(Image, &'a Cell<u32>);

impl Counting<'_> {
    fn count(&self) {
        self.1.set(self.1.get() + 1);
        assert!(self.1.get() < MOST_REQUESTS, "an endless loop");
    }
}

impl Device for Counting<'_> {
    fn bytes(&self) -> u64 {
        Device::bytes(&self.0)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceFailed> {
        self.count();
        self.0.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFailed> {
        self.count();
        self.0.write(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceFailed> {
        self.0.flush()
    }
}

/// Volumes with files: with checksums, and without, where damage gets further; one has a journal to be replayed.
/// Of each also the places where there is something.
fn volumes() -> &'static [(Vec<u8>, Vec<usize>)] {
    static VOLUMES: OnceLock<Vec<(Vec<u8>, Vec<usize>)>> = OnceLock::new();
    VOLUMES.get_or_init(|| {
        let mut volumes = Vec::new();
        for options in [&[][..], &["-O", "^metadata_csum"], &["-t", "ext3"]] {
            let Some(image) = Image::make(5, &[options, &["-N", "64"]].concat()) else { return volumes };
            let mut volume = crate::mount(&image);
            random::change(&mut volume, 9, 100);
            let directory = volume.make_directory(volume.root(), b"d", crate::DIRECTORY).unwrap().inode;
            for number in 0..20 {
                volume.create(directory, format!("{number}{}", "x".repeat(100)).as_bytes(), FILE).unwrap();
            }
            volume.synchronise().unwrap();
            let bytes = image.bytes();
            let used = (1024..bytes.len()).filter(|&at| bytes[at] != 0).collect();
            volumes.push((bytes, used));
        }
        volumes
    })
}

/// Looks at everything and changes something; all errors are fine.
fn use_everything(volume: &mut Volume<Counting<'_>>) {
    let mut left = vec![volume.root()];
    let mut seen = 0;
    while let Some(directory) = left.pop() {
        let mut place = 0;
        while let Ok(entries) = volume.list(directory, place, 16)
            && let Some(last) = entries.last()
            && seen < 300
        {
            place = last.next;
            for entry in &entries {
                seen += 1;
                let mut bytes = [0; 2000];
                let _ = volume.read(entry.inode, 500, &mut bytes);
                let _ = volume.read_link(entry.inode);
                let _ = volume.look_up(directory, &entry.name);
                for change in [RangeChange::Punch, RangeChange::Zero(Growth::Keep), RangeChange::Reserve(Growth::Grow)]
                {
                    let _ = volume.change_range(entry.inode, 5000..25_000, change);
                }
                if entry.kind == 4 && entry.name != b"." && entry.name != b".." {
                    left.push(entry.inode);
                }
            }
        }
        let _ = volume.create(directory, b"new", FILE).and_then(|file| volume.write(file.inode, 3000, &[1; 3000]));
        for name in [&b"new"[..], b"1-nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", b"d"] {
            if let Ok(gone) = volume.unlink(directory, name)
                && gone.is_nameless
            {
                let _ = volume.end_file(gone.inode);
            }
        }
    }
    let _ = volume.synchronise();
    let _ = volume.unmount();
}

#[test]
fn damaged_volumes_are_refused_or_used() {
    if volumes().is_empty() {
        return;
    }
    let seeds: [&[u8]; 3] = [&[0], &[1, 2, 30, 1, 255, 2, 9, 1, 1, 0], &[2, 1, 200, 1, 3]];
    property::fuzz("ext4", &seeds, |input| {
        let mut numbers = Numbers::new(input);
        let (whole, used) = &volumes()[usize::from(numbers.byte()) % volumes().len()];
        let mut bytes = whole.clone();
        while !numbers.is_empty() {
            let at = used[numbers.number() as usize % used.len()];
            bytes[at] = numbers.byte();
        }
        let requests = Cell::new(0);
        for access in [Access::Read, Access::Write] {
            requests.set(0);
            let device = Counting(Image::of(bytes.clone()), &requests);
            if let Ok(mut volume) = Volume::mount(device, now, access) {
                use_everything(&mut volume);
            }
        }
    });
}
