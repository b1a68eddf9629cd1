//! The network as a program: echo and matrix server on the microkernel, through its network server, beside the Unix
//! kernel and Linux.
//!
//! The servers are equivalent and have the same clients on the host. They differ in the place of the network: on the
//! microkernel every byte goes through another program, by asynchronous IPC: this measures its cost.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use load::Pace;

use super::contest::{Contest, median};
use super::{Lab, Notebook, PATIENCE, Way, harts, matrix, words};
use crate::linux;

/// The echo servers' port, and the bytes of a message.
pub(super) const ECHO_PORT: u16 = 7001;
const MESSAGE: usize = 64;

/// The server of Linux for the comparison.
const LINUX: &str = "epoll-each";

const MICRO: &str = "COPS microkernel";
const UNIX: &str = "COPS kcuc";

/// Measures all of them.
pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    if !lab.ways().any(|way| way == Way::Wall) {
        bail!("this experiment has a client outside the machine: it is measured by the wall clock only");
    }
    let harts = harts();
    let (mut matrices, mut echoes) = (Contest::default(), Contest::default());
    for (contest, port, what) in [(&mut matrices, linux::FIRST_PORT, "matrix"), (&mut echoes, ECHO_PORT, "echo")] {
        let booted = lab.serve_microkernel(&format!("the network as a program: microkernel, {what}"), harts);
        if let Some(server) = notebook.part(MICRO, booted) {
            contest.add(server, &[(port, MICRO.to_string())]);
        }
    }
    let words_of_server = matrix::server_words("kcuc", harts);
    let booted = lab.serve_cops("the network as a program: Unix kernel", &words_of_server, harts);
    if let Some(server) = notebook.part(UNIX, booted) {
        matrices.add(server, &[(linux::FIRST_PORT, UNIX.to_string())]);
    }
    let booted =
        lab.serve_program("the network as a program: Unix kernel, echo", "echo-server", &words(""), ECHO_PORT, harts);
    if let Some(server) = notebook.part(&format!("{UNIX}, echo"), booted) {
        echoes.add(server, &[(ECHO_PORT, UNIX.to_string())]);
    }
    if lab.linux().is_some() {
        for (contest, name) in [(&mut matrices, LINUX), (&mut echoes, linux::ECHO)] {
            let booted = lab.serve_linux(&format!("the network as a program: Linux, {name}"), harts);
            if let Some(server) = notebook.part("Linux", booted) {
                let port = linux::port(name).context("a server without a port")?;
                contest.add(server, &[(port, format!("Linux {LINUX}"))]);
            }
        }
    }
    matrix::measure(lab, notebook, &mut matrices, 15, &[(Pace::ClosedLoop, counts(lab))])?;
    // Their machines end before the others are measured.
    drop(matrices);
    echo(lab, notebook, &mut echoes);
    for (name, rival) in [("unix", UNIX.to_string()), ("linux", format!("Linux {LINUX}"))] {
        for connections in counts(lab) {
            let x = connections as f64;
            for (id, plot) in [("matrix", matrix::plot_name(15, Pace::ClosedLoop, 0)), ("echo", echo_plot(0))] {
                if let (Some(ours), Some(theirs)) = (notebook.value(&plot, MICRO, x), notebook.value(&plot, &rival, x))
                {
                    notebook.figure(&format!("micro_vs_{name}_{id}_{connections}"), ours / theirs, "times");
                }
            }
        }
    }
    Ok(())
}

fn counts(lab: &Lab<'_>) -> Vec<usize> {
    if lab.quick { vec![1, 16] } else { vec![1, 4, 16, 64] }
}

fn echo_plot(kind: usize) -> String {
    format!("{}, echo of {MESSAGE} bytes (wall)", ["throughput", "mean latency"][kind])
}

fn echo(lab: &Lab<'_>, notebook: &mut Notebook<'_>, contest: &mut Contest) {
    let duration = lab.duration_of_round();
    let mut curves: BTreeMap<String, [Vec<(f64, f64)>; 2]> = BTreeMap::new();
    for connections in counts(lab) {
        let what = format!("{}: {connections} connections", echo_plot(0));
        let found = contest.in_turns(lab, notebook, &what, |machine, port| {
            Ok(ask(machine.address(port)?, connections, duration)? as f64)
        });
        for (id, rounds) in found.into_iter().filter(|(_, rounds)| !rounds.is_empty()) {
            let (x, messages) = (connections as f64, median(rounds));
            let curves = curves.entry(id).or_default();
            curves[0].push((x, messages / duration.as_secs_f64()));
            curves[1].push((x, duration.as_micros() as f64 * x / messages));
        }
    }
    for (id, curves) in curves {
        for (kind, (points, unit)) in curves.into_iter().zip(["messages/s", "us"]).enumerate() {
            notebook.series(&echo_plot(kind), &id, unit, "connections", points);
        }
    }
}

/// Sends messages over several connections, each the next when the last has come back; returns the number that came
/// back.
fn ask(address: SocketAddr, connections: usize, duration: Duration) -> Result<u64> {
    let stop = AtomicBool::new(false);
    // All connections have reached the server before the measurement begins.
    let streams: Vec<_> = (0..connections).map(|_| connect(address)).collect::<Result<_>>()?;
    let answered = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .into_iter()
            .enumerate()
            .map(|(number, stream)| {
                scope.spawn({
                    let stop = &stop;
                    move || talk(stream, number as u8, stop)
                })
            })
            .collect();
        let end = Instant::now() + duration;
        thread::sleep(end.saturating_duration_since(Instant::now()));
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
            .sum::<Result<u64>>()
    })?;
    if answered == 0 {
        bail!("nothing came back");
    }
    Ok(answered)
}

/// Opens a connection over which one message has come back.
fn connect(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[0; MESSAGE])?;
    stream.read_exact(&mut [0; MESSAGE])?;
    Ok(stream)
}

fn talk(mut stream: TcpStream, mark: u8, stop: &AtomicBool) -> Result<u64> {
    let (mut sent, mut received) = ([mark; MESSAGE], [0; MESSAGE]);
    let mut count = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        sent[..8].copy_from_slice(&count.to_le_bytes());
        stream.write_all(&sent)?;
        stream.read_exact(&mut received)?;
        if received != sent {
            bail!("something else came back than was sent");
        }
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Runs a server for one connection that changes the bytes of the message with this number.
    fn serve(wrong: u64) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; MESSAGE];
            for number in 0.. {
                if stream.read_exact(&mut bytes).is_err() {
                    return;
                }
                bytes[MESSAGE - 1] ^= u8::from(number == wrong);
                stream.write_all(&bytes).unwrap();
            }
        });
        address
    }

    #[test]
    fn echoes_are_counted_and_checked() {
        assert!(ask(serve(u64::MAX), 1, Duration::from_millis(50)).unwrap() > 0);
        let error = ask(serve(3), 1, Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("something else came back"), "{error}");
    }
}
