//! The kernel objects.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi_sel4::configuration::PRIORITIES;
use abi_sel4::fault::Phase;
use abi_sel4::{FailedLookup, Fault, object};
use hal_api::UserContext;

use crate::capability::{Capability, CapabilityCell};
use crate::{Ref, memory, tag};

/// The relation of a new capability to the capabilities of the same object that follow it in the capability derivation
/// tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// The parent of those that follow.
    Original,
    /// A sibling of those that follow.
    Copy,
}

/// A slot for a capability, 32 bytes: the capability, and its links in the capability derivation tree.
///
/// The tree is stored as a list in preorder: the capabilities derived from a capability follow it, and a comparison of
/// two capabilities distinguishes a child from a sibling. So insertion and removal take constant time, and no memory is
/// needed beyond the slot.
#[repr(C)]
pub struct Slot {
    /// The capability.
    pub capability: CapabilityCell,
    /// The slot before this one in the list.
    pub previous: Cell<Option<Ref<Slot>>>,
    /// The slot behind this one.
    pub next: Cell<Option<Ref<Slot>>>,
    flags: Cell<u64>,
}

impl Slot {
    /// Capabilities derived from this capability are its children, and not its siblings.
    const ORIGINAL: u64 = 1;
    /// The first capability with its badge: further capabilities with the same badge are its children and not its
    /// siblings.
    const STARTS_BADGE: u64 = 2;
    /// Position of the count of slots that belongs to a zombie.
    const LEFT_SHIFT: u32 = 8;

    /// Returns whether the following capabilities of the same object are children of this capability.
    #[inline(always)]
    pub fn is_original(&self) -> bool {
        self.flags.get() & Slot::ORIGINAL != 0
    }

    /// Returns whether this is the first capability with its badge.
    #[inline(always)]
    pub fn starts_badge(&self) -> bool {
        self.flags.get() & Slot::STARTS_BADGE != 0
    }

    /// Sets both flags for a new capability.
    #[inline(always)]
    pub fn set_lineage(&self, lineage: Lineage) {
        self.flags.set(match lineage {
            Lineage::Original => Slot::ORIGINAL | Slot::STARTS_BADGE,
            Lineage::Copy => 0,
        });
    }

    /// Marks this capability as the first with its badge.
    #[inline(always)]
    pub fn mark_badge_start(&self) {
        self.flags.set(self.flags.get() | Slot::STARTS_BADGE);
    }

    /// Returns, for a zombie, the number of its object's slots that are still to be emptied. Slots from this index on
    /// are empty, except for this slot itself if it is among them.
    #[inline(always)]
    pub fn left(&self) -> u64 {
        self.flags.get() >> Slot::LEFT_SHIFT
    }

    /// Sets the number of slots that are still to be emptied.
    #[inline(always)]
    pub fn set_left(&self, left: u64) {
        self.flags.set(self.flags.get() & ((1 << Slot::LEFT_SHIFT) - 1) | left << Slot::LEFT_SHIFT);
    }

    /// Exchanges the flags and the counts of [`left`](Slot::left).
    #[inline]
    pub fn swap_flags(&self, other: &Slot) {
        self.flags.swap(&other.flags);
    }

    /// Copies the links and flags of the derivation tree, without the capability.
    #[inline(always)]
    pub fn copy_place(&self, other: &Slot) {
        self.previous.set(other.previous.get());
        self.next.set(other.next.get());
        self.flags.set(other.flags.get());
    }

    /// Empties the slot: no capability, no links, no flags.
    #[inline(always)]
    pub fn reset(&self) {
        self.capability.set(Capability::Null);
        self.previous.set(None);
        self.next.set(None);
        self.flags.set(0);
    }

    /// Returns whether the slot contains no capability.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.capability.is_null()
    }

    /// Returns whether all of these slots are empty. Checks eight at a time: one call checks all slots that it fills,
    /// without a preemption point.
    #[inline]
    pub fn are_empty(slots: &[Slot]) -> bool {
        let tags = |slots: &[Slot]| slots.iter().fold(0, |tags, slot| tags | slot.capability.tag());
        let (rows, rest) = slots.as_chunks::<8>();
        rows.iter().all(|row| tags(row) == tag::NULL) && tags(rest) == tag::NULL
    }
}

/// A queue of threads: first and last.
#[repr(C)]
#[derive(Default)]
pub struct Queue {
    /// The first thread.
    pub head: Cell<Option<Ref<Tcb>>>,
    /// The last thread.
    pub tail: Cell<Option<Ref<Tcb>>>,
}

