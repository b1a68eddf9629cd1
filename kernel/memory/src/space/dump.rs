//! Address spaces as core files show them: their regions, and the pages that are there.
//!
//! Nothing here makes a page. A page that was never touched reads as zeros, and is a hole in the file.

use core::ops::Range;

use super::{AddressSpace, Backing, MapError, Region, RegionView, UserBytes};
use crate::frames::{self, SharedFrame};
use crate::sv39::Edge;
use crate::{PAGE_SIZE, bytes};

/// The owner of a region's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOwner {
    /// The process alone.
    Process,
    /// An object, which several processes may map.
    Object,
    /// The kernel, which shares them with the process.
    Kernel,
    /// A device.
    Device,
}

/// A region with the properties that decide whether a core file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedRegion {
    /// The region.
    pub view: RegionView,
    /// The owner of its pages.
    pub owner: PageOwner,
}

impl AddressSpace {
    /// Returns the first region that ends above the address.
    #[must_use]
    pub fn dumped_region_above(&self, address: u64) -> Option<DumpedRegion> {
        let region = self.regions.get(self.regions.above(address))?;
        let owner = match region.backing {
            Backing::Anonymous => PageOwner::Process,
            Backing::Object(_) => PageOwner::Object,
            Backing::Shared { .. } => PageOwner::Kernel,
            Backing::Device(_) => PageOwner::Device,
        };
        Some(DumpedRegion { view: Self::view(region), owner })
    }

    /// Excludes a range from core files, or includes it again.
    ///
    /// # Errors
    /// See [`MapError`]; [`MapError::NotMapped`] if a part of it is not mapped.
    #[doc(alias = "MADV_DONTDUMP")]
    pub fn exclude_from_dumps(&mut self, range: Range<u64>, excludes: bool) -> Result<(), MapError> {
        self.change_regions(&range, |_| Ok(()), |region| region.is_undumped = excludes)
    }

    /// Looks for the first page of a range that is there: returns it, or where the next look begins. Each look is a
    /// bounded amount of work; the end of the range is where there is none.
    ///
    /// # Errors
    /// The address with which the next look begins.
    pub fn next_dumped_page(&self, range: Range<u64>) -> Result<u64, u64> {
        let Some(region) = self.regions.get(self.regions.above(range.start)) else { return Err(range.end) };
        let start = range.start.max(region.start);
        let part = start..range.end.min(region.end);
        if part.is_empty() {
            return Err(range.end);
        }
        let within = |page: u64| if page < part.end { Ok(page) } else { Err(part.end) };
        match &region.backing {
            Backing::Anonymous => {
                let part = self.table.reach(part, Edge::Start);
                self.table.first_page(part.clone()).ok_or(part.end)
            }
            Backing::Shared { .. } => within(start),
            Backing::Device(_) => Err(part.end),
            Backing::Object(mapped) => {
                let address = |page: usize| region.start + (page as u64).saturating_sub(mapped.first) * PAGE_SIZE;
                let first = mapped.first + (start - region.start) / PAGE_SIZE;
                match mapped.object.next_present(usize::try_from(first).unwrap_or(usize::MAX)) {
                    Ok(page) => within(address(page)),
                    Err(page) => Err(address(page).clamp(start + PAGE_SIZE, part.end)),
                }
            }
        }
    }

    /// Copies a page, whatever access the program has to it. Returns `false` if it is not there.
    pub fn copy_dumped_page(&self, page: u64, to: &mut [u8]) -> bool {
        let Some(region) = self.regions.at(page) else { return false };
        if let Some(frame) = kept_frame(region, page) {
            return frame.read(0, to) == to.len();
        }
        let address = self.table.page_at(page).filter(|address| frames::manages(&(*address..*address + PAGE_SIZE)));
        let Some(address) = address.filter(|_| matches!(region.backing, Backing::Anonymous)) else { return false };
        let length = to.len().min(PAGE_SIZE as usize);
        // SAFETY: the page's frame is kept by the page table as long as `self` is borrowed, and the length is no more
        // than a page's.
        let bytes = unsafe { UserBytes::from_pointer(bytes::pointer(address), length) };
        bytes.copy_to(to) == to.len()
    }
}

/// Returns the frame of a page that a region keeps, or the object that it maps.
fn kept_frame(region: &Region, page: u64) -> Option<SharedFrame> {
    let number = (page - region.start) / PAGE_SIZE;
    match &region.backing {
        Backing::Shared { frames, .. } => frames.get(number as usize).cloned(),
        Backing::Object(mapped) => mapped.object.present(usize::try_from(mapped.first + number).ok()?),
        Backing::Anonymous | Backing::Device(_) => None,
    }
}
