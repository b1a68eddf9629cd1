//! The drivers against fake devices.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::vec;
use std::vec::Vec;

use drivers::Registers as _;
use ethernet::{BEGINNING, Departing as _, Link};
use network::{Address, Configuration, Received, Sharing, Stack, TcpOptions};
use proptest::prelude::*;

use crate::fake::{
    ADDRESS, CHECKSUM, Device, EVENT_INDEX, MODERN, Model, PCI, PCI_WITH_MESSAGES, Piece, STATUS, probe,
};
use crate::{Entropy, Error, Kind, LinkStatus, Network};

fn start(device: &Device) -> Network<Device, Piece> {
    Network::new(probe(device).unwrap(), device.allocator()).unwrap()
}

fn models() -> impl Iterator<Item = (u32, u64)> {
    [1, 2, PCI, PCI_WITH_MESSAGES]
        .into_iter()
        .flat_map(|version| [0, EVENT_INDEX, STATUS | CHECKSUM].map(|features| (version, features)))
}

fn receive(network: &mut Network<Device, Piece>) -> Option<Vec<u8>> {
    let mut frame = vec![0; 2048];
    let received = network.receive_into(&mut frame)?;
    frame.truncate(received.length);
    if let Some(kept) = received.kept {
        network.take_kept(kept, &mut frame);
    }
    Some(frame)
}

fn send(network: &mut Network<Device, Piece>, frame: &[u8]) -> bool {
    match network.depart() {
        Some(departing) => {
            departing.send(frame.len(), |room| room.copy_from_slice(frame));
            true
        }
        None => false,
    }
}

#[test]
fn a_device_is_recognised() {
    let device = Device::network(2, 0);
    assert_eq!(probe(&device).unwrap().kind(), Kind::Network);
    let nothing = Device::new(Model { kind: 0, version: 1, features: 0, largest_queue: 0 }, 0);
    assert_eq!(probe(&nothing).unwrap().kind(), Kind::Nothing);
    let driven = Network::new(probe(&nothing).unwrap(), nothing.allocator());
    assert_eq!(driven.err(), Some(Error::Unsupported));
    let future = Device::new(Model { kind: 1, version: 9, features: 0, largest_queue: 0 }, 0);
    assert_eq!(probe(&future).err(), Some(Error::Unsupported));
    // A modern device that does not follow the standard, one without queues, and one too old.
    for (version, features, largest_queue) in [(2, ADDRESS, 256), (2, ADDRESS | MODERN, 4), (1, ADDRESS, 256)] {
        let device = Device::new(Model { kind: 1, version, features, largest_queue }, 0);
        let driven = Network::new(probe(&device).unwrap(), device.allocator());
        assert_eq!(driven.err(), Some(Error::Unsupported));
    }
}

#[test]
fn memory_may_be_short() {
    let device = Device::network(2, 0);
    let mut allocate = device.allocator();
    // Only small pieces: a device with fewer buffers.
    let network = Network::new(probe(&device).unwrap(), |bytes| (bytes <= 65536).then(|| allocate(bytes)).flatten());
    assert!(network.is_ok());
    let none = Network::<_, Piece>::new(probe(&device).unwrap(), |_| None);
    assert_eq!(none.err(), Some(Error::OutOfMemory));
}

#[test]
fn frames_get_through_in_both_directions_for_ever() {
    for (version, features) in models() {
        let device = Device::network(version, features);
        let mut network = start(&device);
        assert_eq!(network.hardware_address(), [2, 0, 0, 0, 0, 1]);
        // More than 65,536 of each, so that every index wraps around.
        for number in 0..70_000u32 {
            let mut frame = vec![0; 60 + number as usize % 1400];
            frame[..4].copy_from_slice(&number.to_le_bytes());
            assert!(device.deliver(&frame));
            assert_eq!(receive(&mut network).as_deref(), Some(&frame[..]));
            assert!(send(&mut network, &frame));
            network.flush();
            let sent = device.take_sent().expect("a notification was lost");
            assert_eq!(&sent[device.header()..], frame);
        }
        assert_eq!(receive(&mut network), None);
        assert_eq!(network.counters().received, 70_000);
        assert_eq!(network.failure(), None);
    }
}

