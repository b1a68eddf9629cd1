//! A thread's SyscallBuffer: invocations without a kernel entry for each.
//!
//! Requests are [submitted](SyscallBuffer::submit), then [published](SyscallBuffer::publish) together; the kernel
//! carries them out in order, on a hart that has nothing better to do or when it is [called](SyscallBuffer::call), and
//! posts responses. What is shared, and who tells whom when, stands in [`abi_queue::syscall_buffer`]; what can be asked
//! for in [`abi_sel4::asynchronous`].
//!
//! This is the mechanism alone, for one thread, without a heap. The kernel trusts nothing that stands in the buffer,
//! the program trusts the kernel.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use abi_queue::syscall_buffer::{
    ARGUMENTS, AWAKE, CAPABILITIES, FIRST_ARGUMENT, FIRST_CAPABILITY, HANDLER_OFFSET, RECEIVER_OFFSET,
    REQUEST_HEAD_OFFSET, REQUEST_TAIL_OFFSET, REQUEST_WORDS, RESPONSE_HEAD_OFFSET, RESPONSE_TAIL_OFFSET,
    RESPONSE_WORDS, RESULTS, SLEEPING, request_offset, response_offset, size,
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
        let words = &self.words[request_offset(place) / 8..][..REQUEST_WORDS];
        core::array::from_fn(|index| words[index].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn write(&self, place: usize, entry: [u64; REQUEST_WORDS]) {
        let words = &self.words[request_offset(place) / 8..][..REQUEST_WORDS];
        words.iter().zip(entry).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
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
        let words = &self.words[response_offset(self.capacity, place) / 8..][..RESPONSE_WORDS];
        core::array::from_fn(|index| words[index].load(Ordering::Relaxed))
    }

    fn write(&self, place: usize, entry: [u64; RESPONSE_WORDS]) {
        let words = &self.words[response_offset(self.capacity, place) / 8..][..RESPONSE_WORDS];
        words.iter().zip(entry).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
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
    /// Makes a buffer with places for so many requests, a power of two from 64 to 4,096, which nobody has registered
    /// yet. Up to 128 it takes pages of 4 KiB, above that one of 2 MiB.
    ///
    /// # Errors
    ///
    /// Slots, memory or addresses are too few.
    ///
    /// # Panics
    ///
    /// There is no buffer of this capacity.
    pub fn new(allocator: &mut Allocator, window: &mut Window, capacity: usize) -> Result<SyscallBuffer> {
        assert!(abi_queue::syscall_buffer::is_capacity(capacity), "no buffer has {capacity} places");
        let small = (size(capacity) as u64).div_ceil(1 << PAGE_BITS);
        let (frames, (address, first_frame)) = if small <= abi_queue::syscall_buffer::MAXIMUM_FRAMES as u64 {
            (small, window.pages(allocator, small)?)
        } else {
            (1, window.mega_pages(allocator, 1)?)
        };
        let start = core::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the pages are new, zero and mapped for ever, and nobody else knows them; the kernel changes words as
        // atomics.
        let words = unsafe { core::slice::from_raw_parts(start, size(capacity) / 8) };
        Ok(SyscallBuffer { memory: Memory { words, capacity }, requests: Producer::new(capacity), first_frame, frames })
    }

    /// Gives the buffer to a thread of this program's CSpace. The notification is signalled when there are responses
    /// and nobody looks for them.
    ///
    /// # Errors
    ///
    /// What the kernel says; one that knows no asynchronous invocations says [`Error::IllegalOperation`].
    pub fn register(&self, thread: Thread, notification: Notification) -> Result<()> {
        let words = [self.capacity() as u64, self.first_frame.pointer(), self.frames];
        raw::invoke(thread.pointer(), Invocation::TcbRegisterAsyncSyscall, &words, &[notification.pointer()]).map(drop)
    }

    /// Makes the buffer one through which nothing has gone, to be registered anew; while nothing is in flight.
    pub fn restart(&mut self) {
        self.requests = Producer::new(self.capacity());
        for offset in [REQUEST_TAIL_OFFSET, RESPONSE_HEAD_OFFSET, RESPONSE_TAIL_OFFSET] {
            self.word(offset).store(0, Ordering::Relaxed);
        }
    }

    /// How many requests it has places for.
    pub fn capacity(&self) -> usize {
        self.memory.capacity
    }

    /// A word of the buffer as it is, by its offset: for tests that write what nobody should.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.word(offset)
    }

    /// Its frames, in consecutive slots: the first, and how many.
    pub fn frames(&self) -> (Page, u64) {
        (self.first_frame, self.frames)
    }

    /// Writes a request, which the kernel does not see yet.
    ///
    /// # Errors
    ///
    /// [`Full`]; nothing has happened. There is a place when responses were taken and the kernel has been called.
    #[inline(always)]
    pub fn submit(&mut self, request: SyscallRequest) -> core::result::Result<(), Full> {
        self.requests.push(&self.memory, request.to_words())
    }

    /// Writes a request of these parts, as [`submit`](Self::submit) does, and nothing more than they are.
    ///
    /// # Errors
    ///
    /// [`Full`]; nothing has happened.
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
        let entry = &self.memory.words[request_offset(place) / 8..][..REQUEST_WORDS];
        let write = |index: usize, value: u64| entry[index].store(value, Ordering::Relaxed);
        write(0, cid);
        write(1, target);
        write(2, information.0);
        words.iter().enumerate().for_each(|(index, &word)| write(FIRST_ARGUMENT + index, word));
        capabilities.iter().enumerate().for_each(|(index, &word)| write(FIRST_CAPABILITY + index, word));
        Ok(())
    }

    /// Shows all requests that were written to the kernel.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.requests.publish::<REQUEST_WORDS>(&self.memory);
    }

    /// How many requests were written and not published.
    #[inline(always)]
    pub fn unpublished(&self) -> u64 {
        self.requests.unpublished()
    }

    /// Whether the kernel will not look at what was published unless it is called.
    #[inline(always)]
    pub fn must_call(&self) -> bool {
        ring::must_be_called(self.memory.word(HANDLER_OFFSET))
    }

    /// Whether the kernel sleeps; a cheap look without any guarantee.
    #[inline(always)]
    pub fn handler_sleeps(&self) -> bool {
        self.memory.word(HANDLER_OFFSET).load(Ordering::Relaxed) != AWAKE
    }

    /// Calls the kernel; says whether the calling thread has a buffer.
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

    /// Takes the oldest response: its cid, and the word that describes it. What it has besides is read with the
    /// function, if it is more than that it was done.
    #[inline(always)]
    pub fn take_with(&mut self, look: impl FnOnce(u64, MessageInfo, &dyn Fn() -> [u64; RESULTS])) -> bool {
        let Some(place) = trusting::peek_place::<RESPONSE_WORDS>(&self.memory, self.memory.capacity) else {
            return false;
        };
        let entry = &self.memory.words[response_offset(self.memory.capacity, place) / 8..][..RESPONSE_WORDS];
        let word = |index: usize| entry[index].load(Ordering::Relaxed);
        look(word(0), MessageInfo(word(1)), &|| core::array::from_fn(|index| word(2 + index)));
        trusting::advance::<RESPONSE_WORDS>(&self.memory, 1);
        true
    }

    /// Says that nobody will look for responses from now on, so that the notification is signalled for the next. Says
    /// whether that is so: if some have come meanwhile it is not.
    pub fn fall_asleep(&self) -> bool {
        let receiver = self.memory.word(RECEIVER_OFFSET);
        receiver.store(SLEEPING, Ordering::Relaxed);
        // Pairs with the one between the kernel's posting and its look at the flag.
        fence(Ordering::SeqCst);
        if trusting::is_empty::<RESPONSE_WORDS>(&self.memory) {
            return true;
        }
        self.wake_up();
        false
    }

    /// Says that responses are looked for again.
    #[inline(always)]
    pub fn wake_up(&self) {
        self.memory.word(RECEIVER_OFFSET).store(AWAKE, Ordering::Relaxed);
    }
}

/// An invocation as a request.
///
/// # Panics
///
/// It has more than eight words or three capabilities, or this kernel does not count it.
pub fn request(cid: u64, target: u64, invocation: Invocation, words: &[u64], capabilities: &[u64]) -> SyscallRequest {
    let label = invocation.label(raw::numbering()).expect("every invocation that can be asynchronous has a label");
    request_of_label(cid, target, label, words, capabilities)
}

/// The same with any label.
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

/// What a response says.
///
/// # Errors
///
/// The kernel's error, as for a synchronous invocation.
#[inline(always)]
pub fn result(response: &SyscallResponse) -> Result<Answer> {
    let information = MessageInfo(response.information);
    let [a, b, c, d, ..] = response.results;
    match information.label() {
        // A response that has no words is not written further than to the one that says so.
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
