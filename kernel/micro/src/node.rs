//! The scheduling state of a hart: its ready queues, its current thread, and the pending scheduler action.

use core::cell::Cell;
use core::marker::PhantomData;

use abi_sel4::configuration::{self, PRIORITIES};
use objects::{Queue, Ref, Tcb, VirtualRoot};

/// The largest number of harts.
pub const MAXIMUM_NODES: usize = if cfg!(feature = "smp") { 4 } else { 1 };
/// Length of a time slice in ticks.
pub const TICKS_IN_A_TURN: u16 = configuration::TICKS_IN_A_TURN as u16;
/// Number of guest interrupt files of a hart that are used, plus one, because there is no file 0.
pub const FILES: usize = 8;
/// The largest number of domains.
pub const MAXIMUM_DOMAINS: usize = 4;

/// The scheduler action before the kernel is left (seL4's `ksSchedulerAction`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The current thread continues.
    Resume,
    /// The most important ready thread is chosen.
    Choose,
    /// This thread runs, if no more important thread is ready.
    Switch(Ref<Tcb>),
}

/// Returns the place of a priority in the bitmaps: the highest priority first, because a machine without an instruction
/// for it finds a word's lowest bit with a multiplication, and its highest only with many instructions.
#[inline(always)]
fn place(priority: u8) -> (usize, u32) {
    let place = u32::from(u8::MAX - priority);
    (place as usize / 64, place % 64)
}

/// A link to a neighbour in a queue.
pub type Link = Cell<Option<Ref<Tcb>>>;

/// The links of a thread in the queues of one kind. A thread can be in one queue of each kind.
pub trait Links {
    /// Returns the thread's links: next and previous.
    fn of(thread: &Tcb) -> (&Link, &Link);
}

/// The kind of ready queues of threads.
pub struct Threads;

impl Links for Threads {
    #[inline(always)]
    fn of(thread: &Tcb) -> (&Link, &Link) {
        (&thread.ready_next, &thread.ready_previous)
    }
}

/// The kind of ready queues of handlers of asynchronous invocations.
pub struct Handlers;

impl Links for Handlers {
    #[inline(always)]
    fn of(thread: &Tcb) -> (&Link, &Link) {
        (&thread.handler.next, &thread.handler.previous)
    }
}

/// The ready queues of a domain on a hart; or, as `Ready<Handlers>`, the ready queues of a domain's handlers of
/// asynchronous invocations.
pub struct Ready<Kind = Threads> {
    queues: [Queue; PRIORITIES],
    levels: [Cell<u64>; PRIORITIES / 64],
    summary: Cell<u64>,
    kind: PhantomData<Kind>,
}

impl<Kind: Links> Default for Ready<Kind> {
    fn default() -> Ready<Kind> {
        Ready::new()
    }
}

impl<Kind: Links> Ready<Kind> {
    /// Makes empty queues.
    pub const fn new() -> Ready<Kind> {
        Ready {
            queues: [const { Queue::new() }; PRIORITIES],
            levels: [const { Cell::new(0) }; PRIORITIES / 64],
            summary: Cell::new(0),
            kind: PhantomData,
        }
    }

    /// Returns the highest priority with a ready thread.
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

    /// Returns whether no thread with a higher priority is ready.
    #[inline(always)]
    pub fn has_none_above(&self, priority: u8) -> bool {
        let (level, bit) = place(priority);
        self.summary.get() & ((1 << level) - 1) == 0 && self.levels[level].get() & ((1 << bit) - 1) == 0
    }

    /// Returns the first thread of a priority.
    #[inline(always)]
    pub fn first(&self, priority: u8) -> Option<Ref<Tcb>> {
        self.queues[usize::from(priority)].head.get()
    }

    /// Inserts a thread at the head of its priority's queue.
    #[inline]
    pub fn push_front(&self, thread: Ref<Tcb>) {
        let priority = thread.priority.get();
        let queue = &self.queues[usize::from(priority)];
        let head = queue.head.get();
        let (next, previous) = Kind::of(&thread);
        previous.set(None);
        next.set(head);
        match head {
            Some(head) => Kind::of(&head).1.set(Some(thread)),
            None => {
                queue.tail.set(Some(thread));
                self.mark(priority);
            }
        }
        queue.head.set(Some(thread));
    }

    /// Appends a thread to its priority's queue.
    #[inline]
    pub fn push_back(&self, thread: Ref<Tcb>) {
        let priority = thread.priority.get();
        let queue = &self.queues[usize::from(priority)];
        let tail = queue.tail.get();
        let (next, previous) = Kind::of(&thread);
        next.set(None);
        previous.set(tail);
        match tail {
            Some(tail) => Kind::of(&tail).0.set(Some(thread)),
            None => {
                queue.head.set(Some(thread));
                self.mark(priority);
            }
        }
        queue.tail.set(Some(thread));
    }

    /// Removes a thread from the queue that contains it.
    #[inline]
    pub fn remove(&self, thread: Ref<Tcb>) {
        let priority = thread.priority.get();
        let queue = &self.queues[usize::from(priority)];
        let (next, previous) = Kind::of(&thread);
        let (next, previous) = (next.get(), previous.get());
        match previous {
            Some(previous) => Kind::of(&previous).0.set(next),
            None => queue.head.set(next),
        }
        match next {
            Some(next) => Kind::of(&next).1.set(previous),
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

    /// Returns whether a thread of this priority is ready according to the bitmaps.
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

/// The scheduling state of a hart. The most used fields come first, so that the offsets of instructions reach them.
#[repr(C)]
pub struct Node {
    /// The current thread; `None` if the hart is idle.
    pub current: Cell<Option<Ref<Tcb>>>,
    /// The pending scheduler action.
    pub action: Cell<Action>,
    /// Time of the next tick, in the machine's time.
    pub next_tick: Cell<u64>,
    /// Other harts that must reschedule, as bits.
    pub pokes: Cell<u32>,
    /// ASID of the address space whose tables the hart uses; 0 for the kernel's. It outlives the current thread, which
    /// another hart may stop.
    pub asid: Cell<u16>,
    /// The thread that the hart entered last, if its address space is still active.
    pub entered: Cell<Option<Ref<Tcb>>>,
    /// Whether the hart's TLB may contain stale translations.
    pub is_stale: Cell<bool>,
    /// The thread whose handler of asynchronous invocations the hart runs.
    pub serving: Cell<Option<Ref<Tcb>>>,
    /// Whether that thread is the hart's current one, which woke its handler here.
    pub serves_own: Cell<bool>,
    /// Time until which the hart polls the handler's empty buffer; 0 while there are requests.
    pub linger_until: Cell<u64>,
    /// The proxy thread, whose registers hold the messages of requests.
    pub proxy: Cell<Option<Ref<Tcb>>>,
    /// The ready queues, by domain.
    pub ready: [Ready; MAXIMUM_DOMAINS],
    /// Owners of the hart's guest interrupt files; there is no file 0.
    pub files: [Cell<Option<Ref<Tcb>>>; FILES],
    /// Whether the hart runs a virtualised thread, or entered one when it last left the kernel.
    pub is_virtualised: Cell<bool>,
    /// The root table for virtualised threads.
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

/// The hart's next action after a kernel entry.
pub(crate) enum Next {
    Run(Ref<Tcb>),
    /// A virtualised thread.
    RunVirtualised(Ref<Tcb>),
    /// A turn of a handler of asynchronous invocations.
    Serve,
    Wait,
}