#[test]
fn long_frames_stay_in_their_buffers_until_they_are_taken() {
    for (version, features) in models() {
        let device = Device::network(version, features);
        let mut network = start(&device);
        let frame = |number: u16| {
            let mut frame = vec![number as u8; 100 + usize::from(number)];
            frame[..2].copy_from_slice(&number.to_le_bytes());
            frame
        };
        let mut room = [0; 1514];
        // Many times round, taken in another order than that of their arrival, and one of three dropped.
        for round in 0..200u16 {
            let mut kept = vec![];
            for number in 0..48 {
                assert!(device.deliver(&frame(number + round)));
                let received = network.receive_into(&mut room).unwrap();
                assert_eq!(received.length, frame(number + round).len());
                assert_eq!(room[..BEGINNING], frame(number + round)[..BEGINNING]);
                kept.push((number + round, received.kept.expect("a long frame stays")));
            }
            kept.rotate_left(usize::from(round) % 48);
            for (number, place) in kept {
                if number % 3 == 0 {
                    network.drop_kept(place);
                } else {
                    let expected = frame(number);
                    network.take_kept(place, &mut room[..expected.len()]);
                    assert_eq!(room[..expected.len()], expected);
                }
            }
            assert_eq!(network.receive_into(&mut room), None);
            network.flush();
        }
        // A short one is there at once, and so is a long one when half of the buffers are kept.
        assert!(device.deliver(&[7; BEGINNING]));
        assert_eq!(network.receive_into(&mut room).map(|frame| frame.kept), Some(None));
        let mut kept = 0;
        while device.deliver(&[9; 1000]) {
            let received = network.receive_into(&mut room).unwrap();
            if received.kept.is_none() {
                assert_eq!(room[..1000], [9; 1000]);
                break;
            }
            kept += 1;
            network.flush();
        }
        assert!(kept >= 8, "{kept}");
        // Others still come and go.
        for _ in 0..1000 {
            assert!(device.deliver(&[3; 1000]));
            assert_eq!(network.receive_into(&mut room).map(|frame| frame.kept), Some(None));
            network.flush();
        }
        // Frames that do not fit are dropped.
        assert!(device.deliver(&[1; 1600]));
        assert!(device.deliver(&[2; 60]));
        assert_eq!(network.receive_into(&mut room).map(|frame| frame.length), Some(60));
        assert_eq!(room[..60], [2; 60]);
    }
}

#[test]
fn batches_are_announced_once() {
    for (version, features) in models() {
        let device = Device::network(version, features);
        let mut network = start(&device);
        while receive(&mut network).is_some() {}
        let before = (device.0.borrow().notifications, device.0.borrow().interrupts);
        for _ in 0..10 {
            assert!(send(&mut network, &[1; 60]));
            assert!(device.deliver(&[2; 60]));
        }
        network.flush();
        let mut received = 0;
        while receive(&mut network).is_some() {
            received += 1;
        }
        assert_eq!(received, 10);
        let state = device.0.borrow();
        assert_eq!(state.notifications - before.0, 1);
        // Interrupts for sent frames were not requested; with the event index, of ten frames received only the first.
        let interrupts = state.interrupts - before.1;
        assert_eq!(interrupts, if features & EVENT_INDEX != 0 { 1 } else { 10 });
    }
}

