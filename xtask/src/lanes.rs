//! Parts of the tests beside each other, and their lines one part after the other.
//!
//! An emulated machine of one hart keeps at most one core of the host busy, and one of several harts, most of whose
//! tests wait for one hart, seldom more than one and a half. So two lanes work off the parts: the first prefers the
//! machines of several harts, and the second takes the others only. Two machines of several harts are never beside each
//! other: their harts would be more than twice as slow as alone, since each waits for others that the host does not
//! run.
//!
//! A part can end with others that had to wait for it: those that boot the images which it has built. So a machine of
//! several harts boots as soon as its images are there, beside tests on the host.
//!
//! The lines of the part that began first are shown as they come; those of the other are kept until it has ended.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

/// Shows a line of a part.
pub type Show<'s> = &'s mut dyn FnMut(&str);

/// The share of the host that a part takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One core.
    One,
    /// More than one, at times.
    Several,
    /// All of it: after all other parts, and beside none.
    All,
}

/// The choice of a lane.
#[derive(Clone, Copy)]
enum Lane {
    /// Parts of several cores before those of one.
    SeveralFirst,
    /// Parts of one core only.
    One,
}

/// A part that waits for its lane.
pub struct Job<'a> {
    /// Its share of the host.
    pub load: Load,
    run: Box<dyn FnOnce(Show) -> Vec<Job<'a>> + Send + 'a>,
}

impl<'a> Job<'a> {
    /// A part that shows its lines by the argument of `run`, and returns those that waited for its end.
    pub fn new(load: Load, run: impl FnOnce(Show) -> Vec<Job<'a>> + Send + 'a) -> Job<'a> {
        Job { load, run: Box::new(run) }
    }
}

/// Runs all parts: those of one load in their order, in two lanes if the host has two cores. Lines go to `output`.
pub fn run(jobs: Vec<Job<'_>>, cores: usize, output: &mut (dyn Write + Send)) {
    let queue = Queue::default();
    lock(&queue.waiting).add(jobs);
    let screen = Mutex::new(OrderedLines { output, first: 0, others: BTreeMap::new() });
    let work = |lane: Lane| {
        while let Some((number, job)) = queue.next(lane) {
            let running = Running(&queue);
            let released = (job.run)(&mut |line| lock(&screen).show(number, line));
            lock(&queue.waiting).add(released);
            drop(running);
            lock(&screen).end(number);
        }
    };
    thread::scope(|scope| {
        if cores > 1 {
            scope.spawn(|| work(Lane::One));
        }
        work(Lane::SeveralFirst);
    });
}

/// A panic in one lane ends the run when all lanes have ended; the other lane goes on until then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The parts that no lane has taken.
#[derive(Default)]
struct Queue<'a> {
    waiting: Mutex<Waiting<'a>>,
    /// A part has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Waiting<'a> {
    several: VecDeque<Job<'a>>,
    one: VecDeque<Job<'a>>,
    all: VecDeque<Job<'a>>,
    /// Number of parts that were taken.
    begun: usize,
    /// Number of those that have not ended: they may release others.
    running: usize,
}

/// A part that runs in a lane, until it ends or panics.
struct Running<'q, 'a>(&'q Queue<'a>);

impl<'a> Queue<'a> {
    /// Takes the next part of a lane, with its number; waits for it while running parts may release one.
    fn next(&self, lane: Lane) -> Option<(usize, Job<'a>)> {
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(job) = waiting.take(lane) {
                waiting.begun += 1;
                waiting.running += 1;
                return Some((waiting.begun - 1, job));
            }
            if waiting.running == 0 {
                return None;
            }
            waiting = self.ended.wait(waiting).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl<'a> Waiting<'a> {
    fn add(&mut self, jobs: Vec<Job<'a>>) {
        for job in jobs {
            match job.load {
                Load::Several => self.several.push_back(job),
                Load::One => self.one.push_back(job),
                Load::All => self.all.push_back(job),
            }
        }
    }

    fn take(&mut self, lane: Lane) -> Option<Job<'a>> {
        let job = match lane {
            Lane::SeveralFirst => self.several.pop_front().or_else(|| self.one.pop_front()),
            Lane::One => self.one.pop_front(),
        };
        let is_last = self.running == 0 && self.several.is_empty();
        job.or_else(|| if is_last { self.all.pop_front() } else { None })
    }
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        lock(&self.0.waiting).running -= 1;
        self.0.ended.notify_all();
    }
}

/// The lines of the parts that have begun.
struct OrderedLines<'o> {
    output: &'o mut (dyn Write + Send),
    /// The part whose lines are shown as they come: all before it have ended.
    first: usize,
    /// Lines of later parts, and whether these have ended.
    others: BTreeMap<usize, (Vec<String>, bool)>,
}

