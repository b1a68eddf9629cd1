//! Core files of programs: from the machine to this host, and what a person asks of them.
//!
//! `run --core` and `linux run --core` give the machine a disk with an empty volume, on which its kernel writes the
//! core files, as it would for any volume; when the machine has ended they are copied from there, with the path of each
//! program's own file beside it, and with that of the directory on this host that is the machine's root, where there is
//! one. `core` lists them, prints the callers of each thread, and opens gdb.
//!
//! Rejected: core files over the serial line (a program could write the same bytes), and semihosting, with which the
//! machine could open any file of the host.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use abi_unix::types::auxiliary;
use anyhow::{Context as _, Result, anyhow, bail};
use object::Endianness;
use object::elf::{FileHeader64, NT_AUXV, NT_FILE, NT_PRSTATUS, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};
use program::core_file::{FILES_ENTRY, FILES_HEAD};

use crate::build;
use crate::callers::SymbolisedProgram;
use crate::children;
use crate::cli;
use crate::context::Context;
use crate::debian::Root;
use crate::gdb;
use crate::image;
use crate::symbols::Symbols;
use crate::toolchain::{self, Item};

/// Size of the disk; blocks that are not used take no room on this host.
const DISK: u64 = 4 << 30;
/// Name of its image, beside the core files.
const DISK_NAME: &str = "disk.img";
/// Directory of the machine where the volume is.
const DIRECTORY: &str = "/cores";
/// Bytes of a stack that are searched for callers.
const SEARCHED: u64 = 64 * 1024;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Most threads that are shown.
const MOST_THREADS: usize = 64;
/// Registers by number.
const RA: usize = 1;
const SP: usize = 2;

/// Returns the directory of the core files on this host.
pub fn directory(context: &Context) -> PathBuf {
    context.workspace.products().join("cores")
}

/// The disk of a machine that leaves core files.
pub struct CoreDisk {
    image: PathBuf,
    /// The directory of this host for the files.
    directory: PathBuf,
}

impl CoreDisk {
    /// Makes the disk, whose core files come into this directory.
    ///
    /// # Errors
    ///
    /// The tools for volumes are missing, or the image cannot be written.
    pub fn make(context: &Context, directory: &Path) -> Result<CoreDisk> {
        toolchain::ensure_on_host(&[Item::E2fsprogs], &context.progress)?;
        let image = directory.join(DISK_NAME);
        image::make(&image, DISK, None)?;
        Ok(CoreDisk { image, directory: directory.to_path_buf() })
    }

    /// Returns the image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Returns the boot words of the kernel.
    pub fn words() -> String {
        format!("core={DIRECTORY}/%e.%p ")
    }

    /// Returns the path of the disk with this number in the machine, and the directory for its volume.
    pub fn place(number: usize) -> (String, &'static str) {
        (format!("/dev/vd{}", char::from(b'a' + number.min(25) as u8)), DIRECTORY)
    }

    /// Returns the arguments of the shell that mounts the disk with this number and becomes the program.
    pub fn arguments(number: usize, program: &str, arguments: &[String]) -> Vec<String> {
        let (device, directory) = CoreDisk::place(number);
        let script = format!("mkdir {directory} && mount {device} {directory} && \"$@\"");
        let program = if program.starts_with('/') { program.into() } else { format!("/bin/{program}") };
        // The word behind the script is the shell's own name.
        let before = ["-c".into(), script, "run".into(), program];
        before.into_iter().chain(arguments.iter().cloned()).collect()
    }

    /// Copies the core files of a machine that has ended, removes the disk, and returns their names. `programs` are the
    /// machine's, by name; if they came from the packages of a root, it is the files there that count.
    ///
    /// # Errors
    ///
    /// The volume cannot be read, or a file not be written.
    pub fn collect(self, programs: &[(String, PathBuf)], root: Option<&Root>) -> Result<Vec<String>> {
        let names = RefCell::new(Vec::new());
        image::copy_files(&self.image, |name| {
            let name = safe_name(name)?;
            let path = self.directory.join(&name);
            names.borrow_mut().push(name);
            Some(path)
        })?;
        let names = names.into_inner();
        for name in &names {
            let path = self.directory.join(name);
            let program = name.rsplit_once('.').map_or(&**name, |(program, _)| program);
            let own = programs.iter().find(|(other, _)| other == program || is_short(program, other));
            let own = match root {
                Some(root) => program_of(&path).and_then(|program| root.file(&program)),
                None => own.map(|(_, file)| file.clone()),
            };
            note(&beside(&path, OWN), own.as_deref())?;
            note(&beside(&path, ROOT), root.map(Root::directory))?;
        }
        let _ = fs::remove_file(&self.image);
        Ok(names)
    }
}

