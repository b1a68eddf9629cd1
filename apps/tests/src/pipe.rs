//! Pipes, synchronous and asynchronous.

use cops::io::pipe;
use cops::system::file as sync;
use cops::time::Duration;
use cops::{Errno, read, write};

use crate::harness::Outcome;
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
