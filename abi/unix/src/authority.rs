//! Authority: acts that require a capability.
//!
//! A process may do anything to itself and to the processes below it. An *act* of the table below reaches further: it
//! ends the machine, ends others, or reveals their state. Each act belongs to one call and needs one capability, with
//! Linux's name and number. The kernel's one check, the reference page and the test that tries every act without any
//! capability derive from the table, so that an act cannot be listed and unchecked.
//!
//! Acts and capabilities are two things because a program requests an act, and an administrator hands out capabilities:
//! only the table relates the two.

use crate::SystemCall;

/// A right to affect others (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Capability {
    /// To send signals to processes of other users that are not below the sender.
    Kill = 5,
    /// To join any group, for users other than 0 (`setgid` and its kin, `setgroups`).
    SetGroups = 6,
    /// To become any user, for users other than 0 (`setuid` and its kin).
    SetUsers = 7,
    /// To give capabilities to processes that are not below the giver, and to take them away there.
    SetCapabilities = 8,
    /// To send and receive packets of any protocol.
    RawNetwork = 13,
    /// To mount and unmount file systems, and to insert input at a terminal (`TIOCSTI`).
    Administration = 21,
    /// To switch the machine off, and to start it anew.
    Boot = 22,
    /// To make anything more important, free it from its budget, and change how the system schedules.
    Nice = 23,
    /// To raise limits on memory and other resources, and to change those of others.
    Resource = 24,
    /// To write to the kernel's log.
    Log = 34,
    /// To observe other processes.
    Observe = 38,
}

impl Capability {
    /// The capabilities that [acts](Act) need; those for the process's own users and groups concern no others.
    pub const ALL: &'static [Capability] = &[
        Capability::Kill,
        Capability::SetCapabilities,
        Capability::RawNetwork,
        Capability::Administration,
        Capability::Boot,
        Capability::Nice,
        Capability::Resource,
        Capability::Log,
        Capability::Observe,
    ];

    /// Returns Linux's name of the capability.
    pub const fn name(self) -> &'static str {
        match self {
            Capability::Kill => "CAP_KILL",
            Capability::SetGroups => "CAP_SETGID",
            Capability::SetUsers => "CAP_SETUID",
            Capability::SetCapabilities => "CAP_SETPCAP",
            Capability::RawNetwork => "CAP_NET_RAW",
            Capability::Administration => "CAP_SYS_ADMIN",
            Capability::Boot => "CAP_SYS_BOOT",
            Capability::Nice => "CAP_SYS_NICE",
            Capability::Resource => "CAP_SYS_RESOURCE",
            Capability::Log => "CAP_SYSLOG",
            Capability::Observe => "CAP_PERFMON",
        }
    }
}

/// A set of capabilities, as a word with Linux's bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "cap_t")]
pub struct CapabilitySet(u64);

impl CapabilitySet {
    /// The empty set.
    pub const NONE: CapabilitySet = CapabilitySet(0);
    /// All of Linux's capabilities (`CAP_LAST_CAP` is 40), whether or not an act here needs them.
    pub const ALL: CapabilitySet = CapabilitySet((1 << 41) - 1);

    /// Capabilities that concern the holder's own users and groups alone, which only take rights away: every program
    /// has them that begins as user 0.
    pub const OF_OWN_NUMBERS: CapabilitySet =
        CapabilitySet(1 << Capability::SetGroups as u8 | 1 << Capability::SetUsers as u8);

    /// Returns the set with these bits. Unassigned bits are left out, as on Linux.
    pub const fn from_bits(bits: u64) -> CapabilitySet {
        CapabilitySet(bits & CapabilitySet::ALL.0)
    }

    /// Returns the set of one capability.
    pub const fn only(capability: Capability) -> CapabilitySet {
        CapabilitySet(1 << capability as u8)
    }

    /// Returns the bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the set has a capability.
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & 1 << capability as u8 != 0
    }

    /// Whether this set is a subset of `other`.
    pub const fn is_within(self, other: CapabilitySet) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns the capabilities in at least one of the sets.
    pub const fn or(self, other: CapabilitySet) -> CapabilitySet {
        CapabilitySet(self.0 | other.0)
    }

    /// Returns the capabilities in both sets.
    pub const fn and(self, other: CapabilitySet) -> CapabilitySet {
        CapabilitySet(self.0 & other.0)
    }
}

