//! Parts of the tests beside each other, and their lines one part after the other.
//!
//! An emulated machine of one hart keeps at most one core of the host busy, and one of several harts, most of whose
//! tests wait for one hart, seldom more than one and a half. So two lanes work off the parts: the first prefers the
//! machines of several harts, and the second takes the others only. Two machines of several harts are never beside each
//! other: their harts would be more than twice as slow as alone, since each waits for others that the host does not
//! run.
//!
//! The lines of the part that began first are shown as they come; those of the other are kept until it has ended.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::{Mutex, MutexGuard};
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
}

/// A part that waits for its lane.
pub struct Job<'a> {
    /// Its share of the host.
    pub load: Load,
    run: Box<dyn FnOnce(Show) + Send + 'a>,
}

impl<'a> Job<'a> {
    /// A part that shows its lines by the argument of `run`.
    pub fn new(load: Load, run: impl FnOnce(Show) + Send + 'a) -> Job<'a> {
        Job { load, run: Box::new(run) }
    }
}

/// Runs all parts: those of one load in their order, in two lanes if the host has two cores. Lines go to `output`.
pub fn run(jobs: Vec<Job<'_>>, cores: usize, output: &mut (dyn Write + Send)) {
    let (several, one): (VecDeque<_>, VecDeque<_>) = jobs.into_iter().partition(|job| job.load == Load::Several);
    let waiting = Mutex::new(Waiting { several, one, begun: 0 });
    let screen = Mutex::new(OrderedLines { output, first: 0, others: BTreeMap::new() });
    let work = |prefers: Load| {
        loop {
            // A statement of its own, behind which the lock is free.
            let Some((number, job)) = lock(&waiting).next(prefers) else { break };
            (job.run)(&mut |line| lock(&screen).show(number, line));
            lock(&screen).end(number);
        }
    };
    thread::scope(|scope| {
        if cores > 1 {
            scope.spawn(|| work(Load::One));
        }
        work(Load::Several);
    });
}

/// A panic in one lane ends the run when all lanes have ended; the other lane goes on until then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The parts that no lane has taken.
struct Waiting<'a> {
    several: VecDeque<Job<'a>>,
    one: VecDeque<Job<'a>>,
    /// Number of parts that were taken.
    begun: usize,
}

impl<'a> Waiting<'a> {
    /// Takes the next part of a lane, with its number.
    fn next(&mut self, prefers: Load) -> Option<(usize, Job<'a>)> {
        let job = match prefers {
            Load::Several => self.several.pop_front().or_else(|| self.one.pop_front())?,
            Load::One => self.one.pop_front()?,
        };
        self.begun += 1;
        Some((self.begun - 1, job))
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
            })
        });
        assert_eq!(lines(jobs.collect(), 1), ["b", "a", "c"]);
        assert!(lines(Vec::new(), 1).is_empty());
    }
}
