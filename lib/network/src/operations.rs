//! Operations on TCP: the bodies of the methods of [`Stack`](crate::Stack).

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::time::Instant;
use tcp::{ControlBlock, State};

use crate::Error;
use crate::charge::{Charge, Held, Need, Owner};
use crate::configuration::{LocalConnections, Readiness, Received, Sent, Shutdown};
use crate::host::{Host, Via};
use crate::local::{Ending, Phase};
use crate::secrets::beginning;
use crate::slab::{BindingId, ConnectionId, ListenerId};
use crate::table::{Key, LocalEnd, Purpose, Sharing};
use crate::tcp::{
    Connection, Engine, Holder, Listener, Receiving, TcpOptions, Wire, has_room, local_charge, wire_charge,
};

/// Connections that are looked at at once for something to be delivered.
const LOOKS_AT_ONCE: usize = 1024;

/// Returns where packets to the unspecified address go: to this host, as on other systems.
pub(crate) fn or_this_host(remote: SocketAddr) -> SocketAddr {
    let address = match remote.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, remote.port())
}

impl Host {
    /// Returns whether a socket may have this address.
    pub(crate) fn may_bind(&self, local: LocalEnd) -> bool {
        local.address.ip().is_unspecified() || self.is_own(local.address.ip())
    }

    pub(crate) fn tcp_bind(&mut self, local: LocalEnd, sharing: Sharing) -> Result<BindingId, Error> {
        if !self.may_bind(local) {
            return Err(Error::AddressUnavailable);
        }
        self.bindings.next_index()?;
        let local = self.ports.bind(local, sharing)?;
        let index = self.bindings.insert(local).inspect_err(|_| self.ports.release(local))?;
        Ok(BindingId { index, generation: self.bindings.generation(index) })
    }

    pub(crate) fn binding(&self, id: BindingId) -> Result<LocalEnd, Error> {
        let index = self.bindings.resolve(id.index, id.generation)?;
        self.bindings.get(index).copied().ok_or(Error::Stale)
    }

    /// Removes a binding; the port stays taken.
    pub(crate) fn take_binding(&mut self, id: BindingId) -> Result<LocalEnd, Error> {
        let local = self.binding(id)?;
        self.bindings.remove(id.index);
        Ok(local)
    }

    pub(crate) fn tcp_listen(
        &mut self,
        binding: BindingId,
        backlog: usize,
        options: &TcpOptions,
    ) -> Result<ListenerId, Error> {
        let local = self.binding(binding)?;
        let backlog = backlog.clamp(1, self.limits.backlog.max(1));
        let index = self.listeners.insert(Listener::new(local, *options, backlog))?;
        let is_shared = local.spread.is_some();
        self.listening.insert_all(local.keys(), index, is_shared).inspect_err(|_| self.listeners.remove(index))?;
        self.take_binding(binding)?;
        Ok(ListenerId { index, generation: self.listeners.generation(index) })
    }

    pub(crate) fn accept(&mut self, id: ListenerId) -> Result<Option<(ConnectionId, SocketAddr)>, Error> {
        let reader = self.listener(id)?.reader;
        while let Some(index) = self.listener(id)?.queue.pop_front() {
            self.admit(id.index);
            let generation = self.connections.generation(index);
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            connection.holder = Holder::Application;
            // Until another task waits at it.
            connection.reader = reader;
            let remote = connection.key.remote();
            return Ok(Some((ConnectionId { index, generation }, remote)));
        }
        Ok(None)
    }

    /// Returns the memory of the connections in a listener's queue.
    pub(crate) fn listener_memory(&mut self, id: ListenerId) -> Result<usize, Error> {
        self.listener(id)?;
        let queue = self.listeners.get(id.index).map(|listener| listener.queue.iter());
        let connections = queue.into_iter().flatten().filter_map(|&index| self.connections.get(index));
        Ok(connections.map(Connection::memory).sum())
    }

    pub(crate) fn close_listener(&mut self, id: ListenerId, now: Instant) -> Result<(), Error> {
        let listener = self.listener(id)?;
        listener.acceptors.wake_all();
        let local = listener.local;
        let queue = core::mem::take(&mut listener.queue);
        let waiting = core::mem::take(&mut listener.waiting);
        self.listening.remove_all(local.keys(), id.index);
        self.ports.release(local);
        self.listeners.remove(id.index);
        for id in waiting {
            if self.connection(id).is_ok() {
                self.local_refuse(id.index, Error::Refused);
            }
        }
        for index in queue {
            self.give_up(index, now);
        }
        Ok(())
    }

    /// Chooses a port that no connection from `local` to `remote` has.
    fn ephemeral_port(&mut self, local: IpAddr, remote: SocketAddr) -> Result<u16, Error> {
        let (table, time_wait) = (&self.table, &self.time_wait);
        self.ports.ephemeral(Purpose::Connection { local, remote }, |ports, port| {
            let key = Key::new(SocketAddr::new(local, port), remote);
            !ports.is_bound(port) && table.find(key).is_none() && !time_wait.contains(key)
        })
    }

