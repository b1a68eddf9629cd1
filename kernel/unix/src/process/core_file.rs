//! Core files: the memory and the registers of a process that a signal has ended (core(5)).
//!
//! The decision is made at the moment of the end ([`Dump::dies`]): the signal is one of those that leave a core, the
//! process's limit permits one, and it has not said that it must not be dumped. From then on each worker and thread
//! that leaves hands its registers over ([`Dump::keep_registers`]). None of them has to be stopped for that, since all
//! leave at the end anyway; the last one finds those of all, and the memory as they have left it, since it has not been
//! taken apart. It writes the file, in steps, before it gives anything up: the parent learns of the end when the file
//! is complete.
//!
//! All of it is the process's own: the time is charged to it, at the priority that it had; the memory of the file is
//! charged as if it had written it; and SIGKILL, or a lack of memory, ends the writing. [`name`] makes the path from
//! the pattern of `/proc/sys/kernel/core_pattern`, [`writer`] writes the contents.
//!
//! Rejected: a stop of all threads while the file is written, in the coroutine of the one that died. It would need a
//! way of its own to wait for them, beside the one that the end of a process has. Registers in kernel memory made for
//! it: at the end of a process there may be none, and the ones that it ran with are there.

pub(crate) mod name;
mod writer;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use ::signals::{Information, Signal};
use abi_queue::pages::PAGE_SIZE;
use abi_unix::Errno;
use abi_unix::types::{limit, mode};
use filesystem::{Access, Contents, Creation, Expect, FileKind, LastComponent, LastLink, OpenOptions, Writes};
use hal_api::UserContext;
use spin::Mutex;
use tables::Queue;

use crate::files::file::FileOperations;
use crate::files::mounts::{Halt, Opened, Path};
use crate::files::remains;
use crate::files::stored::Stored;
use crate::files::volume::VolumeRequest;
use crate::files::volume::file::VolumeFile;
use crate::process::Process;
use crate::process::accounts::{Account, has_machine_memory};
use crate::process::exit_status::Ending;
use crate::process::worker::Worker;
use crate::scheduling::executor;
use crate::scheduling::steps;

/// Smallest limit with which a core file is begun, as on Linux: one page.
const SMALLEST_LIMIT: usize = 4096;
/// Threads that are dropped in a step.
const DROPPED_AT_A_TIME: usize = 32;

/// Kinds of memory that a core file has, as bits of `/proc/PID/coredump_filter`.
pub(crate) mod filter {
    /// Anonymous private memory.
    pub(crate) const PRIVATE: u32 = 1;
    /// Anonymous memory in common.
    pub(crate) const COMMON: u32 = 2;
    /// Pages of files that the process has for itself and cannot have changed.
    pub(crate) const PRIVATE_FILES: u32 = 4;
    /// Pages of files in common.
    pub(crate) const COMMON_FILES: u32 = 8;
    /// The first page of ELF files.
    pub(crate) const HEADERS: u32 = 16;
    /// All bits that Linux knows. The others mean kinds of memory that there are not.
    pub(crate) const ALL: u32 = 0x1ff;
    /// Those of a process that has said nothing.
    pub(crate) const DEFAULT: u32 = 0x33;
}

/// The progress towards a core file.
struct Wish;

impl Wish {
    /// There will be none.
    const NONE: u8 = 0;
    /// The process has died, and leaves one.
    const WANTED: u8 = 1;
    /// It was given up.
    const GIVEN_UP: u8 = 2;
}

/// A worker or thread that has left, with its last registers.
struct LeftThread {
    thread: Arc<Worker>,
    context: Box<UserContext>,
}

/// A process's choices about its core file, and what it keeps for it at its end.
pub(crate) struct Dump {
    /// Bits of [`filter`].
    filter: AtomicU32,
    /// Whether it may be dumped (`PR_SET_DUMPABLE`).
    is_permitted: AtomicBool,
    // Stored before the condition of the end, whose release and acquire order it; later changes stand alone.
    wish: AtomicU8,
    /// The signal that has ended it, and the number of the thread that has met it: the first one that was noted.
    death: Mutex<Option<(Information, u32)>>,
    threads: Mutex<Queue<LeftThread>>,
}

impl Dump {
    /// Makes that of a process without choices.
    pub(crate) const fn new() -> Dump {
        Dump::with(filter::DEFAULT, true)
    }

