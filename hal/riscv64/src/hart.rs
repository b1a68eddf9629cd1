//! Data of each hart.
//!
//! `tp` points to the hart's own area from its first instruction in the upper half to the end; a program's `tp` is
//! exchanged with its other registers. The fields are atomic only so that no unsafe access is needed: each is written
//! by its own hart or, before that hart starts, by the hart that starts it, and ordered by the word that admits it
//! (`boot`, ARRIVES-ONCE).

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use hal_api::MAXIMUM_HARTS;

/// Number of harts for which there are stacks.
pub const STACKS: usize = if cfg!(feature = "several-harts") { MAXIMUM_HARTS } else { 1 };
/// Size of each hart's kernel stack in bytes.
pub const STACK_SIZE: usize = 64 * 1024;
/// Size in bytes of the stack on which a hart reports a kernel fault.
const EMERGENCY_SIZE: usize = 16 * 1024;

/// The area of one hart, in lines of the caches that no other hart writes to.
#[repr(C, align(64))]
pub struct HartArea {
    /// Dense index.
    pub index: AtomicUsize,
    /// First byte above the kernel stack.
    pub stack_top: AtomicUsize,
    /// First byte above the emergency stack.
    pub emergency_top: AtomicUsize,
    /// The machine's number of this hart.
    pub hart_id: AtomicU64,
    /// The value last written to `satp`.
    pub satp: AtomicU64,
    /// Token of the floating-point contents in the registers; 0 for none.
    pub token: AtomicU64,
    /// Token of the program for which the floating-point unit is on; 0 while it is off.
    pub unit: AtomicU64,
    /// Token of the supervisor registers of a virtualised program in the hart; 0 for none.
    pub supervisor_token: AtomicU64,
    /// Number of tokens that this hart has made.
    pub tokens: AtomicU64,
    /// Whether programs run virtualised at present: 1, else 0.
    pub virtualised: AtomicUsize,
    /// Number of fatal reports; a fault inside the report ends the machine at once.
    pub reports: AtomicUsize,
}

/// Offsets for the assembly.
pub const OFFSET_STACK_TOP: usize = offset_of!(HartArea, stack_top);
pub const OFFSET_EMERGENCY_TOP: usize = offset_of!(HartArea, emergency_top);

impl HartArea {
    const fn new() -> HartArea {
        HartArea {
            index: AtomicUsize::new(0),
            stack_top: AtomicUsize::new(0),
            emergency_top: AtomicUsize::new(0),
            hart_id: AtomicU64::new(0),
            satp: AtomicU64::new(0),
            token: AtomicU64::new(0),
            unit: AtomicU64::new(0),
            supervisor_token: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            virtualised: AtomicUsize::new(0),
            reports: AtomicUsize::new(0),
        }
    }

    /// Makes a new token for floating-point contents, different from every other token of any hart.
    pub fn new_token(&self) -> u64 {
        let token = self.next_token();
        self.token.store(token, Relaxed);
        token
    }

    /// Makes a new token for a program's supervisor registers, different from every other token of any hart.
    pub fn new_supervisor_token(&self) -> u64 {
        let token = self.next_token();
        self.supervisor_token.store(token, Relaxed);
        token
    }

    fn next_token(&self) -> u64 {
        let count = self.tokens.load(Relaxed) + 1;
        self.tokens.store(count, Relaxed);
        count << 8 | self.index.load(Relaxed) as u64
    }
}

/// The areas of all harts, behind other bytes: what follows the stacks begins with a page, and the first line of each
/// page has the same place in a small cache. That place is contended: page tables, and all that is aligned to pages.
#[repr(C)]
pub struct HartAreas {
    _before: [u8; HartAreas::BEFORE],
    areas: [HartArea; MAXIMUM_HARTS],
}

impl HartAreas {
    /// Bytes before the first area.
    pub const BEFORE: usize = 15 * 64;
}

impl Deref for HartAreas {
    type Target = [HartArea; MAXIMUM_HARTS];

    fn deref(&self) -> &[HartArea; MAXIMUM_HARTS] {
        &self.areas
    }
}

/// The areas of all harts.
pub static HARTS: HartAreas =
    HartAreas { _before: [0; HartAreas::BEFORE], areas: [const { HartArea::new() }; MAXIMUM_HARTS] };

/// Size in bytes of the guard region below each stack, which is never mapped. More than a page, because a function's
/// frame can be larger than a page and step over it.
pub const GUARD_SIZE: usize = 16 * 1024;

/// A kernel stack with its guard region below it.
#[repr(C, align(4096))]
pub struct Stack {
    guard: UnsafeCell<[u8; GUARD_SIZE]>,
    memory: UnsafeCell<[u8; STACK_SIZE]>,
}

#[repr(C, align(16))]
struct Emergency(UnsafeCell<[u8; EMERGENCY_SIZE]>);

// SAFETY: only addresses of stacks are ever taken; each hart uses its own stack.
unsafe impl Sync for Stack {}
// SAFETY: as above.
unsafe impl Sync for Emergency {}

/// The kernel stacks; the boot assembly uses the first before any Rust code runs. They are behind all other data, and
/// hold anything at first.
#[unsafe(link_section = ".stacks")]
pub static HART_STACKS: [Stack; STACKS] =
    [const { Stack { guard: UnsafeCell::new([0; GUARD_SIZE]), memory: UnsafeCell::new([0; STACK_SIZE]) } }; STACKS];
static EMERGENCY_STACKS: [Emergency; STACKS] = [const { Emergency(UnsafeCell::new([0; EMERGENCY_SIZE])) }; STACKS];

/// Returns the guard region of a hart's stack: first byte, and first byte behind.
pub fn guard(index: usize) -> (usize, usize) {
    let start = HART_STACKS[index].guard.get() as usize;
    (start, start + GUARD_SIZE)
}

/// Returns a hart's stack: first byte, and first byte behind.
pub fn stack(index: usize) -> (usize, usize) {
    let start = HART_STACKS[index].memory.get() as usize;
    (start, start + STACK_SIZE)
}

/// Returns a hart's emergency stack: first byte, and first byte behind.
pub fn emergency_stack(index: usize) -> (usize, usize) {
    let start = EMERGENCY_STACKS[index].0.get() as usize;
    (start, start + EMERGENCY_SIZE)
}

/// Fills in the area of a hart that is about to run.
pub fn prepare(index: usize, hart_id: u64) -> &'static HartArea {
    let area = &HARTS[index];
    area.index.store(index, Relaxed);
    area.stack_top.store(stack(index).1, Relaxed);
    area.emergency_top.store(emergency_stack(index).1, Relaxed);
    area.hart_id.store(hart_id, Relaxed);
    area
}

/// Returns the area of the calling hart.
#[inline(always)]
pub fn this() -> &'static HartArea {
    let pointer: *const HartArea;
    // SAFETY: reading `tp` has no effect; by the register contract it points to this hart's area, a static.
    unsafe {
        core::arch::asm!("mv {}, tp", out(reg) pointer, options(nomem, nostack, preserves_flags));
        &*pointer
    }
}
