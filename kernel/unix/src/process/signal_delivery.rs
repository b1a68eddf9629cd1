//! Delivery of signals: sending, waiting, stopping, and the one place where a handler begins.
//!
//! # The attention of a worker
//!
//! A signal is sent in three steps, under the lock of the process's signals: it becomes pending, for the process or for
//! one of its workers or threads; a receiver is found that does not block it; and the receiver's *attention* is set,
//! before it is woken or called back from user mode. A worker looks at its attention at the head of each turn in user
//! mode, and at each poll of a wait. Both looks come after the wait's registration with its object, so that no signal
//! is lost between a look and the sleep.
//!
//! Only a synchronous wait is interrupted. Asynchronous calls and requests of a ring are not disturbed by signals: the
//! program that gets the completion is interrupted, and goes on.
//!
//! # The end of a wait
//!
//! A wait ends with `EINTR` only if a handler is to run. A signal that is ignored wakes no worker; one that stops the
//! process makes the wait *hold*, with all its registrations and its deadline; one that ends the process ends the wait
//! like any other end. Whether an interrupted call is made again after its handler, the operation says
//! ([`Restart`]). It is made again by its own instruction: `pc` goes back, and
//! the registers, of which a waiting call changes none, still have its arguments.
//!
//! # Delivery
//!
//! [`attend`] is the only function that begins a handler: it chooses the signal, writes Linux's frame, and sets mask,
//! stack and registers. `rt_sigreturn` takes them back from the frame, which is unvalidated memory of the program.

use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};

use ::signals::frame::{self, Stack};
use ::signals::{Action, DefaultAction, Details, Disposition, Information, Set, Signal, action_flag, code};
use abi_unix::call::NUMBER_MASK;
use abi_unix::types::{TimeSpec, clock};
use abi_unix::{Errno, SystemCall};
use hal_api::{Machine as _, UserContext};
use platform::{Machine, println};
use spin::MutexGuard;

use crate::files::message_queue::Notice;
use crate::files::remains::{Remain, leave};
use crate::observing::call_log;
use crate::observing::callers::{self, Occupation};
use crate::process::exit_status::Ending;
use crate::process::shared;
use crate::process::signals::{Combination, Interruption, NextAction, OwnState, Restart, SignalState, SignalWait};
use crate::process::worker::{Attention, Worker};
use crate::process::{self, FIRST, Process, table};
use crate::scheduling::executor;
use crate::time::{self, Alarm};

/// Sends a signal to a process, or to one of its workers or threads alone, without any check of authority. `EAGAIN` if
/// the value of `sigqueue` finds no room.
pub(crate) fn send(process: &Process, target: Option<&Worker>, information: Information) -> Result<(), Errno> {
    let signal = information.signal;
    if process.has_ended() {
        if signal == Signal::KILL {
            process.dump.give_up();
        }
        return Ok(());
    }
    if signal == Signal::KILL {
        process.end(Ending::Killed(signal.number()));
        return Ok(());
    }
    let mut state = process.signals.state.lock();
    // Both at the time of sending, whether or not the signal is blocked, ignored or caught.
    if signal == Signal::CONT {
        remove_everywhere(process, &mut state, Set::STOPPING);
    } else if Set::STOPPING.has(signal) {
        remove_everywhere(process, &mut state, Set::of(&[Signal::CONT]));
    }
    let disposition = state.actions.disposition(signal);
    let mut ends = false;
    // Asked here again: meanwhile its handler may have gone.
    let is_protected = process.id == FIRST
        && matches!(information.details, Details::Sender { process: sender, .. } if sender != FIRST);
    let (receiver, next) = find_receiver(process, target, signal);
    let receiver = receiver.as_deref().or(target.filter(|target| target.signals.receives(signal)));
    let sent = (|| {
        if target.is_some_and(|target| target.signals.state.lock().has_left) {
            return Err(Errno::ESRCH);
        }
        let is_dropped = match disposition {
            // A blocked one may be caught or awaited.
            Disposition::Ignore => receiver.is_some_and(|one| !one.signals.blocked().has(signal)),
            // Pending while the process is stopped.
            Disposition::Default(DefaultAction::End)
                if receiver.is_some_and(|one| !one.signals.blocked().has(signal)) && !process.signals.are_stopped() =>
            {
                if is_protected {
                    return Err(Errno::EPERM);
                }
                ends = true;
                true
            }
            _ => false,
        };
        if is_dropped {
            return Ok(false);
        }
        let added = state.add(target.map(|worker| &worker.signals), information);
        if added.is_err() && information.code == code::QUEUE && signal.is_real_time() {
            return Err(Errno::EAGAIN);
        }
        if let Some(receiver) = receiver {
            receiver.set_attention(Attention::SIGNAL);
            receiver.interrupt();
        } else if let Some(next) = next {
            state.search.add(Set::of(&[signal]), next);
        }
        Ok(true)
    })();
    let searches = state.search.is_taken();
    if signal == Signal::CONT {
        go_on(process, state);
    } else {
        drop(state);
        if ends {
            process.end_by(information, receiver);
        }
    }
    if searches {
        leave(ReceiverSearch(process.id));
    }
    if sent == Ok(true) {
        process.signals.wake_readers();
    }
    sent.map(|_| ())
}

/// Removes signals of a process and of all its workers.
fn remove_everywhere(process: &Process, state: &mut SignalState, signals: Set) {
    state.remove_all(signals);
    if !state.is_directed {
        return;
    }
    let mut next = Some(0);
    while let Some(slot) = next {
        next = process.visit_some_workers(slot, |worker| {
            state.remove_all_of(&worker.signals, signals);
            true
        });
        // Of many, the others forget theirs when they are looked at. Without memory for that all are visited now.
        if slot == 0 && next.is_some() && state.note_removal(signals) {
            break;
        }
    }
}

/// Finds a worker that receives a signal to its process now, among those that a step looks at; without one, returns the
/// slot from which on others have not been asked. Nothing for a signal to a worker alone.
fn find_receiver(process: &Process, target: Option<&Worker>, signal: Signal) -> (Option<Arc<Worker>>, Option<usize>) {
    let mut found = None;
    if target.is_some() {
        return (None, None);
    }
    let next = process.visit_some_workers(0, |worker| {
        if worker.signals.receives(signal) {
            found = Some(worker.clone());
        }
        found.is_none()
    });
    (found, next)
}

/// The search for receivers of signals to the process with this number, beyond those of whom a step has asked. The
/// signals are pending meanwhile, and a worker that stops blocking one finds it by itself.
struct ReceiverSearch(u32);

impl Remain for ReceiverSearch {
    fn owner(&self) -> Option<u32> {
        Some(self.0)
    }

    fn step(&mut self) -> bool {
        let Some(process) = table::find(self.0) else { return true };
        let mut state = process.signals.state.lock();
        let (mut left, next) = (state.search.left.intersection(state.pending.set()), state.search.next);
        let next = give_to_some(&process, next, &mut left);
        state.search.left = left;
        state.search.has_come_to(next)
    }
}

/// Makes workers look at signals to the process, from this slot on and as far as a step goes, and takes those out that
/// one of them receives. Returns the slot from which on others have not been asked.
fn give_to_some(process: &Process, from: usize, left: &mut Set) -> Option<usize> {
    process.visit_some_workers(from, |one| {
        let received = left.intersection(one.signals.received());
        if !received.is_empty() {
            *left = left.without(received);
            one.set_attention(Attention::SIGNAL);
            one.interrupt();
        }
        !left.is_empty()
    })
}

/// Goes on to search for receivers, if some were not asked and no other does. Called without the lock of the signals.
fn go_on_searching(process: &Process) {
    let searches = process.signals.state.lock().search.is_taken();
    if searches {
        leave(ReceiverSearch(process.id));
    }
}

