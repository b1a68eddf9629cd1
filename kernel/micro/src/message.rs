//! A thread's message where it stands: in registers, and in the thread's buffer.

use abi_sel4::message::{MAXIMUM_LENGTH, REGISTERS};
use objects::{Ref, Tcb, VirtualRights, Words, frame_words, own};

/// Where the parts of an [`IpcBuffer`](abi_sel4::IpcBuffer) begin, in words.
pub(crate) mod word {
    use abi_sel4::IpcBuffer;
    use core::mem::offset_of;

    pub const COUNT: usize = size_of::<IpcBuffer>() / 8;
    pub const MESSAGE: usize = offset_of!(IpcBuffer, message) / 8;
    pub const CAPABILITIES: usize = offset_of!(IpcBuffer, capabilities_or_badges) / 8;
    pub const RECEIVE_CNODE: usize = offset_of!(IpcBuffer, receive_cnode) / 8;
    pub const RECEIVE_INDEX: usize = offset_of!(IpcBuffer, receive_index) / 8;
    pub const RECEIVE_DEPTH: usize = offset_of!(IpcBuffer, receive_depth) / 8;
}

/// A message register of a thread: a register, or a word of its buffer.
#[inline(always)]
pub fn message_register(thread: Ref<Tcb>, buffer: Option<Ref<Words>>, index: usize) -> u64 {
    match index {
        0..REGISTERS => thread.register_at(12 + index).get(),
        _ => buffer.map_or(0, |buffer| buffer.get((word::MESSAGE + index) % word::COUNT)),
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

/// A thread's message buffer, if it has one that may be used so.
#[inline(always)]
pub fn buffer(thread: Ref<Tcb>, for_writing: bool) -> Option<Ref<Words>> {
    let (base, size, rights) = thread.slots[own::BUFFER].capability.memory()?;
    let allowed = match rights {
        VirtualRights::ReadWrite => true,
        VirtualRights::ReadOnly => !for_writing,
        VirtualRights::KernelOnly => false,
    };
    let offset = thread.buffer_address.get() & ((1 << size.bits()) - 1);
    allowed.then(|| frame_words(base + offset))
}
