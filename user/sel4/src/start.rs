//! Start of a root task: from the address of the boot information in `a0` to a Rust function.
//!
//! The kernel gives no stack; `_start` uses the one in this program's own image. The kernel clears all registers but
//! `a0`, so `tp` is set to the IPC buffer's address as soon as Rust runs and has read it.

use abi_sel4::BootInfo;

use crate::boot::BootInformation;
use crate::capability::{Thread, initial};

/// Bytes of the initial thread's stack.
const STACK_SIZE: usize = 128 << 10;

/// The initial thread's stack; `_start` sets the stack pointer to it. The linker script places it above unmapped
/// memory.
#[repr(C, align(4096))]
struct Stack(core::cell::UnsafeCell<[u8; STACK_SIZE]>);

// SAFETY: only the initial thread uses it, as its stack.
unsafe impl Sync for Stack {}

// SAFETY: the section holds nothing else, and like every `.bss` it starts as zeros.
#[cfg_attr(target_os = "none", unsafe(link_section = ".bss.stack"))]
static STACK: Stack = Stack(core::cell::UnsafeCell::new([0; STACK_SIZE]));

core::arch::global_asm!(
    ".section .text.start, \"ax\", @progbits",
    ".globl _start",
    "_start:",
    ".option push",
    ".option norelax",
    "la gp, __global_pointer$",
    ".option pop",
    "la sp, {stack}",
    "li t0, {size}",
    "add sp, sp, t0",
    "li ra, 0", // ends the chain of frames for debuggers
    "li fp, 0",
    "call {start}",
    "unimp",
    ".section .text",
    stack = sym STACK,
    size = const STACK_SIZE,
    start = sym start,
);

/// First Rust function of the root task.
///
/// # Safety
///
/// `info` must be the value of `a0` with which the kernel starts the initial thread.
unsafe extern "C" fn start(info: *const BootInfo) -> ! {
    unsafe extern "Rust" {
        safe fn sel4_root_task(boot: BootInformation);
    }
    // SAFETY: the caller's promise, which is that of `from_address`.
    let boot = unsafe { BootInformation::from_address(info) };
    // SAFETY: `tp` has no other use in this program: it has no thread-local storage.
    unsafe { core::arch::asm!("mv tp, {}", in(reg) boot.raw().ipc_buffer, options(nomem, nostack, preserves_flags)) };
    crate::raw::detect_numbering(initial::THREAD.pointer());
    crate::boot::remember(&boot);
    sel4_root_task(boot);
    exit(0)
}

/// Ends this program. A root task ends the machine, or at least its thread; any other program reports its end to its
/// parent, by a system call that does not exist, and does not return.
pub fn exit(status: u64) -> ! {
    if crate::boot::own_name().is_some() {
        loop {
            crate::raw::system_call(crate::process::EXIT as isize, [status, 0, 0, 0, 0, 0]);
        }
    }
    crate::raw::debug_halt();
    loop {
        let _ = Thread::suspend(initial::THREAD);
        crate::raw::yield_now();
    }
}
