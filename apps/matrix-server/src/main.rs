//! Multiplies matrices for all clients that connect: the system's main example and its benchmark.
//!
//! Each connection has three coroutines, joined by two queues, as in the papers: *receive* cuts the byte stream into
//! requests, *handle* multiplies, *send* writes the answers. While one answer of a connection is sent, its next request
//! is being read, and thousands of connections are thousands of small coroutines on the chosen number of workers.
//!
//! That is the model called *kcuc*. For comparisons the same server can be run in all others ([`model`]): with threads
//! in its own part (`threads`) or in the kernel's, and around epoll (`epoll`).
//!
//! A peer can waste only its own connection: a length that is out of range is detected before memory is allocated for
//! it, queues are short so that the server does not read from a peer that does not read, and every error ends that one
//! connection with a line in the log.
#![no_std]
#![no_main]
#![expect(clippy::manual_async_fn, reason = "an async fn keeps its arguments twice")]

extern crate alloc;

mod epoll;
mod model;
mod threads;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Display;
use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;

use cops::buffer::Part;
use cops::channel::{Receiver, Sender, TrySend, bounded};
use cops::net::{BACKLOG, Shutdown, TcpListener, TcpStream};
use cops::system::kernel_side::{self, KernelSide};
use cops::{Errno, Priority, eprintln, println, spawn_at};

use matrix::{Decoded, HEADER_BYTES, MAXIMUM_REQUEST_BYTES, Model, Order, Request};

/// Capacity of a connection's queues of requests, and of answers. More would only let a peer use more memory.
const QUEUE: usize = 8;
/// First size of a connection's receive buffer in the models that keep it; it grows with the peer's requests.
const FIRST_BUFFER: usize = 512;
/// Bytes of the buffer in which the beginning of a request is awaited: the smallest requests fit.
const IDLE_BUFFER: usize = Order::MINIMUM.request_bytes();
/// Pauses before accepting again when there is no memory or no descriptor.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

const USAGE: &str = "\
usage: matrix-server [OPTION]...
  --port N       TCP port to listen on (7000)
  --workers N    workers that run the coroutines (1)
  --priority N   priority of the connections' coroutines, 0 to 63 (4)
  --levels N     give connections the priorities 0 to N-1 in turn instead
  --backlog N    connections that may wait to be accepted (128)
  --model NAME   kcuc, kcut, ktut, ktut-wait, ktuc or ktuc-epoll (kcuc):
                 what works in the kernel (k) and in the program (u),
                 coroutines (c) or threads (t)";

/// The options of the command line.
struct Options {
    port: u16,
    workers: usize,
    priority: Priority,
    levels: u8,
    backlog: u32,
    model: Model,
}

impl Options {
    fn parse() -> Result<Options, &'static str> {
        let mut options = Options {
            port: 7000,
            workers: 1,
            priority: Priority::DEFAULT,
            levels: 0,
            backlog: BACKLOG,
            model: Model::Kcuc,
        };
        let mut arguments = cops::arguments().skip(1);
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or(USAGE)?;
            if option.to_bytes() == b"--model" {
                options.model = Model::from_name(value.to_bytes()).ok_or(USAGE)?;
                continue;
            }
            let number: u64 = value.to_str().ok().and_then(|value| value.parse().ok()).ok_or(USAGE)?;
            match option.to_bytes() {
                b"--port" => options.port = u16::try_from(number).map_err(|_| USAGE)?,
                b"--workers" if (1..=8).contains(&number) => options.workers = number as usize,
                b"--priority" => {
                    options.priority = u8::try_from(number).ok().and_then(Priority::new).ok_or(USAGE)?;
                }
                b"--levels" if (1..=64).contains(&number) => options.levels = number as u8,
                b"--backlog" => options.backlog = u32::try_from(number).map_err(|_| USAGE)?,
                _ => return Err(USAGE),
            }
        }
        Ok(options)
    }

    /// Returns the priority of the connection with this number.
    fn priority_of(&self, connection: u64) -> Priority {
        match self.levels {
            0 => self.priority,
            levels => Priority::saturating(connection % u64::from(levels)),
        }
    }
}

