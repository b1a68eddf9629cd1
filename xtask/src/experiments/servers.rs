//! Servers that Debian or Go builds, unmodified on COPS and on Linux: instructions of a request.
//!
//! Over loopback the client is bench/peers in the machine, and the whole time counts: one hart has no idle time while a
//! client waits for its server. From outside, requests come over the network card from this host. Then the machine does
//! have idle time, and its own account of that is left out; bench/peers tells it, on a port of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use filesystem::cpio;

use super::{Lab, Notebook, PATIENCE, SYSTEMS, Selection, Server, System, Way, figure_of, machine, words};
use crate::bench::Line;
use crate::board::{Configuration, Network};
use crate::context::command_line;
use crate::guest::{self, Forward};
use crate::linux::{self, DebianKernel};
use crate::programs;
use crate::progress::Activity;

/// A server, as bench/peers has it.
pub(super) struct ServedProgram {
    /// Name, and name of the row.
    pub(super) name: &'static str,
    pub(super) port: u16,
    pub(super) request: &'static [u8],
    /// Share of Linux's instructions that a request may take, over loopback or where the experiment asks.
    pub(super) goal: f64,
}

pub(super) const GET: &[u8] = b"GET /file HTTP/1.1\r\nHost: cops\r\nUser-Agent: peers\r\nAccept: */*\r\n\r\n";

const PROGRAMS: [ServedProgram; 3] = [
    ServedProgram { name: "redis_get", port: 6379, request: b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", goal: 0.45 },
    ServedProgram { name: "nginx_small", port: 8080, request: GET, goal: 0.5 },
    ServedProgram { name: "go_http", port: 8081, request: GET, goal: 0.65 },
];

/// Share of Linux's instructions that a request over the network card may take.
const CARD: f64 = 0.7;

/// Connections over loopback beside one, and over the network card; as in bench/peers.
const CONNECTIONS: usize = 8;

/// Requests of each connection over the network card.
const ROUNDS: usize = 1000;

/// The port with the machine's clock; as in bench/peers.
pub(super) const CLOCK_PORT: u16 = 7100;

/// Bytes of kernel memory that a blocked thread may take.
const THREAD: (&str, f64) = ("blocked_pthread_bytes", 2560.0);

/// Times of its latency alone that a server may take beside a greedy neighbour of lower priority.
const NEIGHBOUR: (&str, f64) = ("nice_p99", 1.3);

/// Names of the figures that are measured in the machine.
fn names_inside() -> impl Iterator<Item = String> {
    let each = |program: &ServedProgram| [program.name.to_string(), format!("{}_{CONNECTIONS}", program.name)];
    PROGRAMS.iter().flat_map(each).chain([THREAD.0.to_string(), NEIGHBOUR.0.to_string()])
}

/// Longest silence within an answer.
const SILENCE: Duration = Duration::from_millis(500);

/// Both systems with the servers' files.
pub(super) struct Systems<'a> {
    lab: &'a Lab<'a>,
    linux: DebianKernel,
    cops: crate::build::Products,
}

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    let systems = Systems::prepare(lab, notebook)?;
    if names_inside().any(|id| lab.selection.has(&id)) {
        systems.inside(notebook);
    }
    for program in &PROGRAMS {
        systems.outside(notebook, program);
    }
    Ok(())
}

