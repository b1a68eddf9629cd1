//! User interrupts: a worker calls a function between two of its instructions.
//!
//! Three back ends, of which the kernel chooses one at boot ([`is_in_hardware`] and [`is_virtualised`] tell the
//! choice):
//!
//! * `kernel`: the kernel enters [`set_handler`]'s function through a few instructions that save every register a
//!   function may change, and returns to the interrupted instruction afterwards (`interrupt_return`;
//!   `abi_unix::SystemCall` and the kernel's `interrupts` module state the contract).
//! * `imsic`: the program runs in VS-mode and takes the interrupt itself, through supervisor registers of its own; it
//!   ends with `sret`. The kernel is not involved.
//! * `uintc`: the program runs in user mode and takes the interrupt itself, through the registers of the N extension;
//!   it ends with `uret`. The kernel is not involved. Only the registers that a function without floating point may
//!   change are saved at first: a [quick handler](set_quick_handler) often is all that is needed.
//!
//! In all of them the handler runs on the interrupted code's stack, at an arbitrary point: it must not take a lock,
//! allocate or free. It never interrupts the scheduler's image, whose locks it needs: the kernel waits, and so does the
//! code here, which sets its own timer and tries again a little later.

use crate::{Descriptor, Result, call};
#[cfg(on_cops)]
use core::sync::atomic::{AtomicUsize, Ordering};

/// Handler that the entries below call: a `fn(u64)`, or 0 before [`set_handler`].
#[cfg(on_cops)]
// Stored with release after the words that the entries read; an interrupt comes only after that.
static HANDLER: AtomicUsize = AtomicUsize::new(0);

