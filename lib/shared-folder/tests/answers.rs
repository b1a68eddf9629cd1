//! Answers of another machine that may be anything.

use proptest::prelude::*;
use shared_folder::wire::{HEADER, Reader, TAG, Writer, kind};
use shared_folder::{Attributes, Change, Channel, ChannelFailed, Error, Folder, Held, Opening};

const BYTES: usize = 8192;

/// A channel that answers what it was told, one after the other; the last one again and again.
#[derive(Debug, Default)]
struct Script {
    answers: Vec<Vec<u8>>,
    asked: Vec<Vec<u8>>,
}

impl Channel for Script {
    fn most_bytes(&self) -> usize {
        BYTES
    }

    fn exchange(&mut self, message: &[u8], answer: &mut [u8]) -> Result<usize, ChannelFailed> {
        self.asked.push(message.to_vec());
        let next = match self.answers.len() {
            0 => return Err(ChannelFailed),
            1 => self.answers[0].clone(),
            _ => self.answers.remove(0),
        };
        let room = answer.get_mut(..next.len()).ok_or(ChannelFailed)?;
        room.copy_from_slice(&next);
        Ok(next.len())
    }
}

/// Makes an answer to a message of this type.
fn answer(to: u8, tag: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    Writer::new(&mut bytes, to + 1, tag).end().unwrap();
    bytes.extend_from_slice(body);
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn agreed() -> Vec<u8> {
    let mut body = (BYTES as u32).to_le_bytes().to_vec();
    body.extend_from_slice(b"\x08\x009P2000.L");
    answer(kind::VERSION, 0xffff, &body)
}

fn identity(number: u64) -> Vec<u8> {
    [&[0x80, 1, 0, 0, 0][..], &number.to_le_bytes()].concat()
}

fn start(answers: Vec<Vec<u8>>) -> (Folder<Script>, Held) {
    let begin = vec![agreed(), answer(kind::ATTACH, TAG, &identity(7))];
    let script = Script { answers: begin.into_iter().chain(answers).collect(), asked: Vec::new() };
    let (folder, top, found) = Folder::begin(script).unwrap();
    assert_eq!((found.number, found.is_directory), (7, true));
    (folder, top)
}

#[test]
fn messages_are_those_of_the_protocol() {
    let walked = [&[1, 0][..], &identity(9)].concat();
    let read = [&[5, 0, 0, 0][..], b"bytes"].concat();
    let (mut folder, top) = start(vec![
        answer(kind::WALK, TAG, &walked),
        answer(kind::OPEN, TAG, &[identity(9), vec![0; 4]].concat()),
        answer(kind::READ, TAG, &read),
        answer(kind::LET_GO, TAG, &[]),
    ]);
    let (file, found) = folder.walk(&top, b"name").unwrap();
    assert_eq!(found.number, 9);
    assert_eq!(folder.open(&file, Opening::Read).unwrap().number, 9);
    let mut bytes = [0; 16];
    assert_eq!(folder.read(&file, 0x102, &mut bytes), Ok(5));
    assert_eq!(&bytes[..5], b"bytes");
    folder.let_go(file);
    let asked = &folder.channel().asked;
    let expected: [&[u8]; 6] = [
        b"\x15\0\0\0\x64\xff\xff\x00\x20\0\0\x08\x009P2000.L",
        b"\x17\0\0\0\x68\x01\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0",
        b"\x17\0\0\0\x6e\x01\0\0\0\0\0\x01\0\0\0\x01\0\x04\x00name",
        b"\x0f\0\0\0\x0c\x01\0\x01\0\0\0\0\x80\x02\0",
        b"\x17\0\0\0\x74\x01\0\x01\0\0\0\x02\x01\0\0\0\0\0\0\x10\0\0\0",
        b"\x0b\0\0\0\x78\x01\0\x01\0\0\0",
    ];
    assert_eq!(asked.len(), expected.len());
    for (number, (asked, expected)) in asked.iter().zip(expected).enumerate() {
        assert_eq!(asked, expected, "message {number}");
    }
}

#[test]
fn refusals_are_told_by_number_and_leave_nothing_held() {
    let refused = [&[11, 0, 0, 0, kind::REFUSED][..], &TAG.to_le_bytes(), &2u32.to_le_bytes()].concat();
    let (mut folder, top) = start(vec![refused]);
    for _ in 0..70_000 {
        assert_eq!(folder.walk(&top, b"name").unwrap_err(), Error::Refused(2));
    }
    assert_eq!(folder.attributes(&top), Err(Error::Refused(2)));
}

#[test]
fn a_limited_number_of_files_is_held() {
    let walked = [&[1, 0][..], &identity(9)].concat();
    let (mut folder, top) = start(vec![answer(kind::WALK, TAG, &walked)]);
    let mut held = Vec::new();
    let error = loop {
        match folder.walk(&top, b"name") {
            Ok((file, _)) => held.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!((error, held.len()), (Error::OutOfMemory, (1 << 16) - 1));
    folder.let_go(held.pop().unwrap());
    assert!(folder.walk(&top, b"name").is_ok());
}

#[test]
fn other_versions_and_sizes_are_refused() {
    let begin = |bytes: u32, version: &[u8]| {
        let body = [&bytes.to_le_bytes()[..], &(version.len() as u16).to_le_bytes(), version].concat();
        Folder::begin(Script { answers: vec![answer(kind::VERSION, 0xffff, &body)], asked: Vec::new() }).map(drop)
    };
    for (bytes, version) in [(8192, &b"9P2000"[..]), (8192, b"unknown"), (8193, b"9P2000.L"), (100, b"9P2000.L")] {
        assert_eq!(begin(bytes, version), Err(Error::Damaged), "{bytes}");
    }
}

/// The kinds of files, in their modes.
const KINDS: [u32; 7] = [0x1000, 0x2000, 0x4000, 0x6000, 0x8000, 0xa000, 0xc000];

/// The attributes of a file with this mode.
fn attributes(mode: u32) -> Vec<u8> {
    let numbers = [[0; 8]; 15].concat();
    let head = [&0x7ffu64.to_le_bytes()[..], &identity(9), &mode.to_le_bytes()].concat();
    [head, vec![0; 8], numbers].concat()
}

#[test]
fn a_file_is_of_a_kind_that_there_is() {
    for mode in (0..16).map(|kind| kind << 12 | 0o644) {
        let (mut folder, top) = start(vec![answer(kind::ATTRIBUTES, TAG, &attributes(mode))]);
        let expected = if KINDS.contains(&(mode & 0xf000)) { Ok(mode) } else { Err(Error::Damaged) };
        assert_eq!(folder.attributes(&top).map(|found| found.mode), expected);
    }
}

#[test]
fn files_are_opened_to_append_and_made_open() {
    let opened = [identity(9), vec![0; 4]].concat();
    let (mut folder, top) = start(vec![
        answer(kind::OPEN, TAG, &opened),
        answer(kind::WALK, TAG, &[0, 0]),
        answer(kind::CREATE, TAG, &opened),
    ]);
    folder.open(&top, Opening::Append).unwrap();
    let (made, found) = folder.create(&top, b"name", 0o640, 5).unwrap();
    assert_eq!(found.number, 9);
    let asked = &folder.channel().asked;
    // O_WRONLY, O_APPEND, O_LARGEFILE and O_NOFOLLOW, by Linux's numbers.
    assert_eq!(asked[2], b"\x0f\0\0\0\x0c\x01\0\0\0\0\0\x01\x84\x02\0");
    assert_eq!(asked[4][..11], *b"\x1d\0\0\0\x0e\x01\0\x01\0\0\0");
    assert_eq!(asked.len(), 5);
    folder.let_go(made);
}

/// Answers that are right but for some bytes, and others.
fn some_answer() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![
        Just(kind::WALK),
        Just(kind::OPEN),
        Just(kind::CREATE),
        Just(kind::READ_LINK),
        Just(kind::ATTRIBUTES),
        Just(kind::LIST),
        Just(kind::READ),
        Just(kind::WRITE),
        Just(kind::SIZES),
        Just(kind::CHANGE),
        any::<u8>(),
    ];
    // Small numbers are lengths that fit.
    let body = prop::collection::vec(prop_oneof![2 => 0..12u8, 1 => any::<u8>()], 0..200);
    (kinds, body, prop::option::weighted(0.2, any::<u32>())).prop_map(|(to, body, length)| {
        let mut bytes = answer(to.min(254), TAG, &body);
        if let Some(length) = length {
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        bytes
    })
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn no_answer_does_harm(answers in prop::collection::vec(some_answer(), 1..40)) {
        let (mut folder, top) = start(answers);
        let mut file = None;
        for turn in 0..40 {
            let _ = match folder.walk(&top, b"name") {
                Ok((held, _)) => file.replace(held),
                Err(_) => None,
            };
            let held = file.as_ref().unwrap_or(&top);
            let _ = folder.open(held, Opening::ReadWrite);
            let mut bytes = [0xaa; 64];
            let wanted = turn % 60;
            if let Ok(count) = folder.read(held, 0, &mut bytes[..wanted]) {
                prop_assert!(count <= wanted);
            }
            prop_assert!(bytes[wanted..].iter().all(|byte| *byte == 0xaa));
            if let Ok(count) = folder.write(held, 0, &bytes) {
                prop_assert!((1..=64).contains(&count));
            }
            for entry in folder.list(held, 0, 5).into_iter().flatten() {
                let is_name = !entry.name.is_empty() && !entry.name.contains(&b'/') && !entry.name.contains(&0);
                prop_assert!(is_name && entry.name.len() <= 255 && entry.next <= i64::MAX as u64);
            }
            if let Ok(Attributes { size, times, mode, .. }) = folder.attributes(held) {
                prop_assert!(KINDS.contains(&(mode & 0xf000)));
                prop_assert!(size <= i64::MAX as u64 && times.iter().all(|time| time.1 < 1_000_000_000));
            }
            if let Ok(target) = folder.read_link(held, 100) {
                prop_assert!((1..=100).contains(&target.len()));
            }
            let _ = folder.sizes(held);
            let _ = folder.change(held, &Change::default());
            if let Ok((made, _)) = folder.create(&top, b"name", 0o644, 0) {
                folder.let_go(made);
            }
        }
    }

    #[test]
    fn readers_never_go_beyond_the_end(bytes in prop::collection::vec(any::<u8>(), 0..64), kind in any::<u8>()) {
        if let Ok(mut answer) = Reader::of_answer(&bytes, kind.min(254), TAG) {
            let _ = (answer.u8(), answer.u16(), answer.text(), answer.u64());
        }
    }
}
