//! Notifications: a word of signals.

use core::sync::atomic::{AtomicU64, Ordering};

use sel4::Rights;
use sel4::capability::{Endpoint, Notification};

use crate::equal;
use crate::harness::{Bench, Outcome, PRIORITY, let_run};

static RESULT: AtomicU64 = AtomicU64::new(0);

pub fn signals_accumulate(bench: &mut Bench<'_>) -> Outcome {
    let notification = bench.notification()?;
    equal!(notification.poll(), None);
    for badge in [1, 4, 4, 16] {
        Notification::from_pointer(bench.badged(notification.pointer(), Rights::ALL, badge)?).signal();
    }
    equal!(notification.wait(), 21);
    equal!(notification.poll(), None);
    Ok(())
}

fn wait(notification: u64) {
    let badge = Notification::from_pointer(notification).wait();
    RESULT.fetch_add(badge << 32 | 1, Ordering::Relaxed);
}

pub fn one_signal_wakes_one(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let notification = bench.notification()?;
    bench.spawn(wait, notification.pointer())?;
    bench.spawn(wait, notification.pointer())?;
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 0);
    let signaller = Notification::from_pointer(bench.badged(notification.pointer(), Rights::WRITE, 8)?);
    signaller.signal();
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 8 << 32 | 1);
    signaller.signal();
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 16 << 32 | 2);
    equal!(notification.poll(), None);
    Ok(())
}

fn receive(endpoint: u64) {
    for _ in 0..2 {
        let received = Endpoint::from_pointer(endpoint).receive();
        RESULT.store(received.badge(), Ordering::Relaxed);
    }
}

pub fn a_bound_notification_interrupts_a_receive(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let (endpoint, notification) = (bench.endpoint()?, bench.notification()?);
    let signaller = Notification::from_pointer(bench.badged(notification.pointer(), Rights::WRITE, 3)?);
    let started = bench.spawn(receive, endpoint.pointer())?;
    started.thread.bind_notification(notification)?;
    let_run(PRIORITY)?;
    signaller.signal();
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 3);
    // The thread still receives messages.
    let sender = Endpoint::from_pointer(bench.badged(endpoint.pointer(), Rights::WRITE, 44)?);
    sender.send(&sel4::Message::default());
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 44);
    Ok(())
}

pub fn a_signal_before_the_receive_is_kept(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let (endpoint, notification) = (bench.endpoint()?, bench.notification()?);
    let started = bench.prepare(sel4::thread::Start::new(receive, endpoint.pointer(), PRIORITY))?;
    started.thread.bind_notification(notification)?;
    Notification::from_pointer(bench.badged(notification.pointer(), Rights::WRITE, 6)?).signal();
    started.thread.resume()?;
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 6);
    Ok(())
}

/// Answers each signal of the first notification with one of the second, and counts.
fn answer_signals(notifications: u64) {
    let [own, other] = [notifications >> 32, notifications & 0xffff_ffff].map(Notification::from_pointer);
    let mut badge = own.wait();
    loop {
        RESULT.fetch_add(badge << 32 | 1, Ordering::Relaxed);
        badge = own.wait_after_signal(other);
    }
}

pub fn a_signal_and_a_wait_are_one_call(bench: &mut Bench<'_>) -> Outcome {
    const ROUNDS: u64 = 100;
    RESULT.store(0, Ordering::Relaxed);
    let (own, theirs) = (bench.notification()?, bench.notification()?);
    let [to_us, to_them] =
        [bench.badged(own.pointer(), Rights::WRITE, 2)?, bench.badged(theirs.pointer(), Rights::WRITE, 1)?];
    bench.spawn(answer_signals, theirs.pointer() << 32 | to_us)?;
    let_run(PRIORITY)?;
    for round in 0..ROUNDS {
        // The other thread is less important: it runs when this one waits.
        equal!(own.wait_after_signal(Notification::from_pointer(to_them)), 2);
        equal!(RESULT.load(Ordering::Relaxed), (round + 1) << 32 | (round + 1));
    }
    // A signal that is there already ends the wait at once; so does one to the notification itself.
    Notification::from_pointer(to_us).signal();
    equal!(own.wait_after_signal(Notification::from_pointer(to_us)), 2);
    equal!(own.wait_after_signal(Notification::from_pointer(bench.badged(own.pointer(), Rights::ALL, 4)?)), 4);
    equal!(own.poll(), None);
    // An empty slot, or a right that lacks, is no fault of the sender.
    Notification::from_pointer(to_us).signal();
    let silent = bench.badged(theirs.pointer(), Rights::READ, 8)?;
    equal!(own.wait_after_signal(Notification::from_pointer(silent)), 2);
    equal!(theirs.poll(), None);
    Ok(())
}
