//! The longest time for which a ready process does not run, while another one has 4,000 threads that never rest.
//!
//! On one hart the machine's clock counts instructions. With several harts there is no such clock: QEMU runs them in
//! turn then, and time passes for all while it runs one. A hart to which the victim has come may use up the victim's
//! slice without having run an instruction. So that measurement uses the host's clock.

use anyhow::Result;

use super::{Scenario, ScenarioBoot, ScenarioLab, worst};
use crate::board::Clock;

pub const SCENARIO: Scenario = Scenario { name: "largest_gap", goals: &[("largest_gap_ms", 1100.0)], measure };

fn measure(lab: &ScenarioLab<'_>) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (harts, clock) in [(1, Clock::SlowInstructions), (4, Clock::Host)] {
        lines.extend(lab.boot(&ScenarioBoot { words: &["largest_gap"], harts, memory: None, clock })?);
    }
    lines.push(worst("largest_gap_ms", &lines)?);
    Ok(lines)
}
