//! The words of each hart that are accessed without the kernel's lock; `smp` describes their purpose.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hal_api::{MAXIMUM_HARTS, Trap, Virtualisation as _};
use objects::Space;
use platform::Machine;

use crate::node::MAXIMUM_NODES;

/// A hart is in the kernel, or about to take the lock. The thread's registers are complete.
pub(crate) const IN_KERNEL: u32 = 0;
/// As above, and the hart entered by a system call.
pub(crate) const IN_SYSTEM_CALL: u32 = 1;
/// A hart runs a thread.
pub(crate) const IN_USER: u32 = 2;

/// The words of one hart that harts access without the lock.
pub(crate) struct Hart {
    /// Place of the hart, in the kernel or in user mode. Written by that hart alone. Release and acquire: a hart that
    /// sees another in the kernel sees the registers that it has saved.
    pub(crate) place: AtomicU32,
    /// Whether the hart must leave the address space from which it entered. Set by the hart that holds the lock,
    /// cleared by the addressed hart, which waits for the lock. Release and acquire: a hart that sees that another has
    /// left may reuse the tables' memory.
    pub(crate) must_leave: AtomicBool,
    /// The guest interrupt file that the hart must empty, because only the hart itself can; 0 for none. Set and cleared
    /// as `must_leave`. Release and acquire: `drained` is valid when this is cleared.
    pub(crate) must_drain: AtomicUsize,
    /// The bits that the hart found in that file.
    pub(crate) drained: AtomicU64,
    /// Number of times that other harts have taken the lock since this hart has been due there. Written under the lock.
    /// A hint for harts without the lock, so relaxed.
    overtaken: AtomicU32,
}

/// The words of all harts of one kernel. They are outside the kernel's lock, and the kernel refers to them.
pub struct Harts {
    pub(crate) each: [Hart; MAXIMUM_NODES],
    /// The harts that wait for the lock, a bit for each. A hint only, so relaxed: a hart that holds the lock and sees a
    /// waiting hart releases the lock soon, and a hart that is about to take the lock waits for a moment first.
    waiting: AtomicU32,
    /// The harts that have been interrupted so that they choose anew, and have not taken the lock since, a bit for
    /// each. Set and cleared under the lock. A hint for harts without the lock, so relaxed.
    expected: AtomicU32,
}

/// Number of times that harts overtake a hart which is due at the lock. Afterwards the lock is owed to it: harts to
/// which it is not owed take it later.
pub(crate) const OVERTAKINGS: u32 = 4;

const _: () = assert!(MAXIMUM_NODES <= u32::BITS as usize && MAXIMUM_NODES <= MAXIMUM_HARTS);

impl Default for Harts {
    fn default() -> Harts {
        Harts::new()
    }
}

impl Harts {
    /// Makes the words of harts that are in the kernel, without requests.
    pub const fn new() -> Harts {
        Harts {
            each: [const {
                Hart {
                    place: AtomicU32::new(IN_KERNEL),
                    must_leave: AtomicBool::new(false),
                    must_drain: AtomicUsize::new(0),
                    drained: AtomicU64::new(0),
                    overtaken: AtomicU32::new(0),
                }
            }; MAXIMUM_NODES],
            waiting: AtomicU32::new(0),
            expected: AtomicU32::new(0),
        }
    }

    /// Records that a hart has entered the kernel: the registers of the thread that it ran are complete.
    #[inline(always)]
    pub fn note_trap(&self, trap: Trap, hart: usize) -> Trap {
        if cfg!(feature = "smp") {
            let place = if trap == Trap::SystemCall { IN_SYSTEM_CALL } else { IN_KERNEL };
            self.each[hart].place.store(place, Ordering::Release);
        }
        trap
    }

    /// Records that a hart waits for the lock.
    pub(crate) fn begins_to_wait(&self, hart: usize) {
        self.waiting.fetch_or(1 << hart, Ordering::Relaxed);
    }

    /// Records, under the lock, that a hart has been interrupted so that it chooses anew.
    pub(crate) fn expect(&self, hart: usize) {
        self.expected.store(self.expected.load(Ordering::Relaxed) | 1 << hart, Ordering::Relaxed);
    }

