//! The table of system calls: each call is defined here once, with its number, its arguments, whether it may wait, and
//! whether only a worker can make it.
//!
//! The kernel's dispatcher, the user library, the trace names and the reference page derive from this table.
//!
//! # Registers
//!
//! | register | synchronous call | asynchronous call |
//! |---|---|---|
//! | `a7` | number | number, [`ASYNCHRONOUS`], and the priority of the waiting coroutine in bits 24 to 29 |
//! | `a0` … `a5` | arguments | arguments |
//! | `a6` | unused | cid of the coroutine that waits |
//! | `t0` | unused | token, given back with the completion |
//! | `a0` on return | result, or `-errno` | the same if the call could be done at once, else [`WILL_BE_POSTED`] |
//!
//! The second way to make an asynchronous call is the request ring (`abi_queue::request`): the same number, priority,
//! arguments and token as words of an entry, and always a completion.
//!
//! All other registers are preserved. The answer to a number without a call, or to other bits of `a7`, is `ENOSYS`, as
//! on Linux, which has no call with bits above the number; so these flags collide with none of its calls. The numbers
//! below 0x1000 are Linux riscv64's (`asm-generic/unistd.h`), those from 0x1000 are our own.

/// Flag in `a7`: return at once, and post a completion if the call must wait.
pub const ASYNCHRONOUS: usize = 1 << 16;
/// Position in `a7` of the priority at which the kernel works on an asynchronous call.
pub const PRIORITY_SHIFT: usize = 24;
/// Mask of the number in `a7`.
pub const NUMBER_MASK: usize = 0xffff;
/// Bits of `a7` that have a meaning beside the number.
pub const FLAGS: usize = ASYNCHRONOUS | 63 << PRIORITY_SHIFT;
/// Result of an asynchronous call whose true result will arrive in the completion ring.
///
/// It lies just outside the range of errors (-1 to -4095), so that no result can be mistaken for it.
pub const WILL_BE_POSTED: usize = (-4096_isize) as usize;

/// Kind of an argument, for tracing, for documentation and for tests that try wrong values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A number or a set of flags.
    Number,
    /// A file descriptor, or `AT_FDCWD`.
    Descriptor,
    /// An address in the caller's memory that the kernel reads.
    Input,
    /// An address in the caller's memory that the kernel writes.
    Output,
    /// An address of a NUL-terminated path in the caller's memory.
    Path,
    /// A length in bytes.
    Length,
}

/// Whether a call can have to wait, and therefore has an asynchronous form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It is always done before it returns; its asynchronous form is the same.
    Never,
    /// It may have to wait for an event.
    Possible,
}

/// Flag of `ring_enter`: an idle hart takes the requests if there is one, and the call returns at once.
pub const RING_WAKE: usize = 1;

/// The origins that a call allows: the calling contexts in which it has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A worker or thread, or a coroutine that carries out requests from a ring.
    Anyone,
    /// A worker or thread, on which the call acts. `EOPNOTSUPP` through a request ring, where a kernel coroutine makes
    /// the calls.
    Worker,
}

macro_rules! origin {
    () => {
        Origin::Anyone
    };
    ($origin:ident) => {
        Origin::$origin
    };
}

macro_rules! system_calls {
    ($($(#[doc = $text:literal])* $variant:ident = $number:literal $name:ident($($argument:ident: $kind:ident),*) $waiting:ident $(by $origin:ident)?;)*) => {
        /// A system call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum SystemCall {
            $($(#[doc = $text])* $variant = $number,)*
        }

        impl SystemCall {
            /// The whole table.
            pub const ALL: &'static [SystemCall] = &[$(SystemCall::$variant),*];

            /// Returns the call with this number; `None` is answered with `ENOSYS`.
            #[inline(always)]
            pub const fn from_number(number: usize) -> Option<SystemCall> {
                match number { $($number => Some(SystemCall::$variant),)* _ => None }
            }

            /// Returns Linux's name.
            pub const fn name(self) -> &'static str {
                match self { $(SystemCall::$variant => stringify!($name),)* }
            }

            /// Returns its comment in the table.
            pub const fn description(self) -> &'static str {
                // Each line of a comment begins with the space that parts it from the one before.
                match self { $(SystemCall::$variant => concat!($($text),*).trim_ascii(),)* }
            }

            /// Returns names and kinds of the arguments in `a0`, `a1`, ….
            pub const fn arguments(self) -> &'static [(&'static str, Argument)] {
                match self { $(SystemCall::$variant => &[$((stringify!($argument), Argument::$kind)),*],)* }
            }

            /// Whether the call can have to wait.
            pub const fn waiting(self) -> Waiting {
                match self { $(SystemCall::$variant => Waiting::$waiting,)* }
            }

            /// Returns the origins that the call allows.
            pub const fn origin(self) -> Origin {
                match self { $(SystemCall::$variant => origin!($($origin)?),)* }
            }
        }
    };
}

