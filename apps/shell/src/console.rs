//! Lines from the console: with a terminal, edited here key by key, with completion and a history; otherwise as they
//! come.
//!
//! While a line is edited the terminal is raw, so that this program sees the keys that move the cursor. Started
//! programs get the terminal with its original settings. The editing itself is
//! [`command_line::line`]: no crate of the ecosystem both awaits its keys and asks for completions while it edits
//! UTF-8.

use alloc::string::String;
use alloc::vec::Vec;

use abi_unix::types::terminal::{character, input, local};
use abi_unix::types::{Termios, signal};
use command_line::line::{Key, LONGEST, Line};
use cops::file::{File, FileType};
use cops::system::terminal::{self, When};
use cops::{Errno, print, println};

use crate::state::State;
use crate::{commands, tools};

/// Lines that are remembered.
const HISTORY: usize = 100;

/// The reader of lines.
pub struct Lines {
    input: File,
    /// The terminal's settings before the shell, and for programs; `None` if the input is no terminal.
    settings: Option<Termios>,
    buffer: Vec<u8>,
    /// Range of the bytes that were read and not used yet.
    start: usize,
    end: usize,
    history: Vec<String>,
    /// Whether Ctrl-C has ended the last line.
    was_interrupted: bool,
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let (Some(terminal), Some(settings)) = (self.terminal(), &self.settings) {
            let _ = terminal::set(terminal, settings, When::Now);
        }
    }
}

impl Lines {
    /// Creates a reader of lines from this file.
    pub fn new(input: File) -> Lines {
        let settings = terminal::settings(input.descriptor().raw()).ok();
        if settings.is_some() {
            // It takes the foreground back when its jobs have ended, while it is in the background itself.
            let _ = cops::system::signal::ignore(signal::TTOU);
        }
        // Of an input that programs may read as well no more is taken than a line.
        let buffer = alloc::vec![0; if settings.is_some() { 64 } else { 1 }];
        Lines { input, settings, buffer, start: 0, end: 0, history: Vec::new(), was_interrupted: false }
    }

    /// Returns the descriptor of the terminal.
    pub fn terminal(&self) -> Option<i32> {
        self.settings.map(|_| self.input.descriptor().raw())
    }

    /// Returns whether Ctrl-C has ended the last line.
    pub fn was_interrupted(&self) -> bool {
        self.was_interrupted
    }

    /// Shows `prompt` and reads a line; `None` at the end of the input.
    pub async fn next(&mut self, prompt: &str, state: &State) -> Result<Option<String>, Errno> {
        self.was_interrupted = false;
        let Some(settings) = self.settings else { return self.plain().await };
        print!("{prompt}");
        let mut raw = settings;
        raw.local &= !(local::ICANON | local::ECHO | local::ISIG | local::IEXTEN);
        raw.input &= !(input::ICRNL | input::INLCR | input::IGNCR);
        raw.characters[character::MINIMUM] = 1;
        let terminal = self.input.descriptor().raw();
        terminal::set(terminal, &raw, When::Now)?;
        let line = self.edit(prompt, state).await;
        terminal::set(terminal, &settings, When::Now)?;
        line
    }

    /// Returns the next byte; `None` at the end.
    async fn byte(&mut self) -> Result<Option<u8>, Errno> {
        if self.start == self.end {
            let (result, buffer) = self.input.read(core::mem::take(&mut self.buffer)).await;
            self.buffer = buffer;
            (self.start, self.end) = (0, result?);
            if self.end == 0 {
                return Ok(None);
            }
        }
        self.start += 1;
        Ok(Some(self.buffer[self.start - 1]))
    }

    /// Reads a line from a file that is no terminal.
    async fn plain(&mut self) -> Result<Option<String>, Errno> {
        let mut line = Vec::new();
        loop {
            match self.byte().await? {
                None if line.is_empty() => return Ok(None),
                None | Some(b'\n') => return Ok(Some(String::from_utf8_lossy(&line).into_owned())),
                Some(byte) if line.len() < LONGEST => line.push(byte),
                Some(_) => return Err(Errno::E2BIG),
            }
        }
    }

    async fn key(&mut self) -> Result<Option<Key>, Errno> {
        let Some(byte) = self.byte().await? else { return Ok(None) };
        Ok(Some(match byte {
            b'\r' | b'\n' => Key::Enter,
            b'\t' => Key::Tab,
            0x7f | 0x08 => Key::Erase,
            0x01 => Key::Home,
            0x02 => Key::Left,
            0x03 => Key::Interrupt,
            0x04 => Key::EndOfFile,
            0x05 => Key::End,
            0x06 => Key::Right,
            0x0b => Key::KillRest,
            0x0c => Key::Clear,
            0x0e => Key::Down,
            0x10 => Key::Up,
            0x15 => Key::KillLine,
            0x17 => Key::EraseWord,
            0x1b => self.escape().await?,
            b' '..=b'~' => Key::Character(byte as char),
            0xc2..=0xf4 => self.wide(byte).await?,
            _ => Key::Other,
        }))
    }

