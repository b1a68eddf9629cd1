//! Core files, read back by another crate's reader of ELF files.

use elf::ElfBytes;
use elf::endian::LittleEndian;
use elf::note::Note as ReadNote;
use program::core_file::*;
use proptest::prelude::*;

/// A core file: notes, and segments with their bytes behind them.
fn core(notes: &[u8], memory: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let count = 1 + memory.len();
    let mut file = header(count as u16).to_vec();
    let mut offset = (HEADER + count * PROGRAM_HEADER) as u64;
    let about = DumpedSegment { access: 0, offset, address: 0, in_file: notes.len() as u64, in_memory: 0 };
    file.extend(about.to_bytes());
    offset += notes.len() as u64;
    for (address, bytes) in memory {
        let length = bytes.len() as u64;
        let segment =
            DumpedSegment { access: access::READ, offset, address: *address, in_file: length, in_memory: length };
        file.extend(segment.to_bytes());
        offset += length;
    }
    file.extend(notes);
    memory.iter().for_each(|(_, bytes)| file.extend(bytes));
    file
}

fn notes_of(file: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).unwrap();
    let segments = elf.segments().unwrap();
    let notes = segments.iter().find(|segment| segment.p_type == elf::abi::PT_NOTE).unwrap();
    elf.segment_data_as_notes(&notes)
        .unwrap()
        .map(|note| match note {
            ReadNote::Unknown(note) => {
                assert_eq!(note.name, b"CORE\0");
                (note.n_type, note.desc.to_vec())
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

proptest! {
    #![proptest_config(property::cases(64))]

    /// Every field of every note is found where debuggers look for it.
    #[test]
    fn notes_are_read_back(
        registers in prop::array::uniform31(any::<u64>()),
        floating in prop::array::uniform32(any::<u64>()),
        (pc, fcsr, blocked) in any::<(u64, u64, u64)>(),
        (own, parent, group, session) in any::<(u32, u32, u32, u32)>(),
        (signal, nice) in (1u8..65, any::<i8>()),
        used_us in 0u64..1 << 50,
        name in prop::collection::vec(1u8.., 0..40),
        command in prop::collection::vec(1u8.., 0..200),
        contents in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let numbers = Numbers { own, parent, group, session };
        let thread =
            DumpedThread { numbers, signal, blocked, used_us, pc, registers: &registers, floating_point: &floating, fcsr };
        let mut notes = thread.status().to_vec();
        notes.extend(process(numbers, nice, &name, &command));
        notes.extend(Note::Auxiliary.header(contents.len() as u32));
        notes.extend(&contents);
        notes.resize(notes.len().next_multiple_of(4), 0);
        notes.extend(thread.floating_point());
        let found = notes_of(&core(&notes, &[]));
        let kinds: Vec<_> = found.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [1, 3, 6, 2]);
        let status = &found[0].1;
        assert_eq!((status.len(), status[12], half(status, 0)), (376, signal, signal.into()));
        assert_eq!([32, 36, 40, 44].map(|at| half(status, at)), [own, parent, group, session]);
        assert_eq!((word(status, 24), word(status, 112)), (blocked, pc));
        assert_eq!(word(status, 48) * 1_000_000 + word(status, 56), used_us);
        assert!(registers.iter().enumerate().all(|(index, value)| word(status, 120 + 8 * index) == *value));
        let about = &found[1].1;
        assert_eq!((about.len(), about[3] as i8, half(about, 24)), (136, nice, own));
        let text = |range: std::ops::Range<usize>| about[range].split(|byte| *byte == 0).next().unwrap().to_vec();
        assert_eq!(text(40..56), name[..name.len().min(15)]);
        assert_eq!(text(56..136), command[..command.len().min(79)]);
        assert_eq!(found[2].1, contents);
        let floats = &found[3].1;
        assert_eq!((floats.len(), word(floats, 256)), (264, fcsr));
        assert!(floating.iter().enumerate().all(|(index, value)| word(floats, 8 * index) == *value));
    }

    /// Each segment's bytes are found by its address.
    #[test]
    fn memory_is_read_back(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..20)) {
        let memory: Vec<_> = pieces.into_iter().enumerate().map(|(index, bytes)| (index as u64 * 0x1000, bytes)).collect();
        let file = core(&[], &memory);
        let elf = ElfBytes::<LittleEndian>::minimal_parse(&file[..]).unwrap();
        assert_eq!((elf.ehdr.e_type, elf.ehdr.e_machine), (elf::abi::ET_CORE, elf::abi::EM_RISCV));
        let segments = elf.segments().unwrap();
        let loads: Vec<_> = segments.iter().filter(|segment| segment.p_type == elf::abi::PT_LOAD).collect();
        assert_eq!(loads.len(), memory.len());
        for (load, (address, bytes)) in loads.iter().zip(&memory) {
            assert_eq!((load.p_vaddr, load.p_memsz), (*address, bytes.len() as u64));
            assert_eq!(elf.segment_data(load).unwrap(), &bytes[..]);
        }
    }
}

#[test]
fn a_list_of_mapped_files_has_linux_s_layout() {
    let mapped = MappedFile { start: 0x1000, end: 0x3000, page: 2 };
    assert_eq!((word(&files_head(3), 0), word(&files_head(3), 8)), (3, 4096));
    assert_eq!([0, 8, 16].map(|at| word(&mapped.to_bytes(), at)), [0x1000, 0x3000, 2]);
    let header = Note::Files.header(40);
    assert_eq!((half(&header, 0), half(&header, 4), &header[8..12]), (5, 40, &b"ELIF"[..]));
    assert_eq!(&Note::Signal.header(128)[8..12], b"IGIS");
}
