//! Which thread runs.
//!
//! Each hart has a ready queue for each domain and priority, and a bitmap of two levels over the priorities, so that the
//! best thread is found with two look-ups. A hart's current thread is in no queue. What a kernel entry decides is left in the
//! node's [`Action`], and `Kernel::schedule` carries it out once, before the kernel is left: so a thread that is
//! woken and at once outdone by another never costs a switch.

use core::cell::Cell;

use abi_sel4::configuration::PRIORITIES;
use objects::{Queue, Ref, Tcb, ThreadState, VirtualRoot};

use crate::Kernel;
use crate::interrupt_file::FILES;

/// Domains that there can be.
pub const MAXIMUM_DOMAINS: usize = 4;
/// Entries of the schedule of domains.
pub const MAXIMUM_SCHEDULE: usize = 100;

/// What is to happen before the kernel is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The current thread goes on.
    Resume,
    /// The best thread is looked for.
    Choose,
    /// This thread runs, if no better one is ready.
    Switch(Ref<Tcb>),
}

/// Where a priority stands in the bitmaps: the highest first, because a machine without an instruction for it finds a
/// word's lowest bit with a multiplication, and its highest only with many instructions.
#[inline(always)]
fn place(priority: u8) -> (usize, u32) {
    let place = u32::from(u8::MAX - priority);
    (place as usize / 64, place % 64)
}

/// The threads of a domain on a hart that could run; or, as `Ready<true>`, those of a domain whose handlers of asynchronous
/// invocations could. A thread can be in one of each.
pub struct Ready<const HANDLERS: bool = false> {
    queues: [Queue; PRIORITIES],
    levels: [Cell<u64>; PRIORITIES / 64],
    summary: Cell<u64>,
}

impl<const HANDLERS: bool> Default for Ready<HANDLERS> {
    fn default() -> Ready<HANDLERS> {
        Ready::new()
    }
}

/// A neighbour in a queue.
type Link = Cell<Option<Ref<Tcb>>>;

/// The neighbours of a thread in a set of this kind: the next and the one before.
#[inline(always)]
pub(crate) fn links<const HANDLERS: bool>(thread: &Tcb) -> (&Link, &Link) {
    if HANDLERS {
        (&thread.handler.next, &thread.handler.previous)
    } else {
        (&thread.ready_next, &thread.ready_previous)
    }
}

impl<const HANDLERS: bool> Ready<HANDLERS> {
    /// No thread.
    pub const fn new() -> Ready<HANDLERS> {
        Ready {
            queues: [const { Queue::new() }; PRIORITIES],
            levels: [const { Cell::new(0) }; PRIORITIES / 64],
            summary: Cell::new(0),
        }
    }

    /// The highest priority at which a thread is ready.
    #[inline(always)]
    pub fn highest(&self) -> Option<u8> {
        let summary = self.summary.get();
        if summary == 0 {
            return None;
        }
        let level = summary.trailing_zeros() as usize & 3;
        let bit = self.levels[level].get().trailing_zeros() as usize;
        Some(255 - (level * 64 + bit) as u8)
    }

    /// Whether no thread is ready at a higher priority.
    #[inline(always)]
    pub fn has_none_above(&self, priority: u8) -> bool {
        let (level, bit) = place(priority);
        self.summary.get() & ((1 << level) - 1) == 0 && self.levels[level].get() & ((1 << bit) - 1) == 0
    }

    /// The first thread of a priority.
    #[inline(always)]
    pub fn first(&self, priority: u8) -> Option<Ref<Tcb>> {
        self.queues[usize::from(priority)].head.get()
    }

    /// Puts a thread at the head.
    #[inline]
    pub fn push_front(&self, thread: Ref<Tcb>) {
        let priority = thread.priority.get();
        let queue = &self.queues[usize::from(priority)];
        let head = queue.head.get();
        let (next, previous) = links::<HANDLERS>(&thread);
        previous.set(None);
        next.set(head);
        match head {
            Some(head) => links::<HANDLERS>(&head).1.set(Some(thread)),
            None => {
                queue.tail.set(Some(thread));
                self.mark(priority);
            }
        }
        queue.head.set(Some(thread));
    }

    /// Puts a thread at the end.
    #[inline]
    pub fn push_back(&self, thread: Ref<Tcb>) {
        let priority = thread.priority.get();
        let queue = &self.queues[usize::from(priority)];
        let tail = queue.tail.get();
        let (next, previous) = links::<HANDLERS>(&thread);
        next.set(None);
        previous.set(tail);
        match tail {
            Some(tail) => links::<HANDLERS>(&tail).0.set(Some(thread)),
            None => {
                queue.head.set(Some(thread));
                self.mark(priority);
            }
        }
        queue.tail.set(Some(thread));
    }

