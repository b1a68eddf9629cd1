//! One property of bytes, tried in two ways: for a moment by every run of the tests, and for any time by libFuzzer,
//! which learns from the branches that an input takes.
//!
//! A test calls [`fuzz`] with a name, with good inputs and with a function that panics when the property does not hold.
//! An ordinary run tries the good inputs, those kept under `tests/property/corpora/NAME`, and a few hundred damaged
//! copies of both. `cargo xtask fuzz NAME` builds the same test with coverage counters and the feature `libfuzzer`;
//! then the test passes its function to libFuzzer, which never returns. So the test programs, with all that they can
//! see of a crate, are the fuzz targets, and there is no second set of programs to maintain.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{TestError, TestRunner};

/// Variable with the name of the property for libFuzzer.
pub const FUZZ: &str = "COPS_FUZZ";

/// Number of damaged copies of good inputs in an ordinary run.
const DAMAGED: u32 = 256;

/// Tries `run` with `seeds`, which are good inputs, with the kept corpus, and with damaged copies of them.
///
/// # Panics
///
/// As `run`; the input is printed. Also if the corpus cannot be read.
pub fn fuzz(name: &str, seeds: &[&[u8]], run: fn(&[u8])) {
    #[cfg(feature = "libfuzzer")]
    if std::env::var(FUZZ).is_ok_and(|wanted| wanted == name) {
        crate::libfuzzer::drive(seeds, run);
    }
    let mut inputs: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_vec()).collect();
    // Interpreted programs read no files.
    if !cfg!(miri) {
        inputs.extend(kept(&corpus(name)));
    }
    assert!(!inputs.is_empty(), "{name} has neither seeds nor a corpus");
    for input in &inputs {
        run(input);
    }
    let tried = TestRunner::new(crate::cases(DAMAGED)).run(&damaged(inputs), |input| {
        run(&input);
        Ok(())
    });
    if let Err(TestError::Fail(reason, input)) = tried {
        panic!("{name}: {reason}\nwith the input {input:?}");
    }
}

/// Returns the folder of the inputs that are kept for a property.
fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(name)
}

fn kept(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // Sorted, so that a seed repeats a run everywhere.
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    paths.iter().map(read).collect()
}

/// A change of a few bytes. Places are relative, because earlier changes move the end.
#[derive(Clone, Debug)]
enum Damage {
    Byte(Index, u8),
    /// Four bytes: lengths, counts, offsets; of either byte order.
    Word(Index, u32, bool),
    Remove(Index, usize),
    Repeat(Index, Index, usize),
    Cut(Index),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        if length == 0 {
            return;
        }
        match self {
            Damage::Byte(at, value) => bytes[at.index(length)] = *value,
            Damage::Word(at, value, big) => {
                let at = at.index(length) & !3;
                let word = if *big { value.to_be_bytes() } else { value.to_le_bytes() };
                bytes.iter_mut().skip(at).zip(word).for_each(|(byte, value)| *byte = value);
            }
            Damage::Remove(at, count) => {
                let at = at.index(length);
                bytes.drain(at..length.min(at + count));
            }
            Damage::Repeat(from, to, count) => {
                let from = from.index(length);
                let piece = bytes[from..length.min(from + count)].to_vec();
                let to = to.index(length);
                bytes.splice(to..to, piece);
            }
            Damage::Cut(at) => bytes.truncate(at.index(length)),
        }
    }
}

fn damaged(inputs: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let index = || any::<Index>();
    let word = prop_oneof![any::<u32>(), 0..20u32, Just(u32::MAX), Just(i32::MAX as u32), Just(4096)];
    let damage = prop_oneof![
        4 => (index(), prop_oneof![any::<u8>(), Just(0), Just(0xff)]).prop_map(|(at, value)| Damage::Byte(at, value)),
        4 => (index(), word, any::<bool>()).prop_map(|(at, value, big)| Damage::Word(at, value, big)),
        1 => (index(), 1..40usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        1 => (index(), index(), 1..40usize).prop_map(|(from, to, count)| Damage::Repeat(from, to, count)),
        1 => index().prop_map(Damage::Cut),
    ];
    (prop::sample::select(inputs), prop::collection::vec(damage, 1..8)).prop_map(|(mut input, changes)| {
        changes.iter().for_each(|change| change.apply(&mut input));
        input
    })
}

/// Reads an input as a row of numbers, which select a test's next steps. At the end there are zeros.
pub struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    /// Begins at the first byte.
    pub fn new(input: &'a [u8]) -> Numbers<'a> {
        Numbers(input)
    }

    /// Returns whether all bytes were taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes this many bytes, fewer at the end.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes a number of one byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// Takes a number of eight bytes, the first of which is its length: small numbers are short.
    pub fn number(&mut self) -> u64 {
        let count = usize::from(self.byte() % 9);
        self.bytes(count).iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn seeds_and_damaged_copies_are_tried() {
        static TRIED: AtomicUsize = AtomicUsize::new(0);
        static GOOD: AtomicUsize = AtomicUsize::new(0);
        fuzz("nothing-is-kept", &[b"a good input"], |input| {
            TRIED.fetch_add(1, Ordering::Relaxed);
            if input == b"a good input" {
                GOOD.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(TRIED.load(Ordering::Relaxed) > 2);
        assert!((1..TRIED.load(Ordering::Relaxed)).contains(&GOOD.load(Ordering::Relaxed)));
    }

    #[test]
    #[should_panic(expected = "with the input [")]
    #[cfg(not(miri))]
    fn a_failure_names_its_input() {
        fuzz("nothing-is-kept", &[b"0123456789"], |input| assert!(input.len() > 9 || input.is_empty()));
    }

    #[test]
    fn numbers_end_with_zeros() {
        let mut numbers = Numbers::new(&[2, 0x34, 0x12, 7]);
        assert_eq!((numbers.number(), numbers.byte(), numbers.is_empty()), (0x1234, 7, true));
        assert_eq!((numbers.number(), numbers.byte(), numbers.bytes(5).len()), (0, 0, 0));
        assert_eq!(Numbers::new(&[8, 0xff]).number(), 0xff);
    }
}