#[cfg(on_cops)]
core::arch::global_asm!(
    ".pushsection .text.cops_interrupt_entry, \"ax\"",
    ".option push",
    ".option arch, +d",
    // At sp: the registers that a function may change, except a7, which the two entries keep in different places.
    ".macro SAVE_INTEGERS",
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
    ".endm",
    ".macro SAVE_FLOATS",
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
    ".endm",
    ".macro SAVE_FOR_HANDLER",
    "SAVE_INTEGERS",
    "SAVE_FLOATS",
    ".endm",
    ".macro RESTORE_FLOATS",
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
    ".endm",
    ".macro RESTORE_INTEGERS",
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
    ".endm",
    ".macro RESTORE_AFTER_HANDLER",
    "RESTORE_FLOATS",
    "RESTORE_INTEGERS",
    ".endm",
    // Back end `kernel`. The kernel has put pc, a7 and sp at sp, which is 16-byte aligned.
    ".balign 4",
    "cops_interrupt_entry:",
    "addi sp, sp, -304",
    "SAVE_FOR_HANDLER",
    "la t0, {handler}",
    "ld t0, 0(t0)",
    "li a0, 0",
    "jalr t0",
    "RESTORE_AFTER_HANDLER",
    "addi sp, sp, 304",
    "li a7, {interrupt_return}",
    "ecall",
    // It does not return: the kernel continues at the interrupted instruction, with its a7 and sp.
    "unimp",
    // Back end `imsic`: a trap in VS-mode, interrupts are off. Behind the saved registers: a7, sepc, sstatus, sp.
    ".balign 4",
    "cops_interrupt_vector:",
    "csrw sscratch, sp",
    "addi sp, sp, -336",
    "andi sp, sp, -16",
    "SAVE_FOR_HANDLER",
    "sd a7, 288(sp)",
    "csrr a0, scause",
    "csrr a1, sepc",
    "csrr t0, sstatus",
    "csrr t1, sscratch",
    "sd a1, 296(sp)",
    "sd t0, 304(sp)",
    "sd t1, 312(sp)",
    "call {take}",
    "ld t0, 296(sp)",
    "ld t1, 304(sp)",
    "csrw sepc, t0",
    "csrw sstatus, t1",
    "RESTORE_AFTER_HANDLER",
    "ld a7, 288(sp)",
    "ld sp, 312(sp)",
    "sret",
    // Back end `uintc`: a trap in user mode, interrupts are off; each cause has an entry. 0x041 is uepc, 0x044 uip.
    // Behind the saved registers: a7, the identities. The other registers of the trap stay as they are, since nothing
    // else is interrupted meanwhile.
    ".balign 4",
    ".option push",
    ".option norvc",
    "cops_interrupt_user_vector:",
    "j 1f",
    "unimp",
    "unimp",
    "unimp",
    "j 2f",
    ".option pop",
    // Software. The interrupt is cleared before the identities are taken: what comes from here on raises it again.
    "1:",
    "addi sp, sp, -144",
    "SAVE_INTEGERS",
    "sd a7, 120(sp)",
    "csrci 0x044, 1",
    // uipi_read. A worker without a slot enters the kernel, which puts 0 into the register.
    ".insn r 0x7b, 6, 1, a0, x0, x0",
    "csrr a1, 0x041",
    "la t1, {quickly}",
    "ld t0, 0(t1)",
    "ld t1, 8(t1)",
    "sub t0, a1, t0",
    "srli t0, t0, {image_bits}",
    "beqz t0, 4f",
    "sd a0, 128(sp)",
    "jalr t1",
    "beqz a0, 3f",
    // The handler finds out the rest if it was raised again.
    "li a0, 0",
    "csrr t0, 0x044",
    "andi t0, t0, 1",
    "bnez t0, 5f",
    "6:",
    "RESTORE_INTEGERS",
    "ld a7, 120(sp)",
    "addi sp, sp, 144",
    // uret
    ".insn i 0x73, 0, x0, x0, 2",
    // Timer.
    "2:",
    "addi sp, sp, -144",
    "SAVE_INTEGERS",
    "sd a7, 120(sp)",
    "call {take_timer}",
    "li a0, 0",
    "j 5f",
    "3:",
    "ld a0, 128(sp)",
    "5:",
    "csrr a1, 0x041",
    "4:",
    "call {take_from_slot}",
    "j 6b",
    // As a function: calls a1 with a0, with everything saved that other code on another stack may change while this
    // interrupt is not over: floating point, uepc, ustatus (0x000).
    "cops_interrupt_slowly:",
    "addi sp, sp, -320",
    "SAVE_FLOATS",
    "csrr t0, 0x041",
    "csrr t1, 0x000",
    "sd ra, 288(sp)",
    "sd t0, 296(sp)",
    "sd t1, 304(sp)",
    "jalr a1",
    "ld t0, 296(sp)",
    "ld t1, 304(sp)",
    "csrw 0x041, t0",
    "csrw 0x000, t1",
    "RESTORE_FLOATS",
    "ld ra, 288(sp)",
    "addi sp, sp, 320",
    "ret",
    // a0: memory for this context, a1: the next one. As a function it may change the registers that are not saved here.
    "cops_switch_context:",
    "sd ra, 0(a0)",
    "sd sp, 8(a0)",
    "sd tp, 16(a0)",
    "sd s0, 24(a0)",
    "sd s1, 32(a0)",
    "sd s2, 40(a0)",
    "sd s3, 48(a0)",
    "sd s4, 56(a0)",
    "sd s5, 64(a0)",
    "sd s6, 72(a0)",
    "sd s7, 80(a0)",
    "sd s8, 88(a0)",
    "sd s9, 96(a0)",
    "sd s10, 104(a0)",
    "sd s11, 112(a0)",
    "fsd fs0, 120(a0)",
    "fsd fs1, 128(a0)",
    "fsd fs2, 136(a0)",
    "fsd fs3, 144(a0)",
    "fsd fs4, 152(a0)",
    "fsd fs5, 160(a0)",
    "fsd fs6, 168(a0)",
    "fsd fs7, 176(a0)",
    "fsd fs8, 184(a0)",
    "fsd fs9, 192(a0)",
    "fsd fs10, 200(a0)",
    "fsd fs11, 208(a0)",
    "frcsr t0",
    "sd t0, 216(a0)",
    "ld t0, 216(a1)",
    "fscsr t0",
    "fld fs0, 120(a1)",
    "fld fs1, 128(a1)",
    "fld fs2, 136(a1)",
    "fld fs3, 144(a1)",
    "fld fs4, 152(a1)",
    "fld fs5, 160(a1)",
    "fld fs6, 168(a1)",
    "fld fs7, 176(a1)",
    "fld fs8, 184(a1)",
    "fld fs9, 192(a1)",
    "fld fs10, 200(a1)",
    "fld fs11, 208(a1)",
    "ld ra, 0(a1)",
    "ld s0, 24(a1)",
    "ld s1, 32(a1)",
    "ld s2, 40(a1)",
    "ld s3, 48(a1)",
    "ld s4, 56(a1)",
    "ld s5, 64(a1)",
    "ld s6, 72(a1)",
    "ld s7, 80(a1)",
    "ld s8, 88(a1)",
    "ld s9, 96(a1)",
    "ld s10, 104(a1)",
    "ld s11, 112(a1)",
    "ld tp, 16(a1)",
    "ld sp, 8(a1)",
    "ret",
    ".option pop",
    ".popsection",
    handler = sym HANDLER,
    take = sym take,
    take_from_slot = sym take_from_slot,
    take_timer = sym take_timer,
    quickly = sym QUICKLY,
    image_bits = const abi_queue::pages::LARGEST_IMAGE.trailing_zeros(),
    interrupt_return = const abi_unix::SystemCall::InterruptReturn as usize,
);

