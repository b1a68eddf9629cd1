//! The bytes of a regular file: pages of its own over bytes of the archive over zeros.
//!
//! A byte below the file's length comes from the first of these that has it: a page the file owns, the backing (bytes
//! of the archive, which are never changed), nothing (zero). A page is made by the first write to it, as a copy of the
//! bytes it covers. So a large read-only file costs nothing, a patch to it costs a page, and a hole costs nothing.
//!
//! Two invariants keep old bytes from coming back when a file shrinks and grows again. **Nothing beyond the end**: the
//! backing is no longer than the file, and bytes of a page beyond the end are zero. **No page beyond the end**: every
//! page contains at least one byte of the file, but for pages of zeros that an allocation has made there.
//!
//! A page can be *common* to the file and to programs that map it: then its bytes are in memory of the kernel's
//! ([`CommonPages`]), which programs may change at any time, and are copied and never borrowed. Bytes beyond the end of
//! a common page may be anything; they are cleared when the file grows over them. A common page that is cut off stays
//! in that memory, out of the programs' reach; if the file comes to have the page again, it is cleared for that.
//!
//! Pages are kept in chunks of neighbours, in the order of their numbers. When a file is freed or cut off, removed
//! chunks become *remains*, which are freed later, one after the other ([`Remains`]): the holder of a file's lock never
//! frees more pages than a chunk has.
//!
//! Rejected: a hash table of chunks. Each hole of a sparse file would search all of them for the next.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use spin::Mutex;
use tables::Ordered;

use crate::error::Error;
use crate::memory;
use crate::quota::{Owner, Quota, Share};
use crate::table::Shared;

/// Size of a page, the unit in which files grow.
pub const PAGE_SIZE: usize = 4096;

/// Maximum length of a file: offsets are signed in the Unix interface.
pub const MAX_FILE_LENGTH: u64 = i64::MAX as u64;

const PAGE: u64 = PAGE_SIZE as u64;

static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Number of bytes of a common page that are copied at once.
const COPIED_AT_A_TIME: usize = 256;

type Bytes = Box<[u8; PAGE_SIZE]>;

/// Memory in which a file keeps pages that programs map. Others may change it at any time.
///
/// All methods are called under the file's lock.
pub trait CommonPages: Any + Send + Sync {
    /// Copies bytes of a page that was made.
    fn read(&self, page: u64, within: usize, bytes: &mut [u8]);

    /// Copies bytes to a page that was made.
    fn write(&self, page: u64, within: usize, bytes: &[u8]);

    /// Fills the rest of a page with zeros; returns `false` if the page was not made.
    fn clear(&self, page: u64, from: usize) -> bool;

    /// Makes a page with these bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::NoSpace`].
    fn make(&self, page: u64, bytes: &[u8; PAGE_SIZE]) -> Result<(), Error>;

    /// Notes that the file has so many pages from now on. Programs do not reach others, nor any bytes that these had.
    fn set_end(&self, pages: u64);

    /// Notes that a program maps pages for writing, until the kernel takes that back.
    fn begin_writing(&self);

    /// Whether a program has pages mapped for writing.
    fn is_written(&self) -> bool;

    /// Returns it as the type that the caller knows.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// A page, and the charge for it: the owner that made the page pays until it is gone.
struct Page {
    /// Its bytes; none if it is common.
    bytes: Option<Bytes>,
    _share: Option<Share>,
}

/// Pages of a chunk; few in tests, so that test files have several chunks.
const CHUNK: usize = if cfg!(test) { 2 } else { 64 };
/// Work of one part of a hole, and what pages take of it: those that are not there take one.
const WORK_OF_A_HOLE: usize = 128;
const COST_OF_A_PAGE: usize = 8;
const COST_OF_A_CLEARED_PAGE: usize = 64;

/// Number of chunks that are freed at once.
const FEW: usize = 1;

/// Neighbouring pages of a file.
#[derive(Default)]
struct Chunk {
    /// As long as its last page requires.
    pages: Vec<Option<Page>>,
    /// Number of pages that are present.
    count: usize,
    /// A bit for each page that an allocation has made and nothing has used since.
    unused: u64,
}

const _: () = assert!(CHUNK <= u64::BITS as usize);

impl Chunk {
    fn get(&self, position: usize) -> Option<&Page> {
        self.pages.get(position)?.as_ref()
    }

    fn get_mut(&mut self, position: usize) -> Option<&mut Page> {
        self.pages.get_mut(position)?.as_mut()
    }

    /// Whether nothing has used a page, or there is none.
    fn is_hole(&self, position: usize) -> bool {
        self.get(position).is_none() || self.unused & 1 << position != 0
    }

    /// Puts a page at a position.
    fn put(&mut self, position: usize, page: Page) -> Result<(), Error> {
        if position >= self.pages.len() {
            memory::reserve(&mut self.pages, position + 1)?;
            self.pages.resize_with(position + 1, || None);
        }
        self.pages[position] = Some(page);
        self.count += 1;
        Ok(())
    }

    /// Frees pages from a position on; returns their number.
    fn cut(&mut self, from: usize) -> usize {
        let before = self.count;
        self.unused &= (1u64.unbounded_shl(from as u32)).wrapping_sub(1);
        for page in self.pages.iter_mut().skip(from) {
            self.count -= usize::from(page.take().is_some());
        }
        before - self.count
    }
}

/// Returns the number of a page's chunk, and the position in it.
fn place(index: u64) -> (u64, usize) {
    (index / CHUNK as u64, (index % CHUNK as u64) as usize)
}

/// Things that were removed and are not freed yet, of all file systems that share this: chunks of files, and trees.
#[derive(Default)]
pub(crate) struct Remains(Mutex<Removed>);

#[derive(Default)]
struct Removed {
    /// Chunks, and the limit of the tree that they count towards.
    chunks: Vec<(Arc<Quota>, Ordered<Chunk>)>,
    /// The first tree without users; each leads to the next, so that adding one needs no memory.
    trees: Option<Arc<Shared>>,
}

impl Remains {
    /// Stores chunks to be freed later; frees them at once if there is no memory for their record.
    fn add(&self, quota: &Arc<Quota>, mut chunks: Ordered<Chunk>) {
        {
            let mut removed = self.0.lock();
            if removed.chunks.try_reserve(1).is_ok() {
                return removed.chunks.push((Arc::clone(quota), chunks));
            }
        }
        while let Some((_, chunk)) = chunks.pop_last() {
            quota.refund(chunk.count as u64 * PAGE);
        }
    }

    /// Adds a tree to which nothing else refers.
    pub(crate) fn add_tree(&self, mut tree: Arc<Shared>) {
        let mut removed = self.0.lock();
        debug_assert!(Arc::get_mut(&mut tree).is_some(), "something refers to a tree that is given up");
        if let Some(shared) = Arc::get_mut(&mut tree) {
            shared.next_removed = removed.trees.take();
            removed.trees = Some(tree);
        }
    }

