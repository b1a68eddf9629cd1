//! The numbers and structures of the calls beside Linux's own definition for riscv64 (`linux-raw-sys`, which is made of
//! Linux's headers).
//!
//! The numbers are compared when the suite is compiled, for this is the only target that has them all. The structures
//! are compared when it runs, since the system's are made of bytes: each field of one that is filled with different
//! values must lie where Linux has it, with Linux's width.

use abi_unix::types::{self, MessageHeader, SocketAddress, Status, Termios, TimeSpec};
use abi_unix::{Errno, SystemCall};
use linux_raw_sys::{general, net};

use crate::check_eq;
use crate::harness::Outcome;

/// Compares numbers of a module with those of Linux; the pairs are our name and Linux's.
macro_rules! same {
    ($($ours:ident)::+, $linux:ident: $($name:ident $theirs:ident;)*) => {
        const _: () = {
            use abi_unix::$($ours)::+ as ours;
            use linux_raw_sys::$linux as linux;
            $(assert!(ours::$name as i128 == linux::$theirs as i128, stringify!($theirs));)*
        };
    };
}

same! { types, general:
    AT_FDCWD AT_FDCWD; AT_SYMLINK_NOFOLLOW AT_SYMLINK_NOFOLLOW; AT_REMOVEDIR AT_REMOVEDIR;
    AT_EMPTY_PATH AT_EMPTY_PATH; AT_EACCESS AT_EACCESS; AT_NO_AUTOMOUNT AT_NO_AUTOMOUNT; UTIME_NOW UTIME_NOW;
    UTIME_OMIT UTIME_OMIT; SEEK_SET SEEK_SET; SEEK_CUR SEEK_CUR; SEEK_END SEEK_END;
    SEEK_DATA SEEK_DATA; SEEK_HOLE SEEK_HOLE;
    EFD_SEMAPHORE EFD_SEMAPHORE; WNOHANG WNOHANG; WUNTRACED WUNTRACED; WEXITED WEXITED; WNOWAIT WNOWAIT;
    WCONTINUED WCONTINUED;
}
same! { types, general: RWF_HIPRI RWF_HIPRI; }
same! { types, net:
    AF_UNIX AF_UNIX; AF_INET AF_INET; AF_INET6 AF_INET6; AF_UNSPEC AF_UNSPEC; AF_PACKET AF_PACKET;
    SOCK_STREAM SOCK_STREAM;
    SOCK_DGRAM SOCK_DGRAM; SOCK_SEQPACKET SOCK_SEQPACKET; SHUT_RD SHUT_RD; SHUT_WR SHUT_WR;
    SHUT_RDWR SHUT_RDWR;
}
same! { types::limit, general:
    STACK RLIMIT_STACK; CORE RLIMIT_CORE; PROCESSES RLIMIT_NPROC; DESCRIPTORS RLIMIT_NOFILE;
    ADDRESS_SPACE RLIMIT_AS; COUNT RLIM_NLIMITS;
}
same! { types::usage, general:
    PROCESS RUSAGE_SELF; CHILDREN RUSAGE_CHILDREN; WORKER RUSAGE_THREAD;
}
same! { types::mode, general:
    TYPE S_IFMT; SOCKET S_IFSOCK; LINK S_IFLNK; REGULAR S_IFREG; BLOCK S_IFBLK; DIRECTORY S_IFDIR;
    CHARACTER S_IFCHR; PIPE S_IFIFO;
}
same! { types::class, general:
    OTHER SCHED_NORMAL; FIFO SCHED_FIFO; ROUND_ROBIN SCHED_RR; BATCH SCHED_BATCH; IDLE SCHED_IDLE;
    RESET_ON_FORK SCHED_RESET_ON_FORK;
}
same! { types::memory_lock, general:
    ON_FAULT MLOCK_ONFAULT; CURRENT MCL_CURRENT; FUTURE MCL_FUTURE; ALL_ON_FAULT MCL_ONFAULT;
}
same! { types::niceness, general:
    OF_PROCESS PRIO_PROCESS; OF_GROUP PRIO_PGRP; OF_USER PRIO_USER;
}
same! { types::allocation, general:
    KEEP_SIZE FALLOC_FL_KEEP_SIZE; PUNCH_HOLE FALLOC_FL_PUNCH_HOLE;
}
same! { types::splicing, general:
    NONBLOCK SPLICE_F_NONBLOCK;
}
same! { types::block_control, ioctl:
    IS_READ_ONLY BLKROGET; SECTORS BLKGETSIZE; FLUSH BLKFLSBUF; LOGICAL_BLOCK BLKSSZGET; DISCARD BLKDISCARD;
    LEAST_TRANSFER BLKIOMIN; BEST_TRANSFER BLKIOOPT; ALIGNMENT BLKALIGNOFF; PHYSICAL_BLOCK BLKPBSZGET;
    IS_ROTATIONAL BLKROTATIONAL; FILL_WITH_ZEROS BLKZEROOUT; CACHE_BLOCK BLKBSZGET; BYTES BLKGETSIZE64;
}
same! { types::socket_option, net:
    SOL_SOCKET SOL_SOCKET; SO_REUSEADDR SO_REUSEADDR; SO_TYPE SO_TYPE; SO_ERROR SO_ERROR; SO_SNDBUF SO_SNDBUF;
    SO_BROADCAST SO_BROADCAST;
    SO_RCVBUF SO_RCVBUF; SO_KEEPALIVE SO_KEEPALIVE; SO_LINGER SO_LINGER; SO_REUSEPORT SO_REUSEPORT;
    SO_PEERCRED SO_PEERCRED; SO_ACCEPTCONN SO_ACCEPTCONN; SO_PROTOCOL SO_PROTOCOL; SO_DOMAIN SO_DOMAIN;
    IP_RECVERR IP_RECVERR; IP_RETOPTS IP_RETOPTS; IPV6_RECVERR IPV6_RECVERR; IPV6_V6ONLY IPV6_V6ONLY;
    TCP_NODELAY TCP_NODELAY; SO_RCVTIMEO SO_RCVTIMEO; SO_RCVTIMEO_NEW SO_RCVTIMEO_NEW; SO_TIMESTAMP SO_TIMESTAMP;
    SO_TIMESTAMP_NEW SO_TIMESTAMP_NEW; SO_TIMESTAMPNS SO_TIMESTAMPNS; SO_TIMESTAMPNS_NEW SO_TIMESTAMPNS_NEW;
    IP_MTU_DISCOVER IP_MTU_DISCOVER; IPV6_MTU_DISCOVER IPV6_MTU_DISCOVER; IP_RECVTTL IP_RECVTTL;
    IPV6_2292HOPLIMIT IPV6_2292HOPLIMIT; TCP_MAXSEG TCP_MAXSEG; TCP_CORK TCP_CORK; TCP_KEEPIDLE TCP_KEEPIDLE;
    TCP_KEEPINTVL TCP_KEEPINTVL; TCP_KEEPCNT TCP_KEEPCNT; TCP_DEFER_ACCEPT TCP_DEFER_ACCEPT;
    TCP_INFO TCP_INFO; TCP_QUICKACK TCP_QUICKACK;
    TCP_CONGESTION TCP_CONGESTION; TCP_USER_TIMEOUT TCP_USER_TIMEOUT;
}
same! { types::message, net:
    PEEK MSG_PEEK; CTRUNC MSG_CTRUNC; TRUNC MSG_TRUNC; DONTWAIT MSG_DONTWAIT; WAITALL MSG_WAITALL;
    CONFIRM MSG_CONFIRM; ERRQUEUE MSG_ERRQUEUE; NOSIGNAL MSG_NOSIGNAL; CMSG_CLOEXEC MSG_CMSG_CLOEXEC;
    SCM_RIGHTS SCM_RIGHTS;
    SCM_CREDENTIALS SCM_CREDENTIALS;
}
same! { types::file_control, ioctl:
    FIONREAD FIONREAD; FIONBIO FIONBIO; FIOASYNC FIOASYNC; FIONCLEX FIONCLEX; FIOCLEX FIOCLEX;
}
same! { types::mounting::flag, general:
    READ_ONLY MS_RDONLY; NO_SET_USER MS_NOSUID; NO_DEVICES MS_NODEV; NO_EXECUTION MS_NOEXEC;
    REMOUNT MS_REMOUNT; BIND MS_BIND; MOVE MS_MOVE; RECURSIVE MS_REC; UNBINDABLE MS_UNBINDABLE;
    PRIVATE MS_PRIVATE; SLAVE MS_SLAVE; SHARED MS_SHARED;
}
same! { types::mounting::removal, general:
    FORCE MNT_FORCE; DETACH MNT_DETACH; NOFOLLOW UMOUNT_NOFOLLOW;
}
same! { types::mounting, general:
    TMPFS_MAGIC TMPFS_MAGIC; PROC_MAGIC PROC_SUPER_MAGIC; EXT4_MAGIC EXT4_SUPER_MAGIC; PIPE_MAGIC PIPEFS_MAGIC;
    SOCKET_MAGIC SOCKFS_MAGIC; ANONYMOUS_MAGIC ANON_INODE_FS_MAGIC;
}
same! { types::open, general:
    ACCESS_MODE O_ACCMODE; RDONLY O_RDONLY; WRONLY O_WRONLY; RDWR O_RDWR; CREAT O_CREAT; EXCL O_EXCL;
    NOCTTY O_NOCTTY; TRUNC O_TRUNC; APPEND O_APPEND; NONBLOCK O_NONBLOCK; ASYNC FASYNC; DIRECTORY O_DIRECTORY;
    NOFOLLOW O_NOFOLLOW; CLOEXEC O_CLOEXEC;
}
same! { types::memory_synchronisation, general:
    ASYNC MS_ASYNC; INVALIDATE MS_INVALIDATE; SYNC MS_SYNC;
}
same! { types::advice, general:
    DONTNEED MADV_DONTNEED; DONTDUMP MADV_DONTDUMP; DODUMP MADV_DODUMP; LAST_OF_FILES POSIX_FADV_NOREUSE;
}
same! { types::control, general:
    DUPFD F_DUPFD; GETFD F_GETFD; SETFD F_SETFD; GETFL F_GETFL; SETFL F_SETFL; GETLK F_GETLK; SETLK F_SETLK;
    SETLKW F_SETLKW; SETOWN F_SETOWN; GETOWN F_GETOWN; SETSIG F_SETSIG; GETSIG F_GETSIG; SETOWN_EX F_SETOWN_EX;
    GETOWN_EX F_GETOWN_EX; OFD_GETLK F_OFD_GETLK; OFD_SETLK F_OFD_SETLK; OFD_SETLKW F_OFD_SETLKW;
    DUPFD_CLOEXEC F_DUPFD_CLOEXEC; SET_CAPACITY F_SETPIPE_SZ; GET_CAPACITY F_GETPIPE_SZ; ADD_SEALS F_ADD_SEALS;
    GET_SEALS F_GET_SEALS; OWNER_THREAD F_OWNER_TID; OWNER_PROCESS F_OWNER_PID; OWNER_GROUP F_OWNER_PGRP; FD_CLOEXEC FD_CLOEXEC; LAST_SIGNAL _NSIG;
}
same! { types::remapping, general:
    MAY_MOVE MREMAP_MAYMOVE; FIXED MREMAP_FIXED;
}
same! { types::memory_file, general:
    CLOEXEC MFD_CLOEXEC; ALLOW_SEALING MFD_ALLOW_SEALING; EXECUTE MFD_EXEC;
}
same! { types::process_control, prctl:
    SET_PDEATHSIG PR_SET_PDEATHSIG; GET_PDEATHSIG PR_GET_PDEATHSIG; GET_DUMPABLE PR_GET_DUMPABLE;
    SET_DUMPABLE PR_SET_DUMPABLE; GET_KEEPCAPS PR_GET_KEEPCAPS; SET_KEEPCAPS PR_SET_KEEPCAPS;
    SET_NAME PR_SET_NAME; GET_NAME PR_GET_NAME; SET_TIMERSLACK PR_SET_TIMERSLACK;
    GET_TIMERSLACK PR_GET_TIMERSLACK; SET_CHILD_SUBREAPER PR_SET_CHILD_SUBREAPER;
    GET_CHILD_SUBREAPER PR_GET_CHILD_SUBREAPER; SET_NO_NEW_PRIVS PR_SET_NO_NEW_PRIVS;
    GET_NO_NEW_PRIVS PR_GET_NO_NEW_PRIVS;
}
same! { types::lock, general:
    SHARED LOCK_SH; EXCLUSIVE LOCK_EX; NON_BLOCKING LOCK_NB; UNLOCK LOCK_UN; NO_LOCK F_UNLCK;
}
same! { types::protection, general:
    READ PROT_READ; WRITE PROT_WRITE; EXECUTE PROT_EXEC;
}
same! { types::mapping, general:
    SHARED MAP_SHARED; PRIVATE MAP_PRIVATE; FIXED MAP_FIXED; ANONYMOUS MAP_ANONYMOUS; DENY_WRITE MAP_DENYWRITE;
    EXECUTABLE MAP_EXECUTABLE; LOCKED MAP_LOCKED; NORESERVE MAP_NORESERVE; POPULATE MAP_POPULATE;
    STACK MAP_STACK; FIXED_NOREPLACE MAP_FIXED_NOREPLACE;
}
same! { types::clock, general:
    REALTIME CLOCK_REALTIME; MONOTONIC CLOCK_MONOTONIC; PROCESS_CPUTIME CLOCK_PROCESS_CPUTIME_ID;
    THREAD_CPUTIME CLOCK_THREAD_CPUTIME_ID; MONOTONIC_RAW CLOCK_MONOTONIC_RAW;
    REALTIME_COARSE CLOCK_REALTIME_COARSE; MONOTONIC_COARSE CLOCK_MONOTONIC_COARSE; BOOTTIME CLOCK_BOOTTIME;
    TIMER_ABSTIME TIMER_ABSTIME;
}
same! { types::timer, general:
    REAL ITIMER_REAL; VIRTUAL ITIMER_VIRTUAL; PROFILE ITIMER_PROF; ABSOLUTE TFD_TIMER_ABSTIME;
    CANCEL_ON_SET TFD_TIMER_CANCEL_ON_SET; NOTIFICATION SIGEV_MAX_SIZE;
}
same! { types::timer::Notification, general:
    SIGNAL SIGEV_SIGNAL; NONE SIGEV_NONE; THREAD SIGEV_THREAD; THREAD_ID SIGEV_THREAD_ID;
}
same! { types::clone, general:
    SIGNAL CSIGNAL; VM CLONE_VM; FS CLONE_FS; FILES CLONE_FILES; SIGHAND CLONE_SIGHAND; PIDFD CLONE_PIDFD;
    VFORK CLONE_VFORK; PARENT CLONE_PARENT; THREAD CLONE_THREAD; NEWNS CLONE_NEWNS; SYSVSEM CLONE_SYSVSEM;
    SETTLS CLONE_SETTLS; PARENT_SETTID CLONE_PARENT_SETTID; CHILD_CLEARTID CLONE_CHILD_CLEARTID;
    DETACHED CLONE_DETACHED; CHILD_SETTID CLONE_CHILD_SETTID; CLEAR_SIGHAND CLONE_CLEAR_SIGHAND;
}
same! { types::futex, general:
    WAIT FUTEX_WAIT; WAKE FUTEX_WAKE; REQUEUE FUTEX_REQUEUE; CMP_REQUEUE FUTEX_CMP_REQUEUE;
    WAIT_BITSET FUTEX_WAIT_BITSET; WAKE_BITSET FUTEX_WAKE_BITSET; PRIVATE FUTEX_PRIVATE_FLAG;
    CLOCK_REALTIME FUTEX_CLOCK_REALTIME; BITSET_ANY FUTEX_BITSET_MATCH_ANY; WAITERS FUTEX_WAITERS;
    OWNER_DIED FUTEX_OWNER_DIED; THREAD_MASK FUTEX_TID_MASK; WAKE_OP FUTEX_WAKE_OP; LOCK FUTEX_LOCK_PI;
    UNLOCK FUTEX_UNLOCK_PI; TRY_LOCK FUTEX_TRYLOCK_PI; LOCK_WITH_CLOCK FUTEX_LOCK_PI2; OP_SET FUTEX_OP_SET;
    OP_ADD FUTEX_OP_ADD; OP_OR FUTEX_OP_OR; OP_ANDN FUTEX_OP_ANDN; OP_XOR FUTEX_OP_XOR;
    OP_OPARG_SHIFT FUTEX_OP_OPARG_SHIFT; OP_CMP_EQ FUTEX_OP_CMP_EQ; OP_CMP_NE FUTEX_OP_CMP_NE;
    OP_CMP_LT FUTEX_OP_CMP_LT; OP_CMP_LE FUTEX_OP_CMP_LE; OP_CMP_GT FUTEX_OP_CMP_GT; OP_CMP_GE FUTEX_OP_CMP_GE;
    SIZE_U32 FUTEX2_SIZE_U32; SIZE_MASK FUTEX2_SIZE_MASK; WAITV_MAX FUTEX_WAITV_MAX;
}
const _: () = {
    use general::membarrier_cmd as linux;
    use types::memory_barrier as ours;
    assert!(ours::QUERY == linux::MEMBARRIER_CMD_QUERY as u32);
    assert!(ours::GLOBAL == linux::MEMBARRIER_CMD_GLOBAL as u32);
    assert!(ours::PRIVATE == linux::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32);
    assert!(ours::REGISTER_PRIVATE == linux::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32);
    assert!(ours::PRIVATE_INSTRUCTIONS == linux::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32);
    assert!(ours::REGISTER_PRIVATE_INSTRUCTIONS == linux::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32);
    assert!(ours::REGISTRATIONS == linux::MEMBARRIER_CMD_GET_REGISTRATIONS as u32);
};
same! { types::epoll, general:
    CTL_ADD EPOLL_CTL_ADD; CTL_DEL EPOLL_CTL_DEL; CTL_MOD EPOLL_CTL_MOD; IN EPOLLIN; PRI EPOLLPRI;
    OUT EPOLLOUT; ERR EPOLLERR; HUP EPOLLHUP; NVAL EPOLLNVAL; RDNORM EPOLLRDNORM; WRNORM EPOLLWRNORM;
    RDHUP EPOLLRDHUP; EXCLUSIVE EPOLLEXCLUSIVE; WAKEUP EPOLLWAKEUP; ONESHOT EPOLLONESHOT; ET EPOLLET;
}
same! { types::wait_kind, general:
    ALL P_ALL; PROCESS P_PID; GROUP P_PGID; DESCRIPTOR P_PIDFD;
}
same! { types::signal, general:
    HUP SIGHUP; INT SIGINT; QUIT SIGQUIT; ILL SIGILL; TRAP SIGTRAP; ABRT SIGABRT; BUS SIGBUS; FPE SIGFPE;
    KILL SIGKILL; SEGV SIGSEGV; PIPE SIGPIPE; TERM SIGTERM; CHLD SIGCHLD; CONT SIGCONT; STOP SIGSTOP;
    TSTP SIGTSTP; TTIN SIGTTIN; TTOU SIGTTOU; URG SIGURG; WINCH SIGWINCH;
}
same! { types::terminal, ioctl:
    GET TCGETS; SET TCSETS; SET_AND_WAIT TCSETSW; SET_AND_FLUSH TCSETSF; DRAIN TCSBRK; FLUSH TCFLSH;
    SET_CONTROLLING TIOCSCTTY; GET_FOREGROUND TIOCGPGRP; SET_FOREGROUND TIOCSPGRP; WRITTEN TIOCOUTQ;
    INSERT TIOCSTI; GET_WINDOW_SIZE TIOCGWINSZ; SET_WINDOW_SIZE TIOCSWINSZ; READABLE TIOCINQ;
    SET_PACKET_MODE TIOCPKT; GIVE_UP_CONTROLLING TIOCNOTTY; GET_SESSION TIOCGSID; OPEN_PEER TIOCGPTPEER;
    GET_PSEUDO_NUMBER TIOCGPTN; SET_LOCK TIOCSPTLCK; GET_LOCK TIOCGPTLCK;
}
same! { types::terminal::queue, general:
    INPUT TCIFLUSH; OUTPUT TCOFLUSH; BOTH TCIOFLUSH;
}
same! { types::terminal::input, general:
    ISTRIP ISTRIP; INLCR INLCR; IGNCR IGNCR; ICRNL ICRNL; IXON IXON; IUTF8 IUTF8;
}
same! { types::terminal::output, general:
    OPOST OPOST; ONLCR ONLCR;
}
same! { types::terminal::control, general:
    B38400 B38400; CS8 CS8; CREAD CREAD; HUPCL HUPCL;
}
same! { types::terminal::local, general:
    ISIG ISIG; ICANON ICANON; ECHO ECHO; ECHOE ECHOE; ECHOK ECHOK; ECHONL ECHONL; NOFLSH NOFLSH; TOSTOP TOSTOP;
    ECHOCTL ECHOCTL; ECHOKE ECHOKE; IEXTEN IEXTEN;
}
same! { types::terminal::character, general:
    INTERRUPT VINTR; QUIT VQUIT; ERASE VERASE; KILL VKILL; END_OF_FILE VEOF; TIME VTIME; MINIMUM VMIN;
    START VSTART; STOP VSTOP; SUSPEND VSUSP; END_OF_LINE VEOL; REPRINT VREPRINT; DISCARD VDISCARD;
    WORD_ERASE VWERASE; LITERAL_NEXT VLNEXT; SECOND_END_OF_LINE VEOL2;
}
same! { types::reboot, general:
    MAGIC1 LINUX_REBOOT_MAGIC1; MAGIC2 LINUX_REBOOT_MAGIC2; POWER_OFF LINUX_REBOOT_CMD_POWER_OFF;
    RESTART LINUX_REBOOT_CMD_RESTART; HALT LINUX_REBOOT_CMD_HALT;
}
same! { types::entry, general:
    UNKNOWN DT_UNKNOWN; PIPE DT_FIFO; CHARACTER DT_CHR; DIRECTORY DT_DIR; REGULAR DT_REG; LINK DT_LNK;
    SOCKET DT_SOCK;
}
same! { types::auxiliary, auxvec:
    NULL AT_NULL; PHDR AT_PHDR; PHENT AT_PHENT; PHNUM AT_PHNUM; PAGESZ AT_PAGESZ; BASE AT_BASE; FLAGS AT_FLAGS;
    ENTRY AT_ENTRY; UID AT_UID; EUID AT_EUID; GID AT_GID; EGID AT_EGID; HWCAP AT_HWCAP; CLKTCK AT_CLKTCK;
    SECURE AT_SECURE; RANDOM AT_RANDOM; EXECFN AT_EXECFN; SYSINFO_EHDR AT_SYSINFO_EHDR;
}

