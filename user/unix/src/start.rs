//! How a program starts: from the kernel's stack to a Rust function.
//!
//! A new process begins at `_start` with the layout of the System V ABI on its stack: the number of arguments, pointers
//! to them, NULL, pointers to the environment's strings, NULL, pairs of the auxiliary vector up to key 0. `_start` only
//! makes the stack's top an argument; everything else is Rust.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use abi_unix::types::auxiliary;

/// What the kernel left on the stack; written once, before `main`.
static ARGUMENT_COUNT: AtomicUsize = AtomicUsize::new(0);
static ARGUMENTS: AtomicPtr<*const c_char> = AtomicPtr::new(core::ptr::null_mut());
static ENVIRONMENT: AtomicPtr<*const c_char> = AtomicPtr::new(core::ptr::null_mut());
static AUXILIARY: AtomicPtr<[u64; 2]> = AtomicPtr::new(core::ptr::null_mut());

/// Names the function that a program without the runtime starts with: `unix::entry!(main)`, with
/// `fn main() -> i32`; its result is the exit status.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        // SAFETY: this is the symbol's only definition in a program, with the signature that `unix::start` declares.
        #[unsafe(no_mangle)]
        extern "C" fn cops_entry() -> i32 {
            let main: fn() -> i32 = $main;
            main()
        }
    };
}

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
core::arch::global_asm!(
    ".section .text.start, \"ax\", @progbits",
    ".globl _start",
    "_start:",
    ".option push",
    ".option norelax",
    "la gp, __global_pointer$",
    ".option pop",
    "mv a0, sp",
    "andi sp, sp, -16",
    "li ra, 0", // ends the chain of frames for debuggers
    "li fp, 0",
    "li tp, 0",
    "call {start}",
    "unimp",
    ".section .text",
    start = sym start,
);

/// First Rust function of the process.
///
/// # Safety
///
/// `stack` must be what the kernel left: see the module's text.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
unsafe extern "C" fn start(stack: *const usize) -> ! {
    unsafe extern "C" {
        safe fn cops_entry() -> i32;
    }
    // SAFETY: the caller's promise, which is that of `remember`.
    unsafe { remember(stack) };
    crate::process::exit(cops_entry())
}

/// Finds the parts of the initial stack.
///
/// # Safety
///
/// `stack` must point to a count, that many pointers and NULL, pointers and NULL, and pairs of words up to one that
/// begins with 0; all of that must stay as it is for the rest of the process's life.
#[cfg_attr(not(all(target_arch = "riscv64", target_os = "none")), allow(dead_code))]
unsafe fn remember(stack: *const usize) {
    // SAFETY: the layout is the caller's promise.
    unsafe {
        let count = *stack;
        let arguments = stack.add(1).cast::<*const c_char>();
        let environment = arguments.add(count + 1);
        let mut after = environment;
        while !(*after).is_null() {
            after = after.add(1);
        }
        ARGUMENT_COUNT.store(count, Ordering::Relaxed);
        ARGUMENTS.store(arguments.cast_mut(), Ordering::Relaxed);
        ENVIRONMENT.store(environment.cast_mut(), Ordering::Relaxed);
        AUXILIARY.store(after.add(1).cast_mut().cast(), Ordering::Relaxed);
    }
}

/// The program's arguments; the first is its own name.
pub fn arguments() -> impl ExactSizeIterator<Item = &'static CStr> + Clone {
    let arguments = ARGUMENTS.load(Ordering::Relaxed);
    (0..ARGUMENT_COUNT.load(Ordering::Relaxed)).map(move |index| {
        // SAFETY: `remember` found that many pointers to strings there; they stay for the life of the process.
        unsafe { CStr::from_ptr(*arguments.add(index)) }
    })
}

/// The environment's strings, `NAME=value` each.
pub fn environment() -> impl Iterator<Item = &'static CStr> + Clone {
    let environment = ENVIRONMENT.load(Ordering::Relaxed);
    (0..usize::MAX).map_while(move |index| {
        if environment.is_null() {
            return None;
        }
        // SAFETY: `remember` found pointers to strings there, up to a NULL at which this stops.
        let string = unsafe { *environment.add(index) };
        // SAFETY: as above.
        (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })
    })
}

/// The value with this key ([`abi_unix::types::auxiliary`]) in the auxiliary vector.
pub fn auxiliary_value(key: u64) -> Option<u64> {
    let vector = AUXILIARY.load(Ordering::Relaxed);
    if vector.is_null() {
        return None;
    }
    let mut index = 0;
    loop {
        // SAFETY: `remember` found pairs there, up to one with key 0 at which this stops.
        let [found, value] = unsafe { *vector.add(index) };
        match found {
            auxiliary::NULL => return None,
            found if found == key => return Some(value),
            _ => index += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_stack_is_understood() {
        let (program, argument, variable) = (c"/bin/x", c"-v", c"A=1");
        let stack: &'static [usize] = vec![
            2,
            program.as_ptr() as usize,
            argument.as_ptr() as usize,
            0,
            variable.as_ptr() as usize,
            0,
            auxiliary::PAGESZ as usize,
            4096,
            auxiliary::SYSINFO_EHDR as usize,
            0x1000,
            0,
            0,
        ]
        .leak();
        assert_eq!(auxiliary_value(auxiliary::PAGESZ), None);
        // SAFETY: this is the layout, and it is never freed.
        unsafe { remember(stack.as_ptr()) };
        assert!(arguments().eq([program, argument]));
        assert!(environment().eq([variable]));
        assert_eq!(auxiliary_value(auxiliary::SYSINFO_EHDR), Some(0x1000));
        assert_eq!(auxiliary_value(auxiliary::HWCAP), None);
    }
}
