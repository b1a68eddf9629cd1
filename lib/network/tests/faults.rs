//! Actions of wires and strangers: loss, disorder, floods, forgeries, very many connections.

mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use network::{Error, Limits, LocalConnections, Patience, Reader, Received, Sent, Sharing, TcpOptions};
use proptest::prelude::*;
use wire::*;

/// The byte at each position of a stream.
fn pattern(position: usize) -> u8 {
    (position as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

/// Sends `size` bytes each way at once, checks the received bytes, then ends both sides.
fn exchange(faults: Faults, seed: u64, size: usize) {
    // A run of bad luck must not end the connection: with every loss the next attempt comes later.
    let patience =
        Patience { acknowledgement_ns: 100_000 * SECOND, orphan_ns: 100_000 * SECOND, ..Patience::default() };
    let friendly = Faults { unstamps: faults.unstamps, ..Faults::default() };
    let mut net = Net::with(friendly, seed, Limits::default(), patience);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    let is_stamped = |information: Option<network::Information>| information.unwrap().is_stamped;
    assert_eq!(is_stamped(net.client.information(client).unwrap().1), !faults.unstamps);
    assert_eq!(is_stamped(net.server.information(server).unwrap().1), !faults.unstamps);
    // The wire gets bad only after the two have met.
    net.client.link().faults = faults;
    net.server.link().faults = faults;
    let mut sent = [0; 2];
    let mut got = [0; 2];
    let mut ended = [false; 2];
    net.run_until(20_000 * SECOND, |net| {
        for end in 0..2 {
            let now = net.now;
            let (stack, id) = if end == 0 { (&mut net.client, client) } else { (&mut net.server, server) };
            while sent[end] < size {
                let outcome = stack.tcp_send_with(
                    id,
                    |room| {
                        let count = room.len().min(size - sent[end]);
                        for byte in &mut room[..count] {
                            *byte = pattern(sent[end]);
                            sent[end] += 1;
                        }
                        count
                    },
                    now,
                );
                if outcome.unwrap() == Sent::Full {
                    break;
                }
                if sent[end] == size {
                    stack.shutdown(id, network::Shutdown::Send, now).unwrap();
                }
            }
            loop {
                let outcome = stack.tcp_receive_with(
                    id,
                    |bytes| {
                        for byte in bytes {
                            assert_eq!(*byte, pattern(got[end]), "byte {} of end {end}", got[end]);
                            got[end] += 1;
                        }
                        bytes.len()
                    },
                    now,
                );
                match outcome.unwrap() {
                    Received::Bytes(_) => {}
                    Received::Nothing => break,
                    Received::End => {
                        ended[end] = true;
                        break;
                    }
                }
            }
        }
        ended == [true; 2]
    });
    assert_eq!(got, [size; 2]);
    net.client.close(client, net.now).unwrap();
    net.server.close(server, net.now).unwrap();
    net.run_until(20_000 * SECOND, |net| {
        net.client.connection_counts() == (0, 0) && net.server.connection_counts() == (0, 0)
    });
}

#[test]
fn bytes_survive_a_bad_wire() {
    for (seed, faults) in [
        Faults::default(),
        Faults { lost: 10, ..Faults::default() },
        Faults { delayed: 40, ..Faults::default() },
        Faults { repeated: 30, ..Faults::default() },
        Faults { damaged: 10, ..Faults::default() },
        Faults { lost: 10, repeated: 10, delayed: 20, damaged: 5, unstamps: false },
    ]
    .into_iter()
    .enumerate()
    {
        for unstamps in [false, true] {
            exchange(Faults { unstamps, ..faults }, seed as u64 + 100, 200_000);
        }
    }
}

/// Only the end of the stream was lost, and the other side repeats itself: smoltcp stops its timer.
#[test]
fn a_lost_end_is_sent_again() {
    let faults = Faults { lost: 1, repeated: 24, delayed: 11, damaged: 5, unstamps: true };
    exchange(faults, 10_512_267_999_503_546_352, 20_000);
}

proptest! {
    #![proptest_config(property::cases(16))]
    #[test]
    fn bytes_survive_any_wire(
        seed: u64, lost in 0u64..25, repeated in 0u64..30, delayed in 0u64..60, damaged in 0u64..15, unstamps: bool,
    ) {
        exchange(Faults { lost, repeated, delayed, damaged, unstamps }, seed, 20_000);
    }
}

/// Returns the address of an end over IPv4.
fn octets(end: SocketAddr) -> [u8; 4] {
    match end.ip() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => panic!("{end} is of the other family"),
    }
}

/// A frame from a stranger to port 80 of the server, with right checksums.
fn forged(from: SocketAddr, flags: u8, sequence: u32, acknowledgement: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 15]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(40 + payload.len() as u16).to_be_bytes());
    frame[22] = 64;
    frame[23] = 6;
    frame[26..30].copy_from_slice(&octets(from));
    frame[30..34].copy_from_slice(&SERVER.octets());
    frame[34..36].copy_from_slice(&from.port().to_be_bytes());
    frame[36..38].copy_from_slice(&80u16.to_be_bytes());
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[42..46].copy_from_slice(&acknowledgement.to_be_bytes());
    frame[46] = 0x50;
    frame[47] = flags;
    frame[48..50].copy_from_slice(&1000u16.to_be_bytes());
    frame.extend_from_slice(payload);
    seal(&mut frame);
    frame
}

#[test]
fn a_flood_of_requests_costs_as_much_as_the_backlog_allows_and_ends() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 64);
    let (client, server) = net.pair(listener);
    let stranger = |number: u32| SocketAddr::new(Ipv4Addr::from(0x0a00_0300 + number).into(), 1000 + number as u16);
    for number in 0..10_000u32 {
        net.to_server.borrow_mut().push_back(forged(stranger(number), 2, number, 0, b""));
        net.server.poll(net.now);
        // In the middle of it, real clients come, say something and go.
        if number % 500 == 499 {
            let (client, server) = net.pair(listener);
            send(&mut net.client, client, b"let me in", net.now).unwrap();
            net.settle();
            let mut got = Vec::new();
            assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(9)));
            net.client.close(client, net.now).unwrap();
            net.settle();
            net.server.close(server, net.now).unwrap();
            net.settle();
        }
    }
    assert_eq!(net.server.connection_counts().0, 1);
    assert_eq!(net.server.half_open_count(), 64);
    let counters = net.server.counters();
    assert_eq!((counters.requests_dropped, counters.cookies_sent), (0, 10_000 + 20 - 64));
    assert_eq!(counters.cookies_accepted, 20);
    // Clients that were there before are not disturbed.
    send(&mut net.client, client, b"still here", net.now).unwrap();
    net.pass(100 * MILLISECOND);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(10)));
    // And when the flood has ended, nothing is left of it.
    net.pass(60 * SECOND);
    assert_eq!((net.server.connection_counts().0, net.server.half_open_count()), (1, 0));
    net.pair(listener);
    assert_eq!(net.server.counters().cookies_sent, counters.cookies_sent);
}

/// A stranger's view of the answers on the wire: their numbers, flags, and acknowledgement numbers.
fn answers(net: &Net) -> Vec<(u32, u8, u32)> {
    let word = |frame: &[u8], at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let frames = net.to_client.borrow_mut().split_off(0);
    frames
        .into_iter()
        .filter(|frame| frame.len() >= 54 && frame[23] == 6)
        .map(|frame| (word(&frame, 38), frame[47], word(&frame, 42)))
        .collect()
}

/// Introduces the client's hardware address to the server.
fn introduce(net: &mut Net, listener: network::ListenerId) {
    let (_, server) = net.pair(listener);
    net.server.abort(server, net.now).unwrap();
    net.settle();
}

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 0x10;

