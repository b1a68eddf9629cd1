//! Lines that the kernel prints because of a process: its log, and the reason of its death.
//!
//! The console is slow, and printing more than its ring holds means waiting for the device. Programs decide how often
//! these lines are printed, so printing them never waits: a line that finds half of the ring in use is dropped and
//! counted, and the process's next line tells the number dropped. The other half is the kernel's.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering};

use heapless::String;

/// Length of the longest line in bytes; longer lines are cut off.
const LONGEST: usize = 1280;

/// Number of a process's lines that were dropped.
#[derive(Default)]
struct Dropped(AtomicU32);

/// The lines of a process.
pub(crate) struct Lines {
    process: u32,
    dropped: Dropped,
}

impl Lines {
    /// Creates the lines of a process with this number.
    pub(crate) fn of(process: u32) -> Lines {
        Lines { process, dropped: Dropped::default() }
    }

    /// Prints a line because of the process, or counts that it was dropped.
    #[doc(alias = "printk")]
    #[doc(alias = "pr_warn")]
    pub(crate) fn print(&self, text: fmt::Arguments<'_>) {
        print(self.process, &self.dropped, text, platform::console_try_write);
    }
}

fn print(id: u32, dropped: &Dropped, text: fmt::Arguments<'_>, mut write: impl FnMut(&[u8]) -> bool) {
    let mut line = PrintedLine(String::new());
    let lost = dropped.0.load(Ordering::Relaxed);
    if lost > 0 {
        let _ = writeln!(line, "[{id}] {lost} lines were dropped");
    }
    // A line that is too long is printed up to the cut.
    let _ = write!(line, "[{id}] {text}");
    let _ = line.0.push('\n');
    if write(line.0.as_bytes()) {
        dropped.0.fetch_sub(lost, Ordering::Relaxed);
    } else {
        dropped.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Text as far as there is room for it and for the end of the line.
struct PrintedLine(String<LONGEST>);

impl Write for PrintedLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.0.capacity() - 1 - self.0.len();
        let mut length = text.len().min(room);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        self.0.push_str(&text[..length]).map_err(|_| fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_room_are_counted_and_reported_later() {
        let dropped = Dropped::default();
        for number in 0..3 {
            print(7, &dropped, format_args!("line {number}"), |_| false);
        }
        let mut written = alloc::vec::Vec::new();
        let mut keep = |bytes: &[u8]| {
            written.extend_from_slice(bytes);
            true
        };
        print(7, &dropped, format_args!("line 3"), &mut keep);
        print(7, &dropped, format_args!("line 4"), &mut keep);
        assert_eq!(written, b"[7] 3 lines were dropped\n[7] line 3\n[7] line 4\n");
    }

    #[test]
    fn a_long_line_is_cut_off() {
        let text = "\u{fc}".repeat(LONGEST);
        print(1, &Dropped::default(), format_args!("{text}"), |bytes| {
            assert!(bytes.len() <= LONGEST && bytes.len() > LONGEST - 3 && bytes.ends_with(b"\n"));
            assert!(core::str::from_utf8(bytes).is_ok());
            true
        });
    }
}
