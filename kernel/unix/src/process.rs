//! Processes: an address space, descriptors, workers and the asynchronous calls in flight.
//!
//! # Life
//!
//! A process starts with one worker. It *ends* when [`Process::end`] is called for the first time, by a call, a fault,
//! a `kill` or its last worker's exit: the status is fixed at that moment. Every worker and every call in flight is
//! then woken, in steps if they are many, sees that the process has ended, and gives up everything that it holds. The
//! last worker to go takes the process apart, in steps too (`Process::take_apart`): descriptors are closed, memory is
//! freed, children go to the first process. A zombie remains, an entry in the table with the status, until the parent
//! has waited for it.
//!
//! # Locks
//!
//! In general one at a time. The exceptions, outer lock first: a kernel object (the futexes are one), then the address
//! space, to copy data; the workers, then the threads; the table of descriptors, then a kernel object, to read how much
//! memory it has or to accept a connection, or the address space, to write that connection's address; the table of
//! calls, then the completions, and a kernel object and the executor's own, to start a call.

pub(crate) mod accounts;
pub(crate) mod authority;
pub(crate) mod ending;
pub(crate) mod futex;
pub(crate) mod killer;
pub(crate) mod limits;
pub(crate) mod program;
pub(crate) mod shared;
pub(crate) mod switching;
pub(crate) mod thread;
pub(crate) mod user;
pub(crate) mod visit;
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
use usermode::Space;
use waiters::Waiters;

use coroutine::State;
use hal_api::Machine as _;
use platform::Machine;

use crate::asynchronous::in_flight::InFlight;
use crate::asynchronous::input::{self, InputCall, InputCalls};
use crate::asynchronous::interrupts::{self, Receivers, SendPages};
use crate::asynchronous::kernel_side::Choice;
use crate::asynchronous::ring_words::CompletionView;
use crate::asynchronous::rings::Rings;
use crate::asynchronous::submission::{Submission, Submitted};
use crate::files::descriptor::Descriptors;
use crate::files::remains;
use crate::observing::{counters, report};
use crate::process::accounts::{Account, Batch, Charge, MAXIMUM_CALLS, MAXIMUM_PROCESSES, Resource};
use crate::process::authority::Authority;
use crate::process::ending::Ending;
use crate::process::futex::Futexes;
use crate::process::shared::{Shared, zeroed};
use crate::process::thread::Threads;
use crate::process::user::{Caller, LONGEST_PATH, UserBuffer, UserMemory, errno_of_fault};
use crate::process::worker::Worker;
use crate::random;
use crate::scheduling::executor::Cid;
use crate::scheduling::standing::{MOST_CLAIM, Standing};
use crate::scheduling::steps::Ends;
use crate::scheduling::{steps, stretch};

/// Number of workers that one process can have.
pub(crate) const MAXIMUM_WORKERS: usize = abi_queue::MAXIMUM_WORKERS;
/// Number of descriptors that one step of the end of a process closes. The objects behind them may be in many lists.
const CLOSED_AT_A_TIME: usize = 8;
/// Number of children that one such step releases: each is in several indexes.
const CHILDREN_AT_A_TIME: usize = 8;
/// Number of processes that one step of a search looks at.
const MOST_LOOKED_AT: usize = 256;
/// Number of processes that can be above each other. Decisions by the tree walk upwards.
const DEEPEST: usize = 64;
/// The first process, which inherits orphans and whose end ends the machine.
pub(crate) const FIRST: u32 = 1;

/// Owner of a call in flight, which goes on with it.
pub(crate) enum CallOwner {
    /// A kernel coroutine.
    Coroutine(Cid),
    /// The process's completer.
    Completer(Arc<InputCall>),
}

impl CallOwner {
    /// Makes the owner look around.
    fn wake(&self) {
        match self {
            CallOwner::Coroutine(coroutine) => crate::scheduling::executor::wake(*coroutine),
            CallOwner::Completer(call) => call.wake_by_ref(),
        }
    }

    /// Returns whether it is ready and has not had its turn.
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
struct CallInFlight {
    owner: CallOwner,
    /// Set if the process has cancelled it.
    cancelled: bool,
    /// Set if it was ready when the watchdog looked last.
    was_ready: bool,
    /// Its priority.
    priority: u8,
}

/// Number of places for completions that are kept beyond those needed.
const SPARE_COMPLETIONS: usize = 1024;

/// Completions on their way to the process.
struct Completions {
    producer: Producer,
    /// The frames of the ring.
    frames: Vec<SharedFrame>,
    /// Number of places in the ring that are promised to requests that are being performed.
    promised: usize,
    /// Charge for calls in flight and for completions that wait.
    charged: Batch,
    /// Charge for the frames that the ring was given beyond its first ones.
    more_frames: Charge,
    /// Completions that found the ring full. Room is reserved when a call is submitted, so this never fails.
    waiting: Queue<Completion>,
    /// Priority of the most important completion in the ring.
    most_important: Priority,
}

impl Completions {
    /// Creates the completions of a process that begins, with the frames of a ring that is empty.
    fn new(shared: &Shared, account: &Arc<Account>) -> Completions {
        Completions::with_frames(shared.ring().to_vec(), account)
    }

