//! Request rings: calls of a process without a trap, and the ring servers that take them.
//!
//! Each worker of a process can have a ring (`abi_queue::request` has the layout, the `ring` crate the algorithm).
//! Requests are taken in their order and *performed* like direct calls: decoded with the process's authority at that
//! moment, attempted in place, and continued like direct ones if they have to wait. Results of calls that were done in
//! place are posted in batches: one look at the completion ring's room, one index to store, one worker to wake.
//!
//! # Takers
//!
//! * The **ring server**, a kernel coroutine that lives as long as the ring. It is woken when the worker gives
//!   its hart up while there are requests (a call that waits, the tick), or by `ring_enter` with `RING_WAKE`, and then
//!   runs on an idle hart if there is one.
//! * The **worker itself**, when it has nothing more to run (`worker_wait`) or calls `ring_enter`: no switch to another
//!   coroutine, no message to another hart. On one hart this is the quickest way.
//!
//! Only one takes at a time, under the ring's lock. The server only tries the lock: its holder serves everything. The
//! worker waits for the lock, and the server, which looks at `attention` before each request, lets go at once. A taker
//! that has let go of the lock looks at the ring once more (with a fence, as in the `ring` crate), so that no request
//! falls between a taker that finds the lock taken and one that has just found the ring empty.
//!
//! # Priority
//!
//! A request is performed at its own priority, limited like every claim ([`scheduling`](crate::scheduling)): before
//! each one, the taker looks whether something more important is ready on this hart. If so, the server takes the
//! request's priority and leaves the hart. A worker in its turn could make each call directly, so it leaves requests to
//! the server only for something that is more important than the worker, too. Requests are taken in order, so an
//! important one may be behind unimportant ones; the `urgency` word tells this, and lends its priority to those before
//! it. It is a claim, limited like every other. The server's time is charged to the process, as its workers' is.
//!
//! # Back-pressure
//!
//! No more requests are taken than there is room for their results in the completion ring. If a process does not read
//! that ring, requests stay where they are, its request ring fills up, and the submitter has to wait. The room is
//! *promised* before requests are taken, so that direct calls that complete in between cannot take it away; if a
//! hostile process moves the indexes meanwhile, its completions wait in kernel memory that was reserved with the
//! promise.
//!
//! # Looks
//!
//! A ring may be full of long calls, and thousands of requests fit into it. So a batch ends after [`BATCH_NS`], too,
//! and there is a look for interrupts after each: by the executor's loop for the server, by [`steps`] for the others.
//! A worker at which an interrupt is pending leaves the rest to the server.
//!
//! # Work without a place
//!
//! A request whose work has begun, and which finds no room among the calls in flight (its token is in use, or a limit
//! or memory is used up), is completed nevertheless. The ring itself *holds* it: the server goes on with it, as the
//! coroutine of an asynchronous call would, and takes the next request after that. Other takers leave everything to
//! the server meanwhile, so that `cancel` does not find requests behind it.
//!
//! # The end
//!
//! A process that ends, or that executes another program, *closes* its rings first: no request is performed after that,
//! and the end waits for a taker that is about to perform one. The frames belong to the ring, not to the mapping: a
//! process that unmaps its ring, or maps something else there, only loses sight of it. Work that a ring holds is
//! dropped when the ring is closed.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{Ordering, fence};
use core::task::{Context, Poll, Waker};

use ::ring::Broken;
use abi_queue::pages::{PAGE_SIZE, REQUEST_RINGS_OFFSET};
use abi_queue::{Completion, MAXIMUM_WORKERS, Priority, Request, request};
use abi_unix::call::RING_WAKE;
use abi_unix::{Counter, Errno, errno};
use hal_api::Machine as _;
use heapless::Vec as FixedVec;
use platform::Machine;
use spin::MutexGuard;

use crate::asynchronous::ring_words::RequestView;
use crate::asynchronous::rings::{CLOSED, Ring, Taking, WAITING};
use crate::asynchronous::submission::{HeldCall, Submission};
use crate::calls::fetching;
use crate::observing::counters;
use crate::process::Process;
use crate::process::shared::map;
use crate::process::user::map_error;
use crate::process::worker::Worker;
use crate::scheduling::executor::{self, Cid};
use crate::scheduling::{steps, stretch};
use crate::{calls, time};

/// Number of requests that are taken before their results are posted.
const BATCH: usize = 64;
/// Time after which a batch ends: more than most batches take, and with one more request, which moves as much as a step
/// may, less than the longest time between two looks for interrupts.
const BATCH_NS: u64 = 25_000;

/// Outcome of taking requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There are no more, and `state` says that the process has to call.
    Asleep,
    /// There is no room for completions. The requests stay until the process has made room and calls.
    Stalled,
    /// A batch is done, and there are more.
    More,
    /// The next request is less important than something that is ready on this hart.
    Outranked(Priority),
    /// Another taker takes them now, or wants to.
    Elsewhere,
    /// The server goes on with work that a request has begun, before it takes the next one.
    Held,
    /// The ring is closed, or broken.
    Over,
}