    /// Decodes the rest of an escape sequence: keys that terminals send as several bytes.
    async fn escape(&mut self) -> Result<Key, Errno> {
        if !matches!(self.byte().await?, Some(b'[' | b'O')) {
            return Ok(Key::Other);
        }
        let mut number = 0u32;
        loop {
            let Some(byte) = self.byte().await? else { return Ok(Key::Other) };
            return Ok(match byte {
                b'0'..=b'9' => {
                    number = (number * 10 + u32::from(byte - b'0')).min(1000);
                    continue;
                }
                b';' => continue,
                b'A' => Key::Up,
                b'B' => Key::Down,
                b'C' => Key::Right,
                b'D' => Key::Left,
                b'H' => Key::Home,
                b'F' => Key::End,
                b'~' => match number {
                    1 | 7 => Key::Home,
                    3 => Key::Delete,
                    4 | 8 => Key::End,
                    _ => Key::Other,
                },
                _ => Key::Other,
            });
        }
    }

    /// Reads the rest of a character in UTF-8.
    async fn wide(&mut self, first: u8) -> Result<Key, Errno> {
        let length = match first {
            0..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        let mut bytes = [first, 0, 0, 0];
        for place in &mut bytes[1..length] {
            let Some(byte) = self.byte().await? else { return Ok(Key::Other) };
            *place = byte;
        }
        let text = core::str::from_utf8(&bytes[..length]).unwrap_or_default();
        Ok(text.chars().next().map_or(Key::Other, Key::Character))
    }

    async fn edit(&mut self, prompt: &str, state: &State) -> Result<Option<String>, Errno> {
        let mut line = Line::default();
        // Index of the shown line of the history; behind the last is the new one, kept here meanwhile.
        let mut shown = self.history.len();
        let mut fresh = String::new();
        loop {
            let Some(key) = self.key().await? else { return Ok(None) };
            match key {
                Key::Enter => {
                    println!();
                    let text = line.text();
                    if !line.is_empty() && self.history.last() != Some(&text) {
                        if self.history.len() == HISTORY {
                            self.history.remove(0);
                        }
                        self.history.push(text.clone());
                    }
                    return Ok(Some(text));
                }
                Key::EndOfFile if line.is_empty() => {
                    println!();
                    return Ok(None);
                }
                Key::Up | Key::Down => {
                    let wanted = if key == Key::Up { shown.saturating_sub(1) } else { shown + 1 };
                    if wanted > self.history.len() || wanted == shown {
                        continue;
                    }
                    if shown == self.history.len() {
                        fresh = line.text();
                    }
                    shown = wanted;
                    line = Line::new(self.history.get(shown).unwrap_or(&fresh));
                }
                Key::Tab => complete(&mut line, state),
                Key::Clear => print!("\x1b[H\x1b[2J"),
                Key::Interrupt => {
                    println!("^C");
                    self.was_interrupted = true;
                    return Ok(Some(String::new()));
                }
                key if line.apply(key) => {}
                _ => continue,
            }
            show(&line, prompt);
        }
    }
}

/// Redraws the line, and puts the cursor at its place.
fn show(line: &Line, prompt: &str) {
    let text = line.text();
    match line.behind_cursor() {
        0 => print!("\r{prompt}{text}\x1b[K"),
        behind => print!("\r{prompt}{text}\x1b[K\x1b[{behind}D"),
    }
}

/// Completes the word before the cursor, or shows its continuations if they have no more in common.
fn complete(line: &mut Line, state: &State) {
    let word = line.unfinished();
    let (directory, begin) = match word.text.rfind('/') {
        Some(slash) => word.text.split_at(slash + 1),
        None => ("", &*word.text),
    };
    state.enter();
    let mut candidates = Vec::new();
    if word.is_command && directory.is_empty() {
        candidates.extend(commands::NAMES.iter().chain(tools::NAMES).map(|name| String::from(*name)));
        candidates.extend(state.search_path().iter().flat_map(|directory| crate::run::names(directory)));
    } else {
        let place = match directory.strip_prefix("~/") {
            Some(rest) => alloc::format!("{}/{rest}", state.variable("HOME")),
            None if directory.is_empty() => ".".into(),
            None => directory.into(),
        };
        for entry in cops::file::read_dir(&place).into_iter().flatten().flatten() {
            let mark = if entry.file_type() == FileType::Directory { "/" } else { "" };
            candidates.push(alloc::format!("{}{mark}", entry.name()));
        }
    }
    candidates.retain(|name| name.starts_with(begin) && (begin.starts_with('.') || !name.starts_with('.')));
    candidates.sort();
    candidates.dedup();
    if !line.complete(begin.len(), &candidates) && candidates.len() > 1 {
        println!("\n{}", candidates.join("  "));
    }
}
