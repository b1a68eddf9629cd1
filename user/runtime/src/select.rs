//! Waiting for several futures in one coroutine.
//!
//! Beyond these two functions the combinators of `futures-util` and `futures-concurrency` work: a waker of this
//! executor is like any other.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;

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

/// Polls a future unless its output is there already.
fn poll_once<F: Future>(future: Pin<&mut F>, output: &mut Option<F::Output>, context: &mut core::task::Context<'_>) {
    if output.is_none()
        && let Poll::Ready(value) = future.poll(context)
    {
        *output = Some(value);
    }
}
