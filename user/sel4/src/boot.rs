//! The boot information: a view of the page that the kernel wrote for the initial thread.

use abi_sel4::boot::{BootInfo, CHUNK_DEVICE_TREE, ChunkHeader, EXTRA_OFFSET};
use abi_sel4::{SlotRegion, UntypedDescription};

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::capability::{Notification, Page, Untyped};
use crate::process::CHUNK_PROGRAM;
use crate::shared::SharedMemory;

/// Number of cores, set by [`remember`].
static CORES: AtomicU64 = AtomicU64::new(1);

/// The name of this program, if another program has started it; set by [`remember`].
static NAME: spin::Once<&'static str> = spin::Once::new();

/// Stores the values that other parts of the library need.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub(crate) fn remember(boot: &BootInformation) {
    CORES.store(boot.cores().1, Ordering::Relaxed);
    if let Some(name) = boot.name() {
        NAME.call_once(|| name);
    }
}

/// Returns the number of cores.
pub(crate) fn cores() -> u64 {
    CORES.load(Ordering::Relaxed)
}

/// Returns the name of this program, if another program has started it.
pub fn own_name() -> Option<&'static str> {
    NAME.get().copied()
}

/// The objects and words that a program is given by its parent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// Notification that the program waits on; 0 for none.
    pub(crate) notification: u64,
    /// Argument words.
    pub(crate) arguments: Vec<u64>,
    /// Address and length of shared memory.
    pub(crate) regions: Vec<[u64; 2]>,
    /// Address, length, capacity and doorbell of each end of a connection.
    pub(crate) ends: Vec<[u64; 4]>,
}

/// Returns the chunk that describes a program's grants. The words are: the notification, the numbers of arguments, of
/// regions and of ends; then these. The rest is the name.
pub(crate) fn program_chunk(name: &str, given: &Given) -> Vec<u8> {
    let Given { notification, arguments, regions, ends } = given;
    let counts = [*notification, arguments.len() as u64, regions.len() as u64, ends.len() as u64];
    let words = counts.iter().chain(arguments).chain(regions.as_flattened()).chain(ends.as_flattened());
    let content: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).chain(name.bytes()).collect();
    let length = (size_of::<ChunkHeader>() + content.len()) as u64;
    [CHUNK_PROGRAM, length].iter().flat_map(|word| word.to_le_bytes()).chain(content).collect()
}

/// The boot information: a page that does not change any more.
#[derive(Clone, Copy, Debug)]
pub struct BootInformation {
    info: &'static BootInfo,
    extra: &'static [u8],
}

impl BootInformation {
    /// Reads the boot information that the kernel has left at `info`.
    ///
    /// # Safety
    ///
    /// `info` must be the value of `a0` with which the kernel starts the initial thread: the address of a page with a
    /// [`BootInfo`], followed by as many bytes of chunks as it says, which stay mapped and unchanged for the rest of
    /// the program.
    pub unsafe fn from_address(info: *const BootInfo) -> BootInformation {
        // SAFETY: the caller's promise.
        let found = unsafe { &*info };
        let extra = match found.extra_length {
            0 => &[],
            // SAFETY: the caller's promise.
            length => unsafe { core::slice::from_raw_parts(info.cast::<u8>().add(EXTRA_OFFSET), length as usize) },
        };
        BootInformation { info: found, extra }
    }

    /// Returns the page itself.
    pub fn raw(&self) -> &'static BootInfo {
        self.info
    }

    /// Returns the core that this thread runs on, and the number of cores.
    pub fn cores(&self) -> (u64, u64) {
        (self.info.node, self.info.nodes)
    }

    /// Returns the empty slots of the initial CNode.
    pub fn empty_slots(&self) -> SlotRegion {
        self.info.empty
    }

    /// Returns the untyped memories, in the order of their slots.
    pub fn untypeds(&self) -> impl Iterator<Item = (Untyped, UntypedDescription)> + Clone {
        let slots = self.info.untyped.start..self.info.untyped.end;
        slots.map(Untyped::from_pointer).zip(self.info.untyped_list.iter().copied())
    }

    /// Returns the pages of this program's own image, in the order of their addresses.
    pub fn image_pages(&self) -> impl Iterator<Item = Page> {
        (self.info.user_image_frames.start..self.info.user_image_frames.end).map(Page::from_pointer)
    }

    /// Returns the chunks that follow the page: the identifier of each, and its bytes. A chunk with a length below its
    /// header's or beyond the available bytes ends the iteration.
    pub fn chunks(&self) -> impl Iterator<Item = (u64, &'static [u8])> {
        let mut rest = self.extra;
        core::iter::from_fn(move || {
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes are taken"));
            let header = rest.get(..size_of::<ChunkHeader>())?;
            let (id, length) = (word(&header[..8]), word(&header[8..]));
            let chunk = rest.get(..usize::try_from(length).ok()?)?;
            let content = chunk.get(header.len()..)?;
            rest = &rest[chunk.len()..];
            Some((id, content))
        })
    }

    /// Returns the parent's grants to this program: notification, arguments, regions, ends, name. `None` for a root
    /// task.
    fn given(&self) -> Option<(u64, Words, Words, Words, &'static [u8])> {
        let (_, content) = self.chunks().find(|(id, _)| *id == CHUNK_PROGRAM)?;
        let (counts, rest) = Words::split(content, 4)?;
        let (arguments, rest) = Words::split(rest, counts.get(1)?)?;
        let (regions, rest) = Words::split(rest, counts.get(2)?.checked_mul(2)?)?;
        let (ends, name) = Words::split(rest, counts.get(3)?.checked_mul(4)?)?;
        Some((counts.get(0)?, arguments, regions, ends, name))
    }

    /// Returns the notification that this program waits on, if its parent has made one.
    pub fn notification(&self) -> Option<Notification> {
        let (pointer, ..) = self.given()?;
        (pointer != 0).then_some(Notification::from_pointer(pointer))
    }

    /// Returns the argument words from the parent.
    pub fn arguments(&self) -> impl Iterator<Item = u64> + use<> {
        let words = self.given().map_or(Words(&[]), |(_, arguments, ..)| arguments);
        (0..).map_while(move |index| words.get(index))
    }

    /// Returns the shared memory that was mapped for this program, without that of connections.
    pub fn regions(&self) -> impl Iterator<Item = SharedMemory> + use<> {
        let words = self.given().map_or(Words(&[]), |(_, _, regions, ..)| regions);
        (0..).map_while(move |index| words.memory(2 * index))
    }

    /// Returns the ends of connections, each with its memory, its capacity and the pointer of the other side's
    /// doorbell.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (SharedMemory, u64, u64)> + use<> {
        let words = self.given().map_or(Words(&[]), |(_, _, _, ends, _)| ends);
        (0..).map_while(move |index| {
            Some((words.memory(4 * index)?, words.get(4 * index + 2)?, words.get(4 * index + 3)?))
        })
    }

    /// Returns the name of this program, if another program has started it.
    pub fn name(&self) -> Option<&'static str> {
        self.given().and_then(|(.., name)| core::str::from_utf8(name).ok())
    }

    /// Returns the machine's device tree.
    pub fn device_tree(&self) -> Option<&'static [u8]> {
        self.chunks().find(|(id, _)| *id == CHUNK_DEVICE_TREE).map(|(_, content)| content)
    }
}

