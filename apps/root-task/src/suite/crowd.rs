//! Several harts that work on the same objects at the same time: with system calls and with asynchronous invocations,
//! while threads, tables and notifications are deleted under them.
//!
//! These tests do not look at a clock. Each round ends when all requested operations are done, and then the counts have
//! to be right: each request was answered once, each waiting thread was informed once, and all memory is free again. On
//! one core the operations take turns.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use abi_queue::syscall_buffer::{FIRST_ARGUMENT, capability_word, request_word, size};
use abi_queue::syscall_buffer::{REQUEST_HEAD_OFFSET, REQUEST_TAIL_OFFSET, RESPONSE_HEAD_OFFSET, RESPONSE_TAIL_OFFSET};
use sel4::abi::{CapabilityTag, Invocation, MessageInfo, SlotRegion, SystemCall};
use sel4::allocator::Slots;
use sel4::capability::{AsidPool, CNode, Endpoint, Notification, Page, PageTable, Slot, Thread, Untyped, initial};
use sel4::fault::Fault;
use sel4::syscall_buffer::{SyscallBuffer, request, result};
use sel4::thread::{Start, registers};
use sel4::{Allocator, CNodeData, Error, Numbering, ObjectType, Rights, mapping, raw};

use super::hostile::{self, Random};
use super::user_interrupt::{self, COUNT, STEPS, Way, interrupted, send_to, store_receiver, target_of, until};
use crate::harness::{Bench, Outcome, PRIORITY, Wrong, let_run};
use crate::memory::{read, write};
use crate::{check, equal};

/// Workers, and hostile threads: two for each of two cores, one for each of four.
const MEMBERS: usize = 4;

/// Returns the number of cores to use.
fn cores(bench: &Bench<'_>) -> u64 {
    match raw::numbering() {
        Numbering::Multiprocessor => bench.boot.cores().1,
        Numbering::Uniprocessor => 1,
    }
}

/// Puts a thread on a core, modulo the number of cores.
fn put_on(bench: &Bench<'_>, thread: Thread, number: u64) -> Result<(), sel4::Failure> {
    match cores(bench) {
        1 => Ok(()),
        cores => thread.set_affinity(number % cores),
    }
}

/// Number of the current round; the workers wait for the next.
static ROUND: AtomicU64 = AtomicU64::new(0);
/// Task of each worker in the round, as its number and its slot.
static TASKS: [AtomicU64; MEMBERS] = [const { AtomicU64::new(0) }; MEMBERS];
/// Workers that are done, and those whose task was refused.
static DONE: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The tasks of a worker with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Delete,
    Revoke,
    /// Makes a page in the slot, of the memory in the slot before it.
    Retype,
    /// Carries out the requests in the worker's buffer.
    Call,
    Suspend,
    Resume,
    Unbind,
}

impl Task {
    const ALL: [Task; 7] =
        [Task::Delete, Task::Revoke, Task::Retype, Task::Call, Task::Suspend, Task::Resume, Task::Unbind];

    /// Encodes the task with a slot.
    fn with(self, slot: u64) -> u64 {
        slot << 8 | self as u64
    }

    fn run(word: u64) -> bool {
        let slot = word >> 8;
        match Task::ALL[(word & 0xff) as usize] {
            Task::Delete => Slot::own(slot).delete().is_ok(),
            Task::Revoke => Slot::own(slot).revoke().is_ok(),
            Task::Retype => {
                let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
                Untyped::from_pointer(slot - 1).retype(ObjectType::Page, 0, root, slot, 1).is_ok()
            }
            Task::Call => raw::wake_syscall_handler(),
            Task::Suspend => Thread::from_pointer(slot).suspend().is_ok(),
            Task::Resume => Thread::from_pointer(slot).resume().is_ok(),
            Task::Unbind => Thread::from_pointer(slot).unbind_notification().is_ok(),
        }
    }
}

/// The round before the first one of these workers, some of which may begin late.
static BEFORE: AtomicU64 = AtomicU64::new(0);

fn work(index: u64) {
    let mut round = BEFORE.load(Ordering::Acquire);
    loop {
        while ROUND.load(Ordering::Acquire) == round {
            raw::yield_now();
        }
        round = ROUND.load(Ordering::Acquire);
        if !Task::run(TASKS[index as usize].load(Ordering::Relaxed)) {
            REFUSED.fetch_add(1, Ordering::Relaxed);
        }
        DONE.fetch_add(1, Ordering::Release);
    }
}

/// Threads on all cores that work at the same time, each with a buffer for asynchronous invocations.
struct Crowd {
    threads: [Thread; MEMBERS],
    /// `None` on kernels without asynchronous invocations.
    buffers: Option<[SyscallBuffer; MEMBERS]>,
}

