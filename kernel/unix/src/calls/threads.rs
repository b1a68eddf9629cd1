//! The calls of workers and threads: their beginning, their sleep, the locks between them, and their request rings.

use alloc::boxed::Box;
use alloc::vec::Vec;

use ::signals::Signal;
use abi_queue::pages::PAGE_SIZE;
use abi_unix::types::clone::{self, self as flag};
use abi_unix::{Errno, types};
use hal_api::{InterruptRegisters, Machine as _, UserContext};
use platform::Machine;

use crate::asynchronous::operation::Operation;
use crate::asynchronous::ring;
use crate::calls::call::{Call, Decoding, Pause, admitted, kept, kept_steps};
use crate::models::Carrier;
use crate::process::accounts::Resource;
use crate::process::fork::{self, Copied, Words};
use crate::process::futex::{self, FutexCall, FutexWait, limit_until};
use crate::process::futex_list::{FutexList, MEMORY_OF_A_WORD};
use crate::process::owned_lock::{LockRequest, LockWord};
use crate::process::user::{USER_END, read_time};
use crate::process::worker::Worker;
use crate::process::{switching, thread};
use crate::time;
use crate::time::limit::TimeLimit;

#[inline(never)]
pub(super) fn set_id_address(call: Call<'_>) -> Decoding {
    call.worker.set_end_word(call.address(0));
    Ok((call.worker.thread_id() as usize).into())
}

/// A thread or process that is to start, as `clone` and `clone3` describe it.
struct Start {
    words: Words,
    /// Stack pointer; 0 for the caller's.
    stack: u64,
    thread_pointer: u64,
}

#[inline(never)]
pub(super) fn clone(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let [flags, stack, parent, thread_pointer, child] = [0, 1, 2, 3, 4].map(|argument| call.word(argument));
    // Those of `clone3` alone.
    if flags >> 32 != 0 {
        return Err(Errno::ENOSYS);
    }
    let flags = flags as u64;
    // One address for both; and a descriptor for what cannot be waited for.
    if flags & flag::PIDFD != 0 && flags & (flag::PARENT_SETTID | flag::DETACHED) != 0 {
        return Err(Errno::EINVAL);
    }
    let words = Words { flags, parent, child, descriptor: parent };
    start(call, Start { words, stack: stack as u64, thread_pointer: thread_pointer as u64 })
}

#[inline(never)]
pub(super) fn clone_with(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let arguments = clone_arguments(&call)?;
    let clone::Arguments { flags, exit_signal, stack, stack_size, .. } = arguments;
    let is_of_thread = flags & (flag::THREAD | flag::PARENT) != 0;
    // The lowest byte of `flags` and one bit above were `clone`'s alone.
    if flags & (flag::SIGNAL | flag::DETACHED) != 0
        || exit_signal != 0 && u32::try_from(exit_signal).ok().and_then(Signal::new).is_none()
        || is_of_thread && exit_signal != 0
        || (stack == 0) != (stack_size == 0)
        || flags & (flag::CLEAR_SIGHAND | flag::SIGHAND) == flag::CLEAR_SIGHAND | flag::SIGHAND
        || (arguments.numbers == 0) != (arguments.number_count == 0)
    {
        return Err(Errno::EINVAL);
    }
    let end = stack.checked_add(stack_size).filter(|end| *end <= USER_END as u64).ok_or(Errno::EINVAL)?;
    if arguments.number_count != 0 {
        // Only the kernel chooses numbers.
        return Err(Errno::EPERM);
    }
    let (parent, child) = (arguments.parent as usize, arguments.child as usize);
    let descriptor = arguments.process_descriptor as usize;
    let words = Words { flags: flags | exit_signal, parent, child, descriptor };
    start(call, Start { words, stack: end, thread_pointer: arguments.thread_pointer })
}

/// Reads the arguments of `clone3`. A longer structure than this kernel knows must have zeros behind the known part.
fn clone_arguments(call: &Call<'_>) -> Result<clone::Arguments, Errno> {
    let (process, address, size) = (call.process(), call.address(0), call.length(1));
    if size > PAGE_SIZE {
        return Err(Errno::E2BIG);
    }
    if size < clone::Arguments::LEAST {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; clone::Arguments::SIZE];
    process.copy_in(address, &mut bytes[..size.min(clone::Arguments::SIZE)])?;
    let mut at = clone::Arguments::SIZE;
    while at < size {
        let mut more = [0; 64];
        let more = &mut more[..(size - at).min(64)];
        process.copy_in(address.checked_add(at).ok_or(Errno::EFAULT)?, more)?;
        if more.iter().any(|byte| *byte != 0) {
            return Err(Errno::E2BIG);
        }
        at += more.len();
    }
    Ok(clone::Arguments::from_bytes(&bytes))
}

