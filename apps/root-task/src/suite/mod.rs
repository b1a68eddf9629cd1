//! The suite: what the manual says of each invocation and of each of its errors, and what seL4 15.0.0 was seen to do
//! where the manual is silent. It has passed on seL4 itself.

pub mod address_space;
pub mod asynchronous;
pub mod capability;
pub mod crowd;
pub mod fault;
pub mod hostile;
pub mod illegal;
pub mod interrupt;
pub mod ipc;
pub mod notification;
pub mod scheduling;
pub mod thread;
pub mod untyped;
pub mod user_interrupt;
