//! All that one connection knows, and what it does with segments, operations and the passing of time.
//!
//! # Numbers
//! The ring `outgoing` begins at the sequence number `front`, behind the SYN. Of it, what is before `unacknowledged`
//! has left the ring. `next` is the number that is sent next; it goes back to `unacknowledged` when nothing was heard
//! in time, and `highest` is the end of all that was ever sent. The end of the stream has the number behind the ring's
//! last byte. The ring `incoming` ends at `expected`; bytes that came ahead of that lie behind its end, at the places
//! that `ahead` names.
//!
//! # Invariants
//! * `unacknowledged <= next <= highest`, and `highest` is at most one (the end) behind the ring's last byte.
//! * The right edge of the window that the other side was told goes back only if there is no memory for what it sends,
//!   and never lies behind the room. Segments up to the furthest edge are looked at all the same.
//! * Bytes are accepted only where the ring has memory for them: the holder is asked for it, or the bytes come again.
//! * Something is under way, or waits for a window, if and only if `timer` is set once [`turn`](ControlBlock::turn) has
//!   been called.

use crate::congestion::Congestion;
use crate::ranges::Ranges;
use crate::ring::{BLOCK, Ring};
use crate::round_trip::RoundTrip;
use crate::segment::{Departure, HEADER, Options, STAMPS_LENGTH, Segment, Told, flags, write_stamps};
use crate::stamps::{Stamps, TICK};
use crate::{Time, is_before};

/// Wait of an acknowledgement for data to travel with.
const ACKNOWLEDGEMENT_DELAY: Time = 10_000;
/// Number of bytes acknowledged without that wait: two full segments, also with the longest headers of most ways.
const ACKNOWLEDGED_AT_ONCE: u32 = 2 * 1428;
/// Number of bytes of which every second segment is acknowledged at once at the beginning of a connection, and after an
/// acknowledgement that waited and found no data to travel with: as many as Linux takes for sixteen full segments.
const EARLY: u32 = 16 * 1460;
/// Repeated acknowledgements that mean a loss (RFC 5681, section 3.2).
const REPEATED: u32 = 3;
/// Shortest time between two challenges (RFC 5961, section 7).
const BETWEEN_CHALLENGES: Time = 1_000_000;
/// Shortest time between two answers to probes, as on Linux.
const BETWEEN_ANSWERS: Time = 500_000;
/// Shortest silence after which the other side is probed.
const SHORTEST_SILENCE: Time = 1_000;
/// Ranges that a segment tells, as many as most others do: there is room for no more beside timestamps.
const RANGES_TOLD: usize = 3;
/// Limit of a buffer at the beginning of a connection, if it may be larger later: a little more than what most others
/// send at once then (RFC 6928).
pub const FIRST_LIMIT: usize = 1 << 14;
/// Most steps of memory for one segment, beside those for its own bytes: what has come too far ahead comes again.
const STEPS: usize = 8;
/// Time without larger windows after there was no memory for bytes; it doubles each time, up to the longest.
const SHORTAGE: Time = 10_000_000;
const LONGEST_SHORTAGE: Time = 320_000_000;
/// Longest wait of bytes behind a cork, as on Linux.
const LONGEST_CORK: Time = 200_000;
/// Least room that the other side is told, whatever memory there is.
const FEWEST: usize = 512;
/// Longest time in which the other side fills the window of a connection that would carry more with a larger one. No
/// way over the earth, or to a satellite and back, is longer.
const LONGEST_WAY: Time = 1_000_000;
/// Smallest segment to send, whatever the other side states (as on Linux).
const SMALLEST_SEGMENT: u16 = 88;

/// States of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no connection any more.
    Closed,
    /// A request was sent.
    SynSent,
    /// A request has come, and its answer was sent.
    SynReceived,
    /// Both sides send.
    Established,
    /// This side has ended its stream, and that is not acknowledged yet.
    FinWait1,
    /// This side has ended its stream.
    FinWait2,
    /// The other side has ended its stream.
    CloseWait,
    /// Both sides have ended their streams, and this side's end is not acknowledged yet.
    Closing,
    /// As `Closing`, where the other side was first.
    LastAck,
    /// Both streams have ended, this side's first.
    TimeWait,
}

/// Agreement about a connection, from the segments that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Largest segment that the other side takes, and that fits the path.
    pub segment_size: u16,
    /// Shifts of the other side's windows and of this side's, if there are any.
    pub scale: Option<(u8, u8)>,
    /// Whether both sides understand selective acknowledgements.
    pub selective: bool,
    /// Timestamps, if both sides put them into their segments.
    pub stamps: Option<Stamps>,
}

/// The most bytes that the buffers of a connection may ever hold. A connection begins with less, if this is much, and
/// has more when that would carry more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that have arrived and are not received.
    pub incoming: usize,
    /// Bytes that are to be sent and not acknowledged.
    pub outgoing: usize,
}

/// Silences after which the other side is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Before the first probe.
    pub first: Time,
    /// From one probe to the next.
    pub next: Time,
}

/// Values about a connection for programs that ask; bytes and microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Information {
    /// The smoothed time of a way and back, 0 before the first measurement.
    pub round_trip: Time,
    /// Its variation.
    pub variation: Time,
    /// Time without an acknowledgement after which bytes are sent again.
    pub timeout: Time,
    /// How many times that was doubled.
    pub doublings: u8,
    /// Bytes that may be under way.
    pub congestion_window: u32,
    /// Window from which on growth is slow.
    pub threshold: u32,
    /// Largest data of a segment that is sent.
    pub segment: u32,
    /// Largest data of a segment that has come.
    pub largest_received: u32,
    /// Bytes under way.
    pub under_way: u32,
    /// Bytes that have arrived behind a gap.
    pub held: u32,
    /// The other side's window.
    pub window: u32,
    /// Room of this side.
    pub room: u32,
    /// Shifts of the other side's windows and of this side's.
    pub shifts: (u8, u8),
    /// Whether both sides understand selective acknowledgements.
    pub is_selective: bool,
    /// Whether both sides put timestamps into their segments.
    pub is_stamped: bool,
    /// Whether a loss is being mended.
    pub is_recovering: bool,
}

/// A request that was answered by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Number of this side's answer.
    pub ours: u32,
    /// Number of the other side's request.
    pub theirs: u32,
    /// Window told with the answer.
    pub window: u16,
    /// Agreement of the two.
    pub agreed: Agreed,
    /// Whether the acknowledgement tells the time of the way and back: the answer was sent once, and nobody has waited.
    pub is_prompt: bool,
}

/// Result of a segment that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing that the next [turn](ControlBlock::turn) would not tell.
    Usual,
    /// The segment is to be answered by an [acknowledgement](ControlBlock::acknowledgement) of its own before the next
    /// one is handled: the other side counts these to find a loss (RFC 5681, section 4.2).
    Answer,
    /// The segment acknowledges what was never sent: it is answered by a reset with that number.
    Refused,
    /// The segment may be a forgery; the other side is told where this one is.
    Challenged,
    /// The other side has ended the connection with a reset.
    Ended,
}

/// Time of the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Now.
    Now,
    /// Not before this time, if nothing else happens.
    At(Time),
    /// Not before something else happens.
    Idle,
}

/// The next thing to do.
#[derive(Clone, Copy)]
enum Action {
    Reset,
    Synchronize,
    Data,
    /// Data, and the end behind it.
    End,
    Acknowledge,
    Probe,
}

/// A segment that is to be sent next. Of data, with its first number and its length.
#[must_use]
#[derive(Clone, Copy)]
pub struct Planned {
    action: Action,
    sequence: u32,
    length: u32,
}

impl Planned {
    const fn of(action: Action) -> Planned {
        Planned { action, sequence: 0, length: 0 }
    }

