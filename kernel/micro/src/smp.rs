//! Several harts under one lock.
//!
//! The lock is taken at every kernel entry and released before a thread is entered, so two harts never access kernel
//! state at the same time. Only registers of running threads are not protected by it (RUNNING-CONTEXT in `objects`). A
//! hart that changes a thread that runs on another hart first stops it there: it interrupts the other hart, waits until
//! that hart has left user mode, and makes its node idle. When the other hart then gets the lock, it has no current
//! thread and chooses one. A system call that the thread was just making is undone, so that it is restarted.
//!
//! A hart that waits for the lock is still in the address space from which it entered, and fetches the kernel's
//! instructions through its tables. If that space is deleted, its memory may belong to another object before the
//! waiting hart gets the lock. So the deleting hart waits until every hart that entered from the space has left it
//! (`must_leave`), which the harts do while they wait for the lock (LEFT-SPACE).
//!
//! A hart that waits for the lock sets its bit in `waiting`. A long operation then releases the lock after the current
//! step, and a turn of asynchronous invocations after the current invocation, as for an interrupt. A hart that is about
//! to take the lock while another waits yields for a moment ([`COURTESY`]): otherwise a hart whose thread makes one
//! call after another could exclude others for any time, because the lock is free for less time than it takes to see
//! that.
//!
//! The moment is not enough if the waiting hart does not run just then: a hypervisor or an emulator may have fewer
//! processors than the machine has harts. So a hart that has been overtaken `OVERTAKINGS` times is owed the lock, and
//! the others do not take it before. A hart that has been interrupted so that it chooses anew counts as overtaken too
//! while it is not in the kernel yet. So a thread that becomes ready on another hart is chosen there after a few
//! entries of the hart that made it ready, and a fault that another hart's unmapping causes arrives as soon. `hart`
//! contains the rule, and a model of it. A hart that waits for long sleeps between two looks, for the same reason.
//!
//! Without the feature `smp` there is one hart, and this module costs nothing.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use hal_api::{Flush, Machine as _, Scope, Trap, Virtualisation as _};
use objects::{Lock, Locked, Ref, Tcb, lock_with};
use platform::Machine;

use crate::hart::{Harts, IN_KERNEL, IN_SYSTEM_CALL, IN_USER};
use crate::kernel::Kernel;
use crate::node::Decision;

/// Number of polls for which a hart yields the lock to a waiting hart.
const COURTESY: u32 = 64;

/// Number of polls after which a waiting hart sleeps between two polls.
const SPINS: u32 = 1_000;

/// The time for which it sleeps, in the machine's time: about a hundred microseconds.
const SLEEP: u64 = 1_000;

/// A hart's wait for the lock.
struct Wait {
    polls: u32,
    has_slept: bool,
}

impl Wait {
    const fn new() -> Wait {
        Wait { polls: 0, has_slept: false }
    }

    /// Waits for a moment. A hart that has waited for long sleeps instead of polling: a hypervisor or an emulator may
    /// run the awaited hart meanwhile. Nothing has to wake the sleeping hart but its clock.
    fn pause(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.polls <= SPINS {
            core::hint::spin_loop();
        } else {
            self.has_slept = true;
            Machine::set_timer(Machine::now() + SLEEP);
            Machine::wait_for_interrupt();
        }
    }
}

/// The kernel, locked.
pub struct Entered<'kernel>(Locked<'kernel, Kernel>);

impl Deref for Entered<'_> {
    type Target = Kernel;

    #[inline(always)]
    fn deref(&self) -> &Kernel {
        &self.0
    }
}

/// A kernel and its lock, with the words that harts access without the lock. The reference comes first, because the
/// kernel is larger than the range of an instruction's offset.
#[repr(C)]
pub struct Shared {
    harts: &'static Harts,
    kernel: Lock<Kernel>,
}

impl Shared {
    /// Makes a kernel without threads, whose harts have these words.
    pub const fn new(harts: &'static Harts) -> Shared {
        Shared { harts, kernel: Lock::new(Kernel::new(harts)) }
    }

    /// Takes the lock while no other hart runs.
    pub fn lock(&self) -> Locked<'_, Kernel> {
        self.kernel.lock()
    }

    /// Takes the lock for a hart.
    #[inline(always)]
    pub fn enter(&self, hart: usize) -> Entered<'_> {
        let mut wait = Wait::new();
        if self.harts.any_due() {
            self.give_way(hart, &mut wait);
        }
        let mut has_waited = false;
        let kernel = lock_with(&self.kernel, || {
            if !has_waited {
                has_waited = true;
                self.harts.begins_to_wait(hart);
            }
            self.harts.obey(hart);
            wait.pause();
        });
        if cfg!(feature = "smp") {
            kernel.here.set(hart);
            self.harts.has_taken(hart);
            if wait.has_slept {
                // The tick may be due by now.
                Machine::set_timer(kernel.node().next_tick.get());
            }
        }
        Entered(kernel)
    }

    /// Lets harts pass that are due at the lock: for a moment those that wait for it, and until they have taken it
    /// those to which it is owed.
    #[cold]
    #[inline(never)]
    fn give_way(&self, hart: usize, wait: &mut Wait) {
        // This hart waits as well, and the lock may become owed to it.
        let mut is_counted = false;
        while self.harts.must_let_pass(hart) || wait.polls < COURTESY && self.harts.another_waits(hart) {
            if !is_counted {
                is_counted = true;
                self.harts.begins_to_wait(hart);
            }
            // The hart that holds the lock may wait for this hart.
            self.harts.obey(hart);
            wait.pause();
        }
        if wait.has_slept {
            // The hart that has passed begins to run its thread, perhaps on the processor that would run this hart.
            self.harts.obey(hart);
            wait.pause();
        }
    }

    /// Runs a thread until it traps. The caller has released the lock.
    #[inline(always)]
    pub fn visit(&self, thread: Ref<Tcb>, hart: usize) -> Trap {
        self.note_trap(objects::enter::<Machine>(thread), hart)
    }

    /// Records that a hart has entered the kernel, as [`Harts::note_trap`].
    #[inline(always)]
    pub fn note_trap(&self, trap: Trap, hart: usize) -> Trap {
        self.harts.note_trap(trap, hart)
    }
}

