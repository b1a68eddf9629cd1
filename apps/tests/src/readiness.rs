//! Readiness: epoll, ppoll and event counters. Illegal calls first.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi_unix::types::{EFD_SEMAPHORE, SHUT_WR, SOCK_NONBLOCK, SOCK_STREAM, SocketAddress, TimeSpec, open};
use abi_unix::{Counter, Errno, SystemCall};
use cops::system;
use cops::system::readiness::{Epoll, Event, event, event_counter};
use cops::thread;
use cops::time::{Duration, Instant};

use crate::harness::{Outcome, call, counter};
use crate::{check, check_eq, must};

const KERNEL: usize = 0xffff_ffc0_8020_0000;
const CLOSED: i32 = 777;

/// Returns the events that are ready now, as pairs of data and events.
fn ready(epoll: &Epoll) -> Result<Vec<(u64, u32)>, Errno> {
    let mut events = [Event::default(); 64];
    let count = epoll.wait(&mut events, 0)?;
    Ok(events[..count].iter().map(|event| (event.data, event.events)).collect())
}

/// A queue is read, watched by an epoll, waited for asynchronously, and closed by the end of its process.
pub async fn events_of_files() -> Outcome {
    use system::readiness::{end_watch, event_file, watch_file};

    let queue = must!(event_file(open::NONBLOCK));
    let mut bytes = [0u8; 256];
    must!(system::file::make_directory(c"/tmp/watched", 0o700));
    let watch = must!(watch_file(queue.raw(), c"/tmp/watched", 0x300));
    check_eq!(watch_file(queue.raw(), c"/tmp/watched", 0x300), Ok(watch));
    check_eq!(watch_file(queue.raw(), c"/tmp/missing", 0x300), Err(Errno::ENOENT));
    let epoll = must!(Epoll::new());
    must!(epoll.add(queue.raw(), event::IN, 5));
    check_eq!(ready(&epoll), Ok(alloc::vec![]));
    check_eq!(system::file::read(queue.raw(), &mut bytes), Err(Errno::EAGAIN));
    drop(must!(system::file::open(c"/tmp/watched/a-name", open::RDWR | open::CREAT, 0o600)));
    check_eq!(ready(&epoll), Ok(alloc::vec![(5, event::IN)]));
    check_eq!(system::file::read(queue.raw(), &mut bytes[..31]), Err(Errno::EINVAL));
    check_eq!(system::file::read(queue.raw(), &mut bytes), Ok(32));
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
    check_eq!([word(0) as i32, word(4) as i32, word(8) as i32, word(12) as i32], [watch, 0x100, 0, 16]);
    check_eq!(&bytes[16..32], b"a-name\0\0\0\0\0\0\0\0\0\0");
    check_eq!(ready(&epoll), Ok(alloc::vec![]));
    must!(system::file::unlink(c"/tmp/watched/a-name", 0));
    check_eq!(system::file::read(queue.raw(), &mut bytes), Ok(32));
    must!(end_watch(queue.raw(), watch));
    check_eq!(end_watch(queue.raw(), watch), Err(Errno::EINVAL));
    check_eq!(system::file::read(queue.raw(), &mut bytes), Ok(16));
    must!(watch_file(queue.raw(), c"/tmp/watched", 0xfff));
    must!(system::file::unlink(c"/tmp/watched", 0x200));
    check_eq!(system::file::read(queue.raw(), &mut bytes), Ok(32));
    Ok(())
}