    /// Frees a chunk, or a piece of a tree; returns `false` if there is none.
    pub(crate) fn free_one(&self) -> bool {
        let (quota, chunk) = {
            let mut removed = self.0.lock();
            loop {
                let Some((quota, last)) = removed.chunks.last_mut() else {
                    let Some(mut tree) = removed.trees.take() else { return false };
                    let Some(shared) = Arc::get_mut(&mut tree) else { return true };
                    removed.trees = shared.next_removed.take();
                    drop(removed);
                    if shared.dismantle() {
                        self.add_tree(tree);
                    }
                    return true;
                };
                match last.pop_last() {
                    Some((_, chunk)) => break (Arc::clone(quota), chunk),
                    None => drop(removed.chunks.pop()),
                }
            }
        };
        let pages = chunk.count as u64;
        drop(chunk);
        quota.refund(pages * PAGE);
        true
    }

    /// Whether there is nothing to free.
    pub(crate) fn is_empty(&self) -> bool {
        let removed = self.0.lock();
        removed.chunks.is_empty() && removed.trees.is_none()
    }
}

/// Hands a copy of bytes of a common page to `sink`; returns the number of bytes that were offered, and of those taken.
#[cold]
fn offer_copy(
    common: &Arc<dyn CommonPages>,
    at: u64,
    end: u64,
    sink: &mut impl FnMut(&[u8]) -> usize,
) -> (usize, usize) {
    let within = (at % PAGE) as usize;
    let mut copy = [0; COPIED_AT_A_TIME];
    let piece = &mut copy[..COPIED_AT_A_TIME.min(PAGE_SIZE - within).min((end - at) as usize)];
    common.read(at / PAGE, within, piece);
    (piece.len(), sink(piece).min(piece.len()))
}

/// Neighbouring bytes of a file that are all in a hole, or of which none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// They are zeros that take no memory, or pages that only an allocation has made.
    pub is_hole: bool,
    /// The place behind them. The next bytes may be of the same kind.
    pub end: u64,
}

/// Position at which a write begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteFrom {
    Offset(u64),
    End,
}

/// Changes that a file's seals forbid (memfd_create(2)), with Linux's bits. Seals are added and never taken away.
#[doc(alias = "F_ADD_SEALS")]
pub mod seal {
    /// More seals.
    pub const SEAL: u32 = 1;
    /// A shorter file.
    pub const SHRINK: u32 = 1 << 1;
    /// A longer file.
    pub const GROW: u32 = 1 << 2;
    /// Other bytes; there is no mapping that could write.
    pub const WRITE: u32 = 1 << 3;
    /// Other bytes, but for mappings that are there.
    pub const FUTURE_WRITE: u32 = 1 << 4;
    /// All of them.
    pub const ALL: u32 = (1 << 5) - 1;
}

/// Contents of a regular file; see the module's documentation. Pages are charged to a [`Quota`], which is the same for
/// all calls, and each page to the owner named by the write that makes it.
pub(crate) struct FileContents {
    length: u64,
    backing: &'static [u8],
    chunks: Ordered<Chunk>,
    /// Pages in all chunks.
    count: usize,
    /// Memory of common pages, from the first on.
    common: Option<Arc<dyn CommonPages>>,
    /// Bits of [`seal`].
    seals: u32,
}

impl FileContents {
    pub(crate) fn new(backing: &'static [u8]) -> FileContents {
        // Only files without a name are ever sealed otherwise.
        let seals = seal::SEAL;
        FileContents { length: backing.len() as u64, backing, chunks: Ordered::new(), count: 0, common: None, seals }
    }

    /// Makes an empty file that can be sealed.
    pub(crate) fn sealable() -> FileContents {
        FileContents { seals: 0, ..FileContents::new(&[]) }
    }

    /// Returns the seals.
    pub(crate) fn seals(&self) -> u32 {
        self.seals
    }

    /// Adds seals.
    pub(crate) fn add_seals(&mut self, seals: u32) -> Result<(), Error> {
        if seals & !seal::ALL != 0 {
            return Err(Error::InvalidArgument);
        }
        if self.seals & seal::SEAL != 0 {
            return Err(Error::NotPermitted);
        }
        if seals & seal::WRITE != 0 && self.common.as_ref().is_some_and(|common| common.is_written()) {
            return Err(Error::Busy);
        }
        self.seals |= seals;
        Ok(())
    }

    fn require_unsealed(&self, seals: u32) -> Result<(), Error> {
        if self.seals & seals == 0 { Ok(()) } else { Err(Error::NotPermitted) }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the charge for the file's own pages.
    pub(crate) fn charged(&self) -> u64 {
        self.count as u64 * PAGE
    }

    /// Returns the number of pages that have bytes, the archive's with them: all that is no hole.
    pub(crate) fn pages(&self) -> u64 {
        let of_backing = (self.backing.len() as u64).div_ceil(PAGE);
        let (last, within) = place(of_backing);
        // Own pages that stand for some of the backing are counted as these are.
        let whole: usize = match self.count {
            0 => 0,
            _ => self.chunks.iter().take_while(|(number, _)| *number < last).map(|(_, chunk)| chunk.count).sum(),
        };
        let partial = self.chunks.get(last).map_or(0, |chunk| chunk.pages.iter().take(within).flatten().count());
        of_backing + (self.count - whole - partial) as u64
    }

    /// Returns the bytes from a place on, at most to the end of the file, as far as a look at one chunk tells.
    pub(crate) fn stretch(&self, from: u64) -> Stretch {
        let of_backing = (self.backing.len() as u64).next_multiple_of(PAGE);
        let (is_hole, end) = if from < of_backing {
            (false, of_backing)
        } else {
            let (number, position) = place(from / PAGE);
            let (begin, next) = (number * CHUNK as u64, (number + 1) * CHUNK as u64);
            match self.chunks.get(number) {
                Some(chunk) => {
                    let is_hole = chunk.is_hole(position);
                    let other = (position + 1..CHUNK).find(|other| chunk.is_hole(*other) != is_hole);
                    (is_hole, other.map_or(next, |other| begin + other as u64).saturating_mul(PAGE))
                }
                None => {
                    let next = self.chunks.first_from(number);
                    (true, next.map_or(u64::MAX, |next| (next * CHUNK as u64).saturating_mul(PAGE)))
                }
            }
        };
        Stretch { is_hole, end: end.min(self.length) }
    }

    /// Frees all pages, large files' pages later; refunds those that are freed at once.
    pub(crate) fn free(self, quota: &Arc<Quota>, remains: &Remains) {
        if self.chunks.len() > FEW {
            remains.add(quota, self.chunks);
        } else {
            let charged = self.charged();
            drop(self);
            quota.refund(charged);
        }
    }

    /// Returns the whole file as one slice, if it was never written to.
    pub(crate) fn untouched(&self) -> Option<&'static [u8]> {
        (self.count == 0 && self.length == self.backing.len() as u64).then_some(self.backing)
    }

