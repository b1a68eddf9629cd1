//! Exercises of unmodified programs: scripts in tests/linux that run in the machine, with the output that they have on
//! Linux. Those in tests/disk have a disk as their root ([`crate::lasting`]).
//!
//! All exercises of a folder run in one boot, one after the other, by `apps/linux-init`, which prints a line before and
//! after each. Beside each script is a file with the lines that it must print, of which the last one is its status. The
//! second line of a script names the package that it exercises, perhaps further ones, and its subject; the page of the
//! book is made of these. Long exercises, in a folder of their own, are run by their whole name only.
//!
//! A third line `# source: PACKAGE PATH...` has files or folders of the source of a package of Debian put into the
//! machine, below `/sources/PACKAGE`: test suites that no package of programs has. The source is fetched into the
//! user's cache and is never a part of this tree.
//!
//! The word `built` stands in the place of packages before the name of a program of this tree, which is compiled for
//! Linux ([`BUILT`]).
//!
//! Debian's Linux runs the same exercises in the same emulator, with `bench/peers` as its first process, which reads
//! the same files and prints the same lines.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build::Products;
use crate::context::{self, Context, Need};
use crate::debian::{self, MadeFile, Root};
use crate::guest::Guest;
use crate::lanes::Show;
use crate::linux::{self, DebianKernel, Servers};
use crate::programs::{INIT_PATH, environment, environment_file, strings_file, with_root};
use crate::suites::Tally;

/// The folder of the scripts whose files are in memory.
const IN_MEMORY: &str = "tests/linux";

/// The folder there of the scripts that take long.
const LONG: &str = "long";

/// The page of the book with the outcomes.
const PAGE: &str = "docs/book/linux-programs.md";

/// The language of a program of this tree.
enum Language {
    /// Go, in a folder with a module.
    Go(&'static str),
    /// Rust, in a crate of the program's name.
    Rust,
}

/// The programs of this tree that are compiled for Linux, and the word before their names.
const BUILT: [(&str, Language); 2] = [("exercise-go", Language::Go("tests/go")), ("exercise-tokio", Language::Rust)];
const WORD_OF_BUILT: &str = "built ";

/// The word before the name of a package of sources and the paths in it that the machine has, and their folder there.
const SOURCE: &str = "# source: ";
const SOURCES: &str = "sources";

/// Extension of the files with expected output.
const EXPECTED: &str = "expected";

/// Folder of the scripts in the machine.
const PLACE: &str = "exercises";

/// Longest time from one line of the machine to the next that matters: an exercise that hangs is ended by the machine
/// much earlier.
const LIMIT: Duration = Duration::from_secs(600);

/// Longest such time of a long exercise.
const LONG_LIMIT: Duration = Duration::from_secs(7200);

/// An exercise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exercise {
    /// The script's name.
    pub name: String,
    /// Whether it is run by its whole name only.
    pub is_long: bool,
    /// The package that it exercises, or the program of this tree.
    package: String,
    /// Whether it is a program of this tree.
    pub is_built: bool,
    /// Further packages.
    further: Vec<String>,
    /// Its subject.
    subject: String,
    script: Vec<u8>,
    expected: Vec<String>,
}

/// A system that runs exercises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// COPS on a number of harts.
    Cops(u8),
    /// Debian's Linux in the same emulator.
    Linux,
}

impl Display for System {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            System::Cops(1) => write!(formatter, "1 hart"),
            System::Cops(harts) => write!(formatter, "{harts} harts"),
            System::Linux => write!(formatter, "Linux"),
        }
    }
}

/// The outcome of an exercise on a system: `None` for success, or the first difference.
pub type ExerciseOutcome = (String, System, Option<String>);

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

/// Reads the exercises whose files are in memory, in the order of names, the long ones last.
///
/// # Errors
///
/// As of [`load`].
pub fn load_all(tree: &Path) -> Result<Vec<Exercise>> {
    let folder = tree.join(IN_MEMORY);
    let mut all = load(&folder)?;
    all.extend(load(&folder.join(LONG))?);
    Ok(all)
}

/// Returns the exercises that a filter means: those whose names contain it, and without one all that are not long.
pub fn chosen(all: &[Exercise], filter: Option<&str>) -> Vec<Exercise> {
    let is_meant = |exercise: &&Exercise| match filter {
        Some(filter) if exercise.is_long => exercise.name == filter,
        Some(filter) => exercise.name.contains(filter),
        None => !exercise.is_long,
    };
    all.iter().filter(is_meant).cloned().collect()
}

impl Exercise {
    fn read(file: &Path) -> Result<Exercise> {
        let text =
            |file: &Path| std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
        let script = text(file)?;
        let (packages, subject) =
            head(&script).with_context(|| format!("{} does not name its package", file.display()))?;
        let is_built = packages.starts_with(WORD_OF_BUILT);
        let mut packages = packages.trim_start_matches(WORD_OF_BUILT).split(' ').map(String::from);
        Ok(Exercise {
            name: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            is_long: file.parent().is_some_and(|folder| folder.ends_with(LONG)),
            package: packages.next().unwrap_or_default(),
            is_built,
            further: packages.collect(),
            subject: subject.into(),
            expected: text(&file.with_extension(EXPECTED))?.lines().map(String::from).collect(),
            script: script.into_bytes(),
        })
    }

