//! Processes that begin as copies of others: their memory, files and signals, and the frames that they share.
//!
//! A copy of a program of this suite has no executor of its own any more, so it makes plain calls only.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi_unix::types::{WEXITED, WNOHANG, clone, signal};
use abi_unix::{Counter, Errno, SystemCall};
use cops::{system, thread};

use crate::harness::{self, Outcome, call, counter};
use crate::{check, check_eq, must};

const PAGE: usize = 4096;
/// A signal that nothing in this suite uses.
const UNUSED: usize = 12;

/// Starts a copy of this process, which ends with the result of a function; returns its number.
pub fn fork(child: impl FnOnce() -> u8) -> Result<usize, Errno> {
    let number = call(SystemCall::Clone, [signal::CHLD as usize, 0, 0, 0, 0, 0])?;
    if number != 0 {
        return Ok(number);
    }
    let status = child();
    let _ = call(SystemCall::ExitGroup, [status.into(), 0, 0, 0, 0, 0]);
    unreachable!("the copy has ended")
}

/// Starts a copy of this process by `clone3`, with these flags.
fn fork_with(flags: u64, child: impl FnOnce() -> u8) -> Result<usize, Errno> {
    let exit_signal = signal::CHLD.into();
    let arguments = clone::Arguments { flags, exit_signal, ..Default::default() }.to_bytes();
    let number = call(SystemCall::CloneWith, [&raw const arguments as usize, arguments.len(), 0, 0, 0, 0])?;
    if number != 0 {
        return Ok(number);
    }
    let status = child();
    let _ = call(SystemCall::ExitGroup, [status.into(), 0, 0, 0, 0, 0]);
    unreachable!("the copy has ended")
}

/// Waits for a copy; returns the status that it has given.
pub fn status_of(child: usize) -> Result<u32, Errno> {
    let mut status = 0u32;
    call(SystemCall::Wait, [child, &raw mut status as usize, 0, 0, 0, 0])?;
    Ok(if status & 0x7f == 0 { status >> 8 } else { 0x100 | status })
}

/// The number that a page of the tests' memory has in its first word.
fn mark(page: usize, round: u64) -> u64 {
    page as u64 * 1000 + round
}

/// Returns whether all pages have the marks of this round.
fn has_marks(words: &[AtomicU64], round: u64) -> bool {
    words.chunks(PAGE / 8).enumerate().all(|(page, words)| words[0].load(Ordering::Relaxed) == mark(page, round))
}

fn set_marks(words: &[AtomicU64], round: u64) {
    for (page, words) in words.chunks(PAGE / 8).enumerate() {
        words[0].store(mark(page, round), Ordering::Relaxed);
    }
}

fn memory(pages: usize) -> Result<&'static [AtomicU64], Errno> {
    let start = system::memory::map(pages * PAGE)?.cast::<AtomicU64>();
    // SAFETY: the mapping is zeros, aligned, that long and never unmapped.
    Ok(unsafe { core::slice::from_raw_parts(start, pages * PAGE / 8) })
}

/// The first of Linux's ways to start a program: memory until `execve`, and no handlers.
pub async fn copies_of_clone3_begin_without_handlers() -> Outcome {
    let words = must!(memory(2));
    let ignore = [1usize, 0, 0];
    let action = [UNUSED, &raw const ignore as usize, 0, 8, 0, 0];
    must!(call(SystemCall::SignalAction, action));
    for flags in [0, clone::CLEAR_SIGHAND, clone::CLEAR_SIGHAND | clone::VM | clone::VFORK] {
        words[0].store(1, Ordering::Relaxed);
        let child = must!(fork_with(flags, || {
            let mut old = [0usize; 3];
            let asked = call(SystemCall::SignalAction, [UNUSED, 0, &raw mut old as usize, 8, 0, 0]);
            let seen = words[0].swap(2, Ordering::Relaxed);
            u8::from(asked == Ok(0) && old[0] == 1 && seen == 1)
        }));
        check_eq!(status_of(child), Ok(1));
        let has_its_own = flags & clone::VM == 0;
        check_eq!(words[0].load(Ordering::Relaxed), if has_its_own { 1 } else { 2 });
    }
    let initial = [0usize; 3];
    must!(call(SystemCall::SignalAction, [UNUSED, &raw const initial as usize, 0, 8, 0, 0]));
    for flags in [17, clone::VM, clone::PIDFD, clone::THREAD, 1 << 33] {
        check!(fork_with(flags, || 0).is_err(), "{flags:#x}");
    }
    Ok(())
}

