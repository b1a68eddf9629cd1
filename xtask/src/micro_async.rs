//! Asynchronous invocations of the microkernel: the measurements of the root task `micro-async`, with the papers'
//! figures beside them.
//!
//! It is booted three times: with one hart and four by the host's time, as in the papers, and with one hart counting
//! instructions, where only the work counts. A hart that works beside the program saves time and no instructions.

use anyhow::{Context as _, Result};

use crate::bench::{Goal, Line, Series, collect};
use crate::board::{Clock, Variant};
use crate::build::{Harts, Variation};
use crate::cli;
use crate::context::Context;
use crate::emulator;
use crate::guest::{Echo, Guest};

/// The root task that measures.
const PROGRAM: &str = "micro-async";

/// Goals: largest good values.
pub const GOALS: &[Goal] = &[("entries_per_call_256", 0.001)];
/// Goals: least good values.
pub const LEAST_GOALS: &[Goal] = &[
    ("adaptive_vs_sync_1", 1.0),
    ("adaptive_vs_sync_64_1hart", 2.2),
    ("adaptive_vs_sync_256_4harts", 3.0),
    // The papers measured no instructions. A call through memory buys its speed with traps, not with fewer of them.
    ("instructions_saved_64", 0.9),
    ("micro_async", 1.0),
];

/// The boots: number of harts, and the machine's clock.
const BOOTS: [(u8, Clock); 3] = [(1, Clock::Host), (4, Clock::Host), (1, Clock::Instructions)];

/// A series of the papers: its name, its unit, and its points.
type Cited = (&'static str, &'static str, &'static [(f64, f64)]);

/// Beginning of the names of the papers' gains; the rest is the machine's name.
const PAPER_SPEED: &str = "paper-speed-";

/// The papers' results: how many times as fast as synchronous calls, and kernel entries for each call. The text has the
/// first gain for few frames, and says that the last one stays.
const PAPERS: [Cited; 3] = [
    (
        "paper-speed-1-hart",
        "times",
        &[
            (1.0, 0.1749),
            (2.0, 0.1749),
            (16.0, 0.8147),
            (128.0, 1.8571),
            (256.0, 2.065),
            (512.0, 2.065),
            (1024.0, 2.065),
        ],
    ),
    (
        "paper-speed-4-harts",
        "times",
        &[
            (1.0, 0.1749),
            (2.0, 0.1749),
            (16.0, 0.8147),
            (64.0, 1.3588),
            (128.0, 2.3237),
            (256.0, 2.4352),
            (512.0, 2.4352),
            (1024.0, 2.4352),
        ],
    ),
    ("paper-entries-4-harts", "entries", &[(1.0, 0.525), (256.0, 0.009_375)]),
];

/// Boots the microkernel with the measuring program on a machine, and collects its lines.
///
/// # Errors
///
/// The build fails, or the machine does not come to its end.
pub fn measure(context: &Context, machine: Option<Variant>) -> Result<(Vec<String>, String)> {
    let variant = machine.unwrap_or(context.board.defaults.machine);
    let mut all = Vec::new();
    let mut machines = Vec::new();
    for (harts, clock) in BOOTS {
        let kind = if harts == 1 { Harts::One } else { Harts::Several };
        let (mut toolchain, mut products) = context.build_microkernel(Variation::new(kind))?;
        if clock == Clock::Host {
            toolchain.qemu = emulator::of_benchmarks(context, &toolchain.qemu);
        }
        products.initramfs = context.workspace.products().join(PROGRAM);
        let machine = cli::Machine { harts: Some(harts), memory: None, machine: Some(variant), user_interrupts: None };
        let mut configuration = context.configuration(&products, &machine, String::new());
        configuration.clock = clock;
        let activity = context.progress.start(format!("Measuring on {harts} of the machine's harts"));
        let log = context.log(&format!("{PROGRAM}-{harts}"));
        let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)?;
        let lines = collect(&mut guest, &activity)?;
        activity.clear();
        machines.push(toolchain.describe(&context.board, &configuration));
        for line in lines {
            let line = serde_json::from_str(&line).with_context(|| format!("this is no series: {line}"))?;
            if let Line::Series(mut series) = line {
                if clock == Clock::Instructions {
                    series.id += "-instructions";
                    series.unit = series.unit.replace("ns", "instructions");
                } else {
                    series.id += if harts == 1 { "-1-hart" } else { "-4-harts" };
                }
                all.push(series);
            }
        }
    }
    let mut lines: Vec<String> = figures(&all)
        .into_iter()
        .map(|(id, value, unit)| serde_json::json!({ "id": id, "value": value, "unit": unit }).to_string())
        .collect();
    let papers = PAPERS.iter().map(|(id, unit, points)| Series {
        id: (*id).into(),
        unit: (*unit).into(),
        x_unit: "frames".into(),
        points: points.to_vec(),
        ranges: Vec::new(),
        plot: None,
        cited: true,
    });
    for series in all.into_iter().chain(papers) {
        lines.push(serde_json::to_string(&series)?);
    }
    Ok((lines, machines.join("; ")))
}

