//! Frames that have arrived and wait to be handled: the most important first, equals in the order of their arrival.
//!
//! A frame is as important as its reader: the task that registered last for input of the socket to which the frame is
//! addressed. A frame without a reader is the least important. A burst of frames for less important readers therefore
//! costs a more important one the time to look at their headers, not to handle them.
//!
//! All memory is allocated with the stack. If waiting frames fill every place, some of the least important ones are
//! dropped, as a network card drops frames that are not fetched; the frames behind them are then seen.
//!
//! A connection's frames keep their order as long as its reader does not change. When it changes, an earlier frame may
//! be handled after the next one, a reordering that TCP expects of any network.

use alloc::vec::Vec;

use ethernet::ReceivedFrame;
use smoltcp::time::{Duration, Instant};

use crate::Error;
use crate::frame::Packet;
use crate::tcp::zeroed;

/// Number of levels of importance.
pub const LEVELS: usize = u64::BITS as usize;
const NONE: u16 = u16::MAX;
/// Offset at which a frame begins in its place: two bytes behind a word, so that the packet behind the Ethernet header
/// of 14 bytes begins with a word. In the buffers of virtio devices frames begin so too, and are copied in words.
const START: usize = 2;

/// The task that waits for input of a socket, as the user of the stack tells tasks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Number chosen by the user of the stack; 0 for no reader.
    pub owner: u32,
    /// Importance: 0 is the most important, 63 the least. Higher numbers count as 63.
    pub level: u8,
}

impl Reader {
    /// Reader of frames that no task waits for.
    pub const NOBODY: Reader = Reader { owner: 0, level: LEVELS as u8 - 1 };
    /// Reader of frames that the stack itself waits for: hardware addresses, as far as the [`Allowance`] goes.
    pub(crate) const STACK: Reader = Reader { owner: 0, level: 0 };

    /// Returns `writer`, the task that waits for room to send, if this one does not wait for input or is less
    /// important.
    pub(crate) fn or_writer(self, writer: Reader, is_read: bool) -> Reader {
        if !is_read || writer.level < self.level { writer } else { self }
    }
}

/// A frame that waits to be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Task that waits for the frame.
    pub reader: Reader,
    /// Level of the list that the frame is in: its reader's, or the one [behind](Turn::Behind) which it was put.
    pub level: u8,
    /// Time of arrival, as returned by [`Order::look`](crate::Order::look).
    pub arrived: u64,
    /// Whether the frame goes before all others because it has waited too long.
    pub is_overdue: bool,
}

/// Decision about the next frame in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Handle the frame.
    Handle,
    /// Put the frame behind those of this level, since its reader is now no more important than that.
    Behind(u8),
    /// Leave the frame waiting, and all others with it.
    Stop,
    /// End the poll; the frame comes first in the next poll, which may follow at once.
    Later,
}

struct FramePlace {
    next: u16,
    length: u16,
    /// Number under which the device keeps the frame; then only the beginning is here.
    kept: Option<u16>,
    arrived: u64,
    reader: Reader,
    level: u8,
    packet: Packet,
    /// The connection that the packet was found to be for, or any other number.
    connection: u32,
}

/// Rate limit on work for strangers, and on urgent frames that concern the stack itself: a flood of these is no more
/// important than other frames.
pub(crate) struct Allowance {
    left: u32,
    until: Instant,
}

impl Allowance {
    /// Length of a period.
    const TIME: Duration = Duration::from_millis(10);
    /// Number of them in a period.
    const FRAMES: u32 = 16;

    pub(crate) const NEW: Allowance = Allowance { left: 0, until: Instant::ZERO };

    pub(crate) fn takes_one(&mut self, now: Instant) -> bool {
        if now >= self.until {
            *self = Allowance { left: Self::FRAMES, until: now + Self::TIME };
        }
        let is_one_left = self.left > 0;
        self.left -= u32::from(is_one_left);
        is_one_left
    }
}

/// A frame that was taken out.
pub(crate) struct Taken<'a> {
    pub(crate) packet: Packet,
    /// The connection that it was found to be for, or any other number.
    pub(crate) connection: u32,
    /// Number under which the device keeps the frame; then only its beginning is in `frame`.
    pub(crate) kept: Option<u16>,
    pub(crate) frame: &'a mut [u8],
    /// Room for an answer that cannot be sent.
    pub(crate) spare: &'a mut [u8],
}

