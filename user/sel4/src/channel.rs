//! Asynchronous IPC: calls between two programs through rings that they share, without the kernel while both run.
//!
//! ```text
//!   client program                    shared memory                    server program
//!   client.call(message).await  -->   requests    |||||   -->   a coroutine for each request
//!   (any number at a time)      <--   responses   |||||   <--   its answer, in any order
//!         doorbell  <------------- signal, if it sleeps ------------->  doorbell
//! ```
//!
//! For the layout see [`abi_queue::channel`], for the algorithm of a ring the crate `ring`, and for the order of
//! waiting [`crate::executor`]; both ends are its [sources](crate::executor::Source).
//!
//! **Set-up.** A program with capabilities to both programs makes the connection ([`connect`], [`connect_to`]): it maps
//! the same pages for both and gives each the right to signal the other's notification, nothing more. Each end gets the
//! capacity from its maker; neither reads it from the shared memory.
//!
//! **Requests** are words: seven of them each way. Larger data is in the memory behind the rings ([`End::data`]), at a
//! place given by the words; both sides copy it before they look at it.
//!
//! **Back-pressure.** A client has at most as many calls in flight as the rings have entries. One more waits in `call`
//! until an answer has come and earlier waiting calls have got their places. No call is lost, and the server needs
//! memory for at most that many calls of each client.
//!
//! **Priorities.** A server spawns [`Server::serve`] at the priority that it assigns to the client: all requests of a
//! connection have that one, whatever the client's own priorities. A client with important and other requests has two
//! connections. In the client, a coroutine that awaits a call keeps its own priority.
//!
//! **Dropping** a call that was sent does not take it back: the server answers it, and until then its place in the
//! rings is taken.
//!
//! **The end.** Dropping the last [`Client`], or the [`Server`] or its `serve` future, closes the connection. The
//! connection's maker can close it too ([`Connection::close`]), for example because one of the programs has died. Calls
//! in flight and later ones then fail with [`Error::Closed`]; the server's coroutines of this connection are dropped.
//! Closing does not unmap the memory: a program would fault while accessing it legitimately. The memory belongs to the
//! maker, which frees it when both programs have ended.
//!
//! **Hostile peers.** No content of the shared memory can break the invariants of a side: it keeps its own indexes and
//! tokens, takes every entry out once, and checks it. Impossible content (an index too far ahead, an answer without a
//! call, more requests than places) is [`Error::Broken`]: the connection is over. Content that is possible but wrong,
//! like a wrong answer, is outside of this module, as with any call. A peer can also signal without reason, or never
//! signal: the first costs time, the second harms only the peer.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};

use abi_queue::channel::{self, ENTRY_WORDS, MESSAGE_WORDS};
use abi_queue::request::AWAKE;
use abi_sel4::object::PAGE_BITS;
use abi_sel4::{ObjectType, Rights};
use ring::{Consumer, Producer, Words, must_be_called};

use crate::allocator::Allocator;
use crate::boot::BootInformation;
use crate::capability::{Notification, Page, Slot, initial};
use crate::executor::{self, Source};
use crate::lock::Spin;
use crate::mapping::{self, Window};
use crate::process::Process;
use crate::raw::Result as KernelResult;
use crate::shared::SharedMemory;
use crate::user_interrupt::Signaller;

/// The words of a request or an answer.
pub type Message = [u64; MESSAGE_WORDS];

/// The reason why a connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// One of the sides, or the maker, has closed it.
    Closed,
    /// The other side has written impossible content.
    Broken,
}

impl core::fmt::Display for Error {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Error::Closed => "the connection was closed",
            Error::Broken => "the other side has broken the rules of the connection",
        })
    }
}

impl core::error::Error for Error {}

/// A means to wake the other side.
pub trait Doorbell: Send + Sync + 'static {
    /// Wakes it, if it sleeps.
    fn ring(&self);

    /// As [`ring`](Doorbell::ring), for a source that the executor attends to: the executor may combine it with its own
    /// wait.
    fn ring_soon(&self) {
        self.ring();
    }
}

impl Doorbell for Notification {
    fn ring(&self) {
        // A signal through a deleted capability must do nothing: the other side has died.
        self.signal_if_there();
    }

    fn ring_soon(&self) {
        executor::ring_soon(*self);
    }
}

impl Doorbell for Signaller {
    fn ring(&self) {
        self.signal();
    }
}

/// The part of a connection that one side is given.
#[derive(Clone, Copy, Debug)]
pub struct End<D = Notification> {
    /// The shared memory.
    memory: SharedMemory,
    capacity: usize,
    /// The other side's doorbell.
    doorbell: D,
}

