//! Asynchronous calls: in place, in flight, dropped, more than the ring holds.

use abi_unix::Counter;
use alloc::sync::Arc;
use alloc::vec::Vec;
use cops::io::pipe;
use cops::time::Duration;
use cops::{Errno, system};
use core::pin::pin;

use crate::harness::{
    LIMIT, Outcome, calls_in_flight, calls_in_flight_return_to, counter, no_call_is_in_flight, poll_once,
};
use crate::{check, check_eq, must};

pub async fn ready_calls_are_done_in_place() -> Outcome {
    let (reader, writer) = must!(pipe());
    let mut buffer = alloc::vec![7u8; 64];
    // The counters are for the whole machine: the suite, which waits for this process, and kernel coroutines of the
    // test before may come in between. In some round none does; calls that were not done in place would show in each.
    for _ in 0..100 {
        let (submitted, posted) = (counter(Counter::AsynchronousCalls)?, counter(Counter::Completions)?);
        for _ in 0..100 {
            let (result, returned) = writer.write(buffer).await;
            check_eq!(result, Ok(64));
            let (result, returned) = reader.read(returned).await;
            check_eq!(result, Ok(64));
            buffer = returned;
        }
        // The kernel created no objects for them, and posted no completion.
        if counter(Counter::AsynchronousCalls)? == submitted && counter(Counter::Completions)? == posted {
            return Ok(());
        }
    }
    Err("something was created or posted in each of a hundred rounds".into())
}

pub async fn errors_reach_the_awaiter_with_the_buffer() -> Outcome {
    let (result, buffer) = cops::io::read(999, alloc::vec![1, 2, 3]).await;
    check_eq!((result, buffer), (Err(Errno::EBADF), alloc::vec![1, 2, 3]));
    let (reader, writer) = must!(pipe());
    let waiting = cops::spawn(async move { writer.write_all(alloc::vec![0; 1 << 20]).await });
    cops::sleep(Duration::from_millis(2)).await;
    drop(reader);
    let (result, buffer) = must!(waiting.await);
    check_eq!((result, buffer.len()), (Err(Errno::EPIPE), 1 << 20));
    Ok(())
}

pub async fn a_dropped_call_lets_go_of_its_buffer() -> Outcome {
    /// A buffer that records when it is freed.
    struct Watched(alloc::boxed::Box<[u8; 64]>, Arc<core::sync::atomic::AtomicUsize>);
    impl Drop for Watched {
        fn drop(&mut self) {
            self.1.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        }
    }
    // SAFETY: the bytes are on the heap and owned by this value.
    unsafe impl cops::buffer::Buffer for Watched {
        fn pointer(&self) -> *const u8 {
            self.0.as_ptr()
        }
        fn length(&self) -> usize {
            64
        }
    }
    // SAFETY: as above.
    unsafe impl cops::buffer::BufferMut for Watched {
        fn pointer_mut(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }
    }
    let in_flight = calls_in_flight()?;
    let freed = Arc::new(core::sync::atomic::AtomicUsize::new(0));
    let watched = || Watched(alloc::boxed::Box::new([0; 64]), freed.clone());
    let freed_now = || freed.load(core::sync::atomic::Ordering::Relaxed);
    let (reader, writer) = must!(pipe());
    // Never polled: never made.
    drop(reader.read(watched()));
    check_eq!(freed_now(), 1);
    for round in 2..100 {
        let mut read = reader.read(watched());
        check!(poll_once(&mut read).await.is_none());
        drop(read);
        // Freed when the kernel has let go.
        let start = cops::time::Instant::now();
        while freed_now() < round {
            check!(start.elapsed() < LIMIT, "a buffer was not freed");
            cops::sleep(Duration::from_micros(100)).await;
        }
        check_eq!(freed_now(), round);
    }
    calls_in_flight_return_to(in_flight).await?;
    // The pipe still works, and no abandoned read takes the bytes.
    check_eq!(writer.write(&b"still"[..]).await.0, Ok(5));
    let (result, buffer) = reader.read(alloc::vec![0; 8]).await;
    check_eq!(result, Ok(5));
    check_eq!(&buffer[..5], b"still");
    Ok(())
}

