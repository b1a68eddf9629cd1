//! User interrupts: a running thread receives its notification's signals without a call of the kernel.
//!
//! [`receive`] binds a notification to a thread and registers this module's handler. From then on the badges of signals
//! are collected in a word of the thread's own, between one instruction and the next: [`take`] takes it, [`is_pending`]
//! is a load. A sender needs, as always, a capability with the right to signal; its badge is passed to the handler.
//!
//! The handler does no more than that, because it may have interrupted any code. The signal is acted upon where the
//! word is read; the [`executor`](crate::executor) reads it before each poll.
//!
//! **Waiting.** A thread that looks at its word, finds no signal and waits would miss a signal whose interrupt came
//! between the two. [`wait`] does both, and the handler restarts an interrupted `wait`.
//!
//! A badge of 0 carries no bit; the word shows its signal as bit 0, [`RINGS`](crate::executor::RINGS).
//!
//! **Without the kernel.** After [`receive_stores`] signals can come as stores, or as the instruction `uipi_send` where
//! the machine has that instead, and a [`Signaller`] sends them so from its first signal on. A sender for which that is
//! impossible signals through the kernel, and the receiver sees no difference.
//!
//! The word is the field of the thread's IPC buffer that seL4 leaves to programs.

use core::sync::atomic::{AtomicU64, Ordering};

use abi_sel4::object::PAGE_BITS;
use abi_sel4::{Error, ObjectType};

use crate::Allocator;
use crate::capability::{Arrival, Notification, PageTable, Thread, initial};
use crate::mapping::Window;
use crate::raw::Result;

/// Offset of the word in the IPC buffer.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const WORD: usize = core::mem::offset_of!(abi_sel4::IpcBuffer, user_data);
/// The register of the highest identity that is pending in the thread's interrupt file; a write claims it.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const STOPEI: usize = 0x15c;
/// The external interrupt in `sie`.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const EXTERNAL: usize = 1 << 9;
/// The register with the enable bits of a user's interrupts; bit 0 is the software interrupt.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const UIE: usize = 0x004;
/// The register with a user's pending interrupts.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const UIP: usize = 0x044;
/// The scratch register of a user's handler.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const USCRATCH: usize = 0x040;
/// The address of the interrupted instruction.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const UEPC: usize = 0x041;
/// Number of stores without news that may interrupt a thread that does not read its word; after them external
/// interrupts are disabled until the kernel's next tick.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const ENOUGH: usize = 64;