/// Capabilities of a process, as in `capget` and `capset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "capget")]
#[doc(alias = "capset")]
pub struct Held {
    /// Capabilities in force.
    pub effective: CapabilitySet,
    /// Capabilities that the process may make effective again.
    pub permitted: CapabilitySet,
    /// Capabilities that children inherit, as far as they are permitted.
    pub inheritable: CapabilitySet,
}

impl Held {
    /// No capabilities.
    pub const NONE: Held = Held::of(CapabilitySet::NONE);
    /// Capabilities of the first process: all, for itself alone.
    pub const FIRST: Held = Held::of(CapabilitySet::ALL);
    /// Size of the layout with two words of 32 bits for each set, in bytes.
    pub const SIZE: usize = 24;

    /// Returns a set that is in force, and that is not inherited.
    pub const fn of(set: CapabilitySet) -> Held {
        Held { effective: set, permitted: set, inheritable: CapabilitySet::NONE }
    }

    /// Returns the capabilities of a child of the holder: Linux's rule for a file that permits nothing by itself and
    /// lets everything be inherited.
    pub const fn inherited(self) -> Held {
        let set = self.inheritable.and(self.permitted);
        Held { effective: set, permitted: set, inheritable: set }
    }

    /// Returns `struct __user_cap_data_struct[2]`: the lower halves of the three sets, then the upper halves.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let sets = [self.effective.0, self.permitted.0, self.inheritable.0];
        let mut bytes = [0; Self::SIZE];
        for (index, place) in bytes.chunks_exact_mut(4).enumerate() {
            place.copy_from_slice(&((sets[index % 3] >> (index / 3 * 32)) as u32).to_le_bytes());
        }
        bytes
    }

    /// Reads the layout of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Held {
        let half = |index: usize| u64::from(u32::from_le_bytes(core::array::from_fn(|at| bytes[index * 4 + at])));
        let set = |index: usize| CapabilitySet::from_bits(half(index) | half(index + 3) << 32);
        Held { effective: set(0), permitted: set(1), inheritable: set(2) }
    }
}

/// Versions of `struct __user_cap_header_struct`, and their numbers of data elements.
pub mod version {
    /// Sets of 32 bits.
    pub const ONE: u32 = 0x1998_0330;
    /// Sets of 64 bits; as the third for a kernel.
    pub const TWO: u32 = 0x2007_1026;
    /// Sets of 64 bits: the version that the kernel writes to a header with an unknown one.
    pub const THREE: u32 = 0x2008_0522;

    /// Returns the bytes of data that follow a header of this version.
    pub const fn data_size(version: u32) -> Option<usize> {
        match version {
            ONE => Some(12),
            TWO | THREE => Some(24),
            _ => None,
        }
    }
}

/// Condition under which an act needs its capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Always.
    Always,
    /// Only towards a process that is neither the caller nor below it.
    Others,
    /// Only towards a process of another user that is not below the caller.
    OtherUsers,
}

