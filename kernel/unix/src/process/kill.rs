//! Sending signals: `kill` and the keys of the terminal, and whether a process may.

use core::task::{Poll, Waker};

use ::signals::{Details, Information, Signal, code};
use abi_unix::{Act, Errno};

use crate::process::family::Sending;
use crate::process::table::{Walk, exists, find};
use crate::process::worker::Worker;
use crate::process::{FIRST, Process, authority, delivery};
use crate::scheduling::steps::{self, Endless};

/// Members of a group that one step of [`signal_group_in_steps`] reaches.
const SIGNALLED_AT_A_TIME: usize = 32;

/// Sends a signal to a process, if the caller may; the number 0 asks only whether it may.
fn signal(caller: &Process, process: &Process, number: u32) -> Result<(), Errno> {
    let details = Details::Sender { process: caller.id, user: 0, value: 0 };
    let information = Signal::new(number).map(|signal| Information { signal, code: code::USER, details });
    send(caller, process, None, information)
}

/// Sends a signal to a process, or to one of its workers or threads, if the caller may; without a signal, asks only
/// whether it may. `EPERM` towards the first process if the signal would end or stop it. A process may continue all of
/// its session.
pub(crate) fn send(
    caller: &Process,
    process: &Process,
    target: Option<&Worker>,
    information: Option<Information>,
) -> Result<(), Errno> {
    let continues = information.is_some_and(|information| information.signal == Signal::CONT);
    if !(continues && process.session() == caller.session()) {
        authority::permit_towards(caller, process, Act::Signal)?;
    }
    let Some(information) = information else { return Ok(()) };
    if process.id == FIRST && caller.id != FIRST && delivery::is_harmful(process, information.signal) {
        return Err(Errno::EPERM);
    }
    delivery::send(process, target, information)
}

/// Performs `kill` with the number of a process. A zombie exists, and the signal has no effect.
#[doc(alias = "kill_pid")]
pub(crate) fn signal_one(caller: &Process, id: u32, number: u32) -> Result<(), Errno> {
    match find(id) {
        Some(process) => signal(caller, &process, number),
        None if exists(id) => Ok(()),
        None => Err(Errno::ESRCH),
    }
}

/// Performs `kill` with a process group: sends a signal, in steps, to its members to which the caller may. `EPERM` if
/// there are only others, `ESRCH` if it is empty. The caller comes last, because it does not go on after that.
///
/// # Cancellation
/// Some have got the signal and others have not.
pub(crate) async fn signal_group(caller: &Process, group: u32, number: u32) -> Result<(), Errno> {
    let mut answer = Err(Errno::ESRCH);
    let mut members = Walk::of_group(group);
    while let Some(process) = members.next_in_steps(caller).await {
        if process.id != caller.id {
            let sent = signal(caller, &process, number);
            if answer != Ok(()) {
                answer = sent;
            }
            steps::pause(caller).await;
        }
    }
    if caller.group() == group { signal(caller, caller, number) } else { answer }
}

/// Performs `kill` with -1: sends a signal, in steps, to every process to which the caller may, but the first process
/// and itself. `ESRCH` if there is no other; if there is one, the call succeeds even if it may signal none, as on
/// Linux.
///
/// # Cancellation
/// Some have got the signal and others have not.
pub(crate) async fn signal_all_processes(caller: &Process, number: u32) -> Result<(), Errno> {
    let mut answer = Err(Errno::ESRCH);
    let mut processes = Walk::above(FIRST);
    while let Some(process) = processes.next_in_steps(caller).await {
        if process.id != caller.id {
            let _ = signal(caller, &process, number);
            answer = Ok(());
        }
        steps::pause(caller).await;
    }
    answer
}

/// Returns whether a process is in the midst of [`signal_group_in_steps`] with this group and first signal.
pub(crate) fn is_signalling(caller: &Process, group: u32, signal: Signal) -> bool {
    caller.family.sending.lock().as_ref().is_some_and(|sending| sending.group == group && sending.signal == signal)
}

/// Sends signals of a terminal, at the expense of a process, to all members of a process group, some in each step.
/// Pending means that there are more, to be reached when it is called again, for which `waker` is woken. The caller
/// comes last, because it does not go on after that.
pub(crate) fn signal_group_in_steps(
    caller: &Process,
    group: u32,
    signals: &[Signal],
    waker: Option<&Waker>,
) -> Poll<()> {
    let Some(&signal) = signals.first() else { return Poll::Ready(()) };
    let begun =
        caller.family.sending.lock().take().filter(|sending| (sending.group, sending.signal) == (group, signal));
    let mut members = begun.map_or_else(|| Walk::of_group(group), |sending| sending.members);
    let send = |process: &Process| signals.iter().for_each(|signal| delivery::send_from_kernel(process, *signal));
    for _ in 0..SIGNALLED_AT_A_TIME {
        match members.look() {
            Some(Some(process)) if process.id == caller.id => {}
            Some(Some(process)) => send(&process),
            Some(None) => {
                if caller.group() == group {
                    send(caller);
                }
                return Poll::Ready(());
            }
            None => break,
        }
    }
    *caller.family.sending.lock() = Some(Sending { group, signal, members });
    if let Some(waker) = waker {
        waker.wake_by_ref();
    }
    Poll::Pending
}

/// Sends a signal of the kernel to all members of a process group, in steps.
///
/// # Cancellation
/// Some have got the signal and others have not.
pub(crate) async fn signal_group_from_kernel(group: u32, signal: Signal) {
    let mut members = Walk::of_group(group);
    while let Some(process) = members.next_in_steps(&Endless).await {
        delivery::send_from_kernel(&process, signal);
        steps::pause_at_the_end().await;
    }
}

/// Wakes a process group that has become orphaned, if any member is stopped: no process is left that would continue it.
///
/// # Cancellation
/// Some have got the signals and others have not.
#[doc(alias = "kill_orphaned_pgrp")]
pub(super) async fn wake_orphans(group: u32) {
    let mut members = Walk::of_group(group);
    while let Some(process) = members.next_in_steps(&Endless).await {
        if process.signals.are_stopped() {
            signal_group_from_kernel(group, Signal::HUP).await;
            signal_group_from_kernel(group, Signal::CONT).await;
            return;
        }
        steps::pause_at_the_end().await;
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::signal;

    use super::*;
    use crate::testing::run;

    #[test]
    fn signals_end_a_process_or_have_no_effect() {
        run(|program| {
            let own = program.id as usize;
            for number in [0, signal::CHLD, signal::CONT, signal::URG, signal::WINCH] {
                assert_eq!(program.call(SystemCall::Kill, [own, number as usize]), Ok(0));
            }
            assert_eq!(program.call(SystemCall::Kill, [30_000, 0]), Err(Errno::ESRCH));
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000)).unwrap();
            assert_eq!(program.call(SystemCall::Kill, [child, signal::TERM as usize]), Ok(0));
            assert_eq!(program.wait_for(child), Ok((child, signal::TERM)));
            assert_eq!(program.call(SystemCall::Kill, [child, 0]), Err(Errno::ESRCH), "its parent has waited");
        });
    }
}