impl Crowd {
    /// Starts one worker for each of four cores, or two for each of two.
    fn new(bench: &mut Bench<'_>) -> Result<Crowd, Wrong> {
        let mut threads = [Thread::from_pointer(0); MEMBERS];
        for (index, thread) in threads.iter_mut().enumerate() {
            *thread = bench.prepare(Start::new(work, index as u64, PRIORITY))?.thread;
            put_on(bench, *thread, index as u64)?;
        }
        let notification = bench.notification()?;
        let mut buffer = || SyscallBuffer::new(&mut bench.allocator, &mut bench.window, 64);
        let buffers = [buffer()?, buffer()?, buffer()?, buffer()?];
        let mut knows_them = true;
        for (buffer, thread) in buffers.iter().zip(threads) {
            match buffer.register(thread, notification) {
                Ok(()) => {}
                Err(failure) if failure.error == Error::IllegalOperation => knows_them = false,
                Err(failure) => Err(failure)?,
            }
        }
        BEFORE.store(ROUND.load(Ordering::Relaxed), Ordering::Release);
        threads.iter().try_for_each(|thread| thread.resume())?;
        Ok(Crowd { threads, buffers: knows_them.then_some(buffers) })
    }

    /// Lets all workers begin.
    fn begin(&self, tasks: [u64; MEMBERS]) {
        TASKS.iter().zip(tasks).for_each(|(place, task)| place.store(task, Ordering::Relaxed));
        DONE.store(0, Ordering::Relaxed);
        REFUSED.store(0, Ordering::Relaxed);
        ROUND.fetch_add(1, Ordering::Release);
    }

    /// Waits until all workers are done; returns the number of refused tasks.
    fn wait(&self) -> Result<u64, Wrong> {
        while DONE.load(Ordering::Acquire) < MEMBERS as u64 {
            let_run(PRIORITY)?;
        }
        Ok(REFUSED.load(Ordering::Relaxed))
    }

    /// Returns whether all workers exist.
    fn is_there(&self) -> bool {
        self.threads.iter().all(|thread| thread.read_registers().is_ok())
    }

    /// Writes a request for a worker. It is carried out when that worker calls.
    fn submit(&mut self, worker: usize, invocation: Invocation, target: u64, words: &[u64], roots: &[u64]) -> bool {
        let Some(buffers) = &mut self.buffers else { return false };
        let is_there = buffers[worker].submit(request(7, target, invocation, words, roots)).is_ok();
        buffers[worker].publish();
        is_there
    }

    /// Waits until `count` requests of a worker are answered, and no more; returns the number of refused ones.
    fn answers(&mut self, worker: usize, count: u64) -> Result<u64, Wrong> {
        let Some(buffers) = &mut self.buffers else { return Ok(0) };
        let buffer = &mut buffers[worker];
        let (mut taken, mut refused) = (0, 0);
        while taken < count {
            match buffer.take() {
                Some(response) => {
                    taken += 1;
                    refused += u64::from(result(&response).is_err());
                }
                None => let_run(PRIORITY)?,
            }
        }
        check!(buffer.take().is_none());
        Ok(refused)
    }
}

/// Checks that all of a memory is free: an object that needs all of it can be made.
fn is_whole(memory: Untyped, bits: usize, slot: u64) -> Outcome {
    let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
    memory.retype(ObjectType::Untyped, bits, root, slot, 1)?;
    Slot::own(slot).delete()?;
    Ok(())
}

/// Logarithm of the bytes of the memory that is used and revoked in each round.
const SHARED_BITS: usize = 16;
/// Tables that hold each other.
const NESTED: u64 = 24;

/// Makes tables of which each holds the last capability to the next, and the last one that to a thread which holds a
/// table itself; the first is in this slot.
fn nest(memory: Untyped, slot: u64) -> Outcome {
    let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
    memory.retype(ObjectType::CapTable, 2, root, slot, NESTED)?;
    memory.retype(ObjectType::Tcb, 0, root, slot + NESTED, 1)?;
    for index in (slot + 1..=slot + NESTED).rev() {
        CNode::from_pointer(index - 1).slot(1, 2).move_from(Slot::own(index))?;
    }
    Ok(())
}

