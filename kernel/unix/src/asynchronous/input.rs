//! Asynchronous calls that wait for input of a pipe or a socket, as a server's calls do.
//!
//! Such a call is not a coroutine but an object ([`InputCall`]) whose waker is registered with the pipe or socket. When
//! the waker is woken, the call enters the list of ready calls, and one coroutine of the process, the *completer*,
//! tries it again: it does the work of a coroutine for each call, without making, scheduling and taking one apart for
//! each message. The completer posts the calls that it has finished together, and wakes one worker for all (decision
//! 022).
//!
//! # Priority of the completer
//!
//! The list (`ready_calls`) is ordered by the calls' priorities, and the completer is as important as the first of
//! them: a waker that enters a more important call raises it. Before each further call the completer looks whether
//! something more important than that call is ready on this hart, and if so takes the call's priority and leaves the
//! hart. It posts finished calls before it tries something less important. Equals come in their order. After a bounded
//! amount of work it lets equals of other processes have their turn, and looks for interrupts. Its time is charged to
//! the process.
//!
//! A call that has been in the list for as long as the starvation bound makes the completer run before everything else,
//! and is the first that it takes. The watchdog of the bound looks at calls when something has been ready for long. The
//! completer's priority shows this only for the most important call in the list; so the watchdog is told when there are
//! others behind that.
//!
//! # The end
//!
//! A process that has ended is handed over to its completer ([`hand_over`]): that has the greatest importance then,
//! ends each call in turns of the usual length, and wakes the last worker of the process, which takes the last steps.
//!
//! # Locks
//!
//! The list's lock is taken by wakers, under the locks of pipes and sockets, and nothing but the executor's and
//! memory's is taken below it. A call's operation is locked by the completer, without the list's lock, and by the
//! caller that begins the call, before another hart can find it, so that neither waits for the other; a caller that
//! cancels the call tries it. `end_early` takes the list's lock below it. The link to the next call is changed under
//! the list's.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use abi_queue::{Completion, Priority};
use abi_unix::Errno;
use heapless::Vec as FixedVec;
use spin::Mutex;

use crate::asynchronous::operation::Operation;
use crate::asynchronous::ready_calls::{Next, Ordered, QueuePlace, Rank, ReadyCalls, Tell};
use crate::asynchronous::submission::Submitted;
use crate::observing::latency;
use crate::process::Process;
use crate::scheduling::executor::{self, Cid, SpawnError};
use crate::scheduling::standing::Standing;
use crate::scheduling::stretch;

/// Number of calls that are tried before others get their turn.
const BATCH: usize = 32;
/// Number of bytes that are moved before others get their turn.
const STEP: usize = 64 * 1024;

/// Set if, since the watchdog's last look, a call was ready behind a more important one of the same process. Then the
/// completer shows the executor the other's priority, which does not tell how long this call waits.
static SOME_ARE_HIDDEN: AtomicBool = AtomicBool::new(false);

/// Returns whether calls may starve although no ready coroutine has their priority.
pub(crate) fn some_may_starve_unseen() -> bool {
    SOME_ARE_HIDDEN.swap(false, Ordering::Relaxed)
}

/// A call that waits for input.
#[doc(alias = "io_async_wake")]
pub(crate) struct InputCall {
    process: Arc<Process>,
    /// `None` once the call is done.
    operation: Mutex<Option<Operation>>,
    call: Submitted,
    /// Its place in the list of ready calls.
    place: QueuePlace<InputCall>,
    /// Set when it is done. A wake-up may come late, when its process has ended and its list is not looked at any more:
    /// so a call that is done never enters the list again.
    done: AtomicBool,
    /// Arrival of the frame that made it ready, if latency is measured.
    arrived: AtomicU64,
}

impl Ordered for InputCall {
    fn place(&self) -> &QueuePlace<InputCall> {
        &self.place
    }

    fn priority(&self) -> Priority {
        self.call.priority()
    }
}

impl Wake for InputCall {
    fn wake(self: Arc<InputCall>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<InputCall>) {
        if latency::is_on() {
            self.arrived.store(latency::arrival(), Ordering::Relaxed);
        }
        self.process.input_calls.push(self);
    }
}

impl InputCall {
    /// Returns whether it is ready and has not had its turn.
    pub(crate) fn is_ready(&self) -> bool {
        self.place.is_queued()
    }

