//! Workers and their switching coroutines.
//!
//! A worker is an execution context of a process: registers, and the right to run the process's executor. Its kernel
//! side is one coroutine, the *switching coroutine*: it enters user mode, which is a call that returns a reason,
//! handles the reason, and enters again. It ends only with the worker. Its priority follows the process's: whenever it
//! gives the hart up it takes the priority of the most important coroutine that the process has published, so that the
//! kernel's executor orders kernel coroutines and processes by one measure, and the most important switching coroutine
//! of all runs next.
//!
//! A synchronous call that must wait is an `await` in this coroutine. There is no other kernel stack, and no other
//! memory, for a worker that is blocked.
//!
//! # Yielding the hart
//!
//! * After a call: only to something that became ready on this hart and is more important than the process's present
//!   claim.
//! * After an interrupt: also to something equally important that became ready on this hart. So completions are posted
//!   before the process goes on, and equals alternate at the tick.
//! * By a call of the process: a strict executor yields as soon as it is outranked.
//!
//! The effective priority of a claim, the charges for time, and exceptions from the order are [`scheduling`]'s affair.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_queue::pages::PAGE_SIZE;
use abi_unix::trace::{Cause, Kind, Reason};
use abi_unix::{Counter, Errno, SystemCall, errno};
use coroutine::State;
use hal_api::{Access, Machine as _, Trap, UserContext};
use kernel_thread::{Current, Stack, Thread};
use memory::heap::Kept;
use platform::Machine;
use spin::Mutex;
use usermode::Kind as SpaceKind;

use crate::asynchronous::interrupts::{self, Line};
use crate::asynchronous::kernel_side::Side;
use crate::calls;
use crate::calls::call::{Outcome, Pause};
use crate::observing::{counters, report, trace};
use crate::process::accounts::{self, Charge, MEMORY_OF_A_WAIT, Resource};
use crate::process::program::{self, Plan};
use crate::process::{self, Ending, Process, shared, thread};
use crate::scheduling::executor::{self, Cid, SpawnError};
use crate::scheduling::{self, Owner, stretch};
use crate::time;

const NOWHERE: usize = usize::MAX;

/// Number of times that a worker may finish a critical section in the scheduler's image before it yields.
const MAXIMUM_GRACES: u32 = 4;

/// Number of bytes of kernel memory for a worker or thread and its coroutine; a kernel thread's stack comes on top.
const MEMORY: usize = size_of::<Worker>() + size_of::<UserContext>() + 1024 + MEMORY_OF_A_WAIT;

/// Resources that a worker must have before it is made.
struct Means {
    deadline: time::Reservation,
    charge: Charge,
    kept: Kept,
}

impl Means {
    /// Takes the resources of a worker with a kernel stack of so many bytes. `ENOMEM`.
    fn new(process: &Process, stack: usize) -> Result<Means, Errno> {
        Ok(Means {
            charge: process.account.charge(Resource::Memory, MEMORY + stack)?,
            kept: Kept::new(MEMORY_OF_A_WAIT).map_err(|_| Errno::ENOMEM)?,
            deadline: time::Reservation::new()?,
        })
    }
}

/// A worker of a process.
pub(crate) struct Worker {
    /// Its process.
    pub process: Arc<Process>,
    index: AtomicUsize,
    cid: AtomicU64,
    /// The hart on which it is in user mode, or [`NOWHERE`].
    hart: AtomicUsize,
    stopped: AtomicBool,
    /// Deadline of its sleeps with a time limit.
    deadline: time::Reservation,
    /// Charge for itself and its coroutine, and for its kernel thread's stack.
    charge: Mutex<Charge>,
    /// Memory for its waits.
    _kept: Kept,
    parking: Mutex<Parking>,
    /// Its user interrupts.
    pub line: Line,
    /// User address of the word that becomes 0 when it ends (unvalidated); 0 for none.
    end_word: AtomicUsize,
    /// User address of the head of its list of robust locks (unvalidated); 0 for none.
    robust_list: AtomicUsize,
    time: Time,
}

/// Processor time that the worker has used, and time that it has waited.
#[derive(Default)]
struct Time {
    /// Ticks that were charged.
    cpu: AtomicU64,
    /// The tick since which it runs uncharged; 0 while it does not run.
    since: AtomicU64,
    /// Number of times that it has begun to run.
    turns: AtomicU64,
    /// Value of `turns` when the watchdog last found it ready, plus 1, so that 0 means never.
    seen_at: AtomicU64,
    /// Ticks that it may still run as the most important of all, because it had been ready for long.
    credit: AtomicU64,
}

#[derive(Default)]
struct Parking {
    /// Set if the worker was woken while it was not asleep: its next sleep ends immediately.
    permit: bool,
    sleeper: Option<Waker>,
}

impl Worker {
    /// Creates a worker and starts it with these registers. `EAGAIN` if the process may not have another; `ENOMEM`.
    /// After an error nothing has happened.
    pub(crate) fn start(process: &Arc<Process>, context: Box<UserContext>) -> Result<Arc<Worker>, Errno> {
        let means = Means::new(process, 0)?;
        let mut refused = None;
        let worker = process.add_worker(|index| {
            let worker = Arc::new(Worker::new(process, index, means));
            match executor::spawn_for(worker.clone(), worker.own_priority(), run(worker.clone(), context)) {
                Ok(cid) => {
                    worker.was_spawned_as(cid);
                    Ok(worker)
                }
                Err(SpawnError(coroutine)) => {
                    refused = Some(coroutine);
                    Err(Errno::ENOMEM)
                }
            }
        });
        // Dropped outside of the lock of the process's workers.
        drop(refused);
        worker
    }

