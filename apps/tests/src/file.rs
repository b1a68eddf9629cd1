//! Files: the programs that came with the machine, the file system in memory, devices.

use abi_unix::SystemCall;
use abi_unix::types::mounting::{flag, removal};
use abi_unix::types::{AT_REMOVEDIR, allocation, control, file_control, mode, open};
use alloc::vec::Vec;
use cops::file::{File, SeekFrom};
use cops::system::file as sync;
use cops::{Errno, system};

use crate::harness::{Outcome, call};
use crate::{check, check_eq, must};

/// Addresses from which no process can read: an unmapped one, and the kernel's image.
const UNMAPPED: usize = 0x2000;
const KERNEL: usize = 0xffff_ffff_8020_0000;

pub async fn written_and_read_back() -> Outcome {
    let contents: Vec<u8> = (0..100_000u32).map(|index| (index * 31) as u8).collect();
    must!(cops::file::write("/tmp/file", contents.clone()).await);
    check!(must!(cops::file::read("/tmp/file").await) == contents);
    let file = must!(File::open_with("/tmp/file", open::RDWR));
    check_eq!(must!(file.status()).size, 100_000);
    check_eq!(must!(file.status()).mode & mode::TYPE, mode::REGULAR);
    check_eq!(file.seek(SeekFrom::End(-10)), Ok(99_990));
    let (result, tail) = file.read(alloc::vec![0; 100]).await;
    check_eq!(result, Ok(10));
    check_eq!(&tail[..10], &contents[99_990..]);
    check_eq!(file.read(tail).await.0, Ok(0));
    check_eq!(file.seek(SeekFrom::Current(-200_000)), Err(Errno::EINVAL));
    check_eq!(file.seek(SeekFrom::Start(200_000)), Ok(200_000));
    check_eq!(file.write(alloc::vec![1, 2, 3]).await.0, Ok(3));
    check_eq!(file.seek(SeekFrom::Current(0)), Ok(200_003));
    check_eq!(file.seek(SeekFrom::Start(150_000)), Ok(150_000));
    let (result, gap) = file.read(alloc::vec![9; 16]).await;
    check_eq!((result, gap), (Ok(16), alloc::vec![0; 16]));
    must!(file.truncate(5));
    check_eq!(must!(file.status()).size, 5);
    check!(must!(cops::file::read("/tmp/file").await) == contents[..5]);
    must!(cops::file::remove("/tmp/file"));
    check_eq!(File::open("/tmp/file").err(), Some(Errno::ENOENT));
    // Still readable through the open descriptor.
    check_eq!(must!(file.status()).size, 5);
    Ok(())
}

pub async fn appending_and_exclusive_creation() -> Outcome {
    must!(cops::file::write("/tmp/log", &b"one"[..]).await);
    check_eq!(File::open_with("/tmp/log", open::RDWR | open::CREAT | open::EXCL).err(), Some(Errno::EEXIST));
    let file = must!(File::open_with("/tmp/log", open::WRONLY | open::APPEND));
    check_eq!(file.write_all(&b"two"[..]).await.0, Ok(()));
    check_eq!(file.read(alloc::vec![0; 3]).await.0, Err(Errno::EBADF));
    check_eq!(must!(cops::file::read_to_string("/tmp/log").await), "onetwo");
    let file = must!(File::open("/tmp/log"));
    check_eq!(file.write(&b"three"[..]).await.0, Err(Errno::EBADF));
    must!(cops::file::remove("/tmp/log"));
    Ok(())
}

pub async fn positions_do_not_disturb_offsets() -> Outcome {
    must!(cops::file::write("/tmp/offsets", &b"0123456789"[..]).await);
    let file = must!(File::open_with("/tmp/offsets", open::RDWR));
    let mut two = [0; 2];
    check_eq!(sync::read_at(file.descriptor().raw(), &mut two, 4), Ok(2));
    check_eq!(&two, b"45");
    check_eq!(sync::write_at(file.descriptor().raw(), b"xy", 8), Ok(2));
    check_eq!(sync::read_at(file.descriptor().raw(), &mut two, 10), Ok(0));
    let (result, all) = file.read(alloc::vec![0; 20]).await;
    check_eq!(result, Ok(10));
    check_eq!(&all[..10], b"01234567xy");
    must!(cops::file::remove("/tmp/offsets"));
    Ok(())
}