    /// Hands the bytes from `offset` on to `sink`, piece by piece, until there are `length`, or the file ends, or
    /// `sink` takes less than it was given. Returns the number of bytes taken.
    pub(crate) fn read_with(&self, offset: u64, length: usize, mut sink: impl FnMut(&[u8]) -> usize) -> usize {
        let end = offset.saturating_add(length as u64).min(self.length);
        let mut at = offset;
        while at < end {
            let (offered, taken) = match self.common_page(at / PAGE) {
                Some(common) => offer_copy(common, at, end, &mut sink),
                None => {
                    let piece = self.piece(at, end);
                    (piece.len(), sink(piece).min(piece.len()))
                }
            };
            at += taken as u64;
            if taken < offered {
                break;
            }
        }
        (at - offset) as usize
    }

    /// Returns the memory in which a page is, if it is common.
    fn common_page(&self, index: u64) -> Option<&Arc<dyn CommonPages>> {
        let common = self.common.as_ref()?;
        let (chunk, position) = place(index);
        let page = self.chunks.get(chunk).and_then(|chunk| chunk.get(position))?;
        if page.bytes.is_none() { Some(common) } else { None }
    }

    /// Returns the memory of the file's common pages, for a mapping that `writes` or does not; without any it is made
    /// by `make`.
    pub(crate) fn common(
        &mut self,
        writes: bool,
        make: impl FnOnce() -> Result<Arc<dyn CommonPages>, Error>,
    ) -> Result<Arc<dyn CommonPages>, Error> {
        if writes {
            self.require_unsealed(seal::WRITE | seal::FUTURE_WRITE)?;
        }
        let common = match &self.common {
            Some(common) => common.clone(),
            None => self.common.insert(make()?).clone(),
        };
        if writes {
            common.begin_writing();
        }
        Ok(common)
    }

    /// Makes a page common; returns `false` if it is beyond the end.
    pub(crate) fn share_page(
        &mut self,
        quota: &Quota,
        owner: Option<&Arc<dyn Owner>>,
        index: u64,
    ) -> Result<bool, Error> {
        if index >= self.length.div_ceil(PAGE) {
            return Ok(false);
        }
        let common = self.common.clone().ok_or(Error::InvalidArgument)?;
        let page = self.page(quota, owner, index)?;
        if let Some(bytes) = &page.bytes {
            common.make(index, bytes)?;
            page.bytes = None;
        }
        Ok(true)
    }

    /// Clears the bytes beyond the end in the last page, before the file grows.
    fn clear_beyond_the_end(&self) {
        let within = (self.length % PAGE) as usize;
        if within != 0
            && let Some(common) = self.common_page(self.length / PAGE)
        {
            common.clear(self.length / PAGE, within);
        }
    }

    /// Returns the longest contiguous piece from `at` on, below `end`.
    fn piece(&self, at: u64, end: u64) -> &[u8] {
        let within = (at % PAGE) as usize;
        let page_end = end.min(at - within as u64 + PAGE);
        let length = (page_end - at) as usize;
        let (chunk, position) = place(at / PAGE);
        let page = self.chunks.get(chunk).and_then(|chunk| chunk.get(position));
        if let Some(bytes) = page.and_then(|page| page.bytes.as_ref()) {
            return &bytes[within..within + length];
        }
        let backing = usize::try_from(at).ok().and_then(|at| self.backing.get(at..)).unwrap_or_default();
        if backing.is_empty() {
            &ZEROS[..length]
        } else {
            // Without pages of its own the file is one piece as far as the backing goes.
            let limit = if self.count == 0 { end } else { page_end };
            let length = usize::try_from(limit - at).unwrap_or(usize::MAX);
            &backing[..length.min(backing.len())]
        }
    }

