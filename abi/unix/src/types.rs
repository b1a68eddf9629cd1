//! Structures and constants that calls exchange, with Linux riscv64's layouts.

/// Seconds and nanoseconds (`struct timespec`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TimeSpec {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanoseconds: i64,
}

impl TimeSpec {
    /// From nanoseconds.
    pub const fn from_ns(ns: u64) -> TimeSpec {
        TimeSpec { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as i64 }
    }

    /// To nanoseconds; `None` if a field is out of its range. Times too long for the type become its maximum.
    pub const fn to_ns(self) -> Option<u64> {
        if self.seconds < 0 || self.nanoseconds < 0 || self.nanoseconds > 999_999_999 {
            return None;
        }
        Some((self.seconds as u64).saturating_mul(1_000_000_000).saturating_add(self.nanoseconds as u64))
    }

    /// The bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.seconds.to_le_bytes());
        bytes[8..].copy_from_slice(&self.nanoseconds.to_le_bytes());
        bytes
    }

    /// From the bytes as they lie in memory.
    pub fn from_bytes(bytes: [u8; 16]) -> TimeSpec {
        let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        TimeSpec { seconds: word(0), nanoseconds: word(8) }
    }
}

/// What a file is (`struct stat` of the generic architectures, 128 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)]
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
    /// The bytes as they lie in memory.
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

/// Bits of [`Status::mode`] that tell the type of a file.
#[allow(missing_docs)]
pub mod mode {
    pub const TYPE: u32 = 0o170000;
    pub const SOCKET: u32 = 0o140000;
    pub const LINK: u32 = 0o120000;
    pub const REGULAR: u32 = 0o100000;
    pub const DIRECTORY: u32 = 0o040000;
    pub const CHARACTER: u32 = 0o020000;
    pub const PIPE: u32 = 0o010000;
}

/// An IPv4 address and port (`struct sockaddr_in`, 16 bytes; port and address in network order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAddress {
    /// The address, most significant byte first.
    pub address: [u8; 4],
    /// The port, as a number.
    pub port: u16,
}

impl SocketAddress {
    /// Length of the structure in bytes.
    pub const SIZE: usize = 16;

    /// The bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&AF_INET.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.address);
        bytes
    }

    /// From the bytes as they lie in memory; `None` if the family is not `AF_INET`.
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

/// Address family: IPv4.
pub const AF_INET: u16 = 2;
/// Address family: none; `connect` with it dissolves a datagram socket's association.
pub const AF_UNSPEC: u16 = 0;
/// Kind of socket: byte stream.
pub const SOCK_STREAM: u32 = 1;
/// Kind of socket: datagrams.
pub const SOCK_DGRAM: u32 = 2;
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
    pub const SO_SNDBUF: u32 = 7;
    pub const SO_RCVBUF: u32 = 8;
    pub const SO_KEEPALIVE: u32 = 9;
    pub const SO_LINGER: u32 = 13;
    pub const SO_REUSEPORT: u32 = 15;
    pub const SO_ACCEPTCONN: u32 = 30;
    pub const SO_DOMAIN: u32 = 39;
    pub const IPPROTO_TCP: u32 = 6;
    pub const IPPROTO_UDP: u32 = 17;
    pub const TCP_NODELAY: u32 = 1;
}

/// Flags of `sendto` and `recvfrom`.
#[allow(missing_docs)]
pub mod message {
    pub const PEEK: u32 = 2;
    pub const DONTWAIT: u32 = 0x40;
    pub const NOSIGNAL: u32 = 0x4000;
}

/// `shutdown`: no more receiving.
pub const SHUT_RD: u32 = 0;
/// `shutdown`: no more sending.
pub const SHUT_WR: u32 = 1;
/// `shutdown`: both.
pub const SHUT_RDWR: u32 = 2;

/// Flags of `openat`, and of `fcntl(F_SETFL)`.
#[allow(missing_docs)]
pub mod open {
    pub const ACCESS_MODE: u32 = 3;
    pub const RDONLY: u32 = 0;
    pub const WRONLY: u32 = 1;
    pub const RDWR: u32 = 2;
    pub const CREAT: u32 = 0o100;
    pub const EXCL: u32 = 0o200;
    pub const TRUNC: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
    pub const NONBLOCK: u32 = 0o4000;
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

/// Commands of `fcntl`.
#[allow(missing_docs)]
pub mod control {
    pub const DUPFD: u32 = 0;
    pub const GETFD: u32 = 1;
    pub const SETFD: u32 = 2;
    pub const GETFL: u32 = 3;
    pub const SETFL: u32 = 4;
    pub const DUPFD_CLOEXEC: u32 = 1030;
    pub const FD_CLOEXEC: u32 = 1;
}

/// `lseek`: from the start.
pub const SEEK_SET: u32 = 0;
/// `lseek`: from the position.
pub const SEEK_CUR: u32 = 1;
/// `lseek`: from the end.
pub const SEEK_END: u32 = 2;

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
    pub const BOOTTIME: u32 = 7;
    /// `clock_nanosleep`: the time is absolute.
    pub const TIMER_ABSTIME: u32 = 1;
}

/// `wait4`: do not wait.
pub const WNOHANG: u32 = 1;

/// Signals that have a meaning here: the default action is taken, there are no handlers.
#[allow(missing_docs)]
pub mod signal {
    pub const HUP: u32 = 1;
    pub const INT: u32 = 2;
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
    pub const URG: u32 = 23;
    pub const WINCH: u32 = 28;
    /// One more than the largest number.
    pub const LIMIT: u32 = 65;
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

/// Keys of the auxiliary vector that a program finds above its environment (getauxval(3)).
#[allow(missing_docs)]
pub mod auxiliary {
    pub const NULL: u64 = 0;
    pub const PHDR: u64 = 3;
    pub const PHENT: u64 = 4;
    pub const PHNUM: u64 = 5;
    pub const PAGESZ: u64 = 6;
    pub const BASE: u64 = 7;
    pub const ENTRY: u64 = 9;
    pub const UID: u64 = 11;
    pub const EUID: u64 = 12;
    pub const GID: u64 = 13;
    pub const EGID: u64 = 14;
    pub const HWCAP: u64 = 16;
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
    /// Address of the process's `abi_queue::CompletionRing`.
    pub const COPS_COMPLETION_RING: u64 = 0x434f_0003;
    /// Number of harts that run the system.
    pub const COPS_HARTS: u64 = 0x434f_0004;
}

macro_rules! counters {
    ($($(#[doc = $text:literal])* $variant:ident, $name:literal;)*) => {
        /// What the kernel counts; the position in the array that the `counters` call fills.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $text])* $variant,)* }

        impl Counter {
            /// All counters in their order.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant),*];

            /// The name under which tools print it.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }

            /// What it counts.
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
    /// Processes that exist, those included that have ended and were not waited for.
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
    /// Nanoseconds from the first kernel instruction to now.
    UptimeNs, "uptime_ns";
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
