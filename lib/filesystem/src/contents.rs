//! The bytes of a regular file: pages of its own over bytes of the archive over zeros.
//!
//! A byte below the file's length comes from the first of these that has it: a page the file owns, the backing (bytes of
//! the archive, which are never changed), nothing (zero). A page is made by the first write to it, as a copy of what it
//! covers. So a large read-only file costs nothing, a patch to it costs a page, and a hole costs nothing.
//!
//! Two invariants keep old bytes from coming back when a file shrinks and grows again. **Nothing beyond the end**: the
//! backing is no longer than the file, and bytes of a page beyond the end are zero. **No page beyond the end**: every
//! page contains at least one byte of the file.

use alloc::boxed::Box;

use hashbrown::HashMap;

use crate::error::Error;
use crate::memory;
use crate::quota::Quota;

/// The unit in which files grow.
pub const PAGE_SIZE: usize = 4096;

/// No file is longer: offsets are signed in the Unix interface.
pub const MAX_FILE_LENGTH: u64 = i64::MAX as u64;

const PAGE: u64 = PAGE_SIZE as u64;

static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

type Page = Box<[u8; PAGE_SIZE]>;

/// Where a write begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteFrom {
    Offset(u64),
    End,
}

/// See the module's documentation. Pages are charged to a [`Quota`], the same for all calls.
pub(crate) struct FileContents {
    length: u64,
    backing: &'static [u8],
    pages: HashMap<u64, Page>,
}

