//! A thread's SyscallBuffer: invocations without a kernel entry for each.
//!
//! Requests are [submitted](SyscallBuffer::submit), then [published](SyscallBuffer::publish) together; the kernel
//! carries them out in order, on an idle hart or when it is [called](SyscallBuffer::call), and posts responses. For the
//! shared words and the protocol of notification see [`abi_queue::syscall_buffer`]; for the possible requests
//! [`abi_sel4::asynchronous`].
//!
//! This is the mechanism alone, for one thread, without a heap. The kernel does not trust the content of the buffer;
//! the program trusts the kernel.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use abi_queue::syscall_buffer::{
    ARGUMENTS, AWAKE, CAPABILITIES, FIRST_ARGUMENT, HANDLER_OFFSET, RECEIVER_OFFSET, REQUEST_HEAD_OFFSET,
    REQUEST_HEAD_WORDS, REQUEST_TAIL_OFFSET, REQUEST_WORDS, RESPONSE_HEAD_OFFSET, RESPONSE_HEAD_WORDS,
    RESPONSE_TAIL_OFFSET, RESPONSE_WORDS, RESULTS, SLEEPING, capability_word, request_word, response_word, size,
};
use abi_queue::{SyscallRequest, SyscallResponse};
use abi_sel4::object::PAGE_BITS;
use abi_sel4::{Error, Invocation, MessageInfo};
use ring::{Producer, trusting};

pub use ring::Full;

use crate::allocator::Allocator;
use crate::capability::{Notification, Page, Thread};
use crate::mapping::Window;
use crate::raw::{self, Answer, Failure, Result};

/// The buffer's memory.
#[derive(Clone, Copy)]
struct Memory {
    words: &'static [AtomicU64],
    capacity: usize,
}

impl Memory {
    #[inline(always)]
    fn word(&self, offset: usize) -> &'static AtomicU64 {
        &self.words[offset / 8]
    }

    /// Returns the head of the request at a place.
    #[inline(always)]
    fn request_head(&self, place: usize) -> &'static [AtomicU64] {
        &self.words[request_word(self.capacity, place, 0) / 8..][..REQUEST_HEAD_WORDS]
    }

    /// Returns the head of the response at a place.
    #[inline(always)]
    fn response_head(&self, place: usize) -> &'static [AtomicU64] {
        &self.words[response_word(self.capacity, place, 0) / 8..][..RESPONSE_HEAD_WORDS]
    }
}

impl ring::Words<REQUEST_WORDS> for Memory {
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        self.word(REQUEST_TAIL_OFFSET)
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.word(REQUEST_HEAD_OFFSET)
    }

    fn read(&self, place: usize) -> [u64; REQUEST_WORDS] {
        core::array::from_fn(|word| self.word(request_word(self.capacity, place, word)).load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn write(&self, place: usize, entry: [u64; REQUEST_WORDS]) {
        let store = |word, value| self.word(request_word(self.capacity, place, word)).store(value, Ordering::Relaxed);
        entry.into_iter().enumerate().for_each(|(word, value)| store(word, value));
    }
}

impl ring::Words<RESPONSE_WORDS> for Memory {
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        self.word(RESPONSE_TAIL_OFFSET)
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.word(RESPONSE_HEAD_OFFSET)
    }

    #[inline(always)]
    fn read(&self, place: usize) -> [u64; RESPONSE_WORDS] {
        core::array::from_fn(|word| self.word(response_word(self.capacity, place, word)).load(Ordering::Relaxed))
    }

    fn write(&self, place: usize, entry: [u64; RESPONSE_WORDS]) {
        let store = |word, value| self.word(response_word(self.capacity, place, word)).store(value, Ordering::Relaxed);
        entry.into_iter().enumerate().for_each(|(word, value)| store(word, value));
    }
}

/// The program's side of a SyscallBuffer.
pub struct SyscallBuffer {
    memory: Memory,
    requests: Producer,
    first_frame: Page,
    frames: u64,
}

