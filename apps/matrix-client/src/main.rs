//! Sends matrices to a server in the same machine and checks every answer.
#![no_std]
#![no_main]

use core::net::{Ipv4Addr, SocketAddrV4};

use cops::time::{Duration, Instant};
use cops::{Errno, eprintln, println};
use matrix::Order;
use matrix_client::Load;

const USAGE: &str = "\
usage: matrix-client [OPTION]...
  --port N          port of the server on this machine (7000)
  --connections N   connections at once (1)
  --order N         rows and columns of the matrices, 1 to 64 (15)
  --requests N      requests of each connection (50)
  --period-ms N     from one request of a connection to its next, 0 for at once (100)";

fn parse() -> Option<Load> {
    let mut load = Load {
        server: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7000),
        connections: 1,
        order: Order::new(15).ok()?,
        requests: 50,
        period: Duration::from_millis(100),
    };
    let mut arguments = cops::arguments().skip(1);
    while let Some(option) = arguments.next() {
        let number: u32 = arguments.next()?.to_str().ok()?.parse().ok()?;
        match option.to_bytes() {
            b"--port" => load.server.set_port(u16::try_from(number).ok()?),
            b"--connections" => load.connections = number as usize,
            b"--order" => load.order = Order::new(number).ok()?,
            b"--requests" => load.requests = number,
            b"--period-ms" => load.period = Duration::from_millis(number.into()),
            _ => return None,
        }
    }
    Some(load)
}

#[cops::main]
async fn main() -> Result<i32, Errno> {
    let Some(load) = parse() else {
        eprintln!("{USAGE}");
        return Ok(2);
    };
    let connections = match matrix_client::connect(&load).await {
        Ok(connections) => connections,
        Err(error) => {
            eprintln!("matrix-client: cannot connect to {}: {error}", load.server);
            return Ok(1);
        }
    };
    let start = Instant::now();
    let (outcome, _connections) = matrix_client::run(load, connections).await;
    let elapsed_us = start.elapsed().as_micros().max(1) as u64;
    let answers = outcome.right + outcome.wrong;
    println!(
        "matrix-client: {} connection{}, {answers} answers in {}.{:02} s ({} a second), mean {} us, longest {} us, {} wrong, {} lost",
        load.connections,
        if load.connections == 1 { "" } else { "s" },
        elapsed_us / 1_000_000,
        elapsed_us / 10_000 % 100,
        answers * 1_000_000 / elapsed_us,
        outcome.latency_ns / 1000 / answers.max(1),
        outcome.longest_ns / 1000,
        outcome.wrong,
        outcome.lost,
    );
    Ok(i32::from(outcome.wrong + outcome.lost > 0))
}