    /// Creates a thread, calls `prepare` with it, and starts it with these registers. `EAGAIN` if the process may not
    /// have another; `ENOMEM`.
    pub(crate) fn start_thread(
        process: &Arc<Process>,
        context: Box<UserContext>,
        prepare: impl FnOnce(&Worker),
    ) -> Result<Arc<Worker>, Errno> {
        let stack = if process.kernel_side.side() == Side::Coroutines { 0 } else { kernel_thread::STACK_SIZE };
        let means = Means::new(process, stack)?;
        let thread = process.add_thread(|slot| Arc::new(Worker::new(process, slot, means)))?;
        prepare(&thread);
        let started = match process.kernel_side.side() {
            Side::Coroutines => {
                let body = run(thread.clone(), context);
                let spawned = executor::spawn_for(thread.clone(), thread.own_priority(), body);
                spawned.map_err(|SpawnError(coroutine)| drop(coroutine))
            }
            side => match Stack::new() {
                Ok(stack) => {
                    let own = thread.clone();
                    let body = move |current: &Current<'_>| run_on_thread(&own, context, current, side);
                    let body = Thread::new(stack, body);
                    let spawned = executor::spawn_for(thread.clone(), thread.own_priority(), body);
                    spawned.map_err(|SpawnError(future)| drop(future))
                }
                Err(_) => Err(()),
            },
        };
        match started {
            Ok(cid) => {
                thread.was_spawned_as(cid);
                Ok(thread)
            }
            Err(()) => {
                // The caller is one more, so it was not the last.
                let _ = process.worker_is_gone(&thread);
                Err(Errno::ENOMEM)
            }
        }
    }

    /// Records its coroutine, which must be known before its first turn, too; that may be long in coming. A worker that
    /// has had its first turn by now has recorded its coroutine itself, and may have gone on to another one, on a
    /// kernel thread.
    fn was_spawned_as(&self, cid: Cid) {
        let _ = self.cid.compare_exchange(0, cid.raw(), Ordering::Release, Ordering::Relaxed);
    }

    fn new(process: &Arc<Process>, index: usize, means: Means) -> Worker {
        let Means { deadline, charge, kept } = means;
        Worker {
            process: process.clone(),
            index: AtomicUsize::new(index),
            cid: AtomicU64::new(0),
            hart: AtomicUsize::new(NOWHERE),
            stopped: AtomicBool::new(false),
            deadline,
            charge: Mutex::new(charge),
            _kept: kept,
            parking: Mutex::new(Parking::default()),
            line: Line::default(),
            end_word: AtomicUsize::new(0),
            robust_list: AtomicUsize::new(0),
            time: Time::default(),
        }
    }

    /// Returns whether it is a thread: it runs its own code, and has no word in the process page.
    pub(crate) fn is_thread(&self) -> bool {
        self.index() >= process::MAXIMUM_WORKERS
    }

    /// Returns its priority while it publishes nothing.
    fn own_priority(&self) -> Priority {
        self.process.standing.worth(self.process.default_priority)
    }

    /// Returns its present priority: a worker's follows the process's published bitmaps, a thread's is the process's
    /// default.
    fn claimed_priority(&self) -> Priority {
        if self.is_thread() { self.own_priority() } else { self.process.claimed_priority() }
    }

    /// Returns the address of the word that becomes 0 when it ends.
    pub(crate) fn end_word(&self) -> usize {
        self.end_word.load(Ordering::Relaxed)
    }

    /// Sets the word that becomes 0 when it ends; 0 for none.
    pub(crate) fn set_end_word(&self, address: usize) {
        self.end_word.store(address, Ordering::Relaxed);
    }

    /// Returns the address of the head of its list of robust locks.
    pub(crate) fn robust_list(&self) -> usize {
        self.robust_list.load(Ordering::Relaxed)
    }

    /// Sets the address of the head of its list of robust locks; 0 for none.
    pub(crate) fn set_robust_list(&self, head: usize) {
        self.robust_list.store(head, Ordering::Relaxed);
    }

