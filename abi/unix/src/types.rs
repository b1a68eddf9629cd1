//! Structures and constants that calls exchange, with Linux riscv64's layouts.

use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// Seconds and nanoseconds (`struct timespec`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[doc(alias = "timespec")]
pub struct TimeSpec {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanoseconds: i64,
}

impl TimeSpec {
    /// Converts nanoseconds.
    pub const fn from_ns(ns: u64) -> TimeSpec {
        TimeSpec { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as i64 }
    }

    /// Returns nanoseconds; `None` if a field is out of its range. Times too long for the type become its maximum.
    pub const fn to_ns(self) -> Option<u64> {
        if self.seconds < 0 || self.nanoseconds < 0 || self.nanoseconds > 999_999_999 {
            return None;
        }
        Some((self.seconds as u64).saturating_mul(1_000_000_000).saturating_add(self.nanoseconds as u64))
    }

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.seconds.to_le_bytes());
        bytes[8..].copy_from_slice(&self.nanoseconds.to_le_bytes());
        bytes
    }

    /// Reads the bytes as they lie in memory.
    pub fn from_bytes(bytes: [u8; 16]) -> TimeSpec {
        let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        TimeSpec { seconds: word(0), nanoseconds: word(8) }
    }
}

/// Limits (`prlimit64`): Linux's numbers, and our own from 0x1000. A limit is two 64-bit words, the one in force and
/// the largest that may be set without privilege; all ones: none.
pub mod limit {
    /// `RLIMIT_STACK`: reported, and always the same for the first worker.
    pub const STACK: u32 = 3;
    /// `RLIMIT_CORE`: bytes of its core file.
    pub const CORE: u32 = 4;
    /// `RLIMIT_NPROC`: processes that it has started, living or not waited for, with those that these have started.
    pub const PROCESSES: u32 = 6;
    /// `RLIMIT_NOFILE`: one more than its largest descriptor.
    pub const DESCRIPTORS: u32 = 7;
    /// `RLIMIT_AS`: bytes of its address space.
    pub const ADDRESS_SPACE: u32 = 9;
    /// Number of Linux's limits.
    pub const COUNT: u32 = 16;

    /// Bytes of kernel memory: page tables, and the kernel's objects for it: pipes, sockets, calls and processes.
    pub const KERNEL_MEMORY: u32 = 0x1000;
    /// Bytes of files in memory.
    pub const FILE_MEMORY: u32 = 0x1001;
    /// Asynchronous calls in flight.
    pub const CALLS_IN_FLIGHT: u32 = 0x1002;

    /// `RLIM_INFINITY`.
    pub const INFINITY: u64 = u64::MAX;
    /// Bytes of a `struct rlimit64`.
    pub const SIZE: usize = 16;

    /// Returns the bytes as they lie in memory: limit in force, and largest.
    pub fn to_bytes(soft: u64, hard: u64) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&soft.to_le_bytes());
        bytes[8..].copy_from_slice(&hard.to_le_bytes());
        bytes
    }

    /// Reads the bytes as they lie in memory.
    pub fn from_bytes(bytes: [u8; SIZE]) -> (u64, u64) {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        (word(0), word(8))
    }
}

/// Processor time in the form of Linux (`struct rusage`, `struct tms`).
pub mod usage {
    /// `RUSAGE_SELF`: the calling process.
    pub const PROCESS: i32 = 0;
    /// `RUSAGE_CHILDREN`: children that it has waited for, and theirs.
    pub const CHILDREN: i32 = -1;
    /// `RUSAGE_THREAD`: the calling worker or thread.
    pub const WORKER: i32 = 1;
    /// Unit of `struct tms` (`_SC_CLK_TCK` a second).
    pub const NS_IN_A_TICK: u64 = 10_000_000;

    /// Returns a `struct rusage` with this processor time of the program and of the kernel for it, and zeros.
    pub fn of_time(ns: [u64; 2]) -> [u8; 144] {
        let mut bytes = [0; 144];
        for (place, ns) in bytes.chunks_exact_mut(16).zip(ns) {
            place[..8].copy_from_slice(&(ns / 1_000_000_000).to_le_bytes());
            place[8..].copy_from_slice(&(ns % 1_000_000_000 / 1000).to_le_bytes());
        }
        bytes
    }

    /// Returns a `struct tms`: the time of the program and of the kernel for it, and that of its children.
    pub fn times(own_ns: [u64; 2], children_ns: [u64; 2]) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, ns) in bytes.chunks_exact_mut(8).zip(own_ns.into_iter().chain(children_ns)) {
            place.copy_from_slice(&(ns / NS_IN_A_TICK).to_le_bytes());
        }
        bytes
    }
}

/// Metadata of a file (`struct stat` of the generic architectures, 128 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)]
#[doc(alias = "stat")]
pub struct Status {
    pub device: u64,
    pub inode: u64,
    pub mode: u32,
    pub links: u32,
    pub user: u32,
    pub group: u32,
    pub represented_device: u64,
    pub padding1: u64,
    pub size: i64,
    pub block_size: i32,
    pub padding2: i32,
    pub blocks: i64,
    pub accessed: TimeSpec,
    pub modified: TimeSpec,
    pub changed: TimeSpec,
    pub reserved: [u32; 2],
}

const _: () = assert!(size_of::<Status>() == 128);
const _: () = assert!(core::mem::offset_of!(Status, size) == 48);
const _: () = assert!(core::mem::offset_of!(Status, accessed) == 72);

impl Status {
    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; 128] {
        let mut bytes = [0; 128];
        let mut at = 0;
        let mut put = |piece: &[u8]| {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        };
        put(&self.device.to_le_bytes());
        put(&self.inode.to_le_bytes());
        put(&self.mode.to_le_bytes());
        put(&self.links.to_le_bytes());
        put(&self.user.to_le_bytes());
        put(&self.group.to_le_bytes());
        put(&self.represented_device.to_le_bytes());
        put(&self.padding1.to_le_bytes());
        put(&self.size.to_le_bytes());
        put(&self.block_size.to_le_bytes());
        put(&self.padding2.to_le_bytes());
        put(&self.blocks.to_le_bytes());
        for time in [self.accessed, self.modified, self.changed] {
            put(&time.to_bytes());
        }
        bytes
    }
}

impl Status {
    /// Bytes of a `struct statx`.
    pub const EXTENDED_SIZE: usize = 256;

    /// Returns the status as a `struct statx` with the fields of `STATX_BASIC_STATS`.
    pub fn to_extended_bytes(self) -> [u8; Status::EXTENDED_SIZE] {
        const BASIC: u32 = 0x7ff;
        let mut bytes = [0; Status::EXTENDED_SIZE];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &BASIC.to_le_bytes());
        put(4, &self.block_size.to_le_bytes());
        put(16, &self.links.to_le_bytes());
        put(20, &self.user.to_le_bytes());
        put(24, &self.group.to_le_bytes());
        put(28, &(self.mode as u16).to_le_bytes());
        put(32, &self.inode.to_le_bytes());
        put(40, &self.size.to_le_bytes());
        put(48, &self.blocks.to_le_bytes());
        // Of access, making (not kept), change and modification.
        for (at, time) in [(64, self.accessed), (96, self.changed), (112, self.modified)] {
            put(at, &time.seconds.to_le_bytes());
            put(at + 8, &(time.nanoseconds as u32).to_le_bytes());
        }
        for (at, device) in [(128, self.represented_device), (136, self.device)] {
            let major = device >> 8 & 0xfff | device >> 32 & !0xfff;
            let minor = device & 0xff | device >> 12 & 0xffff_ff00;
            put(at, &(major as u32).to_le_bytes());
            put(at + 4, &(minor as u32).to_le_bytes());
        }
        bytes
    }
}

/// Bits of [`Status::mode`] that contain the type of a file.
#[allow(missing_docs)]
pub mod mode {
    pub const TYPE: u32 = 0o170000;
    pub const SOCKET: u32 = 0o140000;
    pub const LINK: u32 = 0o120000;
    pub const REGULAR: u32 = 0o100000;
    pub const BLOCK: u32 = 0o060000;
    pub const DIRECTORY: u32 = 0o040000;
    pub const CHARACTER: u32 = 0o020000;
    pub const PIPE: u32 = 0o010000;
}

/// Nice values, of which lower ones are more important.
#[allow(missing_docs)]
pub mod niceness {
    /// The call is on one process (`PRIO_PROCESS`).
    pub const OF_PROCESS: u32 = 0;
    /// The call is on the processes of a group (`PRIO_PGRP`).
    pub const OF_GROUP: u32 = 1;
    /// The call is on the processes of a user (`PRIO_USER`).
    pub const OF_USER: u32 = 2;
    pub const LOWEST: i32 = -20;
    pub const HIGHEST: i32 = 19;
}

/// Classes of scheduling (`sched_setscheduler`).
pub mod class {
    /// `SCHED_OTHER`: the nice value decides.
    pub const OTHER: u32 = 0;
    /// `SCHED_FIFO`.
    pub const FIFO: u32 = 1;
    /// `SCHED_RR`.
    pub const ROUND_ROBIN: u32 = 2;
    /// `SCHED_BATCH`.
    pub const BATCH: u32 = 3;
    /// `SCHED_IDLE`: behind all others.
    pub const IDLE: u32 = 5;
    /// `SCHED_RESET_ON_FORK`: children are of the usual class.
    pub const RESET_ON_FORK: u32 = 0x4000_0000;
    /// Greatest real-time priority; the least is 1.
    pub const GREATEST_PRIORITY: u32 = 99;

    /// Returns whether a class has real-time priorities.
    pub const fn is_real_time(class: u32) -> bool {
        matches!(class, FIFO | ROUND_ROBIN)
    }
}

/// Modes of `fallocate`.
#[allow(missing_docs)]
pub mod allocation {
    pub const KEEP_SIZE: u32 = 1;
    pub const PUNCH_HOLE: u32 = 2;
    pub const ZERO_RANGE: u32 = 16;
}

/// Flags of `splice`, `tee` and `vmsplice`.
#[allow(missing_docs)]
pub mod splicing {
    pub const NONBLOCK: u32 = 2;
    /// All that there are; the others are hints.
    pub const ALL: u32 = 15;
}

/// Commands of `ioctl` for disks (Linux: `linux/fs.h`).
#[allow(missing_docs)]
pub mod block_control {
    pub const IS_READ_ONLY: u32 = 0x125e;
    pub const SECTORS: u32 = 0x1260;
    pub const FLUSH: u32 = 0x1261;
    pub const LOGICAL_BLOCK: u32 = 0x1268;
    pub const DISCARD: u32 = 0x1277;
    pub const LEAST_TRANSFER: u32 = 0x1278;
    pub const BEST_TRANSFER: u32 = 0x1279;
    pub const ALIGNMENT: u32 = 0x127a;
    pub const PHYSICAL_BLOCK: u32 = 0x127b;
    pub const IS_ROTATIONAL: u32 = 0x127e;
    pub const FILL_WITH_ZEROS: u32 = 0x127f;
    pub const CACHE_BLOCK: u32 = 0x8008_1270;
    pub const BYTES: u32 = 0x8008_1272;
}

