//! Signals: handlers with their information and registers, masks, stacks, waits, restarts, stops and faults.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use abi_unix::types::{TimeSpec, WCONTINUED, WNOHANG, WUNTRACED, signal};
use abi_unix::{Errno, SystemCall};
use cops::process::{Child, Ending};
use cops::system::{self, file};
use cops::thread;
use cops::time::{Duration, Instant};

use crate::fork::{fork, status_of};
use crate::harness::{self, LIMIT, Outcome, call, until};
use crate::{check, check_eq, must};

const USR1: usize = 10;
const USR2: usize = 12;
const STOP: usize = 19;
const REAL_TIME: usize = 40;
const EVERY_SIGNAL: u64 = u64::MAX;

const RESTART: u64 = 0x1000_0000;
const ONSTACK: u64 = 0x0800_0000;
const SIGINFO: u64 = 4;
/// Modes of `rt_sigprocmask`.
const BLOCK: usize = 0;
const UNBLOCK: usize = 1;
const SET: usize = 2;

/// Codes of origin.
const BY_KILL: i32 = 0;
const BY_QUEUE: i32 = -1;
const BY_THREAD: i32 = -6;
const NOT_MAPPED: i32 = 1;
const NOT_PERMITTED: i32 = 2;

/// Offset of `pc` in a handler's context.
const PC: usize = 176;

/// The words that a handler writes down of one signal.
struct Record {
    signal: AtomicU64,
    code: AtomicU64,
    /// Words 16 and 24 of the information.
    details: [AtomicU64; 2],
    stack: AtomicU64,
}

const RECORDS: usize = 64;
static RECORD: [Record; RECORDS] = [const {
    Record {
        signal: AtomicU64::new(0),
        code: AtomicU64::new(0),
        details: [AtomicU64::new(0), AtomicU64::new(0)],
        stack: AtomicU64::new(0),
    }
}; RECORDS];
static HANDLED: AtomicUsize = AtomicUsize::new(0);

fn handled() -> usize {
    HANDLED.load(Ordering::Acquire)
}

/// Returns the numbers of the signals that were handled since there were `from`.
fn signals_since(from: usize) -> Vec<u64> {
    (from..handled()).map(|index| RECORD[index % RECORDS].signal.load(Ordering::Relaxed)).collect()
}

fn code_of(index: usize) -> i32 {
    RECORD[index % RECORDS].code.load(Ordering::Relaxed) as i32
}

fn detail_of(index: usize, word: usize) -> u64 {
    RECORD[index % RECORDS].details[word].load(Ordering::Relaxed)
}

/// Writes a signal down.
extern "C" fn record(number: i32, information: *const u8, _context: *mut u8) {
    // SAFETY: the kernel gives the address of 128 bytes, aligned to 8.
    let (code, first, second) = unsafe {
        let word = |at: usize| information.add(at).cast::<u64>().read();
        (information.add(8).cast::<i32>().read(), word(16), word(24))
    };
    let record = &RECORD[handled() % RECORDS];
    record.signal.store(number as u64, Ordering::Relaxed);
    record.code.store(code as u64, Ordering::Relaxed);
    record.details[0].store(first, Ordering::Relaxed);
    record.details[1].store(second, Ordering::Relaxed);
    record.stack.store(&raw const code as u64, Ordering::Relaxed);
    HANDLED.fetch_add(1, Ordering::AcqRel);
}

/// Writes a signal down, and goes on behind the instruction, of four bytes, that has caused it.
extern "C" fn skip(number: i32, information: *const u8, context: *mut u8) {
    record(number, information, context);
    // SAFETY: the context has the program's registers there.
    unsafe { *context.add(PC).cast::<u64>() += 4 };
}

/// Floating-point registers in a handler are its own.
extern "C" fn compute(number: i32, information: *const u8, context: *mut u8) {
    let mut sums = [1.5f64; 16];
    for step in 0..100 {
        sums.iter_mut().for_each(|sum| *sum = core::hint::black_box(*sum * 1.25 + f64::from(step)));
    }
    core::hint::black_box(sums);
    record(number, information, context);
}

