//! An apt of this program's own: packages of another release or architecture, and sources, from Debian's archive,
//! without a change of the host's configuration. apt checks the archive's signature and every checksum.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::children::{self, Ending};

/// Debian's keys, with which its archive is signed.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Longest time of one command.
const LIMIT: Duration = Duration::from_secs(900);

/// The kind of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packages {
    /// Programs for an architecture.
    Programs(&'static str),
    /// Sources.
    Sources,
}

/// An apt with a configuration of its own.
#[derive(Debug)]
pub struct Apt {
    directory: PathBuf,
    configuration: PathBuf,
}

impl Apt {
    /// Writes the configuration into `directory`, which is the current directory of each command.
    ///
    /// # Errors
    ///
    /// The host's apt is not configured for Debian's archive, or a file cannot be written.
    pub fn new(directory: &Path, suite: &str, packages: Packages) -> Result<Apt> {
        let apt = directory.join("apt");
        for part in ["state/lists/partial", "cache/archives/partial", "sources"] {
            std::fs::create_dir_all(apt.join(part))?;
        }
        let (kind, architecture) = match packages {
            Packages::Programs(architecture) => ("deb", Some(architecture)),
            Packages::Sources => ("deb-src", None),
        };
        let mut source = format!(
            "Types: {kind}\nURIs: {}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n",
            debian_archive()?
        );
        let path = |part: &str| apt.join(part).display().to_string();
        let mut configuration = format!(
            "Dir::State \"{}\";\nDir::Cache \"{}\";\nDir::State::status \"{}\";\nDir::Etc::SourceList \"/dev/null\";\n\
             Dir::Etc::SourceParts \"{}\";\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n",
            path("state"),
            path("cache"),
            path("status"),
            path("sources"),
        );
        if let Some(architecture) = architecture {
            source += &format!("Architectures: {architecture}\n");
            configuration +=
                &format!("APT::Architecture \"{architecture}\";\nAPT::Architectures {{\"{architecture}\";}};\n");
        }
        std::fs::write(apt.join("sources/debian.sources"), source)?;
        std::fs::write(apt.join("status"), "")?;
        let file = apt.join("apt.conf");
        std::fs::write(&file, configuration)?;
        Ok(Apt { directory: directory.to_path_buf(), configuration: file })
    }

    /// Runs a program of apt and returns its output.
    ///
    /// # Errors
    ///
    /// It fails; the message has its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = children::command(program);
        command.args(arguments).env("APT_CONFIG", &self.configuration).current_dir(&self.directory);
        output(command, &format!("{program} {}", arguments.first().unwrap_or(&"")))
    }
}

/// Returns the archive from which the host's apt takes Debian's packages.
fn debian_archive() -> Result<String> {
    let mut command = children::command("apt-get");
    command.args(["indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Identifier: Packages"]);
    let text = output(command, "apt-get indextargets").context("Debian's archive needs apt")?;
    archive_of(&text).context("this host's apt is not configured for Debian's archive; add it to its sources")
}

/// Chooses Debian's main archive from lines of origin and address.
fn archive_of(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(origin, address)| *origin == "Debian" && !address.contains("security"))
        .map(|(_, address)| address.trim().to_string())
}

fn output(mut command: Command, name: &str) -> Result<String> {
    let output = children::output(&mut command, Ending::Kill, LIMIT).with_context(|| format!("{name} did not end"))?;
    if !output.status.success() {
        bail!("{name} failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_debians_main_one() {
        let text = "Other a://x/\nDebian a://host/debian-security/\nDebian a://host/debian/\nDebian b://y/\n";
        assert_eq!(archive_of(text).as_deref(), Some("a://host/debian/"));
        assert_eq!(archive_of("Other a://x/\n"), None);
    }
}