/// Sends a signal from the kernel, without details.
pub(crate) fn send_from_kernel(process: &Process, signal: Signal) {
    // Without a value there is no error.
    let _ = send(process, None, Information::of_kernel(signal));
}

/// Tells a process that a message has come to a queue, on behalf of the sender, as it has asked for.
#[doc(alias = "__do_notify")]
pub(crate) fn tell_of_message(sender: &Process, notice: Notice) {
    let Some((number, value)) = notice.signal else { return };
    let receiver = table::find(notice.process).filter(|process| process.started == notice.started);
    if let (Some(receiver), Some(signal)) = (receiver, Signal::new(number.into())) {
        let user = sender.identity_value().users.real;
        let details = Details::Sender { process: sender.id, user, value };
        // Without room for the value it is not told, as on Linux.
        let _ = send(&receiver, None, Information { signal, code: code::MESSAGE_QUEUE, details });
    }
}

/// Sends the signal of a timer. One of the same timer that is still pending counts its expirations instead.
pub(crate) fn send_of_timer(process: &Process, target: Option<&Worker>, information: Information) {
    let is_counted = {
        let mut state = process.signals.state.lock();
        state.count_overrun(target.map(|target| &target.signals), &information)
    };
    if !is_counted {
        // Without a value of `sigqueue` there is no error.
        let _ = send(process, target, information);
    }
}

/// Gives the process of a worker the signal of a fault, if it has a handler for it that is not blocked and can begin at
/// this `pc`; otherwise returns `false`, and the fault ends the process.
pub(crate) fn raise_fault(worker: &Worker, pc: u64, signal: Signal, code: i32, address: u64) -> bool {
    if worker.process.shared.is_in_image(pc as usize) {
        return false;
    }
    let mut state = worker.process.signals.state.lock();
    let is_caught = matches!(state.actions.disposition(signal), Disposition::Handle(_));
    if !is_caught || worker.signals.blocked().has(signal) {
        return false;
    }
    let information = Information { signal, code, details: Details::Fault(address) };
    let added = state.add(Some(&worker.signals), information);
    worker.set_attention(Attention::SIGNAL);
    added.is_ok()
}

/// Tells a parent that a child has ended.
pub(crate) fn tell_end(parent: &Process, child: u32, ending: Ending) {
    match ending {
        Ending::Exited(status) => tell_parent(parent, child, code::CHILD_EXITED, status.into()),
        Ending::Killed(signal) => tell_parent(parent, child, code::CHILD_KILLED, signal.into()),
        Ending::Dumped(signal) => tell_parent(parent, child, code::CHILD_DUMPED, signal.into()),
    }
}

/// Tells the parent of a process that this has stopped or gone on.
fn report_change(process: &Process) {
    let Some((parent, mut waiters, signal)) = table::report_change(process) else { return };
    waiters.wake_all();
    let (code, signal) = match signal {
        0 => (code::CHILD_CONTINUED, Signal::CONT.number()),
        signal => (code::CHILD_STOPPED, signal),
    };
    tell_parent(&parent, process.id, code, signal.into());
}

/// Tells a parent that a child has ended, stopped or gone on.
fn tell_parent(parent: &Process, child: u32, code: i32, status: i32) {
    if matches!(code, code::CHILD_STOPPED | code::CHILD_CONTINUED)
        && parent.signals.action(Signal::CHLD).has(action_flag::NOCLDSTOP)
    {
        return;
    }
    let details = Details::Child { process: child, user: 0, status };
    let _ = send(parent, None, Information { signal: Signal::CHLD, code, details });
}

/// Returns whether a signal to this process would end or stop it by default.
pub(crate) fn is_harmful(process: &Process, signal: Signal) -> bool {
    let disposition = process.signals.state.lock().actions.disposition(signal);
    matches!(disposition, Disposition::Default(DefaultAction::End | DefaultAction::Stop))
}

/// Returns whether a signal to stop a process has no effect on it: all its workers block it, or it is ignored, as by
/// the first process unless that has a handler. Only as many threads are asked as one step looks at.
pub(crate) fn has_no_effect(process: &Process, signal: Signal) -> bool {
    let state = process.signals.state.lock();
    match state.actions.disposition(signal) {
        Disposition::Ignore => true,
        Disposition::Default(_) if process.id == FIRST => true,
        _ => process.find_worker(|worker| worker.signals.receives(signal)).is_none(),
    }
}

/// Returns whether a signal to a process, or to one of its workers, has come and has had no effect yet. Only as many
/// threads are asked as one step looks at.
pub(crate) fn is_pending(process: &Process, signal: Signal) -> bool {
    let mut state = process.signals.state.lock();
    let mut is_pending = state.pending.set().has(signal);
    if !is_pending && state.is_directed {
        let _ = process.visit_some_workers(0, |worker| {
            is_pending = state.own(&worker.signals).pending.set().has(signal);
            !is_pending
        });
    }
    is_pending
}

// ---- stopping ----

/// Returns whether a signal that would stop a process has no effect: those of terminals have none in an orphaned group,
/// where no shell could continue the process.
fn is_kept_running(process: &Process, signal: Signal) -> bool {
    signal != Signal::STOP && table::is_orphaned(process.group())
}

/// Stops a process: none of its workers goes on before it is continued. The lock of its signals is held since the
/// signal was taken, so that a continuation that is sent later comes later.
fn stop(process: &Process, state: MutexGuard<'_, SignalState>, signal: Signal) {
    let before = process.signals.stopped.swap(signal.number(), Ordering::AcqRel);
    process.set_stopped(true);
    drop(state);
    if before == 0 {
        // The others look before they go on.
        executor::call_visitors_back(process.id);
        report_change(process);
    }
}

/// Continues a process that is stopped.
fn go_on(process: &Process, state: MutexGuard<'_, SignalState>) {
    let before = process.signals.stopped.swap(0, Ordering::AcqRel);
    process.set_stopped(false);
    drop(state);
    if before != 0 {
        // Taken out of the lock before they are woken.
        let mut waiting = core::mem::take(&mut *process.signals.continued.lock());
        waiting.wake_all();
        report_change(process);
    }
}

/// Registers a worker of a stopped process; returns `false` if it is continued already.
fn holds(process: &Process, waker: &Waker) -> bool {
    let signals = &process.signals;
    // Registered before the look: a later continuation finds the waker. Without memory it looks again.
    if signals.continued.lock().register(waker).is_err() {
        waker.wake_by_ref();
    }
    let is_stopped = signals.are_stopped() && !process.has_ended();
    if !is_stopped {
        signals.continued.lock().forget(waker);
    }
    is_stopped
}