    /// Returns the harts that are due at the lock: those that wait for it, and those that have been interrupted.
    #[inline(always)]
    fn due(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed) | self.expected.load(Ordering::Relaxed)
    }

    /// Records that a hart has taken the lock: it is not due any more, and has overtaken the harts that are.
    #[inline(always)]
    pub(crate) fn has_taken(&self, hart: usize) {
        let due = self.due();
        if due != 0 {
            self.overtake(hart, due);
        }
    }

    #[cold]
    #[inline(never)]
    fn overtake(&self, hart: usize, due: u32) {
        if due >> hart & 1 != 0 {
            self.waiting.fetch_and(!(1 << hart), Ordering::Relaxed);
            self.expected.store(self.expected.load(Ordering::Relaxed) & !(1 << hart), Ordering::Relaxed);
            self.each[hart].overtaken.store(0, Ordering::Relaxed);
        }
        for (index, words) in self.each.iter().enumerate() {
            if index != hart && due >> index & 1 != 0 {
                let count = words.overtaken.load(Ordering::Relaxed);
                words.overtaken.store(count.saturating_add(1), Ordering::Relaxed);
            }
        }
    }

    /// Returns whether a hart that is about to take the lock should look at the others first.
    #[inline(always)]
    pub(crate) fn any_due(&self) -> bool {
        cfg!(feature = "smp") && self.due() != 0
    }

    /// Returns whether a hart must let another pass: the lock is owed to that one, and not to this one.
    pub(crate) fn must_let_pass(&self, hart: usize) -> bool {
        let due = self.due();
        let is_owed =
            |index: usize| due >> index & 1 != 0 && self.each[index].overtaken.load(Ordering::Relaxed) >= OVERTAKINGS;
        !is_owed(hart) && (0..self.each.len()).any(is_owed)
    }

    /// Returns whether another hart than this one waits for the lock.
    pub(crate) fn another_waits(&self, hart: usize) -> bool {
        self.waiting.load(Ordering::Relaxed) & !(1 << hart) != 0
    }

    /// Returns whether a hart waits for the lock, perhaps with an interrupt that is more urgent than a long operation
    /// here.
    #[inline(always)]
    pub(crate) fn others_wait(&self) -> bool {
        cfg!(feature = "smp") && self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Serves the requests of the hart that holds the lock, while this hart waits for the lock.
    pub(crate) fn obey(&self, hart: usize) {
        let words = &self.each[hart];
        if words.must_leave.load(Ordering::Acquire) {
            objects::activate::<Machine>(Space::kernel::<Machine>());
            words.must_leave.store(false, Ordering::Release);
        }
        let file = words.must_drain.load(Ordering::Acquire);
        if file != 0 {
            words.drained.store(Machine::drain_guest_file(file), Ordering::Relaxed);
            words.must_drain.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, feature = "smp"))]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use super::*;

    /// Number of harts of the model.
    const HARTS: usize = 3;

    /// A hart's place between two steps of the model.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Place {
        /// In user mode or idle. It enters the kernel at any time or, without an interrupt, never.
        Away,
        /// Entered, and about to look at the others.
        Looking,
        /// Has seen that it may take the lock.
        Trying,
        Holding,
    }

    /// The words of the harts, and their places.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct State {
        waiting: u32,
        expected: u32,
        overtaken: [u32; HARTS],
        places: [Place; HARTS],
    }

    impl State {
        fn words(&self) -> Harts {
            let harts = Harts::new();
            harts.waiting.store(self.waiting, Ordering::Relaxed);
            harts.expected.store(self.expected, Ordering::Relaxed);
            for (words, &count) in harts.each.iter().zip(&self.overtaken) {
                words.overtaken.store(count, Ordering::Relaxed);
            }
            harts
        }

        fn after(&self, hart: usize, place: Place, harts: &Harts) -> State {
            let mut state = self.clone();
            state.places[hart] = place;
            state.waiting = harts.waiting.load(Ordering::Relaxed);
            state.expected = harts.expected.load(Ordering::Relaxed);
            state.overtaken = core::array::from_fn(|index| harts.each[index].overtaken.load(Ordering::Relaxed));
            state
        }

        fn is_free(&self) -> bool {
            !self.places.contains(&Place::Holding)
        }

        /// The states to which a hart may go with its next step. Second: whether it goes without a program's decision
        /// to enter the kernel or to interrupt another hart.
        fn steps(&self, hart: usize) -> Vec<(State, bool)> {
            let harts = self.words();
            match self.places[hart] {
                Place::Away => vec![(self.after(hart, Place::Looking, &harts), self.expected >> hart & 1 != 0)],
                Place::Looking if harts.must_let_pass(hart) => {
                    harts.begins_to_wait(hart);
                    vec![(self.after(hart, Place::Looking, &harts), true)]
                }
                Place::Looking => {
                    let at_once = self.after(hart, Place::Trying, &harts);
                    harts.begins_to_wait(hart);
                    vec![(at_once, true), (self.after(hart, Place::Looking, &harts), true)]
                }
                Place::Trying if self.is_free() => {
                    harts.has_taken(hart);
                    vec![(self.after(hart, Place::Holding, &harts), true)]
                }
                Place::Trying => {
                    harts.begins_to_wait(hart);
                    vec![(self.after(hart, Place::Trying, &harts), true)]
                }
                Place::Holding => {
                    let mut steps = vec![(self.after(hart, Place::Away, &harts), true)];
                    for other in (0..HARTS).filter(|&other| other != hart) {
                        let harts = self.words();
                        harts.expect(other);
                        steps.push((self.after(hart, Place::Holding, &harts), false));
                    }
                    steps
                }
            }
        }
    }

    /// Every interleaving of three harts that enter at any time and interrupt each other: the states, and for each the
    /// indexes of the states that follow without a program's decision.
    fn explore() -> (Vec<State>, Vec<Vec<usize>>) {
        let start = State { waiting: 0, expected: 0, overtaken: [0; HARTS], places: [Place::Away; HARTS] };
        let mut indexes = HashMap::from([(start.clone(), 0)]);
        let mut states = vec![start];
        let mut follows = Vec::new();
        while follows.len() < states.len() {
            let state = states[follows.len()].clone();
            let mut own = Vec::new();
            for (next, is_own) in (0..HARTS).flat_map(|hart| state.steps(hart)) {
                let index = *indexes.entry(next).or_insert_with_key(|next| {
                    states.push(next.clone());
                    states.len() - 1
                });
                if is_own {
                    own.push(index);
                }
            }
            follows.push(own);
        }
        (states, follows)
    }

    /// A hart that waits is never shut out: from every state it gets to the lock, even if no other program makes a call
    /// any more; and it is overtaken a bounded number of times, even if the others make calls for ever.
    #[test]
    fn every_hart_that_is_due_gets_the_lock_after_a_bounded_number_of_others() {
        let (states, follows) = explore();
        assert!(states.len() > 10_000, "{} states", states.len());
        let most = states.iter().flat_map(|state| state.overtaken).max().unwrap();
        assert!((OVERTAKINGS..=OVERTAKINGS + 2 * HARTS as u32).contains(&most), "overtaken {most} times");
        let mut comes_from = vec![Vec::new(); states.len()];
        for (index, next) in follows.iter().enumerate() {
            next.iter().for_each(|&next: &usize| comes_from[next].push(index));
        }
        for hart in 0..HARTS {
            let mut reaches: Vec<bool> = states.iter().map(|state| state.places[hart] == Place::Holding).collect();
            let mut queue: VecDeque<usize> = (0..states.len()).filter(|&index| reaches[index]).collect();
            while let Some(index) = queue.pop_front() {
                for &before in &comes_from[index] {
                    if !core::mem::replace(&mut reaches[before], true) {
                        queue.push_back(before);
                    }
                }
            }
            for (state, reaches) in states.iter().zip(reaches) {
                let is_due = state.places[hart] != Place::Away || state.expected >> hart & 1 != 0;
                assert!(reaches || !is_due, "hart {hart} never gets the lock after {state:?}");
            }
        }
    }
}
