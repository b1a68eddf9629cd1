//! Records of ended connections (TIME-WAIT, RFC 9293 section 3.6.1).
//!
//! The side that closed first must for a while answer when the other side repeats its last segment, and must keep late
//! segments of the old connection away from a new one with the same ends. Two sequence numbers suffice for that, and
//! timestamps, if the connection has them, by which a new request is told from a late one (RFC 6191); the connection
//! with its buffers, many times as large, is gone. All records live equally long, so they expire in the order in which
//! they came, and no timer is needed for each.

use alloc::collections::VecDeque;

use smoltcp::phy::{ChecksumCapabilities, TxToken};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::TcpControl;
use tcp::Stamps;

use crate::Error;
use crate::charge::Charge;
use crate::frame::Segment;
use crate::reply::{Course, stamped};
use crate::segments::time;
use crate::table::{ENTRY, Hash, Key, Table};

/// Next sequence numbers of the two sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remains {
    pub(crate) ours: u32,
    pub(crate) theirs: u32,
    /// Timestamps, if the connection has them: the other side drops segments without.
    pub(crate) stamps: Option<Stamps>,
}

impl Remains {
    /// Sends an acknowledgement.
    pub(crate) fn acknowledge<T: TxToken>(
        self,
        course: &Course,
        answer: T,
        checksums: &ChecksumCapabilities,
        now: Instant,
    ) {
        let segment = stamped(self.stamps, course.segment(TcpControl::None, self.ours, self.theirs), now);
        course.send(&segment, answer, checksums);
    }

    /// Whether the request with this number and timestamp, if it has one, is later than all of the connection (RFC
    /// 6191, section 2).
    fn are_before(&self, sequence: u32, stamp: Option<u32>, now: Instant) -> bool {
        let is_ahead = sequence.wrapping_sub(self.theirs) as i32 > 0;
        match self.stamps.zip(stamp) {
            Some((stamps, stamp)) if stamps.is_outdated(stamp, time(now)) => false,
            Some((stamps, stamp)) => is_ahead || stamps.is_newer(stamp, time(now)),
            None => is_ahead,
        }
    }
}

/// Decision about a segment that belongs to no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is no record of its ends.
    Unknown,
    /// The segment begins a new connection; the old one is forgotten.
    Replaced,
    /// The segment is late; it needs no answer.
    Ignore,
    /// The other side missed the last acknowledgement.
    Acknowledge(Remains),
}

struct Record {
    key: Key,
    remains: Remains,
    expires: Instant,
    /// Held as long as the record.
    charge: Option<Charge>,
}

impl Record {
    fn is_live(&self) -> bool {
        self.charge.is_some()
    }
}

/// Bytes of memory for a record of a connection over IPv4: itself, its entry in the table, and that of its port.
pub(crate) const MEMORY: usize = size_of::<Record>() + 2 * ENTRY;

pub(crate) struct TimeWait {
    records: VecDeque<Record>,
    /// Number of the oldest record; the table maps a key to a record's number.
    first: u32,
    table: Table,
    live: usize,
    limit: usize,
    duration: Duration,
}

impl TimeWait {
    pub(crate) fn new(hash: Hash, limit: usize, duration: Duration) -> Self {
        TimeWait { records: VecDeque::new(), first: 0, table: Table::new(hash), live: 0, limit, duration }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.table.find(key).is_some()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.records.front().map(|record| record.expires)
    }

    /// Returns the number of further records before the oldest are dropped.
    pub(crate) fn free(&self) -> usize {
        self.limit.saturating_sub(self.live)
    }

    /// Records a connection. If there are too many, the oldest record is removed and its key returned.
    pub(crate) fn enter(
        &mut self,
        key: Key,
        remains: Remains,
        charge: Charge,
        now: Instant,
    ) -> Result<Option<Key>, Error> {
        if self.limit == 0 {
            return Err(Error::Limit);
        }
        self.records.try_reserve(1)?;
        self.table.reserve(key)?;
        let mut oldest = None;
        while self.records.len() >= self.limit {
            oldest = oldest.or(self.pop());
        }
        let number = self.first.wrapping_add(self.records.len() as u32);
        self.table.insert(key, number)?;
        self.records.push_back(Record { key, remains, expires: now + self.duration, charge: Some(charge) });
        self.live += 1;
        Ok(oldest)
    }

    /// Removes the oldest record; returns its key unless the record was replaced before.
    fn pop(&mut self) -> Option<Key> {
        let record = self.records.pop_front()?;
        self.first = self.first.wrapping_add(1);
        if !record.is_live() {
            return None;
        }
        self.table.remove(record.key);
        self.live -= 1;
        Some(record.key)
    }