#[cfg(on_cops)]
unsafe extern "C" {
    fn cops_interrupt_entry();
    fn cops_interrupt_vector();
    fn cops_interrupt_user_vector();
    fn cops_interrupt_slowly(identities: u64, then: extern "C" fn(u64));
    fn cops_switch_context(from: *mut Context, to: *const Context);
}

/// Saved registers of a stack that is set aside in a function: `ra`, `sp`, `tp`, `s0` to `s11`, `fs0` to `fs11`,
/// `fcsr`.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Context([u64; 28]);

impl Context {
    /// A context that was never left.
    pub const NEW: Context = Context([0; 28]);

    /// Creates a context that begins in a function, on a stack, with this thread pointer.
    pub fn beginning(entry: extern "C" fn() -> !, stack: usize, thread_pointer: usize) -> Context {
        let mut context = Context::NEW;
        context.0[..3].copy_from_slice(&[entry as *const () as u64, stack as u64, thread_pointer as u64]);
        context
    }
}

/// Leaves one stack and continues on another; returns when a later call switches back.
///
/// # Safety
///
/// `from` may be written. `to` was left by this function and not continued since, or is [beginning](Context::beginning)
/// on a stack of its own. The interrupt handler may run at any point between the two: it finds either thread pointer.
#[cfg(on_cops)]
#[doc(alias = "swapcontext")]
pub unsafe fn switch(from: *mut Context, to: *const Context) {
    // SAFETY: the caller's promise.
    unsafe { cops_switch_context(from, to) }
}

/// Allows further interrupts after a handler has [switched](switch) to code that is no handler.
#[cfg(on_cops)]
pub fn leave_handler() {
    match BACK_END.load(Ordering::Relaxed) {
        // SAFETY: enables the program's own interrupts.
        IMSIC => unsafe { core::arch::asm!("csrsi sstatus, 2", options(nostack)) },
        // SAFETY: as above.
        UINTC => unsafe { core::arch::asm!("csrsi 0x000, 1", options(nostack)) },
        _ => {
            // SAFETY: the call has no pointers. It fails only outside of a handler.
            let _ = unsafe { call!(InterruptLeave) };
        }
    }
}

/// Prepares the end of a handler that was switched back to; it is not interrupted where that matters.
#[cfg(on_cops)]
pub fn enter_handler_again() {
    match BACK_END.load(Ordering::Relaxed) {
        // SAFETY: disables the program's own interrupts, until the handler's end puts the status back.
        IMSIC => unsafe { core::arch::asm!("csrci sstatus, 2", options(nostack)) },
        // SAFETY: as above.
        UINTC => unsafe { core::arch::asm!("csrci 0x000, 1", options(nostack)) },
        _ => {}
    }
}

/// Has the handler called after this many ticks, if the worker has a timer of its own (back ends `imsic` and `uintc`);
/// returns whether it has. The earliest of several requests counts.
#[cfg(on_cops)]
#[inline]
pub fn call_handler_after(ticks: u64) -> bool {
    let has_timer = BACK_END.load(Ordering::Relaxed) != KERNEL;
    if has_timer {
        set_timer(ticks);
    }
    has_timer
}

/// Numbers of the back ends, as the auxiliary vector has them.
const KERNEL: u64 = 0;
const IMSIC: u64 = 1;
const UINTC: u64 = 2;

/// The back end; set with the handler.
#[cfg(on_cops)]
static BACK_END: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(KERNEL);

