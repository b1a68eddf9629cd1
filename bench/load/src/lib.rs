//! A client that drives the matrix server over TCP, checks every answer and measures its latency.
//!
//! # Measurement
//!
//! A [`Plan`] is one row of a table: so many connections, so large matrices, at this pace, for this long. With
//! [`Pace::Every`] each connection sends a request whenever its interval has passed, whether or not the server has
//! answered the one before: a server that falls behind shows long latencies, where a client that waits would show a
//! polite average. With [`Pace::ClosedLoop`] each connection always has exactly one request under way, which finds the
//! server's maximum throughput, and [`Pace::Pause`] is a loop with a pause, as in the papers. [`visit`] makes a
//! connection for each request.
//!
//! The latency of a request runs from the moment it is handed to its connection, even if the connection cannot take it
//! yet, to the moment its whole answer has been read. It includes the host's loopback and the emulator's network: the
//! latency for a user.
//!
//! # Checks
//!
//! Every answer is compared, element by element, with the product that this program has computed itself. Each request
//! of a plan ends as exactly one of *answered*, *wrong* and *lost*; a request that could not be sent because its
//! connection is gone is lost. So `answered + wrong + lost` is always the number of the plan's requests.
//!
//! # Structure
//!
//! One thread and one readiness queue, so that the client takes as little of the host as possible: host and emulated
//! machine share the same cores. Matrices and their products are computed before the clock starts. Connections are
//! opened a few at a time and each has to answer one request before the measurement begins; the emulator's port
//! forwarding accepts connections before the guest has seen them, so that a successful `connect` proves nothing.

#![forbid(unsafe_code)]

mod connection;
mod creation;
mod questions;
mod run;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub use creation::{Visits, visit};
pub use hdrhistogram::Histogram;
pub use matrix::Order;
use matrix::{Answer, Decoded, MAXIMUM_ANSWER_BYTES};
use questions::Questions;

/// Time at which a connection sends its next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each time this interval has passed, answered or not. The connections' timers are spread over the interval.
    Every(Duration),
    /// As soon as the answer to the one before has come.
    ClosedLoop,
    /// This long after the answer to the one before has come, as the papers' client does.
    Pause(Duration),
}

/// One measurement to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Address of the server.
    pub server: SocketAddr,
    /// Number of connections to hold open at once.
    pub connections: usize,
    /// Rows and columns of the matrices.
    pub order: Order,
    /// Time at which a connection sends its next request.
    pub pace: Pace,
    /// Duration of sending.
    pub duration: Duration,
    /// Time limit for an answer after the last request, and for each connection to be established.
    pub patience: Duration,
    /// Connection `n` belongs to level `n % levels`, and levels are measured apart. With more than one, connections are
    /// opened one after the other, so that a server can count them alike.
    pub levels: usize,
}

/// Stage of a plan's run, for a progress display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Opening connections; this many have answered their first request.
    Connecting(usize),
    /// Sending requests for this long already.
    Sending(Duration),
    /// All requests are sent; this many are not answered yet.
    Waiting(usize),
}

/// Whether a run goes on; the answer of its observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continue {
    /// Go on.
    Yes,
    /// Drop everything and return [`Error::Stopped`].
    No,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Connections of the plan.
    pub connections: usize,
    /// Requests answered rightly.
    pub answered: u64,
    /// Requests with an answer other than their product.
    pub wrong: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// From the first request to the end of the plan's duration, or to the last answer if that came later.
    pub elapsed: Duration,
    /// Latencies of the requests answered rightly, in microseconds.
    pub latency_us: Histogram<u64>,
    /// Results of each level of the plan.
    pub levels: Vec<Level>,
    /// First failure, in words.
    pub first_failure: Option<String>,
}

/// Result of a run for the connections of one level.
#[derive(Clone, Debug)]
pub struct Level {
    /// Requests answered rightly.
    pub answered: u64,
    /// Their latencies, in microseconds.
    pub latency_us: Histogram<u64>,
}

impl Measurement {
    /// Returns the number of right answers in each second.
    pub fn messages_per_second(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.answered as f64 / self.elapsed.as_secs_f64() }
    }

    /// Whether every request was answered, and rightly.
    pub fn is_faultless(&self) -> bool {
        self.answered > 0 && self.wrong == 0 && self.lost == 0
    }
}

/// Reason why a run has no result.
#[derive(Debug)]
pub enum Error {
    /// The observer stopped it.
    Stopped,
    /// The host refused something this program needs, such as one more open file.
    Host(io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Stopped => write!(formatter, "stopped before the end"),
            Error::Host(error) => write!(formatter, "the load generator cannot work on this host: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Host(error)
    }
}

/// Runs a plan. `observe` is called about thirty times a second.
///
/// # Errors
///
/// [`Error::Stopped`] when the observer stops the run, [`Error::Host`] when this host cannot do it. A server that
/// misbehaves is not an error but a [`Measurement`] that is not faultless.
pub fn run(plan: &Plan, observe: &mut dyn FnMut(Stage) -> Continue) -> Result<Measurement, Error> {
    run::run(plan, observe)
}

/// Reason why a server did not pass a [`probe`].
#[derive(Debug)]
pub enum ProbeError {
    /// No connection, or it was closed, or no answer came in time.
    NoAnswer(io::Error),
    /// An answer came and it is not the product.
    WrongAnswer,
}

impl std::fmt::Display for ProbeError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProbeError::NoAnswer(error) => write!(formatter, "no answer: {error}"),
            ProbeError::WrongAnswer => write!(formatter, "a wrong answer"),
        }
    }
}

impl std::error::Error for ProbeError {}

/// Asks one question on a connection of its own and checks the answer, within `limit`.
///
/// # Errors
///
/// [`ProbeError`], after at most `limit`.
pub fn probe(server: SocketAddr, order: Order, limit: Duration) -> Result<(), ProbeError> {
    let deadline = Instant::now() + limit;
    let remaining = |deadline: Instant| {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ProbeError::NoAnswer(io::ErrorKind::TimedOut.into())) } else { Ok(left) }
    };
    let questions = Questions::new(order, 1);
    let mut request = Vec::new();
    questions.ask(0, 1, &mut request);

    let mut stream = TcpStream::connect_timeout(&server, remaining(deadline)?).map_err(ProbeError::NoAnswer)?;
    stream.set_write_timeout(Some(remaining(deadline)?)).map_err(ProbeError::NoAnswer)?;
    stream.write_all(&request).map_err(ProbeError::NoAnswer)?;
    let mut received = Vec::with_capacity(MAXIMUM_ANSWER_BYTES);
    loop {
        stream.set_read_timeout(Some(remaining(deadline)?)).map_err(ProbeError::NoAnswer)?;
        let mut part = [0; 4096];
        match stream.read(&mut part) {
            Ok(0) => return Err(ProbeError::NoAnswer(io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => received.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(ProbeError::NoAnswer(io::ErrorKind::TimedOut.into()));
            }
            Err(error) => return Err(ProbeError::NoAnswer(error)),
        }
        match Answer::decode(&received) {
            Ok(Decoded::NeedBytes(_)) => {}
            Ok(Decoded::Complete(answer, used)) => {
                let right = used == received.len() && answer.sequence == 1 && questions.is_answer(0, &answer);
                return if right { Ok(()) } else { Err(ProbeError::WrongAnswer) };
            }
            Err(_) => return Err(ProbeError::WrongAnswer),
        }
    }
}
