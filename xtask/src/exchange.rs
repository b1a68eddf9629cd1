//! `exchange`: two machines send each other many bytes over TCP at the same time, over a wire that loses, repeats,
//! reorders and delays frames ([`wire`]).
//!
//! Each machine's program `exchange` tells the hashes of the bytes that it has sent and of those that it has received,
//! for each connection; both ends must agree.

#[cfg(test)]
#[path = "../../apps/exchange/src/bytes.rs"]
mod bytes;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::Products;
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::guest::{Echo, FailureKind, Guest};
use crate::progress::Activity;
use crate::toolchain::Toolchain;
use wire::{Counts, Shares, Wire};

/// The program in the machines.
const PROGRAM: &str = "exchange";

/// Addresses of the machines, of which the first listens.
const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

/// The machines' names, for people.
const NAMES: [&str; 2] = ["the first machine", "the second machine"];

/// Number of harts of each machine, unless the user chooses another.
pub const HARTS: u8 = 2;

/// Longest time until the first machine listens, and longest time without another byte.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
const STANDSTILL: Duration = Duration::from_secs(300);

/// Time for which one machine's lines are waited for before the other's.
const TURN: Duration = Duration::from_millis(100);

/// The choices of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Bytes of each direction, in mebibytes.
    pub mebibytes: u64,
    /// Connections at the same time.
    pub connections: u16,
    /// Lost frames of a hundred.
    pub loss: u8,
    /// Seed of the bytes, and of the frames' fates.
    pub seed: u64,
}

/// Bytes of one direction of a connection, as one end tells of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Moved {
    length: u64,
    hash: String,
}

/// A line of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Received { mebibytes: u64 },
    Moved { connection: u64, is_sent: bool, moved: Moved },
    Failed(String),
    Done,
}

/// The findings of one end: of each connection the bytes that it has received (false) and sent (true).
type Findings = BTreeMap<(u64, bool), Moved>;

/// The result of an exchange.
pub struct Exchanged {
    exchange: Exchange,
    /// Of each connection the hashes of the bytes from the first machine, and from the second.
    hashes: Vec<[String; 2]>,
    counts: Counts,
    time: Duration,
}

impl fmt::Display for Exchanged {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (connection, [first, second]) in self.hashes.iter().enumerate() {
            writeln!(formatter, "connection {connection}: {first} from the first machine, {second} from the second")?;
        }
        let seconds = self.time.as_secs_f64();
        write!(
            formatter,
            "{} MiB each way in {seconds:.0} s ({:.1} MiB/s), and all hashes are equal; the wire was given {}",
            self.exchange.mebibytes,
            self.exchange.mebibytes as f64 / seconds,
            self.counts
        )
    }
}

/// Exchanges bytes on the user's request.
///
/// # Errors
///
/// The message has the failure.
pub fn exchange(context: &Context, arguments: &cli::Exchange) -> Result<()> {
    let (toolchain, products) = context.build(Need::Boot)?;
    let cli::Exchange { mebibytes, connections, loss, seed, ref machine } = *arguments;
    let exchange = Exchange { mebibytes, connections, loss, seed };
    println!("{}", run(context, &toolchain, &products, machine, exchange, &context.log(PROGRAM))?);
    Ok(())
}

/// Boots both machines, waits for the end of the exchange and compares the hashes. The logs are beside `log`.
///
/// # Errors
///
/// A machine fails, no bytes move any more, or an end has other bytes than the other has sent.
pub fn run(
    context: &Context,
    toolchain: &Toolchain,
    products: &Products,
    machine: &cli::Machine,
    exchange: Exchange,
    log: &Path,
) -> Result<Exchanged> {
    let machine = &cli::Machine { harts: machine.harts.or(Some(HARTS)), ..machine.clone() };
    let shares = Shares::losing(exchange.loss);
    let wire = Wire::start(shares, exchange.seed).context("this host has no wire")?;
    let start = |at: usize, way: &str| {
        let Exchange { mebibytes, connections, seed, .. } = exchange;
        let words = format!("{way} --mebibytes {mebibytes} --connections {connections} --seed {seed}");
        let options: Vec<_> = words.split(' ').map(String::from).collect();
        let mut configuration = context.configuration(products, machine, command_line(PROGRAM, &options)?);
        let address = format!("ip={}:::255.255.255.0 ipv6.disable=1 ", ADDRESSES[at]);
        configuration.command_line.insert_str(0, &address);
        configuration.network = wire.networks()[at].clone();
        let name = log.file_stem().unwrap_or_default().to_string_lossy();
        let log = log.with_file_name(format!("{name}-{}.log", at + 1));
        Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)
    };
    let title = format!("Exchanging {} MiB each way, {} % of the frames lost", exchange.mebibytes, exchange.loss);
    let activity = context.progress.start_steps(title, exchange.mebibytes * 2);
    let mut first = start(0, "serve")?;
    let listens = |line: &str| line.starts_with("exchange: listening").then_some(());
    first.wait_for("its server", BOOT_LIMIT, listens).context(NAMES[0])?;
    let mut guests = [first, start(1, ADDRESSES[0])?];
    let begun = Instant::now();
    let findings = follow(&mut guests, &activity)?;
    let time = begun.elapsed();
    guests.iter_mut().for_each(Guest::end);
    activity.clear();
    let hashes = compare(&findings, exchange).with_context(|| {
        format!("the machines' serial logs are {} and {}", guests[0].log().display(), guests[1].log().display())
    })?;
    let counts = wire.end();
    if exchange.mebibytes >= 16 {
        ensure!(counts.has_every_fate(shares), "the wire was no trial: it was given {counts}");
    }
    Ok(Exchanged { exchange, hashes, counts, time })
}

