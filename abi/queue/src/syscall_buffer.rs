//! The SyscallBuffer, through which a thread of the microkernel invokes capabilities without a kernel entry for each.
//!
//! The memory is the thread's own, one or several pages that it registers together with a notification: a header, and
//! rings of requests and of responses with the same capacity, a power of two between [`SMALLEST_CAPACITY`] and
//! [`LARGEST_CAPACITY`]. The thread produces requests and consumes responses, the kernel's handler does the opposite.
//! All indexes only grow and wrap at 2^64. The `ring` crate has the algorithm, with the reason for each memory order.
//!
//! **Heads and rests.** An entry has a head, with the words that nearly all entries have, and a rest. All heads lie
//! beside each other, because both sides of a ring fetch every entry that the other side has written:
//!
//! ```text
//!   header | heads of requests | heads of responses | rests of requests | rests of responses
//!   256 B    64 B each           16 B each            64 B each           64 B each (48 used)
//! ```
//!
//! So a request with one capability and up to four words is one line of a cache, and four plain answers are another.
//! With whole entries of 128 and 64 bytes, 64 invocations in flight would take 12 KiB instead of 5.
//!
//! **The two flags.** `handler` is the state of the kernel's side: while it is [`AWAKE`] it looks at the requests again
//! before it sleeps; once it is [`SLEEPING`] it has to be called (`WakeSyscallHandler`). `receiver` is the state of the
//! thread's side: while it is `SLEEPING`, the kernel signals the notification when it has posted responses, and sets
//! the flag to `AWAKE`.
//!
//! **No trust.** The kernel keeps its two indexes and the capacity on its own side, reads each word of a request once,
//! and takes no request for whose response there is no place. A `request_tail` that is more than the capacity ahead is
//! a defect of the thread: `handler` becomes [`BROKEN`], and nothing more is taken until the buffer is registered anew.

pub use crate::request::{AWAKE, BROKEN, LARGEST_CAPACITY, SLEEPING, SMALLEST_CAPACITY, is_capacity};

/// Offset of the number of requests that were made; written by the thread.
pub const REQUEST_TAIL_OFFSET: usize = 0;
/// Offset of the number of responses that were taken; written by the thread.
pub const RESPONSE_HEAD_OFFSET: usize = 8;
/// Offset of the number of requests that were taken; written by the kernel.
pub const REQUEST_HEAD_OFFSET: usize = 64;
/// Offset of the number of responses that were posted; written by the kernel.
pub const RESPONSE_TAIL_OFFSET: usize = 72;
/// Offset of the state of the kernel's side; written by the kernel.
pub const HANDLER_OFFSET: usize = 80;
/// Offset of the state of the thread's side; written by both.
pub const RECEIVER_OFFSET: usize = 128;
/// Offset of the first request.
pub const REQUESTS_OFFSET: usize = 256;

/// Words of a request.
pub const REQUEST_WORDS: usize = 16;
/// Words in the head of a request.
pub const REQUEST_HEAD_WORDS: usize = 8;
/// Words of a response.
pub const RESPONSE_WORDS: usize = 8;
/// Words in the head of a response: the cid, and the word that describes the answer.
pub const RESPONSE_HEAD_WORDS: usize = 2;
/// Bytes of each part of an entry.
const REQUEST_HEAD_SIZE: usize = REQUEST_HEAD_WORDS * 8;
const RESPONSE_HEAD_SIZE: usize = RESPONSE_HEAD_WORDS * 8;
const REST_SIZE: usize = 64;
/// Words of the message in a request.
pub const ARGUMENTS: usize = 8;
/// Capabilities in a request.
pub const CAPABILITIES: usize = 3;
/// Words of the message in a response.
pub const RESULTS: usize = 6;
/// Word of a request at which its message begins, behind the cid, the invoked capability, the word that describes the
/// message, and its first capability.
pub const FIRST_ARGUMENT: usize = 4;
/// Maximum number of frames of a buffer, all of the same size.
pub const MAXIMUM_FRAMES: usize = 8;

/// Returns the word of a request that has a capability of its message.
#[inline(always)]
pub const fn capability_word(index: usize) -> usize {
    match index {
        0 => FIRST_ARGUMENT - 1,
        _ => FIRST_ARGUMENT + ARGUMENTS - 1 + index,
    }
}

/// Returns the offset of a word of the request at this place in a buffer of this capacity. The words of a head follow
/// each other, and those of a rest.
#[inline(always)]
pub const fn request_word(capacity: usize, place: usize, word: usize) -> usize {
    match word {
        0..REQUEST_HEAD_WORDS => REQUESTS_OFFSET + place * REQUEST_HEAD_SIZE + 8 * word,
        _ => rests(capacity) + place * REST_SIZE + 8 * (word - REQUEST_HEAD_WORDS),
    }
}

/// Returns the offset of a word of the response at this place in a buffer of this capacity. The words of a head follow
/// each other, and those of a rest.
#[inline(always)]
pub const fn response_word(capacity: usize, place: usize, word: usize) -> usize {
    match word {
        0..RESPONSE_HEAD_WORDS => {
            REQUESTS_OFFSET + capacity * REQUEST_HEAD_SIZE + place * RESPONSE_HEAD_SIZE + 8 * word
        }
        _ => rests(capacity) + (capacity + place) * REST_SIZE + 8 * (word - RESPONSE_HEAD_WORDS),
    }
}

/// Returns the offset of the rests of all entries, first those of requests.
#[inline(always)]
const fn rests(capacity: usize) -> usize {
    REQUESTS_OFFSET + capacity * (REQUEST_HEAD_SIZE + RESPONSE_HEAD_SIZE)
}

