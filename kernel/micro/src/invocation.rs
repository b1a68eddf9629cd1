//! Arguments and results of invocations, shared by all decoders and invocations.

use abi_sel4::message::MAXIMUM_CAPABILITIES;
use abi_sel4::{InvocationError, Numbering};
use objects::{Ref, Slot, Tcb, Words};

use crate::message::{SendMode, message_register};

/// Numbering of invocation labels in this kernel's programs.
pub const NUMBERING: Numbering =
    if cfg!(feature = "smp") { Numbering::Multiprocessor } else { Numbering::Uniprocessor };

/// The arguments that a thread passes to an invocation.
#[derive(Clone, Copy)]
pub struct Arguments {
    thread: Ref<Tcb>,
    buffer: Option<Ref<Words>>,
    length: u64,
    capabilities: [Option<Ref<Slot>>; MAXIMUM_CAPABILITIES],
    mode: SendMode,
}

impl Arguments {
    /// Makes the arguments of a system call.
    #[inline(always)]
    pub fn of_call(
        thread: Ref<Tcb>,
        buffer: Option<Ref<Words>>,
        length: u64,
        capabilities: [Option<Ref<Slot>>; MAXIMUM_CAPABILITIES],
        mode: SendMode,
    ) -> Arguments {
        Arguments { thread, buffer, length, capabilities, mode }
    }

    /// Makes the arguments of an asynchronous invocation, whose message is in the thread `proxy`.
    #[inline(always)]
    pub fn of_request(
        proxy: Ref<Tcb>,
        buffer: Option<Ref<Words>>,
        length: u64,
        capabilities: [Option<Ref<Slot>>; MAXIMUM_CAPABILITIES],
    ) -> Arguments {
        Arguments { thread: proxy, buffer, length, capabilities, mode: SendMode::Call }
    }

    /// Returns the thread that gets the answer.
    #[inline(always)]
    pub fn thread(&self) -> Ref<Tcb> {
        self.thread
    }

    /// Returns the number of message words.
    #[inline(always)]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns whether the thread waits for an answer.
    #[inline(always)]
    pub fn is_call(&self) -> bool {
        self.mode.is_call()
    }

    /// Returns the mode of the system call.
    #[inline(always)]
    pub fn mode(&self) -> SendMode {
        self.mode
    }

    /// Returns a message word.
    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        message_register(self.thread, self.buffer, index)
    }

    /// Returns the first message words; the caller has checked the length.
    #[inline(always)]
    pub fn words<const COUNT: usize>(&self) -> [u64; COUNT] {
        core::array::from_fn(|index| self.word(index))
    }

    /// Returns the first message words, with a check of the length.
    ///
    /// # Errors
    /// If the message is shorter.
    #[inline(always)]
    pub fn at_least<const COUNT: usize>(&self) -> Result<[u64; COUNT], InvocationError> {
        if self.length < COUNT as u64 {
            return Err(InvocationError::TruncatedMessage);
        }
        Ok(self.words())
    }

    /// Returns the slot of a capability argument.
    ///
    /// # Errors
    /// If the message has no such capability.
    #[inline(always)]
    pub fn capability(&self, index: usize) -> Result<Ref<Slot>, InvocationError> {
        self.capabilities[index].ok_or(InvocationError::TruncatedMessage)
    }
}

/// Result of a completed invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Success without answer words.
    Plain,
    /// The answer's words are in the caller's message registers already.
    Answer {
        /// Number of words.
        length: usize,
    },
}

/// The invocation stopped at a preemption point; the system call is restarted later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempted;
