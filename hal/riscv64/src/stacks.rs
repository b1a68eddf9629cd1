//! Stacks of kernel threads, and the switch from one stack to another.
//!
//! Kernel code runs on its hart's stack. For kernels with threads of their own, this module provides the two
//! machine-dependent parts: a window of addresses in which each stack is mapped above a guard region, and the few
//! instructions that switch from one stack to another.
//!
//! **The window** is one entry of the root table, which exists before the first address space copies it. The tables
//! below are static; their leaves are written as atomic words, since the hardware reads them at any time. Each slot is
//! a guard region followed by a stack of equal size. Code that maps a slot, for the first time or again, flushes before
//! the stack is used; code that unmaps a slot flushes before its frames are reused.
//!
//! **The switch** is a function call to both sides: it saves the callee-saved registers on the old stack, and restores
//! them from the new one. `tp` belongs to the hart and stays, so that a thread may continue on another hart; values
//! that it read from its hart before the switch are stale afterwards. Floating point is off in the kernel.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::boot;

/// Virtual address of the window.
pub const STACK_WINDOW: usize = 0xffff_ffe0_0000_0000;
/// Size of a kernel thread's stack in bytes. A call from a program may pass through the whole network stack on it, and
/// only the guard region below detects an overflow. So the size is twice the usual one for such kernels.
pub const THREAD_STACK_SIZE: usize = 32 * 1024;
/// Size of a slot in bytes: the guard region, then the stack.
const SLOT_SIZE: usize = 2 * THREAD_STACK_SIZE;
/// The largest number of stacks.
pub const THREAD_STACKS: usize = TABLES * 512 * 4096 / SLOT_SIZE;
/// Number of leaf tables, each for 2 MiB of addresses.
const TABLES: usize = 64;
/// Valid, readable, writable, global, accessed, dirty.
const LEAF: u64 = 0b1110_0111;
const VALID: u64 = 1;

#[repr(C, align(4096))]
struct StackTable([AtomicU64; 512]);

static MIDDLE: StackTable = StackTable([const { AtomicU64::new(0) }; 512]);
static LEAVES: [StackTable; TABLES] = [const { StackTable([const { AtomicU64::new(0) }; 512]) }; TABLES];

fn entry_for(table: &StackTable) -> u64 {
    boot::image_to_physical(core::ptr::from_ref(table).addr()) >> 12 << 10 | VALID
}

/// Links the middle table to the leaf tables, and returns the root entry for it: its index and value.
pub(crate) fn root_entry() -> (usize, u64) {
    for (entry, table) in MIDDLE.0.iter().zip(&LEAVES) {
        entry.store(entry_for(table), Relaxed);
    }
    (STACK_WINDOW >> 30 & 511, entry_for(&MIDDLE))
}

/// Returns the first address above a slot's stack.
///
/// # Panics
/// If there is no such slot.
pub fn thread_stack_top(slot: usize) -> usize {
    assert!(slot < THREAD_STACKS);
    STACK_WINDOW + (slot + 1) * SLOT_SIZE
}

/// Maps a slot's stack to these frames (physical addresses, from the stack's lowest page on), or unmaps it.
///
/// # Safety
/// The frames must be memory without any other use while they are mapped, and the stack must not be in use when its
/// mapping changes. The change is effective only after all harts have flushed all translations.
///
/// # Panics
/// If there is no such slot.
pub unsafe fn set_thread_stack(slot: usize, frames: Option<[u64; THREAD_STACK_SIZE / 4096]>) {
    let first = (thread_stack_top(slot) - THREAD_STACK_SIZE - STACK_WINDOW) / 4096;
    for index in 0..THREAD_STACK_SIZE / 4096 {
        let page = first + index;
        let leaf = frames.map_or(0, |frames| frames[index] >> 12 << 10 | LEAF);
        LEAVES[page / 512].0[page % 512].store(leaf, Relaxed);
    }
}

/// Maps a slot's guard region to these frames, which joins its stack with that of the slot below to one.
///
/// # Safety
/// As for [`set_thread_stack`].
///
/// # Panics
/// If there is no such slot.
pub unsafe fn set_thread_stack_joined(slot: usize, frames: [u64; THREAD_STACK_SIZE / 4096]) {
    let first = (thread_stack_top(slot) - SLOT_SIZE - STACK_WINDOW) / 4096;
    for (page, frame) in (first..).zip(frames) {
        LEAVES[page / 512].0[page % 512].store(frame >> 12 << 10 | LEAF, Relaxed);
    }
}

/// Returns whether an address lies in the guard region below a kernel thread's stack.
pub(crate) fn is_guard(address: usize) -> bool {
    address
        .checked_sub(STACK_WINDOW)
        .is_some_and(|offset| offset < THREAD_STACKS * SLOT_SIZE && offset % SLOT_SIZE < SLOT_SIZE - THREAD_STACK_SIZE)
}

/// Bytes that the switch saves on a stack: `ra` and `s0` to `s11`, and padding to 16 bytes.
const SAVED: usize = 14 * 8;

global_asm!(
    r#"
    .section .text.switch, "ax"

# switch(a0: &mut sp of the old stack, a1: sp of the new stack)
# Returns after a switch back to the old stack. Keeps ra, sp, s0 to s11; tp is the hart's, which may be another hart.
    .balign 4
    .globl hal_switch_stack
hal_switch_stack:
    addi    sp, sp, -{saved}
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
    sd      sp, 0(a0)
    mv      sp, a1
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
    addi    sp, sp, {saved}
    ret

# The first return of a new stack: s1 is a function that never returns, s2 its argument. The chain of callers ends here.
    .balign 4
    .globl hal_begin_on_stack
hal_begin_on_stack:
    mv      a0, s2
    mv      s0, zero
    mv      ra, zero
    jalr    s1
    unimp
    "#,
    saved = const SAVED,
);

unsafe extern "C" {
    fn hal_switch_stack(left: *mut usize, entered: usize);
    fn hal_begin_on_stack();
}

/// Prepares a stack so that the first switch to it calls `entry` with `argument`; returns its stack pointer.
///
/// # Safety
/// The stack below `top` must be mapped, flushed, at least [`THREAD_STACK_SIZE`] long and not in use.
pub unsafe fn prepare_stack(top: usize, entry: extern "C" fn(usize) -> !, argument: usize) -> usize {
    let stack = (top - SAVED) as *mut usize;
    // SAFETY: the caller's promise. The layout is that of the switch: ra, s0, s1, s2.
    unsafe {
        stack.write(hal_begin_on_stack as *const () as usize);
        stack.add(1).write(0);
        stack.add(2).write(entry as usize);
        stack.add(3).write(argument);
    }
    top - SAVED
}

/// Switches from this stack to another. Returns when a switch back is made, perhaps on another hart.
///
/// # Safety
/// `entered` must be the stack pointer that [`prepare_stack`] returned or the last switch stored for that stack, and
/// must be used only once. No other code may write `left` until this function returns.
pub unsafe fn switch_stack(left: *mut usize, entered: usize) {
    // SAFETY: the caller's promise; the assembly preserves the callee-saved registers.
    unsafe { hal_switch_stack(left, entered) };
}
