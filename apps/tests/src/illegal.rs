//! Illegal calls: every call of the table with descriptors, numbers, lengths and addresses that are wrong, and the
//! error number that Linux gives for it.

use abi_unix::authority::version;
use abi_unix::call::{ASYNCHRONOUS, Argument, PRIORITY_SHIFT};
use abi_unix::errno::decode;
use abi_unix::trace::subject;
use abi_unix::types::{
    self, AT_FDCWD, MessageHeader, SocketAddress, TimeSpec, clock, clone, epoll, futex, limit, mapping, open, signal,
    socket_option, terminal as request, timer,
};
use abi_unix::{Errno, SystemCall};
use alloc::vec::Vec;
use cops::system;

use crate::harness::Outcome;
use crate::{check, check_eq, must};

/// An address in the kernel's half of the address space.
const KERNEL: usize = 0xffff_ffc0_8020_0000;
/// An address below all mappings.
const UNMAPPED: usize = 0x2000;
/// A descriptor that is never open.
const CLOSED: usize = 777;

/// Makes a call with arguments that it refuses, or that reach only memory made for this.
fn call(call: SystemCall, arguments: &[usize]) -> Result<usize, Errno> {
    let mut registers = [0; 6];
    registers[..arguments.len()].copy_from_slice(arguments);
    crate::harness::call(call, registers)
}

/// Buffers and descriptors for the tests.
struct Things {
    buffer: Vec<u8>,
    file: system::Descriptor,
    directory: system::Descriptor,
    reader: system::Descriptor,
    writer: system::Descriptor,
    tcp: system::Descriptor,
    udp: system::Descriptor,
    address: [u8; 16],
    size: u32,
    long: Vec<u8>,
    time: [u8; 16],
    message: [u8; MessageHeader::SIZE],
}

impl Things {
    fn new() -> Result<Things, alloc::string::String> {
        let file = must!(system::file::open(c"/tmp/illegal", open::RDWR | open::CREAT, 0o644));
        must!(system::file::write(file.raw(), &[1; 1000]));
        must!(system::file::seek(file.raw(), 0, 0));
        let (reader, writer) = must!(system::file::pipe(0));
        let mut long = alloc::vec![b'x'; 5000];
        long.push(0);
        Ok(Things {
            buffer: alloc::vec![0; 8192],
            file,
            directory: must!(system::file::open(c"/tmp", open::RDONLY, 0)),
            reader,
            writer,
            tcp: must!(system::network::socket(abi_unix::types::SOCK_STREAM)),
            udp: must!(system::network::socket(abi_unix::types::SOCK_DGRAM)),
            address: SocketAddress { address: [127, 0, 0, 1], port: 9 }.to_bytes(),
            size: 16,
            long,
            time: TimeSpec { seconds: 0, nanoseconds: 1_000_000_000 }.to_bytes(),
            message: [0; MessageHeader::SIZE],
        })
    }
}

impl Drop for Things {
    fn drop(&mut self) {
        for path in [c"/tmp/illegal", c"/tmp/illegal-link"] {
            let _ = system::file::unlink(path, 0);
        }
    }
}

