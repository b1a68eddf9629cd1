/* System calls of the Unix kernel for C programs.
 *
 * A call traps with its number in a7 and its arguments in a0 to a5, and answers in a0: a result, or -errno. The
 * asynchronous form has COPS_ASYNCHRONOUS and the coroutine's priority in a7, the cid of the waiting coroutine in a6
 * and a token in t0; it answers COPS_WILL_BE_POSTED if the result will come through the completion ring. The kernel
 * preserves every register but a0.
 *
 * The numbers are those of abi/unix; a test of the crate `unix` compares them.
 */
#ifndef COPS_UNIX_H
#define COPS_UNIX_H

#include <stddef.h>
#include <stdint.h>

#define COPS_SYS_setxattr 5
#define COPS_SYS_lsetxattr 6
#define COPS_SYS_fsetxattr 7
#define COPS_SYS_getxattr 8
#define COPS_SYS_lgetxattr 9
#define COPS_SYS_fgetxattr 10
#define COPS_SYS_listxattr 11
#define COPS_SYS_llistxattr 12
#define COPS_SYS_flistxattr 13
#define COPS_SYS_removexattr 14
#define COPS_SYS_lremovexattr 15
#define COPS_SYS_fremovexattr 16
#define COPS_SYS_getcwd 17
#define COPS_SYS_eventfd2 19
#define COPS_SYS_epoll_create1 20
#define COPS_SYS_epoll_ctl 21
#define COPS_SYS_epoll_pwait 22
#define COPS_SYS_dup 23
#define COPS_SYS_dup3 24
#define COPS_SYS_fcntl 25
#define COPS_SYS_inotify_init1 26
#define COPS_SYS_inotify_add_watch 27
#define COPS_SYS_inotify_rm_watch 28
#define COPS_SYS_ioctl 29
#define COPS_SYS_flock 32
#define COPS_SYS_mknodat 33
#define COPS_SYS_mkdirat 34
#define COPS_SYS_unlinkat 35
#define COPS_SYS_symlinkat 36
#define COPS_SYS_linkat 37
#define COPS_SYS_umount2 39
#define COPS_SYS_mount 40
#define COPS_SYS_statfs 43
#define COPS_SYS_fstatfs 44
#define COPS_SYS_truncate 45
#define COPS_SYS_ftruncate 46
#define COPS_SYS_fallocate 47
#define COPS_SYS_faccessat 48
#define COPS_SYS_chdir 49
#define COPS_SYS_fchdir 50
#define COPS_SYS_fchmod 52
#define COPS_SYS_fchmodat 53
#define COPS_SYS_fchownat 54
#define COPS_SYS_fchown 55
#define COPS_SYS_openat 56
#define COPS_SYS_close 57
#define COPS_SYS_pipe2 59
#define COPS_SYS_getdents64 61
#define COPS_SYS_lseek 62
#define COPS_SYS_read 63
#define COPS_SYS_write 64
#define COPS_SYS_readv 65
#define COPS_SYS_writev 66
#define COPS_SYS_pread64 67
#define COPS_SYS_pwrite64 68
#define COPS_SYS_preadv 69
#define COPS_SYS_pwritev 70
#define COPS_SYS_sendfile 71
#define COPS_SYS_pselect6 72
#define COPS_SYS_ppoll 73
#define COPS_SYS_signalfd4 74
#define COPS_SYS_vmsplice 75
#define COPS_SYS_splice 76
#define COPS_SYS_tee 77
#define COPS_SYS_readlinkat 78
#define COPS_SYS_newfstatat 79
#define COPS_SYS_fstat 80
#define COPS_SYS_sync 81
#define COPS_SYS_fsync 82
#define COPS_SYS_fdatasync 83
#define COPS_SYS_sync_file_range 84
#define COPS_SYS_timerfd_create 85
#define COPS_SYS_timerfd_settime 86
#define COPS_SYS_timerfd_gettime 87
#define COPS_SYS_utimensat 88
#define COPS_SYS_capget 90
#define COPS_SYS_capset 91
#define COPS_SYS_personality 92
#define COPS_SYS_exit 93
#define COPS_SYS_exit_group 94
#define COPS_SYS_waitid 95
#define COPS_SYS_set_tid_address 96
#define COPS_SYS_futex 98
#define COPS_SYS_set_robust_list 99
#define COPS_SYS_get_robust_list 100
#define COPS_SYS_nanosleep 101
#define COPS_SYS_getitimer 102
#define COPS_SYS_setitimer 103
#define COPS_SYS_timer_create 107
#define COPS_SYS_timer_gettime 108
#define COPS_SYS_timer_getoverrun 109
#define COPS_SYS_timer_settime 110
#define COPS_SYS_timer_delete 111
#define COPS_SYS_clock_gettime 113
#define COPS_SYS_clock_getres 114
#define COPS_SYS_clock_nanosleep 115
#define COPS_SYS_ptrace 117
#define COPS_SYS_sched_setparam 118
#define COPS_SYS_sched_setscheduler 119
#define COPS_SYS_sched_getscheduler 120
#define COPS_SYS_sched_getparam 121
#define COPS_SYS_sched_setaffinity 122
#define COPS_SYS_sched_getaffinity 123
#define COPS_SYS_sched_yield 124
#define COPS_SYS_sched_get_priority_max 125
#define COPS_SYS_sched_get_priority_min 126
#define COPS_SYS_sched_rr_get_interval 127
#define COPS_SYS_kill 129
#define COPS_SYS_tkill 130
#define COPS_SYS_tgkill 131
#define COPS_SYS_sigaltstack 132
#define COPS_SYS_rt_sigsuspend 133
#define COPS_SYS_rt_sigaction 134
#define COPS_SYS_rt_sigprocmask 135
#define COPS_SYS_rt_sigpending 136
#define COPS_SYS_rt_sigtimedwait 137
#define COPS_SYS_rt_sigqueueinfo 138
#define COPS_SYS_rt_sigreturn 139
#define COPS_SYS_setpriority 140
#define COPS_SYS_getpriority 141
#define COPS_SYS_reboot 142
#define COPS_SYS_setregid 143
#define COPS_SYS_setgid 144
#define COPS_SYS_setreuid 145
#define COPS_SYS_setuid 146
#define COPS_SYS_setresuid 147
#define COPS_SYS_getresuid 148
#define COPS_SYS_setresgid 149
#define COPS_SYS_getresgid 150
#define COPS_SYS_setfsuid 151
#define COPS_SYS_setfsgid 152
#define COPS_SYS_times 153
#define COPS_SYS_setpgid 154
#define COPS_SYS_getpgid 155
#define COPS_SYS_getsid 156
#define COPS_SYS_setsid 157
#define COPS_SYS_getgroups 158
#define COPS_SYS_setgroups 159
#define COPS_SYS_uname 160
#define COPS_SYS_getrlimit 163
#define COPS_SYS_setrlimit 164
#define COPS_SYS_getrusage 165
#define COPS_SYS_umask 166
#define COPS_SYS_prctl 167
#define COPS_SYS_getcpu 168
#define COPS_SYS_gettimeofday 169
#define COPS_SYS_getpid 172
#define COPS_SYS_getppid 173
#define COPS_SYS_getuid 174
#define COPS_SYS_geteuid 175
#define COPS_SYS_getgid 176
#define COPS_SYS_getegid 177
#define COPS_SYS_gettid 178
#define COPS_SYS_sysinfo 179
#define COPS_SYS_mq_open 180
#define COPS_SYS_mq_unlink 181
#define COPS_SYS_mq_timedsend 182
#define COPS_SYS_mq_timedreceive 183
#define COPS_SYS_mq_notify 184
#define COPS_SYS_mq_getsetattr 185
#define COPS_SYS_semget 190
#define COPS_SYS_semctl 191
#define COPS_SYS_semtimedop 192
#define COPS_SYS_semop 193
#define COPS_SYS_shmget 194
#define COPS_SYS_shmctl 195
#define COPS_SYS_shmat 196
#define COPS_SYS_shmdt 197
#define COPS_SYS_socket 198
#define COPS_SYS_socketpair 199
#define COPS_SYS_bind 200
#define COPS_SYS_listen 201
#define COPS_SYS_accept 202
#define COPS_SYS_connect 203
#define COPS_SYS_getsockname 204
#define COPS_SYS_getpeername 205
#define COPS_SYS_sendto 206
#define COPS_SYS_recvfrom 207
#define COPS_SYS_setsockopt 208
#define COPS_SYS_getsockopt 209
#define COPS_SYS_shutdown 210
#define COPS_SYS_sendmsg 211
#define COPS_SYS_recvmsg 212
#define COPS_SYS_readahead 213
#define COPS_SYS_brk 214
#define COPS_SYS_munmap 215
#define COPS_SYS_mremap 216
#define COPS_SYS_clone 220
#define COPS_SYS_execve 221
#define COPS_SYS_mmap 222
#define COPS_SYS_fadvise64 223
#define COPS_SYS_mprotect 226
#define COPS_SYS_msync 227
#define COPS_SYS_mlock 228
#define COPS_SYS_munlock 229
#define COPS_SYS_mlockall 230
#define COPS_SYS_munlockall 231
#define COPS_SYS_mincore 232
#define COPS_SYS_madvise 233
#define COPS_SYS_rt_tgsigqueueinfo 240
#define COPS_SYS_accept4 242
#define COPS_SYS_recvmmsg 243
#define COPS_SYS_riscv_flush_icache 259
#define COPS_SYS_wait4 260
#define COPS_SYS_prlimit64 261
#define COPS_SYS_syncfs 267
#define COPS_SYS_sendmmsg 269
#define COPS_SYS_renameat2 276
#define COPS_SYS_getrandom 278
#define COPS_SYS_memfd_create 279
#define COPS_SYS_execveat 281
#define COPS_SYS_membarrier 283
#define COPS_SYS_mlock2 284
#define COPS_SYS_copy_file_range 285
#define COPS_SYS_preadv2 286
#define COPS_SYS_pwritev2 287
#define COPS_SYS_statx 291
#define COPS_SYS_pidfd_send_signal 424
#define COPS_SYS_pidfd_open 434
#define COPS_SYS_clone3 435
#define COPS_SYS_close_range 436
#define COPS_SYS_pidfd_getfd 438
#define COPS_SYS_faccessat2 439
#define COPS_SYS_epoll_pwait2 441
#define COPS_SYS_futex_waitv 449
#define COPS_SYS_fchmodat2 452
#define COPS_SYS_spawn 0x1000
#define COPS_SYS_worker_create 0x1001
#define COPS_SYS_worker_wait 0x1002
#define COPS_SYS_worker_wake 0x1003
#define COPS_SYS_cancel 0x1004
#define COPS_SYS_counters 0x1005
#define COPS_SYS_interrupt_handler 0x1006
#define COPS_SYS_interrupt_return 0x1007
#define COPS_SYS_interrupt_leave 0x1009
#define COPS_SYS_log 0x1008
#define COPS_SYS_ring_setup 0x1010
#define COPS_SYS_ring_enter 0x1011
#define COPS_SYS_interrupt_receiver 0x1020
#define COPS_SYS_interrupt_grant 0x1021
#define COPS_SYS_interrupt_open 0x1022
#define COPS_SYS_interrupt_send 0x1023
#define COPS_SYS_interrupt_revoke 0x1024
#define COPS_SYS_interrupt_page 0x1025
#define COPS_SYS_get_scheduling 0x1030
#define COPS_SYS_set_scheduling 0x1031
#define COPS_SYS_set_system_scheduling 0x1032
#define COPS_SYS_trace_read 0x1033
#define COPS_SYS_trace_write 0x1034
#define COPS_SYS_snapshot 0x1035
#define COPS_SYS_kernel_side 0x1040

