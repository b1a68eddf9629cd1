//! Hardware addresses of the hosts of the network, for IPv6 (RFC 4861, sections 5 to 7.3).
//!
//! A neighbour is recorded when this host has something to send to it, or when it asks for this host's hardware
//! address. The number of records is bounded: a flood of either kind replaces records that nothing depends on, the
//! oldest first, and never one of a neighbour that is known to be reachable while there are others.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use smoltcp::time::{Duration, Instant};

use crate::host::FAR_AWAY;

/// Number of records.
pub(crate) const NEIGHBOURS: usize = 128;
/// Time for which a neighbour that has answered counts as reachable.
const REACHABLE: Duration = Duration::from_secs(30);
/// Time in which a packet to a neighbour of which nothing was heard for long may have its answer, before it is asked.
const PROBE_DELAY: Duration = Duration::from_secs(5);
/// Pause between two questions to the same neighbour, and their number.
const PAUSE: Duration = Duration::from_secs(1);
const QUESTIONS: u8 = 3;

/// Knowledge about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reachability {
    /// It has been asked for its hardware address.
    Incomplete,
    /// It has answered a moment ago.
    Reachable,
    /// It has not answered for long, and nothing was sent to it since.
    Stale,
    /// Something was sent to it, and perhaps it answers that.
    Delayed,
    /// It is asked whether it is still there.
    Probed,
}

struct Neighbour {
    address: Ipv6Addr,
    /// Zeros while it is not known.
    hardware: [u8; 6],
    state: Reachability,
    /// End of a reachable neighbour's time, time of the next question, or the time at which it became stale.
    at: Instant,
    questions: u8,
    /// Whether something was sent to it.
    is_used: bool,
}

impl Neighbour {
    /// Returns what depends on the record, for a table in which so many neighbours have not answered yet.
    fn worth(&self, unanswered: usize) -> u8 {
        match self.state {
            Reachability::Stale if !self.is_used => 0,
            Reachability::Incomplete if unanswered > NEIGHBOURS / 2 => 1,
            Reachability::Stale => 2,
            Reachability::Incomplete => 3,
            Reachability::Delayed | Reachability::Probed => 4,
            Reachability::Reachable => 5,
        }
    }

    /// Whether it is asked when its time comes.
    fn is_asked(&self) -> bool {
        !matches!(self.state, Reachability::Reachable | Reachability::Stale)
    }
}

/// A question to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) target: Ipv6Addr,
    /// Hardware address that it had; none: every host is asked.
    pub(crate) at: Option<[u8; 6]>,
}

/// Contents of an advertisement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) target: Ipv6Addr,
    pub(crate) hardware: Option<[u8; 6]>,
    pub(crate) is_solicited: bool,
    pub(crate) overrides: bool,
}

#[derive(Default)]
pub(crate) struct NeighbourTable {
    neighbours: Vec<Neighbour>,
    /// Index of the neighbour to which something was sent last.
    last: usize,
    next: Option<Instant>,
}

impl NeighbourTable {
    /// Returns the time of the next question.
    pub(crate) fn next(&self) -> Instant {
        self.next.unwrap_or(FAR_AWAY)
    }

    fn no_later_than(&mut self, at: Instant) {
        self.next = Some(self.next().min(at));
    }

    fn find(&self, address: Ipv6Addr) -> Option<usize> {
        match self.neighbours.get(self.last) {
            Some(last) if last.address == address => Some(self.last),
            _ => self.neighbours.iter().position(|neighbour| neighbour.address == address),
        }
    }

    /// Whether the hardware address is known.
    pub(crate) fn is_known(&self, address: Ipv6Addr) -> bool {
        self.find(address).is_some_and(|index| self.neighbours[index].state != Reachability::Incomplete)
    }

    /// Returns the hardware address for a packet to a neighbour. If it is not known, the neighbour is asked for it.
    pub(crate) fn resolve(&mut self, address: Ipv6Addr, now: Instant) -> Option<[u8; 6]> {
        let Some(index) = self.find(address) else {
            self.enter(address, [0; 6], Reachability::Incomplete, now);
            self.no_later_than(now);
            return None;
        };
        self.last = index;
        let neighbour = &mut self.neighbours[index];
        neighbour.is_used = true;
        let is_silent = match neighbour.state {
            Reachability::Incomplete => return None,
            Reachability::Reachable => neighbour.at <= now,
            Reachability::Stale => true,
            Reachability::Delayed | Reachability::Probed => false,
        };
        let hardware = neighbour.hardware;
        if is_silent {
            (neighbour.state, neighbour.at) = (Reachability::Delayed, now + PROBE_DELAY);
            self.no_later_than(now + PROBE_DELAY);
        }
        Some(hardware)
    }

