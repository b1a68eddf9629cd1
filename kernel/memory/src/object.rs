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
//! The *end* of an object is the number of its pages that programs reach. A file that is cut off sets it, and then has
//! the pages behind it taken from all spaces, one after the other ([`leave_lost_pages`]). The frames stay, so nothing
//! can go wrong meanwhile. Nothing leads from an object to the spaces that map it, since cutting a mapped file off is
//! rare, and mapping is not.
//!
//! An object that no address space maps can lose pages again ([`MemoryObject::take`]): its owner shows that by having
//! it alone.
//!
//! Rejected: shares of each page in each page table. A file that is cut off could give its pages back before its
//! mappings go; and each entry would have to be counted, and looked at by `fork`.
//!
//! [`leave_lost_pages`]: crate::AddressSpace::leave_lost_pages
//!
//! # Locking
//! An object has a lock, under which only memory is taken. It may be used while an address space is locked.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use spin::Mutex;

use crate::PAGE_SIZE;
use crate::frames::{self, Frame, OutOfMemory, SharedFrame};
use crate::space::Fault;

/// Number of pages in a chunk, whose records are one small allocation, and which is freed in one step of work.
const CHUNK: usize = 128;
/// Bytes of a chunk's records.
const CHUNK_BYTES: usize = size_of::<Chunk>();
/// Number of chunks in a group of neighbours.
const GROUP: usize = 512;
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
    /// Elsewhere, up to the object's end: its maker has to fetch it ([`Fault::Elsewhere`]).
    Elsewhere,
}

type Chunk = [Option<SharedFrame>; CHUNK];
type Group = Vec<Option<Box<Chunk>>>;

/// The pages of an object, in groups of chunks: a page far behind all others needs a few kilobytes of records at most,
/// and an object of few pages one chunk.
#[derive(Default)]
pub struct ObjectPages {
    groups: Vec<Group>,
}

/// The path to a page's record.
struct Path {
    group: usize,
    chunk: usize,
    page: usize,
}

impl Path {
    fn to(page: usize) -> Path {
        Path { group: page / CHUNK / GROUP, chunk: page / CHUNK % GROUP, page: page % CHUNK }
    }
}

impl ObjectPages {
    fn get(&self, page: usize) -> Option<&SharedFrame> {
        let path = Path::to(page);
        self.groups.get(path.group)?.get(path.chunk)?.as_ref()?.get(path.page)?.as_ref()
    }

    /// Looks for the first page that is there, from one page on: returns it, or where the next look begins. Looks at a
    /// chunk's pages, or at a group of chunks that are not there.
    fn next(&self, page: usize) -> Result<usize, usize> {
        let path = Path::to(page);
        let first_of_group = |group: usize| group * GROUP * CHUNK;
        let Some(group) = self.groups.get(path.group) else { return Err(MOST_PAGES) };
        let chunks = group.iter().enumerate().skip(path.chunk);
        let Some((number, chunk)) = chunks.into_iter().find_map(|(number, chunk)| Some((number, chunk.as_ref()?)))
        else {
            return Err(first_of_group(path.group + 1));
        };
        let first = first_of_group(path.group) + number * CHUNK;
        let within = page.saturating_sub(first);
        let found = chunk.iter().skip(within).position(Option::is_some);
        found.map_or(Err(first + CHUNK), |distance| Ok(first + within + distance))
    }

    /// Returns the number of bytes that a page needs for its record.
    fn missing(&self, page: usize) -> usize {
        let path = Path::to(page);
        let group = self.groups.get(path.group);
        if group.and_then(|group| group.get(path.chunk)).is_some_and(Option::is_some) {
            return 0;
        }
        let groups = (path.group + 1).saturating_sub(self.groups.len());
        let chunks = (path.chunk + 1).saturating_sub(group.map_or(0, Vec::len));
        CHUNK_BYTES + groups * size_of::<Group>() + chunks * size_of::<Option<Box<Chunk>>>()
    }

