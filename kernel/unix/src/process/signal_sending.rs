//! Sending signals: `kill` and the keys of the terminal, and whether a process may.

use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};

use ::signals::{Details, Information, Signal, code};
use abi_unix::{Act, Errno};

use crate::files::remains::{self, Remain, leave};
use crate::process::capabilities::Rights;
use crate::process::table::{SeenZombie, Walk, find};
use crate::process::worker::Worker;
use crate::process::{FIRST, Process, authority, signal_delivery, table};
use crate::scheduling::steps::{self, Endless};

/// Members of a group that one step of [`GroupSignals`] reaches.
const SIGNALLED_AT_A_TIME: usize = 32;

/// Sends a signal to a process, if the caller may; the number 0 asks only whether it may.
fn signal(caller: &Process, process: &Process, number: u32) -> Result<(), Errno> {
    let details = Details::Sender { process: caller.id, user: caller.real_user(), value: 0 };
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
    send_if(caller, process, target, information, || authority::permit_towards(caller, process, Act::Signal))
}

/// Sends a signal as [`send`] does, if the rights that the caller had once suffice.
pub(super) fn send_with(
    rights: &Rights,
    caller: &Process,
    process: &Process,
    target: Option<&Worker>,
    information: Information,
) -> Result<(), Errno> {
    let permit = || authority::permit_with(rights, caller, process, Act::Signal);
    send_if(caller, process, target, Some(information), permit)
}

fn send_if(
    caller: &Process,
    process: &Process,
    target: Option<&Worker>,
    information: Option<Information>,
    permit: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let continues = information.is_some_and(|information| information.signal == Signal::CONT);
    if !(continues && process.session() == caller.session()) {
        permit()?;
    }
    let Some(information) = information else { return Ok(()) };
    if process.id == FIRST && caller.id != FIRST && signal_delivery::is_harmful(process, information.signal) {
        return Err(Errno::EPERM);
    }
    signal_delivery::send(process, target, information)
}

/// Performs `kill` with the number of a process.
#[doc(alias = "kill_pid")]
pub(crate) fn signal_one(caller: &Process, id: u32, number: u32) -> Result<(), Errno> {
    match find(id) {
        Some(process) => signal(caller, &process, number),
        None => signal_zombie(caller, id, Signal::new(number)),
    }
}

/// Sends a signal to a zombie, on which it has no effect, if the caller may. `ESRCH` if there is none.
pub(crate) fn signal_zombie(caller: &Process, id: u32, signal: Option<Signal>) -> Result<(), Errno> {
    send_to_zombie(caller, &table::zombie(id, caller).ok_or(Errno::ESRCH)?, signal)
}

fn send_to_zombie(caller: &Process, zombie: &SeenZombie, signal: Option<Signal>) -> Result<(), Errno> {
    if signal == Some(Signal::CONT) && zombie.session == caller.session() {
        return Ok(());
    }
    authority::permit_towards_zombie(caller, zombie)
}

/// Performs `kill` with a process group: sends a signal, in steps, to its members to which the caller may. `EPERM` if
/// there are only others, `ESRCH` if it is empty, also of zombies. The caller comes last, because it does not go on
/// after that.
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
    if caller.group() == group {
        return signal(caller, caller, number);
    }
    // Zombies are members that live ones make up for.
    let mut last = 0;
    while answer.is_err()
        && let Some((id, zombie)) = table::next_zombie_of(group, last, caller)
    {
        (last, answer) = (id, send_to_zombie(caller, &zombie, Signal::new(number)));
        steps::pause(caller).await;
    }
    answer
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

/// Calls its argument while signals to a process group are still due, so that nothing makes them undue meanwhile.
pub(crate) type WhileDue = fn(group: u32, send: &mut dyn FnMut());

/// The signals that are due whatever happens.
fn always(_: u32, send: &mut dyn FnMut()) {
    send();
}

/// Signals of a terminal on their way to the members of a process group, some in each step.
pub(crate) struct GroupSignals {
    /// A member that gets them at another time; 0 for none.
    but: u32,
    signals: [Option<Signal>; 2],
    /// The members that are still to get them.
    members: Walk,
}

impl GroupSignals {
    /// Begins.
    pub(crate) fn new(group: u32, signals: [Option<Signal>; 2]) -> GroupSignals {
        GroupSignals { but: 0, signals, members: Walk::of_group(group) }
    }

    /// Reaches some of the members; returns whether none are left.
    pub(crate) fn step(&mut self) -> bool {
        for _ in 0..SIGNALLED_AT_A_TIME {
            match self.members.look() {
                Some(Some(process)) if process.id == self.but => {}
                Some(Some(process)) => send_each(&process, self.signals),
                Some(None) => return true,
                None => return false,
            }
        }
        false
    }
}

