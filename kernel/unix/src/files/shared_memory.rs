//! Memory that processes have in common: anonymous, or the contents of a file (`mmap` with `MAP_SHARED`).
//!
//! Both are a [`MemoryObject`], which is charged to the process that has made it, a page at a time, and freed in steps
//! when its last mapping has gone, at the expense of that process too. A segment's is charged as a file is, since it
//! stays when its maker ends. The pages of a file that are mapped are moved
//! to the file's object ([`FilePages`]), where reading and writing the file find them.
//!
//! A file that is cut off takes its pages from all spaces ([`LostPages`]): in steps, in which each living process is
//! looked at. That is work for a call that few programs make, and costs mappings nothing.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi_unix::Errno;
use filesystem::CommonPages;
use memory::object::{Absent, ObjectPages, Payer};
use memory::{MemoryObject, OutOfMemory};
use spin::{Mutex, Once};

use crate::files::remains::{self, Remain};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::futex::Futexes;

/// Name of regions with the contents of a file, whose pages are not given back: they could not be read again.
pub(crate) const FILE_NAME: &str = "[file]";
/// Name of regions of memory that a process has in common with its copies.
pub(crate) const SHARED_NAME: &str = "[shared]";

/// Bytes of an object without its pages, and of what belongs to it.
const BYTES: usize =
    size_of::<MemoryObject>() + size_of::<ObjectPayer>() + size_of::<FilePages>() + size_of::<Futexes>() + 64;

/// The account that pays for an object.
struct ObjectPayer {
    charge: Mutex<Charge>,
    /// The process that has made the object.
    owner: u32,
}

impl Payer for ObjectPayer {
    fn pay(&self, bytes: usize) -> Result<(), OutOfMemory> {
        let mut charge = self.charge.lock();
        let amount = charge.amount();
        charge.resize(amount + bytes).map_err(|_| OutOfMemory)
    }

    fn repay(&self, bytes: usize) {
        let mut charge = self.charge.lock();
        let amount = charge.amount();
        charge.shrink_to(amount - bytes);
    }

    fn free(self: Box<Self>, pages: ObjectPages) {
        remains::leave(FreedObject { pages, payer: self });
    }
}

/// Pages of an object that has no mappings any more.
struct FreedObject {
    pages: ObjectPages,
    // Dropped after the pages.
    payer: Box<ObjectPayer>,
}

impl Remain for FreedObject {
    fn owner(&self) -> Option<u32> {
        Some(self.payer.owner)
    }

    fn step(&mut self) -> bool {
        !self.pages.free_some()
    }
}

fn object(account: &Arc<Account>, owner: u32, resource: Resource, absent: Absent) -> Result<MemoryObject, Errno> {
    let charge = Mutex::new(account.charge(resource, BYTES)?);
    let payer = Box::new(ObjectPayer { charge, owner });
    Ok(MemoryObject::new(absent, payer, Arc::new(Futexes::default())))
}

/// Makes anonymous memory of so many pages, for a process with this account and number. A process that gets it by a
/// copy cannot make it larger, at the expense of the one that has made it.
pub(crate) fn anonymous(account: &Arc<Account>, owner: u32, pages: usize) -> Result<Arc<MemoryObject>, Errno> {
    Ok(Arc::new(object(account, owner, Resource::Memory, Absent::Zeros(pages))?))
}

/// Makes anonymous memory of so many pages that stays when its maker, with this account and number, has ended.
pub(super) fn lasting(account: &Arc<Account>, owner: u32, pages: usize) -> Result<Arc<MemoryObject>, Errno> {
    Ok(Arc::new(object(account, owner, Resource::Files, Absent::Zeros(pages))?))
}

/// Makes memory without pages, for bytes that any process may need: the first one, with this number, pays.
pub(crate) fn of_the_first(owner: u32) -> Result<Arc<MemoryObject>, Errno> {
    Ok(Arc::new(object(Account::first(), owner, Resource::Memory, Absent::BeyondTheEnd)?))
}

/// Takes the pages behind the end of an object from the space of the first process from a number on, from an address
/// on: a bounded number. Returns where to go on.
type TakeAway = fn(&Arc<MemoryObject>, (u32, u64)) -> Option<(u32, u64)>;

/// The function that finds the spaces, which belong to processes.
static TAKE_AWAY: Once<TakeAway> = Once::new();

/// Registers that function. Called once.
pub(super) fn register(take_away: TakeAway) {
    TAKE_AWAY.call_once(|| take_away);
}

/// Pages behind the end of an object, which are being taken from all spaces and filled with zeros then.
pub(super) struct LostPages {
    object: Arc<MemoryObject>,
    /// The process and the address to go on with.
    space: Option<(u32, u64)>,
    /// The page to go on with when they are zeros.
    page: usize,
}

impl LostPages {
    /// Begins to take the pages behind the end of an object away.
    pub(super) fn of(object: Arc<MemoryObject>) -> LostPages {
        let page = object.end();
        LostPages { object, space: Some((0, 0)), page }
    }

