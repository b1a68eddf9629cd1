//! Requests that wait until the disk has read what they need.
//!
//! The bytes of a file that is not in memory are found in two steps. First the volume tells where they lie on the disk,
//! which it most often knows without the disk; the disk's cache is asked for all these pages at once, and the request
//! waits aside. When the pages are there the request is done, as if they had been there before: nothing that happens
//! to the file meanwhile can give it the bytes of another one. Without an answer to the first question, the request is
//! done at once, and waits for the disk on the stack.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;

use abi_queue::pages::PAGE_SIZE;
use ext4::{Device as _, FileRun};
use memory::Frame;
use smallvec::SmallVec;

use crate::files::disk::{Disk, ZEROS};
use crate::files::volume::device::{Blocks, WaitsOnStack};
use crate::files::volume::{Desk, Job, MountedVolume, VolumeNode, VolumeRequest};

/// Number of requests that wait for the disk at once; others are done on the stack.
const MOST_LOADING: usize = 128;
/// Number of times that a request looks for its pages: if they go away for each other, as without memory, it is done on
/// the stack, where each is used when it has come.
const MOST_LOOKS: u8 = 16;
/// Number of pages that are read for a request before it is done.
const MOST_PAGES: u64 = 64;

/// Pages of a disk.
type DiskPages = SmallVec<[Range<u64>; 1]>;

/// A request that waits until pages of the disk are read.
pub(super) struct LoadingRequest {
    job: Job,
    pages: DiskPages,
    arrival: Arc<PagesArrival>,
    /// Number of looks at the pages since it waits.
    looks: u8,
}

/// A note that pages may be there.
struct PagesArrival {
    has_come: AtomicBool,
    volume: Weak<MountedVolume>,
}

impl Wake for PagesArrival {
    fn wake(self: Arc<PagesArrival>) {
        self.has_come.store(true, Ordering::Release);
        if let Some(volume) = self.volume.upgrade() {
            volume.wake();
        }
    }
}

/// The places on the disk of some bytes of a file, as long as a request about them is done.
#[derive(Default)]
pub(super) struct NearRuns {
    inode: u32,
    /// In the order of the bytes, without gaps.
    runs: Vec<FileRun>,
}

/// Returns the file and the pages that a request needs in memory.
fn needed(request: &VolumeRequest) -> Option<(&VolumeNode, Range<u64>)> {
    match request {
        VolumeRequest::Read { node, offset, bytes } => {
            let end = offset.saturating_add(bytes.capacity() as u64);
            Some((node, offset / PAGE_SIZE as u64..end.div_ceil(PAGE_SIZE as u64)))
        }
        VolumeRequest::ReadAhead { node, first, count } | VolumeRequest::Map { node, first, count, .. } => {
            Some((node, *first..first.saturating_add(*count)))
        }
        _ => None,
    }
}