/// Objects that several harts delete and revoke at once, by system calls and by requests, are deleted once, and
/// completely.
pub fn objects_that_several_harts_delete_are_gone(bench: &mut Bench<'_>) -> Outcome {
    let mut crowd = Crowd::new(bench)?;
    let memory = bench.allocator.memory(SHARED_BITS)?.untyped();
    let slot = bench.allocator.slots(NESTED + 2)?;
    for round in 0..90 {
        nest(memory, slot)?;
        // A worker that revokes the memory meets the deletion of its objects.
        let tasks = core::array::from_fn(|worker| match (round + worker as u64) % 4 {
            0 | 1 => Task::Delete.with(slot),
            2 => Task::Revoke.with(memory.pointer()),
            _ => Task::Call.with(0),
        });
        let asks = |task: &u64| *task == Task::Call.with(0);
        for worker in (0..MEMBERS).filter(|&worker| asks(&tasks[worker])) {
            let (own, all) = (initial::CNODE.pointer(), memory.pointer());
            crowd.submit(worker, Invocation::CNodeDelete, own, &[slot, 64], &[]);
            crowd.submit(worker, Invocation::CNodeRevoke, own, &[all, 64], &[]);
        }
        crowd.begin(tasks);
        // This thread takes part as well, with a higher priority.
        match round % 3 {
            0 => Slot::own(slot).delete()?,
            1 => Slot::own(memory.pointer()).revoke()?,
            _ => {}
        }
        let refused = crowd.wait()?;
        for worker in (0..MEMBERS).filter(|&worker| asks(&tasks[worker])) {
            equal!(crowd.answers(worker, 2)?, 0);
        }
        equal!(refused, if crowd.buffers.is_some() { 0 } else { 1 });
        check!(raw::debug_identify(slot) == Some(CapabilityTag::Null));
        // A circle could be left here, but the nest has none.
        Slot::own(memory.pointer()).revoke()?;
        is_whole(memory, SHARED_BITS, slot)?;
    }
    Ok(())
}

/// First address of the pages that several harts map at once.
const CONTESTED: u64 = 0x17_0000_0000;

/// Of several harts that fill one slot, or one place of an address space, one succeeds, and the others get an error.
pub fn only_one_of_several_harts_gets_a_slot_or_an_address(bench: &mut Bench<'_>) -> Outcome {
    let mut crowd = Crowd::new(bench)?;
    let own = initial::CNODE.pointer();
    let memory = bench.allocator.memory(SHARED_BITS)?.untyped();
    // Behind the memory's capability: `Task::Retype` uses the slot before.
    let first = bench.allocator.slots(2 + MEMBERS as u64)?;
    Slot::own(first).move_from(Slot::own(memory.pointer()))?;
    let (memory, slot, pages) = (Untyped::from_pointer(first), first + 1, first + 2);
    let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
    let words = [ObjectType::Page.number() as u64, 0, 0, 0, slot, 1];
    let asynchronous = |crowd: &Crowd| if crowd.buffers.is_some() { 2 } else { 0 };
    // The page tables exist before.
    let probe = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
    mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, probe, CONTESTED, Rights::READ_WRITE, 0)?;
    probe.unmap()?;
    for round in 0..40 {
        let by_requests = asynchronous(&crowd);
        for worker in 0..by_requests {
            check!(crowd.submit(worker, Invocation::UntypedRetype, memory.pointer(), &words, &[own]));
        }
        crowd.begin(core::array::from_fn(|worker| {
            if worker < by_requests { Task::Call.with(0) } else { Task::Retype.with(slot) }
        }));
        let mut refused = crowd.wait()?;
        for worker in 0..by_requests {
            refused += crowd.answers(worker, 1)?;
        }
        equal!(refused, MEMBERS as u64 - 1);
        Slot::own(slot).delete()?;
        if by_requests == 0 {
            continue;
        }
        // One place for four pages, each mapped by another worker; the later ones find it taken.
        memory.retype(ObjectType::Page, 0, root, pages, MEMBERS as u64)?;
        for worker in 0..MEMBERS {
            let page = pages + worker as u64;
            let map = [CONTESTED, Rights::READ_WRITE.word(), 0];
            let space = initial::ADDRESS_SPACE.pointer();
            check!(crowd.submit(worker, Invocation::PageMap, page, &map, &[space]));
        }
        crowd.begin([Task::Call.with(0); MEMBERS]);
        equal!(crowd.wait()?, 0);
        let mut refused = 0;
        for worker in 0..MEMBERS {
            refused += crowd.answers(worker, 1)?;
        }
        equal!(refused, MEMBERS as u64 - 1);
        // It is a new page, and all see the same.
        equal!(read(CONTESTED), 0);
        write(CONTESTED, round + 1);
        equal!(read(CONTESTED), round + 1);
        // Unmapped by several harts at once, one of which revokes the memory.
        for worker in 0..MEMBERS - 1 {
            let page = pages + worker as u64;
            check!(crowd.submit(worker, Invocation::PageUnmap, page, &[], &[]));
        }
        let mut tasks = [Task::Call.with(0); MEMBERS];
        tasks[MEMBERS - 1] = Task::Revoke.with(memory.pointer());
        crowd.begin(tasks);
        equal!(crowd.wait()?, 0);
        for worker in 0..MEMBERS - 1 {
            // A worker whose page was gone already got an error.
            crowd.answers(worker, 1)?;
        }
        is_whole(memory, SHARED_BITS, slot)?;
    }
    Ok(())
}

/// Progress of the thread that is going to be killed.
static VICTIM: AtomicU64 = AtomicU64::new(0);

fn compute(_: u64) {
    loop {
        VICTIM.fetch_add(1, Ordering::Relaxed);
    }
}

fn make_calls(_: u64) {
    loop {
        VICTIM.fetch_add(1, Ordering::Relaxed);
        raw::yield_now();
    }
}

