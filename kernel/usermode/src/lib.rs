//! The link between address spaces and the machine: entering user mode, and flushing translations.
//!
//! `memory` has the mappings and the flushes that they need, `platform` can switch and flush harts; the two are
//! independent of each other. Here a [`Space`] is an address space that harts can run in, and every change of it is
//! followed by the flush that it requires.
//!
//! # ROOT-LIVES
//!
//! A hart goes on walking the page table that its `satp` names when it is back in the kernel, until it enters another
//! space: most traps return to the interrupted program, and writing `satp` is expensive. So each hart *owns a share* of
//! the space it is in (`CURRENT`); the tables live at least as long as a hart can walk them. The price is that the root
//! of an ended process is freed only when every hart that was in it has moved on. [`Space::retire`] frees everything
//! else at once and asks idle harts to move on; they do so in [`release_retired`].
#![cfg_attr(target_os = "none", no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

use alloc::sync::Arc;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use hal_api::{
    Access, Flush as MachineFlush, HartSet, MAXIMUM_HARTS, Machine as _, Scope as MachineScope, Virtualisation as _,
};
use hal_api::{Trap, UserContext};
use memory::asid::{Identifiers, LocalFlush};
use memory::space::{Entry, Flush, FlushRequest, Instructions, Limits};
use memory::sv39::{self, KernelHalf, RootSize, Scope};
use memory::{AddressSpace, OutOfMemory};
use platform::Machine;
use spin::{Mutex, MutexGuard, Once};

pub use memory::space::Fault;

/// Mode in which programs run in a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In user mode.
    User,
    /// Virtualised: with supervisor registers of their own ([`hal_api::Virtualisation::activate_virtualised`]).
    Virtualised,
}

/// An address space that harts can run in.
#[doc(alias = "mm_struct")]
#[doc(alias = "VSpace")]
pub struct Space {
    memory: Mutex<AddressSpace>,
    kind: Kind,
    // Set with release when the space is empty, before the harts in it are interrupted, which look (acquire) and leave.
    retired: AtomicBool,
}

/// A space that this hart is in, while the caller keeps the hart: a value of a visit, which no other hart gets.
pub struct Entered(PhantomData<*const Space>);

impl Entered {
    /// Runs the program in this space in user mode until the next trap.
    #[inline]
    pub fn run(&self, context: &mut UserContext) -> Trap {
        Machine::enter_user(context)
    }
}

// Harts index arrays of both sizes.
const _: () = assert!(memory::MAX_HARTS == MAXIMUM_HARTS);

/// Space whose table each hart walks, owned by that hart (ROOT-LIVES). Locked by its own hart only.
static CURRENT: [Mutex<Option<Arc<Space>>>; MAXIMUM_HARTS] = [const { Mutex::new(None) }; MAXIMUM_HARTS];
/// Address of that space, to compare without a lock; 0 for none. Used by its own hart only, hence relaxed.
static CURRENT_ADDRESS: [AtomicUsize; MAXIMUM_HARTS] = [const { AtomicUsize::new(0) }; MAXIMUM_HARTS];

fn identifiers() -> &'static Identifiers {
    static IDENTIFIERS: Once<Identifiers> = Once::new();
    IDENTIFIERS.call_once(|| Identifiers::new(u16::BITS - Machine::maximum_asid().leading_zeros()))
}

fn kernel_half() -> &'static KernelHalf {
    static KERNEL_HALF: Once<KernelHalf> = Once::new();
    KERNEL_HALF.call_once(|| {
        let root = Machine::direct_map(Machine::kernel_root_ppn() * memory::PAGE_SIZE).cast::<u64>();
        // SAFETY: the kernel's root is a page of 512 entries that lives for ever, the direct map covers it, and its
        // upper half does not change any more once address spaces are made (KERNEL-HALF in `memory`).
        KernelHalf::new(core::array::from_fn(|index| unsafe { root.add(256 + index).read_volatile() }))
    })
}

