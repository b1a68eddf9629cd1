//! Asynchronous invocations for coroutines: `page.map_async(&calls, …).await` beside `page.map(…)`.
//!
//! [`Calls`] is a [`SyscallBuffer`] whose responses the executor takes: it is a [`Source`], and so the receiving coroutine of the papers.
//! Requests of all coroutines that are ready go to the kernel together. With one hart it is called when no coroutine has anything
//! more to do, so that one kernel entry serves all that is in flight; with several it is called at once, works beside the program, and is
//! called again only when it has found nothing to do for a while.
//!
//! **The choice.** A request through memory pays off when others share its way into the kernel. In the mode [`Way::Adaptive`] an
//! invocation waits for others to join it if any are in flight or another coroutine is ready. If there is nobody, or fewer than
//! [`FEW`] have come together when the kernel is called, the next invocations are system calls, before that is tried again.
//!
//! **Order.** Requests are carried out in the order in which they were made. An invocation that is made as a system call may overtake those of
//! other coroutines, never those of its own, which has awaited them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use abi_queue::{SyscallRequest, SyscallResponse};
use abi_sel4::{Invocation, ObjectType, Rights, asynchronous};
use spin::Mutex;

use crate::allocator::Allocator;
use crate::capability::{Notification, Page, PageTable, Slot, Thread, Untyped};
use crate::executor::{self, Source};
use crate::mapping::Window;
use crate::raw::{self, Answer, Result};
use crate::syscall_buffer::{SyscallBuffer, request, request_of_label, result};

/// How many invocations have to share a call of the kernel for the way through memory to pay off.
pub const FEW: usize = 4;
/// How many invocations are made as system calls before it is tried again whether others join.
const TRIES: u64 = 32;

/// How invocations are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As system calls.
    Synchronous,
    /// Through memory.
    Asynchronous,
    /// Whichever is quicker for what is in flight.
    Adaptive,
}

/// What a request waits for.
enum Place {
    /// Nothing; the next free place.
    Free(Option<usize>),
    /// Its response, and then this.
    Waiting(Waker),
    /// Its response, for nobody: the future was dropped.
    Abandoned,
    /// To be taken.
    Answered(SyscallResponse),
}

struct State {
    buffer: SyscallBuffer,
    places: Box<[Place]>,
    free: Option<usize>,
    /// Who found no place.
    turned_away: VecDeque<Waker>,
    is_over: bool,
}

/// The asynchronous invocations of a thread, which runs the executor.
pub struct Calls {
    state: Mutex<State>,
    way: Way,
    several_harts: bool,
    doorbell: Notification,
    in_flight: AtomicUsize,
    /// System calls that were made for it.
    entries: AtomicU64,
    /// How many invocations are made as system calls before it is tried again whether others join.
    alone: AtomicU64,
}

