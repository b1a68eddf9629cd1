//! Disks: their bytes, ends and errors, many transfers at once, and processes that end in the middle of one.
//!
//! The machine of the tests has one disk, `/dev/vda`, which is empty. Tests write different parts of it.

use alloc::vec;
use alloc::vec::Vec;

use abi_unix::types::{block_control, open};
use abi_unix::{Errno, SystemCall};
use cops::system::descriptor::Descriptor;
use cops::system::file;
use cops::{read, write};

use crate::harness::{self, Outcome};
use crate::{check, check_eq, must};

const PATH: &core::ffi::CStr = c"/dev/vda";
/// Bytes that each test has for itself.
const PART: u64 = 1 << 20;
/// Size of a page of the kernel's cache.
const PAGE: usize = 4096;

fn disk(flags: u32) -> cops::system::Result<Descriptor> {
    file::open(PATH, flags, 0)
}

fn synchronise(disk: &Descriptor) -> cops::system::Result<usize> {
    harness::call(SystemCall::SynchroniseFile, [disk.raw() as usize, 0, 0, 0, 0, 0])
}

fn control(disk: &Descriptor, command: u32, answer: &mut u64) -> cops::system::Result<usize> {
    harness::call(
        SystemCall::DeviceControl,
        [disk.raw() as usize, command as usize, core::ptr::from_mut(answer) as usize, 0, 0, 0],
    )
}

/// Returns bytes that follow from a number.
fn pattern(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| (number.wrapping_mul(31) + index / 7 + index) as u8).collect()
}

pub async fn bytes_come_back() -> Outcome {
    let (writer, reader) = (must!(disk(open::RDWR)), must!(disk(open::RDONLY)));
    let mut model = vec![0u8; PART as usize];
    // Not what other boots have left there.
    check_eq!(file::write_at(writer.raw(), &model, 0), Ok(model.len()));
    let mut number = 12345u64;
    let mut draw = |below: usize| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (number >> 33) as usize % below
    };
    for round in 0..200 {
        let length = [1, 17, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 40_000][draw(7)];
        let at = match draw(3) {
            0 => draw(model.len() / PAGE - 10) * PAGE,
            _ => draw(model.len() - length),
        };
        let bytes = pattern(round, length);
        check_eq!(file::write_at(writer.raw(), &bytes, at as u64), Ok(length));
        model[at..at + length].copy_from_slice(&bytes);
        let (from, length) = (draw(model.len()), [1, 100, PAGE, 50_000][draw(4)]);
        let mut found = vec![0; length];
        let end = (from + length).min(model.len());
        let count = must!(file::read_at(reader.raw(), &mut found[..end - from], from as u64));
        check_eq!(count, end - from);
        check!(found[..count] == model[from..end], "round {round}: another read sees other bytes");
        if round % 50 == 0 {
            check_eq!(synchronise(&writer), Ok(0));
        }
    }
    check_eq!(synchronise(&reader), Ok(0));
    let mut found = vec![0; model.len()];
    check_eq!(read!(reader.raw(), &mut found), Ok(model.len()));
    check!(found == model);
    Ok(())
}

pub async fn its_end_and_errors() -> Outcome {
    let (device, reader) = (must!(disk(open::RDWR)), must!(disk(open::RDONLY)));
    let mut size = 0;
    check_eq!(control(&device, block_control::BYTES, &mut size), Ok(0));
    check!(size >= 4 * PART && size % 512 == 0, "{size}");
    let mut sectors = 0;
    check_eq!(control(&device, block_control::SECTORS, &mut sectors), Ok(0));
    check_eq!(sectors, size / 512);
    let mut block = 0;
    check_eq!(control(&device, block_control::LOGICAL_BLOCK, &mut block), Ok(0));
    check_eq!(block, 512);
    check_eq!(control(&device, 0x5413, &mut block), Err(Errno::ENOTTY));
    let unmapped = [device.raw() as usize, block_control::BYTES as usize, 8, 0, 0, 0];
    check_eq!(harness::call(SystemCall::DeviceControl, unmapped), Err(Errno::EFAULT));

    let mut bytes = [7; 100];
    check_eq!(file::seek(device.raw(), 0, 2), Ok(size));
    check_eq!(read!(device.raw(), &mut bytes), Ok(0));
    check_eq!(write!(device.raw(), &bytes), Err(Errno::ENOSPC));
    check_eq!(file::seek(device.raw(), -60, 2), Ok(size - 60));
    check_eq!(write!(device.raw(), &bytes), Ok(60));
    check_eq!(file::read_at(device.raw(), &mut bytes, size - 10), Ok(10));
    check_eq!(file::read_at(device.raw(), &mut bytes, size), Ok(0));
    check_eq!(file::read_at(device.raw(), &mut bytes, 1 << 62), Ok(0));
    check_eq!(file::write_at(device.raw(), &bytes, size), Err(Errno::ENOSPC));
    check_eq!(file::write_at(device.raw(), &bytes, 1 << 62), Err(Errno::ENOSPC));
    check_eq!(file::seek(device.raw(), 1, 2), Err(Errno::EINVAL));
    check_eq!(file::seek(device.raw(), -1, 0), Err(Errno::EINVAL));
    check_eq!(file::write_at(reader.raw(), &bytes, 0), Err(Errno::EBADF));

    // A source that gives nothing changes nothing, whether a whole page was to be written or a part of one.
    let at = PART;
    check_eq!(file::write_at(device.raw(), &pattern(1, 2 * PAGE), at), Ok(2 * PAGE));
    for (length, at) in [(PAGE, at), (10, at + 5)] {
        let call = [device.raw() as usize, 8, length, at as usize, 0, 0];
        check_eq!(harness::call(SystemCall::WriteAt, call), Err(Errno::EFAULT));
        let call = [device.raw() as usize, 8, length, at as usize, 0, 0];
        check_eq!(harness::call(SystemCall::ReadAt, call), Err(Errno::EFAULT));
    }
    let mut found = vec![0; 2 * PAGE];
    check_eq!(file::read_at(device.raw(), &mut found, at), Ok(2 * PAGE));
    check!(found == pattern(1, 2 * PAGE));
    check_eq!(harness::call(SystemCall::Truncate, [device.raw() as usize, 0, 0, 0, 0, 0]), Err(Errno::EINVAL));
    Ok(())
}

