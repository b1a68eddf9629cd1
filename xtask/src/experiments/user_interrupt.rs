//! User interrupts: from the send to the handler's end, and to a coroutine that continues, with each back end; beside
//! them Linux's wake-ups. A receiver's own entries into the kernel are measured too: a call that does nothing, and a
//! visit, for which it leaves the hart and comes back; and a grant of the right to send with the first send, and its
//! revocation.
//!
//! COPS runs on the machine that has the hardware of the back end, Linux on the one without, where it runs at all. The
//! comparison is of instructions of a process and the kernel, to which the interrupt controllers contribute none.

use anyhow::Result;

use super::{Lab, Notebook, Way, figure_of, words};
use crate::board::Variant;
use crate::cli::{Machine, UserInterrupts};

/// Largest cost of `imsic`, as a share of Linux's wake-up of a thread through an eventfd.
const GOAL: f64 = 0.1;
/// Largest number of instructions from a send to its handler's end with `uintc`.
const GOAL_UINTC: f64 = 120.0;

/// Largest cost of a receiver's call with `uintc`, as a multiple of the cost with `kernel`.
const GOAL_ENTRY: f64 = 1.15;

/// The back ends, each with a machine that has it.
const BACK_ENDS: [(UserInterrupts, Variant); 3] = [
    (UserInterrupts::Kernel, Variant::Aia),
    (UserInterrupts::Imsic, Variant::Aia),
    (UserInterrupts::Uintc, Variant::Uintc),
];

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    for way in lab.ways() {
        let (unit, suffix) = if way == Way::Instructions { ("instructions", "") } else { ("ns", "_wall") };
        let plot = format!("user interrupts ({})", way.name());
        let theirs = match lab.linux() {
            Some(_) => notebook.part("Linux's ways", lab.linux_basics(way)).unwrap_or_default(),
            None => Vec::new(),
        };
        let mut points = Vec::new();
        let mut plain = Vec::new();
        for (back_end, variant) in BACK_ENDS {
            let name = back_end.name();
            let machine =
                Machine { harts: Some(1), memory: None, machine: Some(variant), user_interrupts: Some(back_end) };
            let ours = lab.on_cops_with(&plot, &words("user-interrupt"), &machine, way.clock());
            let Some(ours) = notebook.part(&format!("user interrupts with `{name}`"), ours) else { continue };
            for (id, to) in [("handler", "handler"), ("coroutine", "coroutine")] {
                if let Some(value) = figure_of(&ours, id) {
                    let figure = format!("{name}_send_to_{to}{suffix}");
                    match (back_end, way, to) {
                        (UserInterrupts::Uintc, Way::Instructions, "handler") => {
                            notebook.at_most(&figure, value, unit, GOAL_UINTC);
                        }
                        _ => notebook.figure(&figure, value, unit),
                    }
                    points.push((format!("COPS {name}, to {to}"), value));
                }
            }
            if back_end == UserInterrupts::Kernel {
                plain.clone_from(&ours);
            } else if let (Some(call), Some(plain)) = (figure_of(&ours, "call"), figure_of(&plain, "call")) {
                let id = format!("{name}_entry_ratio{suffix}");
                match (back_end, way) {
                    (UserInterrupts::Uintc, Way::Instructions) => {
                        notebook.at_most(&id, call / plain, "times", GOAL_ENTRY);
                    }
                    _ => notebook.figure(&id, call / plain, "times"),
                }
            }
            for id in ["visit", "grant", "revoke"] {
                if let Some(value) = figure_of(&ours, id) {
                    notebook.figure(&format!("{name}_{id}{suffix}"), value, unit);
                }
            }
            let entries: f64 =
                ["entries", "coroutine_entries"].iter().map(|id| figure_of(&ours, id).unwrap_or(f64::NAN)).sum();
            let id = format!("{name}_kernel_entries{suffix}");
            match back_end {
                UserInterrupts::Imsic | UserInterrupts::Uintc => {
                    notebook.at_most(&id, entries, "for 300,000 user interrupts", 0.0);
                }
                _ => notebook.figure(&id, entries, "for 300,000 user interrupts"),
            }
            if let (Some(cops), Some(linux)) = (figure_of(&ours, "coroutine"), figure_of(&theirs, "wake-eventfd")) {
                let id = format!("{name}_vs_linux_eventfd{suffix}");
                match (back_end, way) {
                    (UserInterrupts::Imsic, Way::Instructions) => notebook.at_most(&id, cops / linux, "times", GOAL),
                    _ => notebook.figure(&id, cops / linux, "times"),
                }
            }
        }
        for id in ["wake-eventfd", "wake-pipe", "wake-signal", "signal-handler"] {
            if let Some(value) = figure_of(&theirs, id) {
                notebook.figure(&format!("linux_{id}{suffix}"), value, unit);
                points.push((format!("Linux {id}"), value));
            }
        }
        // One bar each: a line of one point.
        for (place, (name, value)) in points.into_iter().enumerate() {
            notebook.series(&plot, &name, unit, "way", vec![(place as f64, value)]);
        }
    }
    Ok(())
}
