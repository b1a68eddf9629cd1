//! The time of a request of the most important connection in the machine, from the card to the answer, beside 63 busy
//! connections that are less important, in multiples of its time alone.
//!
//! On one hart instructions are counted. On more the machine's clock is the host's: with more harts than the host has
//! cores the mean contains the host's slices, for which a hart stops in the middle of its work. The median, for which
//! there is no goal, shows that.

use anyhow::Result;

use super::{Scenario, ScenarioLab, line};
use crate::experiments;

pub const SCENARIO: Scenario = Scenario {
    name: "level0",
    goals: &[("level0_of_alone_1", 1.2), ("level0_of_alone_2", 1.2), ("level0_of_alone_4", 1.2)],
    measure,
};

fn measure(lab: &ScenarioLab<'_>) -> Result<Vec<String>> {
    let measured = experiments::level0_of_alone(lab.context, &[1, 2, 4])?;
    let figures = measured.iter().flat_map(|(harts, of_alone)| {
        [
            line(&format!("level0_of_alone_{harts}"), of_alone.mean, "times"),
            line(&format!("level0_median_of_alone_{harts}"), of_alone.median, "times"),
        ]
    });
    Ok(figures.collect())
}
