//! A naive reader of the initial stack, written from the layout and not from the builder, gets the contents back.

use program::stack::{AuxiliaryValue, Contents, StackError, StackImage, Texts};
use proptest::prelude::*;

const TOP: u64 = 0x3f_0000_0000;

/// A stack: its lowest address, and its bytes, which were 0.
struct Reader(u64, Vec<u8>);

impl Reader {
    /// Copies everything to its address, and checks that it comes in its order.
    fn new(image: &StackImage<'_>, top: u64) -> Reader {
        let mut bytes = vec![0; (top - image.pointer()) as usize];
        let mut end = image.pointer();
        let words: Vec<(u64, Vec<u8>)> =
            image.words().enumerate().map(|(at, word)| (end + 8 * at as u64, word.to_le_bytes().to_vec())).collect();
        let data = image.data().map(|(address, piece)| (address, piece.to_vec()));
        for (address, piece) in words.into_iter().chain(data) {
            assert!(address >= end && piece.len() <= 4096);
            let offset = (address - image.pointer()) as usize;
            bytes[offset..offset + piece.len()].copy_from_slice(&piece);
            end = address + piece.len() as u64;
        }
        Reader(image.pointer(), bytes)
    }

    fn byte(&self, address: u64) -> u8 {
        self.1[address.checked_sub(self.0).unwrap() as usize]
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

type Strings = Vec<Vec<u8>>;

fn read(reader: &Reader) -> (Strings, Strings, Vec<(u64, u64)>) {
    let count = reader.word(reader.0);
    let mut address = reader.0 + 8;
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
    fn reader_returns_the_given_strings(
        arguments in prop::collection::vec(text(), 0..12),
        environment in prop::collection::vec(text(), 0..12),
        auxiliary in prop::collection::vec((1..60u64, value()), 0..12),
        top in TOP - 40..TOP,
    ) {
        let borrowed: Vec<_> = auxiliary.iter().map(|(kind, value)| (*kind, value.borrow())).collect();
        let (texts, variables) = (Texts::of(&arguments).unwrap(), Texts::of(&environment).unwrap());
        let contents = Contents { arguments: &texts, environment: &variables, auxiliary: &borrowed };
        let image = contents.lay_out(top, 1 << 20).unwrap();
        prop_assert_eq!(image.pointer() % 16, 0);
        let reader = Reader::new(&image, top & !15);
        let (read_arguments, read_environment, read_auxiliary) = read(&reader);
        prop_assert_eq!(&read_arguments, &arguments);
        prop_assert_eq!(&read_environment, &environment);
        prop_assert_eq!(read_auxiliary.len(), auxiliary.len());
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
        let length = reader.1.len();
        prop_assert_eq!(contents.lay_out(top, length).map(|image| image.pointer()), Ok(image.pointer()));
        prop_assert_eq!(contents.lay_out(top, length - 1).err(), Some(StackError::TooBig));
    }
}

#[test]
fn empty_stack_is_a_zero_count_and_three_ends() {
    let none = Texts::new();
    let contents = Contents { arguments: &none, environment: &none, auxiliary: &[] };
    let image = contents.lay_out(TOP, 4096).unwrap();
    assert_eq!(image.pointer(), TOP - 48);
    assert_eq!(Reader::new(&image, TOP).1, [0; 48]);
    assert!(none.is_empty());
}

/// For lists of any length, copies come in bounded pieces, and in their order.
#[test]
fn long_lists_come_in_pieces() {
    let strings: Vec<Vec<u8>> = (0..3000).map(|number| vec![b'a' + (number % 26) as u8; number % 100]).collect();
    let mut texts = Texts::new();
    for string in &strings {
        // Strings come in parts as well.
        let (front, back) = string.split_at(string.len() / 3);
        texts.push_part(front).unwrap();
        texts.push_part(back).unwrap();
        texts.end().unwrap();
    }
    let long = Texts::of(&[vec![b'x'; 20_000]]).unwrap();
    let contents = Contents { arguments: &texts, environment: &long, auxiliary: &[] };
    let image = contents.lay_out(TOP, 1 << 20).unwrap();
    let (arguments, environment, _) = read(&Reader::new(&image, TOP));
    assert_eq!((arguments, environment), (strings, vec![vec![b'x'; 20_000]]));
    assert_eq!((texts.len(), long.bytes()), (3000, 20_001));
}

#[test]
fn bad_requests_are_refused() {
    let none = Texts::new();
    assert_eq!(Texts::of(&[&b"ls"[..], b"a\0b"]).err(), Some(StackError::NulInString));
    let texts = Texts::of(&[b"ls"]).unwrap();
    let contents = Contents { arguments: &texts, environment: &none, auxiliary: &[] };
    assert_eq!(contents.lay_out(32, usize::MAX).err(), Some(StackError::TooBig));
    assert_eq!(contents.lay_out(0, usize::MAX).err(), Some(StackError::TooBig));
    let auxiliary = [(31, AuxiliaryValue::Text(b"\0"))];
    let contents = Contents { arguments: &none, environment: &none, auxiliary: &auxiliary };
    assert_eq!(contents.lay_out(TOP, 4096).err(), Some(StackError::NulInString));
    assert!(StackError::TooBig.to_string().contains("too long"));
}
