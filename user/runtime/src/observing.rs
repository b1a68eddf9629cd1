//! The await points of the process's coroutines, printed on the kernel's request.
//!
//! The request is a completion with a token of its own ([`completion::TELL_AWAIT_POINTS`]). A worker that takes it
//! makes all blocked coroutines ready once, while the executor is [observed](coroutine::Observer): each future that
//! goes on waiting keeps a clone of its waker, and the clone's function takes the candidates for return addresses from
//! the stack. A coroutine of the lowest priority, which runs when all of them have had their polls, prints one line for
//! each place, with the coroutines that wait there; the host finds functions, files and lines. So an await point costs
//! nothing until someone asks, and every future has one, also those of other crates.
//!
//! A coroutine's wait is known from the first request that has found it: a later one tells whether it is still the same
//! wait, and for how long it has been known.
//!
//! Not in the list: coroutines that are ready, run, or got no turn because others never pause. The kernel prints where
//! the workers are.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use abi_queue::{Priority, completion};
use coroutine::{Cid, Observer, State};
use unix::callers;

use crate::executor::{self, executor};
use crate::interrupt;
use crate::local;
use crate::lock::Lock;
use crate::names::{self, Name};

/// Largest number of callers that are kept of an await point, and of coroutines that are named for one.
const MOST_CALLERS: usize = 32;
const MOST_NAMED: usize = 4;
/// Largest number of notes of one request.
const MOST_NOTES: usize = 16 << 10;

static REQUESTED: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicBool = AtomicBool::new(false);

static OBSERVER: Observer = Observer { waits: note_wait, forgets: note_same_wait };

static NOTES: Lock<Notes> = Lock::new(Notes { points: Vec::new(), continued: BTreeSet::new() });

/// Moment at which a request has first found each coroutine in its present wait.
static KNOWN_SINCE: Lock<BTreeMap<u64, u64>> = Lock::new(BTreeMap::new());

/// The reports of one request.
#[derive(Default)]
struct Notes {
    points: Vec<(u64, AwaitPoint)>,
    /// Coroutines that have waited since the last request.
    continued: BTreeSet<u64>,
}

/// The innermost future of a wait, with the functions that led there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct AwaitPoint {
    pc: usize,
    candidates: Box<[(usize, u64)]>,
}

/// Notes a request, if a completion's token is one; allowed in the handler of user interrupts.
#[cold]
pub(crate) fn note_request(token: u64) {
    if token == completion::TELL_AWAIT_POINTS {
        REQUESTED.store(true, Ordering::Relaxed);
        interrupt::raise_attention();
    }
}

/// Begins to answer a request, if there is one.
pub(crate) fn look() {
    if REQUESTED.load(Ordering::Relaxed) {
        begin();
    }
}

#[cold]
fn begin() {
    REQUESTED.store(false, Ordering::Relaxed);
    // Before that there is nothing to tell, and the executor's wakers are learned from a poll.
    if !executor::knows_own_waker() || BUSY.swap(true, Ordering::Acquire) {
        return;
    }
    let executor = executor();
    let mut counts = [0; State::Suspended as usize + 1];
    let mut blocked = Vec::new();
    for cid in executor.coroutines() {
        if let Ok(state) = executor.state(cid) {
            counts[state as usize] += 1;
            if state == State::Blocked {
                blocked.push(cid);
            }
        }
    }
    executor.observe(Some(&OBSERVER));
    for cid in &blocked {
        let _ = executor.wake(*cid);
    }
    if let Ok(last) = executor.try_spawn(Priority::LOWEST, 0, end(counts)) {
        last.detach();
    } else {
        executor.observe(None);
        BUSY.store(false, Ordering::Release);
    }
}

/// Ends the answer: prints what was reported, in portions, since the console is slow.
async fn end(counts: [usize; State::Suspended as usize + 1]) {
    // Behind coroutines of the same priority that others have woken meanwhile.
    coroutine::yield_now().await;
    executor().observe(None);
    // This poll's own waker still reports.
    coroutine::yield_now().await;
    let Notes { points, continued } = core::mem::take(&mut *NOTES.lock());
    let waiting: Vec<u64> = points.iter().map(|(cid, _)| *cid).collect();
    let known_since = renew(&mut KNOWN_SINCE.lock(), &waiting, &continued, crate::time::now_ns());
    let count = |state: State| counts[state as usize];
    unix::eprintln!(
        "process {}: coroutines: {} blocked, {} ready, {} running, {} preempted; {} wait at",
        unix::process::number(),
        count(State::Blocked),
        count(State::Ready),
        count(State::Running),
        count(State::Suspended),
        known_since.len()
    );
    let now = crate::time::now_ns();
    for (point, cids) in grouped(points) {
        let mut printer = unix::print::Printer::new(2);
        let waited_ns = |cid| now.saturating_sub(known_since.get(&cid).copied().unwrap_or(now));
        let _ = describe(&mut printer, &cids, names::of, waited_ns);
        let _ = callers::write(&mut printer, point.pc, &mut point.candidates.iter().copied());
        let _ = printer.write_str("\n");
        printer.flush();
        crate::time::sleep(Duration::from_millis(1)).await;
    }
    BUSY.store(false, Ordering::Release);
}

