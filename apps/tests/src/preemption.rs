//! Preemption inside a process: which coroutine preempts which, and the state that must survive. The tests apply to
//! every back end, on one hart and on several.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cops::interrupt::Receiver;
use cops::process::Ending;
use cops::time::{Duration, Instant};
use cops::{Priority, preemption};

use crate::harness::{Outcome, act, ending_of_act, wait};
use crate::{check, check_eq, must};

/// Longest time of any event here.
const LIMIT: Duration = Duration::from_secs(30);

/// Spins until a word has a value.
fn spin_until(word: &AtomicU32, value: u32) -> Outcome {
    let start = Instant::now();
    while word.load(Ordering::Acquire) != value {
        core::hint::spin_loop();
        check!(start.elapsed() < LIMIT, "it is {} and not {value}", word.load(Ordering::Acquire));
    }
    Ok(())
}

fn level(number: u64) -> Priority {
    Priority::saturating(number)
}

pub async fn no_coroutine_is_put_aside_without_preemption() -> Outcome {
    let begun = Arc::new(AtomicU32::new(0));
    let (ours, start) = (begun.clone(), Instant::now());
    let important = cops::spawn_at(Priority::HIGHEST, async move { ours.store(1, Ordering::Release) });
    while start.elapsed() < Duration::from_millis(50) {
        core::hint::spin_loop();
    }
    check_eq!(begun.load(Ordering::Acquire), 0);
    check_eq!(preemption::count(), 0);
    must!(important.await);
    Ok(())
}

pub async fn the_more_important_goes_first() -> Outcome {
    preemption::enable();
    for _ in 0..20 {
        // Spawned by a coroutine that continues to run, and then waits for it without ever awaiting.
        let step = Arc::new(AtomicU32::new(0));
        let theirs = step.clone();
        let important = cops::spawn_at(level(2), async move {
            // It awaits an event, which comes while the other coroutine still spins.
            cops::sleep(Duration::from_millis(2)).await;
            theirs.store(1, Ordering::Release);
        });
        spin_until(&step, 1)?;
        must!(important.await);
    }
    check!(preemption::count() >= 20);
    // Coroutines of equal or lower priority do not preempt.
    let before = Arc::new(AtomicU32::new(0));
    let (equal, less) = (before.clone(), before.clone());
    let own = cops::current_priority();
    let equal = cops::spawn_at(own, async move { equal.fetch_add(1, Ordering::Release) });
    let less = cops::spawn_at(Priority::LOWEST, async move { less.fetch_add(1, Ordering::Release) });
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        core::hint::spin_loop();
    }
    check_eq!(before.load(Ordering::Acquire), 0);
    must!(equal.await);
    must!(less.await);
    // Nor is a coroutine in a section preempted, until the section ends.
    let step = Arc::new(AtomicU32::new(0));
    let theirs = step.clone();
    let (important, seen) = preemption::without(|| {
        let important = cops::spawn_at(level(1), async move { theirs.store(1, Ordering::Release) });
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            core::hint::spin_loop();
        }
        (important, step.load(Ordering::Acquire))
    });
    check_eq!(seen, 0);
    spin_until(&step, 1)?;
    must!(important.await);
    Ok(())
}

