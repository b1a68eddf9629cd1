//! The bridge from a test to libFuzzer, which is C++.

use std::ffi::{CString, c_char, c_int};
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::OnceLock;

// Linked for libFuzzer itself; its own way to name a target is for programs that contain only a target.
use libfuzzer_sys as _;

/// Variable with libFuzzer's arguments, one on each line: first its working folder, if it is to look for inputs.
const ARGUMENTS: &str = "COPS_FUZZ_ARGUMENTS";

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

unsafe extern "C" {
    /// Tries inputs until its time is over. Ends the process, with an error if an input failed.
    safe fn LLVMFuzzerRunDriver(
        count: &mut c_int,
        arguments: &mut *mut *mut c_char,
        callback: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

/// Passes the property to libFuzzer; never returns.
pub(crate) fn drive(seeds: &[&[u8]], run: fn(&[u8])) -> ! {
    RUN.set(run).expect("one property is fuzzed in one process");
    let given = std::env::var(ARGUMENTS).expect("`cargo xtask fuzz` sets libFuzzer's arguments");
    let folder = PathBuf::from(given.lines().next().unwrap_or_default());
    // For a comparison of inputs no folder is named.
    if folder.is_dir() {
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed).expect("the folder can be written");
        }
    }
    let text = |text: &str| CString::new(text).expect("arguments have no zeros").into_raw();
    let mut arguments: Vec<*mut c_char> = std::iter::once("fuzz").chain(given.lines()).map(text).collect();
    let mut count = arguments.len() as c_int;
    arguments.push(std::ptr::null_mut());
    let mut pointer = arguments.as_mut_ptr();
    std::process::exit(LLVMFuzzerRunDriver(&mut count, &mut pointer, one))
}

extern "C" fn one(start: *const u8, length: usize) -> c_int {
    // libFuzzer passes no pointer to an empty input.
    let input = if length == 0 {
        &[]
    } else {
        // SAFETY: libFuzzer passes an input of this length, and leaves it alone until this function returns.
        unsafe { std::slice::from_raw_parts(start, length) }
    };
    let run = RUN.get().expect("set before libFuzzer was called");
    if catch_unwind(|| run(input)).is_err() {
        // libFuzzer catches that and writes the input to a file.
        std::process::abort();
    }
    0
}

/// The name by which `libfuzzer-sys` calls the target of a program that contains only a target.
///
/// It is not called here.
// SAFETY: no other function of a test program has this name.
#[unsafe(no_mangle)]
#[expect(improper_ctypes_definitions, reason = "as `libfuzzer-sys` declares it; no C code calls it")]
extern "C" fn rust_fuzzer_test_input(_: &[u8]) -> i32 {
    -1
}
