//! Pipes, synchronous and asynchronous.

use abi_unix::SystemCall;
use abi_unix::types::{control, mode, open, signal};
use cops::file::{make_fifo, open_fifo};
use cops::io::pipe;
use cops::system::file as sync;
use cops::time::Duration;
use cops::{Errno, read, write};

use crate::fork::{fork, status_of};
use crate::harness::{Outcome, call};
use crate::{check, check_eq, must};

pub async fn synchronous() -> Outcome {
    let (reader, writer) = must!(sync::pipe(0));
    let mut buffer = [0; 8];
    check_eq!(write!(writer.raw(), b"hello"), Ok(5));
    check_eq!(read!(reader.raw(), &mut buffer), Ok(5));
    check_eq!(&buffer[..5], b"hello");
    check_eq!(read!(writer.raw(), &mut buffer), Err(Errno::EBADF));
    check_eq!(write!(reader.raw(), b"x"), Err(Errno::EBADF));
    drop(writer);
    check_eq!(read!(reader.raw(), &mut buffer), Ok(0));
    let (reader, writer) = must!(sync::pipe(0));
    drop(reader);
    check_eq!(write!(writer.raw(), b"x"), Err(Errno::EPIPE));
    let (reader, _writer) = must!(sync::pipe(abi_unix::types::open::NONBLOCK));
    check_eq!(read!(reader.raw(), &mut buffer), Err(Errno::EAGAIN));
    Ok(())
}

/// A process fills a pipe that was made larger, and another one takes everything out, in pieces of other sizes.
pub async fn a_larger_pipe_keeps_its_bytes_in_their_order() -> Outcome {
    const BYTES: usize = 3 << 20;
    let (reader, writer) = must!(sync::pipe(0));
    let control = |end: i32, command: u32, argument: usize| {
        call(SystemCall::FileControl, [end as usize, command as usize, argument, 0, 0, 0])
    };
    check_eq!(control(reader.raw(), control::GET_CAPACITY, 0), Ok(65536));
    check_eq!(control(writer.raw(), control::SET_CAPACITY, (1 << 20) - 5), Ok(1 << 20));
    let byte = |index: usize| (index % 251) as u8;
    let child = must!(fork(|| {
        let mut written = 0;
        let mut piece = [0; 30_000];
        while written < BYTES {
            let length = piece.len().min(BYTES - written);
            piece.iter_mut().enumerate().for_each(|(index, place)| *place = byte(written + index));
            if sync::write(writer.raw(), &piece[..length]) != Ok(length) {
                return 1;
            }
            written += length;
        }
        0
    }));
    drop(writer);
    let mut buffer = alloc::vec![0; 100_000];
    let mut taken = 0;
    loop {
        let length = 1 + taken * 7 % buffer.len();
        let count = must!(sync::read(reader.raw(), &mut buffer[..length]));
        if count == 0 {
            break;
        }
        let is_right = buffer[..count].iter().enumerate().all(|(index, found)| *found == byte(taken + index));
        check!(is_right, "other bytes within {count} from {taken}");
        taken += count;
    }
    check_eq!((taken, must!(status_of(child))), (BYTES, 0));
    Ok(())
}

pub async fn asynchronous_as_in_the_papers() -> Outcome {
    let (reader, writer) = must!(sync::pipe(0));
    let current = cops::current();
    // Ready: done in place.
    let (result, _) = write!(writer.raw(), &b"ready"[..], current);
    check_eq!(result, Ok(5));
    let (result, buffer) = read!(reader.raw(), alloc::vec![0; 8], current);
    check_eq!(result, Ok(5));
    check_eq!(&buffer[..5], b"ready");
    // Not ready: another coroutine writes while this one waits.
    let number = writer.raw();
    let writing = cops::spawn(async move {
        cops::sleep(Duration::from_millis(5)).await;
        write!(number, &b"later"[..], cops::current()).0
    });
    let (result, buffer) = read!(reader.raw(), buffer, current);
    check_eq!(result, Ok(5));
    check_eq!(&buffer[..5], b"later");
    check_eq!(writing.await, Ok(Ok(5)));
    Ok(())
}