impl<D> End<D> {
    /// Creates an end in this memory, with rings of `capacity` entries; `None` if the memory is too small or no ring
    /// has that capacity.
    pub fn new(memory: SharedMemory, capacity: usize, doorbell: D) -> Option<End<D>> {
        let fits = channel::is_capacity(capacity) && memory.len() >= channel::words(capacity) * 8;
        fits.then_some(End { memory, capacity, doorbell })
    }

    /// Returns the memory behind the rings, which begins at a page.
    pub fn data(&self) -> SharedMemory {
        let start = (channel::words(self.capacity) * 8).next_multiple_of(1 << PAGE_BITS).min(self.memory.len());
        self.memory.part(start, self.memory.len() - start).expect("it ends where the memory does")
    }

    /// Returns all of the shared memory.
    pub fn memory(&self) -> SharedMemory {
        self.memory
    }

    /// Returns the other side's doorbell.
    pub fn doorbell(&self) -> &D {
        &self.doorbell
    }

    /// Returns the largest number of calls in flight.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

impl End {
    /// Replaces the doorbell by one that signals with stores from the first signal on, if the other side takes stores
    /// ([`executor::receive_stores`]).
    ///
    /// # Errors
    ///
    /// Addresses, slots or memory are too few.
    pub fn signalled_by_stores(self, allocator: &mut Allocator, window: &mut Window) -> KernelResult<End<Signaller>> {
        let bit = executor::RINGS.trailing_zeros();
        let doorbell = Signaller::prepare(allocator, window, self.doorbell, bit)?;
        Ok(End { memory: self.memory, capacity: self.capacity, doorbell })
    }
}

/// The rings in the form that the crate `ring` takes.
#[derive(Clone, Copy)]
struct Rings {
    header: &'static Header,
    requests: Entries,
    responses: Entries,
    capacity: usize,
}

type Header = [AtomicU64; channel::HEADER_WORDS];
type Entries = &'static [[AtomicU64; ENTRY_WORDS]];

/// One of the two rings.
#[derive(Clone, Copy)]
struct OneRing {
    tail: &'static AtomicU64,
    head: &'static AtomicU64,
    entries: Entries,
}

impl Rings {
    fn new<D>(end: &End<D>) -> Rings {
        let words = end.memory.words();
        let header = words.first_chunk().expect("an end's memory is large enough");
        let (entries, _) = words[channel::HEADER_WORDS..].as_chunks();
        let (requests, rest) = entries.split_at(end.capacity);
        Rings { header, requests, responses: &rest[..end.capacity], capacity: end.capacity }
    }

    #[inline(always)]
    fn requests(&self) -> OneRing {
        let (tail, head) = (&self.header[channel::REQUEST_TAIL], &self.header[channel::REQUEST_HEAD]);
        OneRing { tail, head, entries: self.requests }
    }

    #[inline(always)]
    fn responses(&self) -> OneRing {
        let (tail, head) = (&self.header[channel::RESPONSE_TAIL], &self.header[channel::RESPONSE_HEAD]);
        OneRing { tail, head, entries: self.responses }
    }

    /// Returns a word of the memory, for tests that write illegal values.
    #[cfg(test)]
    fn word(&self, index: usize) -> &AtomicU64 {
        match index.checked_sub(channel::HEADER_WORDS) {
            None => &self.header[index],
            Some(index) if index < self.capacity * ENTRY_WORDS => self.requests.as_flattened().get(index).unwrap(),
            Some(index) => &self.responses.as_flattened()[index - self.capacity * ENTRY_WORDS],
        }
    }

    fn is_closed(&self) -> bool {
        // Acquire: publishes the writes made before the close.
        self.header[channel::CLOSED].load(Ordering::Acquire) != 0
    }

    fn close(&self) {
        self.header[channel::CLOSED].store(1, Ordering::Release);
    }

    /// Returns whether the connection is still open after a side has told in `state` that it sleeps. Otherwise the
    /// side is awake again: the other one has closed it before it could see that, and will not ring.
    fn stays_open(&self, state: usize) -> bool {
        // The fence in `fall_asleep` pairs with the one in `must_ring`: either this reads the end, or the other side
        // reads the sleep.
        let is_open = !self.is_closed();
        if !is_open {
            self.header[state].store(AWAKE, Ordering::Relaxed);
        }
        is_open
    }

    /// Wakes the other side if it sleeps; `state` is its state word.
    fn call(&self, state: usize, doorbell: &impl Doorbell) {
        if self.must_ring(state) {
            doorbell.ring();
        }
    }