/// The taker of requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The ring's server: lets go for everything more important.
    Server,
    /// A worker in a call: like the server, but goes on until nothing is left.
    Worker,
    /// Steps of a call that must have everything taken, whether there is room for the results or not. Each takes one
    /// batch.
    Thoroughly,
}

impl Ring<HeldCall> {
    fn lock(&self, by: By) -> Option<MutexGuard<'_, Taking<HeldCall>>> {
        // A taker that comes because of a request has seen it; with this fence, or with the one after the lock was let
        // go, one of the two sees the other.
        fence(Ordering::SeqCst);
        match by {
            By::Server => self.taker.try_lock(),
            By::Worker | By::Thoroughly => {
                // Quick: the holder stops after the request that it performs.
                self.attention.fetch_add(WAITING, Ordering::AcqRel);
                let taker = self.taker.lock();
                self.attention.fetch_sub(WAITING, Ordering::AcqRel);
                Some(taker)
            }
        }
    }

    /// Takes and performs requests. The server gives its waker, and goes on with work that the ring holds.
    fn serve(&self, worker: &Arc<Worker>, by: By, waker: Option<&Waker>) -> End {
        let enough = self.full_ring_from_now();
        loop {
            let Some(mut taker) = self.lock(by) else { return End::Elsewhere };
            let end = self.serve_locked(&mut taker, worker, by, waker);
            drop(taker);
            if self.attention.load(Ordering::Acquire) & CLOSED != 0 {
                worker.process.ring_has_closed();
                if by != By::Server {
                    // The server may have found the lock taken.
                    executor::wake(Cid::from_raw(self.server.load(Ordering::Acquire)));
                }
                return End::Over;
            }
            // Pairs with the fence in `lock`.
            fence(Ordering::SeqCst);
            let end = if end == End::Asleep && self.has_requests() { End::More } else { end };
            let goes_on = match by {
                By::Server | By::Thoroughly => false,
                By::Worker => !time::slice_has_ended() && !steps::has_interrupts() && !self.has_performed(enough),
            };
            if end != End::More || !goes_on {
                return end;
            }
        }
    }

    fn serve_locked(&self, taker: &mut Taking<HeldCall>, worker: &Arc<Worker>, by: By, waker: Option<&Waker>) -> End {
        if taker.held.is_some() && !self.goes_on_with_held(taker, &worker.process, waker) {
            return End::Held;
        }
        if self.is_over() {
            return End::Over;
        }
        let view = RequestView::new(&self.frames);
        match self.take_batch(taker, &view, worker, by) {
            Ok(end) => end,
            Err(Broken) => {
                self.broken.store(true, Ordering::Relaxed);
                view.state().store(request::BROKEN, Ordering::Relaxed);
                worker.process.lines.print(format_args!("its request ring is broken: impossible indexes"));
                End::Over
            }
        }
    }

    /// Goes on with work that the ring holds; returns whether it is held no more.
    #[cold]
    fn goes_on_with_held(&self, taker: &mut Taking<HeldCall>, process: &Arc<Process>, waker: Option<&Waker>) -> bool {
        if self.attention.load(Ordering::Acquire) & CLOSED != 0 {
            taker.held = None;
            process.post_completions(&[], 1, Priority::LOWEST);
            return true;
        }
        let Some((operation, Submission { token, cid, priority })) = &mut taker.held else { return true };
        let worth = process.standing.worth(*priority);
        let Some(waker) = waker else {
            self.wake_server(worth);
            return false;
        };
        stretch::goes_on_with(operation.call());
        let Poll::Ready(result) = operation.poll(process, Some(waker)) else {
            executor::set_priority(executor::current(), worth);
            return false;
        };
        let completion = Completion { token: *token, cid: *cid, result: errno::encode(result) as u64 };
        let priority = *priority;
        // Before its completion, whose reader may rely on what it lets go of.
        taker.held = None;
        process.post_completions(&[completion], 1, priority);
        process.wake_a_worker(priority);
        true
    }

    fn take_batch(
        &self,
        taking: &mut Taking<HeldCall>,
        view: &RequestView<'_>,
        worker: &Arc<Worker>,
        by: By,
    ) -> Result<End, Broken> {
        let Taking { consumer: taker, held } = taking;
        let process = &worker.process;
        let available = taker.look(view)?;
        if available == 0 {
            // Before the last look: a submitter that comes after it raises the word again.
            view.urgency().store(0, Ordering::Relaxed);
            return Ok(if taker.fall_asleep(view, view.state())? { End::Asleep } else { End::More });
        }
        view.state().store(request::AWAKE, Ordering::Relaxed);
        let mut promised = process.promise_completions(available.min(BATCH), by == By::Thoroughly);
        if promised == 0 {
            view.state().store(request::SLEEPING, Ordering::Relaxed);
            return Ok(End::Stalled);
        }
        let before = taker.taken();
        let ends_at = Machine::now() + time::ticks_at_ns(BATCH_NS);
        let mut results = FixedVec::<Completion, BATCH>::new();
        let mut most_important = Priority::LOWEST;
        let mut end = End::More;
        let ready = executor::ready_here();
        // The last claim, its limited and its effective priority, and the bits of everything more important than that.
        // Most claims are equal, and their effective priority may change from batch to batch.
        let mut known = (u64::MAX, Priority::LOWEST, Priority::LOWEST, 0);
        for _ in 0..promised {
            if self.attention.load(Ordering::Relaxed) != 0 && by != By::Thoroughly {
                end = End::Elsewhere;
                break;
            }
            let Some(request) = taker.take(view).map(Request::from_words) else { break };
            let claim = request.call >> request::PRIORITY_SHIFT & 63;
            if claim != known.0 {
                let claimed = process.standing.within_ceiling(Priority::saturating(claim));
                let priority = process.standing.worth(claimed);
                known = (claim, claimed, priority, priority.bit() - 1);
            }
            let (_, claimed, priority, more_important) = known;
            if ready.load(Ordering::Relaxed) & more_important != 0
                && by != By::Thoroughly
                && let Some(priority) = self.outranked(priority, process, by)
            {
                taker.leave_last();
                end = End::Outranked(priority);
                break;
            }
            let (token, cid) = if request.call & request::WAKES == 0 { (request.token, 0) } else { (0, request.token) };
            if let Some(result) = perform(worker, &request, Submission { token, cid, priority: claimed }, held) {
                // There is room: no more requests are taken than fit.
                let _ = results.push(Completion { token, cid, result: result as u64 });
                if claimed.is_more_important_than(most_important) {
                    most_important = claimed;
                }
            } else if held.is_some() {
                // Its place stays promised.
                promised -= 1;
                break;
            }
            if Machine::now() >= ends_at {
                break;
            }
        }
        self.performed.store(taker.taken(), Ordering::Relaxed);
        taker.hand_back(view);
        counters::add(Counter::Requests, taker.taken().wrapping_sub(before));
        process.post_completions(&results, promised, most_important);
        if by == By::Server && !results.is_empty() {
            process.wake_a_worker(most_important);
        }
        Ok(end)
    }

    /// Returns the priority of the next request, which has `priority` itself, if something more important is ready
    /// here.
    #[cold]
    fn outranked(&self, priority: Priority, process: &Process, by: By) -> Option<Priority> {
        // A request behind it may be more important.
        let lent = self.claim(&process.standing);
        let priority = if lent.is_more_important_than(priority) { lent } else { priority };
        // A worker has its turn, in which it could make the call directly.
        let own = executor::current_priority();
        let limit = if by == By::Worker && own.is_more_important_than(priority) { own } else { priority };
        executor::is_ready_above(limit).then_some(priority)
    }
}

