//! The kernel's access to physical memory.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::reference::UNIT;
use crate::{PageTable, Ref, Words};

/// A type of object in retyped memory. Only the types of this crate implement it, since PLAIN holds for them.
pub trait Object: sealed::Object {}
impl<T: sealed::Object> Object for T {}

pub(crate) mod sealed {
    pub trait Object {}
    impl Object for crate::Slot {}
    impl Object for crate::Endpoint {}
    impl Object for crate::Notification {}
    impl Object for crate::Tcb {}
    impl Object for crate::PageTable {}
    impl Object for crate::AsidPool {}
    impl Object for crate::Words {}
    impl Object for crate::PriorityQueues {}
}

/// First and end address of memory for objects; empty before [`permit`].
static FIRST: AtomicU64 = AtomicU64::new(u64::MAX);
static END: AtomicU64 = AtomicU64::new(0);

#[cfg(target_os = "none")]
mod place {
    /// Virtual address of physical address 0. A constant, because every access to an object adds it.
    pub const BASE: usize = 0xffff_ffc0_0000_0000;

    #[inline(always)]
    pub fn base() -> usize {
        BASE
    }
}

#[cfg(not(target_os = "none"))]
mod place {
    use std::sync::OnceLock;

    /// Size of the fake memory of all tests of a process. The host allocates its pages at the first access.
    const SIZE: usize = 2 << 30;
    /// Alignment of that memory: the size of a large page.
    const ALIGNMENT: usize = 1 << 21;
    static BASE: OnceLock<usize> = OnceLock::new();

    #[inline]
    pub fn base() -> usize {
        *BASE.get_or_init(|| {
            // Of the alignment of words, since an allocator clears memory of a larger alignment by writing all of it.
            let layout = std::alloc::Layout::from_size_align(SIZE + ALIGNMENT, 16).expect("a power of two");
            // SAFETY: the layout is not empty.
            let start = unsafe { std::alloc::alloc_zeroed(layout) } as usize;
            assert_ne!(start, 0, "the host has no memory for the fake machine");
            // The difference wraps if the host allocates the memory below `FAKE_BASE`.
            start.next_multiple_of(ALIGNMENT).wrapping_sub(super::FAKE_BASE as usize)
        })
    }
}

/// The physical address of the first byte of fake memory.
#[cfg(not(target_os = "none"))]
pub const FAKE_BASE: u64 = 0x8000_0000;

/// Free pieces from [`give_back`], by the logarithm of their size.
#[cfg(not(target_os = "none"))]
static SPARE: std::sync::Mutex<[Vec<u64>; 32]> = std::sync::Mutex::new([const { Vec::new() }; 32]);

/// For tests: allocates a piece of the fake machine's memory, `1 << bits` bytes, aligned to its size and zeroed.
#[cfg(not(target_os = "none"))]
pub fn fake(bits: u32) -> u64 {
    if let Some(start) = spare()[bits as usize].pop() {
        clear(start, 1 << bits);
        return start;
    }
    static NEXT: AtomicU64 = AtomicU64::new(FAKE_BASE);
    place::base();
    let size = 1 << bits;
    let before = NEXT.fetch_update(Relaxed, Relaxed, |next: u64| Some(next.next_multiple_of(size) + size));
    let start = before.expect("the closure always answers").next_multiple_of(size);
    assert!(start + size <= FAKE_BASE + (2 << 30), "the tests use more memory than the fake machine has");
    permit(FAKE_BASE, FAKE_BASE + (2 << 30));
    start
}

/// For tests: frees a piece from [`fake`]. The caller keeps LIVE-OBJECT: no reference to it exists any more.
#[cfg(not(target_os = "none"))]
pub fn give_back(start: u64, bits: u32) {
    spare()[bits as usize].push(start);
}

#[cfg(not(target_os = "none"))]
fn spare() -> std::sync::MutexGuard<'static, [Vec<u64>; 32]> {
    // A test that failed meanwhile has left the lists intact: each change of them is one push or pop.
    SPARE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Permits objects in a range of memory; called once, at boot. BOOT-MEMORY: these addresses are in the direct map for
/// ever, and the memory has no other user, except for pages that programs access.
pub fn permit(first: u64, end: u64) {
    FIRST.fetch_min(first, Relaxed);
    END.fetch_max(end, Relaxed);
}

#[inline(always)]
pub(crate) fn pointer(physical: u64) -> *mut u8 {
    place::base().wrapping_add(physical as usize) as *mut u8
}