/// An IPv4 address and port (`struct sockaddr_in`, 16 bytes; port and address in network order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "sockaddr_in")]
pub struct SocketAddress {
    /// The address, most significant byte first.
    pub address: [u8; 4],
    /// The port, as a number.
    pub port: u16,
}

impl SocketAddress {
    /// Length of the structure in bytes.
    pub const SIZE: usize = 16;

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&AF_INET.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.address);
        bytes
    }

    /// Reads the bytes as they lie in memory; `None` if the family is not `AF_INET`.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<SocketAddress> {
        if u16::from_le_bytes([bytes[0], bytes[1]]) != AF_INET {
            return None;
        }
        Some(SocketAddress {
            port: u16::from_be_bytes([bytes[2], bytes[3]]),
            address: [bytes[4], bytes[5], bytes[6], bytes[7]],
        })
    }
}

impl From<SocketAddress> for SocketAddr {
    fn from(address: SocketAddress) -> SocketAddr {
        SocketAddrV4::new(address.address.into(), address.port).into()
    }
}

/// Bytes of the longest name of a local socket (`sun_path` of `struct sockaddr_un`).
#[doc(alias = "sockaddr_un")]
pub const LONGEST_LOCAL_NAME: usize = 108;

/// Bytes of the longest address of the network (`struct sockaddr_in6`).
pub const LONGEST_ADDRESS: usize = 28;

/// Returns an address as it lies in memory, and its length: `struct sockaddr_in` or `struct sockaddr_in6`.
#[doc(alias = "sockaddr_in6")]
pub fn bytes_of_address(address: SocketAddr) -> ([u8; LONGEST_ADDRESS], usize) {
    let mut bytes = [0; LONGEST_ADDRESS];
    match address {
        SocketAddr::V4(address) => {
            let address = SocketAddress { address: address.ip().octets(), port: address.port() };
            bytes[..SocketAddress::SIZE].copy_from_slice(&address.to_bytes());
            (bytes, SocketAddress::SIZE)
        }
        SocketAddr::V6(address) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_le_bytes());
            bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..].copy_from_slice(&address.scope_id().to_le_bytes());
            (bytes, LONGEST_ADDRESS)
        }
    }
}

/// Reads an address as it lies in memory. The scope of one of IPv6 may be missing, as in its first form (RFC 2133).
/// `None` for another family, or if there are too few bytes.
pub fn address_of_bytes(bytes: &[u8]) -> Option<SocketAddr> {
    match u16::from_le_bytes(*bytes.first_chunk()?) {
        AF_INET => {
            let address = SocketAddress::from_bytes(*bytes.first_chunk()?)?;
            Some(SocketAddrV4::new(address.address.into(), address.port).into())
        }
        AF_INET6 => {
            let address: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope =
                bytes.get(24..28).and_then(|scope| scope.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word));
            let (port, flow) = (u16::from_be_bytes([bytes[2], bytes[3]]), *bytes[4..].first_chunk()?);
            Some(SocketAddrV6::new(address.into(), port, u32::from_be_bytes(flow), scope).into())
        }
        _ => None,
    }
}

/// Address family: sockets within the machine, which exist in pairs.
pub const AF_UNIX: u16 = 1;
/// Address family: IPv4.
pub const AF_INET: u16 = 2;
/// Address family: IPv6.
pub const AF_INET6: u16 = 10;
/// Address family: requests to the kernel, of which there are those about the network (rtnetlink(7)).
pub const AF_NETLINK: u16 = 16;
/// Returns the address of a port of `AF_NETLINK` as it lies in memory (`struct sockaddr_nl`). The kernel is at port 0.
#[doc(alias = "sockaddr_nl")]
pub fn netlink_address(port: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..2].copy_from_slice(&AF_NETLINK.to_le_bytes());
    bytes[4..8].copy_from_slice(&port.to_le_bytes());
    bytes
}
/// Address family: frames of a network device (packet(7)).
pub const AF_PACKET: u16 = 17;

/// An address of `AF_PACKET` (`struct sockaddr_ll`).
#[doc(alias = "sockaddr_ll")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkAddress {
    /// Protocol of the frame, as in its header.
    pub protocol: u16,
    /// Number of the interface; 0 for any.
    pub interface: u32,
    /// Kind of the interface (`ARPHRD_ETHER`).
    pub hardware: u16,
    /// Receiver of the frame: [`packet`].
    pub kind: u8,
    /// Hardware address, and its length.
    pub address: [u8; 8],
    /// See [`address`](Self::address).
    pub length: u8,
}

impl LinkAddress {
    /// Bytes of the structure.
    pub const SIZE: usize = 20;

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..2].copy_from_slice(&AF_PACKET.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.protocol.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.interface.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.hardware.to_le_bytes());
        (bytes[10], bytes[11]) = (self.kind, self.length);
        bytes[12..].copy_from_slice(&self.address);
        bytes
    }

    /// Reads the bytes as they lie in memory. `None` for another family.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Option<LinkAddress> {
        let half = |at: usize| [bytes[at], bytes[at + 1]];
        (u16::from_le_bytes(half(0)) == AF_PACKET).then(|| LinkAddress {
            protocol: u16::from_be_bytes(half(2)),
            interface: u32::from_le_bytes(core::array::from_fn(|at| bytes[4 + at])),
            hardware: u16::from_le_bytes(half(8)),
            kind: bytes[10],
            length: bytes[11],
            address: core::array::from_fn(|at| bytes[12 + at]),
        })
    }
}

/// Receivers of frames, as [`LinkAddress::kind`] tells them, and options of sockets of `AF_PACKET`.
#[allow(missing_docs)]
pub mod packet {
    pub const HOST: u8 = 0;
    pub const BROADCAST: u8 = 1;
    pub const MULTICAST: u8 = 2;
    pub const OTHER_HOST: u8 = 3;
    pub const OUTGOING: u8 = 4;
    /// Level of the options.
    pub const SOL_PACKET: u32 = 263;
    pub const PACKET_ADD_MEMBERSHIP: u32 = 1;
    pub const PACKET_DROP_MEMBERSHIP: u32 = 2;
    /// Frames for the socket and those that were dropped, since it was read last.
    pub const PACKET_STATISTICS: u32 = 6;
    /// Kinds of interfaces.
    pub const ETHERNET: u16 = 1;
    pub const LOOPBACK: u16 = 772;
}

/// `ioctl` on sockets: what is known of an interface that is named (`struct ifreq`).
#[allow(missing_docs)]
pub mod interface_control {
    pub const GET_NAME: u32 = 0x8910;
    pub const GET_FLAGS: u32 = 0x8913;
    pub const GET_ADDRESS: u32 = 0x8915;
    pub const GET_BROADCAST: u32 = 0x8919;
    pub const GET_MASK: u32 = 0x891b;
    pub const GET_MTU: u32 = 0x8921;
    pub const GET_HARDWARE: u32 = 0x8927;
    pub const GET_INDEX: u32 = 0x8933;
    /// Bytes of the structure, and of the name at its beginning.
    pub const SIZE: usize = 40;
    pub const NAME: usize = 16;
}

/// Address family: none; `connect` with it dissolves a datagram socket's association.
pub const AF_UNSPEC: u16 = 0;
/// Kind of socket: byte stream.
pub const SOCK_STREAM: u32 = 1;
/// Kind of socket: datagrams.
pub const SOCK_DGRAM: u32 = 2;
/// Kind of socket: packets of one protocol, or messages of the kernel.
pub const SOCK_RAW: u32 = 3;
/// Kind of socket: datagrams of a connection, in their order.
pub const SOCK_SEQPACKET: u32 = 5;
/// Flag in the kind of socket: calls do not wait.
pub const SOCK_NONBLOCK: u32 = 0o4000;
/// Flag in the kind of socket: closed by `execve`.
pub const SOCK_CLOEXEC: u32 = 0o2000000;

