//! The words that threads share in the scheduler, in two versions.
//!
//! Normally these are the machine's atomics and plain memory. Under `cfg(loom)` all of them are loom's, so that the
//! model checker sees each access and tries each interleaving; in particular it reports a [`Plain`] that two threads
//! access without the lock that should protect it.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// Tells the processor (or the model checker) that this is a spinning wait.
#[inline(always)]
pub(crate) fn spin() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// A word that is not atomic: a lock, or ownership by a state, prevents concurrent access.
#[repr(transparent)]
pub struct Plain<T: Copy>(#[cfg(not(loom))] core::cell::UnsafeCell<T>, #[cfg(loom)] loom::cell::UnsafeCell<T>);

impl<T: Copy> Plain<T> {
    /// Makes a word with this value.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Plain<T> {
        Plain(core::cell::UnsafeCell::new(value))
    }

    /// Makes a word with this value.
    #[cfg(loom)]
    pub fn new(value: T) -> Plain<T> {
        Plain(loom::cell::UnsafeCell::new(value))
    }

    /// Reads the word.
    ///
    /// # Safety
    /// No other thread writes it at the same time.
    #[inline(always)]
    #[cfg_attr(loom, track_caller)]
    pub(crate) unsafe fn get(&self) -> T {
        #[cfg(not(loom))]
        // SAFETY: the caller promises that there is no writer.
        unsafe {
            *self.0.get()
        }
        #[cfg(loom)]
        // SAFETY: as above, and loom checks it.
        self.0.with(|word| unsafe { *word })
    }

    /// Writes the word.
    ///
    /// # Safety
    /// No other thread reads or writes it at the same time.
    #[inline(always)]
    #[cfg_attr(loom, track_caller)]
    pub(crate) unsafe fn set(&self, value: T) {
        #[cfg(not(loom))]
        // SAFETY: the caller promises that no other thread accesses the word.
        unsafe {
            *self.0.get() = value;
        }
        #[cfg(loom)]
        // SAFETY: as above, and loom checks it.
        self.0.with_mut(|word| unsafe { *word = value })
    }
}

/// The priorities that one worker publishes; see [`abi_queue::ReadyWord`].
#[cfg(not(loom))]
pub use abi_queue::ReadyWord;

/// The model checker's version of [`abi_queue::ReadyWord`].
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct ReadyWord(pub AtomicU64, pub AtomicU64);

/// Writes a value to fresh memory.
///
/// # Safety
/// `place` is valid for a write of `T` and aligned.
#[inline(always)]
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    // SAFETY: the caller's promise is `write`'s requirement.
    unsafe { place.write(value) }
}
