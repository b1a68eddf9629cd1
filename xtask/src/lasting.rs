//! The suite `disk`: unmodified programs on a disk that is their root, and what they had been told to be lasting after
//! cuts of the power.
//!
//! One image of Debian's packages is made for all scripts of tests/disk. Those with expected output run one after the
//! other in one boot, as those of tests/linux do ([`crate::exercises`]), and `e2fsck` looks at the volume afterwards;
//! by name, Debian's Linux runs them as well, on a copy of the image. A third line `# copied: PACKAGE` has the file of
//! a package put into the image, as `/packages/PACKAGE.deb`.
//!
//! The others are for cuts. Such a script has two forms: `write` goes on for ever and says `acknowledged NUMBER` when
//! what has this number must last, and `check NUMBER` looks for all of it and ends with status 0 if it is there. The
//! machine is ended by force at a moment that the seed chooses, between two boots of the same volume.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use filesystem::cpio;

use crate::board::Clock;
use crate::cli;
use crate::context::{self, Context};
use crate::debian::{self, MadeFile, Root};
use crate::exercises::{self, Exercise, System};
use crate::guest::{Echo, Failure, FailureKind, Guest};
use crate::image;
use crate::lanes::Show;
use crate::linux::DebianKernel;
use crate::programs::{self, INIT_PATH};
use crate::run::ROOT_ON_DISK;
use crate::suites::{Boots, Found, Moments, Tally};

/// The folder of the scripts.
const FOLDER: &str = "tests/disk";

/// End of the names of scripts for cuts.
const FOR_CUTS: &str = "-cuts";

/// Folders of the image with these scripts, and with packages that are copied in.
const PLACE: &str = "cuts";
const COPIED: &str = "packages";

/// The word before the name of a package that is copied in.
const COPY: &str = "# copied: ";

/// Number of cuts for each script and number of harts.
const CUTS: u64 = 3;

/// A cut comes after some of so many acknowledgements, and within so many milliseconds after the last of them.
const ACKNOWLEDGED: u64 = 60;
const LATER: u64 = 30;

/// Longest time until a line of a script that matters.
const LIMIT: Duration = Duration::from_secs(300);

/// Longest time until the serial line of a machine that was ended is read.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Program that runs the scripts for cuts, the first of its machine.
const INTERPRETER: &str = "/usr/bin/bash";

/// A script for cuts.
#[derive(Clone, Debug)]
struct Writer {
    name: String,
    packages: Vec<String>,
    text: Vec<u8>,
}

/// The scripts, and the image for them.
#[derive(Debug)]
pub struct DiskSuite {
    exercises: Vec<Exercise>,
    writers: Vec<Writer>,
    image: PathBuf,
}

impl DiskSuite {
    /// Makes the image for the scripts with `filter` in their names; there may be none. `archive` is the machine's
    /// usual archive, which has the program that runs exercises.
    ///
    /// # Errors
    ///
    /// Packages cannot be fetched, or the image not be made.
    pub fn prepare(context: &Context, archive: &Path, filter: Option<&str>) -> Result<Option<Arc<DiskSuite>>> {
        let folder = context.workspace.root.join(FOLDER);
        let is_meant = |name: &str| filter.is_none_or(|filter| name.contains(filter));
        let mut exercises = exercises::load(&folder)?;
        exercises.retain(|exercise| is_meant(&exercise.name));
        let mut writers = writers(&folder)?;
        writers.retain(|writer| is_meant(&writer.name));
        if exercises.is_empty() && writers.is_empty() {
            return Ok(None);
        }
        let of_writers = writers.iter().flat_map(|writer| &writer.packages);
        let mut packages: Vec<_> = exercises.iter().flat_map(Exercise::packages).chain(of_writers).cloned().collect();
        packages.sort();
        packages.dedup();
        let root = Root::prepare(context, &packages)?;
        let mut files = exercises::files(&exercises)?;
        for package in exercises.iter().filter_map(|exercise| exercise.line(COPY)) {
            let file = debian::package_file(context, package)?;
            let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            files.push((format!("{COPIED}/{package}.deb"), 0o644, bytes));
        }
        files.extend(writers.iter().map(|writer| (format!("{PLACE}/{}", writer.name), 0o755, writer.text.clone())));
        let own = std::fs::read(archive).with_context(|| format!("cannot read {}", archive.display()))?;
        files.push(programs::init(&own)?);
        let image = context.workspace.products().join("disk-suite.img");
        image::make_debian(context, &image, &root, &archive_of(&files)?, None)?;
        Ok(Some(Arc::new(DiskSuite { exercises, writers, image })))
    }

