//! Arrangements of a process's memory: for any words nothing overlaps, and they are as random as documented.

use std::collections::HashSet;
use std::ops::Range;

use program::layout::{Layout, STACK_GUARD, STACK_SIZE, Sizes};
use program::{PAGE_SIZE, USER_ADDRESSES};
use proptest::prelude::*;

const SIZES: Sizes = Sizes { shared: 0x60_0000, image: 0x4000 };
const USER_END: u64 = 1 << 38;

fn parts(layout: &Layout) -> [Range<u64>; 3] {
    [
        layout.stack_guard().start..layout.stack_top,
        layout.shared..layout.shared + SIZES.shared,
        layout.image..layout.image + SIZES.image,
    ]
}

fn check(layout: &Layout) {
    let Layout { program, break_gap, mapping_top, stack_top, stack_start, shared, image } = *layout;
    for address in [program, break_gap, mapping_top, stack_top, shared, image] {
        assert_eq!(address % PAGE_SIZE, 0, "{layout:#x?}");
    }
    assert_eq!(stack_start % 16, 0);
    assert!(stack_start <= stack_top && stack_start > stack_top - PAGE_SIZE, "{layout:#x?}");
    assert_eq!(layout.stack().end - layout.stack().start, STACK_SIZE);
    assert_eq!(layout.stack_guard().end - layout.stack_guard().start, STACK_GUARD);
    let parts = parts(layout);
    for (index, part) in parts.iter().enumerate() {
        assert!(part.start >= mapping_top && part.end < USER_END, "{layout:#x?}");
        for other in &parts[..index] {
            assert!(part.end <= other.start || other.end <= part.start, "{layout:#x?}");
        }
    }
    // The region of the program and `brk` is far below that of `mmap`.
    assert!(program >= USER_ADDRESSES.start && program + break_gap + (64 << 30) < mapping_top, "{layout:#x?}");
}

/// Makes words that depend on the seed alone (splitmix64).
fn words(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = seed;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

#[test]
fn the_fixed_arrangement_is_one() {
    check(&Layout::FIXED);
    assert_eq!(Layout::FIXED.stack_start, Layout::FIXED.stack_top);
}

#[test]
fn words_that_are_not_random_give_arrangements_too() {
    for word in [0, 1, 1 << 63, u64::MAX] {
        check(&Layout::random(SIZES, || word));
    }
}

#[test]
fn every_bit_that_is_promised_is_there() {
    const COUNT: u64 = 200_000;
    let mut sets: [HashSet<u64>; 7] = Default::default();
    let (mut largest, mut smallest) = ([0; 7], [u64::MAX; 7]);
    for seed in 0..COUNT {
        let layout = Layout::random(SIZES, words(seed));
        let in_gigabyte = |address: u64| address % (1 << 30);
        let numbers = [
            layout.program,
            layout.break_gap,
            layout.mapping_top >> 30 << 30,
            in_gigabyte(layout.mapping_top),
            in_gigabyte(layout.stack_top - STACK_SIZE),
            in_gigabyte(layout.shared),
            in_gigabyte(layout.image),
        ];
        for (index, number) in numbers.into_iter().enumerate() {
            sets[index].insert(number);
            largest[index] = largest[index].max(number);
            smallest[index] = smallest[index].min(number);
        }
    }
    // Expected number of different values among so many draws from 2^bits.
    for (index, bits) in [23.0, 18.0, 112f64.log2(), 17.0, 17.0, 17.0, 17.0].into_iter().enumerate() {
        let all = 2f64.powf(bits);
        let expected = all * (1.0 - (1.0 - 1.0 / all).powf(COUNT as f64));
        let found = sets[index].len() as f64;
        assert!(found > expected * 0.95, "{index}: {found} of {expected}");
        // And they reach from one end to the other.
        let range = (largest[index] - smallest[index]) as f64;
        let unit = if index == 2 { f64::from(1 << 30) } else { 4096.0 };
        assert!(range > all * unit * 0.95, "{index}: {range:e}");
    }
}

proptest! {
    #![proptest_config(property::cases(1024))]

    #[test]
    fn nothing_overlaps(words in prop::collection::vec(any::<u64>(), 1..40)) {
        let mut words = words.into_iter().cycle();
        check(&Layout::random(SIZES, || words.next().unwrap()));
    }

    #[test]
    fn programs_with_addresses_of_their_own_are_seen(seed: u64, start in 0u64..USER_END, length in 1u64..1 << 31) {
        let layout = Layout::random(SIZES, words(seed));
        let program = start..start + length;
        let meets = |part: &Range<u64>| (part.start..part.end).step_by(4096).any(|page| program.contains(&page))
            || part.contains(&program.start);
        let is_in_the_way = parts(&layout).iter().any(meets);
        prop_assert_eq!(layout.leaves_room_for(&program, SIZES), !is_in_the_way);
    }
}
