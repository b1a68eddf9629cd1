//! Asynchronous IPC beside synchronous IPC on the microkernel.
//!
//! The root task `ipc-bench` measures nanoseconds of its machine's clock for each call. It is booted three times: on
//! one hart with the emulator counting instructions, each a nanosecond; on one hart by the wall clock; and on two,
//! where client and server run at the same time. Where the machine `uintc` has been built, its instructions are counted
//! too: there signals without the kernel are instructions instead of stores.

use anyhow::{Context as _, Result};

use crate::bench::{Goal, Line, collect};
use crate::board::{Clock, Variant};
use crate::cli;
use crate::context::Context;
use crate::emulator;
use crate::guest::{Echo, Guest};

/// The root task that measures.
const PROGRAM: &str = "ipc-bench";

/// The boots: the prefix of their figures, the machine, the number of harts, and the machine's clock.
const BOOTS: [(&str, Variant, u8, Clock); 4] = [
    ("instructions", Variant::Aia, 1, Clock::Instructions),
    (UINTC, Variant::Uintc, 1, Clock::Instructions),
    ("one-hart", Variant::Aia, 1, Clock::Host),
    ("two-harts", Variant::Aia, 2, Clock::Host),
];
/// The prefix of the boot in which the signals without the kernel are instructions. Only their figures are kept.
const UINTC: &str = "uintc";
/// The program's names of these figures, for signals that are stores.
const BY_STORES: &str = "by-stores";
const VIRTUALISED: &str = "system-call-virtualised";

/// Goals: how many times as quick as a synchronous call through the fastpath an asynchronous one should be.
pub const LEAST_GOALS: &[Goal] = &[
    ("two-harts-speed-1", 1.0),
    ("two-harts-speed-32", 3.0),
    ("one-hart-speed-32", 3.0),
    ("instructions-speed-32", 1.0),
];

/// Goals: the most instructions of an asynchronous call, with one in flight and with 32; and how many times the
/// instructions of another thread's system call a virtualised thread's may take.
pub const GOALS: &[Goal] =
    &[("instructions-asynchronous-1", 2_500.0), ("instructions-asynchronous-32", 585.0), ("imsic_entry_ratio", 1.3)];

/// The goal of the machine `uintc`: how many times the instructions of another thread's system call an armed thread's
/// may take.
pub const GOALS_WHERE_BUILT: &[Goal] = &[("uintc_entry_ratio", 1.15)];

/// Boots the program and collects its lines, with the quotients that have goals.
///
/// # Errors
///
/// The build fails, or a machine does not come to its end.
pub fn measure(context: &Context) -> Result<(Vec<String>, String)> {
    let (mut lines, mut machines) = (Vec::new(), Vec::new());
    for (name, variant, harts, clock) in BOOTS {
        let machine = cli::Machine { harts: Some(harts), memory: None, machine: Some(variant), user_interrupts: None };
        let (mut toolchain, products) = context.build_root_task(context.variation(&machine), PROGRAM)?;
        if clock == Clock::Host {
            toolchain.qemu = emulator::of_benchmarks(context, &toolchain.qemu);
        }
        if !emulator::is_there(context, variant, &toolchain) {
            continue;
        }
        let mut configuration = context.configuration(&products, &machine, String::new());
        configuration.clock = clock;
        let activity = context.progress.start(format!("Measuring IPC: {name}"));
        let log = context.log(&format!("{PROGRAM}-{name}"));
        let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)?;
        lines.extend(named(name, clock, &collect(&mut guest, &activity)?)?);
        activity.clear();
        machines.push(toolchain.describe(&context.board, &configuration));
    }
    Ok((lines, machines.join("; ")))
}

