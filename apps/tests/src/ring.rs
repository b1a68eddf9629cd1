//! Calls through request rings: by the runtime, by hand, and by hostile processes.
//!
//! Tests that access a ring by hand make their other calls directly, so that the runtime sets up no ring, and have no
//! interrupt handler, which would take completions before the test has seen them. They wait for completions without
//! pausing: more important work may have come between, and then the ring's server takes requests.

use core::pin::pin;
use core::sync::atomic::Ordering;

use abi_queue::pages::{PROCESS_PAGE_OFFSET, REQUEST_RINGS_OFFSET};
use abi_queue::{Completion, CompletionHeader, Priority, Request, RequestHeader, completion, request};
use abi_unix::call::{Origin, RING_WAKE};
use abi_unix::errno::{decode, encode};
use abi_unix::types::{TimeSpec, auxiliary};
use abi_unix::{Counter, SystemCall};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use cops::call::{Operation, Way, set_way};
use cops::io::pipe;
use cops::process::Ending;
use cops::time::{Duration, Instant};
use cops::{Errno, system};
use ring::{Completions, Full, Producer, Requests};

use crate::harness::{
    self, LIMIT, Outcome, calls_in_flight, calls_in_flight_return_to, counter, poll_once, reaches, returns_to, told,
};
use crate::{check, check_eq, must};

/// A ring that the test fills and reads itself, in a process whose runtime has none.
pub struct Raw {
    pub requests: Requests<'static>,
    pub producer: Producer,
    pub completions: Completions<'static>,
}

/// Entries of such a ring.
pub const SMALL: usize = 64;

impl Raw {
    pub fn new() -> Result<Raw, Errno> {
        set_way(Way::Direct);
        // SAFETY: the call has no pointers.
        unsafe { system::call!(InterruptHandler, 0) }?;
        let address = system::worker::ring_setup(SMALL, 0)?;
        let header = address as *const RequestHeader;
        // SAFETY: the kernel has mapped the rings there, and all of them is atomic words.
        unsafe {
            let entries = core::slice::from_raw_parts((address + request::ENTRIES_OFFSET) as *const _, SMALL);
            let requests = Requests::new(&*header, entries);
            let ring = told(auxiliary::COPS_COMPLETION_RING);
            let header = ring as *const CompletionHeader;
            let entries = (ring + completion::ENTRIES_OFFSET) as *const _;
            let entries = core::slice::from_raw_parts(entries, completion::INITIAL_CAPACITY);
            let completions = Completions::new(&*header, entries);
            Ok(Raw { requests, producer: Producer::new(SMALL), completions })
        }
    }

    pub fn submit(&mut self, call: SystemCall, token: u64, arguments: &[usize]) -> Result<(), Full> {
        self.submit_word(system::raw::asynchronous_number(call as usize, 4) as u64, token, arguments)
    }

    fn submit_word(&mut self, call: u64, token: u64, arguments: &[usize]) -> Result<(), Full> {
        let mut words = [0; 6];
        for (word, argument) in words.iter_mut().zip(arguments) {
            *word = *argument as u64;
        }
        self.requests.submit(
            &mut self.producer,
            Request { call, token, arguments: words },
            request::urgency(Priority::DEFAULT),
        )
    }

    /// Makes one request that is done at once; returns its result.
    fn make(&mut self, call: SystemCall, arguments: &[usize]) -> Result<usize, Errno> {
        self.submit(call, 77, arguments).map_err(|Full| Errno::EAGAIN)?;
        system::worker::ring_enter(0, 0)?;
        match self.wait() {
            Ok(Completion { token: 77, cid: 0, result }) => decode(result as usize),
            _ => Err(Errno::EIO),
        }
    }

    /// Takes a completion before the runtime sees it.
    pub fn take(&mut self) -> Option<Completion> {
        // The alarm of the runtime's last sleep may still come long after that. These tests do not sleep any more.
        core::iter::from_fn(|| self.completions.take()).find(|completion| completion.token as u32 != u32::MAX)
    }

    /// Waits for a completion.
    pub fn wait(&mut self) -> Result<Completion, alloc::string::String> {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.take() {
                return Ok(completion);
            }
            check!(start.elapsed() < LIMIT, "no completion came");
            core::hint::spin_loop();
        }
    }
}

