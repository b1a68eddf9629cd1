//! The objects.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi_sel4::fault::Phase;
use abi_sel4::{FailedLookup, Fault, object};
use hal_api::UserContext;

use crate::capability::{Capability, CapabilityCell};
use crate::{Ref, memory, tag};

/// What a new capability is to those of the same object that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// Its parent.
    Original,
    /// Their sibling.
    Copy,
}

/// A place for a capability, 32 bytes: the capability, and its place in the derivation tree.
///
/// The tree is kept as a list in preorder: what was derived from a capability follows it, and it is told from a sibling
/// by comparing the two. So insertion and removal are constant, and no memory is needed beyond the slot.
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
    /// Capabilities that are derived from this one count as its children.
    const REVOCABLE: u64 = 1;
    /// The first capability with its badge: others with the same badge are its children and not its siblings.
    const FIRST_BADGED: u64 = 2;
    /// Where the count begins that belongs to remains.
    const LEFT_SHIFT: u32 = 8;

    /// Whether capabilities of the same object behind this one are its children.
    #[inline(always)]
    pub fn is_revocable(&self) -> bool {
        self.flags.get() & Slot::REVOCABLE != 0
    }

    /// Whether this is the first capability with its badge.
    #[inline(always)]
    pub fn is_first_badged(&self) -> bool {
        self.flags.get() & Slot::FIRST_BADGED != 0
    }

    /// Sets both flags, as they are for a capability that has just been put here.
    #[inline(always)]
    pub fn set_lineage(&self, lineage: Lineage) {
        self.flags.set(match lineage {
            Lineage::Original => Slot::REVOCABLE | Slot::FIRST_BADGED,
            Lineage::Copy => 0,
        });
    }

    /// Notes that this is the first capability with its badge.
    #[inline(always)]
    pub fn mark_first_badged(&self) {
        self.flags.set(self.flags.get() | Slot::FIRST_BADGED);
    }

    /// How many slots of the object are still to be looked at whose remains are here: those before this one. All behind
    /// are empty, except for this slot itself if it is among them.
    #[inline(always)]
    pub fn left(&self) -> u64 {
        self.flags.get() >> Slot::LEFT_SHIFT
    }

    /// Notes that number.
    #[inline(always)]
    pub fn set_left(&self, left: u64) {
        self.flags.set(self.flags.get() & ((1 << Slot::LEFT_SHIFT) - 1) | left << Slot::LEFT_SHIFT);
    }

    /// Exchanges the flags, with what [`left`](Slot::left) says.
    #[inline]
    pub fn swap_flags(&self, other: &Slot) {
        self.flags.swap(&other.flags);
    }

    /// Copies place and flags in the tree, and not the capability.
    #[inline(always)]
    pub fn copy_place(&self, other: &Slot) {
        self.previous.set(other.previous.get());
        self.next.set(other.next.get());
        self.flags.set(other.flags.get());
    }

    /// Nothing, nowhere.
    #[inline(always)]
    pub fn reset(&self) {
        self.capability.set(Capability::Null);
        self.previous.set(None);
        self.next.set(None);
        self.flags.set(0);
    }

    /// Whether there is no capability.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.capability.is_null()
    }

    /// Whether there is no capability in any of these slots. Several at a time: this is done for all that one call
    /// fills, without a look for interrupts.
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
    /// The first.
    pub head: Cell<Option<Ref<Tcb>>>,
    /// The last.
    pub tail: Cell<Option<Ref<Tcb>>>,
}

impl Queue {
    /// An empty queue.
    pub const fn new() -> Queue {
        Queue { head: Cell::new(None), tail: Cell::new(None) }
    }
}

/// A place where threads meet; 16 bytes. Either all who wait want to send, or all want to receive.
#[repr(C, align(16))]
pub struct Endpoint {
    /// Who waits.
    pub queue: Queue,
    /// Whether they want to send; means nothing while nobody waits.
    pub is_sending: Cell<u64>,
}

/// A word of signals; 32 bytes.
#[repr(C, align(32))]
pub struct Notification {
    /// Who waits for a signal.
    pub queue: Queue,
    /// The signals that nobody has taken.
    pub badge: Cell<u64>,
    /// The thread that also gets signals while it waits for messages.
    pub bound: Cell<Option<Ref<Tcb>>>,
    /// Whether there are signals: they may all be 0.
    pub is_active: Cell<u32>,
}

