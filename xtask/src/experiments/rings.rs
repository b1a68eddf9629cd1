//! Experiments A and B: coroutines beside threads.
//!
//! On COPS, coroutines with one worker, and threads; on Linux, POSIX threads that try again after `sched_yield` as the
//! papers' do, POSIX threads that block, and for B one thread with epoll. All on one hart, because a ring has one thing
//! to do at a time. The time includes making and ending the tasks.

use anyhow::Result;

use super::{Lab, Notebook, Way, numbers, seeds, series_of, words};

/// Goals of the ratio of coroutines to threads that try again, and to threads that block, at the largest ring.
const YIELDING_GOAL: f64 = 0.1;
const WAITING_GOAL: f64 = 0.6;

/// Numbers of tasks.
fn tasks(lab: &Lab<'_>) -> Vec<usize> {
    if lab.quick { vec![2, 100, 1000, 4000] } else { vec![2, 10, 50, 100, 200, 500, 1000, 1500, 2000, 3000, 4000] }
}

/// Returns the milliseconds of the machine's time that one point may take; larger rings are left out. The papers'
/// threads, which try again, cost the square of their number.
fn limit_ms(lab: &Lab<'_>) -> u32 {
    if lab.quick { 500 } else { 60_000 }
}

/// The variants of COPS's program and of Linux's.
struct Variants {
    cops: &'static [&'static str],
    linux: &'static [&'static str],
}

/// Measures experiment A.
pub fn counter(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    let variants = Variants {
        cops: &["coroutine-yield", "coroutine-wake", "thread-wait", "thread-yield"],
        linux: &["wait", "yield"],
    };
    for way in lab.ways() {
        let plot = format!("ring-counter ({})", way.name());
        measure(lab, notebook, &plot, way, "ring-counter", "", &variants);
        let coroutines = [(4000.0, seeds::COUNTER_NS)];
        let threads = [(4000.0, seeds::COUNTER_NS / seeds::COUNTER_SHARE)];
        notebook.cite(&plot, "paper: coroutines", "ns", "tasks", &coroutines);
        notebook.cite(&plot, "paper: threads", "ns", "tasks", &threads);
        if way == Way::Instructions {
            ratios(notebook, &plot, "COPS coroutine-yield", "", lab);
        }
    }
    Ok(())
}

/// Measures experiment B.
pub fn pipes(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    let variants = Variants {
        cops: &["coroutine", "coroutine-priority", "thread-wait", "thread-yield"],
        linux: &["wait", "epoll", "yield"],
    };
    for way in lab.ways() {
        for (bytes, paper_ns) in seeds::PIPES_NS {
            // In a hurry only the smallest and the largest message are measured.
            if lab.quick && (bytes == 256 || (way == Way::Wall && bytes != 1)) {
                continue;
            }
            let plot = format!("ring-pipes, {bytes} bytes ({})", way.name());
            measure(lab, notebook, &plot, way, "ring-pipes", &format!(" {bytes}"), &variants);
            notebook.cite(&plot, "paper: coroutines", "ns", "tasks", &[(4000.0, paper_ns)]);
            let share = if bytes == 4096 { seeds::PIPES_SHARE.1 } else { seeds::PIPES_SHARE.0 };
            notebook.cite(&plot, "paper: threads, about", "ns", "tasks", &[(4000.0, paper_ns / share)]);
            if way == Way::Instructions {
                ratios(notebook, &plot, "COPS coroutine-priority", &format!("_{bytes}_bytes"), lab);
            }
        }
    }
    Ok(())
}

fn measure(
    lab: &Lab<'_>,
    notebook: &mut Notebook<'_>,
    plot: &str,
    way: Way,
    name: &str,
    arguments: &str,
    variants: &Variants,
) {
    let command = |variants: &[&str]| {
        let (limit, tasks) = (limit_ms(lab), numbers(&tasks(lab)));
        words(&format!("{name} {}{arguments} {limit} {tasks}", variants.join(",")))
    };
    let measured = lab.on_cops(plot, &command(variants.cops), 1, way.clock());
    add(notebook, plot, "COPS", measured.map(series_of));
    if lab.linux().is_some() {
        let measured = lab.on_linux(plot, &command(variants.linux), 1, way.clock());
        add(notebook, plot, "Linux", measured.map(series_of));
    }
}

fn add(notebook: &mut Notebook<'_>, plot: &str, system: &str, measured: Result<Vec<super::Curve>>) {
    for (id, points) in notebook.part(&format!("{plot}: {system}"), measured).unwrap_or_default() {
        notebook.series(plot, &format!("{system} {id}"), "ns", "tasks", points);
    }
}

/// Divides coroutines' time by threads', at each number of tasks that both have.
fn ratios(notebook: &mut Notebook<'_>, plot: &str, ours: &str, suffix: &str, lab: &Lab<'_>) {
    let rivals = [
        ("vs_threads_yield", "COPS thread-yield", YIELDING_GOAL),
        ("vs_threads", "COPS thread-wait", WAITING_GOAL),
        ("vs_pthreads_yield", "Linux yield", YIELDING_GOAL),
        ("vs_pthreads", "Linux wait", WAITING_GOAL),
    ];
    for (id, rival, last_goal) in rivals {
        for count in tasks(lab) {
            let x = count as f64;
            let (Some(our), Some(their)) = (notebook.value(plot, ours, x), notebook.value(plot, rival, x)) else {
                continue;
            };
            let goal = if count >= 4000 { last_goal } else { 1.0 };
            notebook.at_most(&format!("{id}{suffix}_{count}"), our / their, "times", goal);
        }
    }
}
