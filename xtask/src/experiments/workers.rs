//! One job on 1 to 8 workers over four harts: the speed-up, and the cost of more workers than harts.
//!
//! Only the wall clock can tell: when it counts instructions, QEMU runs the harts in turn, and for so long at a time
//! that a wait for another hart takes very many instructions. Countable is the work of several workers on one hart;
//! that is the other plot.

use anyhow::{Result, bail};

use super::{Curve, Lab, Notebook, Way, seeds, series_of, words};

const HARTS: u8 = 4;

fn harts(way: Way) -> u8 {
    if way == Way::Wall { HARTS } else { 1 }
}

fn place(way: Way) -> &'static str {
    if way == Way::Wall { "4 harts" } else { "1 hart" }
}

/// Goals: the speed-up by two workers on a host with two free cores, and the cost of too many beside the best.
const SPEEDUP_GOAL: f64 = 1.8;
const OVERSUBSCRIBED_GOAL: f64 = 1.1;

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    for way in lab.ways() {
        let plot = format!("workers on {} ({})", place(way), way.name());
        // 64 coroutines, each with `turns` turns of `steps` steps.
        let (turns, steps) = if lab.quick { (400, 1000) } else { (1000, 1000) };
        let repetitions = match (way, lab.quick) {
            (Way::Instructions, _) => 1,
            (Way::Wall, true) => 2,
            (Way::Wall, false) => 3,
        };
        let command = words(&format!("workers all 64 {turns} {steps}"));
        let ours = best_of(repetitions, || Ok(series_of(lab.on_cops(&plot, &command, harts(way), way.clock())?)));
        if let Some(mut curves) = notebook.part("COPS's workers", ours) {
            let (_, points) = curves.remove(0);
            let counters = format!("contention of workers on {} ({})", place(way), way.name());
            for (id, points) in curves {
                notebook.series(&counters, &id, "for 1,000 polls", "workers", points);
            }
            if way == Way::Wall {
                figures(lab, notebook, &points);
            }
            notebook.series(&plot, "COPS", "ns", "workers", points);
        }
        if lab.linux().is_some() {
            let command = words(&format!("workers {} {steps}", 64 * turns));
            let theirs =
                best_of(repetitions, || Ok(series_of(lab.on_linux(&plot, &command, harts(way), way.clock())?)));
            for (_, points) in notebook.part("Linux's threads", theirs).unwrap_or_default() {
                notebook.series(&plot, "Linux pthreads", "ns", "workers", points);
            }
        }
        if way == Way::Wall {
            notebook.cite(&plot, "paper: ring job", "ns", "workers", &seeds::WORKERS_NS);
        }
    }
    Ok(())
}

/// Returns, for each number of workers, the quickest of several runs: other load of the host at the time is excluded.
/// The time is the first curve, and the counts of the same run are the others.
fn best_of(repetitions: usize, run: impl Fn() -> Result<Vec<Curve>>) -> Result<Vec<Curve>> {
    let mut best = run()?;
    for _ in 1..repetitions {
        let other = run()?;
        let (Some(times), Some(other_times)) = (best.first(), other.first()) else { bail!("no time was measured") };
        let places = times.1.iter().zip(&other_times.1).map(|(time, other)| other.1 < time.1);
        let better: Vec<bool> = places.collect();
        for (curve, other) in best.iter_mut().zip(other) {
            for ((point, other), _) in curve.1.iter_mut().zip(other.1).zip(&better).filter(|(_, better)| **better) {
                *point = other;
            }
        }
    }
    if best.is_empty() {
        bail!("no time was measured");
    }
    Ok(best)
}

fn figures(lab: &Lab<'_>, notebook: &mut Notebook<'_>, points: &[(f64, f64)]) {
    let at = |workers: f64| points.iter().find(|point| point.0 == workers).map_or(f64::NAN, |point| point.1);
    let best = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    notebook.at_least("speedup_2", at(1.0) / at(2.0), "times", SPEEDUP_GOAL);
    notebook.figure("speedup_4", at(1.0) / at(4.0), "times");
    notebook.at_most("oversubscribed_4_of_best", at(4.0) / best, "times", OVERSUBSCRIBED_GOAL);
    notebook.at_most("oversubscribed_8_of_best", at(8.0) / best, "times", OVERSUBSCRIBED_GOAL);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    notebook.note(format!(
        "{HARTS} harts on {cores} cores of the host: the speed-up cannot be more than {cores}{}",
        if lab.quick { ", and short runs show less" } else { "" }
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_run_of_each_number_of_workers_counts_with_its_counters() {
        let runs = [
            vec![("time".into(), vec![(1.0, 10.0), (2.0, 6.0)]), ("spins".into(), vec![(1.0, 0.0), (2.0, 5.0)])],
            vec![("time".into(), vec![(1.0, 12.0), (2.0, 5.0)]), ("spins".into(), vec![(1.0, 1.0), (2.0, 9.0)])],
        ];
        let next = std::cell::Cell::new(0);
        let best = best_of(2, || {
            let run: Vec<Curve> = runs[next.get()].clone();
            next.set(next.get() + 1);
            Ok(run)
        });
        assert_eq!(
            best.unwrap(),
            [("time".to_string(), vec![(1.0, 10.0), (2.0, 5.0)]), ("spins".into(), vec![(1.0, 0.0), (2.0, 9.0)])]
        );
        assert!(best_of(1, || Ok(Vec::new())).is_err());
    }
}
