//! Entry to user mode, traps from it, and faults of the kernel.
//!
//! [`enter_user`] is an ordinary function to its caller. The assembly below it saves on the hart's stack the registers
//! that the compiler cannot save, loads the program's registers and executes `sret`; the next trap from user mode saves
//! the program's registers, restores the kernel's and returns from the same function with the cause. There is one trap
//! vector: `sscratch` is the program's context in user mode and 0 in the kernel, so one exchange and one branch
//! distinguish the two.
//!
//! **Virtualised programs** use the same code: they run in VS-mode (`guest`), from which traps arrive here with causes
//! of their own. `sret` returns to VS-mode, because a trap records its origin in `sstatus` and `hstatus`.
//!
//! **Floating point** is lazy in both directions. The unit is off until a program uses it: that is an illegal
//! instruction, its contents are loaded, and the instruction runs again. From then on the unit stays on, in the kernel
//! too, until the hart enters a program whose contents are not in its registers; a change of the unit's state costs a
//! processor more than the rest of this code. If the program changed the registers they are saved when the kernel lets
//! go of the program ([`keep_floating_point`]), which may continue on another hart then; a new token records that this
//! hart still holds them, and makes every older copy stale. A call that is answered at once leaves them where they are:
//! some processors (Rocket) know no clean state, so that every trap of such a program would save all of them.
//!
//! **No kernel uses the unit**: its registers may be a program's. The build looks at each instruction of a kernel for
//! that (`xtask/src/instructions.rs`), so nothing has to fault for it.

use core::arch::global_asm;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use hal_api::{Access, Trap, UserContext};

use crate::csr::{self, clear_csr, read_csr, set_csr};
use crate::hart;

/// Status bit: in the kernel interrupts are off.
const STATUS_SIE: u64 = 1 << 1;
/// Status bit: interrupts after the next return.
const STATUS_SPIE: u64 = 1 << 5;
/// Status bit: origin of the last trap and target of the next return; clear for user mode.
const STATUS_SPP: u64 = 1 << 8;
/// Status field: state of the vector unit.
const STATUS_VS: u64 = 3 << 9;
/// Status field: state of the floating-point unit: off, initial, clean, dirty.
const STATUS_FS: u64 = 3 << 13;
/// The unit is on, and its registers are as in memory.
const STATUS_FS_CLEAN: u64 = 2 << 13;
/// Status bit: the kernel may access user pages. Always clear: the kernel accesses them through the direct map.
const STATUS_SUM: u64 = 1 << 18;
/// Status bit: loads may read execute-only pages.
const STATUS_MXR: u64 = 1 << 19;

/// Bits that are cleared when a hart starts.
pub const STATUS_CLEARED: u64 = STATUS_SIE | STATUS_SPIE | STATUS_SPP | STATUS_VS | STATUS_FS | STATUS_SUM | STATUS_MXR;

/// The registers of the kernel at a fault, x1 to x31; x2 is the stack pointer at the fault.
#[repr(C)]
pub struct Frame {
    pub x: [u64; 31],
    unused: u64,
}