    /// Makes the completer try it before everything else, because it has been ready for long.
    pub(crate) fn boost(&self) {
        self.process.input_calls.boost(self);
    }

    /// Waits for input. If there is some already, the call is entered in the list immediately.
    fn wait(self: &Arc<InputCall>, operation: &Operation) {
        let waker = Waker::from(self.clone());
        if !operation
            .waits_for_input_of()
            .is_some_and(|file| file.object().register_for_input(&*self.process, self.call.priority(), &waker))
        {
            waker.wake();
        }
    }

    /// Ends the call early, in the time of the cancelling process; returns `false` if the completer has it, or will
    /// have it next, and must see that it was cancelled.
    ///
    /// If this were always left to the completer, which takes turns with all equals, a process that begins calls and
    /// drops them would have ever more of them, each with its buffer.
    fn end_early(self: &Arc<InputCall>) -> bool {
        let Some(mut slot) = self.operation.try_lock() else { return false };
        let Some(mut operation) = slot.take() else { return true };
        let calls = &self.process.input_calls;
        let is_queued = {
            let _list = calls.list.lock();
            // A call in the list stays there until its turn, and goes on counting as a call in flight.
            let is_queued = self.place.is_queued();
            // Under the list's lock: the call is not entered from here on.
            self.done.store(!is_queued, Ordering::Release);
            is_queued
        };
        if is_queued {
            *slot = Some(operation);
            return false;
        }
        drop(slot);
        operation.forget(&Waker::from(self.clone()));
        let result = operation.give_up(Errno::ECANCELED);
        self.call.complete(&self.process, &mut operation, result);
        calls.count_one_less();
        true
    }

    /// Tries the call again; if it is done, returns its result and the number of bytes it moved.
    #[inline]
    fn attempt(self: &Arc<InputCall>, process: &Arc<Process>) -> Option<(Result<usize, Errno>, usize)> {
        let mut slot = self.operation.lock();
        let operation = slot.as_mut()?;
        let moves = !matches!(operation, Operation::Accept { .. });
        let result = if self.call.is_given_up(process, operation) {
            operation.forget(&Waker::from(self.clone()));
            operation.give_up(Errno::ECANCELED)
        } else {
            let mut tried = operation.poll(process, None);
            if tried.is_pending() {
                // Mostly it is done, so the waker is made only now.
                tried = operation.poll(process, Some(&Waker::from(self.clone())));
                // It has registered at the completer's priority, which may be more or less important than the call's.
                if tried.is_pending()
                    && let Some(file) = operation.waits_for_input_of()
                {
                    file.object().set_reader(&**process, self.call.priority());
                }
            }
            match tried {
                // The wake-up that made it ready has taken the waker out.
                Poll::Ready(Err(Errno::ENOMEM)) => operation.give_up(Errno::ENOMEM),
                Poll::Ready(result) => result,
                Poll::Pending => return None,
            }
        };
        if latency::is_on()
            && let Some(file) = operation.waits_for_input_of()
            && let Some(request) = file.object().request()
        {
            request.begin(self.arrived.load(Ordering::Relaxed), self.call.priority());
        }
        *slot = None;
        // Before the completer looks at the list again: calls that are entered up to then are taken out.
        self.done.store(true, Ordering::Release);
        Some((result, if moves { result.unwrap_or(STEP / BATCH) } else { 0 }))
    }
}

/// Returns the present effective priority of a completer's rank beside other processes.
fn worth(standing: &Standing, rank: Rank) -> Priority {
    match rank {
        Rank::First => standing.limit(Priority::HIGHEST),
        Rank::Call(priority) => standing.worth(priority),
    }
}

/// Calls of a process that wait for input.
#[doc(alias = "io_wq")]
#[doc(alias = "task_work")]
#[derive(Default)]
pub(crate) struct InputCalls {
    list: Mutex<ReadyCalls<InputCall>>,
    /// Number of levels of the list; 0 before there is a completer.
    levels: AtomicUsize,
    /// The completer's cid, once there is one.
    completer: AtomicU64,
    /// Number of calls that are not done.
    count: AtomicUsize,
}

impl InputCalls {
    /// Returns the completer, once there is one.
    pub(crate) fn completer(&self) -> Cid {
        Cid::from_raw(self.completer.load(Ordering::Relaxed))
    }

