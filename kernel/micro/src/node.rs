//! The scheduling state of a hart: its ready queues, its current thread, and the pending decision about the next one.

use core::cell::Cell;
use core::marker::PhantomData;

use abi_sel4::configuration::{MAXIMUM_DOMAINS, PRIORITIES};
use objects::{PriorityQueues, Ref, Tcb, VirtualRoot};

use crate::entry_log::LoggedEntry;
use crate::uintc::SenderTable;
use crate::utilisation::Counters;

/// The largest number of harts.
pub const MAXIMUM_NODES: usize = if cfg!(feature = "smp") { 4 } else { 1 };
/// Number of guest interrupt files of a hart that are used, plus one, because there is no file 0.
pub const FILES: usize = 8;

/// The thread that a kernel entry will leave to, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The current thread keeps the hart.
    Keep,
    /// Any ready thread may get the hart.
    Open,
    /// The current thread has one challenger, which has become ready and is in no queue yet.
    Challenged(Ref<Tcb>),
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

/// A bitmap of two levels with the queues that are not empty. Its size is chosen so that the address of a domain's
/// bitmap is computed quickly.
#[repr(C, align(64))]
struct Bitmap {
    levels: [Cell<u64>; PRIORITIES / 64],
    /// The words of `levels` that are not zero, as bits.
    summary: Cell<u64>,
}

/// The ready queues of a domain on a hart; or, as `Ready<Handlers>`, the ready queues of a domain's handlers of
/// asynchronous invocations.
pub struct Ready<'node, Kind = Threads> {
    bitmap: &'node Bitmap,
    queues: Ref<PriorityQueues>,
    kind: PhantomData<fn() -> Kind>,
}

/// The ready queues of all domains. The queues lie in memory that boot has allocated.
pub struct ReadyOfDomains<Kind = Threads> {
    bitmaps: [Bitmap; MAXIMUM_DOMAINS],
    queues: [Cell<Option<Ref<PriorityQueues>>>; MAXIMUM_DOMAINS],
    kind: PhantomData<fn() -> Kind>,
}

impl<Kind: Links> Default for ReadyOfDomains<Kind> {
    fn default() -> ReadyOfDomains<Kind> {
        ReadyOfDomains::new()
    }
}

impl<Kind: Links> ReadyOfDomains<Kind> {
    /// Makes a state without queues.
    pub const fn new() -> ReadyOfDomains<Kind> {
        ReadyOfDomains {
            bitmaps: [const { Bitmap { levels: [const { Cell::new(0) }; _], summary: Cell::new(0) } }; MAXIMUM_DOMAINS],
            queues: [const { Cell::new(None) }; MAXIMUM_DOMAINS],
            kind: PhantomData,
        }
    }

    /// Sets the queues of a domain.
    pub fn set(&self, domain: usize, queues: Ref<PriorityQueues>) {
        self.queues[domain].set(Some(queues));
    }

    #[inline(always)]
    fn bitmap(&self, domain: u8) -> &Bitmap {
        &self.bitmaps[usize::from(domain) % MAXIMUM_DOMAINS]
    }

    /// Returns the ready queues of a domain.
    ///
    /// # Panics
    /// If the domain has no queues.
    #[inline(always)]
    pub fn of(&self, domain: u8) -> Ready<'_, Kind> {
        match self.queues[usize::from(domain) % MAXIMUM_DOMAINS].get() {
            Some(queues) => Ready { bitmap: self.bitmap(domain), queues, kind: PhantomData },
            None => no_queues(),
        }
    }

    /// Returns whether no thread of a domain with a higher priority is ready.
    #[inline(always)]
    pub fn has_none_above(&self, domain: u8, priority: u8) -> bool {
        let (level, bit) = place(priority);
        let bitmap = self.bitmap(domain);
        bitmap.summary.get() & ((1 << level) - 1) == 0 && bitmap.levels[level].get() & ((1 << bit) - 1) == 0
    }

    /// Returns the ready queues of all domains, by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Ready<'_, Kind>> {
        (0..).zip(&self.queues).map_while(|(domain, queues)| queues.get().map(|_| self.of(domain)))
    }
}

#[cold]
#[inline(never)]
fn no_queues() -> ! {
    panic!("a domain has no queues")
}

