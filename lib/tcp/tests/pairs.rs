//! Two connections and a wire between them that loses, repeats, delays and reorders.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tcp::{
    Agreed, ControlBlock, Departure, Handshake, Limits, Reaction, Segment, Silence, Stamps, State, Time, Turn, shift_of,
};

/// A small generator, so that every failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lost: u64,
    repeated: u64,
    delayed: u64,
}

/// Time that a segment takes, unless it is said.
const WAY: Time = 5_000;

struct Pair {
    now: Time,
    ends: [ControlBlock; 2],
    /// Segments under way, by the time of their arrival: the receiver, and the bytes.
    wire: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    count: u64,
    faults: Faults,
    /// Time that a segment takes.
    way: Time,
    random: Random,
    /// Segments that each end has sent.
    sent: [u64; 2],
    /// Segments of this end with these numbers are lost, once each.
    dropped: Vec<(usize, u64)>,
    /// Largest data, with options.
    largest: usize,
    /// Part of the arrivals for which there is no memory, of a hundred.
    refused: u64,
}

fn silence(time: Time) -> Silence {
    Silence { first: time, next: time }
}

fn limits(buffer: usize) -> Limits {
    Limits { incoming: buffer, outgoing: buffer }
}

/// Takes a segment in, with memory for it.
fn take_in(block: &mut ControlBlock, segment: &Segment<'_>, now: Time) -> Reaction {
    block.input(segment, now, &mut |_, _| true)
}

/// Has an end send bytes as long as `fill` takes all room that it is offered.
fn send(block: &mut ControlBlock, mut fill: impl FnMut(&mut [u8]) -> usize) {
    loop {
        block.make_room_to_send(|_, _| true);
        let (taken, offered) = block.send(&mut fill);
        if taken < offered || offered == 0 {
            return;
        }
    }
}

/// Has an end receive as long as `take` takes all that it is offered.
fn receive(block: &mut ControlBlock, mut take: impl FnMut(&[u8]) -> usize) {
    loop {
        let (taken, offered) = block.receive(&mut take);
        if taken < offered || offered == 0 {
            return;
        }
    }
}

fn bytes_of(block: &ControlBlock, departure: &Departure, now: Time) -> Vec<u8> {
    let mut bytes = vec![0; departure.length()];
    block.write(departure, [1, 2], now, &mut bytes);
    bytes
}

impl Pair {
    /// The first end requests a connection of the second one, which is made when the request has been acknowledged.
    fn new(segments: [u16; 2], buffers: [usize; 2], faults: Faults, seed: u64) -> Pair {
        Pair::with([None; 2], segments, buffers, faults, seed)
    }

    /// As [`new`](Self::new), with timestamps.
    fn stamped(segments: [u16; 2], buffers: [usize; 2], faults: Faults, seed: u64) -> Pair {
        // The clocks wrap around soon.
        let offsets = [seed, !seed].map(|seed| (seed as u32 % 5000).wrapping_neg());
        Pair::with(offsets.map(|offset| Some(Stamps::new(offset))), segments, buffers, faults, seed)
    }

    fn with(stamps: [Option<Stamps>; 2], segments: [u16; 2], buffers: [usize; 2], faults: Faults, seed: u64) -> Pair {
        let mut random = Random(seed | 1);
        let numbers = [random.below(1 << 32) as u32, random.below(1 << 32) as u32];
        let now = 1_000_000;
        let mut first = ControlBlock::connect(numbers[0], segments[0], stamps[0], limits(buffers[0]));
        let request = first.output(now).unwrap();
        let bytes = bytes_of(&first, &request, now);
        let request = Segment::read(&bytes).unwrap();
        let options = request.options();
        let shift = options.scale.unwrap();
        let window = tcp::first_window(buffers[1]);
        let stamps = stamps[1].zip(options.stamps).map(|(ours, (theirs, _))| ours.with(theirs, now));
        let handshake = Handshake {
            ours: numbers[1],
            theirs: numbers[0],
            window,
            agreed: Agreed {
                segment_size: options.segment_size.unwrap().min(segments[1]),
                scale: Some((shift, shift_of(buffers[1]))),
                selective: options.selective,
                stamps,
            },
            is_prompt: true,
        };
        let second = ControlBlock::accept(&handshake, limits(buffers[1]));
        // The answer, as the caller writes it.
        let mut answer = vec![0; if stamps.is_some() { 44 } else { 32 }];
        answer[4..8].copy_from_slice(&numbers[1].to_be_bytes());
        answer[8..12].copy_from_slice(&numbers[0].wrapping_add(1).to_be_bytes());
        (answer[12], answer[13]) = (((answer.len() / 4) as u8) << 4, 0x12);
        answer[14..16].copy_from_slice(&window.to_be_bytes());
        let [high, low] = segments[1].to_be_bytes();
        answer[20..32].copy_from_slice(&[2, 4, high, low, 3, 3, shift_of(buffers[1]), 1, 4, 2, 1, 1]);
        if let Some(stamps) = stamps {
            let (value, echo) = stamps.told(now);
            answer[32..].copy_from_slice(&stamp(value, echo));
        }
        assert_eq!(take_in(&mut first, &Segment::read(&answer).unwrap(), now), Reaction::Usual);
        assert_eq!(first.state(), State::Established);
        let mut pair = Pair {
            now,
            ends: [first, second],
            wire: BTreeMap::new(),
            count: 0,
            faults: Faults::default(),
            way: WAY,
            random,
            sent: [0; 2],
            dropped: Vec::new(),
            largest: segments[0].min(segments[1]).into(),
            refused: 0,
        };
        assert!(pair.ends.iter().all(|end| end.stamps().is_some() == stamps.is_some()));
        pair.emit(0);
        pair.now += WAY;
        pair.arrive();
        assert_eq!(pair.ends[1].state(), State::Established);
        pair.faults = faults;
        pair
    }