pub async fn illegal_calls() -> Outcome {
    use Errno::*;
    let epoll = must!(Epoll::new());
    let other = must!(Epoll::new());
    let (reader, _writer) = must!(system::file::pipe(0));
    let file = must!(system::file::open(c"/tmp", open::RDONLY, 0));
    let null = must!(system::file::open(c"/dev/null", open::RDWR, 0));
    let raw = epoll.descriptor().raw();
    let wanted = Event { events: event::IN, data: 1 };
    let address = &raw const wanted as usize;
    let control = |epoll: i32, operation: u32, descriptor: i32, event: usize| {
        call(SystemCall::EpollControl, [epoll as usize, operation as usize, descriptor as usize, event, 0, 0])
    };
    check_eq!(call(SystemCall::EpollCreate, [1, 0, 0, 0, 0, 0]), Err(EINVAL));
    for (epoll, operation, descriptor, event, error) in [
        (CLOSED, event::CTL_ADD, reader.raw(), address, EBADF),
        (raw, event::CTL_ADD, CLOSED, address, EBADF),
        (raw, event::CTL_ADD, -1, address, EBADF),
        (raw, event::CTL_ADD, reader.raw(), KERNEL, EFAULT),
        (raw, event::CTL_ADD, reader.raw(), 0, EFAULT),
        (raw, event::CTL_ADD, file.raw(), address, EPERM),
        (raw, event::CTL_ADD, null.raw(), address, EPERM),
        (raw, event::CTL_ADD, raw, address, EINVAL),
        (raw, event::CTL_ADD, other.descriptor().raw(), address, ELOOP),
        (reader.raw(), event::CTL_ADD, other.descriptor().raw(), address, EINVAL),
        (raw, event::CTL_MOD, reader.raw(), address, ENOENT),
        (raw, event::CTL_DEL, reader.raw(), 0, ENOENT),
        (raw, 0, reader.raw(), address, EINVAL),
        (raw, 4, reader.raw(), address, EINVAL),
    ] {
        check_eq!(
            (operation, descriptor, control(epoll, operation, descriptor, event)),
            (operation, descriptor, Err(error))
        );
    }
    must!(epoll.add(reader.raw(), event::IN, 1));
    check_eq!(epoll.add(reader.raw(), event::IN, 1), Err(EEXIST));
    check_eq!(epoll.change(reader.raw(), event::IN | event::EXCLUSIVE, 1), Err(EINVAL));
    let mut events = [Event::default(); 4];
    let buffer = events.as_mut_ptr() as usize;
    let raw = raw as usize;
    for (arguments, error) in [
        ([CLOSED as usize, buffer, 4, 0, 0, 0], EBADF),
        ([reader.raw() as usize, buffer, 4, 0, 0, 0], EINVAL),
        ([raw, buffer, 0, 0, 0, 0], EINVAL),
        ([raw, buffer, usize::MAX, 0, 0, 0], EINVAL),
        ([raw, buffer, 1 << 30, 0, 0, 0], EINVAL),
        ([raw, KERNEL, 4, 0, 0, 0], EFAULT),
        ([raw, buffer, 4, 0, KERNEL, 8], EFAULT),
        ([raw, buffer, 4, 0, buffer, 7], EINVAL),
    ] {
        check_eq!((arguments, call(SystemCall::EpollWait, arguments)), (arguments, Err(error)));
    }
    check_eq!(call(SystemCall::EventCounter, [0, 2, 0, 0, 0, 0]), Err(EINVAL));
    check_eq!(call(SystemCall::Poll, [KERNEL, 1, 0, 0, 0, 0]), Err(EFAULT));
    check_eq!(call(SystemCall::Poll, [buffer, 1 << 20, 0, 0, 0, 0]), Err(EINVAL));
    let bad_time = TimeSpec { seconds: 0, nanoseconds: 1_000_000_000 };
    check_eq!(call(SystemCall::Poll, [buffer, 1, &raw const bad_time as usize, 0, 0, 0]), Err(EINVAL));
    check_eq!(system::file::read(epoll.descriptor().raw(), &mut [0; 8]), Err(EINVAL));
    Ok(())
}