impl FileContents {
    pub(crate) fn new(backing: &'static [u8]) -> FileContents {
        FileContents { length: backing.len() as u64, backing, pages: HashMap::new() }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// What the file's own pages take.
    pub(crate) fn charged(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// The whole file as one slice, as long as nobody has written to it.
    pub(crate) fn untouched(&self) -> Option<&'static [u8]> {
        (self.pages.is_empty() && self.length == self.backing.len() as u64).then_some(self.backing)
    }

    /// Hands the bytes from `offset` on to `sink`, piece by piece, until there are `length`, or the file ends, or `sink`
    /// takes less than it was given. Returns how many were taken.
    pub(crate) fn read_with(&self, offset: u64, length: usize, mut sink: impl FnMut(&[u8]) -> usize) -> usize {
        let end = offset.saturating_add(length as u64).min(self.length);
        let mut at = offset;
        while at < end {
            let piece = self.piece(at, end);
            let taken = sink(piece).min(piece.len());
            at += taken as u64;
            if taken < piece.len() {
                break;
            }
        }
        (at - offset) as usize
    }

    /// The longest piece from `at` on, below `end`, that lies in one place.
    fn piece(&self, at: u64, end: u64) -> &[u8] {
        let within = (at % PAGE) as usize;
        let page_end = end.min(at - within as u64 + PAGE);
        let length = (page_end - at) as usize;
        if let Some(page) = self.pages.get(&(at / PAGE)) {
            return &page[within..within + length];
        }
        let backing = usize::try_from(at).ok().and_then(|at| self.backing.get(at..)).unwrap_or_default();
        if backing.is_empty() {
            &ZEROS[..length]
        } else {
            // Without pages of its own the file is one piece as far as the backing goes.
            let limit = if self.pages.is_empty() { end } else { page_end };
            let length = usize::try_from(limit - at).unwrap_or(usize::MAX);
            &backing[..length.min(backing.len())]
        }
    }

    /// Lets `source` fill `length` bytes from `from` on, piece by piece, until it fills less than it was given. Returns
    /// where the write began and how many bytes it has; fewer than `length` also if there is no room for more.
    pub(crate) fn write_with(
        &mut self,
        quota: &Quota,
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
        if offset >= MAX_FILE_LENGTH {
            return Err(Error::FileTooLarge);
        }
        let end = offset.saturating_add(length as u64).min(MAX_FILE_LENGTH);
        let mut at = offset;
        while at < end {
            match self.write_piece(quota, at, end, &mut source) {
                Ok((filled, wanted)) => {
                    at += filled as u64;
                    self.length = self.length.max(at);
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

    /// Writes to one page; returns how much was filled of how much.
    fn write_piece(
        &mut self,
        quota: &Quota,
        at: u64,
        end: u64,
        source: &mut impl FnMut(&mut [u8]) -> usize,
    ) -> Result<(usize, usize), Error> {
        let index = at / PAGE;
        let within = (at % PAGE) as usize;
        let wanted = ((end - at) as usize).min(PAGE_SIZE - within);
        let length = self.length;
        let page = self.page(quota, index)?;
        let filled = source(&mut page[within..within + wanted]).min(wanted);
        if filled < wanted {
            // A source may have touched more than it says. What lies beyond the end must stay zero.
            let kept = (length.saturating_sub(index * PAGE)).min(PAGE) as usize;
            page[kept.max(within + filled)..].fill(0);
            if filled == 0 && index * PAGE >= length && self.pages.remove(&index).is_some() {
                quota.refund(PAGE);
            }
        }
        Ok((filled, wanted))
    }

    /// The file's own page, made if it has none there.
    fn page(&mut self, quota: &Quota, index: u64) -> Result<&mut Page, Error> {
        // Looked up twice because a returned borrow would last for the other branch too.
        if !self.pages.contains_key(&index) {
            self.pages.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
            quota.charge(PAGE)?;
            let page = match self.copy_of_page(index) {
                Ok(page) => page,
                Err(error) => {
                    quota.refund(PAGE);
                    return Err(error);
                }
            };
            self.pages.insert(index, page);
        }
        self.pages.get_mut(&index).ok_or(Error::OutOfMemory)
    }

    fn copy_of_page(&self, index: u64) -> Result<Page, Error> {
        let mut page: Page = memory::zeros(PAGE_SIZE)?.try_into().map_err(|_| Error::OutOfMemory)?;
        let start = usize::try_from(index * PAGE).unwrap_or(usize::MAX);
        if let Some(backing) = self.backing.get(start..) {
            let length = backing.len().min(PAGE_SIZE);
            page[..length].copy_from_slice(&backing[..length]);
        }
        Ok(page)
    }

    /// Cuts the file off, or makes it longer with zeros.
    pub(crate) fn truncate(&mut self, quota: &Quota, length: u64) -> Result<(), Error> {
        if length > MAX_FILE_LENGTH {
            return Err(Error::FileTooLarge);
        }
        if length < self.length {
            let before = self.charged();
            if let Some(kept) = usize::try_from(length).ok().and_then(|length| self.backing.get(..length)) {
                self.backing = kept;
            }
            self.pages.retain(|index, _| index * PAGE < length);
            if let Some(last) = self.pages.get_mut(&(length / PAGE)) {
                last[(length % PAGE) as usize..].fill(0);
            }
            if self.pages.is_empty() {
                // The table itself is memory too.
                self.pages = HashMap::new();
            }
            quota.refund(before - self.charged());
        }
        self.length = length;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Append(Vec<u8>),
        Short(u64, usize, usize),
        Truncate(u64),
        Read(u64, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = prop::collection::vec(1..=255u8, 0..6000);
        prop_oneof![
            (0..20_000u64, bytes.clone()).prop_map(|(at, bytes)| Step::Write(at, bytes)),
            bytes.prop_map(Step::Append),
            (0..20_000u64, 0..9000usize, 0..9000usize)
                .prop_map(|(at, length, filled)| { Step::Short(at, length, filled) }),
            (0..20_000u64).prop_map(Step::Truncate),
            (0..24_000u64, 0..9000usize).prop_map(|(at, length)| Step::Read(at, length)),
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

    /// A source that has `bytes` to give and scribbles over the rest.
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
        #[test]
        fn contents_behave_like_a_vector(
            backing in prop::collection::vec(1..=255u8, 0..15_000),
            steps in prop::collection::vec(step(), 1..40),
        ) {
            let backing: &'static [u8] = backing.leak();
            let quota = Quota::new(1 << 30);
            let mut model = backing.to_vec();
            let mut contents = FileContents::new(backing);
            prop_assert_eq!(contents.untouched(), Some(backing));
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        let written = contents
                            .write_with(&quota, WriteFrom::Offset(at), bytes.len(), source(&bytes));
                        prop_assert_eq!(written, Ok((at, bytes.len())));
                        put(&mut model, at as usize, &bytes);
                    }
                    Step::Append(bytes) => {
                        let written = contents
                            .write_with(&quota, WriteFrom::End, bytes.len(), source(&bytes));
                        prop_assert_eq!(written, Ok((model.len() as u64, bytes.len())));
                        let end = model.len();
                        put(&mut model, end, &bytes);
                    }
                    Step::Short(at, length, filled) => {
                        // What lies below the end and after the filled part is the source's to scribble on, so keep to
                        // writes at the end, where the bytes beyond must be zero.
                        let at = at.max(model.len() as u64);
                        let bytes = alloc::vec![7; filled.min(length)];
                        let written = contents
                            .write_with(&quota, WriteFrom::Offset(at), length, source(&bytes));
                        prop_assert_eq!(written, Ok((at, bytes.len())));
                        put(&mut model, at as usize, &bytes);
                    }
                    Step::Truncate(length) => {
                        contents.truncate(&quota, length).unwrap();
                        model.resize(length as usize, 0);
                    }
                    Step::Read(at, length) => {
                        let start = (at as usize).min(model.len());
                        let end = (start + length).min(model.len());
                        prop_assert_eq!(&read(&contents, at, length)[..], &model[start..end]);
                    }
                }
                prop_assert_eq!(contents.length(), model.len() as u64);
                prop_assert_eq!(quota.used(), contents.charged());
                prop_assert!(contents.pages.keys().all(|index| index * PAGE < contents.length));
            }
            prop_assert_eq!(read(&contents, 0, usize::MAX), model);
            contents.truncate(&quota, 0).unwrap();
            prop_assert_eq!(quota.used(), 0);
        }
    }

    #[test]
    fn holes_cost_nothing_and_the_ends_are_checked() {
        let quota = Quota::new(2 * PAGE);
        let mut contents = FileContents::new(b"");
        let last = MAX_FILE_LENGTH - 1;
        let write = |contents: &mut FileContents, at, length| {
            contents.write_with(&quota, WriteFrom::Offset(at), length, |piece| {
                piece.fill(1);
                piece.len()
            })
        };
        assert_eq!(write(&mut contents, last, 10), Ok((last, 1)));
        assert_eq!(write(&mut contents, MAX_FILE_LENGTH, 1), Err(Error::FileTooLarge));
        assert_eq!(write(&mut contents, u64::MAX, 0), Ok((u64::MAX, 0)));
        assert_eq!(contents.length(), MAX_FILE_LENGTH);
        assert_eq!(quota.used(), PAGE);
        assert_eq!(read(&contents, last - 3, 100), [0, 0, 0, 1]);
        assert_eq!(read(&contents, u64::MAX, 1), []);

        // One page is left: a longer write is cut short, the next fails.
        assert_eq!(write(&mut contents, 100, 10_000), Ok((100, 3996)));
        assert_eq!(write(&mut contents, 4096, 1), Err(Error::NoSpace));
        assert_eq!(contents.truncate(&quota, MAX_FILE_LENGTH + 1), Err(Error::FileTooLarge));
        contents.truncate(&quota, 5000).unwrap();
        assert_eq!(quota.used(), PAGE);
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
}