    #[inline(always)]
    fn data(sequence: u32, length: u32, fin: bool) -> Planned {
        Planned { action: if fin { Action::End } else { Action::Data }, sequence, length }
    }
}

/// Recovery from a loss.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// End of what was under way when the loss was found.
    end: u32,
    /// Number behind what was sent again.
    next: u32,
}

/// All that one connection knows.
#[derive(Debug)]
pub struct ControlBlock {
    state: State,
    /// Whether small data waits for acknowledgements.
    nagle: bool,
    /// Whether this side's stream ends behind the ring.
    is_closing: bool,
    /// Whether the other side is still to be told of the end.
    resets: bool,
    selective: bool,
    /// Whether segments have timestamps; before the answer to a request, whether it offers them.
    is_stamped: bool,
    /// Whether the acknowledgement of the SYN tells the time of the way and back.
    is_prompt: bool,
    /// Whether an acknowledgement is to be sent at once.
    is_due: bool,
    /// Whether a window or a silent peer is to be probed at once.
    is_probing: bool,
    /// Whether the window was filled quickly, and the bytes were not received yet.
    is_filled: bool,
    /// Whether parts of segments wait for more bytes.
    is_corked: bool,
    /// Shifts of the other side's windows and of this side's.
    shifts: (u8, u8),

    front: u32,
    unacknowledged: u32,
    next: u32,
    highest: u32,
    /// The other side's window, the largest that it ever was, and the numbers of the segment that told it.
    window: u32,
    largest_window: u32,
    told_by: (u32, u32),
    /// Largest data of a segment.
    segment: u32,
    /// Largest segment that this side takes.
    own_segment: u16,
    outgoing: Ring,
    limits: Limits,

    expected: u32,
    /// Number acknowledged by the last segment, and the right edge of the window that it told.
    told: u32,
    edge: u32,
    /// The furthest edge that was ever told.
    furthest: u32,
    incoming: Ring,
    /// Number expected when the filling of the window began to be timed, and that time.
    filled_from: (u32, Time),
    /// Time from which on the window may grow.
    grows_from: Time,
    /// Time without larger windows at the next lack of memory.
    shortage: Time,
    /// Largest data of a segment that has come.
    largest: u32,
    /// Bytes that must still arrive before acknowledgements may wait for long: a sender begins with little under way,
    /// and sends more with each acknowledgement; and one that gets no answers may never have more under way.
    early: u32,
    /// Latest time to acknowledge what has arrived; meaningless if nothing has.
    acknowledge_by: Time,
    /// The end of the other side's stream, if it has come.
    their_end: Option<u32>,
    ahead: Ranges,
    /// First number of what came ahead last.
    latest: u32,
    /// Timestamps; of those that come, the last one of a segment that began where this side had acknowledged to.
    stamps: Stamps,

    /// Time at which nothing will have been heard for too long.
    timer: Option<Time>,
    round_trip: RoundTrip,
    /// The end of a segment and the time at which it was sent.
    timed: Option<(u32, Time)>,
    congestion: Congestion,
    /// Acknowledgements of the same number, as far as they tell of arrivals.
    repeated: u32,
    /// Ranges that the other side has behind `unacknowledged`.
    held: Ranges,
    recovery: Option<Recovery>,
    /// End of what was under way at the last loss: repeated acknowledgements before it may be of what was sent twice.
    lost_before: u32,
    last_sent: Time,
    last_challenge: Option<Time>,
    last_answer: Option<Time>,
    /// Silences after which the other side is probed, and the time of the next probe.
    keepalive: Option<(Silence, Time)>,
    /// Time at which a corked part is sent all the same; far away if none waits.
    uncorked_at: Time,
}

/// Returns the shift of the windows of a side with this buffer: the smallest with which 16 bits can tell all of it.
pub fn shift_of(buffer: usize) -> u8 {
    (usize::BITS - buffer.leading_zeros()).saturating_sub(u16::BITS) as u8
}

/// Returns the window to tell with the answer to a request, of a side whose buffer has this limit.
pub fn first_window(limit: usize) -> u16 {
    limit.min(FIRST_LIMIT) as u16
}

impl ControlBlock {
    fn new(state: State, ours: u32, limits: Limits) -> ControlBlock {
        let [incoming, outgoing] = [limits.incoming, limits.outgoing].map(|limit| Ring::new(limit.min(FIRST_LIMIT)));
        ControlBlock {
            state,
            nagle: true,
            is_closing: false,
            resets: false,
            selective: false,
            is_stamped: false,
            is_prompt: true,
            is_due: false,
            is_probing: false,
            is_filled: false,
            is_corked: false,
            shifts: (0, 0),
            front: ours.wrapping_add(1),
            unacknowledged: ours,
            next: ours,
            highest: ours,
            window: 0,
            largest_window: 0,
            told_by: (0, 0),
            segment: 536,
            own_segment: 536,
            outgoing,
            limits,
            expected: 0,
            told: 0,
            edge: 0,
            furthest: 0,
            incoming,
            filled_from: (0, 0),
            grows_from: 0,
            shortage: SHORTAGE,
            largest: 536,
            early: EARLY,
            acknowledge_by: 0,
            their_end: None,
            ahead: Ranges::default(),
            latest: 0,
            stamps: Stamps::default(),
            timer: None,
            round_trip: RoundTrip::NEW,
            timed: None,
            congestion: Congestion::new(536),
            repeated: 0,
            held: Ranges::default(),
            recovery: None,
            lost_before: ours,
            last_sent: 0,
            last_challenge: None,
            last_answer: None,
            keepalive: None,
            uncorked_at: Time::MAX,
        }
    }

    /// Makes a connection that requests: its first segment is a SYN with this number. `own_segment` is the largest
    /// segment that it takes and sends. `stamps`, of which nothing has come, are offered, if there are any.
    pub fn connect(number: u32, own_segment: u16, stamps: Option<Stamps>, limits: Limits) -> ControlBlock {
        let mut block = ControlBlock::new(State::SynSent, number, limits);
        (block.is_stamped, block.stamps) = (stamps.is_some(), stamps.unwrap_or_default());
        block.own_segment = own_segment;
        block.shifts.1 = shift_of(limits.incoming);
        block
    }

    /// Makes a connection of a request that the caller has answered; the segment that acknowledges the answer is to be
    /// its first [input](Self::input).
    pub fn accept(handshake: &Handshake, limits: Limits) -> ControlBlock {
        let &Handshake { ours, theirs, window, agreed, is_prompt } = handshake;
        let mut block = ControlBlock::new(State::SynReceived, ours, limits);
        block.next = ours.wrapping_add(1);
        block.highest = block.next;
        block.begin(theirs);
        block.edge = block.expected.wrapping_add(window.into());
        block.furthest = block.edge;
        block.agree(agreed);
        block.is_prompt = is_prompt;
        block
    }

    /// Takes the number of the other side's SYN.
    fn begin(&mut self, theirs: u32) {
        self.expected = theirs.wrapping_add(1);
        self.told = self.expected;
        self.edge = self.expected;
        self.furthest = self.expected;
        self.filled_from.0 = self.expected;
        self.told_by = (theirs, self.unacknowledged);
    }

    fn agree(&mut self, agreed: Agreed) {
        (self.is_stamped, self.stamps) = (agreed.stamps.is_some(), agreed.stamps.unwrap_or_default());
        self.segment = self.data_of(agreed.segment_size);
        self.congestion = Congestion::new(self.segment);
        self.shifts = agreed.scale.unwrap_or((0, 0));
        self.selective = agreed.selective;
        // More room could not be told.
        self.limits.incoming = self.limits.incoming.min(usize::from(u16::MAX) << self.shifts.1);
    }