const _: () = {
    use general as linux;
    // Flags of descriptors that the calls take from one word.
    assert!(types::SOCK_NONBLOCK == linux::O_NONBLOCK && types::SOCK_CLOEXEC == linux::O_CLOEXEC);
    assert!(types::clone::Arguments::LEAST == linux::CLONE_ARGS_SIZE_VER0 as usize);
    assert!(types::clone::Arguments::SIZE == linux::CLONE_ARGS_SIZE_VER2 as usize);
    assert!(types::lock::Kind::Read.number() as u32 == linux::F_RDLCK);
    assert!(types::lock::Kind::Write.number() as u32 == linux::F_WRLCK);
    assert!(types::signal::LIMIT == linux::_NSIG + 1);
};

/// Compares all members of an enumeration with Linux's numbers.
macro_rules! all_same {
    ($ours:ty, $count:expr, $linux:ident: $($name:ident $theirs:ident;)*) => {
        const _: () = {
            $(assert!(<$ours>::$name as i128 == linux_raw_sys::$linux::$theirs as i128, stringify!($theirs));)*
            assert!($count == [$(stringify!($name)),*].len(), "a member is missing");
        };
    };
}

/// Returns the number of calls with Linux's numbers.
const fn linux_calls() -> usize {
    let (mut count, mut index) = (0, 0);
    while index < SystemCall::ALL.len() {
        count += ((SystemCall::ALL[index] as usize) < OWN) as usize;
        index += 1;
    }
    count
}

