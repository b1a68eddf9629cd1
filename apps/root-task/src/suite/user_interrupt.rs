//! Notifications as user interrupts, which seL4 does not have: on a kernel without them these tests report that and
//! test nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use sel4::abi::configuration::TICK_MILLISECONDS;
use sel4::abi::{Invocation, SystemCall};
use sel4::capability::{Endpoint, Notification, Page, PageTable, Slot, Thread, initial};
use sel4::fault::Fault;
use sel4::thread::{Start, Started};
use sel4::user_interrupt::{Sender, Signaller};
use sel4::{Error, Failure, ObjectType, Rights, raw, user_interrupt};

use crate::harness::{Bench, Outcome, PRIORITY, Wrong, let_run};
use crate::{check, equal, refused};

/// All badges with which a receiver has been interrupted, and the number of interrupts.
pub(super) static SEEN: AtomicU64 = AtomicU64::new(0);
pub(super) static COUNT: AtomicU64 = AtomicU64::new(0);
/// Progress of the receiver's computation.
pub(super) static STEPS: AtomicU64 = AtomicU64::new(0);

/// Runs for ever, and makes no system call.
fn compute(_: u64) {
    loop {
        step();
    }
}

/// Computes a little, and takes the signals that have come.
pub(super) fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
    note(user_interrupt::take());
}

fn note(badge: u64) {
    if badge != 0 {
        SEEN.fetch_or(badge, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Release);
    }
}