/// Words in memory that is not aligned to words.
#[derive(Clone, Copy)]
struct Words(&'static [u8]);

impl Words {
    /// Splits off the first `count` words.
    fn split(bytes: &'static [u8], count: u64) -> Option<(Words, &'static [u8])> {
        let (words, rest) = bytes.split_at_checked(usize::try_from(count.checked_mul(8)?).ok()?)?;
        Some((Words(words), rest))
    }

    /// Returns the memory whose address and length are at this index.
    fn memory(self, index: u64) -> Option<SharedMemory> {
        let (address, length) = (self.get(index)?, self.get(index + 1)?);
        // SAFETY: the writer of the boot information has mapped it, for this and nothing else; that is the meaning of
        // these words (the promise of `from_address`).
        Some(unsafe { SharedMemory::new(address, length as usize) })
    }

    fn get(self, index: u64) -> Option<u64> {
        let start = usize::try_from(index.checked_mul(8)?).ok()?;
        Some(u64::from_le_bytes(self.0.get(start..)?.get(..8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi_sel4::boot::CHUNK_PADDING;

    fn with_extra(extra: Vec<u8>) -> BootInformation {
        // SAFETY: zeros are a valid `BootInfo`, which is plain numbers.
        let info: &'static BootInfo = Box::leak(Box::new(unsafe { core::mem::zeroed() }));
        BootInformation { info, extra: extra.leak() }
    }

    fn chunk(id: u64, length: u64, content: &[u8]) -> Vec<u8> {
        [&id.to_le_bytes()[..], &length.to_le_bytes(), content].concat()
    }

    #[test]
    fn the_device_tree_is_found_behind_padding() {
        let extra = [chunk(CHUNK_PADDING, 24, &[0; 8]), chunk(CHUNK_DEVICE_TREE, 19, b"dtb")].concat();
        let boot = with_extra(extra);
        assert_eq!(boot.device_tree(), Some(&b"dtb"[..]));
        assert_eq!(boot.chunks().count(), 2);
    }

    #[test]
    fn a_program_finds_its_arguments_and_regions() {
        let given = Given {
            notification: 9,
            arguments: vec![7, u64::MAX],
            regions: vec![[0x1000, 64], [0x2000, 128]],
            ends: vec![[0x3000, 4096, 16, 3]],
        };
        let boot = with_extra(program_chunk("worker", &given));
        assert_eq!(boot.arguments().collect::<Vec<_>>(), [7, u64::MAX]);
        let regions: Vec<_> = boot.regions().map(|region| (region.address(), region.len())).collect();
        assert_eq!((regions, boot.name()), (vec![(0x1000, 64), (0x2000, 128)], Some("worker")));
        let ends: Vec<_> = boot.ends().map(|(memory, capacity, bell)| (memory.address(), capacity, bell)).collect();
        assert_eq!((ends, boot.notification()), (vec![(0x3000, 16, 3)], Some(Notification::from_pointer(9))));
        let nothing = with_extra(vec![]);
        assert_eq!((nothing.arguments().count(), nothing.name(), nothing.notification()), (0, None, None));
        // Counts that are larger than the chunk.
        let mut chunk = program_chunk("", &Given { arguments: vec![1], ..Given::default() });
        chunk[24] = 2;
        assert_eq!(with_extra(chunk).arguments().count(), 0);
    }

    #[test]
    fn nonsense_in_chunks_ends_the_search() {
        for extra in [
            vec![],
            vec![1; 15],
            chunk(CHUNK_DEVICE_TREE, 15, b""),
            chunk(CHUNK_DEVICE_TREE, 17, b""),
            chunk(CHUNK_DEVICE_TREE, u64::MAX, b"abc"),
            chunk(CHUNK_DEVICE_TREE, 0, b"abc"),
        ] {
            assert_eq!(with_extra(extra).device_tree(), None);
        }
        assert_eq!(with_extra(chunk(CHUNK_DEVICE_TREE, 16, b"")).device_tree(), Some(&b""[..]));
    }
}
