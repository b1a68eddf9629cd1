//! A wire between the network cards of two machines that loses, repeats, reorders and delays frames.
//!
//! Each card ends in a UDP socket of QEMU, whose datagrams are frames; the wire is a socket for each card and a thread
//! for each direction. The fate of a frame depends on the seed, on the direction and on the number of frames before it
//! alone ([`Fates`]), so that a run can be repeated as far as the machines repeat themselves. A socket that has no room
//! loses frames too, as a switch does.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::board::Network;
use crate::suites::Moments;

/// Longest time of a frame that waits for others to overtake it.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Longest delay in milliseconds, and most frames that overtake one.
const LONGEST_DELAY_MS: u64 = 20;
const MOST_OVERTAKING: u64 = 4;

/// Time between two looks of a direction without frames at whether it is to end.
const IDLE: Duration = Duration::from_millis(100);

/// Room for the largest frame.
const FRAME: usize = 64 << 10;

/// Last bytes of the cards' hardware addresses.
const CARDS: [u8; 2] = [0x51, 0x52];

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It arrives.
    Pass,
    /// It does not.
    Lose,
    /// It arrives, and once more behind so many others.
    Repeat(u64),
    /// It arrives behind so many others that were sent later.
    Reorder(u64),
    /// It arrives after this time.
    Delay(Duration),
}

/// Number of frames in a thousand of each fate; the others pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of lost frames.
    pub lose: u64,
    /// Of frames that arrive twice.
    pub repeat: u64,
    /// Of frames that arrive behind later ones.
    pub reorder: u64,
    /// Of frames that arrive late.
    pub delay: u64,
}

impl Shares {
    /// Returns those of a wire that loses so many frames of a hundred.
    pub fn losing(percent: u8) -> Shares {
        Shares { lose: u64::from(percent) * 10, repeat: 5, reorder: 5, delay: 2 }
    }
}

/// The fates of the frames of one direction, in their order.
struct Fates {
    shares: Shares,
    random: Moments,
}

impl Fates {
    /// Creates the fates of a direction, 0 or 1.
    fn new(shares: Shares, seed: u64, direction: usize) -> Fates {
        // The generator's first number is far from those of neighbouring seeds.
        let mut random = Moments(seed << 1 | direction as u64);
        Fates { shares, random: Moments(random.next()) }
    }

    fn next(&mut self) -> Fate {
        let Shares { lose, repeat, reorder, delay } = self.shares;
        let (mut draw, detail) = (self.random.next() % 1000, self.random.next());
        let behind = 1 + detail % MOST_OVERTAKING;
        let late = Duration::from_millis(1 + detail % LONGEST_DELAY_MS);
        let fates = [
            (lose, Fate::Lose),
            (repeat, Fate::Repeat(behind)),
            (reorder, Fate::Reorder(behind)),
            (delay, Fate::Delay(late)),
        ];
        for (share, fate) in fates {
            if draw < share {
                return fate;
            }
            draw -= share;
        }
        Fate::Pass
    }
}

/// Numbers of frames, by their fates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All that the machines sent.
    pub sent: u64,
    /// Those that were lost.
    pub lost: u64,
    /// Those that arrived twice.
    pub repeated: u64,
    /// Those that arrived behind later ones.
    pub reordered: u64,
    /// Those that arrived late.
    pub delayed: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.reordered += other.reordered;
        self.delayed += other.delayed;
    }

    /// Returns whether frames had every fate that these shares ask for.
    pub fn has_every_fate(&self, shares: Shares) -> bool {
        let pairs = [
            (shares.lose, self.lost),
            (shares.repeat, self.repeated),
            (shares.reorder, self.reordered),
            (shares.delay, self.delayed),
        ];
        pairs.into_iter().all(|(share, count)| share == 0 || count > 0)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { sent, lost, repeated, reordered, delayed } = self;
        write!(
            formatter,
            "{sent} frames, of which {lost} were lost, {repeated} repeated, {reordered} reordered and {delayed} delayed"
        )
    }
}

/// A frame that waits: until others have overtaken it, and no longer than a time.
struct Held {
    frame: Vec<u8>,
    behind: u64,
    until: Instant,
}

/// One direction of the wire, without its sockets.
struct Direction {
    fates: Fates,
    held: Vec<Held>,
    counts: Counts,
}

impl Direction {
    fn new(fates: Fates) -> Direction {
        Direction { fates, held: Vec::new(), counts: Counts::default() }
    }

