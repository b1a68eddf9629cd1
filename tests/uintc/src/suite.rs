//! The tests.
//!
//! Each begins with nothing delegated, nothing pending and no slot in use ([`reset`]).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::code::*;
use crate::machine::*;

/// The reason of a failure: the line, and the two values that differ.
type Result = core::result::Result<(), (u32, u64, u64)>;

/// Ends a test unless two values are equal.
macro_rules! equal {
    ($found:expr, $expected:expr) => {{
        let (found, expected) = ($found as u64, $expected as u64);
        if found != expected {
            return Err((line!(), found, expected));
        }
    }};
}

/// Causes of exceptions.
const ILLEGAL: u64 = 2;
const BREAKPOINT: u64 = 3;
const LOAD_FAULT: u64 = 5;
const VIRTUAL_INSTRUCTION: u64 = 22;

const NONE: [u64; 5] = [0; 5];

static CODE: Code = Code::new();

/// Place of handlers in the code, behind what they interrupt.
const HANDLER: u64 = 32;

#[repr(C, align(4096))]
struct Table(UnsafeCell<[u64; 2 * 512]>);
// SAFETY: the tests change it on the hart that booted only.
unsafe impl Sync for Table {}
/// A sender table: one page of entries that the machine may look at, and one behind it that it may not.
static TABLE: Table = Table(UnsafeCell::new([0; 1024]));

const TABLE_ENABLE: u64 = 1 << 63;
const RECEIVER_ENABLE: u64 = 1 << 63;
const ONE_PAGE: u64 = 1 << 44;

/// Returns an entry of a sender table.
const fn entry(receiver: u64, vector: u64) -> u64 {
    receiver << 48 | vector << 16 | 1
}

fn set_entry(index: usize, entry: u64) {
    // SAFETY: one hart, and the machine reads the memory only in an instruction.
    unsafe { TABLE.0.get().cast::<u64>().add(index).write_volatile(entry) };
}

fn use_table() {
    write_csr!(SUIST, TABLE_ENABLE | ONE_PAGE | TABLE.0.get() as u64 >> 12);
}

/// The hart that booted, which the firmware draws by lot.
static OWN_HART: AtomicU64 = AtomicU64::new(0);
/// The mode of a slot that may interrupt.
const MODE_ACTIVE: u64 = 3;

/// Returns the register of a slot that may interrupt the hart that booted.
fn active_here() -> u64 {
    OWN_HART.load(Relaxed) << 16 | MODE_ACTIVE
}

