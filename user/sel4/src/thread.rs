//! Threads of this program: they share its CSpace and its address space.

use abi_sel4::object::{IPC_BUFFER_BITS, PAGE_BITS};
use abi_sel4::{CNodeData, ObjectType, Registers};

use crate::allocator::Allocator;
use crate::capability::{Page, Slot, Spaces, Thread, initial};
use crate::mapping::Window;
use crate::raw::Result;

/// Parameters of a new thread.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Function that it runs. When it returns, the thread stops.
    pub function: fn(u64),
    /// Argument of the function.
    pub argument: u64,
    /// Priority of the thread.
    pub priority: u64,
    /// Capability pointer of the endpoint that gets the thread's faults; zero for none.
    pub fault_endpoint: u64,
    /// Number of pages of its stack.
    pub stack_pages: u64,
}

impl Start {
    /// Describes a thread that runs a function, with four pages of stack and without a fault handler.
    pub const fn new(function: fn(u64), argument: u64, priority: u64) -> Start {
        Start { function, argument, priority, fault_endpoint: 0, stack_pages: 4 }
    }
}

/// A thread and its memory.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// The thread.
    pub thread: Thread,
    /// Address of its IPC buffer.
    pub buffer: u64,
    /// Page of its IPC buffer.
    pub buffer_page: Page,
    /// End of its stack.
    pub stack_end: u64,
}

/// Makes a thread with its stack and IPC buffer, ready to be resumed.
///
/// # Errors
///
/// Slots, memory or addresses are too few, or the priority is above the calling program's.
pub fn prepare(allocator: &mut Allocator, window: &mut Window, start: Start) -> Result<Started> {
    let thread = Thread::from_pointer(allocator.object(ObjectType::Tcb)?);
    let (buffer, buffer_page) = window.pages(allocator, 1)?;
    let (stack, _) = window.pages(allocator, start.stack_pages)?;
    let stack_end = stack + (start.stack_pages << PAGE_BITS);
    let spaces = Spaces {
        fault_endpoint: start.fault_endpoint,
        cspace: initial::CNODE,
        cspace_data: CNodeData::default(),
        address_space: initial::ADDRESS_SPACE,
    };
    thread.configure(spaces, buffer, buffer_page)?;
    thread.set_scheduling(initial::THREAD, start.priority, start.priority)?;
    thread.write_registers(&registers(&start, thread, buffer, stack_end))?;
    Ok(Started { thread, buffer, buffer_page, stack_end })
}

/// Returns the registers with which a thread starts.
pub fn registers(start: &Start, thread: Thread, buffer: u64, stack_end: u64) -> Registers {
    debug_assert!(buffer.is_multiple_of(1 << IPC_BUFFER_BITS) && stack_end.is_multiple_of(16));
    Registers {
        pc: first as *const () as u64,
        sp: stack_end,
        gp: global_pointer(),
        tp: buffer,
        a0: start.function as usize as u64,
        a1: start.argument,
        a2: thread.pointer(),
        ..Registers::default()
    }
}

/// Makes a thread and starts it.
///
/// # Errors
///
/// As [`prepare`].
pub fn spawn(allocator: &mut Allocator, window: &mut Window, start: Start) -> Result<Started> {
    let started = prepare(allocator, window, start)?;
    started.thread.resume()?;
    Ok(started)
}

/// First and last function of a thread.
#[expect(
    improper_ctypes_definitions,
    reason = "the function is called by Rust; only its address goes through a register"
)]
extern "C" fn first(function: fn(u64), argument: u64, own: u64) -> ! {
    function(argument);
    loop {
        // A thread that has lost the capability to itself cannot stop; it yields instead.
        let _ = Thread::from_pointer(own).suspend();
        crate::raw::yield_now();
    }
}

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
fn global_pointer() -> u64 {
    let pointer;
    // SAFETY: only reads a register.
    unsafe { core::arch::asm!("mv {}, gp", out(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
fn global_pointer() -> u64 {
    0
}

impl Started {
    /// Deletes the thread. Its stack and its IPC buffer stay.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn delete(self) -> Result<()> {
        Slot::own(self.thread.pointer()).delete()
    }
}
