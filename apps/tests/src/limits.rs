//! Calls at limits: a refused call loses no data.

use abi_unix::Counter;
use abi_unix::types::limit;
use alloc::sync::Arc;
use alloc::vec::Vec;
use cops::file::File;
use cops::io::pipe;
use cops::net::{TcpListener, TcpStream};
use cops::process::{Command, Ending};
use cops::time::Duration;
use cops::{Errno, system};
use core::net::{Ipv4Addr, SocketAddrV4};

use crate::harness::{self, LIMIT, Outcome, counter, reaches};
use crate::{check, check_eq, must};

const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

/// Opens files until no descriptor is left.
fn take_all_descriptors() -> Result<Vec<File>, Errno> {
    let mut files = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(Errno::EMFILE) => return Ok(files),
            Err(error) => return Err(error),
        }
    }
}

pub async fn a_refused_accept_leaves_the_connection() -> Outcome {
    let listener = must!(TcpListener::bind(ANY));
    let address = must!(listener.local_address());
    let client = must!(TcpStream::connect(address).await);
    check_eq!(client.write(&b"patience"[..]).await.0, Ok(8));
    let idle = must!(TcpListener::bind(ANY));
    let mut files = must!(take_all_descriptors());
    for _ in 0..3 {
        check_eq!(listener.accept().await.err(), Some(Errno::EMFILE));
    }
    // As on Linux: the call does not wait for a connection for which there would be no descriptor.
    check_eq!(system::network::accept(idle.descriptor().raw()).err(), Some(Errno::EMFILE));
    files.truncate(1);
    let (server, _) = must!(must!(cops::timeout(LIMIT, listener.accept()).await));
    check_eq!(server.read(alloc::vec![0; 8]).await, (Ok(8), b"patience".to_vec()));
    Ok(())
}

pub async fn more_calls_than_may_be_in_flight() -> Outcome {
    const PIPES: usize = 70;
    const READS: usize = 1000;
    let mut writers = Vec::new();
    let mut reads = Vec::new();
    for _ in 0..PIPES {
        let (reader, writer) = must!(pipe());
        let reader = Arc::new(reader);
        writers.push(writer);
        for _ in 0..READS {
            let reader = reader.clone();
            reads.push(cops::spawn(async move { reader.read([0u8; 1].to_vec()).await.0 }));
        }
    }
    // The kernel takes as many as its limit, and the rest waits in the runtime.
    reaches(Counter::CallsInFlight, 65_536).await?;
    cops::sleep(Duration::from_millis(10)).await;
    check!(counter(Counter::CallsInFlight)? < 65_536 + 100);
    // One of the waiting coroutines is dropped, and must not take a turn of the others with it.
    let dropped = must!(reads.pop().ok_or("no reads"));
    dropped.cancel();
    check_eq!(dropped.await, Err(cops::Cancelled));
    let mut expected = PIPES * READS - 1;
    for writer in &writers {
        let (result, _) = writer.write_all(alloc::vec![1u8; READS]).await;
        must!(result);
    }
    for read in reads {
        check_eq!(must!(cops::timeout(LIMIT, read).await), Ok(Ok(1)));
        expected -= 1;
    }
    check_eq!(expected, 0);
    Ok(())
}