pub async fn wrong_sizes_and_numbers() -> Outcome {
    set_way(Way::Direct);
    check_eq!(system::worker::ring_enter(0, 0), Err(Errno::ENXIO));
    for wrong in [0, 1, 32, 63, 65, 100, 1000, 4097, 8192, 1 << 20, 1 << 63, usize::MAX] {
        check_eq!(system::worker::ring_setup(wrong, 0), Err(Errno::EINVAL));
        if wrong != 0 {
            check_eq!(system::worker::ring_setup(64, wrong), Err(Errno::EINVAL));
        }
    }
    let raw = must!(Raw::new());
    check_eq!(system::worker::ring_setup(64, 0), Err(Errno::EEXIST));
    let first_ring = told(auxiliary::COPS_PROCESS_PAGE) - PROCESS_PAGE_OFFSET + REQUEST_RINGS_OFFSET;
    check_eq!(core::ptr::from_ref(raw.requests.header()) as usize, first_ring);
    check_eq!(raw.requests.header().capacity.load(Ordering::Relaxed), 64);
    for wrong in [1, 7, 8, 99, usize::MAX] {
        check_eq!(system::worker::ring_enter(wrong, 0), Err(Errno::ENXIO));
    }
    for wrong in [2, 3, 1 << 40, usize::MAX] {
        check_eq!(system::worker::ring_enter(0, wrong), Err(Errno::EINVAL));
    }
    check_eq!(system::worker::ring_enter(0, 0), Ok(()));
    check_eq!(system::worker::ring_enter(0, RING_WAKE), Ok(()));
    Ok(())
}

pub async fn the_completion_ring_can_grow() -> Outcome {
    set_way(Way::Direct);
    // SAFETY: the kernel maps the completion ring's first page there.
    let header = unsafe { &*(told(auxiliary::COPS_COMPLETION_RING) as *const CompletionHeader) };
    check_eq!(header.capacity.load(Ordering::Relaxed), completion::INITIAL_CAPACITY as u64);
    // A mapping of the process is in the way.
    let place = told(auxiliary::COPS_COMPLETION_RING) + completion::pages(512) * 4096;
    let flags = abi_unix::types::mapping::PRIVATE
        | abi_unix::types::mapping::ANONYMOUS
        | abi_unix::types::mapping::FIXED_NOREPLACE;
    // SAFETY: the mapping replaces nothing.
    let mapped = must!(unsafe { system::memory::map_with(place, 4096, 3, flags, -1, 0) });
    check_eq!(system::worker::ring_setup(64, 1024), Err(Errno::EEXIST));
    check_eq!(header.capacity.load(Ordering::Relaxed), completion::INITIAL_CAPACITY as u64);
    // SAFETY: no code uses it.
    must!(unsafe { system::memory::unmap(mapped, 4096) });
    // The runtime enlarges it, and records that.
    set_way(Way::Ring);
    let (result, _) = cops::macros::nanosleep(1000).await;
    check_eq!(result, Ok(0));
    check!(header.capacity.load(Ordering::Relaxed) >= 1024);
    let sleepers: Vec<_> = (0..3000).map(|_| cops::spawn(async { cops::macros::nanosleep(100_000).await.0 })).collect();
    for sleeper in sleepers {
        check_eq!(must!(cops::timeout(LIMIT, sleeper).await), Ok(Ok(0)));
    }
    Ok(())
}

pub async fn malformed_requests_complete_with_an_error() -> Outcome {
    let mut raw = must!(Raw::new());
    check_eq!(raw.make(SystemCall::GetProcess, &[]), Ok(system::process::number() as usize));
    for &call in SystemCall::ALL.iter().filter(|call| call.origin() == Origin::Worker) {
        for argument in [0, 1] {
            check_eq!(raw.make(call, &[argument]), Err(Errno::EOPNOTSUPP));
        }
    }
    for (word, error) in [
        (0xffff, Errno::ENOSYS),
        (0, Errno::ENOSYS),
        (SystemCall::GetProcess as u64 | 1 << 18, Errno::EINVAL),
        (SystemCall::GetProcess as u64 | 1 << 30, Errno::EINVAL),
        (SystemCall::GetProcess as u64 | 1 << 63, Errno::EINVAL),
        (u64::MAX, Errno::EINVAL),
    ] {
        must!(raw.submit_word(word, 5, &[1, 2, 3]).map_err(|Full| Errno::EAGAIN));
        must!(system::worker::ring_enter(0, 0));
        let completion = raw.wait()?;
        let wakes = word & request::WAKES != 0;
        let (token, cid) = if wakes { (0, 5) } else { (5, 0) };
        check_eq!(completion, Completion { token, cid, result: encode(Err(error)) as u64 });
    }
    check_eq!(raw.make(SystemCall::Read, &[999, 0, 0]), Err(Errno::EBADF));
    check_eq!(raw.make(SystemCall::GetTime, &[1, 8]), Err(Errno::EFAULT));
    check_eq!(raw.make(SystemCall::GetTime, &[1, 0xffff_ffc0_8020_0000]), Err(Errno::EFAULT));
    check_eq!(raw.make(SystemCall::Cancel, &[123_456]), Err(Errno::ENOENT));
    check_eq!(raw.make(SystemCall::GetThread, &[]), Ok(system::process::number() as usize));
    Ok(())
}