    /// Records a neighbour, in the place of another one if there is no room.
    fn enter(&mut self, address: Ipv6Addr, hardware: [u8; 6], state: Reachability, now: Instant) {
        let is_used = state == Reachability::Incomplete;
        let new = Neighbour { address, hardware, state, at: now, questions: 0, is_used };
        if self.neighbours.len() < NEIGHBOURS {
            if self.neighbours.try_reserve(1).is_ok() {
                self.neighbours.push(new);
            }
            return;
        }
        let unanswered = self.neighbours.iter().filter(|neighbour| neighbour.state == Reachability::Incomplete).count();
        // One that only asks gets the place of another one that did.
        let most = if is_used { u8::MAX } else { 0 };
        let ranked = self.neighbours.iter_mut().map(|neighbour| (neighbour.worth(unanswered), neighbour));
        let least = ranked.min_by_key(|(worth, neighbour)| (*worth, neighbour.at));
        if let Some((_, least)) = least.filter(|(worth, _)| *worth <= most) {
            *least = new;
        }
    }

    /// Records the hardware address of a neighbour that has asked, or told its own beside other things. Returns whether
    /// packets have waited for it.
    pub(crate) fn hear(&mut self, address: Ipv6Addr, hardware: [u8; 6], now: Instant) -> bool {
        let Some(index) = self.find(address) else {
            self.enter(address, hardware, Reachability::Stale, now);
            return false;
        };
        let neighbour = &mut self.neighbours[index];
        let was_unknown = neighbour.state == Reachability::Incomplete;
        if neighbour.hardware != hardware {
            (neighbour.hardware, neighbour.state, neighbour.at) = (hardware, Reachability::Stale, now);
        }
        was_unknown
    }

    /// Takes an advertisement into account (RFC 4861, section 7.2.5). Returns whether packets have waited for it;
    /// `None` if it does not count.
    pub(crate) fn learn(&mut self, told: &Told, now: Instant) -> Option<bool> {
        let index = self.find(told.target)?;
        let neighbour = &mut self.neighbours[index];
        let was_unknown = neighbour.state == Reachability::Incomplete;
        let hardware = match told.hardware {
            Some(hardware) => hardware,
            None if was_unknown => return None,
            None => neighbour.hardware,
        };
        let is_other = hardware != neighbour.hardware;
        if is_other && !told.overrides && !was_unknown {
            if neighbour.state == Reachability::Reachable {
                (neighbour.state, neighbour.at) = (Reachability::Stale, now);
            }
            return None;
        }
        neighbour.hardware = hardware;
        if told.is_solicited {
            (neighbour.state, neighbour.at) = (Reachability::Reachable, now + REACHABLE);
        } else if is_other {
            (neighbour.state, neighbour.at) = (Reachability::Stale, now);
        }
        Some(was_unknown)
    }

