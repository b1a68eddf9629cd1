//! The pages that a process shares with the kernel, and the two that all processes share.

use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ::program::Placement;
use ::program::layout::{Layout, Sizes};
use abi_queue::completion::{INITIAL_CAPACITY, pages};
use abi_queue::pages::{COMPLETION_RING_OFFSET, LARGEST_IMAGE, PAGE_SIZE, PROCESS_PAGE_OFFSET, SHARED_SIZE};
use abi_queue::{GlobalPage, InterruptWord, MAXIMUM_WORKERS, Mode, Priority, ProcessPage, ReadyWord, SystemMode};
use abi_unix::Errno;
use memory::space::Sharing;
use memory::sv39::Protection;
use memory::{Frame, SharedFrame};
use spin::Once;
use usermode::Space;

use crate::process::user::map_error;
use crate::scheduling::steps::{self, Ends};

/// Number of words from one worker's ready word to the next worker's.
const WORDS: usize = size_of::<ReadyWord>() / size_of::<u64>();

/// A process's own pages: the process page and the completion ring.
pub(crate) struct Shared {
    page: SharedFrame,
    ring: Vec<SharedFrame>,
    /// One more than the highest index that a worker ever had: only so many words are looked at.
    workers: AtomicUsize,
    /// Address of the pages in the process.
    start: AtomicUsize,
    /// Address of the scheduler's image in the process.
    image: AtomicUsize,
    /// Distance by which the program was moved from its place in the file.
    bias: AtomicUsize,
    /// Addresses in the first stack: of the arguments, of the environment behind them, and of its end.
    texts: [AtomicU64; 3],
    /// Address of the auxiliary vector there.
    auxiliary: AtomicU64,
}

/// Room that a layout must have for this module's mappings.
// The global page is in front of the image, where the image's functions find it.
pub(crate) const SIZES: Sizes = Sizes { shared: SHARED_SIZE as u64, image: (PAGE_SIZE + LARGEST_IMAGE) as u64 };

/// Number of frames that are filled with zeros in a step.
const FRAMES_AT_A_TIME: usize = 16;

/// Allocates a frame of zeros that can be mapped.
pub(crate) fn zeroed() -> Result<SharedFrame, Errno> {
    Ok(Frame::allocate_zeroed().map_err(|_| Errno::ENOMEM)?.share())
}

/// Allocates frames of zeros that can be mapped, in steps of bounded length. `ENOMEM`.
///
/// # Cancellation
/// Dropping it frees the frames.
pub(crate) async fn zeroed_frames(payer: &impl Ends, count: usize) -> Result<Vec<SharedFrame>, Errno> {
    let mut frames = Vec::new();
    frames.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    for number in 0..count {
        if number != 0 && number.is_multiple_of(FRAMES_AT_A_TIME) {
            steps::pause(payer).await;
            if !memory::frames::available_to_programs(count - number) {
                return Err(Errno::ENOMEM);
            }
        }
        frames.push(zeroed()?);
    }
    Ok(frames)
}

impl Shared {
    /// Allocates fresh pages, all zero.
    pub(crate) fn new() -> Result<Shared, Errno> {
        let count = pages(INITIAL_CAPACITY);
        let mut ring = Vec::new();
        ring.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        for _ in 0..count {
            ring.push(zeroed()?);
        }
        let [start, image, bias] = [const { AtomicUsize::new(0) }; 3];
        let texts = [const { AtomicU64::new(0) }; 3];
        let auxiliary = AtomicU64::new(0);
        Ok(Shared { page: zeroed()?, ring, workers: AtomicUsize::new(1), start, image, bias, texts, auxiliary })
    }

    /// Allocates fresh pages at the same places, for a copy of the process.
    pub(crate) fn of_a_copy(&self) -> Result<Shared, Errno> {
        let copy = Shared::new()?;
        for (to, from) in [(&copy.start, &self.start), (&copy.image, &self.image), (&copy.bias, &self.bias)] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        copy.set_texts(self.texts());
        copy.set_auxiliary(self.auxiliary());
        Ok(copy)
    }

    /// Makes all pages zero again, for another program.
    pub(crate) fn clear(&self) {
        self.page.zero();
        for frame in &self.ring {
            frame.zero();
        }
    }

    /// Records that there is a worker with this index.
    pub(crate) fn add_worker(&self, index: usize) {
        // Relaxed: a reader that misses the worker misses nothing that it has published yet.
        self.workers.fetch_max(index + 1, Ordering::Relaxed);
    }

    /// Returns the priorities published as ready or running, over all workers of the process. A claim.
    #[inline(always)]
    pub(crate) fn ready(&self) -> u64 {
        let (ready, running) = self.all_words();
        ready | running
    }