    /// As [`call`](Rings::call), from [`Source::attend`].
    #[inline]
    fn call_soon(&self, state: usize, doorbell: &impl Doorbell) {
        if self.must_ring(state) {
            doorbell.ring_soon();
        }
    }

    /// Returns whether the caller must wake the other side.
    #[inline]
    fn must_ring(&self, state: usize) -> bool {
        let state = &self.header[state];
        let sleeps = must_be_called(state);
        if sleeps {
            // Stored here, so that the other side is signalled once for all entries until it runs. The signal follows,
            // so that no entry is missed if it has fallen asleep again in between.
            state.store(AWAKE, Ordering::Relaxed);
        }
        sleeps
    }
}

impl Words<ENTRY_WORDS> for OneRing {
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        self.tail
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.head
    }

    #[inline(always)]
    fn read(&self, place: usize) -> [u64; ENTRY_WORDS] {
        let words = &self.entries[place];
        core::array::from_fn(|index| words[index].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn write(&self, place: usize, entry: [u64; ENTRY_WORDS]) {
        for (word, value) in self.entries[place].iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

fn split([token, message @ ..]: [u64; ENTRY_WORDS]) -> (u64, Message) {
    (token, message)
}

fn entry(token: u64, [m0, m1, m2, m3, m4, m5, m6]: Message) -> [u64; ENTRY_WORDS] {
    [token, m0, m1, m2, m3, m4, m5, m6]
}

// ---- the client ----

/// The calling side. Clones share the connection.
pub struct Client<D: Doorbell = Notification> {
    end: Arc<ClientEnd<D>>,
    /// Closes the connection with the last clone. Apart from `end`, because the executor has a share of that.
    _open: Arc<CloseClient<D>>,
}

impl<D: Doorbell> Clone for Client<D> {
    fn clone(&self) -> Client<D> {
        Client { end: self.end.clone(), _open: self._open.clone() }
    }
}

struct CloseClient<D: Doorbell>(Arc<ClientEnd<D>>);

impl<D: Doorbell> Drop for CloseClient<D> {
    fn drop(&mut self) {
        self.0.finish(Error::Closed);
    }
}

struct ClientEnd<D> {
    rings: Rings,
    doorbell: D,
    state: Spin<ClientState>,
}

struct ClientState {
    requests: Producer,
    responses: Consumer,
    calls: Vec<CallPlace>,
    free: Vec<u16>,
    /// Calls that wait for a place, in the order of arrival, by their numbers.
    waiting: VecDeque<(u64, Waker)>,
    /// Places that waiting calls were given, until they continue.
    given: Vec<(u64, u16)>,
    /// Number of calls that have waited for a place.
    waited: u64,
    /// Number of requests published at the last check whether the server sleeps.
    called: u64,
    failure: Option<Error>,
}

/// A place for a call in flight.
struct CallPlace {
    /// Number of uses: the other half of the token, so that an answer to an earlier call is recognised.
    uses: u64,
    call: InFlight,
    /// The answer, if the call is answered. Apart from `call`, so that a change of that moves three words.
    answer: Message,
}

enum InFlight {
    None,
    Waiting(Waker),
    Answered,
    /// The call's future was dropped.
    Dropped,
}

const PLACE_BITS: u32 = 16;

fn token(place: u16, uses: u64) -> u64 {
    uses << PLACE_BITS | u64::from(place)
}

impl<D: Doorbell> Client<D> {
    /// Creates the client of this end; the executor attends to it from now on.
    pub fn new(end: End<D>) -> Client<D> {
        let client = Client::unattended(end);
        executor::add_source(client.end.clone());
        client
    }

    /// Creates a client to which the caller attends itself.
    fn unattended(end: End<D>) -> Client<D> {
        let places = end.capacity;
        let state = ClientState {
            requests: Producer::new(places),
            responses: Consumer::new(places),
            calls: (0..places)
                .map(|_| CallPlace { uses: 0, call: InFlight::None, answer: [0; MESSAGE_WORDS] })
                .collect(),
            free: (0..places as u16).rev().collect(),
            waiting: VecDeque::new(),
            given: Vec::new(),
            waited: 0,
            called: 0,
            failure: None,
        };
        let rings = Rings::new(&end);
        let end = Arc::new(ClientEnd { rings, doorbell: end.doorbell, state: Spin::new(state) });
        Client { _open: Arc::new(CloseClient(end.clone())), end }
    }

    /// Calls the server and waits for its answer; if the limit of calls in flight is reached, first for one of them.
    ///
    /// # Errors
    ///
    /// [`Error`]; whether the server has handled the call is then unknown.
    ///
    /// # Cancellation
    ///
    /// Weak. Before the call is sent it has no effect. After that the server handles it, and the answer is dropped.
    #[doc(alias("request", "rpc"))]
    pub fn call(&self, message: Message) -> impl Future<Output = Result<Message, Error>> + Send + '_ {
        Call { end: &*self.end, message, step: Step::New }
    }

    /// Returns the reason why the connection cannot be used any more, if so.
    pub fn failure(&self) -> Option<Error> {
        self.end.state.lock().failure
    }
}

impl ClientState {
    /// Frees a place, for the call that has waited longest.
    #[inline(always)]
    fn release(&mut self, place: u16) {
        if self.waiting.is_empty() {
            self.free.push(place);
        } else {
            self.give(place);
        }
    }

    #[cold]
    #[inline(never)]
    fn give(&mut self, place: u16) {
        if let Some((number, waker)) = self.waiting.pop_front() {
            self.given.push((number, place));
            waker.wake();
        }
    }

    /// Returns the place for a call that comes now or has waited.
    #[inline(always)]
    fn place(&mut self, step: Step, waker: &Waker) -> Result<u16, Step> {
        // A place is in `free` only if no call waits for one.
        match (step, self.free.pop()) {
            (Step::New, Some(place)) => Ok(place),
            (_, free) => {
                self.free.extend(free);
                self.wait_for_place(step, waker)
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_place(&mut self, step: Step, waker: &Waker) -> Result<u16, Step> {
        if let Step::Waiting(number) = step {
            if let Some(index) = self.given.iter().position(|given| given.0 == number) {
                return Ok(self.given.swap_remove(index).1);
            }
            if let Some((_, kept)) = self.waiting.iter_mut().find(|waiting| waiting.0 == number) {
                kept.clone_from(waker);
            }
            return Err(step);
        }
        self.waited += 1;
        self.waiting.push_back((self.waited, waker.clone()));
        Err(Step::Waiting(self.waited))
    }
}

impl<D> ClientEnd<D> {
    /// Ends the connection and all its calls.
    fn fail(&self, state: &mut ClientState, error: Error) {
        if state.failure.is_some() {
            return;
        }
        state.failure = Some(error);
        for place in &mut state.calls {
            if let InFlight::Waiting(waker) = core::mem::replace(&mut place.call, InFlight::None) {
                waker.wake();
            }
        }
        // Calls that wait for a place fail too.
        state.waiting.drain(..).for_each(|(_, waker)| waker.wake());
    }

    fn finish(&self, error: Error)
    where
        D: Doorbell,
    {
        let mut state = self.state.lock();
        if state.failure.is_none() {
            self.fail(&mut state, error);
            self.rings.close();
            self.rings.call(channel::SERVER_STATE, &self.doorbell);
        }
    }

    /// Wakes the server for requests that were made since the last time.
    #[inline]
    fn call(&self, state: &mut ClientState)
    where
        D: Doorbell,
    {
        let published = state.requests.published();
        if published != state.called {
            state.called = published;
            self.rings.call_soon(channel::SERVER_STATE, &self.doorbell);
        }
    }

    /// Takes the answers that have come.
    fn take(&self, state: &mut ClientState) -> Result<bool, Error> {
        let ring = self.rings.responses();
        let count = state.responses.look(&ring).map_err(|_| Error::Broken)?;
        if count == 0 {
            return Ok(false);
        }
        while let Some(words) = state.responses.take(&ring) {
            let (answered, message) = split(words);
            let number = answered as u16;
            let place = state.calls.get_mut(usize::from(number)).ok_or(Error::Broken)?;
            if token(number, place.uses) != answered {
                return Err(Error::Broken);
            }
            match core::mem::replace(&mut place.call, InFlight::None) {
                InFlight::Waiting(waker) => {
                    place.call = InFlight::Answered;
                    place.answer = message;
                    waker.wake();
                }
                InFlight::Dropped => state.release(number),
                // An answer without a call, or a second one.
                InFlight::None | InFlight::Answered => return Err(Error::Broken),
            }
        }
        state.responses.hand_back(&ring);
        Ok(true)
    }
}

impl<D: Doorbell> Source for ClientEnd<D> {
    fn attend(&self) -> bool {
        let mut state = self.state.lock();
        if state.failure.is_some() {
            return false;
        }
        // An answer given before the end is valid.
        let came = match self.take(&mut state) {
            Ok(came) => came,
            Err(error) => {
                self.fail(&mut state, error);
                self.rings.close();
                self.rings.call(channel::SERVER_STATE, &self.doorbell);
                return true;
            }
        };
        if self.rings.is_closed() {
            self.fail(&mut state, Error::Closed);
            return true;
        }
        self.call(&mut state);
        came
    }

    fn fall_asleep(&self) -> bool {
        let mut state = self.state.lock();
        self.call(&mut state);
        let sleeping = &self.rings.header[channel::CLIENT_STATE];
        // A broken connection reports at the next look.
        state.failure.is_some()
            || state.responses.fall_asleep(&self.rings.responses(), sleeping) == Ok(true)
                && self.rings.stays_open(channel::CLIENT_STATE)
    }

    fn wake_up(&self) {
        self.rings.header[channel::CLIENT_STATE].store(AWAKE, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.state.lock().failure.is_some()
    }
}

/// The progress of a call.
#[derive(Clone, Copy)]
enum Step {
    /// Not begun.
    New,
    /// Waits for a place; the number among the waiting calls.
    Waiting(u64),
    /// Sent, with this token.
    Sent(u64),
    /// Over.
    Done,
}

struct Call<'a, D> {
    end: &'a ClientEnd<D>,
    message: Message,
    step: Step,
}

impl<D: Doorbell> Future for Call<'_, D> {
    type Output = Result<Message, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let call = &mut *self;
        let mut state = call.end.state.lock();
        let state = &mut *state;
        let Step::Sent(token) = call.step else {
            if let Some(failure) = state.failure {
                call.step = Step::Done;
                return Poll::Ready(Err(failure));
            }
            let number = match state.place(call.step, context.waker()) {
                Ok(number) => number,
                Err(step) => {
                    call.step = step;
                    return Poll::Pending;
                }
            };
            let place = &mut state.calls[usize::from(number)];
            place.uses += 1;
            let token = token(number, place.uses);
            place.call = InFlight::Waiting(context.waker().clone());
            let ring = call.end.rings.requests();
            // The ring has as many entries as there are places: it is full only if the server violates the protocol.
            if state.requests.post(&ring, entry(token, call.message)).is_err() {
                place.call = InFlight::None;
                call.step = Step::Done;
                call.end.fail(state, Error::Broken);
                call.end.rings.close();
                return Poll::Ready(Err(Error::Broken));
            }
            call.step = Step::Sent(token);
            return Poll::Pending;
        };
        let number = token as u16;
        let place = &mut state.calls[usize::from(number)];
        match &mut place.call {
            InFlight::Answered => {
                let message = place.answer;
                place.call = InFlight::None;
                call.step = Step::Done;
                state.release(number);
                Poll::Ready(Ok(message))
            }
            InFlight::Waiting(waker) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            // Only a failure empties the place of a call that is awaited.
            InFlight::None | InFlight::Dropped => {
                call.step = Step::Done;
                Poll::Ready(Err(state.failure.unwrap_or(Error::Broken)))
            }
        }
    }
}

impl<D> Drop for Call<'_, D> {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(self.step, Step::New | Step::Done) {
            self.abandon();
        }
    }
}

impl<D> Call<'_, D> {
    /// Gives up a call that was begun and is not over.
    #[cold]
    #[inline(never)]
    fn abandon(&self) {
        let mut state = self.end.state.lock();
        match self.step {
            Step::New | Step::Done => {}
            Step::Waiting(number) => {
                state.waiting.retain(|waiting| waiting.0 != number);
                // A place that it was given goes to the next call.
                if let Some(index) = state.given.iter().position(|given| given.0 == number) {
                    let (_, place) = state.given.swap_remove(index);
                    state.release(place);
                }
            }
            Step::Sent(token) => {
                let number = token as u16;
                let place = &mut state.calls[usize::from(number)];
                match place.call {
                    // The place is taken until the answer comes.
                    InFlight::Waiting(_) => place.call = InFlight::Dropped,
                    _ => {
                        place.call = InFlight::None;
                        state.release(number);
                    }
                }
            }
        }
    }
}