/// Says which core files there are, and what to do with them.
pub fn say(names: &[String]) {
    if !names.is_empty() {
        eprintln!("Core files: {}. To see the callers of each thread, or to open gdb:", names.join(", "));
        eprintln!("    cargo xtask core\n    cargo xtask core --gdb");
    }
}

/// Returns the program's own file and the number of threads of a core file.
///
/// # Errors
///
/// It is no core file.
pub fn summary(core: &Path) -> Result<(Option<PathBuf>, usize)> {
    let own = fs::read_to_string(beside(core, OWN)).ok().map(PathBuf::from);
    Ok((own, CoreFile::parse(fs::read(core)?)?.threads.len()))
}

/// Returns the path in the machine of the program that left a core file, if the file says it.
fn program_of(core: &Path) -> Option<String> {
    CoreFile::parse(fs::read(core).ok()?).ok()?.executable
}

/// Writes a path into a file, or removes the file if there is none.
fn note(file: &Path, path: Option<&Path>) -> Result<()> {
    match path {
        Some(path) => fs::write(file, path.as_os_str().as_encoded_bytes())?,
        None => drop(fs::remove_file(file)),
    }
    Ok(())
}

/// Returns whether a name is that of a program, cut off as the kernel does.
fn is_short(short: &str, name: &str) -> bool {
    short.len() == 15 && name.starts_with(short)
}

/// Returns the name of a file of the machine as one of this host, if it is harmless there.
fn safe_name(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let is_harmless = |letter: char| letter.is_ascii_alphanumeric() || "._-+!".contains(letter);
    (!name.starts_with('.') && name != "lost+found" && name.chars().all(is_harmless)).then(|| name.to_string())
}

/// Ends of the names of files beside a core file: with the path of the program, and with that of the root.
const OWN: &str = "~program";
const ROOT: &str = "~root";

/// Returns a file beside a core file.
fn beside(core: &Path, end: &str) -> PathBuf {
    let mut name = core.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// A thread in a core file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CoreThread {
    number: u32,
    signal: u8,
    pc: u64,
    registers: [u64; 32],
}

