//! The kernel's own page table, as data.
//!
//! Sv39 (privileged architecture, section "Sv39: Page-Based 39-bit Virtual-Memory System"): three levels of 512
//! entries; an entry with any of R, W, X is a leaf of 4 KiB, 2 MiB or 1 GiB. The table is built once at boot from a
//! fixed pool of frames, with the largest leaves that alignment allows, and then never changes: every address space
//! copies its upper half, so a later change at the top level would not reach the copies.
//!
//! The code contains no pointers, so it is tested on the host.

/// One table: a frame of 512 entries.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
pub struct Table(pub [u64; 512]);

impl Table {
    /// A table that maps nothing.
    pub const EMPTY: Table = Table([0; 512]);
}

/// Permitted accesses to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
    /// Loads and instruction fetches.
    ReadExecute,
    /// Loads and stores of registers of devices, on a machine whose page tables say so: neither cached nor reordered,
    /// whatever the machine does with those addresses by itself (extension Svpbmt).
    Device,
}

const VALID: u64 = 1 << 0;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
const GLOBAL: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
/// Type of memory: input and output.
const DEVICE: u64 = 2 << 61;
/// The bits of a frame's number, where they stand.
const FRAME: u64 = ((1 << 44) - 1) << 10;

impl Permission {
    const fn bits(self) -> u64 {
        // Accessed and dirty are set from the start: otherwise a machine may raise a page fault instead of setting
        // them.
        let always = VALID | READ | GLOBAL | ACCESSED | DIRTY;
        match self {
            Permission::Read => always,
            Permission::ReadWrite => always | WRITE,
            Permission::ReadExecute => always | EXECUTE,
            Permission::Device => always | WRITE | DEVICE,
        }
    }
}

/// The reason why a mapping could not be made. The kernel cannot run without its table, so the caller ends the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The pool has no frame left.
    NoFrame,
    /// A page is mapped there already, or the addresses are not multiples of the page size.
    Overlap,
}

/// A page table in a pool of frames; the first frame is the root.
pub struct Tables<'a> {
    frames: &'a mut [Table],
    used: &'a mut usize,
    physical: u64,
}

/// Bytes that one entry covers, for the levels 0, 1 and 2.
const COVER: [u64; 3] = [1 << 12, 1 << 21, 1 << 30];

impl<'a> Tables<'a> {
    /// Makes the table in `frames`, whose physical address is `physical` and of which the first `used` are in use. With
    /// `used` at 0 it is new and empty.
    pub fn new(frames: &'a mut [Table], used: &'a mut usize, physical: u64) -> Tables<'a> {
        *used = (*used).max(1);
        Tables { frames, used, physical }
    }

    /// Clears root entries `from` to `to - 1`. The tables below them are not reused.
    pub fn clear_root(&mut self, from: usize, to: usize) {
        self.frames[0].0[from..to].fill(0);
    }

    /// Calls `test` while an otherwise empty part of the table maps a page so; that part is empty again afterwards, and
    /// the frames below it are reused. `None` if the page cannot be mapped.
    pub fn with_page<R>(
        &mut self,
        (virtual_address, physical_address): (u64, u64),
        permission: Permission,
        test: impl FnOnce() -> R,
    ) -> Option<R> {
        let used = *self.used;
        let mapped = self.map(virtual_address, physical_address, COVER[0], permission);
        let result = mapped.is_ok().then(test);
        let root = (virtual_address >> 30 & 511) as usize;
        self.clear_root(root, root + 1);
        *self.used = used;
        result
    }

    /// Sets a root entry to a table outside the pool.
    ///
    /// # Errors
    /// [`MapError::Overlap`] if the entry is used.
    pub fn set_root(&mut self, index: usize, entry: u64) -> Result<(), MapError> {
        match &mut self.frames[0].0[index] {
            unused @ 0 => *unused = entry,
            _ => return Err(MapError::Overlap),
        }
        Ok(())
    }

    /// Maps `length` bytes from `virtual_address` to `physical_address`, with the largest pages that fit.
    ///
    /// # Errors
    /// [`MapError`]; pages mapped before the error stay mapped.
    pub fn map(
        &mut self,
        virtual_address: u64,
        physical_address: u64,
        length: u64,
        permission: Permission,
    ) -> Result<(), MapError> {
        if (virtual_address | physical_address | length) & (COVER[0] - 1) != 0 {
            return Err(MapError::Overlap);
        }
        let mut done = 0;
        while done < length {
            let (from, to) = (virtual_address.wrapping_add(done), physical_address + done);
            let level = (0..3)
                .rev()
                .find(|&level| (from | to) & (COVER[level] - 1) == 0 && length - done >= COVER[level])
                .unwrap_or(0);
            *self.entry(from, level)? = (to >> 12) << 10 | permission.bits();
            done += COVER[level];
        }
        Ok(())
    }

    /// Returns the unused entry of this level for an address; makes the tables above it.
    fn entry(&mut self, address: u64, level: usize) -> Result<&mut u64, MapError> {
        let mut table = 0;
        for above in (level + 1..3).rev() {
            let index = (address >> (12 + 9 * above) & 511) as usize;
            let entry = self.frames[table].0[index];
            table = if entry == 0 {
                let new = *self.used;
                *self.frames.get_mut(new).ok_or(MapError::NoFrame)? = Table::EMPTY;
                *self.used += 1;
                self.frames[table].0[index] = (self.physical + new as u64 * 4096) >> 12 << 10 | VALID;
                new
            } else if entry & (READ | WRITE | EXECUTE) != 0 {
                return Err(MapError::Overlap);
            } else {
                ((entry >> 10 << 12) - self.physical) as usize / 4096
            };
        }
        let entry = &mut self.frames[table].0[(address >> (12 + 9 * level) & 511) as usize];
        if *entry != 0 {
            return Err(MapError::Overlap);
        }
        Ok(entry)
    }

    /// Translates an address as the hardware would: the physical address and the permission.
    pub fn lookup(&self, address: u64) -> Option<(u64, Permission)> {
        let mut table = 0;
        for level in (0..3).rev() {
            let entry = self.frames[table].0[(address >> (12 + 9 * level) & 511) as usize];
            if entry & VALID == 0 {
                return None;
            }
            let physical = (entry & FRAME) >> 10 << 12;
            if entry & (READ | WRITE | EXECUTE) != 0 {
                let permission = match (entry & WRITE != 0, entry & EXECUTE != 0) {
                    _ if entry & DEVICE != 0 => Permission::Device,
                    (false, false) => Permission::Read,
                    (true, _) => Permission::ReadWrite,
                    (false, true) => Permission::ReadExecute,
                };
                return Some((physical + (address & (COVER[level] - 1)), permission));
            }
            table = (physical - self.physical) as usize / 4096;
        }
        None
    }
}

