//! Threads and futexes: illegal calls first, then synchronisation, many threads, and their ends.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use abi_unix::types::{TimeSpec, clock, clone, futex, mapping, memory_barrier, signal};
use abi_unix::{Counter, Errno, SystemCall};
use cops::process::Ending;
use cops::system;
use cops::thread::{self, Builder, Condvar, LocalKey, Mutex};
use cops::time::{Duration, Instant};

use crate::fork;
use crate::harness::{self, LIMIT, Outcome, call, counter};
use crate::{check, check_eq, must};

/// An address in the kernel's half of the address space.
const KERNEL: usize = 0xffff_ffc0_8020_0000;
/// An address below all mappings.
const UNMAPPED: usize = 0x2000;

fn futex_call(word: usize, operation: u32, rest: [usize; 4]) -> Result<usize, Errno> {
    call(SystemCall::Futex, [word, operation as usize, rest[0], rest[1], rest[2], rest[3]])
}

fn address(word: &AtomicU32) -> usize {
    word.as_ptr() as usize
}

pub async fn illegal_calls() -> Outcome {
    use Errno::*;
    use clone::*;
    // None of these starts a thread.
    for (flags, error) in [
        (VM | 17, ENOSYS),
        (FILES | 17, ENOSYS),
        (THREAD, EINVAL),
        (THREAD | SIGHAND, EINVAL),
        (SIGHAND, EINVAL),
        (VM | SIGHAND | THREAD, ENOSYS),
        (SHARED & !FILES, ENOSYS),
        (SHARED | PIDFD, ENOSYS),
        (SHARED | NEWNS, EINVAL),
        (SHARED | 1 << 31, ENOSYS),
        (SHARED | 1 << 40, ENOSYS),
    ] {
        check_eq!((flags, call(SystemCall::Clone, [flags as usize, 0, 0, 0, 0, 0])), (flags, Err(error)));
    }
    // The number of no thread, by which it could own the word as a lock.
    let value = 0x3abc_0005;
    let word = AtomicU32::new(value);
    let here = address(&word);
    let bad_time = TimeSpec { seconds: 0, nanoseconds: 1_000_000_000 };
    let negative = TimeSpec { seconds: -1, nanoseconds: 0 };
    let (bad_time, negative) = (&raw const bad_time as usize, &raw const negative as usize);
    let real_time = futex::CLOCK_REALTIME;
    for (at, operation, rest, error) in [
        (here, futex::WAIT, [6, 0, 0, 0], EAGAIN),
        (here + 1, futex::WAIT, [value as usize, 0, 0, 0], EINVAL),
        (here + 2, futex::WAKE, [1, 0, 0, 0], EINVAL),
        (0, futex::WAIT, [0, 0, 0, 0], EFAULT),
        (UNMAPPED, futex::WAIT, [0, 0, 0, 0], EFAULT),
        (KERNEL, futex::WAIT, [0, 0, 0, 0], EFAULT),
        (KERNEL, futex::WAKE, [1, 0, 0, 0], EFAULT),
        (usize::MAX - 3, futex::WAKE, [1, 0, 0, 0], EFAULT),
        (here, futex::WAIT, [value as usize, bad_time, 0, 0], EINVAL),
        (here, futex::WAIT, [value as usize, negative, 0, 0], EINVAL),
        (here, futex::WAIT, [value as usize, KERNEL, 0, 0], EFAULT),
        (here, futex::WAIT_BITSET, [value as usize, 0, 0, 0], EINVAL),
        (here, futex::WAKE_BITSET, [1, 0, 0, 0], EINVAL),
        (here, futex::WAIT | real_time, [value as usize, 0, 0, 0], ENOSYS),
        (here, futex::WAKE | real_time, [value as usize, 0, 0, 0], ENOSYS),
        (here, futex::REQUEUE, [1, 1, here + 1, 0], EINVAL),
        (here, futex::REQUEUE, [1, 1, KERNEL, 0], EFAULT),
        (here, futex::REQUEUE, [usize::MAX, 1, here, 0], EINVAL),
        (here, futex::REQUEUE, [1, usize::MAX, here, 0], EINVAL),
        (here, futex::CMP_REQUEUE, [1, 1, here, 6], EAGAIN),
        (here, 2, [0; 4], ENOSYS),
        (here, futex::WAKE_OP, [1, 1, KERNEL, 0], EFAULT),
        (here, futex::WAKE_OP, [1, 1, here + 1, 0], EINVAL),
        (here, futex::WAKE_OP, [1, 1, here, 5 << 28], ENOSYS),
        (here, futex::WAKE_OP, [1, 1, here, 6 << 24], ENOSYS),
        (here, futex::LOCK | real_time, [0; 4], ENOSYS),
        (here, futex::UNLOCK, [0; 4], EPERM),
        (here + 1, futex::LOCK, [0; 4], EINVAL),
        (KERNEL, futex::TRY_LOCK, [0; 4], EFAULT),
        (here, 11, [0; 4], ENOSYS),
        (here, 12, [0; 4], ENOSYS),
        (here, 77, [0; 4], ENOSYS),
        (here, u32::MAX, [0; 4], ENOSYS),
    ] {
        check_eq!((at, operation, rest, futex_call(at, operation, rest)), (at, operation, rest, Err(error)));
    }
    check_eq!(call(SystemCall::SetRobustList, [here, 23, 0, 0, 0, 0]), Err(EINVAL));
    check_eq!(call(SystemCall::GetRobustList, [0, KERNEL, here, 0, 0, 0]), Err(EFAULT));
    check_eq!(call(SystemCall::GetRobustList, [999_999, here, here, 0, 0, 0]), Err(ESRCH));
    check_eq!(call(SystemCall::GetRobustList, [usize::MAX, here, here, 0, 0, 0]), Err(ESRCH));
    Ok(())
}

