//! Job control: the controlling terminals of sessions, and the accesses of processes in the background (POSIX, 11.1).
//!
//! A session has at most one controlling terminal, and a terminal controls at most one session. The leader of a session
//! gets one by opening it or by asking for it (`TIOCSCTTY`), for all processes of the session. One process group of the
//! session is in the terminal's foreground. A process of another group that reads, or changes the terminal's settings,
//! makes its group stop: all members get `SIGTTIN` or `SIGTTOU`, and the call waits, to be tried again when the process
//! goes on. It fails instead if stopping is not possible: if the process blocks or ignores the signal, or if its group
//! is orphaned, so that no shell would continue it.
//!
//! The session of a terminal stands in the terminal. Rejected: the terminal in each process, as Linux has it. A
//! terminal that is given up would have to be looked for in all of them.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};

use ::signals::Signal;
use abi_unix::Errno;
use spin::Mutex;

use crate::files::file::Attempt;
use crate::files::terminal::Terminal;
use crate::files::{console, pseudo_terminal};
use crate::process::signal_sending::SignalTurn;
use crate::process::{Process, signal_delivery, signal_sending, table};
use crate::scheduling::steps;

/// Held while a session gets or loses its terminal, while a group comes to the foreground, and while one in the
/// background gets the signals that stop it.
static CHANGE: Mutex<()> = Mutex::new(());

/// Signals to the foreground when the session loses its terminal: stopped processes go on, to see the first.
pub(super) const HANGUP: [Signal; 2] = [Signal::HUP, Signal::CONT];

/// Returns the controlling terminal of a session.
fn of_session(session: u32) -> Option<Arc<Terminal>> {
    let terminal = console::terminal();
    if terminal.session.load(Ordering::Relaxed) == session {
        return Some(terminal.clone());
    }
    pseudo_terminal::of_session(session)
}

/// Returns the controlling terminal of a process.
#[doc(alias = "get_current_tty")]
pub(crate) fn terminal_of(process: &Process) -> Option<Arc<Terminal>> {
    if process.has_no_terminal() { None } else { of_session(process.session()) }
}

/// Returns whether a terminal is the controlling terminal of a process.
fn is_own(terminal: &Terminal, process: &Process) -> bool {
    !process.has_no_terminal() && terminal.session.load(Ordering::Relaxed) == process.session()
}

/// Fails with `ENOTTY` unless a terminal is the controlling terminal of a process.
pub(crate) fn require_own(terminal: &Terminal, process: &Process) -> Result<(), Errno> {
    if is_own(terminal, process) { Ok(()) } else { Err(Errno::ENOTTY) }
}

/// Sends signals to a group while it is in the background of its terminal. They are sent before the group comes to the
/// foreground or never: the shell continues it after that, and a stop would come too late to be undone.
fn while_in_background(group: u32, send: &mut dyn FnMut()) {
    let _change = CHANGE.lock();
    let terminal = table::session_of_group(group).and_then(of_session);
    if terminal.is_some_and(|terminal| has_in_background(&terminal, group)) {
        send();
    }
}

/// Returns whether another group of the session is in a terminal's foreground.
fn has_in_background(terminal: &Terminal, group: u32) -> bool {
    let foreground = terminal.foreground.load(Ordering::Relaxed);
    foreground != group && foreground != 0
}

/// Permits an access to a terminal that a process in its background may not make: one for which its group gets this
/// signal. `EIO` if the signal could not stop it. Pending means that the signal is on its way, or was sent; `waker` is
/// then registered if there is one.
#[doc(alias = "job_control")]
#[doc(alias = "tty_check_change")]
pub(crate) fn require_foreground(
    terminal: &Terminal,
    process: &Process,
    signal: Signal,
    waker: Option<&Waker>,
) -> Poll<Result<(), Errno>> {
    let group = process.group();
    let is_in_background = || is_own(terminal, process) && has_in_background(terminal, group);
    if !is_in_background() {
        return Poll::Ready(Ok(()));
    }
    if signal_delivery::has_no_effect(process, signal) {
        return Poll::Ready(if signal == Signal::TTIN { Err(Errno::EIO) } else { Ok(()) });
    }
    if table::is_orphaned(group) {
        return Poll::Ready(Err(Errno::EIO));
    }
    // A signal that was sent before has not had its effect yet. It is pending until the process is stopped.
    let is_sent = signal_delivery::is_pending(process, signal) || process.signals.are_stopped();
    if !is_sent {
        let Poll::Ready(turn) = SignalTurn::take(process, waker) else { return Poll::Pending };
        turn.send_while(group, [Some(signal), None], while_in_background);
    }
    if let Some(waker) = waker {
        terminal.register(signal, waker)?;
        // It may have come to the foreground before it was registered.
        if !is_in_background() {
            waker.wake_by_ref();
        }
    }
    Poll::Pending
}

