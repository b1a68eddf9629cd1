//! The line discipline: from the keys of a terminal to the input of programs, and to the bytes that it shows
//! (termios(3), N_TTY on Linux).
//!
//! In *canonical* mode input comes to programs in lines, which can be edited until they are ended: one key erases a
//! character, another one a word, another one the whole line; the end-of-file key ends a line without a character of
//! its own, so that an empty line is the end of the file. Otherwise (*raw*) each key can be read immediately. In both
//! modes keys are echoed, translated, and may be signals, as the settings tell.
//!
//! A key that erases or shows a line of thousands does that in steps: the caller [proceeds](LineDiscipline::proceed)
//! before it presses the next key.
//!
//! This is data and no device: keys go in, the bytes to be shown go to a function, and the signal of a key is the
//! result. So the whole of it is tested on the host.
//!
//! # Missing features
//!
//! Flow control by keys (`IXON` is accepted and changes nothing), parity, modem lines, other line
//! disciplines, and `VTIME` between keys (a read with `VMIN` 0 never waits).

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi_unix::Errno;
use abi_unix::types::Termios;
use abi_unix::types::signal;
use abi_unix::types::terminal::{character, control, input, local, output};

/// Keys that can wait to be read, and so the length of the longest line with its end (Linux's `N_TTY_BUF_SIZE`).
pub(crate) const CAPACITY: usize = 4096;

/// Columns that one key erases on the screen.
const MOST_ERASED: usize = CAPACITY / 3;

/// Parts of an edit in one step: keys that are looked at, or shown, or columns that are erased.
pub(crate) const STEP: usize = 96;

/// Flag of an entry that ends a line.
const LINE_END: u16 = 0x100;
/// Flag of an entry that is no character and only ends the line.
const MARK: u16 = 0x200;

const BELL: &[u8] = b"\x07";

/// Linux's default settings.
pub(crate) const DEFAULT: Termios = {
    let mut characters = [0; 19];
    characters[character::INTERRUPT] = 0x03;
    characters[character::QUIT] = 0x1c;
    characters[character::ERASE] = 0x7f;
    characters[character::KILL] = 0x15;
    characters[character::END_OF_FILE] = 0x04;
    characters[character::MINIMUM] = 1;
    characters[character::START] = 0x11;
    characters[character::STOP] = 0x13;
    characters[character::SUSPEND] = 0x1a;
    characters[character::REPRINT] = 0x12;
    characters[character::DISCARD] = 0x0f;
    characters[character::WORD_ERASE] = 0x17;
    characters[character::LITERAL_NEXT] = 0x16;
    Termios {
        input: input::ICRNL | input::IXON | input::IUTF8,
        output: output::OPOST | output::ONLCR,
        control: control::B38400 | control::CS8 | control::CREAD | control::HUPCL,
        local: local::ISIG
            | local::ICANON
            | local::ECHO
            | local::ECHOE
            | local::ECHOK
            | local::ECHOCTL
            | local::ECHOKE
            | local::IEXTEN,
        line: 0,
        characters,
    }
};

/// State of a line discipline.
#[doc(alias = "n_tty")]
#[doc(alias = "tty_struct")]
pub(crate) struct LineDiscipline {
    settings: Termios,
    /// Typed keys, each at its number modulo the capacity.
    keys: Box<[u16; CAPACITY]>,
    /// Keys before `read` were read, those before `committed` can be read, and those before `end` are being edited.
    read: usize,
    committed: usize,
    end: usize,
    /// Column of the cursor, as far as that can be known.
    column: usize,
    /// Column at which the line that is edited began.
    start_column: usize,
    /// Set if the next key is taken as it is.
    literal: bool,
    /// The rest of the work of the last key.
    edit: Option<Edit>,
    /// Parts of edits that were done since this was asked.
    parts: usize,
}

/// Work of a key that goes on in steps. Places are numbers of keys.
#[derive(Clone, Copy, Debug)]
enum Edit {
    /// Find the beginning of the last word, which is before `end`, and erase it.
    FindWord { end: usize, in_word: bool },
    /// Find the columns behind the line as it is and as it will be when it ends at `end`: those up to `at` are known.
    Measure { end: usize, at: usize, column: usize, after: usize },
    /// Erase columns of the screen; the cursor is at the other column then.
    Erase { columns: usize, column: usize },
    /// Show the keys of the line from `at` on.
    Show { at: usize },
}

