//! Random bytes for programs: ChaCha20 seeded by the firmware, stirred with the clock and with what the machine's entropy
//! device gives.
//!
//! The device answers when it likes. The firmware's seed is enough to begin with, so nobody waits: the device's interrupt
//! stirs in what it brings. Only without such a seed the boot waits for the device, for a while.

use abi_unix::Errno;
use hal_api::Machine as _;
use platform::{Machine, Mapped, Platform, println};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use spin::Mutex;
use virtio::{Entropy, Kind, Mmio};

use crate::process::Process;
use crate::time;
use crate::user::UserBuffer;
use crate::wire::Piece;

/// `getrandom`: do not wait (nothing here waits).
const NONBLOCK: u32 = 1;
/// `getrandom`: from the other pool (there is one).
const RANDOM: u32 = 2;
/// `getrandom`: even before the generator is seeded.
const INSECURE: u32 = 4;

/// Most bytes that one call gives.
const LARGEST_FILL: usize = 64 * 1024;

static GENERATOR: Mutex<Option<ChaCha20Rng>> = Mutex::new(None);

/// The entropy device, until it has given its seed.
static DEVICE: Mutex<Option<Entropy<Mapped, Piece>>> = Mutex::new(None);

/// Fewer bytes from the firmware are no seed.
const ENOUGH: usize = 16;
/// How long the boot waits for the device if the firmware gives no seed.
const PATIENCE_NS: u64 = 100_000_000;

/// Seeds the generator. If neither the firmware nor a device helps, only the clock makes two boots differ, and the log
/// says so.
pub fn start(platform: &'static Platform) {
    *GENERATOR.lock() = Some(seeded(platform.random_seed, Machine::now() ^ time::epoch_ns()));
    let mut is_seeded = platform.random_seed.len() >= ENOUGH;
    let tells = start_device(platform) == Some(Tells::ByInterrupts);
    if is_seeded && tells {
        return;
    }
    let deadline = time::now_ns() + PATIENCE_NS;
    let answer = loop {
        match ask_device() {
            Answer::NotYet if time::now_ns() < deadline => core::hint::spin_loop(),
            answer => break answer,
        }
    };
    is_seeded |= answer == Answer::Stirred;
    if !tells {
        // Nobody would hear of it any more.
        *DEVICE.lock() = None;
    }
    if !is_seeded {
        println!("random: nothing gives a seed; random numbers can be guessed from the time of boot");
    }
}

fn seeded(firmware_seed: &[u8], time: u64) -> ChaCha20Rng {
    let mut seed = [0u8; 32];
    for (position, &byte) in firmware_seed.iter().enumerate() {
        seed[position % 32] ^= byte;
    }
    for (position, byte) in time.to_le_bytes().into_iter().enumerate() {
        seed[24 + position] ^= byte;
    }
    ChaCha20Rng::from_seed(seed)
}

/// A generator that depends on all that the old one did, and on `bytes`.
fn stirred(old: &mut ChaCha20Rng, bytes: &[u8]) -> ChaCha20Rng {
    let mut seed = [0; 32];
    old.fill_bytes(&mut seed);
    for (position, &byte) in bytes.iter().enumerate() {
        seed[position % 32] ^= byte;
    }
    ChaCha20Rng::from_seed(seed)
}

/// How a device tells that it has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    ByInterrupts,
    WhenAsked,
}

/// Looks for an entropy device and asks it for a seed.
fn start_device(platform: &'static Platform) -> Option<Tells> {
    for device in &platform.virtio {
        let Some(registers) = Mapped::new((device.address, device.length)) else { continue };
        let Ok(transport) = Mmio::probe(registers) else { continue };
        if transport.kind() != Kind::Entropy {
            continue;
        }
        match Entropy::new(transport, Piece::allocate) {
            Ok(entropy) => {
                *DEVICE.lock() = Some(entropy);
                let registered =
                    device.interrupt.map(|interrupt| platform::register_interrupt(interrupt, |_| _ = ask_device(), 0));
                return Some(match registered {
                    Some(Ok(())) => Tells::ByInterrupts,
                    _ => Tells::WhenAsked,
                });
            }
            Err(error) => println!("random: the device at {:#x} cannot be used: {error}", device.address),
        }
    }
    None
}

/// What became of asking the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    NotYet,
    Stirred,
    /// There is no device, or none any more.
    Never,
}

/// Stirs in what the device has, if it has anything, and lets go of it then.
fn ask_device() -> Answer {
    let mut device = DEVICE.lock();
    let Some(entropy) = device.as_mut() else { return Answer::Never };
    entropy.acknowledge_interrupt();
    let mut bytes = [0; 32];
    let answer = match entropy.read(&mut bytes) {
        Ok(0) => return Answer::NotYet,
        Ok(count) => {
            if let Some(generator) = GENERATOR.lock().as_mut() {
                *generator = stirred(generator, &bytes[..count]);
            }
            Answer::Stirred
        }
        Err(error) => {
            println!("random: {error}");
            Answer::Never
        }
    };
    *device = None;
    answer
}

/// Fills a slice.
pub fn bytes(destination: &mut [u8]) {
    if let Some(generator) = GENERATOR.lock().as_mut() {
        generator.fill_bytes(destination);
    }
}

/// A number that nobody can guess.
pub fn word() -> u64 {
    let mut word = [0; 8];
    bytes(&mut word);
    u64::from_le_bytes(word)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn next(mut generator: ChaCha20Rng) -> [u8; 16] {
        let mut bytes = [0; 16];
        generator.fill_bytes(&mut bytes);
        bytes
    }

    #[test]
    fn every_source_matters() {
        let seed = [7; 40];
        let first = next(seeded(&seed, 1));
        assert_eq!(first, next(seeded(&seed, 1)));
        assert_ne!(first, next(seeded(&seed, 2)));
        // What exceeds the generator's own seed is not lost.
        let mut other = seed;
        other[39] = 8;
        assert_ne!(first, next(seeded(&other, 1)));
        let stir = |seed: &[u8], bytes: &[u8]| next(stirred(&mut seeded(seed, 1), bytes));
        assert_ne!(first, stir(&seed, b""));
        assert_eq!(stir(&seed, b"entropy"), stir(&seed, b"entropy"));
        assert_ne!(stir(&seed, b"entropy"), stir(&seed, b"entropz"));
        assert_ne!(stir(&seed, b"entropy"), stir(&other, b"entropy"));
    }
}
