//! Disks: the machine's block devices and their partitions, each device with a cache of its pages.
//!
//! A task that reads or writes a disk pins pages in the cache ([`page_cache`]) and is woken when they are there; it
//! starts the orders of the cache at the device itself. A coroutine of the kernel for each disk takes the requests that
//! have ended, writes changes that have waited for long, and gives up a device that does not answer.
//!
//! Partitions are looked for when the machine starts. One must begin with a page of its disk, with which it shares the
//! cache: what is written to the one is read from the other.
//!
//! The cache's memory is the machine's: no process pays for it, it has a limit, and pages that are as on the disk are
//! given back before a process is ended for memory ([`give_back`]).

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt::Write as _;
use core::future::poll_fn;
use core::mem;
use core::ops::Range;
use core::task::{Context, Poll, Waker};

use abi_queue::Priority;
use abi_queue::pages::PAGE_SIZE;
use abi_unix::{Errno, SystemCall};
use filesystem::DeviceNumber;
use hal_api::Machine as _;
use memory::{Frame, SharedFrame};
use page_cache::{Cache, Direction, Pinned, Purpose};
use partitions::Partition;
use platform::{Machine, Mapped, Platform, println};
use smallvec::SmallVec;
use spin::{Mutex, MutexGuard, Once};
use virtio::{Acknowledger, Disk as Driver, Kind, Request, RequestError, SECTOR, Transport};
use waiters::Waiters;

use crate::files::file::Attempt;
use crate::machine::virtio::{InterruptLine, VirtioDevice, devices};
use crate::network::wire::DmaBuffer;
use crate::process::user::{Caller, UserBuffer};
use crate::scheduling::executor::{self, Attendant};
use crate::scheduling::payers;
use crate::scheduling::steps::{self, Ends};
use crate::time;

/// Major number of disks, and of minor numbers that each has: of the whole disk, and of its partitions.
const MAJOR: u32 = 254;
const MINORS: u32 = partitions::MOST as u32 + 1;

/// Share of the machine's memory that the caches of all disks may take.
const SHARE: usize = 16;
/// Number of disks that are driven.
const MOST_DISKS: usize = 8;
/// Number of ended requests that the attendant takes at a time.
const ENDED_AT_A_TIME: usize = 32;
/// Number of pages whose ends count as another request among them.
const PAGES_OF_AN_END: usize = 4;
/// Number of places that are looked at for memory to give back, at a time.
const GIVEN_BACK_AT_A_TIME: usize = 512;
/// Number of failures of requests for each of which the kernel's log has one line.
const FAILURES_OF_A_LINE: u32 = 1000;
/// Time after which changes are written without a call for it (Linux: `dirty_writeback_centisecs`).
const WRITE_BACK_NS: u64 = 5_000_000_000;
/// Time without an answer after which a device is given up (Linux: the timeout of a request).
const PATIENCE_NS: u64 = 30_000_000_000;
/// Time that the machine waits for the table of a disk's partitions.
const PATIENCE_AT_START_NS: u64 = 5_000_000_000;
/// Number of pages that are read ahead of a reader that goes from page to page (Linux: 32).
pub(crate) const READ_AHEAD: u64 = 16;
/// Sectors of a page.
const SECTORS: u64 = PAGE_SIZE as u64 / SECTOR;

static DISKS: Once<Vec<Disk>> = Once::new();
/// A page of zeros.
pub(super) static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Number of neighbouring pages that are read or written by one request (Linux: `read_ahead_kb`, 128 KiB).
const MOST_PAGES: usize = 32;

/// The memory of a request: neighbouring pages, of the last of which the disk may have a part; or none.
#[derive(Default)]
pub(crate) struct RequestPages {
    frames: SmallVec<[SharedFrame; MOST_PAGES]>,
    /// The bytes of the last page.
    last: u32,
}

impl virtio::Data for RequestPages {
    fn parts(&self) -> impl Iterator<Item = (u64, u32)> {
        let last = self.frames.len().wrapping_sub(1);
        let length = move |number| if number == last { self.last } else { PAGE_SIZE as u32 };
        self.frames.iter().enumerate().map(move |(number, frame)| (frame.physical_address(), length(number)))
    }

    fn abandon(&mut self) {
        // The count of a frame's owners never falls to zero.
        mem::forget(mem::take(&mut self.frames));
    }
}

/// The device of a disk.
pub(crate) trait Device: Send {
    /// Returns the number of requests that may be under way at once; each has a number below it.
    fn most_requests(&self) -> usize;

    /// Returns whether what was written lasts only after a flush.
    fn has_cache(&self) -> bool;

    /// Returns the number of pages that one request may read or write.
    fn most_pages(&self) -> usize;

    /// Returns the number of sectors that one request may discard; 0 if the device knows no such requests.
    fn most_discarded(&self) -> u32;

    /// Begins a request, and returns its number. The device sees it with the next [`notify`](Self::notify).
    fn begin(&mut self, request: Request, parts: RequestPages) -> Result<usize, RequestError>;

    /// Shows the device the requests that were begun.
    fn notify(&mut self);

    /// Takes a request that has ended; if there is none, the device interrupts when the next one ends.
    fn take(&mut self) -> Option<(usize, Result<(), RequestError>)>;

    /// Gives the device up: all its requests end with [`RequestError::Gone`].
    fn give_up(&mut self);
}

impl Device for Driver<Mapped, DmaBuffer, RequestPages> {
    fn most_requests(&self) -> usize {
        self.most_requests()
    }

    fn has_cache(&self) -> bool {
        self.has_cache()
    }

    fn most_pages(&self) -> usize {
        self.most_parts().min(MOST_PAGES)
    }

    fn most_discarded(&self) -> u32 {
        self.most_discarded()
    }

    fn begin(&mut self, request: Request, parts: RequestPages) -> Result<usize, RequestError> {
        self.submit(request, parts).map(|ticket| ticket.number()).map_err(|(error, _)| error)
    }

    fn notify(&mut self) {
        self.notify();
    }

    fn take(&mut self) -> Option<(usize, Result<(), RequestError>)> {
        self.take().map(|ended| (ended.ticket.number(), ended.outcome))
    }

    fn give_up(&mut self) {
        self.give_up();
    }
}

/// A request that is under way.
enum UnderWay {
    /// So many pages from one on.
    Pages(Direction, u64, usize),
    Flush,
    Discard,
}

/// The flushes of the device's own cache. One is under way at a time, for all tasks that had asked for one before it
/// began.
#[derive(Default)]
struct Flushes {
    /// The process that has wanted one last.
    payer: u32,
    wanted: u64,
    begun: u64,
    ended: u64,
    errors: u64,
    waiters: Waiters,
}

/// Sectors that are not needed any more. One request for some is under way at a time, and no other beside it: a page
/// that is written afterwards is not lost with them.
#[derive(Default)]
struct Discards {
    /// The sectors of the one that is wanted or under way.
    wanted: Option<Range<u64>>,
    /// The process that has wanted it.
    payer: u32,
    ended: u64,
    errors: u64,
    waiters: Waiters,
}

/// A disk's device and cache.
struct State {
    device: Box<dyn Device>,
    cache: Cache<SharedFrame>,
    /// The requests under way, by their number, and the times at which they began.
    under_way: Vec<Option<(UnderWay, u64)>>,
    in_flight: usize,
    /// Number of the next orders that become requests of their own, after a request for several pages has failed: the
    /// others of them are read and written all the same.
    alone: usize,
    flushes: Flushes,
    discards: Discards,
    /// Time at which changes are written without a call for it; `None` without changes.
    write_back_at: Option<u64>,
    /// Time at which the attendant looks whether the device has answered the oldest request, which has then begun that
    /// long ago or later; `None` if it will not.
    watched_until: Option<u64>,
    /// Number of failures since the last one that was printed.
    untold_failures: u32,
}

/// Size and kind of a disk.
#[derive(Clone, Copy)]
struct Geometry {
    /// Size in sectors.
    sectors: u64,
    /// Size of the device's blocks in bytes.
    block_size: u32,
    /// Whether it cannot be written.
    is_read_only: bool,
}

/// A disk, or one of its partitions, which reads and writes pages of the whole disk's cache.
pub(crate) struct Disk {
    name: &'static str,
    /// Its place in the list of all, and the minor number of its node.
    place: usize,
    minor: u32,
    geometry: Geometry,
    /// Its first page on the whole disk; 0 for that.
    first_page: u64,
    /// `None` for a device without registers, and for a partition.
    acknowledger: Option<Acknowledger<Mapped>>,
    whole: Arc<WholeDisk>,
}

/// Everything that a disk and its partitions have in common.
struct WholeDisk {
    sectors: u64,
    attendant: Attendant,
    state: Mutex<State>,
}

