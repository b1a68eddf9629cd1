//! From figures to verdicts: met, missed or equal within noise, why a goal is missed, and what became of the papers'
//! figures.
//!
//! A ratio of 0.99 by the wall clock, where at least 1 was the goal, is no miss that anyone can mend; listed among
//! real ones it hides them. So a figure within the tolerance of its goal is *equal*: [`WALL`] by the clock of a host
//! that others use, [`COUNTED`] where instructions, bytes or entries were counted. A limit that is kept is met however
//! close; a ratio to a rival, whose goal is 1, is equal on both sides.

use crate::bench::{Figure, Results};
use crate::figures::figure;

/// Tolerance of figures by a clock, as a share of the goal.
pub const WALL: f64 = 0.05;
/// Tolerance of counted figures.
pub const COUNTED: f64 = 0.01;

/// The outcome of a figure with a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Better than the goal, or a limit kept.
    Met,
    /// Within the tolerance.
    Equal,
    /// Worse by more than the tolerance.
    Missed,
}

/// Benchmarks whose figures are counted, unless the figure's name says otherwise.
const COUNTING: [&str; 12] = [
    "switch",
    "syscall",
    "matrix",
    "memory",
    "micro",
    "micro-latency",
    "cycles",
    "scheduler",
    "ring-counter",
    "ring-pipes",
    "user-interrupt",
    "peers",
];

/// Whether a figure is counted, and not measured by a clock.
fn is_counted(bench: &str, figure: &Figure) -> bool {
    let id = figure.id.as_str();
    let by_its_name = ["instructions", "entries", "entry"].iter().any(|word| id.contains(word));
    by_its_name || (COUNTING.contains(&bench) && !id.ends_with("_wall"))
}

/// Returns the tolerance of a figure.
pub fn tolerance(bench: &str, figure: &Figure) -> f64 {
    if is_counted(bench, figure) { COUNTED } else { WALL }
}

/// Returns the outcome of a figure that has a goal.
pub fn outcome(bench: &str, figure: &Figure) -> Option<Outcome> {
    let (goal, met) = (figure.goal?, figure.met?);
    let near = (figure.value - goal).abs() <= goal.abs() * tolerance(bench, figure);
    let is_against_a_rival = goal == 1.0 && figure.unit.starts_with("times");
    Some(match met {
        _ if near && (!met || is_against_a_rival) => Outcome::Equal,
        true => Outcome::Met,
        false => Outcome::Missed,
    })
}

/// Returns how many times worse than its goal a figure is.
pub fn excess(figure: &Figure) -> f64 {
    let Some(goal) = figure.goal else { return 1.0 };
    if figure.at_least { goal / figure.value } else { figure.value / goal }
}