/// Returns the figures that have goals. The last is the least quotient of our gain and the papers', over all points of
/// theirs: how many times as fast as synchronous calls, which are faster here.
fn figures(series: &[Series]) -> Vec<(&'static str, f64, &'static str)> {
    let at = |id: &str, frames: f64| {
        let found = series.iter().find(|series| series.id == id);
        found.and_then(|series| series.points.iter().find(|point| point.0 == frames)).map_or(f64::NAN, |point| point.1)
    };
    let speed = |machine: &str, frames: f64| {
        at(&format!("synchronous-{machine}"), frames) / at(&format!("adaptive-{machine}"), frames)
    };
    let papers = PAPERS.iter().filter_map(|(id, _, points)| Some((id.strip_prefix(PAPER_SPEED)?, points)));
    let quotients = papers.flat_map(|(machine, points)| points.iter().map(move |point| (machine, point)));
    let quotients = quotients.map(|(machine, (frames, theirs))| speed(machine, *frames) / theirs);
    // A point that is missing is no number, and neither is the least then.
    let least = |least: f64, one: f64| if one < least || one.is_nan() { one } else { least };
    vec![
        ("adaptive_vs_sync_1", speed("1-hart", 1.0), "times"),
        ("adaptive_vs_sync_64_1hart", speed("1-hart", 64.0), "times"),
        ("adaptive_vs_sync_256_4harts", speed("4-harts", 256.0), "times"),
        ("instructions_saved_64", speed("instructions", 64.0), "times"),
        ("entries_per_call_256", at("adaptive-entries-4-harts", 256.0), "system calls"),
        ("micro_async", quotients.fold(f64::INFINITY, least), "times"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_ratios_of_the_right_points() {
        let series = |id: &str, value: f64| Series {
            id: id.into(),
            unit: "ns".into(),
            x_unit: "frames".into(),
            points: [1.0, 2.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0].map(|frames| (frames, value)).to_vec(),
            ranges: Vec::new(),
            plot: None,
            cited: false,
        };
        let all = ["1-hart", "4-harts", "instructions"]
            .iter()
            .zip([2.0, 4.0, 8.0])
            .flat_map(|(machine, times)| {
                [series(&format!("synchronous-{machine}"), times), series(&format!("adaptive-{machine}"), 1.0)]
            })
            .chain([series("adaptive-entries-4-harts", 0.25)])
            .collect::<Vec<_>>();
        let values: Vec<_> = figures(&all).into_iter().map(|(_, value, _)| value).collect();
        assert_eq!(values, [2.0, 2.0, 4.0, 8.0, 0.25, 2.0 / 2.065]);
        assert!(figures(&all[..2]).last().is_some_and(|(_, value, _)| value.is_nan()), "no point may be missing");
        let goals: Vec<_> = GOALS.iter().chain(LEAST_GOALS).map(|(id, _)| *id).collect();
        assert!(figures(&all).iter().all(|(id, ..)| goals.contains(id)));
    }
}
