//! What the initial thread is told: a view of the page that the kernel wrote.

use abi_sel4::boot::{BootInfo, CHUNK_DEVICE_TREE, ChunkHeader, EXTRA_OFFSET};
use abi_sel4::{SlotRegion, UntypedDescription};

use crate::capability::{Page, Untyped};

/// The boot information: a page that nobody changes any more.
#[derive(Clone, Copy, Debug)]
pub struct BootInformation {
    info: &'static BootInfo,
    extra: &'static [u8],
}

impl BootInformation {
    /// Reads what the kernel has left at `info`.
    ///
    /// # Safety
    ///
    /// `info` must be what the kernel put into `a0` of the initial thread: a page with a [`BootInfo`], followed by as many bytes of chunks
    /// as it says, which stay mapped and unchanged for the rest of the program.
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

    /// The page as it is.
    pub fn raw(&self) -> &'static BootInfo {
        self.info
    }

    /// The core that this thread runs on, and how many there are.
    pub fn cores(&self) -> (u64, u64) {
        (self.info.node, self.info.nodes)
    }

    /// Empty slots of the initial CNode.
    pub fn empty_slots(&self) -> SlotRegion {
        self.info.empty
    }

    /// The untyped memories, in the order of their slots.
    pub fn untypeds(&self) -> impl Iterator<Item = (Untyped, UntypedDescription)> + Clone {
        let slots = self.info.untyped.start..self.info.untyped.end;
        slots.map(Untyped::from_pointer).zip(self.info.untyped_list.iter().copied())
    }

    /// The pages of this program's own image, in the order of their addresses.
    pub fn image_pages(&self) -> impl Iterator<Item = Page> {
        (self.info.user_image_frames.start..self.info.user_image_frames.end).map(Page::from_pointer)
    }

    /// The chunks that follow the page: what each is, and its bytes. A chunk that says it is shorter than its header or longer than what is
    /// there ends the iteration.
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

    /// The machine's device tree.
    pub fn device_tree(&self) -> Option<&'static [u8]> {
        self.chunks().find(|(id, _)| *id == CHUNK_DEVICE_TREE).map(|(_, content)| content)
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