impl Calls {
    /// Makes a buffer for so many invocations in flight, a power of two from 64 to 4,096, and registers it for `thread`, whose doorbell is
    /// signalled when there are responses. `harts` is how many the machine has.
    ///
    /// # Errors
    ///
    /// Slots, memory or addresses are too few, or what the kernel says.
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
    ) -> Result<Arc<Calls>> {
        let buffer = SyscallBuffer::new(allocator, window, capacity)?;
        buffer.register(thread, doorbell)?;
        let calls = Arc::new(Calls::over(buffer, doorbell, harts, way));
        executor::add_source(calls.clone());
        Ok(calls)
    }

    fn over(buffer: SyscallBuffer, doorbell: Notification, harts: u64, way: Way) -> Calls {
        let capacity = buffer.capacity();
        let places = (1..=capacity).map(|next| Place::Free((next < capacity).then_some(next))).collect();
        let state = State { buffer, places, free: Some(0), turned_away: VecDeque::new(), is_over: false };
        Calls {
            state: Mutex::new(state),
            way,
            several_harts: harts > 1,
            doorbell,
            in_flight: AtomicUsize::new(0),
            entries: AtomicU64::new(0),
            alone: AtomicU64::new(0),
        }
    }

    /// Ends it: the executor does not look at the buffer any more. What is in flight is not answered.
    pub fn end(&self) {
        self.state.lock().is_over = true;
    }

    /// Registers the buffer for a thread once more, after another one took its place.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// Something is in flight.
    pub fn register(&self, thread: Thread) -> Result<()> {
        let mut state = self.state.lock();
        assert_eq!(self.in_flight(), 0, "a buffer is registered with invocations in flight");
        state.buffer.restart();
        state.buffer.register(thread, self.doorbell)
    }

    /// How many system calls were made for it so far: calls of the kernel, and invocations that did not go through memory.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// How many invocations are in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Makes any invocation of those in [`abi_sel4::asynchronous`].
    ///
    /// # Errors
    ///
    /// What the kernel says, as for a system call.
    ///
    /// # Cancellation
    ///
    /// Before the first poll nothing is invoked; after it the invocation takes place, and its answer is dropped.
    ///
    /// # Panics
    ///
    /// It has more than eight words or three capabilities.
    #[inline(always)]
    pub async fn invoke(
        &self,
        target: u64,
        invocation: Invocation,
        words: &[u64],
        capabilities: &[u64],
    ) -> Result<Answer> {
        if !self.goes_through_memory() {
            self.entries.fetch_add(1, Ordering::Relaxed);
            return raw::invoke(target, invocation, words, capabilities);
        }
        self.submit(request(0, target, invocation, words, capabilities)).await
    }

    fn submit(&self, request: SyscallRequest) -> Invoke<'_> {
        Invoke { calls: self, progress: Progress::New { request, turned_away: None } }
    }

    /// Writes a character to the kernel's console.
    pub async fn put_char(&self, character: u8) {
        let request = request_of_label(0, 0, asynchronous::PUT_CHAR, &[character.into()], &[]);
        // The kernel knows no error.
        let _ = self.submit(request).await;
    }

    /// Writes a text to the kernel's console. Others may write between its parts of 64 bytes.
    pub async fn put_string(&self, text: &str) {
        for part in text.as_bytes().chunks(asynchronous::STRING_BYTES) {
            let information = abi_sel4::MessageInfo::new(asynchronous::PUT_STRING, 0, part.len()).0;
            let mut request = SyscallRequest { information, ..SyscallRequest::default() };
            for (word, bytes) in request.arguments.iter_mut().zip(part.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(whole);
            }
            let _ = self.submit(request).await;
        }
    }

    /// Whether an invocation that is made now goes through memory.
    #[inline(always)]
    fn goes_through_memory(&self) -> bool {
        match self.way {
            Way::Synchronous => false,
            Way::Asynchronous => true,
            Way::Adaptive => match self.alone.load(Ordering::Relaxed) {
                0 if self.in_flight() != 0 || executor::executor().ready() != 0 => true,
                0 => {
                    self.alone.store(TRIES, Ordering::Relaxed);
                    false
                }
                alone => {
                    self.alone.store(alone - 1, Ordering::Relaxed);
                    false
                }
            },
        }
    }
}

impl State {
    /// Takes a place for a request and makes it; `false` if there is none.
    #[inline(always)]
    fn submit(&mut self, request: &mut SyscallRequest, waker: &Waker) -> bool {
        let Some(index) = self.free else {
            self.turned_away.push_back(waker.clone());
            return false;
        };
        request.cid = index as u64;
        if self.buffer.submit(*request).is_err() {
            // There are no more requests than places, so that this cannot be.
            self.turned_away.push_back(waker.clone());
            return false;
        }
        let place = core::mem::replace(&mut self.places[index], Place::Waiting(waker.clone()));
        self.free = match place {
            Place::Free(next) => next,
            _ => None,
        };
        true
    }

    fn release(&mut self, index: usize) {
        self.places[index] = Place::Free(self.free);
        self.free = Some(index);
        if let Some(waker) = self.turned_away.pop_front() {
            waker.wake();
        }
    }

