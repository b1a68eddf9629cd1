//! The search for other hosts with an address that a server has lent (RFC 5227).
//!
//! A lent address is probed for: three questions without a sender's address, to which a host that has it answers. Then
//! it is announced twice, so that neighbours forget an earlier owner. The address is in use meanwhile: a machine serves
//! as soon as it has a lease, and a conflict, which is a mistake of an administrator, ends its first connections.
//!
//! **Trust.** Any host of the network can claim any address, and nothing tells the true owner. So a conflict costs the
//! address only while it is probed for; then the server is told (`DHCPDECLINE`) and asked for another after a pause.
//! Later it is defended, with an announcement in ten seconds at most, and kept (section 2.4, (c)).

use core::net::Ipv4Addr;

use smoltcp::phy::TxToken;
use smoltcp::time::{Duration, Instant};

use crate::host::FAR_AWAY;
use crate::resolution::{BROADCAST, Message, send_request};

/// Questions about the address, and announcements.
const PROBES: u8 = 3;
const ANNOUNCEMENTS: u8 = 2;
/// Time from one question to the next, without its random part, and after the last one.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Shortest time between two defences.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// The effect of a message of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    /// Another host has the address, which must be given up.
    Conflict,
    /// Another host claims the address, which is kept: the defence is due.
    Attack,
}

/// The claim to an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    address: Ipv4Addr,
    hardware: [u8; 6],
    probes: u8,
    announcements: u8,
    /// Time of the next message.
    next: Instant,
    /// Time from which on another defence may be sent.
    defend_from: Instant,
    /// Bits for the random parts of the times.
    random: u64,
}

impl Claim {
    /// Begins to claim an address for the host with this hardware address.
    pub(crate) fn new(address: Ipv4Addr, hardware: [u8; 6], random: u64, now: Instant) -> Claim {
        let mut claim = Claim {
            address,
            hardware,
            probes: PROBES,
            announcements: ANNOUNCEMENTS,
            next: now,
            defend_from: now,
            random,
        };
        claim.next = now + claim.up_to_a_second();
        claim
    }

    /// Draws a time of up to a second.
    fn up_to_a_second(&mut self) -> Duration {
        let drawn = self.random % 1000;
        self.random = self.random.rotate_right(13);
        Duration::from_millis(drawn)
    }

    /// Returns the time of the next message.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Puts the next message off, because the device is full.
    pub(crate) fn put_off(&mut self, until: Instant) {
        self.next = until;
    }

    /// Sends the message that is due.
    pub(crate) fn send<T: TxToken>(&mut self, token: T, now: Instant) {
        let sender = if self.probes > 0 { Ipv4Addr::UNSPECIFIED } else { self.address };
        send_request(BROADCAST, self.hardware, sender, self.address, token);
        self.next = match (self.probes, self.announcements) {
            (2.., _) => now + PROBE_INTERVAL + self.up_to_a_second(),
            (1, _) => now + ANNOUNCE_INTERVAL,
            (0, 2..) => now + ANNOUNCE_INTERVAL,
            (0, _) => FAR_AWAY,
        };
        if self.probes > 0 {
            self.probes -= 1;
        } else {
            self.announcements = self.announcements.saturating_sub(1);
        }
    }

    /// Hears a message of address resolution.
    pub(crate) fn hear(&mut self, frame: &[u8], now: Instant) -> Heard {
        let message = Message::read(frame).filter(|message| message.hardware != self.hardware);
        let Some(Message { sender, target, .. }) = message else { return Heard::Nothing };
        let is_claimed = sender == self.address;
        // Two hosts that probe for one address at a time.
        let is_probed = sender.is_unspecified() && target == self.address;
        let is_new = self.probes > 0 || self.announcements == ANNOUNCEMENTS;
        match is_new {
            true if is_claimed || is_probed => Heard::Conflict,
            false if is_claimed && self.defend_from <= now => {
                self.defend_from = now + DEFEND_INTERVAL;
                self.announcements = self.announcements.max(1);
                self.next = now;
                Heard::Attack
            }
            _ => Heard::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
    const HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 15];

    /// Keeps the frame that is sent.
    struct Kept<'a>(&'a mut Vec<u8>);