impl OrderedLines<'_> {
    fn show(&mut self, number: usize, line: &str) {
        if number == self.first {
            self.write(line);
        } else {
            self.others.entry(number).or_default().0.push(line.into());
        }
    }

    fn end(&mut self, number: usize) {
        self.others.entry(number).or_default().1 = true;
        while self.others.remove(&self.first).is_some_and(|(_, has_ended)| has_ended) {
            self.first += 1;
            let kept = self.others.get_mut(&self.first).map(|(lines, _)| std::mem::take(lines)).unwrap_or_default();
            kept.iter().for_each(|line| self.write(line));
        }
    }

    /// Writes a line. A reader that has gone ends no test.
    fn write(&mut self, line: &str) {
        let _ = writeln!(self.output, "{line}").and_then(|()| self.output.flush());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn lines(jobs: Vec<Job<'_>>, cores: usize) -> Vec<String> {
        let mut output = Vec::new();
        run(jobs, cores, &mut output);
        String::from_utf8(output).unwrap().lines().map(String::from).collect()
    }

    #[test]
    fn a_part_beside_another_is_shown_after_it() {
        let meeting = Barrier::new(2);
        let part = |load, name: &'static str| {
            let meeting = &meeting;
            Job::new(load, move |show| {
                show(&format!("{name} begins"));
                meeting.wait();
                show(&format!("{name} goes on"));
                meeting.wait();
                show(&format!("{name} ends"));
                Vec::new()
            })
        };
        let shown = lines(vec![part(Load::One, "a"), part(Load::Several, "b")], 2);
        let of = |name: &str| ["begins", "goes on", "ends"].map(|step| format!("{name} {step}"));
        assert!(shown == [of("a"), of("b")].concat() || shown == [of("b"), of("a")].concat(), "{shown:?}");
    }

    #[test]
    fn machines_of_several_harts_are_never_beside_each_other() {
        let (several, all) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let part = |load| {
            let (several, all) = (&several, &all);
            Job::new(load, move |show| {
                if load == Load::Several {
                    assert_eq!(several.fetch_add(1, Ordering::SeqCst), 0);
                }
                assert!(all.fetch_add(1, Ordering::SeqCst) < 2);
                show("begins");
                thread::yield_now();
                all.fetch_sub(1, Ordering::SeqCst);
                if load == Load::Several {
                    several.fetch_sub(1, Ordering::SeqCst);
                }
                Vec::new()
            })
        };
        let loads = (0..100).map(|number| if number % 3 == 0 { Load::One } else { Load::Several });
        assert_eq!(lines(loads.map(part).collect(), 2).len(), 100);
    }

    #[test]
    fn one_core_has_one_lane() {
        let names = ["a", "b", "c"];
        let loads = [Load::One, Load::Several, Load::One];
        let running = AtomicUsize::new(0);
        let jobs = names.iter().zip(loads).map(|(name, load)| {
            let running = &running;
            Job::new(load, move |show| {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                show(name);
                running.fetch_sub(1, Ordering::SeqCst);
                Vec::new()
            })
        });
        assert_eq!(lines(jobs.collect(), 1), ["b", "a", "c"]);
        assert!(lines(Vec::new(), 1).is_empty());
    }

    /// Returns a part that shows its name and then releases others.
    fn releasing(load: Load, name: &'static str, others: Vec<Job<'static>>) -> Job<'static> {
        Job::new(load, move |show| {
            show(name);
            others
        })
    }

    #[test]
    fn a_part_that_needs_the_host_for_itself_is_the_last() {
        for cores in [1, 2] {
            let parts = [(Load::All, "all"), (Load::One, "one"), (Load::All, "all"), (Load::Several, "several")];
            let mut shown = lines(parts.map(|(load, name)| releasing(load, name, vec![])).into(), cores);
            shown[..2].sort();
            assert_eq!(shown, ["one", "several", "all", "all"]);
        }
    }

    #[test]
    fn parts_begin_after_the_one_that_they_wait_for() {
        for cores in [1, 2] {
            for load in [Load::One, Load::Several] {
                let last = vec![releasing(Load::One, "one", vec![]), releasing(Load::Several, "several", vec![])];
                let images = releasing(Load::One, "images", vec![releasing(load, "more images", last)]);
                let mut shown = lines(vec![images], cores);
                shown[2..].sort();
                assert_eq!(shown, ["images", "more images", "one", "several"]);
            }
        }
    }

    #[test]
    fn an_idle_lane_takes_a_part_that_the_other_releases() {
        let meeting = Barrier::new(2);
        let meet = |load| {
            let meeting = &meeting;
            Job::new(load, move |_| {
                meeting.wait();
                Vec::new()
            })
        };
        // Only both lanes together end these two.
        let images = Job::new(Load::One, move |_| vec![meet(Load::One), meet(Load::Several)]);
        assert!(lines(vec![images], 2).is_empty());
    }

    #[test]
    fn a_panic_in_one_lane_does_not_keep_the_other_waiting() {
        let broken = Job::new(Load::Several, |_| panic!("as intended"));
        let lanes = std::panic::AssertUnwindSafe(|| lines(vec![broken, releasing(Load::One, "one", vec![])], 2));
        assert!(std::panic::catch_unwind(lanes).is_err());
    }
}
