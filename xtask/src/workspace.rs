//! The workspace in cargo's view: packages, their ranks and sides, and build directories.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;

use crate::children::{self, Ending};

/// The target that COPS runs on.
pub const TARGET: &str = "riscv64gc-unknown-none-elf";

/// Output of `cargo metadata` for this workspace, without other packages.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    /// The packages of the workspace.
    pub packages: Vec<Crate>,
    /// The directory of the root manifest.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    #[serde(rename = "target_directory")]
    target: PathBuf,
}

/// A package.
#[derive(Clone, Debug, Deserialize)]
pub struct Crate {
    /// Name of the package.
    pub name: String,
    /// Path of its manifest.
    pub manifest_path: PathBuf,
    /// Its dependencies.
    pub dependencies: Vec<Dependency>,
    /// The targets that it is compiled to.
    pub targets: Vec<CrateTarget>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

/// A dependency of a package.
#[derive(Clone, Debug, Deserialize)]
pub struct Dependency {
    /// Name of the other package.
    pub name: String,
    /// `dev`, `build` or, for ordinary ones, `None`.
    pub kind: Option<String>,
    /// Path of the other package, if it is in this workspace.
    pub path: Option<PathBuf>,
    /// Features of the other package that it asks for.
    #[serde(default)]
    pub features: Vec<String>,
}

/// A library, program or test of a package.
#[derive(Clone, Debug, Deserialize)]
pub struct CrateTarget {
    /// Name of the target.
    pub name: String,
    /// `lib`, `bin`, `test` and so on.
    pub kind: Vec<String>,
    /// Path of its first source file.
    pub src_path: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    cops: Option<Cops>,
}

/// `[package.metadata.cops]`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Cops {
    /// Place of the package in the order of dependencies.
    pub rank: String,
    /// Side of the kernel/user line.
    pub side: String,
    /// Whether it can be built for the target only, and so has no tests on the host.
    #[serde(default)]
    pub target_only: bool,
    /// For a program: the kernel that it runs on.
    #[serde(default)]
    pub kernel: Kernel,
    /// For a program of the microkernel: whether root tasks contain it and start it.
    #[serde(default)]
    pub contained: bool,
    /// For a kernel that is a suite: the only machine that it tests; the default is each.
    #[serde(default)]
    pub machine: Option<String>,
}

/// A kernel, and so a kind of programs.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// The Unix-like kernel.
    #[default]
    Unix,
    /// The microkernel with seL4's interface.
    Micro,
}

impl Crate {
    /// Returns the manifest's table for this project; `None` without one.
    pub fn cops(&self) -> Option<&Cops> {
        self.metadata.as_ref()?.cops.as_ref()
    }

    /// Returns the programs of the package.
    pub fn programs(&self) -> impl Iterator<Item = &CrateTarget> {
        self.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "bin"))
    }

    /// Whether the package is a program for COPS without the standard library, whichever kernel it runs on.
    pub fn is_program(&self) -> bool {
        self.is_app() && !self.has_std()
    }

    fn is_app(&self) -> bool {
        self.cops().is_some_and(|cops| cops.rank == "app" && cops.side == "user")
    }

    /// Whether its programs have the standard library and the runtime of COPS. They are built for Linux on riscv64.
    pub fn has_std(&self) -> bool {
        // Of the features of `cops`: two others need it.
        let is_std = |feature: &String| ["std", "futures-io", "hyper"].contains(&feature.as_str());
        let asks = |needed: &Dependency| needed.name == "runtime" && needed.features.iter().any(is_std);
        self.dependencies.iter().any(asks)
    }

    /// Whether the package is a program that runs on this kernel.
    pub fn is_program_for(&self, kernel: Kernel) -> bool {
        self.is_program() && self.cops().is_some_and(|cops| cops.kernel == kernel)
    }

    /// Whether the package is a root task of the microkernel.
    pub fn is_root_task(&self) -> bool {
        self.is_program_for(Kernel::Micro) && !self.is_contained()
    }

    /// Whether the package is a program that root tasks contain and start.
    pub fn is_contained(&self) -> bool {
        self.is_program_for(Kernel::Micro) && self.cops().is_some_and(|cops| cops.contained)
    }

    /// Returns whether the package has no part that a host can build: programs for COPS, and packages declared so.
    pub fn is_target_only(&self) -> bool {
        self.is_program() || self.has_std() || self.cops().is_some_and(|cops| cops.target_only)
    }

    /// Returns whether an image for the target is linked from the package: a program, a kernel, or a package declared
    /// as target-only.
    pub fn is_linked(&self) -> bool {
        let is_kernel = self.cops().is_some_and(|cops| cops.rank == "kernel" && cops.side == "kernel");
        (self.is_target_only() && !self.has_std()) || (is_kernel && self.programs().count() > 0)
    }
}