// The handler uses 16 bytes of the interrupted code's stack, and restores every register. An address in the sequence of
// `sel4_wait_for_signals` before its system call is done becomes that of its beginning.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
core::arch::global_asm!(
    ".section .text",
    // The assembler does not get the target's features from the compiler.
    ".option push",
    ".option arch, +a",
    ".balign 4",
    ".globl sel4_user_interrupt",
    "sel4_user_interrupt:",
    "addi sp, sp, -16",
    "sd t0, 0(sp)",
    "sd t1, 8(sp)",
    "seqz t0, a0",
    "or a0, a0, t0",
    "addi t0, tp, {word}",
    "amoor.d zero, a0, (t0)",
    "lla t0, 20f",
    "lla t1, 21f",
    "bltu a7, t0, 1f",
    "bgeu a7, t1, 1f",
    "mv a7, t0",
    "1:",
    "mv a0, a7",
    "ld t0, 0(sp)",
    "ld t1, 8(sp)",
    "addi sp, sp, 16",
    "li a7, {return_from}",
    "ecall",
    "unimp",
    // A supervisor's external interrupt: takes the identities pending in the file, each of which stands for the bit
    // below it.
    ".balign 4",
    ".globl sel4_store_interrupt",
    "sel4_store_interrupt:",
    "addi sp, sp, -32",
    "sd t0, 0(sp)",
    "sd t1, 8(sp)",
    "sd t2, 16(sp)",
    "csrrw t0, {stopei}, zero",
    "srli t0, t0, 16",
    "beqz t0, 4f",
    "addi t0, t0, -1",
    "li t1, 1",
    "sll t1, t1, t0",
    "addi t0, tp, {word}",
    "amoor.d t2, t1, (t0)",
    "and t2, t2, t1",
    // Counts stores that find their bit set: a flood must not keep the thread from reading its word.
    "snez t1, t2",
    "csrr t0, sscratch",
    "add t0, t0, t1",
    "neg t1, t1",
    "and t0, t0, t1",
    "li t1, {enough}",
    "bltu t0, t1, 3f",
    "li t0, {external}",
    "csrc sie, t0",
    "li t0, 0",
    "3:",
    "csrw sscratch, t0",
    "4:",
    "csrr t0, sepc",
    "lla t1, 20f",
    "bltu t0, t1, 5f",
    "lla t2, 21f",
    "bgeu t0, t2, 5f",
    "csrw sepc, t1",
    "5:",
    "ld t0, 0(sp)",
    "ld t1, 8(sp)",
    "ld t2, 16(sp)",
    "addi sp, sp, 32",
    "sret",
    // A user's software interrupt: takes the bits pending in the slot.
    ".balign 4",
    ".globl sel4_software_interrupt",
    "sel4_software_interrupt:",
    "addi sp, sp, -32",
    "sd t0, 0(sp)",
    "sd t1, 8(sp)",
    "sd t2, 16(sp)",
    // First the interrupt is cleared: a bit that comes from here on raises it again.
    "csrci {uip}, 1",
    // uipi_read t0
    ".insn r 0x7b, 6, 1, t0, x0, x0",
    "beqz t0, 4f",
    "addi t1, tp, {word}",
    "amoor.d t1, t0, (t1)",
    // Counts interrupts without news, as above.
    "not t1, t1",
    "and t1, t1, t0",
    "seqz t1, t1",
    "csrr t0, {uscratch}",
    "add t0, t0, t1",
    "neg t1, t1",
    "and t0, t0, t1",
    "li t1, {enough}",
    "bltu t0, t1, 3f",
    "csrci {uie}, 1",
    "li t0, 0",
    "3:",
    "csrw {uscratch}, t0",
    "4:",
    "csrr t0, {uepc}",
    "lla t1, 20f",
    "bltu t0, t1, 5f",
    "lla t2, 21f",
    "bgeu t0, t2, 5f",
    "csrw {uepc}, t1",
    "5:",
    "ld t0, 0(sp)",
    "ld t1, 8(sp)",
    "ld t2, 16(sp)",
    "addi sp, sp, 32",
    // uret
    ".insn i 0x73, 0, x0, x0, 2",
    // The notification in a0; the badge comes back there.
    ".globl sel4_wait_for_signals",
    "sel4_wait_for_signals:",
    "addi t1, tp, {word}",
    "20:",
    "ld t0, 0(t1)",
    "bnez t0, 2f",
    "li a7, {receive}",
    "ecall",
    "21:",
    "ret",
    "2:",
    "amoswap.d a0, zero, (t1)",
    "ret",
    ".option pop",
    word = const WORD,
    return_from = const abi_sel4::SystemCall::ReturnFromUserInterrupt.number(),
    receive = const abi_sel4::SystemCall::Recv.number(),
    stopei = const STOPEI,
    external = const EXTERNAL,
    uie = const UIE,
    uip = const UIP,
    uscratch = const USCRATCH,
    uepc = const UEPC,
    enough = const ENOUGH,
);

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
mod entry {
    unsafe extern "C" {
        pub safe fn sel4_user_interrupt();
        pub safe fn sel4_store_interrupt();
        pub safe fn sel4_software_interrupt();
        pub safe fn sel4_wait_for_signals(notification: u64) -> u64;
    }
}

/// Without a microkernel no signal comes.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
mod entry {
    pub extern "C" fn sel4_user_interrupt() {}
    pub extern "C" fn sel4_store_interrupt() {}
    pub extern "C" fn sel4_software_interrupt() {}
    pub fn sel4_wait_for_signals(_: u64) -> u64 {
        0
    }
}

/// Returns the handler's address, for a registration of one's own.
pub fn handler() -> u64 {
    entry::sel4_user_interrupt as *const () as u64
}

/// Binds a notification to a thread and makes its signals user interrupts. The thread must be one of this crate's, or
/// have the address of its IPC buffer in `tp` and a stack whenever it runs. Returns whether the kernel supports user
/// interrupts: seL4 does not.
///
/// # Errors
///
/// The kernel's error; nothing has changed then.
pub fn receive(thread: Thread, notification: Notification) -> Result<bool> {
    thread.bind_notification(notification)?;
    let Err(failure) = thread.register_user_interrupts(notification, handler()) else { return Ok(true) };
    // It was bound just now.
    let _ = thread.unbind_notification();
    if failure.error == Error::IllegalOperation { Ok(false) } else { Err(failure) }
}