pub async fn results_stacks_and_numbers() -> Outcome {
    #[inline(never)]
    fn sum(depth: u64) -> u64 {
        let frame = core::hint::black_box([depth; 32]);
        if depth == 0 { 0 } else { sum(depth - 1) + frame[7] }
    }
    let mut running = Vec::new();
    for number in 0..8u64 {
        running.push(must!(thread::spawn(move || (number, sum(300 + number), system::thread::current()))));
    }
    let mut numbers = alloc::vec![system::thread::current()];
    check_eq!(numbers[0], must!(call(SystemCall::GetProcess, [0; 6])) as u32);
    for (index, thread) in running.into_iter().enumerate() {
        let (number, sum, thread) = thread.join();
        let depth = 300 + number;
        check_eq!((number, sum), (index as u64, depth * (depth + 1) / 2));
        check!(!numbers.contains(&thread), "two threads have the number {thread}");
        numbers.push(thread);
    }
    // A detached thread ends by itself.
    let done = Arc::new(AtomicU32::new(0));
    drop(must!(thread::spawn({
        let done = done.clone();
        move || done.store(1, Ordering::Release)
    })));
    let start = Instant::now();
    while done.load(Ordering::Acquire) == 0 {
        check!(start.elapsed() < LIMIT);
        thread::yield_now();
    }
    Ok(())
}

