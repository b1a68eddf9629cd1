//! Global scheduling: strict order between processes, modes, ceilings, budgets and the starvation bound, and processes
//! that try to exceed their share.
//!
//! No test judges by a clock: they check the order of events, counters, or whether bounded work is done while others
//! attack.

use core::sync::atomic::{AtomicU64, Ordering};

use abi_queue::SystemMode;
use abi_unix::types::{self, Scheduling, auxiliary, clock};
use abi_unix::{Counter, Errno};
use alloc::sync::Arc;
use alloc::vec::Vec;
use cops::process::{Child, Command, Ending};
use cops::system::{self, SystemCall, scheduling};
use cops::time::Duration;
use cops::{Mode, Priority};

use crate::harness::{self, Outcome, counter, until};
use crate::{check, check_eq, must};

/// Units of work of a process beside others that use all the time.
const UNITS: u32 = 20;

/// Runs as another process of the tests below.
pub async fn act(what: &str) -> i32 {
    let (what, number) = what.split_once(':').unwrap_or((what, "0"));
    let priority = Priority::saturating(number.parse().unwrap_or(0));
    match what {
        // Never rests, at a priority, with one worker.
        "spin" => {
            become_as_important_as(priority).await;
            spin()
        }
        // Never rests, with as many workers as possible.
        "spin-on-all" => {
            let _ = cops::alloc_cpu(7);
            for _ in 0..8 {
                cops::spawn_at(priority, async { spin() }).detach();
            }
            cops::sleep(Duration::from_secs(1000)).await;
            1
        }
        // Publishes all priorities as ready, for ever.
        "forge" => loop {
            for offset in (0..512).step_by(8) {
                // SAFETY: the page is mapped and writable, and its words are atomic.
                unsafe { &*((harness::told(auxiliary::COPS_PROCESS_PAGE) + offset) as *const AtomicU64) }
                    .store(u64::MAX, Ordering::Relaxed);
            }
        },
        // Does a bounded amount of work and ends.
        "work" => {
            become_as_important_as(priority).await;
            for unit in 0..UNITS {
                compute(unit);
                cops::yield_now().await;
            }
            0
        }
        // Works as above, and continues until it was boosted because of the starvation bound.
        "work-until-boosted" => {
            become_as_important_as(priority).await;
            let mut unit = 0;
            loop {
                compute(unit);
                unit += 1;
                match scheduling::get(0) {
                    Ok(own) if unit >= UNITS && own.boosts > 0 => return 0,
                    Ok(_) => cops::yield_now().await,
                    Err(_) => return 1,
                }
            }
        }
        "exit-with-ceiling" => scheduling::get(0).map_or(99, |own| own.ceiling as i32),
        "exit-with-mode" => cops::mode() as i32,
        // Runs coroutines without ever resting until the mode is strict.
        "until-strict" => {
            while cops::mode() != Mode::Strict {
                cops::yield_now().await;
            }
            // And lets the executor notice it.
            for _ in 0..100 {
                cops::yield_now().await;
            }
            0
        }
        // Reads a byte from descriptor 0 and writes it to descriptor 1, until there are no more.
        "repeat" => {
            become_as_important_as(priority).await;
            let mut byte = [0; 1];
            while let Ok(1) = system::file::read(0, &mut byte) {
                if system::file::write(1, &byte).is_err() {
                    return 1;
                }
            }
            0
        }
        other => {
            cops::eprintln!("there is no act `{other}`");
            99
        }
    }
}

async fn become_as_important_as(priority: Priority) {
    let _ = cops::set_priority(cops::current(), priority);
    cops::yield_now().await;
}

fn spin() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Computes a unit of work: a fraction of a slice.
fn compute(seed: u32) {
    let mut value = u64::from(seed) | 1;
    for _ in 0..50_000 {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    }
    core::hint::black_box(value);
}

fn start(what: &str) -> system::Result<Child> {
    Command::new(harness::OWN_PATH).argument("--act").argument("scheduling").argument(what).spawn()
}

fn number(child: &Child) -> u32 {
    child.number()
}

fn of(child: &Child) -> system::Result<Scheduling> {
    scheduling::get(number(child))
}

async fn end(children: Vec<Child>) -> Outcome {
    for child in &children {
        must!(child.kill());
    }
    for child in &children {
        must!(child.wait().await);
    }
    Ok(())
}

