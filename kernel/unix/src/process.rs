//! Processes: an address space, descriptors, workers and the asynchronous calls in flight.
//!
//! # Life
//!
//! A process starts with one worker. It *ends* when [`Process::end`] is called for the first time, by a call, a fault,
//! a `kill` or its last worker's exit: the status is fixed at that moment. Every worker and every call in flight is
//! then woken, in steps if they are many, sees that the process has ended, and gives up everything that it holds. The
//! last worker to go takes the process apart, in steps too (`Process::take_apart`): descriptors are closed, memory is
//! freed, living children become orphans, whose parent is the first process in name only. A zombie remains, an entry in
//! the table with the status, until the parent has waited for it.
//!
//! # Parts
//!
//! [`Process`] is the sum of its parts, each a type with a file of its own: the address space ([`lending`]), the
//! pages shared with the kernel ([`shared`]), descriptors (`files::descriptor`), its relations to others ([`family`]),
//! [`capabilities`], the account ([`accounts`]), its scheduling (`scheduling::standing`), workers ([`worker`],
//! [`thread`]), [`signals`], [`timers`], [`futex`]es, request rings (`asynchronous::rings`), calls in flight
//! (`asynchronous::in_flight`, `asynchronous::input`) and [`completions`]. This file has the parts together, and the
//! operations on several of them: on calls in flight with their completions, and on workers with the claims of the
//! process. Above it are the [`table`] of all processes, [`signal_delivery`], [`signal_sending`], the end of a process
//! and its replacement by another program ([`life`]), and [`authority`].
//!
//! # Locks
//!
//! In general one at a time. The exceptions, outer lock first: a kernel object (the futexes are one), then the address
//! space, to copy data; the workers, then the threads; the table of descriptors, then a kernel object, to read how much
//! memory it has or to accept a connection, or the address space, to write that connection's address; the table of
//! calls, then the completions, the waiters for departures, and a kernel object and the executor's own, to start a
//! call; a worker's guest interrupt file or the pages for sending user interrupts, then the address space; the table of
//! processes, then a process's signals; these, then the workers, one worker's signals, the address space, to write a
//! handler's frame, and what ends a process; the address space of a process, then that of a copy that does not run yet.

pub(crate) mod accounts;
mod archived_text;
pub(crate) mod authority;
pub(crate) mod barriers;
pub(crate) mod beginnings;
pub(crate) mod capabilities;
pub(crate) mod class;
pub(crate) mod completions;
pub(crate) mod core_file;
pub(crate) mod exit_status;
pub(crate) mod family;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod futex_list;
pub(crate) mod identity;
pub(crate) mod inheritance;
mod keeper;
pub(crate) mod lending;
pub(crate) mod life;
pub(crate) mod lifetime;
pub(crate) mod limits;
pub(crate) mod nice_values;
pub(crate) mod oom_killer;
pub(crate) mod owned_lock;
pub(crate) mod process_file;
pub(crate) mod program;
pub(crate) mod shared;
pub(crate) mod sightings;
pub(crate) mod signal_delivery;
pub(crate) mod signal_file;
pub(crate) mod signal_sending;
pub(crate) mod signals;
pub(crate) mod switching;
pub(crate) mod table;
pub(crate) mod thread;
pub(crate) mod timers;
pub(crate) mod told_owners;
pub(crate) mod user;
pub(crate) mod visit;
pub(crate) mod worker;

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ::signals::{Information, Signal};
use abi_queue::completion;
use abi_queue::pages::{COMPLETION_RING_OFFSET, PAGE_SIZE, SEND_PAGES};
use abi_queue::{Completion, Priority};
use abi_unix::types::signal;
use abi_unix::{Counter, Errno};
use memory::SharedBytes;
use memory::space::StringError;
use memory::sv39::Access;
use platform::println;
use spin::{Mutex, Once};
use usermode::Space;
use waiters::Waiters;

use coroutine::State;
use hal_api::Machine as _;
use platform::Machine;

