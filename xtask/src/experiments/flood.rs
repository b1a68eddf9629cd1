//! A server beside a flood of packets from outside: how many times its latency alone 99 of 100 requests keep within, on
//! COPS and on Linux.
//!
//! The client is bench/peers in the machine, whose clock counts instructions, so that the host's time is in no figure
//! but for the rate of the flood. The flood is datagrams from ever other addresses to a port without a socket. It comes
//! through QEMU's socket of frames rather than through its user network, which would hold back thousands of them.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::servers::Systems;
use super::{Notebook, SYSTEMS, System, figure_of, words};
use crate::board::{HARDWARE, Network};
use crate::linux;

/// The times of its p99 alone that a server may take beside the flood.
pub(super) const FLOOD: (&str, f64) = ("flood_p99", 2.0);

/// Frames in a row, and the time between two rows.
const ROW: u32 = 32;
const PAUSE: Duration = Duration::from_millis(1);

/// Fewest frames for each millisecond of the machine's time: fewer were no flood.
const LEAST: f64 = 10.0;

const MACHINE: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// No service is at it.
const PORT: u16 = 9;

const ETHERNET_HEADER: usize = 14;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const HEADERS: usize = ETHERNET_HEADER + IP_HEADER + UDP_HEADER;
/// The least frame without its checksum.
const FRAME: usize = 60;

/// Measures both systems with and without the flood.
pub(super) fn measure(systems: &Systems<'_>, notebook: &mut Notebook<'_>) {
    let (id, goal) = FLOOD;
    let selection = systems.selection().clone();
    let found = selection.on_each(|system| {
        let measured = times(systems, notebook, system);
        notebook.part(&format!("{id}, {}", system.name()), measured)
    });
    for (system, times) in SYSTEMS.into_iter().zip(found) {
        match (system, times) {
            (System::Cops, Some(times)) => notebook.at_most(id, times, "times", goal),
            (System::Linux, Some(times)) => notebook.figure(&format!("linux_{id}"), times, "times"),
            (_, None) => {}
        }
    }
}

/// Returns how many times its p99 alone a server takes beside the flood.
fn times(systems: &Systems<'_>, notebook: &mut Notebook<'_>, system: System) -> Result<f64> {
    let name = system.name();
    let mut latencies = [0.0; 2];
    for (is_flooded, place) in [false, true].into_iter().zip(&mut latencies) {
        let ours = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("this host has no free UDP port")?;
        let card = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("this host has no free UDP port")?.local_addr()?;
        ours.connect(card)?;
        let network = Network::Frames { card: card.port(), other: ours.local_addr()?.port(), hardware: HARDWARE };
        let mut configuration = systems.configuration(system, &words("bench flood"))?;
        configuration.network = network;
        let flood = is_flooded.then(|| Flood::start(ours)).transpose()?;
        let last = (system == System::Linux).then_some(linux::DONE);
        let title = format!("a server {} a flood: {name}", if is_flooded { "beside" } else { "without" });
        let lines = systems.measure(&title, &configuration, last)?;
        let figure = |id: &str| figure_of(&lines, id).with_context(|| format!("the machine does not tell {id}"));
        *place = figure("flood_p99")?;
        if let Some(flood) = flood {
            let rate = flood.end() as f64 / (figure("flood_uptime")? / 1e6);
            if rate < LEAST {
                bail!("{rate:.1} frames for each millisecond of the machine's time are no flood");
            }
            notebook.note(format!("{name}'s flood was {rate:.0} frames for each millisecond of the machine's time"));
        }
    }
    let [alone, beside] = latencies;
    for (id, value) in [("alone", alone), ("beside", beside)] {
        notebook.figure(&format!("{}_{}_{id}", name.to_lowercase(), FLOOD.0), value, "ns");
    }
    Ok(beside / alone)
}

/// A flood under way. Dropping it ends it.
struct Flood {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Flood {
    /// Floods the card at the other end of a socket.
    fn start(socket: UdpSocket) -> Result<Flood> {
        let ends = Arc::new(AtomicBool::new(false));
        let until = ends.clone();
        let send = move || {
            let mut number = 0;
            while !until.load(Ordering::Acquire) {
                for _ in 0..ROW {
                    // A card without room loses frames.
                    let _ = socket.send(&frame(number));
                    number = number.wrapping_add(1);
                }
                thread::sleep(PAUSE);
            }
            u64::from(number)
        };
        let thread = thread::Builder::new().name("flood".into()).spawn(send)?;
        Ok(Flood { ends, thread: Some(thread) })
    }

    /// Ends it, and returns the number of frames.
    fn end(mut self) -> u64 {
        self.join()
    }

    fn join(&mut self) -> u64 {
        self.ends.store(true, Ordering::Release);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.join();
    }
}

/// Builds a datagram from an address of a stranger. It has no checksum of its own, which IPv4 allows.
fn frame(number: u32) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..6].copy_from_slice(&[0x52, 0x54, 0, 0x12, 0x34, HARDWARE]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((FRAME - ETHERNET_HEADER) as u16).to_be_bytes());
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&(0x0b00_0001 + number.wrapping_mul(7919) % 0x0100_0000).to_be_bytes());
    frame[30..34].copy_from_slice(&MACHINE.octets());
    frame[34..36].copy_from_slice(&(1024 + (number % 60_000) as u16).to_be_bytes());
    frame[36..38].copy_from_slice(&PORT.to_be_bytes());
    frame[38..40].copy_from_slice(&((FRAME - ETHERNET_HEADER - IP_HEADER) as u16).to_be_bytes());
    frame[HEADERS..HEADERS + 4].copy_from_slice(&number.to_be_bytes());
    let checksum = !sum(&frame[ETHERNET_HEADER..ETHERNET_HEADER + IP_HEADER]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Adds words of 16 bits, with carries around.
fn sum(bytes: &[u8]) -> u16 {
    let sum = bytes.chunks(2).fold(0, |sum, pair| sum + u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn frames_are_valid_and_come_from_many() {
        let mut senders = BTreeSet::new();
        for number in (0..5_000_000).step_by(997) {
            let frame = frame(number);
            assert_eq!(sum(&frame[14..34]), 0xffff, "the header's checksum is right");
            assert_eq!((frame[16..18].to_vec(), frame[38..40].to_vec()), (vec![0, 46], vec![0, 26]));
            senders.insert(frame[26..30].to_vec());
        }
        assert!(senders.len() > 5000);
    }

    #[test]
    fn a_flood_comes_until_its_end() -> Result<()> {
        let (ours, card) = (UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
        ours.connect(card.local_addr()?)?;
        let flood = Flood::start(ours)?;
        let mut room = [0; 100];
        for number in 0..3 * ROW {
            assert_eq!(card.recv(&mut room)?, FRAME);
            assert_eq!(room[..FRAME], frame(number));
        }
        assert!(flood.end() >= u64::from(3 * ROW));
        Ok(())
    }

    #[test]
    fn the_c_program_tells_what_is_asked() {
        let source = include_str!("../../../bench/peers/servers.c");
        for figure in ["flood_p99", "flood_uptime"] {
            assert!(source.contains(&format!("figure(\"{figure}\"")), "{figure}");
        }
    }
}
