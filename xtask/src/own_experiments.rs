//! `bench run FILE`: an experiment of the user's own, from a TOML file, without a line of Rust in this program.
//!
//! The file names a program, which prints lines of results as those of the benchmarks do, its arguments, the machines
//! on which it runs, and the policies of the scheduler to compare:
//!
//! ```toml
//! name = "my-yields"
//! program = "bench"              # of the tree, or a path as for `run`
//! arguments = ["switch"]         # `{tasks}` would stand for a value of the parameter `tasks`
//! harts = [1]
//! clock = "instructions"         # or "host"
//!
//! [[policies]]
//! name = "strict"
//! scheduling = "strict"
//!
//! [goals]
//! yield = { at_most = 100 }
//! ```
//!
//! Each combination of policy, number of harts and parameters is a boot. Figures carry their combination in brackets;
//! the first list with more than one number also becomes the axis of a plot, with a line for each combination of the
//! rest.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;

use crate::bench::{self, BenchName, Figure, Line, Results, Series};
use crate::board::{Clock, Variant};
use crate::cli;
use crate::context::{Context, command_line};
use crate::guest::{Echo, Guest};
use crate::own;
use crate::report;

/// An experiment, as its file describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Description {
    name: String,
    program: String,
    #[serde(default)]
    arguments: Vec<String>,
    #[serde(default = "one_hart")]
    harts: Vec<u8>,
    #[serde(default)]
    clock: ClockName,
    machine: Option<Variant>,
    memory: Option<String>,
    #[serde(default)]
    policies: Vec<Policy>,
    #[serde(default)]
    parameters: BTreeMap<String, Vec<Parameter>>,
    #[serde(default)]
    goals: BTreeMap<String, Threshold>,
}

fn one_hart() -> Vec<u8> {
    vec![1]
}

/// The course of the machine's time.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ClockName {
    #[default]
    Instructions,
    Host,
}

/// A value of a parameter.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Parameter {
    Whole(i64),
    Fraction(f64),
    Text(String),
}

impl Parameter {
    fn number(&self) -> Option<f64> {
        match self {
            Parameter::Whole(number) => Some(*number as f64),
            Parameter::Fraction(number) => Some(*number),
            Parameter::Text(_) => None,
        }
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parameter::Whole(number) => number.fmt(formatter),
            Parameter::Fraction(number) => number.fmt(formatter),
            Parameter::Text(text) => text.fmt(formatter),
        }
    }
}

/// Choices of the scheduler, as the options of `run` of the same names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Policy {
    name: String,
    scheduling: Option<String>,
    starvation_bound: Option<u64>,
    budget: Option<u8>,
    slice: Option<u16>,
}

impl Policy {
    fn choices(&self) -> Result<cli::Scheduling> {
        let mode = self.scheduling.as_deref().map(|mode| {
            let modes = cli::Mode::value_variants().iter().filter_map(|mode| mode.to_possible_value());
            let names: Vec<_> = modes.map(|mode| mode.get_name().to_string()).collect();
            cli::Mode::from_str(mode, false)
                .map_err(|_| anyhow::anyhow!("`{mode}` is no mode of scheduling; there are: {}", names.join(", ")))
        });
        if self.budget.is_some_and(|budget| !(1..=100).contains(&budget)) {
            bail!("the budget of the policy `{}` is not between 1 and 100 percent", self.name);
        }
        if self.slice.is_some_and(|slice| !cli::SLICES_MS.contains(&slice.into())) {
            let (least, most) = (cli::SLICES_MS.start(), cli::SLICES_MS.end());
            bail!("the slice of the policy `{}` is not between {least} and {most} milliseconds", self.name);
        }
        Ok(cli::Scheduling {
            scheduling: mode.transpose()?,
            starvation_bound: self.starvation_bound,
            budget: self.budget,
            slice: self.slice,
        })
    }
}

/// The largest good value of a figure, or the least.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Threshold {
    AtMost(f64),
    AtLeast(f64),
}

/// One boot.
#[derive(Debug)]
struct Combination {
    policy: Policy,
    harts: u8,
    arguments: Vec<String>,
    /// The values that differ between boots, in words.
    differences: Vec<String>,
    /// Place on the axis, if there is one.
    place: Option<f64>,
}

impl Combination {
    fn label(&self) -> String {
        self.differences.join(", ")
    }
}

