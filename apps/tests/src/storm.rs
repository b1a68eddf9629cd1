//! Changes of a volume in a random order, each announced before it begins and acknowledged when it lasts: the part of
//! xtask that cuts the power off at random moments compares what is left with these lines.
//!
//! A *word* of a file is the number of the change that has written it, and its place in the file. So a word that came
//! from elsewhere is seen.

use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use core::ffi::CStr;

use abi_unix::types::{AT_REMOVEDIR, mapping, open, protection};
use abi_unix::{Errno, SystemCall};
use cops::system::{Result, file, memory, terminal};

use crate::harness::call;

/// Number of files that are changed.
const FILES: u64 = 8;
/// Bytes of the longest file, and of the longest change.
const LONGEST: u64 = 80_000;
const LONGEST_CHANGE: u64 = 24_000;
/// Changes of one boot have numbers from this one on, times its own.
const CHANGES_OF_A_BOOT: u64 = 100_000;

/// Random numbers (xorshift64*), which differ in each boot.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

fn words(change: u64, from: u64, length: u64) -> Vec<u8> {
    (from / 8..(from + length) / 8).flat_map(|place| (change << 32 | place).to_le_bytes()).collect()
}

fn path(name: &str) -> CString {
    CString::new(format!("/tmp/volume/{name}")).unwrap_or_default()
}

fn write(descriptor: i32, bytes: &[u8], offset: u64) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += file::write_at(descriptor, &bytes[done..], offset + done as u64)?;
    }
    Ok(())
}

fn synchronise(descriptor: i32) -> Result<()> {
    call(SystemCall::SynchroniseFile, [descriptor as usize, 0, 0, 0, 0, 0]).map(drop)
}

/// Has all names last.
fn synchronise_names() -> Result<()> {
    let directory = file::open(c"/tmp/volume", open::DIRECTORY, 0)?;
    synchronise(directory.raw())
}

/// Stores words to a mapping of a file, which is that long.
fn store(descriptor: i32, change: u64, from: u64, length: u64) -> Result<()> {
    let size = (from + length) as usize;
    let protection = protection::READ | protection::WRITE;
    // SAFETY: a mapping at an address of the kernel's choice overlaps nothing that exists.
    let start = unsafe { memory::map_with(0, size, protection, mapping::SHARED, descriptor, 0)? };
    for (index, byte) in words(change, from, length).into_iter().enumerate() {
        // SAFETY: the mapping is that long.
        unsafe { start.add(from as usize + index).write_volatile(byte) };
    }
    let lasting = call(SystemCall::SynchroniseMemory, [start.addr(), size, 4, 0, 0, 0]);
    // SAFETY: nothing of the mapping is used any more.
    unsafe { memory::unmap(start, size)? };
    lasting.map(drop)
}

/// A change: its letter, its files and its bytes.
fn change(number: u64, random: &mut Random) -> Result<()> {
    let (one, other) = (random.below(FILES), random.below(FILES));
    let from = random.below((LONGEST - LONGEST_CHANGE) / 8) * 8;
    let length = 8 + random.below(LONGEST_CHANGE / 8) * 8;
    let name = path(&format!("s{one}"));
    let begin = |letter: &str| {
        cops::println!("begin {number} {letter} {one} {other} {from} {length} .");
        // The cut may come after the first bytes on the disk and would take a line that has not left the machine yet.
        terminal::drain(1)
    };
    match random.below(16) {
        0..=4 => {
            begin("write")?;
            let file = file::open(&name, open::RDWR | open::CREAT, 0o644)?;
            write(file.raw(), &words(number, from, length), from)?;
            synchronise(file.raw())?;
        }
        5 | 6 => {
            begin("truncate")?;
            let file = file::open(&name, open::RDWR | open::CREAT, 0o644)?;
            file::truncate(file.raw(), from)?;
            synchronise(file.raw())?;
        }
        7 | 8 => {
            begin("unlink")?;
            accept(file::unlink(&name, 0), Errno::ENOENT)?;
            synchronise_names()?;
        }
        9 | 10 if one != other => {
            begin("rename")?;
            accept(file::rename(&name, &path(&format!("s{other}"))), Errno::ENOENT)?;
            synchronise_names()?;
        }
        11 | 12 => {
            begin("store")?;
            let file = file::open(&name, open::RDWR | open::CREAT, 0o644)?;
            file::truncate(file.raw(), from + length)?;
            store(file.raw(), number, from, length)?;
            synchronise(file.raw())?;
        }
        13 => {
            begin("replace")?;
            let new = path("new");
            let file = file::open(&new, open::RDWR | open::CREAT | open::TRUNC, 0o644)?;
            write(file.raw(), &words(number, 0, length), 0)?;
            synchronise(file.raw())?;
            file::rename(&new, &name)?;
            synchronise_names()?;
        }
        14 => {
            begin("directories")?;
            for index in 0..6 {
                accept(file::make_directory(&path(&format!("d{index}")), 0o755), Errno::EEXIST)?;
                accept(file::make_directory(&path(&format!("d{index}/inner")), 0o755), Errno::EEXIST)?;
            }
            for index in 0..6 {
                file::unlink(&path(&format!("d{index}/inner")), AT_REMOVEDIR)?;
                file::unlink(&path(&format!("d{index}")), AT_REMOVEDIR)?;
            }
        }
        _ => {
            // Changes that need not last, and of which nothing may be in other files.
            begin("noise")?;
            let noise = path(&format!("noise{one}"));
            let file = file::open(&noise, open::RDWR | open::CREAT | open::TRUNC, 0o644)?;
            write(file.raw(), &words(number, 0, length), 0)?;
            accept(file::unlink(&path(&format!("noise{other}")), 0), Errno::ENOENT)?;
        }
    }
    cops::println!("lasting {number}");
    Ok(())
}

fn accept(result: Result<()>, error: Errno) -> Result<()> {
    if result == Err(error) { Ok(()) } else { result }
}

/// Changes the volume of the first disk until the machine loses its power. Each boot has a number.
pub fn act(boot: u64) -> i32 {
    const AT: &CStr = c"/tmp/volume";
    let _ = file::make_directory(AT, 0o755);
    if let Err(error) = file::mount_device(c"/dev/vda", AT, c"ext4", 0) {
        cops::println!("the volume is not mounted: {error}");
        return 1;
    }
    let mut random = Random(boot.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for number in boot * CHANGES_OF_A_BOOT.. {
        if let Err(error) = change(number, &mut random) {
            cops::println!("change {number} has failed: {error}");
            return 1;
        }
    }
    0
}
