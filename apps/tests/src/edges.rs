//! Corner cases in which Linux is the definition: vectors, datagrams, atomic writes, the status of processes that end
//! in several places at once.

use abi_unix::types::{SocketAddress, control, message, open};
use alloc::vec::Vec;
use cops::file::File;
use cops::process::Ending;
use cops::system::{Descriptor, file as sync, network as socket};
use cops::time::{Duration, Instant};
use cops::{Errno, system};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{self, Outcome};
use crate::{check, check_eq, must};

/// Makes a `writev` of these parts.
fn write_vector(descriptor: i32, parts: &[&[u8]]) -> Result<usize, Errno> {
    let vector: Vec<usize> = parts.iter().flat_map(|part| [part.as_ptr() as usize, part.len()]).collect();
    // SAFETY: the vector and its parts live through the call, which only reads them.
    unsafe { system::call!(WriteVector, descriptor, vector.as_ptr(), parts.len()) }
}

/// Makes a `readv` into these parts.
fn read_vector(descriptor: i32, parts: &mut [&mut [u8]]) -> Result<usize, Errno> {
    let vector: Vec<usize> = parts.iter_mut().flat_map(|part| [part.as_mut_ptr() as usize, part.len()]).collect();
    // SAFETY: the vector lives through the call; its parts are exclusively borrowed.
    unsafe { system::call!(ReadVector, descriptor, vector.as_ptr(), parts.len()) }
}

fn make_non_blocking(descriptor: i32) -> Result<usize, Errno> {
    // SAFETY: the call has no pointers.
    unsafe { system::call!(FileControl, descriptor, control::SETFL, open::NONBLOCK) }
}

/// Makes two datagram sockets that are connected to each other.
fn datagram_pair() -> Result<(Descriptor, Descriptor), Errno> {
    let any = SocketAddress { address: [127, 0, 0, 1], port: 0 };
    let (one, two) = (socket::socket(abi_unix::types::SOCK_DGRAM)?, socket::socket(abi_unix::types::SOCK_DGRAM)?);
    socket::bind(one.raw(), any)?;
    socket::bind(two.raw(), any)?;
    socket::connect(one.raw(), socket::local_address(two.raw())?)?;
    socket::connect(two.raw(), socket::local_address(one.raw())?)?;
    Ok((one, two))
}