    /// Returns its slot in the process: below [`process::MAXIMUM_WORKERS`] for workers, from there on for threads.
    pub(crate) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed)
    }

    /// Returns whether it is in user mode on some hart, or in a call that it has made there.
    pub(crate) fn is_visited(&self) -> bool {
        self.hart.load(Ordering::Relaxed) != NOWHERE
    }

    /// Makes it wait for a hart no longer than something of this priority would; returns `false` if it does not wait
    /// for one.
    pub(crate) fn bring_forward(&self, priority: Priority) -> bool {
        let cid = Cid::from_raw(self.cid.load(Ordering::Acquire));
        if executor::state(cid) != Some(State::Ready) {
            return false;
        }
        if executor::priority(cid).is_some_and(|now| priority.is_more_important_than(now)) {
            executor::set_priority(cid, priority);
        }
        true
    }

    /// Returns its number for programs: worker 0 has the process's, the others follow far above.
    pub(crate) fn thread_id(&self) -> u32 {
        self.process.id + self.index() as u32 * 0x1_0000
    }

    /// Returns whether it must leave for good.
    pub(crate) fn is_to_stop(&self) -> bool {
        self.process.has_ended() || self.stopped.load(Ordering::Acquire)
    }

    /// Ends this worker alone.
    pub(crate) fn stop(&self) {
        if !self.stopped.swap(true, Ordering::AcqRel) {
            self.interrupt();
        }
    }

    /// Makes the worker look around: wakes its coroutine, and calls it back from user mode on another hart.
    pub(crate) fn interrupt(&self) {
        executor::wake(Cid::from_raw(self.cid.load(Ordering::Acquire)));
        self.call_back();
    }

    /// Gives its coroutine the greatest importance, to end.
    pub(crate) fn boost(&self) {
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), Priority::HIGHEST);
    }

    /// Returns the present priority of its coroutine.
    fn priority(&self) -> Priority {
        match self.time.credit.load(Ordering::Relaxed) {
            0 => self.claimed_priority(),
            _ => self.process.standing.limit(Priority::HIGHEST),
        }
    }

    /// Returns its priority while it waits for its turn; then it will look at the completions that its process has not
    /// taken.
    fn priority_in_queue(&self) -> Priority {
        match self.time.credit.load(Ordering::Relaxed) {
            0 => self.priority_without_boost(),
            _ => self.priority(),
        }
    }

    /// Returns its priority in a queue by its process's claims alone.
    pub(crate) fn priority_without_boost(&self) -> Priority {
        if self.is_thread() { self.own_priority() } else { self.process.claimed_with_completions() }
    }

    /// Returns whether something ready on this hart goes before it. Called after each call, so quick if nothing is
    /// ready.
    #[inline(always)]
    fn is_outranked(&self) -> bool {
        executor::is_anything_ready() && executor::is_ready_above(self.priority())
    }

    /// Returns its coroutine.
    pub(crate) fn coroutine(&self) -> Cid {
        Cid::from_raw(self.cid.load(Ordering::Acquire))
    }

    /// Gives its coroutine its present priority.
    pub(crate) fn order_anew(&self) {
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), self.priority());
    }

    /// Counts a turn, which it has now.
    fn count_turn(&self) {
        let turns = &self.time.turns;
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns whether the worker has been ready since the watchdog's last look without a turn; if so, makes it the
    /// most important of all until it has run for a slice.
    pub(crate) fn is_starving(&self) -> bool {
        let cid = Cid::from_raw(self.cid.load(Ordering::Acquire));
        if executor::state(cid) != Some(State::Ready) {
            self.time.seen_at.store(0, Ordering::Relaxed);
            return false;
        }
        let turns = self.time.turns.load(Ordering::Relaxed) + 1;
        if self.time.seen_at.swap(turns, Ordering::Relaxed) != turns {
            return false;
        }
        self.time.credit.store(time::slice_ticks(), Ordering::Relaxed);
        executor::set_priority(cid, Priority::HIGHEST);
        true
    }

    /// Charges the time that it has used up to now.
    fn charge(&self, now: u64, since: u64) {
        let used = match self.time.since.swap(since, Ordering::Relaxed) {
            // It goes on in another coroutine already, on a kernel thread, which has begun a count of its own.
            0 => return,
            since => now.saturating_sub(since),
        };
        let cpu = &self.time.cpu;
        // Only the hart on which the worker runs comes here.
        cpu.store(cpu.load(Ordering::Relaxed) + used, Ordering::Relaxed);
        let credit = self.time.credit.load(Ordering::Relaxed);
        if credit != 0 {
            self.time.credit.store(credit.saturating_sub(used), Ordering::Relaxed);
        }
        scheduling::charge(&self.process, used, now);
    }

    /// Returns the ticks that it has used and was not charged yet.
    pub(crate) fn uncharged(&self, now: u64) -> u64 {
        match self.time.since.load(Ordering::Relaxed) {
            0 => 0,
            since => now.saturating_sub(since),
        }
    }

    /// Returns the ticks that it has used up to now.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        self.time.cpu.load(Ordering::Relaxed) + self.uncharged(Machine::now())
    }

    /// Wakes the worker now, or ends its next sleep immediately.
    pub(crate) fn wake(&self) {
        let sleeper = {
            let mut parking = self.parking.lock();
            let sleeper = parking.sleeper.take();
            parking.permit = sleeper.is_none();
            sleeper
        };
        if let Some(waker) = sleeper {
            waker.wake();
        }
    }

    /// Becomes the first worker of another program, without handler and interrupts.
    fn start_afresh(&self) {
        self.index.store(0, Ordering::Relaxed);
        self.set_end_word(0);
        self.set_robust_list(0);
        self.line.reset();
    }

    /// Sends the worker a user interrupt for completions; returns `false` if it has no handler.
    pub(crate) fn interrupt_for_completions(&self) -> bool {
        if !self.line.has_handler() {
            return false;
        }
        self.process.shared.add_interrupts(self.index(), interrupts::COMPLETIONS);
        if !self.interrupt_in_hardware() {
            self.line.set_pending();
            self.call_back();
        }
        true
    }

    /// Sends the worker the user interrupts of these bits: shows them to its handler, and wakes or interrupts it.
    /// Without a handler they wait for one.
    pub(crate) fn raise(&self, bits: u64) {
        self.process.shared.add_interrupts(self.index(), bits);
        if self.interrupt_in_hardware() {
            return;
        }
        self.line.set_pending();
        // Pending was set before the look at the parking place; a worker that parks looks in the other order under the
        // same lock.
        if !self.wake_if_parked(self.process.standing.worth(self.process.default_priority)) {
            self.call_back();
        }
    }

    /// Interrupts a worker that runs on another hart without calling it back; returns `false` if it does not run there,
    /// or has no guest interrupt file. If it leaves the hart at this moment, the interrupt stays in the file, and the
    /// file is watched.
    fn interrupt_in_hardware(&self) -> bool {
        let hart = self.hart.load(Ordering::Relaxed);
        self.process.space.kind() == SpaceKind::Virtualised
            && hart != NOWHERE
            && hart != Machine::hart()
            && self.line.notify_through_file()
    }

    /// Wakes the worker, now or when it is about to sleep: an interrupt has come in its guest interrupt file while it
    /// does not run.
    pub(crate) fn wake_for_interrupt(&self) {
        // The priority of the coroutines that its handler will wake is not known yet. A worker that is more important
        // already, because it starves or must end, stays so.
        let (cid, own) = (Cid::from_raw(self.cid.load(Ordering::Acquire)), self.own_priority());
        if executor::priority(cid).is_some_and(|now| own.is_more_important_than(now)) {
            executor::set_priority(cid, own);
        }
        self.wake();
    }

    /// Calls the worker back from user mode on another hart.
    fn call_back(&self) {
        // The change that the worker must see was stored before; it stores its hart before it looks. With a fence on
        // both sides at least one of the two sees the other's store.
        fence(Ordering::SeqCst);
        let hart = self.hart.load(Ordering::Relaxed);
        if hart != NOWHERE && hart != Machine::hart() {
            counters::count(Counter::HartInterrupts);
            Machine::send_ipi(hart);
        }
    }

    /// Wakes the worker if it sleeps, with this priority for its coroutine; returns `false` if it does not sleep.
    pub(crate) fn wake_if_parked(&self, priority: Priority) -> bool {
        let Some(waker) = self.parking.lock().sleeper.take() else { return false };
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), priority);
        waker.wake();
        true
    }

    /// Sleeps until there is news for the worker: completions beyond `seen`, or a wake-up by another worker; or until
    /// `deadline` (ticks).
    ///
    /// # Cancellation
    /// Dropping it leaves the worker awake; nothing is lost.
    async fn park(&self, seen: u64, deadline: Option<u64>) -> Result<usize, Errno> {
        let mut alarm = None;
        let result = poll_fn(|cx| {
            if self.is_to_stop() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            // The program has made room in the ring; completions that waited for that are news too.
            self.process.post_waiting_completions();
            let mut parking = self.parking.lock();
            // A handler that came in the middle of the scheduler's image has left its word for a little later.
            let left_for_later =
                self.process.space.kind() == SpaceKind::Virtualised && self.process.shared.has_interrupts(self.index());
            let interrupted = self.line.has_handler() && (self.line.is_pending() || left_for_later);
            if core::mem::take(&mut parking.permit) || interrupted || self.process.posted() != seen {
                parking.sleeper = None;
                return Poll::Ready(Ok(0));
            }
            if alarm.is_some() && parking.sleeper.is_none() {
                // A wake-up has taken the waker out.
                return Poll::Ready(Ok(0));
            }
            if deadline.is_some_and(|deadline| Machine::now() >= deadline) {
                parking.sleeper = None;
                return Poll::Ready(Err(Errno::ETIMEDOUT));
            }
            parking.sleeper = Some(cx.waker().clone());
            if alarm.is_none() {
                alarm = Some(deadline.map(|deadline| self.deadline.set(deadline, cx.waker())));
            }
            Poll::Pending
        })
        .await;
        if let Some(Some(alarm)) = alarm {
            time::clear(alarm);
        }
        result
    }
}