/// Waits until a stopped process is continued or ends.
///
/// # Cancellation
/// Dropping it leaves a waker behind, which is woken for nothing.
pub(crate) async fn until_continued(worker: &Worker) {
    poll_fn(
        |cx| {
            if worker.is_to_stop() || !holds(&worker.process, cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
        },
    )
    .await;
}

// ---- waiting and delivery ----

/// Looks at the signals of a worker that waits in a call.
#[inline(always)]
pub(crate) fn interruption(worker: &Worker, context: &UserContext, waker: &Waker) -> Interruption {
    if worker.needs_attention(&worker.process) {
        look_while_waiting(worker, context, waker)
    } else {
        Interruption::GoOn
    }
}

#[cold]
#[inline(never)]
fn look_while_waiting(worker: &Worker, context: &UserContext, waker: &Waker) -> Interruption {
    let process = &worker.process;
    if worker.take_position_request() {
        callers::print_position(worker, context, Occupation::Call);
    }
    if worker.is_to_stop() {
        return Interruption::Leave;
    }
    loop {
        // All but SIGKILL waits until the process is continued.
        if process.signals.are_stopped() && holds(process, waker) {
            return Interruption::Hold;
        }
        worker.clear_attention(Attention::SIGNAL);
        let mut state = process.signals.state.lock();
        match state.next(&worker.signals, process.id == FIRST, true) {
            NextAction::Nothing => {
                drop(state);
                go_on_searching(process);
                return Interruption::GoOn;
            }
            NextAction::End(information) => {
                drop(state);
                process.end_by(information, Some(worker));
                return Interruption::Leave;
            }
            NextAction::Stop(signal) if is_kept_running(process, signal) => {}
            NextAction::Stop(signal) => stop(process, state, signal),
            NextAction::Handler(signal) => {
                // Its own from here on: no other worker handles it, and lets this one end its call without a handler.
                state.claim(&worker.signals, signal);
                worker.set_attention(Attention::SIGNAL);
                return Interruption::Handler;
            }
        }
    }
}

/// Decides whether the result of a call that was interrupted is `EINTR`. If not, the worker makes it again after the
/// handler, with the registers as they are.
pub(crate) fn ends_call(worker: &Worker, context: &mut UserContext, restart: Restart) -> bool {
    if worker.is_to_stop() {
        return true;
    }
    worker.signals.were_interrupted();
    // Only looked at: a signal that ends or stops the process may have come first meanwhile, and stays pending.
    let handler = worker.process.signals.state.lock().next_handler(&worker.signals);
    let again = match restart {
        // Without a handler another worker was faster.
        Restart::ByFlag => handler.is_none_or(|action| action.has(action_flag::RESTART)),
        Restart::Always => true,
        Restart::Never | Restart::Sleep { .. } => false,
    };
    // Looked at again before user mode.
    worker.set_attention(Attention::SIGNAL);
    if again {
        call_log::is_made_again(worker, context);
        context.pc = context.pc.wrapping_sub(4);
    } else if let Restart::Sleep { deadline } = restart {
        tell_rest_of_sleep(&worker.process, context, deadline);
    }
    !again
}

/// Writes the time that a relative sleep had left when a handler interrupted it, if the program wants to know it.
fn tell_rest_of_sleep(process: &Process, context: &UserContext, deadline: u64) {
    let arguments = context.arguments();
    let address = match SystemCall::from_number(context.call_number() as usize & NUMBER_MASK) {
        Some(SystemCall::Sleep) => arguments[1],
        Some(SystemCall::SleepOn) if arguments[1] as u32 & clock::TIMER_ABSTIME == 0 => arguments[3],
        _ => 0,
    };
    let rest = time::ns_at_ticks(deadline.saturating_sub(Machine::now()));
    if address != 0 {
        // The program's own loss.
        let _ = process.copy_out(address as usize, &TimeSpec::from_ns(rest).to_bytes());
    }
}

/// Answer to a worker that wants to go to user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attended {
    /// It may.
    GoesOn,
    /// Not before its process is continued.
    IsStopped,
    /// Not before others had a turn.
    GivesWay,
    /// Not before pages were fetched.
    Fetches,
    /// It leaves.
    Leaves,
}

/// Does everything that a worker's attention asks for, before it goes to user mode: begins handlers, stops, ends.
#[cold]
#[inline(never)]
pub(crate) fn attend(worker: &Worker, context: &mut UserContext) -> Attended {
    let process = &worker.process;
    // Before its registers become those of a handler.
    call_log::returns(worker, context);
    if worker.take_position_request() {
        callers::print_position(worker, context, Occupation::Run);
    }
    if worker.is_to_stop() {
        return Attended::Leaves;
    }
    // Before handlers: the registers are perhaps those of a call that is made again.
    if worker.fetches() {
        return Attended::Fetches;
    }
    // The scheduler's critical sections lie in its image: no handler runs between their instructions.
    let may_handle = !process.shared.is_in_image(context.pc as usize);
    let mut handlers = 0;
    loop {
        // All but SIGKILL waits until the process is continued.
        if process.signals.are_stopped() {
            return Attended::IsStopped;
        }
        worker.clear_attention(Attention::SIGNAL);
        let mut state = process.signals.state.lock();
        restore_blocked(worker, &mut state, false);
        match state.next(&worker.signals, process.id == FIRST, may_handle) {
            // Some signals may be free now.
            NextAction::Nothing if restore_blocked(worker, &mut state, true) => {}
            NextAction::Nothing => break,
            NextAction::End(information) => {
                drop(state);
                process.end_by(information, Some(worker));
                return Attended::Leaves;
            }
            NextAction::Stop(signal) if is_kept_running(process, signal) => {}
            NextAction::Stop(signal) => stop(process, state, signal),
            NextAction::Handler(_) if handlers == HANDLERS_AT_A_TIME => {
                worker.set_attention(Attention::SIGNAL);
                return Attended::GivesWay;
            }
            NextAction::Handler(signal) => {
                handlers += 1;
                let begun = begin_handler(&mut state, worker, context, signal);
                if begun == Err(Errno::ENOMEM) {
                    drop(state);
                    worker.set_attention(Attention::SIGNAL);
                    process::oom_killer::find_memory();
                    return Attended::GivesWay;
                }
                if begun.is_err() {
                    drop(state);
                    let stack = context.stack();
                    println!("[{}] killed: no stack for a signal at sp {stack:#x}", process.id);
                    process.end_by(Information::of_kernel(Signal::SEGV), Some(worker));
                    return Attended::Leaves;
                }
            }
        }
    }
    go_on_searching(process);
    if !may_handle {
        worker.set_attention(Attention::SIGNAL);
    }
    Attended::GoesOn
}

/// Gives a worker back the blocked signals from before a call that had replaced them: at once, or after its handlers if
/// the call was interrupted. Returns whether there was such a call.
fn restore_blocked(worker: &Worker, state: &mut SignalState, after_handlers: bool) -> bool {
    let mut own = worker.signals.state.lock();
    if own.was_interrupted && !after_handlers {
        return false;
    }
    own.was_interrupted = false;
    worker.clear_attention(Attention::BLOCKED);
    let replaced = own.replaced.take();
    if let Some(blocked) = replaced {
        block(&worker.process, state, worker, blocked);
    }
    replaced.is_some()
}

/// Handlers that begin, one above the other, in one look.
const HANDLERS_AT_A_TIME: usize = 8;

/// Begins the handler of a signal that is pending. Without memory for its frame (`ENOMEM`) nothing has changed.
fn begin_handler(
    state: &mut SignalState,
    worker: &Worker,
    context: &mut UserContext,
    signal: Signal,
) -> Result<(), Errno> {
    let process = &worker.process;
    let mut own = state.own(&worker.signals);
    let blocked = worker.signals.blocked();
    let Disposition::Handle(action) = state.actions.disposition(signal) else { return Ok(()) };
    let found = own.pending.peek(signal).or_else(|| state.pending.peek(signal));
    let Some(information) = found else { return Ok(()) };

    let pointer = context.stack();
    let is_on_stack = own.stack.holds(pointer);
    let changes_stack = action.has(action_flag::ONSTACK) && !is_on_stack && own.stack.flags & Stack::DISABLED == 0;
    let top = if changes_stack { own.stack.start + own.stack.size } else { pointer };
    let place = frame::place(top);
    if is_on_stack && !own.stack.holds(place) {
        // It has overflowed.
        return Err(Errno::EFAULT);
    }
    let kept_stack = Stack { flags: own.stack.flags | if is_on_stack { Stack::ON_STACK } else { 0 }, ..own.stack };
    let mut bytes = [0; frame::SIZE];
    // A call that had replaced the blocked signals gives the old ones back with the frame.
    let old = own.replaced.unwrap_or(blocked);
    Machine::keep_floating_point(context);
    frame::write(&mut bytes, &information, context, old, kept_stack);
    process.copy_out(place as usize, &bytes)?;
    own.replaced = None;
    let _ = (state.actions.take_disposition(signal), state.take(&mut own, signal));
    process.timers.note_taken(&information);
    if own.stack.flags & Stack::AUTO_DISARM != 0 {
        own.stack = Stack::NONE;
    }
    let mut now = blocked.union(action.mask);
    if !action.has(action_flag::NODEFER) {
        now.insert(signal);
    }
    block(process, state, worker, now);
    context.set_register(1, process.shared.image_address().wrapping_add(shared::signal_return()) as u64);
    context.set_register(2, place);
    context.set_register(10, signal.number().into());
    context.set_register(11, place + frame::INFORMATION as u64);
    context.set_register(12, place + frame::CONTEXT as u64);
    context.pc = action.handler & !1;
    Ok(())
}