/// Calls `each` for every piece of `[from, to)` outside all of the ranges, which may overlap and be in any order.
pub fn complement(from: u64, to: u64, ranges: &[(u64, u64)], mut each: impl FnMut(u64, u64)) {
    let mut at = from;
    while at < to {
        match ranges.iter().filter(|range| range.0 <= at && at < range.1).map(|range| range.1).max() {
            Some(end) => at = end,
            None => {
                let next = ranges.iter().map(|range| range.0).filter(|&start| start > at).min();
                let end = next.unwrap_or(to).min(to);
                each(at, end);
                at = end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: u64 = 0x9000_0000;

    #[test]
    fn maps_with_the_largest_pages_and_finds_them_again() {
        let mut frames = vec![Table::EMPTY; 8];
        let mut used = 0;
        let mut tables = Tables::new(&mut frames, &mut used, POOL);
        let base = 0xffff_ffc0_0000_0000;
        // From one page below 2 MiB to one gigabyte and a page beyond the next gigabyte.
        let (start, length) = (0x4000_0000 - 0x20_1000, 0x20_1000 + 0x4000_0000 + 0x1000);
        tables.map(base + start, start, length, Permission::ReadWrite).unwrap();
        for address in [start, start + 0xfff, start + 0x1000, 0x4000_0000, 0x7fff_ffff, 0x8000_0000] {
            assert_eq!(tables.lookup(base + address), Some((address, Permission::ReadWrite)), "{address:x}");
        }
        assert_eq!(tables.lookup(base + start - 1), None);
        assert_eq!(tables.lookup(base + start + length), None);
        // Root, two middle tables and two leaf tables.
        assert_eq!(used, 5);
    }

    #[test]
    fn a_page_for_a_test_leaves_nothing() {
        let mut frames = vec![Table::EMPTY; 3];
        let mut used = 0;
        let mut tables = Tables::new(&mut frames, &mut used, POOL);
        for _ in 0..2 {
            assert_eq!(tables.with_page((0x4000_1000, 0x8000_0000), Permission::Device, || 5), Some(5));
            assert_eq!(tables.lookup(0x4000_1000), None);
        }
        assert_eq!(tables.with_page((0x4000_1001, 0x8000_0000), Permission::Device, || 5), None);
        tables.map(0x4000_1000, 0x8000_0000, 0x1000, Permission::Device).unwrap();
        assert_eq!(tables.lookup(0x4000_1004), Some((0x8000_0004, Permission::Device)));
        assert_eq!(tables.frames[2].0[1] >> 61, 2);
        assert_eq!(used, 3);
    }

    #[test]
    fn refuses_overlaps_and_an_empty_pool() {
        let mut frames = vec![Table::EMPTY; 2];
        let mut used = 0;
        let mut tables = Tables::new(&mut frames, &mut used, POOL);
        tables.map(0x20_0000, 0x20_0000, 0x20_0000, Permission::Read).unwrap();
        assert_eq!(tables.map(0x20_0000, 0, 0x20_0000, Permission::Read), Err(MapError::Overlap));
        assert_eq!(tables.map(0x20_1000, 0, 0x1000, Permission::Read), Err(MapError::Overlap));
        assert_eq!(tables.map(0x1000, 0, 0x1000, Permission::Read), Err(MapError::NoFrame));
        assert_eq!(tables.map(0x1001, 0, 0x1000, Permission::Read), Err(MapError::Overlap));
    }

    #[test]
    fn the_complement_is_the_rest_of_the_addresses() {
        let mut pieces = vec![];
        complement(0, 100, &[(50, 60), (10, 20), (15, 30), (90, 200)], |from, to| pieces.push((from, to)));
        assert_eq!(pieces, [(0, 10), (30, 50), (60, 90)]);
    }
}
