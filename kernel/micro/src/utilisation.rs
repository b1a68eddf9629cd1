//! The utilisation counters of one hart, for seL4's benchmark calls (`debug_call`).

use core::cell::Cell;

use objects::{Ref, Tcb, Used};

/// The utilisation counters of a hart.
pub struct Counters {
    /// Time of the start of the counters; 0 if they are stopped.
    pub start: Cell<u64>,
    /// Duration of the last count, after it was stopped.
    pub total: Cell<u64>,
    /// Time of the last addition.
    pub last: Cell<u64>,
    /// Epoch of the counters: a thread's counters of another epoch count as zero.
    pub epoch: Cell<u64>,
    pub idle: Used,
    pub busy: Used,
}

impl Counters {
    /// Makes stopped counters that are zero.
    pub const fn new() -> Counters {
        Counters {
            start: Cell::new(0),
            total: Cell::new(0),
            last: Cell::new(0),
            epoch: Cell::new(0),
            idle: Used::new(),
            busy: Used::new(),
        }
    }

    /// Returns the cycles since the last call.
    pub fn lap(&self) -> u64 {
        let now = platform::machine::cycles();
        now.wrapping_sub(self.last.replace(now))
    }

    /// Returns whether the counters count.
    pub fn is_running(&self) -> bool {
        self.start.get() != 0
    }

    /// Returns the thread, with its counters reset if they are of another epoch.
    pub fn of(&self, thread: Option<Ref<Tcb>>) -> Option<Ref<Tcb>> {
        let thread = thread?;
        if thread.used.epoch.replace(self.epoch.get()) != self.epoch.get() {
            thread.used.reset();
        }
        Some(thread)
    }

    /// Adds to the counters of the hart, and to those of the thread or of the idle time.
    pub fn add(&self, thread: Option<Ref<Tcb>>, add: impl Fn(&Used)) {
        add(&self.busy);
        match self.of(thread) {
            Some(thread) => add(&thread.used),
            None => add(&self.idle),
        }
    }
}
