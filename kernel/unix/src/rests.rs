//! Those who wait for one thing by the thousand: they are woken in portions, by a coroutine of the kernel's own.
//!
//! Whoever changes a condition holds its lock, and wakes a [portion](waiters::PORTION) of those who wait for it. The rest
//! comes here, and is woken with a look after each portion, at the priority of whoever changed the condition: so nobody
//! makes the kernel work for long at a higher priority than its own. Those who wait may be more important than that; so the
//! keeper of the starvation bound lets some portions go before everything else at each of its looks ([`hasten`]). What it
//! takes is charged to nobody. It is a small part of what those who are woken have been charged for coming to wait, and
//! will be for looking again.

use alloc::collections::VecDeque;
use core::future::poll_fn;
use core::task::{Poll, Waker};

use abi_queue::Priority;
use spin::Mutex;
use waiters::Rest;

use crate::executor::Cid;
use crate::scheduling::{EXHAUSTED, LEAST_CLAIM, MOST_CLAIM};
use crate::{executor, steps};

struct Rests {
    waiting: VecDeque<(Priority, Rest)>,
    /// For so many more portions their coroutine goes before everything else, since it has been ready for long.
    hastened: usize,
    /// The coroutine that wakes them; and how to wake it while it has nothing to do.
    coroutine: Option<Cid>,
    idle: Option<Waker>,
}

/// Portions that are woken before everything else, when they have waited for long.
const HASTENED: usize = 64;

static RESTS: Mutex<Rests> = Mutex::new(Rests { waiting: VecDeque::new(), hastened: 0, coroutine: None, idle: None });

/// Starts the coroutine.
pub fn start() {
    RESTS.lock().coroutine = Some(executor::spawn_for_kernel(Priority::HIGHEST, wake_rests()));
    waiters::wake_rests_with(keep);
}

/// Notes a rest that is to be woken. It is called under locks, which this module's own lock comes behind.
fn keep(mut rest: Rest) {
    // Not of whoever runs before its turn, or behind everybody: that is so for a turn or a period, and a rest may take
    // longer.
    let priority = executor::current_priority().limited_to(MOST_CLAIM);
    let priority = if priority == EXHAUSTED { LEAST_CLAIM } else { priority };
    let idle = {
        let mut rests = RESTS.lock();
        if rests.waiting.try_reserve(1).is_ok() {
            rests.waiting.push_back((priority, rest));
            if let Some(coroutine) = rests.coroutine
                && executor::priority(coroutine).is_some_and(|other| priority.is_more_important_than(other))
            {
                executor::set_priority(coroutine, priority);
            }
            rests.idle.take()
        } else {
            drop(rests);
            // There is no memory even for this: then at once.
            while rest.wake_portion() {}
            None
        }
    };
    if let Some(idle) = idle {
        idle.wake();
    }
}

impl Rests {
    /// Gives the calling coroutine the priority of what it does next.
    fn follow(&mut self, priority: Priority) {
        self.hastened = self.hastened.saturating_sub(1);
        let priority = if self.hastened == 0 { priority } else { Priority::HIGHEST };
        executor::set_priority(executor::current(), priority);
    }

    /// Where the most important rest stands, if that is more important than `than`.
    fn best(&self, than: Option<Priority>) -> Option<usize> {
        let (place, (priority, _)) =
            self.waiting.iter().enumerate().min_by_key(|(_, (priority, _))| priority.number())?;
        than.is_none_or(|than| priority.is_more_important_than(than)).then_some(place)
    }
}

/// Takes the most important rest out, which the calling coroutine is to be as important as. (Under the lock: what comes
/// afterwards may raise it.)
fn take() -> Option<(Priority, Rest)> {
    let mut rests = RESTS.lock();
    let next = rests.best(None).and_then(|place| rests.waiting.remove(place))?;
    rests.follow(next.0);
    Some(next)
}

/// Exchanges a rest for a more important one, if there is one.
fn exchange(rest: &mut (Priority, Rest)) {
    let mut rests = RESTS.lock();
    if let Some(place) = rests.best(Some(rest.0)) {
        core::mem::swap(&mut rests.waiting[place], rest);
    }
    rests.follow(rest.0);
}

/// For the keeper of the starvation bound: has the coroutine go before everything else for a while, if it has something to
/// do. Whoever has changed a condition may be unimportant, and those who wait for it important.
pub fn hasten() {
    let mut rests = RESTS.lock();
    if rests.idle.is_none()
        && let Some(coroutine) = rests.coroutine
    {
        rests.hastened = HASTENED;
        executor::set_priority(coroutine, Priority::HIGHEST);
    }
}

/// Wakes all rests, the most important first.
async fn wake_rests() {
    loop {
        let mut rest = poll_fn(|cx| {
            if let Some(next) = take() {
                return Poll::Ready(next);
            }
            RESTS.lock().idle = Some(cx.waker().clone());
            // One may have come before that.
            take().map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        loop {
            let has_more = rest.1.wake_portion();
            // Also between two small ones.
            steps::pause_at_the_end().await;
            if !has_more {
                break;
            }
            exchange(&mut rest);
        }
    }
}
