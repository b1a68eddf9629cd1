//! The contents of the file system `proc`: what processes and the machine tell about themselves (proc(5)).
//!
//! Each file is one line of [`LINES`]: its name, its directory, and the function that makes its contents. The formats
//! are Linux's, so that programs which were written for them can read these; numbers that nothing here corresponds to
//! are 0. A program sees the state of all processes, as with Linux. Files that tell what a process has open and mapped
//! need the right to inspect it ([`Act::Inspect`]).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering;

use abi_queue::pages::PAGE_SIZE;
use abi_unix::trace::ProgramName;
use abi_unix::types::usage::NS_IN_A_TICK;
use abi_unix::types::{class, mode};
use abi_unix::{Act, Counter, Errno};
use filesystem::FileKind;
use memory::space::RegionView;
use memory::sv39::Protection;
use spin::Once;

use crate::files::file::OpenFile;
use crate::files::generated::{self, Entry, Opener, Source, TOP, Target};
use crate::files::job_control;
use crate::files::local_socket::names;
use crate::files::message_queue::{self, LimitOfQueues};
use crate::files::mounts::{self, Place};
use crate::files::{pipe, segments, tree};
use crate::network::{addressing, listing};
use crate::observing::{call_log, counters};
use crate::process::accounts::MAXIMUM_PROCESSES;
use crate::process::worker::Worker;
use crate::process::{Process, authority, core_file, table, thread};
use crate::time;

/// A record, and the cursor of the next.
type Made = Result<(Vec<u8>, Option<u64>), Errno>;

/// Contents of a file.
#[derive(Clone, Copy)]
enum Contents {
    /// Names of the table.
    Directory,
    /// Names of the table, and the descriptors of the process.
    Descriptors,
    /// A descriptor.
    Descriptor,
    /// The numbers of the process's workers and threads.
    Threads,
    /// A link, for the caller with this number.
    Link(fn(u32) -> String),
    /// A link to a place.
    PlaceOf(fn(&Process) -> Result<Place, Errno>),
    /// The machine's, with the cursor.
    Text(fn(u64) -> Made),
    /// A process's, with the cursor.
    TextOf(fn(&Arc<Process>, u64) -> Made),
    /// A setting of the machine: its value, and how to set it.
    Setting(fn() -> String, fn(&[u8]) -> Result<(), Errno>),
    /// A limit of queues of messages, which is a setting of the machine.
    LimitOfQueues(&'static LimitOfQueues),
    /// A setting of a process, and what it takes to set it beside the right to inspect the process.
    SettingOf(fn(&Process) -> String, fn(&Process, &[u8]) -> Result<(), Errno>, Option<Act>),
    /// That of a worker or thread.
    TextOfThread(fn(&Worker) -> Made),
}

struct Line {
    name: &'static str,
    parent: u32,
    contents: Contents,
    /// Whether it needs the right to inspect the process.
    is_private: bool,
}

const fn line(name: &'static str, parent: u32, contents: Contents) -> Line {
    Line { name, parent, contents, is_private: false }
}

const fn private(name: &'static str, parent: u32, contents: Contents) -> Line {
    Line { name, parent, contents, is_private: true }
}

const PROCESS: u32 = 1;
const DESCRIPTORS: u32 = 2;
const DESCRIPTOR: u32 = 3;
const SYSTEM: u32 = 4;
const KERNEL: u32 = 5;
const RANDOM: u32 = 6;
const MEMORY: u32 = 7;
const THREADS: u32 = 8;
const THREAD: u32 = 9;
const NETWORK: u32 = 10;
const FILES: u32 = 11;
const SEGMENTS: u32 = 12;
const QUEUES: u32 = 13;

/// All files. Directories come first, at the indexes above; a name that is empty is a number.
static LINES: &[Line] = &[
    line("", 0, Contents::Directory),
    line("", 0, Contents::Directory),
    private("fd", PROCESS, Contents::Descriptors),
    private("", DESCRIPTORS, Contents::Descriptor),
    line("sys", 0, Contents::Directory),
    line("kernel", SYSTEM, Contents::Directory),
    line("random", KERNEL, Contents::Directory),
    line("vm", SYSTEM, Contents::Directory),
    line("task", PROCESS, Contents::Threads),
    line("", THREADS, Contents::Directory),
    line("net", 0, Contents::Directory),
    line("fs", SYSTEM, Contents::Directory),
    line("sysvipc", 0, Contents::Directory),
    line("mqueue", FILES, Contents::Directory),
    line("self", 0, Contents::Link(|caller| caller.to_string())),
    line("mounts", 0, Contents::Link(|_| "self/mounts".into())),
    line("filesystems", 0, Contents::Text(file_systems)),
    line("meminfo", 0, Contents::Text(memory_information)),
    line("cpuinfo", 0, Contents::Text(processors)),
    line("uptime", 0, Contents::Text(uptime)),
    line("loadavg", 0, Contents::Text(loads)),
    line("stat", 0, Contents::Text(statistics)),
    line("version", 0, Contents::Text(version)),
    line("unknown_calls", 0, Contents::Text(unknown_call)),
    line("vmstat", 0, Contents::Text(memory_statistics)),
    line("core_pattern", KERNEL, Contents::Setting(core_pattern, core_file::name::set_pattern)),
    line("hostname", KERNEL, Contents::Text(|_| field(1))),
    line("osrelease", KERNEL, Contents::Text(|_| field(2))),
    line("ostype", KERNEL, Contents::Text(|_| field(0))),
    line("pid_max", KERNEL, Contents::Text(|_| whole(format!("{MAXIMUM_PROCESSES}\n")))),
    line("pipe-max-size", FILES, Contents::Text(|_| whole(format!("{}\n", pipe::LARGEST)))),
    line("queues_max", QUEUES, Contents::LimitOfQueues(&message_queue::MOST_QUEUES)),
    line("msg_max", QUEUES, Contents::LimitOfQueues(&message_queue::MOST_MESSAGES)),
    line("msgsize_max", QUEUES, Contents::LimitOfQueues(&message_queue::LARGEST_MESSAGE)),
    line("msg_default", QUEUES, Contents::LimitOfQueues(&message_queue::USUAL_MESSAGES)),
    line("msgsize_default", QUEUES, Contents::LimitOfQueues(&message_queue::USUAL_SIZE)),
    line("pnp", NETWORK, Contents::Text(|_| whole(addressing::plug_and_play()))),
    line("unix", NETWORK, Contents::Text(local_sockets)),
    line("tcp", NETWORK, Contents::Text(|cursor| Ok(listing::TCP.line(cursor)))),
    line("tcp6", NETWORK, Contents::Text(|cursor| Ok(listing::TCP6.line(cursor)))),
    line("udp", NETWORK, Contents::Text(|cursor| Ok(listing::UDP.line(cursor)))),
    line("udp6", NETWORK, Contents::Text(|cursor| Ok(listing::UDP6.line(cursor)))),
    line("if_inet6", NETWORK, Contents::Text(|_| whole(addressing::addresses_of_six()))),
    line("igmp", NETWORK, Contents::Text(|_| whole(addressing::groups_of_four()))),
    line("igmp6", NETWORK, Contents::Text(|_| whole(addressing::groups_of_six()))),
    line("shm", SEGMENTS, Contents::Text(segment)),
    line("uuid", RANDOM, Contents::Text(|_| whole(new_identity()))),
    line("boot_id", RANDOM, Contents::Text(|_| whole(BOOT.call_once(new_identity).clone()))),
    // Memory is promised when it is mapped, and made when it is touched: Linux's 1, "always".
    line("overcommit_memory", MEMORY, Contents::Text(|_| whole("1\n".into()))),
    line("stat", PROCESS, Contents::TextOf(process_statistics)),
    line("status", PROCESS, Contents::TextOf(process_status)),
    line("statm", PROCESS, Contents::TextOf(process_memory)),
    line("comm", PROCESS, Contents::TextOf(|process, _| whole(format!("{}\n", name_of(process))))),
    line("cmdline", PROCESS, Contents::TextOf(arguments)),
    private("wchan", PROCESS, Contents::TextOf(awaited)),
    line("stat", THREAD, Contents::TextOfThread(|thread| statistics_of(&thread.process, Some(thread)))),
    line("status", THREAD, Contents::TextOfThread(|thread| status_of(&thread.process, Some(thread)))),
    line("comm", THREAD, Contents::TextOfThread(|thread| whole(format!("{}\n", short_name(thread.name()))))),
    private("wchan", THREAD, Contents::TextOfThread(awaited_by)),
    private("environ", PROCESS, Contents::TextOf(environment)),
    private("maps", PROCESS, Contents::TextOf(regions)),
    private("smaps", PROCESS, Contents::TextOf(counted_regions)),
    private("smaps_rollup", PROCESS, Contents::TextOf(count_of_regions)),
    private("coredump_filter", PROCESS, Contents::SettingOf(dump_filter, set_dump_filter, None)),
    private("calls", PROCESS, Contents::SettingOf(watched, set_watched, Some(Act::Log))),
    line("mounts", PROCESS, Contents::TextOf(|_, cursor| mount(cursor, false))),
    line("mountinfo", PROCESS, Contents::TextOf(|_, cursor| mount(cursor, true))),
    private("cwd", PROCESS, Contents::PlaceOf(|process| Ok(process.directory.lock().clone()))),
    private("root", PROCESS, Contents::PlaceOf(|_| Ok(mounts::root()))),
    private("exe", PROCESS, Contents::PlaceOf(program_of)),
];

/// The identity of this start of the machine.
static BOOT: Once<String> = Once::new();

struct Processes;

/// Registers the contents.
pub(crate) fn start() {
    generated::register(&Processes);
}

fn line_of(entry: Entry) -> &'static Line {
    &LINES[entry.line as usize % LINES.len()]
}

