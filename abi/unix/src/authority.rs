//! Authority: what only a process with a capability may do.
//!
//! Every process may do what it likes with itself and with the processes below it. An *act* of the table below reaches
//! further: it ends the machine, ends others, or tells about others. Each act belongs to one call and needs one
//! capability, with Linux's name and number. The kernel's one check, the reference page and the test that tries every
//! act without any capability derive from the table, so that an act cannot be listed and unchecked.
//!
//! Acts and capabilities are two things because a program asks for an act, and an administrator hands out capabilities:
//! the table is the only place that knows both.

use crate::SystemCall;

/// A right to do something that concerns others (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Capability {
    /// To send signals to processes that are not below the sender.
    Kill = 5,
    /// To give capabilities to processes that are not below the giver, and to take them away there.
    SetCapabilities = 8,
    /// To press keys at a terminal for who sits there.
    Administration = 21,
    /// To switch the machine off, and to start it anew.
    Boot = 22,
    /// To make anything more important, free it from its budget, and change how the system schedules.
    Nice = 23,
    /// To raise limits on memory and other resources, and to change those of others.
    Resource = 24,
    /// To write to the kernel's log.
    Log = 34,
    /// To see what other processes do.
    Observe = 38,
}

impl Capability {
    /// Those that some act needs.
    pub const ALL: &'static [Capability] = &[
        Capability::Kill,
        Capability::SetCapabilities,
        Capability::Administration,
        Capability::Boot,
        Capability::Nice,
        Capability::Resource,
        Capability::Log,
        Capability::Observe,
    ];

    /// The name that Linux gives it.
    pub const fn name(self) -> &'static str {
        match self {
            Capability::Kill => "CAP_KILL",
            Capability::SetCapabilities => "CAP_SETPCAP",
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
pub struct CapabilitySet(u64);

impl CapabilitySet {
    /// The empty set.
    pub const NONE: CapabilitySet = CapabilitySet(0);
    /// All that Linux knows (`CAP_LAST_CAP` is 40), whether or not an act here needs them.
    pub const ALL: CapabilitySet = CapabilitySet((1 << 41) - 1);

    /// The set with these bits. Bits that mean nothing are left out, as on Linux.
    pub const fn from_bits(bits: u64) -> CapabilitySet {
        CapabilitySet(bits & CapabilitySet::ALL.0)
    }

    /// The set of one.
    pub const fn only(capability: Capability) -> CapabilitySet {
        CapabilitySet(1 << capability as u8)
    }

    /// Its bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether a capability is in it.
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & 1 << capability as u8 != 0
    }

    /// Whether all of it is in another set.
    pub const fn is_within(self, other: CapabilitySet) -> bool {
        self.0 & !other.0 == 0
    }

    /// What is in one of the two.
    pub const fn or(self, other: CapabilitySet) -> CapabilitySet {
        CapabilitySet(self.0 | other.0)
    }

    /// What is in both.
    pub const fn and(self, other: CapabilitySet) -> CapabilitySet {
        CapabilitySet(self.0 & other.0)
    }
}

/// What a process holds, as `capget` gives it and `capset` takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// What counts now.
    pub effective: CapabilitySet,
    /// What it may make effective again.
    pub permitted: CapabilitySet,
    /// What of it the processes have that it starts.
    pub inheritable: CapabilitySet,
}

impl Held {
    /// Nothing.
    pub const NONE: Held = Held::of(CapabilitySet::NONE);
    /// What the first process holds: everything, for itself alone.
    pub const FIRST: Held = Held::of(CapabilitySet::ALL);
    /// Bytes of the layout that has two words of 32 bits for each set.
    pub const SIZE: usize = 24;

    /// A set that is in force, and that nobody inherits.
    pub const fn of(set: CapabilitySet) -> Held {
        Held { effective: set, permitted: set, inheritable: CapabilitySet::NONE }
    }

    /// What a process holds that is started by the holder: Linux's rule for a file that permits nothing by itself and
    /// lets everything be inherited.
    pub const fn inherited(self) -> Held {
        let set = self.inheritable.and(self.permitted);
        Held { effective: set, permitted: set, inheritable: set }
    }

