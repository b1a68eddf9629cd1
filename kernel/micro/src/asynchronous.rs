//! Asynchronous invocations: requests in memory that a thread shares with the kernel, and the handler that executes
//! them.
//!
//! A thread that has registered a SyscallBuffer (`abi_queue::syscall_buffer`) has a *handler*: a coroutine of the
//! kernel with a single suspension point, so that all of its frame is [`objects::SyscallHandler`], in the thread's own
//! memory. It takes requests, invokes the capabilities that they name in the thread's current capability space, and
//! posts responses. A request is decoded and invoked by the functions for system calls. Its message is in the registers
//! of the hart's *proxy*, a thread that never runs, because the thread's own registers may be in use on another hart.
//!
//! # Scheduling
//!
//! A handler has its thread's priority. `WakeSyscallHandler` queues it, and notifies a hart that is idle or runs a less
//! important thread. If there is none the caller's own hart executes the requests at once, in the caller's time slice.
//! A handler that was interrupted, or found no hart, stays in the queue: a hart takes it when it has nothing more
//! important to run. At each kernel entry a hart also runs one turn of a handler that is as important as the current
//! thread. A turn is [`TURN`] requests, so handlers of one priority share a hart. The kernel's lock is released after
//! each turn. After each request the hart checks for pending interrupts and for harts that wait for the lock, and
//! chooses anew which thread or handler runs. So the requests of a less important thread delay a more important thread
//! by one request at most.
//!
//! An idle hart continues to poll an empty buffer for a tick divided by [`LINGER`], so that a thread that keeps making
//! requests enters the kernel for none of them.
//!
//! # Translations
//!
//! Requests that map and unmap pages follow each other in long rows. Within a turn the TLBs are flushed once at the end
//! of the row, before its responses become visible and before any other operation: otherwise an unmapped page could
//! become an object while a program still accesses it. Facts that the requests of such a row share are looked up once
//! ([`PagingRow`]).

use core::sync::atomic::{AtomicU64, Ordering, fence};

use abi_queue::syscall_buffer::{
    self, ARGUMENTS, AWAKE, BROKEN, FIRST_ARGUMENT, MAXIMUM_FRAMES, RECEIVER_OFFSET, REQUEST_HEAD_WORDS, REQUEST_WORDS,
    RESPONSE_HEAD_WORDS, RESPONSE_WORDS, RESULTS, SLEEPING, capability_word, request_word, response_word,
};
use abi_sel4::message::{MAXIMUM_CAPABILITIES, REGISTERS};
use abi_sel4::{Invocation, InvocationError, MessageInfo, Operand, Rights, asynchronous};
use hal_api::Machine as _;
use objects::{
    Capability, FrameSize, HandlerState, PageRights, Ref, Slot, TCB_SLOTS, Tcb, ThreadState, Words, frame_words, own,
    tag,
};
use platform::Machine;
use ring::{Consumer, Producer};

use crate::invocation::{Arguments, NUMBERING, Preempted};
use crate::kernel::Kernel;
use crate::message::{self, message_register, set_message_register};
use crate::node::{Decision, Handlers, MAXIMUM_NODES, Next, Ready};
use crate::paging::{PageRequest, PagingRow};
use crate::{console, cspace, derivation};

/// The largest number of requests in one turn of a handler.
const TURN: usize = 32;
/// Divisor of a tick: an idle hart polls an empty buffer for this part of a tick.
const LINGER: u64 = 16;

const _: () = assert!(TCB_SLOTS - own::FRAMES == MAXIMUM_FRAMES);

/// A checked registration of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct NewHandler {
    capacity: u32,
    notification: Ref<Slot>,
    frames: [Option<Ref<Slot>>; MAXIMUM_FRAMES],
}

/// The end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// There may be more requests.
    More,
    /// There are no more requests.
    Empty,
    /// There is no room for a response.
    Full,
    /// The thread is inactive, so its requests are not executed.
    Stopped,
    /// The handler is gone.
    Gone,
}

/// The reason why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// The invocation stopped at a preemption point; the request is executed again.
    Preempted,
    /// The handler is gone, or a part of its buffer.
    Gone,
}