pub async fn level_edge_and_once() -> Outcome {
    let epoll = must!(Epoll::new());
    let (level, level_in) = must!(system::file::pipe(0));
    let (edge, edge_in) = must!(system::file::pipe(0));
    let (once, once_in) = must!(system::file::pipe(0));
    must!(epoll.add(level.raw(), event::IN, 1));
    must!(epoll.add(edge.raw(), event::IN | event::ET, 2));
    must!(epoll.add(once.raw(), event::IN | event::ONESHOT, 3));
    check_eq!(ready(&epoll), Ok(alloc::vec![]));
    for writer in [&level_in, &edge_in, &once_in] {
        check_eq!(system::file::write(writer.raw(), b"abc"), Ok(3));
    }
    check_eq!(ready(&epoll), Ok(alloc::vec![(1, event::IN), (2, event::IN), (3, event::IN)]));
    // A level-triggered event is reported again, an edge with the next write, and a one-shot event once.
    check_eq!(ready(&epoll), Ok(alloc::vec![(1, event::IN)]));
    check_eq!(system::file::write(edge_in.raw(), b"d"), Ok(1));
    check_eq!(system::file::write(once_in.raw(), b"d"), Ok(1));
    let mut now = must!(ready(&epoll));
    now.sort_unstable();
    check_eq!(now, [(1, event::IN), (2, event::IN)]);
    must!(epoll.change(once.raw(), event::IN | event::ONESHOT, 30));
    let mut now = must!(ready(&epoll));
    now.sort_unstable();
    check_eq!(now, [(1, event::IN), (30, event::IN)]);
    // An empty pipe is not reported; one that was read partly is.
    check_eq!(system::file::read(level.raw(), &mut [0; 2]), Ok(2));
    check_eq!(ready(&epoll), Ok(alloc::vec![(1, event::IN)]));
    check_eq!(system::file::read(level.raw(), &mut [0; 2]), Ok(1));
    check_eq!(ready(&epoll), Ok(alloc::vec![]));
    // The end of the writers, whichever events are watched.
    must!(epoll.change(edge.raw(), 0, 2));
    drop((level_in, edge_in, once_in));
    let mut now = must!(ready(&epoll));
    now.sort_unstable();
    check_eq!(now, [(1, event::HUP), (2, event::HUP)]);
    must!(epoll.remove(level.raw()));
    check_eq!(ready(&epoll), Ok(alloc::vec![(2, event::HUP)]));
    // The last descriptor of an open file removes it from the list; a duplicate keeps it.
    let duplicate = must!(edge.duplicate());
    drop(edge);
    check_eq!(ready(&epoll), Ok(alloc::vec![(2, event::HUP)]));
    drop(duplicate);
    check_eq!(ready(&epoll), Ok(alloc::vec![]));

    // Room to write, and no readers.
    let (reader, writer) = must!(system::file::pipe(open::NONBLOCK));
    must!(epoll.add(writer.raw(), event::OUT, 4));
    check_eq!(ready(&epoll), Ok(alloc::vec![(4, event::OUT)]));
    while system::file::write(writer.raw(), &[0; 4096]).is_ok() {}
    check_eq!(ready(&epoll), Ok(alloc::vec![]));
    check_eq!(system::file::read(reader.raw(), &mut [0; 4096]), Ok(4096));
    check_eq!(ready(&epoll), Ok(alloc::vec![(4, event::OUT)]));
    drop(reader);
    check_eq!(ready(&epoll), Ok(alloc::vec![(4, event::OUT | event::ERR)]));
    Ok(())
}

pub async fn event_counters() -> Outcome {
    let number = |descriptor: &system::Descriptor| {
        let mut bytes = [0; 8];
        system::file::read(descriptor.raw(), &mut bytes).map(|_| u64::from_le_bytes(bytes))
    };
    let add = |descriptor: &system::Descriptor, value: u64| system::file::write(descriptor.raw(), &value.to_le_bytes());
    let all = must!(event_counter(3, open::NONBLOCK));
    check_eq!(add(&all, 4), Ok(8));
    check_eq!(number(&all), Ok(7));
    check_eq!(number(&all), Err(Errno::EAGAIN));
    check_eq!(add(&all, u64::MAX), Err(Errno::EINVAL));
    check_eq!(add(&all, u64::MAX - 1), Ok(8));
    check_eq!(add(&all, 1), Err(Errno::EAGAIN));
    check_eq!(system::file::read(all.raw(), &mut [0; 7]), Err(Errno::EINVAL));
    check_eq!(number(&all), Ok(u64::MAX - 1));
    let one = must!(event_counter(2, open::NONBLOCK | EFD_SEMAPHORE));
    check_eq!((number(&one), number(&one), number(&one)), (Ok(1), Ok(1), Err(Errno::EAGAIN)));
    let epoll = must!(Epoll::new());
    must!(epoll.add(one.raw(), event::IN | event::ET, 9));
    check_eq!(add(&one, 1), Ok(8));
    check_eq!(ready(&epoll), Ok(alloc::vec![(9, event::IN)]));
    check_eq!(ready(&epoll), Ok(alloc::vec![]));
    check_eq!(add(&one, 1), Ok(8));
    check_eq!(ready(&epoll), Ok(alloc::vec![(9, event::IN)]));
    Ok(())
}

