//! Notifications as user interrupts without the kernel: virtualised threads, and stores instead of signals.
//!
//! On machines with guest interrupt files (hypervisor extension, IMSIC), a thread that registers for user interrupts
//! and names *hints*, bits of badges, runs virtualised from then on: with supervisor registers of its own, and with a
//! guest interrupt file of its hart, in which a store makes one of these bits pending. A sender maps the file's page
//! into its address space (`sender_page`). A signal is then a store to that page, and neither side enters the kernel.
//! On machines with UINTC, threads take their interrupts in user mode instead (`user_interrupt_uintc`).
//!
//! # Pending signals
//!
//! Signals that are pending in a file count as signals in the notification's word: the kernel moves them there before
//! the receiver reads the word, and when the file is taken away. While the receiver waits for the notification the file
//! is *watched*: it interrupts the kernel, which signals the notification. The file of a thread that does not wait is
//! not watched, so that a store to it costs only its thread time.
//!
//! Each tick of the hart looks at the watched files too. QEMU (7.2 and some later versions) does not serialise a hart's
//! accesses to its file and stores to it: if they come at the same time, the file may not interrupt although an
//! identity is pending in it, until the next access. For the same reason enable bits are written only where they are to
//! change, which is never so with a program that leaves them alone: QEMU might lose the identity itself.
//!
//! # Entering and leaving
//!
//! A virtualised thread's address space is never cached (SPACE-EPOCH), so the fastpath does not switch to it. Before a
//! hart enters such a thread it *prepares* that: it points the root of its second stage at the thread's own root,
//! flushes its cached translations of that stage, finds a file, and loads the supervisor registers, unless it still
//! holds them. When the thread traps, the registers are saved, but stay in the hart.
//!
//! Most kernel entries of a thread end with the same thread, and nothing has happened to it: it polled, signalled, or
//! sent a message. Then the hart enters it again without a step of the preparation (`Kernel::serve_virtualised`). The
//! conditions are those under which an ordinary thread continues, and:
//!
//! * The kernel entry was a system call that cannot change translations: no fault, which may map a sender page, and no
//!   interrupt, which may be a tick. A message with a label may be an invocation, and counts as a change.
//! * No signal is to be delivered by the kernel (`is_virtualised` of the node is still set), and the hart has not left
//!   the address space (`asid` is).
//!
//! Everything else is either done by other harts, which stop the thread first, or by this hart for another thread,
//! which it enters in between. So the thread's file, its registers and its root are those that were prepared. A hart
//! that changes an address space makes other harts that run a virtualised thread in it enter the kernel, instead of
//! sending them the translations to flush; they prepare the thread anew.
//!
//! # Floods of stores
//!
//! A flood of stores concerns only the receiver's own handler, which masks its interrupts after a number of them. When
//! the thread runs again after a tick of its hart, the kernel unmasks them.

use abi_sel4::MessageInfo;
use abi_sel4::call::number;
use hal_api::{Trap, Virtualisation as _};
use objects::{Ref, Space, Tcb, ThreadState, enter_virtualised, own, prepare_virtualised};
use platform::Machine;

use crate::kernel::Kernel;
use crate::machine;
use crate::node::{Decision, FILES, MAXIMUM_NODES, Next};
use crate::smp::Shared;

/// Bits that can be hints: bit `n` has identity `n + 1`, and 63 is the last identity in a word.
pub const HINTS: u64 = !0 >> 1;

/// Returns whether a thread waits for its bound notification.
#[inline]
fn waits(thread: Ref<Tcb>) -> bool {
    match thread.state() {
        ThreadState::Receiving => true,
        ThreadState::AwaitingSignal => thread.waits_for.get() == thread.bound.get(),
        _ => false,
    }
}

impl Kernel {
    /// Assigns a file to a virtualised thread that is about to be entered on this hart, if it has hints and a file is
    /// free.
    fn take_file(&self, thread: Ref<Tcb>) {
        let interrupts = &thread.interrupts;
        if interrupts.hints.get() == 0 || interrupts.file_or_slot.get() != 0 {
            return;
        }
        let files = &self.node().files;
        let count = FILES.min(machine::guest_files() + 1);
        if let Some(file) = (1..count).find(|&file| files[file].get().is_none()) {
            files[file].set(Some(thread));
            interrupts.file_or_slot.set(file as u64);
            Machine::prepare_guest_file(file, interrupts.hints.get() << 1);
        }
    }