/// Levels and names of socket options.
#[allow(missing_docs)]
pub mod socket_option {
    pub const SOL_SOCKET: u32 = 1;
    pub const SO_REUSEADDR: u32 = 2;
    pub const SO_TYPE: u32 = 3;
    pub const SO_ERROR: u32 = 4;
    pub const SO_BROADCAST: u32 = 6;
    pub const SO_SNDBUF: u32 = 7;
    pub const SO_RCVBUF: u32 = 8;
    pub const SO_KEEPALIVE: u32 = 9;
    pub const SO_LINGER: u32 = 13;
    pub const SO_REUSEPORT: u32 = 15;
    /// Receive the sender's process, user and group with each message of a local socket.
    pub const SO_PASSCRED: u32 = 16;
    pub const SO_PEERCRED: u32 = 17;
    /// The time for which calls wait for input or connections, and for room or a connection.
    pub const SO_RCVTIMEO: u32 = 20;
    pub const SO_SNDTIMEO: u32 = 21;
    /// Receive the time at which each datagram has come, as a control message of this kind: `struct timeval`, or
    /// `struct timespec`.
    pub const SO_TIMESTAMP: u32 = 29;
    pub const SO_TIMESTAMP_NEW: u32 = 63;
    pub const SO_TIMESTAMPNS: u32 = 35;
    pub const SO_TIMESTAMPNS_NEW: u32 = 64;
    pub const SO_RCVTIMEO_NEW: u32 = 66;
    pub const SO_SNDTIMEO_NEW: u32 = 67;
    pub const SO_ACCEPTCONN: u32 = 30;
    pub const SO_PROTOCOL: u32 = 38;
    pub const SO_DOMAIN: u32 = 39;
    pub const IPPROTO_IP: u32 = 0;
    /// Level `IPPROTO_IP`: packets that a raw socket sends have their header.
    pub const IP_HDRINCL: u32 = 3;
    pub const IPPROTO_ICMP: u32 = 1;
    pub const IPPROTO_ICMPV6: u32 = 58;
    /// Level of raw sockets of ICMP, and its name for the kinds of messages that are not received.
    pub const SOL_RAW: u32 = 255;
    pub const ICMP_FILTER: u32 = 1;
    /// Level `IPPROTO_ICMPV6`: as `ICMP_FILTER`.
    pub const ICMPV6_FILTER: u32 = 1;
    /// Protocol of raw sockets that receive nothing, and whose packets have their header.
    pub const IPPROTO_RAW: u32 = 255;
    /// Level `IPPROTO_IP`: the hop limit of packets that are sent, and of a received message, as a control message.
    pub const IP_TTL: u32 = 2;
    /// Level `IPPROTO_IP`: receive the options of packets.
    pub const IP_RETOPTS: u32 = 7;
    /// Level `IPPROTO_IP`: receive hop limits.
    pub const IP_RECVTTL: u32 = 12;
    /// Level `IPPROTO_IP`: report every failure that the network tells of.
    pub const IP_RECVERR: u32 = 11;
    /// Level `IPPROTO_IP`: the behaviour towards packets that are too large, [`MOST_DISCOVERY`] at most.
    pub const IP_MTU_DISCOVER: u32 = 10;
    /// Level `IPPROTO_IPV6`: as `IP_MTU_DISCOVER`.
    pub const IPV6_MTU_DISCOVER: u32 = 23;
    pub const MOST_DISCOVERY: u32 = 5;
    pub const IPPROTO_TCP: u32 = 6;
    pub const IPPROTO_IPV6: u32 = 41;
    /// Level `IPPROTO_IPV6`: the hop limit of packets that are sent.
    pub const IPV6_UNICAST_HOPS: u32 = 16;
    /// Level `IPPROTO_IPV6`: as `IP_RECVERR`.
    pub const IPV6_RECVERR: u32 = 25;
    /// Level `IPPROTO_IPV6`: as `IP_RECVTTL`.
    pub const IPV6_RECVHOPLIMIT: u32 = 51;
    /// Level `IPPROTO_IPV6`: as `IP_TTL`.
    pub const IPV6_HOPLIMIT: u32 = 52;
    /// Level `IPPROTO_IPV6`: as both, in the form of RFC 2292.
    pub const IPV6_2292HOPLIMIT: u32 = 8;
    /// Level `IPPROTO_IPV6`: `::` stands for IPv6's addresses only.
    pub const IPV6_V6ONLY: u32 = 26;
    pub const IPPROTO_UDP: u32 = 17;
    pub const TCP_NODELAY: u32 = 1;
    /// Largest data of a segment: read only.
    pub const TCP_MAXSEG: u32 = 2;
    pub const TCP_CORK: u32 = 3;
    /// Seconds of silence before the first probe.
    pub const TCP_KEEPIDLE: u32 = 4;
    /// Seconds from one probe to the next.
    pub const TCP_KEEPINTVL: u32 = 5;
    /// Probes that may go unanswered.
    pub const TCP_KEEPCNT: u32 = 6;
    /// Seconds for which connections wait for their first bytes before they are there to be accepted.
    pub const TCP_DEFER_ACCEPT: u32 = 9;
    /// A `struct tcp_info`, of which the first 104 bytes are there.
    pub const TCP_INFO: u32 = 11;
    pub const TCP_QUICKACK: u32 = 12;
    /// The name of the algorithm of congestion control.
    pub const TCP_CONGESTION: u32 = 13;
    /// Milliseconds for which sent bytes may go unanswered.
    pub const TCP_USER_TIMEOUT: u32 = 18;
}

/// Flags of `sendto`, `recvfrom`, `sendmsg`, `recvmsg`, `sendmmsg` and `recvmmsg`.
#[allow(missing_docs)]
pub mod message {
    pub const PEEK: u32 = 2;
    /// Control messages did not fit.
    pub const CTRUNC: u32 = 8;
    /// The message did not fit; asked for by a receiver that wants its whole length as the result.
    pub const TRUNC: u32 = 0x20;
    pub const DONTWAIT: u32 = 0x40;
    pub const WAITALL: u32 = 0x100;
    /// The receiver has answered lately, which the kernel need not ask.
    pub const CONFIRM: u32 = 0x800;
    /// Receive a report about a datagram that did not arrive.
    pub const ERRQUEUE: u32 = 0x2000;
    pub const NOSIGNAL: u32 = 0x4000;
    /// `recvmmsg`: wait for the first message only.
    pub const WAITFORONE: u32 = 0x1_0000;
    pub const CMSG_CLOEXEC: u32 = 0x4000_0000;
    /// Kinds of control messages of the level `SOL_SOCKET`: open files.
    pub const SCM_RIGHTS: u32 = 1;
    /// Kinds of control messages of the level `SOL_SOCKET`: the sender's process, user and group.
    pub const SCM_CREDENTIALS: u32 = 2;
    /// Most open files of one message (Linux: `SCM_MAX_FD`).
    pub const MOST_FILES: usize = 253;
    /// Origins of a report (`struct sock_extended_err`): this host, ICMP, ICMPv6.
    pub const SO_EE_ORIGIN_LOCAL: u32 = 1;
    pub const SO_EE_ORIGIN_ICMP: u32 = 2;
    pub const SO_EE_ORIGIN_ICMP6: u32 = 3;
}

/// The argument of `sendmsg` and `recvmsg` (`struct msghdr`).
#[doc(alias = "msghdr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageHeader {
    /// Address of a socket address.
    pub name: u64,
    /// Its length, or the room for it.
    pub name_length: u32,
    /// Address of the buffers (`struct iovec`).
    pub buffers: u64,
    /// Number of the buffers.
    pub count: u64,
    /// Address of the control messages.
    pub control: u64,
    /// Their length, or the room for them.
    pub control_length: u64,
    /// Flags of a received message.
    pub flags: u32,
}

impl MessageHeader {
    /// Bytes of the structure.
    pub const SIZE: usize = 56;
    /// Offset of the length of the socket address.
    pub const NAME_LENGTH: usize = 8;
    /// Offset of the length of the control messages, behind which the flags are.
    pub const CONTROL_LENGTH: usize = 40;
    /// Bytes of the structure in an array of several messages (`struct mmsghdr`), where the length of the message is
    /// behind it.
    pub const SIZE_IN_ARRAY: usize = 64;

    /// Reads the bytes as they lie in memory.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> MessageHeader {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        MessageHeader {
            name: word(0),
            name_length: word(8) as u32,
            buffers: word(16),
            count: word(24),
            control: word(32),
            control_length: word(40),
            flags: word(48) as u32,
        }
    }

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let words = [
            self.name,
            self.name_length as u64,
            self.buffers,
            self.count,
            self.control,
            self.control_length,
            self.flags as u64,
        ];
        bytes_of(words)
    }
}