pub async fn a_full_request_ring_refuses_and_loses_nothing() -> Outcome {
    let mut raw = must!(Raw::new());
    let mut next = 0;
    for _ in 0..5 {
        let first = next;
        // An interrupt may let the kernel take some of them meanwhile; the completion ring is full in the end.
        while raw.submit(SystemCall::GetProcess, next, &[]) != Err(Full) {
            next += 1;
            check!(next - first <= (SMALL + completion::INITIAL_CAPACITY) as u64);
        }
        check!(next - first >= SMALL as u64);
        must!(system::worker::ring_enter(0, 0));
        for number in first..next {
            check_eq!(raw.wait()?.token, number);
        }
        check_eq!(raw.take(), None);
    }
    Ok(())
}

pub async fn a_full_completion_ring_stops_the_taking() -> Outcome {
    let mut raw = must!(Raw::new());
    let both = completion::INITIAL_CAPACITY + SMALL;
    let mut next = 0u64;
    for _ in 0..3 {
        // As many as there is room for in the two rings together; then the kernel takes no more, however often it is
        // called.
        let first = next;
        let mut refused = 0;
        while refused < 20 {
            match raw.submit(SystemCall::GetProcess, next, &[]) {
                Ok(()) => (next, refused) = (next + 1, 0),
                Err(Full) => {
                    refused += 1;
                    must!(system::worker::ring_enter(0, 0));
                    // In case more important work came first.
                    must!(system::system::sleep(TimeSpec::from_ns(100_000)));
                }
            }
        }
        // The runtime's alarm may have a place.
        let made = (next - first) as usize;
        check!(made == both || made == both - 1, "{made} requests found room");
        for number in first..next {
            if raw.completions.is_empty() {
                must!(system::worker::ring_enter(0, 0));
            }
            check_eq!(raw.wait()?.token, number);
        }
    }
    Ok(())
}

pub async fn indexes_that_cannot_be_break_the_ring() -> Outcome {
    let mut raw = must!(Raw::new());
    check_eq!(raw.make(SystemCall::GetProcess, &[]), Ok(system::process::number() as usize));
    raw.requests.header().tail.store(1 + SMALL as u64 + 1, Ordering::Release);
    check_eq!(system::worker::ring_enter(0, 0), Err(Errno::EPROTO));
    check_eq!(raw.requests.header().state.load(Ordering::Relaxed), request::BROKEN);
    // Permanently, whatever the process writes now.
    raw.requests.header().tail.store(1, Ordering::Release);
    raw.requests.header().state.store(request::AWAKE, Ordering::Release);
    check_eq!(system::worker::ring_enter(0, 0), Err(Errno::EPROTO));
    check_eq!(system::worker::ring_enter(0, RING_WAKE), Err(Errno::EPROTO));
    check_eq!(system::worker::ring_setup(64, 0), Err(Errno::EEXIST));
    check_eq!(raw.take(), None);
    // Direct calls still work.
    let (reader, writer) = must!(pipe());
    check_eq!(writer.write(&b"direct"[..]).await.0, Ok(6));
    check_eq!(reader.read(alloc::vec![0; 6]).await, (Ok(6), b"direct".to_vec()));
    Ok(())
}

pub async fn the_kernel_s_words_are_not_read_by_it() -> Outcome {
    let mut raw = must!(Raw::new());
    for nonsense in [0u64, 1, 63, 64, 65, 1 << 32, u64::MAX] {
        let header = raw.requests.header();
        header.head.store(nonsense, Ordering::Relaxed);
        header.capacity.store(nonsense, Ordering::Relaxed);
        header.state.store(nonsense, Ordering::Relaxed);
        header.urgency.store(nonsense, Ordering::Relaxed);
        check_eq!(raw.submit(SystemCall::GetProcess, 9, &[]), Ok(()));
        must!(system::worker::ring_enter(0, 0));
        check_eq!(raw.wait()?.token, 9);
    }
    Ok(())
}