    /// Makes that of a process with these kinds of memory, which may be dumped or not.
    pub(crate) const fn with(filter: u32, is_permitted: bool) -> Dump {
        Dump {
            filter: AtomicU32::new(filter),
            is_permitted: AtomicBool::new(is_permitted),
            wish: AtomicU8::new(Wish::NONE),
            death: Mutex::new(None),
            threads: Mutex::new(Queue::new()),
        }
    }

    /// Returns the kinds of memory that the file has: bits of [`filter`].
    pub(crate) fn filter(&self) -> u32 {
        self.filter.load(Ordering::Relaxed)
    }

    /// Sets the kinds of memory.
    pub(crate) fn set_filter(&self, bits: u32) {
        self.filter.store(bits & filter::ALL, Ordering::Relaxed);
    }

    /// Returns whether the process may be dumped.
    pub(crate) fn is_permitted(&self) -> bool {
        self.is_permitted.load(Ordering::Relaxed)
    }

    /// Sets whether the process may be dumped.
    #[doc(alias = "PR_SET_DUMPABLE")]
    pub(crate) fn permit(&self, is_permitted: bool) {
        self.is_permitted.store(is_permitted, Ordering::Relaxed);
    }

    /// Makes that of a copy of a process.
    pub(crate) fn of_a_copy(&self) -> Dump {
        Dump::with(self.filter(), self.is_permitted())
    }

    /// Records the signal that ends the process, if none was recorded before, and the thread that has met it.
    pub(super) fn note_death(&self, information: Information, thread: u32) {
        self.death.lock().get_or_insert((information, thread));
    }

    /// Decides whether the process, which ends now, leaves a core file. Called before anybody sees the end.
    pub(super) fn dies(&self, ending: Ending, account: &Account) {
        let Ending::Killed(number) = ending else { return };
        let leaves_core = Signal::new(number.into()).is_some_and(Signal::leaves_core);
        if leaves_core && self.is_permitted() && account.setting(limit::CORE as usize).soft >= SMALLEST_LIMIT {
            self.wish.store(Wish::WANTED, Ordering::Relaxed);
        }
    }

    /// Returns whether a core file is to be written, or goes on.
    fn is_wanted(&self) -> bool {
        self.wish.load(Ordering::Relaxed) == Wish::WANTED
    }

    /// Ends the writing: the process is killed, or its memory is needed.
    pub(super) fn give_up(&self) {
        let _ = self.wish.compare_exchange(Wish::WANTED, Wish::GIVEN_UP, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Keeps the registers of a worker or thread that leaves for the core file, if there will be one. Without memory
    /// for that the file has the others.
    pub(super) fn keep_registers(&self, thread: &Arc<Worker>, context: Box<UserContext>) {
        if thread.process.has_ended() && self.is_wanted() {
            let mut threads = self.threads.lock();
            let room = threads.len() + 1;
            if threads.reserve(room).is_ok() {
                threads.push_back(LeftThread { thread: thread.clone(), context });
            }
        }
    }
}

/// Reason why a core file is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The process was killed, or memory was needed.
    GivenUp,
    /// The limit of its size is reached.
    Limit,
    /// An error of the file.
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Stop {
        Stop::Failed(error)
    }
}

impl Process {
    /// Writes the core file of a process that has ended, if it leaves one. Its ending tells afterwards whether there is
    /// one. Called by the last worker, before it takes the process apart.
    ///
    /// # Cancellation
    /// Not to be dropped: the process would not be taken apart.
    #[doc(alias = "do_coredump")]
    pub(super) async fn write_core_file(self: &Arc<Process>) {
        if self.dump.wish.load(Ordering::Relaxed) == Wish::NONE {
            return;
        }
        let threads = core::mem::take(&mut *self.dump.threads.lock());
        // In memory of its own, which only few processes need at their end.
        if !has_machine_memory() {
            self.lines.print(format_args!("no core file: there is no memory"));
        } else if self.dump.is_wanted() {
            executor::set_priority(executor::current(), self.own_priority());
            boxed(self.write_core_file_of(&threads)).await;
            // The rest of its end is done immediately, as that of others.
            self.standing.has_ended();
        }
        for mut segment in threads.into_segments() {
            while !segment.is_empty() {
                segment.truncate(segment.len().saturating_sub(DROPPED_AT_A_TIME));
                steps::pause_at_the_end().await;
            }
        }
    }