/// Returns words as they lie in memory.
fn bytes_of<const WORDS: usize, const BYTES: usize>(words: [u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// `ioctl` on files of any kind.
#[allow(missing_docs)]
pub mod file_control {
    /// Unread bytes.
    pub const FIONREAD: u32 = 0x541b;
    /// Whether calls fail instead of waiting.
    pub const FIONBIO: u32 = 0x5421;
    /// Whether its owner would be told of its events.
    pub const FIOASYNC: u32 = 0x5452;
    /// `execve` does not close the descriptor.
    pub const FIONCLEX: u32 = 0x5450;
    /// `execve` closes the descriptor.
    pub const FIOCLEX: u32 = 0x5451;
}

/// `shutdown`: no more receiving.
pub const SHUT_RD: u32 = 0;
/// `shutdown`: no more sending.
pub const SHUT_WR: u32 = 1;
/// `shutdown`: both.
pub const SHUT_RDWR: u32 = 2;

/// File systems and their mounts: the numbers and the layout of `mount`, `umount2` and `statfs`.
pub mod mounting {
    /// Flags of `mount`.
    #[allow(missing_docs)]
    pub mod flag {
        pub const READ_ONLY: u32 = 1;
        pub const NO_SET_USER: u32 = 1 << 1;
        pub const NO_DEVICES: u32 = 1 << 2;
        pub const NO_EXECUTION: u32 = 1 << 3;
        pub const REMOUNT: u32 = 1 << 5;
        pub const BIND: u32 = 1 << 12;
        pub const MOVE: u32 = 1 << 13;
        pub const RECURSIVE: u32 = 1 << 14;
        pub const UNBINDABLE: u32 = 1 << 17;
        pub const PRIVATE: u32 = 1 << 18;
        pub const SLAVE: u32 = 1 << 19;
        pub const SHARED: u32 = 1 << 20;
    }

    /// Upper half of the flags in programs that were written for Linux before 2.4, and its mask.
    pub const OLD: (u32, u32) = (0xc0ed_0000, 0xffff_0000);

    /// Flags of `umount2`.
    #[allow(missing_docs)]
    pub mod removal {
        pub const FORCE: u32 = 1;
        pub const DETACH: u32 = 2;
        pub const NOFOLLOW: u32 = 8;
    }

    /// Number of tmpfs in `struct statfs`.
    pub const TMPFS_MAGIC: u64 = 0x0102_1994;
    /// Number of proc.
    pub const PROC_MAGIC: u64 = 0x9fa0;
    /// Number of the file system with queues of messages.
    pub const MQUEUE_MAGIC: u64 = 0x1980_0202;
    /// Number of ext4.
    pub const EXT4_MAGIC: u64 = 0xef53;
    /// `magic` of a folder of the host, by 9P.
    pub const HOST_MAGIC: u64 = 0x0102_1997;
    /// Number of pipes.
    pub const PIPE_MAGIC: u64 = 0x5049_5045;
    /// Number of sockets.
    pub const SOCKET_MAGIC: u64 = 0x534f_434b;
    /// Number of objects without a type of file.
    pub const ANONYMOUS_MAGIC: u64 = 0x0904_1934;
    /// Flag of `struct statfs`: the flags mean something.
    pub const VALID: u64 = 0x20;

    /// The contents of `struct statfs`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[doc(alias = "statfs")]
    pub struct Statistics {
        /// Kind of the file system.
        pub magic: u64,
        /// Size of a block in bytes.
        pub block_size: u64,
        /// Number of blocks.
        pub blocks: u64,
        /// Number of free ones.
        pub free_blocks: u64,
        /// Number of files that there can be.
        pub files: u64,
        /// Number of files that can still be made.
        pub free_files: u64,
        /// Number of the file system.
        pub number: u64,
        /// Length of the longest name.
        pub longest_name: u64,
        /// Flags of its mount.
        pub flags: u64,
    }

    impl Statistics {
        /// Size of `struct statfs`.
        pub const SIZE: usize = 120;

        /// Returns the layout of Linux. Every free block is available to everybody.
        pub fn to_bytes(self) -> [u8; Self::SIZE] {
            let words = [
                self.magic,
                self.block_size,
                self.blocks,
                self.free_blocks,
                self.free_blocks,
                self.files,
                self.free_files,
                self.number,
                self.longest_name,
                self.block_size,
                self.flags,
            ];
            super::bytes_of(words)
        }
    }
}

/// Flags of `openat`, and of `fcntl(F_SETFL)`.
#[allow(missing_docs)]
pub mod open {
    pub const ACCESS_MODE: u32 = 3;
    pub const RDONLY: u32 = 0;
    pub const WRONLY: u32 = 1;
    pub const RDWR: u32 = 2;
    pub const CREAT: u32 = 0o100;
    pub const EXCL: u32 = 0o200;
    pub const NOCTTY: u32 = 0o400;
    pub const TRUNC: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
    pub const DSYNC: u32 = 0o10000;
    pub const DIRECT: u32 = 0o40000;
    pub const SYNC: u32 = 0o4_010_000;
    pub const NONBLOCK: u32 = 0o4000;
    pub const ASYNC: u32 = 0o20000;
    pub const DIRECTORY: u32 = 0o200000;
    pub const NOFOLLOW: u32 = 0o400000;
    pub const CLOEXEC: u32 = 0o2000000;
}

/// `dirfd` that means the working directory.
pub const AT_FDCWD: i32 = -100;
/// `newfstatat`: describe a symbolic link itself.
pub const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
/// `unlinkat`: remove a directory.
pub const AT_REMOVEDIR: u32 = 0x200;
/// `newfstatat`: with an empty path, describe the descriptor itself.
pub const AT_EMPTY_PATH: u32 = 0x1000;
/// Flag of `close_range`: let `execve` close the descriptors.
pub const CLOSE_RANGE_CLOEXEC: u32 = 4;
/// Flag of `faccessat2`: ask for the effective user, who is the real one.
pub const AT_EACCESS: u32 = 0x200;
/// Nanoseconds of `utimensat` that stand for the present time.
pub const UTIME_NOW: i64 = 0x3fff_ffff;
/// Nanoseconds of `utimensat` that leave a time as it is.
pub const UTIME_OMIT: i64 = 0x3fff_fffe;
/// Flag of `newfstatat` and `statx`, without effect.
pub const AT_NO_AUTOMOUNT: u32 = 0x800;

/// Flags of `msync`.
#[allow(missing_docs)]
pub mod memory_synchronisation {
    pub const ASYNC: u32 = 1;
    pub const INVALIDATE: u32 = 2;
    pub const SYNC: u32 = 4;
}

/// Segments of shared memory (`shmget` and its kin).
#[allow(missing_docs)]
pub mod segment {
    /// `IPC_PRIVATE`: the key of a segment that is found by its number alone.
    pub const PRIVATE: i32 = 0;
    /// `IPC_CREAT`.
    pub const CREATE: u32 = 0o1000;
    /// `IPC_EXCL`.
    pub const EXCLUSIVE: u32 = 0o2000;
    /// `SHM_NORESERVE`: memory is promised only, as always.
    pub const NORESERVE: u32 = 0o10000;
    /// `IPC_RMID`.
    pub const REMOVE: u32 = 0;
    /// `IPC_SET`.
    pub const SET: u32 = 1;
    /// `IPC_STAT`.
    pub const STATUS: u32 = 2;
    /// `SHM_LOCK`.
    pub const LOCK: u32 = 11;
    /// `SHM_UNLOCK`.
    pub const UNLOCK: u32 = 12;
    /// `SHM_RDONLY`.
    pub const READ_ONLY: u32 = 0o10000;
    /// `SHM_RND`: the address is rounded down to a page.
    pub const ROUND: u32 = 0o20000;
    /// `SHM_REMAP`: it takes the place of what is mapped there.
    pub const REMAP: u32 = 0o40000;
    /// `SHM_EXEC`.
    pub const EXECUTE: u32 = 0o100000;
    /// `SHM_DEST`, in the mode: it was removed.
    pub const IS_REMOVED: u32 = 0o1000;

    /// The status of a segment, for `IPC_STAT` (`struct shmid64_ds`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SegmentStatus {
        pub key: i32,
        pub user: u32,
        pub group: u32,
        pub mode: u32,
        /// Bytes that were asked for.
        pub size: u64,
        /// Times in seconds of the last mapping, of the last unmapping, and of the last change.
        pub attached: u64,
        pub detached: u64,
        pub changed: u64,
        /// Numbers of the process that has made it, and of the last one that has mapped or unmapped it.
        pub maker: u32,
        pub last: u32,
        pub mappings: u64,
    }

    impl SegmentStatus {
        pub const SIZE: usize = 112;

        /// Returns the bytes as they lie in memory. Those who have made it are its owners, too.
        pub fn to_bytes(&self) -> [u8; SegmentStatus::SIZE] {
            let mut bytes = [0; SegmentStatus::SIZE];
            let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
            put(0, &self.key.to_le_bytes());
            put(4, &self.user.to_le_bytes());
            put(8, &self.group.to_le_bytes());
            put(20, &self.mode.to_le_bytes());
            put(48, &self.size.to_le_bytes());
            put(56, &self.attached.to_le_bytes());
            put(64, &self.detached.to_le_bytes());
            put(72, &self.changed.to_le_bytes());
            put(80, &self.maker.to_le_bytes());
            put(84, &self.last.to_le_bytes());
            put(88, &self.mappings.to_le_bytes());
            bytes
        }

        /// Reads the bytes as they lie in memory.
        pub fn from_bytes(bytes: &[u8; SegmentStatus::SIZE]) -> SegmentStatus {
            let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            SegmentStatus {
                key: word(0) as i32,
                user: word(4),
                group: word(8),
                mode: word(20),
                size: long(48),
                attached: long(56),
                detached: long(64),
                changed: long(72),
                maker: word(80),
                last: word(84),
                mappings: long(88),
            }
        }
    }
}

/// Queues of messages (`mq_open` and its kin).
pub mod message_queue {
    /// Bytes of the longest name, without a NUL.
    pub const LONGEST_NAME: usize = 255;
    /// Number of queues that processes without `CAP_SYS_RESOURCE` can make (`queues_max`), at first.
    pub const USUAL_MOST_QUEUES: usize = 256;
    /// Greatest number of messages in a queue of such a process (`msg_max`), at first.
    pub const USUAL_MOST_MESSAGES: usize = 10;
    /// Greatest number of messages in any queue.
    pub const MOST_MESSAGES: usize = 32;
    /// The least number of bytes to which the largest message can be limited (`msgsize_max`).
    pub const LEAST_LARGEST_MESSAGE: usize = 128;
    /// Bytes of the largest message in any queue.
    pub const LARGEST_MESSAGE: usize = 8192;
    /// Messages of a queue whose maker has not chosen (`msg_default`), at first.
    pub const DEFAULT_MESSAGES: usize = 10;
    /// Bytes of its largest message (`msgsize_default`), at first.
    pub const DEFAULT_SIZE: usize = 8192;
    /// The greatest priority of a message.
    pub const GREATEST_PRIORITY: u32 = 32767;

    /// Attributes of a queue (`struct mq_attr`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[doc(alias = "mq_attr")]
    pub struct Attributes {
        /// 0 or `O_NONBLOCK`.
        pub flags: i64,
        /// Greatest number of messages.
        pub most: i64,
        /// Bytes of the largest message.
        pub size: i64,
        /// Number of messages that are there.
        pub present: i64,
    }

    impl Attributes {
        /// Bytes of the structure, whose second half is not used.
        pub const SIZE: usize = 64;

        /// Reads the structure.
        pub fn from_bytes(bytes: &[u8; Attributes::SIZE]) -> Attributes {
            let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
            Attributes { flags: word(0), most: word(1), size: word(2), present: word(3) }
        }

        /// Returns the bytes of the structure.
        pub fn to_bytes(self) -> [u8; Attributes::SIZE] {
            let mut bytes = [0; Attributes::SIZE];
            let words = [self.flags, self.most, self.size, self.present];
            for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            bytes
        }
    }
}

/// Sets of semaphores (`semget` and its kin). Their flags and some commands are those of [`segment`].
#[allow(missing_docs)]
pub mod semaphore {
    /// `IPC_NOWAIT`.
    pub const MUST_NOT_WAIT: u16 = 0o4000;
    /// `SEM_UNDO`.
    pub const UNDO: u16 = 0x1000;
    /// `GETPID`.
    pub const GET_LAST: u32 = 11;
    /// `GETVAL`.
    pub const GET_VALUE: u32 = 12;
    /// `GETALL`.
    pub const GET_ALL: u32 = 13;
    /// `GETNCNT`.
    pub const GET_WAITING_FOR_MORE: u32 = 14;
    /// `GETZCNT`.
    pub const GET_WAITING_FOR_ZERO: u32 = 15;
    /// `SETVAL`.
    pub const SET_VALUE: u32 = 16;
    /// `SETALL`.
    pub const SET_ALL: u32 = 17;
    /// Greatest number of operations of a call. (`SEMOPM` is 500 on Linux.)
    pub const MOST_OPERATIONS: usize = 256;
    /// Greatest number of semaphores of a set. (`SEMMSL` is 32,000 on Linux.)
    pub const MOST_OF_A_SET: usize = 4096;
    /// Greatest value (`SEMVMX`).
    pub const GREATEST_VALUE: u16 = 32767;

    /// An operation (`struct sembuf`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SemaphoreOperation {
        pub index: u16,
        pub change: i16,
        pub flags: u16,
    }

    impl SemaphoreOperation {
        pub const SIZE: usize = 6;

        /// Reads the bytes as they lie in memory.
        pub fn from_bytes(bytes: &[u8; SemaphoreOperation::SIZE]) -> SemaphoreOperation {
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            SemaphoreOperation { index: half(0), change: half(2) as i16, flags: half(4) }
        }

        /// Returns whether the end of the process takes it back.
        pub const fn is_owed(&self) -> bool {
            self.flags & UNDO != 0 && self.change != 0
        }

        /// Returns whether it fails instead of waiting.
        pub const fn must_not_wait(&self) -> bool {
            self.flags & MUST_NOT_WAIT != 0
        }
    }

    /// The status of a set, for `IPC_STAT` (`struct semid64_ds`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SetStatus {
        pub key: i32,
        pub user: u32,
        pub group: u32,
        pub mode: u32,
        /// Times in seconds of the last operation and of the last change.
        pub operated: u64,
        pub changed: u64,
        pub count: u64,
    }

    impl SetStatus {
        pub const SIZE: usize = 88;

        /// Returns the bytes as they lie in memory.
        pub fn to_bytes(&self) -> [u8; SetStatus::SIZE] {
            let mut bytes = [0; SetStatus::SIZE];
            let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
            put(0, &self.key.to_le_bytes());
            put(4, &self.user.to_le_bytes());
            put(8, &self.group.to_le_bytes());
            put(20, &self.mode.to_le_bytes());
            put(48, &self.operated.to_le_bytes());
            put(56, &self.changed.to_le_bytes());
            put(64, &self.count.to_le_bytes());
            bytes
        }

        /// Reads the bytes as they lie in memory.
        pub fn from_bytes(bytes: &[u8; SetStatus::SIZE]) -> SetStatus {
            let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            SetStatus {
                key: word(0) as i32,
                user: word(4),
                group: word(8),
                mode: word(20),
                operated: long(48),
                changed: long(56),
                count: long(64),
            }
        }
    }
}

