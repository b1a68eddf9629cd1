//! The start of a program: from the kernel's stack to a Rust function.
//!
//! A new process begins at `_start` with the layout of the System V ABI on its stack: the number of arguments, pointers
//! to them, NULL, pointers to the environment's strings, NULL, pairs of the auxiliary vector up to key 0. `_start` only
//! makes the stack's top an argument; everything else is Rust.
//!
//! The program's address differs each time, and it relocates itself before anything else: every stored address is wrong
//! until then. Its constants, of which some are addresses, are writable until then and never again.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use abi_unix::types::auxiliary;

/// The parts of the initial stack; written once, before `main`.
static ARGUMENT_COUNT: AtomicUsize = AtomicUsize::new(0);
static ARGUMENTS: AtomicPtr<*const c_char> = AtomicPtr::new(core::ptr::null_mut());
static ENVIRONMENT: AtomicPtr<*const c_char> = AtomicPtr::new(core::ptr::null_mut());
static AUXILIARY: AtomicPtr<[u64; 2]> = AtomicPtr::new(core::ptr::null_mut());

/// Names the first function of a program without the runtime: `unix::entry!(main)`, with `fn main() -> i32`; its result
/// is the exit status.
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

#[cfg(target_os = "none")]
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

/// In a program with the standard library the C library begins, and passes what it found on its stack to the functions
/// of this list before `main` (glibc does; its pointers are those of the initial stack).
#[cfg(all(on_cops, feature = "std"))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: unsafe extern "C" fn(core::ffi::c_int, *const *const c_char) = {
    unsafe extern "C" fn before_main(_count: core::ffi::c_int, arguments: *const *const c_char) {
        // SAFETY: the word before the arguments is their number, and what follows has the layout of a new process.
        unsafe { remember(arguments.cast::<usize>().sub(1)) }
    }
    before_main
};

/// First Rust function of the process.
///
/// # Safety
///
/// `stack` must be the initial stack pointer: see the module's text.
#[cfg(target_os = "none")]
unsafe extern "C" fn start(stack: *const usize) -> ! {
    unsafe extern "C" {
        safe fn cops_entry() -> i32;
    }
    // SAFETY: these are the program's own first instructions.
    unsafe { relocate_program() };
    // SAFETY: the caller's promise, which is that of `remember`.
    unsafe { remember(stack) };
    crate::process::exit(cops_entry())
}

/// Relocates the program, and makes its constants read-only.
///
/// # Safety
///
/// To be called once, before any use of an address in memory.
#[cfg(target_os = "none")]
unsafe fn relocate_program() {
    unsafe extern "C" {
        static __program_start: u8;
        static __relocations_start: u64;
        static __relocations_end: u64;
        static __constants_start: u8;
        static __constants_end: u8;
    }
    let moved = &raw const __program_start as usize;
    let (start, end) = (&raw const __relocations_start, &raw const __relocations_end);
    // SAFETY: the linker script defines the symbols, and lists the words that are addresses; the program is linked at
    // 0.
    unsafe { relocate(moved, start, (end as usize - start as usize) / size_of::<u64>()) };
    let constants = &raw const __constants_start as usize..&raw const __constants_end as usize;
    let protection = abi_unix::types::protection::READ;
    // SAFETY: constants are not written any more. If they stay writable the program still runs.
    let _ = unsafe { crate::call!(Protect, constants.start, constants.end - constants.start, protection) };
}

/// Adds `moved` to the words of a program that a packed list names (`SHT_RELR` of the System V ABI): an even entry is
/// the address of a word; an odd one is a bitmap, from bit 1 on, of the 63 words behind those that the entries before
/// have covered.
///
/// # Safety
///
/// `list` must have `count` entries, and the words that it names, moved, must be words of the program without other
/// users.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
unsafe fn relocate(moved: usize, list: *const u64, count: usize) {
    let mut next = core::ptr::null_mut::<usize>();
    let mut index = 0;
    // No iterators and no functions that could be elsewhere: no stored address is valid yet.
    while index < count {
        // SAFETY: the list has that many entries, and names words of the program.
        unsafe {
            let entry = list.add(index).read();
            if entry & 1 == 0 {
                next = (moved + entry as usize) as *mut usize;
                *next = (*next).wrapping_add(moved);
                next = next.add(1);
            } else {
                let mut bits = entry >> 1;
                let mut word = next;
                while bits != 0 {
                    if bits & 1 != 0 {
                        *word = (*word).wrapping_add(moved);
                    }
                    bits >>= 1;
                    word = word.wrapping_add(1);
                }
                next = next.wrapping_add(63);
            }
        }
        index += 1;
    }
}

/// Finds the parts of the initial stack.
///
/// # Safety
///
/// `stack` must point to a count, that many pointers and NULL, pointers and NULL, and pairs of words up to one that
/// begins with 0; all of that must stay unchanged for the rest of the process's life.
#[cfg_attr(not(on_cops), allow(dead_code))]
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

/// Returns the program's arguments; the first is its own name.
#[doc(alias("args", "argv"))]
pub fn arguments() -> impl ExactSizeIterator<Item = &'static CStr> + Clone {
    let arguments = ARGUMENTS.load(Ordering::Relaxed);
    (0..ARGUMENT_COUNT.load(Ordering::Relaxed)).map(move |index| {
        // SAFETY: `remember` found that many pointers to strings there; they stay for the life of the process.
        unsafe { CStr::from_ptr(*arguments.add(index)) }
    })
}

/// Returns the environment's strings, `NAME=value` each.
#[doc(alias("vars", "environ"))]
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

/// Returns the value with this key ([`abi_unix::types::auxiliary`]) in the auxiliary vector.
#[doc(alias = "getauxval")]
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
    fn packed_relocations_are_undone() {
        let mut words = [0usize; 200];
        let start = words.as_mut_ptr() as usize;
        // Words 1, then 2, 5 and 64 by a bitmap, then 65 and 127 by another; then 190.
        let list = [8u64, 1 | 1 << 1 | 1 << 4 | 1 << 63, 1 | 1 << 1 | 1 << 63, 190 * 8];
        // SAFETY: the list names words of the array.
        unsafe { relocate(start, list.as_ptr(), list.len()) };
        for (index, word) in words.iter().enumerate() {
            let moved = [1, 2, 5, 64, 65, 127, 190].contains(&index);
            assert_eq!(*word, if moved { start } else { 0 }, "{index}");
        }
        // SAFETY: the list is empty.
        unsafe { relocate(start, list.as_ptr(), 0) };
    }

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
        // SAFETY: the memory has the layout, and is never freed.
        unsafe { remember(stack.as_ptr()) };
        assert!(arguments().eq([program, argument]));
        assert!(environment().eq([variable]));
        assert_eq!(auxiliary_value(auxiliary::SYSINFO_EHDR), Some(0x1000));
        assert_eq!(auxiliary_value(auxiliary::HWCAP), None);
    }
}
