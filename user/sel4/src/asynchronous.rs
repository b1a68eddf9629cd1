//! Asynchronous invocations for coroutines: `page.map_async(&calls, …).await` beside `page.map(…)`.
//!
//! [`Calls`] is a [`SyscallBuffer`] whose responses the executor takes: it is a [`Source`] (the *receiving coroutine*
//! of the papers). Requests of all ready coroutines go to the kernel together. With one hart the kernel is called when
//! no coroutine is ready any more, so that one kernel entry serves all requests in flight. With several harts it is
//! called at once, works beside the program, and is called again only after it has found nothing to do for a while.
//!
//! **Adaptive choice.** A request through memory pays off when it shares its kernel entry with others. In the mode
//! [`Way::Adaptive`] an invocation goes through memory if others are in flight or another coroutine is ready. If there
//! is no other, or fewer than [`FEW`] have come together when the kernel is called, the next invocations are system
//! calls, before memory is tried again; their number doubles with each failed try.
//!
//! **A request is made by the call**, not by the first poll of its future. So a future has a reference and the number
//! of a place, three words, instead of up to eleven words of arguments: a coroutine that waits keeps its future in its
//! block, and with many of them in flight each line of a block is fetched again for each invocation.
//!
//! **Order.** Requests are carried out in the order in which they were made. An invocation that is made as a system
//! call may overtake those of other coroutines, never those of its own.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use abi_queue::SyscallResponse;
use abi_queue::syscall_buffer::RESULTS;
use abi_sel4::{Invocation, MessageInfo, ObjectType, Rights, asynchronous};

use crate::allocator::Allocator;
use crate::capability::{Notification, Page, PageTable, Slot, Thread, Untyped};
use crate::executor::{self, Source};
use crate::lock::Spin;
use crate::mapping::Window;
use crate::raw::{self, Answer, Failure};
use crate::syscall_buffer::{SyscallBuffer, result};

/// Smallest number of invocations in flight for which one call of the kernel pays off. Four pay by the clock of one
/// hart only, and with several harts cost twice the system calls.
pub const FEW: usize = 5;
/// Number of invocations that are made as system calls before memory is tried again; and the most, after several failed
/// tries.
const TRIES: u64 = 32;
const MOST_TRIES: u64 = 256;
/// More invocations than a program makes.
const ALWAYS: u64 = u64::MAX;

/// The way in which invocations are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As system calls.
    Synchronous,
    /// Through memory.
    Asynchronous,
    /// The one that is quicker for the invocations in flight.
    Adaptive,
}

/// The result of an invocation. A failure is on the heap: it is large, and a future's result is moved through each of
/// its polls.
pub type Outcome<T> = core::result::Result<T, Box<Failure>>;

impl From<Box<Failure>> for Failure {
    fn from(failure: Box<Failure>) -> Failure {
        *failure
    }
}

/// The state of a place for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlaceState {
    Free,
    /// Waits for its response.
    Waiting,
    /// Waits for its response, whose future was dropped.
    Abandoned,
    /// Has its answer, a success without words.
    Succeeded,
    /// Has its answer, which is in the place's results.
    Answered,
}

/// A place for a request.
struct RequestPlace {
    /// Is woken by the response; none before the first poll.
    waker: Option<Waker>,
    state: PlaceState,
    /// The next free place, of a free one that is not the last.
    next: u32,
}

/// No place.
const NONE: u32 = u32::MAX;

struct CallsState {
    buffer: SyscallBuffer,
    places: Box<[RequestPlace]>,
    /// The answers that are no plain successes: the describing word, and further words.
    results: Box<[(MessageInfo, [u64; RESULTS])]>,
    /// The first free place, or [`NONE`].
    free: u32,
    /// Coroutines that found no place, in their order, with a number for each.
    turned_away: VecDeque<(u64, Waker)>,
    /// The number of the next one.
    next_turned_away: u64,
    is_over: bool,
}