/// Returns the physical address of an object in the direct map.
#[inline(always)]
pub fn physical_of<T>(object: &T) -> u64 {
    (core::ptr::from_ref(object) as usize).wrapping_sub(place::base()) as u64
}

#[inline(always)]
fn check(physical: u64, length: u64, alignment: u64) {
    let last = END.load(Relaxed).saturating_sub(length);
    if physical < FIRST.load(Relaxed) || physical > last || !physical.is_multiple_of(alignment) {
        refuse(physical);
    }
}

#[cold]
#[inline(never)]
fn refuse(physical: u64) -> ! {
    panic!("no object can be at {physical:#x}")
}

/// Makes a reference to the object that is at this physical address from now on. Retyping and boot call this, and keep
/// LIVE-OBJECT: the memory holds no other object and belongs to no program, and it is cleared or already holds such an
/// object.
///
/// # Panics
/// If the address is outside the memory for objects or not aligned.
#[inline(always)]
pub fn claim<T: Object>(physical: u64) -> Ref<T> {
    check(physical, size_of::<T>() as u64, (align_of::<T>() as u64).max(UNIT));
    Ref::from_raw((physical / UNIT) as u32).expect("checked")
}

/// References to objects in a row, at equal distances.
pub struct Row<T> {
    first: Ref<T>,
    units: u32,
}

impl<T> Row<T> {
    /// Returns the object with this index, which must be smaller than the number of claimed objects.
    #[inline(always)]
    pub fn get(&self, index: u64) -> Ref<T> {
        self.first.further(index as u32 * self.units)
    }
}

/// As [`claim`], for `count` objects in a row, each in `1 << bits` bytes of its own.
///
/// # Panics
/// As `claim`, or if an object is larger than `1 << bits` bytes.
#[inline(always)]
pub fn claim_row<T: Object>(physical: u64, count: u64, bits: u32) -> Row<T> {
    check(physical, count << bits, (align_of::<T>() as u64).max(UNIT));
    assert!(size_of::<T>() as u64 <= 1 << bits, "objects overlap");
    let first = Ref::from_raw((physical / UNIT) as u32).expect("checked");
    Row { first, units: ((1u64 << bits) / UNIT) as u32 }
}

/// As [`claim`], for the first of `count` slots.
///
/// # Panics
/// As `claim`.
#[inline(always)]
pub fn claim_slice(physical: u64, count: u64) -> Ref<crate::Slot> {
    check(physical, count * size_of::<crate::Slot>() as u64, size_of::<crate::Slot>() as u64);
    claim(physical)
}

/// Number of bytes that one round of the clearing loop clears.
const ROW: u64 = 64;

/// Fills memory with zeros: `length` bytes, whole words. The caller keeps LIVE-OBJECT: the memory holds no object any
/// more.
///
/// # Panics
/// If the range is outside the memory for objects.
#[inline(always)]
pub fn clear(physical: u64, length: u64) {
    check(physical, length, 8);
    let start = pointer(physical);
    let rows = length / ROW;
    for row in 0..rows {
        // SAFETY: the range is memory in the direct map (BOOT-MEMORY) without references to it (the caller's promise),
        // so accesses by programs that still map it do not violate Rust's rules. Volatile, because the compiler would
        // otherwise call its function for filling bytes, which takes several times as many instructions.
        unsafe { start.add((row * ROW) as usize).cast::<[u64; ROW as usize / 8]>().write_volatile([0; _]) };
    }
    // SAFETY: as above.
    unsafe { core::ptr::write_bytes(start.add((rows * ROW) as usize), 0, (length % ROW) as usize) };
}

/// Copies bytes to memory without references to it: the first program's image and the device tree, at boot.
///
/// # Panics
/// If the range is outside the memory for objects.
pub fn copy_in(physical: u64, bytes: &[u8]) {
    check(physical, bytes.len() as u64, 1);
    let target = pointer(physical);
    // SAFETY: as for `clear`; the source is not in that range, as it is borrowed and the range is not.
    unsafe { core::ptr::copy(bytes.as_ptr(), target, bytes.len()) };
}

/// Returns the contents of a page as words that are read and written one by one: programs may change them at any time.
#[inline]
pub(crate) fn words(physical: u64) -> Ref<Words> {
    claim(physical)
}

/// Makes earlier writes to page-table entries visible to the page-table walkers of all harts.
#[inline(always)]
pub fn synchronise_page(_: Ref<PageTable>) {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}
