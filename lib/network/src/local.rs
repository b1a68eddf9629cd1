//! Connections whose two ends are on this host.
//!
//! Between two ends in the same memory nothing can be lost, reordered or damaged, so TCP's machinery is not needed to
//! keep TCP's promises: bytes that one end sends are written straight into the ring from which the other end receives.
//! There are no packets, no acknowledgements, no timers and no polling; a byte is copied twice, from the sender's
//! memory and to the receiver's, as with a pipe. To programs it is a TCP connection: addresses and ports, a backlog,
//! half-closing, reset, limited buffers.
//!
//! The two ends are two connections that name each other. An end that is closed is gone at once; the other keeps the
//! data that it has not received yet. There is one visible difference: sending to an end that is gone fails at once,
//! where TCP would accept the bytes and fail later.

use smoltcp::time::Instant;
use tcp::Ring;

use crate::Error;
use crate::charge::{Charge, Held, Need};
use crate::configuration::{Received, Sent};
use crate::host::{ADMISSION_RETRY, FULL_RETRY, Host};
use crate::slab::ConnectionId;
use crate::table::Key;
use crate::tcp::{Connection, Engine, Holder, Receiving, TcpOptions, clamped, has_room, local_charge};

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The listener with this index has no room; it takes the connection when it has.
    Waiting { listener: u32 },
    /// Joined to the end with this index, which names this end in turn.
    Joined(u32),
    /// The other end is gone.
    Alone,
    /// There was never another end.
    Refused,
}

/// Whether bytes may still go in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Open,
    Ended,
}

/// One end.
pub(crate) struct Local {
    pub(crate) phase: Phase,
    /// Bytes that the other end has sent and this one has not received.
    pub(crate) ring: Ring,
    /// Whether there was no memory for bytes to be sent to this end.
    pub(crate) is_refused: bool,
    pub(crate) incoming: Direction,
    pub(crate) outgoing: Direction,
    /// Options that this end was made with: the listener's part is known only when it takes the connection.
    options: TcpOptions,
}

/// The most bytes of each of the two buffers in one direction. There is no way that more would fill: a sender that is
/// this far ahead gains nothing.
const MOST: usize = 64 * 1024;

/// Returns the number of bytes that may be under way from a sender to a receiver.
fn limit(receiver: &TcpOptions, sender: &TcpOptions) -> usize {
    clamped(receiver.receive_buffer).min(MOST) + clamped(sender.send_buffer).min(MOST)
}

impl Local {
    fn engine(phase: Phase, options: TcpOptions, limit: usize) -> Engine {
        Engine::Local(Local {
            phase,
            ring: Ring::new(limit),
            is_refused: false,
            incoming: Direction::Open,
            outgoing: Direction::Open,
            options,
        })
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    fn other(&self) -> Option<u32> {
        match self.phase {
            Phase::Joined(other) => Some(other),
            _ => None,
        }
    }
}

impl Host {
    fn local(&mut self, index: u32) -> Option<(&mut Connection, u32)> {
        let connection = self.connections.get_mut(index)?;
        match &connection.engine {
            Engine::Local(local) => {
                let other = local.other()?;
                Some((connection, other))
            }
            Engine::Wire(_) => None,
        }
    }

    /// Begins a connection to a listener of this host.
    pub(crate) fn local_connect(
        &mut self,
        key: Key,
        options: &TcpOptions,
        charge: Charge,
        now: Instant,
    ) -> Result<ConnectionId, Error> {
        let listener = self.find_listener(key.mirrored());
        let phase = listener.map_or(Phase::Refused, |listener| Phase::Waiting { listener });
        let mut connection = Connection::new(key, Holder::Application, Local::engine(phase, *options, 0), charge);
        if phase == Phase::Refused {
            connection.failure = Some(Error::Refused);
        }
        let index = self.add(connection)?;
        let id = ConnectionId { index, generation: self.connections.generation(index) };
        let Some(listener_index) = listener else {
            self.remove_closed(index);
            return Ok(id);
        };
        let Some(listener) = self.listeners.get_mut(listener_index) else {
            return Err(Error::Stale);
        };
        if let Err(error) = listener.waiting.try_reserve(1) {
            self.discard(index);
            return Err(error.into());
        }
        listener.waiting.push_back(id);
        self.admit(listener_index);
        // Still waiting: set a time limit.
        if let Some(connection) = self.connections.get_mut(index)
            && matches!(&connection.engine, Engine::Local(local) if local.is_waiting())
        {
            connection.give_up_at = Some(now + crate::tcp::duration(self.patience.connect_ns));
            self.set_next_try(index, now);
        }
        Ok(id)
    }

