//! Core files of programs that die: their contents as far as a program sees them, their limit, and kills in the middle.

use abi_unix::SystemCall;
use abi_unix::types::{CORE_DUMPED, limit, signal};
use alloc::vec::Vec;
use cops::system::process::set_limit;
use cops::time::Duration;

use crate::harness::{Outcome, act, call, until};
use crate::{check, check_eq, must};

/// Path of the file, where the suite has its working directory.
const PATH: &str = "/core";

/// Waits for a child; returns its status, which has a bit for the core file.
fn status_of(child: u32) -> Result<u32, alloc::string::String> {
    let mut status = 0u32;
    must!(call(SystemCall::Wait, [child as usize, (&raw mut status).addr(), 0, 0, 0, 0]));
    Ok(status)
}

fn permit(bytes: u64) -> Outcome {
    must!(set_limit(0, limit::CORE, bytes, limit::INFINITY));
    Ok(())
}

/// Reads the file, and checks that it is one of this signal.
async fn core_of(number: u32) -> Result<Vec<u8>, alloc::string::String> {
    let file = must!(cops::file::read(PATH).await);
    check_eq!(&file[..7], &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    // ET_CORE, EM_RISCV; the first segment has the notes, and the first of these the signal.
    check_eq!(&file[16..20], &[4, 0, 243, 0]);
    let place = file[72..80].iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte));
    check_eq!(&file[place + 12..place + 16], b"CORE");
    check_eq!(file[place + 32], number as u8);
    must!(cops::file::remove(PATH));
    Ok(file)
}

pub async fn faults_leave_core_files() -> Outcome {
    let child = must!(act("read-null"));
    check_eq!(status_of(child.number())?, signal::SEGV);
    check!(cops::file::metadata(PATH).is_err(), "there is no core file without a limit");
    permit(limit::INFINITY)?;
    for (name, number) in [
        ("read-null", signal::SEGV),
        ("overflow-stack", signal::SEGV),
        ("illegal-instruction", signal::ILL),
        ("breakpoint", signal::TRAP),
        ("panic", signal::ABRT),
    ] {
        let child = must!(act(name));
        check_eq!((name, status_of(child.number())?), (name, number | CORE_DUMPED));
        let file = core_of(number).await?;
        check!(file.len() > 64 * 1024, "{name}: {} bytes", file.len());
    }
    permit(8192)?;
    let child = must!(act("read-null"));
    check_eq!(status_of(child.number())?, signal::SEGV | CORE_DUMPED);
    check_eq!(core_of(signal::SEGV).await?.len(), 8192);
    Ok(())
}

pub async fn a_process_is_killed_while_it_writes_its_core_file() -> Outcome {
    permit(limit::INFINITY)?;
    for wait in [0, 1, 5, 20] {
        let child = must!(act("die-large"));
        until(|| Ok(cops::file::metadata(PATH).is_ok_and(|status| status.size > 0))).await?;
        cops::sleep(Duration::from_millis(wait)).await;
        // It may be done already.
        let _ = child.kill();
        let status = status_of(child.number())?;
        check!(status & 0x7f == signal::SEGV, "{status:#x}");
        must!(cops::file::remove(PATH));
    }
    Ok(())
}

pub async fn many_processes_die_at_once() -> Outcome {
    permit(limit::INFINITY)?;
    let mut children = Vec::new();
    for _ in 0..40 {
        children.push(must!(act("read-null")));
    }
    for child in children {
        check_eq!(status_of(child.number())? & 0x7f, signal::SEGV);
    }
    must!(cops::file::remove(PATH));
    Ok(())
}
