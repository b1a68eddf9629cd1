//! The panic handler: prints the place, and ends the process: by `exit`, or by SIGABRT where that leaves a core file.

use core::fmt::Write;
use core::sync::atomic::{AtomicPtr, Ordering};

use abi_unix::types::{limit, signal};

use crate::print::Printer;
use crate::{call, callers};

/// Exit status of a process that panicked, as in programs with the standard library.
pub const PANIC_STATUS: i32 = 101;

/// A program with coroutines, as the panic handler knows it.
#[derive(Debug)]
pub struct Coroutines {
    /// Returns the current coroutine; `None` outside of one.
    pub current: fn() -> Option<u64>,
    /// Writes a coroutine's name for people, with a space before it; nothing if it has none.
    pub write_name: fn(coroutine: u64, &mut dyn Write) -> core::fmt::Result,
    /// Returns the address up to which the current stack is surely in use; 0 if it is not known.
    pub stack_top: fn() -> usize,
}

/// Those of this program; null in a program without coroutines.
static COROUTINES: AtomicPtr<Coroutines> = AtomicPtr::new(core::ptr::null_mut());

/// Sets what the panic handler asks.
pub fn set_coroutines(coroutines: &'static Coroutines) {
    COROUTINES.store(core::ptr::from_ref(coroutines).cast_mut(), Ordering::Release);
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
    // SAFETY: only `set_coroutines` writes here, and it writes the address of a static.
    let coroutines = unsafe { COROUTINES.load(Ordering::Acquire).as_ref() };
    let mut printer = Printer::new(2);
    let _ = write!(printer, "process {}", crate::process::number());
    if let Some((coroutines, cid)) = coroutines.and_then(|coroutines| Some((coroutines, (coroutines.current)()?))) {
        let _ = write!(printer, ", coroutine {cid:#x}");
        let _ = (coroutines.write_name)(cid, &mut printer);
    }
    if let Some(place) = info.location() {
        let _ = write!(printer, ": panicked at {}:{}:{}", place.file(), place.line(), place.column());
    }
    let _ = writeln!(printer, ": {}", info.message());
    printer.flush();
    print_callers(&mut printer, pc, stack, coroutines.map_or(0, |coroutines| (coroutines.stack_top)()));
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
