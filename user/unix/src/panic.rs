//! The panic handler: prints the place, and ends the process.

use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::print::Printer;

/// Exit status of a process that panicked, as in programs with the standard library.
pub const PANIC_STATUS: i32 = 101;

/// Address of the function that returns the current coroutine; 0 in a program without coroutines.
static CURRENT_COROUTINE: AtomicUsize = AtomicUsize::new(0);

/// Sets the function from which the panic handler learns the current coroutine (`None` outside of one).
pub fn set_current_coroutine(current: fn() -> Option<u64>) {
    CURRENT_COROUTINE.store(current as usize, Ordering::Relaxed);
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let current = CURRENT_COROUTINE.load(Ordering::Relaxed);
    let coroutine = if current == 0 {
        None
    } else {
        // SAFETY: only `set_current_coroutine` writes here, and it writes such a function's address.
        let current = unsafe { core::mem::transmute::<usize, fn() -> Option<u64>>(current) };
        current()
    };
    let mut printer = Printer::new(2);
    let _ = write!(printer, "process {}", crate::process::number());
    if let Some(cid) = coroutine {
        let _ = write!(printer, ", coroutine {cid:#x}");
    }
    if let Some(place) = info.location() {
        let _ = write!(printer, ": panicked at {}:{}:{}", place.file(), place.line(), place.column());
    }
    let _ = writeln!(printer, ": {}", info.message());
    printer.flush();
    crate::process::exit(PANIC_STATUS)
}
