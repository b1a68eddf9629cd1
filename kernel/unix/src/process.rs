//! Processes: an address space, descriptors, workers and the asynchronous calls in flight.
//!
//! # Life
//!
//! A process starts with one worker. It *ends* when [`Process::end`] is called for the first time, by a call, a fault, a
//! `kill` or its last worker's exit: the status is fixed at that moment. Every worker and every call in flight is then
//! woken, sees that the process has ended, and gives up what it holds. The last worker to go takes the process apart
//! ([`Process::take_apart`]): descriptors are closed, memory is freed, children go to the first process. What remains is
//! an entry in the table with the status, until the parent has waited for it.
//!
//! # Locks
//!
//! In general one at a time. The exceptions, outer lock first: a kernel object, then the address space, to copy data; the
//! table of processes, then an address space, to ask how large it is; the table of calls, then the completions, and the
//! executor's own, to start a call.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use abi_queue::completion::Producer;
use abi_queue::{Completion, Priority};
use abi_unix::types::signal;
use abi_unix::{Counter, Errno};
use filesystem::Node;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use memory::space::StringError;
use platform::println;
use spin::Mutex;
use usermode::{Fault, Space};
use waiters::Waiters;

use crate::counters;
use crate::descriptor::Descriptors;
use crate::executor::Cid;
use crate::shared::Shared;
use crate::worker::Worker;

/// Workers that one process can have.
pub const MAXIMUM_WORKERS: usize = abi_queue::MAXIMUM_WORKERS;
/// Processes that can exist.
pub const MAXIMUM_PROCESSES: usize = 4096;
/// Asynchronous calls that one process can have in flight; more are answered with `EAGAIN`.
pub const MAXIMUM_CALLS: usize = 65536;
/// The first process, which inherits orphans and whose end ends the machine.
pub const FIRST: u32 = 1;

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

/// An asynchronous call in flight.
struct Call {
    /// The kernel coroutine that works on it.
    coroutine: Cid,
    /// Whether the process asked for it to end early.
    cancelled: bool,
}

/// Completions on their way to the process.
struct Completions {
    producer: Producer,
    /// Those that found the ring full. Room is reserved when a call is submitted, so this never fails.
    waiting: VecDeque<Completion>,
}

/// A process.
pub struct Process {
    /// Its number.
    pub id: u32,
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
    /// No claim counts for more than this.
    pub ceiling: Priority,
    parent: AtomicU32,
    /// Its parent ended before it: nobody will ask how it ended.
    orphan: AtomicBool,
    ended: AtomicBool,
    ending: Mutex<Option<Ending>>,
    workers: Mutex<Vec<Arc<Worker>>>,
    live_workers: AtomicUsize,
    calls: Mutex<HashMap<u64, Call>>,
    next_anonymous_call: AtomicU64,
    has_cancelled: AtomicBool,
    completions: Mutex<Completions>,
    posted: AtomicU64,
    has_waiting_completions: AtomicBool,
    /// Who waits for others to go: a worker in `execve`.
    departures: Mutex<Waiters>,
}

