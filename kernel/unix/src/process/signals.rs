//! The signals of a process and of its workers: actions, blocked and pending ones, and the answers that waits get.
//!
//! The data alone; [`signal_delivery`](crate::process::signal_delivery) sends them, and begins their handlers.

use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ::signals::frame::Stack;
use ::signals::{
    Action, Actions, BrokenPipe, DefaultAction, Details, Disposition, Full, Information, Pending, Set, Signal,
    action_flag,
};
use abi_unix::Errno;
use spin::{Mutex, MutexGuard};
use waiters::Waiters;

use crate::process::accounts::{Account, Charge, Resource};

/// The signals of a process.
pub(crate) struct Signals {
    pub(super) state: Mutex<SignalState>,
    /// Number of the signal that has stopped the process; 0 while it runs.
    // Changed under the lock of `state` by a swap, which tells the first change from a repeated one; read with acquire
    // without the lock by workers, which look again after each wake-up.
    pub(super) stopped: AtomicU8,
    /// Workers of a stopped process.
    pub(super) continued: Mutex<Waiters>,
    /// Waiters for its signals at files ([`signal_file`](crate::process::signal_file)).
    pub(super) readers: Mutex<Waiters>,
}

pub(super) struct SignalState {
    pub(super) actions: Actions,
    /// Signals to the process as a whole.
    pub(super) pending: Pending,
    /// The search for receivers of these.
    pub(super) search: Search,
    /// Number of signals of the process and all its workers that queue with their information.
    pub(super) queued: usize,
    /// Whether a signal was ever sent to one worker alone.
    pub(super) is_directed: bool,
    removals: Removals,
    /// Charge for the actions and for pending signals, once the process has used either.
    charge: Option<Charge>,
}

/// The search for workers and threads that receive signals to their process. It goes on in steps if there are many.
pub(super) struct Search {
    /// Signals for which those from a slot on have not been asked.
    pub(super) left: Set,
    /// That slot.
    pub(super) next: usize,
    /// Signals for which it begins anew when it has come to the end.
    later: Set,
    /// Whether its next step has an owner.
    is_owned: bool,
}

impl Search {
    const NONE: Search = Search { left: Set::EMPTY, next: 0, later: Set::EMPTY, is_owned: false };

    /// Adds signals, for which those below this slot have been asked.
    pub(super) fn add(&mut self, signals: Set, next: usize) {
        if self.left.is_empty() {
            (self.left, self.next) = (signals, next);
        } else {
            self.later = self.later.union(signals);
        }
    }

    /// Returns whether there is a step to do that has no owner.
    pub(super) fn has_no_owner(&self) -> bool {
        !self.left.is_empty() && !self.is_owned
    }

    /// Returns whether there is such a step, which the caller owns then.
    #[must_use]
    pub(super) fn is_taken(&mut self) -> bool {
        let is_taken = self.has_no_owner();
        self.is_owned |= is_taken;
        is_taken
    }

    /// Records that a step has come to this slot, or to the end; returns whether nothing is left.
    pub(super) fn has_come_to(&mut self, next: Option<usize>) -> bool {
        self.next = next.unwrap_or(0);
        if next.is_none() || self.left.is_empty() {
            (self.left, self.later, self.next) = (self.later, Set::EMPTY, 0);
        }
        self.is_owned = !self.left.is_empty();
        !self.is_owned
    }
}

/// Removals of signals from all workers and threads of a process of which not all were visited: each forgets its
/// signals of older date when it is looked at.
struct Removals {
    count: u64,
    /// For each signal the number of the last removal; empty before the first one.
    last: Vec<u64>,
}

impl Removals {
    const NONE: Removals = Removals { count: 0, last: Vec::new() };

    /// Makes sure that removals can be recorded.
    fn reserve(&mut self) -> Result<(), TryReserveError> {
        self.last.try_reserve_exact(SIGNALS - self.last.len())
    }

