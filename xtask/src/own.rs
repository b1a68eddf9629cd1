//! Programs and files of the user's own, from outside the tree: `new` makes a package, and `run` takes a package, an
//! ELF file and any other files into the machine, beside the programs of the tree.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use filesystem::cpio::{self, EntryKind};

use crate::build::{self, Products};
use crate::cli;
use crate::context::{Context, Need};
use crate::root_task;
use crate::toolchain::Toolchain;
use crate::workspace::{Crate, Workspace, write_if_changed};

/// The files of a new package, but for its manifest and its lock file.
const FILES: [(&str, &str); 3] = [
    ("build.rs", include_str!("../template/build.rs")),
    ("src/main.rs", include_str!("../template/main.rs")),
    (".gitignore", include_str!("../template/gitignore")),
];
const MANIFEST: &str = include_str!("../template/Cargo.toml.in");

/// The files of a new package with the standard library, and its manifest.
const FILES_WITH_STD: [(&str, &str); 2] =
    [("src/main.rs", include_str!("../template/std/main.rs")), (".gitignore", include_str!("../template/gitignore"))];
const MANIFEST_WITH_STD: &str = include_str!("../template/std/Cargo.toml.in");

/// Makes a package outside the tree.
///
/// # Errors
///
/// The directory has something in it or lies in the tree, its name cannot be that of a program, or it cannot be
/// written.
pub fn new(context: &Context, arguments: &cli::New) -> Result<()> {
    let directory = resolve(&arguments.path)?;
    let shown = arguments.path.display();
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    check_name(&name, &context.workspace)?;
    if directory.starts_with(&context.workspace.root) {
        bail!("{shown} lies in the tree of COPS: choose a directory outside, for example ../{name}");
    }
    if std::fs::read_dir(&directory).is_ok_and(|mut entries| entries.next().is_some()) || directory.is_file() {
        bail!("{shown} exists and is not an empty directory");
    }
    let write = |file: &str, content: &str| write_if_changed(&directory.join(file), content.as_bytes());
    let (files, text): (&[_], _) =
        if arguments.std { (&FILES_WITH_STD, MANIFEST_WITH_STD) } else { (&FILES, MANIFEST) };
    for (file, content) in files {
        write(file, content)?;
    }
    write("Cargo.toml", &manifest(text, &name, &context.workspace.root, arguments.git.as_deref())?)?;
    // The versions with which the tree is tested; cargo takes out those of crates that the package does not use.
    let lock = context.workspace.root.join("Cargo.lock");
    let versions = std::fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    write("Cargo.lock", &versions)?;
    println!("The program `{name}` is in {shown}. To compile and run it on COPS:\n\n    cargo xtask run {}\n", {
        let path = arguments.path.display().to_string();
        if is_path(&path) { path } else { format!("./{path}") }
    });
    Ok(())
}

/// Returns an absolute path without `..` and symbolic links, of which the last parts need not exist.
fn resolve(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let Some((parent, name)) = path.parent().zip(path.file_name()) else {
        return path.canonicalize().with_context(|| format!("{} cannot be a new directory", path.display()));
    };
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => Ok(resolve(parent)?.join(name)),
    }
}

/// Checks the name of a new program: cargo's rules for packages, and it is not that of a program of the tree.
fn check_name(name: &str, workspace: &Workspace) -> Result<()> {
    let is_right = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|other| other.is_ascii_lowercase() || other.is_ascii_digit() || "-_".contains(other));
    if !is_right {
        bail!("`{name}` cannot be the name of a program: take small letters, digits, `-` and `_` (`--name NAME`)");
    }
    if workspace.package(name).is_some() {
        bail!("`{name}` is the name of a package of COPS: choose another with `--name NAME`");
    }
    Ok(())
}