/// Starts a thread or a process with the caller's registers.
fn start(call: Call<'_>, start: Start) -> Decoding {
    let (worker, number) = (call.worker, call.number);
    let Start { words, stack, thread_pointer } = start;
    let has = |which: u64| words.flags & which != 0;
    if has(flag::THREAD) && !has(flag::SIGHAND)
        || has(flag::SIGHAND) && !has(flag::VM)
        || has(flag::FS) && has(flag::NEWNS)
    {
        return Err(Errno::EINVAL);
    }
    let is_thread = words.flags & flag::SHARED == flag::SHARED;
    // Memory in common for ever is for threads, and until `execve` or the end for a caller that waits.
    let is_process = words.flags & !fork::FLAGS == 0 && (!has(flag::VM) || has(flag::VFORK));
    let has_others = words.flags & !(flag::OF_THREADS | flag::SIGNAL) != 0;
    if !is_process && (!is_thread || has_others) {
        return Err(Errno::ENOSYS);
    }
    let registers = call.registers()?;
    Machine::keep_floating_point(registers);
    let mut fresh = Box::new(registers.clone());
    // No hart's registers are this thread's.
    let _ = fresh.floating_point_mut();
    fresh.set_result(0);
    if stack != 0 {
        fresh.set_register(2, stack);
    }
    if has(flag::SETTLS) {
        fresh.set_register(4, thread_pointer);
    }
    if is_thread {
        return clone_thread(worker, fresh, words).map(Into::into);
    }
    // A copy has no receivers, and so no handler of its own interrupts.
    fresh.supervisor = InterruptRegisters::NEW;
    if has(flag::VM) {
        return Ok(Pause::Lend(Box::new(Copied { context: fresh, words })).into());
    }
    Ok(Operation::Long(number, admitted(fork::fork(worker.clone(), fresh, words))).into())
}

/// Starts a thread with these registers.
fn clone_thread(parent: &Worker, fresh: Box<UserContext>, words: Words) -> Result<usize, Errno> {
    let has = |which: u64| words.flags & which != 0;
    let process = &parent.process;
    let thread = switching::start_thread(process, fresh, parent, |thread| {
        if has(flag::CHILD_CLEARTID) {
            thread.set_end_word(words.child);
        }
        // As on Linux, a bad address does not keep the thread from starting.
        let number = thread.thread_id().to_le_bytes();
        if has(flag::PARENT_SETTID) {
            let _ = process.copy_out(words.parent, &number);
        }
        if has(flag::CHILD_SETTID) {
            let _ = process.copy_out(words.child, &number);
        }
    })?;
    Ok(thread.thread_id() as usize)
}

#[inline(always)]
pub(super) fn futex(call: Call<'_>) -> Decoding {
    let arguments = [0, 1, 2, 3, 4, 5].map(|argument| call.word(argument));
    let process = call.process();
    Ok(match futex::call(process, process.space(), process.futexes(), arguments)? {
        FutexCall::Wait(wait) => Operation::Futex(kept(wait)).into(),
        FutexCall::Done(count) => count.into(),
        FutexCall::More(work) => Operation::Long(call.number, work).into(),
        FutexCall::OfLock => return lock_with_owner(call),
    })
}

/// Performs `futex` on a lock with an owner. The owner is the thread that calls, so there is no asynchronous form.
#[cold]
#[inline(never)]
fn lock_with_owner(call: Call<'_>) -> Decoding {
    use abi_unix::types::futex;

    if !call.is_synchronous() {
        return Err(Errno::EOPNOTSUPP);
    }
    let (process, worker, flags) = (call.process(), call.worker, call.unsigned(1));
    let is_private = flags & futex::PRIVATE != 0;
    let word = LockWord::new(process.space(), process.futexes(), call.address(0), is_private)?;
    let command = flags & !(futex::PRIVATE | futex::CLOCK_REALTIME);
    let limit = match command {
        futex::UNLOCK => {
            return word.unlock(process.space(), worker.thread_id(), thread::lock_owner).map(Into::into);
        }
        futex::TRY_LOCK => None,
        _ if call.address(3) == 0 => Some(TimeLimit::Never),
        _ => {
            let is_real_time = command == futex::LOCK || flags & futex::CLOCK_REALTIME != 0;
            Some(limit_until(read_time(&**process, call.address(3))?, is_real_time))
        }
    };
    let request = LockRequest::new(word, (worker.thread_id(), worker.own_priority()), limit, thread::lock_owner);
    Ok(Operation::OwnedLock(kept(request)).into())
}