    /// Returns the next question that is due, and forgets neighbours that have not answered.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Question> {
        while self.next() <= now {
            let is_due = |neighbour: &Neighbour| neighbour.is_asked() && neighbour.at <= now;
            let Some(index) = self.neighbours.iter().position(is_due) else {
                let asked = self.neighbours.iter().filter(|neighbour| neighbour.is_asked());
                self.next = asked.map(|neighbour| neighbour.at).min();
                continue;
            };
            let neighbour = &mut self.neighbours[index];
            if neighbour.questions >= QUESTIONS && neighbour.state != Reachability::Delayed {
                self.neighbours.swap_remove(index);
                continue;
            }
            if neighbour.state == Reachability::Delayed {
                (neighbour.state, neighbour.questions) = (Reachability::Probed, 0);
            }
            neighbour.questions += 1;
            neighbour.at = now + PAUSE;
            let at = (neighbour.state == Reachability::Probed).then_some(neighbour.hardware);
            return Some(Question { target: neighbour.address, at });
        }
        None
    }

    /// Puts a question that could not be sent off.
    pub(crate) fn ask_again(&mut self, question: &Question, at: Instant) {
        if let Some(index) = self.find(question.target) {
            let neighbour = &mut self.neighbours[index];
            neighbour.questions = neighbour.questions.saturating_sub(1);
            neighbour.at = at;
        }
        self.no_later_than(at);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.neighbours.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn address(number: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number)
    }

    fn at(milliseconds: i64) -> Instant {
        Instant::from_millis(milliseconds)
    }

    fn answer(number: u16) -> Told {
        Told { target: address(number), hardware: Some(HARDWARE), is_solicited: true, overrides: true }
    }

    #[test]
    fn a_neighbour_is_asked_three_times_and_then_forgotten() {
        let mut table = NeighbourTable::default();
        assert_eq!(table.next(), FAR_AWAY);
        assert_eq!(table.resolve(address(1), at(0)), None);
        for round in 0..3 {
            assert_eq!(table.due(at(1000 * round)), Some(Question { target: address(1), at: None }));
            assert_eq!(table.due(at(1000 * round)), None);
            assert_eq!(table.next(), at(1000 * (round + 1)));
        }
        assert_eq!(table.due(at(3000)), None);
        assert_eq!((table.len(), table.next()), (0, FAR_AWAY));
        // An answer that comes too late is about nothing.
        assert_eq!(table.learn(&answer(1), at(3001)), None);
    }

    #[test]
    fn a_silent_neighbour_is_probed_where_it_was() {
        let mut table = NeighbourTable::default();
        table.resolve(address(1), at(0));
        table.due(at(0)).unwrap();
        assert_eq!(table.learn(&answer(1), at(10)), Some(true), "packets have waited for the answer");
        assert_eq!(table.resolve(address(1), at(20)), Some(HARDWARE));
        assert_eq!(table.due(at(29_000)), None);
        // Its time is over; the packet may be answered first.
        assert_eq!(table.resolve(address(1), at(31_000)), Some(HARDWARE));
        assert_eq!(table.next(), at(36_000));
        assert_eq!(table.due(at(35_000)), None);
        assert_eq!(table.due(at(36_000)), Some(Question { target: address(1), at: Some(HARDWARE) }));
        assert_eq!(table.learn(&answer(1), at(36_100)), Some(false));
        assert_eq!(table.due(at(60_000)), None);
        table.resolve(address(1), at(70_000));
        for second in 75..78 {
            table.due(at(1000 * second)).unwrap();
            assert_eq!(table.resolve(address(1), at(1000 * second)), Some(HARDWARE));
        }
        assert_eq!(table.due(at(78_000)), None);
        assert_eq!(table.resolve(address(1), at(78_000)), None, "it was silent for too long");
    }

    #[test]
    fn an_advertisement_without_the_flag_does_not_override() {
        let mut table = NeighbourTable::default();
        table.resolve(address(1), at(0));
        table.learn(&answer(1), at(0));
        let other = [2, 0, 0, 0, 0, 8];
        let liar = Told { hardware: Some(other), overrides: false, is_solicited: false, ..answer(1) };
        table.learn(&liar, at(1));
        assert_eq!(table.resolve(address(1), at(2)), Some(HARDWARE));
        table.learn(&Told { overrides: true, ..liar }, at(3));
        assert_eq!(table.resolve(address(1), at(4)), Some(other));
        // An unsolicited one about a host that nobody has asked for.
        assert_eq!(table.learn(&answer(2), at(5)), None);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn floods_replace_what_nothing_depends_on() {
        let mut table = NeighbourTable::default();
        table.resolve(address(1), at(0));
        table.learn(&answer(1), at(0));
        for number in 2..2000 {
            table.hear(address(number), HARDWARE, at(1));
        }
        assert_eq!(table.len(), NEIGHBOURS);
        assert!(table.is_known(address(1)));
        // Programs that send to hosts which are not there.
        for number in 2000..4000 {
            assert_eq!(table.resolve(address(number), at(2)), None);
        }
        assert_eq!(table.len(), NEIGHBOURS);
        assert!(table.is_known(address(1)));
        // One that asks gets no place of one that is asked.
        table.hear(address(5000), HARDWARE, at(3));
        assert!(!table.is_known(address(5000)));
        // A new neighbour still finds a place, and its answer.
        assert_eq!(table.resolve(address(6000), at(3)), None);
        assert_eq!(table.learn(&answer(6000), at(4)), Some(true));
    }
}
