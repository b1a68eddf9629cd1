//! Processes: an address space, descriptors, workers and the asynchronous calls in flight.
//!
//! # Life
//!
//! A process starts with one worker. It *ends* when [`Process::end`] is called for the first time, by a call, a fault,
//! a `kill` or its last worker's exit: the status is fixed at that moment. Every worker and every call in flight is
//! then woken, in steps if they are many, sees that the process has ended, and gives up what it holds. The last worker
//! to go takes the process apart, in steps too (`Process::take_apart`): descriptors are closed, memory is freed,
//! children go to the first process. What remains is an entry in the table with the status, until the parent has waited
//! for it.
//!
//! # Locks
//!
//! In general one at a time. The exceptions, outer lock first: a kernel object (the futexes are one), then the address
//! space, to copy data; the workers, then the threads; the table of descriptors, then a kernel object, to ask how much
//! memory it has; the table of calls, then the completions, and a kernel object and the executor's own, to start a
//! call.

pub(crate) mod accounts;
pub(crate) mod authority;
pub(crate) mod futex;
pub(crate) mod limits;
pub(crate) mod program;
pub(crate) mod shared;
pub(crate) mod thread;
pub(crate) mod user;
pub(crate) mod worker;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use ::ring::Producer;
use abi_queue::completion;
use abi_queue::pages::{COMPLETION_RING_OFFSET, PAGE_SIZE, SEND_PAGES};
use abi_queue::{Completion, Priority};
use abi_unix::types::signal;
use abi_unix::{Act, Counter, Errno};
use filesystem::Node;
use memory::SharedFrame;
use memory::space::StringError;
use platform::println;
use spin::Mutex;
use tables::Queue;
use usermode::{Fault, Space};
use waiters::Waiters;

use coroutine::State;
use hal_api::Machine as _;
use platform::Machine;

use crate::asynchronous::in_flight::InFlight;
use crate::asynchronous::input::{self, InputCall, InputCalls};
use crate::asynchronous::interrupts::{self, Receivers, SendPages};
use crate::asynchronous::kernel_side::Choice;
use crate::asynchronous::ring::{self, CompletionView, Rings};
use crate::calls::files;
use crate::files::descriptor::Descriptors;
use crate::observing::{counters, report};
use crate::process::accounts::{Account, Batch, Charge, Resource};
use crate::process::authority::Authority;
use crate::process::futex::Futexes;
use crate::process::shared::{Shared, zeroed};
use crate::process::thread::Threads;
use crate::process::worker::Worker;
use crate::random;
use crate::scheduling::executor::Cid;
use crate::scheduling::{MOST_CLAIM, Standing, steps, stretch};

/// Workers that one process can have.
pub(crate) const MAXIMUM_WORKERS: usize = abi_queue::MAXIMUM_WORKERS;
/// Processes that can exist.
pub(crate) const MAXIMUM_PROCESSES: usize = 4096;
/// Asynchronous calls that one process can have in flight; more are answered with `EBUSY`, which no call that can wait
/// answers for another reason, so that a runtime knows to wait for completions and to try again.
pub(crate) const MAXIMUM_CALLS: usize = 65536;
/// Descriptors that one step of the end of a process closes. What was behind them may be in many lists.
const CLOSED_AT_A_TIME: usize = 8;
/// Children that one such step takes leave of: each is in several indexes.
const CHILDREN_AT_A_TIME: usize = 8;
/// Processes that one step looks at, in search of somebody.
const MOST_LOOKED_AT: usize = 256;
/// Processes that can be above each other. What the tree decides is found by going up.
const DEEPEST: usize = 64;
/// The first process, which inherits orphans and whose end ends the machine.
pub(crate) const FIRST: u32 = 1;

/// How a process ended, in the form of `wait4`'s status (wait(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It called exit.
    Exited(u8),
    /// A signal or a fault ended it.
    Killed(u8),
}

impl Ending {
    /// The status word that `wait4` writes.
    pub fn status(self) -> u32 {
        match self {
            Ending::Exited(code) => (code as u32) << 8,
            Ending::Killed(signal) => signal as u32 & 0x7f,
        }
    }
}

/// What goes on with a call in flight.
pub(crate) enum CallOwner {
    /// A kernel coroutine.
    Coroutine(Cid),
    /// The process's completer.
    Completer(Arc<InputCall>),
}

impl CallOwner {
    /// Makes it look around.
    fn wake(&self) {
        match self {
            CallOwner::Coroutine(coroutine) => crate::scheduling::executor::wake(*coroutine),
            CallOwner::Completer(call) => call.wake_by_ref(),
        }
    }

    /// Whether it could go on and has not had its turn.
    fn is_ready(&self) -> bool {
        match self {
            CallOwner::Coroutine(coroutine) => crate::scheduling::executor::state(*coroutine) == Some(State::Ready),
            CallOwner::Completer(call) => call.is_ready(),
        }
    }

    /// Lets it have its turn before everything else.
    fn boost(&self) {
        match self {
            CallOwner::Coroutine(coroutine) => crate::scheduling::executor::set_priority(*coroutine, Priority::HIGHEST),
            CallOwner::Completer(call) => call.boost(),
        }
    }
}

/// An asynchronous call in flight.
struct Call {
    owner: CallOwner,
    /// Whether the process asked for it to end early.
    cancelled: bool,
    /// Whether it was ready when the watchdog looked last.
    was_ready: bool,
    /// How important it is.
    priority: u8,
}

/// Room for completions that is not given back.
const SPARE_COMPLETIONS: usize = 1024;

/// Completions on their way to the process.
struct Completions {
    producer: Producer,
    /// The frames of the ring.
    frames: Vec<SharedFrame>,
    /// Places in the ring that are promised to requests which are being performed.
    promised: usize,
    /// What is charged for calls in flight and for completions that wait.
    charged: Batch,
    /// For the frames that the ring was given beyond those at the beginning.
    more_frames: Charge,
    /// Those that found the ring full. Room is reserved when a call is submitted, so this never fails.
    waiting: Queue<Completion>,
    /// The most important of those in the ring.
    most_important: Priority,
}

impl Completions {
    /// With the frames of a ring that is empty, as a process begins with it.
    fn new(shared: &Shared, account: &Arc<Account>) -> Completions {
        Completions::with_frames(shared.ring().to_vec(), account)
    }

    /// Makes it as [`new`](Self::new) would, without any memory, and gives back what it was.
    fn begin_anew(&mut self, shared: &Shared, account: &Arc<Account>) -> Completions {
        let mut frames = core::mem::take(&mut self.frames);
        // There is room: it began with as many.
        frames.clear();
        frames.extend_from_slice(shared.ring());
        core::mem::replace(self, Completions::with_frames(frames, account))
    }

    fn with_frames(frames: Vec<SharedFrame>, account: &Arc<Account>) -> Completions {
        let producer = Producer::new(completion::INITIAL_CAPACITY);
        let completions = Completions {
            producer,
            frames,
            promised: 0,
            charged: Batch::new(account, Resource::Calls, crate::asynchronous::operation::MEMORY_OF_A_CALL),
            more_frames: account.nothing(Resource::Memory),
            waiting: Queue::new(),
            most_important: Priority::LOWEST,
        };
        completions.tell_capacity();
        completions
    }

    /// Writes the number of entries where the process can read it.
    fn tell_capacity(&self) {
        let capacity = self.frames[0].bytes().atomic_u64(completion::CAPACITY_OFFSET);
        let capacity = capacity.expect("offsets of the ring's layout are aligned and inside");
        capacity.store(self.producer.capacity() as u64, Ordering::Relaxed);
    }

    /// Puts completions, of this priority at most, into the ring, or to those that wait.
    #[inline(always)]
    fn post(&mut self, completions: impl Iterator<Item = Completion>, priority: Priority) {
        let words = CompletionView::new(&self.frames);
        // Anew: nonsense in the process's index has to mean "full" at once.
        let is_empty = self.producer.free(&words) == self.producer.capacity();
        if is_empty || priority.is_more_important_than(self.most_important) {
            self.most_important = priority;
        }
        for completion in completions {
            if !self.waiting.is_empty() || self.producer.push(&words, completion.to_words()).is_err() {
                self.waiting.push_back(completion);
            }
        }
        Self::publish(&mut self.producer, &words);
    }

    /// Makes room for so many that wait, with those that wait already.
    #[cold]
    fn reserve(&mut self, places: usize) -> Result<(), Errno> {
        self.waiting.reserve(places).map_err(|_| Errno::ENOMEM)
    }

