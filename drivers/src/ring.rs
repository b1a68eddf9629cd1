//! A queue of bytes in a fixed array.

/// At most `N` bytes, first in, first out.
#[derive(Debug)]
#[doc(alias = "kfifo")]
pub struct Ring<const N: usize> {
    bytes: [u8; N],
    first: usize,
    length: usize,
}

impl<const N: usize> Ring<N> {
    /// Makes an empty ring.
    pub const fn new() -> Ring<N> {
        Ring { bytes: [0; N], first: 0, length: 0 }
    }

    /// Adds a byte at the end; returns it if there is no room.
    pub fn push(&mut self, byte: u8) -> Result<(), u8> {
        if self.length == N {
            return Err(byte);
        }
        self.bytes[(self.first + self.length) % N] = byte;
        self.length += 1;
        Ok(())
    }

    /// Takes the first byte.
    pub fn pop(&mut self) -> Option<u8> {
        if self.length == 0 {
            return None;
        }
        let byte = self.bytes[self.first];
        self.first = (self.first + 1) % N;
        self.length -= 1;
        Some(byte)
    }

    /// Returns the capacity in bytes.
    pub const fn capacity(&self) -> usize {
        N
    }

    /// Returns the number of bytes in the ring.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<const N: usize> Default for Ring<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn behaves_as_a_bounded_queue(steps in prop::collection::vec(prop::option::of(any::<u8>()), 0..200)) {
            let mut ring = Ring::<5>::new();
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Some(byte) => {
                        let expected = if model.len() < 5 { model.push_back(byte); Ok(()) } else { Err(byte) };
                        prop_assert_eq!(ring.push(byte), expected);
                    }
                    None => prop_assert_eq!(ring.pop(), model.pop_front()),
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert_eq!(ring.is_empty(), model.is_empty());
            }
        }
    }
}
