//! The driver against the fake device.

use std::vec;
use std::vec::Vec;

use drivers::Registers as _;
use ethernet::{BEGINNING, ChecksumOffload, Departing as _, Link};
use proptest::prelude::*;

use crate::descriptor::DESCRIPTORS;
use crate::fake::{Device, Piece, negotiated};
use crate::register::{self, configuration, design};
use crate::{Causes, Error, Gem, Traffic};

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 7];

fn start(device: &Device) -> Gem<Device, Piece> {
    Gem::new(device.clone(), None, |bytes| device.allocate(bytes)).unwrap()
}

/// Devices with narrow and wide descriptors, and with more than one queue.
fn devices() -> impl Iterator<Item = Device> {
    [0, design::WIDE_ADDRESSES, design::WIDE_ADDRESSES | 0b1110].into_iter().map(|design| Device::new(design, OWN))
}

fn receive(gem: &mut Gem<Device, Piece>) -> Option<Vec<u8>> {
    let mut frame = vec![0; 2048];
    let received = gem.receive_into(&mut frame)?;
    frame.truncate(received.length);
    if let Some(kept) = received.kept {
        gem.take_kept(kept, &mut frame);
    }
    Some(frame)
}

fn send(gem: &mut Gem<Device, Piece>, frame: &[u8]) -> bool {
    match gem.depart() {
        Some(departing) => {
            departing.send(frame.len(), |room| room.copy_from_slice(frame));
            true
        }
        None => false,
    }
}

#[test]
fn other_devices_are_refused_and_left_alone() {
    let device = Device::new(0, OWN);
    device.set_register(register::IDENTITY, 0x0001_0000);
    let found = Gem::<_, Piece>::new(device.clone(), None, |_| unreachable!());
    assert_eq!(found.err(), Some(Error::Unsupported));
    assert_eq!(device.register(register::NETWORK_CONTROL), 0);
}

#[test]
fn the_address_is_the_firmwares_or_else_the_device_trees() {
    let address = |own, given| {
        let device = Device::new(0, own);
        let gem = Gem::new(device.clone(), given, |bytes| device.allocate(bytes));
        gem.map(|gem| (gem.hardware_address(), device.register(register::ADDRESS_TOP)))
    };
    let other = [2, 1, 2, 3, 4, 5];
    assert_eq!(address(OWN, Some(other)).ok(), Some((OWN, 0x700)));
    assert_eq!(address([0; 6], Some(other)).ok(), Some((other, 0x504)));
    assert_eq!(address([3, 0, 0, 0, 0, 1], Some(other)).ok(), Some((other, 0x504)), "that of a group");
    assert_eq!(address([0; 6], Some([1, 0, 0, 0, 0, 0])).err(), Some(Error::NoAddress));
    assert_eq!(address([0; 6], None).err(), Some(Error::NoAddress));
}

#[test]
fn without_memory_the_device_stays_off() {
    for pieces in 0..4 {
        let device = Device::new(0, OWN);
        let mut left = pieces;
        let gem = Gem::new(device.clone(), None, |bytes| {
            left -= 1;
            (left >= 0).then(|| device.allocate(bytes)).flatten()
        });
        assert_eq!(gem.is_ok(), pieces == 3, "{pieces} pieces");
        drop(gem);
        assert_eq!(device.register(register::NETWORK_CONTROL), 0);
        assert!(!device.interrupts());
    }
    // Memory beyond the reach of a device with narrow descriptors.
    let device = Device::new(0, OWN);
    device.move_memory(0x1_0000_0000);
    let gem = Gem::new(device.clone(), None, |bytes| device.allocate(bytes));
    assert_eq!(gem.err(), Some(Error::OutOfMemory));
}

#[test]
fn queues_beside_the_first_have_no_descriptors() {
    let device = Device::new(design::WIDE_ADDRESSES | 0b1110, OWN);
    let _gem = start(&device);
    for queue in 0..3 {
        let address = |register, top| u64::from(device.register(top)) << 32 | u64::from(device.register(register));
        let receive = address(register::OTHER_RECEIVE_QUEUES + queue * 4, register::RECEIVE_QUEUE_TOP);
        let transmit = address(register::OTHER_TRANSMIT_QUEUES + queue * 4, register::TRANSMIT_QUEUE_TOP);
        assert_eq!(device.0.borrow().word(receive) & 3, 3);
        assert_eq!(device.0.borrow().word(transmit + 4) >> 30, 3);
    }
    assert_eq!(device.register(register::OTHER_RECEIVE_QUEUES + 12), 0);
}

