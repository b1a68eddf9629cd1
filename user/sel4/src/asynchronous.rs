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
//! **Order.** Requests are carried out in the order in which they were made. An invocation that is made as a system
//! call may overtake those of other coroutines, never those of its own, which has awaited them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
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
enum RequestPlace {
    /// Free; the number of the next free place.
    Free(Option<usize>),
    /// Waits for its response, and then wakes this waker.
    Waiting(Waker),
    /// Waits for its response, whose future was dropped.
    Abandoned,
    /// Has its answer, with the describing word. Further words are in the place's results.
    Answered(MessageInfo),
}

struct CallsState {
    buffer: SyscallBuffer,
    places: Box<[RequestPlace]>,
    /// Further words of answers that have any.
    results: Box<[[u64; RESULTS]]>,
    free: Option<usize>,
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
        let places = (1..=capacity).map(|next| RequestPlace::Free((next < capacity).then_some(next))).collect();
        let results = (0..capacity).map(|_| [0; RESULTS]).collect();
        let state = CallsState {
            buffer,
            places,
            results,
            free: Some(0),
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
    /// Weak. Before the first poll nothing is invoked; after it the invocation takes place, and its answer is dropped.
    #[inline(always)]
    pub fn invoke<const WORDS: usize, const CAPABILITIES: usize>(
        &self,
        target: u64,
        invocation: Invocation,
        words: [u64; WORDS],
        capabilities: [u64; CAPABILITIES],
    ) -> Invoke<'_, WORDS, CAPABILITIES> {
        let label = invocation.label(raw::numbering()).expect("every invocation that can be asynchronous has a label");
        let information = MessageInfo::new(label, CAPABILITIES, WORDS);
        Invoke { calls: self, target, information, words, capabilities, progress: Progress::New }
    }

    /// Makes a request of the kernel that is no invocation of a capability, and that cannot fail.
    async fn tell<const WORDS: usize>(&self, information: MessageInfo, words: [u64; WORDS]) {
        let progress = Progress::NewThroughMemory;
        let _ = Invoke { calls: self, target: 0, information, words, capabilities: [], progress }.await;
    }

    /// Takes an answer with further words, and frees its place.
    #[cold]
    fn take_results(&self, index: usize, information: MessageInfo) -> Outcome<Answer> {
        let mut state = self.state.lock();
        let results = state.results[index];
        state.release(index);
        result(&SyscallResponse { cid: index as u64, information: information.0, results }).map_err(Box::new)
    }

    /// Writes a character to the kernel's console.
    ///
    /// # Cancellation
    ///
    /// Weak. After the first poll the character is written.
    pub async fn put_char(&self, character: u8) {
        self.tell(MessageInfo::new(asynchronous::PUT_CHAR, 0, 1), [character.into()]).await;
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
            self.tell(MessageInfo::new(asynchronous::PUT_STRING, 0, part.len()), words).await;
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
        waker: &Waker,
    ) -> Option<usize> {
        let index = self.free?;
        // There are no more requests than places, so the ring is not full.
        self.buffer.submit_message((index as u64, target, information), words, capabilities).ok()?;
        self.free = match core::mem::replace(&mut self.places[index], RequestPlace::Waiting(waker.clone())) {
            RequestPlace::Free(next) => next,
            _ => None,
        };
        Some(index)
    }

