//! The rules of the source tree that no compiler checks.
//!
//! * Every package declares its rank and side; dependencies point to equal or lower ranks and never across the
//!   kernel/user line; scheduler and hal do not depend on each other.
//! * Every crate forbids unsafe code, except those in the unsafe table of ARCHITECTURE.md, where each has its reason.
//! * ARCHITECTURE.md names every crate, and no crate in its unsafe table that is not there or needs no place in it.
//! * Manifests take lints, edition, version, licence and dependencies from the workspace, where each third-party crate
//!   is chosen once and with a reason.
//! * Property tests take their number of cases from the crate `property`, so that one variable scales all of them.
//! * Links in the Markdown documents lead to files and headings that are there, and names that a document places in a
//!   Rust file are in it ([`crate::links`]).
//! * No crate has a name without a meaning: `common`, `utils`, and the like.
//!
//! [`problems`] is a pure function of the read data, so that each rule has its test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace::{Cops, Crate, Workspace};

/// Ranks, from low to high; those of one element are equal.
const RANKS: [&[&str]; 6] = [&["abi"], &["part"], &["kernel-part", "user"], &["kernel"], &["app"], &["tool"]];

/// The sides, each with those that it may depend on.
const SIDES: [(&str, &[&str]); 4] = [
    ("both", &["both"]),
    ("kernel", &["both", "kernel"]),
    ("user", &["both", "user"]),
    ("host", &["both", "kernel", "user", "host"]),
];

/// Sides that a build script may depend on.
const RUN_ON_THE_HOST: &[&str] = &["both", "host"];

/// The attribute by which the properties of a file set their number of cases.
const CASES: &str = "#![proptest_config(property::cases(";

/// Names without a test of membership.
const EMPTY_NAMES: [&str; 8] = ["common", "utils", "util", "misc", "core", "helpers", "shared", "base"];

/// Fields of `[package]` that come from the workspace.
const INHERITED: [&str; 3] = ["version", "edition", "license"];

/// The data that tidy reads of one package.
#[derive(Clone, Debug)]
struct Facts {
    name: String,
    cops: Option<Cops>,
    /// Names of workspace packages that the crate itself needs.
    dependencies: Vec<String>,
    /// Names of workspace packages that its build script needs, which runs on the host.
    build_dependencies: Vec<String>,
    /// The first source files of library and programs, with the text of each.
    roots: Vec<(String, String)>,
    manifest: String,
    /// Whether it runs in the compiler: such a crate is no part of its users.
    is_macro: bool,
}