#[test]
fn frames_get_through_in_both_directions_for_ever() {
    for device in devices() {
        let mut gem = start(&device);
        assert_eq!(gem.hardware_address(), OWN);
        assert_eq!(gem.checksum_offload(), ChecksumOffload::None);
        for number in 0..2_000u32 {
            let mut frame = vec![0; 60 + number as usize % 1400];
            frame[..4].copy_from_slice(&number.to_le_bytes());
            assert!(device.deliver(&frame));
            assert_eq!(receive(&mut gem).as_deref(), Some(&frame[..]));
            assert!(send(&mut gem, &frame));
            assert!(device.0.borrow().sent.is_empty(), "only a flush starts sending");
            gem.flush();
            assert_eq!(device.0.borrow_mut().sent.pop().as_deref(), Some(&frame[..]));
        }
        assert_eq!(receive(&mut gem), None);
        assert_eq!(gem.traffic(), Traffic { received: 2_000, sent: 2_000, ..Traffic::default() });
    }
}

#[test]
fn interrupts_come_for_frames_and_stop_when_they_are_acknowledged() {
    let device = Device::new(0, OWN);
    let mut gem = start(&device);
    let reader = gem.cause_reader();
    assert!(send(&mut gem, &[1; 60]));
    gem.flush();
    assert!(!device.interrupts(), "nobody waits for room");
    assert!(device.deliver(&[2; 60]));
    assert!(device.interrupts());
    assert!(reader.acknowledge().received);
    assert!(!device.interrupts());
    assert_eq!(reader.acknowledge(), Causes::default());
    assert!(receive(&mut gem).is_some());
}

#[test]
fn long_frames_stay_in_their_buffers_and_hold_up_no_others() {
    let device = Device::new(design::WIDE_ADDRESSES, OWN);
    let mut gem = start(&device);
    let frame = |number: u16| {
        let mut frame = vec![number as u8; 100 + usize::from(number % 700)];
        frame[..2].copy_from_slice(&number.to_le_bytes());
        frame
    };
    let mut room = [0; 1514];
    // One is kept for ever; many times round, taken in another order than that of their arrival.
    assert!(device.deliver(&frame(0)));
    let first = gem.receive_into(&mut room).unwrap().kept.unwrap();
    for round in 0..100u16 {
        let mut kept = vec![];
        for number in 0..48 {
            assert!(device.deliver(&frame(number + round)));
            let received = gem.receive_into(&mut room).unwrap();
            assert_eq!(received.length, frame(number + round).len());
            assert_eq!(room[..BEGINNING], frame(number + round)[..BEGINNING]);
            kept.push((number + round, received.kept.expect("a long frame stays")));
        }
        kept.rotate_left(usize::from(round) % 48);
        for (number, place) in kept {
            if number % 3 == 0 {
                gem.drop_kept(place);
            } else {
                gem.take_kept(place, &mut room);
                assert_eq!(room[..frame(number).len()], frame(number));
            }
        }
    }
    gem.take_kept(first, &mut room);
    assert_eq!(room[..100], frame(0));
    // Without a spare buffer frames are copied at once.
    let kept = (0..2 * DESCRIPTORS).filter(|&number| {
        assert!(device.deliver(&frame(number)));
        let received = gem.receive_into(&mut room).unwrap();
        if received.kept.is_none() {
            assert_eq!(room[..received.length], frame(number));
        }
        received.kept.is_some()
    });
    assert_eq!(kept.count(), usize::from(DESCRIPTORS));
}

#[test]
fn a_receiver_that_ran_short_goes_on() {
    let device = Device::new(0, OWN);
    let mut gem = start(&device);
    let reader = gem.cause_reader();
    for _ in 0..DESCRIPTORS {
        assert!(device.deliver(&[1; 60]));
    }
    reader.acknowledge();
    assert!(!device.deliver(&[2; 60]));
    assert!(reader.acknowledge().received, "the stack looks");
    for _ in 0..DESCRIPTORS {
        assert!(receive(&mut gem).is_some());
    }
    assert!(!device.deliver(&[2; 60]), "the device has read ahead");
    assert_eq!(receive(&mut gem), None);
    assert!(device.deliver(&[3; 60]));
    assert_eq!(receive(&mut gem).unwrap(), [3; 60]);
    assert_eq!(gem.traffic().shortages, 1);
}

#[test]
fn a_full_ring_refuses_and_interrupts_when_it_has_room() {
    let device = Device::new(0, OWN);
    let mut gem = start(&device);
    let reader = gem.cause_reader();
    device.0.borrow_mut().is_stalled = true;
    for _ in 1..DESCRIPTORS {
        assert!(send(&mut gem, &[1; 60]));
    }
    assert!(!send(&mut gem, &[1; 60]));
    assert!(!device.interrupts());
    device.go_on();
    assert!(device.interrupts());
    assert!(reader.acknowledge().sent);
    assert_eq!(device.0.borrow().sent.len(), usize::from(DESCRIPTORS) - 1);
    assert!(send(&mut gem, &[2; 60]));
    gem.flush();
    assert!(!device.interrupts(), "nobody waits for room any more");
    assert_eq!(device.0.borrow().sent.last().unwrap(), &[2; 60]);
}

