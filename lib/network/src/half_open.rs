//! Requests for connections, from the SYN to the acknowledgement that establishes the connection.
//!
//! **The problem.** Any host can send requests, also from forged addresses, and each must be remembered until it is
//! acknowledged or times out. If that cost a connection with its buffers, a few hundred a second would fill a machine's
//! memory, and a limit on them would lock real clients out.
//!
//! **The choice.** A request is a small record: the client's address, both sequence numbers, and the offered options.
//! Buffers are allocated when the other side's acknowledgement proves that it receives the packets sent to it. The
//! number of records is bounded by the listener's backlog and by a limit for all listeners; requests beyond that are
//! answered with a *SYN cookie* ([`cookie`]), which needs no memory. A flood therefore costs its answers and nothing
//! else, and a real client gets in as long as its packets do. A connection that began with a cookie has no window
//! scaling, no timestamps and no selective acknowledgements, because the cookie has no room for them, and its answer is
//! never repeated, because it is not recorded; cookies are therefore the exception. They are accepted only while a
//! listener had reason to make some.
//!
//! **From a record to a connection.** A control block is made with the numbers and the agreement of the two, as if it
//! had answered the request itself, and then gets the acknowledgement that has just arrived.

use core::net::IpAddr;

use ethernet::Link;
use smoltcp::phy::{ChecksumCapabilities, TxToken};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{TcpControl, TcpRepr};
use tcp::{Agreed, ControlBlock, Handshake, Stamps, State, first_window, shift_of};

use crate::Error;
use crate::charge::{Charge, Held, Need};
use crate::frame::Segment;
use crate::host::{Cause, EXPIRIES, Host, Next, RETRY, Via};
use crate::link::Token;
use crate::reply::{Course, header_length, packet_length, parse, stamped};
use crate::schedule::{Timers, WorkList};
use crate::secrets::{COOKIE_LIFE_SECONDS, beginning, cookie, opened_cookie};
use crate::segments::{segment_in, time};
use crate::six::LEAST_MTU;
use crate::slab::{ListenerId, Slab};
use crate::table::{ENTRY, Hash, Key, Table};
use crate::tcp::{Connection, Engine, Holder, TcpOptions, Wire, clamped, duration, wire_charge};
use crate::time_wait::Remains;

/// Segment size for a client that states none (RFC 9293, section 3.7.1).
const SEGMENT_UNSAID: u16 = 536;
const SEGMENT_UNSAID_OF_SIX: u16 = 1220;

/// Wait for the acknowledgement of the first answer before it is repeated; each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Options that the other side offered with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    /// Longest segment that it accepts.
    segment: u16,
    /// Shift of its windows, if scaling is allowed.
    scale: Option<u8>,
    /// Whether it supports selective acknowledgements.
    selective: bool,
    /// Timestamps, if it has told one: with its, which is told back.
    stamps: Option<Stamps>,
}

impl Offer {
    /// Reads the offer of a request. `stamps` are this side's.
    fn of(request: &TcpRepr<'_>, key: Key, stamps: Stamps, now: Instant) -> Self {
        let unsaid = if matches!(key, Key::Four(_)) { SEGMENT_UNSAID } else { SEGMENT_UNSAID_OF_SIX };
        Offer {
            segment: request.max_seg_size.filter(|&size| size > 0).unwrap_or(unsaid),
            scale: request.window_scale,
            selective: request.sack_permitted,
            stamps: request.timestamp.map(|theirs| stamps.with(theirs.tsval, time(now))),
        }
    }

    /// Returns the offer after the request was repeated: with its last timestamp, and with none if it has none.
    fn repeated(self, request: &TcpRepr<'_>, now: Instant) -> Self {
        let now = time(now);
        let stamps = self.stamps.zip(request.timestamp).map(|(stamps, theirs)| {
            if stamps.is_outdated(theirs.tsval, now) { stamps } else { stamps.with(theirs.tsval, now) }
        });
        Offer { stamps, ..self }
    }

    /// Returns the part of an offer that a cookie encodes.
    fn from_cookie(segment: u16) -> Self {
        Offer { segment, scale: None, selective: false, stamps: None }
    }
}

