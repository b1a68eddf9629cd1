//! System calls and invocations as numbers.
//!
//! For the register contract see [`abi_sel4::call`]. Words of a message that do not fit into registers, and
//! capabilities, go through the thread's IPC buffer, which must have no other use between their being written and the
//! system call.

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use abi_sel4::message::{MAXIMUM_CAPABILITIES, MAXIMUM_LENGTH, REGISTERS};
use abi_sel4::{
    DebugCall, Error, Invocation, InvocationError, IpcBuffer, LookupFailureKind, MessageInfo, Numbering, SystemCall,
};

/// The result of an invocation.
pub type Result<T> = core::result::Result<T, Failure>;

/// Whether the kernel was built for several cores, and so numbers labels differently. Set once, before any other use.
static SEVERAL_CORES: AtomicBool = AtomicBool::new(false);

/// Returns this kernel's numbering of labels.
pub fn numbering() -> Numbering {
    // Relaxed: written once by the only thread there is, before it starts another.
    if SEVERAL_CORES.load(Ordering::Relaxed) { Numbering::Multiprocessor } else { Numbering::Uniprocessor }
}

/// Detects the kernel's numbering of labels, by invoking the thread `own` to change none of its flags: under the other
/// numbering this is the label of an invocation of CNodes, which a thread refuses.
pub fn detect_numbering(own: u64) {
    let label = Invocation::TcbSetFlags as u64;
    SEVERAL_CORES.store(invoke_label(own, label, &[0, 0], &[]).is_ok(), Ordering::Relaxed);
}

/// Traps into the kernel with `a0` to `a5` and returns their new values.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
#[inline(always)]
pub fn system_call(number: isize, arguments: [u64; 6]) -> [u64; 6] {
    let [mut a0, mut a1, mut a2, mut a3, mut a4, mut a5] = arguments;
    // SAFETY: the kernel preserves all other registers. It reads and writes memory of this program only in the thread's
    // IPC buffer, which is accessed through pointers that the compiler cannot see through. The effects of invoked
    // capabilities are outside of the language (see the crate's text).
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") a0, inlateout("a1") a1, inlateout("a2") a2,
            inlateout("a3") a3, inlateout("a4") a4, inlateout("a5") a5,
            in("a7") number,
            options(nostack),
        );
    }
    [a0, a1, a2, a3, a4, a5]
}

/// There is no microkernel on this machine: every call is an illegal operation.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
pub fn system_call(_number: isize, _arguments: [u64; 6]) -> [u64; 6] {
    [0, MessageInfo::new(Error::IllegalOperation.number() as u64, 0, 0).0, 0, 0, 0, 0]
}

/// Returns the calling thread's IPC buffer.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
#[inline(always)]
fn buffer() -> *mut IpcBuffer {
    let buffer;
    // SAFETY: only reads a register.
    unsafe { asm!("mv {}, tp", out(reg) buffer, options(pure, nomem, nostack, preserves_flags)) };
    buffer
}

#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
fn buffer() -> *mut IpcBuffer {
    std_buffer::BUFFER.with(|buffer| buffer.get())
}

/// The buffer of a test on the host.
#[cfg(all(test, not(all(target_arch = "riscv64", target_os = "none"))))]
mod std_buffer {
    use super::*;
    use core::cell::UnsafeCell;
    std::thread_local! {
        pub static BUFFER: UnsafeCell<IpcBuffer> = const { UnsafeCell::new(EMPTY) };
    }
}

/// Without a kernel there is no IPC buffer; the written words are not read.
#[cfg(all(not(test), not(all(target_arch = "riscv64", target_os = "none"))))]
mod std_buffer {
    use super::*;
    use core::cell::UnsafeCell;
    pub struct Shared(UnsafeCell<IpcBuffer>);
    // SAFETY: without a kernel no program of this crate runs, so no two threads do.
    unsafe impl Sync for Shared {}
    impl Shared {
        pub fn with<T>(&self, use_it: impl FnOnce(&UnsafeCell<IpcBuffer>) -> T) -> T {
            use_it(&self.0)
        }
    }
    pub static BUFFER: Shared = Shared(UnsafeCell::new(EMPTY));
}

#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
const EMPTY: IpcBuffer = IpcBuffer {
    tag: 0,
    message: [0; MAXIMUM_LENGTH],
    user_data: 0,
    capabilities_or_badges: [0; MAXIMUM_CAPABILITIES],
    receive_cnode: 0,
    receive_index: 0,
    receive_depth: 0,
};

/// Returns the address of the program's own word in the IPC buffer.
#[inline(always)]
pub(crate) fn user_data() -> *mut u64 {
    // SAFETY: computes an address in the buffer.
    unsafe { &raw mut (*buffer()).user_data }
}

