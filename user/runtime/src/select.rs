//! Waiting for several futures in one coroutine.
//!
//! The macros [`select!`](crate::select!), [`join!`](crate::join!) and [`try_join!`](crate::try_join!) have the
//! grammar of tokio's. They are our own because those of `futures-util` need `fuse` and `pin!` in each turn of a loop,
//! and because a procedural macro with a parser would be compiled before every program. All of them poll their futures
//! with the coroutine's own waker, so a call that completes finds the coroutine without a detour. The combinators of
//! `futures-util` and `futures-concurrency` work too, but those that give each future a waker of its own take the
//! detour.

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

/// Waits for several futures in one coroutine, and handles the first that is ready, as `tokio::select!` does.
///
/// ```no_run
/// # async fn example(numbers: cops::channel::Receiver<u32>, stop: cops::sync::Notify) {
/// use core::time::Duration;
///
/// let mut sum = 0;
/// loop {
///     cops::select! {
///         _ = stop.notified() => break,
///         Some(number) = numbers.receive(), if sum < 1000 => sum += number,
///         () = cops::sleep(Duration::from_secs(1)) => cops::println!("{sum}"),
///         else => return,
///     }
/// }
/// # }
/// ```
///
/// Each branch is `pattern = future => handler`, or with a condition `pattern = future, if condition => handler`. A
/// branch whose condition does not hold, or whose output does not match its pattern, is disabled. When all branches are
/// disabled, the handler of `else` runs; without `else` that is a panic. Once a branch is chosen, all futures are
/// dropped, and its handler runs in the coroutine: it may `await`, `break`, `return` and use `?`. There are at most
/// twelve branches.
///
/// # Priorities
///
/// The futures are polled in the order in which they are written, and the first that is ready is chosen, where tokio
/// chooses at random (`biased;` in front is accepted and changes nothing). A branch that is always ready keeps those
/// below it from their turn, so the most important comes first and the busiest last.
///
/// # Cancellation
///
/// The futures that were not chosen are dropped in the middle of their work, as the verdict of each allows. In a loop
/// this loses nothing if all of them are *strict* ([the verdicts](crate#cancellation)); keep any other future outside
/// of the loop, and pass `&mut` of its pin.
#[doc(alias("tokio::select", "select_biased", "race"))]
#[macro_export]
macro_rules! select {
    (@parse $names:tt $branches:tt else => $handler:expr $(,)?) => {
        $crate::select!(@expand $branches $handler)
    };
    (@parse $names:tt $branches:tt) => {
        $crate::select!(@expand $branches ::core::panic!("all branches of a select are disabled, and it has no `else`"))
    };
    (@parse [$name:ident $($names:ident)*] [$($branch:tt)*]
        $pattern:pat = $future:expr, if $condition:expr => $handler:block, $($rest:tt)*) => {
        $crate::select!(
            @parse [$($names)*] [$($branch)* ($name, $pattern, $future, $condition, $handler)] $($rest)*)
    };
    (@parse [$name:ident $($names:ident)*] [$($branch:tt)*]
        $pattern:pat = $future:expr => $handler:block, $($rest:tt)*) => {
        $crate::select!(@parse [$($names)*] [$($branch)* ($name, $pattern, $future, true, $handler)] $($rest)*)
    };
    (@parse [$name:ident $($names:ident)*] [$($branch:tt)*]
        $pattern:pat = $future:expr, if $condition:expr => $handler:block $($rest:tt)*) => {
        $crate::select!(
            @parse [$($names)*] [$($branch)* ($name, $pattern, $future, $condition, $handler)] $($rest)*)
    };
    (@parse [$name:ident $($names:ident)*] [$($branch:tt)*]
        $pattern:pat = $future:expr => $handler:block $($rest:tt)*) => {
        $crate::select!(@parse [$($names)*] [$($branch)* ($name, $pattern, $future, true, $handler)] $($rest)*)
    };
    (@parse [$name:ident $($names:ident)*] [$($branch:tt)*]
        $pattern:pat = $future:expr, if $condition:expr => $handler:expr $(, $($rest:tt)*)?) => {
        $crate::select!(
            @parse [$($names)*] [$($branch)* ($name, $pattern, $future, $condition, $handler)] $($($rest)*)?)
    };
    (@parse [$name:ident $($names:ident)*] [$($branch:tt)*]
        $pattern:pat = $future:expr => $handler:expr $(, $($rest:tt)*)?) => {
        $crate::select!(@parse [$($names)*] [$($branch)* ($name, $pattern, $future, true, $handler)] $($($rest)*)?)
    };
    (@expand [$(($name:ident, $pattern:pat, $future:expr, $condition:expr, $handler:expr))+] $otherwise:expr) => {{
        #[allow(non_camel_case_types)]
        enum __CopsSelected<$($name),+> {
            $($name($name),)+
            Disabled,
        }
        // Dropped before a handler runs: the futures, and what lives as long as their expressions.
        let output = match ($(
            ($condition, ::core::pin::pin!(::core::future::IntoFuture::into_future($future))),
        )+) {
            ($(mut $name,)+) => ::core::future::poll_fn(|context| {
                let mut waits = false;
                $(
                    // The first of each pair: whether the branch is enabled.
                    if $name.0 {
                        match ::core::future::Future::poll($name.1.as_mut(), context) {
                            ::core::task::Poll::Ready(output) => {
                                $name.0 = false;
                                #[allow(unused_variables)]
                                let matches = match &output {
                                    $crate::macros::by_reference!($pattern) => true,
                                    #[allow(unreachable_patterns)]
                                    _ => false,
                                };
                                if matches {
                                    return ::core::task::Poll::Ready(__CopsSelected::$name(output));
                                }
                            }
                            ::core::task::Poll::Pending => waits = true,
                        }
                    }
                )+
                match waits {
                    true => ::core::task::Poll::Pending,
                    false => ::core::task::Poll::Ready(__CopsSelected::Disabled),
                }
            })
            .await,
        };
        match output {
            $(__CopsSelected::$name($pattern) => $handler,)+
            __CopsSelected::Disabled => $otherwise,
            #[allow(unreachable_patterns)]
            _ => ::core::unreachable!("the output matched by reference"),
        }
    }};
    (biased; $($branches:tt)+) => {
        $crate::select!($($branches)+)
    };
    ($($branches:tt)+) => {
        $crate::select!(@parse [b0 b1 b2 b3 b4 b5 b6 b7 b8 b9 b10 b11] [] $($branches)+)
    };
}

