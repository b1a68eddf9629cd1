//! Random calls on local sockets, made here and by the host's Linux: every result and every event is the same.
//!
//! Differences on purpose are left out: the number of bytes and messages that a queue holds, automatic names, and
//! errors of calls that are wrong in two ways.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use abi_unix::types::{
    AF_UNIX, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_SEQPACKET, SOCK_STREAM, epoll as event, message, mode, socket_option,
};
use abi_unix::{Errno, SystemCall, errno, types};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::testing::{Program, run};

const SOCKETS: usize = 6;
/// Most messages in a queue: Linux has few for a socket that is not connected to the sender.
const MOST_MESSAGES: usize = 8;

/// Names: two paths, two abstract ones, a path that leads nowhere, a file that is no socket.
const NAMES: usize = 6;

#[derive(Clone, Debug)]
enum SocketStep {
    Make(usize, u32),
    Pair(usize, usize, u32),
    Close(usize),
    Bind(usize, usize),
    Remove(usize),
    Listen(usize, i32),
    Connect(usize, usize),
    /// Connects to nothing, as `AF_UNSPEC` says.
    Dissolve(usize),
    Accept(usize, usize),
    Send(usize, usize),
    SendTo(usize, usize, usize),
    Receive(usize, usize, bool),
    Shutdown(usize, u32),
    Ask(usize),
    Look(usize),
}

/// The result of a call.
#[derive(Debug, PartialEq)]
enum SocketReport {
    Number(usize),
    Bytes(Vec<u8>, Option<usize>),
    /// Names of the socket and of its peer, its events, and whether it listens.
    State(Option<usize>, Result<Option<usize>, u16>, u32, bool),
    Mode(u32),
}

type SocketAnswer = Result<SocketReport, u16>;

trait SocketCalls {
    fn step(&mut self, step: &SocketStep, bytes: &[u8]) -> SocketAnswer;
}

fn kind() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(SOCK_STREAM), 3 => Just(SOCK_DGRAM), 2 => Just(SOCK_SEQPACKET)]
}

fn step() -> impl Strategy<Value = SocketStep> {
    let socket = || 0..SOCKETS;
    let name = || prop_oneof![8 => 0..4usize, 1 => 4..NAMES];
    prop_oneof![
        4 => (socket(), kind()).prop_map(|(socket, kind)| SocketStep::Make(socket, kind)),
        1 => (socket(), socket(), kind()).prop_map(|(a, b, kind)| SocketStep::Pair(a, b, kind)),
        2 => socket().prop_map(SocketStep::Close),
        4 => (socket(), name()).prop_map(|(socket, name)| SocketStep::Bind(socket, name)),
        1 => (0..NAMES).prop_map(SocketStep::Remove),
        3 => (socket(), prop_oneof![Just(0), Just(1), Just(3), Just(-1)])
            .prop_map(|(socket, backlog)| SocketStep::Listen(socket, backlog)),
        6 => (socket(), name()).prop_map(|(socket, name)| SocketStep::Connect(socket, name)),
        1 => socket().prop_map(SocketStep::Dissolve),
        4 => (socket(), socket()).prop_map(|(from, to)| SocketStep::Accept(from, to)),
        4 => (socket(), 0..5usize).prop_map(|(socket, length)| SocketStep::Send(socket, length)),
        3 => (socket(), name(), 0..5usize).prop_map(|(socket, name, length)| SocketStep::SendTo(socket, name, length)),
        5 => (socket(), 0..7usize, any::<bool>()).prop_map(|(socket, room, peek)| SocketStep::Receive(socket, room, peek)),
        1 => (socket(), 0..3u32).prop_map(|(socket, how)| SocketStep::Shutdown(socket, how)),
        4 => socket().prop_map(SocketStep::Ask),
        1 => (0..NAMES).prop_map(SocketStep::Look),
    ]
}

/// Events that both sides are asked for.
const EVENTS: u32 = event::IN | event::OUT | event::RDHUP | event::HUP | event::ERR;

struct CopsSockets<'a> {
    program: &'a mut Program,
    sockets: [Option<usize>; SOCKETS],
    /// Places for an address with its size, bytes, and a list for `poll`.
    places: [usize; 4],
}

const CLOSED: usize = 999;