/// Reads word `index` of the message in the IPC buffer. The first [`REGISTERS`] of a message travel in registers and
/// are not in the buffer.
///
/// # Panics
///
/// A message has no such word.
pub fn buffer_word(index: usize) -> u64 {
    assert!(index < MAXIMUM_LENGTH, "a message has no word {index}");
    // SAFETY: the buffer is mapped as long as its thread runs, only this thread and the kernel use it, and the index is
    // in it. Volatile, because the kernel writes it.
    unsafe { (&raw const (*buffer()).message[index]).read_volatile() }
}

/// Sets word `index` of the message in the IPC buffer.
///
/// # Panics
///
/// A message has no such word.
pub fn set_buffer_word(index: usize, word: u64) {
    assert!(index < MAXIMUM_LENGTH, "a message has no word {index}");
    // SAFETY: as in `buffer_word`.
    unsafe { (&raw mut (*buffer()).message[index]).write_volatile(word) };
}

/// Reads the badge of an unwrapped capability of the last message received.
///
/// # Panics
///
/// A message has no such capability.
pub fn buffer_badge(index: usize) -> u64 {
    assert!(index < MAXIMUM_CAPABILITIES, "a message has no capability {index}");
    // SAFETY: as in `buffer_word`.
    unsafe { (&raw const (*buffer()).capabilities_or_badges[index]).read_volatile() }
}

/// Sets the capability that the next message carries at `index`.
///
/// # Panics
///
/// A message has no such capability.
pub fn set_buffer_capability(index: usize, capability: u64) {
    assert!(index < MAXIMUM_CAPABILITIES, "a message has no capability {index}");
    // SAFETY: as in `buffer_word`.
    unsafe { (&raw mut (*buffer()).capabilities_or_badges[index]).write_volatile(capability) };
}

/// Sets the slot for a capability that the next message received carries: `index`, resolved from the CNode `root` over
/// `depth` bits.
pub fn set_receive_slot(root: u64, index: u64, depth: u64) {
    let buffer = buffer();
    // SAFETY: as in `buffer_word`.
    unsafe {
        (&raw mut (*buffer).receive_cnode).write_volatile(root);
        (&raw mut (*buffer).receive_index).write_volatile(index);
        (&raw mut (*buffer).receive_depth).write_volatile(depth);
    }
}

/// Returns the slot that [`set_receive_slot`] has set: root, index, depth.
pub fn receive_slot() -> (u64, u64, u64) {
    let buffer = buffer();
    // SAFETY: as in `buffer_word`.
    unsafe {
        (
            (&raw const (*buffer).receive_cnode).read_volatile(),
            (&raw const (*buffer).receive_index).read_volatile(),
            (&raw const (*buffer).receive_depth).read_volatile(),
        )
    }
}

/// Prepares a message: writes the words beyond the registers to the IPC buffer. Returns the describing word and the
/// registers.
///
/// # Panics
///
/// The message is too long or carries too many capabilities.
#[inline]
pub fn prepare(label: u64, words: &[u64], capabilities: &[u64]) -> (MessageInfo, [u64; REGISTERS]) {
    assert!(words.len() <= MAXIMUM_LENGTH && capabilities.len() <= MAXIMUM_CAPABILITIES, "the message is too long");
    let mut registers = [0; REGISTERS];
    for (index, &word) in words.iter().enumerate() {
        match registers.get_mut(index) {
            Some(register) => *register = word,
            None => set_buffer_word(index, word),
        }
    }
    for (index, &capability) in capabilities.iter().enumerate() {
        set_buffer_capability(index, capability);
    }
    (MessageInfo::new(label, capabilities.len(), words.len()), registers)
}

/// Makes one of the eight calls of the interface.
#[inline(always)]
pub fn interface_call(call: SystemCall, target: u64, info: MessageInfo, registers: [u64; REGISTERS]) -> Delivered {
    let [w0, w1, w2, w3] = registers;
    let [badge, info, w0, w1, w2, w3] = system_call(call.number(), [target, info.0, w0, w1, w2, w3]);
    Delivered { badge, info: MessageInfo(info), registers: [w0, w1, w2, w3] }
}

/// The registers after a receiving call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The badge of the capability that the sender used.
    pub badge: u64,
    /// The description of the message.
    pub info: MessageInfo,
    /// First words of the message. Words beyond its length are unchanged by the call.
    pub registers: [u64; REGISTERS],
}

/// The words of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of words.
    pub length: usize,
    /// First words; more are in the IPC buffer until the next call.
    pub registers: [u64; REGISTERS],
}

