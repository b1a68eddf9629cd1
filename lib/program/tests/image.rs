//! Executables made byte by byte, then damaged in every way.

use program::{
    DEFAULT_BASE, HEAD_LENGTH, Image, ImageError, LONGEST_INTERPRETER, MAX_SEGMENTS, PAGE_SIZE, Placement, Protection,
    USER_ADDRESSES,
};
use proptest::prelude::*;

const EXECUTABLE: u16 = 2;
const SHARED: u16 = 3;
const RISCV: u16 = 243;

const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
const THREAD: u32 = 7;
const STACK: u32 = 0x6474_e551;

const X: u32 = 1;
const W: u32 = 2;
const R: u32 = 4;

#[derive(Clone, Debug)]
struct Entry {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
    alignment: u64,
}

fn load(flags: u32, offset: u64, address: u64, file_size: u64, memory_size: u64) -> Entry {
    Entry { kind: LOAD, flags, offset, address, file_size, memory_size, alignment: PAGE_SIZE }
}

#[derive(Clone, Debug)]
struct File {
    kind: u16,
    machine: u16,
    flags: u32,
    entry: u64,
    entries: Vec<Entry>,
    length: usize,
}

impl File {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        bytes.resize(16, 0);
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend(self.machine.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(self.entry.to_le_bytes());
        bytes.extend(64u64.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(self.flags.to_le_bytes());
        for half in [64u16, 56, self.entries.len() as u16, 64, 0, 0] {
            bytes.extend(half.to_le_bytes());
        }
        for entry in &self.entries {
            bytes.extend(entry.kind.to_le_bytes());
            bytes.extend(entry.flags.to_le_bytes());
            for word in
                [entry.offset, entry.address, entry.address, entry.file_size, entry.memory_size, entry.alignment]
            {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes.resize(self.length, 0x5a);
        bytes
    }

    fn parse(&self) -> Result<Image, ImageError> {
        Image::parse(&self.bytes())
    }
}

/// Constants with the headers, code, data with thread-local storage in it, and zeros: a typical output of a linker.
fn sample(kind: u16) -> File {
    let base = if kind == EXECUTABLE { 0x1_0000 } else { 0 };
    File {
        kind,
        machine: RISCV,
        flags: 0x5,
        entry: base + 0x1400,
        entries: vec![
            load(R, 0, base, 0x400, 0x400),
            load(R | X, 0x400, base + 0x1400, 0x800, 0x800),
            load(R | W, 0xc00, base + 0x2c00, 0x200, 0x5000),
            Entry { alignment: 8, ..thread(0xc00, base + 0x2c00, 0x20, 0x60) },
            Entry { kind: STACK, flags: R | W, memory_size: 0x2_0000, ..load(0, 0, 0, 0, 0) },
        ],
        length: 0xe00,
    }
}

fn thread(offset: u64, address: u64, file_size: u64, memory_size: u64) -> Entry {
    Entry { kind: THREAD, ..load(R, offset, address, file_size, memory_size) }
}

#[test]
fn fixed_program_is_reduced_to_its_parts() {
    let image = sample(EXECUTABLE).parse().unwrap();
    assert_eq!(image.entry(), 0x1_1400);
    assert_eq!(image.placement(), Placement::Fixed);
    let segments = image.segments();
    assert_eq!(segments.len(), 3);
    assert_eq!(segments[0].protection, Protection::Read);
    assert_eq!(segments[1].protection, Protection::ReadExecute);
    assert_eq!(segments[1].file, 0x400..0xc00);
    assert_eq!(segments[2].protection, Protection::ReadWrite);
    assert_eq!(segments[2].memory, 0x1_2c00..0x1_7c00);
    assert_eq!(segments[2].pages(), 0x1_2000..0x1_8000);
    assert_eq!(image.pages(), 0x1_0000..0x1_8000);
    let storage = image.thread_storage().unwrap();
    assert_eq!((storage.address, storage.size), (0x1_2c00, 0x60));
    assert_eq!(storage.file, 0xc00..0xc20);
    let headers = image.program_headers().unwrap();
    assert_eq!(headers.address, 0x1_0040);
    assert_eq!((headers.entry_size, headers.count), (56, 5));
    assert_eq!(image.stack().size, Some(0x2_0000));
    assert!(!image.stack().wants_execution);
}

#[test]
fn position_independent_program_goes_where_it_is_told() {
    let file = sample(SHARED);
    let image = file.parse().unwrap();
    assert_eq!(image.placement(), Placement::Moved { bias: DEFAULT_BASE });
    assert_eq!(image.entry(), DEFAULT_BASE + 0x1400);
    assert_eq!(image.program_headers().unwrap().address, DEFAULT_BASE + 64);
    assert_eq!(image.thread_storage().unwrap().address, DEFAULT_BASE + 0x2c00);

    // A base that is not aligned is rounded up, to the greatest alignment in the file; page 0 is never used.
    let image = Image::parse_at(&file.bytes(), 0x7_0001).unwrap();
    assert_eq!(image.pages().start, 0x7_1000);
    assert_eq!(Image::parse_at(&file.bytes(), 0).unwrap().pages().start, 0x1000);
    let mut coarse = file.clone();
    coarse.entries[1].alignment = 0x1_0000;
    let image = Image::parse_at(&coarse.bytes(), 0x7_0001).unwrap();
    assert_eq!(image.pages().start, 0x8_0000);

    // A fixed program is not affected.
    let fixed = sample(EXECUTABLE);
    assert_eq!(Image::parse_at(&fixed.bytes(), 0x7_0000).unwrap(), fixed.parse().unwrap());

    // There is no room at the top.
    for base in [USER_ADDRESSES.end - 0x2000, u64::MAX - 0xfff, u64::MAX] {
        assert!(matches!(Image::parse_at(&file.bytes(), base), Err(ImageError::Damaged(_))));
    }
}

#[test]
fn head_is_enough() {
    let mut file = sample(EXECUTABLE);
    file.length = 0x9000;
    let bytes = file.bytes();
    assert_eq!(Image::parse_head(&bytes[..HEAD_LENGTH], bytes.len() as u64, DEFAULT_BASE), Image::parse(&bytes));
}

#[test]
fn other_files_are_named() {
    for (bytes, expected) in [
        (&b""[..], ImageError::NotElf),
        (b"#!/bin/sh\n", ImageError::NotElf),
        (b"\x7fEL", ImageError::NotElf),
        (b"\x7fELF\x02", ImageError::Damaged("the ELF header is cut short")),
    ] {
        assert_eq!(Image::parse(bytes), Err(expected));
    }
    type Change = fn(&mut Vec<u8>);
    let changes: [(Change, &str); 12] = [
        (|bytes| bytes[4] = 1, "the program is not a 64-bit one"),
        (|bytes| bytes[4] = 9, "unknown ELF class"),
        (|bytes| bytes[5] = 2, "the program is not little-endian"),
        (|bytes| bytes[6] = 7, "unknown ELF version"),
        (|bytes| bytes[16] = 1, "an object file, not yet linked into a program"),
        (|bytes| bytes[16] = 4, "a core dump, not a program"),
        (|bytes| bytes[16] = 99, "unknown kind of ELF file"),
        (|bytes| bytes[18] = 62, "the program is not for RISC-V"),
        (|bytes| bytes[48] = 8, "the program is for RV64E"),
        (|bytes| bytes[48] = 6, "the program needs quad-precision floating-point registers"),
        (|bytes| bytes[54] = 32, "program headers of an unknown size"),
        (|bytes| bytes[56] = 0, "nothing to load"),
    ];
    for (change, message) in changes {
        let mut bytes = sample(EXECUTABLE).bytes();
        change(&mut bytes);
        let error = Image::parse(&bytes).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let truncated = &sample(EXECUTABLE).bytes()[..63];
    assert_eq!(Image::parse(truncated).unwrap_err().message(), "the ELF header is cut short");
}

#[test]
fn contradictions_are_refused() {
    type Change = fn(&mut File);
    let changes: [(Change, &str); 19] = [
        (|file| file.entries[1].flags = R | W | X, "a segment is both writable and executable"),
        (|file| file.entries[0].flags = 0, "a segment without any permission"),
        (|file| file.entries[1].address += 1, "a segment's file offset and address differ within the page"),
        (|file| file.entries[2].memory_size = 0x1ff, "a segment is shorter in memory than in the file"),
        (|file| file.length = 0xdff, "the file is cut short"),
        (|file| file.entries[2].offset = u64::MAX - 0x3ff, "the file is cut short"),
        (|file| file.entries[2].memory_size = u64::MAX, "a segment lies outside the addresses a program may use"),
        (
            |file| file.entries[2].memory_size = USER_ADDRESSES.end,
            "a segment lies outside the addresses a program may use",
        ),
        (|file| file.entries[0].address = 0, "a segment lies outside the addresses a program may use"),
        (|file| file.entries[1].alignment = 3, "a segment's alignment is not a power of two"),
        (|file| file.entries.swap(0, 1), "segments overlap or do not ascend"),
        (|file| file.entries[0].memory_size = 0x1401, "segments overlap or do not ascend"),
        (
            |file| file.entries[0].memory_size = 0x1001,
            "two segments share a page; link the program with page-aligned segments",
        ),
        (|file| file.entry = 0x1_2c00, "the entry point is not executable"),
        (|file| file.entry += 1, "the entry point is not executable"),
        (|file| file.entries[4].kind = INTERPRETER, "the path of the dynamic linker is empty or too long"),
        (|file| file.entries[3].address = 0x1_7c00, "thread-local storage is not loaded"),
        (|file| file.entries[3].alignment = 24, "thread-local storage has an impossible alignment"),
        (|file| file.entries[4].kind = THREAD, "more than one thread-local storage segment"),
    ];
    for (change, message) in changes {
        let mut file = sample(EXECUTABLE);
        change(&mut file);
        assert_eq!(file.parse().unwrap_err().message(), message);
    }
}

#[test]
fn dynamic_program_names_its_linker() {
    let mut file = sample(SHARED);
    assert_eq!(file.parse().unwrap().interpreter(), None);
    let interpreter = |offset, length| Entry { kind: INTERPRETER, ..load(R, offset, 0, length, length) };
    file.entries.push(interpreter(0x3f0, 0x10));
    assert_eq!(file.parse().unwrap().interpreter(), Some(0x3f0..0x400));
    for (offset, length, message) in [
        (0x3f0, 1, "the path of the dynamic linker is empty or too long"),
        (0x3f0, LONGEST_INTERPRETER + 1, "the path of the dynamic linker is empty or too long"),
        (0xdf0, 0x11, "the file is cut short"),
        (u64::MAX, 2, "the file is cut short"),
    ] {
        let mut damaged = file.clone();
        damaged.length = 0x2000.max(damaged.length);
        if message.contains("cut") {
            damaged.length = 0xe00;
        }
        *damaged.entries.last_mut().unwrap() = interpreter(offset, length);
        assert_eq!(damaged.parse().unwrap_err().message(), message);
    }
    file.entries.push(interpreter(0x3f0, 0x10));
    assert_eq!(file.parse().unwrap_err().message(), "more than one interpreter");
}

#[test]
fn position_independent_file_ends_where_it_is_told() {
    let file = sample(SHARED);
    let bytes = file.bytes();
    let below = |bytes: &[u8], top| Image::parse_head_below(bytes, bytes.len() as u64, top);
    // The file needs 0x7c00 bytes.
    assert_eq!(below(&bytes, 0x9_0000).unwrap().pages(), 0x8_8000..0x9_0000);
    assert_eq!(below(&bytes, 0x8_fbff).unwrap().pages(), 0x8_7000..0x8_f000);
    let mut coarse = file.clone();
    coarse.entries[1].alignment = 0x1_0000;
    assert_eq!(below(&coarse.bytes(), 0x9_0000).unwrap().pages().start, 0x8_0000);
    for top in [USER_ADDRESSES.end, USER_ADDRESSES.end + PAGE_SIZE, u64::MAX] {
        assert_eq!(below(&bytes, top).unwrap().pages().end, USER_ADDRESSES.end);
    }
    let fixed = sample(EXECUTABLE);
    assert_eq!(below(&fixed.bytes(), 0x9_0000).unwrap(), fixed.parse().unwrap());
    for top in [0, 0x7000, 0x8000] {
        assert!(matches!(below(&bytes, top), Err(ImageError::Damaged(_))), "{top:#x}");
    }
    let mut reversed = file;
    reversed.entries.swap(0, 2);
    assert!(matches!(below(&reversed.bytes(), 0x9_0000), Err(ImageError::Damaged(_))));
}

#[test]
fn number_of_segments_is_limited() {
    let mut file = sample(EXECUTABLE);
    file.entries =
        (0..MAX_SEGMENTS as u64).map(|index| load(R | X, 0, 0x1_1000 + index * 0x1000, 0x800, 0x800)).collect();
    assert_eq!(file.parse().unwrap().segments().len(), MAX_SEGMENTS);
    file.entries.push(load(R, 0, 0x8_0000, 0x10, 0x10));
    file.length += 0x1000;
    assert_eq!(file.parse().unwrap_err().message(), "too many load segments");
    // A table that the first page cannot hold.
    file.entries = vec![load(R, 0, 0, 0, 0); 73];
    file.length = 0x4000;
    let bytes = file.bytes();
    assert_eq!(
        Image::parse_head(&bytes[..HEAD_LENGTH], bytes.len() as u64, 0).unwrap_err().message(),
        "the program headers are not in the first page of the file"
    );
}

#[test]
fn zeros_alone_need_no_place_in_the_file() {
    let mut file = sample(EXECUTABLE);
    file.entries.push(load(R | W, 0x123, 0x2_0000, 0, 0x3000));
    // An empty segment is ignored, at any address.
    file.entries.push(load(R | W | X, u64::MAX, 0, 0, 0));
    let image = file.parse().unwrap();
    let last = image.segments().last().unwrap();
    assert!(last.file.is_empty());
    assert_eq!(last.memory, 0x2_0000..0x2_3000);
}

#[test]
fn headers_that_are_not_loaded_have_no_address() {
    let mut file = sample(EXECUTABLE);
    file.entries.remove(0);
    assert_eq!(file.parse().unwrap().program_headers(), None);
}

/// Checks the guarantees for a loader; `length` is the file's.
fn check_invariants(image: &Image, length: u64) {
    assert!(!image.segments().is_empty());
    let mut free = USER_ADDRESSES.start;
    let mut entry_is_executable = false;
    for segment in image.segments() {
        assert!(!segment.memory.is_empty());
        assert!(segment.file.start <= segment.file.end && segment.file.end <= length);
        let (in_file, in_memory) = (segment.file.end - segment.file.start, segment.memory.end - segment.memory.start);
        assert!(in_file <= in_memory);
        if in_file > 0 {
            assert_eq!(segment.file.start % PAGE_SIZE, segment.memory.start % PAGE_SIZE);
        }
        let pages = segment.pages();
        assert!(pages.start >= free && pages.end <= USER_ADDRESSES.end);
        assert!(pages.start <= segment.memory.start && segment.memory.end <= pages.end);
        assert_eq!((pages.start % PAGE_SIZE, pages.end % PAGE_SIZE), (0, 0));
        free = pages.end;
        entry_is_executable |= segment.protection == Protection::ReadExecute && segment.memory.contains(&image.entry());
    }
    assert!(entry_is_executable);
    assert_eq!(image.pages().end, free);
    if let Some(storage) = image.thread_storage() {
        assert!(storage.file.end <= length);
        assert!(storage.file.end - storage.file.start <= storage.size);
        assert!(storage.alignment.is_power_of_two());
        let end = storage.address + (storage.file.end - storage.file.start);
        assert!(
            storage.file.is_empty()
                || image
                    .segments()
                    .iter()
                    .any(|segment| segment.memory.start <= storage.address && end <= segment.memory.end)
        );
    }
    if let Some(headers) = image.program_headers() {
        let end = headers.address + headers.entry_size * headers.count;
        assert!(
            image.segments().iter().any(|segment| segment.memory.start <= headers.address && end <= segment.memory.end)
        );
    }
    if let Placement::Moved { bias } = image.placement() {
        assert_eq!(bias % PAGE_SIZE, 0);
    }
}

fn interesting() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..0x1_0000u64,
        (0..0x40u64).prop_map(|page| page * PAGE_SIZE),
        (0..0x4000u64).prop_map(|below| USER_ADDRESSES.end - below),
        (0..0x4000u64).prop_map(|below| u64::MAX - below),
        (0..64u32).prop_map(|bit| 1 << bit),
        any::<u64>(),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let kind = prop_oneof![6 => Just(LOAD), 1 => Just(THREAD), 1 => Just(STACK), 1 => 0..9u32];
    let small = 0..0x1000u64;
    (
        kind,
        0..8u32,
        prop_oneof![4 => small.clone(), 1 => interesting()],
        interesting(),
        prop_oneof![4 => small.clone(), 1 => interesting()],
        prop_oneof![4 => small, 1 => interesting()],
        prop_oneof![Just(0), Just(1), Just(8), Just(PAGE_SIZE), interesting()],
    )
        .prop_map(|(kind, flags, offset, address, file_size, memory_size, alignment)| Entry {
            kind,
            flags,
            offset,
            address,
            file_size,
            memory_size,
            alignment,
        })
}

#[test]
fn fuzz_elf() {
    let seeds = [EXECUTABLE, SHARED].map(|kind| sample(kind).bytes());
    property::fuzz("elf", &[&seeds[0], &seeds[1]], |file| {
        for base in [DEFAULT_BASE, 0, USER_ADDRESSES.end - PAGE_SIZE] {
            let length = file.len() as u64;
            for image in
                [Image::parse_at(file, base), Image::parse_head_below(file, length, base)].into_iter().flatten()
            {
                check_invariants(&image, length);
            }
        }
    });
}

proptest! {
    #![proptest_config(property::cases(4096))]

    /// A good file with some bytes changed and its end cut off or repeated.
    #[test]
    fn damaged_files_are_refused_or_safe(
        kind in prop_oneof![Just(EXECUTABLE), Just(SHARED)],
        changes in prop::collection::vec((0..0x200usize, any::<u8>()), 0..6),
        words in prop::collection::vec((0..0x30usize, interesting()), 0..3),
        length in prop_oneof![3 => Just(0xe00), 1 => 0..0xe00usize],
        base in interesting(),
    ) {
        let mut bytes = sample(kind).bytes();
        for (place, value) in words {
            bytes[16 + place * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        for (place, value) in changes {
            bytes[place] = value;
        }
        bytes.truncate(length);
        match Image::parse_at(&bytes, base) {
            Ok(image) => check_invariants(&image, bytes.len() as u64),
            Err(error) => prop_assert!(!error.message().is_empty()),
        }
    }

    /// Program headers without a good file to start from.
    #[test]
    fn random_headers_are_refused_or_safe(
        kind in prop_oneof![Just(EXECUTABLE), Just(SHARED)],
        mut entries in prop::collection::vec(entry(), 0..6),
        first in any::<bool>(),
        base in interesting(),
    ) {
        if first {
            // Otherwise hardly any file has a good entry point.
            entries.insert(0, load(R | X, 0, 0x1000, 0x800, 0x800));
        }
        let file = File { entry: 0x1400, entries, length: 0x2000, ..sample(kind) };
        let bytes = file.bytes();
        if let Ok(image) = Image::parse_at(&bytes, base) {
            check_invariants(&image, bytes.len() as u64);
        }
    }

    /// At any base, all parts of a program move together.
    #[test]
    fn a_slide_moves_everything_alike(
        mut entries in prop::collection::vec(entry(), 0..6),
        pages in 0..1u64 << 23,
        near_the_end in any::<bool>(),
    ) {
        entries.insert(0, load(R | X, 0, 0x1000, 0x800, 0x800));
        let file = File { entry: 0x1400, entries, length: 0x2000, ..sample(SHARED) };
        let bytes = file.bytes();
        let base = if near_the_end { USER_ADDRESSES.end - pages } else { 0x4_0000_0000 + pages * PAGE_SIZE };
        let (Ok(low), Ok(high)) = (Image::parse_at(&bytes, 0x1_0000), Image::parse_at(&bytes, base)) else {
            return Ok(());
        };
        check_invariants(&high, bytes.len() as u64);
        let (Placement::Moved { bias: from }, Placement::Moved { bias: to }) = (low.placement(), high.placement()) else {
            return Err(TestCaseError::fail("a program that can be moved was not"));
        };
        let slide = to.wrapping_sub(from);
        prop_assert!(high.pages().start >= base);
        prop_assert_eq!(high.entry(), low.entry().wrapping_add(slide));
        prop_assert_eq!(high.segments().len(), low.segments().len());
        for (high, low) in high.segments().iter().zip(low.segments()) {
            prop_assert_eq!(high.memory.start, low.memory.start.wrapping_add(slide));
            prop_assert_eq!(high.memory.end, low.memory.end.wrapping_add(slide));
            prop_assert_eq!((&high.file, high.protection), (&low.file, low.protection));
        }
        let addresses = |image: &Image| (image.program_headers().map(|headers| headers.address), image.thread_storage().map(|storage| storage.address));
        let (low, high) = (addresses(&low), addresses(&high));
        prop_assert_eq!(high, (low.0.map(|at| at.wrapping_add(slide)), low.1.map(|at| at.wrapping_add(slide))));
    }

    #[test]
    fn noise_is_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        magic in any::<bool>(),
    ) {
        if magic && bytes.len() >= 7 {
            bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        }
        if let Ok(image) = Image::parse(&bytes) {
            check_invariants(&image, bytes.len() as u64);
        }
    }
}
