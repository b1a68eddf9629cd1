//! Objects by index, with generations.
//!
//! Growing must never move thousands of large objects, so an entry holds a box; and no allocation may abort the kernel,
//! so each one is fallible. An index is used again as soon as it is free; its generation then differs, so an old
//! identifier is stale instead of naming a stranger.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Error;

const NONE: u32 = u32::MAX;

struct SlabEntry<T> {
    // An array of one, because a box can be made fallibly on stable Rust only from a vector.
    value: Option<Box<[T; 1]>>,
    generation: u32,
    next_free: u32,
}

/// A set of `T` with a fixed upper limit.
pub(crate) struct Slab<T> {
    entries: Vec<SlabEntry<T>>,
    free: u32,
    used: usize,
    limit: usize,
}

impl<T> Slab<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Slab { entries: Vec::new(), free: NONE, used: 0, limit: limit.min(NONE as usize - 1) }
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Returns the number of indexes that have ever been in use: every object's is below.
    pub(crate) fn indexes(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Returns the number of further objects that the limit allows.
    pub(crate) fn free(&self) -> usize {
        self.limit - self.used
    }

    /// Returns the index that the next [`insert`](Self::insert) will use, or the error that it will return.
    pub(crate) fn next_index(&self) -> Result<u32, Error> {
        if self.used >= self.limit {
            Err(Error::Limit)
        } else if self.free != NONE {
            Ok(self.free)
        } else {
            Ok(self.entries.len() as u32)
        }
    }

    /// Adds an object.
    ///
    /// # Errors
    /// [`Error::Limit`] and [`Error::OutOfMemory`]; the object is then dropped.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, Error> {
        let index = self.next_index()?;
        let mut one = Vec::new();
        one.try_reserve_exact(1)?;
        one.push(value);
        let one: Box<[T; 1]> = one.into_boxed_slice().try_into().map_err(|_| Error::OutOfMemory)?;
        if index as usize == self.entries.len() {
            self.entries.try_reserve(1)?;
            self.entries.push(SlabEntry { value: Some(one), generation: 0, next_free: NONE });
        } else if let Some(entry) = self.entries.get_mut(index as usize) {
            self.free = entry.next_free;
            entry.value = Some(one);
        }
        self.used += 1;
        Ok(index)
    }

    /// Removes and drops an object; later identifiers of this index differ in their generation.
    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize)
            && entry.value.take().is_some()
        {
            entry.generation = entry.generation.wrapping_add(1);
            entry.next_free = self.free;
            self.free = index;
            self.used -= 1;
        }
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let entry = self.entries.get(index as usize)?;
        entry.value.as_deref().map(|[value]| value)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut(index as usize)?;
        entry.value.as_deref_mut().map(|[value]| value)
    }

    /// Returns the generation of the object at `index`.
    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.entries.get(index as usize).map_or(0, |entry| entry.generation)
    }

    /// Returns the index in an identifier, if its generation is current.
    pub(crate) fn resolve(&self, index: u32, generation: u32) -> Result<u32, Error> {
        match self.entries.get(index as usize) {
            Some(entry) if entry.generation == generation && entry.value.is_some() => Ok(index),
            _ => Err(Error::Stale),
        }
    }
}

macro_rules! identifier {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            pub(crate) index: u32,
            pub(crate) generation: u32,
        }

        impl $name {
            /// Returns the identifier as one word, for tables that store words.
            pub fn to_bits(self) -> u64 {
                u64::from(self.generation) << 32 | u64::from(self.index)
            }

            /// Inverts [`to_bits`](Self::to_bits). Any word is harmless: one that names no object yields
            /// [`Error::Stale`](crate::Error::Stale).
            pub fn from_bits(bits: u64) -> Self {
                Self { index: bits as u32, generation: (bits >> 32) as u32 }
            }
        }
    };
}

identifier! {
    /// A TCP connection: requested, established, or ended but not yet closed by its holder.
    ConnectionId
}
identifier! {
    /// A port on which connections are accepted.
    ListenerId
}
identifier! {
    /// A TCP port taken by `tcp_bind`, not yet listening or connected.
    BindingId
}
identifier! {
    /// A UDP socket.
    DatagramId
}
identifier! {
    /// A packet socket.
    PacketSocketId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_identifiers_name_nothing() {
        let mut slab = Slab::new(2);
        let first = slab.insert('a').unwrap();
        let generation = slab.generation(first);
        assert_eq!(slab.resolve(first, generation), Ok(first));
        slab.remove(first);
        assert_eq!(slab.resolve(first, generation), Err(Error::Stale));
        let again = slab.insert('b').unwrap();
        assert_eq!(again, first);
        assert_eq!(slab.resolve(first, generation), Err(Error::Stale));
        assert_eq!(slab.get(again), Some(&'b'));
    }

    #[test]
    fn the_limit_holds() {
        let mut slab = Slab::new(1);
        let first = slab.insert(1).unwrap();
        assert_eq!(slab.insert(2), Err(Error::Limit));
        slab.remove(first);
        slab.remove(first);
        assert_eq!(slab.len(), 0);
        assert!(slab.insert(3).is_ok());
    }
}
