//! The ready calls of a process, in the order in which its completer tries them: by priority, and equals as they came.
//!
//! Only the order and the bookkeeping are here; calls, wake-ups of the completer and the readiness of others are the
//! business of the module `input`. So this can be tested against a model.
//!
//! Calls that have waited for too long, *starving* ones, come before all others. They stay where they are in the order,
//! and are counted for each priority: taking a starving call takes those of the same priority that came before it, and
//! when the last starving one of a priority has gone no search for more is needed.

use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi_queue::Priority;
use spin::Mutex;

/// A call's state in the order.
pub(crate) struct QueuePlace<C> {
    /// Set while it is in the order. Changed under the order's lock.
    queued: AtomicBool,
    /// Set while it is in the order and counts as one that has waited for too long. Changed under the order's lock.
    starving: AtomicBool,
    /// The next one of its priority.
    next: Mutex<Option<Arc<C>>>,
}

/// For a call that is not in the order.
impl<C> Default for QueuePlace<C> {
    fn default() -> Self {
        QueuePlace { queued: AtomicBool::new(false), starving: AtomicBool::new(false), next: Mutex::new(None) }
    }
}

impl<C> QueuePlace<C> {
    /// Returns whether the call is in the order; without the order's lock the answer may be stale immediately.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
    }
}

/// A call as the order needs it.
pub(crate) trait Ordered: Sized {
    /// Returns its place.
    fn place(&self) -> &QueuePlace<Self>;
    /// Returns its priority, which does not change.
    fn priority(&self) -> Priority;
}

/// Calls of one priority, in their order.
struct Level<C> {
    first: Option<Arc<C>>,
    last: Option<Arc<C>>,
    /// Number of starving calls among them.
    starving: usize,
}

/// The order, and the last instruction to the completer.
pub(crate) struct ReadyCalls<C> {
    /// One for each priority, down to that of the least important call so far.
    levels: Vec<Level<C>>,
    /// Bitmap of the priorities whose levels are not empty.
    ready: u64,
    /// Bitmap of the priorities with starving calls.
    starving: u64,
    /// Set when the process has ended, and goes when all its calls are done: nothing of it waits for others any more.
    is_last: bool,
    /// Set while the completer is awake, and looks until nothing is left.
    awake: bool,
    /// The rank that the completer was given last.
    rank: Rank,
}

/// Rank of the completer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// Before all claims: some call starves, or the process has ended.
    First,
    /// As a call of this priority.
    Call(Priority),
}

impl Rank {
    fn is_more_important_than(self, other: Rank) -> bool {
        match (self, other) {
            (_, Rank::First) => false,
            (Rank::First, Rank::Call(_)) => true,
            (Rank::Call(own), Rank::Call(other)) => own.is_more_important_than(other),
        }
    }
}

/// Instruction to the completer.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    /// None: it is awake.
    Nothing,
    /// Look.
    Wake,
    /// Look, with this rank from now on.
    WakeAt(Rank),
}

/// Next action of the completer.
#[must_use]
pub(crate) enum Next<C> {
    /// Try this call.
    Call(Arc<C>),
    /// Post the calls that are done, since the next call is less important than they are.
    Post,
    /// Let others have their turn first, with this rank from now on if it is another one.
    Later(Option<Rank>),
    /// Sleep until a call is ready.
    Nothing,
}

impl<C> Default for ReadyCalls<C> {
    fn default() -> Self {
        ReadyCalls {
            levels: Vec::new(),
            ready: 0,
            starving: 0,
            is_last: false,
            awake: false,
            rank: Rank::Call(Priority::default()),
        }
    }
}

impl<C: Ordered> ReadyCalls<C> {
    /// Returns whether there has been no call yet.
    pub(crate) fn is_new(&self) -> bool {
        self.levels.is_empty()
    }

    /// Returns the rank that the completer was given last, or begins with.
    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns whether [`everything_is_last`](Self::everything_is_last) was called.
    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Reserves memory for a level for calls of this priority.
    ///
    /// # Errors
    /// There is no memory; nothing has changed.
    pub(crate) fn reserve(&mut self, priority: Priority) -> Result<(), TryReserveError> {
        self.levels.try_reserve((usize::from(priority.number()) + 1).saturating_sub(self.levels.len()))
    }