use crate::asynchronous::in_flight::InFlight;
use crate::asynchronous::input::{self, InputCall, InputCalls};
use crate::asynchronous::operation::MEMORY_OF_A_CALL;
use crate::asynchronous::ring_words::CompletionView;
use crate::asynchronous::rings::Rings;
use crate::asynchronous::submission::{HeldCall, Submission, Submitted};
use crate::asynchronous::user_interrupts::{self, Receivers, SendPages, SenderTable};
use crate::files::descriptor::Descriptors;
use crate::files::message_queue::Notice;
use crate::files::mounts::Place;
use crate::files::semaphores::Debts;
use crate::files::tree::RunningFile;
use crate::models::Model;
use crate::observing::call_log::Watched;
use crate::observing::{counters, report};
use crate::process::accounts::{Account, Charge, MAXIMUM_CALLS, Resource};
use crate::process::barriers::Barriers;
use crate::process::beginnings::Beginnings;
use crate::process::capabilities::Authority;
use crate::process::class::{Class, ClassAndNice, ProcessRank};
use crate::process::completions::{Completions, completions_capacity};
use crate::process::core_file::Dump;
use crate::process::exit_status::Ending;
use crate::process::family::{Family, ProcessPlace};
use crate::process::futex::Futexes;
use crate::process::identity::{Identity, IdentityPlace, Whom};
use crate::process::lending::ProcessMemory;
use crate::process::lifetime::Lifetime;
use crate::process::shared::{Shared, zeroed_frames};
use crate::process::sightings::Sightings;
use crate::process::signals::Signals;
use crate::process::thread::Threads;
use crate::process::timers::Timers;
use crate::process::user::{Caller, LONGEST_PATH, UserBuffer, UserMemory, errno_of_fault};
use crate::process::worker::Worker;
use crate::random;
use crate::scheduling::executor::{self, Cid};
use crate::scheduling::standing::{Standing, UsedTime};
use crate::scheduling::steps::{self, Ends};

/// Number of workers that one process can have.
pub(crate) const MAXIMUM_WORKERS: usize = abi_queue::MAXIMUM_WORKERS;
/// Number of threads that one step looks at.
const THREADS_OF_A_STEP: usize = 128;
/// The first process: the parent of orphans in name, and the one whose end ends the machine.
pub(crate) const FIRST: u32 = 1;
/// Permissions that its new files do not get, as with Linux: others may not write to them.
const CREATION_MASK: u32 = 0o022;

/// Conditions of a process that all its workers look at before user mode, as bits.
struct Condition;

impl Condition {
    /// It has ended.
    const ENDED: u8 = 1;
    /// It is stopped.
    const STOPPED: u8 = 2;
}

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

