//! A crowd of connections over the network card: very many that are idle, and some with requests beside them.
//!
//! The machine's network card ends in a UDP socket of this program. The clients are the system's own TCP, [`network`],
//! several hosts on that socket with an address each: one address has no more than 64,000 ports towards a server, and
//! connections of this host's own TCP would need a descriptor each here and in QEMU.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ethernet::{Link, ReceivedFrame};
use network::{
    Address, Addressing, Configuration, ConnectionId, Limits, Received, Seeds, Sent, Sharing, Stack, TcpOptions,
};

use super::PATIENCE;
use super::servers::times;
use crate::board::{HARDWARE, Network};
use crate::progress::Activity;

/// Hosts of the crowd, and the ports of each.
const HOSTS: u8 = 5;
const PORTS: std::ops::RangeInclusive<u16> = 2_000..=61_999;

/// Connections that are being made at the same time: no more than wait to be accepted by the least patient server.
const AT_ONCE: usize = 64;

/// Frames of one host that wait to be looked at.
const FRAMES: usize = 4096;

/// Largest frame.
const FRAME: usize = 1514;

fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, 100 + host)
}

fn hardware(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, host]
}

/// The end of the cable that all hosts have in common: frames that have come for each of them.
struct Cable {
    socket: UdpSocket,
    arrived: RefCell<[VecDeque<Vec<u8>>; HOSTS as usize]>,
}

impl Cable {
    /// Takes the frames in that have come, and deals them out by their hardware addresses; returns whether there were
    /// any.
    fn receive(&self) -> bool {
        let (mut frame, mut has_come) = ([0; FRAME], false);
        let mut arrived = self.arrived.borrow_mut();
        while let Ok(length) = self.socket.recv(&mut frame) {
            has_come = true;
            let frame = &frame[..length];
            let Some(to) = frame.get(..6) else { continue };
            for (host, frames) in (0..HOSTS).zip(arrived.iter_mut()) {
                if (to == hardware(host) || to[0] & 1 != 0) && frames.len() < FRAMES {
                    frames.push_back(frame.to_vec());
                }
            }
        }
        has_come
    }
}

/// The card of one host.
struct Card {
    cable: Rc<Cable>,
    host: u8,
}

struct Departing<'card>(&'card UdpSocket);

impl ethernet::Departing for Departing<'_> {
    fn send<R>(self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = vec![0; length];
        let result = write(&mut frame);
        // A frame that does not fit is lost, as on any wire.
        let _ = self.0.send(&frame);
        result
    }
}

impl Link for Card {
    type Departing<'a> = Departing<'a>;

    fn hardware_address(&self) -> [u8; 6] {
        hardware(self.host)
    }

    fn depart(&mut self) -> Option<Departing<'_>> {
        Some(Departing(&self.cable.socket))
    }

    fn flush(&mut self) {}

    fn receive_into(&mut self, room: &mut [u8]) -> Option<ReceivedFrame> {
        let frame = self.cable.arrived.borrow_mut()[usize::from(self.host)].pop_front()?;
        let length = frame.len().min(room.len());
        room[..length].copy_from_slice(&frame[..length]);
        Some(ReceivedFrame { length, kept: None })
    }
}

/// A connection of one of the hosts.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    host: usize,
    id: ConnectionId,
}

/// All hosts, and their clock.
pub struct Crowd {
    cable: Rc<Cable>,
    hosts: Vec<Stack<Card>>,
    machine: Ipv4Addr,
    start: Instant,
    /// Number of connections that were requested so far, which chooses the next one's host and port.
    requested: usize,
}

impl Crowd {
    /// Makes a crowd without connections, and the cable of the card of the machine that it will visit.
    ///
    /// # Errors
    ///
    /// This host has no free UDP port or no memory.
    pub fn new() -> Result<(Crowd, Network)> {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("this host has no free UDP port");
        let (ours, theirs) = (bind()?, bind()?);
        let card = theirs.local_addr()?;
        ours.connect(card)?;
        let network = Network::Frames { card: card.port(), other: ours.local_addr()?.port(), hardware: HARDWARE };
        Ok((Crowd::on(ours, Ipv4Addr::new(10, 0, 2, 15))?, network))
    }