/// First number of the system's own calls.
const OWN: usize = 0x1000;

all_same! { SystemCall, linux_calls(), general:
    SetAttribute __NR_setxattr; SetAttributeOfLink __NR_lsetxattr; SetAttributeOfFile __NR_fsetxattr;
    GetAttribute __NR_getxattr; GetAttributeOfLink __NR_lgetxattr; GetAttributeOfFile __NR_fgetxattr;
    ListAttributes __NR_listxattr; ListAttributesOfLink __NR_llistxattr; ListAttributesOfFile __NR_flistxattr;
    RemoveAttribute __NR_removexattr; RemoveAttributeOfLink __NR_lremovexattr;
    RemoveAttributeOfFile __NR_fremovexattr; GetCurrentDirectory __NR_getcwd; EventCounter __NR_eventfd2;
    EpollCreate __NR_epoll_create1; EpollControl __NR_epoll_ctl; EpollWait __NR_epoll_pwait; Duplicate __NR_dup;
    DuplicateTo __NR_dup3; FileControl __NR_fcntl; EventFile __NR_inotify_init1;
    WatchFile __NR_inotify_add_watch; EndWatch __NR_inotify_rm_watch; DeviceControl __NR_ioctl; Lock __NR_flock;
    MakeNode __NR_mknodat; MakeDirectory __NR_mkdirat; Unlink __NR_unlinkat; SymbolicLink __NR_symlinkat;
    Link __NR_linkat; Unmount __NR_umount2; Mount __NR_mount; FileSystemAt __NR_statfs; FileSystem __NR_fstatfs;
    TruncateAt __NR_truncate; Truncate __NR_ftruncate; Allocate __NR_fallocate; Access __NR_faccessat;
    ChangeDirectory __NR_chdir; ChangeDirectoryTo __NR_fchdir; ChangeMode __NR_fchmod; ChangeModeAt __NR_fchmodat;
    ChangeOwnerAt __NR_fchownat; ChangeOwner __NR_fchown; Open __NR_openat; Close __NR_close; Pipe __NR_pipe2;
    ReadDirectory __NR_getdents64; Seek __NR_lseek; Read __NR_read; Write __NR_write; ReadVector __NR_readv;
    WriteVector __NR_writev; ReadAt __NR_pread64; WriteAt __NR_pwrite64; ReadVectorAt __NR_preadv;
    WriteVectorAt __NR_pwritev; SendFile __NR_sendfile; Select __NR_pselect6; Poll __NR_ppoll;
    SignalFile __NR_signalfd4; SpliceMemory __NR_vmsplice; Splice __NR_splice; Tee __NR_tee;
    ReadLink __NR_readlinkat; StatusAt __NR_newfstatat; Status __NR_fstat; Synchronise __NR_sync;
    SynchroniseFile __NR_fsync; SynchroniseData __NR_fdatasync; SynchroniseRange __NR_sync_file_range;
    TimerFile __NR_timerfd_create; TimerFileSet __NR_timerfd_settime; TimerFileGet __NR_timerfd_gettime;
    SetTimes __NR_utimensat; GetCapabilities __NR_capget; SetCapabilities __NR_capset;
    Personality __NR_personality; Exit __NR_exit; ExitGroup __NR_exit_group; WaitIdentified __NR_waitid;
    SetThreadIdAddress __NR_set_tid_address; Futex __NR_futex; SetRobustList __NR_set_robust_list;
    GetRobustList __NR_get_robust_list; Sleep __NR_nanosleep; GetIntervalTimer __NR_getitimer;
    SetIntervalTimer __NR_setitimer; TimerCreate __NR_timer_create; TimerGet __NR_timer_gettime;
    TimerOverrun __NR_timer_getoverrun; TimerSet __NR_timer_settime; TimerDelete __NR_timer_delete;
    GetTime __NR_clock_gettime; GetResolution __NR_clock_getres; SleepOn __NR_clock_nanosleep; Trace __NR_ptrace;
    SetClassPriority __NR_sched_setparam; SetClass __NR_sched_setscheduler; GetClass __NR_sched_getscheduler;
    GetClassPriority __NR_sched_getparam; SetAffinity __NR_sched_setaffinity; GetAffinity __NR_sched_getaffinity;
    Yield __NR_sched_yield; GreatestClassPriority __NR_sched_get_priority_max;
    LeastClassPriority __NR_sched_get_priority_min; GetSlice __NR_sched_rr_get_interval; Kill __NR_kill;
    KillThread __NR_tkill; KillThreadOf __NR_tgkill; SignalStack __NR_sigaltstack;
    SignalSuspend __NR_rt_sigsuspend; SignalAction __NR_rt_sigaction; SignalMask __NR_rt_sigprocmask;
    SignalPending __NR_rt_sigpending; SignalWait __NR_rt_sigtimedwait; SignalQueue __NR_rt_sigqueueinfo;
    SignalReturn __NR_rt_sigreturn; SetNice __NR_setpriority; GetNice __NR_getpriority; Reboot __NR_reboot;
    SetGroupPair __NR_setregid; SetGroup __NR_setgid; SetUserPair __NR_setreuid; SetUser __NR_setuid;
    SetUserTriple __NR_setresuid; GetUserTriple __NR_getresuid; SetGroupTriple __NR_setresgid;
    GetGroupTriple __NR_getresgid; SetFileUser __NR_setfsuid; SetFileGroup __NR_setfsgid; Times __NR_times;
    SetProcessGroup __NR_setpgid; GetProcessGroup __NR_getpgid; GetSession __NR_getsid; SetSession __NR_setsid;
    GetGroups __NR_getgroups; SetGroups __NR_setgroups; SystemName __NR_uname; GetLimit __NR_getrlimit;
    SetLimit __NR_setrlimit; GetUsage __NR_getrusage; SetCreationMask __NR_umask; ProcessControl __NR_prctl;
    GetHart __NR_getcpu; GetTimeOfDay __NR_gettimeofday; GetProcess __NR_getpid; GetParent __NR_getppid;
    GetUser __NR_getuid; GetEffectiveUser __NR_geteuid; GetGroup __NR_getgid; GetEffectiveGroup __NR_getegid;
    GetThread __NR_gettid; SystemInformation __NR_sysinfo; Socket __NR_socket; SocketPair __NR_socketpair;
    Bind __NR_bind; Listen __NR_listen; Accept __NR_accept; Connect __NR_connect; GetSocketName __NR_getsockname;
    GetPeerName __NR_getpeername; SendTo __NR_sendto; ReceiveFrom __NR_recvfrom; SetSocketOption __NR_setsockopt;
    GetSocketOption __NR_getsockopt; Shutdown __NR_shutdown; SendMessage __NR_sendmsg; ReceiveMessage __NR_recvmsg;
    ReadAhead __NR_readahead; Break __NR_brk; Unmap __NR_munmap; Remap __NR_mremap; Clone __NR_clone;
    Execute __NR_execve; Map __NR_mmap; AdviseFile __NR_fadvise64; Protect __NR_mprotect;
    SynchroniseMemory __NR_msync; LockMemory __NR_mlock; UnlockMemory __NR_munlock; LockAllMemory __NR_mlockall;
    UnlockAllMemory __NR_munlockall; Residence __NR_mincore; AdviseMemory __NR_madvise;
    SignalQueueThread __NR_rt_tgsigqueueinfo; AcceptWith __NR_accept4; ReceiveMessages __NR_recvmmsg;
    FlushInstructions __NR_riscv_flush_icache; Wait __NR_wait4; ProcessLimit __NR_prlimit64;
    SynchroniseFileSystem __NR_syncfs; SendMessages __NR_sendmmsg; Rename __NR_renameat2; GetRandom __NR_getrandom;
    MemoryFile __NR_memfd_create; LockMemoryWith __NR_mlock2; CopyFileRange __NR_copy_file_range;
    ExecuteAt __NR_execveat;
    ReadVectorWith __NR_preadv2; WriteVectorWith __NR_pwritev2; ExtendedStatus __NR_statx; CloneWith __NR_clone3;
    CloseRange __NR_close_range; AccessWith __NR_faccessat2; EpollWaitWith __NR_epoll_pwait2;
    QueueOpen __NR_mq_open; QueueUnlink __NR_mq_unlink; QueueSend __NR_mq_timedsend;
    QueueReceive __NR_mq_timedreceive; QueueNotify __NR_mq_notify; QueueAttributes __NR_mq_getsetattr;
    SemaphoreGet __NR_semget; SemaphoreControl __NR_semctl; SemaphoreOperateUntil __NR_semtimedop;
    SemaphoreOperate __NR_semop; SegmentGet __NR_shmget; SegmentControl __NR_shmctl; SegmentAttach __NR_shmat; SegmentDetach __NR_shmdt;
    MemoryBarrier __NR_membarrier; SignalProcessFile __NR_pidfd_send_signal; ProcessFile __NR_pidfd_open; TakeFile __NR_pidfd_getfd;
    FutexWaits __NR_futex_waitv; ChangeModeWith __NR_fchmodat2;
}

