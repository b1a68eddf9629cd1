//! A web server with hyper in a program that has the standard library and coroutines: the same service for connections
//! that are coroutines of COPS, on one port, and tasks of tokio, on another.
#![forbid(unsafe_code)]

mod client;

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

const USAGE: &str = "\
usage: hyper-server [serve | compare [REQUESTS [CONNECTIONS]]]

serve      answer every request with its path: on port 8080 with coroutines of COPS, on port 8081 with tasks of tokio
compare    send requests from within the machine to one port after the other, and print how long each takes

Without an argument it serves. compare sends 2000 requests over each of 16 connections unless told otherwise.";

/// Number of workers of either executor.
const WORKERS: usize = 2;

/// Ports of the two servers.
const COPS_PORT: u16 = 8080;
const TOKIO_PORT: u16 = 8081;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// The action that the command line asks for.
enum Wish {
    Serve,
    Compare { requests: u32, connections: u32 },
}

/// Understands the command line; `None` if it makes no sense.
fn wish() -> Option<Wish> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: Option<&&str>, default: u32| match text {
        Some(text) => text.parse::<u32>().ok().filter(|number| *number > 0),
        None => Some(default),
    };
    match words.as_slice() {
        [] | ["serve"] => Some(Wish::Serve),
        ["compare", numbers @ ..] if numbers.len() <= 2 => {
            Some(Wish::Compare { requests: number(numbers.first(), 2000)?, connections: number(numbers.get(1), 16)? })
        }
        _ => None,
    }
}

#[cops::main(workers = WORKERS)]
async fn main() -> i32 {
    let Some(wish) = wish() else {
        eprintln!("{USAGE}");
        return 2;
    };
    let listener = match cops::net::TcpListener::bind_with_backlog((Ipv4Addr::UNSPECIFIED, COPS_PORT), BACKLOG) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("cannot listen on port {COPS_PORT}: {error}");
            return 1;
        }
    };
    let tokio = match serve_with_tokio() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot listen on port {TOKIO_PORT} with tokio: {error}");
            return 1;
        }
    };
    let coroutines = cops::spawn(serve_with_coroutines(listener));
    println!("listening on port {COPS_PORT} with coroutines, on port {TOKIO_PORT} with tokio");
    let status = match wish {
        Wish::Serve => {
            let _ = coroutines.await;
            0
        }
        Wish::Compare { requests, connections } => compare(requests, connections).await,
    };
    tokio.shutdown_background();
    status
}

/// Answers a request with its path.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from(format!("you asked for {}\n", request.uri().path())))))
}

/// Accepts connections for ever, a coroutine for each.
async fn serve_with_coroutines(listener: cops::net::TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => cops::spawn(async move {
                let _ = stream.send_small_writes_at_once();
                // A peer that goes away, or says nothing sensible, ends its own connection only.
                let _ = http1::Builder::new()
                    .serve_connection(cops::hyper::Connection::new(stream), service_fn(answer))
                    .await;
            })
            .detach(),
            // Too many connections: some end.
            Err(_) => cops::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Starts tokio's workers, and a task that accepts connections for ever.
fn serve_with_tokio() -> std::io::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_io().build()?;
    let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, TOKIO_PORT))?;
    listener.set_nonblocking(true)?;
    runtime.spawn(async move {
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    });
    Ok(runtime)
}

/// Sends requests to either server, and prints the times; returns the program's status.
async fn compare(requests: u32, connections: u32) -> i32 {
    let mut status = 0;
    for (name, port) in
        [("coroutines", COPS_PORT), ("tokio", TOKIO_PORT), ("coroutines", COPS_PORT), ("tokio", TOKIO_PORT)]
    {
        match client::load(port, requests, connections).await {
            Ok(ns) => println!("{name:>10}: {ns} ns for each request"),
            Err(error) => {
                println!("{name:>10}: {error}");
                status = 1;
            }
        }
    }
    status
}
