//! Hardware addresses of neighbours of IPv4 (RFC 826), for connections.
//!
//! They are kept in a table like that of IPv6 (module `neighbours`), by its rules: an answer counts only of a
//! neighbour that was asked for, or with which packets are exchanged, and a silent neighbour is asked again. Datagrams
//! are sent by smoltcp, which has a table of its own.

use core::net::Ipv4Addr;

use smoltcp::phy::TxToken;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::Ipv4Cidr;

use crate::neighbours::{NeighbourTable, Question, Told};

pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];
/// Bytes of a frame with a message of address resolution.
const LENGTH: usize = 42;
/// Kind of such a frame, and the beginning of a message for Ethernet and IPv4.
const BEGINNING: [u8; 8] = [0x08, 0x06, 0, 1, 8, 0, 6, 4];
const KIND_AT: usize = 12;
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];
const SENDER_AT: usize = 22;
const TARGET_AT: usize = 32;

/// A message of address resolution for Ethernet and IPv4.
pub(crate) struct Message {
    kind: [u8; 2],
    /// The sender's addresses.
    pub(crate) hardware: [u8; 6],
    pub(crate) sender: Ipv4Addr,
    pub(crate) target: Ipv4Addr,
}

impl Message {
    /// Reads the message in a frame.
    pub(crate) fn read(frame: &[u8]) -> Option<Message> {
        let frame = frame.first_chunk::<LENGTH>()?;
        let address = |at: usize| Some(Ipv4Addr::from(*frame[at..].first_chunk::<4>()?));
        frame[KIND_AT..].starts_with(&BEGINNING).then_some(())?;
        Some(Message {
            kind: *frame[SENDER_AT - 2..].first_chunk()?,
            hardware: *frame[SENDER_AT..].first_chunk()?,
            sender: address(SENDER_AT + 6)?,
            target: address(TARGET_AT + 6)?,
        })
    }
}

/// Sends a question for an address from the host with these addresses to the device with this one, or to all.
pub(crate) fn send_request<T: TxToken>(to: [u8; 6], hardware: [u8; 6], own: Ipv4Addr, target: Ipv4Addr, token: T) {
    token.consume(LENGTH, |frame| {
        frame.fill(0);
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&hardware);
        frame[KIND_AT..KIND_AT + BEGINNING.len()].copy_from_slice(&BEGINNING);
        frame[SENDER_AT - 2..SENDER_AT].copy_from_slice(&REQUEST);
        frame[SENDER_AT..SENDER_AT + 6].copy_from_slice(&hardware);
        frame[SENDER_AT + 6..TARGET_AT].copy_from_slice(&own.octets());
        frame[TARGET_AT + 6..].copy_from_slice(&target.octets());
    });
}

/// Time for which the neighbour to which something was sent last needs no look at the table.
const REMEMBERED: Duration = Duration::from_millis(1000);

/// The neighbours of IPv4.
#[derive(Default)]
pub(crate) struct Resolution {
    neighbours: NeighbourTable,
    /// The neighbour to which something was sent last, its hardware address, and the end of the time in which that
    /// counts.
    last: Option<(Ipv4Addr, [u8; 6], Instant)>,
}

impl Resolution {
    /// Returns the time of the next question.
    pub(crate) fn next(&self) -> Instant {
        self.neighbours.next()
    }

    /// Returns the hardware address of a neighbour; if it is not known, the neighbour is asked for it.
    #[inline(always)]
    pub(crate) fn hardware_of(&mut self, neighbour: Ipv4Addr, now: Instant) -> Option<[u8; 6]> {
        match self.last {
            Some((last, hardware, until)) if last == neighbour && now < until => Some(hardware),
            _ => self.look(neighbour, now),
        }
    }

    #[inline(never)]
    fn look(&mut self, neighbour: Ipv4Addr, now: Instant) -> Option<[u8; 6]> {
        let hardware = self.neighbours.resolve(neighbour.to_ipv6_mapped(), now);
        self.last = hardware.map(|hardware| (neighbour, hardware, now + REMEMBERED));
        hardware
    }

    /// Takes a message of another host into account. Returns whether packets have waited for its hardware address.
    pub(crate) fn hear(&mut self, frame: &[u8], own: Ipv4Addr, network: &Ipv4Cidr, now: Instant) -> bool {
        let Some(Message { kind, hardware, sender, target }) = Message::read(frame) else { return false };
        let is_possible = hardware[0] & 1 == 0
            && network.contains_addr(&sender)
            && sender != own
            && !sender.is_unspecified()
            && !sender.is_broadcast()
            && network.broadcast() != Some(sender);
        if !is_possible {
            return false;
        }
        self.last = None;
        let neighbour = sender.to_ipv6_mapped();
        let is_for_us = target == own && !own.is_unspecified();
        if kind == REQUEST && is_for_us {
            return self.neighbours.hear(neighbour, hardware, now);
        }
        // One that nobody asked for is believed as well, if it is of a known neighbour: its card was exchanged.
        let is_answer = kind == REPLY && is_for_us;
        if is_answer || sender == target && matches!(kind, REQUEST | REPLY) {
            let told = Told { target: neighbour, hardware: Some(hardware), is_solicited: is_answer, overrides: true };
            return self.neighbours.learn(&told, now) == Some(true);
        }
        false
    }

    /// Returns the next question that is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Question> {
        self.neighbours.due(now)
    }

    /// Puts a question that could not be sent off.
    pub(crate) fn put_off(&mut self, question: &Question, until: Instant) {
        self.neighbours.ask_again(question, until);
    }

    /// Forgets all neighbours: they are those of another network.
    pub(crate) fn clear(&mut self) {
        *self = Resolution::default();
    }
}

/// Sends a question, from the host with these addresses.
pub(crate) fn ask<T: TxToken>(question: &Question, own: Ipv4Addr, hardware: [u8; 6], token: T) {
    let target = question.target.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED);
    send_request(question.at.unwrap_or(BROADCAST), hardware, own, target, token);
}
