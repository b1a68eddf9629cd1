//! Pseudo-terminals: both ends, their sessions, their limit.

use abi_unix::SystemCall;
use abi_unix::types::terminal::{input, local, output};
use abi_unix::types::{Termios, limit, open, signal, terminal as request};
use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use cops::Errno;
use cops::io;
use cops::process::{Child, Command, Ending};
use cops::system::terminal::{self, When};
use cops::system::{Descriptor, file};
use cops::time::Duration;

use crate::harness::{self, LIMIT, Outcome, call};
use crate::{check, check_eq, must};

const APART: u32 = open::RDWR | open::NOCTTY;

/// Makes a pair; returns master and slave.
fn pair() -> Result<(Descriptor, Descriptor), Errno> {
    let master = terminal::pseudo_terminal()?;
    let slave = terminal::open_slave(master.raw(), APART)?;
    Ok((master, slave))
}

fn read(from: &Descriptor, count: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = alloc::vec![0; count];
    let count = file::read(from.raw(), &mut buffer)?;
    buffer.truncate(count);
    Ok(buffer)
}

/// Reads until so many bytes have come.
fn read_all(from: &Descriptor, count: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        bytes.extend(read(from, count - bytes.len())?);
    }
    Ok(bytes)
}

fn path_of(master: &Descriptor) -> Result<CString, Errno> {
    let number = terminal::slave_number(master.raw())?;
    CString::new(format!("/dev/pts/{number}")).map_err(|_| Errno::EINVAL)
}

fn control(of: &Descriptor, request: u32, argument: usize) -> Result<usize, Errno> {
    call(SystemCall::DeviceControl, [of.raw() as usize, request as usize, argument, 0, 0, 0])
}

pub async fn a_pair_passes_keys_and_output() -> Outcome {
    let master = must!(file::open(c"/dev/ptmx", APART, 0));
    let path = must!(path_of(&master));
    // Illegal requests first.
    for number in [request::GET_PSEUDO_NUMBER, request::SET_LOCK, request::GET_LOCK, request::SET_PACKET_MODE] {
        check_eq!(control(&master, number, 8), Err(Errno::EFAULT));
        check_eq!(call(SystemCall::DeviceControl, [0, number as usize, 8, 0, 0, 0]), Err(Errno::ENOTTY));
    }
    let one = 1u32;
    check_eq!(control(&master, request::SET_PACKET_MODE, &raw const one as usize), Err(Errno::EINVAL));
    check_eq!(control(&master, request::OPEN_PEER, 3), Err(Errno::EINVAL));
    check_eq!(control(&master, request::FLUSH, 3), Err(Errno::EINVAL));
    check_eq!(terminal::session_of(master.raw()), Err(Errno::ENOTTY));
    // Locked at first.
    check_eq!(file::open(&path, APART, 0).err(), Some(Errno::EIO));
    check_eq!(terminal::open_slave(master.raw(), APART).err(), Some(Errno::EIO));
    must!(terminal::lock_slave(master.raw(), false));
    let slave = must!(file::open(&path, APART, 0));
    check_eq!(control(&slave, request::SET_PACKET_MODE, 0), Err(Errno::ENOTTY));

    must!(file::write(slave.raw(), b"shown\n"));
    check_eq!(terminal::readable(master.raw()), Ok(7));
    check_eq!(must!(read(&master, 3)), b"sho");
    check_eq!(must!(read(&master, 100)), b"wn\r\n");
    must!(file::write(master.raw(), b"keyz\x7fs\rmore"));
    check_eq!(must!(read(&slave, 100)), b"keys\n");
    check_eq!(must!(read(&master, 100)), b"keyz\x08 \x08s\r\nmore");
    check_eq!(terminal::readable(slave.raw()), Ok(0));
    // Both ends have the settings and the window in common.
    let settings = must!(terminal::settings(slave.raw()));
    must!(terminal::set(master.raw(), &Termios { local: settings.local & !local::ECHO, ..settings }, When::Flushed));
    check_eq!(must!(terminal::settings(slave.raw())).local & local::ECHO, 0);
    must!(file::write(master.raw(), b"unseen\n"));
    check_eq!(must!(read(&slave, 100)), b"unseen\n");
    check_eq!(terminal::readable(master.raw()), Ok(0));
    check_eq!(terminal::window_size(slave.raw()), Ok((0, 0)));
    must!(terminal::set_window_size(master.raw(), 30, 100));
    check_eq!(terminal::window_size(slave.raw()), Ok((30, 100)));
    // Output that nobody reads is no output that is on its way.
    must!(file::write(slave.raw(), b"lost"));
    must!(terminal::set(slave.raw(), &settings, When::Drained));
    must!(control(&master, request::FLUSH, request::queue::INPUT));
    check_eq!(terminal::readable(master.raw()), Ok(0));
    Ok(())
}

