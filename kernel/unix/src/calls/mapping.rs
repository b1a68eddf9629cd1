//! The memory calls: `brk`, `mmap`, `munmap`, `mprotect`, `madvise`, `msync`, `mlock`.
//!
//! Each changes a range part by part ([`steps`]): a part has a bounded number of pages, and is changed as a whole,
//! under the lock of the address space. A range with few existing pages is one part, however long it is, and then the
//! call is done at once. Threads that look at a larger range meanwhile may find that a part of it has changed and the
//! rest has not.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::future::poll_fn;
use core::ops::Range;
use core::task::Waker;

use abi_unix::types::{
    FLUSH_INSTRUCTIONS_LOCALLY, advice, mapping, memory_barrier, memory_lock, memory_synchronisation, protection,
};
use abi_unix::{Errno, SystemCall};
use memory::AddressSpace;
use memory::space::{Flush, MapError, ObjectUse, Placement, Sharing};
use memory::sv39::{Edge, Protection};
use spin::Mutex;

use crate::asynchronous::operation::Operation;
use crate::asynchronous::user_interrupts;
use crate::calls::call::{Call, Decoded, Decoding, kept_steps};
use crate::calls::fetching::{Watching, fetch_range};
use crate::files::file::OpenFile;
use crate::files::shared_memory::{FILE_NAME, SHARED_NAME};
use crate::files::volume::file::VolumeFile;
use crate::files::volume::{self, VolumeRequest, VolumeSubmission};
use crate::files::{mounts, shared_memory};
use crate::process::Process;
use crate::process::accounts::{Charge, Resource, UNLIMITED, has_machine_memory};
use crate::process::barriers;
use crate::process::user::map_error;
use crate::process::user::{USER_END, UserBuffer};
use crate::scheduling::steps;

const PAGE: usize = abi_queue::pages::PAGE_SIZE;

/// Number of times that a range is unmapped to map something there.
const MOST_TRIES: usize = 16;

/// Decodes a protection. Writable and executable at once is refused (W^X), with `EACCES` as on hardened Linux systems.
/// Without any right a page stays reserved and every access faults.
fn decode_protection(bits: u32) -> Result<Protection, Errno> {
    if bits & !(protection::READ | protection::WRITE | protection::EXECUTE) != 0 {
        return Err(Errno::EINVAL);
    }
    Protection::from_bits(bits).map_err(|_| Errno::EACCES)
}

pub(super) fn round_up(length: usize) -> Result<usize, Errno> {
    length.checked_next_multiple_of(PAGE).filter(|&length| length <= USER_END).ok_or(Errno::ENOMEM)
}

/// Fails with `ENOMEM` if the address space would become larger than the process may have it.
pub(super) fn require_addresses(process: &Process, more: usize) -> Result<(), Errno> {
    let limit = process.account.address_space();
    if limit == UNLIMITED {
        return Ok(());
    }
    let mapped = process.space().lock().mapped_bytes();
    if (mapped as usize).saturating_add(more) > limit { Err(Errno::ENOMEM) } else { Ok(()) }
}

/// The rest of a range that is unmapped, protected or mapped over part by part.
pub(super) struct RangeParts {
    whole: Range<u64>,
    /// The end of the region that crosses the start of the range: done from its end, so that the region is never split.
    head: Range<u64>,
    /// The rest behind that, done from its start.
    tail: Range<u64>,
}

impl RangeParts {
    pub(super) fn new(space: &AddressSpace, start: usize, length: usize) -> RangeParts {
        let whole = start as u64..(start + length) as u64;
        let crossing = space.region_at(whole.start).map(|region| region.range);
        let head = match crossing {
            Some(region) if region.start < whole.start && region.end <= whole.end => whole.start..region.end,
            _ => whole.start..whole.start,
        };
        RangeParts { tail: head.end..whole.end, head, whole }
    }

    /// Takes the next part; `None` if all is done.
    fn next(&mut self, space: &AddressSpace) -> Option<Range<u64>> {
        if !self.head.is_empty() {
            let part = space.part(&self.head, Edge::End);
            self.head.end = part.start;
            return Some(part);
        }
        if self.tail.is_empty() {
            return None;
        }
        let part = space.part(&self.tail, Edge::Start);
        self.tail.start = part.end;
        Some(part)
    }

    fn is_done(&self) -> bool {
        self.head.is_empty() && self.tail.is_empty()
    }
}

/// Change to each part of a range.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Unmap,
    Protect(Protection),
    /// Maps pages of zeros, in a region of this name, in place of the present ones.
    Replace(Protection, &'static str),
}

impl Change {
    /// Changes the next part of a range, all of it under one lock.
    fn step(self, process: &Process, rest: &mut RangeParts) -> Result<(), Errno> {
        let mut space = process.space().lock();
        let Some(part) = rest.next(&space) else { return Ok(()) };
        let changed = match self {
            Change::Unmap => space.unmap_part(part, &rest.whole),
            Change::Protect(protection) => space.protect(part, protection),
            Change::Replace(protection, name) => space
                .map_anonymous(Placement::Fixed(part.start), part.end - part.start, protection, name)
                .map(|(_, flush)| flush),
        };
        drop(space);
        usermode::flush(changed.map_err(map_error)?);
        Ok(())
    }

    /// Changes the rest of a range.
    pub(super) async fn go_on(self, process: &Process, mut rest: RangeParts) -> Result<(), Errno> {
        loop {
            self.step(process, &mut rest)?;
            if rest.is_done() {
                return Ok(());
            }
            steps::pause(process).await;
        }
    }

    /// Changes a range: the first part in place, and more parts until there is memory to go on with the rest.
    fn begin(self, process: &Process, start: usize, length: usize) -> Result<RangeParts, Errno> {
        let mut rest = RangeParts::new(&process.space().lock(), start, length);
        loop {
            self.step(process, &mut rest)?;
            if rest.is_done() || has_machine_memory() {
                return Ok(rest);
            }
        }
    }

    /// Changes a range, in a call whose result is 0.
    fn carry_out(self, call: &Call<'_>, start: usize, length: usize) -> Decoding {
        let rest = self.begin(call.process(), start, length)?;
        if rest.is_done() {
            return Ok(0.into());
        }
        let process = call.process().clone();
        Ok(in_steps(call, async move {
            steps::pause(&process).await;
            self.go_on(&process, rest).await.map(|()| 0)
        }))
    }
}

/// Decodes a call into steps in which it goes on.
fn in_steps(call: &Call<'_>, work: impl Future<Output = Result<usize, Errno>> + Send + 'static) -> Decoded {
    Operation::Long(call.number, Box::pin(work)).into()
}

/// Performs `brk` in Linux's own form, which returns the present end and never an error.
#[inline(never)]
pub(super) fn set_break(call: Call<'_>) -> Decoding {
    let (process, end) = (call.process(), call.address(0));
    let now = process.space().lock().break_end() as usize;
    if end > now && require_addresses(process, end - now).is_err() {
        return Ok(now.into());
    }
    loop {
        let is_done = move_break(process, end as u64);
        if is_done {
            return Ok((process.space().lock().break_end() as usize).into());
        }
        if has_machine_memory() {
            break;
        }
    }
    let process = process.clone();
    Ok(in_steps(&call, async move {
        loop {
            steps::pause(&process).await;
            if move_break(&process, end as u64) {
                return Ok(process.space().lock().break_end() as usize);
            }
        }
    }))
}

/// Moves the break a step towards an end; returns whether it is there, or cannot get there.
fn move_break(process: &Process, end: u64) -> bool {
    let mut space = process.space().lock();
    let now = space.break_end();
    // An end that is not below the present one gives nothing back, and may be too large to be rounded up.
    let given_back = end.min(now).next_multiple_of(PAGE as u64)..now.next_multiple_of(PAGE as u64);
    let to = if given_back.is_empty() { end } else { end.max(space.part(&given_back, Edge::End).start) };
    let moved = space.set_break(to);
    drop(space);
    match moved {
        Ok(changed) => {
            usermode::flush(changed);
            to == end
        }
        Err(_) => true,
    }
}

/// A checked `mmap`.
struct Mapping {
    placement: Placement,
    length: usize,
    protection: Protection,
    source: Source,
    /// Whether its pages are to be in memory when it is there (`MAP_POPULATE`, `MAP_LOCKED`).
    populates: bool,
}

/// Contents of a mapping.
enum Source {
    /// Zeros, for the process alone.
    Zeros,
    /// A copy of a file's bytes from an offset on.
    Copy(Arc<OpenFile>, usize),
    /// Zeros, in common with copies of the process.
    CommonZeros,
    /// The bytes of a file from an offset on, in common with everybody.
    File(Arc<OpenFile>, usize, Sharing),
}

