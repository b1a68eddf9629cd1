//! Coroutines that belong together: a set, from which results come in the order of their ends, and a scope, which does
//! not end before all of its coroutines.
//!
//! A coroutine of either reports its end from inside, by a value that is dropped with its future. So a cancelled one
//! reports too, and neither the set nor the scope polls its members: the number of them costs nothing. (A set made of
//! `FuturesUnordered<JoinHandle<T>>` would allocate a waker for each member and wake the owner through it.)

use core::fmt;
use core::future::Future;

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::channel::{Receiver, Sender, unbounded};
use crate::lock::Lock;
use crate::waiting::{Audience, until};
use crate::{Cancelled, Cid, JoinHandle, Priority};

/// The end of a member.
struct End<T> {
    number: u64,
    output: Result<T, Cancelled>,
}

/// Reports the end of a member when it is dropped.
struct Report<T> {
    ends: Sender<End<T>>,
    number: u64,
    output: Option<T>,
}

impl<T> Drop for Report<T> {
    fn drop(&mut self) {
        let end = End { number: self.number, output: self.output.take().ok_or(Cancelled) };
        // Without a receiver the set is gone.
        let _ = self.ends.try_send(end);
    }
}

/// Runs a member and reports its output.
///
/// The future is dropped before the report, also if it never ran: values are captured, and dropped, in the order in
/// which they are mentioned. So a member whose end was reported has dropped everything.
#[expect(clippy::manual_async_fn, reason = "the arguments of an `async fn` are dropped in another order")]
fn reporting<T>(future: impl Future<Output = T>, mut report: Report<T>) -> impl Future<Output = ()> {
    async move {
        let output = future.await;
        report.output = Some(output);
        drop(report);
    }
}

/// The members of a set, each with a value `H` for as long as it runs.
struct Members<T, H> {
    ends: Receiver<End<T>>,
    reports: Sender<End<T>>,
    running: BTreeMap<u64, H>,
    /// Last number given.
    number: u64,
}

impl<T, H> Members<T, H> {
    fn new() -> Members<T, H> {
        let (reports, ends) = unbounded();
        Members { ends, reports, running: BTreeMap::new(), number: 0 }
    }

    /// Makes the report of the next member, whose code owns it.
    fn report(&mut self) -> Report<T> {
        self.number += 1;
        Report { ends: self.reports.clone(), number: self.number, output: None }
    }

    /// Adds the member that has the last report.
    fn add(&mut self, handle: H) {
        self.running.insert(self.number, handle);
    }

    fn ended(&mut self, end: End<T>) -> Result<T, Cancelled> {
        self.running.remove(&end.number);
        end.output
    }

    async fn next(&mut self) -> Option<Result<T, Cancelled>> {
        if self.running.is_empty() {
            return None;
        }
        let end = self.ends.receive().await?;
        Some(self.ended(end))
    }
}

/// A set of coroutines whose results are awaited in the order of their ends. Dropping it cancels all that still run.
///
/// ```no_run
/// # async fn example() {
/// let mut squares = cops::JoinSet::new();
/// for number in 0..10u64 {
///     squares.spawn(async move { number * number });
/// }
/// let mut sum = 0;
/// while let Some(square) = squares.join_next().await {
///     sum += square.unwrap_or(0);
/// }
/// # }
/// ```
#[doc(alias("FuturesUnordered", "TaskTracker"))]
pub struct JoinSet<T>(Members<T, JoinHandle<()>>);

