//! Scheduling: priorities, time slices, cores, domains.

use core::sync::atomic::{AtomicU64, Ordering};

use sel4::Numbering;
use sel4::abi::Invocation;
use sel4::capability::{Endpoint, Notification, Thread, initial};
use sel4::message::{self, Message};
use sel4::raw::invoke;
use sel4::thread::Start;

use crate::harness::{Bench, Outcome, PRIORITY, let_run};
use crate::{check, equal, memory, refused};

static ORDER: AtomicU64 = AtomicU64::new(0);
static COUNTERS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn record(digit: u64) {
    ORDER.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |order| Some(order * 10 + digit)).unwrap_or(0);
}

fn spin(index: u64) {
    loop {
        COUNTERS[index as usize].fetch_add(1, Ordering::Relaxed);
    }
}

fn clear() {
    COUNTERS.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    ORDER.store(0, Ordering::Relaxed);
}

pub fn the_most_important_runs_first(bench: &mut Bench<'_>) -> Outcome {
    clear();
    for digit in [2, 5, 1, 4, 3] {
        bench.spawn_with(Start::new(record, digit, PRIORITY + digit))?;
    }
    let_run(PRIORITY)?;
    equal!(ORDER.load(Ordering::Relaxed), 54321);
    Ok(())
}

pub fn equals_take_turns(bench: &mut Bench<'_>) -> Outcome {
    clear();
    bench.spawn(spin, 0)?;
    bench.spawn(spin, 1)?;
    // Neither of them yields: only the end of its time slice lets the other run.
    let_run(PRIORITY)?;
    check!(COUNTERS[0].load(Ordering::Relaxed) > 0);
    check!(COUNTERS[1].load(Ordering::Relaxed) > 0);
    Ok(())
}

pub fn a_thread_that_spins_does_not_stop_the_more_important(bench: &mut Bench<'_>) -> Outcome {
    clear();
    let notification = bench.notification()?;
    bench.spawn(spin, 0)?;
    bench.spawn_with(Start::new(
        |pointer| {
            Notification::from_pointer(pointer).wait();
            record(7);
        },
        notification.pointer(),
        PRIORITY + 1,
    ))?;
    let_run(PRIORITY)?;
    check!(COUNTERS[0].load(Ordering::Relaxed) > 0);
    let signaller = bench.badged(notification.pointer(), sel4::Rights::WRITE, 1)?;
    Notification::from_pointer(signaller).signal();
    let_run(PRIORITY + 1)?;
    equal!(ORDER.load(Ordering::Relaxed), 7);
    Ok(())
}

fn wait_and_record(argument: u64) {
    Notification::from_pointer(argument >> 8).wait();
    record(argument & 0xff);
}

/// Signals every notification of a row, and records that its time slice has not ended.
fn signal_all(argument: u64) {
    for pointer in argument >> 8..(argument >> 8) + (argument & 0xff) {
        Notification::from_pointer(pointer).signal();
    }
    record(9);
}

/// A thread that is woken by one of equal priority runs next, before others that were ready already; the one that woke
/// it keeps its time slice.
pub fn the_last_of_equals_that_was_woken_runs_next(bench: &mut Bench<'_>) -> Outcome {
    clear();
    const WAITERS: u64 = 5;
    let first = bench.notification()?.pointer();
    for index in 1..WAITERS {
        equal!(bench.notification()?.pointer(), first + index);
    }
    for index in 0..WAITERS {
        bench.spawn(wait_and_record, (first + index) << 8 | (index + 1))?;
    }
    let_run(PRIORITY)?;
    bench.spawn(signal_all, first << 8 | WAITERS)?;
    let_run(PRIORITY)?;
    equal!(ORDER.load(Ordering::Relaxed), 954_321);
    Ok(())
}

/// Slots of the capabilities of `the_order_of_equals_is_that_of_every_wake_up`, one after the other.
const NOTIFICATION: u64 = 0;
const ENDPOINT: u64 = 1;
const CALLED: u64 = 2;

fn receive_and_record(endpoint: u64) {
    Endpoint::from_pointer(endpoint).receive();
    record(2);
}

fn call_and_record(endpoint: u64) {
    Endpoint::from_pointer(endpoint).call(&Message::new(0, &[]));
    record(3);
}

fn wake_in_every_way(argument: u64) {
    let (first, thread) = (argument >> 32, argument & 0xffff_ffff);
    // Takes the call without a wait: the caller stands in the queue.
    Endpoint::from_pointer(first + CALLED).receive();
    Notification::from_pointer(first + NOTIFICATION).signal();
    Endpoint::from_pointer(first + ENDPOINT).send_or_lose(&Message::new(0, &[]));
    message::reply(&Message::new(0, &[]));
    let resumed = Thread::from_pointer(thread).resume();
    record(if resumed.is_ok() { 9 } else { 8 });
}

