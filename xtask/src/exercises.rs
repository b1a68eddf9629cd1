//! Exercises of unmodified programs: scripts in tests/linux that run in the machine, with the output that they have on
//! Linux. Those in tests/disk have a disk as their root ([`crate::lasting`]).
//!
//! All exercises of a folder run in one boot, one after the other, by `apps/linux-init`, which prints a line before and
//! after each. Beside each script is a file with the lines that it must print, of which the last one is its status. The
//! second line of a script names the package that it exercises, perhaps further ones, and its subject; the page of the
//! book is made of these.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build::Products;
use crate::context::{self, Context, Need};
use crate::debian::{MadeFile, Root};
use crate::guest::Guest;
use crate::lanes::Show;
use crate::programs::{INIT_PATH, environment, environment_file, strings_file, with_root};

/// The folder of the scripts whose files are in memory.
pub const IN_MEMORY: &str = "tests/linux";

/// The page of the book with the outcomes.
const PAGE: &str = "docs/book/linux-programs.md";

/// Extension of the files with expected output.
const EXPECTED: &str = "expected";

/// Folder of the scripts in the machine.
const PLACE: &str = "exercises";

/// Longest time from one line of the machine to the next that matters: an exercise that hangs is ended by the machine
/// much earlier.
const LIMIT: Duration = Duration::from_secs(600);

/// An exercise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exercise {
    /// The script's name.
    pub name: String,
    /// The package that it exercises.
    package: String,
    /// Further packages.
    further: Vec<String>,
    /// Its subject.
    subject: String,
    script: Vec<u8>,
    expected: Vec<String>,
}

/// The outcome of an exercise on a number of harts: `None` for success, or the first difference.
pub type ExerciseOutcome = (String, u8, Option<String>);

/// Reads the exercises of a folder, in the order of names.
///
/// # Errors
///
/// A file cannot be read, or its second line is not of the described form.
pub fn load(folder: &Path) -> Result<Vec<Exercise>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.with_extension(EXPECTED).exists() && file.extension().is_none());
    files.sort();
    files.iter().map(|file| Exercise::read(file)).collect()
}

impl Exercise {
    fn read(file: &Path) -> Result<Exercise> {
        let text =
            |file: &Path| std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
        let script = text(file)?;
        let (packages, subject) =
            head(&script).with_context(|| format!("{} does not name its package", file.display()))?;
        let mut packages = packages.split(' ').map(String::from);
        Ok(Exercise {
            name: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            package: packages.next().unwrap_or_default(),
            further: packages.collect(),
            subject: subject.into(),
            expected: text(&file.with_extension(EXPECTED))?.lines().map(String::from).collect(),
            script: script.into_bytes(),
        })
    }

    /// Returns the packages that it needs.
    pub fn packages(&self) -> impl Iterator<Item = &String> {
        [&self.package].into_iter().chain(&self.further)
    }

    /// Returns the rest of the line of its script that begins with a word.
    pub fn line(&self, word: &str) -> Option<&str> {
        str::from_utf8(&self.script).ok()?.lines().find_map(|line| line.strip_prefix(word))
    }

    fn path(&self) -> String {
        format!("/{PLACE}/{}", self.name)
    }

    /// Returns the first difference between the expected lines and those that were printed.
    fn difference(&self, printed: &[String]) -> Option<String> {
        for number in 0..self.expected.len().max(printed.len()) {
            let (expected, printed) = (self.expected.get(number), printed.get(number));
            if expected != printed {
                let words = |line: Option<&String>| line.map_or("the end".into(), |line| format!("`{line}`"));
                return Some(format!("line {}: {} and not {}", number + 1, words(printed), words(expected)));
            }
        }
        None
    }
}

/// Returns the packages of a script and its subject.
pub fn head(script: &str) -> Option<(&str, &str)> {
    script.lines().nth(1).and_then(|line| line.trim_start_matches(['#', '-', ' ']).split_once(": "))
}

/// Fetches the packages of the exercises.
///
/// # Errors
///
/// They cannot be fetched.
pub fn prepare(context: &Context, exercises: &[Exercise]) -> Result<Root> {
    let mut packages: Vec<_> = exercises.iter().flat_map(Exercise::packages).cloned().collect();
    packages.sort();
    packages.dedup();
    Root::prepare(context, &packages)
}

/// Builds the machine, and adds the packages and these exercises to its files.
///
/// # Errors
///
/// The machine cannot be built, or a file is missing.
pub fn with_exercises(context: &Context, root: &Root, exercises: &[Exercise]) -> Result<Products> {
    let (_, products) = context.build(Need::Boot)?;
    with_root(context, products, root, "test", &files(exercises)?)
}

/// Returns the files by which the first process runs these exercises.
///
/// # Errors
///
/// None in truth: the paths of exercises have no character that such files cannot have.
pub fn files(exercises: &[Exercise]) -> Result<Vec<MadeFile>> {
    let paths: Vec<_> = exercises.iter().map(Exercise::path).collect();
    let mut files = vec![
        environment_file(&environment(&["TERM=dumb".into(), "LC_ALL=C".into()]))?,
        strings_file("etc/cops/exercises", &paths)?,
    ];
    files.extend(exercises.iter().map(|exercise| (exercise.path()[1..].into(), 0o755, exercise.script.clone())));
    Ok(files)
}

/// Returns the kernel's command line for a machine that runs exercises.
///
/// # Errors
///
/// None in truth: the path of the first program has no character that such a line cannot have.
pub fn command_line() -> Result<String> {
    context::command_line(&format!("/{INIT_PATH}"), &[])
}

