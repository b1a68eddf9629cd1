//! Volumes of ext4: mounted, used by many at once, unmounted, and processes that end in the middle.
//!
//! The machine of the tests has a second disk, `/dev/vdb`, on which xtask has made a volume; without `mke2fs` there is
//! none, and these tests say so and pass. Each leaves the volume empty and unmounted.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;

use abi_unix::types::mounting::flag;
use abi_unix::types::{AT_FDCWD, AT_REMOVEDIR, mapping, mode, open, protection};
use abi_unix::{Errno, SystemCall};
use cops::file::{File, SeekFrom};
use cops::process::{Command, Ending};
use cops::system::file as sync;
use cops::system::{memory, process};

use crate::harness::{self, Outcome, call};
use crate::{check, check_eq, must};

const AT: &CStr = c"/tmp/volume";

/// Mounts the volume; `false` if there is none.
fn mount(device: &CStr, flags: u32) -> cops::system::Result<bool> {
    let _ = sync::make_directory(AT, 0o755);
    match sync::mount_device(device, AT, c"ext4", flags) {
        Err(Errno::ENOENT) => {
            cops::println!("left out: there is no second disk, because e2fsprogs are not installed");
            Ok(false)
        }
        result => result.map(|()| true),
    }
}

fn unmount() -> cops::system::Result<()> {
    sync::unmount(AT, 0)?;
    sync::unlink(AT, AT_REMOVEDIR)
}

fn names(path: &str) -> cops::system::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in cops::file::read_dir(path)? {
        names.push(String::from(entry?.name()));
    }
    names.retain(|name| name != "." && name != ".." && name != "lost+found");
    names.sort();
    Ok(names)
}

const HERE: usize = AT_FDCWD as usize;

fn symbolic_link(target: &CStr, path: &CStr) -> cops::system::Result<usize> {
    call(SystemCall::SymbolicLink, [target.as_ptr().addr(), HERE, path.as_ptr().addr(), 0, 0, 0])
}

fn link(old: &CStr, new: &CStr) -> cops::system::Result<usize> {
    call(SystemCall::Link, [HERE, old.as_ptr().addr(), HERE, new.as_ptr().addr(), 0, 0])
}

fn pattern(number: u32, length: usize) -> Vec<u8> {
    (0..length as u32).map(|index| (index.wrapping_mul(7).wrapping_add(index >> 8) ^ number) as u8).collect()
}

pub async fn refusals_of_mount() -> Outcome {
    let _ = sync::make_directory(AT, 0o755);
    check_eq!(sync::mount_device(c"/dev/none", AT, c"ext4", 0), Err(Errno::ENOENT));
    check_eq!(sync::mount_device(c"/dev/null", AT, c"ext4", 0), Err(Errno::ENOTBLK));
    check_eq!(sync::mount_device(c"/tmp", AT, c"ext4", 0), Err(Errno::ENOTBLK));
    // The first disk has no volume.
    check_eq!(sync::mount_device(c"/dev/vda", AT, c"ext4", 0), Err(Errno::EINVAL));
    check_eq!(sync::mount_device(c"/dev/vda", c"/dev/null", c"ext4", 0), Err(Errno::ENOTDIR));
    check_eq!(sync::mount(AT, c"ext5", 0, c""), Err(Errno::ENODEV));
    must!(sync::unlink(AT, AT_REMOVEDIR));
    Ok(())
}

