//! The costs of the microkernel's interface, in instructions: a line for each figure, as `cargo xtask bench micro`
//! collects them.
//!
//! The measured operations, with their first and last instruction, are those of seL4's own benchmarks, so that the
//! figures can be compared with theirs. Threads that switch to each other have the priority of the initial thread,
//! which is the highest.
#![no_std]
#![no_main]

mod count;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi_sel4::{Invocation, MessageInfo, SystemCall};
use sel4::capability::{Arrival, IrqHandler, Notification, Page, PageTable, Slot, Spaces, Thread, Untyped, initial};
use sel4::mapping::{self, Window};
use sel4::thread::{Start, prepare, registers, spawn};
use sel4::user_interrupt::{Sender, send_by_index};
use sel4::{Allocator, BootInformation, CNodeData, Error, Failure, ObjectType, Result, Rights, println, raw};

use count::{Counts, ENTERED, FAULT_LENGTH, ROUNDS, median_of, now, read_register, system_call, write_register};

/// Priority of all threads that switch to each other.
const PRIORITY: u64 = 255;
/// Priority of threads that are to be interrupted, or not to run yet.
const LOWER: u64 = 100;

/// First address of this program's image, as in its linker script.
const IMAGE: u64 = 0x1_0000;
/// First address of the pages that are mapped and unmapped.
const PAGES: u64 = 0x20_0000_0000;
/// Address at which the clock's registers are mapped.
const CLOCK_REGISTERS: u64 = 0x18_0000_0000;
/// The real-time clock of the board: its registers and its interrupt.
const CLOCK: (u64, u64) = (0x10_1000, 11);
/// Its kind, in the device tree.
const CLOCK_KIND: &[u8] = b"google,goldfish-rtc";
/// Offsets of the clock's registers.
mod clock {
    pub const TIME_LOW: u64 = 0x00;
    pub const TIME_HIGH: u64 = 0x04;
    pub const ALARM_LOW: u64 = 0x08;
    pub const ALARM_HIGH: u64 = 0x0c;
    pub const ENABLE: u64 = 0x10;
    pub const CLEAR: u64 = 0x1c;
}

static CALLED: Counts = Counts::new();
static ARRIVED: Counts = Counts::new();
static REPLIED: Counts = Counts::new();
static RETURNED: Counts = Counts::new();
/// The last count of the thread that is to be interrupted.
static SPINNING: AtomicU64 = AtomicU64::new(0);

fn report(id: impl core::fmt::Display, instructions: u64) {
    println!("bench: {{\"id\": \"{id}\", \"value\": {instructions}, \"unit\": \"instructions\"}}");
}

/// The resources of all measurements.
struct Bench<'a> {
    boot: &'a BootInformation,
    allocator: Allocator,
    window: Window,
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    let allocator = Allocator::new(&boot);
    let window = Window::new(0x10_0000_0000, 0x10_1000_0000);
    if let Err(failure) = run(&mut Bench { boot: &boot, allocator, window }) {
        println!("the benchmark cannot go on: {failure}");
    }
}

fn run(bench: &mut Bench<'_>) -> Result<()> {
    system_calls(bench)?;
    messages(bench)?;
    signals(bench)?;
    switches(bench)?;
    faults(bench)?;
    memory(bench)?;
    interrupts(bench)?;
    user_interrupts(bench)
}

/// Measures a system call without an effect, and invocations that change nothing.
fn system_calls(bench: &mut Bench<'_>) -> Result<()> {
    // There is no caller to reply to.
    report("null-call", median_of(|_| call(SystemCall::Reply, 0, MessageInfo::new(0, 0, 0), [0; 4])));
    let label = Invocation::TcbSetFlags.label(raw::numbering()).unwrap_or_default();
    let own = initial::THREAD.pointer();
    report("null-invocation", median_of(|_| call(SystemCall::Call, own, MessageInfo::new(label, 0, 2), [0; 4])));
    let notification = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    report("poll", median_of(|_| call(SystemCall::NBRecv, notification.pointer(), MessageInfo::new(0, 0, 0), [0; 4])));
    Ok(())
}

#[inline(always)]
fn call(call: SystemCall, target: u64, info: MessageInfo, words: [u64; 4]) -> (u64, u64) {
    let (before, after, _) = system_call(call, [target, info.0, words[0], words[1], words[2], words[3]]);
    (before, after)
}