/// Performs `rt_sigreturn`: takes registers, blocked signals and stack from the frame at the stack pointer. A frame
/// that cannot be read ends the process.
pub(crate) fn return_from_handler(worker: &Worker, context: &mut UserContext) {
    let process = &worker.process;
    let mut bytes = [0; frame::SIZE];
    let read = process.copy_in(context.stack() as usize, &mut bytes).ok();
    // The frame's contents take their place.
    Machine::keep_floating_point(context);
    let Some((blocked, stack)) = read.and_then(|()| frame::read(&bytes, context).ok()) else {
        let stack = context.stack();
        println!("[{}] killed: no frame of a signal at sp {stack:#x}", process.id);
        process.end_by(Information::of_kernel(Signal::SEGV), Some(worker));
        return;
    };
    let mut state = process.signals.state.lock();
    block(process, &mut state, worker, blocked);
    // Errors are ignored, as on Linux.
    let _ = set_stack(&mut worker.signals.state.lock(), stack, context.stack());
    worker.look_again(&mut state);
}

// ---- calls ----

/// Changes the signals that a worker blocks.
pub(crate) fn change_blocked(worker: &Worker, how: Combination, set: Set) -> Result<(), Errno> {
    let mut state = worker.process.signals.state.lock();
    let set = Set::mask(set.bits());
    let now = worker.signals.blocked();
    let new = match how {
        Combination::Add => now.union(set),
        Combination::Remove => now.without(set),
        Combination::Set => set,
    };
    if !new.is_empty() {
        // Blocked signals will be pending: without memory, without their information.
        let _ = state.prepare(&worker.process.account);
    }
    block(&worker.process, &mut state, worker, new);
    worker.look_again(&mut state);
    Ok(())
}

/// Replaces the signals that a worker blocks until its present call is over.
pub(crate) fn replace_blocked(worker: &Worker, set: Set) {
    let mut state = worker.process.signals.state.lock();
    {
        let mut own = worker.signals.state.lock();
        let now = worker.signals.blocked();
        own.replaced.get_or_insert(now);
        own.was_interrupted = false;
    }
    worker.set_attention(Attention::BLOCKED);
    block(&worker.process, &mut state, worker, Set::mask(set.bits()));
    worker.look_again(&mut state);
}

/// Sets the signals that a worker blocks. Another receiver is looked for if a signal to the process that it was to
/// handle is among them.
pub(super) fn block(process: &Process, state: &mut SignalState, worker: &Worker, set: Set) {
    let before = worker.signals.blocked();
    worker.signals.blocked.store(set.bits(), Ordering::Relaxed);
    find_receivers(process, state, state.pending.set().intersection(set.without(before)));
    if state.search.has_no_owner() {
        // It goes on with the search before user mode.
        worker.set_attention(Attention::SIGNAL);
    }
}

/// Makes other workers look at signals to the process. If they are many, the search [goes on](go_on_searching) without
/// the lock.
fn find_receivers(process: &Process, state: &mut SignalState, mut left: Set) {
    if !left.is_empty()
        && let Some(next) = give_to_some(process, 0, &mut left)
    {
        state.search.add(left, next);
    }
}

/// Drops the signals to a worker or thread that has left, and gives those to the process that it was to handle to
/// others.
pub(super) fn has_left(worker: &Worker) {
    let process = &worker.process;
    let mut state = process.signals.state.lock();
    state.forget(&worker.signals);
    if !process.has_ended() {
        let given_up = state.pending.set().intersection(worker.signals.received());
        find_receivers(process, &mut state, given_up);
        drop(state);
        go_on_searching(process);
    }
}

/// Returns and sets the action of a signal.
pub(crate) fn change_action(process: &Process, signal: Signal, action: Option<Action>) -> Result<Action, Errno> {
    let mut state = process.signals.state.lock();
    let old = state.actions.get(signal);
    if let Some(action) = action {
        if Set::UNBLOCKABLE.has(signal) {
            return Err(Errno::EINVAL);
        }
        state.prepare(&process.account)?;
        state.actions.set(signal, action).map_err(|_| Errno::ENOMEM)?;
        if state.actions.disposition(signal) == Disposition::Ignore {
            remove_everywhere(process, &mut state, Set::of(&[signal]));
        }
    }
    Ok(old)
}

/// Returns the signals that are pending for a worker and blocked.
pub(crate) fn pending(worker: &Worker) -> Set {
    let mut state = worker.process.signals.state.lock();
    let own = state.own(&worker.signals).pending.set();
    own.union(state.pending.set()).intersection(worker.signals.blocked())
}

/// Takes the first of some signals that is pending for a reader: of those to its own thread alone, or else of those to
/// the process. A reader that is no thread has only the latter.
#[doc(alias = "dequeue_signal")]
pub(super) fn take_readable(process: &Process, reader: Option<&Worker>, set: Set) -> Option<Information> {
    let mut state = process.signals.state.lock();
    let of_reader = reader.and_then(|reader| {
        let mut own = state.own(&reader.signals);
        own.pending.set().intersection(set).first().and_then(|signal| state.take(&mut own, signal))
    });
    let taken = match of_reader {
        Some(information) => Some(information),
        None => state.pending.set().intersection(set).first().and_then(|signal| state.take_of_all(signal)),
    };
    taken.inspect(|information| process.timers.note_taken(information))
}

/// Returns whether one of some signals is pending for such a reader.
pub(super) fn has_readable(process: &Process, reader: Option<&Worker>, set: Set) -> bool {
    let mut state = process.signals.state.lock();
    let own = reader.map_or(Set::EMPTY, |reader| state.own(&reader.signals).pending.set());
    !state.pending.set().union(own).intersection(set).is_empty()
}

/// Returns the stack for handlers, and sets another one. `EPERM` while the worker runs on it; `ENOMEM` if the new one
/// is too small.
pub(crate) fn change_stack(worker: &Worker, pointer: u64, stack: Option<Stack>) -> Result<Stack, Errno> {
    let mut own = worker.signals.state.lock();
    let is_on_stack = own.stack.holds(pointer);
    let old = Stack { flags: own.stack.flags | if is_on_stack { Stack::ON_STACK } else { 0 }, ..own.stack };
    if let Some(stack) = stack {
        set_stack(&mut own, stack, pointer)?;
    }
    Ok(old)
}

fn set_stack(own: &mut OwnState, stack: Stack, pointer: u64) -> Result<(), Errno> {
    if own.stack.holds(pointer) && own.stack.flags & Stack::AUTO_DISARM == 0 {
        return Err(Errno::EPERM);
    }
    let mode = stack.flags & !Stack::AUTO_DISARM;
    own.stack = match mode {
        Stack::DISABLED => Stack::NONE,
        0 | Stack::ON_STACK if stack.size < Stack::SMALLEST => return Err(Errno::ENOMEM),
        0 | Stack::ON_STACK if stack.start.checked_add(stack.size).is_none() => return Err(Errno::ENOMEM),
        0 | Stack::ON_STACK => Stack { flags: stack.flags & Stack::AUTO_DISARM, ..stack },
        _ => return Err(Errno::EINVAL),
    };
    Ok(())
}

