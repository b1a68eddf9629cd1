//! The calls on queues of messages (POSIX's).

use alloc::sync::Arc;
use alloc::vec::Vec;

use ::signals::Signal;
use abi_unix::authority::Capability;
use abi_unix::types::message_queue::{self as number, Attributes};
use abi_unix::types::open as flag;
use abi_unix::types::timer::{self, Notification};
use abi_unix::{Errno, types};
use filesystem::Access;

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding, kept};
use crate::calls::files::permissions_of_new;
use crate::files::file::{self, OpenFile};
use crate::files::message_queue::{self, Act, Bounds, Notice, Opening, QueueFile, QueueTransfer};
use crate::process::user::{UserBuffer, read_time};
use crate::time;
use crate::time::limit::TimeLimit;

/// Reads the name of a queue, before which the C library has taken a slash away.
fn read_name(call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let name = call.process().copy_in_string(call.address(0), number::LONGEST_NAME, Errno::ENAMETOOLONG)?;
    match &name[..] {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EACCES),
        name if name.contains(&b'/') => Err(Errno::EACCES),
        _ => Ok(name),
    }
}

fn read_attributes(call: &Call<'_>, argument: usize) -> Result<Option<Attributes>, Errno> {
    if call.address(argument) == 0 {
        return Ok(None);
    }
    let mut bytes = [0; Attributes::SIZE];
    call.process().copy_in(call.address(argument), &mut bytes)?;
    Ok(Some(Attributes::from_bytes(&bytes)))
}

/// Performs `mq_open`.
#[inline(never)]
pub(super) fn open(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let (name, flags) = (read_name(&call)?, call.unsigned(1));
    let access = match flags & flag::ACCESS_MODE {
        flag::RDONLY => Access::Read,
        flag::WRONLY => Access::Write,
        flag::RDWR => Access::ReadWrite,
        _ => return Err(Errno::EINVAL),
    };
    let attributes = if flags & flag::CREAT != 0 { read_attributes(&call, 3)? } else { None };
    let permissions = permissions_of_new(process, call.unsigned(2) & 0o777);
    let charge = file::charge(&process.account)?;
    let is_free = process.authority.held().effective.has(Capability::Resource);
    let bounds = if is_free { Bounds::Kernel } else { Bounds::Settings };
    let opening = Opening { name: &name, flags, permissions, attributes, bounds };
    let (queue, is_new) = message_queue::find_or_make(&**process, access, &opening)?;
    let file = Arc::new(OpenFile::new(queue, access, flags & flag::NONBLOCK != 0, charge));
    // As on Linux it is closed by `execve`, whatever the flags.
    let added = process.descriptors.lock().add(file, true, 0);
    if added.is_err() && is_new {
        let _ = message_queue::unlink(&**process, &name);
    }
    added.map(Into::into)
}

/// Performs `mq_unlink`.
#[inline(never)]
pub(super) fn unlink(call: Call<'_>) -> Decoding {
    let name = read_name(&call)?;
    message_queue::unlink(&**call.process(), &name)?;
    Ok(0.into())
}

/// Reads the time of the day at which a call is to end.
fn read_limit(call: &Call<'_>, argument: usize) -> Result<TimeLimit, Errno> {
    if call.address(argument) == 0 {
        return Ok(TimeLimit::Never);
    }
    let ns = read_time(&**call.process(), call.address(argument))?;
    Ok(TimeLimit::At(time::ticks_at_ns(ns.saturating_sub(time::epoch_ns()))))
}

/// Performs `mq_timedsend`.
#[inline(never)]
pub(super) fn send(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let priority = call.unsigned(3);
    if priority > number::GREATEST_PRIORITY {
        return Err(Errno::EINVAL);
    }
    transfer(call, Act::Send(priority))
}

/// Performs `mq_timedreceive`.
#[inline(never)]
pub(super) fn receive(call: Call<'_>) -> Decoding {
    let address = call.address(3);
    transfer(call, Act::Receive(address))
}

fn transfer(call: Call<'_>, act: Act) -> Decoding {
    let limit = read_limit(&call, 4)?;
    let buffer = UserBuffer::new(call.address(1), call.length(2))?;
    let transfer = QueueTransfer::new(call.file(0)?, buffer, act, limit)?;
    Ok(Operation::Queue(kept(transfer)).into())
}