/// An emulator without barriers lets the driver see a request for a notification too late.
#[test]
fn a_device_whose_request_was_seen_too_late_is_notified_with_the_next_frame() {
    for version in [1, 2, PCI, PCI_WITH_MESSAGES] {
        let device = Device::network(version, EVENT_INDEX);
        let mut network = start(&device);
        let request = |event: u16| {
            let state = device.0.borrow();
            let queue = state.queues[1];
            state.arena.put(queue.used + 4 + 8 * u64::from(queue.size), &event.to_le_bytes());
        };
        let (mut sent, mut notified) = (0u16, device.0.borrow().notifications);
        // Many times round.
        for round in 0..70_000u32 {
            assert!(send(&mut network, &[1; 60]));
            // Of a device at work, the request is that of long ago.
            let is_late = round % 7 == 0;
            if is_late {
                request(sent.wrapping_sub(1));
            }
            network.flush();
            let arrived = std::iter::from_fn(|| device.take_sent()).count();
            if is_late {
                assert_eq!((device.0.borrow().notifications, arrived), (notified, 0));
                request(sent);
            } else {
                notified += 1;
                let all = if round % 7 == 1 { 2 } else { 1 };
                assert_eq!((device.0.borrow().notifications, arrived), (notified, all));
                sent = sent.wrapping_add(all as u16);
            }
        }
    }
}

#[test]
fn a_full_device_takes_no_more_and_recovers() {
    let device = Device::network(2, 0);
    let mut network = start(&device);
    let mut sent = 0;
    while send(&mut network, &[3; 100]) {
        sent += 1;
        assert!(sent < 10_000);
        if sent == 256 {
            // The device was notified only now, by the driver that found no buffer.
            assert_eq!(device.0.borrow().sent.len(), 0);
            assert!(network.depart().is_none());
            break;
        }
    }
    assert_eq!(device.0.borrow().sent.len(), 256);
    assert!(send(&mut network, &[3; 100]));
    // The driver offers no more receive buffers than there are.
    let mut delivered = 0;
    while device.deliver(&[4; 60]) {
        delivered += 1;
    }
    assert_eq!(delivered, 256);
    while receive(&mut network).is_some() {}
    network.flush();
    assert!(device.deliver(&[4; 60]));
}

#[test]
fn an_interrupt_is_acknowledged_before_the_look() {
    let device = Device::network(1, EVENT_INDEX);
    let mut network = start(&device);
    assert!(receive(&mut network).is_none());
    let acknowledger = network.acknowledger();
    device.deliver(&[1; 60]);
    assert!(acknowledger.acknowledge().queue);
    assert!(!acknowledger.acknowledge().is_some());
    // A second frame does not interrupt, because the driver is at work anyhow ...
    device.deliver(&[2; 60]);
    assert!(!acknowledger.acknowledge().is_some());
    assert!(receive(&mut network).is_some());
    assert!(receive(&mut network).is_some());
    assert!(receive(&mut network).is_none());
    // ... but the first one after it has found none does.
    device.deliver(&[3; 60]);
    assert!(network.acknowledge_interrupt().queue);
}

#[test]
fn the_link_status_is_told() {
    let device = Device::network(2, STATUS);
    let network = start(&device);
    assert_eq!(network.link_status(), LinkStatus::Up);
    device.0.borrow_mut().link = 0;
    assert_eq!(network.link_status(), LinkStatus::Down);
    let quiet = Device::network(2, 0);
    assert_eq!(start(&quiet).link_status(), LinkStatus::Unknown);
}

/// A function chooses where its registers begin, and words of them are read at once.
#[test]
fn registers_that_are_not_aligned_are_no_device() {
    for (start, is_usable) in [(0, true), (1, false), (2, false)] {
        let device = Device::network(PCI, 0);
        device.0.borrow_mut().configuration.insert(0x48, start);
        assert_eq!(probe(&device).is_ok(), is_usable, "{start}");
    }
}

#[test]
fn random_bytes_are_given_out_once() {
    for version in [1, 2, PCI, PCI_WITH_MESSAGES] {
        let common = if version == 1 { 1 << 27 } else { MODERN };
        let device = Device::new(Model { kind: 4, version, features: common | EVENT_INDEX, largest_queue: 8 }, 0);
        let mut entropy = Entropy::new(probe(&device).unwrap(), device.allocator()).unwrap();
        for _ in 0..70_000 {
            let mut bytes = [0; 40];
            assert_eq!(entropy.read(&mut bytes), Ok(40));
            assert_eq!(bytes, [0x5a; 40]);
        }
    }
}

