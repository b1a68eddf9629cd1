//! An apt of this program's own: packages of another release or architecture, and sources, from Debian's archive,
//! without a change of the host's configuration. apt checks the archive's signature and every checksum.
//!
//! A mirror that is being updated can have a release's signed list of sums and lists of packages of different days,
//! which apt refuses. A mirror has each release under two names, which it may update at different times; so the other
//! name is tried, and counts only if the release behind it says that it is the wanted one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::children::{self, Ending};

/// Debian's keys, with which its archive is signed.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The name under which archives have the newest release as well.
const NEWEST: &str = "stable";

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
    /// The archive's address.
    archive: String,
    /// The release's own name.
    suite: String,
    /// The file that tells apt where the release is, without the name of the release.
    source: String,
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
        let archive = debian_archive()?;
        let mut source = format!("Types: {kind}\nURIs: {archive}\nComponents: main\nSigned-By: {KEYRING}\n");
        let path = |part: &str| apt.join(part).display().to_string();
        let mut configuration = format!(
            "Dir::State \"{}\";\nDir::Cache \"{}\";\nDir::State::status \"{}\";\nDir::Etc::SourceList \"/dev/null\";\n\
             Dir::Etc::SourceParts \"{}\";\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\nAPT::Update::Error-Mode \"any\";\n\
             Acquire::http::Timeout \"20\";\nAcquire::https::Timeout \"20\";\n",
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
        std::fs::write(apt.join("status"), "")?;
        let file = apt.join("apt.conf");
        std::fs::write(&file, configuration)?;
        let (directory, suite) = (directory.to_path_buf(), suite.to_string());
        let apt = Apt { directory, configuration: file, archive, suite, source };
        // The lists that an earlier run has fetched are those of the name in this file.
        if !apt.sources().exists() {
            apt.write_source(&apt.suite)?;
        }
        Ok(apt)
    }

    fn sources(&self) -> PathBuf {
        self.directory.join("apt/sources/debian.sources")
    }

    fn write_source(&self, suite: &str) -> Result<()> {
        std::fs::write(self.sources(), format!("{}Suites: {suite}\n", self.source))?;
        Ok(())
    }

    /// Returns the archive's address.
    pub fn archive(&self) -> &str {
        &self.archive
    }

    /// Fetches the lists of packages.
    ///
    /// # Errors
    ///
    /// The archive cannot be reached, or its lists do not fit its signature.
    pub fn update(&self) -> Result<()> {
        self.write_source(&self.suite)?;
        let Err(error) = self.run("apt-get", &["update"]) else { return Ok(()) };
        self.write_source(NEWEST)?;
        let is_the_same = self.run("apt-get", &["update"]).is_ok()
            && self.run("apt-cache", &["policy"]).is_ok_and(|text| has_release(&text, &self.suite));
        if is_the_same {
            return Ok(());
        }
        self.write_source(&self.suite)?;
        bail!("the lists of {} cannot be fetched from {}: {}", self.suite, self.archive, reason(&format!("{error:#}")))
    }

    /// Runs a program of apt and returns its output.
    ///
    /// # Errors
    ///
    /// It fails; the message has its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.run_in(&self.directory, program, arguments)
    }

    /// Runs a program of apt in a directory, which gets the files that it downloads, and returns its output.
    ///
    /// # Errors
    ///
    /// As of [`run`](Apt::run).
    pub fn run_in(&self, directory: &Path, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = children::command(program);
        command.args(arguments).env("APT_CONFIG", &self.configuration).current_dir(directory);
        output(command, &format!("{program} {}", arguments.first().unwrap_or(&"")))
    }

    /// Downloads a package and unpacks it, without those that it depends on. Returns the directory of its files.
    ///
    /// # Errors
    ///
    /// There is no such package, or it cannot be fetched or unpacked.
    pub fn unpacked(&self, package: &str) -> Result<PathBuf> {
        self.run("apt-get", &["download", package])?;
        let mut entries = std::fs::read_dir(&self.directory)?.filter_map(|entry| Some(entry.ok()?.path()));
        let file = entries
            .find(|file| file.extension().is_some_and(|extension| extension == "deb"))
            .context("apt-get has downloaded nothing")?;
        let root = self.directory.join("root");
        let mut unpack = children::command("dpkg-deb");
        unpack.arg("--extract").arg(&file).arg(&root);
        output(unpack, &format!("unpacking {package}"))?;
        Ok(root)
    }
}

/// Returns whether the output of `apt-cache policy` has this release.
fn has_release(text: &str, suite: &str) -> bool {
    let wanted = format!("n={suite}");
    text.lines().any(|line| {
        line.trim().strip_prefix("release ").is_some_and(|fields| fields.split(',').any(|field| field == wanted))
    })
}

/// Returns the first reason in the messages of apt, in one line.
pub fn reason(text: &str) -> &str {
    let reasons = text.lines().filter_map(|line| line.trim().strip_prefix("E: "));
    reasons.chain(text.lines()).map(str::trim).find(|line| !line.is_empty()).unwrap_or("apt does not say why")
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

/// Returns a command's output.
///
/// # Errors
///
/// It fails; the message has its output.
pub fn output(mut command: Command, name: &str) -> Result<String> {
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
    fn the_first_reason_of_apt_is_the_one_that_counts() {
        assert_eq!(reason("apt-get update failed (exit status: 100):\nW: x\nE: no host\nE: others\n"), "no host");
        assert_eq!(reason("\n said otherwise \n"), "said otherwise");
    }

    #[test]
    fn a_release_is_known_by_its_own_name() {
        let text = " 500 http://x stable/main\n     release v=13.7,o=Debian,a=stable,n=trixie,l=Debian\n";
        assert!(has_release(text, "trixie"));
        assert!(!has_release(text, "forky") && !has_release(text, "trix"));
    }

    #[test]
    fn the_archive_is_debians_main_one() {
        let text = "Other a://x/\nDebian a://host/debian-security/\nDebian a://host/debian/\nDebian b://y/\n";
        assert_eq!(archive_of(text).as_deref(), Some("a://host/debian/"));
        assert_eq!(archive_of("Other a://x/\n"), None);
    }
}