/// Makes a terminal the controlling terminal of the session that this process leads; its group comes to the foreground.
/// `EPERM` if it leads none, if its session has another terminal, or if the terminal controls another session. Nothing
/// happens if it controls this session already.
#[doc(alias = "TIOCSCTTY")]
pub(crate) fn acquire(terminal: &Terminal, process: &Process) -> Result<(), Errno> {
    let _change = CHANGE.lock();
    let session = process.session();
    let is_leader = session == process.id;
    let present = terminal.session.load(Ordering::Relaxed);
    if is_leader && present == session {
        return Ok(());
    }
    if !is_leader || of_session(session).is_some() || present != 0 {
        return Err(Errno::EPERM);
    }
    terminal.foreground.store(process.group(), Ordering::Relaxed);
    terminal.session.store(session, Ordering::Relaxed);
    terminal.wake_all();
    Ok(())
}

/// Takes its session's terminal away from a terminal.
pub(super) fn release(terminal: &Terminal, session: u32) {
    let _change = CHANGE.lock();
    if terminal.session.load(Ordering::Relaxed) == session {
        terminal.session.store(0, Ordering::Relaxed);
        terminal.foreground.store(0, Ordering::Relaxed);
    }
    terminal.wake_all();
}

/// Performs `TIOCNOTTY`: a process gives up its controlling terminal; the leader of a session does so for all, and the
/// foreground is told. `ENOTTY` if it is another one.
#[doc(alias = "disassociate_ctty")]
pub(crate) fn give_up(terminal: &Terminal, process: &Process, waker: Option<&Waker>) -> Attempt {
    require_own(terminal, process)?;
    let session = process.session();
    if session != process.id {
        process.set_no_terminal(true);
        return Poll::Ready(Ok(0));
    }
    let Poll::Ready(turn) = SignalTurn::take(process, waker) else { return Poll::Pending };
    if let Some(group) = terminal.foreground_of_session() {
        turn.send(group, HANGUP.map(Some));
    }
    release(terminal, session);
    Poll::Ready(Ok(0))
}

/// Takes the terminal away from the session of a leader that has ended, and tells the foreground.
///
/// # Cancellation
/// Not to be dropped: the terminal would never be another session's.
pub(crate) async fn leader_has_ended(process: &Process) {
    let session = process.session();
    if session != process.id {
        return;
    }
    let Some(terminal) = of_session(session) else { return };
    let foreground = terminal.foreground_of_session();
    release(&terminal, session);
    if let Some(group) = foreground {
        for signal in HANGUP {
            signal_sending::signal_group_from_kernel(group, signal).await;
            steps::pause_at_the_end().await;
        }
    }
    terminal.hang_up();
}

/// Returns the group in the foreground of a process's controlling terminal; 0 if the session has none there. `ENOTTY`
/// for another terminal.
#[doc(alias = "TIOCGPGRP")]
pub(crate) fn foreground(terminal: &Terminal, process: &Process) -> Result<u32, Errno> {
    require_own(terminal, process)?;
    Ok(terminal.foreground.load(Ordering::Relaxed))
}

/// Returns the session of a process's controlling terminal. `ENOTTY` for another terminal.
#[doc(alias = "TIOCGSID")]
pub(crate) fn session(terminal: &Terminal, process: &Process) -> Result<u32, Errno> {
    require_own(terminal, process)?;
    Ok(terminal.session.load(Ordering::Relaxed))
}