impl Owner for Arc<Worker> {
    fn process(&self) -> &Arc<Process> {
        &self.process
    }

    fn begins(&self, now: u64) {
        self.time.since.store(now, Ordering::Relaxed);
    }

    fn ends(&self, _start: u64) {
        // The time before the last interrupt was charged then.
        self.charge(Machine::now(), 0);
    }
}

/// Runs the switching coroutine of a worker.
async fn run(worker: Arc<Worker>, mut context: Box<UserContext>) {
    // Before the coroutine can wait for anything, so that its wakers know it.
    worker.cid.store(executor::current().raw(), Ordering::Release);
    loop {
        let pause = visit(&worker, &mut context);
        crate::asynchronous::ring::leave_to_handler(&worker);
        // From now on, and until the process publishes something else, its priority is that of the process's claim.
        if !matches!(pause, Pause::GiveWay) {
            // A worker that waits for something does not starve any more.
            worker.time.credit.store(0, Ordering::Relaxed);
        }
        match pause {
            Pause::GiveWay => executor::set_priority(executor::current(), worker.priority_in_queue()),
            _ => executor::set_priority(executor::current(), worker.priority()),
        }
        match pause {
            Pause::Leave => break,
            Pause::GiveWay => executor::yield_now().await,
            Pause::Wait(operation) => {
                let result = operation.wait(&worker.process, &worker.deadline, || worker.is_to_stop()).await;
                context.set_result(errno::encode(result) as u64);
            }
            Pause::Park { seen, deadline } => {
                let result = worker.park(seen, deadline).await;
                context.set_result(errno::encode(result) as u64);
                // If there was news the worker has not waited, and coroutines that became ready meanwhile may be more
                // important.
                if worker.is_outranked() {
                    executor::yield_now().await;
                }
            }
            Pause::Execute(addresses) => execute(&worker, &mut context, addresses).await,
            Pause::MoveToThread => {
                context = match move_to_thread(&worker, context) {
                    Ok(()) => return,
                    Err(mut context) => {
                        context.set_result(errno::encode(Err(Errno::ENOMEM)) as u64);
                        context
                    }
                };
            }
        }
    }
    leave(&worker, context).await;
}

/// Replaces the program, when all other workers and calls have gone.
async fn execute(worker: &Arc<Worker>, context: &mut Box<UserContext>, [path, arguments, environment]: [usize; 3]) {
    stretch::goes_on_with(SystemCall::Execute);
    let plan = match Plan::read(&worker.process, path, arguments, environment).await {
        Ok(plan) => plan,
        Err(error) => return context.set_result(errno::encode(Err(error)) as u64),
    };
    // Repeated each time: a worker that was about to leave may have added another, or have submitted a call.
    let is_alone = poll_fn(|cx| match worker.process.keep_only(worker) {
        false => Poll::Ready(false),
        true if worker.process.poll_alone(cx.waker()) => Poll::Ready(true),
        true => Poll::Pending,
    })
    .await;
    if !is_alone {
        // The next look finds this too, and this worker leaves.
        return;
    }
    worker.process.forget_others(worker);
    interrupts::give_up(worker);
    worker.process.kernel_side.reset();
    worker.start_afresh();
    stretch::goes_on_with(SystemCall::Execute);
    match plan.carry_out(&worker.process).await {
        Ok(fresh) => **context = fresh,
        Err(error) => {
            // The old program is gone, so no caller can get the error.
            report::line(&worker.process, format_args!("execve failed after the point of no return: {error}"));
            worker.process.end(Ending::Killed(abi_unix::types::signal::KILL as u8));
        }
    }
}

/// Performs a worker's last steps.
async fn leave(worker: &Arc<Worker>, context: Box<UserContext>) {
    drop(context);
    // The last worker reports the process's time to the parent; only the time from here on is missing from that.
    let now = Machine::now();
    worker.charge(now, now);
    let process = &worker.process;
    if !process.has_ended() {
        thread::depart(worker);
    }
    interrupts::give_up(worker);
    let is_last = process.worker_is_gone(worker);
    // Looked at after the departure: if the process ends later than that, its end finds another worker.
    if process.has_ended() {
        stretch::goes_on_as(abi_unix::trace::stretch::END);
        process.call_all().await;
    }
    if is_last {
        process.take_apart().await;
    }
}

