//! The panic handler: prints the place, and ends the process.

use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi_unix::callers::{SEARCHED, is_return_address};

use crate::print::Printer;

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

/// Returns the registers `pc` and `sp`, as they are together in the calling function.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
#[inline(always)]
fn here() -> (usize, usize) {
    let (pc, stack);
    // SAFETY: reads two registers.
    unsafe {
        core::arch::asm!("auipc {}, 0", "mv {}, sp", out(reg) pc, out(reg) stack, options(nomem, nostack, preserves_flags));
    }
    (pc, stack)
}

/// Prints the candidates for the callers of the function with these registers: see [`abi_unix::callers`].
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
fn print_callers(printer: &mut Printer, pc: usize, stack: usize, top: usize) {
    unsafe extern "C" {
        static __program_start: u8;
        static __constants_start: u8;
    }
    let (start, end) = (&raw const __program_start as usize, &raw const __constants_start as usize);
    // The page of the stack pointer is there, and the rest of a stack whose top is known.
    let limit = if top > stack { top } else { (stack | 4095) + 1 }.min(stack + SEARCHED);
    // SAFETY: only addresses of the program's code are read, which is never written.
    let read = |address: u64| Some(unsafe { core::ptr::read_unaligned(address as *const [u8; 4]) });
    let is_candidate = |&(_, word): &(usize, u64)| is_return_address(word, &(start as u64..end as u64), read);
    // SAFETY: the words lie on the running stack.
    let word = |address: usize| (address - stack, unsafe { core::ptr::read_volatile(address as *const u64) });
    let candidates = (stack..limit).step_by(size_of::<u64>()).map(word).filter(is_candidate);
    let mut candidates = candidates.map(|(offset, address)| (offset, address - start as u64));
    let name = crate::start::arguments().next().map_or("?", |name| name.to_str().unwrap_or("?"));
    let name = name.rsplit('/').next().unwrap_or(name);
    let _ = abi_unix::callers::write(printer, name, (pc - start) as u64, 0, &mut candidates);
    let _ = writeln!(printer);
}

/// Programs elsewhere have their host's means.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
fn print_callers(_printer: &mut Printer, _pc: usize, _stack: usize, _top: usize) {}

#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
fn here() -> (usize, usize) {
    (0, 0)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let (pc, stack) = here();
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
    crate::process::exit(PANIC_STATUS)
}
