//! Linker arguments for programs and root tasks, and what their libraries must know of the target.
//!
//! A build script calls one of these functions, and nothing else:
//!
//! ```no_run
//! link::program();
//! ```
//!
//! Packages that are built for another target, as the host's checks do, are linked as usual there.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// Target of everything that runs on the machine.
const TARGET: &str = "riscv64gc-unknown-none-elf";

/// Environment variable with the path of the archive of programs that a root task contains.
pub const CONTAINED_PROGRAMS: &str = "COPS_CONTAINED_PROGRAMS";

/// Links the package's binaries as programs of the Unix-like kernel: position-independent executables that relocate
/// themselves.
pub fn program() {
    script(
        "../runtime/program.ld",
        &["-pie", "--no-dynamic-linker", "-znotext", "--pack-dyn-relocs=relr", NOWHERE_FOR_DEBUGGERS],
    );
}

/// Gives functions that were left out the last address in debug information. By itself the linker gives them the first,
/// at which a position-independent program's own code begins, and debuggers take them for it.
const NOWHERE_FOR_DEBUGGERS: &str = "-zdead-reloc-in-nonalloc=.debug_*=0xffffffffffffffff";

/// Links the package's binaries as root tasks or servers of the microkernel.
pub fn root_task() {
    script("../sel4/root-task.ld", &[]);
}

/// Links the package's binaries as root tasks, which find the path of their archive of programs at compile time in the
/// environment variable [`CONTAINED_PROGRAMS`].
///
/// `cargo xtask` makes the archive and sets the variable. Without it the archive is empty: enough for checks, which
/// compile and do not run.
///
/// # Panics
/// The directory for output cannot be written, which ends the build with that message.
pub fn root_task_with_programs() {
    println!("cargo::rerun-if-env-changed={CONTAINED_PROGRAMS}");
    let archive = std::env::var_os(CONTAINED_PROGRAMS).map_or_else(empty_archive, PathBuf::from);
    println!("cargo::rerun-if-changed={}", archive.display());
    println!("cargo::rustc-env={CONTAINED_PROGRAMS}={}", archive.display());
    root_task();
}

/// Sets `on_cops` in a library of programs that is built for programs on COPS, and may make its calls: those for the
/// target without an operating system, and with the library's feature `std` those for Linux on riscv64.
pub fn library() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let has_std = std::env::var_os("CARGO_FEATURE_STD").is_some();
    println!("cargo::rustc-check-cfg=cfg(on_cops)");
    if variable("CARGO_CFG_TARGET_ARCH") == "riscv64"
        && (variable("CARGO_CFG_TARGET_OS") == "none" || variable("CARGO_CFG_TARGET_OS") == "linux" && has_std)
    {
        println!("cargo::rustc-cfg=on_cops");
    }
}

fn empty_archive() -> PathBuf {
    let directory = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
    let empty = Path::new(&directory).join("empty.cpio");
    std::fs::write(&empty, []).expect("the directory for output can be written");
    empty
}

/// Passes a linker script, named relative to this crate, and further arguments for all binaries of the package.
fn script(name: &str, arguments: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    println!("cargo::rerun-if-changed={}", script.display());
    if std::env::var("TARGET").is_ok_and(|target| target == TARGET) {
        println!("cargo::rustc-link-arg-bins=-T{}", script.display());
        for argument in arguments {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}