/// Data of the first instructions of an interrupt (back end `uintc`).
#[cfg(on_cops)]
#[repr(C)]
struct Quickly {
    /// Address of the scheduler's image.
    image: AtomicUsize,
    /// Function that is called before the handler, outside of the image.
    handler: AtomicUsize,
}

#[cfg(on_cops)]
static QUICKLY: Quickly = Quickly { image: AtomicUsize::new(0), handler: AtomicUsize::new(0) };

/// The quick handler of a program that has none.
#[cfg(on_cops)]
extern "C" fn nothing_is_quick(_identities: u64) -> bool {
    false
}

/// Address of the process page, from the auxiliary vector, with the workers' pending interrupts.
#[cfg(on_cops)]
static PAGE: core::sync::atomic::AtomicPtr<abi_queue::ProcessPage> =
    core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());

/// Address of the scheduler's image, from the auxiliary vector.
#[cfg(on_cops)]
static IMAGE: AtomicUsize = AtomicUsize::new(0);

/// Function that returns the number of the running worker: the program decides about `tp`.
#[cfg(on_cops)]
static WORKER: AtomicUsize = AtomicUsize::new(0);

/// Ticks until the handler tries again to interrupt code in the scheduler's image, whose sections are shorter.
#[cfg(on_cops)]
pub const AGAIN_TICKS: u64 = 200;

/// Takes an interrupt in VS-mode: calls the handler with the identities that have come, unless the code must not be
/// interrupted.
///
/// A sender can send all the time. Identities that have come again when the handler is done are taken a few times more;
/// after that the program continues for a while with its timer only.
#[cfg(on_cops)]
extern "C" fn take(cause: u64, pc: usize) {
    let mut identities = 0u64;
    if cause == INTERRUPT | EXTERNAL {
        identities = claim();
    } else {
        take_other(cause);
    }
    if pc.wrapping_sub(IMAGE.load(Ordering::Relaxed)) < abi_queue::pages::LARGEST_IMAGE {
        return take_later(identities);
    }
    // SAFETY: `set_handler` stored such a function before it enabled interrupts.
    let handler = unsafe { core::mem::transmute::<usize, extern "C" fn(u64)>(HANDLER.load(Ordering::Relaxed)) };
    handler(identities);
    if has_external() && has_handler() {
        take_more(handler);
    }
}

/// Calls the handler again for identities that have come while it ran.
#[cfg(on_cops)]
#[cold]
fn take_more(handler: extern "C" fn(u64)) {
    for _ in 0..MAXIMUM_REPEATS {
        handler(claim());
        if !has_external() || !has_handler() {
            return;
        }
    }
    // Until the timer comes: without a pause a flood could keep the program from running.
    // SAFETY: the program's own registers.
    unsafe { core::arch::asm!("csrc sie, {}", in(reg) 1u64 << EXTERNAL, options(nostack)) };
    set_timer(AGAIN_TICKS);
}

/// Takes an interrupt in user mode that needs more than the quick handler, as [`take`] does in VS-mode. Only integer
/// registers are saved yet.
#[cfg(on_cops)]
extern "C" fn take_from_slot(identities: u64, pc: usize) {
    if pc.wrapping_sub(IMAGE.load(Ordering::Relaxed)) < abi_queue::pages::LARGEST_IMAGE {
        return take_later(identities);
    }
    // SAFETY: this calls `take_slowly` with the identities.
    unsafe { cops_interrupt_slowly(identities, take_slowly) };
}

/// Calls the handler, with all registers saved, and again for identities that have come while it ran.
#[cfg(on_cops)]
extern "C" fn take_slowly(identities: u64) {
    // SAFETY: `set_handler` stored such a function before it enabled interrupts.
    let handler = unsafe { core::mem::transmute::<usize, extern "C" fn(u64)>(HANDLER.load(Ordering::Relaxed)) };
    handler(identities);
    for _ in 0..MAXIMUM_REPEATS {
        if !is_raised() || !has_handler() {
            return;
        }
        handler(claim_from_slot());
    }
    // Until the timer comes, as in `take_more`.
    // SAFETY: the program's own register.
    unsafe { core::arch::asm!("csrci 0x004, 1", options(nostack)) };
    set_timer(AGAIN_TICKS);
}

