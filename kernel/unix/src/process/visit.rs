//! A visit to user mode: the kernel's work from the moment at which a worker gets a hart until it pauses.
//!
//! User mode is a call that returns a trap. A system call is dispatched and the program goes on; an interrupt is served
//! and the program goes on, unless something else must run; a fault is mended, or becomes a signal of the process.

use alloc::sync::Arc;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use ::signals::{Details, Information, Signal, code};
use abi_queue::Priority;
use abi_unix::Counter;
use abi_unix::trace::{Cause, Kind, Reason};
use hal_api::{Access, Machine as _, Trap, UserContext};
use platform::{Machine, Pending};

use crate::asynchronous::user_interrupts::{self, back_end};
use crate::calls;
use crate::calls::call::{Outcome, Pause};
use crate::calls::fetching::Fetch;
use crate::observing::{call_log, callers, counters, trace};
use crate::process::signal_delivery::Attended;
use crate::process::worker::{PagesOf, Worker};
use crate::process::{self, Process, program, shared, signal_delivery};
use crate::scheduling::{self, executor, payers, standing, stretch};
use crate::time;

/// Number of times that a worker may finish a critical section in the scheduler's image before it yields.
const MAXIMUM_GRACES: u32 = 4;

/// Runs user mode, and everything that can be done without waiting, until the coroutine has to pause.
#[doc(alias = "exit_to_user_mode")]
#[doc(alias = "entry")]
pub(crate) fn visit(worker: &Arc<Worker>, context: &mut UserContext) -> Pause {
    let (visit, importance) = Visit::begin(worker, context);
    let goes = executor::may_visit(importance) || worker.is_to_stop();
    let pause = if goes { visit.run(context) } else { Pause::GiveWay };
    visit.end(context, &pause);
    pause
}

/// A visit of a worker on a hart.
#[derive(Clone, Copy)]
struct Visit<'a> {
    worker: &'a Arc<Worker>,
    hart: usize,
    /// Whether interrupts of programs come in hardware.
    in_hardware: bool,
}

impl<'a> Visit<'a> {
    /// Publishes that the worker is on this hart, and its importance there.
    #[inline(always)]
    fn begin(worker: &'a Arc<Worker>, context: &UserContext) -> (Visit<'a>, Priority) {
        let hart = Machine::hart();
        time::start_slice();
        trace::of_worker(
            Kind::UserBegins,
            worker.process.id,
            worker.index(),
            executor::current_priority().number().into(),
            0,
        );
        worker.count_turn();
        counters::count(Counter::Switches);
        // A worker may have been woken at a priority that its claim does not show before it runs. If only the claim
        // counted here, it would yield, be the most important again, and so on.
        let (taken_at, claim) = (executor::current_priority(), worker.priority());
        let importance = if taken_at.is_more_important_than(claim) { taken_at } else { claim };
        // Before the fence in `begin_visit`, which pairs with the one in `call_back`: either that sees the hart and
        // sends, or the look before user mode sees the change that it announces.
        worker.visits(hart);
        executor::begin_visit(hart, worker.process.id, importance);
        let in_hardware = back_end::is_in_hardware();
        if in_hardware {
            user_interrupts::arrive(worker, context, hart);
        }
        (Visit { worker, hart, in_hardware }, importance)
    }

