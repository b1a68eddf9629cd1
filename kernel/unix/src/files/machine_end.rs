//! The end of the machine: what was written to volumes and disks lasts before, and what was sent is delivered.
//!
//! A coroutine of the kernel ends the machine, whoever wants that: a process that ends meanwhile, also the one that has
//! called `reboot`, drops no part of it. The first one to want it says how.

use core::sync::atomic::{AtomicBool, Ordering};

use abi_queue::Priority;
use hal_api::Status;

use crate::files::{disk, volume};
use crate::machine;
use crate::network::stack;
use crate::process::accounts::Account;
use crate::process::exit_status::Ending;
use crate::scheduling::executor;

/// The manner of the machine's end.
#[derive(Clone, Copy)]
pub(crate) enum MachineEnd {
    /// It goes off.
    PowerOff,
    /// It starts again.
    Restart,
    /// It goes off because the first process has ended so.
    AfterFirst(Ending),
    /// It goes off because it could not start.
    Failed,
}

impl MachineEnd {
    fn act(self) -> ! {
        match self {
            MachineEnd::PowerOff => machine::power_off(Ending::Exited(0)),
            MachineEnd::Restart => machine::restart(),
            MachineEnd::AfterFirst(ending) => machine::first_process_has_ended(ending),
            MachineEnd::Failed => machine::shut_down(Status::Failure(1)),
        }
    }
}

/// Begins to end the machine, if that has not begun; at once if it has no disks and delivers nothing.
pub(crate) fn begin(end: MachineEnd) {
    static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    if HAS_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    if disk::all().is_empty() && !stack::is_delivering() {
        end.act();
    }
    // Nothing that goes on may keep it.
    executor::spawn_for_kernel(Priority::HIGHEST, async move {
        stack::deliver().await;
        volume::leave_disks(Account::first(), 0).await;
        end.act()
    });
}

#[cfg(test)]
mod tests {
    use hal_host::Simulation;

    use super::*;

    #[test]
    fn the_machine_ends_with_the_status_of_the_reason() {
        let _guard = crate::testing::alone();
        let status = |end: MachineEnd| Simulation::new().run(|| end.act());
        assert_eq!(status(MachineEnd::PowerOff), Status::Success);
        assert_eq!(status(MachineEnd::AfterFirst(Ending::Exited(3))), Status::Failure(3));
        assert_eq!(status(MachineEnd::Failed), Status::Failure(1));
    }
}