/// Moves a worker from its coroutine to a kernel thread; returns the registers if there is no memory.
fn move_to_thread(worker: &Arc<Worker>, context: Box<UserContext>) -> Result<(), Box<UserContext>> {
    if worker.charge.lock().resize(MEMORY + kernel_thread::STACK_SIZE).is_err() {
        return Err(context);
    }
    let Ok(stack) = Stack::new() else { return Err(context) };
    // Place of the registers while their next owner is undecided.
    let between = Arc::new(Mutex::new(Some(context)));
    let (own, theirs) = (worker.clone(), between.clone());
    let thread = Thread::new(stack, move |current| {
        let context = theirs.lock().take();
        if let Some(context) = context {
            let side = own.process.kernel_side.side();
            run_on_thread(&own, context, current, side);
        }
    });
    match executor::spawn_for(worker.clone(), worker.priority(), thread) {
        Ok(cid) => {
            worker.cid.store(cid.raw(), Ordering::Release);
            Ok(())
        }
        Err(SpawnError(_)) => match between.lock().take() {
            Some(context) => Err(context),
            // Impossible: only the thread takes them, and it never ran.
            None => Ok(()),
        },
    }
}

/// Runs a worker on the stack of a kernel thread, as [`run`] does in a coroutine: a call that must wait blocks the
/// thread.
fn run_on_thread(worker: &Arc<Worker>, mut context: Box<UserContext>, current: &Current<'_>, side: Side) {
    worker.cid.store(executor::current().raw(), Ordering::Release);
    loop {
        let pause = visit(worker, &mut context);
        if !matches!(pause, Pause::GiveWay) {
            worker.time.credit.store(0, Ordering::Relaxed);
        }
        executor::set_priority(executor::current(), worker.priority());
        match pause {
            Pause::Leave => break,
            Pause::GiveWay => current.block_on(executor::yield_now()),
            Pause::Wait(mut operation) if side == Side::RetryingThreads && operation.is_transfer() => {
                let result = loop {
                    if worker.is_to_stop() {
                        break operation.give_up(Errno::EINTR);
                    }
                    current.block_on(executor::yield_now());
                    // Each try is a turn: a thread that only waits must not count as starving.
                    worker.count_turn();
                    if worker.time.credit.swap(0, Ordering::Relaxed) != 0 {
                        executor::set_priority(executor::current(), worker.priority());
                    }
                    if let Poll::Ready(result) = operation.attempt(&worker.process) {
                        break result;
                    }
                };
                context.set_result(errno::encode(result) as u64);
            }
            Pause::Wait(operation) => {
                let result =
                    current.block_on(operation.wait(&worker.process, &worker.deadline, || worker.is_to_stop()));
                context.set_result(errno::encode(result) as u64);
            }
            Pause::Park { seen, deadline } => {
                let result = current.block_on(worker.park(seen, deadline));
                context.set_result(errno::encode(result) as u64);
                if worker.is_outranked() {
                    current.block_on(executor::yield_now());
                }
            }
            Pause::Execute(addresses) => current.block_on(execute(worker, &mut context, addresses)),
            // It has one.
            Pause::MoveToThread => {}
        }
    }
    current.block_on(leave(worker, context));
}