/// A thread that runs on another hart, computing or in system calls, is stopped, started and killed by several harts at
/// once, and does not run after its deletion is reported.
pub fn a_thread_is_killed_by_several_harts(bench: &mut Bench<'_>) -> Outcome {
    let crowd = Crowd::new(bench)?;
    // Memory, stack and buffer are used again by the next thread.
    let memory = bench.allocator.memory(11)?.untyped();
    let slot = bench.allocator.slot()?;
    let (buffer, page) = bench.window.pages(&mut bench.allocator, 1)?;
    let (stack, _) = bench.window.pages(&mut bench.allocator, 1)?;
    let thread = Thread::from_pointer(slot);
    let spaces = sel4::capability::Spaces {
        fault_endpoint: 0,
        cspace: initial::CNODE,
        cspace_data: CNodeData::default(),
        address_space: initial::ADDRESS_SPACE,
    };
    let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
    for round in 0..90 {
        memory.retype(ObjectType::Tcb, 0, root, slot, 1)?;
        thread.configure(spaces, buffer, page)?;
        thread.set_scheduling(initial::THREAD, PRIORITY, PRIORITY)?;
        put_on(bench, thread, round + 1)?;
        let function = if round % 2 == 0 { compute } else { make_calls };
        let start = Start::new(function, 0, PRIORITY);
        let before = VICTIM.load(Ordering::Relaxed);
        thread.write_registers_and_resume(&registers(&start, thread, buffer, stack + 0x1000))?;
        while VICTIM.load(Ordering::Relaxed) == before {
            let_run(PRIORITY)?;
        }
        let kill = [Task::Delete.with(slot), Task::Revoke.with(memory.pointer())];
        crowd.begin([kill[0], Task::Suspend.with(slot), Task::Resume.with(slot), kill[round as usize / 2 % 2]]);
        // Later workers find no thread.
        check!(crowd.wait()? <= 2);
        let stopped = VICTIM.load(Ordering::Relaxed);
        let_run(PRIORITY)?;
        equal!(VICTIM.load(Ordering::Relaxed), stopped);
        check!(raw::debug_identify(slot) == Some(CapabilityTag::Null));
        is_whole(memory, 11, slot)?;
    }
    check!(crowd.is_there());
    Ok(())
}

fn wait_for_ever(notification: u64) {
    loop {
        Notification::from_pointer(notification).wait();
    }
}

fn signal_for_ever(notification: u64) {
    loop {
        raw::system_call(SystemCall::NBSend.number(), [notification, 0, 0, 0, 0, 0]);
    }
}

/// Threads on all harts wait for a notification that others signal, and that several delete at once: each of them is
/// informed of that, once.
pub fn waiters_at_an_object_deleted_by_several_harts_are_told(bench: &mut Bench<'_>) -> Outcome {
    const WAITERS: u64 = 6;
    let crowd = Crowd::new(bench)?;
    let memory = bench.allocator.memory(12)?.untyped();
    let slot = bench.allocator.slot()?;
    let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
    let faults = bench.endpoint()?;
    let mut rights = [0; WAITERS as usize];
    for (index, right) in rights.iter_mut().enumerate() {
        let handler = bench.badged(faults.pointer(), Rights::ALL, 1 << index)?;
        let start = Start { fault_endpoint: handler, ..Start::new(wait_for_ever, slot, PRIORITY) };
        let waiter = bench.prepare(start)?;
        put_on(bench, waiter.thread, index as u64)?;
        waiter.thread.resume()?;
        *right = bench.slot()?.index;
    }
    for number in 0..2 {
        let signaller = bench.prepare(Start::new(signal_for_ever, slot, PRIORITY))?;
        put_on(bench, signaller.thread, number + 1)?;
        signaller.thread.resume()?;
    }
    for round in 0..60 {
        // There is no notification now, and each waiter gets a fault.
        let mut told = 0;
        for right in rights {
            let mut message = faults.receive_now();
            while message.is_none() {
                let_run(PRIORITY)?;
                message = faults.receive_now();
            }
            let Some(message) = message else { continue };
            check!(matches!(Fault::from_message(&message), Some(Fault::Capability { pointer, .. }) if pointer == slot));
            equal!(told & message.badge(), 0);
            told |= message.badge();
            Slot::own(right).save_caller()?;
        }
        equal!(told, (1 << WAITERS) - 1);
        check!(faults.receive_now().is_none());
        memory.retype(ObjectType::Notification, 0, root, slot, 1)?;
        for right in rights {
            // They repeat the system call.
            Endpoint::from_pointer(right).send(&sel4::Message::new(0, &[]));
        }
        if round % 2 == 0 {
            let_run(PRIORITY)?;
        }
        let (delete, revoke) = (Task::Delete.with(slot), Task::Revoke.with(memory.pointer()));
        crowd.begin([delete, revoke, delete, revoke]);
        equal!(crowd.wait()?, 0);
        check!(raw::debug_identify(slot) == Some(CapabilityTag::Null));
    }
    Ok(())
}

