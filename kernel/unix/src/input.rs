//! Asynchronous calls that wait for input of a pipe or a socket, which is what a server's calls do.
//!
//! Such a call is no coroutine, only an object ([`InputCall`]) whose waker stands in the pipe's or socket's list. When that is
//! woken the call enters the list of those that can go on, and one coroutine of the process, the *finisher*, tries it again:
//! all that a coroutine of its own would do, without being made, scheduled and taken apart for each message. What the finisher has
//! finished it posts together, and wakes one worker for all (decision 022).
//!
//! # How important it is
//!
//! The list is ordered by the calls' priorities, and the finisher is as important as the first of them: whoever enters a
//! more important one raises it, and before each further call it looks whether something more important than that call is
//! ready on this hart, and if so takes the call's priority and lets go of the hart. What it has done it posts before it tries
//! something less important. Equals come in their order. After a bounded amount of work it lets equals of other processes have
//! their turn, and interrupts be seen. Its time is charged to the process.
//!
//! A call that has been in the list for as long as the starvation bound has the finisher run before everybody else,
//! and is the first that it takes.
//!
//! # The end
//!
//! A process that has ended is left to its finisher ([`leave`]): that is as important as can be then, tells each call in turns
//! like any others that it is over, and takes the last step of the process itself.
//!
//! # Who locks what
//!
//! The list's lock is taken by wakers, under the locks of pipes and sockets, and nothing but the executor's is taken below it.
//! A call's operation is locked by the finisher alone, without the list's lock; the link to the next one under the list's.

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use abi_queue::{Completion, Priority};
use abi_unix::{Errno, errno};
use heapless::Vec as FixedVec;
use spin::Mutex;

use crate::executor::{self, Cid, SpawnError};
use crate::operation::Operation;
use crate::process::Process;
use crate::scheduling;

/// Calls that are tried before others get their turn.
const BATCH: usize = 32;
/// Bytes that are moved before others get their turn.
const STEP: usize = 64 * 1024;

/// A call that waits for input.
pub struct InputCall {
    process: Arc<Process>,
    /// `None` once the call is done.
    operation: Mutex<Option<Operation>>,
    /// The key under which the process knows the call.
    key: u64,
    token: u64,
    cid: u64,
    priority: Priority,
    /// It is in the list. Changed under the list's lock.
    queued: AtomicBool,
    /// It is in the list and counts as one that has waited for too long. Written under the list's lock.
    starving: AtomicBool,
    /// It is done. Who wakes it may come late, when its process has ended and nobody looks at the list any more: so it never enters
    /// the list again.
    done: AtomicBool,
    /// The next one of its priority in the list.
    next: Mutex<Option<Arc<InputCall>>>,
}

impl Wake for InputCall {
    fn wake(self: Arc<InputCall>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<InputCall>) {
        self.process.input_calls.push(self);
    }
}

impl InputCall {
    /// Whether it can go on and has not had its turn.
    pub fn is_ready(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
    }

    /// Has it tried before everything else, because it has been ready for long.
    pub fn hasten(&self) {
        self.process.input_calls.hasten(self);
    }

    /// Waits for input. If there is some already the call is entered in the list at once.
    fn wait(self: &Arc<InputCall>, operation: &Operation) {
        let waker = Waker::from(self.clone());
        if !operation.waits_for_input_of().is_some_and(|file| file.register_for_input(&waker)) {
            waker.wake();
        }
    }

    /// Tries the call again; if it is done its result, and how many bytes it moved.
    #[inline]
    fn attempt(self: &Arc<InputCall>, process: &Arc<Process>) -> Option<(Result<usize, Errno>, usize)> {
        let mut slot = self.operation.lock();
        let operation = slot.as_mut()?;
        let moves = !matches!(operation, Operation::Accept { .. });
        let result = if process.has_ended() || process.call_is_cancelled(self.key) {
            operation.forget(&Waker::from(self.clone()));
            operation.give_up(Errno::ECANCELED)
        } else {
            let mut tried = operation.poll(process, None);
            if tried.is_pending() {
                // Mostly it is done, so the waker is made only now.
                tried = operation.poll(process, Some(&Waker::from(self.clone())));
            }
            match tried {
                // Whoever made it ready has taken the waker out.
                Poll::Ready(result) => result,
                Poll::Pending => return None,
            }
        };
        *slot = None;
        // Before whoever tried it looks at the list again: what is entered up to then is taken out.
        self.done.store(true, Ordering::Release);
        Some((result, if moves { result.unwrap_or(STEP / BATCH) } else { 0 }))
    }
}

/// Calls of one priority that can go on, in their order.
#[derive(Default)]
struct Level {
    first: Option<Arc<InputCall>>,
    last: Option<Arc<InputCall>>,
    /// How many of them have waited for too long.
    starving: usize,
}

