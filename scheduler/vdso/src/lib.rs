//! The scheduler as one position-independent image, used by the kernel and by every process.
//!
//! # Form of the image
//!
//! An ELF shared object without writable data, without relocations and without a need for any other library: one
//! segment, read and execute, in which every file offset is also the offset in memory. So mapping the file's bytes is
//! loading it, at any page address, and all processes share the same pages. All state lies in the caller's memory.
//! Programs find the image by `AT_SYSINFO_EHDR` and its functions by its dynamic symbols, as on Linux; the kernel,
//! which contains the bytes, uses the symbols without the auxiliary vector.
//!
//! The image's entry point is no function for programs but the return from a signal's handler (`rt_sigreturn`); the
//! kernel gives its address to handlers.
//!
//! Beside the scheduler there is the clock, for C libraries that were built for Linux.
//!
//! The functions are [`scheduler::entry`]'s, with the names in [`scheduler::entry::NAMES`]; `user/c/cops.h` declares
//! them for C and the `coroutine` crate for Rust.
//!
//! **Critical sections never leave the image.** A function of the caller (a poll, a finish, a hook) is never called
//! while a lock is held. So a kernel that does not preempt a worker while its program counter lies in the image's text
//! never preempts the holder of a lock. So workers do not wait for a preempted lock holder when there are more workers
//! than harts.
//!
//! # Build
//!
//! ```text
//! cargo rustc --release --package vdso --lib --crate-type staticlib --target riscv64gc-unknown-none-elf \
//!     -- -C relocation-model=pic -C panic=abort
//! ld.lld -m elf64lriscv -shared -Bsymbolic --gc-sections --no-undefined -z rodynamic -z max-page-size=4096 \
//!     -z noexecstack --hash-style=both --build-id=none -soname cops-vdso.so.1 --script scheduler/vdso/vdso.ld \
//!     --strip-all -o cops-vdso.so target/riscv64gc-unknown-none-elf/release/libvdso.a
//! ```
//!
//! (`rust-lld -flavor gnu` is the same linker.) Without `--strip-all` the same command gives the symbols for a
//! debugger, at the same addresses.
//!
//! The builder must then check the following, because the linker cannot, or only in part:
//! * there is exactly one `PT_LOAD`, with flags read and execute, offset 0 and address 0, and file size equal to memory
//!   size;
//! * the dynamic section has no `DT_RELA`, `DT_REL`, `DT_JMPREL`, `DT_RELR`, `DT_TEXTREL` or `DT_NEEDED`;
//! * every name in [`scheduler::entry::NAMES`], and each of Linux's, is a defined dynamic symbol, and there is no
//!   undefined one;
//! * the segment is at most 16 KiB.
//!
//! # The panic handler
//!
//! The scheduler has no panic: its indexes are masked and its arithmetic wraps. A panic would need the formatting
//! machinery, whose tables of addresses are relocations; so a panic that slips in fails the checks above. The handler
//! exists because a library without `std` must have one.
#![cfg_attr(target_os = "none", no_std)]

#[cfg(any(test, all(target_os = "none", target_arch = "riscv64")))]
mod clock;

use core::ffi::c_void;
use core::sync::atomic::AtomicU64;

use scheduler::{Counters, Executor, Header, Hooks, ReadyWord, SHARDS, Signals, entry};

#[cfg(all(target_os = "none", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

// The return from a signal's handler: `rt_sigreturn`, under Linux's name and version. Debuggers know a handler's caller
// by it.
#[cfg(all(target_os = "none", target_arch = "riscv64"))]
core::arch::global_asm!(
    ".section .text.signal_return, \"ax\", @progbits",
    ".balign 4",
    ".globl __vdso_rt_sigreturn",
    ".type __vdso_rt_sigreturn, @function",
    "__vdso_rt_sigreturn:",
    "li a7, 139",
    "ecall",
    ".size __vdso_rt_sigreturn, . - __vdso_rt_sigreturn",
    ".text",
);

/// See [`entry::version`].
#[unsafe(no_mangle)]
pub extern "C" fn cops_scheduler_version() -> u32 {
    entry::version()
}

/// See [`entry::executor_size`].
#[unsafe(no_mangle)]
pub extern "C" fn cops_executor_size() -> usize {
    entry::executor_size()
}

/// See [`entry::executor_init`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_executor_init(
    executor: *mut Executor,
    ready: *const [ReadyWord; SHARDS],
    hooks: *const Hooks,
) {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::executor_init(executor, ready, hooks) }
}

/// See [`entry::add_slots`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_add_slots(executor: *const Executor, page: *mut c_void, hint: u32) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::add_slots(executor, page, hint) }
}

/// See [`entry::add_worker`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_add_worker(executor: *const Executor, worker: u32, signals: *const Signals) {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::add_worker(executor, worker, signals) }
}

/// See [`entry::remove_worker`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_remove_worker(executor: *const Executor, worker: u32) {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::remove_worker(executor, worker) }
}

/// See [`entry::spawn`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_spawn(executor: *const Executor, header: *mut Header, hint: u32) -> u64 {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::spawn(executor, header, hint) }
}

/// See [`entry::wake`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_wake(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::wake(executor, cid) }
}

/// See [`entry::wake_here`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_wake_here(executor: *const Executor, cid: u64, worker: u32) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::wake_here(executor, cid, worker) }
}

/// See [`entry::cancel`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_cancel(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::cancel(executor, cid) }
}

/// See [`entry::set_priority`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_set_priority(executor: *const Executor, cid: u64, priority: u32) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::set_priority(executor, cid, priority) }
}

/// See [`entry::priority`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_priority(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::priority(executor, cid) }
}

/// See [`entry::kind`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_kind(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::kind(executor, cid) }
}

/// See [`entry::state`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_state(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::state(executor, cid) }
}

/// See [`entry::current`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_current(executor: *const Executor, worker: u32) -> u64 {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::current(executor, worker) }
}

/// See [`entry::suspend`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_suspend(executor: *const Executor, worker: u32) -> u64 {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::suspend(executor, worker) }
}

/// See [`entry::resume`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_resume(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::resume(executor, cid) }
}

/// See [`entry::run`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_run(executor: *const Executor, worker: u32, frame: *mut c_void) -> u32 {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::run(executor, worker, frame) }
}

/// See [`entry::run_one`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_run_one(executor: *const Executor, worker: u32, frame: *mut c_void) -> u32 {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::run_one(executor, worker, frame) }
}

/// See [`entry::run_strictly`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_run_strictly(
    executor: *const Executor,
    worker: u32,
    frame: *mut c_void,
    elsewhere: *const AtomicU64,
    ceiling: u32,
) -> u32 {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::run_strictly(executor, worker, frame, elsewhere, ceiling) }
}

/// See [`entry::counters`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_counters(executor: *const Executor, shard: u32, counters: *mut Counters) {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::counters(executor, shard, counters) }
}

/// See [`entry::cid_at`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cops_cid_at(executor: *const Executor, index: u32) -> u64 {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::cid_at(executor, index) }
}
