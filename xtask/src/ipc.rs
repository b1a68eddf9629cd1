//! Asynchronous IPC beside synchronous IPC on the microkernel.
//!
//! The root task `ipc-bench` measures nanoseconds of its machine's clock for each call. It is booted three times: on
//! one hart with the emulator counting instructions, each a nanosecond; on one hart by the wall clock; and on two,
//! where client and server run at the same time.

use anyhow::{Context as _, Result};

use crate::bench::{Goal, Line, collect};
use crate::board::Clock;
use crate::cli;
use crate::context::Context;
use crate::guest::{Echo, Guest};

/// The root task that measures.
const PROGRAM: &str = "ipc-bench";

/// The boots: the prefix of their figures, the number of harts, and the machine's clock.
const BOOTS: [(&str, u8, Clock); 3] =
    [("instructions", 1, Clock::Instructions), ("one-hart", 1, Clock::Host), ("two-harts", 2, Clock::Host)];

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

/// Boots the program and collects its lines, with the quotients that have goals.
///
/// # Errors
///
/// The build fails, or a machine does not come to its end.
pub fn measure(context: &Context) -> Result<(Vec<String>, String)> {
    let (mut lines, mut machines) = (Vec::new(), Vec::new());
    for (name, harts, clock) in BOOTS {
        let machine = cli::Machine { harts: Some(harts), memory: None, machine: None, user_interrupts: None };
        let (toolchain, products) = context.build_root_task(context.variation(&machine), PROGRAM)?;
        let mut configuration = context.configuration(&products, &machine, String::new());
        configuration.clock = clock;
        let activity = context.progress.start(format!("Measuring IPC: {name}"));
        let log = context.log(&format!("{PROGRAM}-{name}"));
        let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)?;
        lines.extend(named(name, clock, &collect(&mut guest, &activity)?)?);
        activity.clear();
        let counted = if clock == Clock::Instructions { ", -icount shift=0" } else { "" };
        let plural = if harts == 1 { "" } else { "s" };
        let board = &context.board.name;
        machines.push(format!(
            "{board} {}, {harts} hart{plural}, {}{counted}",
            configuration.machine,
            toolchain.qemu_version()
        ));
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
        named.push(match parsed {
            Line::Figure { id, value, .. } => {
                let json = serde_json::json!({ "id": format!("{name}-{id}"), "value": value, "unit": unit });
                figures.push((id, value));
                json
            }
            Line::Series(series) => serde_json::json!({
                "series": format!("{name}-{}", series.id),
                "unit": unit,
                "x_unit": series.x_unit,
                "points": series.points,
            }),
        });
    }
    let value = |wanted: &str| figures.iter().find(|(id, _)| id == wanted).map(|(_, value)| *value);
    for in_flight in [1, 32, 256] {
        if let (Some(short), Some(ours)) = (value("synchronous-short"), value(&format!("asynchronous-{in_flight}"))) {
            let id = format!("{name}-speed-{in_flight}");
            named.push(serde_json::json!({ "id": id, "value": short / ours, "unit": "times" }));
        }
    }
    if let (Clock::Instructions, Some(plain), Some(virtualised)) =
        (clock, value("system-call"), value("system-call-virtualised"))
    {
        named.push(serde_json::json!({ "id": "imsic_entry_ratio", "value": virtualised / plain, "unit": "times" }));
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
}
