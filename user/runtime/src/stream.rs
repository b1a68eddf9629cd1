//! Sequences of values as `Stream` of `futures-core`, for the combinators of `futures-util`. The names are those of
//! `tokio-stream`.

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, ready};

use alloc::string::String;

pub use futures_core::Stream;
use unix::Result;

use crate::channel::{self, Receiver};
use crate::io::{AsyncRead, Lines};
use crate::time::{Instant, Interval, Sleep};

/// The values of a [`channel`], to its end.
#[derive(Debug)]
pub struct ReceiverStream<T> {
    receiver: Receiver<T>,
    place: channel::Place,
}

impl<T> ReceiverStream<T> {
    /// Makes a stream of what a receiver receives.
    pub fn new(receiver: Receiver<T>) -> ReceiverStream<T> {
        ReceiverStream { receiver, place: channel::Place::default() }
    }
}

// Values are never pinned.
impl<T> Unpin for ReceiverStream<T> {}

impl<T> Stream for ReceiverStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        this.receiver.poll_receive(&mut this.place, context)
    }
}

impl<T> Drop for ReceiverStream<T> {
    fn drop(&mut self) {
        self.receiver.leave(&mut self.place);
    }
}

/// The ticks of an [`Interval`], without an end.
#[derive(Debug)]
pub struct IntervalStream {
    interval: Interval,
    sleep: Sleep,
}

impl IntervalStream {
    /// Makes a stream of ticks.
    pub fn new(interval: Interval) -> IntervalStream {
        IntervalStream { sleep: interval.until_next(), interval }
    }
}

impl Stream for IntervalStream {
    type Item = Instant;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Instant>> {
        ready!(Pin::new(&mut self.sleep).poll(context));
        let tick = self.interval.ticked();
        self.sleep = self.interval.until_next();
        Poll::Ready(Some(tick))
    }
}

/// The lines of a [`BufReader`](crate::io::BufReader), to its end.
#[derive(Debug)]
pub struct LinesStream<R: AsyncRead>(Lines<R>);

impl<R: AsyncRead> LinesStream<R> {
    /// Makes a stream of lines.
    pub fn new(lines: Lines<R>) -> LinesStream<R> {
        LinesStream(lines)
    }
}

impl<R: AsyncRead> Stream for LinesStream<R> {
    type Item = Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<String>>> {
        // The call in flight stays in the reader when this future is dropped, and wakes the waker that it was polled
        // with.
        pin!(self.0.next_line()).poll(context).map(Result::transpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use core::time::Duration;

    #[test]
    fn a_stream_of_a_channel_keeps_its_place_and_passes_a_wake_up_on() {
        let (sender, receiver) = channel::unbounded();
        let (first, second) = (Wakes::counted(), Wakes::counted());
        let mut stream = ReceiverStream::new(receiver.clone());
        for _ in 0..2 {
            assert!(Pin::new(&mut stream).poll_next(&mut Context::from_waker(&first.1)).is_pending());
        }
        let mut other = ReceiverStream::new(receiver);
        assert!(Pin::new(&mut other).poll_next(&mut Context::from_waker(&second.1)).is_pending());
        sender.try_send(1).unwrap();
        assert_eq!((first.0.count(), second.0.count()), (1, 0));
        drop(stream);
        assert_eq!(second.0.count(), 1);
        drop(sender);
        let mut context = Context::from_waker(&second.1);
        assert_eq!(Pin::new(&mut other).poll_next(&mut context), Poll::Ready(Some(1)));
        assert_eq!(Pin::new(&mut other).poll_next(&mut context), Poll::Ready(None));
    }

    #[test]
    fn a_stream_of_ticks_has_no_end() {
        let start = Instant::now();
        let mut ticks = IntervalStream::new(crate::interval_at(start, Duration::from_nanos(1)));
        let mut context = Context::from_waker(core::task::Waker::noop());
        for tick in 0..3 {
            while Instant::now() <= start + Duration::from_nanos(tick) {}
            let expected = start + Duration::from_nanos(tick);
            assert_eq!(Pin::new(&mut ticks).poll_next(&mut context), Poll::Ready(Some(expected)));
        }
    }
}
