//! The machine as the tests see it: boot, console, end, registers, and the way into a mode and back.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::panic::PanicInfo;

/// Reads a control and status register.
macro_rules! read_csr {
    ($number:expr) => {{
        let value: u64;
        // SAFETY: reading a register changes no memory.
        unsafe { ::core::arch::asm!("csrr {}, {}", out(reg) value, const $number, options(nostack)) };
        value
    }};
}

/// Writes a control and status register.
macro_rules! write_csr {
    ($number:expr, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: none of the registers that the tests write changes the meaning of this program's memory.
        unsafe { ::core::arch::asm!("csrw {}, {}", const $number, in(reg) value, options(nostack)) };
    }};
}

/// Sets bits of a control and status register.
macro_rules! set_csr {
    ($number:expr, $bits:expr) => {{
        let bits: u64 = $bits;
        // SAFETY: as for `write_csr`.
        unsafe { ::core::arch::asm!("csrs {}, {}", const $number, in(reg) bits, options(nostack)) };
    }};
}

/// Clears bits of a control and status register.
macro_rules! clear_csr {
    ($number:expr, $bits:expr) => {{
        let bits: u64 = $bits;
        // SAFETY: as for `write_csr`.
        unsafe { ::core::arch::asm!("csrc {}, {}", const $number, in(reg) bits, options(nostack)) };
    }};
}

pub(crate) use {clear_csr, read_csr, set_csr, write_csr};

/// User status: interrupt enable in bit 0, the former one in bit 4.
pub const USTATUS: u32 = 0x000;
/// User interrupt enable.
pub const UIE: u32 = 0x004;
/// User trap vector.
pub const UTVEC: u32 = 0x005;
/// A word for the user's handler.
pub const USCRATCH: u32 = 0x040;
/// Program counter at the last user trap.
pub const UEPC: u32 = 0x041;
/// Cause of the last user trap.
pub const UCAUSE: u32 = 0x042;
/// Value that belongs to the last user trap.
pub const UTVAL: u32 = 0x043;
/// User interrupt pending.
pub const UIP: u32 = 0x044;
/// Time of the user timer's interrupt.
pub const UTIMECMP: u32 = 0x04d;
/// Supervisor status.
pub const SSTATUS: u32 = 0x100;
/// Exceptions delegated to user mode.
pub const SEDELEG: u32 = 0x102;
/// Interrupts delegated to user mode.
pub const SIDELEG: u32 = 0x103;
/// Supervisor interrupt enable.
pub const SIE: u32 = 0x104;
/// Supervisor interrupt pending.
pub const SIP: u32 = 0x144;
/// Sender table.
pub const SUIST: u32 = 0x1b0;
/// Receiver's slot.
pub const SUIRS: u32 = 0x1b1;
/// Physical address of the interrupt controller.
pub const SUICFG: u32 = 0x1b2;
/// Hypervisor status.
pub const HSTATUS: u32 = 0x600;
/// The time.
const TIME: u32 = 0xc01;

/// Interrupt numbers and their bits.
pub const USI: u64 = 1 << 0;
/// Of the supervisor's software.
pub const SSI: u64 = 1 << 1;
/// Of the user timer.
pub const UTI: u64 = 1 << 4;
/// Of user mode's external sources.
pub const UEI: u64 = 1 << 8;
/// The bit of a cause that says that it is an interrupt.
pub const INTERRUPT: u64 = 1 << 63;

/// `sstatus.UIE`, `UPIE`, `SIE`, `SPIE`, `SPP`.
pub const STATUS_UIE: u64 = 1 << 0;
/// The former UIE.
pub const STATUS_UPIE: u64 = 1 << 4;
const STATUS_SPIE: u64 = 1 << 5;
const STATUS_SPP: u64 = 1 << 8;
const HSTATUS_SPV: u64 = 1 << 7;

/// The interrupt controller's address on this machine, and its extent.
pub const UINTC: u64 = 0x02f1_0000;
/// Number of its slots.
pub const SLOTS: u64 = 512;

/// Registers of a slot.
pub const SLOT_SEND: u64 = 0x00;
/// Hart and mode.
pub const SLOT_LOW: u64 = 0x08;
/// Pending vectors.
pub const SLOT_HIGH: u64 = 0x10;
/// Bit 0 of the mode.
pub const SLOT_ACTIVE: u64 = 0x18;

const SERIAL: *mut u8 = 0x1000_0000 as *mut u8;
const FINISHER: *mut u32 = 0x0010_0000 as *mut u32;

/// Largest number of instructions of a piece of code.
const ROOM: usize = 64;

