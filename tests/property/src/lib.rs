//! The number of cases and the seed of every property test, and numbers that favour edges.
//!
//! Most defects sit where a length is 0 or 1, where a page begins or ends, where a buffer is full. A number drawn
//! evenly from a range of thousands meets such a place once in thousands of cases; [`edges`] meets one in every second
//! case.
//!
//! Two variables of the environment apply to all tests. [`CASES`] multiplies every number of cases, so that one command
//! makes all of them longer in proportion (`cargo xtask test long`). [`SEED`] is the source of the cases: an ordinary
//! run always tries the same ones, so that a test that passes once passes again; the long tests draw a new seed. Each
//! test prints the seed that it uses, which the test harness shows when the test fails. Files of failing cases are not
//! written: a case worth keeping becomes a test with a name.

#![deny(unsafe_code)]

mod fuzz;
#[cfg(feature = "libfuzzer")]
#[allow(unsafe_code)]
mod libfuzzer;
#[allow(unsafe_code)]
mod shortage;

pub use fuzz::{FUZZ, Numbers, fuzz};
pub use shortage::{Limited, with_memory};

use std::fmt::Debug;
use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Variable with the factor of the usual number of cases, greater than 0.
pub const CASES: &str = "COPS_CASES";

/// Variable with the seed of the cases, a number of 64 bits.
pub const SEED: &str = "COPS_SEED";

/// The seed of an ordinary run.
const USUAL_SEED: u64 = 1;

/// Cases of a property under Miri, which interprets some thousand times slower than a processor runs.
const CASES_UNDER_MIRI: u32 = 4;

/// Returns the configuration of a property that is tried with `usual` cases in an ordinary run.
///
/// Prints seed and number, so that a failure can be repeated.
pub fn cases(usual: u32) -> ProptestConfig {
    let seed = number::<u64>(SEED).unwrap_or(USUAL_SEED);
    let cases = if cfg!(miri) { CASES_UNDER_MIRI.min(usual) } else { scaled(usual, number(CASES).unwrap_or(1.0)) };
    eprintln!("property: {cases} cases; repeat them with {SEED}={seed}");
    let default = ProptestConfig::default();
    ProptestConfig {
        cases,
        // Cases that do not apply are discarded; more cases have more of these.
        max_global_rejects: default.max_global_rejects.max(cases.saturating_mul(4)),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..default
    }
}

/// Multiplies a number of cases; at least one remains.
fn scaled(usual: u32, times: f64) -> u32 {
    // The conversion saturates, and NaN becomes 0.
    ((f64::from(usual) * times) as u32).max(1)
}

fn number<N: std::str::FromStr>(variable: &str) -> Option<N> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable} is not a number: {text:?}"),
    }
}

/// Whole numbers that [`edges`] can make.
pub trait Whole: Copy + Debug + Ord + 'static {
    /// Adds 1, unless there is no such number.
    fn above(self) -> Option<Self>;
    /// Subtracts 1, unless there is no such number.
    fn below(self) -> Option<Self>;
    /// Draws evenly from the range.
    fn within(range: Range<Self>) -> BoxedStrategy<Self>;
}

macro_rules! whole {
    ($($name:ty),*) => {$(
        impl Whole for $name {

            fn above(self) -> Option<Self> {
                self.checked_add(1)
            }
            fn below(self) -> Option<Self> {
                self.checked_sub(1)
            }
            fn within(range: Range<Self>) -> BoxedStrategy<Self> {
                range.boxed()
            }
        }
    )*};
}

whole!(u8, u16, u32, u64, usize, i64);

/// Draws numbers of `range`, every second one from an edge: the first two, the last two, and each of `points` with its
/// two neighbours, as far as they are in the range.
///
/// # Panics
///
/// The range is empty.
pub fn edges<N: Whole>(range: Range<N>, points: &[N]) -> BoxedStrategy<N> {
    let ends = [Some(range.start), range.start.above(), range.end.below(), range.end.below().and_then(N::below)];
    let around = points.iter().flat_map(|&point| [point.below(), Some(point), point.above()]);
    let mut edges: Vec<N> = ends.into_iter().chain(around).flatten().filter(|edge| range.contains(edge)).collect();
    edges.sort_unstable();
    edges.dedup();
    prop_oneof![N::within(range), prop::sample::select(edges)].boxed()
}