// ---- the server ----

/// The answering side.
pub struct Server<D: Doorbell = Notification> {
    end: Arc<ServerEnd<D>>,
}

struct ServerEnd<D> {
    rings: Rings,
    doorbell: D,
    ready: Arc<Ready>,
    state: Spin<ServerState>,
}

struct ServerState {
    requests: Consumer,
    responses: Producer,
    /// Whether the client may have to be woken for responses that were published.
    owes_call: bool,
    failure: Option<Error>,
}

/// The requests of a connection whose coroutines were woken.
struct Ready {
    /// One bit for each coroutine.
    bits: Vec<AtomicU64>,
    /// Waker of the `serve` future. It stays when it is used, so that it is stored once.
    serving: Spin<Option<Waker>>,
}

impl Ready {
    fn register(&self, waker: &Waker) {
        let mut serving = self.serving.lock();
        match &mut *serving {
            Some(kept) if kept.will_wake(waker) => {}
            place => *place = Some(waker.clone()),
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.serving.lock() {
            waker.wake_by_ref();
        }
    }
}

/// The waker of one request's coroutine.
struct RequestWaker {
    ready: Arc<Ready>,
    number: usize,
}

impl Wake for RequestWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: pairs with the look in `serve`, and publishes the waker's earlier writes.
        self.ready.bits[self.number / 64].fetch_or(1 << (self.number % 64), Ordering::Release);
        self.ready.wake();
    }
}