/// Takes all identities that have come in the worker's slot. The interrupt is cleared first: what comes from here on
/// makes it pending again.
#[cfg(on_cops)]
#[inline(always)]
fn claim_from_slot() -> u64 {
    let identities: u64;
    // SAFETY: clears the program's own interrupt, in `uip`, and takes from its own slot (`uipi_read`). A worker without
    // a slot enters the kernel, which puts 0 into the register.
    unsafe {
        core::arch::asm!("csrci 0x044, 1", ".insn r 0x7b, 6, 1, {}, x0, x0", out(reg) identities, options(nostack));
    }
    identities
}

/// Returns whether the worker's software interrupt is pending.
#[cfg(on_cops)]
#[inline(always)]
fn is_raised() -> bool {
    let pending: u64;
    // SAFETY: reads the program's own register `uip`.
    unsafe { core::arch::asm!("csrr {}, 0x044", out(reg) pending, options(nomem, nostack)) };
    pending & 1 != 0
}

/// Returns whether the worker has a handler still, after a call of it: without one no interrupt is enabled.
#[cfg(on_cops)]
#[inline(always)]
fn has_handler() -> bool {
    let enabled: u64;
    match BACK_END.load(Ordering::Relaxed) {
        // SAFETY: reads the program's own register `sie`.
        IMSIC => unsafe { core::arch::asm!("csrr {}, sie", out(reg) enabled, options(nomem, nostack)) },
        // SAFETY: reads the program's own register `uie`.
        _ => unsafe { core::arch::asm!("csrr {}, 0x004", out(reg) enabled, options(nomem, nostack)) },
    }
    enabled != 0
}

/// Handles the interrupt of the worker's own timer in user mode: the handler looks at the time. Software interrupts may
/// have been disabled until now.
#[cfg(on_cops)]
extern "C" fn take_timer() {
    // SAFETY: the program's own timer `utimecmp`, and its own interrupts.
    unsafe {
        core::arch::asm!("csrw 0x04d, {}", in(reg) u64::MAX, options(nostack));
        core::arch::asm!("csrsi 0x004, 1", options(nostack));
    }
}

/// Number of further calls of the handler for identities that have come meanwhile.
#[cfg(on_cops)]
const MAXIMUM_REPEATS: usize = 16;

/// Takes all identities that have come in the worker's interrupt file, each once.
#[cfg(on_cops)]
#[inline(always)]
fn claim() -> u64 {
    let mut identities = 0u64;
    loop {
        let claimed: u64;
        // SAFETY: claims from the worker's own interrupt file.
        unsafe { core::arch::asm!("csrrw {}, 0x15c, x0", out(reg) claimed, options(nostack)) };
        // The number is in the upper half too. 0 is none, 63 is the kernel, and no larger one was enabled.
        let bit = 1u64.wrapping_shl((claimed >> 16) as u32);
        if claimed == 0 || identities & bit != 0 {
            return identities;
        }
        identities |= bit;
    }
}

/// Returns whether an identity is pending in the worker's interrupt file.
#[cfg(on_cops)]
#[inline(always)]
fn has_external() -> bool {
    let pending: u64;
    // SAFETY: reads the program's own register.
    unsafe { core::arch::asm!("csrr {}, sip", out(reg) pending, options(nomem, nostack)) };
    pending & 1 << EXTERNAL != 0
}

/// Interrupt numbers of a hart.
#[cfg(on_cops)]
const EXTERNAL: u64 = 9;
#[cfg(on_cops)]
const INTERRUPT: u64 = 1 << 63;

/// Handles interrupts of the worker's own timer, or of the kernel.
#[cfg(on_cops)]
fn take_other(cause: u64) {
    match cause {
        // Software: from the kernel, which has written the word itself.
        // SAFETY: the program's own pending bit.
        _ if cause == INTERRUPT | 1 => unsafe { core::arch::asm!("csrci sip, 2", options(nostack)) },
        // Timer: the handler looks at the time. External interrupts may have been disabled until now.
        // SAFETY: the program's own timer and interrupts.
        _ if cause == INTERRUPT | 5 => unsafe {
            core::arch::asm!("csrw 0x14d, {}", in(reg) u64::MAX, options(nostack));
            core::arch::asm!("csrs sie, {}", in(reg) 1u64 << EXTERNAL, options(nostack));
        },
        // Exceptions go to the kernel.
        _ => {}
    }
}

