//! ELF64 executables for RISC-V, checked once.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use elf::ParseError;
use elf::abi;
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader, parse_ident};
use elf::parse::ParsingTable;
use elf::segment::ProgramHeader;

/// Size of a page: segments are placed, and protected, in these units.
pub const PAGE_SIZE: u64 = 4096;

/// Addresses at which a program's segments may lie.
///
/// Page 0 stays unmapped, so that a null pointer faults; the top of the user half belongs to stacks and to the pages
/// the kernel shares with the process.
pub const USER_ADDRESSES: Range<u64> = 0x1000..0x3f_0000_0000;

/// Base of a position-independent executable without a base from the caller: far above programs linked at a fixed
/// address, and with most of the user half left above it.
pub const DEFAULT_BASE: u64 = 0x10_0000_0000;

/// Length of the start of a file that suffices for [`Image::parse_head`]: the headers must lie in these bytes.
pub const HEAD_LENGTH: usize = 4096;

/// Maximum number of load segments. Linkers make two to six.
pub const MAX_SEGMENTS: usize = 32;

/// Maximum length of the path of an interpreter, with its NUL (`PATH_MAX`).
pub const LONGEST_INTERPRETER: u64 = 4096;

const HEADER_LENGTH: usize = 64;
const IDENT_LENGTH: usize = 16;
const PROGRAM_HEADER_LENGTH: u16 = 56;

/// `e_flags`: the program uses only the sixteen registers of RV64E, with its own calling convention.
const FLAG_REDUCED_REGISTERS: u32 = 0x8;
/// `e_flags`: floating-point registers that carry arguments; the value is "quad", which no supported hart has.
const FLAG_FLOAT_MASK: u32 = 0x6;
const FLAG_FLOAT_QUAD: u32 = 0x6;

/// Reason why a file cannot be run. Each variant calls for a different reaction of the caller; the message has the
/// details.
///
/// Every variant except [`ImageError::OutOfMemory`] is `ENOEXEC` on Unix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// The file is no ELF file: it may be a script.
    NotElf,
    /// A good program for another kind of machine: build it for this one.
    WrongMachine(&'static str),
    /// A good program that needs something this system does not have: link it in another way.
    Unsupported(&'static str),
    /// The file contradicts itself or violates a rule for programs.
    Damaged(&'static str),
    /// The file may be good; there was no memory to check it.
    OutOfMemory,
}

impl ImageError {
    /// Returns a sentence without its full stop, to print after the file's name and a colon.
    pub fn message(&self) -> &'static str {
        match self {
            ImageError::NotElf => "not an ELF executable",
            ImageError::WrongMachine(text) | ImageError::Unsupported(text) | ImageError::Damaged(text) => text,
            ImageError::OutOfMemory => "not enough memory to read the executable's headers",
        }
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.message())
    }
}

impl core::error::Error for ImageError {}

/// Rule by which a program got its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At the addresses in the file (`ET_EXEC`).
    Fixed,
    /// At any address (`ET_DYN`); this one was moved up by `bias` bytes. The program relocates itself.
    Moved {
        /// Offset added to every address in the file: a multiple of the page size, modulo 2^64.
        bias: u64,
    },
}

/// Access that a program has to a segment. There is no "writable and executable", on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protection {
    /// Constants.
    Read,
    /// Data. A write-only segment becomes this: a RISC-V page cannot be writable and unreadable.
    ReadWrite,
    /// Instructions. An execute-only segment becomes this, because linkers put constants beside code.
    ReadExecute,
}

/// A range of memory to fill from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "PT_LOAD")]
#[doc(alias = "program header")]
pub struct Segment {
    /// Bytes of the file that come first in memory; may be empty.
    pub file: Range<u64>,
    /// Addresses of the segment, never empty and at least as long as `file`. Memory beyond `file` is zero. The start is
    /// not always page-aligned, but its offset within the page is that of `file.start` if `file` is not empty.
    pub memory: Range<u64>,
    /// Access that the program has.
    pub protection: Protection,
}