/// The manifest of a new package, which depends on the tree in a directory or on a repository.
fn manifest(text: &str, name: &str, tree: &Path, repository: Option<&str>) -> Result<String> {
    let text = text.replace("@NAME@", name);
    let quoted = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
    Ok(match repository {
        Some(repository) => {
            let source = format!("git = \"{}\"", quoted(repository));
            text.replace("@SOURCE@/user/runtime\"", &source).replace("@SOURCE@/user/link\"", &source)
        }
        None => {
            let tree = tree.to_str().context("the path of the tree is not UTF-8; use `--git URL`")?;
            text.replace("@SOURCE@", &format!("path = \"{}", quoted(tree)))
        }
    })
}

/// The program that a user has chosen to run.
#[derive(Debug, PartialEq, Eq)]
pub enum Chosen {
    /// One of the tree, by its name.
    Tree(String),
    /// An ELF file.
    File(PathBuf),
    /// A package, by its manifest.
    Package(PathBuf),
}

/// Whether an argument that names a program is a path on the host, as in a shell: with a slash. `/bin/NAME` is the path
/// of a program in the machine.
fn is_path(text: &str) -> bool {
    text.contains('/') && !text.starts_with("/bin/")
}

impl Chosen {
    /// Understands the argument that names a program.
    ///
    /// # Errors
    ///
    /// It is a path to neither a program nor a package.
    pub fn of(text: &str) -> Result<Chosen> {
        if !is_path(text) {
            return Ok(Chosen::Tree(text.trim_start_matches("/bin/").into()));
        }
        let path = std::path::absolute(text)?;
        let manifest = if path.is_dir() { path.join("Cargo.toml") } else { path.clone() };
        if manifest.file_name().is_some_and(|name| name == "Cargo.toml") {
            if !manifest.is_file() {
                bail!("{text} is a directory without a Cargo.toml; `cargo xtask new {text}` makes a program there");
            }
            return Ok(Chosen::Package(manifest));
        }
        root_task::check_program(&path).with_context(|| format!("{text} is no program for COPS"))?;
        Ok(Chosen::File(path))
    }

    /// Returns the name of a program in the machine and its file, building it if it is a package; and more programs of
    /// that package. `None` for one of the tree.
    ///
    /// # Errors
    ///
    /// It does not compile, has no program or several without a clear first, or its name is taken.
    pub fn take(
        &self,
        context: &Context,
        toolchain: &Toolchain,
        products: &Products,
    ) -> Result<Option<Vec<(String, PathBuf)>>> {
        let programs = match self {
            Chosen::Tree(name) => match context.workspace.package(name) {
                // Those are not built for each boot: it takes long, and needs a compiler for Linux.
                Some(package) if package.has_std() => {
                    build::own_programs(&context.workspace, toolchain, &context.progress, &package.manifest_path)?
                }
                _ => return Ok(None),
            },
            Chosen::File(file) => {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                vec![(name.strip_suffix(".elf").unwrap_or(&name).to_string(), file.clone())]
            }
            Chosen::Package(manifest) => {
                build::own_programs(&context.workspace, toolchain, &context.progress, manifest)?
            }
        };
        for (name, _) in &programs {
            if products.programs.contains(name) {
                bail!("`{name}` is the name of a program of COPS: give yours another");
            }
        }
        Ok(Some(programs))
    }
}

/// Builds the kernel and what a boot of one program needs: the program, which is named as the user does, and files of
/// the host. Returns the program's name in the machine.
///
/// # Errors
///
/// There is no such program, or something cannot be built or read.
pub fn prepare(context: &Context, program: &str, files: &[HostFile]) -> Result<(Toolchain, Products, String)> {
    let chosen = Chosen::of(program)?;
    let (toolchain, mut products) = context.build(Need::OneProgram)?;
    let own = chosen.take(context, &toolchain, &products)?;
    let name = match (&chosen, &own) {
        (_, Some(programs)) => programs[0].0.clone(),
        (Chosen::Tree(name), None) if products.programs.contains(name) => name.clone(),
        (Chosen::Tree(name), None) if context.workspace.package(name).is_some_and(Crate::is_program) => {
            bail!("`{name}` is no program of the Unix kernel that compiles")
        }
        _ => bail!(
            "there is no program `{program}`; there are: {}. A path to a package or an ELF file has a slash: ./NAME",
            products.programs.join(", ")
        ),
    };
    if own.is_some() || !files.is_empty() {
        products = with_files(context, products, own.unwrap_or_default(), files)?;
    }
    Ok((toolchain, products, name))
}