/// Waits until all of at most twelve futures are ready; gives the tuple of their outputs, as `tokio::join!` does.
///
/// ```no_run
/// # async fn example(one: cops::JoinHandle<u32>, pipe: cops::io::PipeReader) {
/// let (number, (count, buffer)) = cops::join!(one, pipe.read(vec![0; 16]));
/// # }
/// ```
///
/// The futures take turns in one coroutine, with its priority. Each is dropped as soon as it is ready.
///
/// # Cancellation
///
/// Weak. Drops the futures, and the outputs of those that were ready.
#[doc(alias("tokio::join", "zip"))]
#[macro_export]
macro_rules! join {
    (@parse $names:tt [$(($name:ident, $future:expr))+]) => {
        match ($((::core::pin::pin!(Some(::core::future::IntoFuture::into_future($future))), None),)+) {
            ($(mut $name,)+) => ::core::future::poll_fn(|context| {
                let mut done = true;
                $(done &= $crate::select::advance(&mut $name.0, &mut $name.1, context);)+
                match done {
                    true => ::core::task::Poll::Ready(($($name.1.take().expect("the future is done"),)+)),
                    false => ::core::task::Poll::Pending,
                }
            })
            .await,
        }
    };
    (@parse [$name:ident $($names:ident)*] [$($done:tt)*] $future:expr $(, $($rest:tt)*)?) => {
        $crate::join!(@parse [$($names)*] [$($done)* ($name, $future)] $($($rest)*)?)
    };
    ($($futures:tt)+) => {
        $crate::join!(@parse [b0 b1 b2 b3 b4 b5 b6 b7 b8 b9 b10 b11] [] $($futures)+)
    };
}