    /// Returns the largest data of a segment of this size, which has timestamps, or not (RFC 6691, section 2).
    fn data_of(&self, size: u16) -> u32 {
        u32::from(size.max(SMALLEST_SEGMENT)) - if self.is_stamped { STAMPS_LENGTH } else { 0 }
    }

    // Operations of the holder.

    /// Returns the state.
    #[inline(always)]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the connection is over and nothing more is to be sent.
    pub fn is_finished(&self) -> bool {
        self.state == State::Closed && !self.resets
    }

    /// Sets whether small data waits until earlier data is acknowledged (Nagle's algorithm).
    pub fn set_nagle(&mut self, nagle: bool) {
        self.nagle = nagle;
    }

    /// Has a silent peer probed after these times.
    pub fn set_keepalive(&mut self, silence: Option<Silence>, now: Time) {
        self.keepalive = silence.map(|Silence { first, next }| {
            let (first, next) = (first.max(SHORTEST_SILENCE), next.max(SHORTEST_SILENCE));
            (Silence { first, next }, now.saturating_add(first))
        });
    }

    /// Sets whether parts of segments wait for more bytes, for 200 ms at most (`TCP_CORK`).
    pub fn set_corked(&mut self, is_corked: bool) {
        (self.is_corked, self.uncorked_at) = (is_corked, Time::MAX);
    }

    /// Has the bytes that have come acknowledged at once, and those that come for a while (`TCP_QUICKACK`).
    pub fn acknowledge_quickly(&mut self) {
        self.early = EARLY;
        self.is_due |= self.expected != self.told;
    }

    /// Returns what programs ask about a connection.
    pub fn information(&self) -> Information {
        Information {
            round_trip: self.round_trip.smoothed(),
            variation: self.round_trip.variation(),
            timeout: self.round_trip.timeout(),
            doublings: self.round_trip.doublings(),
            congestion_window: self.congestion.window(),
            threshold: self.congestion.threshold(),
            segment: self.segment,
            largest_received: self.largest,
            under_way: self.next.wrapping_sub(self.unacknowledged),
            held: self.held.total(),
            window: self.window,
            room: self.incoming.free() as u32,
            shifts: self.shifts,
            is_selective: self.selective,
            is_stamped: self.is_stamped && self.state != State::SynSent,
            is_recovering: self.recovery.is_some(),
        }
    }

    /// Returns the bytes that can be received.
    #[inline(always)]
    pub fn incoming(&self) -> &Ring {
        &self.incoming
    }

    /// Returns the bytes that are not acknowledged.
    #[inline(always)]
    pub fn outgoing(&self) -> &Ring {
        &self.outgoing
    }

