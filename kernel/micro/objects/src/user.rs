//! Threads' registers, and running a thread.

use core::cell::Cell;
use core::mem::offset_of;

use core::sync::atomic::Ordering::Relaxed;

use abi_sel4::object::PAGE_TABLE_BITS;
use hal_api::{InterruptRegisters, Machine, SenderTable, Trap, UserContext, UserLevel, Virtualisation};

use crate::types::{FloatingPointUse, OwnInterrupts, PageTable, Tcb};
use crate::{Ref, claim};

impl Tcb {
    /// Returns the address of the thread's next instruction.
    #[inline(always)]
    pub fn pc(&self) -> &Cell<u64> {
        self.word(offset_of!(UserContext, pc) / 8)
    }

    /// Returns register x`NUMBER`, 1 to 31.
    #[inline(always)]
    pub fn register<const NUMBER: usize>(&self) -> &Cell<u64> {
        const { assert!(NUMBER >= 1 && NUMBER <= 31) };
        self.word(offset_of!(UserContext, x) / 8 + NUMBER - 1)
    }

    /// Returns register x`number`.
    ///
    /// # Panics
    /// If the number is 0 or greater than 31.
    #[inline(always)]
    pub fn register_at(&self, number: usize) -> &Cell<u64> {
        assert!((1..=31).contains(&number), "a thread has the registers x1 to x31");
        self.word(offset_of!(UserContext, x) / 8 + number - 1)
    }

    /// Returns the word with this index among `pc` and the registers, the first fields of the context.
    #[inline(always)]
    fn word(&self, index: usize) -> &Cell<u64> {
        debug_assert!(index < 32);
        // SAFETY: the callers' indexes are those of `pc` and of `x`, 32 words in a row (assertions below); a cell of
        // the whole context is a cell of each part, and the lifetime is that of `self`.
        unsafe { &*self.context.as_ptr().cast::<Cell<u64>>().add(index) }
    }

    /// Sets all registers to 0, including the floating-point registers, whose contents no hart holds then.
    pub fn reset_context(&self) {
        self.context.set(UserContext::new(0, 0));
    }

    /// Allows or forbids floating point.
    pub fn use_floating_point(&self, wish: FloatingPointUse) {
        // SAFETY: no other reference to the context exists (RUNNING-CONTEXT: the thread does not run now).
        let context = unsafe { &mut *self.context.as_ptr() };
        context.forbid_floating_point(wish == FloatingPointUse::Forbidden);
    }

    /// Gives a thread that does not run registers of its own for interrupts, all of which are masked, unless it has
    /// them already.
    pub fn give_own_registers(&self, own: OwnInterrupts) {
        if self.interrupts.own() != Some(own) {
            self.interrupts.set_own(own);
            let status = own.enabled();
            self.with_supervisor(|registers| *registers = InterruptRegisters { status, ..InterruptRegisters::NEW });
        }
    }

    /// Makes a thread that does not run take its own interrupts at this address. The thread may be in a handler
    /// already: the registers with which the handler returns are kept.
    pub fn take_own_interrupts(&self, own: OwnInterrupts, vector: u64) {
        self.give_own_registers(own);
        self.with_supervisor(|registers| {
            registers.vector = vector;
            registers.enabled |= own.interrupt();
        });
    }

    /// Unmasks the own interrupts of a thread that does not run.
    pub fn unmask_own_interrupts(&self) {
        if let Some(own) = self.interrupts.own() {
            self.with_supervisor(|registers| registers.enabled |= own.interrupt());
        }
    }

    /// Enables the own interrupts of a thread that does not run, even if it is in its handler.
    pub fn enable_own_interrupts(&self) {
        if let Some(own) = self.interrupts.own() {
            self.with_supervisor(|registers| registers.status |= own.enabled());
        }
    }

    /// Returns the number of the thread's slot of UINTC, if it has one.
    #[inline]
    pub fn slot(&self) -> Option<u16> {
        let number = self.interrupts.file_or_slot.get().checked_sub(1)?;
        (self.interrupts.own() == Some(OwnInterrupts::Armed)).then_some(number as u16)
    }

    fn with_supervisor(&self, change: impl FnOnce(&mut InterruptRegisters)) {
        // SAFETY: as for `use_floating_point`.
        change(unsafe { &mut *self.context.as_ptr() }.supervisor_mut());
    }
}

