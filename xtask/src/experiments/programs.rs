//! Programs built for Linux: the same binary on COPS and on Linux, in instructions.
//!
//! The program is bench/peers, which is the first one of both systems. Its figures are means of many repetitions, and
//! each goal is a share of Linux's instructions. Idle time does not occur in them: one hart is never idle while a
//! process waits for another. [Servers](super::servers) of Debian and Go come last.

use anyhow::{Result, bail};

use super::servers::compare;
use super::{Lab, Notebook, System, Way, figure_of, words};
use crate::linux;

/// Figures, and the share of Linux's instructions that each may take.
const GOALS: [(&str, f64); 11] = [
    ("fork_exit", 1.0),
    ("fork_exec", 1.0),
    ("fork_512_mib", 1.0),
    ("posix_spawn", 1.0),
    ("pipe_pingpong", 1.0),
    ("signal_handler", 1.0),
    ("mmap_fault", 1.0),
    ("context_switch", 1.0),
    ("thread_create", 1.0),
    ("open_read_close", 1.0),
    ("hackbench", 1.0),
];

/// Instructions that a look at the clock may take.
const CLOCK: (&str, f64) = ("clock_gettime", 60.0);

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    if lab.linux().is_none() {
        bail!("there is no Linux to measure");
    }
    if GOALS.iter().chain([&CLOCK]).any(|(id, _)| lab.selection.has(id)) {
        basic_operations(lab, notebook);
    }
    let measured = super::servers::measure(lab, notebook);
    notebook.part("servers of Debian", measured);
    Ok(())
}

/// Measures processes, threads, signals, memory and files.
fn basic_operations(lab: &Lab<'_>, notebook: &mut Notebook<'_>) {
    let (title, clock) = ("programs of Linux", Way::Instructions.clock());
    let own = words(&format!("here bench programs /bin/{}", linux::PROGRAM));
    let measured = lab.selection.on_each(|system| {
        let lines = match system {
            System::Cops => lab.peers_on_cops(title, &own, 1, clock),
            System::Linux => lab.on_linux(title, &words("programs"), 1, clock),
        };
        notebook.part(system.name(), lines)
    });
    let [ours, theirs] = measured.map(Option::unwrap_or_default);
    for (id, goal) in GOALS {
        compare(notebook, id, [&ours, &theirs].map(|lines| figure_of(lines, id)), Some(goal));
    }
    let (id, goal) = CLOCK;
    if let Some(cops) = figure_of(&ours, id) {
        notebook.at_most(id, cops, "instructions", goal);
    }
}