pub async fn files_come_back_after_an_unmount() -> Outcome {
    if !must!(mount(c"/dev/vdb", 0)) {
        return Ok(());
    }
    check_eq!(sync::mount_device(c"/dev/vdb", c"/tmp", c"ext4", 0), Err(Errno::EBUSY));
    let long = pattern(1, 100_000);
    must!(cops::file::write("/tmp/volume/long", long.clone()).await);
    check!(must!(cops::file::read("/tmp/volume/long").await) == long);
    must!(sync::make_directory(c"/tmp/volume/d", 0o750));
    check_eq!(sync::make_directory(c"/tmp/volume/d", 0o750), Err(Errno::EEXIST));
    check_eq!(sync::make_directory(c"/tmp/volume/none/d", 0o750), Err(Errno::ENOENT));
    must!(cops::file::write("/tmp/volume/d/short", &b"short"[..]).await);
    let file = must!(File::open_with("/tmp/volume/d/short", open::RDWR | open::APPEND));
    check_eq!(file.write(&b" text"[..]).await.0, Ok(5));
    check_eq!(must!(cops::file::read_to_string("/tmp/volume/d/short").await), "short text");
    must!(file.truncate(7));
    let status = must!(file.status());
    check_eq!((status.size, status.mode & mode::TYPE, status.links), (7, mode::REGULAR, 1));
    check_eq!(file.seek(SeekFrom::End(-2)), Ok(5));
    check_eq!(file.seek(SeekFrom::Start(20)), Ok(20));
    check_eq!(sync::unmount(AT, 0), Err(Errno::EBUSY));
    check_eq!(call(SystemCall::SynchroniseFile, [file.descriptor().raw() as usize, 0, 0, 0, 0, 0]), Ok(0));
    drop(file);
    must!(symbolic_link(c"d/short", c"/tmp/volume/link"));
    must!(symbolic_link(c"/tmp/volume/d", c"/tmp/volume/absolute"));
    check_eq!(must!(cops::file::read_to_string("/tmp/volume/link").await), "short t");
    check_eq!(must!(cops::file::read_to_string("/tmp/volume/absolute/../d/./short").await), "short t");
    check_eq!(File::open("/tmp/volume/long/x").err(), Some(Errno::ENOTDIR));
    check_eq!(File::open("/tmp/volume/none").err(), Some(Errno::ENOENT));
    check_eq!(File::open_with("/tmp/volume/d", open::RDWR).err(), Some(Errno::EISDIR));
    check_eq!(File::open_with("/tmp/volume/long", open::RDWR | open::CREAT | open::EXCL).err(), Some(Errno::EEXIST));
    must!(sync::rename(c"/tmp/volume/d/short", c"/tmp/volume/renamed"));
    check_eq!(sync::rename(c"/tmp/volume/renamed", c"/tmp/renamed"), Err(Errno::EXDEV));
    must!(link(c"/tmp/volume/renamed", c"/tmp/volume/d/second"));
    check_eq!(sync::unlink(c"/tmp/volume/d", AT_REMOVEDIR), Err(Errno::ENOTEMPTY));
    check_eq!(must!(names("/tmp/volume")), ["absolute", "d", "link", "long", "renamed"]);
    must!(unmount());
    check_eq!(must!(mount(c"/dev/vdb", flag::READ_ONLY)), true);
    check!(must!(cops::file::read("/tmp/volume/long").await) == long);
    check_eq!(must!(cops::file::read_to_string("/tmp/volume/d/second").await), "short t");
    check_eq!(must!(must!(File::open("/tmp/volume/renamed")).status()).links, 2);
    check_eq!(cops::file::write("/tmp/volume/new", &b"x"[..]).await.err(), Some(Errno::EROFS));
    check_eq!(sync::unlink(c"/tmp/volume/long", 0), Err(Errno::EROFS));
    must!(sync::mount(AT, c"ext4", flag::REMOUNT, c""));
    for path in [c"/tmp/volume/long", c"/tmp/volume/renamed", c"/tmp/volume/link", c"/tmp/volume/absolute"] {
        must!(sync::unlink(path, 0));
    }
    must!(sync::unlink(c"/tmp/volume/d/second", 0));
    must!(sync::unlink(c"/tmp/volume/d", AT_REMOVEDIR));
    check_eq!(must!(names("/tmp/volume")), Vec::<String>::new());
    must!(unmount());
    Ok(())
}

pub async fn a_file_without_a_name_lives_until_it_is_closed() -> Outcome {
    if !must!(mount(c"/dev/vdb", 0)) {
        return Ok(());
    }
    let file = must!(File::open_with("/tmp/volume/file", open::RDWR | open::CREAT));
    check_eq!(file.write_all(pattern(3, 50_000)).await.0, Ok(()));
    must!(sync::unlink(c"/tmp/volume/file", 0));
    check_eq!(must!(file.status()).links, 0);
    check_eq!(file.seek(SeekFrom::Start(0)), Ok(0));
    let (read, bytes) = file.read(vec![0; 50_000]).await;
    check_eq!(read, Ok(50_000));
    check!(bytes == pattern(3, 50_000));
    check_eq!(sync::mount(AT, c"ext4", flag::REMOUNT | flag::READ_ONLY, c""), Err(Errno::EBUSY));
    drop(file);
    must!(unmount());
    Ok(())
}