/// Commands of `membarrier`.
pub mod memory_barrier {
    /// `MEMBARRIER_CMD_QUERY`.
    pub const QUERY: u32 = 0;
    /// `MEMBARRIER_CMD_GLOBAL`.
    pub const GLOBAL: u32 = 1;
    /// `MEMBARRIER_CMD_PRIVATE_EXPEDITED`.
    pub const PRIVATE: u32 = 8;
    /// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`.
    pub const REGISTER_PRIVATE: u32 = 16;
    /// `MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE`.
    pub const PRIVATE_INSTRUCTIONS: u32 = 32;
    /// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE`.
    pub const REGISTER_PRIVATE_INSTRUCTIONS: u32 = 64;
    /// `MEMBARRIER_CMD_GET_REGISTRATIONS`.
    pub const REGISTRATIONS: u32 = 512;
}

/// Flags of `mlock2` and `mlockall`.
#[allow(missing_docs)]
pub mod memory_lock {
    /// `mlock2`: pages are kept when they are made.
    pub const ON_FAULT: u32 = 1;
    pub const CURRENT: u32 = 1;
    pub const FUTURE: u32 = 2;
    pub const ALL_ON_FAULT: u32 = 4;
}

/// Flags of `sync_file_range`: all that there are.
pub const SYNC_FILE_RANGE: u32 = 7;

/// Flags of `preadv2` and `pwritev2`: a hint to be quick (`RWF_HIPRI`).
pub const RWF_HIPRI: u32 = 1;

/// Flag of `riscv_flush_icache`: the calling thread alone.
pub const FLUSH_INSTRUCTIONS_LOCALLY: usize = 1;

/// Advice of `madvise`.
#[allow(missing_docs)]
pub mod advice {
    pub const DONTNEED: u32 = 4;
    pub const DONTDUMP: u32 = 16;
    pub const DODUMP: u32 = 17;
    /// Advice that has no effect.
    pub const WITHOUT_EFFECT: [u32; 12] = [0, 1, 2, 3, 8, 11, 12, 13, 14, 15, 20, 21];
    /// The last advice of `fadvise64`.
    pub const LAST_OF_FILES: u32 = 5;
}

/// Commands of `fcntl`.
#[allow(missing_docs)]
pub mod control {
    pub const DUPFD: u32 = 0;
    pub const GETFD: u32 = 1;
    pub const SETFD: u32 = 2;
    pub const GETFL: u32 = 3;
    pub const SETFL: u32 = 4;
    pub const GETLK: u32 = 5;
    pub const SETLK: u32 = 6;
    pub const SETLKW: u32 = 7;
    pub const SETOWN: u32 = 8;
    pub const GETOWN: u32 = 9;
    pub const SETSIG: u32 = 10;
    pub const GETSIG: u32 = 11;
    pub const SETOWN_EX: u32 = 15;
    pub const GETOWN_EX: u32 = 16;
    /// Kinds of owners (`struct f_owner_ex`, with a number behind the kind).
    pub const OWNER_THREAD: i32 = 0;
    pub const OWNER_PROCESS: i32 = 1;
    pub const OWNER_GROUP: i32 = 2;
    /// The greatest number that `SETSIG` takes.
    pub const LAST_SIGNAL: u32 = 64;
    pub const OFD_GETLK: u32 = 36;
    pub const OFD_SETLK: u32 = 37;
    pub const OFD_SETLKW: u32 = 38;
    pub const DUPFD_CLOEXEC: u32 = 1030;
    /// `F_SETPIPE_SZ`.
    pub const SET_CAPACITY: u32 = 1031;
    /// `F_GETPIPE_SZ`.
    pub const GET_CAPACITY: u32 = 1032;
    pub const ADD_SEALS: u32 = 1033;
    pub const GET_SEALS: u32 = 1034;
    pub const FD_CLOEXEC: u32 = 1;
}

/// `mremap`.
pub mod remapping {
    /// The mapping may go elsewhere.
    pub const MAY_MOVE: u32 = 1;
    /// It goes to the given address, and replaces what is there.
    pub const FIXED: u32 = 1 << 1;
}

/// `memfd_create`.
pub mod memory_file {
    /// `execve` closes the descriptor.
    pub const CLOEXEC: u32 = 1;
    /// Seals can be added.
    pub const ALLOW_SEALING: u32 = 1 << 1;
    /// The file can be executed, as it can without this flag.
    pub const EXECUTE: u32 = 1 << 4;
    /// Bytes of the longest name.
    pub const LONGEST_NAME: usize = 249;
}

/// Options of `prctl`.
#[allow(missing_docs)]
pub mod process_control {
    pub const SET_PDEATHSIG: u32 = 1;
    pub const GET_PDEATHSIG: u32 = 2;
    pub const GET_DUMPABLE: u32 = 3;
    pub const SET_DUMPABLE: u32 = 4;
    pub const GET_KEEPCAPS: u32 = 7;
    pub const SET_KEEPCAPS: u32 = 8;
    pub const SET_NAME: u32 = 15;
    pub const GET_NAME: u32 = 16;
    pub const SET_TIMERSLACK: u32 = 29;
    pub const GET_TIMERSLACK: u32 = 30;
    pub const SET_CHILD_SUBREAPER: u32 = 36;
    pub const GET_CHILD_SUBREAPER: u32 = 37;
    pub const SET_NO_NEW_PRIVS: u32 = 38;
    pub const GET_NO_NEW_PRIVS: u32 = 39;
    /// Bytes of a name, with the NUL.
    pub const NAME: usize = 16;
    /// The usual slack of timers.
    pub const TIMERSLACK_NS: u64 = 50_000;
}

/// Locks on files.
pub mod lock {
    /// `flock`: a lock that several can have.
    pub const SHARED: u32 = 1;
    /// `flock`: a lock that one can have.
    pub const EXCLUSIVE: u32 = 2;
    /// `flock`: the call does not wait.
    pub const NON_BLOCKING: u32 = 4;
    /// `flock`: no lock.
    pub const UNLOCK: u32 = 8;

    /// The locks of two holders on one byte.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// Several can have it (`F_RDLCK`).
        Read,
        /// One can have it, and no other has one to read (`F_WRLCK`).
        Write,
    }

    /// `F_UNLCK`.
    pub const NO_LOCK: u16 = 2;

    impl Kind {
        /// Returns the number in a `struct flock`.
        pub const fn number(self) -> u16 {
            match self {
                Kind::Read => 0,
                Kind::Write => 1,
            }
        }
    }

    /// A lock on a range of bytes, Linux's `struct flock`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Record {
        /// Number of a [`Kind`], or [`NO_LOCK`].
        pub kind: u16,
        /// Origin of `start`, as of `lseek`.
        pub whence: u16,
        /// Start of the range.
        pub start: i64,
        /// Bytes of the range: before the start if it is negative, to the end if it is 0.
        pub length: i64,
        /// The process that has it; -1 for an open file.
        pub process: i32,
    }

    impl Record {
        /// Bytes of the structure.
        pub const SIZE: usize = 32;

        /// Reads the structure.
        pub fn from_bytes(bytes: &[u8; Record::SIZE]) -> Record {
            let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            Record { kind: half(0), whence: half(2), start: word(8), length: word(16), process: word(24) as i32 }
        }

        /// Returns the bytes of the structure.
        pub fn to_bytes(self) -> [u8; Record::SIZE] {
            let mut bytes = [0; Record::SIZE];
            bytes[..2].copy_from_slice(&self.kind.to_le_bytes());
            bytes[2..4].copy_from_slice(&self.whence.to_le_bytes());
            bytes[8..16].copy_from_slice(&self.start.to_le_bytes());
            bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
            bytes[24..28].copy_from_slice(&self.process.to_le_bytes());
            bytes
        }

        /// Returns the kind of lock, `None` to unlock; `EINVAL` for an unknown number.
        pub const fn wanted(self) -> Result<Option<Kind>, crate::Errno> {
            match self.kind {
                0 => Ok(Some(Kind::Read)),
                1 => Ok(Some(Kind::Write)),
                NO_LOCK => Ok(None),
                _ => Err(crate::Errno::EINVAL),
            }
        }
    }
}

/// `lseek`: from the start.
pub const SEEK_SET: u32 = 0;
/// `lseek`: from the position.
pub const SEEK_CUR: u32 = 1;
/// `lseek`: from the end.
pub const SEEK_END: u32 = 2;
/// `lseek`: to the next byte that is in no hole.
pub const SEEK_DATA: u32 = 3;
/// `lseek`: to the next byte that is in a hole, or to the end.
pub const SEEK_HOLE: u32 = 4;

/// Protection bits of `mmap` and `mprotect`.
#[allow(missing_docs)]
pub mod protection {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const EXECUTE: u32 = 4;
}

/// Flags of `mmap`.
#[allow(missing_docs)]
pub mod mapping {
    pub const SHARED: u32 = 1;
    pub const PRIVATE: u32 = 2;
    pub const FIXED: u32 = 0x10;
    pub const ANONYMOUS: u32 = 0x20;
    /// Ignored, as on Linux.
    pub const DENY_WRITE: u32 = 0x800;
    /// Ignored, as on Linux.
    pub const EXECUTABLE: u32 = 0x1000;
    /// Ignored: pages are never written to a disk.
    pub const LOCKED: u32 = 0x2000;
    pub const NORESERVE: u32 = 0x4000;
    pub const POPULATE: u32 = 0x8000;
    pub const STACK: u32 = 0x20000;
    pub const FIXED_NOREPLACE: u32 = 0x100000;
}

/// Clocks of `clock_gettime`.
#[allow(missing_docs)]
pub mod clock {
    pub const REALTIME: u32 = 0;
    pub const MONOTONIC: u32 = 1;
    pub const PROCESS_CPUTIME: u32 = 2;
    pub const THREAD_CPUTIME: u32 = 3;
    pub const MONOTONIC_RAW: u32 = 4;
    pub const REALTIME_COARSE: u32 = 5;
    pub const MONOTONIC_COARSE: u32 = 6;
    pub const BOOTTIME: u32 = 7;
    /// `clock_nanosleep`: the time is absolute.
    pub const TIMER_ABSTIME: u32 = 1;
}

/// Timers: the next expiration and the interval between expirations, and the ways to tell of them.
pub mod timer {
    use super::TimeSpec;

    /// `setitimer`: the time that passes, with `SIGALRM`.
    pub const REAL: u32 = 0;
    /// `setitimer`: processor time of the program, with `SIGVTALRM`.
    pub const VIRTUAL: u32 = 1;
    /// `setitimer`: processor time of program and kernel, with `SIGPROF`.
    pub const PROFILE: u32 = 2;
    /// The time is absolute (`TIMER_ABSTIME`, `TFD_TIMER_ABSTIME`).
    pub const ABSOLUTE: u32 = 1;
    /// `TFD_TIMER_CANCEL_ON_SET`.
    pub const CANCEL_ON_SET: u32 = 2;