impl Mapping {
    fn check(call: &Call<'_>) -> Result<Mapping, Errno> {
        let (address, offset) = (call.address(0), call.word(5));
        let protection = decode_protection(call.unsigned(2))?;
        if call.length(1) == 0 || !offset.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let flags = check_flags(call.unsigned(3))?;
        let length = round_up(call.length(1))?;
        let is_shared = flags & mapping::SHARED != 0;
        let source = if flags & mapping::ANONYMOUS != 0 {
            if is_shared { Source::CommonZeros } else { Source::Zeros }
        } else {
            let file = call.file(4)?;
            file.require_mappable()?;
            let executes = matches!(protection, Protection::Execute | Protection::ReadExecute);
            if executes && file.object().mount().is_some_and(|mount| mounts::forbids_execution(mount)) {
                return Err(Errno::EPERM);
            }
            if is_shared {
                let sharing = file.sharing(protection == Protection::ReadWrite)?;
                Source::File(file, offset, sharing)
            } else {
                Source::Copy(file, offset)
            }
        };
        let placement = place(call.process(), address, length, flags)?;
        require_addresses(call.process(), length)?;
        let populates = flags & (mapping::POPULATE | mapping::LOCKED) != 0;
        Ok(Mapping { placement, length, protection, source, populates })
    }

    /// Returns the protection of the pages before the contents are there.
    fn initial_protection(&self) -> Protection {
        if self.is_copy() { Protection::ReadWrite } else { self.protection }
    }

    fn is_copy(&self) -> bool {
        matches!(self.source, Source::Copy(..))
    }

    /// Returns whether others can have the same pages.
    fn is_common(&self) -> bool {
        matches!(self.source, Source::CommonZeros | Source::File(..))
    }

    /// Returns the name of its region.
    fn name(&self) -> &'static str {
        match self.source {
            Source::Zeros => "",
            Source::CommonZeros => SHARED_NAME,
            Source::Copy(..) | Source::File(..) => FILE_NAME,
        }
    }

    /// Maps the pages, or the first of them if they take the place of others; returns the first address, and the rest
    /// to be mapped.
    fn begin(&self, process: &Process) -> Result<(usize, Option<RangeParts>), Errno> {
        let initial = self.initial_protection();
        if let Placement::Fixed(start) = self.placement {
            let rest = Change::Replace(initial, self.name()).begin(process, start as usize, self.length)?;
            return Ok((start as usize, Some(rest).filter(|rest| !rest.is_done())));
        }
        let mapped = process.space().lock().map_anonymous(self.placement, self.length as u64, initial, self.name());
        let (start, changed) = mapped.map_err(map_error)?;
        usermode::flush(changed);
        Ok((start as usize, None))
    }

    /// Maps the rest, and copies the contents.
    async fn go_on(self, process: Arc<Process>, start: usize, rest: Option<RangeParts>) -> Result<usize, Errno> {
        if let Some(rest) = rest {
            steps::pause(&process).await;
            Change::Replace(self.initial_protection(), self.name()).go_on(&process, rest).await?;
        }
        let Source::Copy(file, offset) = &self.source else { return Ok(start) };
        let filled = fill(&process, file, start, self.length, *offset).await;
        let rest = RangeParts::new(&process.space().lock(), start, self.length);
        let last = if filled.is_ok() { Change::Protect(self.protection) } else { Change::Unmap };
        last.go_on(&process, rest).await?;
        filled.map(|()| start)
    }

    /// Maps pages that others can have too. Pages of a file are moved to its common memory before, in steps.
    async fn share(self, process: Arc<Process>) -> Result<usize, Errno> {
        let object = match &self.source {
            Source::File(file, offset, sharing) => {
                let (object, mapping) = file.object().common_memory(&*process, *sharing)?;
                let keeps = Arc::new(Kept {
                    file: file.clone(),
                    sharing: *sharing,
                    _mapping: mapping,
                    pinned: Mutex::new(process.account.nothing(Resource::Memory)),
                    _watching: object.is_fetched().then(Watching::begin),
                });
                let first = (offset / PAGE) as u64;
                let pages = first..first + (self.length / PAGE) as u64;
                keeps.share_pages(&process, pages.clone()).await?;
                if object.is_fetched() && self.populates {
                    keeps.fetch(&process, pages)?.await?;
                }
                ObjectUse { object, first, sharing: *sharing, keeps: Some(keeps) }
            }
            _ => {
                let object = shared_memory::anonymous(&process.account, process.id, self.length.div_ceil(PAGE))?;
                ObjectUse { object, first: 0, sharing: Sharing::ReadWrite, keeps: None }
            }
        };
        let (length, name) = (self.length as u64, self.name());
        map_in_place_of(&process, self.placement, self.length, |at| {
            process.space().lock().map_object(at, length, &object, self.protection, name)
        })
        .await
    }
}

/// Maps a range in one piece; at a fixed place, after the present mappings there have been unmapped in steps. `ENOMEM`
/// if another thread maps something there again and again.
pub(super) async fn map_in_place_of(
    process: &Process,
    placement: Placement,
    length: usize,
    map: impl Fn(Placement) -> Result<(u64, Flush), MapError>,
) -> Result<usize, Errno> {
    let mut at = placement;
    for _ in 0..MOST_TRIES {
        if let Placement::Fixed(start) = placement {
            let rest = RangeParts::new(&process.space().lock(), start as usize, length);
            Change::Unmap.go_on(process, rest).await?;
            // A mapping that another thread has made meanwhile is unmapped in steps, too.
            at = Placement::FixedIfFree(start);
        }
        match map(at) {
            Err(MapError::Occupied) if matches!(placement, Placement::Fixed(_)) => {}
            mapped => {
                let (start, changed) = mapped.map_err(map_error)?;
                usermode::flush(changed);
                return Ok(start as usize);
            }
        }
    }
    Err(Errno::ENOMEM)
}

/// The file of a mapping in common with it, and its use of that file's pages.
pub(super) struct Kept {
    file: Arc<OpenFile>,
    sharing: Sharing,
    _mapping: Arc<dyn Any + Send + Sync>,
    /// Pages of a volume that it keeps in memory.
    pinned: Mutex<Charge>,
    /// Calls look at their buffers, if pages are fetched when they are touched.
    _watching: Option<Watching>,
}

impl Kept {
    /// Moves pages of the file to its common memory, in steps. Those of a disk come when they are touched.
    pub(super) async fn share_pages(&self, process: &Process, pages: Range<u64>) -> Result<(), Errno> {
        if let Some(file) = self.file.as_kind::<VolumeFile>() {
            if file.node().is_fetched() && !process.rings.has_any() {
                self.pin(file.node().count_pages(pages.clone()).0)?;
                file.note_stores(process, pages, self.sharing).await;
                return Ok(());
            }
            // Calls of rings do not wait for pages.
            return self.fetch(process, pages)?.await;
        }
        for page in pages {
            if !self.file.object().share_page(process, page)? {
                break;
            }
            steps::pause(process).await;
        }
        Ok(())
    }

    /// Has pages of a file of a volume in memory, where they stay as long as the mapping.
    ///
    /// # Cancellation
    /// Pages that were asked for are read.
    pub(super) fn fetch<'a>(
        &'a self,
        process: &'a Process,
        pages: Range<u64>,
    ) -> Result<impl Future<Output = Result<(), Errno>> + Send + 'a, Errno> {
        // Others have their pages already.
        let file = self.file.as_kind::<VolumeFile>().ok_or(Errno::EINVAL)?;
        self.pin(file.node().count_pages(pages.clone()).1)?;
        Ok(file.bring_in(process, pages, self.sharing))
    }

    /// Asks for a few pages of a file of a volume, which stay as long as the mapping.
    pub(super) fn ask(&self, process: &Process, pages: Range<u64>) -> Result<VolumeSubmission, Errno> {
        let file = self.file.as_kind::<VolumeFile>().ok_or(Errno::EINVAL)?;
        self.pin(file.node().count_pages(pages.clone()).1)?;
        file.ask_for_pages(process, pages, self.sharing == Sharing::ReadWrite)
    }

    /// Charges so many pages more, which the mapping keeps in memory.
    fn pin(&self, pages: u64) -> Result<(), Errno> {
        let mut pinned = self.pinned.lock();
        let all = pinned.amount() + pages as usize * PAGE;
        pinned.resize(all).map(drop)
    }
}

fn check_flags(flags: u32) -> Result<u32, Errno> {
    let known = mapping::PRIVATE
        | mapping::SHARED
        | mapping::FIXED
        | mapping::FIXED_NOREPLACE
        | mapping::ANONYMOUS
        | mapping::DENY_WRITE
        | mapping::EXECUTABLE
        | mapping::LOCKED
        | mapping::NORESERVE
        | mapping::POPULATE
        | mapping::STACK;
    match flags & (mapping::PRIVATE | mapping::SHARED) {
        0 => Err(Errno::EINVAL),
        // Both bits stand for a shared mapping whose flags are checked.
        both if both == mapping::PRIVATE | mapping::SHARED && flags & !known != 0 => Err(Errno::EOPNOTSUPP),
        _ if flags & !known != 0 => Err(Errno::EINVAL),
        _ => Ok(flags),
    }
}