pub async fn waiters_are_woken() -> Outcome {
    static TURN: AtomicU32 = AtomicU32::new(0);
    const TURNS: u32 = 300;
    let epoll = alloc::sync::Arc::new(must!(Epoll::new()));
    let there = alloc::sync::Arc::new(must!(event_counter(0, 0)));
    let back = must!(event_counter(0, 0));
    must!(epoll.add(there.raw(), event::IN, 5));
    let waiting = must!(thread::spawn({
        let (epoll, there, back) = (epoll.clone(), there.clone(), must!(back.duplicate()));
        move || {
            let mut events = [Event::default(); 4];
            for _ in 0..TURNS {
                if epoll.wait(&mut events, -1) != Ok(1) || events[0] != (Event { events: event::IN, data: 5 }) {
                    return false;
                }
                let _ = system::file::read(there.raw(), &mut [0; 8]);
                TURN.fetch_add(1, Ordering::Release);
                let _ = system::file::write(back.raw(), &1u64.to_le_bytes());
            }
            true
        }
    }));
    for turn in 0..TURNS {
        check_eq!(TURN.load(Ordering::Acquire), turn);
        check_eq!(system::file::write(there.raw(), &1u64.to_le_bytes()), Ok(8));
        check_eq!(system::file::read(back.raw(), &mut [0; 8]), Ok(8));
    }
    check!(waiting.join());
    // Time limits.
    let start = Instant::now();
    let mut events = [Event::default(); 4];
    check_eq!(epoll.wait(&mut events, 3), Ok(0));
    check!(start.elapsed() >= Duration::from_millis(3));
    // Several wait for one epoll instance: each event wakes one that takes it.
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let (epoll, there) = (epoll.clone(), there.clone());
            thread::spawn(move || {
                let mut events = [Event::default(); 4];
                while epoll.wait(&mut events, 20_000) == Ok(0) {}
                system::file::read(there.raw(), &mut [0; 8])
            })
        })
        .collect::<Result<_, _>>()
        .map_err(|error| alloc::format!("{error:?}"))?;
    // All four see it sooner or later, and wait for the counter one after the other.
    let start = Instant::now();
    for waiter in waiters {
        while !waiter.is_finished() {
            check!(start.elapsed() < crate::harness::LIMIT);
            check_eq!(system::file::write(there.raw(), &1u64.to_le_bytes()), Ok(8));
            thread::sleep(Duration::from_millis(1));
        }
        check_eq!(waiter.join(), Ok(8));
    }
    Ok(())
}

pub async fn sockets() -> Outcome {
    let epoll = must!(Epoll::new());
    let listener = must!(system::network::socket(SOCK_STREAM | SOCK_NONBLOCK));
    let address = SocketAddress { address: [127, 0, 0, 1], port: 7300 };
    // Before it listens it is like any unconnected socket.
    must!(epoll.add(listener.raw(), event::IN, 1));
    check_eq!(ready(&epoll), Ok(alloc::vec![(1, event::HUP)]));
    must!(system::network::bind(listener.raw(), address));
    must!(system::network::listen(listener.raw(), 10));
    check_eq!(ready(&epoll), Ok(alloc::vec![]));
    let client = must!(system::network::socket(SOCK_STREAM | SOCK_NONBLOCK));
    must!(epoll.add(client.raw(), event::OUT | event::IN | event::RDHUP | event::ET, 2));
    check_eq!(ready(&epoll), Ok(alloc::vec![(2, event::OUT | event::HUP)]));
    let connecting = system::network::connect(client.raw(), address);
    check!(matches!(connecting, Ok(()) | Err(Errno::EINPROGRESS)), "{connecting:?}");
    let mut now = must!(ready(&epoll));
    now.sort_unstable();
    check_eq!(now, [(1, event::IN), (2, event::OUT)]);
    let (server, _) = must!(system::network::accept(listener.raw()));
    // The other end's edge may come once more, now that it has a peer.
    let now = must!(ready(&epoll));
    check!(now.is_empty() || now == [(2, event::OUT)], "{now:?}");
    check_eq!(ready(&epoll), Ok(alloc::vec![]));
    must!(epoll.add(server.raw(), event::IN | event::RDHUP, 3));
    for turn in 0..50u8 {
        check_eq!(system::network::send_to(client.raw(), &[turn; 100], 0, None), Ok(100));
        let now = must!(ready(&epoll));
        check!(now.contains(&(3, event::IN)), "{now:?}");
        check_eq!(system::file::read(server.raw(), &mut [0; 200]), Ok(100));
        let now = must!(ready(&epoll));
        check!(now.iter().all(|found| found.0 == 2), "{now:?}");
        check_eq!(system::network::send_to(server.raw(), &[turn; 10], 0, None), Ok(10));
        let now = must!(ready(&epoll));
        check!(now.iter().any(|found| found.0 == 2 && found.1 & event::IN != 0), "{now:?}");
        check_eq!(system::file::read(client.raw(), &mut [0; 200]), Ok(10));
        check_eq!(system::file::read(client.raw(), &mut [0; 200]), Err(Errno::EAGAIN));
        let _ = must!(ready(&epoll));
    }
    must!(system::network::shutdown(client.raw(), SHUT_WR));
    let now = must!(ready(&epoll));
    check!(now.contains(&(3, event::IN | event::RDHUP)), "{now:?}");
    check_eq!(system::file::read(server.raw(), &mut [0; 200]), Ok(0));
    drop(server);
    let now = must!(ready(&epoll));
    check!(now.iter().any(|found| found.0 == 2 && found.1 & (event::RDHUP | event::HUP) != 0), "{now:?}");
    check!(now.iter().all(|found| found.0 != 3), "{now:?}");
    Ok(())
}