pub async fn a_write_from_nowhere_leaves_the_file_alone() -> Outcome {
    must!(cops::file::write("/tmp/nowhere", &b"0123456789"[..]).await);
    let file = must!(File::open_with("/tmp/nowhere", open::RDWR));
    let raw = file.descriptor().raw();
    for offset in [0, 9, 10, 11, 4095, 4096, 4097, 1 << 40] {
        for source in [UNMAPPED, KERNEL] {
            for size in [1, 4096, 10_000] {
                // SAFETY: the kernel only reads from there, and refuses.
                let written = unsafe { system::call!(WriteAt, raw, source, size, offset) };
                check_eq!(written, Err(Errno::EFAULT));
                check_eq!(must!(file.status()).size, 10);
            }
        }
    }
    let appending = must!(File::open_with("/tmp/nowhere", open::WRONLY | open::APPEND));
    // SAFETY: as above.
    let written = unsafe { system::call!(Write, appending.descriptor().raw(), UNMAPPED, 10) };
    check_eq!(written, Err(Errno::EFAULT));
    check!(must!(cops::file::read("/tmp/nowhere").await) == b"0123456789");
    must!(cops::file::remove("/tmp/nowhere"));
    Ok(())
}

pub async fn vectors() -> Outcome {
    let (reader, writer) = must!(sync::pipe(0));
    let parts = [b"abc".as_ptr() as usize, 3, 0, 0, b"defg".as_ptr() as usize, 4];
    // SAFETY: the vector names static memory.
    check_eq!(unsafe { system::call!(WriteVector, writer.raw(), parts.as_ptr(), 3) }, Ok(7));
    let (mut one, mut two) = ([0u8; 2], [0u8; 9]);
    let parts = [one.as_mut_ptr() as usize, 2, two.as_mut_ptr() as usize, 9];
    // SAFETY: the vector names this test's memory.
    check_eq!(unsafe { system::call!(ReadVector, reader.raw(), parts.as_ptr(), 2) }, Ok(7));
    check_eq!((&one, &two[..5]), (b"ab", &b"cdefg"[..]));
    let file = must!(sync::open(c"/tmp/vectors", open::RDWR | open::CREAT, 0o600));
    let parts = [0, 0, b"abc".as_ptr() as usize, 3, 0, 0, b"defg".as_ptr() as usize, 4];
    // SAFETY: the vector names static memory.
    check_eq!(unsafe { system::call!(WriteVectorAt, file.raw(), parts.as_ptr(), 4, 5) }, Ok(7));
    let parts = [one.as_mut_ptr() as usize, 2, 0, 0, two.as_mut_ptr() as usize, 9];
    // SAFETY: the vector names this test's memory.
    check_eq!(unsafe { system::call!(ReadVectorAt, file.raw(), parts.as_ptr(), 3, 7) }, Ok(5));
    check_eq!((&one, &two[..3]), (b"cd", &b"efg"[..]));
    must!(sync::unlink(c"/tmp/vectors", 0));
    Ok(())
}

pub async fn directories() -> Outcome {
    must!(sync::make_directory(c"/tmp/directory", 0o755));
    check_eq!(sync::make_directory(c"/tmp/directory", 0o755), Err(Errno::EEXIST));
    must!(cops::file::write("/tmp/directory/file", &b"x"[..]).await);
    check_eq!(sync::unlink(c"/tmp/directory", AT_REMOVEDIR), Err(Errno::ENOTEMPTY));
    check_eq!(sync::unlink(c"/tmp/directory", 0), Err(Errno::EISDIR));
    must!(sync::rename(c"/tmp/directory/file", c"/tmp/directory/other"));
    must!(sync::change_directory(c"/tmp/directory"));
    let mut buffer = [0; 64];
    let length = must!(sync::current_directory(&mut buffer));
    check_eq!(&buffer[..length], b"/tmp/directory\0");
    check_eq!(must!(cops::file::read("other").await), b"x");
    check_eq!(must!(cops::file::read("../directory/./other").await), b"x");
    let names = must!(list("/tmp/directory"));
    check_eq!(names, [&b"."[..], b"..", b"other"]);
    must!(sync::change_directory(c"/"));
    must!(cops::file::remove("/tmp/directory/other"));
    must!(sync::unlink(c"/tmp/directory", AT_REMOVEDIR));
    check_eq!(sync::status_at(c"/tmp/directory", 0), Err(Errno::ENOENT));
    check!(must!(list("/bin")).iter().any(|name| name == b"tests"));
    Ok(())
}