all_same! { Errno, Errno::ALL.len(), errno:
    EPERM EPERM; ENOENT ENOENT; ESRCH ESRCH; EINTR EINTR; EIO EIO; ENXIO ENXIO; E2BIG E2BIG; ENOEXEC ENOEXEC;
    EBADF EBADF; ECHILD ECHILD; EAGAIN EAGAIN; ENOMEM ENOMEM; EACCES EACCES; EFAULT EFAULT; ENOTBLK ENOTBLK;
    EBUSY EBUSY; EEXIST EEXIST; EXDEV EXDEV; ENODEV ENODEV; ENOTDIR ENOTDIR; EISDIR EISDIR; EINVAL EINVAL;
    ENFILE ENFILE; EMFILE EMFILE; ENOTTY ENOTTY; ETXTBSY ETXTBSY; EFBIG EFBIG; ENOSPC ENOSPC; ESPIPE ESPIPE; EROFS EROFS;
    EMLINK EMLINK; EPIPE EPIPE; EDOM EDOM; ERANGE ERANGE; EDEADLK EDEADLK; ENAMETOOLONG ENAMETOOLONG;
    ENOLCK ENOLCK; ENOSYS ENOSYS; ENOTEMPTY ENOTEMPTY; ELOOP ELOOP; EIDRM EIDRM; ENODATA ENODATA; EPROTO EPROTO;
    EOVERFLOW EOVERFLOW; ELIBBAD ELIBBAD; ENOTSOCK ENOTSOCK; EDESTADDRREQ EDESTADDRREQ; EMSGSIZE EMSGSIZE;
    EPROTOTYPE EPROTOTYPE; ENOPROTOOPT ENOPROTOOPT; EPROTONOSUPPORT EPROTONOSUPPORT;
    ESOCKTNOSUPPORT ESOCKTNOSUPPORT; EOPNOTSUPP EOPNOTSUPP; EAFNOSUPPORT EAFNOSUPPORT; EADDRINUSE EADDRINUSE;
    EADDRNOTAVAIL EADDRNOTAVAIL; ENETDOWN ENETDOWN; ENETUNREACH ENETUNREACH; ECONNABORTED ECONNABORTED;
    ECONNRESET ECONNRESET; ENOBUFS ENOBUFS; EISCONN EISCONN; ENOTCONN ENOTCONN; ETOOMANYREFS ETOOMANYREFS;
    ETIMEDOUT ETIMEDOUT; ECONNREFUSED ECONNREFUSED; EHOSTUNREACH EHOSTUNREACH; EALREADY EALREADY;
    EINPROGRESS EINPROGRESS; ESTALE ESTALE; ECANCELED ECANCELED;
}