/// Follows a machine that runs these exercises to its end, and returns the outcome of each.
///
/// # Errors
///
/// The machine fails, or is silent for too long.
pub fn follow(
    guest: &mut Guest,
    suite: &str,
    exercises: &[Exercise],
    harts: u8,
    show: Show,
) -> Result<Vec<ExerciseOutcome>> {
    let mut outcomes = Vec::new();
    for exercise in exercises {
        let begin = format!("exercise {}", exercise.path());
        guest.wait_for("an exercise", LIMIT, |line| (line == begin).then_some(()))?;
        let end = format!("ended {} ", exercise.path());
        let mut printed = Vec::new();
        let status = guest.wait_for("the end of an exercise", LIMIT, |line| {
            let status = line.strip_prefix(&end).map(String::from);
            if status.is_none() {
                printed.push(line.to_string());
            }
            status
        })?;
        // The marker begins with the end of a line.
        if printed.last().is_some_and(String::is_empty) {
            printed.pop();
        }
        printed.push(format!("status {status}"));
        let difference = exercise.difference(&printed);
        let verdict = if difference.is_none() { "ok" } else { "FAILED" };
        show(&format!("test {suite}::{} ... {verdict}", exercise.name));
        outcomes.push((exercise.name.clone(), harts, difference));
    }
    guest.wait_for_end(LIMIT)?;
    Ok(outcomes)
}

/// Makes the page of the book, for [`record`], from all outcomes.
///
/// # Errors
///
/// The file cannot be written.
pub fn keep(context: &Context, root: &Root, exercises: &[Exercise], outcomes: &[ExerciseOutcome]) -> Result<()> {
    let page = context.workspace.products().join("linux-programs.md");
    std::fs::write(&page, text_of(root, exercises, outcomes))
        .with_context(|| format!("cannot write {}", page.display()))
}

fn text_of(root: &Root, exercises: &[Exercise], outcomes: &[ExerciseOutcome]) -> String {
    let mut text = String::from(
        "<!-- Made by `cargo xtask test linux` and `cargo xtask linux list --record`: change tests/linux instead. -->\n\n\
         # Programs built for Linux\n\nThese packages of Debian for riscv64 run unmodified, as far as the scripts in \
         tests/linux exercise them: each must\nprint what it prints on Linux. [Running them](running-and-debugging.md\
         #programs-built-for-linux) takes one command.\n\n| package | version | exercise | subject | outcome |\n\
         |---|---|---|---|---|\n",
    );
    for exercise in exercises {
        let version = root.version(&exercise.package).unwrap_or("?");
        let of_this = outcomes.iter().filter(|(name, ..)| *name == exercise.name);
        let words: Vec<_> = of_this
            .map(|(_, harts, difference)| {
                let verdict = difference.as_ref().map_or("passes".into(), |difference| format!("fails ({difference})"));
                format!("{verdict} on {harts} hart{}", if *harts == 1 { "" } else { "s" })
            })
            .collect();
        let Exercise { name, package, subject, .. } = exercise;
        text += &format!("| {package} | {version} | {name} | {subject} | {} |\n", words.join(", "));
    }
    text
}

/// Copies the page of the last complete run into the book.
///
/// # Errors
///
/// There was none.
pub fn record(context: &Context) -> Result<()> {
    let made = context.workspace.products().join("linux-programs.md");
    if !made.exists() {
        bail!("no test has made a list; run: cargo xtask test linux");
    }
    std::fs::copy(&made, context.workspace.root.join(PAGE)).context("the page cannot be written")?;
    Ok(())
}

/// Prints the table of the page.
///
/// # Errors
///
/// It cannot be read.
pub fn list(context: &Context) -> Result<()> {
    let page = context.workspace.root.join(PAGE);
    let text = std::fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    for line in text.lines().filter(|line| line.starts_with('|') && !line.starts_with("|-")) {
        println!("{}", line.trim_matches(['|', ' ']).replace(" | ", "  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn every_exercise_is_on_the_page() {
        let page = std::fs::read_to_string(tree().join(PAGE)).unwrap();
        let exercises = load(&tree().join(IN_MEMORY)).unwrap();
        assert!(!exercises.is_empty());
        for exercise in exercises {
            let row = format!("| {} | {} | passes on 1 hart, passes on 4 harts |", exercise.name, exercise.subject);
            assert!(page.contains(&row), "{row}");
            assert!(exercise.expected.last().is_some_and(|line| line.starts_with("status ")), "{}", exercise.name);
        }
    }

    #[test]
    fn the_first_difference_counts() {
        let lines = |text: &str| text.lines().map(String::from).collect::<Vec<_>>();
        let exercise = Exercise {
            name: "x".into(),
            package: "p".into(),
            further: Vec::new(),
            subject: "s".into(),
            script: Vec::new(),
            expected: lines("a\nb\nstatus 0"),
        };
        assert_eq!(exercise.difference(&lines("a\nb\nstatus 0")), None);
        assert_eq!(exercise.difference(&lines("a\nc\nstatus 0")).unwrap(), "line 2: `c` and not `b`");
        assert_eq!(exercise.difference(&lines("a\nb")).unwrap(), "line 3: the end and not `status 0`");
        assert_eq!(exercise.difference(&lines("a\nb\nstatus 0\nx")).unwrap(), "line 4: `x` and not the end");
    }
}