impl Notification {
    /// Takes the signals out; their badge.
    #[inline(always)]
    pub fn take(&self) -> u64 {
        self.is_active.set(0);
        self.badge.replace(0)
    }
}

/// What a thread does. The numbers are those of the state word that debugging output shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ThreadState {
    /// Nothing, until it is resumed.
    Inactive = 0,
    /// It runs or could.
    Running = 1,
    /// It could run, and begins the instruction at its fault address again.
    Restart = 2,
    /// It waits for a message.
    BlockedOnReceive = 3,
    /// It waits to send a message.
    BlockedOnSend = 4,
    /// It waits for an answer.
    BlockedOnReply = 5,
    /// It waits for a signal.
    BlockedOnNotification = 6,
}

impl ThreadState {
    /// Whether a thread in this state can run.
    #[inline(always)]
    pub const fn is_runnable(self) -> bool {
        matches!(self, ThreadState::Running | ThreadState::Restart)
    }
}

/// The fault of a thread: what its message says besides the contents of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadFault {
    /// Nothing is wrong.
    None,
    /// A capability that was used is not there.
    Capability {
        /// Its address.
        address: u64,
        /// What the thread wanted to do with it.
        phase: Phase,
        /// The reason.
        failure: FailedLookup,
    },
    /// A system call that does not exist.
    UnknownSystemCall {
        /// Its number.
        number: u64,
    },
    /// An exception.
    User {
        /// The machine's number of it.
        number: u64,
        /// More about it.
        code: u64,
    },
    /// An address that is not mapped, or not for that.
    Memory {
        /// The address.
        address: u64,
        /// The machine's number of the fault.
        status: u64,
        /// Whether an instruction was to be fetched.
        instruction: bool,
    },
}

impl ThreadFault {
    /// The fault without its details, which says what message it is.
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

/// The index of each of a thread's own slots.
pub mod own {
    /// The root of its capability space.
    pub const CSPACE: usize = 0;
    /// The root of its address space.
    pub const VSPACE: usize = 1;
    /// The reply capability from which those of the thread's callees derive.
    pub const REPLY: usize = 2;
    /// The right to answer the thread's last caller.
    pub const CALLER: usize = 3;
    /// The page of its message buffer.
    pub const BUFFER: usize = 4;
}

/// How many slots a thread has.
pub const TCB_SLOTS: usize = 5;

/// How many slots a thread's handler of asynchronous invocations has: the notification that it signals, then the frames
/// of its buffer.
pub const HANDLER_SLOTS: usize = 9;

/// What a thread's handler of asynchronous invocations does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerState {
    /// There is none.
    None,
    /// It waits to be called.
    Asleep,
    /// It waits for a hart.
    Queued,
    /// A hart runs it.
    Served,
}

/// A thread's handler of asynchronous invocations, which is a coroutine whose frame is this: all that it keeps while it
/// does not run.
#[repr(C, align(16))]
pub struct Handler {
    pub(crate) slots: [Slot; HANDLER_SLOTS],
    /// The neighbours in the queue of handlers.
    pub next: Cell<Option<Ref<Tcb>>>,
    /// As above.
    pub previous: Cell<Option<Ref<Tcb>>>,
    /// How many requests it has taken.
    pub requests: Cell<u64>,
    /// How many responses it has posted.
    pub responses: Cell<u64>,
    /// Places in each of the buffer's rings; a power of two.
    pub capacity: Cell<u32>,
    /// How many frames the buffer has.
    pub frames: Cell<u8>,
    state: Cell<u8>,
}

impl Handler {
    /// What it does.
    #[inline(always)]
    pub fn state(&self) -> HandlerState {
        match self.state.get() {
            1 => HandlerState::Asleep,
            2 => HandlerState::Queued,
            3 => HandlerState::Served,
            _ => HandlerState::None,
        }
    }

    /// Changes the state and nothing else.
    #[inline(always)]
    pub fn set_state(&self, state: HandlerState) {
        self.state.set(state as u8);
    }
}

