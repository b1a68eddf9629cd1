//! Servers over the network card, with the client outside the machine, on COPS and on Linux in the same emulator: the
//! instructions of a request, of a mebibyte each way, and of a request beside many idle connections.
//!
//! One hart; the machine's own account of its idle time is left out. The connections end at QEMU's user network, which
//! is this host's TCP: it neither loses nor delays, and its segments are those of a local network.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use anyhow::{Result, bail};

use super::crowd::Crowd;
use super::servers::{CLOCK_PORT, GET, ServedProgram, Systems, busy, clock, compare};
use super::{Lab, Notebook, PATIENCE, Server, System, Way, flood};
use crate::linux;

/// The port of the server that moves many bytes; as in bench/peers.
pub(super) const BULK_PORT: u16 = 7200;

/// The request of one multiplication of single numbers: order, number of the request, both elements.
const MATRIX: &[u8] = &[1, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0];

/// Connections over which requests are under way at the same time.
const CONNECTIONS: usize = 64;

/// Servers, and the share of Linux's instructions that a request of each may take.
const PROGRAMS: [(&str, ServedProgram); 4] = [
    ("matrix_nic", ServedProgram { name: "matrix", port: linux::FIRST_PORT, request: MATRIX, goal: 0.33 }),
    (
        "redis_nic",
        ServedProgram { name: "redis_get", port: 6379, request: b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", goal: 0.6 },
    ),
    ("nginx_nic", ServedProgram { name: "nginx_small", port: 8080, request: GET, goal: 0.6 }),
    ("go_nic", ServedProgram { name: "go_http", port: 8081, request: GET, goal: 0.75 }),
];

/// Share of Linux's instructions for a mebibyte, which is sent or received.
const BULK: f64 = 1.0;
const BULK_NAMES: [&str; 2] = ["tcp_send_1g", "tcp_receive_1g"];

/// Idle connections beside few and beside many, and the times of a request's instructions that the many may cost. A
/// process may have an eighth of the machine's memory.
const IDLE: [usize; 2] = [100, 100_000];
const COST: f64 = 1.1;
const COST_NAME: &str = "cost_100k";
const COST_MEMORY: &str = "4G";

/// The port of the server that has the idle connections; as in bench/peers.
pub(super) const CROWD_PORT: u16 = 7300;

/// Connections that a machine with 1 GiB is to hold, and how many of them are asked then.
const HELD: usize = 200_000;
const HELD_NAME: &str = "connections_1gib";
const HELD_MEMORY: &str = "1G";
const ASKED: usize = 1000;

/// Connections with requests beside those that are idle, and the length of an answer.
const BESIDE: usize = 64;
const ANSWER: usize = 12;

/// Mebibytes of a transfer before the measured one.
const WARM_UP: u64 = 4;

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    let systems = Systems::prepare(lab, notebook)?;
    let rounds = if lab.quick { 40 } else { 200 };
    for (id, program) in PROGRAMS.iter().filter(|(id, _)| lab.selection.has(id)) {
        let found = lab.selection.on_each(|system| {
            let measured = systems.ask(system, program, CONNECTIONS, rounds);
            notebook.part(&format!("{id}, {}", system.name()), measured)
        });
        compare(notebook, id, found, Some(program.goal));
    }
    let mebibytes = if lab.quick { 32 } else { 1024 };
    if BULK_NAMES.iter().any(|id| lab.selection.has(id)) {
        let found = lab.selection.on_each(|system| {
            notebook.part(&format!("many bytes, {}", system.name()), bulk(&systems, system, mebibytes))
        });
        for (at, id) in BULK_NAMES.into_iter().enumerate() {
            compare(notebook, id, found.map(|each| each.map(|both| both[at])), Some(BULK));
        }
    }
    if lab.selection.has(COST_NAME) {
        lab.selection.on_each(|system| idle(notebook, &systems, system, rounds));
    }
    if lab.selection.has(HELD_NAME) {
        lab.selection.on_each(|system| held(notebook, &systems, system));
    }
    if lab.selection.has(flood::FLOOD.0) {
        flood::measure(&systems, notebook);
    }
    Ok(())
}

/// Returns the instructions for a mebibyte that the system sends, and for one that it receives.
fn bulk(systems: &Systems<'_>, system: System, mebibytes: u64) -> Result<[f64; 2]> {
    let server = systems.serve(system, "bulk", BULK_PORT)?;
    let mut each = [0.0; 2];
    for (direction, place) in [b's', b'r'].into_iter().zip(&mut each) {
        transfer(&server, direction, WARM_UP << 20)?;
        let before = clock(&server)?;
        transfer(&server, direction, mebibytes << 20)?;
        *place = busy(before, clock(&server)?) / mebibytes as f64;
    }
    Ok(each)
}

