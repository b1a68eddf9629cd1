//! Access to a thread's message in its registers and its IPC buffer.

use abi_sel4::message::{MAXIMUM_LENGTH, REGISTERS};
use objects::{PageRights, Ref, Tcb, Words, frame_words, own};

/// Offsets of the parts of an [`IpcBuffer`](abi_sel4::IpcBuffer), in words.
pub(crate) mod word {
    use abi_sel4::IpcBuffer;
    use core::mem::offset_of;

    pub const MESSAGE: usize = offset_of!(IpcBuffer, message) / 8;
    pub const CAPABILITIES: usize = offset_of!(IpcBuffer, capabilities_or_badges) / 8;
    pub const RECEIVE_CNODE: usize = offset_of!(IpcBuffer, receive_cnode) / 8;
    pub const RECEIVE_INDEX: usize = offset_of!(IpcBuffer, receive_index) / 8;
    pub const RECEIVE_DEPTH: usize = offset_of!(IpcBuffer, receive_depth) / 8;
}

/// The mode of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// The thread waits for a receiver, then for the reply (`seL4_Call`).
    Call,
    /// The thread waits for a receiver (`seL4_Send`).
    Blocking,
    /// The thread continues, and the message is lost if no receiver waits (`seL4_NBSend`).
    NonBlocking,
}

impl SendMode {
    /// Returns whether the thread waits for a receiver.
    #[inline(always)]
    pub const fn is_blocking(self) -> bool {
        !matches!(self, SendMode::NonBlocking)
    }

    /// Returns whether the thread waits for a reply.
    #[inline(always)]
    pub const fn is_call(self) -> bool {
        matches!(self, SendMode::Call)
    }
}

/// The mode of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveMode {
    /// The thread waits for a message or a signal (`seL4_Recv`).
    Blocking,
    /// The thread continues without a message (`seL4_NBRecv`).
    NonBlocking,
}

/// Reads a message register of a thread: a register, or a word of its IPC buffer.
#[inline(always)]
pub fn message_register(thread: Ref<Tcb>, buffer: Option<Ref<Words>>, index: usize) -> u64 {
    match index {
        0..REGISTERS => thread.register_at(12 + index).get(),
        _ => buffer.map_or(0, |buffer| buffer.get((word::MESSAGE + index) % Words::COUNT)),
    }
}

/// Sets a message register; returns whether it exists.
#[inline(always)]
pub fn set_message_register(thread: Ref<Tcb>, buffer: Option<Ref<Words>>, index: usize, value: u64) -> bool {
    match (index, buffer) {
        (0..REGISTERS, _) => thread.register_at(12 + index).set(value),
        (_, Some(buffer)) if index < MAXIMUM_LENGTH => buffer.set(word::MESSAGE + index, value),
        _ => return false,
    }
    true
}

/// Returns the address of a capability in a message.
#[inline(always)]
pub fn sent_capability(buffer: Ref<Words>, index: usize) -> u64 {
    buffer.get(word::CAPABILITIES + index)
}

/// Returns a thread's IPC buffer for sending, if it has one with at least read rights.
#[inline(always)]
pub fn send_buffer(thread: Ref<Tcb>) -> Option<Ref<Words>> {
    buffer(thread, PageRights::Read)
}

/// Returns a thread's IPC buffer for receiving, if it has one with write rights.
#[inline(always)]
pub fn receive_buffer(thread: Ref<Tcb>) -> Option<Ref<Words>> {
    buffer(thread, PageRights::ReadWrite)
}

/// Returns a thread's IPC buffer, if its frame capability has at least these rights.
#[inline(always)]
fn buffer(thread: Ref<Tcb>, needed: PageRights) -> Option<Ref<Words>> {
    let (base, size, rights) = thread.slots[own::BUFFER].capability.memory()?;
    let offset = thread.buffer_address.get() & ((1 << size.bits()) - 1);
    (rights as u8 >= needed as u8).then(|| frame_words(base + offset))
}