    /// Takes a frame, and passes on those whose turn it is.
    fn take(&mut self, frame: &[u8], now: Instant, pass: &mut impl FnMut(&[u8])) {
        let fate = self.fates.next();
        let counts = &mut self.counts;
        counts.sent += 1;
        let held = match fate {
            Fate::Pass => None,
            Fate::Lose => {
                counts.lost += 1;
                None
            }
            Fate::Repeat(behind) => {
                counts.repeated += 1;
                Some((behind, now + LONGEST_WAIT))
            }
            Fate::Reorder(behind) => {
                counts.reordered += 1;
                Some((behind, now + LONGEST_WAIT))
            }
            Fate::Delay(time) => {
                counts.delayed += 1;
                Some((u64::MAX, now + time))
            }
        };
        if matches!(fate, Fate::Pass | Fate::Repeat(_)) {
            pass(frame);
        }
        for before in &mut self.held {
            before.behind = before.behind.saturating_sub(1);
        }
        if let Some((behind, until)) = held {
            self.held.push(Held { frame: frame.to_vec(), behind, until });
        }
        self.pass_on(now, pass);
    }

    /// Passes on the frames that have waited for long enough.
    fn pass_on(&mut self, now: Instant, pass: &mut impl FnMut(&[u8])) {
        for held in self.held.extract_if(.., |held| held.behind == 0 || held.until <= now) {
            pass(&held.frame);
        }
    }

    /// Returns the time for which there is nothing to do without a frame.
    fn rest(&self, now: Instant) -> Duration {
        let first = self.held.iter().map(|held| held.until).min();
        // A time of zero would be none at all.
        first.map_or(IDLE, |first| first.saturating_duration_since(now).clamp(Duration::from_millis(1), IDLE))
    }
}

/// A wire in use. Dropping it ends it.
pub struct Wire {
    networks: [Network; 2],
    ends: Arc<AtomicBool>,
    directions: Vec<JoinHandle<Counts>>,
}

impl Wire {
    /// Starts a wire whose frames have fates in these shares.
    ///
    /// # Errors
    ///
    /// This host has no free UDP ports, or no thread.
    pub fn start(shares: Shares, seed: u64) -> io::Result<Wire> {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let sockets = [bind()?, bind()?];
        // Both are held until each has its port, so that the ports differ; then QEMU binds them.
        let cards = [bind()?, bind()?];
        let mut networks = [Network::User, Network::User];
        for (at, network) in networks.iter_mut().enumerate() {
            let card = cards[at].local_addr()?;
            sockets[at].connect(card)?;
            *network =
                Network::Frames { card: card.port(), other: sockets[at].local_addr()?.port(), hardware: CARDS[at] };
        }
        let mut wire = Wire { networks, ends: Arc::new(AtomicBool::new(false)), directions: Vec::new() };
        for from in 0..2 {
            let (source, destination) = (sockets[from].try_clone()?, sockets[1 - from].try_clone()?);
            let direction = Direction::new(Fates::new(shares, seed, from));
            let ends = wire.ends.clone();
            let name = format!("wire {from}");
            let carry = move || carry(direction, &source, &destination, &ends);
            wire.directions.push(thread::Builder::new().name(name).spawn(carry)?);
        }
        Ok(wire)
    }

    /// Returns the ends of the wire: the cables of both machines' cards.
    pub fn networks(&self) -> &[Network; 2] {
        &self.networks
    }

    /// Ends the wire and returns the numbers of frames of both directions together.
    pub fn end(mut self) -> Counts {
        self.join()
    }

    fn join(&mut self) -> Counts {
        self.ends.store(true, Ordering::Release);
        let mut counts = Counts::default();
        for direction in self.directions.drain(..) {
            counts.add(direction.join().unwrap_or_default());
        }
        counts
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.join();
    }
}