/// Has the machine send or receive so many bytes.
fn transfer(server: &Server, direction: u8, count: u64) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&server.address(BULK_PORT)?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&[&[direction][..], &count.to_le_bytes()].concat())?;
    let (mut bytes, mut left) = (vec![0; 64 << 10], count);
    while left > 0 {
        let part = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let moved = if direction == b'r' { stream.write(&bytes[..part])? } else { stream.read(&mut bytes[..part])? };
        if moved == 0 {
            bail!("the connection ends {left} bytes too early");
        }
        left -= moved as u64;
    }
    if direction == b'r' {
        stream.shutdown(Shutdown::Write)?;
        // All bytes were received.
        stream.read_exact(&mut bytes[..1])?;
    }
    Ok(())
}

/// Measures a request of the matrix server beside few and beside many idle connections.
fn idle(notebook: &mut Notebook<'_>, systems: &Systems<'_>, system: System, rounds: usize) -> Option<()> {
    let (_, program) = &PROGRAMS[0];
    let measured = beside_idle(systems, system, program, rounds);
    let [few, many] = notebook.part(&format!("idle connections, {}", system.name()), measured)?;
    let name = system.name().to_lowercase();
    for (count, found) in IDLE.into_iter().zip([few, many]) {
        notebook.figure(&format!("{name}_request_beside_{count}"), found, "instructions");
    }
    match system {
        System::Cops => notebook.at_most(COST_NAME, many / few, "times", COST),
        System::Linux => notebook.figure(&format!("linux_{COST_NAME}"), many / few, "times"),
    }
    Some(())
}

fn beside_idle(systems: &Systems<'_>, system: System, program: &ServedProgram, rounds: usize) -> Result<[f64; 2]> {
    let (mut crowd, network) = Crowd::new()?;
    let _server = systems.serve_crowd(system, "serve-program crowded", network, COST_MEMORY, Way::Instructions)?;
    let activity = systems.activity("idle connections", system);
    let asking = crowd.connect(program.port, BESIDE, None)?;
    let mut found = [0.0; 2];
    let mut idle = 0;
    for (count, place) in IDLE.into_iter().zip(&mut found) {
        // Each is the server's when it has answered.
        let more = crowd.connect(CROWD_PORT, count - idle, Some(&activity))?;
        idle += more.len();
        if idle < count {
            bail!("the server takes {idle} of {count} connections");
        }
        for part in more.chunks(BESIDE) {
            crowd.ask(part, program.request, ANSWER)?;
        }
        (0..rounds.div_ceil(10)).try_for_each(|_| crowd.ask(&asking, program.request, ANSWER).map(drop))?;
        let before = crowd.clock(CLOCK_PORT)?;
        (0..rounds).try_for_each(|_| crowd.ask(&asking, program.request, ANSWER).map(drop))?;
        *place = busy(before, crowd.clock(CLOCK_PORT)?) / (rounds * asking.len()) as f64;
    }
    Ok(found)
}

/// Measures how many idle connections a machine holds.
fn held(notebook: &mut Notebook<'_>, systems: &Systems<'_>, system: System) -> Option<()> {
    let measured = hold(systems, system);
    let count = notebook.part(&format!("held connections, {}", system.name()), measured)? as f64;
    match system {
        System::Cops => notebook.at_least(HELD_NAME, count, "connections", HELD as f64),
        System::Linux => notebook.figure(&format!("linux_{HELD_NAME}"), count, "connections"),
    }
    Some(())
}

/// Has the machine hold connections, and asks some of them.
fn hold(systems: &Systems<'_>, system: System) -> Result<usize> {
    let (mut crowd, network) = Crowd::new()?;
    let _server = systems.serve_crowd(system, "bench hold", network, HELD_MEMORY, Way::Wall)?;
    let activity = systems.activity("held connections", system);
    let members = crowd.connect(linux::FIRST_PORT, HELD, Some(&activity))?;
    let asked: Vec<_> = members.iter().copied().step_by((members.len() / ASKED).max(1)).collect();
    for part in asked.chunks(BESIDE) {
        crowd.ask(part, MATRIX, ANSWER)?;
    }
    Ok(members.len())
}