impl SyscallBuffer {
    /// Makes a buffer with places for `capacity` requests, a power of two from 64 to 4,096, which is not registered
    /// yet. Up to 128 it takes pages of 4 KiB, above that one of 2 MiB.
    ///
    /// # Errors
    ///
    /// Slots, memory or addresses are too few.
    ///
    /// # Panics
    ///
    /// No buffer has this capacity.
    pub fn new(allocator: &mut Allocator, window: &mut Window, capacity: usize) -> Result<SyscallBuffer> {
        assert!(abi_queue::syscall_buffer::is_capacity(capacity), "no buffer has {capacity} places");
        let small = (size(capacity) as u64).div_ceil(1 << PAGE_BITS);
        let (frames, (address, first_frame)) = if small <= abi_queue::syscall_buffer::MAXIMUM_FRAMES as u64 {
            (small, window.pages(allocator, small)?)
        } else {
            (1, window.mega_pages(allocator, 1)?)
        };
        let start = core::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the pages are new, zero and mapped for ever, and no other code has them; the kernel changes words as
        // atomics.
        let words = unsafe { core::slice::from_raw_parts(start, size(capacity) / 8) };
        Ok(SyscallBuffer { memory: Memory { words, capacity }, requests: Producer::new(capacity), first_frame, frames })
    }

    /// Registers the buffer for a thread of this program's CSpace. The notification is signalled when there are
    /// responses and the program does not look for them. Not an invocation of seL4.
    ///
    /// # Errors
    ///
    /// The kernel's error; a kernel without asynchronous invocations answers [`Error::IllegalOperation`].
    pub fn register(&self, thread: Thread, notification: Notification) -> Result<()> {
        let words = [self.capacity() as u64, self.first_frame.pointer(), self.frames];
        raw::invoke(thread.pointer(), Invocation::TcbRegisterAsyncSyscall, &words, &[notification.pointer()]).map(drop)
    }

    /// Resets the buffer to its state before the first request, to be registered anew; only while no request is in
    /// flight.
    pub fn restart(&mut self) {
        self.requests = Producer::new(self.capacity());
        for offset in [REQUEST_TAIL_OFFSET, RESPONSE_HEAD_OFFSET, RESPONSE_TAIL_OFFSET] {
            self.word(offset).store(0, Ordering::Relaxed);
        }
    }

    /// Returns the number of places for requests.
    pub fn capacity(&self) -> usize {
        self.memory.capacity
    }

