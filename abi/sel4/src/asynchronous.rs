//! Invocations and other requests that a SyscallBuffer accepts.
//!
//! The requests and responses are those of the crate `abi-queue` (`syscall_buffer`). A request describes its message as
//! register `a1` of a system call does, and a response its answer: the same labels, the same errors with the same
//! details. Three things are different, because no thread waits in the kernel: a failed search for a capability, which
//! makes a system call fault, is answered with [`FailedLookup`](crate::Error::FailedLookup) and the reason; an
//! invocation that is not covered here is [`IllegalOperation`](crate::Error::IllegalOperation); and a message has no
//! more than eight words.

use crate::Invocation;

/// Label of a request that writes the first word of its message to the console, as a character. It names no capability.
pub const PUT_CHAR: u64 = 0x1_0000;
/// Label of a request that writes as many bytes of its message to the console as given by the message's length, at most
/// [`STRING_BYTES`]. It names no capability.
pub const PUT_STRING: u64 = 0x1_0001;
/// Maximum number of bytes that one request writes.
pub const STRING_BYTES: usize = 64;

/// Whether an invocation can be made asynchronously.
#[inline]
pub const fn covers(invocation: Invocation) -> bool {
    use Invocation::*;
    matches!(
        invocation,
        UntypedRetype
            | TcbBindNotification
            | TcbUnbindNotification
            | CNodeRevoke
            | CNodeDelete
            | CNodeCancelBadgedSends
            | CNodeCopy
            | CNodeMint
            | CNodeMove
            | CNodeMutate
            | CNodeRotate
            | PageTableMap
            | PageTableUnmap
            | PageMap
            | PageUnmap
            | PageGetAddress
    )
}