/// A signal, a message, an answer and a resumption wake threads of the waker's priority: each of them becomes the next
/// of its priority, before those that were woken earlier, and the waker keeps its time slice.
pub fn the_order_of_equals_is_that_of_every_wake_up(bench: &mut Bench<'_>) -> Outcome {
    clear();
    let first = bench.notification()?.pointer();
    equal!(bench.endpoint()?.pointer(), first + ENDPOINT);
    equal!(bench.endpoint()?.pointer(), first + CALLED);
    bench.spawn(wait_and_record, (first + NOTIFICATION) << 8 | 1)?;
    bench.spawn(receive_and_record, first + ENDPOINT)?;
    bench.spawn(call_and_record, first + CALLED)?;
    let resumed = bench.prepare(Start::new(record, 4, PRIORITY))?;
    let_run(PRIORITY)?;
    equal!(ORDER.load(Ordering::Relaxed), 0);
    bench.spawn(wake_in_every_way, first << 32 | resumed.thread.pointer())?;
    let_run(PRIORITY)?;
    equal!(ORDER.load(Ordering::Relaxed), 94_321);
    Ok(())
}

pub fn raising_a_priority_lets_a_thread_run(bench: &mut Bench<'_>) -> Outcome {
    clear();
    bench.spawn(spin, 0)?;
    let late = bench.spawn_with(Start::new(record, 3, PRIORITY - 50))?;
    let_run(PRIORITY)?;
    equal!(ORDER.load(Ordering::Relaxed), 0);
    late.thread.set_priority(initial::THREAD, PRIORITY + 1)?;
    let_run(PRIORITY)?;
    equal!(ORDER.load(Ordering::Relaxed), 3);
    Ok(())
}

fn through_the_fpu(seed: u64) {
    for round in 0..200 {
        let value = f64::from_bits(0x3ff0_0000_0000_0000 | seed << 20 | round).to_bits();
        let found = memory::through_floating_point(value, || {
            let until = memory::time() + 2_000;
            while memory::time() < until {}
        });
        if found != value {
            COUNTERS[1].fetch_add(1, Ordering::Relaxed);
        }
    }
    COUNTERS[0].fetch_add(1, Ordering::Relaxed);
}

pub fn floating_point_registers_belong_to_their_thread(bench: &mut Bench<'_>) -> Outcome {
    clear();
    for seed in 1..=3 {
        bench.spawn(through_the_fpu, seed)?;
    }
    for _ in 0..10_000 {
        if COUNTERS[0].load(Ordering::Relaxed) == 3 {
            break;
        }
        let_run(PRIORITY)?;
    }
    equal!((COUNTERS[0].load(Ordering::Relaxed), COUNTERS[1].load(Ordering::Relaxed)), (3, 0));
    Ok(())
}

pub fn a_thread_without_the_fpu_faults(bench: &mut Bench<'_>) -> Outcome {
    clear();
    let endpoint = bench.endpoint()?;
    let handler = bench.badged(endpoint.pointer(), sel4::Rights::ALL, 1)?;
    let start = Start { fault_endpoint: handler, ..Start::new(through_the_fpu, 1, PRIORITY) };
    let started = bench.prepare(start)?;
    equal!(started.thread.set_flags(0, sel4::abi::message::TCB_FLAG_FPU_DISABLED)?, 1);
    started.thread.resume()?;
    let fault = sel4::fault::Fault::from_message(&endpoint.receive());
    check!(matches!(fault, Some(sel4::fault::Fault::Exception { cause: 2, .. })));
    Ok(())
}

pub fn cores_run_at_the_same_time(bench: &mut Bench<'_>) -> Outcome {
    let (_, cores) = bench.boot.cores();
    if sel4::raw::numbering() == Numbering::Uniprocessor || cores < 2 {
        return Ok(());
    }
    clear();
    let started = bench.prepare(Start::new(spin, 0, PRIORITY))?;
    started.thread.set_affinity(1)?;
    started.thread.resume()?;
    // This thread never waits, and is more important: on its own core the other could not run.
    let until = memory::time() + 100_000_000;
    while COUNTERS[0].load(Ordering::Relaxed) == 0 && memory::time() < until {}
    check!(COUNTERS[0].load(Ordering::Relaxed) > 0);
    // A thread that runs on another core can be stopped, moved and deleted.
    started.thread.suspend()?;
    let stopped = COUNTERS[0].load(Ordering::Relaxed);
    let until = memory::time() + 100_000;
    while memory::time() < until {}
    equal!(COUNTERS[0].load(Ordering::Relaxed), stopped);
    started.thread.resume()?;
    started.thread.set_affinity(0)?;
    started.thread.set_affinity(1)?;
    let registers = started.thread.suspend_and_read_registers()?;
    check!(registers.sp != 0);
    started.thread.resume()?;
    started.delete()?;
    let stopped = COUNTERS[0].load(Ordering::Relaxed);
    let until = memory::time() + 100_000;
    while memory::time() < until {}
    equal!(COUNTERS[0].load(Ordering::Relaxed), stopped);
    Ok(())
}

