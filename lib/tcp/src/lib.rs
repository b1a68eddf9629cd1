//! One TCP connection as a state machine: segments and operations come in, segments go out, and nothing waits.
//!
//! **The problem.** A server's request over a network is two segments, and a stack that checks routes, neighbours and
//! every rare case for each of them, and carries the headers about as values, spends more on that than on the request.
//!
//! **The choice.** A [`ControlBlock`] is all that one connection knows (RFC 9293, section 3.3.1). It does not know its
//! ends' addresses, its place in tables, or the device. The usual segment, which is the next one and acknowledges what
//! was sent, takes a path of a few dozen instructions ([`ControlBlock::input`]); the next segment to leave is chosen by
//! one function ([`ControlBlock::output`]) and described by a few words ([`Departure`]), and only the caller's frame is
//! written.
//!
//! * RFC 9293: all states but LISTEN, which is the caller's, with its records of requests and cookies. Urgent data is
//!   ordinary data.
//! * RFC 7323: windows are scaled. Timestamps are offered and used if both sides have them: old duplicates are dropped
//!   (PAWS), and the time of a way and back is measured also by bytes that were sent again.
//! * RFC 2018, 6675, 6582: selective acknowledgements are told and used, and without them acknowledgements of parts.
//! * RFC 9438, 5681, 6928: CUBIC in integers, slow start from ten segments, and anew after a rest.
//! * RFC 6298: a retransmission timeout of at least 200 ms, as on Linux.
//! * RFC 5961: resets and requests in the window, and acknowledgements of what was never sent, are challenged.
//! * RFC 1122: Nagle's algorithm, acknowledgements that wait, no silly windows on either side, probes of closed windows
//!   and of silent peers.
//!
//! Times are in microseconds since any beginning; the caller's clock must not go back.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod congestion;
mod control_block;
mod ranges;
mod ring;
mod round_trip;
mod segment;
mod stamps;

pub use control_block::{
    Agreed, ControlBlock, FIRST_LIMIT, Handshake, Information, Limits, Planned, Reaction, Silence, State, Turn,
    first_window, shift_of,
};
pub use ring::{BLOCK, Ring, SMALLEST};
pub use segment::{Departure, HEADER, Options, Segment, flags};
pub use stamps::Stamps;

/// Microseconds.
pub type Time = u64;

/// Whether the sequence number `first` comes before `second`: numbers are compared by their distance (RFC 9293, section
/// 3.4).
#[inline(always)]
pub fn is_before(first: u32, second: u32) -> bool {
    (first.wrapping_sub(second) as i32) < 0
}