/// Decides the place of a mapping.
pub(super) fn place(process: &Process, address: usize, length: usize, flags: u32) -> Result<Placement, Errno> {
    let fixed = flags & (mapping::FIXED | mapping::FIXED_NOREPLACE) != 0;
    let is_outside = !address.is_multiple_of(PAGE) || address == 0 || length > USER_END - address.min(USER_END);
    let is_reserved = user_interrupts::has_send_pages(process, address, length);
    if fixed && (is_outside || is_reserved) {
        return Err(Errno::EINVAL);
    }
    Ok(match (fixed, flags & mapping::FIXED_NOREPLACE != 0) {
        (true, false) => Placement::Fixed(address as u64),
        (true, true) => Placement::FixedIfFree(address as u64),
        (false, _) if address != 0 && !is_reserved => Placement::Near((address - address % PAGE) as u64),
        (false, _) => Placement::Anywhere,
    })
}

/// Performs `mmap`: private mappings, anonymous or with a copy of a file's contents, and shared ones.
#[inline(never)]
pub(super) fn map(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let mapping = Mapping::check(&call)?;
    if mapping.is_common() {
        return Ok(in_steps(&call, mapping.share(process.clone())));
    }
    let (start, rest) = mapping.begin(process)?;
    if rest.is_none() && !mapping.is_copy() {
        return Ok(start.into());
    }
    Ok(in_steps(&call, mapping.go_on(process.clone(), start, rest)))
}

/// Copies a file to a fresh mapping, as far as the file goes.
///
/// # Cancellation
/// Bytes that were copied stay.
async fn fill(process: &Process, file: &OpenFile, start: usize, length: usize, offset: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < length {
        let position = offset.checked_add(done).ok_or(Errno::EOVERFLOW)? as u64;
        match read_step(process, file, UserBuffer::new(start + done, length - done)?, position).await {
            Ok(count) if count < steps::BYTES => break,
            Ok(count) => done += count,
            Err(Errno::EIO) => return Err(Errno::EIO),
            // The mapping is there and writable, so memory is missing. (Another worker may have unmapped it, too.)
            Err(_) => return Err(Errno::ENOMEM),
        }
        steps::pause(process).await;
    }
    Ok(())
}

/// Reads a step's bytes of a file, which may be on a disk.
///
/// # Cancellation
/// Bytes may have been read.
async fn read_step(process: &Process, file: &OpenFile, buffer: UserBuffer, position: u64) -> Result<usize, Errno> {
    /// A reader that is registered with a file.
    struct Registered<'a>(&'a OpenFile, Option<Waker>);

    impl Drop for Registered<'_> {
        fn drop(&mut self) {
            if let Some(waker) = &self.1 {
                self.0.object().forget_reader(waker);
            }
        }
    }

    let mut registered = Registered(file, None);
    poll_fn(|cx| {
        let waker = steps::waker_of(cx);
        let attempt = file.object().poll_read_at(process, buffer, position, waker);
        registered.1 = waker.filter(|_| attempt.is_pending()).cloned();
        attempt
    })
    .await
}

/// Performs `munmap`.
#[inline(never)]
pub(super) fn unmap(call: Call<'_>) -> Decoding {
    let (address, length) = (call.address(0), call.length(1));
    let is_outside = !address.is_multiple_of(PAGE) || length == 0 || length > USER_END - address.min(USER_END);
    if is_outside || user_interrupts::has_send_pages(call.process(), address, length) {
        return Err(Errno::EINVAL);
    }
    Change::Unmap.carry_out(&call, address, round_up(length)?)
}

/// Performs `mprotect`.
#[inline(never)]
pub(super) fn protect(call: Call<'_>) -> Decoding {
    let (address, length) = (call.address(0), call.length(1));
    let protection = decode_protection(call.unsigned(2))?;
    if !address.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if length == 0 {
        return Ok(0.into());
    }
    if length > USER_END - address.min(USER_END) {
        return Err(Errno::ENOMEM);
    }
    if user_interrupts::has_send_pages(call.process(), address, length) {
        return Err(Errno::EINVAL);
    }
    Change::Protect(protection).carry_out(&call, address, round_up(length)?)
}

/// Gives back the pages of the next part of a range, and advances it.
fn discard_some(process: &Process, rest: &mut Range<u64>) -> Result<(), Errno> {
    let mut space = process.space().lock();
    let region = space.region_at(rest.start).ok_or(Errno::ENOMEM)?;
    let inside = rest.start..rest.end.min(region.range.end);
    // The kernel's own pages, and copies of files, have names.
    if !region.name.is_empty() {
        rest.start = inside.end;
        return Ok(());
    }
    let part = space.part(&inside, Edge::Start);
    rest.start = part.end;
    let changed = space.discard(part);
    drop(space);
    usermode::flush(changed.map_err(map_error)?);
    Ok(())
}

/// Excludes the next region of a range from core files, or includes it, and advances the range.
fn exclude_some(process: &Process, rest: &mut Range<u64>, excludes: bool) -> Result<(), Errno> {
    let mut space = process.space().lock();
    let region = space.region_at(rest.start).ok_or(Errno::ENOMEM)?;
    let part = rest.start..rest.end.min(region.range.end);
    space.exclude_from_dumps(part.clone(), excludes).map_err(map_error)?;
    rest.start = part.end;
    Ok(())
}

/// Performs `madvise`.
#[inline(never)]
pub(super) fn advise(call: Call<'_>) -> Decoding {
    let (address, length, given) = (call.address(0), call.length(1), call.unsigned(2));
    let has_effect = matches!(given, advice::DONTNEED | advice::DONTDUMP | advice::DODUMP);
    let is_known = has_effect || advice::WITHOUT_EFFECT.contains(&given);
    if !is_known || !address.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if length > USER_END - address.min(USER_END) {
        return Err(Errno::EINVAL);
    }
    let mut rest = address as u64..(address + round_up(length)?) as u64;
    if rest.is_empty() || !has_effect {
        return Ok(0.into());
    }
    let process = call.process().clone();
    let advise_some = move |process: &Process, rest: &mut Range<u64>| match given {
        advice::DONTNEED => discard_some(process, rest),
        _ => exclude_some(process, rest, given == advice::DONTDUMP),
    };
    advise_some(&process, &mut rest)?;
    if rest.is_empty() {
        return Ok(0.into());
    }
    Ok(kept_steps(call.number, async move {
        while !rest.is_empty() {
            steps::pause(&process).await;
            advise_some(&process, &mut rest)?;
        }
        Ok(0)
    }))
}

/// Looks whether a range is mapped without a hole, some regions in each step.
fn require_mapped(call: &Call<'_>, range: Range<u64>) -> Decoding {
    /// Looks at some regions; returns whether all of the range was seen.
    fn step(process: &Process, rest: &mut Range<u64>) -> Result<bool, Errno> {
        let space = process.space().lock();
        for _ in 0..steps::ENTRIES {
            if rest.is_empty() {
                return Ok(true);
            }
            rest.start = space.region_at(rest.start).ok_or(Errno::ENOMEM)?.range.end;
        }
        Ok(rest.is_empty())
    }
    let (process, mut rest) = (call.process().clone(), range);
    if step(&process, &mut rest)? {
        return Ok(0.into());
    }
    Ok(kept_steps(call.number, async move {
        loop {
            steps::pause(&process).await;
            if step(&process, &mut rest)? {
                return Ok(0);
            }
        }
    }))
}

/// Performs `msync`.
#[inline(never)]
pub(super) fn synchronise(call: Call<'_>) -> Decoding {
    use memory_synchronisation::{ASYNC, INVALIDATE, SYNC};
    let (address, flags) = (call.address(0), call.unsigned(2));
    let is_both = flags & (ASYNC | SYNC) == ASYNC | SYNC;
    if !address.is_multiple_of(PAGE) || is_both || flags & !(ASYNC | INVALIDATE | SYNC) != 0 {
        return Err(Errno::EINVAL);
    }
    let range = pages_of(address, call.length(1))?;
    let answer = require_mapped(&call, range.clone())?;
    if flags & SYNC == 0 || !has_volumes() {
        return Ok(answer);
    }
    let process = call.process().clone();
    Ok(kept_steps(call.number, async move {
        let mut rest = range;
        while !rest.is_empty() {
            let (end, keeps) = {
                let space = process.space().lock();
                let end = space.region_at(rest.start).ok_or(Errno::ENOMEM)?.range.end;
                let used = space.uniform(&(rest.start..end.min(rest.end)));
                (end, used.and_then(|(_, object)| object?.keeps))
            };
            if let Some(keeps) = keeps.and_then(|keeps| keeps.downcast::<Kept>().ok())
                && let Some(file) = keeps.file.as_kind::<VolumeFile>()
            {
                let request = VolumeRequest::Synchronise(Some(file.node().clone()));
                let done = file.submit(&*process, request)?.answer().await;
                file.report_failures()?;
                done?;
            }
            rest.start = end;
            steps::pause(&process).await;
        }
        Ok(0)
    }))
}