    /// Returns the priorities published as ready, without the running ones. A claim.
    pub(crate) fn ready_only(&self) -> u64 {
        self.all_words().0
    }

    /// Returns the priorities published as running. A claim.
    pub(crate) fn running_only(&self) -> u64 {
        self.all_words().1
    }

    /// Returns the priorities published as ready, and as running.
    #[inline(always)]
    fn all_words(&self) -> (u64, u64) {
        let Some(words) = self.page.bytes().atomic_words::<{ MAXIMUM_WORKERS * WORDS }>(0) else { return (0, 0) };
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let workers = words.chunks_exact(WORDS).take(self.workers.load(Ordering::Relaxed));
        workers.fold((0, 0), |all, words| (all.0 | load(&words[0]), all.1 | load(&words[1])))
    }

    /// Returns the priority bit of the coroutine that one worker is published to run, or 0. A claim.
    pub(crate) fn running(&self, worker: usize) -> u64 {
        let offset = worker % MAXIMUM_WORKERS * size_of::<ReadyWord>() + 8;
        self.page.bytes().atomic_u64(offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Returns whether something ready in the process is more important than the coroutine that one worker runs. A
    /// claim.
    pub(crate) fn is_outranked_within(&self, worker: usize) -> bool {
        let running = self.running(worker);
        running != 0 && self.ready_only() & (running & running.wrapping_neg()).wrapping_sub(1) != 0
    }

    /// Shows user interrupts to a worker, for its handler.
    pub(crate) fn add_interrupts(&self, worker: usize, bits: u64) {
        if let Some(word) = self.interrupts(worker) {
            // Release: the handler sees the sender's earlier writes.
            word.fetch_or(bits, Ordering::Release);
        }
    }

    fn interrupts(&self, worker: usize) -> Option<&AtomicU64> {
        let offset = offset_of!(ProcessPage, interrupts) + worker % MAXIMUM_WORKERS * size_of::<InterruptWord>();
        self.page.bytes().atomic_u64(offset)
    }

    /// Returns whether the process says that it answers requests of the kernel. A claim.
    pub(crate) fn answers(&self) -> bool {
        let word = self.page.bytes().atomic_u64(offset_of!(ProcessPage, answers));
        word.is_some_and(|word| word.load(Ordering::Relaxed) == 1)
    }

    /// Publishes the mode to the process's executor.
    pub(crate) fn tell_mode(&self, mode: Mode) {
        self.tell(core::mem::offset_of!(ProcessPage, mode), mode as u64);
    }

    /// Publishes the limit of claims to the process's executor.
    pub(crate) fn tell_ceiling(&self, ceiling: Priority) {
        self.tell(core::mem::offset_of!(ProcessPage, ceiling), ceiling.number().into());
    }

    fn tell(&self, offset: usize, value: u64) {
        self.page.bytes().atomic_u64(offset).expect("fields of the process page").store(value, Ordering::Relaxed);
    }

    /// Returns whether there are user interrupts that a worker's handler has not taken, or whether it wants to be
    /// called again. A claim.
    pub(crate) fn has_interrupts(&self, worker: usize) -> bool {
        self.interrupts(worker).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Takes a worker's user interrupts, as its handler does.
    #[cfg(test)]
    pub(crate) fn take_interrupts(&self, worker: usize) -> u64 {
        self.interrupts(worker).map_or(0, |word| word.swap(0, Ordering::Acquire))
    }

    /// Returns the number of interrupts that a worker's handler has taken without the kernel. A claim.
    pub(crate) fn hardware_interrupts(&self, worker: usize) -> u64 {
        let offset = offset_of!(ProcessPage, interrupts) + worker % MAXIMUM_WORKERS * size_of::<InterruptWord>() + 8;
        self.page.bytes().atomic_u64(offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Returns the frames of the completion ring with which a process begins.
    pub(crate) fn ring(&self) -> &[SharedFrame] {
        &self.ring
    }

    /// Records the places of all parts, before they are mapped for a program.
    pub(crate) fn place(&self, layout: &Layout, program: Placement) {
        let bias = match program {
            Placement::Fixed => 0,
            Placement::Moved { bias } => bias as usize,
        };
        self.bias.store(bias, Ordering::Relaxed);
        // Relaxed: the program does not run yet.
        self.start.store(layout.shared as usize, Ordering::Relaxed);
        self.image.store(layout.image as usize + PAGE_SIZE, Ordering::Relaxed);
    }

    /// Records where the texts of the first stack are: the arguments, the environment behind them, and its end.
    pub(crate) fn set_texts(&self, addresses: [u64; 3]) {
        for (word, address) in self.texts.iter().zip(addresses) {
            word.store(address, Ordering::Relaxed);
        }
    }

    /// Records where the auxiliary vector is.
    pub(crate) fn set_auxiliary(&self, address: u64) {
        self.auxiliary.store(address, Ordering::Relaxed);
    }

    /// Returns the address of the auxiliary vector; 0 if there is none. The program may have written anything there.
    pub(crate) fn auxiliary(&self) -> u64 {
        self.auxiliary.load(Ordering::Relaxed)
    }

    /// Returns the addresses of these texts; 0 if there are none. The program may have written anything there since.
    pub(crate) fn texts(&self) -> [u64; 3] {
        self.texts.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Returns the address of one of the parts that lie at offsets in `abi_queue::pages`.
    pub(crate) fn address(&self, offset: usize) -> usize {
        self.start.load(Ordering::Relaxed) + offset
    }

    /// Returns the distance by which the program was moved from its place in the file.
    pub(crate) fn program_bias(&self) -> usize {
        self.bias.load(Ordering::Relaxed)
    }

    /// Returns the address of the scheduler's image.
    pub(crate) fn image_address(&self) -> usize {
        self.image.load(Ordering::Relaxed)
    }

    /// Returns the address of the global page.
    pub(crate) fn global_page_address(&self) -> usize {
        self.image_address() - PAGE_SIZE
    }

    /// Returns whether a program counter lies in the scheduler's image.
    pub(crate) fn is_in_image(&self, pc: usize) -> bool {
        let length = COMMON.get().map_or(0, |common| common.image.len() * PAGE_SIZE);
        pc.wrapping_sub(self.image_address()) < length
    }

    /// Returns the mappings of its own pages in the process's address space: address, frames.
    pub(crate) fn mappings(&self) -> [(usize, Vec<SharedFrame>); 2] {
        let at = |offset| self.address(offset);
        [(at(PROCESS_PAGE_OFFSET), alloc::vec![self.page.clone()]), (at(COMPLETION_RING_OFFSET), self.ring.clone())]
    }

    /// Returns the mapping of the global page: address, frames.
    pub(crate) fn global_mapping(&self) -> Option<(usize, Vec<SharedFrame>)> {
        COMMON.get().map(|common| (self.global_page_address(), alloc::vec![common.global.clone()]))
    }

    /// Returns the mapping of the scheduler's image: address, frames.
    pub(crate) fn image_mapping(&self) -> Option<(usize, Vec<SharedFrame>)> {
        COMMON.get().map(|common| (self.image_address(), common.image.clone()))
    }
}

/// Pages that every process sees: the global page, readable, and the scheduler's image, executable.
struct Common {
    global: SharedFrame,
    image: Vec<SharedFrame>,
    /// Offset of the return from a handler.
    signal_return: usize,
}

static COMMON: Once<Common> = Once::new();

/// Prepares the common pages from the scheduler's image. Called once at start; `ENOMEM` if there is no memory for them.
pub(crate) fn start(image: &[u8], ticks_per_second: u64, epoch_ns: u64, harts: u64) -> Result<(), Errno> {
    let global = zeroed()?;
    let store = |offset: usize, value: u64| {
        global.bytes().atomic_u64(offset).expect("fields of the global page").store(value, Ordering::Relaxed);
    };
    store(core::mem::offset_of!(GlobalPage, ticks_per_second), ticks_per_second);
    store(core::mem::offset_of!(GlobalPage, epoch_ns), epoch_ns);
    store(core::mem::offset_of!(GlobalPage, harts), harts);
    assert!(image.len() <= LARGEST_IMAGE, "the build checks the image's size");
    // The entry point in the header of an ELF file.
    let signal_return =
        image.get(24..32).map_or(0, |word| word.iter().rev().fold(0, |word, &byte| word << 8 | byte as usize));
    let mut frames = Vec::new();
    for piece in image.chunks(PAGE_SIZE) {
        let frame = zeroed()?;
        frame.write(0, piece);
        frames.push(frame);
    }
    COMMON.call_once(|| Common { global, image: frames, signal_return });
    Ok(())
}

/// Returns the offset in the scheduler's image of the instructions to which a signal's handler returns.
pub(crate) fn signal_return() -> usize {
    COMMON.get().map_or(0, |common| common.signal_return)
}

/// Publishes the mode for all executors.
pub(crate) fn publish_mode(mode: SystemMode) {
    if let Some(common) = COMMON.get() {
        let word = common.global.bytes().atomic_u64(core::mem::offset_of!(GlobalPage, mode));
        word.expect("fields of the global page").store(mode as u64, Ordering::Relaxed);
    }
}

/// Publishes the global bitmap.
pub(crate) fn publish(bitmap: u64) {
    if let Some(common) = COMMON.get() {
        let word = common.global.bytes().atomic_u64(core::mem::offset_of!(GlobalPage, ready));
        let word = word.expect("fields of the global page");
        if word.load(Ordering::Relaxed) != bitmap {
            word.store(bitmap, Ordering::Relaxed);
        }
    }
}

/// Maps frames into an address space at this address.
pub(crate) fn map(space: &Space, address: usize, frames: &[SharedFrame]) -> Result<(), Errno> {
    let place = memory::space::Placement::FixedIfFree(address as u64);
    let mut shares = Vec::new();
    shares.try_reserve_exact(frames.len()).map_err(|_| Errno::ENOMEM)?;
    shares.extend(frames.iter().cloned());
    let mapped = space.lock().map_shared(place, shares, Sharing::ReadWrite, Protection::ReadWrite, "[kernel]");
    usermode::flush(mapped.map_err(map_error)?.1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    /// A program publishes by storing; the kernel uses its words and nothing else.
    #[test]
    fn published_words_of_workers_add_up_and_other_words_do_not_count() {
        run(|program| {
            let page = program.process().shared.address(PROCESS_PAGE_OFFSET);
            let publish = |program: &crate::testing::Program, worker: usize, ready: u64, running: u64| {
                program.write(page + worker * size_of::<ReadyWord>(), &ready.to_le_bytes());
                program.write(page + worker * size_of::<ReadyWord>() + 8, &running.to_le_bytes());
            };
            publish(program, 0, 0b100, 0b1000);
            publish(program, 1, 0b1, 0b10);
            let shared = |program: &crate::testing::Program| {
                let process = program.process();
                (process.shared.ready(), process.shared.ready_only(), process.shared.running_only())
            };
            assert_eq!(shared(program), (0b1100, 0b100, 0b1000), "there is no worker 1");
            program.add_worker(|_| {}).unwrap();
            assert_eq!(shared(program), (0b1111, 0b101, 0b1010));
            let process = program.process();
            assert_eq!((process.shared.running(0), process.shared.running(1)), (0b1000, 0b10));
            assert!(process.shared.is_outranked_within(0) && process.shared.is_outranked_within(1));
            publish(program, 1, 0b10, 0b10);
            assert!(!process.shared.is_outranked_within(1), "an equal does not go before");
            publish(program, 1, 0b1, 0);
            assert!(!process.shared.is_outranked_within(1), "what runs nothing is not outranked");
        });
    }

    #[test]
    fn interrupts_are_shown_until_they_are_taken() {
        run(|program| {
            let process = program.process();
            process.shared.add_interrupts(3, 0b10);
            process.shared.add_interrupts(3, 0b100);
            assert!(process.shared.has_interrupts(3) && !process.shared.has_interrupts(2));
            assert_eq!((process.shared.take_interrupts(3), process.shared.take_interrupts(3)), (0b110, 0));
            assert!(!process.shared.has_interrupts(3));
        });
    }

    #[test]
    fn programs_read_the_global_page_and_cannot_change_it() {
        run(|program| {
            let process = program.process();
            let page = process.shared.address(PROCESS_PAGE_OFFSET);
            process.shared.tell_mode(Mode::Relaxed);
            assert_eq!(program.read_u64(page + offset_of!(ProcessPage, mode)), Mode::Relaxed as u64);
            process.shared.tell_ceiling(Priority::saturating(17));
            assert_eq!(program.read_u64(page + offset_of!(ProcessPage, ceiling)), 17);
            process.shared.tell_ceiling(Priority::HIGHEST);
            let global = process.shared.global_page_address();
            let frequency = program.read_u64(global + offset_of!(GlobalPage, ticks_per_second));
            assert_eq!(frequency, crate::time::ticks_per_second());
            assert_eq!(process.copy_out(global, &[0; 8]), Err(Errno::EFAULT));
            let image = process.shared.image_address();
            assert_eq!(process.copy_out(image, &[0; 8]), Err(Errno::EFAULT));
            assert!(process.shared.is_in_image(image) && process.shared.is_in_image(image + PAGE_SIZE - 1));
            assert!(!process.shared.is_in_image(image - 1) && !process.shared.is_in_image(image + PAGE_SIZE));
            publish(0b101);
            assert_eq!(program.read_u64(global + offset_of!(GlobalPage, ready)), 0b101);
            publish(0);
        });
    }

    #[test]
    fn a_cleared_page_says_nothing() {
        let _guard = crate::testing::alone();
        memory::fake::init(64 << 20);
        let shared = Shared::new().unwrap();
        shared.add_interrupts(0, 1);
        shared.tell_mode(Mode::Relaxed);
        shared.clear();
        assert!(!shared.has_interrupts(0) && shared.ready() == 0);
        assert_eq!(shared.ring().len(), pages(INITIAL_CAPACITY));
    }
}