global_asm!(
    r#"
    .section .text.entry, "ax"
    .globl _start
_start:
    csrw    sie, zero
    # Only the first hart boots. OpenSBI before 1.2 may send a hart that it starts here, by a stale address.
    lla     t0, uintc_smoke_first
    li      t1, 1
    .option push
    .option arch, +a
    amoswap.w t0, t1, (t0)
    .option pop
    bnez    t0, uintc_smoke_other_hart
    lla     t0, __bss_start
    lla     t1, __bss_end
1:  sd      zero, 0(t0)
    addi    t0, t0, 8
    bltu    t0, t1, 1b
    lla     sp, {stacks} + {stack_size}
    tail    {main}

    .section .data
    .balign 8
uintc_smoke_first:
    .dword  0
    .section .text.entry, "ax"

    .globl uintc_smoke_other_hart
uintc_smoke_other_hart:
    csrw    sie, zero
    lla     sp, {stacks} + 2 * {stack_size}
    tail    {other}

    # Leaves for the code of the context in a0; the next trap to supervisor mode returns from the call.
    .balign 4
    .globl uintc_smoke_enter
uintc_smoke_enter:
    addi    sp, sp, -112
    sd      ra, 0(sp)
    sd      s0, 8(sp)
    sd      s1, 16(sp)
    sd      s2, 24(sp)
    sd      s3, 32(sp)
    sd      s4, 40(sp)
    sd      s5, 48(sp)
    sd      s6, 56(sp)
    sd      s7, 64(sp)
    sd      s8, 72(sp)
    sd      s9, 80(sp)
    sd      s10, 88(sp)
    sd      s11, 96(sp)
    sd      sp, 64(a0)
    lla     t0, 1f
    csrw    stvec, t0
    csrw    sscratch, a0
    ld      a1, 8(a0)
    ld      a2, 16(a0)
    ld      a3, 24(a0)
    ld      a4, 32(a0)
    ld      a0, 0(a0)
    sret
    .balign 4
1:  csrrw   t6, sscratch, t6
    sd      a0, 0(t6)
    sd      a1, 8(t6)
    sd      a2, 16(t6)
    sd      a3, 24(t6)
    sd      a4, 32(t6)
    ld      sp, 64(t6)
    ld      ra, 0(sp)
    ld      s0, 8(sp)
    ld      s1, 16(sp)
    ld      s2, 24(sp)
    ld      s3, 32(sp)
    ld      s4, 40(sp)
    ld      s5, 48(sp)
    ld      s6, 56(sp)
    ld      s7, 64(sp)
    ld      s8, 72(sp)
    ld      s9, 80(sp)
    ld      s10, 88(sp)
    ld      s11, 96(sp)
    addi    sp, sp, 112
    ret
    "#,
    stacks = sym STACKS,
    stack_size = const STACK_SIZE,
    main = sym boot,
    other = sym other_hart,
);

const STACK_SIZE: usize = 16 << 10;

#[repr(C, align(16))]
struct Stacks(UnsafeCell<[u8; 2 * STACK_SIZE]>);
// SAFETY: each hart uses its own half.
unsafe impl Sync for Stacks {}
static STACKS: Stacks = Stacks(UnsafeCell::new([0; 2 * STACK_SIZE]));

unsafe extern "C" {
    fn uintc_smoke_enter(context: *mut Context);
    fn uintc_smoke_other_hart();
}

extern "C" fn boot(hart: u64, device_tree: *const u8) -> ! {
    crate::suite::main(hart, device_tree)
}

extern "C" fn other_hart(hart: u64) -> ! {
    crate::suite::other_hart(hart)
}

#[repr(C)]
struct Context {
    /// The registers a0 to a4.
    arguments: [u64; 5],
    unused: [u64; 3],
    stack: u64,
}

/// The mode of a piece of code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A program's.
    User,
    /// The kernel's.
    Supervisor,
    /// A program's of a guest.
    GuestUser,
    /// A guest's kernel's.
    GuestSupervisor,
}

/// The trap that ended a piece of code.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Its cause.
    pub cause: u64,
    /// The instruction's place in the code.
    pub at: u64,
    /// `stval`.
    pub value: u64,
    /// `sstatus`.
    pub status: u64,
    /// The registers a0 to a4.
    pub results: [u64; 5],
}

/// Memory for a piece of code that a hart runs.
pub struct Code(UnsafeCell<[u32; ROOM]>);
// SAFETY: each hart has its own.
unsafe impl Sync for Code {}

impl Code {
    /// Makes memory without instructions.
    pub const fn new() -> Code {
        Code(UnsafeCell::new([0; ROOM]))
    }

    /// Returns the address of an instruction.
    pub fn address(&self, index: u64) -> u64 {
        self.0.get() as u64 + 4 * index
    }

