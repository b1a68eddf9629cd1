//! Two stacks on one fake wire, which can lose, repeat, delay and damage frames.
#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use ethernet::{BEGINNING, Link, ReceivedFrame};
use network::{
    Address, Addressing, Configuration, ConnectionId, Limits, ListenerId, LocalConnections, Patience, Received, Sent,
    Sharing, Stack, TcpOptions,
};

pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Bytes of the headers of a segment between two stacks: Ethernet, IPv4, and TCP with timestamps.
pub const HEADERS: usize = 14 + 20 + 32;

/// A small generator, so that every failure repeats.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Faults of the wire, in percent.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub repeated: u64,
    pub delayed: u64,
    pub damaged: u64,
    /// Whether requests and their answers lose their timestamps, as if one side had none.
    pub unstamps: bool,
}

/// Makes the checksums of a frame right, if it has a shape that allows it.
pub fn seal(frame: &mut [u8]) {
    fn sum(bytes: &[u8], start: u32) -> u32 {
        let mut sum = start;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    }
    if frame.len() < 34 || frame[12..14] != [8, 0] {
        return;
    }
    let header = usize::from(frame[14] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    if header < 20 || frame.len() < 14 + header {
        return;
    }
    frame[24..26].fill(0);
    let checksum = !(sum(&frame[14..14 + header], 0) as u16);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let (start, end) = (14 + header, 14 + total);
    let at = match frame[23] {
        6 => start + 16,
        17 => start + 6,
        1 => start + 2,
        _ => return,
    };
    if end > frame.len() || end < at + 2 {
        return;
    }
    frame[at..at + 2].fill(0);
    let pseudo = if frame[23] == 1 { 0 } else { sum(&frame[26..34], u32::from(frame[23]) + (end - start) as u32) };
    let checksum = !(sum(&frame[start..end], pseudo) as u16);
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the place of the timestamps in a frame with a segment over IPv4: behind their kind and length.
pub fn stamps_at(frame: &[u8]) -> Option<usize> {
    if frame.len() < 54 || frame[12..15] != [8, 0, 0x45] || frame[23] != 6 {
        return None;
    }
    let (mut at, end) = (54, 34 + usize::from(frame[46] >> 4) * 4);
    while at < end {
        match frame[at] {
            0 => return None,
            1 => at += 1,
            8 => return Some(at + 2),
            _ => at += usize::from(frame[at + 1]),
        }
    }
    None
}

/// Takes the timestamps out of a request or its answer.
fn unstamp(frame: &mut [u8]) {
    if let Some(at) = stamps_at(frame)
        && frame[47] & 2 != 0
    {
        frame[at - 2..at + 8].fill(1);
        seal(frame);
    }
}

type Queue = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// One end of the wire.
pub struct End {
    pub incoming: Queue,
    pub outgoing: Queue,
    mac: [u8; 6],
    pub faults: Faults,
    random: Rc<RefCell<Random>>,
    pub sent: usize,
    /// Whether the device has no room for frames.
    pub is_full: bool,
    /// Long frames that wait in the device.
    pub kept: BTreeMap<u16, Vec<u8>>,
}

/// Frames that a device keeps.
const KEPT: u16 = 8;

pub struct Departing {
    queue: Queue,
    faults: Faults,
    random: Rc<RefCell<Random>>,
}

impl ethernet::Departing for Departing {
    fn send<R>(self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = vec![0xaa; length];
        let result = write(&mut frame);
        if self.faults.unstamps {
            unstamp(&mut frame);
        }
        let mut queue = self.queue.borrow_mut();
        let mut random = self.random.borrow_mut();
        if random.percent(self.faults.lost) {
            return result;
        }
        // Data without a checksum of its own is protected by the one that a real wire adds to each frame.
        if length > 34 && matches!(frame[12..14], [8, 0] | [0x86, 0xdd]) && random.percent(self.faults.damaged) {
            let at = 14 + random.below(length as u64 - 14) as usize;
            frame[at] ^= 1 << random.below(8);
        }
        if random.percent(self.faults.repeated) {
            queue.push_back(frame.clone());
        }
        if random.percent(self.faults.delayed) && !queue.is_empty() {
            let at = random.below(queue.len() as u64) as usize;
            queue.insert(at, frame);
        } else {
            queue.push_back(frame);
        }
        result
    }
}

impl Link for End {
    type Departing<'a> = Departing;

    fn hardware_address(&self) -> [u8; 6] {
        self.mac
    }

    fn depart(&mut self) -> Option<Departing> {
        if self.is_full {
            return None;
        }
        self.sent += 1;
        Some(Departing { queue: self.outgoing.clone(), faults: self.faults, random: self.random.clone() })
    }

    fn flush(&mut self) {}

    fn receive_into(&mut self, room: &mut [u8]) -> Option<ReceivedFrame> {
        let frame = self.incoming.borrow_mut().pop_front()?;
        let length = frame.len().min(room.len());
        let kept = (0..KEPT).find(|place| length > BEGINNING && !self.kept.contains_key(place));
        let beginning = if kept.is_some() { BEGINNING } else { length };
        room[..beginning].copy_from_slice(&frame[..beginning]);
        self.kept.extend(kept.map(|place| (place, frame)));
        Some(ReceivedFrame { length, kept })
    }

    fn take_kept(&mut self, kept: u16, frame: &mut [u8]) {
        frame.copy_from_slice(&self.kept.remove(&kept).expect("the frame is kept")[..frame.len()]);
    }

    fn drop_kept(&mut self, kept: u16) {
        assert!(self.kept.remove(&kept).is_some());
    }
}

/// Two hosts, 10.0.2.15 and 10.0.2.2, and their clock.
pub struct Net {
    pub server: Stack<End>,
    pub client: Stack<End>,
    pub now: u64,
    pub to_server: Queue,
    pub to_client: Queue,
}

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

pub fn configuration(address: Ipv4Addr, limits: Limits, patience: Patience) -> Configuration {
    Configuration {
        address: Addressing::Fixed(Address { address, prefix: 24, gateway: None }),
        seeds: network::Seeds::default(),
        limits,
        patience,
        local_connections: LocalConnections::Joined,
        six: network::SixAddressing::Off,
    }
}

impl Net {
    pub fn new(faults: Faults, seed: u64) -> Net {
        Net::with_limits(faults, seed, Limits::default())
    }

    pub fn with_limits(faults: Faults, seed: u64, limits: Limits) -> Net {
        Net::with(faults, seed, limits, Patience::default())
    }

    pub fn with(faults: Faults, seed: u64, limits: Limits, patience: Patience) -> Net {
        Net::configured(faults, seed, [SERVER, CLIENT].map(|address| configuration(address, limits, patience)))
    }

    /// Makes two hosts with these configurations, the server's first.
    pub fn configured(faults: Faults, seed: u64, [server, client]: [Configuration; 2]) -> Net {
        let configurations = (server, client);
        let (to_server, to_client) = (Queue::default(), Queue::default());
        let random = Rc::new(RefCell::new(Random(seed | 1)));
        let end = |incoming: &Queue, outgoing: &Queue, last| End {
            incoming: incoming.clone(),
            outgoing: outgoing.clone(),
            mac: [2, 0, 0, 0, 0, last],
            faults,
            random: random.clone(),
            sent: 0,
            is_full: false,
            kept: BTreeMap::new(),
        };
        let server = end(&to_server, &to_client, 15);
        let client = end(&to_client, &to_server, 2);
        let now = SECOND;
        Net {
            server: Stack::new(server, &configurations.0, now).unwrap(),
            client: Stack::new(client, &configurations.1, now).unwrap(),
            now,
            to_server,
            to_client,
        }
    }

    /// Lets both hosts work until neither has anything to do at this instant. Returns the next deadline.
    pub fn settle(&mut self) -> Option<u64> {
        for _ in 0..10_000 {
            let server = self.server.poll(self.now);
            let client = self.client.poll(self.now);
            let quiet = self.to_server.borrow().is_empty() && self.to_client.borrow().is_empty();
            let next = [server, client].into_iter().flatten().min();
            if quiet && next.is_none_or(|at| at > self.now) {
                return next;
            }
        }
        panic!("the two stacks never come to rest");
    }

    /// Lets time pass until `done`, or fails after `limit` nanoseconds.
    pub fn run_until(&mut self, limit: u64, mut done: impl FnMut(&mut Net) -> bool) {
        let end = self.now + limit;
        loop {
            let next = self.settle();
            if done(self) {
                return;
            }
            // `done` may have made work.
            let next = self.settle().or(next);
            assert!(self.now < end, "not done in time");
            self.now = next.unwrap_or(end).clamp(self.now + 1, self.now + 50 * MILLISECOND);
        }
    }

    pub fn pass(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            let next = self.settle();
            self.now = next.unwrap_or(end).clamp(self.now + 1, end);
        }
        self.settle();
    }

    /// Lets time pass while the client hears nothing and is not heard, until `done`. Returns the time that it took;
    /// `None` if `limit` was not enough.
    pub fn in_silence(&mut self, limit: u64, mut done: impl FnMut(&mut Net) -> bool) -> Option<u64> {
        let begun = self.now;
        loop {
            let next = self.client.poll(self.now);
            self.to_server.borrow_mut().clear();
            if done(self) {
                return Some(self.now - begun);
            }
            if self.now == begun + limit {
                return None;
            }
            self.now = next.unwrap_or(u64::MAX).clamp(self.now + 1, begun + limit);
        }
    }

    pub fn listen(&mut self, port: u16, backlog: usize) -> ListenerId {
        let binding =
            self.server.tcp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), Sharing::Exclusive).unwrap();
        self.server.tcp_listen(binding, backlog, &TcpOptions::default()).unwrap()
    }

    /// Both ends of an established connection: the client's and the server's.
    pub fn pair(&mut self, listener: ListenerId) -> (ConnectionId, ConnectionId) {
        let port = self.server.listener_endpoint(listener).unwrap().port();
        let client = self
            .client
            .tcp_connect(None, SocketAddr::new(SERVER.into(), port), &TcpOptions::default(), self.now)
            .unwrap();
        let mut server = None;
        self.run_until(100 * SECOND, |net| {
            if server.is_none() {
                server = net.server.accept(listener).unwrap();
            }
            server.is_some() && net.client.connected(client).unwrap()
        });
        (client, server.unwrap().0)
    }
}

pub fn send<L: Link>(stack: &mut Stack<L>, id: ConnectionId, data: &[u8], now: u64) -> Result<Sent, network::Error> {
    let mut rest = data;
    stack.tcp_send_with(
        id,
        |room| {
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            count
        },
        now,
    )
}

pub fn receive<L: Link>(
    stack: &mut Stack<L>,
    id: ConnectionId,
    into: &mut Vec<u8>,
    now: u64,
) -> Result<Received, network::Error> {
    stack.tcp_receive_with(
        id,
        |bytes| {
            into.extend_from_slice(bytes);
            bytes.len()
        },
        now,
    )
}

/// Counts its wakes.
#[derive(Default)]
pub struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    pub fn new() -> (Arc<Bell>, Waker) {
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(bell.clone());
        (bell, waker)
    }

    pub fn rings(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