pub async fn random_bytes_come_to_the_last_one() -> Outcome {
    // SAFETY: the kernel writes at most to the borrowed buffer.
    let random =
        |buffer: &mut [u8], flags: usize| unsafe { system::call!(GetRandom, buffer.as_mut_ptr(), buffer.len(), flags) };
    let mut seen: Vec<[u8; 8]> = Vec::new();
    for length in [0, 1, 255, 256, 257, 1023, 1024, 1025, 4096, 100_000] {
        for flags in 0..3 {
            let mut buffer = alloc::vec![0; length + 16];
            check_eq!(random(&mut buffer[..length], flags), Ok(length));
            check!(buffer[length..].iter().all(|&byte| byte == 0), "beyond {length} bytes");
            let words = buffer[..length].chunks_exact(8).map(|word| <[u8; 8]>::try_from(word).unwrap_or_default());
            seen.extend(words);
        }
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    check_eq!(seen.len(), count);
    // The last page is not mapped: the bytes before it are written.
    let memory = must!(system::memory::map(2 * 4096));
    // SAFETY: no code uses the second page.
    must!(unsafe { system::memory::unmap(memory.add(4096), 4096) });
    // SAFETY: no mapping follows the first page.
    let result = unsafe { system::call!(GetRandom, memory, 8192, 0) };
    check!(matches!(result, Ok(1..=4096)), "{result:?}");
    // SAFETY: no code uses the rest.
    must!(unsafe { system::memory::unmap(memory, 4096) });
    // Devices behave alike, in pieces.
    for name in ["/dev/random", "/dev/urandom"] {
        let device = must!(File::open(name));
        let (count, _) = device.read(alloc::vec![0; 5000]).await;
        let count = must!(count);
        check!((256..=5000).contains(&count), "{count} bytes");
    }
    Ok(())
}

pub async fn a_vector_is_one_datagram() -> Outcome {
    let (one, two) = must!(datagram_pair());
    check_eq!(write_vector(one.raw(), &[b"scatter", b"", b" and ", b"gather"]), Ok(18));
    check_eq!(write_vector(one.raw(), &[b"second"]), Ok(6));
    let (mut first, mut rest) = ([0; 4], [0; 64]);
    check_eq!(read_vector(two.raw(), &mut [&mut first, &mut [], &mut rest]), Ok(18));
    check_eq!((&first, &rest[..14]), (b"scat", &b"ter and gather"[..]));
    // Bytes of a datagram beyond the buffer are lost.
    let mut short = [0; 3];
    check_eq!(read_vector(two.raw(), &mut [&mut short]), Ok(3));
    check_eq!(&short, b"sec");
    must!(make_non_blocking(two.raw()));
    check_eq!(read_vector(two.raw(), &mut [&mut short]), Err(Errno::EAGAIN));
    // An empty vector is no datagram, and reads none; an empty write is an empty datagram.
    check_eq!(write_vector(one.raw(), &[]), Ok(0));
    check_eq!(write_vector(one.raw(), &[b"", b""]), Ok(0));
    check_eq!(read_vector(two.raw(), &mut [&mut short]), Err(Errno::EAGAIN));
    check_eq!(sync::write(one.raw(), b""), Ok(0));
    check_eq!(read_vector(two.raw(), &mut [&mut []]), Ok(0));
    check_eq!(socket::receive_from(two.raw(), &mut rest, message::DONTWAIT).map(|(count, _)| count), Ok(0));
    check_eq!(socket::receive_from(two.raw(), &mut rest, message::DONTWAIT).err(), Some(Errno::EAGAIN));
    // Too long together, and a bad part: no datagram is sent.
    let half = alloc::vec![1u8; 40_000];
    check_eq!(write_vector(one.raw(), &[&half, &half]), Err(Errno::EMSGSIZE));
    let parts = [b"good".as_ptr() as usize, 4, 8, 4];
    // SAFETY: the second part is not mapped, which the kernel detects.
    check_eq!(unsafe { system::call!(WriteVector, one.raw(), parts.as_ptr(), 2) }, Err(Errno::EFAULT));
    check_eq!(socket::receive_from(two.raw(), &mut rest, message::DONTWAIT).err(), Some(Errno::EAGAIN));
    Ok(())
}

pub async fn a_short_vector_comes_out_of_a_pipe_together() -> Outcome {
    const CAPACITY: usize = 65_536;
    let (reader, writer) = must!(sync::pipe(0));
    must!(make_non_blocking(writer.raw()));
    must!(make_non_blocking(reader.raw()));
    let filling = alloc::vec![0u8; CAPACITY - 100];
    // In parts, since a long write ends early when an interrupt is pending.
    let mut filled = 0;
    while filled < filling.len() {
        filled += must!(sync::write(writer.raw(), &filling[filled..]));
    }
    // There is room for the first parts only, so none is written.
    let part = [7u8; 60];
    check_eq!(write_vector(writer.raw(), &[&part, &part]), Err(Errno::EAGAIN));
    // A write that is too long to be atomic is done as far as there is room.
    let long = [8u8; 3000];
    check_eq!(write_vector(writer.raw(), &[&long, &long]), Ok(100));
    let mut buffer = alloc::vec![0u8; CAPACITY + 1];
    check_eq!(sync::read(reader.raw(), &mut buffer), Ok(CAPACITY));
    check!(buffer[..CAPACITY - 100].iter().all(|byte| *byte == 0));
    check!(buffer[CAPACITY - 100..CAPACITY].iter().all(|byte| *byte == 8));
    check_eq!(sync::read(reader.raw(), &mut buffer), Err(Errno::EAGAIN));
    check_eq!(write_vector(writer.raw(), &[&part, &part]), Ok(120));
    check_eq!(sync::read(reader.raw(), &mut buffer), Ok(120));
    drop(reader);
    check_eq!(write_vector(writer.raw(), &[b"", b"x"]), Err(Errno::EPIPE));
    check_eq!(write_vector(writer.raw(), &[]), Ok(0));
    Ok(())
}

/// Makes an `ftruncate`.
fn truncate(descriptor: i32, length: i64) -> Result<usize, Errno> {
    // SAFETY: the call has no pointers.
    unsafe { system::call!(Truncate, descriptor, length) }
}

pub async fn errors_of_truncating() -> Outcome {
    let file = must!(File::open_with("/tmp/truncated", open::CREAT | open::RDWR));
    let only_read = must!(File::open("/tmp/truncated"));
    check_eq!(truncate(999, 1), Err(Errno::EBADF));
    check_eq!(truncate(-1, 1), Err(Errno::EBADF));
    check_eq!(truncate(file.descriptor().raw(), -1), Err(Errno::EINVAL));
    check_eq!(truncate(999, -1), Err(Errno::EINVAL));
    check_eq!(truncate(only_read.descriptor().raw(), 1), Err(Errno::EINVAL));
    let (reader, writer) = must!(sync::pipe(0));
    check_eq!(truncate(writer.raw(), 1), Err(Errno::EINVAL));
    check_eq!(truncate(reader.raw(), 1), Err(Errno::EINVAL));
    check_eq!(truncate(must!(File::open("/tmp")).descriptor().raw(), 1), Err(Errno::EINVAL));
    check_eq!(truncate(file.descriptor().raw(), 5000), Ok(0));
    check_eq!(must!(file.status()).size, 5000);
    // Bad descriptors for vectors are noticed before bad vectors, whatever is in them.
    check_eq!(read_vector(writer.raw(), &mut []), Err(Errno::EBADF));
    check_eq!(write_vector(reader.raw(), &[]), Err(Errno::EBADF));
    must!(cops::file::remove("/tmp/truncated"));
    Ok(())
}

/// Number of workers that end at once in [`end_together`].
const WORKERS: usize = 4;

/// Ends all workers at the same moment with statuses of their own: 40 and the number of the worker. With `exit_group`
/// the first one's status counts, with `exit` that of worker 0.
pub async fn end_together(whole_process: bool) -> i32 {
    static THERE: AtomicUsize = AtomicUsize::new(0);
    if cops::alloc_cpu(WORKERS - 1).is_err() {
        return 1;
    }
    for _ in 0..WORKERS {
        cops::spawn(async move {
            // One coroutine on each worker: none continues before all have come.
            THERE.fetch_add(1, Ordering::AcqRel);
            while THERE.load(Ordering::Acquire) < WORKERS {
                core::hint::spin_loop();
            }
            // SAFETY: the calls have no pointers, and end this worker.
            unsafe {
                let worker = system::call!(GetThread).unwrap_or(0) >> 16;
                let _ = match whole_process {
                    true => system::call!(ExitGroup, 40 + worker),
                    false => system::call!(Exit, 40 + worker),
                };
            }
        })
        .detach();
    }
    let start = Instant::now();
    while start.elapsed() < harness::LIMIT {
        cops::yield_now().await;
    }
    2
}

pub async fn ending_in_several_places_at_once() -> Outcome {
    for _ in 0..10 {
        check_eq!(harness::ending_of_act("exit-together").await?, Ending::Exited(40));
        let ending = harness::ending_of_act("exit-group-together").await?;
        check!(matches!(ending, Ending::Exited(40..=43)), "{ending:?}");
    }
    Ok(())
}

pub async fn a_handler_takes_itself_away() -> Outcome {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handler(_: u64) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the call has no pointers.
        let _ = unsafe { system::call!(InterruptHandler, 0) };
    }
    let limit = Instant::now();
    for round in 1..=3 {
        let before = COUNT.load(Ordering::Relaxed);
        check_eq!(before, round - 1);
        // A completion that came too late for the last handler may interrupt this one at once.
        // SAFETY: the handler uses an atomic only.
        must!(unsafe { system::interrupt::set_handler(handler, || 0) });
        // Completions of more important calls interrupt this coroutine, which does not pause: the first is handled, and
        // later ones find no handler. All that come before this coroutine continues are seen without an interrupt.
        let mut naps = Vec::new();
        while COUNT.load(Ordering::Relaxed) == before {
            check!(limit.elapsed() < harness::LIMIT, "no completion interrupts");
            naps.extend((1..=3).map(|nap| {
                cops::spawn_at(cops::Priority::HIGHEST, async move { cops::macros::nanosleep(nap * 2_000_000).await.0 })
            }));
            cops::yield_now().await;
            let start = Instant::now();
            while COUNT.load(Ordering::Relaxed) == before && start.elapsed() < Duration::from_secs(1) {
                core::hint::spin_loop();
            }
        }
        let handled = Instant::now();
        while handled.elapsed() < Duration::from_millis(10) {
            core::hint::spin_loop();
        }
        check_eq!(COUNT.load(Ordering::Relaxed), before + 1);
        for nap in naps {
            check_eq!(must!(nap.await), Ok(0));
        }
    }
    Ok(())
}
