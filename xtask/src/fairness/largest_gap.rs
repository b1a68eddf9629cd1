//! The longest time for which a process that is ready does not run, while another one has 4,000 threads that never
//! rest.

use anyhow::Result;

use super::{Boot, Lab, Scenario, worst};
use crate::board::Clock;

pub const SCENARIO: Scenario = Scenario { name: "largest_gap", goals: &[("largest_gap_ms", 1100.0)], measure };

fn measure(lab: &Lab<'_>) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for harts in [1, 4] {
        lines.extend(lab.boot(&Boot {
            words: &["largest_gap"],
            harts,
            memory: None,
            clock: Clock::SlowInstructions,
        })?);
    }
    lines.push(worst("largest_gap_ms", &lines)?);
    Ok(lines)
}
