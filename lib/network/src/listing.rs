//! Lists of the sockets there are, for those who look at a machine (netstat, ss).

use core::net::SocketAddr;

use ethernet::Link;
use tcp::State;

use crate::local::{Direction, Phase};
use crate::slab::Slab;
use crate::stack::Stack;
use crate::table::LocalEnd;
use crate::tcp::{Connection, Engine};
use crate::udp::DatagramProtocol;

/// Indexes that one look goes over.
const LOOKS: u32 = 64;

/// A list of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketList {
    /// Sockets that listen.
    Listeners,
    /// Connections, accepted or not.
    Connections,
    /// Sockets of UDP.
    Datagrams,
}

/// The state of a listed socket.
///
/// Those of TCP (RFC 9293, section 3.3.2), with the numbers of Linux; a datagram socket is established if it is
/// connected, and closed otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ListedState {
    Established = 1,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Closed,
    CloseWait,
    LastAck,
    Listening,
    Closing,
}

/// A socket of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSocket {
    /// Its own end.
    pub local: LocalEnd,
    /// The other end, if it has one.
    pub remote: Option<SocketAddr>,
    /// Its state.
    pub state: ListedState,
    /// Bytes that the other side has not acknowledged.
    pub unsent: usize,
    /// Bytes that the program has not received; of a listener, connections that wait.
    pub unread: usize,
}

pub(crate) fn state_of(connection: &Connection) -> ListedState {
    match &connection.engine {
        Engine::Wire(wire) => match wire.tcp().state() {
            State::Closed => ListedState::Closed,
            State::SynSent => ListedState::SynSent,
            State::SynReceived => ListedState::SynReceived,
            State::Established => ListedState::Established,
            State::FinWait1 => ListedState::FinWait1,
            State::FinWait2 => ListedState::FinWait2,
            State::CloseWait => ListedState::CloseWait,
            State::Closing => ListedState::Closing,
            State::LastAck => ListedState::LastAck,
            State::TimeWait => ListedState::TimeWait,
        },
        // The ends are joined: what one has ended, the other has seen.
        Engine::Local(local) => match (local.phase, local.incoming, local.outgoing) {
            (Phase::Waiting { .. }, _, _) => ListedState::SynSent,
            (Phase::Refused | Phase::Alone, _, _) => ListedState::Closed,
            (Phase::Joined(_), Direction::Open, Direction::Open) => ListedState::Established,
            (Phase::Joined(_), Direction::Ended, Direction::Open) => ListedState::CloseWait,
            (Phase::Joined(_), Direction::Open, Direction::Ended) => ListedState::FinWait2,
            (Phase::Joined(_), Direction::Ended, Direction::Ended) => ListedState::TimeWait,
        },
    }
}

/// Returns the first object from an index on, as far as one look goes, and the index to go on from.
fn next_of<T, R>(slab: &Slab<T>, from: u32, show: impl Fn(&T) -> Option<R>) -> (Option<R>, Option<u32>) {
    let end = slab.indexes().min(from.saturating_add(LOOKS));
    let found = (from..end).find_map(|index| Some((show(slab.get(index)?)?, index + 1)));
    match found {
        Some((shown, next)) => (Some(shown), Some(next)),
        None => (None, (end < slab.indexes()).then_some(end)),
    }
}

impl<L: Link> Stack<L> {
    /// Returns the next socket of a list from an index on, or none although there may be more, and the index to go on
    /// from; `None` at the end of the list.
    #[doc(alias = "/proc/net/tcp")]
    pub fn listed(&self, list: SocketList, from: u32) -> (Option<ListedSocket>, Option<u32>) {
        let host = self.host();
        match list {
            SocketList::Listeners => next_of(&host.listeners, from, |listener| {
                Some(ListedSocket {
                    local: listener.local,
                    remote: None,
                    state: ListedState::Listening,
                    unsent: listener.backlog,
                    unread: listener.queue.len(),
                })
            }),
            SocketList::Connections => next_of(&host.connections, from, |connection| {
                Some(ListedSocket {
                    local: connection.key.local().into(),
                    remote: Some(connection.key.remote()),
                    state: state_of(connection),
                    unsent: connection.unacknowledged(),
                    unread: connection.receivable(),
                })
            }),
            SocketList::Datagrams => next_of(&host.datagrams, from, |datagrams| {
                let state = if datagrams.remote.is_some() { ListedState::Established } else { ListedState::Closed };
                (datagrams.options.protocol == DatagramProtocol::Udp).then_some(ListedSocket {
                    local: datagrams.local,
                    remote: datagrams.remote,
                    state,
                    unsent: 0,
                    unread: datagrams.arrived.payload_bytes_count(),
                })
            }),
        }
    }
}
