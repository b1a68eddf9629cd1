//! Random numbers.

use unix::system::Randomness;

use crate::local;

/// Fills a buffer with random bytes from the kernel, good enough for secrets.
///
/// # Errors
///
/// None, except from a kernel without the call.
#[doc(alias = "getrandom")]
pub fn fill(mut buffer: &mut [u8]) -> unix::Result<()> {
    while !buffer.is_empty() {
        let count = unix::system::random(buffer, Randomness::Secret)?;
        buffer = &mut buffer[count..];
    }
    Ok(())
}

/// Returns a random number for spreading load or for tests: quick (xorshift64*, Marsaglia and Vigna), and not for
/// secrets. Each worker has its own sequence.
pub fn quick() -> u64 {
    let state = &local::current().random;
    let mut word = state.get();
    if word == 0 {
        let mut seed = [0; 8];
        // A kernel without the call: any number but 0 does.
        word = match unix::system::random(&mut seed, Randomness::Any) {
            Ok(_) => u64::from_le_bytes(seed) | 1,
            Err(_) => 0x9e37_79b9_7f4a_7c15,
        };
    }
    word ^= word >> 12;
    word ^= word << 25;
    word ^= word >> 27;
    state.set(word);
    word.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// The backend of the crate `getrandom`, which `cargo xtask` selects for programs.
///
/// # Safety
///
/// The bytes must be writable, and used by no other code.
#[cfg(all(feature = "getrandom", target_os = "none"))]
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(bytes: *mut u8, length: usize) -> Result<(), getrandom::Error> {
    // SAFETY: the caller's promise; zero is a valid byte, so there may be a slice.
    let bytes = unsafe {
        bytes.write_bytes(0, length);
        core::slice::from_raw_parts_mut(bytes, length)
    };
    fill(bytes).map_err(|_| getrandom::Error::UNSUPPORTED)
}
