//! The call `mremap`: a mapping gets another length or another place.
//!
//! Mappings shrink and grow in place where they can. Pages in common are mapped anew at their new place, since they
//! belong to their object. Private pages are copied, in steps: the page tables that have them belong to their place.
//! Ranges that were never touched are passed over.
//!
//! Rejected: moving the entries of page tables. Few programs move private memory, and each step would have to keep the
//! harts away that use either place.

use core::ops::Range;

use abi_unix::Errno;
use abi_unix::types::{mapping, remapping};
use memory::space::{MapError, ObjectUse, Placement, RegionView};
use memory::sv39::{Access, Protection};

use crate::asynchronous::user_interrupts;
use crate::calls::call::{Call, Decoding, kept_steps};
use crate::calls::mapping::{Change, Kept, RangeParts, map_in_place_of, place, require_addresses, round_up};
use crate::files::shared_memory::FILE_NAME;
use crate::process::Process;
use crate::process::user::{USER_END, map_error};
use crate::scheduling::steps;

const PAGE: usize = abi_queue::pages::PAGE_SIZE;

/// Number of pages that one step copies.
const PAGES_AT_A_TIME: usize = 2;

/// A checked `mremap`.
struct Remapping {
    old: usize,
    old_length: usize,
    new_length: usize,
    may_move: bool,
    /// Where the range has to go.
    target: Option<Placement>,
}

/// Performs `mremap`.
#[inline(never)]
pub(super) fn remap(call: Call<'_>) -> Decoding {
    let process = call.admitted()?.clone();
    let wanted = Remapping::check(&call)?;
    Ok(kept_steps(call.number, async move { wanted.perform(&process).await }))
}

impl Remapping {
    fn check(call: &Call<'_>) -> Result<Remapping, Errno> {
        let (old, flags) = (call.address(0), call.unsigned(3));
        let (may_move, is_fixed) = (flags & remapping::MAY_MOVE != 0, flags & remapping::FIXED != 0);
        if flags & !(remapping::MAY_MOVE | remapping::FIXED) != 0 || is_fixed && !may_move {
            return Err(Errno::EINVAL);
        }
        let (old_length, new_length) = (round_up(call.length(1))?, round_up(call.length(2))?);
        let is_reserved = user_interrupts::has_send_pages(call.process(), old, old_length);
        if !old.is_multiple_of(PAGE) || new_length == 0 || is_reserved {
            return Err(Errno::EINVAL);
        }
        if old_length > USER_END - old.min(USER_END) {
            return Err(Errno::EFAULT);
        }
        let target = match is_fixed {
            true => {
                let to = call.address(4);
                if to < old + old_length && old < to.saturating_add(new_length) {
                    return Err(Errno::EINVAL);
                }
                Some(place(call.process(), to, new_length, mapping::FIXED)?)
            }
            false => None,
        };
        Ok(Remapping { old, old_length, new_length, may_move, target })
    }

    fn old(&self) -> Range<u64> {
        self.old as u64..(self.old + self.old_length) as u64
    }

    async fn perform(mut self, process: &Process) -> Result<usize, Errno> {
        process.space().lock().region_at(self.old as u64).ok_or(Errno::EFAULT)?;
        if let Some(Placement::Fixed(to)) = self.target {
            apply(Change::Unmap, process, to as usize, self.new_length).await?;
        }
        if self.old_length > self.new_length {
            let rest = self.old_length - self.new_length;
            apply(Change::Unmap, process, self.old + self.new_length, rest).await?;
            self.old_length = self.new_length;
        }
        if self.target.is_none() && self.old_length == self.new_length {
            return Ok(self.old);
        }
        let (region, object) = {
            let space = process.space().lock();
            // Without a length it is mapped a second time, which pages of its own cannot be.
            let range = if self.old_length == 0 { self.old as u64..self.old as u64 + 1 } else { self.old() };
            space.uniform(&range).ok_or(Errno::EFAULT)?
        };
        if self.old_length == 0 && object.is_none() {
            return Err(Errno::EINVAL);
        }
        // The contents of a private file mapping were copied when it was mapped, and its file is not known any more.
        if object.is_none() && region.name == FILE_NAME && self.old_length < self.new_length {
            return Err(Errno::ENOMEM);
        }
        require_addresses(process, self.new_length - self.old_length)?;
        if let Some(object) = &object
            && let Some(keeps) = object.keeps.clone()
            && let Ok(keeps) = keeps.downcast::<Kept>()
        {
            let pages = (self.old_length / PAGE) as u64..(self.new_length / PAGE) as u64;
            keeps.share_pages(process, object.first + pages.start..object.first + pages.end).await?;
        }
        if self.target.is_none() && self.old_length > 0 && self.grow(process, &region, object.clone())? {
            return Ok(self.old);
        }
        if !self.may_move {
            return Err(Errno::ENOMEM);
        }
        match object {
            Some(object) => self.map_again(process, &region, object).await,
            None => self.copy(process, &region).await,
        }
    }

