//! The course of one plan: connect, send, wait for the rest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::connection::{Connection, Outcome};
use crate::questions::Questions;
use crate::{Continue, Error, Level, Measurement, Pace, Plan, Stage};

/// Number of different questions in a run. More would fill the caches that the emulator needs.
const QUESTIONS: usize = 64;

/// Number of connections that are being established at a time. The emulator's port forwarding has a listen queue of
/// one, and further connections wait a second for the host to try again.
const CONNECTING: usize = 2;

/// Interval between calls of the observer.
const OBSERVE: Duration = Duration::from_millis(33);

/// Longest recorded latency in microseconds, ten minutes; longer than any patience.
const MAXIMUM_LATENCY_US: u64 = 600_000_000;

/// A run in progress.
struct Run<'a> {
    plan: &'a Plan,
    poll: Poll,
    questions: Questions,
    /// `None` for a connection that is gone or was never there.
    connections: Vec<Option<Connection>>,
    asked: usize,
    measurement: Measurement,
    last_answer: Option<Instant>,
    observe: &'a mut dyn FnMut(Stage) -> Continue,
    observed: Option<Instant>,
}

/// Runs a plan; see [`crate::run()`].
pub fn run(plan: &Plan, observe: &mut dyn FnMut(Stage) -> Continue) -> Result<Measurement, Error> {
    let mut run = Run {
        plan,
        poll: Poll::new()?,
        questions: Questions::new(plan.order, QUESTIONS),
        connections: Vec::with_capacity(plan.connections),
        asked: 0,
        measurement: Measurement {
            connections: plan.connections,
            answered: 0,
            wrong: 0,
            lost: 0,
            elapsed: Duration::ZERO,
            latency_us: histogram(),
            levels: (0..plan.levels.max(1)).map(|_| Level { answered: 0, latency_us: histogram() }).collect(),
            first_failure: None,
        },
        last_answer: None,
        observe,
        observed: None,
    };
    run.connect()?;
    let started = Instant::now();
    match plan.pace {
        Pace::Every(interval) => run.send_on_time(started, interval)?,
        Pace::ClosedLoop => run.send_in_a_loop(started)?,
        Pace::Pause(pause) => run.send_after_pauses(started, pause)?,
    }
    run.wait_for_the_rest()?;
    let end = run.last_answer.unwrap_or(started).max(started + plan.duration);
    run.measurement.elapsed = end - started;
    Ok(run.measurement)
}

/// Makes an empty record of latencies.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(MAXIMUM_LATENCY_US, 3).expect("the bounds are valid")
}

