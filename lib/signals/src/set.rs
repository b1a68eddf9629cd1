//! Numbers of signals, and sets of them.

use core::fmt;

/// Number of a signal: 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "signo")]
pub struct Signal(u8);

macro_rules! names {
    ($($name:ident = $number:literal;)*) => {
        #[allow(missing_docs)]
        impl Signal {
            $(pub const $name: Signal = Signal($number);)*
        }

        impl fmt::Debug for Signal {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($number => formatter.write_str(concat!("SIG", stringify!($name))),)*
                    number => write!(formatter, "signal {number}"),
                }
            }
        }
    };
}

names! {
    HUP = 1;
    INT = 2;
    QUIT = 3;
    ILL = 4;
    TRAP = 5;
    ABRT = 6;
    BUS = 7;
    FPE = 8;
    KILL = 9;
    USR1 = 10;
    SEGV = 11;
    USR2 = 12;
    PIPE = 13;
    ALRM = 14;
    TERM = 15;
    STKFLT = 16;
    CHLD = 17;
    CONT = 18;
    STOP = 19;
    TSTP = 20;
    TTIN = 21;
    TTOU = 22;
    URG = 23;
    XCPU = 24;
    XFSZ = 25;
    VTALRM = 26;
    PROF = 27;
    WINCH = 28;
    IO = 29;
    PWR = 30;
    SYS = 31;
}

impl Signal {
    /// The first real-time signal: from here on each one that is sent arrives, in the order of sending.
    pub const FIRST_REAL_TIME: Signal = Signal(32);

    /// Returns the signal with this number; `None` for 0 and beyond 64.
    pub const fn new(number: u32) -> Option<Signal> {
        if number >= 1 && number <= 64 { Some(Signal(number as u8)) } else { None }
    }

    /// Returns whether a process that it ends by default leaves a core file (signal(7)).
    pub const fn leaves_core(self) -> bool {
        matches!(
            self,
            Signal::QUIT
                | Signal::ILL
                | Signal::TRAP
                | Signal::ABRT
                | Signal::BUS
                | Signal::FPE
                | Signal::SEGV
                | Signal::XCPU
                | Signal::XFSZ
                | Signal::SYS
        )
    }

    /// Returns its number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Whether several of it can be pending.
    pub const fn is_real_time(self) -> bool {
        self.0 >= Signal::FIRST_REAL_TIME.0
    }

    const fn bit(self) -> u64 {
        1 << (self.0 - 1)
    }
}

/// A set of signals (`sigset_t` as the kernel has it: 64 bits, bit 0 for signal 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[doc(alias = "sigset_t")]
pub struct Set(u64);

impl Set {
    /// The set without members.
    pub const EMPTY: Set = Set(0);
    /// The signals that cannot be blocked, caught or ignored.
    pub const UNBLOCKABLE: Set = Set::of(&[Signal::KILL, Signal::STOP]);
    /// The signals that stop a process by default.
    pub const STOPPING: Set = Set::of(&[Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU]);
    /// The signals of faults, which go before all others.
    pub const OF_FAULTS: Set =
        Set::of(&[Signal::SEGV, Signal::BUS, Signal::ILL, Signal::TRAP, Signal::FPE, Signal::SYS]);

    /// Makes a set of these signals.
    pub const fn of(signals: &[Signal]) -> Set {
        let mut bits = 0;
        let mut index = 0;
        while index < signals.len() {
            bits |= signals[index].bit();
            index += 1;
        }
        Set(bits)
    }

    /// Decodes a mask that a program gives: the unblockable signals are left out without an error.
    pub const fn mask(bits: u64) -> Set {
        Set(bits & !Set::UNBLOCKABLE.0)
    }

    /// Decodes a set of any signals.
    pub const fn from_bits(bits: u64) -> Set {
        Set(bits)
    }

    /// Encodes the set.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether there are no members.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a signal is a member.
    pub const fn has(self, signal: Signal) -> bool {
        self.0 & signal.bit() != 0
    }

    /// Returns the members of either set.
    pub const fn union(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    /// Returns the members that the other set does not have.
    pub const fn without(self, other: Set) -> Set {
        Set(self.0 & !other.0)
    }

    /// Returns the members of both sets.
    pub const fn intersection(self, other: Set) -> Set {
        Set(self.0 & other.0)
    }

    /// Adds a member.
    pub const fn insert(&mut self, signal: Signal) {
        self.0 |= signal.bit();
    }

    /// Removes a member.
    pub const fn remove(&mut self, signal: Signal) {
        self.0 &= !signal.bit();
    }

    /// Returns the member that is delivered first: a fault's, or else the one with the lowest number.
    pub const fn first(self) -> Option<Signal> {
        let faults = self.0 & Set::OF_FAULTS.0;
        let bits = if faults != 0 { faults } else { self.0 };
        if bits == 0 { None } else { Some(Signal(bits.trailing_zeros() as u8 + 1)) }
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = formatter.debug_set();
        let mut rest = *self;
        while let Some(signal) = rest.first() {
            rest.remove(signal);
            set.entry(&signal);
        }
        set.finish()
    }
}