/// A copy of `clone3` with a descriptor, as Go starts processes: the descriptor is watched, sends a signal, and is
/// waited for.
pub async fn descriptors_of_copies_tell_their_ends() -> Outcome {
    let own = system::process::number() as usize;
    for flags in [clone::PIDFD, clone::PIDFD | clone::VM | clone::VFORK] {
        let waits = flags & clone::VM == 0;
        let mut descriptor = u32::MAX;
        let arguments = clone::Arguments {
            flags,
            process_descriptor: &raw mut descriptor as u64,
            exit_signal: signal::CHLD.into(),
            ..Default::default()
        };
        let arguments = arguments.to_bytes();
        let child = must!(call(SystemCall::CloneWith, [&raw const arguments as usize, arguments.len(), 0, 0, 0, 0]));
        if child == 0 {
            if waits {
                loop {
                    thread::yield_now();
                }
            }
            let _ = call(SystemCall::ExitGroup, [3, 0, 0, 0, 0, 0]);
        }
        // SAFETY: the kernel has stored it.
        let file = unsafe { (&raw const descriptor).read_volatile() };
        let file = system::Descriptor::from_result(file as usize);
        let raw = file.raw() as usize;
        let poll = [file.raw() as u32, 1];
        let (now, poll_at) = ([0u64; 2], &raw const poll as usize);
        // A child that has lent the memory has left it a little before it has ended.
        let limit = if waits { &raw const now as usize } else { 0 };
        let events = call(SystemCall::Poll, [poll_at, 1, limit, 0, 0, 0]);
        check_eq!(events, Ok(usize::from(!waits)));
        if waits {
            check_eq!(call(SystemCall::SignalProcessFile, [raw, signal::KILL as usize, 0, 0, 0, 0]), Ok(0));
            check_eq!(call(SystemCall::Poll, [poll_at, 1, 0, 0, 0, 0]), Ok(1));
        }
        let mut information = [0u32; 32];
        let wait = [3, raw, &raw mut information as usize, WEXITED as usize, 0, 0];
        check_eq!(call(SystemCall::WaitIdentified, wait), Ok(0));
        // SAFETY: as above.
        let information = unsafe { (&raw const information).read_volatile() };
        check_eq!(information[4] as usize, child);
        check_eq!((information[2], information[6]), if waits { (2, signal::KILL) } else { (1, 3) });
        check_eq!(call(SystemCall::WaitIdentified, wait), Err(Errno::ECHILD));
        check_eq!(call(SystemCall::SignalProcessFile, [raw, 0, 0, 0, 0, 0]), Err(Errno::ESRCH));
    }
    // One's own, by its number, from which a file is taken.
    let file = system::Descriptor::from_result(must!(call(SystemCall::ProcessFile, [own, 0, 0, 0, 0, 0])));
    let (reader, writer) = must!(system::file::pipe(0));
    let taken = call(SystemCall::TakeFile, [file.raw() as usize, writer.raw() as usize, 0, 0, 0, 0]);
    let taken = system::Descriptor::from_result(must!(taken));
    drop(writer);
    check_eq!(system::file::write(taken.raw(), b"x"), Ok(1));
    check_eq!(system::file::read(reader.raw(), &mut [0; 1]), Ok(1));
    Ok(())
}

pub async fn copies_see_no_later_writes_of_each_other() -> Outcome {
    let words = must!(memory(300));
    set_marks(words, 1);
    let (reader, writer) = must!(system::file::pipe(0));
    let mut children = Vec::new();
    for _ in 0..3 {
        children.push(must!(fork(|| {
            if !has_marks(words, 1) {
                return 1;
            }
            set_marks(words, 2);
            // The parent has written meanwhile.
            if system::file::read(reader.raw(), &mut [0; 1]) != Ok(1) || !has_marks(words, 2) {
                return 2;
            }
            0
        })));
    }
    set_marks(words, 3);
    check_eq!(system::file::write(writer.raw(), b"123"), Ok(3));
    for child in children {
        check_eq!(must!(status_of(child)), 0);
    }
    check!(has_marks(words, 3), "a copy has written to its parent's memory");
    Ok(())
}