impl Segment {
    /// Returns the pages of the segment, as a range of addresses that starts and ends on page boundaries.
    pub fn pages(&self) -> Range<u64> {
        // Both ends lie below `USER_ADDRESSES.end`, so that rounding up cannot overflow.
        round_down(self.memory.start)..round_up(self.memory.end)
    }
}

/// Location of the program's own headers: the values of `AT_PHDR`, `AT_PHENT` and `AT_PHNUM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramHeaders {
    /// Address of the table in memory.
    pub address: u64,
    /// Size of one entry in bytes.
    pub entry_size: u64,
    /// Number of entries.
    pub count: u64,
}

/// The initial contents of thread-local storage (`PT_TLS`).
///
/// A statically linked program finds this by itself through its program headers; it is here for a kernel that sets up
/// the first thread's storage, and for tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStorage {
    /// Bytes of the file with the initial contents; may be empty.
    pub file: Range<u64>,
    /// Address of those bytes in memory, inside a load segment unless `file` is empty.
    pub address: u64,
    /// Size of one thread's copy: at least as long as `file`; the rest is zero.
    pub size: u64,
    /// Alignment of a copy: a power of two, at most the page size.
    pub alignment: u64,
}

/// The program's request for its stack (`PT_GNU_STACK`).
///
/// A request, not a promise: stacks here are never executable. An assembler makes the executable request by omission,
/// so that refusing such programs would refuse many that never execute their stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRequest {
    /// Requested size in bytes, if any.
    pub size: Option<u64>,
    /// Whether the program requests an executable stack; executing it will fault.
    pub wants_execution: bool,
}

/// An executable file, checked: see the crate's documentation for the guarantees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ELF")]
#[doc(alias = "elfhdr")]
pub struct Image {
    entry: u64,
    placement: Placement,
    segments: Vec<Segment>,
    thread_storage: Option<ThreadStorage>,
    program_headers: Option<ProgramHeaders>,
    stack: StackRequest,
    interpreter: Option<Range<u64>>,
    is_for_cops: bool,
}

/// The kind of a program header that says that the program was built for COPS: one of those that ELF leaves to systems.
/// It has no contents.
pub const FOR_COPS: u32 = 0x6350_4f43;

impl Image {
    /// Checks a whole file; a position-independent executable goes to [`DEFAULT_BASE`].
    ///
    /// # Errors
    /// As [`Image::parse_head`].
    pub fn parse(file: &[u8]) -> Result<Image, ImageError> {
        Image::parse_at(file, DEFAULT_BASE)
    }

    /// Checks a whole file; a position-independent executable goes to the first suitably aligned address at or above
    /// `base`. A file linked at a fixed address goes there; `base` is then ignored.
    ///
    /// # Errors
    /// As [`Image::parse_head`].
    pub fn parse_at(file: &[u8], base: u64) -> Result<Image, ImageError> {
        Image::parse_head(file, file.len() as u64, base)
    }

    /// Checks a file of `file_length` bytes by its first bytes, for a caller that does not have it in one piece.
    ///
    /// `head` is the start of the file: all of it, or at least [`HEAD_LENGTH`] bytes.
    ///
    /// # Errors
    /// The file's defect, or [`ImageError::OutOfMemory`].
    pub fn parse_head(head: &[u8], file_length: u64, base: u64) -> Result<Image, ImageError> {
        Image::parse_placed(head, file_length, |extent| extent.from(base))
    }

    /// As [`Image::parse_head`], but a position-independent file goes to the last suitably aligned address from which
    /// it ends at or below `top`.
    ///
    /// # Errors
    /// As [`Image::parse_head`].
    pub fn parse_head_below(head: &[u8], file_length: u64, top: u64) -> Result<Image, ImageError> {
        Image::parse_placed(head, file_length, |extent| extent.below(top))
    }