/// Most looks of a thread that never waits at another on another core. The limit only ends a test that fails.
const LOOKS: u32 = 1_000_000;

/// A thread that is moved runs there although the thread that moved it makes one call after another and never waits: on
/// an idle core, and on one that runs less important threads.
pub fn a_thread_that_is_moved_runs_on_an_idle_and_on_a_busy_core(bench: &mut Bench<'_>) -> Outcome {
    let (_, cores) = bench.boot.cores();
    if sel4::raw::numbering() == Numbering::Uniprocessor || cores < 2 {
        return Ok(());
    }
    clear();
    for is_busy in [false, true] {
        if is_busy {
            for core in 1..cores {
                let started = bench.prepare(Start::new(spin, 1, PRIORITY - 1))?;
                started.thread.set_affinity(core)?;
                started.thread.resume()?;
            }
        }
        let notification = bench.notification()?;
        for round in 0..20 {
            COUNTERS[0].store(0, Ordering::Relaxed);
            let started = bench.spawn(|_| _ = COUNTERS[0].fetch_add(1, Ordering::Relaxed), 0)?;
            // Until here the thread is ready on this core, which does not run it.
            started.thread.set_affinity(1 + round % (cores - 1))?;
            let has_run = (0..LOOKS).any(|_| {
                notification.poll();
                COUNTERS[0].load(Ordering::Relaxed) == 1
            });
            check!(has_run);
            started.delete()?;
        }
    }
    Ok(())
}

fn answer(pointer: u64) {
    let endpoint = sel4::capability::Endpoint::from_pointer(pointer);
    let mut request = endpoint.receive();
    loop {
        let word = request.word(0).unwrap_or(0);
        request = endpoint.reply_and_receive(&sel4::Message::new(0, &[word + 1]));
    }
}

pub fn messages_pass_between_cores(bench: &mut Bench<'_>) -> Outcome {
    let (_, cores) = bench.boot.cores();
    let endpoint = bench.endpoint()?;
    let started = bench.prepare(Start::new(answer, endpoint.pointer(), PRIORITY))?;
    if sel4::raw::numbering() == Numbering::Multiprocessor && cores > 1 {
        started.thread.set_affinity(cores - 1)?;
    }
    started.thread.resume()?;
    for word in 0..1_000 {
        equal!(endpoint.call(&sel4::Message::new(0, &[word])).word(0), Some(word + 1));
    }
    Ok(())
}

pub fn domains_are_checked(bench: &mut Bench<'_>) -> Outcome {
    let thread = bench.thread()?;
    initial::DOMAIN.set(0, thread)?;
    equal!(refused!(initial::DOMAIN.set(200, thread), InvalidArgument).details[0], 0);
    let none = Thread::from_pointer(initial::CNODE.pointer());
    equal!(refused!(initial::DOMAIN.set(0, none), InvalidArgument).details[0], 1);
    refused!(invoke(initial::DOMAIN.pointer(), Invocation::DomainSetSet, &[0], &[]), TruncatedMessage);
    refused!(invoke(initial::DOMAIN.pointer(), Invocation::DomainSetSet, &[], &[thread.pointer()]), TruncatedMessage);
    refused!(initial::DOMAIN.configure_schedule(u64::MAX, 0, 1), RangeError);
    refused!(initial::DOMAIN.configure_schedule(0, 200, 1), RangeError);
    refused!(initial::DOMAIN.configure_schedule(0, 0, 1 << 56), InvalidArgument);
    refused!(initial::DOMAIN.configure_schedule(0, 0, 0), InvalidArgument);
    refused!(initial::DOMAIN.set_schedule_start(u64::MAX), RangeError);
    // An entry that ends the schedule cannot be its start.
    equal!(refused!(initial::DOMAIN.set_schedule_start(1), InvalidArgument).details[0], 0);
    initial::DOMAIN.set_schedule_start(0)?;
    refused!(invoke(initial::DOMAIN.pointer(), Invocation::DomainSetScheduleConfigure, &[0, 0], &[]), TruncatedMessage);
    refused!(invoke(initial::DOMAIN.pointer(), Invocation::DomainSetScheduleSetStart, &[], &[]), TruncatedMessage);
    Ok(())
}
