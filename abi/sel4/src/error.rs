//! Why an invocation failed, and why a capability pointer led nowhere.

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

            /// The entry with this number.
            #[inline]
            pub const fn from_number(number: usize) -> Option<$type> {
                match number { $($number => Some($type::$variant),)* _ => None }
            }

            /// Its number in messages.
            #[inline]
            pub const fn number(self) -> usize {
                self as usize
            }

            /// seL4's name, without the prefix.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => stringify!($variant),)* }
            }

            /// What it means: the sentences that stand above it in the table.
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
    /// A number other than a capability is wrong; message register 0 says which, counted from 0.
    InvalidArgument = 1;
    /// A capability is of the wrong kind or lacks a right; message register 0 says which, 0 being the invoked one.
    InvalidCapability = 2;
    /// The operation is not permitted, or the capability does not know it.
    IllegalOperation = 3;
    /// A number is out of range; message registers 0 and 1 hold the least and the largest that are allowed.
    RangeError = 4;
    /// An address is not aligned.
    AlignmentError = 5;
    /// A capability was not found; message register 0 is 1 if the source was meant and 0 for the destination, and a
    /// [`LookupFailure`] follows.
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
    /// Why a capability pointer did not lead to a slot.
    ///
    /// It stands in a message together with details, in the order of the words of [`LookupFailure::details`].
    #[doc(alias = "seL4_LookupFailureType")]
    LookupFailure:
    /// The root of the search is no CNode.
    InvalidRoot = 1;
    /// The slot is empty.
    MissingCapability = 2;
    /// The bits do not end at a slot.
    DepthMismatch = 3;
    /// A CNode's guard differs from the bits of the pointer.
    GuardMismatch = 4;
}

impl LookupFailure {
    /// The words that follow the number of the failure in a message.
    pub const fn details(self) -> &'static [&'static str] {
        match self {
            LookupFailure::InvalidRoot => &[],
            LookupFailure::MissingCapability => &["bits_left"],
            LookupFailure::DepthMismatch => &["bits_left", "bits_found"],
            LookupFailure::GuardMismatch => &["bits_left", "guard_found", "bits_found"],
        }
    }
}