    /// Times of a timer, in nanoseconds.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Setting {
        /// Time to the next expiration, or of it; 0: never.
        pub value_ns: u64,
        /// Time between expirations; 0: there is one.
        pub interval_ns: u64,
    }

    impl Setting {
        /// Bytes of a `struct itimerspec` and of a `struct itimerval`.
        pub const SIZE: usize = 32;

        fn pair(bytes: &[u8; Setting::SIZE]) -> [TimeSpec; 2] {
            [0, 16].map(|at| TimeSpec::from_bytes(core::array::from_fn(|index| bytes[at + index])))
        }

        fn bytes([interval, value]: [TimeSpec; 2]) -> [u8; Setting::SIZE] {
            let (interval, value) = (interval.to_bytes(), value.to_bytes());
            core::array::from_fn(|at| if at < 16 { interval[at] } else { value[at - 16] })
        }

        /// Reads a `struct itimerspec`; `None` if a field is out of its range.
        pub fn from_spec(bytes: &[u8; Setting::SIZE]) -> Option<Setting> {
            let [interval, value] = Setting::pair(bytes);
            Some(Setting { value_ns: value.to_ns()?, interval_ns: interval.to_ns()? })
        }

        /// Returns a `struct itimerspec`.
        pub fn to_spec(self) -> [u8; Setting::SIZE] {
            Setting::bytes([self.interval_ns, self.value_ns].map(TimeSpec::from_ns))
        }

        /// Reads a `struct itimerval`, which has microseconds; `None` if a field is out of its range.
        pub fn from_val(bytes: &[u8; Setting::SIZE]) -> Option<Setting> {
            let [interval, value] = Setting::pair(bytes).map(|time| {
                let microseconds = u32::try_from(time.nanoseconds).ok()?;
                TimeSpec { nanoseconds: i64::from(microseconds) * 1000, ..time }.to_ns()
            });
            Some(Setting { value_ns: value?, interval_ns: interval? })
        }

        /// Returns a `struct itimerval`. Parts of a microsecond count as a whole one: a time that is left is not 0.
        pub fn to_val(self) -> [u8; Setting::SIZE] {
            Setting::bytes([self.interval_ns, self.value_ns].map(|ns| {
                let time = TimeSpec::from_ns(ns.div_ceil(1000).saturating_mul(1000));
                TimeSpec { nanoseconds: time.nanoseconds / 1000, ..time }
            }))
        }
    }

    /// Bytes of a `struct sigevent`.
    pub const NOTIFICATION: usize = 64;

    /// The way in which a timer of `timer_create` tells of its expirations, Linux's `struct sigevent`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Notification {
        /// `sigev_value`.
        pub value: u64,
        /// `sigev_signo`.
        pub signal: u32,
        /// `sigev_notify`; one of the constants here.
        pub kind: u32,
        /// Number of the thread that gets the signal, for [`Notification::THREAD_ID`].
        pub thread: u32,
    }

    impl Notification {
        /// A signal to the process.
        pub const SIGNAL: u32 = 0;
        /// Nothing.
        pub const NONE: u32 = 1;
        /// A signal, after which the C library calls a function.
        pub const THREAD: u32 = 2;
        /// With [`Notification::SIGNAL`]: to one thread.
        pub const THREAD_ID: u32 = 4;

        /// Reads the structure.
        pub fn from_bytes(bytes: &[u8; NOTIFICATION]) -> Notification {
            let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            let value = u64::from(word(0)) | u64::from(word(4)) << 32;
            Notification { value, signal: word(8), kind: word(12), thread: word(16) }
        }

        /// Returns the bytes of the structure.
        pub fn to_bytes(self) -> [u8; NOTIFICATION] {
            let mut bytes = [0; NOTIFICATION];
            bytes[..8].copy_from_slice(&self.value.to_le_bytes());
            for (at, word) in [(8, self.signal), (12, self.kind), (16, self.thread)] {
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            bytes
        }
    }
}

/// Flags of `clone`; the lowest byte is a signal number.
#[allow(missing_docs)]
pub mod clone {
    pub const SIGNAL: u64 = 0xff;
    pub const VM: u64 = 0x100;
    pub const FS: u64 = 0x200;
    pub const FILES: u64 = 0x400;
    pub const SIGHAND: u64 = 0x800;
    pub const PIDFD: u64 = 0x1000;
    pub const VFORK: u64 = 0x4000;
    pub const PARENT: u64 = 0x8000;
    pub const THREAD: u64 = 0x1_0000;
    pub const NEWNS: u64 = 0x2_0000;
    pub const SYSVSEM: u64 = 0x4_0000;
    pub const SETTLS: u64 = 0x8_0000;
    pub const PARENT_SETTID: u64 = 0x10_0000;
    pub const CHILD_CLEARTID: u64 = 0x20_0000;
    pub const DETACHED: u64 = 0x40_0000;
    pub const CHILD_SETTID: u64 = 0x100_0000;
    /// Handlers of signals are forgotten; of `clone3` only.
    pub const CLEAR_SIGHAND: u64 = 1 << 32;
    /// Things that threads share.
    pub const SHARED: u64 = VM | FS | FILES | SIGHAND | THREAD;
    /// Flags with which a thread may start.
    pub const OF_THREADS: u64 = SHARED | SYSVSEM | SETTLS | PARENT_SETTID | CHILD_CLEARTID | DETACHED | CHILD_SETTID;

    /// Arguments of `clone3`, Linux's `struct clone_args`: words in this order.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Arguments {
        /// Flags, without a signal.
        pub flags: u64,
        /// Address for a descriptor of the process.
        pub process_descriptor: u64,
        /// Address for the number in the memory of the child.
        pub child: u64,
        /// Address for the number in the memory of the parent.
        pub parent: u64,
        /// Signal that the end of the child sends.
        pub exit_signal: u64,
        /// Lowest address of the stack.
        pub stack: u64,
        /// Bytes of the stack.
        pub stack_size: u64,
        /// Thread pointer.
        pub thread_pointer: u64,
        /// Address of the numbers that it is to have.
        pub numbers: u64,
        /// Count of these.
        pub number_count: u64,
        /// Descriptor of a control group.
        pub control_group: u64,
    }

    const _: () = assert!(size_of::<Arguments>() == Arguments::SIZE);

    impl Arguments {
        /// Bytes of the structure.
        pub const SIZE: usize = 88;
        /// Bytes of its first version.
        pub const LEAST: usize = 64;

        /// Reads the structure from its bytes; those of a shorter one are followed by zeros.
        pub fn from_bytes(bytes: &[u8; Arguments::SIZE]) -> Arguments {
            let (words, _) = bytes.as_chunks::<8>();
            let word = |at: usize| u64::from_le_bytes(words[at]);
            Arguments {
                flags: word(0),
                process_descriptor: word(1),
                child: word(2),
                parent: word(3),
                exit_signal: word(4),
                stack: word(5),
                stack_size: word(6),
                thread_pointer: word(7),
                numbers: word(8),
                number_count: word(9),
                control_group: word(10),
            }
        }

        /// Returns the bytes of the structure.
        pub fn to_bytes(self) -> [u8; Arguments::SIZE] {
            let words = [
                self.flags,
                self.process_descriptor,
                self.child,
                self.parent,
                self.exit_signal,
                self.stack,
                self.stack_size,
                self.thread_pointer,
                self.numbers,
                self.number_count,
                self.control_group,
            ];
            core::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
        }
    }
}

/// Operations and flags of `futex`, and the bits of the words in a robust list.
#[allow(missing_docs)]
pub mod futex {
    pub const WAIT: u32 = 0;
    pub const WAKE: u32 = 1;
    pub const REQUEUE: u32 = 3;
    pub const CMP_REQUEUE: u32 = 4;
    pub const WAKE_OP: u32 = 5;
    /// `FUTEX_LOCK_PI`: the word is a lock with an owner.
    pub const LOCK: u32 = 6;
    pub const UNLOCK: u32 = 7;
    pub const TRY_LOCK: u32 = 8;
    pub const WAIT_BITSET: u32 = 9;
    pub const WAKE_BITSET: u32 = 10;
    /// `FUTEX_LOCK_PI2`.
    pub const LOCK_WITH_CLOCK: u32 = 13;
    pub const PRIVATE: u32 = 128;
    pub const CLOCK_REALTIME: u32 = 256;
    /// Changes of a word by `FUTEX_WAKE_OP`.
    pub const OP_SET: u32 = 0;
    pub const OP_ADD: u32 = 1;
    pub const OP_OR: u32 = 2;
    pub const OP_ANDN: u32 = 3;
    pub const OP_XOR: u32 = 4;
    /// The operand is the number of a bit.
    pub const OP_OPARG_SHIFT: u32 = 8;
    /// Comparisons of what the word was.
    pub const OP_CMP_EQ: u32 = 0;
    pub const OP_CMP_NE: u32 = 1;
    pub const OP_CMP_LT: u32 = 2;
    pub const OP_CMP_LE: u32 = 3;
    pub const OP_CMP_GT: u32 = 4;
    pub const OP_CMP_GE: u32 = 5;
    /// Size of a word in the flags of `struct futex_waitv`.
    pub const SIZE_U32: u32 = 2;
    /// All bits of these flags that tell sizes.
    pub const SIZE_MASK: u32 = 3;
    /// Greatest number of words of `futex_waitv`.
    pub const WAITV_MAX: usize = 128;
    pub const BITSET_ANY: u32 = u32::MAX;
    pub const WAITERS: u32 = 0x8000_0000;
    pub const OWNER_DIED: u32 = 0x4000_0000;
    pub const THREAD_MASK: u32 = 0x3fff_ffff;
    /// Bytes of `struct robust_list_head`.
    pub const ROBUST_HEAD: usize = 24;

    /// A word of `futex_waitv` (`struct futex_waitv`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WaitedWord {
        /// The value that it must have.
        pub value: u64,
        pub address: u64,
        pub flags: u32,
        pub reserved: u32,
    }

    impl WaitedWord {
        pub const SIZE: usize = 24;

        /// Reads the bytes as they lie in memory.
        pub fn from_bytes(bytes: &[u8; WaitedWord::SIZE]) -> WaitedWord {
            let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            let flags = long(16);
            WaitedWord { value: long(0), address: long(8), flags: flags as u32, reserved: (flags >> 32) as u32 }
        }
    }
}

