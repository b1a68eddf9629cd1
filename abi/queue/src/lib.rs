//! Memory that a process and a kernel share: priorities and ready bitmaps, the process page, the global page, the
//! rings of requests and completions, the SyscallBuffer.
//!
//! Both kernels use the same layouts. Nothing here runs by itself, and everything that crosses the line between a
//! process and a kernel is an atomic word: the other side may write at any moment, and each side reads once, checks,
//! then uses.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod channel;
pub mod completion;
pub mod pages;
pub mod priority;
pub mod request;
pub mod syscall_buffer;

pub use completion::{Completion, CompletionHeader};
pub use pages::{GlobalPage, InterruptWord, Mode, ProcessPage, SystemMode};
pub use priority::{MAXIMUM_WORKERS, PRIORITIES, Priority, ReadyWord};
pub use request::{Request, RequestHeader};
pub use syscall_buffer::{SyscallRequest, SyscallResponse};