/// Carries the frames of one direction until the end of the wire.
fn carry(mut direction: Direction, source: &UdpSocket, destination: &UdpSocket, ends: &AtomicBool) -> Counts {
    let mut room = vec![0; FRAME];
    let mut rest = Duration::ZERO;
    // A frame without a receiver is lost, as on any wire: the machine is not there yet, or has no room.
    let mut pass = |frame: &[u8]| drop(destination.send(frame));
    while !ends.load(Ordering::Acquire) {
        let next = direction.rest(Instant::now());
        if next != rest {
            rest = next;
            // An error would mean a time of zero, which it is not.
            let _ = source.set_read_timeout(Some(rest));
        }
        match source.recv(&mut room) {
            Ok(length) => direction.take(&room[..length], Instant::now(), &mut pass),
            Err(error) => {
                // The card is not there yet, or has gone.
                if error.kind() == ErrorKind::ConnectionRefused {
                    thread::sleep(Duration::from_millis(1));
                }
                direction.pass_on(Instant::now(), &mut pass);
            }
        }
    }
    direction.counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares { lose: 100, repeat: 50, reorder: 50, delay: 20 };

    fn fates(seed: u64, direction: usize) -> Vec<Fate> {
        let mut fates = Fates::new(SHARES, seed, direction);
        (0..100_000).map(|_| fates.next()).collect()
    }

    #[test]
    fn one_seed_means_one_fate_of_each_frame() {
        assert_eq!(fates(7, 0), fates(7, 0));
        for other in [fates(7, 1), fates(8, 0), fates(6, 0)] {
            // Of two that have nothing to do with each other, few frames that do not simply pass agree.
            let both = fates(7, 0).into_iter().zip(other).filter(|(one, two)| one == two && *one != Fate::Pass);
            assert!(both.count() < 2_000);
        }
    }

    #[test]
    fn every_fate_has_its_share() {
        let fates = fates(1, 0);
        let share = |is: fn(&Fate) -> bool| fates.iter().filter(|fate| is(fate)).count() / 100;
        for (found, expected) in [
            (share(|fate| *fate == Fate::Lose), 100),
            (share(|fate| matches!(fate, Fate::Repeat(1..=MOST_OVERTAKING))), 50),
            (share(|fate| matches!(fate, Fate::Reorder(1..=MOST_OVERTAKING))), 50),
            (share(|fate| matches!(fate, Fate::Delay(time) if !time.is_zero() && *time <= LONGEST_WAIT)), 20),
            (share(|fate| *fate == Fate::Pass), 780),
        ] {
            assert!(found.abs_diff(expected) <= 5, "{found} of {expected} in a thousand");
        }
        let mut without = Fates::new(Shares { lose: 0, repeat: 0, reorder: 0, delay: 0 }, 1, 0);
        assert!((0..1000).all(|_| without.next() == Fate::Pass));
        let mut lossy = Fates::new(Shares::losing(1), 1, 0);
        let lost = (0..100_000).filter(|_| lossy.next() == Fate::Lose).count();
        assert!((900..1100).contains(&lost), "{lost}");
    }

    /// Sends numbered frames, a millisecond apart, and returns the numbers in the order of their arrivals.
    fn arrivals(direction: &mut Direction, count: u64) -> Vec<u64> {
        let (start, mut arrived) = (Instant::now(), Vec::new());
        let mut pass = |frame: &[u8]| arrived.push(u64::from_le_bytes(frame.try_into().unwrap()));
        for number in 0..count {
            direction.take(&number.to_le_bytes(), start + Duration::from_millis(number), &mut pass);
        }
        let end = start + Duration::from_millis(count) + LONGEST_WAIT;
        direction.pass_on(end, &mut pass);
        assert_eq!(direction.rest(end), IDLE, "nothing is held for longer");
        arrived
    }

    #[test]
    fn frames_arrive_as_their_fates_say() {
        let mut direction = Direction::new(Fates::new(SHARES, 3, 1));
        let arrived = arrivals(&mut direction, 10_000);
        let counts = direction.counts;
        assert!(counts.has_every_fate(SHARES) && counts.sent == 10_000, "{counts}");
        assert_eq!(arrived.len() as u64, counts.sent - counts.lost + counts.repeated);
        let mut sorted = arrived.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len() as u64, counts.sent - counts.lost, "every other frame arrives");
        assert!(arrived.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64 >= counts.reordered / 2);
        // The next direction with this seed does the same.
        assert_eq!(arrivals(&mut Direction::new(Fates::new(SHARES, 3, 1)), 10_000), arrived);
    }

    #[test]
    fn a_frame_that_nothing_overtakes_arrives_all_the_same() {
        let start = Instant::now();
        let all = Shares { lose: 0, repeat: 0, reorder: 1000, delay: 0 };
        let mut direction = Direction::new(Fates::new(all, 1, 0));
        let mut arrived = 0;
        direction.take(b"frame", start, &mut |_| arrived += 1);
        assert_eq!(arrived, 0);
        assert!(direction.rest(start) <= LONGEST_WAIT);
        direction.pass_on(start + LONGEST_WAIT, &mut |_| arrived += 1);
        assert_eq!(arrived, 1);
    }

    #[test]
    fn a_count_without_one_of_the_fates_is_noticed() {
        let counts = Counts { sent: 9, lost: 1, repeated: 1, reordered: 1, delayed: 0 };
        assert!(!counts.has_every_fate(Shares::losing(1)));
        assert!(counts.has_every_fate(Shares { delay: 0, ..Shares::losing(1) }));
        assert!(Counts { lost: 0, delayed: 1, ..counts }.has_every_fate(Shares::losing(0)));
    }

    /// The wire's sockets carry frames between two cards.
    #[test]
    fn a_wire_leads_from_each_card_to_the_other() -> io::Result<()> {
        let wire = Wire::start(Shares { lose: 0, repeat: 0, reorder: 0, delay: 0 }, 1)?;
        let cards = wire.networks().clone().map(|network| {
            let Network::Frames { card, other, .. } = network else { panic!("no frames") };
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, card))?;
            socket.connect((Ipv4Addr::LOCALHOST, other))?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            Ok::<_, io::Error>(socket)
        });
        let [one, two] = cards;
        let (one, two) = (one?, two?);
        let mut room = [0; 16];
        for (from, to) in [(&one, &two), (&two, &one)] {
            let arrived = (0..1000).any(|_| from.send(b"frame").is_ok() && to.recv(&mut room).is_ok_and(|n| n == 5));
            assert!(arrived && room.starts_with(b"frame"));
        }
        assert!(wire.end().sent >= 2);
        Ok(())
    }
}
