//! `cargo xtask size`: where the bytes of a kernel are.
//!
//! The linked file says it, so this holds for what boots and not for what was compiled: instructions of a function that
//! was inlined count where they are.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, SymbolKind};

use crate::build::{Harts, Variation};
use crate::context::Context;

/// Parts and variables that are smaller than this share a row.
const SMALL: u64 = 1024;

/// Builds the microkernel for one hart, and prints the table of its bytes.
///
/// # Errors
///
/// It cannot be built or read.
pub fn micro(context: &Context) -> Result<()> {
    let (_, products) = context.build_microkernel(Variation::new(Harts::One))?;
    print!("{}", table(&products.kernel)?);
    Ok(())
}

/// The table of an ELF file, as Markdown.
fn table(elf: &Path) -> Result<String> {
    let content = std::fs::read(elf).with_context(|| format!("cannot read {}", elf.display()))?;
    let file = object::File::parse(&*content).with_context(|| format!("{} is no ELF file", elf.display()))?;
    let mut sections: BTreeMap<&str, u64> = BTreeMap::new();
    for section in file.sections() {
        let kind = match section.kind() {
            SectionKind::Text => "text",
            SectionKind::ReadOnlyData | SectionKind::ReadOnlyString => "constants",
            SectionKind::Data => "data",
            SectionKind::UninitializedData => "zeroed data",
            _ => continue,
        };
        *sections.entry(kind).or_default() += section.size();
    }
    let mut parts: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.is_definition() && symbol.size() > 0) {
        let Ok(name) = symbol.name() else { continue };
        let name = addr2line::demangle_auto(name.into(), None);
        match symbol.kind() {
            SymbolKind::Text => *parts.entry(("text", part_of(&name))).or_default() += symbol.size(),
            SymbolKind::Data => *parts.entry(("data", name.into_owned())).or_default() += symbol.size(),
            _ => {}
        }
    }
    let mut rows: Vec<_> = parts.into_iter().map(|((kind, name), size)| (size, kind, name)).collect();
    rows.sort_by(|one, other| other.cmp(one));
    let (large, small): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(size, _, _)| *size >= SMALL);
    let mut table = String::from("| | | bytes |\n|---|---|---|\n");
    for (kind, size) in &sections {
        table += &format!("| {kind} | all | {size} |\n");
    }
    for (size, kind, name) in large {
        table += &format!("| {kind} | {name} | {size} |\n");
    }
    for kind in ["text", "data"] {
        let rest: u64 = small.iter().filter(|(_, other, _)| *other == kind).map(|(size, _, _)| size).sum();
        table += &format!("| {kind} | the rest | {rest} |\n");
    }
    Ok(table)
}

/// The crate of a function, and of the kernel itself the module.
fn part_of(function: &str) -> String {
    let path = function.trim_start_matches(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let mut names = path.split("::").map(|name| {
        name.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .find(|name| !name.is_empty())
            .unwrap_or("")
    });
    let (first, second) = (names.next().unwrap_or(""), names.next().unwrap_or(""));
    match first {
        "kernel_micro" => format!("kernel-micro: {second}"),
        "core" | "alloc" | "compiler_builtins" => format!("library: {second}"),
        _ => first.replace('_', "-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_belong_to_their_crates() {
        for (function, part) in [
            ("kernel_micro::syscall::<impl kernel_micro::kernel::Kernel>::invoke", "kernel-micro: syscall"),
            ("<kernel_micro::boot::Failure as core::fmt::Display>::fmt", "kernel-micro: boot"),
            ("<dtoolkit::fdt::node::FdtNode as dtoolkit::Node>::name", "dtoolkit"),
            ("core::fmt::Formatter::pad", "library: fmt"),
            ("hal_trap_vector", "hal-trap-vector"),
        ] {
            assert_eq!(part_of(function), part);
        }
    }
}