impl SignalWait {
    /// Waits.
    ///
    /// # Cancellation
    /// Dropping it takes everything back; no signal is lost.
    pub(crate) async fn wait(self, worker: &Arc<Worker>, context: &UserContext) -> Result<usize, Errno> {
        let deadline = match self {
            SignalWait::Handler => None,
            SignalWait::One { deadline, .. } => deadline,
        };
        let awaited = match self {
            SignalWait::Handler => Set::EMPTY,
            SignalWait::One { set, .. } => set,
        };
        let mut waiting = Awaiting { worker, awaited, alarm: None };
        poll_fn(|cx| {
            if let SignalWait::One { set, information, .. } = self
                && let Some(found) = take_awaited(worker, set)
            {
                return Poll::Ready(accept(&worker.process, &found, information));
            }
            match interruption(worker, context, cx.waker()) {
                Interruption::Handler | Interruption::Leave => return Poll::Ready(Err(Errno::EINTR)),
                Interruption::Hold => return Poll::Pending,
                Interruption::GoOn => {}
            }
            if let Some(deadline) = deadline {
                if Machine::now() >= deadline {
                    return Poll::Ready(Err(Errno::EAGAIN));
                }
                waiting.alarm.get_or_insert_with(|| worker.deadline().set(deadline, cx.waker()));
            }
            Poll::Pending
        })
        .await
    }
}

/// State of a wait for signals that is taken back at its end, whatever that is.
struct Awaiting<'a> {
    worker: &'a Worker,
    awaited: Set,
    alarm: Option<Alarm>,
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            crate::time::clear(alarm);
        }
        if !self.awaited.is_empty() {
            let process = &self.worker.process;
            let mut state = process.signals.state.lock();
            self.worker.signals.awaited.store(Set::EMPTY.bits(), Ordering::Relaxed);
            // Signals that came for it meanwhile may be those of other waiters.
            let given_up = state.pending.set().intersection(self.awaited);
            find_receivers(process, &mut state, given_up);
            drop(state);
            go_on_searching(process);
        }
    }
}

/// Takes the first pending one of some signals; without one, lets them wake the worker although it blocks them.
fn take_awaited(worker: &Worker, set: Set) -> Option<Information> {
    let mut state = worker.process.signals.state.lock();
    let mut own = state.own(&worker.signals);
    let found = own.pending.set().union(state.pending.set()).intersection(set).first();
    match found {
        Some(signal) => {
            let taken = state.take(&mut own, signal);
            taken.inspect(|information| worker.process.timers.note_taken(information))
        }
        None => {
            worker.signals.awaited.store(set.bits(), Ordering::Relaxed);
            None
        }
    }
}

fn accept(process: &Process, found: &Information, address: usize) -> Result<usize, Errno> {
    if address != 0 {
        process.copy_out(address, &found.to_bytes())?;
    }
    Ok(found.signal.number().into())
}

#[cfg(test)]
mod tests {
    use ::signals::Pending;
    use abi_queue::Priority;
    use abi_unix::SystemCall;
    use abi_unix::types::{self, TimeSpec, signal};
    use alloc::vec::Vec;

    use super::*;
    use crate::testing::{Program, SIGNAL_HANDLER, run, run_to_its_end};

    const TERM: usize = signal::TERM as usize;
    const USR1: usize = 10;
    const REAL_TIME: usize = 40;

    fn act(program: &mut Program, signal: usize, handler: usize, flags: u64, mask: u64) -> Result<usize, Errno> {
        let action = Action { handler: handler as u64, flags, mask: Set::from_bits(mask) };
        let place = program.store(&action.to_bytes());
        program.call(SystemCall::SignalAction, [signal, place, 0, 8])
    }

    fn handle(program: &mut Program, signal: usize, flags: u64) {
        assert_eq!(act(program, signal, SIGNAL_HANDLER, flags, 0), Ok(0));
    }

    fn block(program: &mut Program, how: usize, set: u64) -> u64 {
        let (place, old) = (program.store(&set.to_le_bytes()), program.place(8));
        assert_eq!(program.call(SystemCall::SignalMask, [how, place, old, 8]), Ok(0));
        program.read_u64(old)
    }

    fn kill(program: &mut Program, target: usize, signal: usize) -> Result<usize, Errno> {
        program.call(SystemCall::Kill, [target, signal])
    }

    fn bit(signal: usize) -> u64 {
        1 << (signal - 1)
    }

    /// Numbers of the signals that were handled.
    fn handled(program: &Program) -> Vec<u8> {
        program.signals().iter().map(|frame| frame[0]).collect()
    }

    fn word(frame: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(frame[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn a_handler_runs_with_its_information_and_returns() {
        run(|program| {
            let own = program.id as usize;
            act(program, USR1, SIGNAL_HANDLER, action_flag::SIGINFO, bit(TERM)).unwrap();
            assert_eq!(kill(program, own, USR1), Ok(0), "the result comes back with the registers");
            let frames = program.signals();
            assert_eq!(handled(program), [10]);
            assert_eq!(word(&frames[0], 8) as i32, code::USER);
            assert_eq!(word(&frames[0], 16), own as u64, "the sender");
            assert_eq!(block(program, 2, 0), 0, "the blocked signals of the handler are free again");
            // An action can be read, and the handler be given up.
            let old = program.place(Action::SIZE);
            assert_eq!(program.call(SystemCall::SignalAction, [USR1, 0, old, 8]), Ok(0));
            assert_eq!(program.read_u64(old), SIGNAL_HANDLER as u64);
            act(program, USR1, Action::IGNORE as usize, 0, 0).unwrap();
            assert_eq!(kill(program, own, USR1), Ok(0));
            assert_eq!(handled(program).len(), 1);
        });
    }

    #[test]
    fn illegal_requests_are_refused() {
        run(|program| {
            let own = program.id as usize;
            for (signal, error) in [(0, Errno::EINVAL), (65, Errno::EINVAL), (9, Errno::EINVAL), (19, Errno::EINVAL)] {
                assert_eq!(act(program, signal, SIGNAL_HANDLER, 0, 0), Err(error));
            }
            let place = program.place(128);
            assert_eq!(program.call(SystemCall::SignalAction, [USR1, place, 0, 16]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SignalAction, [USR1, 0x1000, 0, 8]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::SignalMask, [3, place, 0, 8]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SignalMask, [0, place, 0, 4]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SignalMask, [9, 0, place, 8]), Ok(0), "only a look");
            assert_eq!(program.call(SystemCall::SignalSuspend, [place, 4]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SignalPending, [place, 9]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SignalWait, [place, 0, 0, 4]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::KillThread, [0, USR1]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::KillThread, [own, 65]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::KillThread, [own + 0x50_0000, 0]), Err(Errno::ESRCH));
            assert_eq!(program.call(SystemCall::KillThreadOf, [own + 1, own, 0]), Err(Errno::ESRCH));
            assert_eq!(program.call(SystemCall::KillThreadOf, [own, own, 0]), Ok(0));
            // The information of the kernel can be forged towards oneself only.
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000)).unwrap();
            program.write(place, &[0; 128]);
            assert_eq!(program.call(SystemCall::SignalQueue, [child, USR1, place]), Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::SignalQueue, [child, 0, place]), Ok(0));
            assert_eq!(kill(program, child, 9), Ok(0));
            assert_eq!(program.wait_for(child), Ok((child, 9)));
        });
    }