#[test]
fn a_request_is_answered_again_until_it_is_acknowledged_or_given_up() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    introduce(&mut net, listener);
    let from = SocketAddr::new(CLIENT.into(), 7000);
    net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
    let mut seen = Vec::new();
    for _ in 0..650 {
        net.server.poll(net.now);
        seen.extend(answers(&net));
        net.now += 10 * MILLISECOND;
    }
    // At once, after 1, 3 and 7 seconds; always the same.
    assert_eq!(seen.len(), 3);
    let ours = seen[0].0;
    assert!(seen.iter().all(|&answer| answer == (ours, SYN | ACK, 42)));
    // A repeated request gets the same answer at once; another number is doubted, and a wrong acknowledgement reset.
    for (flags, sequence, acknowledgement, answer) in [
        (SYN, 41, 0, vec![(ours, SYN | ACK, 42)]),
        (SYN, 99, 0, vec![(ours + 1, ACK, 42)]),
        (ACK, 42, ours + 2, vec![(ours + 2, RST, 0)]),
        (ACK, 42, ours, vec![(ours, RST, 0)]),
        (RST, 41, 0, vec![]),
        (RST, 43, 0, vec![]),
        (0, 42, 0, vec![]),
    ] {
        net.to_server.borrow_mut().push_back(forged(from, flags, sequence, acknowledgement, b""));
        net.server.poll(net.now);
        assert_eq!(answers(&net), answer, "{flags:#x} {sequence}");
        assert_eq!((net.server.connection_counts().0, net.server.half_open_count()), (0, 1));
    }
    // A damaged acknowledgement is ignored.
    let mut damaged = forged(from, ACK, 42, ours + 1, b"hello");
    damaged[56] ^= 1;
    net.to_server.borrow_mut().push_back(damaged);
    net.server.poll(net.now);
    assert_eq!((net.server.connection_counts().0, net.server.half_open_count()), (0, 1));
    // The right one may bring data, and even the end.
    net.to_server.borrow_mut().push_back(forged(from, ACK | 1, 42, ours + 1, b"hello"));
    net.server.poll(net.now);
    assert_eq!((net.server.connection_counts().0, net.server.half_open_count()), (1, 0));
    let (server, remote) = net.server.accept(listener).unwrap().unwrap();
    assert_eq!(remote, from);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(5)));
    assert_eq!(got, b"hello");
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::End));
    net.server.abort(server, net.now).unwrap();
    net.server.poll(net.now);

    // A reset with the right number, the end of the patience, and the end of the listener end a request.
    for (port, end) in [(7001, 0), (7002, 1), (7003, 2)] {
        let from = SocketAddr::new(CLIENT.into(), port);
        net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
        net.server.poll(net.now);
        assert_eq!(net.server.half_open_count(), 1);
        match end {
            0 => net.to_server.borrow_mut().push_back(forged(from, RST, 42, 0, b"")),
            1 => {
                let before = answers(&net).len();
                assert!(before > 0);
                net.pass(33 * SECOND);
            }
            _ => {
                net.server.close_listener(listener, net.now).unwrap();
                let ours = answers(&net).pop().unwrap().0;
                net.to_server.borrow_mut().push_back(forged(from, ACK, 42, ours + 1, b""));
                net.server.poll(net.now);
                assert_eq!(answers(&net), [(ours + 1, RST, 0)]);
            }
        }
        net.server.poll(net.now);
        assert_eq!((net.server.connection_counts().0, net.server.half_open_count()), (0, 0), "{end}");
    }
}

/// Fills a queue of one place, and asks for a connection to it with the number 41: returns the listener, the asker and
/// the cookie that it got.
fn net_with_a_cookie() -> (Net, network::ListenerId, SocketAddr, u32) {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 1);
    introduce(&mut net, listener);
    let from = SocketAddr::new(CLIENT.into(), 7000);
    net.to_server.borrow_mut().push_back(forged(SocketAddr::new(CLIENT.into(), 9), SYN, 0, 0, b""));
    net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
    net.server.poll(net.now);
    let cookie = answers(&net)[1].0;
    (net, listener, from, cookie)
}

#[test]
fn a_cookie_is_good_for_its_request_only_and_only_while_there_is_need() {
    let (mut net, listener, from, cookie) = net_with_a_cookie();
    // No stranger has a number that was not sent, and without any cookie not even its number is checked.
    assert_eq!((net.server.half_open_count(), net.server.counters().cookies_sent), (1, 1));
    let mut random = Random(7);
    for _ in 0..1000 {
        net.to_server.borrow_mut().push_back(forged(from, ACK, 42, random.next() as u32, b""));
        net.server.poll(net.now);
    }
    for (from, sequence) in [(SocketAddr::new(CLIENT.into(), 7001), 42), (from, 43)] {
        net.to_server.borrow_mut().push_back(forged(from, ACK, sequence, cookie + 1, b""));
        net.server.poll(net.now);
    }
    let answers_to_guesses = answers(&net);
    assert_eq!(answers_to_guesses.len(), 1002);
    assert!(answers_to_guesses.iter().all(|answer| answer.1 == RST));
    assert_eq!(net.server.connection_counts().0, 0);
    // A minute later it still is.
    net.now += 60 * SECOND;
    net.to_server.borrow_mut().push_back(forged(from, ACK, 42, cookie + 1, b"hello"));
    net.server.poll(net.now);
    assert_eq!((net.server.connection_counts().0, net.server.counters().cookies_accepted), (1, 1));
    // No other gets in while this one was not accepted.
    net.to_server.borrow_mut().push_back(forged(SocketAddr::new(CLIENT.into(), 7002), SYN, 41, 0, b""));
    net.server.poll(net.now);
    assert_eq!(net.server.counters().requests_dropped, 1);
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(5)));
    // And after a while it is not: an observer cannot use it for ever.
    net.now += 200 * SECOND;
    let from = SocketAddr::new(CLIENT.into(), 7003);
    net.to_server.borrow_mut().push_back(forged(from, ACK, 42, cookie + 1, b""));
    net.server.poll(net.now);
    assert_eq!(net.server.connection_counts().0, 1);
}

#[test]
fn a_reset_needs_the_exact_number() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    introduce(&mut net, listener);
    let from = SocketAddr::new(CLIENT.into(), 7000);
    net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
    net.server.poll(net.now);
    let ours = answers(&net)[0].0;
    net.to_server.borrow_mut().push_back(forged(from, ACK, 42, ours + 1, b"hello"));
    net.server.poll(net.now);
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    let mut got = Vec::new();
    receive(&mut net.server, server, &mut got, net.now).unwrap();
    net.now += SECOND;
    net.server.poll(net.now);
    answers(&net);
    // Everywhere in the window and around it but at its beginning; and a request in the window.
    let next = 42 + 5;
    for sequence in [next + 1, next + 100, next + 8191, next + 8192, next - 1, next + 1_000_000] {
        for flags in [RST, RST | ACK, SYN] {
            net.now += 2 * SECOND;
            // The server asks now and then whether the client is still there.
            let mut told = hardware_address_of(CLIENT, 2);
            told[..6].copy_from_slice(&[2, 0, 0, 0, 0, 15]);
            told[38..].copy_from_slice(&SERVER.octets());
            net.to_server.borrow_mut().push_back(told);
            net.to_server.borrow_mut().push_back(forged(from, flags, sequence, ours + 1, b""));
            net.server.poll(net.now);
            let in_window = flags == SYN || (next..next + 8192).contains(&sequence);
            let expected = if in_window { vec![(ours + 1, ACK, next)] } else { vec![] };
            assert_eq!(answers(&net), expected, "{flags:#x} at {}", sequence.wrapping_sub(next));
            assert_eq!(net.server.connection_counts().0, 1, "{flags:#x} at {}", sequence.wrapping_sub(next));
            answers(&net);
        }
    }
    assert_eq!(net.server.counters().challenges, 6 + 6);
    // A storm of them is answered once in a second.
    for _ in 0..1000 {
        net.to_server.borrow_mut().push_back(forged(from, RST, next + 1, 0, b""));
        net.server.poll(net.now);
    }
    assert!(answers(&net).len() <= 1);
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Nothing));
    net.to_server.borrow_mut().push_back(forged(from, RST, next, 0, b""));
    net.server.poll(net.now);
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Err(Error::Reset));
}

/// A router's message to the client that a segment from `local` to `remote` cannot be delivered.
fn undeliverable(local: SocketAddr, remote: SocketAddr, number: u32) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 8 + 20 + 8];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12] = 8;
    frame[14] = 0x45;
    frame[17] = 20 + 8 + 20 + 8;
    frame[22] = 64;
    frame[23] = 1;
    frame[26..30].copy_from_slice(&[10, 0, 2, 1]);
    frame[30..34].copy_from_slice(&CLIENT.octets());
    frame[34..36].copy_from_slice(&[3, 1]);
    frame[42] = 0x45;
    frame[51] = 6;
    frame[54..58].copy_from_slice(&octets(local));
    frame[58..62].copy_from_slice(&octets(remote));
    frame[62..64].copy_from_slice(&local.port().to_be_bytes());
    frame[64..66].copy_from_slice(&remote.port().to_be_bytes());
    frame[66..70].copy_from_slice(&number.to_be_bytes());
    seal(&mut frame);
    frame
}

/// Returns the frame in which 10.0.2.99 tells the client its hardware address.
fn hardware_address_of_99() -> Vec<u8> {
    hardware_address_of(Ipv4Addr::new(10, 0, 2, 99), 9)
}