/// The head of an entry in the buffer, which crosses no boundary of a kilobyte.
#[derive(Clone, Copy)]
struct Head {
    words: Ref<Words>,
    first: usize,
}

impl Head {
    #[inline(always)]
    fn get(self, index: usize) -> u64 {
        self.words.get((self.first + index) % Words::COUNT)
    }

    #[inline(always)]
    fn set(self, index: usize, value: u64) {
        self.words.set((self.first + index) % Words::COUNT, value);
    }
}

/// A request in the buffer. Each word must be read only once, since the thread may change it.
#[derive(Clone, Copy)]
struct Request<'a> {
    head: Head,
    buffer: &'a Buffer,
    place: usize,
}

impl Request<'_> {
    #[inline(always)]
    fn get(self, word: usize) -> u64 {
        match word {
            0..REQUEST_HEAD_WORDS => self.head.get(word),
            _ => self.buffer.head(request_word(self.buffer.capacity, self.place, word)).get(0),
        }
    }
}

/// A response in the buffer.
#[derive(Clone, Copy)]
struct Response<'a> {
    head: Head,
    buffer: &'a Buffer,
    place: usize,
}

impl Response<'_> {
    #[inline(always)]
    fn set(self, word: usize, value: u64) {
        match word {
            0..RESPONSE_HEAD_WORDS => self.head.set(word, value),
            _ => self.buffer.head(response_word(self.buffer.capacity, self.place, word)).set(0, value),
        }
    }
}

/// A thread's buffer in the kernel: its frames, independent of their mappings.
struct Buffer {
    header: Ref<Words>,
    capacity: usize,
    frame_bits: u32,
    /// The first kilobyte of each frame; entries without a frame repeat the first one.
    frames: [Ref<Words>; MAXIMUM_FRAMES],
}

impl Buffer {
    /// Finds the thread's buffer; `None` if one of its frames was deleted.
    fn of(thread: Ref<Tcb>) -> Option<Buffer> {
        let count = usize::from(thread.handler.frames.get());
        let (base, size, _) = thread.own_slot(own::FRAMES).capability.memory()?;
        let header = frame_words(base);
        let mut frames = [header; MAXIMUM_FRAMES];
        for (index, place) in frames.iter_mut().enumerate().take(count).skip(1) {
            *place = frame_words(thread.own_slot(own::FRAMES + index).capability.memory()?.0);
        }
        let frame_bits = size.bits();
        let capacity = thread.handler.capacity.get() as usize;
        (count > 0).then_some(Buffer { header, capacity, frame_bits, frames })
    }

    /// Returns the words at an offset, up to the end of their kilobyte.
    #[inline(always)]
    fn head(&self, offset: usize) -> Head {
        let frame = self.frames[(offset >> self.frame_bits) % MAXIMUM_FRAMES];
        let within = offset & ((1 << self.frame_bits) - 1);
        let words = frame.kilobyte((within / size_of::<Words>()) as u64);
        Head { words, first: within % size_of::<Words>() / 8 }
    }

    /// Returns the request at a place.
    #[inline(always)]
    fn request(&self, place: usize) -> Request<'_> {
        Request { head: self.head(request_word(self.capacity, place, 0)), buffer: self, place }
    }

    /// Returns the response at a place.
    #[inline(always)]
    fn response(&self, place: usize) -> Response<'_> {
        Response { head: self.head(response_word(self.capacity, place, 0)), buffer: self, place }
    }

    /// Returns the state word of the kernel's side: awake, asleep or broken.
    fn handler(&self) -> &AtomicU64 {
        self.header.atomic(syscall_buffer::HANDLER_OFFSET / 8)
    }

    /// Returns the state word of the thread's side.
    fn receiver(&self) -> &AtomicU64 {
        self.header.atomic(RECEIVER_OFFSET / 8)
    }
}