    /// Takes a thread out that is in.
    #[inline]
    pub fn remove(&self, thread: Ref<Tcb>) {
        let priority = thread.priority.get();
        let queue = &self.queues[usize::from(priority)];
        let (next, previous) = links::<HANDLERS>(&thread);
        let (next, previous) = (next.get(), previous.get());
        match previous {
            Some(previous) => links::<HANDLERS>(&previous).0.set(next),
            None => queue.head.set(next),
        }
        match next {
            Some(next) => links::<HANDLERS>(&next).1.set(previous),
            None => queue.tail.set(previous),
        }
        if queue.head.get().is_none() {
            let (level, bit) = place(priority);
            let word = self.levels[level].get() & !(1 << bit);
            self.levels[level].set(word);
            if word == 0 {
                self.summary.set(self.summary.get() & !(1 << level));
            }
        }
    }

    /// Whether the bitmaps say that a thread of this priority is in.
    pub(crate) fn is_marked(&self, priority: u8) -> bool {
        let (level, bit) = place(priority);
        let word = self.levels[level].get();
        assert_eq!(self.summary.get() >> level & 1 != 0, word != 0, "the bitmaps do not agree");
        word >> bit & 1 != 0
    }

    #[inline(always)]
    fn mark(&self, priority: u8) {
        let (level, bit) = place(priority);
        self.levels[level].set(self.levels[level].get() | 1 << bit);
        self.summary.set(self.summary.get() | 1 << level);
    }
}

/// What a hart runs. The queues come last, for the reason that [`Kernel`] gives.
#[repr(C)]
pub struct Node {
    /// The thread that runs; `None` if the hart has nothing to do.
    pub current: Cell<Option<Ref<Tcb>>>,
    /// What is to happen next.
    pub action: Cell<Action>,
    /// When the next tick is, in the machine's time.
    pub next_tick: Cell<u64>,
    /// Which other harts have to be told to look again, as bits.
    pub pokes: Cell<u32>,
    /// The identifier of the address space whose tables the hart uses; 0 for none but the kernel's. It outlives the current thread, which
    /// another hart may take away.
    pub asid: Cell<u16>,
    /// The thread that the hart ran last, if its address space is still the active one.
    pub entered: Cell<Option<Ref<Tcb>>>,
    /// Whether the hart may know translations that are not true any more.
    pub is_stale: Cell<bool>,
    /// The thread whose handler of asynchronous invocations the hart runs.
    pub serving: Cell<Option<Ref<Tcb>>>,
    /// Whether that thread is the one that called for it here, and the hart's current one.
    pub serves_own: Cell<bool>,
    /// Until when the hart looks at the handler's buffer, in which there is nothing; 0 while there is something.
    pub linger_until: Cell<u64>,
    /// The thread in whose name requests are decoded.
    pub proxy: Cell<Option<Ref<Tcb>>>,
    /// The threads that could run, by domain.
    pub ready: [Ready; MAXIMUM_DOMAINS],
    /// Whose the hart's guest interrupt files are; there is no file 0.
    pub files: [Cell<Option<Ref<Tcb>>>; FILES],
    /// Whether the hart runs a virtualised thread, or did when it last left the kernel.
    pub is_virtualised: Cell<bool>,
    /// The table under which it does.
    pub virtual_root: Cell<Option<VirtualRoot>>,
}

impl Node {
    pub(crate) const fn new() -> Node {
        Node {
            current: Cell::new(None),
            action: Cell::new(Action::Resume),
            ready: [const { Ready::new() }; MAXIMUM_DOMAINS],
            next_tick: Cell::new(0),
            pokes: Cell::new(0),
            asid: Cell::new(0),
            entered: Cell::new(None),
            is_stale: Cell::new(false),
            serving: Cell::new(None),
            serves_own: Cell::new(false),
            linger_until: Cell::new(0),
            proxy: Cell::new(None),
            files: [const { Cell::new(None) }; FILES],
            is_virtualised: Cell::new(false),
            virtual_root: Cell::new(None),
        }
    }
}

impl Kernel {
    /// The thread that made this kernel entry.
    ///
    /// # Panics
    /// If the hart was idle: nothing that asks for it can happen then.
    #[inline(always)]
    pub(crate) fn current(&self) -> Ref<Tcb> {
        self.node().current.get().expect("a thread came into the kernel")
    }

    #[inline(always)]
    fn ready_of(&self, thread: Ref<Tcb>) -> &Ready {
        &self.nodes[self.node_of(thread)].ready[usize::from(thread.domain.get()) % MAXIMUM_DOMAINS]
    }

    /// Puts a thread at the head of its queue, if it is in none.
    #[inline]
    pub(crate) fn enqueue(&self, thread: Ref<Tcb>) {
        if thread.is_queued.get() == 0 {
            thread.is_queued.set(1);
            self.ready_of(thread).push_front(thread);
            self.poke(thread);
        }
    }