impl Process {
    /// A process without workers; not in the table yet.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        id: u32,
        parent: u32,
        space: Arc<Space>,
        shared: Shared,
        descriptors: Descriptors,
        directory: Node,
        default_priority: Priority,
        ceiling: Priority,
    ) -> Process {
        Process {
            id,
            space,
            shared,
            descriptors: Mutex::new(descriptors),
            directory: Mutex::new(directory),
            default_priority,
            ceiling,
            parent: AtomicU32::new(parent),
            orphan: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            ending: Mutex::new(None),
            workers: Mutex::new(Vec::new()),
            live_workers: AtomicUsize::new(0),
            calls: Mutex::new(HashMap::new()),
            next_anonymous_call: AtomicU64::new(u64::MAX),
            has_cancelled: AtomicBool::new(false),
            completions: Mutex::new(Completions { producer: Producer::new(), waiting: VecDeque::new() }),
            posted: AtomicU64::new(0),
            has_waiting_completions: AtomicBool::new(false),
            departures: Mutex::new(Waiters::new()),
        }
    }

    /// The process that started it, or that inherited it.
    pub fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    /// Copies from the process's memory. `EFAULT` if any byte is not readable for it.
    pub fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.space.lock().copy_in(address as u64, bytes).map_err(|_| Errno::EFAULT)
    }

    /// Copies to the process's memory. `EFAULT` if any byte is not writable for it.
    pub fn copy_out(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.space.lock().copy_out(address as u64, bytes).map_err(|_| Errno::EFAULT)
    }

    /// Copies a string that ends with NUL, without it. `too_long` if there is no NUL within `limit` bytes.
    pub fn copy_in_string(&self, address: usize, limit: usize, too_long: Errno) -> Result<Vec<u8>, Errno> {
        self.space.lock().copy_in_string(address as u64, limit).map_err(|error| match error {
            StringError::TooLong => too_long,
            StringError::Fault(Fault::OutOfMemory) => Errno::ENOMEM,
            StringError::Fault(_) => Errno::EFAULT,
        })
    }

    /// The priority that the process claims now through its published bitmaps, within its ceiling.
    pub fn claimed_priority(&self) -> Priority {
        let claim = Priority::most_important_in(self.shared.ready()).unwrap_or(self.default_priority);
        claim.limited_to(self.ceiling)
    }

    // ---- ending ----

    /// Whether the process is to stop. Workers look before each visit to user mode, calls at each poll.
    pub fn has_ended(&self) -> bool {
        // Acquire: whoever sees it sees the ending too.
        self.ended.load(Ordering::Acquire)
    }

    /// Ends the process. The first ending counts; later ones change nothing.
    pub fn end(&self, ending: Ending) {
        {
            let mut slot = self.ending.lock();
            if slot.is_some() {
                return;
            }
            *slot = Some(ending);
            self.ended.store(true, Ordering::Release);
        }
        for worker in self.workers.lock().iter() {
            worker.interrupt();
        }
        self.wake_calls();
    }

    /// Lets a process that has ended go before everything else: somebody waits for its memory, perhaps somebody more
    /// important, who asks again and again and would never let it run.
    fn hasten(&self) {
        for worker in self.workers.lock().iter() {
            worker.hasten();
        }
    }

    /// Adds a worker. `EAGAIN` if the process has its most already, or has ended.
    pub fn add_worker(&self, make: impl FnOnce(usize) -> Result<Arc<Worker>, Errno>) -> Result<Arc<Worker>, Errno> {
        let mut workers = self.workers.lock();
        if self.has_ended() || workers.len() >= MAXIMUM_WORKERS {
            return Err(Errno::EAGAIN);
        }
        workers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let worker = make(workers.len())?;
        workers.push(worker.clone());
        self.live_workers.fetch_add(1, Ordering::Relaxed);
        Ok(worker)
    }

    /// The worker with this index.
    pub fn worker(&self, index: usize) -> Option<Arc<Worker>> {
        self.workers.lock().get(index).cloned()
    }

    /// How many workers have not ended.
    pub fn live_workers(&self) -> usize {
        self.live_workers.load(Ordering::Acquire)
    }

    /// A worker's coroutine is done. The last one takes the process apart.
    pub fn worker_is_gone(self: &Arc<Process>) {
        // AcqRel: what other workers did to the process happens before the last one takes it apart.
        if self.live_workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end(Ending::Exited(0));
            self.take_apart();
        } else {
            self.departures.lock().wake_all();
        }
    }

    fn take_apart(self: &Arc<Process>) {
        // Out of the lock first: closing may wake others and free much.
        let descriptors = core::mem::take(&mut *self.descriptors.lock());
        drop(descriptors);
        self.wake_calls();
        self.space.retire();
        self.workers.lock().clear();
        let ending = self.ending.lock().unwrap_or(Ending::Exited(0));
        TABLE.lock().has_ended(self, ending);
        if self.id == FIRST {
            crate::first_process_has_ended(ending);
        }
    }

    // ---- asynchronous calls ----

    /// Starts an asynchronous call: `spawn` makes its coroutine, given the key under which the call is known.
    ///
    /// `EAGAIN` if too many are in flight, `EEXIST` if the token is in use, `ENOMEM`. A token of 0 means that the call will
    /// never be cancelled.
    pub fn begin_call(&self, token: u64, spawn: impl FnOnce(u64) -> Cid) -> Result<(), Errno> {
        // The table stays locked until the coroutine is in it. If another hart polls the coroutine at once, its end waits
        // for the lock, so that no entry is made after the call is over.
        let mut calls = self.calls.lock();
        if self.has_ended() {
            return Err(Errno::EINTR);
        }
        calls.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        {
            // A place for its completion in case the ring is full then: beside those that wait already, every call in
            // flight may come to wait. What waits counts towards the limit, or a process that never looks at its ring could
            // fill the kernel's memory.
            let mut completions = self.completions.lock();
            if calls.len() + completions.waiting.len() >= MAXIMUM_CALLS {
                return Err(Errno::EAGAIN);
            }
            completions.waiting.try_reserve(calls.len() + 1).map_err(|_| Errno::ENOMEM)?;
        }
        // Without a token the key counts down from the top, where no address and no index of a program's table lies.
        let key = if token == 0 { self.next_anonymous_call.fetch_sub(1, Ordering::Relaxed) } else { token };
        match calls.entry(key) {
            Entry::Occupied(_) => Err(Errno::EEXIST),
            Entry::Vacant(place) => {
                counters::count(Counter::CallsInFlight);
                place.insert(Call { coroutine: spawn(key), cancelled: false });
                Ok(())
            }
        }
    }

    /// Whether the process asked for this call to end early.
    pub fn call_is_cancelled(&self, key: u64) -> bool {
        // Acquire: pairs with the release in `cancel_call`. Most processes never cancel anything.
        self.has_cancelled.load(Ordering::Acquire) && self.calls.lock().get(&key).is_some_and(|call| call.cancelled)
    }

    /// Asks that a call ends early. `ENOENT` if it is not in flight.
    pub fn cancel_call(&self, token: u64) -> Result<(), Errno> {
        let coroutine = {
            let mut calls = self.calls.lock();
            let call = calls.get_mut(&token).ok_or(Errno::ENOENT)?;
            call.cancelled = true;
            self.has_cancelled.store(true, Ordering::Release);
            call.coroutine
        };
        crate::executor::wake(coroutine);
        Ok(())
    }

    /// Makes all calls in flight look around after the process has ended. Their entries go at once, since nobody can
    /// cancel them any more.
    fn wake_calls(&self) {
        let calls = core::mem::take(&mut *self.calls.lock());
        for call in calls.values() {
            crate::executor::wake(call.coroutine);
        }
    }

    /// Ends a call: its result goes to the ring, and a worker is made to look there.
    pub fn complete_call(&self, key: u64, completion: Completion, priority: Priority) {
        counters::uncount(Counter::CallsInFlight);
        {
            // Locked until the completion has its place: `begin_call` counts it as one or the other.
            let mut calls = self.calls.lock();
            calls.remove(&key);
            if calls.is_empty() {
                self.departures.lock().wake_all();
            }
            if self.has_ended() {
                return;
            }
            let mut completions = self.completions.lock();
            let completions = &mut *completions;
            let full = !completions.waiting.is_empty()
                || completions.producer.post(completion, |offset| self.shared.ring_word(offset)).is_err();
            if full {
                completions.waiting.push_back(completion);
                self.has_waiting_completions.store(true, Ordering::Release);
            }
            self.posted.store(completions.producer.posted(), Ordering::Release);
        }
        counters::count(Counter::Completions);
        self.wake_a_worker(priority);
    }

    /// Posts completions that found the ring full. Called when a worker enters the kernel.
    #[inline(always)]
    pub fn post_waiting_completions(&self) {
        if self.has_waiting_completions.load(Ordering::Relaxed) {
            self.post_those_that_wait();
        }
    }

    #[cold]
    fn post_those_that_wait(&self) {
        let mut completions = self.completions.lock();
        let completions = &mut *completions;
        while let Some(&completion) = completions.waiting.front() {
            if completions.producer.post(completion, |offset| self.shared.ring_word(offset)).is_err() {
                break;
            }
            completions.waiting.pop_front();
        }
        self.posted.store(completions.producer.posted(), Ordering::Release);
        self.has_waiting_completions.store(!completions.waiting.is_empty(), Ordering::Relaxed);
    }

    /// How many completions are in the ring or were taken from it.
    pub fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// Makes a worker look at the ring: one that sleeps, at this priority; else one that runs something less important, by
    /// a user interrupt. If all run something at least as important they look in time, before their next coroutine.
    fn wake_a_worker(&self, priority: Priority) {
        let workers = self.workers.lock();
        if workers.iter().any(|worker| worker.wake_if_parked(priority.limited_to(self.ceiling))) {
            return;
        }
        for worker in workers.iter() {
            let runs = Priority::most_important_in(self.shared.running(worker.index()));
            if runs.is_some_and(|runs| priority.is_more_important_than(runs)) && worker.send_interrupt() {
                return;
            }
        }
    }

    /// Prepares for another program: asks all workers but one, and all calls in flight, to end. `false` if the process ends or
    /// another worker asked first, which ends the caller's.
    pub fn keep_only(&self, kept: &Arc<Worker>) -> bool {
        {
            // Decided under the lock, so that of two workers that ask at once only one stops the other.
            let workers = self.workers.lock();
            if kept.is_to_stop() {
                return false;
            }
            for worker in workers.iter().filter(|worker| !Arc::ptr_eq(worker, kept)) {
                worker.stop();
            }
        }
        // Waking under the lock is fine: a woken coroutine that another hart polls at once waits for the lock.
        for call in self.calls.lock().values_mut().filter(|call| !call.cancelled) {
            call.cancelled = true;
            self.has_cancelled.store(true, Ordering::Release);
            crate::executor::wake(call.coroutine);
        }
        true
    }

    /// Whether one worker is left and no call; if not, `waker` is woken when something of it has gone.
    pub fn poll_alone(&self, waker: &Waker) -> bool {
        // Registered before the look: whoever goes after it finds the waker. Only the worker that is kept waits here, so
        // that this needs no memory; if there were another, it would come back until there is some.
        if self.departures.lock().register(waker).is_err() {
            waker.wake_by_ref();
        }
        let is_alone = self.live_workers() == 1 && self.calls.lock().is_empty();
        if is_alone {
            self.departures.lock().forget(waker);
        }
        is_alone
    }

    /// Drops everything on its way to the old program, when another one takes its place.
    pub fn forget_completions(&self) {
        let mut completions = self.completions.lock();
        completions.producer = Producer::new();
        completions.waiting.clear();
        self.posted.store(0, Ordering::Release);
        self.has_waiting_completions.store(false, Ordering::Relaxed);
        self.shared.clear();
    }

    /// Forgets workers that have ended, after [`keep_only`](Self::keep_only).
    pub fn forget_others(&self, kept: &Arc<Worker>) {
        self.workers.lock().retain(|worker| Arc::ptr_eq(worker, kept));
    }
}