pub async fn a_full_pipe_makes_writers_wait() -> Outcome {
    let (reader, writer) = must!(pipe());
    let total = 1_000_000usize;
    let writing = cops::spawn(async move {
        let data: alloc::vec::Vec<u8> = (0..total).map(|index| (index % 251) as u8).collect();
        writer.write_all(data).await.0
    });
    let mut buffer = alloc::vec![0; 10_007];
    let mut seen = 0usize;
    loop {
        let (result, returned) = reader.read(buffer).await;
        buffer = returned;
        let count = must!(result);
        if count == 0 {
            break;
        }
        for byte in &buffer[..count] {
            check!(*byte == (seen % 251) as u8, "byte {seen} is {byte}");
            seen += 1;
        }
    }
    check_eq!(seen, total);
    check_eq!(writing.await, Ok(Ok(())));
    Ok(())
}

pub async fn the_end_wakes_waiters() -> Outcome {
    let (reader, writer) = must!(pipe());
    let reading = cops::spawn(async move { reader.read(alloc::vec![0; 4]).await.0 });
    cops::sleep(Duration::from_millis(5)).await;
    drop(writer);
    check_eq!(reading.await, Ok(Ok(0)));
    let (reader, writer) = must!(pipe());
    let writing = cops::spawn(async move { writer.write_all(alloc::vec![0; 1 << 20]).await.0 });
    cops::sleep(Duration::from_millis(5)).await;
    drop(reader);
    check_eq!(writing.await, Ok(Err(Errno::EPIPE)));
    Ok(())
}

/// The papers' ring of pipes: every coroutine reads from its predecessor and writes to the next.
pub async fn a_ring_of_pipes() -> Outcome {
    const LENGTH: usize = 100;
    let mut pipes = alloc::vec::Vec::new();
    for _ in 0..LENGTH {
        pipes.push(must!(pipe()));
    }
    let (readers, mut writers): (alloc::vec::Vec<_>, alloc::vec::Vec<_>) = pipes.into_iter().unzip();
    let first = writers.remove(0);
    writers.push(first);
    // The first write is to the reader of pipe 0, whose writer has moved to the end.
    let mut running = alloc::vec::Vec::new();
    for (index, (reader, writer)) in readers.into_iter().zip(writers).enumerate() {
        running.push(cops::spawn(async move {
            let mut buffer = alloc::vec![0u8; 8];
            if index == 0 {
                writer.write_all(7u64.to_le_bytes().to_vec()).await.0?;
            }
            for turn in 0..20 {
                let (result, returned) = reader.read_exact(buffer).await;
                result?;
                buffer = returned;
                if index == 0 && turn == 19 {
                    break;
                }
                let (result, returned) = writer.write_all(buffer).await;
                result?;
                buffer = returned;
            }
            Ok::<u64, Errno>(buffer.iter().fold(0, |sum, byte| sum + u64::from(*byte)))
        }));
    }
    for handle in running {
        check_eq!(handle.await, Ok(Ok(7)));
    }
    Ok(())
}

/// The name of a FIFO, as coroutines and as calls take it.
const FIFO: &str = "/tmp/tests-fifo";
const NAME: &core::ffi::CStr = c"/tmp/tests-fifo";

pub async fn fifos_that_cannot_be_made_or_opened() -> Outcome {
    for (kind, error) in [
        (mode::CHARACTER, Errno::EPERM),
        (mode::BLOCK, Errno::EPERM),
        (mode::DIRECTORY, Errno::EPERM),
        (mode::LINK, Errno::EINVAL),
    ] {
        check_eq!((kind, sync::make_node(NAME, kind | 0o600)), (kind, Err(error)));
    }
    check_eq!(open_fifo(FIFO, open::RDONLY).await.err(), Some(Errno::ENOENT));
    must!(make_fifo(FIFO));
    check_eq!(make_fifo(FIFO), Err(Errno::EEXIST));
    check_eq!(make_fifo("/tmp/tests-fifo/x"), Err(Errno::ENOTDIR));
    check_eq!(sync::open(NAME, open::WRONLY | open::NONBLOCK, 0).err(), Some(Errno::ENXIO));
    let file = must!(sync::open(NAME, open::RDWR, 0));
    check_eq!(must!(sync::status(file.raw())).mode & mode::TYPE, mode::PIPE);
    check_eq!(sync::seek(file.raw(), 0, 0), Err(Errno::ESPIPE));
    check_eq!(sync::truncate(file.raw(), 0), Err(Errno::EINVAL));
    check_eq!(sync::unlink(NAME, 0), Ok(()));
    Ok(())
}

