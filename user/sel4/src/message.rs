//! Messages through endpoints, and signals.

use abi_sel4::message::REGISTERS;
use abi_sel4::{MessageInfo, SystemCall};

use crate::capability::{Endpoint, Notification};
use crate::raw::{self, Delivered};

/// A message to send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    /// A number of the sender's choice, 52 bits.
    pub label: u64,
    /// Up to 120 words.
    pub words: &'a [u64],
    /// Up to three capabilities, which only arrive if the endpoint's capability has the right to grant.
    pub capabilities: &'a [u64],
}

impl<'a> Message<'a> {
    /// Describes a message without capabilities.
    pub const fn new(label: u64, words: &'a [u64]) -> Message<'a> {
        Message { label, words, capabilities: &[] }
    }

    fn prepare(&self) -> (MessageInfo, [u64; REGISTERS]) {
        raw::prepare(self.label, self.words, self.capabilities)
    }
}

/// A received message or signal.
///
/// Words after the first four stay in the IPC buffer until the thread's next call: read them before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "seL4_MessageInfo")]
pub struct Received {
    delivered: Delivered,
}

impl Received {
    /// Returns the badge of the capability that the sender used. For a signal, the OR of all badges since the last one.
    pub fn badge(&self) -> u64 {
        self.delivered.badge
    }

    /// Returns the sender's label.
    pub fn label(&self) -> u64 {
        self.delivered.info.label()
    }

    /// Returns the number of words.
    pub fn length(&self) -> usize {
        self.delivered.info.length()
    }

    /// Returns the number of capabilities that came, transferred or unwrapped.
    pub fn capabilities(&self) -> usize {
        self.delivered.info.capabilities()
    }

    /// Returns the mask of unwrapped capabilities; [`raw::buffer_badge`] returns their badges.
    pub fn unwrapped(&self) -> usize {
        self.delivered.info.unwrapped()
    }

    /// Returns a word of the message; `None` beyond its length.
    pub fn word(&self, index: usize) -> Option<u64> {
        if index >= self.length() {
            return None;
        }
        Some(self.delivered.registers.get(index).copied().unwrap_or_else(|| raw::buffer_word(index)))
    }

    /// Returns the message's describing word.
    pub fn info(&self) -> MessageInfo {
        self.delivered.info
    }
}

fn make(call: SystemCall, target: u64, message: &Message<'_>) -> Received {
    let (info, registers) = message.prepare();
    Received { delivered: raw::interface_call(call, target, info, registers) }
}

fn receive(call: SystemCall, source: u64) -> Received {
    Received { delivered: raw::interface_call(call, source, MessageInfo::default(), [0; REGISTERS]) }
}

impl Endpoint {
    /// Sends a message and waits until it is received.
    ///
    /// Corresponds to `seL4_Send`.
    #[doc(alias = "seL4_Send")]
    pub fn send(self, message: &Message<'_>) {
        make(SystemCall::Send, self.pointer(), message);
    }

    /// Sends a message if a thread waits for one; else the message is lost, without an error.
    ///
    /// Corresponds to `seL4_NBSend`.
    #[doc(alias = "seL4_NBSend")]
    pub fn send_or_lose(self, message: &Message<'_>) {
        make(SystemCall::NBSend, self.pointer(), message);
    }

    /// Sends a message together with the right to reply, and waits for the reply.
    ///
    /// Corresponds to `seL4_Call`.
    #[doc(alias = "seL4_Call")]
    pub fn call(self, message: &Message<'_>) -> Received {
        make(SystemCall::Call, self.pointer(), message)
    }

    /// Waits for a message, or for a signal to the notification that is bound to this thread.
    ///
    /// Corresponds to `seL4_Recv`.
    #[doc(alias = "seL4_Recv")]
    pub fn receive(self) -> Received {
        receive(SystemCall::Recv, self.pointer())
    }

    /// Receives a message or signal if one is there. One with badge 0 cannot be told from none.
    ///
    /// Corresponds to `seL4_NBRecv`.
    #[doc(alias = "seL4_NBRecv")]
    pub fn receive_now(self) -> Option<Received> {
        let received = receive(SystemCall::NBRecv, self.pointer());
        (received.badge() != 0).then_some(received)
    }

    /// Replies to the last caller and waits for the next message.
    ///
    /// Corresponds to `seL4_ReplyRecv`.
    #[doc(alias = "seL4_ReplyRecv")]
    pub fn reply_and_receive(self, reply: &Message<'_>) -> Received {
        make(SystemCall::ReplyRecv, self.pointer(), reply)
    }
}

/// Replies to the last caller. Without one it has no effect.
///
/// Corresponds to `seL4_Reply`.
#[doc(alias = "seL4_Reply")]
pub fn reply(message: &Message<'_>) {
    make(SystemCall::Reply, 0, message);
}

/// Replies through a capability that `save_caller` has saved, which is consumed by it.
///
/// Corresponds to `seL4_Send`.
#[doc(alias = "seL4_Send")]
pub fn reply_to_saved(reply: u64, message: &Message<'_>) {
    make(SystemCall::Send, reply, message);
}

impl Notification {
    /// Adds the capability's badge to the notification's word and wakes a waiter.
    ///
    /// Corresponds to `seL4_Signal`.
    #[doc(alias = "seL4_Signal")]
    pub fn signal(self) {
        make(SystemCall::Send, self.pointer(), &Message::default());
    }

    /// Signals, without an effect if the capability is gone, which for [`signal`](Notification::signal) is a fault of
    /// the thread.
    ///
    /// Corresponds to `seL4_NBSend`.
    #[doc(alias = "seL4_NBSend")]
    pub fn signal_if_there(self) {
        // Of the sending calls, this one raises no fault.
        make(SystemCall::NBSend, self.pointer(), &Message::default());
    }

    /// Waits until the word is not zero, takes it and leaves zero.
    ///
    /// Corresponds to `seL4_Wait`.
    #[doc(alias = "seL4_Wait")]
    pub fn wait(self) -> u64 {
        receive(SystemCall::Recv, self.pointer()).badge()
    }

    /// Signals `other` as [`signal_if_there`](Notification::signal_if_there) does and waits for this notification, in
    /// one system call. Not a call of seL4, where the thread faults.
    #[inline]
    pub fn wait_after_signal(self, other: Notification) -> u64 {
        raw::signal_and_receive(self.pointer(), other.pointer())
    }

    /// Takes the word if it is not zero.
    ///
    /// Corresponds to `seL4_Poll`.
    #[doc(alias = "seL4_Poll")]
    pub fn poll(self) -> Option<u64> {
        let badge = receive(SystemCall::NBRecv, self.pointer()).badge();
        (badge != 0).then_some(badge)
    }
}