    /// Enters user mode again and again, until something has to pause.
    #[inline(always)]
    fn run(self, context: &mut UserContext) -> Pause {
        let worker = self.worker;
        let process = &worker.process;
        let mut graces = 0;
        // The hart's bitmap, found once: it is looked at after each call.
        let ready = executor::ready_here();
        // The process's space changes only outside of visits.
        let entered = process.space().enter();
        loop {
            // Deliberate failures of memory happen in calls, and not where the program touches a page.
            memory::faults::works_for(0);
            // Before user interrupts: the frame of a fault has the registers of the instruction that has caused it.
            if worker.needs_attention(process) {
                match signal_delivery::attend(worker, context) {
                    Attended::GoesOn => {}
                    Attended::IsStopped => return Pause::Stopped,
                    Attended::GivesWay => return Pause::GiveWay,
                    Attended::Fetches => return Fetch::pause(worker, context),
                    Attended::Leaves => return Pause::Leave,
                }
            }
            if worker.line.is_pending() {
                deliver_interrupt(worker, context);
                // Without a stack for its frame the process ends.
                if process.has_ended() {
                    return Pause::Leave;
                }
            }
            process.post_waiting_completions();
            if stretch::returns_are_watched() {
                watch_return(worker, context);
            }
            let trap = entered.run(context);
            if trace::traps_are_watched() && watch_trap(worker, trap, context) == Watched::WaitsForPages {
                continue;
            }
            if trap == Trap::SystemCall {
                match calls::dispatch(worker, context) {
                    Outcome::Done(value) => {
                        context.set_result(value as u64);
                        // The process's claim may have changed since it was entered.
                        if ready.load(Ordering::Relaxed) != 0 && worker.is_outranked() {
                            return Pause::GiveWay;
                        }
                    }
                    Outcome::Unchanged => {}
                    Outcome::Pause(pause) => {
                        prepare(worker, context, &pause);
                        return pause;
                    }
                }
                continue;
            }
            counters::count(Counter::Traps);
            let flow = match trap {
                Trap::Interrupt => self.on_interrupt(context, &mut graces),
                Trap::PageFault { address, access } => self.on_page_fault(context, address, access),
                trap => self.on_error(context, trap),
            };
            if flow.is_break() {
                return Pause::GiveWay;
            }
        }
    }