/// Brings a group of its session to the foreground of a process's controlling terminal. `EINVAL` for a negative number,
/// `ESRCH` if there is no such group, `EPERM` if it is of another session.
#[doc(alias = "TIOCSPGRP")]
pub(crate) fn set_foreground(terminal: &Terminal, process: &Process, group: i32) -> Result<(), Errno> {
    let group = u32::try_from(group).map_err(|_| Errno::EINVAL)?;
    let session = table::session_of_group(group).ok_or(Errno::ESRCH)?;
    if session != process.session() {
        return Err(Errno::EPERM);
    }
    {
        let _change = CHANGE.lock();
        require_own(terminal, process)?;
        terminal.foreground.store(group, Ordering::Relaxed);
    }
    // Those that waited for the foreground are in it now.
    terminal.wake_all();
    Ok(())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{open, signal};
    use filesystem::DeviceNumber;

    use super::*;
    use crate::files::remains;
    use crate::files::terminal::Output;
    use crate::testing::{Program, run};

    const MS: usize = 1_000_000;

    /// A terminal beside the console, which has the serial line for its output.
    fn new() -> Arc<Terminal> {
        let number = DeviceNumber { major: 4, minor: 98 };
        Arc::new(Terminal::new(number, Output::Serial, [1, 2, 3, 4]).unwrap())
    }

    /// Runs a closure as the leader of a session of its own, which has a terminal.
    fn lead(program: &mut Program, body: impl FnOnce(&mut Program, Arc<Terminal>) + Send + 'static) {
        let leader = program.spawn(|program| {
            program.call(SystemCall::SetSession, []).unwrap();
            let (_, number) = program.open_master();
            let path = program.store(alloc::format!("/dev/pts/{number}\0").as_bytes());
            program.call(SystemCall::Open, [0, path, open::RDWR as usize, 0]).unwrap();
            let terminal = terminal_of(&program.process()).unwrap();
            body(program, terminal);
        });
        let leader = leader.unwrap();
        assert_eq!(program.wait_for(leader), Ok((leader, 0)));
    }

    /// Starts a child in a group of its own.
    fn start_group(program: &mut Program, body: impl FnOnce(&mut Program) + Send + 'static) -> usize {
        let child = program.spawn(body).unwrap();
        assert_eq!(program.call(SystemCall::SetProcessGroup, [child, child]), Ok(0));
        child
    }

    #[test]
    fn a_process_without_the_terminal_is_refused() {
        run(|program| {
            let (process, terminal) = (program.process(), new());
            assert_ne!(process.session(), process.id, "it leads no session");
            assert_eq!(acquire(&terminal, &process), Err(Errno::EPERM));
            assert_eq!(require_own(&terminal, &process), Err(Errno::ENOTTY));
            assert_eq!(foreground(&terminal, &process), Err(Errno::ENOTTY));
            assert_eq!(session(&terminal, &process), Err(Errno::ENOTTY));
            assert_eq!(set_foreground(&terminal, &process, process.group() as i32), Err(Errno::ENOTTY));
            assert_eq!(give_up(&terminal, &process, None), Poll::Ready(Err(Errno::ENOTTY)));
            let access = require_foreground(&terminal, &process, Signal::TTIN, None);
            assert_eq!(access, Poll::Ready(Ok(())), "it is in no terminal's background");
            assert_eq!(terminal.session.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn the_leader_of_a_session_gets_one_free_terminal_and_chooses_the_foreground() {
        run(|program| {
            let stranger = program.process().group() as i32;
            lead(program, move |program, terminal| {
                let process = program.process();
                let others = new();
                others.session.store(process.session() + 1, Ordering::Relaxed);
                assert_eq!(acquire(&others, &process), Err(Errno::EPERM), "it is another session's");
                assert_eq!(acquire(&terminal, &process), Ok(()), "it has it already");
                assert_eq!(session(&terminal, &process), Ok(process.id));
                assert_eq!(foreground(&terminal, &process), Ok(process.group()));
                for (group, error) in [(-1, Errno::EINVAL), (30_000, Errno::ESRCH), (stranger, Errno::EPERM)] {
                    assert_eq!(set_foreground(&terminal, &process, group), Err(error), "{group}");
                }
                assert_eq!(foreground(&terminal, &process), Ok(process.group()));
                let child = start_group(program, |program| program.sleep_ns(10 * MS));
                assert_eq!(set_foreground(&terminal, &process, child as i32), Ok(()));
                assert_eq!(foreground(&terminal, &process), Ok(child as u32));
                assert_eq!(program.wait_for(child), Ok((child, 0)));
                release(&terminal, process.session() + 1);
                assert_eq!(session(&terminal, &process), Ok(process.id), "only its own session loses it");
                release(&terminal, process.session());
                assert_eq!(session(&terminal, &process), Err(Errno::ENOTTY));
            });
        });
    }

    /// An access from the background stops the group, unless nothing could: then it fails, or is permitted.
    #[test]
    fn a_group_in_the_background_is_stopped_by_its_access() {
        run(|program| {
            lead(program, |program, terminal| {
                let (process, shared) = (program.process(), terminal.clone());
                let child = start_group(program, move |program| {
                    program.sleep_ns(MS);
                    let process = program.process();
                    let access = |signal| require_foreground(&shared, &process, signal, None);
                    for (action, expected) in [(1u64, Poll::Ready(Err(Errno::EIO))), (0, Poll::Pending)] {
                        let action = program.store(&[action.to_le_bytes(), [0; 8], [0; 8]].concat());
                        assert_eq!(
                            program.call(SystemCall::SignalAction, [signal::TTIN as usize, action, 0, 8]),
                            Ok(0)
                        );
                        assert_eq!(access(Signal::TTIN), expected);
                    }
                    assert!(signal_delivery::is_pending(&process, Signal::TTIN));
                    assert_eq!(access(Signal::TTIN), Poll::Pending, "the signal is on its way");
                    program.sleep_ns(MS);
                    // It has been stopped and continued; now it is in the foreground.
                    assert_eq!(access(Signal::TTIN), Poll::Ready(Ok(())));
                });
                program.sleep_ns(10 * MS);
                let stopped = table::find(child as u32).unwrap();
                assert!(stopped.signals.are_stopped());
                drop(stopped);
                assert_eq!(set_foreground(&terminal, &process, child as i32), Ok(()));
                // No shell would continue the leader's own group.
                for signal in [Signal::TTIN, Signal::TTOU] {
                    assert_eq!(require_foreground(&terminal, &process, signal, None), Poll::Ready(Err(Errno::EIO)));
                }
                assert_eq!(program.call(SystemCall::Kill, [child, signal::CONT as usize]), Ok(0));
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            });
        });
    }

    /// A group that comes to the foreground is stopped by no signal that was sent before, or by all of it: the last
    /// members of a large one would get theirs after the shell has continued them.
    #[test]
    fn a_group_that_comes_to_the_foreground_is_not_stopped_any_more() {
        for comes in [false, true] {
            run(move |program| {
                lead(program, move |program, terminal| {
                    let leader = program.process();
                    let first = start_group(program, move |program| {
                        program.sleep_ns(MS);
                        for _ in 0..40 {
                            program.spawn(|program| program.sleep_ns(1_000_000 * MS)).unwrap();
                        }
                        let process = program.process();
                        let last = table::next_after(process.id + 39).unwrap();
                        assert_eq!(last.group(), process.id);
                        let access = || require_foreground(&terminal, &process, Signal::TTIN, None);
                        assert_eq!(access(), Poll::Pending);
                        assert!(remains::are_left() && signal_delivery::is_pending(&process, Signal::TTIN));
                        if comes {
                            set_foreground(&terminal, &leader, process.id as i32).unwrap();
                        }
                        while remains::are_left() {
                            remains::free_any();
                        }
                        assert_eq!(signal_delivery::is_pending(&last, Signal::TTIN), !comes);
                        assert_eq!(access().is_ready(), comes);
                        assert!(SignalTurn::take(&process, None).is_ready(), "the turn is over");
                        drop((process, last));
                        let _ = program.call(SystemCall::Kill, [0, signal::KILL as usize]);
                    });
                    assert_eq!(program.wait_for(first), Ok((first, signal::KILL)));
                });
            });
        }
    }

    #[test]
    fn a_member_gives_the_terminal_up_for_itself_and_the_leader_for_all() {
        run(|program| {
            lead(program, |program, terminal| {
                let (process, shared) = (program.process(), terminal.clone());
                let member = program.spawn(move |program| {
                    let process = program.process();
                    assert_eq!(session(&shared, &process), Ok(process.session()));
                    assert_eq!(give_up(&shared, &process, None), Poll::Ready(Ok(0)));
                    assert_eq!(session(&shared, &process), Err(Errno::ENOTTY));
                    assert!(terminal_of(&process).is_none());
                });
                let member = member.unwrap();
                assert_eq!(program.wait_for(member), Ok((member, 0)));
                assert_eq!(session(&terminal, &process), Ok(process.id), "the others keep it");
                let child = start_group(program, |program| program.sleep_ns(1_000_000 * MS));
                set_foreground(&terminal, &process, child as i32).unwrap();
                assert_eq!(give_up(&terminal, &process, None), Poll::Ready(Ok(0)));
                assert_eq!(session(&terminal, &process), Err(Errno::ENOTTY));
                assert_eq!(terminal.foreground.load(Ordering::Relaxed), 0);
                assert_eq!(program.wait_for(child), Ok((child, signal::HUP)), "the foreground is told");
            });
        });
    }
}