/// Performs `futex_waitv`.
#[inline(never)]
pub(super) fn wait_for_futexes(call: Call<'_>) -> Decoding {
    use abi_unix::types::futex::{PRIVATE, SIZE_MASK, SIZE_U32, WAITV_MAX, WaitedWord};

    let (process, count) = (call.admitted()?, call.unsigned(1) as usize);
    if call.unsigned(2) != 0 || !(1..=WAITV_MAX).contains(&count) || call.address(0) == 0 {
        return Err(Errno::EINVAL);
    }
    let limit = match (call.address(3), call.unsigned(4)) {
        (0, _) => TimeLimit::Never,
        (time, types::clock::REALTIME) => limit_until(read_time(&**process, time)?, true),
        (time, types::clock::MONOTONIC) => limit_until(read_time(&**process, time)?, false),
        _ => return Err(Errno::EINVAL),
    };
    let charge = process.account.charge(Resource::Memory, count * MEMORY_OF_A_WORD)?;
    let mut waits = Vec::new();
    waits.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    for index in 0..count {
        let address = call.address(0).checked_add(index * WaitedWord::SIZE).ok_or(Errno::EFAULT)?;
        let mut bytes = [0; WaitedWord::SIZE];
        process.copy_in(address, &mut bytes)?;
        let word = WaitedWord::from_bytes(&bytes);
        if word.flags & !(PRIVATE | SIZE_MASK) != 0
            || word.flags & SIZE_MASK != SIZE_U32
            || word.reserved != 0
            || word.value > u64::from(u32::MAX)
        {
            return Err(Errno::EINVAL);
        }
        waits.push(FutexWait::new(process.space(), process.futexes(), word)?);
    }
    Ok(Operation::FutexList(Box::new(FutexList::new(waits, limit, process.id, charge))).into())
}

#[inline(never)]
pub(super) fn set_robust_list(call: Call<'_>) -> Decoding {
    if call.length(1) != types::futex::ROBUST_HEAD {
        return Err(Errno::EINVAL);
    }
    call.worker.set_robust_list(call.address(0));
    Ok(0.into())
}

#[inline(never)]
pub(super) fn get_robust_list(call: Call<'_>) -> Decoding {
    let head = thread::find(call.worker, call.unsigned(0) as usize)?.robust_list();
    call.process().copy_out(call.address(2), &types::futex::ROBUST_HEAD.to_le_bytes())?;
    call.process().copy_out(call.address(1), &head.to_le_bytes())?;
    Ok(0.into())
}

#[inline(never)]
pub(super) fn create_worker(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let (entry, stack) = (call.address(0), call.address(1));
    if entry >= USER_END || stack >= USER_END || !entry.is_multiple_of(2) {
        return Err(Errno::EINVAL);
    }
    let mut fresh = Box::new(UserContext::new(entry as u64, stack as u64));
    fresh.set_register(10, call.word(2) as u64);
    fresh.set_register(4, call.word(3) as u64);
    let creator = call.worker;
    let inherit = |worker: &Worker| {
        worker.signals.inherit(&creator.signals);
        worker.inherit_settings(creator);
    };
    Ok(switching::start_worker(process, fresh, inherit)?.index().into())
}

#[inline(always)]
pub(super) fn wait(call: Call<'_>) -> Decoding {
    let deadline = match call.word(1) {
        usize::MAX => None,
        ns => Some(time::ticks_at_ns(time::now_ns().saturating_add(ns as u64))),
    };
    ring::take_before_sleep(call.worker);
    Ok(Pause::Park { seen: call.word(0) as u64, deadline }.into())
}

