//! Initial sequence numbers and ephemeral ports cannot be predicted.

mod predictor;
mod wire;

use std::net::{Ipv4Addr, SocketAddr};

use network::{Seeds, TcpOptions};
use wire::*;

/// Returns the numbers of SYN segments, or of answers to them, among these frames.
fn numbers(frames: &[Vec<u8>], flags: u8) -> Vec<u32> {
    frames
        .iter()
        .filter(|frame| frame.len() >= 54 && frame[12..14] == [8, 0] && frame[23] == 6 && frame[47] == flags)
        .map(|frame| u32::from_be_bytes(frame[38..42].try_into().unwrap()))
        .collect()
}

/// Returns the first numbers of the server and of the client, of `count` connections one after the other, and the
/// client's ports.
fn observed(count: usize, pause: u64) -> (Vec<u32>, Vec<u32>, Vec<u16>) {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (mut server_frames, mut client_frames) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let to = SocketAddr::new(SERVER.into(), 80);
        let client = net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
        // By hand, to see each frame.
        for _ in 0..10 {
            net.client.poll(net.now);
            client_frames.extend(net.to_server.borrow().iter().cloned());
            net.server.poll(net.now);
            server_frames.extend(net.to_client.borrow().iter().cloned());
        }
        let (server, _) = net.server.accept(listener).unwrap().unwrap();
        net.server.abort(server, net.now).unwrap();
        net.settle();
        net.client.close(client, net.now).unwrap();
        net.settle();
        net.now += pause;
    }
    let requests = numbers(&client_frames, 2);
    let ports = client_frames
        .iter()
        .filter(|frame| frame.len() >= 54 && frame[12..14] == [8, 0] && frame[47] == 2)
        .map(|frame| u16::from_be_bytes([frame[34], frame[35]]))
        .collect();
    (numbers(&server_frames, 0x12), requests, ports)
}

/// The attack works against the weak generator: otherwise its failure elsewhere would prove nothing.
#[test]
fn the_published_generator_is_predicted_from_three_numbers() {
    let mut random = Random(20_260_101);
    for _ in 0..3 {
        let mut state = random.next();
        let numbers: Vec<u32> = (0..12)
            .map(|_| {
                let (next, number) = predictor::step(state);
                state = next;
                number
            })
            .collect();
        assert_eq!(predictor::predicted(&numbers), 9);
    }
    assert_eq!(predictor::predicted(&[5, 6, 7, 8]), 3);
    assert_eq!(predictor::predicted(&[0, 1000, 2000, 3000]), 2);
}

#[test]
fn no_first_number_is_predicted() {
    for pause in [0, 4_000, MILLISECOND, SECOND] {
        let (answers, requests, _) = observed(40, pause);
        assert_eq!((answers.len(), requests.len()), (40, 40));
        assert_eq!(predictor::predicted(&answers), 0);
        assert_eq!(predictor::predicted(&requests), 0);
    }
}

#[test]
fn numbers_depend_on_their_seed_alone() {
    let begin = |seeds: Seeds| {
        let mut net = Net::new(Faults::default(), 1);
        let address = network::Address { address: CLIENT, prefix: 24, gateway: None };
        let configuration =
            network::Configuration { address: network::Addressing::Fixed(address), seeds, ..Default::default() };
        let mut stack = network::Stack::new(ethernet::NoLink, &configuration, 0).unwrap();
        let to = SocketAddr::new(SERVER.into(), 80);
        let id = stack.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
        let datagrams = stack.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), &Default::default()).unwrap();
        net.settle();
        (stack.local_endpoint(id).unwrap().port(), stack.udp_local_endpoint(datagrams).unwrap().port())
    };
    let zeros = begin(Seeds::default());
    assert_eq!(zeros, begin(Seeds { sequence_numbers: [1; 16], cookies: [1; 16], ..Seeds::default() }));
    let other = begin(Seeds { tcp_ports: [1; 16], ..Seeds::default() });
    assert!(zeros.0 != other.0 && zeros.1 == other.1);
    let other = begin(Seeds { udp_ports: [1; 16], ..Seeds::default() });
    assert!(zeros.0 == other.0 && zeros.1 != other.1);
}

/// Connections of equal ends, again and again: the numbers must grow, so that a late segment of one is none of the
/// next.
#[test]
fn numbers_of_the_same_ends_grow() {
    let mut net = Net::new(Faults::default(), 1);
    let mut last = None;
    for _ in 0..50 {
        let local = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 5000);
        let binding = net.client.tcp_bind(local, network::Sharing::Reuse).unwrap();
        let to = SocketAddr::new(SERVER.into(), 80);
        let id = net.client.tcp_connect(Some(binding), to, &TcpOptions::default(), net.now).unwrap();
        // There is no listener: it is refused at once.
        let mut frames = Vec::new();
        for _ in 0..10 {
            net.client.poll(net.now);
            frames.extend(net.to_server.borrow().iter().cloned());
            net.server.poll(net.now);
        }
        net.client.close(id, net.now).unwrap();
        let number = numbers(&frames, 2)[0];
        if let Some(last) = last.replace(number) {
            let step = number.wrapping_sub(last);
            assert!((250..260).contains(&step), "{step} in a millisecond");
        }
        net.now += MILLISECOND;
    }
}

#[test]
fn ports_to_others_are_not_predicted_from_own() {
    let (.., ports) = observed(200, MILLISECOND);
    // Ports to one server advance in small steps; see the unit tests for different servers.
    let same = ports.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(same, 0);
    let mut sorted = ports.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 200, "none is used twice");
}
