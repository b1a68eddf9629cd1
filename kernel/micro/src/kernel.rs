//! The kernel's state: one value. Each other file contains the operations on one part of it.

use core::cell::Cell;

use abi_sel4::configuration::{MAXIMUM_DOMAINS, TICKS_IN_A_TURN};
use abi_sel4::debug_call::{Benchmarks, Build, Debugging, Release};
use abi_sel4::object;
use objects::{AsidPool, Ref, Slot, Tcb};

use crate::boot_words::ErrorText;
use crate::entry_log::EntryLog;
use crate::hart::Harts;
use crate::invocation::NUMBERING;
use crate::node::{Handlers, MAXIMUM_NODES, Node, ReadyOfDomains};
use crate::state::{Cancellation, DeferredFlushes, Domains, Interrupts, Senders};
use crate::uintc::InterruptSlots;

/// Step from one epoch of address spaces to the next. Domain numbers are smaller.
pub const EPOCH: u64 = MAXIMUM_DOMAINS as u64;
/// Number of ASID pools.
pub const POOLS: usize = 1 << object::ASID_POOLS_BITS;
/// The state of the microkernel, apart from its objects. Fields that every kernel entry uses come first, so that the
/// offsets of instructions reach them.
#[repr(C)]
pub struct Kernel {
    /// Index of the hart that holds the lock.
    pub(crate) here: Cell<usize>,
    pub(crate) node_count: Cell<usize>,
    /// Number that grows by [`EPOCH`] whenever an address space or a capability to one is deleted; see
    /// [`Kernel::space_of`]. The bits below are the current domain.
    pub(crate) space_epoch: Cell<u64>,
    /// Number of handlers that are not asleep.
    pub(crate) handlers_awake: Cell<u32>,
    /// Number of instructions that send user interrupts on this machine, and that the kernel may have to complete: one
    /// if it has UINTC.
    pub(crate) sending_instructions: Cell<u32>,
    /// The words that harts access without the lock.
    pub(crate) harts: &'static Harts,
    pub(crate) nodes: [Node; MAXIMUM_NODES],
    pub(crate) domains: Domains,
    pub(crate) asid_pools: [Cell<Option<Ref<AsidPool>>>; POOLS],
    pub(crate) interrupts: Interrupts,
    /// Time units between two ticks.
    pub(crate) tick_length: Cell<u64>,
    /// Length of a time slice in ticks.
    pub(crate) turn: Cell<u16>,
    /// The form of invocation errors.
    pub(crate) error_text: Cell<ErrorText>,
    /// The available calls for debugging and measuring.
    pub(crate) calls: Cell<Build>,
    /// The slot at which the consistency checker begins: the root CNode's.
    pub(crate) root: Cell<Option<Ref<Slot>>>,
    /// Handlers of asynchronous invocations that wait for a hart, by domain.
    pub(crate) handlers: ReadyOfDomains<Handlers>,
    pub(crate) deferred_flushes: DeferredFlushes,
    /// Number of kernel entries, in kernels with the feature `checks`.
    pub(crate) entries: Cell<u64>,
    pub(crate) senders: Senders,
    pub(crate) interrupt_slots: InterruptSlots,
    /// The cancellation of badged sends that is under way.
    pub(crate) cancellation: Cancellation,
    /// The log of kernel entries, in kernels with the feature `benchmarks`.
    pub(crate) log: EntryLog,
}

impl Kernel {
    /// Makes a kernel without threads, whose harts have these words.
    pub const fn new(harts: &'static Harts) -> Kernel {
        Kernel {
            harts,
            nodes: [const { Node::new() }; MAXIMUM_NODES],
            here: Cell::new(0),
            node_count: Cell::new(1),
            domains: Domains::new(),
            space_epoch: Cell::new(EPOCH),
            asid_pools: [const { Cell::new(None) }; POOLS],
            interrupts: Interrupts::new(),
            tick_length: Cell::new(0),
            turn: Cell::new(TICKS_IN_A_TURN as u16),
            error_text: Cell::new(ErrorText::Off),
            calls: Cell::new(Build {
                release: Release::Fifteen,
                cores: NUMBERING,
                debugging: Debugging::Off,
                benchmarks: Benchmarks::Off,
            }),
            root: Cell::new(None),
            handlers: ReadyOfDomains::new(),
            handlers_awake: Cell::new(0),
            sending_instructions: Cell::new(0),
            deferred_flushes: DeferredFlushes::new(),
            entries: Cell::new(0),
            senders: Senders::new(),
            interrupt_slots: InterruptSlots::new(),
            cancellation: Cancellation::new(),
            log: EntryLog::new(),
        }
    }

    /// Returns the index of the hart that holds the lock.
    #[inline(always)]
    pub(crate) fn here(&self) -> usize {
        if MAXIMUM_NODES == 1 { 0 } else { self.here.get() }
    }

    #[inline(always)]
    pub(crate) fn node(&self) -> &Node {
        &self.nodes[self.here()]
    }

    #[inline(always)]
    pub(crate) fn node_of(&self, thread: Ref<Tcb>) -> usize {
        if MAXIMUM_NODES == 1 { 0 } else { usize::from(thread.affinity.get()) }
    }
}
