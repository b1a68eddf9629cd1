//! System calls: eight of the interface, those of this kernel, and those of builds for debugging or measuring, whose
//! numbers depend on the build ([`debug_call`](crate::debug_call)).
//!
//! # Registers
//!
//! | register | on the call | on return |
//! |---|---|---|
//! | `a7` | number, negative | unchanged |
//! | `a0` | capability pointer | badge of the sender, where a message is received |
//! | `a1` | [`MessageInfo`](crate::MessageInfo) | the same of the received message |
//! | `a2` … `a5` | the first four message registers | those of the received message, as far as it is long |
//!
//! The other message registers lie in the [`IpcBuffer`](crate::IpcBuffer). All other registers are preserved, and
//! compiled programs rely on more: yielding and the debug calls change no register but their result, in `a0`; sending
//! changes none; receiving from a notification changes `a0` only; and receiving a message of *n* words writes the first
//! *n* of `a2` … `a5` only.

/// Kernels that have a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Part of the interface, in every build of the kernel.
    Interface,
    /// In this project's kernel only.
    Own,
}

macro_rules! system_calls {
    ($($(#[doc = $text:literal])* $variant:ident = $number:literal ($($argument:ident),*) $group:ident;)*) => {
        /// A system call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i8)]
        #[doc(alias = "seL4_Syscall_ID")]
        pub enum SystemCall {
            $($(#[doc = $text])* $variant = $number,)*
        }

        /// Numbers in `a7` for each call, as constants that a `match` on the register can name: decoding the whole
        /// table first costs a kernel two instructions in each call.
        #[allow(non_upper_case_globals, missing_docs, reason = "the names are those of the table")]
        pub mod number {
            $(pub const $variant: u64 = super::SystemCall::$variant.number() as u64;)*
        }

        impl SystemCall {
            /// The whole table.
            pub const ALL: &'static [SystemCall] = &[$(SystemCall::$variant),*];

            /// Returns the call with this number; `None` is answered with the fault
            /// [`UnknownSyscall`](crate::Fault::UnknownSyscall).
            #[inline]
            pub const fn from_number(number: isize) -> Option<SystemCall> {
                match number { $($number => Some(SystemCall::$variant),)* _ => None }
            }

            /// Returns seL4's name, without the prefix.
            pub const fn name(self) -> &'static str {
                match self { $(SystemCall::$variant => stringify!($variant),)* }
            }

            /// Returns its comment in the table.
            pub const fn description(self) -> &'static str {
                match self { $(SystemCall::$variant => concat!($($text),*).trim_ascii(),)* }
            }

            /// Returns the contents of `a0` and the following registers.
            pub const fn arguments(self) -> &'static [&'static str] {
                match self { $(SystemCall::$variant => &[$(stringify!($argument)),*],)* }
            }

            /// Returns the kernels that have it.
            pub const fn group(self) -> Group {
                match self { $(SystemCall::$variant => Group::$group,)* }
            }
        }
    };
}

system_calls! {
    /// Invokes a capability, hands over a reply capability and waits for the reply.
    Call = -1 (capability, message) Interface;
    /// Replies to the last caller, then receives.
    ReplyRecv = -2 (source, message) Interface;
    /// Invokes a capability, and waits until the message has been taken.
    Send = -3 (capability, message) Interface;
    /// Invokes a capability; without a receiver the message is lost.
    NBSend = -4 (capability, message) Interface;
    /// Waits for a message or a signal.
    Recv = -5 (source) Interface;
    /// Replies to the last caller.
    Reply = -6 (zero, message) Interface;
    /// Yields to the threads of the same priority for the rest of the turn.
    Yield = -7 () Interface;
    /// Receives a message or a signal if one is there; otherwise the badge is zero.
    NBRecv = -8 (source) Interface;
    /// Makes the kernel carry out the requests in the calling thread's SyscallBuffer; `a0` is 0 then, or 1 if it has
    /// none. Changes no other register.
    WakeSyscallHandler = -64 () Own;
    /// Ends the handler of a user interrupt: the thread goes on at this address, with `a0` and `a7` as they were when
    /// it was interrupted. A thread that is in no handler faults, as for a call that does not exist.
    ReturnFromUserInterrupt = -65 (address) Own;
    /// Signals a notification, without an effect if that is no capability with the right to, then receives. A wait that
    /// is restarted signals again.
    SignalRecv = -66 (source, notification) Own;
}

impl SystemCall {
    /// Returns the number for `a7`.
    #[inline]
    pub const fn number(self) -> isize {
        self as isize
    }
}
