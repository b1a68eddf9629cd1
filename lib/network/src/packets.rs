//! Packet sockets: the frames of the Ethernet device, whole, as they come and go (packet(7)).
//!
//! Each socket gets a copy of every frame of its protocol that comes, before anything else is done with it, and one for
//! all protocols also of every frame that this host sends. There are few of them, because each copy is made while the
//! frame is handled. A frame that leaves is kept beside the device ([`Tapped`]) until the work that has sent it is
//! done. Connections within the host have no frames.

use core::task::Waker;

use ethernet::{ChecksumOffload, Departing, ETHERNET_HEADER, LARGEST_FRAME, Link, ReceivedFrame};
use smoltcp::storage::{PacketBuffer, PacketMetadata};
use waiters::Waiters;

use crate::Error;
use crate::configuration::Readiness;
use crate::host::Host;
use crate::slab::PacketSocketId;
use crate::tcp::zeroed;

/// Packet sockets of the host.
pub(crate) const MOST_PACKET_SOCKETS: usize = 8;
/// Frames that wait to be received from a socket, and their bytes.
const MOST_FRAMES: usize = 64;
const MOST_BYTES: usize = 64 * 1024;
/// Frames that have left and were not shown yet, and their bytes.
const MOST_LEAVING: usize = 64;
const BYTES_LEAVING: usize = 32 * 1024;

/// The protocol of sockets for all frames, and that of sockets for none.
#[doc(alias = "ETH_P_ALL")]
pub const ALL_PROTOCOLS: u16 = 3;
const NO_PROTOCOL: u16 = 0;

/// The bytes that a packet socket takes, with what is kept of frames that leave.
pub const MEMORY_OF_PACKETS: usize = size_of::<PacketSocket>()
    + MOST_BYTES
    + MOST_FRAMES * size_of::<PacketMetadata<FrameOrigin>>()
    + BYTES_LEAVING
    + MOST_LEAVING * size_of::<PacketMetadata<()>>();

/// The receiver of a frame, as its hardware address says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// This host.
    Host,
    /// All hosts of the network.
    Broadcast,
    /// A group.
    Group,
    /// Another host.
    Other,
    /// The frame is one of this host's.
    Leaving,
}

/// The facts about a frame beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOrigin {
    /// Its receiver.
    pub kind: FrameKind,
    /// The hardware address of its sender.
    pub from: [u8; 6],
    /// Its protocol.
    pub protocol: u16,
    /// The time of its coming or leaving, of the clock that the socket was given; 0 without one.
    pub at_ns: u64,
}

/// Counts of frames of a packet socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Frames for it, with those that were dropped.
    pub seen: u32,
    /// Frames for which it had no room.
    pub dropped: u32,
}

pub(crate) struct PacketSocket {
    protocol: u16,
    arrived: PacketBuffer<'static, FrameOrigin>,
    receivers: Waiters,
    clock: Option<fn() -> u64>,
    counts: PacketCounts,
}

impl PacketSocket {
    fn show(&mut self, frame: &[u8], origin: FrameOrigin) {
        let is_leaving = origin.kind == FrameKind::Leaving;
        let is_wanted = self.protocol == ALL_PROTOCOLS
            || self.protocol != NO_PROTOCOL && self.protocol == origin.protocol && !is_leaving;
        if !is_wanted {
            return;
        }
        self.counts.seen = self.counts.seen.wrapping_add(1);
        let at_ns = self.clock.map_or(0, |clock| clock());
        match self.arrived.enqueue(frame.len(), FrameOrigin { at_ns, ..origin }) {
            Ok(room) => {
                room.copy_from_slice(frame);
                self.receivers.wake_all();
            }
            Err(_) => self.counts.dropped = self.counts.dropped.wrapping_add(1),
        }
    }
}

impl Host {
    /// Returns whether frames are shown to anyone.
    pub(crate) fn has_packet_sockets(&self) -> bool {
        self.packets.len() > 0
    }

    pub(crate) fn packet_socket(&mut self, id: PacketSocketId) -> Result<&mut PacketSocket, Error> {
        let index = self.packets.resolve(id.index, id.generation)?;
        self.packets.get_mut(index).ok_or(Error::Stale)
    }