#[cops::main]
async fn main() -> Result<i32, Errno> {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(usage) => {
            eprintln!("{usage}");
            return Ok(2);
        }
    };
    let side = model::kernel_side(options.model);
    if side != KernelSide::Coroutines {
        kernel_side::choose(side)?;
    }
    cops::alloc_cpu(options.workers - 1)?;
    let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, options.port);
    let listener = match TcpListener::bind_with_backlog(address, options.backlog) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("matrix-server: cannot listen on {address}: {error}");
            return Ok(1);
        }
    };
    println!("matrix-server: listening on {address}");
    match options.model {
        Model::Kcuc | Model::Ktuc => serve(&listener, &options).await?,
        // No coroutine runs on this worker.
        Model::Kcut | Model::Ktut | Model::KtutWait => return Err(threads::serve(&listener.into_descriptor())),
        Model::KtucEpoll => epoll::serve(listener.into_descriptor(), &options).await?,
    }
    Ok(0)
}

/// Accepts connections for ever. Returns only if the listening socket itself fails.
async fn serve(listener: &TcpListener, options: &Options) -> Result<(), Errno> {
    let mut connections = 0u64;
    let mut pause = PAUSE.0;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                pause = PAUSE.0;
                open(stream, peer, options.priority_of(connections));
                connections += 1;
            }
            // Other connections may close in the meantime; clients wait in the backlog.
            Err(error @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)) => {
                eprintln!("matrix-server: accepting again in {} ms: {error}", pause.as_millis());
                cops::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            Err(Errno::ECONNABORTED | Errno::EINTR | Errno::EAGAIN) => {}
            Err(error) => {
                eprintln!("matrix-server: cannot accept connections any more: {error}");
                return Err(error);
            }
        }
    }
}

/// A connection, as its coroutines share it: each has a pointer to it, and none an address of its own.
struct Connection {
    stream: TcpStream,
    /// The peer's address, if it is of IPv4. One of IPv6 is four times as large, and is asked for when it is told.
    peer: Option<SocketAddrV4>,
}

impl Connection {
    fn tell(&self, reason: &dyn Display) {
        match self.peer.map_or_else(|| self.stream.peer_address(), |peer| Ok(peer.into())) {
            Ok(peer) => eprintln!("matrix-server: closing {peer}: {reason}"),
            Err(_) => eprintln!("matrix-server: closing a connection that is gone: {reason}"),
        }
    }
}

/// Starts the three coroutines of a connection.
fn open(stream: TcpStream, peer: SocketAddr, priority: Priority) {
    // Answers are written whole; waiting for more would only delay them.
    let _ = stream.send_small_writes_at_once();
    let peer = if let SocketAddr::V4(peer) = peer { Some(peer) } else { None };
    let connection = Arc::new(Connection { stream, peer });
    let (requests, to_handle) = bounded(QUEUE);
    let (answers, to_send) = bounded(QUEUE);
    spawn_at(priority, receive(connection.clone(), requests)).detach();
    spawn_at(priority, handle(to_handle, answers)).detach();
    spawn_at(priority, send(connection, to_send)).detach();
}

/// The reason why the server closes a connection.
type Reason = matrix::Reason<Errno>;

// The stages are functions that return blocks, because an `async fn` keeps its arguments twice: once as arguments, and
// once as variables. Temporary memory is on the heap, not in the coroutine: the memory of an idle connection, times the
// number of connections, is the memory of the server.