pub async fn equals_do_not_interrupt_each_other() -> Outcome {
    preemption::enable();
    let (ticks, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tickers: Vec<_> = (0..3)
        .map(|_| {
            let (ticks, stop) = (ticks.clone(), stop.clone());
            cops::spawn_at(cops::current_priority(), async move {
                while stop.load(Ordering::Acquire) == 0 {
                    ticks.fetch_add(1, Ordering::Release);
                    cops::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    // Deadlines and completions come, which the worker has to handle; no other coroutine runs for that.
    for _ in 0..5 {
        cops::sleep(Duration::from_millis(3)).await;
        let (before, start) = (ticks.load(Ordering::Acquire), Instant::now());
        while start.elapsed() < Duration::from_millis(30) {
            core::hint::spin_loop();
        }
        check_eq!(ticks.load(Ordering::Acquire), before);
    }
    stop.store(1, Ordering::Release);
    for ticker in tickers {
        must!(must!(cops::timeout(LIMIT, ticker).await));
    }
    Ok(())
}

pub async fn signals_are_answered_at_once() -> Outcome {
    preemption::enable();
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    let answered = Arc::new(AtomicU32::new(0));
    let theirs = answered.clone();
    let listening = cops::spawn_at(Priority::HIGHEST, async move {
        for _ in 0..100 {
            receiver.wait().await;
            theirs.fetch_add(1, Ordering::Release);
        }
    });
    cops::yield_now().await;
    for round in 1..=100 {
        must!(right.send());
        spin_until(&answered, round)?;
    }
    must!(listening.await);
    Ok(())
}

pub async fn one_inside_the_other() -> Outcome {
    preemption::enable();
    let _ = cops::set_priority(cops::current(), level(7));
    cops::yield_now().await;
    let order = Arc::new(cops::Lock::new(Vec::new()));
    /// Starts a more important coroutine, spins until that has ended, and ends.
    fn nest(number: u64, order: Arc<cops::Lock<Vec<i64>>>) -> Outcome {
        order.lock().push(number as i64);
        if number > 2 {
            let ended = Arc::new(AtomicU32::new(0));
            let (theirs, below) = (ended.clone(), order.clone());
            cops::spawn_at(level(number - 1), async move {
                let result = nest(number - 1, below);
                theirs.store(if result.is_ok() { 1 } else { 2 }, Ordering::Release);
            })
            .detach();
            spin_until(&ended, 1)?;
        }
        order.lock().push(-(number as i64));
        Ok(())
    }
    for _ in 0..3 {
        nest(7, order.clone())?;
        let order = core::mem::take(&mut *order.lock());
        check_eq!(order, alloc::vec![7, 6, 5, 4, 3, 2, -2, -3, -4, -5, -6, -7]);
    }
    Ok(())
}

pub async fn more_levels_than_stacks() -> Outcome {
    preemption::enable();
    // Each of these would preempt the one before; those without a stack run at its next await.
    let ended = Arc::new(AtomicU32::new(0));
    let mut handles = Vec::new();
    let _ = cops::set_priority(cops::current(), level(60));
    cops::yield_now().await;
    for number in (10..40).rev() {
        let theirs = ended.clone();
        handles.push(cops::spawn_at(level(number), async move {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(3) {
                core::hint::spin_loop();
            }
            theirs.fetch_add(1, Ordering::Release);
        }));
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1) {
            core::hint::spin_loop();
        }
    }
    for handle in handles {
        must!(must!(cops::timeout(LIMIT, handle).await));
    }
    check_eq!(ended.load(Ordering::Acquire), 30);
    Ok(())
}

/// Fills all floating-point registers and some others with numbers of this seed and spins; returns the number of times
/// that it found all of them unchanged, and 0 at once if not.
#[inline(never)]
fn hold_registers(seed: f64, turns: u64) -> u64 {
    let values: [f64; 32] = core::array::from_fn(|index| seed + index as f64);
    let mut left = turns;
    // SAFETY: all registers that the code changes are declared; it reads the array.
    unsafe {
        core::arch::asm!(
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "fld f\\n, 8*\\n({values})",
            ".endr",
            "fsrmi {mode}, 2",
            "2:",
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "ld {one}, 8*\\n({values})",
            "fmv.x.d {two}, f\\n",
            "bne {one}, {two}, 3f",
            ".endr",
            "frrm {one}",
            "li {two}, 2",
            "bne {one}, {two}, 3f",
            "addi {left}, {left}, -1",
            "bnez {left}, 2b",
            "3:",
            "fsrm {mode}",
            values = in(reg) values.as_ptr(),
            left = inout(reg) left,
            one = out(reg) _,
            two = out(reg) _,
            mode = out(reg) _,
            out("f0") _, out("f1") _, out("f2") _, out("f3") _, out("f4") _, out("f5") _, out("f6") _, out("f7") _,
            out("f8") _, out("f9") _, out("f10") _, out("f11") _, out("f12") _, out("f13") _, out("f14") _, out("f15") _,
            out("f16") _, out("f17") _, out("f18") _, out("f19") _, out("f20") _, out("f21") _, out("f22") _, out("f23") _,
            out("f24") _, out("f25") _, out("f26") _, out("f27") _, out("f28") _, out("f29") _, out("f30") _, out("f31") _,
            options(nostack),
        );
    }
    turns - left
}

pub async fn floating_point_registers_are_kept() -> Outcome {
    preemption::enable();
    let _ = cops::set_priority(cops::current(), level(9));
    cops::yield_now().await;
    let stop = Arc::new(AtomicU32::new(0));
    let busy: Vec<_> = (1..4u64)
        .map(|number| {
            let stop = stop.clone();
            cops::spawn_at(level(number), async move {
                let mut turns = 0;
                while stop.load(Ordering::Acquire) == 0 {
                    if hold_registers(1000.0 * number as f64, 20) != 20 {
                        return 0;
                    }
                    turns += 1;
                    cops::sleep(Duration::from_millis(2 + number)).await;
                }
                turns
            })
        })
        .collect();
    let before = preemption::count();
    let start = Instant::now();
    while preemption::count() < before + 30 {
        check_eq!(hold_registers(0.5, 2_000), 2_000);
        check!(start.elapsed() < LIMIT, "only {} were put aside", preemption::count() - before);
    }
    stop.store(1, Ordering::Release);
    for busy in busy {
        check!(must!(must!(cops::timeout(LIMIT, busy).await)) > 0);
    }
    Ok(())
}

pub async fn cancelled_while_put_aside() -> Outcome {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Release);
        }
    }
    preemption::enable();
    for _ in 0..10 {
        let (running, stop, dropped) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)), Arc::default());
        let (theirs, until, value) = (running.clone(), stop.clone(), Dropped(Arc::clone(&dropped)));
        let long = cops::spawn_at(Priority::LOWEST, async move {
            let _value = value;
            theirs.store(1, Ordering::Release);
            let result = spin_until(&until, 1);
            theirs.store(2, Ordering::Release);
            // It never continues from here.
            core::future::pending::<()>().await;
            result
        });
        let start = Instant::now();
        while running.load(Ordering::Acquire) == 0 {
            cops::sleep(Duration::from_millis(1)).await;
            check!(start.elapsed() < LIMIT);
        }
        // This coroutine runs, so the other one was preempted, or runs on another worker.
        long.cancel();
        cops::sleep(Duration::from_millis(2)).await;
        check_eq!(dropped.load(Ordering::Acquire), 0);
        stop.store(1, Ordering::Release);
        check!(must!(cops::timeout(LIMIT, long).await).is_err(), "it was cancelled");
        check_eq!(running.load(Ordering::Acquire), 2);
        check_eq!(dropped.load(Ordering::Acquire), 1);
    }
    Ok(())
}