    /// Gives some of the room back that many calls have left, when so many are in flight.
    #[inline(always)]
    fn trim(&mut self, calls: usize) {
        let needed = self.waiting.len() + calls + self.promised;
        if self.waiting.capacity() > needed + SPARE_COMPLETIONS {
            self.waiting.trim(needed);
        }
    }

    /// Makes what was pushed visible. If there is nothing, the process's words stay as they are.
    fn publish(producer: &mut Producer, words: &CompletionView<'_>) {
        if producer.unpublished() > 0 {
            producer.publish(words);
        }
    }
}

/// Drops completions that waited, and room for such, in steps.
async fn drop_in_steps(waiting: Queue<Completion>) {
    for (number, segment) in waiting.into_segments().enumerate() {
        drop(segment);
        if number % steps::ENTRIES == 0 {
            steps::pause_at_the_end().await;
        }
    }
}

/// What a call answers whose copy met this fault.
pub(crate) fn errno_of_fault(fault: Fault) -> Errno {
    match fault {
        Fault::OutOfMemory => Errno::ENOMEM,
        _ => Errno::EFAULT,
    }
}

/// A place in the table of processes, from before a process is made until its parent has waited for it.
#[derive(Debug)]
pub(crate) struct Place {
    _process: Charge,
    _memory: Charge,
}

impl Place {
    /// A place for a child of a process with this account. `EAGAIN` if that has started too many processes, `ENOMEM`.
    pub(crate) fn new(parent: &Arc<Account>) -> Result<Place, Errno> {
        let process = parent.charge(Resource::Processes, 1)?;
        Ok(Place { _process: process, _memory: parent.charge(Resource::Memory, MEMORY_OF_A_PLACE)? })
    }
}

/// What a process has from the one that starts it.
pub(crate) struct Origin {
    /// Its account.
    pub account: Arc<Account>,
    /// Its place in the table.
    pub place: Place,
    /// How it is scheduled.
    pub standing: Standing,
    /// What it may do to others.
    pub authority: Authority,
}

/// Bytes of kernel memory for an entry in the table of processes.
const MEMORY_OF_A_PLACE: usize = 256;

/// Bytes of kernel memory that a process begins with: itself, its process page and completion ring, and the root of its
/// page tables; and smaller things that each process has one of.
pub(crate) const MEMORY: usize =
    size_of::<Process>() + 2048 + (completion::pages(completion::INITIAL_CAPACITY) + 3) * PAGE_SIZE;

/// Page tables that are charged at once.
const TABLES: usize = 8;

/// A worker, thread or call in flight of a process, in an order in which all of them can be looked at, some at a time.
/// One that comes or moves in the table meanwhile may be missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member(u64);

impl Member {
    /// The first of all.
    pub(crate) const FIRST: Member = Member(0);
    /// The first thread.
    const THREADS: Member = Member(MAXIMUM_WORKERS as u64);
    /// The first call: that in the last place of the table.
    const CALLS: Member = Member(1 << 32);

    /// As a word that is kept somewhere.
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// From such a word.
    pub(crate) fn from_word(word: u64) -> Member {
        Member(word)
    }

    fn of_worker(worker: &Worker) -> Member {
        Member(worker.index() as u64)
    }

    fn of_call(place: usize) -> Member {
        Member(Member::CALLS.0 + u64::from(u32::MAX) - place as u64)
    }

    fn next(self) -> Member {
        Member(self.0 + 1)
    }

    /// Of a worker or thread.
    fn slot(self) -> usize {
        self.0 as usize
    }

    /// Of a call: some places, this one's first, in a table that has so many; and where to go on, if there are more.
    fn places(self, places: usize, count: usize) -> (impl Iterator<Item = usize>, Option<Member>) {
        let last = u64::from(u32::MAX) - (self.0 - Member::CALLS.0).min(u64::from(u32::MAX));
        let end = places.min((last as usize).saturating_add(1));
        let begin = end.saturating_sub(count);
        ((begin..end).rev(), begin.checked_sub(1).map(Member::of_call))
    }
}

/// What a look for something that starves has found.
pub(crate) enum Look {
    /// A coroutine, and the member at which the next look begins.
    Found(Cid, Member),
    /// Nothing yet; this is where to go on.
    More(Member),
    /// Nothing, and there are no more.
    End,
}

/// A process.
pub(crate) struct Process {
    /// Its number.
    pub id: u32,
    /// What it has of the kernel's memory and of other things, and how much it may have.
    pub account: Arc<Account>,
    /// Its place among the processes, which its parent answers for until it has waited.
    place: Mutex<Option<Place>>,
    /// For the process itself and the pages that it begins with.
    _charge: Charge,
    /// For its page tables.
    tables: Mutex<Charge>,
    /// Its memory.
    pub space: Arc<Space>,
    /// What it shares with the kernel.
    pub shared: Shared,
    /// Its open files.
    pub descriptors: Mutex<Descriptors>,
    /// Its working directory.
    pub directory: Mutex<Node>,
    /// What a worker's priority is while it publishes nothing.
    pub default_priority: Priority,
    /// What its claims are worth, and what it has used.
    pub standing: Standing,
    /// What it may do that concerns others.
    pub authority: Authority,
    /// The first bytes of its program's name.
    name: [AtomicU64; 2],
    /// What it has of that of which the network has a limited number.
    pub shares: Arc<crate::network::socket::Shares>,
    /// Who waits for which words of its memory.
    pub futexes: Arc<Futexes>,
    /// What carries its calls in the kernel.
    pub kernel_side: Choice,
    /// Lines about it that found no room on the console.
    pub dropped_lines: report::Dropped,
    parent: AtomicU32,
    /// The nearest living process that it is below, 0 for the first process. Changed under the lock of the table.
    above: AtomicU32,
    /// Its process group: what keys of the terminal and `kill` reach together. That of its parent until somebody says
    /// other.
    group: AtomicU32,
    /// What children have used that were waited for.
    children_ticks: AtomicU64,
    ended: AtomicBool,
    /// After that: somebody makes all threads and calls look around.
    all_are_called: AtomicBool,
    /// The coroutine that takes the process apart, once there is one.
    last_worker: AtomicU64,
    ending: Mutex<Option<Ending>>,
    /// What the first worker gave to `exit`: the status if no worker ends the process, but all end themselves.
    first_worker_status: AtomicU8,
    workers: Mutex<Vec<Arc<Worker>>>,
    threads: Mutex<Threads>,
    /// The slot of the thread with which [`bring_forward_others`](Self::bring_forward_others) goes on.
    brought_forward: AtomicUsize,
    /// Workers and threads that have not ended.
    live_workers: AtomicUsize,
    calls: Mutex<InFlight<Call>>,
    /// Calls that were in flight when the process ended, and are not over yet. Changed under the lock of `calls`.
    called_to_end: AtomicUsize,
    /// Those of them that wait for input.
    pub input_calls: InputCalls,
    next_anonymous_call: AtomicU64,
    has_cancelled: AtomicBool,
    completions: Mutex<Completions>,
    /// Its request rings.
    pub rings: Rings,
    posted: AtomicU64,
    has_waiting_completions: AtomicBool,
    /// Who waits for others to go: a worker in `execve`.
    departures: Mutex<Waiters>,
    /// Its receivers of user interrupts.
    pub receivers: Mutex<Receivers>,
    /// The rights whose pages it has asked for.
    pub send_pages: Mutex<SendPages>,
}

