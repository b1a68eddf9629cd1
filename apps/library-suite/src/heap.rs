//! Tests of the heap, on the machine.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sel4::ObjectType;
use sel4::capability::Notification;
use sel4::thread::{Start, spawn};

use crate::{Bench, Outcome, PRIORITY, equal};

/// Allocates and frees, and checks that its blocks keep their content. Returns the number of wrong bytes.
fn churn(seed: u64, rounds: u64) -> u64 {
    let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut wrong = 0;
    let mut random = seed * 2 + 1;
    for round in 0..rounds {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(seed);
        let key = random >> 58;
        let mark = (seed ^ key) as u8;
        if let Some(block) = blocks.remove(&key) {
            wrong += block.iter().filter(|byte| **byte != mark).count() as u64;
        }
        let length = (random >> 40) % if round % 64 == 0 { 100_000 } else { 500 };
        blocks.insert(key, alloc::vec![mark; length as usize]);
    }
    wrong
}

pub fn blocks_are_separate_and_come_back(_: &mut Bench<'_>) -> Outcome {
    // Far more than the heap has, if freed blocks were lost.
    equal!(churn(1, 20_000), 0);
    Ok(())
}

/// Signals success; the badge of its capability identifies it.
fn churn_and_tell(word: u64) {
    let (number, pointer) = (word >> 32, word & 0xffff_ffff);
    let wrong = churn(number + 2, 200);
    // A thread that found a wrong byte does not signal, and the test waits until its limit.
    if wrong == 0 {
        Notification::from_pointer(pointer).signal();
    }
}

pub fn threads_of_all_priorities_allocate(bench: &mut Bench<'_>) -> Outcome {
    let done = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    let mut missing = 0;
    for number in 0..4 {
        let badged = bench.badged(done.pointer(), 1 << number)?;
        // Two and two alternate at the kernel's ticks, at any instruction; on several harts all run at once.
        let start = Start::new(churn_and_tell, number << 32 | badged, PRIORITY + number / 2);
        let started = spawn(&mut bench.allocator, &mut bench.window, start)?;
        let core = number % bench.boot.cores().1;
        if bench.boot.cores().1 > 1 {
            started.thread.set_affinity(core)?;
        }
        missing |= 1 << number;
    }
    while missing != 0 {
        missing &= !done.wait();
    }
    Ok(())
}