#[test]
fn a_transmitter_that_has_stopped_is_started_again() {
    for error in [2, 4, 6, 7, 8] {
        let device = Device::new(0, OWN);
        let mut gem = start(&device);
        for _ in 0..5 {
            assert!(send(&mut gem, &[1; 60]));
            gem.flush();
        }
        device.0.borrow_mut().is_stalled = true;
        assert!(send(&mut gem, &[2; 60]));
        gem.flush();
        device.set_register(register::TRANSMIT_STATUS, 1 << error);
        assert!(send(&mut gem, &[3; 60]));
        gem.flush();
        assert_eq!(gem.traffic().lost, 2, "the frame that stopped it, and the one behind");
        device.go_on();
        for number in 0..300u32 {
            assert!(send(&mut gem, &[number as u8; 60]));
            gem.flush();
            assert_eq!(device.0.borrow().sent.last().unwrap(), &[number as u8; 60]);
        }
        assert_eq!(device.0.borrow().sent.len(), 5 + 300);
    }
}

#[test]
fn descriptors_without_a_whole_frame_of_a_possible_length_are_offered_again() {
    const WHOLE: u32 = 3 << 14;
    let device = Device::new(0, OWN);
    let mut gem = start(&device);
    let wrong = [WHOLE, WHOLE | 1537, WHOLE | 0x1fff, 60, 1 << 14 | 60, 1 << 15 | 60];
    for round in 0..100 {
        for flags in wrong {
            assert!(device.deliver_as(&[9; 60], flags));
        }
        assert!(device.deliver(&[round; 70]));
        assert_eq!(receive(&mut gem).unwrap(), [round; 70]);
    }
    assert_eq!(gem.traffic().refused, 100 * wrong.len() as u64);
    // A room that is smaller than the frame.
    assert!(device.deliver(&[1; 80]));
    assert_eq!(gem.receive_into(&mut [0; 79]), None);
}

#[test]
fn the_speed_is_what_both_ends_have_agreed_on() {
    use configuration::{FULL_DUPLEX, GIGABIT, SPEED_100};
    const SPEED: u32 = SPEED_100 | GIGABIT | FULL_DUPLEX;
    let started = |phy: Option<u32>, of_the_firmware: u32| {
        let device = Device::new(0, OWN);
        device.set_register(register::NETWORK_CONFIGURATION, of_the_firmware | 1 << 4);
        device.0.borrow_mut().phy = phy.map(negotiated).unwrap_or_default();
        let gem = start(&device);
        let set = device.register(register::NETWORK_CONFIGURATION);
        assert_eq!(set & 1 << 4, 0, "not every frame on the line is ours");
        (set & SPEED, gem.is_up())
    };
    assert_eq!(started(None, SPEED_100 | FULL_DUPLEX), (SPEED_100 | FULL_DUPLEX, None));
    assert_eq!(started(Some(10), GIGABIT), (FULL_DUPLEX, Some(true)));
    assert_eq!(started(Some(100), GIGABIT), (SPEED_100 | FULL_DUPLEX, Some(true)));
    assert_eq!(started(Some(1000), 0), (GIGABIT | FULL_DUPLEX, Some(true)));

    let device = Device::new(0, OWN);
    device.0.borrow_mut().phy = negotiated(1000);
    device.0.borrow_mut().phy.insert(1, 1 << 8);
    let gem = start(&device);
    assert_eq!(gem.is_up(), Some(false));
    assert_eq!(device.register(register::NETWORK_CONFIGURATION) & SPEED, 0);

    let device = Device::new(0, OWN);
    device.0.borrow_mut().hangs = true;
    assert_eq!(start(&device).is_up(), None, "an interface that never ends an access is given up");
}

proptest! {
    #![proptest_config(property::cases(300))]

    /// Whatever the device writes to the memory that it can reach: no panic, no frame longer than the room, no endless
    /// look.
    #[test]
    fn a_device_that_lies_hurts_nobody(
        wide in any::<bool>(),
        steps in prop::collection::vec((0..5u8, any::<u16>(), any::<u32>()), 1..200),
    ) {
        let device = Device::new(if wide { design::WIDE_ADDRESSES } else { 0 }, OWN);
        // The device takes nothing any more.
        let mut gem = start(&device);
        device.0.borrow_mut().is_stalled = true;
        let mut room = [0; 1514];
        let mut kept = vec![];
        for (step, at, value) in steps {
            match step {
                0 => Piece::spoil(&device, usize::from(at) % 8192, value),
                1 => {
                    if let Some(received) = gem.receive_into(&mut room) {
                        prop_assert!((1..=1514).contains(&received.length));
                        kept.extend(received.kept);
                    }
                }
                2 => _ = send(&mut gem, &room[..usize::from(at) % 1514]),
                3 => {
                    device.set_register(register::TRANSMIT_STATUS, value & 0x1ff);
                    gem.flush();
                }
                _ => {
                    if let Some(kept) = kept.pop() {
                        gem.take_kept(kept, &mut room);
                    }
                }
            }
        }
        let mut distinct = kept.clone();
        distinct.sort_unstable();
        distinct.dedup();
        prop_assert_eq!(distinct.len(), kept.len(), "a buffer is kept once");
        device.write32(register::NETWORK_CONTROL, 0);
    }
}