/// The asynchronous invocations of a thread, which runs the executor.
pub struct Calls {
    state: Spin<CallsState>,
    way: Way,
    several_harts: bool,
    doorbell: Notification,
    in_flight: AtomicUsize,
    /// Number of system calls made for these invocations, without those since `alone` was set last.
    entries: AtomicU64,
    /// Number of invocations that are made as system calls before memory is tried again. All invocations change this
    /// word alone as long as it is not 0, and so a system call costs them little more than if it were the only way.
    alone: AtomicU64,
    /// The value to which `alone` was set last.
    granted: AtomicU64,
    /// The value of `alone` after the next failed try.
    tries: AtomicU64,
}

impl Calls {
    /// Makes a buffer for `capacity` invocations in flight, a power of two from 64 to 4,096, and registers it for
    /// `thread`, whose doorbell is signalled when there are responses. `harts` is the number of harts of the machine.
    ///
    /// # Errors
    ///
    /// Slots, memory or addresses are too few, or the kernel's error.
    ///
    /// # Panics
    ///
    /// There is no buffer of this capacity.
    pub fn new(
        allocator: &mut Allocator,
        window: &mut Window,
        capacity: usize,
        (thread, doorbell): (Thread, Notification),
        harts: u64,
        way: Way,
    ) -> raw::Result<Arc<Calls>> {
        let buffer = SyscallBuffer::new(allocator, window, capacity)?;
        buffer.register(thread, doorbell)?;
        let calls = Arc::new(Calls::over(buffer, doorbell, harts, way));
        executor::add_source(calls.clone());
        Ok(calls)
    }

    fn over(buffer: SyscallBuffer, doorbell: Notification, harts: u64, way: Way) -> Calls {
        let capacity = buffer.capacity();
        let place = |next| RequestPlace { waker: None, state: PlaceState::Free, next };
        let places = (1..=capacity).map(|next| place(if next < capacity { next as u32 } else { NONE })).collect();
        let results = (0..capacity).map(|_| (MessageInfo(0), [0; RESULTS])).collect();
        let state = CallsState {
            buffer,
            places,
            results,
            free: 0,
            turned_away: VecDeque::new(),
            next_turned_away: 0,
            is_over: false,
        };
        let alone = if way == Way::Synchronous { ALWAYS } else { 0 };
        Calls {
            state: Spin::new(state),
            way,
            several_harts: harts > 1,
            doorbell,
            in_flight: AtomicUsize::new(0),
            entries: AtomicU64::new(0),
            alone: AtomicU64::new(alone),
            granted: AtomicU64::new(alone),
            tries: AtomicU64::new(TRIES),
        }
    }

    /// Ends the buffer: the executor does not look at it any more, and invocations in flight are not answered.
    pub fn end(&self) {
        self.state.lock().is_over = true;
    }

    /// Registers the buffer for a thread once more, after another buffer was registered for it.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    ///
    /// # Panics
    ///
    /// An invocation is in flight.
    pub fn register(&self, thread: Thread) -> raw::Result<()> {
        let mut state = self.state.lock();
        assert_eq!(self.in_flight(), 0, "a buffer is registered with invocations in flight");
        state.buffer.restart();
        state.buffer.register(thread, self.doorbell)
    }