impl Run<'_> {
    /// Opens the connections and makes each answer one request. The cost is not part of the measurement, except that a
    /// connection that fails here is missing later, and each of its requests is lost.
    fn connect(&mut self) -> Result<(), Error> {
        let mut established = 0;
        let mut connecting: Vec<(usize, Instant)> = Vec::new();
        let mut answers = Vec::new();
        // A server that gives its connections levels in turn must see them in the order of their numbers.
        let at_once = if self.plan.levels > 1 { 1 } else { CONNECTING };
        while self.connections.len() < self.plan.connections || !connecting.is_empty() {
            let now = Instant::now();
            while connecting.len() < at_once && self.connections.len() < self.plan.connections {
                let index = self.connections.len();
                self.open(index, now)?;
                connecting.push((index, now));
            }
            self.turn(Some(now + OBSERVE), &mut |index, outcome| answers.push((index, outcome)))?;
            for (index, outcome) in answers.drain(..) {
                if let Outcome::Wrong(text) = outcome {
                    self.drop_connection(index, &text);
                }
            }
            connecting.retain(|&(index, since)| match &self.connections[index] {
                Some(connection) if connection.awaited() == 0 => {
                    established += 1;
                    false
                }
                Some(_) if since.elapsed() < self.plan.patience => true,
                Some(_) => {
                    self.connections[index] = None;
                    let failure = format!("connection {index} did not answer its first request");
                    self.measurement.first_failure.get_or_insert(failure);
                    false
                }
                None => false,
            });
            self.observe(Stage::Connecting(established))?;
        }
        // First requests are not the plan's; the plan's own are lost one by one on a connection that failed here.
        self.measurement.lost = 0;
        Ok(())
    }

    fn open(&mut self, index: usize, now: Instant) -> Result<(), Error> {
        let stream = match TcpStream::connect(self.plan.server) {
            Ok(stream) => stream,
            // Running out of open files is not the server's failure.
            Err(error) if error.raw_os_error().is_some() && error.kind() != io::ErrorKind::ConnectionRefused => {
                return Err(Error::Host(error));
            }
            Err(error) => {
                self.connections.push(None);
                self.measurement.first_failure.get_or_insert(error.to_string());
                return Ok(());
            }
        };
        // A request is one message: it should not wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let mut connection = Connection::new(stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(connection.stream(), Token(index), interest)?;
        connection.ask(&self.questions, self.asked, now);
        self.asked += 1;
        self.connections.push(Some(connection));
        Ok(())
    }

    /// Sends on each connection when its interval has passed. The timers are spread evenly, so that request `number` of
    /// the whole run is due after `number / connections` intervals, on connection `number % connections`.
    fn send_on_time(&mut self, started: Instant, interval: Duration) -> Result<(), Error> {
        let connections = self.plan.connections as u128;
        let rounds = self.plan.duration.as_nanos() / interval.as_nanos().max(1);
        let requests = rounds * connections;
        let mut number = 0;
        while number < requests {
            let due =
                |number: u128| started + Duration::from_nanos((interval.as_nanos() * number / connections) as u64);
            let now = Instant::now();
            while number < requests && due(number) <= now {
                self.send((number % connections) as usize, now);
                number += 1;
            }
            let until = if number < requests { due(number) } else { now };
            self.turn_and_count(Some(until))?;
            self.observe(Stage::Sending(started.elapsed()))?;
        }
        Ok(())
    }

    /// Sends on each connection as soon as it has its answer.
    fn send_in_a_loop(&mut self, started: Instant) -> Result<(), Error> {
        for index in 0..self.plan.connections {
            self.send(index, Instant::now());
        }
        let end = started + self.plan.duration;
        while Instant::now() < end {
            let free = self.turn_and_count(Some(end.min(Instant::now() + OBSERVE)))?;
            let now = Instant::now();
            if now < end {
                for index in free {
                    // A connection can answer and then be gone; its next request was never owed.
                    if self.connections[index].is_some() {
                        self.send(index, now);
                    }
                }
            }
            self.observe(Stage::Sending(started.elapsed()))?;
        }
        Ok(())
    }

    /// Sends on each connection a pause after the answer to the request before. The first requests are spread over one
    /// pause.
    fn send_after_pauses(&mut self, started: Instant, pause: Duration) -> Result<(), Error> {
        let connections = self.plan.connections;
        let mut due: BinaryHeap<_> = (0..connections)
            .map(|index| Reverse((started + pause * index as u32 / connections as u32, index)))
            .collect();
        let end = started + self.plan.duration;
        while Instant::now() < end {
            let now = Instant::now();
            while due.peek().is_some_and(|Reverse((time, _))| *time <= now) {
                let Some(Reverse((_, index))) = due.pop() else { break };
                if self.connections[index].is_some() {
                    self.send(index, now);
                }
            }
            let next = due.peek().map_or(end, |Reverse((time, _))| *time);
            let free = self.turn_and_count(Some(next.min(end).min(Instant::now() + OBSERVE)))?;
            let now = Instant::now();
            due.extend(free.into_iter().map(|index| Reverse((now + pause, index))));
            self.observe(Stage::Sending(started.elapsed()))?;
        }
        Ok(())
    }

    /// Waits until every request is answered, the connections are gone or patience ends; the rest is lost.
    fn wait_for_the_rest(&mut self) -> Result<(), Error> {
        let end = Instant::now() + self.plan.patience;
        loop {
            let waiting: usize = self.connections.iter().flatten().map(Connection::awaited).sum();
            let now = Instant::now();
            if waiting == 0 {
                return Ok(());
            }
            if now >= end {
                self.measurement.lost += waiting as u64;
                let failure = format!("{waiting} requests had no answer after {:?}", self.plan.patience);
                self.measurement.first_failure.get_or_insert(failure);
                return Ok(());
            }
            self.observe(Stage::Waiting(waiting))?;
            self.turn_and_count(Some(end.min(now + OBSERVE)))?;
        }
    }

    fn send(&mut self, index: usize, now: Instant) {
        let Some(connection) = &mut self.connections[index] else {
            self.measurement.lost += 1;
            return;
        };
        connection.ask(&self.questions, self.asked, now);
        self.asked += 1;
        if let Err(error) = connection.send() {
            self.drop_connection(index, &error.to_string());
        }
    }

    /// Drops a connection; its open requests are lost.
    fn drop_connection(&mut self, index: usize, why: &str) {
        if let Some(connection) = self.connections[index].take() {
            self.measurement.lost += connection.awaited() as u64;
            self.measurement.first_failure.get_or_insert(format!("connection {index}: {why}"));
        }
    }

    /// Runs one turn of the loop and counts its outcomes. Returns the connections that got an answer.
    fn turn_and_count(&mut self, until: Option<Instant>) -> Result<Vec<usize>, Error> {
        let mut outcomes = Vec::new();
        self.turn(until, &mut |index, outcome| outcomes.push((index, outcome)))?;
        if !outcomes.is_empty() {
            self.last_answer = Some(Instant::now());
        }
        let mut free = Vec::with_capacity(outcomes.len());
        for (index, outcome) in outcomes {
            match outcome {
                Outcome::Right(latency) => {
                    self.measurement.answered += 1;
                    let latency_us = (latency.as_nanos() as u64).div_ceil(1000);
                    self.measurement.latency_us.saturating_record(latency_us);
                    let level = index % self.measurement.levels.len();
                    self.measurement.levels[level].answered += 1;
                    self.measurement.levels[level].latency_us.saturating_record(latency_us);
                }
                Outcome::Wrong(text) => {
                    self.measurement.wrong += 1;
                    self.measurement.first_failure.get_or_insert(format!("connection {index}: {text}"));
                }
            }
            free.push(index);
        }
        Ok(free)
    }

    /// Waits for the network until `until` at the latest and serves the connections that are ready.
    fn turn(&mut self, until: Option<Instant>, report: &mut dyn FnMut(usize, Outcome)) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        match self.poll.poll(&mut events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let Token(index) = event.token();
            let Some(connection) = &mut self.connections[index] else { continue };
            let sent = if event.is_writable() { connection.send() } else { Ok(()) };
            let received =
                sent.and_then(|()| connection.receive(&self.questions, &mut |outcome| report(index, outcome)));
            if let Err(error) = received {
                self.drop_connection(index, &error.to_string());
            }
        }
        Ok(())
    }

    fn observe(&mut self, stage: Stage) -> Result<(), Error> {
        if self.observed.is_some_and(|observed| observed.elapsed() < OBSERVE) {
            return Ok(());
        }
        self.observed = Some(Instant::now());
        match (self.observe)(stage) {
            Continue::Yes => Ok(()),
            Continue::No => Err(Error::Stopped),
        }
    }
}