pub async fn calls() -> Outcome {
    use Errno::*;
    use SystemCall::*;
    let things = Things::new()?;
    let number = |descriptor: &system::Descriptor| descriptor.raw() as usize;
    let (file, directory) = (number(&things.file), number(&things.directory));
    let (reader, writer) = (number(&things.reader), number(&things.writer));
    let (tcp, udp) = (number(&things.tcp), number(&things.udp));
    let buffer = things.buffer.as_ptr() as usize;
    let here = AT_FDCWD as usize;
    let path = |text: &'static core::ffi::CStr| text.as_ptr() as usize;
    let (missing, existing, empty) = (path(c"/tmp/missing"), path(c"/tmp/illegal"), path(c""));
    let inside_file = path(c"/tmp/illegal/x");
    let long = things.long.as_ptr() as usize;
    let address = things.address.as_ptr() as usize;
    let size = &raw const things.size as usize;
    let wrong_time = things.time.as_ptr() as usize;
    let message = things.message.as_ptr() as usize;
    let minus_one = usize::MAX;
    // Control messages that are none, or send what may not be sent.
    let (local, _peer) = must!(system::network::socket_pair(abi_unix::types::SOCK_STREAM));
    let local = number(&local);
    let rights = [20u64, 1 | 1 << 32, local as u64];
    let strange = [20u64, 9 | 1 << 32, file as u64];
    let closed = [20u64, 1 | 1 << 32, CLOSED as u64];
    let (short, endless) = ([15u64, 1 | 1 << 32, file as u64], [u64::MAX - 7, 1 | 1 << 32, file as u64]);
    let credentials = [28u64, 1 | 2 << 32, 12345, 0];
    let byte = [buffer, 1];
    let carrying = |control: usize, control_length: usize| {
        let buffers = byte.as_ptr() as u64;
        let (control, control_length) = (control as u64, control_length as u64);
        MessageHeader { buffers, count: 1, control, control_length, ..MessageHeader::default() }.to_bytes()
    };
    let of = |words: &[u64]| carrying(words.as_ptr() as usize, size_of_val(words));
    let headers = [
        of(&rights),
        of(&strange),
        of(&closed),
        of(&short),
        of(&endless),
        of(&credentials),
        carrying(UNMAPPED, 24),
        carrying(buffer, 1 << 20),
        carrying(buffer, usize::MAX),
    ];
    let header = |index: usize| headers[index].as_ptr() as usize;
    let master = must!(system::terminal::pseudo_terminal());
    let slave = must!(system::terminal::open_slave(master.raw(), open::RDWR | open::NOCTTY));
    let (master, slave) = (number(&master), number(&slave));

    let attribute = c"user.a".as_ptr() as usize;
    let cases: &[(SystemCall, &[usize], &[Errno])] = &[
        (SetAttribute, &[existing, attribute, buffer, 1, 3], &[EINVAL]),
        (SetAttribute, &[existing, attribute, buffer, 1 << 20, 0], &[E2BIG]),
        (SetAttribute, &[existing, empty, buffer, 1, 0], &[ERANGE]),
        (SetAttributeOfFile, &[CLOSED, attribute, buffer, 1, 0], &[EBADF]),
        (GetAttribute, &[missing, attribute, buffer, 1], &[ENOENT]),
        (GetAttribute, &[existing, attribute, buffer, 1], &[EOPNOTSUPP]),
        (GetAttributeOfFile, &[writer, attribute, buffer, 1], &[EOPNOTSUPP]),
        (ListAttributes, &[missing, buffer, 1], &[ENOENT]),
        (RemoveAttribute, &[existing, attribute], &[EOPNOTSUPP]),
        (GetCurrentDirectory, &[buffer, 1], &[ERANGE]),
        (Duplicate, &[CLOSED], &[EBADF]),
        (Duplicate, &[minus_one], &[EBADF]),
        (DuplicateTo, &[file, file, 0], &[EINVAL]),
        (DuplicateTo, &[CLOSED, 9, 0], &[EBADF]),
        (DuplicateTo, &[file, 1 << 20, 0], &[EBADF]),
        (DuplicateTo, &[file, minus_one, 0], &[EBADF]),
        (DuplicateTo, &[file, 9, 1], &[EINVAL]),
        (FileControl, &[CLOSED, 3], &[EBADF]),
        (FileControl, &[file, 9999], &[EINVAL]),
        (FileControl, &[file, 8, 1 << 31], &[EINVAL]),
        (FileControl, &[file, 10, 65], &[EINVAL]),
        (DeviceControl, &[file, 0x5452, buffer], &[ENOTTY]),
        (DeviceControl, &[reader, 0x5452, UNMAPPED], &[EFAULT]),
        (FileControl, &[file, 6, UNMAPPED], &[EFAULT]),
        (FileControl, &[file, 5, KERNEL], &[EFAULT]),
        (FileControl, &[CLOSED, 7, buffer], &[EBADF]),
        (Lock, &[CLOSED, 1], &[EBADF]),
        (Lock, &[file, 3], &[EINVAL]),
        (DeviceControl, &[CLOSED, 0x5413, buffer], &[EBADF]),
        (DeviceControl, &[reader, 0x5401, buffer], &[ENOTTY, EINVAL]),
        (DeviceControl, &[master, request::SET_WINDOW_SIZE as usize, UNMAPPED], &[EFAULT]),
        (DeviceControl, &[master, request::SET_FOREGROUND as usize, buffer], &[ENOTTY]),
        (DeviceControl, &[master, request::GET_SESSION as usize, buffer], &[ENOTTY]),
        (DeviceControl, &[slave, request::SET_FOREGROUND as usize, buffer], &[ENOTTY]),
        (DeviceControl, &[slave, request::GET_FOREGROUND as usize, buffer], &[ENOTTY]),
        (DeviceControl, &[slave, request::GIVE_UP_CONTROLLING as usize, 0], &[ENOTTY]),
        (DeviceControl, &[slave, request::OPEN_PEER as usize, 0], &[ENOTTY]),
        (DeviceControl, &[slave, request::SET as usize, UNMAPPED], &[EFAULT]),
        (DeviceControl, &[slave, request::INSERT as usize, UNMAPPED], &[EFAULT]),
        (DeviceControl, &[slave, 0x5499, buffer], &[ENOTTY]),
        (SetNice, &[3, 0, 5], &[EINVAL]),
        (SetNice, &[1, 99_999, 5], &[ESRCH]),
        (SetNice, &[2, 7, 5], &[ESRCH]),
        (SetNice, &[0, 99_999, 5], &[ESRCH]),
        (GetNice, &[3, 0], &[EINVAL]),
        (GetNice, &[1, 99_999], &[ESRCH]),
        (GetNice, &[2, 7], &[ESRCH]),
        (GetNice, &[0, 99_999], &[ESRCH]),
        (MakeNode, &[here, existing, 0o010_644], &[EEXIST]),
        (MakeNode, &[here, missing, 0o020_644], &[EPERM]),
        (MakeNode, &[here, missing, 0o170_644], &[EINVAL]),
        (MakeNode, &[here, path(c"/tmp/missing/x"), 0o010_644], &[ENOENT]),
        (MakeDirectory, &[here, existing, 0o755], &[EEXIST]),
        (MakeDirectory, &[here, long, 0o755], &[ENAMETOOLONG]),
        (MakeDirectory, &[here, path(c"/tmp/missing/x"), 0o755], &[ENOENT]),
        (MakeDirectory, &[here, inside_file, 0o755], &[ENOTDIR]),
        (Unlink, &[here, missing, 0], &[ENOENT]),
        (Unlink, &[here, existing, 0xffff], &[EINVAL]),
        (Unlink, &[here, path(c"/tmp"), 0], &[EISDIR, EPERM]),
        (Unlink, &[here, existing, 0x200], &[ENOTDIR]),
        (SymbolicLink, &[empty, here, missing], &[ENOENT]),
        (SymbolicLink, &[existing, here, existing], &[EEXIST]),
        (Link, &[here, missing, here, path(c"/tmp/other"), 0], &[ENOENT]),
        (Link, &[here, existing, here, existing, 0], &[EEXIST]),
        (TruncateAt, &[missing, 0], &[ENOENT]),
        (ChangeDirectoryTo, &[CLOSED], &[EBADF]),
        (ChangeDirectoryTo, &[file], &[ENOTDIR]),
        (CloseRange, &[9, 8, 0], &[EINVAL]),
        (CloseRange, &[900, 901, 2], &[EINVAL]),
        (TruncateAt, &[existing, minus_one], &[EINVAL]),
        (TruncateAt, &[path(c"/tmp"), 0], &[EISDIR]),
        (ChangeMode, &[CLOSED, 0], &[EBADF]),
        (ChangeMode, &[reader, 0], &[EOPNOTSUPP]),
        (ChangeModeAt, &[here, missing, 0], &[ENOENT]),
        (ChangeModeWith, &[here, existing, 0, 1], &[EINVAL]),
        (ChangeOwner, &[reader, 0, 0], &[EOPNOTSUPP]),
        (ChangeOwner, &[CLOSED, 0, 0], &[EBADF]),
        (ChangeOwnerAt, &[here, missing, 0, 0, 0], &[ENOENT]),
        (ChangeOwnerAt, &[here, existing, 0, 7, 1], &[EINVAL]),
        (SetTimes, &[here, missing, 0, 0], &[ENOENT]),
        (SetTimes, &[here, existing, wrong_time, 0], &[EINVAL]),
        (SetTimes, &[CLOSED, 0, 0, 0], &[EBADF]),
        (SynchroniseFile, &[reader], &[EINVAL]),
        (SynchroniseFile, &[CLOSED], &[EBADF]),
        (SynchroniseData, &[tcp], &[EINVAL]),
        (SynchroniseFileSystem, &[CLOSED], &[EBADF]),
        (AdviseFile, &[reader, 0, 0, 0], &[ESPIPE]),
        (AdviseFile, &[file, 0, 0, 6], &[EINVAL]),
        (AdviseFile, &[CLOSED, 0, 0, 0], &[EBADF]),
        (SynchroniseMemory, &[1, 4096, 4], &[EINVAL]),
        (SynchroniseMemory, &[0x10_0000_0000, 4096, 4], &[ENOMEM]),
        (SynchroniseMemory, &[0x10_0000_0000, 4096, 5], &[EINVAL]),
        (LockMemory, &[0x10_0000_0000, 4096], &[ENOMEM]),
        (LockMemoryWith, &[0x10_0000_0000, 4096, 1], &[ENOMEM]),
        (LockMemoryWith, &[0x10_0000_0000, 4096, 2], &[EINVAL]),
        (LockAllMemory, &[0], &[EINVAL]),
        (LockAllMemory, &[4], &[EINVAL]),
        (LockAllMemory, &[9], &[EINVAL]),
        (Residence, &[1, 4096, buffer], &[EINVAL]),
        (Residence, &[0x10_0000_0000, 4096, buffer], &[ENOMEM]),
        (Residence, &[0x10_0000_0000, minus_one, buffer], &[ENOMEM]),
        (FlushInstructions, &[0, 0, 2], &[EINVAL]),
        (MemoryBarrier, &[8, 0, 0], &[EPERM]),
        (MemoryBarrier, &[0, 1, 0], &[EINVAL]),
        (MemoryBarrier, &[3, 0, 0], &[EINVAL]),
        (QueueOpen, &[missing, 0, 0, 0], &[EACCES]),
        (QueueOpen, &[empty, 0o100, 0o600, 0], &[ENOENT]),
        (QueueOpen, &[path(c"none"), 2, 0, 0], &[ENOENT]),
        (QueueOpen, &[path(c"none"), 3, 0, 0], &[EINVAL]),
        (QueueUnlink, &[path(c"none")], &[ENOENT]),
        (QueueUnlink, &[path(c"a/b")], &[EACCES]),
        (QueueSend, &[CLOSED, buffer, 1, 0, 0], &[EBADF]),
        (QueueSend, &[file, buffer, 1, 0, 0], &[EBADF]),
        (QueueSend, &[file, buffer, 1, 32_768, 0], &[EINVAL]),
        (QueueSend, &[file, buffer, 1, 0, wrong_time], &[EINVAL]),
        (QueueReceive, &[CLOSED, buffer, 1, 0, 0], &[EBADF]),
        (QueueReceive, &[file, buffer, 1, 0, 0], &[EBADF]),
        (QueueReceive, &[file, buffer, 1, 0, wrong_time], &[EINVAL]),
        (QueueNotify, &[CLOSED, 0], &[EBADF]),
        (QueueNotify, &[file, 0], &[EBADF]),
        (QueueAttributes, &[CLOSED, 0, 0], &[EBADF]),
        (QueueAttributes, &[file, 0, buffer], &[EBADF]),
        (SemaphoreGet, &[77, 1, 0], &[ENOENT]),
        (SemaphoreGet, &[0, 0, 0o1000], &[EINVAL]),
        (SemaphoreGet, &[0, minus_one, 0o1000], &[EINVAL]),
        (SemaphoreControl, &[minus_one, 0, 12, 0], &[EINVAL]),
        (SemaphoreOperate, &[minus_one, buffer, 1], &[EINVAL]),
        (SemaphoreOperate, &[99_999, buffer, 0], &[EINVAL]),
        (SemaphoreOperate, &[99_999, buffer, 257], &[E2BIG]),
        (SemaphoreOperateUntil, &[99_999, buffer, 1, wrong_time], &[EINVAL]),
        (SegmentGet, &[77, 4096, 0], &[ENOENT]),
        (SegmentGet, &[0, 0, 0o1000], &[EINVAL]),
        (SegmentGet, &[0, minus_one, 0o1000], &[EINVAL]),
        (SegmentGet, &[0, 4096, 0o5000], &[EINVAL]),
        (SegmentControl, &[minus_one, 2, buffer], &[EINVAL]),
        (SegmentControl, &[99_999, 0, 0], &[EINVAL]),
        (SegmentAttach, &[minus_one, 0, 0], &[EINVAL]),
        (SegmentDetach, &[0x10_0000_0000], &[EINVAL]),
        (SegmentDetach, &[1], &[EINVAL]),
        (SegmentDetach, &[KERNEL], &[EINVAL]),
        (FutexWaits, &[buffer, 0, 0, 0, 0], &[EINVAL]),
        (FutexWaits, &[buffer, 129, 0, 0, 0], &[EINVAL]),
        (FutexWaits, &[buffer, 1, 1, 0, 0], &[EINVAL]),
        (FutexWaits, &[0, 1, 0, 0, 0], &[EINVAL]),
        (Futex, &[buffer + 1, futex::LOCK as usize, 0, 0, 0, 0], &[EINVAL]),
        (Futex, &[buffer, futex::UNLOCK as usize, 0, 0, 0, 0], &[EPERM]),
        (Futex, &[buffer, futex::WAKE_OP as usize, 1, 1, buffer, 7 << 28], &[ENOSYS]),
        (ProcessFile, &[0, 0], &[EINVAL]),
        (ProcessFile, &[minus_one, 0], &[EINVAL]),
        (ProcessFile, &[99_999, 0], &[ESRCH]),
        (ProcessFile, &[1, 1], &[EINVAL]),
        (SignalProcessFile, &[file, 0, 0, 0], &[EBADF]),
        (SignalProcessFile, &[CLOSED, 0, 0, 0], &[EBADF]),
        (TakeFile, &[file, 0, 0], &[EBADF]),
        (TakeFile, &[CLOSED, 0, 0], &[EBADF]),
        (TakeFile, &[file, 0, 1], &[EINVAL]),
        (FileControl, &[file, 1031, 4096], &[EBADF]),
        (FileControl, &[file, 1032, 0], &[EBADF]),
        (FileControl, &[reader, 1031, (1 << 20) + 1], &[EPERM]),
        (FileControl, &[reader, 1031, 1 << 31 | 1], &[EINVAL]),
        (SynchroniseRange, &[reader, 0, 0, 0], &[ESPIPE]),
        (SynchroniseRange, &[file, 0, 0, 8], &[EINVAL]),
        (SynchroniseRange, &[file, minus_one, 0, 0], &[EINVAL]),
        (SynchroniseRange, &[CLOSED, 0, 0, 0], &[EBADF]),
        (ReadAhead, &[reader, 0, 1], &[EINVAL]),
        (ReadAhead, &[writer, 0, 1], &[EBADF]),
        (ReadAhead, &[CLOSED, 0, 1], &[EBADF]),
        (Personality, &[8], &[EINVAL]),
        (ExecuteAt, &[here, empty, 0, 0, 0], &[ENOENT]),
        (ExecuteAt, &[here, empty, 0, 0, 0x1000], &[EACCES]),
        (ExecuteAt, &[CLOSED, empty, 0, 0, 0x1000], &[EBADF]),
        (ExecuteAt, &[file, empty, 0, 0, 0x1000], &[EACCES]),
        (ExecuteAt, &[file, inside_file + 1, 0, 0, 0], &[ENOTDIR]),
        (ExecuteAt, &[here, existing, 0, 0, 0x100], &[EINVAL]),
        (Trace, &[0, 0, 0, 0], &[EPERM]),
        (SetClass, &[0, 4, buffer], &[EINVAL]),
        (SetClass, &[0, minus_one, buffer], &[EINVAL]),
        (SetClass, &[0, 0, 0], &[EINVAL]),
        (SetClass, &[99_999, 0, buffer], &[ESRCH]),
        (GetClass, &[99_999], &[ESRCH]),
        (GetClass, &[minus_one], &[EINVAL]),
        (SetClassPriority, &[0, 0], &[EINVAL]),
        (GetClassPriority, &[0, 0], &[EINVAL]),
        (GreatestClassPriority, &[4], &[EINVAL]),
        (LeastClassPriority, &[minus_one], &[EINVAL]),
        (GetSlice, &[99_999, buffer], &[ESRCH]),
        (SetAffinity, &[0, 0, buffer], &[EINVAL]),
        (SetAffinity, &[99_999, 8, buffer], &[ESRCH]),
        (GetLimit, &[99, buffer], &[EINVAL]),
        (SetLimit, &[99, buffer], &[EINVAL]),
        (ReadVectorWith, &[reader, buffer, 0, 0, 0, 0], &[ESPIPE]),
        (ReadVectorWith, &[file, buffer, 0, 0, 0, 8], &[EOPNOTSUPP]),
        (ReadVectorWith, &[CLOSED, buffer, 0, minus_one, 0, 0], &[EBADF]),
        (WriteVectorWith, &[writer, buffer, 0, 0, 0, 0], &[ESPIPE]),
        (WriteVectorWith, &[file, buffer, 0, 0, 0, 16], &[EOPNOTSUPP]),
        (WriteVectorWith, &[reader, buffer, 0, minus_one, 0, 0], &[EBADF]),
        (EpollWaitWith, &[file, buffer, 1, 0, 0, 0], &[EINVAL]),
        (EpollWaitWith, &[CLOSED, buffer, 1, 0, 0, 0], &[EBADF]),
        (EpollWaitWith, &[file, buffer, 1, wrong_time, 0, 0], &[EINVAL]),
        (UnlockMemory, &[0x10_0000_0000, usize::MAX], &[ENOMEM]),
        (Remap, &[1, 4096, 8192, 1, 0], &[EINVAL]),
        (Remap, &[0x10_0000_0000, 4096, 8192, 1, 0], &[EFAULT]),
        (Remap, &[0x10_0000_0000, 4096, 0, 1, 0], &[EINVAL]),
        (AdviseMemory, &[1, 4096, 4], &[EINVAL]),
        (AdviseMemory, &[0x10_0000_0000, 4096, 4], &[ENOMEM]),
        (AdviseMemory, &[0x10_0000_0000, 4096, 99], &[EINVAL]),
        (AccessWith, &[here, existing, 0, 1], &[EINVAL]),
        (AccessWith, &[here, missing, 0, 0], &[ENOENT]),
        (Select, &[minus_one, 0, 0, 0, buffer], &[EINVAL]),
        (Select, &[0, 0, 0, 0, wrong_time], &[EINVAL]),
        (Truncate, &[CLOSED, 0], &[EBADF]),
        (Truncate, &[file, minus_one], &[EINVAL]),
        (Truncate, &[reader, 0], &[EINVAL]),
        (Access, &[here, missing, 0], &[ENOENT]),
        (ChangeDirectory, &[missing], &[ENOENT]),
        (ChangeDirectory, &[existing], &[ENOTDIR]),
        (Open, &[here, missing, 0, 0], &[ENOENT]),
        (Open, &[here, empty, 0, 0], &[ENOENT]),
        (Open, &[here, long, 0, 0], &[ENAMETOOLONG]),
        (Open, &[here, inside_file, 0, 0], &[ENOTDIR]),
        (Open, &[here, existing, (open::CREAT | open::EXCL) as usize, 0], &[EEXIST]),
        (Open, &[here, existing, open::DIRECTORY as usize, 0], &[ENOTDIR]),
        (Open, &[here, path(c"/tmp"), open::RDWR as usize, 0], &[EISDIR]),
        (Open, &[CLOSED, path(c"x"), 0, 0], &[EBADF]),
        (Open, &[file, path(c"x"), 0, 0], &[ENOTDIR]),
        (Close, &[CLOSED], &[EBADF]),
        (Close, &[minus_one], &[EBADF]),
        (Pipe, &[buffer, 1], &[EINVAL]),
        (ReadDirectory, &[file, buffer, 100], &[ENOTDIR]),
        (ReadDirectory, &[directory, buffer, 1], &[EINVAL]),
        (ReadDirectory, &[CLOSED, buffer, 100], &[EBADF]),
        (Seek, &[reader, 0, 0], &[ESPIPE]),
        (Seek, &[file, minus_one, 0], &[EINVAL]),
        (Seek, &[file, 0, 99], &[EINVAL]),
        (Seek, &[CLOSED, 0, 0], &[EBADF]),
        (Read, &[CLOSED, buffer, 1], &[EBADF]),
        (Read, &[writer, buffer, 1], &[EBADF]),
        (Read, &[directory, buffer, 1], &[EISDIR]),
        (Read, &[file, buffer, minus_one], &[EINVAL, EFAULT]),
        (Read, &[tcp, buffer, 1], &[ENOTCONN]),
        (Write, &[CLOSED, buffer, 1], &[EBADF]),
        (Write, &[reader, buffer, 1], &[EBADF]),
        (Write, &[directory, buffer, 1], &[EBADF]),
        (ReadVector, &[file, buffer, 1025], &[EINVAL]),
        (ReadVector, &[CLOSED, buffer, 0], &[EBADF]),
        (WriteVector, &[file, buffer, minus_one], &[EINVAL]),
        (WriteVector, &[CLOSED, buffer, 0], &[EBADF]),
        (ReadAt, &[reader, buffer, 1, 0], &[ESPIPE]),
        (ReadAt, &[file, buffer, 1, minus_one], &[EINVAL]),
        (ReadAt, &[CLOSED, buffer, 1, 0], &[EBADF]),
        (ReadVectorAt, &[reader, buffer, 0, 0], &[ESPIPE]),
        (ReadVectorAt, &[file, buffer, 0, minus_one], &[EINVAL]),
        (ReadVectorAt, &[file, buffer, 1025, 0], &[EINVAL]),
        (ReadVectorAt, &[CLOSED, buffer, 0, 0], &[EBADF]),
        (WriteVectorAt, &[writer, buffer, 0, 0], &[ESPIPE]),
        (WriteVectorAt, &[file, buffer, 0, minus_one], &[EINVAL]),
        (WriteVectorAt, &[file, buffer, minus_one, 0], &[EINVAL]),
        (WriteVectorAt, &[CLOSED, buffer, 0, 0], &[EBADF]),
        (SendFile, &[file, reader, 0, 1], &[EINVAL]),
        (SendFile, &[reader, file, 0, 1], &[EBADF]),
        (SendFile, &[writer, writer, 0, 1], &[EBADF]),
        (Splice, &[file, 0, directory, 0, 1, 0], &[EBADF]),
        (Splice, &[file, 0, file, 0, 1, 0], &[EINVAL]),
        (Splice, &[reader, 0, writer, 0, 1, 0], &[EINVAL]),
        (Splice, &[file, 0, writer, 0, 1, 16], &[EINVAL]),
        (Splice, &[reader, buffer, file, 0, 1, 0], &[ESPIPE]),
        (Splice, &[file, 0, writer, buffer, 1, 0], &[ESPIPE]),
        (Splice, &[file, UNMAPPED, writer, 0, 1, 0], &[EFAULT]),
        (Splice, &[CLOSED, 0, writer, 0, 1, 0], &[EBADF]),
        (Tee, &[reader, writer, 1, 0], &[EINVAL]),
        (Tee, &[file, writer, 1, 0], &[EINVAL]),
        (Tee, &[writer, reader, 1, 0], &[EBADF]),
        (Tee, &[reader, writer, 1, 16], &[EINVAL]),
        (SpliceMemory, &[file, buffer, 1, 0], &[EBADF]),
        (SpliceMemory, &[writer, buffer, 1025, 0], &[EINVAL]),
        (SpliceMemory, &[writer, buffer, 1, 16], &[EINVAL]),
        (Allocate, &[file, 0, 0, 0], &[EINVAL]),
        (Allocate, &[file, 0, minus_one, 1], &[EINVAL]),
        (Allocate, &[file, 0, 0, minus_one], &[EINVAL]),
        (Allocate, &[file, 2, 0, 1], &[EOPNOTSUPP]),
        (Allocate, &[file, 16, 0, 1], &[EOPNOTSUPP]),
        (Allocate, &[file, 0, 1 << 62, 1 << 62], &[EFBIG]),
        (Allocate, &[writer, 0, 0, 1], &[ESPIPE]),
        (Allocate, &[reader, 0, 0, 1], &[EBADF]),
        (Allocate, &[CLOSED, 0, 0, 1], &[EBADF]),
        (MemoryFile, &[existing, 4], &[EINVAL]),
        (CopyFileRange, &[file, 0, writer, 0, 1, 0], &[EINVAL]),
        (CopyFileRange, &[file, 0, file, 0, 1, 1], &[EINVAL]),
        (WriteAt, &[writer, buffer, 1, 0], &[ESPIPE]),
        (WriteAt, &[file, buffer, 1, minus_one], &[EINVAL]),
        (ReadLink, &[here, existing, buffer, 100], &[EINVAL]),
        (ReadLink, &[here, missing, buffer, 100], &[ENOENT]),
        (StatusAt, &[here, missing, buffer, 0], &[ENOENT]),
        (StatusAt, &[here, empty, buffer, 0], &[ENOENT]),
        (ExtendedStatus, &[here, missing, 0, 0, buffer], &[ENOENT]),
        (ExtendedStatus, &[here, empty, 1, 0, buffer], &[EINVAL]),
        (FileSystemAt, &[missing, buffer], &[ENOENT]),
        (Mount, &[0, missing, path(c"tmpfs"), 0, 0], &[ENOENT]),
        (Mount, &[0, existing, path(c"tmpfs"), 0, 0], &[ENOTDIR]),
        (Mount, &[0, path(c"/tmp"), path(c"unknown"), 0, 0], &[ENODEV]),
        (Mount, &[0, path(c"/tmp"), path(c"tmpfs"), 0x1000, 0], &[EINVAL]),
        (Mount, &[0, path(c"/tmp"), path(c"tmpfs"), 0, path(c"size=many")], &[EINVAL]),
        (Mount, &[0, path(c"/"), path(c"tmpfs"), 0, 0], &[EBUSY]),
        (Unmount, &[path(c"/tmp"), 0], &[EINVAL]),
        (Unmount, &[path(c"/"), 0], &[EBUSY]),
        (Unmount, &[path(c"/"), 0xffff], &[EINVAL]),
        (FileSystem, &[999, buffer], &[EBADF]),
        (GetAffinity, &[0, 1, buffer], &[EINVAL]),
        (GetGroups, &[minus_one, buffer], &[EINVAL]),
        (SetGroups, &[minus_one, buffer], &[EINVAL]),
        (SetUser, &[minus_one], &[EINVAL]),
        (SetGroup, &[minus_one], &[EINVAL]),
        (Status, &[CLOSED, buffer], &[EBADF]),
        (Sleep, &[wrong_time, 0], &[EINVAL]),
        (SleepOn, &[99, 0, wrong_time, 0], &[EINVAL]),
        (SleepOn, &[clock::MONOTONIC as usize, 0, wrong_time, 0], &[EINVAL]),
        (EventFile, &[1], &[EINVAL]),
        (WatchFile, &[CLOSED, path(c"/tmp"), 2], &[EBADF]),
        (WatchFile, &[reader, path(c"/tmp"), 2], &[EINVAL]),
        (WatchFile, &[reader, path(c"/tmp"), 0], &[EINVAL]),
        (WatchFile, &[reader, path(c"/tmp"), 0x3000_0002], &[EINVAL]),
        (EndWatch, &[CLOSED, 1], &[EBADF]),
        (EndWatch, &[reader, 1], &[EINVAL]),
        (SignalFile, &[reader, buffer, 8, 0], &[EINVAL]),
        (SignalFile, &[CLOSED, buffer, 8, 0], &[EBADF]),
        (SignalFile, &[usize::MAX, buffer, 4, 0], &[EINVAL]),
        (SignalFile, &[usize::MAX, buffer, 8, 1], &[EINVAL]),
        (TimerFile, &[99, 0], &[EINVAL]),
        (TimerFile, &[1, 1], &[EINVAL]),
        (TimerFileSet, &[reader, 0, buffer, 0], &[EINVAL]),
        (TimerFileSet, &[CLOSED, 0, buffer, 0], &[EBADF]),
        (TimerFileSet, &[reader, 4, buffer, 0], &[EINVAL]),
        (TimerFileGet, &[reader, buffer], &[EINVAL]),
        (TimerFileGet, &[CLOSED, buffer], &[EBADF]),
        (GetIntervalTimer, &[3, buffer], &[EINVAL]),
        (SetIntervalTimer, &[3, buffer, 0], &[EINVAL]),
        (SetIntervalTimer, &[0, wrong_time, 0], &[EINVAL]),
        (TimerCreate, &[99, 0, buffer], &[EINVAL]),
        (TimerCreate, &[3, 0, buffer], &[EOPNOTSUPP]),
        (TimerCreate, &[1, buffer, buffer], &[EINVAL]),
        (TimerGet, &[minus_one, buffer], &[EINVAL]),
        (TimerOverrun, &[minus_one], &[EINVAL]),
        (TimerSet, &[minus_one, 0, buffer, 0], &[EINVAL]),
        (TimerSet, &[0, 0, wrong_time, 0], &[EINVAL]),
        (TimerDelete, &[minus_one], &[EINVAL]),
        (GetTime, &[99, buffer], &[EINVAL]),
        (GetTime, &[minus_one, buffer], &[EINVAL]),
        (GetResolution, &[99, buffer], &[EINVAL]),
        (GetUsage, &[2, buffer], &[EINVAL]),
        (GetUsage, &[minus_one - 1, buffer], &[EINVAL]),
        (Kill, &[999_999, 0], &[ESRCH]),
        (Kill, &[0, 65], &[EINVAL]),
        (Kill, &[0, minus_one], &[EINVAL]),
        (KillThread, &[0, 0], &[EINVAL]),
        (KillThread, &[999_999, 0], &[ESRCH]),
        (KillThreadOf, &[999_999, 999_999, 0], &[ESRCH]),
        (SignalStack, &[wrong_time, 0], &[EINVAL]),
        (SignalSuspend, &[buffer, 4], &[EINVAL]),
        (SignalAction, &[0, 0, buffer, 8], &[EINVAL]),
        (SignalAction, &[65, 0, buffer, 8], &[EINVAL]),
        (SignalAction, &[10, 0, buffer, 4], &[EINVAL]),
        (SignalMask, &[0, 0, buffer, 4], &[EINVAL]),
        (SignalPending, &[buffer, 9], &[EINVAL]),
        (SignalWait, &[buffer, 0, 0, 4], &[EINVAL]),
        (SignalWait, &[buffer, 0, wrong_time, 8], &[EINVAL]),
        (SignalQueue, &[999_999, 0, buffer], &[ESRCH]),
        (SignalQueueThread, &[999_999, 999_999, 0, buffer], &[ESRCH]),
        (ProcessControl, &[99, 0, 0, 0, 0], &[EINVAL]),
        (ProcessControl, &[15, UNMAPPED, 0, 0, 0], &[EFAULT]),
        (ProcessControl, &[16, KERNEL, 0, 0, 0], &[EFAULT]),
        (ProcessControl, &[38, 0, 0, 0, 0], &[EINVAL]),
        (ProcessControl, &[1, 65, 0, 0, 0], &[EINVAL]),
        (ProcessControl, &[2, UNMAPPED, 0, 0, 0], &[EFAULT]),
        (ProcessControl, &[37, KERNEL, 0, 0, 0], &[EFAULT]),
        (Reboot, &[0, 0, 0, 0], &[EINVAL]),
        (Reboot, &[0xfee1_dead, 672_274_793, 77, 0], &[EINVAL]),
        (Socket, &[99, 1, 0], &[EAFNOSUPPORT]),
        (Socket, &[2, 9, 0], &[EINVAL, EPROTONOSUPPORT, EPROTOTYPE]),
        (Socket, &[2, 1, 99], &[EPROTONOSUPPORT, EINVAL]),
        (Socket, &[2, 3, 0], &[EPROTONOSUPPORT]),
        (Socket, &[10, 3, 256], &[EPROTONOSUPPORT]),
        (Socket, &[1, 9, 0], &[ESOCKTNOSUPPORT]),
        (Socket, &[1, 1, 7], &[EPROTONOSUPPORT]),
        (SocketPair, &[2, 1, 0, buffer], &[EOPNOTSUPP]),
        (SocketPair, &[99, 1, 0, buffer], &[EAFNOSUPPORT]),
        (SocketPair, &[1, 9, 0, buffer], &[ESOCKTNOSUPPORT]),
        (SocketPair, &[1, 1, 7, buffer], &[EPROTONOSUPPORT]),
        (SendMessage, &[CLOSED, message, 0], &[EBADF]),
        (SendMessage, &[file, message, 0], &[ENOTSOCK]),
        (SendMessage, &[tcp, message, 1], &[EOPNOTSUPP]),
        (SendMessage, &[tcp, message, 0], &[ENOTCONN]),
        (SendMessage, &[udp, message, 0], &[EDESTADDRREQ]),
        (SendMessage, &[local, header(1), 0], &[EINVAL]),
        (SendMessage, &[local, header(2), 0], &[EBADF]),
        (SendMessage, &[local, header(3), 0], &[EINVAL]),
        (SendMessage, &[local, header(4), 0], &[EINVAL]),
        (SendMessage, &[local, header(5), 0], &[EPERM]),
        (SendMessage, &[local, header(6), 0], &[EFAULT]),
        (SendMessage, &[local, header(7), 0], &[ENOBUFS]),
        (SendMessage, &[local, header(8), 0], &[ENOBUFS]),
        (SendMessages, &[CLOSED, message, 1, 0], &[EBADF]),
        (SendMessages, &[file, message, 1, 0], &[ENOTSOCK]),
        (SendMessages, &[tcp, message, 1, 1], &[EOPNOTSUPP]),
        (SendMessages, &[tcp, message, 1, 0], &[ENOTCONN]),
        (SendMessages, &[local, header(2), 1, 0], &[EBADF]),
        (SendMessages, &[local, UNMAPPED, 1, 0], &[EFAULT]),
        (ReceiveMessages, &[CLOSED, message, 1, 0, 0], &[EBADF]),
        (ReceiveMessages, &[file, message, 1, 0, 0], &[ENOTSOCK]),
        (ReceiveMessages, &[tcp, message, 1, 1, 0], &[EOPNOTSUPP]),
        (ReceiveMessages, &[local, message, 1, types::message::DONTWAIT as usize, UNMAPPED], &[EFAULT]),
        (ReceiveMessages, &[local, header(0), 1, types::message::DONTWAIT as usize, 0], &[EAGAIN]),
        (ReceiveMessage, &[local, header(0), types::message::DONTWAIT as usize], &[EAGAIN]),
        (ReceiveMessage, &[CLOSED, message, 0], &[EBADF]),
        (ReceiveMessage, &[file, message, 0], &[ENOTSOCK]),
        (ReceiveMessage, &[tcp, message, 1], &[EOPNOTSUPP]),
        (ReceiveMessage, &[tcp, message, 0], &[ENOTCONN]),
        (ReceiveMessage, &[udp, message, types::message::DONTWAIT as usize], &[EAGAIN]),
        (Bind, &[CLOSED, address, 16], &[EBADF]),
        (Bind, &[file, address, 16], &[ENOTSOCK]),
        (Bind, &[tcp, address, 2], &[EINVAL]),
        (Bind, &[tcp, buffer, 16], &[EAFNOSUPPORT]),
        (Bind, &[local, address, 16], &[EINVAL]),
        (Bind, &[local, address, 1], &[EINVAL]),
        (Bind, &[local, address, 129], &[EINVAL]),
        (Bind, &[local, UNMAPPED, 20], &[EFAULT]),
        (Bind, &[local, KERNEL, 20], &[EFAULT]),
        (Connect, &[local, address, 16], &[EINVAL]),
        (Connect, &[local, address, 2], &[EINVAL]),
        (Connect, &[local, UNMAPPED, 20], &[EFAULT]),
        (Listen, &[local, 1], &[EINVAL, EOPNOTSUPP]),
        (Accept, &[local, 0, 0], &[EINVAL, EOPNOTSUPP]),
        (SetSocketOption, &[local, 1, socket_option::SO_PASSCRED as usize, UNMAPPED, 4], &[EFAULT]),
        (SetSocketOption, &[local, 1, socket_option::SO_PASSCRED as usize, buffer, 3], &[EINVAL]),
        (SetSocketOption, &[local, 6, 1, buffer, 4], &[EOPNOTSUPP]),
        (DeviceControl, &[local, request::WRITTEN as usize, UNMAPPED], &[EFAULT]),
        (Listen, &[CLOSED, 1], &[EBADF]),
        (Listen, &[reader, 1], &[ENOTSOCK]),
        (Listen, &[udp, 1], &[EOPNOTSUPP]),
        (Accept, &[CLOSED, 0, 0], &[EBADF]),
        (Accept, &[file, 0, 0], &[ENOTSOCK]),
        (Accept, &[tcp, 0, 0], &[EINVAL]),
        (Accept, &[udp, 0, 0], &[EOPNOTSUPP]),
        (AcceptWith, &[tcp, 0, 0, 1], &[EINVAL]),
        (Connect, &[CLOSED, address, 16], &[EBADF]),
        (Connect, &[file, address, 16], &[ENOTSOCK]),
        (Connect, &[tcp, address, 3], &[EINVAL]),
        (GetSocketName, &[CLOSED, buffer, size], &[EBADF]),
        (GetSocketName, &[file, buffer, size], &[ENOTSOCK]),
        (GetPeerName, &[tcp, buffer, size], &[ENOTCONN]),
        (SendTo, &[CLOSED, buffer, 1, 0, 0, 0], &[EBADF]),
        (SendTo, &[file, buffer, 1, 0, 0, 0], &[ENOTSOCK]),
        (SendTo, &[tcp, buffer, 1, 0, 0, 0], &[EPIPE, ENOTCONN]),
        (SendTo, &[udp, buffer, 1, 0, 0, 0], &[EDESTADDRREQ]),
        (ReceiveFrom, &[CLOSED, buffer, 1, 0, 0, 0], &[EBADF]),
        (ReceiveFrom, &[writer, buffer, 1, 0, 0, 0], &[ENOTSOCK]),
        (ReceiveFrom, &[tcp, buffer, 1, 0, 0, 0], &[ENOTCONN]),
        (SetSocketOption, &[CLOSED, 1, 2, buffer, 4], &[EBADF]),
        (SetSocketOption, &[file, 1, 2, buffer, 4], &[ENOTSOCK]),
        (SetSocketOption, &[tcp, 1, socket_option::SO_REUSEADDR as usize, buffer, 1], &[EINVAL]),
        (SetSocketOption, &[tcp, 1, 9999, buffer, 4], &[ENOPROTOOPT]),
        (GetSocketOption, &[tcp, 1, 9999, buffer, size], &[ENOPROTOOPT]),
        (Shutdown, &[CLOSED, 0], &[EBADF]),
        (Shutdown, &[file, 0], &[ENOTSOCK]),
        (Shutdown, &[tcp, 99], &[EINVAL, ENOTCONN]),
        (Shutdown, &[tcp, 0], &[ENOTCONN]),
        (Unmap, &[1, 4096], &[EINVAL]),
        (Unmap, &[0x10_0000_0000, 0], &[EINVAL]),
        (Unmap, &[KERNEL, 4096], &[EINVAL]),
        (Unmap, &[0x10_0000_0000, minus_one], &[EINVAL, ENOMEM]),
        (Execute, &[missing, 0, 0], &[ENOENT]),
        (Execute, &[path(c"/tmp"), 0, 0], &[EACCES]),
        (Execute, &[existing, 0, 0], &[EACCES, ENOEXEC]),
        (Map, &[0, 0, 3, (mapping::PRIVATE | mapping::ANONYMOUS) as usize, minus_one, 0], &[EINVAL]),
        (Map, &[0, 4096, 3, mapping::ANONYMOUS as usize, minus_one, 0], &[EINVAL]),
        (Map, &[0, 4096, 1, mapping::PRIVATE as usize, CLOSED, 0], &[EBADF]),
        (Map, &[0, 4096, 1, mapping::PRIVATE as usize, file, 1], &[EINVAL]),
        (Map, &[0, 1 << 45, 3, (mapping::PRIVATE | mapping::ANONYMOUS) as usize, minus_one, 0], &[ENOMEM]),
        (Map, &[0, minus_one, 3, (mapping::PRIVATE | mapping::ANONYMOUS) as usize, minus_one, 0], &[ENOMEM, EINVAL]),
        (Protect, &[0x10_0000_0001, 4096, 1], &[EINVAL]),
        (Protect, &[0x10_0000_0000, 4096, 1], &[ENOMEM]),
        (CloneWith, &[buffer, 63], &[EINVAL]),
        (CloneWith, &[buffer, 4097], &[E2BIG]),
        (Wait, &[minus_one, 0, 0, 0], &[ECHILD]),
        (Wait, &[999_999, 0, 0, 0], &[ECHILD]),
        (Wait, &[minus_one, 0, 1 << 20, 0], &[EINVAL]),
        (WaitIdentified, &[0, 0, buffer, 4, 0], &[ECHILD]),
        (WaitIdentified, &[0, 0, buffer, 0, 0], &[EINVAL]),
        (WaitIdentified, &[1, 0, buffer, 4, 0], &[EINVAL]),
        (WaitIdentified, &[3, CLOSED, buffer, 4, 0], &[EBADF]),
        (WaitIdentified, &[4, 1, buffer, 4, 0], &[EINVAL]),
        (GetSession, &[999_999], &[ESRCH]),
        (SetProcessGroup, &[999_999, 0], &[ESRCH]),
        (SetProcessGroup, &[0, minus_one], &[EINVAL]),
        (Rename, &[here, missing, here, path(c"/tmp/x"), 0], &[ENOENT]),
        (Rename, &[here, existing, here, path(c"/tmp/x"), 1 << 20], &[EINVAL]),
        (GetRandom, &[buffer, 1, 1 << 20], &[EINVAL]),
        // From the pool that can block, with the flag not to block.
        (GetRandom, &[buffer, 1, 2 | 4], &[EINVAL]),
        (Spawn, &[missing, 0, 0, 0, 0], &[ENOENT]),
        (WorkerWake, &[7], &[EINVAL, ESRCH, ENOENT]),
        (WorkerWake, &[minus_one], &[EINVAL, ESRCH, ENOENT]),
        (Cancel, &[0x7777_7777], &[ENOENT]),
        (Log, &[KERNEL, 10], &[EFAULT]),
    ];
    for (which, arguments, errors) in cases {
        let result = call(*which, arguments);
        check!(
            result.as_ref().err().is_some_and(|error| errors.contains(error)),
            "{}({arguments:x?}) gives {result:?}, not {errors:?}",
            which.name()
        );
    }
    // Numbers of no call.
    let unknown_bit = GetProcess as usize | 1 << 40;
    for number in [0usize, 1, 16, 1000, 0xffe, 0xfff, 0x1009, 0x8000, 0xffff, 0xfff | ASYNCHRONOUS, unknown_bit] {
        // SAFETY: there is no such call.
        let result = decode(unsafe { system::syscall(number, [usize::MAX; 6]) });
        check!(result == Err(ENOSYS) || SystemCall::from_number(number).is_some(), "{number:#x}: {result:?}");
    }
    // The buffers of a correct spawn with one wrong descriptor, and one wrong priority.
    let list = [0usize];
    let spawn = |descriptors: &[i32; 3], priority: usize| {
        let list = list.as_ptr() as usize;
        call(Spawn, &[path(c"/bin/hello"), list, list, descriptors.as_ptr() as usize, priority])
    };
    check_eq!(spawn(&[CLOSED as i32, -1, -1], 0), Err(EBADF));
    check_eq!(spawn(&[-1, -1, -1], 64), Err(EINVAL));
    Ok(())
}

