//! A server under attack by strangers from outside. It answers each word with the number of free frames: an answer
//! shows a client that it is served, and the number shows the cost of the attacks.

use alloc::vec;
use core::net::{Ipv4Addr, SocketAddrV4};

use abi_unix::Counter;
use cops::net::{TcpListener, TcpStream};
use cops::{println, spawn, system};

use crate::{Outcome, attempt};

const PORT: u16 = 7001;

/// Answers until the other side ends; returns whether the machine is to end.
async fn serve(stream: TcpStream) -> bool {
    loop {
        let (count, word) = stream.read(vec![0; 8]).await;
        match count {
            Ok(8) if word == [0; 8] => return true,
            Ok(1..) => {}
            Ok(0) | Err(_) => return false,
        }
        let free = system::system::counter(Counter::FramesFree).unwrap_or(0);
        if stream.write_all(free.to_le_bytes().to_vec()).await.0.is_err() {
            return false;
        }
    }
}

pub async fn measure() -> Outcome {
    let listener = attempt!(TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT)));
    println!("strangers: waiting for them");
    loop {
        let (stream, _) = attempt!(listener.accept().await);
        spawn(async move {
            if serve(stream).await {
                system::process::exit(0);
            }
        })
        .detach();
    }
}