#[derive(Clone, Copy)]
struct List {
    first: u16,
    last: u16,
}

impl List {
    const EMPTY: List = List { first: NONE, last: NONE };
}

pub(crate) struct Arrivals {
    places: Vec<FramePlace>,
    bytes: Vec<u8>,
    /// Length of the largest frame, in bytes.
    size: usize,
    /// Distance from one place to the next, in bytes.
    stride: usize,
    free: List,
    /// One list for each level, and last the list of overdue frames.
    lists: [List; LEVELS + 1],
    /// Bit set of the levels whose lists are not empty.
    ready: u64,
    count: usize,
}

const OVERDUE: usize = LEVELS;

fn level_of(reader: Reader) -> usize {
    usize::from(reader.level).min(LEVELS - 1)
}

impl Arrivals {
    /// Makes room for `frames` frames (at least one) of at most `size` bytes.
    pub(crate) fn new(frames: usize, size: usize) -> Result<Arrivals, Error> {
        let frames = frames.clamp(1, usize::from(NONE) - 1);
        let stride = (START + size).next_multiple_of(8);
        let mut places = Vec::new();
        places.try_reserve_exact(frames)?;
        let mut arrivals = Arrivals {
            places,
            // One place more, for answers that cannot be sent.
            bytes: zeroed(0, (frames + 1) * stride)?,
            size,
            stride,
            free: List::EMPTY,
            lists: [List::EMPTY; LEVELS + 1],
            ready: 0,
            count: 0,
        };
        for place in 0..frames {
            arrivals.places.push(FramePlace {
                next: NONE,
                length: 0,
                kept: None,
                arrived: 0,
                reader: Reader::NOBODY,
                level: 0,
                packet: Packet::Drop,
                connection: 0,
            });
            arrivals.give_back(place as u16);
        }
        Ok(arrivals)
    }

