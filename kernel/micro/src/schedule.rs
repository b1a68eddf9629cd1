//! The scheduler.
//!
//! Each hart has a ready queue for each domain and priority, and a bitmap of two levels over the priorities, so that
//! two look-ups find the most important thread. A hart's current thread is in no queue. A kernel entry stores its
//! decision in the node's [`Action`], and `Kernel::schedule` performs it once, before the kernel is left: so a thread
//! that is woken and outranked by another in one kernel entry costs no context switch.

use objects::{Ref, Tcb, ThreadState};

use crate::kernel::{EPOCH, Kernel};
use crate::node::{Action, Ready};

impl Kernel {
    /// Returns the thread that made this kernel entry.
    ///
    /// # Panics
    /// If the hart is idle: only kernel entries that a thread made may call this.
    #[inline(always)]
    pub(crate) fn current(&self) -> Ref<Tcb> {
        self.node().current.get().expect("a thread came into the kernel")
    }

    #[inline(always)]
    fn ready_of(&self, thread: Ref<Tcb>) -> Ready<'_> {
        self.nodes[self.node_of(thread)].ready.of(thread.domain.get())
    }

    /// Inserts a thread at the head of its ready queue, if it is in none.
    #[doc(alias = "tcbSchedEnqueue")]
    #[inline]
    pub(crate) fn enqueue(&self, thread: Ref<Tcb>) {
        if thread.is_queued.get() == 0 {
            thread.is_queued.set(1);
            self.ready_of(thread).push_front(thread);
            self.poke(thread);
        }
    }

    /// Appends a thread to its ready queue, if it is in none.
    #[doc(alias = "tcbSchedAppend")]
    #[inline]
    pub(crate) fn append(&self, thread: Ref<Tcb>) {
        if thread.is_queued.get() == 0 {
            thread.is_queued.set(1);
            self.ready_of(thread).push_back(thread);
            self.poke(thread);
        }
    }

    /// Removes a thread from its ready queue, if it is in one.
    #[doc(alias = "tcbSchedDequeue")]
    #[inline]
    pub(crate) fn dequeue(&self, thread: Ref<Tcb>) {
        if thread.is_queued.get() != 0 {
            thread.is_queued.set(0);
            self.ready_of(thread).remove(thread);
        }
    }

    /// Records that another hart may have to run this thread.
    #[inline(always)]
    fn poke(&self, thread: Ref<Tcb>) {
        if cfg!(feature = "smp") {
            let node = self.node_of(thread);
            if node != self.here() {
                let other = &self.nodes[node];
                let better = other.current.get().is_none_or(|current| current.priority.get() < thread.priority.get());
                if better && thread.domain.get() == self.domains.current() {
                    self.node().pokes.set(self.node().pokes.get() | 1 << node);
                }
            }
        }
    }

    /// Changes a thread's state, and requests rescheduling if the current thread is no longer runnable.
    #[doc(alias = "setThreadState")]
    #[inline]
    pub(crate) fn set_state(&self, thread: Ref<Tcb>, state: ThreadState) {
        thread.set_state_word(state);
        if !state.is_runnable()
            && self.node().current.get() == Some(thread)
            && self.node().action.get() == Action::Resume
        {
            self.reschedule();
        }
    }

    /// Requests rescheduling before the kernel is left.
    #[doc(alias = "rescheduleRequired")]
    #[inline]
    pub(crate) fn reschedule(&self) {
        if let Action::Switch(thread) = self.node().action.get() {
            self.enqueue(thread);
        }
        self.node().action.set(Action::Choose);
    }

    /// Makes a thread ready, and runs it before the current one if it is more important.
    #[doc(alias = "possibleSwitchTo")]
    #[inline(never)]
    pub(crate) fn possibly_switch_to(&self, thread: Ref<Tcb>) {
        self.possibly_switch_here(thread);
    }

    /// As [`possibly_switch_to`](Kernel::possibly_switch_to), inlined.
    #[inline(always)]
    pub(crate) fn possibly_switch_here(&self, thread: Ref<Tcb>) {
        let elsewhere = cfg!(feature = "smp") && self.node_of(thread) != self.here();
        if thread.domain.get() != self.domains.current() || elsewhere {
            self.enqueue(thread);
        } else if self.node().action.get() != Action::Resume {
            self.reschedule();
            self.enqueue(thread);
        } else {
            self.node().action.set(Action::Switch(thread));
        }
    }

    #[inline(always)]
    pub(crate) fn is_highest(&self, priority: u8) -> bool {
        self.node().ready.has_none_above(self.domains.current(), priority)
    }

    /// Performs the node's action; afterwards its current thread is the thread to run.
    #[inline(always)]
    pub(crate) fn schedule(&self) {
        let action = self.node().action.get();
        if action != Action::Resume {
            self.schedule_now(action);
        }
        if let Some(current) = self.node().current.get()
            && current.state() == ThreadState::Restart
        {
            current.pc().set(current.fault_pc.get());
            current.set_state_word(ThreadState::Running);
        }
    }

    /// Switches to a woken thread if it is more important than the thread that made this kernel entry. Otherwise the
    /// current thread continues its time slice, and the woken thread is the next of its priority.
    #[inline(always)]
    fn schedule_now(&self, action: Action) {
        let node = self.node();
        node.action.set(Action::Resume);
        let current = node.current.get().filter(|current| current.state().is_runnable());
        let Action::Switch(woken) = action else {
            if let Some(current) = current {
                self.enqueue(current);
            }
            return self.choose();
        };
        match current {
            Some(current) if woken.priority.get() <= current.priority.get() => self.enqueue(woken),
            None if !self.is_highest(woken.priority.get()) => {
                self.enqueue(woken);
                self.choose();
            }
            _ => {
                if let Some(current) = current {
                    self.enqueue(current);
                }
                self.dequeue(woken);
                node.current.set(Some(woken));
            }
        }
    }

    #[doc(alias = "chooseThread")]
    #[doc(alias = "chooseNewThread")]
    #[inline(never)]
    fn choose(&self) {
        if self.domains.is_over() {
            self.domains.go_on();
            self.note_domain();
        }
        let node = self.node();
        let ready = node.ready.of(self.domains.current());
        let next = ready.highest().and_then(|priority| ready.first(priority));
        if let Some(thread) = next {
            self.dequeue(thread);
        }
        node.current.set(next);
    }

    /// Ends the current thread's turn, so that the next thread of its priority runs.
    #[doc(alias = "handleYield")]
    pub(crate) fn yield_turn(&self) {
        let current = self.current();
        self.dequeue(current);
        self.append(current);
        self.reschedule();
    }

    /// Counts a tick of the clock: ends the current thread's time slice or domain when it is used up.
    #[doc(alias = "timerTick")]
    pub(crate) fn tick(&self) {
        if let Some(current) = self.node().current.get()
            && current.state().is_runnable()
        {
            match current.time_slice.get() {
                0 | 1 => {
                    current.time_slice.set(self.turn.get());
                    self.append(current);
                    self.reschedule();
                }
                more => current.time_slice.set(more - 1),
            }
        } else {
            // The hart is idle: rescheduling finds a thread that has become ready without a notification.
            self.reschedule();
        }
        if self.domains.known() > 1 && self.here() == 0 && self.domains.tick() {
            self.reschedule();
        }
    }

    /// Enters the new current domain into the epoch of address spaces: the cached address spaces of threads of other
    /// domains become invalid, so that the fastpath does not switch to them.
    pub(crate) fn note_domain(&self) {
        self.space_epoch.set((self.space_epoch.get() / EPOCH * EPOCH) | u64::from(self.domains.current()));
    }

    /// Sets the current domain and the number of domains.
    #[cfg(test)]
    pub(crate) fn force_domain(&self, current: u8, known: u8) {
        self.domains.force(current, known);
        self.note_domain();
    }

    /// Starts the domain schedule at this entry.
    pub(crate) fn start_schedule(&self, index: usize) {
        self.domains.start_at(index);
        self.note_domain();
        self.reschedule();
    }

    /// Moves a thread to another domain.
    #[doc(alias = "setDomain")]
    pub(crate) fn set_domain(&self, thread: Ref<Tcb>, domain: u8) {
        self.stop_elsewhere(thread);
        self.dequeue(thread);
        self.while_unqueued(thread, || thread.domain.set(domain));
        thread.forget_space();
        if thread.state().is_runnable() {
            self.append(thread);
        }
        if self.node().current.get() == Some(thread) {
            self.reschedule();
        }
    }

    /// Changes a thread's priority.
    #[doc(alias = "setPriority")]
    pub(crate) fn set_priority(&self, thread: Ref<Tcb>, priority: u8) {
        self.stop_elsewhere(thread);
        self.dequeue(thread);
        self.while_unqueued(thread, || thread.priority.set(priority));
        if thread.state().is_runnable() {
            if self.node().current.get() == Some(thread) {
                self.reschedule();
            } else {
                self.possibly_switch_to(thread);
            }
        }
    }
}
