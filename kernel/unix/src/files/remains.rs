//! Remains of files, file systems and epolls that have gone, which are freed in steps.

use spin::Once;

use crate::files::mounts;

/// Remains of other objects than files.
#[doc(alias = "delayed_fput")]
pub(crate) struct Remains {
    /// Frees some; returns `false` if there are none.
    pub free_some: fn() -> bool,
    /// Does so too for processes whose budget is used up.
    pub free_any: fn() -> bool,
    /// Returns whether there are some.
    pub are_left: fn() -> bool,
    /// Called when the budget of a process has been refilled, or when it has ended.
    pub look_behind: fn(),
}

static OTHERS: Once<Remains> = Once::new();

/// Registers the remains of other objects than files. Called once.
pub(crate) fn register(others: Remains) {
    OTHERS.call_once(|| others);
}

/// Frees some pages of files or a piece of a file system that has gone, or takes back some registrations of epolls that
/// have; returns `false` if there are none.
pub(crate) fn free_some() -> bool {
    OTHERS.get().is_some_and(|others| (others.free_some)()) || mounts::top().tree().free_remains()
}

/// Does as [`free_some`] where time is nothing that another wants: remains of processes whose budget is used up are
/// freed, too.
pub(crate) fn free_any() -> bool {
    free_some() || OTHERS.get().is_some_and(|others| (others.free_any)())
}

/// Makes remains of processes without budget be looked at again: a budget has been refilled, or a process has ended.
pub(crate) fn look_behind() {
    if let Some(others) = OTHERS.get() {
        (others.look_behind)();
    }
}

/// Returns whether there is something for [`free_some`].
pub(crate) fn are_left() -> bool {
    OTHERS.get().is_some_and(|others| (others.are_left)()) || mounts::top().tree().has_remains()
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::open;

    use super::*;
    use crate::process::accounts::Resource;
    use crate::testing::{DATA, run};

    /// A large file is freed in steps before the call that ends it is done; nothing of it is left or charged then.
    #[test]
    fn a_large_file_that_is_closed_leaves_nothing() {
        run(|program| {
            let path = program.store(b"/tmp/large\0");
            let flags = (open::RDWR | open::CREAT) as usize;
            let file = program.call(SystemCall::Open, [0, path, flags, 0o644]).unwrap();
            for piece in 0..60 {
                let at = piece * 100_000;
                assert_eq!(program.call(SystemCall::WriteAt, [file, DATA, 100_000, at]), Ok(100_000));
            }
            assert!(program.process().account.used(Resource::Files) >= 6_000_000);
            assert_eq!(program.call(SystemCall::Unlink, [0, path, 0]), Ok(0));
            assert!(!are_left(), "it is open");
            let looks = crate::observing::counters::read(abi_unix::Counter::Looks);
            assert_eq!(program.close(file), Ok(0));
            assert!(!are_left() && !free_some());
            assert_eq!(program.process().account.used(Resource::Files), 0);
            assert!(crate::observing::counters::read(abi_unix::Counter::Looks) > looks, "it went in steps");
        });
    }

    /// Pages of a file that becomes shorter, or that is open when its process ends, are freed too.
    #[test]
    fn files_that_are_cut_off_or_left_open_leave_nothing() {
        run(|program| {
            let child = program.spawn(|program| {
                let path = program.store(b"/tmp/cut\0");
                let flags = (open::RDWR | open::CREAT) as usize;
                let file = program.call(SystemCall::Open, [0, path, flags, 0o644]).unwrap();
                for piece in 0..50 {
                    program.call(SystemCall::WriteAt, [file, DATA, 100_000, piece * 100_000]).unwrap();
                }
                let before = program.process().account.used(Resource::Files);
                assert_eq!(program.call(SystemCall::Truncate, [file, 1_000_000]), Ok(0));
                let after = program.process().account.used(Resource::Files);
                assert!(before >= 5_000_000 && (1_000_000..1_200_000).contains(&after), "{before} {after}");
                assert!(!are_left());
                program.call(SystemCall::Unlink, [0, path, 0]).unwrap();
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert!(!are_left());
            assert_eq!(program.process().account.used(Resource::Files), 0);
        });
    }
}