/// Runs user mode, and everything that can be done without waiting, until the coroutine has to pause.
fn visit(worker: &Arc<Worker>, context: &mut UserContext) -> Pause {
    let process = &worker.process;
    let hart = Machine::hart();
    time::start_slice();
    trace::of_worker(Kind::UserBegins, worker, executor::current_priority().number().into(), 0);
    worker.count_turn();
    counters::count(Counter::Switches);
    // A worker may have been woken at a priority that its claim does not show before it runs. If only the claim counted
    // here, it would yield, be the most important again, and so on.
    let (taken_at, claim) = (executor::current_priority(), worker.priority());
    let importance = if taken_at.is_more_important_than(claim) { taken_at } else { claim };
    // Before the fence in `begin_visit`, which pairs with the one in `call_back`: either that sees the hart and sends,
    // or the look below sees the change that it announces.
    worker.hart.store(hart, Ordering::Relaxed);
    executor::begin_visit(hart, process.id, importance);
    let is_virtualised = process.space.kind() == SpaceKind::Virtualised;
    if is_virtualised {
        interrupts::arrive(worker, context, hart);
    }
    let mut graces = 0;
    // The hart's bitmap, found once: it is looked at after each call.
    let ready = executor::ready_here();
    let goes = executor::may_visit(importance) || worker.is_to_stop();
    let pause = if !goes {
        Pause::GiveWay
    } else {
        loop {
            // Deliberate failures of memory happen in calls, and not where the program touches a page.
            memory::faults::works_for(0);
            if worker.line.is_pending() {
                deliver_interrupt(worker, context);
            }
            if worker.is_to_stop() {
                break Pause::Leave;
            }
            process.post_waiting_completions();
            if scheduling::strictness_matters() {
                shared::publish(scheduling::claims_worth(executor::waiting()));
                stretch::looked();
            }
            let trap = process.space.enter(context);
            if trace::traps_are_watched() {
                watch_trap(worker, trap, context);
            }
            if trap != Trap::SystemCall {
                counters::count(Counter::Traps);
            }
            match trap {
                Trap::SystemCall => match calls::dispatch(worker, context) {
                    Outcome::Done(value) => {
                        context.set_result(value as u64);
                        // The process's claim may have changed since it was entered.
                        if ready.load(Ordering::Relaxed) != 0 && worker.is_outranked() {
                            break Pause::GiveWay;
                        }
                    }
                    Outcome::Unchanged => {}
                    Outcome::Pause(pause) => {
                        prepare(worker, context, &pause);
                        break pause;
                    }
                },
                Trap::Interrupt => {
                    // Coroutines that the interrupt wakes come to this hart, which looks at them now.
                    executor::end_visit(hart);
                    let waited = ready.load(Ordering::Relaxed);
                    let pending = crate::on_interrupt();
                    let now = Machine::now();
                    worker.charge(now, now);
                    // The visit goes on, unless the looks below say otherwise. Its claim may have changed.
                    let priority = worker.priority();
                    executor::begin_visit(hart, process.id, priority);
                    if pending.timer && !pending.ipi && !pending.guest {
                        counters::count(Counter::TimerTraps);
                    }
                    if pending.timer {
                        // Copies by the kernel make page tables too.
                        process.charge_tables();
                    }
                    if pending.timer && !worker.is_thread() {
                        process.remind(worker);
                        process.share_what_is_ready(worker);
                    }
                    if pending.timer && worker.line.has_handler() && process.shared.is_outranked_within(worker.index())
                    {
                        // Its handler may put its coroutine aside for something more important in the process.
                        worker.line.set_pending();
                    }
                    // The timer may have been set for a slice of another worker. Equals that waited before wait for the
                    // end of this slice then: with a turn at each old end, two equals could divide the time by any
                    // ratio.
                    let is_news = !pending.timer
                        || pending.ipi
                        || pending.guest
                        || ready.load(Ordering::Relaxed) & !waited & priority.bit() != 0;
                    let is_outranked_here = if is_news {
                        executor::is_ready_at_least(priority)
                    } else {
                        executor::is_ready_above(priority)
                    };
                    let is_outranked = executor::is_anything_ready() && is_outranked_here
                        || executor::is_ready_above_anywhere(priority)
                            && executor::is_ready_above_anywhere(worker.priority_in_queue());
                    if executor::is_anything_ready() {
                        executor::share_what_is_ready_here(is_outranked);
                    }
                    if pending.ipi && !is_outranked {
                        // The sender may have seen an older claim of this process.
                        executor::pass_on();
                    }
                    if time::slice_has_ended() || is_outranked {
                        // The scheduler's short critical sections lie in its image. A worker that is interrupted in
                        // there gets a moment to come out, so that the others need not wait for it; a bounded number of
                        // times, since any program can jump there.
                        if graces < MAXIMUM_GRACES && process.shared.is_in_image(context.pc as usize) {
                            graces += 1;
                            time::extend_slice();
                        } else if is_virtualised && !executor::is_anything_ready() && interrupts::has_file(worker) {
                            // The hart is not wanted, and on another one the worker's interrupt file would have to
                            // change.
                            time::start_slice();
                        } else {
                            break Pause::GiveWay;
                        }
                    }
                }
                Trap::PageFault { address, access } => {
                    match process.space.fault(address as usize, access) {
                        Ok(()) => {
                            counters::count(Counter::PageFaults);
                            process.charge_tables();
                        }
                        Err(usermode::Fault::OutOfMemory) => {
                            // The process with the most memory ends, even if another one needs it; this worker tries
                            // again after that. The memory of a process that has ended meanwhile is enough.
                            if !memory::frames::available_to_programs(accounts::SPARE / PAGE_SIZE) {
                                process::end_largest();
                            }
                            if !process.has_ended() {
                                break Pause::GiveWay;
                            }
                        }
                        Err(_) if access == Access::Write && interrupts::store_to_page(process, context, address) => {}
                        Err(_) => segmentation_fault(process, context, address, trap),
                    }
                }
                Trap::AccessFault { .. } => fault(process, context, "bus error", abi_unix::types::signal::BUS, trap),
                Trap::Misaligned { .. } => {
                    fault(process, context, "misaligned access", abi_unix::types::signal::BUS, trap)
                }
                Trap::IllegalInstruction { .. } if interrupts::claim_without_file(worker, context, trap) => {}
                Trap::IllegalInstruction { .. } => {
                    fault(process, context, "illegal instruction", abi_unix::types::signal::ILL, trap)
                }
                Trap::Breakpoint => fault(process, context, "breakpoint", abi_unix::types::signal::TRAP, trap),
                Trap::Other { .. } => fault(process, context, "unknown trap", abi_unix::types::signal::KILL, trap),
            }
        }
    };
    worker.hart.store(NOWHERE, Ordering::Relaxed);
    executor::end_visit(hart);
    if is_virtualised {
        interrupts::depart(worker, context, hart, matches!(pause, Pause::GiveWay));
    }
    time::stop_slice();
    if worker.time.credit.load(Ordering::Relaxed) != 0 {
        // Its priority will depend on the rest of its credit. All other workers are charged when the poll ends.
        let now = Machine::now();
        worker.charge(now, now);
    }
    if trace::is_on() {
        let reason = match pause {
            Pause::GiveWay => Reason::GaveWay,
            Pause::Wait(_) => Reason::Waits,
            Pause::Park { .. } => Reason::Sleeps,
            Pause::Execute(_) => Reason::Executes,
            Pause::MoveToThread => Reason::GaveWay,
            Pause::Leave => Reason::Ends,
        };
        trace::of_worker(Kind::UserEnds, worker, reason as u64, 0);
    }
    pause
}

/// Does the visit's part of a pause that a call has caused.
fn prepare(worker: &Arc<Worker>, context: &mut UserContext, pause: &Pause) {
    match pause {
        Pause::Wait(_) if !worker.is_thread() => worker.process.share_what_is_ready(worker),
        Pause::Wait(_) | Pause::Park { .. } | Pause::Execute(_) => {}
        Pause::GiveWay => {
            context.set_result(0);
            worker.process.bring_forward_others(worker);
        }
        Pause::MoveToThread => context.set_result(0),
        Pause::Leave => worker.stopped.store(true, Ordering::Release),
    }
}

/// Shows a worker's handler its interrupts. Apart from the visit, whose registers are for calls.
#[inline(never)]
fn deliver_interrupt(worker: &Worker, context: &mut UserContext) {
    worker.line.deliver(&worker.process, context);
}

