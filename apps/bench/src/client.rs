//! Cheapest possible load for the matrix server, because the figure contains client and server.
//!
//! Like the client of the programs for Linux that COPS is compared with: requests and products are computed before the
//! clock starts, every answer is compared with its product, and each connection is a closed loop. Here a connection is
//! a coroutine.

use abi_unix::Counter;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicU64, Ordering};

use cops::buffer::Part;
use cops::net::TcpStream;
use cops::println;
use cops::process::{Child, Command};
use cops::time::Duration;
use matrix::{HEADER_BYTES, Order, encode_answer, encode_request, multiply};
use zerocopy::FromBytes as _;

use crate::{Outcome, argument, attempt, figure, now, series};

/// Number of different requests.
const QUESTIONS: usize = 16;
/// Requests of each connection before the clock starts.
const WARM: usize = 4;
/// The server's port.
const PORT: u16 = 7000;

struct Questions {
    requests: Vec<Vec<u8>>,
    answers: Vec<Vec<u8>>,
}

impl Questions {
    fn new(order: Order) -> Questions {
        let elements = order.elements();
        let mut seed = order.get() as u32;
        let mut questions = Questions { requests: Vec::new(), answers: Vec::new() };
        for _ in 0..QUESTIONS {
            let words: Vec<u32> = (0..2 * elements)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    seed >> 8
                })
                .collect();
            let mut product = alloc::vec![0; elements];
            multiply(order, &words[..elements], &words[elements..], &mut product);
            let mut request = alloc::vec![0; order.request_bytes()];
            encode_request(order, 0, &words[..elements], &words[elements..], &mut request);
            let mut answer = alloc::vec![0; order.answer_bytes()];
            encode_answer(order, 0, &product, &mut answer);
            questions.requests.push(request);
            questions.answers.push(answer);
        }
        questions
    }
}

/// Answers of all connections.
#[derive(Default)]
struct Counts {
    right: AtomicU64,
    wrong: AtomicU64,
}

/// Sends one request and checks the answer; the buffers are returned for the next.
async fn ask(
    stream: &TcpStream,
    questions: &Questions,
    sequence: usize,
    mut message: Vec<u8>,
    mut answer: Vec<u8>,
    counts: &Counts,
) -> Result<(Vec<u8>, Vec<u8>), String> {
    let question = sequence % QUESTIONS;
    message.clear();
    message.extend_from_slice(&questions.requests[question]);
    message[HEADER_BYTES / 2..HEADER_BYTES].copy_from_slice(&(sequence as u32).to_le_bytes());
    let (result, message) = stream.write_all(message).await;
    attempt!(result);
    let (mut end, length) = (0, answer.len());
    while end < length {
        let (result, part) = stream.read(Part::new(answer, end, length)).await;
        answer = part.into_inner();
        match attempt!(result) {
            0 => return Err("the server closed a connection".into()),
            count => end += count,
        }
    }
    let right = is_right(&answer, &questions.answers[question], sequence as u32);
    let count = if right { &counts.right } else { &counts.wrong };
    count.fetch_add(1, Ordering::Relaxed);
    Ok((message, answer))
}

/// Returns whether an answer is the expected one with this sequence number. Compared word by word, because the client's
/// cost is in the figure, and slices of any kind are compared byte by byte.
fn is_right(answer: &[u8], expected: &[u8], sequence: u32) -> bool {
    let (header, elements) = answer.split_at(HEADER_BYTES);
    let (expected_header, expected_elements) = expected.split_at(HEADER_BYTES);
    header[..HEADER_BYTES / 2] == expected_header[..HEADER_BYTES / 2]
        && header[HEADER_BYTES / 2..] == sequence.to_le_bytes()
        && match (<[u64]>::ref_from_prefix(elements), <[u64]>::ref_from_prefix(expected_elements)) {
            (Ok((words, rest)), Ok((expected_words, expected_rest))) => {
                let same = words.iter().zip(expected_words).all(|(word, expected)| word == expected);
                same && words.len() == expected_words.len() && rest == expected_rest
            }
            // The heap aligns blocks of this size; without that, bytes are compared.
            _ => elements == expected_elements,
        }
}

async fn connect() -> Result<TcpStream, String> {
    let stream = attempt!(TcpStream::connect(SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT)).await);
    let _ = stream.send_small_writes_at_once();
    Ok(stream)
}