    /// Takes what has come; says how much it was.
    fn take(&mut self) -> usize {
        let mut came = 0;
        while let Some(response) = self.buffer.take() {
            came += 1;
            let index = response.cid as usize;
            let Some(place) = self.places.get_mut(index) else { continue };
            match core::mem::replace(place, Place::Answered(response)) {
                Place::Waiting(waker) => waker.wake(),
                _ => self.release(index),
            }
        }
        came
    }
}

impl Calls {
    /// Takes what has come; says whether anything had.
    fn take(&self, state: &mut State) -> bool {
        let came = state.take();
        self.in_flight.fetch_sub(came, Ordering::Relaxed);
        came != 0
    }

    /// Has the kernel look, if it sleeps; says whether it had to.
    fn call(&self, state: &State) -> bool {
        let must_call = self.in_flight() != 0 && state.buffer.must_call();
        if must_call {
            self.entries.fetch_add(1, Ordering::Relaxed);
            if self.in_flight() < FEW {
                self.alone.store(TRIES, Ordering::Relaxed);
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
        // With one hart everything that is ready makes its requests first.
        let is_time = self.several_harts || !came && executor::executor().ready() == 0;
        (is_time && self.call(&state) && self.take(&mut state)) || came
    }

    fn fall_asleep(&self) -> bool {
        let state = self.state.lock();
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

enum Progress {
    New {
        request: SyscallRequest,
        /// Who is to be woken when there is a place, if there was none.
        turned_away: Option<Waker>,
    },
    Waiting {
        index: usize,
    },
    Done,
}

/// The future of an invocation.
pub struct Invoke<'a> {
    calls: &'a Calls,
    progress: Progress,
}

impl Future for Invoke<'_> {
    type Output = Result<Answer>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Answer>> {
        let calls = self.calls;
        match &mut self.progress {
            Progress::New { request, turned_away } => {
                let mut state = calls.state.lock();
                if state.submit(request, context.waker()) {
                    calls.in_flight.fetch_add(1, Ordering::Relaxed);
                    let index = request.cid as usize;
                    self.progress = Progress::Waiting { index };
                } else {
                    *turned_away = Some(context.waker().clone());
                }
                Poll::Pending
            }
            Progress::Waiting { index } => {
                let index = *index;
                let mut state = calls.state.lock();
                let answer = match &mut state.places[index] {
                    Place::Answered(response) => result(response),
                    Place::Waiting(waker) => {
                        waker.clone_from(context.waker());
                        return Poll::Pending;
                    }
                    Place::Free(_) | Place::Abandoned => return Poll::Pending,
                };
                state.release(index);
                drop(state);
                self.progress = Progress::Done;
                Poll::Ready(answer)
            }
            Progress::Done => panic!("an invocation is polled after its end"),
        }
    }
}

impl Drop for Invoke<'_> {
    fn drop(&mut self) {
        match &self.progress {
            Progress::New { turned_away: Some(waker), .. } => {
                let mut state = self.calls.state.lock();
                state.turned_away.retain(|other| !other.will_wake(waker));
                // It may have been woken for a place that somebody else waits for too.
                if state.free.is_some()
                    && let Some(next) = state.turned_away.pop_front()
                {
                    next.wake();
                }
            }
            Progress::Waiting { index } => {
                let mut state = self.calls.state.lock();
                match state.places[*index] {
                    Place::Answered(_) => state.release(*index),
                    _ => state.places[*index] = Place::Abandoned,
                }
            }
            Progress::New { .. } | Progress::Done => {}
        }
    }
}

macro_rules! asynchronous {
    ($($(#[doc = $text:literal])* $kind:ident $name:ident ($($argument:ident: $type:ty),*)
        => |$own:ident| $target:expr, $invocation:ident, [$($word:expr),*], [$($capability:expr),*];)*) => {$(
        impl $kind {
            $(#[doc = $text])*
            ///
            /// # Errors
            ///
            /// As the synchronous invocation.
            ///
            /// # Cancellation
            ///
            /// As [`Calls::invoke`].
            #[inline(always)]
            pub async fn $name(self, calls: &Calls $(, $argument: $type)*) -> Result<()> {
                let $own = self;
                calls.invoke($target, Invocation::$invocation, &[$($word),*], &[$($capability),*]).await.map(drop)
            }
        }
    )*};
}

asynchronous! {
    /// [`retype`](Untyped::retype), asynchronously.
    Untyped retype_async(object: ObjectType, size_bits: usize, node: Slot, offset: u64, count: u64)
        => |own| own.pointer(), UntypedRetype,
        [object.number() as u64, size_bits as u64, node.index, node.depth, offset, count], [node.root.pointer()];
    /// [`bind_notification`](Thread::bind_notification), asynchronously.
    Thread bind_notification_async(notification: Notification)
        => |own| own.pointer(), TcbBindNotification, [], [notification.pointer()];
    /// [`unbind_notification`](Thread::unbind_notification), asynchronously.
    Thread unbind_notification_async() => |own| own.pointer(), TcbUnbindNotification, [], [];
    /// [`map`](PageTable::map), asynchronously.
    PageTable map_async(space: PageTable, address: u64, attributes: u64)
        => |own| own.pointer(), PageTableMap, [address, attributes], [space.pointer()];
    /// [`unmap`](PageTable::unmap), asynchronously.
    PageTable unmap_async() => |own| own.pointer(), PageTableUnmap, [], [];
    /// [`map`](Page::map), asynchronously.
    Page map_async(space: PageTable, address: u64, rights: Rights, attributes: u64)
        => |own| own.pointer(), PageMap, [address, rights.0, attributes], [space.pointer()];
    /// [`unmap`](Page::unmap), asynchronously.
    Page unmap_async() => |own| own.pointer(), PageUnmap, [], [];
    /// [`revoke`](Slot::revoke), asynchronously.
    Slot revoke_async() => |own| own.root.pointer(), CNodeRevoke, [own.index, own.depth], [];
    /// [`delete`](Slot::delete), asynchronously.
    Slot delete_async() => |own| own.root.pointer(), CNodeDelete, [own.index, own.depth], [];
    /// [`cancel_badged_sends`](Slot::cancel_badged_sends), asynchronously.
    Slot cancel_badged_sends_async() => |own| own.root.pointer(), CNodeCancelBadgedSends, [own.index, own.depth], [];
    /// [`copy_from`](Slot::copy_from), asynchronously.
    Slot copy_from_async(source: Slot, rights: Rights)
        => |own| own.root.pointer(), CNodeCopy,
        [own.index, own.depth, source.index, source.depth, rights.0], [source.root.pointer()];
    /// [`mint_from`](Slot::mint_from), asynchronously.
    Slot mint_from_async(source: Slot, rights: Rights, badge: u64)
        => |own| own.root.pointer(), CNodeMint,
        [own.index, own.depth, source.index, source.depth, rights.0, badge], [source.root.pointer()];
    /// [`move_from`](Slot::move_from), asynchronously.
    Slot move_from_async(source: Slot)
        => |own| own.root.pointer(), CNodeMove,
        [own.index, own.depth, source.index, source.depth], [source.root.pointer()];
    /// [`mutate_from`](Slot::mutate_from), asynchronously.
    Slot mutate_from_async(source: Slot, guard: u64)
        => |own| own.root.pointer(), CNodeMutate,
        [own.index, own.depth, source.index, source.depth, guard], [source.root.pointer()];
    /// [`rotate_from`](Slot::rotate_from), asynchronously.
    Slot rotate_from_async(badge: u64, pivot: Slot, pivot_badge: u64, source: Slot)
        => |own| own.root.pointer(), CNodeRotate,
        [own.index, own.depth, badge, pivot.index, pivot.depth, pivot_badge, source.index, source.depth],
        [pivot.root.pointer(), source.root.pointer()];
}

impl Page {
    /// [`physical_address`](Page::physical_address), asynchronously.
    ///
    /// # Errors
    ///
    /// As the synchronous invocation.
    ///
    /// # Cancellation
    ///
    /// As [`Calls::invoke`].
    pub async fn physical_address_async(self, calls: &Calls) -> Result<u64> {
        calls.invoke(self.pointer(), Invocation::PageGetAddress, &[], &[]).await.map(|answer| answer.registers[0])
    }
}