/// Number of rounds in which each of several senders has stored a few times, and has let others run.
static STORED: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Number of steps of the following threads before they let others run. Without that, every wait for one of them on the
/// same hart would take the whole time slices of all others there.
const AT_ONCE: u64 = 4;

/// Sends to a target, the highest bits of which are the thread's number.
fn store_and_count(argument: u64) {
    let index = (argument >> NUMBER_SHIFT) as usize;
    loop {
        for _ in 0..AT_ONCE {
            send_to(argument & ((1 << NUMBER_SHIFT) - 1));
        }
        STORED[index].fetch_add(1, Ordering::Release);
        raw::yield_now();
    }
}

/// Position of a thread's number above an address.
const NUMBER_SHIFT: u32 = 48;

/// Takes signals, for ever.
fn take_and_count(_: u64) {
    loop {
        for _ in 0..AT_ONCE {
            user_interrupt::step();
        }
        raw::yield_now();
    }
}

/// Waits until all senders, and the receiver, have made progress.
fn all_go_on() -> Outcome {
    let stored = STORED.each_ref().map(|stored| stored.load(Ordering::Acquire));
    let steps = STEPS.load(Ordering::Relaxed);
    // Rounds that had begun before are not counted.
    until(|| STORED.iter().zip(stored).all(|(now, before)| now.load(Ordering::Acquire) > before + 1))?;
    until(|| STEPS.load(Ordering::Relaxed) > steps + 4 * AT_ONCE)
}

/// Senders on several harts store while others, at the same time, delete and revoke their rights, unbind the
/// notification, stop the receiver or move it. No thread hangs, the senders survive it, and no signal comes afterwards.
pub fn revoking_ends_stores_that_several_harts_make(bench: &mut Bench<'_>) -> Outcome {
    /// The badge of the last signal of a round.
    const LAST: u64 = 1 << 50;
    let Some((receiver, by_stores)) = store_receiver(bench, take_and_count, 0, 2)? else { return Ok(()) };
    if !by_stores {
        return Ok(());
    }
    let crowd = Crowd::new(bench)?;
    receiver.thread.resume()?;
    for round in 0..12 {
        // Each kind of end on other cores each time.
        let place = round + round / 4;
        let mut rights = [0; STORED.len()];
        let mut senders = [receiver.thread; STORED.len()];
        for (index, (right, thread)) in rights.iter_mut().zip(&mut senders).enumerate() {
            let (Way::Store(page), capability) = receiver.way(bench, 1, true)? else { continue };
            *right = capability.pointer();
            let argument = target_of(page) | (index as u64) << NUMBER_SHIFT;
            *thread = bench.prepare(Start::new(store_and_count, argument, PRIORITY))?.thread;
            put_on(bench, *thread, place + index as u64)?;
            thread.resume()?;
        }
        let count = COUNT.load(Ordering::Relaxed);
        until(interrupted(count + 10))?;
        let revoke = Task::Revoke.with(receiver.notification.pointer());
        let [first, second, third] = rights.map(|right| Task::Delete.with(right));
        let stop = Task::Suspend.with(receiver.thread.pointer());
        let unbind = Task::Unbind.with(receiver.thread.pointer());
        crowd.begin(match round % 4 {
            0 => [first, second, third, revoke],
            1 => [revoke, revoke, second, stop],
            2 => [first, stop, revoke, third],
            _ => [revoke, second, unbind, third],
        });
        // And the receiver moves meanwhile.
        put_on(bench, receiver.thread, place + 1)?;
        equal!(crowd.wait()?, 0);
        if round % 4 == 3 {
            check!(sel4::user_interrupt::receive_stores(receiver.thread, receiver.notification, 2)?);
        }
        receiver.thread.resume()?;
        all_go_on()?;
        // Earlier stores may wait for the receiver's next tick, if it has been interrupted often. So may this one.
        user_interrupt::SEEN.store(0, Ordering::Relaxed);
        Notification::from_pointer(bench.badged(receiver.notification.pointer(), Rights::WRITE, LAST)?).signal();
        until(|| user_interrupt::SEEN.load(Ordering::Relaxed) & LAST != 0)?;
        all_go_on()?;
        // From here on no signal comes, and the senders continue.
        let count = COUNT.load(Ordering::Relaxed);
        all_go_on()?;
        equal!(COUNT.load(Ordering::Relaxed), count);
        for sender in senders {
            Slot::own(sender.pointer()).delete()?;
        }
        check!(crowd.is_there());
    }
    Ok(())
}

/// Slots of the hostile threads' CSpace, as a power of two.
const SLOT_BITS: usize = 6;
/// Slots that one life of them may use.
const LIFE_SLOTS: u64 = 260;
/// Number of lives of the threads, and of their calls in each, together.
const LIVES: u64 = 16;
const CALLS: u64 = 2_500;