/// Makes `requests` requests one after the other, on `stream` or each on a connection of its own.
async fn drive(
    stream: Option<TcpStream>,
    questions: Arc<Questions>,
    requests: usize,
    counts: Arc<Counts>,
) -> Result<Option<TcpStream>, String> {
    let mut message = Vec::with_capacity(questions.requests[0].len());
    let mut answer = alloc::vec![0; questions.answers[0].len()];
    for sequence in 0..requests {
        match &stream {
            Some(stream) => (message, answer) = ask(stream, &questions, sequence, message, answer, &counts).await?,
            None => {
                let fresh = connect().await?;
                (message, answer) = ask(&fresh, &questions, sequence, message, answer, &counts).await?;
            }
        }
    }
    Ok(stream)
}

/// Runs all connections to their ends, and returns them.
async fn run(
    streams: Vec<Option<TcpStream>>,
    questions: &Arc<Questions>,
    requests: usize,
    counts: &Arc<Counts>,
) -> Result<Vec<Option<TcpStream>>, String> {
    let running: Vec<_> = streams
        .into_iter()
        .map(|stream| cops::spawn(drive(stream, questions.clone(), requests, counts.clone())))
        .collect();
    let mut streams = Vec::with_capacity(running.len());
    for handle in running {
        streams.push(attempt!(handle.await)?);
    }
    Ok(streams)
}

/// Starts the server in one model and waits until it listens.
async fn start(model: &str) -> Result<Child, String> {
    let (reader, writer) = attempt!(cops::io::pipe());
    let mut command = Command::new("/bin/matrix-server").argument("--backlog").argument("1024");
    // The server's default model.
    if model != "kcuc" {
        command = command.argument("--model").argument(model);
    }
    let child = attempt!(command.descriptor(1, writer.into_descriptor()).spawn());
    let (result, line) = reader.read(alloc::vec![0; 200]).await;
    let length = attempt!(result);
    if !line[..length].starts_with(b"matrix-server: listening") {
        return Err(alloc::format!("the server does not listen in the model {model}"));
    }
    // Later output goes to a pipe that is not read, and does not block the server: the pipe is large.
    core::mem::forget(reader);
    Ok(child)
}

/// Measures a request to a server that is started for it, so that no count profits from the server's earlier work.
async fn measure_one(
    model: &str,
    fresh: bool,
    size: usize,
    requests: usize,
    questions: &Arc<Questions>,
    counts: &Arc<Counts>,
) -> Result<f64, String> {
    let server = start(model).await?;
    let mut streams = Vec::with_capacity(size);
    for _ in 0..size {
        streams.push(if fresh { None } else { Some(connect().await?) });
    }
    let streams = run(streams, questions, WARM, counts).await?;
    let start = now();
    let streams = run(streams, questions, requests, counts).await?;
    let cost = (now() - start) as f64 / (size * requests) as f64;
    drop(streams);
    attempt!(server.kill());
    attempt!(server.wait().await);
    Ok(cost)
}

/// `matrix-models MODELS ORDER REQUESTS CONNECTIONS...`: the cost of a request, for each model and number of
/// connections.
pub async fn models() -> Outcome {
    measure(false).await
}

/// `creation MODELS ORDER REQUESTS VISITORS...`: the cost of a request with a connection of its own.
pub async fn creation() -> Outcome {
    measure(true).await
}

async fn measure(fresh: bool) -> Outcome {
    let models = argument(2)?;
    let order = attempt!(Order::new(attempt!(argument(3)?.parse())));
    let total = attempt!(argument(4)?.parse::<usize>());
    let mut sizes = Vec::new();
    for text in cops::arguments().skip(5) {
        sizes.push(attempt!(attempt!(text.to_str()).parse::<usize>()));
    }
    let questions = Arc::new(Questions::new(order));
    let counts = Arc::new(Counts::default());
    let mut asked = 0;
    for model in models.split(',') {
        let mut points = Vec::new();
        for &size in &sizes {
            let requests = (total / size).max(8);
            match measure_one(model, fresh, size, requests, &questions, &counts).await {
                Ok(cost) => points.push((size as f64, cost)),
                Err(error) => {
                    println!("bench failed: {model}: {}", error.lines().last().unwrap_or_default());
                    break;
                }
            }
            asked += (size * (requests + WARM)) as u64;
        }
        if !points.is_empty() {
            series(model, "ns", "connections", &points);
        }
    }
    let (right, wrong) = (counts.right.load(Ordering::Relaxed), counts.wrong.load(Ordering::Relaxed));
    figure("wrong", wrong as f64, "answers");
    figure("lost", (asked - right - wrong) as f64, "answers");
    Ok(())
}

