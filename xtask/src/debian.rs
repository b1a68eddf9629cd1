//! Unmodified programs from Debian's archive, as files of a machine.
//!
//! apt resolves the packages that a set of packages depends on, as if nothing were installed, and fetches them into the
//! user's cache ([`crate::apt`]). They are unpacked into one directory, the root, and not configured: installation
//! scripts expect a running system. The few files that these scripts would make and programs look for are made here
//! ([`finish`]). Where dpkg is one of the packages, its database has them all, as installed ([`DATABASE`]). An archive
//! of the root's files is the machine's initramfs.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use filesystem::{LastLink, cpio};

use crate::apt::{self, Apt, Packages};
use crate::children;
use crate::context::Context;
use crate::emulator;
use crate::toolchain::{self, Item};

/// The release of Debian, the first one that has this architecture.
pub const SUITE: &str = "trixie";
/// The architecture.
pub const ARCHITECTURE: &str = "riscv64";

/// Packages of every root: those that others may use without depending on them, as far as a system that installs
/// nothing needs them, and the descriptions of terminals.
const BASIC: [&str; 17] = [
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "gawk",
    "grep",
    "gzip",
    "hostname",
    "libc-bin",
    "ncurses-base",
    "netbase",
    "sed",
    "tar",
];

/// Parts of packages that no program reads while it runs, and that would take memory of the machine.
const LEFT_OUT: [&str; 6] = ["doc", "man", "info", "lintian", "locale", "bug"];

/// Directories of programs, in the order of the search path.
const PROGRAMS: [&str; 4] = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin"];

/// The search path of programs in the machine.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names that installation scripts give to the first of some programs that is there.
const ALTERNATIVES: [(&str, &[&str]); 7] = [
    ("usr/bin/awk", &["gawk", "mawk"]),
    ("usr/bin/c++", &["g++"]),
    ("usr/bin/cc", &["gcc"]),
    ("usr/bin/lua", &["lua5.4"]),
    ("usr/bin/nc", &["nc.openbsd", "nc.traditional"]),
    ("usr/bin/pager", &["less", "more"]),
    ("usr/bin/which", &["which.debianutils"]),
];

/// Age at which lists of packages are fetched again.
const AGE: Duration = Duration::from_secs(24 * 3600);

/// Number of the way in which packages become a root. To be changed with the functions below, so that roots of the
/// former way are not used.
const FORMAT: u32 = 5;

/// The package that installs others in the machine, with a database of those that are there.
const INSTALLER: &str = "dpkg";
/// Its database.
const DATABASE: &str = "var/lib/dpkg";

/// Greatest number of links in a path.
const MOST_LINKS: usize = 40;

/// Number of roots that are kept.
const ROOTS: usize = 4;

/// Size of a page, at a multiple of which the contents of files lie in the archive.
const PAGE: usize = 4096;

/// A package of Debian.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its architecture, `all` for one that fits each.
    architecture: String,
}

impl Package {
    /// Returns the name that apt gives to its file.
    fn file_name(&self) -> String {
        format!("{}_{}_{}.deb", self.name, self.version.replace(':', "%3a"), self.architecture)
    }
}

/// A file beside those of packages: its path, permissions and contents.
pub type MadeFile = (String, u16, Vec<u8>);

/// Packages that are unpacked in one directory.
#[derive(Debug)]
pub struct Root {
    directory: PathBuf,
    packages: Vec<Package>,
}

impl Root {
    /// Fetches packages, the basic ones and all that they depend on, and unpacks them; at once if that has been done
    /// before.
    ///
    /// # Errors
    ///
    /// The host has no apt, Debian's archive is not configured or cannot be reached, there is no such package.
    pub fn prepare(context: &Context, names: &[String]) -> Result<Root> {
        let cache = cache()?;
        let apt = Apt::new(&cache, SUITE, Packages::Programs(ARCHITECTURE))?;
        update(context, &apt, &cache)?;
        let packages = resolve(context, &apt, names)?;
        fetch(context, &apt, &cache, &packages)?;
        let directory = unpack(context, &cache, &packages)?;
        Ok(Root { directory, packages })
    }