/// Measures calls and replies over an endpoint, within an address space and between two.
fn messages(bench: &mut Bench<'_>) -> Result<()> {
    for (spaces, other_space) in [(1, false), (2, true)] {
        for words in [0, 4] {
            let endpoint = bench.allocator.object(ObjectType::Endpoint)?;
            let serve = if words == 0 { serve::<0> } else { serve::<4> };
            let server = match other_space {
                true => spawn_elsewhere(bench, serve, endpoint)?,
                false => spawn(&mut bench.allocator, &mut bench.window, Start::new(serve, endpoint, PRIORITY))?.thread,
            };
            raw::yield_now();
            let info = MessageInfo::new(0, 0, words);
            for round in 0..ROUNDS {
                let (before, after) = call(SystemCall::Call, endpoint, info, [1, 2, 3, 4]);
                CALLED.set(round, before);
                RETURNED.set(round, after);
            }
            // The server stores the count of its last reply when it is called once more.
            call(SystemCall::Call, endpoint, info, [1, 2, 3, 4]);
            report(format_args!("ipc-call-{spaces}-{words}"), CALLED.until(&ARRIVED));
            report(format_args!("ipc-reply-{spaces}-{words}"), REPLIED.until(&RETURNED));
            Slot::own(server.pointer()).delete()?;
        }
    }
    Ok(())
}

/// Answers for ever with `WORDS` words.
fn serve<const WORDS: usize>(endpoint: u64) {
    let info = MessageInfo::new(0, 0, WORDS);
    let (_, arrived) = call(SystemCall::Recv, endpoint, MessageInfo::new(0, 0, 0), [0; 4]);
    ARRIVED.set(0, arrived);
    for round in 0.. {
        let (replied, arrived) = call(SystemCall::ReplyRecv, endpoint, info, [1, 2, 3, 4]);
        REPLIED.set(round, replied);
        ARRIVED.set(round + 1, arrived);
    }
}

/// Starts a thread of this program with an address space of its own, in which it sees the program at the same
/// addresses.
fn spawn_elsewhere(bench: &mut Bench<'_>, function: fn(u64), argument: u64) -> Result<Thread> {
    let Bench { boot, allocator, window } = bench;
    let space = PageTable::from_pointer(allocator.object(ObjectType::PageTable)?);
    initial::ASID_POOL.assign(space)?;
    let share = |allocator: &mut Allocator, page: Page, address: u64| -> Result<Page> {
        let copy = Page::from_pointer(allocator.slot()?);
        Slot::own(copy.pointer()).copy_from(Slot::own(page.pointer()), Rights::ALL)?;
        mapping::map(allocator, space, copy, address, Rights::READ_WRITE, 0)?;
        Ok(copy)
    };
    for (index, page) in boot.image_pages().enumerate() {
        share(allocator, page, IMAGE + ((index as u64) << 12))?;
    }
    let (stack, page) = window.pages(allocator, 1)?;
    share(allocator, page, stack)?;
    let (buffer, page) = window.pages(allocator, 1)?;
    share(allocator, page, buffer)?;
    let thread = Thread::from_pointer(allocator.object(ObjectType::Tcb)?);
    let spaces =
        Spaces { fault_endpoint: 0, cspace: initial::CNODE, cspace_data: CNodeData::default(), address_space: space };
    thread.configure(spaces, buffer, page)?;
    thread.set_scheduling(initial::THREAD, PRIORITY, PRIORITY)?;
    let start = Start::new(function, argument, PRIORITY);
    thread.write_registers_and_resume(&registers(&start, thread, buffer, stack + 0x1000))?;
    Ok(thread)
}