/// A process group and its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The group.
    pub group: u32,
    /// The session.
    pub session: u32,
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
    /// Its users and groups.
    pub identity: Whom,
    /// Its choices about its core file.
    pub dump: Dump,
}

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
    /// Behind all members.
    pub(crate) const END: Member = Member(2 << 32);

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
    /// Its relations to other processes.
    family: Family,
    /// Charge for the process itself and its first pages.
    _charge: Charge,
    /// Its memory.
    pub address_space: ProcessMemory,
    /// Pages that it shares with the kernel.
    pub shared: Shared,
    /// Its open files.
    pub descriptors: Mutex<Descriptors>,
    /// Processes that it is starting.
    pub beginnings: Beginnings,
    /// Its working directory.
    pub directory: Mutex<Place>,
    /// Its users and groups.
    pub identity: IdentityPlace,
    /// Permissions that its new files do not get.
    #[doc(alias = "umask")]
    pub creation_mask: AtomicU32,
    /// Whether it has given up ever to get more rights by a program's, whose bits to set user and group do not count.
    pub no_new_rights: AtomicBool,
    /// Whether a program has asked to keep the capabilities that it is permitted when no user of it is 0 any more
    /// (`PR_SET_KEEPCAPS`).
    pub keeps_capabilities: AtomicBool,
    /// Its debts to sets of semaphores.
    pub(crate) debts: Mutex<Debts>,
    /// Barriers of memory for which it has registered.
    pub(crate) barriers: Barriers,
    /// The file of its program.
    pub executable: Mutex<Option<Arc<RunningFile>>>,
    /// Time at which it was made, in ticks.
    pub started: u64,
    /// Priority with which it was started.
    base_priority: Priority,
    /// Its class and its nice value, and the priority while it publishes nothing: the base, changed by these.
    rank: Mutex<ProcessRank>,
    default_priority: AtomicU8,
    /// Its limits of scheduling, and the processor time that it has used.
    pub standing: Standing,
    /// Its authority towards others.
    pub authority: Authority,
    /// Its signals.
    pub signals: Signals,
    /// Its timers that send signals.
    pub timers: Timers,
    /// Its core file.
    pub(crate) dump: Dump,
    /// First bytes of its program's name.
    name: [AtomicU64; 2],
    /// Its share of the things of which the network has a limited number.
    pub shares: Arc<crate::network::shares::Shares>,
    /// The carriers of its calls: coroutines, or a model for comparison.
    pub model: Model,
    /// Whether its calls are printed.
    pub watched: Watched,
    /// Number of lines about it that found no room on the console.
    pub lines: report::Lines,
    /// Bits of a [`Condition`], for all its workers.
    // Set with release or by a read-modify-write after the reason, and read with acquire where the reason is read next.
    condition: AtomicU8,
    /// Set when one worker has begun, after the end, to make all threads and calls look around.
    all_are_called: AtomicBool,
    /// The coroutine that takes the process apart, once there is one.
    last_worker: AtomicU64,
    /// Slot from which on threads are the next to be [boosted](Process::boost).
    boosted: AtomicUsize,
    ending: Mutex<Option<Ending>>,
    /// Its lifetime, for descriptors of it, once there was one.
    lifetime: Once<Arc<Lifetime>>,
    /// The status that the first worker gave to `exit`: that of the process if no worker ends it, but all end
    /// themselves.
    first_worker_status: AtomicU8,
    workers: Mutex<Vec<Arc<Worker>>>,
    threads: Mutex<Threads>,
    /// Slot of the thread with which [`bring_forward_others`](Self::bring_forward_others) goes on.
    brought_forward: AtomicUsize,
    /// Number of workers and threads that have not ended.
    live_workers: AtomicUsize,
    /// Number of those that have.
    departed_workers: AtomicUsize,
    /// Slot of the worker that executes another program, and 1; 0 for none.
    executes: AtomicUsize,
    calls: Mutex<InFlight<CallInFlight>>,
    /// Number of calls that were in flight when the process ended, and are not over yet. Changed under the lock of
    /// `calls`.
    called_to_end: AtomicUsize,
    /// Calls in flight that wait for input.
    pub input_calls: InputCalls,
    next_anonymous_call: AtomicU64,
    // Set with release under the lock of `calls`, before the call is woken, whose poll reads it with acquire.
    has_cancelled: AtomicBool,
    completions: Mutex<Completions>,
    /// Its request rings.
    pub rings: Rings<HeldCall>,
    // Stored with release when the ring has the completions: a worker that reads the number (acquire) before it sleeps
    // finds them.
    posted: AtomicU64,
    has_waiting_completions: AtomicBool,
    /// Waiters for the departure of others: a worker in `execve`.
    departures: Mutex<Waiters>,
    /// The watchdog's sightings of it.
    pub sightings: Mutex<Sightings>,
    /// Its receivers of user interrupts.
    pub receivers: Mutex<Receivers>,
    /// Rights whose pages, or entries of its sender table, it has requested.
    pub send_pages: Mutex<SendPages>,
    /// Its sender table (back end `uintc`), from its first request on.
    pub sender_table: Once<SenderTable>,
}

impl UserMemory for Process {
    fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        Process::copy_in(self, address, bytes)
    }

    fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        Process::copy_out(self, address, bytes)
    }

    fn copy_in_to(&self, address: usize, to: &SharedBytes<'_>) -> (usize, Result<(), Errno>) {
        let mut done = 0;
        let copied = self.space().lock().for_each_slice(address as u64, to.len(), Access::Read, |bytes| {
            let count = to.slice(done..to.len()).map_or(0, |to| to.copy_from_shared(bytes));
            done += count;
            count
        });
        (done, copied.map(|_| ()).map_err(|interrupted| errno_of_fault(interrupted.fault)))
    }

    fn copy_out_from(&self, address: usize, from: &SharedBytes<'_>) -> Result<(), Errno> {
        let mut done = 0;
        let copied = self.space().lock().for_each_slice(address as u64, from.len(), Access::Write, |bytes| {
            let count = from.slice(done..from.len()).map_or(0, |from| bytes.copy_from_shared(&from));
            done += count;
            count
        });
        copied.map(|_| ()).map_err(|interrupted| errno_of_fault(interrupted.fault))
    }
}

impl Caller for Process {
    fn number(&self) -> u32 {
        self.id
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn whom(&self) -> Whom {
        Process::whom(self)
    }

    #[cold]
    fn has_no_reader(&self) {
        signal_delivery::send_from_kernel(self, Signal::PIPE);
    }

    fn zero(&self, buffer: UserBuffer) -> Result<(), Errno> {
        self.space().lock().zero(buffer.address() as u64, buffer.len()).map_err(errno_of_fault)
    }
}

impl Ends for Process {
    fn has_ended(&self) -> bool {
        Process::has_ended(self)
    }
}

impl Process {
    /// Tells another process that a message of this one has come to a queue, as it has asked for.
    pub(crate) fn tell_of_message(&self, notice: Notice) {
        signal_delivery::tell_of_message(self, notice);
    }

