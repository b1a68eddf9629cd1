//! Threads' registers, and running a thread.

use core::cell::Cell;
use core::mem::offset_of;

use hal_api::{Flush, Machine, Scope, Trap, UserContext};

use crate::Ref;
use crate::types::{FloatingPointUse, PageTable, Tcb};

impl Tcb {
    /// Where the thread goes on.
    #[inline(always)]
    pub fn pc(&self) -> &Cell<u64> {
        self.word(offset_of!(UserContext, pc) / 8)
    }

    /// Register x`NUMBER`, 1 to 31.
    #[inline(always)]
    pub fn register<const NUMBER: usize>(&self) -> &Cell<u64> {
        const { assert!(NUMBER >= 1 && NUMBER <= 31) };
        self.word(offset_of!(UserContext, x) / 8 + NUMBER - 1)
    }

    /// Register x`number`.
    ///
    /// # Panics
    /// If there is no such register, or it is x0.
    #[inline(always)]
    pub fn register_at(&self, number: usize) -> &Cell<u64> {
        assert!((1..=31).contains(&number), "a thread has the registers x1 to x31");
        self.word(offset_of!(UserContext, x) / 8 + number - 1)
    }

    /// The word with this index among `pc` and the registers, which come first.
    #[inline(always)]
    fn word(&self, index: usize) -> &Cell<u64> {
        debug_assert!(index < 32);
        // SAFETY: the callers' indexes are those of `pc` and of `x`, 32 words in a row (assertions below); a cell of the whole
        // is a cell of each part, and the lifetime is that of `self`.
        unsafe { &*self.context.as_ptr().cast::<Cell<u64>>().add(index) }
    }

    /// Makes all registers 0, the floating-point registers too, which are then those of nobody.
    pub fn reset_context(&self) {
        self.context.set(UserContext::new(0, 0));
    }

    /// Allows or forbids floating point.
    pub fn use_floating_point(&self, wish: FloatingPointUse) {
        // SAFETY: no reference to the context exists (RUNNING-CONTEXT: the thread does not run now).
        let context = unsafe { &mut *self.context.as_ptr() };
        context.forbid_floating_point(wish == FloatingPointUse::Forbidden);
    }
}

const _: () = {
    assert!(offset_of!(UserContext, pc) == 0);
    assert!(offset_of!(UserContext, x) == 8);
};

/// Runs a thread until something happens. The thread's address space is active, and this hart does not hold the kernel's lock.
#[inline(always)]
pub fn enter<M: Machine>(thread: Ref<Tcb>) -> Trap {
    // SAFETY: RUNNING-CONTEXT: until the trap the registers belong to this hart alone, which is here.
    M::enter_user(unsafe { &mut *thread.context.as_ptr() })
}

/// Makes an address space the active one; with `None` the kernel's own.
#[inline(always)]
pub fn activate<M: Machine>(root: Option<(Ref<PageTable>, u16)>) {
    let (root, mut asid) = match root {
        Some((table, asid)) => (table.physical() >> 12, asid),
        None => (M::kernel_root_ppn(), 0),
    };
    // A machine that tells fewer identifiers apart gets none, and forgets everything at each change.
    let is_too_large = asid > M::maximum_asid();
    if is_too_large {
        asid = 0;
    }
    // SAFETY: the upper half of every root is the kernel's, copied when the table becomes a root; the lower half maps only pages
    // that were retyped as such, and tables. A table is taken out of its pool, and each hart that uses it is made to leave it,
    // before its memory is anything else.
    unsafe { M::activate(root, asid) };
    if is_too_large {
        M::flush_tlb(Flush::Local(Scope::All));
    }
}
