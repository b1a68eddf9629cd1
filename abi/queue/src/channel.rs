//! The rings of asynchronous IPC: memory in which two processes call each other without the kernel.
//!
//! One is the *client* and makes requests, the other the *server* and answers; two that call each other both ways share
//! two such memories. The memory begins with [`HEADER_WORDS`] words, each line of eight written by one side only; then
//! come the entries of the request ring, then those of the response ring, [`ENTRY_WORDS`] words each: a token, which
//! the answer repeats, and a message. The smallest has both rings in one page. The memory behind the rings is for data
//! to which messages point; its meaning is the two sides' own.
//!
//! Both rings have the same capacity, which both sides were told when they were set up and never read from the memory.
//! A client has no more requests in flight than that, so that no response ever finds the ring full. The `ring` crate
//! has the algorithm and the reason for each memory order.
//!
//! **Sleeping and waking.** Each side publishes in its state whether it sleeps
//! ([`SLEEPING`](crate::request::SLEEPING)). A side that has put an entry into a ring and reads that the other sleeps
//! sets the other's state to awake and signals its doorbell, a notification: so it is signalled once, for any number of
//! entries until it runs.
//!
//! **Closing.** [`CLOSED`] is set by the process that ends the connection, one of the two or the one that set it up,
//! and never cleared. A side that sees it uses the memory no more.
//!
//! **No trust.** Each side can write all words at any time. Each keeps its own indexes to itself, takes each entry out
//! once, and checks its copy; an impossible index or token ends the connection for the side that sees it, and nothing
//! else.

/// Words before the first entry.
pub const HEADER_WORDS: usize = 64;
/// Words of an entry: the token and seven of message.
pub const ENTRY_WORDS: usize = 8;
/// Words of a message.
pub const MESSAGE_WORDS: usize = ENTRY_WORDS - 1;
/// Minimum and maximum number of entries of a ring. Always a power of two.
pub const CAPACITIES: core::ops::RangeInclusive<usize> = 16..=1024;

/// Requests that were made; written by the client.
pub const REQUEST_TAIL: usize = 0;
/// Responses that were taken; written by the client.
pub const RESPONSE_HEAD: usize = 1;
/// Whether the client sleeps; written by the client, and by the server when it wakes it.
pub const CLIENT_STATE: usize = 8;
/// Requests that were taken; written by the server.
pub const REQUEST_HEAD: usize = 16;
/// Responses that were made; written by the server.
pub const RESPONSE_TAIL: usize = 17;
/// Whether the server sleeps; written by the server, and by the client when it wakes it.
pub const SERVER_STATE: usize = 24;
/// Not 0: the connection has ended.
pub const CLOSED: usize = 32;

/// Whether rings can have this capacity.
pub const fn is_capacity(capacity: usize) -> bool {
    capacity >= *CAPACITIES.start() && capacity <= *CAPACITIES.end() && capacity.is_power_of_two()
}

/// Returns the number of words of a memory with rings of this capacity, without the data behind them.
pub const fn words(capacity: usize) -> usize {
    HEADER_WORDS + 2 * ENTRY_WORDS * capacity
}

/// Returns the first word of the entry of a request.
pub const fn request_entry(place: usize) -> usize {
    HEADER_WORDS + ENTRY_WORDS * place
}

/// Returns the first word of the entry of a response.
pub const fn response_entry(capacity: usize, place: usize) -> usize {
    HEADER_WORDS + ENTRY_WORDS * (capacity + place)
}

const _: () = assert!(words(*CAPACITIES.start()) * 8 <= crate::pages::PAGE_SIZE);
const _: () = assert!(is_capacity(*CAPACITIES.start()) && is_capacity(*CAPACITIES.end()));
const _: () = assert!(response_entry(16, 15) + ENTRY_WORDS == words(16));