/// Receives as [`receive`] does; on a machine that can do that, the bits `hints` of the badge can also come from a
/// [`Sender`], without the kernel. With guest interrupt files a sender of one of them can then send all of them, so
/// they should mean no more than a place to look at. Bit 63 cannot be a hint. Returns whether the machine can.
///
/// A thread for which this was called once runs with registers for its interrupts ever after, which makes its system
/// calls slower.
///
/// # Errors
///
/// The kernel's error; nothing has changed then.
pub fn receive_stores(thread: Thread, notification: Notification, hints: u64) -> Result<bool> {
    thread.bind_notification(notification)?;
    let result = register_hints(thread, notification, hints);
    if result.is_err() {
        // It was bound just now.
        let _ = thread.unbind_notification();
    }
    result
}

/// Registers the handler that the machine's way requires. The first registration has no hints, so that the thread,
/// which may run, is not interrupted at a wrong handler.
fn register_hints(thread: Thread, notification: Notification, hints: u64) -> Result<bool> {
    let vector = match thread.register_user_interrupts_in_hardware(notification, handler(), 0, 0)? {
        Arrival::Signals => return Ok(false),
        Arrival::Stores => entry::sel4_store_interrupt as *const () as u64,
        Arrival::Instructions => entry::sel4_software_interrupt as *const () as u64,
    };
    thread.register_user_interrupts_in_hardware(notification, handler(), hints, vector)?;
    Ok(true)
}

/// Ends [`receive`] and [`receive_stores`].
///
/// # Errors
///
/// The kernel's error.
pub fn end(thread: Thread) -> Result<()> {
    thread.end_user_interrupts()?;
    thread.unbind_notification()
}

/// A page to which a store signals a notification: with guest interrupt files without the kernel if the receiver runs
/// or waits, and otherwise through it; by the instruction of UINTC without the kernel if the receiver runs. The page is
/// unmapped with the capability; after that a store there does nothing. [`Signaller`] requests one at its first signal.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    address: u64,
    identity: u32,
    /// Index for `uipi_send`, or 0.
    index: u64,
}

impl Sender {
    /// Makes a page for a capability whose badge is the bit `bit`, one of the receiver's hints.
    ///
    /// # Errors
    ///
    /// [`Error::IllegalOperation`] if the bit is no hint, or the machine cannot do it; or no page is left.
    pub fn new(allocator: &mut Allocator, window: &mut Window, notification: Notification, bit: u32) -> Result<Sender> {
        let address = window.addresses(PAGE_BITS, 1)?;
        let index = map_sender(allocator, notification, address)??;
        Ok(Sender { address, identity: bit + 1, index })
    }

    /// Returns the index with which `uipi_send` sends; 0 if a store does.
    pub fn index(self) -> u64 {
        self.index
    }

    /// Returns the page's address.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Sends. Earlier writes are visible to the interrupted thread.
    #[inline(always)]
    pub fn send(self) {
        send(self.address, self.identity, self.index);
    }
}

/// Signals a notification with a store if possible, from the first signal on, and through the kernel otherwise.
///
/// The first signal requests a page, at the address reserved for it. If there is none, because the receiver does not
/// take stores (yet), the machine has no interrupt files or all pages are taken, signals go through the kernel, and the
/// request is repeated each time that their number has doubled. After the capability is deleted a signal does nothing,
/// either way: the page is unmapped with it, and the kernel ignores a store there. A capability that is put into the
/// same slot later needs [`register`](Signaller::register).
#[derive(Debug)]
pub struct Signaller {
    notification: Notification,
    space: PageTable,
    address: u64,
    identity: u32,
    /// Number of signals that went through the kernel, or from [`BY_STORES`] on.
    signals: AtomicU64,
}

/// In the place of a number: the page is mapped. The index for `uipi_send`, or 0, is added.
const BY_STORES: u64 = u64::MAX - LARGEST_INDEX;

/// Greatest index in a sender table.
const LARGEST_INDEX: u64 = 511;

impl Signaller {
    /// Creates the signaller of a capability whose badge is the bit `bit`. Its page will be at `address` of `space`,
    /// the calling thread's address space. The address must be unmapped, with all page tables; otherwise signals go
    /// through the kernel.
    pub const fn new(notification: Notification, bit: u32, space: PageTable, address: u64) -> Signaller {
        Signaller { notification, space, address, identity: bit + 1, signals: AtomicU64::new(0) }
    }

    /// Creates a signaller in the program's own address space, at an address of the window, with page tables that are
    /// made now.
    ///
    /// # Errors
    ///
    /// Addresses, slots or memory are too few.
    pub fn prepare(
        allocator: &mut Allocator,
        window: &mut Window,
        notification: Notification,
        bit: u32,
    ) -> Result<Signaller> {
        let address = window.addresses(PAGE_BITS, 1)?;
        // Other errors may be gone at the first signal. If the slot is empty, the page tables are not made here.
        if map_sender(allocator, notification, address)?.is_ok() {
            initial::ADDRESS_SPACE.unmap_sender(notification)?;
        }
        Ok(Signaller::new(notification, bit, initial::ADDRESS_SPACE, address))
    }

