//! How a call goes on that cannot be done at once: the call as a value, the tables of calls in flight, what takes them
//! from request rings, and the user interrupts that tell a process of results.

pub(crate) mod in_flight;
pub(crate) mod input;
pub(crate) mod interrupts;
pub(crate) mod kernel_side;
pub(crate) mod operation;
pub(crate) mod ready_calls;
pub(crate) mod ring;