/// A file or a directory of the host, and its place in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    host: PathBuf,
    /// Its path in the machine, without the slash in front.
    guest: String,
}

impl FromStr for HostFile {
    type Err = String;

    /// Parses `HOST[:GUEST]`. `GUEST` is absolute; with a slash at its end it is a directory to put `HOST` into. The
    /// default is the root directory.
    fn from_str(text: &str) -> Result<HostFile, String> {
        let (host, guest) = match text.rfind(":/") {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, "/"),
        };
        let host = PathBuf::from(host);
        let mut guest = guest.to_string();
        if guest.ends_with('/') {
            let named = std::path::absolute(&host).map_err(|error| error.to_string())?;
            let name = named.file_name().and_then(|name| name.to_str());
            guest += name.ok_or("a file without a name needs a path in the machine: HOST:/PATH")?;
        }
        let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !Path::new(&guest).components().all(is_plain) {
            return Err(format!("`{guest}` is not a plain path: it has `..` or `.`"));
        }
        Ok(HostFile { host, guest: guest.trim_matches('/').into() })
    }
}

impl HostFile {
    /// Adds it to an archive, a directory with all below it; special files are an error.
    fn add_to(&self, writer: &mut cpio::Writer) -> Result<()> {
        let kind = std::fs::metadata(&self.host).with_context(|| format!("cannot read {}", self.host.display()))?;
        add(writer, &self.host, &self.guest, &kind)
    }
}

/// Makes an archive of files and directories.
///
/// # Errors
///
/// One cannot be read, or has no place in an archive.
pub fn archive(files: &[HostFile]) -> Result<Vec<u8>> {
    let mut writer = cpio::Writer::new(0);
    for file in files {
        file.add_to(&mut writer)?;
    }
    Ok(writer.finish())
}

fn add(writer: &mut cpio::Writer, host: &Path, guest: &str, metadata: &std::fs::Metadata) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    let permissions = (metadata.permissions().mode() & 0o777) as u16;
    let kind = metadata.file_type();
    let cannot_read = || format!("cannot read {}", host.display());
    let written = if kind.is_dir() {
        writer.directory(guest.as_bytes(), permissions)
    } else if kind.is_symlink() {
        let target = std::fs::read_link(host).with_context(cannot_read)?;
        writer.symbolic_link(guest.as_bytes(), target.as_os_str().as_bytes())
    } else if kind.is_file() {
        writer.file(guest.as_bytes(), permissions, &std::fs::read(host).with_context(cannot_read)?)
    } else {
        bail!("{} is neither a file, a directory nor a symbolic link", host.display());
    };
    written.with_context(|| format!("{} cannot be /{guest} in the machine", host.display()))?;
    if kind.is_dir() {
        let mut entries = std::fs::read_dir(host).with_context(cannot_read)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let name = name.to_str().with_context(|| format!("{} is not UTF-8", entry.path().display()))?;
            add(writer, &entry.path(), &format!("{guest}/{name}"), &entry.metadata().with_context(cannot_read)?)?;
        }
    }
    Ok(())
}

