//! The words about a hart that are touched without the kernel's lock; `smp` says what for.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hal_api::{MAXIMUM_HARTS, Trap, Virtualisation as _};
use objects::Space;
use platform::Machine;

use crate::node::MAXIMUM_NODES;

/// A hart is in the kernel, or about to take the lock. The thread's registers are complete.
pub(crate) const IN_KERNEL: u32 = 0;
/// As above, and it came by a system call.
pub(crate) const IN_SYSTEM_CALL: u32 = 1;
/// A hart runs a thread.
pub(crate) const IN_USER: u32 = 2;

/// The words about each hart that harts touch without the lock.
pub(crate) struct Hart {
    /// Where the hart is. Written by that hart alone. Release and acquire: whoever sees a hart in the kernel sees the
    /// registers that it saved.
    pub(crate) place: AtomicU32,
    /// Whether the hart has to leave the address space that it came from. Set by the hart that holds the lock, cleared
    /// by the hart that is meant, which waits for it. Release and acquire: whoever sees that a hart has left may give
    /// the tables to somebody else.
    pub(crate) must_leave: AtomicBool,
    /// Which of its guest interrupt files the hart has to empty, because only it can; 0 for none. Set and cleared as
    /// `must_leave`; release and acquire: what was found is there when it is cleared.
    pub(crate) must_drain: AtomicUsize,
    /// The bits that the hart has found in such a file.
    pub(crate) drained: AtomicU64,
}

/// The words of all harts of one kernel. They stand beside the kernel's lock, and the kernel refers to them.
pub struct Harts {
    pub(crate) each: [Hart; MAXIMUM_NODES],
    /// Which harts wait for the lock, a bit for each. A hint only, so relaxed: a hart that holds the lock and sees one
    /// gives it back soon, and a hart that comes for it gives way for a moment.
    waiting: AtomicU32,
}

const _: () = assert!(MAXIMUM_NODES <= u32::BITS as usize && MAXIMUM_NODES <= MAXIMUM_HARTS);

impl Default for Harts {
    fn default() -> Harts {
        Harts::new()
    }
}

impl Harts {
    /// Harts that are in the kernel, and of which nothing is wanted.
    pub const fn new() -> Harts {
        Harts {
            each: [const {
                Hart {
                    place: AtomicU32::new(IN_KERNEL),
                    must_leave: AtomicBool::new(false),
                    must_drain: AtomicUsize::new(0),
                    drained: AtomicU64::new(0),
                }
            }; MAXIMUM_NODES],
            waiting: AtomicU32::new(0),
        }
    }

    /// Notes that a hart has come into the kernel: the registers of the thread that it ran are complete.
    #[inline(always)]
    pub fn note_trap(&self, trap: Trap, hart: usize) -> Trap {
        if cfg!(feature = "smp") {
            let place = if trap == Trap::SystemCall { IN_SYSTEM_CALL } else { IN_KERNEL };
            self.each[hart].place.store(place, Ordering::Release);
        }
        trap
    }

    /// Notes that a hart waits for the lock.
    pub(crate) fn begins_to_wait(&self, hart: usize) {
        self.waiting.fetch_or(1 << hart, Ordering::Relaxed);
    }

    /// Notes that a hart does not wait for the lock any more.
    pub(crate) fn has_waited(&self, hart: usize) {
        self.waiting.fetch_and(!(1 << hart), Ordering::Relaxed);
    }

    /// Whether a hart waits for the lock: it may be there for an interrupt that is more urgent than a long operation
    /// here.
    #[inline(always)]
    pub(crate) fn others_wait(&self) -> bool {
        cfg!(feature = "smp") && self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Does for the hart that holds the lock, while this one waits for it, what only this one can.
    pub(crate) fn obey(&self, hart: usize) {
        let words = &self.each[hart];
        if words.must_leave.load(Ordering::Acquire) {
            objects::activate::<Machine>(Space::kernel::<Machine>());
            words.must_leave.store(false, Ordering::Release);
        }
        let file = words.must_drain.load(Ordering::Acquire);
        if file != 0 {
            words.drained.store(Machine::drain_guest_file(file), Ordering::Relaxed);
            words.must_drain.store(0, Ordering::Release);
        }
    }
}