/// Returns the frame in which a host tells the client its hardware address, which ends with this byte.
fn hardware_address_of(host: Ipv4Addr, last: u8) -> Vec<u8> {
    let mut arp = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, last, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, last];
    arp.extend(host.octets());
    arp.extend([2, 0, 0, 0, 0, 2]);
    arp.extend(CLIENT.octets());
    arp
}

#[test]
fn a_message_from_the_network_ends_only_a_connection_that_is_being_made() {
    let [server, mut client] =
        [SERVER, CLIENT].map(|address| configuration(address, Limits::default(), Patience::default()));
    client.local_connections = LocalConnections::Packets;
    let mut net = Net::configured(Faults::default(), 1, [server, client]);
    let listener = net.listen(80, 4);
    let (established, _server) = net.pair(listener);
    let connect =
        |net: &mut Net, remote| net.client.tcp_connect(None, remote, &TcpOptions::default(), net.now).unwrap();
    let wanted = connect(&mut net, SocketAddr::new(Ipv4Addr::new(10, 0, 2, 99).into(), 80));
    // Within the host, where no router is, one waits for room.
    let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
    let binding = net.client.tcp_bind(here, Sharing::Exclusive).unwrap();
    net.client.tcp_listen(binding, 1, &TcpOptions::default()).unwrap();
    let first = connect(&mut net, here);
    net.client.poll(net.now);
    let waiting = connect(&mut net, here);
    net.client.poll(net.now);
    assert_eq!((net.client.connected(first), net.client.connected(waiting)), (Ok(true), Ok(false)));
    let (bell, waker) = Bell::new();
    net.client.register(wanted, network::Interest::Send, &waker).unwrap();
    let ends = |net: &mut Net, id| (net.client.local_endpoint(id).unwrap(), net.client.remote_endpoint(id).unwrap());
    let (local, remote) = ends(&mut net, wanted);
    // The hardware address of the host that is not there, so that the request leaves and shows its number.
    net.to_client.borrow_mut().push_back(hardware_address_of_99());
    net.to_server.borrow_mut().clear();
    net.client.poll(net.now);
    let request = net.to_server.borrow().iter().find(|frame| frame[23] == 6).cloned().unwrap();
    let number = u32::from_be_bytes(request[38..42].try_into().unwrap());
    let other = SocketAddr::new(remote.ip(), 81);
    for (local, remote) in [(local, other), ends(&mut net, established), ends(&mut net, first), ends(&mut net, waiting)]
    {
        net.to_client.borrow_mut().push_back(undeliverable(local, remote, number));
        net.client.poll(net.now);
    }
    // A stranger does not know the number.
    for guess in [0, number.wrapping_sub(1), number.wrapping_add(1), number ^ 1 << 31] {
        net.to_client.borrow_mut().push_back(undeliverable(local, remote, guess));
        net.client.poll(net.now);
    }
    assert_eq!(bell.rings(), 0);
    let outcomes = [established, first, waiting, wanted].map(|id| net.client.connected(id));
    assert_eq!(outcomes, [Ok(true), Ok(true), Ok(false), Ok(false)]);
    // A message that was damaged on its way proves nothing: its header, or the rest behind the quoted ports.
    for at in [22, 38, 66] {
        let mut damaged = undeliverable(local, remote, number);
        damaged[at] ^= 1;
        net.to_client.borrow_mut().push_back(damaged);
        net.client.poll(net.now);
        assert_eq!((bell.rings(), net.client.connected(wanted)), (0, Ok(false)), "byte {at}");
    }
    net.to_client.borrow_mut().push_back(undeliverable(local, remote, number));
    net.client.poll(net.now);
    assert_eq!((bell.rings(), net.client.connected(wanted)), (1, Err(Error::Unreachable)));
    net.client.close(wanted, net.now).unwrap();
    assert_eq!(net.client.connection_counts().0, 4);
}

#[test]
fn one_listener_leaves_connections_to_others() {
    let limits = Limits { connections: 40, ..Limits::default() };
    let mut net = Net::with_limits(Faults::default(), 1, limits);
    let greedy = net.listen(80, 4000);
    let other = net.listen(81, 4000);
    // Strangers with right requests, which are never accepted.
    for number in 0..200u16 {
        let from = SocketAddr::new(CLIENT.into(), 1000 + number);
        net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
        net.server.poll(net.now);
        if let Some(&(ours, ..)) = answers(&net).last() {
            net.to_server.borrow_mut().push_back(forged(from, ACK, 42, ours.wrapping_add(1), b""));
            net.server.poll(net.now);
        }
    }
    assert_eq!(net.server.connection_counts().0, 20);
    answers(&net);
    net.pair(other);
    net.server.close_listener(greedy, net.now).unwrap();
}

#[test]
fn storms_of_connections_leave_nothing() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 64);
    introduce(&mut net, listener);
    net.pass(30 * SECOND);
    assert_eq!(net.server.connection_counts(), (0, 0));
    let mut random = Random(4711);
    for number in 0..3000u16 {
        let from = SocketAddr::new(CLIENT.into(), 1000 + number);
        net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
        net.server.poll(net.now);
        let Some(ours) = answers(&net).iter().find(|answer| answer.1 == SYN | ACK).map(|answer| answer.0) else {
            continue;
        };
        let (ours, kind) = (ours.wrapping_add(1), random.below(5));
        // Never acknowledged; reset; acknowledged and reset, ended, or left alone.
        if kind > 0 {
            let flags = if kind == 1 { RST } else { ACK };
            net.to_server.borrow_mut().push_back(forged(from, flags, 42, ours, b""));
        }
        if kind > 1 {
            let flags = [RST, ACK | 1, ACK][kind as usize - 2];
            net.to_server.borrow_mut().push_back(forged(from, flags, 42, ours, b"GET"));
        }
        net.server.poll(net.now);
        // The server answers and closes; half of the strangers have gone without a word.
        if random.percent(80) {
            while let Ok(Some((server, _))) = net.server.accept(listener) {
                let _ = send(&mut net.server, server, &[1; 20_000], net.now);
                net.server.close(server, net.now).unwrap();
            }
        }
        net.now += random.below(10) * MILLISECOND;
        net.server.poll(net.now);
    }
    while let Ok(Some((server, _))) = net.server.accept(listener) {
        net.server.close(server, net.now).unwrap();
    }
    // All have gone, and the connections are orphans.
    for _ in 0..500 {
        net.now += SECOND;
        net.server.poll(net.now);
        answers(&net);
    }
    assert_eq!((net.server.connection_counts(), net.server.half_open_count()), ((0, 0), 0));
    net.pair(listener);
}

#[test]
fn old_segments_and_guessed_resets_do_no_harm() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    let from = net.client.local_endpoint(client).unwrap();
    let mut random = Random(77);
    for _ in 0..2000 {
        let flags = [4, 0x14, 2, 0x12, 0x10, 0x18, 1, 0x11][random.below(8) as usize];
        let (sequence, acknowledgement) = (random.next() as u32, random.next() as u32);
        net.to_server.borrow_mut().push_back(forged(from, flags, sequence, acknowledgement, b"evil"));
        net.settle();
    }
    send(&mut net.client, client, b"good", net.now).unwrap();
    net.pass(SECOND);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(4)));
    assert_eq!(got, b"good");
}

#[test]
fn ten_thousand_connections_share_a_server() {
    let limits = Limits { backlog: 20_000, orphans: 20_000, ..Limits::default() };
    let mut net = Net::with_limits(Faults::default(), 1, limits);
    let listener = net.listen(80, 20_000);
    let small = TcpOptions { receive_buffer: 1024, send_buffer: 1024, ..TcpOptions::default() };
    net.server.set_listener_options(listener, &small).unwrap();
    let clients: Vec<_> = (0..10_000)
        .map(|number| {
            let id = net.client.tcp_connect(None, SocketAddr::new(SERVER.into(), 80), &small, net.now).unwrap();
            if number % 100 == 99 {
                net.settle();
            }
            id
        })
        .collect();
    net.settle();
    let mut servers = Vec::new();
    while let Some((id, remote)) = net.server.accept(listener).unwrap() {
        servers.push((remote.port(), id));
    }
    assert_eq!(servers.len(), 10_000);
    // Every client says its number, and hears it again.
    for (number, id) in clients.iter().enumerate() {
        let text = (number as u32).to_le_bytes();
        assert_eq!(send(&mut net.client, *id, &text, net.now), Ok(Sent::Bytes(4)));
        if number % 50 == 0 {
            net.settle();
        }
    }
    net.pass(100 * MILLISECOND);
    for (_, id) in &servers {
        let mut got = Vec::new();
        assert_eq!(receive(&mut net.server, *id, &mut got, net.now), Ok(Received::Bytes(4)));
        send(&mut net.server, *id, &got, net.now).unwrap();
    }
    net.pass(100 * MILLISECOND);
    for (number, id) in clients.iter().enumerate() {
        let mut got = Vec::new();
        assert_eq!(receive(&mut net.client, *id, &mut got, net.now), Ok(Received::Bytes(4)));
        assert_eq!(got, (number as u32).to_le_bytes());
        net.client.close(*id, net.now).unwrap();
    }
    net.pass(SECOND);
    for (_, id) in servers {
        assert_eq!(receive(&mut net.server, id, &mut Vec::new(), net.now), Ok(Received::End));
        net.server.close(id, net.now).unwrap();
    }
    net.pass(SECOND);
    assert_eq!(net.server.connection_counts(), (0, 0));
    assert_eq!(net.client.connection_counts(), (0, 10_000));
    net.pass(20 * SECOND);
    assert_eq!(net.client.connection_counts(), (0, 0));
}