pub async fn unmapping_the_ring_hides_it_only() -> Outcome {
    let mut raw = must!(Raw::new());
    for number in 0..10 {
        check_eq!(raw.submit(SystemCall::GetProcess, number, &[]), Ok(()));
    }
    let header = core::ptr::from_ref(raw.requests.header()) as usize;
    // SAFETY: the test does not access the request ring any more.
    must!(unsafe { system::memory::unmap(header as *mut u8, request::pages(SMALL) * 4096) });
    must!(system::worker::ring_enter(0, 0));
    for number in 0..10 {
        check_eq!(raw.wait()?.token, number);
    }
    // Another mapping is there now; the kernel's ring is other memory.
    let flags = abi_unix::types::mapping::PRIVATE
        | abi_unix::types::mapping::ANONYMOUS
        | abi_unix::types::mapping::FIXED_NOREPLACE;
    // SAFETY: the mapping replaces nothing.
    let area = must!(unsafe { system::memory::map_with(header, 4096, 3, flags, -1, 0) });
    // SAFETY: it is this test's.
    unsafe { area.cast::<u64>().write_volatile(5) };
    must!(system::worker::ring_enter(0, 0));
    check_eq!(raw.take(), None);
    check_eq!(system::worker::ring_setup(64, 0), Err(Errno::EEXIST));
    Ok(())
}

pub async fn requests_are_taken_at_the_tick() -> Outcome {
    let mut raw = must!(Raw::new());
    for round in 0..3 {
        check_eq!(raw.submit(SystemCall::GetProcess, round, &[]), Ok(()));
        // No call is made, and this worker does not pause.
        check_eq!(raw.wait()?.token, round);
    }
    Ok(())
}

pub async fn an_idle_hart_takes_requests() -> Outcome {
    let mut raw = must!(Raw::new());
    for round in 0..50 {
        check_eq!(raw.submit(SystemCall::GetProcess, round, &[]), Ok(()));
        if ring::must_be_called(&raw.requests.header().state) {
            must!(system::worker::ring_enter(0, RING_WAKE));
        }
        check_eq!(raw.wait()?.token, round);
    }
    Ok(())
}

pub async fn a_sleeping_worker_s_requests_are_taken() -> Outcome {
    let mut raw = must!(Raw::new());
    let seen = raw.completions.header().head.load(Ordering::Relaxed);
    check_eq!(raw.submit(SystemCall::GetProcess, 1, &[]), Ok(()));
    check_eq!(system::worker::wait(seen, system::worker::NO_LIMIT), Ok(()));
    check_eq!(raw.wait()?.token, 1);
    // And the requests of a worker that waits for another event.
    check_eq!(raw.submit(SystemCall::GetProcess, 2, &[]), Ok(()));
    must!(system::system::sleep(TimeSpec::from_ns(1_000_000)));
    check_eq!(raw.wait()?.token, 2);
    Ok(())
}

pub async fn requests_that_were_not_taken_can_be_cancelled() -> Outcome {
    let mut raw = must!(Raw::new());
    let (reader, writer) = must!(pipe());
    let mut buffer = [0u8; 8];
    let arguments = [reader.descriptor().raw() as usize, buffer.as_mut_ptr() as usize, 8];
    check_eq!(raw.submit(SystemCall::Read, 10, &arguments), Ok(()));
    check_eq!(raw.submit(SystemCall::Read, 11, &arguments), Ok(()));
    // The kernel was not told of them.
    check_eq!(system::worker::cancel(10), Ok(()));
    check_eq!(raw.wait()?, Completion { token: 10, cid: 0, result: encode(Err(Errno::ECANCELED)) as u64 });
    check_eq!(system::worker::cancel(10), Err(Errno::ENOENT));
    // A request can cancel too.
    check_eq!(raw.submit(SystemCall::Cancel, 12, &[11]), Ok(()));
    must!(system::worker::ring_enter(0, 0));
    let (one, other) = (raw.wait()?, raw.wait()?);
    let (cancel, read) = if one.token == 12 { (one, other) } else { (other, one) };
    check_eq!(cancel, Completion { token: 12, cid: 0, result: 0 });
    check_eq!(read, Completion { token: 11, cid: 0, result: encode(Err(Errno::ECANCELED)) as u64 });
    drop(writer);
    check_eq!(buffer, [0; 8]);
    Ok(())
}

/// Makes a buffer for the kernel's use.
fn bytes(length: usize) -> Box<[u8]> {
    alloc::vec![0u8; length].into_boxed_slice()
}

