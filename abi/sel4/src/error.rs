//! Errors of invocations, and reasons why a capability pointer led nowhere.

macro_rules! numbered {
    ($(#[$about:meta])* $type:ident: $($(#[doc = $text:literal])* $variant:ident = $number:literal;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $type {
            $($(#[doc = $text])* $variant = $number,)*
        }

        impl $type {
            /// The whole table.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// Returns the entry with this number.
            #[inline]
            pub const fn from_number(number: usize) -> Option<$type> {
                match number { $($number => Some($type::$variant),)* _ => None }
            }

            /// Returns its number in messages.
            #[inline]
            pub const fn number(self) -> usize {
                self as usize
            }

            /// Returns seL4's name, without the prefix.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => stringify!($variant),)* }
            }

            /// Returns its comment in the table.
            pub const fn description(self) -> &'static str {
                match self { $($type::$variant => concat!($($text),*).trim_ascii(),)* }
            }
        }
    };
}
pub(crate) use numbered;

numbered! {
    /// The label of the answer to an invocation that failed; zero says that it succeeded.
    #[doc(alias = "seL4_Error")]
    Error:
    /// A number other than a capability is wrong; message register 0 is its index, counted from 0.
    InvalidArgument = 1;
    /// A capability is of the wrong kind or lacks a right; message register 0 is its index, 0 being the invoked one.
    InvalidCapability = 2;
    /// The operation is not permitted, or the object does not have it.
    IllegalOperation = 3;
    /// A number is out of range; message registers 0 and 1 hold the least and the largest that are allowed.
    RangeError = 4;
    /// An address is not aligned.
    AlignmentError = 5;
    /// A capability was not found; message register 0 is 1 if the source was meant and 0 for the destination, and a
    /// [`LookupFailureKind`] follows.
    FailedLookup = 6;
    /// Message or capabilities are too few.
    TruncatedMessage = 7;
    /// The destination is in use; it has to be deleted first.
    DeleteFirst = 8;
    /// The object has other capabilities or is in use; it has to be revoked first.
    RevokeFirst = 9;
    /// The untyped memory is too small; message register 0 holds the bytes that are left.
    NotEnoughMemory = 10;
}

numbered! {
    /// Kind of a [`FailedLookup`]: the number of the reason why a capability pointer did not lead to a slot.
    ///
    /// A message contains it together with details, in the order of the words of [`LookupFailureKind::details`].
    #[doc(alias = "seL4_LookupFailureType")]
    LookupFailureKind:
    /// The root of the search is not a CNode.
    InvalidRoot = 1;
    /// The slot is empty.
    MissingCapability = 2;
    /// The bits do not end at a slot.
    DepthMismatch = 3;
    /// A CNode's guard differs from the bits of the pointer.
    GuardMismatch = 4;
}

impl LookupFailureKind {
    /// Returns the names of the words that follow the number of the failure in a message.
    pub const fn details(self) -> &'static [&'static str] {
        match self {
            LookupFailureKind::InvalidRoot => &[],
            LookupFailureKind::MissingCapability => &["bits_left"],
            LookupFailureKind::DepthMismatch => &["bits_left", "bits_found"],
            LookupFailureKind::GuardMismatch => &["bits_left", "guard_found", "bits_found"],
        }
    }
}

/// A [`LookupFailureKind`] with its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedLookup {
    /// [`LookupFailureKind::InvalidRoot`].
    InvalidRoot,
    /// [`LookupFailureKind::MissingCapability`].
    MissingCapability {
        /// Bits of the pointer that were not used.
        bits_left: u64,
    },
    /// [`LookupFailureKind::DepthMismatch`].
    DepthMismatch {
        /// Bits of the pointer that were not used.
        bits_left: u64,
        /// Bits that the CNode would have used.
        bits_found: u64,
    },
    /// [`LookupFailureKind::GuardMismatch`].
    GuardMismatch {
        /// Bits of the pointer that were not used.
        bits_left: u64,
        /// The CNode's guard.
        guard_found: u64,
        /// Bits of the guard.
        bits_found: u64,
    },
}

impl FailedLookup {
    /// Maximum number of its words in a message.
    pub const WORDS: usize = 4;

    /// Returns the failure without its details.
    #[inline]
    pub const fn kind(self) -> LookupFailureKind {
        match self {
            FailedLookup::InvalidRoot => LookupFailureKind::InvalidRoot,
            FailedLookup::MissingCapability { .. } => LookupFailureKind::MissingCapability,
            FailedLookup::DepthMismatch { .. } => LookupFailureKind::DepthMismatch,
            FailedLookup::GuardMismatch { .. } => LookupFailureKind::GuardMismatch,
        }
    }

    /// Returns its words in a message, the number of the failure first, and their count. The others are zero.
    #[inline]
    pub const fn to_words(self) -> ([u64; FailedLookup::WORDS], usize) {
        let kind = self.kind();
        let number = kind.number() as u64;
        let words = match self {
            FailedLookup::InvalidRoot => [number, 0, 0, 0],
            FailedLookup::MissingCapability { bits_left } => [number, bits_left, 0, 0],
            FailedLookup::DepthMismatch { bits_left, bits_found } => [number, bits_left, bits_found, 0],
            FailedLookup::GuardMismatch { bits_left, guard_found, bits_found } => {
                [number, bits_left, guard_found, bits_found]
            }
        };
        (words, 1 + kind.details().len())
    }

