//! Workers and their switching coroutines.
//!
//! A worker is an execution context of a process: registers, and the right to run the process's executor. Its kernel side
//! is one coroutine, the *switching coroutine*: it goes to user mode, which is a call that returns a reason, deals with the
//! reason, and goes back. It ends only with the worker. Its priority follows the process's: whenever it gives the hart up
//! it takes the priority of the most important coroutine that the process has published, so that the kernel's executor
//! orders kernel coroutines and processes by one measure, and the most important switching coroutine of all is the one
//! that runs next.
//!
//! A synchronous call that must wait is an `await` in this coroutine. There is no other kernel stack, and no other memory,
//! for a worker that is blocked.
//!
//! # When the hart is given up
//!
//! * After a call: only to something that became ready on this hart and is more important than what the process claims then.
//! * After an interrupt: also to something equally important that became ready on this hart. So completions are posted
//!   before the process goes on, and equals alternate at the tick.
//! * When the process asks for it: a strict executor does as soon as it is outranked.
//!
//! What a claim is worth, who is charged for the time, and who runs in spite of it all is [`scheduling`]'s affair.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::trace::{Cause, Kind, Reason};
use abi_unix::{Counter, Errno, errno};
use coroutine::State;
use hal_api::{Access, Machine as _, Trap, UserContext};
use kernel_thread::{Current, Stack, Thread};
use platform::{Machine, println};
use spin::Mutex;
use usermode::Kind as SpaceKind;

use crate::call::{self, Outcome};
use crate::executor::{Cid, SpawnError};
use crate::interrupts::{self, Line};
use crate::kernel_side::Side;
use crate::process::{self, Ending, Process};
use crate::{counters, executor, scheduling, shared, snapshot, thread, time, trace};

const NOWHERE: usize = usize::MAX;

/// How often a worker may finish what it does in the scheduler's image before it gives way.
const MAXIMUM_GRACES: u32 = 4;

/// Bytes of kernel memory that go with a worker or thread and its coroutine, roughly; stacks of kernel threads not counted.
pub const MEMORY: usize = size_of::<Worker>() + size_of::<UserContext>() + 1024;

/// A worker of a process.
pub struct Worker {
    /// Its process.
    pub process: Arc<Process>,
    index: AtomicUsize,
    cid: AtomicU64,
    /// The hart on which it is in user mode.
    hart: AtomicUsize,
    stopped: AtomicBool,
    /// For its sleeps with a time limit.
    deadline: time::Reservation,
    parking: Mutex<Parking>,
    /// Its user interrupts.
    pub line: Line,
    /// The word that becomes 0 when it ends, as an allegation; 0 for none.
    end_word: AtomicUsize,
    /// Where its list of robust locks begins, as an allegation; 0 for none.
    robust_list: AtomicUsize,
    time: Time,
}

/// What the worker has used, and how long it has waited.
#[derive(Default)]
struct Time {
    /// Ticks that were charged.
    cpu: AtomicU64,
    /// The tick since which it runs uncharged; 0 while it does not run.
    since: AtomicU64,
    /// How often it has begun to run.
    turns: AtomicU64,
    /// What `turns` was when the keeper last found it ready, and 1 more, so that 0 means never.
    seen_at: AtomicU64,
    /// Ticks that it may still run as the most important of all, because it had been ready for long.
    credit: AtomicU64,
}

#[derive(Default)]
struct Parking {
    /// Somebody woke the worker while it was not asleep: its next sleep ends at once.
    permit: bool,
    sleeper: Option<Waker>,
}

