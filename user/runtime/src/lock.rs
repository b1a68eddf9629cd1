//! The lock inside the runtime's own objects: short, and aware that its holder may not be running.
//!
//! It guards a few dozen instructions at a time (a list operation, a map insertion), never an `await`. A worker that
//! meets it held spins briefly and then gives its turn back to the kernel: with more workers than harts the holder may
//! have been preempted, and spinning on would only keep it from finishing. Programs want [`crate::sync::Mutex`].

use spin::mutex::SpinMutex;
use spin::relax::RelaxStrategy;

/// What a worker does while it finds the lock held.
#[derive(Debug)]
pub struct Yielding;

impl RelaxStrategy for Yielding {
    fn relax() {
        // A holder that runs on another hart is done within these turns; one that does not run needs this hart.
        for _ in 0..32 {
            core::hint::spin_loop();
        }
        unix::worker::yield_now();
    }
}

/// A mutual exclusion for short sections.
pub type Lock<T> = SpinMutex<T, Yielding>;
