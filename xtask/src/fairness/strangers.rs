//! Attacks of strangers on the network: they see the numbers of their own connections, flood the server with requests
//! from forged addresses, and never read their answers; meanwhile a well-behaved client wants to be served.
//!
//! The machine's network card ends in a UDP socket of this program, which sends arbitrary frames. The well-behaved
//! client is the system's own TCP, [`network`], on that socket.

#[path = "../../../lib/network/tests/predictor/mod.rs"]
mod predictor;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ethernet::{Link, ReceivedFrame};
use network::{Address, Addressing, Configuration, ConnectionId, Received, Seeds, Sent, Stack, TcpOptions};

use super::{Scenario, ScenarioBoot, ScenarioLab, line};
use crate::board::{Clock, HARDWARE, Network};
use crate::guest::Guest;

pub const SCENARIO: Scenario = Scenario {
    name: "strangers",
    goals: &[("isn_predicted", 0.0), ("flood_refused", 0.0), ("flood_frames_lost", 64.0), ("silent_frames_lost", 64.0)],
    measure,
};

/// Connections whose numbers are recorded.
const OBSERVED: usize = 40;
/// Requests from forged addresses.
const FLOOD: u32 = 20_000;
/// Requests between two tries of the well-behaved client.
const STRIDE: u32 = 500;
/// Peers that send requests and never read.
const SILENT: usize = 60;
/// Longest wait of the client for an answer. Emulated machines are slow, and a lost frame costs a second and more.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after an attack until everything has to be forgotten: a little more than a request is remembered.
const AFTERMATH: Duration = Duration::from_secs(40);

const MACHINE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), 7001);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const CLIENT_HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 2];

const SYN: u8 = 2;
const ACK: u8 = 0x10;
const ETHERNET_HEADER: usize = 14;
const HEADERS: usize = ETHERNET_HEADER + 20 + 20;

/// The card's other end.
struct Cable {
    socket: UdpSocket,
    /// The first numbers of the machine's answers to requests of the well-behaved client.
    numbers: Vec<u32>,
    /// Number of answers to requests of others.
    answers: u32,
    /// The machine's hardware address, from its frames.
    hardware: Option<[u8; 6]>,
}

struct Departing<'cable>(&'cable UdpSocket);

impl ethernet::Departing for Departing<'_> {
    fn send<R>(self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = vec![0; length];
        let result = write(&mut frame);
        // A frame that does not fit is lost, as on any wire.
        let _ = self.0.send(&frame);
        result
    }
}

impl Link for Cable {
    type Departing<'a> = Departing<'a>;

    fn hardware_address(&self) -> [u8; 6] {
        CLIENT_HARDWARE
    }

    fn depart(&mut self) -> Option<Departing<'_>> {
        Some(Departing(&self.socket))
    }

    fn flush(&mut self) {}

    fn receive_into(&mut self, room: &mut [u8]) -> Option<ReceivedFrame> {
        loop {
            let length = self.socket.recv(room).ok()?;
            let bytes = &room[..length];
            if let Some(hardware) = bytes.get(6..12) {
                self.hardware = hardware.try_into().ok();
            }
            let is_answer = bytes.len() >= HEADERS && bytes[23] == 6 && bytes[47] == SYN | ACK;
            if is_answer && bytes[30..34] != CLIENT.octets() {
                self.answers += 1;
                continue;
            }
            if is_answer {
                let number = u32::from_be_bytes([bytes[38], bytes[39], bytes[40], bytes[41]]);
                // An answer that is sent twice is one number.
                if self.numbers.last() != Some(&number) {
                    self.numbers.push(number);
                }
            }
            return Some(ReceivedFrame { length, kept: None });
        }
    }
}

/// The well-behaved client, and its clock.
struct Client {
    stack: Stack<Cable>,
    start: Instant,
}