/// Measures signals without a waiter, to a less important waiter, and to a more important one.
fn signals(bench: &mut Bench<'_>) -> Result<()> {
    let notification = bench.allocator.object(ObjectType::Notification)?;
    let nothing = MessageInfo::new(0, 0, 0);
    report("signal", median_of(|_| call(SystemCall::Send, notification, nothing, [0; 4])));
    report(
        "wait",
        median_of(|_| {
            call(SystemCall::Send, notification, nothing, [0; 4]);
            call(SystemCall::Recv, notification, nothing, [0; 4])
        }),
    );

    let waiter = spawn(&mut bench.allocator, &mut bench.window, Start::new(wait, notification, LOWER))?;
    let own = initial::THREAD;
    let lower = || -> Result<()> {
        for round in 0..ROUNDS {
            // The thread waits again before the next signal.
            own.set_priority(own, LOWER - 1)?;
            own.set_priority(own, PRIORITY)?;
            let (before, after) = call(SystemCall::Send, notification, nothing, [0; 4]);
            CALLED.set(round, before);
            RETURNED.set(round, after);
        }
        Ok(())
    };
    lower()?;
    report("signal-to-less-important", CALLED.until(&RETURNED));

    own.set_priority(own, LOWER - 1)?;
    WAITED.store(0, Relaxed);
    for round in 0..ROUNDS {
        let (before, _) = call(SystemCall::Send, notification, nothing, [0; 4]);
        CALLED.set(round, before);
    }
    own.set_priority(own, PRIORITY)?;
    report("signal-to-more-important", CALLED.until(&ARRIVED));
    Slot::own(waiter.thread.pointer()).delete()
}

/// Number of signals to [`wait`].
static WAITED: AtomicU64 = AtomicU64::new(0);

fn wait(notification: u64) {
    loop {
        let (_, after) = call(SystemCall::Recv, notification, MessageInfo::new(0, 0, 0), [0; 4]);
        let round = WAITED.fetch_add(1, Relaxed);
        ARRIVED.set(round as usize, after);
    }
}

/// Measures the switch from one thread to another of equal priority, by a yield.
fn switches(bench: &mut Bench<'_>) -> Result<()> {
    let other = spawn(&mut bench.allocator, &mut bench.window, Start::new(take_turns, 0, PRIORITY))?;
    raw::yield_now();
    for round in 0..ROUNDS {
        let (before, _, _) = system_call(SystemCall::Yield, [0; 6]);
        CALLED.set(round, before);
    }
    report("switch", CALLED.until(&ARRIVED));
    Slot::own(other.thread.pointer()).delete()
}

fn take_turns(_: u64) {
    for round in 0.. {
        let (_, after, _) = system_call(SystemCall::Yield, [0; 6]);
        ARRIVED.set(round, after);
    }
}

/// Measures the way from a faulting thread to its handler, and back.
fn faults(bench: &mut Bench<'_>) -> Result<()> {
    let endpoint = bench.allocator.object(ObjectType::Endpoint)?;
    let start = Start { fault_endpoint: endpoint, ..Start::new(make_mistakes, 0, PRIORITY) };
    let faulter = spawn(&mut bench.allocator, &mut bench.window, start)?;
    let mut received = system_call(SystemCall::Recv, [endpoint, 0, 0, 0, 0, 0]);
    for round in 0..ROUNDS {
        let (_, after, [_, _, pc, stack, ..]) = received;
        ARRIVED.set(round, after);
        let info = MessageInfo::new(0, 0, 2);
        received = system_call(SystemCall::ReplyRecv, [endpoint, info.0, pc + FAULT_LENGTH, stack, 0, 0]);
        REPLIED.set(round, received.0);
    }
    report("fault", CALLED.until(&ARRIVED));
    report("fault-reply", REPLIED.until(&RETURNED));
    report("fault-round-trip", CALLED.until(&RETURNED));
    Slot::own(faulter.thread.pointer()).delete()
}

fn make_mistakes(_: u64) {
    for round in 0.. {
        let (before, after) = count::fault();
        CALLED.set(round, before);
        RETURNED.set(round, after);
    }
}

/// Makes an invocation; returns the counts before and after it.
fn invocation(target: u64, invocation: Invocation, words: &[u64], capabilities: &[u64]) -> Result<(u64, u64)> {
    let label = invocation.label(raw::numbering()).unwrap_or_default();
    let (info, [w0, w1, w2, w3]) = raw::prepare(label, words, capabilities);
    let (before, after, answer) = system_call(SystemCall::Call, [target, info.0, w0, w1, w2, w3]);
    match MessageInfo(answer[1]).label() as usize {
        0 => Ok((before, after)),
        label => Err(Failure::new(Error::from_number(label).unwrap_or(Error::IllegalOperation), [0; 2])),
    }
}

/// Returns the median cost of an invocation that differs in each round.
fn median_of_invocations(mut invoke: impl FnMut(u64) -> Result<(u64, u64)>) -> Result<u64> {
    let mut outcome = Ok(());
    let cost = median_of(|round| {
        invoke(round as u64).unwrap_or_else(|failure| {
            outcome = Err(failure);
            (0, 0)
        })
    });
    outcome.map(|()| cost)
}

