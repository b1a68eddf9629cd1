//! The matrix server with tokio: a task for each connection on a worker for each hart, the idiomatic way.

#![forbid(unsafe_code)]

use std::io;
use std::net::Ipv4Addr;

use matrix::{Decoded, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn main() -> io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse::<u16>().ok());
    let Some(port) = port else {
        eprintln!("usage: tokio-server PORT");
        std::process::exit(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(async move {
                // A connection that fails ends, and nothing else does.
                let _ = serve(stream).await;
            });
        }
    })
}

/// Answers the requests of one connection until it ends or makes no sense.
async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 2048];
    let (mut have, mut answer) = (0, Vec::new());
    loop {
        let needed = match Request::decode(&buffer[..have]) {
            Ok(Decoded::Complete(request, used)) => {
                answer.resize(request.order.answer_bytes(), 0);
                matrix::answer(&request, &mut answer);
                stream.write_all(&answer).await?;
                buffer.copy_within(used..have, 0);
                have -= used;
                continue;
            }
            Ok(Decoded::NeedBytes(needed)) => needed,
            Err(malformed) => return Err(io::Error::new(io::ErrorKind::InvalidData, malformed)),
        };
        if buffer.len() < needed {
            buffer.resize(needed, 0);
        }
        match stream.read(&mut buffer[have..]).await? {
            0 => return Ok(()),
            count => have += count,
        }
    }
}