impl Kernel {
    /// Returns whether another hart waits for the lock.
    #[inline(always)]
    pub(crate) fn others_wait(&self) -> bool {
        self.harts.others_wait()
    }

    /// Records, under the lock, that this hart runs a thread from now on.
    #[inline(always)]
    pub(crate) fn note_user(&self) {
        if cfg!(feature = "smp") {
            if self.node().is_stale.take() {
                Machine::flush_tlb(Flush::Local(Scope::All));
            }
            self.harts.each[self.here()].place.store(IN_USER, Ordering::Relaxed);
        }
    }

    /// Records, under the lock, that this hart releases the lock without running a thread: its current thread's system
    /// call is done.
    #[inline(always)]
    pub(crate) fn note_kernel(&self) {
        if cfg!(feature = "smp") {
            self.harts.each[self.here()].place.store(IN_KERNEL, Ordering::Relaxed);
        }
    }

    /// Stops a thread that runs on another hart. The thread stays runnable.
    #[inline]
    pub(crate) fn stop_elsewhere(&self, thread: Ref<Tcb>) {
        if cfg!(feature = "smp") {
            let node = self.node_of(thread);
            if node != self.here() && self.nodes[node].current.get() == Some(thread) {
                self.stop_node(node);
            }
        }
    }

    /// Stops the threads of other harts that run in one of these address spaces, selected by ASID, and makes those
    /// harts leave it. LEFT-SPACE: afterwards no other hart uses the tables of these address spaces.
    #[inline]
    pub(crate) fn stop_address_spaces(&self, are_meant: impl Fn(u16) -> bool) {
        if cfg!(feature = "smp") {
            for index in (0..self.node_count.get()).filter(|&index| index != self.here()) {
                let node = &self.nodes[index];
                if are_meant(node.asid.get()) {
                    self.stop_node(index);
                    // The hart is in the kernel, because it has no thread; and it waits for the lock, because it is
                    // still in an address space.
                    let must_leave = &self.harts.each[index].must_leave;
                    must_leave.store(true, Ordering::Release);
                    while must_leave.load(Ordering::Acquire) {
                        core::hint::spin_loop();
                    }
                    node.asid.set(0);
                }
            }
        }
    }

    /// Takes the pending identities out of a hart's guest interrupt file and disables it. No store can reach the file
    /// any more.
    pub(crate) fn drain_file(&self, index: usize, file: usize) -> u64 {
        if !cfg!(feature = "smp") || index == self.here() {
            return Machine::drain_guest_file(file);
        }
        let hart = &self.harts.each[index];
        hart.must_drain.store(file, Ordering::Release);
        // The hart will enter the kernel and wait for the lock, in any state.
        Machine::send_ipi(index);
        while hart.must_drain.load(Ordering::Acquire) != 0 {
            core::hint::spin_loop();
        }
        hart.drained.load(Ordering::Relaxed)
    }

    /// Makes a hart that runs a virtualised thread enter the kernel; returns whether it did run one.
    pub(crate) fn stop_virtualised(&self, index: usize) -> bool {
        let is_virtualised = self.nodes[index].is_virtualised.get();
        if is_virtualised {
            self.stop_node(index);
        }
        is_virtualised
    }

    pub(crate) fn stop_node(&self, index: usize) {
        let node = &self.nodes[index];
        let Some(thread) = node.current.get() else { return };
        if self.harts.each[index].place.load(Ordering::Acquire) == IN_USER {
            Machine::send_ipi(index);
            while self.harts.each[index].place.load(Ordering::Acquire) == IN_USER {
                core::hint::spin_loop();
            }
        }
        if self.harts.each[index].place.load(Ordering::Acquire) == IN_SYSTEM_CALL {
            thread.pc().set(thread.pc().get().wrapping_sub(4));
        }
        thread.fault_pc.set(thread.pc().get());
        if node.is_armed.take() {
            self.rest_slot(thread);
        }
        node.current.set(None);
        node.entered.set(None);
        node.decision.set(Decision::Open);
        if thread.state().is_runnable() {
            self.queue_first(thread);
        }
    }

    /// Moves a thread to another hart.
    pub(crate) fn move_to_hart(&self, thread: Ref<Tcb>, node: u8) {
        self.stop_elsewhere(thread);
        let signals = self.give_up_file(thread);
        self.leave_queue(thread);
        thread.affinity.set(node);
        let is_current = self.node().current.get() == Some(thread);
        if is_current {
            self.choose_anew();
        } else if thread.state().is_runnable() {
            self.queue_last(thread);
        }
        if let Some(notification) = thread.bound.get()
            && signals != 0
        {
            self.signal(notification, signals);
        }
    }

    /// Interrupts other harts that must choose a thread anew.
    #[inline(always)]
    pub(crate) fn poke_others(&self) {
        if cfg!(feature = "smp") {
            let mut pokes = self.node().pokes.take();
            while pokes != 0 {
                let hart = pokes.trailing_zeros() as usize;
                self.harts.expect(hart);
                Machine::send_ipi(hart);
                pokes &= pokes - 1;
            }
        }
    }
}
