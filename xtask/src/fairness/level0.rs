//! How much longer a request of the most important connections takes in the machine, from the card to the answer,
//! beside 56 busy connections that are less important, than one alone.

use anyhow::Result;

use super::{Lab, Scenario, line};
use crate::experiments;

pub const SCENARIO: Scenario = Scenario {
    name: "level0",
    goals: &[("level0_of_alone_1", 1.2), ("level0_of_alone_2", 1.2), ("level0_of_alone_4", 1.2)],
    measure,
};

fn measure(lab: &Lab<'_>) -> Result<Vec<String>> {
    let measured = experiments::level0_of_alone(
        lab.context,
        &std::env::var("H").map_or(vec![1u8, 2, 4], |h| vec![h.parse().unwrap()]),
    )?;
    Ok(measured.iter().map(|(harts, times)| line(&format!("level0_of_alone_{harts}"), *times, "times")).collect())
}