    /// Passes an instruction of the list to the completer, under the list's lock.
    fn tell(&self, process: &Process, tell: Tell) {
        let completer = self.completer();
        match tell {
            Tell::Nothing => return,
            Tell::Wake => {}
            Tell::WakeAt(rank) => executor::set_priority(completer, worth(&process.standing, rank)),
        }
        // By its waker, so that it runs on the hart to which the input came.
        executor::waker(completer).wake();
    }

    /// Makes a completer if there is none, and a level for calls of this priority. Under the lock of the process's
    /// calls.
    #[cold]
    fn make_room(&self, process: &Arc<Process>, priority: Priority) -> Result<(), Errno> {
        let mut list = self.list.lock();
        list.reserve(priority).map_err(|_| Errno::ENOMEM)?;
        if list.is_new() {
            let (own, future) = (process.clone(), Completer { process: process.clone() });
            let completer = executor::spawn_blocked_for(own, worth(&process.standing, list.rank()), future);
            let completer = completer.map_err(|SpawnError(_)| Errno::ENOMEM)?;
            self.completer.store(completer.raw(), Ordering::Relaxed);
        }
        self.levels.store(list.make_room(priority), Ordering::Relaxed);
        Ok(())
    }

    fn push(&self, call: &Arc<InputCall>) {
        let mut list = self.list.lock();
        // Relaxed: the lock orders the accesses.
        if !call.done.load(Ordering::Relaxed) {
            self.tell(&call.process, list.push(call));
            if list.some_are_hidden() {
                SOME_ARE_HIDDEN.store(true, Ordering::Relaxed);
            }
        }
    }

    fn boost(&self, call: &InputCall) {
        let mut list = self.list.lock();
        self.tell(&call.process, list.boost(call));
    }

    /// Returns the completer's next action, after calls of which the most important had the priority `done`.
    fn next(&self, process: &Process, turn_is_over: bool, done: Option<Priority>) -> Next<InputCall> {
        let mut list = self.list.lock();
        if list.some_are_hidden() {
            SOME_ARE_HIDDEN.store(true, Ordering::Relaxed);
        }
        let standing = &process.standing;
        let next = list.next(turn_is_over, done, |rank| executor::is_ready_above(worth(standing, rank)));
        if let Next::Later(Some(rank)) = next {
            executor::set_priority(self.completer(), worth(standing, rank));
        }
        next
    }

    /// Gives the completer the present effective priority of its calls.
    pub(crate) fn order_anew(&self, process: &Process) {
        let list = self.list.lock();
        if !list.is_new() {
            executor::set_priority(self.completer(), worth(&process.standing, list.rank()));
        }
    }

    /// Counts a call that was done without the completer, which waits for the last one if the process has ended.
    fn count_one_less(&self) {
        let list = self.list.lock();
        self.count.fetch_sub(1, Ordering::Relaxed);
        if list.is_last() {
            executor::wake(self.completer());
        }
    }

    /// Returns whether the process has ended and all its calls are done.
    pub(crate) fn are_over(&self) -> bool {
        self.list.lock().is_last() && self.count.load(Ordering::Relaxed) == 0
    }
}

/// Leaves an operation that has just been attempted to the process's completer. Called under the lock of the process's
/// calls, so that cancelling the call or ending the process comes before or after all of it; pipes and sockets do
/// nothing with their locks held that would need that one. Returns the operation if there is no memory for a completer;
/// the caller must have ensured that there is memory for the call itself.
pub(crate) fn begin(
    process: &Arc<Process>,
    operation: Operation,
    call: Submitted,
) -> Result<Arc<InputCall>, Operation> {
    let (calls, priority) = (&process.input_calls, call.priority());
    if usize::from(priority.number()) >= calls.levels.load(Ordering::Relaxed)
        && calls.make_room(process, priority).is_err()
    {
        return Err(operation);
    }
    calls.count.fetch_add(1, Ordering::Relaxed);
    // The operation is put in later: the whole object would be built elsewhere, and copied.
    let call = Arc::new(InputCall {
        process: process.clone(),
        operation: Mutex::new(None),
        call,
        place: QueuePlace::default(),
        done: AtomicBool::new(false),
        arrived: AtomicU64::new(0),
    });
    call.wait(call.operation.lock().insert(operation));
    Ok(call)
}

/// Ends a call that its process has cancelled: immediately, unless the completer is about to try it. Called without the
/// lock of the process's calls.
pub(crate) fn end_early(call: &Arc<InputCall>) {
    if !call.end_early() {
        call.wake_by_ref();
    }
}