/// Calls with an address that [`addresses`] leaves out: they look at it only when something has arrived (a connection,
/// a datagram, an event, the end of a child), on a descriptor of another kind, or in a kernel that traces.
const ADDRESSES_ELSEWHERE: [SystemCall; 11] = {
    use SystemCall::*;
    [
        EpollWait,
        EpollWaitWith,
        DeviceControl,
        Accept,
        AcceptWith,
        GetPeerName,
        ReceiveFrom,
        Wait,
        WaitIdentified,
        TraceRead,
        TraceWrite,
    ]
};

/// Makes every call that has an address, in turn with unmapped addresses. The table of calls tells the places of the
/// addresses.
pub async fn addresses() -> Outcome {
    use SystemCall::*;
    let things = Things::new()?;
    let number = |descriptor: &system::Descriptor| descriptor.raw() as usize;
    let (file, directory, reader) = (number(&things.file), number(&things.directory), number(&things.reader));
    let (tcp, udp) = (number(&things.tcp), number(&things.udp));
    let watching = must!(system::readiness::Epoll::new());
    let link = c"/tmp/illegal-link".as_ptr() as usize;
    must!(call(SymbolicLink, &[c"/tmp/illegal".as_ptr() as usize, AT_FDCWD as usize, link]));
    must!(system::network::bind(things.udp.raw(), SocketAddress { address: [127, 0, 0, 1], port: 0 }));
    let message = things.message.as_ptr() as usize;
    let buffer = things.buffer.as_ptr() as usize;
    let here = AT_FDCWD as usize;
    let existing = c"/tmp/illegal".as_ptr() as usize;
    let other = c"/tmp/other".as_ptr() as usize;
    let list = [0usize; 4];
    let list = list.as_ptr() as usize;
    let nobody = [-1i32; 3];
    let nobody = nobody.as_ptr() as usize;
    let program = c"/bin/hello".as_ptr() as usize;
    let size = &raw const things.size as usize;
    let (address, monotonic) = (things.address.as_ptr() as usize, clock::MONOTONIC as usize);
    let header = [version::THREE, 0];
    let header = header.as_ptr() as usize;
    let (processes, own) = (subject::PROCESSES as usize, system::process::number() as usize);
    let timer_descriptor = system::Descriptor::from_result(must!(call(TimerFile, &[monotonic, 0])));
    let timer_file = number(&timer_descriptor);
    let process_descriptor = system::Descriptor::from_result(must!(call(ProcessFile, &[own, 0])));
    let process_file = number(&process_descriptor);
    let event_descriptor = system::Descriptor::from_result(must!(call(EventFile, &[0])));
    let event_file = number(&event_descriptor);
    let segment = must!(call(SegmentGet, &[0, 4096, 0o1600]));
    let semaphores = must!(call(SemaphoreGet, &[0, 1, 0o1600]));
    let name = c"illegal-addresses".as_ptr() as usize;
    let queue_descriptor = system::Descriptor::from_result(must!(call(QueueOpen, &[name, 0o4302, 0o600, 0])));
    must!(call(QueueUnlink, &[name]));
    let queue = number(&queue_descriptor);
    must!(call(QueueSend, &[queue, buffer, 8, 0, 0]));
    must!(call(TimerCreate, &[monotonic, 0, buffer]));
    let timer = usize::from(things.buffer[0]);
    let notification = timer::Notification { value: 0, signal: 10, kind: timer::Notification::NONE, thread: 0 };
    let notification = notification.to_bytes();
    let notification = notification.as_ptr() as usize;

    let attribute = c"user.a".as_ptr() as usize;
    // Arguments with which each call would work. Each address that is not 0 is made wrong in turn.
    let cases: &[(SystemCall, &[usize])] = &[
        (SetAttribute, &[existing, attribute, buffer, 1, 0]),
        (SetAttributeOfLink, &[existing, attribute, buffer, 1, 0]),
        (SetAttributeOfFile, &[file, attribute, buffer, 1, 0]),
        (GetAttribute, &[existing, attribute, 0, 0]),
        (GetAttributeOfLink, &[existing, attribute, 0, 0]),
        (GetAttributeOfFile, &[file, attribute, 0, 0]),
        (ListAttributes, &[existing, 0, 0]),
        (ListAttributesOfLink, &[existing, 0, 0]),
        (ListAttributesOfFile, &[file, 0, 0]),
        (RemoveAttribute, &[existing, attribute]),
        (RemoveAttributeOfLink, &[existing, attribute]),
        (RemoveAttributeOfFile, &[file, attribute]),
        (GetCurrentDirectory, &[buffer, 100]),
        (EpollControl, &[number(watching.descriptor()), epoll::CTL_ADD as usize, reader, buffer]),
        (MakeNode, &[here, other, 0o010_644, 0]),
        (MakeDirectory, &[here, other, 0]),
        (Unlink, &[here, other, 0]),
        (SymbolicLink, &[existing, here, other]),
        (Link, &[here, existing, here, other, 0]),
        (Access, &[here, existing, 0]),
        (AccessWith, &[here, existing, 0, 0]),
        (TruncateAt, &[existing, 0]),
        (ChangeModeAt, &[here, existing, 0o644]),
        (ChangeModeWith, &[here, existing, 0o644, 0]),
        (ChangeOwnerAt, &[here, existing, 0, 0, 0]),
        (SetTimes, &[here, existing, buffer, 0]),
        (Select, &[8, buffer, buffer, buffer, buffer, buffer]),
        (ChangeDirectory, &[existing]),
        (WatchFile, &[event_file, existing, 2]),
        (Open, &[here, existing, 0, 0]),
        (Pipe, &[buffer, 0]),
        (ReadDirectory, &[directory, buffer, 1000]),
        (Read, &[file, buffer, 10]),
        (Write, &[file, buffer, 10]),
        (ReadVector, &[file, list, 1]),
        (WriteVector, &[file, list, 1]),
        (ReadAt, &[file, buffer, 10, 0]),
        (WriteAt, &[file, buffer, 10, 0]),
        (ReadVectorAt, &[file, list, 1, 0]),
        (WriteVectorAt, &[file, list, 1, 0]),
        (SendFile, &[file, file, list, 10]),
        (Splice, &[file, list, number(&things.writer), 0, 10, 0]),
        (SpliceMemory, &[number(&things.writer), list, 1, 0]),
        (MemoryFile, &[existing, 0]),
        (CopyFileRange, &[file, list, file, list, 10, 0]),
        (Poll, &[list, 1, buffer, 0, 0]),
        (ReadLink, &[here, link, buffer, 10]),
        (StatusAt, &[here, existing, buffer, 0]),
        (Status, &[file, buffer]),
        (ExtendedStatus, &[here, existing, 0, 0, buffer]),
        (FileSystemAt, &[existing, buffer]),
        (Mount, &[existing, c"/tmp".as_ptr() as usize, c"tmpfs".as_ptr() as usize, 0, c"".as_ptr() as usize]),
        (Unmount, &[existing, 0]),
        (FileSystem, &[file, buffer]),
        (GetAffinity, &[0, 8, buffer]),
        (SetAffinity, &[0, 8, buffer]),
        (SetClass, &[0, 0, buffer]),
        (SetClassPriority, &[0, buffer]),
        (GetClassPriority, &[0, buffer]),
        (GetSlice, &[0, buffer]),
        (GetTimeOfDay, &[buffer, buffer]),
        (GetLimit, &[limit::DESCRIPTORS as usize, buffer]),
        (SetLimit, &[limit::DESCRIPTORS as usize, buffer]),
        (Residence, &[buffer / 4096 * 4096, 4096, buffer]),
        (ReadVectorWith, &[file, list, 1, 0, 0, 0]),
        (WriteVectorWith, &[file, list, 1, usize::MAX, 0, 0]),
        (GetGroups, &[0, 0]),
        (SetGroups, &[1, buffer]),
        (GetUserTriple, &[buffer, buffer, buffer]),
        (GetGroupTriple, &[buffer, buffer, buffer]),
        (SystemInformation, &[buffer]),
        (GetCapabilities, &[header, buffer]),
        (SetCapabilities, &[header, buffer]),
        (Futex, &[list, futex::WAIT as usize, 0, buffer, 0, 0]),
        (Futex, &[list, futex::LOCK as usize, 0, buffer, 0, 0]),
        (FutexWaits, &[list, 1, 0, list, monotonic]),
        (SegmentControl, &[segment, 2, buffer]),
        (QueueOpen, &[c"illegal".as_ptr() as usize, 0o302, 0o600, buffer]),
        (QueueUnlink, &[c"illegal".as_ptr() as usize]),
        (QueueSend, &[queue, buffer, 8, 0, 0]),
        (QueueReceive, &[queue, buffer, 8192, buffer, 0]),
        (QueueNotify, &[queue, buffer]),
        (QueueAttributes, &[queue, 0, buffer]),
        (SemaphoreOperate, &[semaphores, list, 1]),
        (SemaphoreOperateUntil, &[semaphores, list, 1, list]),
        (SignalProcessFile, &[process_file, signal::WINCH as usize, buffer, 0]),
        (GetRobustList, &[0, buffer, buffer]),
        (Sleep, &[buffer, 0]),
        (SleepOn, &[monotonic, 0, buffer, 0]),
        (SignalFile, &[usize::MAX, buffer, 8, 0]),
        (TimerFileSet, &[timer_file, 0, buffer, 0]),
        (TimerFileSet, &[timer_file, 0, list, buffer]),
        (TimerFileGet, &[timer_file, buffer]),
        (GetIntervalTimer, &[0, buffer]),
        (SetIntervalTimer, &[0, list, buffer]),
        (TimerCreate, &[monotonic, notification, buffer]),
        (TimerGet, &[timer, buffer]),
        (TimerSet, &[timer, 0, list, buffer]),
        (GetTime, &[monotonic, buffer]),
        (GetResolution, &[monotonic, 1]),
        (SignalStack, &[buffer, 0]),
        (SignalStack, &[0, buffer]),
        (SignalSuspend, &[buffer, 8]),
        (SignalAction, &[10, buffer, 0, 8]),
        (SignalAction, &[10, 0, buffer, 8]),
        (SignalMask, &[0, buffer, 0, 8]),
        (SignalMask, &[0, 0, buffer, 8]),
        (SignalPending, &[buffer, 8]),
        (SignalWait, &[buffer, 0, buffer, 8]),
        (SignalQueue, &[own, signal::WINCH as usize, buffer]),
        (SignalQueueThread, &[own, own, signal::WINCH as usize, buffer]),
        (Times, &[buffer]),
        (GetUsage, &[0, buffer]),
        (GetHart, &[buffer, buffer, 0]),
        (SystemName, &[buffer]),
        (SocketPair, &[1, 1, 0, buffer]),
        (SendMessage, &[udp, message, 0]),
        (ReceiveMessage, &[udp, message, types::message::DONTWAIT as usize]),
        (SendMessages, &[udp, message, 1, 0]),
        (ReceiveMessages, &[udp, message, 1, types::message::DONTWAIT as usize, buffer]),
        (Bind, &[tcp, address, 16]),
        (Connect, &[tcp, address, 16]),
        (GetSocketName, &[udp, buffer, size]),
        (SendTo, &[udp, buffer, 10, 0, address, 16]),
        (SetSocketOption, &[tcp, 1, 2, buffer, 4]),
        (GetSocketOption, &[tcp, 1, 2, buffer, size]),
        (Execute, &[program, list, list]),
        (ExecuteAt, &[here, program, list, list, 0]),
        (CloneWith, &[buffer, clone::Arguments::SIZE]),
        (ProcessLimit, &[0, limit::DESCRIPTORS as usize, buffer, 0]),
        (ProcessLimit, &[0, limit::DESCRIPTORS as usize, 0, buffer]),
        (Rename, &[here, existing, here, other, 0]),
        (GetRandom, &[buffer, 10, 0]),
        (Spawn, &[program, list, list, nobody, 0]),
        (GetScheduling, &[0, buffer, 8]),
        (Snapshot, &[processes, 0, buffer, 1000]),
        (Counters, &[buffer, 128]),
        (Log, &[buffer, 10]),
    ];
    try_wrong_addresses(cases)?;
    must!(call(TimerDelete, &[timer]));
    must!(call(SegmentControl, &[segment, 0, 0]));
    must!(call(SemaphoreControl, &[semaphores, 0, 0, 0]));
    // Half of a buffer is mapped: the result is an error, or shorter.
    let memory = must!(system::memory::map(8192));
    // SAFETY: no code uses the second page.
    must!(unsafe { system::memory::unmap(memory.wrapping_add(4096), 4096) });
    let edge = memory as usize + 4090;
    must!(system::file::seek(things.file.raw(), 0, 0));
    let result = call(Read, &[file, edge, 100]);
    check!(matches!(result, Err(Errno::EFAULT) | Ok(0..=6)), "{result:?}");
    check_eq!(call(GetTime, &[monotonic, edge]), Err(Errno::EFAULT));
    check_eq!(call(SystemName, &[edge]), Err(Errno::EFAULT));
    // A path that runs into unmapped memory.
    // SAFETY: the first page is this test's.
    unsafe { memory.wrapping_add(4090).write_bytes(b'x', 6) };
    check_eq!(call(Open, &[here, edge, 0, 0]), Err(Errno::EFAULT));
    Ok(())
}

