//! Allocation that can fail.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::error::Error;

/// Makes room for exactly `length` more elements.
pub(crate) fn reserve<T>(vector: &mut Vec<T>, length: usize) -> Result<(), Error> {
    vector.try_reserve_exact(length).map_err(|_| Error::OutOfMemory)
}

/// Makes an array with elements from `make`.
pub(crate) fn array<T, const N: usize>(make: impl FnMut() -> T) -> Result<Box<[T; N]>, Error> {
    let mut vector = Vec::new();
    reserve(&mut vector, N)?;
    vector.resize_with(N, make);
    vector.into_boxed_slice().try_into().map_err(|_| Error::OutOfMemory)
}

/// Copies `bytes` into a vector of exactly this length: turning it into a box moves nothing.
pub(crate) fn copy(bytes: &[u8]) -> Result<Box<[u8]>, Error> {
    let mut vector = Vec::new();
    reserve(&mut vector, bytes.len())?;
    vector.extend_from_slice(bytes);
    Ok(vector.into_boxed_slice())
}

/// Makes zeros in the same way.
pub(crate) fn zeros(length: usize) -> Result<Box<[u8]>, Error> {
    let mut vector = Vec::new();
    reserve(&mut vector, length)?;
    vector.resize(length, 0);
    Ok(vector.into_boxed_slice())
}