impl Process {
    /// A process without workers; not in the table yet.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        id: u32,
        parent: u32,
        origin: Origin,
        charge: Charge,
        space: Arc<Space>,
        shared: Shared,
        descriptors: Descriptors,
        directory: Node,
        default_priority: Priority,
    ) -> Process {
        let Origin { account, place, standing, authority } = origin;
        shared.tell_mode(standing.mode());
        shared.tell_ceiling(standing.ceiling());
        Process {
            id,
            place: Mutex::new(Some(place)),
            _charge: charge,
            tables: Mutex::new(account.nothing(Resource::Memory)),
            space,
            descriptors: Mutex::new(descriptors),
            directory: Mutex::new(directory),
            default_priority,
            standing,
            authority,
            name: [const { AtomicU64::new(0) }; 2],
            futexes: Arc::default(),
            shares: crate::network::socket::Shares::new(account.clone()),
            kernel_side: Choice::default(),
            dropped_lines: report::Dropped::default(),
            parent: AtomicU32::new(parent),
            above: AtomicU32::new(parent),
            group: AtomicU32::new(find(parent).map_or(id, |parent| parent.group())),
            children_ticks: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            all_are_called: AtomicBool::new(false),
            last_worker: AtomicU64::new(0),
            ending: Mutex::new(None),
            first_worker_status: AtomicU8::new(0),
            workers: Mutex::new(Vec::new()),
            threads: Mutex::new(Threads::new()),
            brought_forward: AtomicUsize::new(0),
            live_workers: AtomicUsize::new(0),
            calls: Mutex::new(InFlight::new(random::word())),
            called_to_end: AtomicUsize::new(0),
            input_calls: InputCalls::default(),
            next_anonymous_call: AtomicU64::new(u64::MAX),
            has_cancelled: AtomicBool::new(false),
            completions: Mutex::new(Completions::new(&shared, &account)),
            account,
            rings: Rings::default(),
            posted: AtomicU64::new(0),
            has_waiting_completions: AtomicBool::new(false),
            departures: Mutex::new(Waiters::new()),
            receivers: Mutex::new(interrupts::NO_RECEIVERS),
            send_pages: Mutex::new([const { None }; SEND_PAGES]),
            shared,
        }
    }

    /// The process that started it, or that inherited it.
    pub(crate) fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    /// The process group that it is in.
    pub(crate) fn group(&self) -> u32 {
        self.group.load(Ordering::Relaxed)
    }

    /// Copies from the process's memory. `EFAULT` if any byte is not readable for it; `ENOMEM` if a page that it was
    /// promised cannot be made.
    pub(crate) fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.space.lock().copy_in(address as u64, bytes).map_err(errno_of_fault)
    }

    /// Copies to the process's memory. `EFAULT` if any byte is not writable for it; `ENOMEM` as above.
    pub(crate) fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.space.lock().copy_out(address as u64, bytes).map_err(errno_of_fault)
    }

    /// Copies a string that ends with NUL, without it. `too_long` if there is no NUL within `limit` bytes.
    pub(crate) fn copy_in_string(&self, address: usize, limit: usize, too_long: Errno) -> Result<Vec<u8>, Errno> {
        self.space.lock().copy_in_string(address as u64, limit).map_err(|error| match error {
            StringError::TooLong => too_long,
            StringError::Fault(fault) => errno_of_fault(fault),
        })
    }

    /// What the claim that the process makes now through its published bitmaps is worth.
    ///
    /// All its workers together make one claim. So a worker that was interrupted while it held a lock of the process is
    /// as important as the one that waits for the lock, and gets to let it go.
    #[inline]
    pub(crate) fn claimed_priority(&self) -> Priority {
        let claim = Priority::most_important_in(self.shared.ready()).unwrap_or(self.default_priority);
        self.standing.worth(claim)
    }

    /// The same, and no less important than the calls whose completions it has not taken: their coroutines are ready as
    /// soon as a worker looks.
    pub(crate) fn claimed_with_completions(&self) -> Priority {
        let claim = self.claimed_priority();
        let mut completions = self.completions.lock();
        let completions = &mut *completions;
        let best = self.standing.worth(completions.most_important);
        if best.is_more_important_than(claim)
            && completions.producer.free(&CompletionView::new(&completions.frames)) < completions.producer.capacity()
        {
            return best;
        }
        claim
    }

    /// Processor time of all its workers, in ticks, up to now.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let now = Machine::now();
        let running = |workers: &[Arc<Worker>]| workers.iter().fold(0, |sum, worker| sum + worker.uncharged(now));
        let running = running(&self.workers.lock())
            + self.threads.lock().iter().fold(0, |sum, thread| sum + thread.uncharged(now));
        self.standing.charged() + running
    }

    /// Processor time of children that it has waited for, and of those for which they have, in ticks.
    pub(crate) fn children_ticks(&self) -> u64 {
        self.children_ticks.load(Ordering::Relaxed)
    }

    /// Looks for a child that has ended and removes it, with the processor time that it and its children have used;
    /// pending if there are children but none has.
    pub(crate) fn poll_child(&self, which: Children, waker: Option<&Waker>) -> Poll<Result<(u32, Ending, u64), Errno>> {
        let found = poll_child(self.id, which, waker);
        if let Poll::Ready(Ok((_, _, ticks))) = found {
            self.children_ticks.fetch_add(ticks, Ordering::Relaxed);
        }
        found
    }

    /// How many calls are in flight, and how many of them at priorities 0 to 7 (7: and less important), 16 bits each.
    pub(crate) fn waiting_calls(&self) -> (u64, [u64; 2]) {
        let calls = self.calls.lock();
        let mut counts = [0u16; 8];
        for call in calls.values() {
            let count = &mut counts[usize::from(call.priority).min(7)];
            *count = count.saturating_add(1);
        }
        let word = |at: usize| (0..4).fold(0, |word, index| word | u64::from(counts[at + index]) << (index * 16));
        (calls.len() as u64, [word(0), word(4)])
    }

    /// The first bytes of the name of the program that it runs.
    pub(crate) fn name(&self) -> [u64; 2] {
        [self.name[0].load(Ordering::Relaxed), self.name[1].load(Ordering::Relaxed)]
    }

    /// Notes which program it runs from now on.
    pub(crate) fn set_name(&self, name: [u64; 2]) {
        self.name[0].store(name[0], Ordering::Relaxed);
        self.name[1].store(name[1], Ordering::Relaxed);
        crate::observing::trace::program(self.id, name);
    }

    /// Gives its workers the priority that its claim is worth now, after that has changed for another reason than the
    /// claim itself.
    pub(crate) fn order_workers_anew(&self) {
        for worker in self.workers.lock().iter().chain(self.threads.lock().iter()) {
            worker.order_anew();
        }
    }

    /// Makes its executor look around, if it handles user interrupts.
    pub(crate) fn interrupt_all_workers(&self) {
        for worker in self.workers.lock().iter() {
            worker.interrupt_for_completions();
        }
    }

    /// Gives some of what is carried out for it the priority that it is worth now; says where to go on, if there is
    /// more.
    pub(crate) fn order_anew_from(&self, member: Member, count: usize) -> Option<Member> {
        if member < Member::THREADS {
            for worker in self.workers.lock().iter() {
                worker.order_anew();
            }
            self.kernel_side.order_anew(self);
            self.input_calls.order_anew(self);
            self.rings.order_anew(self);
            return Some(Member::THREADS);
        }
        if member < Member::CALLS {
            let threads = self.threads.lock();
            let mut next = threads.from(member.slot());
            next.by_ref().take(count).for_each(|thread| thread.order_anew());
            return Some(next.next().map_or(Member::CALLS, |thread| Member::of_worker(thread)));
        }
        let mut calls = self.calls.lock();
        let (places, next) = member.places(calls.places(), count);
        for place in places {
            if let Some(Call { owner: CallOwner::Coroutine(cid), priority, .. }) = calls.at_place(place) {
                let priority = Priority::saturating(u64::from(*priority));
                crate::scheduling::executor::set_priority(*cid, self.standing.worth(priority));
            }
        }
        next
    }

    /// Looks at some workers, threads and calls in flight, in their order, for one that has been ready since an earlier
    /// look without a turn, and lets that go before everything else.
    pub(crate) fn look_for_the_starving(&self, member: Member, count: usize) -> Look {
        if member < Member::CALLS {
            let (workers, threads) = (self.workers.lock(), self.threads.lock());
            let mut all = workers.iter().chain(threads.from(member.slot())).filter(|one| one.index() >= member.slot());
            for worker in all.by_ref().take(count) {
                if worker.is_starving() {
                    return Look::Found(worker.coroutine(), Member::of_worker(worker).next());
                }
            }
            return Look::More(all.next().map_or(Member::CALLS, |worker| Member::of_worker(worker)));
        }
        let mut calls = self.calls.lock();
        let (places, next) = member.places(calls.places(), count);
        for place in places {
            let Some(call) = calls.at_place(place) else { continue };
            let is_ready = call.owner.is_ready();
            let starves = is_ready && core::mem::replace(&mut call.was_ready, is_ready);
            call.was_ready = is_ready && !starves;
            if starves {
                call.owner.boost();
                let cid = match &call.owner {
                    CallOwner::Coroutine(cid) => *cid,
                    CallOwner::Completer(_) => self.input_calls.completer(),
                };
                return Look::Found(cid, Member::of_call(place).next());
            }
        }
        next.map_or(Look::End, Look::More)
    }

    // ---- ending ----

    /// Whether the process is to stop. Workers look before each visit to user mode, calls at each poll.
    pub(crate) fn has_ended(&self) -> bool {
        // Acquire: whoever sees it sees the ending too.
        self.ended.load(Ordering::Acquire)
    }

    /// Ends the process. The first ending counts; later ones change nothing.
    pub(crate) fn end(&self, ending: Ending) {
        {
            let mut slot = self.ending.lock();
            if slot.is_some() {
                return;
            }
            *slot = Some(ending);
            self.ended.store(true, Ordering::Release);
        }
        self.standing.has_ended();
        self.rings.order_anew(self);
        self.rings.close();
        // There may be thousands of threads and calls. The first that leaves calls all others, in steps.
        for worker in self.workers.lock().iter().chain(self.threads.lock().iter().take(1)) {
            worker.interrupt();
        }
    }

    /// After the process has ended: makes all its threads and all its calls in flight look around, in steps. Called by
    /// every worker that leaves; the first does it.
    ///
    /// # Cancellation
    /// Not to be dropped: nobody else would call those who are left.
    pub(crate) async fn call_all(&self) {
        // AcqRel: whoever comes second finds that somebody has begun.
        if self.all_are_called.swap(true, Ordering::AcqRel) {
            return;
        }
        // The process that ends cannot be found any more by the watchdog, and its parent waits.
        crate::scheduling::executor::set_priority(crate::scheduling::executor::current(), MOST_CLAIM);
        self.kernel_side.wake_poller();
        let mut slot = 0;
        loop {
            let mut more = false;
            for thread in self.threads.lock().from(slot).take(steps::ENTRIES) {
                thread.interrupt();
                (slot, more) = (thread.index() + 1, true);
            }
            if !more {
                break;
            }
            steps::pause_at_the_end().await;
        }
        // Their entries go at once, since nobody can cancel them any more.
        let calls = {
            let mut calls = self.calls.lock();
            // Under the lock, as all changes of it.
            self.called_to_end.store(calls.len(), Ordering::Relaxed);
            calls.take()
        };
        for (number, call) in calls.into_values().enumerate() {
            if let CallOwner::Coroutine(cid) = call.owner {
                // The watchdog will not find it to prefer it when it starves.
                crate::scheduling::executor::set_priority(cid, MOST_CLAIM);
            }
            call.owner.wake();
            if number % steps::ENTRIES == 0 {
                steps::pause_at_the_end().await;
            }
        }
    }

    /// Bytes of memory that would be free without the process.
    fn memory(&self) -> usize {
        let pages = self.space.lock().resident_frames() * PAGE_SIZE;
        pages + self.account.own(Resource::Memory) + self.descriptors.lock().memory_of_files()
    }

    /// Charges the page tables that it has, after there may have come to be more. A process that may not have them
    /// ends: what needed them cannot be taken back.
    #[inline(never)]
    pub(crate) fn charge_tables(&self) {
        let tables = self.space.lock().table_frames();
        let mut charge = self.tables.lock();
        if tables * PAGE_SIZE > charge.amount() {
            let refused = charge.resize(tables.next_multiple_of(TABLES) * PAGE_SIZE).is_err();
            drop(charge);
            if refused && !self.has_ended() {
                println!("[{}] killed: its page tables are more than it may have", self.id);
                self.end(Ending::Killed(signal::KILL as u8));
            }
        } else {
            charge.shrink_to((tables + TABLES).next_multiple_of(TABLES) * PAGE_SIZE);
        }
    }

    /// Lets a process that has ended go before everything else: somebody waits for its memory, perhaps somebody more
    /// important, who asks again and again and would never let it run.
    fn boost(&self) {
        for worker in self.workers.lock().iter().chain(self.threads.lock().iter()) {
            worker.boost();
        }
        let last = Cid::from_raw(self.last_worker.load(Ordering::Relaxed));
        crate::scheduling::executor::set_priority(last, Priority::HIGHEST);
    }

    /// Adds a worker. `EAGAIN` if the process has its most already, or has ended.
    pub(crate) fn add_worker(
        &self,
        make: impl FnOnce(usize) -> Result<Arc<Worker>, Errno>,
    ) -> Result<Arc<Worker>, Errno> {
        let mut workers = self.workers.lock();
        if self.has_ended() || workers.len() >= MAXIMUM_WORKERS {
            return Err(Errno::EAGAIN);
        }
        workers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        // Counted before it runs: another hart may poll it, and be done with it, at once.
        self.live_workers.fetch_add(1, Ordering::Relaxed);
        self.shared.add_worker(workers.len());
        let made = make(workers.len());
        match &made {
            Ok(worker) => workers.push(worker.clone()),
            Err(_) => {
                self.live_workers.fetch_sub(1, Ordering::Relaxed);
            }
        }
        made
    }

    /// Adds a thread. `EAGAIN` if the process has its most already, or has ended.
    pub(crate) fn add_thread(&self, make: impl FnOnce(usize) -> Arc<Worker>) -> Result<Arc<Worker>, Errno> {
        let mut threads = self.threads.lock();
        if self.has_ended() {
            return Err(Errno::EAGAIN);
        }
        let slot = threads.free_slot().ok_or(Errno::EAGAIN)?;
        let thread = make(slot);
        threads.insert(slot, thread.clone());
        self.live_workers.fetch_add(1, Ordering::Relaxed);
        Ok(thread)
    }

    /// The worker or thread with this slot.
    pub(crate) fn worker_or_thread(&self, slot: usize) -> Option<Arc<Worker>> {
        if slot < MAXIMUM_WORKERS { self.worker(slot) } else { self.threads.lock().get(slot).cloned() }
    }

    /// The worker with this index.
    pub(crate) fn worker(&self, index: usize) -> Option<Arc<Worker>> {
        self.workers.lock().get(index).cloned()
    }

    /// How many workers and threads have not ended.
    pub(crate) fn live_workers(&self) -> usize {
        self.live_workers.load(Ordering::Acquire)
    }

    /// A worker ends itself with `exit`. As on Linux the status of the first one is the process's, in whatever order
    /// they go; so workers that end at the same moment need not agree which of them is the last.
    pub(crate) fn note_exit(&self, worker: usize, status: u8) {
        if worker == 0 {
            // Relaxed: read after the count of workers has come to 0, which orders it.
            self.first_worker_status.store(status, Ordering::Relaxed);
        }
    }

    /// The coroutine of a worker or thread is done; whether it was the last one, which is to [take the process
    /// apart](Process::take_apart).
    #[must_use]
    pub(crate) fn worker_is_gone(self: &Arc<Process>, worker: &Worker) -> bool {
        if worker.is_thread() {
            // Out of the lock first: the entry may be its last owner but for the caller.
            let entry = self.threads.lock().remove(worker.index());
            drop(entry);
        }
        // AcqRel: what other workers did to the process happens before the last one takes it apart.
        if self.live_workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end(Ending::Exited(self.first_worker_status.load(Ordering::Relaxed)));
            true
        } else {
            self.departures.lock().wake_all();
            false
        }
    }

    /// Closes all descriptors, in steps.
    async fn close_descriptors(&self) {
        // Out of the lock first: closing may wake others and free much.
        let descriptors = self.descriptors.lock().take();
        for (number, file) in descriptors.into_files().enumerate() {
            drop(file);
            if number % CLOSED_AT_A_TIME == 0 || files::has_remains() {
                steps::pause_at_the_end().await;
            }
            while files::free_remains() {
                steps::pause_at_the_end().await;
            }
        }
        // Also of calls that have ended with the process.
        while files::free_remains() {
            steps::pause_at_the_end().await;
        }
    }

    /// Waits until something of the process has gone, as [`poll_departed`](Self::poll_departed).
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    async fn departed(&self, has_gone: impl Fn() -> bool) {
        poll_fn(|cx| if self.poll_departed(cx.waker(), &has_gone) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Whether something of the process has gone; if not, `waker` is woken when anything goes. One waits at a time: the
    /// last worker, or the one that is kept.
    fn poll_departed(&self, waker: &Waker, has_gone: impl Fn() -> bool) -> bool {
        // Registered before the look: whoever goes after it finds the waker. For one this needs no memory; if there
        // were another, it would come back until there is some.
        if self.departures.lock().register(waker).is_err() {
            waker.wake_by_ref();
        }
        let has_gone = has_gone();
        if has_gone {
            self.departures.lock().forget(waker);
        }
        has_gone
    }

    /// Takes a process apart that has ended, in the coroutine of its last worker. What remains is how it ended, for its
    /// parent, who hears of it when nothing of it is in use any more.
    ///
    /// # Cancellation
    /// Not to be dropped: nobody else would go on.
    pub(crate) async fn take_apart(self: &Arc<Process>) {
        self.last_worker.store(crate::scheduling::executor::current().raw(), Ordering::Relaxed);
        crate::scheduling::executor::set_priority(crate::scheduling::executor::current(), MOST_CLAIM);
        self.close_descriptors().await;
        if input::leave(self) {
            self.departed(|| self.input_calls.are_over()).await;
        }
        stretch::goes_on_as(abi_unix::trace::stretch::END);
        crate::scheduling::forget(self);
        self.rings.clear();
        while self.space.clear_part() {
            steps::pause_at_the_end().await;
        }
        self.space.retire();
        // Calls in flight hold files, ports and ends of pipes.
        self.departed(|| {
            let calls = self.calls.lock();
            calls.is_empty() && self.called_to_end.load(Ordering::Relaxed) == 0
        })
        .await;
        // An `accept` that was being tried when they were closed has made one more.
        self.close_descriptors().await;
        self.workers.lock().clear();
        self.threads.lock().clear();
        let ending = self.ending.lock().unwrap_or(Ending::Exited(0));
        let ticks = self.cpu_ticks() + self.children_ticks();
        // Room for completions, which there will be none of.
        let room = core::mem::take(&mut self.completions.lock().waiting);
        drop_in_steps(room).await;
        while TABLE.lock().lets_go_of_children(self) {
            steps::pause_at_the_end().await;
        }
        steps::pause_at_the_end().await;
        // Out of the lock before they are woken.
        let mut waiters = TABLE.lock().has_ended(self, ending, ticks);
        waiters.wake_all();
        if self.id == FIRST {
            crate::first_process_has_ended(ending);
        }
    }

    // ---- asynchronous calls ----

    /// Starts an asynchronous call: `start` has somebody go on with `work`, given the key under which the call is
    /// known. It runs under the lock of the calls.
    ///
    /// `EBUSY` if too many are in flight, `EEXIST` if the token is in use, `ENOMEM` (also if `start` gives the work
    /// back); with the work. A token of 0 means that the call will never be cancelled.
    pub(crate) fn begin_call<T>(
        &self,
        token: u64,
        priority: Priority,
        work: T,
        start: impl FnOnce(u64, T) -> Result<CallOwner, T>,
    ) -> Result<(), (Errno, T)> {
        // The table stays locked until the call is in it. If another hart goes on with the call at once, its end waits
        // for the lock, so that no entry is made after the call is over.
        let mut calls = self.calls.lock();
        if let Err(error) = self.make_room_for_a_call(&mut calls) {
            return Err((error, work));
        }
        // Without a token the key counts down from the top, where no address and no index of a program's table lies.
        let key = if token == 0 { self.next_anonymous_call.fetch_sub(1, Ordering::Relaxed) } else { token };
        let Some(place) = calls.vacancy(key) else { return Err((Errno::EEXIST, work)) };
        let owner = start(key, work).map_err(|work| (Errno::ENOMEM, work))?;
        counters::count(Counter::CallsInFlight);
        calls.fill(place, Call { owner, cancelled: false, was_ready: false, priority: priority.number() });
        Ok(())
    }

    #[inline(always)]
    fn make_room_for_a_call(&self, calls: &mut InFlight<Call>) -> Result<(), Errno> {
        if self.has_ended() {
            return Err(Errno::EINTR);
        }
        calls.reserve().map_err(|_| Errno::ENOMEM)?;
        // A place for its completion in case the ring is full then: beside those that wait already, every call in
        // flight may come to wait. What waits counts towards the limit, or a process that never looks at its ring could
        // fill the kernel's memory.
        let mut completions = self.completions.lock();
        if calls.len() + completions.waiting.len() >= MAXIMUM_CALLS {
            return Err(Errno::EBUSY);
        }
        let charged = calls.len() + completions.waiting.len() + 1;
        completions.charged.require(charged)?;
        let places = completions.waiting.len() + calls.len() + completions.promised + 1;
        if places > completions.waiting.capacity() {
            completions.reserve(places)?;
            // That may have taken what this call needs itself.
            self.account.admit()?;
        }
        Ok(())
    }

    /// Whether the process asked for this call to end early.
    pub(crate) fn call_is_cancelled(&self, key: u64) -> bool {
        // Acquire: pairs with the release in `cancel_call`. Most processes never cancel anything.
        self.has_cancelled.load(Ordering::Acquire) && self.calls.lock().get(key).is_some_and(|call| call.cancelled)
    }

    /// Asks that a call ends early. `ENOENT` if it is not in flight. One that waits for input is over when this
    /// returns, unless its input has come.
    pub(crate) fn cancel_call(&self, token: u64) -> Result<(), Errno> {
        let waiting = {
            let mut calls = self.calls.lock();
            let call = calls.get_mut(token).ok_or(Errno::ENOENT)?;
            call.cancelled = true;
            self.has_cancelled.store(true, Ordering::Release);
            match &call.owner {
                CallOwner::Completer(waiting) => waiting.clone(),
                // Waking under the lock is fine: whoever goes on with the call on another hart at once waits for the
                // lock.
                owner => {
                    owner.wake();
                    return Ok(());
                }
            }
        };
        input::end_early(&waiting);
        Ok(())
    }

    /// Ends calls, by their keys, that are of this priority at most: their results go to the ring, and a worker is made
    /// to look there.
    pub(crate) fn complete_calls(&self, done: &[(u64, Completion)], priority: Priority) {
        counters::add(Counter::CallsInFlight, (done.len() as u64).wrapping_neg());
        {
            // Locked until the completions have their places: `begin_call` counts each as one or the other.
            let mut calls = self.calls.lock();
            let known = done.iter().filter(|(key, _)| calls.remove(*key).is_some()).count();
            // Those that are not in the table any more have been called to end.
            if known < done.len() {
                self.called_to_end.fetch_sub(done.len() - known, Ordering::Relaxed);
            }
            if calls.is_empty() && self.called_to_end.load(Ordering::Relaxed) == 0 {
                self.departures.lock().wake_all();
            }
            if self.has_ended() {
                return;
            }
            let mut completions = self.completions.lock();
            let completions = &mut *completions;
            completions.post(done.iter().map(|(_, completion)| *completion), priority);
            completions.charged.settle(calls.len() + completions.waiting.len());
            completions.trim(calls.len());
            self.tell_workers(completions);
        }
        counters::add(Counter::Completions, done.len() as u64);
        self.wake_a_worker(priority);
    }

    /// Makes what was posted visible to workers that are about to sleep.
    fn tell_workers(&self, completions: &Completions) {
        self.posted.store(completions.producer.published(), Ordering::Release);
        self.has_waiting_completions.store(!completions.waiting.is_empty(), Ordering::Release);
    }

    /// Promises places for the completions of so many requests; says for how many. No more than the ring has room for,
    /// unless `beyond` says that they may have to wait.
    pub(crate) fn promise_completions(&self, wanted: usize, beyond: bool) -> usize {
        let calls = self.calls.lock();
        let mut completions = self.completions.lock();
        let completions = &mut *completions;
        let in_kernel = calls.len() + completions.promised + completions.waiting.len();
        let room = if beyond {
            MAXIMUM_CALLS.saturating_sub(in_kernel)
        } else if completions.waiting.is_empty() {
            completions.producer.free(&CompletionView::new(&completions.frames)).saturating_sub(completions.promised)
        } else {
            0
        };
        let promised = wanted.min(room);
        // In case the process changes the indexes meanwhile.
        let places = completions.waiting.len() + calls.len() + completions.promised + promised;
        if promised == 0 || completions.reserve(places).is_err() {
            return 0;
        }
        completions.promised += promised;
        promised
    }

    /// Posts the completions of requests for which so many places were promised, of this priority at most. The others
    /// of them are calls in flight now, which have places of their own.
    pub(crate) fn post_completions(&self, batch: &[Completion], promised: usize, priority: Priority) {
        let mut completions = self.completions.lock();
        completions.promised -= promised;
        if batch.is_empty() || self.has_ended() {
            return;
        }
        completions.post(batch.iter().copied(), priority);
        self.tell_workers(&completions);
        drop(completions);
        counters::add(Counter::Completions, batch.len() as u64);
    }

    /// Gives the completion ring at least so many entries, a power of two that a ring can have, or 0.
    ///
    /// `EBUSY` if it would have to grow and is not empty, `ENOMEM`, `EEXIST` if the process has mapped something there.
    pub(crate) fn enlarge_completion_ring(&self, capacity: usize) -> Result<(), Errno> {
        let mut completions = self.completions.lock();
        let completions = &mut *completions;
        if capacity <= completions.producer.capacity() {
            return Ok(());
        }
        let more = completion::pages(capacity) - completions.frames.len();
        if !memory::frames::available_to_programs(more) {
            return Err(Errno::ENOMEM);
        }
        let is_idle = completions.promised == 0 && completions.waiting.is_empty();
        let free = completions.producer.free(&CompletionView::new(&completions.frames));
        if !is_idle || free != completions.producer.capacity() {
            return Err(Errno::EBUSY);
        }
        let charge = self.account.charge(Resource::Memory, more * PAGE_SIZE)?;
        let mut frames = Vec::new();
        frames.try_reserve_exact(more).map_err(|_| Errno::ENOMEM)?;
        completions.frames.try_reserve_exact(more).map_err(|_| Errno::ENOMEM)?;
        for _ in 0..more {
            frames.push(zeroed()?);
        }
        let view = CompletionView::new(&completions.frames);
        completions.producer.resize(&view, capacity).map_err(|_| Errno::EBUSY)?;
        let address = self.shared.address(COMPLETION_RING_OFFSET) + completions.frames.len() * PAGE_SIZE;
        if let Err(error) = ring::map(self, address, &frames) {
            // Nothing has come meanwhile, since the ring is locked.
            let old = completions_capacity(completions.frames.len());
            let _ = completions.producer.resize(&CompletionView::new(&completions.frames), old);
            return Err(error);
        }
        completions.frames.extend(frames);
        completions.more_frames.merge(charge);
        completions.tell_capacity();
        Ok(())
    }

    /// The completer has finished all calls of the process, which has ended.
    pub(crate) fn completer_is_done(&self) {
        self.departures.lock().wake_all();
    }

    /// A ring that was closed is at rest.
    pub(crate) fn ring_has_closed(&self) {
        self.departures.lock().wake_all();
    }

    /// Posts completions that found the ring full. Called when a worker enters the kernel.
    #[inline(always)]
    pub(crate) fn post_waiting_completions(&self) {
        if self.has_waiting_completions.load(Ordering::Relaxed) {
            self.post_those_that_wait();
        }
    }

    #[cold]
    fn post_those_that_wait(&self) {
        let mut completions = self.completions.lock();
        let completions = &mut *completions;
        let words = CompletionView::new(&completions.frames);
        while let Some(&completion) = completions.waiting.front() {
            if completions.producer.push(&words, completion.to_words()).is_err() {
                break;
            }
            completions.waiting.pop_front();
        }
        Completions::publish(&mut completions.producer, &words);
        self.tell_workers(completions);
    }

    /// How many completions are in the ring or were taken from it.
    pub(crate) fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// Makes a worker look at the ring: one that sleeps, at this priority; else one that runs something less important,
    /// by a user interrupt. If all run something at least as important they look in time, before their next coroutine.
    /// If none has a hart, one that waits for its turn is to have it no later than something of this priority.
    pub(crate) fn wake_a_worker(&self, priority: Priority) {
        let workers = self.workers.lock();
        if workers.iter().any(|worker| worker.wake_if_parked(self.standing.worth(priority))) {
            return;
        }
        for worker in workers.iter() {
            let runs = Priority::most_important_in(self.shared.running(worker.index()));
            if runs.is_some_and(|runs| priority.is_more_important_than(runs)) && worker.interrupt_for_completions() {
                break;
            }
        }
        if !workers.iter().any(|worker| worker.is_visited()) {
            let priority = self.standing.worth(priority);
            let _ = workers.iter().any(|worker| worker.bring_forward(priority));
        }
    }

    /// For a worker or thread that gives way: lets no other one of the process wait longer for a hart than it will
    /// itself.
    ///
    /// Who gives way may have met a lock of the process, and who holds that may have been interrupted when the process
    /// claimed less: in a queue it keeps the priority that it came with.
    pub(crate) fn bring_forward_others(&self, worker: &Worker) {
        let priority = worker.priority_without_boost();
        for other in self.workers.lock().iter().filter(|other| !core::ptr::eq(&***other, worker)) {
            let _ = other.bring_forward(priority);
        }
        // Threads wait behind each other in any case.
        if !priority.is_more_important_than(self.standing.worth(self.default_priority)) {
            return;
        }
        let threads = self.threads.lock();
        let mut next = 0;
        for (tried, other) in threads.from(self.brought_forward.load(Ordering::Relaxed)).enumerate() {
            if tried == steps::ENTRIES {
                next = other.index();
                break;
            }
            let _ = other.bring_forward(priority);
        }
        self.brought_forward.store(next, Ordering::Relaxed);
    }

    /// For a worker that will not look at what is ready for a while, because its coroutine is long or waits in a call:
    /// wakes one that sleeps if there is something to take. In the process the scheduler wakes nobody for what a busy
    /// worker can do after its poll (`Sharing::Lazy`), and that a poll is long, only the kernel sees.
    pub(crate) fn share_what_is_ready(&self, worker: &Worker) {
        // What it has made ready may lie in the shard of another that waits.
        let Some(priority) = Priority::most_important_in(self.shared.ready_only()) else { return };
        let workers = self.workers.lock();
        if workers.iter().any(|other| other.wake_if_parked(self.standing.worth(priority))) {
            return;
        }
        // One that has found nothing, and is about to sleep, looks again.
        for other in workers.iter().filter(|other| !core::ptr::eq(&***other, worker)) {
            if self.shared.running(other.index()) == 0 {
                other.wake();
            }
        }
    }

    /// For a worker at its tick: interrupts it if it runs something less important than a completion in the ring.
    ///
    /// [`wake_a_worker`](Self::wake_a_worker) does that when the completion is posted. But a worker looks at the ring,
    /// takes a coroutine and only then shows how important that is, without a fence in between: what is posted at that
    /// moment may find its last one, and interrupt nobody.
    pub(crate) fn remind(&self, worker: &Worker) {
        let Some(runs) = Priority::most_important_in(self.shared.running(worker.index())) else { return };
        let is_more_important = {
            let mut completions = self.completions.lock();
            let completions = &mut *completions;
            completions.most_important.is_more_important_than(runs)
                && completions.producer.free(&CompletionView::new(&completions.frames))
                    < completions.producer.capacity()
        };
        if is_more_important {
            worker.interrupt_for_completions();
        }
    }

    /// Prepares for another program: asks all workers but one, and all calls in flight, to end. `false` if the process
    /// ends or another worker asked first, which ends the caller's.
    pub(crate) fn keep_only(&self, kept: &Arc<Worker>) -> bool {
        {
            // Decided under the lock, so that of two workers that ask at once only one stops the other.
            let workers = self.workers.lock();
            if kept.is_to_stop() {
                return false;
            }
            for worker in workers.iter().chain(self.threads.lock().iter()) {
                if !Arc::ptr_eq(worker, kept) {
                    worker.stop();
                }
            }
        }
        self.rings.close();
        // Woken under the lock, as in `cancel_call`.
        for call in self.calls.lock().values_mut().filter(|call| !call.cancelled) {
            call.cancelled = true;
            self.has_cancelled.store(true, Ordering::Release);
            call.owner.wake();
        }
        true
    }

    /// Whether one worker is left and no call; if not, `waker` is woken when something of it has gone.
    pub(crate) fn poll_alone(&self, waker: &Waker) -> bool {
        self.poll_departed(waker, || {
            self.live_workers() == 1 && self.rings.are_at_rest() && self.calls.lock().is_empty()
        })
    }

    /// Drops everything on its way to the old program, when another one takes its place. Needs no memory: there is no
    /// way back.
    ///
    /// # Cancellation
    /// What is left is dropped at once.
    pub(crate) async fn forget_completions(&self) {
        let mut forgotten = {
            let mut completions = self.completions.lock();
            self.posted.store(0, Ordering::Release);
            self.has_waiting_completions.store(false, Ordering::Relaxed);
            self.shared.clear();
            self.shared.tell_mode(self.standing.mode());
            self.shared.tell_ceiling(self.standing.ceiling());
            completions.begin_anew(&self.shared, &self.account)
        };
        self.rings.clear();
        // What it was charged is given back behind it.
        drop_in_steps(core::mem::take(&mut forgotten.waiting)).await;
    }

    /// Forgets workers and threads that have ended, after [`keep_only`](Self::keep_only); who is left is the first
    /// worker.
    pub(crate) fn forget_others(&self, kept: &Arc<Worker>) {
        let mut workers = self.workers.lock();
        self.threads.lock().clear();
        workers.clear();
        workers.push(kept.clone());
    }
}

/// Entries of a completion ring with so many frames.
fn completions_capacity(frames: usize) -> usize {
    (frames - 1) * (PAGE_SIZE / completion::ENTRY_SIZE)
}

// ---- the table ----

enum Entry {
    Alive(Arc<Process>),
    /// `ticks`: the processor time that it and its children have used.
    Zombie {
        group: u32,
        ending: Ending,
        ticks: u64,
        _place: Option<Place>,
    },
}

/// A child in the index of its parent's children: parent, group, and its own number.
type Child = (u32, u32, u32);

struct Table {
    entries: BTreeMap<u32, Entry>,
    last: u32,
    /// Children that live, but for orphans, and children that have ended. So who waits for a child looks at one entry.
    living: BTreeSet<Child>,
    ended: BTreeSet<Child>,
    /// All that live, by the process above them.
    below: BTreeSet<(u32, u32)>,
    /// Who waits for children, by parent.
    waiters: BTreeMap<u32, Waiters>,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    entries: BTreeMap::new(),
    last: 0,
    living: BTreeSet::new(),
    ended: BTreeSet::new(),
    below: BTreeSet::new(),
    waiters: BTreeMap::new(),
});

