//! Tests of coroutines on a thread of the microkernel.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};

use coroutine::{Priority, yield_now};
use sel4::capability::{Notification, initial};
use sel4::thread::{Start, spawn};
use sel4::{ObjectType, executor};
use spin::Mutex;

use crate::{Bench, Outcome, PRIORITY, equal};

pub fn the_most_important_runs_first(bench: &mut Bench<'_>) -> Outcome {
    let doorbell = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = order.clone();
    executor::run(doorbell, async move {
        let handles: Vec<_> = [5_u8, 1, 3]
            .map(|number| {
                let order = order.clone();
                executor::spawn(Priority::saturating(number.into()), async move {
                    for _ in 0..2 {
                        order.lock().push(number);
                        yield_now().await;
                    }
                })
            })
            .into_iter()
            .collect();
        for handle in handles {
            handle.await.expect("it is never cancelled");
        }
    });
    equal!(*seen.lock(), [1, 1, 3, 3, 5, 5]);
    Ok(())
}

/// Signals twice, as two interrupts would.
fn signal_twice(word: u64) {
    let (first, second) = (word >> 32, word & 0xffff_ffff);
    Notification::from_pointer(first).signal();
    Notification::from_pointer(second).signal();
}

pub fn a_signal_wakes_its_waiter(bench: &mut Bench<'_>) -> Outcome {
    let doorbell = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    let (first, second) = (bench.badged(doorbell.pointer(), 1 << 5)?, bench.badged(doorbell.pointer(), 1 << 63)?);
    // Less important than this thread, so that it signals only while this one sleeps.
    spawn(&mut bench.allocator, &mut bench.window, Start::new(signal_twice, first << 32 | second, PRIORITY))?;
    let count = executor::run(doorbell, async {
        let other = executor::spawn(Priority::HIGHEST, executor::signal(63));
        executor::signal(5).await;
        other.await.expect("it is never cancelled");
        2
    });
    equal!(count, 2);
    equal!(doorbell.poll(), None);
    Ok(())
}

/// The state of the next test's other thread: the coroutine to wake, and the number of wakes.
static SHARED: Mutex<Option<Waker>> = Mutex::new(None);
static WOKEN: AtomicU64 = AtomicU64::new(0);
const WAKES: u64 = 1000;

fn wake_often(_: u64) {
    while WOKEN.load(Ordering::Acquire) < WAKES {
        let waker = SHARED.lock().take();
        match waker {
            Some(waker) => {
                WOKEN.fetch_add(1, Ordering::Release);
                waker.wake();
            }
            None => core::hint::spin_loop(),
        }
    }
}

pub fn another_thread_wakes_a_coroutine(bench: &mut Bench<'_>) -> Outcome {
    let doorbell = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    let started = spawn(&mut bench.allocator, &mut bench.window, Start::new(wake_often, 0, PRIORITY))?;
    if bench.boot.cores().1 > 1 {
        // On another hart, so that it wakes at every moment, also while the worker is about to sleep.
        started.thread.set_affinity(1)?;
    }
    let polls = executor::run(doorbell, async {
        let mut polls = 0_u64;
        for number in 0..WAKES {
            poll_fn(|context| {
                polls += 1;
                if WOKEN.load(Ordering::Acquire) > number {
                    return Poll::Ready(());
                }
                *SHARED.lock() = Some(context.waker().clone());
                Poll::Pending
            })
            .await;
        }
        polls
    });
    equal!(WOKEN.load(Ordering::Acquire), WAKES);
    equal!(polls >= WAKES, true);
    Ok(())
}

/// Signals once, after the worker has begun to be busy.
fn signal_once(sender: u64) {
    Notification::from_pointer(sender).signal();
}

pub fn a_signal_interrupts_a_worker_that_never_sleeps(bench: &mut Bench<'_>) -> Outcome {
    let doorbell = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    let sender = bench.badged(doorbell.pointer(), 1 << 9)?;
    if !executor::receive_interrupts(initial::THREAD, doorbell)? {
        return Ok(());
    }
    let started = spawn(&mut bench.allocator, &mut bench.window, Start::new(signal_once, sender, PRIORITY))?;
    let (own, own_priority) = (initial::THREAD, sel4::abi::configuration::MAXIMUM_PRIORITY as u64);
    // Equal in priority to the other thread, which runs when this one's time slice is over.
    own.set_priority(own, PRIORITY)?;
    let before = executor::entries();
    executor::run(doorbell, async {
        let other = executor::spawn(Priority::HIGHEST, executor::signal(9));
        while !other.is_finished() {
            yield_now().await;
        }
    });
    own.set_priority(own, own_priority)?;
    // It neither slept nor polled the doorbell.
    equal!(executor::entries(), before);
    executor::end_interrupts()?;
    equal!(doorbell.poll(), None);
    started.delete()?;
    Ok(())
}