#define COPS_EPERM 1 /* operation not permitted */
#define COPS_ENOENT 2 /* no such file or directory */
#define COPS_ESRCH 3 /* no such process */
#define COPS_EINTR 4 /* interrupted system call */
#define COPS_EIO 5 /* input/output error */
#define COPS_ENXIO 6 /* no such device or address */
#define COPS_E2BIG 7 /* argument list too long */
#define COPS_ENOEXEC 8 /* not an executable of this machine */
#define COPS_EBADF 9 /* bad file descriptor */
#define COPS_ECHILD 10 /* no child processes */
#define COPS_EAGAIN 11 /* resource temporarily unavailable */
#define COPS_ENOMEM 12 /* out of memory */
#define COPS_EACCES 13 /* permission denied */
#define COPS_EFAULT 14 /* bad address */
#define COPS_ENOTBLK 15 /* block device required */
#define COPS_EBUSY 16 /* device or resource busy */
#define COPS_EEXIST 17 /* file exists */
#define COPS_EXDEV 18 /* link across file systems */
#define COPS_ENODEV 19 /* no such device */
#define COPS_ENOTDIR 20 /* not a directory */
#define COPS_EISDIR 21 /* is a directory */
#define COPS_EINVAL 22 /* invalid argument */
#define COPS_ENFILE 23 /* too many open files in the system */
#define COPS_EMFILE 24 /* too many open files */
#define COPS_ENOTTY 25 /* not a terminal */
#define COPS_ETXTBSY 26 /* a program is run from the file */
#define COPS_EFBIG 27 /* file too large */
#define COPS_ENOSPC 28 /* no space left on device */
#define COPS_ESPIPE 29 /* illegal seek */
#define COPS_EROFS 30 /* read-only file system */
#define COPS_EMLINK 31 /* too many links */
#define COPS_EPIPE 32 /* broken pipe */
#define COPS_EDOM 33 /* argument out of domain */
#define COPS_ERANGE 34 /* result out of range */
#define COPS_EDEADLK 35 /* resource deadlock would occur */
#define COPS_ENAMETOOLONG 36 /* file name too long */
#define COPS_ENOLCK 37 /* no locks available */
#define COPS_ENOSYS 38 /* function not implemented */
#define COPS_ENOTEMPTY 39 /* directory not empty */
#define COPS_ELOOP 40 /* too many levels of symbolic links */
#define COPS_EIDRM 43 /* identifier was removed */
#define COPS_ENODATA 61 /* no such attribute */
#define COPS_EPROTO 71 /* protocol error */
#define COPS_EOVERFLOW 75 /* value too large for its type */
#define COPS_ELIBBAD 80 /* the dynamic linker is not an executable of this machine */
#define COPS_ENOTSOCK 88 /* not a socket */
#define COPS_EDESTADDRREQ 89 /* destination address required */
#define COPS_EMSGSIZE 90 /* message too long */
#define COPS_EPROTOTYPE 91 /* wrong protocol type for socket */
#define COPS_ENOPROTOOPT 92 /* protocol option not available */
#define COPS_EPROTONOSUPPORT 93 /* protocol not supported */
#define COPS_ESOCKTNOSUPPORT 94 /* socket type not supported */
#define COPS_EOPNOTSUPP 95 /* operation not supported */
#define COPS_EAFNOSUPPORT 97 /* address family not supported */
#define COPS_EADDRINUSE 98 /* address already in use */
#define COPS_EADDRNOTAVAIL 99 /* cannot assign requested address */
#define COPS_ENETDOWN 100 /* network is down */
#define COPS_ENETUNREACH 101 /* network is unreachable */
#define COPS_ECONNABORTED 103 /* connection aborted */
#define COPS_ECONNRESET 104 /* connection reset by peer */
#define COPS_ENOBUFS 105 /* no buffer space available */
#define COPS_EISCONN 106 /* socket is connected */
#define COPS_ENOTCONN 107 /* socket is not connected */
#define COPS_ETOOMANYREFS 109 /* too many files in messages */
#define COPS_ETIMEDOUT 110 /* connection timed out */
#define COPS_ECONNREFUSED 111 /* connection refused */
#define COPS_EHOSTUNREACH 113 /* no route to host */
#define COPS_EALREADY 114 /* operation already in progress */
#define COPS_EINPROGRESS 115 /* operation now in progress */
#define COPS_ESTALE 116 /* stale file handle */
#define COPS_ECANCELED 125 /* operation cancelled */