    /// Returns the place of a page, made if there is none. A failure changes nothing.
    fn place(&mut self, page: usize) -> Result<&mut Option<SharedFrame>, OutOfMemory> {
        let path = Path::to(page);
        let chunk = self.groups.get(path.group).and_then(|group| group.get(path.chunk));
        if !chunk.is_some_and(Option::is_some) {
            self.make_chunk(&path)?;
        }
        let chunk = self.groups.get_mut(path.group).and_then(|group| group.get_mut(path.chunk)?.as_mut());
        chunk.and_then(|chunk| chunk.get_mut(path.page)).ok_or(OutOfMemory)
    }

    /// Makes the chunk at a path, at which there is none.
    fn make_chunk(&mut self, path: &Path) -> Result<(), OutOfMemory> {
        let mut records = Vec::new();
        records.try_reserve_exact(CHUNK).map_err(|_| OutOfMemory)?;
        records.resize_with(CHUNK, || None);
        let made: Box<Chunk> = records.into_boxed_slice().try_into().map_err(|_| OutOfMemory)?;
        let lengthen = |group: &mut Group| {
            let missing = (path.chunk + 1).saturating_sub(group.len());
            group.try_reserve_exact(missing).map_err(|_| OutOfMemory)?;
            group.resize_with(group.len() + missing, || None);
            Ok(())
        };
        match self.groups.get_mut(path.group) {
            Some(group) => lengthen(group)?,
            None => {
                let mut group = Vec::new();
                lengthen(&mut group)?;
                self.groups.try_reserve_exact(path.group + 1 - self.groups.len()).map_err(|_| OutOfMemory)?;
                self.groups.resize_with(path.group, Vec::new);
                self.groups.push(group);
            }
        }
        self.groups[path.group][path.chunk] = Some(made);
        Ok(())
    }

    /// Frees a bounded number of pages; returns `false` if there are none left.
    pub fn free_some(&mut self) -> bool {
        while let Some(group) = self.groups.last_mut() {
            // The lists are short: between two chunks there are hundreds of empty entries at most.
            while let Some(chunk) = group.pop() {
                if chunk.is_some() {
                    return true;
                }
            }
            self.groups.pop();
        }
        false
    }
}