/// Whether there are files of volumes, which `msync` has to write.
fn has_volumes() -> bool {
    !volume::all().is_empty()
}

/// Performs `mlock` and `munlock`.
#[inline(never)]
pub(super) fn lock(call: Call<'_>) -> Decoding {
    lock_pages(call, false)
}

/// Performs a call of the `mlock` family; pages that are locked on a fault are fetched when they are touched.
fn lock_pages(call: Call<'_>, on_fault: bool) -> Decoding {
    let address = call.address(0);
    let within = address % PAGE;
    let length = call.length(1).checked_add(within).ok_or(Errno::EINVAL)?;
    let range = pages_of(address - within, length)?;
    let answer = require_mapped(&call, range.clone())?;
    if on_fault || call.number == SystemCall::UnlockMemory || !call.process().space().lock().has_fetched() {
        return Ok(answer);
    }
    let process = call.process().clone();
    Ok(kept_steps(call.number, async move { fetch_range(&process, range).await.map(|()| 0) }))
}

/// Performs `mlock2`.
#[inline(never)]
pub(super) fn lock_with(call: Call<'_>) -> Decoding {
    let flags = call.unsigned(2);
    if flags & !memory_lock::ON_FAULT != 0 {
        return Err(Errno::EINVAL);
    }
    lock_pages(call, flags & memory_lock::ON_FAULT != 0)
}

/// Performs `mlockall`.
#[inline(never)]
pub(super) fn lock_all(call: Call<'_>) -> Decoding {
    use memory_lock::{ALL_ON_FAULT, CURRENT, FUTURE};
    let flags = call.unsigned(0);
    if flags & !(CURRENT | FUTURE | ALL_ON_FAULT) != 0 || flags & (CURRENT | FUTURE) == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(0.into())
}

/// Number of pages that `mincore` looks at in one step.
const PAGES_IN_A_STEP: usize = 128;

/// Performs `mincore`.
#[inline(never)]
pub(super) fn residence(call: Call<'_>) -> Decoding {
    /// Tells of some pages; returns whether these were the last.
    fn step(process: &Process, rest: &mut Range<u64>, to: &mut usize) -> Result<bool, Errno> {
        let end = rest.end.min(rest.start + (PAGES_IN_A_STEP * PAGE) as u64);
        let count = (end - rest.start) as usize / PAGE;
        let mut there = [0; PAGES_IN_A_STEP];
        {
            let space = process.space().lock();
            let mut mapped = rest.start..rest.start;
            for (told, page) in there.iter_mut().zip((rest.start..end).step_by(PAGE)) {
                if page >= mapped.end {
                    mapped = space.region_at(page).ok_or(Errno::ENOMEM)?.range;
                }
                *told = space.is_resident(page).into();
            }
        }
        process.copy_out(*to, &there[..count])?;
        (rest.start, *to) = (end, *to + count);
        Ok(rest.is_empty())
    }
    let address = call.address(0);
    if !address.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let mut rest = pages_of(address, call.length(1))?;
    let mut to = UserBuffer::new(call.address(2), (rest.end - rest.start) as usize / PAGE)?.address();
    let process = call.process().clone();
    if rest.is_empty() || step(&process, &mut rest, &mut to)? {
        return Ok(0.into());
    }
    Ok(kept_steps(call.number, async move {
        loop {
            steps::pause(&process).await;
            if step(&process, &mut rest, &mut to)? {
                return Ok(0);
            }
        }
    }))
}

/// Performs `riscv_flush_icache`: the harts that are in the program now fetch anew, and the others do when they enter
/// it. Which harts its threads were on before does not matter then.
#[inline(never)]
pub(super) fn flush_instructions(call: Call<'_>) -> Decoding {
    if call.word(2) & !FLUSH_INSTRUCTIONS_LOCALLY != 0 {
        return Err(Errno::EINVAL);
    }
    call.process().space().fetch_anew();
    Ok(0.into())
}

/// Performs `membarrier`.
#[inline(never)]
pub(super) fn barrier(call: Call<'_>) -> Decoding {
    if call.unsigned(1) != 0 {
        return Err(Errno::EINVAL);
    }
    let process = call.process();
    if call.unsigned(0) == memory_barrier::GLOBAL {
        return Ok(kept_steps(call.number, barriers::order_all(process.clone())));
    }
    process.barriers.perform(process.space(), call.unsigned(0)).map(Into::into)
}