/// Performs `mq_notify`.
#[inline(never)]
pub(super) fn notify(call: Call<'_>) -> Decoding {
    let process = call.process();
    let own = (process.id, process.started);
    let notice = match call.address(1) {
        0 => None,
        address => {
            let mut bytes = [0; timer::NOTIFICATION];
            process.copy_in(address, &mut bytes)?;
            let Notification { value, signal, kind, .. } = Notification::from_bytes(&bytes);
            let signal = match kind {
                Notification::NONE => None,
                Notification::SIGNAL => Some((Signal::new(signal).ok_or(Errno::EINVAL)?.number(), value)),
                _ => return Err(Errno::EINVAL),
            };
            Some(Notice { process: own.0, started: own.1, signal })
        }
    };
    let file = process.descriptors.lock().get_until_closed(call.descriptor(0)?, process.id)?;
    let queue = file.as_kind::<QueueFile>().ok_or(Errno::EBADF)?;
    queue.forget_notice_unless(message_queue::has_process);
    queue.notify(own, notice)?;
    Ok(0.into())
}

/// Performs `mq_getsetattr`.
#[inline(never)]
pub(super) fn attributes(call: Call<'_>) -> Decoding {
    let new = read_attributes(&call, 1)?;
    let file = call.file(0)?;
    let queue = file.as_kind::<QueueFile>().ok_or(Errno::EBADF)?;
    if new.is_some_and(|new| new.flags & !i64::from(types::open::NONBLOCK) != 0) {
        return Err(Errno::EINVAL);
    }
    let old = queue.attributes(file.is_non_blocking());
    if let Some(new) = new {
        file.set_non_blocking(new.flags != 0);
    }
    if call.address(2) != 0 {
        call.process().copy_out(call.address(2), &old.to_bytes())?;
    }
    Ok(0.into())
}

#[cfg(test)]
mod tests {
    use ::signals::code;
    use abi_unix::SystemCall;
    use abi_unix::authority::{CapabilitySet, Held};
    use abi_unix::types::TimeSpec;

    use super::*;
    use crate::process::{authority, table};
    use crate::testing::{Program, SIGNAL_HANDLER, run};

    const NEW: usize = (flag::CREAT | flag::EXCL | flag::RDWR) as usize;
    const USR1: usize = 10;
    const NONBLOCK: usize = flag::NONBLOCK as usize;

    fn attributes_of(program: &mut Program, most: i64, size: i64) -> usize {
        program.store(&Attributes { most, size, ..Attributes::default() }.to_bytes())
    }

    fn make(program: &mut Program, name: &[u8], flags: usize, (most, size): (i64, i64)) -> Result<usize, Errno> {
        let (name, attributes) = (program.store(name), attributes_of(program, most, size));
        program.call(SystemCall::QueueOpen, [name, flags, 0o600, attributes])
    }

    fn remove(program: &mut Program, name: &[u8]) -> Result<usize, Errno> {
        let name = program.store(name);
        program.call(SystemCall::QueueUnlink, [name])
    }

    fn send(program: &mut Program, queue: usize, bytes: &[u8], priority: usize) -> Result<usize, Errno> {
        let at = program.store(bytes);
        program.call(SystemCall::QueueSend, [queue, at, bytes.len(), priority, 0])
    }

    fn receive(program: &mut Program, queue: usize, room: usize) -> Result<(Vec<u8>, u32), Errno> {
        let (place, priority) = (program.place(room), program.place(4));
        let length = program.call(SystemCall::QueueReceive, [queue, place, room, priority, 0])?;
        Ok((program.read(place, length), program.read_u32(priority)))
    }

    #[test]
    fn messages_come_by_priority_and_then_in_their_order() {
        run(|program| {
            let queue = make(program, b"order\0", NEW | NONBLOCK, (4, 16)).unwrap();
            for (text, priority) in [(&b"low"[..], 1), (b"high", 9), (b"high too", 9), (b"", 0)] {
                assert_eq!(send(program, queue, text, priority), Ok(0));
            }
            assert_eq!(send(program, queue, b"more", 1), Err(Errno::EAGAIN));
            let old = program.place(Attributes::SIZE);
            assert_eq!(program.call(SystemCall::QueueAttributes, [queue, 0, old]), Ok(0));
            let told = Attributes::from_bytes(&program.read(old, Attributes::SIZE).try_into().unwrap());
            assert_eq!(told, Attributes { flags: NONBLOCK as i64, most: 4, size: 16, present: 4 });
            for (text, priority) in [(&b"high"[..], 9), (b"high too", 9), (b"low", 1), (b"", 0)] {
                assert_eq!(receive(program, queue, 16), Ok((text.to_vec(), priority)));
            }
            assert_eq!(receive(program, queue, 20), Err(Errno::EAGAIN));
            assert_eq!(remove(program, b"order\0"), Ok(0));
        });
    }

