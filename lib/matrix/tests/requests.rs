//! Streams of requests that arrive in pieces.

use matrix::{MAXIMUM_REQUEST_BYTES, Malformed, Order, Reason, Requests, encode_request};
use proptest::prelude::*;

/// Returns a request whose elements follow from its sequence number.
fn request(order: u32, sequence: u32) -> Vec<u8> {
    let order = Order::new(order).unwrap();
    let elements = vec![sequence; order.elements()];
    let mut message = vec![0; order.request_bytes()];
    encode_request(order, sequence, &elements, &elements, &mut message);
    message
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn requests_come_out_whole_and_in_order_for_all_pieces(
        orders in prop::collection::vec(prop_oneof![1u32..=4, Just(64)], 1..6),
        pieces in prop::collection::vec(1usize..3000, 1..20),
        first in prop_oneof![Just(0usize), 1usize..1000],
    ) {
        let sent: Vec<Vec<u8>> = orders.iter().enumerate().map(|(n, order)| request(*order, n as u32)).collect();
        let stream = sent.concat();
        let (mut left, mut taken) = (&stream[..], Vec::new());
        let mut requests = Requests::new(first);
        let mut pieces = pieces.iter().cycle();
        while !left.is_empty() {
            while let Some((request, bytes)) = requests.take().unwrap() {
                prop_assert_eq!(request.sequence as usize, taken.len());
                taken.push(bytes.to_vec());
            }
            let room = requests.room();
            prop_assert!(!room.is_empty() && room.len() <= MAXIMUM_REQUEST_BYTES.max(first));
            let count = room.len().min(left.len()).min(*pieces.next().unwrap());
            room[..count].copy_from_slice(&left[..count]);
            requests.add(count);
            left = &left[count..];
        }
        while let Some((_, bytes)) = requests.take().unwrap() {
            taken.push(bytes.to_vec());
        }
        prop_assert_eq!(taken, sent);
        prop_assert_eq!(requests.finish::<u8>(), Ok(()));
    }
}

#[test]
fn a_stream_that_ends_in_a_request_is_unfinished() {
    let mut requests = Requests::new(64);
    let message = request(1, 0);
    requests.room()[..message.len() + 3].copy_from_slice(&[&message[..], &message[..3]].concat());
    requests.add(message.len() + 3);
    assert!(requests.take().unwrap().is_some());
    assert_eq!(requests.take(), Ok(None));
    let reason = requests.finish::<u8>().unwrap_err();
    assert_eq!(reason.to_string(), "the peer closed it 3 bytes into a request");
}

#[test]
fn a_malformed_request_follows_the_good_ones() {
    let mut requests = Requests::new(64);
    let message = [&request(1, 0)[..], &[65, 0, 0, 0]].concat();
    requests.room()[..message.len()].copy_from_slice(&message);
    requests.add(message.len());
    assert!(requests.take().unwrap().is_some());
    assert_eq!(requests.take(), Err(Malformed { order: 65 }));
    let reasons =
        [Reason::Failed("broken"), Reason::Malformed(Malformed { order: 65 })].map(|reason| reason.to_string());
    assert_eq!(reasons, ["broken", "a matrix of order 65 was announced; orders are 1 to 64"]);
}
