//! The wire format against its description, and against hostile bytes.

use matrix::{
    Answer, Decoded, HEADER_BYTES, MAXIMUM_ANSWER_BYTES, MAXIMUM_REQUEST_BYTES, Malformed, Order, Request, answer,
    encode_answer, encode_request, multiply,
};
use proptest::prelude::*;

/// The product by its definition, one element at a time.
fn product_by_definition(order: usize, left: &[u32], right: &[u32]) -> Vec<u32> {
    let element = |row: usize, column: usize| {
        (0..order).fold(0u32, |sum, inner| {
            sum.wrapping_add(left[row * order + inner].wrapping_mul(right[inner * order + column]))
        })
    };
    (0..order)
        .flat_map(|row| (0..order).map(move |column| (row, column)))
        .map(|(row, column)| element(row, column))
        .collect()
}

prop_compose! {
    fn two_matrices()(order in 1u32..=64)
        (left in prop::collection::vec(any::<u32>(), (order * order) as usize),
         right in prop::collection::vec(any::<u32>(), (order * order) as usize),
         order in Just(order)) -> (Order, Vec<u32>, Vec<u32>) {
        (Order::new(order).unwrap(), left, right)
    }
}

#[test]
fn a_request_of_order_one_is_these_sixteen_bytes() {
    let mut message = [0xff; 20];
    let length = encode_request(Order::MINIMUM, 0x0102_0304, &[5], &[0xffff_fffe], &mut message);
    assert_eq!(length, 16);
    assert_eq!(&message[..16], [1, 0, 0, 0, 4, 3, 2, 1, 5, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);
    assert_eq!(&message[16..], [0xff; 4]);
}

#[test]
fn an_answer_of_order_one_is_these_twelve_bytes() {
    let mut message = [0; 12];
    let length = encode_answer(Order::MINIMUM, 7, &[0x8000_0001], &mut message);
    assert_eq!(length, 12);
    assert_eq!(message, [1, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0x80]);
}

#[test]
fn products_wrap() {
    let mut product = [0];
    multiply(Order::MINIMUM, &[0x8000_0001], &[3], &mut product);
    assert_eq!(product, [0x8000_0003]);
}

#[test]
fn the_longest_messages_are_as_long_as_announced() {
    assert_eq!(MAXIMUM_REQUEST_BYTES, 8 + 2 * 64 * 64 * 4);
    assert_eq!(MAXIMUM_ANSWER_BYTES, 8 + 64 * 64 * 4);
}

#[test]
fn a_wrong_order_is_refused_after_four_bytes() {
    for order in [0, 65, 0x0100_0000, u32::MAX] {
        assert_eq!(Request::decode(&order.to_le_bytes()), Err(Malformed { order }));
        assert_eq!(Answer::decode(&order.to_le_bytes()), Err(Malformed { order }));
    }
    assert_eq!(Malformed { order: 65 }.to_string(), "a matrix of order 65 was announced; orders are 1 to 64");
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn multiplication_is_the_definition((order, left, right) in two_matrices()) {
        let mut product = vec![1; order.elements()];
        multiply(order, &left, &right, &mut product);
        prop_assert_eq!(product, product_by_definition(order.get(), &left, &right));
    }

    #[test]
    fn a_request_comes_back_however_it_is_cut((order, left, right) in two_matrices(), sequence: u32, cut: prop::sample::Index, next in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut message = vec![0; order.request_bytes()];
        encode_request(order, sequence, &left, &right, &mut message);
        let part = &message[..cut.index(message.len())];
        let expected = if part.len() < 4 { HEADER_BYTES } else { message.len() };
        prop_assert_eq!(Request::decode(part), Ok(Decoded::NeedBytes(expected)));

        let length = message.len();
        message.extend(next);
        let Ok(Decoded::Complete(request, used)) = Request::decode(&message) else { panic!("the request is complete") };
        prop_assert_eq!((used, request.order, request.sequence), (length, order, sequence));
        prop_assert_eq!(request.left.iter().collect::<Vec<_>>(), left);
        let mut copied = vec![0; order.elements() + 1];
        request.right.copy_to(&mut copied);
        prop_assert_eq!(&copied[..order.elements()], &right[..]);
        prop_assert_eq!(copied[order.elements()], 0);
    }

    #[test]
    fn an_answer_comes_back_however_it_is_cut((order, product, _) in two_matrices(), sequence: u32, cut: prop::sample::Index) {
        let mut message = vec![0; order.answer_bytes()];
        encode_answer(order, sequence, &product, &mut message);
        let part = &message[..cut.index(message.len())];
        let expected = if part.len() < 4 { HEADER_BYTES } else { message.len() };
        prop_assert_eq!(Answer::decode(part), Ok(Decoded::NeedBytes(expected)));
        let Ok(Decoded::Complete(answer, used)) = Answer::decode(&message) else { panic!("the answer is complete") };
        prop_assert_eq!((used, answer.order, answer.sequence), (message.len(), order, sequence));
        prop_assert_eq!(answer.product.iter().collect::<Vec<_>>(), product);
    }

    #[test]
    fn any_bytes_are_a_message_or_need_a_bounded_number_more_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        match Request::decode(&bytes) {
            Ok(Decoded::NeedBytes(total)) => prop_assert!(total > bytes.len() && total <= MAXIMUM_REQUEST_BYTES),
            Ok(Decoded::Complete(request, used)) => prop_assert_eq!(used, request.order.request_bytes()),
            Err(Malformed { order }) => prop_assert!(order == 0 || order > 64),
        }
        match Answer::decode(&bytes) {
            Ok(Decoded::NeedBytes(total)) => prop_assert!(total > bytes.len() && total <= MAXIMUM_ANSWER_BYTES),
            Ok(Decoded::Complete(answer, used)) => prop_assert_eq!(used, answer.order.answer_bytes()),
            Err(Malformed { order }) => prop_assert!(order == 0 || order > 64),
        }
    }
}

proptest! {
    #![proptest_config(property::cases(256))]

    /// At any address of the messages.
    #[test]
    fn an_answer_is_the_product(
        (order, left, right) in two_matrices(),
        sequence: u32,
        (before_request, before_answer) in (0usize..5, 0usize..5),
    ) {
        let mut request = vec![0; before_request + order.request_bytes()];
        encode_request(order, sequence, &left, &right, &mut request[before_request..]);
        let Ok(Decoded::Complete(request, _)) = Request::decode(&request[before_request..]) else {
            panic!("a whole request");
        };
        let mut message = vec![0xff; before_answer + order.answer_bytes() + 1];
        prop_assert_eq!(answer(&request, &mut message[before_answer..]), order.answer_bytes());
        let mut expected = vec![0; order.answer_bytes()];
        let product = product_by_definition(order.get(), &left, &right);
        encode_answer(order, sequence, &product, &mut expected);
        prop_assert_eq!(&message[before_answer..][..order.answer_bytes()], &expected[..]);
        prop_assert_eq!(message[message.len() - 1], 0xff);
    }
}
