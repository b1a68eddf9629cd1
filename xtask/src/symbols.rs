//! From addresses of the kernel to functions, files and lines.

use std::io::{BufRead, Write};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use object::elf::SHF_EXECINSTR;
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind};

use crate::serial::backtrace_line;

/// An ELF file with its debug information.
pub struct Symbols {
    loader: addr2line::Loader,
    /// Address and name of each function, by address. Functions in assembly are found only here, without debug
    /// information.
    functions: Vec<(u64, String)>,
    /// Addresses of the sections with code. Labels stand in other sections too, and at the ends of these.
    code: Vec<Range<u64>>,
}

impl Symbols {
    /// Reads an ELF file.
    ///
    /// # Errors
    ///
    /// It cannot be read or is not an ELF file.
    pub fn load(elf: &Path) -> Result<Symbols> {
        let loader = addr2line::Loader::new(elf)
            .map_err(|error| anyhow!("no symbols can be read from {}: {error}", elf.display()))?;
        let content = std::fs::read(elf).with_context(|| format!("cannot read {}", elf.display()))?;
        let file = object::File::parse(&*content)?;
        let executes = |section: &object::Section<'_, '_>| matches!(section.flags(), SectionFlags::Elf { sh_flags, .. } if sh_flags.contains(SHF_EXECINSTR));
        let range =
            |section: object::Section<'_, '_>| section.address()..section.address().saturating_add(section.size());
        let code: Vec<_> = file.sections().filter(executes).map(range).collect();
        let mut functions = Vec::new();
        for symbol in file.symbols().filter(|symbol| symbol.is_definition()) {
            // The labels of assembly have no kind; those of the compiler begin with a dot.
            let is_code = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown | SymbolKind::Label);
            if let Ok(name) = symbol.name()
                && is_code
                && !name.is_empty()
                && !name.starts_with(['.', '$'])
            {
                functions.push((symbol.address(), name.to_string()));
            }
        }
        functions.retain(|(address, _)| code.iter().any(|code| code.contains(address)));
        functions.sort();
        Ok(Symbols { loader, functions, code })
    }

    /// Returns whether an address is one of code.
    pub fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|code| code.contains(&address))
    }

    /// Returns the functions at an address, innermost first: several where functions are inlined into each other. Empty
    /// if the address is in no function.
    pub fn functions_at(&self, address: u64) -> Vec<String> {
        let mut functions: Vec<(Option<String>, Option<String>)> = Vec::new();
        // The library adds to addresses, and a program chooses them.
        if !self.is_code(address) {
            return Vec::new();
        }
        if let Ok(mut frames) = self.loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.and_then(|function| Some(function.demangle().ok()?.into_owned()));
                let place = frame
                    .location
                    .and_then(|location| Some(format!("{}:{}", short(location.file?), location.line.unwrap_or(0))));
                functions.push((name, place));
            }
        }
        // Line tables have only the last part of a name. The outermost function is not inlined, so the symbol table has
        // its full name; for assembly it is the only source.
        if let Some(name) = self.symbol_at(address) {
            match functions.last_mut() {
                Some((outermost, _)) => *outermost = Some(name),
                None => functions.push((Some(name), None)),
            }
        }
        let text = |(name, place): (Option<String>, Option<String>)| match (name, place) {
            (Some(name), Some(place)) => Some(format!("{name} ({place})")),
            (Some(name), None) => Some(name),
            (None, Some(place)) => Some(format!("? ({place})")),
            (None, None) => None,
        };
        functions.into_iter().filter_map(text).collect()
    }

    /// Returns the last function that begins at or before an address.
    fn symbol_at(&self, address: u64) -> Option<String> {
        let next = self.functions.partition_point(|(start, _)| *start <= address);
        let (_, name) = self.functions.get(next.checked_sub(1)?)?;
        Some(addr2line::demangle_auto(name.as_str().into(), None).into_owned())
    }

    /// Returns a line of a machine's output, with the functions added if it is a backtrace line.
    pub fn annotate(&self, line: &str) -> String {
        let Some(address) = backtrace_line(line) else { return line.to_string() };
        let functions = self.functions_at(address);
        let mut result = line.to_string();
        for (depth, function) in functions.iter().enumerate() {
            result.push_str(if depth == 0 { "  " } else { "\n       inlined into  " });
            result.push_str(function);
        }
        result
    }
}

