//! Files that are sent and copied by the kernel, without a buffer of the program.
//!
//! The rules are tested on the host; here are the ways through the machine: long transfers to readers that are slower,
//! and the end of a process in the middle of one.

use abi_unix::types::{TimeSpec, file_control, open, signal, splicing};
use abi_unix::{Errno, SystemCall, WILL_BE_POSTED};
use alloc::vec::Vec;
use cops::system::{self, Descriptor, file};

use crate::fork::{fork, status_of};
use crate::harness::{Outcome, call};
use crate::{check, check_eq, must};

const PATH: &core::ffi::CStr = c"/tmp/relay";
const LENGTH: usize = 300_000;

fn byte(index: usize) -> u8 {
    (index % 251) as u8
}

/// Makes a file of some hundred kilobytes, without a name.
fn long_file() -> Result<Descriptor, Errno> {
    let file = file::open(PATH, open::CREAT | open::RDWR | open::TRUNC, 0o600)?;
    file::unlink(PATH, 0)?;
    let bytes: Vec<u8> = (0..LENGTH).map(byte).collect();
    file::write_at(file.raw(), &bytes, 0)?;
    Ok(file)
}

pub async fn a_file_goes_through_a_pipe_and_is_copied() -> Outcome {
    let input = must!(long_file());
    let (reader, writer) = must!(file::pipe(0));
    let child =
        must!(fork(|| u8::from(file::send_file(writer.raw(), input.raw(), Some(&mut 0), LENGTH) != Ok(LENGTH))));
    drop(writer);
    let mut seen = 0;
    let mut bytes = [0; 1000];
    loop {
        let count = must!(file::read(reader.raw(), &mut bytes));
        if count == 0 {
            break;
        }
        check!(bytes[..count].iter().zip(seen..).all(|(found, index)| *found == byte(index)), "before {seen}");
        seen += count;
    }
    check_eq!((seen, status_of(child)), (LENGTH, Ok(0)));
    // Half of it to its own end, which it finds at once.
    let (mut from, mut to) = (1000, LENGTH as u64);
    let copied = file::copy_range(input.raw(), Some(&mut from), input.raw(), Some(&mut to), LENGTH / 2);
    check_eq!((copied, from, to), (Ok(LENGTH / 2), 1000 + LENGTH as u64 / 2, LENGTH as u64 * 3 / 2));
    check_eq!(file::read_at(input.raw(), &mut bytes, LENGTH as u64 + 77_000), Ok(1000));
    check!(bytes.iter().zip(78_000..).all(|(found, index)| *found == byte(index)));
    Ok(())
}

/// A process ends while it sends to a pipe that is full, and while such a call waits beside it.
pub async fn a_sender_ends_in_the_middle() -> Outcome {
    let input = must!(long_file());
    let (reader, writer) = must!(file::pipe(0));
    let waiting = must!(fork(|| u8::from(file::send_file(writer.raw(), input.raw(), Some(&mut 0), LENGTH).is_err())));
    // Until it has filled the pipe, which can take long on a busy host.
    let mut unread = 0u32;
    while unread < 65_536 {
        must!(system::system::sleep(TimeSpec::from_ns(1_000_000)));
        let (command, place) = (file_control::FIONREAD as usize, &raw mut unread as usize);
        must!(call(SystemCall::DeviceControl, [reader.raw() as usize, command, place, 0, 0, 0]));
    }
    must!(call(SystemCall::Kill, [waiting, signal::KILL as usize, 0, 0, 0, 0]));
    check_eq!(status_of(waiting), Ok(0x100 | 9));
    // The bytes that it has sent are there, and room again for another.
    let mut bytes = alloc::vec![0; 65_536];
    check_eq!(file::read(reader.raw(), &mut bytes), Ok(65_536));
    check!(bytes.iter().zip(0..).all(|(found, index)| *found == byte(index)));
    let beside = must!(fork(|| {
        let arguments = [writer.raw() as usize, input.raw() as usize, 0, LENGTH, 0, 0];
        let _ = file::seek(input.raw(), 0, 0);
        // SAFETY: the call has no addresses.
        let result = unsafe { system::syscall_asynchronous(SystemCall::SendFile as usize, arguments, 0, 0, 1) };
        u8::from(result != WILL_BE_POSTED)
    }));
    check_eq!(status_of(beside), Ok(0));
    check!(file::read(reader.raw(), &mut bytes).is_ok());
    Ok(())
}