    /// Returns the path in the machine of a program, which is a path already or a name to look for.
    ///
    /// # Errors
    ///
    /// No package has it.
    pub fn program(&self, name: &str) -> Result<String> {
        if name.contains('/') {
            return Ok(name.into());
        }
        let is_there = |directory: &&&str| self.directory.join(directory).join(name).symlink_metadata().is_ok();
        match PROGRAMS.iter().find(is_there) {
            Some(directory) => Ok(format!("/{directory}/{name}")),
            None => bail!("none of the packages has a program `{name}`; name the package that has it as well"),
        }
    }

    /// Returns the file on this host that has this path in the machine, if there is one.
    pub fn file(&self, path: &str) -> Option<PathBuf> {
        inside(&self.directory, Path::new(path), LastLink::Follow).ok().filter(|file| file.is_file())
    }

    /// Returns the directory on this host.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the version of a package of the root.
    pub fn version(&self, name: &str) -> Option<&str> {
        self.packages.iter().find(|package| package.name == name).map(|package| &package.version[..])
    }

    /// Makes an archive of all files and some more, each with its path, permissions and contents.
    ///
    /// # Errors
    ///
    /// A file cannot be read or put into an archive.
    pub fn archive(&self, more: &[MadeFile]) -> Result<Vec<u8>> {
        self.archive_by(cpio::Writer::new(0).aligned(PAGE), more)
    }

    /// Makes the archive for Linux, which copies the files out of it.
    ///
    /// # Errors
    ///
    /// As of [`archive`](Root::archive).
    pub fn archive_for_linux(&self, more: &[MadeFile]) -> Result<Vec<u8>> {
        self.archive_by(cpio::Writer::new(0), more)
    }

    fn archive_by(&self, mut writer: cpio::Writer, more: &[MadeFile]) -> Result<Vec<u8>> {
        add(&mut writer, &self.directory, "")?;
        // Linux makes no file whose directory is not there.
        let mut made = BTreeSet::new();
        for (path, permissions, content) in more {
            let mut above: Vec<_> = Path::new(path).ancestors().skip(1).filter_map(Path::to_str).collect();
            above.reverse();
            for directory in above {
                if !self.directory.join(directory).is_dir() && made.insert(directory) {
                    writer.directory(directory.as_bytes(), 0o755).with_context(|| path.clone())?;
                }
            }
            writer.file(path.as_bytes(), *permissions, content).with_context(|| path.clone())?;
        }
        Ok(writer.finish())
    }
}

