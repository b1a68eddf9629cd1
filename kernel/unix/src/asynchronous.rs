//! Calls that cannot be done at once: the call as a value, the tables of calls in flight, request rings and their
//! handlers, and the user interrupts that announce results to a process.

pub(crate) mod batch;
pub(crate) mod in_flight;
pub(crate) mod input;
pub(crate) mod limited;
pub(crate) mod messages;
pub(crate) mod operation;
pub(crate) mod ready_calls;
pub(crate) mod relay;
pub(crate) mod ring;
pub(crate) mod ring_words;
pub(crate) mod rings;
pub(crate) mod splice;
pub(crate) mod submission;
pub(crate) mod user_interrupts;