    /// Returns the packages that it needs.
    pub fn packages(&self) -> impl Iterator<Item = &String> {
        Some(&self.package).filter(|_| !self.is_built).into_iter().chain(&self.further)
    }

    /// Returns the rest of the line of its script that begins with a word.
    pub fn line(&self, word: &str) -> Option<&str> {
        str::from_utf8(&self.script).ok()?.lines().find_map(|line| line.strip_prefix(word))
    }

    fn path(&self) -> String {
        if self.is_long { format!("/{PLACE}/{LONG}/{}", self.name) } else { format!("/{PLACE}/{}", self.name) }
    }

    /// Returns the longest time from one of its lines that matters to the next.
    fn limit(&self) -> Duration {
        if self.is_long { LONG_LIMIT } else { LIMIT }
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
pub fn with_exercises(context: &Context, root: &Root, exercises: &[Exercise], built: &[MadeFile]) -> Result<Products> {
    let (_, products) = context.build(Need::Boot)?;
    with_root(context, products, root, "test", &[files(exercises)?, built.to_vec()].concat())
}

/// Compiles the programs of these exercises that are of this tree.
///
/// # Errors
///
/// A compiler is missing or fails.
pub fn build(context: &Context, exercises: &[Exercise]) -> Result<Vec<MadeFile>> {
    let directory = context.workspace.products().join("linux");
    std::fs::create_dir_all(&directory)?;
    let mut files = Vec::new();
    for exercise in exercises.iter().filter(|exercise| exercise.is_built) {
        let name = &exercise.package[..];
        let found = BUILT.iter().find(|(known, _)| *known == name);
        let (_, language) = found.with_context(|| format!("{} names no program of this tree", exercise.name))?;
        let program = match language {
            Language::Go(module) => linux::compile_go(context, module, &directory, name, "."),
            Language::Rust => linux::compile_rust(context, &directory, name),
        };
        let program = program.with_context(|| format!("the exercise {} cannot be built", exercise.name))?;
        files.push((format!("usr/bin/{name}"), 0o755, program));
    }
    Ok(files)
}

/// Fetches the sources that these exercises name, and returns their files for the machine.
///
/// # Errors
///
/// They cannot be fetched, or have no such file.
pub fn sources(context: &Context, exercises: &[Exercise]) -> Result<Vec<MadeFile>> {
    let mut files = Vec::new();
    for line in exercises.iter().filter_map(|exercise| exercise.line(SOURCE)) {
        let mut words = line.split(' ');
        let package = words.next().unwrap_or_default();
        let directory = debian::source(context, package)?;
        for path in words {
            let found = debian::files_of(&directory, Path::new(path))?;
            let placed = |(path, permissions, bytes)| (format!("{SOURCES}/{package}/{path}"), permissions, bytes);
            files.extend(found.into_iter().map(placed));
        }
    }
    Ok(files)
}

/// Returns Debian's Linux with the packages and these exercises.
///
/// # Errors
///
/// It cannot be fetched, or a file cannot be read or written.
pub fn on_linux(context: &Context, root: &Root, exercises: &[Exercise], built: &[MadeFile]) -> Result<DebianKernel> {
    let linux = DebianKernel::prepare_with(context, Servers::InC)?;
    linux.with_root(context, root, &[files(exercises)?, built.to_vec()].concat())
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
    system: System,
    show: Show,
) -> Result<Vec<ExerciseOutcome>> {
    let mut outcomes = Vec::new();
    for exercise in exercises {
        let begin = format!("exercise {}", exercise.path());
        guest.wait_for("an exercise", LIMIT, |line| (line == begin).then_some(()))?;
        let end = format!("ended {} ", exercise.path());
        let mut printed = Vec::new();
        let status = guest.wait_for("the end of an exercise", exercise.limit(), |line| {
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
        outcomes.push((exercise.name.clone(), system, difference));
    }
    guest.wait_for_end(LIMIT)?;
    Ok(outcomes)
}

/// Returns the numbers of exercises that passed and failed, and the differences of the latter.
pub fn tally(outcomes: &[ExerciseOutcome]) -> (Tally, Vec<String>) {
    let failures =
        outcomes.iter().filter_map(|(name, _, difference)| Some(format!("{name}: {}", difference.as_ref()?)));
    let failures: Vec<_> = failures.collect();
    let failed = failures.len() as u64;
    (Tally { passed: outcomes.len() as u64 - failed, failed, skipped: 0 }, failures)
}

/// Makes the page of the book, for [`record`], from all outcomes of the exercises that were run. The others keep the
/// rows that the page has.
///
/// # Errors
///
/// The file cannot be written.
pub fn keep(context: &Context, root: &Root, all: &[Exercise], outcomes: &[ExerciseOutcome]) -> Result<()> {
    let page = context.workspace.products().join("linux-programs.md");
    let before = std::fs::read_to_string(context.workspace.root.join(PAGE)).unwrap_or_default();
    let is_built = |name: &str| BUILT.iter().any(|(built, _)| *built == name);
    let version = |package: &str| match is_built(package) {
        true => "of this tree".to_string(),
        false => root.version(package).unwrap_or("?").to_string(),
    };
    std::fs::write(&page, text_of(version, all, outcomes, &before))
        .with_context(|| format!("cannot write {}", page.display()))
}

fn text_of(version: impl Fn(&str) -> String, all: &[Exercise], outcomes: &[ExerciseOutcome], before: &str) -> String {
    let mut text = String::from(
        "<!-- Made by `cargo xtask test linux` and `cargo xtask linux list --record`: change tests/linux instead. -->\n\n\
         # Programs built for Linux\n\nThese packages of Debian for riscv64, and programs that are built for Linux, run \
         unmodified, as far as the\nscripts in tests/linux exercise them: each must print what it prints on Linux. [Running\nthem](\
         running-and-debugging.md#programs-built-for-linux) takes one command.\n\n| package | version | exercise | subject | outcome |\n\
         |---|---|---|---|---|\n",
    );
    for exercise in all {
        let Exercise { name, package, subject, .. } = exercise;
        let mut of_this = outcomes.iter().filter(|outcome| outcome.0 == *name).peekable();
        if of_this.peek().is_none() {
            let is_its_row = |line: &&str| line.contains(&format!("| {name} |"));
            text.extend(before.lines().find(is_its_row).map(|row| format!("{row}\n")));
            continue;
        }
        let words: Vec<_> = of_this
            .map(|(_, system, difference)| match difference {
                None => format!("passes on {system}"),
                Some(difference) => format!("fails ({difference}) on {system}"),
            })
            .collect();
        text += &format!("| {package} | {} | {name} | {subject} | {} |\n", version(package), words.join(", "));
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
        let exercises = load_all(tree()).unwrap();
        assert!(
            exercises.iter().any(|exercise| exercise.is_long) && exercises.iter().any(|exercise| !exercise.is_long)
        );
        for exercise in exercises.iter().filter(|exercise| !exercise.is_long) {
            let outcome = "passes on 1 hart, passes on 4 harts, passes on Linux";
            let row = format!("| {} | {} | {outcome} |", exercise.name, exercise.subject);
            assert!(page.contains(&row), "{row}");
            assert!(exercise.expected.last().is_some_and(|line| line.starts_with("status ")), "{}", exercise.name);
        }
    }

    fn named(name: &str, is_long: bool) -> Exercise {
        let (package, further, subject) = ("p".into(), vec!["q".into()], "s".into());
        let (name, script, expected) = (name.into(), Vec::new(), Vec::new());
        Exercise { name, is_long, package, is_built: false, further, subject, script, expected }
    }

    #[test]
    fn long_exercises_are_run_by_their_whole_name() {
        let all = [named("python-a", false), named("python-b", false), named("python-long", true)];
        let names = |filter| chosen(&all, filter).into_iter().map(|exercise| exercise.name).collect::<Vec<_>>();
        assert_eq!(names(None), ["python-a", "python-b"]);
        assert_eq!(names(Some("python")), names(None));
        assert_eq!(names(Some("b")), ["python-b"]);
        assert_eq!(names(Some("python-long")), ["python-long"]);
        assert_eq!(all[0].path(), "/exercises/python-a");
        assert_eq!(all[2].path(), "/exercises/long/python-long");
    }

    /// Rows of exercises that were not run stay, and those of exercises that are gone go.
    #[test]
    fn a_page_is_made_of_outcomes_and_of_the_page_before() {
        let before = "| p | 1 | gone | s | passes |\n| p | 1 | long | s | passes on 1 hart |\n";
        let outcomes = [
            ("a".into(), System::Cops(1), None),
            ("a".into(), System::Cops(4), Some("x".into())),
            ("a".into(), System::Linux, None),
        ];
        let exercises = [named("a", false), named("long", true)];
        let page = text_of(|package| format!("version of {package}"), &exercises, &outcomes, before);
        let rows: Vec<_> = page.lines().skip_while(|line| !line.starts_with("|-")).skip(1).collect();
        assert_eq!(
            rows,
            [
                "| p | version of p | a | s | passes on 1 hart, fails (x) on 4 harts, passes on Linux |",
                "| p | 1 | long | s | passes on 1 hart |"
            ]
        );
    }

    #[test]
    fn the_first_difference_counts() {
        let lines = |text: &str| text.lines().map(String::from).collect::<Vec<_>>();
        let exercise = Exercise { expected: lines("a\nb\nstatus 0"), ..named("x", false) };
        assert_eq!(exercise.difference(&lines("a\nb\nstatus 0")), None);
        assert_eq!(exercise.difference(&lines("a\nc\nstatus 0")).unwrap(), "line 2: `c` and not `b`");
        assert_eq!(exercise.difference(&lines("a\nb")).unwrap(), "line 3: the end and not `status 0`");
        assert_eq!(exercise.difference(&lines("a\nb\nstatus 0\nx")).unwrap(), "line 4: `x` and not the end");
    }
}