type Handler = extern "C" fn(i32, *const u8, *mut u8);

fn handle(signal: usize, handler: Handler, flags: u64, mask: u64) -> Result<usize, Errno> {
    let action = [handler as *const () as u64, flags | SIGINFO, mask];
    call(SystemCall::SignalAction, [signal, action.as_ptr() as usize, 0, 8, 0, 0])
}

fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

/// Changes the blocked signals, and returns those from before.
fn mask(how: usize, set: u64) -> Result<u64, Errno> {
    let mut old = 0u64;
    call(SystemCall::SignalMask, [how, &raw const set as usize, &raw mut old as usize, 8, 0, 0])?;
    Ok(old)
}

fn own() -> usize {
    system::process::number() as usize
}

/// Sends a signal to the calling thread: it is handled when the call returns, unless it is blocked.
fn raise(signal: usize) -> Result<usize, Errno> {
    call(SystemCall::KillThreadOf, [own(), system::thread::current() as usize, signal, 0, 0, 0])
}

/// Sends a signal with a value to the calling thread.
fn raise_with(signal: usize, value: u64) -> Result<usize, Errno> {
    let mut information = [0u64; 16];
    information[1] = u64::from(BY_QUEUE as u32);
    information[3] = value;
    let thread = system::thread::current() as usize;
    call(SystemCall::SignalQueueThread, [own(), thread, signal, information.as_ptr() as usize, 0, 0])
}

fn pending() -> Result<u64, Errno> {
    let mut set = 0u64;
    call(SystemCall::SignalPending, [&raw mut set as usize, 8, 0, 0, 0, 0])?;
    Ok(set)
}

pub async fn handlers_get_information_and_leave_the_registers() -> Outcome {
    must!(handle(USR1, compute, 0, 0));
    let (thread, process) = (system::thread::current() as usize, own());
    check_eq!(raise(USR1), Ok(0));
    check_eq!((signals_since(0), code_of(0), detail_of(0, 0)), (alloc::vec![10], BY_THREAD, process as u64));
    check_eq!(raise_with(USR1, 0x1234_5678_9abc_def0), Ok(0));
    check_eq!((code_of(1), detail_of(1, 1)), (BY_QUEUE, 0x1234_5678_9abc_def0));
    check_eq!(call(SystemCall::KillThread, [thread, USR1, 0, 0, 0, 0]), Ok(0));
    check_eq!(handled(), 3);
    check_eq!(call(SystemCall::Kill, [process, USR1, 0, 0, 0, 0]), Ok(0));
    until(|| Ok(handled() == 4)).await?;
    check_eq!((code_of(3), detail_of(3, 0) as u32), (BY_KILL, process as u32));
    // A busy thread is interrupted at any instruction.
    static TURNS: AtomicU64 = AtomicU64::new(0);
    let busy = must!(thread::spawn(|| {
        let expected = sums(50);
        while handled() < 40 {
            assert_eq!(sums(50), expected);
            TURNS.fetch_add(1, Ordering::Relaxed);
        }
    }));
    until(|| Ok(TURNS.load(Ordering::Relaxed) > 0)).await?;
    while handled() < 40 {
        check_eq!(call(SystemCall::Kill, [process, USR1, 0, 0, 0, 0]), Ok(0));
        // The first worker blocks it, so the thread gets it.
        must!(mask(BLOCK, bit(USR1)));
        thread::yield_now();
    }
    must!(mask(UNBLOCK, bit(USR1)));
    busy.join();
    Ok(())
}

/// Computes sums that are wrong if a handler changes a register.
#[inline(never)]
fn sums(steps: u32) -> [f64; 8] {
    let mut sums = [0.0; 8];
    for step in 0..steps {
        for (place, sum) in sums.iter_mut().enumerate() {
            *sum += f64::from(step) * (place as f64 + 0.5);
        }
    }
    sums
}

