//! Memory: the requests of programs, and the rights of their pages.

use abi_unix::types::{futex, mapping, protection, segment, signal};
use abi_unix::{Counter, SystemCall};
use alloc::vec::Vec;
use cops::Errno;
use cops::process::Ending;
use cops::system::memory::{map, map_with, protect, set_break, unmap};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fork;
use crate::harness::{self, Outcome, counter, ending_of_act};
use crate::{check, check_eq, must};

const PAGE: usize = 4096;

pub async fn pages_are_zero_and_come_at_their_first_use() -> Outcome {
    let before = counter(Counter::FramesFree)?;
    let size = 64 << 20;
    let memory = must!(map(size));
    let mapped = counter(Counter::FramesFree)?;
    check!(before - mapped.min(before) < 64, "{} frames for unused memory", before - mapped);
    for offset in (0..size).step_by(PAGE * 97) {
        // SAFETY: the mapping is this test's and that long.
        unsafe {
            check_eq!(memory.add(offset).read_volatile(), 0);
            check_eq!(memory.add(offset + PAGE - 1).read_volatile(), 0);
            memory.add(offset).write_volatile(7);
            check_eq!(memory.add(offset).read_volatile(), 7);
        }
    }
    let used = counter(Counter::FramesFree)?;
    check!(mapped - used.min(mapped) >= (size / PAGE / 97) as u64, "{} frames", mapped - used);
    // SAFETY: no code uses it.
    must!(unsafe { unmap(memory, size) });
    let after = counter(Counter::FramesFree)?;
    check!(after + 64 >= mapped, "{mapped} frames were free, and {after} afterwards");
    Ok(())
}