impl Queue {
    /// Makes an empty queue.
    pub const fn new() -> Queue {
        Queue { head: Cell::new(None), tail: Cell::new(None) }
    }
}

/// Threads by priority: a queue for each.
#[repr(C, align(16))]
pub struct PriorityQueues {
    /// The queues.
    pub queues: [Queue; PRIORITIES],
}

/// An endpoint, at which threads exchange messages; 16 bytes. Either all waiting threads want to send, or all want to
/// receive.
#[repr(C, align(16))]
pub struct Endpoint {
    /// The waiting threads.
    pub queue: Queue,
    /// Whether the waiting threads want to send; meaningless while the queue is empty.
    pub is_sending: Cell<u64>,
}

/// A notification: a word of signals; 32 bytes.
#[repr(C, align(32))]
pub struct Notification {
    /// The threads that wait for a signal.
    pub queue: Queue,
    /// The signals that no thread has taken yet.
    pub badge: Cell<u64>,
    /// The bound thread, which also gets signals while it waits for messages.
    pub bound: Cell<Option<Ref<Tcb>>>,
    /// Whether there are signals, whose word may be 0.
    pub is_active: Cell<u32>,
}

impl Notification {
    /// Takes the signals; returns the word.
    #[inline(always)]
    pub fn take(&self) -> u64 {
        self.is_active.set(0);
        self.badge.replace(0)
    }

    /// Adds signals to the word, for which no thread waits.
    #[inline(always)]
    pub fn add(&self, signals: u64) {
        self.is_active.set(1);
        self.badge.set(self.badge.get() | signals);
    }
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ThreadState {
    /// It is inactive until it is resumed.
    Inactive,
    /// It runs or is ready.
    Running,
    /// It is ready, and restarts the instruction at its fault address.
    Restarting,
    /// It waits for a message.
    Receiving,
    /// It waits to send a message.
    Sending,
    /// It waits for a reply.
    AwaitingReply,
    /// It waits for a signal.
    AwaitingSignal,
}

impl ThreadState {
    /// Returns whether a thread in this state can run.
    #[inline(always)]
    pub const fn is_runnable(self) -> bool {
        matches!(self, ThreadState::Running | ThreadState::Restarting)
    }
}

/// The fault of a thread: the contents of its fault message besides the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadFault {
    /// No fault.
    None,
    /// The lookup of a capability failed.
    Capability {
        /// Address of the capability.
        address: u64,
        /// The phase of the system call: send or receive.
        phase: Phase,
        /// Reason of the failure.
        failure: FailedLookup,
    },
    /// A system call that does not exist.
    UnknownSystemCall {
        /// Its number.
        number: u64,
    },
    /// An exception.
    User {
        /// The machine's number of the exception.
        number: u64,
        /// The machine's additional value, which is not part of the fault's message.
        code: u64,
    },
    /// An access to an address that is not mapped, or not with the necessary rights.
    Memory {
        /// The accessed address.
        address: u64,
        /// The machine's number of the fault.
        status: u64,
        /// Whether the access was an instruction fetch.
        instruction: bool,
    },
}

impl ThreadFault {
    /// Returns the kind of the fault, which is also the kind of its message.
    #[inline]
    pub const fn kind(self) -> Fault {
        match self {
            ThreadFault::None => Fault::NullFault,
            ThreadFault::Capability { .. } => Fault::CapFault,
            ThreadFault::UnknownSystemCall { .. } => Fault::UnknownSyscall,
            ThreadFault::User { .. } => Fault::UserException,
            ThreadFault::Memory { .. } => Fault::VMFault,
        }
    }
}

/// Indexes of a thread's own slots.
pub mod own {
    /// The root of its capability space.
    pub const CSPACE: usize = 0;
    /// The root of its address space.
    pub const VSPACE: usize = 1;
    /// The master reply capability, from which the reply capabilities of the thread's callees derive.
    pub const REPLY: usize = 2;
    /// The reply capability for the thread's last caller.
    pub const CALLER: usize = 3;
    /// The frame of its IPC buffer.
    pub const BUFFER: usize = 4;
    /// The notification that its handler of asynchronous invocations signals.
    pub const DOORBELL: usize = 5;
    /// The first frame of the handler's buffer; the others follow.
    pub const FRAMES: usize = 6;
}

/// Number of slots of a thread.
pub const TCB_SLOTS: usize = own::FRAMES + 8;

/// The state of a thread's handler of asynchronous invocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerState {
    /// The thread has no handler.
    None,
    /// It waits until it is woken.
    Asleep,
    /// It waits for a hart.
    Queued,
    /// A hart runs it.
    Served,
}

