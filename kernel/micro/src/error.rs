//! Why an invocation fails.

use objects::LookupFailure;

/// What an invocation answers instead of being done. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// An argument, by its index, has no meaning.
    InvalidArgument(u64),
    /// A capability, by its index, is of the wrong kind.
    InvalidCapability(u64),
    /// This cannot be done, or not now.
    IllegalOperation,
    /// An argument is out of range.
    RangeError {
        /// The smallest that is allowed.
        minimum: u64,
        /// The largest.
        maximum: u64,
    },
    /// An address is not aligned.
    AlignmentError,
    /// A capability could not be found.
    FailedLookup {
        /// Whether it was the source that was looked for.
        is_source: bool,
        /// Why.
        failure: LookupFailure,
    },
    /// Arguments or capabilities are missing.
    TruncatedMessage,
    /// The destination is in use.
    DeleteFirst,
    /// There are capabilities that were derived from this one.
    RevokeFirst,
    /// There is not enough memory.
    NotEnoughMemory {
        /// Bytes that there are.
        available: u64,
    },
}

/// An interrupt is pending; the system call is to be made again when it has been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempted;

/// The words that describe a failed look-up, and how many.
pub fn failure_words(failure: LookupFailure) -> ([u64; 4], usize) {
    let number = failure.number();
    match failure {
        LookupFailure::InvalidRoot => ([number, 0, 0, 0], 1),
        LookupFailure::MissingCapability { bits_left } => ([number, bits_left, 0, 0], 2),
        LookupFailure::DepthMismatch { bits_left, bits_found } => ([number, bits_left, bits_found, 0], 3),
        LookupFailure::GuardMismatch { bits_left, guard_found, bits_found } => {
            ([number, bits_left, guard_found, bits_found], 4)
        }
    }
}

impl Error {
    /// The label of the answer, its words, and how many these are.
    pub fn answer(self) -> (u64, [u64; 5], usize) {
        use abi_sel4::Error as Label;
        let none = ([0; 5], 0);
        let one = |word| ([word, 0, 0, 0, 0], 1);
        let (label, (words, count)) = match self {
            Error::InvalidArgument(index) => (Label::InvalidArgument, one(index)),
            Error::InvalidCapability(index) => (Label::InvalidCapability, one(index)),
            Error::IllegalOperation => (Label::IllegalOperation, none),
            Error::RangeError { minimum, maximum } => (Label::RangeError, ([minimum, maximum, 0, 0, 0], 2)),
            Error::AlignmentError => (Label::AlignmentError, none),
            Error::FailedLookup { is_source, failure } => {
                let (words, count) = failure_words(failure);
                let all = [is_source.into(), words[0], words[1], words[2], words[3]];
                (Label::FailedLookup, (all, 1 + count))
            }
            Error::TruncatedMessage => (Label::TruncatedMessage, none),
            Error::DeleteFirst => (Label::DeleteFirst, none),
            Error::RevokeFirst => (Label::RevokeFirst, none),
            Error::NotEnoughMemory { available } => (Label::NotEnoughMemory, one(available)),
        };
        (label.number() as u64, words, count)
    }
}
