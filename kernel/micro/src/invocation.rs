//! What an invocation is given, and how it ends: all that decoders and those that carry out have in common.

use abi_sel4::message::MAXIMUM_CAPABILITIES;
use abi_sel4::{InvocationError, Numbering};
use objects::{Ref, Slot, Tcb, Words};

use crate::message::{SendMode, message_register};

/// How labels are numbered in programs that this kernel is for.
pub const NUMBERING: Numbering =
    if cfg!(feature = "smp") { Numbering::Multiprocessor } else { Numbering::Uniprocessor };

/// What a thread passes to an invocation.
#[derive(Clone, Copy)]
pub struct Arguments {
    thread: Ref<Tcb>,
    buffer: Option<Ref<Words>>,
    length: u64,
    capabilities: [Option<Ref<Slot>>; MAXIMUM_CAPABILITIES],
    mode: SendMode,
}

impl Arguments {
    /// Those of a system call.
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

    /// Those of an asynchronous invocation, whose message is that of `proxy`.
    #[inline(always)]
    pub fn of_request(
        proxy: Ref<Tcb>,
        buffer: Option<Ref<Words>>,
        length: u64,
        capabilities: [Option<Ref<Slot>>; MAXIMUM_CAPABILITIES],
    ) -> Arguments {
        Arguments { thread: proxy, buffer, length, capabilities, mode: SendMode::Call }
    }

    /// Who is answered.
    #[inline(always)]
    pub fn thread(&self) -> Ref<Tcb> {
        self.thread
    }

    /// How many words there are.
    #[inline(always)]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether the thread wants an answer.
    #[inline(always)]
    pub fn is_call(&self) -> bool {
        self.mode.is_call()
    }

    /// What becomes of the thread that invokes.
    #[inline(always)]
    pub fn mode(&self) -> SendMode {
        self.mode
    }

    /// A word.
    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        message_register(self.thread, self.buffer, index)
    }

    /// The first words; whoever asks has compared the length.
    #[inline(always)]
    pub fn words<const COUNT: usize>(&self) -> [u64; COUNT] {
        core::array::from_fn(|index| self.word(index))
    }

    /// The first words.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline(always)]
    pub fn at_least<const COUNT: usize>(&self) -> Result<[u64; COUNT], InvocationError> {
        if self.length < COUNT as u64 {
            return Err(InvocationError::TruncatedMessage);
        }
        Ok(self.words())
    }

    /// The slot of a capability that was passed.
    ///
    /// # Errors
    /// If it was not.
    #[inline(always)]
    pub fn capability(&self, index: usize) -> Result<Ref<Slot>, InvocationError> {
        self.capabilities[index].ok_or(InvocationError::TruncatedMessage)
    }
}

/// How an invocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// There is nothing to say.
    Plain,
    /// The answer's words are in the caller's message registers already.
    Answer {
        /// How many there are.
        length: usize,
    },
}

/// An interrupt is pending; the system call is to be made again when it has been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempted;
