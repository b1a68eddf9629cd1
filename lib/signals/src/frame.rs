//! The stack frame of a handler (`struct rt_sigframe` of riscv64), from low addresses to high:
//!
//! ```text
//!    0  siginfo_t                     128 bytes
//!  128  uc_flags, uc_link               8 bytes each, 0
//!  144  uc_stack: address, flags, size  24 bytes
//!  168  uc_sigmask                     128 bytes, of which the first 8 count
//!  304  pc, x1 ... x31                 256 bytes (aligned to 16)
//!  560  f0 ... f31                     256 bytes
//!  816  fcsr                             4 bytes
//!  ...  zeros: room for larger registers, and the end of the list of further ones
//! 1088
//! ```

use hal_api::UserContext;

use crate::information::Information;
use crate::set::Set;

/// Bytes of a frame: a multiple of the stack's alignment.
pub const SIZE: usize = 1088;
/// Offset of the information, which is also the frame's own.
pub const INFORMATION: usize = 0;
/// Offset of the context (`ucontext_t`).
pub const CONTEXT: usize = 128;
const STACK: usize = 144;
const MASK: usize = 168;
const REGISTERS: usize = 304;
const FLOATING_POINT: usize = 560;
const STATUS: usize = 816;
/// Offset of the word behind the largest floating-point registers, which must be 0, and of the list of further
/// registers, which begins with two words of 0.
const END: usize = 1076;

/// A thread's stack for handlers (`stack_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "stack_t")]
#[doc(alias = "sigaltstack")]
pub struct Stack {
    /// Lowest address.
    pub start: u64,
    /// Flags of [`Stack`].
    pub flags: u32,
    /// Size in bytes.
    pub size: u64,
}

impl Stack {
    /// `SS_ONSTACK`: the thread runs on it.
    pub const ON_STACK: u32 = 1;
    /// `SS_DISABLE`: there is none.
    pub const DISABLED: u32 = 2;
    /// `SS_AUTODISARM`: it is given up while a handler runs on it.
    pub const AUTO_DISARM: u32 = 1 << 31;
    /// Smallest size (`MINSIGSTKSZ`).
    pub const SMALLEST: u64 = 2048;
    /// Bytes of a `stack_t`.
    pub const SIZE: usize = 24;
    /// No stack.
    pub const NONE: Stack = Stack { start: 0, flags: Stack::DISABLED, size: 0 };

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; Stack::SIZE] {
        let mut bytes = [0; Stack::SIZE];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[16..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// Reads the bytes as they lie in memory.
    pub fn from_bytes(bytes: &[u8; Stack::SIZE]) -> Stack {
        Stack { start: word(bytes, 0), flags: word(bytes, 8) as u32, size: word(bytes, 16) }
    }

    /// Whether a stack pointer lies on it.
    pub const fn holds(&self, pointer: u64) -> bool {
        self.flags & Stack::DISABLED == 0 && pointer > self.start && pointer - self.start <= self.size
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]))
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Returns the address of a frame below a stack pointer.
pub const fn place(stack: u64) -> u64 {
    stack.wrapping_sub(SIZE as u64) & !15
}

/// Writes a frame: the interrupted registers, the mask and the stack that return with it.
pub fn write(bytes: &mut [u8; SIZE], information: &Information, context: &UserContext, mask: Set, stack: Stack) {
    bytes.fill(0);
    bytes[INFORMATION..CONTEXT].copy_from_slice(&information.to_bytes());
    bytes[STACK..STACK + Stack::SIZE].copy_from_slice(&stack.to_bytes());
    put(bytes, MASK, mask.bits());
    put(bytes, REGISTERS, context.pc);
    for number in 1..32 {
        put(bytes, REGISTERS + 8 * number, context.register(number));
    }
    let unit = context.floating_point();
    for (number, &register) in unit.f.iter().enumerate() {
        put(bytes, FLOATING_POINT + 8 * number, register);
    }
    bytes[STATUS..STATUS + 4].copy_from_slice(&(unit.fcsr as u32).to_le_bytes());
}

/// A frame names registers that there are none of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// Reads a frame that a program gives back: sets all registers, and returns the mask and the stack. Any values are
/// values that a program could have set by itself.
///
/// # Errors
/// The frame announces registers beyond these. The context is unchanged.
pub fn read(bytes: &[u8; SIZE], context: &mut UserContext) -> Result<(Set, Stack), Unknown> {
    if bytes[END..].iter().any(|&byte| byte != 0) {
        return Err(Unknown);
    }
    context.pc = word(bytes, REGISTERS) & !1;
    for number in 1..32 {
        context.set_register(number, word(bytes, REGISTERS + 8 * number));
    }
    let unit = context.floating_point_mut();
    for (number, register) in unit.f.iter_mut().enumerate() {
        *register = word(bytes, FLOATING_POINT + 8 * number);
    }
    // The low byte has the rounding mode and the exceptions; the rest of the register is reserved.
    unit.fcsr = word(bytes, STATUS) & 0xff;
    let stack = core::array::from_fn(|index| bytes[STACK + index]);
    Ok((Set::mask(word(bytes, MASK)), Stack::from_bytes(&stack)))
}

const _: () = assert!(SIZE.is_multiple_of(16) && STATUS == FLOATING_POINT + 256 && END + 12 == SIZE);
