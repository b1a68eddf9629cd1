//! Segments of shared memory with numbers and keys (System V's, shmget(2)).
//!
//! A segment is a [`MemoryObject`] that all processes find by a number, or by the key that its maker has chosen. It
//! stays until it is removed and the last mapping of it has gone. Each mapping keeps the [`SharedSegment`] itself, as
//! another mapping keeps its open file, so the number of uses of a segment is that of its mappings: also of those that
//! `fork` copies, and that `mprotect` divides, which Linux counts in the same way.
//!
//! A segment that was removed has no key any more, and can still be used by its number as long as it is mapped. The
//! table keeps no use of it then, and its end takes it out of the table. So the last use must not be dropped while the
//! table is locked.
//!
//! It is charged with its pages as a file is (`Resource::Files`): it outlives its maker, and nobody who ends a process
//! that has reached its limit would free it.
//!
//! Segments are like files without paths. They belong to their [`Maker`]; other users may use them as the bits of the
//! mode for others say.

use alloc::sync::{Arc, Weak};

use abi_unix::Errno;
use abi_unix::types::segment::{self as number, SegmentStatus};
use memory::MemoryObject;
use memory::object::MOST_PAGES;
use spin::Mutex;

use crate::files::keyed::KeyedObjects;
use crate::files::shared_memory;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::capabilities::{Authority, Maker};
use crate::time;

/// Name of the regions of segments.
pub(crate) const NAME: &str = "[segment]";
/// Bytes of a page.
const PAGE: usize = abi_queue::pages::PAGE_SIZE;
/// Bytes for a segment beside its memory: itself, its maker, and its entries in the table.
const BYTES: usize = size_of::<SharedSegment>() + Maker::BYTES + 256;

/// A segment.
#[doc(alias = "shmid_kernel")]
pub(crate) struct SharedSegment {
    id: u32,
    size: usize,
    object: Arc<MemoryObject>,
    maker: Maker,
    state: Mutex<SegmentState>,
    _charge: Charge,
}

/// The part of a segment that changes.
#[derive(Clone, Copy)]
struct SegmentState {
    key: i32,
    mode: u32,
    user: u32,
    group: u32,
    /// Number of the process that has mapped or unmapped it last.
    last: u32,
    /// Times in seconds.
    attached: u64,
    detached: u64,
    changed: u64,
}

/// An entry of the table.
enum SegmentEntry {
    Present(Arc<SharedSegment>),
    /// It was removed, and is mapped.
    Removed(Weak<SharedSegment>),
}

static TABLE: Mutex<KeyedObjects<SegmentEntry>> = Mutex::new(KeyedObjects::new());

impl SegmentEntry {
    fn segment(&self) -> Option<Arc<SharedSegment>> {
        match self {
            SegmentEntry::Present(segment) => Some(segment.clone()),
            SegmentEntry::Removed(segment) => segment.upgrade(),
        }
    }
}

fn seconds() -> u64 {
    time::epoch_ns().saturating_add(time::now_ns()) / 1_000_000_000
}

/// Returns the segment with this number. `EINVAL` if there is none.
pub(crate) fn find(id: i32) -> Result<Arc<SharedSegment>, Errno> {
    let id = u32::try_from(id).map_err(|_| Errno::EINVAL)?;
    let found = TABLE.lock().get(id).and_then(SegmentEntry::segment);
    found.ok_or(Errno::EINVAL)
}

/// Performs `shmget` for a process with this account, as the maker.
#[doc(alias = "ipcget")]
pub(crate) fn get(account: &Arc<Account>, maker: Maker, key: i32, size: usize, flags: u32) -> Result<u32, Errno> {
    let found = TABLE.lock().with_key(key, flags)?.and_then(SegmentEntry::segment);
    if let Some(segment) = found {
        let mode = segment.state.lock().mode;
        segment.maker.permit_use_by(&maker, mode, flags)?;
        return if size > segment.size { Err(Errno::EINVAL) } else { Ok(segment.id) };
    }
    if flags & !(number::CREATE | number::EXCLUSIVE | number::NORESERVE | 0o777) != 0 {
        return Err(Errno::EINVAL);
    }
    let pages = size.div_ceil(PAGE);
    if !(1..=MOST_PAGES).contains(&pages) {
        return Err(Errno::EINVAL);
    }
    let charge = account.charge(Resource::Files, BYTES)?;
    let object = shared_memory::lasting(account, maker.process(), pages)?;
    let state = SegmentState {
        key,
        mode: flags & 0o777,
        user: 0,
        group: 0,
        last: 0,
        attached: 0,
        detached: 0,
        changed: seconds(),
    };
    let mut segment = SharedSegment { id: 0, size, object, maker, state: Mutex::new(state), _charge: charge };
    let mut table = TABLE.lock();
    if !matches!(table.with_key(key, flags), Ok(None)) {
        // Another process was faster.
        drop(table);
        return get(account, segment.maker.clone(), key, size, flags);
    }
    Ok(table.insert(key, |id| {
        segment.id = id;
        SegmentEntry::Present(Arc::new(segment))
    }))
}

