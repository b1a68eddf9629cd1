//! Address-space identifiers: the short tags by which the TLB tells address spaces apart.
//!
//! With identifiers the TLB keeps the entries of several processes, and a switch flushes nothing. There are fewer
//! identifiers than processes that ever live, so they are given out in ascending order within a *generation*; when they
//! are used up, a new generation begins, and every hart flushes its whole TLB before it runs anything under the new
//! one. An address space whose context is of an old generation gets a new identifier when it is next entered. A space
//! that runs on a hart at the moment of the change keeps its identifier, because the hart goes on using it.
//!
//! Entering an address space of the current generation takes no lock: one compare-and-swap of the hart's own
//! word, which the beginning of a new generation clears.
//!
//! The number of bits is the machine's (`satp` keeps as many of the bits written to its field as there are). With too
//! few of them to be useful the answer is always "flush everything on entry".

use crate::MAX_HARTS;
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use spin::Mutex;

/// loom's mutex with the interface of a spin lock.
#[cfg(loom)]
#[derive(Debug)]
struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("no test panics with the lock")
    }
}

/// Bits of an identifier in `satp` and in a [`Context`].
const BITS: u32 = 16;

/// Generation and identifier of one address space; zero: none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Context(u64);

impl Context {
    fn new(generation: u64, number: u16) -> Self {
        Self(generation << BITS | u64::from(number))
    }

    fn generation(self) -> u64 {
        self.0 >> BITS
    }

    /// Returns the identifier.
    pub(crate) fn number(self) -> u16 {
        self.0 as u16
    }
}

/// Local flush that a hart must do before it uses its new identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "entries of another address space may be used instead"]
pub enum LocalFlush {
    /// Nothing.
    Nothing,
    /// All entries with this identifier.
    Identifier(u16),
    /// All entries.
    Everything,
}

/// The identifiers of one machine.
#[derive(Debug)]
#[doc(alias = "ASID")]
#[doc(alias = "PCID")]
pub struct Identifiers {
    /// Largest identifier; 0: none are used.
    largest: u16,
    /// Changed under the lock only.
    generation: AtomicU64,
    /// Context that each hart uses; zero after a new generation began and until the hart enters a space.
    active: [AtomicU64; MAX_HARTS],
    slow: Mutex<Slow>,
}

#[derive(Debug)]
struct Slow {
    next: u32,
    /// Context that each hart was using when the generation began.
    reserved: [Context; MAX_HARTS],
    /// Harts that must flush everything before they use the new generation.
    unflushed: u64,
}

impl Slow {
    const NEW: Self = Self { next: 1, reserved: [Context(0); MAX_HARTS], unflushed: 0 };
}

/// Returns the largest identifier of `bits` bits, or 0 if there are too few: every hart may hold one over from the last
/// generation, and must find another.
const fn largest(bits: u32) -> u16 {
    let bits = if bits > BITS { BITS } else { bits };
    let largest = ((1u32 << bits) - 1) as u16;
    if largest as usize >= 2 * MAX_HARTS { largest } else { 0 }
}