impl Description {
    fn read(text: &str) -> Result<Description> {
        let mut description: Description = toml::from_str(text)?;
        let is_word = |name: &str| {
            !name.is_empty()
                && name.chars().all(|letter| letter.is_ascii_lowercase() || "-_0123456789".contains(letter))
        };
        if !is_word(&description.name) {
            bail!("`{}` cannot be the name of an experiment: take small letters, digits and `-`", description.name);
        }
        if BenchName::from_str(&description.name, false).is_ok() {
            bail!("`{}` is the name of a benchmark, whose results it would replace", description.name);
        }
        if description.harts.is_empty() || description.harts.iter().any(|harts| !(1..=8).contains(harts)) {
            bail!("`harts` lists numbers from 1 to 8");
        }
        if let Some((name, _)) = description.parameters.iter().find(|(_, values)| values.is_empty()) {
            bail!("the parameter `{name}` has no values");
        }
        let used = |name: &str| description.arguments.iter().any(|argument| argument.contains(&format!("{{{name}}}")));
        if let Some(name) = description.parameters.keys().find(|name| !used(name)) {
            bail!("no argument contains `{{{name}}}`, so the parameter `{name}` changes nothing");
        }
        if let Some(memory) = &description.memory {
            crate::board::memory_size(memory).map_err(anyhow::Error::msg)?;
        }
        if description.policies.is_empty() {
            description.policies.push(Policy::default());
        }
        for policy in &description.policies {
            policy.choices()?;
        }
        Ok(description)
    }

    /// Returns the unit of the axis: the first list with several numbers, parameters before harts.
    fn axis(&self) -> Option<&str> {
        let is_number = |value: &Parameter| value.number().is_some();
        let several = |(_, values): &(&String, &Vec<Parameter>)| values.len() > 1 && values.iter().all(is_number);
        let parameter = self.parameters.iter().find(several).map(|(name, _)| name.as_str());
        parameter.or((self.harts.len() > 1).then_some("harts"))
    }

    /// Returns the boots, those of one policy and machine after the other.
    fn runs(&self) -> Vec<Combination> {
        let axis = self.axis();
        let mut runs = Vec::new();
        for policy in &self.policies {
            for &harts in &self.harts {
                let mut begin = Combination {
                    policy: policy.clone(),
                    harts,
                    arguments: self.arguments.clone(),
                    differences: Vec::new(),
                    place: None,
                };
                if self.policies.len() > 1 {
                    begin.differences.push(policy.name.clone());
                }
                match axis {
                    Some("harts") => begin.place = Some(harts.into()),
                    _ if self.harts.len() > 1 => begin.differences.push(format!("{harts} harts")),
                    _ => {}
                }
                let mut combinations = vec![begin];
                for (name, values) in &self.parameters {
                    combinations = combinations
                        .into_iter()
                        .flat_map(|run| values.iter().map(move |value| run.with(name, value, axis, values.len())))
                        .collect();
                }
                runs.extend(combinations);
            }
        }
        runs
    }
}

impl Combination {
    /// Returns the run with a parameter's value in its arguments.
    fn with(&self, name: &str, value: &Parameter, axis: Option<&str>, choices: usize) -> Combination {
        let text = value.to_string();
        let (mark, mut differences) = (format!("{{{name}}}"), self.differences.clone());
        let place = if axis == Some(name) { value.number() } else { self.place };
        if axis != Some(name) && choices > 1 {
            differences.push(format!("{name} {text}"));
        }
        let arguments = self.arguments.iter().map(|argument| argument.replace(&mark, &text)).collect();
        Combination { policy: self.policy.clone(), harts: self.harts, arguments, differences, place }
    }
}

/// The results of all boots in the making.
#[derive(Default)]
struct Collected {
    figures: Vec<Figure>,
    series: Vec<Series>,
}

impl Collected {
    /// Adds what one boot has printed.
    fn add(&mut self, description: &Description, run: &Combination, lines: &[String]) -> Result<()> {
        let axis = description.axis();
        for line in lines {
            let line = serde_json::from_str(line)
                .with_context(|| format!("the program printed a line that is no result: {line}"))?;
            match line {
                Line::Figure { id, value, unit } => self.add_figure(description, run, axis, &id, value, &unit),
                Line::Series(mut series) => {
                    let mut label = run.differences.clone();
                    label.extend(run.place.zip(axis).map(|(place, axis)| format!("{axis} {place}")));
                    if !label.is_empty() {
                        series.plot = Some(series.plot.take().unwrap_or_else(|| series.id.clone()));
                        series.id = format!("{} ({})", series.id, label.join(", "));
                    }
                    self.series.push(series);
                }
            }
        }
        Ok(())
    }