/// A place for the coroutine of one request: its memory stays for the next one.
struct Coroutine<F> {
    future: Pin<Box<Option<F>>>,
    waker: Waker,
    token: u64,
}

impl<D: Doorbell> Server<D> {
    /// Creates the server of this end; the executor attends to it from now on.
    pub fn new(end: End<D>) -> Server<D> {
        let server = Server::unattended(end);
        executor::add_source(server.end.clone());
        server
    }

    fn unattended(end: End<D>) -> Server<D> {
        let state = ServerState {
            requests: Consumer::new(end.capacity),
            responses: Producer::new(end.capacity),
            owes_call: false,
            failure: None,
        };
        let rings = Rings::new(&end);
        let bits = (0..end.capacity.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let ready = Arc::new(Ready { bits, serving: Spin::new(None) });
        Server { end: Arc::new(ServerEnd { rings, doorbell: end.doorbell, ready, state: Spin::new(state) }) }
    }

    /// Answers each request with the result of `handler`, until the connection ends; returns the reason.
    ///
    /// Each request is a coroutine of its own, polled at once and then whenever it was woken; so requests are answered
    /// in any order. The coroutines are stored in this future, in places that are used again and again: a request that
    /// need not wait costs neither an allocation nor a turn of the scheduler.
    ///
    /// # Cancellation
    ///
    /// Weak. Drops the coroutines of all requests and closes the connection.
    pub async fn serve<F>(self, mut handler: impl FnMut(Message) -> F) -> Error
    where
        F: Future<Output = Message>,
    {
        let mut coroutines: Vec<Coroutine<F>> = Vec::new();
        let mut free: Vec<usize> = Vec::new();
        poll_fn(|context| {
            self.end.ready.register(context.waker());
            match self.end.turn(&mut coroutines, &mut free, &mut handler) {
                Ok(Turn::Done) => Poll::Pending,
                Ok(Turn::More) => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Err(error) => {
                    self.end.finish(error);
                    Poll::Ready(error)
                }
            }
        })
        .await
    }
}

/// The work left after a turn of serving.
enum Turn {
    /// None until a wake-up.
    Done,
    /// Requests that have not been looked at, so that other coroutines have their turn first.
    More,
}

impl<D: Doorbell> ServerEnd<D> {
    fn turn<F: Future<Output = Message>>(
        &self,
        coroutines: &mut Vec<Coroutine<F>>,
        free: &mut Vec<usize>,
        handler: &mut impl FnMut(Message) -> F,
    ) -> Result<Turn, Error> {
        if self.rings.is_closed() {
            return Err(Error::Closed);
        }
        let (requests, responses) = (self.rings.requests(), self.rings.responses());
        let mut state = self.state.lock();
        let state = &mut *state;
        for (index, word) in self.ready.bits.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut left = word.swap(0, Ordering::Acquire);
            while left != 0 {
                let number = index * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                // The coroutine may have ended, while other code still holds its waker.
                if let Some(coroutine) = coroutines.get_mut(number)
                    && coroutine.advance(&mut state.responses, &responses)?
                {
                    free.push(number);
                }
            }
        }
        let count = state.requests.look(&requests).map_err(|_| Error::Broken)?;
        let mut taken = 0;
        // At most as many as were there at first: other coroutines have their turn.
        while taken < count {
            // With all places taken the client has more calls in flight than it may, or has taken answers back that are
            // not made yet: further requests stay in the ring.
            let number = match free.pop() {
                Some(number) => number,
                None if coroutines.len() < self.rings.capacity => {
                    let number = coroutines.len();
                    let waker = Waker::from(Arc::new(RequestWaker { ready: self.ready.clone(), number }));
                    coroutines.push(Coroutine { future: Box::pin(None), waker, token: 0 });
                    number
                }
                None => break,
            };
            let Some(words) = state.requests.take(&requests) else { break };
            taken += 1;
            let (token, message) = split(words);
            let coroutine = &mut coroutines[number];
            coroutine.token = token;
            coroutine.future.set(Some(handler(message)));
            if coroutine.advance(&mut state.responses, &responses)? {
                free.push(number);
            }
        }
        if taken > 0 {
            state.requests.hand_back(&requests);
        }
        if state.responses.unpublished() > 0 {
            state.responses.publish(&responses);
            if executor::attends_next() {
                state.owes_call = true;
            } else {
                self.rings.call(channel::CLIENT_STATE, &self.doorbell);
            }
        }
        let more = taken == count && count > 0 && state.requests.look(&requests) != Ok(0);
        Ok(if more { Turn::More } else { Turn::Done })
    }
}