impl LineDiscipline {
    /// Creates a line discipline with the [`DEFAULT`] settings. `ENOMEM`.
    pub(crate) fn new() -> Result<LineDiscipline, Errno> {
        let mut keys = Vec::new();
        keys.try_reserve_exact(CAPACITY).map_err(|_| Errno::ENOMEM)?;
        keys.resize(CAPACITY, 0);
        let keys = keys.into_boxed_slice().try_into().map_err(|_| Errno::ENOMEM)?;
        Ok(LineDiscipline {
            settings: DEFAULT,
            keys,
            read: 0,
            committed: 0,
            end: 0,
            column: 0,
            start_column: 0,
            literal: false,
            edit: None,
            parts: 0,
        })
    }

    pub(crate) fn settings(&self) -> Termios {
        self.settings
    }

    /// Changes the settings. Keys typed before stay: a line that was being edited can be read in raw mode, and keys
    /// that were not read in raw mode are a line of their own.
    pub(crate) fn set(&mut self, settings: Termios) {
        self.end_edit();
        let was_canonical = self.is_canonical();
        self.settings = settings;
        self.literal = false;
        if was_canonical && !self.is_canonical() {
            self.forget_marks();
        }
        if self.is_canonical() && !was_canonical && self.read < self.end {
            self.keys[(self.end - 1) % CAPACITY] |= LINE_END;
        }
        if self.is_canonical() != was_canonical {
            self.committed = self.end;
        }
    }

    /// Removes the entries that are no keys: raw input has none.
    fn forget_marks(&mut self) {
        let mut end = self.read;
        for at in self.read..self.end {
            let entry = self.keys[at % CAPACITY];
            if entry & MARK == 0 {
                self.keys[end % CAPACITY] = entry;
                end += 1;
            }
        }
        self.end = end;
    }

    fn has(&self, flag: u32) -> bool {
        self.settings.local & flag != 0
    }

    fn takes(&self, flag: u32) -> bool {
        self.settings.input & flag != 0
    }

    fn is_canonical(&self) -> bool {
        self.has(local::ICANON)
    }

    /// Returns whether `byte` is this special character; a setting of 0 switches the character off.
    fn is(&self, byte: u8, character: usize) -> bool {
        let special = self.settings.characters[character];
        special != 0 && special == byte
    }

    /// Forgets keys that were not read.
    pub(crate) fn flush(&mut self) {
        self.end_edit();
        (self.read, self.committed, self.literal) = (self.end, self.end, false);
    }

    // ---- showing ----