    /// Records one; returns `false` if there is no memory for that.
    fn add(&mut self, signals: Set) -> bool {
        if self.reserve().is_err() {
            return false;
        }
        self.last.resize(SIGNALS, 0);
        self.count += 1;
        let mut rest = signals;
        while let Some(signal) = rest.first() {
            rest.remove(signal);
            self.last[usize::from(signal.number()) - 1] = self.count;
        }
        true
    }

    /// Returns those of some pending signals that were removed after the removal with this number.
    fn since(&self, seen: u64, pending: Set) -> Set {
        let (mut removed, mut rest) = (Set::EMPTY, pending);
        while let Some(signal) = rest.first() {
            rest.remove(signal);
            if self.last.get(usize::from(signal.number()) - 1).is_some_and(|last| *last > seen) {
                removed.insert(signal);
            }
        }
        removed
    }
}

/// Number of signals.
const SIGNALS: usize = 64;

/// The signals of a worker or thread. The lock of its process's signals is taken before that of its own.
pub(crate) struct OwnSignals {
    pub(super) blocked: AtomicU64,
    /// Signals for which it waits although it blocks them. Changed under the lock of its process's signals.
    pub(super) awaited: AtomicU64,
    pub(super) state: Mutex<OwnState>,
}

pub(super) struct OwnState {
    /// Signals to this worker alone. Used after [`SignalState::own`] has brought them up to date.
    pub(super) pending: Pending,
    /// Number of the last removal that has been done here.
    removals: u64,
    /// Set when it has left: nothing is sent to it any more.
    pub(super) has_left: bool,
    /// Its stack for handlers.
    pub(super) stack: Stack,
    /// The blocked signals from before a call that has replaced them for its duration.
    pub(super) replaced: Option<Set>,
    /// Whether that call was interrupted: a handler comes before the old set.
    pub(super) was_interrupted: bool,
}

/// Result of a look at a worker's signals.
pub(super) enum NextAction {
    /// None is to be delivered.
    Nothing,
    /// The process ends by this signal.
    End(Information),
    /// The process stops by this signal.
    Stop(Signal),
    /// The handler of this signal is to run, which is still pending.
    Handler(Signal),
}

/// Answer to a wait that asks whether it may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// It may.
    GoOn,
    /// It must not go on before its process is continued.
    Hold,
    /// It is over, unless its event has come: a handler is to run.
    Handler,
    /// It is over: the worker leaves.
    Leave,
}

impl Signals {
    /// Creates the signals of a process that begins.
    pub(crate) const fn new() -> Signals {
        let state = SignalState {
            actions: Actions::new(BrokenPipe::FailsTheCall),
            pending: Pending::new(),
            search: Search::NONE,
            queued: 0,
            is_directed: false,
            removals: Removals::NONE,
            charge: None,
        };
        Signals {
            state: Mutex::new(state),
            stopped: AtomicU8::new(0),
            continued: Mutex::new(Waiters::new()),
            readers: Mutex::new(Waiters::new()),
        }
    }

    /// Returns whether the process is stopped.
    pub(crate) fn are_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) != 0
    }

    /// Returns the number of the signal that has stopped the process; 0 while it runs.
    pub(super) fn stopped_by(&self) -> u8 {
        self.stopped.load(Ordering::Acquire)
    }

    /// Wakes all waiters for signals at files, whichever signals those are for; each looks for itself. Called without
    /// the lock of the state, which they take.
    #[doc(alias = "signalfd_notify")]
    pub(super) fn wake_readers(&self) {
        // Taken out of the lock before they are woken.
        let mut readers = core::mem::take(&mut *self.readers.lock());
        readers.wake_all();
    }

    /// Returns the action of a signal.
    pub(super) fn action(&self, signal: Signal) -> Action {
        self.state.lock().actions.get(signal)
    }

    /// Returns whether the program handles a signal.
    pub(crate) fn have_handlers(&self) -> bool {
        self.state.lock().actions.has_handlers()
    }

    /// Returns whether children that end leave no zombie.
    pub(crate) fn discard_children(&self) -> bool {
        let action = self.action(Signal::CHLD);
        action.handler == Action::IGNORE || action.has(action_flag::NOCLDWAIT)
    }

    /// Takes over the actions of a process of which this one begins as a copy.
    pub(super) fn copy_actions(&self, of: &Signals, account: &Arc<Account>) -> Result<(), Errno> {
        let copy = of.state.lock().actions.copy().map_err(|_| Errno::ENOMEM)?;
        let mut state = self.state.lock();
        state.prepare(account)?;
        state.actions = copy;
        Ok(())
    }

    /// Prepares for a program that expects Linux's actions.
    pub(super) fn begin_as_on_linux(&self) {
        self.state.lock().actions.begin_with(BrokenPipe::EndsTheProgram);
    }

    /// Prepares for another program: no handlers, and no stacks for them. Pending signals stay.
    pub(crate) fn start_afresh(&self) {
        self.state.lock().actions.forget_handlers();
    }
}

