//! An attacker that collects initial sequence numbers to predict the next one.
//!
//! The best tool is the generator from which smoltcp takes such numbers (sPCG32, whose constants are published). Three
//! numbers reveal its state: a number is 32 neighbouring bits of the state, and the state's three highest bits give
//! their place. For each pair of places the unknown bits are an interval, and the step between them is linear; a
//! multiple in an interval is found in as many steps as Euclid's algorithm takes.

const FACTOR: u64 = 0xbb2e_fcec_3c39_611d;
const ADDEND: u64 = 0x7590_ef39;

/// Returns the state after this one, and the number that it gives.
pub fn step(state: u64) -> (u64, u32) {
    let next = state.wrapping_mul(FACTOR).wrapping_add(ADDEND);
    (next, number(next))
}

fn number(state: u64) -> u32 {
    (state >> (29 - (state >> 61))) as u32
}

/// Returns the smallest `x` for which `factor * x` modulo `modulus` is at least `low` and at most `high`.
fn first_within(factor: u128, modulus: u128, low: u128, high: u128) -> Option<u128> {
    if low == 0 {
        return Some(0);
    }
    if factor == 0 || low > high {
        return None;
    }
    if 2 * factor > modulus {
        return first_within(modulus - factor, modulus, modulus - high, modulus - low);
    }
    let count = low.div_ceil(factor);
    if count * factor <= high {
        return Some(count);
    }
    // No multiple lies there before the first turn: compute the number of turns.
    let turns = first_within((factor - modulus % factor) % factor, factor, low % factor, high % factor)?;
    Some((low + modulus * turns).div_ceil(factor))
}

/// Returns the known part of a state for each place of its number: the state with zeros below, and the number of these
/// bits.
fn places(number: u32) -> impl Iterator<Item = (u64, u32)> {
    (0..8u64).flat_map(move |highest| {
        let unknown = 29 - highest as u32;
        (0..1u64 << highest)
            .map(move |above| (highest << 61 | above << (unknown + 32) | u64::from(number) << unknown, unknown))
    })
}

/// Returns the state after the third of three successive numbers, if the published generator has made them.
pub fn recover(numbers: [u32; 3]) -> Option<u64> {
    const MODULUS: u128 = 1 << 64;
    for (first, unknown) in places(numbers[0]) {
        for (second, range) in places(numbers[1]) {
            // All x below 2^unknown for which the step from first + x lies in the range above second.
            let mut start = first;
            let end = first | ((1 << unknown) - 1);
            loop {
                let low = second.wrapping_sub(step(start).0);
                let high = low.wrapping_add((1 << range) - 1);
                let found = if low <= high {
                    first_within(FACTOR.into(), MODULUS, low.into(), high.into())
                } else {
                    // The range goes around, so it holds zero.
                    Some(0)
                };
                let Some(state) = found.and_then(|x| u64::try_from(x).ok()?.checked_add(start)) else { break };
                if state > end {
                    break;
                }
                let (after, number) = step(step(state).0);
                if step(state).1 == numbers[1] && number == numbers[2] {
                    return Some(after);
                }
                if state == end {
                    break;
                }
                start = state + 1;
            }
        }
    }
    None
}

/// Returns how many of the numbers a simple method would have predicted from those before: the published generator, the
/// last difference, any difference seen so far, a counter.
pub fn predicted(numbers: &[u32]) -> usize {
    let mut state = None;
    let mut differences = std::collections::HashSet::new();
    let mut count = 0;
    for (position, &number) in numbers.iter().enumerate() {
        let mut guessed = false;
        if let Some(before) = state {
            let (after, guess) = step(before);
            guessed |= guess == number;
            state = Some(after);
        }
        if position > 0 {
            let difference = number.wrapping_sub(numbers[position - 1]);
            guessed |= differences.contains(&difference) || difference.wrapping_add(1) <= 2;
            differences.insert(difference);
        }
        count += usize::from(guessed);
        // The search costs a moment; a real attacker tries it with every three numbers, here the first few must do.
        if state.is_none() && (2..8).contains(&position) {
            state = recover([numbers[position - 2], numbers[position - 1], number]);
        }
    }
    count
}