pub async fn the_kernel_writes_to_the_copy_of_its_caller() -> Outcome {
    let words = must!(memory(4));
    set_marks(words, 1);
    let (reader, writer) = must!(system::file::pipe(0));
    check_eq!(system::file::write(writer.raw(), b"abcdefgh"), Ok(8));
    let at = words.as_ptr() as usize;
    let child = must!(fork(|| {
        let read = call(SystemCall::Read, [reader.raw() as usize, at, 8, 0, 0, 0]);
        u8::from(read != Ok(8) || words[0].load(Ordering::Relaxed) != u64::from_le_bytes(*b"abcdefgh"))
    }));
    check_eq!(must!(status_of(child)), 0);
    check!(has_marks(words, 1));
    // And to the parent's, while a copy has the old page.
    check_eq!(system::file::write(writer.raw(), b"ijklmnop"), Ok(8));
    let (go, told) = must!(system::file::pipe(0));
    let child = must!(fork(|| {
        let read = system::file::read(go.raw(), &mut [0; 1]);
        u8::from(read != Ok(1) || !has_marks(words, 1))
    }));
    check_eq!(call(SystemCall::Read, [reader.raw() as usize, at, 8, 0, 0, 0]), Ok(8));
    check_eq!(words[0].load(Ordering::Relaxed), u64::from_le_bytes(*b"ijklmnop"));
    check_eq!(system::file::write(told.raw(), b"x"), Ok(1));
    check_eq!(must!(status_of(child)), 0);
    Ok(())
}

/// A thread writes while its process is copied, and loses nothing.
pub async fn threads_write_while_their_process_is_copied() -> Outcome {
    static STOP: AtomicBool = AtomicBool::new(false);
    let words = must!(memory(64));
    let writer = must!(thread::spawn(move || {
        let mut round = 1;
        set_marks(words, round);
        while !STOP.load(Ordering::Relaxed) {
            if !has_marks(words, round) {
                return Err(round);
            }
            round += 1;
            set_marks(words, round);
        }
        Ok(round)
    }));
    for _ in 0..30 {
        // The pages of the copy do not change any more.
        let child = must!(fork(|| {
            let rounds = || words.chunks(PAGE / 8).map(|words| words[0].load(Ordering::Relaxed) % 1000);
            let first: Vec<u64> = rounds().collect();
            u8::from(!rounds().eq(first))
        }));
        check_eq!(must!(status_of(child)), 0);
    }
    STOP.store(true, Ordering::Relaxed);
    check!(writer.join().is_ok(), "a write is lost");
    Ok(())
}

/// Copies of copies, which end in any order, give all frames back.
pub async fn generations_of_copies_give_everything_back() -> Outcome {
    fn descend(words: &'static [AtomicU64], depth: u64) -> u8 {
        if !has_marks(words, depth) {
            return 1;
        }
        set_marks(words, depth + 1);
        if depth == 6 {
            return 0;
        }
        let (Ok(first), Ok(second)) = (fork(|| descend(words, depth + 1)), fork(|| descend(words, depth + 1))) else {
            return 2;
        };
        match (status_of(first), status_of(second)) {
            (Ok(0), Ok(0)) if has_marks(words, depth + 1) => 0,
            _ => 3,
        }
    }
    let words = must!(memory(40));
    set_marks(words, 1);
    let free = counter(Counter::FramesFree)?;
    for _ in 0..2 {
        let child = must!(fork(|| descend(words, 1)));
        check_eq!(must!(status_of(child)), 0);
    }
    check!(has_marks(words, 1));
    harness::reaches(Counter::FramesFree, free.saturating_sub(100)).await
}

