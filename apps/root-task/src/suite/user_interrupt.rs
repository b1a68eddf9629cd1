//! Notifications as user interrupts, which seL4 does not have: on a kernel without them these tests say so and test nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use sel4::abi::configuration::TICK_MILLISECONDS;
use sel4::abi::{Invocation, SystemCall};
use sel4::capability::{Endpoint, Notification, Slot, Thread};
use sel4::fault::Fault;
use sel4::thread::{Start, Started};
use sel4::{Failure, Rights, interrupt, raw};

use crate::harness::{Bench, Outcome, PRIORITY, Wrong, let_run};
use crate::{check, equal, refused};

/// All badges that a receiver has been interrupted with, and how often it was.
static SEEN: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// How far it has come with what it does.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// Runs for ever, and makes no system call.
fn compute(_: u64) {
    loop {
        STEPS.fetch_add(1, Ordering::Relaxed);
        note(interrupt::take());
    }
}

fn note(badge: u64) {
    if badge != 0 {
        SEEN.fetch_or(badge, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Release);
    }
}

/// A thread that has not started yet, and the notification that interrupts it; `None` on kernels that know no such thing.
fn receiver(bench: &mut Bench<'_>, function: fn(u64), argument: u64) -> Result<Option<Receiver>, Failure> {
    SEEN.store(0, Ordering::Relaxed);
    COUNT.store(0, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    let notification = bench.notification()?;
    let started = bench.prepare(Start::new(function, argument, PRIORITY))?;
    if !interrupt::receive(started.thread, notification)? {
        sel4::println!("note: this kernel has no user interrupts");
        return Ok(None);
    }
    Ok(Some(Receiver { started, thread: started.thread, notification }))
}

struct Receiver {
    started: Started,
    thread: Thread,
    notification: Notification,
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

/// Lets others run until something is so.
fn until(condition: impl Fn() -> bool) -> Outcome {
    while !condition() {
        let_run(PRIORITY)?;
    }
    Ok(())
}

fn interrupted(times: u64) -> impl Fn() -> bool {
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
    // A badge of nothing is a signal too.
    receiver.notification.signal();
    until(interrupted(4))?;
    interrupt::end(receiver.thread)?;
    // Each was taken once, and from now on it is a notification as any other.
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
        raw::invoke(thread.pointer(), Invocation::TcbRegisterUserInterrupts, &[handler], &[notification])
    };
    let handler = interrupt::handler();
    // Another notification than the one that is bound, a thread to which none is, and a second one for the same thread.
    let (other, unbound) = (bench.notification()?, bench.thread()?);
    refused!(register(thread, other.pointer(), handler), IllegalOperation);
    refused!(register(unbound, other.pointer(), handler), IllegalOperation);
    refused!(register(unbound, receiver.notification.pointer(), handler), IllegalOperation);
    refused!(thread.bind_notification(other), IllegalOperation);
    refused!(unbound.bind_notification(receiver.notification), IllegalOperation);
    // Without the right to receive, and what is no notification.
    let write_only = receiver.sender(bench, 0)?;
    equal!(refused!(register(thread, write_only.pointer(), handler), InvalidCapability).details[0], 1);
    equal!(refused!(register(thread, thread.pointer(), handler), InvalidCapability).details[0], 1);
    refused!(register(thread, receiver.notification.pointer(), handler + 1), AlignmentError);
    let nothing = |words: &[u64]| raw::invoke(thread.pointer(), Invocation::TcbRegisterUserInterrupts, words, &[]);
    refused!(nothing(&[]), TruncatedMessage);
    refused!(nothing(&[handler]), TruncatedMessage);
    let endpoint = bench.endpoint()?;
    refused!(register(Thread::from_pointer(bench.slot()?.index), endpoint.pointer(), handler), InvalidCapability);
    // What was refused has changed nothing.
    thread.resume()?;
    receiver.sender(bench, 4)?.signal();
    until(interrupted(1))?;
    equal!(SEEN.load(Ordering::Relaxed), 4);
    Ok(())
}

/// Waits for signals as a thread does that gets no interrupts, once for each time that is asked for.
fn wait(notification: u64) {
    loop {
        let badge = Notification::from_pointer(notification).wait();
        STEPS.fetch_add(badge << 8 | 1, Ordering::Relaxed);
        note(interrupt::take());
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

/// Sends a message to somebody who is not there yet, and says so before and after.
fn block(endpoint: u64) {
    STEPS.fetch_add(1, Ordering::Relaxed);
    let _ = Endpoint::from_pointer(endpoint).call(&sel4::Message::new(1, &[2, 3]));
    note(interrupt::take());
    compute(0);
}

pub fn what_comes_while_a_receiver_cannot_run_comes_later(bench: &mut Bench<'_>) -> Outcome {
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
    // Deleted while it computes, with its registration; the notification keeps what comes for whoever waits now.
    receiver.started.delete()?;
    sender.signal();
    equal!(receiver.notification.wait(), 2);
    equal!(COUNT.load(Ordering::Relaxed), 15);
    Ok(())
}

/// How often a thread has tried to signal.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

fn signal_for_ever(sender: u64) {
    loop {
        Notification::from_pointer(sender).signal();
        ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lets the receiver that computes, and whoever signals, come some way.
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
        // What was signalled before comes now.
        both_go_on()?;
        let count = COUNT.load(Ordering::Relaxed);
        both_go_on()?;
        equal!(COUNT.load(Ordering::Relaxed), count);
        sender.delete()?;
        if round % 2 == 1 {
            parent.copy_from(Slot::own(receiver.notification.pointer()), Rights::ALL)?;
        }
    }
    // With the notification goes the thread's handler.
    Slot::own(receiver.notification.pointer()).revoke()?;
    Slot::own(receiver.notification.pointer()).delete()?;
    refused!(receiver.thread.unbind_notification(), IllegalOperation);
    Ok(())
}

/// Ends a handler in which it is not.
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

/// Counts with every register that a function may use, and says whether the sum is what it should be.
fn count_with_many_registers(_: u64) {
    loop {
        let mut numbers: [u64; 24] = core::array::from_fn(|index| index as u64);
        for _ in 0..5000 {
            for index in 0..24 {
                numbers[index] = numbers[index].rotate_left(7).wrapping_add(numbers[(index + 5) % 24]);
            }
        }
        STEPS.store(numbers.iter().fold(0, |sum, number| sum ^ number), Ordering::Relaxed);
        note(interrupt::take());
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
        note(interrupt::wait(Notification::from_pointer(notification)));
    }
}

fn signal_often(sender: u64) {
    for times in 0..500 {
        // At all kinds of moments.
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

/// How often that handler was entered.
static ENTERED: AtomicU64 = AtomicU64::new(0);

fn time_units_in_a_second(bench: &Bench<'_>) -> Result<u64, Wrong> {
    let damaged = || Wrong::new(format_args!("the device tree does not say how fast the time passes"));
    let tree = Fdt::new(bench.boot.device_tree().ok_or_else(damaged)?).map_err(|_| damaged())?;
    let cpus = tree.root().children().find(|node| node.name() == "cpus").ok_or_else(damaged)?;
    let mut properties = cpus.properties();
    let property = properties.find(|property| property.name() == "timebase-frequency").ok_or_else(damaged)?;
    property.value_as::<u32>().map(u64::from).map_err(|_| damaged())
}

pub fn whoever_signals_cannot_keep_a_receiver_in_its_handler(bench: &mut Bench<'_>) -> Outcome {
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
    // What it does for itself goes on, however much of its time that is.
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