    fn on(socket: UdpSocket, machine: Ipv4Addr) -> Result<Crowd> {
        socket.set_nonblocking(true)?;
        let cable = Rc::new(Cable { socket, arrived: RefCell::default() });
        let limits = Limits { connections: 1 << 17, arrivals: 256, ..Limits::default() };
        let host = |host| {
            let address = Address { address: address(host), prefix: 24, gateway: None };
            let configuration = Configuration {
                address: Addressing::Fixed(address),
                seeds: Seeds::default(),
                limits,
                ..Configuration::default()
            };
            let card = Card { cable: cable.clone(), host };
            Stack::new(card, &configuration, 0).map_err(|error| anyhow::anyhow!("a client cannot be made: {error}"))
        };
        let hosts = (0..HOSTS).map(host).collect::<Result<_>>()?;
        Ok(Crowd { cable, hosts, machine, start: Instant::now(), requested: 0 })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Lets all hosts do what is to be done now; rests for a moment if nothing has come.
    fn turn(&mut self) {
        if !self.cable.receive() {
            thread::sleep(Duration::from_micros(50));
        }
        let now = self.now();
        for host in &mut self.hosts {
            host.poll(now);
        }
    }

    fn request(&mut self, port: u16) -> Result<Member> {
        let host = self.requested % self.hosts.len();
        let place = self.requested / self.hosts.len() % PORTS.len();
        self.requested += 1;
        let own = SocketAddr::new(address(host as u8).into(), PORTS.start() + place as u16);
        let (to, now) = (SocketAddr::new(self.machine.into(), port), self.now());
        let stack = &mut self.hosts[host];
        let made = stack
            .tcp_bind(own, Sharing::Reuse)
            .and_then(|binding| stack.tcp_connect(Some(binding), to, &TcpOptions::default(), now));
        Ok(Member { host, id: made.map_err(|error| anyhow::anyhow!("a connection cannot be begun: {error}"))? })
    }

    /// Makes so many connections to a port of the machine, or as many as it takes: fewer if one of them is refused, or
    /// if none was made for a long time.
    ///
    /// # Errors
    ///
    /// This host cannot make more.
    pub fn connect(&mut self, port: u16, count: usize, activity: Option<&Activity>) -> Result<Vec<Member>> {
        let (mut made, mut begun) = (Vec::new(), Vec::new());
        let mut last = Instant::now();
        while made.len() < count && last.elapsed() < PATIENCE {
            while begun.len() < AT_ONCE.min(count - made.len()) {
                begun.push(self.request(port)?);
            }
            self.turn();
            let before = made.len();
            let mut is_refused = false;
            begun.retain(|member| match self.hosts[member.host].connected(member.id) {
                Ok(false) => true,
                Ok(true) => {
                    made.push(*member);
                    false
                }
                Err(_) => {
                    is_refused = true;
                    false
                }
            });
            if is_refused {
                break;
            }
            if made.len() > before {
                last = Instant::now();
                if let Some(activity) = activity
                    && made.len() / 1000 > before / 1000
                {
                    activity.detail(&format!("{} of {count} connections", made.len()));
                }
            }
        }
        Ok(made)
    }

    /// Sends a request over each of these connections, and takes the answers, of so many bytes, which are all alike.
    ///
    /// # Errors
    ///
    /// An answer does not come, or differs.
    pub fn ask(&mut self, members: &[Member], request: &[u8], length: usize) -> Result<Vec<u8>> {
        let now = self.now();
        for member in members {
            let mut left = request;
            let sent = self.hosts[member.host].tcp_send_with(
                member.id,
                |room| {
                    let count = room.len().min(left.len());
                    room[..count].copy_from_slice(&left[..count]);
                    left = &left[count..];
                    count
                },
                now,
            );
            if sent != Ok(Sent::Bytes(request.len())) {
                bail!("a request cannot be sent: {sent:?}");
            }
        }
        let mut answers = vec![Vec::new(); members.len()];
        let mut last = Instant::now();
        while answers.iter().any(|answer| answer.len() < length) {
            self.turn();
            for (member, answer) in members.iter().zip(&mut answers).filter(|(_, answer)| answer.len() < length) {
                let before = answer.len();
                match self.receive(*member, answer)? {
                    Received::End => bail!("the server closes a connection"),
                    _ if answer.len() > before => last = Instant::now(),
                    _ => {}
                }
            }
            if last.elapsed() > PATIENCE {
                let missing = answers.iter().filter(|answer| answer.len() < length).count();
                bail!("{missing} of {} answers do not come", members.len());
            }
        }
        let first = answers.first().cloned().unwrap_or_default();
        match answers.iter().all(|answer| *answer == first) {
            true => Ok(first),
            false => bail!("the answers to one question differ"),
        }
    }

    fn receive(&mut self, member: Member, into: &mut Vec<u8>) -> Result<Received> {
        let now = self.now();
        let take = |bytes: &[u8]| {
            into.extend_from_slice(bytes);
            bytes.len()
        };
        let received = self.hosts[member.host].tcp_receive_with(member.id, take, now);
        received.map_err(|error| anyhow::anyhow!("a connection fails: {error}"))
    }

    /// Returns the machine's time and its idle time in nanoseconds, from the server on this port.
    ///
    /// # Errors
    ///
    /// The server does not answer.
    pub fn clock(&mut self, port: u16) -> Result<(f64, f64)> {
        let member = *self.connect(port, 1, None)?.first().context("the machine's clock does not answer")?;
        let (mut text, start) = (Vec::new(), Instant::now());
        while self.receive(member, &mut text)? != Received::End {
            if start.elapsed() > PATIENCE {
                bail!("the machine's clock does not answer");
            }
            self.turn();
        }
        let now = self.now();
        let _ = self.hosts[member.host].close(member.id, now);
        let text = String::from_utf8_lossy(&text);
        times(&text).with_context(|| format!("`{}` is no time", text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A server with the same TCP, on the other end of the cable, which answers each request of four bytes with six.
    fn serve(socket: UdpSocket, most: usize) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let card = |host| Card { cable: Rc::new(Cable { socket, arrived: RefCell::default() }), host };
        let machine = Ipv4Addr::new(10, 0, 2, 15);
        let address = Addressing::Fixed(Address { address: machine, prefix: 24, gateway: None });
        let configuration = Configuration { address, ..Configuration::default() };
        let mut stack = Stack::new(card(0), &configuration, 0).map_err(|error| io::Error::other(error.to_string()))?;
        let binding = stack.tcp_bind(SocketAddr::new(machine.into(), 7), Sharing::Exclusive).unwrap();
        let listener = stack.tcp_listen(binding, 64, &TcpOptions::default()).unwrap();
        let (start, mut connections, mut answered) = (Instant::now(), Vec::new(), 0);
        while answered < most && start.elapsed() < Duration::from_secs(60) {
            let now = start.elapsed().as_nanos() as u64;
            stack.link().cable.receive();
            stack.poll(now);
            while let Ok(Some((id, _))) = stack.accept(listener) {
                connections.push(id);
            }
            for &id in &connections {
                let mut request = Vec::new();
                let take = |bytes: &[u8]| {
                    request.extend_from_slice(bytes);
                    bytes.len()
                };
                if stack.tcp_receive_with(id, take, now) == Ok(Received::Bytes(4)) {
                    let fill = |room: &mut [u8]| {
                        room[..6].copy_from_slice(b"answer");
                        6
                    };
                    assert_eq!((&request[..], stack.tcp_send_with(id, fill, now)), (&b"what"[..], Ok(Sent::Bytes(6))));
                    answered += 1;
                }
            }
            stack.poll(now);
        }
        // The last answers are acknowledged.
        for _ in 0..200 {
            stack.link().cable.receive();
            stack.poll(start.elapsed().as_nanos() as u64);
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    #[test]
    fn hosts_share_a_cable_and_all_their_connections_are_answered() -> Result<()> {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let (ours, theirs) = (bind()?, bind()?);
        ours.connect(theirs.local_addr()?)?;
        theirs.connect(ours.local_addr()?)?;
        // The server is the first host's hardware on its own cable.
        let server = thread::spawn(move || serve(theirs, 300));
        let mut crowd = Crowd::on(ours, Ipv4Addr::new(10, 0, 2, 15))?;
        let members = crowd.connect(7, 300, None)?;
        assert_eq!(members.len(), 300);
        // The port has no listener.
        assert_eq!(crowd.connect(8, 1, None)?.len(), 0);
        assert_eq!(crowd.ask(&members, b"what", 6)?, b"answer");
        server.join().expect("the server does not panic")?;
        Ok(())
    }
}