#define COPS_ASYNCHRONOUS (1ul << 16)
#define COPS_PRIORITY_SHIFT 24
#define COPS_WILL_BE_POSTED (-4096l)

/* Keys of the auxiliary vector. */
#define COPS_AT_SYSINFO_EHDR 33
#define COPS_AT_PROCESS_PAGE 0x434f0001ul
#define COPS_AT_GLOBAL_PAGE 0x434f0002ul
#define COPS_AT_COMPLETION_RING 0x434f0003ul
#define COPS_AT_HARTS 0x434f0004ul

struct cops_timespec {
    int64_t seconds;
    int64_t nanoseconds;
};

/* An entry of the completion ring. */
struct cops_completion {
    uint64_t token;
    uint64_t cid;
    uint64_t result;
    uint64_t reserved;
};

#define COPS_RING_CAPACITY 512 /* unless ring_setup is asked for more */
#define COPS_RING_HEAD_OFFSET 64
#define COPS_RING_ENTRIES_OFFSET 4096

static inline long cops_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    register long a0 __asm__("a0") = a;
    register long a1 __asm__("a1") = b;
    register long a2 __asm__("a2") = c;
    register long a3 __asm__("a3") = d;
    register long a4 __asm__("a4") = e;
    register long a5 __asm__("a5") = f;
    register long a7 __asm__("a7") = number;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5), "r"(a7) : "memory");
    return a0;
}