    /// Enters the time of the next try of a waiting connection. A connection that waits for room is admitted when there
    /// is some; for memory there is no such signal. (Free memory now proves nothing: it may have been short a moment
    /// ago.)
    fn set_next_try(&mut self, index: u32, now: Instant) {
        if let Some(connection) = self.connections.get(index)
            && let Some(mut at) = connection.deadline()
        {
            if let Engine::Local(Local { phase: Phase::Waiting { listener }, .. }) = connection.engine
                && let Some(listener) = self.listeners.get(listener)
            {
                // `accept` makes room, but may then lack memory for the new connection, and no later call would admit
                // it.
                at = at.min(now + if listener.is_full() { FULL_RETRY } else { ADMISSION_RETRY });
            }
            self.timers.no_later_than(index, at);
        }
    }

    /// Handles the timer of a connection that may wait for memory rather than for room.
    pub(crate) fn local_try_again(&mut self, index: u32, now: Instant) {
        if let Some(connection) = self.connections.get(index)
            && let Engine::Local(Local { phase: Phase::Waiting { listener }, .. }) = connection.engine
        {
            self.admit(listener);
        }
        self.set_next_try(index, now);
    }

    /// Admits waiting connections as long as the listener has room.
    pub(crate) fn admit(&mut self, listener_index: u32) {
        while let Some(listener) = self.listeners.get_mut(listener_index) {
            let Some(id) = listener.waiting.front().copied() else {
                return;
            };
            // The other end is counted with the process that connects.
            if !listener.has_room(usize::MAX) {
                return;
            }
            let options = listener.options;
            // Connections that gave up in the meantime are gone, or no longer wait.
            let waiting = self.connections.resolve(id.index, id.generation).ok().and_then(|index| {
                match self.connections.get(index) {
                    Some(Connection { key, engine: Engine::Local(local), .. }) if local.is_waiting() => {
                        Some((*key, local.options))
                    }
                    _ => None,
                }
            });
            if let Some((key, client)) = waiting
                && self.join(listener_index, id.index, key, &client, &options).is_err()
            {
                // Short of memory: the next `accept` tries again, or the connection itself after a while.
                self.counters.requests_dropped += 1;
                return;
            }
            if let Some(listener) = self.listeners.get_mut(listener_index) {
                listener.waiting.pop_front();
            }
        }
    }

    fn join(
        &mut self,
        listener_index: u32,
        client_index: u32,
        key: Key,
        client: &TcpOptions,
        server: &TcpOptions,
    ) -> Result<(), Error> {
        if !(self.admits)(Need::Call) {
            return Err(Error::OutOfMemory);
        }
        // A client within the host takes nothing from the listener owner's limit for outside connections.
        let owner = self.listeners.get(listener_index).and_then(|listener| listener.owner.as_ref());
        let charge = Charge::new(owner, Held::AcceptedEnd, (local_charge(key), usize::MAX), Need::Call)?;
        let mirrored = Key::new(key.remote(), key.local());
        let engine = Local::engine(Phase::Joined(client_index), *server, limit(server, client));
        let server_index = self.add(Connection::new(mirrored, Holder::Queued, engine, charge))?;
        if let Some(connection) = self.connections.get_mut(client_index)
            && let Engine::Local(local) = &mut connection.engine
        {
            local.phase = Phase::Joined(server_index);
            local.ring = Ring::new(limit(client, server));
            connection.give_up_at = None;
            connection.wake_all();
        }
        if let Some(listener) = self.listeners.get_mut(listener_index) {
            // `has_room` reserved the place.
            listener.queue.push_back(server_index);
            listener.acceptors.wake_all();
        }
        self.counters.local_connections += 1;
        Ok(())
    }

    /// Ends the wait of a connection that the listener did not take.
    pub(crate) fn local_refuse(&mut self, index: u32, failure: Error) {
        if let Some(connection) = self.connections.get_mut(index)
            && let Engine::Local(local) = &mut connection.engine
            && local.is_waiting()
        {
            local.phase = Phase::Refused;
            connection.failure = Some(failure);
            connection.give_up_at = None;
            self.remove_closed(index);
        }
    }

