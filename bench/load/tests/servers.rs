//! The load generator against well-behaved and misbehaving servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use load::{Continue, Error, Order, Pace, Plan, ProbeError, Stage, Visits, probe, run, visit};
use matrix::{Decoded, Request, encode_answer, multiply};

/// Reaction of a connection's thread to each request.
type Handler = fn(&mut TcpStream, &Request<'_>) -> std::io::Result<()>;

/// Starts a server whose connections are served by `handler`, one thread each.
fn server(handler: Handler) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap(), handler));
        }
    });
    address
}

fn serve(mut stream: TcpStream, handler: Handler) {
    let mut received = Vec::new();
    loop {
        match Request::decode(&received) {
            Ok(Decoded::Complete(request, used)) => {
                if handler(&mut stream, &request).is_err() {
                    return;
                }
                received.drain(..used);
            }
            Ok(Decoded::NeedBytes(_)) => {
                let mut part = [0; 4096];
                match stream.read(&mut part) {
                    Ok(0) | Err(_) => return,
                    Ok(length) => received.extend_from_slice(&part[..length]),
                }
            }
            Err(_) => return,
        }
    }
}

fn answer(request: &Request<'_>, change: u32) -> Vec<u8> {
    let (left, right): (Vec<u32>, Vec<u32>) = (request.left.iter().collect(), request.right.iter().collect());
    let mut product = vec![0; request.order.elements()];
    multiply(request.order, &left, &right, &mut product);
    product[0] = product[0].wrapping_add(change);
    let mut message = vec![0; request.order.answer_bytes()];
    encode_answer(request.order, request.sequence, &product, &mut message);
    message
}

fn plan(server: SocketAddr, connections: usize, pace: Pace) -> Plan {
    Plan {
        server,
        connections,
        order: Order::new(15).unwrap(),
        pace,
        duration: Duration::from_millis(300),
        patience: Duration::from_millis(400),
        levels: 1,
    }
}

fn every(milliseconds: u64) -> Pace {
    Pace::Every(Duration::from_millis(milliseconds))
}

#[test]
fn a_server_that_answers_is_faultless_and_gets_every_request_of_the_plan() {
    let server = server(|stream, request| stream.write_all(&answer(request, 0)));
    let measurement = run(&plan(server, 20, every(50)), &mut |_| Continue::Yes).unwrap();
    assert!(measurement.is_faultless(), "{measurement:?}");
    assert_eq!(measurement.answered, 20 * 6);
    assert_eq!(measurement.latency_us.len(), 20 * 6);
    assert!(measurement.elapsed >= Duration::from_millis(300));
    assert!(measurement.messages_per_second() > 100.0, "{measurement:?}");
}

#[test]
fn a_closed_loop_has_one_request_under_way_on_each_connection() {
    let server = server(|stream, request| {
        thread::sleep(Duration::from_millis(10));
        stream.write_all(&answer(request, 0))
    });
    let measurement = run(&plan(server, 2, Pace::ClosedLoop), &mut |_| Continue::Yes).unwrap();
    assert!(measurement.is_faultless(), "{measurement:?}");
    // At most 30 answers of 10 ms fit into 300 ms, and one more is under way at the end.
    assert!(measurement.answered <= 2 * 31, "{measurement:?}");
    assert!(measurement.latency_us.min() >= 10_000, "{measurement:?}");
}

#[test]
fn a_loop_with_a_pause_pauses_and_measures_levels_apart() {
    let server = server(|stream, request| stream.write_all(&answer(request, 0)));
    let pace = Pace::Pause(Duration::from_millis(50));
    let measurement = run(&Plan { levels: 3, ..plan(server, 4, pace) }, &mut |_| Continue::Yes).unwrap();
    assert!(measurement.is_faultless(), "{measurement:?}");
    // At most one in each 50 ms of 300 ms, and each connection sends at least once.
    assert!((4..=4 * 6).contains(&measurement.answered), "{measurement:?}");
    let levels: Vec<_> = measurement.levels.iter().map(|level| level.answered).collect();
    assert_eq!(levels.iter().sum::<u64>(), measurement.answered);
    assert!(levels.len() == 3 && levels.iter().all(|answered| *answered > 0), "{levels:?}");
    assert!(measurement.levels.iter().all(|level| level.latency_us.len() == level.answered));
}