    /// Returns whether the next signal is a store.
    #[inline]
    pub fn is_by_stores(&self) -> bool {
        self.signals.load(Ordering::Relaxed) >= BY_STORES
    }

    /// Requests a page now.
    ///
    /// # Errors
    ///
    /// The reason why there is none; signals go through the kernel.
    pub fn register(&self) -> Result<()> {
        let result = self.space.map_sender(self.notification, self.address);
        self.signals.store(result.as_ref().map_or(1, |index| BY_STORES + index), Ordering::Relaxed);
        result.map(drop)
    }

    /// Signals. Earlier writes are visible to the receiver.
    #[inline]
    pub fn signal(&self) {
        match self.signals.load(Ordering::Relaxed) {
            signals if signals >= BY_STORES => send(self.address, self.identity, signals - BY_STORES),
            signals => self.signal_otherwise(signals),
        }
    }

    #[cold]
    fn signal_otherwise(&self, signals: u64) {
        // Several threads that come here at the same time get the same page.
        let is_time = signals == 0 || signals.is_power_of_two();
        if is_time && let Ok(index) = self.space.map_sender(self.notification, self.address) {
            self.signals.store(BY_STORES + index, Ordering::Relaxed);
            return send(self.address, self.identity, index);
        }
        // Unless another thread has got a page meanwhile.
        let _ = self.signals.compare_exchange(signals, signals + 1, Ordering::Relaxed, Ordering::Relaxed);
        self.notification.signal_if_there();
    }
}

/// Requests a page, and makes the missing page tables for it. The inner result is the kernel's answer.
fn map_sender(allocator: &mut Allocator, notification: Notification, address: u64) -> Result<Result<u64>> {
    loop {
        match initial::ADDRESS_SPACE.map_sender(notification, address) {
            Err(failure) if failure.error == Error::FailedLookup => {
                let table = PageTable::from_pointer(allocator.object(ObjectType::PageTable)?);
                table.map(initial::ADDRESS_SPACE, address, 0)?;
            }
            result => return Ok(result),
        }
    }
}

/// Sends with an index, or by a store to a sender page.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
#[inline(always)]
fn send(address: u64, identity: u32, index: u64) {
    if index != 0 { send_by_index(index) } else { store(address, identity) }
}

/// Executes `uipi_send`, behind all earlier writes.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
#[inline(always)]
pub fn send_by_index(index: u64) {
    // SAFETY: the instruction accesses no memory of the program.
    unsafe {
        core::arch::asm!(
            "fence rw, iorw",
            ".insn r 0x7b, 6, 0, x0, {index}, x0",
            index = in(reg) index,
            options(nostack),
        );
    }
}

/// Stores an identity to a sender page: four bytes, as the kernel expects, and ordered behind all earlier writes.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
#[inline(always)]
fn store(address: u64, identity: u32) {
    // SAFETY: at the address are no memory, no references, and nothing that could be read.
    unsafe {
        core::arch::asm!(
            "fence rw, o",
            ".option push",
            ".option norvc",
            "sw {identity}, 0({address})",
            ".option pop",
            identity = in(reg) identity,
            address = in(reg) address,
            options(nostack),
        );
    }
}

/// Without a microkernel there is no such page.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
fn send(_: u64, _: u32, _: u64) {}

/// Returns the calling thread's word.
fn word() -> &'static AtomicU64 {
    // SAFETY: the buffer is mapped as long as its thread runs, and this word of it is used only here and by the
    // handler, as an atomic.
    unsafe { AtomicU64::from_ptr(crate::raw::user_data()) }
}

/// Returns whether signals of the calling thread have come that were not taken.
#[inline(always)]
pub fn is_pending() -> bool {
    word().load(Ordering::Relaxed) != 0
}

/// Takes the signals of the calling thread that have come; 0 for none.
#[inline]
pub fn take() -> u64 {
    // Acquire: publishes the sender's earlier writes; the kernel has ordered them before the interrupt.
    word().swap(0, Ordering::Acquire)
}

/// Waits until there are signals, and takes them. The notification must be the one that is bound to the calling thread.
pub fn wait(notification: Notification) -> u64 {
    let badge = entry::sel4_wait_for_signals(notification.pointer());
    badge | take()
}