    /// Resets it to the state after [`new`](Self::new), without any memory, and returns the old state.
    fn begin_anew(&mut self, shared: &Shared, account: &Arc<Account>) -> Completions {
        let mut frames = core::mem::take(&mut self.frames);
        // There is room: the list began with as many frames.
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

    /// Publishes the number of entries to the process.
    fn tell_capacity(&self) {
        let capacity = self.frames[0].bytes().atomic_u64(completion::CAPACITY_OFFSET);
        let capacity = capacity.expect("offsets of the ring's layout are aligned and inside");
        capacity.store(self.producer.capacity() as u64, Ordering::Relaxed);
    }

    /// Puts completions, of this priority at most, into the ring, or into the queue of those that wait.
    #[inline(always)]
    fn post(&mut self, completions: impl Iterator<Item = Completion>, priority: Priority) {
        let words = CompletionView::new(&self.frames);
        // Read anew: an impossible index of the process has to mean "full" immediately.
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

    /// Makes room for so many completions in the queue, with those that wait already.
    #[cold]
    fn reserve(&mut self, places: usize) -> Result<(), Errno> {
        self.waiting.reserve(places).map_err(|_| Errno::ENOMEM)
    }

    /// Gives back some of the room that many calls have left, when so many are in flight.
    #[inline(always)]
    fn trim(&mut self, calls: usize) {
        let needed = self.waiting.len() + calls + self.promised;
        if self.waiting.capacity() > needed + SPARE_COMPLETIONS {
            self.waiting.trim(needed);
        }
    }

    /// Makes the pushed completions visible. If there are none, the process's words stay as they are.
    fn publish(producer: &mut Producer, words: &CompletionView<'_>) {
        if producer.unpublished() > 0 {
            producer.publish(words);
        }
    }
}

/// Drops completions that waited, and their room, in steps.
async fn drop_in_steps(waiting: Queue<Completion>) {
    for (number, segment) in waiting.into_segments().enumerate() {
        drop(segment);
        if number % steps::ENTRIES == 0 {
            steps::pause_at_the_end().await;
        }
    }
}

/// A place in the table of processes, from before a process is made until its parent has waited for it.
#[derive(Debug)]
pub(crate) struct ProcessPlace {
    _process: Charge,
    _memory: Charge,
}

impl ProcessPlace {
    /// Takes a place for a child of a process with this account. `EAGAIN` if that has started too many processes;
    /// `ENOMEM`.
    pub(crate) fn new(parent: &Arc<Account>) -> Result<ProcessPlace, Errno> {
        let process = parent.charge(Resource::Processes, 1)?;
        Ok(ProcessPlace { _process: process, _memory: parent.charge(Resource::Memory, MEMORY_OF_A_PLACE)? })
    }
}

/// Parts of a process that come from its parent.
pub(crate) struct Origin {
    /// Its account.
    pub account: Arc<Account>,
    /// Its place in the table.
    pub place: ProcessPlace,
    /// Its scheduling.
    pub standing: Standing,
    /// Its authority towards others.
    pub authority: Authority,
}

/// Number of bytes of kernel memory for an entry in the table of processes.
const MEMORY_OF_A_PLACE: usize = 256;

/// Number of bytes of kernel memory with which a process begins: the process, its process page and completion ring, the
/// root of its page tables, and smaller things that each process has one of.
pub(crate) const MEMORY: usize =
    size_of::<Process>() + 2048 + (completion::pages(completion::INITIAL_CAPACITY) + 3) * PAGE_SIZE;

/// Number of page tables that are charged together.
const TABLES: usize = 8;

/// A worker, thread or call in flight of a process, in an order in which all of them can be looked at, some at a time.
/// A member that comes or moves in the table meanwhile may be missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member(u64);

impl Member {
    /// The first member.
    pub(crate) const FIRST: Member = Member(0);
    /// The first thread.
    const THREADS: Member = Member(MAXIMUM_WORKERS as u64);
    /// The first call: the one in the last place of the table.
    const CALLS: Member = Member(1 << 32);

    /// Encodes it as a word.
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// Decodes a word of [`to_word`](Self::to_word).
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

    /// Returns the slot of a worker or thread.
    fn slot(self) -> usize {
        self.0 as usize
    }

    /// Returns some places of calls, this one's first, in a table of so many; and the member to go on with, if there
    /// are more.
    fn places(self, places: usize, count: usize) -> (impl Iterator<Item = usize>, Option<Member>) {
        let last = u64::from(u32::MAX) - (self.0 - Member::CALLS.0).min(u64::from(u32::MAX));
        let end = places.min((last as usize).saturating_add(1));
        let begin = end.saturating_sub(count);
        ((begin..end).rev(), begin.checked_sub(1).map(Member::of_call))
    }
}

/// Result of a look for a starving member.
pub(crate) enum Look {
    /// A coroutine, and the member at which the next look begins.
    Found(Cid, Member),
    /// Nothing yet; the member to go on with.
    More(Member),
    /// Nothing, and there are no more members.
    End,
}

/// A process.
#[doc(alias = "task_struct")]
#[doc(alias = "signal_struct")]
pub(crate) struct Process {
    /// Its number.
    pub id: u32,
    /// Its amounts and limits of kernel memory and of other things.
    pub account: Arc<Account>,
    /// Its place among the processes, charged to its parent until that has waited.
    place: Mutex<Option<ProcessPlace>>,
    /// Charge for the process itself and its first pages.
    _charge: Charge,
    /// Charge for its page tables.
    tables: Mutex<Charge>,
    /// Its memory.
    pub space: Arc<Space>,
    /// Pages that it shares with the kernel.
    pub shared: Shared,
    /// Its open files.
    pub descriptors: Mutex<Descriptors>,
    /// Its working directory.
    pub directory: Mutex<Node>,
    /// Priority of a worker while it publishes nothing.
    pub default_priority: Priority,
    /// Its limits of scheduling, and the processor time that it has used.
    pub standing: Standing,
    /// Its authority towards others.
    pub authority: Authority,
    /// First bytes of its program's name.
    name: [AtomicU64; 2],
    /// Its share of the things of which the network has a limited number.
    pub shares: Arc<crate::network::shares::Shares>,
    /// Waiters at words of its memory.
    pub futexes: Arc<Futexes>,
    /// The model of the kernel's side of its calls.
    pub kernel_side: Choice,
    /// Number of lines about it that found no room on the console.
    pub lines: report::Lines,
    parent: AtomicU32,
    /// The nearest living process that it is below, 0 for the first process. Changed under the lock of the table.
    above: AtomicU32,
    /// Its process group, which keys of the terminal and `kill` reach together. Its parent's group until another is
    /// set.
    group: AtomicU32,
    /// Processor time of children that were waited for.
    children_ticks: AtomicU64,
    ended: AtomicBool,
    /// Set when one worker has begun, after the end, to make all threads and calls look around.
    all_are_called: AtomicBool,
    /// The coroutine that takes the process apart, once there is one.
    last_worker: AtomicU64,
    ending: Mutex<Option<Ending>>,
    /// The status that the first worker gave to `exit`: that of the process if no worker ends it, but all end
    /// themselves.
    first_worker_status: AtomicU8,
    workers: Mutex<Vec<Arc<Worker>>>,
    threads: Mutex<Threads>,
    /// Slot of the thread with which [`bring_forward_others`](Self::bring_forward_others) goes on.
    brought_forward: AtomicUsize,
    /// Number of workers and threads that have not ended.
    live_workers: AtomicUsize,
    calls: Mutex<InFlight<CallInFlight>>,
    /// Number of calls that were in flight when the process ended, and are not over yet. Changed under the lock of
    /// `calls`.
    called_to_end: AtomicUsize,
    /// Calls in flight that wait for input.
    pub input_calls: InputCalls,
    next_anonymous_call: AtomicU64,
    has_cancelled: AtomicBool,
    completions: Mutex<Completions>,
    /// Its request rings.
    pub rings: Rings,
    posted: AtomicU64,
    has_waiting_completions: AtomicBool,
    /// Waiters for the departure of others: a worker in `execve`.
    departures: Mutex<Waiters>,
    /// Its receivers of user interrupts.
    pub receivers: Mutex<Receivers>,
    /// Rights whose pages it has requested.
    pub send_pages: Mutex<SendPages>,
}

impl UserMemory for Process {
    fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        Process::copy_in(self, address, bytes)
    }

    fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        Process::copy_out(self, address, bytes)
    }
}

impl Caller for Process {
    fn number(&self) -> u32 {
        self.id
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn zero(&self, buffer: UserBuffer) -> Result<(), Errno> {
        self.space.lock().zero(buffer.address() as u64, buffer.len()).map_err(errno_of_fault)
    }
}

impl Ends for Process {
    fn has_ended(&self) -> bool {
        Process::has_ended(self)
    }
}

impl Process {
    /// Creates a process without workers; it is not in the table yet.
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
            shares: crate::network::shares::Shares::new(account.clone()),
            kernel_side: Choice::default(),
            lines: report::Lines::of(id),
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