global_asm!(
    r#"
    .section .text.trap, "ax"

# enter(a0: &mut UserContext) -> a0: cause
# Keeps s0, s1, tp and sp. Changes every other register, as `visit` declares to the compiler. The four are saved below
# the stack pointer, where nothing is written until the trap: interrupts are off, and a kernel fault is reported on
# another stack.
    .balign 4
    .globl hal_enter_user
hal_enter_user:
    sd      ra, -8(sp)
    sd      s0, -16(sp)
    sd      s1, -24(sp)
    sd      tp, -32(sp)
    sd      sp, {kernel_stack}(a0)
    csrw    sscratch, a0
    ld      t0, 0(a0)
    csrw    sepc, t0
    .irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ld      x\n, 8*\n(a0)
    .endr
    ld      a0, 80(a0)
    sret

# Every trap. From user mode: saves the program and returns from hal_enter_user. From the kernel: fatal.
    .balign 4
    .globl hal_trap_vector
hal_trap_vector:
    csrrw   a0, sscratch, a0
    beqz    a0, 1f
    .irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    sd      x\n, 8*\n(a0)
    .endr
    csrrw   t0, sscratch, zero
    csrr    t1, sepc
    sd      t0, 80(a0)
    sd      t1, 0(a0)
    ld      sp, {kernel_stack}(a0)
    csrr    a0, scause
    ld      ra, -8(sp)
    ld      s0, -16(sp)
    ld      s1, -24(sp)
    ld      tp, -32(sp)
    ret

# A kernel fault. A stack overflow may be the cause, so the report runs on the emergency stack.
1:  ld      a0, {emergency_top}(tp)
    addi    a0, a0, -256
    .irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    sd      x\n, 8*\n-8(a0)
    .endr
    csrr    t0, sscratch
    sd      t0, 72(a0)
    mv      sp, a0
    call    hal_kernel_fault

# With link-time optimisation the assembler does not know the target's extensions.
    .option push
    .option arch, +d

# fn save(a0: *mut FloatingPoint), fn load(a0: *const FloatingPoint): the unit must be on.
    .globl hal_save_floating_point
hal_save_floating_point:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    fsd     f\n, 8*\n(a0)
    .endr
    frcsr   t0
    sd      t0, 256(a0)
    ret

    .globl hal_load_floating_point
hal_load_floating_point:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    fld     f\n, 8*\n(a0)
    .endr
    ld      t0, 256(a0)
    fscsr   t0
    ret
    .option pop
    "#,
    kernel_stack = const UserContext::OFFSET_KERNEL_STACK,
    emergency_top = const hart::OFFSET_EMERGENCY_TOP,
);

unsafe extern "C" {
    fn hal_trap_vector();
    fn hal_save_floating_point(registers: *mut u8);
    fn hal_load_floating_point(registers: *const u8);
}

/// Returns the address of the trap vector.
pub fn vector() -> usize {
    hal_trap_vector as *const () as usize
}

/// Causes of traps, from the privileged architecture, table "Supervisor cause register values after trap".
mod cause {
    pub const INTERRUPT: u64 = 1 << 63;
    pub const INSTRUCTION_MISALIGNED: u64 = 0;
    pub const INSTRUCTION_ACCESS: u64 = 1;
    pub const ILLEGAL_INSTRUCTION: u64 = 2;
    pub const BREAKPOINT: u64 = 3;
    pub const LOAD_MISALIGNED: u64 = 4;
    pub const LOAD_ACCESS: u64 = 5;
    pub const STORE_MISALIGNED: u64 = 6;
    pub const STORE_ACCESS: u64 = 7;
    pub const USER_CALL: u64 = 8;
    /// The bit in which a call of a virtualised program (10) differs from a call of another program (8). No other cause
    /// equals 8 without this bit.
    pub const VIRTUALISED_CALL_BIT: u64 = 2;
    pub const INSTRUCTION_PAGE: u64 = 12;
    pub const LOAD_PAGE: u64 = 13;
    pub const STORE_PAGE: u64 = 15;
    pub const INSTRUCTION_GUEST_PAGE: u64 = 20;
    pub const LOAD_GUEST_PAGE: u64 = 21;
    pub const VIRTUAL_INSTRUCTION: u64 = 22;
    pub const STORE_GUEST_PAGE: u64 = 23;
}

/// Runs user code until something happens; see [`Machine::enter_user`](hal_api::Machine::enter_user).
///
/// Inlined into the kernel's loop, because it is called so often; it contains only the path of an ordinary system call.
/// With `KEEPS` the floating-point registers are kept at once, while the context is at hand anyway.
#[inline(always)]
pub fn enter_user<const KEEPS: bool>(context: &mut UserContext) -> Trap {
    loop {
        // Both are 0 for programs that have not used the unit.
        if context.token() != hart::this().unit.load(Relaxed) {
            switch_unit(context.token());
        }
        let cause = visit(context);
        if KEEPS {
            keep_floating_point(context);
        }
        if cause & !cause::VIRTUALISED_CALL_BIT == cause::USER_CALL {
            context.pc += 4;
            return Trap::SystemCall;
        }
        if cause & cause::INTERRUPT != 0 {
            return Trap::Interrupt;
        }
        if let Some(reason) = unusual(context, cause) {
            return reason;
        }
    }
}

