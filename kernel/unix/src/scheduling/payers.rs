//! The payer of each tick of a hart: EVERY-TICK in one place.
//!
//! A hart's time is a line without gaps. One mark for each hart says up to where it has been [charged](take); a charge
//! covers everything from the mark to now and moves the mark. So the way from one coroutine to the next (interrupts
//! between polls, the choice of the next coroutine, the change of the address space) is paid as well:
//!
//! * *Between two polls*: by the coroutine that is polled next, whose charge begins at the mark. Each pays for its own
//!   way in.
//! * *From an interrupt that takes the hart from a program*: by the coroutine that gets the hart. The process of the
//!   program is charged up to the interrupt only.
//! * *Back to such a program*: by the process that had the hart in between. So a process that wakes up again and again
//!   in the time of another pays both ways. It had the hart, too, if a coroutine of the kernel's own worked for it, as
//!   the network's does when a timer of a connection ends: the last process that was charged pays. If that coroutine
//!   worked for none, the ways are those of the processes before and after it. The watchdog's look at all processes is
//!   caused by none of them.
//! * *At a deadline*: the waking, by the process that has set the deadline, even if it comes in another's time
//!   ([`time`](crate::time)).
//!
//! The sleep of a hart has no payer, nor have polls of the kernel's own coroutines, which charge for their work for a
//! process ([`charging`](crate::scheduling::charging)).
//!
//! Rejected: to read the clock when a poll begins, and to charge from there. The rest is short, but a call that waits
//! for a moment is short too: for such calls a third of all time had no payer.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hal_api::{MAXIMUM_HARTS, Machine as _};
use platform::Machine;
use spin::Once;

/// The line of one hart's time. Only the hart itself accesses it.
#[repr(align(64))]
struct HartTime {
    /// Tick up to which its time has been charged, or has no payer.
    charged_until: AtomicU64,
    /// Process for which it works; 0 for none.
    present: AtomicU32,
    /// Process for which it worked last; 0 for none.
    previous: AtomicU32,
}

static LINES: [HartTime; MAXIMUM_HARTS] =
    [const { HartTime { charged_until: AtomicU64::new(0), present: AtomicU32::new(0), previous: AtomicU32::new(0) } };
        MAXIMUM_HARTS];

#[inline(always)]
fn line() -> &'static HartTime {
    &LINES[Machine::hart()]
}

/// Begins work for a process, which pays from the mark on; 0 for none.
#[inline(always)]
pub(crate) fn begin(process: u32) {
    line().present.store(process, Ordering::Relaxed);
}

/// Ends a poll for a process.
#[inline(always)]
pub(super) fn end(process: u32) {
    let line = line();
    line.present.store(0, Ordering::Relaxed);
    line.previous.store(process, Ordering::Relaxed);
}

/// Records that a coroutine of the kernel's own works for a process. Work in the time of a process changes nothing:
/// that one has the hart.
pub(crate) fn work_for(process: u32) {
    let line = line();
    if line.present.load(Ordering::Relaxed) == 0 {
        line.previous.store(process, Ordering::Relaxed);
    }
}

/// Moves the mark to now: the hart was asleep.
pub(crate) fn skip() {
    let line = line();
    line.previous.store(0, Ordering::Relaxed);
    line.charged_until.store(Machine::now(), Ordering::Relaxed);
}

/// Leaves out a poll of a coroutine of the kernel's own, which has no payer but those that it charges itself. The way
/// there belongs to the next one.
pub(super) fn without<R>(poll: impl FnOnce() -> R) -> R {
    let (before, start) = (mark(), Machine::now());
    let result = poll();
    line().charged_until.store(before + Machine::now().saturating_sub(start), Ordering::Relaxed);
    result
}

/// Returns the process for which this hart works; 0 for none.
pub(crate) fn present() -> u32 {
    line().present.load(Ordering::Relaxed)
}

/// Returns the process for which this hart worked before the poll that has begun; 0 for none.
pub(crate) fn previous() -> u32 {
    line().previous.load(Ordering::Relaxed)
}

/// Returns the mark: the tick up to which this hart's time has been charged.
#[inline(always)]
pub(crate) fn mark() -> u64 {
    line().charged_until.load(Ordering::Relaxed)
}

/// Returns the ticks since the mark, which the caller charges, and moves the mark to `now`.
#[inline(always)]
pub(crate) fn take(now: u64) -> u64 {
    let line = line();
    let since = line.charged_until.load(Ordering::Relaxed);
    line.charged_until.store(now, Ordering::Relaxed);
    now.saturating_sub(since)
}

/// Takes out ticks after the mark that another process was charged for.
pub(crate) fn leave_out(ticks: u64) {
    let mark = &line().charged_until;
    mark.store(mark.load(Ordering::Relaxed) + ticks, Ordering::Relaxed);
}

/// A moment in a poll of a coroutine of the kernel's own: the time after it that no process has paid for yet.
#[derive(Clone, Copy)]
pub(crate) struct Since {
    tick: u64,
    /// The mark at that moment: what others pay for moves it.
    mark: u64,
}

