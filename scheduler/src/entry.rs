//! The scheduler's functions with the signatures that the image exports: C types, numbers for errors.
//!
//! Each is the [`Executor`] function of the same name. The image gives them the names in [`NAMES`]; `user/c/cops.h` is
//! their C declaration.

use core::ffi::c_void;

use crate::executor::{Counters, Executor, Header, Hooks, Signals, Stale};
use crate::sync::AtomicU64;
use crate::{ReadyWord, SHARDS};

/// Version of these functions and of the layouts that they use. The upper 16 bits are the major version. A caller must
/// not use an image with another major version.
pub const VERSION: u32 = 3 << 16;

/// The call succeeded.
pub const OK: isize = 0;
/// The cid identifies no coroutine of this executor.
pub const STALE: isize = 1;
/// The executor has the largest possible number of slots.
pub const FULL: isize = 2;
/// As [`STALE`], from functions whose other results are numbers from 0.
pub const NONE: isize = -1;

/// Answer of [`cid_at`] for a slot that does not exist. No cid has this value, whose index is beyond all slots.
pub const NO_SLOT: u64 = u64::MAX;

/// Names of the exported functions, in the order of the Rust binding's table.
pub const NAMES: [&str; 22] = [
    "cops_scheduler_version",
    "cops_executor_size",
    "cops_executor_init",
    "cops_add_slots",
    "cops_add_worker",
    "cops_remove_worker",
    "cops_spawn",
    "cops_wake",
    "cops_wake_here",
    "cops_cancel",
    "cops_set_priority",
    "cops_priority",
    "cops_kind",
    "cops_state",
    "cops_current",
    "cops_suspend",
    "cops_resume",
    "cops_run",
    "cops_run_one",
    "cops_run_strictly",
    "cops_counters",
    "cops_cid_at",
];

fn status(result: Result<(), Stale>) -> isize {
    match result {
        Ok(()) => OK,
        Err(Stale) => STALE,
    }
}

/// Returns [`VERSION`].
pub extern "C" fn version() -> u32 {
    VERSION
}

/// Returns the size of an executor in bytes; its alignment is 128.
pub extern "C" fn executor_size() -> usize {
    size_of::<Executor>()
}

/// See [`Executor::initialise`].
///
/// # Safety
/// As there; `hooks` points to hooks, which are copied.
pub unsafe extern "C" fn executor_init(
    executor: *mut Executor,
    ready: *const [ReadyWord; SHARDS],
    hooks: *const Hooks,
) {
    // SAFETY: the caller's promise.
    unsafe { Executor::initialise(executor, ready, *hooks) }
}

/// See [`Executor::add_slots`]; returns [`OK`] or [`FULL`].
///
/// # Safety
/// As there; `executor` was initialised.
pub unsafe extern "C" fn add_slots(executor: *const Executor, page: *mut c_void, hint: u32) -> isize {
    // SAFETY: the caller's promise.
    match unsafe { (*executor).add_slots(page, hint as usize) } {
        Ok(()) => OK,
        Err(crate::Full) => FULL,
    }
}

/// See [`Executor::add_worker`].
///
/// # Safety
/// As there; `executor` was initialised; `signals` points to signals, which are copied.
pub unsafe extern "C" fn add_worker(executor: *const Executor, worker: u32, signals: *const Signals) {
    // SAFETY: the caller's promise.
    unsafe { (*executor).add_worker(worker as usize, *signals) }
}

/// See [`Executor::remove_worker`].
///
/// # Safety
/// `executor` was initialised; the worker does not run.
pub unsafe extern "C" fn remove_worker(executor: *const Executor, worker: u32) {
    // SAFETY: the caller's promise.
    unsafe { (*executor).remove_worker(worker as usize) }
}

/// See [`Executor::spawn`]; returns the cid, or 0 if slots are needed.
///
/// # Safety
/// As there; `executor` was initialised.
pub unsafe extern "C" fn spawn(executor: *const Executor, header: *mut Header, hint: u32) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (*executor).spawn_or_0(header, hint as usize) }
}