pub async fn mutex_and_condition() -> Outcome {
    const TURNS: u64 = 2000;
    let counted = Arc::new(Mutex::new(0u64));
    let mut running = Vec::new();
    for _ in 0..6 {
        let counted = counted.clone();
        running.push(must!(thread::spawn(move || {
            for turn in 0..TURNS {
                let mut value = counted.lock();
                let before = *value;
                if turn % 64 == 0 {
                    thread::yield_now();
                }
                *value = before + 1;
            }
        })));
    }
    running.into_iter().for_each(thread::JoinHandle::join);
    check_eq!(*counted.lock(), 6 * TURNS);

    // A queue of four places, three producers, two consumers.
    let queue = Arc::new((Mutex::new(alloc::collections::VecDeque::new()), Condvar::new(), Condvar::new()));
    let mut producers = Vec::new();
    for number in 0..3u64 {
        let queue = queue.clone();
        producers.push(must!(thread::spawn(move || {
            for value in 0..500 {
                let mut values = queue.0.lock();
                while values.len() == 4 {
                    values = queue.2.wait(values);
                }
                values.push_back(number * 500 + value);
                drop(values);
                queue.1.notify_one();
            }
        })));
    }
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let queue = queue.clone();
        consumers.push(must!(thread::spawn(move || {
            let mut sum = 0;
            loop {
                let mut values = queue.0.lock();
                let value = loop {
                    match values.pop_front() {
                        Some(value) => break value,
                        None => values = queue.1.wait(values),
                    }
                };
                drop(values);
                queue.2.notify_one();
                if value == u64::MAX {
                    return sum;
                }
                sum += value;
            }
        })));
    }
    producers.into_iter().for_each(thread::JoinHandle::join);
    for _ in 0..2 {
        queue.0.lock().push_back(u64::MAX);
        queue.1.notify_all();
    }
    let sum: u64 = consumers.into_iter().map(thread::JoinHandle::join).sum();
    check_eq!(sum, 1499 * 1500 / 2);
    let (_guard, in_vain) = queue.1.wait_timeout(queue.0.lock(), Duration::from_millis(2));
    check!(in_vain);
    Ok(())
}

pub async fn local_values_and_registers() -> Outcome {
    static COUNT: LocalKey<Cell<u64>> = LocalKey::new(|| Cell::new(10));
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Heavy;
    impl Drop for Heavy {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
    static HEAVY: LocalKey<Heavy> = LocalKey::new(|| Heavy);
    COUNT.with(|count| count.set(1));
    let mut running = Vec::new();
    for number in 0..6u32 {
        running.push(must!(thread::spawn(move || {
            HEAVY.with(|_| ());
            let mut sum = f64::from(number);
            for turn in 0..100u32 {
                COUNT.with(|count| count.set(count.get() + u64::from(number)));
                sum += f64::from(turn) * 0.5;
                thread::yield_now();
            }
            (COUNT.with(Cell::get), sum)
        })));
    }
    for (number, thread) in running.into_iter().enumerate() {
        let (count, sum) = thread.join();
        check_eq!(count, 10 + 100 * number as u64);
        check_eq!(sum, number as f64 + 2475.0);
    }
    check_eq!(COUNT.with(Cell::get), 1);
    check_eq!(DROPPED.load(Ordering::Relaxed), 6);
    Ok(())
}

/// Waits until `count` threads wait at a word, without waking any.
fn await_waiters(word: &AtomicU32, count: usize) -> Outcome {
    let start = Instant::now();
    loop {
        // Requeuing to the same word counts them.
        let here = address(word);
        if must!(futex_call(here, futex::REQUEUE, [0, i32::MAX as usize, here, 0])) == count {
            return Ok(());
        }
        check!(start.elapsed() < LIMIT, "fewer than {count} threads wait");
        thread::yield_now();
    }
}

pub async fn futexes_wake_the_chosen_waiters() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static OTHER: AtomicU32 = AtomicU32::new(0);
    fn waiters(count: usize, bits: usize) -> Result<Vec<thread::JoinHandle<Result<usize, Errno>>>, Errno> {
        (0..count)
            .map(|_| thread::spawn(move || futex_call(address(&WORD), futex::WAIT_BITSET, [0, 0, 0, bits])))
            .collect()
    }
    let (word, other) = (address(&WORD), address(&OTHER));
    let mut running = must!(waiters(5, 1));
    running.extend(must!(waiters(3, 2)));
    await_waiters(&WORD, 8)?;
    check_eq!(futex_call(other, futex::WAKE, [100, 0, 0, 0]), Ok(0));
    check_eq!(futex_call(word, futex::WAKE_BITSET | futex::PRIVATE, [100, 0, 0, 2]), Ok(3));
    check_eq!(futex_call(word, futex::WAKE, [0, 0, 0, 0]), Ok(1));
    check_eq!(futex_call(word, futex::CMP_REQUEUE, [1, 2, other, 0]), Ok(3));
    check_eq!(futex_call(word, futex::WAKE, [100, 0, 0, 0]), Ok(1));
    check_eq!(futex_call(other, futex::WAKE, [100, 0, 0, 0]), Ok(2));
    for thread in running {
        check_eq!(thread.join(), Ok(0));
    }

    // Time limits, relative and absolute, on both clocks.
    let start = Instant::now();
    let limit = TimeSpec::from_ns(3_000_000);
    check_eq!(futex_call(word, futex::WAIT, [0, &raw const limit as usize, 0, 0]), Err(Errno::ETIMEDOUT));
    check!(start.elapsed() >= Duration::from_millis(3));
    for (which, flag) in [(clock::MONOTONIC, 0), (clock::REALTIME, futex::CLOCK_REALTIME)] {
        let start = Instant::now();
        let mut now = TimeSpec::default();
        must!(call(SystemCall::GetTime, [which as usize, &raw mut now as usize, 0, 0, 0, 0]));
        let limit = TimeSpec::from_ns(now.to_ns().unwrap_or(0) + 3_000_000);
        let any = futex::BITSET_ANY as usize;
        let operation = futex::WAIT_BITSET | flag;
        check_eq!(futex_call(word, operation, [0, &raw const limit as usize, 0, any]), Err(Errno::ETIMEDOUT));
        check!(start.elapsed() >= Duration::from_millis(3));
        // A deadline that has passed is no wait.
        check_eq!(futex_call(word, operation, [0, &raw const limit as usize, 0, any]), Err(Errno::ETIMEDOUT));
    }
    check_eq!(futex_call(word, futex::WAKE, [100, 0, 0, 0]), Ok(0));
    Ok(())
}