    /// Puts a thread at the end of its queue, if it is in none.
    #[inline]
    pub(crate) fn append(&self, thread: Ref<Tcb>) {
        if thread.is_queued.get() == 0 {
            thread.is_queued.set(1);
            self.ready_of(thread).push_back(thread);
            self.poke(thread);
        }
    }

    /// Takes a thread out of its queue, if it is in one.
    #[inline]
    pub(crate) fn dequeue(&self, thread: Ref<Tcb>) {
        if thread.is_queued.get() != 0 {
            thread.is_queued.set(0);
            self.ready_of(thread).remove(thread);
        }
    }

    /// Notes that another hart may have to run this thread.
    #[inline(always)]
    fn poke(&self, thread: Ref<Tcb>) {
        if cfg!(feature = "smp") {
            let node = self.node_of(thread);
            if node != self.here() {
                let other = &self.nodes[node];
                let better = other.current.get().is_none_or(|current| current.priority.get() < thread.priority.get());
                if better && thread.domain.get() == self.domain.get() {
                    self.node().pokes.set(self.node().pokes.get() | 1 << node);
                }
            }
        }
    }

    /// Changes a thread's state, and notes that another has to run if the current one no longer can.
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

    /// Makes the best thread be looked for before the kernel is left.
    #[inline]
    pub(crate) fn reschedule(&self) {
        if let Action::Switch(thread) = self.node().action.get() {
            self.enqueue(thread);
        }
        self.node().action.set(Action::Choose);
    }

    /// A thread can run again: now, if it is the best.
    #[inline]
    pub(crate) fn possibly_switch_to(&self, thread: Ref<Tcb>) {
        let elsewhere = cfg!(feature = "smp") && self.node_of(thread) != self.here();
        if thread.domain.get() != self.domain.get() || elsewhere {
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
        self.node().ready[usize::from(self.domain.get()) % MAXIMUM_DOMAINS].has_none_above(priority)
    }

    /// Carries out the node's action; afterwards its current thread is the one to run.
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

    /// A thread that was woken runs at once if it is more important than the one that made this kernel entry. Otherwise that one goes on with its
    /// turn, and the other comes next of those that are as important.
    #[inline(never)]
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

    fn choose(&self) {
        if self.domain_time.get() == 0 {
            self.next_domain();
        }
        let node = self.node();
        let ready = &node.ready[usize::from(self.domain.get()) % MAXIMUM_DOMAINS];
        let next = ready.highest().and_then(|priority| ready.first(priority));
        if let Some(thread) = next {
            self.dequeue(thread);
        }
        node.current.set(next);
    }

    /// The best of the same priority has its turn.
    pub(crate) fn yield_turn(&self) {
        let current = self.current();
        self.dequeue(current);
        self.append(current);
        self.reschedule();
    }

    /// A tick of the clock has passed.
    pub(crate) fn tick(&self) {
        if let Some(current) = self.node().current.get()
            && current.state().is_runnable()
        {
            match current.time_slice.get() {
                0 | 1 => {
                    current.time_slice.set(crate::TICKS_IN_A_TURN);
                    self.append(current);
                    self.reschedule();
                }
                more => current.time_slice.set(more - 1),
            }
        }
        if self.domains.get() > 1 && (self.here() == 0) {
            let left = self.domain_time.get();
            if left != u64::MAX {
                self.domain_time.set(left.saturating_sub(1));
                if left <= 1 {
                    self.reschedule();
                }
            }
        }
    }

    /// Goes to the next entry of the schedule of domains.
    fn next_domain(&self) {
        let mut index = self.schedule_index.get() + 1;
        if index >= MAXIMUM_SCHEDULE || self.domain_schedule[index].get().1 == 0 {
            index = self.schedule_start.get();
        }
        self.enter_domain(index);
    }

    fn enter_domain(&self, index: usize) {
        let (domain, duration) = self.domain_schedule[index].get();
        self.schedule_index.set(index);
        self.domain.set(domain);
        self.domain_time.set(duration);
    }

    /// Begins the schedule of domains at this entry, now.
    pub(crate) fn start_schedule(&self, index: usize) {
        self.schedule_start.set(index);
        self.enter_domain(index);
        self.reschedule();
    }

    /// Moves a thread to another domain.
    pub(crate) fn set_domain(&self, thread: Ref<Tcb>, domain: u8) {
        self.stop_elsewhere(thread);
        self.dequeue(thread);
        self.while_unqueued(thread, || thread.domain.set(domain));
        if thread.state().is_runnable() {
            self.append(thread);
        }
        if self.node().current.get() == Some(thread) {
            self.reschedule();
        }
    }

    /// Changes a thread's priority.
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