pub async fn blocked_signals_wait_and_come_in_order() -> Outcome {
    for signal in [USR1, USR2, REAL_TIME, REAL_TIME + 1] {
        // Every other signal waits for the end of the handler: so the order of handlers is that of delivery.
        must!(handle(signal, record, 0, EVERY_SIGNAL));
    }
    let set = bit(USR1) | bit(USR2) | bit(REAL_TIME) | bit(REAL_TIME + 1) | bit(STOP) | bit(signal::KILL as usize);
    check_eq!(mask(SET, set), Ok(0));
    for (signal, value) in [(REAL_TIME + 1, 7), (REAL_TIME, 5), (USR2, 2), (USR2, 3), (REAL_TIME, 6), (USR1, 1)] {
        check_eq!(raise_with(signal, value), Ok(0));
    }
    check_eq!(handled(), 0);
    // KILL and STOP cannot be blocked.
    let blocked = set & !bit(STOP) & !bit(signal::KILL as usize);
    check_eq!(pending(), Ok(blocked));
    check_eq!(mask(UNBLOCK, EVERY_SIGNAL), Ok(blocked));
    // The lowest number first, a standard signal once, real-time ones in their order.
    check_eq!(signals_since(0), [10, 12, 40, 40, 41]);
    check_eq!((0..5).map(|index| detail_of(index, 1)).collect::<Vec<_>>(), [1, 2, 5, 6, 7]);
    check_eq!(mask(BLOCK, 0), Ok(0));
    // No more than 256 queue with their values.
    must!(mask(SET, bit(REAL_TIME)));
    for value in 0..256 {
        check_eq!(raise_with(REAL_TIME, value), Ok(0));
    }
    check_eq!(raise_with(REAL_TIME, 256), Err(Errno::EAGAIN));
    must!(mask(SET, 0));
    check_eq!(handled(), 5 + 256);
    Ok(())
}

pub async fn handlers_can_have_a_stack_of_their_own() -> Outcome {
    let stack = alloc::vec![0u64; 2048].leak().as_ptr_range();
    let (start, end) = (stack.start as usize, stack.end as usize);
    let mine = [start, 0, end - start];
    must!(handle(USR1, record, ONSTACK, 0));
    check_eq!(call(SystemCall::SignalStack, [mine.as_ptr() as usize, 0, 0, 0, 0, 0]), Ok(0));
    must!(raise(USR1));
    let place = RECORD[0].stack.load(Ordering::Relaxed) as usize;
    check!((start..end).contains(&place), "the handler's frame is at {place:#x}");
    must!(handle(USR1, record, 0, 0));
    must!(raise(USR1));
    let place = RECORD[1].stack.load(Ordering::Relaxed) as usize;
    check!(!(start..end).contains(&place), "the handler's frame is at {place:#x}");
    let mut old = [0usize; 3];
    check_eq!(call(SystemCall::SignalStack, [0, old.as_mut_ptr() as usize, 0, 0, 0, 0]), Ok(0));
    check_eq!(old, mine);
    let none = [0usize, 2, 0];
    check_eq!(call(SystemCall::SignalStack, [none.as_ptr() as usize, 0, 0, 0, 0, 0]), Ok(0));
    // A handler that overflows it ends the process.
    check_eq!(harness::ending_of_act("signals-small-stack").await?, Ending::Killed(signal::SEGV as u8));
    // With one a program can handle the overflow of its stack.
    check_eq!(harness::ending_of_act("signals-overflow").await?, Ending::Exited(42));
    Ok(())
}

/// Reads a word, with an instruction of four bytes.
fn read(address: usize) {
    // SAFETY: the handler goes on behind the instruction, and the word is not used.
    unsafe {
        core::arch::asm!(".option push", ".option norvc", "lw {word}, 0({address})", ".option pop",
            address = in(reg) address, word = lateout(reg) _);
    }
}

fn write(address: usize) {
    // SAFETY: as above; nothing is written.
    unsafe {
        core::arch::asm!(".option push", ".option norvc", "sw zero, 0({address})", ".option pop",
            address = in(reg) address);
    }
}

