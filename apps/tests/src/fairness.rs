//! Accounting of processor time: processes that try to exceed their budget, and the shares of the others.
//!
//! A victim that never rests, on as many workers as there are harts, takes all the time that it can get. Its time
//! beside an attacker is compared with the elapsed time, with a large tolerance for emulators; boosts are compared by
//! counters. A machine whose clock counts instructions runs the test of all families of calls
//! (`tests --counted`): there, the victim's work is comparable from one moment to the next, whatever the host does.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use abi_unix::Counter;
use abi_unix::authority::{Capability, CapabilitySet, Held};
use abi_unix::types::{TimeSpec, open};
use cops::process::{Child, Command, Ending};
use cops::system::kernel_side::{KernelSide, choose};
use cops::system::process::{UsageOf, processor_time};
use cops::system::{self, Descriptor, SystemCall, file, scheduling};
use cops::thread::Builder;
use cops::time::{Duration, Instant};
use cops::{Errno, Priority};

use crate::harness::{self, Outcome, until};
use crate::{check, check_eq, must};

const MS: u64 = 1_000_000;
/// Budget of attackers: a tenth of the time of one hart.
const BUDGET: (u64, u64) = (10 * MS, 100 * MS);
/// Threads of a process that tries to be boosted once for each thread.
const THREADS: usize = 200;

/// Starvation bound beside a crowd, and the slice of a process.
const BOUND_NS: u64 = 100 * MS;
const SLICE_NS: u64 = 10 * MS;
/// Number of boosts that a process waits for.
const TURNS: usize = 9;

/// Runs as another process of the tests below.
pub async fn act(what: &str) -> i32 {
    match what {
        // Takes all the time that it can get, on all harts.
        "take-the-rest" => {
            let harts = harts() as usize;
            let _ = cops::alloc_cpu(harts - 1);
            for _ in 1..harts {
                cops::spawn_at(VICTIM, async { spin() }).detach();
            }
            let _ = cops::set_priority(cops::current(), VICTIM);
            cops::yield_now().await;
            spin()
        }
        // Counts the rounds that it does.
        "rounds" => {
            let _ = cops::set_priority(cops::current(), VICTIM);
            cops::yield_now().await;
            i32::from(count_rounds().is_err())
        }
        // Sets its budget again and again, in every form that could be allowed.
        "refill" => loop {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(4) {}
            for (budget, period) in [BUDGET, (100 * MS, 1000 * MS), (1000 * MS, 10_000 * MS), (MS, 10 * MS)] {
                let _ = scheduling::set_budget(0, Some(budget), period);
            }
        },
        // Has the kernel poll for it.
        "poll" => {
            let Ok((reader, _writer)) = cops::io::pipe() else { return 1 };
            if choose(KernelSide::PollingThread).is_err() {
                return 2;
            }
            let _ = reader.read(alloc::vec![0; 1]).await;
            3
        }
        // Has the kernel try a read again and again.
        "retry" => {
            let Ok((reader, _writer)) = cops::io::pipe() else { return 1 };
            if choose(KernelSide::RetryingThreads).is_err() {
                return 2;
            }
            let _ = system::file::read(reader.descriptor().raw(), &mut [0]);
            3
        }
        // Has the kernel fill pages in many calls in flight.
        "write" => write_without_end().await,
        // Has the kernel wake it from very many sleeps.
        "sleep" => sleep_without_end(),
        "threads" => spin_in_threads(),
        "turns" => take_turns(),
        other => {
            cops::eprintln!("there is no act `{other}`");
            99
        }
    }
}

const VICTIM: Priority = Priority::saturating(31);
const ATTACKER: Priority = Priority::saturating(5);

fn spin() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