    async fn write_core_file_of(self: &Arc<Process>, threads: &Queue<LeftThread>) {
        let (information, met_by) = self.death_of_core();
        let signal = information.signal.number();
        let path = match name::path(self, signal, met_by) {
            Ok(path) => path,
            Err(error) => return self.lines.print(format_args!("no core file: its name cannot be made: {error}")),
        };
        if path.is_empty() {
            return;
        }
        let shown = core::str::from_utf8(&path).unwrap_or("?");
        let file = match self.open_core_file(&path).await {
            Ok(file) => file,
            Err(error) => return self.lines.print(format_args!("no core file: cannot write {shown}: {error}")),
        };
        let (written, stop) = match writer::write(self, &*file, threads, (information, met_by)).await {
            Ok(written) => (written, None),
            Err((written, stop)) => (written, Some(stop)),
        };
        // On a volume it lasts from now on.
        if let Some(file) = on_volume(&*file)
            && let Ok(submission) = file.node().volume().submit(
                &self.account,
                self.id,
                VolumeRequest::Synchronise(Some(file.node().clone())),
            )
        {
            let _ = submission.answer().await;
        }
        drop(file);
        remains::free_at_the_end().await;
        let kibibytes = written.div_ceil(1024);
        match stop {
            None => self.lines.print(format_args!("signal {signal}: core file {shown}, {kibibytes} KiB")),
            Some(Stop::Limit) => self.lines.print(format_args!(
                "signal {signal}: core file {shown}, cut off after {kibibytes} KiB by its limit (RLIMIT_CORE)"
            )),
            Some(Stop::GivenUp) => {
                return self.lines.print(format_args!("no whole core file: the process was killed"));
            }
            Some(Stop::Failed(error)) => self
                .lines
                .print(format_args!("signal {signal}: core file {shown}, cut off after {kibibytes} KiB: {error}")),
        }
        // As on Linux, one that was cut off counts.
        *self.ending.lock() = Some(Ending::Dumped(signal));
    }

    /// Returns the signal that has ended the process, and the number of the thread that has met it.
    fn death_of_core(&self) -> (Information, u32) {
        let number = match *self.ending.lock() {
            Some(Ending::Killed(number)) => number,
            _ => 0,
        };
        let death = self.dump.death.lock().filter(|(information, _)| information.signal.number() == number);
        let signal = Signal::new(number.into()).unwrap_or(Signal::KILL);
        death.unwrap_or((Information::of_kernel(signal), self.id))
    }

    /// Returns the priority that it has while it publishes nothing.
    fn own_priority(&self) -> abi_queue::Priority {
        self.standing.worth(self.default_priority())
    }

    /// Opens the file, and empties it. Never through a symbolic link in last place; `EEXIST` for a file that has other
    /// names too, `EINVAL` for one that is not regular, `EROFS` for one of the archive, and `EPERM` for one that others
    /// than the process's user own or may use: they would read its memory.
    async fn open_core_file(self: &Arc<Process>, path: &[u8]) -> Result<Box<dyn FileOperations>, Errno> {
        let options = OpenOptions {
            access: Access::Write,
            creation: Creation::IfMissing,
            contents: Contents::Keep,
            writes: Writes::AtPosition,
            expect: Expect::Anything,
            last_link: LastLink::Keep,
            permissions: 0o600,
        };
        self.account.admit()?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(path.len()).map_err(|_| Errno::ENOMEM)?;
        copy.extend_from_slice(path);
        let directory = || Ok(self.directory.lock().clone());
        let path = Path::from_directory(directory, copy, self.id)?;
        let mut path = path.paid_by(&self.account).seen_by(self.whom());
        let owner: Arc<dyn filesystem::Owner> = self.account.clone();
        let opened = loop {
            match path.open(&options, LastComponent::Made(LastLink::Keep), &owner) {
                Ok(opened) => break opened,
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::Later) => {
                    steps::pause_at_the_end().await;
                    path.run_errand().await;
                }
            }
            if !self.dump.is_wanted() {
                return Err(Errno::EINTR);
            }
        };
        let file: Box<dyn FileOperations> = match opened {
            Opened::Stored(file, _) if file.node().kind() != FileKind::Regular => return Err(Errno::EINVAL),
            Opened::Stored(file, _) if file.node().archived_bytes().is_some_and(|bytes| !bytes.is_empty()) => {
                return Err(Errno::EROFS);
            }
            Opened::Stored(file, mount) => Box::new(Stored::new(file, mount)?),
            Opened::OnVolume { node, .. } if node.kind() != FileKind::Regular => return Err(Errno::EINVAL),
            Opened::OnVolume { node, mount, is_cut } => {
                VolumeFile::open(node, mount, Access::Write, 0, is_cut, &self.account)?
            }
            Opened::Generated(..) | Opened::Same(_) => return Err(Errno::EINVAL),
        };
        let status = file.status();
        if status.mode & mode::TYPE != mode::REGULAR {
            return Err(Errno::EINVAL);
        }
        if status.links > 1 {
            return Err(Errno::EEXIST);
        }
        if status.user != self.whom().map_or(0, |whom| whom.files.user) || status.mode & 0o677 != 0o600 {
            return Err(Errno::EPERM);
        }
        if status.size > 0 {
            self.set_length(&*file, 0).await?;
            remains::free_at_the_end().await;
        }
        Ok(file)
    }