/// A call that is dropped while it waits for input is over at once: a coroutine that begins calls and drops them never
/// accumulates calls in flight, however busy the machine is with other processes.
pub async fn dropped_calls_do_not_pile_up() -> Outcome {
    no_call_is_in_flight().await?;
    let in_flight = calls_in_flight()?;
    let (reader, writer) = must!(pipe());
    for _ in 0..1000 {
        let mut read = reader.read(alloc::vec![0; 64]);
        check!(poll_once(&mut read).await.is_none());
        check_eq!(calls_in_flight()?, in_flight + 1);
        drop(read);
        check_eq!(calls_in_flight()?, in_flight);
    }
    check_eq!(writer.write(&b"still"[..]).await.0, Ok(5));
    let (result, buffer) = reader.read(alloc::vec![0; 8]).await;
    check_eq!(result, Ok(5));
    check_eq!(&buffer[..5], b"still");
    Ok(())
}

/// A call that was polled owns its buffer until its completion, whatever happens to the future.
pub async fn a_call_under_way_is_not_made_again() -> Outcome {
    no_call_is_in_flight().await?;
    let in_flight = calls_in_flight()?;
    let (reader, writer) = must!(pipe());
    let mut read = reader.read(alloc::vec![0; 4]);
    check!(poll_once(&mut read).await.is_none());
    let read = read.with_waiter(0);
    check_eq!(calls_in_flight()?, in_flight + 1);
    check_eq!(writer.write(&b"once"[..]).await.0, Ok(4));
    check_eq!(read.await, (Ok(4), b"once".to_vec()));
    // Likewise among other calls.
    let mut reads = alloc::vec![reader.read(alloc::vec![0; 4]), reader.read(alloc::vec![0; 4])];
    check!(poll_once(&mut reads[1]).await.is_none());
    let mut both = cops::call::all(reads);
    check!(poll_once(&mut both).await.is_none());
    check_eq!(calls_in_flight()?, in_flight + 2);
    check_eq!(writer.write(&b"firstone"[..]).await.0, Ok(8));
    let mut got = both.await;
    got.sort_by(|one, other| one.1.cmp(&other.1));
    check_eq!(got, [(Ok(4), b"firs".to_vec()), (Ok(4), b"tone".to_vec())]);
    calls_in_flight_return_to(in_flight).await?;
    Ok(())
}

pub async fn dropped_at_every_await() -> Outcome {
    let in_flight = calls_in_flight()?;
    for polls in 0..12 {
        let (reader, writer) = must!(pipe());
        let conversation = async {
            for _ in 0..4 {
                // Each of these waits once: no byte was written yet, or the time has not come.
                let (result, _) = reader.read(alloc::vec![0; 16]).await;
                must!(result);
                cops::sleep(Duration::from_micros(50)).await;
                must!(cops::macros::nanosleep(50_000).await.0);
            }
            Ok::<_, alloc::string::String>(())
        };
        {
            let mut conversation = alloc::boxed::Box::pin(conversation);
            for poll in 0..polls {
                if poll_once(&mut conversation).await.is_some() {
                    break;
                }
                if poll % 3 == 0 {
                    check_eq!(writer.write(&b"x"[..]).await.0, Ok(1));
                }
                cops::sleep(Duration::from_micros(200)).await;
            }
        }
        drop(reader);
    }
    calls_in_flight_return_to(in_flight).await
}

pub async fn a_dropped_accept_leaves_no_connection() -> Outcome {
    use cops::net::{TcpListener, TcpStream};
    let address = core::net::SocketAddrV4::new(core::net::Ipv4Addr::LOCALHOST, 0);
    let listener = must!(TcpListener::bind(address));
    let address = must!(listener.local_address());
    let in_flight = calls_in_flight()?;
    for _ in 0..20 {
        let mut accepting = alloc::boxed::Box::pin(listener.accept());
        check!(poll_once(&mut accepting).await.is_none());
        drop(accepting);
    }
    calls_in_flight_return_to(in_flight).await?;
    // The listener still works.
    let connecting = cops::spawn(TcpStream::connect(address));
    let (accepted, _) = must!(must!(cops::timeout(LIMIT, listener.accept()).await));
    let connected = must!(must!(connecting.await));
    check_eq!(connected.write(&b"hi"[..]).await.0, Ok(2));
    check_eq!(accepted.read(alloc::vec![0; 2]).await, (Ok(2), b"hi".to_vec()));
    Ok(())
}