/// Returns products whose archive has these programs and files too.
///
/// # Errors
///
/// A file cannot be read, or has no place in an archive.
pub fn with_files(
    context: &Context,
    mut products: Products,
    programs: Vec<(String, PathBuf)>,
    files: &[HostFile],
) -> Result<Products> {
    let archive = std::fs::read(&products.initramfs)?;
    let mut writer = cpio::Writer::new(0);
    for entry in cpio::entries(&archive) {
        let entry = entry?;
        match entry.kind {
            EntryKind::Directory => writer.directory(entry.path, entry.permissions)?,
            _ => writer.file(entry.path, entry.permissions, entry.data)?,
        }
    }
    for (name, file) in &programs {
        let content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        writer.file(format!("bin/{name}").as_bytes(), 0o755, &content)?;
    }
    for file in files {
        file.add_to(&mut writer)?;
    }
    products.initramfs = context.workspace.products().join("initramfs-own.cpio");
    write_if_changed(&products.initramfs, &writer.finish())?;
    products.programs.extend(programs.iter().map(|(name, _)| name.clone()));
    products.files.extend(programs);
    Ok(products)
}

/// Returns the program of a package that is started: the one with the package's name, or the only one.
///
/// # Errors
///
/// There is none, or several of which none has the package's name.
pub fn first(package: &str, mut programs: Vec<(String, PathBuf)>) -> Result<Vec<(String, PathBuf)>> {
    match programs.iter().position(|(name, _)| name == package) {
        Some(at) => programs.swap(0, at),
        None if programs.len() == 1 => {}
        None if programs.is_empty() => bail!("the package `{package}` has no program: no src/main.rs and no [[bin]]"),
        None => {
            let names: Vec<_> = programs.into_iter().map(|(name, _)| name).collect();
            bail!("the package `{package}` has several programs and none of its name: {}", names.join(", "));
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("xtask-own-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn manifests_depend_on_the_tree_or_on_a_repository() {
        let parse = |text: &str| text.parse::<toml::Table>().unwrap();
        let own = parse(&manifest(MANIFEST, "greeting", Path::new("/a \"tree\""), None).unwrap());
        assert_eq!(own["package"]["name"].as_str(), Some("greeting"));
        assert_eq!(own["dependencies"]["cops"]["path"].as_str(), Some("/a \"tree\"/user/runtime"));
        assert_eq!(own["build-dependencies"]["link"]["path"].as_str(), Some("/a \"tree\"/user/link"));
        let of_git = parse(&manifest(MANIFEST, "greeting", Path::new("/tree"), Some("https://host/cops")).unwrap());
        assert_eq!(of_git["dependencies"]["cops"]["git"].as_str(), Some("https://host/cops"));
        assert_eq!(of_git["build-dependencies"]["link"]["git"].as_str(), Some("https://host/cops"));
        let with_std =
            parse(&manifest(MANIFEST_WITH_STD, "greeting", Path::new("/tree"), Some("https://host")).unwrap());
        assert_eq!(with_std["dependencies"]["cops"]["git"].as_str(), Some("https://host"));
        assert_eq!(with_std["dependencies"]["cops"]["features"], vec!["std"].into());
        // Crates that were compiled for the tree's programs serve the new one only with the same profile.
        let mut tree = parse(&std::fs::read_to_string(Workspace::load().unwrap().root.join("Cargo.toml")).unwrap());
        let of_the_tree = tree["profile"]["release"].as_table_mut().unwrap();
        // Of packages that are none of the new program's.
        of_the_tree.remove("package");
        assert_eq!(own["profile"]["release"].as_table(), Some(&*of_the_tree));
    }

    #[test]
    fn paths_are_resolved_as_far_as_they_exist() {
        let directory = scratch("resolve").canonicalize().unwrap();
        std::fs::create_dir(directory.join("a")).unwrap();
        std::os::unix::fs::symlink("a", directory.join("b")).unwrap();
        assert_eq!(resolve(&directory.join("a/../new/deep")).unwrap(), directory.join("new/deep"));
        assert_eq!(resolve(&directory.join("b/new")).unwrap(), directory.join("a/new"));
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn names_are_those_that_cargo_takes_and_the_tree_has_not() {
        let workspace = Workspace::load().unwrap();
        assert!(check_name("greeting-2", &workspace).is_ok());
        for name in ["", "2nd", "Big", "a b", "-x", "shell"] {
            assert!(check_name(name, &workspace).is_err(), "{name}");
        }
    }

    #[test]
    fn programs_are_names_or_paths_as_in_a_shell() {
        assert_eq!(Chosen::of("hello").unwrap(), Chosen::Tree("hello".into()));
        assert_eq!(Chosen::of("/bin/hello").unwrap(), Chosen::Tree("hello".into()));
        let directory = scratch("chosen");
        let path = directory.to_str().unwrap();
        assert!(Chosen::of(path).unwrap_err().to_string().contains("xtask new"));
        std::fs::write(directory.join("Cargo.toml"), "").unwrap();
        assert_eq!(Chosen::of(path).unwrap(), Chosen::Package(directory.join("Cargo.toml")));
        assert_eq!(Chosen::of(&format!("{path}/Cargo.toml")).unwrap(), Chosen::Package(directory.join("Cargo.toml")));
        for (name, content) in [("text", &b"no"[..]), ("empty", b""), ("broken", b"\x7fELF\x02\x01\x01")] {
            std::fs::write(directory.join(name), content).unwrap();
            assert!(Chosen::of(&format!("{path}/{name}")).is_err(), "{name}");
        }
        assert!(Chosen::of(&format!("{path}/nothing")).is_err());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn files_have_places_in_the_machine() {
        let parse = |text: &str| text.parse::<HostFile>().map(|file| (file.host.display().to_string(), file.guest));
        assert_eq!(parse("a/b.txt").unwrap(), ("a/b.txt".into(), "b.txt".into()));
        assert_eq!(parse("a/b.txt:/etc/c").unwrap(), ("a/b.txt".into(), "etc/c".into()));
        assert_eq!(parse("a:/etc/").unwrap(), ("a".into(), "etc/a".into()));
        assert_eq!(parse("a:b:/c").unwrap(), ("a:b".into(), "c".into()));
        assert!(parse("a:/etc/../b").is_err());
        assert!(parse("/").is_err());
    }

    #[test]
    fn directories_are_added_with_all_below_them() {
        use std::os::unix::fs::PermissionsExt;
        let directory = scratch("files");
        std::fs::create_dir(directory.join("deep")).unwrap();
        std::fs::write(directory.join("deep/file"), "text").unwrap();
        std::fs::set_permissions(directory.join("deep/file"), PermissionsExt::from_mode(0o750)).unwrap();
        std::os::unix::fs::symlink("deep/file", directory.join("link")).unwrap();
        let mut writer = cpio::Writer::new(0);
        let file = HostFile { host: directory.clone(), guest: "data/own".into() };
        file.add_to(&mut writer).unwrap();
        let archive = writer.finish();
        let found: Vec<_> = cpio::entries(&archive)
            .map(|entry| entry.unwrap())
            .map(|entry| (String::from_utf8_lossy(entry.path).into_owned(), entry.permissions, entry.data))
            .collect();
        let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["data/own", "data/own/deep", "data/own/deep/file", "data/own/link"]);
        assert_eq!((found[2].1, found[2].2), (0o750, &b"text"[..]));
        assert_eq!(found[3].2, b"deep/file");
        let missing = HostFile { host: directory.join("nothing"), guest: "x".into() };
        assert!(missing.add_to(&mut cpio::Writer::new(0)).is_err());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_first_program_has_the_package_s_name_or_is_alone() {
        let programs = |names: &[&str]| names.iter().map(|name| (name.to_string(), PathBuf::new())).collect::<Vec<_>>();
        let first_of = |names: &[&str]| first("own", programs(names)).map(|programs| programs[0].0.clone());
        assert_eq!(first_of(&["other", "own"]).unwrap(), "own");
        assert_eq!(first_of(&["other"]).unwrap(), "other");
        assert!(first_of(&[]).is_err() && first_of(&["a", "b"]).is_err());
    }
}