/// The C library's `posix_spawn`: the child tells in its parent's memory why a program could not be started, and the
/// parent goes on when another one has been.
pub async fn children_of_vfork_use_their_parent_s_memory_until_they_execute() -> Outcome {
    let words = must!(memory(2));
    let free = counter(Counter::FramesFree)?;
    for _ in 0..3 {
        let child = must!(start_after_a_failure(words));
        check_eq!(words[0].load(Ordering::Relaxed), Errno::ENOENT as u64);
        check_eq!(must!(status_of(child)), 7);
    }
    // One whose parent is killed while it waits.
    let (reader, writer) = must!(system::file::pipe(0));
    let lender = must!(fork(|| {
        let _ = fork_with(LENT, || {
            let _ = system::file::write(writer.raw(), b"x");
            loop {
                core::hint::spin_loop();
            }
        });
        3
    }));
    check_eq!(system::file::read(reader.raw(), &mut [0; 1]), Ok(1));
    must!(call(SystemCall::Kill, [lender, signal::KILL as usize, 0, 0, 0, 0]));
    check_eq!(must!(status_of(lender)), 0x100 | signal::KILL);
    harness::reaches(Counter::FramesFree, free.saturating_sub(20)).await
}

/// Flags of `vfork`.
const LENT: u64 = clone::VM | clone::VFORK;

/// Starts a program by `vfork`, after one that is not there.
fn start_after_a_failure(words: &'static [AtomicU64]) -> Result<usize, Errno> {
    let arguments = [c"tests".as_ptr(), c"--act".as_ptr(), c"return".as_ptr(), core::ptr::null()];
    words[0].store(0, Ordering::Relaxed);
    fork_with(LENT, || {
        for path in [c"/bin/missing", c"/bin/tests"] {
            let words_of_call = [path.as_ptr() as usize, arguments.as_ptr() as usize, 0, 0, 0, 0];
            let Err(error) = call(SystemCall::Execute, words_of_call) else { break };
            words[0].store(error as u64, Ordering::Relaxed);
        }
        2
    })
}

/// A copy begins with the contents of its parent's registers, which the kernel leaves in the hart during a call.
pub async fn copies_have_the_floating_point_registers() -> Outcome {
    for seed in 1..20u64 {
        let (result, bits): (usize, u64);
        // SAFETY: the call is `clone` as in `fork`; all registers that the code changes are declared.
        unsafe {
            core::arch::asm!(
                "fmv.d.x f9, {seed}",
                "fmv.d.x f31, {seed}",
                "fadd.d f31, f9, f31",
                "ecall",
                "fmv.x.d {bits}, f9",
                seed = in(reg) seed,
                bits = out(reg) bits,
                inlateout("a0") signal::CHLD as usize => result,
                in("a1") 0, in("a2") 0, in("a3") 0, in("a4") 0, in("a5") 0,
                in("a7") SystemCall::Clone as usize,
                out("f9") _, out("f31") _,
            );
        }
        if result == 0 {
            let _ = call(SystemCall::ExitGroup, [if bits == seed { 9 } else { 1 }, 0, 0, 0, 0, 0]);
        }
        check!((result as isize) > 0, "clone: {}", result as isize);
        check_eq!(bits, seed);
        check_eq!(must!(status_of(result)), 9);
    }
    Ok(())
}

pub async fn copies_start_other_programs_and_have_their_parent_s_signals() -> Outcome {
    let (reader, writer) = must!(system::file::pipe(0));
    let ignore = [1u64, 0, 0];
    check_eq!(call(SystemCall::SignalAction, [UNUSED, ignore.as_ptr() as usize, 0, 8, 0, 0]), Ok(0));
    let arguments = [c"tests".as_ptr(), c"--act".as_ptr(), c"return".as_ptr(), core::ptr::null()];
    let path = c"/bin/tests".as_ptr() as usize;
    let child = must!(fork(|| {
        let own = system::process::number() as usize;
        // Ignored here, too, or this ends the copy.
        let sent = call(SystemCall::Kill, [own, UNUSED, 0, 0, 0, 0]);
        if sent != Ok(0) || system::file::write(writer.raw(), b"x") != Ok(1) {
            return 1;
        }
        let _ = call(SystemCall::Execute, [path, arguments.as_ptr() as usize, 0, 0, 0, 0]);
        2
    }));
    check_eq!(must!(status_of(child)), 7);
    check_eq!(system::file::read(reader.raw(), &mut [0; 2]), Ok(1));
    check_eq!(call(SystemCall::Wait, [child, 0, WNOHANG as usize, 0, 0, 0]), Err(Errno::ECHILD));
    Ok(())
}