impl<D: Doorbell> ServerEnd<D> {
    /// Wakes the client for responses, if that was left to the executor.
    #[inline]
    fn call(&self, state: &mut ServerState) {
        if state.owes_call {
            state.owes_call = false;
            self.rings.call_soon(channel::CLIENT_STATE, &self.doorbell);
        }
    }

    fn finish(&self, error: Error) {
        let mut state = self.state.lock();
        if state.failure.is_none() {
            state.failure = Some(error);
            self.rings.close();
            self.rings.call(channel::CLIENT_STATE, &self.doorbell);
        }
    }
}

impl<F: Future<Output = Message>> Coroutine<F> {
    /// Polls the coroutine; returns whether it has ended, and sends its answer then.
    fn advance(&mut self, responses: &mut Producer, ring: &OneRing) -> Result<bool, Error> {
        let Some(future) = self.future.as_mut().as_pin_mut() else { return Ok(false) };
        let Poll::Ready(message) = future.poll(&mut Context::from_waker(&self.waker)) else { return Ok(false) };
        self.future.set(None);
        // The ring has as many entries as calls may be in flight: it is full only if the client takes no answers and
        // continues to call.
        responses.push(ring, entry(self.token, message)).map_err(|_| Error::Broken)?;
        Ok(true)
    }
}