    /// Returns the number of system calls made so far: calls of the kernel, and invocations that did not go through
    /// memory.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed) + self.system_calls()
    }

    /// Returns the number of invocations that were made as system calls since `alone` was set last.
    fn system_calls(&self) -> u64 {
        self.granted.load(Ordering::Relaxed) - self.alone.load(Ordering::Relaxed)
    }

    /// Sets the number of invocations that are made as system calls before memory is tried again.
    // Relaxed here and below: the worker's thread makes the invocations, and no other data depends on these words.
    fn grant(&self, invocations: u64) {
        self.entries.fetch_add(self.system_calls(), Ordering::Relaxed);
        self.granted.store(invocations, Ordering::Relaxed);
        self.alone.store(invocations, Ordering::Relaxed);
    }

    /// Returns the number of invocations in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Makes any of the invocations in [`abi_sel4::asynchronous`], with up to eight words and three capabilities.
    ///
    /// # Errors
    ///
    /// The kernel's error, as for a system call.
    ///
    /// # Cancellation
    ///
    /// Weak. The invocation takes place, and its answer is dropped.
    #[inline(always)]
    pub fn invoke<const WORDS: usize, const CAPABILITIES: usize>(
        &self,
        target: u64,
        invocation: Invocation,
        words: [u64; WORDS],
        capabilities: [u64; CAPABILITIES],
    ) -> Invoke<'_, Answer> {
        self.begin(target, invocation, &words, &capabilities)
    }

    /// Makes an invocation, or the request for it.
    #[inline(always)]
    fn begin<T: OfAnswer>(
        &self,
        target: u64,
        invocation: Invocation,
        words: &[u64],
        capabilities: &[u64],
    ) -> Invoke<'_, T> {
        let label = invocation.label(raw::numbering()).expect("every invocation that can be asynchronous has a label");
        let information = MessageInfo::new(label, capabilities.len(), words.len());
        if self.takes_system_call() {
            let outcome = T::by_system_call(target, information, words, capabilities);
            return Invoke { calls: self, progress: Progress::Made(ManuallyDrop::new(outcome)) };
        }
        self.request((target, information), words, capabilities)
    }

    /// Makes a request.
    #[inline(always)]
    fn request<T>(&self, message: (u64, MessageInfo), words: &[u64], capabilities: &[u64]) -> Invoke<'_, T> {
        let mut state = self.state.lock();
        let progress = match state.submit(message, words, capabilities) {
            Some(index) => {
                self.count(&state, 1);
                Progress::Waiting(index)
            }
            None => Progress::TurnedAway(ManuallyDrop::new(TurnedAway::new(message, words, capabilities))),
        };
        drop(state);
        Invoke { calls: self, progress }
    }

    /// Changes the number of invocations in flight. Only a holder of the lock does, so it need not be one operation.
    #[inline(always)]
    fn count(&self, _: &CallsState, difference: isize) {
        self.in_flight.store(self.in_flight().wrapping_add_signed(difference), Ordering::Relaxed);
    }

    /// Takes an answer with further words, and frees its place.
    #[cold]
    fn take_results(&self, index: usize) -> Outcome<Answer> {
        let mut state = self.state.lock();
        let (information, results) = state.results[index];
        state.release(index);
        drop(state);
        result(&SyscallResponse { cid: index as u64, information: information.0, results }).map_err(Box::new)
    }

    /// Writes a character to the kernel's console.
    ///
    /// # Cancellation
    ///
    /// Weak. After the first poll the character is written.
    pub async fn put_char(&self, character: u8) {
        let _ = self.request::<()>((0, MessageInfo::new(asynchronous::PUT_CHAR, 0, 1)), &[character.into()], &[]).await;
    }

    /// Writes a text to the kernel's console. Other output may come between its parts of 64 bytes.
    ///
    /// # Cancellation
    ///
    /// Weak. Some of the parts may have been written.
    pub async fn put_string(&self, text: &str) {
        for part in text.as_bytes().chunks(asynchronous::STRING_BYTES) {
            let mut words = [0; asynchronous::STRING_BYTES / 8];
            for (word, bytes) in words.iter_mut().zip(part.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(whole);
            }
            let _ =
                self.request::<()>((0, MessageInfo::new(asynchronous::PUT_STRING, 0, part.len())), &words, &[]).await;
        }
    }

    /// Returns whether an invocation that is made now is a system call, and counts it.
    #[inline(always)]
    fn takes_system_call(&self) -> bool {
        match self.alone.load(Ordering::Relaxed) {
            0 => self.is_alone(),
            alone => {
                self.alone.store(alone - 1, Ordering::Relaxed);
                true
            }
        }
    }

    /// Returns whether the adaptive way has no other invocation to share a kernel entry with, and counts a system call
    /// then.
    #[inline(always)]
    fn is_alone(&self) -> bool {
        if self.way == Way::Asynchronous || self.in_flight() != 0 || executor::executor().ready() != 0 {
            return false;
        }
        self.grant(TRIES);
        self.entries.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl CallsState {
    /// Takes a place for a request and makes the request; `None` if there is no place.
    #[inline(always)]
    fn submit(
        &mut self,
        (target, information): (u64, MessageInfo),
        words: &[u64],
        capabilities: &[u64],
    ) -> Option<usize> {
        let index = self.free as usize;
        // The number of no place is that of none here.
        let place = self.places.get_mut(index)?;
        // There are no more requests than places, so the ring is not full.
        self.buffer.submit_message((index as u64, target, information), words, capabilities).ok()?;
        place.state = PlaceState::Waiting;
        self.free = place.next;
        Some(index)
    }

    #[inline(always)]
    fn release(&mut self, index: usize) {
        let place = &mut self.places[index];
        place.state = PlaceState::Free;
        place.next = self.free;
        self.free = index as u32;
        if let Some((_, waker)) = self.turned_away.pop_front() {
            waker.wake();
        }
    }

    /// Takes the responses that have come, and returns their number.
    fn take(&mut self) -> usize {
        let CallsState { buffer, places, results, .. } = self;
        let mut came = 0;
        let mut abandoned = None;
        loop {
            let is_there = buffer.take_with(|cid, information, rest| {
                let index = cid as usize;
                let Some(place) = places.get_mut(index) else { return };
                if place.state != PlaceState::Waiting {
                    abandoned = Some(index);
                    return;
                }
                place.state = PlaceState::Succeeded;
                if information.0 != 0 {
                    place.state = PlaceState::Answered;
                    results[index] = (information, rest());
                }
                if let Some(waker) = place.waker.take() {
                    waker.wake();
                }
            });
            if !is_there {
                return came;
            }
            came += 1;
            if let Some(index) = abandoned.take() {
                return came + self.release_and_take(index);
            }
        }
    }

    /// Frees the place of an abandoned answer, and takes the other responses.
    #[cold]
    fn release_and_take(&mut self, index: usize) -> usize {
        self.release(index);
        self.take()
    }
}

impl Calls {
    /// Takes the responses that have come; returns whether there was one.
    fn take(&self, state: &mut CallsState) -> bool {
        let came = state.take();
        self.count(state, -(came as isize));
        came != 0
    }

    /// Calls the kernel if it sleeps; returns whether it did.
    fn call(&self, state: &CallsState) -> bool {
        let must_call = self.in_flight() != 0 && state.buffer.must_call();
        if must_call {
            self.entries.fetch_add(1, Ordering::Relaxed);
            if self.in_flight() < FEW {
                let tries = self.tries.load(Ordering::Relaxed);
                if self.way == Way::Adaptive {
                    self.grant(tries);
                }
                self.tries.store((2 * tries).min(MOST_TRIES), Ordering::Relaxed);
            } else {
                self.tries.store(TRIES, Ordering::Relaxed);
            }
            state.buffer.call();
        }
        must_call
    }
}

impl Source for Calls {
    fn attend(&self) -> bool {
        let mut state = self.state.lock();
        if state.buffer.unpublished() != 0 {
            state.buffer.publish();
        }
        let came = self.take(&mut state);
        // With one hart all ready coroutines make their requests first.
        let is_time = self.several_harts || !came && executor::executor().ready() == 0;
        (is_time && self.call(&state) && self.take(&mut state)) || came
    }

    fn fall_asleep(&self) -> bool {
        let mut state = self.state.lock();
        if state.buffer.unpublished() != 0 {
            state.buffer.publish();
        }
        self.call(&state);
        state.buffer.fall_asleep()
    }

    fn wake_up(&self) {
        self.state.lock().buffer.wake_up();
    }

    fn is_over(&self) -> bool {
        self.state.lock().is_over
    }
}

/// The progress of an invocation. Parts that must be dropped are so by [`Invoke`] alone: the compiler's own code for
/// that would be called for each future.
enum Progress<T> {
    /// Was made as a system call.
    Made(ManuallyDrop<Outcome<T>>),
    /// Over.
    Done,
    /// Waits for the answer to the request in this place.
    Waiting(usize),
    /// No place was free.
    TurnedAway(ManuallyDrop<Box<TurnedAway>>),
}

/// A request that found no place.
struct TurnedAway {
    /// The number of its waker, which is called when a place is free; `None` before the first poll.
    waker: Option<u64>,
    message: (u64, MessageInfo),
    words: Vec<u64>,
    capabilities: Vec<u64>,
}

impl TurnedAway {
    #[cold]
    #[inline(never)]
    fn new(message: (u64, MessageInfo), words: &[u64], capabilities: &[u64]) -> Box<TurnedAway> {
        Box::new(TurnedAway { waker: None, message, words: words.to_vec(), capabilities: capabilities.to_vec() })
    }
}

/// The result of an invocation.
pub trait OfAnswer: Sized + Unpin {
    /// Makes the invocation as a system call.
    #[doc(hidden)]
    fn by_system_call(target: u64, information: MessageInfo, words: &[u64], capabilities: &[u64]) -> Outcome<Self>;

    /// Takes what is wanted of an answer.
    #[doc(hidden)]
    fn of(answer: Answer) -> Self;
}

impl OfAnswer for Answer {
    #[inline(always)]
    fn by_system_call(target: u64, information: MessageInfo, words: &[u64], capabilities: &[u64]) -> Outcome<Answer> {
        raw::invoke_described(target, information, words, capabilities).map_err(Box::new)
    }

    #[inline(always)]
    fn of(answer: Answer) -> Answer {
        answer
    }
}

/// For invocations without a result.
impl OfAnswer for () {
    #[inline(always)]
    fn by_system_call(target: u64, information: MessageInfo, words: &[u64], capabilities: &[u64]) -> Outcome<()> {
        raw::command(target, information, words, capabilities).map_err(failed)
    }

    #[inline(always)]
    fn of(_: Answer) {}
}

/// The future of an invocation.
#[must_use = "the invocation takes place, but its answer is lost"]
pub struct Invoke<'a, T> {
    calls: &'a Calls,
    progress: Progress<T>,
}