static inline long cops_syscall_asynchronous(long number, long a, long b, long c, long d, long e, long f, uint64_t cid,
                                             unsigned priority, uint64_t token)
{
    register long a0 __asm__("a0") = a;
    register long a1 __asm__("a1") = b;
    register long a2 __asm__("a2") = c;
    register long a3 __asm__("a3") = d;
    register long a4 __asm__("a4") = e;
    register long a5 __asm__("a5") = f;
    register uint64_t a6 __asm__("a6") = cid;
    register long a7 __asm__("a7") = number | (long)COPS_ASYNCHRONOUS | (long)(priority & 63) << COPS_PRIORITY_SHIFT;
    register uint64_t t0 __asm__("t0") = token;
    __asm__ volatile("ecall"
                     : "+r"(a0)
                     : "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5), "r"(a6), "r"(a7), "r"(t0)
                     : "memory");
    return a0;
}

static inline long cops_read(int descriptor, void *buffer, size_t size)
{
    return cops_syscall(COPS_SYS_read, descriptor, (long)buffer, (long)size, 0, 0, 0);
}

static inline long cops_write(int descriptor, const void *buffer, size_t size)
{
    return cops_syscall(COPS_SYS_write, descriptor, (long)buffer, (long)size, 0, 0, 0);
}

