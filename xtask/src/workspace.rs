//! The workspace as cargo sees it: packages, their ranks and sides, and where things are built.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;

use crate::children::{self, Ending};

/// The target that COPS runs on.
pub const TARGET: &str = "riscv64gc-unknown-none-elf";

/// What `cargo metadata` says of this workspace, without what others provide.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    /// The packages of the workspace.
    pub packages: Vec<Package>,
    /// The directory of the root manifest.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    #[serde(rename = "target_directory")]
    target: PathBuf,
}

/// A package.
#[derive(Clone, Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Where its manifest is.
    pub manifest_path: PathBuf,
    /// What it depends on.
    pub dependencies: Vec<Dependency>,
    /// What it is compiled to.
    pub targets: Vec<Target>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

/// A dependency of a package.
#[derive(Clone, Debug, Deserialize)]
pub struct Dependency {
    /// The other package.
    pub name: String,
    /// `dev`, `build` or, for ordinary ones, nothing.
    pub kind: Option<String>,
    /// Where it is, if it is in this workspace.
    pub path: Option<PathBuf>,
}

/// Something a package is compiled to.
#[derive(Clone, Debug, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// `lib`, `bin`, `test` and so on.
    pub kind: Vec<String>,
    /// Its first source file.
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
    /// Where the package stands in the order of dependencies.
    pub rank: String,
    /// On which side of the kernel/user line it is.
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

impl Package {
    /// What the manifest says for this project; `None` if it says nothing.
    pub fn cops(&self) -> Option<&Cops> {
        self.metadata.as_ref()?.cops.as_ref()
    }

    /// Its programs.
    pub fn programs(&self) -> impl Iterator<Item = &Target> {
        self.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "bin"))
    }

    /// Whether the package is a program for COPS, whichever kernel it runs on.
    pub fn is_program(&self) -> bool {
        self.cops().is_some_and(|cops| cops.rank == "app" && cops.side == "user")
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

    /// Whether it has nothing that a host can build: programs for COPS, and what says so.
    pub fn is_target_only(&self) -> bool {
        self.is_program() || self.cops().is_some_and(|cops| cops.target_only)
    }

    /// Whether something that runs on the target is linked from it: a program, a kernel, or what says that it is for
    /// the target only.
    pub fn is_linked(&self) -> bool {
        let is_kernel = self.cops().is_some_and(|cops| cops.rank == "kernel" && cops.side == "kernel");
        self.is_target_only() || (is_kernel && self.programs().count() > 0)
    }
}

impl Workspace {
    /// Asks cargo.
    ///
    /// # Errors
    ///
    /// Cargo fails, usually because a manifest is wrong.
    pub fn load() -> Result<Workspace> {
        let mut command = cargo();
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        command.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(manifest);
        let output = children::output(&mut command, Ending::Kill, Duration::from_secs(120))
            .context("cargo could not be asked about the workspace")?;
        if !output.status.success() {
            bail!("cargo cannot read the workspace:\n{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Workspace::parse(&output.stdout)
    }

    /// Reads what cargo says.
    ///
    /// # Errors
    ///
    /// A manifest's `[package.metadata.cops]` is not as it should be.
    pub fn parse(json: &[u8]) -> Result<Workspace> {
        serde_json::from_slice(json).context("a manifest's [package.metadata.cops] is not as it should be")
    }

    /// The package of this name, if there is one.
    pub fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// Where cargo builds for the host.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The directory for what this program makes.
    pub fn products(&self) -> PathBuf {
        self.target.join("cops")
    }

    /// The directory for serial logs.
    pub fn logs(&self) -> PathBuf {
        self.products().join("logs")
    }
}

/// The cargo that this program was started by, for the host's own builds.
pub fn cargo() -> std::process::Command {
    children::command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Writes a file if that changes it, so that what depends on it is not built again for nothing. Says whether it did.
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
        // Never half a file, whenever this program is ended.
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
                contained: false
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
