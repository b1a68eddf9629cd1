//! Waiting for several futures in one coroutine.
//!
//! Beyond these two functions the combinators of `futures-util` and `futures-concurrency` work: a waker of this
//! executor is like any other.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll};

use alloc::boxed::Box;
use alloc::vec::Vec;

/// The first future of two to become ready, with its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first future.
    First(A),
    /// The second future.
    Second(B),
}

/// Waits until one of two futures is ready; if both are, the first wins. The other future is dropped, unless it was
/// passed as a pinned reference.
///
/// # Cancellation
///
/// Weak. Drops both futures, unless they were passed as pinned references; see the verdict of each.
#[doc(alias = "race")]
pub async fn select<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| {
        if let Poll::Ready(output) = first.as_mut().poll(context) {
            return Poll::Ready(Either::First(output));
        }
        second.as_mut().poll(context).map(Either::Second)
    })
    .await
}

/// Waits until both of two futures are ready.
///
/// # Cancellation
///
/// Weak. Drops both futures, and the output of one that was ready.
#[doc(alias = "zip")]
pub async fn join<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_output, mut second_output) = (None, None);
    poll_fn(|context| {
        poll_once(first.as_mut(), &mut first_output, context);
        poll_once(second.as_mut(), &mut second_output, context);
        match (first_output.take(), second_output.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (first_output, second_output) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

/// Waits until all futures are ready, and returns their outputs in the order of the futures.
///
/// # Cancellation
///
/// Weak. Drops all futures, and the outputs of those that were ready.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, output) in &mut all {
            poll_once(future.as_mut(), output, context);
        }
        if all.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

/// Polls a future unless its output is there already.
fn poll_once<F: Future>(future: Pin<&mut F>, output: &mut Option<F::Output>, context: &mut Context<'_>) {
    if output.is_none()
        && let Poll::Ready(value) = future.poll(context)
    {
        *output = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn all_outputs_come_in_the_order_of_the_futures() {
        let countdown = |mut turns: u32| {
            poll_fn(move |_| match turns.checked_sub(1) {
                None => Poll::Ready(()),
                Some(rest) => {
                    turns = rest;
                    Poll::Pending
                }
            })
        };
        let mut all = pin!(join_all([2, 0, 1].map(countdown)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(all.as_mut().poll(&mut context).is_pending());
        assert!(all.as_mut().poll(&mut context).is_pending());
        assert_eq!(all.as_mut().poll(&mut context), Poll::Ready(std::vec![(), (), ()]));
        let mut ordered = pin!(join_all([1, 2, 3].map(core::future::ready)));
        assert_eq!(ordered.as_mut().poll(&mut context), Poll::Ready(std::vec![1, 2, 3]));
        let mut none = pin!(join_all(core::iter::empty::<core::future::Ready<()>>()));
        assert_eq!(none.as_mut().poll(&mut context), Poll::Ready(std::vec![]));
    }
}
