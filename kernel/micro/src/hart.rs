//! The words of each hart that are accessed without the kernel's lock; `smp` describes their purpose.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hal_api::{MAXIMUM_HARTS, Trap, Virtualisation as _};
use objects::Space;
use platform::Machine;

use crate::node::MAXIMUM_NODES;

/// A hart is in the kernel, or about to take the lock. The thread's registers are complete.
pub(crate) const IN_KERNEL: u32 = 0;
/// As above, and the hart entered by a system call.
pub(crate) const IN_SYSTEM_CALL: u32 = 1;
/// A hart runs a thread.
pub(crate) const IN_USER: u32 = 2;

/// The words of one hart that harts access without the lock.
pub(crate) struct Hart {
    /// Place of the hart, in the kernel or in user mode. Written by that hart alone. Release and acquire: a hart that
    /// sees another in the kernel sees the registers that it has saved.
    pub(crate) place: AtomicU32,
    /// Whether the hart must leave the address space from which it entered. Set by the hart that holds the lock,
    /// cleared by the addressed hart, which waits for the lock. Release and acquire: a hart that sees that another has
    /// left may reuse the tables' memory.
    pub(crate) must_leave: AtomicBool,
    /// The guest interrupt file that the hart must empty, because only the hart itself can; 0 for none. Set and cleared
    /// as `must_leave`. Release and acquire: `drained` is valid when this is cleared.
    pub(crate) must_drain: AtomicUsize,
    /// The bits that the hart found in that file.
    pub(crate) drained: AtomicU64,
}

/// The words of all harts of one kernel. They are outside the kernel's lock, and the kernel refers to them.
pub struct Harts {
    pub(crate) each: [Hart; MAXIMUM_NODES],
    /// The harts that wait for the lock, a bit for each. A hint only, so relaxed: a hart that holds the lock and sees a
    /// waiting hart releases the lock soon, and a hart that is about to take the lock waits for a moment first.
    waiting: AtomicU32,
}

const _: () = assert!(MAXIMUM_NODES <= u32::BITS as usize && MAXIMUM_NODES <= MAXIMUM_HARTS);

impl Default for Harts {
    fn default() -> Harts {
        Harts::new()
    }
}

impl Harts {
    /// Makes the words of harts that are in the kernel, without requests.
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

    /// Records that a hart has entered the kernel: the registers of the thread that it ran are complete.
    #[inline(always)]
    pub fn note_trap(&self, trap: Trap, hart: usize) -> Trap {
        if cfg!(feature = "smp") {
            let place = if trap == Trap::SystemCall { IN_SYSTEM_CALL } else { IN_KERNEL };
            self.each[hart].place.store(place, Ordering::Release);
        }
        trap
    }

    /// Records that a hart waits for the lock.
    pub(crate) fn begins_to_wait(&self, hart: usize) {
        self.waiting.fetch_or(1 << hart, Ordering::Relaxed);
    }

    /// Records that a hart does not wait for the lock any more.
    pub(crate) fn has_waited(&self, hart: usize) {
        self.waiting.fetch_and(!(1 << hart), Ordering::Relaxed);
    }

    /// Returns whether a hart waits for the lock, perhaps with an interrupt that is more urgent than a long operation
    /// here.
    #[inline(always)]
    pub(crate) fn others_wait(&self) -> bool {
        cfg!(feature = "smp") && self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Serves the requests of the hart that holds the lock, while this hart waits for the lock.
    #[doc(alias = "handleIPI")]
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