/// Checks the workspace and prints the problems.
///
/// # Errors
///
/// There is a problem.
pub fn tidy(workspace: &Workspace) -> Result<()> {
    let facts = workspace.packages.iter().map(|package| read(package, workspace)).collect::<Result<Vec<_>>>()?;
    let architecture = std::fs::read_to_string(workspace.root.join("ARCHITECTURE.md")).ok();
    let root = std::fs::read_to_string(workspace.root.join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let mut problems = problems(&facts, architecture.as_deref());
    problems.extend(undocumented_choices(&root));
    for package in &workspace.packages {
        let folder = package.manifest_path.parent().unwrap_or(Path::new("."));
        for file in sources(folder)? {
            let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let name = file.strip_prefix(&workspace.root).unwrap_or(&file).display().to_string();
            problems.extend(unscaled_properties(&name, &text));
        }
    }
    problems.extend(crate::links::broken_links(&workspace.root)?);
    let (mut texts, documents) = crate::structure::texts(&workspace.root)?;
    texts.extend(documents);
    problems.extend(crate::prose::objections(&workspace.root, &texts)?);
    if problems.is_empty() {
        println!("tidy: {} packages, nothing to object to", facts.len());
        return Ok(());
    }
    for problem in &problems {
        println!("tidy: {problem}");
    }
    bail!("tidy has {} objection{}", problems.len(), if problems.len() == 1 { "" } else { "s" })
}

fn read(package: &Crate, workspace: &Workspace) -> Result<Facts> {
    let relative = |file: &Path| file.strip_prefix(&workspace.root).unwrap_or(file).display().to_string();
    let text = |file: &Path| std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    let is_root = |kind: &String| kind != "test" && kind != "bench" && kind != "example" && kind != "custom-build";
    let mut roots = Vec::new();
    for target in package.targets.iter().filter(|target| target.kind.iter().any(is_root)) {
        roots.push((relative(&target.src_path), text(&target.src_path)?));
    }
    let dependencies = |kind: Option<&str>| {
        let of_kind = package.dependencies.iter().filter(move |one| one.path.is_some() && one.kind.as_deref() == kind);
        of_kind.map(|dependency| dependency.name.clone()).collect()
    };
    Ok(Facts {
        name: package.name.clone(),
        cops: package.cops().cloned(),
        dependencies: dependencies(None),
        build_dependencies: dependencies(Some("build")),
        roots,
        manifest: text(&package.manifest_path)?,
        is_macro: package.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro")),
    })
}

fn problems(packages: &[Facts], architecture: Option<&str>) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        problems.extend(dependency_problems(package, packages));
        problems.extend(manifest_problems(package));
        if EMPTY_NAMES.contains(&package.name.as_str()) || package.name.starts_with("cops-") {
            problems.push(format!("`{}` is a name that says nothing about its content", package.name));
        }
    }
    match architecture {
        Some(architecture) => problems.extend(architecture_problems(packages, architecture)),
        None => problems.push("ARCHITECTURE.md is missing".into()),
    }
    problems
}

fn rank(cops: &Cops) -> Option<usize> {
    RANKS.iter().position(|names| names.contains(&cops.rank.as_str()))
}

fn dependency_problems(package: &Facts, packages: &[Facts]) -> Vec<String> {
    let name = &package.name;
    let Some(cops) = &package.cops else {
        return vec![format!("`{name}` has no [package.metadata.cops] with rank and side")];
    };
    let mut problems = Vec::new();
    let own_rank = rank(cops);
    if own_rank.is_none() {
        problems.push(format!("`{name}` has the rank `{}`; ranks are {}", cops.rank, RANKS.concat().join(", ")));
    }
    let Some((_, may_use)) = SIDES.iter().find(|(side, _)| *side == cops.side) else {
        let sides = SIDES.map(|(side, _)| side).join(", ");
        problems.push(format!("`{name}` is on the side `{}`; sides are {sides}", cops.side));
        return problems;
    };
    let sides = package.dependencies.iter().map(|dependency| (dependency, *may_use));
    for (dependency, may_use) in sides.chain(package.build_dependencies.iter().map(|script| (script, RUN_ON_THE_HOST)))
    {
        let Some(other) = packages.iter().find(|package| package.name == *dependency) else { continue };
        // A package without a declaration is reported as such.
        let Some(other_cops) = &other.cops else { continue };
        if let (Some(own), Some(others)) = (own_rank, rank(other_cops))
            && others > own
        {
            problems.push(format!(
                "`{name}` ({}) depends on `{dependency}` ({}), which ranks higher",
                cops.rank, other_cops.rank
            ));
        }
        if !may_use.contains(&other_cops.side.as_str()) && !other.is_macro {
            problems
                .push(format!("`{name}` (side {}) depends on `{dependency}` (side {})", cops.side, other_cops.side));
        }
        let scheduler = |name: &str| ["scheduler", "coroutine", "vdso"].contains(&name);
        let hal = |name: &str| name == "hal" || name.starts_with("hal-");
        if (scheduler(name) && hal(dependency)) || (hal(name) && scheduler(dependency)) {
            problems.push(format!("`{name}` depends on `{dependency}`: scheduler and hal do not know each other"));
        }
    }
    problems
}

