//! The layouts of a core file (core(5)), as debuggers for Linux on riscv64 read them.
//!
//! A core file is an ELF file without sections: its headers, a segment of notes about the process and its threads, and
//! a segment for each mapping. Here are its pieces as plain bytes, each of a fixed size, so that a kernel can tell the
//! place of everything before it writes the first byte and needs memory for one piece at a time. The order of the
//! notes is Linux's: the status of the thread that died first, then those about the process, and each thread's
//! floating-point registers behind its status.

/// Bytes of the file's header.
pub const HEADER: usize = 64;
/// Bytes of a program header.
pub const PROGRAM_HEADER: usize = 56;
/// Greatest number of segments that the header can tell.
pub const MOST_SEGMENTS: usize = 0xfffe;

/// Bytes of a note before its contents: three words, and its name.
pub const NOTE_HEADER: usize = 20;
/// Bytes of the note about a thread's state and registers (`struct elf_prstatus`).
pub const STATUS: usize = NOTE_HEADER + 376;
/// Bytes of the note with a thread's floating-point registers.
pub const FLOATING_POINT: usize = NOTE_HEADER + 33 * 8;
/// Bytes of the note about the process (`struct elf_prpsinfo`).
pub const PROCESS: usize = NOTE_HEADER + 136;
/// Bytes of the name of a program in that note.
pub const NAME: usize = 16;
/// Bytes of the command in that note.
pub const COMMAND: usize = 80;

/// Kinds of notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Note {
    /// `NT_PRSTATUS`
    Status = 1,
    /// `NT_PRFPREG`
    FloatingPoint = 2,
    /// `NT_PRPSINFO`
    Process = 3,
    /// `NT_AUXV`: the auxiliary vector.
    Auxiliary = 6,
    /// `NT_SIGINFO`: the signal that ended the process, a `siginfo_t`.
    Signal = 0x5349_4749,
    /// `NT_FILE`: the files that are mapped.
    Files = 0x4649_4c45,
}

impl Note {
    /// Returns the bytes in front of contents of this length, which fill up to a multiple of four.
    pub fn header(self, length: u32) -> [u8; NOTE_HEADER] {
        let mut bytes = [0; NOTE_HEADER];
        put(&mut bytes, 0, &5u32.to_le_bytes());
        put(&mut bytes, 4, &length.to_le_bytes());
        put(&mut bytes, 8, &(self as u32).to_le_bytes());
        put(&mut bytes, 12, b"CORE");
        bytes
    }

    fn begin<const SIZE: usize>(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        put(&mut bytes, 0, &self.header((SIZE - NOTE_HEADER) as u32));
        bytes
    }
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}

/// Returns the header of a core file with so many program headers, which follow it.
pub fn header(segments: u16) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    // 64 bits, little-endian, version 1.
    put(&mut bytes, 0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    // ET_CORE, EM_RISCV.
    put(&mut bytes, 16, &4u16.to_le_bytes());
    put(&mut bytes, 18, &243u16.to_le_bytes());
    put(&mut bytes, 20, &1u32.to_le_bytes());
    put(&mut bytes, 32, &(HEADER as u64).to_le_bytes());
    // The flags of programs with compressed instructions and floating-point arguments in registers.
    put(&mut bytes, 48, &5u32.to_le_bytes());
    put(&mut bytes, 52, &(HEADER as u16).to_le_bytes());
    put(&mut bytes, 54, &(PROGRAM_HEADER as u16).to_le_bytes());
    put(&mut bytes, 56, &segments.to_le_bytes());
    bytes
}

/// The access that a program has to a segment, as bits (`PF_X`, `PF_W`, `PF_R`).
#[allow(missing_docs)]
pub mod access {
    pub const EXECUTE: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const READ: u32 = 4;
}

/// A segment of memory, or that of the notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpedSegment {
    /// Bits of [`access`].
    pub access: u32,
    /// Its place in the file.
    pub offset: u64,
    /// Its address; 0 for the notes.
    pub address: u64,
    /// Bytes in the file.
    pub in_file: u64,
    /// Bytes in memory; 0 for the notes.
    pub in_memory: u64,
}

impl DumpedSegment {
    /// Returns the program header.
    pub fn to_bytes(self) -> [u8; PROGRAM_HEADER] {
        let mut bytes = [0; PROGRAM_HEADER];
        let (kind, alignment) = if self.in_memory == 0 { (4u32, 4u64) } else { (1, crate::PAGE_SIZE) };
        put(&mut bytes, 0, &kind.to_le_bytes());
        put(&mut bytes, 4, &self.access.to_le_bytes());
        for (index, word) in
            [self.offset, self.address, 0, self.in_file, self.in_memory, alignment].into_iter().enumerate()
        {
            put(&mut bytes, 8 + 8 * index, &word.to_le_bytes());
        }
        bytes
    }
}