    /// Gives a file a length.
    async fn set_length(&self, file: &dyn FileOperations, length: u64) -> Result<(), Errno> {
        match on_volume(file) {
            Some(file) => {
                let request = VolumeRequest::Truncate(file.node().clone(), length);
                file.node().volume().submit(&self.account, self.id, request)?.answer().await.map(|_| ())
            }
            None => file.truncate(length).map(|_| ()),
        }
    }
}

/// Puts work into memory of its own, for which there is some: a frame at most.
fn boxed<T>(work: T) -> Pin<Box<T>> {
    const { assert!(size_of::<T>() <= PAGE_SIZE) };
    Box::pin(work)
}

/// Returns a file of a volume.
fn on_volume(file: &dyn FileOperations) -> Option<&VolumeFile> {
    (file as &dyn core::any::Any).downcast_ref()
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use abi_unix::SystemCall;
    use abi_unix::types::{self, clone, open as how, signal};
    use elf::ElfBytes;
    use elf::endian::LittleEndian;
    use elf::note::Note;
    use hal_api::Trap;

    use super::*;
    use crate::testing::{DATA, Program, run};

    const HERE: usize = types::AT_FDCWD as usize;
    const UNLIMITED: u64 = u64::MAX;
    const CORE: &str = "/core";

    fn text(program: &mut Program, text: &str) -> usize {
        program.store(format!("{text}\0").as_bytes())
    }

    fn set_limit(program: &mut Program, bytes: u64) {
        let limit = program.store(&limit::to_bytes(bytes, UNLIMITED));
        program.call(SystemCall::ProcessLimit, [0, limit::CORE as usize, limit, 0]).unwrap();
    }

    /// Returns the contents of a file; `None` if there is none.
    fn contents(program: &mut Program, path: &str) -> Option<Vec<u8>> {
        let path = text(program, path);
        let file = program.call(SystemCall::Open, [HERE, path, how::RDONLY as usize, 0]).ok()?;
        let mut bytes = Vec::new();
        loop {
            let piece = program.read_from(file, 4096).unwrap();
            if piece.is_empty() {
                program.close(file).unwrap();
                return Some(bytes);
            }
            bytes.extend(piece);
        }
    }

    fn remove(program: &mut Program, path: &str) {
        let path = text(program, path);
        program.call(SystemCall::Unlink, [HERE, path, 0]).unwrap();
    }

    /// Runs a child that dies in this way; returns the status that its parent sees.
    fn status_of(program: &mut Program, body: impl FnOnce(&mut Program) + Send + 'static) -> u32 {
        let child = program.spawn(body).unwrap();
        program.wait_for(child).unwrap().1
    }

    fn notes(file: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let elf = ElfBytes::<LittleEndian>::minimal_parse(file).unwrap();
        let segments = elf.segments().unwrap();
        let about = segments.iter().find(|segment| segment.p_type == elf::abi::PT_NOTE).unwrap();
        let notes = elf.segment_data_as_notes(&about).unwrap();
        notes
            .map(|note| match note {
                Note::Unknown(note) => (note.n_type, note.desc.to_vec()),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// Returns bytes of a process's memory from its core file; `None` if it does not have them.
    fn memory(file: &[u8], address: u64, length: usize) -> Option<Vec<u8>> {
        let elf = ElfBytes::<LittleEndian>::minimal_parse(file).unwrap();
        let segments = elf.segments().unwrap();
        let has = |segment: &elf::segment::ProgramHeader| {
            segment.p_type == elf::abi::PT_LOAD
                && (segment.p_vaddr..segment.p_vaddr + segment.p_filesz).contains(&address)
        };
        let segment = segments.iter().find(has)?;
        let at = (segment.p_offset + address - segment.p_vaddr) as usize;
        Some(file[at..at + length].to_vec())
    }

    const FAULT: Trap = Trap::PageFault { address: 8, access: hal_api::Access::Write };

    #[test]
    fn a_fault_leaves_a_core_file_with_memory_and_registers() {
        run(|program| {
            set_limit(program, UNLIMITED);
            let status = status_of(program, |program| {
                let place = program.store(b"the memory of a process that dies");
                program.write(DATA + 0x8000, &place.to_le_bytes());
                let flags = (clone::SHARED | clone::SETTLS) as usize;
                let waits = program.identity_for(|program| program.sleep_ns(1_000_000_000_000));
                program.call(SystemCall::Clone, [flags, 0x3_0000, 0, waits, 0]).unwrap();
                program.sleep_ns(1_000_000);
                program.trap(FAULT);
            });
            assert_eq!(status, signal::SEGV | 0x80);
            let file = contents(program, CORE).unwrap();
            let notes = notes(&file);
            let kinds: Vec<_> = notes.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, [1, 3, 0x5349_4749, 6, 0x4649_4c45, 2, 1, 2], "two threads");
            let numbers: Vec<_> =
                notes.iter().filter(|(kind, _)| *kind == 1).map(|(_, note)| word(note, 32) as u32 & 0xffff).collect();
            assert_eq!(numbers[0], numbers[1]);
            assert_eq!(notes[0].1[12], signal::SEGV as u8);
            assert_eq!(&notes[1].1[40..45], b"test\0");
            assert_eq!((notes[2].1[0], word(&notes[2].1, 16)), (signal::SEGV as u8, 8), "the address of the fault");
            let pairs: Vec<_> = notes[3].1.chunks(16).map(|pair| word(pair, 0)).collect();
            assert_eq!((pairs[0], pairs[pairs.len() - 1]), (types::auxiliary::SYSINFO_EHDR, 0));
            let path = b"/bin/test\0";
            assert!(notes[4].1.windows(path.len()).any(|window| window == path), "the program's file");
            // The second thread waits in its call.
            assert_eq!(word(&notes[6].1, 112 + 8 * 17), SystemCall::Sleep as u64);
            let place = word(&memory(&file, (DATA + 0x8000) as u64, 8).unwrap(), 0);
            assert_eq!(memory(&file, place, 33).unwrap(), b"the memory of a process that dies");
            let (path, status) = (text(program, CORE), program.place(128));
            program.call(SystemCall::StatusAt, [HERE, path, status, 0]).unwrap();
            assert_eq!(program.read_u32(status + 16) & 0o7777, 0o600);
            remove(program, CORE);
        });
    }

    /// By the limit, the signal and the process's own wish.
    #[test]
    fn no_core_file_is_left_where_none_is_wanted() {
        run(|program| {
            let die = |program: &mut Program| program.trap(FAULT);
            assert_eq!(status_of(program, die), signal::SEGV, "the limit is 0");
            set_limit(program, 4095);
            assert_eq!(status_of(program, die), signal::SEGV);
            set_limit(program, UNLIMITED);
            let undumpable = |program: &mut Program| {
                assert_eq!(program.call(SystemCall::ProcessControl, [4, 0]), Ok(0));
                assert_eq!(program.call(SystemCall::ProcessControl, [3]), Ok(0));
                program.trap(FAULT);
            };
            assert_eq!(status_of(program, undumpable), signal::SEGV);
            let by = |number: u32| {
                move |program: &mut Program| {
                    let id = program.id as usize;
                    let _ = program.call(SystemCall::Kill, [id, number as usize]);
                }
            };
            assert_eq!(status_of(program, by(signal::TERM)), signal::TERM);
            assert_eq!(contents(program, CORE), None);
            assert_eq!(status_of(program, by(signal::QUIT)), signal::QUIT | 0x80);
            assert!(contents(program, CORE).is_some());
            remove(program, CORE);
        });
    }

    #[test]
    fn a_core_file_ends_at_its_limit_and_replaces_an_older_one() {
        run(|program| {
            let die = |program: &mut Program| program.trap(FAULT);
            set_limit(program, UNLIMITED);
            assert_eq!(status_of(program, die), signal::SEGV | 0x80);
            let whole = contents(program, CORE).unwrap();
            set_limit(program, 5000);
            assert_eq!(status_of(program, die), signal::SEGV | 0x80);
            let cut = contents(program, CORE).unwrap();
            assert!(cut.len() == 5000 && whole.len() > 5000);
            assert_eq!(cut[..64], whole[..64]);
            remove(program, CORE);
        });
    }

    /// Links lead nowhere, and files with two names or of the archive stay as they are.
    #[test]
    fn a_core_file_changes_no_file_of_others() {
        run(|program| {
            set_limit(program, UNLIMITED);
            let die = |program: &mut Program| program.trap(FAULT);
            let (victim, core, other) =
                (text(program, "/tmp/victim"), text(program, CORE), text(program, "/tmp/other"));
            let flags = (how::CREAT | how::WRONLY) as usize;
            let file = program.call(SystemCall::Open, [HERE, victim, flags, 0o644]).unwrap();
            program.write_to(file, b"mine").unwrap();
            program.close(file).unwrap();
            program.call(SystemCall::SymbolicLink, [victim, HERE, core]).unwrap();
            assert_eq!(status_of(program, die), signal::SEGV);
            remove(program, CORE);
            program.call(SystemCall::Link, [HERE, victim, HERE, core, 0]).unwrap();
            assert_eq!(status_of(program, die), signal::SEGV);
            assert_eq!(contents(program, "/tmp/victim"), Some(b"mine".to_vec()));
            remove(program, CORE);
            program.call(SystemCall::MakeDirectory, [HERE, core, 0o755]).unwrap();
            assert_eq!(status_of(program, die), signal::SEGV);
            program.call(SystemCall::Unlink, [HERE, core, types::AT_REMOVEDIR as usize]).unwrap();
            for pattern in ["/bin/test", "/proc/version", "/dev/null", "/missing/core", ""] {
                name::set_pattern(pattern.as_bytes()).unwrap();
                assert_eq!(status_of(program, die), signal::SEGV, "{pattern}");
            }
            name::set_pattern(b"core").unwrap();
            let _ = other;
            remove(program, "/tmp/victim");
        });
    }

    #[test]
    fn a_process_chooses_its_memory() {
        run(|program| {
            set_limit(program, UNLIMITED);
            let with_filter = |filter: &'static [u8], excluded: bool| {
                move |program: &mut Program| {
                    let name = program.store(b"/proc/self/coredump_filter\0");
                    let flags = (how::RDWR | how::TRUNC) as usize;
                    let file = program.call(SystemCall::Open, [HERE, name, flags, 0]).unwrap();
                    assert_eq!(program.read_from(file, 100).unwrap(), b"00000033\n");
                    assert_eq!(program.write_to(file, filter), Ok(filter.len()));
                    assert_eq!(program.write_to(file, b"x"), Err(Errno::EINVAL));
                    let [shared, private] = [0x21, 0x22]
                        .map(|flags| program.call(SystemCall::Map, [0, 0x3000, 3, flags, usize::MAX, 0]).unwrap());
                    program.write(shared + 0x1000, b"shared");
                    program.write(private + 0x1000, b"private");
                    program.write(DATA + 0x8000, &[shared.to_le_bytes(), private.to_le_bytes()].concat());
                    if excluded {
                        assert_eq!(program.call(SystemCall::AdviseMemory, [shared, 0x3000, 16]), Ok(0));
                        assert_eq!(program.call(SystemCall::AdviseMemory, [private, 0x3000, 16]), Ok(0));
                        assert_eq!(program.call(SystemCall::AdviseMemory, [private, 0x3000, 17]), Ok(0));
                    }
                    program.trap(FAULT);
                }
            };
            let dumped = |program: &mut Program, filter: &'static [u8], excluded| {
                assert_eq!(status_of(program, with_filter(filter, excluded)), signal::SEGV | 0x80);
                let file = contents(program, CORE).unwrap();
                // The stacks and the data are private memory; without it nothing tells the addresses.
                let places = memory(&file, (DATA + 0x8000) as u64, 16)?;
                let [shared, private] = [word(&places, 0), word(&places, 8)];
                Some((memory(&file, shared + 0x1000, 6), memory(&file, private + 0x1000, 7), memory(&file, shared, 1)))
            };
            let (shared, private) = (Some(b"shared".to_vec()), Some(b"private".to_vec()));
            assert_eq!(dumped(program, b"0x33\n", false), Some((shared, private.clone(), Some(vec![0]))));
            assert_eq!(dumped(program, b"1", false), Some((None, private.clone(), None)));
            assert_eq!(dumped(program, b"0x33", true), Some((None, private, None)));
            assert_eq!(dumped(program, b"02", false), None);
            remove(program, CORE);
        });
    }

    /// Their list is gone through twice, and there are more than there is room for in one of its segments.
    #[test]
    fn a_core_file_has_every_region_in_its_order() {
        const MAPPINGS: usize = 300;
        run(|program| {
            set_limit(program, UNLIMITED);
            for more in [0, 1, 60, 63, 64, MAPPINGS] {
                let body = move |program: &mut Program| {
                    // Neighbours of different protection are regions of their own.
                    for number in 0..more {
                        let access = 1 | (number & 1) << 1;
                        program.call(SystemCall::Map, [0, 0x1000, access, 0x22, usize::MAX, 0]).unwrap();
                    }
                    program.trap(FAULT);
                };
                assert_eq!(status_of(program, body), signal::SEGV | 0x80);
                let file = contents(program, CORE).unwrap();
                let elf = ElfBytes::<LittleEndian>::minimal_parse(&file).unwrap();
                let parts: Vec<_> =
                    elf.segments().unwrap().iter().filter(|part| part.p_type == elf::abi::PT_LOAD).collect();
                assert!(parts.len() > more, "{} of more than {more}", parts.len());
                for pair in parts.windows(2) {
                    assert!(pair[0].p_vaddr + pair[0].p_memsz <= pair[1].p_vaddr);
                    assert_eq!(pair[0].p_offset + pair[0].p_filesz, pair[1].p_offset);
                }
            }
            remove(program, CORE);
        });
    }

    #[test]
    fn the_pattern_is_set_by_those_who_may() {
        run(|program| {
            let name = text(program, "/proc/sys/kernel/core_pattern");
            assert_eq!(contents(program, "/proc/sys/kernel/core_pattern").unwrap(), b"core\n");
            let file = program.call(SystemCall::Open, [HERE, name, how::WRONLY as usize, 0]).unwrap();
            assert_eq!(program.write_to(file, b"/tmp/%e.%p\n"), Err(Errno::EPERM));
            name::set_pattern(b"/tmp/%e.%s\n").unwrap();
            assert_eq!(name::set_pattern(b"|/bin/test"), Err(Errno::EINVAL));
            assert_eq!(name::set_pattern(&[b'x'; 128]), Err(Errno::EINVAL));
            set_limit(program, UNLIMITED);
            assert_eq!(status_of(program, |program| program.trap(FAULT)), signal::SEGV | 0x80);
            assert!(contents(program, "/tmp/test.11").is_some());
            remove(program, "/tmp/test.11");
            name::set_pattern(b"core").unwrap();
        });
    }

    /// SIGKILL ends the writing of a large file, and the parent learns of the end soon.
    #[test]
    fn a_process_is_killed_while_it_writes_its_core_file() {
        run(|program| {
            set_limit(program, UNLIMITED);
            let child = program.spawn(|program| {
                for _ in 0..64 {
                    let start = program.call(SystemCall::Map, [0, 0x1_0000, 3, 0x22, usize::MAX, 0]).unwrap();
                    (0..16).for_each(|page| program.write(start + page * 0x1000, &[1]));
                }
                let process = program.process();
                process.dump.note_death(Information::of_kernel(Signal::ABRT), program.id);
                process.end(Ending::Killed(Signal::ABRT.number()));
                // Before its last worker begins to write.
                process.dump.give_up();
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, signal::ABRT)));
            let _ = contents(program, CORE).map(|_| remove(program, CORE));
        });
    }
}