pub async fn every_call_that_waits_works_through_the_ring() -> Outcome {
    use cops::net::{TcpListener, TcpStream, UdpSocket};
    set_way(Way::Ring);
    let taken = counter(Counter::Requests)?;
    let (reader, writer) = must!(pipe());
    // read and write, with and without waiting.
    let read = cops::spawn(async move {
        let first = reader.read(alloc::vec![0; 8]).await;
        (first, reader)
    });
    cops::sleep(Duration::from_millis(1)).await;
    check_eq!(writer.write(&b"through"[..]).await.0, Ok(7));
    let ((result, buffer), reader) = must!(read.await);
    check_eq!((result, &buffer[..7]), (Ok(7), &b"through"[..]));
    // A write that waits for a reader.
    let big = cops::spawn(async move { (writer.write_all(alloc::vec![3; 300_000]).await.0, writer) });
    let mut total = 0;
    while total < 300_000 {
        total += must!(reader.read(alloc::vec![0; 65536]).await.0);
    }
    let (result, writer) = must!(big.await);
    check_eq!(result, Ok(()));
    // readv and writev.
    let mut parts = (bytes(3), bytes(4), Box::new([[0usize; 2]; 2]));
    *parts.2 = [[parts.0.as_ptr() as usize, 3], [parts.1.as_ptr() as usize, 4]];
    let arguments = [reader.descriptor().raw() as usize, parts.2.as_ptr() as usize, 2];
    // SAFETY: the kernel writes to the boxes only, which the call owns.
    let mut readv = pin!(unsafe { Operation::new(SystemCall::ReadVector, arguments, parts) });
    check!(poll_once(&mut readv).await.is_none());
    let text = Box::new(*b"sevenby");
    let vector = Box::new([[text.as_ptr() as usize, 2], [text.as_ptr() as usize + 2, 5]]);
    let arguments = [writer.descriptor().raw() as usize, vector.as_ptr() as usize, 2];
    // SAFETY: as above.
    let (result, _) = unsafe { Operation::new(SystemCall::WriteVector, arguments, (text, vector)) }.await;
    check_eq!(result, Ok(7));
    let (result, parts) = readv.await;
    check_eq!((result, &parts.0[..], &parts.1[..]), (Ok(7), &b"sev"[..], &b"enby"[..]));
    // nanosleep and clock_nanosleep.
    let start = Instant::now();
    check_eq!(cops::macros::nanosleep(2_000_000).await.0, Ok(0));
    let time = Box::new(TimeSpec::from_ns(2_000_000).to_bytes());
    let arguments = [1, 0, time.as_ptr() as usize, 0];
    // SAFETY: as above.
    check_eq!(unsafe { Operation::new(SystemCall::SleepOn, arguments, time) }.await.0, Ok(0));
    check!(start.elapsed() >= Duration::from_millis(4));
    // accept4, connect, sendto and recvfrom over TCP.
    let any = core::net::SocketAddrV4::new(core::net::Ipv4Addr::LOCALHOST, 0);
    let listener = must!(TcpListener::bind(any));
    let address = must!(listener.local_address());
    let accepting = cops::spawn(async move { listener.accept().await });
    let one = must!(TcpStream::connect(address).await);
    let (other, peer) = must!(must!(accepting.await));
    check_eq!(peer, must!(one.local_address()));
    let receiving = cops::spawn(async move {
        let number = other.descriptor().raw();
        let received = cops::macros::receive(number, bytes(16)).await;
        (received, other)
    });
    cops::sleep(Duration::from_millis(1)).await;
    check_eq!(cops::macros::send(one.descriptor().raw(), &b"stream"[..]).await.0, Ok(6));
    let ((result, buffer), other) = must!(receiving.await);
    check_eq!((result, &buffer[..6]), (Ok(6), &b"stream"[..]));
    // The old accept.
    let listener = must!(TcpListener::bind(any));
    let address = must!(listener.local_address());
    let number = listener.descriptor().raw();
    let accepting = cops::spawn(async move { cops::macros::accept(number).await.0 });
    let third = must!(TcpStream::connect(address).await);
    drop(system::Descriptor::from_result(must!(must!(accepting.await))));
    drop((third, one, other, listener));
    // sendto and recvfrom with addresses.
    let (left, right) = (must!(UdpSocket::bind(any)), must!(UdpSocket::bind(any)));
    let (to, from) = (must!(right.local_address()), must!(left.local_address()));
    let receiving = cops::spawn(async move { right.receive_from(alloc::vec![0; 32]).await });
    cops::sleep(Duration::from_millis(1)).await;
    check_eq!(left.send_to(&b"datagram"[..], to).await.0, Ok(8));
    let (result, buffer) = must!(receiving.await);
    check_eq!((result, &buffer[..8]), (Ok((8, from)), &b"datagram"[..]));
    // wait4.
    let child = must!(harness::act("return"));
    let (result, status) = cops::macros::wait(child.number()).await;
    check_eq!((result, Ending::from_status(*status)), (Ok(child.number() as usize), Ending::Exited(7)));
    // Calls that need not wait, and one that fails.
    check_eq!(cops::io::read(999, alloc::vec![1]).await, (Err(Errno::EBADF), alloc::vec![1]));
    // SAFETY: the call has no pointers.
    let asked = unsafe { Operation::new(SystemCall::GetProcess, [], ()) };
    check_eq!(asked.await.0, Ok(system::process::number() as usize));
    check!(counter(Counter::Requests)? >= taken + 20);
    Ok(())
}

