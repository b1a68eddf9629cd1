//! Exchanges bytes with another machine over TCP, in both directions at the same time, and tells their hashes:
//! `exchange serve` on one machine, `exchange ADDRESS` on the other, with the same options.
//!
//! Each end hashes the bytes that it sends and those that it receives; `cargo xtask exchange` starts both over a wire
//! that loses frames, and compares the hashes. The receiver also compares each byte with the one that was to come, so
//! that a difference is reported with its place, and at once.
//!
//! The last bytes that this end has sent may be lost on their way while the other end's have all arrived. So the
//! program stays for a while after `exchange: done`, and its machine sends them again.
#![no_std]
#![no_main]

extern crate alloc;

mod bytes;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::Hasher as _;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicU64, Ordering};

use cops::net::{Shutdown, TcpListener, TcpStream};
use cops::time::{Duration, Instant};
use cops::{Errno, eprintln, println};
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use bytes::Bytes;

const USAGE: &str = "\
usage: exchange serve|ADDRESS [OPTION]...
  --mebibytes N     bytes of each direction, of all connections together (16)
  --connections N   connections at once (1)
  --seed N          seed of the bytes (1)
Both ends need the same options.";

const PORT: u16 = 7002;
/// Bytes of a call that sends or receives.
const PART: usize = 64 << 10;
/// Longest time until the other machine listens, and the time between two tries.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// Interval of messages.
const REPORT: Duration = Duration::from_secs(2);
/// Time for the other end to ask again for bytes that were lost at the end.
const AFTERMATH: Duration = Duration::from_secs(600);

/// Number of bytes that this end has received.
static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// The result of a part: the error is the failure.
type Outcome<T> = Result<T, String>;

/// The choices of the command line.
#[derive(Clone, Copy)]
struct Exchange {
    /// The address of the machine that listens; `None` on that machine.
    server: Option<SocketAddrV4>,
    mebibytes: u64,
    connections: u64,
    seed: u64,
}

fn parse() -> Option<Exchange> {
    let mut arguments = cops::arguments().skip(1);
    let server = match arguments.next()?.to_str().ok()? {
        "serve" => None,
        address => Some(SocketAddrV4::new(address.parse().ok()?, PORT)),
    };
    let mut exchange = Exchange { server, mebibytes: 16, connections: 1, seed: 1 };
    while let Some(option) = arguments.next() {
        let number: u64 = arguments.next()?.to_str().ok()?.parse().ok()?;
        match option.to_bytes() {
            b"--mebibytes" if number < 1 << 40 => exchange.mebibytes = number,
            b"--connections" if (1..=1024).contains(&number) => exchange.connections = number,
            b"--seed" => exchange.seed = number,
            _ => return None,
        }
    }
    Some(exchange)
}

#[cops::main]
async fn main() -> i32 {
    let Some(exchange) = parse() else {
        eprintln!("{USAGE}");
        return 2;
    };
    match exchange.run().await {
        Ok(()) => {
            println!("exchange: done");
            cops::sleep(AFTERMATH).await;
            0
        }
        Err(reason) => {
            println!("exchange: failed: {reason}");
            1
        }
    }
}

impl Exchange {
    /// Returns the number of bytes of a connection in each direction.
    fn length(&self, connection: u64) -> u64 {
        let bytes = self.mebibytes << 20;
        bytes / self.connections + u64::from(connection < bytes % self.connections)
    }

    async fn run(self) -> Outcome<()> {
        let reports = cops::spawn(async move {
            loop {
                cops::sleep(REPORT).await;
                println!("exchange: received {} of {} MiB", RECEIVED.load(Ordering::Relaxed) >> 20, self.mebibytes);
            }
        });
        let streams = match self.server {
            None => self.accept().await?,
            Some(server) => self.connect(server).await?,
        };
        let each = streams.into_iter().flat_map(|(connection, stream)| {
            let stream = Arc::new(stream);
            [
                cops::spawn(self.send(connection, stream.clone())),
                cops::spawn(async move { self.receive(connection, stream).await }),
            ]
        });
        for end in each.collect::<Vec<_>>() {
            let (connection, verb, length, hash) = end.await.map_err(|_| String::from("a part was cancelled"))??;
            println!("exchange: connection {connection} {verb} {length} bytes, hash {hash:032x}");
        }
        reports.cancel();
        Ok(())
    }

