//! The matrix server with its client in the same machine: the cost of a request for all of them together.

use abi_unix::Counter;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};

use cops::process::{Child, Command};
use cops::time::Duration;
use matrix::Order;
use matrix_client::{Load, Outcome as Answers};

use crate::{Outcome, attempt, figure, now, series};

/// Connections at once.
const CONNECTIONS: [usize; 6] = [1, 4, 16, 64, 256, 1024];
/// Least number of measured requests at each count.
const REQUESTS: usize = 8192;

/// A server in a process of its own.
pub struct Server {
    child: Child,
    pub address: SocketAddrV4,
}

impl Server {
    /// Starts the server and waits until it listens.
    pub async fn start() -> Result<Server, String> {
        let (reader, writer) = attempt!(cops::io::pipe());
        let child = attempt!(
            Command::new("/bin/matrix-server")
                .argument("--backlog")
                .argument("1024")
                .descriptor(1, writer.into_descriptor())
                .spawn()
        );
        let (result, line) = reader.read(alloc::vec![0; 200]).await;
        let length = attempt!(result);
        if !line[..length].starts_with(b"matrix-server: listening") {
            return Err("the server does not listen".into());
        }
        Ok(Server { child, address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7000) })
    }

    /// Ends the server.
    pub async fn stop(self) -> Outcome {
        attempt!(self.child.kill());
        attempt!(self.child.wait().await);
        Ok(())
    }
}

/// Describes a closed loop of 1x1 requests.
pub fn load(server: &Server, connections: usize, requests: usize) -> Result<Load, String> {
    Ok(Load {
        server: server.address,
        connections,
        order: attempt!(Order::new(1)),
        requests: requests as u32,
        period: Duration::ZERO,
    })
}

pub async fn measure() -> Outcome {
    let mut points = Vec::new();
    let (mut wrong, mut lost) = (0, 0);
    for count in CONNECTIONS {
        // A new one each time, so that no count profits from the server's earlier work.
        let server = Server::start().await?;
        let requests = (REQUESTS / count).max(8);
        let connections = attempt!(matrix_client::connect(&load(&server, count, 0)?).await);
        // Warm-up: buffers grow, and pages are mapped.
        let (warm, connections) = matrix_client::run(load(&server, count, 4)?, connections).await;
        let start = now();
        let (answers, connections) = matrix_client::run(load(&server, count, requests)?, connections).await;
        let cost = now() - start;
        for Answers { wrong: one, lost: other, .. } in [warm, answers] {
            wrong += one;
            lost += other;
        }
        points.push((count as f64, cost as f64 / (count * requests) as f64));
        drop(connections);
        server.stop().await?;
    }
    let at =
        |connections: usize| points.iter().find(|point| point.0 as usize == connections).map_or(0.0, |point| point.1);
    figure("request", at(64), "instructions");
    figure("scaling", at(1024) / at(16), "times");
    figure("wrong", wrong as f64, "answers");
    figure("lost", lost as f64, "answers");
    series("request", "instructions", "connections", &points);
    Ok(())
}

/// Measures from the machine's reset, firmware included, to the first answer.
pub async fn measure_boot() -> Outcome {
    let server = Server::start().await?;
    let listening = attempt!(cops::system::system::counter(Counter::UptimeNs));
    let connections = attempt!(matrix_client::connect(&load(&server, 1, 0)?).await);
    let (answers, _) = matrix_client::run(load(&server, 1, 1)?, connections).await;
    let answered = attempt!(cops::system::system::counter(Counter::UptimeNs));
    if answers.right != 1 {
        return Err(alloc::format!("the first answer: {answers:?}"));
    }
    figure("listening", listening as f64 / 1e9, "seconds");
    figure("first-answer", answered as f64 / 1e9, "seconds");
    server.stop().await
}