/// Waits until all of at most twelve futures, whose outputs are results, are ready, or one has failed, as
/// `tokio::try_join!` does; gives `Ok` with a tuple, or the first error.
///
/// ```no_run
/// # async fn example() -> Result<(), cops::Errno> {
/// use cops::file::read_to_string;
///
/// let (one, two) = cops::try_join!(read_to_string("/tmp/one"), read_to_string("/tmp/two"))?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// Weak. Drops the futures, and the outputs of those that were ready. The first error does so too.
#[doc(alias = "tokio::try_join")]
#[macro_export]
macro_rules! try_join {
    (@parse $names:tt [$(($name:ident, $future:expr))+]) => {
        match ($((::core::pin::pin!(Some(::core::future::IntoFuture::into_future($future))), None),)+) {
            ($(mut $name,)+) => ::core::future::poll_fn(|context| {
                let mut done = true;
                $(
                    done &= $crate::select::advance(&mut $name.0, &mut $name.1, context);
                    if let Some(Err(_)) = &$name.1
                        && let Some(Err(error)) = $name.1.take()
                    {
                        return ::core::task::Poll::Ready(Err(error));
                    }
                )+
                match done {
                    true => ::core::task::Poll::Ready(Ok(($(
                        $name.1.take().and_then(Result::ok).expect("the future has succeeded"),
                    )+))),
                    false => ::core::task::Poll::Pending,
                }
            })
            .await,
        }
    };
    (@parse [$name:ident $($names:ident)*] [$($done:tt)*] $future:expr $(, $($rest:tt)*)?) => {
        $crate::try_join!(@parse [$($names)*] [$($done)* ($name, $future)] $($($rest)*)?)
    };
    ($($futures:tt)+) => {
        $crate::try_join!(@parse [b0 b1 b2 b3 b4 b5 b6 b7 b8 b9 b10 b11] [] $($futures)+)
    };
}