/// Attributes of a process for `set_scheduling`.
pub mod scheduling {
    /// Most important priority that counts for it, 0 to 63. Children inherit it.
    pub const CEILING: u32 = 1;
    /// Nanoseconds of processor time in each period (the fourth argument, 1 ms to 10 s, over all harts together) that
    /// it and the children it starts from then on have before they fall behind all others; all ones: no limit. A budget
    /// that a process sets itself is a second limit within its given one. Time used so far stays used.
    pub const BUDGET: u32 = 2;
    /// Mode of its executor, 0 relaxed or 1 strict. Children inherit it.
    pub const MODE: u32 = 3;
    /// Whether it has all capabilities of the caller, or none: 1 or 0. Children do not inherit them.
    pub const PRIVILEGE: u32 = 4;
    /// Shortest period of a budget.
    pub const SHORTEST_PERIOD_NS: u64 = 1_000_000;
    /// Longest period of a budget.
    pub const LONGEST_PERIOD_NS: u64 = 10_000_000_000;
    /// A budget without a limit.
    pub const NO_LIMIT: u64 = u64::MAX;
}

/// Attributes for `set_system_scheduling`.
pub mod system_scheduling {
    /// Mode of all executors: 0 each its own, 1 relaxed, 2 strict.
    pub const MODE: u32 = 1;
    /// Nanoseconds after which a ready worker runs in any case, at least 1 ms; 0: never, for pure order by priority.
    pub const STARVATION_BOUND: u32 = 2;
    /// Only in a kernel that is built to test itself (feature `fail-allocations`), else `EINVAL`: of the allocations
    /// that the kernel makes in calls of the calling process from now on, the one with this number fails, once; 0:
    /// none. The call returns the number of allocations since the previous call.
    pub const FAIL_ALLOCATION: u32 = 0x100;
    /// Shortest starvation bound.
    pub const SHORTEST_BOUND_NS: u64 = 1_000_000;
}

/// Scheduling of a process, as `get_scheduling` writes it. New fields come at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// Most important priority that counts for it.
    pub ceiling: u64,
    /// Effective priority: its claim, within its ceiling; 63 while its budget is used up.
    pub priority: u64,
    /// Mode that it chose: 0 relaxed, 1 strict.
    pub mode: u64,
    /// 1 if it has the capability to make processes more important.
    pub privilege: u64,
    /// Nanoseconds of processor time in each period; all ones for no limit.
    pub budget_ns: u64,
    /// Length of the period.
    pub period_ns: u64,
    /// Share of its budget that it has used in this period.
    pub used_ns: u64,
    /// Processor time it has used since it began, system calls that it waited for excepted.
    pub cpu_ns: u64,
    /// Number of times its budget was used up.
    pub exhausted: u64,
    /// Number of times one of its workers ran because it had been ready for the starvation bound.
    pub boosts: u64,
}

const _: () = assert!(size_of::<Scheduling>() == 80);

impl Scheduling {
    /// Returns its words in order.
    pub const fn words(&self) -> [u64; 10] {
        [
            self.ceiling,
            self.priority,
            self.mode,
            self.privilege,
            self.budget_ns,
            self.period_ns,
            self.used_ns,
            self.cpu_ns,
            self.exhausted,
            self.boosts,
        ]
    }

    /// Makes a value of words in that order.
    pub const fn from_words(words: [u64; 10]) -> Scheduling {
        let [ceiling, priority, mode, privilege, budget_ns, period_ns, used_ns, cpu_ns, exhausted, boosts] = words;
        Scheduling { ceiling, priority, mode, privilege, budget_ns, period_ns, used_ns, cpu_ns, exhausted, boosts }
    }
}

/// Flag of `eventfd2`: a read takes one.
pub const EFD_SEMAPHORE: u32 = 1;
/// Bytes of a signal as it is read from a descriptor (`struct signalfd_siginfo`).
pub const SIGNAL_RECORD: usize = 128;

/// Flags of `inotify_add_watch`, and of the events that are read, beside those of the files themselves.
pub mod file_event {
    /// All kinds of events.
    pub const ALL: u32 = 0xfff;
    /// An event: the file system of the file was unmounted.
    pub const UNMOUNTED: u32 = 0x2000;
    /// An event: some before it were lost.
    pub const LOST: u32 = 0x4000;
    /// An event: the watch has ended.
    pub const IGNORED: u32 = 0x8000;
    /// The file must be a directory.
    pub const ONLY_DIRECTORY: u32 = 0x100_0000;
    /// A symbolic link is watched itself.
    pub const KEEP_LINK: u32 = 0x200_0000;
    /// Files that have lost their name are not told: none are.
    pub const EXCEPT_UNLINKED: u32 = 0x400_0000;
    /// The watch must be a new one.
    pub const MUST_BE_NEW: u32 = 0x1000_0000;
    /// The kinds of events are added to those of the present watch.
    pub const ADD: u32 = 0x2000_0000;
    /// In an event: it concerns a directory.
    pub const IS_DIRECTORY: u32 = 0x4000_0000;
    /// The watch ends after one event.
    pub const ONCE: u32 = 0x8000_0000;
    /// All bits that a mask may have; it must have one.
    pub const KNOWN: u32 = ALL
        | UNMOUNTED
        | LOST
        | IGNORED
        | ONLY_DIRECTORY
        | KEEP_LINK
        | EXCEPT_UNLINKED
        | MUST_BE_NEW
        | ADD
        | IS_DIRECTORY
        | ONCE;
}

/// Operations, events and structures of `epoll_ctl` and `epoll_pwait`, and the events of `ppoll`.
#[allow(missing_docs)]
pub mod epoll {
    pub const CTL_ADD: u32 = 1;
    pub const CTL_DEL: u32 = 2;
    pub const CTL_MOD: u32 = 3;
    pub const IN: u32 = 1;
    pub const PRI: u32 = 2;
    pub const OUT: u32 = 4;
    pub const ERR: u32 = 8;
    pub const HUP: u32 = 0x10;
    /// `ppoll`: the descriptor is closed.
    pub const NVAL: u32 = 0x20;
    pub const RDNORM: u32 = 0x40;
    pub const WRNORM: u32 = 0x100;
    pub const RDHUP: u32 = 0x2000;
    pub const EXCLUSIVE: u32 = 1 << 28;
    pub const WAKEUP: u32 = 1 << 29;
    pub const ONESHOT: u32 = 1 << 30;
    pub const ET: u32 = 1 << 31;
    /// Bits that are not events but select their delivery.
    pub const MODES: u32 = EXCLUSIVE | WAKEUP | ONESHOT | ET;

    /// `struct epoll_event` (16 bytes; it is packed on x86 only).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[repr(C)]
    pub struct Event {
        /// A set of the constants above.
        pub events: u32,
        /// Word chosen by the program.
        pub data: u64,
    }

    const _: () = assert!(size_of::<Event>() == Event::SIZE && core::mem::offset_of!(Event, data) == 8);

    impl Event {
        /// Size of the structure in bytes.
        pub const SIZE: usize = 16;

        /// Returns the bytes as they lie in memory.
        pub fn to_bytes(self) -> [u8; Self::SIZE] {
            let mut bytes = [0; Self::SIZE];
            bytes[..4].copy_from_slice(&self.events.to_le_bytes());
            bytes[8..].copy_from_slice(&self.data.to_le_bytes());
            bytes
        }

        /// Reads the bytes as they lie in memory.
        pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Event {
            Event {
                events: u32::from_le_bytes(core::array::from_fn(|i| bytes[i])),
                data: u64::from_le_bytes(core::array::from_fn(|i| bytes[8 + i])),
            }
        }
    }
}

/// `wait4`: do not wait.
pub const WNOHANG: u32 = 1;
/// `wait4`: children that have stopped, too.
pub const WUNTRACED: u32 = 2;
/// `waitid`: children that have ended.
pub const WEXITED: u32 = 4;
/// `waitid`: the change stays for another wait.
pub const WNOWAIT: u32 = 0x0100_0000;
/// `wait4`: children that have gone on, too.
pub const WCONTINUED: u32 = 8;
/// `wait4`: `__WNOTHREAD`, `__WALL` and `__WCLONE`, which have no effect: all children are of one kind, and the
/// process's.
pub const WAIT_KINDS: u32 = 0xe000_0000;
/// Kinds of identifiers of `waitid` (`idtype_t`).
#[allow(missing_docs)]
pub mod wait_kind {
    pub const ALL: u32 = 0;
    pub const PROCESS: u32 = 1;
    pub const GROUP: u32 = 2;
    pub const DESCRIPTOR: u32 = 3;
}
/// Status of a child that has gone on.
pub const CONTINUED: u32 = 0xffff;
/// Bit of the status of a child that has left a core file (`WCOREDUMP`).
pub const CORE_DUMPED: u32 = 0x80;

/// Signals that the kernel sends or that programs need by name.
#[allow(missing_docs)]
pub mod signal {
    pub const HUP: u32 = 1;
    pub const INT: u32 = 2;
    pub const QUIT: u32 = 3;
    pub const ILL: u32 = 4;
    pub const TRAP: u32 = 5;
    pub const ABRT: u32 = 6;
    pub const BUS: u32 = 7;
    pub const FPE: u32 = 8;
    pub const KILL: u32 = 9;
    pub const SEGV: u32 = 11;
    pub const PIPE: u32 = 13;
    pub const TERM: u32 = 15;
    pub const CHLD: u32 = 17;
    pub const CONT: u32 = 18;
    pub const STOP: u32 = 19;
    pub const TSTP: u32 = 20;
    pub const TTIN: u32 = 21;
    pub const TTOU: u32 = 22;
    pub const URG: u32 = 23;
    pub const WINCH: u32 = 28;
    /// One more than the largest number.
    pub const LIMIT: u32 = 65;
}

/// Terminal settings, `struct termios` as in `ioctl`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termios {
    pub input: u32,
    pub output: u32,
    pub control: u32,
    pub local: u32,
    pub line: u8,
    /// Special characters, by their places in [`terminal::character`].
    pub characters: [u8; 19],
}

impl Termios {
    /// Size in memory.
    pub const SIZE: usize = 36;

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(&self) -> [u8; Termios::SIZE] {
        let mut bytes = [0; Termios::SIZE];
        for (place, word) in bytes.chunks_exact_mut(4).zip([self.input, self.output, self.control, self.local]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[16] = self.line;
        bytes[17..].copy_from_slice(&self.characters);
        bytes
    }

    /// Reads the bytes as they lie in memory.
    pub fn from_bytes(bytes: [u8; Termios::SIZE]) -> Termios {
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[4 * at + i]));
        Termios {
            input: word(0),
            output: word(1),
            control: word(2),
            local: word(3),
            line: bytes[16],
            characters: core::array::from_fn(|i| bytes[17 + i]),
        }
    }
}

