//! Waking thousands of waiters for one thing in portions, by a coroutine of the kernel's own.
//!
//! A caller that changes a condition holds the condition's lock, and wakes a [portion](waiters::PORTION) of its
//! waiters. The others, the remainder, come here, and are woken with a look after each portion, at the priority of that
//! caller: so no caller makes the kernel work for long at a higher priority than its own. The waiters may be more
//! important than that; so the watchdog of the starvation bound lets some portions go before everything else at each of
//! its looks ([`boost`]). The process that has changed the condition pays for this work, even if its budget is used up
//! by then: the waiters may be others', and do not wait for its refill.

use alloc::collections::VecDeque;
use core::future::poll_fn;
use core::task::{Poll, Waker};

use abi_queue::{PRIORITIES, Priority};
use spin::Mutex;
use waiters::Remainder;

use crate::scheduling::executor::EXHAUSTED;
use crate::scheduling::executor::{self, Cid};
use crate::scheduling::standing::{LEAST_CLAIM, MOST_CLAIM};
use crate::scheduling::{payers, steps};

/// Remainders by priority, equals in their order. Each operation takes as long for one remainder as for thousands.
struct Backlog<T> {
    levels: [VecDeque<T>; PRIORITIES],
    /// Bitmap of the levels that are not empty.
    present: u64,
}

impl<T> Backlog<T> {
    const fn new() -> Backlog<T> {
        Backlog { levels: [const { VecDeque::new() }; PRIORITIES], present: 0 }
    }

    /// Makes room for one more remainder, if there is memory.
    fn level(&mut self, priority: Priority) -> Option<&mut VecDeque<T>> {
        let level = &mut self.levels[usize::from(priority.number())];
        level.try_reserve(1).is_ok().then_some(level)
    }

    /// Enters a remainder, or returns it if there is no memory.
    fn push(&mut self, priority: Priority, remainder: T) -> Result<(), T> {
        match self.level(priority) {
            Some(level) => level.push_back(remainder),
            None => return Err(remainder),
        }
        self.present |= priority.bit();
        Ok(())
    }

    /// Takes the most important remainder out.
    fn pop(&mut self) -> Option<(Priority, T)> {
        let priority = Priority::most_important_in(self.present)?;
        let level = &mut self.levels[usize::from(priority.number())];
        let remainder = level.pop_front()?;
        if level.is_empty() {
            *level = VecDeque::new();
            self.present &= !priority.bit();
        }
        Some((priority, remainder))
    }

    /// Exchanges a remainder of which some were woken for a more important one, if there is one. The old remainder goes
    /// on before its equals.
    fn exchange(&mut self, remainder: &mut (Priority, T)) {
        let priority = remainder.0;
        let is_outranked =
            Priority::most_important_in(self.present).is_some_and(|first| first.is_more_important_than(priority));
        // Without memory to put it back, all of it is woken now.
        if is_outranked
            && self.level(priority).is_some()
            && let Some(next) = self.pop()
        {
            let (_, before) = core::mem::replace(remainder, next);
            // There is room, and the remainder just taken is of another level.
            self.levels[usize::from(priority.number())].push_front(before);
            self.present |= priority.bit();
        }
    }
}

/// A remainder and the process that pays for waking it; 0 for none.
type Owed = (Remainder, u32);

struct DeferredWakes {
    pending: Backlog<Owed>,
    /// Number of portions for which the coroutine still goes before everything else, since it has been ready for long.
    boosted: usize,
    /// The coroutine that wakes them, and its waker while it has nothing to do.
    coroutine: Option<Cid>,
    idle: Option<Waker>,
}

/// Number of portions that are woken before everything else, when they have waited for long.
const BOOSTED: usize = 64;

static DEFERRED: Mutex<DeferredWakes> =
    Mutex::new(DeferredWakes { pending: Backlog::new(), boosted: 0, coroutine: None, idle: None });

/// Starts the coroutine that wakes remainders.
pub(crate) fn start() {
    DEFERRED.lock().coroutine = Some(executor::spawn_for_kernel(Priority::HIGHEST, wake_remainders()));
    waiters::wake_remainders_with(keep);
}

/// Keeps a remainder that is to be woken. Called under other locks, which are taken before this module's own.
#[doc(alias = "wake_up_all")]
fn keep(remainder: Remainder) {
    // Not the priority of a preferred or exhausted caller: that holds for a turn or a period, and a remainder may take
    // longer.
    let priority = executor::current_priority().limited_to(MOST_CLAIM);
    let priority = if priority == EXHAUSTED { LEAST_CLAIM } else { priority };
    let mut deferred = DEFERRED.lock();
    let kept = deferred.pending.push(priority, (remainder, payers::present()));
    if kept.is_ok()
        && let Some(coroutine) = deferred.coroutine
        && executor::priority(coroutine).is_some_and(|other| priority.is_more_important_than(other))
    {
        executor::set_priority(coroutine, priority);
    }
    let idle = deferred.idle.take();
    drop(deferred);
    if let Err((mut remainder, _)) = kept {
        // There is no memory even for this: the remainder is woken immediately.
        while remainder.wake_portion() {}
    }
    if let Some(idle) = idle {
        idle.wake();
    }
}