macro_rules! acts {
    ($($(#[doc = $text:literal])* $act:ident = $call:ident $scope:ident $capability:ident;)*) => {
        /// An act that concerns others.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Act {
            $($(#[doc = $text])* $act,)*
        }

        impl Act {
            /// The whole table.
            pub const ALL: &'static [Act] = &[$(Act::$act),*];

            /// Returns its comment in the table.
            pub const fn description(self) -> &'static str {
                match self { $(Act::$act => concat!($($text),*).trim_ascii(),)* }
            }

            /// Returns the call that performs it.
            pub const fn call(self) -> SystemCall {
                match self { $(Act::$act => SystemCall::$call,)* }
            }

            /// Returns the condition under which it needs its capability.
            pub const fn scope(self) -> Scope {
                match self { $(Act::$act => Scope::$scope,)* }
            }

            /// Returns the capability that it needs.
            pub const fn capability(self) -> Capability {
                match self { $(Act::$act => Capability::$capability,)* }
            }
        }
    };
}

acts! {
    /// Switches the machine off or starts it anew.
    EndMachine = Reboot Always Boot;
    /// Sends a signal. (Only the first process itself, and keys at the terminal, may end the first process.)
    Signal = Kill OtherUsers Kill;
    /// Changes how a process is scheduled.
    Schedule = SetScheduling Others Nice;
    /// Makes a process more important than the caller may be, or frees it from a limit.
    ScheduleMore = SetScheduling Always Nice;
    /// Changes how the system schedules.
    ScheduleSystem = SetSystemScheduling Always Nice;
    /// Reads or sets a limit of a process.
    SetLimit = ProcessLimit Others Resource;
    /// Raises a limit above the one that the process was given.
    RaiseLimit = ProcessLimit Always Resource;
    /// Reads a process's scheduling and its use of resources, and which files and memory it has (`/proc`).
    Inspect = GetScheduling OtherUsers Observe;
    /// Reads the kernel's counters, which include all processes.
    Count = Counters Always Observe;
    /// Takes records of the scheduling trace.
    ReadTrace = TraceRead Always Observe;
    /// Reads the present activity of harts and processes.
    TakeSnapshot = Snapshot Always Observe;
    /// Writes to the kernel's log.
    Log = Log Always Log;
    /// Gives a process capabilities of the caller, or takes any away.
    Empower = SetCapabilities Others SetCapabilities;
    /// Mounts a file system, or changes a mount.
    Mount = Mount Always Administration;
    /// Takes a mount away.
    Unmount = Unmount Always Administration;
    /// Changes a setting of the machine (`/proc/sys/kernel/core_pattern`, `/proc/sys/fs/mqueue`).
    ChangeSetting = Write Always Administration;
    /// Makes a raw socket, for packets of any protocol.
    UseRawSockets = Socket Always RawNetwork;
    /// Presses a key at the terminal (`TIOCSTI`), which could be a command to a shell with more authority.
    PressKey = DeviceControl Always Administration;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_linux() {
        // uapi/linux/capability.h.
        for (name, number) in [
            ("CAP_KILL", 5),
            ("CAP_SETGID", 6),
            ("CAP_SETUID", 7),
            ("CAP_SETPCAP", 8),
            ("CAP_NET_RAW", 13),
            ("CAP_SYS_ADMIN", 21),
            ("CAP_SYS_BOOT", 22),
            ("CAP_SYS_NICE", 23),
            ("CAP_SYS_RESOURCE", 24),
            ("CAP_SYSLOG", 34),
            ("CAP_PERFMON", 38),
        ] {
            let own = [Capability::SetGroups, Capability::SetUsers];
            let found = Capability::ALL.iter().chain(&own).find(|capability| capability.name() == name);
            assert_eq!(found.map(|capability| *capability as u8), Some(number), "{name}");
            assert!(CapabilitySet::ALL.bits() & 1 << number != 0);
        }
    }

    #[test]
    fn no_capability_is_without_an_act() {
        for capability in Capability::ALL {
            assert!(Act::ALL.iter().any(|act| act.capability() == *capability), "{}", capability.name());
        }
        for act in Act::ALL {
            let text = act.description();
            assert!(text.ends_with(['.', ')']) && !text.contains("  "), "{act:?}: {text}");
        }
    }

    #[test]
    fn sets_have_the_layout_of_linux() {
        let held = Held {
            effective: CapabilitySet::from_bits(0x1_0000_0002),
            permitted: CapabilitySet::from_bits(0x100_0000_0003),
            inheritable: CapabilitySet::from_bits(4),
        };
        let words: [u32; 6] = [2, 3, 4, 1, 0x100, 0];
        let bytes: [u8; 24] = core::array::from_fn(|at| words[at / 4].to_le_bytes()[at % 4]);
        assert_eq!(held.to_bytes(), bytes);
        assert_eq!(Held::from_bytes(bytes), held);
        // There is no capability 63.
        assert_eq!(Held::from_bytes([0xff; 24]).permitted, CapabilitySet::ALL);
    }

    #[test]
    fn children_inherit_capabilities_that_are_inheritable_and_permitted() {
        assert_eq!(Held::FIRST.inherited(), Held::NONE);
        let some = CapabilitySet::from_bits(0b110);
        let held = Held { inheritable: CapabilitySet::from_bits(0b1100), ..Held::of(some) };
        let only = CapabilitySet::from_bits(0b100);
        assert_eq!(held.inherited(), Held { effective: only, permitted: only, inheritable: only });
    }
}