impl SharedSegment {
    /// Checks a use with these rights. `EACCES`.
    pub(crate) fn permit_use(&self, caller: &Authority, rights: u32) -> Result<(), Errno> {
        let mode = self.state.lock().mode;
        self.maker.permit_use(caller, mode, rights)
    }

    /// Returns its maker.
    pub(crate) fn maker(&self) -> &Maker {
        &self.maker
    }

    /// Returns its memory.
    pub(crate) fn object(&self) -> &Arc<MemoryObject> {
        &self.object
    }

    /// Returns the number of bytes of its pages.
    pub(crate) fn length(&self) -> usize {
        self.size.next_multiple_of(PAGE)
    }

    /// Records that a process has mapped it.
    pub(crate) fn was_attached_by(&self, process: u32) {
        let mut state = self.state.lock();
        (state.last, state.attached) = (process, seconds());
    }

    /// Records that a process has unmapped it.
    pub(crate) fn was_detached_by(&self, process: u32) {
        let mut state = self.state.lock();
        (state.last, state.detached) = (process, seconds());
    }

    /// Removes it: nobody finds it by its key any more, and it ends with its last mapping.
    #[doc(alias = "IPC_RMID")]
    pub(crate) fn remove(self: &Arc<SharedSegment>) {
        let removed = {
            let mut table = TABLE.lock();
            let key = core::mem::replace(&mut self.state.lock().key, number::PRIVATE);
            table.forget_key(key, self.id);
            self.state.lock().mode |= number::IS_REMOVED;
            table.replace(self.id, SegmentEntry::Removed(Arc::downgrade(self)))
        };
        // The caller has a use of its own, so this one is not the last.
        drop(removed);
    }

    /// Performs `IPC_SET`: its mode, and its owner, by whom it is not known here.
    pub(crate) fn set(&self, status: &SegmentStatus) {
        let mut state = self.state.lock();
        (state.user, state.group) = (status.user, status.group);
        state.mode = state.mode & !0o777 | status.mode & 0o777;
        state.changed = seconds();
    }

    /// Returns what `IPC_STAT` tells, for a caller that has a use of it itself.
    pub(crate) fn status(self: &Arc<SharedSegment>) -> SegmentStatus {
        let state = *self.state.lock();
        let own = if state.mode & number::IS_REMOVED == 0 { 2 } else { 1 };
        SegmentStatus {
            key: state.key,
            user: state.user,
            group: state.group,
            mode: state.mode,
            size: self.size as u64,
            attached: state.attached,
            detached: state.detached,
            changed: state.changed,
            maker: self.maker.process(),
            last: state.last,
            mappings: (Arc::strong_count(self) as u64).saturating_sub(own),
        }
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        // One that never got a number has no entry.
        if matches!(table.get(self.id), Some(SegmentEntry::Removed(_))) {
            table.remove(self.id);
        }
    }
}

/// Returns the first segment with a number from this one on, and its number.
pub(crate) fn next(from: u32) -> Option<(u32, Arc<SharedSegment>)> {
    let table = TABLE.lock();
    table.from(from).find_map(|(id, entry)| Some((id, entry.segment()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment that was removed is found by its number as long as it is used, and by nobody after that.
    #[test]
    fn a_removed_segment_ends_with_its_last_use() {
        crate::testing::run(|program| {
            let account = program.process().account.clone();
            let maker = crate::process::authority::maker(&program.process()).unwrap();
            let id = get(&account, maker, number::PRIVATE, PAGE, 0).unwrap();
            let segment = find(id as i32).unwrap();
            assert_eq!((segment.status().mappings, segment.length()), (0, PAGE));
            segment.remove();
            let second = find(id as i32).unwrap();
            assert_eq!((second.status().mode & number::IS_REMOVED, second.status().mappings), (number::IS_REMOVED, 1));
            drop((segment, second));
            assert_eq!(find(id as i32).err(), Some(Errno::EINVAL));
            assert_eq!(find(-1).err(), Some(Errno::EINVAL));
        });
    }
}