pub async fn calls_are_made_directly_until_it_pays() -> Outcome {
    set_way(Way::Adaptive);
    let getpid = || async {
        // SAFETY: the call has no pointers.
        unsafe { Operation::new(SystemCall::GetProcess, [], ()) }.await.0
    };
    let number = system::process::number() as usize;
    let taken = counter(Counter::Requests)?;
    for _ in 0..100 {
        check_eq!(getpid().await, Ok(number));
    }
    check_eq!(counter(Counter::Requests)?, taken);
    // Enough of them at once share their traps.
    let mut callers = Vec::new();
    for _ in 0..64 {
        callers.push(cops::spawn(async move {
            for _ in 0..64 {
                check_eq!(getpid().await, Ok(number));
            }
            Ok(())
        }));
    }
    let traps = counter(Counter::Traps)?;
    for caller in callers {
        must!(caller.await)?;
    }
    let (taken, traps) = (counter(Counter::Requests)? - taken, counter(Counter::Traps)? - traps);
    check!(taken > 3000, "only {taken} of 4096 calls went through the ring");
    check!(traps < 2048, "{traps} traps");
    Ok(())
}

pub async fn all_at_once() -> Outcome {
    for way in [Way::Direct, Way::Ring, Way::Adaptive] {
        set_way(way);
        let (reader, writer) = must!(pipe());
        let none: Vec<Operation<(), 0>> = Vec::new();
        check_eq!(cops::call::all(none).await.len(), 0);
        // More than the ring has entries: some wait, some do not, some fail.
        let reads = (0..40).map(|_| reader.read(alloc::vec![0; 1])).collect();
        let reading = cops::spawn(async move { (cops::call::all(reads).await, reader) });
        cops::sleep(Duration::from_millis(1)).await;
        let writes = (0..40).map(|_| writer.write(&b"x"[..])).collect();
        for (result, _) in cops::call::all(writes).await {
            check_eq!(result, Ok(1));
        }
        let (read, reader) = must!(reading.await);
        check_eq!(read.len(), 40);
        for (result, buffer) in read {
            check_eq!((result, buffer), (Ok(1), b"x".to_vec()));
        }
        // SAFETY: the calls have no pointers.
        let many = (0..5000).map(|_| unsafe { Operation::new(SystemCall::GetProcess, [], ()) }).collect();
        for (result, ()) in cops::call::all(many).await {
            check_eq!(result, Ok(system::process::number() as usize));
        }
        // Dropped in the middle: the calls are cancelled.
        let in_flight = calls_in_flight()?;
        let reads = (0..100).map(|_| reader.read(alloc::vec![0; 1])).collect();
        let mut reading = Box::pin(cops::call::all(reads));
        check!(poll_once(&mut reading).await.is_none());
        cops::yield_now().await;
        check!(poll_once(&mut reading).await.is_none());
        drop(reading);
        calls_in_flight_return_to(in_flight).await?;
    }
    Ok(())
}

pub async fn dropped_at_every_await() -> Outcome {
    set_way(Way::Ring);
    let in_flight = calls_in_flight()?;
    for polls in 0..12 {
        let (reader, writer) = must!(pipe());
        let conversation = async {
            for _ in 0..4 {
                let (result, _) = reader.read(alloc::vec![0; 16]).await;
                must!(result);
                must!(cops::macros::nanosleep(50_000).await.0);
            }
            Ok::<_, alloc::string::String>(())
        };
        {
            let mut conversation = Box::pin(conversation);
            for poll in 0..polls {
                if poll_once(&mut conversation).await.is_some() {
                    break;
                }
                if poll % 3 == 0 {
                    check_eq!(system::file::write(writer.descriptor().raw(), b"x"), Ok(1));
                }
                // Sometimes the request has been taken when it is dropped, sometimes not.
                if poll % 2 == 0 {
                    cops::sleep(Duration::from_micros(200)).await;
                }
            }
        }
        drop(reader);
    }
    calls_in_flight_return_to(in_flight).await
}