/// A thread made by hand, which ends with a robust lock held, and with a word that becomes 0.
pub async fn the_end_of_a_thread_is_told_at_its_words() -> Outcome {
    #[repr(C)]
    struct Head {
        next: usize,
        offset: isize,
        pending: usize,
    }
    #[repr(C)]
    struct Entry {
        next: usize,
        lock: AtomicU32,
    }
    static LOCK: Mutex<Option<usize>> = Mutex::new(None);
    let thread = must!(thread::spawn(|| {
        let entry = alloc::boxed::Box::leak(alloc::boxed::Box::new(Entry { next: 0, lock: AtomicU32::new(0) }));
        let head = alloc::boxed::Box::leak(alloc::boxed::Box::new(Head { next: 0, offset: 8, pending: 0 }));
        entry.next = &raw const *head as usize;
        head.next = &raw const *entry as usize;
        entry.lock.store(system::thread::current() | futex::WAITERS, Ordering::Relaxed);
        let size = size_of::<Head>();
        if call(SystemCall::SetRobustList, [&raw const *head as usize, size, 0, 0, 0, 0]) != Ok(0) {
            return Err("set_robust_list failed");
        }
        let (mut found, mut length) = (0usize, 0usize);
        let out = [0, &raw mut found as usize, &raw mut length as usize, 0, 0, 0];
        if call(SystemCall::GetRobustList, out) != Ok(0) || found != &raw const *head as usize || length != size {
            return Err("get_robust_list disagrees");
        }
        *LOCK.lock() = Some(&raw const entry.lock as usize);
        Ok(())
    }));
    check_eq!(thread.join(), Ok(()));
    let Some(lock) = *LOCK.lock() else { return Err("the thread left nothing".into()) };
    // SAFETY: the thread has leaked the entry.
    let lock = unsafe { &*(lock as *const AtomicU32) };
    let start = Instant::now();
    while lock.load(Ordering::Acquire) != futex::OWNER_DIED | futex::WAITERS {
        check!(start.elapsed() < LIMIT, "the lock has {:#x}", lock.load(Ordering::Relaxed));
        let _ = system::thread::futex_wait(lock, lock.load(Ordering::Relaxed), Some(1_000_000));
    }
    Ok(())
}

