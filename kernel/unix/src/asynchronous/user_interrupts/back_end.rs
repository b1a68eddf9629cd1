//! The back end: the way in which user interrupts reach the programs of this machine.
//!
//! It is chosen once, when the machine starts, and is the same for all processes. It stands below processes, so that
//! their memory can be made for it.

use core::sync::atomic::{AtomicU8, Ordering};

use usermode::Kind;

/// The back end, as a number for programs: `abi_unix::types::auxiliary::COPS_USER_INTERRUPTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum BackEnd {
    Kernel = 0,
    Imsic = 1,
    Uintc = 2,
}

/// The back end of all processes. It does not change after the start.
static BACK_END: AtomicU8 = AtomicU8::new(BackEnd::Kernel as u8);

/// Sets the back end, when the machine starts.
pub(super) fn set(chosen: BackEnd) {
    BACK_END.store(chosen as u8, Ordering::Relaxed);
}

/// Returns the back end.
pub(super) fn present() -> BackEnd {
    match BACK_END.load(Ordering::Relaxed) {
        1 => BackEnd::Imsic,
        2 => BackEnd::Uintc,
        _ => BackEnd::Kernel,
    }
}

/// Returns whether interrupts reach programs without the kernel, which then has work when a worker comes to a hart and
/// leaves it.
#[inline(always)]
pub(crate) fn is_in_hardware() -> bool {
    BACK_END.load(Ordering::Relaxed) != BackEnd::Kernel as u8
}

/// Returns the back end's number for programs.
pub(crate) fn number() -> usize {
    BACK_END.load(Ordering::Relaxed).into()
}

/// Returns the kind of new processes.
pub(crate) fn kind_of_processes() -> Kind {
    if present() == BackEnd::Imsic { Kind::Virtualised } else { Kind::User }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_guest_interrupt_files_make_processes_virtualised() {
        let _guard = crate::testing::alone();
        assert_eq!((number(), is_in_hardware(), kind_of_processes()), (0, false, Kind::User), "before a choice");
        let expected = [
            (BackEnd::Uintc, (2, true, Kind::User)),
            (BackEnd::Imsic, (1, true, Kind::Virtualised)),
            (BackEnd::Kernel, (0, false, Kind::User)),
        ];
        for (back_end, answers) in expected {
            set(back_end);
            assert_eq!((present(), (number(), is_in_hardware(), kind_of_processes())), (back_end, answers));
        }
    }
}