/// Fetches the lists of packages if those of the last time are old or missing.
fn update(context: &Context, apt: &Apt, cache: &Path) -> Result<()> {
    let stamp = cache.join("updated");
    let modified = std::fs::metadata(&stamp).and_then(|data| data.modified());
    let age = modified.as_ref().ok().map(|modified| SystemTime::now().duration_since(*modified).unwrap_or_default());
    if age.is_some_and(|age| age < AGE) {
        return Ok(());
    }
    let activity = context.progress.start(format!("Fetching Debian's lists of packages ({SUITE})"));
    match apt.update() {
        Ok(()) => {
            std::fs::write(&stamp, "")?;
            activity.clear();
            Ok(())
        }
        Err(error) if modified.is_ok() => {
            drop(activity);
            eprintln!("The lists of packages of the last time are used: {error:#}");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Returns the packages with those that they depend on, in the order of installation.
fn resolve(context: &Context, apt: &Apt, names: &[String]) -> Result<Vec<Package>> {
    let activity = context.progress.start("Resolving packages");
    let mut arguments = vec!["--simulate", "--no-install-recommends", "install"];
    arguments.extend(BASIC);
    for name in names {
        let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "+-.".contains(letter);
        // apt takes other letters for options, patterns and versions.
        if !name.chars().all(is_name) || !name.starts_with(|letter: char| letter.is_ascii_alphanumeric()) {
            bail!("`{name}` is no name of a package");
        }
        arguments.push(name);
    }
    let said = apt
        .run("apt-get", &arguments)
        .map_err(|error| anyhow::anyhow!("{} ({SUITE} at {})", apt::reason(&format!("{error:#}")), apt.archive()))?;
    activity.clear();
    let packages: Vec<_> = said.lines().filter_map(installation).collect();
    if packages.is_empty() {
        bail!("apt-get names no packages");
    }
    Ok(packages)
}

/// Parses a line of a simulated installation: `Inst NAME (VERSION SOURCE [ARCHITECTURE])`.
fn installation(line: &str) -> Option<Package> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
    let (version, rest) = rest.split_once(' ')?;
    let (_, rest) = rest.split_once('[')?;
    let (architecture, _) = rest.split_once(']')?;
    Some(Package { name: name.into(), version: version.into(), architecture: architecture.into() })
}

/// Fetches the file of a package of Debian, and returns its path.
///
/// # Errors
///
/// As of [`Root::prepare`].
pub fn package_file(context: &Context, name: &str) -> Result<PathBuf> {
    let cache = cache()?;
    let apt = Apt::new(&cache, SUITE, Packages::Programs(ARCHITECTURE))?;
    update(context, &apt, &cache)?;
    let mut packages = resolve(context, &apt, &[name.into()])?;
    packages.retain(|package| package.name == name);
    fetch(context, &apt, &cache, &packages)?;
    let package = packages.first().with_context(|| format!("apt-get does not name the package {name}"))?;
    Ok(file_of(&cache, package))
}

/// Fetches and unpacks the source of packages of Debian, and returns its directory; at once if that has been done
/// before.
///
/// # Errors
///
/// As of [`Root::prepare`], or the host has no dpkg-source.
pub fn source(context: &Context, name: &str) -> Result<PathBuf> {
    let cache = cache_of("source")?;
    let apt = Apt::new(&cache, SUITE, Packages::Sources)?;
    update(context, &apt, &cache)?;
    let described = apt.run("apt-cache", &["showsrc", "--only-source", name])?;
    let version = newest_source(&described).with_context(|| format!("{SUITE} has no source of {name}"))?;
    let directory = cache.join(format!("{name}_{}", version.replace(':', "%3a")));
    if directory.exists() {
        return Ok(directory);
    }
    toolchain::ensure_on_host(&[Item::DpkgSource, Item::Patch], &context.progress)?;
    let activity = context.progress.start(format!("Fetching the source of {name}"));
    // Renamed when complete.
    let part = cache.join(format!("part-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
    let exact = format!("{name}={version}");
    apt.run_in(&part, "apt-get", &["source", "--download-only", "--only-source", &exact])?;
    let mut files = std::fs::read_dir(&part)?.filter_map(|entry| Some(entry.ok()?.path()));
    let description = files
        .find(|file| file.extension().is_some_and(|extension| extension == "dsc"))
        .context("apt-get has downloaded no source")?;
    activity.detail("unpacking");
    // apt has compared every file with the signed lists; the packager's own key need not be on this host.
    let mut unpack = children::command("dpkg-source");
    unpack.args(["--no-check", "--extract"]).arg(&description).arg(part.join("source"));
    apt::output(unpack, "dpkg-source")?;
    let kept = std::fs::rename(part.join("source"), &directory);
    let _ = std::fs::remove_dir_all(&part);
    // Another run may have unpacked it meanwhile.
    if !directory.exists() {
        kept.with_context(|| format!("cannot keep {}", directory.display()))?;
    }
    activity.finish(&version);
    Ok(directory)
}

/// Returns the first version in the output of `apt-cache showsrc`, which begins with the newest.
fn newest_source(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("Version: ")).map(|version| version.trim().to_string())
}

/// Returns a file, or the files below a directory, each with its path below `directory` and its permissions; links are
/// left out.
///
/// # Errors
///
/// A file cannot be read.
pub fn files_of(directory: &Path, path: &Path) -> Result<Vec<MadeFile>> {
    let place = directory.join(path);
    let data = place.symlink_metadata().with_context(|| format!("cannot read {}", place.display()))?;
    let mut files = Vec::new();
    if data.is_dir() {
        let mut entries = std::fs::read_dir(&place)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            files.extend(files_of(directory, &path.join(entry.file_name()))?);
        }
    } else if data.is_file() {
        let bytes = std::fs::read(&place).with_context(|| format!("cannot read {}", place.display()))?;
        let name = path.to_str().with_context(|| format!("{} has no name in Unicode", place.display()))?;
        files.push((name.to_string(), (data.permissions().mode() & 0o777) as u16, bytes));
    }
    Ok(files)
}

/// Returns the directory of the packages' files, which it makes.
fn cache() -> Result<PathBuf> {
    cache_of(ARCHITECTURE)
}

fn cache_of(kind: &str) -> Result<PathBuf> {
    let cache = emulator::cache()?.join(format!("debian-{SUITE}-{kind}"));
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    Ok(cache)
}

/// Fetches the files of packages that the cache lacks.
fn fetch(context: &Context, apt: &Apt, cache: &Path, packages: &[Package]) -> Result<()> {
    let missing = || packages.iter().filter(|package| !file_of(cache, package).exists()).collect::<Vec<_>>();
    let wanted = missing();
    if wanted.is_empty() {
        return Ok(());
    }
    let activity = context.progress.start_steps("Fetching packages", wanted.len() as u64);
    // A few at a time, for the progress.
    for (step, part) in wanted.chunks(8).enumerate() {
        activity.advance_to(step as u64 * 8);
        activity.detail(&part[0].name);
        let words: Vec<_> = part.iter().map(|package| format!("{}={}", package.name, package.version)).collect();
        let mut arguments = vec!["download"];
        arguments.extend(words.iter().map(String::as_str));
        apt.run("apt-get", &arguments).map_err(|error| {
            anyhow::anyhow!("{} gives no packages: {}", apt.archive(), apt::reason(&format!("{error:#}")))
        })?;
    }
    if let Some(package) = missing().first() {
        bail!("apt-get has downloaded no {}", package.file_name());
    }
    activity.finish(&format!("{} from {}", wanted.len(), apt.archive()));
    Ok(())
}

fn file_of(cache: &Path, package: &Package) -> PathBuf {
    cache.join(package.file_name())
}

/// Unpacks packages into a directory of their own, and returns it.
fn unpack(context: &Context, cache: &Path, packages: &[Package]) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (FORMAT, LEFT_OUT, ALTERNATIVES, packages).hash(&mut hasher);
    let roots = context.workspace.products().join("linux-programs");
    let directory = roots.join(format!("{:016x}", hasher.finish()));
    if directory.exists() {
        return Ok(directory);
    }
    // Renamed when complete.
    let part = roots.join(format!("part-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
    let activity = context.progress.start_steps("Unpacking packages", packages.len() as u64);
    // The package with the links from the old directories to those below /usr goes first.
    let (first, others): (Vec<_>, Vec<_>) = packages.iter().partition(|package| package.name == "base-files");
    let root = part.join("root");
    std::fs::create_dir(&root)?;
    let mut database = packages.iter().any(|package| package.name == INSTALLER).then(Database::default);
    for (step, package) in first.into_iter().chain(others).enumerate() {
        activity.advance_to(step as u64);
        activity.detail(&package.name);
        // Alone, where no link of another package can lead out of the directory.
        let alone = part.join("package");
        let mut command = children::command("dpkg-deb");
        command.arg("--extract").arg(file_of(cache, package)).arg(&alone);
        apt::output(command, &format!("unpacking {}", package.file_name()))?;
        if let Some(database) = &mut database {
            database.add(&file_of(cache, package), &alone)?;
        }
        merge(&alone, &root, Path::new("")).with_context(|| format!("{} cannot be unpacked", package.name))?;
        std::fs::remove_dir_all(&alone)?;
    }
    activity.clear();
    finish(&root)?;
    if let Some(database) = database {
        database.write(&root.join(DATABASE))?;
    }
    let kept = std::fs::rename(&root, &directory);
    let _ = std::fs::remove_dir_all(&part);
    // Another run may have unpacked the same packages meanwhile.
    if !directory.exists() {
        kept.with_context(|| format!("cannot keep {}", directory.display()))?;
    }
    remove_old(&roots, &directory);
    Ok(directory)
}

/// The database of dpkg: what is installed, and of each package the names of its files, its scripts and what else it
/// has about itself (deb(5), dpkg-query(1)).
#[derive(Default)]
struct Database {
    status: String,
    /// Files about packages.
    about: Vec<(String, Vec<u8>)>,
    /// The packages that act when a file changes, and those that act on events of other names (deb-triggers(5)).
    of_files: String,
    of_events: BTreeMap<String, String>,
}

impl Database {
    /// Adds the package of a file, whose own files are in a directory.
    fn add(&mut self, file: &Path, unpacked: &Path) -> Result<()> {
        let control = unpacked.with_extension("control");
        let mut command = children::command("dpkg-deb");
        command.arg("--control").arg(file).arg(&control);
        apt::output(command, &format!("reading {}", file.display()))?;
        let fields = std::fs::read_to_string(control.join("control"))
            .with_context(|| format!("{} has no description", file.display()))?;
        let name = self.add_fields(&fields).with_context(|| format!("{} has no name", file.display()))?;
        for entry in std::fs::read_dir(&control)? {
            let entry = entry?;
            let kind = entry.file_name().to_string_lossy().into_owned();
            if kind == "control" {
                continue;
            }
            let bytes = std::fs::read(entry.path())?;
            if kind == "triggers" {
                self.add_triggers(name.split(':').next().unwrap_or(&name), &String::from_utf8_lossy(&bytes));
            }
            self.about.push((format!("{name}.{kind}"), bytes));
        }
        std::fs::remove_dir_all(&control)?;
        let mut paths = vec!["/.".to_string()];
        add_paths(unpacked, "", &mut paths)?;
        self.about.push((format!("{name}.list"), (paths.join("\n") + "\n").into_bytes()));
        Ok(())
    }

    /// Adds the description of a package, and returns the name that its files about it have.
    fn add_fields(&mut self, fields: &str) -> Option<String> {
        let value = |name: &str| fields.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let name = value("Package")?;
        // Packages of one name for several architectures are told apart by it.
        let file_name = match (value("Multi-Arch"), value("Architecture")) {
            (Some("same"), Some(architecture)) => format!("{name}:{architecture}"),
            _ => name.into(),
        };
        for line in fields.trim_end().lines() {
            self.status += line;
            self.status.push('\n');
            if line.starts_with("Package: ") {
                self.status += "Status: install ok installed\n";
            }
        }
        self.status.push('\n');
        Some(file_name)
    }

    /// Adds the interests of a package.
    fn add_triggers(&mut self, package: &str, text: &str) {
        for line in text.lines() {
            let Some((kind, event)) = line.trim().split_once(' ') else { continue };
            let package = match kind {
                "interest" | "interest-await" => package.to_string(),
                "interest-noawait" => format!("{package}/noawait"),
                _ => continue,
            };
            if event.starts_with('/') {
                self.of_files += &format!("{event} {package}\n");
            } else {
                *self.of_events.entry(event.into()).or_default() += &format!("{package}\n");
            }
        }
    }

    fn write(&self, directory: &Path) -> Result<()> {
        let (about, triggers) = (directory.join("info"), directory.join("triggers"));
        let of_events =
            self.of_events.iter().map(|(event, packages)| (triggers.join(event), packages.as_bytes(), 0o644));
        for directory in [&about, &directory.join("updates"), &triggers] {
            std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let made = [("status", &self.status[..]), ("available", ""), ("arch", &format!("{ARCHITECTURE}\n"))];
        let made = made.map(|(name, text)| (directory.join(name), text.as_bytes(), 0o644));
        let of_packages = self.about.iter().map(|(name, bytes)| {
            let is_script =
                ["preinst", "postinst", "prerm", "postrm", "config"].iter().any(|kind| name.ends_with(kind));
            (about.join(name), &bytes[..], if is_script { 0o755 } else { 0o644 })
        });
        let format = (about.join("format"), &b"1\n"[..], 0o644);
        // Without a list of events that wait, dpkg takes every interest for one.
        let waiting = (triggers.join("Unincorp"), &b""[..], 0o644);
        let of_files = (triggers.join("File"), self.of_files.as_bytes(), 0o644);
        for (path, bytes, mode) in
            made.into_iter().chain(of_packages).chain([format, waiting, of_files]).chain(of_events)
        {
            std::fs::write(&path, bytes)
                .and_then(|()| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Adds the absolute paths of all files below a directory, each directory before what it has.
fn add_paths(directory: &Path, below: &str, paths: &mut Vec<String>) -> Result<()> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = format!("{below}/{}", entry.file_name().to_string_lossy());
        paths.push(path.clone());
        if entry.file_type()?.is_dir() {
            add_paths(&entry.path(), &path, paths)?;
        }
    }
    Ok(())
}

/// Returns where a path of the machine lies on this host. Links on the way, and at its end if `last` says so, lead
/// where they lead in the machine, so that the result is below the root in any case.
fn inside(root: &Path, path: &Path, last: LastLink) -> Result<PathBuf> {
    let mut left: Vec<_> = path.components().rev().map(|part| part.as_os_str().to_owned()).collect();
    let mut found = PathBuf::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => {
                found.pop();
            }
            Some(Component::RootDir) => found.clear(),
            Some(Component::Normal(_)) => {
                let here = root.join(&found).join(&part);
                let is_followed = !left.is_empty() || last == LastLink::Follow;
                match std::fs::read_link(&here) {
                    Ok(target) if is_followed => {
                        links += 1;
                        if links > MOST_LINKS {
                            bail!("too many links in {}", path.display());
                        }
                        left.extend(target.components().rev().map(|part| part.as_os_str().to_owned()));
                    }
                    _ => found.push(&part),
                }
            }
            _ => {}
        }
    }
    Ok(root.join(found))
}

/// Moves the files of a package that was unpacked alone into a root, but for those that are left out.
fn merge(from: &Path, root: &Path, below: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from.join(below))? {
        let name = below.join(entry?.file_name());
        let (source, data) = (from.join(&name), from.join(&name).symlink_metadata()?);
        if LEFT_OUT.iter().any(|part| name.parent() == Some(&Path::new("usr/share").join(part))) {
            continue;
        }
        if data.is_dir() {
            // Where a link has the name of a directory, the directory's files go where the link leads.
            let target = inside(root, &name, LastLink::Follow)?;
            if !target.exists() {
                std::fs::create_dir(&target)?;
            }
            std::fs::set_permissions(&target, data.permissions())?;
            merge(from, root, &name)?;
            continue;
        }
        let target = inside(root, &name, LastLink::Keep)?;
        match target.symlink_metadata() {
            // As with dpkg, a directory stays where another package has a link.
            Ok(there) if there.is_dir() => continue,
            Ok(_) => std::fs::remove_file(&target)?,
            Err(_) => {}
        }
        std::fs::rename(&source, &target)?;
    }
    Ok(())
}

/// Makes files that installation scripts would make.
fn finish(root: &Path) -> Result<()> {
    for (master, file) in [
        ("usr/share/base-passwd/passwd.master", "etc/passwd"),
        ("usr/share/base-passwd/group.master", "etc/group"),
        ("usr/share/base-files/nsswitch.conf", "etc/nsswitch.conf"),
        ("usr/share/base-files/profile", "etc/profile"),
        ("usr/share/base-files/dot.bashrc", "root/.bashrc"),
    ] {
        let master = inside(root, Path::new(master), LastLink::Follow)?;
        let target = inside(root, Path::new(file), LastLink::Keep)?;
        if master.is_file() && target.symlink_metadata().is_err() {
            std::fs::copy(master, target).with_context(|| format!("cannot make {file}"))?;
        }
    }
    for (file, content) in [("etc/hostname", "cops\n"), ("etc/hosts", "127.0.0.1 localhost cops\n")] {
        let target = inside(root, Path::new(file), LastLink::Keep)?;
        if target.symlink_metadata().is_err() {
            std::fs::write(target, content).with_context(|| format!("cannot make {file}"))?;
        }
    }
    for (name, programs) in ALTERNATIVES {
        let name = inside(root, Path::new(name), LastLink::Keep)?;
        let is_there = |program: &&&str| name.with_file_name(program).symlink_metadata().is_ok();
        let there = programs.iter().find(is_there);
        if let Some(program) = there.filter(|_| name.symlink_metadata().is_err()) {
            symlink(program, &name).with_context(|| format!("cannot make {}", name.display()))?;
        }
    }
    Ok(())
}

/// Removes roots but for the newest ones, and parts of unpackings that were ended.
fn remove_old(roots: &Path, newest: &Path) {
    let mut others: Vec<_> =
        std::fs::read_dir(roots).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    others.retain(|path| path != newest && path.is_dir());
    others.sort_by_key(|path| std::fs::metadata(path).and_then(|data| data.modified()).ok());
    others.reverse();
    for (place, path) in others.iter().enumerate() {
        let part = path.file_name().and_then(|name| name.to_str()?.strip_prefix("part-")?.parse::<u32>().ok());
        let is_left = part.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists());
        if is_left || (part.is_none() && place + 1 >= ROOTS) {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Adds the contents of a directory to an archive, in the order of names.
fn add(writer: &mut cpio::Writer, directory: &Path, below: &str) -> Result<()> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = if below.is_empty() { name.into_owned() } else { format!("{below}/{name}") };
        let data = path.symlink_metadata().with_context(|| format!("cannot read {}", path.display()))?;
        let permissions = (data.permissions().mode() & 0o7777) as u16;
        if data.is_dir() {
            writer.directory(name.as_bytes(), permissions)?;
            add(writer, &path, &name)?;
        } else if data.is_symlink() {
            writer.symbolic_link(name.as_bytes(), std::fs::read_link(&path)?.as_os_str().as_encoded_bytes())?;
        } else if data.is_file() {
            let content = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            writer.file(name.as_bytes(), permissions, &content)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_a_simulated_installation() {
        let package =
            installation("Inst zlib1g (1:1.3.dfsg+really1.3.1-1+b1 Debian:13.7/stable [riscv64]) []").unwrap();
        assert_eq!((&package.name[..], &package.architecture[..]), ("zlib1g", "riscv64"));
        assert_eq!(package.file_name(), "zlib1g_1%3a1.3.dfsg+really1.3.1-1+b1_riscv64.deb");
        assert_eq!(installation("Conf bash (5.2 Debian:13.7/stable [riscv64])"), None);
        assert_eq!(installation("Inst"), None);
    }

    /// Links of packages lead to places below the root, as they would in the machine, and never out of it.
    #[test]
    fn links_of_packages_do_not_lead_out_of_the_root() {
        let directory = std::env::temp_dir().join(format!("xtask-merge-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let (root, outside) = (directory.join("root"), directory.join("outside"));
        let [first, second] = ["first", "second"].map(|name| directory.join(name));
        for folder in [&root, &outside, &first.join("usr/bin"), &second.join("absolute"), &second.join("up")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::create_dir_all(second.join("bin")).unwrap();
        std::fs::create_dir_all(second.join("usr/share/doc/x")).unwrap();
        symlink("usr/bin", first.join("bin")).unwrap();
        symlink(&outside, first.join("absolute")).unwrap();
        symlink("../outside", first.join("up")).unwrap();
        for file in ["bin/tool", "absolute/file", "up/file", "usr/share/doc/x/text"] {
            std::fs::write(second.join(file), file).unwrap();
        }
        merge(&first, &root, Path::new("")).unwrap();
        std::fs::create_dir(root.join("outside")).unwrap();
        merge(&second, &root, Path::new("")).unwrap_err();
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        // In the machine the absolute link has no target; with one, the file goes there.
        let below = root.join(outside.strip_prefix("/").unwrap());
        std::fs::create_dir_all(&below).unwrap();
        merge(&second, &root, Path::new("")).unwrap();
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        assert!(below.join("file").exists() && root.join("outside/file").exists());
        assert_eq!(std::fs::read(root.join("usr/bin/tool")).unwrap(), b"bin/tool");
        assert!(!root.join("usr/share/doc/x").exists());
        assert_eq!(inside(&root, Path::new("up/../../.."), LastLink::Follow).unwrap(), root);
        symlink("loop", root.join("loop")).unwrap();
        assert!(inside(&root, Path::new("loop/x"), LastLink::Keep).is_err());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn descriptions_become_the_database_of_installed_packages() {
        let mut database = Database::default();
        let library = "Package: libx\nVersion: 1\nArchitecture: riscv64\nMulti-Arch: same\nDescription: x\n more\n";
        let tool = "Package: tool\nVersion: 2\nArchitecture: all\nDepends: libx\n\n";
        assert_eq!(database.add_fields(library).as_deref(), Some("libx:riscv64"));
        assert_eq!(database.add_fields(tool).as_deref(), Some("tool"));
        assert_eq!(database.add_fields("Version: 1\n"), None);
        let expected = "Package: libx\nStatus: install ok installed\nVersion: 1\nArchitecture: riscv64\n\
                        Multi-Arch: same\nDescription: x\n more\n\n\
                        Package: tool\nStatus: install ok installed\nVersion: 2\nArchitecture: all\n\
                        Depends: libx\n\n";
        assert_eq!(database.status, expected);
        database
            .add_triggers("libx", "# by ldconfig\ninterest-await ldconfig\nactivate other\ninterest-noawait /usr/x");
        database.add_triggers("tool", "interest /usr/y\ninterest ldconfig\n");
        assert_eq!(database.of_files, "/usr/x libx/noawait\n/usr/y tool\n");
        assert_eq!(database.of_events, BTreeMap::from([("ldconfig".into(), "libx\ntool\n".into())]));
    }

    #[test]
    fn a_root_becomes_an_archive_with_links_and_permissions() {
        let directory = std::env::temp_dir().join(format!("xtask-root-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(directory.join("usr/bin")).unwrap();
        std::fs::create_dir_all(directory.join("etc")).unwrap();
        symlink("usr/bin", directory.join("bin")).unwrap();
        std::fs::write(directory.join("usr/bin/gawk"), vec![7; 2 * PAGE]).unwrap();
        std::fs::set_permissions(directory.join("usr/bin/gawk"), PermissionsExt::from_mode(0o751)).unwrap();
        finish(&directory).unwrap();
        let root = Root { directory: directory.clone(), packages: Vec::new() };
        assert_eq!(root.program("awk").unwrap(), "/usr/bin/awk");
        assert_eq!(root.program("./awk").unwrap(), "./awk");
        assert!(root.program("sed").is_err());
        assert_eq!(root.file("/bin/awk"), Some(directory.join("usr/bin/gawk")));
        assert_eq!(root.file("/bin/sed"), None);
        let archive = root.archive(&[("etc/more".into(), 0o600, b"more".to_vec())]).unwrap();
        let entries: Vec<_> = cpio::entries(&archive).collect::<Result<_, _>>().unwrap();
        let found: Vec<_> = entries
            .iter()
            .map(|entry| (String::from_utf8_lossy(entry.path).into_owned(), entry.permissions, entry.data.len()))
            .collect();
        let names: Vec<_> = found.iter().map(|(name, ..)| &name[..]).collect();
        assert_eq!(
            names,
            ["bin", "etc", "etc/hostname", "etc/hosts", "usr", "usr/bin", "usr/bin/awk", "usr/bin/gawk", "etc/more"]
        );
        assert_eq!(found[7], ("usr/bin/gawk".into(), 0o751, 2 * PAGE));
        assert_eq!(entries[6].data, b"gawk");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
