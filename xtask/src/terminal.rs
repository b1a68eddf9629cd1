//! The user's terminal while it is the machine's console.
//!
//! Characters go to the machine one by one and the machine echoes them, so line editing and echo are switched off. The
//! terminal's former settings are kept in one place, from which they are restored on the normal way out, when
//! unwinding, and by the signal handler. Keys send no signals: Ctrl-C is the way out, but behind Ctrl-A it is for the
//! machine, and only code that sees both keys can tell.

use std::sync::Mutex;

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr,
};

/// The settings to restore; `None` while the terminal has the user's own.
static ORIGINAL: Mutex<Option<Termios>> = Mutex::new(None);

/// Value of a special character that switches it off, `_POSIX_VDISABLE` on Linux.
const DISABLED: u8 = 0;

/// Makes the terminal a console while it exists.
#[derive(Debug)]
pub struct Console(());

impl Console {
    /// Makes standard input a console; `None` if it is no terminal.
    pub fn open() -> Option<Console> {
        let stdin = std::io::stdin();
        if !isatty(&stdin) {
            return None;
        }
        let original = tcgetattr(&stdin).ok()?;
        let mut console = original.clone();
        console.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN);
        console.input_modes.remove(InputModes::ICRNL | InputModes::IXON | InputModes::INLCR);
        console.special_codes[SpecialCodeIndex::VMIN] = 1;
        console.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Stopping this program would leave the machine running behind a terminal that is not restored.
        console.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
        console.special_codes[SpecialCodeIndex::VQUIT] = DISABLED;
        console.special_codes[SpecialCodeIndex::VINTR] = DISABLED;
        *ORIGINAL.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(original);
        if tcsetattr(&stdin, OptionalActions::Now, &console).is_err() {
            restore();
            return None;
        }
        Some(Console(()))
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal's settings, if they were changed.
pub fn restore() {
    let original = ORIGINAL.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    if let Some(original) = original {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &original);
    }
}

/// The meaning of a user's keys for the console.
#[derive(Debug, PartialEq, Eq)]
pub enum Key {
    /// A character for the machine.
    Send(u8),
    /// End QEMU.
    Quit,
    /// Show the keys.
    Help,
    /// Have the kernel tell where all workers and coroutines are.
    Where,
}

impl Key {
    /// Returns the bytes that QEMU wants for a key of the machine's.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Key::Send(CONTROL_A) => &[CONTROL_A, CONTROL_A],
            Key::Send(byte) => std::slice::from_ref(byte),
            // A break on the line.
            Key::Where => &[CONTROL_A, b'b'],
            Key::Quit | Key::Help => &[],
        }
    }
}

/// The source of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// A person at a terminal, for whom Ctrl-C is the way out.
    Person,
    /// A file or another program: all is for the machine but combinations with Ctrl-A.
    #[default]
    Elsewhere,
}

/// Finds the console's own keys, which start with Ctrl-A, between the machine's. Keeps state over calls.
#[derive(Debug, Default)]
pub struct Keys {
    from: From,
    escaped: bool,
}

/// The key before the console's own keys; QEMU's serial line has the same (`boards/qemu-virt.toml`).
const CONTROL_A: u8 = 1;
const CONTROL_C: u8 = 3;

impl Keys {
    /// Creates the state for keys of this source.
    pub fn new(from: From) -> Keys {
        Keys { from, escaped: false }
    }

    /// Returns the meaning of the next key; `None` for the first half of a combination and for combinations without a
    /// meaning.
    pub fn press(&mut self, key: u8) -> Option<Key> {
        if !std::mem::take(&mut self.escaped) {
            if key == CONTROL_C && self.from == From::Person {
                return Some(Key::Quit);
            }
            self.escaped = key == CONTROL_A;
            return (!self.escaped).then_some(Key::Send(key));
        }
        match key {
            b'x' | b'X' => Some(Key::Quit),
            b'h' | b'H' | b'?' => Some(Key::Help),
            b'w' | b'W' => Some(Key::Where),
            CONTROL_A | CONTROL_C => Some(Key::Send(key)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_a_introduces_the_consoles_own_keys() {
        let mut keys = Keys::default();
        let pressed: Vec<_> =
            b"a\x01\x01x\x01xb\x01qc\x01\x03\x01w".iter().filter_map(|&key| keys.press(key)).collect();
        let send = Key::Send;
        assert_eq!(pressed, [send(b'a'), send(1), send(b'x'), Key::Quit, send(b'b'), send(b'c'), send(3), Key::Where]);
        let bytes: Vec<_> = pressed.iter().map(Key::bytes).collect();
        assert_eq!(bytes, [&b"a"[..], b"\x01\x01", b"x", b"", b"b", b"c", b"\x03", b"\x01b"]);
    }

    #[test]
    fn control_c_is_a_persons_way_out() {
        let pressed = |from| {
            let mut keys = Keys::new(from);
            b"\x01\x03\x03".iter().filter_map(|&key| keys.press(key)).collect::<Vec<_>>()
        };
        assert_eq!(pressed(From::Person), [Key::Send(3), Key::Quit]);
        assert_eq!(pressed(From::Elsewhere), [Key::Send(3), Key::Send(3)]);
    }
}