pub async fn more_in_flight_than_the_rings_hold() -> Outcome {
    set_way(Way::Ring);
    let in_flight = calls_in_flight()?;
    let mut sleepers = Vec::new();
    for _ in 0..6000 {
        sleepers.push(cops::spawn(async { cops::macros::nanosleep(1_000_000).await.0 }));
    }
    for sleeper in sleepers {
        check_eq!(must!(cops::timeout(LIMIT, sleeper).await), Ok(Ok(0)));
    }
    calls_in_flight_return_to(in_flight).await
}

pub async fn every_worker_has_a_ring() -> Outcome {
    set_way(Way::Ring);
    must!(cops::alloc_cpu(3));
    let mut pairs = Vec::new();
    for pair in 0..40u8 {
        let (reader, writer) = must!(pipe());
        pairs.push(cops::spawn(async move {
            for _ in 0..100 {
                must!(writer.write(alloc::vec![pair; 3]).await.0);
                if pair % 4 == 0 {
                    cops::yield_now().await;
                }
            }
            Ok(())
        }));
        pairs.push(cops::spawn(async move {
            let mut total = 0;
            while total < 300 {
                let (result, buffer) = reader.read(alloc::vec![0; 16]).await;
                let count = must!(result);
                check!(buffer[..count].iter().all(|byte| *byte == pair));
                total += count;
            }
            Ok(())
        }));
    }
    for coroutine in pairs {
        must!(must!(cops::timeout(LIMIT, coroutine).await))?;
    }
    Ok(())
}

pub async fn important_requests_do_not_wait_behind_others() -> Outcome {
    let mut raw = must!(Raw::new());
    let important = |call: SystemCall| system::raw::asynchronous_number(call as usize, 0) as u64;
    for number in 0..20 {
        check_eq!(raw.submit(SystemCall::GetProcess, number, &[]), Ok(()));
    }
    let request = Request { call: important(SystemCall::GetProcess), token: 20, arguments: [0; 6] };
    check_eq!(raw.requests.submit(&mut raw.producer, request, 64), Ok(()));
    must!(system::worker::ring_enter(0, 0));
    for number in 0..=20 {
        check_eq!(raw.wait()?.token, number);
    }
    Ok(())
}

pub async fn processes_end_with_requests_in_their_rings() -> Outcome {
    let in_flight = counter(Counter::CallsInFlight)?;
    let coroutines = counter(Counter::KernelCoroutines)?;
    for round in 0..6u64 {
        let child = must!(harness::act("ring-calls-in-flight"));
        cops::sleep(Duration::from_millis(20 + 7 * round)).await;
        must!(child.kill());
        check!(matches!(must!(child.wait().await), Ending::Killed(_)));
    }
    check_eq!(harness::ending_of_act("ring-exit").await?, Ending::Exited(5));
    check_eq!(harness::ending_of_act("ring-execute").await?, Ending::Exited(42));
    returns_to(Counter::CallsInFlight, in_flight).await?;
    // The servers too.
    returns_to(Counter::KernelCoroutines, coroutines + 2).await
}

pub async fn scribbling_while_the_kernel_takes() -> Outcome {
    let free = counter(Counter::FramesFree)?;
    let mut children = Vec::new();
    for seed in ["1", "2", "3"] {
        let child = cops::process::Command::new(harness::OWN_PATH)
            .argument("--act")
            .argument("scribble-request-ring")
            .argument(seed)
            .spawn();
        children.push(must!(child));
    }
    // Other calls are served meanwhile.
    let (reader, writer) = must!(pipe());
    for _ in 0..50 {
        check_eq!(writer.write(&b"served"[..]).await.0, Ok(6));
        check_eq!(reader.read(alloc::vec![0; 6]).await.1, b"served".to_vec());
        cops::sleep(Duration::from_millis(2)).await;
    }
    for child in &children {
        let ending = harness::wait(child).await;
        check_eq!(ending.map(|ending| ending.ok()), Some(Some(Ending::Exited(0))));
    }
    reaches(Counter::FramesFree, free.saturating_sub(500)).await
}

/// The acts of other processes for these tests.
pub mod acts {
    use super::*;