impl CopsSockets<'_> {
    fn name(index: usize) -> Vec<u8> {
        match index {
            0 | 1 => format!("/tmp/compared{index}").into_bytes(),
            2 | 3 => format!("\0compared{index}").into_bytes(),
            4 => b"/tmp/missing/name".to_vec(),
            _ => b"/tmp/compared-file".to_vec(),
        }
    }

    fn socket(&self, index: usize) -> usize {
        self.sockets[index].unwrap_or(CLOSED)
    }

    /// Puts an address into memory; returns its size.
    fn address(&self, name: usize) -> usize {
        let name = [&AF_UNIX.to_le_bytes()[..], &CopsSockets::name(name)].concat();
        self.program.write(self.places[0], &name);
        name.len()
    }

    fn put(&mut self, index: usize, descriptor: usize) {
        if let Some(old) = self.sockets[index].replace(descriptor) {
            self.program.close(old).unwrap();
        }
    }

    /// Reads the address that a call has written.
    fn told(&self) -> Option<usize> {
        let size = self.program.read_u32(self.places[1]) as usize;
        let bytes = self.program.read(self.places[0], size);
        let name = bytes.get(2..)?;
        (0..NAMES).find(|index| {
            let known = CopsSockets::name(*index);
            name == known || name.strip_suffix(&[0]) == Some(&known[..])
        })
    }

    fn call(&mut self, call: SystemCall, arguments: &[usize]) -> Result<usize, u16> {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        self.program.call(call, all).map_err(errno::Errno::number)
    }

    fn ready_for_address(&self) {
        self.program.write(self.places[1], &128u32.to_le_bytes());
    }
}

impl SocketCalls for CopsSockets<'_> {
    fn step(&mut self, step: &SocketStep, bytes: &[u8]) -> SocketAnswer {
        let [address, size, place, list] = self.places;
        let number = SocketReport::Number;
        match *step {
            SocketStep::Make(index, kind) => {
                let made = self.call(SystemCall::Socket, &[AF_UNIX as usize, (kind | SOCK_NONBLOCK) as usize, 0])?;
                self.put(index, made);
                Ok(number(0))
            }
            SocketStep::Pair(first, second, kind) => {
                let (a, b) = self.program.socket_pair(kind | SOCK_NONBLOCK);
                self.put(first, a);
                self.put(second, b);
                Ok(number(0))
            }
            SocketStep::Close(index) => {
                if let Some(old) = self.sockets[index].take() {
                    self.program.close(old).unwrap();
                }
                Ok(number(0))
            }
            SocketStep::Bind(index, name) => {
                let length = self.address(name);
                self.call(SystemCall::Bind, &[self.socket(index), address, length]).map(number)
            }
            SocketStep::Remove(name) => {
                self.program.write(place, &[&CopsSockets::name(name)[..], &[0]].concat());
                self.call(SystemCall::Unlink, &[types::AT_FDCWD as usize, place, 0]).map(number)
            }
            SocketStep::Listen(index, backlog) => {
                self.call(SystemCall::Listen, &[self.socket(index), backlog as usize]).map(number)
            }
            SocketStep::Connect(index, name) => {
                let length = self.address(name);
                self.call(SystemCall::Connect, &[self.socket(index), address, length]).map(number)
            }
            SocketStep::Dissolve(index) => {
                self.program.write(address, &[0; 16]);
                self.call(SystemCall::Connect, &[self.socket(index), address, 16]).map(number)
            }
            SocketStep::Accept(from, to) => {
                self.ready_for_address();
                let flags = SOCK_NONBLOCK as usize;
                let made = self.call(SystemCall::AcceptWith, &[self.socket(from), address, size, flags])?;
                let peer = self.told();
                self.put(to, made);
                Ok(SocketReport::Bytes(Vec::new(), peer))
            }
            SocketStep::Send(index, _) => {
                self.program.write(place, bytes);
                let flags = message::NOSIGNAL as usize;
                self.call(SystemCall::SendTo, &[self.socket(index), place, bytes.len(), flags, 0, 0]).map(number)
            }
            SocketStep::SendTo(index, name, _) => {
                let length = self.address(name);
                self.program.write(place, bytes);
                let flags = message::NOSIGNAL as usize;
                let arguments = [self.socket(index), place, bytes.len(), flags, address, length];
                self.call(SystemCall::SendTo, &arguments).map(number)
            }
            SocketStep::Receive(index, room, is_look) => {
                self.ready_for_address();
                let flags = if is_look { message::PEEK as usize } else { 0 };
                let arguments = [self.socket(index), place, room, flags, address, size];
                let count = self.call(SystemCall::ReceiveFrom, &arguments)?;
                Ok(SocketReport::Bytes(self.program.read(place, count), self.told()))
            }
            SocketStep::Shutdown(index, how) => {
                self.call(SystemCall::Shutdown, &[self.socket(index), how as usize]).map(number)
            }
            SocketStep::Ask(index) => {
                let socket = self.socket(index);
                self.ready_for_address();
                self.call(SystemCall::GetSocketName, &[socket, address, size])?;
                let own = self.told();
                self.ready_for_address();
                let peer = self.call(SystemCall::GetPeerName, &[socket, address, size]).map(|_| self.told());
                self.program.write(list, &[(socket as u32).to_le_bytes(), EVENTS.to_le_bytes()].concat());
                self.program.write(list + 8, &[0; 16]);
                self.call(SystemCall::Poll, &[list, 1, list + 8, 0, 0])?;
                let events = self.program.read_u32(list + 4) >> 16;
                self.program.write(size, &4u32.to_le_bytes());
                let asked = socket_option::SO_ACCEPTCONN as usize;
                self.call(SystemCall::GetSocketOption, &[socket, 1, asked, place, size])?;
                Ok(SocketReport::State(own, peer, events, self.program.read_u32(place) != 0))
            }
            SocketStep::Look(name) => {
                self.program.write(address, &[&CopsSockets::name(name)[..], &[0]].concat());
                let here = types::AT_FDCWD as usize;
                self.call(SystemCall::StatusAt, &[here, address, place, 0])?;
                let found = self.program.read_u32(place + 16);
                // A socket cannot be opened.
                let opened = self.call(SystemCall::Open, &[here, address, 0, 0]);
                if let Ok(file) = opened {
                    self.program.close(file).unwrap();
                }
                Ok(SocketReport::Mode(found & mode::TYPE | u32::from(opened.err().unwrap_or(0))))
            }
        }
    }
}

