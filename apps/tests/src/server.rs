//! The matrix server: right answers, and bad requests that affect only their own connection.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};

use cops::Errno;
use cops::net::{Shutdown, TcpStream};
use cops::process::{Child, Command};
use cops::time::Duration;
use matrix::{Answer, Decoded, Order};

use crate::harness::{LIMIT, Outcome};
use crate::{check, check_eq, must};

/// A server that ends with the test.
pub struct Server {
    child: Child,
    address: SocketAddrV4,
}

impl Server {
    /// Starts a server with these options beside the port.
    pub async fn start(port: u16, options: &[&str]) -> Result<Server, String> {
        let (reader, writer) = must!(cops::io::pipe());
        let mut command = Command::new("/bin/matrix-server")
            .argument("--port")
            .argument(&alloc::format!("{port}"))
            .descriptor(1, writer.into_descriptor());
        for option in options {
            command = command.argument(option);
        }
        let child = must!(command.spawn());
        let (result, line) = reader.read(alloc::vec![0; 200]).await;
        let expected = alloc::format!("matrix-server: listening on 0.0.0.0:{port}\n");
        check_eq!(&line[..must!(result)], expected.as_bytes());
        Ok(Server { child, address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port) })
    }

    /// Connects to the server.
    pub async fn connect(&self) -> Result<TcpStream, String> {
        Ok(must!(TcpStream::connect(self.address).await))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// Returns a request and its right answer.
fn exchange(order: usize, sequence: u32) -> Result<(Vec<u8>, Vec<u8>), String> {
    let order = must!(Order::new(order as u32));
    let left: Vec<u32> = (0..order.elements() as u32).map(|index| index.wrapping_mul(sequence | 1)).collect();
    let right: Vec<u32> = left.iter().rev().map(|element| element ^ 0x5555).collect();
    let mut product = alloc::vec![0; order.elements()];
    matrix::multiply(order, &left, &right, &mut product);
    let mut request = alloc::vec![0; order.request_bytes()];
    matrix::encode_request(order, sequence, &left, &right, &mut request);
    let mut answer = alloc::vec![0; order.answer_bytes()];
    matrix::encode_answer(order, sequence, &product, &mut answer);
    Ok((request, answer))
}

/// Sends a request and compares the answer.
pub async fn ask(stream: &TcpStream, order: usize, sequence: u32) -> Outcome {
    let (request, expected) = exchange(order, sequence)?;
    must!(stream.write_all(request).await.0);
    let (result, answer) = must!(cops::timeout(LIMIT, stream.read_exact(alloc::vec![0; expected.len()])).await);
    must!(result);
    check!(matches!(Answer::decode(&answer), Ok(Decoded::Complete(_, _))));
    check!(answer == expected, "a wrong answer for order {order}");
    Ok(())
}

pub async fn answers_every_order() -> Outcome {
    let server = Server::start(7101, &[]).await?;
    let stream = server.connect().await?;
    for order in 1..=64 {
        ask(&stream, order, order as u32 * 3).await?;
    }
    // Several requests at once, cut anywhere, are answered in order.
    let mut requests = Vec::new();
    let mut answers = Vec::new();
    for sequence in 0..20 {
        let (request, answer) = exchange(1 + sequence % 7, sequence as u32)?;
        requests.extend(request);
        answers.extend(answer);
    }
    for piece in requests.chunks(37) {
        must!(stream.write_all(piece.to_vec()).await.0);
    }
    let (result, received) = stream.read_exact(alloc::vec![0; answers.len()]).await;
    must!(result);
    check!(received == answers);
    // All requests are answered, also after the end of the client's direction.
    let (request, answer) = exchange(3, 99)?;
    must!(stream.write_all(request).await.0);
    must!(stream.shutdown(Shutdown::Write));
    let (result, received) = stream.read_exact(alloc::vec![0; answer.len()]).await;
    must!(result);
    check!(received == answer);
    check_eq!(stream.read(alloc::vec![0; 1]).await.0, Ok(0));
    Ok(())
}

pub async fn bad_requests_cost_their_own_connection() -> Outcome {
    let server = Server::start(7102, &[]).await?;
    let good = server.connect().await?;
    ask(&good, 15, 1).await?;
    let header = |order: u32| order.to_le_bytes().to_vec();
    let (whole, _) = exchange(5, 1)?;
    let garbage: Vec<u8> = (0..4000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8 | 0x80).collect();
    for bad in [header(0), header(65), header(u32::MAX), header(1 << 31), b"GET / HTTP/1.1\r\n\r\n".to_vec(), garbage] {
        let stream = server.connect().await?;
        ask(&stream, 2, 7).await?;
        // The server may close before all bytes have been sent.
        let _ = stream.write_all(bad).await;
        let end = must!(cops::timeout(LIMIT, stream.read(alloc::vec![0; 100])).await).0;
        check!(end == Ok(0) || end.is_err(), "{end:?}");
        ask(&good, 15, 2).await?;
    }
    // Cut at any length.
    for length in [1, 3, 4, 7, 8, 9, 100, whole.len() - 1] {
        let stream = server.connect().await?;
        must!(stream.write_all(whole[..length].to_vec()).await.0);
        drop(stream);
    }
    ask(&good, 15, 3).await?;
    check!(cops::system::process::kill(server.child.number(), 0).is_ok());
    Ok(())
}

pub async fn peers_that_do_not_read_are_not_read_from() -> Outcome {
    let server = Server::start(7103, &[]).await?;
    let greedy = server.connect().await?;
    let (request, _) = exchange(64, 1)?;
    // More than the queues and buffers on the way hold: the server must stop taking requests.
    let sending = async {
        for _ in 0..200 {
            must!(greedy.write_all(request.clone()).await.0);
        }
        Ok::<(), String>(())
    };
    check!(
        cops::timeout(Duration::from_secs(3), sending).await.is_err(),
        "200 requests of order 64 fit into the server"
    );
    let good = server.connect().await?;
    ask(&good, 15, 1).await?;
    Ok(())
}

/// Calls that still wait when a process ends release their objects before its end is visible.
pub async fn another_server_can_take_its_place() -> Outcome {
    for _ in 0..3 {
        let server = Server::start(7105, &["--backlog", "128"]).await?;
        let mut streams = Vec::new();
        for number in 0..100 {
            let stream = server.connect().await?;
            ask(&stream, 1, number).await?;
            streams.push(stream);
        }
        must!(server.child.kill());
        must!(server.child.wait().await);
        for stream in &streams {
            check!(matches!(stream.read(alloc::vec![0; 1]).await.0, Ok(0) | Err(Errno::ECONNRESET)));
        }
    }
    Ok(())
}

pub async fn connections_come_and_go() -> Outcome {
    let server = Server::start(7104, &["--workers", "2"]).await?;
    let connections = crate::harness::counter(abi_unix::Counter::Connections)?;
    for round in 0..30u32 {
        let mut streams = Vec::new();
        for _ in 0..16 {
            streams.push(server.connect().await?);
        }
        for (number, stream) in streams.iter().enumerate() {
            ask(stream, 1 + number % 5, round).await?;
        }
    }
    // Closed connections are gone, except for the states that TCP keeps for a while.
    let after = crate::harness::counter(abi_unix::Counter::Connections)?;
    check!(after < connections + 30 * 16 * 2, "{after} connections, {connections} before");
    Ok(())
}