/// Which children `wait4` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// Any.
    Any,
    /// The one with this number.
    One(u32),
    /// Any of this process group.
    Group(u32),
}

/// All children of a parent, or those in one group.
fn family(parent: u32, group: Option<u32>) -> RangeInclusive<Child> {
    (parent, group.unwrap_or(0), 0)..=(parent, group.unwrap_or(u32::MAX), u32::MAX)
}

impl Table {
    /// Enters a process that lives. If the one that started it has ended meanwhile, the first process takes its place,
    /// and nobody waits for it.
    fn enter(&mut self, process: Arc<Process>) {
        let (id, parent) = (process.id, process.parent());
        if matches!(self.entries.get(&parent), Some(Entry::Alive(_))) {
            self.living.insert((parent, process.group(), id));
        } else if parent != 0 {
            process.parent.store(FIRST, Ordering::Relaxed);
            process.above.store(FIRST, Ordering::Relaxed);
        }
        self.below.insert((process.above.load(Ordering::Relaxed), id));
        self.entries.insert(id, Entry::Alive(process));
    }

    /// Takes a process that lives out of the indexes; whether somebody may wait for it.
    fn leave_indexes(&mut self, process: &Process) -> bool {
        self.below.remove(&(process.above.load(Ordering::Relaxed), process.id));
        self.living.remove(&(process.parent(), process.group(), process.id))
    }