/// The memory of a hostile thread, by offsets from its start address: two pages of stack, its IPC buffer, a page that
/// it shares with the test, and its SyscallBuffer.
const PRIVATE: u64 = 0x20_0000_0000;
const PRIVATE_SIZE: u64 = 0x10_0000;
const BUFFER: u64 = 0x1_0000;
const SHARED: u64 = 0x2_0000;
const QUEUE: u64 = 0x3_0000;
/// First address of their own mappings.
const MAPPED: u64 = 0x20_4000_0000;
/// First address of the shared pages in the test.
const SEEN: u64 = 0x18_1000_0000;

/// Words of the shared page: the number of calls made, the seed, and the labels of invocations.
const MADE: u64 = 0;
const SEED: u64 = 8;
const LABELS: u64 = 64;

/// Slots of the CSpace of all of them.
mod slot {
    pub const TABLE: u64 = 1;
    pub const SPACE: u64 = 2;
    pub const UNTYPED: u64 = 3;
    pub const POOL: u64 = 4;
    pub const NOTIFICATION: u64 = 5;
    pub const ENDPOINT: u64 = 6;
    /// Four slots: the threads themselves.
    pub const THREADS: u64 = 8;
    /// Four slots.
    pub const PAGES: u64 = 12;
    pub const FAULTS: u64 = 16;
}

/// Invocations whose labels are passed to hostile threads, because these depend on the kernel's numbering.
const KNOWN: [Invocation; 18] = [
    Invocation::UntypedRetype,
    Invocation::CNodeCopy,
    Invocation::CNodeMint,
    Invocation::CNodeMove,
    Invocation::CNodeMutate,
    Invocation::CNodeDelete,
    Invocation::CNodeRevoke,
    Invocation::CNodeCancelBadgedSends,
    Invocation::PageMap,
    Invocation::PageUnmap,
    Invocation::PageTableMap,
    Invocation::PageTableUnmap,
    Invocation::TcbSuspend,
    Invocation::TcbResume,
    Invocation::TcbBindNotification,
    Invocation::TcbUnbindNotification,
    Invocation::TcbSetAffinity,
    Invocation::AsidPoolAssign,
];

/// A message of a hostile thread: capability, label, words, capabilities.
struct Attempt {
    target: u64,
    label: u64,
    words: [u64; 6],
    count: usize,
    capabilities: [u64; 1],
}

impl Attempt {
    /// Creates a random message, often one that could be valid for the objects of the threads.
    fn new(random: &mut Random, shared: u64) -> Attempt {
        let slot = random.below(1 << SLOT_BITS);
        let other = random.below(1 << SLOT_BITS);
        let thread = slot::THREADS + random.below(MEMBERS as u64);
        let address = MAPPED + (random.below(16) << 12);
        let depth = SLOT_BITS as u64;
        let label = |index: u64| read(shared + LABELS + 8 * index);
        let number = random.below(10);
        let (target, label, words, count, capability) = match random.below(16) {
            0..=2 => {
                let memory = if number < 7 { slot::UNTYPED } else { other };
                let words = [random.below(9), random.below(9), 0, 0, slot, 1 + random.below(4)];
                (memory, label(0), words, 6, slot::TABLE)
            }
            3..=5 => {
                let label = label(1 + random.below(4));
                (slot::TABLE, label, [slot, depth, other, depth, 15, random.below(4)], 6, slot::TABLE)
            }
            6..=8 => {
                // The objects on which all of them depend are seldom deleted.
                let slot = if slot < 20 && number < 9 { slot + 20 } else { slot };
                (slot::TABLE, label(5 + random.below(3)), [slot, depth, 0, 0, 0, 0], 2, 0)
            }
            9..=10 => (slot, label(8), [address, 3, 0, 0, 0, 0], 3, slot::SPACE),
            11 => (slot, label(9), [0; 6], 0, 0),
            12 => (slot, label(10 + random.below(2)), [address, 0, 0, 0, 0, 0], 2, slot::SPACE),
            13 => (thread, label(12 + random.below(4)), [0; 6], 0, slot::NOTIFICATION),
            14 => (thread, label(16), [random.below(5), 0, 0, 0, 0, 0], 1, 0),
            _ if number < 5 => (slot::POOL, label(17), [0; 6], 0, slot),
            _ => (
                random.pointer(),
                random.below(Invocation::first_free_label(Numbering::Multiprocessor) + 3),
                core::array::from_fn(|_| random.word()),
                6,
                random.pointer(),
            ),
        };
        Attempt { target, label, words, count, capabilities: [capability] }
    }

    fn information(&self) -> u64 {
        MessageInfo::new(self.label, 1, self.count).0
    }