/// Returns the width of the field that a function leads to.
const fn width<Structure, Field>(_: fn(&Structure) -> &Field) -> usize {
    size_of::<Field>()
}

/// Checks that a field of Linux's structure has this value in these bytes.
macro_rules! field {
    ($bytes:expr, $structure:ty, $($field:ident).+ = $value:expr) => {{
        let (offset, width) =
            (core::mem::offset_of!($structure, $($field).+), width(|whole: &$structure| &whole.$($field).+));
        let mut found = [0; 8];
        found[..width].copy_from_slice(&$bytes[offset..offset + width]);
        check_eq!(u64::from_le_bytes(found), $value as u64);
    }};
}

/// Checks several fields of a structure, and its size.
macro_rules! fields {
    ($bytes:expr, $structure:ty, $($($field:ident).+ = $value:expr),*) => {{
        let bytes = $bytes;
        check_eq!(bytes.len(), size_of::<$structure>());
        $(field!(bytes, $structure, $($field).+ = $value);)*
    }};
}

/// Returns a time with different seconds and nanoseconds.
fn time(seconds: i64) -> TimeSpec {
    TimeSpec { seconds, nanoseconds: seconds + 1 }
}

pub async fn structures_of_files_are_those_of_linux() -> Outcome {
    let status = Status {
        device: 0x30_0203,
        inode: 2,
        mode: 0o100_644,
        links: 4,
        user: 5,
        group: 6,
        represented_device: 0x10_0506,
        size: 8,
        block_size: 9,
        blocks: 10,
        accessed: time(20),
        modified: time(30),
        changed: time(40),
        ..Status::default()
    };
    fields!(
        status.to_bytes(),
        general::stat,
        st_dev = 0x30_0203,
        st_ino = 2,
        st_mode = 0o100_644,
        st_nlink = 4,
        st_uid = 5,
        st_gid = 6,
        st_rdev = 0x10_0506,
        st_size = 8,
        st_blksize = 9,
        st_blocks = 10,
        st_atime = 20,
        st_atime_nsec = 21,
        st_mtime = 30,
        st_mtime_nsec = 31,
        st_ctime = 40,
        st_ctime_nsec = 41
    );
    fields!(
        status.to_extended_bytes(),
        general::statx,
        stx_mask = general::STATX_BASIC_STATS,
        stx_blksize = 9,
        stx_nlink = 4,
        stx_uid = 5,
        stx_gid = 6,
        stx_mode = 0o100_644,
        stx_ino = 2,
        stx_size = 8,
        stx_blocks = 10,
        stx_atime.tv_sec = 20,
        stx_atime.tv_nsec = 21,
        stx_ctime.tv_sec = 40,
        stx_ctime.tv_nsec = 41,
        stx_mtime.tv_sec = 30,
        stx_mtime.tv_nsec = 31,
        // Of a device's number, bits 8 to 19 are the major one, and the others the minor one.
        stx_rdev_major = 5,
        stx_rdev_minor = 0x106,
        stx_dev_major = 2,
        stx_dev_minor = 0x303
    );
    let statistics = types::mounting::Statistics {
        magic: 1,
        block_size: 2,
        blocks: 3,
        free_blocks: 4,
        files: 5,
        free_files: 6,
        number: 7 << 32 | 8,
        longest_name: 9,
        flags: 10,
    };
    fields!(
        statistics.to_bytes(),
        general::statfs64,
        f_type = 1,
        f_bsize = 2,
        f_blocks = 3,
        f_bfree = 4,
        f_bavail = 4,
        f_files = 5,
        f_ffree = 6,
        f_fsid = 7u64 << 32 | 8,
        f_namelen = 9,
        f_frsize = 2,
        f_flags = 10
    );
    let lock = types::lock::Record { kind: 1, whence: 2, start: 3, length: 4, process: 5 };
    fields!(lock.to_bytes(), general::flock, l_type = 1, l_whence = 2, l_start = 3, l_len = 4, l_pid = 5);
    let settings = Termios { input: 1, output: 2, control: 3, local: 4, line: 5, characters: [6; 19] };
    fields!(settings.to_bytes(), general::termios, c_iflag = 1, c_oflag = 2, c_cflag = 3, c_lflag = 4, c_line = 5);
    check_eq!(settings.to_bytes()[core::mem::offset_of!(general::termios, c_cc)..], [6; 19]);
    Ok(())
}