/// Leaves the identities in the worker's word for the next interrupt, which comes soon, because the interrupted code is
/// in the scheduler's image.
#[cfg(on_cops)]
#[cold]
fn take_later(identities: u64) {
    // SAFETY: `set_handler` stored the address of the process page, which stays mapped; every word of it is atomic.
    if let Some(page) = unsafe { PAGE.load(Ordering::Relaxed).as_ref() } {
        let worker = WORKER.load(Ordering::Relaxed);
        // SAFETY: the value is such a function, from `set_handler`'s caller.
        let worker = unsafe { core::mem::transmute::<usize, fn() -> usize>(worker) };
        page.interrupts[worker() % abi_queue::MAXIMUM_WORKERS].0.fetch_or(identities, Ordering::Relaxed);
    }
    set_timer(AGAIN_TICKS);
}

/// Sets the worker's own timer, unless it is set to an earlier time, which is still needed.
#[cfg(on_cops)]
fn set_timer(ticks: u64) {
    /// Sets the timer that is this register, by number.
    macro_rules! set {
        ($register:literal) => {
            // SAFETY: reads the time and writes the program's own timer.
            unsafe {
                let (now, deadline): (u64, u64);
                core::arch::asm!("rdtime {}", out(reg) now, options(nomem, nostack));
                core::arch::asm!(concat!("csrr {}, ", $register), out(reg) deadline, options(nomem, nostack));
                if now + ticks < deadline {
                    core::arch::asm!(concat!("csrw ", $register, ", {}"), in(reg) now + ticks, options(nostack));
                }
            }
        };
    }
    if BACK_END.load(Ordering::Relaxed) == UINTC {
        // `utimecmp`.
        set!("0x04d");
    } else {
        // `stimecmp`.
        set!("0x14d");
    }
}

/// Returns the number of the back end of this process.
fn back_end() -> u64 {
    crate::start::auxiliary_value(abi_unix::types::auxiliary::COPS_USER_INTERRUPTS).unwrap_or(KERNEL)
}

/// Returns whether user interrupts reach this process in hardware (back ends `imsic` and `uintc`).
pub fn is_in_hardware() -> bool {
    back_end() != KERNEL
}

/// Returns whether this process runs in VS-mode (back end `imsic`).
pub fn is_virtualised() -> bool {
    back_end() == IMSIC
}

/// Returns whether workers of this process receive in slots of UINTC (back end `uintc`).
pub fn has_slots() -> bool {
    back_end() == UINTC
}

/// Makes `handler` the function that user interrupts of the calling worker call, with the identities that have come in
/// hardware; others are in the worker's word of the process page. All workers of a process with a handler have the same
/// one. `worker` returns the number of the calling worker.
///
/// # Errors
///
/// None on this system; `ENOSYS` elsewhere.
///
/// # Safety
///
/// `handler` runs between any two instructions of the worker, except inside the scheduler's image: it must not use data
/// that the interrupted code may be in the middle of changing, except through atomics. This holds for `worker` too.
#[cfg(on_cops)]
pub unsafe fn set_handler(handler: extern "C" fn(u64), worker: fn() -> usize) -> Result<()> {
    let back_end = back_end();
    if back_end != KERNEL {
        let page = crate::start::auxiliary_value(abi_unix::types::auxiliary::COPS_PROCESS_PAGE).unwrap_or(0);
        PAGE.store(page as *mut abi_queue::ProcessPage, Ordering::Relaxed);
        let image = crate::start::auxiliary_value(abi_unix::types::auxiliary::SYSINFO_EHDR).unwrap_or(0);
        IMAGE.store(image as usize, Ordering::Relaxed);
        WORKER.store(worker as usize, Ordering::Relaxed);
    }
    QUICKLY.image.store(IMAGE.load(Ordering::Relaxed), Ordering::Relaxed);
    QUICKLY.handler.store(nothing_is_quick as *const () as usize, Ordering::Relaxed);
    HANDLER.store(handler as *const () as usize, Ordering::Release);
    BACK_END.store(back_end, Ordering::Relaxed);
    if back_end == IMSIC {
        // SAFETY: the vector preserves the interrupted code's registers; the handler's behaviour is the caller's
        // promise. The registers are this worker's own.
        unsafe {
            core::arch::asm!(
                "csrw 0x14d, {never}",
                "csrw stvec, {vector}",
                "csrw sie, {enabled}",
                "csrsi sstatus, 2",
                never = in(reg) u64::MAX,
                vector = in(reg) cops_interrupt_vector as *const () as usize,
                enabled = in(reg) 1u64 << 1 | 1 << 5 | 1 << 9,
                options(nostack),
            );
        }
    }
    // SAFETY: the entry preserves the interrupted code's registers; the handler's behaviour is the caller's promise.
    unsafe { call!(InterruptHandler, cops_interrupt_entry as *const () as usize) }?;
    if back_end == UINTC {
        // The registers are there for workers with a handler: utimecmp, utvec, uie (software and timer), ustatus.
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                "csrw 0x04d, {never}",
                "csrw 0x005, {vector}",
                "csrw 0x004, {enabled}",
                "csrsi 0x000, 1",
                never = in(reg) u64::MAX,
                // With an entry for each cause.
                vector = in(reg) cops_interrupt_user_vector as *const () as usize | 1,
                enabled = in(reg) 1u64 << 4 | 1,
                options(nostack),
            );
        }
    }
    Ok(())
}

