//! The microkernel's worst case: the longest wait of the most important thread for its interrupt while another makes
//! long invocations, with seL4's figures beside it.
//!
//! The root task `micro-latency` measures. seL4's figures are those of version 15.0.0, one hart, without the MCS
//! extension, on the same machine, by a program with the same measurements; it was built with printing, which these
//! invocations do not use.

use anyhow::Result;

use crate::bench::{Goal, collect};
use crate::board::{Clock, Variant};
use crate::build::{Harts, Variation};
use crate::cli;
use crate::context::Context;
use crate::guest::{Echo, Guest};

/// The root task that measures.
const PROGRAM: &str = "micro-latency";

/// Longest delay of an interrupt by any of the operations.
const WORST: f64 = 10_000.0;
/// Instructions by which seL4 clears a kibibyte: 560 million for a gibibyte.
const SEL4_CLEAR: f64 = 534.0;

/// Goals: largest good values.
pub const GOALS: &[Goal] = &[
    ("worst_latency", WORST),
    ("slot_delete", 250.0),
    ("clear_kib", SEL4_CLEAR),
    ("longest_stretch", 22_332.0 - 496.0),
    ("wait-delete-large-cnode", WORST),
    ("wait-revoke-256-tcbs", WORST),
    ("wait-revoke-256-tables", WORST),
    ("wait-revoke-256-pages", WORST),
    ("wait-revoke-256-cnodes", WORST),
    ("wait-retype-256-tcbs", WORST),
    ("wait-retype-256-tables", WORST),
    ("wait-retype-256-pages", WORST),
    ("wait-retype-256-cnodes", WORST),
    ("wait-revoke-space", WORST),
    ("wait-delete-asid-pool", WORST),
    ("wait-clear", WORST),
    ("wait-delete-nested-cnodes", WORST),
    ("wait-delete-notification", WORST),
    ("wait-clear-irq-notification", WORST),
    ("wait-delete-irq-handler", WORST),
    ("wait-cancel-badged-sends", WORST),
    ("wait-send-capabilities", WORST),
    ("wait-serve-requests", WORST),
];

/// Figures of seL4.
const SEL4: &[(&str, f64)] = &[
    ("wait-nothing", 496.0),
    ("wait-delete-large-cnode", 22_332.0),
    ("wait-revoke-256-tcbs", 29_868.0),
    ("wait-revoke-256-tables", 41_650.0),
    ("wait-revoke-256-pages", 41_745.0),
    ("wait-revoke-256-cnodes", 27_993.0),
    ("wait-retype-256-tcbs", 13_824.0),
    ("wait-retype-256-tables", 10_907.0),
    ("wait-retype-256-pages", 16_002.0),
    ("wait-retype-256-cnodes", 16_036.0),
    ("wait-revoke-space", 46_962.0),
    ("wait-clear", 10_512.0),
    ("slot_delete", 254.0),
    ("clear_kib", SEL4_CLEAR),
];

/// Boots the microkernel with the measuring program, counting instructions, and collects its lines.
///
/// # Errors
///
/// The build fails, or the machine does not come to its end.
pub fn measure(context: &Context) -> Result<(Vec<String>, String)> {
    let (toolchain, mut products) = context.build_microkernel(Variation::new(Harts::One))?;
    products.initramfs = context.workspace.products().join(PROGRAM);
    let machine = cli::Machine { harts: Some(1), memory: None, machine: Some(Variant::Plic), user_interrupts: None };
    let mut configuration = context.configuration(&products, &machine, String::new());
    configuration.clock = Clock::Instructions;
    let activity = context.progress.start("Measuring the microkernel's worst case");
    let log = context.log(PROGRAM);
    let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)?;
    let lines = collect(&mut guest, &activity);
    activity.clear();
    let mut lines = lines?;
    lines.extend(SEL4.iter().map(|(id, value)| {
        serde_json::json!({ "id": format!("sel4-{id}"), "value": value, "unit": "instructions" }).to_string()
    }));
    Ok((lines, toolchain.describe(&context.board, &configuration)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_goal_that_the_worst_one_implies() {
        let rows: Vec<_> = GOALS.iter().filter(|(id, _)| id.starts_with("wait-")).collect();
        assert!(rows.iter().all(|(_, goal)| *goal == WORST));
        let known = |id: &str| id == "wait-nothing" || GOALS.iter().any(|(goal, _)| *goal == id);
        assert!(SEL4.iter().all(|(id, _)| known(id)));
    }
}