    /// Creates a process without workers; it is not in the table yet.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        id: u32,
        parent: u32,
        group: Option<Group>,
        origin: Origin,
        charge: Charge,
        address_space: ProcessMemory,
        shared: Shared,
        descriptors: Descriptors,
        directory: Place,
        default_priority: Priority,
    ) -> Process {
        let Origin { account, place, standing, authority, identity, dump } = origin;
        shared.tell_mode(standing.mode());
        shared.tell_ceiling(standing.ceiling());
        Process {
            id,
            family: {
                let Group { group, session } = group.unwrap_or(Group { group: id, session: id });
                Family::new(parent, group, session, place)
            },
            _charge: charge,
            address_space,
            descriptors: Mutex::new(descriptors),
            directory: Mutex::new(directory),
            identity: IdentityPlace::new(identity),
            creation_mask: AtomicU32::new(CREATION_MASK),
            no_new_rights: AtomicBool::new(false),
            keeps_capabilities: AtomicBool::new(false),
            debts: Mutex::new(Debts::new(&account)),
            barriers: Barriers::default(),
            executable: Mutex::new(None),
            started: Machine::now(),
            base_priority: default_priority,
            rank: Mutex::default(),
            default_priority: AtomicU8::new(default_priority.number()),
            standing,
            authority,
            signals: Signals::new(),
            timers: Timers::new(),
            dump,
            name: [const { AtomicU64::new(0) }; 2],
            shares: crate::network::shares::Shares::new(account.clone()),
            model: Model::default(),
            watched: Watched::default(),
            lines: report::Lines::of(id),
            condition: AtomicU8::new(0),
            all_are_called: AtomicBool::new(false),
            last_worker: AtomicU64::new(0),
            boosted: AtomicUsize::new(0),
            ending: Mutex::new(None),
            lifetime: Once::new(),
            first_worker_status: AtomicU8::new(0),
            workers: Mutex::new(Vec::new()),
            threads: Mutex::new(Threads::new()),
            brought_forward: AtomicUsize::new(0),
            live_workers: AtomicUsize::new(0),
            departed_workers: AtomicUsize::new(0),
            executes: AtomicUsize::new(0),
            calls: Mutex::new(InFlight::new(random::word())),
            called_to_end: AtomicUsize::new(0),
            input_calls: InputCalls::default(),
            next_anonymous_call: AtomicU64::new(u64::MAX),
            has_cancelled: AtomicBool::new(false),
            completions: Mutex::new(Completions::new(&shared, &account, MEMORY_OF_A_CALL)),
            account,
            rings: Rings::default(),
            posted: AtomicU64::new(0),
            has_waiting_completions: AtomicBool::new(false),
            departures: Mutex::new(Waiters::new()),
            beginnings: Beginnings::default(),
            sightings: Mutex::default(),
            receivers: Mutex::new(user_interrupts::NO_RECEIVERS),
            send_pages: Mutex::new([const { None }; SEND_PAGES]),
            sender_table: Once::new(),
            shared,
        }
    }

    /// Returns its present address space.
    #[inline(always)]
    pub(crate) fn space(&self) -> &Arc<Space> {
        self.address_space.space()
    }

    /// Returns its lifetime, which is made when the first descriptor of it is.
    pub(crate) fn lifetime(&self) -> &Arc<Lifetime> {
        self.lifetime.call_once(Arc::default)
    }

    /// Returns the user for whom it looks at files, as it is now.
    #[inline(always)]
    pub(crate) fn whom(&self) -> Whom {
        self.identity.get()
    }

    /// Returns the user that has started it.
    #[inline]
    pub(crate) fn real_user(&self) -> u32 {
        self.whom().map_or(0, |whom| whom.users.real)
    }

    /// Returns its users and groups.
    pub(crate) fn identity_value(&self) -> Identity {
        identity::value(&self.whom())
    }

    /// Returns the waiters at words of its memory.
    #[inline(always)]
    pub(crate) fn futexes(&self) -> &Arc<Futexes> {
        self.address_space.futexes()
    }

    /// Returns the process that started it, or that inherited it.
    pub(crate) fn parent(&self) -> u32 {
        self.family.parent()
    }

    /// Returns its process group.
    pub(crate) fn group(&self) -> u32 {
        self.family.group()
    }

    /// Returns its session.
    pub(crate) fn session(&self) -> u32 {
        self.family.session()
    }

    /// Returns whether it has given up its session's terminal for itself.
    pub(crate) fn has_no_terminal(&self) -> bool {
        self.family.has_no_terminal.load(Ordering::Relaxed)
    }