/// Returns the moments since which the waits are known, which are those of `known` for the coroutines that have waited
/// since then, and keeps them there.
fn renew(
    known: &mut BTreeMap<u64, u64>,
    waiting: &[u64],
    continued: &BTreeSet<u64>,
    now_ns: u64,
) -> BTreeMap<u64, u64> {
    let since = |cid: &u64| known.get(cid).copied().filter(|_| continued.contains(cid)).unwrap_or(now_ns);
    *known = waiting.iter().map(|cid| (*cid, since(cid))).collect();
    known.clone()
}

/// Returns the places, each with the coroutines that wait there.
fn grouped(mut points: Vec<(u64, AwaitPoint)>) -> Vec<(AwaitPoint, Vec<u64>)> {
    points.sort_by(|left, right| (&left.1, left.0).cmp(&(&right.1, right.0)));
    let mut groups: Vec<(AwaitPoint, Vec<u64>)> = Vec::new();
    for (cid, point) in points {
        match groups.last_mut() {
            Some((same, cids)) if *same == point => {
                if cids.last() != Some(&cid) {
                    cids.push(cid);
                }
            }
            _ => groups.push((point, alloc::vec![cid])),
        }
    }
    groups
}

/// Writes who waits at a place, and for how long at least.
fn describe(
    writer: &mut dyn Write,
    cids: &[u64],
    name: impl Fn(u64) -> Option<Name>,
    waited_ns: impl Fn(u64) -> u64,
) -> core::fmt::Result {
    writer.write_str(if cids.len() == 1 { "coroutine" } else { "coroutines" })?;
    for cid in cids.iter().take(MOST_NAMED) {
        write!(writer, " {cid:#x}")?;
        if let Some(name) = name(*cid) {
            write!(writer, " {:?}", name.text())?;
        }
        if let Ok(priority) = executor().priority(Cid::from_raw(*cid)) {
            write!(writer, " (priority {})", priority.number())?;
        }
    }
    if cids.len() > MOST_NAMED {
        write!(writer, " and {} more", cids.len() - MOST_NAMED)?;
    }
    let longest = cids.iter().map(|cid| waited_ns(*cid)).max().unwrap_or(0) / 1_000_000;
    match longest {
        0 => writer.write_str(" waits, first seen now: ")?,
        ms => write!(writer, " waits, for at least {}.{:03} s: ", ms / 1000, ms % 1000)?,
    }
    Ok(())
}

/// Notes that the running coroutine goes on waiting, and where.
fn note_wait(cid: u64) {
    let (pc, stack) = callers::here();
    let candidates = callers::candidates(stack, local::current().stack_top.get()).take(MOST_CALLERS).collect();
    let mut notes = NOTES.lock();
    if notes.points.len() < MOST_NOTES {
        notes.points.push((cid, AwaitPoint { pc, candidates }));
    }
}

/// Notes that a waker of an earlier request is dropped. In a poll of its own coroutine, which is observed, it was kept
/// until now.
fn note_same_wait(cid: u64) {
    if BUSY.load(Ordering::Relaxed) && executor::current_or_none().is_some_and(|current| current.raw() == cid) {
        NOTES.lock().continued.insert(cid);
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    fn point(pc: usize) -> AwaitPoint {
        AwaitPoint { pc, candidates: Box::new([(8, 0x20)]) }
    }

    #[test]
    fn coroutines_at_one_place_are_one_group() {
        let groups = grouped(alloc::vec![(7, point(2)), (5, point(1)), (6, point(2)), (7, point(2)), (8, point(1))]);
        let found: Vec<_> = groups.iter().map(|(point, cids)| (point.pc, &cids[..])).collect();
        assert_eq!(found, [(1, &[5, 8][..]), (2, &[6, 7][..])]);
        assert!(grouped(Vec::new()).is_empty());
    }

    #[test]
    fn a_wait_is_known_since_the_first_request_that_has_found_it() {
        let mut known = BTreeMap::new();
        let none = BTreeSet::new();
        assert_eq!(renew(&mut known, &[1, 2, 3], &none, 100), [(1, 100), (2, 100), (3, 100)].into());
        // 1 goes on waiting, 2 waits for something else, 3 does not wait, 4 is new although it says otherwise.
        let continued = [1, 3, 4].into();
        assert_eq!(renew(&mut known, &[1, 2, 4], &continued, 200), [(1, 100), (2, 200), (4, 200)].into());
        assert_eq!(renew(&mut known, &[1, 3], &continued, 300), [(1, 100), (3, 300)].into());
    }

    #[test]
    fn a_line_names_few_coroutines() {
        executor::waker_for_tests(Cid::from_raw(1));
        let text = |cids: &[u64], waited| {
            let mut text = String::new();
            describe(&mut text, cids, |cid| (cid == 7).then_some(Name::Of("\u{1b}server")), |_| waited).unwrap();
            text
        };
        assert_eq!(text(&[7], 0), "coroutine 0x7 \"\\u{1b}server\" waits, first seen now: ");
        assert_eq!(text(&[1 << 40], 0), "coroutine 0x10000000000 waits, first seen now: ");
        let many: Vec<u64> = (0..9).map(|number| number << 40).collect();
        let named = text(&many, 1_234_567_890);
        assert!(named.ends_with(" and 5 more waits, for at least 1.234 s: "), "{named}");
    }

    #[test]
    fn other_tokens_are_no_request() {
        for token in [0, 1, u64::MAX, completion::TELL_AWAIT_POINTS - 1, completion::TELL_AWAIT_POINTS | 1 << 32] {
            note_request(token);
            assert!(!REQUESTED.load(Ordering::Relaxed), "{token:#x}");
        }
    }
}
