//! Processes: starting, ending, waiting, killing; and that each end frees all resources.

use core::ffi::CStr;

use abi_unix::types::{WNOHANG, signal};
use abi_unix::{Counter, SystemCall};
use cops::process::{Command, Ending};
use cops::system::process::{Child, StringList, UsageOf, kill, processor_time, wait};
use cops::time::Duration;
use cops::{Errno, system};

use crate::harness::{self, Outcome, act, call, counter, ending_of_act, reaches, returns_to};
use crate::{check, check_eq, must};

pub async fn exit_status_reaches_the_parent() -> Outcome {
    for status in [0u8, 1, 42, 255] {
        let child = must!(
            Command::new(harness::OWN_PATH)
                .argument("--act")
                .argument("exit")
                .argument(&alloc::format!("{status}"))
                .spawn()
        );
        check_eq!(must!(child.wait().await), Ending::Exited(status));
    }
    check_eq!(ending_of_act("return").await?, Ending::Exited(7));
    Ok(())
}

pub async fn a_panic_ends_only_its_process() -> Outcome {
    check_eq!(ending_of_act("panic").await?, Ending::Exited(101));
    Ok(())
}

pub async fn waiting_synchronously() -> Outcome {
    check_eq!(wait(Child::Any, 0), Err(Errno::ECHILD));
    let child = must!(act("exit"));
    let number = child.number();
    let ended = must!(wait(Child::Any, 0));
    check_eq!(ended, Some((number, system::process::Ending::Exited(0))));
    check_eq!(wait(Child::Process(number), 0), Err(Errno::ECHILD));
    let child = must!(act("sleep"));
    check_eq!(must!(wait(Child::Process(child.number()), WNOHANG)), None);
    must!(child.kill());
    let ended = must!(wait(Child::Process(child.number()), 0));
    check_eq!(ended, Some((child.number(), Ending::Killed(signal::KILL as u8))));
    Ok(())
}

pub async fn processor_time_of_children() -> Outcome {
    let children = || processor_time(UsageOf::Children);
    check_eq!(children(), Duration::ZERO);
    let child = must!(act("use-processor"));
    check_eq!(harness::wait(&child).await, Some(Ok(Ending::Exited(0))));
    let first = children();
    check!(first >= Duration::from_millis(30), "{first:?}");
    // Synchronously, and with the usage of this child alone.
    let child = must!(act("use-processor"));
    let mut usage = [0u64; 18];
    let arguments = [child.number() as usize, 0, 0, usage.as_mut_ptr() as usize, 0, 0];
    check_eq!(call(SystemCall::Wait, arguments), Ok(child.number() as usize));
    let its = Duration::from_secs(usage[0] + usage[2]) + Duration::from_micros(usage[1] + usage[3]);
    check!(its >= Duration::from_millis(30), "{its:?}");
    // Each part is rounded down to microseconds.
    check!(children().abs_diff(first + its) <= Duration::from_micros(2));
    let mut times = [0u64; 4];
    let hundredths = must!(call(SystemCall::Times, [times.as_mut_ptr() as usize, 0, 0, 0, 0, 0]));
    // Each part is rounded down to hundredths.
    let both = times[2] + times[3];
    check!(both >= 5 && both < hundredths as u64 * 8, "{times:?} {hundredths}");
    check!(processor_time(UsageOf::Worker) <= processor_time(UsageOf::Process));
    Ok(())
}

pub async fn killing() -> Outcome {
    for act_name in ["sleep", "spin", "calls-in-flight"] {
        for signal in [signal::KILL, signal::TERM] {
            let child = must!(act(act_name));
            cops::sleep(Duration::from_millis(10)).await;
            check_eq!(kill(child.number(), 0), Ok(()));
            check_eq!(kill(child.number(), signal), Ok(()));
            check_eq!(must!(child.wait().await), Ending::Killed(signal as u8));
            check_eq!(kill(child.number(), 0), Err(Errno::ESRCH));
        }
    }
    Ok(())
}

pub async fn killing_at_once() -> Outcome {
    for _ in 0..50 {
        let child = must!(act("exit"));
        // It may have ended by itself.
        let _ = child.kill();
        let ending = must!(child.wait().await);
        check!(matches!(ending, Ending::Exited(0) | Ending::Killed(9)), "{ending:?}");
    }
    Ok(())
}

pub async fn executing_another_program() -> Outcome {
    check_eq!(ending_of_act("execute-other").await?, Ending::Exited(42));
    Ok(())
}

pub async fn orphans_are_taken_care_of() -> Outcome {
    let processes = counter(Counter::Processes)?;
    check_eq!(ending_of_act("orphan").await?, Ending::Exited(0));
    returns_to(Counter::Processes, processes).await
}

pub async fn numbers() -> Outcome {
    let own = cops::process::number();
    check!(own > 1);
    check!(cops::process::parent() > 0);
    check!(cops::process::parent() != own);
    check_eq!(kill(own, 0), Ok(()));
    let before = system::process::name();
    must!(system::process::set_name(c"a name that is too long"));
    check_eq!(&system::process::name(), b"a name that is \0");
    must!(system::process::set_name(must!(CStr::from_bytes_until_nul(&before))));
    check_eq!(system::process::name(), before);
    check_eq!(system::process::set_signal_of_orphan(65), Err(Errno::EINVAL));
    check_eq!(system::process::set_signal_of_orphan(0), Ok(()));
    Ok(())
}