pub async fn structures_of_time_and_processes_are_those_of_linux() -> Outcome {
    fields!(time(7).to_bytes(), general::__kernel_timespec, tv_sec = 7, tv_nsec = 8);
    let setting = types::timer::Setting { value_ns: 3_000_000_004, interval_ns: 1_000_000_002 };
    fields!(
        setting.to_spec(),
        general::__kernel_itimerspec,
        it_interval.tv_sec = 1,
        it_interval.tv_nsec = 2,
        it_value.tv_sec = 3,
        it_value.tv_nsec = 4
    );
    let setting = types::timer::Setting { value_ns: 3_000_004_000, interval_ns: 1_000_002_000 };
    fields!(
        setting.to_val(),
        general::itimerval,
        it_interval.tv_sec = 1,
        it_interval.tv_usec = 2,
        it_value.tv_sec = 3,
        it_value.tv_usec = 4
    );
    let notification = types::timer::Notification { value: 1, signal: 2, kind: 3, thread: 4 };
    fields!(notification.to_bytes(), general::sigevent, sigev_signo = 2, sigev_notify = 3);
    check_eq!(notification.to_bytes()[core::mem::offset_of!(general::sigevent, _sigev_un)], 4);
    check_eq!(notification.to_bytes()[0], 1);
    fields!(types::limit::to_bytes(1, 2), general::rlimit64, rlim_cur = 1, rlim_max = 2);
    fields!(
        types::usage::of_time([3_000_004_000, 5_000_006_000]),
        general::rusage,
        ru_utime.tv_sec = 3,
        ru_utime.tv_usec = 4,
        ru_stime.tv_sec = 5,
        ru_stime.tv_usec = 6
    );
    let arguments = types::clone::Arguments {
        flags: 1,
        process_descriptor: 2,
        child: 3,
        parent: 4,
        exit_signal: 5,
        stack: 6,
        stack_size: 7,
        thread_pointer: 8,
        numbers: 9,
        number_count: 10,
        control_group: 11,
    };
    fields!(
        arguments.to_bytes(),
        general::clone_args,
        flags = 1,
        pidfd = 2,
        child_tid = 3,
        parent_tid = 4,
        exit_signal = 5,
        stack = 6,
        stack_size = 7,
        tls = 8,
        set_tid = 9,
        set_tid_size = 10,
        cgroup = 11
    );
    check_eq!(types::futex::ROBUST_HEAD, size_of::<general::robust_list_head>());
    Ok(())
}