#[test]
fn remembered_connections_are_limited() {
    let limits = Limits { time_wait: 10, ..Limits::default() };
    let mut net = Net::with_limits(Faults::default(), 1, limits);
    let listener = net.listen(80, 10);
    for _ in 0..50 {
        let (client, server) = net.pair(listener);
        net.server.close(server, net.now).unwrap();
        net.settle();
        net.client.close(client, net.now).unwrap();
        net.settle();
    }
    assert_eq!(net.server.connection_counts(), (0, 10));
}

#[test]
fn closed_connections_are_limited() {
    let limits = Limits { orphans: 5, ..Limits::default() };
    let mut net = Net::with_limits(Faults::default(), 1, limits);
    let listener = net.listen(80, 20);
    let pairs: Vec<_> = (0..20).map(|_| net.pair(listener)).collect();
    for (_, server) in &pairs {
        net.server.close(*server, net.now).unwrap();
    }
    net.settle();
    assert_eq!(net.server.connection_counts().0, 5);
    let resets = pairs
        .iter()
        .filter(|(client, _)| receive(&mut net.client, *client, &mut Vec::new(), net.now) == Err(Error::Reset))
        .count();
    assert_eq!(resets, 15);
}

#[test]
fn datagrams_cross_the_wire() {
    let mut net = Net::new(Faults::default(), 1);
    let options = network::DatagramOptions::default();
    let server = net.server.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 53), &options).unwrap();
    let client = net.client.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), &options).unwrap();
    let to = SocketAddr::new(SERVER.into(), 53);
    for size in [0, 1, 100, 1472] {
        let sent = net.client.udp_send_with(client, Some(to), size, |room| room.fill(size as u8));
        assert_eq!(sent, Ok(Sent::Bytes(size)));
        net.settle();
        let got = net.server.udp_receive_with(server, |from, bytes| (from, bytes.to_vec())).unwrap().unwrap();
        assert_eq!(got.1, vec![size as u8; size]);
        net.server.udp_send_with(server, Some(got.0), 3, |room| room.copy_from_slice(b"yes")).unwrap();
        net.settle();
        assert_eq!(net.client.udp_receive_with(client, |from, _| from), Ok(Some(to)));
    }
    assert_eq!(net.client.udp_send_with(client, Some(to), 1473, |_| ()), Err(Error::TooLong));
    // A port without a socket: the connected sender gets an error.
    net.client.udp_connect(client, Some(SocketAddr::new(SERVER.into(), 54))).unwrap();
    net.client.udp_send_with(client, None, 1, |_| ()).unwrap();
    net.settle();
    assert_eq!(net.client.udp_receive_with(client, |_, _| ()), Err(Error::Refused));
    // Without a peer only if it asks for that.
    net.client.udp_connect(client, None).unwrap();
    for (reports_all, failure) in [(false, None), (true, Some(Error::Refused))] {
        net.client.set_datagram_reports(client, reports_all).unwrap();
        net.client.udp_send_with(client, Some(SocketAddr::new(SERVER.into(), 54)), 1, |_| ()).unwrap();
        net.settle();
        assert_eq!(net.client.take_datagram_failure(client), Ok(failure));
        assert_eq!(net.client.take_datagram_failure(client), Ok(None));
    }
    // A full buffer of the receiver loses datagrams, one of the sender makes it wait.
    for _ in 0..100 {
        if net.server.udp_send_with(server, Some(SocketAddr::new(CLIENT.into(), 9)), 1000, |_| ()) == Ok(Sent::Full) {
            let (bell, waker) = Bell::new();
            net.server.udp_register(server, network::Interest::Send, &waker).unwrap();
            net.settle();
            assert_eq!(bell.rings(), 1);
            return;
        }
    }
    panic!("the buffer was never full");
}

/// A device without room is tried again after a millisecond, and with room all that may leave leaves at once.
#[test]
fn a_full_device_is_tried_again_soon() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    let (client, server) = net.pair(listener);
    let data: Vec<u8> = (0..5000).map(pattern).collect();
    let mut got = Vec::new();
    // A connection that has sent some bytes may have several segments under way.
    for _ in 0..3 {
        send(&mut net.client, client, &data, net.now).unwrap();
        net.pass(SECOND);
        receive(&mut net.server, server, &mut got, net.now).unwrap();
    }
    net.client.link().is_full = true;
    assert_eq!(send(&mut net.client, client, &data, net.now), Ok(Sent::Bytes(5000)));
    for _ in 0..3 {
        assert_eq!(net.client.poll(net.now), Some(net.now + MILLISECOND));
        assert!(net.to_server.borrow().is_empty());
        net.now += MILLISECOND;
    }
    net.client.link().is_full = false;
    // No time passes.
    net.settle();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(5000)));
    assert_eq!(got, data.repeat(4));
}

#[test]
fn datagrams_wait_for_room_in_the_device() {
    let mut net = Net::new(Faults::default(), 1);
    let options = network::DatagramOptions {
        receive_buffer: 10_000,
        send_buffer: 10_000,
        datagrams: 30,
        ..network::DatagramOptions::default()
    };
    let server = net.server.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 53), &options).unwrap();
    let client = net.client.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), &options).unwrap();
    let to = Some(SocketAddr::new(SERVER.into(), 53));
    let received = |net: &mut Net| {
        let mut all = Vec::new();
        while let Some(mark) = net.server.udp_receive_with(server, |_, bytes| bytes[0]).unwrap() {
            all.push(mark);
        }
        all
    };
    // The hardware address is known from now on.
    net.client.udp_send_with(client, to, 1, |room| room.fill(99)).unwrap();
    net.settle();
    assert_eq!(received(&mut net), [99]);
    for full in [true, false] {
        net.client.link().is_full = full;
        for mark in 0..20 {
            assert_eq!(net.client.udp_send_with(client, to, 100, |room| room.fill(mark)), Ok(Sent::Bytes(100)));
        }
        if full {
            for _ in 0..3 {
                assert_eq!(net.client.poll(net.now), Some(net.now + MILLISECOND));
                net.now += MILLISECOND;
            }
            assert!(net.to_server.borrow().is_empty());
            net.client.link().is_full = false;
        }
        // All of them, at one time.
        net.settle();
        assert_eq!(received(&mut net), Vec::from_iter(0..20));
    }
    // A host whose hardware address is not known is not asked for every millisecond.
    let nowhere = Some(SocketAddr::new(Ipv4Addr::new(10, 0, 2, 99).into(), 53));
    net.client.udp_send_with(client, nowhere, 1, |room| room.fill(7)).unwrap();
    assert!(net.client.poll(net.now).is_some_and(|next| next > net.now + 100 * MILLISECOND));
    let client = net.client.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), &options).unwrap();
    net.client.udp_send_with(client, to, 1, |room| room.fill(7)).unwrap();
    net.settle();
    assert_eq!(received(&mut net), [7]);
}

/// A request from a stranger that states the longest segment it takes.
fn request_stating(from: SocketAddr, segment: u16) -> Vec<u8> {
    let [high, low] = segment.to_be_bytes();
    let mut frame = forged(from, SYN, 41, 0, &[2, 4, high, low]);
    // The option is a part of the header.
    frame[46] = 0x60;
    seal(&mut frame);
    frame
}