    /// Lets an end send all that it has to send now.
    fn emit(&mut self, end: usize) {
        for round in 0.. {
            assert!(round < 10_000, "an end sends for ever");
            let turn = self.ends[end].turn(self.now);
            let Some(departure) = self.ends[end].output(self.now) else {
                assert!(turn != Turn::Now || self.ends[end].turn(self.now) != Turn::Now, "a turn without a segment");
                return;
            };
            assert_eq!(turn, Turn::Now);
            self.put(end, &departure);
        }
    }

    /// Puts a segment on the wire.
    fn put(&mut self, end: usize, departure: &Departure) {
        let bytes = bytes_of(&self.ends[end], departure, self.now);
        assert!(departure.flags & 2 != 0 || bytes.len() <= self.largest + 20, "a segment of {} bytes", bytes.len());
        self.sent[end] += 1;
        if self.dropped.contains(&(end, self.sent[end])) || self.random.percent(self.faults.lost) {
            return;
        }
        for _ in 0..1 + u64::from(self.random.percent(self.faults.repeated)) {
            let late = if self.random.percent(self.faults.delayed) { self.random.below(30_000) } else { 0 };
            self.count += 1;
            self.wire.insert((self.now + self.way + late, self.count), (1 - end, bytes.clone()));
        }
    }

    /// Lets the next segments arrive, or the next timer expire; returns whether there was one.
    fn step(&mut self) -> bool {
        let mut next = self.wire.keys().next().map(|(at, _)| *at);
        for end in 0..2 {
            match self.ends[end].turn(self.now) {
                Turn::Now => next = Some(self.now),
                Turn::At(at) => next = Some(next.map_or(at, |next| next.min(at))),
                Turn::Idle => {}
            }
        }
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        self.arrive();
        self.emit(0);
        self.emit(1);
        true
    }

    fn arrive(&mut self) {
        let now = self.now;
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= now) {
            let (end, bytes) = entry.remove();
            let segment = Segment::read(&bytes).unwrap();
            let is_refused = self.random.percent(self.refused);
            if self.ends[end].input(&segment, self.now, &mut |_, _| !is_refused) == Reaction::Answer {
                let answer = self.ends[end].acknowledgement();
                self.put(end, &answer);
            }
        }
    }

    /// Sends these bytes from each end, and ends both streams; returns what arrived.
    fn exchange(&mut self, data: [&[u8]; 2], slow: bool) -> [Vec<u8>; 2] {
        let mut left = data;
        let mut arrived = [Vec::new(), Vec::new()];
        let limit = self.now + 3_600_000_000;
        loop {
            for end in 0..2 {
                send(&mut self.ends[end], |room| {
                    let count = left[end].len().min(room.len());
                    room[..count].copy_from_slice(&left[end][..count]);
                    left[end] = &left[end][count..];
                    count
                });
                if left[end].is_empty() && self.ends[end].may_send() {
                    self.ends[end].close();
                }
                if !slow || self.random.percent(40) {
                    receive(&mut self.ends[end], |bytes| {
                        arrived[end].extend_from_slice(bytes);
                        bytes.len()
                    });
                    if self.random.percent(10) {
                        self.ends[end].shrink();
                    }
                }
                self.emit(end);
            }
            let is_over = |end: &ControlBlock| matches!(end.state(), State::Closed | State::TimeWait);
            if self.ends.iter().all(is_over) && self.ends.iter().all(|end| end.incoming().is_empty()) {
                return arrived;
            }
            // One that has ended for good does not answer any more: its record would.
            if !self.step() {
                let states = [self.ends[0].state(), self.ends[1].state()];
                let unread = self.ends.iter().any(|end| !end.incoming().is_empty());
                assert!(
                    slow && unread || states.contains(&State::Closed) || states.contains(&State::TimeWait),
                    "{states:?}"
                );
                if states.contains(&State::TimeWait) && !unread {
                    return arrived;
                }
            }
            assert!(
                self.now < limit,
                "the bytes do not arrive: {:?}",
                self.ends.each_ref().map(|end| (
                    end.state(),
                    end.expected(),
                    end.unacknowledged(),
                    end.incoming().len(),
                    end.outgoing().len()
                ))
            );
        }
    }
}

/// Returns the option of timestamps.
fn stamp(value: u32, echo: u32) -> [u8; 12] {
    let ([a, b, c, d], [e, f, g, h]) = (value.to_be_bytes(), echo.to_be_bytes());
    [1, 1, 8, 10, a, b, c, d, e, f, g, h]
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|index| (index as u64).wrapping_mul(seed | 1).wrapping_add(index as u64 >> 8) as u8).collect()
}