/// Number of pages that are made at once.
const AT_ONCE: u64 = 64;

/// Measures making pages, mapping them, changing their rights, and unmapping them.
fn memory(bench: &mut Bench<'_>) -> Result<()> {
    // A part of this memory always remains, so that no page's memory is used, and cleared, a second time.
    let untyped = bench.allocator.memory(25)?.untyped().pointer();
    let pages = bench.allocator.slots(ROUNDS as u64)?;
    let more = bench.allocator.slots(AT_ONCE)?;
    let (root, space) = (initial::CNODE.pointer(), initial::ADDRESS_SPACE.pointer());
    let retype = |slot, count| {
        let words = [ObjectType::Page.number() as u64, 0, 0, 0, slot, count];
        invocation(untyped, Invocation::UntypedRetype, &words, &[root])
    };
    report("retype-page", median_of_invocations(|round| retype(pages + round, 1))?);
    let at_once = median_of_invocations(|_| {
        let counts = retype(more, AT_ONCE)?;
        (more..more + AT_ONCE).try_for_each(|slot| Slot::own(slot).delete())?;
        Ok(counts)
    })?;
    report(format_args!("retype-{AT_ONCE}-pages"), at_once);

    // The page tables exist before the pages are mapped.
    let first = Page::from_pointer(pages);
    mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, first, PAGES, Rights::READ_WRITE, 0)?;
    first.unmap()?;
    let map = |round: u64, rights: Rights| {
        invocation(pages + round, Invocation::PageMap, &[PAGES + (round << 12), rights.word(), 0], &[space])
    };
    report("page-map", median_of_invocations(|round| map(round, Rights::READ_WRITE))?);
    report("page-protect", median_of_invocations(|round| map(round, Rights::READ))?);
    report("page-unmap", median_of_invocations(|round| invocation(pages + round, Invocation::PageUnmap, &[], &[]))?);
    Ok(())
}

/// Measures the way from a device's interrupt, while a thread computes, to the thread that waits for it.
fn interrupts(bench: &mut Bench<'_>) -> Result<()> {
    let mut words = bench.boot.device_tree().into_iter().flat_map(|tree| tree.windows(CLOCK_KIND.len()));
    if !words.any(|word| word == CLOCK_KIND) {
        println!("note: without the clock of QEMU's machine, interrupts are not measured");
        return Ok(());
    }
    let registers = device_page(bench, CLOCK.0)?;
    mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, registers, CLOCK_REGISTERS, Rights::READ_WRITE, 0)?;
    let slot = Slot::own(bench.allocator.slot()?);
    initial::IRQ_CONTROL.get(CLOCK.1, slot)?;
    let handler = IrqHandler::from_pointer(slot.index);
    let notification = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    handler.set_notification(notification)?;
    let spinner = spawn(&mut bench.allocator, &mut bench.window, Start::new(spin, 0, LOWER))?;
    let register = |offset| CLOCK_REGISTERS + offset;
    let mut outcome = Ok(());
    let cost = median_of(|_| {
        let low = u64::from(read_register(register(clock::TIME_LOW)));
        let alarm = (u64::from(read_register(register(clock::TIME_HIGH))) << 32 | low) + 100_000;
        write_register(register(clock::ENABLE), 1);
        write_register(register(clock::ALARM_HIGH), (alarm >> 32) as u32);
        write_register(register(clock::ALARM_LOW), alarm as u32);
        let (_, after) = call(SystemCall::Recv, notification.pointer(), MessageInfo::new(0, 0, 0), [0; 4]);
        let interrupted = SPINNING.load(Relaxed);
        write_register(register(clock::CLEAR), 1);
        outcome = outcome.and(handler.acknowledge());
        (interrupted, after)
    });
    outcome?;
    report("interrupt", cost);
    Slot::own(spinner.thread.pointer()).delete()
}

fn spin(_: u64) {
    loop {
        SPINNING.store(now(), Relaxed);
    }
}