impl OwnInterrupts {
    /// Bit of the status register: interrupts are enabled.
    const fn enabled(self) -> u64 {
        match self {
            OwnInterrupts::Virtualised => 1 << 1,
            OwnInterrupts::Armed => 1 << 0,
        }
    }

    /// Bit of the interrupt in the enable register: a supervisor's external interrupt, a user's software interrupt.
    const fn interrupt(self) -> u64 {
        match self {
            OwnInterrupts::Virtualised => 1 << 9,
            OwnInterrupts::Armed => 1 << 0,
        }
    }
}

/// Bit of a valid entry in a table.
const VALID: u64 = 1 << 0;

const _: () = {
    assert!(offset_of!(UserContext, pc) == 0);
    assert!(offset_of!(UserContext, x) == 8);
};

/// Runs a thread until it traps. The thread's address space is active, and this hart does not hold the kernel's lock.
#[inline(always)]
pub fn enter<M: Machine>(thread: Ref<Tcb>) -> Trap {
    // The context is complete after that: once other harts can reach the thread they may run it.
    // SAFETY: RUNNING-CONTEXT: until the trap the registers belong to this hart alone, which is in this function.
    M::enter_user_and_keep(unsafe { &mut *thread.context.as_ptr() })
}

/// Loads the supervisor registers of a virtualised thread, which has a guest interrupt file of the hart or none (0).
/// The hart is about to call [`enter_virtualised`], and does not hold the kernel's lock.
pub fn prepare_virtualised<M: Virtualisation>(thread: Ref<Tcb>, file: usize) {
    // SAFETY: as in `enter`.
    M::resume_supervisor(unsafe { &mut *thread.context.as_ptr() }, file);
}

/// Runs a virtualised thread until it traps. This hart has prepared that, and has run no other thread since. Otherwise
/// as [`enter`].
#[inline(always)]
pub fn enter_virtualised<M: Virtualisation>(thread: Ref<Tcb>, file: usize) -> Trap {
    // SAFETY: as in `enter`; the supervisor registers are complete again when this returns.
    let context = unsafe { &mut *thread.context.as_ptr() };
    let trap = M::enter_user_and_keep(context);
    M::keep_supervisor(context, file);
    trap
}

/// Loads the registers of an armed thread, and lets it receive in this slot and send through the table in this frame.
/// The hart is about to call [`enter_armed`]. The slot is inactive.
pub fn arm<M: UserLevel>(thread: Ref<Tcb>, slot: Option<u16>, first_frame: u64) {
    // SAFETY: as in `enter`.
    let registers = unsafe { &mut *thread.context.as_ptr() }.supervisor_mut();
    if slot.is_some() {
        // The controller raises the interrupt when the slot becomes active, if a vector is pending.
        registers.notified = 0;
    }
    M::arm(registers);
    M::receive_in(slot);
    M::send_through(Some(SenderTable { first_frame, frames: 1 }));
}

/// Runs an armed thread until it traps. This hart has armed it ([`arm`]), and has run no other thread since. The
/// registers of its interrupts and its rights stay in the hart until [`forget_armed`]. Otherwise as [`enter`].
#[inline(always)]
pub fn enter_armed<M: UserLevel>(thread: Ref<Tcb>) -> Trap {
    // SAFETY: as in `enter`.
    M::enter_user_and_keep(unsafe { &mut *thread.context.as_ptr() })
}

/// Saves the registers of the armed thread that ran last on this hart, which still has them.
#[inline(always)]
pub fn save_armed<M: UserLevel>(thread: Ref<Tcb>) {
    // SAFETY: as in `enter`: until the hart says that it is in the kernel, or while it holds the kernel's lock, no
    // other hart accesses them.
    M::save_armed(unsafe { &mut *thread.context.as_ptr() }.supervisor_mut());
}

/// Takes the registers and rights of the armed thread that ran last from the hart. Its slot is inactive.
pub fn forget_armed<M: UserLevel>() {
    M::forget_armed();
}

/// The root of the table under which a hart runs virtualised threads: four frames, because such a root has four times
/// the entries of another one. The table has one level more than other tables, and the first entry of its root points
/// to the thread's own root. So no entry of the thread's own table is ever copied, and no thread needs a root of this
/// size.
#[derive(Clone, Copy)]
pub struct VirtualRoot(Ref<PageTable>);

