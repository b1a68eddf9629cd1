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
//! * After a call: only to something more important that became ready on this hart.
//! * After an interrupt: also to something equally important that became ready on this hart. So completions are posted
//!   before the process goes on, and equals alternate at the tick.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::{Counter, Errno, errno};
use hal_api::{Access, Machine as _, Trap, UserContext};
use platform::{Machine, println};
use spin::Mutex;

use crate::call::{self, Outcome};
use crate::executor::Cid;
use crate::process::{self, Ending, Process};
use crate::{counters, executor, shared, time};

const NOWHERE: usize = usize::MAX;

/// How often a worker may finish what it does in the scheduler's image before it gives way.
const MAXIMUM_GRACES: u32 = 4;

/// A worker of a process.
pub struct Worker {
    /// Its process.
    pub process: Arc<Process>,
    index: AtomicUsize,
    cid: AtomicU64,
    /// The hart on which it is in user mode.
    hart: AtomicUsize,
    stopped: AtomicBool,
    parking: Mutex<Parking>,
    interrupts: Interrupts,
}

/// User interrupts of a worker, in the back end that every machine has: the kernel redirects the return to user mode.
///
/// The handler is entered as if it had been called from the interrupted instruction, on the same stack, with a
/// [`Frame`] below the stack pointer; it preserves all registers but `a7` and `sp` and ends with the `interrupt_return` call.
/// It is not entered while it runs, nor while the program counter lies in the scheduler's image, whose locks the handler
/// may need.
#[derive(Default)]
struct Interrupts {
    /// Where the handler is; 0 for none.
    handler: AtomicUsize,
    /// One is to be delivered.
    pending: AtomicBool,
    /// The handler runs.
    active: AtomicBool,
}

/// What an interrupted program finds at its stack pointer: program counter, `a7`, stack pointer, and a word of padding.
type Frame = [u64; 4];

#[derive(Default)]
struct Parking {
    /// Somebody woke the worker while it was not asleep: its next sleep ends at once.
    permit: bool,
    sleeper: Option<Waker>,
}

impl Worker {
    /// Creates a worker and starts it with these registers.
    pub fn start(process: &Arc<Process>, context: Box<UserContext>) -> Result<Arc<Worker>, Errno> {
        let worker = process.add_worker(|index| {
            Ok(Arc::new(Worker {
                process: process.clone(),
                index: AtomicUsize::new(index),
                cid: AtomicU64::new(0),
                hart: AtomicUsize::new(NOWHERE),
                stopped: AtomicBool::new(false),
                parking: Mutex::new(Parking::default()),
                interrupts: Interrupts::default(),
            }))
        })?;
        let coroutine = run(worker.clone(), context);
        executor::spawn(process.default_priority.limited_to(process.ceiling), coroutine);
        Ok(worker)
    }

    /// Its index in the process.
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
        // What the worker is to see was stored before; it stores its hart before it looks. With a fence on both sides
        // at least one of the two sees the other's store.
        fence(Ordering::SeqCst);
        let hart = self.hart.load(Ordering::Relaxed);
        if hart != NOWHERE && hart != Machine::hart() {
            counters::count(Counter::HartInterrupts);
            Machine::send_ipi(hart);
        }
    }

    /// Makes its coroutine the most important there is, to end.
    pub fn hasten(&self) {
        executor::set_priority(Cid::from_raw(self.cid.load(Ordering::Acquire)), Priority::HIGHEST);
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

    /// Sets the handler of user interrupts; 0 takes it away.
    pub fn set_interrupt_handler(&self, entry: usize) {
        self.interrupts.handler.store(entry, Ordering::Relaxed);
    }

    /// Becomes the first worker of another program, without handler and interrupts.
    fn start_afresh(&self) {
        self.index.store(0, Ordering::Relaxed);
        self.set_interrupt_handler(0);
        self.interrupts.pending.store(false, Ordering::Relaxed);
        self.interrupts.active.store(false, Ordering::Relaxed);
    }

    /// Sends the worker a user interrupt if it has a handler; `false` if it has none.
    pub fn send_interrupt(&self) -> bool {
        if self.interrupts.handler.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.interrupts.pending.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let hart = self.hart.load(Ordering::Relaxed);
        if hart != NOWHERE && hart != Machine::hart() {
            counters::count(Counter::HartInterrupts);
            Machine::send_ipi(hart);
        }
        true
    }

    /// Makes the program go on in its handler if an interrupt is pending and may be delivered now.
    fn deliver_interrupt(&self, context: &mut UserContext) {
        let interrupts = &self.interrupts;
        let handler = interrupts.handler.load(Ordering::Relaxed);
        if handler == 0 || interrupts.active.load(Ordering::Relaxed) || shared::is_in_image(context.pc as usize) {
            return;
        }
        interrupts.pending.store(false, Ordering::Relaxed);
        let stack = context.stack();
        let frame: Frame = [context.pc, context.register(17), stack, 0];
        let place = stack.wrapping_sub(size_of::<Frame>() as u64) & !15;
        let mut bytes = [0; size_of::<Frame>()];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(frame) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        if self.process.copy_out(place as usize, &bytes).is_err() {
            println!("[{}] killed: no stack for a user interrupt at sp {stack:#x}", self.process.id);
            self.process.end(Ending::Killed(abi_unix::types::signal::SEGV as u8));
            return;
        }
        interrupts.active.store(true, Ordering::Relaxed);
        context.set_register(2, place);
        context.pc = handler as u64;
        counters::count(Counter::UserInterrupts);
    }

    /// The `interrupt_return` call: the program goes on where it was interrupted.
    pub fn return_from_interrupt(&self, context: &mut UserContext) -> Result<(), Errno> {
        if !self.interrupts.active.load(Ordering::Relaxed) {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; size_of::<Frame>()];
        self.process.copy_in(context.stack() as usize, &mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at * 8 + i]));
        // Whatever stands there is the program's own affair: a wrong address faults in user mode.
        context.pc = word(0) & !1;
        context.set_register(17, word(1));
        context.set_register(2, word(2));
        self.interrupts.active.store(false, Ordering::Relaxed);
        Ok(())
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
            if core::mem::take(&mut parking.permit) || self.process.posted() != seen {
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
                alarm = Some(deadline.map(|deadline| time::set(deadline, cx.waker())));
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
    /// The worker leaves.
    Leave,
}