/// How a thread gets the signals of the notification that is bound to it while it runs.
#[repr(C)]
pub struct UserInterrupts {
    /// Where its handler is; 0 for none.
    pub handler: Cell<u64>,
    /// `a0` and `a7` of the interrupted code. Means nothing unless the handler runs.
    pub interrupted: Cell<[u64; 2]>,
    /// How often the handler was entered in the stretch between two ticks that `stretch` names.
    pub deliveries: Cell<u64>,
    /// As above.
    pub stretch: Cell<u64>,
    is_in_handler: Cell<u64>,
    /// The bits of a badge that come through an interrupt file; 0 if signals come through the kernel only.
    pub hints: Cell<u64>,
    /// Its guest interrupt file, one of the hart's on which it is to run; 0 for none.
    pub file: Cell<u64>,
    is_virtualised: Cell<u64>,
    /// The next tick of its hart when the kernel last unmasked its external interrupts.
    pub unmasked_before: Cell<u64>,
    /// Its system calls and faults since then.
    pub entries: Cell<u64>,
}

impl UserInterrupts {
    /// Whether the thread has supervisor registers of its own. Once it has it keeps them: it may be anywhere in a
    /// handler that uses them.
    #[inline(always)]
    pub fn is_virtualised(&self) -> bool {
        self.is_virtualised.get() != 0
    }

    /// Notes that.
    pub fn set_virtualised(&self) {
        self.is_virtualised.set(1);
    }

    /// Whether the thread has been interrupted and has not returned yet.
    #[inline(always)]
    pub fn is_in_handler(&self) -> bool {
        self.is_in_handler.get() != 0
    }

    /// Changes that and nothing else.
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
    /// An instruction that needs it is an illegal one.
    Forbidden,
}

/// A thread; 2 KiB.
#[repr(C, align(2048))]
pub struct Tcb {
    /// Its own slots, by [`own`]. Whoever needs references to them has [`Ref::own_slot`].
    pub slots: [Slot; TCB_SLOTS],
    /// Its registers; `pc` is where it goes on.
    pub(crate) context: Cell<UserContext>,
    /// Where the instruction is that brought it into the kernel.
    pub fault_pc: Cell<u64>,
    state: Cell<u8>,
    /// Its priority, 255 the highest.
    pub priority: Cell<u8>,
    /// The highest priority it may give.
    pub maximum_priority: Cell<u8>,
    /// Its domain.
    pub domain: Cell<u8>,
    /// The hart that it runs on.
    pub affinity: Cell<u8>,
    /// Whether it is in a ready queue.
    pub is_queued: Cell<u8>,
    /// Ticks until the next of the same priority has its turn.
    pub time_slice: Cell<u16>,
    /// Flags that users set; bit 0 forbids floating point.
    pub flags: Cell<u64>,
    /// The neighbours in a ready queue.
    pub ready_next: Cell<Option<Ref<Tcb>>>,
    /// As above.
    pub ready_previous: Cell<Option<Ref<Tcb>>>,
    /// The neighbours in the queue of an endpoint or a notification.
    pub wait_next: Cell<Option<Ref<Tcb>>>,
    /// As above.
    pub wait_previous: Cell<Option<Ref<Tcb>>>,
    /// The endpoint it waits at.
    pub waits_at: Cell<Option<Ref<Endpoint>>>,
    /// The notification it waits for.
    pub waits_for: Cell<Option<Ref<Notification>>>,
    /// The notification whose signals it gets while it waits for messages.
    pub bound: Cell<Option<Ref<Notification>>>,
    /// What the capability could do through which it waits: bits of [`Rights`](abi_sel4::Rights), and
    /// [`IS_CALL`](Tcb::IS_CALL).
    pub wait_rights: Cell<u8>,
    /// The badge with which it waits to send.
    pub wait_badge: Cell<u64>,
    /// The address of the capability to which its faults are sent.
    pub fault_handler: Cell<u64>,
    /// The address of its message buffer.
    pub buffer_address: Cell<u64>,
    /// Its address space as the machine activates it, if `space_epoch` is the kernel's.
    pub(crate) space: Cell<u64>,
    pub(crate) space_epoch: Cell<u64>,
    fault_label: Cell<u64>,
    fault_words: Cell<[u64; 3]>,
    lookup_words: Cell<[u64; FailedLookup::WORDS]>,
    /// What carries out its asynchronous invocations.
    pub handler: Handler,
    /// How it is interrupted.
    pub interrupts: UserInterrupts,
}