fn harts() -> usize {
    cops::time::global_page().map_or(1, |page| page.harts.load(Ordering::Relaxed) as usize)
}

fn raw(call: SystemCall, arguments: [usize; 4]) -> system::Result<usize> {
    let [a0, a1, a2, a3] = arguments;
    // SAFETY: the test is about the arguments; none of them names memory that is in use.
    abi_unix::errno::decode(unsafe { system::raw::syscall(call as usize, [a0, a1, a2, a3, 0, 0]) })
}

pub async fn illegal_requests() -> Outcome {
    const SECOND: usize = 1_000_000_000;
    for (attribute, value, period, error) in [
        (0, 0, 0, Errno::EINVAL),
        (5, 0, 0, Errno::EINVAL),
        (usize::MAX, 0, 0, Errno::EINVAL),
        (1, 64, 0, Errno::EINVAL),
        (1, usize::MAX, 0, Errno::EINVAL),
        (2, 0, SECOND, Errno::EINVAL),
        (2, 1, 0, Errno::EINVAL),
        (2, 1, 999_999, Errno::EINVAL),
        (2, 1, 10 * SECOND + 1, Errno::EINVAL),
        (2, 1, usize::MAX, Errno::EINVAL),
        (3, 2, 0, Errno::EINVAL),
        (4, 2, 0, Errno::EINVAL),
    ] {
        check_eq!(raw(SystemCall::SetScheduling, [0, attribute, value, period]), Err(error));
    }
    for process in [30_000, usize::from(u16::MAX), u32::MAX as usize] {
        check_eq!(raw(SystemCall::SetScheduling, [process, 1, 5, 0]), Err(Errno::ESRCH));
        check_eq!(raw(SystemCall::GetScheduling, [process, 0, 0, 0]), Err(Errno::ESRCH));
    }
    for (attribute, value) in [(0, 0), (3, 0), (usize::MAX, 0), (1, 3), (1, usize::MAX), (2, 1), (2, 999_999)] {
        check_eq!(raw(SystemCall::SetSystemScheduling, [attribute, value, 0, 0]), Err(Errno::EINVAL));
    }
    check_eq!(raw(SystemCall::GetScheduling, [0, 8, 8, 0]), Err(Errno::EFAULT));
    check_eq!(raw(SystemCall::GetScheduling, [0, usize::MAX - 8, 80, 0]), Err(Errno::EFAULT));
    // Words beyond the length are left out.
    check_eq!(raw(SystemCall::GetScheduling, [0, 0, 0, 0]), Ok(size_of::<Scheduling>()));
    let mut words = [u64::MAX; 2];
    check_eq!(raw(SystemCall::GetScheduling, [0, words.as_mut_ptr() as usize, 8, 0]), Ok(size_of::<Scheduling>()));
    check_eq!(core::hint::black_box(words), [0, u64::MAX]);
    Ok(())
}

pub async fn no_process_becomes_more_important_by_itself() -> Outcome {
    must!(scheduling::set_privilege(0, false));
    check_eq!(scheduling::set_privilege(0, true), Err(Errno::EPERM));
    check_eq!(scheduling::set_system_mode(SystemMode::Strict), Err(Errno::EPERM));
    check_eq!(scheduling::set_starvation_bound(None), Err(Errno::EPERM));
    let ceiling = |number| scheduling::set_ceiling(0, Priority::saturating(number));
    check_eq!(ceiling(3), Ok(()));
    check_eq!(ceiling(2), Err(Errno::EPERM));
    check_eq!(ceiling(3), Ok(()));
    check_eq!(must!(scheduling::get(0)).ceiling, 3);
    // Process 1 is neither this one nor its child.
    for error in [
        scheduling::set_ceiling(1, Priority::LOWEST),
        scheduling::set_budget(1, Some(1), 1_000_000),
        scheduling::set_mode(1, Mode::Strict),
        scheduling::set_privilege(1, false),
    ] {
        check_eq!(error, Err(Errno::EPERM));
    }
    // Children inherit it, and can be made less important, and as important as this one again.
    let child = must!(start("exit-with-ceiling"));
    check_eq!(must!(child.wait().await), Ending::Exited(3));
    let child = must!(start("spin"));
    check_eq!(scheduling::set_ceiling(number(&child), Priority::saturating(2)), Err(Errno::EPERM));
    check_eq!(scheduling::set_ceiling(number(&child), Priority::saturating(9)), Ok(()));
    check_eq!(scheduling::set_ceiling(number(&child), Priority::saturating(3)), Ok(()));
    end(alloc::vec![child]).await?;
    // A process can choose a budget within the one that it was given, which is the default here.
    let everybodys = must!(scheduling::get(0));
    check_eq!(everybodys.period_ns, 100_000_000);
    check_eq!(scheduling::set_budget(0, None, 1_000_000), Err(Errno::EPERM));
    check_eq!(scheduling::set_budget(0, Some(50_000_000), 100_000_000), Ok(()));
    check_eq!(must!(scheduling::get(0)).budget_ns, 50_000_000);
    let given = everybodys.budget_ns;
    check_eq!(scheduling::set_budget(0, Some(given + 1000), 100_000_000), Err(Errno::EPERM));
    // An equal share, but more at once.
    check_eq!(scheduling::set_budget(0, Some(given * 10), 1_000_000_000), Err(Errno::EPERM));
    check_eq!(scheduling::set_budget(0, Some(given), 1_000_000_000), Ok(()));
    check_eq!(must!(scheduling::get(0)).budget_ns, given);
    Ok(())
}

