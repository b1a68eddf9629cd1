//! Random bytes for programs and for the kernel's own secrets: ChaCha20, seeded by the firmware, stirred with the clock
//! and with the bytes of the machine's entropy device. The firmware's seed is in the device tree, or that of a boot
//! loader on the command line.
//!
//! **Knowledge from a captured state.** It tells nothing about bytes that were given out before: a key is used once, to
//! make the next key and a few bytes to give out, and each of these is overwritten as it is given (fast key erasure,
//! Bernstein 2017). And it tells nothing about bytes that will be given out after the next stir: the device is read
//! again about once in a minute of use, and whenever it answers late.
//!
//! **Waiting.** The device answers at a time of its own. The firmware's seed is enough to begin with, so usually no
//! caller waits; the boot waits for the device, for a while, only without such a seed. If there is none even then,
//! `getrandom` waits until the device has answered, as in getrandom(2); on a machine without any source, for ever. The
//! kernel's own secrets cannot wait, and the log reports this.

use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};

use abi_unix::Errno;
use hal_api::Machine as _;
use platform::{Machine, Mapped, Platform, println};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use spin::Mutex;
use virtio::{Entropy, Kind};
use waiters::Waiters;

use crate::machine::virtio::{VirtioDevice, devices};
use crate::network::wire::DmaBuffer;
use crate::process::user::{UserBuffer, UserMemory};
use crate::scheduling::steps::{self, Ends};
use crate::time;

/// Flag of `getrandom`: do not wait.
const NONBLOCK: u32 = 1;
/// Flag of `getrandom`: from the other pool (there is one).
const RANDOM: u32 = 2;
/// Flag of `getrandom`: even before the generator is seeded.
const INSECURE: u32 = 4;

/// Greatest number of bytes of one step: kernel code is not interrupted.
pub(crate) const STEP: usize = 256;
/// Greatest number of bytes that one call gives, as on Linux.
const LARGEST_FILL: usize = 32 * 1024 * 1024 - 1;
/// Least number of bytes of a seed.
const ENOUGH: usize = 16;
/// Time that the boot waits for the device if the firmware gives no seed.
const PATIENCE_NS: u64 = 100_000_000;
/// Age of a stir after which the device is read again.
const STIR_INTERVAL_NS: u64 = 60_000_000_000;

static GENERATOR: Mutex<Generator> = Mutex::new(Generator::new());

/// The entropy device.
static DEVICE: Mutex<Option<Entropy<Mapped, DmaBuffer>>> = Mutex::new(None);

/// Set once the generator has had a seed; written under its lock.
// Release and acquire; the numbers themselves are taken under the lock.
static IS_SEEDED: AtomicBool = AtomicBool::new(false);

/// Calls that wait for the seed.
static WAITERS: Mutex<Option<Waiters>> = Mutex::new(None);

const KEY: usize = 32;
/// Number of bytes that are made together: four blocks of ChaCha20.
const MADE: usize = 256;

/// ChaCha20 with fast key erasure.
struct Generator {
    key: [u8; KEY],
    /// Bytes to give out, from `given` on; those before are zero.
    ready: [u8; MADE - KEY],
    given: usize,
    /// Time at which the device is read again.
    stir_at_ns: u64,
}

/// Overwrites a secret.
fn erase(bytes: &mut [u8]) {
    bytes.fill(0);
    // The bytes are not read again, so a compiler would leave that out.
    core::hint::black_box(bytes);
}

/// Makes a whole stream of a key, and overwrites the key and the generator on the way.
fn stream(key: &mut [u8; KEY], destination: &mut [u8]) {
    let mut generator = ChaCha20Rng::from_seed(*key);
    erase(key);
    generator.fill_bytes(destination);
    generator = ChaCha20Rng::from_seed([0; KEY]);
    core::hint::black_box(&mut generator);
}

