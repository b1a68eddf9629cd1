//! Messages: their describing word, the buffer for words beyond the registers, and words with fields that travel in
//! them.

/// The longest message in words.
pub const MAXIMUM_LENGTH: usize = 120;
/// The most capabilities in one message.
pub const MAXIMUM_CAPABILITIES: usize = 3;
/// Words of a message that travel in registers.
pub const REGISTERS: usize = 4;

/// The word that describes a message: a label, the number of words, the number of capabilities.
///
/// `label << 12 | capsUnwrapped << 9 | extraCaps << 7 | length`
#[doc(alias = "seL4_MessageInfo")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct MessageInfo(pub u64);

impl MessageInfo {
    /// Describes a message of `length` words with `capabilities`.
    ///
    /// Values too large for a field are cut, as in seL4's own constructor: 52, 2 and 7 bits.
    #[inline]
    pub const fn new(label: u64, capabilities: usize, length: usize) -> MessageInfo {
        MessageInfo(label << 12 | (capabilities as u64 & 3) << 7 | (length as u64 & 0x7f))
    }

    /// Adds the set of capabilities that the kernel did not transfer but *unwrapped*, a bit for each.
    #[inline]
    pub const fn with_unwrapped(self, unwrapped: usize) -> MessageInfo {
        MessageInfo(self.0 & !(7 << 9) | (unwrapped as u64 & 7) << 9)
    }

    /// Returns the sender's label: an invocation's, or an error in the answer to one.
    #[inline]
    pub const fn label(self) -> u64 {
        self.0 >> 12
    }

    /// Returns the set of unwrapped capabilities: those sent through the endpoint to which they refer, so that the
    /// receiver gets their badge. A bit for each.
    #[inline]
    pub const fn unwrapped(self) -> usize {
        (self.0 >> 9 & 7) as usize
    }

    /// Returns the number of capabilities that the message carries.
    #[inline]
    pub const fn capabilities(self) -> usize {
        (self.0 >> 7 & 3) as usize
    }

    /// Returns the number of words in the field, which can be up to 127.
    #[inline]
    pub const fn length(self) -> usize {
        (self.0 & 0x7f) as usize
    }

    /// Returns the number of words of a message that travels in registers alone: without capabilities, and with no more
    /// words than fit.
    #[inline(always)]
    pub const fn length_in_registers(self) -> Option<usize> {
        // The number of capabilities is just above the length, so that one comparison serves both.
        let extent = (self.0 & 0x1ff) as usize;
        if extent <= REGISTERS { Some(extent) } else { None }
    }

    /// Returns the description for a receiver that gets the words and no capabilities.
    #[inline(always)]
    pub const fn without_capabilities(self) -> MessageInfo {
        MessageInfo(self.0 & !(0x1f << 7))
    }
}

/// Permissions of a capability to an endpoint, notification or page. The microkernel stores those of a page in the
/// reduced form `objects::PageRights`, into which its `restrict_page` converts.
///
/// `grantReply << 3 | grant << 2 | read << 1 | write`
#[doc(alias = "seL4_CapRights")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Rights(pub u8);

impl Rights {
    /// To send, signal or write.
    pub const WRITE: Rights = Rights(1);
    /// To receive, wait or read.
    pub const READ: Rights = Rights(2);
    /// To send capabilities.
    pub const GRANT: Rights = Rights(4);
    /// To be replied to.
    pub const GRANT_REPLY: Rights = Rights(8);
    /// Nothing.
    pub const NONE: Rights = Rights(0);
    /// All of them.
    pub const ALL: Rights = Rights(15);
    /// To read and to write.
    pub const READ_WRITE: Rights = Rights(3);

    /// Returns the rights in a word of a message; bits above the four rights are dropped.
    #[inline(always)]
    pub const fn from_word(word: u64) -> Rights {
        Rights(word as u8 & Rights::ALL.0)
    }

