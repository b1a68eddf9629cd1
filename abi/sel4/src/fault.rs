//! Faults as messages: when a thread cannot go on, the kernel sends a message for it to its fault endpoint.
//!
//! The label identifies the fault, the words hold its details. A reply with label 0 makes the thread go on; for two
//! faults its words are written back first, in the same order, as far as the reply is long.

use crate::{FailedLookup, registers};

macro_rules! faults {
    ($($(#[doc = $text:literal])* $variant:ident = $label:literal [$($word:ident),*] writes_back $back:literal;)*) => {
        /// Reason why a thread cannot go on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[doc(alias = "seL4_Fault")]
        pub enum Fault {
            $($(#[doc = $text])* $variant = $label,)*
        }

        impl Fault {
            /// The whole table.
            pub const ALL: &'static [Fault] = &[$(Fault::$variant),*];

            /// Returns the fault with this label.
            #[inline]
            pub const fn from_label(label: u64) -> Option<Fault> {
                match label { $($label => Some(Fault::$variant),)* _ => None }
            }

            /// Returns the label of its message.
            #[inline]
            pub const fn label(self) -> u64 {
                self as u64
            }

            /// Returns seL4's name, without the prefix.
            pub const fn name(self) -> &'static str {
                match self { $(Fault::$variant => stringify!($variant),)* }
            }

            /// Returns its comment in the table.
            pub const fn description(self) -> &'static str {
                match self { $(Fault::$variant => concat!($($text),*).trim_ascii(),)* }
            }

            /// Returns the names of the words of its message.
            pub const fn words(self) -> &'static [&'static str] {
                match self { $(Fault::$variant => &[$(stringify!($word)),*],)* }
            }

            /// Returns the maximum number of words of a reply that are written back into the thread.
            pub const fn written_back(self) -> usize {
                match self { $(Fault::$variant => $back,)* }
            }
        }

        $(
            #[doc = concat!("The message of [`Fault::", stringify!($variant), "`].")]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[allow(missing_docs, reason = "the fields are the words of the table")]
            pub struct $variant {
                $(pub $word: u64,)*
            }

            impl $variant {
                /// Number of words.
                pub const WORDS: usize = Fault::$variant.words().len();

                /// Returns the words, in order.
                #[inline(always)]
                pub const fn to_words(self) -> [u64; $variant::WORDS] {
                    let $variant { $($word),* } = self;
                    [$($word),*]
                }

                /// Returns the message with these words.
                #[inline(always)]
                pub const fn from_words(words: [u64; $variant::WORDS]) -> $variant {
                    let [$($word),*] = words;
                    $variant { $($word),* }
                }
            }
        )*
    };
}

faults! {
    /// No fault.
    NullFault = 0 [] writes_back 0;
    /// The capability that a system call named was not found. The words after `lookup_failure` are those of
    /// [`LookupFailureKind::details`](crate::LookupFailureKind::details), and only they are part of the message.
    CapFault = 1 [ip, address, in_receive_phase, lookup_failure, bits_left, guard_or_bits_found, guard_bits_found] writes_back 0;
    /// A system call with a number that does not exist. The last word is the number.
    UnknownSyscall = 2 [fault_ip, sp, ra, a0, a1, a2, a3, a4, a5, a6, syscall] writes_back 10;
    /// An instruction could not be executed. `number` is the content of `scause`.
    UserException = 3 [fault_ip, sp, number, code] writes_back 2;
    /// An address is not mapped, or not for this access. `status` is one of the constants of
    /// [`status`](crate::fault::status).
    VMFault = 5 [ip, address, instruction_fetch, status] writes_back 0;
}

impl CapFault {
    /// Words before those of the failed search.
    const BEFORE_LOOKUP: usize = CapFault::WORDS - FailedLookup::WORDS;

    /// Returns the message about a failed search, and the number of its words that are sent.
    #[inline]
    pub const fn new(ip: u64, address: u64, phase: Phase, failure: FailedLookup) -> (CapFault, usize) {
        let ([lookup_failure, bits_left, guard_or_bits_found, guard_bits_found], count) = failure.to_words();
        let in_receive_phase = phase as u64;
        let fault = CapFault {
            ip,
            address,
            in_receive_phase,
            lookup_failure,
            bits_left,
            guard_or_bits_found,
            guard_bits_found,
        };
        (fault, CapFault::BEFORE_LOOKUP + count)
    }

    /// Returns the phase of the system call in which the search failed.
    #[inline]
    pub const fn phase(self) -> Phase {
        if self.in_receive_phase == 0 { Phase::Send } else { Phase::Receive }
    }

    /// Returns the failed search; `None` if its number is unknown.
    #[inline]
    pub const fn lookup(self) -> Option<FailedLookup> {
        let CapFault { lookup_failure, bits_left, guard_or_bits_found, guard_bits_found, .. } = self;
        FailedLookup::from_words([lookup_failure, bits_left, guard_or_bits_found, guard_bits_found])
    }
}

/// A phase of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The capability is invoked.
    Send = 0,
    /// A message or a signal is received through it.
    Receive = 1,
}

impl Fault {
    /// Returns the registers, by the machine's numbers, whose contents follow the address of the instruction, and which
    /// a reply writes back together with it.
    #[inline]
    pub const fn registers(self) -> &'static [usize] {
        match self {
            Fault::UnknownSyscall => &UNKNOWN_SYSCALL_REGISTERS,
            Fault::UserException => &USER_EXCEPTION_REGISTERS,
            Fault::NullFault | Fault::CapFault | Fault::VMFault => &[],
        }
    }
}

const UNKNOWN_SYSCALL_REGISTERS: [usize; Fault::UnknownSyscall.written_back() - 1] = registers(Fault::UnknownSyscall);
const USER_EXCEPTION_REGISTERS: [usize; Fault::UserException.written_back() - 1] = registers(Fault::UserException);

// Between the address of the instruction and the number of the system call there are only registers.
const _: () = assert!(1 + UNKNOWN_SYSCALL_REGISTERS.len() + 1 == UnknownSyscall::WORDS);

/// Returns the numbers of the registers that give the words behind the first one their names.
const fn registers<const COUNT: usize>(fault: Fault) -> [usize; COUNT] {
    let mut numbers = [0; COUNT];
    let mut index = 0;
    while index < COUNT {
        numbers[index] = registers::number_of(fault.words()[1 + index]);
        index += 1;
    }
    numbers
}

/// Values of the last word of [`Fault::VMFault`]: RISC-V's causes, page faults folded onto access faults.
pub mod status {
    /// An instruction was fetched.
    pub const FETCH: u64 = 1;
    /// Memory was read.
    pub const LOAD: u64 = 5;
    /// Memory was written.
    pub const STORE: u64 = 7;
}
