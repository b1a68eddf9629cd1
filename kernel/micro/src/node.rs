//! What a hart runs: its ready queues, its current thread, and what is to happen before it leaves the kernel.

use core::cell::Cell;
use core::marker::PhantomData;

use abi_sel4::configuration::{self, PRIORITIES};
use objects::{Queue, Ref, Tcb, VirtualRoot};

/// The most harts that the kernel uses.
pub const MAXIMUM_NODES: usize = if cfg!(feature = "smp") { 4 } else { 1 };
/// Ticks until the next thread of the same priority has its turn.
pub const TICKS_IN_A_TURN: u16 = configuration::TICKS_IN_A_TURN as u16;
/// Guest interrupt files of a hart that are used, and one, because there is no file 0.
pub const FILES: usize = 8;
/// Domains that there can be.
pub const MAXIMUM_DOMAINS: usize = 4;

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

/// A neighbour in a queue.
pub type Link = Cell<Option<Ref<Tcb>>>;

/// The links of a thread that hold the queues of one kind together. A thread can be in one queue of each kind.
pub trait Links {
    /// The thread's neighbours: the next and the one before.
    fn of(thread: &Tcb) -> (&Link, &Link);
}

/// Queues of threads that could run.
pub struct Threads;

impl Links for Threads {
    #[inline(always)]
    fn of(thread: &Tcb) -> (&Link, &Link) {
        (&thread.ready_next, &thread.ready_previous)
    }
}

/// Queues of threads whose handlers of asynchronous invocations could run.
pub struct Handlers;

impl Links for Handlers {
    #[inline(always)]
    fn of(thread: &Tcb) -> (&Link, &Link) {
        (&thread.handler.next, &thread.handler.previous)
    }
}

/// The threads of a domain on a hart that could run; or, as `Ready<Handlers>`, those of a domain whose handlers of
/// asynchronous invocations could.
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
    /// No thread.
    pub const fn new() -> Ready<Kind> {
        Ready {
            queues: [const { Queue::new() }; PRIORITIES],
            levels: [const { Cell::new(0) }; PRIORITIES / 64],
            summary: Cell::new(0),
            kind: PhantomData,
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

    /// Puts a thread at the end.
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

    /// Takes a thread out that is in.
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

/// What a hart runs. The queues come last, so that instructions reach the other fields with their offsets.
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
    /// The identifier of the address space whose tables the hart uses; 0 for none but the kernel's. It outlives the
    /// current thread, which another hart may take away.
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

/// What a hart does next.
pub(crate) enum Next {
    Run(Ref<Tcb>),
    /// A virtualised thread.
    RunVirtualised(Ref<Tcb>),
    /// A turn of a handler of asynchronous invocations.
    Serve,
    Wait,
}
