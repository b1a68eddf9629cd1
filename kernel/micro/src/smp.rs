//! Several harts under one lock.
//!
//! The lock is taken at every kernel entry and given back before a thread is entered, so kernel state is never seen by two
//! harts at once. Only registers of running threads are outside of it (RUNNING-CONTEXT in `objects`). A hart that wants to
//! change a thread that another one runs first takes it away from there: it interrupts the other hart, waits until that has
//! left user mode, and makes its node idle. When the other hart then gets the lock, it finds that it runs nothing and
//! chooses anew. A system call that the thread was just making is taken back, so that it is made again.
//!
//! A hart that waits for the lock is still in the address space that it came from, and fetches the kernel's own instructions through its
//! tables. If that space goes, its memory may be another object's before the waiting hart has its turn. So whoever takes an address space
//! away waits until every hart that came from it has left it ([`MUST_LEAVE`]), which they do while they wait (LEFT-SPACE).
//!
//! A hart that waits for the lock says so ([`others_wait`]). A long operation gives the lock back after the step in which it is, and a turn of asynchronous
//! invocations after the invocation, as if there were an interrupt: so no hart waits longer than one step of each of the others.
//!
//! Without the feature `smp` there is one hart, and nothing of this costs anything.

use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hal_api::{Flush, Machine as _, Scope, Trap};
use objects::{Lock, Locked, Ref, Space, Tcb, lock_with};
use platform::Machine;

use crate::schedule::Action;
use crate::{Kernel, MAXIMUM_NODES};

/// A hart is in the kernel, or about to take the lock. The thread's registers are complete.
const IN_KERNEL: u32 = 0;
/// As above, and it came by a system call.
const IN_SYSTEM_CALL: u32 = 1;
/// A hart runs a thread.
const IN_USER: u32 = 2;

/// Where each hart is. Written by that hart alone. Release and acquire: whoever sees a hart in the kernel sees the registers that
/// it saved.
static WHERE: [AtomicU32; MAXIMUM_NODES] = [const { AtomicU32::new(IN_KERNEL) }; MAXIMUM_NODES];

/// Which harts have to leave the address space that they came from. Set by the hart that holds the lock, cleared by the hart that is meant,
/// which waits for it. Release and acquire: whoever sees that a hart has left may give the tables to somebody else.
static MUST_LEAVE: [AtomicBool; MAXIMUM_NODES] = [const { AtomicBool::new(false) }; MAXIMUM_NODES];

/// Which of its guest interrupt files each hart has to empty, because only it can; 0 for none. Set and cleared as [`MUST_LEAVE`]; release and
/// acquire: what was found is there when it is cleared.
static MUST_DRAIN: [AtomicUsize; MAXIMUM_NODES] = [const { AtomicUsize::new(0) }; MAXIMUM_NODES];
/// What each hart has found in such a file.
static DRAINED: [AtomicU64; MAXIMUM_NODES] = [const { AtomicU64::new(0) }; MAXIMUM_NODES];

/// Which harts wait for the lock. Written by that hart alone, and a hint only: whoever holds the lock and sees one gives it back soon.
static WAITS: [AtomicBool; MAXIMUM_NODES] = [const { AtomicBool::new(false) }; MAXIMUM_NODES];

/// The kernel, locked.
pub struct Entered<'kernel>(Locked<'kernel, Kernel>);

impl Deref for Entered<'_> {
    type Target = Kernel;

    #[inline(always)]
    fn deref(&self) -> &Kernel {
        &self.0
    }
}

/// Takes the lock for a hart.
#[inline(always)]
pub fn enter(kernel: &Lock<Kernel>, hart: usize) -> Entered<'_> {
    let mut has_waited = false;
    let kernel = lock_with(kernel, || {
        has_waited = true;
        WAITS[hart].store(true, Ordering::Relaxed);
        leave_if_told(hart);
    });
    if cfg!(feature = "smp") {
        kernel.here.set(hart);
        if has_waited {
            WAITS[hart].store(false, Ordering::Relaxed);
        }
    }
    Entered(kernel)
}

/// Whether a hart waits for the lock: it may be there for an interrupt that is more urgent than a long operation here.
#[inline(always)]
pub fn others_wait() -> bool {
    // Tests run beside each other and each is a machine of its own, but the words are one for all of them.
    #[cfg(test)]
    return tests::PRETENDS_TO_WAIT.get();
    #[cfg(not(test))]
    return cfg!(feature = "smp") && WAITS.iter().any(|waits| waits.load(Ordering::Relaxed));
}

fn leave_if_told(hart: usize) {
    if MUST_LEAVE[hart].load(Ordering::Acquire) {
        objects::activate::<Machine>(Space::kernel::<Machine>());
        MUST_LEAVE[hart].store(false, Ordering::Release);
    }
    let file = MUST_DRAIN[hart].load(Ordering::Acquire);
    if file != 0 {
        DRAINED[hart].store(Machine::drain_guest_file(file), Ordering::Relaxed);
        MUST_DRAIN[hart].store(0, Ordering::Release);
    }
}

/// Runs a thread until something happens. The caller has given the lock back.
#[inline(always)]
pub fn visit(thread: Ref<Tcb>, hart: usize) -> Trap {
    note_trap(objects::enter::<Machine>(thread), hart)
}