#[cold]
fn watch_trap(worker: &Worker, trap: Trap, context: &UserContext) {
    let call = context.call_number() & abi_unix::call::NUMBER_MASK as u64;
    stretch::trapped(if trap == Trap::SystemCall { Some(call as usize) } else { None });
    let (cause, number) = match trap {
        Trap::SystemCall => (Cause::Call, call),
        Trap::Interrupt => (Cause::Interrupt, 0),
        _ => (Cause::Fault, 0),
    };
    trace::of_worker(Kind::Trap, worker, cause as u64, number);
}

/// Ends a process for a forbidden access. Apart from the visit, which is the way of every call.
#[cold]
#[inline(never)]
fn segmentation_fault(process: &Process, context: &UserContext, address: u64, trap: Trap) {
    let overflow = program::is_in_guard(&process.space, address, context.stack());
    let what = if overflow { "stack overflow" } else { "segmentation fault" };
    fault(process, context, what, abi_unix::types::signal::SEGV, trap);
}

/// Ends a process for a fault, and reports it in the log.
#[cold]
#[inline(never)]
fn fault(process: &Process, context: &UserContext, what: &str, signal: u32, trap: Trap) {
    let detail = match trap {
        Trap::PageFault { address, access }
        | Trap::AccessFault { address, access }
        | Trap::Misaligned { address, access } => {
            let verb = match access {
                Access::Read => "reading",
                Access::Write => "writing",
                Access::Execute => "executing",
            };
            Some((verb, address))
        }
        _ => None,
    };
    let pc = context.pc;
    let (ra, sp) = (context.register(1), context.stack());
    // With this distance an address can be found in the program's file, although the program lies elsewhere each time.
    let moved = process.shared.program_bias();
    match detail {
        Some((verb, address)) => report::line(
            process,
            format_args!(
                "killed: {what}: {verb} {address:#x} at pc {pc:#x}, ra {ra:#x}, sp {sp:#x}, program at {moved:#x}"
            ),
        ),
        None => report::line(
            process,
            format_args!("killed: {what} at pc {pc:#x}, ra {ra:#x}, sp {sp:#x}, program at {moved:#x} ({trap:?})"),
        ),
    }
    process.end(Ending::Killed(signal as u8));
}

#[cfg(test)]
mod tests {
    use abi_unix::types::signal;

    use super::*;
    use crate::testing::{CODE, DATA, LENGTH, run, run_to_its_end};

    #[test]
    fn a_worker_begins_as_it_was_asked_to_and_others_see_it_end() {
        run(|program| {
            let place = program.place(16);
            let identity = program.identity_for(move |program| {
                program.write(place, &program.given.to_le_bytes());
            });
            assert_eq!(program.call(SystemCall::WorkerCreate, [CODE as usize, DATA, 4711, identity]), Ok(1));
            assert_eq!(program.process().live_workers(), 2);
            program.sleep_ns(1_000_000);
            assert_eq!(program.read_u64(place), 4711);
            assert_eq!(program.process().live_workers(), 1);
        });
    }

    #[test]
    fn workers_are_numbered_in_their_order_and_have_a_limit() {
        run(|program| {
            let word = program.place(8);
            let waits = move |program: &mut crate::testing::Program| {
                while program.read_u32(word) == 0 {
                    let _ = program.call(SystemCall::Futex, [word, 0, 0, 0]);
                }
            };
            for index in 1..process::MAXIMUM_WORKERS {
                assert_eq!(program.add_worker(waits), Ok(index));
            }
            assert_eq!(program.add_worker(waits), Err(Errno::EAGAIN));
            assert_eq!(program.process().live_workers(), process::MAXIMUM_WORKERS);
            program.sleep_ns(1_000_000);
            program.write(word, &[1]);
            program.call(SystemCall::Futex, [word, 1, 1000]).unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(program.process().live_workers(), 1);
            for (entry, stack) in [(usize::MAX, DATA), (CODE as usize + 1, DATA), (CODE as usize, usize::MAX)] {
                assert_eq!(program.call(SystemCall::WorkerCreate, [entry, stack, 0, 0]), Err(Errno::EINVAL));
            }
        });
    }

