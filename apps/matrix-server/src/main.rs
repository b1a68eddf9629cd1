//! Multiplies matrices for whoever connects: the system's main example and its benchmark.
//!
//! Each connection has three coroutines, joined by two queues, as in the papers: *receive* cuts the byte stream into
//! requests, *handle* multiplies, *send* writes the answers. While one connection's answer is on its way its next request
//! is being read, and thousands of connections are thousands of small coroutines on as many workers as were asked for.
//!
//! That is the model called *kcuc*. For comparisons the same server can be run in all others ([`model`]): with threads in
//! its own part (`threads`) or in the kernel's, and around epoll (`epoll`).
//!
//! A peer cannot do more than waste its own connection: a length that is out of range is seen before anything is
//! allocated for it, queues are short so that a peer that does not read is not read from, and every error ends that one
//! connection with a line in the log.
#![no_std]
#![no_main]

extern crate alloc;

mod epoll;
mod model;
mod threads;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use cops::buffer::Part;
use cops::channel::{Receiver, Sender, bounded};
use cops::net::{BACKLOG, Shutdown, TcpListener, TcpStream};
use cops::system::kernel_side::{self, KernelSide};
use cops::{Errno, Priority, eprintln, println, spawn_at};

use matrix::{Decoded, HEADER_BYTES, MAXIMUM_REQUEST_BYTES, Request};

use model::Model;

/// Requests, and answers, of one connection that may wait in a queue. More would only let a peer use more memory.
const QUEUE: usize = 8;
/// The first size of a connection's receive buffer; it grows to what the peer's requests need.
const FIRST_BUFFER: usize = 512;
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

/// What the command line asks for.
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

    /// The priority of the connection with this number.
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
    if options.model.kernel_side() != KernelSide::Coroutines {
        kernel_side::choose(options.model.kernel_side())?;
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
        // Nothing else runs on this worker.
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
            // Others may close something in the meantime; clients wait in the backlog.
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

/// Starts the three coroutines of a connection.
fn open(stream: TcpStream, peer: SocketAddrV4, priority: Priority) {
    // Answers are written whole; waiting for more would only delay them.
    let _ = stream.send_small_writes_at_once();
    let stream = Arc::new(stream);
    let (requests, to_handle) = bounded(QUEUE);
    let (answers, to_send) = bounded(QUEUE);
    let receiving = stream.clone();
    spawn_at(priority, async move {
        if let Err(reason) = receive(&receiving, requests).await {
            eprintln!("matrix-server: closing {peer}: {reason}");
        }
    })
    .detach();
    spawn_at(priority, handle(to_handle, answers)).detach();
    spawn_at(priority, async move {
        if let Err(error) = send(&stream, to_send).await {
            eprintln!("matrix-server: closing {peer}: {error}");
            // Ends the receiving coroutine too, which may wait for bytes that nobody would answer.
            let _ = stream.shutdown(Shutdown::Both);
        }
    })
    .detach();
}

/// Why a connection is closed before its peer has closed it.
enum Reason {
    Malformed(matrix::Malformed),
    Failed(Errno),
    /// The peer closed it in the middle of a request, of which this many bytes had come.
    Unfinished(usize),
}

impl core::fmt::Display for Reason {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Reason::Malformed(malformed) => malformed.fmt(formatter),
            Reason::Failed(error) => error.fmt(formatter),
            Reason::Unfinished(bytes) => write!(formatter, "the peer closed it {bytes} bytes into a request"),
        }
    }
}

/// Cuts the stream into requests.
async fn receive(stream: &TcpStream, requests: Sender<Vec<u8>>) -> Result<(), Reason> {
    let mut buffer = alloc::vec![0; FIRST_BUFFER];
    // The bytes that were received and not passed on yet are buffer[start..end].
    let (mut start, mut end) = (0, 0);
    loop {
        let needed = match Request::decode(&buffer[start..end]).map_err(Reason::Malformed)? {
            Decoded::Complete(_, length) => {
                if requests.send(buffer[start..start + length].to_vec()).await.is_err() {
                    // Sending has failed, which has said why.
                    return Ok(());
                }
                start += length;
                continue;
            }
            Decoded::NeedBytes(needed) => needed,
        };
        // A length of a `NeedBytes` has been checked: it is at most that of the largest request.
        debug_assert!((HEADER_BYTES..=MAXIMUM_REQUEST_BYTES).contains(&needed));
        buffer.copy_within(start..end, 0);
        (start, end) = (0, end - start);
        if buffer.len() < needed {
            buffer.resize(needed, 0);
        }
        let length = buffer.len();
        let (result, part) = stream.read(Part::new(buffer, end, length)).await;
        buffer = part.into_inner();
        match result.map_err(Reason::Failed)? {
            0 if end == 0 => return Ok(()),
            0 => return Err(Reason::Unfinished(end)),
            count => end += count,
        }
    }
}

/// Multiplies. The answer is written over the request, which is always longer.
async fn handle(requests: Receiver<Vec<u8>>, answers: Sender<Vec<u8>>) {
    let mut words = Vec::new();
    while let Some(message) = requests.receive().await {
        if answers.send(answer(message, &mut words)).await.is_err() {
            return;
        }
    }
}

/// The answer to a complete request, written over it; `words` is memory for the numbers.
fn answer(mut message: Vec<u8>, words: &mut Vec<u32>) -> Vec<u8> {
    let Ok(Decoded::Complete(request, _)) = Request::decode(&message) else {
        unreachable!("only complete requests are passed on");
    };
    let (order, sequence) = (request.order, request.sequence);
    let elements = order.elements();
    if words.len() < 3 * elements {
        words.resize(3 * elements, 0);
    }
    let (left, rest) = words.split_at_mut(elements);
    let (right, rest) = rest.split_at_mut(elements);
    let product = &mut rest[..elements];
    request.left.copy_to(left);
    request.right.copy_to(right);
    matrix::multiply(order, left, right, product);
    let length = matrix::encode_answer(order, sequence, product, &mut message);
    message.truncate(length);
    message
}

/// Writes the answers.
async fn send(stream: &TcpStream, answers: Receiver<Vec<u8>>) -> Result<(), Errno> {
    while let Some(answer) = answers.receive().await {
        stream.write_all(answer).await.0?;
    }
    Ok(())
}
