//! Asynchronous invocations, which seL4 does not have: on a kernel without them these tests report that and test
//! nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use abi_queue::SyscallResponse;
use abi_queue::syscall_buffer::{
    BROKEN, HANDLER_OFFSET, REQUEST_HEAD_OFFSET, REQUEST_TAIL_OFFSET, RESPONSE_HEAD_OFFSET, SLEEPING, size,
};
use sel4::abi::{Invocation, asynchronous};
use sel4::capability::{Notification, Page, PageTable, Slot, Thread, initial};
use sel4::syscall_buffer::{Full, SyscallBuffer, request, request_of_label, result};
use sel4::thread::Start;
use sel4::{Error, Failure, ObjectType, Rights};

use crate::harness::{Bench, Outcome, PRIORITY, Wrong, let_run};
use crate::memory::{read, write};
use crate::{check, equal, refused};

/// First address for the mappings of tests.
const ADDRESS: u64 = 0x16_0000_0000;

/// Makes a buffer of the initial thread with its notification; `None` on kernels without such buffers.
fn buffer(bench: &mut Bench<'_>, capacity: usize) -> Result<Option<(SyscallBuffer, Notification)>, Failure> {
    let notification = bench.notification()?;
    let buffer = SyscallBuffer::new(&mut bench.allocator, &mut bench.window, capacity)?;
    match buffer.register(initial::THREAD, notification) {
        Ok(()) => Ok(Some((buffer, notification))),
        Err(failure) if failure.error == Error::IllegalOperation => {
            sel4::println!("note: this kernel has no asynchronous invocations");
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

macro_rules! buffer_or_return {
    ($bench:expr, $capacity:expr) => {
        match buffer($bench, $capacity)? {
            Some(both) => both,
            None => return Ok(()),
        }
    };
}

/// Publishes the requests and waits for a response.
fn next(buffer: &mut SyscallBuffer, notification: Notification) -> Result<SyscallResponse, Wrong> {
    buffer.publish();
    loop {
        if let Some(response) = buffer.take() {
            return Ok(response);
        }
        if buffer.must_call() {
            check!(buffer.call());
        } else if buffer.fall_asleep() {
            notification.wait();
        }
    }
}

/// Makes one invocation through the buffer.
fn ask(
    (buffer, notification): &mut (SyscallBuffer, Notification),
    target: u64,
    invocation: Invocation,
    words: &[u64],
    capabilities: &[u64],
) -> Result<Result<u64, Failure>, Wrong> {
    static CID: AtomicU64 = AtomicU64::new(0);
    let cid = CID.fetch_add(1, Ordering::Relaxed);
    check!(buffer.submit(request(cid, target, invocation, words, capabilities)).is_ok());
    let response = next(buffer, *notification)?;
    equal!(response.cid, cid);
    Ok(result(&response).map(|answer| answer.registers[0]))
}

const OWN: u64 = initial::CNODE.pointer();
const SPACE: u64 = initial::ADDRESS_SPACE.pointer();

pub fn output_and_addresses(bench: &mut Bench<'_>) -> Outcome {
    let mut both = buffer_or_return!(bench, 64);
    let text = u64::from_le_bytes(*b"note: th");
    let rest = u64::from_le_bytes(*b"us told\n");
    let (buffer, notification) = (&mut both.0, both.1);
    // The message's length is the number of bytes.
    let mut string = request_of_label(1, 0, asynchronous::PUT_STRING, &[text, rest], &[]);
    string.information = sel4::abi::MessageInfo::new(asynchronous::PUT_STRING, 0, 16).0;
    check!(buffer.submit(string).is_ok());
    check!(buffer.submit(request_of_label(2, 0, asynchronous::PUT_CHAR, &[b'\n'.into()], &[])).is_ok());
    for cid in 1..3 {
        let response = next(buffer, notification)?;
        equal!((response.cid, response.information), (cid, 0));
    }
    let page = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
    equal!(ask(&mut both, page.pointer(), Invocation::PageGetAddress, &[], &[])??, page.physical_address()?);
    refused!(ask(&mut both, OWN, Invocation::PageGetAddress, &[], &[])?, IllegalOperation);
    // A system call would fault.
    refused!(ask(&mut both, u64::MAX, Invocation::PageGetAddress, &[], &[])?, FailedLookup);
    refused!(ask(&mut both, notification.pointer(), Invocation::PageGetAddress, &[], &[])?, IllegalOperation);
    refused!(ask(&mut both, initial::THREAD.pointer(), Invocation::TcbSuspend, &[], &[])?, IllegalOperation);
    Ok(())
}

pub fn notifications_are_made_and_bound(bench: &mut Bench<'_>) -> Outcome {
    let mut both = buffer_or_return!(bench, 64);
    let thread = bench.thread()?;
    let arena = bench.allocator.memory(12)?;
    let slot = bench.allocator.slot()?;
    let words = [ObjectType::Notification.number() as u64, 0, 0, 0, slot, 1];
    ask(&mut both, arena.untyped().pointer(), Invocation::UntypedRetype, &words, &[OWN])??;
    refused!(ask(&mut both, arena.untyped().pointer(), Invocation::UntypedRetype, &words, &[OWN])?, DeleteFirst);
    refused!(ask(&mut both, thread.pointer(), Invocation::TcbUnbindNotification, &[], &[])?, IllegalOperation);
    ask(&mut both, thread.pointer(), Invocation::TcbBindNotification, &[], &[slot])??;
    // Both ways see the same state.
    refused!(thread.bind_notification(Notification::from_pointer(slot)), IllegalOperation);
    ask(&mut both, thread.pointer(), Invocation::TcbUnbindNotification, &[], &[])??;
    thread.bind_notification(Notification::from_pointer(slot))?;
    Ok(())
}

fn touch(address: u64) {
    write(address, 2);
}

pub fn pages_are_mapped_used_and_unmapped(bench: &mut Bench<'_>) -> Outcome {
    let mut both = buffer_or_return!(bench, 64);
    let mut arena = bench.allocator.memory(15)?;
    let first = bench.allocator.slots(4)?;
    let untyped = arena.untyped().pointer();
    let retype = |kind: ObjectType, slot: u64, count: u64| [kind.number() as u64, 0, 0, 0, slot, count];
    ask(&mut both, untyped, Invocation::UntypedRetype, &retype(ObjectType::PageTable, first, 2), &[OWN])??;
    ask(&mut both, untyped, Invocation::UntypedRetype, &retype(ObjectType::Page, first + 2, 1), &[OWN])??;
    let map = [ADDRESS, Rights::READ_WRITE.word(), 0];
    let failure = refused!(ask(&mut both, first + 2, Invocation::PageMap, &map, &[SPACE])?, FailedLookup);
    let page = Page::from_pointer(first + 2);
    let answered = refused!(page.map(initial::ADDRESS_SPACE, ADDRESS, Rights::READ_WRITE, 0), FailedLookup);
    equal!(failure.details, answered.details);
    for table in [first, first + 1] {
        ask(&mut both, table, Invocation::PageTableMap, &[ADDRESS, 0], &[SPACE])??;
    }
    ask(&mut both, first + 2, Invocation::PageMap, &map, &[SPACE])??;
    equal!(read(ADDRESS), 0);
    write(ADDRESS, 10_000_000);
    equal!(read(ADDRESS), 10_000_000);
    ask(&mut both, first + 2, Invocation::PageUnmap, &[], &[])??;
    // An access to it faults now.
    let faults = bench.endpoint()?;
    let start = Start { fault_endpoint: faults.pointer(), ..Start::new(touch, ADDRESS, PRIORITY) };
    bench.spawn_with(start)?;
    let fault = faults.receive();
    equal!(fault.label(), 5);
    equal!(fault.word(1), Some(ADDRESS));
    for table in [first + 1, first] {
        ask(&mut both, table, Invocation::PageTableUnmap, &[], &[])??;
        refused!(ask(&mut both, table, Invocation::PageMap, &map, &[SPACE])?, IllegalOperation);
    }
    PageTable::from_pointer(first).map(initial::ADDRESS_SPACE, ADDRESS, 0)?;
    arena.revoke()?;
    Ok(())
}

pub fn capabilities_are_copied_moved_and_deleted(bench: &mut Bench<'_>) -> Outcome {
    use Invocation::{
        CNodeCancelBadgedSends, CNodeCopy, CNodeDelete, CNodeMint, CNodeMove, CNodeMutate, CNodeRevoke, CNodeRotate,
    };
    let mut both = buffer_or_return!(bench, 64);
    let endpoint = bench.endpoint()?.pointer();
    let s = bench.allocator.slots(6)?;
    let mut node = |invocation, words: &[u64], roots: &[u64]| ask(&mut both, OWN, invocation, words, roots);
    let all = Rights::ALL.word();
    node(CNodeCopy, &[s, 64, endpoint, 64, all], &[OWN])??;
    refused!(node(CNodeCopy, &[s, 64, endpoint, 64, all], &[OWN])?, DeleteFirst);
    refused!(node(CNodeCopy, &[s + 1, 64, endpoint, 64], &[OWN])?, TruncatedMessage);
    node(CNodeMint, &[s + 1, 64, endpoint, 64, all, 77], &[OWN])??;
    node(CNodeCancelBadgedSends, &[s + 1, 64], &[])??;
    node(CNodeMove, &[s + 2, 64, s + 1, 64], &[OWN])??;
    refused!(node(CNodeMutate, &[s + 3, 64, s + 2, 64, 5], &[OWN])?, IllegalOperation);
    let table = bench.allocator.make(ObjectType::CapTable, 2, 1)?;
    let page = bench.allocator.object(ObjectType::Page)?;
    let mut node = |invocation, words: &[u64], roots: &[u64]| ask(&mut both, OWN, invocation, words, roots);
    node(CNodeMutate, &[s + 3, 64, table, 64, 62], &[OWN])??;
    node(CNodeRotate, &[s + 4, 64, 62, s + 3, 64, 0, page, 64], &[OWN, OWN])??;
    let kinds =
        [s, s + 1, s + 2, s + 3, s + 4, page].map(|slot| sel4::raw::debug_identify(slot).map(|tag| tag.number()));
    equal!(kinds, [4, 0, 4, 1, 10, 0].map(Some));
    node(CNodeRevoke, &[endpoint, 64], &[])??;
    equal!(sel4::raw::debug_identify(s + 2).map(|tag| tag.number()), Some(0));
    node(CNodeDelete, &[endpoint, 64], &[])??;
    node(CNodeDelete, &[s + 4, 64], &[])??;
    refused!(node(CNodeDelete, &[s, 65], &[])?, RangeError);
    Ok(())
}

pub fn many_requests_are_answered_in_order(bench: &mut Bench<'_>) -> Outcome {
    let (mut buffer, notification) = buffer_or_return!(bench, 1024);
    let page = bench.allocator.object(ObjectType::Page)?;
    let expected = Page::from_pointer(page).physical_address()?;
    let ask = |cid| request(cid, page, Invocation::PageGetAddress, &[], &[]);
    for round in 0..3 {
        for cid in 0..1024 {
            check!(buffer.submit(ask(round << 32 | cid)).is_ok());
        }
        equal!(buffer.submit(ask(0)), Err(Full));
        for cid in 0..1024 {
            let response = next(&mut buffer, notification)?;
            equal!((response.cid, response.results[0]), (round << 32 | cid, expected));
        }
    }
    check!(buffer.take().is_none());
    Ok(())
}

static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// Carries out the requests of this capability's thread; waits for a notification in between.
fn call_handler(_: u64) {
    PROGRESS.store(1 + u64::from(sel4::raw::wake_syscall_handler()), Ordering::Relaxed);
}

pub fn requests_of_a_thread_that_does_not_run_wait(bench: &mut Bench<'_>) -> Outcome {
    PROGRESS.store(0, Ordering::Relaxed);
    let started = bench.prepare(Start::new(call_handler, 0, PRIORITY))?;
    let (_, notification) = buffer_or_return!(bench, 64);
    let mut buffer = SyscallBuffer::new(&mut bench.allocator, &mut bench.window, 64)?;
    buffer.register(started.thread, notification)?;
    let page = bench.allocator.object(ObjectType::Page)?;
    check!(buffer.submit(request(5, page, Invocation::PageGetAddress, &[], &[])).is_ok());
    buffer.publish();
    // The thread has not been started, so none of its requests is carried out.
    let_run(PRIORITY)?;
    check!(buffer.take().is_none());
    started.thread.resume()?;
    while PROGRESS.load(Ordering::Relaxed) == 0 {
        let_run(PRIORITY)?;
    }
    equal!(PROGRESS.load(Ordering::Relaxed), 2);
    while buffer.take().is_none() {
        let_run(PRIORITY)?;
    }
    // A thread that is deleted ends its handler too, with requests left.
    for cid in 0..64 {
        check!(buffer.submit(request(cid, page, Invocation::PageGetAddress, &[], &[])).is_ok());
    }
    buffer.publish();
    started.delete()?;
    check!(buffer.take().is_none());
    Ok(())
}

pub fn buffers_are_checked_when_they_are_registered(bench: &mut Bench<'_>) -> Outcome {
    let (buffer, notification) = buffer_or_return!(bench, 64);
    let (first, count) = buffer.frames();
    let register = |thread: Thread, words: &[u64], notification: u64| {
        sel4::raw::invoke(thread.pointer(), Invocation::TcbRegisterAsyncSyscall, words, &[notification])
    };
    let own = |capacity: u64, first: u64, count: u64| {
        register(initial::THREAD, &[capacity, first, count], notification.pointer())
    };
    refused!(own(63, first.pointer(), count), RangeError);
    refused!(own(65, first.pointer(), count), InvalidArgument);
    refused!(own(8192, first.pointer(), count), RangeError);
    refused!(own(64, first.pointer(), 0), RangeError);
    refused!(own(64, first.pointer(), count - 1), RangeError);
    refused!(own(64, u64::MAX - 1, count), FailedLookup);
    refused!(own(64, OWN, count), InvalidArgument);
    refused!(register(initial::THREAD, &[64, first.pointer(), count], OWN), InvalidCapability);
    let reader = bench.badged(notification.pointer(), Rights::READ, 0)?;
    refused!(register(initial::THREAD, &[64, first.pointer(), count], reader), InvalidCapability);
    let weak = bench.allocator.slots(count)?;
    for index in 0..count {
        Slot::own(weak + index).copy_from(Slot::own(first.pointer() + index), Rights::READ)?;
    }
    refused!(own(64, weak, count), InvalidArgument);
    // The refused calls have changed nothing; taking the buffer away does.
    check!(sel4::raw::wake_syscall_handler());
    own(0, 0, 0)?;
    check!(!sel4::raw::wake_syscall_handler());
    Ok(())
}

pub fn indexes_from_nowhere_end_the_handler(bench: &mut Bench<'_>) -> Outcome {
    let (buffer, notification) = buffer_or_return!(bench, 64);
    buffer.word(REQUEST_TAIL_OFFSET).store(65, Ordering::Release);
    // The kernel decides which hart runs the handler, and when.
    while buffer.word(HANDLER_OFFSET).load(Ordering::Acquire) != BROKEN {
        buffer.call();
    }
    while buffer.call() {}
    buffer.word(REQUEST_TAIL_OFFSET).store(0, Ordering::Release);
    buffer.register(initial::THREAD, notification)?;
    check!(buffer.call());
    // An impossible head can only mean that there is no place.
    buffer.word(RESPONSE_HEAD_OFFSET).store(u64::MAX / 2, Ordering::Release);
    buffer.word(REQUEST_TAIL_OFFSET).store(1, Ordering::Release);
    check!(buffer.call());
    while buffer.word(HANDLER_OFFSET).load(Ordering::Acquire) != SLEEPING {
        core::hint::spin_loop();
    }
    equal!(buffer.word(REQUEST_HEAD_OFFSET).load(Ordering::Relaxed), 0);
    Ok(())
}

pub fn pages_and_notification_of_a_buffer_can_go(bench: &mut Bench<'_>) -> Outcome {
    let (mut buffer, notification) = buffer_or_return!(bench, 64);
    let page = bench.allocator.object(ObjectType::Page)?;
    let ask = |cid| request(cid, page, Invocation::PageGetAddress, &[], &[]);
    // The addresses of the pages in the program do not matter to the kernel.
    let (first, count) = buffer.frames();
    check!(buffer.submit(ask(1)).is_ok());
    buffer.publish();
    // No word of the first two answers is in the last one.
    Page::from_pointer(first.pointer() + count - 1).unmap()?;
    check!(buffer.call());
    equal!(next(&mut buffer, notification)?.cid, 1);
    // Without the notification responses still come, without a signal.
    Slot::own(notification.pointer()).revoke()?;
    Slot::own(notification.pointer()).delete()?;
    check!(buffer.submit(ask(2)).is_ok());
    buffer.publish();
    // Another hart may have answered already.
    if buffer.fall_asleep() {
        while buffer.must_call() && buffer.take().is_none() {
            check!(buffer.call());
        }
    }
    // Without one of its pages there is no buffer.
    Slot::own(first.pointer() + count - 1).revoke()?;
    check!(!sel4::raw::wake_syscall_handler());
    Ok(())
}

pub fn a_request_can_delete_its_own_origin(bench: &mut Bench<'_>) -> Outcome {
    let (mut buffer, notification) = buffer_or_return!(bench, 64);
    let (first, _) = buffer.frames();
    let page = bench.allocator.object(ObjectType::Page)?;
    check!(buffer.submit(request(1, OWN, Invocation::CNodeRevoke, &[first.pointer(), 64], &[])).is_ok());
    check!(buffer.submit(request(2, page, Invocation::PageGetAddress, &[], &[])).is_ok());
    buffer.publish();
    while buffer.call() {}
    check!(buffer.take().is_none());
    // The memory is the program's as before.
    buffer.register(initial::THREAD, notification)?;
    check!(sel4::raw::wake_syscall_handler());
    Ok(())
}

/// Address of the scribbler's memory.
static SCRIBBLED: AtomicU64 = AtomicU64::new(0);

fn scribble(end: u64) {
    let start = SCRIBBLED.load(Ordering::Relaxed);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    loop {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let value = match random >> 60 {
            0..8 => (random >> 32) & 0x3f,
            8..12 => (random >> 20) & 0x3ff,
            _ => random,
        };
        // Indexes and flags are included, but not so often that they prevent everything else.
        let offset = ((random >> 8) % (end - start)) & !7;
        if offset >= 256 || random & 63 == 0 {
            write(start + offset, value);
        }
    }
}

pub fn scribbling_into_a_buffer_harms_no_other_thread(bench: &mut Bench<'_>) -> Outcome {
    let (buffer, notification) = buffer_or_return!(bench, 64);
    let canary = bench.endpoint()?.pointer();
    // The thread that owns the buffer has a CSpace with memory only: random requests can reach nothing else.
    let table = sel4::capability::CNode::from_pointer(bench.allocator.make(ObjectType::CapTable, 4, 1)?);
    let memory = bench.allocator.memory(16)?;
    table.slot(3, 4).copy_from(Slot::own(memory.untyped().pointer()), Rights::ALL)?;
    let start = buffer.word(0).as_ptr() as u64;
    SCRIBBLED.store(start, Ordering::Relaxed);
    let scribbler = bench.spawn(scribble, start + size(64) as u64)?;
    if bench.boot.cores().1 > 1 {
        scribbler.thread.set_affinity(1)?;
    }
    let victim = bench.prepare(Start::new(scribble, start + size(64) as u64, PRIORITY))?;
    let spaces = sel4::capability::Spaces {
        fault_endpoint: 0,
        cspace: table,
        cspace_data: sel4::CNodeData::new(0, 60),
        address_space: initial::ADDRESS_SPACE,
    };
    victim.thread.set_space(spaces)?;
    victim.thread.resume()?;
    for round in 0..40_u64 {
        // Registered anew whenever random data has ended it; resuming calls the handler.
        buffer.register(victim.thread, notification)?;
        buffer.word(REQUEST_TAIL_OFFSET).store(round % 60, Ordering::Release);
        victim.thread.suspend()?;
        victim.thread.resume()?;
        let_run(PRIORITY)?;
    }
    scribbler.thread.suspend()?;
    victim.thread.suspend()?;
    check!(sel4::raw::debug_identify(canary) == Some(sel4::abi::CapabilityTag::Endpoint));
    Ok(())
}