    /// Runs the scripts on a copy of the image.
    ///
    /// # Errors
    ///
    /// A machine fails, or an image cannot be had.
    pub fn run(&self, boots: &Boots<'_>, harts: u8, log: &Path, show: Show) -> Found {
        let image = log.with_extension("root");
        copy(&self.image, &image)?;
        let (mut tally, mut failures) = (Tally::default(), Vec::new());
        if !self.exercises.is_empty() {
            let line = context::command_line(&format!("/{INIT_PATH}"), &[])?;
            let mut guest = self.boot(boots, &image, line, log)?;
            let found = exercises::follow(&mut guest, "disk", &self.exercises, System::Cops(harts), show)?;
            (tally, failures) = exercises::tally(&found);
            image::check(&image).context("the volume after all exercises")?;
        }
        for writer in &self.writers {
            let outcome = self.cut(writer, boots, &image, harts, log);
            let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
            show(&format!("test disk::{} ... {verdict}", writer.name));
            match outcome {
                Ok(()) => tally.passed += 1,
                Err(error) => {
                    tally.failed += 1;
                    failures.push(format!("{}: {error:#}", writer.name));
                }
            }
        }
        if failures.is_empty() {
            std::fs::remove_file(&image).with_context(|| format!("cannot remove {}", image.display()))?;
        }
        Ok((tally, failures))
    }

    /// Whether there are scripts that Linux runs as well.
    pub fn has_exercises(&self) -> bool {
        !self.exercises.is_empty()
    }

    /// Has Debian's Linux run the scripts that are not for cuts, on a copy of the image.
    ///
    /// # Errors
    ///
    /// The machine fails, or an image cannot be had.
    pub fn run_on_linux(&self, linux: &DebianKernel, boots: &Boots<'_>, harts: u8, log: &Path, show: Show) -> Found {
        let image = log.with_extension("root");
        copy(&self.image, &image)?;
        let words = ["exercises-on-disk".into()];
        let mut configuration = linux.configuration(boots.context, harts, Clock::Host, &words)?;
        configuration.disks.push(image.clone());
        let mut guest = Guest::start(&boots.toolchain.qemu, &boots.context.board, &configuration, log, Echo::LogOnly)?;
        let found = exercises::follow(&mut guest, "disk", &self.exercises, System::Linux, show)?;
        std::fs::remove_file(&image).with_context(|| format!("cannot remove {}", image.display()))?;
        Ok(exercises::tally(&found))
    }