// ---- the table ----

enum Citizen {
    Living(Arc<Process>),
    Ended { parent: u32, ending: Ending },
}

struct Table {
    entries: BTreeMap<u32, Citizen>,
    last: u32,
    waiters: Waiters,
}

static TABLE: Mutex<Table> = Mutex::new(Table { entries: BTreeMap::new(), last: 0, waiters: Waiters::new() });

/// Which children `wait4` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// Any.
    Any,
    /// The one with this number.
    One(u32),
}

impl Table {
    /// Notes how a process ended, for its parent; without one that lives nobody will ask. Its own children become
    /// orphans: the first process is their parent in name, and need not wait for them.
    fn has_ended(&mut self, process: &Process, ending: Ending) {
        let number = self.entries.len();
        self.entries.retain(|_, entry| match entry {
            Citizen::Living(child) => {
                if child.parent() == process.id {
                    child.parent.store(FIRST, Ordering::Relaxed);
                    child.orphan.store(true, Ordering::Relaxed);
                }
                true
            }
            Citizen::Ended { parent, .. } => *parent != process.id,
        });
        let parent = process.parent();
        let parent_lives = matches!(self.entries.get(&parent), Some(Citizen::Living(_)));
        if parent_lives && !process.orphan.load(Ordering::Relaxed) {
            self.entries.insert(process.id, Citizen::Ended { parent, ending });
        } else {
            self.entries.remove(&process.id);
        }
        for _ in self.entries.len()..number {
            counters::uncount(Counter::Processes);
        }
        self.waiters.wake_all();
    }
}