/// A request that was answered.
#[derive(Clone, Copy)]
struct Request {
    course: Course,
    listener: ListenerId,
    ours: u32,
    theirs: u32,
    offer: Offer,
    /// The listener's buffer size when the request came: the answer announced it.
    receive_buffer: u32,
    /// Time of the first answer.
    since: Instant,
    /// Number of repeated answers.
    repeated: u8,
    /// Whether the answer was acknowledged and nothing more, when the listener waits for bytes.
    is_acknowledged: bool,
}

impl Request {
    /// Records a request that is answered now. `ours` and `theirs` are the numbers of the two sides.
    fn new(
        (course, listener): (Course, ListenerId),
        (ours, theirs): (u32, u32),
        offer: Offer,
        receive_buffer: u32,
        now: Instant,
    ) -> Request {
        Request {
            course,
            listener,
            ours,
            theirs,
            offer,
            receive_buffer,
            since: now,
            repeated: 0,
            is_acknowledged: false,
        }
    }
}

/// A request, and the charge to its listener's owner.
struct Answered {
    request: Request,
    _charge: Charge,
}

/// Bytes of memory for a request over IPv4: itself, entries of a work list and of the table, and a timer with its
/// position.
const MEMORY: usize = size_of::<Answered>() + 16 + 4 + 16 + 4 + ENTRY;

/// All requests that were answered and not yet acknowledged.
pub(crate) struct HalfOpen {
    requests: Slab<Answered>,
    table: Table,
    timers: Timers,
    /// Requests whose answer is to be repeated.
    work: WorkList,
}

impl HalfOpen {
    pub(crate) fn new(hash: Hash, limit: usize) -> Self {
        HalfOpen { requests: Slab::new(limit), table: Table::new(hash), timers: Timers::new(), work: WorkList::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn find(&self, key: Key) -> Option<u32> {
        self.table.find(key)
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.next()
    }

    fn get(&self, index: u32) -> Option<&Request> {
        self.requests.get(index).map(|answered| &answered.request)
    }

    fn add(&mut self, request: Request, charge: Charge) -> Result<u32, Error> {
        let index = self.requests.next_index()?;
        self.timers.reserve(index)?;
        self.work.reserve(index)?;
        self.table.insert(request.course.key, index)?;
        let answered = Answered { request, _charge: charge };
        self.requests.insert(answered).inspect_err(|_| self.table.remove(request.course.key))
    }

    fn remove(&mut self, index: u32) {
        if let Some(key) = self.get(index).map(|request| request.course.key) {
            self.table.remove(key);
            self.timers.remove(index);
            self.requests.remove(index);
        }
    }
}

/// Outcome of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Established {
    /// There is a connection.
    Yes,
    /// There is no room, or no memory; the other side will repeat its segment.
    NotNow,
    /// The segment is damaged, or not from the other side.
    Invalid,
}

/// Returns the answer to a request.
fn answer_to(
    course: &Course,
    ours: u32,
    theirs: u32,
    offer: Offer,
    buffer: usize,
    mtu: usize,
    now: Instant,
) -> TcpRepr<'static> {
    let headers = packet_length(course.key, &course.segment(TcpControl::None, 0, 0));
    TcpRepr {
        window_len: first_window(buffer),
        max_seg_size: Some(u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)),
        window_scale: offer.scale.map(|_| shift_of(buffer)),
        sack_permitted: offer.selective,
        ..stamped(offer.stamps, course.segment(TcpControl::Syn, ours, theirs.wrapping_add(1)), now)
    }
}

impl Host {
    pub(crate) fn checksums_of(&self, via: Via) -> ChecksumCapabilities {
        match via {
            Via::Ethernet | Via::Six | Via::NarrowSix => self.checksums.clone(),
            Via::Local => ChecksumCapabilities::ignored(),
        }
    }

    /// Returns the number of further connections that the limit allows. Connections from within the host are counted
    /// for the program that connects instead.
    fn free_for(&self, via: Via) -> usize {
        match via {
            Via::Ethernet | Via::Six | Via::NarrowSix => self.connections.free(),
            Via::Local => usize::MAX,
        }
    }