/// RFC 9293, section 3.7.1: no segment is longer than the other side takes, and that is 536 bytes if it does not say. A
/// cookie knows four lengths, and uses the next shorter one.
#[test]
fn segments_are_as_long_as_the_other_side_takes() {
    let by_record = [(None, 536), (Some(536), 536), (Some(700), 700), (Some(1460), 1460), (Some(9000), 1460)];
    let by_cookie = [(None, 536), (Some(700), 536), (Some(1300), 1220), (Some(1459), 1440), (Some(9000), 1460)];
    for (cookies, (stated, longest)) in
        by_record.map(|case| (0, case)).into_iter().chain(by_cookie.map(|case| (1, case)))
    {
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(80, 1);
        introduce(&mut net, listener);
        for _ in 0..cookies {
            net.to_server.borrow_mut().push_back(forged(SocketAddr::new(CLIENT.into(), 9), SYN, 0, 0, b""));
        }
        net.server.poll(net.now);
        answers(&net);
        let from = SocketAddr::new(CLIENT.into(), 7000);
        let request = stated.map_or_else(|| forged(from, SYN, 41, 0, b""), |segment| request_stating(from, segment));
        net.to_server.borrow_mut().push_back(request);
        net.server.poll(net.now);
        let ours = answers(&net)[0].0;
        let mut acknowledgement = forged(from, ACK, 42, ours.wrapping_add(1), b"");
        acknowledgement[48..50].copy_from_slice(&8000u16.to_be_bytes());
        seal(&mut acknowledgement);
        net.to_server.borrow_mut().push_back(acknowledgement);
        net.server.poll(net.now);
        assert_eq!(net.server.counters().cookies_accepted, cookies);
        let (server, _) = net.server.accept(listener).unwrap().unwrap();
        send(&mut net.server, server, &[7; 3000], net.now).unwrap();
        net.server.poll(net.now);
        let lengths: Vec<usize> = net.to_client.borrow().iter().map(|frame| frame.len() - 54).collect();
        assert_eq!(lengths.iter().max(), Some(&longest), "{stated:?}, {cookies} cookies: {lengths:?}");
    }
}

/// No connection has an end that no single host has.
#[test]
fn requests_from_no_host_are_not_answered() {
    let mut net = Net::new(Faults::default(), 1);
    net.listen(80, 4);
    for (address, port) in [
        (Ipv4Addr::new(224, 0, 0, 1), 1000),
        (Ipv4Addr::BROADCAST, 1000),
        (Ipv4Addr::new(10, 0, 2, 255), 1000),
        (Ipv4Addr::UNSPECIFIED, 1000),
        (CLIENT, 0),
    ] {
        net.to_server.borrow_mut().push_back(forged(SocketAddr::new(address.into(), port), SYN, 1, 0, b""));
        net.server.poll(net.now);
        assert_eq!((net.server.half_open_count(), net.to_client.borrow().len()), (0, 0), "{address} {port}");
    }
    net.to_server.borrow_mut().push_back(forged(SocketAddr::new(CLIENT.into(), 1000), SYN, 1, 0, b""));
    net.server.poll(net.now);
    assert_eq!(net.server.half_open_count(), 1);
}

#[test]
fn errors_say_what_is_wrong() {
    let messages = [Error::Stale, Error::Refused, Error::Reset, Error::Limit].map(|error| error.to_string());
    assert!(messages.iter().all(|message| message.len() > 8));
    assert_eq!(messages.iter().collect::<std::collections::BTreeSet<_>>().len(), messages.len());
}

/// A datagram from a stranger to port 53 of this address.
fn datagram(to: Ipv4Addr) -> Vec<u8> {
    let mut frame = forged(SocketAddr::new(CLIENT.into(), 1000), 0, 0, 0, b"");
    frame[17] = 20 + 8 + 4;
    frame[23] = 17;
    frame[30..34].copy_from_slice(&to.octets());
    frame[36..38].copy_from_slice(&53u16.to_be_bytes());
    frame[38..42].copy_from_slice(&[0, 12, 0, 0]);
    frame.truncate(14 + 20 + 8 + 4);
    seal(&mut frame);
    frame
}

#[test]
fn datagrams_for_other_addresses_are_not_received() {
    let mut net = Net::new(Faults::default(), 1);
    let options = network::DatagramOptions::default();
    let socket = net.server.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 53), &options).unwrap();
    for (to, is_for_us) in [
        (SERVER, true),
        (Ipv4Addr::BROADCAST, true),
        (Ipv4Addr::new(10, 0, 2, 255), true),
        (Ipv4Addr::new(10, 0, 2, 16), false),
        (Ipv4Addr::new(10, 0, 3, 255), false),
        (Ipv4Addr::new(224, 0, 0, 1), false),
        (Ipv4Addr::UNSPECIFIED, false),
    ] {
        net.to_server.borrow_mut().push_back(datagram(to));
        net.server.poll(net.now);
        let got = net.server.udp_receive_with(socket, |from, bytes| (from.port(), bytes.len()));
        assert_eq!(got, Ok(is_for_us.then_some((1000, 4))), "{to}");
    }
}

/// Connections that are given up count as closed ones until their reset is sent, and once.
#[test]
fn a_connection_that_is_given_up_counts_once_as_closed() {
    let limits = Limits { orphans: 1, ..Limits::default() };
    for times in [1, 2] {
        let mut net = Net::with_limits(Faults::default(), 1, limits);
        let listener = net.listen(80, 4);
        let pairs = [(); 3].map(|()| net.pair(listener));
        for _ in 0..times {
            net.server.abort(pairs[0].1, net.now).unwrap();
        }
        let end = |net: &mut Net, index: usize| receive(&mut net.client, pairs[index].0, &mut Vec::new(), net.now);
        // One too many is reset.
        net.server.close(pairs[1].1, net.now).unwrap();
        net.pass(10 * MILLISECOND);
        assert_eq!([end(&mut net, 0), end(&mut net, 1)], [Err(Error::Reset), Err(Error::Reset)], "{times}");
        // Both resets are sent.
        net.server.close(pairs[2].1, net.now).unwrap();
        net.pass(10 * MILLISECOND);
        assert_eq!(end(&mut net, 2), Ok(Received::End), "{times}");
    }
}

/// RFC 9293, section 3.10.7.4: an end that is repeated in TIME-WAIT is acknowledged again, with the same numbers. Other
/// segments of the old connection are not answered, and a reset does not end the wait (RFC 1337).
#[test]
fn a_repeated_end_is_acknowledged_with_the_numbers_of_the_connection() {
    const FIN: u8 = 1;
    for closes_late in [false, true] {
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(80, 4);
        introduce(&mut net, listener);
        let from = SocketAddr::new(CLIENT.into(), 7000);
        net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
        net.server.poll(net.now);
        let first = answers(&net)[0].0.wrapping_add(1);
        net.to_server.borrow_mut().push_back(forged(from, ACK, 42, first, b"hello"));
        net.server.poll(net.now);
        let (server, _) = net.server.accept(listener).unwrap().unwrap();
        receive(&mut net.server, server, &mut Vec::new(), net.now).unwrap();
        send(&mut net.server, server, b"bye", net.now).unwrap();
        if closes_late {
            net.server.shutdown(server, network::Shutdown::Send, net.now).unwrap();
        } else {
            net.server.close(server, net.now).unwrap();
        }
        net.server.poll(net.now);
        answers(&net);
        let (ours, theirs) = (first.wrapping_add(3 + 1), 42 + 5 + 1);
        let end = forged(from, ACK | FIN, theirs - 1, ours, b"");
        if closes_late {
            // A late copy of the first segment tells nothing new.
            for segment in [end.clone(), forged(from, ACK, 42, first, b"hello")] {
                net.to_server.borrow_mut().push_back(segment);
                net.server.poll(net.now);
                answers(&net);
            }
            net.server.close(server, net.now).unwrap();
            net.server.poll(net.now);
            answers(&net);
        }
        for round in 0..3 {
            net.to_server.borrow_mut().push_back(end.clone());
            net.server.poll(net.now);
            assert_eq!(answers(&net), [(ours, ACK, theirs)], "{closes_late} {round}");
            assert_eq!(net.server.connection_counts(), (0, 1), "{closes_late} {round}");
            for flags in [RST, RST | ACK, ACK] {
                net.to_server.borrow_mut().push_back(forged(from, flags, theirs, ours, b""));
                net.server.poll(net.now);
                assert_eq!((answers(&net), net.server.connection_counts()), (vec![], (0, 1)), "{flags:#x}");
            }
            net.now += SECOND;
        }
    }
}

#[test]
fn a_repeated_answer_waits_for_room_in_the_device() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    introduce(&mut net, listener);
    net.to_server.borrow_mut().push_back(forged(SocketAddr::new(CLIENT.into(), 7000), SYN, 41, 0, b""));
    net.server.poll(net.now);
    let first = answers(&net);
    assert_eq!(first.len(), 1);
    net.now += SECOND;
    net.server.link().is_full = true;
    for _ in 0..3 {
        assert_eq!(net.server.poll(net.now), Some(net.now + MILLISECOND));
        net.now += MILLISECOND;
    }
    net.server.link().is_full = false;
    net.server.poll(net.now);
    assert_eq!(answers(&net), first);
}