#[derive(Default)]
struct List {
    /// As many as the least important call so far needed.
    levels: Vec<Level>,
    /// The bits of priorities whose levels are not empty.
    ready: u64,
    /// The bits of those in which some have waited for too long.
    starving: u64,
    /// The process has ended, and goes when all its calls are done: nothing of it waits for others any more.
    is_last: bool,
    /// The finisher has been woken, and looks at the list until it is empty.
    awake: bool,
    /// The priority that the finisher was given last.
    priority: Priority,
}

impl List {
    /// Makes sure that the finisher looks, no later than something of this priority has its turn.
    fn rouse(&mut self, finisher: Cid, priority: Priority) {
        let priority = if self.is_last { Priority::HIGHEST } else { priority };
        if !self.awake || priority.is_more_important_than(self.priority) {
            self.follow(finisher, priority);
            self.awake = true;
            // By its waker, so that it runs on the hart that the input came to.
            executor::waker(finisher).wake();
        }
    }

    fn follow(&mut self, finisher: Cid, priority: Priority) {
        if self.priority != priority {
            self.priority = priority;
            executor::set_priority(finisher, priority);
        }
    }

    fn pop(&mut self, bit: u64) -> Option<Arc<InputCall>> {
        let level = self.levels.get_mut(bit.trailing_zeros() as usize)?;
        let call = level.first.take()?;
        level.first = call.next.lock().take();
        if level.first.is_none() {
            level.last = None;
            self.ready &= !bit;
        }
        // Before the operation is tried: what comes after that enters the call again.
        call.queued.store(false, Ordering::Relaxed);
        if call.starving.swap(false, Ordering::Relaxed) {
            level.starving -= 1;
            if level.starving == 0 {
                self.starving &= !bit;
            }
        }
        Some(call)
    }
}

/// What the finisher does next.
enum Next {
    Call(Arc<InputCall>),
    /// It posts what it has done, since the next call is less important than that.
    Post,
    /// It lets others have their turn first.
    Later,
    /// It sleeps until a call can go on.
    Nothing,
}

/// A process's calls that wait for input.
#[derive(Default)]
pub struct InputCalls {
    list: Mutex<List>,
    /// How many levels the list has; 0 before there is a finisher.
    levels: AtomicUsize,
    /// The finisher's cid, once there is one.
    finisher: AtomicU64,
    /// Calls that are not done.
    count: AtomicUsize,
}

impl InputCalls {
    fn finisher(&self) -> Cid {
        Cid::from_raw(self.finisher.load(Ordering::Relaxed))
    }

    /// Makes sure that there is a finisher, and a level for calls of this priority. Under the lock of the process's calls.
    #[cold]
    fn make_room(&self, process: &Arc<Process>, priority: Priority) -> Result<(), Errno> {
        let count = usize::from(priority.number()) + 1;
        let mut list = self.list.lock();
        let more = count - list.levels.len();
        list.levels.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
        if list.levels.is_empty() {
            let finisher = executor::try_spawn_blocked(list.priority, Finisher { process: process.clone() });
            let finisher = finisher.map_err(|SpawnError(_)| Errno::ENOMEM)?;
            self.finisher.store(finisher.raw(), Ordering::Relaxed);
        }
        list.levels.resize_with(count, Level::default);
        self.levels.store(count, Ordering::Relaxed);
        Ok(())
    }

    fn push(&self, call: &Arc<InputCall>) {
        let mut list = self.list.lock();
        // Relaxed: the lock orders them.
        if call.done.load(Ordering::Relaxed) || call.queued.load(Ordering::Relaxed) {
            return;
        }
        // There has been a level for it since it began.
        let Some(level) = list.levels.get_mut(usize::from(call.priority.number())) else { return };
        match level.last.replace(call.clone()) {
            Some(last) => *last.next.lock() = Some(call.clone()),
            None => level.first = Some(call.clone()),
        }
        call.queued.store(true, Ordering::Relaxed);
        list.ready |= call.priority.bit();
        list.rouse(self.finisher(), call.priority);
    }

    fn hasten(&self, call: &InputCall) {
        let mut list = self.list.lock();
        if !call.queued.load(Ordering::Relaxed) || call.starving.swap(true, Ordering::Relaxed) {
            return;
        }
        list.starving |= call.priority.bit();
        if let Some(level) = list.levels.get_mut(usize::from(call.priority.number())) {
            level.starving += 1;
        }
        list.rouse(self.finisher(), Priority::HIGHEST);
    }