/// Says that a hart has come into the kernel: the registers of the thread that it ran are complete.
#[inline(always)]
pub fn note_trap(trap: Trap, hart: usize) -> Trap {
    if cfg!(feature = "smp") {
        let place = if trap == Trap::SystemCall { IN_SYSTEM_CALL } else { IN_KERNEL };
        WHERE[hart].store(place, Ordering::Release);
    }
    trap
}

impl Kernel {
    /// Notes under the lock that this hart runs a thread from now on.
    #[inline(always)]
    pub(crate) fn note_user(&self) {
        if cfg!(feature = "smp") {
            if self.node().is_stale.take() {
                Machine::flush_tlb(Flush::Local(Scope::All));
            }
            WHERE[self.here()].store(IN_USER, Ordering::Relaxed);
        }
    }

    /// Notes under the lock that this hart gives the lock back without running a thread: its current thread's system call is done.
    #[inline(always)]
    pub(crate) fn note_kernel(&self) {
        if cfg!(feature = "smp") {
            WHERE[self.here()].store(IN_KERNEL, Ordering::Relaxed);
        }
    }

    /// Takes a thread away from another hart that runs it. It stays runnable.
    #[inline]
    pub(crate) fn stop_elsewhere(&self, thread: Ref<Tcb>) {
        if cfg!(feature = "smp") {
            let node = self.node_of(thread);
            if node != self.here() && self.nodes[node].current.get() == Some(thread) {
                self.stop_node(node);
            }
        }
    }

    /// Takes threads away from the other harts that run in one of these address spaces, by their identifiers, and has those harts leave it.
    /// LEFT-SPACE: afterwards no other hart uses their tables.
    #[inline]
    pub(crate) fn stop_address_spaces(&self, are_meant: impl Fn(u16) -> bool) {
        if cfg!(feature = "smp") {
            for index in (0..self.node_count.get()).filter(|&index| index != self.here()) {
                let node = &self.nodes[index];
                if are_meant(node.asid.get()) {
                    self.stop_node(index);
                    // The hart is in the kernel, or it would have a thread; and it is on its way to the lock, or it would be in no space.
                    MUST_LEAVE[index].store(true, Ordering::Release);
                    while MUST_LEAVE[index].load(Ordering::Acquire) {
                        core::hint::spin_loop();
                    }
                    node.asid.set(0);
                }
            }
        }
    }

    /// Takes what is pending out of a hart's guest interrupt file, to which nobody can store any more, and disables it.
    pub(crate) fn drain_file(&self, index: usize, file: usize) -> u64 {
        if !cfg!(feature = "smp") || index == self.here() {
            return Machine::drain_guest_file(file);
        }
        MUST_DRAIN[index].store(file, Ordering::Release);
        // Wherever it is, it comes for the lock.
        Machine::send_ipi(index);
        while MUST_DRAIN[index].load(Ordering::Acquire) != 0 {
            core::hint::spin_loop();
        }
        DRAINED[index].load(Ordering::Relaxed)
    }

    /// Makes a hart that runs a virtualised thread in this address space come into the kernel; says whether it did.
    pub(crate) fn stop_virtualised(&self, index: usize) -> bool {
        let is_virtualised = self.nodes[index].is_virtualised.get();
        if is_virtualised {
            self.stop_node(index);
        }
        is_virtualised
    }

    fn stop_node(&self, index: usize) {
        let node = &self.nodes[index];
        let Some(thread) = node.current.get() else { return };
        if WHERE[index].load(Ordering::Acquire) == IN_USER {
            Machine::send_ipi(index);
            while WHERE[index].load(Ordering::Acquire) == IN_USER {
                core::hint::spin_loop();
            }
        }
        if WHERE[index].load(Ordering::Acquire) == IN_SYSTEM_CALL {
            thread.pc().set(thread.pc().get().wrapping_sub(4));
        }
        thread.fault_pc.set(thread.pc().get());
        node.current.set(None);
        node.entered.set(None);
        node.action.set(Action::Choose);
        if thread.state().is_runnable() {
            self.enqueue(thread);
        }
    }

    /// Moves a thread to another hart.
    pub(crate) fn set_affinity(&self, thread: Ref<Tcb>, node: u8) {
        self.stop_elsewhere(thread);
        let signals = self.give_up_file(thread);
        self.dequeue(thread);
        thread.affinity.set(node);
        let is_current = self.node().current.get() == Some(thread);
        if is_current {
            self.reschedule();
        } else if thread.state().is_runnable() {
            self.enqueue(thread);
        }
        if let Some(notification) = thread.bound.get()
            && signals != 0
        {
            self.signal(notification, signals);
        }
    }

    /// Tells other harts that they have better things to do.
    #[inline(always)]
    pub(crate) fn poke_others(&self) {
        if cfg!(feature = "smp") {
            let mut pokes = self.node().pokes.take();
            while pokes != 0 {
                Machine::send_ipi(pokes.trailing_zeros() as usize);
                pokes &= pokes - 1;
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    std::thread_local! {
        /// Whether another hart is said to wait. Of each thread, because tests run beside each other.
        pub static PRETENDS_TO_WAIT: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
    }
}