/// Finds the machine's disks and starts them.
pub(crate) fn start(platform: &'static Platform) {
    let found = devices(platform, Kind::Block);
    let most_pages = memory::frames::total_frames() / SHARE / found.len().max(1);
    let (mut disks, mut lines) = (Vec::new(), Vec::new());
    for VirtioDevice { transport, line, place } in found.into_iter().take(MOST_DISKS) {
        if matches!(line, InterruptLine::None) {
            println!("disk: {place} has no interrupt");
            continue;
        }
        match Disk::of_virtio(disks.len() as u32, transport, most_pages) {
            Ok(disk) => {
                println!("disk: {} with {} KiB", disk.name(), disk.bytes() / 1024);
                disks.push(disk);
                lines.push(line);
            }
            Err(error) => println!("disk: {place} cannot be used: {error}"),
        }
    }
    #[cfg(test)]
    disks.extend(tests::disks());
    let partitions: Vec<Disk> = disks.iter().flat_map(Disk::partitions).collect();
    #[cfg(test)]
    let partitions = partitions.into_iter().chain(tests::partition(&disks));
    for partition in partitions {
        let place = disks.len();
        disks.push(Disk { place, ..partition });
    }
    let mut lines = lines.into_iter();
    DISKS.call_once(|| disks);
    for (number, disk) in wholes().iter().enumerate() {
        let registered = lines.next().map(|line| line.register(serve, number));
        let mut bill = Vec::new();
        let room = bill.try_reserve_exact(ENDED_AT_A_TIME * 2 + disk.whole.state.lock().under_way.len());
        match (registered.unwrap_or(Ok(())), time::Reservation::new(), room) {
            (Ok(()), Ok(reservation), Ok(())) => {
                executor::spawn_for_kernel(Priority::HIGHEST, attend(disk, reservation, bill));
            }
            _ => {
                println!("disk: {} has no interrupt, no alarm or no memory, and is given up", disk.name());
                disk.whole.state.lock().device.give_up();
            }
        }
    }
}

fn serve(number: usize) -> bool {
    let Some(disk) = all().get(number) else { return false };
    let has_asked = disk.acknowledger.as_ref().is_none_or(|acknowledger| acknowledger.acknowledge().is_some());
    disk.whole.attendant.summon();
    has_asked
}

/// Returns the disks, and behind them their partitions.
pub(crate) fn all() -> &'static [Disk] {
    DISKS.get().map_or(&[], Vec::as_slice)
}

/// Returns the whole disks.
fn wholes() -> &'static [Disk] {
    let all = all();
    &all[..all.iter().position(Disk::is_partition).unwrap_or(all.len())]
}

/// Gives back memory of pages that are as on a disk, and has others written; returns whether there was any.
pub(crate) fn give_back() -> bool {
    let gives = |disk: &Disk| {
        // A lock that is taken is that of a task which perhaps lacks memory itself.
        let Some(mut state) = disk.whole.state.try_lock() else { return false };
        let looks = state.cache.places().div_ceil(GIVEN_BACK_AT_A_TIME);
        let has_given = (0..looks).any(|_| state.cache.give_back(128, GIVEN_BACK_AT_A_TIME) > 0);
        state.cache.write_all();
        disk.start_orders(state, Machine::now());
        has_given
    };
    wholes().iter().any(gives)
}

/// Waits until all that was written to any disk cannot be lost with the power any more. Open files report failures.
///
/// # Cancellation
/// Dropping it leaves its waker registered. The end of the first process, which waits in this way, is not dropped.
pub(crate) async fn synchronise_all() {
    let mut wait = Synchronisation::new(SystemCall::Synchronise, None);
    let _ = poll_fn(|cx| wait.poll(steps::waker_of(cx))).await;
}