    #[test]
    fn names_lead_to_one_queue_until_they_are_taken_away() {
        run(|program| {
            assert_eq!(make(program, b"none\0", flag::RDWR as usize, (4, 16)), Err(Errno::ENOENT));
            let first = make(program, b"one\0", NEW, (4, 16)).unwrap();
            assert_eq!(make(program, b"one\0", NEW, (4, 16)), Err(Errno::EEXIST));
            let reads = make(program, b"one\0", (flag::CREAT | flag::NONBLOCK) as usize, (9, 9)).unwrap();
            let writes = make(program, b"one\0", (flag::WRONLY) as usize, (9, 9)).unwrap();
            assert_eq!(send(program, writes, b"text", 3), Ok(0));
            assert_eq!(send(program, reads, b"text", 3), Err(Errno::EBADF));
            assert_eq!(receive(program, writes, 16), Err(Errno::EBADF));
            assert_eq!(receive(program, reads, 16), Ok((b"text".to_vec(), 3)));
            assert_eq!((remove(program, b"one\0"), remove(program, b"one\0")), (Ok(0), Err(Errno::ENOENT)));
            assert_eq!(send(program, first, b"still", 0), Ok(0));
            let other = make(program, b"one\0", NEW | NONBLOCK, (4, 16)).unwrap();
            assert_eq!(receive(program, other, 16), Err(Errno::EAGAIN), "another queue");
            assert_eq!(receive(program, reads, 16), Ok((b"still".to_vec(), 0)));
            assert_eq!(remove(program, b"one\0"), Ok(0));
        });
    }

    #[test]
    fn wrong_choices_are_refused() {
        run(|program| {
            for (name, error) in [
                (&b"\0"[..], Errno::ENOENT),
                (b"/x\0", Errno::EACCES),
                (b"..\0", Errno::EACCES),
                (&[&[b'n'; 256][..], &[0]].concat(), Errno::ENAMETOOLONG),
            ] {
                assert_eq!(make(program, name, NEW, (4, 16)), Err(error));
                assert_eq!(remove(program, name), Err(error));
            }
            for (most, size) in [(0, 1), (1, 0), (11, 1), (1, 8193), (-1, 1), (1, i64::MIN)] {
                assert_eq!(make(program, b"x\0", NEW, (most, size)), Err(Errno::EINVAL), "{most} {size}");
            }
            assert_eq!(make(program, b"x\0", NEW | 3, (1, 1)), Err(Errno::EINVAL));
            let queue = make(program, b"x\0", NEW, (1, 8)).unwrap();
            assert_eq!(send(program, queue, b"nine byte", 0), Err(Errno::EMSGSIZE));
            assert_eq!(send(program, queue, b"x", 32768), Err(Errno::EINVAL));
            assert_eq!(receive(program, queue, 7), Err(Errno::EMSGSIZE));
            assert_eq!(program.call(SystemCall::QueueSend, [queue, 0x1000, 1, 0, 0]), Err(Errno::EFAULT));
            assert_eq!(send(program, queue, b"x", 0), Ok(0));
            assert_eq!(program.call(SystemCall::QueueReceive, [queue, 0x1000, 8, 0, 0]), Err(Errno::EFAULT));
            assert_eq!(receive(program, queue, 8), Ok((b"x".to_vec(), 0)), "it is still there");
            let (pipe, _) = program.pipe(0);
            assert_eq!(send(program, pipe, b"x", 0), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::QueueAttributes, [pipe, 0, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::QueueNotify, [pipe, 0]), Err(Errno::EBADF));
            assert_eq!(program.write_to(queue, b"text"), Err(Errno::EINVAL));
            assert_eq!(remove(program, b"x\0"), Ok(0));
        });
    }

