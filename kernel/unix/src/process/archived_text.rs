//! Text of programs in the archive, in memory that all processes which run them have in common.
//!
//! Loading a program copies its file, although every process that runs it has the same instructions and constants. The
//! archive never changes, so the pages of its segments that programs cannot write are copied once, into a
//! [`MemoryObject`] that each such process maps. It goes with the last of them. The first process pays for it, as it
//! does for the archive: the maker could have a limit at which the programs of others failed.
//!
//! Rejected: frames of the archive itself. They are none of the allocator's, and segments of COPS's own programs do not
//! begin at pages of it. Pages that are copied when they are touched: each would cost a fault, which may fail.

use alloc::sync::{Arc, Weak};

use abi_unix::Errno;
use memory::MemoryObject;
use memory::space::{ObjectUse, Sharing};
use program::Segment;
use spin::Mutex;
use tables::Ordered;

use crate::files::shared_memory;
use crate::process::FIRST;

const PAGE: usize = filesystem::PAGE_SIZE;
/// Pages that are copied in a step.
const PAGES: usize = 2;

/// Whole pages of a segment.
pub(crate) struct ArchivedText {
    object: Arc<MemoryObject>,
    bytes: &'static [u8],
    /// Number of pages that are there.
    copied: Mutex<usize>,
}

/// All that are in use, by the addresses of their bytes. At most one for each segment of the archive.
static TEXTS: Mutex<Ordered<Weak<ArchivedText>>> = Mutex::new(Ordered::new());

impl ArchivedText {
    /// Returns the text of a segment of a file with these bytes, if programs cannot write it, and all of it is in the
    /// file; `None` also without memory.
    pub(crate) fn of(file: &'static [u8], segment: &Segment) -> Option<Arc<ArchivedText>> {
        let (range, memory) = (&segment.file, &segment.memory);
        if segment.protection == program::Protection::ReadWrite || range.end - range.start != memory.end - memory.start
        {
            return None;
        }
        let begin = (range.start as usize).checked_sub(memory.start as usize % PAGE)?;
        let end = (range.end as usize).next_multiple_of(PAGE).min(file.len());
        let bytes = file.get(begin..end)?;
        let key = bytes.as_ptr().addr() as u64;
        // A file can have two segments that begin with the same byte.
        let known = TEXTS.lock().get(key).and_then(Weak::upgrade);
        if let Some(text) = known.filter(|text| text.bytes.len() == bytes.len()) {
            return Some(text);
        }
        let text =
            Arc::new(ArchivedText { object: shared_memory::of_the_first(FIRST).ok()?, bytes, copied: Mutex::new(0) });
        TEXTS.lock().insert(key, Arc::downgrade(&text)).ok()?;
        Some(text)
    }

    /// Copies some of the pages that are missing; returns whether all are there. `ENOMEM`.
    pub(crate) fn copy_some(&self) -> Result<bool, Errno> {
        let mut copied = self.copied.lock();
        for bytes in self.bytes.chunks(PAGE).skip(*copied).take(PAGES) {
            let frame = self.object.put(*copied).map_err(|_| Errno::ENOMEM)?;
            frame.write(0, bytes);
            *copied += 1;
        }
        Ok(*copied == self.bytes.len().div_ceil(PAGE))
    }

    /// Returns the use of it by a mapping, which keeps it.
    pub(crate) fn usage(self: &Arc<ArchivedText>) -> ObjectUse {
        ObjectUse { object: self.object.clone(), first: 0, sharing: Sharing::ReadOnly, keeps: Some(self.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::process::accounts::{Account, Resource};
    use crate::process::{Process, table};
    use crate::testing::{CODE, run};

    #[test]
    fn processes_of_one_program_have_its_text_in_common_and_cannot_write_it() {
        run(|program| {
            let text_of = |process: &Process| {
                let space = process.space().lock();
                space.object_at(CODE).map(|(object, distance)| (object.clone(), distance))
            };
            let (own, distance) = text_of(&program.process()).expect("it is loaded from the archive");
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000)).unwrap();
            program.sleep_ns(1_000_000);
            let other = text_of(&table::find(child as u32).unwrap()).unwrap();
            assert!(Arc::ptr_eq(&own, &other.0) && other.1 == distance);
            let known: Vec<_> = TEXTS.lock().iter().filter_map(|(_, text)| text.upgrade()).collect();
            let text = known.iter().find(|text| Arc::ptr_eq(&text.object, &own)).unwrap();
            let paid = Account::first().used(Resource::Memory);
            assert!(paid >= text.bytes.len(), "the first process pays");
            assert_eq!(text.copy_some(), Ok(true));
            let length = text.bytes.len().min(64);
            assert_eq!(program.read(CODE as usize - distance as usize, length), text.bytes[..length]);
            let page = CODE as usize / PAGE * PAGE;
            assert_eq!(program.call(SystemCall::Protect, [page, PAGE, 3]), Err(Errno::EACCES));
            program.call(SystemCall::Kill, [child, 9]).unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 9)));
        });
    }

    #[test]
    fn segments_that_can_be_written_or_go_on_behind_the_file_are_copied() {
        run(|_| {
            let file: &'static [u8] = &[7; 3 * PAGE + 100];
            let read = program::Protection::Read;
            let segment = |file, memory, protection| Segment { file, memory, protection };
            let is_shared = |segment: Segment| ArchivedText::of(file, &segment).is_some();
            assert!(is_shared(segment(4096..8192, 0x11000..0x12000, read)));
            for other in [
                segment(4096..8192, 0x11000..0x12000, program::Protection::ReadWrite),
                segment(4096..8192, 0x11000..0x12001, read),
                segment(5 * 4096..5 * 4096 + 1, 0x11000..0x11001, read),
                // It begins in front of the file.
                segment(8..16, 0x11010..0x11018, read),
            ] {
                assert!(!is_shared(other));
            }
            let text = ArchivedText::of(file, &segment(8202..12388, 0x1200a..0x13064, read)).unwrap();
            assert_eq!(text.copy_some(), Ok(true));
            let frame = text.object.present(1).unwrap();
            let mut bytes = [0; 101];
            frame.read(0, &mut bytes);
            assert_eq!((bytes[99], bytes[100]), (7, 0), "the file ends there");
            assert!(text.object.present(2).is_none());
        });
    }
}