/// Returns the page of a device's registers.
fn device_page(bench: &mut Bench<'_>, address: u64) -> Result<Page> {
    let missing = Failure::new(Error::FailedLookup, [0; 2]);
    let (mut memory, description) = bench
        .boot
        .untypeds()
        .find(|(_, one)| {
            let start = one.physical_address;
            one.is_device == 1 && (start..start + (1 << one.size_bits)).contains(&address)
        })
        .ok_or(missing)?;
    let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
    let (mut start, mut bits) = (description.physical_address, usize::from(description.size_bits));
    // Halved until the part is the page.
    while bits > 12 {
        bits -= 1;
        let halves = bench.allocator.slots(2)?;
        memory.retype(ObjectType::Untyped, bits, root, halves, 2)?;
        let upper = (address - start) >> bits;
        start += upper << bits;
        memory = Untyped::from_pointer(halves + upper);
    }
    let page = bench.allocator.slot()?;
    memory.retype(ObjectType::Page, 0, root, page, 1)?;
    Ok(Page::from_pointer(page))
}

/// A back end of user interrupts: its name, the hints of receivers, and the address of the handler of these.
#[derive(Clone, Copy)]
struct BackEnd {
    name: &'static str,
    hints: u64,
    vector: u64,
}

impl BackEnd {
    /// Through the kernel, on every machine.
    const KERNEL: BackEnd = BackEnd { name: "kernel", hints: 0, vector: 0 };

    /// The back end in which hints arrive on this machine without the kernel.
    fn of(arrival: Arrival) -> Option<BackEnd> {
        let name = match arrival {
            Arrival::Signals => return None,
            Arrival::Stores => "imsic",
            Arrival::Instructions => "uintc",
        };
        Some(BackEnd { name, hints: SIGNAL, vector: count::vector(arrival) })
    }
}

/// A receiver of user interrupts, which has not started yet, with its notification and a right to send.
struct Receiver {
    thread: Thread,
    notification: u64,
    right: u64,
}

/// Makes a receiver; returns, too, in which way hints arrive.
fn receiver(bench: &mut Bench<'_>, back_end: BackEnd, function: fn(u64), argument: u64) -> Result<(Receiver, Arrival)> {
    let notification = bench.allocator.object(ObjectType::Notification)?;
    let right = bench.allocator.slot()?;
    Slot::own(right).mint_from(Slot::own(notification), Rights::WRITE, SIGNAL)?;
    let start = Start::new(function, argument, PRIORITY);
    let thread = prepare(&mut bench.allocator, &mut bench.window, start)?.thread;
    let bound = Notification::from_pointer(notification);
    thread.bind_notification(bound)?;
    let BackEnd { hints, vector, .. } = back_end;
    let arrival = thread.register_user_interrupts_in_hardware(bound, count::handler(), hints, vector)?;
    Ok((Receiver { thread, notification, right }, arrival))
}

/// Measures user interrupts with each back end that the machine has.
fn user_interrupts(bench: &mut Bench<'_>) -> Result<()> {
    let arrival = measure_back_end(bench, BackEnd::KERNEL)?;
    if let Some(back_end) = BackEnd::of(arrival) {
        measure_back_end(bench, back_end)?;
    }
    Ok(())
}

/// Measures the way from a send to the handler of the same thread, the receiver's own kernel entries and context
/// switches, a grant of the right to send, and its end.
fn measure_back_end(bench: &mut Bench<'_>, back_end: BackEnd) -> Result<Arrival> {
    let name = back_end.name;
    let done = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    let (first, arrival) = receiver(bench, back_end, interrupt_itself, done.pointer())?;
    let target = match back_end.hints {
        0 => 0,
        _ => {
            let (allocator, window) = (&mut bench.allocator, &mut bench.window);
            let right = Notification::from_pointer(first.right);
            let sender = Sender::new(allocator, window, right, SIGNAL.trailing_zeros())?;
            sender.address() | sender.index()
        }
    };
    TARGET.store(target, Relaxed);
    RIGHT.store(first.right, Relaxed);
    POLLED.store(first.notification, Relaxed);
    first.thread.resume()?;
    done.wait();
    report(format_args!("user-interrupt-{name}"), CALLED.until(&ARRIVED));
    report(format_args!("receiver-poll-{name}"), POLL.load(Relaxed));

    // It computes from now on, while the initial thread grants and revokes. It has run, so that the right is valid at
    // once.
    first.thread.set_priority(initial::THREAD, LOWER)?;
    let (grant, revocation) = rights(bench, &first, back_end)?;
    report(format_args!("grant-{name}"), grant);
    report(format_args!("revoke-{name}"), revocation);
    Slot::own(first.thread.pointer()).delete()?;

    let [caller, other] = [
        receiver(bench, back_end, yield_and_count, done.pointer())?.0,
        receiver(bench, back_end, give_turns_back, 0)?.0,
    ];
    caller.thread.resume()?;
    other.thread.resume()?;
    done.wait();
    report(format_args!("receiver-switch-{name}"), CALLED.until(&ARRIVED));
    Slot::own(caller.thread.pointer()).delete()?;
    Slot::own(other.thread.pointer()).delete()?;
    Ok(arrival)
}