impl<W: WaitsOnStack> Desk<'_, W> {
    /// Has the disk read what a request needs. Returns the request if it can be done now; otherwise it waits aside.
    pub(super) fn load(&mut self, job: Job) -> Option<Job> {
        let (false, Some((node, pages))) = (job.is_loaded, needed(&job.request)) else { return Some(job) };
        let Some(pages) = self.places_of(node, pages) else { return Some(job) };
        let arrival = Arc::new(PagesArrival { has_come: AtomicBool::new(false), volume: Arc::downgrade(self.shared) });
        {
            let mut loading = self.shared.loading.lock();
            if loading.len() >= MOST_LOADING || loading.try_reserve(1).is_err() {
                return Some(job);
            }
        }
        let Some(disk) = self.shared.source.disk() else { return Some(job) };
        if disk.poll_loaded(&pages, &Waker::from(arrival.clone())).is_ready() {
            return Some(job);
        }
        // There is room, and nobody else takes it.
        let loading = Box::new(LoadingRequest { job, pages, arrival, looks: 0 });
        self.shared.loading.lock().push(loading);
        None
    }

    /// Returns the pages of the disk with the pages of a file that are not in memory; `None` if there are none, or it
    /// is not known.
    fn places_of(&mut self, node: &VolumeNode, pages: Range<u64>) -> Option<DiskPages> {
        let missing = missing(node, pages)?;
        let size = PAGE_SIZE as u64;
        let volume = self.volume.as_mut()?;
        let runs = volume.runs(node.number(), missing.start * size, (missing.end - missing.start) * size).ok()??;
        let mut places = DiskPages::new();
        for run in &runs {
            let Some(at) = run.at else { continue };
            if places.len() == MOST_PAGES as usize {
                break;
            }
            places.push(at / size..(at + run.length).div_ceil(size));
        }
        (!places.is_empty()).then_some(places)
    }

    /// Finds the places of the bytes that a request needs.
    pub(super) fn find_runs(&mut self, request: &VolumeRequest) {
        let Some((node, pages)) = needed(request) else { return };
        let Some(missing) = missing(node, pages) else { return };
        let size = PAGE_SIZE as u64;
        let Some(volume) = self.volume.as_mut() else { return };
        let found = volume.runs(node.number(), missing.start * size, (missing.end - missing.start) * size);
        if let Ok(Some(runs)) = found {
            self.near = NearRuns { inode: node.number(), runs };
        }
    }

    /// Takes a page of a file from the disk's cache, if it lies there as a whole: no byte of it is copied, and memory
    /// has it once. The page is in memory for others of its file then, and no more for readers of the disk itself.
    pub(super) fn take_near(&mut self, node: &VolumeNode, page: u64) -> Option<Frame> {
        if self.near.inode != node.number() {
            return None;
        }
        let start = page * PAGE_SIZE as u64;
        let next = self.near.runs.partition_point(|run| run.offset + run.length <= start);
        let run = self.near.runs.get(next)?;
        if run.offset > start || run.offset + run.length < start + PAGE_SIZE as u64 {
            return None;
        }
        let frame = self.shared.source.disk()?.take_page(run.at? + (start - run.offset))?;
        // The last block has anything behind the end of the file.
        let behind = node.size().saturating_sub(start);
        if behind < PAGE_SIZE as u64 {
            frame.write(behind as usize, &ZEROS[behind as usize..]);
        }
        Some(frame)
    }

    /// Reads a page of a file from its places on the disk to the start of the buffer; returns whether they are known
    /// and could be read.
    pub(super) fn read_near(&mut self, node: &VolumeNode, page: u64) -> bool {
        if self.near.runs.is_empty() || self.near.inode != node.number() {
            return false;
        }
        let size = node.size();
        let start = page * PAGE_SIZE as u64;
        let end = start + PAGE_SIZE as u64;
        let Some(disk) = self.shared.source.disk() else { return false };
        let device = Blocks::new(self.shared, disk, self.waits);
        let mut next = start;
        for run in &self.near.runs {
            let (from, to) = (run.offset.max(next), (run.offset + run.length).min(end));
            if from != next || from >= to {
                continue;
            }
            let bytes = &mut self.buffer[(from - start) as usize..(to - start) as usize];
            match run.at {
                None => bytes.fill(0),
                Some(at) => {
                    if device.read(at + (from - run.offset), bytes).is_err() {
                        return false;
                    }
                }
            }
            next = to;
        }
        // The last block has anything behind the end of the file.
        let behind = size.saturating_sub(start).min(PAGE_SIZE as u64) as usize;
        self.buffer[behind..PAGE_SIZE].fill(0);
        next == end
    }
}

/// Returns the pages of a file from the first that is not in memory to the last, of which there is one at least, and
/// not more than are read at once.
fn missing(node: &VolumeNode, pages: Range<u64>) -> Option<Range<u64>> {
    let end = node.size().div_ceil(PAGE_SIZE as u64).min(pages.end).min(pages.start + MOST_PAGES);
    let cached = node.0.pages.lock();
    let is_missing = |page: &u64| !cached.has(*page);
    let first = (pages.start..end).find(is_missing)?;
    let last = (first..end).rev().find(is_missing)?;
    Some(first..last + 1)
}

