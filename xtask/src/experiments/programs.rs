//! Programs built for Linux: the same binary on COPS and on Linux, in instructions.
//!
//! The program is bench/peers, which is the first one of both systems. Its figures are means of many repetitions, and
//! each goal is a share of Linux's instructions. Idle time does not occur in them: one hart is never idle while a
//! process waits for another. [Servers](super::servers) of Debian and Go come last.

use anyhow::{Result, bail};

use super::{Lab, Notebook, Way, figure_of, words};
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
    let (title, clock) = ("programs of Linux", Way::Instructions.clock());
    let theirs = notebook.part("Linux", lab.on_linux(title, &words("programs"), 1, clock)).unwrap_or_default();
    let own = words(&format!("here bench programs /bin/{}", linux::PROGRAM));
    let ours = notebook.part("COPS", lab.peers_on_cops(title, &own, 1, clock)).unwrap_or_default();
    for (id, goal) in GOALS {
        if let (Some(cops), Some(linux)) = (figure_of(&ours, id), figure_of(&theirs, id)) {
            notebook.figure(&format!("cops_{id}"), cops, "instructions");
            notebook.figure(&format!("linux_{id}"), linux, "instructions");
            notebook.at_most(id, cops / linux, "times", goal);
        }
    }
    let (id, goal) = CLOCK;
    if let Some(cops) = figure_of(&ours, id) {
        notebook.at_most(id, cops, "instructions", goal);
    }
    let measured = super::servers::measure(lab, notebook);
    notebook.part("servers of Debian", measured);
    Ok(())
}