pub async fn faults_are_signals_with_address_and_code() -> Outcome {
    for signal in [signal::SEGV, signal::ILL, signal::TRAP, signal::BUS] {
        must!(handle(signal as usize, skip, 0, 0));
    }
    let code = skip as *const () as usize & !3;
    read(0x2008);
    read(0xffff_ffc0_8020_0000);
    write(code);
    // SAFETY: the handler goes on behind the instruction.
    unsafe { core::arch::asm!(".option push", ".option norvc", "unimp", "ebreak", ".option pop") };
    check_eq!(signals_since(0), [11, 11, 11, 4, 5]);
    check_eq!((code_of(0), detail_of(0, 0)), (NOT_MAPPED, 0x2008));
    check_eq!((code_of(1), detail_of(1, 0)), (NOT_MAPPED, 0xffff_ffc0_8020_0000));
    check_eq!((code_of(2), detail_of(2, 0)), (NOT_PERMITTED, code as u64));
    check_eq!((code_of(3), code_of(4)), (1, 1));
    check_eq!(detail_of(4, 0), detail_of(3, 0) + 4);
    // One that is blocked ends the process, and so does one in the code of the kernel's image.
    check_eq!(harness::ending_of_act("signals-blocked-fault").await?, Ending::Killed(signal::SEGV as u8));
    check_eq!(harness::ending_of_act("signals-fault-in-image").await?, Ending::Killed(signal::ILL as u8));
    Ok(())
}

/// Starts a thread, and sends it signals until it is done.
async fn disturb<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Result<T, alloc::string::String> {
    static THREAD: AtomicUsize = AtomicUsize::new(0);
    static DONE: AtomicUsize = AtomicUsize::new(0);
    let before = DONE.load(Ordering::Acquire);
    THREAD.store(0, Ordering::Release);
    let running = must!(thread::spawn(move || {
        THREAD.store(system::thread::current() as usize, Ordering::Release);
        let value = body();
        THREAD.store(0, Ordering::Release);
        DONE.fetch_add(1, Ordering::AcqRel);
        value
    }));
    let start = Instant::now();
    while DONE.load(Ordering::Acquire) == before {
        let thread = THREAD.load(Ordering::Acquire);
        if thread != 0 {
            let sent = call(SystemCall::KillThreadOf, [own(), thread, USR1, 0, 0, 0]);
            check!(matches!(sent, Ok(0) | Err(Errno::ESRCH)), "tgkill: {sent:?}");
        }
        check!(start.elapsed() < LIMIT, "the thread waits for ever");
        cops::sleep(Duration::from_millis(2)).await;
    }
    Ok(running.join())
}

pub async fn interrupted_calls_end_or_are_made_again() -> Outcome {
    must!(handle(USR1, record, 0, 0));
    let (reader, writer) = must!(system::file::pipe(0));
    let descriptor = reader.raw();
    let result = disturb(move || system::file::read(descriptor, &mut [0; 1])).await?;
    check_eq!(result, Err(Errno::EINTR));
    // A sleep says how long it would have gone on.
    let (result, rest) = disturb(|| {
        let time = TimeSpec { seconds: 1000, nanoseconds: 0 };
        let mut rest = TimeSpec { seconds: 0, nanoseconds: 0 };
        let addresses = (&raw const time as usize, &raw mut rest as usize);
        let result = call(SystemCall::SleepOn, [1, 0, addresses.0, addresses.1, 0, 0]);
        (result, rest.seconds)
    })
    .await?;
    check_eq!(result, Err(Errno::EINTR));
    check!((900..1000).contains(&rest), "{rest} of 1000 s are left");
    // With `SA_RESTART` the read goes on, and gets what comes after the signals.
    must!(handle(USR1, record, RESTART, 0));
    let before = handled();
    let own_writer = writer.raw();
    let result = disturb(move || {
        let other = thread::spawn(move || {
            while handled() < before + 20 {
                thread::yield_now();
            }
            system::file::write(own_writer, b"x")
        });
        let mut byte = [0];
        let result = system::file::read(descriptor, &mut byte);
        let written = other.map(|other| other.join());
        (result, byte, written)
    })
    .await?;
    check_eq!(result, (Ok(1), *b"x", Ok(Ok(1))));
    Ok(())
}