    /// Makes many calls that never end, and requests that were not taken.
    pub async fn calls_in_flight() -> i32 {
        set_way(Way::Ring);
        let Ok((reader, _writer)) = pipe() else { return 1 };
        let reader = Arc::new(reader);
        for _ in 0..200 {
            let reader = reader.clone();
            cops::spawn(async move {
                let _ = reader.read(alloc::vec![0; 100]).await;
            })
            .detach();
        }
        loop {
            let calls = (0..200).map(|_| cops::macros::nanosleep(100_000)).collect();
            let _ = cops::call::all(calls).await;
        }
    }

    /// Exits with requests in the ring.
    pub async fn exit() -> i32 {
        let Ok(mut raw) = Raw::new() else { return 1 };
        let Ok((reader, _writer)) = pipe() else { return 1 };
        let buffer = bytes(8);
        let arguments = [reader.descriptor().raw() as usize, buffer.as_ptr() as usize, 8];
        for token in 0..20 {
            if raw.submit(SystemCall::Read, token, &arguments).is_err() {
                return 2;
            }
        }
        if system::worker::ring_enter(0, 0).is_err() {
            return 3;
        }
        for token in 20..40 {
            if raw.submit(SystemCall::Read, token, &arguments).is_err() {
                return 4;
            }
        }
        system::process::exit(5)
    }

    /// Fills the ring and executes another program, which finds no trace of it.
    pub async fn execute() -> i32 {
        let Ok(mut raw) = Raw::new() else { return 1 };
        let Ok((reader, _writer)) = pipe() else { return 1 };
        let buffer = bytes(8);
        let arguments = [reader.descriptor().raw() as usize, buffer.as_ptr() as usize, 8];
        for token in 0..20 {
            if raw.submit(SystemCall::Read, token, &arguments).is_err() {
                return 2;
            }
        }
        let _ = system::worker::ring_enter(0, RING_WAKE);
        crate::acts::execute_other()
    }

    /// Writes random words to a request ring from one worker while another has the kernel take the requests.
    pub async fn scribble(seed: u64) -> i32 {
        let Ok(raw) = Raw::new() else { return 1 };
        if cops::alloc_cpu(1).is_err() {
            return 2;
        }
        let requests = raw.requests;
        let end = Instant::now() + Duration::from_millis(400);
        let scribbling = cops::spawn(async move {
            let header = requests.header();
            let base = core::ptr::from_ref(header) as usize;
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = move || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random
            };
            while Instant::now() < end {
                for _ in 0..200 {
                    let word = next();
                    // Entries of random words, some of which are calls; never calls that could end this process or
                    // others.
                    let place = (next() as usize % SMALL) * request::ENTRY_SIZE + request::ENTRIES_OFFSET;
                    let calls = [SystemCall::GetProcess, SystemCall::Read, SystemCall::GetTime, SystemCall::Sleep];
                    let call = calls[next() as usize % 4] as u64 | next() & 63 << 24;
                    let first = if next() % 2 == 0 { call } else { word | 0x8000 };
                    for (index, value) in [first, next() % 64, word, word >> 30, word >> 50].into_iter().enumerate() {
                        // SAFETY: the ring is mapped and writable, and its words are atomic.
                        unsafe { &*((base + place + 8 * index) as *const core::sync::atomic::AtomicU64) }
                            .store(value, Ordering::Relaxed);
                    }
                    header.head.store(next(), Ordering::Relaxed);
                    header.state.store(next() % 4, Ordering::Relaxed);
                    header.urgency.store(next() % 70, Ordering::Relaxed);
                    header.capacity.store(next(), Ordering::Relaxed);
                    // Legal steps of the tail, and back.
                    let tail = header.tail.load(Ordering::Relaxed);
                    header.tail.store(tail.wrapping_add(next() % 8), Ordering::Release);
                    core::hint::spin_loop();
                    header.tail.store(tail, Ordering::Release);
                }
            }
            // And one illegal step.
            header.tail.store(1 << 50, Ordering::Release);
        });
        let mut flags = 0;
        while Instant::now() < end {
            for _ in 0..20 {
                // An error means that a step back has broken the ring, which is allowed.
                let _ = system::worker::ring_enter(0, flags);
                flags ^= RING_WAKE;
                while raw.completions.take().is_some() {}
            }
            cops::yield_now().await;
        }
        if scribbling.await.is_err() {
            return 3;
        }
        // In any case the process can continue without its ring.
        i32::from(system::worker::ring_enter(0, 0) != Err(Errno::EPROTO) || system::process::number() == 0)
    }
}
