//! The suite: the manual's statements on each invocation and on each of its errors, and the behaviour of seL4 15.0.0
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