impl<T: Send + 'static> JoinSet<T> {
    /// Makes an empty set.
    pub fn new() -> JoinSet<T> {
        JoinSet(Members::new())
    }

    /// Makes a coroutine of the set, with the priority of the running one, and returns its name.
    ///
    /// # Panics
    ///
    /// As [`crate::spawn`].
    #[track_caller]
    pub fn spawn(&mut self, future: impl Future<Output = T> + Send + 'static) -> Cid {
        self.spawn_at(crate::current_priority(), future)
    }

    /// Makes a coroutine of the set with a priority, and returns its name.
    ///
    /// # Panics
    ///
    /// As [`crate::spawn`].
    #[track_caller]
    pub fn spawn_at(&mut self, priority: Priority, future: impl Future<Output = T> + Send + 'static) -> Cid {
        let report = self.0.report();
        self.keep(crate::spawn_at(priority, reporting(future, report)))
    }

    /// Makes a coroutine of the set with a name for people, as [`crate::spawn_named`] does.
    ///
    /// # Panics
    ///
    /// As [`crate::spawn`].
    #[track_caller]
    pub fn spawn_named(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Cid {
        self.spawn_named_at(crate::current_priority(), name, future)
    }

    /// Makes a coroutine of the set with a priority and a name for people, as [`crate::spawn_named_at`] does.
    ///
    /// # Panics
    ///
    /// As [`crate::spawn`].
    #[track_caller]
    pub fn spawn_named_at(
        &mut self,
        priority: Priority,
        name: impl Into<Cow<'static, str>>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Cid {
        let report = self.0.report();
        self.keep(crate::spawn_named_at(priority, name, reporting(future, report)))
    }

    fn keep(&mut self, handle: JoinHandle<()>) -> Cid {
        let cid = handle.cid();
        self.0.add(handle);
        cid
    }

    /// Waits for the next end of a member, and returns its result; `None` if the set is empty.
    ///
    /// # Errors
    ///
    /// [`Cancelled`] in the result, if the member was.
    ///
    /// # Cancellation
    ///
    /// Strict. The members run on, and a result that was there stays for the next call.
    pub async fn join_next(&mut self) -> Option<Result<T, Cancelled>> {
        self.0.next().await
    }

    /// Returns the result of a member that has ended, if there is one.
    ///
    /// # Errors
    ///
    /// [`Cancelled`] in the result, if the member was.
    pub fn try_join_next(&mut self) -> Option<Result<T, Cancelled>> {
        let end = self.0.ends.try_receive().ok()?;
        Some(self.0.ended(end))
    }

    /// Cancels all members; their ends are still to be awaited.
    #[doc(alias = "abort_all")]
    pub fn cancel_all(&mut self) {
        self.0.running.values().for_each(JoinHandle::cancel);
    }

    /// Cancels all members, and waits until they have ended.
    ///
    /// # Cancellation
    ///
    /// Strict. All members are cancelled by the first poll.
    pub async fn shutdown(&mut self) {
        self.cancel_all();
        while self.join_next().await.is_some() {}
    }

    /// Lets all members run on outside of the set, which is empty then.
    pub fn detach_all(&mut self) {
        // Their reports go nowhere.
        self.0 = Members::new();
    }
}

impl<T> JoinSet<T> {
    /// Returns the number of members whose result was not taken.
    pub fn len(&self) -> usize {
        self.0.running.len()
    }

    /// Returns whether the set has no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Send + 'static> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.0.running.values().for_each(JoinHandle::cancel);
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("JoinSet").field("len", &self.len()).finish_non_exhaustive()
    }
}

struct ScopeState {
    /// Coroutines of the scope that have not ended, by number. Without a name for the moment between two lines of
    /// [`Scope::spawn_at`].
    running: BTreeMap<u64, Option<Cid>>,
    number: u64,
    /// Whether the scope was dropped: what runs is cancelled, and so is what is added.
    is_dropped: bool,
    audience: Audience,
}

/// A scope of coroutines, made by [`scope`]. Clones are the same scope: its coroutines may add others.
#[derive(Clone)]
pub struct Scope(Arc<Lock<ScopeState>>);

/// Takes a coroutine out of its scope when it is dropped.
struct Member {
    scope: Scope,
    number: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.scope.0.lock();
        state.running.remove(&self.number);
        if state.running.is_empty() {
            let audience = state.audience.take_all();
            drop(state);
            audience.for_each(core::task::Waker::wake);
        }
    }
}

impl Scope {
    fn new() -> Scope {
        let state = ScopeState { running: BTreeMap::new(), number: 0, is_dropped: false, audience: Audience::new() };
        Scope(Arc::new(Lock::new(state)))
    }