#[inline(always)]
pub(super) fn wake(call: Call<'_>) -> Decoding {
    call.process().worker(call.word(0)).ok_or(Errno::ESRCH)?.wake();
    Ok(0.into())
}

#[inline(never)]
pub(super) fn cancel(call: Call<'_>) -> Decoding {
    let (process, token) = (call.process(), call.word(0) as u64);
    let cancelled = process.cancel_call(token);
    if cancelled != Err(Errno::ENOENT) || call.is_from_ring() || !process.rings.exist() {
        return cancelled.map(Into::into);
    }
    // It may still be in a ring. (A request that comes through one finds those before it taken.)
    let worker = call.worker.clone();
    Ok(kept_steps(call.number, async move {
        ring::take_everything(&worker).await;
        worker.process.cancel_call(token).map(|()| 0)
    }))
}

#[inline(never)]
pub(super) fn set_up_ring(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let work = ring::set_up(call.worker.clone(), call.word(0), call.word(1));
    Ok(Operation::Long(call.number, admitted(work)).into())
}

#[inline(always)]
pub(super) fn enter_ring(call: Call<'_>) -> Decoding {
    ring::enter(call.worker, call.word(0), call.word(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn choose_kernel_side(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    Ok(match process.model.choose(process, call.word(0))? {
        Carrier::Coroutine => 0.into(),
        Carrier::Thread => Pause::MoveToThread.into(),
    })
}

#[cfg(test)]
mod tests {
    use abi_unix::types::TimeSpec;
    use abi_unix::types::futex as operation;
    use abi_unix::{Errno, SystemCall};

    use super::*;
    use crate::testing::{DATA, Program, run};

    fn futex(program: &mut Program, word: usize, operation: u32, rest: [usize; 4]) -> Result<usize, Errno> {
        let [value, timeout, second, value3] = rest;
        program.call(SystemCall::Futex, [word, operation as usize, value, timeout, second, value3])
    }

    /// Workers that wait at a word, each with its own bits, and count in another word when they are woken.
    fn sleepers(program: &mut Program, word: usize, bits: &[u32]) -> usize {
        let woken = program.place(8);
        for &bits in bits {
            program
                .add_worker(move |program| {
                    let rest = [0, 0, 0, bits as usize];
                    assert_eq!(futex(program, word, operation::WAIT_BITSET, rest), Ok(0));
                    let count = program.read_u32(woken) + 1;
                    program.write(woken, &count.to_le_bytes());
                })
                .unwrap();
        }
        program.sleep_ns(1_000_000);
        woken
    }

    fn count(program: &mut Program, woken: usize) -> u32 {
        program.sleep_ns(1_000_000);
        program.read_u32(woken)
    }

    #[test]
    fn a_wait_needs_its_value_and_ends_with_its_time() {
        run(|program| {
            let word = program.store(&7u64.to_le_bytes());
            let time = program.store(&TimeSpec::from_ns(2_000_000).to_bytes());
            assert_eq!(futex(program, word, operation::WAIT, [8, 0, 0, 0]), Err(Errno::EAGAIN));
            let begin = time::now_ns();
            assert_eq!(futex(program, word, operation::WAIT, [7, time, 0, 0]), Err(Errno::ETIMEDOUT));
            assert!((2_000_000..3_000_000).contains(&(time::now_ns() - begin)));
            // `WAIT_BITSET` has an absolute time.
            let any = operation::BITSET_ANY as usize;
            assert_eq!(futex(program, word, operation::WAIT_BITSET, [7, time, 0, any]), Err(Errno::ETIMEDOUT));
            assert!(time::now_ns() - begin < 3_000_000, "that was long ago");
            for (word, error) in [(word + 1, Errno::EINVAL), (0x1000, Errno::EFAULT), (usize::MAX - 3, Errno::EFAULT)] {
                assert_eq!(futex(program, word, operation::WAIT, [7, 0, 0, 0]), Err(error), "{word:#x}");
            }
            assert_eq!(futex(program, word, operation::WAIT_BITSET, [7, 0, 0, 0]), Err(Errno::EINVAL));
            assert_eq!(futex(program, word, operation::WAIT, [7, 0x1000, 0, 0]), Err(Errno::EFAULT));
            assert_eq!(futex(program, word, 77, [0; 4]), Err(Errno::ENOSYS));
            assert_eq!(futex(program, word, operation::WAKE, [9, 0, 0, 0]), Ok(0), "nobody waits any more");
        });
    }

    #[test]
    fn as_many_are_woken_as_are_meant() {
        run(|program| {
            let word = program.place(8);
            let woken = sleepers(program, word, &[u32::MAX; 6]);
            assert_eq!(futex(program, word, operation::WAKE, [2, 0, 0, 0]), Ok(2));
            assert_eq!(count(program, woken), 2);
            assert_eq!(futex(program, word, operation::WAKE, [0, 0, 0, 0]), Ok(1), "as Linux does");
            assert_eq!(futex(program, word + 4, operation::WAKE, [9, 0, 0, 0]), Ok(0), "another word");
            assert_eq!(futex(program, word, operation::WAKE, [i32::MAX as usize, 0, 0, 0]), Ok(3));
            assert_eq!(count(program, woken), 6);
        });
    }

    #[test]
    fn bits_choose_among_the_waiters() {
        run(|program| {
            let word = program.place(8);
            let woken = sleepers(program, word, &[1, 2, 3, 4]);
            let wake = |program: &mut Program, bits| futex(program, word, operation::WAKE_BITSET, [9, 0, 0, bits]);
            assert_eq!(wake(program, 2), Ok(2));
            assert_eq!(wake(program, 2), Ok(0));
            assert_eq!(wake(program, 0), Err(Errno::EINVAL));
            assert_eq!(count(program, woken), 2);
            assert_eq!(wake(program, 5), Ok(2));
            assert_eq!(count(program, woken), 4);
        });
    }

    /// Some waiters are woken and the others wait at the second word; waiters move only if the value is right.
    #[test]
    fn waiters_are_moved_to_another_word() {
        run(|program| {
            let (word, second) = (program.place(8), program.place(8));
            let woken = sleepers(program, word, &[u32::MAX; 5]);
            let cmp = operation::CMP_REQUEUE;
            assert_eq!(futex(program, word, cmp, [1, 9, second, 1]), Err(Errno::EAGAIN));
            assert_eq!(futex(program, word, cmp, [usize::MAX, 1, second, 0]), Err(Errno::EINVAL));
            assert_eq!(futex(program, word, cmp, [1, 2, second + 2, 0]), Err(Errno::EINVAL));
            assert_eq!(futex(program, word, cmp, [1, 2, second, 0]), Ok(3));
            assert_eq!(count(program, woken), 1);
            assert_eq!(futex(program, second, operation::WAKE, [9, 0, 0, 0]), Ok(2));
            assert_eq!(futex(program, word, operation::REQUEUE, [0, 9, second, 0]), Ok(2));
            assert_eq!(futex(program, word, operation::WAKE, [9, 0, 0, 0]), Ok(0));
            assert_eq!(futex(program, second, operation::WAKE, [9, 0, 0, 0]), Ok(2));
            assert_eq!(count(program, woken), 5);
        });
    }

    /// A wake-up that was given to a wait counts, also if the wait is cancelled after it.
    #[test]
    fn a_wake_up_is_not_lost_with_a_cancelled_wait() {
        run(|program| {
            let word = program.place(8);
            let wait = [word, operation::WAIT as usize, 0, 0, 0, 0];
            assert_eq!(program.submit(SystemCall::Futex, wait, 1), None);
            program.sleep_ns(1_000_000);
            assert_eq!(futex(program, word, operation::WAKE, [1, 0, 0, 0]), Ok(1));
            let _ = program.call(SystemCall::Cancel, [1]);
            assert_eq!(program.await_completions(), [(1, Ok(0))]);
        });
    }

    #[test]
    fn a_worker_s_number_is_told_with_the_word_of_its_end() {
        run(|program| {
            let word = program.store(&9u32.to_le_bytes());
            let own = program.id as usize;
            assert_eq!(program.call(SystemCall::SetThreadIdAddress, [word]), Ok(own), "that of worker 0");
            program
                .add_worker(move |program| {
                    let number = program.call(SystemCall::SetThreadIdAddress, [word]).unwrap();
                    assert_eq!(program.call(SystemCall::GetThread, []), Ok(number));
                    assert_ne!(number, own);
                })
                .unwrap();
            assert_eq!(futex(program, word, operation::WAIT, [9, 0, 0, 0]), Ok(0));
            assert_eq!(program.read_u32(word), 0);
            let _ = DATA;
        });
    }
}
