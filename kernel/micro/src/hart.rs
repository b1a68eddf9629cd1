//! The words about a hart that are touched without the kernel's lock; `smp` says what for.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hal_api::{Machine as _, Trap};
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
    /// Whether the hart waits for the lock. Written by that hart alone, and a hint only: whoever holds the lock and
    /// sees one gives it back soon.
    pub(crate) waits: AtomicBool,
}

/// The words of all harts of one kernel. They stand beside the kernel's lock, and the kernel refers to them.
pub struct Harts(pub(crate) [Hart; MAXIMUM_NODES]);

impl Default for Harts {
    fn default() -> Harts {
        Harts::new()
    }
}

impl Harts {
    /// Harts that are in the kernel, and of which nothing is wanted.
    pub const fn new() -> Harts {
        Harts(
            [const {
                Hart {
                    place: AtomicU32::new(IN_KERNEL),
                    must_leave: AtomicBool::new(false),
                    must_drain: AtomicUsize::new(0),
                    drained: AtomicU64::new(0),
                    waits: AtomicBool::new(false),
                }
            }; MAXIMUM_NODES],
        )
    }

    /// Notes that a hart has come into the kernel: the registers of the thread that it ran are complete.
    #[inline(always)]
    pub fn note_trap(&self, trap: Trap, hart: usize) -> Trap {
        if cfg!(feature = "smp") {
            let place = if trap == Trap::SystemCall { IN_SYSTEM_CALL } else { IN_KERNEL };
            self.0[hart].place.store(place, Ordering::Release);
        }
        trap
    }

    /// Notes whether a hart waits for the lock.
    pub(crate) fn note_waiting(&self, hart: usize, waits: bool) {
        self.0[hart].waits.store(waits, Ordering::Relaxed);
    }

    /// Whether a hart waits for the lock: it may be there for an interrupt that is more urgent than a long operation
    /// here.
    #[inline(always)]
    pub(crate) fn others_wait(&self) -> bool {
        cfg!(feature = "smp") && self.0.iter().any(|hart| hart.waits.load(Ordering::Relaxed))
    }

    /// Does for the hart that holds the lock, while this one waits for it, what only this one can.
    pub(crate) fn obey(&self, hart: usize) {
        let words = &self.0[hart];
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
