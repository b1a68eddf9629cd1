//! The `ecall` instruction.
//!
//! The register contract is in [`abi_unix::call`]: number and flags in `a7`, arguments in `a0` to `a5`, and for the
//! asynchronous form the cid in `a6` and the token in `t0`; only `a0` changes.

#[cfg(on_cops)]
use core::arch::asm;

use abi_unix::call::{ASYNCHRONOUS, NUMBER_MASK, PRIORITY_SHIFT};

/// Traps into the kernel and returns `a0`: a result, or `-errno` ([`abi_unix::errno::decode`] tells them apart).
///
/// # Safety
///
/// The call may write to the memory that its arguments name, and unmap it: the arguments must be valid by the call's
/// manual page, or no code in this program may depend on the memory that they reach.
#[cfg(on_cops)]
#[inline(always)]
pub unsafe fn syscall(number: usize, arguments: [usize; 6]) -> usize {
    let result;
    // SAFETY: the kernel preserves every register but `a0`; the call's effect on memory is the caller's promise.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") arguments[0] => result,
            in("a1") arguments[1],
            in("a2") arguments[2],
            in("a3") arguments[3],
            in("a4") arguments[4],
            in("a5") arguments[5],
            in("a7") number,
            options(nostack),
        );
    }
    result
}

/// Makes a call with three arguments at most, as most calls have: it leaves three registers alone.
///
/// # Safety
///
/// As for [`syscall`].
#[cfg(on_cops)]
#[inline(always)]
pub unsafe fn syscall3(number: usize, a0: usize, a1: usize, a2: usize) -> usize {
    let result;
    // SAFETY: as in `syscall`.
    unsafe {
        asm!("ecall", inlateout("a0") a0 => result, in("a1") a1, in("a2") a2, in("a7") number, options(nostack));
    }
    result
}

/// Makes the asynchronous form of a call: it returns at once, with the result or with [`abi_unix::WILL_BE_POSTED`].
///
/// `waiter` is the cid in the completion, `priority` (0 to 63) the priority at which the kernel works on the call,
/// `token` the token in the completion. For calls that cannot wait this equals [`syscall`].
///
/// # Safety
///
/// As for [`syscall`]; and if the answer is `WILL_BE_POSTED`, the memory that the arguments name belongs to the kernel
/// until the completion with this token has been taken from the completion ring.
#[cfg(on_cops)]
#[inline(always)]
pub unsafe fn syscall_asynchronous(
    number: usize,
    arguments: [usize; 6],
    waiter: u64,
    priority: u8,
    token: u64,
) -> usize {
    let result;
    // SAFETY: as in `syscall`.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") arguments[0] => result,
            in("a1") arguments[1],
            in("a2") arguments[2],
            in("a3") arguments[3],
            in("a4") arguments[4],
            in("a5") arguments[5],
            in("a6") waiter,
            in("a7") asynchronous_number(number, priority),
            in("t0") token,
            options(nostack),
        );
    }
    result
}

/// Returns the value of `a7` for the asynchronous form of a call.
#[inline(always)]
pub const fn asynchronous_number(number: usize, priority: u8) -> usize {
    (number & NUMBER_MASK) | ASYNCHRONOUS | ((priority & 63) as usize) << PRIORITY_SHIFT
}

/// There is no COPS kernel on this machine: every call is unknown.
///
/// # Safety
///
/// No condition.
#[cfg(not(on_cops))]
pub unsafe fn syscall(_number: usize, _arguments: [usize; 6]) -> usize {
    abi_unix::errno::encode(Err(abi_unix::Errno::ENOSYS))
}

/// There is no COPS kernel on this machine: every call is unknown.
///
/// # Safety
///
/// No condition.
#[cfg(not(on_cops))]
pub unsafe fn syscall3(number: usize, a0: usize, a1: usize, a2: usize) -> usize {
    // SAFETY: the function has no effect on this machine.
    unsafe { syscall(number, [a0, a1, a2, 0, 0, 0]) }
}