    /// A wake-up that comes before the sleep ends it at once, and is used up by it; several are one.
    #[test]
    fn a_wake_up_is_not_lost_and_counts_once() {
        run(|program| {
            let posted = program.process().posted() as usize;
            for _ in 0..2 {
                assert_eq!(program.call(SystemCall::WorkerWake, [0]), Ok(0));
            }
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, usize::MAX]), Ok(0));
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, 1_000_000]), Err(Errno::ETIMEDOUT));
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, 0]), Err(Errno::ETIMEDOUT));
            assert_eq!(program.call(SystemCall::WorkerWait, [posted + 1, usize::MAX]), Ok(0), "there was news");
            assert_eq!(program.call(SystemCall::WorkerWake, [5]), Err(Errno::ESRCH));
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    program.call(SystemCall::WorkerWake, [0]).unwrap();
                })
                .unwrap();
            let begin = Machine::now();
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, usize::MAX]), Ok(0));
            assert!(time::ns_at_ticks(Machine::now() - begin) >= 900_000);
        });
    }

    /// The process lives as long as one of its workers, and has the status that the first one gave.
    #[test]
    fn the_last_worker_ends_the_process() {
        let ending = run_to_its_end(|program| {
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    let _ = program.call(SystemCall::Exit, [9]);
                })
                .unwrap();
            let _ = program.call(SystemCall::Exit, [4]);
        });
        assert_eq!(ending, Ending::Exited(4));
    }

    #[test]
    fn the_first_end_counts_and_takes_everybody_along() {
        let ending = run_to_its_end(|program| {
            for status in [7, 8] {
                program
                    .add_worker(move |program| {
                        program.sleep_ns(1_000_000);
                        let _ = program.call(SystemCall::ExitGroup, [status]);
                    })
                    .unwrap();
            }
            // One that runs for ever, and one that sleeps for ever.
            program
                .add_worker(|program| {
                    loop {
                        program.call(SystemCall::GetProcess, []).unwrap();
                    }
                })
                .unwrap();
            let _ = program.call(SystemCall::WorkerWait, [0, usize::MAX]);
        });
        assert!(matches!(ending, Ending::Exited(7 | 8)), "{ending:?}");
    }

    #[test]
    fn what_a_program_must_not_do_ends_it_with_its_signal() {
        for (trap, number) in [
            (Trap::IllegalInstruction { bits: 0 }, signal::ILL),
            (Trap::Breakpoint, signal::TRAP),
            (Trap::PageFault { address: 8, access: Access::Write }, signal::SEGV),
            (Trap::PageFault { address: 1 << 62, access: Access::Read }, signal::SEGV),
            (Trap::PageFault { address: CODE, access: Access::Write }, signal::SEGV),
            (Trap::PageFault { address: DATA as u64, access: Access::Execute }, signal::SEGV),
            (Trap::AccessFault { address: 8, access: Access::Read }, signal::BUS),
            (Trap::Misaligned { address: 1, access: Access::Write }, signal::BUS),
        ] {
            let ending = run_to_its_end(move |program| {
                program.add_worker(|program| program.sleep_ns(1_000_000_000)).unwrap();
                program.trap(trap);
            });
            assert_eq!(ending, Ending::Killed(number as u8), "{trap:?}");
        }
    }

    #[test]
    fn a_stack_that_overflows_is_told_from_other_faults() {
        let touch = |address: usize| Trap::PageFault { address: address as u64, access: Access::Write };
        run_to_its_end(move |program| {
            let process = program.process();
            let guard = process.space.lock().regions().find(|region| region.name == "[guard]").unwrap().range;
            program.trap(touch(guard.end as usize - 8));
        });
        let output = crate::testing::simulation().output();
        assert!(output.lines().last().unwrap().contains("stack overflow: writing"), "{output}");
        run_to_its_end(move |program| program.trap(touch(DATA + LENGTH + (1 << 20))));
        let output = crate::testing::simulation().output();
        assert!(output.lines().last().unwrap().contains("segmentation fault: writing"), "{output}");
    }

    /// A process that makes calls for so long.
    fn busy(slices: u64) -> impl FnOnce(&mut crate::testing::Program) + Send + 'static {
        move |program| {
            let begin = Machine::now();
            while time::ns_at_ticks(Machine::now() - begin) < slices * time::SLICE_NS {
                // A tenth of a millisecond between two calls.
                crate::testing::simulation().advance(1000);
                program.call(SystemCall::GetProcess, []).unwrap();
            }
        }
    }

    fn used_ns(child: usize) -> u64 {
        time::ns_at_ticks(process::find(child as u32).unwrap().cpu_ticks())
    }

    /// Equals that never wait share the hart by slices, wherever in another's slice each has begun.
    #[test]
    fn equals_alternate() {
        for offset in [0, 30, 1_000, 10_000, 99_000] {
            run(move |program| {
                let first = program.spawn(busy(40)).unwrap();
                program.sleep_ns(1_000_000 + offset * 100);
                let second = program.spawn(busy(40)).unwrap();
                let before = used_ns(first);
                program.sleep_ns(20 * time::SLICE_NS as usize);
                let used = (used_ns(first) - before, used_ns(second));
                for one in [used.0, used.1] {
                    assert!((8 * time::SLICE_NS..=12 * time::SLICE_NS).contains(&one), "{used:?} at {offset}");
                }
                for child in [first, second] {
                    assert_eq!(program.wait_for(child), Ok((child, 0)));
                }
            });
        }
    }

    /// A more important process runs to its end before the one that has started it goes on; a less important one only
    /// while that waits.
    #[test]
    fn importance_goes_before_turns() {
        run(|program| {
            let other = program.spawn_given(0, 60, busy(4)).unwrap();
            let important = program.spawn_given(0, 1, busy(4)).unwrap();
            // The next call gives way at the latest.
            program.call(SystemCall::GetProcess, []).unwrap();
            assert!(process::find(important as u32).is_none_or(|process| process.has_ended()));
            assert_eq!(used_ns(other), 0);
            program.sleep_ns(2 * time::SLICE_NS as usize);
            assert!(used_ns(other) > time::SLICE_NS);
            for child in [important, other] {
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            }
        });
    }

    /// `execve` ends the other workers, keeps number and descriptors but those to be closed, and begins anew.
    #[test]
    fn another_program_keeps_the_process_and_nothing_of_its_memory() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            assert_eq!(program.call(SystemCall::FileControl, [reader, 2, 1]), Ok(0));
            let place = program.store(b"old");
            program.add_worker(|program| program.sleep_ns(usize::MAX >> 1)).unwrap();
            let time = program.store(&abi_unix::types::TimeSpec::from_ns(1 << 60).to_bytes());
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 5), None);
            let id = program.id as usize;
            let path = program.store(crate::testing::PATH);
            let list = program.store(&[path.to_le_bytes(), [0; 8]].concat());
            let missing = program.store(b"/bin/missing\0");
            assert_eq!(program.call(SystemCall::Execute, [missing, list, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::Execute, [0x1000, list, 0]), Err(Errno::EFAULT));
            assert_eq!(program.process().live_workers(), 2, "nothing has happened");
            program.goes_on_as(move |program| {
                assert_eq!(program.call(SystemCall::GetProcess, []), Ok(id));
                assert_eq!(program.process().live_workers(), 1);
                assert_eq!(program.read(place, 3), [0; 3]);
                assert_eq!(program.write_to(writer, b"x"), Err(Errno::EPIPE), "the other end is closed");
                assert_eq!(program.read_from(reader, 1), Err(Errno::EBADF));
                assert_eq!(program.call(SystemCall::Cancel, [5]), Err(Errno::ENOENT));
            });
            let _ = program.call(SystemCall::Execute, [path, list, 0]);
            panic!("the old program goes on");
        });
    }
}