impl Workspace {
    /// Runs `cargo metadata`.
    ///
    /// # Errors
    ///
    /// Cargo fails, usually because a manifest is wrong.
    pub fn load() -> Result<Workspace> {
        Workspace::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
    }

    /// Runs `cargo metadata` for the workspace or package of a manifest.
    ///
    /// # Errors
    ///
    /// Cargo fails, usually because a manifest is wrong.
    pub fn of(manifest: &Path) -> Result<Workspace> {
        let mut command = cargo();
        command.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(manifest);
        let output = children::output(&mut command, Ending::Kill, Duration::from_secs(120))
            .context("cargo could not be asked about the workspace")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("cargo cannot read {}:\n{}", manifest.display(), said.trim());
        }
        Workspace::parse(&output.stdout)
    }

    /// Parses the output of `cargo metadata`.
    ///
    /// # Errors
    ///
    /// A manifest's `[package.metadata.cops]` is invalid.
    pub fn parse(json: &[u8]) -> Result<Workspace> {
        serde_json::from_slice(json).context("a manifest's [package.metadata.cops] is not as it should be")
    }

    /// The package of this name, if there is one.
    pub fn package(&self, name: &str) -> Option<&Crate> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// Returns cargo's build directory for the host.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the directory for this program's products.
    pub fn products(&self) -> PathBuf {
        self.target.join("cops")
    }

    /// Returns the folder of the boards.
    pub fn boards(&self) -> PathBuf {
        self.root.join("boards")
    }

    /// Returns the directory for serial logs.
    pub fn logs(&self) -> PathBuf {
        self.products().join("logs")
    }
}

/// Returns the cargo that started this program, for builds for the host.
pub fn cargo() -> std::process::Command {
    children::command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Writes a file if that changes it, so that its dependants are not built again without need. Returns whether it did.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_if_changed(file: &Path, content: &[u8]) -> Result<bool> {
    if std::fs::read(file).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    let write = || {
        std::fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
        // Renamed when complete, so that the file is never half written, whenever this program is ended.
        let part = file.with_extension(format!("part-{}", std::process::id()));
        std::fs::write(&part, content)?;
        std::fs::rename(&part, file)
    };
    write().with_context(|| format!("cannot write {}", file.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_understood() {
        let workspace = Workspace::load().unwrap();
        let xtask = workspace.package("xtask").unwrap();
        assert_eq!(
            xtask.cops(),
            Some(&Cops {
                rank: "tool".into(),
                side: "host".into(),
                target_only: false,
                kernel: Kernel::Unix,
                contained: false,
                machine: None
            })
        );
        assert_eq!(xtask.programs().count(), 1);
        assert!(!xtask.is_linked() && !xtask.is_target_only() && !xtask.is_program());
        assert!(
            workspace.package("hello").unwrap().is_linked() && workspace.package("kernel-unix").unwrap().is_linked()
        );
        assert!(!workspace.package("matrix").unwrap().is_linked());
        let root_task = workspace.package("root-task").unwrap();
        assert!(root_task.is_program_for(Kernel::Micro) && !root_task.is_program_for(Kernel::Unix));
        assert!(workspace.package("hello").unwrap().is_program_for(Kernel::Unix));
        assert!(xtask.dependencies.iter().any(|dependency| dependency.name == "load" && dependency.path.is_some()));
    }

    #[test]
    fn a_file_is_written_only_when_it_changes() {
        let directory = std::env::temp_dir().join(format!("xtask-write-{}", std::process::id()));
        let file = directory.join("deep/file.bin");
        assert!(write_if_changed(&file, b"one").unwrap());
        assert!(!write_if_changed(&file, b"one").unwrap());
        assert!(write_if_changed(&file, b"two").unwrap());
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