    /// Makes a coroutine of the scope, with the priority of the running one.
    ///
    /// # Panics
    ///
    /// As [`crate::spawn`].
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.spawn_at(crate::current_priority(), future)
    }

    /// Makes a coroutine of the scope with a priority.
    ///
    /// # Panics
    ///
    /// As [`crate::spawn`].
    #[track_caller]
    pub fn spawn_at<F>(&self, priority: Priority, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (number, future) = self.include(future);
        self.started(number, crate::spawn_at(priority, future))
    }

    /// Makes a coroutine of the scope with a name for people, as [`crate::spawn_named`] does.
    ///
    /// # Panics
    ///
    /// As [`crate::spawn`].
    #[track_caller]
    pub fn spawn_named<F>(&self, name: impl Into<Cow<'static, str>>, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.spawn_named_at(crate::current_priority(), name, future)
    }

    /// Makes a coroutine of the scope with a priority and a name for people, as [`crate::spawn_named_at`] does.
    ///
    /// # Panics
    ///
    /// As [`crate::spawn`].
    #[track_caller]
    pub fn spawn_named_at<F>(
        &self,
        priority: Priority,
        name: impl Into<Cow<'static, str>>,
        future: F,
    ) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (number, future) = self.include(future);
        self.started(number, crate::spawn_named_at(priority, name, future))
    }

    /// Adds a coroutine that will run the future; returns its number and its code.
    fn include<F: Future>(&self, future: F) -> (u64, impl Future<Output = F::Output> + use<F>) {
        let member = self.enter();
        let number = member.number;
        let body = async move {
            let output = future.await;
            drop(member);
            output
        };
        (number, body)
    }

    /// Notes that a coroutine of the scope was spawned.
    fn started<T: Send>(&self, number: u64, handle: JoinHandle<T>) -> JoinHandle<T> {
        if self.name(number, handle.cid()) {
            handle.cancel();
        }
        handle
    }

    /// Adds a coroutine that has no name yet.
    fn enter(&self) -> Member {
        let mut state = self.0.lock();
        state.number += 1;
        let number = state.number;
        state.running.insert(number, None);
        Member { scope: self.clone(), number }
    }

    /// Notes the name of a coroutine, unless it has ended already; returns whether it is to be cancelled.
    fn name(&self, number: u64, cid: Cid) -> bool {
        let mut state = self.0.lock();
        if let Some(place) = state.running.get_mut(&number) {
            *place = Some(cid);
        }
        state.is_dropped
    }

    /// Waits until no coroutine of the scope runs.
    async fn ended(&self) {
        until(&self.0, |state| &mut state.audience, |state| state.running.is_empty().then_some(())).await;
    }

    /// Marks the scope as dropped, and returns the coroutines to cancel.
    fn drop_all(&self) -> alloc::vec::Vec<Cid> {
        let mut state = self.0.lock();
        state.is_dropped = true;
        state.running.values().flatten().copied().collect()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Scope").finish_non_exhaustive()
    }
}