    /// Returns a word of the buffer by its offset: for tests that write illegal values.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.word(offset)
    }

    /// Returns the buffer's frames, in consecutive slots: the first, and their number.
    pub fn frames(&self) -> (Page, u64) {
        (self.first_frame, self.frames)
    }

    /// Writes a request, which the kernel does not see before it is published.
    ///
    /// # Errors
    ///
    /// [`Full`], without an effect. A place is free again when responses were taken and the kernel has been called.
    #[inline(always)]
    pub fn submit(&mut self, request: SyscallRequest) -> core::result::Result<(), Full> {
        self.requests.push(&self.memory, request.to_words())
    }

    /// Writes a request from its parts, as [`submit`](Self::submit) does, without a copy of the whole.
    ///
    /// # Errors
    ///
    /// [`Full`], without an effect.
    ///
    /// # Panics
    ///
    /// It has more than eight words or three capabilities.
    #[inline(always)]
    pub fn submit_message(
        &mut self,
        (cid, target, information): (u64, u64, MessageInfo),
        words: &[u64],
        capabilities: &[u64],
    ) -> core::result::Result<(), Full> {
        assert!(words.len() <= ARGUMENTS && capabilities.len() <= CAPABILITIES, "the message of a request is too long");
        let place = self.requests.next_place::<REQUEST_WORDS>(&self.memory)?;
        let head = self.memory.request_head(place);
        let write = |word: usize, value: u64| match head.get(word) {
            Some(place) => place.store(value, Ordering::Relaxed),
            None => {
                let offset = request_word(self.memory.capacity, place, word);
                self.memory.word(offset).store(value, Ordering::Relaxed);
            }
        };
        write(0, cid);
        write(1, target);
        write(2, information.0);
        words.iter().enumerate().for_each(|(index, &word)| write(FIRST_ARGUMENT + index, word));
        capabilities.iter().enumerate().for_each(|(index, &word)| write(capability_word(index), word));
        Ok(())
    }

    /// Publishes all requests that were written.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.requests.publish::<REQUEST_WORDS>(&self.memory);
    }

    /// Returns the number of requests that were written and not published.
    #[inline(always)]
    pub fn unpublished(&self) -> u64 {
        self.requests.unpublished()
    }

    /// Returns whether the kernel must be called to look at the published requests.
    #[inline(always)]
    pub fn must_call(&self) -> bool {
        ring::must_be_called(self.memory.word(HANDLER_OFFSET))
    }

    /// Returns whether the kernel sleeps; a cheap look without any guarantee.
    #[inline(always)]
    pub fn handler_sleeps(&self) -> bool {
        self.memory.word(HANDLER_OFFSET).load(Ordering::Relaxed) != AWAKE
    }

    /// Calls the kernel; returns whether the calling thread has a buffer.
    #[inline(always)]
    pub fn call(&self) -> bool {
        raw::wake_syscall_handler()
    }

    /// Takes the oldest response.
    #[inline(always)]
    pub fn take(&mut self) -> Option<SyscallResponse> {
        let words = trusting::peek::<RESPONSE_WORDS>(&self.memory, self.memory.capacity)?;
        trusting::advance::<RESPONSE_WORDS>(&self.memory, 1);
        Some(SyscallResponse::from_words(words))
    }

    /// Takes the oldest response and passes its cid and its describing word. The function reads further words, if the
    /// answer has any.
    #[inline(always)]
    pub fn take_with(&mut self, look: impl FnOnce(u64, MessageInfo, &dyn Fn() -> [u64; RESULTS])) -> bool {
        let Some(place) = trusting::peek_place::<RESPONSE_WORDS>(&self.memory, self.memory.capacity) else {
            return false;
        };
        let head = self.memory.response_head(place);
        let word = |index: usize| head[index].load(Ordering::Relaxed);
        let memory = &self.memory;
        let result = |index| memory.word(response_word(memory.capacity, place, RESPONSE_HEAD_WORDS + index));
        let results = || core::array::from_fn(|index| result(index).load(Ordering::Relaxed));
        look(word(0), MessageInfo(word(1)), &results);
        trusting::advance::<RESPONSE_WORDS>(&self.memory, 1);
        true
    }

    /// Declares that responses are not looked for from now on, so that the notification is signalled for the next.
    /// Returns whether that is so: it is not if some have come meanwhile.
    pub fn fall_asleep(&self) -> bool {
        let receiver = self.memory.word(RECEIVER_OFFSET);
        receiver.store(SLEEPING, Ordering::Relaxed);
        // Pairs with the fence between the kernel's posting and its look at the flag.
        fence(Ordering::SeqCst);
        if trusting::is_empty::<RESPONSE_WORDS>(&self.memory) {
            return true;
        }
        self.wake_up();
        false
    }

    /// Declares that responses are looked for again.
    #[inline(always)]
    pub fn wake_up(&self) {
        self.memory.word(RECEIVER_OFFSET).store(AWAKE, Ordering::Relaxed);
    }
}

/// Builds a request from an invocation.
///
/// # Panics
///
/// It has more than eight words or three capabilities, or this kernel has no label for it.
pub fn request(cid: u64, target: u64, invocation: Invocation, words: &[u64], capabilities: &[u64]) -> SyscallRequest {
    let label = invocation.label(raw::numbering()).expect("every invocation that can be asynchronous has a label");
    request_of_label(cid, target, label, words, capabilities)
}

/// Builds a request with any label.
///
/// # Panics
///
/// It has more than eight words or three capabilities.
#[inline(always)]
pub fn request_of_label(cid: u64, target: u64, label: u64, words: &[u64], capabilities: &[u64]) -> SyscallRequest {
    let information = MessageInfo::new(label, capabilities.len(), words.len()).0;
    let mut request = SyscallRequest { cid, capability: target, information, ..SyscallRequest::default() };
    request.arguments[..words.len()].copy_from_slice(words);
    request.capabilities[..capabilities.len()].copy_from_slice(capabilities);
    request
}

/// Decodes a response.
///
/// # Errors
///
/// The kernel's error, as for a synchronous invocation.
#[inline(always)]
pub fn result(response: &SyscallResponse) -> Result<Answer> {
    let information = MessageInfo(response.information);
    let [a, b, c, d, ..] = response.results;
    match information.label() {
        // A response without words is written only up to its describing word.
        0 => match information.length() {
            0 => Ok(Answer { length: 0, registers: [0; 4] }),
            length => Ok(Answer { length, registers: [a, b, c, d] }),
        },
        label => Err(match Error::from_number(label as usize) {
            Some(error) => Failure { invocation: None, error, details: response.results },
            None => Failure::new(Error::InvalidArgument, [label, 0]),
        }),
    }
}