    /// Gives up its session's terminal for itself, or not.
    pub(crate) fn set_no_terminal(&self, has_none: bool) {
        self.family.has_no_terminal.store(has_none, Ordering::Relaxed);
    }

    /// Returns whether it inherits the children of processes below it.
    pub(crate) fn inherits_children(&self) -> bool {
        self.family.inherits.load(Ordering::Relaxed)
    }

    /// Sets whether it inherits the children of processes below it.
    #[doc(alias = "PR_SET_CHILD_SUBREAPER")]
    pub(crate) fn set_inherits_children(&self, inherits: bool) {
        self.family.inherits.store(inherits, Ordering::Relaxed);
    }

    /// Returns the number of the signal that it gets when its parent ends; 0 for none.
    pub(crate) fn signal_of_orphan(&self) -> u8 {
        self.family.signal_of_orphan.load(Ordering::Relaxed)
    }

    /// Sets the signal that it gets when its parent ends; 0 for none.
    #[doc(alias = "PR_SET_PDEATHSIG")]
    pub(crate) fn set_signal_of_orphan(&self, signal: u8) {
        self.family.signal_of_orphan.store(signal, Ordering::Relaxed);
    }

    /// Returns its process group and its session, which its children begin in.
    pub(crate) fn group_and_session(&self) -> Group {
        Group { group: self.group(), session: self.session() }
    }

    /// Records that it executes another program than its parent's.
    pub(crate) fn note_execution(&self) {
        self.family.has_executed.store(true, Ordering::Relaxed);
    }

