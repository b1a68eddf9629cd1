//! Echoes its input over TCP: the smallest possible server.
#![no_std]
#![no_main]

extern crate alloc;

use core::net::{Ipv4Addr, SocketAddrV4};

use cops::net::{TcpListener, TcpStream};
use cops::{Errno, println, spawn};

const PORT: u16 = 7001;

async fn echo(stream: TcpStream) -> Result<(), Errno> {
    stream.send_small_writes_at_once()?;
    let mut bytes = alloc::vec![0; 2048];
    loop {
        let (count, mut received) = stream.read(bytes).await;
        match count? {
            0 => return Ok(()),
            count => {
                received.truncate(count);
                let (written, mut sent) = stream.write_all(received).await;
                written?;
                sent.resize(2048, 0);
                bytes = sent;
            }
        }
    }
}

#[cops::main]
async fn main() -> Result<i32, Errno> {
    if let Some(argument) = cops::arguments().nth(1) {
        println!("usage: echo-server, which echoes its input over TCP, on port {PORT}");
        return Ok(if argument == c"--help" { 0 } else { 2 });
    }
    let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT);
    let listener = TcpListener::bind(address)?;
    println!("echo-server: listening on {address}");
    loop {
        let (stream, _) = listener.accept().await?;
        spawn(async move {
            // A failed connection concerns its peer only.
            let _ = echo(stream).await;
        })
        .detach();
    }
}
