//! A line while it is typed: its characters, the cursor, and the word to complete.

use alloc::string::String;
use alloc::vec::Vec;

/// Characters of the longest line.
pub const LONGEST: usize = 4000;

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character to insert.
    Character(char),
    /// The end of the line.
    Enter,
    /// Complete the word.
    Tab,
    /// Remove the character before the cursor.
    Erase,
    /// Remove the character at the cursor.
    Delete,
    /// Move the cursor to the left.
    Left,
    /// Move the cursor to the right.
    Right,
    /// Move the cursor to the beginning.
    Home,
    /// Move the cursor to the end.
    End,
    /// Show the line before in the history.
    Up,
    /// Show the next line of the history.
    Down,
    /// Remove everything before the cursor.
    KillLine,
    /// Remove everything from the cursor on.
    KillRest,
    /// Remove the word before the cursor.
    EraseWord,
    /// Clear the screen.
    Clear,
    /// Give the line up.
    Interrupt,
    /// End the input, or remove the character at the cursor.
    EndOfFile,
    /// None of these.
    Other,
}

/// A line that is being edited, and the cursor in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    characters: Vec<char>,
    cursor: usize,
}

/// The word before the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its text without backslashes.
    pub text: String,
    /// Whether it is the name of a command.
    pub is_command: bool,
}

impl Line {
    /// Creates a line with the cursor at its end.
    pub fn new(text: &str) -> Line {
        let characters: Vec<char> = text.chars().collect();
        Line { cursor: characters.len(), characters }
    }

    /// Returns the text.
    pub fn text(&self) -> String {
        self.characters.iter().collect()
    }

    /// Returns whether there is no character.
    pub fn is_empty(&self) -> bool {
        self.characters.is_empty()
    }

    /// Returns the number of characters behind the cursor.
    pub fn behind_cursor(&self) -> usize {
        self.characters.len() - self.cursor
    }

    /// Changes the line, or moves the cursor, as the key says; returns whether it does either.
    pub fn apply(&mut self, key: Key) -> bool {
        match key {
            Key::Character(character) if self.characters.len() < LONGEST => {
                self.characters.insert(self.cursor, character);
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

    /// Returns the word before the cursor.
    pub fn unfinished(&self) -> Unfinished {
        let mut text = String::new();
        let mut is_command = true;
        let mut characters = self.characters[..self.cursor].iter().copied();
        while let Some(character) = characters.next() {
            match character {
                '\\' => text.extend(characters.next()),
                ' ' => {
                    // Assignments stand before the command.
                    is_command &= text.is_empty() || text.contains('=');
                    text.clear();
                }
                ';' | '&' | '|' | '(' => {
                    is_command = true;
                    text.clear();
                }
                '<' | '>' => {
                    is_command = false;
                    text.clear();
                }
                character => text.push(character),
            }
        }
        Unfinished { text, is_command }
    }

    /// Adds the characters that all candidates continue with behind `length` bytes, and a blank behind the only one
    /// unless it is a directory; returns whether there was anything to add.
    pub fn complete(&mut self, length: usize, candidates: &[String]) -> bool {
        let Some(first) = candidates.first().and_then(|first| first.get(length..)) else { return false };
        let mut common = first;
        for candidate in &candidates[1..] {
            let rest = candidate.get(length..).unwrap_or_default();
            let pairs = common.char_indices().zip(rest.chars());
            let end = pairs.take_while(|((_, ours), theirs)| ours == theirs).last();
            common = end.map_or("", |((place, character), _)| &common[..place + character.len_utf8()]);
        }
        let blank = (candidates.len() == 1 && !first.ends_with('/')).then_some(' ');
        let before = self.characters.len();
        for character in common.chars() {
            if " \\'\"$`;&|<>()*?[#~".contains(character) {
                self.apply(Key::Character('\\'));
            }
            self.apply(Key::Character(character));
        }
        blank.map(|blank| self.apply(Key::Character(blank)));
        self.characters.len() > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[Key]) -> Line {
        let mut line = Line::new("ab cd");
        for key in keys {
            line.apply(*key);
        }
        line
    }

    #[test]
    fn keys_edit_the_line() {
        assert_eq!(typed(&[Key::EraseWord]).text(), "ab ");
        assert_eq!(typed(&[Key::Home, Key::Character('ä'), Key::Delete]).text(), "äb cd");
        assert_eq!(typed(&[Key::Left, Key::KillRest]).text(), "ab c");
        assert_eq!(typed(&[Key::Left, Key::KillLine]).text(), "d");
        assert_eq!(typed(&[Key::Left, Key::Left, Key::Erase, Key::Right, Key::End, Key::Erase]).text(), "abc");
        assert_eq!(typed(&[Key::Home, Key::Left]).behind_cursor(), 5);
        assert!(!Line::new("x").apply(Key::Tab) && !Line::default().apply(Key::Erase));
    }

    #[test]
    fn the_word_before_the_cursor_is_found() {
        let unfinished = |text: &str| {
            let Unfinished { text, is_command } = Line::new(text).unfinished();
            (text, is_command)
        };
        assert_eq!(unfinished("he"), ("he".into(), true));
        assert_eq!(unfinished("  A=1 he"), ("he".into(), true));
        assert_eq!(unfinished("cat a\\ b"), ("a b".into(), false));
        assert_eq!(unfinished("cat x|gr"), ("gr".into(), true));
        assert_eq!(unfinished("cat x && "), ("".into(), true));
        assert_eq!(unfinished("echo >/t"), ("/t".into(), false));
        assert_eq!(unfinished("x \\"), ("".into(), false));
    }

    #[test]
    fn completion_adds_the_common_part() {
        let complete = |text: &str, length, candidates: &[&str]| {
            let mut line = Line::new(text);
            let candidates: Vec<String> = candidates.iter().map(|name| (*name).into()).collect();
            let is_changed = line.complete(length, &candidates);
            (line.text(), is_changed)
        };
        assert_eq!(complete("he", 2, &["hello"]), ("hello ".into(), true));
        assert_eq!(complete("cat /t", 2, &["/tmp/"]), ("cat /tmp/".into(), true));
        assert_eq!(complete("he", 2, &["hello", "help"]), ("hel".into(), true));
        assert_eq!(complete("hel", 3, &["hello", "help"]), ("hel".into(), false));
        assert_eq!(complete("x", 1, &[]), ("x".into(), false));
        assert_eq!(complete("cat a", 1, &["a b"]), ("cat a\\ b ".into(), true));
        assert_eq!(complete("cat ä", 2, &["äöx", "äöy"]), ("cat äö".into(), true));
    }

    proptest::proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn a_completed_name_is_the_word_before_the_cursor(name in "[a-c $'\"\\\\;&|<>()*?#~\\[]{1,8}") {
            let mut line = Line::new("cat ");
            line.complete(0, &[alloc::format!("{name}/")]);
            proptest::prop_assert_eq!(line.unfinished().text, alloc::format!("{name}/"));
        }
    }
}
