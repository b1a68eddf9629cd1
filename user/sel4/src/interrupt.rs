//! User interrupts: a thread is told of its notification's signals while it runs, without asking the kernel.
//!
//! [`receive`] binds a notification to a thread and registers this module's handler. From then on the badge of whatever is signalled
//! stands in a word of the thread's own, between one instruction and the next: [`take`] takes it, [`is_pending`] is a load. Who signals needs
//! what it always needs, a capability with the right to, whose badge is what the handler is told.
//!
//! The handler does no more than that, because it may have interrupted anything. What is to be done about a signal is done by whoever
//! looks at the word; the [`executor`](crate::executor) does before each poll.
//!
//! **Waiting.** A thread that looks at its word, finds nothing and waits would sleep over a signal whose interrupt came between the two.
//! [`wait`] does both, and the handler makes an interrupted one begin again.
//!
//! A badge of 0 says only that there was a signal; the word shows it as bit 0, [`RINGS`](crate::executor::RINGS).
//!
//! The word is the one in the thread's IPC buffer that seL4 leaves to programs.

use core::sync::atomic::{AtomicU64, Ordering};

use abi_sel4::Error;

use crate::capability::{Notification, Thread};
use crate::raw::Result;

/// Where the word stands in the IPC buffer.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const WORD: usize = core::mem::offset_of!(abi_sel4::IpcBuffer, user_data);

// The handler uses 16 bytes of the interrupted code's stack, and no register but those that it puts back. An address in the sequence of
// `sel4_wait_for_signals` before its system call is done becomes that of its beginning.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
core::arch::global_asm!(
    ".section .text",
    // The assembler is not told of the target's features.
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
);

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
mod entry {
    unsafe extern "C" {
        pub safe fn sel4_user_interrupt();
        pub safe fn sel4_wait_for_signals(notification: u64) -> u64;
    }
}

/// Without a microkernel nothing is signalled.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
mod entry {
    pub extern "C" fn sel4_user_interrupt() {}
    pub fn sel4_wait_for_signals(_: u64) -> u64 {
        0
    }
}

/// Where the handler is, for a registration of one's own.
pub fn handler() -> u64 {
    entry::sel4_user_interrupt as *const () as u64
}

/// Binds a notification to a thread and makes its signals user interrupts. The thread must be one of this crate's, or have the address of
/// its IPC buffer in `tp` and a stack whenever it runs. Says whether the kernel has user interrupts: seL4 has not.
///
/// # Errors
///
/// What the kernel says; nothing has changed.
pub fn receive(thread: Thread, notification: Notification) -> Result<bool> {
    thread.bind_notification(notification)?;
    let Err(failure) = thread.register_user_interrupts(notification, handler()) else { return Ok(true) };
    // It was bound just now.
    let _ = thread.unbind_notification();
    if failure.error == Error::IllegalOperation { Ok(false) } else { Err(failure) }
}

/// Undoes [`receive`].
///
/// # Errors
///
/// What the kernel says.
pub fn end(thread: Thread) -> Result<()> {
    thread.end_user_interrupts()?;
    thread.unbind_notification()
}

/// The calling thread's word.
fn word() -> &'static AtomicU64 {
    // SAFETY: the buffer is mapped as long as its thread runs, and this word of it is used only here and by the handler, as an atomic.
    unsafe { AtomicU64::from_ptr(crate::raw::user_data()) }
}

/// Whether signals of the calling thread have come that nobody has taken.
#[inline(always)]
pub fn is_pending() -> bool {
    word().load(Ordering::Relaxed) != 0
}

/// Takes the signals of the calling thread that have come; 0 for none.
#[inline]
pub fn take() -> u64 {
    // Acquire: what the sender wrote before is seen after; the kernel has ordered it before the interrupt.
    word().swap(0, Ordering::Acquire)
}

/// Waits until there are signals, and takes them. The notification must be the one that is bound to the calling thread.
pub fn wait(notification: Notification) -> u64 {
    let badge = entry::sel4_wait_for_signals(notification.pointer());
    badge | take()
}