    fn parse_placed(
        head: &[u8],
        file_length: u64,
        start: impl FnOnce(Extent) -> Option<u64>,
    ) -> Result<Image, ImageError> {
        let header = file_header(head)?;
        let headers = program_headers(&header, head)?;
        let placement = place(&header, &headers, start)?;
        let bias = match placement {
            Placement::Fixed => 0,
            Placement::Moved { bias } => bias,
        };

        let mut segments = Vec::new();
        let mut thread_storage = None;
        let mut stack = StackRequest { size: None, wants_execution: false };
        let mut interpreter = None;
        let mut is_for_cops = false;
        for entry in headers.iter() {
            match entry.p_type {
                abi::PT_LOAD if entry.p_memsz == 0 && entry.p_filesz == 0 => {}
                abi::PT_LOAD => push_segment(&mut segments, load_segment(&entry, file_length, bias)?)?,
                abi::PT_INTERP if interpreter.is_some() => {
                    return Err(ImageError::Damaged("more than one interpreter"));
                }
                abi::PT_INTERP => interpreter = Some(interpreter_path(&entry, file_length)?),
                abi::PT_TLS if thread_storage.is_some() => {
                    return Err(ImageError::Damaged("more than one thread-local storage segment"));
                }
                abi::PT_TLS => thread_storage = Some(thread_segment(&entry, file_length, bias)?),
                abi::PT_GNU_STACK => {
                    stack = StackRequest {
                        size: (entry.p_memsz != 0).then_some(entry.p_memsz),
                        wants_execution: entry.p_flags & abi::PF_X != 0,
                    };
                }
                FOR_COPS => is_for_cops = true,
                _ => {}
            }
        }

        if segments.is_empty() {
            return Err(ImageError::Damaged("nothing to load"));
        }
        if let Some(storage) = &thread_storage {
            check_thread_storage(storage, &segments)?;
        }
        let entry = header.e_entry.wrapping_add(bias);
        check_entry(entry, &segments)?;
        Ok(Image {
            entry,
            placement,
            program_headers: locate_headers(&header, &segments),
            segments,
            thread_storage,
            stack,
            interpreter,
            is_for_cops,
        })
    }

    /// Returns the address of the first instruction (`AT_ENTRY`).
    #[doc(alias = "e_entry")]
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// Returns whether, and by how much, the program was moved.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Returns the segments to load, in ascending order of addresses; at least one.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the range from the first page of the first segment to the end of the last page of the last: the heap may
    /// begin at its end.
    pub fn pages(&self) -> Range<u64> {
        match (self.segments.first(), self.segments.last()) {
            (Some(first), Some(last)) => first.pages().start..last.pages().end,
            _ => 0..0,
        }
    }

    /// Returns the initial thread-local storage, if the program has any.
    #[doc(alias = "PT_TLS")]
    pub fn thread_storage(&self) -> Option<&ThreadStorage> {
        self.thread_storage.as_ref()
    }

    /// Returns the location of the program's own headers; `None` if no segment contains them.
    ///
    /// This is derived from the loaded segments, as on Linux, and not from `PT_PHDR`, which may be wrong.
    pub fn program_headers(&self) -> Option<ProgramHeaders> {
        self.program_headers
    }

    /// Returns the bytes of the file with the path of the program's dynamic linker, which ends with its only NUL if the
    /// file is good; `None` for a program that is linked statically, or is a dynamic linker itself.
    #[doc(alias = "PT_INTERP")]
    #[doc(alias = "ld.so")]
    pub fn interpreter(&self) -> Option<Range<u64>> {
        self.interpreter.clone()
    }

    /// Returns whether the program says that it was built for COPS; others expect what Linux gives them.
    pub fn is_for_cops(&self) -> bool {
        self.is_for_cops
    }

    /// Returns the program's request for its stack.
    pub fn stack(&self) -> StackRequest {
        self.stack
    }
}

