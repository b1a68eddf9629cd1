//! A folder of the host: an act of the first process of a machine that has one, which the chore checks from outside.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;

use abi_unix::types::{AT_FDCWD, AT_REMOVEDIR, mapping, mode, open, protection};
use abi_unix::{Errno, SystemCall};
use cops::process::{Command, Ending};
use cops::system::{Descriptor, file, memory};
use cops::time::Duration;

use crate::harness;

/// Bytes of the large file, more than a message has.
const LARGE: usize = 300_000;

/// Returns the byte at a place of the large file.
fn byte(at: usize) -> u8 {
    (at / 7 + at / 65_521) as u8
}

/// Returns the line of the first step that was not as it has to be.
pub async fn act() -> i32 {
    match use_folder().await {
        Ok(()) => {
            cops::println!("the folder is right");
            0
        }
        Err(line) => {
            cops::println!("the folder is wrong: line {line}");
            1
        }
    }
}

/// Fails with the line unless a condition holds.
macro_rules! holds {
    ($condition:expr) => {
        if !$condition {
            return Err(line!());
        }
    };
}

/// Returns a value, or fails with the line.
macro_rules! value {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => {
                cops::println!("{error:?}");
                return Err(line!());
            }
        }
    };
}

fn names(path: &CStr) -> cops::system::Result<Vec<String>> {
    let directory = file::open(path, open::DIRECTORY, 0)?;
    let (mut names, mut buffer) = (Vec::new(), vec![0; 512]);
    loop {
        let count = file::read_directory(directory.raw(), &mut buffer)?;
        if count == 0 {
            names.sort();
            return Ok(names);
        }
        let mut at = 0;
        while at < count {
            let length = usize::from(u16::from_le_bytes([buffer[at + 16], buffer[at + 17]]));
            let name = buffer[at + 19..at + length].split(|byte| *byte == 0).next().unwrap_or_default();
            names.push(String::from_utf8_lossy(name).into_owned());
            at += length;
        }
    }
}

fn synchronise(file: &Descriptor) -> cops::system::Result<usize> {
    harness::call(SystemCall::SynchroniseFile, [file.raw() as usize, 0, 0, 0, 0, 0])
}