pub async fn processor_time_is_counted() -> Outcome {
    let time = |which| system::system::time(which).map(|time| time.to_ns().unwrap_or(0));
    // The thread's time first: it is a part of the process's.
    let (wall, thread) = (must!(time(clock::MONOTONIC)), must!(time(clock::THREAD_CPUTIME)));
    let process = must!(time(clock::PROCESS_CPUTIME));
    check!(thread <= process && process > 0);
    // The thread's time once more: what it used between the two readings is in the process's first one already.
    let after = must!(time(clock::THREAD_CPUTIME));
    let mut units = 0;
    while must!(time(clock::THREAD_CPUTIME)) < after + 20_000_000 {
        compute(units);
        units += 1;
        check!(units < 1_000_000, "a million units of work took no time");
    }
    cops::sleep(Duration::from_millis(5)).await;
    let thread_took = must!(time(clock::THREAD_CPUTIME)) - thread;
    let process_took = must!(time(clock::PROCESS_CPUTIME)) - process;
    let wall_took = must!(time(clock::MONOTONIC)) - wall;
    // One worker cannot use more time than has passed; but the kernel may work for its process on all other harts
    // meanwhile.
    let harts = harts() as u64;
    let is_in_order = 20_000_000 <= thread_took && thread_took <= wall_took && process_took <= harts * wall_took;
    check!(is_in_order, "{thread_took} {process_took} {wall_took}");
    check!(must!(scheduling::get(0)).cpu_ns >= process + 20_000_000);
    // A child's time is not its parent's.
    let child = must!(start("spin:40"));
    until(|| Ok(of(&child)?.cpu_ns > 1_000_000)).await?;
    end(alloc::vec![child]).await
}

/// Keeps all harts but one busy with processes of this priority.
async fn occupy_all_harts_but_one(priority: u8) -> Result<Vec<Child>, alloc::string::String> {
    let mut children = Vec::new();
    for _ in 1..harts() {
        children.push(must!(start(&alloc::format!("spin:{priority}"))));
    }
    for child in &children {
        until(|| Ok(of(child)?.cpu_ns > 1_000_000 && of(child)?.priority == priority.into())).await?;
    }
    Ok(children)
}