fn send_each(process: &Process, signals: [Option<Signal>; 2]) {
    signals.into_iter().flatten().for_each(|signal| signal_delivery::send_from_kernel(process, signal));
}

/// The turn of a process to send signals of a terminal to a group. A process has one at a time, which lasts until all
/// members have been reached: so it never has more than one such walk on its way, however many calls it makes.
///
/// Rejected: a walk that its call goes on with each time it is tried. Two calls of a process would need two places for
/// their walks, a call that a handler interrupts would leave half of one, and the next call would go on there.
pub(crate) struct SignalTurn<'a>(&'a Process);

impl SignalTurn<'_> {
    /// Takes the turn. Pending while the last one lasts, with which the caller helps; `waker` is woken then.
    pub(crate) fn take<'a>(caller: &'a Process, waker: Option<&Waker>) -> Poll<SignalTurn<'a>> {
        // AcqRel: after the walk that ended the last turn.
        if !caller.family.is_signalling.swap(true, Ordering::AcqRel) {
            return Poll::Ready(SignalTurn(caller));
        }
        remains::free_any();
        if let Some(waker) = waker {
            waker.wake_by_ref();
        }
        Poll::Pending
    }

    /// Sends signals of a terminal to all members of a process group, at the expense of the caller. The first of them
    /// get them now, and the others in steps, after the call if there are many. The caller comes last of the first,
    /// because it does not go on after that.
    pub(crate) fn send(self, group: u32, signals: [Option<Signal>; 2]) {
        self.send_while(group, signals, always);
    }

    /// Does as [`SignalTurn::send`] while the signals are due. Those whose time has gone by reach nobody.
    pub(crate) fn send_while(self, group: u32, signals: [Option<Signal>; 2], while_due: WhileDue) {
        let caller = self.0;
        // The walk ends it.
        core::mem::forget(self);
        let others = GroupSignals { but: caller.id, ..GroupSignals::new(group, signals) };
        leave(SignalsOfATurn { owner: caller.id, group, signals: others, while_due });
        if caller.group() == group {
            while_due(group, &mut || send_each(caller, signals));
        }
    }
}

impl Drop for SignalTurn<'_> {
    fn drop(&mut self) {
        self.0.family.is_signalling.store(false, Ordering::Release);
    }
}

/// Signals that a process has sent in its turn, which ends with them.
struct SignalsOfATurn {
    /// The process, which pays.
    owner: u32,
    group: u32,
    signals: GroupSignals,
    while_due: WhileDue,
}

impl Remain for SignalsOfATurn {
    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    fn step(&mut self) -> bool {
        let mut is_over = true;
        (self.while_due)(self.group, &mut || is_over = self.signals.step());
        if is_over && let Some(process) = find(self.owner) {
            process.family.is_signalling.store(false, Ordering::Release);
        }
        is_over
    }
}

/// Sends a signal of the kernel to all members of a process group, in steps.
///
/// # Cancellation
/// Some have got the signal and others have not.
pub(crate) async fn signal_group_from_kernel(group: u32, signal: Signal) {
    let mut members = Walk::of_group(group);
    while let Some(process) = members.next_in_steps(&Endless).await {
        signal_delivery::send_from_kernel(&process, signal);
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

    /// Signals to two groups with more members than a step reaches: those of one process come one after the other, and
    /// a call that finds the first under way goes on with them.
    #[test]
    fn large_groups_get_the_signals_of_a_terminal_once_each() {
        run(|program| {
            let groups = [0, 1].map(|_| {
                let wait = |program: &mut crate::testing::Program| program.sleep_ns(1_000_000_000_000);
                let members: Vec<usize> = (0..SIGNALLED_AT_A_TIME + 8).map(|_| program.spawn(wait).unwrap()).collect();
                for &member in &members {
                    assert_eq!(program.call(SystemCall::SetProcessGroup, [member, members[0]]), Ok(0));
                }
                members
            });
            let process = program.process();
            let send = |group: usize, signal| match SignalTurn::take(&process, None) {
                Poll::Ready(turn) => {
                    turn.send(group as u32, [Some(signal), None]);
                    true
                }
                Poll::Pending => false,
            };
            assert!(send(groups[0][0], Signal::TERM));
            assert!(remains::are_left(), "the last members come later");
            let tries = (1..100).find(|_| send(groups[1][0], Signal::HUP));
            assert_eq!(tries, Some(2), "the first try was a step for the first group");
            for (members, signal) in groups.into_iter().zip([signal::TERM, signal::HUP]) {
                for member in members {
                    assert_eq!(program.wait_for(member), Ok((member, signal)));
                }
            }
            assert!(!remains::are_left());
            // A turn that is not used is over.
            for _ in 0..2 {
                assert!(SignalTurn::take(&process, None).is_ready());
            }
        });
    }

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