    /// Cuts the power off while a script writes, several times, and has it look each time for what was acknowledged.
    fn cut(&self, writer: &Writer, boots: &Boots<'_>, image: &Path, harts: u8, log: &Path) -> Result<()> {
        let mut moments = Moments(u64::from(harts));
        let line = |form: &[&str]| {
            let script = format!("/{PLACE}/{}", writer.name);
            let words: Vec<_> = [&script[..]].iter().chain(form).map(|word| word.to_string()).collect();
            context::command_line(INTERPRETER, &words)
        };
        let mut last = 0;
        for cut in 1..=CUTS {
            let mut guest = self.boot(boots, image, line(&["write"])?, log)?;
            let wanted = last + 1 + moments.next() % ACKNOWLEDGED;
            guest.wait_for("an acknowledgement", LIMIT, |line| {
                last = acknowledged(line).unwrap_or(last);
                (last >= wanted).then_some(())
            })?;
            let moment = Duration::from_millis(moments.next() % LATER);
            let mut take = |guest: &mut Guest, limit| {
                guest.wait_for("the cut", limit, |line| {
                    last = acknowledged(line).unwrap_or(last);
                    None::<()>
                })
            };
            match take(&mut guest, moment) {
                Err(Failure { kind: FailureKind::TooLate { .. }, .. }) => {}
                ended => bail!("the machine has ended before cut {cut}: {ended:?}"),
            }
            guest.end();
            // Lines that have left the machine count.
            let _ = take(&mut guest, END_LIMIT);
            let mut guest = self.boot(boots, image, line(&["check", &last.to_string()])?, log)?;
            guest.wait_for_end(LIMIT).with_context(|| format!("after cut {cut}, {last} being acknowledged"))?;
        }
        image::check(image).context("the volume after all cuts")
    }

    fn boot(&self, boots: &Boots<'_>, image: &Path, line: String, log: &Path) -> Result<Guest> {
        // Compilers need more memory than the tests of the system.
        let machine = cli::Machine { memory: None, ..boots.machine.clone() };
        let words = ROOT_ON_DISK.to_string() + &line;
        let mut configuration = boots.context.configuration(&boots.products, &machine, words);
        configuration.disks.push(image.to_path_buf());
        Guest::start(&boots.toolchain.qemu, &boots.context.board, &configuration, log, Echo::LogOnly)
    }
}

/// Returns the number of a line that acknowledges.
fn acknowledged(line: &str) -> Option<u64> {
    line.strip_prefix("acknowledged ")?.trim().parse().ok()
}

/// Reads the scripts for cuts, in the order of names.
fn writers(folder: &Path) -> Result<Vec<Writer>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut writers = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(FOR_CUTS) {
            let text = std::fs::read_to_string(entry.path()).with_context(|| format!("cannot read {name}"))?;
            let (packages, _) = exercises::head(&text).with_context(|| format!("{name} does not name its package"))?;
            let packages = packages.split(' ').map(String::from).collect();
            writers.push(Writer { name, packages, text: text.into_bytes() });
        }
    }
    writers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(writers)
}

fn archive_of(files: &[MadeFile]) -> Result<Vec<u8>> {
    let mut writer = cpio::Writer::new(0);
    for (path, permissions, contents) in files {
        writer.file(path.as_bytes(), *permissions, contents).with_context(|| path.clone())?;
    }
    Ok(writer.finish())
}

/// Copies an image, whose blocks of zeros need no room.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = crate::children::command("cp");
    let copied = command.args(["--sparse=always", "--reflink=auto"]).arg(from).arg(to).status();
    match copied {
        Ok(status) if status.success() => Ok(()),
        _ => bail!("{} cannot be copied to {}", from.display(), to.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_names_its_packages_and_is_of_one_kind() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(FOLDER);
        let exercises = exercises::load(&folder).unwrap();
        let writers = writers(&folder).unwrap();
        assert!(!exercises.is_empty() && !writers.is_empty());
        let is_known = |name: &str| {
            exercises.iter().any(|exercise| exercise.name == name) || writers.iter().any(|writer| writer.name == name)
        };
        for entry in std::fs::read_dir(&folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(is_known(name.strip_suffix(".expected").unwrap_or(&name)), "{name}");
        }
        assert!(exercises.iter().all(|exercise| !exercise.name.ends_with(FOR_CUTS)));
        assert!(writers.iter().all(|writer| writer.packages.iter().all(|package| !package.is_empty())));
    }

    #[test]
    fn lines_acknowledge_numbers() {
        assert_eq!(acknowledged("acknowledged 17"), Some(17));
        assert_eq!(acknowledged("acknowledged 17\r"), Some(17));
        assert_eq!(acknowledged("acknowledged 1x"), None);
        assert_eq!(acknowledged("it has acknowledged 1"), None);
    }
}