    impl TxToken for Kept<'_> {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
            self.0.resize(length, 0xaa);
            f(self.0)
        }
    }

    fn sent(claim: &mut Claim, now: Instant) -> Vec<u8> {
        let mut frame = Vec::new();
        claim.send(Kept(&mut frame), now);
        frame
    }

    /// A message of another host, about these addresses.
    fn message(sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let mut frame = Vec::new();
        send_request(BROADCAST, [2, 0, 0, 0, 0, 2], sender, target, Kept(&mut frame));
        frame
    }

    #[test]
    fn an_address_is_probed_for_and_announced() {
        let mut claim = Claim::new(OWN, HARDWARE, 0x1234_5678_9abc_def0, Instant::ZERO);
        let (mut times, mut senders) = (Vec::new(), Vec::new());
        while claim.next() != FAR_AWAY {
            let now = claim.next();
            times.push(now.total_millis());
            let frame = sent(&mut claim, now);
            assert_eq!((frame.len(), &frame[..14]), (42, &[&[0xff; 6][..], &HARDWARE, &[8, 6]].concat()[..]));
            assert_eq!((&frame[14..22], &frame[38..]), (&[0, 1, 8, 0, 6, 4, 0, 1][..], &OWN.octets()[..]));
            senders.push(frame[28..32].to_vec());
            assert_eq!(claim.hear(&frame, now), Heard::Nothing, "its own");
        }
        let (none, own) = (vec![0; 4], OWN.octets().to_vec());
        assert_eq!(senders, [none.clone(), none.clone(), none, own.clone(), own]);
        assert!(times[0] < 1000 && times[3] - times[2] == 2000 && times[4] - times[3] == 2000, "{times:?}");
        assert!(times[..3].windows(2).all(|pair| (1000..2000).contains(&(pair[1] - pair[0]))), "{times:?}");
    }

    #[test]
    fn a_conflict_counts_while_the_address_is_probed_for_and_is_defended_later() {
        let other = Ipv4Addr::new(10, 0, 2, 2);
        let mut claim = Claim::new(OWN, HARDWARE, 0, Instant::ZERO);
        let heard = |claim: &mut Claim, sender, target, seconds| {
            claim.hear(&message(sender, target), Instant::from_secs(seconds))
        };
        let none = Ipv4Addr::UNSPECIFIED;
        for _ in 0..PROBES {
            assert_eq!(heard(&mut claim, OWN, other, 1), Heard::Conflict);
            assert_eq!(heard(&mut claim, none, OWN, 1), Heard::Conflict);
            assert_eq!(heard(&mut claim, other, OWN, 1), Heard::Nothing, "a question to this host");
            sent(&mut claim, Instant::from_secs(1));
        }
        assert_eq!(heard(&mut claim, OWN, other, 2), Heard::Conflict, "an answer to the last question");
        for _ in 0..ANNOUNCEMENTS {
            sent(&mut claim, Instant::from_secs(4));
        }
        assert_eq!(claim.next(), FAR_AWAY);
        assert_eq!(heard(&mut claim, none, OWN, 100), Heard::Nothing, "another host probes, and is answered");
        assert_eq!(heard(&mut claim, OWN, OWN, 100), Heard::Attack);
        assert_eq!(claim.next(), Instant::from_secs(100));
        let frame = sent(&mut claim, Instant::from_secs(100));
        assert_eq!(frame[28..32], OWN.octets());
        assert_eq!(claim.next(), FAR_AWAY);
        assert_eq!(heard(&mut claim, OWN, OWN, 109), Heard::Nothing, "at most once in ten seconds");
        assert_eq!(heard(&mut claim, OWN, OWN, 110), Heard::Attack);
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Any bytes are survived, and nothing but another host's message about the address counts.
        #[test]
        fn any_message_is_survived(frame in prop::collection::vec(any::<u8>(), 0..80), at in 0..42usize, byte in any::<u8>()) {
            let mut claim = Claim::new(OWN, HARDWARE, 7, Instant::ZERO);
            prop_assert_eq!(claim.hear(&frame, Instant::ZERO), Heard::Nothing);
            let mut frame = message(OWN, OWN);
            frame[at] = byte;
            let heard = claim.hear(&frame, Instant::ZERO);
            let is_same = frame == message(OWN, OWN);
            prop_assert!(!is_same || heard == Heard::Conflict);
            prop_assert!(heard != Heard::Attack);
        }
    }
}