/// A coroutine of priority 1 makes another process of priority 3 ready, and ends; a coroutine of priority 5 is ready
/// here. In strict mode the other process runs first.
pub async fn strict_order_is_kept_between_processes() -> Outcome {
    const ROUNDS: usize = 20;
    let busy = occupy_all_harts_but_one(2).await?;
    let (input, trigger_end) = must!(system::file::pipe(0));
    let (events, output_end) = must!(cops::io::pipe());
    let other = must!(
        Command::new(harness::OWN_PATH)
            .argument("--act")
            .argument("scheduling")
            .argument("repeat:3")
            .descriptor(0, input)
            .descriptor(1, must!(output_end.descriptor().duplicate()))
            .spawn()
    );
    // A jump of the machine's clock, which a slow host causes, must use up no budget: the order would change.
    for process in busy.iter().chain([&other]).map(number).chain([0]) {
        must!(scheduling::set_budget(process, None, 100_000_000));
    }
    // Its answer shows that it has its priority.
    let (trigger, output) = (trigger_end.raw(), output_end.descriptor().raw());
    must!(system::file::write(trigger, b"?"));
    let (count, seen) = events.read(alloc::vec![0; 1]).await;
    check!(count == Ok(1) && seen == b"?");
    for mode in [Mode::Strict, Mode::Relaxed] {
        must!(cops::set_mode(mode));
        let mut before = 0;
        for _ in 0..ROUNDS {
            // The other process is back at its pipe, and no other is ready.
            cops::sleep(Duration::from_millis(1)).await;
            let less =
                cops::spawn_at(Priority::saturating(5), async move { system::file::write(output, b"5").map(drop) });
            let more =
                cops::spawn_at(Priority::saturating(1), async move { system::file::write(trigger, b"3").map(drop) });
            must!(must!(more.await));
            must!(must!(less.await));
            let (all, seen) = events.read_exact(alloc::vec![0; 2]).await;
            must!(all);
            match &seen[..] {
                b"35" => {}
                b"53" => before += 1,
                other => check!(false, "{other:?}"),
            }
        }
        match mode {
            Mode::Strict => check_eq!(before, 0),
            // The order holds from one tick to the next only, and ticks are rare.
            Mode::Relaxed => check!(before > 0, "relaxed order was strict"),
        }
    }
    end(busy).await?;
    end(alloc::vec![other]).await
}

/// With all harts running programs, a process that is more important than one of them gets its hart by an interrupt. It
/// used to wait for a tick: the hart on which it ran last made no check, and the waking hart did not run it.
pub async fn no_hart_visits_a_less_important_process_while_another_waits() -> Outcome {
    const WANTED: usize = 3;
    const MOST_ROUNDS: usize = 1000;
    if harts() == 1 {
        return Ok(());
    }
    let busy = occupy_all_harts_but_one(20).await?;
    let (input, trigger) = must!(system::file::pipe(0));
    let (events, output) = must!(system::file::pipe(types::open::NONBLOCK));
    let other = must!(
        Command::new(harness::OWN_PATH)
            .argument("--act")
            .argument("scheduling")
            .argument("repeat:10")
            .descriptor(0, input)
            .descriptor(1, output)
            .spawn()
    );
    for process in busy.iter().chain([&other]).map(number).chain([0]) {
        must!(scheduling::set_budget(process, None, 100_000_000));
    }
    // Its answer shows that it has its priority.
    must!(system::file::write(trigger.raw(), b"?"));
    let mut byte = [0];
    while system::file::read(events.raw(), &mut byte) == Err(Errno::EAGAIN) {
        cops::sleep(Duration::from_millis(1)).await;
    }
    let (mut rounds, mut without_a_tick) = (0, 0);
    while without_a_tick < WANTED {
        check!(rounds < MOST_ROUNDS, "{without_a_tick} of {rounds} times it ran before a tick");
        rounds += 1;
        // It is back at its pipe, and the others have their harts.
        cops::sleep(Duration::from_millis(2)).await;
        let before = counter(Counter::TimerTraps)?;
        must!(system::file::write(trigger.raw(), b"!"));
        // This hart is not for it: this coroutine is more important, and never rests.
        loop {
            match system::file::read(events.raw(), &mut byte) {
                Ok(1) => break,
                answer => check_eq!(answer, Err(Errno::EAGAIN)),
            }
        }
        // Counted after the answer: a tick between two looks must not be missed.
        without_a_tick += usize::from(counter(Counter::TimerTraps)? == before);
    }
    end(busy).await?;
    end(alloc::vec![other]).await
}

pub async fn modes_change_while_coroutines_run() -> Outcome {
    must!(cops::alloc_cpu(2));
    let turns = Arc::new(AtomicU64::new(0));
    let running: Vec<_> = (0..8u8)
        .map(|index| {
            let turns = turns.clone();
            cops::spawn_at(Priority::saturating((index % 4).into()), async move {
                for _ in 0..500 {
                    turns.fetch_add(1, Ordering::Relaxed);
                    cops::yield_now().await;
                }
            })
        })
        .collect();
    for turn in 0..200 {
        let mode = if turn % 2 == 0 { Mode::Strict } else { Mode::Relaxed };
        must!(cops::set_mode(mode));
        check_eq!(cops::mode(), mode);
        cops::yield_now().await;
    }
    for handle in running {
        must!(handle.await);
    }
    check_eq!(turns.load(Ordering::Relaxed), 8 * 500);
    // Children begin in the mode of their parent.
    must!(cops::set_mode(Mode::Strict));
    let child = must!(start("exit-with-mode"));
    check_eq!(must!(child.wait().await), Ending::Exited(Mode::Strict as u8));
    must!(cops::set_mode(Mode::Relaxed));
    let child = must!(start("exit-with-mode"));
    check_eq!(must!(child.wait().await), Ending::Exited(Mode::Relaxed as u8));
    Ok(())
}