/// See [`Executor::wake`]; returns [`OK`] or [`STALE`].
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn wake(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise.
    unsafe { (*executor).wake_or_1(cid) }
}

/// See [`Executor::wake_here`]; returns [`OK`] or [`STALE`].
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn wake_here(executor: *const Executor, cid: u64, worker: u32) -> isize {
    // SAFETY: the caller's promise.
    status(unsafe { (*executor).wake_here(cid, worker as usize) })
}

/// See [`Executor::cancel`]; returns [`OK`] or [`STALE`].
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn cancel(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise.
    status(unsafe { (*executor).cancel(cid) })
}

/// See [`Executor::set_priority`]; returns [`OK`] or [`STALE`].
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn set_priority(executor: *const Executor, cid: u64, priority: u32) -> isize {
    // SAFETY: the caller's promise.
    status(unsafe { (*executor).set_priority(cid, priority.min(u8::MAX.into()) as u8) })
}

/// See [`Executor::priority`]; returns the number, or [`NONE`].
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn priority(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise.
    unsafe { (*executor).priority(cid) }.map_or(NONE, |number| number as isize)
}

/// See [`Executor::kind`]; returns the kind, or [`NONE`].
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn kind(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise.
    unsafe { (*executor).kind(cid) }.map_or(NONE, |kind| kind as isize)
}

/// See [`Executor::state`]; returns the number of a [`State`](crate::State), or [`NONE`].
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn state(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise.
    unsafe { (*executor).state(cid) }.map_or(NONE, |state| state as isize)
}

/// See [`Executor::current`]; returns the cid, or 0.
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn current(executor: *const Executor, worker: u32) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (*executor).current(worker as usize) }.unwrap_or(0)
}

/// See [`Executor::suspend`]; returns the cid, or 0.
///
/// # Safety
/// `executor` was initialised; the call comes from the worker, inside a poll.
pub unsafe extern "C" fn suspend(executor: *const Executor, worker: u32) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (*executor).suspend(worker as usize) }.unwrap_or(0)
}

/// See [`Executor::resume`]; returns [`OK`] or [`STALE`].
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn resume(executor: *const Executor, cid: u64) -> isize {
    // SAFETY: the caller's promise.
    status(unsafe { (*executor).resume(cid) })
}

/// See [`Executor::run`]; returns the number of an [`Outcome`](crate::Outcome).
///
/// # Safety
/// As there; `executor` was initialised.
pub unsafe extern "C" fn run(executor: *const Executor, worker: u32, frame: *mut c_void) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (*executor).run(worker as usize, frame) as u32 }
}

/// See [`Executor::run_one`]; returns the number of an [`Outcome`](crate::Outcome).
///
/// # Safety
/// As there; `executor` was initialised.
pub unsafe extern "C" fn run_one(executor: *const Executor, worker: u32, frame: *mut c_void) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (*executor).run_one(worker as usize, frame) as u32 }
}

/// See [`Executor::run_strictly`]; returns the number of an [`Outcome`](crate::Outcome).
///
/// # Safety
/// As there; `executor` was initialised.
pub unsafe extern "C" fn run_strictly(
    executor: *const Executor,
    worker: u32,
    frame: *mut c_void,
    elsewhere: *const AtomicU64,
    ceiling: u32,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (*executor).run_strictly(worker as usize, frame, elsewhere, ceiling) as u32 }
}

/// See [`Executor::counters`].
///
/// # Safety
/// `executor` was initialised; `counters` is valid for a write.
pub unsafe extern "C" fn counters(executor: *const Executor, shard: u32, counters: *mut Counters) {
    // SAFETY: the caller's promise.
    unsafe { counters.write((*executor).counters(shard as usize)) }
}

/// See [`Executor::cid_at`]; returns 0 for a free slot, and [`NO_SLOT`] beyond the last one.
///
/// # Safety
/// `executor` was initialised.
pub unsafe extern "C" fn cid_at(executor: *const Executor, index: u32) -> u64 {
    // SAFETY: the caller's promise.
    match unsafe { (*executor).cid_at(index) } {
        Ok(cid) => cid.unwrap_or(0),
        Err(Stale) => NO_SLOT,
    }
}