    /// Takes a thread's file away, if it has one, so that no store reaches it any more; returns the signals that were
    /// pending in it.
    #[inline]
    pub(crate) fn give_up_file(&self, thread: Ref<Tcb>) -> u64 {
        match thread.interrupts.file_or_slot.get() {
            0 => 0,
            file => self.empty_file_or_slot(thread, file as usize),
        }
    }

    #[cold]
    #[inline(never)]
    fn empty_file_or_slot(&self, thread: Ref<Tcb>, file: usize) -> u64 {
        match thread.slot() {
            Some(slot) => self.empty_slot(thread, slot),
            None => self.empty_file(thread, file),
        }
    }

    fn empty_file(&self, thread: Ref<Tcb>, file: usize) -> u64 {
        self.stop_elsewhere(thread);
        self.node().prepare_anew(thread);
        thread.interrupts.file_or_slot.set(0);
        for sender in self.senders.iter() {
            if sender.notification.get() == thread.bound.get() && sender.physical.get() != 0 {
                self.unmap_sender(sender);
            }
        }
        // The file may be assigned to another thread at once.
        self.flush_deferred();
        let node = self.node_of(thread);
        let pending = self.drain_file(node, file);
        self.nodes[node].files[file].set(None);
        pending >> 1 & thread.interrupts.hints.get()
    }

    /// Takes a thread's file away, and signals its pending bits.
    #[inline]
    pub(crate) fn deactivate(&self, thread: Ref<Tcb>) {
        let signals = self.give_up_file(thread);
        if let Some(notification) = thread.bound.get()
            && signals != 0
        {
            self.signal(notification, signals);
        }
    }

    /// Moves the pending signals of the file of the thread that runs here to its notification's word; returns whether
    /// there were any.
    #[inline(always)]
    fn collect(&self, thread: Ref<Tcb>, file: usize) -> bool {
        if file == 0 {
            return false;
        }
        let signals = Machine::take_guest_file(file) >> 1 & thread.interrupts.hints.get();
        if let Some(notification) = thread.bound.get()
            && signals != 0
        {
            notification.add(signals);
            return true;
        }
        false
    }

    /// Watches exactly the files of this hart's threads that wait for their notification.
    #[cold]
    #[inline(never)]
    fn watch_files(&self) {
        let mut watched = 0;
        for (file, thread) in self.node().files.iter().enumerate() {
            if let Some(thread) = thread.get().filter(|&thread| waits(thread)) {
                // Other identities, which its program may have enabled, would stay pending for ever.
                Machine::enable_guest_file(file, thread.interrupts.hints.get() << 1);
                watched |= 1 << file;
            }
        }
        self.node().watched.set(watched);
        Machine::watch_guest_files(watched);
    }

    /// Signals the notifications whose bits are pending in watched files of this hart, after an interrupt of these.
    pub(crate) fn serve_files(&self) {
        self.look_at_files(Machine::pending_guest_files());
    }