pub async fn the_system_s_mode_reaches_a_busy_process() -> Outcome {
    let child = must!(start("until-strict"));
    until(|| Ok(of(&child)?.cpu_ns > 1_000_000)).await?;
    check_eq!(cops::mode(), Mode::Relaxed);
    must!(scheduling::set_system_mode(SystemMode::Strict));
    check_eq!(cops::mode(), Mode::Strict);
    let ending = child.wait().await;
    must!(scheduling::set_system_mode(SystemMode::Relaxed));
    must!(cops::set_mode(Mode::Strict));
    check_eq!(cops::mode(), Mode::Relaxed);
    must!(scheduling::set_system_mode(SystemMode::Chosen));
    check_eq!(cops::mode(), Mode::Strict);
    must!(cops::set_mode(Mode::Relaxed));
    check_eq!(must!(ending), Ending::Exited(0));
    // And for one process, by its parent.
    let child = must!(start("until-strict"));
    until(|| Ok(of(&child)?.cpu_ns > 1_000_000)).await?;
    must!(scheduling::set_mode(number(&child), Mode::Strict));
    check_eq!(must!(child.wait().await), Ending::Exited(0));
    Ok(())
}

pub async fn forged_bitmaps_count_for_no_more_than_the_ceiling() -> Outcome {
    // It claims the highest priority; the kernel limits the claim.
    let child = must!(start("forge"));
    until(|| Ok(of(&child)?.priority == 0)).await?;
    must!(scheduling::set_ceiling(number(&child), Priority::saturating(20)));
    for _ in 0..50 {
        let priority = must!(of(&child)).priority;
        check!(priority == 20 || priority == 63, "it counts for {priority}");
        cops::sleep(Duration::from_millis(1)).await;
    }
    // This process, at 4, runs before as many of them as there are harts.
    let mut children = alloc::vec![child];
    for _ in 0..harts() {
        let child = must!(start("forge"));
        must!(scheduling::set_ceiling(number(&child), Priority::saturating(20)));
        children.push(child);
    }
    for unit in 0..UNITS {
        compute(unit);
        cops::sleep(Duration::from_millis(1)).await;
    }
    end(children).await
}

pub async fn a_used_up_budget_puts_a_process_behind_all_others() -> Outcome {
    let exhausted = counter(Counter::BudgetsExhausted)?;
    let child = must!(start("spin:2"));
    until(|| Ok(of(&child)?.cpu_ns > 1_000_000)).await?;
    // A thousandth of the time of one hart.
    must!(scheduling::set_budget(number(&child), Some(10_000_000), 10_000_000_000));
    until(|| of(&child).map(|own| own.used_ns >= own.budget_ns && own.priority == 63)).await?;
    let standing = must!(of(&child));
    check!(standing.exhausted >= 1);
    check!(counter(Counter::BudgetsExhausted)? > exhausted);
    // It continues, behind all others: its time advances on a machine without other work.
    until(|| Ok(of(&child)?.cpu_ns > standing.cpu_ns)).await?;
    // A smaller budget of a shorter period is used up as well.
    must!(scheduling::set_budget(number(&child), Some(9_000_000), 9_000_000_000));
    check_eq!(must!(of(&child)).priority, 63);
    // Without a limit its claim is in force again.
    must!(scheduling::set_budget(number(&child), None, 10_000_000_000));
    until(|| Ok(of(&child)?.priority == 2)).await?;
    end(alloc::vec![child]).await
}