#[test]
fn bytes_and_ends_arrive_in_as_few_segments_as_possible() {
    for make in [Pair::new, Pair::stamped] {
        let mut pair = make([1460; 2], [65536; 2], Faults::default(), 7);
        let before = pair.sent;
        let data = pattern(10_000, 3);
        let arrived = pair.exchange([&data, b""], false);
        assert_eq!(arrived[1], data);
        // Seven segments of data with the end in the last one; the other end's, with acknowledgements of every second
        // one.
        assert!(pair.sent[0] - before[0] <= 9 && pair.sent[1] - before[1] <= 6, "{:?}", pair.sent);
    }
}

#[test]
fn one_loss_costs_no_timeout() {
    for (selective, stamped) in [(true, false), (true, true), (false, false)] {
        for lost in 2..30 {
            let make = if stamped { Pair::stamped } else { Pair::new };
            let mut pair = make([1000; 2], [65536; 2], Faults::default(), lost);
            if !selective {
                // Without ranges there are only repeated acknowledgements.
                pair = without_ranges([1000; 2], 65536);
            }
            pair.dropped = vec![(0, lost)];
            let start = pair.now;
            let data = pattern(60_000, lost);
            assert_eq!(pair.exchange([&data, b""], false)[1], data);
            // The last segments have none behind them that would tell of the loss.
            let limit = if lost > 55 { 600_000 } else { 190_000 };
            assert!(pair.now - start < limit, "{lost}: {} us", pair.now - start);
        }
    }
}

/// A loss behind more bytes than half of all numbers is no older than one behind few.
#[test]
fn a_loss_after_long_luck_is_mended_at_once() {
    const LUCK: u64 = (1 << 31) + (1 << 22);
    let mut pair = Pair::new([60_000; 2], [1 << 20; 2], Faults::default(), 9);
    let (mut arrived, mut before) = (0, 0);
    let mut last = pair.now;
    while arrived < LUCK + (1 << 23) {
        if arrived >= LUCK && pair.dropped.is_empty() && before < LUCK {
            pair.dropped = vec![(0, pair.sent[0] + 22)];
        }
        before = arrived;
        send(&mut pair.ends[0], |room| room.len());
        assert!(pair.step());
        receive(&mut pair.ends[1], |bytes| {
            arrived += bytes.len() as u64;
            bytes.len()
        });
        if arrived > before {
            assert!(pair.now - last < 100_000, "{} us without a byte, after {before}", pair.now - last);
            last = pair.now;
        }
    }
}

/// Two ends that have agreed on nothing.
fn without_ranges(segments: [u16; 2], buffer: usize) -> Pair {
    let agreed = Agreed { segment_size: segments[0], scale: None, selective: false, stamps: None };
    let window = tcp::first_window(buffer);
    let handshake = |ours: u32, theirs: u32| Handshake { ours, theirs, window, agreed, is_prompt: true };
    let mut ends = [handshake(1, 2), handshake(2, 1)].map(|handshake| ControlBlock::accept(&handshake, limits(buffer)));
    for (end, (ours, theirs)) in ends.iter_mut().zip([(1u32, 2u32), (2, 1)]) {
        let mut bytes = vec![0; 20];
        bytes[4..8].copy_from_slice(&(theirs + 1).to_be_bytes());
        bytes[8..12].copy_from_slice(&(ours + 1).to_be_bytes());
        (bytes[12], bytes[13]) = (5 << 4, 0x10);
        bytes[14..16].copy_from_slice(&tcp::first_window(buffer).to_be_bytes());
        take_in(end, &Segment::read(&bytes).unwrap(), 1_000_000);
        assert_eq!(end.state(), State::Established);
    }
    Pair {
        now: 1_000_000,
        ends,
        wire: BTreeMap::new(),
        count: 0,
        faults: Faults::default(),
        way: WAY,
        random: Random(5),
        sent: [0; 2],
        dropped: Vec::new(),
        largest: segments[0].into(),
        refused: 0,
    }
}