/// Takes a lock with an owner as a C library does: by itself if it is free.
fn lock(word: &AtomicU32) -> Result<(), Errno> {
    let own = system::thread::current();
    match word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(_) => futex_call(address(word), futex::LOCK | futex::PRIVATE, [0; 4]).map(drop),
    }
}

fn unlock(word: &AtomicU32) -> Result<(), Errno> {
    let own = system::thread::current();
    match word.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(_) => futex_call(address(word), futex::UNLOCK | futex::PRIVATE, [0; 4]).map(drop),
    }
}

pub async fn locks_with_owners_keep_threads_apart() -> Outcome {
    const TURNS: u64 = 1000;
    const THREADS: u64 = 6;
    static WORD: AtomicU32 = AtomicU32::new(0);
    // Changed by a load and a store, which the lock must keep together.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut running = Vec::new();
    for _ in 0..THREADS {
        running.push(must!(thread::spawn(|| -> Result<(), Errno> {
            for turn in 0..TURNS {
                lock(&WORD)?;
                let before = COUNT.load(Ordering::Relaxed);
                if turn % 64 == 0 {
                    thread::yield_now();
                }
                COUNT.store(before + 1, Ordering::Relaxed);
                unlock(&WORD)?;
            }
            Ok(())
        })));
    }
    for thread in running {
        check_eq!(thread.join(), Ok(()));
    }
    check_eq!((COUNT.load(Ordering::Relaxed), WORD.load(Ordering::Relaxed)), (THREADS * TURNS, 0));
    Ok(())
}

/// A process that is killed passes on the locks of its robust lists that lie in memory of others: one with an owner to
/// its waiter, the other marked for the one that it wakes.
pub async fn a_killed_process_passes_its_locks_on() -> Outcome {
    let flags = (mapping::SHARED | mapping::ANONYMOUS) as usize;
    let memory = must!(call(SystemCall::Map, [0, 4096, 3, flags, usize::MAX, 0]));
    // SAFETY: the mapping is aligned, zeros, and stays for ever.
    let words = unsafe { &*(memory as *const [AtomicUsize; 16]) };
    // SAFETY: as above; nothing else uses these words.
    let lock_at = move |index: usize| unsafe { &*((memory + 8 * index) as *const AtomicU32) };
    // The head (first, offset, pending), and two entries of a link and a lock.
    let (head, usual, owned) = (memory, memory + 32, memory + 64);
    for (index, value) in [(0, usual), (1, 8), (2, 0), (4, owned | 1), (8, head)] {
        words[index].store(value, Ordering::Relaxed);
    }
    let (usual, owned) = (lock_at(5), lock_at(9));
    let child = must!(fork::fork(|| {
        let own = system::thread::current();
        usual.store(own | futex::WAITERS, Ordering::Relaxed);
        if futex_call(address(owned), futex::LOCK, [0; 4]) != Ok(0)
            || call(SystemCall::SetRobustList, [head, futex::ROBUST_HEAD, 0, 0, 0, 0]) != Ok(0)
        {
            return 1;
        }
        words[15].store(1, Ordering::Release);
        loop {
            thread::yield_now();
        }
    }));
    let start = Instant::now();
    while words[15].load(Ordering::Acquire) == 0 {
        check!(start.elapsed() < LIMIT);
        thread::yield_now();
    }
    let waiter = must!(thread::spawn(move || {
        let usual = usual.load(Ordering::Relaxed);
        let result = futex_call(memory + 40, futex::WAIT, [usual as usize, 0, 0, 0]);
        (result, lock_at(5).load(Ordering::Relaxed))
    }));
    let second = must!(thread::spawn(move || {
        let result = futex_call(memory + 72, futex::LOCK, [0; 4]);
        (result, lock_at(9).load(Ordering::Relaxed) & !futex::WAITERS == system::thread::current() | futex::OWNER_DIED)
    }));
    thread::sleep(Duration::from_millis(5));
    must!(call(SystemCall::Kill, [child, signal::KILL as usize, 0, 0, 0, 0]));
    check_eq!(second.join(), (Ok(0), true));
    let (result, value) = waiter.join();
    check!(matches!(result, Ok(0) | Err(Errno::EAGAIN)), "{result:?}");
    check_eq!(value, futex::WAITERS | futex::OWNER_DIED);
    check_eq!(must!(fork::status_of(child)), 0x100 | signal::KILL);
    Ok(())
}