/// Why goals are missed: benchmark, beginning of the figures' names, end of them, and a sentence. The first row that
/// fits is the one; a missed figure of the recorded results without a row fails a test.
const REASONS: &[(&str, &str, &str, &str)] = &[
    (
        "matrix-priorities",
        "level0_mean_of_alone_128_",
        "",
        "Sixteen of 128 connections share level 0, and wait for each other; with more harts than the host has cores also \
         for the host.",
    ),
    (
        "matrix-priorities",
        "level0_mean_of_alone_64_",
        "",
        "Eight connections share level 0 and wait for each other, and the host's two cores run all harts, the emulator's \
         network and the client, without regard to priorities; counted in instructions, with a level for each \
         connection, the goal is met.",
    ),
    (
        "scheduler",
        "spawn-ratio",
        "",
        "The best of the others is embassy, whose tasks are static: it spawns without allocation, on one thread, without \
         a handle to await; COPS spawns for less than each executor that has them.",
    ),
    (
        "scheduler",
        "",
        "-ratio",
        "The best of the others is embassy, which has one thread and no priorities in this comparison; of the executors \
         that share work among threads COPS takes the fewest instructions on one worker.",
    ),
    (
        "ring-pipes",
        "vs_threads_yield_4096_bytes",
        "",
        "With 4,096 bytes the copying of the message, which is the same for both, is most of the work.",
    ),
    (
        "ring-pipes",
        "vs_threads_yield_",
        "_4000",
        "Most of a step is the pipe's own work in the kernel, a read and a write, which threads pay as well; what the \
         coroutines save is the switch.",
    ),
    (
        "async-calls",
        "instructions_saved_64",
        "",
        "A synchronous call is so cheap here that leaving it out saves less than the records of a call in flight cost.",
    ),
    (
        "async-calls",
        "speed_vs_sync_",
        "",
        "A trap costs little here, so there is little to win; the papers' calls are made on a kernel where it costs more.",
    ),
    (
        "micro-async",
        "instructions_saved_64",
        "",
        "A synchronous invocation through the fast path is cheaper than the record of one in flight and its completion.",
    ),
    (
        "micro-async",
        "adaptive_vs_sync_256_4harts",
        "",
        "The gain is a second hart that works beside the caller, and the host had two cores for four harts.",
    ),
    (
        "micro-async",
        "adaptive_vs_sync_1",
        "",
        "With one invocation in flight both ways make the same system call, of which 98 % is the kernel's; the rest of the \
         adaptive way is the coroutine (two thirds), the outcome in its frame, and a choice of six instructions.",
    ),
    (
        "cycles",
        "async_ready_ratio",
        "",
        "A read of what is there costs 218 cycles more asynchronously, for its record, its coroutine and its entry of the          ring; the read itself has become so fast, 735 cycles, that this is more than a quarter of it.",
    ),
    (
        "cycles",
        "async_pipe_ratio",
        "",
        "Both calls of a pipe's round cost 470 cycles more asynchronously, where they cost 1,158 more when the goal was          set; the synchronous ones have become faster too, from 1,849 cycles to 1,465.",
    ),
    (
        "cycles",
        "yield_1000_cycles",
        "",
        "The blocks of 1,000 coroutines are not in a cache of 16 KiB, and the core waits for each line: 78 to 110 cycles of \
         a turn are two such waits, which nothing can be done beside.",
    ),
    (
        "cycles",
        "wake_cycles",
        "",
        "The goal is for the worst number of coroutines, 1,000, where a turn waits for lines of the block and of its slot; \
         of few coroutines it is met.",
    ),
    (
        "cycles",
        "spawn_cycles",
        "",
        "The goal is for the worst number of coroutines, 1,000, where a block is fetched twice, to be made and to run; of \
         few coroutines it is met.",
    ),
    (
        "matrix-models",
        "kcuc_vs_linux-epoll_instructions_15x15",
        "",
        "At 15x15 the product, for which all systems need the same instructions, is a large part of a request; at 1x1 \
         the goal is met.",
    ),
    (
        "matrix-models",
        "kcuc_vs_ktuc-epoll_instructions",
        "",
        "One thread with epoll and coroutines above it is as cheap as coroutines in both; what it lacks is priority.",
    ),
    (
        "matrix-models",
        "kcuc_vs_ktuc_p50_",
        "_1",
        "The polling thread of ktuc never sleeps, so the only connection need not wake a hart.",
    ),
    (
        "matrix-models",
        "kcuc_vs_ktut_p50_",
        "_1",
        "Threads that try again never sleep, so the only connection need not wake a hart.",
    ),
    (
        "matrix-models",
        "kcuc_vs_",
        "",
        "A quick run by the wall clock: all machines and the client share two cores, and counted instructions of the \
         same servers are equal or better.",
    ),
    (
        "user-interrupt",
        "",
        "_kernel_entries_wall",
        "By the host's clock an interrupt may come while its receiver is in the kernel, at a tick: the kernel delivers it.",
    ),
    (
        "workers",
        "oversubscribed_",
        "",
        "With twice as many workers as harts, on two cores of the host, workers wait for locks whose holders do not run.",
    ),
];

/// Returns the sentence that says why a figure misses its goal.
pub fn reason(bench: &str, id: &str) -> Option<&'static str> {
    let fits = |row: &&(&str, &str, &str, &str)| row.0 == bench && id.starts_with(row.1) && id.ends_with(row.2);
    REASONS.iter().find(fits).map(|row| row.3)
}