    pub(crate) fn tcp_connect(
        &mut self,
        from: Option<BindingId>,
        remote: SocketAddr,
        options: &TcpOptions,
        owner: Option<&Arc<dyn Owner>>,
        now: Instant,
    ) -> Result<ConnectionId, Error> {
        let remote = or_this_host(remote);
        if remote.port() == 0 {
            return Err(Error::Invalid);
        }
        let bound = match from {
            Some(id) => Some(self.binding(id)?),
            None => None,
        };
        let wanted = bound.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |local| local.address.ip());
        let (via, address) = self.route_from(wanted, remote.ip())?;
        if self.is_for_many(via, remote.ip()) {
            return Err(Error::Unreachable);
        }
        let port = match bound {
            Some(local) => local.address.port(),
            None => self.ephemeral_port(address, remote)?,
        };
        let local = SocketAddr::new(address, port);
        let key = Key::new(local, remote);
        // A connection from a port to itself would be two ends in one.
        if local == remote {
            return Err(Error::AddressUnavailable);
        }
        if self.table.find(key).is_some() || self.time_wait.contains(key) {
            return Err(Error::AddressInUse);
        }
        let charge = |memory| Charge::new(owner, Held::Connection, (memory, self.connections.free()), Need::Call);
        let id = match (via, self.local_connections) {
            // The loopback interface has no IPv6: such connections are always joined.
            (Via::Local, joined) if joined == LocalConnections::Joined || remote.is_ipv6() => {
                let charge = charge(local_charge(key))?;
                self.local_connect(key, options, charge, now)?
            }
            _ => {
                let charge = charge(wire_charge(key))?;
                let (number, stamps) = beginning(&self.sequence_numbers, key, now);
                let tcp = ControlBlock::connect(number, self.segment_size(via, key), Some(stamps), options.buffers());
                let wire = Wire::new(via, tcp, options, now)?;
                let index = self.add(Connection::new(key, Holder::Application, Engine::Wire(wire), charge))?;
                self.touch(index, now);
                ConnectionId { index, generation: self.connections.generation(index) }
            }
        };
        if let Some(id) = from {
            let local = self.take_binding(id)?;
            self.ports.release(local);
        }
        Ok(id)
    }

    pub(crate) fn send_with(
        &mut self,
        id: ConnectionId,
        mut fill: impl FnMut(&mut [u8]) -> usize,
        now: Instant,
    ) -> Result<Sent, Error> {
        let connection = self.connection(id)?;
        let Engine::Wire(wire) = &mut connection.engine else {
            return self.local_send(id.index, fill, now);
        };
        if let Some(failure) = connection.failure.take() {
            return Err(failure);
        }
        let tcp = wire.tcp();
        if !tcp.may_send() {
            return Err(match tcp.state() {
                State::SynSent | State::SynReceived => Error::NotConnected,
                _ => Error::Closed,
            });
        }
        let (index, mut total) = (id.index, 0);
        while let Some(wire) = self.wire_mut(index) {
            if wire.tcp().outgoing().room() > 0 {
                let (filled, offered) = wire.tcp_mut().send(&mut fill);
                total += filled;
                if filled < offered {
                    break;
                }
            } else if !self.make_room_to_send(index, total == 0, now)? {
                if total == 0 {
                    return Ok(Sent::Full);
                }
                break;
            }
        }
        if total > 0
            && let Some(wire) = self.wire_mut(index)
        {
            // Its turn in the work list settles the rest; this updates only the fields that an earlier packet must find
            // right.
            let waited = wire.seen.unsent > 0;
            wire.seen.unsent += total;
            if !waited {
                self.arm_timeouts(index, now);
            }
            self.work.push(index);
        }
        Ok(Sent::Bytes(total))
    }

    /// Returns the end with this index, if it is one of a connection with segments.
    #[inline(always)]
    fn wire_mut(&mut self, index: u32) -> Option<&mut Wire> {
        match &mut self.connections.get_mut(index)?.engine {
            Engine::Wire(wire) => Some(wire),
            Engine::Local(_) => None,
        }
    }

    /// Gives a connection memory for more bytes to be sent. Returns `false` if it may not have more before bytes are
    /// acknowledged.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], if these would be the first bytes of all: there is nothing to wait for.
    #[cold]
    #[inline(never)]
    fn make_room_to_send(&mut self, index: u32, is_first: bool, now: Instant) -> Result<bool, Error> {
        let admits = self.admits;
        let Some(connection) = self.connections.get_mut(index) else { return Ok(false) };
        let Engine::Wire(wire) = &connection.engine else { return Ok(false) };
        let (is_full, is_empty) = (wire.tcp().outgoing().free() == 0, wire.tcp().outgoing().is_empty());
        if is_full {
            return Ok(false);
        }
        if connection.make_room(admits) {
            if let Some(at) = connection.set_rest(now) {
                self.timers.no_later_than(index, at);
            }
            return Ok(true);
        }
        if is_first && is_empty { Err(Error::OutOfMemory) } else { Ok(false) }
    }

    pub(crate) fn receive_with(
        &mut self,
        id: ConnectionId,
        mut take: impl FnMut(&[u8]) -> usize,
        now: Instant,
    ) -> Result<Received, Error> {
        let connection = self.connection(id)?;
        let Engine::Wire(wire) = &mut connection.engine else {
            return self.local_receive(id.index, take);
        };
        let tcp = wire.tcp_mut();
        if tcp.incoming().is_empty() {
            let state = tcp.state();
            if let Some(failure) = connection.failure.take() {
                return Err(failure);
            }
            return match state {
                State::SynSent | State::SynReceived => Err(Error::NotConnected),
                State::Established | State::FinWait1 | State::FinWait2 if connection.receiving == Receiving::Open => {
                    Ok(Received::Nothing)
                }
                _ => Ok(Received::End),
            };
        }
        let mut total = 0;
        while !tcp.incoming().is_empty() {
            let (taken, offered) = tcp.receive(&mut take);
            total += taken;
            if taken < offered {
                break;
            }
        }
        // Receiving can only make a window update necessary.
        wire.seen.received -= total.min(wire.seen.received);
        if wire.tcp().tells_of_room() {
            self.touch(id.index, now);
        }
        Ok(Received::Bytes(total))
    }

    pub(crate) fn readiness(&mut self, id: ConnectionId) -> Result<Readiness, Error> {
        let connection = self.connection(id)?;
        let mut readiness = connection.readiness();
        if let Engine::Local(local) = &connection.engine
            && let Phase::Joined(other) = local.phase
            && let Some(Connection { engine: Engine::Local(end), .. }) = self.connections.get(other)
        {
            readiness.send |= has_room(&end.ring, end.is_refused);
        }
        Ok(readiness)
    }

    pub(crate) fn shutdown(&mut self, id: ConnectionId, how: Shutdown, now: Instant) -> Result<(), Error> {
        let connection = self.connection(id)?;
        if !connection.is_open() {
            return Err(Error::NotConnected);
        }
        if matches!(how, Shutdown::Receive | Shutdown::Both) {
            connection.receiving = Receiving::Shut;
            connection.receivers.wake_all();
        }
        if matches!(how, Shutdown::Send | Shutdown::Both) {
            match &mut connection.engine {
                Engine::Wire(wire) => {
                    wire.tcp_mut().close();
                    self.touch(id.index, now);
                }
                Engine::Local(_) => self.local_end(id.index),
            }
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, id: ConnectionId, now: Instant) -> Result<(), Error> {
        let limit = self.limits.orphans;
        let crowded = self.orphans >= limit;
        let connection = self.connection(id)?;
        connection.wake_all();
        let listed = connection.listed;
        let Engine::Wire(wire) = &mut connection.engine else {
            self.local_close(id.index, Ending::Orderly);
            return Ok(());
        };
        match wire.tcp().state() {
            State::Closed if !listed => {
                self.discard(id.index);
                return Ok(());
            }
            // No answer has arrived, so no reset is needed.
            State::SynSent => {
                self.discard(id.index);
                return Ok(());
            }
            State::TimeWait => {
                connection.holder = Holder::None;
                self.orphans += 1;
                // If the last acknowledgement is still to be sent, `egress` retires the connection after that.
                self.work.push(id.index);
                return Ok(());
            }
            _ => {}
        }
        connection.holder = Holder::None;
        if !wire.tcp().incoming().is_empty() || crowded {
            wire.tcp_mut().abort();
        } else {
            wire.tcp_mut().close();
        }
        self.orphans += 1;
        self.arm_timeouts(id.index, now);
        self.touch(id.index, now);
        Ok(())
    }

    pub(crate) fn is_delivering(&mut self) -> bool {
        let end = self.connections.indexes();
        for _ in 0..LOOKS_AT_ONCE {
            if self.orphans == 0 || self.delivered >= end {
                return false;
            }
            let connection = self.connections.get(self.delivered);
            if connection.is_some_and(|connection| connection.holder == Holder::None && connection.unacknowledged() > 0)
            {
                return true;
            }
            self.delivered += 1;
        }
        true
    }

    pub(crate) fn abort(&mut self, id: ConnectionId, now: Instant) -> Result<(), Error> {
        self.connection(id)?;
        self.give_up(id.index, now);
        Ok(())
    }

    /// Ends a connection with a reset and forgets it.
    fn give_up(&mut self, index: u32, now: Instant) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        if matches!(connection.engine, Engine::Local(_)) {
            self.local_close(index, Ending::Reset);
            return;
        }
        if !connection.listed {
            self.discard(index);
            return;
        }
        let before = connection.holder;
        connection.holder = Holder::None;
        connection.wake_all();
        if let Engine::Wire(wire) = &mut connection.engine {
            wire.tcp_mut().abort();
        }
        if before != Holder::None {
            self.orphans += 1;
        }
        self.touch(index, now);
    }
}