impl<Kind: Links> Ready<'_, Kind> {
    /// Returns the highest priority with a ready thread.
    #[inline(always)]
    pub fn highest(&self) -> Option<u8> {
        let summary = self.bitmap.summary.get();
        if summary == 0 {
            return None;
        }
        let level = summary.trailing_zeros() as usize & 3;
        let bit = self.bitmap.levels[level].get().trailing_zeros() as usize;
        Some(255 - (level * 64 + bit) as u8)
    }

    /// Returns the first thread of a priority.
    #[inline(always)]
    pub fn first(&self, priority: u8) -> Option<Ref<Tcb>> {
        self.queues.queues[usize::from(priority)].head.get()
    }

    /// Calls `visit` with each thread, the most important first.
    pub fn for_each(&self, mut visit: impl FnMut(Ref<Tcb>)) {
        for priority in (0..=u8::MAX).rev() {
            let mut next = self.first(priority);
            while let Some(thread) = next {
                visit(thread);
                next = Kind::of(&thread).0.get();
            }
        }
    }

    /// Inserts a thread at the head of its priority's queue.
    #[inline]
    pub fn push_front(&self, thread: Ref<Tcb>) {
        let priority = thread.priority.get();
        let queue = &self.queues.queues[usize::from(priority)];
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
        let queue = &self.queues.queues[usize::from(priority)];
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
        let queue = &self.queues.queues[usize::from(priority)];
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
            let word = self.bitmap.levels[level].get() & !(1 << bit);
            self.bitmap.levels[level].set(word);
            if word == 0 {
                self.bitmap.summary.set(self.bitmap.summary.get() & !(1 << level));
            }
        }
    }

    /// Returns whether a thread of this priority is ready according to the bitmaps.
    pub(crate) fn is_marked(&self, priority: u8) -> bool {
        let (level, bit) = place(priority);
        let word = self.bitmap.levels[level].get();
        assert_eq!(self.bitmap.summary.get() >> level & 1 != 0, word != 0, "the bitmaps do not agree");
        word >> bit & 1 != 0
    }

    #[inline(always)]
    fn mark(&self, priority: u8) {
        let (level, bit) = place(priority);
        self.bitmap.levels[level].set(self.bitmap.levels[level].get() | 1 << bit);
        self.bitmap.summary.set(self.bitmap.summary.get() | 1 << level);
    }
}

/// The scheduling state of a hart. The most used fields come first, so that the offsets of instructions reach them.
#[repr(C)]
pub struct Node {
    /// The current thread; `None` if the hart is idle.
    pub current: Cell<Option<Ref<Tcb>>>,
    /// The pending decision about the next thread.
    pub decision: Cell<Decision>,
    /// Time of the next tick, in the machine's time.
    pub next_tick: Cell<u64>,
    /// Other harts that must choose a thread anew, as bits.
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
    /// The utilisation counters of the hart.
    pub counters: Counters,
    /// The ready queues, by domain.
    pub ready: ReadyOfDomains,
    /// Owners of the hart's guest interrupt files; there is no file 0.
    pub files: [Cell<Option<Ref<Tcb>>>; FILES],
    /// The files among them that interrupt the kernel, a bit for each.
    pub watched: Cell<u64>,
    /// Whether the hart runs a virtualised thread, or entered one when it last left the kernel. If the hart itself
    /// clears this before it leaves the kernel again, then the thread must be prepared anew.
    pub is_virtualised: Cell<bool>,
    /// The root table for virtualised threads.
    pub virtual_root: Cell<Option<VirtualRoot>>,
    /// The machine's number of the hart.
    pub hart_id: Cell<u16>,
    /// The sender table of the hart.
    pub sender_table: SenderTable,
    /// Whether the hart runs an armed thread, or entered one when it last left the kernel.
    pub is_armed: Cell<bool>,
    /// The hart's kernel entry for the log.
    pub logged: LoggedEntry,
}

impl Node {
    pub(crate) const fn new() -> Node {
        Node {
            current: Cell::new(None),
            decision: Cell::new(Decision::Keep),
            counters: Counters::new(),
            ready: ReadyOfDomains::new(),
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
            watched: Cell::new(0),
            is_virtualised: Cell::new(false),
            virtual_root: Cell::new(None),
            hart_id: Cell::new(0),
            sender_table: SenderTable::new(),
            is_armed: Cell::new(false),
            logged: LoggedEntry::new(),
        }
    }

    /// Makes the hart prepare a thread anew when it enters the thread next, if it entered that one last.
    pub(crate) fn prepare_anew(&self, thread: Ref<Tcb>) {
        if self.entered.get() == Some(thread) {
            self.entered.set(None);
        }
        if self.current.get() == Some(thread) {
            self.is_virtualised.set(false);
        }
    }
}

/// The hart's next action after a kernel entry.
pub(crate) enum Next {
    Run(Ref<Tcb>),
    /// A virtualised thread.
    RunVirtualised(Ref<Tcb>),
    /// An armed thread.
    RunArmed(Ref<Tcb>),
    /// A turn of a handler of asynchronous invocations.
    Serve,
    Wait,
}