type Header = FileHeader<LittleEndian>;
type Headers<'file> = ParsingTable<'file, LittleEndian, ProgramHeader>;

/// Checks that the file is a program for this machine.
fn file_header(head: &[u8]) -> Result<Header, ImageError> {
    const SHORT: ImageError = ImageError::Damaged("the ELF header is cut short");
    if !head.starts_with(&abi::ELFMAGIC) {
        return Err(ImageError::NotElf);
    }
    let ident = head.get(..IDENT_LENGTH).ok_or(SHORT)?;
    let tail = head.get(IDENT_LENGTH..HEADER_LENGTH);
    let ident = parse_ident::<LittleEndian>(ident).map_err(|error| match error {
        ParseError::UnsupportedElfEndianness(_) => ImageError::WrongMachine("the program is not little-endian"),
        ParseError::UnsupportedElfClass(_) => ImageError::Damaged("unknown ELF class"),
        _ => ImageError::Damaged("unknown ELF version"),
    })?;
    if ident.1 != Class::ELF64 {
        return Err(ImageError::WrongMachine("the program is not a 64-bit one"));
    }
    let header = FileHeader::parse_tail(ident, tail.ok_or(SHORT)?).map_err(|_| SHORT)?;
    if header.e_machine != abi::EM_RISCV {
        return Err(ImageError::WrongMachine("the program is not for RISC-V"));
    }
    if header.e_flags & FLAG_REDUCED_REGISTERS != 0 {
        return Err(ImageError::WrongMachine("the program is for RV64E"));
    }
    if header.e_flags & FLAG_FLOAT_MASK == FLAG_FLOAT_QUAD {
        return Err(ImageError::WrongMachine("the program needs quad-precision floating-point registers"));
    }
    match header.e_type {
        abi::ET_EXEC | abi::ET_DYN => Ok(header),
        abi::ET_REL => Err(ImageError::Unsupported("an object file, not yet linked into a program")),
        abi::ET_CORE => Err(ImageError::Unsupported("a core dump, not a program")),
        _ => Err(ImageError::Damaged("unknown kind of ELF file")),
    }
}

/// Finds the table of program headers in the first bytes of the file.
fn program_headers<'file>(header: &Header, head: &'file [u8]) -> Result<Headers<'file>, ImageError> {
    if header.e_phnum == 0 {
        return Err(ImageError::Damaged("nothing to load"));
    }
    if header.e_phentsize != PROGRAM_HEADER_LENGTH {
        return Err(ImageError::Damaged("program headers of an unknown size"));
    }
    let length = usize::from(header.e_phnum) * usize::from(PROGRAM_HEADER_LENGTH);
    let bytes = usize::try_from(header.e_phoff)
        .ok()
        .and_then(|start| head.get(start..)?.get(..length))
        .ok_or(ImageError::Damaged("the program headers are not in the first page of the file"))?;
    Ok(ParsingTable::new(LittleEndian, Class::ELF64, bytes))
}

/// Addresses that a position-independent file asks for, before it is moved.
struct Extent {
    /// Start of the first segment, rounded down to the alignment.
    start: u64,
    /// End of the last segment.
    end: u64,
    /// The greatest alignment of a segment: moving by a multiple of it keeps every alignment that the linker made.
    alignment: u64,
}

impl Extent {
    /// Returns the first place at or above an address.
    fn from(&self, base: u64) -> Option<u64> {
        base.max(USER_ADDRESSES.start).checked_next_multiple_of(self.alignment)
    }

    /// Returns the last place that ends at or below an address, and below the end of the addresses for programs.
    fn below(&self, top: u64) -> Option<u64> {
        let length = self.end.checked_sub(self.start)?;
        Some(top.min(USER_ADDRESSES.end).checked_sub(length)? & !(self.alignment - 1))
    }
}

