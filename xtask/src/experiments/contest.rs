//! Servers that are measured in turns, each for a short time, round after round.
//!
//! Other load on the host then falls on all of them alike, and not on the one that is measured at that moment. Machines
//! that are not measured are stopped, so that a polling server takes no time from the others.

use std::time::Duration;

use anyhow::Result;

use super::{Lab, Notebook, Server};

/// Time for a stopped machine to come back.
const SETTLING: Duration = Duration::from_millis(30);

/// A server that is measured beside others.
pub struct Contestant {
    /// Index of its machine, in which other servers may run too.
    machine: usize,
    /// Port of the server in the machine.
    pub port: u16,
    /// Name of the server in the results.
    pub id: String,
    /// Whether it has failed, and is excluded.
    is_out: bool,
}

/// Servers that are measured in turns.
#[derive(Default)]
pub struct Contest {
    machines: Vec<Server>,
    contestants: Vec<Contestant>,
}

impl Contest {
    /// Adds a machine, which is stopped from now on, and its servers: their ports and names.
    pub fn add(&mut self, machine: Server, servers: &[(u16, String)]) {
        machine.stand_still();
        for (port, id) in servers {
            let machine = self.machines.len();
            self.contestants.push(Contestant { machine, port: *port, id: id.clone(), is_out: false });
        }
        self.machines.push(machine);
    }

    /// Readmits servers that have failed under another load.
    pub fn begin(&mut self) {
        for contestant in &mut self.contestants {
            contestant.is_out = false;
        }
    }

    /// Measures each server in turn, round after round, and returns the results of each, with its name. The results of
    /// a server that failed are empty, until [`begin`](Self::begin); the notebook has the reason, under the title
    /// `what`.
    pub fn in_turns<T>(
        &mut self,
        lab: &Lab<'_>,
        notebook: &mut Notebook<'_>,
        what: &str,
        mut measure: impl FnMut(&mut Server, u16) -> Result<T>,
    ) -> Vec<(String, Vec<T>)> {
        let mut found: Vec<_> = self.contestants.iter().map(|one| (one.id.clone(), Vec::new())).collect();
        let activity = lab.context.progress.start(what);
        let rounds = lab.rounds();
        for round in 1..=rounds {
            for (contestant, (id, found)) in self.contestants.iter_mut().zip(&mut found) {
                if contestant.is_out {
                    continue;
                }
                activity.detail(&format!("round {round} of {rounds}, {id}"));
                let machine = &mut self.machines[contestant.machine];
                machine.go_on();
                // Its clock has jumped: overdue work is done before the measurement.
                std::thread::sleep(SETTLING);
                let measured = measure(machine, contestant.port);
                machine.stand_still();
                match notebook.part(&format!("{what}: {id}"), measured) {
                    Some(measured) => found.push(measured),
                    None => {
                        found.clear();
                        contestant.is_out = true;
                    }
                }
            }
        }
        activity.clear();
        found
    }
}

/// Returns the median of some values, the greater of two in the middle.
///
/// # Panics
///
/// If there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the least and the largest of several values.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (values.len() > 1).then_some((least, largest))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(super::median(vec![3.0, 100.0, 1.0]), 3.0);
        assert_eq!(super::median(vec![2.0, 1.0]), 2.0);
        assert_eq!(super::median(vec![5.0]), 5.0);
    }

    #[test]
    fn a_range_needs_several_values() {
        assert_eq!(super::range(&[3.0, 100.0, 1.0]), Some((1.0, 100.0)));
        assert_eq!((super::range(&[3.0]), super::range(&[])), (None, None));
    }
}