/// A thread's handler of asynchronous invocations: a coroutine, whose frame is this object. It contains all state that
/// the handler keeps while it does not run.
#[repr(C, align(16))]
pub struct SyscallHandler {
    /// The next handler in the queue of handlers.
    pub next: Cell<Option<Ref<Tcb>>>,
    /// The previous handler in the queue.
    pub previous: Cell<Option<Ref<Tcb>>>,
    /// Number of requests that the handler has taken.
    pub requests: Cell<u64>,
    /// Number of responses that the handler has posted.
    pub responses: Cell<u64>,
    /// Number of entries in each of the buffer's rings; a power of two.
    pub capacity: Cell<u32>,
    /// Number of frames of the buffer.
    pub frames: Cell<u8>,
    state: Cell<u8>,
}

impl SyscallHandler {
    /// Returns the handler's state.
    #[inline(always)]
    pub fn state(&self) -> HandlerState {
        match self.state.get() {
            1 => HandlerState::Asleep,
            2 => HandlerState::Queued,
            3 => HandlerState::Served,
            _ => HandlerState::None,
        }
    }

    /// Sets the state word; no queue or other state changes.
    #[inline(always)]
    pub fn set_state(&self, state: HandlerState) {
        self.state.set(state as u8);
    }
}

/// The ways in which a thread takes interrupts without the kernel, each with registers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum OwnInterrupts {
    /// External interrupts of a virtualised thread, from a guest interrupt file.
    Virtualised = VIRTUALISED,
    /// Software interrupts of a thread in user mode, from a slot of UINTC.
    Armed = 2,
}

const VIRTUALISED: u64 = 1;

/// User interrupts: the delivery of the signals of a bound notification to the thread while it runs.
#[repr(C)]
pub struct UserInterrupts {
    /// Address of the thread's handler; 0 for none.
    pub handler: Cell<u64>,
    /// `a0` and `a7` of the interrupted code; meaningless unless the handler runs.
    pub interrupted: Cell<[u64; 2]>,
    /// Number of entries to the handler in the interval that ends at the tick `stretch`.
    pub deliveries: Cell<u64>,
    /// Time of the tick that ends the interval of `deliveries`.
    pub stretch: Cell<u64>,
    is_in_handler: Cell<u64>,
    /// The bits of a badge that are delivered through an interrupt file or slot; 0 if the kernel delivers all signals.
    pub hints: Cell<u64>,
    /// Its guest interrupt file, which belongs to the hart of its affinity; or its slot of UINTC, plus one. 0 for none.
    pub file_or_slot: Cell<u64>,
    /// The number of an [`OwnInterrupts`]; 0 for none.
    own: Cell<u64>,
    /// The time of its hart's next tick when the kernel last unmasked its own interrupts.
    pub unmasked_before: Cell<u64>,
    /// Number of its system calls and faults since then.
    pub entries: Cell<u64>,
}

impl UserInterrupts {
    /// Returns in which way the thread takes interrupts of its own. It has the registers for that once and for ever,
    /// since it may be at any place of a handler that uses them.
    #[inline(always)]
    pub fn own(&self) -> Option<OwnInterrupts> {
        match self.own.get() {
            0 => None,
            VIRTUALISED => Some(OwnInterrupts::Virtualised),
            _ => Some(OwnInterrupts::Armed),
        }
    }

    /// Returns whether the thread takes interrupts of its own in any way.
    #[inline(always)]
    pub fn has_own(&self) -> bool {
        self.own.get() != 0
    }

    /// Records that the thread has these registers.
    pub(crate) fn set_own(&self, own: OwnInterrupts) {
        self.own.set(own as u64);
    }

    /// Returns whether the thread has been interrupted and has not returned yet.
    #[inline(always)]
    pub fn is_in_handler(&self) -> bool {
        self.is_in_handler.get() != 0
    }

    /// Sets whether the thread is in its handler; no other state changes.
    #[inline(always)]
    pub fn set_in_handler(&self, is_in_handler: bool) {
        self.is_in_handler.set(is_in_handler.into());
    }
}

/// Whether a thread may use the floating-point unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatingPointUse {
    /// It may.
    Allowed,
    /// An instruction that needs it is an illegal instruction.
    Forbidden,
}

/// The processor time that a thread, or all threads, have used on a hart. Times are in cycles.
#[repr(C)]
#[derive(Default)]
pub struct Used {
    /// Time while scheduled.
    pub cycles: Cell<u64>,
    /// Time in the kernel.
    pub kernel: Cell<u64>,
    /// Number of times that it was scheduled.
    pub schedules: Cell<u64>,
    /// Number of kernel entries.
    pub entries: Cell<u64>,
    /// Epoch of the last reset.
    pub epoch: Cell<u64>,
}