pub async fn waits_for_signals() -> Outcome {
    must!(handle(USR1, record, 0, 0));
    let set = bit(USR1) | bit(REAL_TIME) | bit(signal::CHLD as usize);
    must!(mask(BLOCK, set));
    let wait = |set: u64, ms: u64| {
        let (time, mut information) = (TimeSpec::from_ns(ms * 1_000_000), [0u64; 16]);
        let addresses = [&raw const set as usize, information.as_mut_ptr() as usize, &raw const time as usize];
        let result = call(SystemCall::SignalWait, [addresses[0], addresses[1], addresses[2], 8, 0, 0]);
        (result, information[3])
    };
    check_eq!(wait(set, 1).0, Err(Errno::EAGAIN));
    must!(raise_with(REAL_TIME, 99));
    check_eq!(wait(set, 60_000), (Ok(REAL_TIME), 99));
    // It comes while the call waits.
    let thread = system::thread::current() as usize;
    let process = own();
    let other = must!(thread::spawn(move || {
        let _ = system::system::sleep(TimeSpec::from_ns(5_000_000));
        call(SystemCall::KillThreadOf, [process, thread, USR1, 0, 0, 0])
    }));
    check_eq!(wait(set, 60_000).0, Ok(USR1));
    check_eq!((other.join(), handled()), (Ok(0), 0));
    // The default of SIGCHLD is to be ignored, but a wait for it gets it.
    let child = must!(harness::act("return"));
    check_eq!(wait(bit(signal::CHLD as usize), 60_000).0, Ok(signal::CHLD as usize));
    check_eq!(must!(child.wait().await), Ending::Exited(7));
    // A wait for any handler, with other signals blocked.
    must!(mask(BLOCK, set));
    must!(raise(USR1));
    check_eq!(handled(), 0);
    let none = 0u64;
    check_eq!(call(SystemCall::SignalSuspend, [&raw const none as usize, 8, 0, 0, 0, 0]), Err(Errno::EINTR));
    check_eq!((handled(), mask(BLOCK, 0)), (1, Ok(set)));
    must!(mask(SET, 0));
    Ok(())
}

/// Waits for a child's change with these options; returns its status, or 0 if there is none.
fn changed(child: &Child, options: u32) -> Result<u32, Errno> {
    let mut status = 0u32;
    let number = child.number() as usize;
    let arguments = [number, &raw mut status as usize, options as usize, 0, 0, 0];
    Ok(if call(SystemCall::Wait, arguments)? == number { status } else { 0 })
}

pub async fn processes_stop_and_go_on() -> Outcome {
    // Sleeping in a call, and running on a hart.
    for act in ["sleep", "spin", "signals-threads"] {
        let child = must!(harness::act(act));
        let number = child.number() as usize;
        let send = |signal: usize| call(SystemCall::Kill, [number, signal, 0, 0, 0, 0]);
        for _ in 0..3 {
            check_eq!(send(STOP), Ok(0));
            check_eq!(changed(&child, WUNTRACED), Ok(0x137f));
            check_eq!(changed(&child, WUNTRACED | WNOHANG), Ok(0));
            // The other harts are called back, and come soon; then the process has no more processor time.
            let start = Instant::now();
            let mut used = 0;
            loop {
                let now = must!(system::scheduling::get(child.number())).cpu_ns;
                if now == used {
                    break;
                }
                used = now;
                check!(start.elapsed() < LIMIT, "a stopped process runs");
                cops::sleep(Duration::from_millis(20)).await;
            }
            check_eq!(send(signal::CONT as usize), Ok(0));
            check_eq!(changed(&child, WCONTINUED), Ok(0xffff));
        }
        // Signals wait for the continuation, but for SIGKILL.
        check_eq!(send(STOP), Ok(0));
        check_eq!(changed(&child, WUNTRACED), Ok(0x137f));
        check_eq!(send(signal::TERM as usize), Ok(0));
        cops::sleep(Duration::from_millis(20)).await;
        check_eq!(changed(&child, WNOHANG), Ok(0));
        check_eq!(send(signal::CONT as usize), Ok(0));
        check_eq!(must!(child.wait().await), Ending::Killed(signal::TERM as u8));
        let child = must!(harness::act(act));
        let number = child.number() as usize;
        check_eq!(call(SystemCall::Kill, [number, STOP, 0, 0, 0, 0]), Ok(0));
        check_eq!(changed(&child, WUNTRACED), Ok(0x137f));
        must!(child.kill());
        check_eq!(must!(child.wait().await), Ending::Killed(signal::KILL as u8));
    }
    Ok(())
}