impl Worker {
    /// Creates a worker and starts it with these registers. `EAGAIN` if the process may not have another, `ENOMEM`; nothing
    /// has happened then.
    pub fn start(process: &Arc<Process>, context: Box<UserContext>) -> Result<Arc<Worker>, Errno> {
        let deadline = time::Reservation::new()?;
        let mut refused = None;
        let worker = process.add_worker(|index| {
            let worker = Arc::new(Worker::new(process, index, deadline));
            match executor::try_spawn(worker.own_priority(), run(worker.clone(), context)) {
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
        // Out of the lock of the process's workers.
        drop(refused);
        worker
    }

    /// Creates a thread, lets `prepare` see it, and starts it with these registers. `EAGAIN` if the process may not have
    /// another, `ENOMEM`.
    pub fn start_thread(
        process: &Arc<Process>,
        context: Box<UserContext>,
        prepare: impl FnOnce(&Worker),
    ) -> Result<Arc<Worker>, Errno> {
        let deadline = time::Reservation::new()?;
        let thread = process.add_thread(|slot| Arc::new(Worker::new(process, slot, deadline)))?;
        prepare(&thread);
        let started = match process.kernel_side.side() {
            Side::Coroutines => {
                let spawned = executor::try_spawn(thread.own_priority(), run(thread.clone(), context));
                spawned.map_err(|SpawnError(coroutine)| drop(coroutine))
            }
            side => match Stack::new() {
                Ok(stack) => {
                    let own = thread.clone();
                    let body = move |current: &Current<'_>| run_on_thread(&own, context, current, side);
                    let spawned = executor::try_spawn(thread.own_priority(), Thread::new(stack, body));
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
                process.worker_is_gone(&thread);
                Err(Errno::ENOMEM)
            }
        }
    }

    /// Notes its coroutine, known before its first turn too, which may be long in coming. If it has had that turn by now, it
    /// has noted it itself, and may have gone on to another coroutine, on a kernel thread.
    fn was_spawned_as(&self, cid: Cid) {
        let _ = self.cid.compare_exchange(0, cid.raw(), Ordering::Release, Ordering::Relaxed);
    }

    fn new(process: &Arc<Process>, index: usize, deadline: time::Reservation) -> Worker {
        Worker {
            process: process.clone(),
            index: AtomicUsize::new(index),
            cid: AtomicU64::new(0),
            hart: AtomicUsize::new(NOWHERE),
            stopped: AtomicBool::new(false),
            deadline,
            parking: Mutex::new(Parking::default()),
            line: Line::default(),
            end_word: AtomicUsize::new(0),
            robust_list: AtomicUsize::new(0),
            time: Time::default(),
        }
    }

    /// Whether it is a thread: it runs its own code, and has no word in the process page.
    pub fn is_thread(&self) -> bool {
        self.index() >= process::MAXIMUM_WORKERS
    }

    /// How important it is while it says nothing.
    fn own_priority(&self) -> Priority {
        self.process.standing.worth(self.process.default_priority)
    }

    /// How important it is now: a worker as what its process has published, a thread as its process was at first.
    fn claimed_priority(&self) -> Priority {
        if self.is_thread() { self.own_priority() } else { self.process.claimed_priority() }
    }

    /// The word that becomes 0 when it ends.
    pub fn end_word(&self) -> usize {
        self.end_word.load(Ordering::Relaxed)
    }

    /// Sets the word that becomes 0 when it ends; 0 for none.
    pub fn set_end_word(&self, address: usize) {
        self.end_word.store(address, Ordering::Relaxed);
    }

    /// Where its list of robust locks begins.
    pub fn robust_list(&self) -> usize {
        self.robust_list.load(Ordering::Relaxed)
    }

    /// Says where its list of robust locks begins; 0 for none.
    pub fn set_robust_list(&self, head: usize) {
        self.robust_list.store(head, Ordering::Relaxed);
    }

    /// Its slot in the process: below [`process::MAXIMUM_WORKERS`] for workers, from there on for threads.
    pub fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed)
    }

    /// Its number for programs: that of worker 0 is the process's, the others follow far above.
    pub fn thread_id(&self) -> u32 {
        self.process.id + self.index() as u32 * 0x1_0000
    }

    /// Whether it is to leave for good.
    pub fn is_to_stop(&self) -> bool {
        self.process.has_ended() || self.stopped.load(Ordering::Acquire)
    }

    /// Ends this worker alone.
    pub fn stop(&self) {
        if !self.stopped.swap(true, Ordering::AcqRel) {
            self.interrupt();
        }
    }

    /// Makes the worker look around: wakes its coroutine, and calls it back from user mode on another hart.
    pub fn interrupt(&self) {
        executor::wake(Cid::from_raw(self.cid.load(Ordering::Acquire)));
        self.call_back();
    }

    /// Makes its coroutine the most important there is, to end.
    pub fn hasten(&self) {
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), Priority::HIGHEST);
    }