    pub(crate) fn local_send(
        &mut self,
        index: u32,
        mut fill: impl FnMut(&mut [u8]) -> usize,
        now: Instant,
    ) -> Result<Sent, Error> {
        let admits = self.admits;
        let connection = self.connections.get_mut(index).ok_or(Error::Stale)?;
        let Engine::Local(local) = &connection.engine else {
            return Err(Error::Stale);
        };
        if let Some(failure) = connection.failure.take() {
            return Err(failure);
        }
        let other = match (local.phase, local.outgoing) {
            (Phase::Waiting { .. }, _) => return Err(Error::NotConnected),
            (Phase::Joined(other), Direction::Open) => other,
            _ => return Err(Error::Closed),
        };
        let receiver = self.connections.get_mut(other).ok_or(Error::Closed)?;
        let mut total = 0;
        let outcome = loop {
            let Engine::Local(end) = &mut receiver.engine else {
                return Err(Error::Closed);
            };
            let ring = &mut end.ring;
            if ring.room() == 0 {
                let (is_empty, is_full) = (ring.is_empty(), ring.free() == 0);
                if !is_full && receiver.make_room(admits) {
                    if let Some(at) = receiver.set_rest(now) {
                        self.timers.no_later_than(other, at);
                    }
                    continue;
                }
                break match total {
                    // The data in the ring is received in time; then there is room, and waiting senders are woken.
                    0 if is_full || !is_empty => Ok(Sent::Full),
                    0 => Err(Error::OutOfMemory),
                    total => Ok(Sent::Bytes(total)),
                };
            }
            let (filled, offered) = ring.fill(&mut fill);
            total += filled;
            if filled < offered {
                break Ok(Sent::Bytes(total));
            }
        };
        if total > 0 {
            receiver.receivers.wake_all();
        }
        outcome
    }

    pub(crate) fn local_receive(
        &mut self,
        index: u32,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Result<Received, Error> {
        let connection = self.connections.get_mut(index).ok_or(Error::Stale)?;
        let Engine::Local(local) = &mut connection.engine else {
            return Err(Error::Stale);
        };
        let mut total = 0;
        while !local.ring.is_empty() {
            let (taken, offered) = local.ring.take(&mut take);
            total += taken;
            if taken < offered {
                break;
            }
        }
        if total > 0 {
            if let Phase::Joined(other) = local.phase
                && has_room(&local.ring, local.is_refused)
                && let Some(sender) = self.connections.get_mut(other)
            {
                sender.senders.wake_all();
            }
            return Ok(Received::Bytes(total));
        }
        if !local.ring.is_empty() {
            return Ok(Received::Bytes(0));
        }
        if let Some(failure) = connection.failure.take() {
            return Err(failure);
        }
        match (local.phase, local.incoming, connection.receiving) {
            (Phase::Waiting { .. }, _, _) => Err(Error::NotConnected),
            (Phase::Joined(_), Direction::Open, Receiving::Open) => Ok(Received::Nothing),
            _ => Ok(Received::End),
        }
    }

    /// Ends the stream to the other end.
    pub(crate) fn local_end(&mut self, index: u32) {
        let Some((connection, other)) = self.local(index) else {
            return;
        };
        if let Engine::Local(local) = &mut connection.engine {
            local.outgoing = Direction::Ended;
        }
        connection.senders.wake_all();
        if let Some(receiver) = self.connections.get_mut(other)
            && let Engine::Local(end) = &mut receiver.engine
        {
            end.incoming = Direction::Ended;
            receiver.receivers.wake_all();
        }
    }

    /// Removes one end. The other sees the end of the stream, or a reset if received data was left unread here or if
    /// `how` says so.
    pub(crate) fn local_close(&mut self, index: u32, how: Ending) {
        if let Some((connection, other)) = self.local(index) {
            let unread = connection.receivable() > 0;
            if let Some(receiver) = self.connections.get_mut(other)
                && let Engine::Local(end) = &mut receiver.engine
            {
                end.phase = Phase::Alone;
                let ended = end.incoming == Direction::Ended && end.outgoing == Direction::Ended;
                if (unread || how == Ending::Reset) && !ended {
                    receiver.failure = Some(Error::Reset);
                }
                self.remove_closed(other);
            }
        }
        self.discard(index);
    }
}

/// Way in which an end is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Orderly,
    Reset,
}
