//! `bench fairness`: whether processor time, kernel memory and the network are shared out as promised under attack.
//!
//! A scenario is a file of its own in `fairness/`: it names its goals and measures, mostly by booting the program
//! `bench` with `fairness NAME ARGUMENT...` ([`ScenarioLab::boot`]), whose part of it is a file of that name in
//! `apps/bench/src/fairness`. A scenario that drives the machine from outside, or boots the microkernel, does that in
//! its own `measure` and returns lines of the same form. Where a figure is measured on several machines, its goal is
//! for the worst of them ([`worst`]).
//!
//! A scenario that fails is a note in the results, and an error at the end; the others are measured.

mod budget_worst;
mod hoards;
mod largest_gap;
mod level0;
mod longest_stretch;
mod strangers;

use anyhow::{Context as _, Result, bail};

use crate::bench::{self, BenchName, Goal, Line};
use crate::board::{Clock, Network};
use crate::build::Products;
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::guest::{Echo, Guest};
use crate::report;
use crate::toolchain::Toolchain;

/// One attack, and the share that it must leave to the others.
pub struct Scenario {
    /// Name of the scenario, as `--scenario` takes it.
    pub name: &'static str,
    /// Goals by the id of the figure; each figure has to be reported.
    pub goals: &'static [Goal],
    /// Measures, and returns the lines of results.
    pub measure: fn(&ScenarioLab<'_>) -> Result<Vec<String>>,
}

/// All scenarios.
const SCENARIOS: &[Scenario] = &[
    budget_worst::SCENARIO,
    hoards::SCENARIO,
    largest_gap::SCENARIO,
    level0::SCENARIO,
    longest_stretch::SCENARIO,
    strangers::SCENARIO,
];

/// The means of scenarios to boot machines.
pub struct ScenarioLab<'a> {
    /// The workspace, the board, the way to show progress.
    pub context: &'a Context,
    toolchain: Toolchain,
    products: Products,
}

/// A boot of the program `bench`.
pub struct ScenarioBoot<'a> {
    /// The program's arguments after `fairness`: the scenario's name first.
    pub words: &'a [&'a str],
    /// Number of harts.
    pub harts: u8,
    /// Size of memory, with QEMU's suffixes; the board's default if `None`.
    pub memory: Option<&'a str>,
    /// The machine's clock. Instructions are the right choice unless a scenario needs the host.
    pub clock: Clock,
}

impl ScenarioLab<'_> {
    /// Boots the program `bench` and collects its lines.
    ///
    /// # Errors
    ///
    /// The machine does not end by itself, or reports a failure.
    pub fn boot(&self, boot: &ScenarioBoot<'_>) -> Result<Vec<String>> {
        let plural = if boot.harts == 1 { "" } else { "s" };
        let title = format!("Measuring {} on {} hart{plural}", boot.words.join(" "), boot.harts);
        let activity = self.context.progress.start(title);
        let mut guest = self.start(boot, Network::User)?;
        let lines = bench::collect(&mut guest, &activity)?;
        activity.clear();
        Ok(lines)
    }

    /// Starts the program `bench` for a scenario that drives the machine itself.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(&self, boot: &ScenarioBoot<'_>, network: Network) -> Result<Guest> {
        let words: Vec<String> = ["fairness"].iter().chain(boot.words).map(ToString::to_string).collect();
        let machine = cli::Machine {
            harts: Some(boot.harts),
            memory: boot.memory.map(str::to_string),
            machine: None,
            user_interrupts: None,
        };
        let line = command_line(bench::PROGRAM, &words)?;
        let mut configuration = self.context.configuration(&self.products, &machine, line);
        configuration.set_clock(boot.clock);
        if matches!(network, Network::Frames { .. }) && boot.clock == Clock::Host {
            // The emulated network lends none there.
            configuration.fix_network_address();
        }
        configuration.network = network;
        let log = self.context.log(&format!("bench-{}-{}", words.join("-"), boot.harts));
        Guest::start(&self.toolchain.qemu, &self.context.board, &configuration, &log, Echo::LogOnly)
    }
}

/// Formats a line of results.
pub fn line(id: &str, value: f64, unit: &str) -> String {
    serde_json::json!({ "id": id, "value": value, "unit": unit }).to_string()
}

/// Returns the line of a figure that is the largest of those that other lines report under `id` and a suffix.
///
/// # Errors
///
/// There is none.
pub fn worst(id: &str, lines: &[String]) -> Result<String> {
    let mut largest: Option<(f64, String)> = None;
    for line in lines {
        if let Line::Figure { id: other, value, unit } = serde_json::from_str(line)?
            && other.strip_prefix(id).is_some_and(|rest| rest.starts_with('_'))
            && largest.as_ref().is_none_or(|(most, _)| value > *most)
        {
            largest = Some((value, unit));
        }
    }
    let (value, unit) = largest.with_context(|| format!("no machine reported {id}"))?;
    Ok(line(id, value, &unit))
}

/// Measures all scenarios, or the requested one.
///
/// # Errors
///
/// One of them could not be measured; the figures of the others are kept and shown.
pub fn run(context: &Context, arguments: &cli::Bench) -> Result<()> {
    let wanted = |scenario: &&Scenario| arguments.scenario.as_ref().is_none_or(|name| name == scenario.name);
    let scenarios: Vec<&Scenario> = SCENARIOS.iter().filter(wanted).collect();
    if scenarios.is_empty() {
        let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        bail!("there is no such scenario; there are: {}", names.join(", "));
    }
    let (toolchain, products) = context.build(Need::Boot)?;
    let lab = ScenarioLab { context, toolchain, products };
    let mut lines = Vec::new();
    let mut goals = Vec::new();
    let mut notes = Vec::new();
    for scenario in scenarios {
        let measured = (scenario.measure)(&lab).and_then(|lines| {
            bench::figures(&lines, scenario.goals, &[])?;
            Ok(lines)
        });
        match measured {
            Ok(measured) => {
                lines.extend(measured);
                goals.extend_from_slice(scenario.goals);
            }
            Err(error) => notes.push(format!("{} could not be measured: {error:#}", scenario.name)),
        }
    }
    let (figures, series) = bench::figures(&lines, &goals, &[])?;
    let machine =
        format!("{} {}, {}", context.board.name, context.board.defaults.machine, lab.toolchain.qemu_version());
    let commit = report::commit(&context.workspace.root);
    let failed = notes.len();
    let results = bench::Results { bench: BenchName::Fairness.name(), commit, machine, figures, series, notes };
    bench::keep_and_show(context, &results, arguments)?;
    if failed > 0 {
        bail!("{failed} of the scenarios could not be measured");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_the_largest_of_its_kind() {
        let lines = [line("gap_1", 3.0, "ms"), line("gap_4", 5.0, "ms"), line("gaps_4", 9.0, "ms")];
        assert_eq!(worst("gap", &lines).unwrap(), line("gap", 5.0, "ms"));
        assert!(worst("ga", &lines).is_err());
    }

    #[test]
    fn scenarios_and_their_goals_have_names_of_their_own() {
        let unique = |names: Vec<&str>| {
            let mut sorted = names.clone();
            sorted.sort_unstable();
            sorted.dedup();
            sorted.len() == names.len()
        };
        assert!(unique(SCENARIOS.iter().map(|scenario| scenario.name).collect()));
        assert!(unique(SCENARIOS.iter().flat_map(|scenario| scenario.goals).map(|goal| goal.0).collect()));
        assert!(SCENARIOS.iter().all(|scenario| !scenario.goals.is_empty()));
    }
}