struct LinuxSockets {
    directory: PathBuf,
    prefix: String,
    sockets: [Option<OwnedFd>; SOCKETS],
}

fn code(error: rustix::io::Errno) -> u16 {
    error.raw_os_error() as u16
}

impl LinuxSockets {
    fn new() -> LinuxSockets {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("cops-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(&prefix);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("file"), b"").unwrap();
        LinuxSockets { directory, prefix, sockets: [const { None }; SOCKETS] }
    }

    fn path(&self, name: usize) -> PathBuf {
        match name {
            4 => self.directory.join("missing/name"),
            5 => self.directory.join("file"),
            name => self.directory.join(name.to_string()),
        }
    }

    fn address(&self, name: usize) -> SocketAddrUnix {
        match name {
            2 | 3 => SocketAddrUnix::new_abstract_name(format!("{}{name}", self.prefix).as_bytes()).unwrap(),
            name => SocketAddrUnix::new(self.path(name)).unwrap(),
        }
    }

    fn told(&self, address: Option<net::SocketAddrAny>) -> Option<usize> {
        let address = SocketAddrUnix::try_from(address?).ok()?;
        (0..NAMES).find(|name| self.address(*name) == address)
    }

    fn socket(&self, index: usize) -> Result<&OwnedFd, u16> {
        self.sockets[index].as_ref().ok_or(errno::Errno::number(Errno::EBADF))
    }
}

fn type_of(kind: u32) -> SocketType {
    SocketType::from_raw(kind)
}

impl SocketCalls for LinuxSockets {
    fn step(&mut self, step: &SocketStep, bytes: &[u8]) -> SocketAnswer {
        let done = |()| SocketReport::Number(0);
        match *step {
            SocketStep::Make(index, kind) => {
                let made = net::socket_with(
                    AddressFamily::UNIX,
                    type_of(kind),
                    SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
                    None,
                );
                self.sockets[index] = Some(made.map_err(code)?);
                Ok(done(()))
            }
            SocketStep::Pair(first, second, kind) => {
                let made = net::socketpair(
                    AddressFamily::UNIX,
                    type_of(kind),
                    SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
                    None,
                );
                let (a, b) = made.map_err(code)?;
                self.sockets[first] = Some(a);
                self.sockets[second] = Some(b);
                Ok(done(()))
            }
            SocketStep::Close(index) => {
                self.sockets[index] = None;
                Ok(done(()))
            }
            SocketStep::Bind(index, name) => {
                net::bind(self.socket(index)?, &self.address(name)).map(done).map_err(code)
            }
            SocketStep::Remove(name @ 2..=3) => {
                let _ = name;
                Err(errno::Errno::number(Errno::ENOENT))
            }
            SocketStep::Remove(name) => rustix::fs::unlink(self.path(name)).map(done).map_err(code),
            SocketStep::Listen(index, backlog) => net::listen(self.socket(index)?, backlog).map(done).map_err(code),
            SocketStep::Connect(index, name) => {
                net::connect(self.socket(index)?, &self.address(name)).map(done).map_err(code)
            }
            SocketStep::Dissolve(index) => net::connect_unspec(self.socket(index)?).map(done).map_err(code),
            SocketStep::Accept(from, to) => {
                let (made, peer) =
                    net::acceptfrom_with(self.socket(from)?, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
                        .map_err(code)?;
                let peer = self.told(peer);
                self.sockets[to] = Some(made);
                Ok(SocketReport::Bytes(Vec::new(), peer))
            }
            SocketStep::Send(index, _) => {
                net::send(self.socket(index)?, bytes, SendFlags::NOSIGNAL).map(SocketReport::Number).map_err(code)
            }
            SocketStep::SendTo(index, name, _) => {
                let sent = net::sendto(self.socket(index)?, bytes, SendFlags::NOSIGNAL, &self.address(name));
                sent.map(SocketReport::Number).map_err(code)
            }
            SocketStep::Receive(index, room, is_look) => {
                let mut buffer = vec![0; room];
                let flags = if is_look { RecvFlags::PEEK } else { RecvFlags::empty() };
                let received = net::recvfrom(self.socket(index)?, &mut buffer[..], flags);
                let (count, _, sender) = received.map_err(code)?;
                buffer.truncate(count);
                Ok(SocketReport::Bytes(buffer, self.told(sender)))
            }
            SocketStep::Shutdown(index, how) => {
                let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][how as usize];
                net::shutdown(self.socket(index)?, how).map(done).map_err(code)
            }
            SocketStep::Ask(index) => {
                let socket = self.socket(index)?;
                let own = self.told(Some(net::getsockname(socket).map_err(code)?));
                let peer = net::getpeername(socket).map(|peer| self.told(peer)).map_err(code);
                let mut files = [PollFd::new(socket, PollFlags::from_bits_retain(EVENTS as u16))];
                rustix::event::poll(&mut files, Some(&rustix::event::Timespec::default())).map_err(code)?;
                let events = u32::from(files[0].revents().bits());
                let listens = net::sockopt::socket_acceptconn(socket).map_err(code)?;
                Ok(SocketReport::State(own, peer, events, listens))
            }
            SocketStep::Look(2 | 3) => Err(errno::Errno::number(Errno::ENOENT)),
            SocketStep::Look(name) => {
                let path = self.path(name);
                let found = rustix::fs::stat(&path).map_err(code)?.st_mode;
                let opened = rustix::fs::open(&path, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
                Ok(SocketReport::Mode(found & mode::TYPE | u32::from(opened.err().map_or(0, code))))
            }
        }
    }
}

impl Drop for LinuxSockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn compare(program: &mut Program, steps: &[SocketStep]) {
    let file = program.create(&[&CopsSockets::name(5)[..], &[0]].concat(), types::open::RDWR);
    program.close(file).unwrap();
    let places = [program.place(256), program.place(8), program.place(256), program.place(32)];
    let mut ours = CopsSockets { program, sockets: [None; SOCKETS], places };
    // Those of a case that has failed.
    for name in [0, 1] {
        let _ = ours.step(&SocketStep::Remove(name), &[]);
    }
    let mut theirs = LinuxSockets::new();
    let mut sent = 0;
    for (number, step) in steps.iter().enumerate() {
        let bytes = match *step {
            SocketStep::Send(_, length) | SocketStep::SendTo(_, _, length) if sent < MOST_MESSAGES => {
                sent += 1;
                vec![number as u8 + 1; length]
            }
            SocketStep::Send(..) | SocketStep::SendTo(..) => continue,
            _ => Vec::new(),
        };
        let (here, there) = (ours.step(step, &bytes), theirs.step(step, &bytes));
        // A socket that has a name, and a path without a directory.
        let is_wrong_twice = matches!(step, SocketStep::Bind(_, 4))
            && (&here, &there)
                == (&Err(errno::Errno::number(Errno::EINVAL)), &Err(errno::Errno::number(Errno::ENOENT)));
        if is_wrong_twice {
            continue;
        }
        assert_eq!(here, there, "ours and Linux's after step {number} of {steps:#?}");
    }
    for index in 0..SOCKETS {
        ours.step(&SocketStep::Close(index), &[]).unwrap();
    }
    for name in [0, 1, 5] {
        let _ = ours.step(&SocketStep::Remove(name), &[]);
    }
}

proptest! {
    #![proptest_config(property::cases(400))]

    #[test]
    fn calls_on_local_sockets_do_as_linux_does(steps in prop::collection::vec(step(), 0..60)) {
        run(move |program| compare(program, &steps));
    }
}
