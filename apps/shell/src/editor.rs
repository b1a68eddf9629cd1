//! Lines from the console: with a terminal, edited here key by key with a history; otherwise as they come.
//!
//! While a line is edited the terminal is raw, so that this program sees the keys that move the cursor. Started
//! programs get the terminal with its original settings.

use alloc::string::String;
use alloc::vec::Vec;

use abi_unix::types::Termios;
use abi_unix::types::terminal::{character, input, local};
use cops::file::File;
use cops::system::terminal::{self, When};
use cops::{Errno, print, println};

/// Lines that are remembered.
const HISTORY: usize = 100;
/// Characters of the longest line.
const LONGEST: usize = 1000;

/// The reader of lines.
pub struct Lines {
    input: File,
    /// The terminal's settings for programs; `None` if the input is no terminal.
    settings: Option<Termios>,
    buffer: Vec<u8>,
    /// Range of the bytes that were read and not used yet.
    start: usize,
    end: usize,
    history: Vec<Vec<char>>,
}

/// The meaning of a key.
enum Key {
    Character(char),
    Enter,
    Erase,
    Delete,
    Left,
    Right,
    Home,
    End,
    Up,
    Down,
    KillLine,
    KillRest,
    EraseWord,
    Clear,
    Interrupt,
    EndOfFile,
    Other,
}

/// A line that is being edited, and the cursor in it.
#[derive(Default)]
struct Line {
    characters: Vec<char>,
    cursor: usize,
}

impl Lines {
    /// Creates a reader of lines from this file.
    pub fn new(input: File) -> Lines {
        let settings = terminal::settings(input.descriptor().raw()).ok();
        Lines { input, settings, buffer: alloc::vec![0; 64], start: 0, end: 0, history: Vec::new() }
    }

    /// Shows `prompt` and reads a line; `None` at the end of the input.
    pub async fn next(&mut self, prompt: &str) -> Result<Option<String>, Errno> {
        print!("{prompt}");
        let Some(settings) = self.settings else { return self.plain().await };
        let mut raw = settings;
        raw.local &= !(local::ICANON | local::ECHO | local::ISIG | local::IEXTEN);
        raw.input &= !(input::ICRNL | input::INLCR | input::IGNCR);
        raw.characters[character::MINIMUM] = 1;
        let terminal = self.input.descriptor().raw();
        terminal::set(terminal, &raw, When::Now)?;
        let line = self.edit(prompt).await;
        terminal::set(terminal, &settings, When::Now)?;
        line
    }

    /// Makes a process group the terminal's foreground group; 0 is the shell's own.
    pub fn give_foreground(&self, group: u32) {
        if self.settings.is_some()
            && let Ok(group) = if group == 0 { terminal::group(0) } else { Ok(group) }
        {
            // A program that has ended already does not need it.
            let _ = terminal::set_foreground(self.input.descriptor().raw(), group);
        }
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
                Some(_) => {}
            }
        }
    }

    async fn key(&mut self) -> Result<Option<Key>, Errno> {
        let Some(byte) = self.byte().await? else { return Ok(None) };
        Ok(Some(match byte {
            b'\r' | b'\n' => Key::Enter,
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

    async fn edit(&mut self, prompt: &str) -> Result<Option<String>, Errno> {
        let mut line = Line::default();
        // Index of the shown line of the history; behind the last is the new one, kept here meanwhile.
        let mut shown = self.history.len();
        let mut fresh = Vec::new();
        loop {
            let Some(key) = self.key().await? else { return Ok(None) };
            match key {
                Key::Enter => {
                    println!();
                    if !line.characters.is_empty() && self.history.last() != Some(&line.characters) {
                        if self.history.len() == HISTORY {
                            self.history.remove(0);
                        }
                        self.history.push(line.characters.clone());
                    }
                    return Ok(Some(line.characters.into_iter().collect()));
                }
                Key::EndOfFile if line.characters.is_empty() => {
                    println!();
                    return Ok(None);
                }
                Key::Up | Key::Down => {
                    let wanted = if matches!(key, Key::Up) { shown.saturating_sub(1) } else { shown + 1 };
                    if wanted > self.history.len() || wanted == shown {
                        continue;
                    }
                    if shown == self.history.len() {
                        fresh = core::mem::take(&mut line.characters);
                    }
                    shown = wanted;
                    line.characters = self.history.get(shown).unwrap_or(&fresh).clone();
                    line.cursor = line.characters.len();
                }
                Key::Clear => print!("\x1b[H\x1b[2J"),
                Key::Interrupt => {
                    println!("^C");
                    return Ok(Some(String::new()));
                }
                key if line.apply(&key) => {}
                _ => continue,
            }
            line.show(prompt);
        }
    }
}

impl Line {
    /// Changes the line, or moves the cursor, as the key says; returns whether it does either.
    fn apply(&mut self, key: &Key) -> bool {
        match key {
            Key::Character(character) if self.characters.len() < LONGEST => {
                self.characters.insert(self.cursor, *character);
                self.cursor += 1;
            }
            Key::Erase if self.cursor > 0 => {
                self.cursor -= 1;
                self.characters.remove(self.cursor);
            }
            Key::Delete | Key::EndOfFile if self.cursor < self.characters.len() => {
                self.characters.remove(self.cursor);
            }
            Key::Left => self.cursor = self.cursor.saturating_sub(1),
            Key::Right => self.cursor = (self.cursor + 1).min(self.characters.len()),
            Key::Home => self.cursor = 0,
            Key::End => self.cursor = self.characters.len(),
            Key::KillLine => {
                self.characters.drain(..self.cursor);
                self.cursor = 0;
            }
            Key::KillRest => self.characters.truncate(self.cursor),
            Key::EraseWord => {
                let before = &self.characters[..self.cursor];
                let end = before.iter().rposition(|character| *character != ' ').map_or(0, |last| last + 1);
                let begin = before[..end].iter().rposition(|character| *character == ' ').map_or(0, |last| last + 1);
                self.characters.drain(begin..self.cursor);
                self.cursor = begin;
            }
            _ => return false,
        }
        true
    }

    /// Redraws the line, and puts the cursor at its place.
    fn show(&self, prompt: &str) {
        let text: String = self.characters.iter().collect();
        let behind = self.characters.len() - self.cursor;
        if behind == 0 {
            print!("\r{prompt}{text}\x1b[K");
        } else {
            print!("\r{prompt}{text}\x1b[K\x1b[{behind}D");
        }
    }
}
