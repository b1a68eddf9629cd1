//! Sockets of `AF_PACKET` (packet(7)): the frames of the network card, as they come and go.
//!
//! A socket of `SOCK_RAW` has whole frames; one of `SOCK_DGRAM` has what is behind their headers, and the kernel writes
//! the headers of those that it sends. Connections within the machine have no frames, so that a socket at the interface
//! `lo` receives nothing, and what is sent there goes nowhere. There are few sockets, each of which has a copy of each
//! frame; the process that makes one pays for all that it may hold.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::authority::Act;
use abi_unix::types::{self, LinkAddress, Status, epoll as event, mode, packet, socket_option as option};
use ethernet::{ETHERNET_HEADER, LARGEST_FRAME};
use memory::bytes::copy;
use network::{ALL_PROTOCOLS, FrameKind, FrameOrigin, MEMORY_OF_PACKETS, PacketSocketId};
use spin::Mutex;

use crate::files::file::{Attempt, FileOperations, OpenFile, Properties, Unit, status_without_contents};
use crate::files::message::{Arrival, MessageDetails, MessageSender, MessageSpace, Recipient};
use crate::files::sent_files::{OutgoingMessage, Receipt, ReceivedMessage};
use crate::network::addressing::{CARD, LOOPBACK};
use crate::network::interfaces;
use crate::network::stack::{STACK, with_stack};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{AddressOut, Caller, OptionOut, UserBuffer, length_of};
use crate::process::{Process, authority};
use crate::time;

/// Bytes of a hardware address.
const HARDWARE: usize = 6;
/// Protocol of sockets that receive nothing.
const NO_PROTOCOL: u16 = 0;

/// The part of a socket that changes.
struct Binding {
    protocol: u16,
    /// Number of the interface; 0 for all.
    interface: u32,
    /// The kind of control messages that tell when frames have come (`SO_TIMESTAMP`).
    tells_arrivals: Option<u32>,
}

impl Binding {
    /// Returns the protocol of the frames that it receives: only the card has any.
    fn received(&self) -> u16 {
        if self.interface == LOOPBACK { NO_PROTOCOL } else { self.protocol }
    }
}

/// A packet socket.
#[doc(alias("packet_sock", "AF_PACKET"))]
pub(crate) struct PacketSocket {
    kind: u32,
    id: PacketSocketId,
    binding: Mutex<Binding>,
    account: Arc<Account>,
    /// EVERY-BYTE: for as many frames as may wait.
    _charge: Charge,
}