    /// Makes the system call.
    fn call(&self, buffer: u64) {
        for index in 4..6 {
            write(buffer + hostile::MESSAGE + 8 * index, self.words[index as usize]);
        }
        write(buffer + hostile::CAPABILITIES, self.capabilities[0]);
        let [first, second, third, fourth, ..] = self.words;
        let arguments = [self.target, self.information(), first, second, third, fourth];
        raw::system_call(SystemCall::Call.number(), arguments);
    }

    /// Writes the request with this number.
    fn request(&self, queue: u64, number: u64) {
        let set = |word, value| write(queue + request_word(64, (number % 64) as usize, word) as u64, value);
        set(0, number);
        set(1, self.target);
        set(2, self.information());
        self.words.iter().enumerate().for_each(|(index, &word)| set(FIRST_ARGUMENT + index, word));
        set(capability_word(0), self.capabilities[0]);
    }
}

/// Runs as a hostile thread. It uses no data of the program, which are not mapped for it.
fn attack(start: u64) {
    let (buffer, shared, queue) = (start + BUFFER, start + SHARED, start + QUEUE);
    let mut random = Random::new(read(shared + SEED));
    loop {
        write(shared + MADE, read(shared + MADE) + 1);
        let attempt = Attempt::new(&mut random, shared);
        let tail = read(queue + REQUEST_TAIL_OFFSET as u64);
        match random.below(8) {
            0..=2 => attempt.call(buffer),
            3 => raw::yield_now(),
            _ if tail.wrapping_sub(read(queue + REQUEST_HEAD_OFFSET as u64)) < 64 || random.below(64) == 0 => {
                attempt.request(queue, tail);
                fence(Ordering::Release);
                write(queue + REQUEST_TAIL_OFFSET as u64, tail + 1);
            }
            _ => {
                write(queue + RESPONSE_HEAD_OFFSET as u64, read(queue + RESPONSE_TAIL_OFFSET as u64));
                raw::wake_syscall_handler();
            }
        }
        if random.below(16) == 0 {
            // Never a call that waits: it signals, or polls.
            let number = if random.below(2) == 0 { SystemCall::NBSend } else { SystemCall::NBRecv };
            raw::system_call(number.number(), [slot::NOTIFICATION + random.below(2), 0, 0, 0, 0, 0]);
        }
    }
}

