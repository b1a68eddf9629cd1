//! Questions where workers and coroutines are.

use abi_unix::Errno;
use alloc::string::String;
use alloc::vec::Vec;
use cops::io::BufReader;
use cops::process::Command;
use cops::system::trace::tell_positions;
use cops::system::{self, scheduling};
use cops::time::Duration;

use crate::harness::{self, Outcome};
use crate::{check, check_eq, must};

/// Tests processes that do not exist, and the privilege.
pub async fn illegal_questions() -> Outcome {
    for process in [u32::MAX, u32::MAX - 1, i32::MAX as u32] {
        check_eq!(tell_positions(process), Err(Errno::ESRCH));
    }
    check_eq!(tell_positions(system::process::number()), Ok(()));
    must!(scheduling::set_privilege(0, false));
    check_eq!(tell_positions(0), Err(Errno::EPERM));
    check_eq!(tell_positions(system::process::number()), Err(Errno::EPERM));
    Ok(())
}

/// Tests the lines of a process whose two coroutines wait, by their names. A later question finds the same waits.
pub async fn coroutines_tell_where_and_since_when_they_wait() -> Outcome {
    let (reader, writer) = must!(cops::io::pipe());
    let child = Command::new(harness::OWN_PATH).argument("--act").argument("wait-at-one-place");
    let child = must!(child.descriptor(2, writer.into_descriptor()).kill_on_drop(true).spawn());
    let mut lines = BufReader::new(reader).lines();
    loop {
        must!(tell_positions(child.number()));
        let mut told: Vec<String> = Vec::new();
        // A process that has only begun does not answer.
        while let Ok(line) = cops::timeout(Duration::from_secs(1), lines.next_line()).await {
            told.push(must!(line).ok_or("the process has ended")?);
        }
        let summary = "coroutines: 2 blocked, 0 ready, 0 running, 0 preempted; 2 wait at";
        if !told.iter().any(|line| line.ends_with(summary)) {
            continue;
        }
        let places: Vec<_> = told.iter().filter(|line| line.starts_with("coroutine")).collect();
        check!(places.len() == 1 || places.len() == 2, "{told:?}");
        check!(places.iter().all(|place| place.contains(": callers in tests: 0x")), "{told:?}");
        for name in ["main", "waiter"] {
            let named = alloc::format!(" \"{name}\" (priority ");
            check!(places.iter().any(|place| place.contains(&named)), "{told:?}");
        }
        if places.iter().all(|place| place.contains(" waits, for at least ")) {
            return Ok(());
        }
        check!(places.iter().any(|place| place.contains(" waits, first seen now: ")), "{told:?}");
    }
}