/// Adds a function to the handler, which is called first, with the identities that have come; if it returns `true`, the
/// handler is not called. It saves time where the back end saves no floating-point registers for it (`uintc`); other
/// back ends do not call it.
///
/// # Safety
///
/// As for [`set_handler`]'s handler. Neither the function nor anything that it calls uses a floating-point register,
/// and it leaves the stack as a function does.
#[cfg(on_cops)]
pub unsafe fn set_quick_handler(quick: extern "C" fn(u64) -> bool) {
    QUICKLY.handler.store(quick as *const () as usize, Ordering::Release);
}

/// There are no user interrupts on this machine.
///
/// # Safety
///
/// No condition.
#[cfg(not(on_cops))]
pub unsafe fn set_quick_handler(_quick: extern "C" fn(u64) -> bool) {}

/// There are no user interrupts on this machine.
///
/// # Safety
///
/// No condition.
#[cfg(not(on_cops))]
pub unsafe fn set_handler(_handler: extern "C" fn(u64), _worker: fn() -> usize) -> Result<()> {
    Err(crate::Errno::ENOSYS)
}

/// Makes the calling worker a receiver of user interrupts with this identity, 1 to 62. Dropping the descriptor ends
/// every right to it.
///
/// # Errors
///
/// `EINVAL` for another identity, `EBUSY` if the process has a receiver of this one, `EMFILE`, `ENOMEM`.
pub fn receiver(identity: usize) -> Result<Descriptor> {
    // SAFETY: the call has no pointers.
    unsafe { call!(InterruptReceiver, identity) }.map(Descriptor::from_result)
}

/// Makes a right to send to a receiver of this process, for this process: it can be passed on like any descriptor.
///
/// # Errors
///
/// `EPERM` if the receiver is another process's, `EINVAL` if it is none, `EBADF`, `EMFILE`, `ENOMEM`.
pub fn grant(receiver: &Descriptor) -> Result<Descriptor> {
    // SAFETY: the call has no pointers.
    unsafe { call!(InterruptGrant, receiver.raw(), 0) }.map(Descriptor::from_result)
}

/// Grants another process the right to send to a receiver of this process; that process gets it by [`open`].
///
/// # Errors
///
/// As [`grant`]; `ESRCH` if there is no such process, `ENOSPC` if the receiver has reached its limit of grants.
pub fn grant_to(receiver: &Descriptor, process: u32) -> Result<()> {
    if process == 0 || process == crate::process::number() {
        return grant(receiver).map(drop);
    }
    // SAFETY: the call has no pointers.
    unsafe { call!(InterruptGrant, receiver.raw(), process) }.map(drop)
}

/// Opens the right that a process has granted to this one, for its receiver with this identity.
///
/// # Errors
///
/// `EPERM` if it has granted none, `ESRCH` if there is no such process, `EMFILE`, `ENOMEM`.
pub fn open(process: u32, identity: usize) -> Result<Descriptor> {
    // SAFETY: the call has no pointers.
    unsafe { call!(InterruptOpen, process, identity) }.map(Descriptor::from_result)
}

/// Sends a user interrupt, through the kernel.
///
/// # Errors
///
/// `EPERM` if the right was revoked, `EPIPE` if the receiver is gone, `EINVAL` and `EBADF` if it is no right.
pub fn send(right: &Descriptor) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(InterruptSend, right.raw()) }.map(drop)
}