impl Generator {
    const fn new() -> Self {
        Generator { key: [0; KEY], ready: [0; MADE - KEY], given: MADE - KEY, stir_at_ns: 0 }
    }

    /// Makes the next key, and bytes to give out.
    fn refill(&mut self) {
        let mut made = [0; MADE];
        stream(&mut self.key, &mut made);
        let (key, ready) = made.split_at(KEY);
        self.key.copy_from_slice(key);
        self.ready.copy_from_slice(ready);
        self.given = 0;
        erase(&mut made);
    }

    /// Gives bytes out.
    fn give(&mut self, mut destination: &mut [u8]) {
        while !destination.is_empty() {
            if self.given == self.ready.len() {
                self.refill();
            }
            let count = destination.len().min(self.ready.len() - self.given);
            let (now, later) = destination.split_at_mut(count);
            let ready = &mut self.ready[self.given..self.given + count];
            now.copy_from_slice(ready);
            erase(ready);
            self.given += count;
            destination = later;
        }
    }

    /// Makes all later bytes depend on `bytes` too, and on everything that they depended on.
    #[doc(alias = "crng_reseed")]
    fn stir(&mut self, bytes: &[u8]) {
        self.refill();
        for (position, &byte) in bytes.iter().enumerate() {
            self.key[position % KEY] ^= byte;
        }
        erase(&mut self.ready);
        self.given = self.ready.len();
        // The key with `bytes` in it is used once, like every other.
        self.refill();
    }

    /// Returns whether the device must be read again; `true` at most once in each interval.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.stir_at_ns;
        if is_due {
            self.stir_at_ns = now_ns + STIR_INTERVAL_NS;
        }
        is_due
    }
}

/// Stirs bytes in; `source` tells whether they are a seed.
fn stir(bytes: &[u8], source: SeedSource) {
    let mut generator = GENERATOR.lock();
    generator.stir(bytes);
    if source == SeedSource::Entropy && bytes.len() >= ENOUGH {
        IS_SEEDED.store(true, Ordering::Release);
    }
    drop(generator);
    if is_seeded()
        && let Some(waiters) = WAITERS.lock().as_mut()
    {
        waiters.wake_all();
    }
}

/// Origin of bytes that are stirred in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeedSource {
    /// Cannot be guessed.
    Entropy,
    /// Does no harm.
    Clock,
}

fn is_seeded() -> bool {
    IS_SEEDED.load(Ordering::Acquire)
}

/// Seeds the generator. Without a seed from the firmware or a device only the clock makes two boots differ, and the log
/// reports this.
pub(crate) fn start(platform: &'static Platform) {
    stir(&(Machine::now() ^ time::epoch_ns()).to_le_bytes(), SeedSource::Clock);
    stir(platform.random_seed, SeedSource::Entropy);
    match crate::machine::boot_option(platform.arguments, "seed").map(seed_of_boot_word) {
        None => {}
        Some(Some(mut seed)) => {
            stir(&seed, SeedSource::Entropy);
            erase(&mut seed);
        }
        Some(None) => println!("random: seed= is not {} hexadecimal digits; it is ignored", 2 * KEY),
    }
    GENERATOR.lock().stir_at_ns = time::now_ns() + STIR_INTERVAL_NS;
    let tells = start_device(platform) == Some(Tells::ByInterrupts);
    if is_seeded() && tells {
        return;
    }
    let deadline = time::now_ns() + PATIENCE_NS;
    while ask_device() == Answer::NotYet && time::now_ns() < deadline {
        core::hint::spin_loop();
    }
    if !is_seeded() {
        println!("random: nothing gives a seed; the kernel's own random numbers can be guessed from the time of boot");
    }
}

/// Parses the boot option `seed=DIGITS`, for boot loaders that have random bytes and cannot write them into the device
/// tree.
fn seed_of_boot_word(digits: &str) -> Option<[u8; KEY]> {
    let digits: &[u8; 2 * KEY] = digits.as_bytes().try_into().ok()?;
    let mut seed = [0; KEY];
    for (byte, digits) in seed.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(seed)
}

