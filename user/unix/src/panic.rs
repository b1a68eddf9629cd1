//! The panic handler: prints the place, and ends the process: by `exit`, or by SIGABRT where that leaves a core file.

use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi_unix::types::{limit, signal};

use crate::print::Printer;
use crate::{call, callers};

/// Exit status of a process that panicked, as in programs with the standard library.
pub const PANIC_STATUS: i32 = 101;

/// A place in a program with coroutines.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The current coroutine; `None` outside of one.
    pub coroutine: Option<u64>,
    /// Address up to which the current stack is surely in use; 0 if it is not known.
    pub stack_top: usize,
}

/// Address of the function that returns the current place; 0 in a program without coroutines.
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Sets the function from which the panic handler learns the current place.
pub fn set_place(place: fn() -> Place) {
    PLACE.store(place as usize, Ordering::Relaxed);
}

/// Prints the candidates for the callers of the function with these registers.
fn print_callers(printer: &mut Printer, pc: usize, stack: usize, top: usize) {
    if cfg!(target_os = "none") {
        let _ = callers::write(printer, pc, &mut callers::candidates(stack, top));
        let _ = writeln!(printer);
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let (pc, stack) = callers::here();
    let place = PLACE.load(Ordering::Relaxed);
    let Place { coroutine, stack_top } = if place == 0 {
        Place { coroutine: None, stack_top: 0 }
    } else {
        // SAFETY: only `set_place` writes here, and it writes such a function's address.
        let place = unsafe { core::mem::transmute::<usize, fn() -> Place>(place) };
        place()
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
    print_callers(&mut printer, pc, stack, stack_top);
    printer.flush();
    leave_core_file();
    crate::process::exit(PANIC_STATUS)
}

/// Ends the process by SIGABRT, if it may leave a core file; returns otherwise.
fn leave_core_file() {
    if crate::process::limit(0, limit::CORE).is_ok_and(|(bytes, _)| bytes > 0) {
        // SAFETY: the calls have no pointers.
        let _ = unsafe { call!(GetThread).and_then(|thread| call!(KillThread, thread, signal::ABRT)) };
    }
}