    /// Whether bytes may still be sent: this side has not ended its stream.
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
    }

    /// Whether the other side may still send.
    #[inline(always)]
    pub fn may_receive(&self) -> bool {
        matches!(self.state, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns the bytes of memory of both buffers.
    pub fn memory(&self) -> usize {
        self.incoming.memory() + self.outgoing.memory()
    }

    /// Gives the buffer of bytes to be sent memory for another one, if its limit allows it; see [`Ring::make_room`].
    pub fn make_room_to_send(&mut self, admits: impl FnMut(usize, usize) -> bool) -> bool {
        self.outgoing.make_room(1, 1, admits)
    }

    /// There is no memory for bytes that have come: the window becomes what there is, so that the other side waits and
    /// probes instead of sending them again and again. The next acknowledgement tells so.
    #[cold]
    #[inline(never)]
    fn limit_window(&mut self, now: Time) {
        self.incoming.lower_limit(FEWEST);
        let edge = self.expected.wrapping_add(self.incoming.room() as u32);
        if is_before(edge, self.edge) {
            self.edge = edge;
        }
        self.grows_from = now.saturating_add(self.shortage);
        self.shortage = (self.shortage * 2).min(LONGEST_SHORTAGE);
        self.is_filled = false;
    }

    /// Gives back some memory that the buffers do not need; see [`Ring::shrink`].
    pub fn shrink(&mut self) -> bool {
        let ahead = self.ahead.as_slice().last().map_or(0, |&(_, end)| end as usize);
        let is_more = self.incoming.shrink(if ahead > 0 { self.incoming.len() + ahead } else { 0 });
        self.outgoing.shrink(0) || is_more
    }

    /// Gives back all memory for bytes that will not be sent, and if nothing is left to be received, for that, too. The
    /// connection has ended.
    pub fn clear(&mut self) {
        self.outgoing.clear();
        if self.incoming.is_empty() {
            self.incoming.clear();
        }
    }

    /// Whether there is room for a segment's data, so that its [input](Self::input) needs no memory.
    #[inline(always)]
    pub fn has_room_for(&self, segment: &Segment<'_>) -> bool {
        let end = segment.sequence.wrapping_add(segment.payload.len() as u32).wrapping_sub(self.expected);
        segment.payload.is_empty() || end as usize <= self.incoming.room()
    }

    /// Offers room for bytes to be sent, as far as there is memory; see [`Ring::fill`].
    #[inline(always)]
    pub fn send(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> (usize, usize) {
        if self.may_send() { self.outgoing.fill(fill) } else { (0, 0) }
    }

    /// Offers received bytes; see [`Ring::take`].
    #[inline(always)]
    pub fn receive(&mut self, take: impl FnOnce(&[u8]) -> usize) -> (usize, usize) {
        let taken = self.incoming.take(take);
        if self.ahead.is_empty() {
            self.incoming.rewind();
        }
        if self.is_filled {
            self.widen_window();
        }
        taken
    }

    /// Ends this side's stream behind the bytes that are to be sent.
    pub fn close(&mut self) {
        match self.state {
            State::SynSent => self.state = State::Closed,
            // The end follows the handshake.
            State::SynReceived => self.is_closing = true,
            State::Established => (self.state, self.is_closing) = (State::FinWait1, true),
            State::CloseWait => (self.state, self.is_closing) = (State::LastAck, true),
            _ => {}
        }
    }

    /// Ends the connection; the other side is told with a reset, if it knows of the connection.
    pub fn abort(&mut self) {
        self.resets = !matches!(self.state, State::Closed | State::SynSent | State::TimeWait) || self.resets;
        self.end();
    }

    /// Ends the connection without a word.
    fn end(&mut self) {
        self.state = State::Closed;
        self.timer = None;
        self.is_due = false;
    }

    /// Has the connection send segments of at most this size from now on.
    pub fn limit_segment(&mut self, size: u16) {
        self.segment = self.segment.min(self.data_of(size));
    }

    // Questions of the caller about the numbers.

    /// Returns the number that is expected next.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Returns the first number that is not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        self.unacknowledged
    }

    /// Returns the timestamps, if both sides have agreed to them.
    pub fn stamps(&self) -> Option<Stamps> {
        self.is_stamped.then_some(self.stamps)
    }

    /// Whether this number was sent and is not acknowledged.
    pub fn is_under_way(&self, number: u32) -> bool {
        !is_before(number, self.unacknowledged) && is_before(number, self.highest)
    }

    // Segments that come.

    /// Takes a segment in. `admits` is asked for memory for its data, if there is not enough; see [`Ring::make_room`].
    #[inline]
    pub fn input(
        &mut self,
        segment: &Segment<'_>,
        now: Time,
        admits: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Reaction {
        if let Some((silence, at)) = &mut self.keepalive {
            *at = now.saturating_add(silence.first);
        }
        if self.is_stamped {
            return self.input_stamped(segment, now, admits);
        }
        if segment.has_options() || !self.is_usual(segment) {
            return self.input_other(segment, now, admits);
        }
        self.input_usual(segment, now)
    }

    /// Takes a segment of a connection with timestamps in (RFC 7323, sections 3.2, 4.3 and 5.3).
    #[inline(never)]
    fn input_stamped(
        &mut self,
        segment: &Segment<'_>,
        now: Time,
        admits: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Reaction {
        // Resets are believed for their numbers alone, whatever wrote them, and whenever.
        if self.state == State::SynSent || segment.has(flags::RST) {
            return self.input_other(segment, now, admits);
        }
        // A segment without timestamps is none of the other side's, which has agreed to them.
        let Some((value, _)) = segment.stamps() else { return Reaction::Usual };
        if self.stamps.is_outdated(value, now) {
            return self.input_outdated(segment, now);
        }
        if !segment.has_few_options() || !self.is_usual(segment) {
            return self.input_other(segment, now, admits);
        }
        self.note_stamp(segment.sequence, value, now);
        self.input_usual(segment, now)
    }

    /// Answers a segment that is older than one that has come, perhaps from before the numbers have wrapped around: it
    /// is dropped (RFC 7323, section 5.3).
    #[cold]
    #[inline(never)]
    fn input_outdated(&mut self, segment: &Segment<'_>, now: Time) -> Reaction {
        match self.state {
            State::Closed => Reaction::Usual,
            _ if segment.payload.is_empty() && !segment.has(flags::FIN) => self.challenge(now),
            _ => {
                self.is_due = true;
                Reaction::Answer
            }
        }
    }

    /// Has the timestamp of an acceptable segment told to the other side, if the segment begins where this side has
    /// acknowledged to: of several that are acknowledged together, the first one counts (RFC 7323, section 4.3). One
    /// whose acknowledgement is not of what was sent never gets here, so that a stranger would have to guess both
    /// numbers.
    #[inline(always)]
    fn note_stamp(&mut self, sequence: u32, value: u32, now: Time) {
        if !is_before(self.told, sequence) {
            self.stamps.note(value, now);
        }
    }

    /// Whether a segment is the usual one, but for its options: the next one, with an acknowledgement of something that
    /// was sent, and nothing unusual on either side.
    #[inline(always)]
    fn is_usual(&self, segment: &Segment<'_>) -> bool {
        self.state == State::Established
            && segment.flags & !flags::PSH == flags::ACK
            && segment.sequence == self.expected
            && self.ahead.is_empty()
            && self.their_end.is_none()
            && segment.payload.len() <= self.incoming.room()
            && segment.acknowledgement.wrapping_sub(self.unacknowledged)
                <= self.highest.wrapping_sub(self.unacknowledged)
    }

    #[inline(always)]
    fn input_usual(&mut self, segment: &Segment<'_>, now: Time) -> Reaction {
        self.look_at_acknowledgement(segment, now);
        if !segment.payload.is_empty() {
            self.take_next(segment.payload, now);
        }
        Reaction::Usual
    }

    #[inline(always)]
    fn take_next(&mut self, payload: &[u8], now: Time) {
        if self.expected == self.told {
            self.acknowledge_by = now + ACKNOWLEDGEMENT_DELAY;
        }
        let length = payload.len();
        self.incoming.put(self.incoming.len(), payload);
        self.incoming.grow(length);
        self.expected = self.expected.wrapping_add(length as u32);
        self.largest = self.largest.max(length as u32);
        if self.expected.wrapping_sub(self.filled_from.0) as usize >= self.incoming.limit() {
            self.window_was_filled(now);
        }
    }

    /// As many bytes as fit the window have come. If that took no longer than a way and back may take, the window may
    /// be all that holds the sender up.
    #[cold]
    #[inline(never)]
    fn window_was_filled(&mut self, now: Time) {
        self.is_filled = now.saturating_sub(self.filled_from.1) <= LONGEST_WAY && now >= self.grows_from;
        self.filled_from = (self.expected, now);
        if self.incoming.limit() > FIRST_LIMIT {
            // There was memory for more than at first.
            self.shortage = SHORTAGE;
        }
    }

    /// The bytes that have filled the window are received: there is room for more. A sender to whom nobody listens gets
    /// none.
    #[cold]
    #[inline(never)]
    fn widen_window(&mut self) {
        let limit = self.incoming.limit();
        if self.incoming.len() <= limit / 2 {
            self.is_filled = false;
            self.incoming.raise_limit((limit * 2).min(self.limits.incoming));
        }
    }

    /// Takes a segment's acknowledgement and window into account; the acknowledged number is in the range of what was
    /// sent.
    #[inline(always)]
    fn look_at_acknowledgement(&mut self, segment: &Segment<'_>, now: Time) {
        let window = u32::from(segment.window) << self.shifts.0;
        if segment.acknowledgement != self.unacknowledged {
            self.acknowledged(segment, now);
        } else if !self.selective
            && self.next != self.unacknowledged
            && segment.payload.is_empty()
            && window == self.window
            && !segment.has(flags::FIN)
        {
            self.repeated_acknowledgement();
        }
        let (by_sequence, by_acknowledgement) = self.told_by;
        let is_newer = is_before(by_sequence, segment.sequence)
            || by_sequence == segment.sequence && !is_before(segment.acknowledgement, by_acknowledgement);
        if is_newer {
            self.told_by = (segment.sequence, segment.acknowledgement);
            if window != self.window {
                self.set_window(window);
            }
        }
    }

    fn set_window(&mut self, window: u32) {
        if window > 0 && self.next == self.unacknowledged {
            // The timer was that of the closed window.
            self.timer = None;
            self.is_probing = false;
            self.round_trip.has_answered();
        }
        self.window = window;
        self.largest_window = self.largest_window.max(window);
    }

    /// Everything up to the number that this segment acknowledges has arrived.
    #[inline(always)]
    fn acknowledged(&mut self, segment: &Segment<'_>, now: Time) {
        let number = segment.acknowledgement;
        let count = number.wrapping_sub(self.unacknowledged);
        let was_under_way = self.next.wrapping_sub(self.unacknowledged);
        // The SYN and the end are not in the ring.
        let from_ring = (number.wrapping_sub(self.front) as i32).clamp(0, self.outgoing.len() as i32) as u32;
        self.outgoing.drop_first(from_ring as usize);
        self.front = self.front.wrapping_add(from_ring);
        self.unacknowledged = number;
        if is_before(self.next, number) {
            self.next = number;
        }
        // Behind it by half of all numbers, it would seem to be ahead.
        if is_before(self.lost_before, number) {
            self.lost_before = number;
        } else {
            self.measure_by_stamps(segment, now);
        }
        self.round_trip.has_answered();
        if let Some((end, sent)) = self.timed
            && !is_before(number, end)
        {
            self.round_trip.measure(now.saturating_sub(sent));
            self.timed = None;
        }
        self.timer = if self.next == number { None } else { Some(now + self.round_trip.timeout()) };
        if self.recovery.is_some() || self.repeated > 0 || !self.held.is_empty() {
            self.acknowledged_in_recovery(count);
            if self.recovery.is_some() {
                return;
            }
        }
        // A window that did not limit anything has proved nothing.
        if was_under_way.saturating_mul(2) >= self.congestion.window() {
            // One acknowledgement may tell of very much that arrived before a gap was filled (RFC 3465, section 2.3).
            let count = if self.lost_before == number { count } else { count.min(2 * self.segment) };
            self.congestion.grow(count, self.segment, self.round_trip.smoothed(), now);
        }
        if was_under_way as usize * 2 >= self.outgoing.limit() {
            self.allow_more();
        }
    }

    /// Measures the time of a way and back by the timestamp that a segment tells, which has acknowledged bytes: it is
    /// that of the segment which has arrived, also if its bytes were sent several times (RFC 7323, section 4.1). Bytes
    /// that are sent once are measured by this side's clock, once in each way and back, which is enough (section 4.2)
    /// and more exact.
    ///
    /// If the first of several segments with the same bytes has arrived, either the way has become longer, or the first
    /// acknowledgement was lost, and a later segment was answered by another one. Then the time is that of this side's
    /// waits, and in doubt it counts for little.
    #[cold]
    #[inline(never)]
    fn measure_by_stamps(&mut self, segment: &Segment<'_>, now: Time) {
        if self.is_stamped
            && let Some((_, echo)) = segment.stamps()
            && let Some(time) = self.stamps.time_since(echo, now)
        {
            if time <= now.saturating_sub(self.last_sent) + TICK {
                self.round_trip.measure(time);
            } else {
                self.round_trip.measure_in_doubt(time);
            }
        }
    }

    /// Half of all that the holder may write ahead was under way: it may write more, if more may be under way.
    #[cold]
    #[inline(never)]
    fn allow_more(&mut self) {
        let limit = self.outgoing.limit();
        if self.congestion.window() as usize > limit / 2 {
            self.outgoing.raise_limit((limit * 2).min(self.limits.outgoing));
        }
    }

    #[cold]
    #[inline(never)]
    fn acknowledged_in_recovery(&mut self, count: u32) {
        self.held.advance(count);
        match &mut self.recovery {
            Some(recovery) if is_before(self.unacknowledged, recovery.end) => {
                // The acknowledgement of a part: the next one that is missing is behind it.
                if is_before(recovery.next, self.unacknowledged) {
                    recovery.next = self.unacknowledged;
                }
                self.repeated = self.repeated.saturating_sub((count / self.segment.max(1)).max(1) - 1);
                if !self.selective {
                    recovery.next = self.unacknowledged;
                }
            }
            _ => (self.recovery, self.repeated) = (None, 0),
        }
    }

    #[cold]
    #[inline(never)]
    fn repeated_acknowledgement(&mut self) {
        self.repeated = self.repeated.saturating_add(1);
        self.look_for_loss();
    }

    fn look_for_loss(&mut self) {
        let is_lost = self.repeated >= REPEATED || self.held.total() > REPEATED * self.segment;
        let is_new = self.recovery.is_none() && !is_before(self.unacknowledged, self.lost_before);
        if is_lost && is_new && self.next != self.unacknowledged {
            self.lost_before = self.highest;
            self.recovery = Some(Recovery { end: self.highest, next: self.unacknowledged });
            self.congestion.lose(self.segment);
            self.timed = None;
        }
    }

    #[cold]
    #[inline(never)]
    fn input_other(
        &mut self,
        segment: &Segment<'_>,
        now: Time,
        admits: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Reaction {
        match self.state {
            State::Closed => return Reaction::Usual,
            State::SynSent => return self.input_of_request(segment, now),
            _ => {}
        }
        // Whether any of it lies in the window (RFC 9293, section 3.10.7.4). An acknowledgement may have the number
        // behind the window, if what is before that is on its way or lost; and the window was told in its unit, rounded
        // up.
        let rounding = (1 << self.shifts.1) - 1;
        let promised = (self.furthest.wrapping_sub(self.expected) as i32).max(0) as u32 + rounding;
        let window = (self.incoming.free() as u32).max(promised);
        let ahead = segment.sequence.wrapping_sub(self.expected);
        let is_in_window = ahead <= window + 1;
        if segment.has(flags::RST) {
            if segment.sequence == self.expected {
                self.end();
                self.resets = false;
                return Reaction::Ended;
            }
            return if ahead < window.max(1) { self.challenge(now) } else { Reaction::Usual };
        }
        if segment.has(flags::SYN) {
            // The answer to a request that both sides have made at once, or one that was repeated.
            if self.state == State::SynReceived && segment.sequence.wrapping_add(1) == self.expected {
                if segment.has(flags::ACK) && segment.acknowledgement == self.front {
                    self.establish(segment, now);
                    self.is_due = true;
                } else {
                    self.next = self.unacknowledged;
                }
                return Reaction::Usual;
            }
            return self.challenge(now);
        }
        if !segment.has(flags::ACK) {
            return Reaction::Usual;
        }
        let length = segment.length();
        let reaches_in = is_before(segment.sequence, self.expected)
            && is_before(self.expected, segment.sequence.wrapping_add(length));
        if !is_in_window && !reaches_in {
            // Data that has come already or has no room, or a probe: the other side is told where this one is.
            if length == 0 {
                return if ahead == u32::MAX { self.answer_probe(now) } else { self.challenge(now) };
            }
            self.is_due = true;
            return Reaction::Answer;
        }
        let sent = self.highest.wrapping_sub(self.unacknowledged);
        if segment.acknowledgement.wrapping_sub(self.unacknowledged) > sent {
            if self.state == State::SynReceived {
                return Reaction::Refused;
            }
            if is_before(self.highest, segment.acknowledgement)
                || self.unacknowledged.wrapping_sub(segment.acknowledgement) > self.largest_window.max(1 << 16)
            {
                return self.challenge(now);
            }
            // An old one, whose data may be new all the same.
        } else {
            if self.state == State::SynReceived {
                if segment.acknowledgement != self.front {
                    return Reaction::Refused;
                }
                self.establish(segment, now);
            }
            if self.is_stamped
                && let Some((value, _)) = segment.stamps()
            {
                self.note_stamp(segment.sequence, value, now);
            }
            if self.selective && segment.has_options() {
                self.look_at_ranges(segment);
            }
            self.look_at_acknowledgement(segment, now);
            self.look_at_own_end();
        }
        if self.state == State::Closed {
            return Reaction::Usual;
        }
        if self.may_receive() {
            return if self.take(segment, now, admits) { Reaction::Usual } else { Reaction::Answer };
        }
        if length > 0 {
            self.is_due = true;
        }
        Reaction::Usual
    }

    /// The connection is established by this segment, which acknowledges the SYN.
    fn establish(&mut self, segment: &Segment<'_>, now: Time) {
        self.state = if self.is_closing { State::FinWait1 } else { State::Established };
        if self.timed.is_none() && self.is_prompt && segment.payload.is_empty() {
            // The caller has answered the request, or it was repeated. Data may have waited for long.
            self.measure_by_stamps(segment, now);
        }
        self.acknowledged(segment, now);
        // The window of a SYN is not shifted.
        let shift = if segment.has(flags::SYN) { 0 } else { self.shifts.0 };
        self.told_by = (segment.sequence, segment.acknowledgement);
        self.set_window(u32::from(segment.window) << shift);
    }

    /// Handles the answer to a request.
    fn input_of_request(&mut self, segment: &Segment<'_>, now: Time) -> Reaction {
        let has_sent = self.highest == self.front;
        if segment.has(flags::ACK) && !(has_sent && segment.acknowledgement == self.front) {
            let is_reset = segment.has(flags::RST);
            return if is_reset { Reaction::Usual } else { Reaction::Refused };
        }
        if segment.has(flags::RST) {
            if segment.has(flags::ACK) {
                self.end();
                return Reaction::Ended;
            }
            return Reaction::Usual;
        }
        if !segment.has(flags::SYN) {
            return Reaction::Usual;
        }
        let options = segment.options();
        let own = self.own_segment;
        self.begin(segment.sequence);
        let (own_shift, offered) = (self.shifts.1, self.is_stamped.then_some(self.stamps));
        let stamps = offered.zip(options.stamps).map(|(offered, (value, _))| offered.with(value, now));
        self.agree(Agreed {
            segment_size: options.segment_size.filter(|&size| size > 0).unwrap_or(536).min(own),
            scale: options.scale.map(|theirs| (theirs, own_shift)),
            selective: options.selective,
            stamps,
        });
        if segment.has(flags::ACK) {
            self.establish(segment, now);
            self.is_due = true;
        } else {
            // Both sides request at the same time: the request is repeated with an acknowledgement.
            self.state = State::SynReceived;
            self.next = self.unacknowledged;
            self.timer = None;
            self.window = segment.window.into();
        }
        Reaction::Usual
    }

    /// Answers with an acknowledgement, but not often.
    fn challenge(&mut self, now: Time) -> Reaction {
        if self.last_challenge.is_none_or(|last| now.saturating_sub(last) >= BETWEEN_CHALLENGES) {
            self.last_challenge = Some(now);
            self.is_due = true;
        }
        Reaction::Challenged
    }

    /// Answers a segment without data before the window, but not often: two ends that are apart by one, which a
    /// stranger can bring about, would take each other's answers for probes.
    fn answer_probe(&mut self, now: Time) -> Reaction {
        if self.last_answer.is_some_and(|last| now.saturating_sub(last) < BETWEEN_ANSWERS) {
            return Reaction::Usual;
        }
        self.last_answer = Some(now);
        self.is_due = true;
        Reaction::Answer
    }

    /// Takes into account what the other side says it has beyond a gap.
    fn look_at_ranges(&mut self, segment: &Segment<'_>) {
        let under_way = self.highest.wrapping_sub(self.unacknowledged);
        let before = self.held.clone();
        for &(first, end) in segment.options().ranges() {
            let (first, end) = (first.wrapping_sub(self.unacknowledged), end.wrapping_sub(self.unacknowledged));
            // Others are old, or wrong.
            if first < end && end <= under_way {
                self.held.add(first, end);
            }
        }
        // Only what is new counts (RFC 6675, section 2): any host can have this end's number repeated to it.
        if before != self.held {
            self.repeated_acknowledgement();
        }
    }

    /// Changes the state if this side's end has arrived.
    fn look_at_own_end(&mut self) {
        if !self.is_closing || self.unacknowledged != self.end_of_data().wrapping_add(1) {
            return;
        }
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.rest(),
            State::LastAck => self.end(),
            _ => {}
        }
    }

    /// Enters TIME-WAIT.
    fn rest(&mut self) {
        self.state = State::TimeWait;
        self.timer = None;
    }

    /// Takes data, and the end, that may be anywhere in the window. Returns whether they are the next ones.
    fn take(&mut self, segment: &Segment<'_>, now: Time, admits: &mut dyn FnMut(usize, usize) -> bool) -> bool {
        let mut payload = segment.payload;
        let mut has_end = segment.has(flags::FIN);
        if payload.is_empty() && !has_end {
            return true;
        }
        let behind = self.expected.wrapping_sub(segment.sequence);
        let offset = if (behind as i32) >= 0 {
            let Some(rest) = payload.get(behind as usize..) else {
                self.is_due = true;
                return false;
            };
            payload = rest;
            0
        } else {
            behind.wrapping_neg()
        };
        let needed = (offset as usize).saturating_add(payload.len());
        if needed > self.incoming.room()
            && !payload.is_empty()
            && (offset as usize) < self.incoming.free()
            && !self.incoming.make_room(needed, STEPS + payload.len() / BLOCK, admits)
        {
            self.limit_window(now);
        }
        let room = self.incoming.room().saturating_sub(offset as usize);
        if payload.len() > room || offset as usize > self.incoming.free() {
            payload = &payload[..room.min(payload.len())];
            has_end = false;
            self.is_due = true;
        }
        if let Some(end) = self.their_end {
            // Nothing comes behind the end.
            let left = end.wrapping_sub(self.expected).saturating_sub(offset) as usize;
            payload = &payload[..payload.len().min(left)];
        }
        let length = payload.len() as u32;
        // An end before data that has come already is none.
        let is_last = self.ahead.as_slice().last().is_none_or(|&(_, last)| last <= offset + length);
        if has_end && is_last && self.their_end.is_none() {
            self.their_end = Some(self.expected.wrapping_add(offset + length));
        }
        if offset > 0 {
            // Data ahead of a gap: the other side is told at once.
            self.is_due = true;
            if !self.ahead.add(offset, offset + length) {
                return false;
            }
            if length > 0 {
                self.incoming.put(self.incoming.len() + offset as usize, payload);
                self.latest = self.expected.wrapping_add(offset);
            }
        } else {
            if length > 0 {
                self.take_next(payload, now);
            }
            if !self.ahead.is_empty() {
                self.ahead.advance(length);
                let joined = self.ahead.take_first();
                self.incoming.grow(joined as usize);
                self.expected = self.expected.wrapping_add(joined);
                self.is_due = true;
            }
        }
        if self.their_end == Some(self.expected) {
            self.expected = self.expected.wrapping_add(1);
            self.is_due = true;
            match self.state {
                State::Established => self.state = State::CloseWait,
                State::FinWait1 => self.state = State::Closing,
                State::FinWait2 => self.rest(),
                _ => {}
            }
        }
        offset == 0
    }

    // Segments that leave.

    /// Returns the number behind the last byte to be sent: that of the end.
    #[inline(always)]
    fn end_of_data(&self) -> u32 {
        self.front.wrapping_add(self.outgoing.len() as u32)
    }

    /// Returns when the next segment is to be sent.
    pub fn turn(&mut self, now: Time) -> Turn {
        if self.timer.is_some_and(|at| at <= now) || self.uncorked_at <= now {
            return Turn::Now;
        }
        if self.next_action(now).is_some() {
            return Turn::Now;
        }
        if self.timer.is_none() && self.waits_for_window() {
            self.timer = Some(now + self.round_trip.timeout());
        }
        let mut at = self.timer.unwrap_or(Time::MAX);
        if self.expected != self.told {
            at = at.min(self.acknowledge_by);
        }
        if let Some((_, probe)) = self.keepalive
            && self.is_probed()
        {
            at = at.min(probe);
        }
        if self.is_corked {
            at = at.min(self.cork_ends(now));
        }
        if at == Time::MAX { Turn::Idle } else { Turn::At(at) }
    }

    /// Returns the time at which bytes that wait behind a cork are sent all the same.
    #[cold]
    #[inline(never)]
    fn cork_ends(&mut self, now: Time) -> Time {
        if self.end_of_data() == self.next {
            self.uncorked_at = Time::MAX;
        } else if self.uncorked_at == Time::MAX {
            self.uncorked_at = now.saturating_add(LONGEST_CORK);
        }
        self.uncorked_at
    }

    /// Whether nothing is under way, although something is to be sent: the window is too small.
    pub fn waits_for_window(&self) -> bool {
        self.next == self.unacknowledged && self.sends() && self.next != self.last_number() && !self.waits_for_more()
    }

    /// Whether bytes wait behind a cork for which there is room.
    #[inline(always)]
    fn waits_for_more(&self) -> bool {
        let left = self.end_of_data().wrapping_sub(self.next);
        self.is_corked && !self.is_closing && left < self.segment.min(self.window.saturating_add(1))
    }

    /// Whether the window is that which this segment told.
    pub fn has_window_of(&self, segment: &Segment<'_>) -> bool {
        self.told_by == (segment.sequence, segment.acknowledgement)
    }

    /// Whether data, or the end, may leave in this state.
    #[inline(always)]
    fn sends(&self) -> bool {
        !matches!(self.state, State::Closed | State::SynSent | State::SynReceived | State::TimeWait)
    }

    /// Whether the silent peer is probed.
    fn is_probed(&self) -> bool {
        self.next == self.unacknowledged
            && matches!(self.state, State::Established | State::CloseWait | State::FinWait2)
    }

    /// Returns the number behind everything that is to be sent.
    #[inline(always)]
    fn last_number(&self) -> u32 {
        self.end_of_data().wrapping_add(u32::from(self.is_closing))
    }

    /// Handles a timer that has expired.
    #[cold]
    #[inline(never)]
    fn expire(&mut self, now: Time) {
        self.timer = None;
        match self.state {
            State::Closed | State::TimeWait => return,
            State::SynSent | State::SynReceived => {
                self.round_trip.back_off();
                self.next = self.unacknowledged;
                self.timed = None;
                return;
            }
            _ => {}
        }
        self.round_trip.back_off();
        if self.next == self.unacknowledged {
            if self.waits_for_window() {
                self.is_probing = true;
                self.timer = Some(now + self.round_trip.timeout());
            }
            return;
        }
        if is_before(self.unacknowledged, self.lost_before) {
            // Data that was sent again is lost again: the threshold says what it said (RFC 5681, section 3.1).
            self.congestion.begin_anew(self.segment);
        } else {
            self.congestion.time_out(self.segment);
        }
        self.next = self.unacknowledged;
        self.lost_before = self.highest;
        self.recovery = None;
        self.held.clear();
        self.repeated = 0;
        self.timed = None;
    }

    /// Returns the bytes that are in the network.
    #[inline(always)]
    fn under_way(&self) -> u32 {
        let sent = self.next.wrapping_sub(self.unacknowledged);
        if self.repeated == 0 && self.recovery.is_none() && self.held.is_empty() {
            return sent;
        }
        self.under_way_in_recovery(sent)
    }

    #[cold]
    #[inline(never)]
    fn under_way_in_recovery(&self, sent: u32) -> u32 {
        let arrived = if self.selective { self.held.total() } else { self.repeated.saturating_mul(self.segment) };
        let mut left = sent.saturating_sub(arrived);
        if let Some(recovery) = self.recovery {
            // Bytes that are lost and were not sent again.
            let from = recovery.next.wrapping_sub(self.unacknowledged);
            let lost_until = self.lost_until();
            let mut lost = lost_until.saturating_sub(from);
            for &(start, end) in self.held.as_slice() {
                lost = lost.saturating_sub(end.min(lost_until).saturating_sub(start.max(from)));
            }
            left = left.saturating_sub(lost);
        }
        left
    }

    /// Returns the offset up to which everything that has not arrived is lost: so much behind it has arrived.
    fn lost_until(&self) -> u32 {
        let mut arrived = 0;
        for &(start, end) in self.held.as_slice().iter().rev() {
            arrived += end - start;
            if arrived > (REPEATED - 1) * self.segment {
                return start;
            }
        }
        // The first segment in any case, or recovery would not have begun.
        self.segment
    }

    /// Returns the next thing to do.
    #[inline(always)]
    fn next_action(&self, now: Time) -> Option<Planned> {
        if self.sends() {
            if self.recovery.is_some()
                && let Some(action) = self.lost_action()
            {
                return Some(action);
            }
            if let Some(action) = self.data_action() {
                return Some(action);
            }
            if self.must_acknowledge(now) {
                return Some(Planned::of(Action::Acknowledge));
            }
            if self.is_probing || self.keepalive.is_some_and(|(_, at)| at <= now) && self.is_probed() {
                return Some(Planned::of(Action::Probe));
            }
            return None;
        }
        match self.state {
            State::SynSent | State::SynReceived if self.next == self.unacknowledged => {
                Some(Planned::of(Action::Synchronize))
            }
            State::Closed if self.resets => Some(Planned::of(Action::Reset)),
            State::TimeWait | State::SynReceived if self.is_due => Some(Planned::of(Action::Acknowledge)),
            _ => None,
        }
    }

    /// Returns the first data that is lost and was not sent again.
    #[cold]
    #[inline(never)]
    fn lost_action(&self) -> Option<Planned> {
        let recovery = self.recovery?;
        let mut from = recovery.next.wrapping_sub(self.unacknowledged);
        let mut until = self.lost_until().min(self.highest.wrapping_sub(self.unacknowledged));
        for &(start, end) in self.held.as_slice() {
            if from >= start && from < end {
                from = end;
            } else if start > from {
                until = until.min(start);
                break;
            }
        }
        if from >= until {
            return None;
        }
        // The first one goes out in any case, the others as the window allows.
        if from > 0 && self.under_way() + self.segment > self.congestion.window() {
            return None;
        }
        let sequence = self.unacknowledged.wrapping_add(from);
        let data_left = self.end_of_data().wrapping_sub(sequence);
        let length = (until - from).min(self.largest_data()).min(data_left);
        let fin = self.is_closing && length == data_left && length < until - from;
        (length > 0 || fin).then_some(Planned::data(sequence, length, fin))
    }

    /// Returns the next data, if it may be sent.
    #[inline(always)]
    fn data_action(&self) -> Option<Planned> {
        let left = self.end_of_data().wrapping_sub(self.next);
        if left == 0 && !self.is_closing {
            return None;
        }
        self.data_action_of(left)
    }

    #[inline(always)]
    fn data_action_of(&self, left: u32) -> Option<Planned> {
        // The end was sent already.
        if left as i32 == -1 {
            return None;
        }
        let under_way = self.next.wrapping_sub(self.unacknowledged);
        let usable = self.window.saturating_sub(under_way);
        let room = self.congestion.window().saturating_sub(self.under_way());
        let segment = self.largest_data();
        let length = left.min(segment).min(usable).min(room);
        let fin = self.is_closing && length == left;
        if length == 0 && !fin {
            return None;
        }
        let goes = length == segment
            || fin
            // It was sent before.
            || self.next != self.highest
            || if length == left {
                (!self.nagle || under_way == 0) && !self.is_corked
            } else {
                // A small part goes out only if the other side never has room for more, or after a long wait.
                room > usable && (length >= self.largest_window / 2 || self.is_probing)
            };
        goes.then_some(Planned::data(self.next, length, fin))
    }

    /// Returns the largest data of the next segment: what the options leave.
    #[inline(always)]
    fn largest_data(&self) -> u32 {
        match self.ranges_told() {
            0 => self.segment,
            told => self.segment.saturating_sub(4 + 8 * told),
        }
    }

    /// Returns the number of ranges that the next segment tells.
    #[inline(always)]
    fn ranges_told(&self) -> u32 {
        if self.selective { self.ahead.as_slice().len().min(RANGES_TOLD) as u32 } else { 0 }
    }

    /// Whether an acknowledgement, or the news of a larger window, is to be sent at once.
    #[inline(always)]
    fn must_acknowledge(&self, now: Time) -> bool {
        if self.is_due || self.tells_of_room() {
            return true;
        }
        let arrived = self.expected.wrapping_sub(self.told);
        if arrived == 0 {
            return false;
        }
        let waits_long = self.early == 0 && self.incoming.free() >= ACKNOWLEDGED_AT_ONCE as usize;
        let enough = if waits_long { ACKNOWLEDGED_AT_ONCE - 1 } else { self.largest.min(ACKNOWLEDGED_AT_ONCE - 1) };
        arrived > enough || self.acknowledge_by <= now
    }

    /// Whether the window has grown so much that the other side is told: at least to the double.
    #[inline(always)]
    pub fn tells_of_room(&self) -> bool {
        let room = self.room(self.shifts.1);
        let growth = self.expected.wrapping_add(room).wrapping_sub(self.edge);
        (growth as i32) > 0 && growth >= self.least_growth().max(room / 2) && self.may_receive()
    }

    /// Returns the window to tell, and moves its edge.
    #[inline(always)]
    fn tell_window(&mut self, shift: u8) -> u16 {
        let edge = self.expected.wrapping_add(self.room(shift));
        let growth = edge.wrapping_sub(self.edge);
        if (growth as i32) >= 0 && growth >= self.least_growth() {
            self.edge = edge;
            if is_before(self.furthest, edge) {
                self.furthest = edge;
            }
        }
        // A window that is not whole in its unit is rounded up: it was told so before.
        let told = self.edge.wrapping_sub(self.expected) as i32;
        ((told.max(0) as u32 + (1 << shift) - 1) >> shift).min(u16::MAX.into()) as u16
    }

    /// Returns the growth of the window that is worth telling (RFC 9293, section 3.8.6.2.2).
    #[inline(always)]
    fn least_growth(&self) -> u32 {
        self.largest.min(self.incoming.limit() as u32 / 2)
    }

    /// Returns the free room, as far as a window with this shift can tell it.
    #[inline(always)]
    fn room(&self, shift: u8) -> u32 {
        ((self.incoming.free() >> shift).min(u16::MAX.into()) << shift) as u32
    }

    /// Returns the next segment to send, if there is one; it counts as sent. It is to be [written](Self::write)
    /// before anything else happens.
    pub fn output(&mut self, now: Time) -> Option<Departure> {
        self.plan(now).map(|planned| self.send_planned(planned, now))
    }

    /// Decides about the next segment, for a caller that has to find its way first. Nothing else may happen before it
    /// is [sent](Self::send_planned), if it is.
    #[inline]
    pub fn plan(&mut self, now: Time) -> Option<Planned> {
        if self.timer.is_some_and(|at| at <= now) {
            self.expire(now);
        }
        if self.uncorked_at <= now {
            return self.plan_without_cork(now);
        }
        self.next_action(now)
    }

    /// Decides as [`plan`](Self::plan) does, when bytes have waited for long enough.
    #[cold]
    #[inline(never)]
    fn plan_without_cork(&mut self, now: Time) -> Option<Planned> {
        (self.is_corked, self.uncorked_at) = (false, Time::MAX);
        let planned = self.next_action(now);
        self.is_corked = true;
        planned
    }

    /// Returns the segment that was planned; it counts as sent. It is to be [written](Self::write) before anything else
    /// happens.
    #[inline]
    pub fn send_planned(&mut self, planned: Planned, now: Time) -> Departure {
        match planned.action {
            Action::Data => self.send_data(planned.sequence, planned.length, false, now),
            Action::End => self.send_data(planned.sequence, planned.length, true, now),
            Action::Acknowledge => {
                let is_new = self.expected != self.told;
                let was_late = is_new && self.early == 0 && !self.is_due && self.acknowledge_by <= now;
                let departure = self.departure(self.highest, flags::ACK, (0, 0));
                if was_late {
                    // There was no answer. A sender with no more than this under way would wait each time.
                    self.early = EARLY;
                }
                departure
            }
            Action::Probe => {
                self.is_probing = false;
                if let Some((silence, at)) = &mut self.keepalive {
                    *at = now.saturating_add(silence.next);
                }
                // A number that was acknowledged: the other side says where it is.
                self.departure(self.unacknowledged.wrapping_sub(1), flags::ACK, (0, 0))
            }
            Action::Synchronize => self.synchronize(now),
            Action::Reset => {
                self.resets = false;
                self.departure(self.highest, flags::RST | flags::ACK, (0, 0))
            }
        }
    }

    #[inline(always)]
    fn send_data(&mut self, sequence: u32, length: u32, fin: bool, now: Time) -> Departure {
        let start = sequence.wrapping_sub(self.front);
        let end = sequence.wrapping_add(length + u32::from(fin));
        let mut kinds = flags::ACK;
        if (start + length) as usize == self.outgoing.len() && length > 0 {
            kinds |= flags::PSH;
        }
        if fin {
            kinds |= flags::FIN;
        }
        let is_lost = self.recovery.is_some() && sequence != self.next;
        if is_lost {
            if let Some(recovery) = &mut self.recovery {
                recovery.next = end;
            }
            self.timer = Some(now + self.round_trip.timeout());
        } else {
            if self.next == self.unacknowledged {
                let idle = now.saturating_sub(self.last_sent);
                if idle > self.round_trip.timeout() && self.next == self.highest {
                    self.congestion.rest(self.segment);
                }
            }
            if self.next == self.highest && self.timed.is_none() {
                self.timed = Some((end, now));
            }
            self.next = end;
            if is_before(self.highest, end) {
                self.highest = end;
            }
        }
        self.is_probing = false;
        self.last_sent = now;
        if self.timer.is_none() {
            self.timer = Some(now + self.round_trip.timeout());
        }
        self.departure(sequence, kinds, (start, length))
    }

    #[cold]
    #[inline(never)]
    fn synchronize(&mut self, now: Time) -> Departure {
        let is_answer = self.state == State::SynReceived;
        self.next = self.front;
        if self.highest != self.front {
            self.highest = self.front;
            self.timed = Some((self.front, now));
        }
        self.timer = Some(now + self.round_trip.timeout());
        let window = self.tell_window(0);
        self.told = self.expected;
        self.is_due = false;
        Departure {
            sequence: self.unacknowledged,
            acknowledgement: self.expected,
            flags: if is_answer { flags::SYN | flags::ACK } else { flags::SYN },
            window,
            told: if self.is_stamped { Told::StampedAbilities } else { Told::Abilities },
            start: 0,
            count: 0,
        }
    }

    /// Makes a segment with the present acknowledgement and window.
    #[inline(always)]
    fn departure(&mut self, sequence: u32, flags: u8, (start, count): (u32, u32)) -> Departure {
        let window = self.tell_window(self.shifts.1);
        self.early = self.early.saturating_sub(self.expected.wrapping_sub(self.told));
        self.told = self.expected;
        self.is_due = false;
        let told = match (self.ranges_told() as u8, self.is_stamped) {
            (0, false) => Told::Nothing,
            (count, false) => Told::Ranges(count),
            (count, true) => Told::Stamps(count),
        };
        Departure { sequence, acknowledgement: self.expected, window, flags, told, start, count }
    }

    /// Has options tell what has come ahead, the latest first (RFC 2018, section 4).
    fn tell_ranges(&self, options: &mut Options) {
        let latest = self.latest.wrapping_sub(self.expected);
        let is_latest = |&(start, end): &(u32, u32)| (start..end).contains(&latest);
        let ranges = self.ahead.as_slice().iter();
        let first = ranges.clone().copied().filter(is_latest);
        let others = ranges.copied().filter(|range| !is_latest(range));
        let expected = self.expected;
        options.tell(
            first
                .chain(others)
                .take(RANGES_TOLD)
                .map(|(start, end)| (expected.wrapping_add(start), expected.wrapping_add(end))),
        );
    }

    /// Returns an acknowledgement, which counts as sent.
    pub fn acknowledgement(&mut self) -> Departure {
        self.departure(self.highest, flags::ACK, (0, 0))
    }

    /// Writes a segment that leaves now, from its header on, with zero in the place of the checksum; `room` has its
    /// [length](Departure::length).
    #[inline(always)]
    pub fn write(&self, departure: &Departure, [local_port, remote_port]: [u16; 2], now: Time, room: &mut [u8]) {
        let Some(mut rest) = departure.write_header(local_port, remote_port, room) else { return };
        if departure.told != Told::Nothing {
            rest = self.write_options(departure, now, rest);
        }
        if departure.count > 0 {
            self.outgoing.copy(departure.start as usize, rest);
        }
    }

    /// Writes the options; returns the room behind.
    #[inline(never)]
    fn write_options<'room>(&self, departure: &Departure, now: Time, room: &'room mut [u8]) -> &'room mut [u8] {
        let stamps = self.stamps.told(now);
        let mut options = Options::default();
        match departure.told {
            Told::Nothing => return room,
            Told::Stamps(0) => return write_stamps(room, stamps),
            Told::Abilities => options = Options::of_request(self.own_segment, self.shifts.1, None),
            Told::StampedAbilities => options = Options::of_request(self.own_segment, self.shifts.1, Some(stamps)),
            Told::Ranges(_) => self.tell_ranges(&mut options),
            Told::Stamps(_) => {
                options.stamps = Some(stamps);
                self.tell_ranges(&mut options);
            }
        }
        let length = (departure.header_length() - HEADER).min(room.len());
        let (place, rest) = room.split_at_mut(length);
        options.write(place);
        rest
    }
}
