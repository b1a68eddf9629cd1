//! Signals as data: sets, actions, pending signals, and the stack frames of handlers.
//!
//! The crate holds the rules of signal(7) that need no process: which signals a set has, what a signal does by default,
//! which of several pending ones comes first, and how Linux lays a handler's frame out on riscv64. A kernel adds
//! processes and waits to it. All numbers and layouts are Linux's (`asm-generic/signal.h`, `asm-generic/siginfo.h`,
//! `asm/ucontext.h` and `asm/ptrace.h` of riscv64).
//!
//! A frame that a program gives back is checked like any other bytes of a program: [`frame::read`] takes registers from
//! it, all of which a program may set, and nothing else.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod action;
pub mod frame;
mod information;
mod pending;
mod set;

pub use action::{Action, Actions, BrokenPipe, DefaultAction, Disposition, action_flag};
pub use information::{Details, Information, code};
pub use pending::{Full, Pending};
pub use set::{Set, Signal};