/// An act: ends, or faults, while other coroutines are preempted.
pub async fn end_while_others_are_aside(how: &str) -> i32 {
    preemption::enable();
    let running = Arc::new(AtomicU32::new(0));
    let theirs = running.clone();
    cops::spawn_at(Priority::LOWEST, async move {
        theirs.store(1, Ordering::Release);
        loop {
            core::hint::spin_loop();
        }
    })
    .detach();
    while running.load(Ordering::Acquire) == 0 {
        cops::sleep(Duration::from_millis(1)).await;
    }
    match how {
        "exit" => cops::system::process::exit(33),
        "execute" => crate::acts::execute_other(),
        "stay" => {
            cops::sleep(Duration::from_secs(1000)).await;
            1
        }
        _ => 34,
    }
}

pub async fn processes_end_with_a_coroutine_put_aside() -> Outcome {
    for _ in 0..3 {
        check_eq!(ending_of_act("aside-exit").await?, Ending::Exited(33));
        check_eq!(ending_of_act("aside-return").await?, Ending::Exited(34));
        check_eq!(ending_of_act("aside-execute").await?, Ending::Exited(42));
        let child = must!(act("aside-stay"));
        cops::sleep(Duration::from_millis(30)).await;
        must!(child.kill());
        check!(wait(&child).await.is_some());
    }
    Ok(())
}

pub async fn with_several_workers() -> Outcome {
    preemption::enable();
    must!(cops::alloc_cpu(3));
    let done = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicU32::new(0));
    let mut handles = Vec::new();
    for number in 0..12u64 {
        let (done, stop) = (done.clone(), stop.clone());
        handles.push(cops::spawn_at(level(1 + number % 4), async move {
            while stop.load(Ordering::Acquire) == 0 {
                let mut kept = Vec::new();
                for size in 1..200usize {
                    kept.push(alloc::vec![size as u8; size * 7]);
                    core::hint::black_box(&kept);
                }
                if kept.iter().enumerate().any(|(index, block)| block.iter().any(|byte| *byte != index as u8 + 1)) {
                    return false;
                }
                done.fetch_add(1, Ordering::Relaxed);
                cops::sleep(Duration::from_micros(200 * (1 + number))).await;
            }
            true
        }));
    }
    let start = Instant::now();
    let before = preemption::count();
    while start.elapsed() < Duration::from_secs(2)
        || preemption::count() == before
        || done.load(Ordering::Relaxed) <= 100
    {
        let mut sum = 0u64;
        for turn in 0..20_000u64 {
            sum = core::hint::black_box(sum.wrapping_add(turn));
        }
        check!(start.elapsed() < LIMIT, "{} were put aside", preemption::count() - before);
    }
    stop.store(1, Ordering::Release);
    for handle in handles {
        check!(must!(must!(cops::timeout(LIMIT, handle).await)), "memory is as it was written");
    }
    Ok(())
}

/// Number of preempted coroutines in [`very_many`].
const MANY: u64 = 100_000;

pub async fn very_many() -> Outcome {
    preemption::enable();
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    let answered = Arc::new(AtomicU64::new(0));
    let theirs = answered.clone();
    let listening = cops::spawn_at(Priority::HIGHEST, async move {
        let mut kept: Vec<alloc::boxed::Box<u64>> = Vec::new();
        for round in 0..MANY {
            receiver.wait().await;
            // Both sides use the heap.
            if round % 16 == 0 {
                kept.clear();
            }
            kept.push(alloc::boxed::Box::new(round));
            theirs.fetch_add(1, Ordering::Release);
        }
    });
    cops::yield_now().await;
    let before = preemption::count();
    for round in 1..=MANY {
        must!(right.send());
        let block = alloc::boxed::Box::new(round);
        let start = answered.load(Ordering::Acquire);
        if start < round {
            let begun = Instant::now();
            while answered.load(Ordering::Acquire) < round {
                core::hint::spin_loop();
                check!(begun.elapsed() < LIMIT, "round {round} was not answered");
            }
        }
        check_eq!(*core::hint::black_box(block), round);
    }
    must!(listening.await);
    let count = preemption::count() - before;
    check!(count >= MANY * 9 / 10, "{count} were put aside");
    Ok(())
}