/// Makes each call with each of its addresses wrong in turn. Every call of the table with addresses must be there.
fn try_wrong_addresses(cases: &[(SystemCall, &[usize])]) -> Outcome {
    let addresses_of = |which: SystemCall| {
        let kinds = which.arguments().iter().map(|(_, kind)| *kind).enumerate();
        kinds.filter(|(_, kind)| matches!(kind, Argument::Input | Argument::Output | Argument::Path))
    };
    for &which in SystemCall::ALL {
        let is_tried = cases.iter().any(|(tried, _)| *tried == which);
        check!(
            is_tried || addresses_of(which).count() == 0 || ADDRESSES_ELSEWHERE.contains(&which),
            "{} has addresses and no line here",
            which.name()
        );
    }
    let code = here_is_code as *const () as usize;
    for (which, right) in cases {
        for (position, kind) in addresses_of(*which).filter(|(position, _)| right[*position] != 0) {
            for address in [UNMAPPED, KERNEL, usize::MAX - 100, 0x40_0000_0000 - 4, 1 << 62, code] {
                if address == code && kind != Argument::Output {
                    continue;
                }
                let mut arguments = right.to_vec();
                arguments[position] = address;
                let result = call(*which, &arguments);
                // A length or a place that can be read, but is invalid.
                let is_invalid = matches!(result, Err(Errno::EINVAL | Errno::EOVERFLOW));
                let bad_length = address == code && position > 0 && is_invalid;
                check!(
                    result == Err(Errno::EFAULT) || bad_length,
                    "{} with argument {position} = {address:#x} gives {result:?}",
                    which.name()
                );
            }
        }
    }
    Ok(())
}