    /// Removes one expired record, if there is one; returns its key unless the record was replaced before.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<Option<Key>> {
        self.next().is_some_and(|expires| expires <= now).then(|| self.pop())
    }

    /// Judges a segment. `wanted` says whether there is a listener for the connection that the segment may begin, and
    /// `stamp` reads its timestamp.
    pub(crate) fn find(
        &mut self,
        key: Key,
        segment: &Segment,
        wanted: bool,
        stamp: impl FnOnce() -> Option<u32>,
        now: Instant,
    ) -> Verdict {
        if self.live == 0 {
            return Verdict::Unknown;
        }
        let Some(number) = self.table.find(key) else {
            return Verdict::Unknown;
        };
        let Some(record) = self.records.get_mut(number.wrapping_sub(self.first) as usize) else {
            return Verdict::Unknown;
        };
        // A reset must not end the wait early (RFC 1337).
        if segment.is_reset() {
            return Verdict::Ignore;
        }
        if segment.opens() && wanted && record.remains.are_before(segment.sequence, stamp(), now) {
            record.charge = None;
            self.live -= 1;
            self.table.remove(key);
            return Verdict::Replaced;
        }
        if segment.length > 0 { Verdict::Acknowledge(record.remains) } else { Verdict::Ignore }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::Held;
    use core::net::{Ipv4Addr, SocketAddr};

    fn key(port: u16) -> Key {
        Key::new(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80), SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
    }

    fn unowned() -> Charge {
        Charge::new(None, Held::Record, (MEMORY, 1), crate::Need::Packet).unwrap()
    }

    #[test]
    fn records_expire_in_order_and_the_oldest_makes_room() {
        let mut waiting = TimeWait::new(Hash::new([3; 16]), 2, Duration::from_secs(10));
        let at = Instant::from_secs;
        assert_eq!(waiting.enter(key(1), Remains::default(), unowned(), at(0)), Ok(None));
        assert_eq!(waiting.enter(key(2), Remains::default(), unowned(), at(1)), Ok(None));
        assert_eq!(waiting.enter(key(3), Remains::default(), unowned(), at(2)), Ok(Some(key(1))));
        assert!(!waiting.contains(key(1)) && waiting.contains(key(2)));
        assert_eq!(waiting.expired(at(10)), None);
        assert_eq!(waiting.expired(at(11)), Some(Some(key(2))));
        assert_eq!(waiting.expired(at(11)), None);
        assert_eq!(waiting.expired(at(100)), Some(Some(key(3))));
        assert_eq!(waiting.len(), 0);
        assert_eq!(waiting.next(), None);
    }

    #[test]
    fn a_segment_is_judged_by_its_number_and_its_flags() {
        const SYN: u8 = 2;
        const RST: u8 = 4;
        const ACK: u8 = 16;
        let remains = Remains { ours: 10, theirs: 1000, stamps: None };
        // A segment of `length` bytes with the `number`th number behind the record's.
        let find = |waiting: &mut TimeWait, flags: u8, number: i32, length: u32, wanted: bool| {
            let (local, remote) = (key(1).local(), key(1).remote());
            let sequence = 1000u32.wrapping_add_signed(number);
            let segment = Segment::new(local, remote, sequence, length, flags);
            // Only a connection with timestamps looks at one.
            waiting.find(key(1), &segment, wanted, || Some(7), Instant::ZERO)
        };
        let mut waiting = TimeWait::new(Hash::new([3; 16]), 2, Duration::from_secs(10));
        assert_eq!(find(&mut waiting, ACK, 0, 1, false), Verdict::Unknown);
        for other in [2, 1] {
            waiting.enter(key(other), remains, unowned(), Instant::ZERO).unwrap();
            let expected = if other == 1 { Verdict::Acknowledge(remains) } else { Verdict::Unknown };
            assert_eq!(find(&mut waiting, ACK, 0, 1, false), expected);
        }
        for (flags, number, length, wanted, expected) in [
            (RST, 0, 0, true, Verdict::Ignore),
            (RST | ACK, 1, 1, true, Verdict::Ignore),
            (SYN | RST, 1, 1, true, Verdict::Ignore),
            (ACK, 0, 0, true, Verdict::Ignore),
            (ACK, 1, 0, true, Verdict::Ignore),
            (ACK, 1, 1, true, Verdict::Acknowledge(remains)),
            // Not newer than the old connection, or wanted by no listener.
            (SYN, 0, 1, true, Verdict::Acknowledge(remains)),
            (SYN, -1, 1, true, Verdict::Acknowledge(remains)),
            (SYN, i32::MIN, 1, true, Verdict::Acknowledge(remains)),
            (SYN, 1, 1, false, Verdict::Acknowledge(remains)),
            (SYN | ACK, 1, 1, true, Verdict::Acknowledge(remains)),
            (SYN, 1, 1, true, Verdict::Replaced),
            (SYN, 2, 1, true, Verdict::Unknown),
        ] {
            assert_eq!(find(&mut waiting, flags, number, length, wanted), expected, "{flags} {number} {length}");
        }
        // The replaced record still has its place, but no name.
        assert_eq!((waiting.len(), waiting.contains(key(1)), waiting.free()), (1, false, 1));
        let at = Instant::from_secs(10);
        assert_eq!([waiting.expired(at), waiting.expired(at)], [Some(Some(key(2))), Some(None)]);
        assert_eq!(waiting.expired(at), None);
        waiting.enter(key(1), remains, unowned(), Instant::ZERO).unwrap();
        assert_eq!(find(&mut waiting, SYN, i32::MAX, 1, true), Verdict::Replaced);
        assert_eq!((waiting.len(), waiting.free()), (0, 2));
    }

    /// A request with a timestamp is judged by that first (RFC 6191).
    #[test]
    fn a_later_timestamp_makes_a_request_new() {
        let now = Instant::from_secs(1000);
        let remains = Remains { ours: 10, theirs: 1000, stamps: Some(Stamps::new(3).with(50, 1_000_000_000)) };
        for (stamp, number, is_new) in [
            (Some(51), 1001, true),
            (Some(51), 1, true),
            (Some(50), 1001, true),
            (Some(50), 1000, false),
            (Some(50), 999, false),
            (Some(49), 1001, false),
            (Some(49), 1, false),
            (None, 1001, true),
            (None, 1000, false),
        ] {
            let mut waiting = TimeWait::new(Hash::new([3; 16]), 2, Duration::from_secs(10));
            waiting.enter(key(1), remains, unowned(), now).unwrap();
            let segment = Segment::new(key(1).local(), key(1).remote(), number, 1, 2);
            let expected = if is_new { Verdict::Replaced } else { Verdict::Acknowledge(remains) };
            assert_eq!(waiting.find(key(1), &segment, true, || stamp, now), expected, "{stamp:?} and {number}");
        }
    }
}