    /// Reads the words of a message; `None` if there is no failure with that number.
    #[inline]
    pub const fn from_words(words: [u64; FailedLookup::WORDS]) -> Option<FailedLookup> {
        let [number, bits_left, second, third] = words;
        let Some(kind) = LookupFailureKind::from_number(number as usize) else { return None };
        Some(match kind {
            LookupFailureKind::InvalidRoot => FailedLookup::InvalidRoot,
            LookupFailureKind::MissingCapability => FailedLookup::MissingCapability { bits_left },
            LookupFailureKind::DepthMismatch => FailedLookup::DepthMismatch { bits_left, bits_found: second },
            LookupFailureKind::GuardMismatch => {
                FailedLookup::GuardMismatch { bits_left, guard_found: second, bits_found: third }
            }
        })
    }
}

/// The operand of an invocation that a [`FailedLookup`] concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operand {
    /// The slot that receives a capability, or the only one.
    Destination = 0,
    /// The slot from which a capability is taken.
    Source = 1,
}

/// An [`Error`] with its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvocationError {
    /// [`Error::InvalidArgument`], with the index of the argument.
    InvalidArgument(u64),
    /// [`Error::InvalidCapability`], with the index of the capability.
    InvalidCapability(u64),
    /// [`Error::IllegalOperation`].
    IllegalOperation,
    /// [`Error::RangeError`].
    RangeError {
        /// Smallest number that is allowed.
        minimum: u64,
        /// Largest number that is allowed.
        maximum: u64,
    },
    /// [`Error::AlignmentError`].
    AlignmentError,
    /// [`Error::FailedLookup`].
    FailedLookup {
        /// Operand of the failed search.
        operand: Operand,
        /// The reason.
        failure: FailedLookup,
    },
    /// [`Error::TruncatedMessage`].
    TruncatedMessage,
    /// [`Error::DeleteFirst`].
    DeleteFirst,
    /// [`Error::RevokeFirst`].
    RevokeFirst,
    /// [`Error::NotEnoughMemory`].
    NotEnoughMemory {
        /// Number of bytes left.
        available: u64,
    },
}

impl InvocationError {
    /// Maximum number of its words in a message.
    pub const WORDS: usize = 1 + FailedLookup::WORDS;

    /// Returns the error without its details, which is the label of the answer.
    #[inline]
    pub const fn kind(self) -> Error {
        match self {
            InvocationError::InvalidArgument(_) => Error::InvalidArgument,
            InvocationError::InvalidCapability(_) => Error::InvalidCapability,
            InvocationError::IllegalOperation => Error::IllegalOperation,
            InvocationError::RangeError { .. } => Error::RangeError,
            InvocationError::AlignmentError => Error::AlignmentError,
            InvocationError::FailedLookup { .. } => Error::FailedLookup,
            InvocationError::TruncatedMessage => Error::TruncatedMessage,
            InvocationError::DeleteFirst => Error::DeleteFirst,
            InvocationError::RevokeFirst => Error::RevokeFirst,
            InvocationError::NotEnoughMemory { .. } => Error::NotEnoughMemory,
        }
    }

    /// Returns the words of the answer, and their count. The others are zero.
    #[inline]
    pub const fn to_words(self) -> ([u64; InvocationError::WORDS], usize) {
        match self {
            InvocationError::InvalidArgument(index) | InvocationError::InvalidCapability(index) => {
                ([index, 0, 0, 0, 0], 1)
            }
            InvocationError::RangeError { minimum, maximum } => ([minimum, maximum, 0, 0, 0], 2),
            InvocationError::FailedLookup { operand, failure } => {
                let ([number, first, second, third], count) = failure.to_words();
                ([operand as u64, number, first, second, third], 1 + count)
            }
            InvocationError::NotEnoughMemory { available } => ([available, 0, 0, 0, 0], 1),
            InvocationError::IllegalOperation
            | InvocationError::AlignmentError
            | InvocationError::TruncatedMessage
            | InvocationError::DeleteFirst
            | InvocationError::RevokeFirst => ([0; InvocationError::WORDS], 0),
        }
    }

    /// Reads the words of an answer with this label; `None` if they describe a failed search whose number is unknown.
    #[inline]
    pub const fn from_words(kind: Error, words: [u64; InvocationError::WORDS]) -> Option<InvocationError> {
        let [first, second, third, fourth, fifth] = words;
        Some(match kind {
            Error::InvalidArgument => InvocationError::InvalidArgument(first),
            Error::InvalidCapability => InvocationError::InvalidCapability(first),
            Error::IllegalOperation => InvocationError::IllegalOperation,
            Error::RangeError => InvocationError::RangeError { minimum: first, maximum: second },
            Error::AlignmentError => InvocationError::AlignmentError,
            Error::FailedLookup => {
                let operand = if first == 0 { Operand::Destination } else { Operand::Source };
                match FailedLookup::from_words([second, third, fourth, fifth]) {
                    Some(failure) => InvocationError::FailedLookup { operand, failure },
                    None => return None,
                }
            }
            Error::TruncatedMessage => InvocationError::TruncatedMessage,
            Error::DeleteFirst => InvocationError::DeleteFirst,
            Error::RevokeFirst => InvocationError::RevokeFirst,
            Error::NotEnoughMemory => InvocationError::NotEnoughMemory { available: first },
        })
    }
}