impl Client {
    fn new(socket: UdpSocket) -> Result<Client> {
        let cable = Cable { socket, numbers: Vec::new(), answers: 0, hardware: None };
        let configuration = Configuration {
            address: Addressing::Fixed(Address { address: CLIENT, prefix: 24, gateway: None }),
            seeds: Seeds::default(),
            ..Configuration::default()
        };
        match Stack::new(cable, &configuration, 0) {
            Ok(stack) => Ok(Client { stack, start: Instant::now() }),
            Err(error) => bail!("the client cannot be made: {error}"),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Runs the stack until `done` returns a value, or the patience is over.
    fn run<T>(&mut self, patience: Duration, mut done: impl FnMut(&mut Stack<Cable>, u64) -> Option<T>) -> Option<T> {
        let end = Instant::now() + patience;
        loop {
            let now = self.now();
            self.stack.poll(now);
            if let Some(result) = done(&mut self.stack, now) {
                self.stack.poll(now);
                return Some(result);
            }
            if Instant::now() >= end {
                return None;
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn connect(&mut self) -> Option<ConnectionId> {
        let now = self.now();
        let id = self.stack.tcp_connect(None, MACHINE, &TcpOptions::default(), now).ok()?;
        self.run(PATIENCE, |stack, _| match stack.connected(id) {
            Ok(false) => None,
            Ok(true) => Some(Some(id)),
            Err(_) => Some(None),
        })?
    }

    fn send(&mut self, id: ConnectionId, word: u64) -> Option<bool> {
        let now = self.now();
        let fill = |room: &mut [u8]| {
            let count = room.len().min(8);
            room[..count].copy_from_slice(&word.to_le_bytes()[..count]);
            count
        };
        self.stack.tcp_send_with(id, fill, now).ok().map(|sent| sent != Sent::Full)
    }

    /// Requests the number of free frames from the server; `None` if it does not answer.
    fn ask(&mut self) -> Option<u64> {
        let id = self.connect()?;
        self.send(id, 1)?;
        let mut answer = Vec::new();
        let answered = self.run(PATIENCE, |stack, now| {
            let received = stack.tcp_receive_with(
                id,
                |bytes| {
                    answer.extend_from_slice(bytes);
                    bytes.len()
                },
                now,
            );
            match received {
                Ok(Received::End) | Err(_) => Some(false),
                Ok(_) => (answer.len() >= 8).then_some(true),
            }
        });
        let now = self.now();
        self.stack.close(id, now).ok()?;
        self.run(Duration::from_millis(20), |_, _| None::<()>);
        answered.filter(|&answered| answered)?;
        Some(u64::from_le_bytes(answer.get(..8)?.try_into().ok()?))
    }

    /// Sends requests and never reads the answers, as long as the server takes more.
    fn be_silent(&mut self) -> Option<ConnectionId> {
        let id = self.connect()?;
        for _ in 0..20 {
            while self.send(id, 1)? {}
            self.run(Duration::from_millis(5), |_, _| None::<()>);
        }
        Some(id)
    }
}

/// Builds a request from a forged address, with right checksums.
fn forged_request(number: u32, hardware: [u8; 6]) -> [u8; HEADERS] {
    let mut frame = [0; HEADERS];
    frame[..6].copy_from_slice(&hardware);
    frame[6..12].copy_from_slice(&CLIENT_HARDWARE);
    frame[12] = 8;
    frame[14] = 0x45;
    frame[17] = 40;
    frame[22] = 64;
    frame[23] = 6;
    frame[26..30].copy_from_slice(&(0x0b00_0001 + number.wrapping_mul(7919) % 0x0100_0000).to_be_bytes());
    frame[30..34].copy_from_slice(&MACHINE.ip().octets());
    frame[34..36].copy_from_slice(&(1024 + (number % 60_000) as u16).to_be_bytes());
    frame[36..38].copy_from_slice(&MACHINE.port().to_be_bytes());
    frame[38..42].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
    frame[46] = 0x50;
    frame[47] = SYN;
    frame[48..50].copy_from_slice(&1000u16.to_be_bytes());
    let sum = |bytes: &[u8], start: u32| {
        let mut sum = bytes.chunks(2).fold(start, |sum, pair| sum + u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    };
    let checksum = !(sum(&frame[14..34], 0) as u16);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let checksum = !(sum(&frame[34..54], sum(&frame[26..34], 6 + 20)) as u16);
    frame[50..52].copy_from_slice(&checksum.to_be_bytes());
    frame
}

fn measure(lab: &ScenarioLab<'_>) -> Result<Vec<String>> {
    let ours = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("this host has no free UDP port")?;
    let theirs = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("this host has no free UDP port")?.local_addr()?;
    ours.connect(theirs)?;
    ours.set_nonblocking(true)?;
    let boot = ScenarioBoot { words: &["strangers"], harts: 1, memory: Some("256M"), clock: Clock::Host };
    let network = Network::Frames { card: theirs.port(), other: ours.local_addr()?.port(), hardware: HARDWARE };
    let activity = lab.context.progress.start("Measuring strangers on 1 hart");
    let mut guest = lab.start(&boot, network)?;
    guest.wait_for("the server", Duration::from_secs(600), |line| line.starts_with("strangers: ").then_some(()))?;
    let lines = attack(&mut Client::new(ours)?, &mut guest);
    guest.end();
    activity.clear();
    lines
}

fn attack(client: &mut Client, guest: &mut Guest) -> Result<Vec<String>> {
    // The numbers of an attacker's own connections, in the easiest case for it: no others connect meanwhile.
    for _ in 0..OBSERVED {
        client.ask().context("the server does not answer although nothing has happened yet")?;
    }
    let numbers = std::mem::take(&mut client.stack.link().numbers);
    if numbers.len() != OBSERVED {
        bail!("{} numbers of {OBSERVED} connections were seen", numbers.len());
    }
    let hardware = client.stack.link().hardware.context("the machine has not sent anything")?;
    guest.check()?;

    let settled = Duration::from_secs(12);
    client.run(settled, |_, _| None::<()>);
    let before = client.ask().context("the server does not answer before the flood")?;
    let (mut tries, mut refused) = (0, 0);
    for number in 0..FLOOD {
        let _ = client.stack.link().socket.send(&forged_request(number, hardware));
        if number % 50 == 49 {
            client.run(Duration::from_millis(2), |_, _| None::<()>);
        }
        if number % STRIDE == STRIDE - 1 {
            tries += 1;
            refused += u32::from(client.ask().is_none());
            guest.check()?;
        }
    }
    let answers = client.stack.link().answers;
    if answers < FLOOD / 4 {
        bail!("only {answers} of {FLOOD} forged requests were answered: that was no flood");
    }
    client.run(AFTERMATH, |_, _| None::<()>);
    let after = client.ask().context("the server does not answer after the flood")?;

    let silent: Vec<_> = (0..SILENT).filter_map(|_| client.be_silent()).collect();
    client.ask().context("the server does not answer while others do not read")?;
    let with_silent = client.ask().context("the server does not answer while others do not read")?;
    let count = silent.len();
    for id in silent {
        let now = client.now();
        let _ = client.stack.abort(id, now);
    }
    client.run(settled, |_, _| None::<()>);
    let after_silent = client.ask().context("the server does not answer after silent peers have gone")?;
    guest.check()?;

    let lost = |from: u64, to: u64| from.saturating_sub(to) as f64;
    Ok(vec![
        line("isn_predicted", predictor::predicted(&numbers) as f64, "of 40"),
        line("flood_refused", f64::from(refused), &format!("of {tries} honest clients")),
        line("flood_answered", f64::from(answers), &format!("of {FLOOD} forged requests")),
        line("flood_frames_lost", lost(before, after), "frames"),
        line("silent_peers", count as f64, "peers"),
        line("silent_frames_held", lost(after, with_silent), "frames"),
        line("silent_frames_lost", lost(after, after_silent), "frames"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that the system's own stack answers is like a stranger's.
    #[test]
    fn forged_requests_are_valid() -> std::io::Result<()> {
        let (one, two) = (UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
        one.connect(two.local_addr()?)?;
        two.connect(one.local_addr()?)?;
        two.set_nonblocking(true)?;
        let cable = Cable { socket: two, numbers: Vec::new(), answers: 0, hardware: None };
        let address = Address { address: *MACHINE.ip(), prefix: 24, gateway: None };
        let configuration = Configuration { address: Addressing::Fixed(address), ..Configuration::default() };
        let mut stack = Stack::new(cable, &configuration, 0).expect("there is memory");
        let binding = stack.tcp_bind(MACHINE, network::Sharing::Exclusive).expect("the port is free");
        stack.tcp_listen(binding, 10, &TcpOptions::default()).expect("there is memory");
        for number in 0..10 {
            one.send(&forged_request(number, CLIENT_HARDWARE))?;
        }
        for _ in 0..1000 {
            stack.poll(0);
            if stack.half_open_count() == 10 {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{} requests arrived", stack.half_open_count());
    }
}