/// A segment for an end of [`without_ranges`], whose other side has sent everything up to `sequence`.
fn segment(sequence: u32, acknowledgement: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
    bytes[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    (bytes[12], bytes[13], bytes[14]) = (5 << 4, flags, 0x20);
    bytes.extend(payload);
    bytes
}

fn give(pair: &mut Pair, end: usize, bytes: &[u8]) -> Reaction {
    take_in(&mut pair.ends[end], &Segment::read(bytes).unwrap(), pair.now)
}

#[test]
fn two_ends_that_are_apart_by_one_do_not_answer_each_other_for_ever() {
    let mut pair = without_ranges([1000; 2], 8192);
    for (end, (theirs, ours)) in [(3u32, 2u32), (2, 3)].into_iter().enumerate() {
        give(&mut pair, end, &segment(theirs, ours, 0x10, b"x"));
    }
    let before = pair.sent;
    let end = pair.now + 10_000_000;
    while pair.now < end && pair.step() {}
    assert!(pair.sent[0] - before[0] < 25 && pair.sent[1] - before[1] < 25, "{:?}", pair.sent);
}

#[test]
fn an_end_that_came_ahead_ends_the_stream_behind_what_was_missing() {
    let mut pair = without_ranges([1000; 2], 8192);
    assert_eq!(give(&mut pair, 0, &segment(103, 2, 0x11, b"")), Reaction::Answer);
    give(&mut pair, 0, &segment(3, 2, 0x10, &[7; 100]));
    assert_eq!((pair.ends[0].state(), pair.ends[0].incoming().len()), (State::CloseWait, 100));
    assert_eq!(pair.ends[0].expected(), 104);
}

#[test]
fn an_end_before_data_that_has_come_is_none() {
    let mut pair = without_ranges([1000; 2], 8192);
    give(&mut pair, 0, &segment(13, 2, 0x10, &[7; 10]));
    give(&mut pair, 0, &segment(11, 2, 0x11, &[7; 4]));
    give(&mut pair, 0, &segment(3, 2, 0x10, &[7; 8]));
    assert_eq!((pair.ends[0].state(), pair.ends[0].incoming().len()), (State::Established, 20));
    give(&mut pair, 0, &segment(23, 2, 0x11, &[7; 4]));
    assert_eq!((pair.ends[0].state(), pair.ends[0].incoming().len()), (State::CloseWait, 24));
}

/// A window is told in units, rounded up: a sender may fill them, and its later acknowledgements have the number behind
/// them.
#[test]
fn an_acknowledgement_from_behind_a_rounded_window_counts() {
    let mut pair = Pair::new([1460; 2], [1 << 20; 2], Faults::default(), 4);
    while pair.step() {}
    let mut left = 100;
    send(&mut pair.ends[1], |room| core::mem::take(&mut left).min(room.len()));
    pair.emit(1);
    let (start, acknowledgement) = (pair.ends[1].expected(), pair.ends[1].unacknowledged());
    let mut come = |offset: u32, acknowledgement: u32, payload: &[u8]| {
        give(&mut pair, 1, &segment(start.wrapping_add(offset), acknowledgement, 0x10, payload));
        let answer = pair.ends[1].acknowledgement();
        let bytes = bytes_of(&pair.ends[1], &answer, pair.now);
        let told = u32::from(Segment::read(&bytes).unwrap().window) << 5;
        (answer.acknowledgement.wrapping_sub(start) + told, pair.ends[1].outgoing().len())
    };
    assert_eq!(come(0, acknowledgement, b"odd"), (16_387, 100));
    for offset in (3..16_387).step_by(1024) {
        come(offset, acknowledgement, &[7; 1024]);
    }
    assert_eq!(come(16_387, acknowledgement.wrapping_add(100), b""), (16_384, 0));
}

/// An end with timestamps, and what the other side's next segment is to have: its number, the number that it
/// acknowledges, its timestamp and the one that it tells back.
fn stamped_end() -> (Pair, [u32; 4]) {
    let mut pair = Pair::stamped([1460; 2], [8192; 2], Faults::default(), 20);
    while pair.step() {}
    let (clock, recent) = pair.ends[1].stamps().unwrap().told(pair.now);
    let next = [pair.ends[1].expected(), pair.ends[1].unacknowledged(), recent.wrapping_add(1), clock];
    (pair, next)
}

/// A segment with timestamps.
fn stamped([sequence, acknowledgement, value, echo]: [u32; 4], flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = segment(sequence, acknowledgement, flags, payload);
    bytes.splice(20..20, stamp(value, echo));
    bytes[12] = 8 << 4;
    bytes
}

fn received(pair: &Pair) -> usize {
    pair.ends[1].incoming().len()
}

/// The next segment that an end sends: its timestamps, if it has some.
fn told(pair: &mut Pair, end: usize) -> Option<(u32, u32)> {
    let departure = pair.ends[end].acknowledgement();
    let bytes = bytes_of(&pair.ends[end], &departure, pair.now);
    Segment::read(&bytes).unwrap().options().stamps
}

/// A duplicate from before the numbers have wrapped around is recognized by its timestamp alone (RFC 7323, section 5).
#[test]
fn an_old_duplicate_in_the_window_is_dropped() {
    let (mut pair, [sequence, acknowledgement, value, echo]) = stamped_end();
    for (age, answer) in [(1, Reaction::Answer), (1000, Reaction::Answer), (1 << 31, Reaction::Answer)] {
        let old = [sequence, acknowledgement, value.wrapping_sub(1 + age), echo];
        assert_eq!(give(&mut pair, 1, &stamped(old, 0x10, b"old")), answer, "{age}");
        assert_eq!(give(&mut pair, 1, &stamped(old, 0x11, b"")), answer, "{age}");
        assert_eq!(give(&mut pair, 1, &stamped(old, 0x10, b"")), Reaction::Challenged);
        assert_eq!(give(&mut pair, 1, &stamped(old, 0x02, b"")), Reaction::Challenged);
        assert_eq!((received(&pair), pair.ends[1].state()), (0, State::Established));
        assert_eq!(told(&mut pair, 1).unwrap().1, value.wrapping_sub(1));
    }
    // As new as the last one, and newer.
    for (stamp, flags, length) in [(value.wrapping_sub(1), 0x10, 3), (value, 0x18, 6)] {
        let sequence = sequence.wrapping_add(length - 3);
        give(&mut pair, 1, &stamped([sequence, acknowledgement, stamp, echo], flags, b"new"));
        assert_eq!((received(&pair), told(&mut pair, 1).unwrap().1), (length as usize, stamp));
    }
}

#[test]
fn a_timestamp_counts_for_24_days() {
    const DAY: Time = 86_400_000_000;
    for (days, is_taken) in [(23, false), (25, true)] {
        let (mut pair, [sequence, acknowledgement, value, echo]) = stamped_end();
        pair.now += days * DAY;
        let old = value.wrapping_sub(1 << 30);
        give(&mut pair, 1, &stamped([sequence, acknowledgement, old, echo], 0x10, b"x"));
        assert_eq!(received(&pair), usize::from(is_taken));
        let recent = if is_taken { old } else { value.wrapping_sub(1) };
        assert_eq!(told(&mut pair, 1).unwrap().1, recent);
    }
}

/// Every segment of a connection with timestamps has them, or is no part of it, except resets (RFC 7323, section 3.2).
#[test]
fn segments_without_the_agreed_timestamps_are_dropped_unless_they_are_resets() {
    let (mut pair, [sequence, acknowledgement, value, echo]) = stamped_end();
    for (flags, payload) in [(0x10, &b"x"[..]), (0x11, b""), (0x02, b""), (0x12, b"")] {
        assert_eq!(give(&mut pair, 1, &segment(sequence, acknowledgement, flags, payload)), Reaction::Usual);
        assert_eq!((received(&pair), pair.ends[1].state()), (0, State::Established));
        assert_ne!(pair.ends[1].turn(pair.now), Turn::Now);
    }
    // Elsewhere in the options they are as good.
    let mut odd = segment(sequence, acknowledgement, 0x10, b"x");
    odd.splice(20..20, [&[2, 4, 1, 1][..], &stamp(value, echo)[2..], &[0, 0]].concat());
    odd[12] = 9 << 4;
    give(&mut pair, 1, &odd);
    assert_eq!(received(&pair), 1);
    // Resets need their number only: the exact one.
    for (with, old) in [(false, 0), (true, 0), (true, 1 << 20)] {
        let (mut pair, [sequence, acknowledgement, value, echo]) = stamped_end();
        let reset = |sequence: u32| match with {
            true => stamped([sequence, acknowledgement, value.wrapping_sub(old), echo], 0x04, b""),
            false => segment(sequence, acknowledgement, 0x04, b""),
        };
        assert_eq!(give(&mut pair, 1, &reset(sequence.wrapping_add(1))), Reaction::Challenged);
        assert_eq!(give(&mut pair, 1, &reset(sequence)), Reaction::Ended);
    }
}

/// A stranger who has one of the numbers right cannot make later segments seem old.
#[test]
fn forged_timestamps_do_not_stall_a_connection() {
    let (mut pair, [sequence, acknowledgement, value, echo]) = stamped_end();
    let far = value.wrapping_add(1 << 30);
    let window = 8192;
    for (at, of, flags, payload) in [
        // Outside of the window; in it, but ahead of what was acknowledged.
        (sequence.wrapping_sub(1), acknowledgement, 0x10, &b""[..]),
        (sequence.wrapping_sub(100), acknowledgement, 0x10, b"x"),
        (sequence.wrapping_add(2 * window), acknowledgement, 0x10, b"x"),
        (sequence.wrapping_add(1), acknowledgement, 0x10, b""),
        // An acknowledgement of what was never sent, or long ago, or none.
        (sequence, acknowledgement.wrapping_add(1), 0x10, b"x"),
        (sequence, acknowledgement.wrapping_sub(1 << 20), 0x10, b"x"),
        (sequence, acknowledgement, 0x00, b"x"),
        (sequence, acknowledgement, 0x02, b""),
        (sequence.wrapping_add(1), acknowledgement, 0x04, b""),
    ] {
        give(&mut pair, 1, &stamped([at, of, far, echo], flags, payload));
        assert_eq!(told(&mut pair, 1).unwrap().1, value.wrapping_sub(1), "{flags:#x} at {at}");
    }
    give(&mut pair, 1, &stamped([sequence, acknowledgement, value, echo], 0x10, b"x"));
    assert_eq!((received(&pair), told(&mut pair, 1).unwrap().1), (1, value));
}

/// Of segments that are acknowledged together the first one's timestamp is told back, so that the wait of the
/// acknowledgement counts; of those behind a gap, that of the segment which fills it (RFC 7323, section 4.3).
#[test]
fn the_first_of_several_timestamps_is_told_back() {
    let (mut pair, [sequence, acknowledgement, value, echo]) = stamped_end();
    let come = |pair: &mut Pair, offset: u32, stamp: u32| {
        give(
            pair,
            1,
            &stamped([sequence.wrapping_add(offset), acknowledgement, value.wrapping_add(stamp), echo], 0x10, b"four"),
        );
    };
    come(&mut pair, 0, 1);
    come(&mut pair, 4, 2);
    assert_eq!(told(&mut pair, 1).unwrap().1, value.wrapping_add(1));
    come(&mut pair, 12, 3);
    assert_eq!(told(&mut pair, 1).unwrap().1, value.wrapping_add(1));
    come(&mut pair, 8, 5);
    assert_eq!((received(&pair), told(&mut pair, 1).unwrap().1), (16, value.wrapping_add(5)));
    come(&mut pair, 16, 6);
    assert_eq!(told(&mut pair, 1).unwrap().1, value.wrapping_add(6));
}

/// Timestamps that only one side has are not used, and leave no trace.
#[test]
fn one_side_alone_has_no_timestamps() {
    for lacking in 0..2 {
        let mut stamps = [Some(Stamps::new(7)); 2];
        stamps[lacking] = None;
        let mut pair = Pair::with(stamps, [1460; 2], [65536; 2], Faults::default(), 3);
        assert!(pair.ends.iter().all(|end| !end.information().is_stamped && end.information().segment == 1460));
        assert_eq!([told(&mut pair, 0), told(&mut pair, 1)], [None; 2]);
        let data = pattern(60_000, 9);
        assert_eq!(pair.exchange([&data, b""], false)[1], data);
    }
    let pair = Pair::stamped([1460; 2], [65536; 2], Faults::default(), 3);
    assert!(pair.ends.iter().all(|end| end.information().is_stamped && end.information().segment == 1448));
}

/// Segments that come without the option when only others have it are as before: their timestamps say nothing.
#[test]
fn timestamps_that_were_not_agreed_on_are_passed_over() {
    let mut pair = without_ranges([1000; 2], 8192);
    for (number, value) in [(3, 1000), (4, 1), (5, 1 << 31)] {
        give(&mut pair, 0, &stamped([number, 2, value, 0], 0x10, b"x"));
    }
    assert_eq!(pair.ends[0].incoming().len(), 3);
}

#[test]
fn two_requests_that_cross_agree_on_timestamps() {
    for lacking in [None, Some(0), Some(1)] {
        let ends = [0, 1].map(|end| {
            let stamps = (lacking != Some(end)).then(|| Stamps::new(end as u32 * 1000));
            ControlBlock::connect(end as u32 * 77, 1460, stamps, limits(8192))
        });
        let mut pair = without_ranges([1460; 2], 8192);
        pair.ends = ends;
        while pair.step() {}
        assert_eq!(pair.ends.each_ref().map(ControlBlock::state), [State::Established; 2]);
        assert_eq!(pair.ends.each_ref().map(|end| end.information().is_stamped), [lacking.is_none(); 2]);
        let data = [pattern(5000, 1), pattern(5000, 2)];
        assert_eq!(pair.exchange([&data[0], &data[1]], false), [data[1].clone(), data[0].clone()]);
    }
}

/// A way that becomes longer than the wait repeats every segment: only timestamps tell how long it is (RFC 7323,
/// section 4.1).
#[test]
fn a_way_that_has_become_long_is_measured_although_all_is_repeated() {
    let mut pair = Pair::stamped([1460; 2], [8192; 2], Faults::default(), 5);
    pair.way = 400_000;
    let mut count_of = |rounds: usize| {
        let before = pair.sent[0];
        for _ in 0..rounds {
            let mut left = 100;
            send(&mut pair.ends[0], |room| core::mem::take(&mut left).min(room.len()));
            while !pair.ends[0].outgoing().is_empty() || !pair.wire.is_empty() {
                assert!(pair.step());
            }
            receive(&mut pair.ends[1], <[u8]>::len);
        }
        pair.sent[0] - before
    };
    assert!(count_of(20) > 30, "they are repeated");
    assert_eq!(count_of(20), 20, "the wait is long enough");
    let information = pair.ends[0].information();
    assert!(information.timeout > 800_000 && information.round_trip > 200_000, "{information:?}");
}

/// Acknowledgements that are lost do not count as a long way: the wait would grow with each of them.
#[test]
fn lost_acknowledgements_do_not_make_waits_longer() {
    let mut pair = Pair::stamped([1460; 2], [8192; 2], Faults::default(), 6);
    for round in 0..60 {
        if round % 2 == 0 {
            // The next one of the other side.
            pair.dropped = vec![(1, pair.sent[1] + 1)];
        }
        let mut left = 100;
        send(&mut pair.ends[0], |room| core::mem::take(&mut left).min(room.len()));
        while !pair.ends[0].outgoing().is_empty() || !pair.wire.is_empty() {
            assert!(pair.step());
        }
        receive(&mut pair.ends[1], <[u8]>::len);
        let information = pair.ends[0].information();
        assert!(information.round_trip < 50_000 && information.timeout <= 400_000, "{round}: {information:?}");
    }
}

/// The answer to a request has a way that is measured, also if the request was repeated.
#[test]
fn a_handshake_measures_the_way() {
    let pair = Pair::stamped([1460; 2], [8192; 2], Faults::default(), 5);
    let measured = pair.ends.each_ref().map(|end| end.information().round_trip);
    assert!((1000..=6000).contains(&measured[1]), "{measured:?}");
}

/// Any host can have an end repeat its acknowledgement, by data outside of the window.
#[test]
fn repeated_acknowledgements_without_news_are_no_loss() {
    let mut pair = Pair::new([1000; 2], [65536; 2], Faults::default(), 3);
    let mut left = 5000;
    send(&mut pair.ends[0], |room| {
        let count = room.len().min(left);
        left -= count;
        count
    });
    pair.emit(0);
    let sent = pair.sent[0];
    let (theirs, ours) = (pair.ends[0].expected(), pair.ends[0].unacknowledged());
    for _ in 0..6 {
        let mut bytes = segment(theirs, ours, 0x10, b"");
        bytes[14..16].copy_from_slice(&16384u16.to_be_bytes());
        give(&mut pair, 0, &bytes);
        pair.emit(0);
    }
    assert_eq!(pair.sent[0], sent);
}

#[test]
fn a_program_that_reads_byte_by_byte_makes_no_silly_window() {
    let mut pair = without_ranges([1000; 2], 4096);
    send(&mut pair.ends[0], |room| room.len());
    for _ in 0..50 {
        pair.step();
    }
    assert_eq!(pair.ends[1].incoming().len(), 4096);
    let before = pair.sent[1];
    for _ in 0..900 {
        pair.ends[1].receive(|_| 1);
        pair.emit(1);
    }
    assert_eq!(pair.sent[1], before);
    for _ in 0..2000 {
        pair.ends[1].receive(|_| 1);
        pair.emit(1);
    }
    // A segment each.
    assert_eq!(pair.sent[1], before + 2);
}

#[test]
fn a_silent_peer_is_probed_and_not_more_often_than_it_makes_sense() {
    let mut pair = without_ranges([1000; 2], 4096);
    let now = pair.now;
    pair.ends[0].set_keepalive(Some(silence(0)), now);
    assert_ne!(pair.ends[0].turn(now), Turn::Now);
    pair.ends[0].set_keepalive(Some(silence(1_000_000)), now);
    assert_eq!(pair.ends[0].turn(now), Turn::At(now + 1_000_000));
    pair.now += 1_000_000;
    pair.emit(0);
    assert_eq!(pair.sent, [1, 0]);
    while pair.sent[1] == 0 && pair.step() {}
    assert_eq!(pair.sent, [1, 1]);
}

/// A corked part of a segment waits for more bytes, and not for long.
#[test]
fn a_cork_holds_parts_of_segments() {
    let mut pair = without_ranges([1000; 2], 8192);
    let put = |pair: &mut Pair, mut count: usize| {
        send(&mut pair.ends[0], |room| {
            let part = count.min(room.len());
            count -= part;
            part
        });
    };
    pair.ends[0].set_corked(true);
    put(&mut pair, 300);
    let start = pair.now;
    assert_eq!(pair.ends[0].turn(start), Turn::At(start + 200_000));
    pair.emit(0);
    assert_eq!(pair.sent[0], 0);
    // With more it is a whole segment, which goes; the rest waits until the cork is taken out.
    put(&mut pair, 900);
    pair.emit(0);
    assert_eq!(pair.sent[0], 1);
    pair.ends[0].set_corked(false);
    while pair.ends[1].incoming().len() < 1200 {
        assert!(pair.step());
    }
    assert!(pair.now < start + 100_000);
    // Without more it goes after a while, and the next part waits again.
    pair.ends[0].set_corked(true);
    for count in [1300, 1400] {
        put(&mut pair, 100);
        let start = pair.now;
        while pair.ends[1].incoming().len() < count {
            assert!(pair.step());
        }
        assert!((200_000..300_000).contains(&(pair.now - start)), "{}", pair.now - start);
    }
    // The end takes all with it.
    put(&mut pair, 100);
    pair.ends[0].close();
    let start = pair.now;
    while pair.ends[1].may_receive() {
        assert!(pair.step());
    }
    assert!(pair.ends[1].incoming().len() == 1500 && pair.now < start + 100_000);
}

/// Over a long way the window grows until it no longer holds the sender up, and so does what is written ahead; an end
/// to which nobody listens takes what it told at first, and no more.
#[test]
fn buffers_grow_with_the_way_if_somebody_listens() {
    for (listens, most) in [(true, 1 << 20), (true, 200_000), (false, 1 << 20)] {
        let mut pair = Pair::new([1460; 2], [most; 2], Faults::default(), 11);
        let (start, mut arrived) = (pair.now, 0);
        while pair.now < start + 2_000_000 {
            send(&mut pair.ends[0], |room| room.len());
            assert!(pair.step());
            if listens {
                receive(&mut pair.ends[1], |bytes| {
                    arrived += bytes.len();
                    bytes.len()
                });
            }
        }
        let limits = [pair.ends[0].outgoing().limit(), pair.ends[1].incoming().limit()];
        assert_eq!(limits, if listens { [most; 2] } else { [1 << 15, 1 << 14] });
        if listens {
            // Each way and back takes 10 ms.
            assert!(arrived > 100 * most, "{arrived}");
            while pair.step() {}
            receive(&mut pair.ends[1], <[u8]>::len);
            for _ in 0..40 {
                pair.ends.iter_mut().for_each(|end| _ = end.shrink());
            }
            assert_eq!(pair.ends.each_ref().map(ControlBlock::memory), [0; 2]);
        } else {
            assert_eq!(pair.ends[1].incoming().len(), 1 << 14);
        }
    }
}

proptest! {
    #![proptest_config(property::cases(96))]

    /// Whatever the wire does, both streams arrive whole and both ends end.
    #[test]
    fn bytes_survive_any_wire(
        seed: u64, lost in 0u64..25, repeated in 0u64..30, delayed in 0u64..60,
        lengths in prop::array::uniform2(0usize..100_000), segments in prop::array::uniform2(88u16..3000),
        buffers in prop::array::uniform2(1024usize..200_000), slow: bool, kind in 0u8..3, refused in 0u64..25,
    ) {
        let faults = Faults { lost, repeated, delayed };
        let mut pair = match kind {
            0 => without_ranges([segments[0].min(1460); 2], buffers[0]),
            1 => Pair::new(segments, buffers, Faults::default(), seed),
            _ => Pair::stamped(segments, buffers, Faults::default(), seed),
        };
        (pair.faults, pair.refused) = (faults, refused);
        let data = [pattern(lengths[0], seed), pattern(lengths[1], !seed)];
        let arrived = pair.exchange([&data[0], &data[1]], slow);
        prop_assert!(arrived[1] == data[0], "{} of {}", arrived[1].len(), data[0].len());
        prop_assert!(arrived[0] == data[1], "{} of {}", arrived[0].len(), data[1].len());
    }

    /// No segment of a stranger breaks an end: it keeps to its buffers, and what it receives is at most what fits.
    #[test]
    fn an_end_survives_any_segment(
        seed: u64, stamped: bool,
        steps in prop::collection::vec(
            (0u8..8, any::<u32>(), any::<u32>(), any::<u8>(), any::<u16>(), 0usize..3000), 1..120,
        ),
    ) {
        let make = if stamped { Pair::stamped } else { Pair::new };
        let mut pair = make([1460; 2], [4096; 2], Faults::default(), seed);
        prop_assert!(pair.ends.iter().all(|end| end.memory() == 0), "nothing has come");
        for (step, first, second, flags, window, length) in steps {
            let near = |number: u32, base: u32| base.wrapping_add((number % 9000).wrapping_sub(4500));
            let block = &mut pair.ends[1];
            match step {
                0 => send(block, |room| length.min(room.len())),
                1 if first % 8 == 0 => _ = block.shrink(),
                1 => receive(block, |bytes| length.min(bytes.len())),
                2 => pair.now += u64::from(first % 2_000_000),
                3 if first % 16 == 0 => block.close(),
                3 if first % 16 == 1 => block.abort(),
                4 => block.set_keepalive((first % 3 == 0).then_some(silence(u64::from(second))), pair.now),
                _ => {
                    let options = usize::from(flags >> 4) * usize::from(step & 1);
                    let mut bytes = vec![(first >> 7) as u8; 20 + options.min(10) * 4 + length];
                    bytes[4..8].copy_from_slice(&near(first, block.expected()).to_be_bytes());
                    bytes[8..12].copy_from_slice(&near(second, block.unacknowledged()).to_be_bytes());
                    bytes[12] = (5 + options.min(10) as u8) << 4;
                    bytes[13] = if step == 5 { flags } else { 0x10 | flags & 9 };
                    bytes[14..16].copy_from_slice(&window.to_be_bytes());
                    if options > 2 {
                        bytes[20..24].copy_from_slice(&[1, 1, 5, 10]);
                        bytes[24..28].copy_from_slice(&near(second, block.unacknowledged()).to_be_bytes());
                        bytes[28..32].copy_from_slice(&near(first, block.unacknowledged()).to_be_bytes());
                    }
                    // Timestamps of all kinds, most of them near the last one: else all would be dropped.
                    let recent = block.stamps().unwrap_or_default().told(pair.now);
                    let value = recent.1.wrapping_add(second % 64).wrapping_sub(u32::from(second % 8 == 0) * 80);
                    let echo = if window % 8 == 0 { second } else { recent.0.wrapping_sub(u32::from(window) % 999) };
                    match (first >> 16) % 8 {
                        0 if options > 2 => {
                            bytes[20..32].copy_from_slice(&stamp(value, echo));
                        }
                        0 => {}
                        _ if stamped && options < 8 => {
                            bytes.splice(20..20, stamp(value, echo));
                            bytes[12] += 3 << 4;
                        }
                        _ => {}
                    }
                    let segment = Segment::read(&bytes).unwrap();
                    let mut memory = block.incoming().memory();
                    let mut admits = |step: usize, after| {
                        assert!(step > 0 && memory + step == after, "each step is asked for");
                        let is_admitted = after <= 4096 - 512 * usize::from(first as u8 % 4);
                        memory = if is_admitted { after } else { memory };
                        is_admitted
                    };
                    block.input(&segment, pair.now, &mut admits);
                    prop_assert!(block.incoming().memory() == memory);
                }
            }
            for _ in 0..200 {
                let Some(departure) = block.output(pair.now) else { break };
                let mut bytes = vec![0; departure.length()];
                block.write(&departure, [1, 2], pair.now, &mut bytes);
                let end = (departure.start + departure.count) as usize;
                prop_assert!(departure.count <= 3000 && end <= block.outgoing().len());
            }
            prop_assert!(block.output(pair.now).is_none(), "it sends for ever");
            prop_assert!(block.turn(pair.now) != Turn::Now);
            prop_assert!(block.incoming().len() <= 4096 && block.outgoing().len() <= 4096);
        }
    }
}