/// Enters user mode once; returns the cause of the trap.
#[inline(always)]
fn visit(context: &mut UserContext) -> u64 {
    let cause;
    // SAFETY: the assembly keeps the stack pointer, `s0`, `s1` and `tp`; every other register that it changes is
    // declared, or, like `gp` and the floating-point registers, not used by kernel code. The context is borrowed
    // exclusively and stays in place until the trap. The register contract holds here.
    unsafe {
        core::arch::asm!(
            "call hal_enter_user",
            inout("a0") &raw mut *context => cause,
            out("s2") _, out("s3") _, out("s4") _, out("s5") _, out("s6") _,
            out("s7") _, out("s8") _, out("s9") _, out("s10") _, out("s11") _,
            clobber_abi("C"),
        );
    }
    cause
}

/// Handles every cause but system calls and interrupts. Returns `None` if the program continues at once: it needed the
/// floating-point unit.
#[cold]
#[inline(never)]
fn unusual(context: &mut UserContext, cause: u64) -> Option<Trap> {
    // The unit was on if the registers hold this program's contents.
    let was_on = context.token() != 0 && context.token() == hart::this().unit.load(Relaxed);
    let value = read_csr!(csr::STVAL);
    let wants_unit = cause == cause::ILLEGAL_INSTRUCTION && !was_on && may_be_floating_point(value as u32);
    if wants_unit && !context.is_floating_point_forbidden() {
        load_floating_point(context);
        return None;
    }
    if crate::guest::has_own_translation() {
        // The program has performed an access that VTVM forbids, and the fault's address is meaningless.
        return Some(Trap::IllegalInstruction { bits: 0 });
    }
    Some(reason(cause, value))
}

/// Returns whether an instruction that was illegal may be legal when the floating-point unit is on. Machines that do
/// not report the instruction deliver 0. (Unprivileged architecture, "RV32/64G Instruction Set Listings" and "RVC
/// Instruction Set Listings".)
fn may_be_floating_point(bits: u32) -> bool {
    match bits & 3 {
        _ if bits == 0 => true,
        // FLD, FSD and their forms with the stack pointer have these functions; a function of 3 or 7 is FLW or FSW on
        // machines of 32 bits only.
        0 | 2 => matches!(bits >> 13 & 7, 1 | 5),
        1 => false,
        _ => match bits & 0x7f {
            // LOAD-FP, STORE-FP, MADD, MSUB, NMSUB, NMADD, OP-FP.
            0x07 | 0x27 | 0x43 | 0x47 | 0x4b | 0x4f | 0x53 => true,
            // Control registers: fflags, frm, fcsr.
            0x73 => matches!(bits >> 20, 1..=3),
            _ => false,
        },
    }
}

/// Whether the unit can be clean. On processors that know no such state it is dirty whenever it is on, also where its
/// registers were saved.
static KNOWS_CLEAN_UNIT: AtomicBool = AtomicBool::new(false);

/// Finds out whether the unit can be clean. It is off before and afterwards.
pub(crate) fn probe_floating_point() {
    // SAFETY: no program has run yet, and no kernel uses the unit.
    unsafe { set_csr!(csr::SSTATUS, STATUS_FS_CLEAN) };
    let status = read_csr!(csr::SSTATUS);
    // SAFETY: as above.
    unsafe { clear_csr!(csr::SSTATUS, STATUS_FS) };
    KNOWS_CLEAN_UNIT.store(status & STATUS_FS == STATUS_FS_CLEAN, Relaxed);
}

/// Turns the unit on for the program whose contents are in the registers, and off for every other.
#[cold]
#[inline(never)]
fn switch_unit(token: u64) {
    let hart = hart::this();
    assert!(
        hart.unit.load(Relaxed) == 0
            || read_csr!(csr::SSTATUS) & STATUS_FS != STATUS_FS
            || !KNOWS_CLEAN_UNIT.load(Relaxed),
        "floating-point registers of another program were not kept"
    );
    if token != 0 && token == hart.token.load(Relaxed) {
        // SAFETY: the program's contents are in the registers.
        unsafe { set_csr!(csr::SSTATUS, STATUS_FS_CLEAN) };
        hart.unit.store(token, Relaxed);
    } else if hart.unit.load(Relaxed) != 0 {
        // SAFETY: the kernel does not use the unit.
        unsafe { clear_csr!(csr::SSTATUS, STATUS_FS) };
        hart.unit.store(0, Relaxed);
    }
}