fn manifest_problems(package: &Facts) -> Vec<String> {
    let name = &package.name;
    let manifest: toml::Table = match toml::from_str(&package.manifest) {
        Ok(manifest) => manifest,
        Err(error) => return vec![format!("the manifest of `{name}` cannot be read: {error}")],
    };
    let inherits = |value: Option<&toml::Value>| {
        value.and_then(|value| value.get("workspace")).and_then(toml::Value::as_bool) == Some(true)
    };
    let mut problems = Vec::new();
    let own = manifest.get("package");
    for field in INHERITED {
        if !inherits(own.and_then(|own| own.get(field))) {
            problems.push(format!("the manifest of `{name}` does not say `{field}.workspace = true`"));
        }
    }
    if own.and_then(|own| own.get("description")).is_none() {
        problems.push(format!("the manifest of `{name}` has no description"));
    }
    if !inherits(manifest.get("lints")) {
        problems.push(format!("the manifest of `{name}` does not take its lints from the workspace"));
    }
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = [Some(&manifest)].into_iter().flatten();
    let tables =
        tables.chain(targets.into_iter().flat_map(|targets| targets.values()).filter_map(toml::Value::as_table));
    for table in tables {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (dependency, value) in table.get(section).and_then(toml::Value::as_table).into_iter().flatten() {
                // A neighbour is named by its path as well as through the workspace.
                if !inherits(Some(value)) && value.get("path").is_none() {
                    problems.push(format!("`{name}` does not take its dependency `{dependency}` from the workspace"));
                }
            }
        }
    }
    problems
}

fn architecture_problems(packages: &[Facts], architecture: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let named: BTreeSet<&str> = code_words(architecture).collect();
    let allowed = unsafe_table(architecture);
    for package in packages {
        let name = package.name.as_str();
        if !named.contains(name) {
            problems.push(format!("ARCHITECTURE.md does not name `{name}`"));
        }
        let forbids = |text: &str| attributes(text).any(|line| line.contains("forbid(unsafe_code)"));
        if allowed.contains(name) {
            if !package.roots.is_empty() && package.roots.iter().all(|(_, text)| forbids(text)) {
                problems
                    .push(format!("`{name}` forbids unsafe code; ARCHITECTURE.md's unsafe table lists it for nothing"));
            }
        } else {
            for (file, _) in package.roots.iter().filter(|(_, text)| !forbids(text)) {
                problems.push(format!(
                    "{file} does not forbid unsafe code, and `{name}` is not in ARCHITECTURE.md's unsafe table"
                ));
            }
        }
    }
    for name in &allowed {
        if !packages.iter().any(|package| package.name == *name) {
            problems.push(format!("ARCHITECTURE.md's unsafe table lists `{name}`, which does not exist"));
        }
    }
    problems
}

/// Returns a source file's inner attributes. Those of a crate come before its first item.
fn attributes(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| line.starts_with("#!["))
}

