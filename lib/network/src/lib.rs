//! TCP/IP with a constant-time connection table.
//!
//! **The problem.** A stack that finds a packet's socket by asking every socket, and polls every socket for something
//! to send, makes a server with ten thousand connections pay for all of them with every packet.
//!
//! **The choice.** [`Stack`] reads the addresses and ports of an arriving packet itself and finds the connection in a
//! hash table. Each connection is a [control block](tcp::ControlBlock) of the crate `tcp`, which takes that one
//! segment and says when it has one to send. Connections that have something to send are in a list, those that wait
//! for a time in a heap; nothing ever walks over all connections. Listeners are the stack's own: a SYN leaves a small
//! record or a cookie (module `half_open`), and its acknowledgement makes a connection. Datagrams, echoes and the
//! formats of packets are smoltcp's.
//!
//! **Driving.** The stack does not wait, lock, or read a clock. The kernel holds the stack under a lock of
//! its own, calls operations that answer at once, leaves a [`Waker`](core::task::Waker) where it would have to
//! wait, and calls [`Stack::poll`] after operations, when the device has interrupted, and when the deadline that
//! `poll` returned has come. Wakers are called from within `poll` and the other operations, under the caller's lock.
//!
//! **Connections within the host** have no packets: bytes that one end sends are written into the ring from which the
//! other receives (module `local`). All other traffic goes through the [`Link`](ethernet::Link). For comparisons with
//! systems without joined ends, such connections can exchange TCP segments over a loopback interface
//! ([`LocalConnections`]).
//!
//! **Neighbours.** The stack resolves addresses of IPv6 itself, and for connections also those of IPv4 (modules
//! `discovery`, `neighbours`, `six`, `resolution`): smoltcp, which does that for datagrams of IPv4, believes every
//! advertisement and keeps the neighbours of both families in one small table, from which any host of the network could
//! push the other family's. Its interface for IPv6 has packets without an Ethernet header, which the stack puts before
//! them.
//!
//! Not supported: IP fragments and extension headers of IPv6 (dropped), reception of multicast.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod arrivals;
mod charge;
mod checksum;
mod claim;
mod configuration;
mod dhcp;
mod discovery;
mod echo;
mod error;
mod frame;
mod groups;
mod half_open;
mod host;
mod link;
mod listing;
mod local;
mod neighbours;
mod operations;
mod packets;
mod raw;
mod reply;
mod reports;
mod resolution;
mod schedule;
mod secrets;
mod segments;
mod sharded;
mod six;
mod slab;
mod stack;
mod table;
mod tcp;
mod time_wait;
mod udp;

pub use ::tcp::Information;

pub use crate::tcp::{BUFFER_LIMITS, Coalescing, ConnectionMemory, Keepalive, TcpOptions};
pub use arrivals::{LEVELS, Reader, Turn, Waiting};
pub use charge::{Held, Need, Owner};
pub use configuration::{
    Address, Addressing, Configuration, Counters, Interest, Lease, Limits, LocalConnections, NAME_SERVERS, Patience,
    Readiness, Received, Sent, Shutdown, SixAddress, SixAddressing,
};
pub use discovery::{ALL_NODES, solicited_group};
pub use error::Error;
pub use listing::{ListedSocket, ListedState, SocketList};
pub use packets::{ALL_PROTOCOLS, FrameKind, FrameOrigin, MEMORY_OF_PACKETS, PacketCounts};
pub use reports::{MEMORY_OF_REPORTS, Report};
pub use secrets::Seeds;
pub use slab::{BindingId, ConnectionId, DatagramId, ListenerId, PacketSocketId};
pub use stack::{Order, Polled, Stack};
pub use table::{LocalEnd, Sharing};
pub use udp::{DatagramOptions, DatagramProtocol, Origin};