    /// Translates a program's output as the settings tell, and passes it to `show`.
    pub(crate) fn write(&mut self, bytes: &[u8], show: &mut impl FnMut(&[u8])) {
        let translates = self.settings.output & (output::OPOST | output::ONLCR) == output::OPOST | output::ONLCR;
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            if length > 0 {
                show(&rest[..length]);
            }
            rest = &rest[length..];
            if !rest.is_empty() {
                show(if translates { b"\r\n" } else { b"\n" });
                rest = &rest[1..];
            }
        }
        for &byte in bytes {
            self.column = column_after(self.column, byte);
        }
    }

    fn echo(&mut self, byte: u8, show: &mut impl FnMut(&[u8])) {
        let is_shown = self.has(local::ECHO) || (byte == b'\n' && self.has(local::ECHONL) && self.is_canonical());
        if !is_shown {
            return;
        }
        match self.caret(byte) {
            Some(caret) => self.write(&[b'^', caret], show),
            None => self.write(&[byte], show),
        }
    }

    /// Returns the character behind `^` that shows a control character.
    fn caret(&self, byte: u8) -> Option<u8> {
        (self.has(local::ECHOCTL) && (byte < b' ' || byte == 0x7f) && byte != b'\n' && byte != b'\t')
            .then_some(byte ^ 0x40)
    }

    /// Returns the column behind this key, which is shown at `column`.
    fn column_behind(&self, at: usize, column: usize) -> usize {
        let byte = self.keys[at % CAPACITY] as u8;
        if self.caret(byte).is_some() { column + 2 } else { column_after(column, byte) }
    }

    // ---- typing ----

    /// Does a step of the work of the last key; returns whether more is left.
    pub(crate) fn proceed(&mut self, show: &mut impl FnMut(&[u8])) -> bool {
        for _ in 0..STEP {
            let Some(edit) = self.edit.take() else { return false };
            self.parts += 1;
            self.edit = self.next_of(edit, show);
        }
        self.is_busy()
    }

    /// Returns whether work of the last key is left.
    pub(crate) fn is_busy(&self) -> bool {
        self.edit.is_some()
    }

    /// Returns the number of parts of edits since it was asked last, of which a step has [`STEP`].
    pub(crate) fn take_parts(&mut self) -> usize {
        core::mem::take(&mut self.parts)
    }

    /// Does the smallest part of an edit; returns the rest.
    fn next_of(&mut self, edit: Edit, show: &mut impl FnMut(&[u8])) -> Option<Edit> {
        match edit {
            Edit::FindWord { end, in_word } if end > self.committed => {
                let last = self.keys[(end - 1) % CAPACITY] as u8;
                let is_of_word = last.is_ascii_alphanumeric() || last == b'_' || last >= 0x80;
                match in_word && !is_of_word {
                    true => self.erase_to(end),
                    false => Some(Edit::FindWord { end: self.character_before(end), in_word: in_word || is_of_word }),
                }
            }
            Edit::FindWord { end, .. } => self.erase_to(end),
            Edit::Measure { end, at, column, after } => {
                let after = if at == end { column } else { after };
                if at < self.end {
                    return Some(Edit::Measure { end, at: at + 1, column: self.column_behind(at, column), after });
                }
                self.end = end;
                // Tabs can make a line far wider than its keys are many, and an echo without room is lost anyway.
                Some(Edit::Erase { columns: column.saturating_sub(after).min(MOST_ERASED), column: after })
            }
            Edit::Erase { columns: 0, column } => {
                self.column = column;
                None
            }
            Edit::Erase { columns, column } => {
                show(b"\x08 \x08");
                Some(Edit::Erase { columns: columns - 1, column })
            }
            Edit::Show { at } if at < self.end => {
                self.echo(self.keys[at % CAPACITY] as u8, show);
                Some(Edit::Show { at: at + 1 })
            }
            Edit::Show { .. } => None,
        }
    }

    /// Ends the work of the last key without showing it.
    fn end_edit(&mut self) {
        while let Some(edit) = self.edit.take() {
            self.edit = match edit {
                Edit::FindWord { .. } => self.next_of(edit, &mut |_| {}),
                Edit::Measure { end, .. } => {
                    self.end = end;
                    None
                }
                Edit::Erase { .. } | Edit::Show { .. } => None,
            };
        }
    }

    /// Takes a key that was pressed, when it is not [busy](Self::is_busy). Bytes to be shown go to `show`; the result
    /// is the signal that the key stands for. Its work may go on with [`proceed`](Self::proceed).
    pub(crate) fn press(&mut self, key: u8, show: &mut impl FnMut(&[u8])) -> Option<u32> {
        // Usually it has ended; a key that another process presses at the same time can come first.
        self.end_edit();
        let mut byte = if self.takes(input::ISTRIP) { key & 0x7f } else { key };
        if core::mem::take(&mut self.literal) {
            self.enter(byte, 0, show);
            return None;
        }
        if let Some(signal) = self.signal_of(byte) {
            if !self.has(local::NOFLSH) {
                self.flush();
            }
            self.echo(byte, show);
            return Some(signal);
        }
        match byte {
            b'\r' if self.takes(input::IGNCR) => return None,
            b'\r' if self.takes(input::ICRNL) => byte = b'\n',
            b'\n' if self.takes(input::INLCR) => byte = b'\r',
            _ => {}
        }
        if self.is_canonical() {
            self.edit(byte, show);
            self.proceed(show);
        } else {
            self.enter(byte, 0, show);
        }
        None
    }

    /// Returns the signal that a key stands for if it is pressed next.
    pub(crate) fn signal_of_next(&self, key: u8) -> Option<u32> {
        if self.literal { None } else { self.signal_of(if self.takes(input::ISTRIP) { key & 0x7f } else { key }) }
    }

    fn signal_of(&self, byte: u8) -> Option<u32> {
        if !self.has(local::ISIG) {
            return None;
        }
        let signals =
            [(character::INTERRUPT, signal::INT), (character::QUIT, signal::QUIT), (character::SUSPEND, signal::TSTP)];
        signals.into_iter().find(|(character, _)| self.is(byte, *character)).map(|(_, signal)| signal)
    }

    fn edit(&mut self, byte: u8, show: &mut impl FnMut(&[u8])) {
        let extended = self.has(local::IEXTEN);
        if self.is(byte, character::ERASE) {
            if self.end > self.committed {
                if !self.has(local::ECHOE) {
                    self.echo(byte, show);
                }
                self.edit = self.erase_to(self.character_before(self.end));
            }
        } else if self.is(byte, character::KILL) {
            if !(self.has(local::ECHOE) && self.has(local::ECHOKE)) {
                self.end = self.committed;
                self.echo(byte, show);
                if self.has(local::ECHOK) {
                    self.echo(b'\n', show);
                }
            }
            self.edit = self.erase_to(self.committed);
        } else if extended && self.is(byte, character::WORD_ERASE) {
            self.edit = Some(Edit::FindWord { end: self.end, in_word: false });
        } else if extended && self.is(byte, character::REPRINT) {
            self.echo(byte, show);
            self.echo(b'\n', show);
            self.start_column = self.column;
            self.edit = Some(Edit::Show { at: self.committed });
        } else if extended && self.is(byte, character::LITERAL_NEXT) {
            self.literal = true;
            if self.has(local::ECHO) && self.has(local::ECHOCTL) {
                show(b"^\x08");
            }
        } else if self.is(byte, character::END_OF_FILE) {
            self.put(MARK | LINE_END);
        } else if byte == b'\n'
            || self.is(byte, character::END_OF_LINE)
            || (extended && self.is(byte, character::SECOND_END_OF_LINE))
        {
            self.enter(byte, LINE_END, show);
        } else {
            self.enter(byte, 0, show);
        }
    }

    /// Returns the beginning of the character of the line that ends here.
    fn character_before(&self, mut end: usize) -> usize {
        while end > self.committed {
            end -= 1;
            let continues = self.takes(input::IUTF8) && self.keys[end % CAPACITY] & 0xc0 == 0x80;
            if !continues {
                break;
            }
        }
        end
    }

    /// Removes the characters of the line from a place on, or begins to remove them from the screen as well.
    fn erase_to(&mut self, end: usize) -> Option<Edit> {
        // The column at which an empty line begins is not known before its first key.
        if end == self.end {
            return None;
        }
        if !(self.has(local::ECHO) && self.has(local::ECHOE)) {
            self.end = end;
            return None;
        }
        Some(Edit::Measure { end, at: self.committed, column: self.start_column, after: self.start_column })
    }

    /// Appends a key to the line, and shows it.
    fn enter(&mut self, byte: u8, flags: u16, show: &mut impl FnMut(&[u8])) {
        if self.committed == self.end {
            self.start_column = self.column;
        }
        if self.put(byte as u16 | flags) {
            self.echo(byte, show);
        } else {
            show(BELL);
        }
    }

    /// Appends an entry, and ends the line if the entry does; returns `false` if there is no room. The last place is
    /// kept for the end of the line: otherwise a line that is too long could never be read.
    fn put(&mut self, entry: u16) -> bool {
        let room = CAPACITY - (self.end - self.read);
        let is_end = entry & LINE_END != 0;
        let needed = if self.is_canonical() && !is_end { 2 } else { 1 };
        if room < needed {
            return false;
        }
        self.keys[self.end % CAPACITY] = entry;
        self.end += 1;
        if is_end || !self.is_canonical() {
            self.committed = self.end;
        }
        true
    }

    /// Returns whether a key that is pressed next is not lost: there is room, or none will come by reading.
    pub(crate) fn has_room(&self) -> bool {
        CAPACITY - (self.end - self.read) >= 2 || self.read == self.committed
    }

    // ---- reading ----

    /// Returns the number of bytes that a read would find (`FIONREAD`).
    pub(crate) fn readable(&self) -> usize {
        if !self.is_canonical() {
            return self.committed - self.read;
        }
        let entries = self.read..self.committed;
        entries.filter(|at| self.keys[at % CAPACITY] & MARK == 0).count()
    }

    /// Returns whether a read of so many bytes need not wait.
    pub(crate) fn is_ready(&self, wanted: usize) -> bool {
        if self.is_canonical() {
            return self.read < self.committed;
        }
        let minimum = self.settings.characters[character::MINIMUM] as usize;
        minimum == 0 || self.readable() >= minimum.min(wanted)
    }

    /// Reads as much as there is and fits. Returns the count, and whether the read is complete: at the end of a line,
    /// or when nothing is left.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> (usize, bool) {
        let canonical = self.is_canonical();
        let mut count = 0;
        while self.read < self.committed {
            let entry = self.keys[self.read % CAPACITY];
            if entry & MARK != 0 {
                self.read += 1;
                if canonical {
                    return (count, true);
                }
                continue;
            }
            if count == bytes.len() {
                return (count, false);
            }
            bytes[count] = entry as u8;
            count += 1;
            self.read += 1;
            if canonical && entry & LINE_END != 0 {
                return (count, true);
            }
        }
        (count, true)
    }

    /// Returns the reading position, for [`unread`](Self::unread).
    pub(crate) fn position(&self) -> usize {
        self.read
    }

    /// Undoes reads since `position`, if nothing was typed in between.
    pub(crate) fn unread(&mut self, position: usize) {
        self.read = position.min(self.read);
    }
}