    /// Shows a frame to the packet sockets.
    #[cold]
    pub(crate) fn show_frame(&mut self, frame: &[u8], is_leaving: bool) {
        let (Some(to), Some(from), Some(protocol)) = (
            frame.first_chunk::<6>(),
            frame.get(6..).and_then(|rest| rest.first_chunk::<6>()),
            frame.get(12..).and_then(|rest| rest.first_chunk::<2>()),
        ) else {
            return;
        };
        let kind = match to {
            _ if is_leaving => FrameKind::Leaving,
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => FrameKind::Broadcast,
            [first, ..] if first & 1 != 0 => FrameKind::Group,
            to if *to == self.hardware => FrameKind::Host,
            _ => FrameKind::Other,
        };
        let origin = FrameOrigin { kind, from: *from, protocol: u16::from_be_bytes(*protocol), at_ns: 0 };
        for index in 0..self.packets.indexes() {
            if let Some(socket) = self.packets.get_mut(index) {
                socket.show(frame, origin);
            }
        }
    }

    /// Makes a packet socket for frames of this protocol.
    pub(crate) fn packet_open(&mut self, protocol: u16) -> Result<PacketSocketId, Error> {
        self.packets.next_index()?;
        let arrived = PacketBuffer::new(zeroed(PacketMetadata::EMPTY, MOST_FRAMES)?, zeroed(0, MOST_BYTES)?);
        let (receivers, counts) = (Waiters::default(), PacketCounts::default());
        let index = self.packets.insert(PacketSocket { protocol, arrived, receivers, clock: None, counts })?;
        Ok(PacketSocketId { index, generation: self.packets.generation(index) })
    }

    pub(crate) fn packet_close(&mut self, id: PacketSocketId) -> Result<(), Error> {
        self.packet_socket(id)?.receivers.wake_all();
        self.packets.remove(id.index);
        Ok(())
    }

    /// Sets the protocol of a packet socket's frames. Those that wait stay.
    pub(crate) fn packet_set_protocol(&mut self, id: PacketSocketId, protocol: u16) -> Result<(), Error> {
        self.packet_socket(id)?.protocol = protocol;
        Ok(())
    }

    pub(crate) fn packet_set_clock(&mut self, id: PacketSocketId, clock: Option<fn() -> u64>) -> Result<(), Error> {
        self.packet_socket(id)?.clock = clock;
        Ok(())
    }

    pub(crate) fn packet_receive<R>(
        &mut self,
        id: PacketSocketId,
        stays: bool,
        take: impl FnOnce(&FrameOrigin, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let socket = self.packet_socket(id)?;
        if stays {
            return Ok(socket.arrived.peek().ok().map(|(origin, frame)| take(origin, frame)));
        }
        Ok(socket.arrived.dequeue().ok().map(|(origin, frame)| take(&origin, frame)))
    }

    /// Takes the counts of a packet socket's frames, which begin anew.
    pub(crate) fn packet_take_counts(&mut self, id: PacketSocketId) -> Result<PacketCounts, Error> {
        Ok(core::mem::take(&mut self.packet_socket(id)?.counts))
    }

    pub(crate) fn packet_register(&mut self, id: PacketSocketId, waker: &Waker) -> Result<(), Error> {
        Ok(self.packet_socket(id)?.receivers.register(waker)?)
    }

    pub(crate) fn packet_forget(&mut self, id: PacketSocketId, waker: &Waker) {
        if let Ok(socket) = self.packet_socket(id) {
            socket.receivers.forget(waker);
        }
    }

    pub(crate) fn packet_readiness(&mut self, id: PacketSocketId) -> Result<Readiness, Error> {
        let receive = !self.packet_socket(id)?.arrived.is_empty();
        Ok(Readiness { receive, send: true, ..Readiness::default() })
    }
}

/// Frames that have left and were not shown yet.
pub(crate) struct LeavingFrames(PacketBuffer<'static, ()>);

impl LeavingFrames {
    fn new() -> Result<LeavingFrames, Error> {
        Ok(LeavingFrames(PacketBuffer::new(zeroed(PacketMetadata::EMPTY, MOST_LEAVING)?, zeroed(0, BYTES_LEAVING)?)))
    }

    /// Keeps a frame, or not if there is no room.
    fn keep(&mut self, frame: &[u8]) {
        if let Ok(room) = self.0.enqueue(frame.len(), ()) {
            room.copy_from_slice(frame);
        }
    }
}

/// A device beside which the frames that leave are kept, if anyone is to see them.
pub(crate) struct Tapped<L> {
    pub(crate) link: L,
    leaving: Option<LeavingFrames>,
}

/// The permission of such a device to send a frame.
pub(crate) struct TappedPermit<'a, L: Link + 'a> {
    permit: L::Departing<'a>,
    leaving: Option<&'a mut LeavingFrames>,
}

impl<L: Link> Departing for TappedPermit<'_, L> {
    #[inline]
    fn send<R>(self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        match self.leaving {
            None => self.permit.send(length, write),
            Some(leaving) => self.permit.send(length, |room| {
                let result = write(room);
                leaving.keep(room);
                result
            }),
        }
    }
}

impl<L> Tapped<L> {
    pub(crate) fn new(link: L) -> Tapped<L> {
        Tapped { link, leaving: None }
    }