/// The future of an invocation without a result.
pub type Command<'a> = Invoke<'a, ()>;

// A coroutine that waits keeps it in its block.
const _: () = assert!(size_of::<Command<'_>>() == 24);

impl<T: OfAnswer> Invoke<'_, T> {
    /// Looks for the answer in a place.
    #[inline(always)]
    fn look(&mut self, index: usize, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        let calls = self.calls;
        let mut state = calls.state.lock();
        let place = &mut state.places[index];
        match place.state {
            PlaceState::Succeeded => {
                self.progress = Progress::Done;
                state.release(index);
                Poll::Ready(Ok(T::of(Answer { length: 0, registers: [0; 4] })))
            }
            PlaceState::Answered => {
                self.progress = Progress::Done;
                drop(state);
                Poll::Ready(calls.take_results(index).map(T::of))
            }
            PlaceState::Free | PlaceState::Waiting | PlaceState::Abandoned => {
                match &mut place.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    /// Polls an invocation that waits for no answer.
    #[inline(always)]
    fn look_for_place(&mut self, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        match core::mem::replace(&mut self.progress, Progress::Done) {
            Progress::Made(outcome) => Poll::Ready(ManuallyDrop::into_inner(outcome)),
            Progress::TurnedAway(request) => {
                self.progress = self.calls.try_again(ManuallyDrop::into_inner(request), context);
                Poll::Pending
            }
            Progress::Waiting(_) | Progress::Done => panic!("an invocation is polled after its end"),
        }
    }
}

impl<T: OfAnswer> Future for Invoke<'_, T> {
    type Output = Outcome<T>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        match self.progress {
            Progress::Waiting(index) => self.look(index, context),
            _ => self.look_for_place(context),
        }
    }
}

impl<T> Invoke<'_, T> {
    /// Drops an invocation that is not over.
    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        match core::mem::replace(&mut self.progress, Progress::Done) {
            Progress::Waiting(index) => self.calls.abandon(index),
            Progress::TurnedAway(request) => {
                let request = ManuallyDrop::into_inner(request);
                self.calls.give_up(&request);
            }
            Progress::Made(outcome) => drop(ManuallyDrop::into_inner(outcome)),
            Progress::Done => {}
        }
    }
}

