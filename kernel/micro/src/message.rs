//! A thread's message where it stands: in registers, and in the thread's buffer.

use abi_sel4::message::{MAXIMUM_LENGTH, REGISTERS};
use objects::{Ref, Tcb, VirtualRights, Words, frame_words, own};

/// Where the parts of an [`IpcBuffer`](abi_sel4::IpcBuffer) begin, in words.
pub(crate) mod word {
    use abi_sel4::IpcBuffer;
    use core::mem::offset_of;

    pub const MESSAGE: usize = offset_of!(IpcBuffer, message) / 8;
    pub const CAPABILITIES: usize = offset_of!(IpcBuffer, capabilities_or_badges) / 8;
    pub const RECEIVE_CNODE: usize = offset_of!(IpcBuffer, receive_cnode) / 8;
    pub const RECEIVE_INDEX: usize = offset_of!(IpcBuffer, receive_index) / 8;
    pub const RECEIVE_DEPTH: usize = offset_of!(IpcBuffer, receive_depth) / 8;
}

/// What becomes of the thread that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// The thread waits until somebody receives, then for an answer (`seL4_Call`).
    Call,
    /// The thread waits until somebody receives (`seL4_Send`).
    Blocking,
    /// The thread goes on, and the message is lost if nobody waits for it (`seL4_NBSend`).
    NonBlocking,
}

impl SendMode {
    /// Whether the thread waits until somebody receives.
    #[inline(always)]
    pub const fn is_blocking(self) -> bool {
        !matches!(self, SendMode::NonBlocking)
    }

    /// Whether the thread wants an answer.
    #[inline(always)]
    pub const fn is_call(self) -> bool {
        matches!(self, SendMode::Call)
    }
}

/// What becomes of a thread that receives while there is no message and no signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveMode {
    /// The thread waits (`seL4_Recv`).
    Blocking,
    /// The thread goes on without (`seL4_NBRecv`).
    NonBlocking,
}

/// A message register of a thread: a register, or a word of its buffer.
#[inline(always)]
pub fn message_register(thread: Ref<Tcb>, buffer: Option<Ref<Words>>, index: usize) -> u64 {
    match index {
        0..REGISTERS => thread.register_at(12 + index).get(),
        _ => buffer.map_or(0, |buffer| buffer.get((word::MESSAGE + index) % Words::COUNT)),
    }
}

/// Sets a message register; says whether there is such a one.
#[inline(always)]
pub fn set_message_register(thread: Ref<Tcb>, buffer: Option<Ref<Words>>, index: usize, value: u64) -> bool {
    match (index, buffer) {
        (0..REGISTERS, _) => thread.register_at(12 + index).set(value),
        (_, Some(buffer)) if index < MAXIMUM_LENGTH => buffer.set(word::MESSAGE + index, value),
        _ => return false,
    }
    true
}

/// The address of a capability that a thread sends along.
#[inline(always)]
pub fn sent_capability(buffer: Ref<Words>, index: usize) -> u64 {
    buffer.get(word::CAPABILITIES + index)
}

/// A thread's message buffer, if it has one that the thread may read: for messages that it sends.
#[inline(always)]
pub fn send_buffer(thread: Ref<Tcb>) -> Option<Ref<Words>> {
    buffer(thread, VirtualRights::ReadOnly)
}

/// A thread's message buffer, if it has one that the thread may write: for messages and answers that it gets.
#[inline(always)]
pub fn receive_buffer(thread: Ref<Tcb>) -> Option<Ref<Words>> {
    buffer(thread, VirtualRights::ReadWrite)
}

/// A thread's message buffer, if its page is mapped with these rights at least.
#[inline(always)]
fn buffer(thread: Ref<Tcb>, needed: VirtualRights) -> Option<Ref<Words>> {
    let (base, size, rights) = thread.slots[own::BUFFER].capability.memory()?;
    let offset = thread.buffer_address.get() & ((1 << size.bits()) - 1);
    (rights as u8 >= needed as u8).then(|| frame_words(base + offset))
}