    /// Makes a level for calls of this priority, for which memory was reserved; returns the number of levels then.
    pub(crate) fn make_room(&mut self, priority: Priority) -> usize {
        let count = self.levels.len().max(usize::from(priority.number()) + 1);
        self.levels.resize_with(count, || Level { first: None, last: None, starving: 0 });
        count
    }

    /// Enters a call behind its equals, unless it is in the order. There must be a level for its priority.
    pub(crate) fn push(&mut self, call: &Arc<C>) -> Tell {
        let priority = call.priority();
        let Some(level) = self.levels.get_mut(usize::from(priority.number())) else { return Tell::Nothing };
        if call.place().queued.swap(true, Ordering::Relaxed) {
            return Tell::Nothing;
        }
        match level.last.replace(call.clone()) {
            Some(last) => *last.place().next.lock() = Some(call.clone()),
            None => level.first = Some(call.clone()),
        }
        self.ready |= priority.bit();
        self.rouse(Rank::Call(priority))
    }

    /// Makes a call that is in the order count as starving.
    pub(crate) fn boost(&mut self, call: &C) -> Tell {
        let Some(level) = self.levels.get_mut(usize::from(call.priority().number())) else { return Tell::Nothing };
        if !call.place().is_queued() || call.place().starving.swap(true, Ordering::Relaxed) {
            return Tell::Nothing;
        }
        level.starving += 1;
        self.starving |= call.priority().bit();
        self.rouse(Rank::First)
    }

    /// Gives the completer the greatest importance from now on, and makes it look until nothing is left.
    pub(crate) fn everything_is_last(&mut self) -> Tell {
        self.is_last = true;
        // Even if it was awake: its last look was before this.
        self.awake = false;
        self.rouse(Rank::First)
    }

    /// Makes the completer look, at the latest when something of this rank has its turn.
    fn rouse(&mut self, rank: Rank) -> Tell {
        let rank = if self.is_last { Rank::First } else { rank };
        if self.awake && !rank.is_more_important_than(self.rank) {
            return Tell::Nothing;
        }
        self.awake = true;
        match self.follow(rank) {
            Some(rank) => Tell::WakeAt(rank),
            None => Tell::Wake,
        }
    }

    fn follow(&mut self, rank: Rank) -> Option<Rank> {
        let before = core::mem::replace(&mut self.rank, rank);
        (before != rank).then_some(rank)
    }

    /// Returns whether some calls are behind more important ones: then the completer's priority does not tell that they
    /// wait.
    pub(crate) fn some_are_hidden(&self) -> bool {
        self.ready & self.ready.wrapping_sub(1) != 0
    }

    /// Returns the completer's next action, after calls of which the most important had the priority `done`. Others go
    /// first if its turn has been long enough, or if `is_ready_above` tells that something more important than the next
    /// call is ready. That is checked before the first call of a turn, too: if so, the completer had a priority that it
    /// should not have had, or something has become ready just now; and that has its turn first, since the completer
    /// takes the next call's rank.
    pub(crate) fn next(
        &mut self,
        turn_is_over: bool,
        done: Option<Priority>,
        is_ready_above: impl FnOnce(Rank) -> bool,
    ) -> Next<C> {
        // Starving calls are among the ready ones.
        let Some(most_important) = Priority::most_important_in(self.ready) else {
            self.awake = false;
            return Next::Nothing;
        };
        let starving = Priority::most_important_in(self.starving);
        let rank = if starving.is_some() || self.is_last { Rank::First } else { Rank::Call(most_important) };
        if turn_is_over || is_ready_above(rank) {
            return Next::Later(self.follow(rank));
        }
        let level = starving.unwrap_or(most_important);
        if done.is_some_and(|done| done.is_more_important_than(level)) {
            return Next::Post;
        }
        self.pop(level).map_or(Next::Later(None), Next::Call)
    }