#[test]
fn a_device_is_stopped_before_its_memory_goes() {
    let network = Device::network(2, 0);
    drop(start(&network));
    let device = Device::new(Model { kind: 4, version: 2, features: MODERN, largest_queue: 8 }, 0);
    drop(Entropy::new(probe(&device).unwrap(), device.allocator()).unwrap());
    for device in [network, device] {
        assert_eq!(device.read32(0x70), 0);
        assert_eq!(device.0.borrow().queues[0].used, 0);
    }
}

/// Bit of a function's command: it may reach memory.
const MASTER: u32 = 4;

/// Drops a device's driver, at once or after it has `failed`, while the device goes on.
fn go_on<D>(device: &Device, make: impl Fn() -> D, fail: impl Fn(&mut D)) {
    for has_failed in [false, true] {
        let begin = device.0.borrow().arena.0.borrow().len();
        let mut driver = make();
        let lent = device.0.borrow().arena.0.borrow().len() - begin;
        device.0.borrow_mut().goes_on = true;
        let before = device.0.borrow().arena.abandoned();
        if has_failed {
            let state = device.0.borrow();
            // A number of used buffers that cannot be.
            state.arena.put(state.queues[0].used + 2, &9999u16.to_le_bytes());
            drop(state);
            fail(&mut driver);
        }
        drop(driver);
        let mut state = device.0.borrow_mut();
        assert_ne!(state.queues[0].used, 0, "it goes on");
        let abandoned = state.arena.abandoned() - before;
        match state.configuration.get(&4) {
            Some(command) => assert_eq!((command & MASTER, abandoned), (0, 0), "it reaches no memory"),
            None => assert_eq!(abandoned, lent, "it may write to all of it"),
        }
        state.goes_on = false;
    }
}

#[test]
fn memory_of_a_device_that_goes_on_gets_no_other_owner() {
    for version in [1, 2, PCI, PCI_WITH_MESSAGES] {
        let device = Device::network(version, 0);
        go_on(&device, || start(&device), |network| assert_eq!(receive(network), None));
        let common = if version == 1 { 1 << 27 } else { MODERN };
        let device = Device::new(Model { kind: 4, version, features: common, largest_queue: 8 }, 0);
        let make = || Entropy::new(probe(&device).unwrap(), device.allocator()).unwrap();
        go_on(&device, make, |entropy| assert_eq!(entropy.read(&mut [0; 8]), Err(Error::Misbehaved)));
    }
}

#[test]
fn a_device_that_goes_on_gets_no_driver() {
    let device = Device::network(2, 0);
    drop(start(&device));
    let network = start(&device);
    device.0.borrow_mut().goes_on = true;
    drop(network);
    assert_eq!(Network::new(probe(&device).unwrap(), device.allocator()).err(), Some(Error::Misbehaved));
}