impl<D: Doorbell> Source for ServerEnd<D> {
    fn attend(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        self.call(&mut state);
        if state.failure.is_some() {
            return false;
        }
        // Impossible content is reported by `serve`.
        let came = self.rings.is_closed() || state.requests.look(&self.rings.requests()) != Ok(0);
        if came {
            self.ready.wake();
        }
        came
    }

    fn fall_asleep(&self) -> bool {
        let mut state = self.state.lock();
        self.call(&mut state);
        let sleeping = &self.rings.header[channel::SERVER_STATE];
        state.failure.is_some()
            || state.requests.fall_asleep(&self.rings.requests(), sleeping) == Ok(true)
                && self.rings.stays_open(channel::SERVER_STATE)
    }

    fn wake_up(&self) {
        self.rings.header[channel::SERVER_STATE].store(AWAKE, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.state.lock().failure.is_some()
    }
}

impl<D: Doorbell> Drop for Server<D> {
    fn drop(&mut self) {
        self.end.finish(Error::Closed);
    }
}

// ---- set-up ----

/// A connection, for its maker.
#[derive(Debug)]
pub struct Connection {
    /// First page of the connection, with the word that marks its end.
    header: SharedMemory,
    /// Slots with the rights to signal the client and the server, of which theirs are copies.
    doorbells: [u64; 2],
}

impl Connection {
    /// Closes the connection and revokes both sides' rights to signal each other.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn close(self) -> KernelResult<()> {
        // Release: before the signals, whose receivers look.
        self.header.words()[channel::CLOSED].store(1, Ordering::Release);
        for doorbell in self.doorbells {
            Notification::from_pointer(doorbell).ring();
            Slot::own(doorbell).revoke()?;
            Slot::own(doorbell).delete()?;
        }
        Ok(())
    }
}

/// Returns the pages of a connection with rings of `capacity` entries and `data_pages` pages of data behind them.
fn pages(capacity: usize, data_pages: u64) -> u64 {
    (channel::words(capacity) * 8).div_ceil(1 << PAGE_BITS) as u64 + data_pages
}

/// One side of a connection that is being made: the program, and this program's capability with all rights to its
/// notification.
pub struct Side<'a> {
    /// The program, which does not run yet.
    pub process: &'a mut Process,
    /// Slot of the notification that it waits on, as [`Process::notification`] returns it.
    pub notification: u64,
}