    /// How important its coroutine is now.
    fn priority(&self) -> Priority {
        match self.time.credit.load(Ordering::Relaxed) {
            0 => self.claimed_priority(),
            _ => Priority::HIGHEST,
        }
    }

    /// Whether something that is ready on this hart goes before it. Asked after each call, so quick if nothing is ready.
    #[inline(always)]
    fn is_outranked(&self) -> bool {
        executor::is_anything_ready() && executor::is_ready_above(self.priority())
    }

    /// Gives its coroutine the priority that it has now.
    pub fn order_anew(&self) {
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), self.priority());
    }

    /// It has its turn now.
    fn count_turn(&self) {
        let turns = &self.time.turns;
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// For the keeper: if the worker has been ready since the last look without a turn, makes it the most important of all
    /// until it has run for a slice.
    pub fn is_starving(&self) -> bool {
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

    /// Charges what it has used up to now.
    fn charge(&self, now: u64, since: u64) {
        let used = now.saturating_sub(self.time.since.swap(since, Ordering::Relaxed));
        let cpu = &self.time.cpu;
        // Only the hart on which the worker runs comes here.
        cpu.store(cpu.load(Ordering::Relaxed) + used, Ordering::Relaxed);
        let credit = self.time.credit.load(Ordering::Relaxed);
        if credit != 0 {
            self.time.credit.store(credit.saturating_sub(used), Ordering::Relaxed);
        }
        scheduling::charge(&self.process, used, now);
    }

    /// Ticks that it has used and was not charged yet.
    pub fn uncharged(&self, now: u64) -> u64 {
        match self.time.since.load(Ordering::Relaxed) {
            0 => 0,
            since => now.saturating_sub(since),
        }
    }

    /// Ticks that it has used up to now.
    pub fn cpu_ticks(&self) -> u64 {
        self.time.cpu.load(Ordering::Relaxed) + self.uncharged(Machine::now())
    }

    /// Wakes the worker now, or ends its next sleep at once.
    pub fn wake(&self) {
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

    /// Sends the worker a user interrupt that says that completions have come; `false` if it has no handler.
    pub fn interrupt_for_completions(&self) -> bool {
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

    /// Sends the worker the user interrupts of these bits: shows them to its handler, and wakes or interrupts it. Without a
    /// handler they wait for one.
    pub fn raise(&self, bits: u64) {
        self.process.shared.add_interrupts(self.index(), bits);
        if self.interrupt_in_hardware() {
            return;
        }
        self.line.set_pending();
        // Pending was set before the look at the parking place, and who parks looks in the other order under the same lock.
        if !self.wake_if_parked(self.process.standing.worth(self.process.default_priority)) {
            self.call_back();
        }
    }

    /// Interrupts a worker that runs on another hart without calling it back; `false` if it does not, or has no guest
    /// interrupt file. If it leaves the hart at this moment, the interrupt stays in the file, and the file is watched.
    fn interrupt_in_hardware(&self) -> bool {
        let hart = self.hart.load(Ordering::Relaxed);
        self.process.space.kind() == SpaceKind::Virtualised
            && hart != NOWHERE
            && hart != Machine::hart()
            && self.line.notify_through_file()
    }

    /// Something has come in the worker's guest interrupt file while it does not run: wakes it if it sleeps, now or when it
    /// is about to.
    pub fn wake_for_interrupt(&self) {
        // What its handler will wake is not known yet. Who is more important already, because it starves or is to end, stays so.
        let (cid, own) = (Cid::from_raw(self.cid.load(Ordering::Acquire)), self.own_priority());
        if executor::priority(cid).is_some_and(|now| own.is_more_important_than(now)) {
            executor::set_priority(cid, own);
        }
        self.wake();
    }

    /// Calls the worker back from user mode on another hart.
    fn call_back(&self) {
        // What the worker is to see was stored before; it stores its hart before it looks. With a fence on both sides
        // at least one of the two sees the other's store.
        fence(Ordering::SeqCst);
        let hart = self.hart.load(Ordering::Relaxed);
        if hart != NOWHERE && hart != Machine::hart() {
            counters::count(Counter::HartInterrupts);
            Machine::send_ipi(hart);
        }
    }

    /// Wakes the worker if it sleeps, giving its coroutine this priority; `false` if it does not sleep.
    pub fn wake_if_parked(&self, priority: Priority) -> bool {
        let Some(waker) = self.parking.lock().sleeper.take() else { return false };
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), priority);
        waker.wake();
        true
    }

    /// Sleeps until something happened that the worker does not know: completions beyond `seen`, a wake-up by another
    /// worker; or until `deadline` (ticks).
    ///
    /// # Cancellation
    /// Dropping it leaves the worker awake; nothing is lost.
    async fn park(&self, seen: u64, deadline: Option<u64>) -> Result<usize, Errno> {
        let mut alarm = None;
        let result = poll_fn(|cx| {
            if self.is_to_stop() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            // The program has made room in the ring; what waited for that is news too.
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
                // Woken by somebody who took the waker out.
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

/// What a visit to user mode ended with.
enum Pause {
    /// Something at least as important is ready.
    GiveWay,
    /// A call must wait.
    Wait(crate::operation::Operation),
    /// The worker has nothing to run.
    Park { seen: u64, deadline: Option<u64> },
    /// The process asks for another program.
    Execute(Box<crate::program::Plan>),
    /// The worker is to have a kernel thread.
    MoveToThread,
    /// The worker leaves.
    Leave,
}

/// The switching coroutine of a worker.
async fn run(worker: Arc<Worker>, mut context: Box<UserContext>) {
    // Before the coroutine can wait for anything, so that whoever must wake it knows whom.
    worker.cid.store(executor::current().raw(), Ordering::Release);
    loop {
        let pause = visit(&worker, &mut context);
        crate::ring::leave_to_handler(&worker);
        // From now on, and until the process publishes something else, it is as important as it says.
        if !matches!(pause, Pause::GiveWay) {
            // Who waits for something does not starve any more.
            worker.time.credit.store(0, Ordering::Relaxed);
        }
        executor::set_priority(executor::current(), worker.priority());
        match pause {
            Pause::Leave => break,
            Pause::GiveWay => executor::yield_now().await,
            Pause::Wait(operation) => {
                let result = operation.wait(&worker.process, || worker.is_to_stop()).await;
                context.set_result(errno::encode(result) as u64);
            }
            Pause::Park { seen, deadline } => {
                let result = worker.park(seen, deadline).await;
                context.set_result(errno::encode(result) as u64);
                // Nothing has waited if there was news, and what was made ready meanwhile may be more important.
                if worker.is_outranked() {
                    executor::yield_now().await;
                }
            }
            Pause::Execute(plan) => execute(&worker, &mut context, &plan).await,
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
    leave(&worker, context);
}

/// Replaces the program, when all others have left.
async fn execute(worker: &Arc<Worker>, context: &mut Box<UserContext>, plan: &crate::program::Plan) {
    // Asked again each time: a worker that was about to leave may have added another, or have submitted a call.
    let is_alone = poll_fn(|cx| match worker.process.keep_only(worker) {
        false => Poll::Ready(false),
        true if worker.process.poll_alone(cx.waker()) => Poll::Ready(true),
        true => Poll::Pending,
    })
    .await;
    if !is_alone {
        // The next look says so too, and this worker leaves.
        return;
    }
    worker.process.forget_others(worker);
    interrupts::give_up(worker);
    worker.process.kernel_side.reset();
    worker.start_afresh();
    match plan.carry_out(&worker.process) {
        Ok(fresh) => **context = fresh,
        Err(error) => {
            // The old program is gone; there is nobody to tell.
            println!("[{}] execve failed after the point of no return: {}", worker.process.id, error);
            worker.process.end(Ending::Killed(abi_unix::types::signal::KILL as u8));
        }
    }
}

/// A worker's last steps.
fn leave(worker: &Arc<Worker>, context: Box<UserContext>) {
    drop(context);
    if !worker.process.has_ended() {
        thread::depart(worker);
    }
    interrupts::give_up(worker);
    worker.process.worker_is_gone(worker);
}

/// Lets a worker go on on a kernel thread, in the place of its coroutine; gives the registers back if there is no memory.
fn move_to_thread(worker: &Arc<Worker>, context: Box<UserContext>) -> Result<(), Box<UserContext>> {
    let Ok(stack) = Stack::new() else { return Err(context) };
    // Where the registers are while nobody can say who will have them.
    let between = Arc::new(Mutex::new(Some(context)));
    let (own, theirs) = (worker.clone(), between.clone());
    let thread = Thread::new(stack, move |current| {
        let context = theirs.lock().take();
        if let Some(context) = context {
            let side = own.process.kernel_side.side();
            run_on_thread(&own, context, current, side);
        }
    });
    match executor::try_spawn(worker.priority(), thread) {
        Ok(cid) => {
            worker.cid.store(cid.raw(), Ordering::Release);
            Ok(())
        }
        Err(SpawnError(_)) => match between.lock().take() {
            Some(context) => Err(context),
            // Nobody else has taken it: the thread never ran.
            None => Ok(()),
        },
    }
}

/// The same as [`run`], on the stack of a kernel thread: what must wait waits where it stands.
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
                    // Each try is a turn: who only waits must not be taken for somebody who starves.
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
                let result = current.block_on(operation.wait(&worker.process, || worker.is_to_stop()));
                context.set_result(errno::encode(result) as u64);
            }
            Pause::Park { seen, deadline } => {
                let result = current.block_on(worker.park(seen, deadline));
                context.set_result(errno::encode(result) as u64);
                if worker.is_outranked() {
                    current.block_on(executor::yield_now());
                }
            }
            Pause::Execute(plan) => current.block_on(execute(worker, &mut context, &plan)),
            // It has one.
            Pause::MoveToThread => {}
        }
    }
    leave(worker, context);
}

/// Runs user mode, and everything that can be done at once, until the coroutine has to pause.
fn visit(worker: &Arc<Worker>, context: &mut UserContext) -> Pause {
    let process = &worker.process;
    let hart = Machine::hart();
    let start = time::start_slice();
    snapshot::runs_here(process.id);
    trace::of_worker(Kind::UserBegins, worker, executor::current_priority().number().into(), 0);
    worker.time.since.store(start, Ordering::Relaxed);
    worker.count_turn();
    counters::count(Counter::Switches);
    executor::set_visiting(hart, true);
    worker.hart.store(hart, Ordering::Relaxed);
    // Pairs with the fence in `interrupt`: either that sees the hart and sends, or the look below sees what it is about.
    fence(Ordering::SeqCst);
    let is_virtualised = process.space.kind() == SpaceKind::Virtualised;
    if is_virtualised {
        interrupts::arrive(worker, context, hart);
    }
    let mut graces = 0;
    let pause = loop {
        if worker.line.is_pending() {
            worker.line.deliver(process, context);
        }
        if worker.is_to_stop() {
            break Pause::Leave;
        }
        process.post_waiting_completions();
        if scheduling::strictness_matters() {
            shared::publish(executor::waiting());
        }
        let trap = process.space.enter(context);
        if trace::is_on() {
            trace_trap(worker, trap, context);
        }
        if trap != Trap::SystemCall {
            counters::count(Counter::Traps);
        }
        match trap {
            Trap::SystemCall => match call::dispatch(worker, context) {
                Outcome::Done(value) => {
                    context.set_result(value as u64);
                    // What the process claims may have changed since it was entered.
                    if worker.is_outranked() {
                        break Pause::GiveWay;
                    }
                }
                Outcome::Unchanged => {}
                Outcome::Wait(operation) => {
                    if !worker.is_thread() {
                        process.share_what_is_ready(worker);
                    }
                    break Pause::Wait(operation);
                }
                Outcome::Park { seen, deadline } => break Pause::Park { seen, deadline },
                Outcome::Execute(plan) => break Pause::Execute(plan),
                Outcome::GiveWay => {
                    context.set_result(0);
                    break Pause::GiveWay;
                }
                Outcome::MoveToThread => {
                    context.set_result(0);
                    break Pause::MoveToThread;
                }
                Outcome::Leave => {
                    worker.stopped.store(true, Ordering::Release);
                    break Pause::Leave;
                }
            },
            Trap::Interrupt => {
                let pending = crate::on_interrupt();
                if pending.timer && !pending.ipi && !pending.guest {
                    counters::count(Counter::TimerTraps);
                }
                let now = Machine::now();
                worker.charge(now, now);
                if pending.timer && !worker.is_thread() {
                    process.remind(worker);
                    process.share_what_is_ready(worker);
                }
                if pending.timer && worker.line.has_handler() && process.shared.is_outranked_within(worker.index()) {
                    // Its handler may put what it runs aside for something more important in the process.
                    worker.line.set_pending();
                }
                if time::slice_has_ended()
                    || executor::is_anything_ready() && executor::is_ready_at_least(worker.priority())
                {
                    // The scheduler's short critical sections lie in its image. A worker that is interrupted in there gets
                    // a moment to come out, so that the others need not wait for it; a bounded number of times, since
                    // anybody can jump there.
                    if graces < MAXIMUM_GRACES && shared::is_in_image(context.pc as usize) {
                        graces += 1;
                        time::extend_slice();
                    } else if is_virtualised && !executor::is_anything_ready() && interrupts::has_file(worker) {
                        // Nobody wants the hart, and on another one its interrupt file would have to change.
                        time::start_slice();
                    } else {
                        break Pause::GiveWay;
                    }
                }
            }
            Trap::PageFault { address, access } => {
                match process.space.fault(address as usize, access) {
                    Ok(()) => counters::count(Counter::PageFaults),
                    Err(usermode::Fault::OutOfMemory) => {
                        // The process that has most goes, whoever asks; what asked tries again after that.
                        process::end_largest();
                        if !process.has_ended() {
                            break Pause::GiveWay;
                        }
                    }
                    Err(_) if access == Access::Write && interrupts::store_to_page(process, context, address) => {}
                    Err(_) => fault(process, context, "segmentation fault", abi_unix::types::signal::SEGV, trap),
                }
            }
            Trap::AccessFault { .. } => fault(process, context, "bus error", abi_unix::types::signal::BUS, trap),
            Trap::Misaligned { .. } => fault(process, context, "misaligned access", abi_unix::types::signal::BUS, trap),
            Trap::IllegalInstruction { .. } if interrupts::claim_without_file(worker, context, trap) => {}
            Trap::IllegalInstruction { .. } => {
                fault(process, context, "illegal instruction", abi_unix::types::signal::ILL, trap)
            }
            Trap::Breakpoint => fault(process, context, "breakpoint", abi_unix::types::signal::TRAP, trap),
            Trap::Other { .. } => fault(process, context, "unknown trap", abi_unix::types::signal::KILL, trap),
        }
    };
    worker.hart.store(NOWHERE, Ordering::Relaxed);
    executor::set_visiting(hart, false);
    if is_virtualised {
        interrupts::depart(worker, context, hart, matches!(pause, Pause::GiveWay));
    }
    time::stop_slice();
    worker.charge(Machine::now(), 0);
    snapshot::runs_here(0);
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

#[cold]
fn trace_trap(worker: &Worker, trap: Trap, context: &UserContext) {
    let (cause, number) = match trap {
        Trap::SystemCall => (Cause::Call, context.call_number() & abi_unix::call::NUMBER_MASK as u64),
        Trap::Interrupt => (Cause::Interrupt, 0),
        _ => (Cause::Fault, 0),
    };
    trace::of_worker(Kind::Trap, worker, cause as u64, number);
}

/// Ends a process for what it did, and says so in the log.
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
    match detail {
        Some((verb, address)) => println!(
            "[{}] killed: {what}: {verb} {address:#x} at pc {:#x}, ra {:#x}, sp {:#x}",
            process.id,
            context.pc,
            context.register(1),
            context.stack()
        ),
        None => println!(
            "[{}] killed: {what} at pc {:#x}, ra {:#x}, sp {:#x} ({trap:?})",
            process.id,
            context.pc,
            context.register(1),
            context.stack()
        ),
    }
    process.end(Ending::Killed(signal as u8));
}