pub async fn the_sides_of_a_fifo_meet() -> Outcome {
    must!(make_fifo(FIFO));
    for (first, second) in [(open::RDONLY, open::WRONLY), (open::WRONLY, open::RDONLY)] {
        let opening = cops::spawn(open_fifo(FIFO, first));
        cops::sleep(Duration::from_millis(5)).await;
        check!(!opening.is_finished(), "it does not wait for the other side");
        let other = must!(open_fifo(FIFO, second).await);
        let own = must!(must!(opening.await));
        let (reader, writer) = if first == open::RDONLY { (&own, &other) } else { (&other, &own) };
        check_eq!(writer.write_all(&b"through"[..]).await.0, Ok(()));
        let (count, bytes) = reader.read(alloc::vec![0; 20]).await;
        check_eq!((count, &bytes[..7]), (Ok(7), &b"through"[..]));
    }
    // One that is dropped is no reader any more.
    let opening = cops::spawn(open_fifo(FIFO, open::RDONLY));
    cops::sleep(Duration::from_millis(5)).await;
    opening.cancel();
    let mut writer = sync::open(NAME, open::WRONLY | open::NONBLOCK, 0);
    while writer.is_ok() {
        drop(writer);
        cops::sleep(Duration::from_millis(1)).await;
        writer = sync::open(NAME, open::WRONLY | open::NONBLOCK, 0);
    }
    check_eq!(writer.err(), Some(Errno::ENXIO));
    check_eq!(sync::unlink(NAME, 0), Ok(()));
    Ok(())
}

/// As the processes of `make` share the right to work.
pub async fn processes_share_tokens_through_a_fifo() -> Outcome {
    must!(make_fifo(FIFO));
    let both = must!(sync::open(NAME, open::RDWR, 0));
    check_eq!(sync::write(both.raw(), b"++"), Ok(2));
    let mut children = alloc::vec::Vec::new();
    for _ in 0..4 {
        children.push(must!(fork(|| {
            let opened = sync::open(NAME, open::RDWR, 0);
            let Ok(own) = opened else { return 1 };
            for _ in 0..20 {
                let mut token = [0];
                if sync::read(own.raw(), &mut token) != Ok(1) || token != *b"+" {
                    return 2;
                }
                if sync::write(own.raw(), &token) != Ok(1) {
                    return 3;
                }
            }
            0
        })));
    }
    for child in children {
        check_eq!(status_of(child), Ok(0));
    }
    let mut tokens = [0; 3];
    check_eq!((sync::read(both.raw(), &mut tokens), tokens), (Ok(2), *b"++\0"));
    check_eq!(sync::unlink(NAME, 0), Ok(()));
    Ok(())
}

pub async fn a_process_ends_while_it_opens_a_fifo() -> Outcome {
    must!(make_fifo(FIFO));
    let child = must!(fork(|| {
        let _ = sync::open(NAME, open::RDONLY, 0);
        0
    }));
    // It is a reader as soon as it waits.
    let mut writer = Err(Errno::ENXIO);
    while writer.is_err() {
        cops::sleep(Duration::from_millis(1)).await;
        writer = sync::open(NAME, open::WRONLY | open::NONBLOCK, 0);
    }
    drop(writer);
    check_eq!(status_of(child), Ok(0));
    let child = must!(fork(|| {
        let _ = sync::open(NAME, open::WRONLY, 0);
        0
    }));
    cops::sleep(Duration::from_millis(20)).await;
    must!(cops::system::process::kill(child as u32, signal::KILL));
    check_eq!(status_of(child), Ok(0x109));
    check_eq!(sync::open(NAME, open::WRONLY | open::NONBLOCK, 0).err(), Some(Errno::ENXIO));
    check_eq!(sync::unlink(NAME, 0), Ok(()));
    Ok(())
}