/// Makes pages for a connection, and for each of the two notifications the right to signal it.
fn make(
    allocator: &mut Allocator,
    capacity: usize,
    data_pages: u64,
    notifications: [u64; 2],
) -> KernelResult<(Vec<Page>, [u64; 2])> {
    assert!(channel::is_capacity(capacity), "there are no rings of {capacity} entries");
    let mut left = pages(capacity, data_pages);
    let mut made = Vec::new();
    while left > 0 {
        let count = left.min(abi_sel4::configuration::RETYPE_LIMIT as u64);
        let first = allocator.make(ObjectType::Page, 0, count)?;
        made.extend((first..first + count).map(Page::from_pointer));
        left -= count;
    }
    let [one, other] = notifications.map(|notification| -> KernelResult<u64> {
        let slot = allocator.slot()?;
        Slot::own(slot).mint_from(Slot::own(notification), Rights::WRITE, executor::RINGS)?;
        Ok(slot)
    });
    Ok((made, [one?, other?]))
}

/// Maps pages of a connection into this program.
fn map_here(allocator: &mut Allocator, window: &mut Window, pages: &[Page]) -> KernelResult<SharedMemory> {
    let start = window.addresses(PAGE_BITS, pages.len() as u64)?;
    for (address, page) in (start..).step_by(1 << PAGE_BITS).zip(pages) {
        mapping::map(allocator, initial::ADDRESS_SPACE, *page, address, Rights::READ_WRITE, 0)?;
    }
    // SAFETY: mapped just now, to stay.
    Ok(unsafe { SharedMemory::new(start, pages.len() << PAGE_BITS) })
}

fn give(allocator: &mut Allocator, side: Side<'_>, pages: &[Page], capacity: usize, bell: u64) -> KernelResult<()> {
    let pointer = side.process.grant_copy(bell, Rights::WRITE)?;
    side.process.add_end(allocator, pages, capacity as u64, pointer)
}

/// Connects two programs: the next of each one's [`ends`] is of this connection.
///
/// # Errors
///
/// Slots or memory are too few, or the kernel's error.
///
/// # Panics
///
/// If no ring has this capacity.
pub fn connect(
    allocator: &mut Allocator,
    window: &mut Window,
    capacity: usize,
    data_pages: u64,
    client: Side<'_>,
    server: Side<'_>,
) -> KernelResult<Connection> {
    let notifications = [client.notification, server.notification];
    let (pages, doorbells) = make(allocator, capacity, data_pages, notifications)?;
    give(allocator, client, &pages, capacity, doorbells[1])?;
    give(allocator, server, &pages, capacity, doorbells[0])?;
    let header = map_here(allocator, window, &pages[..1])?;
    Ok(Connection { header, doorbells })
}

/// Connects this program, which waits on the notification `own`, to another one: the other program's next end is one
/// side of the connection, and the other side is returned. Both sides are made alike: the two programs agree on the
/// client.
///
/// # Errors
///
/// As [`connect`].
///
/// # Panics
///
/// If no ring has this capacity.
pub fn connect_to(
    allocator: &mut Allocator,
    window: &mut Window,
    capacity: usize,
    data_pages: u64,
    own: u64,
    other: Side<'_>,
) -> KernelResult<(Connection, End)> {
    let (pages, doorbells) = make(allocator, capacity, data_pages, [own, other.notification])?;
    give(allocator, other, &pages, capacity, doorbells[0])?;
    let header = map_here(allocator, window, &pages)?;
    let end = End { memory: header, capacity, doorbell: Notification::from_pointer(doorbells[1]) };
    Ok((Connection { header, doorbells }, end))
}

/// Returns the ends that a program was given, in the order in which they were made.
pub fn ends(boot: &BootInformation) -> impl Iterator<Item = End> + use<> {
    boot.ends().map_while(|(memory, capacity, doorbell)| {
        End::new(memory, usize::try_from(capacity).ok()?, Notification::from_pointer(doorbell))
    })
}

/// Makes both ends of a connection within a program, each with the other's doorbell.
#[cfg(test)]
fn connect_here<D>(capacity: usize, data_words: usize, of_client: D, of_server: D) -> (End<D>, End<D>) {
    let rings = (channel::words(capacity) * 8).next_multiple_of(1 << PAGE_BITS) / 8;
    let memory = SharedMemory::private(rings + data_words);
    let end = |doorbell| End::new(memory, capacity, doorbell).expect("there are no rings of this capacity");
    (end(of_server), end(of_client))
}

#[cfg(test)]
mod tests;