impl Used {
    /// Makes counters that are zero.
    pub const fn new() -> Used {
        Used {
            cycles: Cell::new(0),
            kernel: Cell::new(0),
            schedules: Cell::new(0),
            entries: Cell::new(0),
            epoch: Cell::new(0),
        }
    }

    /// Resets the counters; the epoch is unchanged.
    pub fn reset(&self) {
        self.cycles.set(0);
        self.kernel.set(0);
        self.schedules.set(0);
        self.entries.set(0);
    }
}

/// A thread; 2 KiB.
#[repr(C, align(2048))]
pub struct Tcb {
    /// Its own slots, by [`own`]. [`Ref::own_slot`] makes references to them.
    pub slots: [Slot; TCB_SLOTS],
    /// Its registers; `pc` is the address of the next instruction.
    pub(crate) context: Cell<UserContext>,
    /// Address of the instruction that entered the kernel (seL4's FaultIP).
    pub fault_pc: Cell<u64>,
    state: Cell<u8>,
    /// Its priority, 255 the highest.
    pub priority: Cell<u8>,
    /// The highest priority that it may set (seL4's MCP).
    pub maximum_priority: Cell<u8>,
    /// Its domain.
    pub domain: Cell<u8>,
    /// The hart on which it runs.
    pub affinity: Cell<u8>,
    /// Whether it is in a ready queue.
    pub is_queued: Cell<u8>,
    /// Number of ticks until the next thread of the same priority has its turn.
    pub time_slice: Cell<u16>,
    /// The processor time that it has used, in kernels with the feature `benchmarks`.
    pub used: Used,
    /// Flags that users set; bit 0 forbids floating point.
    pub flags: Cell<u64>,
    /// The next thread in a ready queue.
    pub ready_next: Cell<Option<Ref<Tcb>>>,
    /// The previous thread in the ready queue.
    pub ready_previous: Cell<Option<Ref<Tcb>>>,
    /// The next thread in the queue of an endpoint or a notification.
    pub wait_next: Cell<Option<Ref<Tcb>>>,
    /// The previous thread in the queue of the endpoint or notification.
    pub wait_previous: Cell<Option<Ref<Tcb>>>,
    /// The endpoint at which it waits.
    pub waits_at: Cell<Option<Ref<Endpoint>>>,
    /// The notification for which it waits.
    pub waits_for: Cell<Option<Ref<Notification>>>,
    /// The bound notification, whose signals it gets while it waits for messages.
    pub bound: Cell<Option<Ref<Notification>>>,
    /// Rights of the capability through which it waits: bits of [`Rights`](abi_sel4::Rights), and
    /// [`IS_CALL`](Tcb::IS_CALL).
    pub wait_rights: Cell<u8>,
    /// The badge with which it waits to send.
    pub wait_badge: Cell<u64>,
    /// The capability address of its fault handler's endpoint.
    pub fault_handler: Cell<u64>,
    /// The address of its IPC buffer.
    pub buffer_address: Cell<u64>,
    /// Its address space in the form for the machine; valid while `space_epoch` is the kernel's.
    pub(crate) space: Cell<u64>,
    pub(crate) space_epoch: Cell<u64>,
    fault_label: Cell<u64>,
    fault_words: Cell<[u64; 3]>,
    lookup_words: Cell<[u64; FailedLookup::WORDS]>,
    /// The handler of its asynchronous invocations.
    pub handler: SyscallHandler,
    /// The state of its user interrupts.
    pub interrupts: UserInterrupts,
}

impl Tcb {
    /// Bit of `wait_rights`: the thread waits for a reply once the message is delivered.
    pub const IS_CALL: u8 = 16;

    /// Returns the thread's state.
    #[inline(always)]
    pub fn state(&self) -> ThreadState {
        match self.state.get() {
            1 => ThreadState::Running,
            2 => ThreadState::Restarting,
            3 => ThreadState::Receiving,
            4 => ThreadState::Sending,
            5 => ThreadState::AwaitingReply,
            6 => ThreadState::AwaitingSignal,
            _ => ThreadState::Inactive,
        }
    }

    /// Sets the state word; no queue or other state changes.
    #[inline(always)]
    pub fn set_state_word(&self, state: ThreadState) {
        self.state.set(state as u8);
    }