    /// The processes above this one, the nearest first.
    fn all_above(&self, process: &Process) -> impl Iterator<Item = u32> {
        let first = Some(process.above.load(Ordering::Relaxed));
        let above = |id: &u32| match self.entries.get(id) {
            Some(Entry::Alive(process)) => Some(process.above.load(Ordering::Relaxed)),
            _ => None,
        };
        core::iter::successors(first, above).take_while(|id| *id != 0)
    }

    /// Takes leave of some of those below a process that has ended; whether there may be more. What is above that comes
    /// to be above them. Children that live become orphans: the first process is their parent in name, and need not
    /// wait for them. Of those that have ended nothing remains.
    fn lets_go_of_children(&mut self, process: &Process) -> bool {
        let above = process.above.load(Ordering::Relaxed);
        for _ in 0..CHILDREN_AT_A_TIME {
            if let Some(&child) = self.ended.range(family(process.id, None)).next() {
                self.ended.remove(&child);
                self.entries.remove(&child.2);
                counters::uncount(Counter::Processes);
            } else if let Some(&(_, id)) = self.below.range((process.id, 0)..=(process.id, u32::MAX)).next() {
                self.below.remove(&(process.id, id));
                self.below.insert((above, id));
                if let Some(Entry::Alive(child)) = self.entries.get(&id) {
                    child.above.store(above, Ordering::Relaxed);
                    if self.living.remove(&(process.id, child.group(), id)) {
                        child.parent.store(FIRST, Ordering::Relaxed);
                    }
                }
            } else {
                return false;
            }
        }
        true
    }