    /// Returns the set as a word of a message.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0 as u64
    }

    /// Returns the rights that are in either set.
    #[inline(always)]
    pub const fn union(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Returns the rights that are in both sets.
    #[inline(always)]
    pub const fn intersection(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }

    /// Whether both sets have a right in common.
    #[inline(always)]
    pub const fn intersects(self, other: Rights) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all rights of `other` are in this set.
    #[inline(always)]
    pub const fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Guard that a CNode's capability gets when it is minted, mutated, or becomes the root of a thread.
///
/// `guard << 6 | guardSize`. Zero means to leave the guard as it is where a root is set, and an empty guard where one
/// is minted.
#[doc(alias = "seL4_CNode_CapData")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct CNodeData(pub u64);

impl CNodeData {
    /// Makes a guard of `size` bits.
    #[inline]
    pub const fn new(guard: u64, size: usize) -> CNodeData {
        CNodeData(guard << 6 | (size as u64 & 63))
    }

    /// Returns the bits that must be found; 58 of them are stored.
    #[inline]
    pub const fn guard(self) -> u64 {
        self.0 >> 6
    }

    /// Returns the number of bits of the guard.
    #[inline]
    pub const fn guard_size(self) -> usize {
        (self.0 & 63) as usize
    }
}

/// The trigger of a device's interrupt, in `IRQControl_GetTrigger`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Trigger {
    /// Its wire is high.
    Level = 0,
    /// Its wire rises.
    Edge = 1,
}

impl Trigger {
    /// Returns the trigger in a word of a message.
    #[inline]
    pub const fn from_word(word: u64) -> Trigger {
        if word == 0 { Trigger::Level } else { Trigger::Edge }
    }

    /// Returns the trigger as a word of a message.
    #[inline]
    pub const fn word(self) -> u64 {
        self as u64
    }
}

/// Attributes of a page's mapping: instructions cannot be fetched from it.
pub const EXECUTE_NEVER: u64 = 1;

/// Bit of the first word of `TCB_ReadRegisters`: suspend the thread.
pub const READ_REGISTERS_SUSPEND: u64 = 1;
/// Bit of the first word of `TCB_WriteRegisters`: resume the thread.
pub const WRITE_REGISTERS_RESUME: u64 = 1;
/// Bit of the first word of `TCB_CopyRegisters`: suspend the source.
pub const COPY_REGISTERS_SUSPEND_SOURCE: u64 = 1;
/// Bit of the first word of `TCB_CopyRegisters`: resume the destination.
pub const COPY_REGISTERS_RESUME_TARGET: u64 = 2;
/// Bit of the first word of `TCB_CopyRegisters`: copy the *frame* registers, see [`crate::registers`].
pub const COPY_REGISTERS_FRAME: u64 = 4;
/// Bit of the first word of `TCB_CopyRegisters`: copy the *integer* registers.
pub const COPY_REGISTERS_INTEGER: u64 = 8;
/// Flag of `TCB_SetFlags`: the thread cannot use the FPU.
pub const TCB_FLAG_FPU_DISABLED: u64 = 1;

/// A thread's IPC buffer, for exchanges between kernel and program beside registers.
#[doc(alias = "seL4_IPCBuffer")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(1024))]
pub struct IpcBuffer {
    /// Place for the describing word; the kernel neither reads nor writes it.
    pub tag: u64,
    /// The message. The first [`REGISTERS`] words travel in registers and are not read here.
    pub message: [u64; MAXIMUM_LENGTH],
    /// Word of the program, which libraries point at the buffer itself.
    pub user_data: u64,
    /// Capability pointers to send; on receipt the badges of unwrapped capabilities.
    pub capabilities_or_badges: [u64; MAXIMUM_CAPABILITIES],
    /// CNode in which a received capability is put.
    pub receive_cnode: u64,
    /// Index of the slot for it, resolved from that CNode.
    pub receive_index: u64,
    /// Number of bits of the index that are resolved.
    pub receive_depth: u64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<IpcBuffer>() == 1 << crate::object::IPC_BUFFER_BITS);
    assert!(align_of::<IpcBuffer>() == size_of::<IpcBuffer>());
    assert!(offset_of!(IpcBuffer, tag) == 0);
    assert!(offset_of!(IpcBuffer, message) == 8);
    assert!(offset_of!(IpcBuffer, user_data) == 968);
    assert!(offset_of!(IpcBuffer, capabilities_or_badges) == 976);
    assert!(offset_of!(IpcBuffer, receive_cnode) == 1000);
    assert!(offset_of!(IpcBuffer, receive_index) == 1008);
    assert!(offset_of!(IpcBuffer, receive_depth) == 1016);
};