/// Returns the words between backticks.
fn code_words(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns the crates of the unsafe table: the words in code type in the first column of the tables under a heading
/// with the word "unsafe".
fn unsafe_table(architecture: &str) -> BTreeSet<&str> {
    let mut within = false;
    let mut names = BTreeSet::new();
    for line in architecture.lines() {
        if line.starts_with('#') {
            within = line.to_lowercase().contains("unsafe");
        } else if within && let Some(cells) = line.trim().strip_prefix('|') {
            names.extend(code_words(cells.split('|').next().unwrap_or_default()));
        }
    }
    names
}

/// Finds the source files below a package's folder.
///
/// # Errors
///
/// A folder cannot be read.
pub fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = ["src", "tests"].iter().map(|name| folder.join(name)).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Finds property tests of a source file whose number of cases does not come from the crate `property`.
fn unscaled_properties(file: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_scaled = |line: Option<&&str>| line.is_some_and(|line| line.starts_with(CASES));
    let unscaled = (0..lines.len()).filter(|&at| lines[at] == "proptest! {" && !is_scaled(lines.get(at + 1)));
    unscaled.map(|at| format!("{file}:{}: `proptest!` does not begin with `{CASES}…)]`", at + 1)).collect()
}

/// Finds third-party crates that the root manifest chooses without a reason in a comment. A comment covers the lines
/// that follow it without an empty line between.
fn undocumented_choices(root: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut within, mut explained) = (false, false);
    for line in root.lines().map(str::trim) {
        if line.starts_with('[') {
            within = line == "[workspace.dependencies]";
            explained = false;
        } else if within {
            if line.is_empty() {
                explained = false;
            } else if line.starts_with('#') {
                explained = true;
            } else if let Some((name, value)) = line.split_once('=')
                && !explained
                && !value.contains("path =")
            {
                problems.push(format!("Cargo.toml chooses `{}` without a comment that says why", name.trim()));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Kernel;

    const MANIFEST: &str = "[package]\nname = 'x'\ndescription = 'x'\nversion.workspace = true\nedition.workspace = true\n\
                            license.workspace = true\n[lints]\nworkspace = true\n";

    fn package(name: &str, rank: &str, side: &str, dependencies: &[&str]) -> Facts {
        Facts {
            name: name.into(),
            cops: Some(Cops {
                rank: rank.into(),
                side: side.into(),
                target_only: false,
                kernel: Kernel::Unix,
                contained: false,
                machine: None,
            }),
            build_dependencies: Vec::new(),
            dependencies: dependencies.iter().map(|name| name.to_string()).collect(),
            roots: vec![(format!("{name}/src/lib.rs"), "//! Text.\n#![no_std]\n#![forbid(unsafe_code)]\n".into())],
            manifest: MANIFEST.into(),
            is_macro: false,
        }
    }

    const ARCHITECTURE: &str = "# Map\n`a` `b` `hal-x` `scheduler`\n## Unsafe code\n| crate | why |\n|---|---|\n";

    fn objections(packages: &[Facts]) -> Vec<String> {
        problems(packages, Some(ARCHITECTURE))
    }

    #[test]
    fn dependencies_that_point_down_are_fine() {
        let packages = [
            package("a", "abi", "both", &[]),
            package("b", "kernel", "kernel", &["a", "hal-x"]),
            package("hal-x", "part", "kernel", &["a"]),
            package("scheduler", "part", "both", &["a"]),
        ];
        assert_eq!(objections(&packages), Vec::<String>::new());
    }

    #[test]
    fn dependencies_that_point_up_or_across_are_not() {
        let one = |rank, side, other_rank, other_side| {
            objections(&[package("a", rank, side, &["b"]), package("b", other_rank, other_side, &[])])
        };
        assert_eq!(one("abi", "both", "part", "both"), ["`a` (abi) depends on `b` (part), which ranks higher"]);
        assert_eq!(one("kernel", "kernel", "user", "user"), ["`a` (side kernel) depends on `b` (side user)"]);
        assert_eq!(one("app", "user", "kernel", "kernel"), ["`a` (side user) depends on `b` (side kernel)"]);
        assert_eq!(one("part", "both", "part", "kernel"), ["`a` (side both) depends on `b` (side kernel)"]);
        let script = |side| {
            let app = Facts { build_dependencies: vec!["b".into()], ..package("a", "app", "user", &[]) };
            objections(&[app, package("b", "user", side, &[])])
        };
        assert!(script("host").is_empty());
        assert_eq!(script("user"), ["`a` (side user) depends on `b` (side user)"]);
        assert!(one("user", "user", "kernel-part", "kernel").len() == 1);
        assert!(one("tool", "host", "kernel", "kernel").is_empty());
        let mut macros = package("b", "user", "host", &[]);
        macros.is_macro = true;
        assert!(objections(&[package("a", "user", "user", &["b"]), macros]).is_empty());
        let strangers = [package("hal-x", "part", "both", &["scheduler"]), package("scheduler", "part", "both", &[])];
        assert_eq!(
            objections(&strangers),
            ["`hal-x` depends on `scheduler`: scheduler and hal do not know each other"]
        );
    }

    #[test]
    fn rank_and_side_must_be_known() {
        let mut nothing = package("a", "abi", "both", &[]);
        nothing.cops = None;
        assert_eq!(objections(&[nothing]), ["`a` has no [package.metadata.cops] with rank and side"]);
        assert!(objections(&[package("a", "high", "both", &[])])[0].contains("has the rank `high`"));
        assert!(objections(&[package("a", "abi", "left", &[])])[0].contains("is on the side `left`"));
    }

    #[test]
    fn unsafe_code_is_forbidden_except_where_the_table_says() {
        let mut open = package("a", "abi", "both", &[]);
        open.roots[0].1 = "//! #![forbid(unsafe_code)] is a quotation\n#![no_std]\n".into();
        let text = objections(std::slice::from_ref(&open)).join("\n");
        assert_eq!(text, "a/src/lib.rs does not forbid unsafe code, and `a` is not in ARCHITECTURE.md's unsafe table");

        let table =
            format!("{ARCHITECTURE}| `a` (`not in the first column`) | assembly, like `b` |\n\n# Other\n| `c` | |\n");
        let listed: Vec<_> = unsafe_table(&table).into_iter().collect();
        assert_eq!(listed, ["a", "not in the first column"]);
        let table = format!("{ARCHITECTURE}| `a` | assembly |\n");
        assert!(problems(&[open], Some(&table)).is_empty());
        assert!(problems(&[package("a", "abi", "both", &[])], Some(&table))[0].contains("for nothing"));
        assert!(problems(&[package("b", "abi", "both", &[])], Some(&table))[0].contains("which does not exist"));
    }

    #[test]
    fn every_crate_is_in_the_map() {
        assert_eq!(objections(&[package("unknown", "abi", "both", &[])]), ["ARCHITECTURE.md does not name `unknown`"]);
        assert_eq!(problems(&[], None), ["ARCHITECTURE.md is missing"]);
    }

    #[test]
    fn names_must_say_something() {
        let text = problems(&[package("utils", "abi", "both", &[])], Some("`utils`"));
        assert!(text[0].contains("says nothing"), "{text:?}");
    }

    #[test]
    fn manifests_inherit() {
        let mut own = package("a", "abi", "both", &[]);
        own.manifest = "[package]\nname = 'a'\nversion = '1.0.0'\nedition.workspace = true\nlicense.workspace = true\n\
                        [dependencies]\nb.workspace = true\nc = '1'\ne = { path = '../e' }\n[target.'cfg(loom)'.dev-dependencies]\nd = { version = '1' }\n"
            .into();
        assert_eq!(
            objections(&[own]),
            [
                "the manifest of `a` does not say `version.workspace = true`",
                "the manifest of `a` has no description",
                "the manifest of `a` does not take its lints from the workspace",
                "`a` does not take its dependency `c` from the workspace",
                "`a` does not take its dependency `d` from the workspace",
            ]
        );
    }

    #[test]
    fn properties_are_scaled_by_one_variable() {
        let text = "    proptest! {\n        #![proptest_config(property::cases(256))]\n    }\n\nproptest! {\n    #[test]\n}\n";
        let found = unscaled_properties("a.rs", text);
        assert_eq!(found, ["a.rs:5: `proptest!` does not begin with `#![proptest_config(property::cases(…)]`"]);
        assert!(unscaled_properties("a.rs", "proptest! {").len() == 1);
    }

    #[test]
    fn third_party_crates_are_chosen_with_a_reason() {
        let root = "[workspace.dependencies]\na = { path = \"a\" }\n# Why.\nb = \"1\"\nc = \"1\"\n\nd = \"1\"\n[profile.dev]\ne = 1\n";
        assert_eq!(undocumented_choices(root), ["Cargo.toml chooses `d` without a comment that says why"]);
    }
}