/// Wakes a disk's attendant at a time.
struct DiskAlarm(&'static Disk);

impl Wake for DiskAlarm {
    fn wake(self: Arc<DiskAlarm>) {
        self.0.whole.attendant.summon();
    }
}

/// Takes the requests that have ended, and starts others, for ever. Each look is paid by those for whom it was, in
/// equal parts for each request.
async fn attend(disk: &'static Disk, reservation: time::Reservation, mut bill: Vec<u32>) {
    let waker = Waker::from(Arc::new(DiskAlarm(disk)));
    loop {
        let start = Machine::now();
        let (is_complete, deadline) = disk.look(&mut bill);
        let share = Machine::now().saturating_sub(start) / bill.len().max(1) as u64;
        for payer in bill.drain(..).filter(|payer| *payer != 0) {
            payers::work_for(payer);
            payers::charge(payer, share);
        }
        if !is_complete {
            executor::yield_now().await;
            continue;
        }
        let alarm = deadline.map(|at| reservation.set(at, &waker));
        disk.whole.attendant.summoned().await;
        if let Some(alarm) = alarm {
            time::clear(alarm);
        }
    }
}

impl Disk {
    fn of_virtio(number: u32, transport: Transport<Mapped>, most_pages: usize) -> Result<Disk, virtio::Error> {
        let acknowledger = transport.acknowledger();
        let driver = Driver::new(transport, DmaBuffer::allocate)?;
        let geometry = Geometry {
            // As many as offsets reach.
            sectors: driver.sectors().min(i64::MAX as u64 / SECTOR),
            block_size: driver.block_size(),
            is_read_only: driver.is_read_only(),
        };
        let disk = Disk::new(number, Box::new(driver), geometry, most_pages).ok_or(virtio::Error::OutOfMemory)?;
        Ok(Disk { acknowledger: Some(acknowledger), ..disk })
    }

    /// Makes a disk of a device; `None` if there is no memory for it.
    fn new(number: u32, device: Box<dyn Device>, geometry: Geometry, most_pages: usize) -> Option<Disk> {
        let pages = geometry.sectors.div_ceil(SECTORS);
        let places = usize::try_from(pages).unwrap_or(usize::MAX).min(most_pages);
        let cache = Cache::new(places, pages).ok()?;
        let mut under_way = Vec::new();
        under_way.try_reserve_exact(device.most_requests()).ok()?;
        under_way.resize_with(device.most_requests(), || None);
        let state = State {
            device,
            cache,
            under_way,
            in_flight: 0,
            alone: 0,
            flushes: Flushes::default(),
            discards: Discards::default(),
            write_back_at: None,
            watched_until: None,
            untold_failures: 0,
        };
        let (sectors, attendant) = (geometry.sectors, Attendant::new());
        let whole = Arc::new(WholeDisk { sectors, attendant, state: Mutex::new(state) });
        Some(Disk {
            name: ["vda", "vdb", "vdc", "vdd", "vde", "vdf", "vdg", "vdh"][number as usize % MOST_DISKS],
            place: number as usize,
            minor: number * MINORS,
            geometry,
            first_page: 0,
            acknowledger: None,
            whole,
        })
    }

    /// Whether it has bytes in common with another disk or partition.
    pub(crate) fn overlaps(&self, other: &Disk) -> bool {
        let pages = |disk: &Disk| disk.first_page..disk.first_page + disk.bytes().div_ceil(PAGE_SIZE as u64);
        let (own, others) = (pages(self), pages(other));
        Arc::ptr_eq(&self.whole, &other.whole) && own.start < others.end && others.start < own.end
    }

    fn is_partition(&self) -> bool {
        self.acknowledger.is_none() && !self.minor.is_multiple_of(MINORS)
    }

    /// Finds the partitions of the disk, before it has an attendant, and says why some are not used.
    fn partitions(&self) -> Vec<Disk> {
        #[cfg(test)]
        if self.acknowledger.is_none() {
            return Vec::new();
        }
        let name = self.name;
        let read = |sector, bytes: &mut [u8]| self.read_at_start(sector * SECTOR, bytes);
        let found = partitions::find(self.geometry.sectors, read).unwrap_or_else(|problem| {
            println!("disk: {name}: {problem}");
            Vec::new()
        });
        let parts = found.into_iter().filter_map(|Partition { number, first, count }| {
            if !first.is_multiple_of(SECTORS) || count < SECTORS {
                println!("disk: {name}{number} does not begin with a page of {PAGE_SIZE} bytes, and is left out");
                return None;
            }
            let part = self.partition(number, first / SECTORS, count / SECTORS)?;
            println!("disk: {} with {} KiB", part.name, part.bytes() / 1024);
            Some(part)
        });
        parts.collect()
    }

    /// Makes a partition of so many pages; `None` if there is no memory for its name.
    fn partition(&self, number: u32, first_page: u64, pages: u64) -> Option<Disk> {
        let mut name = String::new();
        name.try_reserve_exact(self.name.len() + 2).ok()?;
        let _ = write!(name, "{}{number}", self.name);
        Some(Disk {
            // As long as the machine runs.
            name: name.leak(),
            minor: self.minor + number,
            geometry: Geometry { sectors: pages * SECTORS, ..self.geometry },
            first_page,
            acknowledger: None,
            whole: self.whole.clone(),
            place: self.place,
        })
    }

    /// Reads while there is no attendant yet, and waits in place; returns whether it could.
    fn read_at_start(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let (done, until) = (Cell::new(0), Machine::now() + time::ticks_at_ns(PATIENCE_AT_START_NS));
        loop {
            if let Poll::Ready(read) = self.poll_read_bytes(offset, bytes, &done, Waker::noop()) {
                return read.is_ok();
            }
            if Machine::now() >= until {
                return false;
            }
            let _ = self.look(&mut Vec::new());
        }
    }

    /// Returns its name, as of its node in `/dev`.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the numbers of its node.
    pub(crate) fn device(&self) -> DeviceNumber {
        DeviceNumber { major: MAJOR, minor: self.minor }
    }

    /// Returns its size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.geometry.sectors * SECTOR
    }

    /// Returns the size of the device's blocks in bytes.
    pub(crate) fn block_size(&self) -> u32 {
        self.geometry.block_size
    }

    /// Returns whether it cannot be written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.geometry.is_read_only
    }

    /// Returns the number of failures to write so far, for an open file that reports each once.
    pub(crate) fn write_errors(&self) -> u64 {
        let state = self.whole.state.lock();
        state.cache.write_errors() + state.flushes.errors
    }

    /// Takes ended requests and starts others, and adds the payer of each to `bill`, as far as there is room: there is
    /// for all requests of a look. Returns whether that was all, and the time of the next look.
    fn look(&self, bill: &mut Vec<u32>) -> (bool, Option<u64>) {
        let mut note = |payer| {
            if bill.len() < bill.capacity() {
                bill.push(payer);
            }
        };
        let mut state = self.whole.state.lock();
        let now = Machine::now();
        let is_complete = state.take_ended(&mut note);
        let patience = time::ticks_at_ns(PATIENCE_NS);
        if state.watched_until.is_some_and(|at| now >= at) {
            // Other requests may have been answered meanwhile: each one counts.
            state.watched_until = state.oldest().map(|begun_at| begun_at + patience);
            if is_complete && state.watched_until.is_some_and(|at| now >= at) {
                println!("disk: {} does not answer, and is given up", self.name());
                state.device.give_up();
                return (false, None);
            }
        }
        if state.write_back_at.is_some_and(|at| now >= at) {
            state.cache.write_all();
            state.write_back_at = (state.cache.unwritten() > 0).then(|| now + time::ticks_at_ns(WRITE_BACK_NS));
        }
        let is_complete = state.start_orders(self.whole.sectors, now, &mut note) && is_complete;
        if state.in_flight > 0 && state.watched_until.is_none() {
            state.watched_until = Some(now + patience);
        }
        (is_complete, [state.write_back_at, state.watched_until].into_iter().flatten().min())
    }

    fn pin(&self, index: u64, purpose: Purpose, waker: Option<&Waker>) -> Poll<Result<Pinned<SharedFrame>, Errno>> {
        let mut state = self.whole.state.lock();
        state.cache.works_for(payers::present());
        let index = index + self.first_page;
        let mut pinned = state.cache.pin(index, purpose, waker, allocate);
        if let Poll::Ready(Err(page_cache::Error::OutOfMemory)) = pinned {
            // Another page of the disk can go instead.
            state.cache.give_back(1, GIVEN_BACK_AT_A_TIME);
            pinned = state.cache.pin(index, purpose, waker, allocate);
        }
        self.start_orders(state, Machine::now());
        pinned.map_err(errno_of)
    }

    fn unpin(&self, pinned: Pinned<SharedFrame>, is_changed: bool) {
        let mut state = self.whole.state.lock();
        state.cache.works_for(payers::present());
        state.cache.unpin(pinned, is_changed);
        if !is_changed {
            return;
        }
        let now = Machine::now();
        let is_first = state.write_back_at.is_none();
        if is_first {
            state.write_back_at = Some(now + time::ticks_at_ns(WRITE_BACK_NS));
        }
        if state.cache.has_orders() {
            self.start_orders(state, now);
        } else {
            drop(state);
        }
        if is_first {
            self.whole.attendant.summon();
        }
    }

    /// Reads into a buffer from a place on: all that is wanted of a step, up to the end of the disk. If it has to wait,
    /// the next `ahead` pages are read, too.
    pub(crate) fn read(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        offset: u64,
        ahead: u64,
        waker: Option<&Waker>,
    ) -> Attempt {
        let length = self.bytes().saturating_sub(offset).min(buffer.len().min(steps::BYTES) as u64) as usize;
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        let (first, last) = (offset / PAGE_SIZE as u64, (offset + length as u64 - 1) / PAGE_SIZE as u64);
        // All are wanted before the first one is awaited.
        let mut pinned = SmallVec::<[_; steps::BYTES / PAGE_SIZE + 1]>::new();
        let (mut is_pending, mut error) = (false, None);
        for index in first..=last {
            // One registration is enough: the task looks at all of them again.
            match self.pin(index, Purpose::Read, waker.filter(|_| !is_pending)) {
                Poll::Ready(Ok(page)) if !is_pending => pinned.push(page),
                Poll::Ready(Ok(page)) => self.unpin(page, false),
                Poll::Ready(Err(reason)) => {
                    error = Some(reason);
                    break;
                }
                Poll::Pending => is_pending = true,
            }
        }
        if is_pending && ahead > 0 {
            let mut state = self.whole.state.lock();
            state.cache.works_for(payers::present());
            let ahead = last + 1..(last + 1 + ahead).min(self.bytes().div_ceil(PAGE_SIZE as u64));
            ahead.for_each(|index| state.cache.read_ahead(index + self.first_page, allocate));
            self.start_orders(state, Machine::now());
        }
        let (mut done, mut result) = (0, Ok(()));
        for page in pinned {
            if result.is_ok() && !is_pending {
                let within = (offset + done as u64) as usize % PAGE_SIZE;
                let count = (PAGE_SIZE - within).min(length - done);
                result = copy_out(caller, &page.page, within, buffer.address() + done, count).map(|()| done += count);
            }
            self.unpin(page, false);
        }
        match (result.err().or(error), done) {
            _ if is_pending => Poll::Pending,
            (Some(error), 0) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(done)),
        }
    }

    /// Writes a buffer to a place from `*done` bytes on, and advances it. `ENOSPC` at the end of the disk.
    pub(crate) fn write(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        offset: u64,
        done: &mut usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        let begun_at = *done;
        while *done < buffer.len() && *done - begun_at < steps::BYTES {
            // Wraps where another thread has moved the position meanwhile.
            let at = offset.wrapping_add(*done as u64);
            let left = self.bytes().saturating_sub(at).min((buffer.len() - *done) as u64) as usize;
            if left == 0 {
                return Poll::Ready(if *done == begun_at { Err(Errno::ENOSPC) } else { Ok(*done - begun_at) });
            }
            let (index, within) = (at / PAGE_SIZE as u64, at as usize % PAGE_SIZE);
            let count = left.min(PAGE_SIZE - within);
            let is_last = at + count as u64 == self.bytes();
            let is_all = within == 0 && (count == PAGE_SIZE || is_last);
            let pinned = match self.pin(index, if is_all { Purpose::Overwrite } else { Purpose::Change }, waker) {
                Poll::Ready(Ok(pinned)) => pinned,
                Poll::Ready(Err(error)) if *done == begun_at => return Poll::Ready(Err(error)),
                Poll::Ready(Err(_)) => break,
                Poll::Pending => return Poll::Pending,
            };
            let is_empty = pinned.is_empty;
            let (copied, result) = copy_in(caller, &pinned.page, within, buffer.address() + *done, count);
            // Of a page that has got no bytes before, and not all of them now, nothing is known.
            let counts = if is_empty && result.is_err() { 0 } else { copied };
            self.unpin(pinned, counts > 0);
            *done += counts;
            match result {
                Err(error) if *done == begun_at => return Poll::Ready(Err(error)),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        Poll::Ready(Ok(*done - begun_at))
    }

    /// Reads bytes of the disk for the kernel, from `done` on, and advances it. The range must be on the disk.
    pub(crate) fn poll_read_bytes(
        &self,
        offset: u64,
        bytes: &mut [u8],
        done: &Cell<usize>,
        waker: &Waker,
    ) -> Poll<Result<(), Errno>> {
        self.poll_pieces(
            (offset, bytes.len()),
            done,
            waker,
            |_| Purpose::Read,
            |frame, within, piece| {
                frame.read(within, &mut bytes[piece]);
            },
        )
    }

    /// Writes bytes of the disk for the kernel, from `done` on, and advances it. The range must be on the disk.
    pub(crate) fn poll_write_bytes(
        &self,
        offset: u64,
        bytes: &[u8],
        done: &Cell<usize>,
        waker: &Waker,
    ) -> Poll<Result<(), Errno>> {
        let purpose = |length| if length == PAGE_SIZE { Purpose::Overwrite } else { Purpose::Change };
        self.poll_pieces((offset, bytes.len()), done, waker, purpose, |frame, within, piece| {
            frame.write(within, &bytes[piece]);
        })
    }

    /// Does something with each page's piece of a range, from `done` on, and advances it.
    fn poll_pieces(
        &self,
        (offset, length): (u64, usize),
        done: &Cell<usize>,
        waker: &Waker,
        purpose: impl Fn(usize) -> Purpose,
        mut act: impl FnMut(&SharedFrame, usize, Range<usize>),
    ) -> Poll<Result<(), Errno>> {
        while done.get() < length {
            let at = offset + done.get() as u64;
            let (index, within) = (at / PAGE_SIZE as u64, at as usize % PAGE_SIZE);
            let piece = done.get()..length.min(done.get() + PAGE_SIZE - within);
            let purpose = purpose(piece.len());
            let is_changed = !matches!(purpose, Purpose::Read);
            let Poll::Ready(pinned) = self.pin(index, purpose, Some(waker)) else { return Poll::Pending };
            let pinned = pinned?;
            done.set(piece.end);
            act(&pinned.page, within, piece);
            self.unpin(pinned, is_changed);
        }
        Poll::Ready(Ok(()))
    }

    /// Has pages read that are wanted soon, as far as there is room; ready when none of them is being read any more.
    /// Registers the waker before it answers `Pending`.
    pub(crate) fn poll_loaded(&self, pages: &[Range<u64>], waker: &Waker) -> Poll<()> {
        let mut state = self.whole.state.lock();
        state.cache.works_for(payers::present());
        let mut awaited = None;
        for index in pages.iter().cloned().flatten().map(|index| index + self.first_page) {
            match state.cache.pin(index, Purpose::Read, None, allocate) {
                Poll::Ready(Ok(pinned)) => state.cache.unpin(pinned, false),
                // Its reader is told.
                Poll::Ready(Err(_)) => {}
                Poll::Pending => awaited = Some(index),
            }
        }
        // The last one: most often the others are there before it.
        let is_ready = match awaited.map(|index| state.cache.pin(index, Purpose::Read, Some(waker), allocate)) {
            None | Some(Poll::Ready(Err(_))) => true,
            Some(Poll::Ready(Ok(pinned))) => {
                state.cache.unpin(pinned, false);
                true
            }
            Some(Poll::Pending) => false,
        };
        self.start_orders(state, Machine::now());
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Tells the device that bytes are not needed any more, those of whole pages in the range. They are not known
    /// afterwards.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device knows no such requests, `EIO`, `ENOMEM`.
    ///
    /// # Cancellation
    /// A part is told.
    pub(crate) async fn discard(&self, caller: &(impl Ends + Sync), range: Range<u64>) -> Result<(), Errno> {
        let size = PAGE_SIZE as u64;
        let most = u64::from(self.whole.state.lock().device.most_discarded()) / SECTORS;
        if most == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let (mut next, end) = (range.start.div_ceil(size) + self.first_page, range.end / size + self.first_page);
        let mut registered = Registered(self, None);
        while next < end {
            let pages = next..end.min(next + most);
            next = pages.end;
            let (ticket, errors) = poll_fn(|cx| {
                let mut state = self.whole.state.lock();
                if state.discards.wanted.is_some() {
                    return registered.wait(&mut state.discards.waiters, cx);
                }
                state.discards.wanted = Some(pages.start * SECTORS..pages.end * SECTORS);
                state.discards.payer = payers::present();
                let ticket = (state.discards.ended + 1, state.discards.errors);
                self.start_orders(state, Machine::now());
                Poll::Ready(Ok(ticket))
            })
            .await?;
            poll_fn(|cx| {
                let mut state = self.whole.state.lock();
                match state.discards.ended >= ticket {
                    true if state.discards.errors == errors => Poll::Ready(Ok(())),
                    true => Poll::Ready(Err(Errno::EIO)),
                    false => registered.wait(&mut state.discards.waiters, cx),
                }
            })
            .await?;
            let mut place = Some(0);
            while let Some(from) = place {
                place = self.whole.state.lock().cache.lose(pages.clone(), from, GIVEN_BACK_AT_A_TIME);
                steps::pause(caller).await;
            }
        }
        Ok(())
    }

    /// Fills bytes with zeros, which last after a flush as all that is written.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    ///
    /// # Cancellation
    /// A part is filled.
    pub(crate) async fn fill_with_zeros(&self, caller: &(impl Ends + Sync), range: Range<u64>) -> Result<(), Errno> {
        let (mut at, mut registered) = (range.start, Registered(self, None));
        while at < range.end {
            let length = (range.end - at).min(PAGE_SIZE as u64 - at % PAGE_SIZE as u64) as usize;
            poll_fn(|cx| {
                // The first attempt in place has no waker.
                let Some(waker) = steps::waker_of(cx) else { return Poll::Pending };
                registered.note(waker);
                self.poll_write_bytes(at, &ZEROS[..length], &Cell::new(0), waker)
            })
            .await?;
            at += length as u64;
            steps::pause(caller).await;
        }
        Ok(())
    }

    /// Takes the memory of a whole page of the disk, if it is there as on the disk and nobody uses it.
    pub(crate) fn take_page(&self, offset: u64) -> Option<Frame> {
        let (index, within) = (offset / PAGE_SIZE as u64, offset % PAGE_SIZE as u64);
        if within > 0 || offset + PAGE_SIZE as u64 > self.bytes() {
            return None;
        }
        let taken = self.whole.state.lock().cache.take(index + self.first_page)?;
        // A device that was given up keeps its memory. The page is read again then.
        taken.into_exclusive().ok()
    }

    /// Takes the requests that have ended, where no attendant can: on the developer's computer.
    #[cfg(not(target_os = "none"))]
    pub(crate) fn look_now(&self) {
        let _ = self.look(&mut Vec::new());
    }

    /// Takes back the registration of a reader or writer.
    pub(crate) fn forget(&self, waker: &Waker) {
        self.whole.state.lock().cache.forget(waker);
    }

    /// Looks whether all that was written before the first look is on the disk, and cannot be lost with the power any
    /// more. Registers the waker, if there is one, before it answers `Pending`. Failures are counted
    /// ([`write_errors`](Self::write_errors)).
    fn poll_lasting(&self, progress: &mut Lasting, waker: Option<&Waker>) -> Poll<Result<(), Errno>> {
        let mut state = self.whole.state.lock();
        let now = Machine::now();
        if let Lasting::Begins = progress {
            *progress = Lasting::Writes { up_to: state.cache.last_change() };
        }
        if let Lasting::Writes { up_to } = *progress {
            let written = state.cache.poll_written(up_to, waker);
            if written.is_pending() {
                self.start_orders(state, now);
                return Poll::Pending;
            }
            if let Poll::Ready(Err(error)) = written {
                return Poll::Ready(Err(errno_of(error)));
            }
            if !state.device.has_cache() {
                return Poll::Ready(Ok(()));
            }
            state.flushes.wanted = state.flushes.begun + 1;
            state.flushes.payer = payers::present();
            *progress = Lasting::Flushes { ticket: state.flushes.wanted };
        }
        let Lasting::Flushes { ticket } = *progress else { return Poll::Ready(Ok(())) };
        if state.flushes.ended >= ticket {
            return Poll::Ready(Ok(()));
        }
        let registered = waker.map_or(Ok(()), |waker| state.flushes.waiters.register(waker));
        self.start_orders(state, now);
        if registered.is_ok() { Poll::Pending } else { Poll::Ready(Err(Errno::ENOMEM)) }
    }

    fn forget_lasting(&self, waker: &Waker) {
        let mut state = self.whole.state.lock();
        state.cache.forget_written(waker);
        state.flushes.waiters.forget(waker);
    }

    /// Starts orders of the cache, and makes the attendant look if it does not know that there are any.
    fn start_orders(&self, mut state: MutexGuard<'_, State>, now: u64) {
        // The present process pays with its own time.
        let is_complete = state.start_orders(self.whole.sectors, now, &mut |_| {});
        let is_watched = state.in_flight == 0 || state.watched_until.is_some();
        if !is_watched {
            state.watched_until = Some(now + time::ticks_at_ns(PATIENCE_NS));
        }
        drop(state);
        if !is_watched || !is_complete {
            self.whole.attendant.summon();
        }
    }
}

/// Progress of a task that waits until its writes last.
enum Lasting {
    Begins,
    /// Waits for these changes to be written.
    Writes {
        up_to: u64,
    },
    /// Waits for this flush.
    Flushes {
        ticket: u64,
    },
}

/// A wait until all that was written to disks cannot be lost with the power any more (`fsync`, `sync`).
pub(crate) struct Synchronisation {
    call: SystemCall,
    /// The disks that are left, by their numbers.
    disks: Range<usize>,
    progress: Lasting,
}

impl Synchronisation {
    /// Makes the wait of a call for one disk, or for all.
    pub(crate) fn new(call: SystemCall, disk: Option<&Disk>) -> Synchronisation {
        let disks = disk.map_or(0..wholes().len(), |disk| disk.place..disk.place + 1);
        Synchronisation { call, disks, progress: Lasting::Begins }
    }

    /// Returns the call.
    pub(crate) fn call(&self) -> SystemCall {
        self.call
    }

    /// Looks whether it is over; registers the waker, if there is one, before it answers `Pending`.
    pub(crate) fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<(), Errno>> {
        while let Some(disk) = all().get(self.disks.start).filter(|_| !self.disks.is_empty()) {
            match disk.poll_lasting(&mut self.progress, waker) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
            if let Some(waker) = waker {
                disk.forget_lasting(waker);
            }
            self.disks.start += 1;
            self.progress = Lasting::Begins;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes back the registration of a task that gives up.
    pub(crate) fn forget(&self, waker: &Waker) {
        if let Some(disk) = all().get(self.disks.start) {
            disk.forget_lasting(waker);
        }
    }
}

impl State {
    /// Starts requests for the cache's orders and for a flush that is wanted, as many as the device takes, and tells
    /// the payer of each. Returns whether that was all: after some that have failed at once, the rest is left to the
    /// attendant.
    fn start_orders(&mut self, sectors: u64, now: u64, note: &mut impl FnMut(u32)) -> bool {
        let (before, mut failures) = (self.in_flight, 0);
        while self.in_flight < self.under_way.len() && failures < ENDED_AT_A_TIME {
            if let Some(sectors) = self.discards.wanted.clone() {
                // It waits for all requests, and all others wait for it.
                if self.in_flight > 0 {
                    break;
                }
                note(self.discards.payer);
                let request = Request::Discard(sectors.start, (sectors.end - sectors.start) as u32);
                match self.device.begin(request, RequestPages::default()) {
                    Ok(number) => self.began(number, UnderWay::Discard, now),
                    Err(_) => {
                        failures += 1;
                        self.discard_ended(false);
                    }
                }
                continue;
            }
            if self.flushes.wanted > self.flushes.begun && self.flushes.begun == self.flushes.ended {
                self.flushes.begun = self.flushes.wanted;
                note(self.flushes.payer);
                match self.device.begin(Request::Flush, RequestPages::default()) {
                    Ok(number) => self.began(number, UnderWay::Flush, now),
                    Err(_) => {
                        failures += 1;
                        self.flush_ended(false);
                    }
                }
                continue;
            }
            let Some(order) = self.cache.take_order() else { break };
            note(order.payer);
            let (direction, first) = (order.direction, order.index);
            let parts = self.parts_from(order, sectors);
            let request = match direction {
                Direction::Read => Request::Read(first * SECTORS),
                Direction::Write => Request::Write(first * SECTORS),
            };
            let count = parts.frames.len();
            match self.device.begin(request, parts) {
                Ok(number) => self.began(number, UnderWay::Pages(direction, first, count), now),
                Err(_) => {
                    failures += 1;
                    for index in (first..).take(count) {
                        let _ = self.cache.ended(direction, index, false);
                    }
                }
            }
        }
        if self.in_flight > before {
            self.device.notify();
        }
        failures < ENDED_AT_A_TIME
    }

    /// Makes the memory of a request of an order and of those for the pages behind that follow it.
    fn parts_from(&mut self, order: page_cache::Order<SharedFrame>, sectors: u64) -> RequestPages {
        let (direction, first) = (order.direction, order.index);
        let most = if self.alone > 0 { 1 } else { self.device.most_pages() };
        self.alone = self.alone.saturating_sub(1);
        let mut parts = RequestPages::default();
        parts.frames.push(order.page);
        while parts.frames.len() < most
            && let Some(next) = self.cache.take_order_of(direction, first + parts.frames.len() as u64)
        {
            parts.frames.push(next.page);
        }
        let last = (first + parts.frames.len() as u64 - 1) * SECTORS;
        parts.last = (SECTORS.min(sectors - last) * SECTOR) as u32;
        parts
    }

    fn began(&mut self, number: usize, work: UnderWay, now: u64) {
        self.in_flight += 1;
        self.under_way[number] = Some((work, now));
    }

    /// Returns the time at which the oldest request under way began.
    fn oldest(&self) -> Option<u64> {
        self.under_way.iter().flatten().map(|(_, begun_at)| *begun_at).min()
    }

    /// Takes some of the requests that have ended, and tells the payer of each; returns whether there are no more.
    fn take_ended(&mut self, note: &mut impl FnMut(u32)) -> bool {
        let mut ended = 0;
        while ended < ENDED_AT_A_TIME {
            let Some((number, outcome)) = self.device.take() else { return true };
            self.in_flight -= 1;
            ended += 1;
            let (has_succeeded, is_gone) = match outcome {
                Ok(()) => (true, false),
                Err(error) => {
                    self.tell_failure(error);
                    (false, error == RequestError::Gone)
                }
            };
            match self.under_way[number].take() {
                Some((UnderWay::Pages(direction, first, count), _)) if count > 1 && !has_succeeded && !is_gone => {
                    // One of them has failed; each for itself now.
                    self.alone += count;
                    (first..).take(count).for_each(|index| self.cache.order_again(direction, index));
                }
                Some((UnderWay::Pages(direction, first, count), _)) => {
                    for index in (first..).take(count) {
                        let payer = self.cache.ended(direction, index, has_succeeded);
                        if index == first {
                            note(payer);
                        }
                    }
                    ended += count / PAGES_OF_AN_END;
                }
                Some((UnderWay::Flush, _)) => {
                    note(self.flushes.payer);
                    self.flush_ended(has_succeeded);
                }
                Some((UnderWay::Discard, _)) => {
                    note(self.discards.payer);
                    self.discard_ended(has_succeeded);
                }
                None => {}
            }
        }
        false
    }

    /// Prints the first of many failures.
    fn tell_failure(&mut self, error: RequestError) {
        if error != RequestError::Gone && self.untold_failures.is_multiple_of(FAILURES_OF_A_LINE) {
            println!("disk: a request has failed ({error:?}); the next {FAILURES_OF_A_LINE} are not told");
        }
        self.untold_failures = self.untold_failures.wrapping_add(1);
    }

    fn discard_ended(&mut self, has_succeeded: bool) {
        let discards = &mut self.discards;
        discards.wanted = None;
        discards.ended += 1;
        discards.errors += u64::from(!has_succeeded);
        discards.waiters.wake_all();
    }

    fn flush_ended(&mut self, has_succeeded: bool) {
        let flushes = &mut self.flushes;
        flushes.ended = flushes.begun;
        flushes.errors += u64::from(!has_succeeded);
        flushes.waiters.wake_all();
    }
}

/// Takes back the registration of a task that waits for a disk.
struct Registered<'a>(&'a Disk, Option<Waker>);

impl Registered<'_> {
    /// Waits in a list.
    fn wait<T>(&mut self, waiters: &mut Waiters, cx: &Context<'_>) -> Poll<Result<T, Errno>> {
        // The first attempt in place has no waker.
        let Some(waker) = steps::waker_of(cx) else { return Poll::Pending };
        self.note(waker);
        match waiters.register(waker) {
            Ok(()) => Poll::Pending,
            Err(_) => Poll::Ready(Err(Errno::ENOMEM)),
        }
    }

    /// Notes the waker of a poll.
    fn note(&mut self, waker: &Waker) {
        if !self.1.as_ref().is_some_and(|noted| noted.will_wake(waker)) {
            self.1 = Some(waker.clone());
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if let Some(waker) = &self.1 {
            let mut state = self.0.whole.state.lock();
            state.cache.forget(waker);
            state.discards.waiters.forget(waker);
        }
    }
}

/// Allocates a page of the cache. Nobody sees the bytes that its last owner has left: a page counts when a request for
/// all of it has succeeded, of which the driver knows that the device has written every byte, or a writer has; and
/// nothing is read behind the end of the disk.
fn allocate() -> Option<SharedFrame> {
    if !memory::frames::available_to_programs(1) {
        return None;
    }
    Frame::allocate().ok().map(Frame::share)
}

fn errno_of(error: page_cache::Error) -> Errno {
    match error {
        page_cache::Error::OutOfMemory => Errno::ENOMEM,
        page_cache::Error::BeyondTheEnd => Errno::EINVAL,
        page_cache::Error::Unreadable => Errno::EIO,
    }
}

/// Copies from a page.
pub(super) fn copy_out(
    caller: &dyn Caller,
    frame: &SharedFrame,
    offset: usize,
    to: usize,
    count: usize,
) -> Result<(), Errno> {
    // Pieces of pages are inside.
    let Some(bytes) = frame.bytes().slice(offset..offset + count) else { return Err(Errno::EFAULT) };
    caller.copy_out_from(to, &bytes)
}

/// Copies into a page; returns the number of bytes copied, and the reason if these are not all.
pub(super) fn copy_in(
    caller: &dyn Caller,
    frame: &SharedFrame,
    offset: usize,
    from: usize,
    count: usize,
) -> (usize, Result<(), Errno>) {
    match frame.bytes().slice(offset..offset + count) {
        Some(bytes) => caller.copy_in_to(from, &bytes),
        None => (0, Err(Errno::EFAULT)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use abi_unix::SystemCall;
    use abi_unix::types::{block_control, open};

    use super::*;
    use crate::testing::{DATA, Program, run, simulation};

    const SIZE: usize = 50 * PAGE_SIZE + 512;

    /// The behaviour of the disk of the tests.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Behaviour {
        Works,
        Fails,
        Silent,
        /// It answers all requests but one.
        Swallows,
    }

    /// A device that keeps its bytes in memory. Written bytes last after a flush only.
    struct MemoryDevice {
        written: Vec<u8>,
        lasting: Vec<u8>,
        behaviour: Behaviour,
        begun: VecDeque<usize>,
        free: Vec<usize>,
        swallowed: Option<usize>,
        is_gone: bool,
        /// Ticks that the kernel spends on the end of each request.
        effort: u64,
    }

    static DEVICE: std::sync::Mutex<Option<MemoryDevice>> = std::sync::Mutex::new(None);

    fn device<R>(act: impl FnOnce(&mut MemoryDevice) -> R) -> R {
        let mut device = DEVICE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        act(device.get_or_insert_with(|| MemoryDevice {
            written: vec![0; SIZE],
            lasting: vec![0; SIZE],
            behaviour: Behaviour::Works,
            begun: VecDeque::new(),
            free: (0..4).collect(),
            swallowed: None,
            is_gone: false,
            effort: 0,
        }))
    }

    struct Handle;

    impl Device for Handle {
        fn most_requests(&self) -> usize {
            4
        }

        fn has_cache(&self) -> bool {
            true
        }

        fn most_pages(&self) -> usize {
            1
        }

        fn most_discarded(&self) -> u32 {
            // Of two pages and a half.
            20
        }

        fn begin(&mut self, request: Request, parts: RequestPages) -> Result<usize, RequestError> {
            device(|device| {
                if device.is_gone {
                    return Err(RequestError::Gone);
                }
                let number = device.free.pop().expect("no more requests than there may be");
                if device.behaviour == Behaviour::Swallows && device.swallowed.is_none() {
                    device.swallowed = Some(number);
                    return Ok(number);
                }
                let works = matches!(device.behaviour, Behaviour::Works | Behaviour::Swallows);
                if let Request::Discard(sector, sectors) = request {
                    assert!(device.begun.is_empty() && sectors <= 20, "it is alone");
                    let sectors = sector as usize * 512..(sector as usize + sectors as usize) * 512;
                    device.written[sectors].fill(0xdd);
                } else if works && parts.transfer(request, &mut device.written) == 0 {
                    device.lasting = device.written.clone();
                }
                device.begun.push_back(number);
                Ok(number)
            })
        }

        fn notify(&mut self) {
            // A silent device interrupts nobody.
            if device(|device| device.behaviour != Behaviour::Silent) {
                all()[0].whole.attendant.summon();
            }
        }

        fn take(&mut self) -> Option<(usize, Result<(), RequestError>)> {
            device(|device| {
                if device.behaviour == Behaviour::Silent && !device.is_gone {
                    return None;
                }
                let number = device.begun.pop_front().or_else(|| device.swallowed.take_if(|_| device.is_gone))?;
                device.free.push(number);
                simulation().advance(device.effort);
                Some((
                    number,
                    match device.behaviour {
                        _ if device.is_gone => Err(RequestError::Gone),
                        Behaviour::Fails => Err(RequestError::Failed),
                        _ => Ok(()),
                    },
                ))
            })
        }

        fn give_up(&mut self) {
            device(|device| device.is_gone = true);
        }
    }

    impl RequestPages {
        /// Reads or writes the bytes of a disk in memory; returns their number.
        fn transfer(&self, request: Request, disk: &mut [u8]) -> usize {
            let (Request::Read(sector) | Request::Write(sector)) = request else { return 0 };
            let mut at = sector as usize * 512;
            let start = at;
            for (number, frame) in self.frames.iter().enumerate() {
                let is_last = number + 1 == self.frames.len();
                let bytes = &mut disk[at..at + if is_last { self.last as usize } else { PAGE_SIZE }];
                at += match request {
                    Request::Read(_) => frame.write(0, bytes),
                    _ => frame.read(0, bytes),
                };
            }
            at - start
        }
    }

    /// Bytes of the second disk, and whether its requests fail.
    pub(crate) static SECOND: std::sync::Mutex<Vec<u8>> = std::sync::Mutex::new(Vec::new());
    pub(crate) static SECOND_FAILS: AtomicBool = AtomicBool::new(false);
    /// A byte of the second disk that cannot be read; 0 for none.
    pub(crate) static SECOND_IS_BAD_AT: AtomicUsize = AtomicUsize::new(0);
    /// The second disk does not answer yet.
    static SECOND_IS_SILENT: AtomicBool = AtomicBool::new(false);
    /// The second disk takes no bytes.
    pub(crate) static SECOND_REFUSES_WRITES: AtomicBool = AtomicBool::new(false);
    /// The byte with which the second disk ends, which was longer; 0 if it was not.
    pub(crate) static SECOND_ENDS_AT: AtomicUsize = AtomicUsize::new(0);
    pub(in crate::files) const SECOND_SIZE: usize = 16 << 20;

    /// The device of the second disk, for volumes.
    #[derive(Default)]
    struct SecondDevice {
        /// The numbers of requests, and whether they meet the bad byte.
        begun: VecDeque<(usize, bool)>,
    }

    impl Device for SecondDevice {
        fn most_requests(&self) -> usize {
            8
        }

        fn has_cache(&self) -> bool {
            true
        }

        fn most_pages(&self) -> usize {
            MOST_PAGES
        }

        fn most_discarded(&self) -> u32 {
            0
        }

        fn begin(&mut self, request: Request, parts: RequestPages) -> Result<usize, RequestError> {
            let mut disk = SECOND.lock().unwrap();
            disk.resize(SECOND_SIZE, 0);
            let is_refused = matches!(request, Request::Write(_)) && SECOND_REFUSES_WRITES.load(Ordering::Relaxed);
            let (end, pages) = (SECOND_ENDS_AT.load(Ordering::Relaxed), parts.frames.len() * PAGE_SIZE);
            let is_behind = matches!(request, Request::Read(sector) | Request::Write(sector)
                if end > 0 && sector as usize * 512 + pages > end);
            let is_refused = is_refused || is_behind;
            let length = if is_refused { 0 } else { parts.transfer(request, &mut disk) };
            let bad = SECOND_IS_BAD_AT.load(Ordering::Relaxed);
            let is_bad = is_refused
                || matches!(request, Request::Read(sector) if bad > 0
                && (sector as usize * 512..sector as usize * 512 + length).contains(&bad));
            let is_free = |number: &usize| self.begun.iter().all(|(begun, _)| begun != number);
            let number = (0..8).find(is_free).expect("no more than there may be");
            self.begun.push_back((number, is_bad));
            Ok(number)
        }

        fn notify(&mut self) {
            all()[1].whole.attendant.summon();
        }

        fn take(&mut self) -> Option<(usize, Result<(), RequestError>)> {
            if SECOND_IS_SILENT.load(Ordering::Relaxed) {
                return None;
            }
            let (number, is_bad) = self.begun.pop_front()?;
            let fails = is_bad || SECOND_FAILS.load(Ordering::Relaxed);
            Some((number, if fails { Err(RequestError::Failed) } else { Ok(()) }))
        }

        fn give_up(&mut self) {}
    }

    /// Makes the disks of the tests.
    pub(super) fn disks() -> impl Iterator<Item = Disk> {
        let geometry = |size: usize| Geometry { sectors: size as u64 / 512, block_size: 512, is_read_only: false };
        // Fewer places than the disk has pages.
        let first = Disk::new(0, Box::new(Handle), geometry(SIZE), 16);
        let second = Disk::new(1, Box::new(SecondDevice::default()), geometry(SECOND_SIZE), 64);
        first.into_iter().chain(second)
    }

    /// The first page and the number of pages of a partition of the first disk.
    const PART: (u64, u64) = (20, 6);

    /// Makes a partition of the first disk.
    pub(super) fn partition(disks: &[Disk]) -> Option<Disk> {
        disks[0].partition(3, PART.0, PART.1)
    }

    /// A partition is a part of its disk, up to its end, and has the same bytes.
    #[test]
    fn a_partition_is_a_part_of_its_disk() {
        run(|program| {
            behave(Behaviour::Works);
            let (disk, path) = (open_disk(program), program.store(b"/dev/vda3\0"));
            let part = program.call(SystemCall::Open, [0, path, open::RDWR as usize, 0]).unwrap();
            let found = all().iter().find(|disk| disk.name() == "vda3").unwrap();
            assert!(found.overlaps(&all()[0]) && all()[0].overlaps(found) && !found.overlaps(&all()[1]));
            let (length, first) = (PART.1 as usize * PAGE_SIZE, PART.0 as usize * PAGE_SIZE);
            let place = program.store(&vec![1; length + PAGE_SIZE]);
            assert_eq!(
                program.call(SystemCall::WriteAt, [disk, place, length + PAGE_SIZE, first]),
                Ok(length + PAGE_SIZE)
            );
            program.write(place, &vec![2; length + PAGE_SIZE]);
            assert_eq!(program.call(SystemCall::WriteAt, [part, place, length + PAGE_SIZE, 0]), Ok(length));
            assert_eq!(program.call(SystemCall::WriteAt, [part, place, 1, length]), Err(Errno::ENOSPC));
            assert_eq!(program.call(SystemCall::ReadAt, [part, place, PAGE_SIZE, length]), Ok(0));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [part]), Ok(0));
            let lasting = device(|device| device.lasting[first - 1..first + length + 1].to_vec());
            assert_eq!((lasting[0], lasting[length + 1]), (0, 1), "what is beside it");
            assert!(lasting[1..=length].iter().all(|byte| *byte == 2));
            let bytes = abi_unix::types::block_control::BYTES as usize;
            assert_eq!(program.call(SystemCall::DeviceControl, [part, bytes, place]), Ok(0));
            assert_eq!(program.read_u64(place), length as u64);
            program.write(place, &vec![0; length + PAGE_SIZE]);
            assert_eq!(
                program.call(SystemCall::WriteAt, [disk, place, length + PAGE_SIZE, first]),
                Ok(length + PAGE_SIZE)
            );
            let status = program.place(128);
            assert_eq!(program.call(SystemCall::Status, [part, status]), Ok(0));
            assert_eq!(program.read_u64(status + 32), 254 << 8 | 3);
        });
    }

    fn open_disk(program: &mut Program) -> usize {
        let path = program.store(b"/dev/vda\0");
        program.call(SystemCall::Open, [0, path, open::RDWR as usize, 0]).unwrap()
    }

    /// Returns the place on the second disk of a page of which each byte is this one.
    pub(crate) fn place_on_second(byte: u8) -> usize {
        let disk = SECOND.lock().unwrap();
        disk.chunks(PAGE_SIZE).position(|block| block == [byte; PAGE_SIZE]).unwrap() * PAGE_SIZE
    }

    /// Has the second disk answer later, or again.
    pub(crate) fn silence_second(is_silent: bool) {
        SECOND_IS_SILENT.store(is_silent, Ordering::Relaxed);
        all()[1].whole.attendant.summon();
    }

    /// Replaces the bytes of the second disk.
    pub(in crate::files) fn replace_second(bytes: Vec<u8>) {
        *SECOND.lock().unwrap() = bytes;
        let mut state = all()[1].whole.state.lock();
        state.cache.give_back(usize::MAX, usize::MAX);
    }

    /// Forgets what the cache has of earlier tests, and lets the device behave in this way.
    fn behave(behaviour: Behaviour) {
        device(|device| {
            device.behaviour = behaviour;
            device.is_gone = false;
        });
        let mut state = all()[0].whole.state.lock();
        state.cache.give_back(usize::MAX, usize::MAX);
    }

    #[test]
    fn bytes_last_after_synchronising_and_not_before() {
        run(|program| {
            behave(Behaviour::Works);
            let disk = open_disk(program);
            let place = program.store(&[7; 10_000]);
            assert_eq!(program.call(SystemCall::WriteAt, [disk, place, 10_000, 5000]), Ok(10_000));
            assert_eq!(device(|device| device.lasting[5000]), 0);
            assert_eq!(program.call(SystemCall::SynchroniseFile, [disk]), Ok(0));
            assert_eq!(device(|device| device.lasting[5000..15_000].to_vec()), vec![7; 10_000]);
            assert_eq!(device(|device| (device.lasting[4999], device.lasting[15_000])), (0, 0));
            // The whole disk, through fewer places than it has pages.
            assert_eq!(program.call(SystemCall::Read, [disk, DATA, SIZE]), Ok(SIZE));
            assert_eq!(program.read(DATA + 5000, 10_000), vec![7; 10_000]);
            // Without a call for it after some time.
            let place = program.store(&[9; 600]);
            assert_eq!(program.call(SystemCall::WriteAt, [disk, place, 600, SIZE - 600]), Ok(600));
            program.sleep_ns(WRITE_BACK_NS as usize * 2);
            assert_eq!(device(|device| device.written[SIZE - 600..].to_vec()), vec![9; 600]);
            assert_eq!(program.call(SystemCall::Synchronise, []), Ok(0));
            assert_eq!(device(|device| device.lasting[SIZE - 1]), 9);
        });
    }

    /// Whole pages are discarded, also those that are in memory, and no others; zeros are written everywhere.
    #[test]
    fn bytes_are_discarded_and_filled_with_zeros() {
        run(|program| {
            behave(Behaviour::Works);
            let disk = open_disk(program);
            let place = program.store(&[7; 12 * PAGE_SIZE]);
            assert_eq!(program.call(SystemCall::WriteAt, [disk, place, 12 * PAGE_SIZE, 0]), Ok(12 * PAGE_SIZE));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [disk]), Ok(0));
            let range = |program: &mut Program, start: usize, length: usize| {
                program.store(&[start.to_le_bytes(), length.to_le_bytes()].concat())
            };
            let control = |program: &mut Program, disk, command: u32, range: usize| {
                program.call(SystemCall::DeviceControl, [disk, command as usize, range])
            };
            let (discard, zero) = (block_control::DISCARD, block_control::FILL_WITH_ZEROS);
            let wanted = range(program, 512, 9 * PAGE_SIZE);
            assert_eq!(control(program, disk, discard, wanted), Ok(0));
            let buffer = program.place(12 * PAGE_SIZE);
            let bytes = |program: &mut Program| {
                assert_eq!(program.call(SystemCall::ReadAt, [disk, buffer, 12 * PAGE_SIZE, 0]), Ok(12 * PAGE_SIZE));
                program.read(buffer, 12 * PAGE_SIZE)
            };
            let mut expected = vec![7; 12 * PAGE_SIZE];
            expected[PAGE_SIZE..9 * PAGE_SIZE].fill(0xdd);
            assert!(bytes(program) == expected);
            // A page that is written at once afterwards is not lost.
            let wanted = range(program, 10 * PAGE_SIZE, PAGE_SIZE);
            assert_eq!(program.submit(SystemCall::DeviceControl, [disk, discard as usize, wanted], 3), None);
            assert_eq!(program.call(SystemCall::WriteAt, [disk, place, PAGE_SIZE, 10 * PAGE_SIZE]), Ok(PAGE_SIZE));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [disk]), Ok(0));
            assert_eq!(program.await_completions(), [(3, Ok(0))]);
            assert!(bytes(program) == expected);
            let wanted = range(program, PAGE_SIZE + 512, 3 * PAGE_SIZE);
            assert_eq!(control(program, disk, zero, wanted), Ok(0));
            expected[PAGE_SIZE + 512..4 * PAGE_SIZE + 512].fill(0);
            assert!(bytes(program) == expected);
            for (start, length) in [(1, 512), (512, 100), (0, 0), (SIZE, 512), (512, SIZE), (usize::MAX - 511, 512)] {
                let wanted = range(program, start, length);
                for command in [discard, zero] {
                    assert_eq!(control(program, disk, command, wanted), Err(Errno::EINVAL), "{start} {length}");
                }
            }
            for command in [discard, zero] {
                assert_eq!(control(program, disk, command, 8), Err(Errno::EFAULT));
            }
            let path = program.store(b"/dev/vda\0");
            let reader = program.call(SystemCall::Open, [0, path, open::RDONLY as usize, 0]).unwrap();
            let wanted = range(program, 0, PAGE_SIZE);
            for command in [discard, zero] {
                assert_eq!(control(program, reader, command, wanted), Err(Errno::EBADF));
            }
            let path = program.store(b"/dev/vdb\0");
            let other = program.call(SystemCall::Open, [0, path, open::RDWR as usize, 0]).unwrap();
            assert_eq!(control(program, other, discard, wanted), Err(Errno::EOPNOTSUPP), "its device knows none");
            behave(Behaviour::Fails);
            assert_eq!(control(program, disk, discard, wanted), Err(Errno::EIO));
            behave(Behaviour::Works);
            assert_eq!(control(program, disk, discard, wanted), Ok(0));
            // Other tests find zeros.
            let wanted = range(program, 0, 12 * PAGE_SIZE);
            assert_eq!(control(program, disk, zero, wanted), Ok(0));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [disk]), Ok(0));
        });
    }

    #[test]
    fn pages_are_read_ahead_of_a_reader_that_goes_from_page_to_page() {
        run(|program| {
            behave(Behaviour::Works);
            let is_there = |index| {
                let mut state = all()[0].whole.state.lock();
                match state.cache.pin(index, Purpose::Read, None, || None) {
                    Poll::Ready(Ok(pinned)) => {
                        state.cache.unpin(pinned, false);
                        true
                    }
                    _ => false,
                }
            };
            let disk = open_disk(program);
            assert_eq!(program.call(SystemCall::ReadAt, [disk, DATA, 10, 33 * PAGE_SIZE]), Ok(10));
            assert_eq!((is_there(33), is_there(34)), (true, false), "it did not begin where the last read had ended");
            assert_eq!(program.call(SystemCall::ReadAt, [disk, DATA, PAGE_SIZE, 33 * PAGE_SIZE + 10]), Ok(PAGE_SIZE));
            assert!(is_there(35) && is_there(36));
        });
    }

    #[test]
    fn each_request_is_paid_by_the_process_that_caused_it() {
        const LONG: u64 = 1_000_000;
        run(|program| {
            behave(Behaviour::Works);
            let disk = open_disk(program);
            let own = program.process();
            let mut before = 0;
            let mut pays = |requests: Range<u64>, what: &str| {
                let paid = own.cpu_ticks() - before;
                before = own.cpu_ticks();
                let expected = requests.start * LONG..requests.end * LONG;
                assert!(expected.contains(&paid), "{what}: {paid} ticks, not {expected:?}");
            };
            device(|device| device.effort = LONG);
            pays(0..1, "before");
            assert_eq!(program.call(SystemCall::ReadAt, [disk, DATA, 10, 40 * PAGE_SIZE]), Ok(10));
            pays(1..2, "a read");
            let place = program.store(&[3; PAGE_SIZE]);
            assert_eq!(program.call(SystemCall::WriteAt, [disk, place, PAGE_SIZE, 20 * PAGE_SIZE]), Ok(PAGE_SIZE));
            pays(0..1, "a change that is not on the disk yet");
            program.sleep_ns(WRITE_BACK_NS as usize * 2);
            pays(1..2, "the change on its way to the disk");
            assert_eq!(program.call(SystemCall::SynchroniseFile, [disk]), Ok(0));
            pays(1..2, "a flush");
            device(|device| device.effort = 0);
        });
    }

    #[test]
    fn failures_are_told_once_to_each_open_file() {
        run(|program| {
            behave(Behaviour::Works);
            let (first, second) = (open_disk(program), open_disk(program));
            let place = program.store(&[3; PAGE_SIZE]);
            assert_eq!(program.call(SystemCall::WriteAt, [first, place, PAGE_SIZE, 0]), Ok(PAGE_SIZE));
            behave(Behaviour::Fails);
            assert_eq!(program.call(SystemCall::SynchroniseFile, [first]), Err(Errno::EIO));
            assert_eq!(program.call(SystemCall::ReadAt, [first, place, 10, 30 * PAGE_SIZE]), Err(Errno::EIO));
            behave(Behaviour::Works);
            assert_eq!(program.call(SystemCall::SynchroniseFile, [first]), Ok(0));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [second]), Err(Errno::EIO));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [second]), Ok(0));
            let third = open_disk(program);
            assert_eq!(program.call(SystemCall::SynchroniseFile, [third]), Ok(0));
            assert_eq!(program.call(SystemCall::ReadAt, [first, place, 10, 30 * PAGE_SIZE]), Ok(10));
        });
    }

    /// Processes are killed while their discards wait for the device and for their turn: others have theirs.
    #[test]
    fn discards_are_dropped_wherever_they_wait() {
        run(|program| {
            behave(Behaviour::Works);
            let disk = open_disk(program);
            let range = program.store(&[0, 4 * PAGE_SIZE].map(usize::to_le_bytes).concat());
            let discard = [disk, block_control::DISCARD as usize, range];
            behave(Behaviour::Silent);
            let children = [(); 3].map(|()| {
                let child = program.fork(move |program| {
                    let _ = program.call(SystemCall::DeviceControl, discard);
                    panic!("the disk has not answered");
                });
                program.sleep_ns(1_000_000);
                child.unwrap()
            });
            // The second waits for the first, and the last for its turn behind that.
            for child in [children[1], children[0], children[2]] {
                let signal = abi_unix::types::signal::KILL;
                assert_eq!(program.call(SystemCall::Kill, [child, signal as usize]), Ok(0));
                assert_eq!(program.wait_for(child), Ok((child, signal)));
            }
            device(|device| device.behaviour = Behaviour::Works);
            all()[0].whole.attendant.summon();
            assert_eq!(program.call(SystemCall::DeviceControl, discard), Ok(0));
            let place = program.store(&[7; PAGE_SIZE]);
            assert_eq!(program.call(SystemCall::WriteAt, [disk, place, PAGE_SIZE, 0]), Ok(PAGE_SIZE));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [disk]), Ok(0));
            assert_eq!(program.call(SystemCall::ReadAt, [disk, place, PAGE_SIZE, PAGE_SIZE]), Ok(PAGE_SIZE));
            assert_eq!(program.read(place, PAGE_SIZE), [0xdd; PAGE_SIZE]);
            // Other tests find zeros.
            assert_eq!(
                program.call(SystemCall::DeviceControl, [disk, block_control::FILL_WITH_ZEROS as usize, range]),
                Ok(0)
            );
            assert_eq!(program.call(SystemCall::SynchroniseFile, [disk]), Ok(0));
        });
    }

    #[test]
    fn a_device_that_does_not_answer_is_given_up() {
        run(|program| {
            behave(Behaviour::Silent);
            let disk = open_disk(program);
            assert_eq!(program.call(SystemCall::ReadAt, [disk, DATA, 10, 40 * PAGE_SIZE]), Err(Errno::EIO));
            assert_eq!(program.call(SystemCall::WriteAt, [disk, DATA, 10, 41 * PAGE_SIZE]), Err(Errno::EIO));
            // All other tests find it working.
            behave(Behaviour::Works);
            assert_eq!(program.call(SystemCall::ReadAt, [disk, DATA, 10, 40 * PAGE_SIZE]), Ok(10));
        });
    }

    /// Requests that are answered meanwhile do not keep the swallowed one waiting.
    #[test]
    fn a_device_that_swallows_a_request_is_given_up() {
        run(|program| {
            behave(Behaviour::Swallows);
            let disk = open_disk(program);
            let place = program.place(PAGE_SIZE);
            assert_eq!(program.submit(SystemCall::ReadAt, [disk, place, 10, 40 * PAGE_SIZE], 1), None);
            let seconds = (PATIENCE_NS / 1_000_000_000) as usize;
            for second in 0..seconds - 1 {
                let at = second * PAGE_SIZE;
                assert_eq!(program.call(SystemCall::ReadAt, [disk, DATA, 10, at]), Ok(10));
                program.sleep_ns(1_000_000_000);
            }
            assert_eq!(program.completions(), [], "the device has time");
            program.sleep_ns(2_000_000_000);
            assert_eq!(program.await_completions(), [(1, Err(Errno::EIO))]);
            behave(Behaviour::Works);
            assert_eq!(program.call(SystemCall::ReadAt, [disk, place, 10, 40 * PAGE_SIZE]), Ok(10));
        });
    }
}