/// Measures a grant, which is a badged copy of the notification's capability and, in hardware, the sender that belongs
/// to it, and the deletion of that copy.
fn rights(bench: &mut Bench<'_>, receiver: &Receiver, back_end: BackEnd) -> Result<(u64, u64)> {
    let (root, space) = (initial::CNODE.pointer(), initial::ADDRESS_SPACE.pointer());
    let right = bench.allocator.slot()?;
    // The page tables of the address exist.
    let (address, page) = bench.window.pages(&mut bench.allocator, 1)?;
    page.unmap()?;
    let depth = u64::from(u64::BITS);
    let grant = || -> Result<(u64, u64)> {
        let words = [right, depth, receiver.notification, depth, Rights::WRITE.word(), SIGNAL];
        let (before, after) = invocation(root, Invocation::CNodeMint, &words, &[root])?;
        let mut cost = after - before;
        if back_end.hints != 0 {
            let (before, after) = invocation(space, Invocation::PageTableMapSender, &[address], &[right])?;
            // The counter is read once in either call.
            cost += after - before - 1;
        }
        Ok((0, cost))
    };
    let revoke = || invocation(root, Invocation::CNodeDelete, &[right, depth], &[]);
    let granted = median_of_invocations(|_| {
        let cost = grant()?;
        revoke()?;
        Ok(cost)
    })?;
    let revoked = median_of_invocations(|_| {
        grant()?;
        revoke()
    })?;
    Ok((granted, revoked))
}

/// Badge with which a thread signals itself.
const SIGNAL: u64 = 2;
/// Address to which the thread stores its identity, or the index of its sender in the low bits beside it; 0 to signal
/// with the capability instead.
static TARGET: AtomicU64 = AtomicU64::new(0);
/// Mask of the index.
const INDEX: u64 = 0xfff;
/// Slot of the capability.
static RIGHT: AtomicU64 = AtomicU64::new(0);
/// Slot of the receiver's notification.
static POLLED: AtomicU64 = AtomicU64::new(0);
/// Cost of the receiver's poll of it.
static POLL: AtomicU64 = AtomicU64::new(0);

fn interrupt_itself(done: u64) {
    let (target, right) = (TARGET.load(Relaxed), RIGHT.load(Relaxed));
    for round in 0..ROUNDS {
        ENTERED.store(0, Relaxed);
        let before = match target {
            0 => call(SystemCall::Send, right, MessageInfo::new(0, 0, 0), [0; 4]).0,
            target if target & INDEX != 0 => {
                let before = now();
                send_by_index(target & INDEX);
                before
            }
            page => {
                let before = now();
                write_register(page, SIGNAL.trailing_zeros() + 1);
                before
            }
        };
        while ENTERED.load(Relaxed) == 0 {
            core::hint::spin_loop();
        }
        CALLED.set(round, before);
        ARRIVED.set(round, ENTERED.load(Relaxed));
    }
    let notification = POLLED.load(Relaxed);
    POLL.store(median_of(|_| call(SystemCall::NBRecv, notification, MessageInfo::new(0, 0, 0), [0; 4])), Relaxed);
    Notification::from_pointer(done).signal();
    spin(0);
}

/// The round of the thread that yields.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Gives its turn to another thread in each round.
fn yield_and_count(done: u64) {
    for round in 0..ROUNDS {
        TURN.store(round as u64, Relaxed);
        let (before, _, _) = system_call(SystemCall::Yield, [0; 6]);
        CALLED.set(round, before);
    }
    Notification::from_pointer(done).signal();
    spin(0);
}

/// Gives every turn back, in whichever order the two threads have begun.
fn give_turns_back(_: u64) {
    loop {
        let (_, after, _) = system_call(SystemCall::Yield, [0; 6]);
        ARRIVED.set(TURN.load(Relaxed) as usize, after);
    }
}