/// Waits until both ends are done, and returns what they tell.
fn follow(guests: &mut [Guest; 2], activity: &Activity) -> Result<[Findings; 2]> {
    let (mut findings, mut is_done, mut received) = ([Findings::new(), Findings::new()], [false; 2], [0; 2]);
    let mut moved = Instant::now();
    while is_done != [true; 2] {
        for at in 0..2 {
            match guests[at].wait_for("its end of the exchange", TURN, told) {
                Ok(Told::Received { mebibytes }) => {
                    if mebibytes > received[at] {
                        (received[at], moved) = (mebibytes, Instant::now());
                    }
                    activity.advance_to(received.iter().sum());
                    activity.detail(&format!("{} and {} MiB have arrived", received[0], received[1]));
                }
                Ok(Told::Moved { connection, is_sent, moved }) => {
                    findings[at].insert((connection, is_sent), moved);
                }
                Ok(Told::Failed(reason)) => {
                    bail!("{}: {reason}. Its serial log is {}", NAMES[at], guests[at].log().display())
                }
                Ok(Told::Done) => is_done[at] = true,
                Err(failure) if matches!(failure.kind, FailureKind::TooLate { .. }) => {}
                Err(failure) => return Err(anyhow::Error::from(failure).context(NAMES[at])),
            }
        }
        if moved.elapsed() > STANDSTILL {
            bail!(
                "no bytes have arrived for {} s, after {} and {} MiB. The machines' serial logs are {} and {}",
                STANDSTILL.as_secs(),
                received[0],
                received[1],
                guests[0].log().display(),
                guests[1].log().display()
            );
        }
    }
    Ok(findings)
}

/// Understands a line of the program.
fn told(line: &str) -> Option<Told> {
    let line = line.strip_prefix("exchange: ")?;
    if line == "done" {
        return Some(Told::Done);
    }
    if let Some(reason) = line.strip_prefix("failed: ") {
        return Some(Told::Failed(reason.trim().into()));
    }
    if let Some(rest) = line.strip_prefix("received ") {
        return Some(Told::Received { mebibytes: rest.split_once(' ')?.0.parse().ok()? });
    }
    let words: Vec<_> = line.split_whitespace().collect();
    let ["connection", connection, verb, length, "bytes,", "hash", hash] = words[..] else { return None };
    let moved = Moved { length: length.parse().ok()?, hash: hash.into() };
    let is_sent = match verb {
        "sent" => true,
        "received" => false,
        _ => return None,
    };
    Some(Told::Moved { connection: connection.parse().ok()?, is_sent, moved })
}