pub async fn an_end_notices_that_the_other_has_gone() -> Outcome {
    let (master, slave) = must!(pair());
    let path = must!(path_of(&master));
    must!(file::write(slave.raw(), b"last"));
    must!(slave.close());
    check_eq!(must!(read(&master, 100)), b"last");
    check_eq!(read(&master, 100), Err(Errno::EIO));
    // Until it is opened again.
    let slave = must!(file::open(&path, APART, 0));
    must!(file::write(slave.raw(), b"again"));
    check_eq!(must!(read(&master, 100)), b"again");
    must!(file::write(master.raw(), b"key\n"));
    must!(master.close());
    check_eq!(must!(read(&slave, 100)), b"");
    check_eq!(file::write(slave.raw(), b"x"), Err(Errno::EIO));
    check_eq!(terminal::settings(slave.raw()).err(), Some(Errno::EIO));
    check_eq!(terminal::set_foreground(slave.raw(), 1), Err(Errno::ENOTTY));
    check_eq!(file::open(&path, APART, 0).err(), Some(Errno::ENOENT));
    // The number is another pair's now, of which this slave is none.
    let (master, other) = must!(pair());
    check_eq!(must!(read(&slave, 100)), b"");
    must!(slave.close());
    must!(file::write(other.raw(), b"other"));
    check_eq!(must!(read(&master, 100)), b"other");
    Ok(())
}

pub async fn calls_wait_for_the_other_end() -> Outcome {
    let (master, slave) = must!(pair());
    let settings = must!(terminal::settings(slave.raw()));
    let raw = Termios {
        input: settings.input & !input::ICRNL,
        output: settings.output & !output::OPOST,
        local: 0,
        ..settings
    };
    must!(terminal::set(slave.raw(), &raw, When::Now));
    // More keys, and more output, than either queue holds: each writer waits for its reader.
    const MUCH: usize = 20_000;
    let bytes: Vec<u8> = (0..MUCH).map(|at| at as u8).collect();
    for (from, to) in [(&master, &slave), (&slave, &master)] {
        let (writer, sent) = (must!(from.duplicate()), bytes.clone());
        let writing = cops::spawn(async move { io::write_all(writer.raw(), sent).await.0 });
        cops::sleep(Duration::from_millis(2)).await;
        check!(!writing.is_finished());
        let mut found = Vec::new();
        while found.len() < MUCH {
            let (result, mut part) = must!(cops::timeout(LIMIT, io::read(to.raw(), alloc::vec![0; 1000])).await);
            part.truncate(must!(result));
            found.extend(part);
        }
        must!(must!(must!(cops::timeout(LIMIT, writing).await)));
        check!(found == bytes);
    }
    // A reader at each end learns of the end of the other.
    let reader = must!(master.duplicate());
    let waiting = cops::spawn(async move { io::read(reader.raw(), alloc::vec![0; 10]).await.0 });
    cops::sleep(Duration::from_millis(1)).await;
    check!(!waiting.is_finished());
    must!(slave.close());
    check_eq!(must!(must!(cops::timeout(LIMIT, waiting).await)), Err(Errno::EIO));
    let slave = must!(terminal::open_slave(master.raw(), APART));
    let waiting = cops::spawn(async move { io::read(slave.raw(), alloc::vec![0; 10]).await.0 });
    cops::sleep(Duration::from_millis(1)).await;
    check!(!waiting.is_finished());
    must!(master.close());
    check_eq!(must!(must!(cops::timeout(LIMIT, waiting).await)), Ok(0));
    Ok(())
}

