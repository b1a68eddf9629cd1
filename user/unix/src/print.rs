//! Printing: one write for each call of a macro, so that lines of different workers and processes do not mix.

use core::fmt::{self, Write};

use crate::file;

/// Bytes that a [`Printer`] collects before it writes; a longer text takes several writes.
pub const BUFFER_SIZE: usize = 1024;

/// Collects formatted text and writes it to a descriptor in one piece if it fits.
pub struct Printer {
    descriptor: i32,
    length: usize,
    buffer: [u8; BUFFER_SIZE],
}

impl Printer {
    /// Creates a printer for this descriptor: 1 is standard output, 2 standard error.
    pub const fn new(descriptor: i32) -> Printer {
        Printer { descriptor, length: 0, buffer: [0; BUFFER_SIZE] }
    }

    /// Writes the collected text. An output error cannot be reported: the text is lost.
    pub fn flush(&mut self) {
        let _ = file::write_all(self.descriptor, &self.buffer[..self.length]);
        self.length = 0;
    }
}

impl Write for Printer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.length == BUFFER_SIZE {
                self.flush();
            }
            let count = rest.len().min(BUFFER_SIZE - self.length);
            self.buffer[self.length..self.length + count].copy_from_slice(&rest[..count]);
            self.length += count;
            rest = &rest[count..];
        }
        Ok(())
    }
}

/// Prints for the macros.
#[doc(hidden)]
#[inline(never)]
pub fn print(descriptor: i32, arguments: fmt::Arguments<'_>) {
    let mut printer = Printer::new(descriptor);
    // A `Printer` does not fail; a `Display` that does leaves its text unfinished, as in the standard library.
    let _ = printer.write_fmt(arguments);
    printer.flush();
}

/// Prints to standard output.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::print::print(1, ::core::format_args!($($argument)*)) };
}

/// Prints a line to standard output.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($format:literal $($argument:tt)*) => { $crate::print!("{}\n", ::core::format_args!($format $($argument)*)) };
}

/// Prints to standard error.
#[macro_export]
macro_rules! eprint {
    ($($argument:tt)*) => { $crate::print::print(2, ::core::format_args!($($argument)*)) };
}

/// Prints a line to standard error.
#[macro_export]
macro_rules! eprintln {
    () => { $crate::eprint!("\n") };
    ($format:literal $($argument:tt)*) => { $crate::eprint!("{}\n", ::core::format_args!($format $($argument)*)) };
}