/// A connection in TIME-WAIT counts as a closed one from its close to its record, and leaves others counted.
#[test]
fn a_closed_connection_in_time_wait_counts_for_itself_alone() {
    let limits = Limits { orphans: 1, ..Limits::default() };
    let mut net = Net::with_limits(Faults::default(), 1, limits);
    let listener = net.listen(80, 4);
    let pairs = [(); 3].map(|()| net.pair(listener));
    // The first one waits for the end that its client does not send.
    net.server.close(pairs[0].1, net.now).unwrap();
    net.server.shutdown(pairs[1].1, network::Shutdown::Send, net.now).unwrap();
    net.settle();
    net.client.close(pairs[1].0, net.now).unwrap();
    net.settle();
    net.server.close(pairs[1].1, net.now).unwrap();
    net.settle();
    assert_eq!(net.server.connection_counts(), (2, 1));
    net.server.close(pairs[2].1, net.now).unwrap();
    net.pass(10 * MILLISECOND);
    assert_eq!(receive(&mut net.client, pairs[2].0, &mut Vec::new(), net.now), Err(Error::Reset));
}

#[test]
fn connections_beyond_the_backlog_wait_although_their_requests_were_answered() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 1);
    introduce(&mut net, listener);
    let strangers = [7000, 7001].map(|port| SocketAddr::new(CLIENT.into(), port));
    for from in strangers {
        net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
    }
    net.server.poll(net.now);
    let numbers: Vec<u32> = answers(&net).iter().map(|answer| answer.0).collect();
    assert_eq!((numbers.len(), net.server.counters().requests_dropped), (2, 0));
    for (from, number) in strangers.into_iter().zip(&numbers) {
        net.to_server.borrow_mut().push_back(forged(from, ACK, 42, number + 1, b""));
    }
    net.server.poll(net.now);
    assert_eq!((net.server.connection_counts().0, net.server.counters().requests_dropped), (1, 1));
    assert_eq!(net.server.accept(listener).unwrap().unwrap().1, strangers[0]);
    assert_eq!(net.server.accept(listener), Ok(None));
    // The other one says it again.
    net.to_server.borrow_mut().push_back(forged(strangers[1], ACK, 42, numbers[1] + 1, b""));
    net.server.poll(net.now);
    assert_eq!(net.server.accept(listener).unwrap().unwrap().1, strangers[1]);
}

#[test]
fn a_cookie_comes_back_in_an_acknowledgement_alone() {
    let (mut net, _, from, cookie) = net_with_a_cookie();
    for flags in [0, RST, RST | ACK, SYN | ACK, SYN | RST | ACK] {
        net.to_server.borrow_mut().push_back(forged(from, flags, 42, cookie.wrapping_add(1), b""));
        net.server.poll(net.now);
        let flags_of_answers: Vec<u8> = answers(&net).iter().map(|answer| answer.1 & RST).collect();
        assert_eq!(flags_of_answers, vec![RST; usize::from(flags & RST == 0)], "{flags:#x}");
        assert_eq!(net.server.connection_counts().0, 0, "{flags:#x}");
    }
    net.to_server.borrow_mut().push_back(forged(from, ACK, 42, cookie.wrapping_add(1), b""));
    net.server.poll(net.now);
    assert_eq!((net.server.connection_counts().0, net.server.counters().cookies_accepted), (1, 1));
}

/// smoltcp would stop the timer of an end at the third of them.
#[test]
fn repeated_acknowledgements_do_not_keep_a_lost_end_from_being_sent_again() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 1);
    let (client, server) = net.pair(listener);
    send(&mut net.server, server, b"!", net.now).unwrap();
    net.server.poll(net.now);
    loop {
        let next = net.client.poll(net.now);
        if !net.to_server.borrow().is_empty() {
            break;
        }
        net.now = next.expect("an acknowledgement is due");
    }
    let acknowledgement = net.to_server.borrow()[0].clone();
    assert_eq!((acknowledgement.len(), acknowledgement[47]), (HEADERS, ACK));
    net.server.poll(net.now);
    assert_eq!(net.server.unacknowledged(server), Ok(0));
    net.server.shutdown(server, network::Shutdown::Send, net.now).unwrap();
    net.server.poll(net.now);
    assert_eq!(net.to_client.borrow_mut().split_off(0).len(), 1, "the end is lost");
    for _ in 0..5 {
        net.to_server.borrow_mut().push_back(acknowledgement.clone());
        net.server.poll(net.now);
    }
    net.pass(5 * SECOND);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.client, client, &mut got, net.now), Ok(Received::Bytes(1)));
    assert_eq!(receive(&mut net.client, client, &mut got, net.now), Ok(Received::End));
}

#[test]
fn bytes_that_wait_to_be_received_make_the_window_smaller() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    introduce(&mut net, listener);
    let from = SocketAddr::new(CLIENT.into(), 7000);
    net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
    net.server.poll(net.now);
    let ours = answers(&net)[0].0;
    for number in 0..4 {
        net.to_server.borrow_mut().push_back(forged(from, ACK, 42 + number * 1000, ours + 1, &[7; 1000]));
        net.server.poll(net.now);
    }
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    assert_eq!(net.server.receivable(server), Ok(4000));
    let next = 42 + 4000;
    for (sequence, challenges) in [(next + 4191, 1), (next + 4192, 1), (next + 8192, 1), (next + 1, 2)] {
        net.now += 2 * SECOND;
        net.to_server.borrow_mut().push_back(forged(from, RST, sequence, 0, b""));
        net.server.poll(net.now);
        assert_eq!(net.server.counters().challenges, challenges, "{}", sequence - next);
    }
    assert_eq!(net.server.receivable(server), Ok(4000));
}

#[test]
fn options_that_were_agreed_on_are_used() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    let large = TcpOptions { receive_buffer: 256 * 1024, ..TcpOptions::default() };
    net.server.set_listener_options(listener, &large).unwrap();
    let (client, server) = net.pair(listener);
    let mut got = Vec::new();
    // Several segments are under way at once after some.
    for _ in 0..3 {
        send(&mut net.client, client, &[7; 5000], net.now).unwrap();
        net.pass(SECOND);
        receive(&mut net.server, server, &mut got, net.now).unwrap();
    }
    net.settle();
    send(&mut net.client, client, &[7; 5000], net.now).unwrap();
    net.client.poll(net.now);
    assert!(net.to_server.borrow().len() > 1);
    net.to_server.borrow_mut().pop_front();
    net.server.poll(net.now);
    let frames = net.to_client.borrow().clone();
    assert!(!frames.is_empty());
    for frame in frames {
        // Windows of a buffer of up to 2^18 bytes are told in units of eight bytes; at first they have 2^14.
        let window = u16::from_be_bytes([frame[48], frame[49]]);
        assert!((1_200..=2_048).contains(&window), "{window}");
        // Behind the header of five words there is a selective acknowledgement.
        assert!(frame[46] >> 4 > 5 && frame[54..].contains(&5), "{:?}", &frame[46..]);
    }
}

/// A frame as [`forged`], with timestamps.
fn stamped(from: SocketAddr, flags: u8, [sequence, acknowledgement]: [u32; 2], stamps: [u32; 2]) -> Vec<u8> {
    let [value, echo] = stamps.map(u32::to_be_bytes);
    let options = [&[1, 1, 8, 10][..], &value, &echo].concat();
    let mut frame = forged(from, flags, sequence, acknowledgement, &options);
    frame[46] = 0x80;
    seal(&mut frame);
    frame
}

/// The flags and the timestamps of the segments on the wire to the client.
fn stamps(net: &Net) -> Vec<(u8, Option<(u32, u32)>)> {
    let word = |frame: &[u8], at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let frames = net.to_client.borrow_mut().split_off(0);
    let of = |frame: &[u8]| stamps_at(frame).map(|at| (word(frame, at), word(frame, at + 4)));
    frames.iter().map(|frame| (frame[47], of(frame))).collect()
}