/// The coroutine that goes on with a process's calls when their input has come, until the process has ended.
struct Completer {
    process: Arc<Process>,
}

impl Future for Completer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        stretch::goes_on_as(abi_unix::trace::stretch::COMPLETER);
        match try_some(&self.process) {
            Progress::MoreLater => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Progress::NoneReady if self.process.input_calls.are_over() => {
                self.process.completer_is_done();
                Poll::Ready(())
            }
            Progress::NoneReady => Poll::Pending,
        }
    }
}

/// Calls that a turn of the completer has left.
enum Progress {
    MoreLater,
    NoneReady,
}

/// Tries ready calls, until others should have their turn.
fn try_some(process: &Arc<Process>) -> Progress {
    let calls = &process.input_calls;
    let mut done = FixedVec::<(u64, Completion), BATCH>::new();
    let mut most_important = None;
    let (mut tries, mut moved) = (0, 0);
    loop {
        let next = calls.next(process, tries == BATCH || moved >= STEP, most_important);
        let Next::Call(call) = next else {
            if let Some(priority) = most_important.take() {
                process.complete_calls(&done, priority);
                calls.count.fetch_sub(done.len(), Ordering::Relaxed);
                done.clear();
            }
            match next {
                Next::Later(_) => return Progress::MoreLater,
                Next::Nothing => return Progress::NoneReady,
                Next::Post | Next::Call(_) => continue,
            }
        };
        tries += 1;
        let Some((result, bytes)) = call.attempt(process) else { continue };
        moved += bytes;
        // There is room: no more calls than this are tried.
        let _ = done.push(call.call.completion(result));
        most_important =
            most_important.filter(|&done| !call.priority().is_more_important_than(done)).or(Some(call.priority()));
    }
}

