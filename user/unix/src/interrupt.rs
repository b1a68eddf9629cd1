//! User interrupts: the kernel makes a worker call a function between two of its instructions.
//!
//! The kernel enters [`set_handler`]'s function through a few instructions that save every register a function may change,
//! and returns to the interrupted instruction afterwards (`interrupt_return`; `abi_unix::SystemCall` and the kernel's
//! `worker` module state the contract). The handler runs on the interrupted code's stack, at a point that nobody chose: it
//! must not take a lock, allocate or free.

use crate::Result;
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
use crate::call;
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
use core::sync::atomic::{AtomicUsize, Ordering};

/// What the entry below calls: a `fn()`, or 0 before [`set_handler`].
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
static HANDLER: AtomicUsize = AtomicUsize::new(0);

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
core::arch::global_asm!(
    // The kernel has put pc, a7 and sp at sp, which is 16-byte aligned.
    ".pushsection .text.cops_interrupt_entry, \"ax\"",
    ".option push",
    ".option arch, +d",
    ".balign 4",
    "cops_interrupt_entry:",
    "addi sp, sp, -304",
    "sd ra, 0(sp)",
    "sd t0, 8(sp)",
    "sd t1, 16(sp)",
    "sd t2, 24(sp)",
    "sd t3, 32(sp)",
    "sd t4, 40(sp)",
    "sd t5, 48(sp)",
    "sd t6, 56(sp)",
    "sd a0, 64(sp)",
    "sd a1, 72(sp)",
    "sd a2, 80(sp)",
    "sd a3, 88(sp)",
    "sd a4, 96(sp)",
    "sd a5, 104(sp)",
    "sd a6, 112(sp)",
    "fsd ft0, 120(sp)",
    "fsd ft1, 128(sp)",
    "fsd ft2, 136(sp)",
    "fsd ft3, 144(sp)",
    "fsd ft4, 152(sp)",
    "fsd ft5, 160(sp)",
    "fsd ft6, 168(sp)",
    "fsd ft7, 176(sp)",
    "fsd ft8, 184(sp)",
    "fsd ft9, 192(sp)",
    "fsd ft10, 200(sp)",
    "fsd ft11, 208(sp)",
    "fsd fa0, 216(sp)",
    "fsd fa1, 224(sp)",
    "fsd fa2, 232(sp)",
    "fsd fa3, 240(sp)",
    "fsd fa4, 248(sp)",
    "fsd fa5, 256(sp)",
    "fsd fa6, 264(sp)",
    "fsd fa7, 272(sp)",
    "frcsr t0",
    "sd t0, 280(sp)",
    "la t0, {handler}",
    "ld t0, 0(t0)",
    "jalr t0",
    "ld t0, 280(sp)",
    "fscsr t0",
    "fld ft0, 120(sp)",
    "fld ft1, 128(sp)",
    "fld ft2, 136(sp)",
    "fld ft3, 144(sp)",
    "fld ft4, 152(sp)",
    "fld ft5, 160(sp)",
    "fld ft6, 168(sp)",
    "fld ft7, 176(sp)",
    "fld ft8, 184(sp)",
    "fld ft9, 192(sp)",
    "fld ft10, 200(sp)",
    "fld ft11, 208(sp)",
    "fld fa0, 216(sp)",
    "fld fa1, 224(sp)",
    "fld fa2, 232(sp)",
    "fld fa3, 240(sp)",
    "fld fa4, 248(sp)",
    "fld fa5, 256(sp)",
    "fld fa6, 264(sp)",
    "fld fa7, 272(sp)",
    "ld ra, 0(sp)",
    "ld t0, 8(sp)",
    "ld t1, 16(sp)",
    "ld t2, 24(sp)",
    "ld t3, 32(sp)",
    "ld t4, 40(sp)",
    "ld t5, 48(sp)",
    "ld t6, 56(sp)",
    "ld a0, 64(sp)",
    "ld a1, 72(sp)",
    "ld a2, 80(sp)",
    "ld a3, 88(sp)",
    "ld a4, 96(sp)",
    "ld a5, 104(sp)",
    "ld a6, 112(sp)",
    "addi sp, sp, 304",
    "li a7, {interrupt_return}",
    "ecall",
    // It does not come back: the kernel goes on at the interrupted instruction, with its a7 and sp.
    "unimp",
    ".option pop",
    ".popsection",
    handler = sym HANDLER,
    interrupt_return = const abi_unix::SystemCall::InterruptReturn as usize,
);

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
unsafe extern "C" {
    fn cops_interrupt_entry();
}

/// Makes `handler` the function that user interrupts of the calling worker call. All workers of a process that have a
/// handler have the same.
///
/// # Errors
///
/// None on this system; `ENOSYS` elsewhere.
///
/// # Safety
///
/// `handler` runs between any two instructions of the worker, except inside the scheduler's image: it must touch nothing
/// that the interrupted code may be in the middle of changing, unless through atomics.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub unsafe fn set_handler(handler: extern "C" fn()) -> Result<()> {
    HANDLER.store(handler as *const () as usize, Ordering::Release);
    // SAFETY: the entry preserves the interrupted code's registers; the handler's behaviour is the caller's promise.
    unsafe { call!(InterruptHandler, cops_interrupt_entry as *const () as usize) }.map(drop)
}

/// There are no user interrupts on this machine.
///
/// # Safety
///
/// Nothing is touched.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
pub unsafe fn set_handler(_handler: extern "C" fn()) -> Result<()> {
    Err(crate::Errno::ENOSYS)
}