pub async fn many_transfers_are_under_way_at_once() -> Outcome {
    const TASKS: u64 = 32;
    const LENGTH: usize = 16 * 1024;
    let tasks = (0..TASKS).map(|number| {
        cops::spawn(async move {
            let device = must!(disk(open::RDWR));
            let start = 2 * PART + number * LENGTH as u64;
            for round in 0..4 {
                let bytes = pattern(number * 1000 + round, LENGTH);
                check_eq!(file::seek(device.raw(), start as i64, 0), Ok(start));
                let (count, bytes) = write!(device.raw(), bytes, cops::current());
                check_eq!(count, Ok(LENGTH));
                if round == 2 {
                    check_eq!(synchronise(&device), Ok(0));
                }
                check_eq!(file::seek(device.raw(), start as i64, 0), Ok(start));
                let (count, found) = read!(device.raw(), vec![0; LENGTH], cops::current());
                check_eq!(count, Ok(LENGTH));
                check!(found == bytes, "task {number}, round {round}");
            }
            Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        must!(task.await)?;
    }
    Ok(())
}

pub async fn processes_end_in_the_middle_of_transfers() -> Outcome {
    for round in 0..10u32 {
        let mut children = Vec::new();
        for _ in 0..4 {
            children.push(must!(harness::act("use-disk")));
        }
        cops::sleep(cops::time::Duration::from_millis(u64::from(round) % 4)).await;
        for child in &children {
            must!(child.kill());
        }
        for child in children {
            must!(child.wait().await);
        }
    }
    let device = must!(disk(open::RDWR));
    check_eq!(file::write_at(device.raw(), &pattern(5, 30_000), 3 * PART), Ok(30_000));
    check_eq!(synchronise(&device), Ok(0));
    let mut found = vec![0; 30_000];
    check_eq!(file::read_at(device.raw(), &mut found, 3 * PART), Ok(30_000));
    check!(found == pattern(5, 30_000));
    Ok(())
}

/// Acts of child processes, and of the machine's first process in a boot of its own.
pub async fn act(name: &str) -> i32 {
    let Ok(device) = disk(open::RDWR) else { return 1 };
    let long = pattern(99, 300_000);
    match name {
        // Reads, writes and waits for the disk until it is killed.
        "use-disk" => loop {
            let mut bytes = vec![0; 200_000];
            let is_done = file::write_at(device.raw(), &long, 3 * PART).is_ok()
                && file::read_at(device.raw(), &mut bytes, 3 * PART).is_ok()
                && synchronise(&device).is_ok();
            if !is_done {
                return 1;
            }
        },
        // Writes and waits until it is lasting; the machine loses its power after that.
        "write-disk" => {
            let is_done = file::write_at(device.raw(), &long, 1234) == Ok(long.len()) && synchronise(&device) == Ok(0);
            if !is_done {
                return 1;
            }
            cops::println!("lasting");
            loop {
                cops::sleep(cops::time::Duration::from_secs(1)).await;
            }
        }
        // Looks for the bytes that an earlier boot has written.
        _ => {
            let mut found = vec![0; long.len()];
            let is_there = file::read_at(device.raw(), &mut found, 1234) == Ok(long.len()) && found == long;
            cops::println!("{}", if is_there { "the bytes are there" } else { "the bytes are not there" });
            i32::from(!is_there)
        }
    }
}
