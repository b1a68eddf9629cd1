//! Memory objects: pages that several address spaces map, and a file's contents may be.
//!
//! An object has a frame for each of its pages, made of zeros by the first access or put there by the object's maker. A
//! frame stays the page's as long as the object lives: page tables do not count the frames of an object, the region
//! that names it keeps the whole ([`AddressSpace::map_object`](crate::AddressSpace::map_object)). So a mapping of any
//! length is made, copied by `fork` and removed in a moment, and nothing has to find the mappings of a page.
//!
//! The memory is paid for by the object's [`Payer`], a page at a time, which also gets the frames at the end, to free
//! them in steps.
//!
//! Rejected: shares of each page in each page table. A file that is cut off could give its pages back before its
//! mappings go; and each entry would have to be counted, and looked at by `fork`.
//!
//! # Locking
//! An object has a lock, under which only memory is taken. It may be used while an address space is locked.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::mem::size_of;

use spin::Mutex;

use crate::PAGE_SIZE;
use crate::frames::{self, Frame, OutOfMemory, SharedFrame};
use crate::space::Fault;

/// Number of pages in a chunk, whose records are one small allocation, and which is freed in one step of work.
const CHUNK: usize = 128;
/// Bytes of a chunk's records.
const CHUNK_BYTES: usize = CHUNK * size_of::<Option<SharedFrame>>();
/// Maximum number of pages of an object: 64 GiB.
pub const MOST_PAGES: usize = 1 << 24;

/// The owner of an object's memory.
pub trait Payer: Send + Sync {
    /// Pays for so many bytes more.
    ///
    /// # Errors
    /// [`OutOfMemory`] if it may not have them.
    fn pay(&self, bytes: usize) -> Result<(), OutOfMemory>;

    /// Takes so many bytes back, which were paid for last and have not been needed.
    fn repay(&self, bytes: usize);

    /// Frees the pages of an object that has no users any more. All is paid for until then.
    fn free(self: Box<Self>, pages: ObjectPages);
}

/// State of a page before it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Zeros, up to so many pages. The others are beyond the end.
    Zeros(usize),
    /// Beyond the end, as long as its maker does not put it there.
    BeyondTheEnd,
}

type Chunk = Box<[Option<SharedFrame>]>;

/// The pages of an object, in chunks of neighbours.
#[derive(Default)]
pub struct ObjectPages {
    chunks: Vec<Option<Chunk>>,
}

impl ObjectPages {
    fn get(&self, page: usize) -> Option<&SharedFrame> {
        self.chunks.get(page / CHUNK)?.as_ref()?.get(page % CHUNK)?.as_ref()
    }

    /// Returns the number of bytes that a page needs for its record.
    fn missing(&self, page: usize) -> usize {
        match self.chunks.get(page / CHUNK) {
            Some(Some(_)) => 0,
            _ => CHUNK_BYTES,
        }
    }

    /// Returns the place of a page, made if there is none.
    fn place(&mut self, page: usize) -> Result<&mut Option<SharedFrame>, OutOfMemory> {
        let number = page / CHUNK;
        if number >= self.chunks.len() {
            self.chunks.try_reserve_exact(number + 1 - self.chunks.len()).map_err(|_| OutOfMemory)?;
            self.chunks.resize_with(number + 1, || None);
        }
        if self.chunks[number].is_none() {
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(CHUNK).map_err(|_| OutOfMemory)?;
            chunk.resize_with(CHUNK, || None);
            self.chunks[number] = Some(chunk.into_boxed_slice());
        }
        self.chunks[number].as_mut().and_then(|chunk| chunk.get_mut(page % CHUNK)).ok_or(OutOfMemory)
    }

    /// Frees a bounded number of pages; returns `false` if there are none left.
    pub fn free_some(&mut self) -> bool {
        self.chunks.pop().is_some()
    }
}

/// Memory that several address spaces map.
#[doc(alias = "address_space")]
#[doc(alias = "vm_object")]
#[doc(alias = "shmem")]
pub struct MemoryObject {
    pages: Mutex<ObjectPages>,
    absent: Absent,
    payer: Option<Box<dyn Payer>>,
    companion: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for MemoryObject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MemoryObject").field("absent", &self.absent).finish_non_exhaustive()
    }
}

impl MemoryObject {
    /// Makes an object without pages. `companion` is for its users: a thing that belongs to the memory.
    #[must_use]
    pub fn new(absent: Absent, payer: Box<dyn Payer>, companion: Arc<dyn Any + Send + Sync>) -> Self {
        Self { pages: Mutex::default(), absent, payer: Some(payer), companion }
    }

    /// Returns the thing that belongs to the memory.
    #[must_use]
    pub fn companion(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.companion
    }

    /// Returns the frame of a page.
    ///
    /// # Errors
    /// [`Fault::BeyondTheEnd`] if the page is not there and cannot be; [`Fault::OutOfMemory`].
    pub fn page(&self, page: usize) -> Result<SharedFrame, Fault> {
        let mut pages = self.pages.lock();
        if let Some(frame) = pages.get(page) {
            return Ok(frame.clone());
        }
        let end = match self.absent {
            Absent::Zeros(pages) => pages.min(MOST_PAGES),
            Absent::BeyondTheEnd => 0,
        };
        if page >= end {
            return Err(Fault::BeyondTheEnd);
        }
        if !frames::available_to_programs(3) {
            return Err(Fault::OutOfMemory);
        }
        self.add(&mut pages, page).map_err(|OutOfMemory| Fault::OutOfMemory)
    }

    /// Returns the frame of a page if it is there.
    #[must_use]
    pub fn present(&self, page: usize) -> Option<SharedFrame> {
        self.pages.lock().get(page).cloned()
    }

    /// Returns the frame of a page, which is made of zeros if it is not there, whatever it is without.
    ///
    /// # Errors
    /// [`OutOfMemory`] if there is none, or its payer may not have it, or the object would be too large.
    pub fn put(&self, page: usize) -> Result<SharedFrame, OutOfMemory> {
        let mut pages = self.pages.lock();
        match pages.get(page) {
            Some(frame) => Ok(frame.clone()),
            None if page >= MOST_PAGES => Err(OutOfMemory),
            None => self.add(&mut pages, page),
        }
    }

    fn add(&self, pages: &mut ObjectPages, page: usize) -> Result<SharedFrame, OutOfMemory> {
        // A word of the list of chunks is paid for with the chunk.
        let bytes = PAGE_SIZE as usize + pages.missing(page);
        let Some(payer) = &self.payer else { return Err(OutOfMemory) };
        payer.pay(bytes)?;
        // The frame first: without one no record is made.
        let added = Frame::allocate_zeroed().map(Frame::share).and_then(|frame| {
            *pages.place(page)? = Some(frame.clone());
            Ok(frame)
        });
        if added.is_err() {
            payer.repay(bytes);
        }
        added
    }
}

impl Drop for MemoryObject {
    fn drop(&mut self) {
        if let Some(payer) = self.payer.take() {
            payer.free(core::mem::take(self.pages.get_mut()));
        }
    }
}