    /// Runs instructions with these arguments until they trap. `status` has the bits of `sstatus` to begin with.
    pub fn run(&self, mode: Mode, instructions: &[u32], status: u64, arguments: [u64; 5]) -> Outcome {
        assert!(instructions.len() <= ROOM);
        // SAFETY: nothing else runs on this hart, whose own code it is.
        unsafe { (&mut *self.0.get())[..instructions.len()].copy_from_slice(instructions) };
        // SAFETY: makes the hart fetch what was written.
        unsafe { asm!("fence.i") };
        self.resume(mode, 0, status, arguments)
    }

    /// Continues with the instructions of the last run at one of them.
    pub fn resume(&self, mode: Mode, index: u64, status: u64, arguments: [u64; 5]) -> Outcome {
        let mut context = Context { arguments, unused: [0; 3], stack: 0 };
        let guest = matches!(mode, Mode::GuestUser | Mode::GuestSupervisor);
        let supervisor = matches!(mode, Mode::Supervisor | Mode::GuestSupervisor);
        // Traps and returns move the bits: SPIE becomes SIE. Nothing interrupts this program itself.
        clear_csr!(SSTATUS, STATUS_SPP | STATUS_SPIE | STATUS_UIE | STATUS_UPIE | 2);
        set_csr!(SSTATUS, status | if supervisor { STATUS_SPP } else { 0 });
        clear_csr!(HSTATUS, HSTATUS_SPV);
        set_csr!(HSTATUS, if guest { HSTATUS_SPV } else { 0 });
        write_csr!(0x141, self.address(index));
        // SAFETY: the code touches no memory but what the test gives it, and the call returns at its first trap with
        // every register of this program restored.
        unsafe { uintc_smoke_enter(&mut context) };
        Outcome {
            cause: read_csr!(0x142),
            at: read_csr!(0x141).wrapping_sub(self.address(0)) / 4,
            value: read_csr!(0x143),
            status: read_csr!(SSTATUS),
            results: context.arguments,
        }
    }
}

/// Begins to run a piece of code with interrupts of the supervisor enabled: for `status` of [`Code::run`].
pub const SUPERVISOR_INTERRUPTS: u64 = STATUS_SPIE;

/// Reads a register of the interrupt controller.
pub fn read_slot(slot: u64, register: u64) -> u64 {
    // SAFETY: the machine has its controller there.
    unsafe { ((UINTC + slot * 32 + register) as *const u64).read_volatile() }
}

/// Writes a register of the interrupt controller.
pub fn write_slot(slot: u64, register: u64, value: u64) {
    // SAFETY: as for `read_slot`.
    unsafe { ((UINTC + slot * 32 + register) as *mut u64).write_volatile(value) }
}

/// Returns the time.
pub fn now() -> u64 {
    read_csr!(TIME)
}

/// Starts another hart. Returns whether the machine has it.
pub fn start_hart(hart: u64) -> bool {
    let error: u64;
    // SAFETY: a firmware call; the new hart begins at this program's entry for it, on its own stack.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") hart => error,
            inlateout("a1") uintc_smoke_other_hart as *const () as u64 => _,
            in("a2") 0_u64,
            in("a6") 0_u64,
            in("a7") 0x48_534d_u64,
        );
    }
    error == 0
}

/// Returns whether the device tree contains a text.
pub fn device_tree_contains(device_tree: *const u8, text: &[u8]) -> bool {
    // SAFETY: the firmware passes a device tree, whose second word is its length, the most significant byte first.
    let length = u32::from_be(unsafe { device_tree.cast::<u32>().add(1).read() }) as usize;
    // SAFETY: as above.
    let bytes = unsafe { core::slice::from_raw_parts(device_tree, length) };
    bytes.windows(text.len()).any(|window| window == text)
}

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the transmit register of QEMU's serial line, which is always ready.
            unsafe { SERIAL.write_volatile(byte) };
        }
        Ok(())
    }
}

/// Prints a line.
pub fn print(line: fmt::Arguments) {
    let _ = writeln!(Serial, "{line}");
}

/// Ends the machine.
pub fn end(success: bool) -> ! {
    // SAFETY: the finisher ends QEMU with success, or with a failure status of 1.
    unsafe { FINISHER.write_volatile(if success { 0x5555 } else { 0x1_3333 }) };
    loop {
        wait();
    }
}

/// Waits for an interrupt.
pub fn wait() {
    // SAFETY: changes nothing.
    unsafe { asm!("wfi") };
}

#[panic_handler]
fn panic(information: &PanicInfo) -> ! {
    print(format_args!("KERNEL PANIC: {information}"));
    end(false)
}