    fn add_figure(
        &mut self,
        description: &Description,
        run: &Combination,
        axis: Option<&str>,
        id: &str,
        value: f64,
        unit: &str,
    ) {
        let mut label = run.differences.clone();
        if let Some((place, axis)) = run.place.zip(axis) {
            label.push(format!("{axis} {place}"));
            let line = if run.differences.is_empty() { id.to_string() } else { run.label() };
            let plot = Some(id.to_string());
            match self.series.iter_mut().find(|series| series.plot == plot && series.id == line) {
                Some(series) => series.points.push((place, value)),
                None => self.series.push(Series {
                    id: line,
                    unit: unit.into(),
                    x_unit: axis.into(),
                    points: vec![(place, value)],
                    ranges: Vec::new(),
                    plot,
                    cited: false,
                }),
            }
        }
        let goal = description.goals.get(id);
        let (limit, at_least) = match goal {
            Some(Threshold::AtMost(limit)) => (Some(*limit), false),
            Some(Threshold::AtLeast(limit)) => (Some(*limit), true),
            None => (None, false),
        };
        let met = limit.map(|limit| if at_least { value >= limit } else { value <= limit });
        let id = if label.is_empty() { id.to_string() } else { format!("{id} ({})", label.join(", ")) };
        self.figures.push(Figure { id, value, unit: unit.into(), goal: limit, met, at_least });
    }

    /// Checks that every goal is of a figure that was reported.
    fn check(&self, description: &Description) -> Result<()> {
        let is_reported = |goal: &String| {
            self.figures.iter().any(|figure| figure.id == *goal || figure.id.starts_with(&format!("{goal} (")))
        };
        let missing: Vec<_> = description.goals.keys().filter(|goal| !is_reported(goal)).cloned().collect();
        if !missing.is_empty() {
            bail!("the program did not report: {}", missing.join(", "));
        }
        Ok(())
    }
}