/// Decides the placement of the program; `start` chooses the place of one that can be moved.
fn place(
    header: &Header,
    headers: &Headers<'_>,
    start: impl FnOnce(Extent) -> Option<u64>,
) -> Result<Placement, ImageError> {
    if header.e_type == abi::ET_EXEC {
        return Ok(Placement::Fixed);
    }
    let mut alignment = PAGE_SIZE;
    let mut lowest = None;
    let mut end = 0;
    for entry in headers.iter() {
        if entry.p_type == abi::PT_LOAD && (entry.p_memsz != 0 || entry.p_filesz != 0) {
            alignment = alignment.max(checked_alignment(&entry)?);
            // Segments ascend (checked later), so that the first is the lowest and the last the highest.
            lowest.get_or_insert(entry.p_vaddr);
            end = entry.p_vaddr.saturating_add(entry.p_memsz);
        }
    }
    let lowest = lowest.ok_or(ImageError::Damaged("nothing to load"))? & !(alignment - 1);
    let base = start(Extent { start: lowest, end, alignment }).ok_or(OUTSIDE)?;
    Ok(Placement::Moved { bias: base.wrapping_sub(lowest) })
}

const OUTSIDE: ImageError = ImageError::Damaged("a segment lies outside the addresses a program may use");

fn load_segment(entry: &ProgramHeader, file_length: u64, bias: u64) -> Result<Segment, ImageError> {
    let file = file_range(entry, file_length)?;
    if entry.p_memsz < entry.p_filesz {
        return Err(ImageError::Damaged("a segment is shorter in memory than in the file"));
    }
    checked_alignment(entry)?;
    if !file.is_empty() && entry.p_offset % PAGE_SIZE != entry.p_vaddr % PAGE_SIZE {
        return Err(ImageError::Damaged("a segment's file offset and address differ within the page"));
    }
    let start = entry.p_vaddr.wrapping_add(bias);
    let end = start.checked_add(entry.p_memsz).ok_or(OUTSIDE)?;
    if start < USER_ADDRESSES.start || end > USER_ADDRESSES.end {
        return Err(OUTSIDE);
    }
    Ok(Segment { file, memory: start..end, protection: protection(entry.p_flags)? })
}

/// Checks the place of the path of a dynamic linker: at least one byte and its NUL.
fn interpreter_path(entry: &ProgramHeader, file_length: u64) -> Result<Range<u64>, ImageError> {
    let path = file_range(entry, file_length)?;
    if (2..=LONGEST_INTERPRETER).contains(&(path.end - path.start)) {
        Ok(path)
    } else {
        Err(ImageError::Damaged("the path of the dynamic linker is empty or too long"))
    }
}

fn thread_segment(entry: &ProgramHeader, file_length: u64, bias: u64) -> Result<ThreadStorage, ImageError> {
    let file = file_range(entry, file_length)?;
    if entry.p_memsz < entry.p_filesz {
        return Err(ImageError::Damaged("thread-local storage is shorter in memory than in the file"));
    }
    let alignment = entry.p_align.max(1);
    if !alignment.is_power_of_two() || alignment > PAGE_SIZE {
        return Err(ImageError::Damaged("thread-local storage has an impossible alignment"));
    }
    if entry.p_memsz > USER_ADDRESSES.end {
        return Err(ImageError::Damaged("thread-local storage is larger than memory"));
    }
    Ok(ThreadStorage { file, address: entry.p_vaddr.wrapping_add(bias), size: entry.p_memsz, alignment })
}

fn file_range(entry: &ProgramHeader, file_length: u64) -> Result<Range<u64>, ImageError> {
    if entry.p_filesz == 0 {
        return Ok(0..0);
    }
    match entry.p_offset.checked_add(entry.p_filesz) {
        Some(end) if end <= file_length => Ok(entry.p_offset..end),
        _ => Err(ImageError::Damaged("the file is cut short")),
    }
}

fn checked_alignment(entry: &ProgramHeader) -> Result<u64, ImageError> {
    match entry.p_align.max(1) {
        alignment if !alignment.is_power_of_two() => {
            Err(ImageError::Damaged("a segment's alignment is not a power of two"))
        }
        alignment => Ok(alignment),
    }
}

