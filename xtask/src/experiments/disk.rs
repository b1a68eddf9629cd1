//! Files of ext4 on a disk: the same program on COPS and on Linux, each with a copy of one image.
//!
//! The program is bench/peers. Operations on files that are in memory, and whole pieces of work, are counted in
//! instructions on one hart; reads and writes that wait for the disk are measured by the clock of the host, on as many
//! harts as it has cores. Losses by cuts of the power are those of the random cuts of the tests, on COPS alone.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::{Lab, Notebook, Way, figure_of, harts, machine, words};
use crate::bench::Line;
use crate::context::command_line;
use crate::image;
use crate::linux;
use crate::own;
use crate::suites;
use crate::toolchain::{self, Item};

/// Figures of cached files, and the share of Linux's instructions that each may take.
const CACHED: [(&str, f64); 7] = [
    ("read_4k_cached", 0.7),
    ("write_4k_cached", 0.8),
    ("open_stat_close", 0.8),
    ("create_unlink", 1.0),
    ("mmap_read_cached", 0.8),
    ("sqlite_speedtest", 1.0),
    ("untar_tree", 1.0),
];

/// Throughputs, of which COPS is to have as much as Linux, and a time, of which it may take so much more.
const THROUGHPUTS: [(&str, &str); 2] = [("random_read_32", "reads/s"), ("sequential_read", "MiB/s")];
const APPEND: (&str, f64) = ("fsync_append_p50", 1.1);

/// Bytes of the kernel's memory for a fault that waits, and the requests of the disk in a second, so that many wait.
const FAULT: (&str, f64) = ("blocked_fault_bytes", 512.0);
const SLOW: u32 = 10;

/// Sizes of the image and of the file that is read.
const IMAGE: u64 = 512 << 20;
const BIG: usize = 64 << 20;

/// Numbers of cuts of the power, in the whole measurement and in a quick one.
const CUTS: (u64, u64) = (500, 10);

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    if lab.linux().is_none() {
        bail!("there is no Linux to measure");
    }
    toolchain::ensure_on_host(&[Item::E2fsprogs], &lab.context.progress)?;
    let folder = lab.context.workspace.products().join("disk-bench");
    let image = make_image(&folder)?;
    for way in lab.ways() {
        let part = match way {
            Way::Instructions => Part::Cached,
            Way::Wall => Part::Waiting,
        };
        let mut measured = |system: &str| {
            let lines = run(lab, system, part, &image);
            notebook.part(&format!("{system}, {}", way.name()), lines).unwrap_or_default()
        };
        let (theirs, ours) = (measured("Linux"), measured("COPS"));
        match way {
            Way::Instructions => compare_cached(notebook, &ours, &theirs),
            Way::Wall => compare_waiting(notebook, &ours, &theirs),
        }
    }
    if let Some(lines) = notebook.part("COPS, faults that wait", run(lab, "COPS", Part::Faults, &image)) {
        let (id, goal) = FAULT;
        if let Some(bytes) = figure_of(&lines, id) {
            notebook.at_most(id, bytes, "bytes", goal);
        }
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    let cuts = if lab.quick { CUTS.1 } else { CUTS.0 };
    if let Some(found) =
        notebook.part("cuts of the power", suites::count_cuts(lab.context, &lab.toolchain, &lab.products, cuts))
    {
        notebook.figure("cuts", found.cuts as f64, "cuts");
        notebook.at_most("lost_after_kill", found.lost.len() as f64, "cuts", 0.0);
        notebook.at_most("fsck_unclean", found.unclean.len() as f64, "cuts", 0.0);
        for failure in found.lost.into_iter().chain(found.unclean) {
            notebook.note(failure);
        }
    }
    Ok(())
}

/// Makes the image, with a file of random bytes in it.
fn make_image(folder: &Path) -> Result<PathBuf> {
    let (files, image) = (folder.join("files"), folder.join("image"));
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(&files).with_context(|| format!("cannot make {}", files.display()))?;
    let mut state = 1u64;
    let mut bytes = Vec::with_capacity(BIG);
    while bytes.len() < BIG {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    std::fs::File::create(files.join("big"))?.write_all(&bytes)?;
    image::make_initialised(&image, IMAGE, Some(&files))?;
    Ok(image)
}

/// The parts of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Cached,
    Waiting,
    Faults,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Cached => "cached",
            Part::Waiting => "waiting",
            Part::Faults => "faults",
        }
    }

    /// Returns its clock, and the number of harts.
    fn machine(self) -> (Way, u8) {
        match self {
            Part::Cached => (Way::Instructions, 1),
            Part::Waiting | Part::Faults => (Way::Wall, harts()),
        }
    }
}

/// Runs a part of the program on one of the systems with a copy of the image, which is whole afterwards.
fn run(lab: &Lab<'_>, system: &str, part: Part, image: &Path) -> Result<Vec<Line>> {
    let linux = lab.linux().context("there is no Linux")?;
    let ((way, harts), name) = (part.machine(), part.name());
    let command = format!("bench disk {name}");
    let mut configuration = if system == "Linux" {
        linux.configuration(lab.context, harts, way.clock(), &words(&command))?
    } else {
        let program = String::from(linux::PROGRAM);
        let programs = vec![(program.clone(), linux.program.clone())];
        let products = own::with_files(lab.context, lab.products.clone(), programs, &[])?;
        let line = command_line(&program, &words(&format!("here {command}")))?;
        lab.context.configuration(&products, &machine(harts), line)
    };
    configuration.set_clock(way.clock());
    configuration.disk_pace = (part == Part::Faults).then_some(SLOW);
    let copy = image.with_extension("copy");
    std::fs::copy(image, &copy).with_context(|| format!("cannot copy {}", image.display()))?;
    configuration.disks.push(copy.clone());
    let last = (system == "Linux").then_some(linux::DONE);
    let lines = lab.measure(&format!("files on a disk ({name}): {system}"), &configuration, last)?;
    image::check(&copy).with_context(|| format!("the volume after the measurement on {system}"))?;
    Ok(lines)
}

fn compare_cached(notebook: &mut Notebook<'_>, ours: &[Line], theirs: &[Line]) {
    for (id, goal) in CACHED {
        if let Some(cops) = figure_of(ours, id) {
            notebook.figure(&format!("cops_{id}"), cops, "instructions");
            if let Some(linux) = figure_of(theirs, id) {
                notebook.figure(&format!("linux_{id}"), linux, "instructions");
                notebook.at_most(id, cops / linux, "times", goal);
            }
        }
    }
}

fn compare_waiting(notebook: &mut Notebook<'_>, ours: &[Line], theirs: &[Line]) {
    let pair = |notebook: &mut Notebook<'_>, id: &str, unit: &str| {
        let (cops, linux) = (figure_of(ours, id)?, figure_of(theirs, id)?);
        notebook.figure(&format!("cops_{id}"), cops, unit);
        notebook.figure(&format!("linux_{id}"), linux, unit);
        Some(cops / linux)
    };
    for (id, unit) in THROUGHPUTS {
        if let Some(times) = pair(notebook, id, unit) {
            notebook.at_least(id, times, "times", 1.0);
        }
    }
    let (id, goal) = APPEND;
    if let Some(times) = pair(notebook, id, "us") {
        notebook.at_most(id, times, "times", goal);
    }
}
