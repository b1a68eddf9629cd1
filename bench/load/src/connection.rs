//! One connection: unsent bytes, awaited answers, and the bytes of the next answer.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use matrix::{Answer, Decoded};
use mio::net::TcpStream;

use crate::questions::Questions;

/// A request that has been handed to the connection and has no answer yet.
struct Awaited {
    sequence: u32,
    question: usize,
    since: Instant,
}

/// Outcome of one request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The right answer, after this time.
    Right(Duration),
    /// A wrong answer, described in words.
    Wrong(String),
}

/// A connection with its open requests.
pub struct Connection {
    stream: TcpStream,
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    awaited: VecDeque<Awaited>,
    next_sequence: u32,
}

impl Connection {
    /// Takes over a stream that may still be connecting.
    pub fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            outgoing: Vec::new(),
            sent: 0,
            incoming: Vec::new(),
            awaited: VecDeque::new(),
            next_sequence: 0,
        }
    }

    /// Returns the stream, to register it.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Returns the number of requests without an answer yet.
    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Hands over a request; [`Connection::send`] sends it.
    pub fn ask(&mut self, questions: &Questions, question: usize, now: Instant) {
        let sequence = self.next_sequence;
        self.next_sequence = sequence.wrapping_add(1);
        questions.ask(question, sequence, &mut self.outgoing);
        self.awaited.push_back(Awaited { sequence, question, since: now });
    }

    /// Sends as much as the connection takes now.
    ///
    /// # Errors
    ///
    /// The connection is gone.
    pub fn send(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => self.sent += length,
                Err(error) if is_not_now(&error) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // Sent bytes are dropped only now and then, so that a blocked connection does not move its queue on each call.
        if self.sent == self.outgoing.len() || self.sent > 1 << 20 {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Reads arrived bytes and reports the outcome of each request that they answer.
    ///
    /// # Errors
    ///
    /// The connection is gone or no longer makes sense. Outcomes up to then have been reported.
    pub fn receive(&mut self, questions: &Questions, report: &mut dyn FnMut(Outcome)) -> io::Result<()> {
        let mut part = [0; 16 << 10];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
                Ok(length) => {
                    self.incoming.extend_from_slice(&part[..length]);
                    self.take_answers(questions, Instant::now(), report)?;
                }
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take_answers(&mut self, questions: &Questions, now: Instant, report: &mut dyn FnMut(Outcome)) -> io::Result<()> {
        let mut taken = 0;
        let result = loop {
            match Answer::decode(&self.incoming[taken..]) {
                Ok(Decoded::NeedBytes(_)) => break Ok(()),
                Ok(Decoded::Complete(answer, used)) => {
                    // Answers come in order from a server that preserves the order; the search then ends at once.
                    let Some(place) = self.awaited.iter().position(|awaited| awaited.sequence == answer.sequence)
                    else {
                        break Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            format!("an answer to request {} came, which is not waiting for one", answer.sequence),
                        ));
                    };
                    let awaited = self.awaited.remove(place).expect("position() found it");
                    report(if questions.is_answer(awaited.question, &answer) {
                        Outcome::Right(now.saturating_duration_since(awaited.since))
                    } else {
                        Outcome::Wrong(format!("the answer to request {} is not the product", answer.sequence))
                    });
                    taken += used;
                }
                Err(malformed) => break Err(io::Error::new(io::ErrorKind::InvalidData, malformed)),
            }
        };
        self.incoming.drain(..taken);
        result
    }
}

/// Whether to try again when the stream is ready; a stream that is still connecting returns `NotConnected`.
fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
