//! The kernel's state: one value. Each other file contains the operations on one part of it.

use core::cell::Cell;

use abi_sel4::object;
use objects::{AsidPool, Ref, Slot, Tcb};

use crate::hart::Harts;
use crate::node::{Handlers, MAXIMUM_DOMAINS, MAXIMUM_NODES, Node, Ready};
use crate::state::{DeferredFlushes, Domains, Interrupts, Senders};

/// Number of ASID pools.
pub const POOLS: usize = 1 << object::ASID_POOLS_BITS;
/// The state of the microkernel, apart from its objects. Fields that every kernel entry uses come first, so that the
/// offsets of instructions reach them.
#[repr(C)]
pub struct Kernel {
    /// Index of the hart that holds the lock.
    pub(crate) here: Cell<usize>,
    pub(crate) node_count: Cell<usize>,
    /// Number that grows whenever an address space or a capability to one is deleted; see [`Kernel::space_of`].
    pub(crate) space_epoch: Cell<u64>,
    /// Number of handlers that are not asleep.
    pub(crate) handlers_awake: Cell<u32>,
    /// The words that harts access without the lock.
    pub(crate) harts: &'static Harts,
    pub(crate) nodes: [Node; MAXIMUM_NODES],
    pub(crate) domains: Domains,
    pub(crate) asid_pools: [Cell<Option<Ref<AsidPool>>>; POOLS],
    pub(crate) interrupts: Interrupts,
    /// Time units between two ticks.
    pub(crate) tick_length: Cell<u64>,
    /// The slot at which the consistency checker begins: the root CNode's.
    pub(crate) root: Cell<Option<Ref<Slot>>>,
    /// Handlers of asynchronous invocations that wait for a hart, by domain.
    pub(crate) handlers: [Ready<Handlers>; MAXIMUM_DOMAINS],
    pub(crate) deferred_flushes: DeferredFlushes,
    /// Number of kernel entries, in kernels with the feature `checks`.
    pub(crate) entries: Cell<u64>,
    pub(crate) senders: Senders,
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
            space_epoch: Cell::new(1),
            asid_pools: [const { Cell::new(None) }; POOLS],
            interrupts: Interrupts::new(),
            tick_length: Cell::new(0),
            root: Cell::new(None),
            handlers: [const { Ready::new() }; MAXIMUM_DOMAINS],
            handlers_awake: Cell::new(0),
            deferred_flushes: DeferredFlushes::new(),
            entries: Cell::new(0),
            senders: Senders::new(),
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