/// Returns the names in a directory, sorted.
fn list(path: &str) -> Result<Vec<Vec<u8>>, Errno> {
    let directory = File::open_with(path, open::RDONLY | open::DIRECTORY)?;
    let mut names = Vec::new();
    let mut buffer = [0; 512];
    loop {
        let length = sync::read_directory(directory.descriptor().raw(), &mut buffer)?;
        if length == 0 {
            names.sort();
            return Ok(names);
        }
        let mut at = 0;
        while at < length {
            // struct linux_dirent64: inode, offset, length of the entry, type, name.
            let size = u16::from_le_bytes([buffer[at + 16], buffer[at + 17]]) as usize;
            let name = &buffer[at + 19..at + size];
            names.push(name.split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
            at += size;
        }
    }
}

pub async fn programs_cannot_be_changed() -> Outcome {
    let result = File::open_with("/bin/hello", open::RDWR);
    // Either the file refuses, or writing does.
    let refused = match result {
        Err(error) => matches!(error, Errno::EROFS | Errno::EACCES | Errno::EPERM),
        Ok(file) => file.write(&b"x"[..]).await.0.is_err(),
    };
    check!(refused);
    check!(must!(cops::file::read("/bin/hello").await).starts_with(b"\x7fELF"));
    Ok(())
}

pub async fn devices() -> Outcome {
    let null = must!(File::open_with("/dev/null", open::RDWR));
    check_eq!(null.write(&b"gone"[..]).await.0, Ok(4));
    check_eq!(null.read(alloc::vec![1; 4]).await.0, Ok(0));
    let zero = must!(File::open_with("/dev/zero", open::RDWR));
    let (result, bytes) = zero.read(alloc::vec![1; 5000]).await;
    check_eq!(result, Ok(5000));
    check!(bytes.iter().all(|byte| *byte == 0));
    check_eq!(must!(null.status()).mode & mode::TYPE, mode::CHARACTER);
    Ok(())
}

pub async fn duplicates_share_a_position() -> Outcome {
    must!(cops::file::write("/tmp/shared", &b"abcdef"[..]).await);
    let file = must!(File::open("/tmp/shared"));
    let other = File::from_descriptor(must!(file.descriptor().duplicate()));
    check_eq!(file.read(alloc::vec![0; 2]).await.1, b"ab");
    check_eq!(other.read(alloc::vec![0; 2]).await.1, b"cd");
    drop(file);
    check_eq!(other.read(alloc::vec![0; 2]).await.1, b"ef");
    must!(cops::file::remove("/tmp/shared"));
    Ok(())
}

pub async fn descriptors_run_out() -> Outcome {
    let mut files = Vec::new();
    let error = loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
        check!(files.len() < 100_000);
    };
    check_eq!(error, Errno::EMFILE);
    check!(files.len() >= 200, "only {} files at once", files.len());
    files.pop();
    check!(File::open("/dev/null").is_ok());
    Ok(())
}