impl Identifiers {
    /// Makes identifiers of `bits` bits; 0 if the machine has none.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self {
            largest: largest(bits),
            generation: AtomicU64::new(1),
            active: [const { AtomicU64::new(0) }; MAX_HARTS],
            slow: Mutex::new(Slow::NEW),
        }
    }

    /// Makes identifiers for loom, whose atomics are not made at compile time.
    #[cfg(loom)]
    pub fn new(bits: u32) -> Self {
        Self {
            largest: largest(bits),
            generation: AtomicU64::new(1),
            active: core::array::from_fn(|_| AtomicU64::new(0)),
            slow: Mutex::new(Slow::NEW),
        }
    }

    /// Makes `context` valid on `hart`, with a new identifier if need be.
    pub(crate) fn enter(&self, context: &mut Context, hart: usize) -> LocalFlush {
        let Some(active) = self.active.get(hart).filter(|_| self.largest > 0) else {
            *context = Context(0);
            return LocalFlush::Everything;
        };
        // If a new generation begins at any point of this, `active` is zero by then and the exchange fails; a change
        // afterwards finds this context in `active` and reserves it.
        let old = active.load(Relaxed);
        if old != 0
            && context.generation() == self.generation.load(Relaxed)
            && active.compare_exchange(old, context.0, Relaxed, Relaxed).is_ok()
        {
            return LocalFlush::Nothing;
        }
        self.enter_slowly(context, hart)
    }

    #[cold]
    fn enter_slowly(&self, context: &mut Context, hart: usize) -> LocalFlush {
        let mut slow = self.slow.lock();
        if context.generation() != self.generation.load(Relaxed) {
            *context = self.renew(&mut slow, *context);
        }
        self.active[hart].store(context.0, Relaxed);
        let bit = 1 << hart;
        if slow.unflushed & bit != 0 {
            slow.unflushed &= !bit;
            return LocalFlush::Everything;
        }
        LocalFlush::Nothing
    }

    fn renew(&self, slow: &mut Slow, old: Context) -> Context {
        let generation = self.generation.load(Relaxed);
        // A space that a hart runs keeps its identifier: the reservation moves on to the new generation.
        if old != Context(0) {
            let kept = Context::new(generation, old.number());
            let mut held = false;
            for reserved in &mut slow.reserved {
                if *reserved == old {
                    *reserved = kept;
                    held = true;
                }
            }
            if held {
                return kept;
            }
        }
        loop {
            if slow.next > u32::from(self.largest) {
                self.begin_generation(slow);
            }
            let number = slow.next as u16;
            slow.next += 1;
            if slow.reserved.iter().all(|reserved| reserved.number() != number) {
                return Context::new(self.generation.load(Relaxed), number);
            }
        }
    }

    fn begin_generation(&self, slow: &mut Slow) {
        self.generation.fetch_add(1, Relaxed);
        for (active, reserved) in self.active.iter().zip(&mut slow.reserved) {
            // Zero: the hart has entered no space since the last change and still uses the reserved context.
            match active.swap(0, Relaxed) {
                0 => {}
                context => *reserved = Context(context),
            }
        }
        slow.unflushed = (1 << MAX_HARTS) - 1;
        slow.next = 1;
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A hart re-enters its space while another hart uses up the identifiers: wherever the new generation begins, the
    /// two never run different spaces under one identifier.
    #[test]
    fn loom_a_new_generation_reserves_identifiers_in_use() {
        loom::model(|| {
            let identifiers = Arc::new(Identifiers::new(5));
            let mut first = Context::default();
            let mut other = Context::default();
            let _ = identifiers.enter(&mut first, 0);
            let _ = identifiers.enter(&mut other, 0);
            // All but one are used up.
            identifiers.slow.lock().next = 31;
            let hart = {
                let identifiers = identifiers.clone();
                thread::spawn(move || {
                    // From one space to the other, as a switch without a lock if nothing intervenes.
                    let _ = identifiers.enter(&mut first, 0);
                    first
                })
            };
            let mut spaces = [Context::default(); 2];
            for space in &mut spaces {
                let _ = identifiers.enter(space, 1);
            }
            let first = hart.join().expect("no panic");
            let running = spaces[1];
            assert_ne!(first.number(), running.number());
            assert_ne!(first.number(), 0);
            // Hart 0 uses the context that the generation reserved, or the one that hart 0 was given anew.
            let mut again = first;
            let _ = identifiers.enter(&mut again, 0);
            assert_ne!(again.number(), running.number());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec;

    #[test]
    fn without_identifiers_everything_is_flushed() {
        for bits in 0..4 {
            let identifiers = Identifiers::new(bits);
            let mut context = Context::default();
            assert_eq!(identifiers.enter(&mut context, 0), LocalFlush::Everything);
            assert_eq!(context.number(), 0);
            assert_eq!(identifiers.enter(&mut context, 0), LocalFlush::Everything);
        }
    }

    #[test]
    fn too_few_bits_are_none_and_too_many_are_cut_off() {
        for bits in 0..40 {
            let all = (1u64 << bits.min(BITS)) - 1;
            assert_eq!(u64::from(largest(bits)), if all < 2 * MAX_HARTS as u64 { 0 } else { all }, "{bits} bits");
        }
    }

    #[test]
    fn a_hart_that_is_not_known_flushes_everything() {
        let identifiers = Identifiers::new(16);
        let mut context = Context::default();
        assert_eq!(identifiers.enter(&mut context, MAX_HARTS - 1), LocalFlush::Nothing);
        assert_eq!(context, Context::new(1, 1));
        assert_eq!(identifiers.enter(&mut context, MAX_HARTS), LocalFlush::Everything);
        assert_eq!(context, Context::default());
    }

    /// Nothing is flushed and no identifier changes within a generation; once a new one begins each hart flushes once,
    /// and running spaces keep their identifiers.
    #[test]
    fn a_generation_gives_each_identifier_once_and_costs_each_hart_one_flush() {
        use LocalFlush::{Everything, Nothing};
        let identifiers = Identifiers::new(5);
        let mut contexts = [Context::default(); 31];
        for (context, number) in contexts.iter_mut().zip(1..) {
            assert_eq!(identifiers.enter(context, 0), Nothing);
            assert_eq!(*context, Context::new(1, number));
            assert_eq!((context.generation(), context.number()), (1, number));
        }
        for context in &mut contexts {
            let before = *context;
            for hart in [0, 1, 0, 2] {
                assert_eq!(identifiers.enter(context, hart), Nothing);
            }
            assert_eq!(*context, before);
        }
        // Hart 0 runs the third space, hart 1 the first, hart 2 the last one.
        assert_eq!(identifiers.enter(&mut contexts[0], 1), Nothing);
        assert_eq!(identifiers.enter(&mut contexts[2], 0), Nothing);
        let mut new = [Context::default(); 3];
        for (context, expected) in new.iter_mut().zip([(2, Everything), (4, Nothing), (5, Nothing)]) {
            assert_eq!((identifiers.enter(context, 3), *context), (expected.1, Context::new(2, expected.0)));
        }
        for (space, hart) in [(2, 0), (0, 1), (30, 2)] {
            let number = contexts[space].number();
            for flush in [Everything, Nothing] {
                assert_eq!(identifiers.enter(&mut contexts[space], hart), flush);
                assert_eq!(contexts[space], Context::new(2, number));
            }
        }
        // Any other one gets another identifier, and where it is entered first is flushed, too.
        assert_eq!(identifiers.enter(&mut contexts[1], 4), Everything);
        assert_eq!(contexts[1], Context::new(2, 6));
        assert_eq!(identifiers.enter(&mut contexts[1], 0), Nothing);
    }

    /// Every history of five entries of four spaces on two harts, while the identifiers run out: no hart ever runs a
    /// space under an identifier for which its TLB may still have another's pages.
    #[test]
    fn every_short_history_at_the_end_of_a_generation() {
        const STEPS: u32 = if cfg!(miri) { 2 } else { 5 };
        for left in 1..=3 {
            for history in 0..8u32.pow(STEPS) {
                let identifiers = Identifiers::new(5);
                identifiers.slow.lock().next = 32 - left;
                let mut contexts = [Context::default(); 4];
                let mut tlbs = [[None; 32]; 2];
                let mut running = [None; 2];
                let mut rest = history as usize;
                for _ in 0..STEPS {
                    let (space, hart) = (rest % 4, rest / 4 % 2);
                    rest /= 8;
                    match identifiers.enter(&mut contexts[space], hart) {
                        LocalFlush::Nothing => {}
                        LocalFlush::Identifier(number) => tlbs[hart][usize::from(number)] = None,
                        LocalFlush::Everything => tlbs[hart] = [None; 32],
                    }
                    running[hart] = Some((space, contexts[space].number()));
                    for (tlb, running) in tlbs.iter_mut().zip(&running) {
                        if let Some((space, number)) = *running {
                            let holder: &mut Option<usize> = &mut tlb[usize::from(number)];
                            assert_eq!(*holder.get_or_insert(space), space, "{history}");
                        }
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// A fake TLB for each hart: which space's entries it may hold under each identifier.
        #[test]
        fn no_hart_sees_another_space_under_its_identifier(
            entries in prop::collection::vec((0usize..60, 0usize..4), 1..600),
        ) {
            let identifiers = Identifiers::new(5);
            let mut contexts = vec![Context::default(); 60];
            let mut tlbs = vec![BTreeMap::<u16, usize>::new(); 4];
            let mut running = [None; 4];
            for (space, hart) in entries {
                let flush = identifiers.enter(&mut contexts[space], hart);
                match flush {
                    LocalFlush::Nothing => {}
                    LocalFlush::Identifier(number) => { tlbs[hart].remove(&number); }
                    LocalFlush::Everything => tlbs[hart].clear(),
                }
                let number = contexts[space].number();
                prop_assert!(number != 0);
                running[hart] = Some((space, number));
                // Everything that runs may fill its hart's TLB at any time.
                for (tlb, running) in tlbs.iter_mut().zip(&running) {
                    if let Some((space, number)) = *running {
                        let holder = *tlb.entry(number).or_insert(space);
                        prop_assert_eq!(holder, space);
                    }
                }
            }
        }
    }
}