impl ring::Words<REQUEST_WORDS> for Buffer {
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        self.header.atomic(syscall_buffer::REQUEST_TAIL_OFFSET / 8)
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.header.atomic(syscall_buffer::REQUEST_HEAD_OFFSET / 8)
    }

    #[inline(always)]
    fn read(&self, place: usize) -> [u64; REQUEST_WORDS] {
        core::array::from_fn(|word| self.request(place).get(word))
    }

    fn write(&self, place: usize, entry: [u64; REQUEST_WORDS]) {
        let set = |word, value| self.head(request_word(self.capacity, place, word)).set(0, value);
        entry.iter().enumerate().for_each(|(word, &value)| set(word, value));
    }
}

impl ring::Words<RESPONSE_WORDS> for Buffer {
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        self.header.atomic(syscall_buffer::RESPONSE_TAIL_OFFSET / 8)
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.header.atomic(syscall_buffer::RESPONSE_HEAD_OFFSET / 8)
    }

    fn read(&self, place: usize) -> [u64; RESPONSE_WORDS] {
        core::array::from_fn(|word| self.head(response_word(self.capacity, place, word)).get(0))
    }

    #[inline(always)]
    fn write(&self, place: usize, entry: [u64; RESPONSE_WORDS]) {
        entry.iter().enumerate().for_each(|(word, &value)| self.response(place).set(word, value));
    }
}

/// Checks a registration; `None` removes the handler.
pub fn decode(arguments: &Arguments) -> Result<Option<NewHandler>, InvocationError> {
    let [capacity, first_frame, count] = arguments.at_least::<3>()?;
    if capacity == 0 {
        return Ok(None);
    }
    let (smallest, largest) = (syscall_buffer::SMALLEST_CAPACITY as u64, syscall_buffer::LARGEST_CAPACITY as u64);
    if !(smallest..=largest).contains(&capacity) {
        return Err(InvocationError::RangeError { minimum: smallest, maximum: largest });
    }
    if !capacity.is_power_of_two() {
        return Err(InvocationError::InvalidArgument(0));
    }
    if !(1..=MAXIMUM_FRAMES as u64).contains(&count) {
        return Err(InvocationError::RangeError { minimum: 1, maximum: MAXIMUM_FRAMES as u64 });
    }
    let notification = arguments.capability(0)?;
    match notification.capability.get() {
        Capability::Notification { rights, .. } if rights.contains(Rights::WRITE) => {}
        _ => return Err(InvocationError::InvalidCapability(1)),
    }
    let mut frames = [None; MAXIMUM_FRAMES];
    let mut bits = None;
    for (place, pointer) in frames.iter_mut().zip(first_frame..first_frame.saturating_add(count)) {
        let slot = cspace::lookup(arguments.thread(), pointer)
            .map_err(|failure| InvocationError::FailedLookup { operand: Operand::Source, failure })?;
        match slot.capability.get() {
            Capability::Frame { size, rights: PageRights::ReadWrite, device: false, .. }
                if bits.is_none_or(|bits| bits == size.bits()) =>
            {
                bits = Some(size.bits());
            }
            _ => return Err(InvocationError::InvalidArgument(1)),
        }
        *place = Some(slot);
    }
    let needed =
        (syscall_buffer::size(capacity as usize) as u64).div_ceil(1 << bits.unwrap_or(FrameSize::Small.bits()));
    if count < needed {
        return Err(InvocationError::RangeError { minimum: needed, maximum: MAXIMUM_FRAMES as u64 });
    }
    Ok(Some(NewHandler { capacity: capacity as u32, notification, frames }))
}

impl Kernel {
    /// Replaces a thread's handler. The old one's notification may go, with all threads that wait for it.
    pub(crate) fn register_handler(&self, thread: Ref<Tcb>, new: Option<NewHandler>) -> Result<(), Preempted> {
        self.retire_handler(thread);
        for slot in handler_slots(thread) {
            self.delete(slot)?;
        }
        let Some(NewHandler { capacity, notification, frames }) = new else { return Ok(()) };
        let install = |index: usize, source: Ref<Slot>| {
            // Checked: both kinds can always be copied.
            if let Ok(copy) = derivation::copy_of(source, source.capability.get()) {
                derivation::insert_derived(copy, source, thread.own_slot(index));
            }
        };
        install(own::DOORBELL, notification);
        let mut count = 0;
        for (index, frame) in frames.iter().enumerate() {
            if let Some(frame) = *frame {
                install(own::FRAMES + index, frame);
                count += 1;
            }
        }
        let handler = &thread.handler;
        handler.frames.set(count);
        handler.capacity.set(capacity);
        handler.requests.set(0);
        handler.responses.set(0);
        handler.set_state(HandlerState::Asleep);
        if let Some(buffer) = Buffer::of(thread) {
            ring::Words::<REQUEST_WORDS>::head(&buffer).store(0, Ordering::Relaxed);
            ring::Words::<RESPONSE_WORDS>::tail(&buffer).store(0, Ordering::Relaxed);
            buffer.handler().store(SLEEPING, Ordering::Release);
        }
        Ok(())
    }