/// Returns the bytes of a buffer of this capacity.
pub const fn size(capacity: usize) -> usize {
    rests(capacity) + 2 * capacity * REST_SIZE
}

/// A request as plain values: a message to a capability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyscallRequest {
    /// Value that the response repeats.
    pub cid: u64,
    /// Pointer of the invoked capability.
    pub capability: u64,
    /// Word that describes the message, as register `a1` of the synchronous call has it: label, and numbers of words
    /// and capabilities that follow.
    pub information: u64,
    /// The words of the message.
    pub arguments: [u64; ARGUMENTS],
    /// The pointers of the capabilities of the message.
    pub capabilities: [u64; CAPABILITIES],
}

impl SyscallRequest {
    /// Returns the words of an entry. Words that the message does not have need not be written.
    #[inline(always)]
    pub const fn to_words(self) -> [u64; REQUEST_WORDS] {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.arguments;
        let [c0, c1, c2] = self.capabilities;
        [self.cid, self.capability, self.information, c0, a0, a1, a2, a3, a4, a5, a6, a7, c1, c2, 0, 0]
    }

    /// Reads the words of an entry.
    #[inline(always)]
    pub const fn from_words(words: [u64; REQUEST_WORDS]) -> SyscallRequest {
        let [cid, capability, information, c0, a0, a1, a2, a3, a4, a5, a6, a7, c1, c2, _, _] = words;
        SyscallRequest {
            cid,
            capability,
            information,
            arguments: [a0, a1, a2, a3, a4, a5, a6, a7],
            capabilities: [c0, c1, c2],
        }
    }
}

/// A response of the kernel, as plain values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyscallResponse {
    /// The request's cid.
    pub cid: u64,
    /// Word that describes the answer: its label is 0 or an error, its length that of the results.
    pub information: u64,
    /// Words of the answer. Invalid if `information` is 0.
    pub results: [u64; RESULTS],
}

impl SyscallResponse {
    /// Returns the words of an entry.
    #[inline(always)]
    pub const fn to_words(self) -> [u64; RESPONSE_WORDS] {
        let [r0, r1, r2, r3, r4, r5] = self.results;
        [self.cid, self.information, r0, r1, r2, r3, r4, r5]
    }

    /// Reads the words of an entry.
    #[inline(always)]
    pub const fn from_words([cid, information, r0, r1, r2, r3, r4, r5]: [u64; RESPONSE_WORDS]) -> SyscallResponse {
        SyscallResponse { cid, information, results: [r0, r1, r2, r3, r4, r5] }
    }
}

// No part of an entry lies across two pages, or across two lines of a cache.
const _: () = assert!(REQUESTS_OFFSET.is_multiple_of(64) && REQUEST_HEAD_SIZE == 64 && REST_SIZE == 64);
const _: () = assert!(64_usize.is_multiple_of(RESPONSE_HEAD_SIZE) && SMALLEST_CAPACITY.is_multiple_of(4));
const _: () = assert!((REQUEST_WORDS - REQUEST_HEAD_WORDS) * 8 <= REST_SIZE);
const _: () = assert!((RESPONSE_WORDS - RESPONSE_HEAD_WORDS) * 8 <= REST_SIZE);
const _: () = assert!(RECEIVER_OFFSET + 8 <= REQUESTS_OFFSET);
// The smallest buffer consists of small pages, the largest of one page of 2 MiB.
const _: () = assert!(size(SMALLEST_CAPACITY) <= MAXIMUM_FRAMES * crate::pages::PAGE_SIZE);
const _: () = assert!(size(LARGEST_CAPACITY) <= 2 << 20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_a_place_of_their_own_each() {
        for capacity in [SMALLEST_CAPACITY, 128, 1024, LARGEST_CAPACITY] {
            let words = (0..capacity).flat_map(|place| {
                let request = (0..REQUEST_WORDS).map(move |word| request_word(capacity, place, word));
                request.chain((0..RESPONSE_WORDS).map(move |word| response_word(capacity, place, word)))
            });
            let mut offsets: Vec<_> = words.collect();
            assert!(offsets.iter().all(|offset| (REQUESTS_OFFSET..size(capacity)).contains(offset) && offset % 8 == 0));
            offsets.sort_unstable();
            offsets.dedup();
            assert_eq!(offsets.len(), capacity * (REQUEST_WORDS + RESPONSE_WORDS));
        }
        assert_eq!([size(64).div_ceil(4096), size(128).div_ceil(4096)], [4, 7]);
    }

    #[test]
    fn usual_entries_are_one_line_of_a_cache_at_most() {
        let line = |offset: usize| offset / 64;
        for place in 0..64 {
            // To map a page takes three words and a capability.
            let last = (FIRST_ARGUMENT + 3).max(capability_word(0));
            assert_eq!(line(request_word(64, place, 0)), line(request_word(64, place, last)));
            // A plain answer has no words.
            assert_eq!(line(response_word(64, place & !3, 0)), line(response_word(64, place | 3, 1)));
        }
        assert_eq!([0, 1, 2].map(capability_word), [3, 12, 13]);
    }

    #[test]
    fn words_of_requests_and_responses_are_in_order() {
        let request = SyscallRequest {
            cid: 1,
            capability: 2,
            information: 3,
            arguments: [4, 5, 6, 7, 8, 9, 10, 11],
            capabilities: [12, 13, 14],
        };
        assert_eq!(request.to_words(), [1, 2, 3, 12, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 0, 0]);
        assert_eq!(SyscallRequest::from_words(request.to_words()), request);
        let response = SyscallResponse { cid: 1, information: 2, results: [3, 4, 5, 6, 7, 8] };
        assert_eq!(response.to_words(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(SyscallResponse::from_words(response.to_words()), response);
    }
}