fn protection(flags: u32) -> Result<Protection, ImageError> {
    let writes = flags & abi::PF_W != 0;
    let executes = flags & abi::PF_X != 0;
    match (writes, executes) {
        (true, true) => Err(ImageError::Damaged("a segment is both writable and executable")),
        (true, false) => Ok(Protection::ReadWrite),
        (false, true) => Ok(Protection::ReadExecute),
        (false, false) if flags & abi::PF_R != 0 => Ok(Protection::Read),
        (false, false) => Err(ImageError::Damaged("a segment without any permission")),
    }
}

/// Adds a segment behind the earlier ones.
fn push_segment(segments: &mut Vec<Segment>, segment: Segment) -> Result<(), ImageError> {
    if let Some(last) = segments.last() {
        check_order(last, &segment)?;
    }
    if segments.len() == MAX_SEGMENTS {
        return Err(ImageError::Damaged("too many load segments"));
    }
    segments.try_reserve(1).map_err(|_| ImageError::OutOfMemory)?;
    segments.push(segment);
    Ok(())
}

fn check_order(earlier: &Segment, later: &Segment) -> Result<(), ImageError> {
    if later.memory.start < earlier.memory.end {
        Err(ImageError::Damaged("segments overlap or do not ascend"))
    } else if later.pages().start < earlier.pages().end {
        Err(ImageError::Unsupported("two segments share a page; link the program with page-aligned segments"))
    } else {
        Ok(())
    }
}

fn check_thread_storage(storage: &ThreadStorage, segments: &[Segment]) -> Result<(), ImageError> {
    let length = storage.file.end - storage.file.start;
    let inside = |segment: &Segment| {
        storage.address >= segment.memory.start
            && storage.address.checked_add(length).is_some_and(|end| end <= segment.memory.end)
    };
    if length == 0 || segments.iter().any(inside) {
        Ok(())
    } else {
        Err(ImageError::Damaged("thread-local storage is not loaded"))
    }
}

fn check_entry(entry: u64, segments: &[Segment]) -> Result<(), ImageError> {
    let inside = |segment: &Segment| segment.protection == Protection::ReadExecute && segment.memory.contains(&entry);
    // Instructions are aligned to two bytes: the C extension is part of RV64GC.
    if entry.is_multiple_of(2) && segments.iter().any(inside) {
        Ok(())
    } else {
        Err(ImageError::Damaged("the entry point is not executable"))
    }
}

fn locate_headers(header: &Header, segments: &[Segment]) -> Option<ProgramHeaders> {
    let length = u64::from(header.e_phnum) * u64::from(PROGRAM_HEADER_LENGTH);
    // The table was found in the file, so that its end is no overflow.
    let end = header.e_phoff + length;
    let segment = segments.iter().find(|segment| segment.file.start <= header.e_phoff && end <= segment.file.end)?;
    Some(ProgramHeaders {
        address: segment.memory.start + (header.e_phoff - segment.file.start),
        entry_size: u64::from(PROGRAM_HEADER_LENGTH),
        count: u64::from(header.e_phnum),
    })
}

fn round_down(address: u64) -> u64 {
    address & !(PAGE_SIZE - 1)
}

fn round_up(address: u64) -> u64 {
    round_down(address + (PAGE_SIZE - 1))
}

// The offsets above add up to the header the parser reads.
const _: () = assert!(HEADER_LENGTH == IDENT_LENGTH + 48);

#[cfg(test)]
mod tests {
    use elf::parse::ParseAt;

    use super::*;

    /// Keeps the parser's idea of an entry's size and ours together.
    #[test]
    fn entry_size_is_the_parsers() {
        assert_eq!(ProgramHeader::size_for(Class::ELF64), usize::from(PROGRAM_HEADER_LENGTH));
    }
}