    #[inline(always)]
    fn release(&mut self, index: usize) {
        self.places[index] = RequestPlace::Free(self.free);
        self.free = Some(index);
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
                match core::mem::replace(place, RequestPlace::Answered(information)) {
                    RequestPlace::Waiting(waker) => {
                        if information.0 != 0 {
                            results[index] = rest();
                        }
                        waker.wake();
                    }
                    RequestPlace::Free(_) | RequestPlace::Abandoned | RequestPlace::Answered(_) => {
                        abandoned = Some(index)
                    }
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
        self.in_flight.fetch_sub(came, Ordering::Relaxed);
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

/// The progress of an invocation.
#[derive(Clone, Copy)]
enum Progress {
    /// Not begun.
    New,
    /// Not begun, and no system call can make it.
    NewThroughMemory,
    /// Over.
    Done,
    /// Waits for the answer to the request in this place.
    Waiting(usize),
    /// No place was free; the waker with this number is called when one is.
    TurnedAway(u64),
}

/// The future of an invocation. Written by hand, because the arguments of an `async` function are moved once for each
/// function that they pass through.
#[must_use = "nothing is invoked before it is awaited"]
pub struct Invoke<'a, const WORDS: usize, const CAPABILITIES: usize> {
    calls: &'a Calls,
    target: u64,
    information: MessageInfo,
    words: [u64; WORDS],
    capabilities: [u64; CAPABILITIES],
    progress: Progress,
}

impl<const WORDS: usize, const CAPABILITIES: usize> Invoke<'_, WORDS, CAPABILITIES> {
    /// Polls. `T` is the invocation's result, of a system call or of an answer.
    #[inline(always)]
    fn progress<T>(
        &mut self,
        context: &mut Context<'_>,
        system_call: impl FnOnce(u64, MessageInfo, &[u64], &[u64]) -> Outcome<T>,
        of_answer: impl FnOnce(Answer) -> T,
    ) -> Poll<Outcome<T>> {
        match self.progress {
            Progress::New if self.calls.takes_system_call() => {
                self.progress = Progress::Done;
                return Poll::Ready(system_call(self.target, self.information, &self.words, &self.capabilities));
            }
            Progress::Waiting(index) => return self.look(index, context, of_answer),
            Progress::New | Progress::NewThroughMemory => {}
            Progress::TurnedAway(number) => self.calls.forget_waker(number),
            Progress::Done => panic!("an invocation is polled after its end"),
        }
        self.request(context);
        Poll::Pending
    }

    /// Makes the request, or waits for a place for it.
    #[inline(always)]
    fn request(&mut self, context: &mut Context<'_>) {
        let calls = self.calls;
        let mut state = calls.state.lock();
        match state.submit((self.target, self.information), &self.words, &self.capabilities, context.waker()) {
            Some(index) => {
                calls.in_flight.fetch_add(1, Ordering::Relaxed);
                self.progress = Progress::Waiting(index);
            }
            None => {
                let number = state.next_turned_away;
                state.next_turned_away += 1;
                state.turned_away.push_back((number, context.waker().clone()));
                self.progress = Progress::TurnedAway(number);
            }
        }
    }

    /// Looks for the answer in a place.
    #[inline(always)]
    fn look<T>(
        &mut self,
        index: usize,
        context: &mut Context<'_>,
        of_answer: impl FnOnce(Answer) -> T,
    ) -> Poll<Outcome<T>> {
        let calls = self.calls;
        let mut state = calls.state.lock();
        match &mut state.places[index] {
            RequestPlace::Waiting(waker) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            RequestPlace::Answered(information) => {
                let information = *information;
                self.progress = Progress::Done;
                if information.0 == 0 {
                    state.release(index);
                    return Poll::Ready(Ok(of_answer(Answer { length: 0, registers: [0; 4] })));
                }
                drop(state);
                Poll::Ready(calls.take_results(index, information).map(of_answer))
            }
            RequestPlace::Free(_) | RequestPlace::Abandoned => unreachable!("the place is this request's"),
        }
    }
}

impl<const WORDS: usize, const CAPABILITIES: usize> Future for Invoke<'_, WORDS, CAPABILITIES> {
    type Output = Outcome<Answer>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<Answer>> {
        let call = |target, information, words: &[u64], capabilities: &[u64]| {
            raw::invoke_described(target, information, words, capabilities).map_err(Box::new)
        };
        self.progress(context, call, |answer| answer)
    }
}

impl<const WORDS: usize, const CAPABILITIES: usize> Drop for Invoke<'_, WORDS, CAPABILITIES> {
    #[inline(always)]
    fn drop(&mut self) {
        if matches!(self.progress, Progress::Waiting(_) | Progress::TurnedAway(_)) {
            self.calls.abandon(self.progress);
        }
    }
}

impl Calls {
    /// Removes the waker of an invocation that found no place.
    #[cold]
    fn forget_waker(&self, turned_away: u64) {
        self.state.lock().turned_away.retain(|(number, _)| *number != turned_away);
    }

    /// Abandons an invocation whose future is dropped.
    #[cold]
    fn abandon(&self, progress: Progress) {
        let mut state = self.state.lock();
        match progress {
            Progress::Waiting(index) => match state.places[index] {
                RequestPlace::Answered(_) => state.release(index),
                _ => state.places[index] = RequestPlace::Abandoned,
            },
            Progress::TurnedAway(turned_away) => {
                state.turned_away.retain(|(number, _)| *number != turned_away);
                // It may have been woken for a place that another invocation waits for too.
                if state.free.is_some()
                    && let Some((_, next)) = state.turned_away.pop_front()
                {
                    next.wake();
                }
            }
            Progress::New | Progress::NewThroughMemory | Progress::Done => {}
        }
    }
}

/// The future of an invocation without a result.
#[must_use = "nothing is invoked before it is awaited"]
pub struct Command<'a, const WORDS: usize, const CAPABILITIES: usize>(Invoke<'a, WORDS, CAPABILITIES>);

impl<const WORDS: usize, const CAPABILITIES: usize> Future for Command<'_, WORDS, CAPABILITIES> {
    type Output = Outcome<()>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<()>> {
        let call = |target, information, words: &[u64], capabilities: &[u64]| {
            raw::command(target, information, words, capabilities).map_err(failed)
        };
        self.0.progress(context, call, drop)
    }
}

#[cold]
#[inline(never)]
fn failed(delivered: raw::Delivered) -> Box<Failure> {
    Box::new(raw::failure(delivered))
}

macro_rules! count {
    ($($part:expr),*) => { <[&str]>::len(&[$(stringify!($part)),*]) };
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
            pub fn $name(self, calls: &Calls $(, $argument: $type)*)
                -> Command<'_, { count!($($word),*) }, { count!($($capability),*) }>
            {
                let $own = self;
                Command(calls.invoke($target, Invocation::$invocation, [$($word),*], [$($capability),*]))
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