async fn write_without_end() -> i32 {
    const BYTES: usize = 4 << 20;
    let Ok(memory) = system::memory::map(BYTES).map(|memory| memory as usize) else { return 1 };
    let Ok(file) = cops::file::File::open_with("/tmp/fairness", open::CREAT | open::RDWR) else { return 2 };
    let descriptor = file.descriptor().raw() as usize;
    loop {
        for token in 1..=64 {
            // SAFETY: the memory is mapped, and only read.
            let _ = unsafe {
                let arguments = [descriptor, memory, BYTES, 0, 0, 0];
                system::syscall_asynchronous(SystemCall::Write as usize, arguments, 0, 0, token)
            };
            let _ = system::file::seek(descriptor as i32, 0, 0);
        }
        cops::sleep(Duration::from_millis(1)).await;
    }
}

fn sleep_without_end() -> i32 {
    let time = TimeSpec::from_ns(1000);
    for token in 1.. {
        // SAFETY: the kernel reads the time before it answers.
        let _ = unsafe {
            let arguments = [&raw const time as usize, 0, 0, 0, 0, 0];
            system::syscall_asynchronous(SystemCall::Sleep as usize, arguments, 0, 0, token)
        };
    }
    0
}

fn spin_in_threads() -> i32 {
    let go = Arc::new(AtomicU32::new(0));
    for _ in 0..THREADS {
        let go = go.clone();
        let thread = Builder::new().stack_size(4096).spawn(move || {
            while go.load(Ordering::Acquire) == 0 {
                let _ = system::thread::futex_wait(&go, 0, None);
            }
            spin()
        });
        if thread.is_err() {
            return 1;
        }
    }
    go.store(1, Ordering::Release);
    system::thread::futex_wake(&go, u32::MAX >> 1);
    spin()
}

/// Works whenever it runs, until it has been boosted several times. Returns the number of visits to programs that the
/// harts have begun between two of these turns: half of the turns came after at most as many.
fn take_turns() -> i32 {
    let mut visits = Vec::new();
    let (mut turns, mut last) = (0, 0);
    while visits.len() < TURNS {
        let Ok(own) = scheduling::get(0) else { return 254 };
        if own.boosts > turns {
            // Refused until the parent allows it.
            let Ok(switches) = system::system::counter(Counter::Switches) else { continue };
            if turns > 0 {
                visits.push(switches - last);
            }
            (turns, last) = (own.boosts, switches);
        }
    }
    visits.sort_unstable();
    visits[TURNS / 2].min(252) as i32
}

fn harts() -> u64 {
    cops::time::global_page().map_or(1, |page| page.harts.load(Ordering::Relaxed))
}