/// A driver's answer to a frame, for any checksum work left to the device, as it leaves the device.
fn completed(device: &Device, mut sent: Vec<u8>) -> Vec<u8> {
    let header = device.header();
    let mut frame = sent.split_off(header);
    if sent[0] & 1 != 0 {
        let start = usize::from(u16::from_le_bytes([sent[6], sent[7]]));
        let at = start + usize::from(u16::from_le_bytes([sent[8], sent[9]]));
        let mut sum: u32 = 0;
        for pair in frame[start..].chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    frame
}

#[test]
fn two_stacks_talk_through_two_devices() {
    for (version, features) in models() {
        let devices = [Device::network(version, features), Device::network(version, features)];
        let mut stacks: Vec<_> = devices
            .iter()
            .zip(1..)
            .map(|(device, last)| {
                let address = Address { address: Ipv4Addr::new(10, 0, 0, last), prefix: 24, gateway: None };
                let configuration = Configuration {
                    address: network::Addressing::Fixed(address),
                    seeds: network::Seeds { sequence_numbers: [last; 16], ..Default::default() },
                    ..Configuration::default()
                };
                Stack::new(start(device), &configuration, 0).unwrap()
            })
            .collect();
        let binding = stacks[0].tcp_bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80), Sharing::Exclusive).unwrap();
        let listener = stacks[0].tcp_listen(binding, 1, &TcpOptions::default()).unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);
        let client = stacks[1].tcp_connect(None, to, &TcpOptions::default(), 0).unwrap();
        let data: Vec<u8> = (0..100_000u32).map(|number| (number * 7) as u8).collect();
        let (mut server, mut got, mut sent) = (None, Vec::new(), 0);
        let mut now = 0;
        while got.len() < data.len() {
            now += 1_000_000;
            assert!(now < 100_000_000_000, "nothing gets through");
            for stack in &mut stacks {
                stack.poll(now);
            }
            for (from, to) in [(0, 1), (1, 0)] {
                while let Some(frame) = devices[from].take_sent() {
                    assert!(devices[to].deliver(&completed(&devices[from], frame)));
                }
            }
            server = server.or_else(|| stacks[0].accept(listener).unwrap().map(|(id, _)| id));
            if stacks[1].connected(client) == Ok(true) {
                let fill = |room: &mut [u8]| {
                    let count = room.len().min(data.len() - sent);
                    room[..count].copy_from_slice(&data[sent..sent + count]);
                    sent += count;
                    count
                };
                stacks[1].tcp_send_with(client, fill, now).unwrap();
            }
            if let Some(id) = server {
                let take = |bytes: &[u8]| {
                    got.extend_from_slice(bytes);
                    bytes.len()
                };
                assert_ne!(stacks[0].tcp_receive_with(id, take, now), Ok(Received::End));
            }
        }
        assert_eq!(got, data);
    }
}

#[test]
fn the_device_completes_a_checksum_of_six() {
    for (protocol, header, at) in [(6, 20, 16), (17, 8, 6)] {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0];
        let length = header + 7;
        frame.extend([0, length as u8, protocol, 64]);
        frame.extend((0..32).map(|byte| byte * 7));
        frame.extend((0..length as u8).map(|byte| byte ^ 0x5a));
        let start = frame.len() - length;
        frame[start + at..start + at + 2].fill(0);
        let request = crate::checksum::prepare(&mut frame).unwrap();
        assert_eq!((usize::from(request.start), usize::from(request.offset)), (start, at));
        // The device's part, and then the whole as a receiver sees it.
        let sum = |bytes: &[u8]| -> u16 {
            let pairs = bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            let sum: u32 = pairs.map(u32::from).sum();
            ((sum & 0xffff) + (sum >> 16)) as u16
        };
        let checksum = !sum(&frame[start..]);
        frame[start + at..start + at + 2].copy_from_slice(&checksum.to_be_bytes());
        let whole = [&frame[22..54], &[0, length as u8, 0, protocol], &frame[54..]].concat();
        assert_eq!(sum(&whole), 0xffff, "protocol {protocol}");
        // Cut off, or of another kind.
        assert_eq!(crate::checksum::prepare(&mut frame[..start + length - 1].to_vec()), None);
        frame[20] = 58;
        assert_eq!(crate::checksum::prepare(&mut frame), None);
    }
}

/// Of a packet in pieces no part has a checksum of its own.
#[test]
fn fragments_are_sent_as_they_are() {
    let mut frame = vec![0; 14 + 20 + 40];
    frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 60]);
    frame[23] = 17;
    assert!(crate::checksum::prepare(&mut frame.clone()).is_some());
    for (at, byte) in [(20, 0x20), (20, 0x01), (21, 1)] {
        let mut fragment = frame.clone();
        fragment[at] = byte;
        let before = fragment.clone();
        assert_eq!(crate::checksum::prepare(&mut fragment), None);
        assert_eq!(fragment, before);
    }
    frame[20] = 0x40;
    assert!(crate::checksum::prepare(&mut frame).is_some(), "not to be fragmented");
}

