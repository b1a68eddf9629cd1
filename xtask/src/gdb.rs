//! `run --gdb`: the file that gdb reads first, with the symbols of the kernel and of the program, and what the commands
//! in `xtask/gdb/cops.py` need to know.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use object::{Object, ObjectSymbol};
use scheduler::DEBUGGER_LAYOUT;

use crate::run::PROGRAM_ADDRESS;

/// The executors' names in the symbol tables: crate, module and static.
const OF_THE_KERNEL: [&str; 3] = ["kernel_unix", "executor", "EXECUTOR"];
const OF_A_PROGRAM: [&str; 3] = ["cops", "executor", "EXECUTOR"];

/// Writes the file. A program without the runtime has no executor there.
///
/// # Errors
///
/// A file cannot be read or written.
pub fn write(file: &Path, root: &Path, kernel: &Path, program: Option<&Path>, port: u16) -> Result<()> {
    let in_kernel = address_of(kernel, OF_THE_KERNEL)?;
    let in_program = program.map(|program| address_of(program, OF_A_PROGRAM)).transpose()?.flatten();
    let addresses = [in_kernel.unwrap_or(0), in_program.map_or(0, |address| address + PROGRAM_ADDRESS)];
    let mut text = format!("set pagination off\nset confirm off\nfile {}\n", kernel.display());
    if let Some(program) = program {
        let _ = writeln!(text, "add-symbol-file {} -o {PROGRAM_ADDRESS:#x}", program.display());
    }
    for (name, value) in variables(addresses) {
        let _ = writeln!(text, "set $cops_{name} = {value:#x}");
    }
    let _ = writeln!(text, "source {}", root.join("xtask/gdb/cops.py").display());
    let _ = writeln!(text, "target remote 127.0.0.1:{port}");
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Writes the file that gdb reads first with a core file of a program, which was moved by so much from its place in its
/// file.
///
/// # Errors
///
/// A file cannot be read or written.
pub fn write_for_core(
    file: &Path,
    tree: &Path,
    (program, root): (Option<&Path>, Option<&Path>),
    moved: u64,
    core: &Path,
) -> Result<()> {
    let in_program = program.map(|program| address_of(program, OF_A_PROGRAM)).transpose()?.flatten();
    let mut text = String::from("set pagination off\nset confirm off\nset architecture riscv:rv64\n");
    if let Some(root) = root {
        let _ = writeln!(text, "set auto-load libthread-db off\nset sysroot {}", root.display());
    }
    if let Some(program) = program {
        let _ = writeln!(text, "file {}", program.display());
    }
    let _ = writeln!(text, "core-file {}", core.display());
    for (name, value) in variables([0, in_program.map_or(0, |address| address.wrapping_add(moved))]) {
        let _ = writeln!(text, "set $cops_{name} = {value:#x}");
    }
    let _ = writeln!(text, "source {}", tree.join("xtask/gdb/cops.py").display());
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the variables of the commands: the schedulers' executors, 0 for none, and the layout.
fn variables([kernel, program]: [u64; 2]) -> Vec<(&'static str, u64)> {
    let inside = |address: u64| if address == 0 { 0 } else { address + coroutine::OFFSET_OF_SCHEDULER as u64 };
    let layout = DEBUGGER_LAYOUT.map(|(name, value)| (name, value as u64));
    let executors = [("kernel", inside(kernel)), ("program", inside(program))];
    executors.into_iter().chain([("future", coroutine::OFFSET_OF_FUTURE as u64)]).chain(layout).collect()
}

/// Returns the address in the file of the function or static with these parts in its name: crate, module, name.
///
/// # Errors
///
/// The file cannot be read, or is not an ELF file.
pub fn address_of(elf: &Path, parts: [&str; 3]) -> Result<Option<u64>> {
    let content = std::fs::read(elf).with_context(|| format!("cannot read {}", elf.display()))?;
    let file = object::File::parse(&*content).with_context(|| format!("{} is not an ELF file", elf.display()))?;
    let is_it = |name: &str| {
        let name = addr2line::demangle_auto(name.into(), None);
        name.starts_with(parts[0]) && name.ends_with(&parts[1..].join("::"))
    };
    let found = file.symbols().find(|symbol| symbol.is_definition() && symbol.name().is_ok_and(is_it));
    Ok(found.map(|symbol| symbol.address()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_s_variables_are_written() {
        let script = include_str!("../gdb/cops.py");
        let names: Vec<_> = variables([1, 0]).into_iter().map(|(name, _)| name).collect();
        for (_, rest) in script.match_indices("variable(\"").map(|(at, _)| (at, &script[at + 10..])) {
            let name = rest.split('"').next().unwrap();
            assert!(names.contains(&name) || name == "cops_", "{name}");
        }
        assert!(names.contains(&"program") && names.contains(&"kernel"));
        assert!(script.contains(&format!("SLOTS_IN_CHUNK = {}\n", scheduler::SLOTS_IN_CHUNK)));
        assert!(script.contains(&format!("WORKERS = {}\n", scheduler::SHARDS)));
        assert_eq!(
            variables([0x1000, 0])[..2],
            [("kernel", 0x1000 + coroutine::OFFSET_OF_SCHEDULER as u64), ("program", 0)]
        );
    }

    #[test]
    fn files_that_are_no_programs_are_refused() {
        let text = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        assert!(address_of(text, OF_A_PROGRAM).is_err());
        assert!(address_of(Path::new("/nowhere"), OF_A_PROGRAM).is_err());
        assert_eq!(address_of(&std::env::current_exe().unwrap(), OF_A_PROGRAM).unwrap(), None);
    }
}