/// The address to which a store sends ([`store`]), or the index with which an instruction sends
/// ([`send_by_instruction`]).
#[derive(Clone, Copy, Debug)]
pub struct SendPage(usize);

/// The bit of an index; addresses do not have it.
const INDEX: usize = 1 << (usize::BITS - 1);

impl SendPage {
    /// Returns whether it is an index.
    pub const fn is_index(self) -> bool {
        self.0 & INDEX != 0
    }

    /// Returns a number that stands for it: at least 4096 for an address, negative if signed for an index.
    pub const fn raw(self) -> usize {
        self.0
    }

    /// Creates the value from its number.
    ///
    /// # Safety
    ///
    /// The number must be a result of [`raw`](Self::raw): a store to another address changes the memory there.
    pub const unsafe fn from_raw(number: usize) -> SendPage {
        SendPage(number)
    }
}

/// Requests the page to which a store sends through a right, or the index with which an instruction does, for as long
/// as one descriptor of it is open.
///
/// # Errors
///
/// `EPERM` if the right was revoked, `EPIPE` if the receiver is gone, `ENOSPC` if the process has reached its limit of
/// pages, `EINVAL` and `EBADF` if it is no right.
pub fn page(right: &Descriptor) -> Result<SendPage> {
    // SAFETY: the call has no pointers.
    let way = unsafe { call!(InterruptPage, right.raw()) }?;
    Ok(SendPage(if way < abi_queue::pages::PAGE_SIZE { way | INDEX } else { way }))
}

/// Sends a user interrupt by an instruction: without the kernel if the receiver is on a hart, through it otherwise.
///
/// # Errors
///
/// As [`send`]; but an interrupt that reaches the receiver's slot is never an error.
#[cfg(on_cops)]
#[inline(always)]
pub fn send_by_instruction(index: SendPage) -> Result<()> {
    let result: usize;
    // SAFETY: the instruction (`uipi_send`) changes no Rust object. If it enters the kernel, the kernel continues
    // behind it with its answer in `a0`; if it does not, `a0` stays 0. The fence makes earlier writes visible to the
    // receiver.
    unsafe {
        core::arch::asm!(
            "fence rw, o",
            ".insn r 0x7b, 6, 0, x0, {index}, x0",
            index = in(reg) index.0 & !INDEX,
            inlateout("a0") 0usize => result,
            options(nostack),
        );
    }
    abi_unix::errno::decode(result).map(drop)
}

/// There are no user interrupts on this machine.
///
/// # Errors
///
/// `ENOSYS`.
#[cfg(not(on_cops))]
pub fn send_by_instruction(_index: SendPage) -> Result<()> {
    Err(crate::Errno::ENOSYS)
}

/// Sends a user interrupt by a store: without the kernel if the receiver has an interrupt file, through it otherwise.
///
/// # Errors
///
/// As [`send`]; but a store that reaches the receiver's file is never an error.
#[cfg(on_cops)]
#[inline(always)]
pub fn store(page: SendPage) -> Result<()> {
    let result: usize;
    // SAFETY: the page is no memory, so no Rust object changes. If the store enters the kernel, the kernel continues
    // behind it with its answer in `a0`; if it does not, `a0` stays 0. The fence makes earlier writes visible to the
    // receiver.
    unsafe {
        core::arch::asm!(
            "fence rw, o",
            "sw {identity}, 0({address})",
            identity = in(reg) page.0 & 0xfff,
            address = in(reg) page.0 & !0xfff,
            inlateout("a0") 0usize => result,
            options(nostack),
        );
    }
    abi_unix::errno::decode(result).map(drop)
}

/// There are no user interrupts on this machine.
///
/// # Errors
///
/// `ENOSYS`.
#[cfg(not(on_cops))]
pub fn store(_page: SendPage) -> Result<()> {
    Err(crate::Errno::ENOSYS)
}

/// Ends a right, or all rights that were granted so far to a receiver.
///
/// # Errors
///
/// `EPERM` if the receiver is another process's, `EPIPE` if it is gone, `EINVAL` and `EBADF` if it is neither.
pub fn revoke(right_or_receiver: &Descriptor) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(InterruptRevoke, right_or_receiver.raw()) }.map(drop)
}