pub async fn more_completions_than_the_ring_holds() -> Outcome {
    const CALLS: usize = 1500;
    let mut sleepers = Vec::new();
    for _ in 0..CALLS {
        sleepers.push(cops::spawn(async { cops::macros::nanosleep(2_000_000).await.0 }));
    }
    // All of them are in flight, and complete while no worker takes the completions.
    for _ in 0..3 {
        cops::yield_now().await;
    }
    must!(system::system::sleep(abi_unix::types::TimeSpec::from_ns(100_000_000)));
    for sleeper in sleepers {
        check_eq!(must!(cops::timeout(LIMIT, sleeper).await), Ok(Ok(0)));
    }
    Ok(())
}

pub async fn cancelling_by_hand() -> Outcome {
    check_eq!(system::worker::cancel(0x1234_5678), Err(Errno::ENOENT));
    // More than the runtime's own.
    const SLEEPERS: u64 = 8;
    let in_flight = calls_in_flight()?;
    let sleep = |_| cops::spawn(async { cops::macros::nanosleep(1_000_000_000_000).await.0 });
    let sleepers: Vec<_> = (0..SLEEPERS).map(sleep).collect();
    let start = cops::time::Instant::now();
    while calls_in_flight()? < in_flight + SLEEPERS {
        check!(start.elapsed() < LIMIT, "{} calls are in flight", calls_in_flight()?);
        cops::sleep(Duration::from_millis(2)).await;
    }
    for sleeper in sleepers {
        sleeper.cancel();
        check_eq!(must!(cops::timeout(LIMIT, sleeper).await), Err(cops::Cancelled));
    }
    calls_in_flight_return_to(in_flight).await
}

pub async fn one_of_two() -> Outcome {
    use cops::select::{Either, join, select};
    let (reader, writer) = must!(pipe());
    let in_flight = calls_in_flight()?;
    for _ in 0..50 {
        let read = reader.read(alloc::vec![0; 4]);
        match select(read, cops::sleep(Duration::from_micros(300))).await {
            Either::Second(()) => {}
            Either::First(result) => return Err(alloc::format!("read {result:?}")),
        }
    }
    calls_in_flight_return_to(in_flight).await?;
    let (read, written) = join(reader.read(alloc::vec![0; 4]), writer.write(&b"both"[..])).await;
    check_eq!(read, (Ok(4), b"both".to_vec()));
    check_eq!(written.0, Ok(4));
    // A pinned reference keeps the future that was not chosen.
    let mut read = pin!(reader.read(alloc::vec![0; 4]));
    check!(matches!(select(read.as_mut(), cops::sleep(Duration::from_millis(1))).await, Either::Second(())));
    check_eq!(writer.write(&b"kept"[..]).await.0, Ok(4));
    check_eq!(read.await, (Ok(4), b"kept".to_vec()));
    Ok(())
}

pub async fn completions_without_a_token_wake_by_cid() -> Outcome {
    let current = cops::current();
    let time = abi_unix::types::TimeSpec::from_ns(2_000_000);
    let start = cops::time::Instant::now();
    // SAFETY: the kernel reads the time before it answers.
    let result = unsafe {
        let arguments = [&raw const time as usize, 0, 0, 0, 0, 0];
        system::syscall_asynchronous(system::SystemCall::Sleep as usize, arguments, current.raw(), 4, 0)
    };
    check_eq!(result, abi_unix::WILL_BE_POSTED);
    let mut waited = false;
    // Pending without a stored waker: only the completion can wake this.
    core::future::poll_fn(|_| {
        if waited {
            core::task::Poll::Ready(())
        } else {
            waited = true;
            core::task::Poll::Pending
        }
    })
    .await;
    check!(start.elapsed() >= Duration::from_millis(2));
    Ok(())
}
