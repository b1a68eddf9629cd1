//! Panic and kernel-fault reports.
//!
//! A fault in supervisor mode and a Rust panic are both fatal. The hart reports its number, the fault or the panic
//! message, its registers (after a fault) and the chain of callers, one line `  #N address` for each, which the host
//! turns into function names and lines with the image's symbols. Then the machine ends with a failure status. The
//! callers are found through frame pointers, so kernels are built with `-Cforce-frame-pointers=yes`. A kernel built
//! without them, to be small, lists all words on its stack that could be return addresses instead.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

use hal_api::{Machine, Status};

use crate::csr::{self, read_csr};
use crate::machine::Riscv64;
use crate::trap::Frame;
use crate::{boot, hart};

/// The exit status of a machine whose kernel failed.
const FAILURE: u8 = 101;
/// The largest number of callers in a report.
const MAXIMUM_CALLERS: usize = 48;

// Release and acquire: a hart that finds the writer finds the console that it writes to.
static WRITER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
/// The hart that reports, plus one; only one hart reports, since the output of two would be mixed.
static REPORTER: AtomicUsize = AtomicUsize::new(0);

/// Sends reports to this function instead of the firmware's console. The function must not wait for another hart.
pub fn set_panic_writer(writer: fn(&[u8])) {
    WRITER.store(writer as *mut (), Release);
}

/// Writes to the firmware's console: works from the first instruction on, slowly.
pub fn early_write(bytes: &[u8]) {
    for &byte in bytes {
        // The debug console came with SBI 2.0; older firmware has only the legacy call.
        if sbi_rt::console_write_byte(byte).is_err() {
            #[allow(deprecated)]
            sbi_rt::legacy::console_putchar(byte.into());
        }
    }
}

struct Output;

impl Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let writer = WRITER.load(Acquire);
        if writer.is_null() {
            early_write(text.as_bytes());
        } else {
            // SAFETY: the only value ever stored besides null is a function of this type.
            let writer = unsafe { core::mem::transmute::<*mut (), fn(&[u8])>(writer) };
            writer(text.as_bytes());
        }
        Ok(())
    }
}

/// Reports a panic and ends the machine; the panic handler of every kernel.
pub fn panic_report(information: &PanicInfo) -> ! {
    begin();
    let _ = writeln!(Output, "\nKERNEL PANIC on hart {}: {}", Riscv64::hart(), information.message());
    if let Some(location) = information.location() {
        let _ = writeln!(Output, "  at {location}");
    }
    let (frame, stack): (usize, usize);
    // SAFETY: reading the frame pointer and the stack pointer has no effect.
    unsafe { core::arch::asm!("mv {}, s0", "mv {}, sp", out(reg) frame, out(reg) stack, options(nomem, nostack)) };
    let _ = writeln!(Output, "callers:");
    list_callers(0, frame, stack);
    end()
}

#[cfg(feature = "thread-stacks")]
use crate::stacks::is_guard as is_thread_guard;

/// Kernels without threads of their own have no such guards.
#[cfg(not(feature = "thread-stacks"))]
fn is_thread_guard(_address: usize) -> bool {
    false
}

/// Reports a kernel fault: the trap vector calls this for a trap from supervisor mode. The vector uses the symbol,
/// because this module depends on the modules above the vector.
// SAFETY: nothing else has this name.
#[unsafe(no_mangle)]
extern "C" fn hal_kernel_fault(frame: &Frame) -> ! {
    begin();
    let (cause, value, pc) = (read_csr!(csr::SCAUSE), read_csr!(csr::STVAL), read_csr!(csr::SEPC));
    let hart = Riscv64::hart();
    let guard = |index| {
        let (start, end) = hart::guard(index);
        (start..end).contains(&(value as usize))
    };
    if (0..hart::STACKS).any(guard) || is_thread_guard(value as usize) {
        let _ = writeln!(Output, "\nKERNEL FAULT on hart {hart}: kernel stack overflow at {value:#x}, pc {pc:#018x}");
    } else {
        let name = name(cause);
        let _ = writeln!(
            Output,
            "\nKERNEL FAULT on hart {hart}: {name} (cause {cause:#x}), value {value:#x}, pc {pc:#018x}"
        );
    }
    for (index, row) in frame.x.chunks(4).enumerate() {
        for (column, register) in row.iter().enumerate() {
            let _ = write!(Output, "  {:>4} {register:#018x}", NAMES[index * 4 + column]);
        }
        let _ = writeln!(Output);
    }
    let _ = writeln!(Output, "callers:");
    let _ = writeln!(Output, "  #0 {pc:#018x}");
    // After a jump to an invalid address only the return address tells the origin.
    let mut number = 1;
    if !boot::is_text(pc as usize) && boot::is_text(frame.x[0] as usize) {
        let _ = writeln!(Output, "  #1 {:#018x}", frame.x[0]);
        number = 2;
    }
    list_callers(number, frame.x[7] as usize, frame.x[1] as usize);
    end()
}