/// The error of an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The refused invocation; `None` if there was none, or if it was given by its label only.
    pub invocation: Option<Invocation>,
    /// The error.
    pub error: Error,
    /// Details, as [`Error`] describes them; words beyond the answer's length are zero.
    pub details: [u64; 6],
}

impl Failure {
    /// Creates a failure that is not the kernel's answer to an invocation, with its first two details.
    pub const fn new(error: Error, details: [u64; 2]) -> Failure {
        Failure { invocation: None, error, details: [details[0], details[1], 0, 0, 0, 0] }
    }

    /// Returns, for [`Error::FailedLookup`], the reason of the failed lookup.
    pub fn lookup(&self) -> Option<LookupFailureKind> {
        match self.detailed()? {
            InvocationError::FailedLookup { failure, .. } => Some(failure.kind()),
            _ => None,
        }
    }

    /// Returns the error with its details; `None` if they are inconsistent.
    pub fn detailed(&self) -> Option<InvocationError> {
        let [words @ .., _] = self.details;
        InvocationError::from_words(self.error, words)
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if let Some(invocation) = self.invocation {
            write!(formatter, "{}: ", invocation.name())?;
        }
        write!(formatter, "{}", self.error.name())?;
        match self.detailed() {
            Some(InvocationError::InvalidArgument(index) | InvocationError::InvalidCapability(index)) => {
                write!(formatter, " (number {index})")
            }
            Some(InvocationError::RangeError { minimum, maximum }) => write!(formatter, " ({minimum} to {maximum})"),
            Some(InvocationError::NotEnoughMemory { available }) => {
                write!(formatter, " ({available} bytes are left)")
            }
            Some(InvocationError::FailedLookup { failure, .. }) => write!(formatter, " ({})", failure.kind().name()),
            _ => Ok(()),
        }
    }
}

/// Invokes a capability.
///
/// # Errors
///
/// The kernel's error; an invocation that the kernel does not have is [`Error::IllegalOperation`], as any other unknown
/// label.
///
/// # Panics
///
/// The message is longer than messages can be.
pub fn invoke(target: u64, invocation: Invocation, words: &[u64], capabilities: &[u64]) -> Result<Answer> {
    let answer = match invocation.label(numbering()) {
        Some(label) => invoke_label(target, label, words, capabilities),
        None => Err(Failure::new(Error::IllegalOperation, [0; 2])),
    };
    answer.map_err(|failure| Failure { invocation: Some(invocation), ..failure })
}

/// Invokes a capability with any label.
///
/// # Errors
///
/// The kernel's error. One with an unknown number becomes [`Error::InvalidArgument`] with that number as its detail.
///
/// # Panics
///
/// The message is longer than messages can be.
pub fn invoke_label(target: u64, label: u64, words: &[u64], capabilities: &[u64]) -> Result<Answer> {
    invoke_described(target, MessageInfo::new(label, capabilities.len(), words.len()), words, capabilities)
}

/// Invokes a capability with a describing word, whose length and number of capabilities must be those given.
///
/// # Errors
///
/// As [`invoke_label`].
///
/// # Panics
///
/// The message is longer than messages can be.
pub fn invoke_described(target: u64, info: MessageInfo, words: &[u64], capabilities: &[u64]) -> Result<Answer> {
    let (_, registers) = prepare(info.label(), words, capabilities);
    answer(interface_call(SystemCall::Call, target, info, registers))
}

/// Invokes a capability for an invocation without a result. [`failure`] decodes the error.
///
/// # Errors
///
/// The kernel's answer, if it reports an error.
///
/// # Panics
///
/// The message is longer than messages can be.
#[inline(always)]
pub fn command(
    target: u64,
    info: MessageInfo,
    words: &[u64],
    capabilities: &[u64],
) -> core::result::Result<(), Delivered> {
    let (_, registers) = prepare(info.label(), words, capabilities);
    let delivered = interface_call(SystemCall::Call, target, info, registers);
    if delivered.info.label() == 0 { Ok(()) } else { Err(delivered) }
}

/// Decodes the error of a failed invocation's answer.
///
/// # Panics
///
/// The answer reports no error.
#[cold]
pub fn failure(delivered: Delivered) -> Failure {
    answer(delivered).expect_err("the label of an answer says that something has failed")
}

