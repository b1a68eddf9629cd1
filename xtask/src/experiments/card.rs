//! Servers over the network card, with the client outside the machine, on COPS and on Linux in the same emulator: the
//! instructions of a request, of a mebibyte each way, and of a request beside many idle connections.
//!
//! One hart; the machine's own account of its idle time is left out. The connections end at QEMU's user network, which
//! is this host's TCP: it neither loses nor delays, and its segments are those of a local network.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use anyhow::{Result, bail};

use super::servers::{GET, ServedProgram, Systems, busy, clock, compare, requests};
use super::{Lab, Notebook, PATIENCE, Server, System, flood};
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

/// Idle connections beside few and beside many, and the times of a request's instructions that the many may cost.
const IDLE: [usize; 2] = [100, 10_000];
const COST: f64 = 1.1;
const COST_NAME: &str = "cost_10k";

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
    let server = systems.serve(system, program.name, program.port)?;
    let (mut idle, mut found) = (Vec::new(), [0.0; 2]);
    for (count, place) in IDLE.into_iter().zip(&mut found) {
        while idle.len() < count {
            let mut stream = TcpStream::connect_timeout(&server.address(program.port)?, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            // The server has it when it has answered.
            stream.write_all(program.request)?;
            stream.read_exact(&mut [0; 12])?;
            idle.push(stream);
        }
        *place = requests(&server, program, 8, rounds)?;
    }
    Ok(found)
}