/// Memory that several address spaces map.
#[doc(alias = "address_space")]
#[doc(alias = "vm_object")]
#[doc(alias = "shmem")]
pub struct MemoryObject {
    pages: Mutex<ObjectPages>,
    absent: Absent,
    /// Number of pages that programs reach. Acquire and release, for a space that is looked through after a change.
    end: AtomicUsize,
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
        let end = AtomicUsize::new(MOST_PAGES);
        Self { pages: Mutex::default(), absent, end, payer: Some(payer), companion }
    }

    /// Returns the thing that belongs to the memory.
    #[must_use]
    pub fn companion(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.companion
    }

    /// Returns the number of pages that programs reach; [`MOST_PAGES`] if all.
    #[must_use]
    pub fn end(&self) -> usize {
        self.end.load(Ordering::Acquire)
    }

    /// Sets the number of pages that programs reach. Returns whether there were more, which are then to be taken from
    /// the spaces that have them: [`leave_lost_pages`](crate::AddressSpace::leave_lost_pages).
    pub fn set_end(&self, pages: usize) -> bool {
        self.end.swap(pages, Ordering::AcqRel) > pages
    }

    /// Fills a bounded number of pages behind the end with zeros, from a page on; returns the page to go on with.
    pub fn zero_behind_the_end(&self, from: usize) -> Option<usize> {
        const AT_A_TIME: usize = 4;
        let pages = self.pages.lock();
        let mut next = from;
        for _ in 0..AT_A_TIME {
            match pages.next(next.max(self.end())) {
                Ok(page) => {
                    pages.get(page).inspect(|frame| frame.zero());
                    next = page + 1;
                }
                Err(further) => next = further,
            }
            if next >= MOST_PAGES {
                return None;
            }
        }
        Some(next)
    }

    /// Returns the frame of a page.
    ///
    /// # Errors
    /// [`Fault::BeyondTheEnd`] if the page is not there and cannot be; [`Fault::Elsewhere`] if it has to be fetched;
    /// [`Fault::OutOfMemory`].
    pub fn page(&self, page: usize) -> Result<SharedFrame, Fault> {
        let mut pages = self.pages.lock();
        if page >= self.end() {
            return Err(Fault::BeyondTheEnd);
        }
        if let Some(frame) = pages.get(page) {
            return Ok(frame.clone());
        }
        let end = match self.absent {
            Absent::Zeros(pages) => pages.min(MOST_PAGES),
            Absent::BeyondTheEnd => 0,
            Absent::Elsewhere => return Err(Fault::Elsewhere),
        };
        if page >= end {
            return Err(Fault::BeyondTheEnd);
        }
        if !frames::available_to_programs(3) {
            return Err(Fault::OutOfMemory);
        }
        self.add(&mut pages, page).map_err(|OutOfMemory| Fault::OutOfMemory)
    }

    /// Whether pages may have to be fetched.
    #[must_use]
    pub fn is_fetched(&self) -> bool {
        self.absent == Absent::Elsewhere
    }

    /// Returns the first of these pages that has to be fetched.
    #[must_use]
    pub fn first_elsewhere(&self, pages: Range<usize>) -> Option<usize> {
        let there = self.pages.lock();
        let end = if self.is_fetched() { pages.end.min(self.end()) } else { 0 };
        (pages.start..end).find(|page| there.get(*page).is_none())
    }

    /// Returns the frame of a page if it is there.
    #[must_use]
    pub fn present(&self, page: usize) -> Option<SharedFrame> {
        self.pages.lock().get(page).cloned()
    }

    /// Returns the frame of a page if it is there and not behind the end.
    pub(crate) fn reached(&self, page: usize) -> Option<SharedFrame> {
        if page < self.end() { self.present(page) } else { None }
    }

    /// Looks for the first page that is there, from one page on: returns it, or where the next look begins, which is a
    /// bounded amount of work.
    ///
    /// # Errors
    /// The page with which the next look begins.
    pub(crate) fn next_present(&self, page: usize) -> Result<usize, usize> {
        self.pages.lock().next(page)
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

    /// Makes a frame that has its bytes that of a page, for which nobody has seen another one; returns the frame of the
    /// page, which is the present one if there is one.
    ///
    /// # Errors
    /// [`OutOfMemory`] as for [`put`](Self::put).
    pub fn enter(&self, page: usize, frame: Frame) -> Result<SharedFrame, OutOfMemory> {
        let mut pages = self.pages.lock();
        match pages.get(page) {
            Some(frame) => Ok(frame.clone()),
            None if page >= MOST_PAGES => Err(OutOfMemory),
            None => self.add_frame(&mut pages, page, || Ok(frame)),
        }
    }

    /// Takes a page from an object that nobody else has, so that no address space maps it.
    pub fn take(&mut self, page: usize) -> Option<SharedFrame> {
        let path = Path::to(page);
        let group = self.pages.get_mut().groups.get_mut(path.group)?;
        let taken = group.get_mut(path.chunk)?.as_mut()?.get_mut(path.page)?.take();
        if let (Some(_), Some(payer)) = (&taken, &self.payer) {
            payer.repay(PAGE_SIZE as usize);
        }
        taken
    }

    /// Frees the records of a page and its neighbours, if none of them is there any more, of an object that nobody else
    /// has.
    pub fn trim(&mut self, page: usize) {
        let path = Path::to(page);
        let chunk = self.pages.get_mut().groups.get_mut(path.group).and_then(|group| group.get_mut(path.chunk));
        if let Some(chunk) = chunk
            && chunk.take_if(|chunk| chunk.iter().all(Option::is_none)).is_some()
            && let Some(payer) = &self.payer
        {
            payer.repay(CHUNK_BYTES);
        }
    }

    fn add(&self, pages: &mut ObjectPages, page: usize) -> Result<SharedFrame, OutOfMemory> {
        self.add_frame(pages, page, Frame::allocate_zeroed)
    }

    fn add_frame(
        &self,
        pages: &mut ObjectPages,
        page: usize,
        make: impl FnOnce() -> Result<Frame, OutOfMemory>,
    ) -> Result<SharedFrame, OutOfMemory> {
        let bytes = PAGE_SIZE as usize + pages.missing(page);
        let Some(payer) = &self.payer else { return Err(OutOfMemory) };
        payer.pay(bytes)?;
        // The frame first: without one no record is made.
        let added = make().map(Frame::share).and_then(|frame| {
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
