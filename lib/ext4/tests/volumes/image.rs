//! An image of a disk in memory, with the tools of e2fsprogs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use ext4::{Device, DeviceFailed, Stamp};

const SECTOR: usize = 512;

struct State {
    /// The bytes that a flush has made lasting.
    lasting: Vec<u8>,
    /// Sectors that were written since.
    pending: BTreeMap<usize, [u8; SECTOR]>,
    fails: bool,
    /// Number of writes until the power is cut.
    left: u64,
}

/// A disk in memory. Copies made by `clone` are the same disk.
#[derive(Clone)]
pub struct Image(Rc<RefCell<State>>);

pub fn now() -> Stamp {
    Stamp { seconds: 1_750_000_000, nanoseconds: 0 }
}

/// Returns whether the tools are missing, and says so.
pub fn are_tools_missing() -> bool {
    let is_missing = Command::new("/usr/sbin/mke2fs").arg("-V").output().is_err();
    if is_missing {
        eprintln!("left out: mke2fs and e2fsck of e2fsprogs are not installed");
    }
    is_missing
}

/// Returns the path of a file of its own.
fn path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("cops-ext4-{}-{number}", std::process::id()))
}

impl Image {
    /// Makes a disk of these bytes.
    pub fn of(bytes: Vec<u8>) -> Image {
        let state = State { lasting: bytes, pending: BTreeMap::new(), fails: false, left: u64::MAX };
        Image(Rc::new(RefCell::new(state)))
    }

    /// Has `mke2fs` make a volume of so many MiB; `None` without the tools.
    pub fn make(mebibytes: u64, options: &[&str]) -> Option<Image> {
        if are_tools_missing() {
            return None;
        }
        let path = path();
        let mut command = Command::new("/usr/sbin/mke2fs");
        if !options.contains(&"-t") {
            command.args(["-t", "ext4"]);
        }
        if !options.contains(&"-b") {
            // As of a disk of a usual size.
            command.args(["-b", "4096"]);
        }
        let made = command.args(["-q", "-F"]).args(options).arg(&path).arg(format!("{mebibytes}M")).output().unwrap();
        assert!(made.status.success(), "{options:?}: {}", String::from_utf8_lossy(&made.stderr));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        Some(Image::of(bytes))
    }

    /// Returns another disk with the same bytes.
    pub fn copy(&self) -> Image {
        Image::of(self.bytes())
    }

    /// Returns all bytes that were written.
    pub fn bytes(&self) -> Vec<u8> {
        let state = self.0.borrow();
        let mut bytes = state.lasting.clone();
        for (sector, written) in &state.pending {
            bytes[sector * SECTOR..][..SECTOR].copy_from_slice(written);
        }
        bytes
    }

    /// Changes bytes behind everybody's back.
    pub fn change(&self, at: usize, bytes: &[u8]) {
        self.0.borrow_mut().lasting[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn fail_writes(&self, fails: bool) {
        self.0.borrow_mut().fails = fails;
    }

    /// Cuts the power after so many writes.
    pub fn cut_after(&self, writes: u64) {
        self.0.borrow_mut().left = writes;
    }

    pub fn is_cut(&self) -> bool {
        self.0.borrow().left == 0
    }

    /// Returns a disk as a power cut leaves it: each sector that was written since the last flush is there or not.
    pub fn after_the_cut(&self, mut is_there: impl FnMut() -> bool) -> Image {
        let state = self.0.borrow();
        let mut bytes = state.lasting.clone();
        for (sector, written) in &state.pending {
            if is_there() {
                bytes[sector * SECTOR..][..SECTOR].copy_from_slice(written);
            }
        }
        Image::of(bytes)
    }

    /// Returns the numbers of a file's blocks, in their order; `<8>` is the journal.
    pub fn blocks_of(&self, file: &str) -> Vec<usize> {
        let path = path();
        std::fs::write(&path, self.bytes()).unwrap();
        let shown = Command::new("/usr/sbin/debugfs").args(["-R", &format!("blocks {file}")]).arg(&path).output();
        std::fs::remove_file(&path).unwrap();
        String::from_utf8(shown.unwrap().stdout)
            .unwrap()
            .split_whitespace()
            .map(|block| block.parse().unwrap())
            .collect()
    }

    /// Has `debugfs` copy all files to a folder of the computer, reads them with this function, and removes them.
    pub fn dump<R>(&self, read: impl FnOnce(&std::path::Path) -> R) -> R {
        let (image, folder) = (path(), path());
        std::fs::write(&image, self.bytes()).unwrap();
        std::fs::create_dir(&folder).unwrap();
        let command = format!("rdump / {}", folder.display());
        let dumped = Command::new("/usr/sbin/debugfs").args(["-R", &command]).arg(&image).output().unwrap();
        assert!(dumped.status.success());
        let outcome = read(&folder);
        std::fs::remove_file(&image).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        outcome
    }

    /// Has a program of e2fsprogs change a copy; returns that.
    pub fn changed_by(&self, program: &str, options: &[&str]) -> Image {
        let path = path();
        std::fs::write(&path, self.bytes()).unwrap();
        let done = Command::new(format!("/usr/sbin/{program}")).args(options).arg(&path).output().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // 1: it has changed something.
        assert!(matches!(done.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&done.stdout));
        Image::of(bytes)
    }

    /// Fails unless `e2fsck` replays the journal of a copy and finds nothing else.
    pub fn check_replayed(&self) {
        let path = path();
        std::fs::write(&path, self.bytes()).unwrap();
        let replayed = Command::new("/usr/sbin/e2fsck").arg("-p").arg(&path).output().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // 1: it has changed something.
        assert!(matches!(replayed.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&replayed.stdout));
        Image::of(bytes).check();
    }

    /// Fails unless `e2fsck` finds nothing to say.
    pub fn check(&self) {
        let path = path();
        std::fs::write(&path, self.bytes()).unwrap();
        let checked = Command::new("/usr/sbin/e2fsck").args(["-f", "-n"]).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&checked.stdout).into_owned();
        std::fs::remove_file(&path).unwrap();
        assert!(checked.status.success(), "{text}{}", String::from_utf8_lossy(&checked.stderr));
    }
}

impl Device for Image {
    fn bytes(&self) -> u64 {
        self.0.borrow().lasting.len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceFailed> {
        let state = self.0.borrow();
        let offset = offset as usize;
        bytes.copy_from_slice(&state.lasting[offset..offset + bytes.len()]);
        for (sector, piece) in (offset / SECTOR..).zip(bytes.chunks_mut(SECTOR)) {
            if let Some(written) = state.pending.get(&sector) {
                piece.copy_from_slice(&written[..piece.len()]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFailed> {
        let mut state = self.0.borrow_mut();
        if state.fails || state.left == 0 {
            return Err(DeviceFailed);
        }
        state.left -= 1;
        assert!(offset as usize + bytes.len() <= state.lasting.len());
        for (sector, piece) in (offset as usize / SECTOR..).zip(bytes.chunks_exact(SECTOR)) {
            state.pending.insert(sector, piece.try_into().unwrap());
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceFailed> {
        let mut state = self.0.borrow_mut();
        if state.fails || state.left == 0 {
            return Err(DeviceFailed);
        }
        for (sector, written) in std::mem::take(&mut state.pending) {
            state.lasting[sector * SECTOR..][..SECTOR].copy_from_slice(&written);
        }
        Ok(())
    }
}
