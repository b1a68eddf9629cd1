//! States of the coroutines of one executor, as its records tell them: the number that is ready, and the wake that each
//! poll comes from.
//!
//! Records may be lost and claims false, so each event is possible in each state.

use std::collections::HashMap;

/// A wake that causes a poll, by a number of its own.
pub type Flow = u64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready(Option<Flow>),
    /// Polled, and woken meanwhile.
    Running(Option<Flow>),
    Blocked,
    Ended,
}

/// The coroutines of an executor. A new one knows nothing: a coroutine may be in any state.
#[derive(Default)]
pub struct Coroutines {
    states: HashMap<u64, State>,
    ready: usize,
}

/// The end of a poll, by the number in its record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Waits,
    Yielded,
    Done,
    Unknown,
}

impl Answer {
    /// Returns the answer with this number.
    pub fn from_number(number: u64) -> Answer {
        match number {
            0 => Answer::Waits,
            1 => Answer::Yielded,
            2 => Answer::Done,
            _ => Answer::Unknown,
        }
    }

    /// Returns the word for people.
    pub fn word(self) -> &'static str {
        match self {
            Answer::Waits => "waits",
            Answer::Yielded => "yielded",
            Answer::Done => "done",
            Answer::Unknown => "?",
        }
    }
}

impl Coroutines {
    /// Returns the number of coroutines that are ready.
    pub fn ready(&self) -> usize {
        self.ready
    }

    fn set(&mut self, cid: u64, state: State) {
        let before = self.states.insert(cid, state);
        self.ready += usize::from(matches!(state, State::Ready(_)));
        self.ready -= usize::from(matches!(before, Some(State::Ready(_))));
    }

    /// Returns whether a coroutine is ready.
    pub fn is_ready(&self, cid: u64) -> bool {
        matches!(self.states.get(&cid), Some(State::Ready(_)))
    }

    /// Notes a spawn, which may be told after the first poll.
    pub fn spawned(&mut self, cid: u64) {
        if !self.states.contains_key(&cid) {
            self.set(cid, State::Ready(None));
        }
    }

    /// Notes a wake. Returns whether this is the one that causes the next poll.
    pub fn woken(&mut self, cid: u64, flow: Flow) -> bool {
        match self.states.get(&cid) {
            None | Some(State::Blocked) => self.set(cid, State::Ready(Some(flow))),
            Some(State::Running(None)) => self.set(cid, State::Running(Some(flow))),
            Some(State::Running(Some(_)) | State::Ready(_) | State::Ended) => return false,
        }
        true
    }

    /// Notes that a poll begins; returns the wake that has caused it.
    pub fn poll_begins(&mut self, cid: u64) -> Option<Flow> {
        let before = self.states.get(&cid).copied();
        self.set(cid, State::Running(None));
        match before {
            Some(State::Ready(flow) | State::Running(flow)) => flow,
            Some(State::Blocked | State::Ended) | None => None,
        }
    }

    /// Notes that a poll has ended.
    pub fn poll_ends(&mut self, cid: u64, answer: Answer) {
        let woken = match self.states.get(&cid) {
            Some(State::Running(flow) | State::Ready(flow)) => *flow,
            _ => None,
        };
        let state = match answer {
            Answer::Yielded => State::Ready(woken),
            Answer::Waits if woken.is_some() => State::Ready(woken),
            Answer::Waits | Answer::Unknown => State::Blocked,
            Answer::Done => State::Ended,
        };
        self.set(cid, state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_comes_from_the_first_wake_after_the_poll_before() {
        let mut coroutines = Coroutines::default();
        coroutines.spawned(5);
        assert_eq!(coroutines.ready(), 1);
        assert!(!coroutines.woken(5, 1), "it is ready");
        assert_eq!(coroutines.poll_begins(5), None);
        assert_eq!(coroutines.ready(), 0);
        coroutines.spawned(5);
        assert_eq!(coroutines.ready(), 0, "told late");
        assert!(coroutines.woken(5, 2) && !coroutines.woken(5, 3));
        coroutines.poll_ends(5, Answer::Waits);
        assert!(coroutines.is_ready(5), "woken during the poll");
        assert_eq!(coroutines.poll_begins(5), Some(2));
        coroutines.poll_ends(5, Answer::Waits);
        assert_eq!(coroutines.ready(), 0);
        assert!(coroutines.woken(5, 4));
        assert_eq!((coroutines.ready(), coroutines.poll_begins(5)), (1, Some(4)));
        coroutines.poll_ends(5, Answer::Yielded);
        assert_eq!((coroutines.ready(), coroutines.poll_begins(5)), (1, None));
        coroutines.poll_ends(5, Answer::Done);
        assert!(!coroutines.woken(5, 6) && coroutines.ready() == 0);
    }
}