/// Makes this hart the only one that reports. A hart that fails during its report ends the machine at once.
fn begin() {
    let area = hart::this();
    if area.reports.fetch_add(1, Relaxed) > 0 {
        early_write(b"\nKERNEL FAULT during the report of another\n");
        end();
    }
    let own = area.index.load(Relaxed) + 1;
    if REPORTER.compare_exchange(0, own, AcqRel, Acquire).is_err() {
        // Another hart reports and then ends the machine.
        loop {
            Riscv64::wait_for_interrupt();
        }
    }
}

fn end() -> ! {
    if !crate::machine::has_test_device() {
        // As the platform says it, for a host that reads the console.
        let _ = writeln!(Output, "COPS: ended with status {FAILURE}");
    }
    Riscv64::shutdown(Status::Failure(FAILURE))
}

/// Lists the callers by the chain of frame pointers, or, if there is none, by the words on the stack.
fn list_callers(first: usize, frame: usize, stack: usize) {
    if !follow_frames(first, frame) {
        list_words(first, stack);
    }
}

/// Returns the stack that contains the two words below this address, if it is one of this hart's.
fn stack_below(address: usize) -> Option<(usize, usize)> {
    let index = Riscv64::hart();
    let stacks = [hart::stack(index), hart::emergency_stack(index)];
    stacks.into_iter().find(|&(start, end)| address.is_multiple_of(8) && address >= start + 16 && address <= end)
}

/// Writes the line of a return address. It is behind the call; the host needs the address of the call itself.
fn list(number: usize, caller: usize) {
    let _ = writeln!(Output, "  #{number} {:#018x}", caller - 1);
}

/// Follows the chain of frame pointers while it stays on this hart's stacks and rises; returns whether it named a
/// caller.
fn follow_frames(first: usize, mut frame: usize) -> bool {
    for number in first..MAXIMUM_CALLERS {
        if stack_below(frame).is_none() {
            return number > first;
        }
        // SAFETY: the two words below the frame pointer are on one of this hart's stacks, which are mapped.
        let (caller, next) = unsafe { ((frame as *const usize).sub(1).read(), (frame as *const usize).sub(2).read()) };
        if !boot::is_text(caller) {
            return number > first;
        }
        list(number, caller);
        if next <= frame {
            return true;
        }
        frame = next;
    }
    true
}

/// Lists the words from the stack pointer up that are addresses in the kernel's text: the callers, and leftovers of
/// earlier calls.
fn list_words(first: usize, stack: usize) {
    let Some((_, end)) = stack_below(stack + 16) else { return };
    let words = (stack..end).step_by(8).map(|address| {
        // SAFETY: a word on one of this hart's stacks, which are mapped.
        unsafe { (address as *const usize).read() }
    });
    (first..MAXIMUM_CALLERS)
        .zip(words.filter(|&word| boot::is_text(word)))
        .for_each(|(number, word)| list(number, word));
}

const NAMES: [&str; 31] = [
    "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "s2", "s3",
    "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6",
];

fn name(cause: u64) -> &'static str {
    match cause {
        0 => "misaligned jump",
        1 => "access fault on a fetch",
        2 => "illegal instruction",
        3 => "breakpoint",
        4 => "misaligned load",
        5 => "access fault on a load",
        6 => "misaligned store",
        7 => "access fault on a store",
        12 => "page fault on a fetch",
        13 => "page fault on a load",
        15 => "page fault on a store",
        _ => "unexpected trap",
    }
}