/// Runs one life of the hostile threads; returns the number of their calls.
fn live(bench: &mut Bench<'_>, mut own: Allocator, seed: u64) -> Result<u64, Wrong> {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let space = PageTable::from_pointer(own.object(ObjectType::PageTable)?);
    let pool_memory = own.memory(12)?.untyped();
    let pool = Slot::own(own.slot()?);
    initial::ASID_CONTROL.make_pool(pool_memory, pool)?;
    AsidPool::from_pointer(pool.index).assign(space)?;
    hostile::show_code(bench, &mut own, space)?;
    let table = CNode::from_pointer(own.make(ObjectType::CapTable, SLOT_BITS, 1)?);
    let untyped = Slot::own(own.make(ObjectType::Untyped, 17, 1)?);
    let faults = Endpoint::from_pointer(own.object(ObjectType::Endpoint)?);
    let notification = own.object(ObjectType::Notification)?;
    let give = |index: u64, capability: u64| table.slot(index, SLOT_BITS).copy_from(Slot::own(capability), Rights::ALL);
    give(slot::TABLE, table.pointer())?;
    give(slot::SPACE, space.pointer())?;
    give(slot::POOL, pool.index)?;
    give(slot::NOTIFICATION, notification)?;
    give(slot::ENDPOINT, own.object(ObjectType::Endpoint)?)?;
    table.slot(slot::FAULTS, SLOT_BITS).mint_from(Slot::own(faults.pointer()), Rights::ALL, 1)?;
    // They have the only capability to this memory, so that revoking it reaches the objects that the others use at that
    // moment.
    table.slot(slot::UNTYPED, SLOT_BITS).move_from(untyped)?;
    for index in 0..4 {
        give(slot::PAGES + index, own.object(ObjectType::Page)?)?;
    }
    let mut threads = [Thread::from_pointer(0); MEMBERS];
    let start = |index: u64| PRIVATE + index * PRIVATE_SIZE;
    let seen = |index: u64| SEEN + (index << 12);
    let begin = |thread: Thread, index: u64| {
        let start = Start::new(attack, start(index), PRIORITY);
        thread.write_registers_and_resume(&registers(&start, thread, start.argument + BUFFER, start.argument + 0x2000))
    };
    for (index, thread) in (0..).zip(threads.iter_mut()) {
        let map = |own: &mut Allocator, offset: u64| -> Result<Page, Wrong> {
            let page = Page::from_pointer(own.object(ObjectType::Page)?);
            mapping::map(own, space, page, start(index) + offset, Rights::READ_WRITE, 0)?;
            Ok(page)
        };
        map(&mut own, 0)?;
        map(&mut own, 0x1000)?;
        let buffer = map(&mut own, BUFFER)?;
        let shared = map(&mut own, SHARED)?;
        let copy = own.slot()?;
        Slot::own(copy).copy_from(Slot::own(shared.pointer()), Rights::ALL)?;
        let root = initial::ADDRESS_SPACE;
        mapping::map(&mut own, root, Page::from_pointer(copy), seen(index), Rights::READ_WRITE, 0)?;
        let frames = (size(64) as u64).div_ceil(4096);
        let first = own.make(ObjectType::Page, 0, frames)?;
        for frame in 0..frames {
            let address = start(index) + QUEUE + (frame << 12);
            mapping::map(&mut own, space, Page::from_pointer(first + frame), address, Rights::READ_WRITE, 0)?;
        }
        for (number, invocation) in (0..).zip(KNOWN) {
            let label = invocation.label(raw::numbering()).unwrap_or(u64::from(u16::MAX));
            write(seen(index) + LABELS + 8 * number, label);
        }
        write(seen(index) + SEED, random.next() | 1);
        *thread = Thread::from_pointer(own.object(ObjectType::Tcb)?);
        let spaces = sel4::capability::Spaces {
            fault_endpoint: slot::FAULTS,
            cspace: table,
            cspace_data: CNodeData::new(0, 64 - SLOT_BITS),
            address_space: space,
        };
        thread.configure(spaces, start(index) + BUFFER, buffer)?;
        thread.set_priority(initial::THREAD, PRIORITY)?;
        put_on(bench, *thread, index)?;
        give(slot::THREADS + index, thread.pointer())?;
        let words = [64, first, frames];
        let registered =
            raw::invoke(thread.pointer(), Invocation::TcbRegisterAsyncSyscall, &words, &[notification]).map(drop);
        check!(registered.is_ok() || registered.is_err_and(|failure| failure.error == Error::IllegalOperation));
        if seed % 4 == 3 {
            // Their own capabilities are the last ones, so that any of them can delete any other.
            Slot::own(thread.pointer()).delete()?;
            let own = table.slot(slot::THREADS + index, SLOT_BITS);
            Slot::own(thread.pointer()).copy_from(own, Rights::ALL)?;
        }
    }
    for (index, thread) in (0..).zip(threads) {
        begin(thread, index)?;
    }
    let made = || (0..MEMBERS as u64).map(|index| read(seen(index) + MADE)).sum::<u64>();
    let (mut before, mut useless) = (0, 0);
    while made() < CALLS && useless < 4 {
        let_run(PRIORITY)?;
        // Objects in use are deleted; they may be gone already.
        let victim = random.below(MEMBERS as u64);
        let any = table.slot(random.below(1 << SLOT_BITS), SLOT_BITS);
        let _ = match random.below(12) {
            0 => threads[victim as usize].suspend(),
            1 => put_on(bench, threads[victim as usize], random.below(8)),
            2 => Slot::own(notification).revoke(),
            3 => table.slot(slot::UNTYPED, SLOT_BITS).revoke(),
            4..=6 if any.index > slot::FAULTS => any.delete(),
            7 if any.index > slot::FAULTS => any.revoke(),
            8 => threads[victim as usize].unbind_notification(),
            _ => Ok(()),
        };
        let told = faults.receive_now().is_some();
        let calls = made();
        if told || calls == before {
            for (index, thread) in (0..).zip(threads) {
                write(seen(index) + SEED, random.next() | 1);
                let _ = begin(thread, index);
            }
        }
        useless = if calls == before { useless + 1 } else { 0 };
        before = calls;
    }
    // In the end all their objects are deleted, in some lives after the threads were stopped, in others while they run.
    match seed % 4 {
        // Each may have been deleted already.
        0 => threads.iter().for_each(|thread| {
            let _ = thread.suspend();
        }),
        1 => Slot::own(space.pointer()).delete()?,
        2 => Slot::own(table.pointer()).delete()?,
        _ => {}
    }
    Ok(made())
}

/// Hostile threads on all harts that share a CSpace and an address space of their own make random calls.
pub fn harts_that_attack_the_same_objects_harm_no_other_thread(bench: &mut Bench<'_>) -> Outcome {
    const BITS: usize = 21;
    let canary = bench.endpoint()?;
    let mut arena = bench.allocator.memory(BITS)?;
    let first = bench.allocator.slots(LIFE_SLOTS)?;
    let region = SlotRegion { start: first, end: first + LIFE_SLOTS };
    let mut calls = 0;
    for seed in hostile::seeds(LIVES) {
        calls += live(bench, Allocator::over(Slots::new(region), arena), seed)?;
        if seed % 2 == 0 {
            arena.revoke()?;
        }
        for slot in region.start..region.end {
            Slot::own(slot).delete()?;
        }
        arena.revoke()?;
        is_whole(arena.untyped(), BITS, first)?;
    }
    sel4::println!("note: {calls} calls and requests");
    check!(calls > LIVES * 100);
    check!(raw::debug_identify(canary.pointer()) == Some(CapabilityTag::Endpoint));
    Ok(())
}