    /// Notes how a process ended, for its parent; without one that lives nobody will ask. The process has no children
    /// any more. Gives back who waits for children of that parent, to be woken without the lock.
    #[must_use]
    fn has_ended(&mut self, process: &Process, ending: Ending, ticks: u64) -> Waiters {
        // A child that was being started when the process ended.
        while self.lets_go_of_children(process) {}
        self.waiters.remove(&process.id);
        let (parent, group) = (process.parent(), process.group());
        if self.leave_indexes(process) {
            let _place = process.place.lock().take();
            self.ended.insert((parent, group, process.id));
            self.entries.insert(process.id, Entry::Zombie { group, ending, ticks, _place });
            self.waiters.remove(&parent).unwrap_or_default()
        } else {
            self.entries.remove(&process.id);
            counters::uncount(Counter::Processes);
            Waiters::default()
        }
    }
}

/// Reserves a number and builds a process under it. `EAGAIN` if there are too many.
pub(crate) fn create(make: impl FnOnce(u32) -> Result<Process, Errno>) -> Result<Arc<Process>, Errno> {
    let id = {
        let mut table = TABLE.lock();
        if table.entries.len() >= MAXIMUM_PROCESSES {
            return Err(Errno::EAGAIN);
        }
        let mut id = table.last;
        loop {
            id = if id >= 32767 { 1 } else { id + 1 };
            if !table.entries.contains_key(&id) {
                break;
            }
        }
        table.last = id;
        id
    };
    let process = Arc::new(make(id)?);
    TABLE.lock().enter(process.clone());
    counters::count(Counter::Processes);
    Ok(process)
}