/// Returns the lines of one boot under its name, and the derived figures.
fn named(name: &str, clock: Clock, lines: &[String]) -> Result<Vec<String>> {
    let unit = if clock == Clock::Instructions { "instructions" } else { "ns" };
    let (mut named, mut figures) = (Vec::new(), Vec::new());
    for line in lines {
        let parsed = serde_json::from_str(line)
            .with_context(|| format!("the machine printed a line that is no result: {line}"))?;
        let id = match &parsed {
            Line::Figure { id, .. } => id,
            Line::Series(series) => &series.id,
        };
        let public = match name {
            UINTC if id.starts_with(BY_STORES) => format!("{name}-{}", id.replace(BY_STORES, "by-instructions")),
            UINTC if id == VIRTUALISED => format!("{name}-system-call-armed"),
            _ => format!("{name}-{id}"),
        };
        // All others are those of the boot before.
        let is_kept = name != UINTC || !public.ends_with(id.as_str());
        let json = match &parsed {
            Line::Figure { id, value, .. } => {
                figures.push((id.clone(), *value));
                serde_json::json!({ "id": public, "value": value, "unit": unit })
            }
            Line::Series(series) => serde_json::json!({
                "series": public,
                "unit": unit,
                "x_unit": series.x_unit,
                "points": series.points,
            }),
        };
        named.extend(is_kept.then_some(json));
    }
    let value = |wanted: &str| figures.iter().find(|(id, _)| id == wanted).map(|(_, value)| *value);
    for in_flight in [1, 32, 256] {
        if name != UINTC
            && let (Some(short), Some(ours)) = (value("synchronous-short"), value(&format!("asynchronous-{in_flight}")))
        {
            let id = format!("{name}-speed-{in_flight}");
            named.push(serde_json::json!({ "id": id, "value": short / ours, "unit": "times" }));
        }
    }
    if let (Clock::Instructions, Some(plain), Some(own)) = (clock, value("system-call"), value(VIRTUALISED)) {
        let id = if name == UINTC { "uintc_entry_ratio" } else { "imsic_entry_ratio" };
        named.push(serde_json::json!({ "id": id, "value": own / plain, "unit": "times" }));
    }
    Ok(named.into_iter().map(|line| line.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_follow_from_the_figures() {
        let lines = [
            r#"{"id": "synchronous-short", "value": 600, "unit": "ns"}"#,
            r#"{"id": "asynchronous-32", "value": 200, "unit": "ns"}"#,
            r#"{"id": "system-call", "value": 200, "unit": "ns"}"#,
            r#"{"id": "system-call-virtualised", "value": 250, "unit": "ns"}"#,
            r#"{"series": "asynchronous", "unit": "ns", "x_unit": "calls in flight", "points": [[32, 200]]}"#,
        ];
        let named = named("here", Clock::Instructions, &lines.map(String::from)).unwrap();
        let parsed: Vec<serde_json::Value> = named.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&parsed[0]["id"], &parsed[0]["unit"]), (&"here-synchronous-short".into(), &"instructions".into()));
        assert_eq!(parsed[4]["series"], "here-asynchronous");
        assert_eq!((&parsed[5]["id"], &parsed[5]["value"]), (&"here-speed-32".into(), &3.0.into()));
        assert_eq!((&parsed[6]["id"], &parsed[6]["value"]), (&"imsic_entry_ratio".into(), &1.25.into()));
        assert_eq!(parsed.len(), 7);
        assert!(super::named("here", Clock::Host, &["nonsense".into()]).is_err());
    }

    #[test]
    fn the_machine_with_instructions_reports_only_their_figures() {
        let lines = [
            r#"{"id": "synchronous-short", "value": 600, "unit": "ns"}"#,
            r#"{"id": "asynchronous-32", "value": 200, "unit": "ns"}"#,
            r#"{"id": "system-call", "value": 200, "unit": "ns"}"#,
            r#"{"id": "by-stores-32", "value": 300, "unit": "ns"}"#,
            r#"{"series": "by-stores", "unit": "ns", "x_unit": "calls in flight", "points": [[32, 300]]}"#,
            r#"{"id": "system-call-virtualised", "value": 220, "unit": "ns"}"#,
        ];
        let named = named(UINTC, Clock::Instructions, &lines.map(String::from)).unwrap();
        let parsed: Vec<serde_json::Value> = named.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ids: Vec<_> = parsed.iter().map(|line| line.get("id").or(line.get("series")).unwrap()).collect();
        let expected =
            ["uintc-by-instructions-32", "uintc-by-instructions", "uintc-system-call-armed", "uintc_entry_ratio"];
        assert_eq!(ids, expected);
        assert_eq!(parsed[3]["value"], 1.1);
    }
}