    /// Returns room for the next frame, or `None` if every place is taken.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        let begin = usize::from(self.free.first) * self.stride + START;
        (self.free.first != NONE).then(|| &mut self.bytes[begin..begin + self.size])
    }

    /// Enters the frame that was written to [`room`](Self::room) behind its equals.
    pub(crate) fn enter(
        &mut self,
        frame: ReceivedFrame,
        arrived: u64,
        (reader, connection): (Reader, u32),
        packet: Packet,
    ) {
        let place = self.free.first;
        let Some(entry) = self.places.get_mut(usize::from(place)) else { return };
        self.free.first = entry.next;
        (entry.length, entry.kept) = (frame.length.min(self.size) as u16, frame.kept);
        (entry.arrived, entry.reader, entry.packet, entry.connection) = (arrived, reader, packet, connection);
        self.count += 1;
        self.append_at(place, level_of(reader));
    }

    /// Puts a frame at the end of a level's list.
    fn append_at(&mut self, place: u16, level: usize) {
        self.places[usize::from(place)].level = level as u8;
        self.append(place, level);
    }

    /// Puts a frame at the front of a level's list.
    fn prepend_at(&mut self, place: u16, level: usize) {
        if self.lists[level].first == NONE {
            return self.append_at(place, level);
        }
        let entry = &mut self.places[usize::from(place)];
        entry.level = level as u8;
        entry.next = core::mem::replace(&mut self.lists[level].first, place);
    }

    fn append(&mut self, place: u16, level: usize) {
        self.places[usize::from(place)].next = NONE;
        let list = &mut self.lists[level];
        match list.first {
            NONE => list.first = place,
            _ => self.places[usize::from(list.last)].next = place,
        }
        list.last = place;
        if level != OVERDUE {
            self.ready |= 1 << level;
        }
    }

    fn pop(&mut self, level: usize) -> Option<u16> {
        let list = &mut self.lists[level];
        let place = list.first;
        list.first = self.places.get(usize::from(place))?.next;
        if list.first == NONE && level != OVERDUE {
            self.ready &= !(1 << level);
        }
        Some(place)
    }

    fn give_back(&mut self, place: u16) {
        self.places[usize::from(place)].next = self.free.first;
        self.free.first = place;
    }

    fn most_important(&self) -> Option<usize> {
        match (self.lists[OVERDUE].first, self.ready) {
            (NONE, 0) => None,
            (NONE, ready) => Some(ready.trailing_zeros() as usize),
            _ => Some(OVERDUE),
        }
    }

    /// Returns the frame that comes next.
    pub(crate) fn next(&self) -> Option<Waiting> {
        let level = self.most_important()?;
        let place = &self.places[usize::from(self.lists[level].first)];
        let FramePlace { reader, level: stands_at, arrived, .. } = *place;
        Some(Waiting { reader, level: stands_at, arrived, is_overdue: level == OVERDUE })
    }

    /// Whether no frame, or none but the least important, waits.
    pub(crate) fn are_of_nobody(&self) -> bool {
        self.lists[OVERDUE].first == NONE && self.ready & !(1 << (LEVELS - 1)) == 0
    }

    /// Returns the time of arrival of the oldest frame that is not overdue, apart from frames that were put behind
    /// younger ones.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let (mut levels, mut oldest) = (self.ready, None);
        while levels != 0 {
            let first = &self.places[usize::from(self.lists[levels.trailing_zeros() as usize].first)];
            oldest = Some(oldest.map_or(first.arrived, |oldest| first.arrived.min(oldest)));
            levels &= levels - 1;
        }
        oldest
    }

    /// Takes out the frame that comes next. Its place is free again only when the next frame is entered.
    pub(crate) fn take(&mut self) -> Option<Taken<'_>> {
        let place = self.pop(self.most_important()?)?;
        self.give_back(place);
        self.count -= 1;
        let (frames, spare) = self.bytes.split_at_mut(self.places.len() * self.stride);
        let FramePlace { packet, connection, length, kept, .. } = self.places[usize::from(place)];
        let begin = usize::from(place) * self.stride + START;
        Some(Taken { packet, connection, kept, frame: &mut frames[begin..begin + usize::from(length)], spare })
    }

    /// Moves the next frame behind those of this level, if the level is less important than the frame's own.
    pub(crate) fn put_behind(&mut self, level: u8) -> bool {
        let Some(own) = self.most_important() else { return false };
        let level = usize::from(level).min(LEVELS - 1);
        if own != OVERDUE && level <= own {
            return false;
        }
        if let Some(place) = self.pop(own) {
            self.append_at(place, level);
        }
        true
    }

    /// Moves the frames of this owner that were put behind back to their readers' levels, in front of the frames
    /// already there: a connection's frames that were not put behind came later.
    pub(crate) fn restore(&mut self, owner: u32) {
        let mut levels = self.ready;
        while levels != 0 {
            let level = levels.trailing_zeros() as usize;
            levels &= levels - 1;
            let mut next = core::mem::replace(&mut self.lists[level], List::EMPTY).first;
            self.ready &= !(1 << level);
            // Last one first, so that each can be put in front of those that came after it.
            let mut restored = NONE;
            while let Some(place) = self.places.get_mut(usize::from(next)) {
                let following = place.next;
                if place.reader.owner == owner && level_of(place.reader) < level {
                    place.next = core::mem::replace(&mut restored, next);
                } else {
                    self.append(next, level);
                }
                next = following;
            }
            while let Some(place) = self.places.get(usize::from(restored)) {
                let (following, own) = (place.next, level_of(place.reader));
                self.prepend_at(restored, own);
                restored = following;
            }
        }
    }

    /// Moves the frames that arrived before this time before all others, in the order of their levels.
    pub(crate) fn boost(&mut self, before: u64) {
        let mut levels = self.ready;
        while levels != 0 {
            let level = levels.trailing_zeros() as usize;
            levels &= levels - 1;
            // Each level is in the order of arrival, but for frames that were put behind.
            while self.places.get(usize::from(self.lists[level].first)).is_some_and(|first| first.arrived < before) {
                let Some(place) = self.pop(level) else { break };
                self.append(place, OVERDUE);
            }
        }
    }

    /// Drops a quarter of the frames if every place is taken: the least important ones, and the oldest of these.
    /// Returns their number, and calls `forget` for frames that the device keeps.
    pub(crate) fn drop_least(&mut self, mut forget: impl FnMut(u16)) -> usize {
        if self.free.first != NONE {
            return 0;
        }
        let before = self.count;
        for _ in 0..self.places.len().div_ceil(4) {
            if self.ready == 0 {
                break;
            }
            let least = LEVELS - 1 - self.ready.leading_zeros() as usize;
            let Some(place) = self.pop(least) else { break };
            if let Some(kept) = self.places[usize::from(place)].kept {
                forget(kept);
            }
            self.give_back(place);
            self.count -= 1;
        }
        before - self.count
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const PLACES: usize = 8;
    const OWNERS: u32 = 3;

    #[test]
    fn a_writer_of_equal_importance_does_not_replace_a_reader() {
        let [reader, equal, better, worse] =
            [(1, 5), (2, 5), (3, 4), (4, 6)].map(|(owner, level)| Reader { owner, level });
        assert_eq!([equal, better, worse].map(|writer| reader.or_writer(writer, true)), [reader, better, reader]);
        assert_eq!([equal, better, worse].map(|writer| reader.or_writer(writer, false)), [equal, better, worse]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u8),
        Take,
        PutBehind(u8),
        Restore(u32),
        Boost(u64),
        DropLeast,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u8..70).prop_map(Step::Enter),
            3 => Just(Step::Take),
            1 => (0u8..70).prop_map(Step::PutBehind),
            1 => (0..OWNERS).prop_map(Step::Restore),
            1 => (0u64..40).prop_map(Step::Boost),
            1 => Just(Step::DropLeast),
        ]
    }

    /// Frame of the model: its level (64 if overdue), its reader's level, its time of arrival, and its only byte.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Frame {
        level: usize,
        reader: Reader,
        arrived: u64,
        byte: u8,
    }

    /// Returns the index of the next frame: overdue ones first, then by level, equals in their order.
    fn next(model: &[Frame]) -> Option<usize> {
        let rank = |frame: &Frame| if frame.level == OVERDUE { 0 } else { frame.level + 1 };
        (0..model.len()).min_by_key(|&place| (rank(&model[place]), place))
    }

    #[test]
    fn the_stack_itself_has_few_urgent_frames_in_a_time() {
        let mut allowance = Allowance::NEW;
        for start in [Instant::ZERO, Instant::from_millis(10), Instant::from_millis(25)] {
            // A new period begins with the first frame after the end of the last one.
            let last = start + Duration::from_micros(9_999);
            let taken: Vec<_> =
                (0..18).map(|frame| allowance.takes_one(if frame < 10 { start } else { last })).collect();
            assert_eq!(taken, [[true; 16].as_slice(), &[false; 2]].concat());
        }
    }

    #[test]
    fn each_place_has_room_for_the_largest_frame_and_one_more_is_for_answers() {
        for (frames, size) in [(0, 1), (1, 4), (3, 12), (3, 13)] {
            let mut arrivals = Arrivals::new(frames, size).unwrap();
            let places = frames.max(1);
            // Larger than any, shorter than any, and each full of its own number.
            for number in 1..=places as u8 {
                let room = arrivals.room().unwrap();
                assert_eq!(room.len(), size);
                room.fill(number);
                let frame = ReceivedFrame { length: size + usize::from(number) - 1, kept: None };
                arrivals.enter(frame, 0, (Reader::NOBODY, 0), Packet::Drop);
            }
            assert!(arrivals.room().is_none());
            // A frame that finds no room is not entered.
            arrivals.enter(ReceivedFrame { length: 1, kept: None }, 0, (Reader::STACK, 0), Packet::Drop);
            for number in 1..=places as u8 {
                let taken = arrivals.take().unwrap();
                assert_eq!(taken.frame, vec![number; size]);
                assert!(taken.spare.len() >= START + size);
                taken.spare.fill(99);
                taken.frame.fill(77);
            }
            assert!(arrivals.take().is_none());
        }
        assert_eq!(Arrivals::new(1 << 20, 1).unwrap().places.len(), usize::from(NONE) - 1);
    }

    #[test]
    fn a_frame_begins_where_a_frame_of_a_device_does_and_places_in_words() {
        for size in 1..20 {
            let arrivals = Arrivals::new(2, size).unwrap();
            assert_eq!(arrivals.stride % 8, 0);
            assert!((START + size..START + size + 8).contains(&arrivals.stride), "{} for {size}", arrivals.stride);
            assert_eq!(arrivals.bytes.len(), 3 * arrivals.stride);
        }
    }

    #[test]
    fn a_quarter_of_the_places_is_enough_for_those_that_come() {
        for (places, expected) in [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)] {
            let mut arrivals = Arrivals::new(places, 1).unwrap();
            for arrived in 0..places as u64 {
                assert_eq!(arrivals.drop_least(|_| panic!("nothing is kept")), 0);
                arrivals.enter(ReceivedFrame { length: 1, kept: None }, arrived, (Reader::NOBODY, 0), Packet::Drop);
            }
            assert_eq!(arrivals.drop_least(|_| panic!("nothing is kept")), expected);
            assert_eq!(arrivals.oldest(), (places > 1).then_some(expected as u64));
        }
    }

    proptest! {
        #![proptest_config(property::cases(512))]

        /// Compares with a list that is sorted for each question.
        #[test]
        fn as_a_list_would_do_it(steps in prop::collection::vec(step(), 0..120)) {
            let mut arrivals = Arrivals::new(PLACES, 4).unwrap();
            let mut model: Vec<Frame> = vec![];
            for (now, step) in steps.into_iter().enumerate() {
                let (arrived, byte) = (now as u64, now as u8);
                match step {
                    Step::Enter(level) => {
                        let room = arrivals.room();
                        prop_assert_eq!(room.is_some(), model.len() < PLACES);
                        if let Some(room) = room {
                            room[0] = byte;
                            let reader = Reader { owner: now as u32 % OWNERS, level };
                            let frame = ReceivedFrame { length: 1, kept: Some(byte.into()) };
                            arrivals.enter(frame, arrived, (reader, 0), Packet::Arp);
                            model.push(Frame { level: usize::from(level).min(63), reader, arrived, byte });
                        }
                    }
                    Step::Take => {
                        let expected = next(&model).map(|place| model.remove(place));
                        let told = arrivals.next();
                        let taken = arrivals.take().map(|taken| {
                            assert_eq!(taken.kept, Some(taken.frame[0].into()));
                            taken.frame.to_vec()
                        });
                        prop_assert_eq!(told.map(|told| (told.arrived, told.is_overdue, told.reader)),
                            expected.map(|frame| (frame.arrived, frame.level == OVERDUE, frame.reader)));
                        if let (Some(told), Some(frame)) = (told, expected) && !told.is_overdue {
                            prop_assert_eq!(usize::from(told.level), frame.level);
                        }
                        prop_assert_eq!(taken, expected.map(|frame| vec![frame.byte]));
                    }
                    Step::PutBehind(level) => {
                        let wanted = usize::from(level).min(63);
                        let moved = next(&model).filter(|&place| {
                            model[place].level == OVERDUE || wanted > model[place].level
                        });
                        prop_assert_eq!(arrivals.put_behind(level), moved.is_some());
                        if let Some(place) = moved {
                            let frame = model.remove(place);
                            model.push(Frame { level: wanted, ..frame });
                        }
                    }
                    Step::Restore(owner) => {
                        arrivals.restore(owner);
                        for level in 0..64 {
                            let goes = |frame: &Frame| {
                                frame.level == level && frame.reader.owner == owner && usize::from(frame.reader.level) < level
                            };
                            let (restored, others) = core::mem::take(&mut model).into_iter().partition::<Vec<_>, _>(goes);
                            let restored = restored.into_iter().map(|frame| Frame { level: frame.reader.level.into(), ..frame });
                            model = restored.chain(others).collect();
                        }
                    }
                    Step::Boost(before) => {
                        arrivals.boost(before);
                        for level in 0..64 {
                            // Up to the first frame of a level that has not waited long enough.
                            while let Some(place) = model.iter().position(|frame| frame.level == level)
                                && model[place].arrived < before
                            {
                                let frame = model.remove(place);
                                model.push(Frame { level: OVERDUE, ..frame });
                            }
                        }
                    }
                    Step::DropLeast => {
                        let (mut dropped, mut forgotten) = (vec![], vec![]);
                        if model.len() == PLACES {
                            for _ in 0..PLACES / 4 {
                                let least = model.iter().map(|frame| frame.level).filter(|&level| level != OVERDUE).max();
                                let Some(least) = least else { break };
                                let place = model.iter().position(|frame| frame.level == least).unwrap();
                                dropped.push(u16::from(model.remove(place).byte));
                            }
                        }
                        prop_assert_eq!(arrivals.drop_least(|kept| forgotten.push(kept)), dropped.len());
                        prop_assert_eq!(forgotten, dropped);
                    }
                }
                prop_assert_eq!(arrivals.count, model.len());
                let first = |level| model.iter().find(|frame| frame.level == level).map(|frame| frame.arrived);
                prop_assert_eq!(arrivals.oldest(), (0..64).filter_map(first).min());
            }
        }
    }
}