    /// What the finisher does next, after calls of which the most important had the priority `done`. The first call that it is
    /// polled for it takes in any case: it would not have been polled if something else were more important.
    fn next(&self, is_first: bool, is_enough: bool, done: Option<Priority>) -> Next {
        let mut list = self.list.lock();
        // Those that starve are among those that are ready.
        let Some(most_important) = Priority::most_important_in(list.ready) else {
            list.awake = false;
            return Next::Nothing;
        };
        let starves = list.starving != 0;
        let levels = if starves { list.starving } else { list.ready };
        let priority = if starves || list.is_last { Priority::HIGHEST } else { most_important };
        if !is_first && (is_enough || executor::is_ready_above(priority)) {
            list.follow(self.finisher(), priority);
            return Next::Later;
        }
        let bit = levels & levels.wrapping_neg();
        if done.is_some_and(|done| done.bit() < bit) {
            return Next::Post;
        }
        list.pop(bit).map_or(Next::Later, Next::Call)
    }

    /// Whether the process has ended and all its calls are done.
    fn are_over(&self) -> bool {
        self.list.lock().is_last && self.count.load(Ordering::Relaxed) == 0
    }
}

/// Leaves an operation that has just been attempted to the process's finisher. Called under the lock of the process's calls,
/// so that whoever cancels the call or ends the process comes before or after all of it; pipes and sockets do nothing with
/// their locks held that would need that one. The operation comes back if there is no memory for a finisher; for the call
/// itself there is, as whoever makes calls has required.
pub fn begin(
    process: &Arc<Process>,
    operation: Operation,
    key: u64,
    token: u64,
    cid: u64,
    priority: Priority,
) -> Result<Arc<InputCall>, Operation> {
    let calls = &process.input_calls;
    if usize::from(priority.number()) >= calls.levels.load(Ordering::Relaxed)
        && calls.make_room(process, priority).is_err()
    {
        return Err(operation);
    }
    calls.count.fetch_add(1, Ordering::Relaxed);
    // The operation comes in later: all together would be built elsewhere, and copied.
    let call = Arc::new(InputCall {
        process: process.clone(),
        operation: Mutex::new(None),
        key,
        token,
        cid,
        priority,
        queued: AtomicBool::new(false),
        done: AtomicBool::new(false),
        starving: AtomicBool::new(false),
        next: Mutex::new(None),
    });
    call.wait(call.operation.lock().insert(operation));
    Ok(call)
}

/// The coroutine that goes on with a process's calls when their input has come, until the process has ended.
struct Finisher {
    process: Arc<Process>,
}

impl Future for Finisher {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match scheduling::charging(&self.process, || try_some(&self.process)) {
            Progress::MoreLater => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Progress::NoneReady if self.process.input_calls.are_over() => {
                self.process.go();
                Poll::Ready(())
            }
            Progress::NoneReady => Poll::Pending,
        }
    }
}

/// What a turn of the finisher has left.
enum Progress {
    MoreLater,
    NoneReady,
}

/// Tries calls that can go on, until others should have their turn.
fn try_some(process: &Arc<Process>) -> Progress {
    let calls = &process.input_calls;
    let mut done = FixedVec::<(u64, Completion), BATCH>::new();
    let mut most_important = None;
    let (mut tries, mut moved) = (0, 0);
    loop {
        let next = calls.next(tries == 0, tries == BATCH || moved >= STEP, most_important);
        let Next::Call(call) = next else {
            if let Some(priority) = most_important.take() {
                process.complete_calls(&done, priority);
                calls.count.fetch_sub(done.len(), Ordering::Relaxed);
                done.clear();
            }
            match next {
                Next::Later => return Progress::MoreLater,
                Next::Nothing => return Progress::NoneReady,
                Next::Post | Next::Call(_) => continue,
            }
        };
        tries += 1;
        let Some((result, bytes)) = call.attempt(process) else { continue };
        moved += bytes;
        let completion = Completion { token: call.token, cid: call.cid, result: errno::encode(result) as u64 };
        // There is room: no more are tried.
        let _ = done.push((call.key, completion));
        most_important =
            most_important.filter(|&done| !call.priority.is_more_important_than(done)).or(Some(call.priority));
    }
}

/// Leaves a process that has ended, and whose calls were woken, to its finisher: when all of them are done, so that ports and
/// memory are free before anybody sees that it has ended, it [goes](Process::go). `false` if there is no finisher.
pub fn leave(process: &Process) -> bool {
    let calls = &process.input_calls;
    let mut list = calls.list.lock();
    if list.levels.is_empty() {
        return false;
    }
    list.is_last = true;
    // Also if it was awake: whatever it saw last was before this.
    list.awake = false;
    list.rouse(calls.finisher(), Priority::HIGHEST);
    true
}
