//! Short connections: one request on each.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use matrix::{Answer, Decoded, Order};

use crate::questions::Questions;
use crate::run::histogram;

/// Parameters of a run of short connections.
#[derive(Clone, Copy, Debug)]
pub struct Visits {
    /// Address of the server.
    pub server: SocketAddr,
    /// Rows and columns of the matrices.
    pub order: Order,
    /// Number of simultaneous visitors; each makes one connection after the other.
    pub visitors: usize,
    /// Duration of the run.
    pub duration: Duration,
    /// Time limit of a visit.
    pub patience: Duration,
}

/// Connects, asks, checks the answer and closes, over and over. Returns the times of the visits in microseconds, from
/// before the connection to after the answer.
///
/// # Errors
///
/// The first failed visit, or the first with a wrong answer.
pub fn visit(visits: &Visits) -> io::Result<Histogram<u64>> {
    let end = Instant::now() + visits.duration;
    let visitors: Vec<_> = (0..visits.visitors)
        .map(|number| (number, *visits))
        .map(|(number, visits)| thread::spawn(move || visitor(&visits, number, end)))
        .collect();
    let mut latencies = histogram();
    for visitor in visitors {
        let one = visitor.join().map_err(|_| io::Error::other("a visitor has panicked"))??;
        latencies.add(one).map_err(|_| io::Error::other("all histograms have the same bounds"))?;
    }
    Ok(latencies)
}

fn visitor(visits: &Visits, number: usize, end: Instant) -> io::Result<Histogram<u64>> {
    let questions = Questions::new(visits.order, 16);
    let mut latencies = histogram();
    let mut request = Vec::new();
    let mut answer = vec![0; visits.order.answer_bytes()];
    let mut question = number;
    while Instant::now() < end {
        request.clear();
        questions.ask(question, question as u32, &mut request);
        let start = Instant::now();
        let mut stream = TcpStream::connect_timeout(&visits.server, visits.patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(visits.patience))?;
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        latencies.saturating_record((start.elapsed().as_nanos() as u64).div_ceil(1000));
        let right = matches!(Answer::decode(&answer), Ok(Decoded::Complete(answer, _))
            if answer.sequence == question as u32 && questions.is_answer(question, &answer));
        if !right {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a wrong answer"));
        }
        question += 1;
    }
    Ok(latencies)
}