pub async fn many_names_in_a_directory() -> Outcome {
    if !must!(mount(c"/dev/vdb", 0)) {
        return Ok(());
    }
    must!(sync::make_directory(c"/tmp/volume/many", 0o755));
    let name = |number: u32| format!("/tmp/volume/many/a-name-of-some-length-{number}");
    for number in 0..300 {
        must!(cops::file::write(&name(number), pattern(number, number as usize)).await);
    }
    check_eq!(must!(names("/tmp/volume/many")).len(), 300);
    for number in 0..300 {
        check!(must!(cops::file::read(&name(number)).await) == pattern(number, number as usize));
        must!(cops::file::remove(&name(number)));
    }
    must!(sync::unlink(c"/tmp/volume/many", AT_REMOVEDIR));
    must!(unmount());
    Ok(())
}

pub async fn many_tasks_use_a_volume_at_once() -> Outcome {
    if !must!(mount(c"/dev/vdb", 0)) {
        return Ok(());
    }
    let tasks = (0..12u32).map(|number| {
        cops::spawn(async move {
            let path = format!("/tmp/volume/of-{number}");
            for round in 0..5 {
                let bytes = pattern(number * 100 + round, 3000 + 5000 * round as usize);
                must!(cops::file::write(&path, bytes.clone()).await);
                check!(must!(cops::file::read(&path).await) == bytes, "task {number}, round {round}");
            }
            must!(cops::file::remove(&path));
            Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        must!(task.await)?;
    }
    must!(unmount());
    Ok(())
}

pub async fn processes_end_in_the_middle_of_operations() -> Outcome {
    if !must!(mount(c"/dev/vdb", 0)) {
        return Ok(());
    }
    for round in 0..6u32 {
        let mut children = Vec::new();
        for _ in 0..3 {
            children.push(must!(harness::act("use-volume")));
        }
        cops::sleep(cops::time::Duration::from_millis(u64::from(round) * 3)).await;
        for child in &children {
            must!(child.kill());
        }
        for child in children {
            must!(child.wait().await);
        }
    }
    for name in must!(names("/tmp/volume")) {
        must!(cops::file::remove(&format!("/tmp/volume/{name}")));
    }
    must!(unmount());
    Ok(())
}

/// Puts a file that can be executed on the volume.
async fn put_program(path: &str, bytes: Vec<u8>) -> cops::system::Result<()> {
    cops::file::write(path, bytes).await?;
    let file = File::open_with(path, open::RDONLY)?;
    call(SystemCall::ChangeMode, [file.descriptor().raw() as usize, 0o755, 0, 0, 0, 0]).map(drop)
}

pub async fn programs_run_from_a_volume() -> Outcome {
    if !must!(mount(c"/dev/vdb", 0)) {
        return Ok(());
    }
    let own = must!(cops::file::read(harness::OWN_PATH).await);
    must!(put_program("/tmp/volume/program", own).await);
    let hello = must!(cops::file::read("/bin/hello").await);
    must!(put_program("/tmp/volume/hello", hello).await);
    must!(put_program("/tmp/volume/script", b"#!/tmp/volume/hello\n".to_vec()).await);
    must!(unmount_and_mount());
    let run = async |command: Command| -> cops::system::Result<_> { command.spawn()?.wait().await };
    // From the disk, and from memory.
    for _ in 0..2 {
        let program = Command::new("/tmp/volume/program").argument("--act").argument("end-on-volume");
        check_eq!(run(program).await, Ok(Ending::Exited(0)));
        check_eq!(run(Command::new("/tmp/volume/script")).await, Ok(Ending::Exited(0)));
    }
    must!(cops::file::write("/tmp/volume/plain", b"no program".to_vec()).await);
    check_eq!(Command::new("/tmp/volume/plain").spawn().err(), Some(Errno::EACCES));
    must!(put_program("/tmp/volume/plain", b"no program".to_vec()).await);
    check_eq!(Command::new("/tmp/volume/plain").spawn().err(), Some(Errno::ENOEXEC));
    // A process ends while its program is read from the disk.
    must!(unmount_and_mount());
    for round in 0..4u64 {
        let child = must!(harness::act("run-from-volume"));
        cops::sleep(cops::time::Duration::from_millis(round * 2)).await;
        must!(child.kill());
        must!(child.wait().await);
    }
    for name in ["program", "hello", "script", "plain"] {
        must!(cops::file::remove(&format!("/tmp/volume/{name}")));
    }
    must!(unmount());
    Ok(())
}

fn unmount_and_mount() -> cops::system::Result<()> {
    sync::unmount(AT, 0)?;
    sync::mount_device(c"/dev/vdb", AT, c"ext4", 0)
}

pub async fn a_mapped_file_is_cut_off_beside_its_readers() -> Outcome {
    const LENGTH: usize = 40_000;
    if !must!(mount(c"/dev/vdb", 0)) {
        return Ok(());
    }
    must!(cops::file::write("/tmp/volume/mapped", vec![7; LENGTH]).await);
    let children = [must!(harness::act("map-volume")), must!(harness::act("map-volume"))];
    let file = must!(File::open_with("/tmp/volume/mapped", open::RDWR));
    let descriptor = file.descriptor().raw() as usize;
    for round in 0..60usize {
        let length = round * 977 % LENGTH;
        must!(call(SystemCall::Truncate, [descriptor, length, 0, 0, 0, 0]));
        must!(call(SystemCall::Truncate, [descriptor, LENGTH, 0, 0, 0, 0]));
        let bytes = must!(cops::file::read("/tmp/volume/mapped").await);
        check!(bytes.len() == LENGTH && bytes.iter().all(|byte| matches!(byte, 0 | 7 | 9)), "round {round}");
    }
    for child in &children {
        must!(child.kill());
    }
    for child in children {
        must!(child.wait().await);
    }
    drop(file);
    must!(cops::file::remove("/tmp/volume/mapped"));
    must!(unmount());
    Ok(())
}

/// Maps the file of the test, and stores to it until the end of the process.
fn store_to_mapping() -> cops::system::Result<()> {
    let file = File::open_with("/tmp/volume/mapped", open::RDWR)?;
    let protection = protection::READ | protection::WRITE;
    let descriptor = file.descriptor().raw();
    // SAFETY: a mapping at an address of the kernel's choice overlaps nothing that exists.
    let start = unsafe { memory::map_with(0, 32_768, protection, mapping::SHARED, descriptor, 0)? };
    for round in 0.. {
        // SAFETY: the mapping is that long, and its pages stay when the file is cut off.
        unsafe { start.add(round * 61 % 32_768).write_volatile(9) };
        if round % 1000 == 0 {
            call(SystemCall::SynchroniseMemory, [start.addr(), 32_768, 4, 0, 0, 0])?;
        }
    }
    Ok(())
}

/// Acts of child processes, and of the machine's first process in a boot of its own.
pub async fn act(name: &str) -> i32 {
    if name == "end-on-volume" {
        return 0;
    }
    if name == "map-volume" {
        return i32::from(store_to_mapping().is_err());
    }
    if name == "run-from-volume" {
        loop {
            let Ok(child) = Command::new("/tmp/volume/program").argument("--act").argument("end-on-volume").spawn()
            else {
                return 1;
            };
            if child.wait().await != Ok(Ending::Exited(0)) {
                return 1;
            }
        }
    }
    if name == "use-volume" {
        for number in 0u32.. {
            let path = format!("/tmp/volume/child-{}-{number}", process::number());
            if cops::file::write(&path, pattern(number, 20_000)).await.is_err() {
                return 1;
            }
            if number.is_multiple_of(2) && cops::file::remove(&path).is_err() {
                return 1;
            }
        }
    }
    // Acknowledges each file after it was synchronised, until the machine loses its power.
    if !mount(c"/dev/vda", 0).is_ok_and(|is_there| is_there) {
        return 1;
    }
    for number in 0u32.. {
        let path = format!("/tmp/volume/file-{number}");
        let Ok(file) = File::open_with(&path, open::RDWR | open::CREAT) else { return 1 };
        let written = file.write_all(pattern(number, 100 + number as usize * 37 % 30_000)).await.0;
        let descriptor = file.descriptor().raw() as usize;
        let lasting = call(SystemCall::SynchroniseFile, [descriptor, 0, 0, 0, 0, 0]);
        if written.is_err() || lasting != Ok(0) {
            return 1;
        }
        cops::println!("acknowledged {number}");
        // Work that is not synchronised, and may be lost.
        let _ = cops::file::write(&format!("/tmp/volume/other-{}", number % 7), pattern(number, 9000)).await;
        let _ = cops::file::remove(&format!("/tmp/volume/other-{}", (number + 3) % 7));
    }
    0
}
