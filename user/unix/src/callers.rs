//! The callers of a function of this program: candidates for return addresses on the stack.
//!
//! [`abi_unix::callers`] describes the line, from which the host makes a backtrace. Programs elsewhere have their
//! host's means, and no candidates.

use core::fmt;

/// Returns the registers `pc` and `sp`, as they are together in the calling function.
#[cfg(target_os = "none")]
#[inline(always)]
pub fn here() -> (usize, usize) {
    let (pc, stack);
    // SAFETY: reads two registers.
    unsafe {
        core::arch::asm!(
            "auipc {}, 0",
            "mv {}, sp",
            out(reg) pc,
            out(reg) stack,
            options(nomem, nostack, preserves_flags)
        );
    }
    (pc, stack)
}

/// Returns the addresses of the program's code.
#[cfg(target_os = "none")]
fn code() -> core::ops::Range<usize> {
    unsafe extern "C" {
        static __program_start: u8;
        static __constants_start: u8;
    }
    &raw const __program_start as usize..&raw const __constants_start as usize
}

/// Returns the words of the running stack above an address that can be return addresses: the distance from there, and
/// the address in the program's file. `top` is the address up to which the stack is surely in use, or 0 if that is not
/// known.
#[cfg(target_os = "none")]
pub fn candidates(stack: usize, top: usize) -> impl Iterator<Item = (usize, u64)> {
    let code = code();
    let start = code.start as u64;
    // The page of the stack pointer is there, and the rest of a stack whose top is known.
    let limit = if top > stack { top } else { (stack | 4095) + 1 }.min(stack + abi_unix::callers::SEARCHED);
    // SAFETY: only addresses of the program's code are read, which is never written.
    let read = |address: u64| Some(unsafe { core::ptr::read_unaligned(address as *const [u8; 4]) });
    // SAFETY: the words lie on the running stack.
    let word = move |address: usize| (address - stack, unsafe { core::ptr::read_volatile(address as *const u64) });
    let is_candidate =
        move |&(_, word): &_| abi_unix::callers::is_return_address(word, &(start..code.end as u64), read);
    let words = (stack..limit).step_by(size_of::<u64>()).map(word).filter(is_candidate);
    words.map(move |(offset, address)| (offset, address - start))
}

/// Writes the line's text, without an end of the line, for this program counter.
///
/// # Errors
///
/// Those of the writer.
#[cfg(target_os = "none")]
pub fn write(
    writer: &mut dyn fmt::Write,
    pc: usize,
    candidates: &mut dyn Iterator<Item = (usize, u64)>,
) -> fmt::Result {
    let name = crate::start::arguments().next().map_or("?", |name| name.to_str().unwrap_or("?"));
    let name = name.rsplit('/').next().unwrap_or(name);
    abi_unix::callers::write(writer, name, (pc - code().start) as u64, 0, candidates)
}

#[cfg(not(target_os = "none"))]
pub use elsewhere::{candidates, here, write};

#[cfg(not(target_os = "none"))]
mod elsewhere {
    use super::fmt;

    /// Returns nothing of use.
    pub fn here() -> (usize, usize) {
        (0, 0)
    }

    /// Returns no candidates.
    pub fn candidates(_stack: usize, _top: usize) -> impl Iterator<Item = (usize, u64)> {
        core::iter::empty()
    }

    /// Writes the line's text, for a program without a name.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn write(
        writer: &mut dyn fmt::Write,
        pc: usize,
        candidates: &mut dyn Iterator<Item = (usize, u64)>,
    ) -> fmt::Result {
        abi_unix::callers::write(writer, "?", pc as u64, 0, candidates)
    }
}