    /// Accepts all connections, each of which begins with its number.
    async fn accept(&self) -> Outcome<Vec<(u64, TcpStream)>> {
        let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT);
        let listener = TcpListener::bind(address).map_err(|error| format!("cannot listen on {address}: {error}"))?;
        println!("exchange: listening on {address}");
        let mut streams: Vec<(u64, TcpStream)> = Vec::new();
        while (streams.len() as u64) < self.connections {
            let (stream, _) = listener.accept().await.map_err(|error| format!("cannot accept: {error}"))?;
            let (read, number) = stream.read_exact(vec![0; 8]).await;
            read.map_err(|error| format!("a connection ends before its number: {error}"))?;
            let number = number.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            if number >= self.connections || streams.iter().any(|(other, _)| *other == number) {
                return Err(format!("a connection with the number {number} was not to come"));
            }
            streams.push((number, stream));
        }
        Ok(streams)
    }

    async fn connect(&self, server: SocketAddrV4) -> Outcome<Vec<(u64, TcpStream)>> {
        let mut streams = Vec::new();
        for number in 0..self.connections {
            let stream = connect_patiently(server).await.map_err(|error| format!("cannot reach {server}: {error}"))?;
            let (written, _) = stream.write_all(number.to_le_bytes().to_vec()).await;
            written.map_err(|error| format!("cannot send: {error}"))?;
            streams.push((number, stream));
        }
        Ok(streams)
    }

    /// Sends all bytes of this end and returns their hash.
    async fn send(self, connection: u64, stream: Arc<TcpStream>) -> Outcome<(u64, &'static str, u64, u128)> {
        let length = self.length(connection);
        let mut bytes = Bytes::new(self.seed, connection, self.server.is_none());
        let mut hasher = SipHasher13::new();
        let mut part = vec![0; PART];
        while bytes.position() < length {
            part.resize(PART.min((length - bytes.position()) as usize), 0);
            bytes.fill(&mut part);
            hasher.write(&part);
            let written;
            (written, part) = stream.write_all(part).await;
            written.map_err(|error| format!("cannot send byte {}: {error}", bytes.position()))?;
        }
        stream.shutdown(Shutdown::Write).map_err(|error| format!("cannot end connection {connection}: {error}"))?;
        Ok((connection, "sent", length, hasher.finish128().as_u128()))
    }

    /// Receives all bytes of the other end and returns their hash.
    async fn receive(self, connection: u64, stream: Arc<TcpStream>) -> Outcome<(u64, &'static str, u64, u128)> {
        let length = self.length(connection);
        let mut bytes = Bytes::new(self.seed, connection, self.server.is_some());
        let mut hasher = SipHasher13::new();
        let (mut part, mut expected) = (vec![0; PART], vec![0; PART]);
        loop {
            let (count, received) = stream.read(part).await;
            part = received;
            let position = bytes.position();
            let count = count.map_err(|error| format!("cannot receive byte {position}: {error}"))?;
            if count == 0 {
                break;
            }
            bytes.fill(&mut expected[..count]);
            if let Some(place) = part[..count].iter().zip(&expected).position(|(byte, expected)| byte != expected) {
                return Err(format!(
                    "byte {} of connection {connection} is {:#04x} and was to be {:#04x}",
                    position + place as u64,
                    part[place],
                    expected[place]
                ));
            }
            hasher.write(&part[..count]);
            RECEIVED.fetch_add(count as u64, Ordering::Relaxed);
        }
        if bytes.position() != length {
            return Err(format!("connection {connection} has {} bytes instead of {length}", bytes.position()));
        }
        Ok((connection, "received", length, hasher.finish128().as_u128()))
    }
}

/// Connects to a machine that may not listen yet.
async fn connect_patiently(server: SocketAddrV4) -> Result<TcpStream, Errno> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(server).await {
            Err(Errno::ECONNREFUSED | Errno::ETIMEDOUT | Errno::ENETUNREACH | Errno::EHOSTUNREACH)
                if start.elapsed() < PATIENCE => {}
            result => return result,
        }
        cops::sleep(BETWEEN_TRIES).await;
    }
}