    /// Maps what is missing behind the range; returns `false` if something else is there.
    fn grow(&self, process: &Process, region: &RegionView, object: Option<ObjectUse>) -> Result<bool, Errno> {
        let (behind, missing) = (self.old + self.old_length, self.new_length - self.old_length);
        let is_outside = self.new_length > USER_END - self.old;
        if is_outside || user_interrupts::has_send_pages(process, behind, missing) {
            return Ok(false);
        }
        let at = Placement::FixedIfFree(behind as u64);
        let grown = process.space().lock().map_like(at, missing as u64, region, self.behind(object).as_ref());
        match grown {
            Ok((_, changed)) => {
                usermode::flush(changed);
                Ok(true)
            }
            Err(MapError::Occupied) => Ok(false),
            Err(error) => Err(map_error(error)),
        }
    }

    /// Returns the pages of an object that come behind the range.
    fn behind(&self, object: Option<ObjectUse>) -> Option<ObjectUse> {
        object.map(|object| ObjectUse { first: object.first + (self.old_length / PAGE) as u64, ..object })
    }

    /// Maps an object's pages at their new place, and then no more at the old one.
    async fn map_again(self, process: &Process, region: &RegionView, object: ObjectUse) -> Result<usize, Errno> {
        let start = self.map_anew(process, region, Some(object)).await?;
        let unmapped = apply(Change::Unmap, process, self.old, self.old_length).await;
        self.undo_unless(unmapped, process, start).await
    }

    /// Copies private pages to a new place.
    async fn copy(self, process: &Process, region: &RegionView) -> Result<usize, Errno> {
        let writable = RegionView { protection: Protection::ReadWrite, ..region.clone() };
        let start = self.map_anew(process, &writable, None).await?;
        let copied = self.copy_to(process, region, start).await;
        if copied.is_err() {
            let _ = apply(Change::Protect(region.protection), process, self.old, self.old_length).await;
        }
        self.undo_unless(copied, process, start).await
    }

    /// Copies pages to their new place, gives that its protection, and unmaps the old one.
    async fn copy_to(&self, process: &Process, region: &RegionView, start: usize) -> Result<(), Errno> {
        if !region.protection.allows(Access::Read) {
            apply(Change::Protect(Protection::Read), process, self.old, self.old_length).await?;
        }
        // A step ends here: so far it has looked at regions, and mapped one.
        steps::pause(process).await;
        let mut rest = self.old();
        while !rest.is_empty() {
            let to = start as u64 + (rest.start - self.old as u64);
            let copied = process.space().lock().copy_some(rest.clone(), to, PAGES_AT_A_TIME);
            rest.start = copied.map_err(|_| Errno::ENOMEM)?;
            steps::pause(process).await;
        }
        if region.protection != Protection::ReadWrite {
            apply(Change::Protect(region.protection), process, start, self.new_length).await?;
        }
        apply(Change::Unmap, process, self.old, self.old_length).await
    }

