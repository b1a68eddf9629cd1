//! Actions of signals: what a program has chosen, and what happens by default.

use alloc::vec::Vec;

use crate::set::{Set, Signal};

/// Flags of an action (sigaction(2)).
#[allow(missing_docs)]
pub mod action_flag {
    pub const NOCLDSTOP: u64 = 1;
    pub const NOCLDWAIT: u64 = 2;
    pub const SIGINFO: u64 = 4;
    pub const ONSTACK: u64 = 0x0800_0000;
    pub const RESTART: u64 = 0x1000_0000;
    pub const NODEFER: u64 = 0x4000_0000;
    pub const RESETHAND: u64 = 0x8000_0000;
    /// The flags that have a meaning here; others are kept and have no effect, as on Linux.
    pub const KNOWN: u64 = NOCLDSTOP | NOCLDWAIT | SIGINFO | ONSTACK | RESTART | NODEFER | RESETHAND;
}

/// The choice of a program for a signal (`struct sigaction` as the kernel of riscv64 has it: without a restorer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "sigaction")]
pub struct Action {
    /// Address of the handler, or [`Action::DEFAULT`] or [`Action::IGNORE`].
    pub handler: u64,
    /// [`action_flag`]s.
    pub flags: u64,
    /// Signals that are blocked while the handler runs, beside the signal itself.
    pub mask: Set,
}

impl Action {
    /// `SIG_DFL`.
    pub const DEFAULT: u64 = 0;
    /// `SIG_IGN`.
    pub const IGNORE: u64 = 1;
    /// Bytes of an action in memory.
    pub const SIZE: usize = 24;
    /// The default action.
    pub const INITIAL: Action = Action { handler: Action::DEFAULT, flags: 0, mask: Set::EMPTY };

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; Action::SIZE] {
        let mut bytes = [0; Action::SIZE];
        for (place, word) in bytes.chunks_exact_mut(8).zip([self.handler, self.flags, self.mask.bits()]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the bytes as they lie in memory.
    pub fn from_bytes(bytes: [u8; Action::SIZE]) -> Action {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Action { handler: word(0), flags: word(8), mask: Set::mask(word(16)) }
    }

    /// Whether it has all of these flags.
    pub const fn has(self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

/// Effect of a signal on a process that has not chosen (signal(7), "Standard signals").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultAction {
    /// The process ends.
    End,
    /// Nothing.
    Ignore,
    /// The process stops until it is continued.
    Stop,
    /// A stopped process goes on.
    Continue,
}

impl DefaultAction {
    /// Returns the default of a signal.
    pub const fn of(signal: Signal) -> DefaultAction {
        match signal {
            Signal::CHLD | Signal::URG | Signal::WINCH => DefaultAction::Ignore,
            Signal::CONT => DefaultAction::Continue,
            Signal::STOP | Signal::TSTP | Signal::TTIN | Signal::TTOU => DefaultAction::Stop,
            _ => DefaultAction::End,
        }
    }
}

/// Effect of a signal on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Nothing.
    Ignore,
    /// Its default, which is not to ignore it.
    Default(DefaultAction),
    /// A handler runs.
    Handle(Action),
}

/// The actions of a process. Without a choice of the program they take no memory.
#[derive(Debug)]
pub struct Actions {
    chosen: Vec<Action>,
    /// That of `SIGPIPE` before the program has chosen one; all others are defaults then.
    pipe: BrokenPipe,
}

/// Effect of `SIGPIPE` on a program that has not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenPipe {
    /// A pipe without readers is an error of a call (`EPIPE`), and no reason to end.
    FailsTheCall,
    /// The program ends, as on Linux.
    EndsTheProgram,
}

/// There was no memory for the actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl Actions {
    /// Bytes of memory when the program has chosen an action.
    pub const MEMORY: usize = 64 * size_of::<Action>();

    /// Makes the actions of a program that begins.
    pub const fn new(pipe: BrokenPipe) -> Actions {
        Actions { chosen: Vec::new(), pipe }
    }

    /// Changes what `SIGPIPE` does before the program has chosen.
    pub fn begin_with(&mut self, pipe: BrokenPipe) {
        self.pipe = pipe;
    }

    /// Returns the action of a signal before the program has chosen one.
    fn initial(&self, signal: Signal) -> Action {
        let is_ignored = signal.number() == Signal::PIPE.number() && self.pipe == BrokenPipe::FailsTheCall;
        Action { handler: if is_ignored { Action::IGNORE } else { Action::DEFAULT }, ..Action::INITIAL }
    }

    /// Returns the program's choice for a signal.
    pub fn get(&self, signal: Signal) -> Action {
        self.chosen.get(usize::from(signal.number()) - 1).copied().unwrap_or(self.initial(signal))
    }

    /// Sets the program's choice for a signal.
    ///
    /// # Errors
    /// There is no memory; nothing has changed.
    pub fn set(&mut self, signal: Signal, action: Action) -> Result<(), OutOfMemory> {
        if self.chosen.is_empty() {
            if action == self.initial(signal) {
                return Ok(());
            }
            let of_pipe = self.initial(Signal::PIPE);
            self.chosen.try_reserve_exact(64).map_err(|_| OutOfMemory)?;
            self.chosen.resize(64, Action::INITIAL);
            self.chosen[usize::from(Signal::PIPE.number()) - 1] = of_pipe;
        }
        self.chosen[usize::from(signal.number()) - 1] = action;
        Ok(())
    }

    /// Makes a copy, for a child.
    ///
    /// # Errors
    /// There is no memory.
    pub fn copy(&self) -> Result<Actions, OutOfMemory> {
        let mut copy = Vec::new();
        copy.try_reserve_exact(self.chosen.len()).map_err(|_| OutOfMemory)?;
        copy.extend_from_slice(&self.chosen);
        Ok(Actions { chosen: copy, pipe: self.pipe })
    }

    /// Returns whether the program has a handler.
    pub fn has_handlers(&self) -> bool {
        self.chosen.iter().any(|action| !matches!(action.handler, Action::DEFAULT | Action::IGNORE))
    }

    /// Gives every caught signal its default again, for another program; ignored ones stay ignored (execve(2)).
    pub fn forget_handlers(&mut self) {
        for action in &mut self.chosen {
            let handler = if action.handler == Action::IGNORE { Action::IGNORE } else { Action::DEFAULT };
            *action = Action { handler, ..Action::INITIAL };
        }
    }

    /// Returns what a signal does now.
    pub fn disposition(&self, signal: Signal) -> Disposition {
        let action = self.get(signal);
        match (action.handler, DefaultAction::of(signal)) {
            (Action::IGNORE, _) | (Action::DEFAULT, DefaultAction::Ignore) => Disposition::Ignore,
            (Action::DEFAULT, default) => Disposition::Default(default),
            _ => Disposition::Handle(action),
        }
    }

    /// Returns what a signal does now, on its way to its handler: one that is to be reset gets its default.
    pub fn take_disposition(&mut self, signal: Signal) -> Disposition {
        let disposition = self.disposition(signal);
        if let Disposition::Handle(action) = disposition
            && action.has(action_flag::RESETHAND)
        {
            self.chosen[usize::from(signal.number()) - 1].handler = Action::DEFAULT;
        }
        disposition
    }
}
