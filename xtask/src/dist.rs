//! `dist`: a bundle that boots on a machine with QEMU alone: kernel, archive of programs, a script, checksums.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use filesystem::cpio;

use crate::board::Board;
use crate::boot_loader;
use crate::build::{self, Products};
use crate::children::{self, Ending};
use crate::context::{Context, Need};
use crate::efi;
use crate::workspace::write_if_changed;

const SCRIPT: &str = include_str!("../template/boot.sh");
const README: &str = include_str!("../template/README.txt");

/// Programs that only test or measure the system itself, or that need files which are not in the bundle.
const LEFT_OUT: [&str; 6] = ["bench", "exchange", "fuzz", "linux-init", "soak", "tests"];

/// The boot words that boot loaders pass.
const BOOT_WORDS: &str = "init=/bin/shell";

/// The configuration for boot loaders other than U-Boot's scripts.
const EXTLINUX: &str = "extlinux/extlinux.conf";

/// Longest time of packing.
const TOOL_LIMIT: Duration = Duration::from_secs(300);

/// Builds the bundle and prints its path.
///
/// # Errors
///
/// COPS cannot be built, or the bundle cannot be written.
pub fn dist(context: &Context) -> Result<()> {
    let (_, products) = context.build(Need::Everything)?;
    let activity = context.progress.start("Making the bundle");
    let bundle = make(context, &products)?;
    activity.clear();
    println!("{}", bundle.display());
    Ok(())
}

/// Makes the bundle of products; returns its path. Equal products give equal bytes.
///
/// # Errors
///
/// It cannot be written, or `tar` or `sha256sum` is missing.
pub fn make(context: &Context, products: &Products) -> Result<PathBuf> {
    let name = format!("cops-{}", env!("CARGO_PKG_VERSION"));
    let parent = context.workspace.products().join("dist");
    let directory = parent.join(&name);
    if directory.exists() {
        std::fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    let (archive, programs) = archive(&std::fs::read(&products.initramfs)?)?;
    let copy = |file: &Path, name: &str| -> Result<()> {
        let content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        write_if_changed(&directory.join(name), &content)?;
        Ok(())
    };
    copy(&products.kernel, "kernel")?;
    write_if_changed(&directory.join(boot_loader::IMAGE), &boot_loader::image(&products.kernel)?)?;
    write_if_changed(&directory.join(boot_loader::SCRIPT), &boot_loader::script(BOOT_WORDS))?;
    write_if_changed(&directory.join(EXTLINUX), boot_loader::extlinux(BOOT_WORDS).as_bytes())?;
    write_if_changed(&directory.join("initramfs.cpio"), &archive)?;
    let loader = build::efi_loader(&context.workspace, &context.toolchain(Need::Boot)?, &context.progress)?;
    let file = efi::file(&std::fs::read(loader)?, &boot_loader::image(&products.kernel)?, &archive, BOOT_WORDS)?;
    write_if_changed(&directory.join(efi::FILE), &file)?;
    write_if_changed(&directory.join("boot"), script(&context.board, &programs).as_bytes())?;
    make_executable(&directory.join("boot"))?;
    write_if_changed(&directory.join("README.txt"), README.replace("@NAME@", &name).as_bytes())?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&context.workspace.root.join(licence), licence)?;
    }
    let files = [
        boot_loader::IMAGE,
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.txt",
        "boot",
        boot_loader::SCRIPT,
        efi::FILE,
        EXTLINUX,
        "initramfs.cpio",
        "kernel",
    ];
    let sums = run("sha256sum", &files, &directory)?;
    write_if_changed(&directory.join("SHA256SUMS"), &sums)?;
    let bundle = format!("{name}.tar.gz");
    let reproducible = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=go=u-w"];
    let arguments: Vec<_> = reproducible.into_iter().chain(["-c", "-z", "-f", &bundle, &name]).collect();
    run("tar", &arguments, &parent)?;
    Ok(parent.join(bundle))
}

fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn run(program: &str, arguments: &[&str], directory: &Path) -> Result<Vec<u8>> {
    let mut command = children::command(program);
    command.args(arguments).current_dir(directory);
    let output = children::output(&mut command, Ending::Kill, TOOL_LIMIT)
        .with_context(|| format!("`{program}` could not be run, which makes the bundle"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

/// The archive of the programs that a user wants, and their names.
fn archive(all: &[u8]) -> Result<(Vec<u8>, Vec<String>)> {
    let mut writer = cpio::Writer::new(0);
    let mut programs = Vec::new();
    for entry in cpio::entries(all) {
        let entry = entry?;
        let path = String::from_utf8_lossy(entry.path);
        match path.strip_prefix("bin/") {
            Some(name) if LEFT_OUT.contains(&name) => {}
            Some(name) => {
                programs.push(name.to_string());
                writer.file(entry.path, entry.permissions, entry.data)?;
            }
            None => writer.directory(entry.path, entry.permissions)?,
        }
    }
    Ok((writer.finish(), programs))
}

/// The script that boots the bundle on a board.
fn script(board: &Board, programs: &[String]) -> String {
    let arguments = board.templates(board.defaults.machine);
    let arguments: Vec<_> = arguments.map(|template| format!("\\\n    {}", shell_word(template))).collect();
    SCRIPT
        .replace("@HARTS@", &board.defaults.harts.to_string())
        .replace("@MEMORY@", &board.defaults.memory)
        .replace("@PROGRAMS@", &programs.join(" "))
        .replace("@QEMU@", &board.qemu.program)
        .replace("@ARGUMENTS@", &arguments.join(" "))
}

/// Makes a word of the shell's language out of an argument of QEMU in which placeholders become variables.
fn shell_word(template: &str) -> String {
    let mut word = format!("'{}'", template.replace('\'', r"'\''"));
    for (placeholder, variable) in [
        ("{kernel}", "$here/kernel"),
        ("{initramfs}", "$here/initramfs.cpio"),
        ("{command_line}", "$command_line"),
        ("{harts}", "$harts"),
        ("{memory}", "$memory"),
        ("{network}", "$network"),
        ("{hardware_address}", "$hardware_address"),
    ] {
        word = word.replace(placeholder, &format!("'\"{variable}\"'"));
    }
    // Without anybody between this console and the terminal, QEMU's own key to end it is needed.
    word = word.replace("signal=off", "signal=off,mux=on");
    // Nothing beside a variable needs no quotes.
    word.replace("''\"", "\"").replace("\"''", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_variables_and_the_rest_is_quoted() {
        assert_eq!(shell_word("-smp"), "'-smp'");
        assert_eq!(shell_word("{harts}"), "\"$harts\"");
        assert_eq!(shell_word("{network},id=n"), "\"$network\"',id=n'");
        assert_eq!(shell_word("a'b"), r"'a'\''b'");
    }

    #[test]
    fn programs_for_tests_are_left_out() {
        let mut writer = cpio::Writer::new(0);
        writer.directory(b"bin", 0o755).unwrap();
        for name in ["hello", "tests"] {
            writer.file(format!("bin/{name}").as_bytes(), 0o755, b"program").unwrap();
        }
        let (archive, programs) = archive(&writer.finish()).unwrap();
        assert_eq!(programs, ["hello"]);
        let names: Vec<_> = cpio::entries(&archive).map(|entry| entry.unwrap().path.to_vec()).collect();
        assert_eq!(names, [&b"bin"[..], b"bin/hello"]);
    }

    /// The script without QEMU: a program of that name prints its arguments.
    #[test]
    fn the_script_passes_arguments_as_the_kernel_reads_them() {
        let directory = std::env::temp_dir().join(format!("xtask-dist-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let board = Board::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../boards/qemu-virt.toml")).unwrap();
        std::fs::write(directory.join("boot"), script(&board, &["hello".into(), "shell".into()])).unwrap();
        std::fs::write(directory.join(&board.qemu.program), "printf '%s\\n' \"$@\"").unwrap();
        make_executable(&directory.join(&board.qemu.program)).unwrap();
        let run = |arguments: &[&str]| {
            let mut command = children::command("sh");
            let path = std::env::var("PATH").unwrap();
            command.arg("boot").args(arguments).current_dir(&directory);
            command.env("PATH", format!("{}:{path}", directory.display()));
            children::output(&mut command, Ending::Kill, TOOL_LIMIT).unwrap()
        };
        let line_after = |arguments: &[&str], option: &str| {
            let text = String::from_utf8(run(arguments).stdout).unwrap();
            let mut lines = text.lines().skip_while(|line| *line != option);
            lines.nth(1).unwrap_or_default().to_string()
        };
        assert_eq!(line_after(&[], "-append"), "init=/bin/shell");
        let arguments = ["--harts", "2", "shell", "-c", r#"echo "a\b" 'c'"#, ""];
        assert_eq!(line_after(&arguments, "-append"), r#"init=/bin/shell -- "-c" "echo \"a\\b\" 'c'" """#);
        assert_eq!(line_after(&arguments, "-smp"), "2");
        let network = line_after(&["--forward", "8000:7000", "hello"], "-netdev");
        assert!(network.contains("hostfwd=tcp:127.0.0.1:8000-:7000,"), "{network}");
        assert!(line_after(&[], "-kernel").ends_with("/kernel"));
        for wrong in [&["nothing"][..], &["--forward", "x"], &["--forward", "1"], &["--harts"], &["--what"]] {
            assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
        }
        assert!(String::from_utf8(run(&["--help"]).stdout).unwrap().contains("hello shell"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