/// An act: leads a session on the slave with this number, tells so, and waits.
pub fn act(number: &str) -> i32 {
    match lead(number) {
        Ok(()) => loop {
            core::hint::spin_loop();
        },
        Err(text) => {
            cops::eprintln!("{text}");
            1
        }
    }
}

fn lead(number: &str) -> Outcome {
    let own = must!(terminal::begin_session());
    let path = must!(CString::new(format!("/dev/pts/{number}")).map_err(|_| Errno::EINVAL));
    // Not by an opening that asks for nothing of the kind.
    let apart = must!(file::open(&path, APART, 0));
    check_eq!(file::open(c"/dev/tty", open::RDWR, 0).err(), Some(Errno::ENXIO));
    check_eq!(terminal::foreground(apart.raw()), Err(Errno::ENOTTY));
    let slave = must!(file::open(&path, open::RDWR, 0));
    must!(file::open(c"/dev/tty", open::RDWR, 0));
    check_eq!((terminal::session_of(slave.raw()), terminal::foreground(slave.raw())), (Ok(own), Ok(own)));
    check_eq!(terminal::acquire(slave.raw()), Ok(()));
    must!(file::write(slave.raw(), b"ready"));
    // Open until the end.
    core::mem::forget((apart, slave));
    Ok(())
}

async fn leader(master: &Descriptor) -> Result<Child, Errno> {
    let number = format!("{}", terminal::slave_number(master.raw())?);
    let child = Command::new(harness::OWN_PATH).argument("--act").argument("pseudo-terminal").argument(&number);
    let child = child.spawn()?;
    // Before it opens the slave there may be none.
    while terminal::readable(master.raw())? < 5 {
        cops::sleep(Duration::from_millis(1)).await;
    }
    if read(master, 5)? == b"ready" { Ok(child) } else { Err(Errno::EPROTO) }
}

pub async fn it_controls_the_session_that_opens_it() -> Outcome {
    let master = must!(terminal::pseudo_terminal());
    // A key ends the foreground, and the leader's end hangs the terminal up.
    let child = must!(leader(&master).await);
    check_eq!(terminal::session_of(master.raw()), Ok(child.number()));
    check_eq!(terminal::foreground(master.raw()), Ok(child.number()));
    must!(file::write(master.raw(), b"\x03"));
    check_eq!(harness::wait(&child).await, Some(Ok(Ending::Killed(signal::INT as u8))));
    check_eq!(must!(read_all(&master, 2)), b"^C");
    check_eq!(read(&master, 1), Err(Errno::EIO));
    check_eq!(terminal::session_of(master.raw()), Err(Errno::ENOTTY));
    // Another session can have it then, which ends with the master.
    let child = must!(leader(&master).await);
    must!(master.close());
    check_eq!(harness::wait(&child).await, Some(Ok(Ending::Killed(signal::HUP as u8))));
    Ok(())
}

pub async fn pairs_are_limited_and_charged() -> Outcome {
    let mut masters = Vec::new();
    let refused = loop {
        match terminal::pseudo_terminal() {
            Ok(master) => masters.push(master),
            Err(error) => break error,
        }
    };
    check_eq!(refused, Errno::ENOSPC);
    check!(masters.len() >= 32, "{} pairs", masters.len());
    // One place is free again at once.
    masters.pop();
    masters.push(must!(terminal::pseudo_terminal()));
    drop(masters);
    // A process without memory for one gets none.
    let (soft, hard) = must!(cops::system::process::limit(0, limit::KERNEL_MEMORY));
    must!(cops::system::process::set_limit(0, limit::KERNEL_MEMORY, 4096, hard));
    check_eq!(terminal::pseudo_terminal().err(), Some(Errno::ENOMEM));
    must!(cops::system::process::set_limit(0, limit::KERNEL_MEMORY, soft, hard));
    drop(must!(terminal::pseudo_terminal()));
    Ok(())
}