    #[test]
    fn blocked_signals_wait_and_come_in_their_order() {
        run(|program| {
            let own = program.id as usize;
            for signal in [USR1, TERM, REAL_TIME] {
                handle(program, signal, 0);
            }
            assert_eq!(block(program, 0, bit(USR1) | bit(TERM) | bit(REAL_TIME)), 0);
            for _ in 0..3 {
                for signal in [REAL_TIME, TERM, USR1] {
                    assert_eq!(kill(program, own, signal), Ok(0));
                }
            }
            let place = program.place(8);
            assert_eq!(program.call(SystemCall::SignalPending, [place, 8]), Ok(0));
            assert_eq!(program.read_u64(place), bit(USR1) | bit(TERM) | bit(REAL_TIME));
            assert!(handled(program).is_empty());
            assert_eq!(block(program, 1, bit(TERM)), bit(USR1) | bit(TERM) | bit(REAL_TIME));
            assert_eq!(handled(program), [15]);
            block(program, 2, 0);
            // A frame lies on the one before: the last begun runs first.
            let mut rest = handled(program).split_off(1);
            rest.sort_unstable();
            assert_eq!(rest, [10, 40, 40, 40]);
        });
    }

    /// Of more threads than a step looks at, the only one that receives a signal gets it, and signals that are removed
    /// from all are removed from each.
    #[test]
    fn signals_reach_the_last_of_many_threads() {
        use abi_unix::types::clone;
        const MANY: usize = 300;
        const TSTP: usize = 20;
        run(|program| {
            let own = program.id as usize;
            block(program, 2, !0);
            let (word, found) = (program.place(8), program.place(8));
            let flags = (clone::SHARED | clone::SETTLS) as usize;
            let threads: Vec<usize> = (0..MANY)
                .map(|number| {
                    let body = program.identity_for(move |program| {
                        if number + 1 == MANY {
                            let set = program.store(&bit(USR1).to_le_bytes());
                            let result = program.call(SystemCall::SignalWait, [set, 0, 0, 8]);
                            program.write(found, &result.unwrap().to_le_bytes());
                        }
                        let _ = program.call(SystemCall::Futex, [word, 0, 0, 0]);
                    });
                    program.call(SystemCall::Clone, [flags, 0x3_0000, 0, body, 0]).unwrap()
                })
                .collect();
            program.sleep_ns(10_000_000);
            // Two at once: the second comes while a receiver of the first is looked for.
            assert_eq!(kill(program, own, REAL_TIME), Ok(0));
            assert_eq!(kill(program, own, USR1), Ok(0));
            program.sleep_ns(10_000_000);
            assert_eq!(program.read_u64(found), 10);
            let process = program.process();
            assert!(!process.signals.state.lock().search.has_no_owner());

            // The OOM killer prefers some of them at a time, and none twice before all.
            let worker = |thread: &usize| process.worker_or_thread((thread - own) / 0x1_0000).unwrap();
            let is_preferred =
                |thread: &&usize| executor::priority(worker(thread).coroutine()) == Some(Priority::HIGHEST);
            let preferred = |process: &Process| {
                process.boost();
                threads.iter().filter(is_preferred).count()
            };
            let counts: Vec<usize> = (0..=MANY.div_ceil(32)).map(|_| preferred(&process)).collect();
            assert!(counts.windows(2).all(|pair| pair[1] - pair[0] <= 32), "{counts:?}");
            assert!(counts[0] <= 32 && counts.ends_with(&[MANY]), "{counts:?}");

            let pending = |signal: usize| {
                let has = |thread: &usize| {
                    let worker = process.worker_or_thread((thread - own) / 0x1_0000).unwrap();
                    let mut state = process.signals.state.lock();
                    state.own(&worker.signals).pending.set().bits() & bit(signal) != 0
                };
                threads.iter().filter(|thread| has(thread)).count()
            };
            for &thread in &threads {
                assert_eq!(program.call(SystemCall::KillThread, [thread, TSTP]), Ok(0));
                assert_eq!(program.call(SystemCall::KillThread, [thread, REAL_TIME]), Ok(0));
            }
            assert_eq!((pending(TSTP), pending(REAL_TIME)), (MANY, MANY));
            let queued = || process.signals.state.lock().queued;
            let before = queued();
            assert_eq!(kill(program, own, signal::CONT as usize), Ok(0));
            // A later one stays.
            for thread in [threads[0], threads[MANY - 1]] {
                assert_eq!(program.call(SystemCall::KillThread, [thread, TSTP]), Ok(0));
            }
            assert_eq!((pending(TSTP), pending(REAL_TIME)), (2, MANY));
            assert!(queued() < before);
            act(program, REAL_TIME, Action::IGNORE as usize, 0, 0).unwrap();
            assert_eq!(pending(REAL_TIME), 0);
            assert_eq!(kill(program, own, signal::CONT as usize), Ok(0));
            assert_eq!((pending(TSTP), queued()), (0, 1), "that to the process is left");
        });
    }

    /// A call that waits is over when its handler has run, or is made again.
    #[test]
    fn handlers_interrupt_a_wait() {
        for (flags, expected) in [(0, Err(Errno::EINTR)), (action_flag::RESTART, Ok(b"x".to_vec()))] {
            run(move |program| {
                handle(program, USR1, flags);
                let (reader, writer) = program.pipe(0);
                let own = program.id as usize;
                let other = program
                    .add_worker(move |program| {
                        program.sleep_ns(1_000_000);
                        assert_eq!(kill(program, own, USR1), Ok(0));
                        program.sleep_ns(1_000_000);
                        assert_eq!(program.write_to(writer, b"x"), Ok(1));
                        program.sleep_ns(1_000_000);
                    })
                    .unwrap();
                assert_eq!(other, 1);
                // The first worker receives what is sent to the process.
                assert_eq!(program.read_from(reader, 5), expected);
                assert_eq!(handled(program), [10]);
                program.sleep_ns(5_000_000);
            });
        }
    }

    /// Stores the header of a message with so many buffers of this length, which lie over each other, and these bytes
    /// of control messages; returns its address.
    fn message(program: &mut Program, (count, length): (usize, usize), control: &[u8]) -> usize {
        let control = (program.store(control), control.len());
        program.message_header(&alloc::vec![(crate::testing::DATA, length); count], control)
    }

    fn stream(program: &mut Program) -> (usize, usize) {
        program.socket_pair(types::SOCK_STREAM)
    }

    /// A message that waits is over, or made again with everything that it carries; bytes that were moved count.
    #[test]
    fn handlers_interrupt_messages() {
        for (flags, again) in [(0, false), (action_flag::RESTART, true)] {
            run(move |program| {
                handle(program, USR1, flags);
                let (a, b) = stream(program);
                let (reader, writer) = program.pipe(abi_unix::types::open::NONBLOCK);
                let own = program.id as usize;
                let (much, rest) = (message(program, (5, 16_384), &[]), message(program, (8, 16_384), &[]));
                program
                    .add_worker(move |program| {
                        // A receiver of nothing, and one of a part.
                        program.sleep_ns(1_000_000);
                        kill(program, own, USR1).unwrap();
                        program.sleep_ns(1_000_000);
                        program.write_to(a, b"one").unwrap();
                        program.sleep_ns(1_000_000);
                        program.write_to(a, b"two").unwrap();
                        program.sleep_ns(1_000_000);
                        kill(program, own, USR1).unwrap();
                        // A sender of a part, and one of nothing.
                        for _ in 0..2 {
                            program.sleep_ns(1_000_000);
                            kill(program, own, USR1).unwrap();
                        }
                        program.sleep_ns(1_000_000);
                        assert_eq!(program.call(SystemCall::ReceiveMessage, [b, rest, 0]), Ok(65_536));
                        program.sleep_ns(1_000_000);
                    })
                    .unwrap();
                let bytes = message(program, (1, 8), &[]);
                let interrupted = |result: usize| if again { Ok(result) } else { Err(Errno::EINTR) };
                assert_eq!(program.call(SystemCall::ReceiveMessage, [b, bytes, 0]), interrupted(3));
                if !again {
                    assert_eq!(program.call(SystemCall::ReceiveMessage, [b, bytes, 0]), Ok(3));
                }
                let all = types::message::WAITALL as usize;
                assert_eq!(program.call(SystemCall::ReceiveMessage, [b, bytes, all]), Ok(3), "a part came");
                assert_eq!(handled(program), [10, 10]);
                assert_eq!(program.call(SystemCall::SendMessage, [a, much, 0]), Ok(65_536), "there is no more room");
                let rights = [20u64.to_le_bytes(), [1, 0, 0, 0, 1, 0, 0, 0]].concat();
                let rights = [&rights[..], &(writer as u32).to_le_bytes()].concat();
                let with_file = message(program, (1, 2), &rights);
                assert_eq!(program.call(SystemCall::SendMessage, [a, with_file, 0]), interrupted(2));
                program.close(writer).unwrap();
                let end = if again { Err(Errno::EAGAIN) } else { Ok(vec![]) };
                assert_eq!(program.read_from(reader, 1), end, "the file is under way only if it was sent");
                program.sleep_ns(5_000_000);
            });
        }
    }