/// Two threads store to a word each and load the other's; one has a fence made on the other's hart, which has none.
pub async fn a_barrier_on_one_side_is_a_barrier_on_both() -> Outcome {
    const ROUNDS: u32 = 200;
    static WORDS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
    static FOUND: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
    static ROUND: AtomicU32 = AtomicU32::new(0);
    static DONE: AtomicU32 = AtomicU32::new(0);
    let barrier = |command: u32| call(SystemCall::MemoryBarrier, [command as usize, 0, 0, 0, 0, 0]);
    must!(barrier(memory_barrier::REGISTER_PRIVATE));
    let other = must!(thread::spawn(|| {
        for round in 1..=ROUNDS {
            while ROUND.load(Ordering::Acquire) != round {
                thread::yield_now();
            }
            WORDS[0].store(round, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            FOUND[0].store(WORDS[1].load(Ordering::Relaxed), Ordering::Relaxed);
            DONE.store(round, Ordering::Release);
        }
    }));
    for round in 1..=ROUNDS {
        ROUND.store(round, Ordering::Release);
        WORDS[1].store(round, Ordering::Relaxed);
        check_eq!(barrier(memory_barrier::PRIVATE), Ok(0));
        FOUND[1].store(WORDS[0].load(Ordering::Relaxed), Ordering::Relaxed);
        let start = Instant::now();
        while DONE.load(Ordering::Acquire) != round {
            check!(start.elapsed() < LIMIT);
            thread::yield_now();
        }
        let found = [0, 1].map(|index: usize| FOUND[index].load(Ordering::Relaxed) == round);
        check!(found != [false, false], "neither has seen the other in round {round}");
    }
    other.join();
    check_eq!(barrier(memory_barrier::GLOBAL), Ok(0));
    Ok(())
}

pub async fn a_thousand_at_once() -> Outcome {
    const THREADS: u32 = 1100;
    static GATE: AtomicU32 = AtomicU32::new(0);
    static SUM: AtomicU64 = AtomicU64::new(0);
    let mut running = Vec::new();
    for number in 0..THREADS {
        running.push(must!(Builder::new().stack_size(16 * 1024).spawn(move || {
            while GATE.load(Ordering::Acquire) == 0 {
                let _ = system::thread::futex_wait(&GATE, 0, None);
            }
            SUM.fetch_add(u64::from(number), Ordering::Relaxed);
        })));
    }
    await_waiters(&GATE, THREADS as usize)?;
    GATE.store(1, Ordering::Release);
    check_eq!(system::thread::futex_wake(&GATE, u32::MAX), THREADS as usize);
    running.into_iter().for_each(thread::JoinHandle::join);
    check_eq!(SUM.load(Ordering::Relaxed), u64::from(THREADS) * u64::from(THREADS - 1) / 2);
    Ok(())
}

pub async fn thousands_one_after_the_other() -> Outcome {
    fn round(count: u32) -> Outcome {
        for number in 0..count {
            let first = must!(thread::spawn(move || number * 2));
            let second = must!(thread::spawn(move || alloc::vec![number; 10].iter().sum::<u32>()));
            check_eq!((first.join(), second.join()), (number * 2, number * 10));
        }
        Ok(())
    }
    round(50)?;
    let heap = counter(Counter::HeapBytes)?;
    let free = counter(Counter::FramesFree)?;
    round(600)?;
    harness::returns_to(Counter::HeapBytes, heap + 256 * 1024).await?;
    harness::reaches(Counter::FramesFree, free.saturating_sub(1500)).await
}

/// Processes that end in every way while threads wait, run and start.
pub async fn ends_with_threads_in_flight() -> Outcome {
    check_eq!(harness::ending_of_act("threads-exit").await?, Ending::Exited(5));
    check_eq!(harness::ending_of_act("threads-last").await?, Ending::Exited(0));
    check_eq!(harness::ending_of_act("threads-fault").await?, Ending::Killed(signal::SEGV as u8));
    check_eq!(harness::ending_of_act("threads-overflow").await?, Ending::Killed(signal::SEGV as u8));
    check_eq!(harness::ending_of_act("threads-execute").await?, Ending::Exited(7));
    let (free, processes) = (counter(Counter::FramesFree)?, counter(Counter::Processes)?);
    for round in 0..6u64 {
        let child = must!(harness::act("threads-forever"));
        cops::sleep(Duration::from_millis(round * 7)).await;
        must!(child.kill());
        check_eq!(must!(child.wait().await), Ending::Killed(signal::KILL as u8));
    }
    harness::returns_to(Counter::Processes, processes).await?;
    harness::reaches(Counter::FramesFree, free.saturating_sub(200)).await
}

/// Starts threads that wait at a futex, at a pipe and in their sleep, and one that runs.
fn busy_threads() -> Result<(), Errno> {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    for _ in 0..20 {
        thread::spawn(|| system::thread::futex_wait(&NEVER, 0, None))?;
        thread::spawn(|| thread::sleep(Duration::from_secs(1000)))?;
        thread::spawn(|| {
            let (reader, _writer) = system::file::pipe(0)?;
            system::file::read(reader.raw(), &mut [0; 8])
        })?;
    }
    thread::spawn(|| {
        loop {
            core::hint::spin_loop();
        }
    })?;
    Ok(())
}

/// Runs as another process of the tests above.
pub fn act(name: &str) -> i32 {
    match name {
        "threads-exit" => busy_threads().map_or(99, |()| 5),
        "threads-last" => {
            // The first worker ends; the process ends with the last thread.
            let started = thread::spawn(|| thread::sleep(Duration::from_millis(20)));
            if started.is_err() { 99 } else { system::worker::exit() }
        }
        "threads-fault" => {
            let fault = || {
                // SAFETY: the process ends here, as the test intends.
                unsafe { (8 as *mut u8).write_volatile(0) };
            };
            let _ = busy_threads();
            thread::spawn(fault).map_or(99, |thread| {
                thread.join();
                98
            })
        }
        "threads-overflow" => {
            #[expect(unconditional_recursion, reason = "the stack is to overflow")]
            fn overflow(depth: u64) -> u64 {
                let mut frame = [depth; 16];
                core::hint::black_box(&mut frame);
                overflow(depth + 1) + frame[3]
            }
            thread::spawn(|| overflow(0)).map_or(99, |thread| thread.join() as i32)
        }
        "threads-execute" => {
            let _ = busy_threads();
            let other = || {
                let arguments = [c"tests".as_ptr(), c"--act".as_ptr(), c"return".as_ptr(), core::ptr::null()];
                // SAFETY: the strings are static.
                let arguments = unsafe { system::process::StringList::new(&arguments) };
                let arguments = arguments.unwrap_or(system::process::StringList::EMPTY);
                system::process::execute(c"/bin/tests", arguments, system::process::StringList::EMPTY)
            };
            thread::spawn(other).map_or(99, |thread| {
                let _ = thread.join();
                98
            })
        }
        "threads-forever" => loop {
            let _ = busy_threads();
            let _ = thread::spawn(|| ()).map(thread::JoinHandle::join);
        },
        _ => 99,
    }
}