/// A fact that supports a claim of the papers.
enum Check {
    /// The goal of a figure is met, or equalled.
    Goal(&'static str),
    /// One figure is less than another.
    Less(&'static str, &'static str),
}

/// A figure of the papers and its repetition.
pub struct Claim {
    /// The paper, as in the bibliography.
    pub paper: &'static str,
    /// Its figures and tables.
    pub figure: &'static str,
    /// The benchmark that repeats it.
    pub bench: &'static str,
    /// The papers' statement.
    statement: &'static str,
    /// Our result, with figures in braces.
    result: &'static str,
    checks: &'static [Check],
}

/// The papers' figures, in the order of the experiments.
pub const CLAIMS: &[Claim] = &[
    Claim {
        paper: "[SharedScheduler]",
        figure: "figure 5",
        bench: "matrix-models",
        statement: "Coroutines in kernel and program serve more connections than threads do.",
        result: "kcuc takes {kcuc_vs_ktut_instructions_1x1_64} of ktut's and {kcuc_vs_linux-epoll_instructions_1x1_64} of \
                 Linux's instructions for a request of 64 connections; with ktuc-epoll it is level \
                 ({kcuc_vs_ktuc-epoll_instructions_1x1_64}).",
        checks: &[
            Check::Goal("kcuc_vs_kcut_instructions_1x1_64"),
            Check::Goal("kcuc_vs_ktut_instructions_1x1_64"),
            Check::Goal("kcuc_vs_ktut_throughput_64"),
            Check::Goal("kcuc_vs_linux-epoll_instructions_1x1_64"),
        ],
    },
    Claim {
        paper: "[SharedScheduler]",
        figure: "figure 6",
        bench: "matrix-priorities",
        statement: "The most important of 64 connections keep their latency when there is more to do than can be done.",
        result: "Counted on one hart they wait {level0_mean_of_alone_64_1_instructions} times as long as one alone, by the \
                 host's clock {level0_mean_of_alone_64_1_machine} times on one hart and \
                 {level0_mean_of_alone_64_2_machine} times on two.",
        checks: &[
            Check::Goal("level0_mean_of_alone_64_1_instructions"),
            Check::Goal("level0_mean_of_alone_64_1_machine"),
            Check::Goal("level0_mean_of_alone_64_2_machine"),
        ],
    },
    Claim {
        paper: "[SharedScheduler]",
        figure: "figure 7",
        bench: "priority-latency",
        statement: "Important levels have the shorter latencies, in the whole distribution.",
        result: "Half of level 0 took {level0_p50_1_harts_instructions} µs of counted time, of level 3 \
                 {level3_p50_1_harts_instructions} µs.",
        checks: &[
            Check::Less("level0_p50_1_harts_instructions", "level3_p50_1_harts_instructions"),
            Check::Less("level0_p50_2_harts_machine", "level3_p50_2_harts_machine"),
            Check::Less("level0_p50_4_harts_machine", "level3_p50_4_harts_machine"),
        ],
    },
    Claim {
        paper: "[Priority]",
        figure: "figure 5, table 1",
        bench: "ring-counter",
        statement: "4,000 coroutines that count in turn take 0.26 of the threads' time.",
        result: "They take {vs_threads_yield_4000} of the time of threads that try again, {vs_threads_4000} of threads \
                 that sleep, and {vs_pthreads_4000} of Linux's.",
        checks: &[
            Check::Goal("vs_threads_yield_4000"),
            Check::Goal("vs_threads_4000"),
            Check::Goal("vs_pthreads_4000"),
        ],
    },
    Claim {
        paper: "[Priority]",
        figure: "figures 7 to 10, tables 2 to 4",
        bench: "ring-pipes",
        statement: "A message through 4,000 pipes takes coroutines 0.32 to 0.44 of the threads' time.",
        result: "It takes {vs_threads_1_bytes_4000} of the time of threads that sleep with 1 byte, \
                 {vs_threads_4096_bytes_4000} with 4,096, and {vs_threads_yield_4096_bytes_4000} of threads that try again.",
        checks: &[
            Check::Goal("vs_threads_1_bytes_4000"),
            Check::Goal("vs_threads_4096_bytes_4000"),
            Check::Goal("vs_threads_yield_4096_bytes_4000"),
        ],
    },
    Claim {
        paper: "[Priority]",
        figure: "raw data of the ring job",
        bench: "workers",
        statement: "One worker more than harts makes the job 4.6 times as long.",
        result: "Eight workers on four harts take {oversubscribed_8_of_best} times the best time.",
        checks: &[Check::Goal("oversubscribed_4_of_best"), Check::Goal("oversubscribed_8_of_best")],
    },
    Claim {
        paper: "[COPS]",
        figure: "table \"Memory Usage\"",
        bench: "memory",
        statement: "The papers' memory holds 385 connections with coroutines and 186 with threads.",
        result: "It holds {connections_kcuc} with coroutines and {connections_ktut} with threads.",
        checks: &[Check::Goal("connections_kcuc"), Check::Less("connections_ktut", "connections_kcuc")],
    },
    Claim {
        paper: "[ReL4]",
        figure: "figures 6-5 and 6-6",
        bench: "micro-async",
        statement: "Asynchronous invocations are 2.07 times as fast as synchronous ones with many in flight on one hart, \
                    2.44 times on four.",
        result: "With 64 in flight on one hart they are {adaptive_vs_sync_64_1hart} times as fast, with 256 on four harts \
                 {adaptive_vs_sync_256_4harts} times, beside a synchronous form that is faster to begin with.",
        checks: &[
            Check::Goal("adaptive_vs_sync_64_1hart"),
            Check::Goal("adaptive_vs_sync_256_4harts"),
            Check::Goal("entries_per_call_256"),
        ],
    },
    Claim {
        paper: "[ReL4]",
        figure: "figures 6-5 and 6-6, with Unix calls",
        bench: "async-calls",
        statement: "The same gain for system calls.",
        result: "With 64 in flight on four harts the calls are {speed_vs_sync_64} times as fast, and enter the kernel \
                 {entries_per_call_1024} times for each call with 1,024.",
        checks: &[Check::Goal("speed_vs_sync_64"), Check::Goal("entries_per_call_1024")],
    },
];

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All that supports it is so.
    Holds,
    /// Some of it is.
    InPart,
    /// Nothing of it is.
    Not,
    /// It has not been measured.
    Unknown,
}