/// Annotates a report, and shortens the repetitions of an endless recursion.
pub fn annotate_report(symbols: &Symbols, report: &[String]) -> Vec<String> {
    let mut result: Vec<String> = Vec::new();
    let mut previous = (None, 0);
    for line in report {
        let address = backtrace_line(line);
        let times = if address.is_some() && address == previous.0 { previous.1 + 1 } else { 1 };
        previous = (address, times);
        match times {
            1..=REPETITIONS => result.extend(symbols.annotate(line).lines().map(str::to_string)),
            _ => {
                if times > REPETITIONS + 1 {
                    result.pop();
                }
                result.push(format!("  … {} times more", times - REPETITIONS));
            }
        }
    }
    result
}

/// Number of lines that are shown of a call that follows itself.
const REPETITIONS: usize = 2;

/// Returns the informative part of a source file's path: from the workspace's or the registry's directories on.
fn short(path: &str) -> &str {
    let from = |mark: &str| path.find(mark).map(|start| &path[start + mark.len()..]);
    if let Some(rest) = from("/registry/src/") {
        return rest.split_once('/').map_or(rest, |(_, rest)| rest);
    }
    if let Some(rest) = from("/library/") {
        return rest;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::to_str);
    root.and_then(|root| path.strip_prefix(root)).map_or(path, |rest| rest.trim_start_matches('/'))
}

/// Copies lines with [`Symbols::annotate`], and behind each those of `explain`.
///
/// # Errors
///
/// Input or output fails.
pub fn pipe(
    symbols: &Symbols,
    mut explain: impl FnMut(&str) -> Vec<String>,
    input: impl BufRead,
    mut output: impl Write,
) -> std::io::Result<()> {
    for line in input.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        writeln!(output, "{}", symbols.annotate(&line))?;
        for line in explain(&line) {
            writeln!(output, "{line}")?;
        }
    }
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function_to_find() -> usize {
        a_function_to_find as *const () as usize
    }

    /// Returns the address at which this test program's own file was loaded; it is linked at zero.
    fn load_address(executable: &Path) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with(executable.to_str().unwrap())).unwrap();
        u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
    }

    #[test]
    fn an_address_of_this_program_is_found_with_file_and_line() {
        let executable = std::env::current_exe().unwrap();
        let symbols = Symbols::load(&executable).unwrap();
        let address = a_function_to_find() as u64 - load_address(&executable);

        let annotated = symbols.annotate(&format!("  #0 {address:#x}"));
        assert!(
            annotated.starts_with(&format!("  #0 {address:#x}  xtask::symbols::tests::a_function_to_find")),
            "{annotated}"
        );
        assert!(annotated.contains("src/symbols.rs:"), "{annotated}");

        let mut output = Vec::new();
        pipe(&symbols, |_| Vec::new(), &b"before\n  #0 0xffffffffffff0000\nafter"[..], &mut output).unwrap();
        assert_eq!(String::from_utf8(output).unwrap(), "before\n  #0 0xffffffffffff0000\nafter\n");
    }

    #[test]
    fn endless_recursion_is_cut_short() {
        let symbols = Symbols::load(&std::env::current_exe().unwrap()).unwrap();
        let nowhere = 0xffff_ffff_ffff_0000_u64;
        let line = |number: usize, address: u64| format!("  #{number} {address:#x}");
        let recursion = (0..40).map(|number| line(number, nowhere));
        let report: Vec<_> =
            ["callers:".to_string()].into_iter().chain(recursion).chain([line(40, nowhere + 1)]).collect();
        let expected = [
            "callers:".to_string(),
            line(0, nowhere),
            line(1, nowhere),
            "  … 38 times more".into(),
            line(40, nowhere + 1),
        ];
        assert_eq!(annotate_report(&symbols, &report), expected);
    }

    #[test]
    fn files_that_are_not_elf_are_refused() {
        assert!(Symbols::load(Path::new(file!())).is_err());
        assert!(Symbols::load(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn paths_are_cut_to_the_crate_and_its_file() {
        assert_eq!(short("/home/x/.cargo/registry/src/index-1/spin-0.12.3/src/mutex.rs"), "spin-0.12.3/src/mutex.rs");
        assert_eq!(short("/rustc/abc/library/core/src/panicking.rs"), "core/src/panicking.rs");
        assert_eq!(short(concat!(env!("CARGO_MANIFEST_DIR"), "/src/main.rs")), "xtask/src/main.rs");
        assert_eq!(short("relative.rs"), "relative.rs");
    }
}
