//! Debug output. It uses the firmware's console, because the serial line belongs to users.

use core::fmt::{self, Write};

struct Firmware;

impl Write for Firmware {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_bytes(text.as_bytes());
        Ok(())
    }
}

/// Writes bytes to the firmware's console.
pub fn write_bytes(bytes: &[u8]) {
    platform::machine::early_write(bytes);
}

/// Writes formatted text to the firmware's console.
pub fn print(arguments: fmt::Arguments) {
    let _ = Firmware.write_fmt(arguments);
}