impl MountedVolume {
    /// Whether a request that waits for the disk may go on.
    pub(super) fn has_loaded(&self) -> bool {
        self.loading.lock().iter().any(|loading| loading.arrival.has_come.load(Ordering::Acquire))
    }

    /// Takes a request for which the disk has read what it needs.
    pub(super) fn take_loaded(&self) -> Option<Job> {
        loop {
            let mut found = {
                let mut loading = self.loading.lock();
                let place = loading.iter().position(|loading| loading.arrival.has_come.load(Ordering::Acquire))?;
                loading.swap_remove(place)
            };
            found.arrival.has_come.store(false, Ordering::Relaxed);
            found.looks += 1;
            let waker = Waker::from(found.arrival.clone());
            let is_loaded = |disk: &Disk| disk.poll_loaded(&found.pages, &waker).is_ready();
            if found.looks >= MOST_LOOKS || self.source.disk().is_none_or(is_loaded) {
                return Some(Job { is_loaded: true, ..found.job });
            }
            // There is room, from which it was taken.
            self.loading.lock().push(found);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use abi_unix::types::open;
    use abi_unix::{Errno, SystemCall};

    use super::*;
    use crate::files::disk::tests::{SECOND, SECOND_IS_BAD_AT, place_on_second, replace_second};
    use crate::files::volume::tests::{mount, open, unmount, with_volume};
    use crate::testing::Program;

    pub(crate) const PAGES: usize = 40;
    /// Number of reads at once.
    const READS: usize = 4;

    /// Makes a file whose pages have their numbers, and mounts the volume again with nothing in memory; returns a place
    /// for some pages.
    pub(crate) fn make(program: &mut Program) -> usize {
        assert_eq!(mount(program, 0), Ok(0));
        let place = program.place(READS * PAGE_SIZE);
        let file = open(program, "file", open::CREAT | open::RDWR).unwrap();
        for page in 0..PAGES {
            program.write(place, &[page as u8 + 1; PAGE_SIZE]);
            assert_eq!(program.call(SystemCall::WriteAt, [file, place, PAGE_SIZE, page * PAGE_SIZE]), Ok(PAGE_SIZE));
        }
        program.call(SystemCall::Close, [file]).unwrap();
        assert_eq!(unmount(program), Ok(0));
        let disk = SECOND.lock().unwrap().clone();
        replace_second(disk);
        assert_eq!(mount(program, 0), Ok(0));
        place
    }

    #[test]
    fn reads_that_wait_for_the_disk_wait_together() {
        with_volume(|program| {
            let buffer = make(program);
            let file = open(program, "file", 0).unwrap();
            // In no order that is read ahead.
            for turn in 0..READS {
                let page = turn * 13 % PAGES;
                let call = [file, buffer + turn * PAGE_SIZE, PAGE_SIZE, page * PAGE_SIZE];
                assert_eq!(program.submit(SystemCall::ReadAt, call, turn as u64 + 1), None);
            }
            program.sleep_ns(1_000_000_000);
            for turn in 0..READS {
                let page = turn * 13 % PAGES;
                let found = program.read(buffer + turn * PAGE_SIZE, PAGE_SIZE);
                assert!(found.iter().all(|byte| *byte == page as u8 + 1), "page {page}");
            }
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// The memory of a page of the disk becomes that of the file's page, and nothing of what is behind the end.
    #[test]
    fn bytes_of_a_file_are_in_memory_once() {
        with_volume(|program| {
            let buffer = make(program);
            let page = 5;
            let at = place_on_second(page as u8 + 1);
            let disk = crate::files::disk::all().iter().find(|disk| disk.name() == "vdb").unwrap();
            let raw = {
                let path = program.store(b"/dev/vdb\0");
                program.call(SystemCall::Open, [0, path, 0, 0]).unwrap()
            };
            let read = |program: &mut Program, file, at| {
                assert_eq!(program.call(SystemCall::ReadAt, [file, buffer, PAGE_SIZE, at]), Ok(PAGE_SIZE));
                program.read(buffer, PAGE_SIZE)
            };
            let expected = vec![page as u8 + 1; PAGE_SIZE];
            assert_eq!(read(program, raw, at), expected);
            assert!(
                disk.take_page(at as u64).is_some() && disk.take_page(at as u64).is_none(),
                "that is how to see it"
            );
            assert!(disk.take_page(at as u64 + 512).is_none() && disk.take_page(disk.bytes()).is_none());
            assert_eq!(read(program, raw, at), expected);
            let file = open(program, "file", open::RDWR).unwrap();
            assert_eq!(read(program, file, page * PAGE_SIZE), expected);
            assert!(disk.take_page(at as u64).is_none(), "it is the file's");
            assert_eq!(read(program, file, page * PAGE_SIZE), expected);
            assert_eq!(read(program, raw, at), expected, "the disk is read again");
            // Writes to the page reach the disk as all others.
            let place = program.store(&[77; 10]);
            assert_eq!(program.call(SystemCall::WriteAt, [file, place, 10, page * PAGE_SIZE]), Ok(10));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            assert_eq!(SECOND.lock().unwrap()[at..at + 11], [77, 77, 77, 77, 77, 77, 77, 77, 77, 77, page as u8 + 1]);
            // The last page of a shorter file.
            let length = page * PAGE_SIZE + 100;
            assert_eq!(program.call(SystemCall::Truncate, [file, length]), Ok(0));
            program.call(SystemCall::Close, [file]).unwrap();
            program.call(SystemCall::Close, [raw]).unwrap();
            assert_eq!(unmount(program), Ok(0));
            let mut bytes = SECOND.lock().unwrap().clone();
            bytes[at + 100..at + PAGE_SIZE].fill(0xee);
            replace_second(bytes);
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", open::RDWR).unwrap();
            let (protection, flags) = (abi_unix::types::protection::READ, abi_unix::types::mapping::SHARED);
            let call = [0, PAGE_SIZE, protection as usize, flags as usize, file, page * PAGE_SIZE];
            let mapped = program.call(SystemCall::Map, call).unwrap();
            program.touch(mapped, PAGE_SIZE, hal_api::Access::Read);
            assert_eq!(program.read(mapped + 99, 2), [page as u8 + 1, 0]);
            assert!(program.read(mapped + 100, PAGE_SIZE - 100).iter().all(|byte| *byte == 0));
            assert_eq!(program.call(SystemCall::Unmap, [mapped, PAGE_SIZE]), Ok(0));
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// Pages that are read by one request fail alone.
    #[test]
    fn a_page_that_cannot_be_read_fails_alone() {
        with_volume(|program| {
            let buffer = make(program);
            let bad = 5;
            let at = place_on_second(bad as u8 + 1);
            SECOND_IS_BAD_AT.store(at, core::sync::atomic::Ordering::Relaxed);
            let file = open(program, "file", 0).unwrap();
            for page in 0..PAGES {
                let read = program.call(SystemCall::ReadAt, [file, buffer, PAGE_SIZE, page * PAGE_SIZE]);
                if page == bad {
                    assert_eq!(read, Err(Errno::EIO));
                    continue;
                }
                assert_eq!(read, Ok(PAGE_SIZE), "page {page}");
                let found = program.read(buffer, PAGE_SIZE);
                assert!(found.iter().all(|byte| *byte == page as u8 + 1), "page {page}");
            }
            SECOND_IS_BAD_AT.store(0, core::sync::atomic::Ordering::Relaxed);
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }
}