/// Terminals: requests of `ioctl`, and flags and places in [`Termios`] (`asm-generic/ioctls.h`, `termbits.h`).
#[allow(missing_docs)]
pub mod terminal {
    pub const GET: u32 = 0x5401;
    pub const SET: u32 = 0x5402;
    pub const SET_AND_WAIT: u32 = 0x5403;
    pub const SET_AND_FLUSH: u32 = 0x5404;
    pub const DRAIN: u32 = 0x5409;
    pub const FLUSH: u32 = 0x540b;
    pub const SET_CONTROLLING: u32 = 0x540e;
    pub const GET_FOREGROUND: u32 = 0x540f;
    pub const SET_FOREGROUND: u32 = 0x5410;
    pub const WRITTEN: u32 = 0x5411;
    pub const INSERT: u32 = 0x5412;
    pub const GET_WINDOW_SIZE: u32 = 0x5413;
    pub const SET_WINDOW_SIZE: u32 = 0x5414;
    pub const READABLE: u32 = 0x541b;
    pub const SET_PACKET_MODE: u32 = 0x5420;
    pub const GIVE_UP_CONTROLLING: u32 = 0x5422;
    pub const GET_SESSION: u32 = 0x5429;
    pub const OPEN_PEER: u32 = 0x5441;
    pub const GET_PSEUDO_NUMBER: u32 = 0x8004_5430;
    pub const SET_LOCK: u32 = 0x4004_5431;
    pub const GET_LOCK: u32 = 0x8004_5439;

    /// Queues that `FLUSH` empties.
    pub mod queue {
        pub const INPUT: usize = 0;
        pub const OUTPUT: usize = 1;
        pub const BOTH: usize = 2;
    }
    pub mod input {
        pub const ISTRIP: u32 = 0o40;
        pub const INLCR: u32 = 0o100;
        pub const IGNCR: u32 = 0o200;
        pub const ICRNL: u32 = 0o400;
        pub const IXON: u32 = 0o2000;
        pub const IUTF8: u32 = 0o40000;
    }
    pub mod output {
        pub const OPOST: u32 = 0o1;
        pub const ONLCR: u32 = 0o4;
    }
    pub mod control {
        pub const B38400: u32 = 0o17;
        pub const CS8: u32 = 0o60;
        pub const CREAD: u32 = 0o200;
        pub const HUPCL: u32 = 0o2000;
    }
    pub mod local {
        pub const ISIG: u32 = 0o1;
        pub const ICANON: u32 = 0o2;
        pub const ECHO: u32 = 0o10;
        pub const ECHOE: u32 = 0o20;
        pub const ECHOK: u32 = 0o40;
        pub const ECHONL: u32 = 0o100;
        pub const NOFLSH: u32 = 0o200;
        pub const TOSTOP: u32 = 0o400;
        pub const ECHOCTL: u32 = 0o1000;
        pub const ECHOKE: u32 = 0o4000;
        pub const IEXTEN: u32 = 0o100_000;
    }
    pub mod character {
        pub const INTERRUPT: usize = 0;
        pub const QUIT: usize = 1;
        pub const ERASE: usize = 2;
        pub const KILL: usize = 3;
        pub const END_OF_FILE: usize = 4;
        pub const TIME: usize = 5;
        pub const MINIMUM: usize = 6;
        pub const START: usize = 8;
        pub const STOP: usize = 9;
        pub const SUSPEND: usize = 10;
        pub const END_OF_LINE: usize = 11;
        pub const REPRINT: usize = 12;
        pub const DISCARD: usize = 13;
        pub const WORD_ERASE: usize = 14;
        pub const LITERAL_NEXT: usize = 15;
        pub const SECOND_END_OF_LINE: usize = 16;
    }
}

/// `reboot`: the two magic numbers and the commands (`linux/reboot.h`).
#[allow(missing_docs)]
pub mod reboot {
    pub const MAGIC1: u32 = 0xfee1_dead;
    pub const MAGIC2: u32 = 672_274_793;
    pub const POWER_OFF: u32 = 0x4321_fedc;
    pub const RESTART: u32 = 0x0123_4567;
    pub const HALT: u32 = 0xcdef_0123;
}

/// Length of each of the six strings of `struct utsname`.
pub const SYSTEM_NAME_FIELD: usize = 65;

/// Types of directory entries (`d_type`).
#[allow(missing_docs)]
pub mod entry {
    pub const UNKNOWN: u8 = 0;
    pub const PIPE: u8 = 1;
    pub const CHARACTER: u8 = 2;
    pub const DIRECTORY: u8 = 4;
    pub const REGULAR: u8 = 8;
    pub const LINK: u8 = 10;
    pub const SOCKET: u8 = 12;
}

/// Keys of the auxiliary vector above a program's environment (getauxval(3)).
#[allow(missing_docs)]
pub mod auxiliary {
    pub const NULL: u64 = 0;
    pub const PHDR: u64 = 3;
    pub const PHENT: u64 = 4;
    pub const PHNUM: u64 = 5;
    pub const PAGESZ: u64 = 6;
    pub const BASE: u64 = 7;
    pub const FLAGS: u64 = 8;
    pub const ENTRY: u64 = 9;
    pub const UID: u64 = 11;
    pub const EUID: u64 = 12;
    pub const GID: u64 = 13;
    pub const EGID: u64 = 14;
    pub const HWCAP: u64 = 16;
    /// Value of [`HWCAP`]: a bit for each single-letter extension (RV64IMAFDC).
    pub const HARDWARE: u64 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 8 | 1 << 12;
    pub const CLKTCK: u64 = 17;
    pub const SECURE: u64 = 23;
    pub const RANDOM: u64 = 25;
    pub const EXECFN: u64 = 31;
    /// Address of the scheduler's image.
    pub const SYSINFO_EHDR: u64 = 33;
    /// Address of the process's `abi_queue::ProcessPage`.
    pub const COPS_PROCESS_PAGE: u64 = 0x434f_0001;
    /// Address of the `abi_queue::GlobalPage`.
    pub const COPS_GLOBAL_PAGE: u64 = 0x434f_0002;
    /// Address of the process's completion ring (`abi_queue::completion`).
    pub const COPS_COMPLETION_RING: u64 = 0x434f_0003;
    /// Number of harts that run the system.
    pub const COPS_HARTS: u64 = 0x434f_0004;
    /// Delivery of user interrupts to this process: 0 through the kernel; in hardware 1 (the program runs virtualised
    /// and has supervisor registers of its own) or 2 (it runs in user mode and has the registers of the N extension).
    pub const COPS_USER_INTERRUPTS: u64 = 0x434f_0005;
}

macro_rules! counters {
    ($($(#[doc = $text:literal])* $variant:ident, $name:literal;)*) => {
        /// A counter of the kernel: the position in the array that the `counters` call fills.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $text])* $variant,)* }

        impl Counter {
            /// All counters in their order.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant),*];

            /// Returns the name under which tools print it.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }

            /// Returns its comment in the table.
            pub const fn description(self) -> &'static str {
                // Each line of a comment begins with the space that parts it from the one before.
                match self { $(Counter::$variant => concat!($($text),*).trim_ascii(),)* }
            }
        }
    };
}

counters! {
    /// Frames of physical memory in all.
    FramesTotal, "frames_total";
    /// Frames that are free.
    FramesFree, "frames_free";
    /// Bytes of the kernel heap in use.
    HeapBytes, "heap_bytes";
    /// Processes that exist, including zombies.
    Processes, "processes";
    /// Kernel coroutines that exist.
    KernelCoroutines, "kernel_coroutines";
    /// Entries to the kernel from user mode, interrupts included.
    Traps, "traps";
    /// System calls.
    SystemCalls, "system_calls";
    /// Asynchronous calls that were submitted.
    AsynchronousCalls, "asynchronous_calls";
    /// Asynchronous calls that are in flight.
    CallsInFlight, "calls_in_flight";
    /// Completions that were posted.
    Completions, "completions";
    /// Requests that were taken from request rings.
    Requests, "requests";
    /// Page faults that were resolved.
    PageFaults, "page_faults";
    /// Switches from one process's worker to another.
    Switches, "switches";
    /// User interrupts that the kernel delivered.
    UserInterrupts, "user_interrupts";
    /// Interrupts between harts that were sent.
    HartInterrupts, "hart_interrupts";
    /// TCP connections that exist.
    Connections, "connections";
    /// Nanoseconds from the machine's reset, when its clock begins at 0, to now.
    UptimeNs, "uptime_ns";
    /// User interrupts that the kernel was asked to send, by calls and by stores that it had to carry out itself.
    InterruptSends, "interrupt_sends";
    /// Receivers of user interrupts that exist.
    InterruptReceivers, "interrupt_receivers";
    /// Number of times a process had used up its budget.
    BudgetsExhausted, "budgets_exhausted";
    /// Number of times a worker ran because it had been ready for the starvation bound.
    StarvationBoosts, "starvation_boosts";
    /// User interrupts that reached programs without the kernel, as the programs count them: a claim, which the kernel
    /// reads when it takes the hart from them.
    HardwareInterrupts, "hardware_interrupts";
    /// Entries to the kernel from user mode for the kernel's own timer and nothing else.
    TimerTraps, "timer_traps";
    /// Guest interrupt files that belong to receivers now.
    GuestFiles, "guest_files";
    /// Bytes of all frames that the kernel heap holds: the objects in use, and the gaps between.
    HeapFootprint, "heap_footprint";
    /// Looks for interrupts, and for more important work, between two steps of long work.
    Looks, "looks";
    /// Nanoseconds that harts have slept, because they had nothing to do.
    IdleNs, "idle_ns";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_memory() {
        let time = TimeSpec::from_ns(12_345_678_901);
        assert_eq!(TimeSpec::from_bytes(time.to_bytes()), time);
        assert_eq!(time.to_ns(), Some(12_345_678_901));
        assert_eq!(TimeSpec { seconds: 0, nanoseconds: 1_000_000_000 }.to_ns(), None);
        assert_eq!(TimeSpec { seconds: -1, nanoseconds: 0 }.to_ns(), None);
        assert_eq!(TimeSpec { seconds: i64::MAX, nanoseconds: 0 }.to_ns(), Some(u64::MAX));
    }

    #[test]
    fn addresses_survive_memory() {
        let address = SocketAddress { address: [10, 0, 2, 15], port: 7000 };
        let bytes = address.to_bytes();
        assert_eq!(&bytes[2..4], &[0x1b, 0x58]);
        assert_eq!(SocketAddress::from_bytes(bytes), Some(address));
        assert_eq!(SocketAddress::from_bytes([0; 16]), None);
    }

    #[test]
    fn status_has_its_fields_where_linux_has_them() {
        let status = Status { mode: 0x0102_0304, size: 0x0506, ..Status::default() };
        let bytes = status.to_bytes();
        assert_eq!(&bytes[16..20], &[4, 3, 2, 1]);
        assert_eq!(&bytes[48..50], &[6, 5]);
    }

    #[test]
    fn counters_are_numbered_in_order() {
        for (position, &counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(counter as usize, position);
        }
    }
}