    /// Returns the largest data of a segment by this way.
    pub(crate) fn segment_size(&mut self, via: Via, key: Key) -> u16 {
        let headers = header_length(key) + tcp::HEADER;
        u16::try_from(self.mtu_of(via).saturating_sub(headers)).unwrap_or(u16::MAX)
    }

    fn mtu_of(&mut self, via: Via) -> usize {
        match via {
            Via::Ethernet => self.ethernet_mtu,
            Via::Local => crate::link::LOOPBACK_MTU,
            Via::Six => self.six.mtu(),
            Via::NarrowSix => self.six.mtu().min(LEAST_MTU),
        }
    }

    /// Answers a SYN for a listener.
    pub(crate) fn request<T: TxToken>(
        &mut self,
        via: Via,
        listener_index: u32,
        segment: Segment,
        frame: &[u8],
        answer: T,
        now: Instant,
    ) {
        let generation = self.listeners.generation(listener_index);
        let free = self.free_for(via);
        let Some(listener) = self.listeners.get_mut(listener_index) else {
            return;
        };
        // A lack of memory is handled like a lack of room for finished connections: the other side asks again.
        let has_room = listener.has_room(free) && self.connections.next_index().is_ok() && (self.admits)(Need::Packet);
        let (half_open, backlog) = (listener.half_open, listener.backlog);
        let receive_buffer = clamped(listener.options.receive_buffer);
        let key = segment.key;
        let from = key.remote();
        let is_impossible = from.port() == 0 || from.ip().is_unspecified() || self.is_for_many(via, from.ip());
        let checksums = self.checksums_of(via);
        let course = Course::back(via, key, frame, self.hardware);
        let (false, Some(course), Some(request)) = (is_impossible, course, parse(via, frame, &checksums)) else {
            return;
        };
        if !has_room {
            self.counters.requests_dropped += 1;
            return;
        }
        let theirs = segment.sequence;
        let mtu = self.mtu_of(via);
        let listener = ListenerId { index: listener_index, generation };
        let (ours, stamps) = beginning(&self.sequence_numbers, key, now);
        let offer = Offer::of(&request, key, stamps, now);
        // A record if the backlog allows one, else a cookie.
        let made = if half_open < backlog {
            let receive_buffer = receive_buffer as u32;
            let request = Request::new((course, listener), (ours, theirs), offer, receive_buffer, now);
            let owner = self.listeners.get(listener_index).and_then(|listener| listener.owner.as_ref());
            let memory = MEMORY + key.memory_beyond_four();
            let Ok(charge) = Charge::new(owner, Held::Request, (memory, usize::MAX), Need::Packet) else {
                // There would be no memory for the connection either.
                self.counters.requests_dropped += 1;
                return;
            };
            self.half_open.add(request, charge)
        } else {
            Err(Error::Limit)
        };
        let segment = match made {
            Ok(index) => {
                self.half_open.timers.no_later_than(index, now + FIRST_WAIT);
                if let Some(listener) = self.listeners.get_mut(listener_index) {
                    listener.half_open += 1;
                }
                answer_to(&course, ours, theirs, offer, receive_buffer, mtu, now)
            }
            // Requests within the host are not forged.
            Err(_) if via == Via::Local => {
                self.counters.requests_dropped += 1;
                return;
            }
            Err(_) => {
                let cookie = self.cookie_for(listener_index, key, theirs, offer, now);
                answer_to(&course, cookie, theirs, Offer::from_cookie(offer.segment), receive_buffer, mtu, now)
            }
        };
        course.send(&segment, answer, &checksums);
    }