/// From the request to the record of the ended connection, every segment has the timestamps that were agreed on.
#[test]
fn timestamps_are_agreed_on_and_told_in_every_segment() {
    const FIN: u8 = 1;
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    introduce(&mut net, listener);
    let from = SocketAddr::new(CLIENT.into(), 7000);
    let ask = |net: &mut Net, frame: Vec<u8>| {
        net.to_server.borrow_mut().push_back(frame);
        net.server.poll(net.now);
    };
    // Without an offer there are none; with one, its last value is told back, also in an answer that is repeated.
    ask(&mut net, forged(SocketAddr::new(CLIENT.into(), 6999), SYN, 41, 0, b""));
    assert_eq!(stamps(&net), [(SYN | ACK, None)]);
    ask(&mut net, stamped(from, SYN, [41, 0], [500, 0]));
    let first = stamps(&net);
    let clock = first[0].1.unwrap().0;
    assert_eq!(first, [(SYN | ACK, Some((clock, 500)))]);
    net.now += 100 * MILLISECOND;
    ask(&mut net, stamped(from, SYN, [41, 0], [600, 0]));
    assert_eq!(stamps(&net), [(SYN | ACK, Some((clock + 100, 600)))]);
    net.now += 2 * SECOND;
    net.server.poll(net.now);
    assert!(stamps(&net).contains(&(SYN | ACK, Some((clock + 2100, 600)))));
    ask(&mut net, stamped(from, SYN, [41, 0], [700, 0]));
    let ours = answers(&net)[0].0.wrapping_add(1);
    // Another request is told what the first one agreed on.
    ask(&mut net, stamped(from, SYN, [99, 0], [701, 0]));
    assert_eq!(stamps(&net), [(ACK, Some((clock + 2100, 700)))]);
    // An acknowledgement without timestamps is none, and so is an old one.
    for frame in [forged(from, ACK, 42, ours, b""), stamped(from, ACK, [42, ours], [699, clock])] {
        ask(&mut net, frame);
        assert_eq!(net.server.accept(listener), Ok(None));
    }
    ask(&mut net, stamped(from, ACK, [42, ours], [702, clock + 2000]));
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    let information = net.server.information(server).unwrap().1.unwrap();
    assert!(information.is_stamped);
    assert_eq!(information.round_trip, 0, "the answer was repeated: which one was acknowledged is in doubt");
    stamps(&net);
    // Both ends end; the server's record goes on with the timestamps.
    net.server.close(server, net.now).unwrap();
    net.server.poll(net.now);
    assert_eq!(stamps(&net), [(FIN | ACK, Some((clock + 2100, 702)))]);
    let end = stamped(from, FIN | ACK, [42, ours.wrapping_add(1)], [703, clock + 2100]);
    ask(&mut net, end.clone());
    assert_eq!(stamps(&net), [(ACK, Some((clock + 2100, 703)))]);
    assert_eq!(net.server.connection_counts(), (0, 1));
    net.now += SECOND;
    ask(&mut net, end);
    assert_eq!(stamps(&net), [(ACK, Some((clock + 3100, 703)))]);
    // A request is new by its timestamp, although its number is old (RFC 6191), and old by it although its number is
    // new.
    ask(&mut net, stamped(from, SYN, [1000, 0], [702, 0]));
    assert_eq!(stamps(&net), [(ACK, Some((clock + 3100, 703)))]);
    ask(&mut net, stamped(from, SYN, [7, 0], [704, 0]));
    assert_eq!(stamps(&net), [(SYN | ACK, Some((clock + 3100, 704)))]);
    assert_eq!((net.server.connection_counts(), net.server.half_open_count()), ((0, 0), 2));
}

/// A cookie has no room for timestamps: its answer agrees to none.
#[test]
fn a_cookie_agrees_on_no_timestamps() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 1);
    introduce(&mut net, listener);
    net.to_server.borrow_mut().push_back(forged(SocketAddr::new(CLIENT.into(), 9), SYN, 0, 0, b""));
    net.server.poll(net.now);
    stamps(&net);
    let from = SocketAddr::new(CLIENT.into(), 7000);
    net.to_server.borrow_mut().push_back(stamped(from, SYN, [41, 0], [500, 0]));
    net.server.poll(net.now);
    let answer = net.to_client.borrow()[0].clone();
    assert_eq!((net.server.counters().cookies_sent, stamps(&net)), (1, vec![(SYN | ACK, None)]));
    let ours = u32::from_be_bytes(answer[38..42].try_into().unwrap()).wrapping_add(1);
    net.to_server.borrow_mut().push_back(forged(from, ACK, 42, ours, b"hello"));
    net.server.poll(net.now);
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    assert!(!net.server.information(server).unwrap().1.unwrap().is_stamped);
    assert_eq!(net.server.receivable(server), Ok(5));
}

#[test]
fn the_earliest_of_all_times_is_the_next() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    let (_, server) = net.pair(listener);
    net.pass(SECOND);
    let keepalive = network::Keepalive { idle: 100, interval: 100, probes: 3 };
    net.server.set_keepalive(server, Some(keepalive), net.now).unwrap();
    assert!(net.server.poll(net.now).is_some_and(|next| next > net.now + 10 * SECOND));
    net.to_server.borrow_mut().push_back(forged(SocketAddr::new(CLIENT.into(), 7000), SYN, 41, 0, b""));
    assert_eq!(net.server.poll(net.now), Some(net.now + SECOND));
}

/// A poll handles some of the frames that have arrived, and after a look at very many only one. Those without a reader
/// are soon very many.
#[test]
fn one_poll_handles_some_of_many_frames() {
    let reader = Reader { owner: 1, level: 40 };
    let cases = [(reader, 7, 7), (reader, 20, 8), (reader, 40, 1), (Reader::NOBODY, 7, 7), (Reader::NOBODY, 20, 1)];
    for (reader, frames, handled) in cases {
        let mut net = Net::new(Faults::default(), 1);
        let options = network::DatagramOptions { datagrams: 64, ..Default::default() };
        let socket = net.server.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 53), &options).unwrap();
        net.server.set_datagram_reader(socket, reader);
        net.to_server.borrow_mut().extend(std::iter::repeat_n(datagram(SERVER), frames));
        let received = |net: &mut Net| {
            (0..100).take_while(|_| net.server.udp_receive_with(socket, |_, _| ()) == Ok(Some(()))).count()
        };
        let next = net.server.poll(net.now);
        assert_eq!(received(&mut net), handled, "of {frames}");
        assert_eq!(next, (handled < frames).then_some(net.now), "of {frames}");
        net.settle();
        assert_eq!(received(&mut net), frames - handled);
    }
}

/// Strangers' datagrams to ports without a socket neither take the places of other frames nor make this host send much,
/// and a device gets their frames back. Captures see all of them.
#[test]
fn datagrams_for_no_socket_are_few() {
    const FLOOD: usize = 100;
    let mut net = Net::new(Faults::default(), 1);
    let [short, mut long] = [datagram(SERVER), datagram(SERVER)];
    long.resize(200, 0);
    long[17] = 186;
    long[39] = 166;
    seal(&mut long);
    let flood = |net: &mut Net, frame: &Vec<u8>| {
        let before = net.to_client.borrow().len();
        net.to_server.borrow_mut().extend(std::iter::repeat_n(frame.clone(), FLOOD));
        while net.server.poll(net.now) == Some(net.now) {}
        assert!(net.to_server.borrow().is_empty() && net.server.link().kept.is_empty());
        net.to_client.borrow().len() - before
    };
    // The first answer finds out the hardware address.
    net.client.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 1000), &Default::default()).unwrap();
    flood(&mut net, &short);
    net.pass(SECOND);
    for frame in [&long, &short] {
        net.pass(SECOND);
        assert_eq!([flood(&mut net, frame), flood(&mut net, frame)], [16, 0]);
    }
    let captures = net.server.packet_open(3).unwrap();
    assert_eq!(flood(&mut net, &short), 0);
    assert_eq!(net.server.packet_take_counts(captures).map(|counts| counts.seen), Ok(FLOOD as u32));
    // A socket's datagrams are no strangers.
    let socket = net.server.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 53), &Default::default()).unwrap();
    flood(&mut net, &short);
    assert_eq!(net.server.udp_receive_with(socket, |_, _| ()), Ok(Some(())));
}

#[test]
fn datagrams_without_room_are_dropped_and_counted() {
    let mut net = Net::new(Faults::default(), 1);
    let options = network::DatagramOptions { datagrams: 2, ..Default::default() };
    let socket = net.server.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 53), &options).unwrap();
    net.to_server.borrow_mut().extend(std::iter::repeat_n(datagram(SERVER), 5));
    net.server.poll(net.now);
    assert_eq!(net.server.counters().datagrams_dropped, 3);
    let received = (0..10).take_while(|_| net.server.udp_receive_with(socket, |_, _| ()) == Ok(Some(())));
    assert_eq!(received.count(), 2);
}