    /// Ends a thread's handler, and deletes its capabilities in one step for each. If one was the last to a
    /// notification with waiting threads, its remains are left in the thread's slot.
    fn forget_handler(&self, thread: Ref<Tcb>) {
        // Without a handler the thread may be dying, and its slots may hold other remains.
        if thread.handler.state() != HandlerState::None {
            self.retire_handler(thread);
            handler_slots(thread).for_each(|slot| self.delete_step(slot));
        }
    }

    /// Ends a thread's handler, if it has one, without deleting its capabilities. Requests that it has not taken are
    /// not executed.
    pub(crate) fn retire_handler(&self, thread: Ref<Tcb>) {
        match thread.handler.state() {
            HandlerState::None => return,
            HandlerState::Asleep => {}
            HandlerState::Queued => {
                self.handlers_of(thread).remove(thread);
                self.handlers_awake.set(self.handlers_awake.get() - 1);
            }
            HandlerState::Served => {
                for node in self.nodes.iter().filter(|node| node.serving.get() == Some(thread)) {
                    node.serving.set(None);
                    node.serves_own.set(false);
                }
                self.handlers_awake.set(self.handlers_awake.get() - 1);
            }
        }
        thread.handler.set_state(HandlerState::None);
    }

    #[inline]
    fn handlers_of(&self, thread: Ref<Tcb>) -> Ready<'_, Handlers> {
        self.handlers.of(thread.domain.get())
    }

    /// Changes an attribute of a thread that determines the place of its handler in the queue.
    #[inline]
    pub(crate) fn while_unqueued(&self, thread: Ref<Tcb>, change: impl FnOnce()) {
        let is_queued = thread.handler.state() == HandlerState::Queued;
        if is_queued {
            self.handlers_of(thread).remove(thread);
        }
        change();
        if is_queued {
            self.handlers_of(thread).push_back(thread);
        }
    }

    /// Makes a thread's handler execute its requests; returns whether the thread has a handler.
    pub(crate) fn wake_handler(&self, thread: Ref<Tcb>) -> bool {
        let state = thread.handler.state();
        if state == HandlerState::None {
            return false;
        }
        // Checked for a handler that is awake, too: the hart that runs it may not have noticed that a frame was
        // deleted.
        let Some(buffer) = Buffer::of(thread) else {
            self.forget_handler(thread);
            return false;
        };
        if state != HandlerState::Asleep {
            return true;
        }
        buffer.handler().store(AWAKE, Ordering::Relaxed);
        self.handlers_awake.set(self.handlers_awake.get() + 1);
        let node = self.node();
        match self.find_server(thread) {
            None if node.current.get() == Some(thread) => {
                thread.handler.set_state(HandlerState::Served);
                node.serving.set(Some(thread));
                node.serves_own.set(true);
            }
            server => self.queue_handler(thread, server),
        }
        true
    }

    #[inline]
    fn queue_handler(&self, thread: Ref<Tcb>, server: Option<usize>) {
        thread.handler.set_state(HandlerState::Queued);
        self.handlers_of(thread).push_back(thread);
        if let Some(server) = server {
            self.node().pokes.set(self.node().pokes.get() | 1 << server);
        }
    }

    /// Chooses another hart for a handler: an idle one, or else the one with the least important thread, which must be
    /// less important than this thread.
    fn find_server(&self, thread: Ref<Tcb>) -> Option<usize> {
        if MAXIMUM_NODES == 1 || thread.domain.get() != self.domains.current() {
            return None;
        }
        let urgency =
            |index: &usize| self.nodes[*index].current.get().map_or(0, |other| 1 + u32::from(other.priority.get()));
        (0..self.node_count.get())
            .filter(|&index| index != self.here() && self.nodes[index].serving.get().is_none())
            .filter(|index| urgency(index) <= u32::from(thread.priority.get()))
            .min_by_key(urgency)
    }

    /// Returns the most important handler that no hart runs.
    #[inline]
    fn best_handler(&self) -> Option<Ref<Tcb>> {
        let handlers = self.handlers.of(self.domains.current());
        handlers.highest().and_then(|priority| handlers.first(priority))
    }

    fn claim_handler(&self, thread: Ref<Tcb>) {
        self.handlers_of(thread).remove(thread);
        thread.handler.set_state(HandlerState::Served);
        let node = self.node();
        node.serving.set(Some(thread));
        node.serves_own.set(false);
        node.linger_until.set(0);
    }

    /// Chooses whether this hart runs a handler before it runs a thread. Decides anew if the choice has changed.
    #[inline(never)]
    pub(crate) fn leave_to_handler(&self) -> Option<Next> {
        let node = self.node();
        if let Some(thread) = node.serving.get() {
            let current = node.current.get();
            let is_outdone = self.is_outdone(thread);
            if node.serves_own.get() && current == Some(thread) && !is_outdone {
                self.note_kernel();
                return Some(Next::Serve);
            }
            let priority = thread.priority.get();
            let lingers = node.linger_until.get() != 0;
            let has_better = is_outdone
                || lingers && self.best_handler().is_some()
                || current.is_some_and(|current| lingers || current.priority.get() >= priority);
            if !has_better && !node.serves_own.get() {
                return Some(self.dismiss());
            }
            self.stop_serving(thread, if lingers { Turn::Empty } else { Turn::More });
        }
        let mut has_shared = false;
        loop {
            let best = self.best_handler()?;
            let priority = best.priority.get();
            match node.current.get() {
                Some(current) if current.priority.get() > priority => return None,
                Some(current) if current.priority.get() == priority => {
                    if has_shared {
                        return None;
                    }
                    has_shared = true;
                    self.claim_handler(best);
                    let turn = self.turn(best);
                    self.stop_serving(best, turn);
                    self.decide();
                }
                _ => {
                    self.claim_handler(best);
                    return Some(self.dismiss());
                }
            }
        }
    }

    /// Returns this hart's current thread to its ready queue, to run a handler.
    fn dismiss(&self) -> Next {
        let node = self.node();
        if let Some(current) = node.current.take() {
            self.queue_first(current);
            node.decision.set(Decision::Open);
        }
        // This hart is not notified when the address space in which it ran is deleted, so it leaves the space now.
        if node.entered.get().is_some() || node.asid.get() != 0 {
            self.leave_space();
        }
        self.note_kernel();
        Next::Serve
    }

    /// Serves pending interrupts, or runs a turn of this hart's handler if there are none. The scheduler runs between
    /// the two, so that a thread that an interrupt makes ready waits for one request at most.
    pub(crate) fn look_or_serve(&self) {
        match platform::machine::pending().is_empty() {
            true => self.serve(),
            false => self.serve_interrupts(),
        }
    }

    /// Returns whether this hart has something more important to run than this thread's handler. Another hart may have
    /// made it ready while this hart waited for the lock.
    fn is_outdone(&self, thread: Ref<Tcb>) -> bool {
        let is_above = |priority: u8| priority > thread.priority.get();
        thread.domain.get() != self.domains.current()
            || self.best_handler().is_some_and(|best| is_above(best.priority.get()))
            || !self.is_highest(thread.priority.get())
    }

    /// Runs a turn of this hart's handler.
    pub(crate) fn serve(&self) {
        let node = self.node();
        let Some(thread) = node.serving.get() else { return };
        if self.is_outdone(thread) {
            return self.choose_anew();
        }
        let turn = self.turn(thread);
        let is_idle = node.current.get().is_none() && self.node_count.get() > 1;
        match turn {
            Turn::More => node.linger_until.set(0),
            Turn::Empty if is_idle => {
                let now = Machine::now();
                match node.linger_until.get() {
                    0 => node.linger_until.set(now + self.tick_length.get() / LINGER),
                    until if now < until => {}
                    _ => self.stop_serving(thread, turn),
                }
            }
            _ => self.stop_serving(thread, turn),
        }
    }

    /// Returns whether this hart polls an empty buffer.
    pub(crate) fn lingers(&self) -> bool {
        self.node().serving.get().is_some() && self.node().linger_until.get() != 0
    }

    /// Stops running a handler on this hart; the handler sleeps or waits for a hart.
    fn stop_serving(&self, thread: Ref<Tcb>, turn: Turn) {
        if turn == Turn::Gone {
            return;
        }
        self.node().serving.set(None);
        self.node().serves_own.set(false);
        let Some(buffer) = Buffer::of(thread) else { return self.forget_handler(thread) };
        let capacity = buffer.capacity;
        let sleeps = match turn {
            Turn::More | Turn::Gone => false,
            Turn::Empty => {
                let mut requests = Consumer::resume(capacity, thread.handler.requests.get());
                match requests.fall_asleep::<REQUEST_WORDS>(&buffer, buffer.handler()) {
                    Ok(sleeps) => sleeps,
                    Err(_) => return self.break_handler(thread, &buffer),
                }
            }
            Turn::Full => {
                // As in `fall_asleep`: the thread takes responses, then checks whether it must call.
                buffer.handler().store(SLEEPING, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                let mut responses = Producer::resume(capacity, thread.handler.responses.get());
                let sleeps = responses.free::<RESPONSE_WORDS>(&buffer) == 0;
                if !sleeps {
                    buffer.handler().store(AWAKE, Ordering::Relaxed);
                }
                sleeps
            }
            Turn::Stopped => {
                buffer.handler().store(SLEEPING, Ordering::Relaxed);
                true
            }
        };
        if sleeps {
            thread.handler.set_state(HandlerState::Asleep);
            self.handlers_awake.set(self.handlers_awake.get() - 1);
        } else {
            self.queue_handler(thread, self.find_server(thread));
        }
    }

    /// Removes a handler whose buffer has invalid indexes. The buffer is not read again.
    fn break_handler(&self, thread: Ref<Tcb>, buffer: &Buffer) {
        buffer.handler().store(BROKEN, Ordering::Relaxed);
        self.forget_handler(thread);
    }

    /// Executes some of a thread's requests.
    fn turn(&self, thread: Ref<Tcb>) -> Turn {
        let handler = &thread.handler;
        if thread.state() == ThreadState::Inactive {
            return Turn::Stopped;
        }
        let Some(buffer) = Buffer::of(thread) else {
            self.forget_handler(thread);
            return Turn::Gone;
        };
        let mut requests = Consumer::resume(buffer.capacity, handler.requests.get());
        let mut responses = Producer::resume(buffer.capacity, handler.responses.get());
        let Ok(count) = requests.look::<REQUEST_WORDS>(&buffer) else {
            self.break_handler(thread, &buffer);
            return Turn::Gone;
        };
        let mut turn = match responses.free::<RESPONSE_WORDS>(&buffer) {
            _ if count == 0 => return Turn::Empty,
            0 => return Turn::Full,
            _ => Turn::More,
        };
        let places = responses.free::<RESPONSE_WORDS>(&buffer);
        let mut row = PagingRow::of(thread);
        for _ in 0..count.min(places).min(TURN) {
            let Some(place) = requests.take_place() else { break };
            let request = buffer.request(place);
            let (cid, information) = (request.get(0), MessageInfo(request.get(2)));
            let answer = if self.serve_page_request(&mut row, request, information) {
                Ok(MessageInfo(0))
            } else {
                match self.serve_any_request(thread, &mut row, (&buffer, place), information) {
                    Ok(answer) => answer,
                    Err(Stopped::Gone) => {
                        turn = Turn::Gone;
                        break;
                    }
                    Err(Stopped::Preempted) => {
                        requests.leave_last();
                        break;
                    }
                }
            };
            // There is room: only this handler posts, and the thread cannot revoke free entries.
            if let Ok(place) = responses.next_place::<RESPONSE_WORDS>(&buffer) {
                self.answer(&buffer, place, cid, answer);
            }
            if self.must_stop() {
                break;
            }
        }
        self.flush_deferred();
        if turn == Turn::Gone {
            self.forget_handler(thread);
            return turn;
        }
        handler.requests.set(requests.taken());
        requests.hand_back::<REQUEST_WORDS>(&buffer);
        responses.publish::<RESPONSE_WORDS>(&buffer);
        handler.responses.set(responses.published());
        if ring::must_be_called(buffer.receiver()) {
            buffer.receiver().store(AWAKE, Ordering::Relaxed);
            if let Some((notification, badge)) = thread.own_slot(own::DOORBELL).capability.signal() {
                self.signal(notification, badge);
            }
        }
        turn
    }

    /// Maps or unmaps a small page, if a request asks for that and can succeed; returns whether that is done. If not,
    /// nothing has changed.
    #[inline(always)]
    fn serve_page_request(&self, row: &mut PagingRow, request: Request<'_>, information: MessageInfo) -> bool {
        const MAP: Option<u64> = Invocation::PageMap.label(NUMBERING);
        const UNMAP: Option<u64> = Invocation::PageUnmap.label(NUMBERING);
        let label = Some(information.label());
        if label == MAP && information.capabilities() == 1 && information.length() >= 3 {
            let page_request = PageRequest {
                page: request.get(1),
                space: request.get(capability_word(0)),
                address: request.get(FIRST_ARGUMENT),
                rights: request.get(FIRST_ARGUMENT + 1),
                attributes: request.get(FIRST_ARGUMENT + 2),
            };
            return self.map_in_row(row, page_request);
        }
        label == UNMAP && information.capabilities() == 0 && self.unmap_in_row(row, request.get(1))
    }

    /// Executes a request of a thread. Returns the message information of the answer, whose words are the proxy's
    /// message.
    #[inline(never)]
    fn serve_any_request(
        &self,
        thread: Ref<Tcb>,
        row: &mut PagingRow,
        (buffer, place): (&Buffer, usize),
        information: MessageInfo,
    ) -> Result<Result<MessageInfo, InvocationError>, Stopped> {
        // Made here once more: as an argument it would be stored for each request of the other way, too.
        let request = buffer.request(place);
        let invocation = Invocation::from_label(information.label(), NUMBERING);
        let is_paging = matches!(invocation, Some(Invocation::PageMap | Invocation::PageUnmap));
        if !is_paging {
            self.flush_deferred();
        }
        self.deferred_flushes.set_deferring(is_paging);
        let outcome = match invocation {
            Some(invocation) if asynchronous::covers(invocation) => {
                self.serve_request(thread, request, information, invocation)
            }
            _ => Ok(write_request(request, information)),
        };
        self.deferred_flushes.set_deferring(false);
        // The request may have deleted the handler or a frame of its buffer, even if it was preempted. No other
        // invocation that is covered deletes a capability.
        let deletes = matches!(invocation, Some(Invocation::CNodeDelete | Invocation::CNodeRevoke));
        if deletes && (thread.handler.state() == HandlerState::None || Buffer::of(thread).is_none()) {
            return Err(Stopped::Gone);
        }
        if !is_paging {
            row.end();
        }
        outcome.map_err(|Preempted| Stopped::Preempted)
    }

    /// Invokes the capability that a request names, as a system call would.
    #[inline(always)]
    fn serve_request(
        &self,
        thread: Ref<Tcb>,
        request: Request<'_>,
        information: MessageInfo,
        invocation: Invocation,
    ) -> Result<Result<MessageInfo, InvocationError>, Preempted> {
        let look = |pointer| {
            cspace::lookup(thread, pointer)
                .map_err(|failure| InvocationError::FailedLookup { operand: Operand::Destination, failure })
        };
        let slot = match look(request.get(1)) {
            Ok(slot) => slot,
            Err(error) => return Ok(Err(error)),
        };
        let mut capabilities = [None; MAXIMUM_CAPABILITIES];
        for (index, place) in capabilities.iter_mut().enumerate().take(information.capabilities()) {
            match look(request.get(capability_word(index))) {
                Ok(slot) => *place = Some(slot),
                Err(error) => return Ok(Err(error)),
            }
        }
        let Some(proxy) = self.node().proxy.get() else { return Ok(Err(InvocationError::IllegalOperation)) };
        let length = information.length().min(ARGUMENTS);
        let words = if length > REGISTERS { message::receive_buffer(proxy) } else { None };
        for index in 0..length {
            set_message_register(proxy, words, index, request.get(FIRST_ARGUMENT + index));
        }
        let arguments = Arguments::of_request(proxy, words, length as u64, capabilities);
        let invocation = Some(invocation);
        match slot.capability.tag() {
            tag::FRAME => self.serve_frame(slot, invocation, &arguments),
            tag::PAGE_TABLE => self.serve_table(slot, invocation, &arguments),
            tag::CNODE => self.serve_cnode(slot, invocation, &arguments),
            tag::UNTYPED => self.serve_untyped(slot, invocation, &arguments),
            tag::THREAD => self.serve_tcb(slot, invocation, &arguments),
            tag::NULL | tag::ZOMBIE => return Ok(Err(InvocationError::InvalidCapability(0))),
            // Requests send no messages, and the other objects have no invocations with these labels.
            _ => return Ok(Err(InvocationError::IllegalOperation)),
        }?;
        Ok(Ok(MessageInfo(proxy.register::<11>().get())))
    }

    /// Writes a response. A plain success has no words.
    #[inline(always)]
    fn answer(&self, buffer: &Buffer, place: usize, cid: u64, answer: Result<MessageInfo, InvocationError>) {
        let response = buffer.response(place);
        response.set(0, cid);
        match answer {
            Ok(MessageInfo(0)) => response.set(1, 0),
            other => self.answer_with_words(buffer, place, other),
        }
    }

    #[inline(never)]
    fn answer_with_words(&self, buffer: &Buffer, place: usize, answer: Result<MessageInfo, InvocationError>) {
        let response = buffer.response(place);
        let mut results = [0; RESULTS];
        let information = match answer {
            Ok(information) => {
                if let Some(proxy) = self.node().proxy.get() {
                    let words = message::receive_buffer(proxy);
                    for (index, result) in results.iter_mut().enumerate().take(information.length()) {
                        *result = message_register(proxy, words, index);
                    }
                }
                information
            }
            Err(error) => {
                let (words, count) = error.to_words();
                results[..words.len()].copy_from_slice(&words);
                MessageInfo::new(error.kind().number() as u64, 0, count)
            }
        };
        response.set(1, information.0);
        results.iter().enumerate().for_each(|(index, &result)| response.set(2 + index, result));
    }
}