pub async fn frames_are_not_trusted() -> Outcome {
    // All registers from a frame of ones, and a return without a frame.
    for act in ["signals-return-ones", "signals-return-nothing"] {
        check_eq!(harness::ending_of_act(act).await?, Ending::Killed(signal::SEGV as u8));
    }
    Ok(())
}

pub async fn a_storm_of_signals_disturbs_only_its_receiver() -> Outcome {
    let child = must!(harness::act("signals-count"));
    let number = child.number() as usize;
    // It has set its handlers: until then the signal that asks is ignored.
    check_eq!(changed(&child, WUNTRACED), Ok(0x137f));
    for round in 0..5_000 {
        let signal = [USR1, USR2, REAL_TIME, REAL_TIME + 5, STOP, signal::CONT as usize][round % 6];
        check_eq!(call(SystemCall::Kill, [number, signal, 0, 0, 0, 0]), Ok(0));
    }
    check_eq!(call(SystemCall::Kill, [number, signal::CONT as usize, 0, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::Kill, [number, signal::TERM as usize, 0, 0, 0, 0]), Ok(0));
    check_eq!(must!(child.wait().await), Ending::Exited(9));
    Ok(())
}

/// A descriptor gives signals instead of a handler; who waits there is woken, and can be killed.
pub async fn signals_are_read_from_a_descriptor() -> Outcome {
    const RECORD: usize = 128;
    let set: u64 = 1 << (USR1 - 1);
    check_eq!(system::signal::open_file(set, 1).err(), Some(Errno::EINVAL));
    let signals = must!(system::signal::open_file(set, 0));
    let reads = || {
        let mut bytes = [0; 2 * RECORD];
        let count = file::read(signals.raw(), &mut bytes).unwrap_or(0);
        (count == RECORD).then_some([0, 12].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]))))
    };
    let child = must!(fork(|| {
        if mask(SET, set).is_err() || raise(USR1).is_err() {
            return 1;
        }
        let sender = call(SystemCall::GetProcess, [0; 6]).unwrap_or(0) as u32;
        if reads() != Some([USR1 as u32, sender]) {
            return 2;
        }
        // The next one comes while it waits. It is blocked before its cause.
        let chld: u64 = 1 << (signal::CHLD - 1);
        if mask(SET, chld).is_err() || system::signal::set_signals_of(signals.raw(), chld).is_err() {
            return 3;
        }
        let slow = fork(|| {
            let _ = system::system::sleep(TimeSpec::from_ns(3_000_000));
            0
        });
        if slow.is_err() {
            return 4;
        }
        u8::from(reads().is_none_or(|[number, _]| number != signal::CHLD))
    }));
    check_eq!(status_of(child), Ok(0));
    let waits = must!(fork(|| u8::from(mask(SET, set).is_ok() && reads().is_some())));
    must!(system::system::sleep(TimeSpec::from_ns(2_000_000)));
    must!(call(SystemCall::Kill, [waits, signal::KILL as usize, 0, 0, 0, 0]));
    check_eq!(status_of(waits), Ok(0x100 | 9));
    Ok(())
}