    fn pop(&mut self, priority: Priority) -> Option<Arc<C>> {
        let level = self.levels.get_mut(usize::from(priority.number()))?;
        let call = level.first.take()?;
        let place = call.place();
        level.first = place.next.lock().take();
        if level.first.is_none() {
            level.last = None;
            self.ready &= !priority.bit();
        }
        // Before the call is tried: later input enters it again.
        place.queued.store(false, Ordering::Relaxed);
        if place.starving.swap(false, Ordering::Relaxed) {
            level.starving -= 1;
            if level.starving == 0 {
                self.starving &= !priority.bit();
            }
        }
        Some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Named {
        number: usize,
        priority: Priority,
        place: QueuePlace<Named>,
    }

    impl Ordered for Named {
        fn place(&self) -> &QueuePlace<Named> {
            &self.place
        }

        fn priority(&self) -> Priority {
            self.priority
        }
    }

    fn priority(number: usize) -> Priority {
        Priority::new(number as u8).unwrap()
    }

    fn call(number: usize, level: usize) -> Arc<Named> {
        Arc::new(Named { number, priority: priority(level), place: QueuePlace::default() })
    }

    /// Makes an order with these calls in it.
    fn order(calls: &[&Arc<Named>]) -> ReadyCalls<Named> {
        let mut order = ReadyCalls::default();
        order.reserve(priority(7)).unwrap();
        assert_eq!(order.make_room(priority(7)), 8);
        for call in calls {
            let _ = order.push(call);
        }
        order
    }

    fn take(order: &mut ReadyCalls<Named>, done: Option<Priority>) -> Option<usize> {
        match order.next(false, done, |_| false) {
            Next::Call(call) => Some(call.number),
            _ => None,
        }
    }

    #[test]
    fn completions_are_posted_before_less_important_calls_and_not_before_equals() {
        let (first, equal, less) = (call(0, 2), call(1, 2), call(2, 3));
        let mut order = order(&[&less, &first, &equal]);
        assert_eq!(take(&mut order, None), Some(0));
        assert_eq!(take(&mut order, Some(priority(2))), Some(1));
        assert!(matches!(order.next(false, Some(priority(2)), |_| false), Next::Post));
        // `Post` comes until it has happened, and then the call is still there.
        assert!(matches!(order.next(false, Some(priority(2)), |_| false), Next::Post));
        assert_eq!(take(&mut order, None), Some(2));
        assert!(matches!(order.next(false, Some(priority(3)), |_| false), Next::Nothing));
    }

    #[test]
    fn a_starving_call_comes_after_the_completions_and_before_more_important_calls() {
        let (important, starving) = (call(0, 1), call(1, 6));
        let mut order = order(&[&starving, &important]);
        assert_eq!(order.boost(&starving), Tell::WakeAt(Rank::First));
        assert!(matches!(order.next(false, Some(priority(1)), |_| false), Next::Post));
        assert_eq!(take(&mut order, None), Some(1));
        // It starves no more, so the other is as important as it is.
        assert!(matches!(order.next(true, None, |_| false), Next::Later(Some(Rank::Call(one))) if one == priority(1)));
        assert_eq!(take(&mut order, Some(priority(6))), Some(0));
    }

    #[test]
    fn the_first_call_of_a_turn_waits_for_more_important_work_too() {
        let waiting = call(0, 4);
        let mut order = order(&[&waiting]);
        let outranked = |than: Rank| Rank::Call(priority(3)).is_more_important_than(than);
        assert!(matches!(order.next(false, None, outranked), Next::Later(None)));
        // Starving and last calls wait for no others.
        let _ = order.boost(&waiting);
        assert!(matches!(order.next(false, None, outranked), Next::Call(_)));
        let _ = order.push(&waiting);
        assert!(
            matches!(order.next(false, None, outranked), Next::Later(Some(Rank::Call(four))) if four == priority(4))
        );
        assert_eq!(order.everything_is_last(), Tell::WakeAt(Rank::First));
        assert!(matches!(order.next(false, None, outranked), Next::Call(_)));
    }

    #[test]
    fn the_most_important_call_there_can_be_starves_not_by_itself() {
        let (important, starving) = (call(0, 0), call(1, 5));
        let mut order = order(&[&starving]);
        assert_eq!(order.push(&important), Tell::WakeAt(Rank::Call(Priority::HIGHEST)));
        assert_eq!(order.boost(&starving), Tell::WakeAt(Rank::First));
        assert_eq!(take(&mut order, None), Some(1));
        assert!(matches!(order.next(true, None, |_| false), Next::Later(Some(Rank::Call(Priority::HIGHEST)))));
    }

    #[test]
    fn calls_behind_more_important_ones_are_hidden() {
        let (important, other, equal) = (call(0, 0), call(1, 5), call(2, 5));
        let mut order = order(&[&other, &equal]);
        assert!(!order.some_are_hidden());
        let _ = order.push(&important);
        assert!(order.some_are_hidden());
        assert_eq!(take(&mut order, None), Some(0));
        assert!(!order.some_are_hidden());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Boost(usize),
        Take { done: Option<usize>, turn_is_over: bool, ready: usize },
        Last,
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Compares with a list of the calls in the order: the calls taken, and the completer's priority.
        #[test]
        fn as_a_list_would_do_it(steps in prop::collection::vec(
            prop_oneof![
                6 => (0usize..12).prop_map(Step::Push),
                2 => (0usize..12).prop_map(Step::Boost),
                6 => (prop::option::of(0usize..5), prop::bool::weighted(0.2), 0usize..8)
                    .prop_map(|(done, turn_is_over, ready)| Step::Take { done, turn_is_over, ready }),
                1 => Just(Step::Last),
            ],
            0..200,
        )) {
            let calls: Vec<_> = (0..12).map(|number| call(number, number % 5)).collect();
            let mut order = order(&[]);
            // Numbers of calls in the order in which they came, and whether each starves.
            let mut list: Vec<(usize, bool)> = Vec::new();
            let (mut awake, mut last) = (false, false);
            let mut completer = order.rank();
            for step in steps {
                let (told, wanted) = match step {
                    Step::Push(number) => {
                        let is_new = list.iter().all(|(other, _)| *other != number);
                        if is_new {
                            list.push((number, false));
                        }
                        (order.push(&calls[number]), is_new.then_some(Rank::Call(calls[number].priority)))
                    }
                    Step::Boost(number) => {
                        let entry = list.iter_mut().find(|(other, starves)| *other == number && !starves);
                        let wanted = entry.map(|entry| { entry.1 = true; Rank::First });
                        (order.boost(&calls[number]), wanted)
                    }
                    Step::Last => {
                        (last, awake) = (true, false);
                        (order.everything_is_last(), Some(Rank::First))
                    }
                    Step::Take { done, turn_is_over, ready } => {
                        let level = |(number, _): &(usize, bool)| number % 5;
                        let starving = list.iter().filter(|entry| entry.1).map(level).min();
                        let best = list.iter().map(level).min();
                        let first = last || starving.is_some();
                        let outranks = |than: Rank| Rank::Call(priority(ready)).is_more_important_than(than);
                        let next = order.next(turn_is_over, done.map(priority), outranks);
                        let worth = best.map(|best| if first { Rank::First } else { Rank::Call(priority(best)) });
                        match (worth, starving.or(best)) {
                            (Some(worth), Some(_)) if turn_is_over || outranks(worth) => {
                                let Next::Later(told) = next else { panic!("others have their turn") };
                                prop_assert_eq!(told, (completer != worth).then_some(worth));
                                completer = worth;
                            }
                            (Some(_), Some(level)) if done.is_some_and(|done| done < level) => {
                                prop_assert!(matches!(next, Next::Post));
                            }
                            (Some(_), Some(level)) => {
                                let place = list.iter().position(|(number, _)| number % 5 == level).unwrap();
                                let Next::Call(call) = next else { panic!("there is a call") };
                                prop_assert_eq!(call.number, list.remove(place).0);
                                prop_assert!(!call.place.is_queued());
                            }
                            _ => {
                                prop_assert!(matches!(next, Next::Nothing));
                                awake = false;
                            }
                        }
                        continue;
                    }
                };
                // Told at most once until it has seen everything, unless it has to be more important.
                let expected = match wanted.map(|wanted| if last { Rank::First } else { wanted }) {
                    Some(wanted) if !awake || wanted.is_more_important_than(completer) => {
                        let told = if wanted == completer { Tell::Wake } else { Tell::WakeAt(wanted) };
                        (completer, awake) = (wanted, true);
                        told
                    }
                    _ => Tell::Nothing,
                };
                prop_assert_eq!(told, expected);
                let mut levels: Vec<_> = list.iter().map(|(number, _)| number % 5).collect();
                levels.sort();
                levels.dedup();
                prop_assert_eq!(order.some_are_hidden(), levels.len() > 1);
            }
            // Nothing is lost: without turns of others all calls come out.
            while let Next::Call(call) = order.next(false, None, |_| false) {
                let place = list.iter().position(|(number, _)| *number == call.number);
                prop_assert!(place.is_some());
                list.remove(place.unwrap());
            }
            prop_assert!(list.is_empty());
            prop_assert!(calls.iter().all(|call| Arc::strong_count(call) == 1));
        }
    }
}