/// Makes a thread that has not started yet, and the notification that interrupts it; `None` on kernels without user
/// interrupts.
fn receiver(bench: &mut Bench<'_>, function: fn(u64), argument: u64) -> Result<Option<Receiver>, Failure> {
    SEEN.store(0, Ordering::Relaxed);
    COUNT.store(0, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    let notification = bench.notification()?;
    let started = bench.prepare(Start::new(function, argument, PRIORITY))?;
    if !user_interrupt::receive(started.thread, notification)? {
        sel4::println!("note: this kernel has no user interrupts");
        return Ok(None);
    }
    Ok(Some(Receiver { started, thread: started.thread, notification }))
}

pub(super) struct Receiver {
    started: Started,
    pub(super) thread: Thread,
    pub(super) notification: Notification,
}

impl Receiver {
    fn sender(&self, bench: &mut Bench<'_>, badge: u64) -> Result<Notification, Failure> {
        bench.badged(self.notification.pointer(), Rights::WRITE, badge).map(Notification::from_pointer)
    }
}

macro_rules! receiver_or_return {
    ($bench:expr, $function:expr, $argument:expr) => {
        match receiver($bench, $function, $argument)? {
            Some(receiver) => receiver,
            None => return Ok(()),
        }
    };
}

/// Lets others run until a condition holds.
pub(super) fn until(condition: impl Fn() -> bool) -> Outcome {
    while !condition() {
        let_run(PRIORITY)?;
    }
    Ok(())
}

pub(super) fn interrupted(times: u64) -> impl Fn() -> bool {
    move || COUNT.load(Ordering::Acquire) >= times
}

pub fn a_signal_interrupts_a_thread_that_computes(bench: &mut Bench<'_>) -> Outcome {
    let receiver = receiver_or_return!(bench, compute, 0);
    receiver.thread.resume()?;
    until(|| STEPS.load(Ordering::Relaxed) > 0)?;
    for (times, badge) in [(1, 2), (2, 1 << 40), (3, 5)] {
        receiver.sender(bench, badge)?.signal();
        until(interrupted(times))?;
        let steps = STEPS.load(Ordering::Relaxed);
        until(|| STEPS.load(Ordering::Relaxed) > steps)?;
    }
    equal!((SEEN.load(Ordering::Relaxed), COUNT.load(Ordering::Relaxed)), (7 | 1 << 40, 3));
    // A badge of 0 is a signal too.
    receiver.notification.signal();
    until(interrupted(4))?;
    user_interrupt::end(receiver.thread)?;
    // Each was taken once, and from now on it is a notification like any other.
    equal!(receiver.notification.poll(), None);
    receiver.sender(bench, 8)?.signal();
    let_run(PRIORITY)?;
    equal!(COUNT.load(Ordering::Relaxed), 4);
    equal!(receiver.notification.wait(), 8);
    Ok(())
}

pub fn registrations_are_checked(bench: &mut Bench<'_>) -> Outcome {
    let receiver = receiver_or_return!(bench, compute, 0);
    let thread = receiver.thread;
    let register = |thread: Thread, notification: u64, handler: u64| {
        raw::invoke(thread.pointer(), Invocation::TcbRegisterUserInterrupts, &[handler, 6, 0], &[notification])
    };
    let handler = user_interrupt::handler();
    // Another notification than the bound one, a thread without a bound one, and a second one for the same thread.
    let (other, unbound) = (bench.notification()?, bench.thread()?);
    refused!(register(thread, other.pointer(), handler), IllegalOperation);
    refused!(register(unbound, other.pointer(), handler), IllegalOperation);
    refused!(register(unbound, receiver.notification.pointer(), handler), IllegalOperation);
    refused!(thread.bind_notification(other), IllegalOperation);
    refused!(unbound.bind_notification(receiver.notification), IllegalOperation);
    // Without the right to receive, and a capability of another kind.
    let write_only = receiver.sender(bench, 0)?;
    equal!(refused!(register(thread, write_only.pointer(), handler), InvalidCapability).details[0], 1);
    equal!(refused!(register(thread, thread.pointer(), handler), InvalidCapability).details[0], 1);
    refused!(register(thread, receiver.notification.pointer(), handler + 1), AlignmentError);
    let nothing = |words: &[u64]| raw::invoke(thread.pointer(), Invocation::TcbRegisterUserInterrupts, words, &[]);
    refused!(nothing(&[]), TruncatedMessage);
    refused!(nothing(&[handler, 0]), TruncatedMessage);
    refused!(nothing(&[handler, 0, 0]), TruncatedMessage);
    refused!(nothing(&[handler, 2, 2]), AlignmentError);
    let endpoint = bench.endpoint()?;
    refused!(register(Thread::from_pointer(bench.slot()?.index), endpoint.pointer(), handler), InvalidCapability);
    // The refused calls have changed nothing.
    thread.resume()?;
    receiver.sender(bench, 4)?.signal();
    until(interrupted(1))?;
    equal!(SEEN.load(Ordering::Relaxed), 4);
    Ok(())
}

/// Waits for signals as a thread without interrupts does, once for each request.
fn wait(notification: u64) {
    loop {
        let badge = Notification::from_pointer(notification).wait();
        STEPS.fetch_add(badge << 8 | 1, Ordering::Relaxed);
        note(user_interrupt::take());
    }
}

pub fn a_receiver_that_waits_is_woken_as_any_other(bench: &mut Bench<'_>) -> Outcome {
    let slot = bench.slot()?;
    let receiver = receiver_or_return!(bench, wait, slot.index);
    slot.copy_from(Slot::own(receiver.notification.pointer()), Rights::READ)?;
    receiver.thread.resume()?;
    let sender = receiver.sender(bench, 16)?;
    for times in 1..4 {
        let_run(PRIORITY)?;
        sender.signal();
        let_run(PRIORITY)?;
        equal!(STEPS.load(Ordering::Relaxed), times << 12 | times);
    }
    equal!(COUNT.load(Ordering::Relaxed), 0);
    Ok(())
}

/// Sends a message to a receiver that is not there yet, and counts before and after.
fn block(endpoint: u64) {
    STEPS.fetch_add(1, Ordering::Relaxed);
    let _ = Endpoint::from_pointer(endpoint).call(&sel4::Message::new(1, &[2, 3]));
    note(user_interrupt::take());
    compute(0);
}

pub fn interrupts_of_a_receiver_that_cannot_run_come_later(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let receiver = receiver_or_return!(bench, block, endpoint.pointer());
    let (first, second) = (receiver.sender(bench, 2)?, receiver.sender(bench, 4)?);
    // Before it has started.
    first.signal();
    second.signal();
    receiver.thread.resume()?;
    until(|| STEPS.load(Ordering::Relaxed) == 1)?;
    // While it waits for the answer to a call.
    let call = endpoint.receive();
    equal!((call.label(), call.word(1)), (1, Some(3)));
    first.signal();
    let_run(PRIORITY)?;
    equal!((COUNT.load(Ordering::Relaxed), STEPS.load(Ordering::Relaxed)), (0, 1));
    sel4::message::reply(&sel4::Message::default());
    until(interrupted(1))?;
    // The first two were seen by the handler before the call, the third after it; the thread looked once.
    equal!((SEEN.load(Ordering::Relaxed), COUNT.load(Ordering::Relaxed)), (6, 1));
    // While it is suspended, and as one.
    receiver.thread.suspend()?;
    first.signal();
    second.signal();
    let_run(PRIORITY)?;
    equal!(COUNT.load(Ordering::Relaxed), 1);
    receiver.thread.resume()?;
    until(interrupted(2))?;
    let_run(PRIORITY)?;
    equal!(COUNT.load(Ordering::Relaxed), 2);
    Ok(())
}

pub fn a_receiver_can_move_and_go(bench: &mut Bench<'_>) -> Outcome {
    let receiver = receiver_or_return!(bench, compute, 0);
    receiver.thread.resume()?;
    let sender = receiver.sender(bench, 2)?;
    let (_, cores) = bench.boot.cores();
    for round in 1..16 {
        if cores > 1 {
            receiver.thread.set_affinity(round % cores)?;
        }
        sender.signal();
        until(interrupted(round))?;
    }
    equal!(COUNT.load(Ordering::Relaxed), 15);
    // Deleted while it computes, with its registration; the notification keeps later signals for the next waiter.
    receiver.started.delete()?;
    sender.signal();
    equal!(receiver.notification.wait(), 2);
    equal!(COUNT.load(Ordering::Relaxed), 15);
    Ok(())
}

/// Number of signals that a thread has tried to send.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

fn signal_for_ever(sender: u64) {
    loop {
        Notification::from_pointer(sender).signal();
        ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits for progress of the computing receiver, and of the sender.
fn both_go_on() -> Outcome {
    let (steps, attempts) = (STEPS.load(Ordering::Relaxed), ATTEMPTS.load(Ordering::Relaxed));
    until(|| STEPS.load(Ordering::Relaxed) > steps + 100 && ATTEMPTS.load(Ordering::Relaxed) > attempts + 100)
}

pub fn revoking_ends_a_right_while_it_is_used(bench: &mut Bench<'_>) -> Outcome {
    let receiver = receiver_or_return!(bench, compute, 0);
    receiver.thread.resume()?;
    let parent = bench.slot()?;
    parent.copy_from(Slot::own(receiver.notification.pointer()), Rights::ALL)?;
    let (_, cores) = bench.boot.cores();
    for round in 0..6 {
        let right = bench.slot()?;
        right.mint_from(parent, Rights::WRITE, 2 << round)?;
        let sender = bench.spawn(signal_for_ever, right.index)?;
        if cores > 1 {
            sender.thread.set_affinity(1 + round % (cores - 1))?;
        }
        until(|| SEEN.load(Ordering::Relaxed) & 2 << round != 0)?;
        match round % 2 {
            0 => right.delete()?,
            _ => Slot::own(receiver.notification.pointer()).revoke()?,
        }
        // Earlier signals come now.
        both_go_on()?;
        let count = COUNT.load(Ordering::Relaxed);
        both_go_on()?;
        equal!(COUNT.load(Ordering::Relaxed), count);
        sender.delete()?;
        if round % 2 == 1 {
            parent.copy_from(Slot::own(receiver.notification.pointer()), Rights::ALL)?;
        }
    }
    // Deleting the notification ends the thread's handler.
    Slot::own(receiver.notification.pointer()).revoke()?;
    Slot::own(receiver.notification.pointer()).delete()?;
    refused!(receiver.thread.unbind_notification(), IllegalOperation);
    Ok(())
}

/// Returns from a handler without being in one.
fn return_from_nothing(_: u64) {
    raw::system_call(SystemCall::ReturnFromUserInterrupt.number(), [0; 6]);
}

pub fn only_a_handler_returns(bench: &mut Bench<'_>) -> Outcome {
    let faults = bench.endpoint()?;
    let start = Start { fault_endpoint: faults.pointer(), ..Start::new(return_from_nothing, 0, PRIORITY) };
    bench.spawn_with(start)?;
    let_run(PRIORITY)?;
    let fault = faults.receive();
    let number = SystemCall::ReturnFromUserInterrupt.number() as u64;
    check!(
        matches!(Fault::from_message(&fault), Some(Fault::UnknownSystemCall { number: found, .. }) if found == number)
    );
    Ok(())
}

/// Counts with every register that a function may use, and returns whether the sum is right.
fn count_with_many_registers(_: u64) {
    loop {
        let mut numbers: [u64; 24] = core::array::from_fn(|index| index as u64);
        for _ in 0..5000 {
            for index in 0..24 {
                numbers[index] = numbers[index].rotate_left(7).wrapping_add(numbers[(index + 5) % 24]);
            }
        }
        STEPS.store(numbers.iter().fold(0, |sum, number| sum ^ number), Ordering::Relaxed);
        note(user_interrupt::take());
    }
}

pub fn interrupted_code_does_not_notice(bench: &mut Bench<'_>) -> Outcome {
    let receiver = receiver_or_return!(bench, count_with_many_registers, 0);
    receiver.thread.resume()?;
    until(|| STEPS.load(Ordering::Relaxed) != 0)?;
    let expected = STEPS.load(Ordering::Relaxed);
    let sender = receiver.sender(bench, 2)?;
    for round in 1..50 {
        sender.signal();
        until(interrupted(round))?;
        equal!(STEPS.load(Ordering::Relaxed), expected);
    }
    Ok(())
}

/// Waits with the sequence that begins again when it is interrupted.
fn wait_with_interrupts(notification: u64) {
    loop {
        note(user_interrupt::wait(Notification::from_pointer(notification)));
    }
}

fn signal_often(sender: u64) {
    for times in 0..500 {
        // At different moments.
        (0..times % 61 * 7).for_each(|_| core::hint::spin_loop());
        let before = COUNT.load(Ordering::Acquire);
        Notification::from_pointer(sender).signal();
        while COUNT.load(Ordering::Acquire) == before {
            raw::yield_now();
        }
        STEPS.fetch_add(1, Ordering::Release);
    }
}

pub fn waiting_misses_no_interrupt(bench: &mut Bench<'_>) -> Outcome {
    let slot = bench.slot()?;
    let receiver = receiver_or_return!(bench, wait_with_interrupts, slot.index);
    slot.copy_from(Slot::own(receiver.notification.pointer()), Rights::READ)?;
    receiver.thread.resume()?;
    let sender = receiver.sender(bench, 2)?;
    let (_, cores) = bench.boot.cores();
    let signals = bench.prepare(Start::new(signal_often, sender.pointer(), PRIORITY))?;
    if cores > 1 {
        signals.thread.set_affinity(1)?;
    }
    signals.thread.resume()?;
    until(|| STEPS.load(Ordering::Acquire) == 500)?;
    // Each was seen once, by the handler or by the wait.
    equal!((SEEN.load(Ordering::Relaxed), COUNT.load(Ordering::Relaxed)), (2, 500));
    Ok(())
}

// A handler that counts in `ENTERED`, and changes nothing else.
core::arch::global_asm!(
    ".section .text",
    ".option push",
    ".option arch, +a",
    ".balign 4",
    "counting_handler:",
    "addi sp, sp, -16",
    "sd t0, 0(sp)",
    "sd t1, 8(sp)",
    "lla t0, {entered}",
    "li t1, 1",
    "amoadd.d zero, t1, (t0)",
    "ld t0, 0(sp)",
    "ld t1, 8(sp)",
    "addi sp, sp, 16",
    "mv a0, a7",
    "li a7, {return_from}",
    "ecall",
    "unimp",
    ".option pop",
    entered = sym ENTERED,
    return_from = const SystemCall::ReturnFromUserInterrupt.number(),
);

unsafe extern "C" {
    safe fn counting_handler();
}

/// Number of entries of that handler.
static ENTERED: AtomicU64 = AtomicU64::new(0);

fn time_units_in_a_second(bench: &Bench<'_>) -> Result<u64, Wrong> {
    let damaged = || Wrong::new(format_args!("the device tree does not say how fast the time passes"));
    let tree = Fdt::new(bench.boot.device_tree().ok_or_else(damaged)?).map_err(|_| damaged())?;
    let cpus = tree.root().children().find(|node| node.name() == "cpus").ok_or_else(damaged)?;
    let mut properties = cpus.properties();
    let property = properties.find(|property| property.name() == "timebase-frequency").ok_or_else(damaged)?;
    property.value_as::<u32>().map(u64::from).map_err(|_| damaged())
}

pub fn a_sender_cannot_keep_a_receiver_in_its_handler(bench: &mut Bench<'_>) -> Outcome {
    /// The kernel's limit.
    const DELIVERIES: u64 = 256;
    let receiver = receiver_or_return!(bench, compute, 0);
    ENTERED.store(0, Ordering::Relaxed);
    let tick = time_units_in_a_second(bench)? * TICK_MILLISECONDS as u64 / 1000;
    let start = sel4::time::now();
    receiver.thread.register_user_interrupts(receiver.notification, counting_handler as *const () as u64)?;
    receiver.thread.resume()?;
    let (_, cores) = bench.boot.cores();
    let sender = receiver.sender(bench, 2)?;
    for core in 1..cores {
        let started = bench.prepare(Start::new(signal_for_ever, sender.pointer(), PRIORITY))?;
        started.thread.set_affinity(core)?;
        started.thread.resume()?;
    }
    // The thread's own work continues, however much of its time the handler takes.
    for _ in 0..8 {
        let (entered, steps) = (ENTERED.load(Ordering::Relaxed), STEPS.load(Ordering::Relaxed));
        sender.signal();
        until(|| ENTERED.load(Ordering::Relaxed) > entered && STEPS.load(Ordering::Relaxed) > steps + 1000)?;
    }
    receiver.thread.suspend()?;
    // Two stretches are on their way at the ends.
    let stretches = (sel4::time::now() - start) / tick + 2;
    check!(ENTERED.load(Ordering::Relaxed) <= stretches * DELIVERIES);
    Ok(())
}

/// Stores to an address, with an instruction of four bytes.
pub(super) fn store(address: u64, value: u64) {
    // SAFETY: the callers' addresses are those of pages for sending, or unmapped.
    unsafe {
        core::arch::asm!(
            "fence rw, o", ".option push", ".option norvc", "sw {value}, 0({address})", ".option pop",
            value = in(reg) value, address = in(reg) address, options(nostack),
        );
    }
}

/// Sends to a page for sending, the low bits of whose address are the index of the sender: by the instruction
/// `uipi_send` with this index, or by a store if it is 0.
pub(super) fn send_to(target: u64) {
    match target & 0xfff {
        0 => store(target, 2),
        index => user_interrupt::send_by_index(index),
    }
}

/// Returns the argument of [`send_to`] for a sender.
pub(super) fn target_of(sender: Sender) -> u64 {
    sender.address() | sender.index()
}

/// The way in which a test sends.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Store(Sender),
    Signal(Notification),
}

impl Way {
    fn send(self) {
        match self {
            Way::Store(sender) => sender.send(),
            Way::Signal(notification) => notification.signal(),
        }
    }
}

/// Makes a receiver as [`receiver`] does, with signals that come as stores where the machine can do that.
pub(super) fn store_receiver(
    bench: &mut Bench<'_>,
    function: fn(u64),
    argument: u64,
    hints: u64,
) -> Result<Option<(Receiver, bool)>, Failure> {
    let Some(receiver) = receiver(bench, function, argument)? else { return Ok(None) };
    user_interrupt::end(receiver.thread)?;
    let by_stores = user_interrupt::receive_stores(receiver.thread, receiver.notification, hints)?;
    Ok(Some((receiver, by_stores)))
}

macro_rules! store_receiver_or_return {
    ($bench:expr, $function:expr, $argument:expr, $hints:expr) => {
        match store_receiver($bench, $function, $argument, $hints)? {
            Some(receiver) => receiver,
            None => return Ok(()),
        }
    };
}

impl Receiver {
    /// Makes a sender of a bit, with its capability: by stores if the machine can do that, and else by signals.
    pub(super) fn way(&self, bench: &mut Bench<'_>, bit: u32, by_stores: bool) -> Result<(Way, Notification), Failure> {
        let notification = self.sender(bench, 1 << bit)?;
        if !by_stores {
            return Ok((Way::Signal(notification), notification));
        }
        let sender = Sender::new(&mut bench.allocator, &mut bench.window, notification, bit)?;
        Ok((Way::Store(sender), notification))
    }
}

pub fn a_store_interrupts_a_thread_that_computes(bench: &mut Bench<'_>) -> Outcome {
    let (receiver, by_stores) = store_receiver_or_return!(bench, compute, 0, 0b1110);
    receiver.thread.resume()?;
    let mut seen = 0;
    for bit in [1, 3, 2] {
        let (way, _) = receiver.way(bench, bit, by_stores)?;
        seen |= 1 << bit;
        for _ in 0..10 {
            let count = COUNT.load(Ordering::Relaxed);
            way.send();
            until(interrupted(count + 1))?;
            equal!(SEEN.load(Ordering::Relaxed), seen);
        }
        let Way::Store(sender) = way else { continue };
        if sender.index() != 0 {
            // Only the sender's own bit arrives. An index without a sender sends nothing.
            let count = COUNT.load(Ordering::Relaxed);
            for index in sender.index() + 1..=16 {
                user_interrupt::send_by_index(index);
            }
            both_go_on_or(1)?;
            equal!((SEEN.load(Ordering::Relaxed), COUNT.load(Ordering::Relaxed)), (seen, count));
            continue;
        }
        // Identities that do not exist, that are no hints, or that are out of range; and offsets without a function.
        // Only hints arrive.
        let count = COUNT.load(Ordering::Relaxed);
        for value in [0, 1, 5, 41, 63, 64, 100, 255, 256, 1 << 31, u64::MAX] {
            store(sender.address(), value);
        }
        for offset in [4, 8, 2048, 4092] {
            store(sender.address() + offset, 2);
        }
        both_go_on_or(1)?;
        equal!((SEEN.load(Ordering::Relaxed), COUNT.load(Ordering::Relaxed)), (seen, count));
    }
    // Signals with other badges come through the kernel, at the same time.
    receiver.sender(bench, 1 << 50)?.signal();
    until(|| SEEN.load(Ordering::Relaxed) == 0b1110 | 1 << 50)
}

/// Waits for progress of the computing receiver.
fn both_go_on_or(times: u64) -> Outcome {
    let steps = STEPS.load(Ordering::Relaxed);
    until(|| STEPS.load(Ordering::Relaxed) > steps + times * 1000)
}

pub fn pages_for_sending_are_checked(bench: &mut Bench<'_>) -> Outcome {
    let (receiver, by_stores) = store_receiver_or_return!(bench, compute, 0, 0b110);
    let space = initial::ADDRESS_SPACE;
    // An address whose page tables exist.
    let (address, page) = bench.window.pages(&mut bench.allocator, 1)?;
    let map = |target: u64, words: &[u64], notification: &[u64]| {
        raw::invoke(target, Invocation::PageTableMapSender, words, notification)
    };
    let right = receiver.sender(bench, 2)?;
    refused!(map(space.pointer(), &[], &[right.pointer()]), TruncatedMessage);
    refused!(map(space.pointer(), &[address], &[]), TruncatedMessage);
    equal!(refused!(map(space.pointer(), &[address], &[page.pointer()]), InvalidCapability).details[0], 1);
    let read_only = bench.badged(receiver.notification.pointer(), Rights::READ, 2)?;
    equal!(refused!(map(space.pointer(), &[address], &[read_only]), InvalidCapability).details[0], 1);
    let table = PageTable::from_pointer(bench.allocator.object(ObjectType::PageTable)?);
    equal!(refused!(map(table.pointer(), &[address], &[right.pointer()]), InvalidCapability).details[0], 0);
    refused!(space.map_sender(right, address), DeleteFirst);
    refused!(space.map_sender(right, address + 1), AlignmentError);
    refused!(space.map_sender(right, 0x3f_ffff_f000), InvalidArgument);
    refused!(space.map_sender(right, 0x38_0000_0000), FailedLookup);
    page.unmap()?;
    // Badges that are not one hint, and a notification that interrupts no thread.
    for badge in [0, 1, 6, 8, 1 << 63] {
        let other = receiver.sender(bench, badge)?;
        refused!(space.map_sender(other, address), IllegalOperation);
    }
    let other = bench.notification()?;
    refused!(space.map_sender(other, address), IllegalOperation);
    // Without a page, unmapping has no effect.
    space.unmap_sender(right)?;
    if !by_stores {
        refused!(space.map_sender(right, address), IllegalOperation);
        return Ok(());
    }
    space.map_sender(right, address)?;
    // The page that it has can be mapped again, but no other.
    space.map_sender(right, address)?;
    refused!(space.map_sender(right, address + 4096), DeleteFirst);
    space.unmap_sender(right)?;
    // A copy has no page, and a moved capability keeps it.
    space.map_sender(right, address)?;
    receiver.thread.resume()?;
    store(address, 2);
    until(interrupted(1))?;
    let (copy, moved) = (bench.slot()?, bench.slot()?);
    copy.copy_from(Slot::own(right.pointer()), Rights::WRITE)?;
    moved.move_from(Slot::own(right.pointer()))?;
    copy.delete()?;
    store(address, 2);
    until(interrupted(2))?;
    moved.delete()?;
    page.map(space, address, Rights::READ_WRITE, 0)?;
    store(address, 2);
    both_go_on_or(1)?;
    equal!(COUNT.load(Ordering::Relaxed), 2);
    Ok(())
}

/// Moves a thread to one of the cores, if there are several.
fn put_on(bench: &Bench<'_>, thread: Thread, number: u64) -> Result<(), Failure> {
    let (_, cores) = bench.boot.cores();
    if cores > 1 { thread.set_affinity(number % cores) } else { Ok(()) }
}

/// The address of a page for sending.
static PAGE: AtomicU64 = AtomicU64::new(0);

fn send_to_itself(times: u64) {
    COUNT.store(1, Ordering::Release);
    while PAGE.load(Ordering::Acquire) == 0 {
        core::hint::spin_loop();
    }
    for _ in 0..times {
        send_to(PAGE.load(Ordering::Relaxed));
        while user_interrupt::take() == 0 {
            core::hint::spin_loop();
        }
        STEPS.fetch_add(1, Ordering::Release);
    }
    loop {
        core::hint::spin_loop();
    }
}

pub fn stores_need_no_kernel(bench: &mut Bench<'_>) -> Outcome {
    const TIMES: u64 = 100_000;
    PAGE.store(0, Ordering::Relaxed);
    let (receiver, by_stores) = store_receiver_or_return!(bench, send_to_itself, TIMES, 2);
    if !by_stores {
        sel4::println!("note: this machine has no interrupts of programs that need no kernel");
        return Ok(());
    }
    put_on(bench, receiver.thread, 3)?;
    receiver.thread.resume()?;
    // The receiver has a file as soon as it runs, so that the page is mapped at once.
    until(interrupted(1))?;
    let Way::Store(sender) = receiver.way(bench, 1, true)?.0 else { unreachable!("asked for a store") };
    PAGE.store(target_of(sender), Ordering::Release);
    until(|| STEPS.load(Ordering::Acquire) == TIMES)?;
    // The kernel's own count of the thread's system calls and faults.
    equal!(receiver.thread.end_user_interrupts()?, 0);
    Ok(())
}

/// The targets of two threads that send to each other.
static TARGETS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Answers each store with one; two such threads run.
fn bounce(number: u64) {
    let target = TARGETS[number as usize].load(Ordering::Acquire);
    COUNT.fetch_add(1, Ordering::Relaxed);
    loop {
        while user_interrupt::take() == 0 {
            core::hint::spin_loop();
        }
        STEPS.fetch_add(1, Ordering::Release);
        send_to(target);
    }
}

pub fn two_threads_interrupt_each_other_without_the_kernel(bench: &mut Bench<'_>) -> Outcome {
    // Each takes a time slice of the host where that has no core for both threads' harts.
    const TIMES: u64 = 1000;
    let (_, cores) = bench.boot.cores();
    let pages = [bench.window.addresses(12, 1)?, bench.window.addresses(12, 1)?];
    let (first, by_stores) = store_receiver_or_return!(bench, bounce, 1, 2);
    let (second, _) = store_receiver_or_return!(bench, bounce, 0, 2);
    if !by_stores || cores == 1 {
        return Ok(());
    }
    second.thread.set_affinity(1)?;
    for ((receiver, page), target) in [(&first, pages[0]), (&second, pages[1])].into_iter().zip(&TARGETS) {
        let right = receiver.sender(bench, 2)?;
        let index = loop {
            if let Ok(index) = initial::ADDRESS_SPACE.map_sender(right, page) {
                break index;
            }
            let table = PageTable::from_pointer(bench.allocator.object(ObjectType::PageTable)?);
            table.map(initial::ADDRESS_SPACE, page, 0)?;
        };
        target.store(page | index, Ordering::Release);
    }
    first.thread.resume()?;
    second.thread.resume()?;
    // Each of them has a file when it has run.
    until(interrupted(2))?;
    first.notification.signal();
    until(|| STEPS.load(Ordering::Acquire) >= TIMES)?;
    // The page of either was mapped by a fault, and again whenever the other had lost its hart; and the signal's
    // handler has returned. That is nothing beside the stores.
    check!(first.thread.end_user_interrupts()? <= TIMES / 20);
    check!(second.thread.end_user_interrupts()? <= TIMES / 20);
    Ok(())
}

pub fn waits_and_polls_see_stores(bench: &mut Bench<'_>) -> Outcome {
    let slot = bench.slot()?;
    let (receiver, by_stores) = store_receiver_or_return!(bench, wait, slot.index, 0b110);
    slot.copy_from(Slot::own(receiver.notification.pointer()), Rights::READ)?;
    let ways = [receiver.way(bench, 1, by_stores)?.0, receiver.way(bench, 2, by_stores)?.0];
    receiver.thread.resume()?;
    for times in 1..200 {
        let_run(PRIORITY)?;
        let before = STEPS.load(Ordering::Relaxed) >> 8;
        ways[times % 2].send();
        until(|| STEPS.load(Ordering::Relaxed) >> 8 == before + (2 << (times % 2)))?;
    }
    equal!(COUNT.load(Ordering::Relaxed), 0);
    Ok(())
}

pub fn stores_to_a_receiver_that_stops_or_moves_are_not_lost(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    for round in 0..4 {
        let (receiver, by_stores) = store_receiver_or_return!(bench, block, endpoint.pointer(), 0b110);
        let ways = [receiver.way(bench, 1, by_stores)?.0, receiver.way(bench, 2, by_stores)?.0];
        put_on(bench, receiver.thread, round)?;
        receiver.thread.resume()?;
        // The receiver waits for an answer, with a pending identity in its file.
        let call = endpoint.receive();
        equal!(call.label(), 1);
        ways[0].send();
        match round {
            0 => {
                receiver.thread.suspend()?;
                ways[1].send();
                receiver.thread.unbind_notification()?;
                equal!(receiver.notification.poll(), Some(6));
                // The receiver's registration has ended, and the sender may still send.
                ways[0].send();
                equal!(receiver.notification.poll(), Some(2));
            }
            1 | 2 => {
                put_on(bench, receiver.thread, round + 1)?;
                ways[1].send();
                sel4::message::reply(&sel4::Message::default());
                until(|| SEEN.load(Ordering::Relaxed) == 6)?;
            }
            _ => {
                receiver.started.delete()?;
                ways[1].send();
                equal!(receiver.notification.poll(), Some(6));
            }
        }
    }
    Ok(())
}

fn store_once(address: u64) {
    store(address, 2);
}

fn store_for_ever(page: u64) {
    loop {
        send_to(page);
        ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn revoking_ends_stores_while_they_are_made(bench: &mut Bench<'_>) -> Outcome {
    let (receiver, by_stores) = store_receiver_or_return!(bench, compute, 0, 2);
    if !by_stores {
        return Ok(());
    }
    receiver.thread.resume()?;
    let faults = bench.endpoint()?;
    for round in 0..6 {
        let (Way::Store(page), right) = receiver.way(bench, 1, true)? else { continue };
        let start = Start { fault_endpoint: faults.pointer(), ..Start::new(store_for_ever, page.address(), PRIORITY) };
        let sender = bench.prepare(start)?;
        put_on(bench, sender.thread, round)?;
        sender.thread.resume()?;
        let count = COUNT.load(Ordering::Relaxed);
        until(interrupted(count + 10))?;
        match round % 3 {
            0 => Slot::own(right.pointer()).delete()?,
            1 => Slot::own(receiver.notification.pointer()).revoke()?,
            _ => initial::ADDRESS_SPACE.unmap_sender(right)?,
        }
        let attempts = ATTEMPTS.load(Ordering::Relaxed);
        let faulted_at = |address: u64| {
            let fault = faults.receive();
            matches!(Fault::from_message(&fault), Some(Fault::Memory { address: found, .. }) if found == address)
        };
        if round % 3 == 2 {
            // A thread that keeps the capability gets a fault.
            check!(faulted_at(page.address()));
            check!(ATTEMPTS.load(Ordering::Relaxed) <= attempts + 1);
        } else {
            // No thread can get a fault: the sender's stores do nothing, and it continues.
            until(|| ATTEMPTS.load(Ordering::Relaxed) > attempts + 100)?;
        }
        // Earlier stores have arrived by now.
        both_go_on_or(1)?;
        let count = COUNT.load(Ordering::Relaxed);
        both_go_on_or(1)?;
        equal!(COUNT.load(Ordering::Relaxed), count);
        if round % 3 != 2 {
            // Elsewhere in the page no sending is possible, and another page there works as ever.
            let wrong = bench.prepare(Start { function: store_once, argument: page.address() + 4, ..start })?;
            wrong.thread.resume()?;
            check!(faulted_at(page.address() + 4));
            wrong.delete()?;
            let frame = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
            // Not in the middle of a store, which would be a fault that has been repaired since.
            sender.thread.suspend()?;
            frame.map(initial::ADDRESS_SPACE, page.address(), Rights::READ_WRITE, 0)?;
            store(page.address(), 77);
            sender.thread.resume()?;
            let attempts = ATTEMPTS.load(Ordering::Relaxed);
            until(|| ATTEMPTS.load(Ordering::Relaxed) > attempts + 100)?;
            frame.unmap()?;
            check!(faulted_at(page.address()));
        }
        sender.delete()?;
    }
    Ok(())
}

/// Deleted and revoked capabilities, and unmapped pages: from then on the sender's instructions send nothing, and it
/// goes on.
pub fn revoking_ends_sends_while_they_are_made(bench: &mut Bench<'_>) -> Outcome {
    let (receiver, by_stores) = store_receiver_or_return!(bench, compute, 0, 2);
    if !by_stores {
        return Ok(());
    }
    receiver.thread.resume()?;
    for round in 0..12 {
        let (Way::Store(page), right) = receiver.way(bench, 1, true)? else { continue };
        if page.index() == 0 {
            return Ok(());
        }
        let sender = bench.prepare(Start::new(store_for_ever, target_of(page), PRIORITY))?;
        put_on(bench, sender.thread, round)?;
        sender.thread.resume()?;
        let count = COUNT.load(Ordering::Relaxed);
        until(interrupted(count + 10))?;
        // The sender comes to another hart, with another table.
        put_on(bench, sender.thread, round + 1)?;
        let count = COUNT.load(Ordering::Relaxed);
        until(interrupted(count + 10))?;
        match round % 4 {
            0 => Slot::own(right.pointer()).delete()?,
            1 => Slot::own(receiver.notification.pointer()).revoke()?,
            2 => initial::ADDRESS_SPACE.unmap_sender(right)?,
            _ => user_interrupt::end(receiver.thread)?,
        }
        let attempts = ATTEMPTS.load(Ordering::Relaxed);
        until(|| ATTEMPTS.load(Ordering::Relaxed) > attempts + 100)?;
        both_go_on_or(1)?;
        let count = COUNT.load(Ordering::Relaxed);
        both_go_on_or(1)?;
        equal!(COUNT.load(Ordering::Relaxed), count);
        sender.delete()?;
        if round % 4 == 3 {
            // Without a handler the sends are signals for the next waiter.
            check!(receiver.notification.poll().is_some());
            Slot::own(right.pointer()).delete()?;
            check!(user_interrupt::receive_stores(receiver.thread, receiver.notification, 2)?);
        }
    }
    Ok(())
}

/// Sends with an index that can have no sender.
fn send_by_wrong_index(index: u64) {
    user_interrupt::send_by_index(index);
}

pub fn indexes_outside_of_the_table_are_faults(bench: &mut Bench<'_>) -> Outcome {
    let faults = bench.endpoint()?;
    for index in [0, 17, 511, 512, 1 << 16, 1 << 61, u64::MAX] {
        let start = Start { fault_endpoint: faults.pointer(), ..Start::new(send_by_wrong_index, index, PRIORITY) };
        let thread = bench.spawn_with(start)?.thread;
        let fault = faults.receive();
        check!(matches!(Fault::from_message(&fault), Some(Fault::Exception { cause: 2, .. })));
        thread.suspend()?;
    }
    Ok(())
}

/// Sends once, for which the kernel arms it, and then uses the instructions of a slot, which it does not have.
fn do_without_a_slot(index: u64) {
    user_interrupt::send_by_index(index);
    let taken: u64;
    // SAFETY: the instructions access no memory.
    unsafe {
        core::arch::asm!(
            ".insn r 0x7b, 6, 2, x0, {all}, x0", ".insn r 0x7b, 6, 3, x0, x0, x0", ".insn r 0x7b, 6, 4, x0, x0, x0",
            ".insn r 0x7b, 6, 1, {taken}, x0, x0",
            all = in(reg) u64::MAX, taken = lateout(reg) taken, options(nostack),
        );
    }
    COUNT.store(1 + taken, Ordering::Release);
}

pub fn instructions_of_a_slot_do_nothing_without_one(bench: &mut Bench<'_>) -> Outcome {
    let (receiver, by_stores) = store_receiver_or_return!(bench, compute_and_look_never, 0, 2);
    let (Way::Store(sender), _) = receiver.way(bench, 1, by_stores)? else { return Ok(()) };
    if sender.index() == 0 {
        return Ok(());
    }
    receiver.thread.resume()?;
    // It has a slot now, so that the send has an entry.
    until(|| STEPS.load(Ordering::Relaxed) > 0)?;
    let faults = bench.endpoint()?;
    let start = Start { fault_endpoint: faults.pointer(), ..Start::new(do_without_a_slot, sender.index(), PRIORITY) };
    bench.spawn_with(start)?;
    until(interrupted(1))?;
    equal!(COUNT.load(Ordering::Acquire), 1);
    Ok(())
}

fn compute_and_look_never(_: u64) {
    loop {
        STEPS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Uses the registers and instructions of user interrupts in one of several ways, and then waits.
fn behave_as_a_hostile_receiver(way: u64) {
    let value = usize::MAX;
    // SAFETY: the effects are confined to this thread: it has no references, and no other thread waits for it.
    unsafe {
        match way {
            // A timer interrupt at an address without instructions.
            0 => core::arch::asm!("csrw 0x005, {0}", "csrw 0x004, {0}", "csrw 0x04d, zero", "csrsi 0x000, 1",
                "1: j 1b", in(reg) value),
            1 => core::arch::asm!("csrw 0x005, zero", "csrwi 0x044, 1", "csrsi 0x000, 1", "1: j 1b"),
            2 => core::arch::asm!("csrw 0x004, zero", "csrw 0x000, {}", in(reg) value),
            3 => core::arch::asm!("csrw 0x041, {}", ".insn i 0x73, 0, x0, x0, 2", in(reg) value),
            // Registers that are the kernel's.
            4 => core::arch::asm!("csrw 0x1b0, {}", in(reg) value),
            5 => core::arch::asm!("csrw 0x1b1, {}", in(reg) value),
            6 => core::arch::asm!("csrw 0x103, zero"),
            // All bits in its own slot, and an inactive slot.
            7 => core::arch::asm!("csrw 0x004, zero", ".insn r 0x7b, 6, 2, x0, {}, x0", in(reg) value),
            8 => core::arch::asm!(".insn r 0x7b, 6, 4, x0, x0, x0"),
            _ => core::arch::asm!("csrw 0x004, zero", ".insn r 0x7b, 6, 3, x0, x0, x0"),
        }
    }
    wait(PAGE.load(Ordering::Relaxed));
}

pub fn a_hostile_receiver_harms_itself(bench: &mut Bench<'_>) -> Outcome {
    let (good, by_stores) = store_receiver_or_return!(bench, compute, 0, 2);
    let (way, _) = good.way(bench, 1, by_stores)?;
    good.thread.resume()?;
    for hostile in 0..10 {
        let slot = bench.slot()?;
        let notification = bench.notification()?;
        let thread = bench.prepare(Start::new(behave_as_a_hostile_receiver, hostile, PRIORITY))?.thread;
        user_interrupt::receive_stores(thread, notification, !0)?;
        slot.copy_from(Slot::own(notification.pointer()), Rights::READ)?;
        PAGE.store(slot.index, Ordering::Relaxed);
        thread.resume()?;
        for _ in 0..4 {
            let_run(PRIORITY)?;
            check!(sel4::time::now() > 0);
            notification.signal();
            let count = COUNT.load(Ordering::Relaxed);
            way.send();
            until(|| COUNT.load(Ordering::Acquire) > count)?;
        }
        thread.suspend()?;
    }
    Ok(())
}

pub fn a_signaller_finds_out_how_it_can_signal(bench: &mut Bench<'_>) -> Outcome {
    let receiver = receiver_or_return!(bench, compute, 0);
    receiver.thread.resume()?;
    let right = receiver.sender(bench, 2)?;
    let signaller = Signaller::prepare(&mut bench.allocator, &mut bench.window, right, 1)?;
    let signal = || {
        let count = COUNT.load(Ordering::Relaxed);
        signaller.signal();
        until(interrupted(count + 1))
    };
    // The receiver takes no stores yet: through the kernel, every time.
    for _ in 0..5 {
        signal()?;
        check!(!signaller.is_by_stores());
    }
    user_interrupt::end(receiver.thread)?;
    let by_stores = user_interrupt::receive_stores(receiver.thread, receiver.notification, 2)?;
    // The signaller requests a page again at the eighth signal.
    for _ in 0..3 {
        signal()?;
        check!(!signaller.is_by_stores());
    }
    for _ in 0..20 {
        signal()?;
        equal!(signaller.is_by_stores(), by_stores);
    }
    // A new signaller requests one at once.
    let other_right = receiver.sender(bench, 2)?;
    let other = Signaller::prepare(&mut bench.allocator, &mut bench.window, other_right, 1)?;
    check!(!other.is_by_stores());
    let count = COUNT.load(Ordering::Relaxed);
    other.signal();
    until(interrupted(count + 1))?;
    equal!(other.is_by_stores(), by_stores);
    // The capability is deleted: either way a signal has no effect.
    Slot::own(right.pointer()).delete()?;
    let count = COUNT.load(Ordering::Relaxed);
    for _ in 0..10 {
        signaller.signal();
    }
    both_go_on_or(1)?;
    equal!(COUNT.load(Ordering::Relaxed), count);
    check!(signaller.register().is_err());
    signaller.signal();
    // Another capability in its place, with which it registers again.
    Slot::own(right.pointer()).mint_from(Slot::own(receiver.notification.pointer()), Rights::WRITE, 2)?;
    equal!(signaller.register().is_ok(), by_stores);
    // It has a page, and may request it again.
    equal!(signaller.register().is_ok(), by_stores);
    signal()?;
    equal!(signaller.is_by_stores(), by_stores);
    equal!(SEEN.load(Ordering::Relaxed), 2);
    Ok(())
}

/// The signaller of the thread that runs the function below: the capability's slot, and the address of its page.
static RIGHT: AtomicU64 = AtomicU64::new(0);

fn signal_itself(times: u64) {
    let (right, page) = (RIGHT.load(Ordering::Acquire), PAGE.load(Ordering::Relaxed));
    let signaller = Signaller::new(Notification::from_pointer(right), 1, initial::ADDRESS_SPACE, page);
    for _ in 0..times {
        signaller.signal();
        while user_interrupt::take() == 0 {
            core::hint::spin_loop();
        }
        STEPS.fetch_add(1, Ordering::Release);
    }
    loop {
        core::hint::spin_loop();
    }
}

pub fn a_signaller_enters_the_kernel_once(bench: &mut Bench<'_>) -> Outcome {
    const TIMES: u64 = 10_000;
    let (receiver, by_stores) = store_receiver_or_return!(bench, signal_itself, TIMES, 2);
    // An address whose page tables exist.
    let (address, page) = bench.window.pages(&mut bench.allocator, 1)?;
    page.unmap()?;
    PAGE.store(address, Ordering::Relaxed);
    RIGHT.store(receiver.sender(bench, 2)?.pointer(), Ordering::Release);
    receiver.thread.resume()?;
    until(|| STEPS.load(Ordering::Acquire) == TIMES)?;
    let entries = receiver.thread.end_user_interrupts()?;
    // The kernel's own count of the thread's system calls and faults: the one that requests the page.
    equal!(entries, u64::from(by_stores));
    Ok(())
}

/// Takes pages for sending in an address space until the kernel refuses; returns their number.
fn take_all_pages(bench: &mut Bench<'_>, receiver: &Receiver, space: PageTable) -> Result<u64, Failure> {
    let start = bench.window.addresses(21, 1)?;
    let mut taken = 0;
    loop {
        let right = receiver.sender(bench, 2)?;
        match space.map_sender(right, start + (taken << 12)) {
            Ok(_) => taken += 1,
            Err(failure) if failure.error == Error::FailedLookup => {
                let table = PageTable::from_pointer(bench.allocator.object(ObjectType::PageTable)?);
                table.map(space, start + (taken << 12), 0)?;
            }
            Err(failure) if failure.error == Error::DeleteFirst => return Ok(taken),
            Err(failure) => return Err(failure),
        }
    }
}

pub fn one_program_cannot_take_all_pages_for_sending(bench: &mut Bench<'_>) -> Outcome {
    /// Limits of an address space, and of the machine.
    const SHARE: u64 = 16;
    const ALL: u64 = 128;
    let (receiver, by_stores) = store_receiver_or_return!(bench, compute, 0, 2);
    if !by_stores {
        return Ok(());
    }
    receiver.thread.resume()?;
    let right = receiver.sender(bench, 2)?;
    let signaller = Signaller::prepare(&mut bench.allocator, &mut bench.window, right, 1)?;
    // Taking and returning leaves no pages behind.
    let (address, page) = bench.window.pages(&mut bench.allocator, 1)?;
    page.unmap()?;
    for _ in 0..3 * SHARE {
        let own = receiver.sender(bench, 2)?;
        initial::ADDRESS_SPACE.map_sender(own, address)?;
        Slot::own(own.pointer()).delete()?;
    }
    equal!(take_all_pages(bench, &receiver, initial::ADDRESS_SPACE)?, SHARE);
    // One more signals through the kernel.
    for _ in 0..20 {
        let count = COUNT.load(Ordering::Relaxed);
        signaller.signal();
        until(interrupted(count + 1))?;
        check!(!signaller.is_by_stores());
    }
    // Other address spaces have their shares, until all pages are taken.
    let mut spaces = heapless::Vec::<_, 8>::new();
    let mut taken = SHARE;
    while taken < ALL {
        let space = PageTable::from_pointer(bench.allocator.object(ObjectType::PageTable)?);
        initial::ASID_POOL.assign(space)?;
        let more = take_all_pages(bench, &receiver, space)?;
        equal!(more, SHARE);
        taken += more;
        let _ = spaces.push(space);
    }
    let space = PageTable::from_pointer(bench.allocator.object(ObjectType::PageTable)?);
    initial::ASID_POOL.assign(space)?;
    equal!(take_all_pages(bench, &receiver, space)?, 0);
    // Deleted capabilities return their pages, whichever thread had them, and signals that went through the kernel are
    // stores now.
    Slot::own(receiver.notification.pointer()).revoke()?;
    let right = receiver.sender(bench, 2)?;
    let signaller = Signaller::prepare(&mut bench.allocator, &mut bench.window, right, 1)?;
    let count = COUNT.load(Ordering::Relaxed);
    signaller.signal();
    until(interrupted(count + 1))?;
    check!(signaller.is_by_stores());
    equal!(take_all_pages(bench, &receiver, space)?, SHARE);
    Ok(())
}

pub fn more_receivers_than_interrupt_files(bench: &mut Bench<'_>) -> Outcome {
    let mut receivers = heapless::Vec::<_, 6>::new();
    for _ in 0..6 {
        let (receiver, by_stores) = store_receiver_or_return!(bench, compute, 0, 2);
        let (way, _) = receiver.way(bench, 1, by_stores)?;
        receiver.thread.resume()?;
        let _ = receivers.push((receiver, way));
    }
    for _ in 0..4 {
        for (_, way) in &receivers {
            let count = COUNT.load(Ordering::Relaxed);
            way.send();
            until(interrupted(count + 1))?;
        }
    }
    // One more gets a file when the first is suspended.
    for (receiver, _) in &receivers {
        receiver.thread.suspend()?;
    }
    for (receiver, way) in receivers.iter().rev() {
        receiver.thread.resume()?;
        let count = COUNT.load(Ordering::Relaxed);
        way.send();
        until(interrupted(count + 1))?;
    }
    Ok(())
}

/// Executes supervisor instructions, in one of several ways.
fn behave_as_a_supervisor(way: u64) {
    let value = usize::MAX;
    // SAFETY: the effects are confined to this thread: it has no references, and no other thread waits for it.
    unsafe {
        match way {
            0 => core::arch::asm!("csrw satp, {}", "csrw stvec, {}", "ecall", in(reg) value >> 1, in(reg) value),
            1 => core::arch::asm!("csrw sie, {0}", "csrw stvec, zero", "csrw stimecmp, zero", "1: j 1b", in(reg) value),
            2 => core::arch::asm!("csrw sie, zero", "csrw sstatus, {}", "wfi", in(reg) value),
            3 => core::arch::asm!("csrw sepc, {}", "sret", in(reg) value),
            4 => core::arch::asm!("csrw hgatp, {}", in(reg) value),
            5 => core::arch::asm!("sfence.vma"),
            // Identities that were not allowed, and then a wait.
            6 => core::arch::asm!(
                "csrw siselect, {eie2}", "csrw sireg, {all}", "csrw siselect, {eie0}", "csrw sireg, {all}",
                "csrw siselect, {eip2}", "csrw sireg, {all}", "csrw siselect, {eip0}", "csrw sireg, {all}",
                eie0 = in(reg) 0xc0, eie2 = in(reg) 0xc2, eip0 = in(reg) 0x80, eip2 = in(reg) 0x82, all = in(reg) value,
            ),
            // Registers that are not its own.
            7 => core::arch::asm!("csrw scounteren, zero", "csrw senvcfg, {}", in(reg) value),
            _ => core::arch::asm!("csrw hstatus, {}", in(reg) value),
        }
    }
    wait(PAGE.load(Ordering::Relaxed));
}

pub fn a_hostile_supervisor_harms_itself(bench: &mut Bench<'_>) -> Outcome {
    for way in 0..9 {
        let (receiver, _) = store_receiver_or_return!(bench, behave_as_a_supervisor, way, !0);
        let slot = bench.slot()?;
        slot.copy_from(Slot::own(receiver.notification.pointer()), Rights::READ)?;
        PAGE.store(slot.index, Ordering::Relaxed);
        receiver.thread.resume()?;
        for _ in 0..4 {
            let_run(PRIORITY)?;
            // Ordinary programs may still read the time.
            check!(sel4::time::now() > 0);
            receiver.notification.signal();
        }
        receiver.thread.suspend()?;
    }
    // Handlers at invalid addresses: the kernel must continue.
    for vector in [0, 4, !3, 0x3f_ffff_fffc] {
        let (receiver, by_stores) = store_receiver_or_return!(bench, compute, 0, 2);
        let handler = user_interrupt::handler();
        receiver.thread.register_user_interrupts_in_hardware(receiver.notification, handler, 2, vector)?;
        let (way, _) = receiver.way(bench, 1, by_stores)?;
        receiver.thread.resume()?;
        let_run(PRIORITY)?;
        way.send();
        let_run(PRIORITY)?;
        receiver.thread.suspend()?;
    }
    Ok(())
}

/// Reads a word at an address.
fn read(address: u64) {
    // SAFETY: the callers' addresses belong to no program, so that the instruction faults.
    unsafe { core::arch::asm!("ld zero, 0({})", in(reg) address, options(nostack)) };
}

/// In a virtualised thread's table the program's own root is a lower table: the kernel's half of it begins at 256 GiB,
/// and what lies behind is at no address.
pub fn a_virtualised_thread_reaches_no_memory_of_the_kernel(bench: &mut Bench<'_>) -> Outcome {
    const GIB: u64 = 1 << 30;
    let inside = [256, 257, 258, 259, 320, 384, 448, 509, 510, 511].map(|number| number * GIB);
    let behind = [512 * GIB, 514 * GIB, 1 << 40, 1 << 48, 1 << 50, 1 << 63, 0xffff_ffc0_8000_0000, !0xfff];
    let _ = store_receiver_or_return!(bench, compute, 0, 2);
    let faults = bench.endpoint()?;
    for address in inside.into_iter().chain(behind) {
        let notification = bench.notification()?;
        let start = Start { fault_endpoint: faults.pointer(), ..Start::new(read, address, PRIORITY) };
        let thread = bench.prepare(start)?.thread;
        user_interrupt::receive_stores(thread, notification, 2)?;
        thread.resume()?;
        let fault = faults.receive();
        check!(matches!(Fault::from_message(&fault), Some(Fault::Memory { address: found, .. }) if found == address));
        thread.suspend()?;
    }
    Ok(())
}

pub fn a_flood_of_stores_leaves_a_receiver_time(bench: &mut Bench<'_>) -> Outcome {
    let (receiver, by_stores) = store_receiver_or_return!(bench, compute_and_look_seldom, 0, 2);
    let (_, cores) = bench.boot.cores();
    let (Way::Store(page), _) = receiver.way(bench, 1, by_stores)? else { return Ok(()) };
    receiver.thread.resume()?;
    for core in 1..cores {
        let sender = bench.prepare(Start::new(store_for_ever, target_of(page), PRIORITY))?;
        sender.thread.set_affinity(core)?;
        sender.thread.resume()?;
    }
    let steps = STEPS.load(Ordering::Relaxed);
    until(|| STEPS.load(Ordering::Relaxed) > steps + 1_000_000)?;
    page.send();
    until(interrupted(1))
}

fn compute_and_look_seldom(_: u64) {
    loop {
        if STEPS.fetch_add(1, Ordering::Relaxed).is_multiple_of(10_000) {
            note(user_interrupt::take());
        }
    }
}

// A handler of stores that waits before it claims, and stores the claimed identity, plus 1, in `CLAIMED`.
core::arch::global_asm!(
    ".section .text",
    ".balign 4",
    "hesitant_handler:",
    "addi sp, sp, -16",
    "sd t0, 0(sp)",
    "sd t1, 8(sp)",
    "lla t1, {entered}",
    "li t0, 1",
    "sd t0, 0(t1)",
    "lla t1, {page}",
    "1:",
    "ld t0, 0(t1)",
    "bnez t0, 1b",
    "csrrw t0, 0x15c, zero",
    "addi t0, t0, 1",
    "lla t1, {claimed}",
    "sd t0, 0(t1)",
    "ld t0, 0(sp)",
    "ld t1, 8(sp)",
    "addi sp, sp, 16",
    "sret",
    entered = sym ENTERED,
    page = sym PAGE,
    claimed = sym CLAIMED,
);

unsafe extern "C" {
    safe fn hesitant_handler();
}

static CLAIMED: AtomicU64 = AtomicU64::new(0);

pub fn a_handler_that_loses_its_interrupt_file_goes_on(bench: &mut Bench<'_>) -> Outcome {
    /// More than the files of a hart.
    const OTHERS: usize = 8;
    let (receiver, by_stores) = store_receiver_or_return!(bench, compute, 0, 2);
    if !by_stores {
        return Ok(());
    }
    let vector = hesitant_handler as *const () as u64;
    let handler = user_interrupt::handler();
    receiver.thread.register_user_interrupts_in_hardware(receiver.notification, handler, 2, vector)?;
    let way = receiver.way(bench, 1, true)?.0;
    if matches!(way, Way::Store(sender) if sender.index() != 0) {
        // There are more slots than this test has memory for receivers.
        return Ok(());
    }
    ENTERED.store(0, Ordering::Relaxed);
    CLAIMED.store(0, Ordering::Relaxed);
    PAGE.store(1, Ordering::Relaxed);
    receiver.thread.resume()?;
    let_run(PRIORITY)?;
    way.send();
    until(|| ENTERED.load(Ordering::Relaxed) == 1)?;
    receiver.thread.suspend()?;
    // Other receivers take all files of its hart.
    for _ in 0..OTHERS {
        let (other, _) = store_receiver_or_return!(bench, compute, 0, 2);
        other.thread.resume()?;
        both_go_on_or(1)?;
    }
    COUNT.store(0, Ordering::Relaxed);
    receiver.thread.resume()?;
    PAGE.store(0, Ordering::Release);
    until(|| CLAIMED.load(Ordering::Relaxed) != 0)?;
    equal!(CLAIMED.load(Ordering::Relaxed), 1);
    // The identity that it has not claimed has come through the kernel.
    until(interrupted(1))?;
    equal!(SEEN.load(Ordering::Relaxed), 2);
    Ok(())
}