/// Runs a future whose coroutines all end before it: those that it spawns on the [`Scope`] are awaited after it, and
/// cancelled if it is dropped. So an error or a time limit leaves no coroutine behind.
///
/// ```no_run
/// # async fn example() {
/// use core::time::Duration;
///
/// let both = cops::scope(async |scope| {
///     let one = scope.spawn(async { 1 });
///     scope.spawn(async { cops::println!("still in the scope") }).detach();
///     one.await.unwrap_or(0)
/// });
/// let one = cops::timeout(Duration::from_secs(1), both).await;
/// # }
/// ```
///
/// Its coroutines own their values, as all do: a coroutine of this process may go on at any worker, and a future that
/// is dropped cannot wait for others to give back what they borrow. For parts that borrow, use [`join!`](crate::join!).
///
/// # Cancellation
///
/// Weak. Cancels the coroutines, whose futures are dropped soon after, and drops the body.
#[doc(alias("nursery", "structured concurrency", "TaskTracker"))]
pub async fn scope<T>(body: impl AsyncFnOnce(&Scope) -> T) -> T {
    /// Cancels the coroutines that still run.
    struct CancelOnDrop(Scope);

    impl Drop for CancelOnDrop {
        fn drop(&mut self) {
            for cid in self.0.drop_all() {
                // A coroutine that has ended needs no end.
                let _ = crate::executor().cancel(cid);
            }
        }
    }

    let guard = CancelOnDrop(Scope::new());
    let output = body(&guard.0).await;
    guard.0.ended().await;
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use core::pin::pin;
    use core::task::{Context, Poll};
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Tells whether the end was reported before it was dropped.
    struct Witness(std::sync::Arc<std::sync::Mutex<Option<bool>>>, std::sync::Arc<Receiver<End<u8>>>);

    impl Drop for Witness {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = Some(self.1.try_receive().is_ok());
        }
    }

    #[test]
    fn a_member_is_dropped_before_its_end_is_reported() {
        for polls in 0..2 {
            let (reports, ends) = unbounded();
            let (seen, ends) = (std::sync::Arc::default(), std::sync::Arc::new(ends));
            let witness = Witness(std::sync::Arc::clone(&seen), ends.clone());
            let report = Report { ends: reports, number: 1, output: None };
            let mut member = alloc::boxed::Box::pin(reporting(
                async move {
                    core::future::pending::<()>().await;
                    drop(witness);
                    0
                },
                report,
            ));
            let mut context = core::task::Context::from_waker(core::task::Waker::noop());
            for _ in 0..polls {
                assert!(member.as_mut().poll(&mut context).is_pending());
            }
            drop(member);
            assert_eq!(*seen.lock().unwrap(), Some(false), "after {polls} polls");
            assert!(ends.try_receive().is_ok());
        }
    }

    #[test]
    fn a_scope_waits_for_coroutines_that_are_added_while_it_waits() {
        let scope = Scope::new();
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let first = scope.enter();
        assert!(!scope.name(first.number, Cid::from_raw(7)));
        {
            let mut ended = pin!(scope.ended());
            assert!(ended.as_mut().poll(&mut context).is_pending());
            let second = scope.enter();
            drop(first);
            assert_eq!(wakes.count(), 0);
            drop(second);
            assert_eq!(wakes.count(), 1);
            assert!(ended.poll(&mut context).is_ready());
        }
        let (named, unnamed) = (scope.enter(), scope.enter());
        scope.name(named.number, Cid::from_raw(8));
        assert_eq!(scope.drop_all(), [Cid::from_raw(8)]);
        // One without a name is cancelled when it gets its name, and so is one that is added later.
        assert!(scope.name(unnamed.number, Cid::from_raw(9)));
        assert!(scope.name(scope.enter().number, Cid::from_raw(10)));
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Beside a list of ends: results come in the order of the ends, cancelled members report too, and a future
        /// that is dropped takes none.
        #[test]
        fn results_come_in_the_order_of_the_ends(steps in prop::collection::vec((0..5u8, 0..8usize), 1..200)) {
            let mut members = Members::<u64, ()>::new();
            let (mut running, mut ended) = (Vec::new(), std::collections::VecDeque::new());
            for (step, which) in steps {
                let (wakes, waker) = Wakes::counted();
                let mut context = Context::from_waker(&waker);
                match step {
                    0 => {
                        running.push(members.report());
                        members.add(());
                    }
                    1 | 2 if !running.is_empty() => {
                        let mut report = running.remove(which % running.len());
                        report.output = (step == 1).then_some(report.number);
                        ended.push_back(report.output.ok_or(Cancelled));
                        drop(report);
                    }
                    3 => {
                        let left = running.len() + ended.len();
                        prop_assert_eq!(members.running.len(), left);
                        let mut next = std::boxed::Box::pin(members.next());
                        match (next.as_mut().poll(&mut context), ended.pop_front()) {
                            (Poll::Ready(Some(output)), Some(expected)) => prop_assert_eq!(output, expected),
                            (Poll::Ready(None), None) => prop_assert_eq!(left, 0),
                            (Poll::Pending, None) => {
                                let report = running.remove(0);
                                let number = report.number;
                                drop(report);
                                prop_assert_eq!(wakes.count(), 1);
                                let output = next.as_mut().poll(&mut context);
                                prop_assert_eq!(output, Poll::Ready(Some(Err(Cancelled))), "{}", number);
                            }
                            _ => prop_assert!(false, "an end was lost or invented"),
                        }
                    }
                    4 => {
                        // Dropped without being ready, or before it was polled, it takes nothing.
                        let mut dropped = std::boxed::Box::pin(members.next());
                        if ended.is_empty() && !running.is_empty() {
                            prop_assert!(dropped.as_mut().poll(&mut context).is_pending());
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