async fn use_folder() -> Result<(), u32> {
    // Files that the host has put there.
    holds!(value!(cops::file::read("/host/given").await) == b"by the host");
    holds!(value!(cops::file::read("/host/below/link").await) == b"by the host");
    let status = value!(file::status_at(c"/host/given", 0));
    holds!((status.size, status.mode & !0o7777) == (11, mode::REGULAR));
    let absent = file::open(c"/host/absent", 0, 0).map(drop);
    holds!(absent == Err(Errno::ENOENT));
    let child = value!(Command::new("/host/program").argument("--act").argument("end-on-volume").spawn());
    holds!(child.wait().await == Ok(Ending::Exited(0)));
    // Files and directories that are made, changed and removed.
    value!(file::make_directory(c"/host/made", 0o750));
    holds!(file::make_directory(c"/host/made", 0o750) == Err(Errno::EEXIST));
    let bytes: Vec<u8> = (0..LARGE).map(byte).collect();
    value!(cops::file::write("/host/made/large", bytes.clone()).await);
    holds!(value!(cops::file::read("/host/made/large").await) == bytes);
    let large = value!(file::open(c"/host/made/large", open::RDWR, 0));
    holds!(file::write_at(large.raw(), b"changed", 100_000) == Ok(7));
    value!(file::truncate(large.raw(), 200_000));
    holds!(value!(file::status(large.raw())).size == 200_000);
    holds!(synchronise(&large) == Ok(0));
    let appended = value!(file::open(c"/host/made/large", open::WRONLY | open::APPEND, 0));
    holds!(file::write(appended.raw(), b"end") == Ok(3));
    drop(appended);
    let mut end = [0; 8];
    holds!(file::read_at(large.raw(), &mut end, 199_998) == Ok(5) && &end[2..5] == b"end");
    // A mapping sees the bytes, and what is stored to it reaches the host.
    let (access, descriptor) = (protection::READ | protection::WRITE, large.raw());
    // SAFETY: a mapping at an address of the kernel's choice overlaps nothing that exists.
    let start = value!(unsafe { memory::map_with(0, 8192, access, mapping::SHARED, descriptor, 0) });
    // SAFETY: the mapping is that long.
    let (first, last) = unsafe { (start.read_volatile(), start.add(8191).read_volatile()) };
    holds!((first, last) == (byte(0), byte(8191)));
    // SAFETY: as above.
    unsafe { start.add(5000).write_volatile(0xee) };
    holds!(synchronise(&large) == Ok(0));
    // SAFETY: nothing uses it any more.
    value!(unsafe { memory::unmap(start, 8192) });
    // Names.
    value!(cops::file::write("/host/made/old", b"moved".to_vec()).await);
    value!(cops::file::write("/host/made/replaced", b"gone".to_vec()).await);
    let replaced = value!(file::open(c"/host/made/replaced", 0, 0));
    value!(file::rename(c"/host/made/old", c"/host/made/replaced"));
    let mut found = [0; 8];
    holds!(file::read_at(replaced.raw(), &mut found, 0) == Ok(4) && &found[..4] == b"gone");
    drop(replaced);
    holds!(value!(cops::file::read("/host/made/replaced").await) == b"moved");
    holds!(value!(names(c"/host/made")) == [".", "..", "large", "replaced"]);
    holds!(file::unlink(c"/host/made", AT_REMOVEDIR) == Err(Errno::ENOTEMPTY));
    // A file lives until its last use.
    let nameless = value!(file::open(c"/host/nameless", open::CREAT | open::RDWR, 0o600));
    value!(file::unlink(c"/host/nameless", 0));
    holds!(file::write(nameless.raw(), b"without a name") == Ok(14));
    holds!(file::read_at(nameless.raw(), &mut found, 8) == Ok(6) && &found[..6] == b"a name");
    holds!(value!(file::status(nameless.raw())).links == 0);
    value!(file::truncate(nameless.raw(), 7));
    holds!(file::write_at(nameless.raw(), b".", 9) == Ok(1));
    holds!(file::read_at(nameless.raw(), &mut found, 4) == Ok(6) && &found[..6] == b"out\0\0.");
    drop(nameless);
    // Of two names one goes, and the file is still at the other.
    let named = value!(file::open(c"/host/made/one", open::CREAT | open::RDWR, 0o600));
    let (here, two) = (AT_FDCWD as usize, [c"/host/made/one", c"/host/made/two"].map(|name| name.as_ptr().addr()));
    holds!(harness::call(SystemCall::Link, [here, two[0], here, two[1], 0, 0]) == Ok(0));
    value!(file::unlink(c"/host/made/two", 0));
    value!(file::truncate(named.raw(), 5));
    holds!(value!(file::status_at(c"/host/made/one", 0)).size == 5);
    value!(file::unlink(c"/host/made/one", 0));
    drop(named);
    let directory = value!(file::open(c"/host/made", open::DIRECTORY, 0));
    holds!(synchronise(&directory) == Ok(0));
    drop(directory);
    for number in 0..300 {
        let path = alloc::format!("/host/made/{number:0100}");
        value!(cops::file::write(&path, vec![b'x'; number]).await);
    }
    holds!(value!(names(c"/host/made")).len() == 304);
    for number in 0..300 {
        value!(cops::file::remove(&alloc::format!("/host/made/{number:0100}")));
    }
    // The host renames a file that is open, changes one that is mapped, and makes another, when it has read this line.
    let log = value!(file::open(c"/host/log", open::CREAT | open::RDWR, 0o600));
    holds!(file::write(log.raw(), b"one ") == Ok(4));
    let end = value!(file::open(c"/host/log", open::WRONLY | open::APPEND, 0));
    let given = value!(file::open(c"/host/given", open::RDWR, 0));
    // SAFETY: a mapping at an address of the kernel's choice overlaps nothing that exists.
    let start = value!(unsafe { memory::map_with(0, 4096, access, mapping::SHARED, given.raw(), 0) }).addr();
    cops::println!("the host may change it");
    for turn in 0.. {
        if cops::file::read("/host/answer").await.is_ok_and(|found| found == b"changed by the host") {
            break;
        }
        holds!(turn < 1000);
        cops::sleep(Duration::from_millis(10)).await;
    }
    holds!(value!(cops::file::read("/host/given").await) == b"other bytes, and more of them");
    holds!(file::write(end.raw(), b"two") == Ok(3));
    holds!(file::write_at(log.raw(), b"O", 0) == Ok(1));
    holds!(file::read_at(log.raw(), &mut found, 0) == Ok(7) && &found[..7] == b"One two");
    holds!(file::truncate(log.raw(), 1) == Err(Errno::ESTALE));
    holds!(synchronise(&given) == Ok(0));
    // SAFETY: nothing uses it any more.
    value!(unsafe { memory::unmap(start as *mut u8, 4096) });
    // SAFETY: a mapping at an address of the kernel's choice overlaps nothing that exists.
    let start = value!(unsafe { memory::map_with(0, 4096, access, mapping::SHARED, given.raw(), 0) });
    // SAFETY: the mapping is that long.
    holds!(unsafe { start.add(28).read_volatile() } == b'm');
    // SAFETY: nothing uses it any more.
    value!(unsafe { memory::unmap(start, 4096) });
    holds!(file::unmount(c"/host", 0) == Err(Errno::EBUSY));
    drop((large, log, end, given));
    holds!(file::unmount(c"/host", 0) == Ok(()));
    holds!(value!(names(c"/host")) == [".", ".."]);
    Ok(())
}