    /// The names are those of files, by which queues are looked at, opened and removed.
    #[test]
    fn queues_are_files_of_a_file_system() {
        run(|program| {
            let (kind, at) = (program.store(b"mqueue\0"), program.store(b"/tmp/queues\0"));
            let here = types::AT_FDCWD as usize;
            let held = Held::of(CapabilitySet::only(Capability::Administration));
            authority::give(&table::find(1).unwrap(), &program.process(), held).unwrap();
            program.call(SystemCall::MakeDirectory, [here, at, 0o755]).unwrap();
            program.call(SystemCall::Mount, [kind, at, kind, 0, 0]).unwrap();
            let queue = make(program, b"seen\0", NEW | NONBLOCK, (4, 16)).unwrap();
            send(program, queue, b"seven b", 1).unwrap();
            let path = program.store(b"/tmp/queues/seen\0");
            let opened = program.call(SystemCall::Open, [here, path, flag::RDWR as usize | NONBLOCK, 0]).unwrap();
            let text = |process: usize, signal: usize| {
                std::format!("QSIZE:{:<10} NOTIFY:{:<5} SIGNO:{signal:<5} NOTIFY_PID:{process:<6}\n", 7, 0).into_bytes()
            };
            assert_eq!(program.read_from(opened, 100), Ok(text(0, 0)));
            assert_eq!(program.read_from(opened, 100), Ok(Vec::new()), "its end");
            let event = Notification { value: 0, signal: USR1 as u32, kind: Notification::SIGNAL, thread: 0 };
            let event = program.store(&event.to_bytes());
            program.call(SystemCall::QueueNotify, [opened, event]).unwrap();
            let own = program.process().id as usize;
            program.call(SystemCall::Seek, [opened, 0, 0]).unwrap();
            assert_eq!(program.read_from(opened, 100), Ok(text(own, USR1)));
            assert_eq!(receive(program, opened, 16), Ok((b"seven b".to_vec(), 1)), "it is the queue");
            assert_eq!(program.call(SystemCall::QueueNotify, [opened, event]), Err(Errno::EBUSY));
            // Any descriptor of the queue that the process closes ends it, and that of another process does not.
            let child = program.spawn(|program| {
                let path = program.store(b"/tmp/queues/seen\0");
                let file = program.call(SystemCall::Open, [types::AT_FDCWD as usize, path, 0, 0]).unwrap();
                program.close(file).unwrap();
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(program.call(SystemCall::QueueNotify, [opened, event]), Err(Errno::EBUSY));
            let another = make(program, b"seen\0", flag::RDONLY as usize, (0, 0)).unwrap();
            program.close(another).unwrap();
            assert_eq!(program.call(SystemCall::QueueNotify, [opened, event]), Ok(0));
            assert_eq!(program.call(SystemCall::QueueNotify, [opened, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [opened]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Allocate, [opened, 0, 0, 1]), Err(Errno::EOPNOTSUPP));
            // Attributes are a file's, and the calls obey them.
            let status = program.place(128);
            program.call(SystemCall::Status, [queue, status]).unwrap();
            assert_eq!(
                (program.read_u32(status + 16), program.read_u64(status + 48)),
                (types::mode::REGULAR | 0o600, 80)
            );
            program.call(SystemCall::ChangeMode, [queue, 0o640]).unwrap();
            program.call(SystemCall::Status, [opened, status]).unwrap();
            assert_eq!(program.read_u32(status + 16), types::mode::REGULAR | 0o640);
            // Its length can be changed, and says nothing.
            assert_eq!(program.call(SystemCall::Seek, [opened, 0, types::SEEK_END as usize]), Ok(80));
            assert_eq!(program.call(SystemCall::Seek, [opened, 5, types::SEEK_HOLE as usize]), Ok(80));
            assert_eq!(program.call(SystemCall::Seek, [opened, 80, types::SEEK_DATA as usize]), Err(Errno::ENXIO));
            assert_eq!(program.call(SystemCall::Truncate, [opened, 5]), Ok(0));
            assert_eq!(program.call(SystemCall::Seek, [opened, 0, types::SEEK_END as usize]), Ok(5));
            assert_eq!(program.call(SystemCall::ReadAt, [opened, status, 100, 0]), Ok(text(0, 0).len()));
            // The length is changed by writers alone, and the text is shown to readers alone.
            let reader = make(program, b"seen\0", flag::RDONLY as usize, (0, 0)).unwrap();
            assert_eq!(program.call(SystemCall::Truncate, [reader, 7]), Err(Errno::EINVAL));
            let writer = program.call(SystemCall::Open, [here, path, flag::WRONLY as usize, 0]).unwrap();
            assert_eq!(program.call(SystemCall::ReadAt, [writer, status, 100, 0]), Err(Errno::EBADF));
            assert_eq!(program.read_from(writer, 100), Err(Errno::EBADF));
            for file in [reader, writer] {
                program.close(file).unwrap();
            }
            // Another mount that shows them read-only changes nothing for others.
            let shown = program.store(b"/tmp/shown\0");
            program.call(SystemCall::MakeDirectory, [here, shown, 0o755]).unwrap();
            program.call(SystemCall::Mount, [kind, shown, kind, types::mounting::flag::READ_ONLY as usize, 0]).unwrap();
            let refused = program.store(b"/tmp/shown/refused\0");
            let create = (flag::CREAT | flag::RDWR) as usize;
            assert_eq!(program.call(SystemCall::Open, [here, refused, create, 0o600]), Err(Errno::EROFS));
            let admitted = make(program, b"admitted\0", NEW, (4, 16)).unwrap();
            program.close(admitted).unwrap();
            assert_eq!(remove(program, b"admitted\0"), Ok(0));
            assert_eq!(program.call(SystemCall::Unmount, [shown, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Unlink, [here, shown, 0x200]), Ok(0));
            // A file that is made is a queue with the usual attributes.
            let other = program.store(b"/tmp/queues/other\0");
            let created = flag::CREAT | flag::EXCL | flag::RDWR;
            let plain = program.call(SystemCall::Open, [here, other, created as usize, 0o600]).unwrap();
            assert_eq!(program.call(SystemCall::Open, [here, other, created as usize, 0o600]), Err(Errno::EEXIST));
            assert_eq!(program.call(SystemCall::QueueAttributes, [plain, 0, status]), Ok(0));
            let usual = [0, number::DEFAULT_MESSAGES as u64, number::DEFAULT_SIZE as u64, 0];
            assert_eq!([0, 8, 16, 24].map(|at| program.read_u64(status + at)), usual);
            let same = make(program, b"other\0", flag::RDWR as usize, (0, 0)).unwrap();
            send(program, same, b"x", 0).unwrap();
            assert_eq!(receive(program, plain, number::DEFAULT_SIZE), Ok((b"x".to_vec(), 0)));
            program.close(same).unwrap();
            program.close(plain).unwrap();
            assert_eq!(program.call(SystemCall::Unlink, [here, other, 0]), Ok(0));
            // Nothing else is there.
            assert_eq!(program.call(SystemCall::Rename, [here, path, here, path, 0]), Ok(0));
            let pipe = (types::mode::PIPE | 0o600) as usize;
            assert_eq!(program.call(SystemCall::MakeNode, [here, other, pipe, 0]), Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::SymbolicLink, [path, here, other]), Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::MakeDirectory, [here, other, 0o755]), Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::Rename, [here, path, here, other, 0]), Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::Link, [here, path, here, other, 0]), Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::Unlink, [here, path, 0]), Ok(0));
            assert_eq!(remove(program, b"seen\0"), Err(Errno::ENOENT));
            assert_eq!(make(program, b"seen\0", flag::RDWR as usize, (4, 16)), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::Unmount, [at, 0]), Err(Errno::EBUSY));
            for file in [opened, queue] {
                program.close(file).unwrap();
            }
            assert_eq!(program.call(SystemCall::Unmount, [at, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Unlink, [here, at, 0x200]), Ok(0));
        });
    }

    #[test]
    fn names_and_memory_have_limits() {
        run(|program| {
            let mut names = Vec::new();
            let refused = loop {
                let name = std::format!("many-{}\0", names.len()).into_bytes();
                match make(program, &name, NEW, (1, 1)) {
                    Ok(queue) => program.close(queue).unwrap(),
                    Err(error) => break error,
                };
                names.push(name);
            };
            assert_eq!((refused, names.len()), (Errno::ENOSPC, number::USUAL_MOST_QUEUES));
            let held = Held::of(CapabilitySet::only(Capability::Resource));
            authority::give(&table::find(1).unwrap(), &program.process(), held).unwrap();
            let more = make(program, b"more\0", NEW, (1, 1)).unwrap();
            program.close(more).unwrap();
            names.push(b"more\0".to_vec());
            for name in names {
                assert_eq!(remove(program, &name), Ok(0));
            }
        });
    }

    /// Limits are settings, which processes with `CAP_SYS_RESOURCE` exceed up to those of the kernel.
    #[test]
    fn limits_are_settings() {
        const SETTINGS: [(&str, u64); 5] = [
            ("queues_max", 256),
            ("msg_max", 10),
            ("msgsize_max", 8192),
            ("msg_default", 10),
            ("msgsize_default", 8192),
        ];
        fn open(program: &mut Program, name: &str, how: u32) -> usize {
            let path = program.store(std::format!("/proc/sys/fs/mqueue/{name}\0").as_bytes());
            program.call(SystemCall::Open, [types::AT_FDCWD as usize, path, how as usize, 0]).unwrap()
        }
        fn set(program: &mut Program, name: &str, text: &str) -> Result<(), Errno> {
            let setting = open(program, name, flag::WRONLY);
            let written = program.write_to(setting, text.as_bytes());
            program.close(setting).unwrap();
            written.map(|count| assert_eq!(count, text.len()))
        }
        fn usual(program: &mut Program, name: &[u8]) -> [u64; 2] {
            let (text, place) = (program.store(name), program.place(Attributes::SIZE));
            let queue = program.call(SystemCall::QueueOpen, [text, NEW, 0o600, 0]).unwrap();
            program.call(SystemCall::QueueAttributes, [queue, 0, place]).unwrap();
            program.close(queue).unwrap();
            remove(program, name).unwrap();
            [8, 16].map(|at| program.read_u64(place + at))
        }
        run(|program| {
            for (name, value) in SETTINGS {
                let setting = open(program, name, flag::RDONLY);
                assert_eq!(program.read_from(setting, 20), Ok(std::format!("{value}\n").into_bytes()), "{name}");
                program.close(setting).unwrap();
                assert_eq!(set(program, name, "128"), Err(Errno::EPERM));
            }
            let held = Held::of(CapabilitySet::only(Capability::Administration));
            authority::give(&table::find(1).unwrap(), &program.process(), held).unwrap();
            for (name, texts) in [
                ("queues_max", &["-1", "2147483648", "x", "", " "][..]),
                ("msg_max", &["0", "33", "1 2", "+1", "0x10", "99999999999999999999"]),
                ("msgsize_max", &["127", "8193"]),
                ("msg_default", &["0", "33"]),
                ("msgsize_default", &["127", "8193", "\u{661}"]),
            ] {
                for text in texts {
                    let expected = if text.is_empty() { Ok(()) } else { Err(Errno::EINVAL) };
                    assert_eq!(set(program, name, text), expected, "{name} {text}");
                }
            }
            assert_eq!(usual(program, b"usual\0"), [10, 8192]);
            for (name, text) in [("msg_default", "30\n"), ("msgsize_default", " 200 "), ("msg_max", "20")] {
                set(program, name, text).unwrap();
            }
            assert_eq!(usual(program, b"usual\0"), [20, 200], "no more than the greatest");
            set(program, "msgsize_max", "128").unwrap();
            assert_eq!(usual(program, b"usual\0"), [20, 128]);
            for (most, size) in [(21, 1), (1, 129)] {
                assert_eq!(make(program, b"x\0", NEW, (most, size)), Err(Errno::EINVAL));
            }
            set(program, "queues_max", "0").unwrap();
            assert_eq!(make(program, b"x\0", NEW, (1, 1)), Err(Errno::ENOSPC));
            let held = held.permitted.or(CapabilitySet::only(Capability::Resource));
            authority::give(&table::find(1).unwrap(), &program.process(), Held::of(held)).unwrap();
            for (most, size) in [(33, 1), (1, 8193)] {
                assert_eq!(make(program, b"x\0", NEW, (most, size)), Err(Errno::EINVAL));
            }
            let queue = make(program, b"x\0", NEW, (32, 8192)).unwrap();
            program.close(queue).unwrap();
            assert_eq!(remove(program, b"x\0"), Ok(0));
            for (name, value) in SETTINGS {
                set(program, name, &std::format!("{value}")).unwrap();
            }
        });
    }

    /// The calls find queues by their names whatever is mounted, and descriptors tell these names.
    #[test]
    fn names_are_found_below_mounts() {
        fn link(program: &mut Program, file: usize) -> Vec<u8> {
            let path = program.store(std::format!("/proc/self/fd/{file}\0").as_bytes());
            let place = program.place(64);
            let length = program.call(SystemCall::ReadLink, [types::AT_FDCWD as usize, path, place, 64]).unwrap();
            program.read(place, length)
        }
        run(|program| {
            let here = types::AT_FDCWD as usize;
            let held = Held::of(CapabilitySet::only(Capability::Administration));
            authority::give(&table::find(1).unwrap(), &program.process(), held).unwrap();
            let (kind, at) = (program.store(b"mqueue\0"), program.store(b"/tmp/below\0"));
            program.call(SystemCall::MakeDirectory, [here, at, 0o755]).unwrap();
            program.call(SystemCall::Mount, [kind, at, kind, 0, 0]).unwrap();
            let queue = make(program, b"below\0", NEW | NONBLOCK, (4, 16)).unwrap();
            assert_eq!(link(program, queue), b"/below");
            // A file that covers the queue's is what paths lead to, and the queue is what its name leads to.
            let (plain, path) = (program.store(b"/tmp/plain\0"), program.store(b"/tmp/below/below\0"));
            let create = (flag::CREAT | flag::RDWR) as usize;
            let covering = program.call(SystemCall::Open, [here, plain, create, 0o600]).unwrap();
            let bind = types::mounting::flag::BIND as usize;
            program.call(SystemCall::Mount, [plain, path, 0, bind, 0]).unwrap();
            let opened = program.call(SystemCall::Open, [here, path, flag::RDWR as usize, 0]).unwrap();
            assert_eq!(send(program, opened, b"no queue", 0), Err(Errno::EBADF));
            for flags in [flag::RDWR, flag::RDWR | flag::CREAT] {
                let same = make(program, b"below\0", flags as usize | NONBLOCK, (4, 16)).unwrap();
                assert_eq!(send(program, same, b"text", 1), Ok(0));
                assert_eq!(receive(program, queue, 16), Ok((b"text".to_vec(), 1)));
                assert_eq!(link(program, same), b"/below");
                program.close(same).unwrap();
            }
            assert_eq!(make(program, b"below\0", NEW, (4, 16)), Err(Errno::EEXIST));
            assert_eq!(remove(program, b"below\0"), Err(Errno::EBUSY));
            for file in [opened, covering] {
                program.close(file).unwrap();
            }
            assert_eq!(program.call(SystemCall::Unmount, [path, 0]), Ok(0));
            let by_path = program.call(SystemCall::Open, [here, path, flag::RDWR as usize, 0]).unwrap();
            assert_eq!(link(program, by_path), b"/tmp/below/below");
            assert_eq!(remove(program, b"below\0"), Ok(0));
            assert_eq!(link(program, queue), b"(deleted)");
            for file in [by_path, queue] {
                program.close(file).unwrap();
            }
            assert_eq!(program.call(SystemCall::Unmount, [at, 0]), Ok(0));
            for (name, flags) in [(at, 0x200), (plain, 0)] {
                assert_eq!(program.call(SystemCall::Unlink, [here, name, flags]), Ok(0));
            }
        });
    }

    #[test]
    fn senders_and_receivers_wait_for_each_other() {
        run(|program| {
            let queue = make(program, b"wait\0", NEW, (1, 8)).unwrap();
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    for text in [b"one", b"two", b"end"] {
                        assert_eq!(send(program, queue, text, 0), Ok(0));
                    }
                })
                .unwrap();
            for text in [b"one", b"two", b"end"] {
                assert_eq!(receive(program, queue, 8), Ok((text.to_vec(), 0)));
                program.sleep_ns(1_000_000);
            }
            let late = time::now_ns() + time::epoch_ns() + 1_000_000;
            let (limit, place) = (program.store(&TimeSpec::from_ns(late).to_bytes()), program.place(8));
            let call = [queue, place, 8, 0, limit];
            assert_eq!(program.call(SystemCall::QueueReceive, call), Err(Errno::ETIMEDOUT));
            assert_eq!(program.call(SystemCall::QueueReceive, call), Err(Errno::ETIMEDOUT), "it is over");
            assert_eq!(program.submit(SystemCall::QueueReceive, [queue, place, 8, 0, 0], 7), None);
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::Cancel, [7]), Ok(0));
            assert_eq!(program.await_completions(), [(7, Err(Errno::ECANCELED))]);
            assert_eq!(remove(program, b"wait\0"), Ok(0));
        });
    }

    /// Once, and only if nobody waits for the message.
    #[test]
    fn a_process_is_told_of_the_first_message() {
        run(|program| {
            let words = [SIGNAL_HANDLER as u64, 0, 0].map(u64::to_le_bytes).concat();
            let action = program.store(&words);
            program.call(SystemCall::SignalAction, [USR1, action, 0, 8]).unwrap();
            let queue = make(program, b"told\0", NEW | NONBLOCK, (4, 8)).unwrap();
            let event = Notification { value: 0x1234, signal: USR1 as u32, kind: Notification::SIGNAL, thread: 0 };
            let wrong = program.store(&Notification { kind: Notification::THREAD, ..event }.to_bytes());
            let event = program.store(&event.to_bytes());
            assert_eq!(program.call(SystemCall::QueueNotify, [queue, wrong]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::QueueNotify, [queue, event]), Ok(0));
            assert_eq!(program.call(SystemCall::QueueNotify, [queue, event]), Err(Errno::EBUSY));
            for _ in 0..2 {
                assert_eq!(send(program, queue, b"x", 0), Ok(0));
            }
            let frames = program.signals();
            let int = |at: usize| i32::from_le_bytes(frames[0][at..at + 4].try_into().unwrap());
            assert_eq!(frames.len(), 1);
            assert_eq!((int(0), int(8), int(16)), (10, code::MESSAGE_QUEUE, program.id as i32));
            assert_eq!(u64::from_le_bytes(frames[0][24..32].try_into().unwrap()), 0x1234);
            for _ in 0..2 {
                receive(program, queue, 8).unwrap();
            }
            assert_eq!(program.call(SystemCall::QueueNotify, [queue, event]), Ok(0));
            assert_eq!(program.call(SystemCall::QueueNotify, [queue, 0]), Ok(0));
            assert_eq!(send(program, queue, b"x", 0), Ok(0));
            receive(program, queue, 8).unwrap();
            let child = program
                .fork(move |program| {
                    assert_eq!(program.call(SystemCall::QueueNotify, [queue, event]), Ok(0));
                })
                .unwrap();
            program.wait_for(child).unwrap();
            assert_eq!(program.call(SystemCall::QueueNotify, [queue, event]), Ok(0), "the other one is no more");
            assert_eq!(program.call(SystemCall::QueueNotify, [queue, 0]), Ok(0));
            // One that waits gets the message, and nobody is told.
            assert_eq!(program.call(SystemCall::QueueNotify, [queue, event]), Ok(0));
            let place = program.place(8);
            let blocks = make(program, b"told\0", flag::RDONLY as usize, (0, 0)).unwrap();
            assert_eq!(program.submit(SystemCall::QueueReceive, [blocks, place, 8, 0, 0], 3), None);
            program.sleep_ns(1_000_000);
            assert_eq!(send(program, queue, b"yes", 0), Ok(0));
            assert_eq!(program.await_completions(), [(3, Ok(3))]);
            assert_eq!(program.signals().len(), 1);
            assert_eq!(remove(program, b"told\0"), Ok(0));
        });
    }

    /// Queues of others have the rights that their modes give.
    #[test]
    fn modes_count_for_other_users() {
        run(|program| {
            let queue = make(program, b"mine\0", NEW, (4, 8)).unwrap();
            send(program, queue, b"secret", 0).unwrap();
            let child = program
                .fork(|program| {
                    program.call(SystemCall::SetUserTriple, [1000, 1000, 1000]).unwrap();
                    assert_eq!(make(program, b"mine\0", flag::RDONLY as usize, (0, 0)), Err(Errno::EACCES));
                    assert_eq!(remove(program, b"mine\0"), Err(Errno::EPERM));
                    make(program, b"other\0", NEW, (4, 8)).unwrap();
                    assert_eq!(remove(program, b"other\0"), Ok(0));
                })
                .unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(remove(program, b"mine\0"), Ok(0));
        });
    }
}