/// Makes the call; returns `None` if its result will be posted, by the ring if it holds the call then.
#[inline(always)]
fn perform(
    worker: &Arc<Worker>,
    request: &Request,
    submission: Submission,
    held: &mut Option<HeldCall>,
) -> Option<usize> {
    if request.call & !request::KNOWN_BITS != 0 {
        return Some(errno::encode(Err(Errno::EINVAL)));
    }
    let number = (request.call & request::NUMBER_MASK) as usize;
    calls::perform(worker, number, &request.arguments, submission, held)
}

/// The server: a coroutine that takes a ring's requests whenever it is woken, until the ring is closed.
#[doc(alias = "io_sq_thread")]
#[doc(alias = "IORING_SETUP_SQPOLL")]
struct RingServer {
    ring: Arc<Ring<HeldCall>>,
    worker: Arc<Worker>,
}

impl Future for RingServer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.ring.serve(&self.worker, By::Server, Some(cx.waker())) {
            End::Over if self.ring.attention.load(Ordering::Acquire) & CLOSED != 0 => return Poll::Ready(()),
            End::More => cx.waker().wake_by_ref(),
            End::Outranked(priority) => {
                executor::set_priority(executor::current(), priority);
                cx.waker().wake_by_ref();
            }
            // It is woken when there is something to take, or when the held work can go on.
            End::Asleep | End::Stalled | End::Elsewhere | End::Held | End::Over => {}
        }
        Poll::Pending
    }
}