    /// Has frames that leave kept, or not any more.
    pub(crate) fn keep_leaving(&mut self, are_kept: bool) -> Result<(), Error> {
        if !are_kept {
            self.leaving = None;
        } else if self.leaving.is_none() {
            self.leaving = Some(LeavingFrames::new()?);
        }
        Ok(())
    }

    /// Shows the frames that have left since.
    #[inline]
    pub(crate) fn show_leaving(&mut self, host: &mut Host) {
        let Some(LeavingFrames(frames)) = &mut self.leaving else { return };
        while let Ok(((), frame)) = frames.dequeue() {
            host.show_frame(frame, true);
        }
    }
}

impl<L: Link> Tapped<L> {
    /// Sends a frame of a packet socket that `fill` writes.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Invalid`] without room for a header, [`Error::Limit`] if the device is full.
    pub(crate) fn send_frame(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        if length < ETHERNET_HEADER {
            return Err(Error::Invalid);
        }
        if length > self.link.largest_frame().min(LARGEST_FRAME) {
            return Err(Error::TooLong);
        }
        self.depart().ok_or(Error::Limit)?.send(length, fill);
        self.flush();
        Ok(())
    }
}

impl<L: Link> Link for Tapped<L> {
    type Departing<'a>
        = TappedPermit<'a, L>
    where
        Self: 'a;

    fn hardware_address(&self) -> [u8; 6] {
        self.link.hardware_address()
    }

    fn largest_frame(&self) -> usize {
        self.link.largest_frame()
    }

    fn checksum_offload(&self) -> ChecksumOffload {
        self.link.checksum_offload()
    }

    #[inline]
    fn depart(&mut self) -> Option<TappedPermit<'_, L>> {
        Some(TappedPermit { permit: self.link.depart()?, leaving: self.leaving.as_mut() })
    }

    #[inline]
    fn flush(&mut self) {
        self.link.flush();
    }

    #[inline]
    fn receive_into(&mut self, room: &mut [u8]) -> Option<ReceivedFrame> {
        self.link.receive_into(room)
    }

    #[inline]
    fn take_kept(&mut self, kept: u16, room: &mut [u8]) {
        self.link.take_kept(kept, room);
    }

    #[inline]
    fn drop_kept(&mut self, kept: u16) {
        self.link.drop_kept(kept);
    }
}

/// An empty list of packet sockets, which takes no memory.
pub(crate) fn none() -> crate::slab::Slab<PacketSocket> {
    crate::slab::Slab::new(MOST_PACKET_SOCKETS)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// The bytes of a socket, and of what leaves, are those that are stated.
    #[test]
    fn a_packet_socket_takes_as_much_as_it_states() {
        const LIMIT: usize = 1 << 20;
        let is_there = |bytes: usize| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
        let is_exact = property::with_memory(LIMIT, || {
            let buffer = PacketBuffer::<FrameOrigin>::new(
                zeroed(PacketMetadata::EMPTY, MOST_FRAMES).unwrap(),
                zeroed(0, MOST_BYTES).unwrap(),
            );
            let leaving = LeavingFrames::new().unwrap();
            let left = LIMIT - (MEMORY_OF_PACKETS - size_of::<PacketSocket>());
            let is_exact = is_there(left) && !is_there(left + 1);
            drop((buffer, leaving));
            is_exact
        });
        assert!(is_exact);
    }
}