    /// Serves an interrupt, and yields the hart if something else must run.
    #[doc(alias = "do_IRQ")]
    #[inline(never)]
    fn on_interrupt(self, context: &UserContext, graces: &mut u32) -> ControlFlow<()> {
        let (worker, process, ready) = (self.worker, &self.worker.process, executor::ready_here());
        let waited = ready.load(Ordering::Relaxed);
        // Coroutines that the interrupt wakes come to this hart, which looks at them now.
        executor::end_visit(self.hart);
        // The interrupt itself is paid by the coroutine that gets the hart, if one does.
        let now = Machine::now();
        worker.charge(now, now);
        payers::begin(0);
        let pending = crate::machine::on_interrupt();
        payers::begin(process.id);
        worker.goes_on_since(payers::mark());
        // The visit goes on, unless the looks below say otherwise. Its claim may have changed.
        let priority = worker.priority();
        executor::begin_visit(self.hart, process.id, priority);
        if pending.timer {
            worker.sample(follows_call(process, context));
            // For the worker, whichever coroutine gets the hart.
            scheduling::charging(process, || on_tick(worker, pending));
        }
        // The timer may have been set for a slice of another worker. Equals that waited before wait for the end of this
        // slice then: with a turn at each old end, two equals could divide the time by any ratio.
        let is_news = !pending.timer
            || pending.ipi
            || pending.guest
            || ready.load(Ordering::Relaxed) & !waited & priority.bit() != 0;
        let is_outranked_here =
            if is_news { executor::is_ready_at_least(priority) } else { executor::is_ready_above(priority) };
        let is_outranked = executor::is_anything_ready() && is_outranked_here
            || executor::is_ready_above_anywhere(priority)
                && executor::is_ready_above_anywhere(worker.priority_in_queue());
        if executor::is_anything_ready() {
            executor::share_ready_coroutines_of_this_hart(is_outranked);
        }
        if pending.ipi && !is_outranked {
            // The sender may have seen an older claim of this process.
            executor::pass_on();
        }
        if !time::slice_has_ended() && !is_outranked {
            return ControlFlow::Continue(());
        }
        // The scheduler's short critical sections lie in its image. A worker that is interrupted in there gets a moment
        // to come out, so that the others need not wait for it; a bounded number of times, since any program can jump
        // there.
        if *graces < MAXIMUM_GRACES && process.shared.is_in_image(context.pc as usize) {
            *graces += 1;
            time::extend_slice();
        } else if self.in_hardware && !executor::is_anything_ready() && user_interrupts::has_place(worker) {
            // The hart is not wanted, and on another one the worker's interrupt file would have to change. Leaving the
            // hart costs its senders an entry into the kernel.
            time::start_slice();
        } else {
            worker.is_interrupted();
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Gives the program a page that it may touch, or ends it.
    #[doc(alias = "do_page_fault")]
    #[doc(alias = "handle_mm_fault")]
    #[inline(never)]
    fn on_page_fault(self, context: &mut UserContext, address: u64, access: Access) -> ControlFlow<()> {
        let process = &self.worker.process;
        let trap = Trap::PageFault { address, access };
        match process.space().fault(address as usize, access) {
            Ok(()) => {
                counters::count(Counter::PageFaults);
                process.charge_tables();
            }
            Err(usermode::Fault::OutOfMemory) => {
                // This worker tries again after that.
                process::oom_killer::find_memory();
                if !process.has_ended() {
                    return ControlFlow::Break(());
                }
            }
            // The look before the next attempt has it fetched.
            Err(usermode::Fault::Elsewhere) => self.worker.has_to_fetch(PagesOf::Instruction { address }),
            Err(_) if access == Access::Write && user_interrupts::store_to_page(process, context, address) => {}
            Err(usermode::Fault::BeyondTheEnd) => bus_error(self.worker, context, trap),
            Err(_) => segmentation_fault(self.worker, context, address, trap),
        }
        ControlFlow::Continue(())
    }

    /// Ends a process for a trap that the kernel cannot mend. The next look before user mode finds the end.
    #[doc(alias = "do_trap")]
    #[doc(alias = "force_sig_fault")]
    #[cold]
    #[inline(never)]
    fn on_error(self, context: &mut UserContext, trap: Trap) -> ControlFlow<()> {
        let (what, signal, code) = match trap {
            Trap::AccessFault { .. } => ("bus error", Signal::BUS, code::NO_ADDRESS),
            Trap::Misaligned { .. } => ("misaligned access", Signal::BUS, code::NOT_ALIGNED),
            Trap::IllegalInstruction { .. } if user_interrupts::complete_refused(self.worker, context, trap) => {
                return ControlFlow::Continue(());
            }
            Trap::IllegalInstruction { .. } => ("illegal instruction", Signal::ILL, code::ILLEGAL_CODE),
            Trap::Breakpoint => ("breakpoint", Signal::TRAP, code::BREAKPOINT),
            Trap::SystemCall | Trap::Interrupt | Trap::PageFault { .. } | Trap::Other { .. } => {
                ("unknown trap", Signal::KILL, code::KERNEL)
            }
        };
        fault(self.worker, context, what, signal, code, trap);
        ControlFlow::Continue(())
    }

    /// Publishes that the worker is on no hart.
    #[inline(always)]
    fn end(self, context: &mut UserContext, pause: &Pause) {
        let worker = self.worker;
        Machine::keep_floating_point(context);
        worker.visits_no_more();
        executor::end_visit(self.hart);
        if self.in_hardware {
            user_interrupts::depart(worker, context, self.hart, matches!(pause, Pause::GiveWay));
        }
        time::stop_slice();
        if worker.has_credit() && !worker.was_interrupted() {
            // Its priority will depend on the rest of its credit. All other workers are charged when the poll ends.
            let now = Machine::now();
            worker.charge(now, now);
        }
        if trace::is_on() {
            let reason = match pause {
                Pause::GiveWay | Pause::MoveToThread => Reason::GaveWay,
                Pause::Wait(_) | Pause::Fetch(..) | Pause::WaitForSignal(_) => Reason::Waits,
                Pause::Lend(_) | Pause::Stopped => Reason::Waits,
                Pause::Park { .. } => Reason::Sleeps,
                Pause::Execute(_) => Reason::Executes,
                Pause::Leave => Reason::Ends,
            };
            trace::of_worker(Kind::UserEnds, worker.process.id, worker.index(), reason as u64, 0);
        }
    }
}

/// Returns whether the next instruction of a program is that behind a call. An interrupt that comes while the kernel
/// works is taken there.
fn follows_call(process: &Process, context: &UserContext) -> bool {
    const CALL: [u8; 4] = 0x73u32.to_le_bytes();
    let mut before = [0; 4];
    process.copy_in(context.pc.wrapping_sub(4) as usize, &mut before).is_ok() && before == CALL
}

/// Handles a timer interrupt for the worker that was interrupted, and for others of its process.
#[doc(alias = "scheduler_tick")]
#[doc(alias = "resched_curr")]
fn on_tick(worker: &Arc<Worker>, pending: Pending) {
    let process = &worker.process;
    if !pending.ipi && !pending.guest {
        counters::count(Counter::TimerTraps);
    }
    // Copies by the kernel make page tables too.
    process.charge_tables();
    if !worker.is_thread() {
        process.remind(worker);
        process.share_ready_coroutines(worker);
    }
    let shared = &process.shared;
    if worker.line.has_handler()
        && (shared.is_outranked_within(worker.index()) || shared.has_interrupts(worker.index()))
    {
        // Its handler may put its coroutine aside for something more important in the process, or wants to look again.
        worker.line.set_pending();
    }
}

/// Does the visit's part of a pause that a call has caused.
fn prepare(worker: &Arc<Worker>, context: &mut UserContext, pause: &Pause) {
    match pause {
        Pause::Wait(_) if !worker.is_thread() => worker.process.share_ready_coroutines(worker),
        Pause::Wait(_) | Pause::WaitForSignal(_) | Pause::Park { .. } | Pause::Fetch(..) => {}
        Pause::Execute(_) | Pause::Lend(_) | Pause::Stopped => {}
        Pause::GiveWay => {
            context.set_result(0);
            worker.process.bring_forward_others(worker);
        }
        Pause::MoveToThread => context.set_result(0),
        Pause::Leave => worker.is_leaving(),
    }
}

/// Shows a worker's handler its interrupts. Apart from the visit, whose registers are for calls.
#[inline(never)]
fn deliver_interrupt(worker: &Worker, context: &mut UserContext) {
    worker.line.deliver(&worker.process, context);
}

/// The way on from a trap that is watched.
#[derive(PartialEq, Eq)]
enum Watched {
    GoesOn,
    /// A call is made when pages of its buffers were fetched.
    WaitsForPages,
}

#[cold]
#[inline(never)]
fn watch_return(worker: &Worker, context: &UserContext) {
    shared::publish(standing::claims_worth(executor::waiting()));
    stretch::looked();
    call_log::returns(worker, context);
}

#[cold]
fn watch_trap(worker: &Worker, trap: Trap, context: &mut UserContext) -> Watched {
    let call = context.call_number() & abi_unix::call::NUMBER_MASK as u64;
    stretch::trapped(if trap == Trap::SystemCall { Some(call as usize) } else { None });
    let (cause, number) = match trap {
        Trap::SystemCall => (Cause::Call, call),
        Trap::Interrupt => (Cause::Interrupt, 0),
        _ => (Cause::Fault, 0),
    };
    trace::of_worker(Kind::Trap, worker.process.id, worker.index(), cause as u64, number);
    if trap == Trap::SystemCall && Fetch::before_call(worker, context).is_some() {
        context.pc = context.pc.wrapping_sub(4);
        worker.has_to_fetch(PagesOf::NextCall);
        return Watched::WaitsForPages;
    }
    if trap == Trap::SystemCall {
        call_log::trapped(worker, context);
    }
    Watched::GoesOn
}

/// Sends a process the signal of a page of a file that is not there or cannot be read.
#[cold]
#[inline(never)]
pub(crate) fn bus_error(worker: &Worker, context: &UserContext, trap: Trap) {
    fault(worker, context, "bus error", Signal::BUS, code::NO_ADDRESS, trap);
}

/// Sends a process the signal of a forbidden access, which ends it unless it has a handler. Apart from the visit, which
/// is the way of every call.
#[doc(alias = "bad_area")]
#[doc(alias = "SIGSEGV")]
#[cold]
#[inline(never)]
fn segmentation_fault(worker: &Worker, context: &UserContext, address: u64, trap: Trap) {
    let space = worker.process.space();
    let overflow = program::is_in_guard(space, address, context.stack());
    let what = if overflow { "stack overflow" } else { "segmentation fault" };
    let is_mapped = space.lock().region_at(address).is_some();
    let code = if is_mapped { code::NOT_PERMITTED } else { code::NOT_MAPPED };
    fault(worker, context, what, Signal::SEGV, code, trap);
}

/// Makes a program handle a fault, or ends its process and reports the fault in the log.
#[cold]
#[inline(never)]
fn fault(worker: &Worker, context: &UserContext, what: &str, signal: Signal, code: i32, trap: Trap) {
    let process = &worker.process;
    let address = match trap {
        Trap::PageFault { address, .. } | Trap::AccessFault { address, .. } | Trap::Misaligned { address, .. } => {
            address
        }
        _ => context.pc,
    };
    if signal_delivery::raise_fault(worker, context.pc, signal, code, address) {
        return;
    }
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
        Some((verb, address)) => process.lines.print(format_args!(
            "killed: {what}: {verb} {address:#x} at pc {pc:#x}, ra {ra:#x}, sp {sp:#x}, program at {moved:#x}"
        )),
        None => process.lines.print(format_args!(
            "killed: {what} at pc {pc:#x}, ra {ra:#x}, sp {sp:#x}, program at {moved:#x} ({trap:?})"
        )),
    }
    callers::print(process, context);
    process.end_by(Information { signal, code, details: Details::Fault(address) }, Some(worker));
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::process::exit_status::Ending;
    use crate::process::table;
    use crate::testing::{CODE, DATA, LENGTH, run, run_to_its_end};

    #[test]
    fn faults_end_a_program_with_their_signal() {
        for (trap, number) in [
            (Trap::IllegalInstruction { bits: 0 }, Signal::ILL),
            (Trap::Breakpoint, Signal::TRAP),
            (Trap::PageFault { address: 8, access: Access::Write }, Signal::SEGV),
            (Trap::PageFault { address: 1 << 62, access: Access::Read }, Signal::SEGV),
            (Trap::PageFault { address: CODE, access: Access::Write }, Signal::SEGV),
            (Trap::PageFault { address: DATA as u64, access: Access::Execute }, Signal::SEGV),
            (Trap::AccessFault { address: 8, access: Access::Read }, Signal::BUS),
            (Trap::Misaligned { address: 1, access: Access::Write }, Signal::BUS),
        ] {
            let ending = run_to_its_end(move |program| {
                program.add_worker(|program| program.sleep_ns(1_000_000_000)).unwrap();
                program.trap(trap);
            });
            assert_eq!(ending, Ending::Killed(number.number()), "{trap:?}");
        }
    }

    #[test]
    fn a_stack_that_overflows_is_told_from_other_faults() {
        let touch = |address: usize| Trap::PageFault { address: address as u64, access: Access::Write };
        run_to_its_end(move |program| {
            let process = program.process();
            let guard = process.space().lock().regions().find(|region| region.name == "[guard]").unwrap().range;
            program.trap(touch(guard.end as usize - 8));
        });
        assert!(reason_of_death().contains("stack overflow: writing"));
        run_to_its_end(move |program| program.trap(touch(DATA + LENGTH + (1 << 20))));
        assert!(reason_of_death().contains("segmentation fault: writing"));
    }

    /// Returns the line about the last death; the next and last one has the callers.
    fn reason_of_death() -> alloc::string::String {
        let output = crate::testing::simulation().output();
        let mut lines = output.lines().rev();
        let callers = lines.next().and_then(abi_unix::callers::Callers::parse);
        assert!(callers.is_some_and(|callers| callers.candidates().count() == 0), "{output}");
        lines.next().unwrap_or_default().into()
    }

    /// Returns the program of a process that makes calls for so many slices.
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
        time::ns_at_ticks(table::find(child as u32).unwrap().cpu_ticks())
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

    /// A more important process runs to its end before its parent goes on; a less important one only while the parent
    /// waits.
    #[test]
    fn importance_goes_before_turns() {
        run(|program| {
            // The watchdog would let the parent go first if two of its looks fell into the child's time.
            crate::scheduling::set_bound_ns(0);
            let other = program.spawn_given(0, 60, busy(4)).unwrap();
            let important = program.spawn_given(0, 1, busy(4)).unwrap();
            // The next call yields at the latest.
            program.call(SystemCall::GetProcess, []).unwrap();
            assert!(table::find(important as u32).is_none_or(|process| process.has_ended()));
            assert_eq!(used_ns(other), 0);
            program.sleep_ns(2 * time::SLICE_NS as usize);
            assert!(used_ns(other) > time::SLICE_NS);
            for child in [important, other] {
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            }
            crate::scheduling::set_bound_ns(crate::scheduling::DEFAULT_BOUND_NS);
        });
    }
}