/// A core file.
struct CoreFile {
    bytes: Vec<u8>,
    /// The thread that died first.
    threads: Vec<CoreThread>,
    /// Pairs of the auxiliary vector.
    auxiliary: Vec<(u64, u64)>,
    /// The path in the machine of the first file that was mapped: the program.
    executable: Option<String>,
    /// Address, place and length of each segment.
    memory: Vec<(u64, usize, usize)>,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn thread_of(status: &[u8]) -> Option<CoreThread> {
    let mut registers = [0; 32];
    for (number, register) in registers.iter_mut().enumerate().skip(1) {
        *register = word(status, 112 + 8 * number)?;
    }
    Some(CoreThread { number: word(status, 32)? as u32, signal: *status.get(12)?, pc: word(status, 112)?, registers })
}

/// Returns the first name of a list of files: their number, the size of a page, three words for each, and the names,
/// each with a NUL behind it.
fn first_name(list: &[u8]) -> Option<String> {
    let count = usize::try_from(word(list, 0)?).ok()?;
    let names = list.get(count.checked_mul(FILES_ENTRY)?.checked_add(FILES_HEAD)?..)?;
    let name = names.split(|byte| *byte == 0).next().filter(|name| !name.is_empty() && count > 0)?;
    String::from_utf8(name.to_vec()).ok()
}

impl CoreFile {
    fn parse(bytes: Vec<u8>) -> Result<CoreFile> {
        let header = FileHeader64::<Endianness>::parse(&*bytes).context("it is no ELF file")?;
        let endian = header.endian()?;
        if header.e_type(endian) != object::elf::ET_CORE || header.e_machine(endian) != object::elf::EM_RISCV {
            bail!("it is no core file of RISC-V");
        }
        let (mut threads, mut auxiliary, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        let mut executable = None;
        // A file that was cut off may lack the last ones.
        for segment in header.program_headers(endian, &*bytes)? {
            let (offset, length) = segment.file_range(endian);
            if segment.p_type(endian) == PT_LOAD {
                memory.push((segment.p_vaddr(endian), offset as usize, length as usize));
            }
            if segment.p_type(endian) != PT_NOTE {
                continue;
            }
            for note in segment.notes(endian, &*bytes)?.into_iter().flatten().map_while(Result::ok) {
                let kind = note.n_type(endian);
                if kind == NT_PRSTATUS {
                    threads.extend(thread_of(note.desc()));
                } else if kind == NT_AUXV {
                    let pairs = note.desc().chunks_exact(16);
                    auxiliary.extend(pairs.filter_map(|pair| Some((word(pair, 0)?, word(pair, 8)?))));
                } else if kind == NT_FILE {
                    executable = executable.or_else(|| first_name(note.desc()));
                }
            }
        }
        if threads.is_empty() {
            bail!("it has no thread: it was cut off before its registers");
        }
        Ok(CoreFile { threads, auxiliary, executable, memory, bytes })
    }

    fn auxiliary(&self, key: u64) -> u64 {
        self.auxiliary.iter().find(|(other, _)| *other == key).map_or(0, |(_, value)| *value)
    }

    /// Returns the bytes from an address on that the file has, at most so many.
    fn memory(&self, address: u64, most: usize) -> &[u8] {
        let found = self.memory.iter().find_map(|&(start, place, length)| {
            let distance = usize::try_from(address.checked_sub(start)?).ok().filter(|distance| *distance < length)?;
            let from = place.checked_add(distance)?;
            self.bytes.get(from..from.checked_add((length - distance).min(most))?.min(self.bytes.len()))
        });
        found.unwrap_or_default()
    }

    /// Returns the words above an address that the file has, with their distances from it. After an overflow the stack
    /// pointer lies in the guard below the stack, which the file does not have.
    fn words_above(&self, start: u64) -> Vec<(u64, u64)> {
        let (mut words, mut distance) = (Vec::new(), 0);
        while distance < SEARCHED {
            let Some(at) = start.checked_add(distance) else { break };
            let page = PAGE - at % PAGE;
            let bytes = self.memory(at, page as usize);
            let read = (0..bytes.len() / 8).filter_map(|index| Some((8 * index as u64, word(bytes, 8 * index)?)));
            words.extend(read.map(|(place, word)| (distance + place, word)));
            distance += page;
        }
        words
    }
}

/// A core file with the code of its program.
struct Explained<'a> {
    core: &'a CoreFile,
    program: SymbolisedProgram,
    /// Distance by which the program was moved from its place in the file.
    moved: u64,
    scheduler: Option<Symbols>,
}

impl Explained<'_> {
    /// Returns the lines of a thread's callers, innermost first.
    fn callers(&self, thread: &CoreThread) -> Vec<String> {
        let in_file = |address: u64| address.wrapping_sub(self.moved);
        let in_program = self.program.is_code(in_file(thread.pc));
        // A return address may lie behind the last function.
        let is_code = |address: u64| self.program.is_code(in_file(address).wrapping_sub(1));
        let words = self.core.words_above(thread.registers[SP]).into_iter();
        let candidates: Vec<_> =
            words.filter(|(_, word)| is_code(*word)).map(|(at, word)| (at, in_file(word))).collect();
        let ra = thread.registers[RA];
        let mut lines = Vec::new();
        let base = self.core.auxiliary(auxiliary::SYSINFO_EHDR);
        if !in_program {
            let distance = thread.pc.wrapping_sub(base);
            let functions = self.scheduler.as_ref().filter(|_| base != 0).map(|symbols| symbols.functions_at(distance));
            let name = functions.and_then(|functions| functions.first().cloned());
            let name = name.unwrap_or_else(|| "in no file that is known".into());
            lines.push(format!("  at {:#x}  {name}", thread.pc));
        }
        let calls = self.program.callers(in_file(thread.pc), if is_code(ra) { in_file(ra) } else { 0 }, &candidates);
        lines.extend(self.program.report(calls.into_iter().skip(usize::from(!in_program))));
        lines
    }
}

/// Returns the entry of a program's file.
fn entry_of(program: &Path) -> Result<u64> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let header =
        FileHeader64::<Endianness>::parse(&*bytes).with_context(|| format!("{} is no ELF file", program.display()))?;
    Ok(header.e_entry(header.endian()?))
}

