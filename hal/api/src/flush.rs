//! Requests to invalidate cached translations.

use crate::MAXIMUM_HARTS;

/// A set of harts, by dense index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HartSet(u64);

impl HartSet {
    /// No hart.
    pub const EMPTY: HartSet = HartSet(0);

    /// Makes the set whose members are the one bits of `mask`; bits beyond the last possible hart are dropped.
    pub const fn from_mask(mask: u64) -> HartSet {
        HartSet(mask & ((1 << MAXIMUM_HARTS) - 1))
    }

    /// Makes the set of the harts 0 to `count - 1`.
    pub const fn first(count: usize) -> HartSet {
        if count >= MAXIMUM_HARTS { HartSet::from_mask(u64::MAX) } else { HartSet((1 << count) - 1) }
    }

    /// Makes the set of one hart.
    pub const fn only(hart: usize) -> HartSet {
        HartSet::EMPTY.with(hart)
    }

    /// Returns the set and one more hart. A hart that cannot exist changes nothing.
    pub const fn with(self, hart: usize) -> HartSet {
        if hart < MAXIMUM_HARTS { HartSet(self.0 | 1 << hart) } else { self }
    }

    /// Returns the set but one hart.
    pub const fn without(self, hart: usize) -> HartSet {
        if hart < MAXIMUM_HARTS { HartSet(self.0 & !(1 << hart)) } else { self }
    }

    /// Returns the harts of either set.
    pub const fn union(self, other: HartSet) -> HartSet {
        HartSet(self.0 | other.0)
    }

    /// Returns whether the hart belongs to the set.
    pub const fn contains(self, hart: usize) -> bool {
        hart < MAXIMUM_HARTS && self.0 >> hart & 1 == 1
    }

    /// Returns whether the set has no member.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the members as one bits.
    pub const fn mask(self) -> u64 {
        self.0
    }

    /// Returns the members in rising order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAXIMUM_HARTS).filter(move |&hart| self.contains(hart))
    }
}

/// The translations to invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All, of every address space and of the kernel.
    All,
    /// All user translations of one address space.
    AddressSpace {
        /// Identifier of the address space.
        asid: u16,
    },
    /// One page of one address space.
    Page {
        /// Any address in the page.
        address: usize,
        /// Identifier of the address space.
        asid: u16,
    },
    /// A range of one address space.
    Range {
        /// The first address.
        start: usize,
        /// Length in bytes.
        length: usize,
        /// Identifier of the address space.
        asid: u16,
    },
    /// A range of the address spaces of virtualised programs, which have no identifiers.
    Virtualised {
        /// The first address.
        start: usize,
        /// Length in bytes; [`usize::MAX`] for everything.
        length: usize,
    },
}

/// Translations to invalidate, and the harts concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// On the calling hart.
    Local(Scope),
    /// On a set of harts, which may include the calling hart. The flush returns when all of them are done.
    Remote(HartSet, Scope),
}