/// Cuts the stream into requests.
///
/// Before a request begins a connection has a buffer for the beginning of a request only.
fn receive(connection: Arc<Connection>, requests: Sender<Vec<u8>>) -> impl Future<Output = ()> + Send {
    async move {
        let reason = loop {
            let (result, buffer) = connection.stream.read(Box::new([0; IDLE_BUFFER])).await;
            let count = match result {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) => break Reason::Failed(error),
            };
            let Err(buffer) = pass_on(&requests, (buffer as Box<[u8]>).into_vec(), count) else { continue };
            match Box::pin(receive_from(&connection.stream, &requests, buffer, count)).await {
                Ok(Going::On) => {}
                Ok(Going::Away) => return,
                Err(reason) => break reason,
            }
        };
        connection.tell(&reason);
    }
}

/// Passes on a buffer that consists of one request, if there is room for it now; else returns it.
fn pass_on(requests: &Sender<Vec<u8>>, buffer: Vec<u8>, count: usize) -> Result<(), Vec<u8>> {
    match Request::decode(&buffer[..count]) {
        Ok(Decoded::Complete(_, length)) if length == buffer.len() => {
            requests.try_send(buffer).map_err(|(TrySend::Full(buffer) | TrySend::Closed(buffer))| buffer)
        }
        _ => Err(buffer),
    }
}

/// Whether a stage continues.
enum Going {
    On,
    /// The next stage has failed, and has logged the reason.
    Away,
}

/// Passes on all requests that begin in the first `end` bytes of the buffer, and receives their missing bytes.
async fn receive_from(
    stream: &TcpStream,
    requests: &Sender<Vec<u8>>,
    mut buffer: Vec<u8>,
    mut end: usize,
) -> Result<Going, Reason> {
    // The bytes that were received and not passed on yet are buffer[start..end].
    let mut start = 0;
    while start < end {
        match Request::decode(&buffer[start..end]).map_err(Reason::Malformed)? {
            Decoded::Complete(_, length) => {
                let request = if (start, end) == (0, length) {
                    let mut whole = core::mem::take(&mut buffer);
                    whole.truncate(length);
                    whole
                } else {
                    buffer[start..start + length].to_vec()
                };
                start += length;
                if requests.send(request).await.is_err() {
                    return Ok(Going::Away);
                }
            }
            Decoded::NeedBytes(needed) => {
                // The length has been checked: it is at most that of the largest request.
                debug_assert!((HEADER_BYTES..=MAXIMUM_REQUEST_BYTES).contains(&needed));
                buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
                buffer.resize(needed, 0);
                let (result, part) = stream.read(Part::new(buffer, end, needed)).await;
                buffer = part.into_inner();
                match result.map_err(Reason::Failed)? {
                    0 => return Err(Reason::Unfinished(end)),
                    count => end += count,
                }
            }
        }
    }
    Ok(Going::On)
}

/// Multiplies the matrices of requests.
fn handle(requests: Receiver<Vec<u8>>, answers: Sender<Vec<u8>>) -> impl Future<Output = ()> + Send {
    async move {
        loop {
            let Some(request) = requests.receive().await else { return };
            let answer = answer(request);
            if answers.send(answer).await.is_err() {
                return;
            }
        }
    }
}

/// Returns the answer to a complete request.
fn answer(message: Vec<u8>) -> Vec<u8> {
    let Ok(Decoded::Complete(request, _)) = Request::decode(&message) else {
        unreachable!("only complete requests are passed on");
    };
    let mut answer = alloc::vec![0; request.order.answer_bytes()];
    matrix::answer(&request, &mut answer);
    answer
}

/// Writes the answers.
fn send(connection: Arc<Connection>, answers: Receiver<Vec<u8>>) -> impl Future<Output = ()> + Send {
    async move {
        loop {
            let Some(answer) = answers.receive().await else { return };
            let writing = Box::pin(connection.stream.write_all(answer));
            if let Err(error) = writing.await.0 {
                connection.tell(&error);
                // Ends the receiving coroutine too: the requests that it waits for could not be answered.
                let _ = connection.stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}