/// Performs the `ring_setup` call, in steps.
///
/// # Cancellation
/// Dropping it leaves the worker without a ring; the completion ring may have grown.
#[doc(alias = "io_uring_setup")]
pub(crate) async fn set_up(worker: Arc<Worker>, requests: usize, completions: usize) -> Result<usize, Errno> {
    let process = &worker.process;
    let index = worker.index();
    if worker.is_thread() || !request::is_capacity(requests) || completions != 0 && !request::is_capacity(completions) {
        return Err(Errno::EINVAL);
    }
    if process.rings.get(index).is_some() {
        return Err(Errno::EEXIST);
    }
    if process.address_space.is_borrowing() {
        // Its lender's rings would be there.
        return Err(Errno::EBUSY);
    }
    process.enlarge_completion_ring(completions).await?;
    // The calls of a ring do not wait for pages of mapped files.
    fetching::fetch_all(process).await?;
    let ring = Ring::new(requests, &**process).await?;
    // Others may have taken the memory that there was before the steps.
    process.account.admit()?;
    let ring = Arc::new(ring);
    let address = process.shared.address(REQUEST_RINGS_OFFSET) + index * request::STRIDE;
    map(process.space(), address, &ring.frames)?;
    let server = RingServer { ring: ring.clone(), worker: worker.clone() };
    let priority = process.standing.worth(process.default_priority());
    let Ok(server) = executor::spawn_for(process.clone(), priority, server) else {
        let removed = process.space().lock().unmap(address as u64..(address + ring.frames.len() * PAGE_SIZE) as u64);
        usermode::flush(removed.map_err(map_error)?);
        return Err(Errno::ENOMEM);
    };
    ring.server.store(server.raw(), Ordering::Release);
    // Only this worker makes the ring with this number, one call after the other, so the place is still empty.
    process.rings.rings.lock()[index] = Some(ring.clone());
    process.rings.any.store(true, Ordering::Release);
    if process.has_ended() {
        // The end of the process may have closed its rings before this one was entered.
        ring.close();
    }
    Ok(address)
}

/// Performs the `ring_enter` call.
#[doc(alias = "io_uring_enter")]
pub(crate) fn enter(worker: &Arc<Worker>, index: usize, flags: usize) -> Result<usize, Errno> {
    let process = &worker.process;
    if flags & !RING_WAKE != 0 {
        return Err(Errno::EINVAL);
    }
    let ring = process.rings.get(index).ok_or(Errno::ENXIO)?;
    if ring.broken.load(Ordering::Relaxed) {
        return Err(Errno::EPROTO);
    }
    if flags & RING_WAKE != 0 && executor::is_another_hart_idle() {
        ring.wake_server(ring.claim(&process.standing));
        return Ok(0);
    }
    serve_for(&ring, worker);
    if ring.broken.load(Ordering::Relaxed) { Err(Errno::EPROTO) } else { Ok(0) }
}

/// Takes requests in a call of a worker; leaves the rest to the server.
fn serve_for(ring: &Ring<HeldCall>, worker: &Arc<Worker>) {
    match ring.serve(worker, By::Worker, None) {
        End::More => ring.wake_server(ring.claim(&worker.process.standing)),
        End::Outranked(priority) => ring.wake_server(priority),
        // `Elsewhere`: another worker waits for the lock and takes the rest. `Held`: the server has been woken.
        End::Asleep | End::Stalled | End::Elsewhere | End::Held | End::Over => {}
    }
}

/// Takes the requests in the ring of a worker that has nothing to run.
pub(crate) fn take_before_sleep(worker: &Arc<Worker>) {
    if let Some(ring) = worker.process.rings.get(worker.index())
        && ring.has_requests()
    {
        serve_for(&ring, worker);
    }
}

/// Leaves the requests in a worker's ring to the server: the worker gives its hart up, or loses it.
pub(crate) fn leave_to_server(worker: &Worker) {
    if let Some(ring) = worker.process.rings.get(worker.index())
        && ring.has_requests()
    {
        ring.wake_server(ring.claim(&worker.process.standing));
    }
}