/// Polls a future of [`join!`](crate::join!) until it is ready, drops it then, and returns whether it is.
#[doc(hidden)]
pub fn advance<F: Future>(
    future: &mut Pin<&mut Option<F>>,
    output: &mut Option<F::Output>,
    context: &mut Context<'_>,
) -> bool {
    let Some(running) = future.as_mut().as_pin_mut() else { return true };
    let Poll::Ready(value) = running.poll(context) else { return false };
    future.set(None);
    *output = Some(value);
    true
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

    /// Polls a future once; an outer future with a waker of no coroutine is enough for the macros.
    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn ready<T>(future: impl Future<Output = T>) -> T {
        match poll(pin!(future)) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it waits"),
        }
    }

    /// Ready at the poll after `turns` others.
    async fn after<T>(mut turns: u32, value: T) -> T {
        poll_fn(|_| match turns.checked_sub(1) {
            None => Poll::Ready(()),
            Some(rest) => {
                turns = rest;
                Poll::Pending
            }
        })
        .await;
        value
    }

    /// Counts its drops.
    struct Dropped<'a>(&'a core::cell::Cell<u32>);

    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn select_takes_the_first_that_is_ready_in_the_order_of_the_branches() {
        assert_eq!(
            ready(async {
                crate::select! {
                    one = after(0, 1) => one,
                    two = after(0, 2) => two,
                }
            }),
            1
        );
        let mut later = pin!(async {
            crate::select! {
                biased;
                _ = core::future::pending::<()>() => 0,
                two = after(2, 2) => { two }
                three = after(1, 3) => three,
            }
        });
        assert!(poll(later.as_mut()).is_pending());
        assert_eq!(poll(later), Poll::Ready(3));
    }

    #[test]
    fn a_branch_whose_pattern_or_condition_fails_is_disabled() {
        let chosen = |first: Option<u32>, allowed: bool| {
            ready(async move {
                crate::select! {
                    Some(mut number) = after(0, first) => { number += 1; number },
                    (_, word @ "x") = after(0, (1, "x")), if allowed => word.len() as u32 + 40,
                    else => 99,
                }
            })
        };
        assert_eq!([chosen(Some(6), true), chosen(None, true), chosen(None, false)], [7, 41, 99]);
        // A branch that does not match leaves the others at work.
        let mut rest = pin!(async {
            crate::select! {
                Ok(()) = after(0, Err::<(), _>(())) => 1,
                () = after(1, ()) => 2,
            }
        });
        assert!(poll(rest.as_mut()).is_pending());
        assert_eq!(poll(rest), Poll::Ready(2));
    }

    #[test]
    #[should_panic(expected = "no `else`")]
    fn a_select_without_enabled_branches_panics() {
        ready(async {
            crate::select! { () = after(0, ()), if false => () }
        });
    }

    #[test]
    fn all_futures_are_dropped_before_the_handler_which_controls_the_loop_around_it() {
        let drops = core::cell::Cell::new(0);
        let guarded = |guard: Dropped<'static>, turns| async move {
            let _guard = guard;
            after(turns, ()).await;
        };
        let drops: &'static core::cell::Cell<u32> = Box::leak(Box::new(drops));
        let seen: Result<Vec<u32>, ()> = ready(async {
            let mut seen = Vec::new();
            loop {
                crate::select! {
                    () = guarded(Dropped(drops), 5) => unreachable!(),
                    () = guarded(Dropped(drops), 0) => {
                        seen.push(drops.get());
                        match seen.len() {
                            1 => continue,
                            2 => Err::<(), _>(()).or(Ok(()))?,
                            _ => break,
                        }
                    }
                    () = guarded(Dropped(drops), 0) => unreachable!(),
                }
            }
            Ok(seen)
        });
        assert_eq!(seen, Ok(std::vec![3, 6, 9]));
    }

    #[test]
    fn a_future_that_is_kept_outside_goes_on_in_the_next_turn() {
        let mut whole = pin!(async {
            let mut slow = pin!(after(3, "slow"));
            let mut quick = 0;
            loop {
                crate::select! {
                    word = &mut slow => break (word, quick),
                    () = after(1, ()) => quick += 1,
                }
            }
        });
        let mut polls = 1;
        let output = loop {
            match poll(whole.as_mut()) {
                Poll::Ready(output) => break output,
                Poll::Pending => polls += 1,
            }
        };
        // Each turn of `quick` polls `slow` twice.
        assert_eq!((output, polls), (("slow", 1), 3));
    }

    #[test]
    fn join_gives_all_outputs_and_drops_each_future_when_it_is_ready() {
        let drops = core::cell::Cell::new(0);
        let guarded = |turns| {
            let guard = Dropped(&drops);
            async move {
                let _guard = guard;
                after(turns, turns).await
            }
        };
        let mut all = pin!(async { crate::join!(guarded(1), after(0, "b"), guarded(0)) });
        assert!(poll(all.as_mut()).is_pending());
        assert_eq!(drops.get(), 1);
        assert_eq!(poll(all), Poll::Ready((1, "b", 0)));
        assert_eq!(drops.get(), 2);
    }

    #[test]
    fn try_join_ends_with_the_first_error() {
        let part = |turns, result: Result<u32, &'static str>| after(turns, result);
        let all = ready(async { crate::try_join!(part(0, Ok(1)), part(0, Ok(2)),) });
        assert_eq!(all, Ok((1, 2)));
        let mut fails = pin!(async { crate::try_join!(part(9, Ok(1)), part(1, Err("a")), part(1, Err("b"))) });
        assert!(poll(fails.as_mut()).is_pending());
        assert_eq!(poll(fails), Poll::Ready(Err("a")));
    }

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