impl Verdict {
    /// The words for it, and its class in the style sheet.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Verdict::Holds => ("holds", "good"),
            Verdict::InPart => ("in part", "even"),
            Verdict::Not => ("does not hold here", "bad"),
            Verdict::Unknown => ("not measured", "even"),
        }
    }
}

impl Claim {
    /// Judges the claim by the results of its benchmark.
    pub fn verdict(&self, results: &Results) -> Verdict {
        let find = |id: &str| results.figures.iter().find(|figure| figure.id == id);
        let holds = |check: &Check| match check {
            Check::Goal(id) => Some(outcome(&results.bench, find(id)?)? != Outcome::Missed),
            Check::Less(less, more) => Some(find(less)?.value < find(more)?.value),
        };
        let known: Vec<bool> = self.checks.iter().filter_map(holds).collect();
        match known.iter().filter(|holds| **holds).count() {
            _ if known.is_empty() => Verdict::Unknown,
            count if count == known.len() => Verdict::Holds,
            0 => Verdict::Not,
            _ => Verdict::InPart,
        }
    }

    /// Statement and result as a text.
    pub fn text(&self, results: &Results) -> String {
        let mut text = self.result.to_string();
        for one in &results.figures {
            text = text.replace(&format!("{{{}}}", one.id), &figure(one.value));
        }
        // A figure that this run does not have.
        while let Some((before, rest)) = text.split_once('{') {
            let after = rest.split_once('}').map_or("", |(_, after)| after);
            text = format!("{before}–{after}");
        }
        format!("{} {text}", self.statement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: &str, value: f64, goal: f64, at_least: bool, unit: &str) -> Figure {
        let met = Some(if at_least { value >= goal } else { value <= goal });
        Figure { id: id.into(), value, unit: unit.into(), goal: Some(goal), met, at_least }
    }

    #[test]
    fn what_is_within_the_tolerance_is_equal() {
        let judge = |bench: &str, figure: &Figure| outcome(bench, figure).unwrap();
        assert_eq!(judge("matrix-models", &of("kcuc_vs_kcut_throughput_16", 0.96, 1.0, true, "times")), Outcome::Equal);
        assert_eq!(
            judge("matrix-models", &of("kcuc_vs_kcut_throughput_16", 0.94, 1.0, true, "times")),
            Outcome::Missed
        );
        assert_eq!(judge("matrix-models", &of("kcuc_vs_kcut_throughput_16", 1.04, 1.0, true, "times")), Outcome::Equal);
        // Counted figures have the smaller tolerance.
        assert_eq!(judge("matrix-models", &of("x_instructions_1", 1.02, 1.0, false, "times")), Outcome::Missed);
        assert_eq!(judge("matrix-models", &of("x_instructions_1", 1.009, 1.0, false, "times")), Outcome::Equal);
        assert_eq!(judge("peers", &of("cops_vs_linux_null_wall", 1.04, 1.0, false, "times")), Outcome::Equal);
        assert_eq!(judge("peers", &of("cops_vs_linux_null", 1.04, 1.0, false, "times")), Outcome::Missed);
        // A limit is kept however close, and nothing is within a share of zero.
        assert_eq!(judge("syscall", &of("null", 249.0, 250.0, false, "instructions")), Outcome::Met);
        assert_eq!(judge("peers", &of("wrong", 1.0, 0.0, false, "answers")), Outcome::Missed);
        assert_eq!(outcome("x", &Figure { goal: None, met: None, ..of("x", 1.0, 1.0, false, "") }), None);
    }

    #[test]
    fn the_worst_miss_is_known_for_both_kinds_of_goals() {
        assert_eq!(excess(&of("x", 6.0, 1.5, false, "")), 4.0);
        assert_eq!(excess(&of("x", 0.5, 2.0, true, "")), 4.0);
    }

    #[test]
    fn every_recorded_miss_has_its_reason() {
        for results in crate::results::of_the_source() {
            for one in &results.figures {
                let missed = outcome(&results.bench, one) == Some(Outcome::Missed);
                assert!(!missed || reason(&results.bench, &one.id).is_some(), "{}: {}", results.bench, one.id);
            }
        }
    }

    #[test]
    fn claims_name_figures_that_exist() {
        let all = crate::results::of_the_source();
        for claim in CLAIMS {
            let results = all.iter().find(|results| results.bench == claim.bench).unwrap();
            let text = claim.text(results);
            assert!(!text.contains(['{', '}', '–']), "{text}");
            for check in claim.checks {
                let ids = match check {
                    Check::Goal(id) => vec![*id],
                    Check::Less(less, more) => vec![*less, *more],
                };
                let known = |id: &&str| results.figures.iter().any(|figure| figure.id == **id);
                assert!(ids.iter().all(known), "{}: {ids:?}", claim.bench);
            }
            assert_ne!(claim.verdict(results), Verdict::Unknown);
        }
    }

    #[test]
    fn verdicts_follow_from_the_figures() {
        let claim = Claim {
            paper: "p",
            figure: "f",
            bench: "b",
            statement: "So.",
            result: "It is {a} and {c}.",
            checks: &[Check::Goal("a"), Check::Less("a", "b")],
        };
        let results = |a: f64, b: f64| Results {
            bench: "b".into(),
            figures: vec![of("a", a, 2.0, false, "us"), of("b", b, 2.0, false, "us")],
            ..Results::default()
        };
        assert_eq!(claim.verdict(&results(1.0, 2.0)), Verdict::Holds);
        assert_eq!(claim.verdict(&results(1.0, 0.5)), Verdict::InPart);
        assert_eq!(claim.verdict(&results(3.0, 0.5)), Verdict::Not);
        assert_eq!(claim.verdict(&Results::default()), Verdict::Unknown);
        assert_eq!(claim.text(&results(1.0, 2.0)), "So. It is 1 and –.");
    }
}