/// Returns the pages of a range that begins at one. `ENOMEM` outside of the user half.
fn pages_of(address: usize, length: usize) -> Result<Range<u64>, Errno> {
    if length > USER_END - address.min(USER_END) {
        return Err(Errno::ENOMEM);
    }
    Ok(address as u64..(address + round_up(length)?) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use abi_unix::SystemCall;
    use hal_api::{Access, Trap};
    use proptest::prelude::*;

    use super::*;
    use crate::process::exit_status::Ending;
    use crate::testing::{DATA, Program, run, run_to_its_end};

    const ANONYMOUS: usize = (mapping::PRIVATE | mapping::ANONYMOUS) as usize;
    const SHARED: usize = mapping::SHARED as usize;
    const FIXED: usize = ANONYMOUS | mapping::FIXED as usize;
    const READ_WRITE: usize = (protection::READ | protection::WRITE) as usize;
    /// Address of the model's pages.
    const BASE: usize = 0x10_0000_0000;
    const PAGES: usize = 24;

    fn map(program: &mut Program, address: usize, length: usize, flags: usize) -> Result<usize, Errno> {
        program.call(SystemCall::Map, [address, length, READ_WRITE, flags, usize::MAX, 0])
    }

    fn can_read(program: &Program, address: usize) -> bool {
        program.process().copy_in(address, &mut [0]).is_ok()
    }

    fn can_write(program: &Program, address: usize, value: u8) -> bool {
        program.process().copy_out(address, &[value]).is_ok()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Map(usize, usize, bool),
        Unmap(usize, usize),
        Protect(usize, usize, u32),
        Write(usize, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..PAGES, 1..8usize);
        prop_oneof![
            (range(), any::<bool>()).prop_map(|((page, pages), free)| Step::Map(page, pages, free)),
            range().prop_map(|(page, pages)| Step::Unmap(page, pages)),
            (range(), prop::sample::select(vec![0, protection::READ, protection::READ | protection::WRITE]))
                .prop_map(|((page, pages), bits)| Step::Protect(page, pages, bits)),
            (0..PAGES, 1..255u8).prop_map(|(page, value)| Step::Write(page, value)),
        ]
    }

    /// Does the steps in a process, and with a table of pages: each has its protection and its first byte.
    fn compare(program: &mut Program, steps: &[Step]) {
        let mut model: BTreeMap<usize, (u32, u8)> = BTreeMap::new();
        let at = |page: usize| BASE + page * PAGE;
        for step in steps {
            match *step {
                Step::Map(page, pages, only_if_free) => {
                    let range = page..page + pages;
                    let is_taken = model.range(range.clone()).next().is_some();
                    let flags = if only_if_free { mapping::FIXED_NOREPLACE } else { mapping::FIXED };
                    let result = map(program, at(page), pages * PAGE, ANONYMOUS | flags as usize);
                    if only_if_free && is_taken {
                        assert_eq!(result, Err(Errno::EEXIST));
                    } else {
                        assert_eq!(result, Ok(at(page)));
                        model.extend(range.map(|page| (page, (protection::READ | protection::WRITE, 0))));
                    }
                }
                Step::Unmap(page, pages) => {
                    assert_eq!(program.call(SystemCall::Unmap, [at(page), pages * PAGE]), Ok(0));
                    model.retain(|other, _| !(page..page + pages).contains(other));
                }
                Step::Protect(page, pages, bits) => {
                    let range = page..page + pages;
                    let is_whole = model.range(range.clone()).count() == pages;
                    let result = program.call(SystemCall::Protect, [at(page), pages * PAGE, bits as usize]);
                    assert_eq!(result, if is_whole { Ok(0) } else { Err(Errno::ENOMEM) });
                    // As on Linux, pages before a hole may have changed when the hole is met.
                    let process = program.process();
                    let space = process.space().lock();
                    for (&page, (before, _)) in model.range_mut(range) {
                        let now = space.region_at(at(page) as u64).map(|region| region.protection);
                        let has = |bits: u32| now == Protection::from_bits(bits).ok();
                        assert!(has(bits) || !is_whole && has(*before), "page {page}: {now:?}");
                        *before = if has(bits) { bits } else { *before };
                    }
                }
                Step::Write(page, value) => {
                    let may = model.get(&page).is_some_and(|(bits, _)| bits & protection::WRITE != 0);
                    assert_eq!(can_write(program, at(page), value), may, "page {page}");
                    if may {
                        model.entry(page).and_modify(|page| page.1 = value);
                    }
                }
            }
        }
        for page in 0..PAGES + 8 {
            let found = model.get(&page).filter(|(bits, _)| *bits != 0).map(|(_, value)| *value);
            let mut byte = [0];
            let read = program.process().copy_in(at(page), &mut byte).ok().map(|()| byte[0]);
            assert_eq!(read, found, "page {page}");
        }
    }

    proptest! {
        #![proptest_config(property::cases(64))]

        #[test]
        fn ranges_are_mapped_protected_and_unmapped_page_by_page(steps in prop::collection::vec(step(), 0..40)) {
            run(move |program| compare(program, &steps));
        }

        /// In any division of a range's pages into regions, each page is met once, parts never leave the range, and no
        /// region is cut but at its edges.
        #[test]
        fn a_range_is_done_in_parts_that_join(
            regions in prop::collection::vec((0..400usize, 1..90usize), 0..6),
            (start, length) in (0..450usize, 1..450usize),
        ) {
            run(move |program| {
                for &(page, pages) in &regions {
                    map(program, BASE + page * PAGE, pages * PAGE, FIXED).unwrap();
                    can_write(program, BASE + page * PAGE, 1);
                }
                let process = program.process();
                let space = process.space().lock();
                let whole = (BASE + start * PAGE) as u64..(BASE + (start + length) * PAGE) as u64;
                let mut rest = RangeParts::new(&space, whole.start as usize, length * PAGE);
                let mut parts = Vec::new();
                while let Some(part) = rest.next(&space) {
                    assert!(!part.is_empty() && part.start >= whole.start && part.end <= whole.end);
                    parts.push(part);
                }
                assert!(rest.is_done());
                parts.sort_by_key(|part| part.start);
                assert_eq!(parts.first().map(|part| part.start), Some(whole.start));
                assert_eq!(parts.last().map(|part| part.end), Some(whole.end));
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            });
        }
    }

    #[test]
    fn mmap_refuses_unsupported_mappings() {
        run(|program| {
            let refused = [
                ([0, 0, READ_WRITE, ANONYMOUS, usize::MAX, 0], Errno::EINVAL),
                ([0, PAGE, READ_WRITE, ANONYMOUS, usize::MAX, 1], Errno::EINVAL),
                ([0, PAGE, READ_WRITE, mapping::ANONYMOUS as usize, usize::MAX, 0], Errno::EINVAL),
                ([0, PAGE, READ_WRITE, ANONYMOUS | 1 << 30, usize::MAX, 0], Errno::EINVAL),
                ([0, PAGE, READ_WRITE, ANONYMOUS | SHARED | 1 << 30, usize::MAX, 0], Errno::EOPNOTSUPP),
                ([0, PAGE, READ_WRITE, SHARED | 1 << 30, usize::MAX, 0], Errno::EINVAL),
                ([0, PAGE, READ_WRITE | 4, SHARED | mapping::ANONYMOUS as usize, usize::MAX, 0], Errno::EACCES),
                ([0, PAGE, READ_WRITE, SHARED, usize::MAX, 0], Errno::EBADF),
                ([0, PAGE, READ_WRITE, SHARED, 0, 0], Errno::ENODEV),
                ([0, PAGE, 8, ANONYMOUS, usize::MAX, 0], Errno::EINVAL),
                ([0, PAGE, READ_WRITE | 4, ANONYMOUS, usize::MAX, 0], Errno::EACCES),
                ([0, usize::MAX, READ_WRITE, ANONYMOUS, usize::MAX, 0], Errno::ENOMEM),
                ([0, USER_END + PAGE, READ_WRITE, ANONYMOUS, usize::MAX, 0], Errno::ENOMEM),
                ([BASE + 1, PAGE, READ_WRITE, FIXED, usize::MAX, 0], Errno::EINVAL),
                ([0, PAGE, READ_WRITE, FIXED, usize::MAX, 0], Errno::EINVAL),
                ([USER_END - PAGE, 2 * PAGE, READ_WRITE, FIXED, usize::MAX, 0], Errno::EINVAL),
                ([0, PAGE, READ_WRITE, mapping::PRIVATE as usize, usize::MAX, 0], Errno::EBADF),
                ([0, PAGE, READ_WRITE, mapping::PRIVATE as usize, 99, 0], Errno::EBADF),
                // The console cannot be mapped.
                ([0, PAGE, READ_WRITE, mapping::PRIVATE as usize, 0, 0], Errno::ENODEV),
            ];
            for (arguments, error) in refused {
                assert_eq!(program.call(SystemCall::Map, arguments), Err(error), "{arguments:x?}");
            }
            for (address, length) in [(BASE + 1, PAGE), (BASE, 0), (USER_END - PAGE, 2 * PAGE), (BASE, usize::MAX)] {
                assert_eq!(program.call(SystemCall::Unmap, [address, length]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::Protect, [BASE + 1, PAGE, 1]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Protect, [BASE, PAGE, 1]), Err(Errno::ENOMEM));
            assert_eq!(program.call(SystemCall::Protect, [DATA, PAGE, 7]), Err(Errno::EACCES));
            assert_eq!(program.call(SystemCall::Protect, [BASE, 0, 1]), Ok(0));
        });
    }

    /// Memory in common is the same for a process and its copies, and goes with the last of them.
    #[test]
    fn copies_have_shared_memory_in_common() {
        run(|program| {
            let before = program.process().charged_without_tables();
            let flags = SHARED | mapping::ANONYMOUS as usize;
            let start = map(program, 0, 700 * PAGE, flags).unwrap();
            program.write(start, &5u64.to_le_bytes());
            let resident = program.process().space().lock().resident_frames();
            let child = program.fork(move |program| {
                assert_eq!(program.read_u64(start), 5);
                program.write(start, &6u64.to_le_bytes());
                program.write(start + 699 * PAGE, &7u64.to_le_bytes());
                // Parts that go leave the rest in place.
                assert_eq!(program.call(SystemCall::Unmap, [start, PAGE]), Ok(0));
                assert_eq!(program.call(SystemCall::Unmap, [start + 100 * PAGE, PAGE]), Ok(0));
                program.write(start + 101 * PAGE, &8u64.to_le_bytes());
                let advice = [start + PAGE, 699 * PAGE, advice::DONTNEED as usize];
                assert_eq!(program.call(SystemCall::AdviseMemory, advice), Err(Errno::ENOMEM), "there is a hole");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let found = [0, 699, 101, 350].map(|page| program.read_u64(start + page * PAGE));
            assert_eq!(found, [6, 7, 8, 0]);
            assert_eq!(program.process().space().lock().resident_frames(), resident, "its pages are the object's");
            assert!(program.process().charged_without_tables() > before + 4 * PAGE);
            assert_eq!(program.call(SystemCall::Protect, [start, PAGE, 1]), Ok(0));
            assert!(!can_write(program, start, 1));
            assert_eq!(program.call(SystemCall::Unmap, [start, 700 * PAGE]), Ok(0));
            program.sleep_ns(1_000_000);
            assert_eq!(program.process().charged_without_tables(), before);
        });
    }

    /// A file and its mappings are the same bytes, as far as the file went when it was mapped.
    #[test]
    fn a_file_and_its_shared_mappings_are_the_same() {
        run(|program| {
            let before = program.process().charged_without_tables();
            let file = program.create(b"/tmp/common\0", 2);
            let contents: Vec<u8> = (0..3 * PAGE + 100).map(|index| (index / 16) as u8).collect();
            assert_eq!(program.write_to(file, &contents), Ok(contents.len()));
            let arguments = [0, 6 * PAGE, READ_WRITE, SHARED, file, PAGE];
            let (first, second) = (program.call(SystemCall::Map, arguments), program.call(SystemCall::Map, arguments));
            let (first, second) = (first.unwrap(), second.unwrap());
            assert_eq!(program.read(second, 2 * PAGE + 100), contents[PAGE..]);
            program.write(first + 10, b"mapped");
            assert_eq!(program.read(second + 10, 6), b"mapped");
            let place = program.place(16);
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, 6, PAGE + 10]), Ok(6));
            assert_eq!(program.read(place, 6), b"mapped");
            program.write(place, b"written");
            assert_eq!(program.call(SystemCall::WriteAt, [file, place, 7, 2 * PAGE - 3]), Ok(7));
            assert_eq!(program.read(first + PAGE - 3, 7), b"written");
            // A file that reads into its own mapping.
            assert_eq!(program.call(SystemCall::ReadAt, [file, first + PAGE + 100, 7, 2 * PAGE - 3]), Ok(7));
            assert_eq!(program.read(second + PAGE + 100, 7), b"written");
            // Behind the end of the file there is the rest of a page, and then nothing.
            assert!(can_write(program, first + 2 * PAGE + 200, 9) && !can_write(program, first + 3 * PAGE, 1));
            assert_eq!(program.call(SystemCall::Truncate, [file, 5 * PAGE]), Ok(0));
            assert_eq!(program.read(second + 2 * PAGE + 200, 1), [0], "bytes beyond the end do not come back");
            // A private copy stays as it is.
            let copy = program.call(SystemCall::Map, [0, PAGE, 1, mapping::PRIVATE as usize, file, PAGE]).unwrap();
            program.write(first + 10, b"again!");
            assert_eq!(program.read(copy + 10, 6), b"mapped");
            // One that cannot be written never can.
            let path = program.store(b"/tmp/common\0");
            let reader = program.call(SystemCall::Open, [0, path, 0, 0]).unwrap();
            let writer = program.call(SystemCall::Open, [0, path, 1, 0]).unwrap();
            let map =
                |program: &mut Program, bits, file| program.call(SystemCall::Map, [0, PAGE, bits, SHARED, file, 0]);
            assert_eq!(map(program, READ_WRITE, reader), Err(Errno::EACCES));
            assert_eq!(map(program, READ_WRITE, writer), Err(Errno::EACCES), "pages that can be written can be read");
            let third = map(program, 1, reader).unwrap();
            assert_eq!(program.call(SystemCall::Protect, [third, PAGE, READ_WRITE]), Err(Errno::EACCES));
            // The contents stay while there is a mapping, and go with the last.
            program.remove(b"/tmp/common\0");
            for descriptor in [file, reader, writer] {
                assert_eq!(program.call(SystemCall::Close, [descriptor]), Ok(0));
            }
            assert_eq!(program.read(second + 10, 6), b"again!");
            for (start, length) in [(first, 6 * PAGE), (second, 6 * PAGE), (third, PAGE), (copy, PAGE)] {
                assert_eq!(program.call(SystemCall::Unmap, [start, length]), Ok(0));
            }
            program.sleep_ns(1_000_000);
            assert_eq!(program.process().charged_without_tables(), before);
        });
    }

    #[test]
    fn a_page_behind_the_end_of_a_mapped_file_is_a_bus_error() {
        let ending = run_to_its_end(|program| {
            let file = program.create(b"/tmp/short\0", 2);
            assert_eq!(program.write_to(file, b"x"), Ok(1));
            let start = program.call(SystemCall::Map, [0, 2 * PAGE, READ_WRITE, SHARED, file, 0]).unwrap();
            program.remove(b"/tmp/short\0");
            program.trap(Trap::PageFault { address: start as u64, access: Access::Read });
            program.trap(Trap::PageFault { address: (start + PAGE) as u64, access: Access::Read });
        });
        assert_eq!(ending, Ending::Killed(abi_unix::types::signal::BUS as u8));
    }

    /// A file that is cut off takes its pages from all that have mapped them, in memory and on a volume.
    #[test]
    fn pages_that_a_mapped_file_loses_are_gone_for_all() {
        use crate::files::volume::tests::in_memory_and_on_a_volume;

        fn check(program: &mut Program) {
            let before = program.process().charged_without_tables();
            let file = program.create(b"/tmp/volume/cut\0", 2);
            let contents = program.store(&[7; 4 * PAGE]);
            assert_eq!(program.call(SystemCall::Write, [file, contents, 4 * PAGE]), Ok(4 * PAGE));
            let map = |program: &mut Program, protection: usize, first: usize| {
                program.call(SystemCall::Map, [0, (5 - first) * PAGE, protection, SHARED, file, first * PAGE])
            };
            let (all, last) = (map(program, READ_WRITE, 0).unwrap(), map(program, 1, 2).unwrap());
            assert!(can_write(program, all + 4 * PAGE - 1, 8) && !can_write(program, all + 4 * PAGE, 8));
            assert_eq!(program.read(last + PAGE, 1), [7]);
            let child = program.spawn(move |program| {
                let path = program.store(b"/tmp/volume/cut\0");
                let file = program.call(SystemCall::Open, [0, path, 2, 0]).unwrap();
                let own = program.call(SystemCall::Map, [0, 4 * PAGE, READ_WRITE, SHARED, file, 0]).unwrap();
                assert_eq!(program.read(own + 3 * PAGE, 1), [7]);
                assert_eq!(program.call(SystemCall::Truncate, [file, PAGE + 100]), Ok(0));
                assert!(can_write(program, own + PAGE + 99, 1) && !can_write(program, own + 2 * PAGE, 1));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            // The rest of the last page is zeros; a call that meets another page fails as with any bad address.
            assert_eq!(program.read(all + PAGE + 98, 4), [7, 1, 0, 0]);
            for address in [all + 2 * PAGE, all + 4 * PAGE - 1, last, last + PAGE] {
                assert!(!can_write(program, address, 1), "{address:#x}");
                assert_eq!(program.call(SystemCall::WriteAt, [file, address, 1, 0]), Err(Errno::EFAULT));
            }
            assert_eq!(program.call(SystemCall::ReadAt, [file, all + 2 * PAGE, 8, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ReadAt, [file, all + 2 * PAGE - 4, 4, 0]), Ok(4));
            // Longer again, it has zeros there.
            assert_eq!(program.call(SystemCall::Truncate, [file, 3 * PAGE]), Ok(0));
            assert_eq!(program.read(all + 2 * PAGE, 2), [0, 0]);
            assert!(!can_write(program, all + 3 * PAGE, 1));
            assert_eq!(program.call(SystemCall::WriteAt, [file, contents, PAGE, 2 * PAGE]), Ok(PAGE));
            assert_eq!(program.read(all + 2 * PAGE, 2), [7, 7]);
            assert_eq!(program.read(last, 2), [7, 7]);
            assert_eq!(program.call(SystemCall::Truncate, [file, 0]), Ok(0));
            assert!(!can_write(program, all, 1));
            for (start, first) in [(all, 0), (last, 2)] {
                program.call(SystemCall::Unmap, [start, (5 - first) * PAGE]).unwrap();
            }
            program.call(SystemCall::Close, [file]).unwrap();
            program.remove(b"/tmp/volume/cut\0");
            program.sleep_ns(1_000_000);
            assert_eq!(program.process().charged_without_tables(), before);
        }

        in_memory_and_on_a_volume(check);
    }

    #[test]
    fn a_page_that_a_mapped_file_has_lost_is_a_bus_error() {
        let ending = run_to_its_end(|program| {
            let file = program.create(b"/tmp/lost\0", 2);
            assert_eq!(program.write_to(file, &[1; 2 * PAGE]), Ok(2 * PAGE));
            let start = program.call(SystemCall::Map, [0, 2 * PAGE, READ_WRITE, SHARED, file, 0]).unwrap();
            program.remove(b"/tmp/lost\0");
            program.trap(Trap::PageFault { address: (start + PAGE) as u64, access: Access::Read });
            assert_eq!(program.read(start + PAGE, 1), [1]);
            assert_eq!(program.call(SystemCall::Truncate, [file, PAGE]), Ok(0));
            program.trap(Trap::PageFault { address: (start + PAGE) as u64, access: Access::Write });
        });
        assert_eq!(ending, Ending::Killed(abi_unix::types::signal::BUS as u8));
    }

    /// Processes wait for each other at a word of their common memory, wherever each has mapped it.
    #[test]
    fn a_word_in_shared_memory_is_a_futex_of_all_its_processes() {
        use abi_unix::types::futex;
        run(|program| {
            let file = program.create(b"/tmp/futex\0", 2);
            assert_eq!(program.call(SystemCall::Truncate, [file, 2 * PAGE]), Ok(0));
            let arguments = [0, 2 * PAGE, READ_WRITE, SHARED, file, 0];
            let start = program.call(SystemCall::Map, arguments).unwrap();
            let word = start + PAGE + 8;
            let child = program.fork(move |program| {
                let again = program.call(SystemCall::Map, [0, PAGE, READ_WRITE, SHARED, file, PAGE]).unwrap();
                assert_eq!(program.call(SystemCall::Futex, [again + 8, futex::WAIT as usize, 0, 0, 0, 0]), Ok(0));
                let _ = program.call(SystemCall::ExitGroup, [4]);
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000);
            let private = (futex::WAKE | futex::PRIVATE) as usize;
            assert_eq!(program.call(SystemCall::Futex, [word, private, 1, 0, 0, 0]), Ok(0));
            let own = program.place(8);
            let moved = [word, futex::REQUEUE as usize, 0, 1, own, 0];
            assert_eq!(program.call(SystemCall::Futex, moved), Err(Errno::EINVAL), "a word of another table");
            let moved = [word, futex::REQUEUE as usize, 0, 1, start, 0];
            assert_eq!(program.call(SystemCall::Futex, moved), Ok(1));
            assert_eq!(program.call(SystemCall::Futex, [start, futex::WAKE as usize, 1, 0, 0, 0]), Ok(1));
            assert_eq!(program.wait_for(child), Ok((child, 0x400)));
            program.remove(b"/tmp/futex\0");
        });
    }

    #[test]
    fn ranges_with_holes_are_neither_written_back_nor_locked() {
        run(|program| {
            let start = map(program, 0, 300 * PAGE, ANONYMOUS).unwrap();
            for page in (0..300).step_by(2) {
                assert_eq!(program.call(SystemCall::Protect, [start + page * PAGE, PAGE, 1]), Ok(0));
            }
            let msync = |program: &mut Program, address, length, flags| {
                program.call(SystemCall::SynchroniseMemory, [address, length, flags])
            };
            for (address, length, flags, error) in [
                (start + 1, PAGE, 4, Errno::EINVAL),
                (start, PAGE, 5, Errno::EINVAL),
                (start, PAGE, 8, Errno::EINVAL),
                (start, 301 * PAGE, 4, Errno::ENOMEM),
                (start, usize::MAX, 4, Errno::ENOMEM),
                (usize::MAX - PAGE + 1, PAGE, 4, Errno::ENOMEM),
            ] {
                assert_eq!(msync(program, address, length, flags), Err(error), "{address:#x} {length:#x} {flags}");
            }
            assert_eq!((msync(program, start, 300 * PAGE, 4), msync(program, 4096, 0, 0)), (Ok(0), Ok(0)));
            for call in [SystemCall::LockMemory, SystemCall::UnlockMemory] {
                assert_eq!(program.call(call, [start + 5, 300 * PAGE - 5]), Ok(0));
                assert_eq!(program.call(call, [start + 5, 300 * PAGE]), Err(Errno::ENOMEM));
                assert_eq!(program.call(call, [start, usize::MAX]), Err(Errno::ENOMEM));
                assert_eq!(program.call(call, [start + 5, usize::MAX]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::Unmap, [start, 300 * PAGE]), Ok(0));
        });
    }

    #[test]
    fn an_address_that_is_only_wished_for_is_not_taken_from_others() {
        run(|program| {
            let first = map(program, BASE, PAGE, ANONYMOUS).unwrap();
            assert_eq!(first, BASE);
            let second = map(program, BASE + 5, PAGE, ANONYMOUS).unwrap();
            assert_ne!(second, BASE);
            assert!(can_write(program, first, 1) && can_write(program, second, 2));
            assert_eq!((program.read(first, 1), program.read(second, 1)), (vec![1], vec![2]));
        });
    }

    #[test]
    fn a_file_is_copied_and_zeros_follow_its_end() {
        run(|program| {
            let path = program.store(b"/tmp/mapped\0");
            let file = program.call(SystemCall::Open, [0, path, 0o102, 0o644]).unwrap();
            let contents: Vec<u8> = (0..3 * PAGE + 100).map(|index| (index / 16) as u8).collect();
            assert_eq!(program.write_to(file, &contents), Ok(contents.len()));
            let private = mapping::PRIVATE as usize;
            let read = protection::READ as usize;
            let start = program.call(SystemCall::Map, [0, 4 * PAGE, read, private, file, PAGE]).unwrap();
            let mut expected = contents[PAGE..].to_vec();
            expected.resize(4 * PAGE, 0);
            assert_eq!(program.read(start, 4 * PAGE), expected);
            assert!(!can_write(program, start, 1));
            assert_eq!(program.call(SystemCall::Protect, [start, PAGE, READ_WRITE]), Ok(0));
            assert!(can_write(program, start, 1));
            // A copy: the file has not changed, and changes of the file are not seen.
            assert_eq!(program.call(SystemCall::WriteAt, [file, path, 4, 2 * PAGE]), Ok(4));
            assert_eq!(program.read(start, 1), [1]);
            assert_eq!(program.read(start + PAGE, 4), contents[2 * PAGE..][..4]);
            assert_eq!(program.call(SystemCall::Unlink, [0, path, 0]), Ok(0));
        });
    }

    #[test]
    fn the_break_moves_both_ways_and_regained_memory_is_zero() {
        run(|program| {
            let brk = |program: &mut Program, end: usize| program.call(SystemCall::Break, [end]).unwrap();
            let begin = brk(program, 0);
            assert_eq!(brk(program, begin + 3 * PAGE + 5), begin + 3 * PAGE + 5);
            assert!(can_write(program, begin + 3 * PAGE + 4, 9));
            assert_eq!(brk(program, begin + 10), begin + 10);
            assert!(!can_read(program, begin + 3 * PAGE + 4));
            assert_eq!(brk(program, begin + 4 * PAGE), begin + 4 * PAGE);
            assert_eq!(program.read(begin + 3 * PAGE + 4, 1), [0]);
            for impossible in [begin - PAGE, usize::MAX, USER_END] {
                assert_eq!(brk(program, impossible), begin + 4 * PAGE, "{impossible:#x}");
            }
        });
    }

    /// More pages than one step changes: the call waits between the steps, and another worker has its turn.
    #[test]
    fn a_large_range_goes_in_steps_and_lets_others_run() {
        run(|program| {
            const MANY: usize = 2000;
            let start = map(program, 0, MANY * PAGE, ANONYMOUS).unwrap();
            for page in 0..MANY {
                assert!(can_write(program, start + page * PAGE, 1));
            }
            let process = program.process();
            let first = {
                let space = process.space().lock();
                RangeParts::new(&space, start, MANY * PAGE).next(&space).unwrap()
            };
            assert!(first.end - first.start < (MANY * PAGE) as u64, "a step does not do it all");
            drop(process);
            assert_eq!(program.call(SystemCall::Protect, [start, MANY * PAGE, 1]), Ok(0));
            assert!((0..MANY).all(|page| !can_write(program, start + page * PAGE, 1)));
            assert_eq!(program.submit(SystemCall::Unmap, [start, MANY * PAGE], 7), None);
            assert_eq!(program.await_completions(), [(7, Ok(0))]);
            assert!((0..MANY).all(|page| !can_read(program, start + page * PAGE)));
        });
    }

    #[test]
    fn a_limit_of_the_address_space_counts_mapped_bytes() {
        run(|program| {
            let mapped: u64 = {
                let process = program.process();
                let space = process.space().lock();
                space.regions().map(|region| region.range.end - region.range.start).sum()
            };
            let limit = mapped + 4 * PAGE as u64;
            let bytes = program.store(&abi_unix::types::limit::to_bytes(limit, limit));
            let which = abi_unix::types::limit::ADDRESS_SPACE as usize;
            assert_eq!(program.call(SystemCall::ProcessLimit, [0, which, bytes, 0]), Ok(0));
            assert_eq!(map(program, 0, 5 * PAGE, ANONYMOUS), Err(Errno::ENOMEM));
            let start = map(program, 0, 4 * PAGE, ANONYMOUS).unwrap();
            let end = program.call(SystemCall::Break, [0]).unwrap();
            assert_eq!(program.call(SystemCall::Break, [end + 2 * PAGE]), Ok(end));
            program.call(SystemCall::Unmap, [start, 4 * PAGE]).unwrap();
            assert_eq!(program.call(SystemCall::Break, [end + PAGE]), Ok(end + PAGE));
        });
    }

    /// Mappings that can write and seals against writing exclude each other, as long as a copy has the mapping, too.
    #[test]
    fn files_without_a_name_are_mapped_sealed_and_gone() {
        const ADD: usize = 1033;
        run(|program| {
            let name = program.store(b"a name\0");
            let long = program.store(&[[b'n'; 250].as_slice(), &[0]].concat());
            let make = |program: &mut Program, name, flags| program.call(SystemCall::MemoryFile, [name, flags]);
            assert_eq!(make(program, name, 4), Err(Errno::EINVAL));
            assert_eq!(make(program, long, 0), Err(Errno::EINVAL));
            assert_eq!(make(program, 0x1000, 0), Err(Errno::EFAULT));
            let (reader, _) = program.pipe(0);
            let seals = |program: &mut Program, file| program.call(SystemCall::FileControl, [file, ADD + 1, 0]);
            let seal = |program: &mut Program, file, seals| program.call(SystemCall::FileControl, [file, ADD, seals]);
            assert_eq!((seals(program, reader), seal(program, reader, 1)), (Err(Errno::EINVAL), Err(Errno::EPERM)));
            let plain = make(program, name, 1).unwrap();
            assert_eq!((seals(program, plain), seal(program, plain, 4)), (Ok(1), Err(Errno::EPERM)));
            let file = make(program, long + 1, 2).unwrap();
            assert_eq!((seals(program, file), seal(program, file, 1 << 6)), (Ok(0), Err(Errno::EINVAL)));
            assert_eq!(program.call(SystemCall::Truncate, [file, 2 * PAGE]), Ok(0));
            let map =
                |program: &mut Program, rights| program.call(SystemCall::Map, [0, 2 * PAGE, rights, SHARED, file, 0]);
            let place = map(program, READ_WRITE).unwrap();
            program.write(place + 5, b"common");
            let found = program.place(8);
            assert_eq!(program.call(SystemCall::ReadAt, [file, found, 6, 5]), Ok(6));
            assert_eq!((program.read(found, 6), seal(program, file, 8)), (b"common".to_vec(), Err(Errno::EBUSY)));
            let child = program.fork(move |program| program.sleep_ns(1_000_000)).unwrap();
            assert_eq!(program.call(SystemCall::Unmap, [place, 2 * PAGE]), Ok(0));
            assert_eq!(seal(program, file, 8), Err(Errno::EBUSY), "the copy has the mapping");
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!((seal(program, file, 8 | 2 | 4), seals(program, file)), (Ok(0), Ok(14)));
            assert_eq!(map(program, READ_WRITE), Err(Errno::EPERM));
            let place = map(program, protection::READ as usize).unwrap();
            assert_eq!(program.read(place + 5, 6), b"common");
            assert_eq!(program.call(SystemCall::Protect, [place, PAGE, READ_WRITE]), Err(Errno::EACCES));
            assert_eq!(program.call(SystemCall::WriteAt, [file, found, 6, 0]), Err(Errno::EPERM));
            for length in [0, 3 * PAGE] {
                assert_eq!(program.call(SystemCall::Truncate, [file, length]), Err(Errno::EPERM));
            }
            for file in [plain, file] {
                program.close(file).unwrap();
            }
            assert_eq!(program.read(place + 5, 6), b"common", "a mapping keeps the file");
        });
    }

    #[test]
    fn the_pages_that_are_there_are_told() {
        run(|program| {
            const PAGES: usize = 2 * PAGES_IN_A_STEP + 3;
            let start = map(program, 0, PAGES * PAGE, ANONYMOUS).unwrap();
            let process = program.process();
            let touched = [0, 7, PAGES_IN_A_STEP, PAGES - 1];
            for page in touched {
                process.copy_out(start + page * PAGE, &[1]).unwrap();
            }
            let place = program.place(PAGES + 1);
            program.write(place + PAGES, &[9]);
            let tell = |program: &mut Program, start: usize, length: usize| {
                program.call(SystemCall::Residence, [start, length, place])
            };
            assert_eq!(tell(program, start, PAGES * PAGE - 5), Ok(0));
            let told = program.read(place, PAGES + 1);
            for (page, told) in told[..PAGES].iter().enumerate() {
                assert_eq!(*told == 1, touched.contains(&page), "{page}");
            }
            assert_eq!(told[PAGES], 9, "one byte for each page");
            assert_eq!(tell(program, start + 1, PAGE), Err(Errno::EINVAL));
            assert_eq!(tell(program, start, 0), Ok(0));
            assert_eq!(program.call(SystemCall::Residence, [start, PAGE, 0x1000]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::Residence, [start, PAGE, usize::MAX]), Err(Errno::EFAULT));
            program.call(SystemCall::Unmap, [start + (PAGES - 2) * PAGE, PAGE]).unwrap();
            assert_eq!(tell(program, start, PAGES * PAGE), Err(Errno::ENOMEM));
            assert_eq!(tell(program, start, (PAGES - 2) * PAGE), Ok(0));
            for length in [usize::MAX, usize::MAX - PAGE, USER_END] {
                assert_eq!(tell(program, start, length), Err(Errno::ENOMEM), "{length:#x}");
            }
        });
    }

    #[test]
    fn locks_of_memory_need_valid_flags() {
        run(|program| {
            let start = map(program, 0, PAGE, ANONYMOUS).unwrap();
            let with = |program: &mut Program, flags| program.call(SystemCall::LockMemoryWith, [start, PAGE, flags]);
            assert_eq!([0, 1, 2].map(|flags| with(program, flags)), [Ok(0), Ok(0), Err(Errno::EINVAL)]);
            for (flags, answer) in
                [(1, Ok(0)), (3, Ok(0)), (7, Ok(0)), (0, Err(Errno::EINVAL)), (4, Err(Errno::EINVAL))]
            {
                assert_eq!(program.call(SystemCall::LockAllMemory, [flags]), answer, "{flags}");
            }
            assert_eq!(program.call(SystemCall::LockAllMemory, [8 | 1]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::UnlockAllMemory, []), Ok(0));
        });
    }

    #[test]
    fn instructions_are_fetched_anew() {
        run(|program| {
            let mut flush = |flags| program.call(SystemCall::FlushInstructions, [0, usize::MAX, flags]);
            assert_eq!([0, 1, 2, usize::MAX].map(&mut flush), [Ok(0), Ok(0), Err(Errno::EINVAL), Err(Errno::EINVAL)]);
            let space = program.process();
            let mut space = space.space().lock();
            assert_eq!(space.harts_to_synchronise(), 0, "those in the program have done it");
        });
    }

    /// A touch brings the page; one that is not allowed ends the process.
    #[test]
    fn memory_that_is_not_needed_reads_as_zeros_and_files_keep_theirs() {
        run(|program| {
            let start = map(program, 0, 64 * PAGE, ANONYMOUS).unwrap();
            let process = program.process();
            for page in 0..64 {
                process.copy_out(start + page * PAGE, &[page as u8 | 1]).unwrap();
            }
            let resident = process.space().lock().resident_frames();
            let (middle, length) = (start + 8 * PAGE, 40 * PAGE - 5);
            assert_eq!(program.call(SystemCall::AdviseMemory, [middle, length, advice::DONTNEED as usize]), Ok(0));
            assert_eq!(process.space().lock().resident_frames(), resident - 40);
            for page in 0..64 {
                let expected = if (8..48).contains(&page) { 0 } else { page as u8 | 1 };
                assert_eq!(program.read(start + page * PAGE, 1), [expected], "{page}");
            }
            let regions = process.space().lock().regions().count();
            for advice in advice::WITHOUT_EFFECT {
                assert_eq!(program.call(SystemCall::AdviseMemory, [start, 64 * PAGE, advice as usize]), Ok(0));
            }
            assert_eq!(program.read(start + PAGE, 1), [1]);
            assert_eq!(process.space().lock().regions().count(), regions);
            let path = program.store(b"/bin/test\0");
            let file = program.call(SystemCall::Open, [0, path, 0, 0]).unwrap();
            let private = mapping::PRIVATE as usize;
            let copy = program.call(SystemCall::Map, [0, PAGE, READ_WRITE, private, file, 0]).unwrap();
            let before = program.read(copy, 64);
            assert_eq!(program.call(SystemCall::AdviseMemory, [copy, PAGE, advice::DONTNEED as usize]), Ok(0));
            assert_eq!(program.read(copy, 64), before);
            let hole = start + 64 * PAGE;
            program.call(SystemCall::Unmap, [start + 32 * PAGE, PAGE]).unwrap();
            let all = [start, hole - start, advice::DONTNEED as usize];
            assert_eq!(program.call(SystemCall::AdviseMemory, all), Err(Errno::ENOMEM));
            assert_eq!(program.read(start + PAGE, 1), [0], "the pages before the hole are given back");
            assert_eq!(program.read(start + 63 * PAGE, 1), [63]);
            assert_eq!(program.call(SystemCall::AdviseMemory, [start + 1, PAGE, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::AdviseMemory, [start, PAGE, 99]), Err(Errno::EINVAL));
        });
    }

    #[test]
    fn pages_come_when_they_are_touched_and_faults_end_the_process() {
        let touch = |address: usize, access| Trap::PageFault { address: address as u64, access };
        run(move |program| {
            let start = map(program, 0, PAGE, ANONYMOUS).unwrap();
            program.trap(touch(start + 8, Access::Write));
            assert_eq!(program.read(start, 1), [0]);
        });
        let killed = Ending::Killed(abi_unix::types::signal::SEGV as u8);
        assert_eq!(run_to_its_end(move |program| program.trap(touch(BASE, Access::Read))), killed);
        let ending = run_to_its_end(move |program| {
            let start = program.call(SystemCall::Map, [0, PAGE, 1, ANONYMOUS, usize::MAX, 0]).unwrap();
            program.trap(touch(start, Access::Write));
        });
        assert_eq!(ending, killed);
    }
}
