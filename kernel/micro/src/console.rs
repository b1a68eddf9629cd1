//! The kernel's few words. They go through the firmware, because the serial line belongs to users.

use core::fmt::{self, Write};

struct Firmware;

impl Write for Firmware {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_bytes(text.as_bytes());
        Ok(())
    }
}

/// Writes bytes.
pub fn write_bytes(bytes: &[u8]) {
    platform::machine::early_write(bytes);
}

/// Writes formatted text.
pub fn print(arguments: fmt::Arguments) {
    let _ = Firmware.write_fmt(arguments);
}