/// There is no COPS kernel on this machine: every call is unknown.
///
/// # Safety
///
/// No condition.
#[cfg(not(on_cops))]
pub unsafe fn syscall_asynchronous(
    number: usize,
    arguments: [usize; 6],
    _waiter: u64,
    priority: u8,
    _token: u64,
) -> usize {
    // SAFETY: the function has no effect on this machine.
    unsafe { syscall(asynchronous_number(number, priority), arguments) }
}

/// Makes a call of the table, by name, and decodes its result: `call!(Read, descriptor, address, length)`.
///
/// For the typed wrappers of this crate and for programs that need a call without a wrapper.
///
/// # Safety
///
/// As for [`syscall`]; the macro must be used inside an `unsafe` block.
#[macro_export]
macro_rules! call {
    ($call:ident) => {
        $crate::call!($call, 0, 0, 0)
    };
    ($call:ident, $a0:expr) => {
        $crate::call!($call, $a0, 0, 0)
    };
    ($call:ident, $a0:expr, $a1:expr) => {
        $crate::call!($call, $a0, $a1, 0)
    };
    ($call:ident, $a0:expr, $a1:expr, $a2:expr) => {
        $crate::abi::errno::decode($crate::raw::syscall3(
            $crate::SystemCall::$call as usize,
            $a0 as usize,
            $a1 as usize,
            $a2 as usize,
        ))
    };
    ($call:ident, $a0:expr, $a1:expr, $a2:expr, $a3:expr) => {
        $crate::call!($call, $a0, $a1, $a2, $a3, 0, 0)
    };
    ($call:ident, $a0:expr, $a1:expr, $a2:expr, $a3:expr, $a4:expr) => {
        $crate::call!($call, $a0, $a1, $a2, $a3, $a4, 0)
    };
    ($call:ident, $a0:expr, $a1:expr, $a2:expr, $a3:expr, $a4:expr, $a5:expr) => {
        $crate::abi::errno::decode($crate::raw::syscall(
            $crate::SystemCall::$call as usize,
            [$a0 as usize, $a1 as usize, $a2 as usize, $a3 as usize, $a4 as usize, $a5 as usize],
        ))
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi_unix::SystemCall;

    #[test]
    fn the_asynchronous_number_keeps_call_and_priority_apart() {
        let a7 = asynchronous_number(SystemCall::Read as usize, 63);
        assert_eq!(a7 & NUMBER_MASK, 63);
        assert_eq!(a7 & ASYNCHRONOUS, ASYNCHRONOUS);
        assert_eq!(a7 >> PRIORITY_SHIFT, 63);
        assert_eq!(asynchronous_number(0x1008, 0), 0x1_1008);
    }

    /// Returns the numbers that a C header defines with this prefix, by name.
    fn definitions<'a>(header: &'a str, prefix: &'a str) -> impl Iterator<Item = (&'a str, usize)> {
        header.lines().filter_map(move |line| {
            let mut words = line.strip_prefix("#define ")?.strip_prefix(prefix)?.split_whitespace();
            let (name, number) = (words.next()?, words.next()?);
            let number = match number.strip_prefix("0x") {
                Some(digits) => usize::from_str_radix(digits, 16),
                None => number.parse(),
            };
            number.ok().map(|number| (name, number))
        })
    }

    #[test]
    fn the_c_header_has_the_numbers_of_the_table() {
        let header = include_str!("../../c/cops_unix.h");
        let calls: Vec<_> = definitions(header, "COPS_SYS_").collect();
        assert_eq!(calls, SystemCall::ALL.iter().map(|call| (call.name(), *call as usize)).collect::<Vec<_>>());
        for error in abi_unix::Errno::ALL {
            assert!(definitions(header, "COPS_").any(|found| found == (error.name(), error.number().into())));
        }
    }
}