/// Compares the bytes that each end has sent with those that the other has received; returns their hashes.
fn compare(findings: &[Findings; 2], exchange: Exchange) -> Result<Vec<[String; 2]>> {
    let (mut hashes, mut lengths) = (Vec::new(), [0; 2]);
    for connection in 0..u64::from(exchange.connections) {
        let mut both = [String::new(), String::new()];
        for (at, place) in both.iter_mut().enumerate() {
            let end = |at: usize, is_sent| {
                findings[at].get(&(connection, is_sent)).with_context(|| {
                    let verb = if is_sent { "sent" } else { "received" };
                    format!("{} does not tell what it has {verb} over connection {connection}", NAMES[at])
                })
            };
            let (sent, received) = (end(at, true)?, end(1 - at, false)?);
            ensure!(
                sent == received,
                "over connection {connection}, {} has sent {} bytes with the hash {}, and {} has received {} bytes with \
                 the hash {}",
                NAMES[at],
                sent.length,
                sent.hash,
                NAMES[1 - at],
                received.length,
                received.hash
            );
            lengths[at] += sent.length;
            *place = sent.hash.clone();
        }
        hashes.push(both);
    }
    ensure!(
        lengths == [exchange.mebibytes << 20; 2],
        "{} and {} bytes were exchanged instead of {} MiB",
        lengths[0],
        lengths[1],
        exchange.mebibytes
    );
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCHANGE: Exchange = Exchange { mebibytes: 1, connections: 2, loss: 1, seed: 1 };

    /// Both ends of an exchange in which all is well.
    fn findings() -> [Findings; 2] {
        let lines = |first: &str, second: &str| {
            (0..2)
                .flat_map(|connection| {
                    [(first, "sent"), (second, "received")].map(move |(from, verb)| {
                        format!("exchange: connection {connection} {verb} 524288 bytes, hash {from}{connection}")
                    })
                })
                .filter_map(|line| match told(&line) {
                    Some(Told::Moved { connection, is_sent, moved }) => Some(((connection, is_sent), moved)),
                    _ => None,
                })
                .collect()
        };
        [lines("a", "b"), lines("b", "a")]
    }

    #[test]
    fn equal_hashes_are_accepted_and_others_are_not() {
        let good = findings();
        let hashes = compare(&good, EXCHANGE).unwrap();
        assert_eq!(hashes, [["a0", "b0"], ["a1", "b1"]].map(|pair| pair.map(String::from)));
        let error = |findings: &[Findings; 2]| compare(findings, EXCHANGE).unwrap_err().to_string();
        let mut wrong = findings();
        wrong[1].get_mut(&(1, false)).unwrap().hash = "c".into();
        assert!(
            error(&wrong).starts_with("over connection 1, the first machine has sent 524288 bytes with the hash a1")
        );
        let mut short = findings();
        short[0].get_mut(&(0, false)).unwrap().length = 1;
        assert!(error(&short).contains("the first machine has received 1 bytes"));
        let mut silent = findings();
        silent[1].remove(&(0, true));
        assert_eq!(error(&silent), "the second machine does not tell what it has sent over connection 0");
        let larger = Exchange { mebibytes: 2, ..EXCHANGE };
        assert!(compare(&good, larger).unwrap_err().to_string().contains("instead of 2 MiB"));
    }

    #[test]
    fn lines_of_the_program_are_understood() {
        assert_eq!(told("exchange: done"), Some(Told::Done));
        assert_eq!(told("exchange: received 12 of 64 MiB"), Some(Told::Received { mebibytes: 12 }));
        assert_eq!(told("exchange: failed: cannot listen"), Some(Told::Failed("cannot listen".into())));
        for other in [
            "",
            "done",
            "exchange: listening on 0.0.0.0:7002",
            "exchange: received many",
            "exchange: connection 1 lost 3 bytes, hash 0",
            "exchange: connection x sent 3 bytes, hash 0",
            "exchange: connection 1 sent 3 bytes",
        ] {
            assert_eq!(told(other), None, "{other}");
        }
    }

    /// However the bytes are read, they are the same; those of other directions, connections and seeds are others.
    #[test]
    fn the_programs_bytes_do_not_depend_on_the_parts_in_which_they_are_read() {
        let mut whole = vec![0; 10_000];
        bytes::Bytes::new(1, 2, true).fill(&mut whole);
        let (mut bytes, mut parts) = (bytes::Bytes::new(1, 2, true), Vec::new());
        for length in (0..40).cycle() {
            let mut part = vec![0; length.min(whole.len() - parts.len())];
            bytes.fill(&mut part);
            parts.extend(part);
            assert_eq!(bytes.position(), parts.len() as u64);
            if parts.len() == whole.len() {
                break;
            }
        }
        assert_eq!(parts, whole);
        for mut other in [bytes::Bytes::new(1, 2, false), bytes::Bytes::new(1, 3, true), bytes::Bytes::new(2, 2, true)]
        {
            let mut room = vec![0; whole.len()];
            other.fill(&mut room);
            let equal = room.iter().zip(&whole).filter(|(one, two)| one == two).count();
            assert!(equal < 200, "{equal} of {} bytes are equal", whole.len());
        }
    }
}