pub async fn a_hoarder_of_sockets_leaves_some_to_others() -> Outcome {
    // Sockets are to run out, and not the memory that this process and its children may have together.
    let infinity = abi_unix::types::limit::INFINITY;
    must!(system::process::set_limit(0, abi_unix::types::limit::KERNEL_MEMORY, infinity, infinity));
    let mut hoarders = Vec::new();
    for _ in 0..4 {
        let (reader, writer) = must!(pipe());
        let output = must!(writer.descriptor().duplicate());
        drop(writer);
        let hoarder = Command::new(harness::OWN_PATH).argument("--act").argument("hoard-sockets");
        let hoarder = must!(hoarder.descriptor(1, output).spawn());
        let ready = cops::timeout(LIMIT, reader.read(alloc::vec![0; 16])).await;
        check_eq!(must!(ready).0, Ok(6));
        hoarders.push(hoarder);
    }
    // Other processes still get some, and return them; and other resources are not affected.
    for _ in 0..3 {
        let mut sockets = Vec::new();
        for _ in 0..20 {
            sockets.push(must!(cops::system::network::socket(abi_unix::types::SOCK_DGRAM)));
        }
        drop(sockets);
    }
    let listener = must!(cops::net::TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)));
    drop(must!(cops::net::TcpStream::connect(must!(listener.local_address())).await));
    for hoarder in &hoarders {
        must!(hoarder.kill());
        check_eq!(harness::wait(hoarder).await, Some(Ok(Ending::Killed(9))));
    }
    // Another process can have all of theirs.
    let mut sockets = Vec::new();
    for _ in 0..1500 {
        sockets.push(must!(cops::system::network::socket(abi_unix::types::SOCK_DGRAM)));
    }
    Ok(())
}

pub async fn a_hoarder_of_kernel_memory_is_ended_first() -> Outcome {
    let memory = counter(Counter::FramesTotal)? * 4096;
    let (most, more) = (alloc::format!("{}", memory / 100 * 50), alloc::format!("{}", memory / 100 * 60));
    // The two together have no limit: only the OOM killer can stop them.
    for which in [limit::KERNEL_MEMORY, limit::FILE_MEMORY] {
        must!(system::process::set_limit(0, which, limit::INFINITY, limit::INFINITY));
    }
    for hoard in ["hoard-in-pipes", "hoard-in-connections", "hoard-in-file"] {
        let (reader, writer) = must!(pipe());
        let output = must!(writer.descriptor().duplicate());
        drop(writer);
        let hoarder = Command::new(harness::OWN_PATH).argument("--act").argument(hoard).argument(&most);
        let hoarder = must!(hoarder.descriptor(1, output).spawn());
        let ready = cops::timeout(LIMIT, reader.read(alloc::vec![0; 16])).await;
        check_eq!(must!(ready).0, Ok(6));
        // Only if the other one is killed is there memory for this one, which has less when memory runs out.
        let innocent = Command::new(harness::OWN_PATH).argument("--act").argument("touch").argument(&more);
        let innocent = must!(innocent.spawn());
        let ending = harness::wait(&innocent).await;
        check_eq!(ending, Some(Ok(Ending::Exited(0))));
        let ending = harness::wait(&hoarder).await;
        check_eq!(ending, Some(Ok(Ending::Killed(9))));
    }
    Ok(())
}

/// Four processes have as many calls in flight as the kernel allows; no memory limit stops them. The kernel's executor
/// still has slots for the workers of new processes.
pub async fn hoarded_calls_leave_slots_for_processes() -> Outcome {
    const MOST_CALLS_OF_A_PROCESS: u64 = 65_536;
    for which in [limit::KERNEL_MEMORY, limit::FILE_MEMORY, limit::CALLS_IN_FLIGHT] {
        must!(system::process::set_limit(0, which, limit::INFINITY, limit::INFINITY));
    }
    let mut hoarders = Vec::new();
    for _ in 0..4 {
        let (reader, writer) = must!(pipe());
        let hoarder = Command::new(harness::OWN_PATH).argument("--act").argument("hoard-calls");
        let hoarder = must!(hoarder.descriptor(1, writer.into_descriptor()).spawn());
        let ready = must!(cops::timeout(LIMIT, reader.read(alloc::vec![0; 16])).await);
        check_eq!(ready.0, Ok(6));
        hoarders.push(hoarder);
    }
    // The first three have all that one process may have, so that the machine's slots stop the fourth.
    let held = counter(Counter::CallsInFlight)?;
    check!(held > 3 * MOST_CALLS_OF_A_PROCESS, "{held} calls in flight: their memory has run out before the slots");
    for _ in 0..20 {
        check_eq!(harness::ending_of_act("exit").await, Ok(Ending::Exited(0)));
    }
    for hoarder in &hoarders {
        must!(hoarder.kill());
        check_eq!(harness::wait(hoarder).await, Some(Ok(Ending::Killed(9))));
    }
    Ok(())
}