fn start(what: &str, priority: Priority) -> system::Result<Child> {
    let command = Command::new(harness::OWN_PATH).argument("--act").argument("fairness").argument(what);
    command.priority(priority).spawn()
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

/// Starts a process that takes the remaining time, without a limit of its own.
async fn victim() -> Result<Child, alloc::string::String> {
    let victim = must!(start("take-the-rest", VICTIM));
    must!(scheduling::set_budget(victim.number(), None, 100 * MS));
    until(|| Ok(scheduling::get(victim.number())?.cpu_ns > 10 * MS)).await?;
    Ok(victim)
}

/// Runs as many attackers as there are harts, each with a tenth of a hart: the victim keeps at least three quarters of
/// all time. (A single attacker on several harts would leave it that much even if it took a hart of its own.)
async fn leaves_the_rest(attack: &str) -> Outcome {
    let victim = victim().await?;
    let mut attackers = Vec::new();
    for _ in 0..harts() {
        let attacker = must!(start(attack, Priority::HIGHEST));
        must!(scheduling::set_privilege(attacker.number(), false));
        must!(scheduling::set_budget(attacker.number(), Some(BUDGET.0), BUDGET.1));
        attackers.push(attacker);
    }
    for attacker in &attackers {
        until(|| Ok(scheduling::get(attacker.number())?.exhausted > 0)).await?;
    }
    keeps_its_share(&victim, &attackers, attack).await?;
    attackers.push(victim);
    end(attackers).await
}

/// Waits until the victim has had three quarters of all time, over 15 periods at least: the first ones may have an
/// overrun. It is paid back, so the share tends to what the attackers leave, and a loaded host only makes that longer.
async fn keeps_its_share(victim: &Child, attackers: &[Child], attack: &str) -> Outcome {
    let cpu = || must_have(scheduling::get(victim.number()).map(|it| it.cpu_ns));
    let (before, start) = (cpu()?, Instant::now());
    loop {
        cops::sleep(Duration::from_millis(20)).await;
        let (elapsed, had) = (start.elapsed(), cpu()? - before);
        let passed = elapsed.as_nanos() as u64 * harts();
        let own: Vec<_> = attackers.iter().map(|attacker| scheduling::get(attacker.number())).collect();
        check!(own.iter().all(Result::is_ok), "{attack}: an attacker has ended");
        if elapsed >= Duration::from_nanos(15 * BUDGET.1) && had * 4 >= passed * 3 {
            return Ok(());
        }
        check!(elapsed < harness::LIMIT, "{attack}: the victim had {had} ns of {passed}; the attackers are {own:?}");
    }
}

fn must_have<T>(result: system::Result<T>) -> Result<T, alloc::string::String> {
    Ok(must!(result))
}

pub async fn a_process_cannot_refill_its_budget() -> Outcome {
    leaves_the_rest("refill").await
}

pub async fn a_polling_thread_is_charged() -> Outcome {
    leaves_the_rest("poll").await
}

pub async fn a_retrying_thread_is_charged() -> Outcome {
    leaves_the_rest("retry").await
}

pub async fn calls_in_flight_are_charged() -> Outcome {
    leaves_the_rest("write").await?;
    leaves_the_rest("sleep").await
}

// ---- calls of every family ----

/// Calls that are made at once, with the part of their time that at most has no payer, or is the victim's.
struct Attack {
    calls: &'static [(&'static str, &'static str)],
    lost: f64,
}

/// Ways to make a call, and calls, such that each family of calls and each way is there, and everything that takes time
/// outside of the call: interrupts, wake-ups, switches. `bench fairness budget_worst` measures all pairs.
///
/// Time that a process takes after its parent has waited for it is in no report, and the end of a process is a third of
/// all that it takes, so calls that start processes have a larger part.
const ATTACKS: [Attack; 7] = [
    Attack {
        calls: &[("direct", "renameat2"), ("direct", "mmap"), ("direct", "bind"), ("direct", "nanosleep")],
        lost: 0.1,
    },
    Attack {
        calls: &[
            ("direct", "set_scheduling"),
            ("direct", "interrupt_grant"),
            ("direct", "snapshot"),
            ("direct", "rt_sigaction"),
        ],
        lost: 0.1,
    },
    Attack {
        calls: &[
            ("asynchronous", "read"),
            ("asynchronous", "write"),
            ("asynchronous", "futex"),
            ("asynchronous", "nanosleep"),
        ],
        lost: 0.1,
    },
    Attack {
        calls: &[
            ("asynchronous", "accept"),
            ("asynchronous", "recvfrom"),
            ("asynchronous", "connect"),
            ("retrying", "recvfrom"),
        ],
        lost: 0.1,
    },
    Attack { calls: &[("ring", "readv"), ("ring", "futex"), ("ring", "nanosleep"), ("ring", "munmap")], lost: 0.1 },
    Attack {
        calls: &[("polling", "futex"), ("polling", "ppoll"), ("polling", "connect"), ("ring", "epoll_pwait")],
        lost: 0.1,
    },
    Attack {
        calls: &[
            ("direct", "spawn"),
            ("direct", "clone"),
            ("direct", "execve"),
            ("asynchronous", "wait4"),
            ("waiting", "wait4"),
        ],
        lost: 0.5,
    },
];

/// Periods of the budget that attackers use up: beside these, the start and the end of a process count for little.
const PERIODS: u64 = 4;
/// File with the number of rounds that the victim has done.
const ROUNDS: &CStr = c"/tmp/rounds";

/// Runs as the victim: it reports each round.
fn count_rounds() -> system::Result<()> {
    let file = file::open(ROUNDS, open::WRONLY, 0)?;
    for rounds in 1u64.. {
        for _ in 0..1000 {
            core::hint::spin_loop();
        }
        file::write_at(file.raw(), &rounds.to_le_bytes(), 0)?;
    }
    Ok(())
}

/// Readings at one moment.
struct Progress {
    rounds: u64,
    time_ns: u64,
    /// Time that the victim was charged for.
    of_the_victim: u64,
    /// Time that all others were charged for: this process, and the ended ones.
    of_others: Duration,
}

impl Progress {
    fn now(victim: &Child, file: &Descriptor) -> Result<Progress, String> {
        let mut rounds = [0; 8];
        must!(file::read_at(file.raw(), &mut rounds, 0));
        let of_others = processor_time(UsageOf::Process) + processor_time(UsageOf::Children);
        let of_the_victim = must!(scheduling::get(victim.number())).cpu_ns;
        Ok(Progress { rounds: u64::from_le_bytes(rounds), time_ns: cops::time::now_ns(), of_the_victim, of_others })
    }

    fn since(&self, before: &Progress) -> Bill {
        let seconds = |from: u64, to: u64| (to - from) as f64 / 1e9;
        let others = (self.of_others - before.of_others).as_secs_f64();
        let victim = seconds(before.of_the_victim, self.of_the_victim);
        let time = seconds(before.time_ns, self.time_ns);
        Bill { rounds: (self.rounds - before.rounds) as f64, victim, others, unpaid: time - victim - others }
    }
}

/// Rounds of a victim, and the seconds of the hart by the processes that were charged for them.
#[derive(Debug)]
struct Bill {
    rounds: f64,
    victim: f64,
    others: f64,
    unpaid: f64,
}

/// Makes these calls for ever, until the processes have used up their budgets several times.
async fn use_up_budgets(calls: &[(&str, &str)]) -> Outcome {
    let processes = harness::counter(Counter::Processes)?;
    let mut attackers = Vec::new();
    for (way, call) in calls {
        let words = ["fairness", "budget_worst", "act", way, call];
        let command = words.into_iter().fold(Command::new("/bin/bench"), Command::argument);
        let attacker = must!(command.priority(Priority::HIGHEST).spawn());
        must!(scheduling::set_budget(attacker.number(), Some(BUDGET.0), BUDGET.1));
        attackers.push(attacker);
    }
    let have_used_up = || {
        for attacker in &attackers {
            if must!(scheduling::get(attacker.number())).exhausted < PERIODS {
                return Ok(false);
            }
        }
        Ok(true)
    };
    // Seldom, since each look takes time from the victim, too.
    while !have_used_up()? {
        cops::sleep(Duration::from_nanos(BUDGET.1 / 4)).await;
    }
    end(attackers).await?;
    // Their children come to the first process. One that was waited for may exist for a moment.
    while harness::counter(Counter::Processes)? > processes {
        let _ = cops::timeout(Duration::from_millis(5), cops::process::wait_any()).await;
    }
    Ok(())
}

/// Every call of [`ATTACKS`], made for ever by a process with a budget, beside a victim that takes the rest of all
/// time. All time has a payer, and the victim does not pay for others: a tick that it is charged for is worth as much
/// of its work as without them. On one hart: several harts of the emulator share its instructions in parts that change,
/// so a tick has no fixed worth there.
pub async fn calls_of_every_family_keep_within_a_budget() -> Outcome {
    check_eq!(cops::process::number(), 1);
    check_eq!(harts(), 1);
    // Without these some calls would be refused; with that to schedule, the attackers could leave their budgets.
    let held = must!(system::authority::held(0));
    let set = CapabilitySet::only(Capability::Observe);
    must!(system::authority::set(0, Held { inheritable: set, ..held }));
    must!(cops::set_priority(cops::current(), Priority::HIGHEST));
    let file = must!(file::open(ROUNDS, open::CREAT | open::RDWR, 0o600));
    let victim = must!(start("rounds", VICTIM));
    must!(scheduling::set_budget(victim.number(), None, BUDGET.1));
    until(|| Ok(scheduling::get(victim.number())?.cpu_ns > 50 * MS)).await?;
    let before = Progress::now(&victim, &file)?;
    cops::sleep(Duration::from_millis(100)).await;
    let alone = Progress::now(&victim, &file)?.since(&before);
    let mut wrong = Vec::new();
    for Attack { calls, lost } in ATTACKS {
        let before = Progress::now(&victim, &file)?;
        use_up_budgets(calls).await?;
        let bill = Progress::now(&victim, &file)?.since(&before);
        let for_others = bill.victim - bill.rounds * alone.victim / alone.rounds;
        if bill.unpaid + for_others > bill.others * lost {
            wrong.push((calls, bill, for_others));
        }
    }
    end(alloc::vec![victim]).await?;
    check!(wrong.is_empty(), "calls, seconds, and seconds that the victim has paid for others: {wrong:?}");
    Ok(())
}

/// A given budget stays in force, whatever the process chooses within it.
pub async fn a_given_budget_cannot_be_replaced() -> Outcome {
    let child = must!(start("threads", VICTIM));
    let set = |budget, period| scheduling::set_budget(child.number(), Some(budget), period);
    must!(scheduling::set_privilege(0, false));
    must!(set(20 * MS, 100 * MS));
    for (budget, period) in [(21 * MS, 100 * MS), (20 * MS, 99 * MS), (200 * MS, 1000 * MS), (21 * MS, 1000 * MS)] {
        check!(set(budget, period) == Err(Errno::EPERM), "{budget} in {period}");
    }
    must!(set(20 * MS, 1000 * MS));
    check!(set(20 * MS, 100 * MS) == Err(Errno::EPERM), "a parent has taken back a given budget");
    // A process may revoke its own choice, up to the given budget.
    let own = |budget, period| scheduling::set_budget(0, Some(budget), period);
    must!(own(MS, 100 * MS));
    must!(own(20 * MS, 100 * MS));
    check!(scheduling::set_budget(0, None, 100 * MS) == Err(Errno::EPERM), "no limit at all");
    end(alloc::vec![child]).await
}

/// A process with very many threads that never rest is boosted no more often than one with a single thread.
pub async fn threads_do_not_multiply_turns() -> Outcome {
    // This one observes, and must not wait for its own turn among the starving ones.
    must!(cops::set_priority(cops::current(), Priority::HIGHEST));
    let many = must!(start("threads", ATTACKER));
    must!(scheduling::set_budget(many.number(), None, 100 * MS));
    until(|| Ok(scheduling::get(many.number())?.cpu_ns > 100 * MS)).await?;
    must!(scheduling::set_starvation_bound(Some(200 * MS)));
    let single = must!(start("take-the-rest", VICTIM));
    let result = until(|| Ok(scheduling::get(single.number())?.boosts >= 4)).await;
    let (of_many, of_single) = (scheduling::get(many.number()), scheduling::get(single.number()));
    must!(scheduling::set_starvation_bound(Some(1000 * MS)));
    end(alloc::vec![many, single]).await?;
    result?;
    let (of_many, of_single) = (must!(of_many).boosts, must!(of_single).boosts);
    // The first process has run for longer, and the counts are read one after the other.
    check!(of_many <= 4 * of_single + 8, "{of_many} boosts beside {of_single}");
    Ok(())
}

/// A process that has used up its budget is not boosted, however long it waits.
pub async fn an_exhausted_process_is_not_preferred() -> Outcome {
    let victim = victim().await?;
    must!(cops::set_priority(cops::current(), Priority::HIGHEST));
    must!(scheduling::set_starvation_bound(Some(100 * MS)));
    let child = must!(start("threads", ATTACKER));
    must!(scheduling::set_budget(child.number(), Some(MS), 10_000 * MS));
    until(|| Ok(scheduling::get(child.number())?.exhausted > 0)).await?;
    let before = must!(scheduling::get(child.number())).boosts;
    cops::sleep(Duration::from_millis(800)).await;
    let after = must!(scheduling::get(child.number())).boosts;
    must!(scheduling::set_starvation_bound(Some(1000 * MS)));
    end(alloc::vec![child, victim]).await?;
    check!(before == after, "preferred {} times", after - before);
    Ok(())
}

/// Starts a crowd of processes with hundreds of threads that never rest and claim the highest priority, and less
/// important processes beside it, which starve. Returns how many visits to programs came between two turns of each of
/// these: half of its turns came after at most as many.
async fn turns_beside_a_crowd(attackers: usize, victims: usize) -> Result<Vec<usize>, alloc::string::String> {
    must!(cops::set_priority(cops::current(), Priority::HIGHEST));
    must!(scheduling::set_starvation_bound(Some(BOUND_NS)));
    let mut crowd = Vec::new();
    for _ in 0..attackers {
        let attacker = must!(start("threads", Priority::HIGHEST));
        must!(scheduling::set_budget(attacker.number(), None, 100 * MS));
        crowd.push(attacker);
    }
    for attacker in &crowd {
        until(|| Ok(scheduling::get(attacker.number())?.cpu_ns > 100 * MS)).await?;
    }
    let mut starving = Vec::new();
    for _ in 0..victims {
        starving.push(must!(start("turns", VICTIM)));
    }
    // Each begins to count when it may: none does before the last one is there.
    for victim in &starving {
        must!(scheduling::set_privilege(victim.number(), true));
    }
    let mut endings = Vec::new();
    for victim in &starving {
        endings.push(victim.wait().await);
    }
    must!(scheduling::set_starvation_bound(Some(1000 * MS)));
    let exhausted: Vec<_> = crowd.iter().map(|one| scheduling::get(one.number()).map(|one| one.exhausted)).collect();
    end(crowd).await?;
    check!(exhausted.iter().all(|times| *times == Ok(0)), "the crowd was held back by its budgets: {exhausted:?}");
    let mut visits = Vec::new();
    for ending in endings {
        match must!(ending) {
            Ending::Exited(count) => visits.push(usize::from(count)),
            other => check!(false, "a victim has ended: {other:?}"),
        }
    }
    Ok(visits)
}

/// Two processes, which never use up their budgets together, claim the highest priority for hundreds of threads that
/// never rest. A starving process beside them has its turns long before each of those has had one.
pub async fn a_crowd_that_claims_everything_holds_back_no_process() -> Outcome {
    for visits in turns_beside_a_crowd(2, 1).await? {
        check!(visits < THREADS, "a turn came after {visits} visits to programs");
    }
    Ok(())
}

/// Eight starving processes beside a crowd: each has its turn within the starvation bound and a slice of each of them,
/// and not after a bound of each.
pub async fn several_starving_processes_share_the_bound() -> Outcome {
    const VICTIMS: usize = 8;
    // The slices of a bound on all harts, and one of each process, the crowd's included.
    let expected = (BOUND_NS / SLICE_NS * harts()) as usize + VICTIMS + 1;
    let visits = turns_beside_a_crowd(1, VICTIMS).await?;
    // Some visits end before their slice.
    let is_soon = visits.iter().all(|&visits| 2 * visits <= 3 * expected);
    check!(is_soon, "{visits:?} visits to programs came between two turns, and not about {expected}");
    Ok(())
}
