//! The functions that lie beside each other in a kernel: a look at the patterns of its file hot.ld.
//!
//! The linker takes a pattern that matches no section for no mistake. A function that has got another name, or that the
//! compiler puts into others, would leave the list without a word, and only a measurement of cycles would show that.

use anyhow::{Context as _, Result};
use object::{Object as _, ObjectSymbol as _};

/// Beginnings of the names of sections of code. The rest is the function's name.
const SECTIONS: [&str; 2] = [".text.unlikely.", ".text."];

/// Returns the patterns of a script that match no function of a kernel.
///
/// # Errors
///
/// The kernel is no ELF file.
pub fn unmatched(script: &str, kernel: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(kernel).context("the kernel is no ELF file")?;
    let names: Vec<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    let is_unmatched = |pattern: &&str| !names.iter().any(|name| matches(pattern, name));
    Ok(patterns(script).into_iter().filter(is_unmatched).map(Into::into).collect())
}

/// Returns the patterns for names of functions; assembly has sections of its own, and they are not among them.
fn patterns(script: &str) -> Vec<&str> {
    let lines = script.lines().filter_map(|line| line.trim().strip_prefix("*(")?.strip_suffix(')'));
    let names = lines.filter_map(|line| SECTIONS.iter().find_map(|section| line.strip_prefix(section)));
    names.filter(|pattern| pattern.starts_with('_')).collect()
}

/// Whether a name matches a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut last = None;
    for part in parts {
        last = Some(part);
        match rest.find(part) {
            Some(place) => rest = &rest[place + part.len()..],
            None => return false,
        }
    }
    // The last part is at the end, wherever else it is.
    match last {
        Some(part) => name.ends_with(part),
        None => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_functions() {
        let script = "/* Why.\n * So. */\n*(.text.trap)\n*(.text._ZN1a17h*)\n    *(.text.unlikely._ZN1b*E)\n";
        assert_eq!(patterns(script), ["_ZN1a17h*", "_ZN1b*E"]);
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, is_match) in [
            ("_ZN1a17h*", "_ZN1a17h0123E", true),
            ("_ZN1a17h*", "_ZN1b17h0123E", false),
            ("_ZN1b*E", "_ZN1bEE", true),
            ("_ZN1b*E", "_ZN1bEF", false),
            ("_a*b*c", "_a1b2bc", true),
            ("_a*b*c", "_a1c2b", false),
            ("_a", "_a", true),
            ("_a", "_ab", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }

    #[test]
    fn a_file_that_is_no_kernel_is_an_error() {
        assert!(unmatched("*(.text._a)", b"nothing").is_err());
    }
}