impl VirtualRoot {
    /// Size and alignment in bytes.
    pub const SIZE: u64 = 4 << PAGE_TABLE_BITS;

    /// Makes a root of the memory of this size at a physical address. The memory must be cleared and have no other user
    /// for ever (LIVE-OBJECT, kept by boot).
    ///
    /// # Panics
    /// If it is outside the memory for objects, or not aligned.
    pub fn claim(physical: u64) -> VirtualRoot {
        assert!(physical.is_multiple_of(VirtualRoot::SIZE), "the root of a virtualised address space is not aligned");
        let _: Ref<PageTable> = claim(physical + VirtualRoot::SIZE - (1 << PAGE_TABLE_BITS));
        VirtualRoot(claim(physical))
    }

    /// Makes this the table of the hart's virtualised thread, above the root of this address space. The hart's cached
    /// translations of virtualised programs are invalidated.
    pub fn activate<M: Virtualisation>(self, root: Ref<PageTable>) {
        self.0.entries[0].store(root.physical() >> 12 << 10 | VALID, Relaxed);
        // SAFETY: the first entry is the root of an address space (as in `activate`), all others are empty; boot has
        // reserved the memory for ever. Before the program's root is freed, each hart that uses it is made to leave it.
        unsafe { M::activate_virtualised_above(self.0.physical() >> 12) };
    }
}

/// An address space in the form in which the machine activates it, in one word: the number of the root's page, from bit
/// 44 on the identifier, and in the highest bits flags: whether the identifier is too large for the machine, and
/// whether the space is for a thread with interrupts of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space(u64);

impl Space {
    const ASID_SHIFT: u32 = 44;
    const IS_TOO_LARGE: u64 = 1 << 63;
    const HAS_OWN_INTERRUPTS: u64 = 1 << 62;

    /// Makes the address space of a root with its identifier.
    #[inline]
    pub fn new<M: Machine>(root: Ref<PageTable>, asid: u16) -> Space {
        let flag = if asid > M::maximum_asid() { Space::IS_TOO_LARGE } else { 0 };
        Space(root.physical() >> 12 | u64::from(asid) << Space::ASID_SHIFT | flag)
    }

    /// Returns the kernel's own address space, in which programs have no access.
    #[inline]
    pub fn kernel<M: Machine>() -> Space {
        Space(M::kernel_root_ppn())
    }

    /// Returns this address space for a thread with interrupts of its own, for which a hart is prepared before it
    /// enters the thread.
    #[inline]
    pub fn with_own_interrupts(self) -> Space {
        Space(self.0 | Space::HAS_OWN_INTERRUPTS)
    }

    /// Returns whether this is the address space of a thread with interrupts of its own.
    #[inline(always)]
    pub fn has_own_interrupts(self) -> bool {
        self.0 & Space::HAS_OWN_INTERRUPTS != 0
    }

    /// Returns the ASID.
    #[inline(always)]
    pub fn asid(self) -> u16 {
        (self.0 >> Space::ASID_SHIFT) as u16
    }
}

impl Tcb {
    /// Returns the cached address space, if it was stored in this epoch.
    #[inline(always)]
    pub fn space_in(&self, epoch: u64) -> Option<Space> {
        (self.space_epoch.get() == epoch).then(|| Space(self.space.get()))
    }

    /// Caches the address space that the thread has in this epoch.
    #[inline]
    pub fn note_space(&self, space: Space, epoch: u64) {
        self.space.set(space.0);
        self.space_epoch.set(epoch);
    }

    /// Invalidates the cached address space.
    #[inline]
    pub fn forget_space(&self) {
        self.space_epoch.set(0);
    }
}

/// Makes an address space the active one.
#[inline(always)]
pub fn activate<M: Machine>(space: Space) {
    let root = space.0 & ((1 << Space::ASID_SHIFT) - 1);
    // SAFETY: the upper half of every root is the kernel's, copied when the table becomes a root; the lower half maps
    // only pages that were retyped as such, and tables. Before a table's memory is reused, the table is removed from
    // its pool, and each hart that uses it is made to leave it.
    unsafe {
        // Threads of one address space switch to each other without a flush, and the kernel's own translations stay in
        // any case: an unmapping has flushed all of them that have changed.
        if space.0 & Space::IS_TOO_LARGE != 0 {
            M::activate_without_asid(root)
        } else {
            M::activate(root, space.asid())
        }
    }
}