impl Space {
    /// Makes an empty space.
    pub fn new(limits: Limits, kind: Kind) -> Result<Space, OutOfMemory> {
        let root = match kind {
            Kind::User => RootSize::Page,
            Kind::Virtualised => RootSize::Shared,
        };
        let memory = AddressSpace::new(kernel_half(), root, limits, flush_now)?;
        Ok(Space { memory: Mutex::new(memory), kind, retired: AtomicBool::new(false) })
    }

    /// Returns the mode in which programs run here.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Locks the memory, for copying and for changes. The [`Flush`] of a change goes to [`flush`].
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, AddressSpace> {
        self.memory.lock()
    }

    /// Brings this hart into the space, where it stays until it enters another one, or comes by
    /// [`release_retired`].
    #[inline]
    pub fn enter(self: &Arc<Self>) -> Entered {
        let hart = Machine::hart();
        if CURRENT_ADDRESS[hart].load(Ordering::Relaxed) != Arc::as_ptr(self) as usize {
            self.switch(hart);
        }
        Entered(PhantomData)
    }

    #[cold]
    fn switch(self: &Arc<Self>, hart: usize) {
        let entry = self.memory.lock().enter(identifiers(), hart);
        activate(&entry, self.kind);
        CURRENT_ADDRESS[hart].store(Arc::as_ptr(self) as usize, Ordering::Relaxed);
        let old = CURRENT[hart].lock().replace(self.clone());
        leave(old, hart);
    }

    /// Resolves a page fault of a program that runs on this hart.
    pub fn fault(&self, address: usize, access: Access) -> Result<(), Fault> {
        let access = match access {
            Access::Read => sv39::Access::Read,
            Access::Write => sv39::Access::Write,
            Access::Execute => sv39::Access::Execute,
        };
        let (asid, fetching_harts) = {
            let mut memory = self.lock();
            memory.fault(address as u64, access)?;
            (memory.identifier(), memory.harts_to_synchronise())
        };
        Machine::flush_tlb(MachineFlush::Local(match self.kind {
            Kind::User => MachineScope::Page { address, asid },
            Kind::Virtualised => MachineScope::Virtualised { start: address, length: 1 },
        }));
        synchronise_instructions(fetching_harts);
        Ok(())
    }

    /// Makes all harts fetch the program's instructions anew: those that are in it now, and others when they enter it.
    pub fn fetch_anew(&self) {
        let harts = {
            let mut memory = self.memory.lock();
            memory.note_new_instructions();
            memory.harts_to_synchronise()
        };
        synchronise_instructions(harts);
    }

    /// Orders the accesses to memory of all harts that are in the space: those before this call come before everything
    /// after it, and those after it come after everything before it, on each hart, as by a full fence there.
    pub fn order_accesses(&self) {
        order_accesses_of(self.memory.lock().active_harts());
    }

    /// Removes all of the user half's mappings.
    pub fn clear(&self) {
        while self.clear_part() {}
    }

    /// Removes a part of the mappings, with a bounded amount of work; returns whether more may be left.
    pub fn clear_part(&self) -> bool {
        let removed = self.memory.lock().clear_part();
        match removed {
            None => false,
            Some(removed) => {
                flush(removed);
                true
            }
        }
    }

    /// Clears the space as [`clear`](Self::clear) does, for good, and interrupts the harts that still walk the table,
    /// so that they leave it.
    pub fn retire(&self) {
        self.clear();
        self.retired.store(true, Ordering::Release);
        let harts = HartSet::from_mask(self.memory.lock().active_harts()).without(Machine::hart());
        for hart in harts.iter() {
            Machine::send_ipi(hart);
        }
    }
}

/// Carries a flush out and frees the frames that wait for it.
pub fn flush(flush: Flush) {
    flush.after(flush_now);
}