    /// `struct __user_cap_data_struct[2]`: the lower halves of the three sets, then the upper halves.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let sets = [self.effective.0, self.permitted.0, self.inheritable.0];
        let mut bytes = [0; Self::SIZE];
        for (index, place) in bytes.chunks_exact_mut(4).enumerate() {
            place.copy_from_slice(&((sets[index % 3] >> (index / 3 * 32)) as u32).to_le_bytes());
        }
        bytes
    }

    /// From that layout.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Held {
        let half = |index: usize| u64::from(u32::from_le_bytes(core::array::from_fn(|at| bytes[index * 4 + at])));
        let set = |index: usize| CapabilitySet::from_bits(half(index) | half(index + 3) << 32);
        Held { effective: set(0), permitted: set(1), inheritable: set(2) }
    }
}

/// Versions of `struct __user_cap_header_struct`, and how many elements of data each has.
pub mod version {
    /// Sets of 32 bits.
    pub const ONE: u32 = 0x1998_0330;
    /// Sets of 64 bits; as the third for a kernel.
    pub const TWO: u32 = 0x2007_1026;
    /// Sets of 64 bits: what the kernel writes to a header whose version it does not know.
    pub const THREE: u32 = 0x2008_0522;

    /// Bytes of data that follow a header of this version.
    pub const fn data_size(version: u32) -> Option<usize> {
        match version {
            ONE => Some(12),
            TWO | THREE => Some(24),
            _ => None,
        }
    }
}

/// When an act needs its capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Always.
    Always,
    /// Only towards a process that is neither the caller nor below it.
    Others,
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

            /// What it is: the words that stand above it in the table.
            pub const fn description(self) -> &'static str {
                match self { $(Act::$act => concat!($($text),*).trim_ascii(),)* }
            }

            /// The call that does it.
            pub const fn call(self) -> SystemCall {
                match self { $(Act::$act => SystemCall::$call,)* }
            }

            /// When it needs its capability.
            pub const fn scope(self) -> Scope {
                match self { $(Act::$act => Scope::$scope,)* }
            }

            /// The capability that it needs.
            pub const fn capability(self) -> Capability {
                match self { $(Act::$act => Capability::$capability,)* }
            }
        }
    };
}

acts! {
    /// Switches the machine off or starts it anew.
    EndMachine = Reboot Always Boot;
    /// Sends a signal. (Nobody but the first process itself, and who sits at the terminal, may end the first process.)
    Signal = Kill Others Kill;
    /// Changes how a process is scheduled.
    Schedule = SetScheduling Others Nice;
    /// Makes a process more important than the caller may be, or frees it from a limit.
    ScheduleMore = SetScheduling Always Nice;
    /// Changes how the system schedules.
    ScheduleSystem = SetSystemScheduling Always Nice;
    /// Reads or sets a limit of a process.
    SetLimit = ProcessLimit Others Resource;
    /// Sets a limit that is higher than what the process was given.
    RaiseLimit = ProcessLimit Always Resource;
    /// Sees how a process is scheduled and what it has used.
    Inspect = GetScheduling Others Observe;
    /// Reads the kernel's counters, which tell of all processes.
    Count = Counters Always Observe;
    /// Takes records of the scheduling trace.
    ReadTrace = TraceRead Always Observe;
    /// Sees what harts and processes do now.
    TakeSnapshot = Snapshot Always Observe;
    /// Writes to the kernel's log.
    Log = Log Always Log;
    /// Gives a process capabilities that the caller has, or takes any away.
    Empower = SetCapabilities Others SetCapabilities;
    /// Presses a key at the terminal (`TIOCSTI`), which could be a command to a shell with more authority.
    PressKey = DeviceControl Always Administration;
    /// Makes a process group the foreground, which the terminal's keys reach (`TIOCSPGRP`), and in which there is no
    /// process that the caller may signal.
    SetForeground = DeviceControl Others Kill;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_linux() {
        // uapi/linux/capability.h.
        for (name, number) in [
            ("CAP_KILL", 5),
            ("CAP_SETPCAP", 8),
            ("CAP_SYS_ADMIN", 21),
            ("CAP_SYS_BOOT", 22),
            ("CAP_SYS_NICE", 23),
            ("CAP_SYS_RESOURCE", 24),
            ("CAP_SYSLOG", 34),
            ("CAP_PERFMON", 38),
        ] {
            let found = Capability::ALL.iter().find(|capability| capability.name() == name);
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
    fn children_have_what_is_inheritable_and_permitted() {
        assert_eq!(Held::FIRST.inherited(), Held::NONE);
        let some = CapabilitySet::from_bits(0b110);
        let held = Held { inheritable: CapabilitySet::from_bits(0b1100), ..Held::of(some) };
        let only = CapabilitySet::from_bits(0b100);
        assert_eq!(held.inherited(), Held { effective: only, permitted: only, inheritable: only });
    }
}