    /// Signals the notifications whose bits are pending in watched files of this hart, whether or not these interrupt.
    #[inline]
    pub(crate) fn look_at_watched_files(&self) {
        if self.node().watched.get() != 0 {
            self.look_at_files(self.node().watched.get());
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_files(&self, files: u64) {
        for (file, thread) in self.node().files.iter().enumerate() {
            if files >> file & 1 != 0
                && let Some(thread) = thread.get()
                && waits(thread)
                && let Some(notification) = thread.bound.get()
            {
                let signals = Machine::take_guest_file(file) >> 1 & thread.interrupts.hints.get();
                if signals != 0 {
                    self.signal(notification, signals);
                }
            }
        }
        self.watch_files();
    }

    /// Prepares this hart to enter a virtualised thread.
    pub(crate) fn enter_virtualised(&self, thread: Ref<Tcb>, space: Space) -> Next {
        let node = self.node();
        self.take_file(thread);
        if node.watched.get() >> thread.interrupts.file_or_slot.get() & 1 != 0 {
            // The thread, or the file's last owner, waited for its notification.
            self.watch_files();
        }
        if thread.interrupts.unmasked_before.replace(node.next_tick.get()) != node.next_tick.get() {
            thread.unmask_own_interrupts();
        }
        node.entered.set(None);
        node.asid.set(space.asid());
        node.is_virtualised.set(true);
        if let (Some(root), Some((table, _))) =
            (node.virtual_root.get(), thread.own_slot(own::VSPACE).capability.mapped_table())
        {
            root.activate::<Machine>(table);
        }
        self.note_user();
        Next::RunVirtualised(thread)
    }

    /// Serves the trap of a virtualised thread with this file; returns whether the hart can enter the thread again
    /// without preparation.
    #[inline(always)]
    pub(crate) fn serve_virtualised(&self, thread: Ref<Tcb>, trap: Trap, file: usize) -> bool {
        if trap != Trap::SystemCall {
            self.serve_other_trap(thread, trap, file);
            return false;
        }
        let entries = &thread.interrupts.entries;
        entries.set(entries.get() + 1);
        let number = thread.register::<17>().get();
        let mut has_collected = false;
        let keeps_translations = match number {
            number::Recv | number::NBRecv | number::ReplyRecv => {
                has_collected = self.collect(thread, file);
                true
            }
            // Every invocation that changes an object has a label; signals and messages need none.
            number::Call | number::Send | number::NBSend => MessageInfo(thread.register::<11>().get()).label() == 0,
            number::Reply | number::Yield | number::SignalRecv => true,
            number::ReturnFromUserInterrupt | number::WakeSyscallHandler => true,
            _ => false,
        };
        self.handle_call(thread);
        let node = self.node();
        if node.decision.get() == Decision::Keep
            && node.current.get() == Some(thread)
            && thread.state() == ThreadState::Running
        {
            if has_collected {
                // The call was about another object, and has not taken the signals that its handler will not see now.
                self.interrupt_if_signalled(thread);
            }
            let is_prepared = node.is_virtualised.get() && node.asid.get() != 0;
            return keeps_translations && is_prepared && self.handlers_awake.get() == 0;
        }
        if file != 0 && waits(thread) {
            self.watch_files();
        }
        false
    }

    /// Serves a trap that is no system call.
    #[cold]
    #[inline(never)]
    fn serve_other_trap(&self, thread: Ref<Tcb>, trap: Trap, file: usize) {
        if let Some(register) = trap.claim_without_file()
            && file == 0
        {
            // The thread lost its file while it was in its handler: the claim finds no interrupt.
            if register != 0 {
                thread.register_at(register).set(0);
            }
            thread.pc().set(thread.pc().get().wrapping_add(4));
            return;
        }
        if trap != Trap::Interrupt {
            let entries = &thread.interrupts.entries;
            entries.set(entries.get() + 1);
        }
        self.handle_other(thread, trap);
    }
}

/// Runs a virtualised thread, for which the hart is prepared, until that must be done again or another thread runs.
#[cold]
#[inline(never)]
pub fn run(shared: &Shared, thread: Ref<Tcb>, hart: usize) -> Next {
    // A hart that takes the file away makes this hart enter the kernel first, and prepare the thread anew.
    let file = thread.interrupts.file_or_slot.get() as usize;
    prepare_virtualised::<Machine>(thread, file);
    loop {
        let trap = shared.note_trap(enter_virtualised::<Machine>(thread, file), hart);
        let kernel = shared.enter(hart);
        if MAXIMUM_NODES > 1 && kernel.node().current.get().is_none() {
            kernel.node().is_virtualised.set(false);
            kernel.serve_interrupts();
            return kernel.leave_and_poke();
        }
        if !kernel.serve_virtualised(thread, trap, file) {
            kernel.node().is_virtualised.set(false);
            return kernel.leave_and_poke();
        }
        kernel.poke_others();
        kernel.check_after_entry();
        kernel.note_user();
    }
}