/// Tests snapshots, and the trace, which this machine was not started with.
pub async fn snapshots_name_running_coroutines() -> Outcome {
    use abi_unix::trace::{HART_WORDS, HartSnapshot, PROCESS_WORDS, ProcessSnapshot};
    for (arguments, error) in [
        ([0, 0, 0, 0], Errno::EINVAL),
        ([3, 0, 0, 0], Errno::ENODEV),
        ([99, 0, 0, 0], Errno::EINVAL),
        ([1, 0, 8, HART_WORDS * 8], Errno::EFAULT),
        ([2, 0, usize::MAX - 8, 4096], Errno::EFAULT),
    ] {
        check_eq!(raw(SystemCall::Snapshot, arguments), Err(error));
    }
    check_eq!(system::trace::read(&mut [0; 64]), Err(Errno::ENODEV));
    check_eq!(system::trace::write(&[]), Err(Errno::ENODEV));
    let mut words = [[0; HART_WORDS]; 8];
    let count = must!(system::trace::harts(&mut words));
    check_eq!(count, harts());
    let seen: Vec<_> = words[..count].iter().map(|words| HartSnapshot::from_words(*words)).collect();
    check!(seen.iter().enumerate().all(|(index, hart)| hart.hart == index as u64));
    check!(seen.iter().map(|hart| hart.traps).sum::<u64>() > 0);
    // It observes itself during a call.
    let own = system::process::number();
    check!(seen.iter().any(|hart| hart.process == u64::from(own)), "{seen:?}");
    let mut words = [[0; PROCESS_WORDS]; 1];
    check_eq!(must!(system::trace::processes(own - 1, &mut words)), 1);
    let process = ProcessSnapshot::from_words(words[0]);
    check_eq!(process.process, u64::from(own));
    check_eq!(process.name, abi_unix::trace::name_words(b"tests"));
    check_eq!(process.running, cops::current_priority().bit());
    check_eq!(must!(system::trace::processes(own, &mut words)), 0);
    // Without the privilege the call is refused.
    must!(scheduling::set_privilege(0, false));
    check_eq!(system::trace::harts(&mut []), Err(Errno::EPERM));
    check_eq!(system::trace::read(&mut []), Err(Errno::EPERM));
    Ok(())
}

const LOW: Priority = Priority::saturating(30);
const MIDDLE: Priority = Priority::saturating(20);
const HIGH: Priority = Priority::saturating(10);

/// Runs all coroutines and processes that are more important than this one's temporary priority.
async fn let_others_run() {
    let own = cops::current_priority();
    become_as_important_as(Priority::LOWEST).await;
    become_as_important_as(own).await;
}

/// The important one gets the lock before the one in the middle has finished, which without inheritance would keep the
/// holder from releasing it.
pub async fn the_holder_of_a_lock_is_as_important_as_its_waiter() -> Outcome {
    become_as_important_as(Priority::saturating(40)).await;
    let lock = Arc::new(cops::sync::Mutex::new(()));
    let events = Arc::new(cops::Lock::new(Vec::new()));
    let go = Arc::new(cops::sync::Notify::new());
    let holder = cops::spawn_at(LOW, {
        let (lock, events, go) = (lock.clone(), events.clone(), go.clone());
        async move {
            let guard = lock.lock().await;
            let before = cops::priority(cops::current());
            go.notified().await;
            for _ in 0..10 {
                cops::yield_now().await;
            }
            events.lock().push(("held at", cops::priority(cops::current()).map(Priority::number)));
            drop(guard);
            events.lock().push(("gave up", cops::priority(cops::current()).map(Priority::number)));
            before
        }
    });
    let_others_run().await;
    check!(lock.try_lock().is_none());
    let middle = cops::spawn_at(MIDDLE, {
        let events = events.clone();
        async move {
            for _ in 0..100 {
                cops::yield_now().await;
            }
            events.lock().push(("middle", Ok(MIDDLE.number())));
        }
    });
    let high = cops::spawn_at(HIGH, {
        let (lock, events) = (lock.clone(), events.clone());
        async move {
            let _guard = lock.lock().await;
            events.lock().push(("got it", Ok(HIGH.number())));
        }
    });
    go.notify_one();
    check_eq!(must!(holder.await), Ok(LOW));
    must!(high.await);
    must!(middle.await);
    let expected = [("held at", Ok(10)), ("gave up", Ok(30)), ("got it", Ok(10)), ("middle", Ok(20))];
    let seen = events.lock().clone();
    // The coroutine that releases the lock may still log that, or be preempted at once; the order of the others is
    // fixed.
    let without = |name: &str| seen.iter().filter(|(what, _)| *what != name).copied().collect::<Vec<_>>();
    check_eq!(without("gave up"), [expected[0], expected[2], expected[3]]);
    check!(seen.contains(&expected[1]), "{seen:?}");
    Ok(())
}