/// Saves the floating-point contents if the program has changed them; see
/// [`Machine::keep_floating_point`](hal_api::Machine::keep_floating_point).
#[inline(always)]
pub fn keep_floating_point(context: &mut UserContext) {
    // Without a token the unit was off.
    if context.token() != 0 {
        save_floating_point(context);
    }
}

#[cold]
#[inline(never)]
fn save_floating_point(context: &mut UserContext) {
    // With another token the program has not used the unit on this hart since it came here.
    if context.token() != hart::this().unit.load(Relaxed) || read_csr!(csr::SSTATUS) & STATUS_FS != STATUS_FS {
        return;
    }
    let registers = (&raw mut *context.floating_point_mut()).cast();
    // SAFETY: the unit is on, and the memory is the context's, with room for all registers. They are as in memory now.
    unsafe {
        hal_save_floating_point(registers);
        clear_csr!(csr::SSTATUS, STATUS_FS & !STATUS_FS_CLEAN);
    }
    hold(context);
}

/// Loads the program's floating-point contents, with which the unit is on from now on. An instruction that is illegal
/// for another reason traps once more.
#[cold]
fn load_floating_point(context: &mut UserContext) {
    let registers = (&raw const *context.floating_point()).cast();
    // SAFETY: the unit is on for the loads, and what they change are no registers of the kernel. They are as in memory
    // afterwards.
    unsafe {
        set_csr!(csr::SSTATUS, STATUS_FS);
        hal_load_floating_point(registers);
        clear_csr!(csr::SSTATUS, STATUS_FS & !STATUS_FS_CLEAN);
    }
    hold(context);
}

/// Notes that this hart's registers hold a program's contents, and that the unit is on for it.
fn hold(context: &mut UserContext) {
    let hart = hart::this();
    let token = hart.new_token();
    hart.unit.store(token, Relaxed);
    context.set_token(token);
}

/// Whether the address of a failed fetch lacks its sign.
pub(crate) static FETCH_FAULTS_LACK_SIGN: AtomicBool = AtomicBool::new(false);

/// Returns the value of a failed fetch, with the sign of an address of 39 bits.
fn address_of_fetch(value: u64) -> u64 {
    // With a bit above the sign's it is no address of 39 bits, and stays none.
    if FETCH_FAULTS_LACK_SIGN.load(Relaxed) && value >> 38 == 1 { value | !0 << 39 } else { value }
}

/// Converts a cause and its value into a [`Trap`].
fn reason(cause: u64, value: u64) -> Trap {
    let page_fault = |access| Trap::PageFault { address: value, access };
    let misaligned = |access| Trap::Misaligned { address: value, access };
    let access_fault = |access| Trap::AccessFault { address: value, access };
    match cause {
        cause::LOAD_PAGE | cause::LOAD_GUEST_PAGE => page_fault(Access::Read),
        cause::STORE_PAGE | cause::STORE_GUEST_PAGE => page_fault(Access::Write),
        cause::INSTRUCTION_PAGE | cause::INSTRUCTION_GUEST_PAGE => {
            Trap::PageFault { address: address_of_fetch(value), access: Access::Execute }
        }
        // The second cause is a virtualised program's access to supervisor state that it must not use.
        cause::ILLEGAL_INSTRUCTION | cause::VIRTUAL_INSTRUCTION => Trap::IllegalInstruction { bits: value },
        cause::BREAKPOINT => Trap::Breakpoint,
        cause::INSTRUCTION_MISALIGNED => misaligned(Access::Execute),
        cause::LOAD_MISALIGNED => misaligned(Access::Read),
        cause::STORE_MISALIGNED => misaligned(Access::Write),
        cause::INSTRUCTION_ACCESS => Trap::AccessFault { address: address_of_fetch(value), access: Access::Execute },
        cause::LOAD_ACCESS => access_fault(Access::Read),
        cause::STORE_ACCESS => access_fault(Access::Write),
        _ => Trap::Other { cause, value },
    }
}
