//! Linux beside COPS: the costs of the basic operations.

use anyhow::{Result, bail};

use super::{Lab, Notebook, Way, words};
use crate::bench::Line;

/// Equivalent operations, as ids of `bench syscall` and of Linux's program.
const PAIRS: [(&str, &str); 2] = [("null", "null"), ("pipe", "pipe-1")];

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    if lab.linux().is_none() {
        bail!("there is no Linux to measure");
    }
    for way in lab.ways() {
        let title = format!("basic costs ({})", way.name());
        let unit = if way == Way::Instructions { "instructions" } else { "ns" };
        let suffix = if way == Way::Instructions { "" } else { "_wall" };
        let theirs = notebook.part("Linux's basic costs", lab.linux_basics(way)).unwrap_or_default();
        for line in &theirs {
            if let Line::Figure { id, value, .. } = line {
                notebook.figure(&format!("linux_{id}{suffix}"), *value, unit);
            }
        }
        let ours = lab.on_cops(&title, &words("syscall"), 1, way.clock());
        let ours = notebook.part("COPS's basic costs", ours).unwrap_or_default();
        for (our, their) in PAIRS {
            let value = |lines: &[Line], wanted: &str| super::figure_of(lines, wanted);
            if let (Some(cops), Some(linux)) = (value(&ours, our), value(&theirs, their)) {
                notebook.figure(&format!("cops_{our}{suffix}"), cops, unit);
                notebook.at_most(&format!("cops_vs_linux_{our}{suffix}"), cops / linux, "times", 1.0);
            }
        }
    }
    servers(lab, notebook);
    Ok(())
}

/// Measures each server of Linux with one and with 64 connections.
fn servers(lab: &Lab<'_>, notebook: &mut Notebook<'_>) {
    let Some(linux) = lab.linux() else { return };
    let plot = "Linux's servers, instructions of each request, 15x15";
    let servers: Vec<_> = linux.servers.iter().copied().filter(|name| !name.ends_with("-each")).collect();
    let counts = if lab.quick { "1 64" } else { "1 16 64 256" };
    let command = words(&format!("matrix {} 15 512 {counts}", servers.join(",")));
    let measured = lab.on_linux(plot, &command, 1, Way::Instructions.clock());
    let Some(lines) = notebook.part("Linux's servers", measured) else { return };
    let faulty: f64 = ["wrong", "lost"].map(|id| super::figure_of(&lines, id).unwrap_or(f64::NAN)).iter().sum();
    notebook.at_most("linux_wrong_or_lost", faulty, "answers", 0.0);
    for (server, points) in super::series_of(lines) {
        notebook.series(plot, &server, "instructions", "connections", points);
    }
}