/// High waits for the second lock, whose holder waits for the first, whose holder is low: low becomes as important as
/// high. A waiter that stops takes its loan back, and a priority that is set meanwhile remains.
pub async fn inheritance_goes_through_several_locks() -> Outcome {
    become_as_important_as(Priority::saturating(40)).await;
    let first = Arc::new(cops::sync::Mutex::new(()));
    let second = Arc::new(cops::sync::Mutex::new(()));
    let go = Arc::new(cops::sync::Notify::new());
    let low = cops::spawn_at(LOW, {
        let (first, go) = (first.clone(), go.clone());
        async move {
            let _guard = first.lock().await;
            go.notified().await;
        }
    });
    let_others_run().await;
    let middle = cops::spawn_at(MIDDLE, {
        let (first, second) = (first.clone(), second.clone());
        async move {
            let _second = second.lock().await;
            let _first = first.lock().await;
        }
    });
    let_others_run().await;
    check_eq!(cops::priority(low.cid()), Ok(MIDDLE));
    let high = cops::spawn_at(HIGH, {
        let second = second.clone();
        async move { drop(second.lock().await) }
    });
    let_others_run().await;
    check_eq!(cops::priority(middle.cid()), Ok(HIGH));
    check_eq!(cops::priority(low.cid()), Ok(HIGH));
    // Its own priority changes below the loan.
    must!(cops::set_priority(low.cid(), Priority::saturating(25)));
    check_eq!(cops::priority(low.cid()), Ok(HIGH));
    high.cancel();
    check!(high.await.is_err());
    check_eq!(cops::priority(middle.cid()), Ok(MIDDLE));
    let_others_run().await;
    check_eq!(cops::priority(low.cid()), Ok(MIDDLE));
    go.notify_one();
    must!(low.await);
    must!(middle.await);
    Ok(())
}

/// Early events are kept, late ones wake the waiter, on any worker.
pub async fn events_and_waiters_meet_at_keys() -> Outcome {
    static MAP: cops::sync::WakerMap = cops::sync::WakerMap::new();
    must!(cops::alloc_cpu(2));
    let pairs: Vec<_> = (0..500u32)
        .map(|index| {
            let key = MAP.key();
            let waits = async move {
                MAP.wait(key).await;
                key
            };
            let wakes = async move {
                if index % 3 == 0 {
                    cops::yield_now().await;
                }
                MAP.wake(key);
            };
            if index % 2 == 0 {
                let waits = cops::spawn(waits);
                cops::spawn(wakes).detach();
                (key, waits)
            } else {
                cops::spawn(wakes).detach();
                (key, cops::spawn(waits))
            }
        })
        .collect();
    for (key, waits) in pairs {
        check_eq!(must!(waits.await), key);
    }
    check!(MAP.is_empty());
    Ok(())
}

/// A process that claims the highest priority on every hart and never rests; one of priority 7 gets its work done.
pub async fn a_spinner_that_claims_everything_leaves_others_their_share() -> Outcome {
    let exhausted = counter(Counter::BudgetsExhausted)?;
    let spinner = must!(start("spin-on-all:0"));
    // This process runs because of the budget, too.
    until(|| Ok(of(&spinner)?.exhausted > 0)).await?;
    check_eq!(must!(of(&spinner)).ceiling, 0);
    let worker = must!(start("work:7"));
    check_eq!(must!(worker.wait().await), Ending::Exited(0));
    check!(counter(Counter::BudgetsExhausted)? > exhausted);
    end(alloc::vec![spinner]).await
}

/// So many that together they leave no time, though each stays within its budget: the starvation bound lets others run.
pub async fn many_spinners_cannot_starve_anybody() -> Outcome {
    must!(scheduling::set_starvation_bound(Some(200_000_000)));
    let boosts = counter(Counter::StarvationBoosts)?;
    let mut spinners = Vec::new();
    for _ in 0..2 * harts() {
        spinners.push(must!(start("spin:0")));
    }
    // Works until they leave no time: from then on it runs by the starvation bound.
    let worker = must!(start("work-until-boosted:7"));
    let ending = worker.wait().await;
    let boosted = counter(Counter::StarvationBoosts)?;
    end(spinners).await?;
    must!(scheduling::set_starvation_bound(Some(1_000_000_000)));
    check_eq!(must!(ending), Ending::Exited(0));
    check!(boosted > boosts, "{boosted} boosts, and {boosts} before");
    Ok(())
}
