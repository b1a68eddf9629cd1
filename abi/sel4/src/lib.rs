//! The contract between programs and the microkernel: seL4's for riscv64, without the MCS extensions.
//!
//! A program that was built for seL4 15.0.0 on `qemu-riscv-virt` must run on the microkernel unchanged, so all but the
//! entries marked *not in seL4* is seL4's: numbers, layouts and names are those of seL4's reference manual and of its
//! interface files, which are published under the BSD licence. Each fact is written once, in a table; decoders, names
//! in traces and the reference page are derived from it.
//!
//! seL4's numbers depend on its configuration. This crate fixes the one compiled into user programs: 64-bit words, page
//! tables of three levels, an FPU, no hardware breakpoints. Two choices remain, and are values: [`Numbering`] says
//! whether the kernel was built for several cores, which shifts the invocation labels, and [`debug_call::Build`] which
//! calls for debugging and measuring there are, in which release.
//!
//! Names follow the manual, written out: its "CPtr" is a capability pointer, its "CNode" keeps its name.
#![no_std]
#![forbid(unsafe_code)]

pub mod asynchronous;
pub mod boot;
pub mod call;
pub mod configuration;
pub mod debug_call;
pub mod error;
pub mod fault;
pub mod invocation;
pub mod message;
pub mod object;
pub mod registers;

pub use boot::{BootInfo, SlotRegion, UntypedDescription};
pub use call::SystemCall;
pub use debug_call::DebugCall;
pub use error::{Error, FailedLookup, InvocationError, LookupFailureKind, Operand};
pub use fault::Fault;
pub use invocation::{Invocation, Numbering};
pub use message::{CNodeData, IpcBuffer, MessageInfo, Rights, Trigger};
pub use object::{CapabilityTag, ObjectType};
pub use registers::Registers;
