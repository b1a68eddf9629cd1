//! A request to end, which reaches many coroutines at once and leaves them the way in which they end.
//!
//! [`JoinHandle::cancel`](crate::JoinHandle::cancel) drops a coroutine's future wherever it waits. A token asks
//! instead: the coroutine selects between its work and [`CancellationToken::cancelled`], and ends when and how it is
//! right.

use core::fmt;
use core::future::Future;
use core::task::Waker;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::lock::Lock;
use crate::select::{Either, select};
use crate::waiting::{Audience, until};

struct TokenState {
    is_cancelled: bool,
    audience: Audience,
    children: Vec<Weak<Token>>,
}

struct Token {
    state: Lock<TokenState>,
    /// Kept, so that a request still goes through a token that has no other owner.
    _parent: Option<Arc<Token>>,
}

impl Token {
    fn new(is_cancelled: bool, parent: Option<Arc<Token>>) -> Arc<Token> {
        let state = TokenState { is_cancelled, audience: Audience::new(), children: Vec::new() };
        Arc::new(Token { state: Lock::new(state), _parent: parent })
    }
}

/// A request to end. Clones are the same request.
#[derive(Clone)]
#[doc(alias("StopToken", "tokio_util"))]
pub struct CancellationToken(Arc<Token>);

impl CancellationToken {
    /// Makes a request that was not made yet.
    pub fn new() -> CancellationToken {
        CancellationToken(Token::new(false, None))
    }

    /// Makes a token that is cancelled with this one, but may be cancelled alone.
    pub fn child_token(&self) -> CancellationToken {
        let mut state = self.0.state.lock();
        let child = Token::new(state.is_cancelled, Some(self.0.clone()));
        if !state.is_cancelled {
            // Children that are gone are forgotten when there is no room, so at most half of the list is of them after
            // it has grown.
            if state.children.len() == state.children.capacity() {
                state.children.retain(|child| child.strong_count() > 0);
            }
            state.children.push(Arc::downgrade(&child));
        }
        CancellationToken(child)
    }

    /// Makes the request, here and at all children. Once made it stays.
    pub fn cancel(&self) {
        let mut tokens = alloc::vec![self.0.clone()];
        while let Some(token) = tokens.pop() {
            let mut state = token.state.lock();
            if core::mem::replace(&mut state.is_cancelled, true) {
                continue;
            }
            let audience = state.audience.take_all();
            let children = core::mem::take(&mut state.children);
            drop(state);
            tokens.extend(children.iter().filter_map(Weak::upgrade));
            audience.for_each(Waker::wake);
        }
    }

    /// Returns whether the request was made.
    pub fn is_cancelled(&self) -> bool {
        self.0.state.lock().is_cancelled
    }

    /// Waits for the request.
    ///
    /// # Cancellation
    ///
    /// Strict.
    pub async fn cancelled(&self) {
        until(&self.0.state, |state| &mut state.audience, |state| state.is_cancelled.then_some(())).await;
    }

    /// Waits for a future until the request comes; `None` if that came first. If both are due the request wins.
    ///
    /// # Cancellation
    ///
    /// Weak. Drops the future.
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Option<F::Output> {
        match select(self.cancelled(), future).await {
            Either::First(()) => None,
            Either::Second(output) => Some(output),
        }
    }

    /// Makes a guard that makes the request when it is dropped.
    pub fn drop_guard(self) -> DropGuard {
        DropGuard(Some(self))
    }
}

impl Default for CancellationToken {
    fn default() -> CancellationToken {
        CancellationToken::new()
    }
}

impl fmt::Debug for CancellationToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CancellationToken").field("is_cancelled", &self.is_cancelled()).finish()
    }
}

/// Makes the request of a [`CancellationToken`] when it is dropped.
#[derive(Debug)]
#[must_use = "the request is made at once if nothing holds the guard"]
pub struct DropGuard(Option<CancellationToken>);

impl DropGuard {
    /// Gives the token back; no request is made.
    pub fn disarm(mut self) -> CancellationToken {
        self.0.take().unwrap_or_default()
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(token) = &self.0 {
            token.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use core::pin::pin;
    use core::task::{Context, Poll};
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::vec;

    #[test]
    fn a_request_ends_a_future_and_wins_if_both_are_due() {
        let token = CancellationToken::new();
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        assert_eq!(pin!(token.run_until_cancelled(async { 7 })).poll(&mut context), Poll::Ready(Some(7)));
        let mut runs = pin!(token.run_until_cancelled(core::future::pending::<()>()));
        assert!(runs.as_mut().poll(&mut context).is_pending());
        let guard = token.clone().drop_guard();
        drop(guard.disarm());
        assert_eq!((wakes.count(), token.is_cancelled()), (0, false));
        drop(token.clone().drop_guard());
        assert_eq!((wakes.count(), token.is_cancelled()), (1, true));
        assert_eq!(runs.poll(&mut context), Poll::Ready(None));
        assert_eq!(pin!(token.run_until_cancelled(async { 7 })).poll(&mut context), Poll::Ready(None));
    }

    #[test]
    fn children_that_are_gone_are_forgotten() {
        let token = CancellationToken::new();
        let kept = token.child_token();
        for _ in 0..1000 {
            drop(token.child_token());
        }
        assert!(token.0.state.lock().children.len() <= 8);
        token.cancel();
        assert!(kept.is_cancelled() && token.child_token().is_cancelled());
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Beside a table of parents: a token is cancelled if it or an ancestor was, also if one between them has no
        /// owner any more, and exactly those that become so are woken.
        #[test]
        fn a_request_reaches_all_descendants_and_no_other(
            steps in prop::collection::vec((0..3u8, 0..32usize), 1..60),
        ) {
            let mut tokens = vec![Some(CancellationToken::new())];
            let (mut parents, mut requested) = (vec![None], vec![false]);
            /// Whether a token, or an ancestor, was cancelled.
            fn reached(parents: &[Option<usize>], requested: &[bool], token: usize) -> bool {
                requested[token] || parents[token].is_some_and(|parent| reached(parents, requested, parent))
            }
            for (step, which) in steps {
                let which = which % tokens.len();
                let Some(token) = tokens[which].clone() else { continue };
                match step {
                    0 => {
                        tokens.push(Some(token.child_token()));
                        parents.push(Some(which));
                        requested.push(false);
                    }
                    1 => {
                        let mut waits = Vec::new();
                        for (place, other) in tokens.iter().enumerate() {
                            let Some(other) = other else { continue };
                            let (wakes, waker) = Wakes::counted();
                            let mut wait = Box::pin(other.cancelled());
                            let is_ready = wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
                            prop_assert_eq!(is_ready, reached(&parents, &requested, place));
                            waits.push((place, is_ready, wakes, wait));
                        }
                        token.cancel();
                        requested[which] = true;
                        for (place, was_ready, wakes, _wait) in waits {
                            let is_reached = reached(&parents, &requested, place);
                            prop_assert_eq!(wakes.count(), usize::from(is_reached && !was_ready));
                            prop_assert_eq!(tokens[place].as_ref().map(CancellationToken::is_cancelled), Some(is_reached));
                        }
                    }
                    _ => tokens[which] = None,
                }
            }
        }
    }
}
