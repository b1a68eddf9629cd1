//! Processes that take as much kernel memory and as many calls as they may, beside one that sleeps, starts processes
//! and uses pipes: the number of its calls that fail.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use abi_unix::types::{TimeSpec, open};
use cops::io::pipe;
use cops::process::{Child, Command};
use cops::{Priority, system};

use crate::{Outcome, argument, attempt, figure};

use super::{accomplice, end};

/// Rounds of the innocent process; in each it makes [`CALLS`] calls, and sometimes a process.
const ROUNDS: usize = 1000;
const CALLS: usize = 8;
/// Processes that are started while others hold as many calls as they may.
const SPAWNS: usize = 8;
/// Time for which a hoarder waits for one more connection.
const PATIENCE: Duration = Duration::from_millis(500);

/// Starts an accomplice that hoards a resource, and waits until it holds all that it can get.
async fn hoarder(what: &str) -> Result<Child, alloc::string::String> {
    let (reader, writer) = attempt!(pipe());
    let started = accomplice("hoards").argument(what).descriptor(1, writer.into_descriptor()).spawn();
    let child = attempt!(started);
    let (count, _) = reader.read(vec![0; 1]).await;
    if attempt!(count) != 1 {
        return Err(alloc::format!("the hoarder of {what} has ended"));
    }
    Ok(child)
}

/// Returns whether a process can be started and ends normally.
async fn spawns() -> bool {
    let Ok(child) = Command::new("/bin/hello").without_descriptor(1).spawn() else { return false };
    child.wait().await.is_ok()
}

pub async fn measure() -> Outcome {
    attempt!(cops::set_priority(cops::current(), Priority::HIGHEST));
    let mut hoarders = Vec::new();
    for what in ["pipes", "sockets", "files", "calls"] {
        hoarders.push(hoarder(what).await?);
    }
    let mut failures = 0;
    let mut calls = 0;
    let mut count = |is_done: bool| {
        calls += 1;
        failures += usize::from(!is_done);
    };
    for round in 0..ROUNDS {
        for _ in 0..CALLS - 4 {
            count(system::system::sleep(TimeSpec::from_ns(20_000)).is_ok());
        }
        match pipe() {
            Ok((reader, writer)) => {
                count(true);
                count(system::file::write(writer.descriptor().raw(), &[1; 8000]) == Ok(8000));
                count(system::file::read(reader.descriptor().raw(), &mut [0; 8000]) == Ok(8000));
            }
            Err(_) => (0..3).for_each(|_| count(false)),
        }
        count(if round % 10 == 0 { spawns().await } else { system::system::sleep(TimeSpec::from_ns(20_000)).is_ok() });
    }
    for hoarder in hoarders {
        end(hoarder).await?;
    }
    figure("innocent_failures", failures as f64, "calls");
    figure("innocent_calls", calls as f64, "calls");

    let mut holders = Vec::new();
    for _ in 0..4 {
        holders.push(hoarder("calls").await?);
    }
    let mut failures = 0;
    for _ in 0..SPAWNS {
        failures += usize::from(!spawns().await);
    }
    let held = attempt!(system::system::counter(abi_unix::Counter::CallsInFlight));
    for holder in holders {
        end(holder).await?;
    }
    figure("spawn_failures", failures as f64, "processes");
    figure("calls_held", held as f64, "calls");
    Ok(())
}

/// Takes all of one resource, reports that, and keeps it.
pub async fn act() -> Outcome {
    let mut kept = Vec::new();
    let mut sockets = Vec::new();
    let mut files = Vec::new();
    match argument(4)?.as_str() {
        "pipes" => {
            while let Ok((reader, writer)) = pipe() {
                let is_full = system::file::write(writer.descriptor().raw(), &[1; 65536]) != Ok(65536);
                kept.push((reader, writer));
                if is_full {
                    break;
                }
            }
        }
        "sockets" => {
            use cops::net::{TcpListener, TcpStream};
            let any = core::net::SocketAddrV4::new(core::net::Ipv4Addr::LOCALHOST, 0);
            let listener = attempt!(TcpListener::bind(any));
            let address = attempt!(listener.local_address());
            // A connection waits while there is no memory for its other end.
            while let Ok(Ok(client)) = cops::timeout(PATIENCE, TcpStream::connect(address)).await
                && let Ok((server, _)) = listener.accept().await
            {
                let flags = abi_unix::types::message::DONTWAIT;
                while system::network::send_to(client.descriptor().raw(), &[1; 4096], flags, None).is_ok() {}
                sockets.push((client, server));
            }
        }
        "files" => {
            let file = attempt!(cops::file::File::open_with("/tmp/hoards", open::CREAT | open::WRONLY));
            attempt!(cops::file::remove("/tmp/hoards"));
            while let Ok(1..) = system::file::write(file.descriptor().raw(), &[1; 65536]) {}
            files.push(file);
        }
        _ => {
            let time = TimeSpec::from_ns(1_000_000_000_000);
            let (number, arguments) = (system::SystemCall::Sleep as usize, [&raw const time as usize, 0, 0, 0, 0, 0]);
            // SAFETY: the kernel reads the time before it answers.
            while unsafe { system::syscall_asynchronous(number, arguments, 0, 63, 0) } == abi_unix::WILL_BE_POSTED {}
        }
    }
    attempt!(system::file::write(1, b"!"));
    loop {
        attempt!(system::system::sleep(TimeSpec::from_ns(1_000_000_000)));
    }
}