    /// Lets `source` fill `length` bytes from `from` on, piece by piece, until it fills less than it was given. Returns
    /// the start of the write and its length, which is less than `length` also if there is no room for more.
    pub(crate) fn write_with(
        &mut self,
        quota: &Quota,
        owner: Option<&Arc<dyn Owner>>,
        from: WriteFrom,
        length: usize,
        mut source: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<(u64, usize), Error> {
        let offset = match from {
            WriteFrom::Offset(offset) => offset,
            WriteFrom::End => self.length,
        };
        if length == 0 {
            return Ok((offset, 0));
        }
        self.require_unsealed(seal::WRITE | seal::FUTURE_WRITE)?;
        if offset >= MAX_FILE_LENGTH {
            return Err(Error::FileTooLarge);
        }
        let end = offset.saturating_add(length as u64).min(MAX_FILE_LENGTH);
        if offset > self.length {
            self.clear_beyond_the_end();
        }
        let mut at = offset;
        while at < end {
            match self.write_piece(quota, owner, at, end, &mut source) {
                Ok((filled, wanted)) => {
                    at += filled as u64;
                    // A source that gives nothing leaves the file's length unchanged, also if the write began beyond
                    // its end.
                    if filled > 0 && at > self.length {
                        self.length = at;
                        self.tell_end();
                    }
                    if filled < wanted {
                        break;
                    }
                }
                Err(error) if at == offset => return Err(error),
                Err(_) => break,
            }
        }
        Ok((offset, (at - offset) as usize))
    }

    /// Writes to one page; returns the number of bytes filled and the number offered.
    fn write_piece(
        &mut self,
        quota: &Quota,
        owner: Option<&Arc<dyn Owner>>,
        at: u64,
        end: u64,
        source: &mut impl FnMut(&mut [u8]) -> usize,
    ) -> Result<(usize, usize), Error> {
        let index = at / PAGE;
        let within = (at % PAGE) as usize;
        let wanted = ((end - at) as usize).min(PAGE_SIZE - within);
        let length = self.length;
        if at + wanted as u64 > length {
            // A page as a whole, as on Linux.
            self.require_unsealed(seal::GROW)?;
        }
        self.page(quota, owner, index)?;
        if let Some(common) = self.common_page(index) {
            // Copied, and so without bytes of the source beyond the filled ones.
            let mut copy = [0; COPIED_AT_A_TIME];
            let piece = &mut copy[..wanted.min(COPIED_AT_A_TIME)];
            let wanted = piece.len();
            let filled = source(piece).min(wanted);
            common.write(index, within, &piece[..filled]);
            if filled == 0 && index * PAGE >= length {
                self.remove_page(quota, index);
            }
            return Ok((filled, wanted));
        }
        let page = self.page(quota, owner, index)?.bytes.as_mut().ok_or(Error::OutOfMemory)?;
        let filled = source(&mut page[within..within + wanted]).min(wanted);
        if filled < wanted {
            // A source may have changed more bytes than it reports. Bytes beyond the end must stay zero.
            let kept = (length.saturating_sub(index * PAGE)).min(PAGE) as usize;
            page[kept.max(within + filled)..].fill(0);
            if filled == 0 && index * PAGE >= length {
                self.remove_page(quota, index);
            }
        }
        Ok((filled, wanted))
    }

    /// Returns the file's own page, made if there is none.
    fn page(&mut self, quota: &Quota, owner: Option<&Arc<dyn Owner>>, index: u64) -> Result<&mut Page, Error> {
        let (number, position) = place(index);
        // Looked up twice because a returned borrow would last for the other branch too.
        if self.chunks.get(number).is_none_or(|chunk| chunk.get(position).is_none()) {
            quota.charge(PAGE)?;
            let made = Share::of(owner, PAGE).and_then(|_share| {
                // A page that mappings have kept since the file was cut off; the backing ends before such a page.
                let is_kept = self.common.as_ref().is_some_and(|common| common.clear(index, 0));
                let bytes = if is_kept { None } else { Some(self.copy_of_page(index)?) };
                Ok(Page { bytes, _share })
            });
            let page = match made {
                Ok(page) => page,
                Err(error) => {
                    quota.refund(PAGE);
                    return Err(error);
                }
            };
            if let Err(error) = self.put(number, position, page) {
                quota.refund(PAGE);
                return Err(error);
            }
        }
        let chunk = self.chunks.get_mut(number).ok_or(Error::OutOfMemory)?;
        chunk.unused &= !(1 << position);
        chunk.get_mut(position).ok_or(Error::OutOfMemory)
    }

    /// Puts a page in its place, where there is none.
    fn put(&mut self, number: u64, position: usize, page: Page) -> Result<(), Error> {
        match self.chunks.get_mut(number) {
            Some(chunk) => chunk.put(position, page)?,
            None => {
                let mut chunk = Chunk::default();
                chunk.put(position, page)?;
                self.chunks.insert(number, chunk).map_err(|_| Error::OutOfMemory)?;
            }
        }
        self.count += 1;
        Ok(())
    }

    /// Frees one of the file's own pages, if there is one.
    fn remove_page(&mut self, quota: &Quota, index: u64) {
        let (number, position) = place(index);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        if chunk.pages.get_mut(position).and_then(Option::take).is_some() {
            chunk.count -= 1;
            chunk.unused &= !(1 << position);
            self.count -= 1;
            if chunk.count == 0 {
                self.chunks.remove(number);
            }
            quota.refund(PAGE);
        }
    }

    /// Makes a page, beyond the end of the file too, so that a write needs no memory. It is zero there. Until it is
    /// used, by another allocation too, the page can be [taken back](Self::take_back).
    pub(crate) fn allocate(&mut self, quota: &Quota, owner: Option<&Arc<dyn Owner>>, index: u64) -> Result<(), Error> {
        if index * PAGE >= self.length {
            self.require_unsealed(seal::GROW)?;
            // A program could have bytes beyond the end in memory that it has mapped.
            if self.common.is_some() {
                return Ok(());
            }
        }
        let (number, position) = place(index);
        let is_there = self.chunks.get(number).is_some_and(|chunk| chunk.get(position).is_some());
        self.page(quota, owner, index)?;
        if !is_there && let Some(chunk) = self.chunks.get_mut(number) {
            chunk.unused |= 1 << position;
        }
        Ok(())
    }

    /// Frees pages of a chunk that allocations have made and nothing has used, from a page on and before another.
    /// Returns the page that it has reached.
    pub(crate) fn take_back(&mut self, quota: &Quota, from: u64, to: u64) -> u64 {
        let (number, _) = place(from);
        let (begin, next) = (number * CHUNK as u64, (number + 1) * CHUNK as u64);
        let unused = self.chunks.get(number).map_or(0, |chunk| chunk.unused);
        for index in (from..to.min(next)).filter(|index| unused & 1 << (index - begin) != 0) {
            self.remove_page(quota, index);
        }
        self.chunks.first_from(number + 1).map_or(to, |number| (number * CHUNK as u64).min(to))
    }

    /// Makes bytes zero and frees the pages that they fill, a part of them: from `from` on and before `to`. Returns the
    /// place that it has reached.
    pub(crate) fn punch(
        &mut self,
        quota: &Quota,
        owner: Option<&Arc<dyn Owner>>,
        from: u64,
        to: u64,
    ) -> Result<u64, Error> {
        self.require_unsealed(seal::WRITE | seal::FUTURE_WRITE)?;
        let (mut at, mut left) = (from, WORK_OF_A_HOLE);
        while at < to && left > 0 {
            let index = at / PAGE;
            let (number, position) = place(index);
            let is_backed = index * PAGE < self.backing.len() as u64;
            if is_backed {
                self.page(quota, owner, index)?;
            }
            let Some(chunk) = self.chunks.get_mut(number) else {
                // Sparse files can be longer than any walk over their pages.
                let next = self.chunks.first_from(number);
                at = next.map_or(to, |next| (next * CHUNK as u64 * PAGE).min(to));
                break;
            };
            let (within, end) = ((at % PAGE) as usize, to.min((index + 1) * PAGE));
            let beyond = within + (end - at) as usize;
            let is_whole = within == 0 && beyond == PAGE_SIZE;
            match (chunk.get_mut(position).map(|page| &mut page.bytes), &self.common) {
                (None, _) => left -= 1,
                (Some(Some(_)), _) if is_whole && !is_backed => {
                    self.remove_page(quota, index);
                    left = left.saturating_sub(COST_OF_A_PAGE);
                }
                (Some(Some(bytes)), _) => {
                    bytes[within..beyond].fill(0);
                    left = left.saturating_sub(COST_OF_A_CLEARED_PAGE);
                }
                // Programs that have it mapped keep it.
                (Some(None), Some(common)) => {
                    common.write(index, within, &ZEROS[within..beyond]);
                    left = left.saturating_sub(COST_OF_A_CLEARED_PAGE);
                }
                (Some(None), None) => {}
            }
            at = end;
        }
        Ok(at)
    }

    fn copy_of_page(&self, index: u64) -> Result<Bytes, Error> {
        let mut page: Bytes = memory::zeros(PAGE_SIZE)?.try_into().map_err(|_| Error::OutOfMemory)?;
        let start = usize::try_from(index * PAGE).unwrap_or(usize::MAX);
        if let Some(backing) = self.backing.get(start..) {
            let length = backing.len().min(PAGE_SIZE);
            page[..length].copy_from_slice(&backing[..length]);
        }
        Ok(page)
    }

    /// Cuts the file off, or extends it with zeros. Of many removed pages some are left to be freed later.
    pub(crate) fn truncate(&mut self, quota: &Arc<Quota>, remains: &Remains, length: u64) -> Result<(), Error> {
        if length > MAX_FILE_LENGTH {
            return Err(Error::FileTooLarge);
        }
        if length > self.length {
            self.require_unsealed(seal::GROW)?;
            self.clear_beyond_the_end();
        }
        if length < self.length {
            self.require_unsealed(seal::SHRINK)?;
        }
        // Pages beyond the end, which allocations have made, go in any case.
        if length <= self.length {
            if let Some(kept) = usize::try_from(length).ok().and_then(|length| self.backing.get(..length)) {
                self.backing = kept;
            }
            if length == 0 {
                let old = FileContents {
                    length: 0,
                    backing: &[],
                    chunks: core::mem::take(&mut self.chunks),
                    count: core::mem::take(&mut self.count),
                    common: None,
                    seals: self.seals,
                };
                old.free(quota, remains);
            } else {
                self.cut(quota, remains, length);
            }
        }
        self.length = length;
        self.tell_end();
        Ok(())
    }

    /// Tells the memory of common pages how long the file is.
    fn tell_end(&self) {
        if let Some(common) = &self.common {
            common.set_end(self.length.div_ceil(PAGE));
        }
    }

    /// Removes the bytes beyond a length that is not 0.
    fn cut(&mut self, quota: &Arc<Quota>, remains: &Remains, length: u64) {
        let (last, position) = place((length - 1) / PAGE);
        match self.chunks.split_off(last + 1) {
            Ok(beyond) if beyond.len() > FEW => {
                self.count -= beyond.iter().map(|(_, chunk)| chunk.count).sum::<usize>();
                remains.add(quota, beyond);
            }
            Ok(mut beyond) => {
                while let Some((_, chunk)) = beyond.pop_last() {
                    self.free_chunk(quota, chunk);
                }
            }
            // Without memory for a list of them the chunks are freed one by one.
            Err(_) => {
                while let Some(number) = self.chunks.first_from(last + 1) {
                    if let Some(chunk) = self.chunks.remove(number) {
                        self.free_chunk(quota, chunk);
                    }
                }
            }
        }
        if let Some(chunk) = self.chunks.get_mut(last) {
            let freed = chunk.cut(position + 1);
            self.count -= freed;
            quota.refund(freed as u64 * PAGE);
            // The rest of the last page is removed.
            let within = (length % PAGE) as usize;
            if within != 0
                && let Some(page) = chunk.get_mut(position)
            {
                match (&mut page.bytes, &self.common) {
                    (Some(bytes), _) => bytes[within..].fill(0),
                    (None, Some(common)) => drop(common.clear((length - 1) / PAGE, within)),
                    (None, None) => {}
                }
            }
            if chunk.count == 0 {
                self.chunks.remove(last);
            }
        }
    }

    /// Frees a chunk that was taken out.
    fn free_chunk(&mut self, quota: &Quota, chunk: Chunk) {
        self.count -= chunk.count;
        let pages = chunk.count as u64;
        drop(chunk);
        quota.refund(pages * PAGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use hashbrown::HashMap;
    use property::Place;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(Place, Vec<u8>),
        Append(Vec<u8>),
        Short(Place, usize, usize),
        Truncate(Place),
        Read(Place, usize),
        /// Makes a page common, and has a program write to it.
        Share(Place, u8),
        /// Makes the pages of a range.
        Allocate(Place, usize),
        /// Makes a range zero.
        Punch(Place, usize),
    }

    /// Memory as a kernel has it: a page that was made stays.
    #[derive(Default)]
    struct Mapped(Mutex<HashMap<u64, Bytes>>);

    impl CommonPages for Mapped {
        fn begin_writing(&self) {
            // Byte 0 of a page that no file has.
            self.0.lock().insert(u64::MAX, Box::new([1; PAGE_SIZE]));
        }

        fn is_written(&self) -> bool {
            self.0.lock().contains_key(&u64::MAX)
        }

        fn read(&self, page: u64, within: usize, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.0.lock()[&page][within..within + bytes.len()]);
        }

        fn write(&self, page: u64, within: usize, bytes: &[u8]) {
            self.0.lock().get_mut(&page).unwrap()[within..within + bytes.len()].copy_from_slice(bytes);
        }

        fn set_end(&self, _: u64) {}

        fn clear(&self, page: u64, from: usize) -> bool {
            self.0.lock().get_mut(&page).map(|page| page[from..].fill(0)).is_some()
        }

        fn make(&self, page: u64, bytes: &[u8; PAGE_SIZE]) -> Result<(), Error> {
            assert!(self.0.lock().insert(page, Box::new(*bytes)).is_none(), "page {page} is there");
            Ok(())
        }

        fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
            self
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = || property::places(20_000, &[PAGE, 2 * PAGE]);
        let length = || property::edges(0..9000, &[PAGE_SIZE, 2 * PAGE_SIZE]);
        let bytes = || property::filled(property::edges(0..6000, &[PAGE_SIZE]));
        prop_oneof![
            (place(), bytes()).prop_map(|(at, bytes)| Step::Write(at, bytes)),
            bytes().prop_map(Step::Append),
            (place(), length(), length()).prop_map(|(at, length, filled)| Step::Short(at, length, filled)),
            place().prop_map(Step::Truncate),
            (place(), length()).prop_map(|(at, length)| Step::Read(at, length)),
            (place(), length()).prop_map(|(at, length)| Step::Allocate(at, length)),
            (place(), length()).prop_map(|(at, length)| Step::Punch(at, length)),
            (place(), 1..255u8).prop_map(|(at, byte)| Step::Share(at, byte)),
        ]
    }

    fn read(contents: &FileContents, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let count = contents.read_with(offset, length, |piece| {
            bytes.extend_from_slice(piece);
            piece.len()
        });
        assert_eq!(count, bytes.len());
        bytes
    }

    fn put(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() && model.len() < at + bytes.len() {
            model.resize(at + bytes.len(), 0);
        }
        if !bytes.is_empty() {
            model[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Returns a source that gives `bytes` and scribbles over the rest.
    fn source(mut bytes: &[u8]) -> impl FnMut(&mut [u8]) -> usize {
        move |piece| {
            piece.fill(0xee);
            let length = piece.len().min(bytes.len());
            piece[..length].copy_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            length
        }
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn contents_behave_like_a_vector(
            backing in property::filled(property::edges(0..15_000, &[PAGE_SIZE, 2 * PAGE_SIZE])),
            steps in prop::collection::vec(step(), 1..40),
        ) {
            let backing: &'static [u8] = backing.leak();
            let end = |model: &Vec<u8>| model.len() as u64;
            let (quota, remains) = (Arc::new(Quota::new(1 << 30)), Remains::default());
            let mut model = backing.to_vec();
            let mut contents = FileContents::new(backing);
            let mut allocated = 0;
            prop_assert_eq!(contents.untouched(), Some(backing));
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        let at = at.resolve(end(&model));
                        let written = contents
                            .write_with(&quota, None, WriteFrom::Offset(at), bytes.len(), source(&bytes));
                        prop_assert_eq!(written, Ok((at, bytes.len())));
                        put(&mut model, at as usize, &bytes);
                    }
                    Step::Append(bytes) => {
                        let written = contents
                            .write_with(&quota, None, WriteFrom::End, bytes.len(), source(&bytes));
                        prop_assert_eq!(written, Ok((end(&model), bytes.len())));
                        model.extend(bytes);
                    }
                    Step::Short(at, length, filled) => {
                        // A source may scribble on the bytes below the end and after the filled part, so keep to writes
                        // at the end, where the bytes beyond must be zero.
                        let at = at.resolve(end(&model)).max(end(&model));
                        let bytes = alloc::vec![7; filled.min(length)];
                        let written = contents
                            .write_with(&quota, None, WriteFrom::Offset(at), length, source(&bytes));
                        prop_assert_eq!(written, Ok((at, bytes.len())));
                        put(&mut model, at as usize, &bytes);
                    }
                    Step::Truncate(place) => {
                        let length = place.resolve(end(&model));
                        contents.truncate(&quota, &remains, length).unwrap();
                        while remains.free_one() {}
                        model.resize(length as usize, 0);
                    }
                    Step::Read(at, length) => {
                        let at = at.resolve(end(&model));
                        let start = (at as usize).min(model.len());
                        let end = (start + length).min(model.len());
                        prop_assert_eq!(&read(&contents, at, length)[..], &model[start..end]);
                    }
                    Step::Allocate(at, length) => {
                        let at = at.resolve(end(&model));
                        for index in at / PAGE..(at + length as u64).div_ceil(PAGE) {
                            prop_assert_eq!(contents.allocate(&quota, None, index), Ok(()));
                            allocated = allocated.max((index + 1) * PAGE);
                        }
                    }
                    Step::Punch(at, length) => {
                        let at = at.resolve(end(&model));
                        let (mut reached, to) = (at, at + length as u64);
                        while reached < to {
                            let next = contents.punch(&quota, None, reached, to).unwrap();
                            prop_assert!(next > reached && next <= to);
                            reached = next;
                        }
                        let last = model.len().min(to as usize);
                        if let Some(bytes) = model.get_mut(at as usize..last) {
                            bytes.fill(0);
                        }
                    }
                    Step::Share(at, byte) => {
                        let at = at.resolve(end(&model));
                        let common = contents.common(false, || Ok(Arc::new(Mapped::default()))).unwrap();
                        let is_there = at / PAGE < end(&model).div_ceil(PAGE);
                        prop_assert_eq!(contents.share_page(&quota, None, at / PAGE), Ok(is_there));
                        if is_there {
                            // Also beyond the end, as a program can.
                            let within = (at % PAGE) as usize;
                            common.write(at / PAGE, within, &alloc::vec![byte; PAGE_SIZE - within]);
                            let last = model.len().min((at / PAGE + 1) as usize * PAGE_SIZE);
                            if let Some(bytes) = model.get_mut(at as usize..last) {
                                bytes.fill(byte);
                            }
                        }
                    }
                }
                prop_assert_eq!(contents.length(), model.len() as u64);
                prop_assert_eq!(quota.used(), contents.charged());
                prop_assert_eq!(indexes(&contents).count(), contents.count);
                prop_assert!(indexes(&contents).all(|index| index * PAGE < contents.length.max(allocated)));
            }
            // Holes are zeros, and nothing that is none is left out.
            let (mut at, mut pages) = (0, 0);
            while at < contents.length() {
                let Stretch { is_hole, end } = contents.stretch(at);
                prop_assert!(end > at && end <= contents.length());
                prop_assert!(!is_hole || model[at as usize..end as usize].iter().all(|byte| *byte == 0));
                prop_assert!(end == contents.length() || end % PAGE == 0);
                pages += if is_hole { 0 } else { (end - at).div_ceil(PAGE) };
                at = end;
            }
            prop_assert!(pages <= contents.pages());
            prop_assert_eq!(read(&contents, 0, usize::MAX), model);
            contents.free(&quota, &remains);
            while remains.free_one() {}
            prop_assert_eq!(quota.used(), 0);
        }
    }

    #[test]
    fn a_hole_frees_pages_in_parts_and_passes_what_is_not_there() {
        let quota = Quota::new(1 << 30);
        let mut contents = FileContents::new(b"");
        for index in (0..100).chain([1 << 40]) {
            contents.allocate(&quota, None, index).unwrap();
        }
        assert_eq!((contents.length(), contents.charged()), (0, 101 * PAGE));
        let (mut at, mut parts) = (1, 0);
        while at < MAX_FILE_LENGTH {
            at = contents.punch(&quota, None, at, MAX_FILE_LENGTH).unwrap();
            parts += 1;
        }
        assert_eq!((contents.charged(), quota.used()), (PAGE, PAGE), "the first is there in part");
        assert!((6..70).contains(&parts), "{parts}");
        let mut sealed = FileContents::sealable();
        sealed.add_seals(seal::GROW | seal::WRITE).unwrap();
        assert_eq!(sealed.allocate(&quota, None, 0), Err(Error::NotPermitted));
        assert_eq!(sealed.punch(&quota, None, 0, 1), Err(Error::NotPermitted));
    }

    #[test]
    fn pages_that_an_allocation_has_made_are_a_hole_until_they_are_used() {
        let quota = Quota::new(1 << 30);
        let mut contents = FileContents::new(b"archive");
        let stretch = |is_hole, end| Stretch { is_hole, end };
        assert_eq!(contents.stretch(3), stretch(false, 7));
        for (page, length) in [(6, 1), (1 << 40, 1)] {
            let at = page * PAGE;
            let written = contents.write_with(&quota, None, WriteFrom::Offset(at), length, source(b"x"));
            assert_eq!(written, Ok((at, 1)));
        }
        for index in 2..5 {
            contents.allocate(&quota, None, index).unwrap();
        }
        assert_eq!(contents.stretch(0), stretch(false, PAGE));
        assert_eq!(contents.stretch(PAGE + 5), stretch(true, 2 * PAGE), "one chunk");
        assert_eq!(contents.stretch(2 * PAGE), stretch(true, 4 * PAGE));
        assert_eq!(contents.stretch(6 * PAGE), stretch(false, 7 * PAGE));
        assert_eq!(contents.stretch(7 * PAGE), stretch(true, 8 * PAGE));
        assert_eq!(contents.stretch(8 * PAGE), stretch(true, (1 << 40) * PAGE));
        assert_eq!(contents.stretch((1 << 40) * PAGE), stretch(false, (1 << 40) * PAGE + 1));
    }

    #[test]
    fn pages_of_an_allocation_are_taken_back_unless_they_were_used() {
        let (quota, remains) = (Arc::new(Quota::new(1 << 30)), Remains::default());
        let mut contents = FileContents::new(b"archive");
        for index in (0..10).chain([1 << 40]) {
            contents.allocate(&quota, None, index).unwrap();
        }
        let written = contents.write_with(&quota, None, WriteFrom::Offset(3 * PAGE), 1, source(b"x"));
        assert_eq!(written, Ok((3 * PAGE, 1)));
        // Another allocation has it now.
        contents.allocate(&quota, None, 5).unwrap();
        let (mut at, mut parts) = (0, 0);
        while at < 1 << 41 {
            let next = contents.take_back(&quota, at, 1 << 41);
            assert!(next > at);
            (at, parts) = (next, parts + 1);
        }
        assert!(parts <= 10, "{parts}");
        assert!(indexes(&contents).eq([3, 5]));
        assert_eq!((quota.used(), read(&contents, 0, 8)), (2 * PAGE, b"archive\0".to_vec()));
        // Pages beyond the end go when the file is cut off at its end, and also when that is its beginning.
        for length in [3 * PAGE + 1, 0] {
            contents.truncate(&quota, &remains, length).unwrap();
            contents.allocate(&quota, None, 100).unwrap();
            contents.truncate(&quota, &remains, length).unwrap();
            assert_eq!((contents.charged(), quota.used()), (length.div_ceil(PAGE).min(1) * PAGE, contents.charged()));
        }
    }

    /// Returns the indexes of all of the file's own pages.
    fn indexes(contents: &FileContents) -> impl Iterator<Item = u64> {
        contents.chunks.iter().flat_map(|(number, chunk)| {
            let pages = chunk.pages.iter().enumerate().filter(|(_, page)| page.is_some());
            pages.map(move |(position, _)| number * CHUNK as u64 + position as u64)
        })
    }

    #[test]
    fn pages_of_large_files_are_freed_a_chunk_at_a_time() {
        let (quota, remains) = (Arc::new(Quota::new(1 << 30)), Remains::default());
        let fill = |contents: &mut FileContents| {
            let written = contents.write_with(&quota, None, WriteFrom::Offset(0), 40 * PAGE_SIZE, |piece| piece.len());
            assert_eq!(written, Ok((0, 40 * PAGE_SIZE)));
        };
        let mut contents = FileContents::new(b"");
        fill(&mut contents);
        // Cut off within the second page: the first chunk stays whole.
        contents.truncate(&quota, &remains, PAGE + 1).unwrap();
        assert_eq!((contents.charged(), quota.used()), (2 * PAGE, 40 * PAGE));
        let mut chunks = 0;
        let mut used = quota.used();
        while remains.free_one() {
            assert!(used - quota.used() <= CHUNK as u64 * PAGE);
            used = quota.used();
            chunks += 1;
        }
        assert_eq!((chunks, used), (38 / CHUNK, 2 * PAGE));
        fill(&mut contents);
        contents.free(&quota, &remains);
        assert!(!remains.is_empty());
        while remains.free_one() {}
        assert!(remains.is_empty());
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn a_write_without_bytes_leaves_the_file_alone() {
        let (quota, remains) = (Arc::new(Quota::new(1 << 30)), Remains::default());
        for before in [0, 1, 100, PAGE - 1, PAGE, PAGE + 1] {
            let mut contents = FileContents::new(b"");
            contents.truncate(&quota, &remains, before).unwrap();
            for at in [0, 1, before, before + 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1, 3 * PAGE, 1 << 40] {
                let written = contents.write_with(&quota, None, WriteFrom::Offset(at), 2 * PAGE_SIZE, source(b""));
                assert_eq!(written, Ok((at, 0)));
                assert_eq!(contents.length(), before, "at {at}");
                assert!(indexes(&contents).all(|index| index * PAGE < before), "at {at}");
            }
            assert_eq!(contents.write_with(&quota, None, WriteFrom::End, 1, source(b"")), Ok((before, 0)));
            assert_eq!(contents.length(), before);
            contents.truncate(&quota, &remains, before + 2 * PAGE).unwrap();
            assert_eq!(&read(&contents, before, usize::MAX)[..], &[0; 2 * PAGE_SIZE]);
            contents.truncate(&quota, &remains, 0).unwrap();
        }
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn holes_cost_nothing_and_the_ends_are_checked() {
        let (quota, remains) = (Arc::new(Quota::new(2 * PAGE)), Remains::default());
        let mut contents = FileContents::new(b"");
        let last = MAX_FILE_LENGTH - 1;
        let write = |contents: &mut FileContents, at, length| {
            contents.write_with(&quota, None, WriteFrom::Offset(at), length, |piece| {
                piece.fill(1);
                piece.len()
            })
        };
        assert_eq!(write(&mut contents, last, 10), Ok((last, 1)));
        assert_eq!(write(&mut contents, MAX_FILE_LENGTH, 1), Err(Error::FileTooLarge));
        assert_eq!(write(&mut contents, u64::MAX, 0), Ok((u64::MAX, 0)));
        assert_eq!(contents.length(), MAX_FILE_LENGTH);
        assert_eq!((quota.used(), contents.pages()), (PAGE, 1));
        assert_eq!(read(&contents, last - 3, 100), [0, 0, 0, 1]);
        assert_eq!(read(&contents, u64::MAX, 1), []);

        // One page is left: a longer write is cut short, the next fails.
        assert_eq!(write(&mut contents, 100, 10_000), Ok((100, 3996)));
        assert_eq!(write(&mut contents, 4096, 1), Err(Error::NoSpace));
        assert_eq!(contents.truncate(&quota, &remains, MAX_FILE_LENGTH + 1), Err(Error::FileTooLarge));
        contents.truncate(&quota, &remains, 5000).unwrap();
        assert_eq!(quota.used(), PAGE);
    }

    #[test]
    fn pages_are_counted_once_whether_they_are_the_archive_s_or_its_own() {
        static BACKING: [u8; 4 * PAGE_SIZE + 1] = [1; 4 * PAGE_SIZE + 1];
        let quota = Arc::new(Quota::new(1 << 30));
        let mut contents = FileContents::new(&BACKING);
        assert_eq!(contents.pages(), 5);
        // Two of the archive's, its last one, and one beyond a hole of two pages.
        for (page, count) in [(1, 5), (2, 5), (4, 5), (7, 6)] {
            let at = WriteFrom::Offset(page * PAGE);
            assert_eq!(contents.write_with(&quota, None, at, 1, |piece| piece.len()), Ok((page * PAGE, 1)));
            assert_eq!(contents.pages(), count, "{page}");
        }
        assert_eq!(contents.charged(), 4 * PAGE);
        contents.truncate(&quota, &Remains::default(), PAGE).unwrap();
        assert_eq!(contents.pages(), 1);
    }

    #[test]
    fn a_file_of_one_chunk_is_freed_at_once() {
        let (quota, remains) = (Arc::new(Quota::new(1 << 30)), Remains::default());
        for chunks in 1..3 {
            let mut contents = FileContents::new(b"");
            let length = chunks * CHUNK * PAGE_SIZE;
            let written = contents.write_with(&quota, None, WriteFrom::End, length, |piece| piece.len());
            assert_eq!(written, Ok((0, length)));
            contents.free(&quota, &remains);
            let left = if chunks == 1 { 0 } else { length as u64 };
            assert_eq!((remains.is_empty(), quota.used()), (chunks == 1, left));
        }
        // And of two chunks that are cut off one is freed with the lock held, and the other remains.
        while remains.free_one() {}
        for chunks in 2..4 {
            let mut contents = FileContents::new(b"");
            let length = chunks * CHUNK * PAGE_SIZE;
            let written = contents.write_with(&quota, None, WriteFrom::End, length, |piece| piece.len());
            assert_eq!(written, Ok((0, length)));
            contents.truncate(&quota, &remains, 1).unwrap();
            assert_eq!((contents.charged(), remains.is_empty()), (PAGE, chunks == 2));
            while remains.free_one() {}
            assert_eq!(quota.used(), PAGE);
            contents.truncate(&quota, &remains, 0).unwrap();
            assert_eq!((contents.charged(), quota.used()), (0, 0));
        }
    }

    #[test]
    fn a_file_is_untouched_until_it_has_other_bytes_than_the_archive() {
        let (quota, remains) = (Arc::new(Quota::new(1 << 30)), Remains::default());
        let backing: &'static [u8] = b"archive";
        let mut contents = FileContents::new(backing);
        contents.truncate(&quota, &remains, 4).unwrap();
        assert_eq!(contents.untouched(), Some(&b"arch"[..]));
        contents.truncate(&quota, &remains, 5).unwrap();
        assert_eq!(contents.untouched(), None, "a zero was added");
        let mut contents = FileContents::new(backing);
        assert_eq!(contents.write_with(&quota, None, WriteFrom::Offset(0), 1, |_| 1), Ok((0, 1)));
        assert_eq!(contents.untouched(), None, "a byte was written");
    }

    #[test]
    fn a_reader_may_take_less_than_it_is_given() {
        let backing: &'static [u8] = alloc::vec![3; 3 * PAGE_SIZE].leak();
        let quota = Quota::new(1 << 30);
        let mut contents = FileContents::new(backing);
        // Of three pieces, each a page.
        assert_eq!(contents.write_with(&quota, None, WriteFrom::Offset(PAGE), 1, |_| 1), Ok((PAGE, 1)));
        for (most, expected) in [(0, alloc::vec![0]), (100, alloc::vec![100]), (usize::MAX, alloc::vec![PAGE_SIZE; 3])]
        {
            let mut taken = Vec::new();
            let count = contents.read_with(0, usize::MAX, |piece| {
                taken.push(piece.len().min(most));
                piece.len().min(most)
            });
            assert_eq!((count, taken), (expected.iter().sum(), expected));
        }
        // A sink that claims more than it was given is not believed.
        assert_eq!(contents.read_with(10, 20, |_| usize::MAX), 20);
        assert_eq!(contents.read_with(10, 0, |_| panic!("nothing is to be read")), 0);
        assert_eq!(contents.read_with(3 * PAGE, 1, |_| panic!("nothing is left")), 0);
        assert_eq!(contents.read_with(3 * PAGE - 1, 2, |piece| piece.len()), 1);
    }

    #[test]
    fn reads_of_the_backing_are_one_piece() {
        let backing: &'static [u8] = alloc::vec![3; 20_000].leak();
        let contents = FileContents::new(backing);
        let mut pieces = 0;
        contents.read_with(10, 19_000, |piece| {
            pieces += 1;
            assert_eq!(piece.as_ptr(), backing[10..].as_ptr());
            piece.len()
        });
        assert_eq!(pieces, 1);
    }

    #[test]
    fn seals_forbid_what_they_name_and_cannot_be_taken_away() {
        let (quota, remains) = (Arc::new(Quota::new(1 << 20)), Remains::default());
        let write = |contents: &mut FileContents, at: u64, bytes: &[u8]| {
            let written = contents.write_with(&quota, None, WriteFrom::Offset(at), bytes.len(), source(bytes));
            written.map(|(_, count)| count)
        };
        // A file that had a name is sealed against seals.
        let mut named = FileContents::new(&[]);
        assert_eq!((named.seals(), named.add_seals(seal::GROW)), (seal::SEAL, Err(Error::NotPermitted)));
        let mut file = FileContents::sealable();
        assert_eq!((file.seals(), file.add_seals(seal::ALL + 1)), (0, Err(Error::InvalidArgument)));
        assert_eq!(write(&mut file, 0, &[7; PAGE_SIZE + 10]), Ok(PAGE_SIZE + 10));
        assert_eq!(file.add_seals(seal::GROW), Ok(()));
        assert_eq!(file.truncate(&quota, &remains, PAGE + 11), Err(Error::NotPermitted));
        assert_eq!(write(&mut file, PAGE, &[1; 11]), Err(Error::NotPermitted));
        assert_eq!(write(&mut file, PAGE - 5, &[1; 16]), Ok(5), "the pages before the last");
        assert_eq!(write(&mut file, PAGE, &[2; 10]), Ok(10));
        assert_eq!(file.truncate(&quota, &remains, PAGE + 9), Ok(()));
        assert_eq!(file.add_seals(seal::SHRINK), Ok(()));
        assert_eq!(file.seals(), seal::GROW | seal::SHRINK);
        assert_eq!(file.truncate(&quota, &remains, 0), Err(Error::NotPermitted));
        assert_eq!(file.truncate(&quota, &remains, PAGE + 9), Ok(()), "as long as before");
        // Mappings that are there keep the bytes from being sealed, and not from being sealed for others.
        assert!(file.common(true, || Ok(Arc::new(Mapped::default()))).is_ok());
        assert_eq!(file.add_seals(seal::WRITE), Err(Error::Busy));
        assert_eq!(file.add_seals(seal::FUTURE_WRITE), Ok(()));
        assert_eq!(write(&mut file, 0, &[3]), Err(Error::NotPermitted));
        assert_eq!(write(&mut file, 0, &[]), Ok(0));
        assert!(matches!(file.common(true, || Err(Error::NoSpace)), Err(Error::NotPermitted)));
        assert!(file.common(false, || Err(Error::NoSpace)).is_ok());
        assert_eq!(file.add_seals(seal::SEAL), Ok(()));
        assert_eq!(file.add_seals(0), Err(Error::NotPermitted));
        assert_eq!(read(&file, PAGE - 6, 7), [7, 1, 1, 1, 1, 1, 2]);
        file.free(&quota, &remains);
    }
}