/// Returns the slots of a thread's handler.
fn handler_slots(thread: Ref<Tcb>) -> impl Iterator<Item = Ref<Slot>> {
    (own::DOORBELL..TCB_SLOTS).map(move |index| thread.own_slot(index))
}

/// Executes a request that invokes no capability.
#[inline(never)]
fn write_request(request: Request<'_>, information: MessageInfo) -> Result<MessageInfo, InvocationError> {
    if !cfg!(feature = "debug-calls") {
        return Err(InvocationError::IllegalOperation);
    }
    match information.label() {
        asynchronous::PUT_CHAR => console::write_bytes(&[request.get(FIRST_ARGUMENT) as u8]),
        asynchronous::PUT_STRING => {
            let words: [[u8; 8]; ARGUMENTS] =
                core::array::from_fn(|index| request.get(FIRST_ARGUMENT + index).to_le_bytes());
            let bytes = words.as_flattened();
            console::write_bytes(&bytes[..information.length().min(asynchronous::STRING_BYTES)]);
        }
        _ => return Err(InvocationError::IllegalOperation),
    }
    Ok(MessageInfo(0))
}

/// Makes a thread a proxy, with this page as its IPC buffer.
pub fn make_proxy(proxy: Ref<Tcb>, page: u64) {
    let rights = PageRights::ReadWrite;
    let frame = Capability::Frame { base: page, size: FrameSize::Small, rights, device: false, mapping: None };
    proxy.own_slot(own::BUFFER).capability.set(frame);
}