system_calls! {
    /// Gives a file an extended attribute: a name with its namespace, `user`, `trusted` or `security`, and a value.
    /// Flags `XATTR_CREATE`, `XATTR_REPLACE`. `EOPNOTSUPP` for a file that is not on a volume.
    SetAttribute = 5 setxattr(path: Path, name: Input, value: Input, size: Length, flags: Number) Never;
    /// Does as `setxattr`, of a symbolic link itself.
    SetAttributeOfLink = 6 lsetxattr(path: Path, name: Input, value: Input, size: Length, flags: Number) Never;
    /// Does as `setxattr`, of an open file.
    SetAttributeOfFile = 7 fsetxattr(descriptor: Descriptor, name: Input, value: Input, size: Length, flags: Number) Never;
    /// Reads an extended attribute, or with no room its length. `ENODATA` if there is none.
    GetAttribute = 8 getxattr(path: Path, name: Input, value: Output, size: Length) Never;
    /// Does as `getxattr`, of a symbolic link itself.
    GetAttributeOfLink = 9 lgetxattr(path: Path, name: Input, value: Output, size: Length) Never;
    /// Does as `getxattr`, of an open file.
    GetAttributeOfFile = 10 fgetxattr(descriptor: Descriptor, name: Input, value: Output, size: Length) Never;
    /// Lists the names of extended attributes, each with a NUL, or with no room their length.
    ListAttributes = 11 listxattr(path: Path, names: Output, size: Length) Never;
    /// Does as `listxattr`, of a symbolic link itself.
    ListAttributesOfLink = 12 llistxattr(path: Path, names: Output, size: Length) Never;
    /// Does as `listxattr`, of an open file.
    ListAttributesOfFile = 13 flistxattr(descriptor: Descriptor, names: Output, size: Length) Never;
    /// Takes an extended attribute from a file. `ENODATA` if there is none.
    RemoveAttribute = 14 removexattr(path: Path, name: Input) Never;
    /// Does as `removexattr`, of a symbolic link itself.
    RemoveAttributeOfLink = 15 lremovexattr(path: Path, name: Input) Never;
    /// Does as `removexattr`, of an open file.
    RemoveAttributeOfFile = 16 fremovexattr(descriptor: Descriptor, name: Input) Never;
    /// Writes the working directory's path; returns its length with the NUL.
    GetCurrentDirectory = 17 getcwd(buffer: Output, size: Length) Never;
    /// Creates a counter: writes add to it, reads take it and wait while it is 0. Flags `EFD_SEMAPHORE`,
    /// `EFD_NONBLOCK`, `EFD_CLOEXEC`.
    EventCounter = 19 eventfd2(value: Number, flags: Number) Never;
    /// Creates an epoll; the only flag is `EPOLL_CLOEXEC`.
    EpollCreate = 20 epoll_create1(flags: Number) Never;
    /// Adds a descriptor to an epoll, changes the events it is watched for, or removes it. Pipes, sockets, event
    /// counters, timers and terminals can be watched; a descriptor that never waits is `EPERM`, another epoll `ELOOP`.
    EpollControl = 21 epoll_ctl(epoll: Descriptor, operation: Number, descriptor: Descriptor, event: Input) Never;
    /// Waits until descriptors of an epoll are ready, or `timeout` milliseconds have passed (negative: no limit); at
    /// most 1,024 events come at once. There are no signals, so the mask is only checked.
    EpollWait = 22 epoll_pwait(epoll: Descriptor, events: Output, count: Number, timeout: Number, mask: Number, mask_size: Length) Possible;
    /// Duplicates a descriptor to the lowest free number.
    Duplicate = 23 dup(descriptor: Descriptor) Never;
    /// Duplicates a descriptor to a given number.
    DuplicateTo = 24 dup3(descriptor: Descriptor, new: Number, flags: Number) Never;
    /// Descriptor flags: `F_DUPFD`, `F_DUPFD_CLOEXEC`, `F_GETFD`, `F_SETFD`, `F_GETFL`, `F_SETFL`; and locks on ranges
    /// of files: `F_GETLK`, `F_SETLK`, `F_SETLKW`, `F_OFD_GETLK`, `F_OFD_SETLK`, `F_OFD_SETLKW`. `EDEADLK` if a process
    /// would wait for itself, `ENOLCK` if the file has too many locks. `F_SETOWN`, `F_GETOWN`, `F_SETOWN_EX`,
    /// `F_GETOWN_EX`, `F_SETSIG`, `F_GETSIG` and `O_ASYNC`: the signal of pipes, sockets and terminals. `F_GETPIPE_SZ`
    /// and `F_SETPIPE_SZ`: the number of bytes that a pipe holds, a power of two of pages; `EPERM` above
    /// `/proc/sys/fs/pipe-max-size` for every process, and for one that makes another's pipe larger;
    /// `EBUSY` if more is in it.
    FileControl = 25 fcntl(descriptor: Descriptor, command: Number, argument: Number) Possible;
    /// Creates a queue for events of watched files. Flags `IN_NONBLOCK`, `IN_CLOEXEC`.
    EventFile = 26 inotify_init1(flags: Number) Never;
    /// Has a queue told what happens to a file, or in a directory: the mask has the kinds of events, and `IN_ONLYDIR`,
    /// `IN_DONT_FOLLOW`, `IN_ONESHOT`, `IN_MASK_ADD` and `IN_MASK_CREATE`. Returns the number of the watch, which is
    /// the present one of that file if there is one. `ENOSPC` beyond 8,192 watches of a queue or 32 of a file,
    /// `EOPNOTSUPP` for files that are not in memory.
    WatchFile = 27 inotify_add_watch(queue: Descriptor, path: Path, mask: Number) Never;
    /// Ends a watch.
    EndWatch = 28 inotify_rm_watch(queue: Descriptor, watch: Number) Never;
    /// Device control: of a terminal `TCGETS`, `TCSETS`, `TCSETSW`, `TCSETSF`, `TCSBRK`, `TCFLSH`, `TIOCSCTTY`,
    /// `TIOCNOTTY`, `TIOCGSID`, `TIOCGPGRP`, `TIOCSPGRP`, `TIOCSTI`, `TIOCGWINSZ`, `TIOCSWINSZ` and `FIONREAD`.
    /// `TCSETSW`, `TCSETSF` and `TCSBRK` wait until all output has left. Of a pseudo-terminal also `TIOCOUTQ`, and of
    /// its master `TIOCGPTN`, `TIOCSPTLCK`, `TIOCGPTLCK`, `TIOCGPTPEER`, and `TIOCPKT` with 0. Of every file `FIONBIO`,
    /// `FIOCLEX` and `FIONCLEX`, `FIOASYNC` of files that wait, and `FIONREAD` of files, pipes and
    /// sockets.
    DeviceControl = 29 ioctl(descriptor: Descriptor, command: Number, argument: Output) Possible;
    /// Locks a whole file for an open file of it, or unlocks it: `LOCK_SH`, `LOCK_EX` or `LOCK_UN`, with `LOCK_NB`.
    Lock = 32 flock(descriptor: Descriptor, operation: Number) Possible;
    /// Creates a FIFO (`S_IFIFO`), the name of no socket (`S_IFSOCK`) or an empty regular file (`S_IFREG`, 0). `EPERM`
    /// for other types.
    MakeNode = 33 mknodat(directory: Descriptor, path: Path, mode: Number, device: Number) Never;
    /// Creates a directory.
    MakeDirectory = 34 mkdirat(directory: Descriptor, path: Path, mode: Number) Never;
    /// Removes a file, or with `AT_REMOVEDIR` an empty directory.
    Unlink = 35 unlinkat(directory: Descriptor, path: Path, flags: Number) Never;
    /// Creates a symbolic link.
    SymbolicLink = 36 symlinkat(target: Path, directory: Descriptor, path: Path) Never;
    /// Creates a hard link.
    Link = 37 linkat(old_directory: Descriptor, old: Path, new_directory: Descriptor, new: Path, flags: Number) Never;
    /// Takes the file system whose root is at a path from its place. Flags `MNT_FORCE` (without effect), `MNT_DETACH`,
    /// `UMOUNT_NOFOLLOW`. `EBUSY` while something of it is in use, unless it is detached; `EINVAL` if the path leads to
    /// no such root.
    Unmount = 39 umount2(target: Path, flags: Number) Never;
    /// Mounts a new file system on a directory: `tmpfs`, with the options `size` and `mode`, `proc`, or the volume of a
    /// disk (`/dev/vda`) as `ext4`: `ENOTBLK` for another source, `EINVAL` if it has no volume that is supported, for
    /// which the console has the reason, `EBUSY` if it is mounted. Flags
    /// `MS_RDONLY`, `MS_NOSUID`, `MS_NODEV`, `MS_NOEXEC`, and `MS_REMOUNT` to change those and the size of a file
    /// system that is there. Mounts belong to all processes, so that `MS_PRIVATE` changes nothing; `MS_BIND`, `MS_MOVE`
    /// and the other kinds of propagation are `EINVAL`. `ENODEV` for other types, `ENOSPC` if there are 64 mounts.
    Mount = 40 mount(source: Path, target: Path, kind: Path, flags: Number, options: Path) Never;
    /// Describes the file system of a path as `struct statfs`.
    FileSystemAt = 43 statfs(path: Path, status: Output) Never;
    /// Describes the file system of an open file as `struct statfs`.
    FileSystem = 44 fstatfs(descriptor: Descriptor, status: Output) Never;
    /// Sets the length of the file at a path.
    TruncateAt = 45 truncate(path: Path, length: Length) Never;
    /// Sets the length of an open file.
    Truncate = 46 ftruncate(descriptor: Descriptor, length: Length) Never;
    /// Makes the pages of a range of a regular file, or its blocks on a volume, so that writing there needs no more
    /// room, and extends the file over it, unless the mode has `FALLOC_FL_KEEP_SIZE`. With `FALLOC_FL_PUNCH_HOLE` too,
    /// frees them instead, and the bytes become zero. With `FALLOC_FL_ZERO_RANGE` the bytes become zero and have their
    /// blocks, on volumes. `EOPNOTSUPP` for other modes. Blocks that were made before an error stay.
    Allocate = 47 fallocate(descriptor: Descriptor, mode: Number, offset: Number, size: Number) Never;
    /// Checks whether a path can be accessed by the real user and group.
    Access = 48 faccessat(directory: Descriptor, path: Path, mode: Number) Never;
    /// Changes the working directory.
    ChangeDirectory = 49 chdir(path: Path) Never;
    /// Changes the working directory to one that is open.
    ChangeDirectoryTo = 50 fchdir(descriptor: Descriptor) Never;
    /// Sets the permissions of an open file. `EPERM` unless it is the caller's, or the caller's user is 0.
    ChangeMode = 52 fchmod(descriptor: Descriptor, mode: Number) Never;
    /// Sets the permissions of the file at a path.
    ChangeModeAt = 53 fchmodat(directory: Descriptor, path: Path, mode: Number) Never;
    /// Gives the file at a path an owner and a group: all ones for the present one. Takes the bits for another user and
    /// group from a program's permissions. `EPERM` unless the caller's user is 0, or it is the owner, who gives it to a
    /// group of its own.
    ChangeOwnerAt = 54 fchownat(directory: Descriptor, path: Path, user: Number, group: Number, flags: Number) Never;
    /// Gives an open file an owner and a group, as `fchownat`.
    ChangeOwner = 55 fchown(descriptor: Descriptor, user: Number, group: Number) Never;
    /// Opens, and with `O_CREAT` creates, a file. An opening of a FIFO for reading or writing waits until the other
    /// side is opened, too; with `O_NONBLOCK` a reader does not, and a writer without a reader is `ENXIO`.
    Open = 56 openat(directory: Descriptor, path: Path, flags: Number, mode: Number) Possible;
    /// Closes a descriptor. The last one of a connection with `SO_LINGER` and a time waits for the delivery of what was
    /// sent.
    Close = 57 close(descriptor: Descriptor) Possible;
    /// Creates a pipe; the two descriptors are written as two `i32`.
    Pipe = 59 pipe2(descriptors: Output, flags: Number) Never;
    /// Reads directory entries as `struct linux_dirent64`.
    ReadDirectory = 61 getdents64(descriptor: Descriptor, buffer: Output, size: Length) Never;
    /// Moves the position of an open file.
    Seek = 62 lseek(descriptor: Descriptor, offset: Number, whence: Number) Never;
    /// Reads at the position of an open file, from a pipe or from a socket.
    Read = 63 read(descriptor: Descriptor, buffer: Output, size: Length) Possible;
    /// Writes at the position of an open file, to a pipe or to a socket.
    Write = 64 write(descriptor: Descriptor, buffer: Input, size: Length) Possible;
    /// Reads into several buffers.
    ReadVector = 65 readv(descriptor: Descriptor, vector: Input, count: Number) Possible;
    /// Writes from several buffers.
    WriteVector = 66 writev(descriptor: Descriptor, vector: Input, count: Number) Possible;
    /// Reads at a given offset.
    ReadAt = 67 pread64(descriptor: Descriptor, buffer: Output, size: Length, offset: Number) Possible;
    /// Writes at a given offset.
    WriteAt = 68 pwrite64(descriptor: Descriptor, buffer: Input, size: Length, offset: Number) Possible;
    /// Reads into several buffers, at a given offset. Its second half, for short words, is ignored.
    ReadVectorAt = 69 preadv(descriptor: Descriptor, vector: Input, count: Number, offset: Number) Possible;
    /// Writes from several buffers, at a given offset.
    WriteVectorAt = 70 pwritev(descriptor: Descriptor, vector: Input, count: Number, offset: Number) Possible;
    /// Writes bytes of a regular file to another file, from the place at `place`, which is moved on, or if that is 0
    /// from the file's position on. `EINVAL` for an output with `O_APPEND`, and for an input that is no regular file.
    SendFile = 71 sendfile(output: Descriptor, input: Descriptor, place: Output, size: Length) Possible;
    /// Waits until a descriptor in one of three sets of `count` bits can be read, can be written, or has an exceptional
    /// condition, or a time has passed; leaves the bits of those. `mask` is the address of the address and the size of
    /// signals to block meanwhile. The remaining time is not written.
    Select = 72 pselect6(count: Number, readable: Output, writable: Output, exceptional: Output, timeout: Input, mask: Input) Possible;
    /// Waits until one of the descriptors in a list of `struct pollfd` is ready, or a time has passed. A
    /// synchronous call blocks the signals of the mask meanwhile; the remaining time is not written.
    Poll = 73 ppoll(list: Output, count: Number, timeout: Input, mask: Number, mask_size: Length) Possible;
    /// Creates a descriptor from which pending signals of these are read, as `struct signalfd_siginfo`, or gives
    /// another set to one. Flags `SFD_NONBLOCK`, `SFD_CLOEXEC`. `EINVAL` for a descriptor of another kind.
    SignalFile = 74 signalfd4(descriptor: Descriptor, set: Input, size: Length, flags: Number) Never;
    /// Writes a program's buffers to a pipe, or reads from one into them. The pages are copied.
    SpliceMemory = 75 vmsplice(descriptor: Descriptor, vector: Input, count: Number, flags: Number) Possible;
    /// Moves bytes from a pipe to a file, from a file to a pipe, or from a pipe to another one, at places that are
    /// moved on, or if these are 0 at the files' positions. Waits for the first bytes and for room for them only. Of
    /// the flags `SPLICE_F_NONBLOCK` has an effect. `EINVAL` if no file is a pipe, both are the same one, or the output
    /// appends; `ESPIPE` for a place in a pipe.
    Splice = 76 splice(input: Descriptor, from: Output, output: Descriptor, to: Output, size: Length, flags: Number) Possible;
    /// Copies bytes of a pipe to another one, at most 8 KiB, and leaves them in the first.
    Tee = 77 tee(input: Descriptor, output: Descriptor, size: Length, flags: Number) Possible;
    /// Reads the target of a symbolic link.
    ReadLink = 78 readlinkat(directory: Descriptor, path: Path, buffer: Output, size: Length) Never;
    /// Describes the file at a path as `struct stat`.
    StatusAt = 79 newfstatat(directory: Descriptor, path: Path, status: Output, flags: Number) Never;
    /// Describes an open file as `struct stat`.
    Status = 80 fstat(descriptor: Descriptor, status: Output) Never;
    /// Waits until all that was written to disks cannot be lost with the power any more.
    Synchronise = 81 sync() Possible;
    /// Waits until all that was written to a disk before cannot be lost with the power any more; `EIO` if anything
    /// could not be written, once for each open file. Does nothing for files and directories, which are in memory;
    /// `EINVAL` for other descriptors.
    SynchroniseFile = 82 fsync(descriptor: Descriptor) Possible;
    /// As `fsync`.
    SynchroniseData = 83 fdatasync(descriptor: Descriptor) Possible;
    /// Writes a part of a file to its disk, as `fdatasync` does with all of it, with any of the flags
    /// `SYNC_FILE_RANGE_WAIT_BEFORE`, `WRITE` and `WAIT_AFTER`. `ESPIPE` for what is no file.
    SynchroniseRange = 84 sync_file_range(descriptor: Descriptor, offset: Number, size: Length, flags: Number) Never;
    /// Makes a timer whose expirations are read, as a number of eight bytes. Clocks `CLOCK_REALTIME`, `CLOCK_MONOTONIC`
    /// and `CLOCK_BOOTTIME`; flags `TFD_NONBLOCK`, `TFD_CLOEXEC`.
    TimerFile = 85 timerfd_create(clock: Number, flags: Number) Never;
    /// Sets such a timer from a `struct itimerspec`, and writes what was left of the old setting, if asked for. Flags
    /// `TFD_TIMER_ABSTIME` and, without effect, `TFD_TIMER_CANCEL_ON_SET`.
    TimerFileSet = 86 timerfd_settime(descriptor: Descriptor, flags: Number, new: Input, old: Output) Never;
    /// Writes what is left of the setting of such a timer.
    TimerFileGet = 87 timerfd_gettime(descriptor: Descriptor, current: Output) Never;
    /// Sets the times of access and modification of the file at a path, or of an open file if the path is 0: two
    /// `struct timespec` (0: now), with `UTIME_NOW` and `UTIME_OMIT`.
    SetTimes = 88 utimensat(directory: Descriptor, path: Path, times: Input, flags: Number) Never;
    /// Writes the capabilities of a process (0: the caller): [`crate::authority::Held`].
    GetCapabilities = 90 capget(header: Output, data: Output) Never;
    /// Changes the capabilities of a process. The caller may give up its own, make permitted ones effective, and let
    /// its children inherit permitted ones; processes below it may be given those that it has. `EPERM` for more.
    SetCapabilities = 91 capset(header: Input, data: Input) Never;
    /// Tells the execution domain, which is always 0 (`PER_LINUX`); all ones ask for it, and no other is there
    /// (`EINVAL`).
    Personality = 92 personality(domain: Number) Never;
    /// Ends the calling worker or thread; the last one ends the process.
    Exit = 93 exit(status: Number) Never by Worker;
    /// Ends the process with all its workers.
    ExitGroup = 94 exit_group(status: Number) Never by Worker;
    /// Waits for a change of a child, and writes it as `siginfo_t`: any child (`P_ALL`), one (`P_PID`), or those of a
    /// group (`P_PGID`, 0 being the caller's). Options `WEXITED`, `WSTOPPED`, `WCONTINUED`, of which one is needed,
    /// `WNOHANG`, and `WNOWAIT` to leave the change for another wait. `P_PIDFD` is the process of a descriptor;
    /// `EAGAIN` instead of waiting if that does not wait.
    WaitIdentified = 95 waitid(kind: Number, id: Number, information: Output, options: Number, usage: Output) Possible;
    /// Chooses a 32-bit word that becomes 0, and whose futex is woken, when the calling thread ends (0: none); returns
    /// the caller's number.
    SetThreadIdAddress = 96 set_tid_address(address: Number) Never by Worker;
    /// Waits while a 32-bit word has a value, and wakes waiting threads: `FUTEX_WAIT`, `WAKE`, `REQUEUE`,
    /// `CMP_REQUEUE`, `WAKE_OP`, `WAIT_BITSET`, `WAKE_BITSET`; and takes and passes on locks with owners, which inherit
    /// priorities: `LOCK_PI`, `LOCK_PI2`, `TRYLOCK_PI`, `UNLOCK_PI`. A word is identified by its address in its
    /// process, or by its place in memory that processes have in common; other operations give `ENOSYS`.
    Futex = 98 futex(word: Number, operation: Number, value: Number, timeout: Input, word2: Number, value3: Number) Possible;
    /// Sets the calling thread's list of robust locks, which are marked when it ends with them held.
    SetRobustList = 99 set_robust_list(head: Number, size: Length) Never by Worker;
    /// Writes the address of the list of robust locks of a thread of the calling process (0: the caller).
    GetRobustList = 100 get_robust_list(thread: Number, head: Output, size: Output) Never;
    /// Sleeps for a relative time. Nothing interrupts a sleep but the end of the process, so `remaining` is never
    /// written.
    Sleep = 101 nanosleep(duration: Input, remaining: Output) Possible;
    /// Writes what is left of one of the interval timers (`ITIMER_REAL`, `VIRTUAL`, `PROF`), as a `struct itimerval`.
    GetIntervalTimer = 102 getitimer(which: Number, current: Output) Never;
    /// Sets one of the interval timers, and writes what was left of the old setting, if asked for. They send `SIGALRM`,
    /// `SIGVTALRM` and `SIGPROF`. `VIRTUAL` and `PROF` count the same processor time.
    SetIntervalTimer = 103 setitimer(which: Number, new: Input, old: Output) Never;
    /// Makes a timer that sends a signal, and writes its number, a `i32`. `event` is a `struct sigevent`, or 0 for
    /// `SIGALRM` with the timer's number as its value; `SIGEV_SIGNAL`, `SIGEV_NONE`, `SIGEV_THREAD` and
    /// `SIGEV_THREAD_ID` are known. Clocks `CLOCK_REALTIME`, `CLOCK_MONOTONIC`, `CLOCK_BOOTTIME` and
    /// `CLOCK_PROCESS_CPUTIME_ID`; other known ones are `EOPNOTSUPP`. `EAGAIN` if the process has 256 timers.
    TimerCreate = 107 timer_create(clock: Number, event: Input, timer: Output) Never;
    /// Writes what is left of the setting of a timer, as a `struct itimerspec`.
    TimerGet = 108 timer_gettime(timer: Number, current: Output) Never;
    /// Returns the number of expirations that were missed before the timer's last signal.
    TimerOverrun = 109 timer_getoverrun(timer: Number) Never;
    /// Sets a timer from a `struct itimerspec`, and writes what was left of the old setting, if asked for. The only
    /// flag is `TIMER_ABSTIME`.
    TimerSet = 110 timer_settime(timer: Number, flags: Number, new: Input, old: Output) Never;
    /// Deletes a timer.
    TimerDelete = 111 timer_delete(timer: Number) Never;
    /// Reads a clock.
    GetTime = 113 clock_gettime(clock: Number, time: Output) Never;
    /// Reads the resolution of a clock.
    GetResolution = 114 clock_getres(clock: Number, resolution: Output) Never;
    /// Sleeps for a relative time or until an absolute one (`TIMER_ABSTIME`). `remaining` is never written.
    SleepOn = 115 clock_nanosleep(clock: Number, flags: Number, time: Input, remaining: Output) Possible;
    /// Debugging of other programs, which there is not: `EPERM`.
    Trace = 117 ptrace(request: Number, process: Number, address: Number, data: Number) Never;
    /// Sets the real-time priority of a process (0: the caller) within its class: 0, or 1 to 99 for `SCHED_FIFO` and
    /// `SCHED_RR`.
    SetClassPriority = 118 sched_setparam(process: Number, parameter: Input) Never;
    /// Sets the class of a process (0: the caller), and its real-time priority, which decide its priority while it
    /// publishes none: `SCHED_OTHER` and `SCHED_BATCH` (0) leave it to the nice value, `SCHED_IDLE` (0) is the last one
    /// in front of used-up budgets, `SCHED_FIFO` and `SCHED_RR` (1 to 99) are the first four; those need
    /// `CAP_SYS_NICE`, as does leaving `SCHED_IDLE`. A child has its parent's class; with `SCHED_RESET_ON_FORK` none of
    /// real time and no nice value below 0. A class is the whole process's, and the number may be that of any of its
    /// threads.
    SetClass = 119 sched_setscheduler(process: Number, class: Number, parameter: Input) Never;
    /// Returns the class of a process, with `SCHED_RESET_ON_FORK`.
    GetClass = 120 sched_getscheduler(process: Number) Never;
    /// Writes the real-time priority of a process, a `i32`.
    GetClassPriority = 121 sched_getparam(process: Number, parameter: Output) Never;
    /// Chooses harts for a thread (0: the caller), of which one at least is there (`EINVAL`). The choice is told to
    /// programs that count harts; work goes to whichever is free.
    SetAffinity = 122 sched_setaffinity(thread: Number, size: Length, mask: Input) Never;
    /// Writes the harts that a thread (0: the caller) has chosen as a bit mask; returns its size.
    GetAffinity = 123 sched_getaffinity(thread: Number, size: Length, mask: Output) Never;
    /// Lets other processes of the same priority run.
    Yield = 124 sched_yield() Never by Worker;
    /// Returns the greatest real-time priority of a class.
    GreatestClassPriority = 125 sched_get_priority_max(class: Number) Never;
    /// Returns the least real-time priority of a class.
    LeastClassPriority = 126 sched_get_priority_min(class: Number) Never;
    /// Writes the time for which a process runs before others of its priority: the interval of the tick, or 0 for
    /// `SCHED_FIFO`, which has one, too.
    GetSlice = 127 sched_rr_get_interval(process: Number, interval: Output) Never;
    /// Ends a process (there are no signal handlers: a signal's default action is taken), or all of a process group: 0
    /// is the caller's, a negative number the group of that number, and -1 are all but the first process and the
    /// caller. Processes that the caller may not signal are left out; `EPERM` if all are.
    Kill = 129 kill(process: Number, signal: Number) Never;
    /// Sends a signal to a thread of any process.
    KillThread = 130 tkill(thread: Number, signal: Number) Never;
    /// Sends a signal to a thread of a process.
    KillThreadOf = 131 tgkill(process: Number, thread: Number, signal: Number) Never;
    /// Sets the caller's stack for handlers, and returns the old one; at least 2,048 bytes. `EPERM` while a handler
    /// runs on it.
    SignalStack = 132 sigaltstack(stack: Input, old: Output) Never by Worker;
    /// Blocks these signals instead of the present ones until a handler has run; the result is always `EINTR`.
    SignalSuspend = 133 rt_sigsuspend(mask: Input, size: Length) Possible by Worker;
    /// Sets the action of a signal, and returns the old one. Flags `SA_NOCLDSTOP`, `SA_NOCLDWAIT`, `SA_SIGINFO`,
    /// `SA_ONSTACK`, `SA_RESTART`, `SA_NODEFER`, `SA_RESETHAND`.
    SignalAction = 134 rt_sigaction(signal: Number, action: Input, old: Output, size: Length) Never;
    /// Changes the signals that the caller blocks, and returns the old ones.
    SignalMask = 135 rt_sigprocmask(how: Number, set: Input, old: Output, size: Length) Never by Worker;
    /// Returns the signals that are pending and blocked.
    SignalPending = 136 rt_sigpending(set: Output, size: Length) Never by Worker;
    /// Waits until one of some blocked signals is pending, and takes it. `EAGAIN` after the time limit.
    SignalWait = 137 rt_sigtimedwait(set: Input, information: Output, timeout: Input, size: Length) Possible by Worker;
    /// Sends a signal to a process with information of the caller's own. At most 256 signals queue with their
    /// information in a process; a real-time signal beyond that is `EAGAIN`.
    SignalQueue = 138 rt_sigqueueinfo(process: Number, signal: Number, information: Input) Never;
    /// Returns from a handler: takes registers, blocked signals and stack from the frame at the stack pointer.
    SignalReturn = 139 rt_sigreturn() Never by Worker;
    /// Sets the nice value of a process (0: the caller), of the processes of a group (0: the caller's) or of the user
    /// (0), which changes the priority of those that publish none: by one for each step up, and for each five steps
    /// down. `EPERM` for a process that is not below the caller, `EACCES` to lower the value; `CAP_SYS_NICE` permits
    /// all. Of several processes, the others are changed.
    SetNice = 140 setpriority(which: Number, process: Number, nice: Number) Never;
    /// Returns 20 minus the nice value of a process (0: the caller), or of the most important one of a group or a user.
    GetNice = 141 getpriority(which: Number, process: Number) Never;
    /// Ends the machine: power off and halt switch it off, restart resets it.
    Reboot = 142 reboot(magic: Number, magic2: Number, command: Number, argument: Number) Never;
    /// Sets the real and the effective group; -1 leaves one as it is. `EPERM` for others than the caller's own, unless
    /// its effective user is 0.
    SetGroupPair = 143 setregid(real: Number, effective: Number) Never;
    /// Sets the effective group, and the real and the saved one if the effective user is 0. `EPERM` for others than the
    /// caller's own, `EINVAL` for -1.
    SetGroup = 144 setgid(group: Number) Never;
    /// Sets the real and the effective user; -1 leaves one as it is. `EPERM` for others than the caller's own, unless
    /// its effective user is 0.
    SetUserPair = 145 setreuid(real: Number, effective: Number) Never;
    /// Sets the effective user, and the real and the saved one if the effective user is 0. `EPERM` for others than the
    /// caller's own, `EINVAL` for -1. A process of which no user is 0 any more has no capabilities, unless it keeps the
    /// permitted ones (`PR_SET_KEEPCAPS`).
    SetUser = 146 setuid(user: Number) Never;
    /// Sets the real, the effective and the saved user; -1 leaves one as it is. `EPERM` for others than the caller's
    /// own, unless its effective user is 0.
    SetUserTriple = 147 setresuid(real: Number, effective: Number, saved: Number) Never;
    /// Writes the real, the effective and the saved user, as three `u32`.
    GetUserTriple = 148 getresuid(real: Output, effective: Output, saved: Output) Never;
    /// Sets the real, the effective and the saved group; -1 leaves one as it is. `EPERM` for others than the caller's
    /// own, unless its effective user is 0.
    SetGroupTriple = 149 setresgid(real: Number, effective: Number, saved: Number) Never;
    /// Writes the real, the effective and the saved group, as three `u32`.
    GetGroupTriple = 150 getresgid(real: Output, effective: Output, saved: Output) Never;
    /// Sets the user whose rights count for files, if that is one of the caller's own or its effective user is 0;
    /// returns the one before.
    SetFileUser = 151 setfsuid(user: Number) Never;
    /// Sets the group whose rights count for files, if that is one of the caller's own or its effective user is 0;
    /// returns the one before.
    SetFileGroup = 152 setfsgid(group: Number) Never;
    /// Writes the processor time of the caller and of the children that it has waited for, in hundredths of a second;
    /// returns the time since the machine's start in the same unit. All of it counts as the program's own: the kernel's
    /// part is not told apart.
    Times = 153 times(times: Output) Never;
    /// Puts the caller (0) or one of its children into a process group: one of the caller's session, or its own (0).
    /// `EPERM` for the leader of a session and across sessions, `EACCES` for a child that has executed a program.
    SetProcessGroup = 154 setpgid(process: Number, group: Number) Never;
    /// Returns the process group of a process; 0 is the caller.
    GetProcessGroup = 155 getpgid(process: Number) Never;
    /// Returns the session of a process; 0 is the caller.
    GetSession = 156 getsid(process: Number) Never;
    /// Makes the caller the leader of a session and of a process group of its own, without a controlling terminal;
    /// returns their number. `EPERM` if it is the leader of a group.
    SetSession = 157 setsid() Never;
    /// Writes the further groups, as `u32`, and returns their number; only that if there is room for none. `EINVAL` if
    /// they do not fit.
    GetGroups = 158 getgroups(count: Number, groups: Output) Never;
    /// Sets the further groups: `EPERM` unless the effective user is 0, `EINVAL` for more than 64.
    SetGroups = 159 setgroups(count: Number, groups: Input) Never;
    /// Describes the system as `struct utsname`.
    SystemName = 160 uname(name: Output) Never;
    /// Reads a limit of the caller, as `prlimit64`.
    GetLimit = 163 getrlimit(resource: Number, limit: Output) Never;
    /// Sets a limit of the caller, as `prlimit64`.
    SetLimit = 164 setrlimit(resource: Number, limit: Input) Never;
    /// Writes the processor time used by the caller (`RUSAGE_SELF`), its calling worker (`RUSAGE_THREAD`) or the
    /// children that it has waited for (`RUSAGE_CHILDREN`), as the program's own. The other fields are 0.
    GetUsage = 165 getrusage(who: Number, usage: Output) Never;
    /// Sets the permissions that new files do not get; returns the old ones.
    SetCreationMask = 166 umask(mask: Number) Never;
    /// Reads or sets a property of the caller: `PR_SET_NAME` and `PR_GET_NAME`, of a thread or of the process with its
    /// workers; `PR_SET_NO_NEW_PRIVS`, which copies inherit, and `PR_GET_NO_NEW_PRIVS`; `PR_SET_PDEATHSIG` and
    /// `PR_GET_PDEATHSIG`, the signal at the end of its parent (as a process, not the thread that made it);
    /// `PR_SET_CHILD_SUBREAPER` and `PR_GET_CHILD_SUBREAPER`; `PR_GET_DUMPABLE` and `PR_SET_DUMPABLE`, whether a core
    /// file may be written; `PR_GET_KEEPCAPS` and `PR_SET_KEEPCAPS`, whether it is still permitted its capabilities
    /// when no user of it is 0 any more; `PR_GET_TIMERSLACK` and `PR_SET_TIMERSLACK`, the nanoseconds by which
    /// `nanosleep` and `clock_nanosleep` of a thread that waits may end late, 50,000 unless set. `EINVAL` for others.
    ProcessControl = 167 prctl(option: Number, second: Number, third: Number, fourth: Number, fifth: Number) Never by Worker;
    /// Writes the hart on which the call was made, and 0 as its node, if their addresses are not 0.
    GetHart = 168 getcpu(hart: Output, node: Output, unused: Number) Never by Worker;
    /// Writes the time of day as a `struct timeval`, and a time zone of zeros; an address of 0 leaves one out.
    GetTimeOfDay = 169 gettimeofday(time: Output, zone: Output) Never;
    /// Returns the caller's process number.
    GetProcess = 172 getpid() Never;
    /// Returns the number of the process that started the caller, or of the first process if that has ended; 0 for the
    /// first process itself.
    GetParent = 173 getppid() Never;
    /// Returns the real user.
    GetUser = 174 getuid() Never;
    /// Returns the effective user.
    GetEffectiveUser = 175 geteuid() Never;
    /// Returns the real group.
    GetGroup = 176 getgid() Never;
    /// Returns the effective group.
    GetEffectiveGroup = 177 getegid() Never;
    /// Returns the number of the calling worker or thread; that of worker 0 is the process number.
    GetThread = 178 gettid() Never;
    /// Describes memory, processes and the time since the start as `struct sysinfo`. The loads are 0.
    SystemInformation = 179 sysinfo(information: Output) Never;
    /// Opens a queue of messages by its name, in front of which the C library has taken a slash away, and makes it with
    /// `O_CREAT`: with the attributes' numbers of messages, at most 32, and of bytes of a message, at most 8,192, or 10
    /// and 8,192. `ENOSPC` beyond 256 queues. The descriptor is closed by `execve`.
    QueueOpen = 180 mq_open(name: Path, flags: Number, mode: Number, attributes: Input) Never;
    /// Takes a queue's name away; the queue lasts until it is closed. `EPERM` for a user that does not own it.
    QueueUnlink = 181 mq_unlink(name: Path) Never;
    /// Sends a message, behind those that are at least as important. Waits for room until this time of the day
    /// (`ETIMEDOUT`); `EMSGSIZE` for one that is too large.
    QueueSend = 182 mq_timedsend(queue: Descriptor, message: Input, size: Length, priority: Number, limit: Input) Possible;
    /// Receives the most important message that is there longest, and its priority; returns its length. Waits as
    /// `mq_timedsend`; `EMSGSIZE` for a buffer that has no room for the largest message.
    QueueReceive = 183 mq_timedreceive(queue: Descriptor, message: Output, size: Length, priority: Output, limit: Input) Possible;
    /// Has the process told by a signal, once, when a message comes to the empty queue and no call waits for it; or no
    /// more. `EBUSY` if a process is told already; `SIGEV_THREAD` is `EINVAL`.
    QueueNotify = 184 mq_notify(queue: Descriptor, notification: Input) Never;
    /// Tells the attributes of a queue, and sets `O_NONBLOCK` of its open file.
    QueueAttributes = 185 mq_getsetattr(queue: Descriptor, new: Input, old: Output) Never;
    /// Finds the set of semaphores with a key, or makes one of so many, with the flags of `shmget`; returns its number.
    SemaphoreGet = 190 semget(key: Number, count: Number, flags: Number) Never;
    /// Reads or sets semaphores (`GETVAL`, `SETVAL`, `GETALL`, `SETALL`), tells the last process (`GETPID`) and the
    /// numbers of waits (`GETNCNT`, `GETZCNT`), tells about the set (`IPC_STAT`), changes its mode
    /// (`IPC_SET`), or removes it (`IPC_RMID`). `EACCES` for another user whom the mode does not grant reading; `EPERM`
    /// for one that changes or removes it without `CAP_SYS_ADMIN`.
    SemaphoreControl = 191 semctl(set: Number, index: Number, command: Number, argument: Number) Never;
    /// Changes semaphores as `semop`, and waits for a limited time: `EAGAIN` then.
    SemaphoreOperateUntil = 192 semtimedop(set: Number, operations: Input, count: Length, timeout: Input) Possible;
    /// Changes up to 256 semaphores of a set at once, each a `struct sembuf`, and waits until all changes can be made:
    /// a value does not become negative, and a change by 0 needs the value 0. Flags `IPC_NOWAIT` (`EAGAIN`) and
    /// `SEM_UNDO`: the end of the process takes the change back. `EIDRM` if the set is removed; `EACCES` for another
    /// user unless the mode grants it.
    SemaphoreOperate = 193 semop(set: Number, operations: Input, count: Length) Possible;
    /// Finds the segment of shared memory with a key, or makes one (`IPC_CREAT`, `IPC_EXCL`, `IPC_PRIVATE`) of whole
    /// pages of zeros, which the caller pays for as they are used; returns its number. `ENOENT`, `EEXIST`; `EACCES`
    /// for another user if the mode does not grant what the flags ask for; `EINVAL` for a size that it does not have,
    /// and for huge pages.
    SegmentGet = 194 shmget(key: Number, size: Length, flags: Number) Never;
    /// Tells about a segment (`IPC_STAT`), changes its mode (`IPC_SET`), or removes it when its last mapping goes
    /// (`IPC_RMID`); `SHM_LOCK` and `SHM_UNLOCK` have no effect. `EACCES` for another user whom the mode does not grant
    /// reading; `EPERM` for one that changes or removes it without `CAP_SYS_ADMIN`.
    SegmentControl = 195 shmctl(segment: Number, command: Number, status: Output) Never;
    /// Maps a segment, anywhere or at an address, with the flags `SHM_RDONLY`, `SHM_RND`, `SHM_REMAP` and, with
    /// `SHM_RDONLY`, `SHM_EXEC`; returns the address. `EACCES` for another user unless the mode grants it.
    SegmentAttach = 196 shmat(segment: Number, address: Number, flags: Number) Never;
    /// Unmaps the segment that is mapped at an address.
    SegmentDetach = 197 shmdt(address: Number) Never;
    /// Creates a socket of `AF_INET`, `AF_INET6`, `AF_UNIX` or `AF_NETLINK`.
    Socket = 198 socket(family: Number, kind: Number, protocol: Number) Never;
    /// Creates two local sockets that are connected to each other (`AF_UNIX`), of kind `SOCK_STREAM`, `SOCK_DGRAM` or
    /// `SOCK_SEQPACKET`, with flags `SOCK_NONBLOCK` and `SOCK_CLOEXEC`; the two descriptors are written as two `i32`.
    /// `EOPNOTSUPP` for other families.
    SocketPair = 199 socketpair(family: Number, kind: Number, protocol: Number, descriptors: Output) Never;
    /// Gives a socket its local address; of a local socket, its name: a path, whose file is made, an abstract name, or
    /// with the family alone any.
    Bind = 200 bind(descriptor: Descriptor, address: Input, size: Length) Never;
    /// Makes a socket accept connections.
    Listen = 201 listen(descriptor: Descriptor, backlog: Number) Never;
    /// Takes the next connection of a listening socket.
    Accept = 202 accept(descriptor: Descriptor, address: Output, size: Output) Possible;
    /// Connects a socket to a remote address; a local socket to the one with a name, in whose backlog it waits for a
    /// place.
    Connect = 203 connect(descriptor: Descriptor, address: Input, size: Length) Possible;
    /// Writes the local address of a socket.
    GetSocketName = 204 getsockname(descriptor: Descriptor, address: Output, size: Output) Never;
    /// Writes the remote address of a socket.
    GetPeerName = 205 getpeername(descriptor: Descriptor, address: Output, size: Output) Never;
    /// Sends a message.
    SendTo = 206 sendto(descriptor: Descriptor, buffer: Input, size: Length, flags: Number, address: Input, address_size: Length) Possible;
    /// Receives a message.
    ReceiveFrom = 207 recvfrom(descriptor: Descriptor, buffer: Output, size: Length, flags: Number, address: Output, address_size: Output) Possible;
    /// Sets an option of a socket.
    SetSocketOption = 208 setsockopt(descriptor: Descriptor, level: Number, option: Number, value: Input, size: Length) Never;
    /// Reads an option of a socket.
    GetSocketOption = 209 getsockopt(descriptor: Descriptor, level: Number, option: Number, value: Output, size: Output) Never;
    /// Ends one or both directions of a connection.
    Shutdown = 210 shutdown(descriptor: Descriptor, how: Number) Never;
    /// Sends a message from several buffers, and through a local socket open files with it (`SCM_RIGHTS`): at most 253.
    /// `ETOOMANYREFS` if more files than the process may have descriptors are in messages that were not received.
    SendMessage = 211 sendmsg(descriptor: Descriptor, message: Input, flags: Number) Possible;
    /// Receives a message into several buffers, with the open files that came with it. Flags `MSG_DONTWAIT`,
    /// `MSG_PEEK`, `MSG_TRUNC`, `MSG_WAITALL` and `MSG_CMSG_CLOEXEC`.
    ReceiveMessage = 212 recvmsg(descriptor: Descriptor, message: Output, flags: Number) Possible;
    /// Takes advice to read a part of a file, without effect. `EINVAL` for what is no file.
    ReadAhead = 213 readahead(descriptor: Descriptor, offset: Number, size: Length) Never;
    /// Moves the end of the heap; returns the end that is in force.
    Break = 214 brk(end: Number) Never;
    /// Removes mappings.
    Unmap = 215 munmap(address: Number, size: Length) Never;
    /// Changes the length or the place of a mapping, with `MREMAP_MAYMOVE` and `MREMAP_FIXED`. Private pages are copied
    /// to a new place. A shared mapping with length 0 is mapped a second time. `EFAULT` if the range is not one mapping
    /// with the same protection everywhere, `ENOMEM` if it cannot grow in place and may not move.
    Remap = 216 mremap(address: Number, size: Length, new_size: Length, flags: Number, new_address: Number) Never;
    /// Starts a thread or a copy of the process, which goes on with 0; returns its number. The flags of a thread are
    /// `CLONE_VM`, `FS`, `FILES`, `SIGHAND` and `THREAD`, those of a process none of these, or `VM` with `VFORK`. Both
    /// may have `SETTLS`, `PARENT_SETTID`, `CHILD_SETTID`, `CHILD_CLEARTID` and `SYSVSEM`, a thread `DETACHED`. A copy
    /// has memory of its own, which is copied when it is written. With `VM` and `VFORK` it has its parent's until it
    /// executes a program or ends, for which the parent waits, and whose end ends it. `SIGCHLD` tells the end. `EINVAL`
    /// for flags that contradict each other, `ENOSYS` for other combinations, `EAGAIN` if there are too many threads or
    /// processes.
    Clone = 220 clone(flags: Number, stack: Number, parent_word: Number, thread_pointer: Number, child_word: Number) Never by Worker;
    /// Replaces the program of the calling process.
    Execute = 221 execve(path: Path, arguments: Input, environment: Input) Never by Worker;
    /// Maps anonymous memory, private or in common with later copies of the process (`MAP_SHARED`); or a private copy
    /// of a file; or with `MAP_SHARED` the pages of a file, as far as it goes now. `EACCES` if such a file is not open
    /// for reading, or not for writing what is mapped writable.
    Map = 222 mmap(address: Number, size: Length, protection: Number, flags: Number, descriptor: Descriptor, offset: Number) Never;
    /// Takes advice about a file, without effect. `ESPIPE` for what is no file.
    AdviseFile = 223 fadvise64(descriptor: Descriptor, offset: Number, size: Length, advice: Number) Never;
    /// Changes the protection of mappings.
    Protect = 226 mprotect(address: Number, size: Length, protection: Number) Never;
    /// Writes a range of mappings of files back, which is no work, since the file and its shared mappings are the same.
    /// `ENOMEM` if a part of the range is not mapped.
    SynchroniseMemory = 227 msync(address: Number, size: Length, flags: Number) Never;
    /// Keeps a range of memory in memory, where all of it is anyway; does not make its pages. `ENOMEM` if a part of the
    /// range is not mapped.
    LockMemory = 228 mlock(address: Number, size: Length) Never;
    /// Undoes `mlock`.
    UnlockMemory = 229 munlock(address: Number, size: Length) Never;
    /// Keeps all memory in memory, where it is anyway: `MCL_CURRENT`, `MCL_FUTURE` and `MCL_ONFAULT`.
    LockAllMemory = 230 mlockall(flags: Number) Never;
    /// Undoes `mlockall`.
    UnlockAllMemory = 231 munlockall() Never;
    /// Writes a byte for each page of a range: 1 if it is there, as those of files and memory in common always count, 0
    /// if its first use makes it. `ENOMEM` if a part of the range is not mapped.
    Residence = 232 mincore(address: Number, size: Length, pages: Output) Never;
    /// Takes advice about memory. `MADV_DONTNEED` gives the pages of private anonymous memory back, which then reads as
    /// zeros; other advice has no effect.
    AdviseMemory = 233 madvise(address: Number, size: Length, advice: Number) Never;
    /// Sends a signal to a thread of a process with information of the caller's own, as `rt_sigqueueinfo`.
    SignalQueueThread = 240 rt_tgsigqueueinfo(process: Number, thread: Number, signal: Number, information: Input) Never;
    /// Takes a connection as `accept` does, with flags for the new descriptor.
    AcceptWith = 242 accept4(descriptor: Descriptor, address: Output, size: Output, flags: Number) Possible;
    /// Receives up to `count` messages (1,024 at most), as `recvmsg` does, into an array of `struct mmsghdr`, each of
    /// which gets the length of its message; returns their number. With `MSG_WAITFORONE` it waits for the first one
    /// only. The time limit, in which the rest is left, is looked at after each message. A failure after the first
    /// message is left for the next call.
    ReceiveMessages = 243 recvmmsg(descriptor: Descriptor, messages: Output, count: Number, flags: Number, timeout: Output) Possible;
    /// Lets all harts of the process, or with the flag 1 at least the caller's, execute the instructions that it has
    /// written. The range has no effect: all of the memory is meant.
    FlushInstructions = 259 riscv_flush_icache(start: Number, end: Number, flags: Number) Never by Worker;
    /// Waits for a child to end; takes its status. -1 is any child, 0 any of the caller's process group, a negative
    /// number any of the group of that number.
    Wait = 260 wait4(process: Number, status: Output, options: Number, usage: Output) Possible;
    /// Reads and sets a limit of a process (0: the caller). Limits of amounts (`RLIMIT_NPROC` and those of COPS from
    /// 0x1000 on: kernel memory, file memory, calls in flight) hold for the process together with all that it starts
    /// afterwards; `RLIMIT_NOFILE`, `RLIMIT_AS` and `RLIMIT_CORE` for each; Linux's other limits limit
    /// nothing.
    ProcessLimit = 261 prlimit64(process: Number, resource: Number, new: Input, old: Output) Never;
    /// Does nothing, as `sync`.
    SynchroniseFileSystem = 267 syncfs(descriptor: Descriptor) Never;
    /// Sends up to `count` messages (1,024 at most), as `sendmsg` does, from an array of `struct mmsghdr`, each of
    /// which gets the number of bytes that were sent; returns their number, unless the first one failed.
    SendMessages = 269 sendmmsg(descriptor: Descriptor, messages: Output, count: Number, flags: Number) Possible;
    /// Renames a file or directory. `EBUSY` also if both directories are hundreds deep and others are moved meanwhile,
    /// again and again.
    Rename = 276 renameat2(old_directory: Descriptor, old: Path, new_directory: Descriptor, new: Path, flags: Number) Never;
    /// Fills a buffer with random bytes; waits until the generator has a seed, unless a flag says otherwise.
    GetRandom = 278 getrandom(buffer: Output, size: Length, flags: Number) Possible;
    /// Makes an empty file without a name, open for reading and writing, which can be sealed with the flag
    /// `MFD_ALLOW_SEALING`. `EINVAL` for other flags than that, `MFD_CLOEXEC` and `MFD_EXEC`, and for a name of more
    /// than 249 bytes; the name has no effect.
    MemoryFile = 279 memfd_create(name: Path, flags: Number) Never;
    /// Replaces the program of the calling process, as `execve`, by one at a path from an open directory, or with
    /// `AT_EMPTY_PATH` and an empty path by an open file. The interpreter of a script finds it under `/dev/fd`, so it
    /// is `ENOENT` if its descriptor is closed by `execve`. `EINVAL` for other flags.
    ExecuteAt = 281 execveat(directory: Descriptor, path: Path, arguments: Input, environment: Input, flags: Number) Never by Worker;
    /// Orders the accesses to memory of the harts of this process (`MEMBARRIER_CMD_PRIVATE_EXPEDITED`), with their
    /// fetches of instructions (`…_SYNC_CORE`), or of all (`GLOBAL`); the first two need their registration (`EPERM`).
    /// `QUERY` tells the commands that there are, `GET_REGISTRATIONS` those for which the process has registered.
    MemoryBarrier = 283 membarrier(command: Number, flags: Number, hart: Number) Never by Worker;
    /// Keeps a range of memory in memory, as `mlock`; the flag `MLOCK_ONFAULT` has no effect.
    LockMemoryWith = 284 mlock2(address: Number, size: Length, flags: Number) Never;
    /// Copies bytes of a regular file to a place in a regular file. The places are moved on; if the address of one is
    /// 0, it is the file's position. `EINVAL` for other files, `EBADF` for an output with `O_APPEND`.
    CopyFileRange = 285 copy_file_range(input: Descriptor, from: Output, output: Descriptor, to: Output, size: Length, flags: Number) Possible;

    /// Reads as `preadv`, or at the file's position if the offset is -1. Of the flags there is `RWF_HIPRI`, a hint.
    ReadVectorWith = 286 preadv2(descriptor: Descriptor, vector: Input, count: Number, offset: Number, high: Number, flags: Number) Possible;
    /// Writes as `pwritev`, or at the file's position if the offset is -1, with the flags of `preadv2`.
    WriteVectorWith = 287 pwritev2(descriptor: Descriptor, vector: Input, count: Number, offset: Number, high: Number, flags: Number) Possible;
    /// Describes the file at a path, or an open file, as `struct statx`.
    ExtendedStatus = 291 statx(directory: Descriptor, path: Path, flags: Number, mask: Number, status: Output) Never;
    /// Sends a signal to the process of a descriptor, which can be that of its directory in `/proc`, as `kill`, or with
    /// information (0: none), as `rt_sigqueueinfo`; `ESRCH` if its parent has waited for it. There are no flags.
    SignalProcessFile = 424 pidfd_send_signal(descriptor: Descriptor, signal: Number, information: Input, flags: Number) Never;
    /// Opens a process, or one that has ended and that its parent has not waited for; the flag is `PIDFD_NONBLOCK`. The
    /// descriptor is ready for input when the process has ended, and is closed by `execve`. `EINVAL` for the number of
    /// a thread.
    ProcessFile = 434 pidfd_open(process: Number, flags: Number) Never;
    /// Starts a thread or a copy of the process, as `clone`, from a `struct clone_args` of 64 bytes or more. Also has
    /// the flag `CLONE_CLEAR_SIGHAND`, with which the copy has no handlers. `EINVAL` for a stack without a length and
    /// the other way round, `E2BIG` for a longer structure with unknown parts that are not 0.
    CloneWith = 435 clone3(arguments: Input, size: Length) Never by Worker;
    /// Closes the descriptors of a range, or with `CLOSE_RANGE_CLOEXEC` lets `execve` close them.
    CloseRange = 436 close_range(first: Number, last: Number, flags: Number) Never;
    /// Opens a file that the process of a descriptor has open; `EPERM` unless that is the caller or below it, or the
    /// caller has `CAP_SETPCAP`.
    TakeFile = 438 pidfd_getfd(process: Descriptor, descriptor: Number, flags: Number) Never;
    /// Checks whether a path can be accessed, with `AT_EACCESS`, `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH`.
    AccessWith = 439 faccessat2(directory: Descriptor, path: Path, mode: Number, flags: Number) Never;
    /// Waits as `epoll_pwait`, with a time limit as a `struct timespec` (0: none).
    EpollWaitWith = 441 epoll_pwait2(descriptor: Descriptor, events: Output, count: Number, timeout: Input, mask: Input, size: Length) Possible;
    /// Waits until one of up to 128 words is woken, if each has its value (`EAGAIN`), and returns its index. The words
    /// are a `struct futex_waitv` each; the time limit is absolute, by `CLOCK_MONOTONIC` or `CLOCK_REALTIME`.
    FutexWaits = 449 futex_waitv(waiters: Input, count: Number, flags: Number, timeout: Input, clock: Number) Possible;
    /// Sets the permissions of the file at a path, with `AT_EMPTY_PATH`. `EOPNOTSUPP` for a symbolic link itself.
    ChangeModeWith = 452 fchmodat2(directory: Descriptor, path: Path, mode: Number, flags: Number) Never;
    /// Starts a program in a new process: path, NULL-terminated argument and environment lists as for `execve`, the
    /// address of the three descriptors that become its 0, 1 and 2, as three `i32` (-1: none), and its priority until
    /// it publishes one itself (all ones: the caller's). Returns the process number.
    Spawn = 0x1000 spawn(path: Path, arguments: Input, environment: Input, descriptors: Input, priority: Number) Never;
    /// Adds a worker to the calling process: it starts at `entry` with `argument` in `a0` and its index in `a1`.
    /// Returns the index.
    WorkerCreate = 0x1001 worker_create(entry: Number, stack: Number, argument: Number, thread_pointer: Number) Never;
    /// The calling worker sleeps until a completion beyond `seen` (the last known tail of the ring) has been posted,
    /// another worker wakes it, or `timeout` nanoseconds have passed (all ones: no limit).
    WorkerWait = 0x1002 worker_wait(seen: Number, timeout: Number) Possible by Worker;
    /// Wakes a worker of the calling process, now or at its next `worker_wait`.
    WorkerWake = 0x1003 worker_wake(index: Number) Never;
    /// Requests the early end of the asynchronous call with this token; its completion comes in any case, with
    /// `ECANCELED` if the call was stopped. `ENOENT` if no call with this token is in flight.
    Cancel = 0x1004 cancel(token: Number) Never;
    /// Copies the kernel's counters, an array of `u64` in the order of [`crate::Counter`]; returns their number.
    Counters = 0x1005 counters(buffer: Output, size: Length) Never;
    /// Sets the handler of user interrupts of the calling worker; 0 takes it away. The handler is entered on the stack
    /// of the interrupted code, with four words at the stack pointer: program counter, `a7`, stack pointer, padding. It
    /// preserves all registers but `a7` and `sp`, and ends with `interrupt_return`. It interrupts neither itself nor
    /// the scheduler's image. Threads have none (`EINVAL`).
    InterruptHandler = 0x1006 interrupt_handler(entry: Number) Never by Worker;
    /// Returns from a user interrupt's handler, whose four words are at the stack pointer again, to the interrupted
    /// code; `EINVAL` outside of one.
    InterruptReturn = 0x1007 interrupt_return() Never by Worker;
    /// Leaves the handler for other code, on another stack: it may be entered again from now on, and its
    /// `interrupt_return` comes later. `EINVAL` outside of a handler.
    InterruptLeave = 0x1009 interrupt_leave() Never by Worker;
    /// Writes a line to the kernel's log.
    Log = 0x1008 log(buffer: Input, size: Length) Never;
    /// Gives the calling worker a request ring with so many entries (a power of two from 64 to 4,096) and returns its
    /// address. `completions`, if not 0, is the least number of entries of the completion ring, counted likewise.
    /// `EEXIST` if the worker has a ring, `EBUSY` if the completion ring is to grow and is not empty.
    RingSetup = 0x1010 ring_setup(requests: Number, completions: Number) Never by Worker;
    /// Makes the kernel take the requests in the ring of a worker of the calling process: all earlier ones are taken
    /// when it returns, unless more important work runs first. With `RING_WAKE` in `flags` another hart does it, if one
    /// is idle. `ENXIO` if the worker has no ring, `EPROTO` if its indexes made no sense, and from then on.
    RingEnter = 0x1011 ring_enter(worker: Number, flags: Number) Never by Worker;
    /// Makes the calling worker a receiver of user interrupts with this identity (1 to 62, each once in a process) and
    /// returns a descriptor for it. When the handler is called, a sent interrupt shows as bit `identity` of the
    /// worker's word in the process page. `EBUSY` if the process has a receiver of that identity, `EINVAL` for threads.
    /// Closing the descriptor ends every right to it.
    InterruptReceiver = 0x1020 interrupt_receiver(identity: Number) Never by Worker;
    /// Grants a process the right to send to a receiver of the caller. For the caller itself (its number, or 0) returns
    /// the right's descriptor, which can be passed on; another process gets its descriptor by `interrupt_open`. `EPERM`
    /// if the receiver is not the caller's.
    InterruptGrant = 0x1021 interrupt_grant(receiver: Descriptor, process: Number) Never;
    /// Returns a descriptor for the right that a process has granted to the caller for its receiver with this identity.
    /// `EPERM` if it has granted none.
    InterruptOpen = 0x1022 interrupt_open(process: Number, identity: Number) Never;
    /// Sends a user interrupt. `EPERM` if the right was revoked, `EPIPE` if the receiver is gone. Interrupts sent
    /// several times before the handler is called arrive once.
    InterruptSend = 0x1023 interrupt_send(right: Descriptor) Never;
    /// Ends a right, or all rights to a receiver that were granted so far. `EPERM` if the receiver is not the caller's.
    InterruptRevoke = 0x1024 interrupt_revoke(descriptor: Descriptor) Never;
    /// Returns the address of a word to which a store sends: the value to store is in the low 12 bits of the result,
    /// the rest is the address. With the back end `imsic` the store reaches the receiver's hart without the kernel;
    /// when it cannot, it enters the kernel, which acts as `interrupt_send` does, puts the result into `a0`, and
    /// continues behind the store. The page stays where it is: `munmap`, `mprotect` and a fixed `mmap` of it are
    /// `EINVAL`. With the back end `uintc` the result is below 4096 and no address: the index with which the
    /// instruction `uipi_send` sends. When it cannot reach the receiver, the kernel acts in the same way. `ENOSPC` if
    /// the process has the maximum number of such pages or indexes.
    InterruptPage = 0x1025 interrupt_page(right: Descriptor) Never;

    /// Writes the scheduling of a process (0: the caller), as [`crate::types::Scheduling`] or as much of it as fits;
    /// returns the size of all of it.
    GetScheduling = 0x1030 get_scheduling(process: Number, buffer: Output, size: Length) Never;
    /// Changes the scheduling of a process (0: the caller): an attribute of [`crate::types::scheduling`], its value,
    /// and for a budget the period. A process may make itself and those below it less important or frugal, those below
    /// it also as important as itself; `EPERM` for any other change.
    SetScheduling = 0x1031 set_scheduling(process: Number, attribute: Number, value: Number, period: Number) Never;
    /// Changes the scheduling of the system: an attribute of [`crate::types::system_scheduling`] and its value.
    SetSystemScheduling = 0x1032 set_system_scheduling(attribute: Number, value: Number) Never;
    /// Takes records of the scheduling trace, [`crate::trace::Record`]; returns their bytes. `ENODEV` if the kernel was
    /// not started with `trace=RECORDS`.
    TraceRead = 0x1033 trace_read(buffer: Output, size: Length) Never;
    /// Adds records about the caller's own coroutines to the trace, at most [`crate::trace::MOST_RECORDS_AT_ONCE`];
    /// returns the number of bytes taken. `ENODEV` if there is no trace.
    TraceWrite = 0x1034 trace_write(buffer: Input, size: Length) Never;
    /// Writes the present state of harts or processes ([`crate::trace::subject`]), as many as fit, processes from the
    /// number above `above` on; or the latencies of requests at the priority `above`. Returns their number.
    Snapshot = 0x1035 snapshot(subject: Number, above: Number, buffer: Output, size: Length) Never;
    /// Chooses the carrier of calls in the kernel, for the caller and all workers and threads that its process starts
    /// from then on: 0 coroutines, 1 kernel threads that wait, 2 kernel threads that try again until a transfer is
    /// done, 3 as 1, with one kernel thread that polls all asynchronous transfers. For comparisons; `execve` goes back
    /// to 0. A caller that has a kernel thread already keeps it.
    KernelSide = 0x1040 kernel_side(side: Number) Never by Worker;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_and_unique() {
        for (position, &call) in SystemCall::ALL.iter().enumerate() {
            assert_eq!(SystemCall::from_number(call as usize), Some(call));
            assert!(call.arguments().len() <= 6, "{}", call.name());
            assert!(SystemCall::ALL[..position].iter().all(|&other| other as usize != call as usize));
            assert!((call as usize) <= NUMBER_MASK);
        }
    }

    #[test]
    fn numbers_are_those_of_linux() {
        // asm-generic/unistd.h, the table that riscv64 uses.
        for (name, number) in [
            ("getcwd", 17),
            ("openat", 56),
            ("pipe2", 59),
            ("read", 63),
            ("write", 64),
            ("exit_group", 94),
            ("nanosleep", 101),
            ("clock_gettime", 113),
            ("setpgid", 154),
            ("getpid", 172),
            ("socket", 198),
            ("mmap", 222),
            ("accept4", 242),
            ("recvmmsg", 243),
            ("sendmmsg", 269),
            ("wait4", 260),
            ("prlimit64", 261),
            ("getrandom", 278),
        ] {
            assert_eq!(SystemCall::from_number(number).map(SystemCall::name), Some(name));
        }
    }

    #[test]
    fn every_call_is_described_in_sentences() {
        for call in SystemCall::ALL {
            let text = call.description();
            assert!(text.ends_with('.') && !text.starts_with(' ') && !text.contains("  "), "{}: {text}", call.name());
        }
    }

    #[test]
    fn unknown_numbers_are_unknown() {
        assert_eq!(SystemCall::from_number(0xfff), None);
        assert_eq!(SystemCall::from_number(usize::MAX), None);
    }

    #[test]
    fn will_be_posted_is_no_result() {
        const { assert!(WILL_BE_POSTED < usize::MAX - 4094) };
        const { assert!(WILL_BE_POSTED > 1 << 40) };
    }
}