/// A file system on a directory: its names, its limits, and the errors of paths that lead out of it.
pub async fn mounts() -> Outcome {
    let directory = c"/tmp/mounts";
    must!(sync::make_directory(directory, 0o755));
    must!(cops::file::write("/tmp/mounts/below", &b"below"[..]).await);
    let covered = must!(sync::status_at(directory, 0)).device;
    must!(sync::mount(directory, c"tmpfs", 0, c"size=1m"));
    check!(must!(sync::status_at(directory, 0)).device != covered);
    check_eq!(File::open("/tmp/mounts/below").err(), Some(Errno::ENOENT));
    must!(cops::file::write("/tmp/mounts/above", &b"above"[..]).await);
    check_eq!(sync::rename(c"/tmp/mounts/above", c"/tmp/above"), Err(Errno::EXDEV));
    check_eq!(sync::unlink(directory, AT_REMOVEDIR), Err(Errno::EBUSY));
    check_eq!(cops::file::write("/tmp/mounts/long", alloc::vec![1; 2 << 20]).await.err(), Some(Errno::ENOSPC));
    must!(cops::file::remove("/tmp/mounts/long"));
    let file = must!(File::open("/tmp/mounts/above"));
    check_eq!(sync::unmount(directory, 0), Err(Errno::EBUSY));
    must!(sync::mount(directory, c"tmpfs", flag::REMOUNT | flag::READ_ONLY, c""));
    check_eq!(File::open_with("/tmp/mounts/above", open::RDWR).err(), Some(Errno::EROFS));
    check_eq!(sync::make_directory(c"/tmp/mounts/d", 0o755), Err(Errno::EROFS));
    check_eq!(file.read(alloc::vec![0; 5]).await, (Ok(5), b"above".to_vec()));
    must!(sync::unmount(directory, removal::DETACH));
    check_eq!(must!(cops::file::read_to_string("/tmp/mounts/below").await), "below");
    // In another place, too.
    must!(sync::make_directory(c"/tmp/bound", 0o755));
    must!(sync::bind(directory, c"/tmp/bound", 0));
    check_eq!(must!(cops::file::read_to_string("/tmp/bound/../bound/below").await), "below");
    check_eq!(sync::rename(c"/tmp/bound/below", c"/tmp/mounts/above"), Err(Errno::EXDEV));
    must!(sync::bind(c"none", c"/tmp/bound", flag::REMOUNT | flag::READ_ONLY));
    check_eq!(cops::file::write("/tmp/bound/new", &b"new"[..]).await.err(), Some(Errno::EROFS));
    must!(cops::file::write("/tmp/mounts/below", &b"above"[..]).await);
    check_eq!(must!(cops::file::read_to_string("/tmp/bound/below").await), "above");
    let list = must!(cops::file::read_to_string("/proc/self/mountinfo").await);
    check!(list.lines().any(|line| line.contains("/mounts /tmp/bound ro,")), "{list}");
    must!(sync::unmount(c"/tmp/bound", 0));
    must!(sync::unlink(c"/tmp/bound", AT_REMOVEDIR));
    check_eq!(file.seek(SeekFrom::Start(0)), Ok(0));
    check_eq!(file.read(alloc::vec![0; 5]).await, (Ok(5), b"above".to_vec()));
    drop(file);
    must!(cops::file::remove("/tmp/mounts/below"));
    must!(sync::unlink(directory, AT_REMOVEDIR));
    Ok(())
}

/// Generated files: the program's own, another's, and the machine's.
pub async fn processes() -> Outcome {
    let number = cops::process::number();
    let statistics = must!(cops::file::read_to_string("/proc/self/stat").await);
    check!(statistics.starts_with(&alloc::format!("{number} (tests) R ")));
    check_eq!(statistics.split_whitespace().count(), 52);
    let command = must!(cops::file::read("/proc/self/cmdline").await);
    check!(command.starts_with(b"/bin/tests\0"));
    let environment = must!(cops::file::read("/proc/self/environ").await);
    check!(environment.windows(5).any(|piece| piece == b"PATH="));
    let maps = must!(cops::file::read_to_string("/proc/self/maps").await);
    check!(maps.lines().any(|line| line.contains(" r-xp ")) && maps.lines().any(|line| line.contains(" rw-p ")));
    check!(must!(cops::file::read_to_string("/proc/meminfo").await).starts_with("MemTotal: "));
    check!(must!(cops::file::read_to_string("/proc/mounts").await).contains("proc /proc proc rw"));
    check_eq!(File::open_with("/proc/meminfo", open::WRONLY).err(), Some(Errno::EACCES));
    let child = must!(crate::harness::act("sleep"));
    let path = alloc::format!("/proc/{}/status", child.number());
    let status = must!(cops::file::read_to_string(&path).await);
    check!(status.contains(&alloc::format!("\nPPid:\t{number}\n")));
    let file = must!(File::open(&path));
    must!(child.kill());
    crate::harness::wait(&child).await;
    check_eq!(file.read(alloc::vec![0; 5]).await.0, Err(Errno::ESRCH));
    check_eq!(File::open(&path).err(), Some(Errno::ENOENT));
    Ok(())
}