    /// Does a step; returns whether nothing is left.
    pub(super) fn step(&mut self) -> bool {
        if let Some(space) = self.space {
            self.space = TAKE_AWAY.get().and_then(|take_away| take_away(&self.object, space));
            return false;
        }
        match self.object.zero_behind_the_end(self.page) {
            Some(page) => {
                self.page = page;
                false
            }
            None => true,
        }
    }
}

/// Pages that a call takes from all spaces, and leaves to be taken behind it.
struct TakenPages {
    /// The process that pays.
    owner: u32,
    lost: LostPages,
}

impl Remain for TakenPages {
    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    fn step(&mut self) -> bool {
        self.lost.step()
    }
}

/// The pages of a file that programs map.
pub(super) struct FilePages {
    object: Arc<MemoryObject>,
    /// The process that has mapped it first, and pays.
    owner: u32,
    /// Number of mappings that can write. Changed under the file's lock, but for the ends of mappings.
    writers: AtomicUsize,
}

/// A file's pages, as a mapping has them.
pub(super) struct FileMapping {
    pages: Arc<FilePages>,
    writes: bool,
    _charge: Charge,
}

impl FileMapping {
    /// Bytes of one, and of its use by a mapping.
    const BYTES: usize = size_of::<FileMapping>() + 64;

    /// Makes one with the pages of a file; if it `writes`, it was counted.
    pub(super) fn new(account: &Arc<Account>, pages: Arc<dyn CommonPages>, writes: bool) -> Result<FileMapping, Errno> {
        let pages = pages.as_any().downcast::<FilePages>().map_err(|_| Errno::ENODEV)?;
        match account.charge(Resource::Memory, Self::BYTES) {
            Ok(_charge) => Ok(FileMapping { pages, writes, _charge }),
            Err(error) => {
                pages.end_writing(writes);
                Err(error)
            }
        }
    }

    /// Returns the object of the pages.
    pub(super) fn object(&self) -> Arc<MemoryObject> {
        self.pages.object.clone()
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        self.pages.end_writing(self.writes);
    }
}

impl FilePages {
    /// Makes the memory for pages of a file, for a process with this account and number.
    pub(super) fn make(account: &Arc<Account>, owner: u32) -> Result<Arc<dyn CommonPages>, Errno> {
        let object = Arc::new(object(account, owner, Resource::Memory, Absent::BeyondTheEnd)?);
        Ok(Arc::new(FilePages { object, owner, writers: AtomicUsize::new(0) }))
    }

    fn end_writing(&self, writes: bool) {
        // Release: a seal that finds no writers comes after their last bytes.
        self.writers.fetch_sub(usize::from(writes), Ordering::Release);
    }
}

impl CommonPages for FilePages {
    fn set_end(&self, pages: u64) {
        let is_lower = self.object.set_end(usize::try_from(pages).unwrap_or(usize::MAX));
        // Beside this one, mappings have it.
        if is_lower && Arc::strong_count(&self.object) > 1 {
            remains::leave(TakenPages { owner: self.owner, lost: LostPages::of(self.object.clone()) });
        }
    }

    fn begin_writing(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    fn is_written(&self) -> bool {
        self.writers.load(Ordering::Acquire) > 0
    }

    fn read(&self, page: u64, within: usize, bytes: &mut [u8]) {
        if let Some(frame) = self.object.present(page as usize) {
            frame.read(within, bytes);
        }
    }

    fn write(&self, page: u64, within: usize, bytes: &[u8]) {
        if let Some(frame) = self.object.present(page as usize) {
            frame.write(within, bytes);
        }
    }

    fn clear(&self, page: u64, from: usize) -> bool {
        let Some(frame) = self.object.present(page as usize) else { return false };
        let mut at = from;
        while at < filesystem::PAGE_SIZE {
            at += frame.write(at, &[0; 256]);
        }
        true
    }

    fn make(&self, page: u64, bytes: &[u8; filesystem::PAGE_SIZE]) -> Result<(), filesystem::Error> {
        let frame = self.object.put(page as usize).map_err(|OutOfMemory| filesystem::Error::OutOfMemory)?;
        frame.write(0, bytes);
        Ok(())
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_pays_for_each_page_until_it_is_freed() {
        // Other tests put the amounts of the machine aside.
        let _guard = crate::testing::alone();
        let account = Account::of_the_first();
        let before = account.used(Resource::Memory);
        let payer = ObjectPayer { charge: Mutex::new(account.nothing(Resource::Memory)), owner: 7 };
        let used = || account.used(Resource::Memory) - before;
        assert!(payer.pay(4096).is_ok() && payer.pay(4096).is_ok());
        assert_eq!(used(), 2 * 4096);
        payer.repay(4096);
        assert_eq!(used(), 4096);
        drop(payer);
        assert_eq!(used(), 0);
    }
}