/// The memory of the papers' machine: the kernel's heap, frames, and a program's heap.
const PAPER_KERNEL_HEAP: f64 = (8 << 20) as f64;
const PAPER_FRAMES: f64 = 0x1a0_0000 as f64;
const PAPER_USER_HEAP: f64 = (2 << 20) as f64;

/// Connections whose memory is measured, and earlier ones, which make tables grow.
const MEASURED: usize = 2048;
const FIRST: usize = 32;

/// Reports the memory of a connection of the server in each model, and the number that the papers' memory could hold.
/// `endpoint_bytes` is the part of the client's end in the kernel's heap, which is the same machine's.
///
/// A connection has answered one request of the papers' size and is idle. Memory outside of the kernel's heap is the
/// server's, and with threads their stacks in kernel and program, all of it in whole pages.
/// memory, and with threads their stacks in kernel and program, all of it in whole pages.
pub async fn memory(endpoint_bytes: f64) -> Outcome {
    let wanted = argument(2).unwrap_or_else(|_| "kcuc,kcut,ktut,ktut-wait,ktuc,ktuc-epoll".into());
    for model in wanted.split(',') {
        // Threads take so much that fewer are enough.
        let measured = if with_threads(model) { MEASURED / 8 } else { MEASURED };
        match memory_of(model, measured, endpoint_bytes).await {
            Ok((heap, pages)) => {
                figure(&alloc::format!("heap_{model}"), heap, "bytes");
                figure(&alloc::format!("pages_{model}"), pages, "bytes");
                // Coroutines lie in the program's heap; the stacks of threads in frames.
                let pages_there = if with_threads(model) { PAPER_FRAMES } else { PAPER_USER_HEAP };
                let most = (PAPER_KERNEL_HEAP / heap).min(pages_there / pages);
                figure(&alloc::format!("connections_{model}"), most as u64 as f64, "connections");
                let together = (PAPER_KERNEL_HEAP + PAPER_FRAMES + PAPER_USER_HEAP) / (heap + pages);
                figure(&alloc::format!("connections_undivided_{model}"), together as u64 as f64, "connections");
            }
            Err(error) => println!("bench failed: {model}: {}", error.lines().last().unwrap_or_default()),
        }
    }
    Ok(())
}

/// Returns whether the program's side of a model is threads.
fn with_threads(model: &str) -> bool {
    model.contains("ut")
}

/// Returns the bytes of the kernel's heap, and of other frames, that each further connection takes.
async fn memory_of(model: &str, measured: usize, endpoint_bytes: f64) -> Result<(f64, f64), String> {
    let sample = || async {
        cops::sleep(Duration::from_millis(50)).await;
        // In this order: reading the number of free frames makes the heap return its unused ones.
        let free = attempt!(cops::system::system::counter(Counter::FramesFree)) as f64 * 4096.0;
        let heap = attempt!(cops::system::system::counter(Counter::HeapFootprint)) as f64;
        Ok::<_, String>((heap, free))
    };
    let questions = Arc::new(Questions::new(attempt!(Order::new(15))));
    let counts = Arc::new(Counts::default());
    let server = start(model).await?;
    let mut open = Vec::with_capacity(FIRST + measured);
    for _ in 0..FIRST {
        open.push(drive(Some(connect().await?), questions.clone(), 1, counts.clone()).await?);
    }
    let before = sample().await?;
    for _ in 0..measured {
        open.push(drive(Some(connect().await?), questions.clone(), 1, counts.clone()).await?);
    }
    let after = sample().await?;
    drop(open);
    attempt!(server.kill());
    attempt!(server.wait().await);
    if counts.right.load(Ordering::Relaxed) != (FIRST + measured) as u64 {
        return Err("answers were wrong".into());
    }
    let heap = after.0 - before.0;
    let all = before.1 - after.1;
    Ok((heap / measured as f64 - endpoint_bytes, (all - heap).max(0.0) / measured as f64))
}