/// Hands the calls of a process that has ended, which were woken, over to its completer. When [all of them are
/// done](InputCalls::are_over) its last worker goes on, so that ports and memory are free before the end of the process
/// is visible. Returns `false` if there is no completer.
pub(crate) fn hand_over(process: &Process) -> bool {
    let calls = &process.input_calls;
    let mut list = calls.list.lock();
    if list.is_new() {
        return false;
    }
    calls.tell(process, list.everything_is_last());
    true
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::errno;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Program, run};

    const PIPES: usize = 4;

    fn reads(program: &mut Program, reader: usize, token: u64, priority: u8) {
        let place = program.place(8);
        let priority = Priority::new(priority).unwrap();
        assert_eq!(program.submit_at(priority, SystemCall::Read, [reader, place, 1], token), None);
    }

    fn tokens(program: &mut Program) -> Vec<u64> {
        program.completions().iter().map(|done| done.token).collect()
    }

    /// The more important call is completed first, although its input came last; equals in the order of their input.
    #[test]
    fn calls_that_are_ready_go_on_in_the_order_of_their_importance() {
        run(|program| {
            let pipes: Vec<_> = (0..4).map(|_| program.pipe(0)).collect();
            for (index, priority) in [40, 8, 40, 8].into_iter().enumerate() {
                reads(program, pipes[index].0, index as u64, priority);
            }
            for index in [2, 0, 3, 1] {
                program.write_to(pipes[index].1, b"x").unwrap();
            }
            program.sleep_ns(1_000_000);
            let order = tokens(program);
            // Each write may have let the completer run at once, which is more important than the program then.
            let position = |token| order.iter().position(|other| *other == token).unwrap();
            assert_eq!(order.len(), 4);
            assert!(position(3) < position(1) && position(2) < position(0), "{order:?}");
        });
    }

    /// Several calls wait for one pipe: each byte goes to one of them, and the end to all that are left.
    #[test]
    fn input_is_shared_by_its_waiters() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            for token in 0..6 {
                reads(program, reader, token, 20);
            }
            program.write_to(writer, b"ab").unwrap();
            program.sleep_ns(1_000_000);
            let done = program.completions();
            assert_eq!(done.len(), 2);
            assert!(done.iter().all(|done| done.result == 1));
            program.close(writer).unwrap();
            program.sleep_ns(1_000_000);
            let done = program.completions();
            assert_eq!(done.len(), 4);
            assert!(done.iter().all(|done| done.result == 0));
        });
    }

    /// More calls than one turn of the completer takes are all done in the end.
    #[test]
    fn more_than_a_turn_are_all_done() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let count = 5 * BATCH as u64 + 3;
            for token in 0..count {
                reads(program, reader, token, 20);
            }
            program.write_to(writer, &vec![1; count as usize]).unwrap();
            let mut done = Vec::new();
            while (done.len() as u64) < count {
                done.extend(program.await_completions().iter().map(|&(token, result)| {
                    assert_eq!(result, Ok(1));
                    token
                }));
            }
            done.sort();
            assert_eq!(done, (0..count).collect::<Vec<_>>());
            assert_eq!(program.process().input_calls.count.load(Ordering::Relaxed), 0);
        });
    }

    /// A call that is cancelled between its input and its turn is completed once, and the input stays if it was not
    /// taken.
    #[test]
    fn a_call_that_is_ready_can_still_be_cancelled() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            reads(program, reader, 1, 63);
            program.write_to(writer, b"x").unwrap();
            let cancelled = program.call(SystemCall::Cancel, [1]);
            program.sleep_ns(1_000_000);
            let done: Vec<_> = program.completions().iter().map(|done| done.result as usize).collect();
            if done == [1] {
                assert!(matches!(cancelled, Ok(0) | Err(Errno::ENOENT)));
            } else {
                assert_eq!((cancelled, done), (Ok(0), vec![errno::encode(Err(Errno::ECANCELED))]));
                assert_eq!(program.read_from(reader, 8), Ok(b"x".to_vec()));
            }
        });
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin(usize, u8),
        Write(usize, usize),
        Cancel(usize),
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..PIPES, 0..64u8).prop_map(|(pipe, priority)| Step::Begin(pipe, priority)),
            3 => (0..PIPES, 1..5usize).prop_map(|(pipe, count)| Step::Write(pipe, count)),
            2 => any::<usize>().prop_map(Step::Cancel),
            1 => Just(Step::Take),
        ]
    }

    /// Compares with a model, after any sequence of calls, cancellations and input: each call completes once, and calls
    /// wait only while their pipe is empty.
    fn compare(program: &mut Program, steps: &[Step]) {
        let pipes: Vec<_> = (0..PIPES).map(|_| program.pipe(0)).collect();
        let mut inside = [0usize; PIPES];
        let mut open: std::collections::BTreeMap<u64, usize> = Default::default();
        let place = program.place(8);
        let take =
            |program: &mut Program, inside: &mut [usize; PIPES], open: &mut std::collections::BTreeMap<u64, usize>| {
                for done in program.completions() {
                    let pipe = open.remove(&done.token).expect("each call completes once");
                    match errno::decode(done.result as usize) {
                        Ok(1) => inside[pipe] -= 1,
                        other => assert_eq!(other, Err(Errno::ECANCELED)),
                    }
                }
            };
        for (token, step) in (0u64..).zip(steps) {
            match *step {
                Step::Begin(pipe, priority) => {
                    let priority = Priority::new(priority).unwrap();
                    match program.submit_at(priority, SystemCall::Read, [pipes[pipe].0, place, 1], token) {
                        None => drop(open.insert(token, pipe)),
                        Some(result) => {
                            assert_eq!(result, Ok(1));
                            inside[pipe] -= 1;
                        }
                    }
                }
                Step::Write(pipe, count) => {
                    inside[pipe] += count;
                    program.write_to(pipes[pipe].1, &vec![1; count]).unwrap();
                }
                Step::Cancel(number) if !open.is_empty() => {
                    let token = *open.keys().nth(number % open.len()).unwrap();
                    let _ = program.call(SystemCall::Cancel, [token as usize]);
                }
                Step::Cancel(_) => {}
                Step::Take => {
                    program.sleep_ns(1_000_000);
                    take(program, &mut inside, &mut open);
                    for pipe in open.values() {
                        assert_eq!(inside[*pipe], 0, "a call waits beside input");
                    }
                }
            }
        }
        program.sleep_ns(1_000_000);
        take(program, &mut inside, &mut open);
        assert_eq!(program.process().input_calls.count.load(Ordering::Relaxed), open.len());
    }

    proptest! {
        #![proptest_config(property::cases(64))]

        #[test]
        fn calls_complete_once_and_wait_only_without_input(steps in prop::collection::vec(step(), 0..60)) {
            run(move |program| compare(program, &steps));
        }
    }
}
