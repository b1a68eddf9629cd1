//! A naive reader of the initial stack, written from the layout and not from the builder, gets back what went in.

use program::stack::{AuxiliaryValue, Contents, StackError, StackImage};
use proptest::prelude::*;

const TOP: u64 = 0x3f_0000_0000;

struct Reader<'image>(&'image StackImage);

impl Reader<'_> {
    fn byte(&self, address: u64) -> u8 {
        let offset = address.checked_sub(self.0.pointer()).unwrap();
        self.0.bytes()[offset as usize]
    }

    fn word(&self, address: u64) -> u64 {
        assert_eq!(address % 8, 0);
        (0..8).fold(0, |word, index| word | u64::from(self.byte(address + index)) << (8 * index))
    }

    fn text(&self, mut address: u64) -> Vec<u8> {
        let mut text = Vec::new();
        while self.byte(address) != 0 {
            text.push(self.byte(address));
            address += 1;
        }
        text
    }

    fn texts(&self, address: &mut u64) -> Vec<Vec<u8>> {
        let mut texts = Vec::new();
        loop {
            let pointer = self.word(*address);
            *address += 8;
            if pointer == 0 {
                return texts;
            }
            texts.push(self.text(pointer));
        }
    }
}

type Texts = Vec<Vec<u8>>;

fn read(image: &StackImage) -> (Texts, Texts, Vec<(u64, u64)>) {
    let reader = Reader(image);
    let count = reader.word(image.pointer());
    let mut address = image.pointer() + 8;
    let arguments = reader.texts(&mut address);
    assert_eq!(arguments.len() as u64, count);
    let environment = reader.texts(&mut address);
    let mut auxiliary = Vec::new();
    loop {
        let pair = (reader.word(address), reader.word(address + 8));
        address += 16;
        if pair.0 == 0 {
            assert_eq!(pair.1, 0);
            return (arguments, environment, auxiliary);
        }
        auxiliary.push(pair);
    }
}

#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
    Text(Vec<u8>),
}

impl Value {
    fn borrow(&self) -> AuxiliaryValue<'_> {
        match self {
            Value::Number(number) => AuxiliaryValue::Number(*number),
            Value::Bytes(bytes) => AuxiliaryValue::Bytes(bytes),
            Value::Text(text) => AuxiliaryValue::Text(text),
        }
    }
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=255u8, 0..40)
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::Number),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
        text().prop_map(Value::Text),
    ]
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn reader_gets_back_what_went_in(
        arguments in prop::collection::vec(text(), 0..12),
        environment in prop::collection::vec(text(), 0..12),
        auxiliary in prop::collection::vec((1..60u64, value()), 0..12),
        top in TOP - 40..TOP,
    ) {
        let borrowed: Vec<_> = auxiliary.iter().map(|(kind, value)| (*kind, value.borrow())).collect();
        let contents = Contents {
            arguments: &arguments,
            environment: &environment,
            auxiliary: &borrowed,
        };
        let image = contents.build(top, 1 << 20).unwrap();
        prop_assert_eq!(image.pointer() % 16, 0);
        prop_assert_eq!(image.pointer() + image.bytes().len() as u64, top & !15);
        let (read_arguments, read_environment, read_auxiliary) = read(&image);
        prop_assert_eq!(&read_arguments, &arguments);
        prop_assert_eq!(&read_environment, &environment);
        prop_assert_eq!(read_auxiliary.len(), auxiliary.len());
        let reader = Reader(&image);
        for ((kind, value), (read_kind, read_value)) in auxiliary.iter().zip(read_auxiliary) {
            prop_assert_eq!(*kind, read_kind);
            match value {
                Value::Number(number) => prop_assert_eq!(*number, read_value),
                Value::Text(text) => prop_assert_eq!(text, &reader.text(read_value)),
                Value::Bytes(bytes) => {
                    prop_assert_eq!(read_value % 16, 0);
                    for (index, byte) in bytes.iter().enumerate() {
                        prop_assert_eq!(*byte, reader.byte(read_value + index as u64));
                    }
                }
            }
        }

        // The limit is exact.
        let length = image.bytes().len();
        prop_assert_eq!(contents.build(top, length), Ok(image));
        prop_assert_eq!(contents.build(top, length - 1), Err(StackError::TooBig));
    }
}

#[test]
fn empty_stack_is_a_zero_count_and_three_ends() {
    let contents: Contents<'_, &[u8]> = Contents { arguments: &[], environment: &[], auxiliary: &[] };
    let image = contents.build(TOP, 4096).unwrap();
    assert_eq!(image.pointer(), TOP - 48);
    assert_eq!(image.bytes(), [0; 48]);
}

#[test]
fn bad_requests_are_refused() {
    let build =
        |arguments: &[&[u8]], top| Contents { arguments, environment: &[], auxiliary: &[] }.build(top, usize::MAX);
    assert_eq!(build(&[b"ls", b"a\0b"], TOP), Err(StackError::NulInString));
    assert_eq!(build(&[b"ls"], 32), Err(StackError::TooBig));
    assert_eq!(build(&[b"ls"], 0), Err(StackError::TooBig));
    let auxiliary = [(31, AuxiliaryValue::Text(b"\0"))];
    let contents: Contents<'_, &[u8]> = Contents { arguments: &[], environment: &[], auxiliary: &auxiliary };
    assert_eq!(contents.build(TOP, 4096), Err(StackError::NulInString));
    assert!(StackError::TooBig.to_string().contains("too long"));
}
