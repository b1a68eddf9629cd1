//! The futures of the coroutines, common to all engines.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// Yields as any future can: wakes itself, and is pending once.
pub struct Yield(bool);

pub fn yield_by_waker() -> Yield {
    Yield(false)
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Two coroutines that wake each other in turn.
pub struct Pair {
    /// Waker of each side, from its first wait on; every engine gives a coroutine the same waker each time.
    wakers: [OnceLock<Waker>; 2],
    turns: [AtomicBool; 2],
}

impl Pair {
    pub const fn new() -> Pair {
        Pair {
            wakers: [const { OnceLock::new() }; 2],
            // Side 0 begins.
            turns: [AtomicBool::new(true), AtomicBool::new(false)],
        }
    }

    /// Plays `count` turns as one side.
    pub async fn play(&self, side: usize, count: u64) {
        for _ in 0..count {
            Turn { pair: self, side }.await;
        }
    }
}

/// Waits for the turn of one side, and gives it to the other.
struct Turn<'a> {
    pair: &'a Pair,
    side: usize,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (mine, theirs) = (self.side, 1 - self.side);
        if self.pair.turns[mine].swap(false, Ordering::Acquire) {
            self.pair.turns[theirs].store(true, Ordering::Release);
            if let Some(other) = self.pair.wakers[theirs].get() {
                other.wake_by_ref();
            }
            return Poll::Ready(());
        }
        if self.pair.wakers[mine].get().is_none() {
            let _ = self.pair.wakers[mine].set(context.waker().clone());
            // It may have become our turn before the waker was there.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
