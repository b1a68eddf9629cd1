//! Printing, byte by byte through the kernel's debug call, or through a function of the program's choice.
//!
//! On a kernel without debug calls printing is a fault of the thread; there a program first sets a function that
//! reaches a serial server ([`set_output`]).

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Address of the function that takes the bytes; 0 for the debug call.
// Release and acquire: a thread that finds the function finds what that needs, too.
static OUTPUT: AtomicUsize = AtomicUsize::new(0);

/// Sets the function through which all threads print from now on.
pub fn set_output(output: fn(&[u8])) {
    OUTPUT.store(output as usize, Ordering::Release);
}

/// The destination of printed text.
#[derive(Clone, Copy, Debug)]
pub struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match OUTPUT.load(Ordering::Acquire) {
            0 => text.bytes().for_each(crate::raw::debug_put_char),
            address => {
                // SAFETY: only `set_output` writes here, and it writes such a function's address.
                let output = unsafe { core::mem::transmute::<usize, fn(&[u8])>(address) };
                output(text.as_bytes());
            }
        }
        Ok(())
    }
}

/// Prints for the macros.
#[doc(hidden)]
#[inline(never)]
pub fn print(arguments: fmt::Arguments<'_>) {
    // The console does not fail; a `Display` that does leaves its text unfinished.
    let _ = Console.write_fmt(arguments);
}

/// Prints to the console.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::print::print(::core::format_args!($($argument)*)) };
}

/// Prints a line to the console.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($format:literal $($argument:tt)*) => { $crate::print!("{}\n", ::core::format_args!($format $($argument)*)) };
}
