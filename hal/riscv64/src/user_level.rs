//! Programs that take interrupts in user mode: the N extension and UIPI, on the machine of boards/uintc.
//!
//! A program that is *armed* owns a set of registers beside its general ones, takes its software and timer interrupts
//! at its own vector, and sends through its sender table. The hart has those registers once, so a kernel arms a program
//! when it brings it to the hart ([`arm`]) and disarms it when it takes it away ([`disarm`], or [`saved`] and later
//! [`forget`]). In between, any number of traps leave them alone.
//!
//! * While no program is armed, nothing is delegated, and the machine refuses every access to the registers: no other
//!   program sees or changes a value, and nothing need be cleared for it.
//! * No exception is delegated: every fault comes to the kernel.
//! * An interrupt that is pending in the kernel waits. One for a program that is not armed any more is cleared: its
//!   vectors are still pending in the slot of the controller, which raises it again when the slot becomes active.
//! * The timer's interrupt is off while no program is armed, so that `wfi` waits.

use hal_api::{InterruptRegisters, SenderTable};

use crate::csr::{self, clear_csr, read_csr, set_csr, write_csr};

/// A program's software interrupt, in `sideleg`, `sie` and `sip`.
const SOFTWARE: u64 = 1 << 0;
/// A program's timer interrupt.
const TIMER: u64 = 1 << 4;
/// The bits of `ustatus`: interrupts are enabled, and were before the last trap.
const STATUS: u64 = 1 << 0 | 1 << 4;
/// The enabling bit of sender table and slot.
const ENABLE: u64 = 1 << 63;
/// Position of the number of pages in a sender table's register.
const PAGES_SHIFT: u32 = 44;
/// The largest table, in pages.
const MAXIMUM_PAGES: u64 = (1 << 12) - 1;

/// Prepares this hart for programs that take interrupts, before it runs any. According to the device tree, which the
/// platform has read, the harts have the N extension and UIPI, and the controller is at this physical address.
pub fn prepare_user_level(controller: u64) {
    // SAFETY: the platform guarantees that the registers exist. With nothing delegated and nothing enabled they have no
    // effect.
    unsafe {
        write_csr!(csr::SIDELEG, 0u64);
        write_csr!(csr::SEDELEG, 0u64);
        write_csr!(csr::SUIST, 0u64);
        write_csr!(csr::SUIRS, 0u64);
        write_csr!(csr::SUICFG, controller);
        write_csr!(csr::UTIMECMP, u64::MAX);
        clear_csr!(csr::SIE, SOFTWARE | TIMER);
        clear_csr!(csr::SIP, SOFTWARE);
    }
}

/// Loads a program's registers, and lets it receive in `slot` and send through `table`. The kernel activates the slot
/// afterwards.
pub fn arm(registers: &InterruptRegisters, slot: Option<u16>, table: Option<SenderTable>) {
    receive_in(slot);
    send_through(table);
    // SAFETY: the registers are the program's own and have an effect in user mode only.
    unsafe {
        write_csr!(csr::USTATUS, registers.status & STATUS);
        write_csr!(csr::UTVEC, registers.vector);
        write_csr!(csr::USCRATCH, registers.scratch);
        write_csr!(csr::UEPC, registers.interrupted);
        write_csr!(csr::UCAUSE, registers.cause);
        write_csr!(csr::UTVAL, 0u64);
        write_csr!(csr::UTIMECMP, registers.deadline);
        write_csr!(csr::SIDELEG, SOFTWARE | TIMER);
        set_csr!(csr::SIE, registers.enabled & (SOFTWARE | TIMER));
        // The slot of another program may have raised it since that one was disarmed.
        clear_csr!(csr::SIP, SOFTWARE);
        set_csr!(csr::SIP, if registers.notified != 0 { SOFTWARE } else { 0 });
    }
}

/// Lets the program receive in a slot.
pub fn receive_in(slot: Option<u16>) {
    // SAFETY: the controller only interrupts programs; the caller answers for the slot.
    unsafe { write_csr!(csr::SUIRS, slot.map_or(0, |slot| ENABLE | u64::from(slot))) };
}

/// Lets the program send through a table.
pub fn send_through(table: Option<SenderTable>) {
    let table = table
        .filter(|table| table.frames <= MAXIMUM_PAGES)
        .map_or(0, |table| ENABLE | table.frames << PAGES_SHIFT | table.first_frame & ((1 << PAGES_SHIFT) - 1));
    // SAFETY: the machine only reads the table, whose entries name slots and never memory; the caller answers for it.
    unsafe { write_csr!(csr::SUIST, table) };
}

/// Makes the program's software interrupt pending.
pub fn raise() {
    // SAFETY: the interrupt is the program's, and disabled while none is armed.
    unsafe { set_csr!(csr::SIP, SOFTWARE) };
}

/// Disables the program's interrupts, which stay pending.
pub fn disable() {
    // SAFETY: the program's own interrupts; it sees the bits in `uie`.
    unsafe { clear_csr!(csr::SIE, SOFTWARE | TIMER) };
}

/// Returns whether the program's software interrupt is pending.
#[inline(always)]
pub fn is_raised() -> bool {
    read_csr!(csr::SIP) & SOFTWARE != 0
}

/// Ends that the program's software interrupt is pending.
pub fn lower() {
    // SAFETY: as in `raise`.
    unsafe { clear_csr!(csr::SIP, SOFTWARE) };
}

/// Returns the program's registers, which stay in the hart.
#[inline(always)]
pub fn saved() -> InterruptRegisters {
    InterruptRegisters {
        status: read_csr!(csr::USTATUS),
        enabled: read_csr!(csr::UIE),
        vector: read_csr!(csr::UTVEC),
        scratch: read_csr!(csr::USCRATCH),
        interrupted: read_csr!(csr::UEPC),
        cause: read_csr!(csr::UCAUSE),
        deadline: read_csr!(csr::UTIMECMP),
        notified: u64::from(is_raised()),
    }
}

/// Takes the program's registers, interrupts and rights from the hart. The kernel has made the slot inactive before, so
/// that no other hart raises the interrupt again.
pub fn forget() {
    // SAFETY: no program's registers are loaded any more. The interrupts are disabled before the delegation ends, so
    // that they never reach the kernel.
    unsafe {
        clear_csr!(csr::SIE, SOFTWARE | TIMER);
        write_csr!(csr::SIDELEG, 0u64);
        write_csr!(csr::SUIST, 0u64);
        write_csr!(csr::SUIRS, 0u64);
        write_csr!(csr::UTIMECMP, u64::MAX);
        write_csr!(csr::USTATUS, 0u64);
        clear_csr!(csr::SIP, SOFTWARE);
    }
}

/// Returns the program's registers, and takes everything from the hart as [`forget`] does.
pub fn disarm() -> InterruptRegisters {
    let registers = saved();
    forget();
    registers
}