    #[test]
    fn a_sleep_is_never_made_again_and_tells_its_rest() {
        run(|program| {
            handle(program, USR1, action_flag::RESTART);
            let own = program.id as usize;
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    assert_eq!(program.call(SystemCall::KillThread, [own, USR1]), Ok(0));
                    program.sleep_ns(1_000_000);
                })
                .unwrap();
            let (time, rest) = (program.store(&TimeSpec::from_ns(10_000_000).to_bytes()), program.place(16));
            assert_eq!(program.call(SystemCall::Sleep, [time, rest]), Err(Errno::EINTR));
            let rest = TimeSpec::from_bytes(program.read(rest, 16).try_into().unwrap()).to_ns().unwrap();
            assert!((8_000_000..9_100_000).contains(&rest), "{rest}");
            program.sleep_ns(2_000_000);
        });
    }

    /// Ignored signals, and those of other threads, leave a wait alone.
    #[test]
    fn signals_without_a_handler_wake_no_wait() {
        run(|program| {
            act(program, USR1, Action::IGNORE as usize, 0, 0).unwrap();
            let own = program.id as usize;
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    for signal in [USR1, signal::CHLD as usize, signal::CONT as usize, signal::WINCH as usize] {
                        assert_eq!(kill(program, own, signal), Ok(0));
                    }
                    program.sleep_ns(1_000_000);
                })
                .unwrap();
            program.sleep_ns(5_000_000);
            assert!(handled(program).is_empty());
        });
    }

    #[test]
    fn a_suspended_worker_goes_on_behind_its_handler() {
        run(|program| {
            handle(program, USR1, 0);
            let own = program.id as usize;
            block(program, 0, bit(USR1) | bit(TERM));
            assert_eq!(kill(program, own, USR1), Ok(0));
            assert!(handled(program).is_empty());
            let mask = program.store(&bit(TERM).to_le_bytes());
            assert_eq!(program.call(SystemCall::SignalSuspend, [mask, 8]), Err(Errno::EINTR));
            assert_eq!(handled(program), [10]);
            assert_eq!(word(&program.signals()[0], 168), bit(USR1) | bit(TERM), "the frame has the old set");
            assert_eq!(block(program, 0, 0), bit(USR1) | bit(TERM));
        });
    }

    #[test]
    fn awaited_signals_are_taken_without_a_handler() {
        run(|program| {
            let own = program.id as usize;
            block(program, 0, bit(USR1) | bit(REAL_TIME));
            let set = program.store(&(bit(USR1) | bit(REAL_TIME)).to_le_bytes());
            let information = program.place(128);
            let limit = program.store(&TimeSpec::from_ns(1_000_000).to_bytes());
            let wait = [set, information, limit, 8];
            assert_eq!(program.call(SystemCall::SignalWait, wait), Err(Errno::EAGAIN));
            // One with a value, from itself.
            let mut sent = [0; 128];
            sent[8..12].copy_from_slice(&code::QUEUE.to_le_bytes());
            sent[24..32].copy_from_slice(&77u64.to_le_bytes());
            let place = program.store(&sent);
            assert_eq!(program.call(SystemCall::SignalQueue, [own, REAL_TIME, place]), Ok(0));
            assert_eq!(program.call(SystemCall::SignalWait, wait), Ok(REAL_TIME));
            assert_eq!(program.read_u64(information + 24), 77);
            // One that comes while it waits.
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    assert_eq!(program.call(SystemCall::KillThreadOf, [own, own, USR1]), Ok(0));
                    program.sleep_ns(1_000_000);
                })
                .unwrap();
            assert_eq!(program.call(SystemCall::SignalWait, [set, information, 0, 8]), Ok(USR1));
            assert_eq!(program.read_u32(information + 8) as i32, code::THREAD);
            program.sleep_ns(2_000_000);
        });
    }

    #[test]
    fn queues_are_bounded() {
        run(|program| {
            let own = program.id as usize;
            block(program, 0, bit(REAL_TIME) | bit(USR1));
            let mut sent = [0; 128];
            sent[8..12].copy_from_slice(&code::QUEUE.to_le_bytes());
            let place = program.store(&sent);
            for _ in 0..Pending::LONGEST {
                assert_eq!(program.call(SystemCall::SignalQueue, [own, REAL_TIME, place]), Ok(0));
            }
            assert_eq!(program.call(SystemCall::SignalQueue, [own, REAL_TIME, place]), Err(Errno::EAGAIN));
            assert_eq!(program.call(SystemCall::SignalQueueThread, [own, own, REAL_TIME, place]), Err(Errno::EAGAIN));
            assert_eq!(kill(program, own, USR1), Ok(0), "without its information");
            let set = program.store(&(bit(USR1) | bit(REAL_TIME)).to_le_bytes());
            for expected in core::iter::once(USR1).chain((0..Pending::LONGEST).map(|_| REAL_TIME)) {
                assert_eq!(program.call(SystemCall::SignalWait, [set, 0, 0, 8]), Ok(expected));
            }
            assert_eq!(program.call(SystemCall::SignalQueue, [own, REAL_TIME, place]), Ok(0), "there is room again");
        });
    }

    #[test]
    fn a_stopped_process_goes_on_where_it_was() {
        run(|program| {
            let child = program.spawn(|program| program.sleep_ns(10_000_000)).unwrap();
            program.sleep_ns(1_000_000);
            let place = program.place(8);
            let options = (types::WUNTRACED | types::WCONTINUED) as usize;
            let wait = |program: &mut Program, more: u32| {
                let result = program.call(SystemCall::Wait, [child, place, options | more as usize, 0]);
                result.map(|child| (child, program.read_u32(place)))
            };
            assert_eq!(wait(program, types::WNOHANG).map(|found| found.0), Ok(0));
            assert_eq!(kill(program, child, 19), Ok(0));
            assert_eq!(wait(program, 0), Ok((child, 0x137f)));
            assert_eq!(wait(program, types::WNOHANG).map(|found| found.0), Ok(0), "told once");
            // Its sleep is over long since.
            program.sleep_ns(50_000_000);
            assert_eq!(program.call(SystemCall::Wait, [child, place, types::WNOHANG as usize, 0]), Ok(0));
            assert_eq!(kill(program, child, signal::CONT as usize), Ok(0));
            assert_eq!(wait(program, 0), Ok((child, types::CONTINUED)));
            assert_eq!(wait(program, 0), Ok((child, 0)));
        });
    }

    #[test]
    fn a_stopped_process_can_be_ended() {
        run(|program| {
            let child = program
                .spawn(|program| {
                    program.add_worker(|program| program.sleep_ns(1_000_000_000)).unwrap();
                    loop {
                        program.call(SystemCall::GetProcess, []).unwrap();
                    }
                })
                .unwrap();
            program.sleep_ns(1_000_000);
            // In a group that this process could continue.
            program.call(SystemCall::SetProcessGroup, [child, 0]).unwrap();
            assert_eq!(kill(program, child, 20), Ok(0));
            program.sleep_ns(1_000_000);
            assert!(table::find(child as u32).unwrap().signals.are_stopped());
            assert_eq!(kill(program, child, 9), Ok(0));
            assert_eq!(program.wait_for(child), Ok((child, 9)));
        });
    }

    #[test]
    fn the_end_of_a_child_is_a_signal() {
        run(|program| {
            handle(program, signal::CHLD as usize, action_flag::RESTART);
            let child = program.spawn(|program| {
                let _ = program.call(SystemCall::ExitGroup, [3]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0x300)));
            program.sleep_ns(1_000_000);
            let frames = program.signals();
            assert_eq!(handled(program), [17]);
            assert_eq!((word(&frames[0], 16) as usize, word(&frames[0], 24)), (child, 3));
            // A parent that ignores it gets no zombies.
            act(program, signal::CHLD as usize, Action::IGNORE as usize, 0, 0).unwrap();
            let child = program.spawn(|_| {}).unwrap();
            assert_eq!(program.wait_for(child), Err(Errno::ECHILD));
            assert!(!table::exists(child as u32));
        });
    }

    #[test]
    fn faults_go_to_their_handler() {
        use hal_api::{Access, Trap};
        run(|program| {
            handle(program, signal::SEGV as usize, 0);
            program.trap(Trap::PageFault { address: 0x5678, access: Access::Read });
            let frames = program.signals();
            assert_eq!(handled(program), [11]);
            assert_eq!((word(&frames[0], 8) as i32, word(&frames[0], 16)), (code::NOT_MAPPED, 0x5678));
        });
        // One that is blocked cannot wait.
        let ending = run_to_its_end(|program| {
            handle(program, signal::SEGV as usize, 0);
            block(program, 0, bit(signal::SEGV as usize));
            program.trap(Trap::PageFault { address: 0x5678, access: Access::Read });
        });
        assert_eq!(ending, Ending::Killed(11));
    }

    #[test]
    fn workers_that_have_left_receive_nothing() {
        run(|program| {
            let child = program.spawn(|program| {
                program.add_worker(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
                let _ = program.call(SystemCall::Exit, [0]);
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000);
            // The number of the first worker, which has left, is the process's.
            assert_eq!(program.call(SystemCall::KillThreadOf, [child, child, TERM]), Err(Errno::ESRCH));
            assert_eq!(kill(program, child, TERM), Ok(0));
            assert_eq!(program.wait_for(child), Ok((child, signal::TERM)));
        });
    }

    #[test]
    fn a_continuation_takes_stops_of_single_workers_back_and_the_other_way_round() {
        const TTIN: usize = 21;
        run(|program| {
            let own = program.id as usize;
            handle(program, signal::CONT as usize, 0);
            let place = program.place(8);
            block(program, 2, bit(TTIN) | bit(signal::CONT as usize));
            let stops = |program: &mut Program| program.call(SystemCall::KillThreadOf, [own, own, TTIN]);
            let pending = |program: &mut Program| {
                assert_eq!(program.call(SystemCall::SignalPending, [place, 8]), Ok(0));
                program.read_u64(place)
            };
            assert_eq!(stops(program), Ok(0));
            assert_eq!(pending(program), bit(TTIN));
            assert_eq!(kill(program, own, signal::CONT as usize), Ok(0));
            assert_eq!(pending(program), bit(signal::CONT as usize));
            assert_eq!(stops(program), Ok(0));
            assert_eq!(pending(program), bit(TTIN));
            // An action that ignores a signal drops what is pending of it.
            act(program, TTIN, Action::IGNORE as usize, 0, 0).unwrap();
            assert_eq!(pending(program), 0);
            block(program, 2, 0);
            assert!(handled(program).is_empty());
        });
    }

    #[test]
    fn new_workers_block_the_signals_of_their_creator() {
        run(|program| {
            block(program, 2, bit(USR1));
            let (place, done) = (program.place(8), program.place(8));
            let added = program.add_worker(move |program| {
                assert_eq!(program.call(SystemCall::SignalMask, [0, 0, place, 8]), Ok(0));
                assert_eq!(program.read_u64(place), bit(USR1));
                program.write(done, &[1]);
            });
            added.unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(program.read(done, 1), [1]);
            block(program, 2, 0);
        });
    }

    #[test]
    fn handlers_can_have_a_stack_of_their_own() {
        run(|program| {
            let own = program.id as usize;
            let start = program.place(4096) as u64;
            let stack = |program: &mut Program, stack: Stack| {
                let (new, old) = (program.store(&stack.to_bytes()), program.place(Stack::SIZE));
                let result = program.call(SystemCall::SignalStack, [new, old]);
                let old = Stack::from_bytes(&program.read(old, Stack::SIZE).try_into().unwrap());
                result.map(|_| old)
            };
            assert_eq!(stack(program, Stack { start, flags: 0, size: 2047 }), Err(Errno::ENOMEM));
            assert_eq!(stack(program, Stack { start, flags: 8, size: 4096 }), Err(Errno::EINVAL));
            assert_eq!(stack(program, Stack { start: u64::MAX, flags: 0, size: 4096 }), Err(Errno::ENOMEM));
            let mine = Stack { start, flags: 0, size: 4096 };
            assert_eq!(stack(program, mine), Ok(Stack::NONE));
            handle(program, USR1, action_flag::ONSTACK);
            assert_eq!(kill(program, own, USR1), Ok(0));
            let frames = program.signals();
            assert_eq!(word(&frames[0], 144), start, "the frame has the stack");
            let there = program.read(frame::place(start + 4096) as usize, 4);
            assert_eq!(there, [10, 0, 0, 0], "and lies on it");
            assert_eq!(stack(program, Stack::NONE), Ok(mine));
        });
    }

    /// Frames are memory of the program: without one, and without a stack for one, the process ends.
    #[test]
    fn frames_that_cannot_be_read_or_written_end_the_process() {
        let ending = run_to_its_end(|program| {
            // Either there is no memory for a whole frame, or it announces further registers.
            let end = program.stack + frame::SIZE - 8;
            let _ = program.process().copy_out(end, &[1; 8]);
            let _ = program.call(SystemCall::SignalReturn, []);
        });
        assert_eq!(ending, Ending::Killed(11));
        let ending = run_to_its_end(|program| {
            let own = program.id as usize;
            let stack = Stack { start: 0x1000, flags: 0, size: 4096 };
            let place = program.store(&stack.to_bytes());
            assert_eq!(program.call(SystemCall::SignalStack, [place, 0]), Ok(0));
            handle(program, USR1, action_flag::ONSTACK);
            let _ = kill(program, own, USR1);
        });
        assert_eq!(ending, Ending::Killed(11));
    }

    /// A set that replaces the blocked one for a call gives way to the old one, whatever the call's result is.
    #[test]
    fn sets_of_a_call_are_restored() {
        run(|program| {
            handle(program, USR1, 0);
            let own = program.id as usize;
            block(program, 0, bit(USR1));
            assert_eq!(kill(program, own, USR1), Ok(0));
            let (mask, limit) = (program.store(&0u64.to_le_bytes()), program.store(&TimeSpec::from_ns(0).to_bytes()));
            // A time limit of 0 is no wait: nothing is delivered.
            assert_eq!(program.call(SystemCall::Poll, [0, 0, limit, 0, 8]), Ok(0));
            assert!(handled(program).is_empty());
            let limit = program.store(&TimeSpec::from_ns(5_000_000).to_bytes());
            assert_eq!(program.call(SystemCall::Poll, [0, 0, limit, mask, 8]), Err(Errno::EINTR));
            assert_eq!(handled(program), [10]);
            assert_eq!(block(program, 0, 0), bit(USR1));
        });
    }
}