/// Runs the experiment of a file, shows its results and keeps them with those of the benchmarks.
///
/// # Errors
///
/// The file cannot be read or describes no experiment, the program cannot be built or fails, or a figure with a goal is
/// not reported.
pub fn run(context: &Context, file: &Path, arguments: &cli::Bench) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let description =
        Description::read(&text).with_context(|| format!("{} describes no experiment", file.display()))?;
    if arguments.record {
        bail!("--record keeps the results of the tree's own benchmarks; --json FILE writes these where you like");
    }
    let (toolchain, products, name) = own::prepare(context, &description.program, &[])?;
    let clock = match description.clock {
        ClockName::Instructions => Clock::Instructions,
        ClockName::Host => Clock::Host,
    };
    let mut collected = Collected::default();
    let mut described = String::new();
    let runs = description.runs();
    for (number, run) in runs.iter().enumerate() {
        let machine = cli::Machine {
            harts: Some(run.harts),
            memory: description.memory.clone(),
            machine: arguments.machine.or(description.machine),
            user_interrupts: arguments.user_interrupts,
        };
        let words = run.policy.choices()?.words() + &command_line(&name, &run.arguments)?;
        let mut configuration = context.configuration(&products, &machine, words);
        configuration.set_clock(clock);
        let log = context.log(&format!("bench-{}-{}", description.name, number + 1));
        let activity = context.progress.start(format!("Combination {} of {}: {}", number + 1, runs.len(), run.label()));
        let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)?;
        let lines = bench::collect(&mut guest, &activity)?;
        activity.clear();
        collected.add(&description, run, &lines)?;
        described = format!("{} {}, {}", context.board.name, configuration.machine, toolchain.qemu_version());
    }
    collected.check(&description)?;
    let results = Results {
        bench: description.name,
        commit: report::commit(&context.workspace.root),
        machine: described,
        figures: collected.figures,
        series: collected.series,
        notes: Vec::new(),
    };
    bench::keep_and_show(context, &results, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        name = "mine"
        program = "bench"
        arguments = ["yield", "--tasks={tasks}", "{kind}"]
        harts = [1, 4]
        clock = "host"
        machine = "plic"
        memory = "512M"
        parameters = { tasks = [1, 16], kind = ["a b"] }
        goals = { yield = { at_most = 100 }, speed = { at_least = 2.5 } }
        [[policies]]
        name = "strict"
        scheduling = "strict"
        starvation-bound = 20
        slice = 5
        [[policies]]
        name = "fair"
        budget = 50
    "#;

    #[test]
    fn files_that_describe_no_experiment_are_refused() {
        let refused = |text: &str, reason: &str| {
            let error = format!("{:#}", Description::read(text).unwrap_err());
            assert!(error.contains(reason), "{text}: {error}");
        };
        let with = |more: &str| format!("name = \"mine\"\nprogram = \"bench\"\n{more}");
        refused("name = \"mine\"", "program");
        refused("name = \"Mine!\"\nprogram = \"bench\"", "cannot be the name");
        refused("name = \"switch\"\nprogram = \"bench\"", "name of a benchmark");
        refused(&with("hart = [1]"), "unknown field");
        refused(&with("harts = []"), "numbers from 1 to 8");
        refused(&with("harts = [9]"), "numbers from 1 to 8");
        refused(&with("memory = \"much\""), "give a number");
        refused(&with("parameters = { n = [] }"), "no values");
        refused(&with("parameters = { n = [1] }"), "changes nothing");
        refused(&with("[[policies]]\nname = \"x\"\nscheduling = \"lucky\""), "no mode of scheduling");
        refused(&with("[[policies]]\nname = \"x\"\nbudget = 0"), "between 1 and 100");
        refused(&with("[[policies]]\nname = \"x\"\nslice = 0"), "between 1 and 1000");
        refused(&with("clock = \"sun\""), "sun");
    }

    #[test]
    fn the_example_of_the_book_describes_an_experiment() {
        let example = include_str!("../../bench/examples/policies.toml");
        let description = Description::read(example).unwrap();
        let labels: Vec<_> = description.runs().iter().map(Combination::label).collect();
        assert_eq!(labels, ["relaxed", "strict"]);
        // The book shows it whole, but for the first line, which says how to run it.
        let shown = example.split_once('\n').unwrap().1;
        assert!(include_str!("../../docs/book/measuring.md").contains(shown));
    }

    #[test]
    fn every_combination_is_a_boot() {
        let description = Description::read(WHOLE).unwrap();
        assert_eq!(description.axis(), Some("tasks"));
        let runs = description.runs();
        let seen: Vec<_> = runs.iter().map(|run| (run.label(), run.harts, run.place)).collect();
        let mut expected = Vec::new();
        for policy in ["strict", "fair"] {
            for harts in [1, 4] {
                for tasks in [1.0, 16.0] {
                    expected.push((format!("{policy}, {harts} harts"), harts, Some(tasks)));
                }
            }
        }
        assert_eq!(seen, expected);
        assert_eq!(runs[1].arguments, ["yield", "--tasks=16", "a b"]);
        assert_eq!(runs[0].policy.choices().unwrap().words(), "scheduling=strict starvation-bound=20 slice=5 ");
        assert_eq!(runs[7].policy.choices().unwrap().words(), "budget=50 ");
        let plain = Description::read("name = \"mine\"\nprogram = \"hello\"").unwrap();
        let runs = plain.runs();
        assert_eq!((runs.len(), runs[0].label(), runs[0].harts, plain.axis()), (1, String::new(), 1, None));
    }

    #[test]
    fn figures_have_their_combination_and_become_lines_of_a_plot() {
        let description = Description::read(WHOLE).unwrap();
        let mut collected = Collected::default();
        for (number, run) in description.runs().iter().enumerate() {
            let lines = [
                format!(r#"{{"id": "yield", "value": {}, "unit": "instructions"}}"#, 98 + number),
                r#"{"series": "wake", "unit": "ns", "x_unit": "tasks", "points": [[1, 2]]}"#.into(),
            ];
            collected.add(&description, run, &lines).unwrap();
        }
        let third = &collected.figures[3];
        assert_eq!(
            (third.id.as_str(), third.value, third.met),
            ("yield (strict, 4 harts, tasks 16)", 101.0, Some(false))
        );
        assert_eq!(collected.figures[2].met, Some(true));
        let lines: Vec<_> = collected.series.iter().filter(|series| series.plot.as_deref() == Some("yield")).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!((lines[1].id.as_str(), &lines[1].points), ("strict, 4 harts", &vec![(1.0, 100.0), (16.0, 101.0)]));
        assert!(collected.series.iter().any(|series| series.id == "wake (fair, 1 harts, tasks 1)"));
        // `speed` has a goal and was not reported.
        assert!(collected.check(&description).unwrap_err().to_string().contains("speed"));
        assert!(collected.add(&description, &description.runs()[0], &["nonsense".into()]).is_err());
    }
}