/// The way in which a device announces its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    ByInterrupts,
    WhenAsked,
}

/// Looks for an entropy device and requests a seed from it.
fn start_device(platform: &'static Platform) -> Option<Tells> {
    for VirtioDevice { transport, line, place } in devices(platform, Kind::Entropy) {
        match Entropy::new(transport, DmaBuffer::allocate) {
            Ok(entropy) => {
                *DEVICE.lock() = Some(entropy);
                return Some(match line.register(serve, 0) {
                    Ok(()) => Tells::ByInterrupts,
                    Err(_) => Tells::WhenAsked,
                });
            }
            Err(error) => println!("random: {place} cannot be used: {error}"),
        }
    }
    None
}

fn serve(_: usize) -> bool {
    let has_asked = DEVICE.lock().as_mut().is_some_and(|entropy| entropy.acknowledge_interrupt().is_some());
    ask_device();
    has_asked
}

/// Result of reading the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    NotYet,
    Stirred,
    /// There is no device, or none any more.
    Never,
}

/// Stirs in the device's bytes, if it has any. It then gets the next request immediately, and interrupts for the answer
/// only after a reading that has found nothing.
fn ask_device() -> Answer {
    let mut device = DEVICE.lock();
    let Some(entropy) = device.as_mut() else { return Answer::Never };
    entropy.acknowledge_interrupt();
    let mut bytes = [0; 2 * KEY];
    match entropy.read(&mut bytes) {
        Ok(0) => Answer::NotYet,
        Ok(count) => {
            stir(&bytes[..count], SeedSource::Entropy);
            erase(&mut bytes);
            Answer::Stirred
        }
        Err(error) => {
            println!("random: {error}");
            *device = None;
            Answer::Never
        }
    }
}

/// Fills a slice.
#[doc(alias = "get_random_bytes")]
pub(crate) fn bytes(destination: &mut [u8]) {
    let mut generator = GENERATOR.lock();
    if generator.is_due(time::now_ns()) {
        drop(generator);
        stir(&Machine::now().to_le_bytes(), SeedSource::Clock);
        ask_device();
        generator = GENERATOR.lock();
    }
    generator.give(destination);
}

/// Returns a number that cannot be guessed.
pub(crate) fn word() -> u64 {
    let mut word = [0; 8];
    bytes(&mut word);
    u64::from_le_bytes(word)
}

