//! Random bytes for programs: ChaCha20 seeded by the firmware and stirred with the clock.

use abi_unix::Errno;
use hal_api::Machine as _;
use platform::Machine;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use spin::Mutex;

use crate::process::Process;
use crate::user::UserBuffer;

/// `getrandom`: do not wait (nothing here waits).
const NONBLOCK: u32 = 1;
/// `getrandom`: from the other pool (there is one).
const RANDOM: u32 = 2;
/// `getrandom`: even before the generator is seeded.
const INSECURE: u32 = 4;

/// Most bytes that one call gives.
const LARGEST_FILL: usize = 64 * 1024;

static GENERATOR: Mutex<Option<ChaCha20Rng>> = Mutex::new(None);

/// Seeds the generator. The firmware's seed may be empty; then only the clock makes two boots differ, and the log says so.
pub fn start(firmware_seed: &[u8]) {
    let mut seed = [0u8; 32];
    for (position, &byte) in firmware_seed.iter().enumerate() {
        seed[position % 32] ^= byte;
    }
    for (position, byte) in (Machine::now() ^ crate::time::epoch_ns()).to_le_bytes().into_iter().enumerate() {
        seed[24 + position] ^= byte;
    }
    if firmware_seed.is_empty() {
        platform::println!("random: the firmware gives no seed; random numbers can be guessed from the time of boot");
    }
    *GENERATOR.lock() = Some(ChaCha20Rng::from_seed(seed));
}

/// Fills a slice.
pub fn bytes(destination: &mut [u8]) {
    if let Some(generator) = GENERATOR.lock().as_mut() {
        generator.fill_bytes(destination);
    }
}

/// The `getrandom` call.
pub fn fill(process: &Process, buffer: UserBuffer, flags: u32) -> Result<usize, Errno> {
    if flags & !(NONBLOCK | RANDOM | INSECURE) != 0 {
        return Err(Errno::EINVAL);
    }
    // Kernel code is not interrupted; getrandom(2) may give less than it is asked for.
    let length = buffer.len().min(LARGEST_FILL);
    let mut done = 0;
    while done < length {
        let mut piece = [0; 256];
        let count = piece.len().min(length - done);
        bytes(&mut piece[..count]);
        if let Err(error) = process.copy_out(buffer.address() + done, &piece[..count]) {
            return if done == 0 { Err(error) } else { Ok(done) };
        }
        done += count;
    }
    Ok(done)
}