/// A segment is common to a process and its copy, is known by its key until it is removed, and goes with the last
/// mapping. Words in it are one futex for both.
pub async fn segments_are_common_and_go_with_their_last_mapping() -> Outcome {
    const KEY: usize = 0x6d65_6d31;
    let call = |which: SystemCall, arguments: [usize; 3]| {
        let [first, second, third] = arguments;
        harness::call(which, [first, second, third, 0, 0, 0])
    };
    let before = counter(Counter::FramesFree)?;
    let id = must!(call(SystemCall::SegmentGet, [KEY, 40 * PAGE, 0o3600]));
    check_eq!(call(SystemCall::SegmentGet, [KEY, 0, 0]), Ok(id));
    let at = must!(call(SystemCall::SegmentAttach, [id, 0, 0]));
    // SAFETY: the mapping is aligned, zeros, and stays until the end of this test.
    let words = unsafe { core::slice::from_raw_parts(at as *const AtomicU32, 40 * PAGE / 4) };
    let futex_call = |operation: u32, value: usize| {
        let word = words[1].as_ptr() as usize;
        harness::call(SystemCall::Futex, [word, operation as usize, value, 0, 0, 0])
    };
    let child = must!(fork::fork(|| {
        let Ok(second) = call(SystemCall::SegmentAttach, [id, 0, segment::READ_ONLY as usize]) else { return 1 };
        // SAFETY: as above, until the end of this process.
        let second = unsafe { core::slice::from_raw_parts(second as *const AtomicU32, 40 * PAGE / 4) };
        for page in 0..40 {
            words[page * PAGE / 4].store(page as u32 + 1, Ordering::Relaxed);
        }
        let found = (0..40).all(|page| second[page * PAGE / 4].load(Ordering::Relaxed) == page as u32 + 1);
        words[1].store(1, Ordering::Release);
        let _ = futex_call(futex::WAKE, 1);
        u8::from(!found)
    }));
    while words[1].load(Ordering::Acquire) == 0 {
        let _ = futex_call(futex::WAIT, 0);
    }
    check_eq!(must!(fork::status_of(child)), 0);
    check!((0..40).all(|page| words[page * PAGE / 4].load(Ordering::Relaxed) == page as u32 + 1));
    let mut bytes = [0u8; segment::SegmentStatus::SIZE];
    check_eq!(call(SystemCall::SegmentControl, [id, segment::REMOVE as usize, 0]), Ok(0));
    check_eq!(call(SystemCall::SegmentControl, [id, segment::STATUS as usize, bytes.as_mut_ptr() as usize]), Ok(0));
    let status = segment::SegmentStatus::from_bytes(&bytes);
    check_eq!((status.mappings, status.size, status.mode), (1, 40 * PAGE as u64, 0o600 | segment::IS_REMOVED));
    check_eq!(call(SystemCall::SegmentGet, [KEY, 0, 0]), Err(Errno::ENOENT));
    check_eq!(call(SystemCall::SegmentDetach, [at, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::SegmentDetach, [at, 0, 0]), Err(Errno::EINVAL));
    check_eq!(call(SystemCall::SegmentAttach, [id, 0, 0]), Err(Errno::EINVAL));
    let after = counter(Counter::FramesFree)?;
    check!(after + 32 >= before, "{before} frames were free, and {after} afterwards");
    Ok(())
}

pub async fn parts_can_be_unmapped_and_protected() -> Outcome {
    let memory = must!(map(8 * PAGE));
    // SAFETY: all of this is this test's mapping, and only the remaining parts are used.
    unsafe {
        memory.write_bytes(3, 8 * PAGE);
        must!(unmap(memory.add(3 * PAGE), PAGE));
        check_eq!(memory.add(2 * PAGE).read_volatile(), 3);
        check_eq!(memory.add(4 * PAGE).read_volatile(), 3);
        must!(protect(memory, 2 * PAGE, protection::READ));
        check_eq!(memory.read_volatile(), 3);
        // The kernel does not write there either.
        let result = cops::system::call!(GetRandom, memory, 16, 0);
        check_eq!(result, Err(Errno::EFAULT));
        let result = cops::system::call!(GetRandom, memory.add(3 * PAGE), 16, 0);
        check_eq!(result, Err(Errno::EFAULT));
        must!(protect(memory, 2 * PAGE, protection::READ | protection::WRITE));
        memory.write_volatile(4);
        check_eq!(protect(memory, 8 * PAGE, protection::READ), Err(Errno::ENOMEM));
        must!(unmap(memory, 8 * PAGE));
    }
    Ok(())
}

pub async fn nothing_is_writable_and_executable() -> Outcome {
    let everything = protection::READ | protection::WRITE | protection::EXECUTE;
    let flags = mapping::PRIVATE | mapping::ANONYMOUS;
    // SAFETY: a new mapping, which is not used.
    let result = unsafe { map_with(0, PAGE, everything, flags, -1, 0) };
    check!(result.is_err(), "{result:?}");
    let memory = must!(map(PAGE));
    // SAFETY: the page is this test's, and no code uses it.
    let result = unsafe { protect(memory, PAGE, everything) };
    check!(result.is_err(), "{result:?}");
    Ok(())
}

/// Fills a page anew again and again, and runs it on any worker.
pub async fn code_can_be_made_and_made_anew() -> Outcome {
    must!(cops::alloc_cpu(3));
    let memory = must!(map(PAGE)) as usize;
    let both = protection::READ | protection::WRITE;
    for round in 0..200u32 {
        // addi a0, zero, round; ret
        let code = [round << 20 | 0x513, 0x8067];
        // SAFETY: the page is this test's and writable now; no worker runs it.
        unsafe {
            (memory as *mut [u32; 2]).write_volatile(code);
            must!(protect(memory as *mut u8, PAGE, protection::READ | protection::EXECUTE));
        }
        let runs: Vec<_> = (0..4)
            .map(|_| {
                cops::spawn(async move {
                    // SAFETY: the page holds this function, and is executable until all have run it.
                    let function = unsafe { core::mem::transmute::<usize, extern "C" fn() -> u32>(memory) };
                    function()
                })
            })
            .collect();
        for run in runs {
            check_eq!(run.await, Ok(round));
        }
        // SAFETY: no worker runs the page any more.
        must!(unsafe { protect(memory as *mut u8, PAGE, both) });
    }
    // SAFETY: no code uses it.
    must!(unsafe { unmap(memory as *mut u8, PAGE) });
    Ok(())
}

pub async fn fixed_mappings() -> Outcome {
    let flags = mapping::PRIVATE | mapping::ANONYMOUS;
    let both = protection::READ | protection::WRITE;
    let place = 0x20_0000_0000usize;
    // SAFETY: only this test's mappings lie there.
    unsafe {
        let memory = must!(map_with(place, 4 * PAGE, both, flags | mapping::FIXED, -1, 0));
        check_eq!(memory as usize, place);
        memory.write_volatile(9);
        let result = map_with(place, PAGE, both, flags | mapping::FIXED_NOREPLACE, -1, 0);
        check_eq!(result.err(), Some(Errno::EEXIST));
        // Replaced: zero again.
        must!(map_with(place, PAGE, both, flags | mapping::FIXED, -1, 0));
        check_eq!(memory.read_volatile(), 0);
        must!(unmap(memory, 4 * PAGE));
        for wrong in [place + 1, 0x3f_ffff_f000 + PAGE, 0xffff_ffc0_0000_0000] {
            let result = map_with(wrong, PAGE, both, flags | mapping::FIXED, -1, 0);
            check!(
                harness::is_one_of(&result, &[Errno::EINVAL, Errno::ENOMEM, Errno::EPERM]),
                "{wrong:#x}: {result:?}"
            );
        }
    }
    Ok(())
}

pub async fn files_can_be_mapped() -> Outcome {
    let contents: Vec<u8> = (0..10_000u32).map(|index| index as u8).collect();
    must!(cops::file::write("/tmp/mapped", contents.clone()).await);
    let file = must!(cops::file::File::open("/tmp/mapped"));
    let flags = mapping::PRIVATE;
    // SAFETY: a new mapping of at most the file's pages.
    unsafe {
        let memory =
            must!(map_with(0, 10_000, protection::READ | protection::WRITE, flags, file.descriptor().raw(), 0));
        check!(core::slice::from_raw_parts(memory, 10_000) == contents);
        // The rest of the last page is zero, and the copy is private.
        check_eq!(memory.add(10_000).read_volatile(), 0);
        memory.write_volatile(99);
        must!(unmap(memory, 10_000));
    }
    check_eq!(must!(cops::file::read("/tmp/mapped").await)[0], 0);
    must!(cops::file::remove("/tmp/mapped"));
    Ok(())
}

pub async fn the_end_of_the_heap_moves() -> Outcome {
    // SAFETY: the runtime's heap does not use this memory.
    unsafe {
        let start = set_break(0);
        check!(start > 0x10000);
        check_eq!(set_break(start + 3 * PAGE), start + 3 * PAGE);
        let memory = start as *mut u8;
        check_eq!(memory.add(2 * PAGE).read_volatile(), 0);
        memory.add(2 * PAGE).write_volatile(1);
        check_eq!(set_break(start), start);
        check_eq!(set_break(start + 3 * PAGE), start + 3 * PAGE);
        check_eq!(memory.add(2 * PAGE).read_volatile(), 0);
        // Impossible values change nothing.
        check_eq!(set_break(0x3f_ffff_0000), start + 3 * PAGE);
        check_eq!(set_break(usize::MAX), start + 3 * PAGE);
        check_eq!(set_break(start), start);
    }
    Ok(())
}

pub async fn faults_end_only_their_process() -> Outcome {
    let segv = Ending::Killed(signal::SEGV as u8);
    for name in [
        "read-null",
        "read-kernel",
        "write-image",
        "write-global-page",
        "write-code",
        "write-constant",
        "execute-data",
        "execute-heap",
        "overflow-stack",
        "unmap-everything",
    ] {
        let ending = ending_of_act(name).await?;
        check!(ending == segv || ending == Ending::Killed(signal::BUS as u8), "{name}: {ending:?}");
    }
    check_eq!(ending_of_act("illegal-instruction").await?, Ending::Killed(signal::ILL as u8));
    check_eq!(ending_of_act("breakpoint").await?, Ending::Killed(signal::TRAP as u8));
    check_eq!(ending_of_act("read-image").await?, Ending::Exited(0));
    Ok(())
}

pub async fn exhaustion_is_an_error_or_the_end_of_its_cause() -> Outcome {
    let free = counter(Counter::FramesFree)?;
    // Boards have four times the memory of the other machines, and each page of it is touched.
    let quarters = u32::try_from(counter(Counter::FramesTotal)? / (256 << 20 >> 12)).unwrap_or(u32::MAX);
    let ending = harness::ending_of_long_act("exhaust-memory", harness::LIMIT * quarters.clamp(1, 8)).await?;
    check!(matches!(ending, Ending::Exited(0) | Ending::Killed(9)), "{ending:?}");
    harness::reaches(Counter::FramesFree, free.saturating_sub(64)).await
}

pub async fn the_heap_serves_all_sizes() -> Outcome {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    for turn in 0..2000usize {
        let size = (turn * 7919) % 70_000 + 1;
        let stamp = turn as u8;
        let mut block = Vec::with_capacity(size);
        block.resize(size, stamp);
        blocks.push(block);
        if turn % 3 == 0 {
            let block = blocks.swap_remove(turn % blocks.len());
            check!(block.iter().all(|byte| *byte == block[0]));
        }
    }
    let large = alloc::vec![1u8; 5 << 20];
    check_eq!(large[large.len() - 1], 1);
    drop(large);
    for block in blocks {
        check!(block.iter().all(|byte| *byte == block[0]));
    }
    Ok(())
}