    /// Returns the process that started it, or that inherited it.
    pub(crate) fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    /// Returns its process group.
    pub(crate) fn group(&self) -> u32 {
        self.group.load(Ordering::Relaxed)
    }

    /// Copies from the process's memory. `EFAULT` if any byte is not readable for it; `ENOMEM` if a promised page
    /// cannot be made.
    #[doc(alias = "copy_from_user")]
    pub(crate) fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.space.lock().copy_in(address as u64, bytes).map_err(errno_of_fault)
    }

    /// Copies to the process's memory. `EFAULT` if any byte is not writable for it; `ENOMEM` as above.
    #[doc(alias = "copy_to_user")]
    pub(crate) fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.space.lock().copy_out(address as u64, bytes).map_err(errno_of_fault)
    }

    /// Copies a string that ends with NUL, without it. `too_long` if there is no NUL within `limit` bytes.
    #[doc(alias = "strncpy_from_user")]
    pub(crate) fn copy_in_string(&self, address: usize, limit: usize, too_long: Errno) -> Result<Vec<u8>, Errno> {
        self.space.lock().copy_in_string(address as u64, limit).map_err(|error| match error {
            StringError::TooLong => too_long,
            StringError::Fault(fault) => errno_of_fault(fault),
        })
    }

    /// Copies a path that ends with NUL, without it.
    #[doc(alias = "getname")]
    pub(crate) fn copy_in_path(&self, address: usize) -> Result<Vec<u8>, Errno> {
        self.copy_in_string(address, LONGEST_PATH - 1, Errno::ENAMETOOLONG)
    }

    /// Returns the effective priority of the claim that the process makes now through its published bitmaps.
    ///
    /// All its workers together make one claim. So a worker that was interrupted while it held a lock of the process is
    /// as important as the worker that waits for the lock, and gets to release it.
    #[inline]
    pub(crate) fn claimed_priority(&self) -> Priority {
        let claim = Priority::most_important_in(self.shared.ready()).unwrap_or(self.default_priority);
        self.standing.worth(claim)
    }

    /// Returns the effective priority of its claim, or of the most important completion that it has not taken, if that
    /// is more important: the coroutines of these calls are ready as soon as a worker looks.
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