/// Returns whether there are waiters that still have to be woken.
pub(crate) fn are_pending() -> bool {
    let deferred = DEFERRED.lock();
    deferred.pending.present != 0 || deferred.idle.is_none()
}

impl DeferredWakes {
    /// Gives the calling coroutine the priority of its next remainder.
    fn follow(&mut self, priority: Priority) {
        self.boosted = self.boosted.saturating_sub(1);
        let priority = if self.boosted == 0 { priority } else { Priority::HIGHEST };
        executor::set_priority(executor::current(), priority);
    }
}

/// Takes the most important remainder out, and gives the calling coroutine its priority. (Under the lock: a later
/// remainder may raise it.) If there is none, [`keep`] wakes the caller for the next one.
fn take(waker: &Waker) -> Poll<(Priority, Owed)> {
    let mut deferred = DEFERRED.lock();
    let Some(next) = deferred.pending.pop() else {
        deferred.idle = Some(waker.clone());
        // A boost is for the remainders that have waited, and the next one begins at its caller's priority.
        deferred.boosted = 0;
        executor::set_priority(executor::current(), LEAST_CLAIM);
        return Poll::Pending;
    };
    deferred.follow(next.0);
    Poll::Ready(next)
}

/// Exchanges a remainder for a more important one, if there is one.
fn exchange(remainder: &mut (Priority, Owed)) {
    let mut deferred = DEFERRED.lock();
    deferred.pending.exchange(remainder);
    deferred.follow(remainder.0);
}

/// Makes the coroutine go before everything else for a while, if it has work; the watchdog of the starvation bound
/// calls this. The caller that has changed a condition may be unimportant, and the waiters important.
pub(crate) fn boost() {
    let mut deferred = DEFERRED.lock();
    if deferred.idle.is_none()
        && let Some(coroutine) = deferred.coroutine
    {
        deferred.boosted = BOOSTED;
        executor::set_priority(coroutine, Priority::HIGHEST);
    }
}

/// Wakes a portion at its payer's expense; returns whether there are more waiters.
fn wake_portion((remainder, payer): &mut Owed) -> bool {
    payers::charging(*payer, || remainder.wake_portion())
}

/// Wakes all remainders, the most important first.
async fn wake_remainders() {
    loop {
        let mut remainder = poll_fn(|cx| take(cx.waker())).await;
        loop {
            let has_more = wake_portion(&mut remainder.1);
            // A pause between two small remainders, too.
            steps::pause_at_the_end().await;
            if !has_more {
                break;
            }
            exchange(&mut remainder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, simulation};
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use waiters::Waiters;

    /// A waker whose wake-up takes long.
    struct LongWork;

    const LONG: u64 = 1000;

    impl Wake for LongWork {
        fn wake(self: Arc<LongWork>) {
            simulation().advance(LONG);
        }
    }

    /// The first portion is woken in the caller's time, the others later.
    #[test]
    fn the_process_that_wakes_thousands_pays_for_all_of_them() {
        run(|program| {
            const MANY: u64 = 3000;
            let mut waiters = Waiters::new();
            for _ in 0..MANY {
                waiters.register(&Waker::from(Arc::new(LongWork))).unwrap();
            }
            let process = program.process();
            let before = process.cpu_ticks();
            waiters.wake_all();
            assert!(are_pending());
            program.sleep_ns(1_000_000_000);
            assert!(!are_pending());
            assert!(process.cpu_ticks() - before >= MANY * LONG);
        });
    }

    #[derive(Clone, Debug)]
    enum Step {
        Keep(u8),
        Take,
        Exchange,
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Compares with a list that is searched. Each access is one step under the lock, so histories of steps cover
        /// everything that harts can do.
        #[test]
        fn the_most_important_rest_comes_first(
            steps in prop::collection::vec(
                prop_oneof![3 => (0u8..64).prop_map(Step::Keep), 2 => Just(Step::Take), 2 => Just(Step::Exchange)],
                0..200,
            ),
        ) {
            let mut pending = Backlog::new();
            let mut model: Vec<(Priority, usize)> = Vec::new();
            let mut current: Option<(Priority, usize)> = None;
            let best = |model: &[(Priority, usize)]| {
                let numbers = model.iter().enumerate().map(|(place, (priority, _))| (priority.number(), place));
                numbers.min().map(|(_, place)| place)
            };
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Keep(level) => {
                        let priority = Priority::new(level).unwrap();
                        prop_assert_eq!(pending.push(priority, number), Ok(()));
                        model.push((priority, number));
                    }
                    Step::Take => {
                        current = pending.pop();
                        prop_assert_eq!(current, best(&model).map(|place| model.remove(place)));
                    }
                    Step::Exchange => {
                        let Some(mut remainder) = current else { continue };
                        pending.exchange(&mut remainder);
                        let mut expected = current.unwrap();
                        if let Some(place) = best(&model)
                            && model[place].0.is_more_important_than(expected.0)
                        {
                            let before = core::mem::replace(&mut expected, model.remove(place));
                            model.insert(0, before);
                        }
                        prop_assert_eq!(remainder, expected);
                        current = Some(remainder);
                    }
                }
            }
            while let Some(remainder) = pending.pop() {
                prop_assert_eq!(Some(remainder), best(&model).map(|place| model.remove(place)));
            }
            prop_assert!(model.is_empty() && pending.present == 0);
        }
    }
}