/// Checks the flags of `getrandom`, as Linux does.
pub(crate) fn check_flags(flags: u32) -> Result<(), Errno> {
    let is_both = flags & (RANDOM | INSECURE) == RANDOM | INSECURE;
    if is_both || flags & !(NONBLOCK | RANDOM | INSECURE) != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Returns whether a call with these flags may wait.
pub(crate) fn may_wait(flags: u32) -> bool {
    flags & NONBLOCK == 0
}

/// Registers for the seed, unless there is one or the caller can do without.
fn poll_seed(flags: u32, waker: Option<&Waker>) -> Poll<Result<(), Errno>> {
    if is_seeded() || flags & INSECURE != 0 {
        return Poll::Ready(Ok(()));
    }
    if let Some(waker) = waker {
        WAITERS.lock().get_or_insert_default().register(waker).map_err(|_| Errno::ENOMEM)?;
        // The seed may have come before the registration.
        if is_seeded() {
            return Poll::Ready(Ok(()));
        }
    }
    Poll::Pending
}

/// Takes back the registration of a pending [`fill`].
pub(crate) fn forget(waker: &Waker) {
    if let Some(waiters) = WAITERS.lock().as_mut() {
        waiters.forget(waker);
    }
}

/// Performs `getrandom` in steps: goes on from `*done`.
pub(crate) fn fill(
    process: &(impl UserMemory + Ends + ?Sized),
    buffer: UserBuffer,
    flags: u32,
    done: &mut usize,
    waker: Option<&Waker>,
) -> Poll<Result<usize, Errno>> {
    match poll_seed(flags, waker) {
        Poll::Ready(seeded) => seeded?,
        Poll::Pending => return Poll::Pending,
    }
    let length = buffer.len().min(LARGEST_FILL);
    // The first step was the attempt in place.
    if *done > 0 && waker.is_some() && steps::must_pause(process, waker) {
        return Poll::Pending;
    }
    loop {
        let end = length.min(*done + STEP);
        while *done < end {
            let mut piece = [0; MADE];
            let piece = &mut piece[..MADE.min(end - *done)];
            bytes(piece);
            let copied = process.copy_out(buffer.address() + *done, piece);
            erase(piece);
            if let Err(error) = copied {
                return Poll::Ready(if *done == 0 { Err(error) } else { Ok(*done) });
            }
            *done += piece.len();
        }
        if *done == length {
            return Poll::Ready(Ok(length));
        }
        if steps::must_pause(process, waker) {
            return Poll::Pending;
        }
    }
}

/// Tries to read `/dev/random` or `/dev/urandom`: gives as many bytes as one step may.
pub(crate) fn read(
    process: &(impl UserMemory + Ends + ?Sized),
    buffer: UserBuffer,
    waker: Option<&Waker>,
) -> Poll<Result<usize, Errno>> {
    let mut done = 0;
    let step = UserBuffer::new(buffer.address(), buffer.len().min(STEP))?;
    fill(process, step, 0, &mut done, waker)
}

/// Gives the generator a seed, for a machine that has no source of one.
#[cfg(test)]
pub(crate) fn seed_for_tests() {
    stir(&[7; ENOUGH], SeedSource::Entropy);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(seed: &[u8]) -> Generator {
        let mut generator = Generator::new();
        generator.stir(seed);
        generator
    }

    fn next(generator: &mut Generator) -> [u8; 16] {
        let mut bytes = [0; 16];
        generator.give(&mut bytes);
        bytes
    }

    #[test]
    fn a_boot_loaders_seed_is_its_digits_or_none() {
        let digits = "00ff".repeat(15) + "Aa09";
        let seed = seed_of_boot_word(&digits).expect("32 bytes");
        assert_eq!((seed[..2].to_vec(), seed[30..].to_vec()), (vec![0, 0xff], vec![0xaa, 9]));
        for wrong in ["", "00", &digits[1..], &(digits.clone() + "0"), &digits.replace('A', "g"), &"é".repeat(32)] {
            assert_eq!(seed_of_boot_word(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_source_matters() {
        let seed = [7; 40];
        assert_eq!(next(&mut started(&seed)), next(&mut started(&seed)));
        // Bytes beyond the length of the generator's own key have an effect.
        let mut other = seed;
        other[39] = 8;
        assert_ne!(next(&mut started(&seed)), next(&mut started(&other)));
        let stirred = |seed: &[u8], bytes: &[u8]| {
            let mut generator = started(seed);
            next(&mut generator);
            generator.stir(bytes);
            next(&mut generator)
        };
        let mut not_stirred = started(&seed);
        next(&mut not_stirred);
        assert_ne!(next(&mut not_stirred), stirred(&seed, b""));
        assert_eq!(stirred(&seed, b"entropy"), stirred(&seed, b"entropy"));
        assert_ne!(stirred(&seed, b"entropy"), stirred(&seed, b"entropz"));
        assert_ne!(stirred(&seed, b"entropy"), stirred(&other, b"entropy"));
    }

    /// A stream is the same in any pieces, and never repeats.
    #[test]
    fn pieces_join_to_one_stream() {
        let mut whole = [0; 3000];
        started(b"seed").give(&mut whole);
        let mut generator = started(b"seed");
        let mut start = 0;
        for length in [0, 1, 31, 32, 33, 223, 224, 225, 255, 256, 257, 1000].into_iter().cycle() {
            let end = whole.len().min(start + length);
            let mut piece = [0; 1000];
            generator.give(&mut piece[..end - start]);
            assert_eq!(piece[..end - start], whole[start..end]);
            start = end;
            if start == whole.len() {
                break;
            }
        }
        let mut words: std::vec::Vec<&[u8]> = whole.chunks_exact(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 3000 / 8);
    }

    /// A captured state tells nothing about bytes that were given before: neither one of them nor a key that leads to
    /// them is left.
    #[test]
    fn bytes_given_out_are_gone_from_the_state() {
        let mut generator = started(b"seed");
        for round in 0..200 {
            let (before, key_before, mut bytes) = (generator.given, generator.key, [0; 24]);
            generator.give(&mut bytes);
            let state: std::vec::Vec<u8> = generator.key.into_iter().chain(generator.ready).collect();
            for part in bytes.chunks(8) {
                assert!(!state.windows(8).any(|window| window == part), "round {round}");
            }
            assert!(generator.ready[..generator.given].iter().all(|&byte| byte == 0));
            // A key that has made bytes is gone when its bytes are given.
            if generator.given < before {
                assert_ne!(generator.key, key_before);
            }
        }
        // Two whole turns of the state later, a captured one gives other bytes: nothing leads back.
        let mut captured = Generator { ..generator };
        let mut after = [0; 1000];
        captured.give(&mut after);
        let mut first = [0; 1000];
        started(b"seed").give(&mut first);
        assert!(!first.chunks(16).any(|part| after.windows(16).any(|window| window == part)));
    }

    #[test]
    fn the_device_is_asked_once_in_an_interval() {
        let mut generator = started(b"seed");
        generator.stir_at_ns = 1000;
        assert!(!generator.is_due(999));
        assert!(generator.is_due(1000) && !generator.is_due(1000));
        assert!(!generator.is_due(1000 + STIR_INTERVAL_NS - 1) && generator.is_due(1000 + STIR_INTERVAL_NS));
    }

    /// Linux's answers (getrandom(2)).
    #[test]
    fn a_caller_that_needs_a_seed_waits_for_it() {
        for (flags, expected) in [
            (0, Ok(())),
            (NONBLOCK | RANDOM, Ok(())),
            (NONBLOCK | INSECURE, Ok(())),
            (RANDOM | INSECURE, Err(Errno::EINVAL)),
            (8, Err(Errno::EINVAL)),
        ] {
            assert_eq!(check_flags(flags), expected);
        }
        assert!(may_wait(0) && may_wait(RANDOM) && !may_wait(NONBLOCK));
        let bell = std::sync::Arc::new(Bell::default());
        let waker = Waker::from(bell.clone());
        // The machine that runs in other tests has a seed already, or gets one afterwards.
        let _guard = crate::testing::alone();
        IS_SEEDED.store(false, Ordering::Relaxed);
        stir(b"a clock says nothing about the next boot", SeedSource::Clock);
        stir(&[1; ENOUGH - 1], SeedSource::Entropy);
        assert_eq!(poll_seed(INSECURE, None), Poll::Ready(Ok(())));
        assert_eq!(poll_seed(0, None), Poll::Pending);
        assert_eq!(poll_seed(RANDOM | NONBLOCK, None), Poll::Pending);
        assert_eq!(poll_seed(0, Some(&waker)), Poll::Pending);
        stir(b"tick", SeedSource::Clock);
        assert_eq!(bell.0.load(Ordering::Relaxed), 0);
        stir(&[1; ENOUGH], SeedSource::Entropy);
        assert_eq!(bell.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll_seed(0, None), Poll::Ready(Ok(())));
    }

    #[derive(Default)]
    struct Bell(core::sync::atomic::AtomicU32);

    impl std::task::Wake for Bell {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