    /// Returns the thread's fault.
    pub fn fault(&self) -> ThreadFault {
        let [first, second, third] = self.fault_words.get();
        match self.fault_kind() {
            Fault::CapFault => {
                let phase = if second == 0 { Phase::Send } else { Phase::Receive };
                // Without words the failure is that of an invalid root.
                let failure = FailedLookup::from_words(self.lookup_words.get()).unwrap_or(FailedLookup::InvalidRoot);
                ThreadFault::Capability { address: first, phase, failure }
            }
            Fault::UnknownSyscall => ThreadFault::UnknownSystemCall { number: first },
            Fault::UserException => ThreadFault::User { number: first, code: second },
            Fault::VMFault => ThreadFault::Memory { address: first, status: second, instruction: third != 0 },
            Fault::NullFault => ThreadFault::None,
        }
    }

    /// Returns the kind of the thread's fault.
    pub fn fault_kind(&self) -> Fault {
        Fault::from_label(self.fault_label.get()).unwrap_or(Fault::NullFault)
    }

    /// Returns whether the thread has no fault.
    #[inline(always)]
    pub fn has_no_fault(&self) -> bool {
        self.fault_label.get() == Fault::NullFault.label()
    }

    /// Stores a fault.
    #[inline(always)]
    pub fn set_fault(&self, fault: ThreadFault) {
        let words = match fault {
            ThreadFault::None => [0; 3],
            ThreadFault::Capability { address, phase, failure } => {
                self.lookup_words.set(failure.to_words().0);
                [address, phase as u64, 0]
            }
            ThreadFault::UnknownSystemCall { number } => [number, 0, 0],
            ThreadFault::User { number, code } => [number, code, 0],
            ThreadFault::Memory { address, status, instruction } => [address, status, instruction.into()],
        };
        self.fault_label.set(fault.kind().label());
        self.fault_words.set(words);
    }

    /// Clears the fault.
    #[inline(always)]
    pub fn clear_fault(&self) {
        self.fault_label.set(Fault::NullFault.label());
    }
}

/// A page table in the machine's format.
#[repr(C, align(4096))]
pub struct PageTable {
    /// The entries. Atomic, because the machine reads them at any time.
    pub entries: [AtomicU64; 1 << object::PAGE_TABLE_INDEX_BITS],
}

/// Number of identifiers of a pool.
const ROOTS: usize = 1 << object::ASID_POOL_INDEX_BITS;

/// An ASID pool: address spaces by the low bits of their identifiers.
#[repr(C, align(4096))]
pub struct AsidPool {
    /// Root page table of each address space.
    pub roots: [Cell<Option<Ref<PageTable>>>; ROOTS],
    unused: [Cell<u32>; (1 << object::ASID_POOL_BITS) / size_of::<u32>() - ROOTS],
}

/// A kilobyte of a program's memory: an IPC buffer, or part of the boot information.
#[repr(C, align(1024))]
pub struct Words {
    words: [AtomicU64; Words::COUNT],
}

impl Words {
    /// Number of words in the kilobyte.
    pub const COUNT: usize = (1 << object::IPC_BUFFER_BITS) / size_of::<u64>();

    /// Reads a word that a program may write at any time.
    ///
    /// # Panics
    /// If the index is too large.
    #[inline(always)]
    pub fn get(&self, index: usize) -> u64 {
        self.words[index].load(Relaxed)
    }

    /// Returns the atomic word itself, for accesses that are ordered with the program's.
    ///
    /// # Panics
    /// If the index is too large.
    #[inline(always)]
    pub fn atomic(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }

    /// Writes a word.
    ///
    /// # Panics
    /// If the index is too large.
    #[inline(always)]
    pub fn set(&self, index: usize, value: u64) {
        self.words[index].store(value, Relaxed);
    }
}

/// Returns the kilobyte of a program's page at this physical address. Any memory for objects can be accessed as words,
/// because every bit pattern is valid.
///
/// # Panics
/// If the address is outside the memory for objects, or not a multiple of a kilobyte.
#[inline]
pub fn frame_words(physical: u64) -> Ref<Words> {
    memory::words(physical)
}

const _: () = {
    use core::mem::{align_of, size_of};
    assert!(size_of::<Slot>() == 1 << object::SLOT_BITS);
    assert!(size_of::<Endpoint>() == 1 << object::ENDPOINT_BITS);
    assert!(size_of::<Notification>() == 1 << object::NOTIFICATION_BITS);
    assert!(size_of::<Tcb>() == 1 << object::TCB_BITS);
    assert!(core::mem::offset_of!(Tcb, slots) == 0);
    assert!(size_of::<PageTable>() == 1 << object::PAGE_TABLE_BITS);
    assert!(size_of::<AsidPool>() == 1 << object::ASID_POOL_BITS);
    assert!(size_of::<Words>() == 1 << object::IPC_BUFFER_BITS);
    assert!(align_of::<Slot>() <= 16);
};
