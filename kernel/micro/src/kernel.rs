//! The kernel's state: one value, of which each file beside this one has the operations on one part.

use core::cell::Cell;

use abi_sel4::configuration::DOMAINS;
use abi_sel4::object;
use objects::{AsidPool, Mapping, Notification, Ref, Slot, Tcb};

use crate::hart::Harts;
use crate::node::{Handlers, MAXIMUM_DOMAINS, MAXIMUM_NODES, MAXIMUM_SCHEDULE, Node, Ready};

/// Pools of identifiers of address spaces.
pub const POOLS: usize = 1 << object::ASID_POOLS_BITS;
/// Places for interrupts, one for each number.
pub const IRQ_SLOTS: u64 = 128;

/// Pages for sending.
pub const SENDERS: usize = 128;

/// What an interrupt is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqState {
    /// Nothing.
    Inactive,
    /// Somebody has its handler capability.
    Signal,
}

/// A page for sending.
pub struct Sender {
    /// Who receives; `None` if this is free.
    pub(crate) notification: Cell<Option<Ref<Notification>>>,
    pub(crate) badge: Cell<u64>,
    /// Where it is; `None` when the address space is gone.
    pub(crate) mapping: Cell<Option<Mapping>>,
    /// What is mapped there; 0 for nothing.
    pub(crate) physical: Cell<u64>,
}

impl Sender {
    /// One that is free.
    pub const fn new() -> Sender {
        Sender { notification: Cell::new(None), badge: Cell::new(0), mapping: Cell::new(None), physical: Cell::new(0) }
    }
}

/// The state of the microkernel, apart from its objects. What every kernel entry looks at comes first, so that
/// instructions reach it with their offsets.
#[repr(C)]
pub struct Kernel {
    /// The node of the hart that holds the lock.
    pub(crate) here: Cell<usize>,
    pub(crate) node_count: Cell<usize>,
    /// Grows whenever an address space or a capability to one goes; see [`Kernel::space_of`].
    pub(crate) space_epoch: Cell<u64>,
    /// How many handlers do not sleep.
    pub(crate) handlers_awake: Cell<u32>,
    /// The words that harts touch without the lock.
    pub(crate) harts: &'static Harts,
    pub(crate) nodes: [Node; MAXIMUM_NODES],
    /// The domain whose threads run.
    pub(crate) domain: Cell<u8>,
    /// How many domains programs know.
    pub(crate) domains: Cell<u8>,
    /// Ticks that are left for the domain.
    pub(crate) domain_time: Cell<u64>,
    /// Domain and ticks; ticks of 0 end the schedule.
    pub(crate) domain_schedule: [Cell<(u8, u64)>; MAXIMUM_SCHEDULE],
    pub(crate) schedule_index: Cell<usize>,
    pub(crate) schedule_start: Cell<usize>,
    pub(crate) asid_pools: [Cell<Option<Ref<AsidPool>>>; POOLS],
    pub(crate) irq_states: [Cell<IrqState>; IRQ_SLOTS as usize],
    /// The first of the slots that hold interrupts' notifications.
    pub(crate) irq_slots: Cell<Option<Ref<Slot>>>,
    /// Time units between two ticks.
    pub(crate) tick_length: Cell<u64>,
    /// Where the consistency checker begins: the first thread's capability space.
    pub(crate) root: Cell<Option<Ref<Slot>>>,
    /// Handlers of asynchronous invocations that wait for a hart, by domain.
    pub(crate) handlers: [Ready<Handlers>; MAXIMUM_DOMAINS],
    /// Whether harts are told later which translations to forget.
    pub(crate) defers_flushes: Cell<bool>,
    /// Of which address space these are; 0 for none. And of which page, or `usize::MAX` for several.
    pub(crate) deferred_asid: Cell<u16>,
    pub(crate) deferred_address: Cell<usize>,
    /// Kernel entries so far, in kernels that check themselves.
    pub(crate) entries: Cell<u64>,
    /// Pages for sending, whose numbers capabilities have.
    pub(crate) senders: [Sender; SENDERS],
    pub(crate) senders_in_use: Cell<usize>,
    /// Whether there ever was one.
    pub(crate) had_senders: Cell<bool>,
}

impl Kernel {
    /// A kernel without any thread, whose harts have these words.
    pub const fn new(harts: &'static Harts) -> Kernel {
        Kernel {
            harts,
            nodes: [const { Node::new() }; MAXIMUM_NODES],
            here: Cell::new(0),
            node_count: Cell::new(1),
            domain: Cell::new(0),
            domains: Cell::new(if cfg!(feature = "domains") { MAXIMUM_DOMAINS as u8 } else { DOMAINS as u8 }),
            domain_time: Cell::new(u64::MAX),
            domain_schedule: [const { Cell::new((0, 0)) }; MAXIMUM_SCHEDULE],
            schedule_index: Cell::new(0),
            schedule_start: Cell::new(0),
            space_epoch: Cell::new(1),
            asid_pools: [const { Cell::new(None) }; POOLS],
            irq_states: [const { Cell::new(IrqState::Inactive) }; IRQ_SLOTS as usize],
            irq_slots: Cell::new(None),
            tick_length: Cell::new(0),
            root: Cell::new(None),
            handlers: [const { Ready::new() }; MAXIMUM_DOMAINS],
            handlers_awake: Cell::new(0),
            defers_flushes: Cell::new(false),
            deferred_asid: Cell::new(0),
            deferred_address: Cell::new(0),
            entries: Cell::new(0),
            senders: [const { Sender::new() }; SENDERS],
            senders_in_use: Cell::new(0),
            had_senders: Cell::new(false),
        }
    }

    /// The index of the hart that holds the lock.
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