    /// Makes a cookie in the place of a record, and lets the listener accept cookies for a while.
    fn cookie_for(&mut self, listener: u32, key: Key, theirs: u32, offer: Offer, now: Instant) -> u32 {
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.cookies_until = Some(now + Duration::from_secs(COOKIE_LIFE_SECONDS));
        }
        self.counters.cookies_sent += 1;
        cookie(&self.cookies, key, theirs, offer.segment, now)
    }

    /// Returns whether an address is that of many hosts, which no connection can have.
    pub(crate) fn is_for_many(&self, via: Via, address: IpAddr) -> bool {
        let address = match address {
            IpAddr::V4(address) => address,
            IpAddr::V6(address) => return address.is_multicast(),
        };
        address.is_multicast()
            || address.is_broadcast()
            || (via == Via::Ethernet && self.network.broadcast() == Some(address))
    }

    fn forget_request(&mut self, index: u32) {
        let listener = self.half_open.get(index).map(|request| request.listener);
        self.half_open.remove(index);
        if let Some(Ok(listener)) = listener.map(|id| self.listener(id)) {
            listener.half_open = listener.half_open.saturating_sub(1);
        }
    }

    /// Handles a segment whose ends match a request that was answered.
    pub(crate) fn half_open_input<T: TxToken>(
        &mut self,
        index: u32,
        via: Via,
        segment: Segment,
        frame: &[u8],
        answer: T,
        now: Instant,
    ) {
        let Some(&request) = self.half_open.get(index) else {
            return;
        };
        let Request { listener, ours, theirs, offer, since, .. } = request;
        if self.listener(listener).is_err() {
            // The listener was closed meanwhile.
            self.forget_request(index);
            self.refuse(via, &segment, frame, answer);
            return;
        }
        let checksums = self.checksums_of(via);
        let course = Course::back(via, request.course.key, frame, self.hardware);
        let (Some(course), Some(parsed)) = (course, parse(via, frame, &checksums)) else {
            return;
        };
        if segment.is_reset() {
            // Only a host that has seen the answer or made the request has the number (RFC 5961, section 3).
            if segment.sequence == theirs.wrapping_add(1) {
                self.forget_request(index);
            }
            return;
        }
        if segment.opens() && segment.sequence == theirs {
            let (mtu, offer) = (self.mtu_of(via), offer.repeated(&parsed, now));
            if let Some(answered) = self.half_open.requests.get_mut(index) {
                answered.request.offer = offer;
            }
            let segment = answer_to(&course, ours, theirs, offer, request.receive_buffer as usize, mtu, now);
            course.send(&segment, answer, &checksums);
            return;
        }
        if segment.is_synchronizing() {
            // Another request from the same port. If the first was meant, an acknowledgement that fits no request of
            // the other side makes it reset this one, and ask again (RFC 5961, section 4).
            let (ours, theirs) = (ours.wrapping_add(1), theirs.wrapping_add(1));
            Remains { ours, theirs, stamps: offer.stamps }.acknowledge(&course, answer, &checksums, now);
            return;
        }
        if !segment.acknowledges() {
            return;
        }
        if segment.acknowledgement != ours.wrapping_add(1) {
            self.refuse(via, &segment, frame, answer);
            return;
        }
        if segment.length == 0 && now < since + self.deferral(listener, true) {
            if let Some(Answered { request, .. }) = self.half_open.requests.get_mut(index) {
                request.is_acknowledged = true;
            }
            return;
        }
        if self.establish(&request, frame, now) == Established::Yes {
            self.forget_request(index);
        }
    }

    /// Returns the time for which a listener waits for the first bytes of a connection; 0 for none. Only a request
    /// whose answer was acknowledged, and is not forged, is kept for longer.
    fn deferral(&mut self, listener: ListenerId, is_acknowledged: bool) -> Duration {
        let seconds = self.listener(listener).map_or(0, |listener| listener.deferral);
        if is_acknowledged { Duration::from_secs(seconds.into()) } else { Duration::ZERO }
    }

    /// Makes a connection of an acknowledgement without a request, if it acknowledges a cookie. Otherwise returns
    /// `answer` unused.
    pub(crate) fn cookie_input<T: TxToken>(
        &mut self,
        via: Via,
        segment: Segment,
        frame: &[u8],
        answer: T,
        now: Instant,
    ) -> Option<T> {
        if !segment.acknowledges() || segment.is_reset() || segment.is_synchronizing() {
            return Some(answer);
        }
        let Some(index) = self.find_listener(segment.key) else {
            return Some(answer);
        };
        let generation = self.listeners.generation(index);
        let Some(listener) = self.listeners.get_mut(index) else {
            return Some(answer);
        };
        if listener.cookies_until.is_none_or(|until| until < now) {
            return Some(answer);
        }
        let receive_buffer = clamped(listener.options.receive_buffer) as u32;
        let key = segment.key;
        // The acknowledgement is one beyond the cookie, and the segment one beyond the request.
        let (theirs, ours) = (segment.sequence.wrapping_sub(1), segment.acknowledgement.wrapping_sub(1));
        let Some(size) = opened_cookie(&self.cookies, key, theirs, ours, now) else {
            return Some(answer);
        };
        let checksums = self.checksums_of(via);
        let course = Course::back(via, key, frame, self.hardware);
        if let (Some(course), Some(_)) = (course, parse(via, frame, &checksums)) {
            let listener = ListenerId { index, generation };
            let offer = Offer::from_cookie(size);
            let request = Request::new((course, listener), (ours, theirs), offer, receive_buffer, now);
            if self.establish(&request, frame, now) == Established::Yes {
                self.counters.cookies_accepted += 1;
            }
        }
        None
    }

    /// Makes a connection of a request, with the segment that acknowledges its answer.
    fn establish(&mut self, request: &Request, frame: &[u8], now: Instant) -> Established {
        let (admits, free) = (self.admits, self.free_for(request.course.via));
        let Ok(listener) = self.listener(request.listener) else {
            return Established::Invalid;
        };
        let options = TcpOptions { receive_buffer: request.receive_buffer as usize, ..listener.options };
        if !listener.has_room(free) || !admits(Need::Packet) {
            self.counters.requests_dropped += 1;
            return Established::NotNow;
        }
        let owner = listener.owner.clone();
        let Course { via, key, .. } = request.course;
        let size = self.segment_size(via, key);
        let is_narrow =
            via == Via::Six && matches!(key.remote().ip(), IpAddr::V6(remote) if self.six.is_narrow(remote));
        let memory = wire_charge(key);
        let charged = Charge::new(owner.as_ref(), Held::Connection, (memory, free), Need::Packet);
        let made = charged.and_then(|charge| Ok((charge, answered(request, &options, size)?))).and_then(
            |(charge, mut wire)| {
                wire.look();
                wire.last_heard = now;
                if is_narrow {
                    wire.narrow();
                }
                self.add(Connection::new(key, Holder::Queued, Engine::Wire(wire), charge))
            },
        );
        let Ok(index) = made else {
            self.counters.requests_dropped += 1;
            return Established::NotNow;
        };
        let arrived = segment_in(via, frame, self.hardware, &self.checksums);
        if let Some(segment) = &arrived
            && let Some(connection) = self.connections.get_mut(index)
            && let (_, Some(asked)) = connection.input(segment, admits, now)
        {
            self.memory_was_asked_for(index, asked, now);
        }
        let Some(Connection { engine: Engine::Wire(wire), .. }) = self.connections.get_mut(index) else {
            return Established::Invalid;
        };
        if !matches!(wire.tcp().state(), State::Established | State::CloseWait) {
            // Its sequence number is not in the window.
            self.discard(index);
            return Established::Invalid;
        }
        if let Ok(listener) = self.listener(request.listener) {
            // `has_room` reserved this place.
            listener.queue.push_back(index);
            listener.acceptors.wake_all();
        }
        if self.settle(index, now, Cause::Segment) == Next::Now {
            self.work.push(index);
        }
        Established::Yes
    }

    /// Removes requests that timed out, and marks those to be answered again.
    pub(crate) fn expire_half_open(&mut self, now: Instant) {
        let patience = duration(self.patience.handshake_ns);
        for _ in 0..EXPIRIES {
            let Some(index) = self.half_open.timers.expired(now) else {
                return;
            };
            let Some(request) = self.half_open.get(index) else {
                continue;
            };
            let Request { since, listener, is_acknowledged, .. } = *request;
            let deferral = self.deferral(listener, is_acknowledged);
            if now >= since + patience + deferral || self.listener(listener).is_err() {
                self.forget_request(index);
            } else if is_acknowledged && now < since + deferral {
                // Then the other side is asked for one more acknowledgement, which establishes the connection.
                self.half_open.timers.no_later_than(index, since + deferral);
            } else {
                self.half_open.work.push(index);
            }
        }
    }

    /// Repeats the answers that were not acknowledged.
    pub(crate) fn answer_again<L: Link>(&mut self, link: &mut L, now: Instant) {
        for _ in 0..EXPIRIES {
            let Some(index) = self.half_open.work.pop() else {
                return;
            };
            let Some(&request) = self.half_open.get(index) else { continue };
            let Request { course, listener, ours, theirs, offer, receive_buffer, since, is_acknowledged, .. } = request;
            let repeated = request.repeated.saturating_add(1);
            if let Some(answered) = self.half_open.requests.get_mut(index) {
                answered.request.repeated = repeated;
            }
            let end = since + duration(self.patience.handshake_ns) + self.deferral(listener, is_acknowledged);
            let next = end.min(now + FIRST_WAIT * (1 << repeated.min(6)));
            let mtu = self.mtu_of(course.via);
            let segment = answer_to(&course, ours, theirs, offer, receive_buffer as usize, mtu, now);
            match course.via {
                Via::Ethernet | Via::Six | Via::NarrowSix => {
                    let Some(departing) = link.depart() else {
                        self.half_open.timers.no_later_than(index, now + RETRY);
                        continue;
                    };
                    self.half_open.timers.no_later_than(index, next);
                    // The address may have been that of a lease which is lost.
                    if self.is_own(course.key.local().ip()) {
                        course.send(&segment, Token(departing), &self.checksums);
                    }
                }
                // Nothing is lost within the host, but there may have been no room for the connection.
                Via::Local => {
                    self.half_open.timers.no_later_than(index, next);
                    if let [Some(frame), _] = &mut self.frames {
                        course.send(&segment, frame, &ChecksumCapabilities::ignored());
                    }
                    self.carry(now);
                }
            }
        }
    }
}

