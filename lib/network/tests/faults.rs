//! What wires and strangers do: loss, disorder, floods, forgeries, very many connections.

mod wire;

use std::net::{Ipv4Addr, SocketAddrV4};

use network::{Error, Limits, Patience, Received, Sent, TcpOptions};
use proptest::prelude::*;
use wire::*;

/// How many cases a costly property is tried with; `PROPTEST_CASES` overrides it for long runs.
fn cases(few: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}

/// The byte at each position of a stream.
fn pattern(position: usize) -> u8 {
    (position as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

/// Sends `size` bytes each way at once and checks what arrives, then both ends.
fn exchange(faults: Faults, seed: u64, size: usize) {
    // A run of bad luck is not to be an end: with every loss the next attempt comes later.
    let patience =
        Patience { acknowledgement_ns: 100_000 * SECOND, orphan_ns: 100_000 * SECOND, ..Patience::default() };
    let mut net = Net::with(Faults::default(), seed, Limits::default(), patience);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    // Those who cannot meet do not talk: the wire gets bad when they have met.
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
        Faults { lost: 10, repeated: 10, delayed: 20, damaged: 5 },
    ]
    .into_iter()
    .enumerate()
    {
        exchange(faults, seed as u64 + 100, 200_000);
    }
}

/// Only the end of the stream was lost, and the other side repeats itself: smoltcp stops its timer.
#[test]
fn a_lost_end_is_sent_again() {
    let faults = Faults { lost: 1, repeated: 24, delayed: 11, damaged: 5 };
    exchange(faults, 10_512_267_999_503_546_352, 20_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(16)))]
    #[test]
    fn bytes_survive_any_wire(seed: u64, lost in 0u64..25, repeated in 0u64..30, delayed in 0u64..60, damaged in 0u64..15) {
        exchange(Faults { lost, repeated, delayed, damaged }, seed, 20_000);
    }
}

/// A frame from a stranger to port 80 of the server, with right checksums.
fn forged(from: SocketAddrV4, flags: u8, sequence: u32, acknowledgement: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 15]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(40 + payload.len() as u16).to_be_bytes());
    frame[22] = 64;
    frame[23] = 6;
    frame[26..30].copy_from_slice(&from.ip().octets());
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

/// Makes the checksums of a frame right, if it has a shape that allows it.
fn seal(frame: &mut [u8]) {
    fn sum(bytes: &[u8], start: u32) -> u32 {
        let mut sum = start;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    }
    if frame.len() < 34 || frame[12..14] != [8, 0] {
        return;
    }
    let header = usize::from(frame[14] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    if header < 20 || frame.len() < 14 + header {
        return;
    }
    frame[24..26].fill(0);
    let checksum = !(sum(&frame[14..14 + header], 0) as u16);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let (start, end) = (14 + header, 14 + total);
    let at = match frame[23] {
        6 => start + 16,
        17 => start + 6,
        1 => start + 2,
        _ => return,
    };
    if end > frame.len() || end < at + 2 {
        return;
    }
    frame[at..at + 2].fill(0);
    let pseudo = if frame[23] == 1 { 0 } else { sum(&frame[26..34], u32::from(frame[23]) + (end - start) as u32) };
    let checksum = !(sum(&frame[start..end], pseudo) as u16);
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn a_flood_of_requests_costs_what_the_backlog_allows_and_ends() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 64);
    let (client, server) = net.pair(listener);
    for stranger in 0..10_000u32 {
        let from = SocketAddrV4::new(Ipv4Addr::from(0x0a00_0300 + stranger), 1000 + stranger as u16);
        net.to_server.borrow_mut().push_back(forged(from, 2, stranger, 0, b""));
        net.server.poll(net.now);
    }
    assert_eq!(net.server.connection_counts().0, 65);
    assert!(net.server.counters().requests_dropped >= 10_000 - 64);
    // Those who were there before are not disturbed.
    send(&mut net.client, client, b"still here", net.now).unwrap();
    net.pass(100 * MILLISECOND);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(10)));
    // And when the flood has ended, others are let in again.
    net.pass(60 * SECOND);
    assert_eq!(net.server.connection_counts().0, 1);
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
            let id = net.client.tcp_connect(None, SocketAddrV4::new(SERVER, 80), &small, net.now).unwrap();
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
    // Everybody says its number, and hears it again.
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
    let server = net.server.udp_bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 53), &options).unwrap();
    let client = net.client.udp_bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0), &options).unwrap();
    let to = SocketAddrV4::new(SERVER, 53);
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
    // Nobody there: the one who is connected hears of it.
    net.client.udp_connect(client, Some(SocketAddrV4::new(SERVER, 54))).unwrap();
    net.client.udp_send_with(client, None, 1, |_| ()).unwrap();
    net.settle();
    assert_eq!(net.client.udp_receive_with(client, |_, _| ()), Err(Error::Refused));
    // A full buffer of the receiver loses datagrams, one of the sender makes him wait.
    for _ in 0..100 {
        if net.server.udp_send_with(server, Some(SocketAddrV4::new(CLIENT, 9)), 1000, |_| ()) == Ok(Sent::Full) {
            let (bell, waker) = Bell::new();
            net.server.udp_register(server, network::Interest::Send, &waker).unwrap();
            net.settle();
            assert_eq!(bell.rings(), 1);
            return;
        }
    }
    panic!("the buffer was never full");
}

/// One live conversation, with a stranger in between who knows everything.
fn torment(seed: u64, steps: usize) {
    let mut random = Random(seed | 1);
    let mut net = Net::new(Faults::default(), seed);
    let listener = net.listen(80, 8);
    let udp = net
        .server
        .udp_bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80), &network::DatagramOptions::default())
        .unwrap();
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for _ in 0..steps {
        match random.below(16) {
            0 => {
                let to = SocketAddrV4::new(SERVER, 80);
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
    // Whatever has happened, the server serves, and nothing remains of those who are gone.
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]
    #[test]
    fn no_frame_harms_the_stack(seed: u64) {
        torment(seed, 400);
    }
}