/// Makes harts flush what a request says. Other harts do so in machine mode, also while they spin for a lock.
fn flush_now(request: &FlushRequest<'_>) {
    if let Some(flush) = machine_flush(request) {
        Machine::flush_tlb(flush);
    }
    synchronise_instructions(request.fetching_harts);
}

/// Makes the harts of a mask synchronise their instruction fetch (FETCH-AFTER-WRITE).
fn synchronise_instructions(harts: u64) {
    if harts != 0 {
        Machine::synchronise_instructions(HartSet::from_mask(harts));
    }
}

/// Orders the accesses to memory of the harts of a mask, as [`Space::order_accesses`] does.
pub fn order_accesses_of(harts: u64) {
    fence(Ordering::SeqCst);
    // Whichever work a hart does for another one in machine mode, it takes the order with an acquire and answers with a
    // release; the order waits for the answer. That is what is needed, and a fence for its fetches is the smallest.
    synchronise_instructions(harts & !(1 << Machine::hart()));
    fence(Ordering::SeqCst);
}

fn machine_flush(request: &FlushRequest<'_>) -> Option<MachineFlush> {
    let asid = request.identifier;
    let scope = match request.scope {
        _ if request.harts == 0 => return None,
        Scope::Nothing => return None,
        Scope::Pages(range) => {
            let (start, length) = (range.start as usize, (range.end - range.start) as usize);
            match request.root {
                RootSize::Page => MachineScope::Range { start, length, asid },
                RootSize::Shared => MachineScope::Virtualised { start, length },
            }
        }
        Scope::All if request.root == RootSize::Shared => MachineScope::Virtualised { start: 0, length: usize::MAX },
        Scope::All => MachineScope::AddressSpace { asid },
    };
    let harts = HartSet::from_mask(request.harts);
    Some(if harts == HartSet::only(Machine::hart()) {
        MachineFlush::Local(scope)
    } else {
        MachineFlush::Remote(harts, scope)
    })
}

fn activate(entry: &Entry, kind: Kind) {
    let root_ppn = entry.root / memory::PAGE_SIZE;
    match kind {
        // SAFETY: the root was made from the kernel's own upper half (`kernel_half`); it stays allocated because the
        // caller makes this hart own a share of the space (ROOT-LIVES); its lower half maps only memory that `memory`
        // hands to programs.
        Kind::User => unsafe { Machine::activate(root_ppn, entry.identifier) },
        // SAFETY: as above, and `Space::new` gave it a root of four frames, aligned to them.
        Kind::Virtualised => unsafe { Machine::activate_virtualised(root_ppn) },
    }
    match entry.flush {
        LocalFlush::Nothing => {}
        LocalFlush::Identifier(asid) => {
            Machine::flush_tlb(MachineFlush::Local(MachineScope::AddressSpace { asid }));
        }
        LocalFlush::Everything => Machine::flush_tlb(MachineFlush::Local(MachineScope::All)),
    }
    if entry.instructions == Instructions::Changed {
        Machine::synchronise_instructions(HartSet::only(Machine::hart()));
    }
}

fn leave(old: Option<Arc<Space>>, hart: usize) {
    if let Some(old) = old {
        old.memory.lock().leave(hart);
    }
}

/// Moves this hart out of a retired space. Called between coroutines and when idle.
#[inline]
#[doc(alias = "lazy TLB")]
pub fn release_retired() {
    let hart = Machine::hart();
    if CURRENT_ADDRESS[hart].load(Ordering::Relaxed) != 0 {
        release_if_retired(hart);
    }
}

fn release_if_retired(hart: usize) {
    let mut current = CURRENT[hart].lock();
    if current.as_ref().is_some_and(|space| space.retired.load(Ordering::Acquire)) {
        // SAFETY: the kernel's own root lives for ever.
        unsafe { Machine::activate(Machine::kernel_root_ppn(), 0) };
        CURRENT_ADDRESS[hart].store(0, Ordering::Relaxed);
        let old = current.take();
        drop(current);
        leave(old, hart);
    }
}