pub async fn descriptors_are_passed_on() -> Outcome {
    let (reader, writer) = must!(cops::io::pipe());
    let child = must!(Command::new("/bin/hello").descriptor(1, writer.into_descriptor()).without_descriptor(0).spawn());
    let (result, text) = reader.read(alloc::vec![0; 100]).await;
    check_eq!(&text[..must!(result)], b"Hello, world!\n");
    check_eq!(must!(child.wait().await), Ending::Exited(0));
    // The child's writing end was the last one.
    let (result, _) = reader.read(alloc::vec![0; 100]).await;
    check_eq!(result, Ok(0));
    Ok(())
}

pub async fn damaged_programs_are_refused() -> Outcome {
    let start = |path: &str| Command::new(path).spawn().map(|_| ());
    check_eq!(start("/bin/missing"), Err(Errno::ENOENT));
    check_eq!(start("/bin"), Err(Errno::EACCES));
    check_eq!(start("/bin/hello/x"), Err(Errno::ENOTDIR));
    let image = must!(cops::file::read("/bin/hello").await);
    // Empty files, text, and headers cut at every length.
    let mut images = alloc::vec![b"".to_vec(), b"#!/bin/sh\n".to_vec()];
    images.extend([4, 63, 64, 200, 4096].map(|length| image[..length].to_vec()));
    for image in images {
        let length = image.len();
        must!(cops::file::write("/tmp/program", image).await);
        let result = start("/tmp/program");
        check!(harness::is_one_of(&result, &[Errno::ENOEXEC, Errno::EACCES]), "{length} bytes: {result:?}");
    }
    // One byte of the headers after the other is damaged: an error, or a process that ends in any way.
    let mut damaged = image.clone();
    for position in (0..64 + 4 * 56).step_by(3) {
        let before = damaged[position];
        damaged[position] = before.wrapping_add(0x5a);
        must!(cops::file::write("/tmp/program", damaged.clone()).await);
        if let Ok(child) = Command::new("/tmp/program").without_descriptor(1).without_descriptor(2).spawn() {
            let _ = cops::timeout(Duration::from_secs(1), child.wait()).await;
            let _ = child.kill();
            check!(harness::wait(&child).await.is_some(), "it does not end, with byte {position} changed");
        }
        damaged[position] = before;
    }
    must!(cops::file::remove("/tmp/program"));
    Ok(())
}

pub async fn arguments_that_are_too_long_are_refused() -> Outcome {
    let long = alloc::ffi::CString::new(alloc::vec![b'x'; 300_000]).map_err(|_| "no NUL")?;
    let pointers: alloc::vec::Vec<_> = core::iter::repeat_n(long.as_ptr(), 100).chain([core::ptr::null()]).collect();
    // SAFETY: the string lives to the end of this function.
    let Some(list) = (unsafe { StringList::new(&pointers) }) else { return Err("the list ends with NULL".into()) };
    let result = system::process::spawn(c"/bin/hello", list, StringList::EMPTY, [-1; 3], 0);
    check!(harness::is_one_of(&result, &[Errno::E2BIG, Errno::ENOMEM]), "{result:?}");
    Ok(())
}

/// Starts and ends this many processes of four kinds, one after the other.
async fn start_and_end(count: usize) -> Outcome {
    for turn in 0..count {
        let name = ["exit", "sleep", "spin", "calls-in-flight"][turn % 4];
        let child = must!(act(name));
        if name != "exit" {
            if turn % 3 == 0 {
                cops::sleep(Duration::from_millis(2)).await;
            }
            must!(child.kill());
        }
        must!(child.wait().await);
    }
    Ok(())
}

pub async fn hundreds_of_processes_leave_nothing_behind() -> Outcome {
    // The first ones make tables grow, which keep their size.
    start_and_end(40).await?;
    let (free, processes, calls) =
        (counter(Counter::FramesFree)?, counter(Counter::Processes)?, counter(Counter::CallsInFlight)?);
    start_and_end(300).await?;
    returns_to(Counter::Processes, processes).await?;
    returns_to(Counter::CallsInFlight, calls).await?;
    // The last one's page tables may not be freed yet.
    reaches(Counter::FramesFree, free.saturating_sub(16)).await
}

pub async fn many_at_once() -> Outcome {
    let mut children = alloc::vec::Vec::new();
    for _ in 0..50 {
        children.push(must!(act("sleep")));
    }
    for child in &children {
        must!(child.kill());
    }
    for child in &children {
        check_eq!(must!(child.wait().await), Ending::Killed(9));
    }
    Ok(())
}

/// The example in C tests the scheduler's C interface by itself, and reports by its status.
pub async fn the_c_program_is_right() -> Outcome {
    let (reader, writer) = must!(cops::io::pipe());
    let child = match Command::new("/bin/hello-c").descriptor(1, writer.into_descriptor()).spawn() {
        // Where there is no clang the build leaves the programs in C out. It shows lines that begin like this.
        Err(Errno::ENOENT) => {
            cops::println!("note: the test of /bin/hello-c is left out, because there was no clang to build that");
            return Ok(());
        }
        started => must!(started),
    };
    let printed = cops::spawn(async move {
        let mut printed = alloc::vec![];
        loop {
            match reader.read(alloc::vec![0; 1000]).await {
                (Ok(count), bytes) if count > 0 => printed.extend_from_slice(&bytes[..count]),
                _ => return printed,
            }
        }
    });
    let ending = harness::wait(&child).await;
    let printed = must!(printed.await);
    let printed = alloc::string::String::from_utf8_lossy(&printed);
    check!(ending == Some(Ok(Ending::Exited(0))), "{ending:?} after\n{printed}");
    check_eq!(printed.lines().last(), Some("Everything was as expected"));
    Ok(())
}