pub async fn structures_of_sockets_are_those_of_linux() -> Outcome {
    let header =
        MessageHeader { name: 1, name_length: 2, buffers: 3, count: 4, control: 5, control_length: 6, flags: 7 };
    fields!(header.to_bytes(), net::msghdr, msg_namelen = 2, msg_iovlen = 4, msg_controllen = 6, msg_flags = 7);
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| header.to_bytes()[at + index]));
    check_eq!(word(core::mem::offset_of!(net::msghdr, msg_name)), 1);
    check_eq!(word(core::mem::offset_of!(net::msghdr, msg_iov)), 3);
    check_eq!(word(core::mem::offset_of!(net::msghdr, msg_control)), 5);
    check_eq!(MessageHeader::NAME_LENGTH, core::mem::offset_of!(net::msghdr, msg_namelen));
    check_eq!(MessageHeader::CONTROL_LENGTH, core::mem::offset_of!(net::msghdr, msg_controllen));
    check_eq!(MessageHeader::SIZE_IN_ARRAY, size_of::<net::mmsghdr>());
    check_eq!(MessageHeader::SIZE, core::mem::offset_of!(net::mmsghdr, msg_len));
    let address = SocketAddress { address: [1, 2, 3, 4], port: 0x506 };
    fields!(
        address.to_bytes(),
        net::sockaddr_in,
        sin_family = types::AF_INET,
        sin_port = 0x605,
        sin_addr.s_addr = 0x0403_0201
    );
    let address = core::net::SocketAddrV6::new(0x102u128.into(), 0x506, 7, 8);
    let (bytes, length) = types::bytes_of_address(address.into());
    fields!(
        &bytes[..length],
        net::sockaddr_in6,
        sin6_family = types::AF_INET6,
        sin6_port = 0x605,
        sin6_flowinfo = 7u32.to_be(),
        sin6_scope_id = 8
    );
    check_eq!(bytes[core::mem::offset_of!(net::sockaddr_in6, sin6_addr)..][14..16], [1, 2]);
    let event = types::epoll::Event { events: 1, data: 2 };
    fields!(event.to_bytes(), general::epoll_event, events = 1, data = 2);
    Ok(())
}