impl<T> Drop for Invoke<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(self.progress, Progress::Done) {
            self.abandon();
        }
    }
}

impl Calls {
    /// Makes a request that had found no place, or waits for one.
    #[cold]
    #[inline(never)]
    fn try_again<T>(&self, mut request: Box<TurnedAway>, context: &mut Context<'_>) -> Progress<T> {
        let mut state = self.state.lock();
        if let Some(number) = request.waker {
            state.turned_away.retain(|(other, _)| *other != number);
        }
        match state.submit(request.message, &request.words, &request.capabilities) {
            Some(index) => {
                self.count(&state, 1);
                state.places[index].waker = Some(context.waker().clone());
                Progress::Waiting(index)
            }
            None => {
                let number = state.next_turned_away;
                state.next_turned_away += 1;
                state.turned_away.push_back((number, context.waker().clone()));
                request.waker = Some(number);
                Progress::TurnedAway(ManuallyDrop::new(request))
            }
        }
    }

    /// Abandons the invocation in a place, whose future is dropped.
    #[cold]
    fn abandon(&self, index: usize) {
        let mut state = self.state.lock();
        state.places[index].waker = None;
        match state.places[index].state {
            PlaceState::Succeeded | PlaceState::Answered => state.release(index),
            _ => state.places[index].state = PlaceState::Abandoned,
        }
    }