pub async fn pages_are_allocated_and_freed() -> Outcome {
    const PATH: &core::ffi::CStr = c"/tmp/tests-allocated";
    let file = must!(sync::open(PATH, open::CREAT | open::RDWR | open::TRUNC, 0o600));
    check_eq!(sync::unlink(PATH, 0), Ok(()));
    let file = file.raw();
    let (_reader, writer) = must!(sync::pipe(0));
    check_eq!(sync::allocate(file, 0, 0, 0), Err(Errno::EINVAL));
    check_eq!(sync::allocate(file, allocation::PUNCH_HOLE, 0, 1), Err(Errno::EOPNOTSUPP));
    check_eq!(sync::allocate(file, 16, 0, 1), Err(Errno::EOPNOTSUPP));
    check_eq!(sync::allocate(file, 0, 1 << 62, 1 << 62), Err(Errno::EFBIG));
    check_eq!(sync::allocate(writer.raw(), 0, 0, 1), Err(Errno::ESPIPE));
    check_eq!(sync::allocate(file, 0, 0, 1 << 50), Err(Errno::ENOSPC));
    check_eq!(must!(sync::status(file)).size, 0);
    check_eq!(sync::allocate(file, 0, 0, 100_000), Ok(()));
    check_eq!(must!(sync::status(file)).size, 100_000);
    check_eq!(sync::allocate(file, allocation::KEEP_SIZE, 0, 200_000), Ok(()));
    check_eq!(must!(sync::status(file)).size, 100_000);
    check_eq!(sync::write_at(file, &[7; 20_000], 0), Ok(20_000));
    check_eq!(sync::allocate(file, allocation::KEEP_SIZE | allocation::PUNCH_HOLE, 100, 10_000), Ok(()));
    let mut bytes = [1; 20_000];
    check_eq!(sync::read_at(file, &mut bytes, 0), Ok(20_000));
    let expected = |index: usize| if (100..10_100).contains(&index) { 0 } else { 7 };
    check!(bytes.iter().enumerate().all(|(index, byte)| *byte == expected(index)));
    Ok(())
}

pub async fn owners_and_nice_values() -> Outcome {
    let (reader, writer) = must!(sync::pipe(0));
    let (file, full) = (reader.raw() as usize, writer.raw() as usize);
    let own = system::process::number() as usize;
    let told = [1u32];
    let request = file_control::FIOASYNC as usize;
    check_eq!(call(SystemCall::DeviceControl, [file, request, told.as_ptr() as usize, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::FileControl, [file, control::SETOWN as usize, own, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::FileControl, [file, control::GETOWN as usize, 0, 0, 0, 0]), Ok(own));
    check_eq!(call(SystemCall::FileControl, [file, control::GETFL as usize, 0, 0, 0, 0]), Ok(open::ASYNC as usize));
    // The owner of a file with input gets SIGIO, which ends it.
    let child = must!(crate::fork::fork(|| {
        let own = system::process::number() as usize;
        let owns = call(SystemCall::FileControl, [file, control::SETOWN as usize, own, 0, 0, 0]);
        let written = call(SystemCall::Write, [full, told.as_ptr() as usize, 4, 0, 0, 0]);
        if (owns, written) == (Ok(0), Ok(4)) {
            let second = [1u64, 0];
            let _ = call(SystemCall::Sleep, [second.as_ptr() as usize, 0, 0, 0, 0, 0]);
        }
        0
    }));
    check_eq!(crate::fork::status_of(child), Ok(0x100 | 29));
    check_eq!(call(SystemCall::FileControl, [file, control::SETFL as usize, 0, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::FileControl, [file, control::GETFL as usize, 0, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::SetNice, [3, 0, 5, 0, 0, 0]), Err(Errno::EINVAL));
    check_eq!(call(SystemCall::SetNice, [0, 99_999, 5, 0, 0, 0]), Err(Errno::ESRCH));
    let child = must!(crate::fork::fork(|| {
        let nice = |value: usize| call(SystemCall::SetNice, [0, 0, value, 0, 0, 0]);
        let found = || call(SystemCall::GetNice, [0, 0, 0, 0, 0, 0]);
        let right = found() == Ok(20) && nice(7) == Ok(0) && found() == Ok(13) && nice(70) == Ok(0) && found() == Ok(1);
        u8::from(!right)
    }));
    check_eq!(crate::fork::status_of(child), Ok(0));
    check_eq!(call(SystemCall::GetNice, [0, 0, 0, 0, 0, 0]), Ok(20));
    Ok(())
}