/// Returns the core files on this host, the newest last.
fn all(context: &Context) -> Result<Vec<(SystemTime, PathBuf)>> {
    let Ok(entries) = fs::read_dir(directory(context)) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && !name.ends_with(OWN) && !name.ends_with(ROOT) && name != DISK_NAME && name != "gdb" {
            files.push((path.metadata()?.modified()?, path));
        }
    }
    files.sort();
    Ok(files)
}

/// Performs `core`.
///
/// # Errors
///
/// There is no core file, it cannot be read, or gdb is missing where it is to be opened.
pub fn core(context: &Context, arguments: &cli::Core) -> Result<ExitCode> {
    let files = all(context)?;
    let path = match (&arguments.file, files.last()) {
        (Some(file), _) if file.is_file() => file.clone(),
        (Some(file), _) if directory(context).join(file).is_file() => directory(context).join(file),
        (Some(file), _) => bail!("there is no file {}", file.display()),
        (None, Some((_, newest))) => newest.clone(),
        (None, None) if directory(context).join(DISK_NAME).is_file() => bail!(
            "there are no core files yet: they are copied from the machine's disk when it has ended. If none runs, {} \
             was left by one that was killed",
            directory(context).join(DISK_NAME).display()
        ),
        (None, None) => bail!(
            "there are no core files; a machine whose programs leave some is started by: cargo xtask run --core PROGRAM"
        ),
    };
    let program = match &arguments.program {
        Some(program) => Some(program.clone()),
        None => fs::read_to_string(beside(&path, OWN)).ok().map(PathBuf::from),
    };
    let root = fs::read_to_string(beside(&path, ROOT)).ok().map(PathBuf::from);
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let core = CoreFile::parse(bytes).with_context(|| path.display().to_string())?;
    if arguments.file.is_none() && files.len() > 1 {
        let names: Vec<_> = files.iter().filter_map(|(_, path)| Some(path.file_name()?.to_string_lossy())).collect();
        println!("core files, the newest last: {}", names.join(", "));
    }
    print!("{}", describe(context, &path, &core, program.as_deref())?);
    if arguments.gdb {
        open_gdb(context, &path, &core, (program.as_deref(), root.as_deref()), &arguments.arguments)
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

fn describe(context: &Context, path: &Path, core: &CoreFile, program: Option<&Path>) -> Result<String> {
    let mut text = String::new();
    let first = &core.threads[0];
    let _ = writeln!(text, "{}: signal {}, {} threads", path.display(), first.signal, core.threads.len());
    let Some(program) = program else {
        let _ = writeln!(text, "the program's own file is not known; name it with --program FILE");
        return Ok(text);
    };
    let entry = entry_of(program)?;
    let explained = Explained {
        core,
        program: SymbolisedProgram::load(program)?,
        moved: core.auxiliary(auxiliary::ENTRY).wrapping_sub(entry),
        scheduler: Symbols::load(&build::vdso_symbols(&context.workspace)).ok(),
    };
    let _ = writeln!(text, "program {}", program.display());
    for (number, thread) in core.threads.iter().take(MOST_THREADS).enumerate() {
        let died = if number == 0 { ", which died" } else { "" };
        let _ = writeln!(text, "thread {}{died}:", thread.number);
        for line in explained.callers(thread) {
            let _ = writeln!(text, "{line}");
        }
    }
    Ok(text)
}

/// Opens gdb with a core file, its program, and the commands of the tree.
fn open_gdb(
    context: &Context,
    path: &Path,
    core: &CoreFile,
    (program, root): (Option<&Path>, Option<&Path>),
    arguments: &[String],
) -> Result<ExitCode> {
    const GDB: &str = "gdb-multiarch";
    let there = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(GDB).is_file()));
    if !there {
        bail!("there is no {GDB}. On Debian, run this and try again:\n    sudo apt-get install --yes {GDB}");
    }
    let moved = match program {
        Some(program) => core.auxiliary(auxiliary::ENTRY).wrapping_sub(entry_of(program)?),
        None => 0,
    };
    let script = directory(context).join("gdb");
    gdb::write_for_core(&script, &context.workspace.root, (program, root), moved, path)?;
    let status = children::command(GDB).arg("-x").arg(&script).args(arguments).status();
    let status = status.with_context(|| format!("cannot run {GDB}"))?;
    status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map(ExitCode::from)
        .ok_or_else(|| anyhow!("gdb was ended: {status}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A core file with one thread and a segment of memory, as the kernel's tests know the layout.
    fn small(registers: [u64; 32], stack: &[u64]) -> Vec<u8> {
        use program::core_file::{DumpedSegment, DumpedThread, HEADER, Numbers, PROGRAM_HEADER, header};
        let x = std::array::from_fn(|number| registers[number + 1]);
        let thread = DumpedThread {
            numbers: Numbers { own: 7, ..Numbers::default() },
            signal: 11,
            blocked: 0,
            used_us: 0,
            pc: 0x1234,
            registers: &x,
            floating_point: &[0; 32],
            fcsr: 0,
        };
        let notes = [&thread.status()[..], &thread.floating_point()].concat();
        let memory: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        let offset = (HEADER + 2 * PROGRAM_HEADER) as u64;
        let about = DumpedSegment { access: 0, offset, address: 0, in_file: notes.len() as u64, in_memory: 0 };
        let length = memory.len() as u64;
        let offset = offset + notes.len() as u64;
        let segment = DumpedSegment { access: 6, offset, address: 0x8000, in_file: length, in_memory: length };
        [&header(2)[..], &about.to_bytes(), &segment.to_bytes(), &notes, &memory].concat()
    }

    #[test]
    fn threads_and_memory_are_read() {
        let mut registers = [0; 32];
        (registers[RA], registers[SP]) = (0x10, 0x8008);
        let core = CoreFile::parse(small(registers, &[1, 2, 3])).unwrap();
        assert_eq!(core.threads, [CoreThread { number: 7, signal: 11, pc: 0x1234, registers }]);
        assert_eq!(core.memory(0x8008, 100).len(), 16);
        assert_eq!(word(core.memory(0x8010, 8), 0), Some(3));
        assert!(core.memory(0x8018, 8).is_empty() && core.memory(0, 8).is_empty());
        assert_eq!(core.words_above(0x8008), [(0, 2), (8, 3)]);
        assert_eq!(core.words_above(0x6ff8), [(0x1008, 1), (0x1010, 2), (0x1018, 3)], "from a guard below the stack");
        assert!(core.words_above(u64::MAX - 7).is_empty());
    }

    #[test]
    fn damaged_core_files_are_refused_or_read_as_far_as_they_go() {
        let whole = small([0; 32], &[1, 2, 3]);
        for length in 0..whole.len() {
            if let Ok(core) = CoreFile::parse(whole[..length].to_vec()) {
                assert!(core.memory(0x8000, 100).len() <= 24);
            }
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = CoreFile::parse(damaged).map(|core| core.memory(0x8000, 100).len());
        }
    }

    #[test]
    fn the_first_name_of_mapped_files_is_the_program() {
        let list = |count: u64, names: &[u8]| {
            let head = [count.to_le_bytes(), 4096u64.to_le_bytes()].concat();
            [&head[..], &vec![1; count.min(4) as usize * FILES_ENTRY], names].concat()
        };
        assert_eq!(first_name(&list(2, b"/usr/bin/bash\0/lib/libc.so.6\0")), Some("/usr/bin/bash".into()));
        for (count, names) in [(0, &b"/x\0"[..]), (1, b""), (1, b"\xff\0"), (1 << 40, b"/x\0"), (u64::MAX, b"/x\0")] {
            assert_eq!(first_name(&list(count, names)), None);
        }
        assert_eq!(first_name(&[0; 7]), None);
    }

    #[test]
    fn names_of_the_machine_lead_to_no_other_directory() {
        assert_eq!(safe_name(b"hello.7"), Some("hello.7".into()));
        for name in [&b"../x"[..], b".hidden", b"a/b", b"a b", b"\xff", b"lost+found"] {
            assert_eq!(safe_name(name), None);
        }
    }

    #[test]
    fn the_shell_mounts_the_disk_and_runs_the_program() {
        let arguments = CoreDisk::arguments(1, "hello", &["a b".into()]);
        assert_eq!(arguments[2..], ["run", "/bin/hello", "a b"]);
        assert!(arguments[1].contains("mount /dev/vdb /cores"));
    }
}