/// Makes the connection of a request that was answered. `size` is the largest segment that its way carries.
fn answered(request: &Request, options: &TcpOptions, size: u16) -> Result<Wire, Error> {
    let &Request { course, ours, theirs, offer, since, receive_buffer, repeated, is_acknowledged, .. } = request;
    let is_prompt = repeated == 0 && !is_acknowledged;
    let window = first_window(receive_buffer as usize);
    let scale = offer.scale.map(|theirs| (theirs, shift_of(receive_buffer as usize)));
    let agreed =
        Agreed { segment_size: offer.segment.min(size), scale, selective: offer.selective, stamps: offer.stamps };
    let tcp = ControlBlock::accept(&Handshake { ours, theirs, window, agreed, is_prompt }, options.buffers());
    Wire::new(course.via, tcp, options, since)
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

    use alloc::vec::Vec;
    use property::{Limited, with_memory};
    use smoltcp::wire::{TcpSeqNumber, TcpTimestampRepr};

    use super::*;

    #[global_allocator]
    static LIMITED: Limited = Limited;

    /// With as many requests as all lists and tables are made for, every byte taken is charged.
    #[test]
    fn requests_take_as_much_as_they_are_charged() {
        const REQUESTS: usize = 1 << 12;
        // Bytes of small tables beside their entries.
        const BESIDE: usize = REQUESTS / 4;
        const LIMIT: usize = 1 << 24;
        let request = |number: usize| {
            let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
            let key = Key::new(local, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), number as u16));
            Request {
                course: Course { via: Via::Local, key, hardware: [[0; 6]; 2] },
                listener: ListenerId { index: 0, generation: 1 },
                ours: 1,
                theirs: 2,
                offer: offer_of(&REQUEST, four()),
                receive_buffer: 0,
                since: Instant::ZERO,
                repeated: 0,
                is_acknowledged: false,
            }
        };
        let is_there = |bytes: usize| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
        let mut half_open = HalfOpen::new(Hash::new([7; 16]), REQUESTS);
        let (at_most, at_least) = with_memory(LIMIT, || {
            for number in 0..REQUESTS {
                let charge = Charge::new(None, Held::Request, (MEMORY, usize::MAX), Need::Packet).unwrap();
                half_open.add(request(number), charge).unwrap();
            }
            (is_there(LIMIT - REQUESTS * MEMORY - BESIDE), !is_there(LIMIT - REQUESTS * MEMORY + 1))
        });
        assert_eq!(half_open.len(), REQUESTS);
        assert!(at_most, "more than {MEMORY} bytes for a request");
        assert!(at_least, "less than {MEMORY} bytes for a request");
    }

    fn four() -> Key {
        Key::only_local(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80))
    }

    fn six() -> Key {
        Key::only_local(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 80))
    }

    const REQUEST: TcpRepr<'static> = TcpRepr {
        src_port: 1,
        dst_port: 2,
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(7),
        ack_number: None,
        window_len: 1000,
        window_scale: Some(3),
        max_seg_size: Some(1),
        sack_permitted: true,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };

    #[test]
    fn an_offer_is_read_from_the_request() {
        let offer = |segment| Offer { segment, scale: Some(3), selective: true, stamps: None };
        for (said, segment) in [(None, 536), (Some(0), 536), (Some(1), 1), (Some(1460), 1460)] {
            assert_eq!(offer_of(&TcpRepr { max_seg_size: said, ..REQUEST }, four()), offer(segment));
        }
        assert_eq!(offer_of(&TcpRepr { max_seg_size: None, ..REQUEST }, six()), offer(1220));
        assert_eq!(Offer::from_cookie(1300), Offer { segment: 1300, scale: None, selective: false, stamps: None });
    }

    #[test]
    fn an_answer_offers_only_options_of_both_ends() {
        let key =
            Key::new(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80), SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9));
        let course = Course { via: Via::Local, key, hardware: [[0; 6]; 2] };
        let answer = |offer, window| answer_to(&course, 100, u32::MAX, offer, window, 1500, Instant::from_secs(3));
        let all = answer(offer_of(&REQUEST, four()), 0x2_0000);
        assert_eq!((all.control, all.src_port, all.dst_port), (TcpControl::Syn, 80, 9));
        assert_eq!((all.seq_number, all.ack_number), (TcpSeqNumber(100), Some(TcpSeqNumber(0))));
        assert_eq!((all.window_len, all.max_seg_size), (1 << 14, Some(1460)));
        assert_eq!((all.window_scale, all.sack_permitted), (Some(2), true));
        let little = answer(Offer::from_cookie(1), 1000);
        assert_eq!((little.window_len, little.max_seg_size), (1000, Some(1460)));
        assert_eq!((little.window_scale, little.sack_permitted), (None, false));
        assert_eq!([all.timestamp, little.timestamp], [None; 2]);
        let with_stamp = TcpRepr { timestamp: Some(TcpTimestampRepr::new(77, 0)), ..REQUEST };
        let offer = offer_of(&with_stamp, four());
        let told = |offer| answer(offer, 1000).timestamp.map(|told| (told.tsval, told.tsecr));
        assert_eq!(told(offer), Some((3005, 77)));
        // The last one counts, and none if it was given up.
        let again = |stamp| TcpRepr { timestamp: Some(TcpTimestampRepr::new(stamp, 0)), ..REQUEST };
        assert_eq!(told(offer.repeated(&again(78), Instant::ZERO)), Some((3005, 78)));
        assert_eq!(told(offer.repeated(&again(76), Instant::ZERO)), Some((3005, 77)), "it was late");
        assert_eq!(told(offer.repeated(&REQUEST, Instant::ZERO)), None);
        assert_eq!(told(offer_of(&REQUEST, four()).repeated(&with_stamp, Instant::ZERO)), None);
    }

    fn offer_of(request: &TcpRepr<'_>, key: Key) -> Offer {
        Offer::of(request, key, Stamps::new(5), Instant::ZERO)
    }

    #[test]
    fn windows_are_shifted_until_they_can_be_said() {
        for (buffer, scale) in
            [(0, 0), (1, 0), (0xffff, 0), (0x1_0000, 1), (0x1_ffff, 1), (0x2_0000, 2), (64 << 20, 11)]
        {
            assert_eq!(shift_of(buffer), scale, "for {buffer}");
        }
    }
}