fn process_of(entry: Entry) -> Result<Arc<Process>, Errno> {
    table::find(entry.process).filter(|process| process.started == entry.made).ok_or(Errno::ESRCH)
}

/// Returns the directory of a process.
fn directory_of(process: &Process) -> Entry {
    Entry { line: PROCESS, process: process.id, made: process.started, number: 0 }
}

/// Fails if the process of an entry has ended, and with `EACCES` if the entry is private and it must not be inspected.
fn permit_if(entry: Entry, may_inspect: impl FnOnce(&Process) -> Result<(), Errno>) -> Result<(), Errno> {
    if entry.process == 0 {
        return Ok(());
    }
    let process = process_of(entry)?;
    if line_of(entry).is_private {
        may_inspect(&process).map_err(|_| Errno::EACCES)?;
    }
    Ok(())
}

/// Returns the file of a process's program.
fn program_of(process: &Process) -> Result<Place, Errno> {
    process.executable.lock().as_ref().map(|running| running.place().clone()).ok_or(Errno::ENOENT)
}

/// Reads a number as the name of a directory or descriptor: digits without zeros in front.
fn number(name: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(name).ok()?;
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

impl Source for Processes {
    fn kind(&self, entry: Entry) -> FileKind {
        match line_of(entry).contents {
            Contents::Directory | Contents::Descriptors | Contents::Threads => FileKind::Directory,
            Contents::Descriptor | Contents::Link(_) | Contents::PlaceOf(_) => FileKind::SymbolicLink,
            Contents::Text(_) | Contents::TextOf(_) | Contents::TextOfThread(_) => FileKind::Regular,
            Contents::Setting(..) | Contents::SettingOf(..) | Contents::LimitOfQueues(_) => FileKind::Regular,
        }
    }

    fn parent(&self, entry: Entry) -> Entry {
        let parent = line_of(entry).parent;
        let of_process = if matches!(parent, PROCESS | DESCRIPTORS | THREADS | THREAD) { entry } else { TOP };
        Entry { line: parent, number: if parent == THREAD { entry.number } else { 0 }, ..of_process }
    }

    fn process(&self, entry: Entry) -> Result<Arc<Process>, Errno> {
        if entry.line == PROCESS { process_of(entry) } else { Err(Errno::EBADF) }
    }

    fn find(&self, directory: Entry, name: &[u8]) -> Result<Entry, Errno> {
        if directory.process != 0 {
            process_of(directory).map_err(|_| Errno::ENOENT)?;
        }
        if directory == TOP
            && let Some(number) = number(name)
        {
            return table::find(number).map(|process| directory_of(&process)).ok_or(Errno::ENOENT);
        }
        if directory.line == DESCRIPTORS {
            let number = number(name).ok_or(Errno::ENOENT)?;
            let process = process_of(directory)?;
            process.descriptors.lock().get(number as usize).map_err(|_| Errno::ENOENT)?;
            return Ok(Entry { line: DESCRIPTOR, number, ..directory });
        }
        if directory.line == THREADS {
            let number = number(name).ok_or(Errno::ENOENT)?;
            thread::living(&*process_of(directory)?, number as usize).map_err(|_| Errno::ENOENT)?;
            return Ok(Entry { line: THREAD, number, ..directory });
        }
        let is_meant = |line: &Line| line.parent == directory.line && !name.is_empty() && line.name.as_bytes() == name;
        let at = LINES.iter().position(is_meant).ok_or(Errno::ENOENT)?;
        Ok(Entry { line: at as u32, ..directory })
    }

    fn next(&self, directory: Entry, cursor: u64) -> Option<(Entry, String, u64)> {
        let numbers = LINES.len() as u64;
        for at in cursor..numbers {
            let line = &LINES[at as usize];
            if line.parent == directory.line && !line.name.is_empty() {
                let entry = Entry { line: at as u32, ..directory };
                return Some((entry, line.name.into(), at + 1));
            }
        }
        let above = u32::try_from(cursor.max(numbers) - numbers).ok()?;
        if directory == TOP {
            let process = table::next_after(above)?;
            let id = process.id;
            return Some((directory_of(&process), id.to_string(), numbers + u64::from(id)));
        }
        if directory.line == DESCRIPTORS {
            let process = process_of(directory).ok()?;
            let descriptors = process.descriptors.lock();
            let number = descriptors.next_open(above as usize)?;
            let entry = Entry { line: DESCRIPTOR, number: number as u32, ..directory };
            return Some((entry, number.to_string(), numbers + number as u64 + 1));
        }
        if directory.line == THREADS {
            let thread = process_of(directory).ok()?.next_worker_or_thread(above as usize)?;
            let (number, slot) = (thread.thread_id(), thread.index() as u64);
            let entry = Entry { line: THREAD, number, ..directory };
            return Some((entry, number.to_string(), numbers + slot + 1));
        }
        None
    }

    fn permit(&self, entry: Entry, caller: u32) -> Result<(), Errno> {
        permit_if(entry, |process| {
            let caller = table::find(caller).ok_or(Errno::EACCES)?;
            authority::permit_towards(&caller, process, Act::Inspect)
        })
    }

    fn permit_again(&self, entry: Entry, opener: &Opener) -> Result<(), Errno> {
        permit_if(entry, |process| {
            let caller = opener.process.upgrade().ok_or(Errno::EACCES)?;
            authority::permit_with(&opener.rights, &caller, process, Act::Inspect)
        })
    }

    fn permissions(&self, entry: Entry) -> u16 {
        let line = line_of(entry);
        match line.contents {
            // On Linux that of the descriptors has 0500, which does not count for the process itself. Here others are
            // refused before.
            Contents::Directory | Contents::Threads | Contents::Descriptors => 0o555,
            Contents::Descriptor => match file_of_descriptor(entry) {
                Ok(file) => {
                    let read = if file.require_readable().is_ok() { 0o500 } else { 0 };
                    let write = if file.require_writable().is_ok() { 0o300 } else { 0 };
                    read | write
                }
                Err(_) => 0,
            },
            Contents::Link(_) | Contents::PlaceOf(_) => 0o777,
            Contents::Setting(..) | Contents::SettingOf(..) | Contents::LimitOfQueues(_) => 0o644,
            Contents::TextOf(_) if line.name == "environ" => 0o400,
            Contents::Text(_) | Contents::TextOf(_) | Contents::TextOfThread(_) => 0o444,
        }
    }

    fn permit_file(&self, entry: Entry, caller: u32) -> Result<(), Errno> {
        // It is the open file itself, with its rights, as `pidfd_getfd` gives it: to look is not enough.
        let caller = table::find(caller).ok_or(Errno::EACCES)?;
        authority::permit_towards(&caller, &*process_of(entry)?, Act::Empower).map_err(|_| Errno::EACCES)
    }

    fn owner(&self, entry: Entry) -> (u32, u32) {
        let Ok(process) = process_of(entry) else { return (0, 0) };
        // Those of a process that may leave no core file are user 0's, as on Linux. The users are read first, since the
        // permission goes before they change.
        match process.whom() {
            Some(whom) if process.dump.is_permitted() => (whom.users.effective, whom.groups.effective),
            _ => (0, 0),
        }
    }

    fn target(&self, entry: Entry, caller: u32) -> Result<Target, Errno> {
        match line_of(entry).contents {
            Contents::Link(text) => Ok(Target::Path(text(caller).into_bytes())),
            Contents::PlaceOf(place) => place(&*process_of(entry)?).map(Target::Place),
            Contents::Descriptor => {
                let file = file_of_descriptor(entry)?;
                match file.object().place() {
                    Some(place) => Ok(Target::Place(place)),
                    None => {
                        let text = object_text(&file);
                        Ok(Target::File(file, text.into_bytes()))
                    }
                }
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn is_setting(&self, entry: Entry) -> bool {
        let contents = line_of(entry).contents;
        matches!(contents, Contents::Setting(..) | Contents::SettingOf(..) | Contents::LimitOfQueues(_))
    }

    fn set(&self, entry: Entry, caller: u32, opener: &Opener, bytes: &[u8]) -> Result<(), Errno> {
        match line_of(entry).contents {
            Contents::Setting(_, set) => {
                permit_setting(Act::ChangeSetting, caller, opener)?;
                set(bytes)
            }
            Contents::LimitOfQueues(limit) => {
                permit_setting(Act::ChangeSetting, caller, opener)?;
                limit.set(bytes)
            }
            Contents::SettingOf(_, set, act) => {
                act.map_or(Ok(()), |act| permit_setting(act, caller, opener))?;
                set(&*process_of(entry)?, bytes)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn record(&self, entry: Entry, cursor: u64) -> Made {
        match line_of(entry).contents {
            Contents::Text(make) => make(cursor),
            Contents::TextOf(make) => make(&process_of(entry)?, cursor),
            Contents::Setting(value, _) => whole(value()),
            Contents::LimitOfQueues(limit) => whole(format!("{}\n", limit.value())),
            Contents::SettingOf(value, ..) => whole(value(&*process_of(entry)?)),
            Contents::TextOfThread(make) => make(&*thread::living(&*process_of(entry)?, entry.number as usize)?),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Fails with `EPERM` unless the caller may do this, and the opener of the file might.
fn permit_setting(act: Act, caller: u32, opener: &Opener) -> Result<(), Errno> {
    let caller = table::find(caller).ok_or(Errno::EPERM)?;
    authority::permit(&caller, act)?;
    if opener.rights.effective.has(act.capability()) { Ok(()) } else { Err(Errno::EPERM) }
}

/// Returns the open file of a descriptor.
fn file_of_descriptor(entry: Entry) -> Result<Arc<OpenFile>, Errno> {
    let file = process_of(entry)?.descriptors.lock().get(entry.number as usize).cloned();
    file.map_err(|_| Errno::ENOENT)
}

/// Returns the text of a link to an open file without a place.
fn object_text(file: &OpenFile) -> String {
    let status = file.object().status();
    match status.mode & mode::TYPE {
        mode::PIPE => "pipe:[0]".into(),
        mode::SOCKET => format!("socket:[{}]", status.inode),
        mode::CHARACTER => tree::path_of_device(status.represented_device),
        _ => "anon_inode:[object]".into(),
    }
}

fn whole(text: String) -> Made {
    Ok((text.into_bytes(), None))
}

/// Returns a field of the system's name, as a line.
fn field(at: usize) -> Made {
    whole(format!("{}\n", system_field(at)))
}

fn system_field(at: usize) -> String {
    let name = crate::system_name();
    let field = &name[at * crate::SYSTEM_NAME_FIELD..][..crate::SYSTEM_NAME_FIELD];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// Returns a random identity (RFC 9562, version 4), as a line.
fn new_identity() -> String {
    let mut bytes = [0; 16];
    crate::random::bytes(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    text
}

fn file_systems(_: u64) -> Made {
    let line = |kind: &str| format!("{}\t{kind}\n", if mounts::is_volume(kind.as_bytes()) { "" } else { "nodev" });
    whole(mounts::kinds().map(line).collect())
}

fn mount(cursor: u64, with_numbers: bool) -> Made {
    match mounts::next(cursor) {
        // A mount that has been taken away meanwhile has no path.
        Some((mount, order)) => Ok((mount.describe(with_numbers).unwrap_or_default(), Some(order))),
        None => Ok((Vec::new(), None)),
    }
}

/// Makes the line of a segment of shared memory, and before the first one the heading.
fn segment(cursor: u64) -> Made {
    if cursor == 0 {
        let heading = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
                       atime      dtime      ctime                   rss                  swap\n";
        return Ok((heading.into(), Some(1)));
    }
    let Some((id, segment)) = u32::try_from(cursor).ok().and_then(segments::next) else {
        return Ok((Vec::new(), None));
    };
    let status = segment.status();
    let line = format!(
        "{:>10} {id:>10}  {:>4o} {:>21} {:>5} {:>5}  {:>5} {:>5} {:>5} {:>5} {:>5} {:>10} {:>10} {:>10} {:>21} {:>21}\n",
        status.key,
        status.mode,
        status.size,
        status.maker,
        status.last,
        status.mappings,
        status.user,
        status.group,
        0,
        0,
        status.attached,
        status.detached,
        status.changed,
        0,
        0
    );
    Ok((line.into_bytes(), Some(u64::from(id) + 1)))
}

/// Makes the line of the next call that programs have made and that is missing.
fn unknown_call(cursor: u64) -> Made {
    let next = call_log::next_unknown(cursor as usize);
    Ok(next.map_or((Vec::new(), None), |(number, count)| {
        (format!("{number} {count}\n").into_bytes(), Some(number as u64 + 1))
    }))
}

fn local_sockets(cursor: u64) -> Made {
    if cursor == 0 {
        let heading = b"Num       RefCount Protocol Flags    Type St Inode Path\n";
        return Ok((heading.to_vec(), Some(1)));
    }
    Ok(names::describe(cursor).map_or((Vec::new(), None), |(line, next)| (line, Some(next))))
}

fn memory_information(_: u64) -> Made {
    let memory = memory::frames::statistics();
    let kibibytes = |frames: usize| frames * PAGE_SIZE / 1024;
    let files = mounts::top().tree().usage().used as usize / 1024;
    let heap = memory::heap::statistics();
    let slabs = (heap.footprint - heap.large) / 1024;
    let mut text = String::new();
    for (name, amount) in [
        ("MemTotal", kibibytes(memory.total)),
        ("MemFree", kibibytes(memory.free)),
        ("MemAvailable", kibibytes(memory.free)),
        ("Buffers", 0),
        ("Cached", files),
        ("SwapCached", 0),
        ("Shmem", files),
        ("Slab", slabs),
        ("SReclaimable", 0),
        ("SUnreclaim", slabs),
        ("SwapTotal", 0),
        ("SwapFree", 0),
    ] {
        let _ = writeln!(text, "{:<15} {amount:>8} kB", format!("{name}:"));
    }
    whole(text)
}

fn processors(_: u64) -> Made {
    let mut text = String::new();
    for hart in 0..crate::machine::harts() {
        let _ = writeln!(text, "processor\t: {hart}\nhart\t\t: {hart}\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\n");
    }
    whole(text)
}

/// Returns a time in hundredths of seconds.
fn hundredths(ns: u64) -> u64 {
    ns / NS_IN_A_TICK
}

/// Number of processes whose processor time is added up in one call.
const MOST_ADDED: usize = 256;

/// Returns the processor time of the living processes in hundredths of seconds.
fn used() -> u64 {
    let (mut id, mut ticks) = (0, 0);
    for _ in 0..MOST_ADDED {
        let Some(process) = table::next_after(id) else { break };
        id = process.id;
        ticks += process.cpu_ticks();
    }
    hundredths(time::ns_at_ticks(ticks))
}

fn uptime(_: u64) -> Made {
    let (up, idle) = (hundredths(time::now_ns()), hundredths(counters::read(Counter::IdleNs)));
    whole(format!("{}.{:02} {}.{:02}\n", up / 100, up % 100, idle / 100, idle % 100))
}

fn loads(_: u64) -> Made {
    let processes = counters::read(Counter::Processes);
    whole(format!("0.00 0.00 0.00 1/{processes} 0\n"))
}

fn statistics(_: u64) -> Made {
    // Time that no process pays for and no hart sleeps is the kernel's. A hart's idle time grows when it wakes up.
    let harts = crate::machine::harts();
    let (up, used) = (hundredths(time::now_ns()), used());
    let line = |name: &str, up: u64, used: u64, idle_ns: u64| {
        let idle = hundredths(idle_ns).min(up);
        let used = used.min(up - idle);
        format!("{name} {used} 0 {} {idle} 0 0 0 0 0 0\n", up - idle - used)
    };
    let mut text = line("cpu ", up * harts as u64, used, counters::read(Counter::IdleNs));
    for hart in 0..harts {
        let idle_ns = counters::of_hart(hart, Counter::IdleNs);
        text += &line(&format!("cpu{hart}"), up, used / harts as u64, idle_ns);
    }
    let switches = counters::read(Counter::Switches);
    let (start, processes) = (time::epoch_ns() / 1_000_000_000, counters::read(Counter::Processes));
    let _ = writeln!(text, "intr 0\nctxt {switches}\nbtime {start}\nprocesses {processes}");
    let _ = writeln!(text, "procs_running 1\nprocs_blocked 0");
    whole(text)
}

fn version(_: u64) -> Made {
    whole(format!("{} version {} {}\n", system_field(0), system_field(2), system_field(3)))
}

/// Makes `vmstat`: what Linux counts has no counterpart, but programs need these lines.
fn memory_statistics(_: u64) -> Made {
    let free = memory::frames::statistics().free;
    let mut text = format!("nr_free_pages {free}\n");
    for name in ["pgpgin", "pgpgout", "pswpin", "pswpout", "pgfault", "pgmajfault"] {
        let _ = writeln!(text, "{name} 0");
    }
    whole(text)
}

/// Returns the name of a process's program, cut off as with Linux.
fn name_of(process: &Process) -> String {
    short_name(process.name())
}

fn short_name(words: [u64; 2]) -> String {
    let name = ProgramName::from_words(words);
    let name = name.as_bytes();
    String::from_utf8_lossy(&name[..name.len().min(15)]).into_owned()
}

/// Returns the state of a process, or of one of its threads: its letter and its name.
fn state_of(process: &Process, thread: Option<&Worker>) -> (char, &'static str) {
    let runs = || match thread {
        Some(thread) => thread.is_visited(),
        None => process.find_worker(|worker| worker.is_visited()).is_some(),
    };
    if process.signals.are_stopped() {
        ('T', "stopped")
    } else if runs() {
        ('R', "running")
    } else {
        ('S', "sleeping")
    }
}

/// Makes `wchan`: the operation for which the first thread waits, or 0 if it does not wait.
fn awaited(process: &Arc<Process>, _: u64) -> Made {
    match process.find_worker(|worker| worker.thread_id() == process.id) {
        Some(first) => awaited_by(&first),
        None => whole("0".into()),
    }
}

fn awaited_by(thread: &Worker) -> Made {
    whole(thread.awaited().unwrap_or("0").into())
}

/// Returns the bytes that are mapped, and the pages that exist.
fn memory_of(process: &Process) -> (u64, usize) {
    let space = process.space().lock();
    (space.mapped_bytes(), space.resident_frames())
}

fn process_statistics(process: &Arc<Process>, _: u64) -> Made {
    statistics_of(process, None)
}

/// Makes `stat` of a process, or of one of its threads.
fn statistics_of(process: &Process, thread: Option<&Worker>) -> Made {
    let (mapped, resident) = memory_of(process);
    let ticks = |ticks: u64| hundredths(time::ns_at_ticks(ticks));
    let own = match thread {
        Some(thread) => thread.used_time(),
        None => process.used_time(),
    };
    let children = process.children_time();
    let [user, system, children_user, children_system] =
        [own.user, own.system, children.user, children.system].map(ticks);
    let (threads, start) = (process.live_workers(), ticks(process.started));
    let id = thread.map_or(process.id, Worker::thread_id);
    let (name, state) = (short_name(thread.map_or(process.name(), Worker::name)), state_of(process, thread).0);
    let (parent, group, session) = (process.parent(), process.group(), process.session());
    let (terminal, foreground) = match job_control::terminal_of(process) {
        Some(terminal) => (terminal.number(), terminal.foreground.load(Ordering::Relaxed) as i32),
        None => (0, -1),
    };
    let (nice, policy) = (i32::from(process.nice()), process.class());
    let real_time = i32::from(policy.priority());
    let priority = if real_time == 0 { 20 + nice } else { -1 - real_time };
    let mut text = format!(
        "{id} ({name}) {state} {parent} {group} {session} {terminal} {foreground} 0 0 0 0 0 {user} {system} {children_user} {children_system} {priority} {nice} "
    );
    let _ = write!(text, "{threads} 0 {start} {mapped} {resident} {} 0 0 0 0 0 0 0 0 0 0 0 0 17 ", u64::MAX);
    // Processor, real-time priority, policy, delays and guests, and addresses.
    let _ = writeln!(text, "0 {real_time} {} 0 0 0 0 0 0 0 0 0 0 0", policy.number() & !class::RESET_ON_FORK);
    whole(text)
}

fn process_status(process: &Arc<Process>, _: u64) -> Made {
    status_of(process, None)
}

/// Makes `status` of a process, or of one of its threads.
fn status_of(process: &Process, thread: Option<&Worker>) -> Made {
    let (mapped, resident) = memory_of(process);
    let (letter, state) = state_of(process, thread);
    let held = process.authority.held();
    let (group, parent, id) = (process.id, process.parent(), thread.map_or(process.id, Worker::thread_id));
    let name = short_name(thread.map_or(process.name(), Worker::name));
    let mut text = format!("Name:\t{name}\nUmask:\t0000\nState:\t{letter} ({state})\n");
    let _ = write!(text, "Tgid:\t{group}\nNgid:\t0\nPid:\t{id}\nPPid:\t{parent}\nTracerPid:\t0\n");
    let identity = process.identity_value();
    for (name, of, files) in
        [("Uid", identity.users, identity.files.user), ("Gid", identity.groups, identity.files.group)]
    {
        let _ = writeln!(text, "{name}:\t{}\t{}\t{}\t{files}", of.real, of.effective, of.saved);
    }
    let _ = write!(text, "FDSize:\t64\nGroups:\t");
    for group in identity.files.groups.numbers() {
        let _ = write!(text, "{group} ");
    }
    text.push('\n');
    let _ = write!(text, "VmSize:\t{:>8} kB\nVmRSS:\t{:>8} kB\n", mapped / 1024, resident * PAGE_SIZE / 1024);
    let _ = writeln!(text, "Threads:\t{}", process.live_workers());
    for (name, set) in [
        ("CapInh", held.inheritable),
        ("CapPrm", held.permitted),
        ("CapEff", held.effective),
        ("CapBnd", held.permitted),
    ] {
        let _ = writeln!(text, "{name}:\t{:016x}", set.bits());
    }
    whole(text)
}

fn core_pattern() -> String {
    format!("{}\n", core_file::name::pattern())
}

fn dump_filter(process: &Process) -> String {
    format!("{:08x}\n", process.dump.filter())
}

/// Reads the kinds of memory as C's `strtoul` does: decimal, or hexadecimal or octal with its prefix.
fn set_dump_filter(process: &Process, bytes: &[u8]) -> Result<(), Errno> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?.trim();
    let bits = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(text, 8),
        None => text.parse(),
    };
    process.dump.set_filter(bits.map_err(|_| Errno::EINVAL)?);
    Ok(())
}

fn watched(process: &Process) -> String {
    format!("{}\n", u8::from(process.watched.is_on()))
}

fn set_watched(process: &Process, bytes: &[u8]) -> Result<(), Errno> {
    match bytes.trim_ascii() {
        b"0" => process.watched.set(false),
        b"1" => process.watched.set(true),
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

fn process_memory(process: &Arc<Process>, _: u64) -> Made {
    let (mapped, resident) = memory_of(process);
    whole(format!("{} {resident} 0 0 0 {resident} 0\n", mapped / PAGE_SIZE as u64))
}

/// Returns a piece of the texts of a process's first stack from the cursor on, which is a distance from the start, and
/// the cursor behind it. The process may have written anything there since, as programs do that show what they are
/// doing.
fn text_between(process: &Process, start: u64, end: u64, cursor: u64) -> Made {
    let Some(left) = start.checked_add(cursor).and_then(|at| end.checked_sub(at)).filter(|left| *left > 0) else {
        return Ok((Vec::new(), None));
    };
    let mut text = alloc::vec![0; left.min(PAGE_SIZE as u64) as usize];
    if process.copy_in((start + cursor) as usize, &mut text).is_err() {
        return Ok((Vec::new(), None));
    }
    let next = cursor + text.len() as u64;
    Ok((text, Some(next).filter(|next| start + next < end)))
}

fn arguments(process: &Arc<Process>, cursor: u64) -> Made {
    let [start, environment, end] = process.shared.texts();
    let (mut text, next) = text_between(process, start, environment, cursor)?;
    // As on Linux, a program that has written beyond its arguments means what it has written up to a NUL.
    if next.is_none() && text.last().is_some_and(|last| *last != 0) {
        let (more, _) = text_between(process, environment, end, 0)?;
        text.extend(more.into_iter().take_while(|byte| *byte != 0));
    }
    Ok((text, next))
}

fn environment(process: &Arc<Process>, cursor: u64) -> Made {
    let [_, start, end] = process.shared.texts();
    text_between(process, start, end, cursor)
}

/// Makes the line of the first region that ends above the cursor.
fn regions(process: &Arc<Process>, cursor: u64) -> Made {
    let region = process.space().lock().region_above(cursor);
    let Some(region) = region else { return Ok((Vec::new(), None)) };
    Ok((line_of_region(&region).into_bytes(), Some(region.range.end)))
}

/// Returns the line of a region.
fn line_of_region(region: &RegionView) -> String {
    let access = match region.protection {
        Protection::None => "---p",
        Protection::Read => "r--p",
        Protection::ReadWrite => "rw-p",
        Protection::Execute => "--xp",
        Protection::ReadExecute => "r-xp",
    };
    let mut text = format!("{:08x}-{:08x} {access} 00000000 00:00 0 ", region.range.start, region.range.end);
    if !region.name.is_empty() {
        // The name begins in the column of Linux.
        while text.len() < 73 {
            text.push(' ');
        }
        text.push_str(region.name);
    }
    text.push('\n');
    text
}

/// The place that the counting of pages has reached, as a cursor: the page to go on with, and the number so far.
struct CountingPlace {
    page: u32,
    pages: u32,
}

impl CountingPlace {
    fn of(cursor: u64) -> CountingPlace {
        CountingPlace { page: cursor as u32, pages: (cursor >> 32) as u32 }
    }

    fn at(address: u64, pages: u32) -> CountingPlace {
        CountingPlace { page: (address / PAGE_SIZE as u64) as u32, pages }
    }

    fn address(&self) -> u64 {
        u64::from(self.page) * PAGE_SIZE as u64
    }

    fn cursor(&self) -> u64 {
        u64::from(self.page) | u64::from(self.pages) << 32
    }
}

/// Adds a line with a name in 16 columns and a number in eight. A region has some twenty of them, of which each takes a
/// twentieth of the instructions that the general formatting takes.
fn push_kilobytes(text: &mut String, name: &str, kilobytes: u64) {
    const BLANKS: &str = "                        ";
    let mut digits = [0; 20];
    let (mut first, mut rest) = (digits.len(), kilobytes);
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let digits = &digits[first..];
    let blanks = 15_usize.saturating_sub(name.len()) + 8_usize.saturating_sub(digits.len());
    text.push_str(name);
    text.push(':');
    text.push_str(&BLANKS[..blanks]);
    digits.iter().for_each(|&digit| text.push(char::from(digit)));
    text.push_str(" kB\n");
}

/// Returns the lines for so many pages, of which these are anonymous.
fn lines_of_pages(pages: u32, anonymous: u32) -> String {
    let common = pages.saturating_sub(anonymous);
    let mut text = String::with_capacity(1024);
    for (name, pages) in [
        ("Rss", pages),
        ("Pss", pages),
        ("Pss_Dirty", anonymous),
        ("Shared_Clean", common),
        ("Shared_Dirty", 0),
        ("Private_Clean", 0),
        ("Private_Dirty", anonymous),
        ("Referenced", pages),
        ("Anonymous", anonymous),
        ("KSM", 0),
        ("LazyFree", 0),
        ("AnonHugePages", 0),
        ("ShmemPmdMapped", 0),
        ("FilePmdMapped", 0),
        ("Shared_Hugetlb", 0),
        ("Private_Hugetlb", 0),
        ("Swap", 0),
        ("SwapPss", 0),
        ("Locked", 0),
    ] {
        push_kilobytes(&mut text, name, u64::from(pages) * (PAGE_SIZE / 1024) as u64);
    }
    text
}

/// Counts pages of the first region that ends above the cursor's page; makes its lines once all are counted.
fn counted_regions(process: &Arc<Process>, cursor: u64) -> Made {
    let place = CountingPlace::of(cursor);
    let space = process.space().lock();
    let Some(region) = space.region_above(place.address()) else { return Ok((Vec::new(), None)) };
    let (start, end) = (region.range.start, region.range.end);
    let (from, before) = if place.address() > start { (place.address(), place.pages) } else { (start, 0) };
    let (pages, reached) = space.count_pages(from..end);
    let is_common = space.object_at(start).is_some();
    drop(space);
    let pages = before + pages as u32;
    if reached < end {
        return Ok((Vec::new(), Some(CountingPlace::at(reached, pages).cursor())));
    }
    let mut text = line_of_region(&region);
    for (name, bytes) in
        [("Size", end - start), ("KernelPageSize", PAGE_SIZE as u64), ("MMUPageSize", PAGE_SIZE as u64)]
    {
        push_kilobytes(&mut text, name, bytes / 1024);
    }
    text.push_str(&lines_of_pages(pages, if is_common { 0 } else { pages }));
    let access = match region.protection {
        Protection::None => "",
        Protection::Read => "rd ",
        Protection::ReadWrite => "rd wr ",
        Protection::Execute => "ex ",
        Protection::ReadExecute => "rd ex ",
    };
    let undumped = if region.is_undumped { "dd " } else { "" };
    let _ = write!(text, "THPeligible:           0\nVmFlags: {access}mr mw me {undumped}\n");
    Ok((text.into_bytes(), Some(CountingPlace::at(end, 0).cursor())))
}

/// Counts pages of all regions, and makes the sum of their lines once all are counted.
fn count_of_regions(process: &Arc<Process>, cursor: u64) -> Made {
    let place = CountingPlace::of(cursor);
    let space = process.space().lock();
    if let Some(region) = space.region_above(place.address()) {
        let (pages, reached) = space.count_pages(place.address().max(region.range.start)..region.range.end);
        return Ok((Vec::new(), Some(CountingPlace::at(reached, place.pages + pages as u32).cursor())));
    }
    let start = space.region_above(0).map_or(0, |region| region.range.start);
    let anonymous = space.resident_frames() as u32;
    drop(space);
    let mut text = format!("{start:08x}-{:08x} ---p 00000000 00:00 0 ", place.address());
    text.push_str(&" ".repeat(73_usize.saturating_sub(text.len())));
    text.push_str("[rollup]\n");
    text.push_str(&lines_of_pages(place.pages, anonymous.min(place.pages)));
    whole(text)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::authority::{CapabilitySet, Held};
    use abi_unix::types::{self, open as how, process_control};

    use super::*;
    use crate::process::FIRST;
    use crate::testing::{Program, run};

    const HERE: usize = types::AT_FDCWD as usize;

    fn open(program: &mut Program, path: &str, flags: u32) -> Result<usize, Errno> {
        let path = program.store(format!("{path}\0").as_bytes());
        program.call(SystemCall::Open, [HERE, path, flags as usize, 0])
    }

    /// Reads a file to its end, with reads of this length.
    fn read_by(program: &mut Program, path: &str, length: usize) -> Result<String, Errno> {
        let file = open(program, path, how::RDONLY)?;
        let mut text = Vec::new();
        loop {
            let piece = program.read_from(file, length)?;
            if piece.is_empty() {
                program.close(file)?;
                return Ok(String::from_utf8(text).unwrap());
            }
            text.extend(piece);
        }
    }

    fn read(program: &mut Program, path: &str) -> String {
        read_by(program, path, 1000).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn link(program: &mut Program, path: &str) -> Result<String, Errno> {
        let (path, place) = (program.store(format!("{path}\0").as_bytes()), program.place(200));
        let length = program.call(SystemCall::ReadLink, [HERE, path, place, 200])?;
        Ok(String::from_utf8(program.read(place, length)).unwrap())
    }

    fn names(program: &mut Program, path: &str) -> Vec<String> {
        let directory = open(program, path, how::DIRECTORY).unwrap();
        let place = program.place(300);
        let mut found = Vec::new();
        loop {
            let count = program.call(SystemCall::ReadDirectory, [directory, place, 300]).unwrap();
            if count == 0 {
                program.close(directory).unwrap();
                return found;
            }
            let bytes = program.read(place, count);
            let mut at = 0;
            while at < count {
                let length = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
                let name = bytes[at + 19..at + length].split(|byte| *byte == 0).next().unwrap();
                found.push(String::from_utf8(name.to_vec()).unwrap());
                at += length;
            }
        }
    }

    #[test]
    fn the_machine_tells_about_itself_in_the_formats_of_linux() {
        run(|program| {
            let memory = read(program, "/proc/meminfo");
            let amount = |name: &str| -> usize {
                let line = memory.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
                line.strip_suffix(" kB").unwrap().rsplit(' ').next().unwrap().parse().unwrap()
            };
            assert!(amount("MemFree") > 0 && amount("MemFree") < amount("MemTotal"));
            assert_eq!(amount("SwapTotal"), 0);
            let uptime = read(program, "/proc/uptime");
            let times: Vec<f64> = uptime.split_whitespace().map(|word| word.parse().unwrap()).collect();
            assert!(times.len() == 2 && times[0] >= 0.0, "{uptime}");
            assert_eq!(read(program, "/proc/loadavg").split_whitespace().count(), 5);
            let statistics = read(program, "/proc/stat");
            let first: Vec<&str> = statistics.lines().next().unwrap().split_whitespace().collect();
            assert_eq!((first[0], first.len()), ("cpu", 11));
            assert!(statistics.contains("\ncpu0 ") && statistics.contains("\nbtime "));
            assert!(read(program, "/proc/cpuinfo").starts_with("processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64"));
            assert!(read(program, "/proc/version").starts_with("COPS version "));
            assert!(read(program, "/proc/vmstat").lines().all(|line| line.split(' ').count() == 2));
            assert_eq!(
                read(program, "/proc/filesystems"),
                "nodev\ttmpfs\nnodev\tproc\nnodev\tmqueue\n\text4\nnodev\t9p\n"
            );
            assert_eq!(read(program, "/proc/sys/kernel/ostype"), "COPS\n");
            assert_eq!(read(program, "/proc/sys/kernel/hostname"), "cops\n");
            assert_eq!(read(program, "/proc/sys/vm/overcommit_memory"), "1\n");
            let identities = ["uuid", "uuid", "boot_id", "boot_id"];
            let [one, two, three, four] =
                identities.map(|name| read(program, &format!("/proc/sys/kernel/random/{name}")));
            assert!(one != two && three == four && one.len() == 37 && one.as_bytes()[14] == b'4', "{one}");
        });
    }

    #[test]
    fn a_process_tells_about_itself() {
        run(|program| {
            let id = program.id;
            assert_eq!(link(program, "/proc/self"), Ok(id.to_string()));
            let statistics = read(program, "/proc/self/stat");
            assert!(statistics.starts_with(&format!("{id} (test) R 1 ")), "{statistics}");
            assert_eq!(statistics.split_whitespace().count(), 52, "{statistics}");
            assert_eq!(read(program, &format!("/proc/{id}/stat")).split(' ').next(), Some(&*id.to_string()));
            let status = read(program, "/proc/self/status");
            for line in ["Name:\ttest\n", "State:\tR (running)\n", "PPid:\t1\n", "Uid:\t0\t0\t0\t0\n", "Threads:\t1\n"]
            {
                assert!(status.contains(line), "{line}{status}");
            }
            assert_eq!(read(program, "/proc/self/comm"), "test\n");
            assert_eq!(read(program, "/proc/self/statm").split_whitespace().count(), 7);
            let command = read(program, "/proc/self/cmdline");
            assert!(command.is_empty() || command.ends_with('\0'), "{command:?}");
            assert_eq!(link(program, "/proc/self/cwd"), Ok("/".into()));
            assert_eq!(link(program, "/proc/self/root"), Ok("/".into()));
            assert_eq!(link(program, "/proc/self/exe"), Ok("/bin/test".into()));
            let (program_file, again) = (open(program, "/bin/test", 0).unwrap(), open(program, "/proc/self/exe", 0));
            assert_eq!(program.read_from(program_file, 4), program.read_from(again.unwrap(), 4));
        });
    }

    #[test]
    fn threads_are_listed_and_tell_about_themselves() {
        run(|program| {
            let (id, word) = (program.id, program.place(8));
            assert_eq!(names(program, "/proc/self/task"), [".", "..", &*id.to_string()]);
            let waits = move |program: &mut Program| {
                while program.read_u32(word) == 0 {
                    let _ = program.call(SystemCall::Futex, [word, 0, 0, 0]);
                }
            };
            assert_eq!(program.add_worker(waits), Ok(1));
            let second = id + 0x1_0000;
            assert_eq!(names(program, "/proc/self/task"), [".", "..", &*id.to_string(), &*second.to_string()]);
            assert_eq!(
                names(program, &format!("/proc/self/task/{second}")),
                [".", "..", "stat", "status", "comm", "wchan"]
            );
            program.sleep_ns(1_000_000);
            assert_eq!(read(program, &format!("/proc/{id}/task/{second}/wchan")), "futex");
            assert_eq!(read(program, "/proc/self/wchan"), "0");
            let statistics = read(program, &format!("/proc/{id}/task/{second}/stat"));
            assert!(statistics.starts_with(&format!("{second} (test) ")), "{statistics}");
            assert_eq!(statistics.split_whitespace().count(), 52, "{statistics}");
            let status = read(program, &format!("/proc/self/task/{second}/../{second}/status"));
            for line in [format!("Tgid:\t{id}\n"), format!("Pid:\t{second}\n"), "Threads:\t2\n".into()] {
                assert!(status.contains(&line), "{line}{status}");
            }
            assert_eq!(read(program, &format!("/proc/self/task/{id}/comm")), "test\n");
            for path in ["1", "0", "007", "fd", &(second + 1).to_string(), &(second + 0x1_0000).to_string()] {
                assert_eq!(open(program, &format!("/proc/self/task/{path}"), 0), Err(Errno::ENOENT), "{path}");
            }
            let status = open(program, &format!("/proc/self/task/{second}/status"), 0).unwrap();
            program.write(word, &[1]);
            // It may not have begun to wait.
            assert!(program.call(SystemCall::Futex, [word, 1, 1, 0]).is_ok());
            program.sleep_ns(1_000_000);
            assert_eq!(program.read_from(status, 10), Err(Errno::ESRCH), "it has ended");
        });
    }

    /// The command line is what the program has in the place of its arguments, whatever their addresses have become.
    #[test]
    fn a_program_may_write_over_its_arguments() {
        run(|program| {
            let list = |program: &mut Program, texts: &[&[u8]]| {
                let mut words: Vec<usize> = texts.iter().map(|text| program.store(text)).collect();
                words.push(0);
                program.store(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
            };
            let arguments = list(program, &[b"head\0", b"-5\0", b"file\0"]);
            let environment = list(program, &[b"HOME=/\0", b"TERM=x\0"]);
            let path = program.store(b"/bin/test\0");
            let child = program.spawn_with(path, arguments, environment, |program| {
                assert_eq!(read(program, "/proc/self/cmdline"), "head\0-5\0file\0");
                assert_eq!(read(program, "/proc/self/environ"), "HOME=/\0TERM=x\0");
                let [start, behind, end] = program.process().shared.texts();
                assert_eq!((behind - start, end - behind), (13, 14));
                // In place.
                program.write(start as usize + 5, b"-n");
                assert_eq!(read(program, "/proc/self/cmdline"), "head\0-n\0file\0");
                // A forked process has its own.
                let child = program.fork(move |program| {
                    program.write(start as usize, b"HEAD");
                    assert_eq!(read(program, "/proc/self/cmdline"), "HEAD\0-n\0file\0");
                });
                let child = child.unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)));
                assert_eq!(read(program, "/proc/self/cmdline"), "head\0-n\0file\0");
                // A title without the NULs, which goes on into the environment.
                program.write(start as usize, b"head: five lines\0");
                assert_eq!(read(program, "/proc/self/cmdline"), "head: five lines");
                // Nothing is there any more.
                let page = start as usize & !0xfff;
                program.call(SystemCall::Unmap, [page, 4096]).unwrap();
                assert_eq!(read(program, "/proc/self/cmdline"), "");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let child = program.spawn_with(path, 0, 0, |program| assert_eq!(read(program, "/proc/self/cmdline"), ""));
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// The pages of each region are counted, and those of all are their sum; a large region that nobody has touched
    /// takes no longer than others.
    #[test]
    fn pages_of_regions_are_counted() {
        run(|program| {
            let map = |program: &mut Program, length: usize, protection: usize| {
                program.call(SystemCall::Map, [0, length, protection, 0x22, usize::MAX, 0]).unwrap()
            };
            // Regions of their own, which are none with their neighbours.
            let before = map(program, 4096, 0);
            let (touched, between, large) =
                (map(program, 300 * 4096, 3), map(program, 4096, 0), map(program, 20 << 30, 3));
            program.touch(touched, 150 * 4096, hal_api::Access::Write);
            program.touch(large + (7 << 30), 4096, hal_api::Access::Write);
            let text = read(program, "/proc/self/smaps");
            let kibibytes = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap();
            let of_region = |at: usize, name: &str| {
                let mut lines = text.lines().skip_while(|line| !line.starts_with(&format!("{at:08x}-")));
                kibibytes(lines.find(|line| line.starts_with(name)).unwrap())
            };
            assert_eq!(["Size:", "Rss:", "Anonymous:"].map(|name| of_region(touched, name)), [1200, 600, 600]);
            assert_eq!(["Size:", "Rss:", "Anonymous:"].map(|name| of_region(large, name)), [20 << 20, 4, 4]);
            let maps = read(program, "/proc/self/maps");
            assert_eq!(text.lines().filter(|line| line.starts_with("Rss:")).count(), maps.lines().count());
            assert!(maps.lines().all(|line| text.contains(line)));
            let sum: usize = text.lines().filter(|line| line.starts_with("Rss:")).map(kibibytes).sum();
            let rollup = read(program, "/proc/self/smaps_rollup");
            assert_eq!(rollup.lines().count(), 20);
            assert!(rollup.lines().next().unwrap().ends_with("[rollup]"));
            assert_eq!(rollup.lines().nth(1).map(kibibytes), Some(sum), "{rollup}");
            for (at, length) in [(before, 4096), (touched, 300 * 4096), (between, 4096), (large, 20 << 30)] {
                program.call(SystemCall::Unmap, [at, length]).unwrap();
            }
        });
    }

    /// The lines of the regions come in order, whole, and the same through buffers of any length.
    #[test]
    fn regions_are_listed_in_pieces() {
        run(|program| {
            let text = read(program, "/proc/self/maps");
            let mut last = 0;
            for line in text.lines() {
                let (start, rest) = line.split_once('-').unwrap();
                let (end, rest) = rest.split_once(' ').unwrap();
                let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
                assert!(address(start) >= last && address(start) < address(end), "{line}");
                assert!(rest[..4].ends_with('p'), "{line}");
                last = address(end);
            }
            assert!(text.lines().count() > 2);
            for length in [1, 7, 100, 5000] {
                assert_eq!(read_by(program, "/proc/self/maps", length).as_ref(), Ok(&text), "{length}");
            }
            let file = open(program, "/proc/self/maps", 0).unwrap();
            let place = program.place(100);
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, 100, 10]), Ok(100));
            assert_eq!(program.read(place, 100), text.as_bytes()[10..110]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 1]), Err(Errno::EBADF));
            // A place behind more records than a step makes.
            for page in 0..200 {
                let protection = 1 + (page & 1);
                program.call(SystemCall::Map, [0, 4096, protection, 0x22, usize::MAX, 0]).unwrap();
            }
            let text = read(program, "/proc/self/maps");
            assert!(text.lines().count() > 200);
            let file = open(program, "/proc/self/maps", 0).unwrap();
            for at in [text.len() - 10, 10, text.len() / 2, text.len() + 10] {
                let rest = text.as_bytes().get(at..).unwrap_or_default();
                let rest = &rest[..rest.len().min(100)];
                assert_eq!(program.call(SystemCall::ReadAt, [file, place, 100, at]), Ok(rest.len()), "{at}");
                assert_eq!(program.read(place, rest.len()), rest, "{at}");
            }
        });
    }

    #[test]
    fn descriptors_are_listed_and_lead_to_their_files() {
        run(|program| {
            let stored = program.create(b"/tmp/shown\0", how::RDWR);
            program.write_to(stored, b"text").unwrap();
            let (reader, writer) = program.pipe(0);
            let listed = names(program, "/proc/self/fd");
            for file in [stored, reader, writer] {
                assert!(listed.contains(&file.to_string()), "{listed:?}");
            }
            assert_eq!(link(program, &format!("/proc/self/fd/{stored}")), Ok("/tmp/shown".into()));
            assert_eq!(link(program, &format!("/proc/self/fd/{reader}")), Ok("pipe:[0]".into()));
            assert_eq!(link(program, "/proc/self/fd/999"), Err(Errno::ENOENT));
            assert_eq!(read(program, &format!("/proc/self/fd/{stored}")), "text");
            // The file is reached without its name, and a pipe is opened again.
            program.remove(b"/tmp/shown\0");
            assert_eq!(link(program, &format!("/proc/self/fd/{stored}")), Ok("(deleted)".into()));
            assert_eq!(read(program, &format!("/proc/self/fd/{stored}")), "text");
            program.write_to(writer, b"through").unwrap();
            let again = open(program, &format!("/proc/self/fd/{reader}"), 0).unwrap();
            assert_eq!(program.read_from(again, 7), Ok(b"through".to_vec()));
        });
    }

    #[test]
    fn the_tree_is_walked_and_not_changed() {
        run(|program| {
            let listed = names(program, "/proc");
            for name in [".", "..", "self", "meminfo", "sys", "1", &program.id.to_string()] {
                assert!(listed.contains(&name.to_string()), "{name}: {listed:?}");
            }
            assert!(names(program, "/proc/sys/../sys/kernel/").contains(&"random".to_string()));
            assert!(open(program, "/proc/self/../../proc/./self/cwd/tmp", how::DIRECTORY).is_ok());
            for (path, flags, error) in [
                ("/proc/missing", 0, Errno::ENOENT),
                ("/proc/missing/x", 0, Errno::ENOENT),
                ("/proc/30000/stat", 0, Errno::ENOENT),
                ("/proc/01/stat", 0, Errno::ENOENT),
                ("/proc/meminfo/x", 0, Errno::ENOTDIR),
                ("/proc/meminfo/", 0, Errno::ENOTDIR),
                ("/proc/meminfo", how::WRONLY, Errno::EACCES),
                ("/proc/sys", how::RDWR, Errno::EISDIR),
                ("/proc/new", how::CREAT, Errno::ENOENT),
                ("/proc/self", how::NOFOLLOW, Errno::ELOOP),
                ("/proc/meminfo", how::DIRECTORY, Errno::ENOTDIR),
            ] {
                assert_eq!(open(program, path, flags), Err(error), "{path}");
            }
            let path = program.store(b"/proc/new\0");
            assert_eq!(program.call(SystemCall::MakeDirectory, [HERE, path, 0]), Err(Errno::EPERM));
            let directory = program.store(b"/proc/sys/kernel\0");
            assert_eq!(program.call(SystemCall::ChangeDirectory, [directory]), Ok(0));
            let place = program.place(100);
            assert_eq!(program.call(SystemCall::GetCurrentDirectory, [place, 100]), Ok(17));
            assert_eq!(program.read(place, 16), b"/proc/sys/kernel");
            assert_eq!(read(program, "../../sys/kernel/ostype"), "COPS\n");
            let mounts = read(program, "/proc/mounts");
            assert!(mounts.starts_with("rootfs / tmpfs rw,noatime,size="), "{mounts}");
            assert!(mounts.contains("\nproc /proc proc rw,nosuid,nodev,noexec,noatime 0 0\n"), "{mounts}");
            let of_queues = "\nmqueue /dev/mqueue mqueue rw,nosuid,nodev,noexec,noatime 0 0\n";
            assert!(mounts.contains(of_queues), "{mounts}");
            let lines = read(program, "/proc/self/mountinfo");
            assert!(lines.contains(" 1 0:3 / /proc rw,nosuid,nodev,noexec,noatime - proc proc rw\n"), "{lines}");
        });
    }

    /// Others' state is seen by everybody, what they have open and mapped by those who may inspect them, and nothing of
    /// a process that has ended.
    #[test]
    fn strangers_see_the_state_and_not_the_contents() {
        run(|program| {
            let own = program.id;
            let child = program.spawn(move |program| {
                assert!(read(program, &format!("/proc/{own}/stat")).starts_with(&format!("{own} (test) S ")));
                for name in ["maps", "smaps", "smaps_rollup", "environ", "fd", "wchan"] {
                    assert_eq!(open(program, &format!("/proc/{own}/{name}"), 0), Err(Errno::EACCES), "{name}");
                }
                for name in ["exe", "cwd", "root", "fd/0"] {
                    assert_eq!(link(program, &format!("/proc/{own}/{name}")), Err(Errno::EACCES), "{name}");
                }
                program.sleep_ns(1_000_000);
            });
            let child = child.unwrap();
            let file = open(program, &format!("/proc/{child}/stat"), 0).unwrap();
            assert!(read(program, &format!("/proc/{child}/maps")).lines().count() > 2);
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(program.read_from(file, 10), Err(Errno::ESRCH));
            assert_eq!(open(program, &format!("/proc/{child}/stat"), 0), Err(Errno::ENOENT));
        });
    }

    /// Gets an open file of another process.
    fn take(program: &mut Program, process: usize, file: usize) -> usize {
        let descriptor = program.call(SystemCall::ProcessFile, [process, 0]).unwrap();
        program.call(SystemCall::TakeFile, [descriptor, file, 0]).unwrap()
    }

    /// A program of few rights cannot have a privileged one read or set for it what it may not itself: the rights of
    /// both count.
    #[test]
    fn an_open_file_has_no_more_rights_than_its_opener() {
        const TAKEN: usize = 50;
        run(|program| {
            let subject = program.fork(|program| {
                program.call(SystemCall::SetUserTriple, [1000; 3]).unwrap();
                program.call(SystemCall::ProcessControl, [process_control::SET_DUMPABLE as usize, 1]).unwrap();
                program.sleep_ns(20_000_000);
                program.call(SystemCall::ProcessControl, [process_control::SET_DUMPABLE as usize, 0]).unwrap();
                program.sleep_ns(1_000_000_000);
            });
            let subject = subject.unwrap();
            let opener = program.fork(move |program| {
                program.call(SystemCall::SetUserTriple, [1000; 3]).unwrap();
                program.sleep_ns(10_000_000);
                let maps = open(program, &format!("/proc/{subject}/maps"), how::RDONLY).unwrap();
                assert!(!program.read_from(maps, 10).unwrap().is_empty());
                program.call(SystemCall::DuplicateTo, [maps, TAKEN, 0]).unwrap();
                program.sleep_ns(20_000_000);
                assert_eq!(program.read_from(maps, 10), Err(Errno::EACCES));
                program.sleep_ns(1_000_000_000);
            });
            let opener = opener.unwrap();
            program.sleep_ns(40_000_000);
            assert!(!read(program, &format!("/proc/{subject}/maps")).is_empty(), "it may itself");
            let maps = take(program, opener, TAKEN);
            assert_eq!(program.read_from(maps, 10), Err(Errno::EACCES));
            // One without capabilities, which may open all files.
            let stranger = program.spawn(|program| {
                let setting = open(program, "/proc/sys/kernel/core_pattern", how::WRONLY).unwrap();
                program.call(SystemCall::DuplicateTo, [setting, TAKEN, 0]).unwrap();
                program.sleep_ns(1_000_000_000);
            });
            let stranger = stranger.unwrap();
            program.sleep_ns(10_000_000);
            let first = table::find(FIRST).unwrap();
            let capability = Held::of(CapabilitySet::only(Act::ChangeSetting.capability()));
            authority::give(&first, &program.process(), capability).unwrap();
            let setting = take(program, stranger, TAKEN);
            assert_eq!(program.write_to(setting, b"core"), Err(Errno::EPERM));
            let setting = open(program, "/proc/sys/kernel/core_pattern", how::WRONLY).unwrap();
            assert_eq!(program.write_to(setting, b"core"), Ok(4), "it may itself");
            for process in [opener, stranger, subject] {
                program.call(SystemCall::Kill, [process, 9]).unwrap();
                program.wait_for(process).unwrap();
            }
            assert_eq!(program.read_from(maps, 10), Err(Errno::ESRCH));
        });
    }

    #[test]
    fn calls_are_watched_for_those_that_may_write_to_the_log() {
        run(|program| {
            let before = open(program, "/proc/self/calls", how::RDWR).unwrap();
            assert_eq!(program.write_to(before, b"1"), Err(Errno::EPERM));
            let first = table::find(FIRST).unwrap();
            let capability = Held::of(CapabilitySet::only(Act::Log.capability()));
            authority::give(&first, &program.process(), capability).unwrap();
            assert_eq!(program.write_to(before, b"1"), Err(Errno::EPERM), "it was opened without the right");
            let setting = open(program, "/proc/self/calls", how::RDWR).unwrap();
            assert_eq!(program.write_to(setting, b"2"), Err(Errno::EINVAL));
            assert_eq!(program.write_to(setting, b"1\n"), Ok(2));
            assert!(program.process().watched.is_on());
            assert_eq!(read(program, "/proc/self/calls"), "1\n");
            let setting = open(program, "/proc/self/calls", how::WRONLY).unwrap();
            assert_eq!(program.write_to(setting, b"0"), Ok(1));
            assert_eq!(read(program, "/proc/self/calls"), "0\n");
        });
    }

    #[test]
    fn missing_calls_are_counted() {
        run(|program| {
            let count = |program: &mut Program| {
                let text = read(program, "/proc/unknown_calls");
                text.lines().find_map(|line| line.strip_prefix("299 ")?.parse().ok()).unwrap_or(0u32)
            };
            let before = count(program);
            for number in [299, 299, 0xffff] {
                assert_eq!(program.call_number(number, []), Err(Errno::ENOSYS));
            }
            assert_eq!(count(program), before + 2);
        });
    }

    /// The number of a process that has ended may be another's.
    #[test]
    fn an_entry_names_one_process_and_none_that_gets_its_number() {
        run(|program| {
            let directory = Processes.find(TOP, program.id.to_string().as_bytes()).unwrap();
            assert!(Processes.find(directory, b"stat").is_ok());
            let before = Entry { made: directory.made.wrapping_sub(1), ..directory };
            assert_eq!(Processes.find(before, b"stat"), Err(Errno::ENOENT));
            let stat = Entry { made: before.made, ..Processes.find(directory, b"stat").unwrap() };
            assert_eq!(Processes.record(stat, 0).map(|_| ()), Err(Errno::ESRCH));
            assert_eq!(Processes.permit(stat, program.id), Err(Errno::ESRCH));
        });
    }

    #[test]
    fn links_to_open_files_have_the_permissions_of_their_access() {
        run(|program| {
            for (flags, expected) in [(how::RDONLY, 0o500), (how::WRONLY, 0o300), (how::RDWR, 0o700)] {
                let file = open(program, "/dev/null", flags).unwrap();
                let names = [program.id.to_string(), "fd".into(), file.to_string()];
                let entry = names.iter().fold(TOP, |entry, name| Processes.find(entry, name.as_bytes()).unwrap());
                assert_eq!(Processes.permissions(entry), expected);
            }
        });
    }
}