static inline long cops_close(int descriptor)
{
    return cops_syscall(COPS_SYS_close, descriptor, 0, 0, 0, 0, 0);
}

static inline long cops_pipe(int descriptors[2], unsigned flags)
{
    return cops_syscall(COPS_SYS_pipe2, (long)descriptors, (long)flags, 0, 0, 0, 0);
}

static inline long cops_getpid(void)
{
    return cops_syscall(COPS_SYS_getpid, 0, 0, 0, 0, 0, 0);
}

static inline long cops_clock_gettime(unsigned clock, struct cops_timespec *time)
{
    return cops_syscall(COPS_SYS_clock_gettime, (long)clock, (long)time, 0, 0, 0, 0);
}

static inline long cops_nanosleep(const struct cops_timespec *duration)
{
    return cops_syscall(COPS_SYS_nanosleep, (long)duration, 0, 0, 0, 0, 0);
}

/* The worker sleeps until a completion beyond `seen` was posted, another worker wakes it, or the time is over
 * (UINT64_MAX: no limit). */
static inline long cops_worker_wait(uint64_t seen, uint64_t timeout_ns)
{
    return cops_syscall(COPS_SYS_worker_wait, (long)seen, (long)timeout_ns, 0, 0, 0, 0);
}

static inline long cops_worker_wake(unsigned worker)
{
    return cops_syscall(COPS_SYS_worker_wake, (long)worker, 0, 0, 0, 0, 0);
}

static inline long cops_cancel_call(uint64_t token)
{
    return cops_syscall(COPS_SYS_cancel, (long)token, 0, 0, 0, 0, 0);
}

/* Maps zeroed memory, readable and writable; gives its address or -errno. */
static inline long cops_map(size_t size)
{
    return cops_syscall(COPS_SYS_mmap, 0, (long)size, 3, 0x22, -1, 0);
}

static inline long cops_unmap(void *address, size_t size)
{
    return cops_syscall(COPS_SYS_munmap, (long)address, (long)size, 0, 0, 0, 0);
}

static inline _Noreturn void cops_exit(int status)
{
    for (;;)
        cops_syscall(COPS_SYS_exit_group, status, 0, 0, 0, 0, 0);
}

/* From crt0.c: the value with this key in the auxiliary vector, 0 if there is none. */
uint64_t cops_auxiliary_value(uint64_t key);

#endif