impl Tcb {
    /// In `wait_rights`: it waits for an answer once the message is delivered.
    pub const IS_CALL: u8 = 16;

    /// What it does.
    #[inline(always)]
    pub fn state(&self) -> ThreadState {
        match self.state.get() {
            1 => ThreadState::Running,
            2 => ThreadState::Restart,
            3 => ThreadState::BlockedOnReceive,
            4 => ThreadState::BlockedOnSend,
            5 => ThreadState::BlockedOnReply,
            6 => ThreadState::BlockedOnNotification,
            _ => ThreadState::Inactive,
        }
    }

    /// Changes the state and nothing else.
    #[inline(always)]
    pub fn set_state_word(&self, state: ThreadState) {
        self.state.set(state as u8);
    }

    /// The thread's fault.
    pub fn fault(&self) -> ThreadFault {
        let [first, second, third] = self.fault_words.get();
        match self.fault_kind() {
            Fault::CapFault => {
                let phase = if second == 0 { Phase::Send } else { Phase::Receive };
                // No words are those of an invalid root.
                let failure = FailedLookup::from_words(self.lookup_words.get()).unwrap_or(FailedLookup::InvalidRoot);
                ThreadFault::Capability { address: first, phase, failure }
            }
            Fault::UnknownSyscall => ThreadFault::UnknownSystemCall { number: first },
            Fault::UserException => ThreadFault::User { number: first, code: second },
            Fault::VMFault => ThreadFault::Memory { address: first, status: second, instruction: third != 0 },
            Fault::NullFault => ThreadFault::None,
        }
    }

    /// The thread's fault without its details.
    pub fn fault_kind(&self) -> Fault {
        Fault::from_label(self.fault_label.get()).unwrap_or(Fault::NullFault)
    }

    /// Whether the thread has no fault.
    #[inline(always)]
    pub fn has_no_fault(&self) -> bool {
        self.fault_label.get() == Fault::NullFault.label()
    }

    /// Notes a fault.
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

    /// Forgets the fault.
    #[inline(always)]
    pub fn clear_fault(&self) {
        self.fault_label.set(Fault::NullFault.label());
    }
}

/// A page table, as the machine reads it.
#[repr(C, align(4096))]
pub struct PageTable {
    /// The entries. Atomic, because the machine reads them at any time.
    pub entries: [AtomicU64; 1 << object::PAGE_TABLE_INDEX_BITS],
}

/// How many identifiers a pool has.
const ROOTS: usize = 1 << object::ASID_POOL_INDEX_BITS;

/// Address spaces by the low bits of their identifiers.
#[repr(C, align(4096))]
pub struct AsidPool {
    /// The root of each.
    pub roots: [Cell<Option<Ref<PageTable>>>; ROOTS],
    unused: [Cell<u32>; (1 << object::ASID_POOL_BITS) / size_of::<u32>() - ROOTS],
}

/// A kilobyte of a program's memory: a message buffer, or part of boot information.
#[repr(C, align(1024))]
pub struct Words {
    words: [AtomicU64; Words::COUNT],
}

impl Words {
    /// How many words these are.
    pub const COUNT: usize = (1 << object::IPC_BUFFER_BITS) / size_of::<u64>();

    /// Reads a word that a program may write at any time.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline(always)]
    pub fn get(&self, index: usize) -> u64 {
        self.words[index].load(Relaxed)
    }

    /// A word as it is, for accesses that are ordered with the program's.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline(always)]
    pub fn atomic(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }

    /// Writes a word.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline(always)]
    pub fn set(&self, index: usize, value: u64) {
        self.words[index].store(value, Relaxed);
    }
}

/// The kilobyte of a program's page at this physical address. Any memory for objects can be seen so, because every
/// pattern of bits is one of words.
///
/// # Panics
/// If there is no memory for objects, or the address is not a multiple of its size.
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