fn here_is_code() {}

/// The asynchronous form of a wrong call returns the same error at once.
pub async fn asynchronous_forms() -> Outcome {
    for which in SystemCall::ALL {
        let ends = matches!(which, SystemCall::Exit | SystemCall::ExitGroup);
        // These have no argument that could be wrong.
        let harmless = which.arguments().is_empty()
            || matches!(
                which,
                SystemCall::Break
                    | SystemCall::SetThreadIdAddress
                    | SystemCall::SetCreationMask
                    | SystemCall::SetFileUser
                    | SystemCall::SetFileGroup
                    // User 0 may become every other one.
                    | SystemCall::SetUserPair
                    | SystemCall::SetGroupPair
                    | SystemCall::SetUserTriple
                    | SystemCall::SetGroupTriple
                    | SystemCall::Personality
                    | SystemCall::WorkerWait
                    | SystemCall::InterruptHandler
            );
        if ends || harmless {
            continue;
        }
        for priority in [0usize, 63] {
            let number = *which as usize | ASYNCHRONOUS | priority << PRIORITY_SHIFT;
            // SAFETY: the arguments are wrong for every call.
            let result =
                decode(unsafe { system::syscall(number, [usize::MAX, KERNEL, usize::MAX, KERNEL, KERNEL, KERNEL]) });
            // waitpid(-1) without children, and kill(-1): other errors than of arguments.
            check!(result.is_err(), "{} gives {result:?}", which.name());
        }
    }
    Ok(())
}