    /// Gives up a request that found no place, and whose future is dropped.
    #[cold]
    fn give_up(&self, request: &TurnedAway) {
        let mut state = self.state.lock();
        let Some(number) = request.waker else { return };
        state.turned_away.retain(|(other, _)| *other != number);
        // It may have been woken for a place that another invocation waits for too.
        if state.free != NONE
            && let Some((_, next)) = state.turned_away.pop_front()
        {
            next.wake();
        }
    }
}

#[cold]
#[inline(never)]
fn failed(delivered: raw::Delivered) -> Box<Failure> {
    Box::new(raw::failure(delivered))
}

macro_rules! asynchronous {
    ($($(#[doc = $text:literal])* $corresponding:literal $kind:ident $name:ident ($($argument:ident: $type:ty),*)
        => |$own:ident| $target:expr, $invocation:ident, [$($word:expr),*], [$($capability:expr),*];)*) => {$(
        impl $kind {
            $(#[doc = $text])*
            ///
            #[doc = concat!("Corresponds to `", $corresponding, "`.")]
            ///
            /// # Errors
            ///
            /// As the synchronous invocation.
            ///
            /// # Cancellation
            ///
            /// Weak, as [`Calls::invoke`].
            #[doc(alias = $corresponding)]
            #[inline(always)]
            pub fn $name(self, calls: &Calls $(, $argument: $type)*) -> Command<'_> {
                let $own = self;
                calls.begin($target, Invocation::$invocation, &[$($word),*], &[$($capability),*])
            }
        }
    )*};
}

asynchronous! {
    /// [`retype`](Untyped::retype), asynchronously.
    "seL4_Untyped_Retype"
    Untyped retype_async(object: ObjectType, size_bits: usize, node: Slot, offset: u64, count: u64)
        => |own| own.pointer(), UntypedRetype,
        [object.number() as u64, size_bits as u64, node.index, node.depth, offset, count], [node.root.pointer()];
    /// [`bind_notification`](Thread::bind_notification), asynchronously.
    "seL4_TCB_BindNotification"
    Thread bind_notification_async(notification: Notification)
        => |own| own.pointer(), TcbBindNotification, [], [notification.pointer()];
    /// [`unbind_notification`](Thread::unbind_notification), asynchronously.
    "seL4_TCB_UnbindNotification"
    Thread unbind_notification_async() => |own| own.pointer(), TcbUnbindNotification, [], [];
    /// [`map`](PageTable::map), asynchronously.
    "seL4_RISCV_PageTable_Map"
    PageTable map_async(space: PageTable, address: u64, attributes: u64)
        => |own| own.pointer(), PageTableMap, [address, attributes], [space.pointer()];
    /// [`unmap`](PageTable::unmap), asynchronously.
    "seL4_RISCV_PageTable_Unmap"
    PageTable unmap_async() => |own| own.pointer(), PageTableUnmap, [], [];
    /// [`map`](Page::map), asynchronously.
    "seL4_RISCV_Page_Map"
    Page map_async(space: PageTable, address: u64, rights: Rights, attributes: u64)
        => |own| own.pointer(), PageMap, [address, rights.word(), attributes], [space.pointer()];
    /// [`unmap`](Page::unmap), asynchronously.
    "seL4_RISCV_Page_Unmap"
    Page unmap_async() => |own| own.pointer(), PageUnmap, [], [];
    /// [`revoke`](Slot::revoke), asynchronously.
    "seL4_CNode_Revoke"
    Slot revoke_async() => |own| own.root.pointer(), CNodeRevoke, [own.index, own.depth], [];
    /// [`delete`](Slot::delete), asynchronously.
    "seL4_CNode_Delete"
    Slot delete_async() => |own| own.root.pointer(), CNodeDelete, [own.index, own.depth], [];
    /// [`cancel_badged_sends`](Slot::cancel_badged_sends), asynchronously.
    "seL4_CNode_CancelBadgedSends"
    Slot cancel_badged_sends_async() => |own| own.root.pointer(), CNodeCancelBadgedSends, [own.index, own.depth], [];
    /// [`copy_from`](Slot::copy_from), asynchronously.
    "seL4_CNode_Copy"
    Slot copy_from_async(source: Slot, rights: Rights)
        => |own| own.root.pointer(), CNodeCopy,
        [own.index, own.depth, source.index, source.depth, rights.word()], [source.root.pointer()];
    /// [`mint_from`](Slot::mint_from), asynchronously.
    "seL4_CNode_Mint"
    Slot mint_from_async(source: Slot, rights: Rights, badge: u64)
        => |own| own.root.pointer(), CNodeMint,
        [own.index, own.depth, source.index, source.depth, rights.word(), badge], [source.root.pointer()];
    /// [`move_from`](Slot::move_from), asynchronously.
    "seL4_CNode_Move"
    Slot move_from_async(source: Slot)
        => |own| own.root.pointer(), CNodeMove,
        [own.index, own.depth, source.index, source.depth], [source.root.pointer()];
    /// [`mutate_from`](Slot::mutate_from), asynchronously.
    "seL4_CNode_Mutate"
    Slot mutate_from_async(source: Slot, guard: u64)
        => |own| own.root.pointer(), CNodeMutate,
        [own.index, own.depth, source.index, source.depth, guard], [source.root.pointer()];
    /// [`rotate_from`](Slot::rotate_from), asynchronously.
    "seL4_CNode_Rotate"
    Slot rotate_from_async(badge: u64, pivot: Slot, pivot_badge: u64, source: Slot)
        => |own| own.root.pointer(), CNodeRotate,
        [own.index, own.depth, badge, pivot.index, pivot.depth, pivot_badge, source.index, source.depth],
        [pivot.root.pointer(), source.root.pointer()];
}

impl Page {
    /// [`physical_address`](Page::physical_address), asynchronously.
    ///
    /// Corresponds to `seL4_RISCV_Page_GetAddress`.
    ///
    /// # Errors
    ///
    /// As the synchronous invocation.
    ///
    /// # Cancellation
    ///
    /// Weak, as [`Calls::invoke`].
    #[doc(alias = "seL4_RISCV_Page_GetAddress")]
    pub async fn physical_address_async(self, calls: &Calls) -> Outcome<u64> {
        calls.invoke(self.pointer(), Invocation::PageGetAddress, [], []).await.map(|answer| answer.registers[0])
    }
}