/// A device writes arbitrary words to arbitrary places of its rings, and changes its registers' answers.
#[test]
fn fuzz_virtqueue() {
    let seeds: [&[u8]; 3] = [
        &[1, 0, 0, 1, 2, 1, 1, 1, 0, 2, 1, 5],
        &[2, 1, 0, 0, 1, 1, 8, 1, 0, 2, 0, 0x40, 0, 0, 1, 1],
        // So many lies that the driver offers more than a device that saw all of it could have.
        &[1, 0x60, 16, 0xef, 10, 0, 0xef, 10, 0, 0xdb, 0, 2, 0xdb, 0, 2, 1],
    ];
    property::fuzz("virtqueue", &seeds, |input| {
        let mut numbers = property::Numbers::new(input);
        let version = 1 + u32::from(numbers.byte() % 4);
        let device = Device::network(version, [0, EVENT_INDEX][usize::from(numbers.byte() % 2)]);
        let mut network = start(&device);
        while !numbers.is_empty() {
            let queue = usize::from(numbers.byte() % 2);
            let used = device.0.borrow().queues[queue].used;
            if used == 0 {
                break;
            }
            match numbers.byte() % 3 {
                0 => drop(device.deliver(&[7; 60])),
                _ => {
                    let (word, value) = (numbers.number() % 512, numbers.number() as u32);
                    device.0.borrow_mut().lies = true;
                    device.0.borrow().arena.put(used + 4 * word, &value.to_le_bytes());
                }
            }
            // More frames than the ring has places cannot arrive before the device writes again.
            let arrived = (0..300).take_while(|_| receive(&mut network).is_some()).count();
            assert!(arrived <= 256, "{arrived} frames from one write");
            send(&mut network, &[9; 64]);
        }
        if network.failure().is_some() {
            assert_eq!(network.failure(), Some(Error::Misbehaved));
            assert!(receive(&mut network).is_none() && !send(&mut network, &[9; 64]));
        }
    });
}

proptest! {
    #![proptest_config(property::cases(256))]

    /// For any writes of a device into its ring, the driver stops or goes on, but neither panics nor hangs.
    #[test]
    fn a_device_may_misbehave(
        version in 1u32..5,
        features in prop::sample::select(vec![0, EVENT_INDEX]),
        writes in prop::collection::vec((0u64..2, 0u64..600, any::<u32>(), any::<bool>()), 1..40),
    ) {
        let device = Device::network(version, features);
        let mut network = start(&device);
        for (queue, word, value, small) in writes {
            {
                let state = device.0.borrow();
                let used = state.queues[queue as usize].used;
                if used == 0 {
                    break;
                }
                let value = if small { value % 300 } else { value };
                let word = if small { word % 8 } else { word % 512 };
                state.arena.put(used + 4 * word, &value.to_le_bytes());
            }
            for _ in 0..300 {
                if receive(&mut network).is_none() {
                    break;
                }
            }
            send(&mut network, &[9; 64]);
            if network.failure().is_none() {
                // The fake device would rightly complain about the state of its ring.
                network.depart();
            }
        }
        if network.failure().is_some() {
            prop_assert_eq!(network.failure(), Some(Error::Misbehaved));
            prop_assert!(receive(&mut network).is_none());
            prop_assert!(!send(&mut network, &[9; 64]));
        }
    }

    #[test]
    fn any_frame_can_be_prepared(mut frame in prop::collection::vec(any::<u8>(), 0..80), ip in any::<bool>()) {
        if ip && frame.len() > 24 {
            frame[12] = 8;
            frame[13] = 0;
            frame[14] = 0x45;
            frame[23] = 6;
        }
        let length = frame.len();
        if let Some(request) = crate::checksum::prepare(&mut frame) {
            prop_assert!(usize::from(request.start) + usize::from(request.offset) + 2 <= length);
        }
    }
}