/// A test: its name, and its function.
type Test = (&'static str, fn() -> Result);

/// All tests.
const TESTS: &[Test] = &[
    ("a program without delegated traps has no registers for them", registers_without_delegation),
    ("a program with delegated traps has its registers", registers),
    ("a program sees and enables delegated interrupts only", enables),
    ("a program can write the software interrupt's pending bit only", pending_bits),
    ("a program cannot reach the supervisor's registers", supervisor_registers),
    ("delegation registers hold only what can be delegated", delegation_registers),
    ("the user timer needs its own delegation", timer_delegation),
    ("a guest has neither registers nor uret", guests),
    ("uret needs a delegation", uret_without_delegation),
    ("uret returns and restores the interrupt enable", uret_returns),
    ("uret in supervisor mode goes to user mode", uret_of_the_supervisor),
    ("a delegated interrupt is taken in user mode", delivery),
    ("a vectored handler is reached by the cause", vectored),
    ("an interrupt waits until interrupts are enabled", waits_for_the_enable),
    ("an interrupt waits until its own bit is enabled", waits_for_its_bit),
    ("an interrupt waits while the supervisor runs", waits_for_user_mode),
    ("an interrupt that is pending across a trap is taken after it", pending_across_a_trap),
    ("a handler is not interrupted, and the next interrupt follows it", handlers_are_not_interrupted),
    ("an interrupt that is not delegated goes to the supervisor", not_delegated),
    ("an interrupt that is not delegated interrupts the supervisor", not_delegated_in_the_supervisor),
    ("delegation that ends hands a pending interrupt to the supervisor", delegation_ends),
    ("the supervisor's interrupts come first", supervisor_first),
    ("external comes before software, and software before timer", priorities),
    ("a delegated interrupt does not reach a guest", guests_are_not_interrupted),
    ("the user timer interrupts a loop", timer),
    ("the user timer's pending bit follows the register", timer_pending),
    ("a delegated exception is handled in user mode", exceptions),
    ("an exception of the supervisor is never delegated", exceptions_of_the_supervisor),
    ("instructions of UIPI are decoded strictly", decoder),
    ("UIPI is refused without a table and a slot", without_rights),
    ("UIPI is refused to a guest", uipi_of_guests),
    ("a send reaches the slot and vector of its entry", send),
    ("a send through no valid entry is refused", invalid_entries),
    ("a send through memory of the firmware is refused", protected_table),
    ("a send and its handler need no trap", send_to_itself),
    ("a receiver reads, adds to and clears its vectors", read_and_write),
    ("a receiver that is not active is not interrupted", activation),
    ("slots keep hart and mode apart from vectors", slot_registers),
    ("a slot refuses accesses to a half", halves),
    ("a slot for no hart interrupts none", no_such_hart),
    ("a send reaches another hart", another_hart),
];

/// Runs every test and ends the machine.
pub fn main(hart: u64, device_tree: *const u8) -> ! {
    OWN_HART.store(hart, Relaxed);
    let (mut passed, mut failed) = (0, 0);
    let mut note = |name: &str, result: Result| match result {
        Ok(()) => {
            passed += 1;
            print(format_args!("ok      {name}"));
        }
        Err((line, found, expected)) => {
            failed += 1;
            print(format_args!("FAILED  {name}: line {line}: {found:#x} is not {expected:#x}"));
        }
    };
    let named = device_tree_contains(device_tree, b"riscv,uintc0\0");
    note("the device tree names the controller", if named { Ok(()) } else { Err((line!(), 0, 1)) });
    for (name, test) in TESTS {
        reset();
        note(name, test());
    }
    print(format_args!("uintc: {passed} passed, {failed} failed"));
    end(failed == 0)
}

fn reset() {
    write_csr!(SIDELEG, 0);
    write_csr!(SEDELEG, 0);
    write_csr!(SIE, 0);
    clear_csr!(SIP, USI | SSI | UEI);
    write_csr!(UTIMECMP, u64::MAX);
    write_csr!(UTVEC, CODE.address(HANDLER));
    write_csr!(UEPC, 0);
    write_csr!(UCAUSE, 0);
    write_csr!(SUIST, 0);
    write_csr!(SUIRS, 0);
    write_csr!(SUICFG, UINTC);
    for slot in 0..8 {
        write_slot(slot, SLOT_LOW, 0);
        read_slot(slot, SLOT_HIGH);
    }
    for index in 0..1024 {
        set_entry(index, 0);
    }
}

/// Runs instructions in user mode.
fn user(instructions: &[u32]) -> Outcome {
    CODE.run(Mode::User, instructions, 0, NONE)
}

/// Runs instructions in user mode, and others as their handler. The handler is at [`HANDLER`].
fn user_with_handler(instructions: &[u32], handler: &[u32], status: u64, arguments: [u64; 5]) -> Outcome {
    let mut all = [NOP; 64];
    all[..instructions.len()].copy_from_slice(instructions);
    all[HANDLER as usize..][..handler.len()].copy_from_slice(handler);
    CODE.run(Mode::User, &all, status, arguments)
}

/// A handler that shows what it was called for and ends the code.
const SHOW: [u32; 4] = [csrr(A0, UCAUSE), csrr(A1, UEPC), csrr(A2, USTATUS), EBREAK];

fn delegate_software() {
    write_csr!(SIDELEG, USI);
    set_csr!(SIE, USI);
}

const OF_THE_PROGRAM: [u32; 8] = [USTATUS, UIE, UTVEC, USCRATCH, UEPC, UCAUSE, UTVAL, UIP];

fn registers_without_delegation() -> Result {
    for csr in OF_THE_PROGRAM.into_iter().chain([UTIMECMP]) {
        for instruction in [csrr(A0, csr), csrrw(ZERO, csr, A0), csrrw(A0, csr, A1), csrsi(csr, 1)] {
            let outcome = user(&[NOP, instruction, EBREAK]);
            equal!(outcome.cause, ILLEGAL);
            equal!(outcome.at, 1);
            equal!(outcome.value, instruction);
        }
    }
    Ok(())
}

fn registers() -> Result {
    // Either kind of delegation is enough.
    for (interrupts, exceptions) in [(USI, 0), (UTI, 0), (UEI, 0), (0, 1 << BREAKPOINT)] {
        write_csr!(SIDELEG, interrupts);
        write_csr!(SEDELEG, exceptions);
        let outcome = CODE.run(Mode::User, &[csrrw(A0, USCRATCH, A1), csrr(A2, USCRATCH), ECALL], 0, [0, 77, 0, 0, 0]);
        equal!(outcome.cause, 8);
        equal!(outcome.results[2], 77);
    }
    write_csr!(SEDELEG, 0);
    write_csr!(SIDELEG, USI);
    let all = u64::MAX;
    for (csr, written, expected) in [
        (USTATUS, all, STATUS_UIE | STATUS_UPIE),
        (USTATUS, 0, 0),
        (UTVEC, 0x1235, 0x1235),
        // A reserved mode changes nothing.
        (UTVEC, all, 0x1235),
        (USCRATCH, all, all),
        (UEPC, all, all - 1),
        (UCAUSE, all, all),
        (UTVAL, all, all),
    ] {
        let outcome = CODE.run(Mode::User, &[csrrw(ZERO, csr, A1), csrr(A0, csr), EBREAK], 0, [0, written, 0, 0, 0]);
        equal!(outcome.cause, BREAKPOINT);
        equal!(outcome.results[0], expected);
    }
    Ok(())
}

fn enables() -> Result {
    for delegated in [USI, UTI, UEI, USI | UEI] {
        write_csr!(SIDELEG, delegated);
        write_csr!(SIE, 0);
        let outcome = CODE.run(Mode::User, &[csrrw(ZERO, UIE, A1), csrr(A0, UIE), EBREAK], 0, [0, u64::MAX, 0, 0, 0]);
        equal!(outcome.cause, BREAKPOINT);
        equal!(outcome.results[0], delegated);
        equal!(read_csr!(SIE), delegated);
        // The supervisor's bits are no part of it.
        write_csr!(SIE, USI | UTI | UEI | SSI);
        let outcome = CODE.run(Mode::User, &[csrrw(A0, UIE, ZERO), EBREAK], 0, NONE);
        equal!(outcome.results[0], delegated);
        equal!(read_csr!(SIE), (USI | UTI | UEI | SSI) & !delegated);
    }
    Ok(())
}

fn pending_bits() -> Result {
    write_csr!(SIDELEG, USI | UTI | UEI);
    let outcome = CODE.run(Mode::User, &[csrrw(ZERO, UIP, A1), csrr(A0, UIP), EBREAK], 0, [0, u64::MAX, 0, 0, 0]);
    equal!(outcome.results[0], USI);
    equal!(read_csr!(SIP) & (USI | UTI | UEI | SSI), USI);
    // Not delegated: neither seen nor written.
    write_csr!(SIDELEG, UEI);
    let outcome = CODE.run(Mode::User, &[csrrw(A0, UIP, ZERO), EBREAK], 0, NONE);
    equal!(outcome.results[0], 0);
    equal!(read_csr!(SIP) & USI, USI);
    // The supervisor writes the external one's too, and not the timer's.
    set_csr!(SIP, UEI | UTI);
    equal!(read_csr!(SIP) & (UEI | UTI), UEI);
    Ok(())
}

fn supervisor_registers() -> Result {
    write_csr!(SIDELEG, USI | UTI | UEI);
    write_csr!(SEDELEG, 1 << BREAKPOINT);
    for csr in [SSTATUS, SIE, SIP, SEDELEG, SIDELEG, SUIST, SUIRS, SUICFG] {
        for instruction in [csrr(A0, csr), csrrw(A0, csr, A0)] {
            let outcome = user(&[instruction, ECALL]);
            equal!(outcome.cause, ILLEGAL);
            equal!(outcome.at, 0);
        }
    }
    equal!(read_csr!(SIDELEG), USI | UTI | UEI);
    Ok(())
}

fn delegation_registers() -> Result {
    write_csr!(SIDELEG, u64::MAX);
    equal!(read_csr!(SIDELEG), USI | UTI | UEI);
    write_csr!(SEDELEG, u64::MAX);
    // Not: calls of the supervisor and of machine mode, and what only a guest can cause.
    equal!(read_csr!(SEDELEG), 0xb1ff);
    write_csr!(SIDELEG, 0);
    write_csr!(SEDELEG, 0);
    equal!(read_csr!(SIDELEG) | read_csr!(SEDELEG), 0);
    Ok(())
}

fn timer_delegation() -> Result {
    write_csr!(SIDELEG, USI | UEI);
    equal!(user(&[csrr(A0, UTIMECMP), EBREAK]).cause, ILLEGAL);
    write_csr!(SIDELEG, UTI);
    let code = [csrrw(ZERO, UTIMECMP, A1), csrr(A0, UTIMECMP), EBREAK];
    let outcome = CODE.run(Mode::User, &code, 0, [0, u64::MAX - 1, 0, 0, 0]);
    equal!(outcome.cause, BREAKPOINT);
    equal!(outcome.results[0], u64::MAX - 1);
    Ok(())
}

fn guests() -> Result {
    write_csr!(SIDELEG, USI | UTI | UEI);
    for mode in [Mode::GuestUser, Mode::GuestSupervisor] {
        for instruction in [csrr(A0, USTATUS), csrrw(A0, USCRATCH, A0), csrr(A0, UTIMECMP), URET] {
            let outcome = CODE.run(mode, &[instruction, EBREAK], 0, NONE);
            equal!(outcome.cause, VIRTUAL_INSTRUCTION);
            equal!(outcome.at, 0);
        }
    }
    Ok(())
}

fn uret_without_delegation() -> Result {
    let outcome = user(&[URET, EBREAK]);
    equal!(outcome.cause, ILLEGAL);
    equal!(outcome.value, URET);
    Ok(())
}

fn uret_returns() -> Result {
    write_csr!(SIDELEG, USI);
    for former in [0, STATUS_UPIE] {
        write_csr!(UEPC, CODE.address(3));
        let outcome = CODE.run(Mode::User, &[URET, NOP, NOP, csrr(A0, USTATUS), EBREAK], former, NONE);
        equal!(outcome.cause, BREAKPOINT);
        equal!(outcome.at, 4);
        equal!(outcome.results[0], STATUS_UPIE | if former == 0 { 0 } else { STATUS_UIE });
    }
    Ok(())
}

fn uret_of_the_supervisor() -> Result {
    // As a return of a higher mode for a lower one: it takes off the user's level, and goes to user mode.
    write_csr!(UEPC, CODE.address(2));
    let outcome = CODE.run(Mode::Supervisor, &[URET, EBREAK, csrr(A0, SSTATUS), EBREAK], STATUS_UPIE, NONE);
    equal!(outcome.cause, ILLEGAL);
    equal!(outcome.at, 2);
    equal!(outcome.status & (STATUS_UIE | STATUS_UPIE), STATUS_UIE | STATUS_UPIE);
    Ok(())
}

fn delivery() -> Result {
    delegate_software();
    let outcome = user_with_handler(&[NOP, csrsi(UIP, 1), NOP, EBREAK], &SHOW, STATUS_UIE, NONE);
    equal!(outcome.cause, BREAKPOINT);
    equal!(outcome.at, HANDLER + 3);
    equal!(outcome.results[0], INTERRUPT);
    equal!(outcome.results[1], CODE.address(2));
    equal!(outcome.results[2], STATUS_UPIE);
    // And back: the handler clears the interrupt and returns.
    clear_csr!(SIP, USI);
    let handler = [csrci(UIP, 1), addi(A3, A3, 1), URET];
    let outcome =
        user_with_handler(&[csrsi(UIP, 1), addi(A4, A4, 1), csrr(A0, USTATUS), EBREAK], &handler, STATUS_UIE, NONE);
    equal!(outcome.at, 3);
    equal!(outcome.results[0], STATUS_UIE | STATUS_UPIE);
    equal!(outcome.results[3], 1);
    equal!(outcome.results[4], 1);
    Ok(())
}

fn vectored() -> Result {
    write_csr!(SIDELEG, USI | UEI);
    set_csr!(SIE, USI | UEI);
    write_csr!(UTVEC, CODE.address(HANDLER) | 1);
    for (interrupt, number) in [(USI, 0), (UEI, 8)] {
        set_csr!(SIP, interrupt);
        let outcome = user_with_handler(&[NOP, EBREAK], &[EBREAK; 16], STATUS_UIE, NONE);
        equal!(outcome.at, HANDLER + number);
        clear_csr!(SIP, interrupt);
    }
    Ok(())
}

fn waits_for_the_enable() -> Result {
    delegate_software();
    let outcome = user_with_handler(&[csrsi(UIP, 1), NOP, NOP, EBREAK], &SHOW, 0, NONE);
    equal!(outcome.at, 3);
    let outcome = user_with_handler(&[NOP, NOP, csrsi(USTATUS, 1), NOP, EBREAK], &SHOW, 0, NONE);
    equal!(outcome.at, HANDLER + 3);
    equal!(outcome.results[1], CODE.address(3));
    Ok(())
}

fn waits_for_its_bit() -> Result {
    write_csr!(SIDELEG, USI);
    set_csr!(SIP, USI);
    let outcome = user_with_handler(&[NOP, NOP, csrsi(UIE, 1), NOP, EBREAK], &SHOW, STATUS_UIE, NONE);
    equal!(outcome.at, HANDLER + 3);
    equal!(outcome.results[1], CODE.address(3));
    Ok(())
}

fn waits_for_user_mode() -> Result {
    delegate_software();
    let code = [csrrs(ZERO, SIP, A1), NOP, NOP, csrr(A0, SIP), EBREAK];
    let outcome = CODE.run(Mode::Supervisor, &code, STATUS_UIE | SUPERVISOR_INTERRUPTS, [0, USI, 0, 0, 0]);
    equal!(outcome.cause, BREAKPOINT);
    equal!(outcome.at, 4);
    equal!(outcome.results[0] & USI, USI);
    // The first instruction in user mode is the handler's.
    let outcome = user_with_handler(&[NOP, EBREAK], &SHOW, STATUS_UIE, NONE);
    equal!(outcome.at, HANDLER + 3);
    equal!(outcome.results[1], CODE.address(0));
    Ok(())
}

fn pending_across_a_trap() -> Result {
    delegate_software();
    let outcome = user_with_handler(&[csrsi(UIP, 1), EBREAK, NOP, EBREAK], &SHOW, 0, NONE);
    equal!(outcome.at, 1);
    equal!(read_csr!(SIP) & USI, USI);
    let outcome = CODE.resume(Mode::User, 2, STATUS_UIE, NONE);
    equal!(outcome.at, HANDLER + 3);
    equal!(outcome.results[0], INTERRUPT);
    equal!(outcome.results[1], CODE.address(2));
    // A trap within the handler leaves the user's level as it is.
    equal!(outcome.status & (STATUS_UIE | STATUS_UPIE), STATUS_UPIE);
    Ok(())
}

fn handlers_are_not_interrupted() -> Result {
    delegate_software();
    // The first call leaves the interrupt pending, which only then is taken again.
    let handler = [addi(A3, A3, 1), addi(A1, A3, -2), bnez(A1, 2), csrci(UIP, 1), NOP, URET];
    let outcome = user_with_handler(&[csrsi(UIP, 1), NOP, EBREAK], &handler, STATUS_UIE, NONE);
    equal!(outcome.cause, BREAKPOINT);
    equal!(outcome.at, 2);
    equal!(outcome.results[3], 2);
    Ok(())
}

fn not_delegated() -> Result {
    set_csr!(SIE, USI);
    set_csr!(SIP, USI);
    let outcome = user_with_handler(&[NOP, EBREAK], &SHOW, STATUS_UIE, NONE);
    equal!(outcome.cause, INTERRUPT);
    equal!(outcome.at, 0);
    Ok(())
}

fn not_delegated_in_the_supervisor() -> Result {
    set_csr!(SIE, USI);
    let code = [csrrs(ZERO, SIP, A1), NOP, EBREAK];
    let outcome = CODE.run(Mode::Supervisor, &code, SUPERVISOR_INTERRUPTS, [0, USI, 0, 0, 0]);
    equal!(outcome.cause, INTERRUPT);
    equal!(outcome.at, 1);
    let outcome = CODE.run(Mode::Supervisor, &code, 0, [0, USI, 0, 0, 0]);
    equal!(outcome.cause, BREAKPOINT);
    Ok(())
}

fn delegation_ends() -> Result {
    delegate_software();
    set_csr!(SIP, USI);
    equal!(user_with_handler(&[NOP, EBREAK], &SHOW, 0, NONE).cause, BREAKPOINT);
    write_csr!(SIDELEG, 0);
    let outcome = user_with_handler(&[NOP, EBREAK], &SHOW, 0, NONE);
    equal!(outcome.cause, INTERRUPT);
    equal!(outcome.at, 0);
    Ok(())
}

fn supervisor_first() -> Result {
    delegate_software();
    set_csr!(SIE, SSI);
    set_csr!(SIP, USI | SSI);
    let outcome = user_with_handler(&[NOP, EBREAK], &SHOW, STATUS_UIE, NONE);
    equal!(outcome.cause, INTERRUPT | 1);
    equal!(outcome.at, 0);
    equal!(outcome.status & STATUS_UIE, STATUS_UIE);
    clear_csr!(SIP, SSI);
    equal!(CODE.resume(Mode::User, 0, STATUS_UIE, NONE).at, HANDLER + 3);
    Ok(())
}

fn priorities() -> Result {
    write_csr!(SIDELEG, USI | UTI | UEI);
    set_csr!(SIE, USI | UTI | UEI);
    set_csr!(SIP, USI | UEI);
    write_csr!(UTIMECMP, 0);
    for (number, cleared) in [(8, UEI), (0, USI), (4, UTI)] {
        let outcome = user_with_handler(&[NOP, EBREAK], &SHOW, STATUS_UIE, NONE);
        equal!(outcome.results[0], INTERRUPT | number);
        clear_csr!(SIP, cleared);
    }
    Ok(())
}

fn guests_are_not_interrupted() -> Result {
    delegate_software();
    set_csr!(SIP, USI);
    for mode in [Mode::GuestUser, Mode::GuestSupervisor] {
        let outcome = CODE.run(mode, &[NOP, NOP, NOP, EBREAK], STATUS_UIE | SUPERVISOR_INTERRUPTS, NONE);
        equal!(outcome.cause, BREAKPOINT);
        equal!(outcome.at, 3);
    }
    equal!(read_csr!(SIP) & USI, USI);
    Ok(())
}

fn timer() -> Result {
    write_csr!(SIDELEG, UTI);
    set_csr!(SIE, UTI);
    write_csr!(UTIMECMP, now() + 10_000);
    // The loop ends by itself, much later, if nothing interrupts it.
    let code = [addi(A0, A0, -1), bnez(A0, -1), EBREAK];
    let handler = [csrr(A0, UCAUSE), csrrw(ZERO, UTIMECMP, A1), csrr(A2, UIP), EBREAK];
    let outcome = user_with_handler(&code, &handler, STATUS_UIE, [1 << 40, u64::MAX, 0, 0, 0]);
    equal!(outcome.at, HANDLER + 3);
    equal!(outcome.results[0], INTERRUPT | 4);
    equal!(outcome.results[2], 0);
    Ok(())
}

fn timer_pending() -> Result {
    write_csr!(UTIMECMP, 0);
    equal!(read_csr!(SIP) & UTI, UTI);
    clear_csr!(SIP, UTI);
    equal!(read_csr!(SIP) & UTI, UTI);
    write_csr!(UTIMECMP, now() + (1 << 40));
    equal!(read_csr!(SIP) & UTI, 0);
    write_csr!(UTIMECMP, now());
    equal!(read_csr!(SIP) & UTI, UTI);
    write_csr!(UTIMECMP, u64::MAX);
    equal!(read_csr!(SIP) & UTI, 0);
    Ok(())
}

fn exceptions() -> Result {
    write_csr!(SEDELEG, 1 << BREAKPOINT);
    let handler = [csrr(A0, UCAUSE), csrr(A1, UEPC), csrr(A2, USTATUS), ECALL];
    let outcome = user_with_handler(&[NOP, EBREAK, NOP], &handler, STATUS_UIE, NONE);
    equal!(outcome.cause, 8);
    equal!(outcome.results[0], BREAKPOINT);
    equal!(outcome.results[1], CODE.address(1));
    equal!(outcome.results[2], STATUS_UPIE);
    // A guest's does not come here.
    equal!(CODE.run(Mode::GuestUser, &[NOP, EBREAK], 0, NONE).cause, BREAKPOINT);
    Ok(())
}

fn exceptions_of_the_supervisor() -> Result {
    write_csr!(SEDELEG, 1 << BREAKPOINT);
    let outcome = CODE.run(Mode::Supervisor, &[NOP, EBREAK], STATUS_UIE, NONE);
    equal!(outcome.cause, BREAKPOINT);
    equal!(outcome.at, 1);
    Ok(())
}

/// Makes this hart a receiver in slot 1 that may send to itself through entry 0.
fn receive() {
    write_csr!(SUIRS, RECEIVER_ENABLE | 1);
    write_slot(1, SLOT_LOW, active_here());
    set_entry(0, entry(1, 5));
    use_table();
}

fn decoder() -> Result {
    receive();
    let is_refused = |instruction| {
        let outcome = user(&[instruction, EBREAK]);
        outcome.cause == ILLEGAL && outcome.value == u64::from(instruction)
    };
    for (function, rd, rs1) in [(SEND, 0, A0), (READ, A0, 0), (WRITE, 0, A0), (ACTIVATE, 0, 0), (DEACTIVATE, 0, 0)] {
        equal!(user(&[uipi(function, rd, rs1), EBREAK]).cause, BREAKPOINT);
        // Fields that the instruction does not use are zero.
        equal!(is_refused(custom3(function, 1, rs1, 6, rd)), true);
        equal!(is_refused(uipi(function, if rd == 0 { A0 } else { rd }, if rd == 0 { rs1 } else { A1 })), true);
        equal!(is_refused(uipi(function, if rs1 == 0 { rd | 1 } else { A0 }, if rd == 0 { A1 } else { A0 })), true);
        for other in [0, 1, 2, 3, 4, 5, 7] {
            equal!(is_refused(custom3(function, 0, rs1, other, rd)), true);
        }
    }
    for function in 5..128 {
        equal!(is_refused(uipi(function, 0, 0)), true);
    }
    Ok(())
}

const OF_UIPI: [u32; 5] =
    [uipi(SEND, 0, 0), uipi(READ, A0, 0), uipi(WRITE, 0, A0), uipi(ACTIVATE, 0, 0), uipi(DEACTIVATE, 0, 0)];

fn without_rights() -> Result {
    receive();
    for instruction in OF_UIPI {
        equal!(user(&[instruction, EBREAK]).cause, BREAKPOINT);
    }
    // The names alone, without the enabling bits.
    write_csr!(SUIST, read_csr!(SUIST) & !TABLE_ENABLE);
    write_csr!(SUIRS, 1);
    for instruction in OF_UIPI {
        equal!(user(&[instruction, EBREAK]).cause, ILLEGAL);
    }
    // A slot that does not exist.
    for slot in [SLOTS, 0xffff] {
        write_csr!(SUIRS, RECEIVER_ENABLE | slot);
        equal!(user(&[uipi(READ, A0, 0), EBREAK]).cause, ILLEGAL);
    }
    Ok(())
}

fn uipi_of_guests() -> Result {
    receive();
    for mode in [Mode::GuestUser, Mode::GuestSupervisor] {
        for instruction in OF_UIPI {
            equal!(CODE.run(mode, &[instruction, EBREAK], 0, NONE).cause, ILLEGAL);
        }
    }
    Ok(())
}

fn send() -> Result {
    use_table();
    // Every vector, by entries that lie at both ends of the table.
    for vector in 0..64 {
        let index = if vector < 32 { vector } else { 511 - vector };
        set_entry(index as usize, entry(2, vector));
        let outcome = CODE.run(Mode::User, &[uipi(SEND, 0, A0), EBREAK], 0, [index, 0, 0, 0, 0]);
        equal!(outcome.cause, BREAKPOINT);
        equal!(read_slot(2, SLOT_HIGH), 1_u64 << vector);
    }
    set_entry(3, entry(SLOTS - 1, 63));
    equal!(CODE.run(Mode::User, &[uipi(SEND, 0, A0), EBREAK], 0, [3, 0, 0, 0, 0]).cause, BREAKPOINT);
    equal!(read_slot(SLOTS - 1, SLOT_HIGH), 1_u64 << 63);
    equal!(read_slot(2, SLOT_HIGH), 0);
    Ok(())
}

fn invalid_entries() -> Result {
    use_table();
    let send = |index: u64| CODE.run(Mode::User, &[uipi(SEND, 0, A0), EBREAK], 0, [index, 0, 0, 0, 0]).cause;
    // Behind the table there are good entries.
    set_entry(512, entry(2, 1));
    set_entry(513, entry(2, 1));
    for index in [512, 513, 1 << 32, 1 << 61, u64::MAX, u64::MAX - 511] {
        equal!(send(index), ILLEGAL);
    }
    set_entry(7, entry(2, 1) & !1);
    equal!(send(7), ILLEGAL);
    set_entry(7, entry(SLOTS, 1));
    equal!(send(7), ILLEGAL);
    set_entry(7, entry(0xffff, 1));
    equal!(send(7), ILLEGAL);
    // A table without pages.
    set_entry(7, entry(2, 1));
    write_csr!(SUIST, read_csr!(SUIST) - ONE_PAGE);
    equal!(send(7), ILLEGAL);
    equal!(read_slot(2, SLOT_HIGH), 0);
    // A vector that a slot does not have reaches nothing.
    use_table();
    for vector in [64, 65, 0xffff] {
        set_entry(7, entry(2, vector));
        equal!(send(7), BREAKPOINT);
        equal!(read_slot(2, SLOT_HIGH), 0);
    }
    Ok(())
}

fn protected_table() -> Result {
    for address in [0x8000_0000_u64, 0x1000] {
        write_csr!(SUIST, TABLE_ENABLE | ONE_PAGE | address >> 12);
        equal!(user(&[uipi(SEND, 0, 0), EBREAK]).cause, ILLEGAL);
    }
    Ok(())
}

fn send_to_itself() -> Result {
    receive();
    delegate_software();
    let handler = [uipi(READ, A0, 0), csrci(UIP, 1), csrr(A1, UEPC), addi(A3, A3, 1), URET];
    let outcome = user_with_handler(&[NOP, uipi(SEND, 0, 0), NOP, EBREAK], &handler, STATUS_UIE, NONE);
    equal!(outcome.cause, BREAKPOINT);
    equal!(outcome.at, 3);
    equal!(outcome.results[0], 1_u64 << 5);
    equal!(outcome.results[1], CODE.address(2));
    equal!(outcome.results[3], 1);
    equal!(read_slot(1, SLOT_HIGH), 0);
    // The line stays until software lowers it.
    equal!(user(&[uipi(SEND, 0, 0), uipi(READ, A0, 0), EBREAK]).results[0], 1_u64 << 5);
    equal!(read_csr!(SIP) & USI, USI);
    Ok(())
}

fn read_and_write() -> Result {
    receive();
    let vectors = 1 << 63 | 1 << 40 | 1;
    let code = [uipi(WRITE, 0, A1), uipi(WRITE, 0, A2), uipi(READ, A0, 0), uipi(READ, A3, 0), EBREAK];
    let outcome = CODE.run(Mode::User, &code, 0, [0, vectors, 6, 0, 0]);
    equal!(outcome.cause, BREAKPOINT);
    equal!(outcome.results[0], vectors | 6);
    equal!(outcome.results[3], 0);
    equal!(read_csr!(SIP) & USI, USI);
    Ok(())
}

fn activation() -> Result {
    receive();
    let is_raised = || read_csr!(SIP) & USI;
    let code = [uipi(DEACTIVATE, 0, 0), uipi(SEND, 0, 0), EBREAK, uipi(ACTIVATE, 0, 0), EBREAK];
    equal!(user(&code).at, 2);
    equal!(is_raised(), 0);
    equal!(read_slot(1, SLOT_ACTIVE), 0);
    equal!(read_slot(1, SLOT_LOW), active_here() & !1);
    equal!(CODE.resume(Mode::User, 3, 0, NONE).at, 4);
    equal!(is_raised(), USI);
    equal!(read_slot(1, SLOT_HIGH), 1_u64 << 5);
    // Each of the two bits of the mode is needed.
    for mode in 0..3 {
        clear_csr!(SIP, USI);
        write_slot(1, SLOT_LOW, active_here() & !MODE_ACTIVE | mode);
        write_slot(1, SLOT_SEND, 9);
        equal!(is_raised(), 0);
    }
    write_slot(1, SLOT_LOW, active_here());
    equal!(is_raised(), USI);
    // Nothing pending, nothing raised.
    read_slot(1, SLOT_HIGH);
    clear_csr!(SIP, USI);
    write_slot(1, SLOT_LOW, active_here());
    write_slot(1, SLOT_ACTIVE, 1);
    write_slot(1, SLOT_HIGH, 0);
    equal!(is_raised(), 0);
    Ok(())
}

fn slot_registers() -> Result {
    write_slot(4, SLOT_LOW, !3);
    equal!(read_slot(4, SLOT_LOW), 0xffff_0000);
    write_slot(4, SLOT_HIGH, 0xf0f0);
    equal!(read_slot(4, SLOT_LOW), 0xffff_0000);
    write_slot(4, SLOT_LOW, 2);
    equal!(read_slot(4, SLOT_HIGH), 0xf0f0);
    equal!(read_slot(4, SLOT_HIGH), 0);
    equal!(read_slot(4, SLOT_SEND), 0);
    equal!(read_slot(5, SLOT_LOW), 0);
    Ok(())
}

fn halves() -> Result {
    write_slot(4, SLOT_HIGH, 0xff);
    let address = UINTC + 4 * 32 + SLOT_HIGH;
    let outcome = CODE.run(Mode::Supervisor, &[lw(A0, A1), EBREAK], 0, [0, address, 0, 0, 0]);
    equal!(outcome.cause, LOAD_FAULT);
    equal!(outcome.value, address);
    let outcome = CODE.run(Mode::Supervisor, &[ld(A0, A1), EBREAK], 0, [0, address, 0, 0, 0]);
    equal!(outcome.cause, BREAKPOINT);
    equal!(outcome.results[0], 0xff);
    Ok(())
}

fn no_such_hart() -> Result {
    write_slot(4, SLOT_LOW, 0xff << 16 | MODE_ACTIVE);
    write_slot(4, SLOT_SEND, 1);
    equal!(read_csr!(SIP) & USI, 0);
    equal!(read_slot(4, SLOT_HIGH), 2);
    Ok(())
}

/// The other hart's state: 1 when it receives, 2 at its end.
static OTHER: AtomicU64 = AtomicU64::new(0);
/// The vectors that its handler took.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static OTHER_CODE: Code = Code::new();
static OTHER_CAUSE: AtomicU64 = AtomicU64::new(0);

const OTHER_SLOT: u64 = 6;

/// Waits, as a program, until its handler has taken an interrupt of another hart.
pub fn other_hart(hart: u64) -> ! {
    write_csr!(SIDELEG, USI);
    write_csr!(SIE, USI);
    write_csr!(SUICFG, UINTC);
    write_csr!(SUIRS, RECEIVER_ENABLE | OTHER_SLOT);
    write_csr!(UTVEC, OTHER_CODE.address(HANDLER));
    write_slot(OTHER_SLOT, SLOT_LOW, hart << 16 | MODE_ACTIVE);
    let mut code = [NOP; 64];
    // Tells that it waits; a2 is the address of the state, and the handler sets a4.
    code[..4].copy_from_slice(&[addi(A3, ZERO, 1), sd(A3, A2), beqz(A4, 0), EBREAK]);
    let handler = [uipi(READ, A0, 0), csrci(UIP, 1), sd(A0, A1), addi(A4, ZERO, 1), URET];
    code[HANDLER as usize..][..handler.len()].copy_from_slice(&handler);
    let arguments = [0, TAKEN.as_ptr() as u64, OTHER.as_ptr() as u64, 0, 0];
    let outcome = OTHER_CODE.run(Mode::User, &code, STATUS_UIE, arguments);
    OTHER_CAUSE.store(outcome.cause, Release);
    OTHER.store(2, Release);
    loop {
        wait();
    }
}

fn another_hart() -> Result {
    equal!(start_hart(1 - OWN_HART.load(Relaxed)), true);
    let deadline = now() + 20 * 10_000_000;
    while OTHER.load(Acquire) == 0 && now() < deadline {}
    equal!(OTHER.load(Acquire), 1);
    set_entry(0, entry(OTHER_SLOT, 33));
    use_table();
    equal!(user(&[uipi(SEND, 0, 0), EBREAK]).cause, BREAKPOINT);
    while OTHER.load(Acquire) == 1 && now() < deadline {}
    equal!(OTHER.load(Acquire), 2);
    // Nothing but the end of its code has brought it to the supervisor.
    equal!(OTHER_CAUSE.load(Acquire), BREAKPOINT);
    equal!(TAKEN.load(Acquire), 1_u64 << 33);
    // The sender's hart has seen nothing.
    equal!(read_csr!(SIP) & USI, 0);
    Ok(())
}