/// Acts of this program as another process of these tests.
pub fn act(name: &str) -> i32 {
    extern "C" fn exit(_: i32, _: *const u8, _: *mut u8) {
        let _ = call(SystemCall::ExitGroup, [42, 0, 0, 0, 0, 0]);
    }
    match name {
        "signals-overflow" => {
            #[expect(unconditional_recursion, reason = "the stack is to overflow")]
            fn overflow(depth: u64) -> u64 {
                let frame = core::hint::black_box([depth; 64]);
                overflow(depth + 1) + frame[3]
            }
            let stack = alloc::vec![0u64; 2048].leak();
            let mine = [stack.as_ptr() as usize, 0, size_of_val(stack)];
            let set = call(SystemCall::SignalStack, [mine.as_ptr() as usize, 0, 0, 0, 0, 0]);
            if set.is_ok() && handle(signal::SEGV as usize, exit, ONSTACK, 0).is_ok() { overflow(1) as i32 } else { 1 }
        }
        "signals-small-stack" => {
            extern "C" fn again(_: i32, _: *const u8, _: *mut u8) {
                let _ = raise(USR1);
            }
            const NODEFER: u64 = 0x4000_0000;
            // In the middle of memory that the handlers could write.
            let stack = alloc::vec![0u64; 8192].leak();
            let mine = [stack.as_ptr() as usize + 32 * 1024, 0, 4096];
            let set = call(SystemCall::SignalStack, [mine.as_ptr() as usize, 0, 0, 0, 0, 0]);
            i32::from(set.is_err() || handle(USR1, again, ONSTACK | NODEFER, 0).is_err() || raise(USR1).is_err())
        }
        "signals-blocked-fault" => {
            let _ = handle(signal::SEGV as usize, skip, 0, 0);
            let _ = mask(SET, EVERY_SIGNAL);
            read(0x2008);
            1
        }
        "signals-fault-in-image" => {
            let _ = handle(signal::ILL as usize, skip, 0, 0);
            let image = harness::told(abi_unix::types::auxiliary::SYSINFO_EHDR);
            // The first bytes of the image are no instruction.
            // SAFETY: the process ends here, as the test intends.
            unsafe { core::arch::asm!("jr {}", in(reg) image, options(noreturn)) }
        }
        "signals-return-ones" => return_from(0xff),
        "signals-return-nothing" => return_from(0),
        "signals-threads" => {
            for _ in 0..3 {
                let _ = thread::spawn(|| {
                    loop {
                        let _ = system::system::sleep(TimeSpec::from_ns(1_000_000));
                    }
                });
            }
            loop {
                let _ = system::system::sleep(TimeSpec::from_ns(1_000_000_000));
            }
        }
        "signals-count" => {
            static ENDS: AtomicBool = AtomicBool::new(false);
            // Signals that come together have their frames above each other, so this handler may be the first.
            extern "C" fn end(_: i32, _: *const u8, _: *mut u8) {
                ENDS.store(true, Ordering::Relaxed);
            }
            let signals = [USR1, USR2, REAL_TIME, REAL_TIME + 5];
            let is_set = signals.iter().all(|&signal| handle(signal, record, RESTART, 0).is_ok());
            if !is_set || handle(signal::TERM as usize, end, 0, 0).is_err() {
                return 2;
            }
            let _ = raise(STOP);
            while !ENDS.load(Ordering::Relaxed) {
                core::hint::black_box(sums(100));
            }
            if handled() > 0 { 9 } else { 1 }
        }
        _ => 1,
    }
}

/// Returns from a handler with a frame of these bytes.
fn return_from(byte: u8) -> i32 {
    let frame = alloc::vec![byte; 8192].leak();
    // SAFETY: the process ends here, as the test intends.
    unsafe {
        core::arch::asm!("mv sp, {}", "ecall", in(reg) frame.as_ptr(), in("a7") SystemCall::SignalReturn as usize,
            options(noreturn))
    }
}