impl<'a> Systems<'a> {
    /// Fetches and builds the servers, and both systems with them.
    pub(super) fn prepare(lab: &'a Lab<'a>, notebook: &mut Notebook<'_>) -> Result<Systems<'a>> {
        let linux = lab.linux().context("there is no Linux to measure")?;
        let (root, files) = linux.servers_of_debian(lab.context)?;
        let mut own = files.clone();
        // COPS's own matrix server, beside programs of Linux.
        let archive = std::fs::read(&lab.products.initramfs)?;
        for entry in cpio::entries(&archive) {
            let entry = entry?;
            if entry.path == b"bin/matrix-server" {
                own.push(("usr/bin/matrix-server".into(), 0o755, entry.data.to_vec()));
            }
        }
        for package in ["redis-server", "nginx"] {
            if let Some(version) = root.version(package) {
                notebook.note(format!("{package} {version}"));
            }
        }
        Ok(Systems {
            lab,
            linux: linux.with_root(lab.context, &root, &files)?,
            cops: programs::with_root(lab.context, lab.products.clone(), &root, "bench", &own)?,
        })
    }

    /// Returns the figures that are wanted.
    pub(super) fn selection(&self) -> &Selection {
        &self.lab.selection
    }

    /// Boots a machine that measures and ends.
    pub(super) fn measure(&self, title: &str, configuration: &Configuration, last: Option<&str>) -> Result<Vec<Line>> {
        self.lab.measure(title, configuration, last)
    }

    /// Returns the boot of a system that starts bench/peers with these words.
    pub(super) fn configuration(&self, system: System, action: &[String]) -> Result<Configuration> {
        let mut configuration = match system {
            System::Linux => self.linux.configuration(self.lab.context, 1, Way::Instructions.clock(), action)?,
            System::Cops => {
                let own: Vec<_> = [String::from("here")].into_iter().chain(action.iter().cloned()).collect();
                let line = command_line(&format!("/usr/bin/{}", linux::PROGRAM), &own)?;
                self.lab.context.configuration(&self.cops, &machine(1), line)
            }
        };
        configuration.set_clock(Way::Instructions.clock());
        Ok(configuration)
    }

    /// Measures in the machine.
    fn inside(&self, notebook: &mut Notebook<'_>) {
        let measured = self.lab.selection.on_each(|system| {
            let last = (system == System::Linux).then_some(linux::DONE);
            let configuration = self.configuration(system, &words("bench servers"));
            let title = format!("servers of Debian: {}", system.name());
            let lines = configuration.and_then(|configuration| self.lab.measure(&title, &configuration, last));
            notebook.part(system.name(), lines)
        });
        let [ours, theirs] = measured.map(Option::unwrap_or_default);
        for program in &PROGRAMS {
            for (id, goal) in
                [(program.name.to_string(), Some(program.goal)), (format!("{}_{CONNECTIONS}", program.name), None)]
            {
                compare(notebook, &id, [&ours, &theirs].map(|lines| figure_of(lines, &id)), goal);
            }
        }
        let (id, goal) = THREAD;
        if let Some(linux) = figure_of(&theirs, id) {
            notebook.figure(&format!("linux_{id}"), linux, "bytes");
        }
        if let Some(cops) = figure_of(&ours, id) {
            notebook.at_most(id, cops, "bytes", goal);
        }
        let (id, goal) = NEIGHBOUR;
        let times = |lines: &[Line]| {
            Some(figure_of(lines, &format!("{id}_beside"))? / figure_of(lines, &format!("{id}_alone"))?)
        };
        if let Some(linux) = times(&theirs) {
            notebook.figure(&format!("linux_{id}"), linux, "times");
        }
        if let Some(cops) = times(&ours) {
            notebook.at_most(id, cops, "times", goal);
        }
    }

    /// Measures one server from this host.
    fn outside(&self, notebook: &mut Notebook<'_>, program: &ServedProgram) {
        let id = format!("{}_card", program.name);
        if !self.lab.selection.has(&id) {
            return;
        }
        let found = self.lab.selection.on_each(|system| {
            let measured = self.ask(system, program, CONNECTIONS, ROUNDS);
            notebook.part(&format!("{id}, {}", system.name()), measured)
        });
        compare(notebook, &id, found, Some(CARD));
    }

    /// Boots a system that serves a program on this port, and tells its clock.
    pub(super) fn serve(&self, system: System, name: &str, port: u16) -> Result<Server> {
        let mut configuration = self.configuration(system, &words(&format!("serve-program {name}")))?;
        for guest in [port, CLOCK_PORT] {
            configuration.forwards.push(Forward { host: guest::free_port()?, guest });
        }
        self.lab.serve(&format!("{name} over the card: {}", system.name()), &configuration, linux::SERVING)
    }

    /// Boots a system with so much memory, whose card has this cable, for what these words say.
    pub(super) fn serve_crowd(
        &self,
        system: System,
        action: &str,
        network: Network,
        memory: &str,
        way: Way,
    ) -> Result<Server> {
        let mut configuration = self.configuration(system, &words(action))?;
        // The addresses are fixed in any case: nothing on this cable lends one.
        configuration.clock = way.clock();
        (configuration.network, configuration.memory) = (network, memory.into());
        self.lab.serve(&format!("{action} over the card: {}", system.name()), &configuration, linux::SERVING)
    }

    /// Tells that something is measured, until it is dropped.
    pub(super) fn activity(&self, what: &str, system: System) -> Activity {
        self.lab.context.progress.start(format!("{what}: {}", system.name()))
    }

    /// Returns the instructions of a request that comes over the network card, over one of so many connections.
    pub(super) fn ask(
        &self,
        system: System,
        program: &ServedProgram,
        connections: usize,
        rounds: usize,
    ) -> Result<f64> {
        let server = self.serve(system, program.name, program.port)?;
        requests(&server, program, connections, rounds)
    }
}

/// Returns the instructions of a request over one of so many connections.
pub(super) fn requests(server: &Server, program: &ServedProgram, connections: usize, rounds: usize) -> Result<f64> {
    let mut connections =
        (0..connections).map(|_| ServerConnection::open(server, program)).collect::<Result<Vec<_>>>()?;
    ask_in_rounds(&mut connections, program, rounds.div_ceil(10))?;
    let before = clock(server)?;
    ask_in_rounds(&mut connections, program, rounds)?;
    Ok(busy(before, clock(server)?) / (rounds * connections.len()) as f64)
}

/// Returns the time between two readings of the clock in which the machine was not idle.
pub(super) fn busy(before: (f64, f64), after: (f64, f64)) -> f64 {
    (after.0 - before.0) - (after.1 - before.1)
}

/// Records the instructions of both systems, and COPS's share of Linux's if both are there.
pub(super) fn compare(notebook: &mut Notebook<'_>, id: &str, found: [Option<f64>; 2], goal: Option<f64>) {
    for (system, value) in SYSTEMS.into_iter().zip(found) {
        if let Some(value) = value {
            notebook.figure(&format!("{}_{id}", system.name().to_lowercase()), value, "instructions");
        }
    }
    let [Some(cops), Some(linux)] = found else { return };
    match goal {
        Some(goal) => notebook.at_most(id, cops / linux, "times", goal),
        None => notebook.figure(id, cops / linux, "times"),
    }
}

/// Returns the machine's time and its idle time in nanoseconds.
pub(super) fn clock(server: &Server) -> Result<(f64, f64)> {
    let mut text = String::new();
    let mut stream = TcpStream::connect_timeout(&server.address(CLOCK_PORT)?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read_to_string(&mut text)?;
    times(&text).with_context(|| format!("`{}` is no time", text.trim()))
}

pub(super) fn times(text: &str) -> Option<(f64, f64)> {
    let (now, idle) = text.trim().split_once(' ')?;
    Some((now.parse().ok()?, idle.parse().ok()?))
}

/// A connection, and the answer that it expects.
struct ServerConnection {
    stream: TcpStream,
    expected: Vec<u8>,
}

impl ServerConnection {
    /// Opens a connection and learns the answer, which ends where the server falls silent.
    fn open(server: &Server, program: &ServedProgram) -> Result<ServerConnection> {
        let mut stream = TcpStream::connect_timeout(&server.address(program.port)?, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.write_all(program.request)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (mut expected, mut part) = (Vec::new(), [0; 4096]);
        loop {
            match stream.read(&mut part) {
                Ok(0) => bail!("{} closes the connection", program.name),
                Ok(length) => expected.extend_from_slice(&part[..length]),
                Err(_) if !expected.is_empty() => break,
                Err(error) => return Err(error).context(program.name),
            }
            stream.set_read_timeout(Some(SILENCE))?;
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(ServerConnection { stream, expected })
    }

    /// Takes an answer. Its head has a date, so only the last quarter must be the same.
    fn take(&mut self) -> Result<()> {
        let mut answer = vec![0; self.expected.len()];
        self.stream.read_exact(&mut answer)?;
        let end = answer.len() - answer.len() / 4;
        if answer[end..] != self.expected[end..] {
            bail!("an answer is wrong");
        }
        Ok(())
    }
}

/// Sends a request over each connection and takes the answers, again and again.
fn ask_in_rounds(connections: &mut [ServerConnection], program: &ServedProgram, rounds: usize) -> Result<()> {
    for _ in 0..rounds {
        for connection in &mut *connections {
            connection.stream.write_all(program.request)?;
        }
        for connection in &mut *connections {
            connection.take()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_those_of_the_c_program() {
        let source = include_str!("../../../bench/peers/servers.c");
        for ServedProgram { name, port, .. } in &PROGRAMS {
            assert!(source.contains(&format!("{{ \"{name}\", {port},")), "{name}");
        }
        for (name, value) in [
            ("CLOCK_PORT", usize::from(CLOCK_PORT)),
            ("BULK_PORT", usize::from(super::super::card::BULK_PORT)),
            ("CROWD_PORT", usize::from(super::super::card::CROWD_PORT)),
            ("CONNECTIONS", CONNECTIONS),
        ] {
            assert!(source.contains(&format!("{name} = {value}")), "{name}");
        }
        let request = String::from_utf8_lossy(GET).replace("\r\n", "\\r\\n");
        assert!(source.contains(&request));
    }

    #[test]
    fn the_clock_has_two_numbers() {
        assert_eq!(times("123 45\n"), Some((123.0, 45.0)));
        assert_eq!(times("123\n"), None);
    }
}