/// Takes back [`create`] for a process that never got a worker.
pub(crate) fn discard(process: &Process) {
    let mut table = TABLE.lock();
    table.leave_indexes(process);
    table.entries.remove(&process.id);
    counters::uncount(Counter::Processes);
}

/// Whether a process is below another one.
pub(crate) fn is_below(process: &Process, above: &Process) -> bool {
    TABLE.lock().all_above(process).any(|id| id == above.id)
}

/// `EAGAIN` if so many processes are above this one that nothing may be below it.
pub(crate) fn require_depth(process: &Process) -> Result<(), Errno> {
    if TABLE.lock().all_above(process).count() < DEEPEST { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// The living process with this number.
pub(crate) fn find(id: u32) -> Option<Arc<Process>> {
    match TABLE.lock().entries.get(&id) {
        Some(Entry::Alive(process)) => Some(process.clone()),
        _ => None,
    }
}

/// The living process with the lowest number above this one.
pub(crate) fn next_after(id: u32) -> Option<Arc<Process>> {
    TABLE.lock().entries.range(id.saturating_add(1)..).find_map(|(_, entry)| match entry {
        Entry::Alive(process) => Some(process.clone()),
        Entry::Zombie { .. } => None,
    })
}

/// Ends the process with the most memory, because there is none left. Its memory is free once its workers have noticed.
///
/// What counts is what would be free without it: the pages of the process and their tables, and what the kernel keeps
/// for it in pipes, sockets, files and calls in flight. Files in memory that nobody has open belong to nobody; their
/// share of the machine has a limit of its own.
pub(crate) fn end_largest() {
    if files::free_remains() {
        // Whoever lacks memory tries again.
        return;
    }
    if let Some(process) = next_living(0, Process::has_ended) {
        // One is on its way out already: enough for now.
        process.boost();
        return;
    }
    let mut largest: Option<(usize, Arc<Process>)> = None;
    let mut last = FIRST;
    // One after the other, with the table unlocked in between: descriptor tables and kernel objects come before it in
    // the order of locks.
    while let Some(process) = next_living(last, |_| true) {
        last = process.id;
        let bytes = process.memory();
        if largest.as_ref().is_none_or(|(most, _)| bytes > *most) {
            largest = Some((bytes, process));
        }
    }
    let victim = largest.map(|(_, process)| process).or_else(|| find(FIRST));
    if let Some(victim) = victim {
        println!("[{}] killed: the memory is exhausted and it has most of it", victim.id);
        victim.end(Ending::Killed(signal::KILL as u8));
        victim.boost();
    }
}

/// The living process with the lowest number above this one of which `is_meant` holds.
fn next_living(above: u32, is_meant: impl Fn(&Process) -> bool) -> Option<Arc<Process>> {
    let table = TABLE.lock();
    table.entries.range(above + 1..).find_map(|(_, entry)| match entry {
        Entry::Alive(process) if is_meant(process) => Some(process.clone()),
        _ => None,
    })
}

/// Whether a signal's default action is to end the process. There are no handlers, and what would stop a process ends
/// it.
pub(crate) fn ends(number: u32) -> bool {
    !matches!(number, 0 | signal::CHLD | signal::CONT | signal::URG | signal::WINCH)
}

/// Sends a signal to a process, for another one that may.
fn signal(caller: &Process, process: &Process, number: u32) -> Result<(), Errno> {
    authority::permit_towards(caller, process, Act::Signal)?;
    if ends(number) {
        if process.id == FIRST && caller.id != FIRST {
            return Err(Errno::EPERM);
        }
        process.end(Ending::Killed(number as u8));
    }
    Ok(())
}

/// `kill` with the number of a process. One that has ended and was not waited for is there, and notices nothing.
pub(crate) fn signal_one(caller: &Process, id: u32, number: u32) -> Result<(), Errno> {
    match find(id) {
        Some(process) => signal(caller, &process, number),
        None if exists(id) => Ok(()),
        None => Err(Errno::ESRCH),
    }
}

/// `kill` with a process group: sends a signal, in steps, to those in it to whom the caller may. `EPERM` if there are
/// others only, `ESRCH` if there is nobody. The caller comes last, because it does not go on after that.
///
/// # Cancellation
/// Some have got the signal and others have not.
pub(crate) async fn signal_group(caller: &Process, group: u32, number: u32) -> Result<(), Errno> {
    let mut answer = Err(Errno::ESRCH);
    let mut last = 0;
    while let Some(process) = next_in_steps(caller, &mut last, |process| process.group() == group).await {
        if process.id != caller.id {
            let sent = signal(caller, &process, number);
            if answer != Ok(()) {
                answer = sent;
            }
            steps::pause(caller).await;
        }
    }
    if caller.group() == group { signal(caller, caller, number) } else { answer }
}

/// `kill` with -1: sends a signal, in steps, to everybody to whom the caller may, but for the first process and itself.
/// `ESRCH` if there is nobody else; if there is, the answer is not an error even if it may to nobody, which is Linux's
/// way.
///
/// # Cancellation
/// Some have got the signal and others have not.
pub(crate) async fn signal_everybody(caller: &Process, number: u32) -> Result<(), Errno> {
    let mut answer = Err(Errno::ESRCH);
    let mut last = FIRST;
    while let Some(process) = next_in_steps(caller, &mut last, |process| process.id != caller.id).await {
        let _ = signal(caller, &process, number);
        answer = Ok(());
        steps::pause(caller).await;
    }
    answer
}

/// The living process with the lowest number above `last` of which `is_meant` holds, found in steps; `last` goes up to
/// it.
async fn next_in_steps(caller: &Process, last: &mut u32, is_meant: impl Fn(&Process) -> bool) -> Option<Arc<Process>> {
    loop {
        let mut is_end = true;
        let mut found = None;
        for (number, (&id, entry)) in TABLE.lock().entries.range(*last + 1..).enumerate() {
            if number == MOST_LOOKED_AT {
                is_end = false;
                break;
            }
            *last = id;
            if let Entry::Alive(process) = entry
                && is_meant(process)
            {
                found = Some(process.clone());
                break;
            }
        }
        if found.is_some() || is_end {
            return found;
        }
        steps::pause(caller).await;
    }
}

/// Ends a process group because of a key of the terminal, whoever is in it.
pub(crate) fn signal_group_from_terminal(group: u32, number: u32) {
    let mut last = 0;
    while let Some(process) = next_living(last, |process| process.group() == group) {
        last = process.id;
        if ends(number) {
            process.end(Ending::Killed(number as u8));
        }
    }
}

/// Whether somebody lives in this group of whom `is_meant` holds.
pub(crate) fn group_has(group: u32, is_meant: impl Fn(&Process) -> bool) -> bool {
    let mut last = 0;
    while let Some(process) = next_living(last, |process| process.group() == group) {
        last = process.id;
        if is_meant(&process) {
            return true;
        }
    }
    false
}

/// Whether a process lives in this group.
pub(crate) fn group_exists(group: u32) -> bool {
    next_living(0, |process| process.group() == group).is_some()
}

/// `setpgid`: puts the caller or one of its children, 0 meaning the caller, into a group that exists, or into one of
/// its own, which 0 means too. (There are no sessions, so groups cannot be in different ones.)
pub(crate) fn set_group(caller: &Process, id: i32, group: i32) -> Result<(), Errno> {
    let group = u32::try_from(group).map_err(|_| Errno::EINVAL)?;
    let id = u32::try_from(id).map_err(|_| Errno::ESRCH)?;
    let id = if id == 0 { caller.id } else { id };
    let process = find(id).ok_or(Errno::ESRCH)?;
    if id != caller.id && process.parent() != caller.id {
        return Err(Errno::ESRCH);
    }
    let group = if group == 0 { id } else { group };
    if group != id && !group_exists(group) {
        return Err(Errno::EPERM);
    }
    let mut table = TABLE.lock();
    let parent = process.parent();
    let old = process.group.swap(group, Ordering::Relaxed);
    if table.living.remove(&(parent, old, process.id)) {
        table.living.insert((parent, group, process.id));
    }
    Ok(())
}

/// Whether a process with this number exists, ended ones included.
pub(crate) fn exists(id: u32) -> bool {
    TABLE.lock().entries.contains_key(&id)
}

fn poll_child(parent: u32, which: Children, waker: Option<&Waker>) -> Poll<Result<(u32, Ending, u64), Errno>> {
    let mut table = TABLE.lock();
    let of = |children: &BTreeSet<Child>, table: &Table| match which {
        Children::Any => children.range(family(parent, None)).next().copied(),
        Children::Group(group) => children.range(family(parent, Some(group))).next().copied(),
        Children::One(id) => {
            let group = match table.entries.get(&id) {
                Some(Entry::Alive(child)) => Some(child.group()),
                // It keeps the group that it had.
                Some(Entry::Zombie { group, .. }) => Some(*group),
                None => None,
            };
            group.map(|group| (parent, group, id)).filter(|child| children.contains(child))
        }
    };
    if let Some(child) = of(&table.ended, &table) {
        table.ended.remove(&child);
        let Some(Entry::Zombie { ending, ticks, .. }) = table.entries.remove(&child.2) else {
            return Poll::Ready(Err(Errno::ECHILD));
        };
        counters::uncount(Counter::Processes);
        return Poll::Ready(Ok((child.2, ending, ticks)));
    }
    if of(&table.living, &table).is_none() {
        return Poll::Ready(Err(Errno::ECHILD));
    }
    if let Some(waker) = waker {
        table.waiters.entry(parent).or_default().register(waker).map_err(|_| Errno::ENOMEM)?;
    }
    Poll::Pending
}

/// Takes back a registration of [`Process::poll_child`].
pub(crate) fn forget_child_waiter(parent: u32, waker: &Waker) {
    let mut table = TABLE.lock();
    if let Some(waiters) = table.waiters.get_mut(&parent) {
        waiters.forget(waker);
        if waiters.is_empty() {
            table.waiters.remove(&parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_lacks_memory_is_no_bad_address() {
        assert_eq!(errno_of_fault(Fault::OutOfMemory), Errno::ENOMEM);
        assert_eq!(errno_of_fault(Fault::NotMapped), Errno::EFAULT);
        assert_eq!(errno_of_fault(Fault::Protection), Errno::EFAULT);
    }
}
