//! An allocator that runs short for one thread.
//!
//! Behaviour without memory is tested by a limit. A limit for the whole process would affect the test harness, too: its
//! main thread allocates at any time, and aborts if it cannot.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

std::thread_local! {
    /// Bytes that the thread may still allocate, if there is a limit.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The host's allocator, with a limit for threads that set one.
#[derive(Debug)]
pub struct Limited;

/// Runs `action` while the thread can have at most `bytes` more memory than before. A panic of `action` ends the limit
/// before its message is made.
///
/// The test program's global allocator has to be [`Limited`].
pub fn with_memory<R>(bytes: usize, action: impl FnOnce() -> R) -> R {
    /// The limit, which ends with it.
    struct Limit;
    impl Drop for Limit {
        fn drop(&mut self) {
            LEFT.set(None);
        }
    }
    LEFT.set(Some(bytes));
    let _limit = Limit;
    action()
}

/// Takes bytes from the remaining ones; `false` if they are too few.
fn take(bytes: usize) -> bool {
    match LEFT.get() {
        None => true,
        // A panic without memory for its message would wait for ever, and the test would hang instead of failing.
        Some(_) if std::thread::panicking() => true,
        Some(left) => left.checked_sub(bytes).inspect(|&left| LEFT.set(Some(left))).is_some(),
    }
}

fn give_back(bytes: usize) {
    LEFT.set(LEFT.get().map(|left| left.saturating_add(bytes)));
}

// SAFETY: all memory is the host's allocator's, which fulfils the trait's contract; counting neither allocates nor
// panics, as the cell needs no initialisation and no destructor.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise about the layout is that of the host's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: the memory came from the host's allocator with this layout, as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size.saturating_sub(layout.size())) {
            return std::ptr::null_mut();
        }
        give_back(layout.size().saturating_sub(size));
        // SAFETY: as in `dealloc`, and the caller promises that the new size is one of a layout.
        unsafe { System.realloc(start, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static MEMORY: Limited = Limited;

    #[test]
    fn only_the_thread_that_asked_runs_short() {
        let reserve = |bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
        assert!(reserve(1000));
        let (go, went) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                go.wait();
                let result = reserve(1000);
                went.wait();
                result
            });
            let results = with_memory(100, || {
                let before = reserve(1000);
                go.wait();
                went.wait();
                (before, reserve(100), reserve(101))
            });
            assert_eq!(results, (false, true, false));
            assert!(other.join().unwrap(), "another thread ran short");
        });
        assert!(reserve(1000));
    }

    /// Its message takes memory, and so does the search for its cause.
    #[test]
    fn a_failure_without_memory_is_reported_and_ends_the_limit() {
        let failure =
            std::panic::catch_unwind(|| with_memory(0, || panic!("{} bytes", Vec::<u8>::new().len()))).unwrap_err();
        assert_eq!(failure.downcast_ref::<String>().map(String::as_str), Some("0 bytes"));
        assert!(Vec::<u8>::new().try_reserve_exact(1000).is_ok());
    }
}
