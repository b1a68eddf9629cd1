//! User programs of a few instructions, and the page in the place of a vDSO.

use core::arch::global_asm;

/// A program.
#[derive(Clone, Copy)]
pub enum Program {
    /// Adds 1 to every register and calls; a breakpoint is next.
    IncrementAll,
    /// Loads a1 from the address in a0, then calls.
    Load,
    /// Stores a1 to the address in a0, then calls.
    Store,
    /// Reads a register of the supervisor.
    Privileged,
    /// Executes an illegal instruction.
    Illegal,
    /// Counts in a0, for ever.
    Endless,
    /// Reads all counters, a0 is the time, then calls.
    Counters,
    /// Calls, for ever.
    EcallLoop,
    /// Sends a0 user interrupts through entry 0 of its sender table, then calls. Its other entries are below.
    SendUserInterrupts,
    /// Adds a0 + n to the bits of each floating-point register f n, then calls. Longer than the others, so the last.
    AddFloatingPoint,
}

/// Offset in [`Program::SendUserInterrupts`] of a part that waits for the handler, and then calls.
pub const WAIT: u64 = 64;
/// Offset of a part that waits, for as many rounds as a0 says, and then calls.
pub const COUNT: u64 = 96;
/// Offset of the handler: it counts in a1, and collects vectors in a2.
pub const HANDLER: u64 = 128;
/// Offset of a handler of the timer: it counts in a1, and sets the next deadline to a3.
pub const TIMER_HANDLER: u64 = 192;

/// Bytes from one program to the next.
pub const SPACE: u64 = 384;
/// Bytes of all programs.
pub const LENGTH: usize = 4096;

global_asm!(
    r#"
    .section .rodata.programs, "a"
    .balign 4096
    .option push
    .option arch, +d
    .option norvc
    .globl hal_smoke_programs
hal_smoke_programs:
    .irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    addi    x\n, x\n, 1
    .endr
    ecall
    ebreak

    .org hal_smoke_programs + 384 * 1
    ld      a1, 0(a0)
    ecall

    .org hal_smoke_programs + 384 * 2
    sd      a1, 0(a0)
    ecall

    .org hal_smoke_programs + 384 * 3
    csrr    a0, sstatus
    ecall

    .org hal_smoke_programs + 384 * 4
    .word   0xffffffff

    .org hal_smoke_programs + 384 * 5
1:  addi    a0, a0, 1
    j       1b

    .org hal_smoke_programs + 384 * 6
    rdcycle a1
    rdinstret a2
    rdtime  a0
    ecall

    .org hal_smoke_programs + 384 * 7
1:  ecall
    j       1b

    # The N extension and UIPI have no names in the assembler: .word is uipi_send x0, uipi_read t0, uret.
    .org hal_smoke_programs + 384 * 8
1:  .word   0x0000607b
    addi    a0, a0, -1
    bnez    a0, 1b
    ecall
    .org hal_smoke_programs + 384 * 8 + 64
1:  beqz    a1, 1b
    ecall
    .org hal_smoke_programs + 384 * 8 + 96
1:  addi    a0, a0, -1
    bnez    a0, 1b
    ecall
    .org hal_smoke_programs + 384 * 8 + 128
    .word   0x020062fb
    csrrci  zero, 0x044, 1
    or      a2, a2, t0
    addi    a1, a1, 1
    .word   0x00200073
    .org hal_smoke_programs + 384 * 8 + 192
    csrrw   zero, 0x04d, a3
    addi    a1, a1, 1
    .word   0x00200073

    .org hal_smoke_programs + 384 * 9
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    fmv.x.d t0, f\n
    add     t0, t0, a0
    addi    t0, t0, \n
    fmv.d.x f\n, t0
    .endr
    ecall

    .org hal_smoke_programs + 4096
    .option pop
    "#
);

unsafe extern "C" {
    static hal_smoke_programs: [u32; LENGTH / 4];
}

/// Returns the instructions of all programs.
pub fn all() -> &'static [u32; LENGTH / 4] {
    // SAFETY: the assembly above defines exactly this, and it never changes.
    unsafe { &hal_smoke_programs }
}

/// Returns the first instruction of a program.
pub fn first_instruction(program: Program) -> u32 {
    all()[program as usize * SPACE as usize / 4]
}

/// In the place of the image that kernels share with programs.
#[used]
#[unsafe(link_section = ".vdso")]
pub static VDSO: [u32; 3] = [0x1234_5678, 0, 7];