    /// Maps the range at its new place.
    async fn map_anew(
        &self,
        process: &Process,
        region: &RegionView,
        object: Option<ObjectUse>,
    ) -> Result<usize, Errno> {
        let (to, length) = (self.target.unwrap_or(Placement::Anywhere), self.new_length);
        let map = |at| process.space().lock().map_like(at, length as u64, region, object.as_ref());
        map_in_place_of(process, to, length, map).await
    }

    /// Returns the new place, which is unmapped again after a failure.
    async fn undo_unless(&self, done: Result<(), Errno>, process: &Process, start: usize) -> Result<usize, Errno> {
        if done.is_err() {
            apply(Change::Unmap, process, start, self.new_length).await?;
        }
        done.map(|()| start)
    }
}

/// Changes a range in steps.
async fn apply(change: Change, process: &Process, start: usize, length: usize) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    let rest = RangeParts::new(&process.space().lock(), start, length);
    change.go_on(process, rest).await
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{advice, protection};

    use super::*;
    use crate::testing::{Program, run};

    const READ_WRITE: usize = (protection::READ | protection::WRITE) as usize;
    const ANONYMOUS: usize = (mapping::PRIVATE | mapping::ANONYMOUS) as usize;
    const COMMON: usize = (mapping::SHARED | mapping::ANONYMOUS) as usize;
    const MAY_MOVE: usize = 1;
    const FIXED: usize = 3;
    /// Free addresses.
    const BASE: usize = 0x10_0000_0000;

    fn map(program: &mut Program, address: usize, pages: usize, flags: usize) -> usize {
        let flags = if address == 0 { flags } else { flags | mapping::FIXED as usize };
        program.call(SystemCall::Map, [address, pages * PAGE, READ_WRITE, flags, usize::MAX, 0]).unwrap()
    }

    fn remap(program: &mut Program, old: usize, pages: [usize; 2], flags: usize, to: usize) -> Result<usize, Errno> {
        program.call(SystemCall::Remap, [old, pages[0] * PAGE, pages[1] * PAGE, flags, to])
    }

    fn can_read(program: &Program, address: usize) -> bool {
        program.process().copy_in(address, &mut [0]).is_ok()
    }

    #[test]
    fn ranges_that_cannot_be_remapped_are_refused() {
        run(|program| {
            let start = map(program, BASE, 4, ANONYMOUS);
            let far = BASE + 64 * PAGE;
            for (old, pages, flags, to, error) in [
                (start, [4, 8], 8, 0, Errno::EINVAL),
                (start, [4, 8], 2, far, Errno::EINVAL),
                (start, [4, 4], 5, 0, Errno::EINVAL),
                (start + 1, [4, 8], MAY_MOVE, 0, Errno::EINVAL),
                (start, [4, 0], MAY_MOVE, 0, Errno::EINVAL),
                (start, [0, 4], MAY_MOVE, 0, Errno::EINVAL),
                (start, [4, 8], FIXED, far + 1, Errno::EINVAL),
                (start, [4, 8], FIXED, start + PAGE, Errno::EINVAL),
                (start, [4, 8], FIXED, start - 4 * PAGE, Errno::EINVAL),
                (start, [4, USER_END / PAGE], FIXED, far, Errno::EINVAL),
                (start, [8, 16], MAY_MOVE, 0, Errno::EFAULT),
                (far, [1, 2], MAY_MOVE, 0, Errno::EFAULT),
                (far, [2, 1], 0, 0, Errno::EFAULT),
                (start, [4, USER_END / PAGE], MAY_MOVE, 0, Errno::ENOMEM),
                (start, [4, USER_END / PAGE + 1], MAY_MOVE, 0, Errno::ENOMEM),
                (start, [4, usize::MAX / PAGE], MAY_MOVE, 0, Errno::ENOMEM),
                (start, [4, usize::MAX / PAGE], 0, 0, Errno::ENOMEM),
            ] {
                assert_eq!(remap(program, old, pages, flags, to), Err(error), "{old:#x} {pages:?} {flags} {to:#x}");
            }
            // Half of it with other rights is two ranges.
            assert_eq!(program.call(SystemCall::Protect, [start, PAGE, 1]), Ok(0));
            assert_eq!(remap(program, start, [4, 8], MAY_MOVE, 0), Err(Errno::EFAULT));
        });
    }

    #[test]
    fn private_memory_shrinks_grows_and_moves_with_its_bytes() {
        run(|program| {
            let start = map(program, BASE, 4, ANONYMOUS);
            program.write(start + 3 * PAGE, &[3]);
            program.write(start, &[1]);
            assert_eq!(remap(program, start, [4, 4], 0, 0), Ok(start));
            assert_eq!(remap(program, start, [4, 6], 0, 0), Ok(start), "the place behind it is free");
            program.write(start + 5 * PAGE, &[5]);
            assert_eq!(remap(program, start, [6, 5], 0, 0), Ok(start));
            assert!(can_read(program, start + 4 * PAGE) && !can_read(program, start + 5 * PAGE));
            let other = map(program, start + 6 * PAGE, 1, ANONYMOUS);
            assert_eq!(remap(program, start, [5, 7], 0, 0), Err(Errno::ENOMEM));
            let moved = remap(program, start, [5, 7], MAY_MOVE, 0).unwrap();
            assert!(moved != start && !can_read(program, start));
            let bytes = [0, 3, 5, 6].map(|page| program.read(moved + page * PAGE, 1)[0]);
            assert_eq!(bytes, [1, 3, 0, 0]);
            // Over another mapping, shorter, and without rights, which stay.
            assert_eq!(program.call(SystemCall::Protect, [moved, 7 * PAGE, 0]), Ok(0));
            program.write(other, &[9]);
            assert_eq!(remap(program, moved, [7, 4], FIXED, other), Ok(other));
            assert!(!can_read(program, other) && !can_read(program, moved));
            assert_eq!(program.call(SystemCall::Protect, [other, 4 * PAGE, READ_WRITE]), Ok(0));
            let bytes = [0, 1, 3].map(|page| program.read(other + page * PAGE, 1)[0]);
            assert_eq!(bytes, [1, 0, 3]);
        });
    }

    #[test]
    fn memory_that_no_core_file_has_keeps_that_where_it_goes() {
        run(|program| {
            let start = map(program, BASE, 2, ANONYMOUS);
            map(program, start + 4 * PAGE, 1, ANONYMOUS);
            let advice = advice::DONTDUMP as usize;
            assert_eq!(program.call(SystemCall::AdviseMemory, [start, 2 * PAGE, advice]), Ok(0));
            assert_eq!(remap(program, start, [2, 4], 0, 0), Ok(start), "in its place");
            let moved = remap(program, start, [4, 8], MAY_MOVE, 0).unwrap();
            let views = [start + 4 * PAGE, moved].map(|address| {
                let view = program.process().space().lock().region_at(address as u64).unwrap();
                (view.range.start as usize, view.range.end as usize, view.is_undumped)
            });
            assert_eq!(views, [(start + 4 * PAGE, start + 5 * PAGE, false), (moved, moved + 8 * PAGE, true)]);
        });
    }

    #[test]
    fn pages_that_were_never_touched_are_not_made_by_a_move() {
        run(|program| {
            let start = map(program, BASE, 64, ANONYMOUS);
            program.write(start + 40 * PAGE, &[4]);
            let process = program.process();
            let resident = process.space().lock().resident_frames();
            assert_eq!(remap(program, start, [64, 64], FIXED, BASE + 128 * PAGE), Ok(BASE + 128 * PAGE));
            assert_eq!(process.space().lock().resident_frames(), resident);
            assert_eq!(program.read(BASE + 168 * PAGE, 1), [4]);
            // Of gigabytes, the touched pages alone are work.
            let (from, to, pages) = (BASE + (1 << 32), BASE + (1 << 33), (1 << 32) / PAGE);
            map(program, from, pages, ANONYMOUS);
            program.write(from + (pages - 1) * PAGE, &[5]);
            assert_eq!(remap(program, from, [pages, pages], FIXED, to), Ok(to));
            assert_eq!(program.read(to + (pages - 1) * PAGE, 1), [5]);
            assert_eq!(process.space().lock().resident_frames(), resident + 1);
        });
    }

    #[test]
    fn common_memory_stays_common_at_its_new_place() {
        run(|program| {
            let start = map(program, BASE, 2, COMMON);
            program.write(start + PAGE, &[7]);
            let second = remap(program, start + PAGE, [0, 1], MAY_MOVE, 0).unwrap();
            assert_eq!(program.read(second, 1), [7]);
            program.write(second, &[8]);
            assert_eq!(program.read(start + PAGE, 1), [8]);
            let moved = remap(program, start, [2, 3], FIXED, BASE + 32 * PAGE).unwrap();
            assert!(!can_read(program, start));
            program.write(moved + PAGE, &[9]);
            assert_eq!(program.read(second, 1), [9]);
            assert!(!can_read(program, moved + 2 * PAGE), "the memory has as many pages as it was made with");
            // One that has grown in place is one range.
            assert_eq!(remap(program, moved, [3, 4], 0, 0), Ok(moved));
            let last = remap(program, moved, [4, 5], FIXED, BASE).unwrap();
            assert_eq!([0, 1].map(|page| program.read(last + page * PAGE, 1)[0]), [0, 9]);
            for pages in 5..200 {
                assert_eq!(remap(program, last, [pages, pages + 1], 0, 0), Ok(last));
            }
            let far = remap(program, last, [200, 201], FIXED, BASE + 0x1000 * PAGE).unwrap();
            assert_eq!([0, 1].map(|page| program.read(far + page * PAGE, 1)[0]), [0, 9]);
        });
    }

    #[test]
    fn pages_that_may_only_be_executed_move_with_their_bytes() {
        run(|program| {
            let start = map(program, BASE, 2, ANONYMOUS);
            program.write(start + PAGE, &[5]);
            let execute = protection::EXECUTE as usize;
            assert_eq!(program.call(SystemCall::Protect, [start, 2 * PAGE, execute]), Ok(0));
            let moved = remap(program, start, [2, 2], FIXED, BASE + 8 * PAGE).unwrap();
            assert_eq!(program.call(SystemCall::Protect, [moved, 2 * PAGE, READ_WRITE]), Ok(0));
            assert_eq!(program.read(moved + PAGE, 1), [5]);
        });
    }

    #[test]
    fn a_private_mapping_of_a_file_moves_and_does_not_grow() {
        run(|program| {
            let file = program.create(b"/tmp/remapped-too\0", abi_unix::types::open::RDWR);
            assert_eq!(program.write_to(file, &[6; PAGE]), Ok(PAGE));
            let private = [0, 2 * PAGE, READ_WRITE, mapping::PRIVATE as usize, file, 0];
            let start = program.call(SystemCall::Map, private).unwrap();
            assert_eq!(remap(program, start, [2, 3], MAY_MOVE, 0), Err(Errno::ENOMEM));
            let moved = remap(program, start, [2, 1], FIXED, BASE).unwrap();
            assert_eq!(program.read(moved, 1), [6]);
            program.remove(b"/tmp/remapped-too\0");
        });
    }

    #[test]
    fn a_mapping_of_a_file_grows_with_the_file() {
        run(|program| {
            let file = program.create(b"/tmp/remapped\0", abi_unix::types::open::RDWR);
            assert_eq!(program.write_to(file, &[6; PAGE]), Ok(PAGE));
            let shared = [0, PAGE, READ_WRITE, mapping::SHARED as usize, file, 0];
            let start = program.call(SystemCall::Map, shared).unwrap();
            assert_eq!(program.call(SystemCall::Truncate, [file, 3 * PAGE]), Ok(0));
            let grown = remap(program, start, [1, 3], MAY_MOVE, 0).unwrap();
            program.write(grown + 2 * PAGE, &[1, 2]);
            assert_eq!(program.read(grown, 1), [6]);
            let found = program.place(2);
            assert_eq!(program.call(SystemCall::ReadAt, [file, found, 2, 2 * PAGE]), Ok(2));
            assert_eq!(program.read(found, 2), [1, 2]);
            program.remove(b"/tmp/remapped\0");
        });
    }
}
