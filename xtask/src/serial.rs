//! A machine's output on its serial line: cut into lines, and the signs of a panic in them.
//!
//! A kernel that panics, or faults, prints a line that [`is_panic`] recognises, then registers and a backtrace whose
//! lines are `  #N 0xADDRESS`, each an address within the call, and ends QEMU with a failure status.

/// Returns whether a line is the first of a panic's or fault's report.
pub fn is_panic(line: &str) -> bool {
    line.starts_with("KERNEL PANIC") || line.starts_with("KERNEL FAULT")
}

/// Returns the status in the last line of a machine that cannot pass it on in another way.
pub fn end_line(line: &str) -> Option<u8> {
    line.strip_prefix("COPS: ended with status ")?.parse().ok()
}

/// Longer lines are cut: a machine out of control must not fill the memory of the host.
const MAXIMUM_LINE_BYTES: usize = 8 << 10;

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    unfinished: Vec<u8>,
}

impl Lines {
    /// Takes the next bytes and passes on the lines that they complete, without their ends.
    pub fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(String)) {
        for &byte in bytes {
            if byte == b'\n' {
                line(text(&self.unfinished));
                self.unfinished.clear();
            } else if self.unfinished.len() < MAXIMUM_LINE_BYTES {
                self.unfinished.push(byte);
            }
        }
    }

    /// Returns the last line if it has no end.
    pub fn finish(self) -> Option<String> {
        (!self.unfinished.is_empty()).then(|| text(&self.unfinished))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\r').to_string()
}

/// Returns the address of a backtrace line, `  #N 0xADDRESS`; the rest of the line is ignored.
pub fn backtrace_line(line: &str) -> Option<u64> {
    let rest = line.trim_start().strip_prefix('#')?;
    let (number, rest) = rest.split_once(' ')?;
    let digits = rest.trim_start().strip_prefix("0x")?;
    let end = digits.find(|character: char| !character.is_ascii_hexdigit()).unwrap_or(digits.len());
    number.parse::<usize>().ok()?;
    u64::from_str_radix(&digits[..end], 16).ok()
}

/// One line of a suite that runs in the machine: as Rust's test programs print it, or, from a kernel that is a suite
/// itself, the outcome before the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestLine {
    /// `test NAME ... ok`, perhaps with a time after it, or `ok NAME`
    Passed(String),
    /// `test NAME ... FAILED: REASON` or `FAILED NAME: REASON`: name and reason
    Failed(String),
    /// `N passed, N failed`, perhaps after `SUITE: `: the suite's last line
    Closing {
        /// Number of passed tests.
        passed: u64,
        /// Number of failed tests.
        failed: u64,
    },
    /// `test NAME ... skipped: REASON`
    Skipped,
    /// `note: TEXT`: a message to the user, for example that a test is left out
    Note,
}

/// Recognises a suite's lines.
pub fn test_line(line: &str) -> Option<TestLine> {
    if let Some(rest) = line.strip_prefix("test ")
        && let Some((name, outcome)) = rest.split_once(" ... ")
    {
        let (name, outcome) = (name.trim(), outcome.trim());
        return if outcome == "ok" || outcome.starts_with("ok ") {
            Some(TestLine::Passed(name.to_string()))
        } else if outcome.starts_with("skipped: ") {
            Some(TestLine::Skipped)
        } else {
            let why = outcome.strip_prefix("FAILED")?;
            Some(TestLine::Failed(format!("{name}{why}")))
        };
    }
    if let Some(name) = line.strip_prefix("ok ") {
        return Some(TestLine::Passed(name.trim().to_string()));
    }
    if let Some(name) = line.strip_prefix("FAILED ") {
        return Some(TestLine::Failed(name.trim().to_string()));
    }
    if line.starts_with("note: ") {
        return Some(TestLine::Note);
    }
    let line = line.split_once(": ").map_or(line, |(_, rest)| rest);
    let (passed, failed) = line.trim().strip_suffix(" failed")?.split_once(" passed, ")?;
    Some(TestLine::Closing { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut result = Vec::new();
        for part in parts {
            lines.feed(part, |line| result.push(line));
        }
        result.extend(lines.finish());
        result
    }

    #[test]
    fn lines_are_whole_however_the_bytes_come() {
        assert_eq!(lines(&[b"one\r\ntw", b"o\n\nthr\xff", b"ee"]), ["one", "two", "", "thr\u{fffd}ee"]);
        assert_eq!(lines(&[]), Vec::<String>::new());
    }

    #[test]
    fn endless_lines_are_cut() {
        assert_eq!(lines(&[&[b'x'; 100_000], b"\nnext\n"]), ["x".repeat(MAXIMUM_LINE_BYTES), "next".into()]);
    }

    #[test]
    fn the_end_of_a_kernel_is_recognised_at_the_start_of_a_line() {
        assert!(is_panic("KERNEL PANIC on hart 0: why") && is_panic("KERNEL FAULT on hart 3: page fault"));
        assert!(!is_panic("the log said KERNEL PANIC") && !is_panic(""));
    }

    #[test]
    fn the_status_of_a_machine_is_read_from_its_last_line() {
        assert_eq!(end_line("COPS: ended with status 0"), Some(0));
        assert_eq!(end_line("COPS: ended with status 101"), Some(101));
        for other in ["COPS: ended with status ", "COPS: ended with status 256", " COPS: ended with status 0", ""] {
            assert_eq!(end_line(other), None, "{other}");
        }
    }

    #[test]
    fn backtrace_lines_are_recognised() {
        assert_eq!(backtrace_line("  #0 0xffffffff80001234"), Some(0xffff_ffff_8000_1234));
        assert_eq!(backtrace_line("  #12 0x10 (maybe)"), Some(16));
        for other in ["", "#", "  #1", "  #x 0x10", "  #1 10", "  #1 0x", "  #1 0x11111111111111111", "1 0x10"] {
            assert_eq!(backtrace_line(other), None, "{other}");
        }
    }

    #[test]
    fn test_lines_are_recognised() {
        assert_eq!(test_line("test pipes::close ... ok"), Some(TestLine::Passed("pipes::close".into())));
        assert_eq!(test_line("test a ... FAILED: why"), Some(TestLine::Failed("a: why".into())));
        assert_eq!(test_line("test a ... skipped: the machine has no disk"), Some(TestLine::Skipped));
        assert_eq!(test_line("test a ... ok (12 ms)"), Some(TestLine::Passed("a".into())));
        assert_eq!(test_line("test a ... FAILED (9 ms): why"), Some(TestLine::Failed("a (9 ms): why".into())));
        assert_eq!(test_line("ok      it works"), Some(TestLine::Passed("it works".into())));
        assert_eq!(test_line("FAILED  it: why"), Some(TestLine::Failed("it: why".into())));
        assert_eq!(test_line("12 passed, 3 failed"), Some(TestLine::Closing { passed: 12, failed: 3 }));
        assert_eq!(test_line("hal: 12 passed, 3 failed"), Some(TestLine::Closing { passed: 12, failed: 3 }));
        assert_eq!(test_line("note: a test is left out"), Some(TestLine::Note));
        for other in [
            "",
            "note:",
            "test a",
            "test a ... running",
            "test a ... okay",
            "x passed, 3 failed",
            "test result: ok. 3 passed; 0 failed",
        ] {
            assert_eq!(test_line(other), None, "{other}");
        }
    }
}