/// The numbers of a process that its notes repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The process, or the thread.
    pub own: u32,
    /// The parent.
    pub parent: u32,
    /// The process group.
    pub group: u32,
    /// The session.
    pub session: u32,
}

impl Numbers {
    fn put(self, bytes: &mut [u8], at: usize) {
        for (index, number) in [self.own, self.parent, self.group, self.session].into_iter().enumerate() {
            put(bytes, at + 4 * index, &number.to_le_bytes());
        }
    }
}

/// A thread's state and registers.
#[derive(Clone, Copy, Debug)]
pub struct DumpedThread<'a> {
    /// Its numbers.
    pub numbers: Numbers,
    /// The signal that ended the process.
    pub signal: u8,
    /// Signals that it blocks, as bits.
    pub blocked: u64,
    /// Processor time of the thread, in microseconds.
    pub used_us: u64,
    /// Address of the next instruction.
    pub pc: u64,
    /// x1 to x31.
    pub registers: &'a [u64; 31],
    /// f0 to f31, as bits.
    pub floating_point: &'a [u64; 32],
    /// Rounding mode and exceptions.
    pub fcsr: u64,
}

impl DumpedThread<'_> {
    /// Returns the note about its state and its registers.
    pub fn status(&self) -> [u8; STATUS] {
        let mut bytes: [u8; STATUS] = Note::Status.begin();
        let at = NOTE_HEADER;
        put(&mut bytes, at, &u32::from(self.signal).to_le_bytes());
        put(&mut bytes, at + 12, &u16::from(self.signal).to_le_bytes());
        put(&mut bytes, at + 24, &self.blocked.to_le_bytes());
        self.numbers.put(&mut bytes, at + 32);
        put(&mut bytes, at + 48, &(self.used_us / 1_000_000).to_le_bytes());
        put(&mut bytes, at + 56, &(self.used_us % 1_000_000).to_le_bytes());
        put(&mut bytes, at + 112, &self.pc.to_le_bytes());
        for (index, register) in self.registers.iter().enumerate() {
            put(&mut bytes, at + 120 + 8 * index, &register.to_le_bytes());
        }
        // The note with the floating-point registers is there.
        put(&mut bytes, at + 368, &1u32.to_le_bytes());
        bytes
    }

    /// Returns the note with its floating-point registers.
    pub fn floating_point(&self) -> [u8; FLOATING_POINT] {
        let mut bytes: [u8; FLOATING_POINT] = Note::FloatingPoint.begin();
        for (index, register) in self.floating_point.iter().chain([&self.fcsr]).enumerate() {
            put(&mut bytes, NOTE_HEADER + 8 * index, &register.to_le_bytes());
        }
        bytes
    }
}

/// Returns the note about a process: its numbers, its nice value, its program's name, and its command, both cut off and
/// terminated.
pub fn process(numbers: Numbers, nice: i8, name: &[u8], command: &[u8]) -> [u8; PROCESS] {
    let mut bytes: [u8; PROCESS] = Note::Process.begin();
    let at = NOTE_HEADER;
    // It runs.
    put(&mut bytes, at + 1, b"R");
    put(&mut bytes, at + 3, &nice.to_le_bytes());
    numbers.put(&mut bytes, at + 24);
    put(&mut bytes, at + 40, &name[..name.len().min(NAME - 1)]);
    put(&mut bytes, at + 56, &command[..command.len().min(COMMAND - 1)]);
    bytes
}

/// Pages of a file that are mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedFile {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// Number of the first page in the file.
    pub page: u64,
}

/// Bytes of the head of a list of mapped files, and of an entry.
pub const FILES_HEAD: usize = 16;
/// Bytes of an entry of that list.
pub const FILES_ENTRY: usize = 24;

/// Returns the head of the list of so many mapped files. The entries follow, and then the path of each with its NUL.
pub fn files_head(count: usize) -> [u8; FILES_HEAD] {
    let mut bytes = [0; FILES_HEAD];
    put(&mut bytes, 0, &(count as u64).to_le_bytes());
    put(&mut bytes, 8, &crate::PAGE_SIZE.to_le_bytes());
    bytes
}

impl MappedFile {
    /// Returns its entry.
    pub fn to_bytes(self) -> [u8; FILES_ENTRY] {
        let mut bytes = [0; FILES_ENTRY];
        for (index, word) in [self.start, self.end, self.page].into_iter().enumerate() {
            put(&mut bytes, 8 * index, &word.to_le_bytes());
        }
        bytes
    }
}