/// Returns the column behind a byte that is shown at `column`.
fn column_after(column: usize, byte: u8) -> usize {
    match byte {
        b'\r' | b'\n' => 0,
        0x08 => column.saturating_sub(1),
        b'\t' => (column / 8 + 1) * 8,
        0..=0x1f | 0x7f => column,
        // The following bytes of a character in UTF-8.
        0x80..=0xbf => column,
        _ => column + 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Types bytes; returns the bytes shown, and the signals.
    fn typed(terminal: &mut LineDiscipline, keys: &[u8]) -> (Vec<u8>, Vec<u32>) {
        let (mut shown, mut signals) = (Vec::new(), Vec::new());
        let mut show = |bytes: &[u8]| shown.extend_from_slice(bytes);
        for &key in keys {
            signals.extend(terminal.press(key, &mut show));
            while terminal.proceed(&mut show) {}
        }
        (shown, signals)
    }

    /// Reads so many bytes once; `None` if the read would wait.
    fn read(terminal: &mut LineDiscipline, wanted: usize) -> Option<Vec<u8>> {
        if !terminal.is_ready(wanted) {
            return None;
        }
        let mut bytes = vec![0; wanted];
        let (count, _) = terminal.read(&mut bytes);
        bytes.truncate(count);
        Some(bytes)
    }

    fn raw() -> Termios {
        Termios { input: 0, output: 0, local: 0, ..DEFAULT }
    }

    /// Returns the last line of a terminal that shows these bytes.
    fn last_line(shown: &[u8]) -> Vec<u8> {
        let (mut line, mut column) = (Vec::new(), 0usize);
        for &byte in shown {
            match byte {
                b'\n' => line.clear(),
                b'\r' => column = 0,
                0x08 => column = column.saturating_sub(1),
                b'\t' => column = (column / 8 + 1) * 8,
                0x07 | 0x80..=0xbf => {}
                _ => {
                    if line.len() <= column {
                        line.resize(column + 1, b' ');
                    }
                    line[column] = byte;
                    column += 1;
                }
            }
        }
        line.truncate(line.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1));
        line
    }

    /// So other work is not held up by a key.
    #[test]
    fn a_key_that_changes_a_long_line_does_so_in_steps() {
        for (key, left, most_shown) in
            [(0x12, CAPACITY - 1, CAPACITY), (0x15, 0, 0), (0x17, 0, 0), (0x7f, CAPACITY - 2, 0)]
        {
            let mut terminal = LineDiscipline::new().unwrap();
            typed(&mut terminal, &[b'x'; CAPACITY]);
            let (mut steps, mut shown) = (1, 0);
            let mut show = |bytes: &[u8]| shown += bytes.iter().filter(|byte| **byte == b'x').count();
            assert_eq!(terminal.press(key, &mut show), None);
            while terminal.proceed(&mut show) {
                steps += 1;
            }
            assert!(steps > CAPACITY / STEP - 2, "{key:x}: {steps} steps");
            assert!(shown <= most_shown, "{key:x}: {shown}");
            typed(&mut terminal, b"\n");
            assert_eq!(terminal.readable(), left + 1, "{key:x}");
        }
    }

    /// Other settings, and a flush, come between two steps of a key.
    #[test]
    fn an_edit_that_is_cut_short_has_done_its_work() {
        for (key, left) in [(0x12, 300), (0x15, 0), (0x17, 0), (0x7f, 299)] {
            for flushes in [false, true] {
                let mut terminal = LineDiscipline::new().unwrap();
                typed(&mut terminal, &[b'x'; 300]);
                terminal.press(key, &mut |_| {});
                assert!(terminal.is_busy());
                match flushes {
                    true => terminal.flush(),
                    false => terminal.set(raw()),
                }
                assert!(!terminal.is_busy());
                assert_eq!(terminal.readable(), if flushes { 0 } else { left }, "{key:x}");
            }
        }
    }

    /// A key has work for as many columns as a terminal can show at once, whatever the tabs of the line mean.
    #[test]
    fn a_line_of_tabs_is_erased_with_bounded_work() {
        let mut terminal = LineDiscipline::new().unwrap();
        typed(&mut terminal, &[b'\t'; CAPACITY]);
        let (shown, _) = typed(&mut terminal, &[0x15]);
        assert_eq!(shown, b"\x08 \x08".repeat(MOST_ERASED));
        // The line is empty, and the next one is as any other.
        typed(&mut terminal, b"ab");
        assert_eq!(typed(&mut terminal, &[0x15]).0, b"\x08 \x08".repeat(2));
        typed(&mut terminal, b"c\n");
        assert_eq!(read(&mut terminal, 10), Some(b"c\n".to_vec()));
    }

    #[test]
    fn lines_come_whole_and_one_by_one() {
        let mut terminal = LineDiscipline::new().unwrap();
        assert_eq!(typed(&mut terminal, b"ls").0, b"ls");
        assert_eq!(read(&mut terminal, 10), None);
        assert_eq!(typed(&mut terminal, b"\rcd\n").0, b"\r\ncd\r\n");
        assert_eq!(terminal.readable(), 6);
        assert_eq!(read(&mut terminal, 2).unwrap(), b"ls");
        assert_eq!(read(&mut terminal, 10).unwrap(), b"\n");
        assert_eq!(read(&mut terminal, 10).unwrap(), b"cd\n");
        assert_eq!(read(&mut terminal, 10), None);
    }

    #[test]
    fn lines_are_edited() {
        for (keys, line, shown) in [
            (&b"lx\x7fs\n"[..], &b"ls\n"[..], &b"lx\x08 \x08s\r\n"[..]),
            (b"\x7fa\n", b"a\n", b"a\r\n"),
            (b"ab\x15c\n", b"c\n", b"ab\x08 \x08\x08 \x08c\r\n"),
            (b"a\x01\x7fb\n", b"ab\n", b"a^A\x08 \x08\x08 \x08b\r\n"),
            (b"one two.\x17x\n", b"one x\n", b"one two.\x08 \x08\x08 \x08\x08 \x08\x08 \x08x\r\n"),
            (b"\xc3\xa4\x7f\n", b"\n", b"\xc3\xa4\x08 \x08\r\n"),
            (b"\x16\x03\n", b"\x03\n", b"^\x08^C\r\n"),
            (b"ab\x12c\n", b"abc\n", b"ab^R\r\nabc\r\n"),
        ] {
            let mut terminal = LineDiscipline::new().unwrap();
            assert_eq!(typed(&mut terminal, keys).0, shown, "{keys:?}");
            assert_eq!(read(&mut terminal, 100).unwrap(), line, "{keys:?}");
        }
    }

    #[test]
    fn an_erased_tab_takes_its_columns_back() {
        let mut terminal = LineDiscipline::new().unwrap();
        let mut shown = Vec::new();
        terminal.write(b"$ ", &mut |bytes| shown.extend_from_slice(bytes));
        shown.extend(typed(&mut terminal, b"a\tb\x7f\x7fc").0);
        assert_eq!(last_line(&shown), b"$ ac");
    }

    #[test]
    fn the_end_of_file_ends_lines_and_files() {
        let mut terminal = LineDiscipline::new().unwrap();
        assert_eq!(typed(&mut terminal, b"half\x04\x04").0, b"half");
        assert_eq!(read(&mut terminal, 10).unwrap(), b"half");
        assert_eq!(read(&mut terminal, 10).unwrap(), b"");
        assert_eq!(read(&mut terminal, 10), None);
        // A read that takes exactly the bytes before an end-of-file key leaves no end of file behind.
        typed(&mut terminal, b"half\x04");
        assert_eq!(read(&mut terminal, 4).unwrap(), b"half");
        assert_eq!(read(&mut terminal, 4), None);
    }

    #[test]
    fn signals_discard_typed_input() {
        let mut terminal = LineDiscipline::new().unwrap();
        let (shown, signals) = typed(&mut terminal, b"old\nrm\x03x\x1c\x1ay\n");
        let expected = vec![signal::INT, signal::QUIT, signal::TSTP];
        assert_eq!((signals, &shown[..]), (expected, &b"old\r\nrm^Cx^\\^Zy\r\n"[..]));
        assert_eq!(read(&mut terminal, 10).unwrap(), b"y\n");
        assert_eq!(read(&mut terminal, 10), None);
        terminal.set(Termios { local: DEFAULT.local & !local::ISIG, ..DEFAULT });
        assert_eq!(typed(&mut terminal, b"\x03\n").1, []);
        assert_eq!(read(&mut terminal, 10).unwrap(), b"\x03\n");
    }

    #[test]
    fn raw_keys_come_at_once() {
        let mut terminal = LineDiscipline::new().unwrap();
        terminal.set(raw());
        assert_eq!(typed(&mut terminal, b"a\r\x03\x7f\x04"), (vec![], vec![]));
        assert_eq!(read(&mut terminal, 2).unwrap(), b"a\r");
        assert_eq!(read(&mut terminal, 10).unwrap(), b"\x03\x7f\x04");
        assert_eq!(read(&mut terminal, 10), None);
        let mut settings = raw();
        settings.characters[character::MINIMUM] = 3;
        terminal.set(settings);
        typed(&mut terminal, b"xy");
        assert_eq!(read(&mut terminal, 10), None);
        assert_eq!(read(&mut terminal, 2).unwrap(), b"xy");
        settings.characters[character::MINIMUM] = 0;
        terminal.set(settings);
        assert_eq!(read(&mut terminal, 10).unwrap(), b"");
    }

    #[test]
    fn typed_input_survives_a_change_of_mode() {
        let mut terminal = LineDiscipline::new().unwrap();
        typed(&mut terminal, b"a\nb\x04c");
        terminal.set(raw());
        assert_eq!(read(&mut terminal, 3).unwrap(), b"a\nb");
        typed(&mut terminal, b"d");
        terminal.set(DEFAULT);
        assert_eq!(read(&mut terminal, 10).unwrap(), b"cd");
        assert_eq!(read(&mut terminal, 10), None);
    }

    #[test]
    fn a_line_that_is_too_long_can_still_be_ended() {
        let mut terminal = LineDiscipline::new().unwrap();
        let (shown, _) = typed(&mut terminal, &[b'x'; CAPACITY + 10]);
        assert_eq!(shown.iter().filter(|byte| **byte == 7).count(), 11);
        typed(&mut terminal, b"\n");
        let line = read(&mut terminal, 2 * CAPACITY).unwrap();
        assert_eq!((line.len(), line.last()), (CAPACITY, Some(&b'\n')));
    }

    /// Generates keys, special ones more often than by chance.
    fn key() -> impl Strategy<Value = u8> {
        prop_oneof![
            3 => b'a'..=b'e',
            1 => Just(b' '),
            1 => Just(b'\t'),
            1 => Just(b'\r'),
            1 => Just(0x7f),
            1 => Just(0x15),
            1 => Just(0x17),
            1 => Just(0x04),
            1 => Just(0x01),
        ]
    }

    /// Returns the lines that a person would expect of these keys: finished ones, then the unfinished one.
    fn lines(keys: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>) {
        let (mut finished, mut line) = (Vec::new(), Vec::new());
        for &key in keys {
            match key {
                0x7f => drop(line.pop()),
                0x15 => line.clear(),
                0x17 => {
                    let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric();
                    let end = line.iter().rposition(is_of_word).map_or(0, |last| last + 1);
                    line.truncate(end);
                    let begin = line.iter().rposition(|byte| !is_of_word(byte)).map_or(0, |last| last + 1);
                    line.truncate(begin);
                }
                0x04 => finished.push(core::mem::take(&mut line)),
                b'\r' => {
                    line.push(b'\n');
                    finished.push(core::mem::take(&mut line));
                }
                other => line.push(other),
            }
        }
        (finished, line)
    }

    /// Returns a line as it is shown, behind `column` columns.
    fn as_shown(line: &[u8], column: usize) -> Vec<u8> {
        let mut shown = vec![b' '; column];
        for &byte in line {
            match byte {
                b'\t' => shown.resize((shown.len() / 8 + 1) * 8, b' '),
                0x01 => shown.extend(b"^A"),
                other => shown.push(other),
            }
        }
        shown.truncate(shown.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1));
        shown
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn programs_get_the_lines_that_the_user_sees(keys in prop::collection::vec(key(), 0..200)) {
            let mut terminal = LineDiscipline::new().unwrap();
            let (shown, signals) = typed(&mut terminal, &keys);
            prop_assert!(signals.is_empty());
            let (finished, unfinished) = lines(&keys);
            // A line that an end-of-file key has ended stays on the screen's line, before the next one.
            let ended = finished.iter().rev().take_while(|line| line.last() != Some(&b'\n'));
            let on_screen: Vec<u8> = ended.collect::<Vec<_>>().into_iter().rev().flatten().copied().collect();
            let prefix = as_shown(&on_screen, 0);
            let expected = as_shown(&[&on_screen[..], &unfinished].concat(), 0);
            prop_assert!(prefix.len() <= expected.len());
            prop_assert_eq!(last_line(&shown), expected);
            for line in finished {
                prop_assert_eq!(read(&mut terminal, 4096), Some(line));
            }
            prop_assert_eq!(read(&mut terminal, 4096), None);
        }

        #[test]
        fn no_input_is_lost_or_made_up_in_any_order_of_events(
            steps in prop::collection::vec((any::<u8>(), 0u8..8, any::<u32>()), 0..400)
        ) {
            let mut terminal = LineDiscipline::new().unwrap();
            let mut nothing = |_: &[u8]| {};
            for (byte, what, bits) in steps {
                match what {
                    0 => {
                        let mut settings = DEFAULT;
                        settings.local = bits & 0xffff;
                        settings.input = bits >> 16;
                        settings.characters[bits as usize % 19] = byte;
                        terminal.set(settings);
                    }
                    1 => {
                        let before = terminal.readable();
                        let position = terminal.position();
                        let mut bytes = vec![0; byte as usize];
                        let (count, _) = terminal.read(&mut bytes);
                        prop_assert!(count <= before);
                        prop_assert_eq!(terminal.readable(), before - count);
                        if bits & 1 != 0 {
                            terminal.unread(position);
                            let mut again = vec![0; byte as usize];
                            let (repeated, _) = terminal.read(&mut again);
                            prop_assert_eq!((repeated, again), (count, bytes));
                        }
                    }
                    2 => terminal.flush(),
                    _ => drop(terminal.press(byte, &mut nothing)),
                }
                prop_assert!(terminal.read <= terminal.committed && terminal.committed <= terminal.end);
                prop_assert!(terminal.end - terminal.read <= CAPACITY);
            }
        }
    }
}