#[test]
fn visitors_make_a_connection_for_each_request_and_refuse_wrong_answers() {
    let right = server(|stream, request| stream.write_all(&answer(request, 0)));
    let visits = Visits {
        server: right,
        order: Order::new(2).unwrap(),
        visitors: 2,
        duration: Duration::from_millis(100),
        patience: Duration::from_secs(5),
    };
    assert!(visit(&visits).unwrap().len() >= 2);
    let wrong = server(|stream, request| stream.write_all(&answer(request, 1)));
    let error = visit(&Visits { server: wrong, ..visits }).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn latency_counts_the_time_that_requests_wait_for_a_slow_server() {
    let server = server(|stream, request| {
        thread::sleep(Duration::from_millis(30));
        stream.write_all(&answer(request, 0))
    });
    // A request each 10 ms, 30 ms of work: the last of 30 requests waits for most of the others.
    let measurement =
        run(&Plan { patience: Duration::from_secs(5), ..plan(server, 1, every(10)) }, &mut |_| Continue::Yes).unwrap();
    assert!(measurement.is_faultless(), "{measurement:?}");
    assert_eq!(measurement.answered, 30);
    assert!(measurement.latency_us.max() > 500_000, "{measurement:?}");
    assert!(measurement.elapsed > Duration::from_millis(850), "{measurement:?}");
}

#[test]
fn wrong_products_are_counted_after_a_right_first_answer() {
    let server = server(|stream, request| stream.write_all(&answer(request, u32::from(request.sequence > 0))));
    let measurement = run(&plan(server, 2, every(100)), &mut |_| Continue::Yes).unwrap();
    assert_eq!((measurement.answered, measurement.wrong, measurement.lost), (0, 6, 0));
    assert!(!measurement.is_faultless());
    assert!(measurement.first_failure.unwrap().contains("is not the product"));
}

#[test]
fn silence_is_lost_requests() {
    let server = server(|stream, request| match request.sequence {
        0 => stream.write_all(&answer(request, 0)),
        _ => Ok(()),
    });
    let measurement = run(&plan(server, 2, every(100)), &mut |_| Continue::Yes).unwrap();
    assert_eq!((measurement.answered, measurement.wrong, measurement.lost), (0, 0, 6));
    assert!(measurement.first_failure.unwrap().contains("6 requests had no answer"));
}

#[test]
fn a_server_that_never_answers_loses_everything_without_hanging() {
    let server = server(|_, _| Ok(()));
    let started = Instant::now();
    let measurement = run(&plan(server, 2, every(100)), &mut |_| Continue::Yes).unwrap();
    assert_eq!((measurement.answered, measurement.lost), (0, 6));
    assert!(measurement.first_failure.unwrap().contains("did not answer its first request"));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn closed_connections_lose_owed_answers_and_later_requests() {
    let server = server(|stream, request| match request.sequence {
        0 | 1 => stream.write_all(&answer(request, 0)),
        _ => Err(std::io::ErrorKind::Other.into()),
    });
    let measurement = run(&plan(server, 2, every(100)), &mut |_| Continue::Yes).unwrap();
    assert_eq!((measurement.answered, measurement.lost), (2, 4));
}

#[test]
fn a_server_without_a_listener_loses_all_requests() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let measurement = run(&plan(free, 3, every(100)), &mut |_| Continue::Yes).unwrap();
    assert_eq!((measurement.answered, measurement.lost), (0, 9));
    assert!(matches!(probe(free, Order::MINIMUM, Duration::from_secs(1)), Err(ProbeError::NoAnswer(_))));
}

#[test]
fn garbage_ends_a_connection_with_its_reason() {
    let server = server(|stream, request| match request.sequence {
        0 => stream.write_all(&answer(request, 0)),
        _ => stream.write_all(&[0xff; 64]),
    });
    let measurement = run(&plan(server, 1, every(100)), &mut |_| Continue::Yes).unwrap();
    assert_eq!((measurement.answered, measurement.lost), (0, 3));
    assert!(measurement.first_failure.unwrap().contains("order 4294967295"));
}

#[test]
fn an_observer_can_stop_a_run_at_any_stage() {
    let server = server(|stream, request| stream.write_all(&answer(request, 0)));
    let result = run(&plan(server, 2, every(100)), &mut |stage| match stage {
        Stage::Sending(_) => Continue::No,
        _ => Continue::Yes,
    });
    assert!(matches!(result, Err(Error::Stopped)));
    let result = run(&plan(server, 2, every(100)), &mut |_| Continue::No);
    assert!(matches!(result, Err(Error::Stopped)));
}

#[test]
fn a_probe_tells_right_from_wrong_from_nothing() {
    let good = server(|stream, request| stream.write_all(&answer(request, 0)));
    let bad = server(|stream, request| stream.write_all(&answer(request, 1)));
    let mute = server(|_, _| Ok(()));
    let limit = Duration::from_millis(300);
    assert!(probe(good, Order::MAXIMUM, limit).is_ok());
    assert!(matches!(probe(bad, Order::MINIMUM, limit), Err(ProbeError::WrongAnswer)));
    assert!(matches!(probe(mute, Order::MINIMUM, limit), Err(ProbeError::NoAnswer(_))));
}