/// The switching coroutine of a worker.
async fn run(worker: Arc<Worker>, mut context: Box<UserContext>) {
    // Before the coroutine can wait for anything, so that whoever must wake it knows whom.
    worker.cid.store(executor::current().raw(), Ordering::Release);
    loop {
        let pause = visit(&worker, &mut context);
        // From now on, and until the process publishes something else, it is as important as it says.
        executor::set_priority(executor::current(), worker.process.claimed_priority());
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
            }
            Pause::Execute(plan) => {
                // Asked again each time: a worker that was about to leave may have added another, or have submitted a call.
                let is_alone = poll_fn(|cx| match worker.process.keep_only(&worker) {
                    false => Poll::Ready(false),
                    true if worker.process.poll_alone(cx.waker()) => Poll::Ready(true),
                    true => Poll::Pending,
                })
                .await;
                if !is_alone {
                    // The next look says so too, and this worker leaves.
                    continue;
                }
                worker.process.forget_others(&worker);
                worker.start_afresh();
                match plan.carry_out(&worker.process) {
                    Ok(fresh) => *context = fresh,
                    Err(error) => {
                        // The old program is gone; there is nobody to tell.
                        println!("[{}] execve failed after the point of no return: {}", worker.process.id, error);
                        worker.process.end(Ending::Killed(abi_unix::types::signal::KILL as u8));
                    }
                }
            }
        }
    }
    drop(context);
    worker.process.worker_is_gone();
}

/// Runs user mode, and everything that can be done at once, until the coroutine has to pause.
fn visit(worker: &Arc<Worker>, context: &mut UserContext) -> Pause {
    let process = &worker.process;
    let hart = Machine::hart();
    time::start_slice();
    counters::count(Counter::Switches);
    worker.hart.store(hart, Ordering::Relaxed);
    // Pairs with the fence in `interrupt`: either that sees the hart and sends, or the look below sees what it is about.
    fence(Ordering::SeqCst);
    let own_priority = executor::current_priority();
    let mut graces = 0;
    let pause = loop {
        if worker.interrupts.pending.load(Ordering::Relaxed) {
            worker.deliver_interrupt(context);
        }
        if worker.is_to_stop() {
            break Pause::Leave;
        }
        process.post_waiting_completions();
        let trap = process.space.enter(context);
        counters::count(Counter::Traps);
        match trap {
            Trap::SystemCall => match call::dispatch(worker, context) {
                Outcome::Done(value) => {
                    context.set_result(value as u64);
                    if executor::is_ready_above(own_priority) {
                        break Pause::GiveWay;
                    }
                }
                Outcome::Unchanged => {}
                Outcome::Wait(operation) => break Pause::Wait(operation),
                Outcome::Park { seen, deadline } => break Pause::Park { seen, deadline },
                Outcome::Execute(plan) => break Pause::Execute(plan),
                Outcome::GiveWay => {
                    context.set_result(0);
                    break Pause::GiveWay;
                }
                Outcome::Leave => {
                    worker.stopped.store(true, Ordering::Release);
                    break Pause::Leave;
                }
            },
            Trap::Interrupt => {
                crate::on_interrupt();
                if time::slice_has_ended() || executor::is_ready_at_least(own_priority) {
                    // The scheduler's short critical sections lie in its image. A worker that is interrupted in there gets
                    // a moment to come out, so that the others need not wait for it; a bounded number of times, since
                    // anybody can jump there.
                    if graces < MAXIMUM_GRACES && shared::is_in_image(context.pc as usize) {
                        graces += 1;
                        time::extend_slice();
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
                    Err(_) => fault(process, context, "segmentation fault", abi_unix::types::signal::SEGV, trap),
                }
            }
            Trap::AccessFault { .. } => fault(process, context, "bus error", abi_unix::types::signal::BUS, trap),
            Trap::Misaligned { .. } => fault(process, context, "misaligned access", abi_unix::types::signal::BUS, trap),
            Trap::IllegalInstruction { .. } => {
                fault(process, context, "illegal instruction", abi_unix::types::signal::ILL, trap)
            }
            Trap::Breakpoint => fault(process, context, "breakpoint", abi_unix::types::signal::TRAP, trap),
            Trap::Other { .. } => fault(process, context, "unknown trap", abi_unix::types::signal::KILL, trap),
        }
    };
    worker.hart.store(NOWHERE, Ordering::Relaxed);
    time::stop_slice();
    pause
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