/// A position relative to an end that is known only while the test runs.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Distance from the beginning.
    At(u64),
    /// Distance from the end; beyond it if positive.
    FromEnd(i64),
}

impl Place {
    /// Returns the position for this `end`.
    pub fn resolve(self, end: u64) -> u64 {
        match self {
            Place::At(at) => at,
            Place::FromEnd(distance) => end.saturating_add_signed(distance),
        }
    }
}

/// Draws positions below `limit`, every third one at the end or directly beside it.
pub fn places(limit: u64, points: &[u64]) -> BoxedStrategy<Place> {
    prop_oneof![
        2 => edges(0..limit, points).prop_map(Place::At),
        1 => (-1..=1i64).prop_map(Place::FromEnd),
    ]
    .boxed()
}

/// Draws bytes that are not 0, of a length from `lengths`; made from one number each time, because drawing every byte
/// of a long buffer takes more time than testing with it.
pub fn filled(lengths: BoxedStrategy<usize>) -> BoxedStrategy<Vec<u8>> {
    (lengths, any::<u64>())
        .prop_map(|(length, seed)| {
            let byte = |index: usize| {
                let mixed = (index as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
                (mixed as u8).max(1)
            };
            (0..length).map(byte).collect()
        })
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_of_cases_are_multiplied() {
        assert_eq!(scaled(256, 1.0), 256);
        assert_eq!(scaled(256, 100.0), 25_600);
        assert_eq!(scaled(256, 0.01), 2);
        assert_eq!(scaled(1, 0.01), 1);
        assert_eq!(scaled(16, f64::NAN), 1);
        assert_eq!(scaled(u32::MAX, 100.0), u32::MAX);
    }

    #[test]
    fn every_edge_is_met_within_a_few_hundred_numbers() {
        let mut runner = TestRunner::deterministic();
        let strategy = edges(0..1_000_000u64, &[4096]);
        let mut met = BTreeSet::new();
        for _ in 0..400 {
            let number = strategy.new_tree(&mut runner).unwrap().current();
            assert!(number < 1_000_000);
            met.insert(number);
        }
        for edge in [0, 1, 4095, 4096, 4097, 999_998, 999_999] {
            assert!(met.contains(&edge), "{edge}");
        }
        assert!(met.len() > 100, "and numbers between them: {}", met.len());
    }

    #[test]
    fn narrow_ranges_have_edges_too() {
        let mut runner = TestRunner::deterministic();
        for _ in 0..20 {
            assert_eq!(edges(3..4u8, &[0, 255]).new_tree(&mut runner).unwrap().current(), 3);
            assert!(edges(0..u64::MAX, &[u64::MAX]).new_tree(&mut runner).unwrap().current() < u64::MAX);
        }
    }

    #[test]
    fn places_stay_at_the_end() {
        assert_eq!(Place::At(7).resolve(100), 7);
        assert_eq!(Place::FromEnd(1).resolve(100), 101);
        assert_eq!(Place::FromEnd(-1).resolve(0), 0);
        let mut runner = TestRunner::deterministic();
        let strategy = places(20, &[]);
        let beyond =
            (0..200).filter(|_| strategy.new_tree(&mut runner).unwrap().current().resolve(1000) >= 999).count();
        assert!(beyond > 30, "{beyond}");
    }

    #[test]
    fn filled_bytes_are_never_zero() {
        let mut runner = TestRunner::deterministic();
        let bytes = filled(Just(5000).boxed()).new_tree(&mut runner).unwrap().current();
        assert_eq!(bytes.len(), 5000);
        assert!(!bytes.contains(&0));
        assert!(bytes.iter().collect::<BTreeSet<_>>().len() > 200);
    }
}