/// Reserves a number and builds a process under it. `EAGAIN` if there are too many.
pub fn create(make: impl FnOnce(u32) -> Result<Process, Errno>) -> Result<Arc<Process>, Errno> {
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
    TABLE.lock().entries.insert(id, Citizen::Living(process.clone()));
    counters::count(Counter::Processes);
    Ok(process)
}

/// Takes back [`create`] for a process that never got a worker.
pub fn discard(process: &Process) {
    TABLE.lock().entries.remove(&process.id);
    counters::uncount(Counter::Processes);
}

/// The living process with this number.
pub fn find(id: u32) -> Option<Arc<Process>> {
    match TABLE.lock().entries.get(&id) {
        Some(Citizen::Living(process)) => Some(process.clone()),
        _ => None,
    }
}

/// Ends the process with the most memory, because there is none left. Its memory is free once its workers have noticed.
pub fn end_largest() {
    let mut largest: Option<(usize, Arc<Process>)> = None;
    for entry in TABLE.lock().entries.values() {
        if let Citizen::Living(process) = entry {
            if process.has_ended() {
                // One is on its way out already: enough for now.
                process.hasten();
                return;
            }
            let frames = process.space.lock().resident_frames();
            if process.id != FIRST && largest.as_ref().is_none_or(|(most, _)| frames > *most) {
                largest = Some((frames, process.clone()));
            }
        }
    }
    let victim = largest.map(|(_, process)| process).or_else(|| find(FIRST));
    if let Some(victim) = victim {
        println!("[{}] killed: the memory is exhausted and it has most of it", victim.id);
        victim.end(Ending::Killed(signal::KILL as u8));
        victim.hasten();
    }
}

