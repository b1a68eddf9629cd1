//! The keeper of a process's timers: the coroutine that sends their signals ([`timers`](crate::process::timers)).

use alloc::sync::Arc;
use core::future::poll_fn;
use core::task::{Poll, Waker};

use abi_unix::Errno;

use crate::process::timers::{Due, KeeperStep, SignalReceiver, Timed};
use crate::process::{Process, signal_delivery};
use crate::scheduling::executor::{self, Cid, SpawnError};
use crate::scheduling::standing::MOST_CLAIM;
use crate::time::{self, Alarm, Reservation};

impl Timed for Arc<Process> {
    fn processor_ticks(&self) -> u64 {
        self.cpu_ticks()
    }

    fn start_keeper(&self) -> Result<Cid, Errno> {
        let future = keep(self.clone(), Reservation::new()?);
        let keeper = executor::spawn_for(self.clone(), self.claimed_priority(), future);
        keeper.map_err(|SpawnError(_)| Errno::ENOMEM)
    }
}

/// Sends a signal that is due.
fn send(process: &Process, due: &Due) {
    match due {
        Due::Interval(signal) => signal_delivery::send_from_kernel(process, *signal),
        Due::Timer(tells, information) => {
            let target = match tells {
                // A thread that is gone gets none.
                SignalReceiver::Thread(_, slot) => match process.worker_or_thread(*slot) {
                    None => return,
                    found => found,
                },
                _ => None,
            };
            signal_delivery::send_of_timer(process, target.as_deref(), *information);
        }
    }
}

/// The keeper's deadline, which is taken back with it.
struct Deadline {
    reserved: Reservation,
    alarm: Option<Alarm>,
}

impl Deadline {
    fn clear(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            time::clear(alarm);
        }
    }

    fn set(&mut self, ticks: u64, waker: &Waker) {
        self.clear();
        self.alarm = Some(self.reserved.set(ticks, waker));
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The keeper of a process's timers.
async fn keep(process: Arc<Process>, reserved: Reservation) {
    let (mut deadline, mut pass) = (Deadline { reserved, alarm: None }, None);
    poll_fn(|cx| {
        // Its end waits for it.
        let priority = if process.has_ended() { MOST_CLAIM } else { process.claimed_priority() };
        if executor::current_priority() != priority {
            executor::set_priority(executor::current(), priority);
        }
        let mut due = heapless::Vec::new();
        match process.timers.next_for_keeper(&process, &mut pass, &mut due) {
            KeeperStep::Leave => return Poll::Ready(()),
            KeeperStep::SleepUntil(ticks) => deadline.set(ticks, cx.waker()),
            KeeperStep::Send => {
                due.iter().for_each(|due| send(&process, due));
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    })
    .await;
    drop(deadline);
    process.timers.keeper_has_left();
    process.timers_are_at_rest();
}

#[cfg(test)]
mod tests {
    use abi_queue::Priority;
    use abi_unix::SystemCall;
    use abi_unix::types::timer::Setting;

    use super::*;
    use crate::process::table;
    use crate::testing::{Program, run, simulation};

    const LATER: Setting = Setting { value_ns: 1_000_000_000_000, interval_ns: 0 };

    /// Starts a process with a timer for later, which sleeps for so long; returns it when it has its keeper.
    fn start_with_keeper(program: &mut Program, sleep_ns: usize) -> (usize, Arc<Process>) {
        let child = program.spawn(move |program| {
            let process = program.process();
            assert!(process.timers.are_at_rest());
            assert_eq!(process.timers.set_interval(&process, 0, LATER), Ok(Setting::default()));
            program.sleep_ns(sleep_ns);
        });
        let child = child.unwrap();
        program.sleep_ns(1_000_000);
        let process = table::find(child as u32).unwrap();
        assert!(!process.timers.are_at_rest(), "it has a keeper");
        (child, process)
    }

    /// A process whose timers are kept ends at once, however little its keeper has claimed beside a busy process.
    #[test]
    fn an_unimportant_keeper_does_not_hold_an_end_up() {
        run(|program| {
            let (child, process) = start_with_keeper(program, 1_000_000_000_000);
            // Its process may have had no budget left when it looked last.
            executor::set_priority(process.timers.keeper().expect("it has one"), Priority::LOWEST);
            let busy = program.spawn_given(0, 40, |program| {
                let begin = time::now_ns();
                while time::now_ns() - begin < 200_000_000 {
                    simulation().advance(1000);
                    program.call(SystemCall::GetProcess, []).unwrap();
                }
            });
            let busy = busy.unwrap();
            let begin = time::now_ns();
            assert_eq!(program.call(SystemCall::Kill, [child, 9]), Ok(0));
            assert_eq!(program.wait_for(child), Ok((child, 9)));
            assert!(time::now_ns() - begin < 50_000_000, "{} ns", time::now_ns() - begin);
            assert_eq!(program.wait_for(busy), Ok((busy, 0)));
        });
    }

    /// The end of a process does not wait for a timer that is set for later.
    #[test]
    fn a_keeper_leaves_with_its_process_which_gets_no_other() {
        run(|program| {
            let (child, process) = start_with_keeper(program, 2_000_000);
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert!(process.timers.are_at_rest());
            assert_eq!(process.timers.set_interval(&process, 0, LATER), Err(Errno::EAGAIN));
            assert!(process.timers.are_at_rest());
        });
    }
}