pub async fn what_cannot_be_spliced() -> Outcome {
    let input = must!(long_file());
    let (reader, writer) = must!(file::pipe(0));
    let (input, reader, writer) = (input.raw(), reader.raw(), writer.raw());
    check_eq!(file::splice((input, None), (input, None), 5, 0), Err(Errno::EINVAL));
    check_eq!(file::splice((reader, None), (writer, None), 5, 0), Err(Errno::EINVAL));
    check_eq!(file::splice((input, None), (writer, None), 5, 1 << 10), Err(Errno::EINVAL));
    check_eq!(file::splice((input, Some(&mut 0)), (writer, Some(&mut 0)), 5, 0), Err(Errno::ESPIPE));
    let mut negative = u64::MAX;
    check_eq!(file::splice((input, Some(&mut negative)), (writer, None), 5, 0), Err(Errno::EINVAL));
    check_eq!(file::splice((writer, None), (input, None), 5, 0), Err(Errno::EBADF));
    check_eq!(file::splice((reader, None), (input, None), 5, splicing::NONBLOCK), Err(Errno::EAGAIN));
    check_eq!(file::tee(reader, writer, 5, 0), Err(Errno::EINVAL));
    check_eq!(file::tee(input, writer, 5, 0), Err(Errno::EINVAL));
    check_eq!(file::splice((-1, None), (-1, None), 0, 0), Ok(0));
    Ok(())
}

/// A file goes through two pipes to a process that writes it again, beside a copy of its beginning.
pub async fn bytes_are_spliced_through_a_pipe_and_copied_by_tee() -> Outcome {
    let input = must!(long_file());
    let output = must!(file::open(PATH, open::CREAT | open::RDWR | open::TRUNC, 0o600));
    check_eq!(file::unlink(PATH, 0), Ok(()));
    let (reader, writer) = must!(file::pipe(0));
    let child = must!(fork(|| {
        let mut place = 0;
        while place < LENGTH as u64 {
            if !matches!(file::splice((input.raw(), Some(&mut place)), (writer.raw(), None), LENGTH, 0), Ok(1..)) {
                return 1;
            }
        }
        0
    }));
    drop(writer);
    let (copy_reader, copy_writer) = must!(file::pipe(0));
    let copied = must!(file::tee(reader.raw(), copy_writer.raw(), 5000, 0));
    let mut bytes = [0; 5000];
    check_eq!(file::read(copy_reader.raw(), &mut bytes), Ok(copied));
    check!(copied > 0 && bytes[..copied].iter().enumerate().all(|(index, found)| *found == byte(index)));
    let mut place = 7;
    while must!(file::splice((reader.raw(), None), (output.raw(), Some(&mut place)), LENGTH, 0)) > 0 {}
    check_eq!((place, status_of(child)), (7 + LENGTH as u64, Ok(0)));
    for at in (0..LENGTH).step_by(bytes.len()) {
        let count = must!(file::read_at(output.raw(), &mut bytes, 7 + at as u64));
        check!(bytes[..count].iter().zip(at..).all(|(found, index)| *found == byte(index)), "from {at} on");
    }
    Ok(())
}

/// One waits for input, another for room. Bytes that none has taken are still in the pipe.
pub async fn a_splicing_process_ends_in_the_middle() -> Outcome {
    let (reader, writer) = must!(file::pipe(0));
    let (full_reader, full_writer) = must!(file::pipe(0));
    let child = must!(fork(|| {
        let _ = file::splice((reader.raw(), None), (full_writer.raw(), None), 100, 0);
        0
    }));
    cops::sleep(cops::time::Duration::from_millis(10)).await;
    must!(system::process::kill(child as u32, signal::KILL));
    check_eq!(status_of(child), Ok(0x100 | signal::KILL));
    check_eq!(file::write(full_writer.raw(), &[1; 65_536]), Ok(65_536));
    check_eq!(file::write(writer.raw(), b"kept"), Ok(4));
    let child = must!(fork(|| {
        let _ = file::splice((reader.raw(), None), (full_writer.raw(), None), 100, 0);
        0
    }));
    cops::sleep(cops::time::Duration::from_millis(10)).await;
    must!(system::process::kill(child as u32, signal::KILL));
    check_eq!(status_of(child), Ok(0x100 | signal::KILL));
    let mut bytes = [0; 8];
    check_eq!((file::read(reader.raw(), &mut bytes), &bytes[..4]), (Ok(4), &b"kept"[..]));
    drop(full_reader);
    Ok(())
}