/// Whether a process with this number exists, ended ones included.
pub fn exists(id: u32) -> bool {
    TABLE.lock().entries.contains_key(&id)
}

/// Looks for a child that has ended and removes it; pending if there are children but none has.
pub fn poll_child(parent: u32, which: Children, waker: Option<&Waker>) -> Poll<Result<(u32, Ending), Errno>> {
    let mut table = TABLE.lock();
    let mut any = false;
    let mut found = None;
    let candidates = match which {
        Children::Any => table.entries.range(..),
        Children::One(id) => table.entries.range(id..=id),
    };
    for (&id, entry) in candidates {
        match entry {
            Citizen::Living(child) => any |= child.parent() == parent && !child.orphan.load(Ordering::Relaxed),
            Citizen::Ended { parent: of, ending } if *of == parent => {
                found = Some((id, *ending));
                break;
            }
            _ => {}
        }
    }
    if let Some((id, ending)) = found {
        table.entries.remove(&id);
        counters::uncount(Counter::Processes);
        return Poll::Ready(Ok((id, ending)));
    }
    if !any {
        return Poll::Ready(Err(Errno::ECHILD));
    }
    if let Some(waker) = waker {
        table.waiters.register(waker).map_err(|_| Errno::ENOMEM)?;
    }
    Poll::Pending
}

/// Takes back a registration of [`poll_child`].
pub fn forget_child_waiter(waker: &Waker) {
    TABLE.lock().waiters.forget(waker);
}