/// A thousand watched descriptors, of which a few are ready; closing without removal leaves no entries behind.
pub async fn many_watched_and_closed() -> Outcome {
    let heap = counter(Counter::HeapBytes)?;
    {
        let epoll = must!(Epoll::new());
        for round in 0..3 {
            let counters: Vec<_> = must!((0..1000).map(|_| event_counter(0, 0)).collect::<Result<_, _>>());
            for (number, counter) in counters.iter().enumerate() {
                must!(epoll.add(counter.raw(), event::IN | if number % 2 == 0 { event::ET } else { 0 }, number as u64));
            }
            check_eq!(ready(&epoll), Ok(alloc::vec![]));
            for number in [999usize, 1, 500, 7] {
                check_eq!(system::file::write(counters[number].raw(), &1u64.to_le_bytes()), Ok(8));
            }
            let found = must!(ready(&epoll)).iter().map(|found| found.0).collect::<Vec<_>>();
            check_eq!((round, found), (round, alloc::vec![999, 1, 500, 7]));
            for counter in &counters {
                check_eq!(system::file::write(counter.raw(), &1u64.to_le_bytes()), Ok(8));
            }
            // All are reported in turn, though there is room for 64 at a time.
            let mut seen = alloc::collections::BTreeSet::new();
            for _ in 0..40 {
                seen.extend(must!(ready(&epoll)).iter().map(|found| found.0));
            }
            check_eq!(seen.len(), 1000);
        }
        check_eq!(ready(&epoll), Ok(alloc::vec![]));
    }
    crate::harness::returns_to(Counter::HeapBytes, heap + 256 * 1024).await
}

pub async fn lists_of_descriptors() -> Outcome {
    let poll = |list: &mut [(i32, u16, u16)], limit_ns: Option<u64>| {
        let mut bytes = Vec::new();
        for (descriptor, events, _) in list.iter() {
            bytes.extend(descriptor.to_le_bytes());
            bytes.extend(events.to_le_bytes());
            bytes.extend([0xee; 2]);
        }
        let limit = limit_ns.map(TimeSpec::from_ns);
        let limit = limit.as_ref().map_or(0, |limit| core::ptr::from_ref(limit) as usize);
        let result = call(SystemCall::Poll, [bytes.as_mut_ptr() as usize, list.len(), limit, 0, 0, 0]);
        for (index, entry) in list.iter_mut().enumerate() {
            entry.2 = u16::from_le_bytes([bytes[index * 8 + 6], bytes[index * 8 + 7]]);
        }
        result
    };
    let (reader, writer) = must!(system::file::pipe(0));
    let file = must!(system::file::open(c"/tmp", open::RDONLY, 0));
    let (input, output) = (event::IN as u16, event::OUT as u16);
    let mut list = [(reader.raw(), input, 0), (-1, input, 0)];
    check_eq!(poll(&mut list, Some(0)), Ok(0));
    check_eq!((list[0].2, list[1].2), (0, 0));
    let start = Instant::now();
    check_eq!(poll(&mut list, Some(3_000_000)), Ok(0));
    check!(start.elapsed() >= Duration::from_millis(3));
    let mut list = [(reader.raw(), input, 0), (writer.raw(), output, 0), (CLOSED, input, 0), (file.raw(), input, 0)];
    check_eq!(poll(&mut list, None), Ok(3));
    check_eq!(list.map(|entry| entry.2), [0, output, event::NVAL as u16, input]);
    let late = must!(thread::spawn(move || {
        thread::sleep(Duration::from_millis(3));
        system::file::write(writer.raw(), b"x").map(|_| writer)
    }));
    let mut list = [(reader.raw(), input, 0)];
    check_eq!(poll(&mut list, None), Ok(1));
    check_eq!(list[0].2, input);
    drop(must!(late.join()));
    check_eq!(poll(&mut list, None), Ok(1));
    check_eq!(list[0].2, input | event::HUP as u16);
    Ok(())
}