/// Decodes the kernel's answer.
fn answer(delivered: Delivered) -> Result<Answer> {
    let length = delivered.info.length().min(MAXIMUM_LENGTH);
    let word = |index: usize| match delivered.registers.get(index) {
        _ if index >= length => 0,
        Some(register) => *register,
        None => buffer_word(index),
    };
    match delivered.info.label() {
        0 => Ok(Answer { length, registers: core::array::from_fn(word) }),
        label => Err(match Error::from_number(label as usize) {
            Some(error) => Failure { invocation: None, error, details: core::array::from_fn(word) },
            None => Failure::new(Error::InvalidArgument, [label, 0]),
        }),
    }
}

/// Yields the rest of the time slice to threads of the same priority.
///
/// Corresponds to `seL4_Yield`.
#[doc(alias = "seL4_Yield")]
pub fn yield_now() {
    system_call(SystemCall::Yield.number(), [0; 6]);
}

/// Has the requests in the calling thread's SyscallBuffer carried out; returns whether it has one. Not a call of seL4,
/// where the thread faults.
pub fn wake_syscall_handler() -> bool {
    system_call(SystemCall::WakeSyscallHandler.number(), [0; 6])[0] == 0
}

/// Signals a notification, then receives; returns the badge. Not a call of seL4, where the thread faults.
#[inline]
pub fn signal_and_receive(source: u64, notification: u64) -> u64 {
    system_call(SystemCall::SignalRecv.number(), [source, notification, 0, 0, 0, 0])[0]
}

/// Returns whether the kernel has the system calls that seL4 lacks, as far as the capability to the program's own
/// thread tells: a buffer with one place is a value that only a kernel with such buffers refuses for its size.
pub(crate) fn has_own_calls() -> bool {
    let failure =
        invoke(crate::capability::initial::THREAD.pointer(), Invocation::TcbRegisterAsyncSyscall, &[1, 0, 0], &[]);
    failure.is_err_and(|failure| failure.error == Error::RangeError)
}

/// Writes a byte to the kernel's console, if the kernel has one.
///
/// Corresponds to `seL4_DebugPutChar`.
#[doc(alias = "seL4_DebugPutChar")]
pub fn debug_put_char(byte: u8) {
    system_call(const { DebugCall::DebugPutChar.fixed_number() }, [byte.into(), 0, 0, 0, 0, 0]);
}

/// Halts the machine, if the kernel is built for debugging; else the thread faults.
///
/// Corresponds to `seL4_DebugHalt`.
#[doc(alias = "seL4_DebugHalt")]
pub fn debug_halt() {
    system_call(const { DebugCall::DebugHalt.fixed_number() }, [0; 6]);
}

/// Returns the kind of capability in a slot, if the kernel is built for debugging.
///
/// Corresponds to `seL4_DebugCapIdentify`.
#[doc(alias = "seL4_DebugCapIdentify")]
pub fn debug_identify(capability: u64) -> Option<abi_sel4::CapabilityTag> {
    let [tag, ..] = system_call(const { DebugCall::DebugCapIdentify.fixed_number() }, [capability, 0, 0, 0, 0, 0]);
    abi_sel4::CapabilityTag::from_number(tag as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_continue_in_the_buffer() {
        let words: [u64; 10] = core::array::from_fn(|index| 100 + index as u64);
        let (info, registers) = prepare(7, &words, &[3, 4]);
        assert_eq!((info.label(), info.capabilities(), info.length()), (7, 2, 10));
        assert_eq!(registers, [100, 101, 102, 103]);
        assert!((4..10).all(|index| buffer_word(index) == 100 + index as u64));
        assert_eq!((buffer_badge(0), buffer_badge(1)), (3, 4));
        set_receive_slot(1, 2, 3);
        assert_eq!(receive_slot(), (1, 2, 3));
    }

    #[test]
    fn failures_print_the_meaning_of_their_details() {
        let failure = |error, details| std::format!("{}", Failure::new(error, details));
        assert_eq!(failure(Error::RangeError, [1, 5]), "RangeError (1 to 5)");
        assert_eq!(failure(Error::FailedLookup, [1, 2]), "FailedLookup (MissingCapability)");
        assert_eq!(failure(Error::FailedLookup, [1, 9]), "FailedLookup");
        assert_eq!(failure(Error::NotEnoughMemory, [16, 0]), "NotEnoughMemory (16 bytes are left)");
        let refused = Failure { invocation: Some(Invocation::CNodeCopy), ..Failure::new(Error::DeleteFirst, [0; 2]) };
        assert_eq!(std::format!("{refused}"), "CNode_Copy: DeleteFirst");
    }

    #[test]
    fn without_a_kernel_every_invocation_is_illegal() {
        let failure = invoke(1, Invocation::TcbSuspend, &[], &[]).unwrap_err();
        assert_eq!((failure.invocation, failure.error), (Some(Invocation::TcbSuspend), Error::IllegalOperation));
    }
}