/// Takes all present requests from all rings of the process, in steps, so that all calls that were made are known,
/// but for those behind work that a ring holds.
///
/// # Cancellation
/// Dropping it leaves requests in their rings.
pub(crate) async fn take_everything(worker: &Arc<Worker>) {
    for index in 0..MAXIMUM_WORKERS {
        let Some(ring) = worker.process.rings.get(index) else { continue };
        let enough = ring.full_ring_from_now();
        let mut end = ring.serve(worker, By::Thoroughly, None);
        while end == End::More && !ring.has_performed(enough) {
            steps::pause(&worker.process).await;
            end = ring.serve(worker, By::Thoroughly, None);
        }
        if end == End::More {
            ring.wake_server(ring.claim(&worker.process.standing));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use abi_queue::completion;
    use abi_queue::request::{BROKEN, SLEEPING, SMALLEST_CAPACITY};
    use abi_unix::SystemCall;
    use abi_unix::types::{TimeSpec, open};
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Program, run};

    /// A program's own side of a request ring.
    struct Submitter {
        address: usize,
        capacity: usize,
        tail: u64,
    }

    impl Submitter {
        fn new(program: &mut Program, capacity: usize) -> Submitter {
            let address = program.call(SystemCall::RingSetup, [capacity, 0]).unwrap();
            Submitter { address, capacity, tail: 0 }
        }

        fn word(&self, program: &Program, offset: usize) -> u64 {
            program.read_u64(self.address + offset)
        }

        fn free(&self, program: &Program) -> usize {
            self.capacity - (self.tail - self.word(program, request::HEAD_OFFSET)) as usize
        }

        fn push(&mut self, program: &Program, call: u64, token: u64, arguments: &[usize]) {
            let mut request = Request { call, token, arguments: [0; 6] };
            for (place, &argument) in request.arguments.iter_mut().zip(arguments) {
                *place = argument as u64;
            }
            let offset = request::entry_offset(self.tail as usize % self.capacity);
            for (index, word) in request.to_words().iter().enumerate() {
                program.write(self.address + offset + 8 * index, &word.to_le_bytes());
            }
            self.tail += 1;
            program.write(self.address + request::TAIL_OFFSET, &self.tail.to_le_bytes());
        }

        fn enter(&self, program: &mut Program) -> Result<usize, Errno> {
            program.call(SystemCall::RingEnter, [0, 0])
        }
    }

    /// Takes the completions that are there; returns their tokens and results.
    fn results(program: &mut Program) -> Vec<(u64, Result<usize, Errno>)> {
        program.completions().iter().map(|done| (done.token, errno::decode(done.result as usize))).collect()
    }

    const GET_PROCESS: u64 = SystemCall::GetProcess as u64;

    #[test]
    fn requests_are_performed_in_their_order_and_completed_together() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            assert_eq!(ring.word(program, request::CAPACITY_OFFSET), SMALLEST_CAPACITY as u64);
            assert_eq!(ring.word(program, request::STATE_OFFSET), SLEEPING);
            let (reader, writer) = program.pipe(0);
            let text = program.store(b"abcdef");
            ring.push(program, SystemCall::Write as u64, 1, &[writer, text, 4]);
            ring.push(program, SystemCall::Write as u64, 2, &[writer, text + 4, 2]);
            ring.push(program, SystemCall::Close as u64, 3, &[writer]);
            ring.push(program, SystemCall::Write as u64, 4, &[writer, text, 4]);
            assert_eq!(results(program), [], "nothing happens by itself");
            assert_eq!(ring.enter(program), Ok(0));
            assert_eq!(results(program), [(1, Ok(4)), (2, Ok(2)), (3, Ok(0)), (4, Err(Errno::EBADF))]);
            assert_eq!(program.read_from(reader, 10), Ok(b"abcdef".to_vec()));
            assert_eq!(ring.free(program), SMALLEST_CAPACITY);
            assert_eq!(ring.word(program, request::STATE_OFFSET), SLEEPING);
        });
    }

    #[test]
    fn requests_that_make_no_sense_complete_with_their_error() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            ring.push(program, 0xfff, 1, &[]);
            ring.push(program, GET_PROCESS | 1 << 40, 2, &[]);
            ring.push(program, GET_PROCESS | 1 << 18, 3, &[]);
            for (token, call) in [SystemCall::Yield, SystemCall::Exit, SystemCall::Execute, SystemCall::WorkerWait]
                .into_iter()
                .enumerate()
            {
                ring.push(program, call as u64, 4 + token as u64, &[0, 0]);
            }
            ring.push(program, SystemCall::Read as u64, 8, &[usize::MAX, usize::MAX, usize::MAX]);
            ring.push(program, GET_PROCESS, 9, &[]);
            ring.enter(program).unwrap();
            let own = program.id as usize;
            let refused = [1, 2, 3, 4, 5, 6, 7, 8].map(|token| {
                let error = match token {
                    1 => Errno::ENOSYS,
                    2 | 3 => Errno::EINVAL,
                    8 => Errno::EBADF,
                    _ => Errno::EOPNOTSUPP,
                };
                (token, Err(error))
            });
            let found = results(program);
            assert_eq!(found[..8], refused);
            assert_eq!(found[8..], [(9, Ok(own))]);
        });
    }

    #[test]
    fn a_request_can_name_the_coroutine_to_wake_in_place_of_a_token() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            ring.push(program, GET_PROCESS | request::WAKES, 77, &[]);
            ring.enter(program).unwrap();
            let done = program.completions();
            assert_eq!(done.iter().map(|done| (done.token, done.cid)).collect::<Vec<_>>(), [(0, 77)]);
        });
    }

    /// A call that waits is completed later; those behind it are not kept back.
    #[test]
    fn a_request_that_waits_lets_the_others_pass() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            let (reader, writer) = program.pipe(0);
            let place = program.place(16);
            let time = program.store(&TimeSpec::from_ns(5_000_000).to_bytes());
            ring.push(program, SystemCall::Read as u64, 1, &[reader, place, 16]);
            ring.push(program, SystemCall::Sleep as u64, 2, &[time, 0]);
            ring.push(program, GET_PROCESS, 3, &[]);
            ring.enter(program).unwrap();
            let own = program.id as usize;
            assert_eq!(results(program), [(3, Ok(own))]);
            assert_eq!(program.await_completions(), [(2, Ok(0))]);
            program.write_to(writer, b"late").unwrap();
            assert_eq!(program.await_completions(), [(1, Ok(4))]);
            assert_eq!(program.read(place, 4), b"late");
        });
    }

    /// Without room for results requests stay in the ring, and nothing is lost or done twice.
    #[test]
    fn a_full_completion_ring_holds_requests_back() {
        run(|program| {
            let mut ring = Submitter::new(program, 1024);
            let total = completion::INITIAL_CAPACITY + 300;
            for token in 0..total as u64 {
                ring.push(program, GET_PROCESS, token, &[]);
            }
            ring.enter(program).unwrap();
            assert_eq!(ring.free(program), 1024 - 300, "no more were taken than there is room");
            assert_eq!(ring.word(program, request::STATE_OFFSET), SLEEPING, "the process has to call again");
            ring.enter(program).unwrap();
            assert_eq!(ring.free(program), 1024 - 300);
            let mut tokens: Vec<u64> = results(program).iter().map(|(token, _)| *token).collect();
            assert_eq!(tokens.len(), completion::INITIAL_CAPACITY);
            ring.enter(program).unwrap();
            tokens.extend(results(program).iter().map(|(token, _)| *token));
            assert_eq!(tokens, (0..total as u64).collect::<Vec<_>>());
        });
    }

    /// A direct call that completes while the ring is full finds its room in the kernel, and comes when there is some.
    #[test]
    fn completions_beyond_the_ring_wait_in_the_kernel() {
        run(|program| {
            let mut ring = Submitter::new(program, 1024);
            let (reader, writer) = program.pipe(0);
            let place = program.place(8);
            assert_eq!(program.submit(SystemCall::Read, [reader, place, 8], 5000), None);
            for token in 0..completion::INITIAL_CAPACITY as u64 {
                ring.push(program, GET_PROCESS, token, &[]);
            }
            ring.enter(program).unwrap();
            program.write_to(writer, b"x").unwrap();
            program.sleep_ns(100_000);
            let first = results(program);
            assert_eq!(first.len(), completion::INITIAL_CAPACITY);
            assert!(first.iter().all(|(token, _)| *token != 5000));
            assert_eq!(program.await_completions(), [(5000, Ok(1))]);
        });
    }

    #[test]
    fn a_ring_with_impossible_indexes_is_given_up() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            ring.push(program, GET_PROCESS, 1, &[]);
            let nonsense = SMALLEST_CAPACITY as u64 + 2;
            program.write(ring.address + request::TAIL_OFFSET, &nonsense.to_le_bytes());
            assert_eq!(ring.enter(program), Err(Errno::EPROTO));
            assert_eq!(ring.word(program, request::STATE_OFFSET), BROKEN);
            // For good, also when the index makes sense again.
            program.write(ring.address + request::TAIL_OFFSET, &1u64.to_le_bytes());
            assert_eq!(ring.enter(program), Err(Errno::EPROTO));
            program.sleep_ns(100_000);
            assert_eq!(results(program), []);
        });
    }

    /// The process's `head` of the completion ring is a claim: an impossible one means "full", and costs the process
    /// its own completions only.
    #[test]
    fn a_completion_ring_with_an_impossible_head_is_full() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            let head =
                program.process().shared.address(abi_queue::pages::COMPLETION_RING_OFFSET) + completion::HEAD_OFFSET;
            program.write(head, &(1u64 << 40).to_le_bytes());
            ring.push(program, GET_PROCESS, 1, &[]);
            ring.enter(program).unwrap();
            assert_eq!(ring.free(program), SMALLEST_CAPACITY - 1, "the request stays");
            program.write(head, &0u64.to_le_bytes());
            ring.enter(program).unwrap();
            let own = program.id as usize;
            assert_eq!(results(program), [(1, Ok(own))]);
        });
    }

    #[test]
    fn rings_are_set_up_once_for_each_worker_with_a_size_that_can_be() {
        run(|program| {
            assert_eq!(program.call(SystemCall::RingEnter, [0, 0]), Err(Errno::ENXIO));
            for size in [0, 1, 63, 65, 96, 8192, usize::MAX] {
                assert_eq!(program.call(SystemCall::RingSetup, [size, 0]), Err(Errno::EINVAL), "{size}");
            }
            assert_eq!(program.call(SystemCall::RingSetup, [64, 100]), Err(Errno::EINVAL));
            let first = program.call(SystemCall::RingSetup, [64, 0]).unwrap();
            assert_eq!(program.call(SystemCall::RingSetup, [64, 0]), Err(Errno::EEXIST));
            assert_eq!(program.call(SystemCall::RingEnter, [0, 2]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::RingEnter, [99, 0]), Err(Errno::ENXIO));
            let place = program.place(8);
            program
                .add_worker(move |program| {
                    let second = program.call(SystemCall::RingSetup, [64, 0]).unwrap();
                    program.write(place, &second.to_le_bytes());
                })
                .unwrap();
            program.sleep_ns(100_000);
            assert_eq!(program.read_u64(place) as usize, first + request::STRIDE);
        });
    }

    /// The largest rings take steps. The worker waits for them, so that it and its process cannot end before its ring.
    #[test]
    fn a_ring_is_there_when_its_call_returns_in_either_form() {
        run(|program| {
            let answer = program.submit(SystemCall::RingSetup, [4096, 4096], 7);
            assert!(matches!(answer, Some(Ok(address)) if address != 0), "{answer:?}");
            assert_eq!(program.call(SystemCall::RingSetup, [64, 0]), Err(Errno::EEXIST));
            assert_eq!(results(program), [], "nothing was posted");
        });
    }

    #[test]
    fn the_completion_ring_grows_while_it_is_empty() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let place = program.place(8);
            program.submit(SystemCall::Read, [reader, place, 8], 1);
            program.write_to(writer, b"x").unwrap();
            program.sleep_ns(100_000);
            assert_eq!(program.call(SystemCall::RingSetup, [64, 2048]), Err(Errno::EBUSY));
            assert_eq!(results(program), [(1, Ok(1))]);
            let address = program.call(SystemCall::RingSetup, [2048, 2048]).unwrap();
            let mut ring = Submitter { address, capacity: 2048, tail: 0 };
            for token in 0..2000 {
                ring.push(program, GET_PROCESS, token, &[]);
            }
            ring.enter(program).unwrap();
            assert_eq!(results(program).len(), 2000);
        });
    }

    #[test]
    fn a_worker_that_sleeps_or_waits_has_its_requests_taken() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            ring.push(program, GET_PROCESS, 1, &[]);
            assert_eq!(program.call(SystemCall::WorkerWait, [0, 1000]), Ok(0), "there is news");
            assert_eq!(results(program).len(), 1);
            // In a call that waits, the server takes them.
            let time = program.store(&TimeSpec::from_ns(1_000_000).to_bytes());
            ring.push(program, GET_PROCESS, 2, &[]);
            program.call(SystemCall::Sleep, [time, 0]).unwrap();
            assert_eq!(results(program).len(), 1);
        });
    }

    /// `cancel` finds a call that is still in the ring.
    #[test]
    fn a_request_that_was_not_taken_yet_can_be_cancelled() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            let (reader, _writer) = program.pipe(0);
            let place = program.place(8);
            ring.push(program, SystemCall::Read as u64, 6, &[reader, place, 8]);
            assert_eq!(program.call(SystemCall::Cancel, [6]), Ok(0));
            assert_eq!(program.await_completions(), [(6, Err(Errno::ECANCELED))]);
            assert_eq!(program.call(SystemCall::Cancel, [6]), Err(Errno::ENOENT));
        });
    }

    /// Requests that find no place among the calls in flight: work goes in steps to its end, a wait is refused.
    #[test]
    fn work_without_a_place_is_completed_in_steps_and_a_wait_is_refused() {
        run(|program| {
            let child = program.spawn(|program| {
                let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
                let limit = program.store(&abi_unix::types::limit::to_bytes(0, 0));
                let which = abi_unix::types::limit::CALLS_IN_FLIGHT as usize;
                assert_eq!(program.call(SystemCall::ProcessLimit, [0, which, limit, 0]), Ok(0));
                let file = program.create(b"/tmp/refused\0", open::RDWR);
                let disk = program.create(b"/dev/vda\0", open::RDWR);
                assert_eq!(program.write_to(disk, &[5; 100]), Ok(100));
                let looks = || crate::observing::counters::read(abi_unix::Counter::Looks);
                let before = looks();
                ring.push(program, SystemCall::Allocate as u64, 1, &[file, 0, 0, 100 * 4096]);
                ring.push(program, SystemCall::Synchronise as u64, 2, &[]);
                ring.push(program, SystemCall::SynchroniseFile as u64, 3, &[disk]);
                ring.push(program, GET_PROCESS, 4, &[]);
                assert_eq!(ring.enter(program), Ok(0));
                let own = program.id as usize;
                let expected = [(1, Ok(0)), (2, Err(Errno::EBUSY)), (3, Err(Errno::EBUSY)), (4, Ok(own))];
                let mut found = Vec::new();
                while found.len() < expected.len() {
                    found.extend(program.await_completions());
                }
                assert_eq!(found, expected);
                assert!(looks() - before >= 49, "it went in steps of two pages");
                assert_eq!(program.call(SystemCall::Synchronise, []), Ok(0), "a worker has its own place to wait");
                program.remove(b"/tmp/refused\0");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// Work that waits for others of the kernel, here for the coroutine of a volume, finds no place among the calls in
    /// flight: the hart is free meanwhile. Ended in the middle it leaves nothing.
    #[test]
    fn work_that_waits_without_a_place_leaves_the_hart_to_others() {
        use crate::files::volume::tests::{mount, text, unmount, with_volume};

        let names = ["first", "second", "third"].map(|name| std::format!("/tmp/volume/{name}"));
        with_volume(move |program| {
            assert_eq!(mount(program, 0), Ok(0));
            let limit = program.store(&abi_unix::types::limit::to_bytes(0, 0));
            let which = abi_unix::types::limit::CALLS_IN_FLIGHT as usize;
            let here = abi_unix::types::AT_FDCWD as usize;
            let of = names.clone();
            let child = program.spawn(move |program| {
                let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
                assert_eq!(program.call(SystemCall::ProcessLimit, [0, which, limit, 0]), Ok(0));
                let paths = of.map(|name| text(program, &name));
                for (token, path) in (1..).zip(&paths[..2]) {
                    ring.push(program, SystemCall::MakeDirectory as u64, token, &[here, *path, 0o755]);
                }
                ring.push(program, GET_PROCESS, 3, &[]);
                assert_eq!(ring.enter(program), Ok(0));
                let own = program.id as usize;
                let expected = [(1, Ok(0)), (2, Ok(0)), (3, Ok(own))];
                let mut found = Vec::new();
                while found.len() < expected.len() {
                    found.extend(program.await_completions());
                }
                assert_eq!(found, expected);
                ring.push(program, SystemCall::MakeDirectory as u64, 4, &[here, paths[2], 0o755]);
                assert_eq!(ring.enter(program), Ok(0));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            for name in &names[..2] {
                let path = text(program, name);
                let removed = abi_unix::types::AT_REMOVEDIR as usize;
                assert_eq!(program.call(SystemCall::Unlink, [here, path, removed]), Ok(0), "{name}");
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// A process that ends with requests, calls in flight and completions leaves nothing.
    #[test]
    fn a_process_ends_in_the_middle_of_it_all() {
        run(|program| {
            let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
            let (reader, _writer) = program.pipe(0);
            let place = program.place(8);
            for token in 0..20 {
                ring.push(program, SystemCall::Read as u64, token, &[reader, place, 8]);
            }
            ring.enter(program).unwrap();
            for token in 20..40 {
                ring.push(program, SystemCall::Read as u64, token, &[reader, place, 8]);
            }
        });
    }

    #[derive(Clone, Debug)]
    enum Step {
        Null,
        Read,
        Write(u8),
        Cancel(u8),
        Enter,
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Null),
            3 => Just(Step::Read),
            3 => (1..20u8).prop_map(Step::Write),
            1 => any::<u8>().prop_map(Step::Cancel),
            3 => Just(Step::Enter),
            2 => Just(Step::Take),
        ]
    }

    /// Submits, cancels and takes completions in some order: every request completes exactly once, and each byte is
    /// read once.
    fn compare(program: &mut Program, steps: &[Step]) {
        let mut ring = Submitter::new(program, SMALLEST_CAPACITY);
        let (reader, writer) = program.pipe(0);
        let place = program.place(512);
        let mut open: BTreeMap<u64, bool> = BTreeMap::new();
        let mut reads = VecDeque::new();
        let (mut next, mut written, mut read) = (0u64, 0usize, 0usize);
        let mut check = |program: &mut Program, open: &mut BTreeMap<u64, bool>, reads: &mut VecDeque<u64>| {
            for (token, result) in results(program) {
                let is_read =
                    open.remove(&token).unwrap_or_else(|| panic!("{token} completes twice or out of nowhere"));
                match result {
                    Ok(1) if is_read => {
                        read += 1;
                        reads.retain(|other| *other != token);
                    }
                    Err(Errno::ECANCELED) if is_read => reads.retain(|other| *other != token),
                    _ => assert!(!is_read && result.is_ok(), "{token}: {result:?}"),
                }
            }
        };
        for step in steps {
            if ring.free(program) == 0 {
                ring.enter(program).unwrap();
                check(program, &mut open, &mut reads);
            }
            match *step {
                Step::Null => {
                    ring.push(program, GET_PROCESS, next, &[]);
                    open.insert(next, false);
                    next += 1;
                }
                Step::Read => {
                    ring.push(program, SystemCall::Read as u64, next, &[reader, place + next as usize % 512, 1]);
                    open.insert(next, true);
                    reads.push_back(next);
                    next += 1;
                }
                Step::Write(count) => {
                    written += usize::from(count);
                    program.write_to(writer, &vec![7; count.into()]).unwrap();
                }
                Step::Cancel(number) if !reads.is_empty() => {
                    let token = reads[usize::from(number) % reads.len()];
                    let result = program.call(SystemCall::Cancel, [token as usize]);
                    // It may be done, and its completion be in the ring already.
                    assert!(matches!(result, Ok(0) | Err(Errno::ENOENT)), "{result:?}");
                }
                Step::Cancel(_) => {}
                Step::Enter => assert_eq!(ring.enter(program), Ok(0)),
                Step::Take => check(program, &mut open, &mut reads),
            }
        }
        program.close(writer).unwrap();
        ring.enter(program).unwrap();
        let rest = reads.len();
        program.sleep_ns(1_000_000);
        let mut at_the_end = 0;
        for (token, result) in results(program) {
            let is_read = open.remove(&token).expect("no completion comes twice");
            at_the_end += usize::from(is_read && result == Ok(0));
            read += usize::from(is_read && result == Ok(1));
        }
        assert!(open.is_empty(), "{open:?} have not completed");
        assert!(at_the_end <= rest);
        let left = written.saturating_sub(read);
        assert!(at_the_end == 0 || left == 0, "{at_the_end} readers have found the end before {left} bytes");
        let mut found = 0;
        loop {
            match program.read_from(reader, 512).unwrap().len() {
                0 => break,
                count => found += count,
            }
        }
        assert_eq!(found, left, "each byte was read once");
    }

    proptest! {
        #![proptest_config(property::cases(48))]

        #[test]
        fn every_request_completes_once(steps in prop::collection::vec(step(), 0..80)) {
            run(move |program| compare(program, &steps));
        }
    }
}