impl OwnSignals {
    /// Creates the signals of a worker that blocks none.
    pub(crate) const fn new() -> OwnSignals {
        let state = OwnState {
            pending: Pending::new(),
            removals: 0,
            has_left: false,
            stack: Stack::NONE,
            replaced: None,
            was_interrupted: false,
        };
        OwnSignals { blocked: AtomicU64::new(0), awaited: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Blocks the set that its creator blocks, before it begins.
    pub(crate) fn inherit(&self, creator: &OwnSignals) {
        self.blocked.store(creator.blocked.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Takes over the blocked signals and the stack of a worker of which this one begins as a copy.
    pub(super) fn copy(&self, of: &OwnSignals) {
        self.inherit(of);
        self.state.lock().stack = of.state.lock().stack;
    }

    /// Returns the signals that the worker blocks.
    pub(crate) fn blocked(&self) -> Set {
        Set::from_bits(self.blocked.load(Ordering::Relaxed))
    }

    /// Forgets its stack for handlers, for another program.
    pub(crate) fn start_afresh(&self) {
        self.state.lock().stack = Stack::NONE;
    }

    /// Records that the call which has replaced the blocked signals was interrupted.
    pub(crate) fn were_interrupted(&self) {
        self.state.lock().was_interrupted = true;
    }

    /// Returns whether it receives a signal now.
    pub(super) fn receives(&self, signal: Signal) -> bool {
        self.received().has(signal)
    }

    /// Returns the signals that it receives now: those that it does not block, and those for which it waits.
    pub(super) fn received(&self) -> Set {
        Set::from_bits(!self.blocked.load(Ordering::Relaxed) | self.awaited.load(Ordering::Relaxed))
    }
}

impl SignalState {
    /// Makes room for actions and pending signals, at the first use of either.
    pub(super) fn prepare(&mut self, account: &Arc<Account>) -> Result<(), Errno> {
        if self.charge.is_none() {
            let bytes = Actions::MEMORY + Pending::MEMORY + SIGNALS * size_of::<u64>();
            let charge = account.charge(Resource::Memory, bytes)?;
            self.charge = Some(charge);
        }
        Ok(())
    }

    /// Locks the signals of a worker alone, without those that were removed.
    pub(super) fn own<'a>(&mut self, of: &'a OwnSignals) -> MutexGuard<'a, OwnState> {
        let mut own = of.state.lock();
        if own.removals != self.removals.count {
            let removed = self.removals.since(own.removals, own.pending.set());
            own.removals = self.removals.count;
            if !removed.is_empty() {
                self.queued -= remove(&mut own.pending, removed);
            }
        }
        own
    }

    /// Looks for the signal that a worker has to handle next; those with handlers only if `may_handle`. Ignored ones
    /// go; the first process ignores those that would end or stop it, which no other may do to it.
    pub(super) fn next(&mut self, own: &OwnSignals, is_first: bool, may_handle: bool) -> NextAction {
        let mut state = self.own(own);
        let mut left = Set::EMPTY;
        loop {
            let pending = state.pending.set().union(self.pending.set());
            let Some(signal) = pending.without(own.blocked()).without(left).first() else {
                return NextAction::Nothing;
            };
            let next = match self.actions.disposition(signal) {
                Disposition::Handle(_) if !may_handle => {
                    left.insert(signal);
                    continue;
                }
                Disposition::Handle(_) => return NextAction::Handler(signal),
                Disposition::Ignore | Disposition::Default(DefaultAction::Ignore | DefaultAction::Continue) => None,
                // Others may have sent them to the first process while it ignored or caught them.
                Disposition::Default(DefaultAction::End | DefaultAction::Stop) if is_first => None,
                Disposition::Default(DefaultAction::End) => Some(NextAction::End(Information::of_kernel(signal))),
                Disposition::Default(DefaultAction::Stop) => Some(NextAction::Stop(signal)),
            };
            match (next, self.take(&mut state, signal)) {
                (None, _) => {}
                (Some(NextAction::End(_)), Some(information)) => return NextAction::End(information),
                (Some(next), _) => return next,
            }
        }
    }

    /// Returns the action of the handler that is to run next, if any is.
    pub(super) fn next_handler(&mut self, own: &OwnSignals) -> Option<Action> {
        let mut rest = self.own(own).pending.set().union(self.pending.set()).without(own.blocked());
        while let Some(signal) = rest.first() {
            rest.remove(signal);
            if let Disposition::Handle(action) = self.actions.disposition(signal) {
                return Some(action);
            }
        }
        None
    }

    /// Takes a signal: the worker's own one first.
    pub(super) fn take(&mut self, own: &mut OwnState, signal: Signal) -> Option<Information> {
        let before = own.pending.queued() + self.pending.queued();
        let taken = own.pending.take(signal).or_else(|| self.pending.take(signal));
        self.queued -= before - own.pending.queued() - self.pending.queued();
        taken
    }

    /// Takes a signal to the process as a whole.
    pub(super) fn take_of_all(&mut self, signal: Signal) -> Option<Information> {
        let before = self.pending.queued();
        let taken = self.pending.take(signal);
        self.queued -= before - self.pending.queued();
        taken
    }

    /// Adds a signal to those of the process, or of one worker.
    pub(super) fn add(&mut self, target: Option<&OwnSignals>, information: Information) -> Result<(), Full> {
        // The information of a fault always has room: there is one at a time. Without a charge there is room for none.
        let is_fault = matches!(information.details, Details::Fault(_));
        self.is_directed |= target.is_some();
        let own = target.map(|target| self.own(target));
        let has_room = is_fault || self.queued < Pending::LONGEST && self.charge.is_some();
        let mut add = |pending: &mut Pending| {
            let before = pending.queued();
            let added = pending.add(information, has_room);
            self.queued += pending.queued() - before;
            added
        };
        match own {
            Some(mut own) => add(&mut own.pending),
            None => add(&mut self.pending),
        }
    }

    /// Adds the expirations of a timer's signal to the one that is pending; returns `false` if none is.
    pub(super) fn count_overrun(&mut self, target: Option<&OwnSignals>, information: &Information) -> bool {
        match target {
            Some(own) => self.own(own).pending.count_overrun(information),
            None => self.pending.count_overrun(information),
        }
    }

    /// Drops the signals to a worker or thread that has left.
    pub(super) fn forget(&mut self, own: &OwnSignals) {
        let mut own = own.state.lock();
        self.queued -= own.pending.queued();
        own.pending = Pending::new();
        own.has_left = true;
    }

    /// Removes signals of the process as a whole.
    pub(super) fn remove_all(&mut self, signals: Set) {
        self.queued -= remove(&mut self.pending, signals);
    }

    /// Makes sure that removals from all workers can be recorded: before there are more than one step visits.
    pub(super) fn reserve_removals(&mut self) -> Result<(), TryReserveError> {
        self.removals.reserve()
    }

    /// Records that signals of all workers are removed; returns `false` if there is no memory for that.
    #[must_use]
    pub(super) fn note_removal(&mut self, signals: Set) -> bool {
        self.removals.add(signals)
    }

    /// Removes signals of one worker.
    pub(super) fn remove_all_of(&mut self, own: &OwnSignals, signals: Set) {
        let mut own = self.own(own);
        self.queued -= remove(&mut own.pending, signals);
    }

    /// Makes a signal to the process one of this worker alone, which is about to handle it.
    pub(super) fn claim(&mut self, own: &OwnSignals, signal: Signal) {
        let mut own = self.own(own);
        let before = own.pending.queued() + self.pending.queued();
        if !own.pending.set().has(signal)
            && let Some(information) = self.pending.take(signal)
        {
            // Without memory it goes on without its information.
            let _ = own.pending.add(information, true);
        }
        self.queued -= before - own.pending.queued() - self.pending.queued();
    }

    /// Returns whether anything is to be delivered to a worker.
    pub(super) fn has_any_for(&mut self, own: &OwnSignals) -> bool {
        let pending = self.own(own).pending.set().union(self.pending.set());
        !pending.without(own.blocked()).is_empty()
    }
}

/// Removes signals; returns the number of those that had their information.
fn remove(pending: &mut Pending, signals: Set) -> usize {
    let before = pending.queued();
    pending.remove_all(signals);
    before - pending.queued()
}

/// Fate of a call that a handler has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ERESTARTSYS")]
#[doc(alias = "SA_RESTART")]
pub(crate) enum Restart {
    /// It is made again if the handler's action has the flag `SA_RESTART`: Linux's `ERESTARTSYS`.
    ByFlag,
    /// It is made again after each handler: Linux's `ERESTARTNOINTR`.
    Always,
    /// Its result is `EINTR`.
    Never,
    /// Its result is `EINTR`, and a relative sleep tells the rest of its time.
    Sleep {
        /// The tick at which it would have ended.
        deadline: u64,
    },
}

/// The ways in which `rt_sigprocmask` combines a set with the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combination {
    /// `SIG_BLOCK`.
    Add,
    /// `SIG_UNBLOCK`.
    Remove,
    /// `SIG_SETMASK`.
    Set,
}

/// A wait for signals themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SignalWait {
    /// `rt_sigsuspend`: until a handler has run.
    Handler,
    /// `rt_sigtimedwait`: until one of these is pending, which is taken without a handler.
    One {
        /// The signals.
        set: Set,
        /// Address for its information, or 0.
        information: usize,
        /// Tick at which the wait ends with `EAGAIN`.
        deadline: Option<u64>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(signals: &[Signal]) -> u64 {
        signals.iter().fold(0, |bits, signal| bits | 1 << (signal.number() - 1))
    }

    #[test]
    fn a_worker_receives_signals_that_it_does_not_block_or_for_which_it_waits() {
        let own = OwnSignals::new();
        assert!(own.receives(Signal::CHLD) && own.receives(Signal::CONT));
        own.blocked.store(bits(&[Signal::CHLD, Signal::CONT]), Ordering::Relaxed);
        assert!(!own.receives(Signal::CHLD) && !own.receives(Signal::CONT));
        own.awaited.store(bits(&[Signal::CONT]), Ordering::Relaxed);
        assert!(!own.receives(Signal::CHLD) && own.receives(Signal::CONT));
        assert_eq!(own.received().bits(), !bits(&[Signal::CHLD]));
    }

    /// A thread begins with its creator's blocked signals, and with neither its waits nor its stack.
    #[test]
    fn a_thread_inherits_the_blocked_signals_alone() {
        let (creator, own) = (OwnSignals::new(), OwnSignals::new());
        creator.blocked.store(bits(&[Signal::CHLD]), Ordering::Relaxed);
        creator.awaited.store(bits(&[Signal::CHLD]), Ordering::Relaxed);
        own.inherit(&creator);
        assert_eq!(own.blocked().bits(), bits(&[Signal::CHLD]));
        assert!(!own.receives(Signal::CHLD));
    }
}