impl Since {
    /// Returns the moment of this tick.
    pub(crate) fn at(tick: u64) -> Since {
        Since { tick, mark: mark() }
    }

    /// Returns the ticks up to `now` that no process has paid for.
    pub(super) fn ticks(self, now: u64) -> u64 {
        now.saturating_sub(self.tick).saturating_sub(mark().saturating_sub(self.mark))
    }
}

/// Charges the process with this number for ticks; returns `false` if there is none.
static CHARGE: Once<fn(u32, u64) -> bool> = Once::new();

/// Registers the function that finds a process and charges it. Called once.
pub(super) fn register_charge(charge: fn(u32, u64) -> bool) {
    CHARGE.call_once(|| charge);
}

/// Charges the process with this number for ticks after the mark, and takes them out, unless the process has gone.
pub(crate) fn charge(payer: u32, ticks: u64) {
    if let Some(charge) = CHARGE.get()
        && charge(payer, ticks)
    {
        leave_out(ticks);
    }
}

/// Does work for the process with this number in a time that is not its own, and charges the process for it.
pub(crate) fn charging<R>(payer: u32, work: impl FnOnce() -> R) -> R {
    if payer != 0 {
        work_for(payer);
    }
    let start = Machine::now();
    let result = work();
    charge(payer, Machine::now().saturating_sub(start));
    result
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use core::future::poll_fn;
    use core::task::{Poll, Waker};

    use abi_unix::SystemCall;
    use abi_unix::types::clock;
    use hal_api::Trap;

    use super::*;
    use crate::process::{Process, table};
    use crate::testing::{Program, run, simulation};
    use crate::time;

    /// A waker whose wake-up takes long.
    struct LongWork;

    const LONG: u64 = 100_000;
    /// Ticks that nothing else in these tests takes.
    const SHORT: u64 = 20_000;

    impl Wake for LongWork {
        fn wake(self: Arc<LongWork>) {
            simulation().advance(LONG);
        }
    }

    /// Sets a deadline at the expense of this process, or of none, at which [`LongWork`] is done.
    fn set_for(payer: u32, deadline: u64) {
        let own = present();
        begin(payer);
        time::set(deadline, &Waker::from(Arc::new(LongWork))).unwrap();
        begin(own);
    }

    /// Starts a process that goes before the caller when it wakes up after a millisecond, and then does this.
    fn start(program: &mut Program, then: impl FnOnce(&mut Program) + Send + 'static) -> (usize, Arc<Process>) {
        let child = program.spawn_given(0, 0, |program| {
            program.sleep_ns(1_000_000);
            then(program);
        });
        let child = child.unwrap();
        program.sleep_ns(500_000);
        (child, table::find(child as u32).unwrap())
    }

    #[test]
    fn the_process_that_has_set_a_deadline_pays_for_the_waking() {
        run(|program| {
            let (number, other) = start(program, |program| program.sleep_ns(1_000_000_000));
            let own = program.process();
            let before = (own.cpu_ticks(), other.cpu_ticks());
            set_for(other.id, Machine::now() + 1);
            simulation().advance(10);
            program.trap(Trap::Interrupt);
            assert!(other.cpu_ticks() - before.1 >= LONG, "in its own time or not");
            assert!(own.cpu_ticks() - before.0 < SHORT);
            other.end(crate::process::exit_status::Ending::Killed(9));
            drop(other);
            program.wait_for(number).unwrap();
        });
    }

    #[test]
    fn the_way_to_a_coroutine_is_its_own() {
        run(|program| {
            let own = program.process();
            let before = own.cpu_ticks();
            set_for(0, Machine::now() + 1);
            simulation().advance(10);
            // The hart looks for interrupts between this poll and the next one.
            program.call(SystemCall::Yield, []).unwrap();
            assert!(own.cpu_ticks() - before >= LONG);
        });
    }

    #[test]
    fn a_process_that_takes_the_hart_from_a_program_pays_for_both_ways() {
        run(|program| {
            let (number, other) = start(program, |program| {
                // Due when the hart is on its way back.
                set_for(0, Machine::now());
                program.sleep_ns(1_000_000_000);
            });
            let own = program.process();
            let before = (own.cpu_ticks(), other.cpu_ticks());
            // Due with its sleep: the interrupt takes long.
            let end = Machine::now() + time::ticks_at_ns(1_000_000);
            set_for(0, end);
            simulation().advance(end - Machine::now() + 1);
            let waited = own.cpu_ticks() - before.0;
            program.trap(Trap::Interrupt);
            let (own, paid) = (own.cpu_ticks() - before.0 - waited, other.cpu_ticks() - before.1);
            assert!(paid >= 2 * LONG && own < SHORT, "{paid} and {own}");
            other.end(crate::process::exit_status::Ending::Killed(9));
            drop(other);
            program.wait_for(number).unwrap();
        });
    }

    /// Has a coroutine of the kernel's own take the hart from this program, with long ways, and do this for another
    /// process; returns the ticks that this one and the other pay.
    fn pay_for_the_kernel_s_ways(program: &mut Program, work: fn(&Arc<Process>)) -> (u64, u64) {
        let (number, other) = start(program, |program| program.sleep_ns(1_000_000_000));
        // The other one has its turn, and sleeps until all is over.
        program.sleep_ns(2_000_000);
        let own = program.process();
        let end = Machine::now() + time::ticks_at_ns(1_000_000);
        let payer = other.clone();
        crate::scheduling::executor::spawn_for_kernel(abi_queue::Priority::HIGHEST, async move {
            let mut alarm = None;
            poll_fn(|cx| {
                if alarm.is_none() {
                    alarm = Some(time::set(end, cx.waker()).unwrap());
                }
                if Machine::now() >= end { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            work(&payer);
            // Due when the hart is on its way back.
            time::set(Machine::now(), &Waker::from(Arc::new(LongWork))).unwrap();
        });
        program.call(SystemCall::Yield, []).unwrap();
        let before = (own.cpu_ticks(), other.cpu_ticks());
        // Due with the kernel's alarm: the interrupt takes long.
        set_for(0, end);
        simulation().advance(end - Machine::now() + 1);
        let waited = own.cpu_ticks() - before.0;
        program.trap(Trap::Interrupt);
        let paid = (own.cpu_ticks() - before.0 - waited, other.cpu_ticks() - before.1);
        other.end(crate::process::exit_status::Ending::Killed(9));
        drop(other);
        program.wait_for(number).unwrap();
        paid
    }

    #[test]
    fn a_process_for_which_the_kernel_takes_the_hart_from_a_program_pays_for_both_ways() {
        run(|program| {
            let forms: [fn(&Arc<Process>); 2] = [
                |payer| crate::scheduling::charging(payer, || simulation().advance(10)),
                |payer| charging(payer.id, || simulation().advance(10)),
            ];
            for form in forms {
                let (own, paid) = pay_for_the_kernel_s_ways(program, form);
                assert!(paid >= 2 * LONG && own < SHORT, "{paid} and {own}");
            }
        });
    }

    #[test]
    fn a_process_that_the_watchdog_looks_at_pays_for_the_look_alone() {
        run(|program| {
            let (own, paid) = pay_for_the_kernel_s_ways(program, |payer| {
                crate::scheduling::charging_for_work_alone(payer, || simulation().advance(10));
            });
            assert!((10..SHORT).contains(&paid) && own >= LONG, "{paid} and {own}");
        });
    }

    #[test]
    fn the_time_since_a_moment_is_without_the_time_that_others_pay() {
        run(|_| {
            let since = Since::at(Machine::now());
            simulation().advance(3 * LONG);
            let all = since.ticks(Machine::now());
            assert!((3 * LONG..3 * LONG + SHORT).contains(&all), "{all}");
            leave_out(2 * LONG);
            let rest = since.ticks(Machine::now());
            assert!((LONG..LONG + SHORT).contains(&rest), "{rest}");
            let later = Since::at(Machine::now());
            assert!(later.ticks(Machine::now()) < SHORT);
            leave_out(LONG);
            assert_eq!(later.ticks(Machine::now()), 0, "never less");
        });
    }

    #[test]
    fn clocks_of_processor_time_never_go_back() {
        run(|program| {
            let place = program.place(16);
            let read = |program: &mut Program, clock: u32| {
                program.call(SystemCall::GetTime, [clock as usize, place]).unwrap();
                program.read_u64(place) * 1_000_000_000 + program.read_u64(place + 8)
            };
            for clock in [clock::PROCESS_CPUTIME, clock::THREAD_CPUTIME] {
                // In the time of this process, another one is charged, and this one for other work.
                simulation().advance(2 * LONG);
                leave_out(LONG);
                crate::scheduling::charging(&program.process(), || simulation().advance(LONG));
                let before = read(program, clock);
                program.call(SystemCall::Yield, []).unwrap();
                let after = read(program, clock);
                assert!(after >= before, "clock {clock}: {after} after {before}");
                simulation().advance(4 * LONG);
                assert!(read(program, clock) > before, "clock {clock} goes on");
            }
        });
    }

    #[test]
    fn sleep_and_the_kernel_s_own_work_have_no_payer() {
        run(|program| {
            let own = program.process();
            let before = own.cpu_ticks();
            crate::scheduling::executor::spawn_for_kernel(abi_queue::Priority::HIGHEST, async {
                simulation().advance(LONG);
            });
            program.call(SystemCall::Yield, []).unwrap();
            program.sleep_ns(100_000_000);
            assert!(own.cpu_ticks() - before < SHORT);
        });
    }

    #[test]
    fn ticks_are_taken_once() {
        run(|_| {
            let start = Machine::now();
            take(start);
            assert_eq!(take(start + 30), 30);
            leave_out(10);
            assert_eq!(mark(), start + 40);
            assert_eq!(take(start + 100), 60);
            assert_eq!(take(start + 100), 0);
            take(start);
        });
    }
}