    /// Copies from the process's memory. `EFAULT` if any byte is not readable for it; `ENOMEM` if a promised page
    /// cannot be made.
    #[doc(alias = "copy_from_user")]
    pub(crate) fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.space().lock().copy_in(address as u64, bytes).map_err(errno_of_fault)
    }

    /// Copies to the process's memory. `EFAULT` if any byte is not writable for it; `ENOMEM` as above.
    #[doc(alias = "copy_to_user")]
    pub(crate) fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.space().lock().copy_out(address as u64, bytes).map_err(errno_of_fault)
    }

    /// Copies a string that ends with NUL, without it. `too_long` if there is no NUL within `limit` bytes.
    #[doc(alias = "strncpy_from_user")]
    pub(crate) fn copy_in_string(&self, address: usize, limit: usize, too_long: Errno) -> Result<Vec<u8>, Errno> {
        self.space().lock().copy_in_string(address as u64, limit).map_err(|error| match error {
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
        let claim = Priority::most_important_in(self.shared.ready()).unwrap_or(self.default_priority());
        self.standing.worth(claim)
    }

    /// Returns the effective priority of its claim, or of the most important completion that it has not taken, if that
    /// is more important: the coroutines of these calls are ready as soon as a worker looks.
    pub(crate) fn claimed_with_completions(&self) -> Priority {
        let claim = self.claimed_priority();
        let best = self.completions.lock().most_important().map(|priority| self.standing.worth(priority));
        best.filter(|best| best.is_more_important_than(claim)).unwrap_or(claim)
    }

    /// Returns its priority while it publishes nothing.
    #[inline(always)]
    pub(crate) fn default_priority(&self) -> Priority {
        Priority::saturating(self.default_priority.load(Ordering::Relaxed).into())
    }

    /// Returns the priority with which it was started.
    pub(crate) fn base_priority(&self) -> Priority {
        self.base_priority
    }

    /// Returns its class and its nice value.
    pub(crate) fn class_and_nice(&self) -> ClassAndNice {
        self.rank.lock().own
    }

    /// Returns its nice value.
    pub(crate) fn nice(&self) -> i8 {
        self.class_and_nice().nice
    }

    /// Returns its class of scheduling.
    pub(crate) fn class(&self) -> Class {
        self.class_and_nice().class
    }

    /// Sets class and nice value to those that `decide` makes of the present ones, which nobody changes meanwhile.
    pub(crate) fn set_class_and_nice(
        &self,
        decide: impl FnOnce(ClassAndNice) -> Result<ClassAndNice, Errno>,
    ) -> Result<(), Errno> {
        let mut rank = self.rank.lock();
        rank.own = decide(rank.own)?;
        let has_changed = self.follow_rank(&rank);
        drop(rank);
        // Threads by the thousand are put in order only for a change.
        if has_changed {
            self.order_workers_anew();
        }
        Ok(())
    }

    /// Returns its priority while it publishes nothing, by its class and its nice value alone.
    pub(crate) fn priority_of_rank(&self) -> Priority {
        self.rank.lock().own.priority(self.base_priority)
    }

    /// Sets its default priority by its rank, which is locked, so that the priority is that of the last one; returns
    /// whether it has changed.
    fn follow_rank(&self, rank: &ProcessRank) -> bool {
        let priority = rank.priority(self.base_priority).number();
        self.default_priority.swap(priority, Ordering::Relaxed) != priority
    }

    /// Inherits a priority from a waiter for a lock of one of its threads.
    pub(crate) fn inherit(&self, priority: Priority) {
        let mut rank = self.rank.lock();
        rank.inherited.add(priority);
        self.follow_rank(&rank);
    }

    /// Gives an inherited priority back.
    pub(crate) fn disinherit(&self, priority: Priority) {
        let mut rank = self.rank.lock();
        rank.inherited.remove(priority);
        self.follow_rank(&rank);
    }

    /// Returns the processor time of all its workers, in ticks, up to now; never less than before.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        self.standing.clock(|| {
            let now = Machine::now();
            let workers = self.workers.lock().iter().fold(0, |sum, worker| sum + worker.uncharged(now));
            workers + self.threads.lock().iter().fold(0, |sum, thread| sum + thread.uncharged(now))
        })
    }

    /// Returns the parts of that time.
    pub(crate) fn used_time(&self) -> UsedTime {
        self.standing.kernel.divide(self.cpu_ticks())
    }

    /// Returns the processor time of children that it has waited for, and of those for which they have.
    pub(crate) fn children_time(&self) -> UsedTime {
        self.family.children_time()
    }

    /// Returns whether calls are in flight.
    pub(crate) fn has_calls_in_flight(&self) -> bool {
        !self.calls.lock().is_empty()
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
            self.model.order_anew(self);
            self.input_calls.order_anew(self);
            self.rings.order_anew(&self.standing);
            crate::files::remains::look_behind();
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
    /// look without a turn, and lets that one go before everything else. Only at `members`: one that a look meets twice
    /// would seem to starve.
    pub(crate) fn look_for_the_starving(&self, members: Range<Member>, count: usize) -> Look {
        let first = members.start;
        let more_from = |next: Member| if next < members.end { Look::More(next) } else { Look::End };
        if first < Member::CALLS {
            let (workers, threads) = (self.workers.lock(), self.threads.lock());
            let all = workers.iter().chain(threads.from(first.slot()));
            let mut all = all
                .take_while(|worker| Member::of_worker(worker) < members.end)
                .filter(|worker| Member::of_worker(worker) >= first);
            for worker in all.by_ref().take(count) {
                if worker.is_starving() {
                    return Look::Found(worker.coroutine(), Member::of_worker(worker).next());
                }
            }
            return more_from(all.next().map_or(Member::CALLS, |worker| Member::of_worker(worker)));
        }
        let mut calls = self.calls.lock();
        let (places, next) = first.places(calls.places(), count);
        for place in places.take_while(|place| Member::of_call(*place) < members.end) {
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
        next.map_or(Look::End, more_from)
    }

    // ---- ending ----

    /// Returns whether the process must stop. Workers look before each visit to user mode, calls at each poll.
    pub(crate) fn has_ended(&self) -> bool {
        // Acquire: a reader that sees it sees the ending too.
        self.condition.load(Ordering::Acquire) & Condition::ENDED != 0
    }

    /// Returns the bits of its condition: 0 if its workers may go on. A worker that sees another value looks again,
    /// with an acquire.
    #[inline(always)]
    pub(super) fn condition(&self) -> u8 {
        self.condition.load(Ordering::Relaxed)
    }

    /// Records that it is stopped, or goes on. Called under the lock of its signals.
    pub(super) fn set_stopped(&self, is_stopped: bool) {
        if is_stopped {
            self.condition.fetch_or(Condition::STOPPED, Ordering::AcqRel);
        } else {
            self.condition.fetch_and(!Condition::STOPPED, Ordering::AcqRel);
        }
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
            // Before its workers see the end: those that see it leave their registers.
            self.dump.dies(ending, &self.account);
            self.condition.fetch_or(Condition::ENDED, Ordering::AcqRel);
        }
        self.standing.has_ended();
        self.rings.order_anew(&self.standing);
        self.rings.close();
        // There may be thousands of threads and calls. The first worker that leaves calls all others, in steps.
        for worker in self.workers.lock().iter().chain(self.threads.lock().iter().take(1)) {
            worker.interrupt();
        }
    }

    /// Ends the process by a signal, which one of its workers or threads has met.
    pub(crate) fn end_by(&self, information: Information, thread: Option<&Worker>) {
        self.dump.note_death(information, thread.map_or(self.id, Worker::thread_id));
        self.end(Ending::Killed(information.signal.number()));
    }

    /// Returns the bytes of memory that would be free without the process.
    fn memory(&self) -> usize {
        let pages = self.address_space.own_space().lock().resident_frames() * PAGE_SIZE;
        pages + self.account.own(Resource::Memory) + self.descriptors.lock().memory_of_files(&self.account)
    }

    /// Charges the page tables that it has, when there may be more of them. A process that may not have them ends: the
    /// mappings that needed them cannot be taken back.
    #[inline(never)]
    pub(crate) fn charge_tables(&self) {
        let tables = self.space().lock().table_frames();
        let mut charge = self.address_space.tables().lock();
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

    /// Returns the kernel memory that its account has, but for page tables, of which it keeps some in store.
    #[cfg(test)]
    pub(crate) fn charged_without_tables(&self) -> usize {
        self.account.used(Resource::Memory) - self.address_space.tables().lock().amount()
    }

    /// Adds a worker: with the index of one that has gone, or with the next one. `EAGAIN` if the process has as many as
    /// it may already, or has ended.
    ///
    /// Two kinds of indexes are not given back: the first worker's, whose number and exit status are the process's, and
    /// those with a request ring, which outlives its worker.
    pub(crate) fn add_worker(
        &self,
        make: impl FnOnce(usize) -> Result<Arc<Worker>, Errno>,
    ) -> Result<Arc<Worker>, Errno> {
        // Dropped outside of the lock: its entry may be its last owner.
        let mut _before = None;
        let mut workers = self.workers.lock();
        let is_free = |worker: &Arc<Worker>| worker.has_gone() && !self.rings.exists(worker.index());
        let free = workers.iter().skip(1).find(|worker| is_free(worker)).map(|worker| worker.index());
        let index = free.unwrap_or(workers.len());
        if self.has_ended() || index >= MAXIMUM_WORKERS {
            return Err(Errno::EAGAIN);
        }
        workers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        // Counted before it runs: another hart may poll it, and be done with it, immediately.
        self.live_workers.fetch_add(1, Ordering::Relaxed);
        self.shared.add_worker(index);
        let made = make(index);
        match &made {
            Ok(worker) if index < workers.len() => {
                _before = Some(core::mem::replace(&mut workers[index], worker.clone()));
            }
            Ok(worker) => workers.push(worker.clone()),
            Err(_) => {
                self.live_workers.fetch_sub(1, Ordering::Relaxed);
            }
        }
        made
    }

    /// Adds a thread. `EAGAIN` if the process has as many as it may already, or has ended.
    pub(crate) fn add_thread(&self, make: impl FnOnce(usize) -> Arc<Worker>) -> Result<Arc<Worker>, Errno> {
        if self.live_workers() >= THREADS_OF_A_STEP {
            self.signals.state.lock().reserve_removals().map_err(|_| Errno::EAGAIN)?;
        }
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

    /// Returns the first worker or thread for which `is_meant` holds, of those that go on: among the workers, and as
    /// many threads as one step looks at.
    pub(crate) fn find_worker(&self, is_meant: impl Fn(&Worker) -> bool) -> Option<Arc<Worker>> {
        let mut found = None;
        let _ = self.visit_some_workers(0, |worker| {
            if is_meant(worker) {
                found = Some(worker.clone());
            }
            found.is_none()
        });
        found
    }

    /// Calls a function with the workers and threads that go on, from this slot on, until it returns `false` or so many
    /// were looked at as one step allows. Returns the slot at which to go on, if there are more.
    pub(super) fn visit_some_workers(&self, from: usize, mut visit: impl FnMut(&Arc<Worker>) -> bool) -> Option<usize> {
        let (workers, threads) = (self.workers.lock(), self.threads.lock());
        let mut threads = threads.from(from);
        let some = workers.iter().skip(from).chain(threads.by_ref().take(THREADS_OF_A_STEP));
        let goes_on = some.filter(|worker| !worker.leaves()).all(&mut visit);
        if goes_on { threads.next().map(|thread| thread.index()) } else { None }
    }

    /// Returns the first worker or thread from this slot on that goes on.
    pub(crate) fn next_worker_or_thread(&self, slot: usize) -> Option<Arc<Worker>> {
        let worker = (slot..MAXIMUM_WORKERS).find_map(|slot| self.worker(slot).filter(|worker| !worker.leaves()));
        worker.or_else(|| self.threads.lock().from(slot).find(|thread| !thread.leaves()).cloned())
    }

    /// Returns the worker or thread with this slot.
    pub(crate) fn worker_or_thread(&self, slot: usize) -> Option<Arc<Worker>> {
        if slot < MAXIMUM_WORKERS { self.worker(slot) } else { self.threads.lock().get(slot).cloned() }
    }

    /// Returns the worker or thread whose coroutine runs on this hart; `None` in a coroutine that works for the process
    /// beside these, as that of an asynchronous call.
    pub(crate) fn present_worker(&self) -> Option<Arc<Worker>> {
        let coroutine = executor::current();
        let slot = usize::from(executor::kind(coroutine)).checked_sub(1)?;
        let runs_here = |worker: &Arc<Worker>| worker.coroutine() == coroutine;
        let there = self.worker_or_thread(slot).filter(runs_here);
        // A thread that has executed another program is the first worker since.
        there.or_else(|| self.workers.lock().iter().find(|worker| runs_here(worker)).cloned())
    }

    /// Returns the worker with this index.
    pub(crate) fn worker(&self, index: usize) -> Option<Arc<Worker>> {
        self.workers.lock().get(index).cloned()
    }

    /// Returns whether it has no threads, and all of its workers sleep without a deadline.
    pub(crate) fn all_workers_sleep_without_limit(&self) -> bool {
        let workers = self.workers.lock();
        workers.len() == self.live_workers() && workers.iter().all(|worker| worker.sleeps_without_limit())
    }

    /// Returns whether each worker waits for something else than a hart.
    pub(crate) fn all_workers_wait(&self) -> bool {
        let workers = self.workers.lock();
        workers.iter().all(|worker| !matches!(executor::state(worker.coroutine()), Some(State::Ready | State::Running)))
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
        } else {
            worker.leaves_its_index();
        }
        signal_delivery::has_left(worker);
        // Before the waiters for departures are woken, who compare it.
        self.departed_workers.fetch_add(1, Ordering::AcqRel);
        // AcqRel: the changes of other workers to the process happen before the last one takes it apart.
        if self.live_workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end(Ending::Exited(self.first_worker_status.load(Ordering::Relaxed)));
            true
        } else {
            self.departures.lock().wake_all();
            false
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

    /// Enlarges the completion ring to at least so many entries, a power of two that a ring can have, or 0; in steps.
    ///
    /// `EBUSY` if it would have to grow and is not empty, or if the memory is borrowed; `ENOMEM`; `EEXIST` if the
    /// process has mapped something there.
    ///
    /// # Cancellation
    /// Dropping it leaves the ring as it is.
    pub(crate) async fn enlarge_completion_ring(self: &Arc<Self>, capacity: usize) -> Result<(), Errno> {
        let more = self.completions.lock().missing_frames(capacity)?;
        if more == 0 {
            return Ok(());
        }
        if self.address_space.is_borrowing() {
            return Err(Errno::EBUSY);
        }
        if !memory::frames::available_to_programs(more) {
            return Err(Errno::ENOMEM);
        }
        let mut charge = self.account.charge(Resource::Memory, more * PAGE_SIZE)?;
        let mut frames = zeroed_frames(self, more).await?;
        let mut completions = self.completions.lock();
        let completions = &mut *completions;
        // Another worker may have enlarged the ring since, or completions have come.
        let more = completions.missing_frames(capacity)?;
        if more == 0 {
            return Ok(());
        }
        frames.truncate(more);
        charge.resize(more * PAGE_SIZE)?;
        completions.frames.try_reserve_exact(more).map_err(|_| Errno::ENOMEM)?;
        let view = CompletionView::new(&completions.frames);
        completions.producer.resize(&view, capacity).map_err(|_| Errno::EBUSY)?;
        let address = self.shared.address(COMPLETION_RING_OFFSET) + completions.frames.len() * PAGE_SIZE;
        if let Err(error) = shared::map(self.space(), address, &frames) {
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

    /// Announces that the keeper of its timers has left.
    fn timers_are_at_rest(&self) {
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

    /// Asks the process to print where its coroutines wait, by a completion of no call; returns `false` if it has not
    /// said that it answers, or its ring has no room.
    pub(crate) fn ask_for_await_points(&self) -> bool {
        if !self.shared.answers() || self.has_ended() || self.promise_completions(1, false) == 0 {
            return false;
        }
        let request = Completion { token: completion::TELL_AWAIT_POINTS, ..Completion::default() };
        self.post_completions(&[request], 1, Priority::HIGHEST);
        self.wake_a_worker(Priority::HIGHEST);
        true
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
        if !priority.is_more_important_than(self.standing.worth(self.default_priority())) {
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
        let waiting = self.completions.lock().most_important();
        if waiting.is_some_and(|waiting| waiting.is_more_important_than(runs)) {
            worker.interrupt_for_completions();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
