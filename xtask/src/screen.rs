//! The machine's output as the user sees it: without the firmware's lines, and with backtraces of programs that died.

use std::io::{self, Write};

use crate::callers::Programs;

/// The line with which OpenSBI ends: the next byte is the kernel's.
const LAST_OF_FIRMWARE: &str = "Boot HART MEDELEG";

/// Longest part of a line that is kept to be looked at.
const LONGEST: usize = 4096;

/// A filter between the machine's serial line and the user's terminal.
#[derive(Default)]
pub struct Screen {
    programs: Programs,
    /// Output of the firmware, which is shown if nothing else follows.
    hidden: Option<Vec<u8>>,
    /// The line so far.
    line: Vec<u8>,
}

impl Screen {
    /// Creates the filter. The firmware's lines are shown only if `verbose`.
    pub fn new(programs: Programs, verbose: bool) -> Screen {
        Screen { programs, hidden: (!verbose).then(Vec::new), line: Vec::new() }
    }

    /// Writes what of the next bytes is for the user.
    pub fn show(&mut self, bytes: &[u8], mut terminal: impl Write) -> io::Result<()> {
        let mut shown = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            if let Some(hidden) = &mut self.hidden {
                hidden.push(byte);
                if hidden.len() > LONGEST * 4 {
                    // No firmware that is known says so much.
                    shown.append(hidden);
                    self.hidden = None;
                }
            } else {
                shown.push(byte);
            }
            if byte != b'\n' {
                if self.line.len() < LONGEST {
                    self.line.push(byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).trim_end_matches('\r').to_string();
            self.line.clear();
            if self.hidden.is_some() {
                if line.starts_with(LAST_OF_FIRMWARE) {
                    self.hidden = None;
                } else if !is_of_firmware(&line) {
                    // Another firmware, or another version: from here on it is the kernel.
                    shown.extend_from_slice(line.as_bytes());
                    shown.extend_from_slice(b"\r\n");
                    self.hidden = None;
                }
            }
            for line in self.programs.explain(&line) {
                shown.extend_from_slice(line.as_bytes());
                shown.extend_from_slice(b"\r\n");
            }
        }
        terminal.write_all(&shown).and_then(|()| terminal.flush())
    }

    /// Shows the firmware's output after all if the machine ended with it.
    pub fn finish(self, mut terminal: impl Write) -> io::Result<()> {
        let hidden = self.hidden.unwrap_or_default();
        terminal.write_all(&hidden).and_then(|()| terminal.flush())
    }
}

/// Returns whether OpenSBI could have printed a line: its name, its emblem, or a property with a colon in a column.
fn is_of_firmware(line: &str) -> bool {
    let emblem = |line: &str| line.chars().all(|character| " _|\\/<>().'`-".contains(character));
    let is_property = line.starts_with("Boot HART ") || line.contains(" : ") || line.trim_end().ends_with(" :");
    line.starts_with("OpenSBI") || emblem(line) || is_property
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRMWARE: &str = "\r\nOpenSBI v1.1\r\n   ____ \r\n  / __ \\ _\r\n\r\nPlatform Name             : riscv-virtio\r\n\
                            Platform Console Device   : \r\n\
                            Boot HART PMP Address Bits: 54\r\nBoot HART MEDELEG         : 0x00f0b509\r\n";

    fn shown(verbose: bool, parts: &[&str]) -> String {
        let mut screen = Screen::new(Programs::default(), verbose);
        let mut terminal = Vec::new();
        for part in parts {
            screen.show(part.as_bytes(), &mut terminal).unwrap();
        }
        screen.finish(&mut terminal).unwrap();
        String::from_utf8(terminal).unwrap()
    }

    #[test]
    fn firmware_is_hidden_and_the_kernel_is_shown_as_it_comes() {
        assert_eq!(shown(false, &[FIRMWARE, "$ ", "ls\r\nx : y\r\n"]), "$ ls\r\nx : y\r\n");
        let whole = [FIRMWARE, "hello"].concat();
        let bytes: Vec<_> = whole.char_indices().map(|(at, character)| &whole[at..at + character.len_utf8()]).collect();
        assert_eq!(shown(false, &bytes), "hello");
        assert_eq!(shown(true, &[FIRMWARE, "hello"]), whole);
    }

    #[test]
    fn firmware_that_is_not_known_does_not_hide_the_kernel() {
        assert_eq!(
            shown(false, &["OpenSBI v9\r\nKERNEL PANIC on hart 0\r\n  #0 0x1\r\n"]),
            "KERNEL PANIC on hart 0\r\n  #0 0x1\r\n"
        );
    }

    #[test]
    fn output_without_lines_is_not_kept_for_ever() {
        let mut screen = Screen::new(Programs::default(), false);
        let mut terminal = Vec::new();
        screen.show(&[b' '; 5 * LONGEST], &mut terminal).unwrap();
        assert_eq!(terminal.len(), 5 * LONGEST);
    }

    #[test]
    fn firmware_that_is_the_last_to_speak_is_shown() {
        let part = "OpenSBI v1.1\r\nPlatform Name : x\r\nhangs he";
        assert_eq!(shown(false, &[part]), part);
    }
}