    /// Returns the processor time of all its workers, in ticks, up to now.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let now = Machine::now();
        let running = |workers: &[Arc<Worker>]| workers.iter().fold(0, |sum, worker| sum + worker.uncharged(now));
        let running = running(&self.workers.lock())
            + self.threads.lock().iter().fold(0, |sum, thread| sum + thread.uncharged(now));
        self.standing.charged() + running
    }

    /// Returns the processor time of children that it has waited for, and of those for which they have, in ticks.
    pub(crate) fn children_ticks(&self) -> u64 {
        self.children_ticks.load(Ordering::Relaxed)
    }

    /// Looks for a zombie among its children and removes it, with the processor time that it and its children have
    /// used; pending if there are children but no zombie.
    #[doc(alias = "do_wait")]
    #[doc(alias = "wait4")]
    pub(crate) fn poll_child(&self, which: Children, waker: Option<&Waker>) -> Poll<Result<(u32, Ending, u64), Errno>> {
        let found = poll_child(self.id, which, waker);
        if let Poll::Ready(Ok((_, _, ticks))) = found {
            self.children_ticks.fetch_add(ticks, Ordering::Relaxed);
        }
        found
    }

    /// Returns the number of calls in flight, and of those at priorities 0 to 7 (7: and less important), 16 bits each.
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

    /// Returns the first bytes of its program's name.
    pub(crate) fn name(&self) -> [u64; 2] {
        [self.name[0].load(Ordering::Relaxed), self.name[1].load(Ordering::Relaxed)]
    }

    /// Sets the name of the program that it runs from now on.
    pub(crate) fn set_name(&self, name: [u64; 2]) {
        self.name[0].store(name[0], Ordering::Relaxed);
        self.name[1].store(name[1], Ordering::Relaxed);
        crate::observing::trace::program(self.id, name);
    }

    /// Gives its workers the present effective priority of its claim, after that has changed for another reason than
    /// the claim itself.
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

    /// Gives some of its workers, threads and calls their present effective priority; returns the member to go on with,
    /// if there are more.
    pub(crate) fn order_anew_from(&self, member: Member, count: usize) -> Option<Member> {
        if member < Member::THREADS {
            for worker in self.workers.lock().iter() {
                worker.order_anew();
            }
            self.kernel_side.order_anew(self);
            self.input_calls.order_anew(self);
            self.rings.order_anew(&self.standing);
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
            if let Some(CallInFlight { owner: CallOwner::Coroutine(cid), priority, .. }) = calls.at_place(place) {
                let priority = Priority::saturating(u64::from(*priority));
                crate::scheduling::executor::set_priority(*cid, self.standing.worth(priority));
            }
        }
        next
    }

    /// Looks at some workers, threads and calls in flight, in their order, for one that has been ready since an earlier
    /// look without a turn, and lets that one go before everything else.
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

    /// Returns whether the process must stop. Workers look before each visit to user mode, calls at each poll.
    pub(crate) fn has_ended(&self) -> bool {
        // Acquire: a reader that sees it sees the ending too.
        self.ended.load(Ordering::Acquire)
    }

    /// Ends the process. The first ending counts; later ones change nothing.
    #[doc(alias = "do_group_exit")]
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
        self.rings.order_anew(&self.standing);
        self.rings.close();
        // There may be thousands of threads and calls. The first worker that leaves calls all others, in steps.
        for worker in self.workers.lock().iter().chain(self.threads.lock().iter().take(1)) {
            worker.interrupt();
        }
    }

    /// Makes all threads and calls in flight of a process that has ended look around, in steps. Called by every worker
    /// that leaves; the first does it.
    ///
    /// # Cancellation
    /// Not to be dropped: the remaining ones would never be called.
    pub(crate) async fn call_all(&self) {
        // AcqRel: a later worker finds that this has begun.
        if self.all_are_called.swap(true, Ordering::AcqRel) {
            return;
        }
        // The watchdog finds the process that ends no more, and its parent waits.
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
        // Their entries go at once, since they cannot be cancelled any more.
        let calls = {
            let mut calls = self.calls.lock();
            // Under the lock, as all changes of the number.
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

    /// Returns the bytes of memory that would be free without the process.
    fn memory(&self) -> usize {
        let pages = self.space.lock().resident_frames() * PAGE_SIZE;
        pages + self.account.own(Resource::Memory) + self.descriptors.lock().memory_of_files(&self.account)
    }

    /// Charges the page tables that it has, when there may be more of them. A process that may not have them ends: the
    /// mappings that needed them cannot be taken back.
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

    /// Lets a process that has ended go before everything else: a process waits for its memory, perhaps a more
    /// important one that tries again and again and would never let it run.
    fn boost(&self) {
        for worker in self.workers.lock().iter().chain(self.threads.lock().iter()) {
            worker.boost();
        }
        let last = Cid::from_raw(self.last_worker.load(Ordering::Relaxed));
        crate::scheduling::executor::set_priority(last, Priority::HIGHEST);
    }

    /// Adds a worker. `EAGAIN` if the process has as many as it may already, or has ended.
    pub(crate) fn add_worker(
        &self,
        make: impl FnOnce(usize) -> Result<Arc<Worker>, Errno>,
    ) -> Result<Arc<Worker>, Errno> {
        let mut workers = self.workers.lock();
        if self.has_ended() || workers.len() >= MAXIMUM_WORKERS {
            return Err(Errno::EAGAIN);
        }
        workers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        // Counted before it runs: another hart may poll it, and be done with it, immediately.
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

    /// Adds a thread. `EAGAIN` if the process has as many as it may already, or has ended.
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

    /// Returns the worker or thread with this slot.
    pub(crate) fn worker_or_thread(&self, slot: usize) -> Option<Arc<Worker>> {
        if slot < MAXIMUM_WORKERS { self.worker(slot) } else { self.threads.lock().get(slot).cloned() }
    }

    /// Returns the worker with this index.
    pub(crate) fn worker(&self, index: usize) -> Option<Arc<Worker>> {
        self.workers.lock().get(index).cloned()
    }

    /// Returns the number of workers and threads that have not ended.
    pub(crate) fn live_workers(&self) -> usize {
        self.live_workers.load(Ordering::Acquire)
    }

    /// Records the `exit` of a worker. As on Linux the first one's status is the process's, in any order of exits; so
    /// workers that end at the same moment need not agree which of them is the last.
    pub(crate) fn note_exit(&self, worker: usize, status: u8) {
        if worker == 0 {
            // Relaxed: read after the count of workers has come to 0, which orders it.
            self.first_worker_status.store(status, Ordering::Relaxed);
        }
    }

    /// Removes a worker or thread whose coroutine is done; returns whether it was the last one, which must [take the
    /// process apart](Process::take_apart).
    #[must_use]
    pub(crate) fn worker_is_gone(self: &Arc<Process>, worker: &Worker) -> bool {
        if worker.is_thread() {
            // Dropped outside of the lock: the entry may be its last owner but for the caller.
            let entry = self.threads.lock().remove(worker.index());
            drop(entry);
        }
        // AcqRel: the changes of other workers to the process happen before the last one takes it apart.
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
        // Taken out of the lock: closing may wake others and free much.
        let descriptors = self.descriptors.lock().take();
        for (number, file) in descriptors.into_files().enumerate() {
            drop(file);
            if number % CLOSED_AT_A_TIME == 0 || remains::are_left() {
                steps::pause_at_the_end().await;
            }
            while remains::free_some() {
                steps::pause_at_the_end().await;
            }
        }
        // Remains of calls that have ended with the process, too.
        while remains::free_some() {
            steps::pause_at_the_end().await;
        }
    }

    /// Waits until something of the process has gone, as [`poll_departed`](Self::poll_departed) tells.
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    async fn departed(&self, has_gone: impl Fn() -> bool) {
        poll_fn(|cx| if self.poll_departed(cx.waker(), &has_gone) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Returns whether something of the process has gone; if not, `waker` is woken when anything goes. One coroutine
    /// waits at a time: the last worker's, or the kept worker's.
    fn poll_departed(&self, waker: &Waker, has_gone: impl Fn() -> bool) -> bool {
        // Registered before the look: a later departure finds the waker. For one waker this needs no memory; if there
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

    /// Takes a process apart that has ended, in the coroutine of its last worker. Its ending remains, for its parent,
    /// which learns of it when nothing of the process is in use any more.
    ///
    /// # Cancellation
    /// Not to be dropped: the rest would never be done.
    #[doc(alias = "do_exit")]
    #[doc(alias = "exit_mm")]
    #[doc(alias = "exit_files")]
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
        // An `accept` that was in progress when they were closed has made one more.
        self.close_descriptors().await;
        self.workers.lock().clear();
        self.threads.lock().clear();
        let ending = self.ending.lock().unwrap_or(Ending::Exited(0));
        let ticks = self.cpu_ticks() + self.children_ticks();
        // Room for completions, of which there will be none.
        let room = core::mem::take(&mut self.completions.lock().waiting);
        drop_in_steps(room).await;
        while TABLE.lock().lets_go_of_children(self) {
            steps::pause_at_the_end().await;
        }
        steps::pause_at_the_end().await;
        // Taken out of the lock before they are woken.
        let mut waiters = TABLE.lock().has_ended(self, ending, ticks);
        waiters.wake_all();
        if self.id == FIRST {
            crate::machine::first_process_has_ended(ending);
        }
    }

    // ---- asynchronous calls ----

    /// Starts an asynchronous call: `start` hands `work` to an owner that goes on with it, given the key of the call.
    /// It runs under the lock of the calls.
    ///
    /// `EBUSY` if too many are in flight, `EEXIST` if the token is in use, `ENOMEM` (also if `start` returns the work),
    /// each with the work. A token of 0 means that the call will never be cancelled.
    pub(crate) fn begin_call<T>(
        &self,
        submission: Submission,
        work: T,
        start: impl FnOnce(Submitted, T) -> Result<CallOwner, T>,
    ) -> Result<(), (Errno, T)> {
        // The table stays locked until the call is in it. If another hart goes on with the call immediately, its end
        // waits for the lock, so that no entry is made after the call is over.
        let mut calls = self.calls.lock();
        if let Err(error) = self.make_room_for_a_call(&mut calls) {
            return Err((error, work));
        }
        // Without a token the key counts down from the top, where no address and no index of a program's table lies.
        let Submission { token, priority, .. } = submission;
        let key = if token == 0 { self.next_anonymous_call.fetch_sub(1, Ordering::Relaxed) } else { token };
        let Some(place) = calls.vacancy(key) else { return Err((Errno::EEXIST, work)) };
        let owner = start(Submitted { key, submission }, work).map_err(|work| (Errno::ENOMEM, work))?;
        counters::count(Counter::CallsInFlight);
        calls.fill(place, CallInFlight { owner, cancelled: false, was_ready: false, priority: priority.number() });
        Ok(())
    }

    #[inline(always)]
    fn make_room_for_a_call(&self, calls: &mut InFlight<CallInFlight>) -> Result<(), Errno> {
        if self.has_ended() {
            return Err(Errno::EINTR);
        }
        calls.reserve().map_err(|_| Errno::ENOMEM)?;
        // A place for its completion in case the ring is full then: beside those that wait already, every call in
        // flight may come to wait. Completions that wait count towards the limit, or a process that never looks at its
        // ring could fill the kernel's memory.
        let mut completions = self.completions.lock();
        if calls.len() + completions.waiting.len() >= MAXIMUM_CALLS {
            return Err(Errno::EBUSY);
        }
        let charged = calls.len() + completions.waiting.len() + 1;
        completions.charged.require(charged)?;
        let places = completions.waiting.len() + calls.len() + completions.promised + 1;
        if places > completions.waiting.capacity() {
            completions.reserve(places)?;
            // That may have taken memory that this call needs itself.
            self.account.admit()?;
        }
        Ok(())
    }

    /// Returns whether the process has cancelled this call.
    pub(crate) fn call_is_cancelled(&self, key: u64) -> bool {
        // Acquire: pairs with the release in `cancel_call`. Most processes never cancel anything.
        self.has_cancelled.load(Ordering::Acquire) && self.calls.lock().get(key).is_some_and(|call| call.cancelled)
    }

    /// Cancels a call. `ENOENT` if it is not in flight. A call that waits for input is over when this returns, unless
    /// its input has come.
    pub(crate) fn cancel_call(&self, token: u64) -> Result<(), Errno> {
        let waiting = {
            let mut calls = self.calls.lock();
            let call = calls.get_mut(token).ok_or(Errno::ENOENT)?;
            call.cancelled = true;
            self.has_cancelled.store(true, Ordering::Release);
            match &call.owner {
                CallOwner::Completer(waiting) => waiting.clone(),
                // Waking under the lock is fine: a hart that goes on with the call immediately waits for the lock.
                owner => {
                    owner.wake();
                    return Ok(());
                }
            }
        };
        input::end_early(&waiting);
        Ok(())
    }

    /// Ends calls of this priority at most, by their keys: puts their results into the ring, and makes a worker look
    /// there.
    pub(crate) fn complete_calls(&self, done: &[(u64, Completion)], priority: Priority) {
        counters::add(Counter::CallsInFlight, (done.len() as u64).wrapping_neg());
        {
            // Locked until the completions have their places: `begin_call` counts each call once, as a call or as a
            // completion.
            let mut calls = self.calls.lock();
            let known = done.iter().filter(|(key, _)| calls.remove(*key).is_some()).count();
            // Calls that are not in the table any more have been called to end.
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

    /// Makes posted completions visible to workers that are about to sleep.
    fn tell_workers(&self, completions: &Completions) {
        self.posted.store(completions.producer.published(), Ordering::Release);
        self.has_waiting_completions.store(!completions.waiting.is_empty(), Ordering::Release);
    }

    /// Promises places for the completions of so many requests; returns the number promised: no more than the ring has
    /// room for, unless `beyond` allows that completions wait.
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

    /// Posts the completions of requests for which so many places were promised, of this priority at most. The other
    /// requests are calls in flight now, which have places of their own.
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

    /// Enlarges the completion ring to at least so many entries, a power of two that a ring can have, or 0.
    ///
    /// `EBUSY` if it would have to grow and is not empty; `ENOMEM`; `EEXIST` if the process has mapped something there.
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
        if let Err(error) = shared::map(&self.space, address, &frames) {
            // No completion has come meanwhile, since the ring is locked.
            let old = completions_capacity(completions.frames.len());
            let _ = completions.producer.resize(&CompletionView::new(&completions.frames), old);
            return Err(error);
        }
        completions.frames.extend(frames);
        completions.more_frames.merge(charge);
        completions.tell_capacity();
        Ok(())
    }

    /// Announces that the completer has finished all calls of the process, which has ended.
    pub(crate) fn completer_is_done(&self) {
        self.departures.lock().wake_all();
    }

    /// Announces that a closed ring is at rest.
    pub(crate) fn ring_has_closed(&self) {
        self.departures.lock().wake_all();
    }

    /// Posts completions that found the ring full. Called when a worker enters the kernel.
    #[inline(always)]
    pub(crate) fn post_waiting_completions(&self) {
        if self.has_waiting_completions.load(Ordering::Relaxed) {
            self.post_waiting_while_room();
        }
    }

    #[cold]
    fn post_waiting_while_room(&self) {
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

    /// Returns the number of completions that are in the ring or were taken from it.
    pub(crate) fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// Makes a worker look at the ring: a sleeping one, at this priority; else one that runs something less important,
    /// by a user interrupt. If all run something at least as important, they look in time, before their next coroutine.
    /// If none has a hart, one that waits for its turn gets it no later than something of this priority would.
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

    /// Lets no worker or thread of the process wait longer for a hart than `worker`, which yields, will itself.
    ///
    /// The yielding one may have met a lock of the process, and the lock's owner may have been interrupted when the
    /// process claimed less: in a queue it keeps the priority with which it came.
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

    /// Wakes a sleeping worker if there is something ready, for a worker that will not look for a while, because its
    /// coroutine is long or waits in a call. In the process the scheduler wakes no worker for coroutines that a busy
    /// worker can run after its poll (`Sharing::Lazy`), and only the kernel sees that a poll is long.
    pub(crate) fn share_ready_coroutines(&self, worker: &Worker) {
        // Coroutines that it has made ready may lie in the shard of another worker that waits.
        let Some(priority) = Priority::most_important_in(self.shared.ready_only()) else { return };
        let workers = self.workers.lock();
        if workers.iter().any(|other| other.wake_if_parked(self.standing.worth(priority))) {
            return;
        }
        // A worker that has found nothing, and is about to sleep, looks again.
        for other in workers.iter().filter(|other| !core::ptr::eq(&***other, worker)) {
            if self.shared.running(other.index()) == 0 {
                other.wake();
            }
        }
    }

    /// Interrupts a worker at its tick, if it runs something less important than a completion in the ring.
    ///
    /// [`wake_a_worker`](Self::wake_a_worker) does that when the completion is posted. But a worker looks at the ring,
    /// takes a coroutine and only then publishes its priority, without a fence in between: posting at that moment may
    /// find the priority of its last coroutine, and interrupt no worker.
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

    /// Prepares for another program: makes all workers but one, and all calls in flight, end. Returns `false` if the
    /// process ends or another worker was first, which ends the caller's.
    pub(crate) fn keep_only(&self, kept: &Arc<Worker>) -> bool {
        {
            // Decided under the lock, so that of two workers that come at once only one stops the other.
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

    /// Returns whether one worker is left and no call; if not, `waker` is woken when something of the process has gone.
    pub(crate) fn poll_alone(&self, waker: &Waker) -> bool {
        self.poll_departed(waker, || {
            self.live_workers() == 1 && self.rings.are_at_rest() && self.calls.lock().is_empty()
        })
    }

    /// Drops everything on its way to the old program, when another one takes its place. Needs no memory: there is no
    /// way back.
    ///
    /// # Cancellation
    /// The rest is dropped at once.
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
        // Their charge is given back after them.
        drop_in_steps(core::mem::take(&mut forgotten.waiting)).await;
    }

    /// Removes workers and threads that have ended, after [`keep_only`](Self::keep_only); the remaining one becomes the
    /// first worker.
    pub(crate) fn forget_others(&self, kept: &Arc<Worker>) {
        let mut workers = self.workers.lock();
        self.threads.lock().clear();
        workers.clear();
        workers.push(kept.clone());
    }
}

/// Returns the number of entries of a completion ring with so many frames.
fn completions_capacity(frames: usize) -> usize {
    (frames - 1) * (PAGE_SIZE / completion::ENTRY_SIZE)
}

// ---- the table ----

enum ProcessEntry {
    Alive(Arc<Process>),
    /// `ticks`: the processor time that it and its children have used.
    Zombie {
        group: u32,
        ending: Ending,
        ticks: u64,
        _place: Option<ProcessPlace>,
    },
}

/// A child in the index of its parent's children: parent, group, and its own number.
type Child = (u32, u32, u32);

#[doc(alias = "pid_hash")]
#[doc(alias = "tasklist_lock")]
struct ProcessTable {
    entries: BTreeMap<u32, ProcessEntry>,
    last: u32,
    /// Children that live, but for orphans, and zombies. So a search for a child to wait for looks at one entry.
    living: BTreeSet<Child>,
    ended: BTreeSet<Child>,
    /// All processes that live, by the process above them.
    below: BTreeSet<(u32, u32)>,
    /// Waiters for children, by parent.
    waiters: BTreeMap<u32, Waiters>,
}

static TABLE: Mutex<ProcessTable> = Mutex::new(ProcessTable {
    entries: BTreeMap::new(),
    last: 0,
    living: BTreeSet::new(),
    ended: BTreeSet::new(),
    below: BTreeSet::new(),
    waiters: BTreeMap::new(),
});

/// The children that a `wait4` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// Any.
    Any,
    /// The child with this number.
    One(u32),
    /// Any of this process group.
    Group(u32),
}

/// Returns the range of all children of a parent, or of those in one group.
fn family(parent: u32, group: Option<u32>) -> RangeInclusive<Child> {
    (parent, group.unwrap_or(0), 0)..=(parent, group.unwrap_or(u32::MAX), u32::MAX)
}

impl ProcessTable {
    /// Enters a process that lives. If its parent has ended meanwhile, the first process takes that place, and the
    /// process is an orphan.
    fn enter(&mut self, process: Arc<Process>) {
        let (id, parent) = (process.id, process.parent());
        if matches!(self.entries.get(&parent), Some(ProcessEntry::Alive(_))) {
            self.living.insert((parent, process.group(), id));
        } else if parent != 0 {
            process.parent.store(FIRST, Ordering::Relaxed);
            process.above.store(FIRST, Ordering::Relaxed);
        }
        self.below.insert((process.above.load(Ordering::Relaxed), id));
        self.entries.insert(id, ProcessEntry::Alive(process));
    }

    /// Takes a process that lives out of the indexes; returns whether its parent may wait for it.
    fn leave_indexes(&mut self, process: &Process) -> bool {
        self.below.remove(&(process.above.load(Ordering::Relaxed), process.id));
        self.living.remove(&(process.parent(), process.group(), process.id))
    }

    /// Returns the processes above this one, the nearest first.
    fn all_above(&self, process: &Process) -> impl Iterator<Item = u32> {
        let first = Some(process.above.load(Ordering::Relaxed));
        let above = |id: &u32| match self.entries.get(id) {
            Some(ProcessEntry::Alive(process)) => Some(process.above.load(Ordering::Relaxed)),
            _ => None,
        };
        core::iter::successors(first, above).take_while(|id| *id != 0)
    }

    /// Releases some of the processes below a process that has ended; returns whether there may be more. The process
    /// above it comes to be above them. Children that live become orphans: the first process is their parent in name,
    /// and need not wait for them. Zombies are removed.
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
                if let Some(ProcessEntry::Alive(child)) = self.entries.get(&id) {
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

    /// Records the ending of a process for its parent; without a living one it is forgotten. The process has no
    /// children any more. Returns the waiters for children of that parent, to be woken without the lock.
    #[must_use]
    fn has_ended(&mut self, process: &Process, ending: Ending, ticks: u64) -> Waiters {
        // A child may have been started while the process ended.
        while self.lets_go_of_children(process) {}
        self.waiters.remove(&process.id);
        let (parent, group) = (process.parent(), process.group());
        if self.leave_indexes(process) {
            let _place = process.place.lock().take();
            self.ended.insert((parent, group, process.id));
            self.entries.insert(process.id, ProcessEntry::Zombie { group, ending, ticks, _place });
            self.waiters.remove(&parent).unwrap_or_default()
        } else {
            self.entries.remove(&process.id);
            counters::uncount(Counter::Processes);
            Waiters::default()
        }
    }
}

/// Reserves a number and builds a process with it. `EAGAIN` if there are too many.
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

/// Undoes [`create`] for a process that never got a worker.
pub(crate) fn discard(process: &Process) {
    let mut table = TABLE.lock();
    table.leave_indexes(process);
    table.entries.remove(&process.id);
    counters::uncount(Counter::Processes);
}

/// Returns whether a process is below another one.
pub(crate) fn is_below(process: &Process, above: &Process) -> bool {
    TABLE.lock().all_above(process).any(|id| id == above.id)
}

/// Fails with `EAGAIN` if so many processes are above this one that none may be below it.
pub(crate) fn require_depth(process: &Process) -> Result<(), Errno> {
    if TABLE.lock().all_above(process).count() < DEEPEST { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// Returns the living process with this number.
#[doc(alias = "find_task_by_vpid")]
pub(crate) fn find(id: u32) -> Option<Arc<Process>> {
    match TABLE.lock().entries.get(&id) {
        Some(ProcessEntry::Alive(process)) => Some(process.clone()),
        _ => None,
    }
}

/// Returns the living process with the lowest number above this one.
pub(crate) fn next_after(id: u32) -> Option<Arc<Process>> {
    TABLE.lock().entries.range(id.saturating_add(1)..).find_map(|(_, entry)| match entry {
        ProcessEntry::Alive(process) => Some(process.clone()),
        ProcessEntry::Zombie { .. } => None,
    })
}

/// Returns the living process with the lowest number above this one for which `is_meant` holds.
fn next_living(above: u32, is_meant: impl Fn(&Process) -> bool) -> Option<Arc<Process>> {
    let table = TABLE.lock();
    table.entries.range(above + 1..).find_map(|(_, entry)| match entry {
        ProcessEntry::Alive(process) if is_meant(process) => Some(process.clone()),
        _ => None,
    })
}

/// Returns whether a signal's default action ends the process. There are no handlers, and a signal that would stop a
/// process ends it.
pub(crate) fn ends(number: u32) -> bool {
    !matches!(number, 0 | signal::CHLD | signal::CONT | signal::URG | signal::WINCH)
}

/// Sends a signal to a process, if the caller may.
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

/// Performs `kill` with the number of a process. A zombie exists, and the signal has no effect.
#[doc(alias = "kill_pid")]
pub(crate) fn signal_one(caller: &Process, id: u32, number: u32) -> Result<(), Errno> {
    match find(id) {
        Some(process) => signal(caller, &process, number),
        None if exists(id) => Ok(()),
        None => Err(Errno::ESRCH),
    }
}

/// Performs `kill` with a process group: sends a signal, in steps, to its members to which the caller may. `EPERM` if
/// there are only others, `ESRCH` if it is empty. The caller comes last, because it does not go on after that.
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

/// Performs `kill` with -1: sends a signal, in steps, to every process to which the caller may, but the first process
/// and itself. `ESRCH` if there is no other; if there is one, the call succeeds even if it may signal none, as on
/// Linux.
///
/// # Cancellation
/// Some have got the signal and others have not.
pub(crate) async fn signal_all_processes(caller: &Process, number: u32) -> Result<(), Errno> {
    let mut answer = Err(Errno::ESRCH);
    let mut last = FIRST;
    while let Some(process) = next_in_steps(caller, &mut last, |process| process.id != caller.id).await {
        let _ = signal(caller, &process, number);
        answer = Ok(());
        steps::pause(caller).await;
    }
    answer
}

/// Finds the living process with the lowest number above `last` for which `is_meant` holds, in steps; `last` goes up to
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
            if let ProcessEntry::Alive(process) = entry
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

/// Ends all members of a process group because of a key of the terminal.
pub(crate) fn signal_group_from_terminal(group: u32, number: u32) {
    let mut last = 0;
    while let Some(process) = next_living(last, |process| process.group() == group) {
        last = process.id;
        if ends(number) {
            process.end(Ending::Killed(number as u8));
        }
    }
}

/// Returns whether a process lives in this group for which `is_meant` holds.
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

/// Returns whether a process lives in this group.
pub(crate) fn group_exists(group: u32) -> bool {
    next_living(0, |process| process.group() == group).is_some()
}

/// Performs `setpgid`: puts the caller or one of its children, 0 meaning the caller, into a group that exists, or into
/// one of its own, which 0 means too. (There are no sessions, so groups cannot be in different ones.)
#[doc(alias = "setpgid")]
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

/// Returns whether a process with this number exists, as a zombie too.
pub(crate) fn exists(id: u32) -> bool {
    TABLE.lock().entries.contains_key(&id)
}

fn poll_child(parent: u32, which: Children, waker: Option<&Waker>) -> Poll<Result<(u32, Ending, u64), Errno>> {
    let mut table = TABLE.lock();
    let of = |children: &BTreeSet<Child>, table: &ProcessTable| match which {
        Children::Any => children.range(family(parent, None)).next().copied(),
        Children::Group(group) => children.range(family(parent, Some(group))).next().copied(),
        Children::One(id) => {
            let group = match table.entries.get(&id) {
                Some(ProcessEntry::Alive(child)) => Some(child.group()),
                // It keeps its group.
                Some(ProcessEntry::Zombie { group, .. }) => Some(*group),
                None => None,
            };
            group.map(|group| (parent, group, id)).filter(|child| children.contains(child))
        }
    };
    if let Some(child) = of(&table.ended, &table) {
        table.ended.remove(&child);
        let Some(ProcessEntry::Zombie { ending, ticks, .. }) = table.entries.remove(&child.2) else {
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
    use crate::testing::run;

    /// Looks at calls from the last place of the table down, some at a time, each once.
    #[test]
    fn all_places_of_calls_are_met_in_pieces() {
        for places in [0, 1, 2, 63, 64, 65, 1000] {
            let mut met = Vec::new();
            let mut at = Some(Member::CALLS);
            while let Some(member) = at {
                let (some, next) = member.places(places, 64);
                met.extend(some);
                assert!(next.is_none_or(|next| next > member));
                at = next;
            }
            assert_eq!(met, (0..places).rev().collect::<Vec<_>>());
        }
        let member = Member::of_call(17);
        assert_eq!(Member::from_word(member.to_word()), member);
        // A table that has shrunk meanwhile.
        let (some, next) = member.places(5, 64);
        assert_eq!((some.collect::<Vec<_>>(), next), (vec![4, 3, 2, 1, 0], None));
    }

    #[test]
    fn families_are_ranges_of_the_index() {
        let children: BTreeSet<Child> = [(1, 1, 9), (2, 1, 5), (2, 1, 7), (2, 8, 6), (3, 1, 4)].into();
        let of = |parent, group| children.range(family(parent, group)).map(|child| child.2).collect::<Vec<_>>();
        assert_eq!(of(2, None), [5, 7, 6]);
        assert_eq!((of(2, Some(1)), of(2, Some(8)), of(2, Some(2))), (vec![5, 7], vec![6], vec![]));
        assert_eq!(of(4, None), []);
    }

    /// In the tree, the processes below one that ends come to be below the process above it.
    #[test]
    fn orphans_stay_below_the_processes_above_their_parent() {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(move |program| {
            let child = program.spawn(move |program| {
                let grandchild = program.spawn(|program| program.sleep_ns(50_000_000)).unwrap();
                sender.send(grandchild).unwrap();
                program.sleep_ns(10_000_000);
            });
            let child = child.unwrap();
            program.sleep_ns(5_000_000);
            let find = |id: usize| find(id as u32).unwrap();
            let (own, grandchild) = (program.process(), find(receiver.recv().unwrap()));
            assert!(is_below(&grandchild, &find(child)) && is_below(&grandchild, &own));
            assert!(!is_below(&own, &grandchild) && !is_below(&own, &own));
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert!(is_below(&grandchild, &own), "its parent in name is the first process");
            assert_eq!(grandchild.parent(), FIRST);
            assert_eq!(next_after(grandchild.id - 1).map(|process| process.id), Some(grandchild.id));
            assert!(require_depth(&grandchild).is_ok());
        });
    }

    #[test]
    fn processes_are_not_stacked_without_limit() {
        fn descend(program: &mut crate::testing::Program, depth: usize) {
            match program.spawn(move |program| descend(program, depth + 1)) {
                Ok(child) => assert_eq!(program.wait_for(child), Ok((child, 0))),
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    assert!((DEEPEST - 2..=DEEPEST).contains(&depth), "{depth}");
                }
            }
        }
        run(|program| descend(program, 1));
    }
}
