//! User interrupts: from the send to the handler's end, and to a coroutine that continues, with both back ends; beside
//! them Linux's wake-ups.
//!
//! COPS runs on the machine that has guest interrupt files, Linux on the other one, where it runs at all. The
//! comparison is of instructions of a process and the kernel, to which the interrupt controllers contribute none.

use anyhow::Result;

use super::{Lab, Notebook, Way, figure_of, words};
use crate::board::Variant;
use crate::cli::{Machine, UserInterrupts};

/// Largest cost of `imsic`, as a share of Linux's wake-up of a thread through an eventfd.
const GOAL: f64 = 0.1;

const BACK_ENDS: [(&str, UserInterrupts); 2] = [("kernel", UserInterrupts::Kernel), ("imsic", UserInterrupts::Imsic)];

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    for way in lab.ways() {
        let (unit, suffix) = if way == Way::Instructions { ("instructions", "") } else { ("ns", "_wall") };
        let plot = format!("user interrupts ({})", way.name());
        let theirs = match lab.linux() {
            Some(_) => notebook.part("Linux's ways", lab.linux_basics(way)).unwrap_or_default(),
            None => Vec::new(),
        };
        let mut points = Vec::new();
        for (name, back_end) in BACK_ENDS {
            let machine =
                Machine { harts: Some(1), memory: None, machine: Some(Variant::Aia), user_interrupts: Some(back_end) };
            let ours = lab.on_cops_with(&plot, &words("user-interrupt"), &machine, way.clock());
            let Some(ours) = notebook.part(&format!("user interrupts with `{name}`"), ours) else { continue };
            for (id, to) in [("handler", "handler"), ("coroutine", "coroutine")] {
                if let Some(value) = figure_of(&ours, id) {
                    notebook.figure(&format!("{name}_send_to_{to}{suffix}"), value, unit);
                    points.push((format!("COPS {name}, to {to}"), value));
                }
            }
            let entries: f64 =
                ["entries", "coroutine_entries"].iter().map(|id| figure_of(&ours, id).unwrap_or(f64::NAN)).sum();
            let id = format!("{name}_kernel_entries{suffix}");
            match back_end {
                UserInterrupts::Imsic => notebook.at_most(&id, entries, "for 300,000 user interrupts", 0.0),
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