/// One live conversation, with a stranger in between that sees and forges everything.
fn torment(seed: u64, steps: usize) {
    let mut random = Random(seed | 1);
    let mut net = Net::new(Faults::default(), seed);
    let listener = net.listen(80, 8);
    let udp = net
        .server
        .udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 80), &network::DatagramOptions::default())
        .unwrap();
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for _ in 0..steps {
        match random.below(16) {
            0 => {
                let to = SocketAddr::new(SERVER.into(), 80);
                clients.extend(net.client.tcp_connect(None, to, &TcpOptions::default(), net.now));
            }
            1 | 2 => {
                let length = random.below(5000) as usize;
                for (stack, ids) in [(&mut net.client, &clients), (&mut net.server, &servers)] {
                    if let Some(id) = ids.get(random.below(8) as usize) {
                        let _ = send(stack, *id, &vec![1; length], net.now);
                    }
                }
            }
            3 | 4 => {
                for (stack, ids) in [(&mut net.client, &clients), (&mut net.server, &servers)] {
                    if let Some(id) = ids.get(random.below(8) as usize) {
                        let _ = receive(stack, *id, &mut Vec::new(), net.now);
                    }
                }
            }
            5 if random.percent(40) => {
                let index = random.below(8) as usize;
                if index < servers.len() {
                    let id = servers.swap_remove(index);
                    match random.below(3) {
                        0 => net.server.abort(id, net.now).unwrap(),
                        1 => net.server.close(id, net.now).unwrap(),
                        _ => {
                            let _ = net.server.shutdown(id, network::Shutdown::Both, net.now);
                            servers.push(id);
                        }
                    }
                }
                if index < clients.len() {
                    let id = clients.swap_remove(index);
                    net.client.close(id, net.now).unwrap();
                }
            }
            6 => net.now += random.below(3000) * MILLISECOND,
            7 => {
                let length = random.below(200) as usize;
                let frame: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                net.to_server.borrow_mut().push_back(frame);
            }
            _ => {
                // A frame that was seen, changed in a few places and sealed again.
                if let Some(frame) = seen.get(random.below(seen.len().max(1) as u64) as usize) {
                    let mut frame = frame.clone();
                    for _ in 0..1 + random.below(3) {
                        let at = match random.below(8) {
                            // TCP flags, window, sequence numbers, options, lengths; anything.
                            0 => 47,
                            1 => 48 + random.below(2) as usize,
                            2 | 3 => 38 + random.below(8) as usize,
                            4 => 54 + random.below(12) as usize,
                            5 => 46,
                            6 => 16 + random.below(2) as usize,
                            _ => random.below(frame.len().max(1) as u64) as usize,
                        };
                        if let Some(byte) = frame.get_mut(at) {
                            *byte = match random.below(4) {
                                0 => 0,
                                1 => 0xff,
                                2 => byte.wrapping_add(random.below(8) as u8).wrapping_sub(4),
                                _ => random.next() as u8,
                            };
                        }
                    }
                    if random.percent(10) {
                        frame.truncate(random.below(frame.len() as u64 + 1) as usize);
                    }
                    if random.percent(10) {
                        frame.extend((0..random.below(1400)).map(|byte| byte as u8));
                        let total = frame.len().saturating_sub(14) as u16;
                        if frame.len() > 18 {
                            frame[16..18].copy_from_slice(&total.to_be_bytes());
                        }
                    }
                    seal(&mut frame);
                    net.to_server.borrow_mut().push_back(frame);
                }
            }
        }
        if random.percent(70) {
            net.client.poll(net.now);
            for frame in net.to_server.borrow().iter().take(4) {
                if seen.len() < 200 {
                    seen.push(frame.clone());
                } else {
                    seen[random.below(200) as usize] = frame.clone();
                }
            }
        }
        if random.percent(70) {
            net.server.poll(net.now);
            while let Ok(Some((id, _))) = net.server.accept(listener) {
                servers.push(id);
            }
            while let Ok(Some(())) = net.server.udp_receive_with(udp, |_, _| ()) {}
        }
    }
    // After all this the server still serves, and no trace of the others is left.
    for id in servers {
        net.server.close(id, net.now).unwrap();
    }
    for id in clients {
        let _ = net.client.close(id, net.now);
    }
    net.pass(400 * SECOND);
    while let Some((id, _)) = net.server.accept(listener).unwrap() {
        net.server.close(id, net.now).unwrap();
    }
    net.pass(400 * SECOND);
    assert_eq!(net.server.connection_counts(), (0, 0));
    let (client, server) = net.pair(listener);
    send(&mut net.client, client, b"well?", net.now).unwrap();
    net.pass(5 * SECOND);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(5)));
}

/// Frames of any form, and segments with right checksums whose fields are anything, from strangers.
#[test]
fn fuzz_frames() {
    let seeds: [&[u8]; 3] = [
        &[1, 2, 1, 5, 0, 0, 1, 0x10, 1, 5, 1, 1, 3, 1, 2, 3],
        &[0, 4, 1, 2, 3, 4, 2, 200, 3],
        // A request with timestamps.
        &[1, 2, 2, 5, 0, 76, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 2, 200, 3],
    ];
    property::fuzz("frames", &seeds, |input| {
        let mut numbers = property::Numbers::new(input);
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(80, 4);
        for _ in 0..200 {
            if numbers.is_empty() {
                break;
            }
            match numbers.byte() % 4 {
                0 => {
                    let length = usize::from(numbers.byte());
                    let mut frame = numbers.bytes(length).to_vec();
                    seal(&mut frame);
                    net.to_server.borrow_mut().push_back(frame);
                }
                1 => {
                    let from = SocketAddr::new(CLIENT.into(), 40_000 + u16::from(numbers.byte() % 4));
                    let (flags, sequence, acknowledgement) = (numbers.byte(), numbers.number(), numbers.number());
                    let length = numbers.byte();
                    let payload = numbers.bytes(usize::from(length % 64));
                    let mut frame = forged(from, flags, sequence as u32, acknowledgement as u32, payload);
                    // The first bytes may be options.
                    let options = usize::from(length >> 6) * 12;
                    if options <= payload.len() {
                        frame[46] += (options as u8 / 4) << 4;
                        seal(&mut frame);
                    }
                    net.to_server.borrow_mut().push_back(frame);
                }
                2 => net.now += u64::from(numbers.byte()) * 20 * MILLISECOND,
                _ => {
                    if let Ok(Some((id, _))) = net.server.accept(listener) {
                        net.server.close(id, net.now).unwrap();
                    }
                }
            }
            net.server.poll(net.now);
            // Answers to strangers are read by no host.
            net.to_client.borrow_mut().clear();
        }
        // A real client is served as soon as the strangers' half-open connections have expired.
        net.pass(400 * SECOND);
        while let Some((id, _)) = net.server.accept(listener).unwrap() {
            net.server.close(id, net.now).unwrap();
        }
        net.pass(400 * SECOND);
        let (client, server) = net.pair(listener);
        send(&mut net.client, client, b"well?", net.now).unwrap();
        net.pass(5 * SECOND);
        let mut got = Vec::new();
        assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(5)));
    });
}

proptest! {
    #![proptest_config(property::cases(64))]
    #[test]
    fn no_frame_harms_the_stack(seed: u64) {
        torment(seed, 400);
    }
}

/// A segment that is not for a connection's window, or is no acknowledgement, makes it take no memory.
#[test]
fn a_strangers_segment_takes_no_memory() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    let large = TcpOptions { receive_buffer: 1 << 20, ..TcpOptions::default() };
    net.server.set_listener_options(listener, &large).unwrap();
    introduce(&mut net, listener);
    let from = SocketAddr::new(CLIENT.into(), 7000);
    net.to_server.borrow_mut().push_back(forged(from, SYN, 41, 0, b""));
    net.server.poll(net.now);
    let ours = answers(&net)[0].0;
    net.to_server.borrow_mut().push_back(forged(from, ACK, 42, ours + 1, b""));
    net.server.poll(net.now);
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    let empty = net.server.connection_memory(server).unwrap();
    for (flags, sequence, acknowledgement) in [
        (0, 42, ours + 1),
        (ACK, 42 + (1 << 30), ours + 1),
        (ACK, 42, ours.wrapping_add(1 << 30)),
        (ACK | SYN, 42, ours + 1),
        (ACK, 42 - 10, ours + 1),
    ] {
        net.now += 2 * SECOND;
        net.to_server.borrow_mut().push_back(forged(from, flags, sequence, acknowledgement, b"x"));
        net.server.poll(net.now);
        assert_eq!(net.server.connection_memory(server), Ok(empty), "{flags} {sequence} {acknowledgement}");
    }
    net.to_server.borrow_mut().push_back(forged(from, ACK, 42, ours + 1, b"x"));
    net.server.poll(net.now);
    assert_eq!(net.server.connection_memory(server), Ok(empty + 512));
}