impl PacketSocket {
    /// Performs the `socket` call. `EPERM` for a process that may not make raw sockets.
    pub(crate) fn new(process: &Process, kind: u32, protocol: u32) -> Result<PacketSocket, Errno> {
        authority::permit(process, Act::UseRawSockets)?;
        if !matches!(kind, types::SOCK_RAW | types::SOCK_DGRAM) {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        // In the order of the network.
        let protocol = (protocol as u16).swap_bytes();
        let charge = process.account.charge(Resource::Memory, MEMORY_OF_PACKETS)?;
        let id = with_stack(|stack, _| stack.packet_open(protocol))?;
        let binding = Mutex::new(Binding { protocol, interface: 0, tells_arrivals: None });
        Ok(PacketSocket { kind, id, binding, account: process.account.clone(), _charge: charge })
    }

    /// Returns the socket behind a file; `ENOTSOCK` for any other kind.
    pub(crate) fn of(file: &OpenFile) -> Result<&PacketSocket, Errno> {
        file.as_kind().ok_or(Errno::ENOTSOCK)
    }

    /// Reads an address. `EINVAL` for one of another family, or one that is too short.
    pub(crate) fn address_in(caller: &dyn Caller, address: usize, size: u32) -> Result<LinkAddress, Errno> {
        let mut bytes = [0; LinkAddress::SIZE];
        if (size as usize) < bytes.len() {
            return Err(Errno::EINVAL);
        }
        caller.copy_in(address, &mut bytes)?;
        LinkAddress::from_bytes(bytes).ok_or(Errno::EINVAL)
    }

    /// Returns the receiver that a program names, or none.
    pub(crate) fn recipient(caller: &dyn Caller, address: usize, size: u32) -> Result<Recipient, Errno> {
        if address == 0 {
            return Ok(Recipient::Peer);
        }
        let to = PacketSocket::address_in(caller, address, size)?;
        caller.account().admit()?;
        Ok(Recipient::Local(Arc::new(to)))
    }

    /// Performs the `bind` call. A protocol of 0 leaves the socket's.
    pub(crate) fn bind(&self, to: LinkAddress) -> Result<usize, Errno> {
        if to.interface != 0 {
            interfaces::require(to.interface)?;
        }
        let mut binding = self.binding.lock();
        binding.interface = to.interface;
        if to.protocol != 0 {
            binding.protocol = to.protocol;
        }
        with_stack(|stack, _| stack.packet_set_protocol(self.id, binding.received())).map(|()| 0)
    }

    /// Performs the `getsockname` call.
    pub(crate) fn write_address(&self, out: AddressOut, caller: &dyn Caller) -> Result<usize, Errno> {
        let (protocol, interface) = {
            let binding = self.binding.lock();
            (binding.protocol, binding.interface)
        };
        let mut told = LinkAddress { protocol, interface, ..LinkAddress::default() };
        if let Some((hardware, address)) = interfaces::hardware_of(interface) {
            (told.hardware, told.length) = (hardware, HARDWARE as u8);
            told.address[..HARDWARE].copy_from_slice(&address);
        }
        // As on Linux, as far as the hardware address.
        let length = LinkAddress::SIZE - told.address.len() + usize::from(told.length);
        out.write_bytes(caller, &told.to_bytes()[..length]).map(|()| 0)
    }

    /// Performs the `setsockopt` call.
    pub(crate) fn set_option(
        &self,
        caller: &dyn Caller,
        (level, name): (u32, u32),
        value: UserBuffer,
    ) -> Result<usize, Errno> {
        let number = value.read_number(caller)?;
        match (level, name) {
            (option::SOL_SOCKET, option::SO_RCVBUF | option::SO_SNDBUF) => {}
            (option::SOL_SOCKET, kind) if Arrival::is_kind(kind) => {
                let mut binding = self.binding.lock();
                binding.tells_arrivals = (number != 0).then_some(kind);
                let clock = binding.tells_arrivals.map(|_| time::real_time_ns as fn() -> u64);
                with_stack(|stack, _| stack.packet_set_clock(self.id, clock))?;
            }
            // The card shows what it receives; groups and other hosts' frames need no more.
            (packet::SOL_PACKET, packet::PACKET_ADD_MEMBERSHIP | packet::PACKET_DROP_MEMBERSHIP) => {
                if value.len() < 16 {
                    return Err(Errno::EINVAL);
                }
                interfaces::require(number)?;
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(0)
    }

    /// Performs the `getsockopt` call.
    pub(crate) fn get_option(&self, caller: &dyn Caller, asked: (u32, u32), out: OptionOut) -> Result<usize, Errno> {
        let number = match asked {
            (option::SOL_SOCKET, option::SO_TYPE) => self.kind,
            (option::SOL_SOCKET, option::SO_DOMAIN) => types::AF_PACKET.into(),
            (option::SOL_SOCKET, option::SO_PROTOCOL) => self.binding.lock().protocol.swap_bytes().into(),
            (option::SOL_SOCKET, option::SO_ERROR | option::SO_ACCEPTCONN) => 0,
            (option::SOL_SOCKET, option::SO_RCVBUF | option::SO_SNDBUF) => MEMORY_OF_PACKETS as u32,
            (packet::SOL_PACKET, packet::PACKET_STATISTICS) => {
                let counts = with_stack(|stack, _| stack.packet_take_counts(self.id))?;
                return out.write(caller, [counts.seen, counts.dropped].map(u32::to_le_bytes).as_flattened());
            }
            _ => return Err(Errno::ENOPROTOOPT),
        };
        out.write(caller, &number.to_le_bytes())
    }

    /// Returns the bytes of the headers that the kernel reads and writes, and the program does not.
    fn own_header(&self) -> usize {
        if self.kind == types::SOCK_RAW { 0 } else { ETHERNET_HEADER }
    }

    /// Tries to receive a frame into buffers.
    fn take(&self, memory: &dyn Caller, space: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        let tells_arrivals = self.binding.lock().tells_arrivals;
        let skipped = self.own_header();
        let mut bad = None;
        let take = |origin: &FrameOrigin, frame: &[u8]| {
            let bytes = frame.get(skipped..).unwrap_or_default();
            let count = space.copy_out(memory, bytes).unwrap_or_else(|error| {
                bad = Some(error);
                0
            });
            let arrival = tells_arrivals.map(|kind| Arrival::new(kind, origin.at_ns));
            ReceivedMessage {
                count,
                length: bytes.len(),
                sender: MessageSender::Link(sender_of(origin)),
                details: MessageDetails::of_packet(arrival, None),
                ..ReceivedMessage::default()
            }
        };
        let taken = with_stack(|stack, _| {
            let taken = stack.packet_receive_with(self.id, space.is_look(), take)?;
            if let (None, Some(waker)) = (&taken, waker) {
                stack.packet_register(self.id, waker)?;
            }
            Ok(taken)
        });
        if let Some(error) = bad {
            return Poll::Ready(Err(error));
        }
        match taken? {
            None => Poll::Pending,
            Some(message) => Poll::Ready(Ok(message)),
        }
    }

    /// Sends the buffers together as one frame, to the receiver that was named.
    fn put(&self, memory: &dyn Caller, buffers: &[UserBuffer], to: &Recipient) -> Result<usize, Errno> {
        let to: Option<&LinkAddress> = match to {
            Recipient::Local(named) => {
                let named: &(dyn Any + Send + Sync) = &**named;
                named.downcast_ref()
            }
            _ => None,
        };
        let (protocol, interface) = {
            let binding = self.binding.lock();
            match to {
                Some(to) => (to.protocol, to.interface),
                None => (binding.protocol, binding.interface),
            }
        };
        let length = length_of(buffers);
        let header = self.own_header();
        if interface == 0 || interfaces::require(interface).is_err() {
            return Err(Errno::ENXIO);
        }
        if header + length > LARGEST_FRAME {
            return Err(Errno::EMSGSIZE);
        }
        memory.account().admit()?;
        let mut frame = Vec::new();
        frame.try_reserve_exact(header + length).map_err(|_| Errno::ENOBUFS)?;
        frame.resize(header + length, 0);
        let mut rest = &mut frame[header..];
        for buffer in buffers {
            let (part, behind) = rest.split_at_mut(buffer.len());
            memory.copy_in(buffer.address(), part)?;
            rest = behind;
        }
        if header > 0 {
            let receiver = to.filter(|to| usize::from(to.length) >= HARDWARE).ok_or(Errno::EINVAL)?;
            let own = interfaces::hardware_of(interface).map_or([0; HARDWARE], |(_, own)| own);
            frame[..HARDWARE].copy_from_slice(&receiver.address[..HARDWARE]);
            frame[HARDWARE..2 * HARDWARE].copy_from_slice(&own);
            frame[2 * HARDWARE..ETHERNET_HEADER].copy_from_slice(&protocol.to_be_bytes());
        }
        if frame.len() < ETHERNET_HEADER {
            return Err(Errno::EINVAL);
        }
        if interface == CARD {
            with_stack(|stack, _| stack.packet_send_with(frame.len(), |room| copy(&frame, room)))?;
        }
        Ok(length)
    }
}

/// Returns the sender of a frame as programs see it.
fn sender_of(origin: &FrameOrigin) -> LinkAddress {
    let mut address = [0; 8];
    address[..HARDWARE].copy_from_slice(&origin.from);
    let kind = match origin.kind {
        FrameKind::Host => packet::HOST,
        FrameKind::Broadcast => packet::BROADCAST,
        FrameKind::Group => packet::MULTICAST,
        FrameKind::Other => packet::OTHER_HOST,
        FrameKind::Leaving => packet::OUTGOING,
    };
    let (protocol, hardware, length) = (origin.protocol, packet::ETHERNET, HARDWARE as u8);
    LinkAddress { protocol, interface: CARD, hardware, kind, address, length }
}

impl FileOperations for PacketSocket {
    fn properties(&self) -> Properties {
        Properties { unit: Unit::Message(LARGEST_FRAME), ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status_without_contents(mode::SOCKET | 0o777, None)
    }

    fn memory_if_closed(&self, account: &Account) -> usize {
        if core::ptr::eq(&*self.account, account) { 0 } else { MEMORY_OF_PACKETS }
    }

    fn read_all(&self, memory: &dyn Caller, buffers: &[UserBuffer], waker: Option<&Waker>) -> Attempt {
        self.take(memory, MessageSpace::new(buffers, 0, 0), waker).map_ok(|received| received.count)
    }

    fn write_all(&self, memory: &dyn Caller, buffers: &[UserBuffer], sent: &mut usize, _: Option<&Waker>) -> Attempt {
        *sent = self.put(memory, buffers, &Recipient::Peer)?;
        Poll::Ready(Ok(*sent))
    }

    fn send_message(&self, memory: &dyn Caller, message: OutgoingMessage<'_>, _: Option<&Waker>) -> Attempt {
        let (buffers, to, _, sent) = message.parts();
        *sent = self.put(memory, buffers, to)?;
        Poll::Ready(Ok(*sent))
    }

    fn receive_message(&self, memory: &dyn Caller, space: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        // There are no reports about frames.
        if space.flags() & types::message::ERRQUEUE != 0 {
            return Poll::Ready(Err(Errno::EAGAIN));
        }
        self.take(memory, space, waker)
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let readiness = with_stack(|stack, _| {
            if let Some(waker) = waker {
                stack.packet_register(self.id, waker)?;
            }
            stack.packet_readiness(self.id)
        })?;
        let input = if readiness.receive { event::IN | event::RDNORM } else { 0 };
        Ok(input | event::OUT | event::WRNORM)
    }

    fn forget_reader(&self, waker: &Waker) {
        if let Some(stack) = STACK.lock().as_mut() {
            stack.packet_forget(self.id, waker);
        }
    }

    fn unread(&self) -> Result<usize, Errno> {
        let skipped = self.own_header();
        let length = with_stack(|stack, _| stack.packet_receive_with(self.id, true, |_, frame| frame.len()))?;
        Ok(length.map_or(0, |length| length.saturating_sub(skipped)))
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        // An error means that the stack has forgotten the socket already.
        let _ = with_stack(|stack, _| stack.packet_close(self.id));
    }
}

const _: () = assert!(ALL_PROTOCOLS == 3);

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::authority::{Capability, CapabilitySet, Held};

    use super::*;
    use crate::process;
    use crate::testing::run;

    /// The end of a process takes its sockets along, also while one of them is waited at.
    #[test]
    fn a_process_is_killed_while_it_waits_for_frames() {
        run(|program| {
            // Twice as many as there may be.
            for _ in 0..16 {
                let child = program.spawn(|program| {
                    let first = process::table::find(process::FIRST).unwrap();
                    let held = Held::of(CapabilitySet::only(Capability::RawNetwork));
                    authority::give(&first, &program.process(), held).unwrap();
                    let all = usize::from(ALL_PROTOCOLS.swap_bytes());
                    let call = [types::AF_PACKET as usize, types::SOCK_RAW as usize, all];
                    let socket = program.call(SystemCall::Socket, call).unwrap();
                    let _ = program.read_from(socket, 64);
                    panic!("nothing comes");
                });
                let child = child.unwrap();
                program.sleep_ns(1_000_000);
                assert_eq!(program.call(SystemCall::Kill, [child, types::signal::KILL as usize]), Ok(0));
                assert_eq!(program.wait_for(child), Ok((child, types::signal::KILL)));
            }
        });
    }

    /// Without a card: errors, names, options, and a socket at the loopback interface, where nothing comes.
    #[test]
    fn packet_sockets_are_made_bound_and_refused() {
        run(|program| {
            let family = types::AF_PACKET as usize;
            let all = usize::from(ALL_PROTOCOLS.swap_bytes());
            let child = program.spawn(move |program| {
                let call = [family, types::SOCK_RAW as usize, all];
                assert_eq!(program.call(SystemCall::Socket, call), Err(Errno::EPERM));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let first = process::table::find(process::FIRST).unwrap();
            let held = Held::of(CapabilitySet::only(Capability::RawNetwork));
            authority::give(&first, &program.process(), held).unwrap();
            let before = program.process().account.used(Resource::Memory);
            assert_eq!(program.call(SystemCall::Socket, [family, 1, all]), Err(Errno::ESOCKTNOSUPPORT));
            let kind = (types::SOCK_RAW | types::SOCK_NONBLOCK) as usize;
            let socket = program.call(SystemCall::Socket, [family, kind, all]).unwrap();
            assert!(program.process().account.used(Resource::Memory) >= before + MEMORY_OF_PACKETS);
            let address = LinkAddress { interface: 1, ..LinkAddress::default() };
            let place = program.store(&address.to_bytes());
            assert_eq!(program.call(SystemCall::Bind, [socket, place, 19]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Bind, [socket, place, 20]), Ok(0));
            let (room, size) = (program.place(20), program.store(&20u32.to_le_bytes()));
            assert_eq!(program.call(SystemCall::GetSocketName, [socket, room, size]), Ok(0));
            assert_eq!(program.read_u32(size), 18);
            assert_eq!(program.read(room, 12), [17, 0, 0, 3, 1, 0, 0, 0, 4, 3, 0, 6]);
            for call in [SystemCall::Connect, SystemCall::Listen, SystemCall::Accept, SystemCall::GetPeerName] {
                assert_eq!(program.call(call, [socket, room, size]), Err(Errno::EOPNOTSUPP), "{}", call.name());
            }
            let other = program.store(&LinkAddress { interface: 2, ..address }.to_bytes());
            assert_eq!(program.call(SystemCall::Bind, [socket, other, 20]), Err(Errno::ENODEV));
            let of_another_family = program.store(&[2; 20]);
            assert_eq!(program.call(SystemCall::Bind, [socket, of_another_family, 20]), Err(Errno::EINVAL));
            assert_eq!(program.read_from(socket, 64), Err(Errno::EAGAIN));
            let header = program.store(&types::MessageHeader::default().to_bytes());
            let waiting = program.call(SystemCall::Socket, [family, types::SOCK_RAW as usize, all]).unwrap();
            let call = [waiting, header, types::message::ERRQUEUE as usize];
            assert_eq!(program.call(SystemCall::ReceiveMessage, call), Err(Errno::EAGAIN), "at once");
            program.close(waiting).unwrap();
            let bytes = program.place(2000);
            let send = |program: &mut crate::testing::Program, length, to| {
                program.call(SystemCall::SendTo, [socket, bytes, length, 0, to, if to == 0 { 0 } else { 20 }])
            };
            assert_eq!(send(program, 60, 0), Ok(60));
            assert_eq!(send(program, 13, 0), Err(Errno::EINVAL));
            assert_eq!(send(program, 1515, 0), Err(Errno::EMSGSIZE));
            assert_eq!(send(program, 60, other), Err(Errno::ENXIO));
            let statistics = [socket, packet::SOL_PACKET as usize, packet::PACKET_STATISTICS as usize, room, size];
            assert_eq!(program.call(SystemCall::GetSocketOption, statistics), Ok(0));
            assert_eq!((program.read(room, 8), program.read_u32(size)), (vec![0; 8], 8));
            // A socket without headers needs a receiver.
            let datagrams = program.call(SystemCall::Socket, [family, types::SOCK_DGRAM as usize, all]).unwrap();
            let call = [datagrams, bytes, 8, 0, place, 20];
            assert_eq!(program.call(SystemCall::SendTo, call), Err(Errno::EINVAL));
            let near = program.store(&LinkAddress { length: 6, protocol: 0x800, ..address }.to_bytes());
            assert_eq!(program.call(SystemCall::SendTo, [datagrams, bytes, 8, 0, near, 20]), Ok(8));
            // There are few; all memory is given back.
            let mut made = vec![socket, datagrams];
            let refused = loop {
                match program.call(SystemCall::Socket, [family, kind, all]) {
                    Ok(socket) => made.push(socket),
                    Err(error) => break error,
                }
            };
            assert_eq!((refused, made.len()), (Errno::ENOBUFS, 8));
            for socket in made {
                program.close(socket).unwrap();
            }
            assert_eq!(program.process().account.used(Resource::Memory), before);
        });
    }
}
