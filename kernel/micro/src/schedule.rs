//! The scheduler.
//!
//! Each hart has a ready queue for each domain and priority, and a bitmap of two levels over the priorities, so that
//! two look-ups find the most important thread. A hart's current thread is in no queue. A kernel entry only notes in
//! the node's [`Decision`] which threads come into question, and `Kernel::decide` makes the decision once, before the
//! kernel is left: so a thread that is woken and outranked by another in one kernel entry costs no context switch, and
//! most threads that become ready enter no queue.

use objects::{Ref, Tcb, ThreadState};

use crate::kernel::{EPOCH, Kernel};
use crate::node::{Decision, Ready};

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
    #[inline]
    pub(crate) fn queue_first(&self, thread: Ref<Tcb>) {
        if thread.is_queued.get() == 0 {
            thread.is_queued.set(1);
            self.ready_of(thread).push_front(thread);
            self.poke(thread);
        }
    }

    /// Appends a thread to its ready queue, if it is in none.
    #[inline]
    pub(crate) fn queue_last(&self, thread: Ref<Tcb>) {
        if thread.is_queued.get() == 0 {
            thread.is_queued.set(1);
            self.ready_of(thread).push_back(thread);
            self.poke(thread);
        }
    }

    /// Removes a thread from its ready queue, if it is in one.
    #[inline]
    pub(crate) fn leave_queue(&self, thread: Ref<Tcb>) {
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

    /// Changes a thread's state. The decision is open if that was the current thread and it cannot run any more.
    #[inline]
    pub(crate) fn change_state(&self, thread: Ref<Tcb>, state: ThreadState) {
        thread.set_state_word(state);
        if !state.is_runnable()
            && self.node().current.get() == Some(thread)
            && self.node().decision.get() == Decision::Keep
        {
            self.choose_anew();
        }
    }

    /// Opens the decision: all ready threads come into question.
    #[inline]
    pub(crate) fn choose_anew(&self) {
        if let Decision::Challenged(thread) = self.node().decision.get() {
            self.queue_first(thread);
        }
        self.node().decision.set(Decision::Open);
    }

    /// Makes a thread ready: it gets the hart before the current thread if it is more important.
    #[inline(never)]
    pub(crate) fn make_ready(&self, thread: Ref<Tcb>) {
        self.make_ready_here(thread);
    }

    /// As [`make_ready`](Kernel::make_ready), inlined.
    #[inline(always)]
    pub(crate) fn make_ready_here(&self, thread: Ref<Tcb>) {
        let elsewhere = cfg!(feature = "smp") && self.node_of(thread) != self.here();
        if thread.domain.get() != self.domains.current() || elsewhere {
            self.queue_first(thread);
        } else if self.node().decision.get() != Decision::Keep {
            self.choose_anew();
            self.queue_first(thread);
        } else {
            self.node().decision.set(Decision::Challenged(thread));
        }
    }

    #[inline(always)]
    pub(crate) fn is_highest(&self, priority: u8) -> bool {
        self.node().ready.has_none_above(self.domains.current(), priority)
    }

    /// Makes the node's decision; afterwards its current thread is the thread to run.
    #[inline(always)]
    pub(crate) fn decide(&self) {
        let decision = self.node().decision.get();
        if decision != Decision::Keep {
            self.decide_now(decision);
        }
        if let Some(current) = self.node().current.get()
            && current.state() == ThreadState::Restarting
        {
            current.pc().set(current.fault_pc.get());
            current.set_state_word(ThreadState::Running);
        }
    }

    /// A challenger wins against a less important current thread. Otherwise the current thread continues its time
    /// slice, and the challenger is the next of its priority.
    #[inline(always)]
    fn decide_now(&self, decision: Decision) {
        let node = self.node();
        node.decision.set(Decision::Keep);
        let current = node.current.get().filter(|current| current.state().is_runnable());
        let Decision::Challenged(challenger) = decision else {
            if let Some(current) = current {
                self.queue_first(current);
            }
            return self.take_most_important();
        };
        match current {
            Some(current) if challenger.priority.get() <= current.priority.get() => self.queue_first(challenger),
            None if !self.is_highest(challenger.priority.get()) => {
                self.queue_first(challenger);
                self.take_most_important();
            }
            _ => {
                if let Some(current) = current {
                    self.queue_first(current);
                }
                self.leave_queue(challenger);
                node.current.set(Some(challenger));
            }
        }
    }

    /// Gives the hart to the most important ready thread of the current domain, the next domain if its time is over.
    #[inline(never)]
    fn take_most_important(&self) {
        if self.domains.is_over() {
            self.domains.go_on();
            self.begin_domain();
        }
        let node = self.node();
        let ready = node.ready.of(self.domains.current());
        let next = ready.highest().and_then(|priority| ready.first(priority));
        if let Some(thread) = next {
            self.leave_queue(thread);
        }
        node.current.set(next);
    }

    /// Ends the current thread's turn, so that the next thread of its priority runs.
    pub(crate) fn yield_turn(&self) {
        let current = self.current();
        self.leave_queue(current);
        self.queue_last(current);
        self.choose_anew();
    }

    /// Counts a tick of the clock: ends the current thread's time slice or domain when it is used up.
    pub(crate) fn tick(&self) {
        if let Some(current) = self.node().current.get()
            && current.state().is_runnable()
        {
            match current.time_slice.get() {
                0 | 1 => {
                    current.time_slice.set(self.turn.get());
                    self.queue_last(current);
                    self.choose_anew();
                }
                more => current.time_slice.set(more - 1),
            }
        } else {
            // The hart is idle: the choice finds a thread that has become ready without a notification.
            self.choose_anew();
        }
        if self.domains.known() > 1 && self.here() == 0 && self.domains.tick() {
            self.choose_anew();
        }
    }

    /// Enters the new current domain into the epoch of address spaces: the cached address spaces of threads of other
    /// domains become invalid, so that the fastpath does not switch to them.
    pub(crate) fn note_domain(&self) {
        self.space_epoch.set((self.space_epoch.get() / EPOCH * EPOCH) | u64::from(self.domains.current()));
    }

    /// Notes a domain that the schedule has begun, and interrupts the other harts, which run threads of the last one.
    /// Inlined, so that the choice of a thread calls no function and saves no registers.
    #[inline(always)]
    fn begin_domain(&self) {
        let before = self.space_epoch.get();
        self.note_domain();
        if cfg!(feature = "smp") && self.space_epoch.get() != before {
            let all = (1 << self.node_count.get()) - 1;
            self.node().pokes.set(self.node().pokes.get() | all & !(1 << self.here()));
        }
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
        self.begin_domain();
        self.choose_anew();
    }

    /// Changes an attribute of a thread that determines its place in queues; the thread is in no ready queue
    /// afterwards.
    #[inline]
    fn while_out_of_queues(&self, thread: Ref<Tcb>, change: impl FnOnce()) {
        self.stop_elsewhere(thread);
        self.leave_queue(thread);
        self.while_unqueued(thread, change);
    }

    /// Moves a thread to another domain.
    pub(crate) fn move_to_domain(&self, thread: Ref<Tcb>, domain: u8) {
        self.while_out_of_queues(thread, || thread.domain.set(domain));
        thread.forget_space();
        if thread.state().is_runnable() {
            self.queue_last(thread);
        }
        if self.node().current.get() == Some(thread) {
            self.choose_anew();
        }
    }

    /// Changes a thread's priority.
    pub(crate) fn change_priority(&self, thread: Ref<Tcb>, priority: u8) {
        self.while_out_of_queues(thread, || thread.priority.set(priority));
        if thread.state().is_runnable() {
            if self.node().current.get() == Some(thread) {
                self.choose_anew();
            } else {
                self.make_ready(thread);
            }
        }
    }
}
