//! The memory calls: `brk`, `mmap`, `munmap`, `mprotect`.
//!
//! Each changes a range part by part ([`steps`]): a part has a bounded number of pages, and is changed as a whole,
//! under the lock of the address space. A range of few pages that exist is one part, whatever its length, and then the
//! call is done at once. Threads that look at a larger one meanwhile may find that a part of it has changed and the
//! rest has not.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;

use abi_unix::Errno;
use abi_unix::types::{mapping, protection};
use memory::AddressSpace;
use memory::space::Placement;
use memory::sv39::{Edge, Protection};

use crate::asynchronous::interrupts;
use crate::files::file::OpenFile;
use crate::process::Process;
use crate::process::accounts::{UNLIMITED, has_machine_memory};
use crate::process::program::map_error;
use crate::process::user::{USER_END, UserBuffer};
use crate::scheduling::steps::{self, Long};

const PAGE: usize = abi_queue::pages::PAGE_SIZE;

/// Writable and executable at once is refused (W^X), with `EACCES` as hardened Linux systems answer. Without any right
/// a page stays reserved and every access faults.
fn decode_protection(bits: u32) -> Result<Protection, Errno> {
    if bits & !(protection::READ | protection::WRITE | protection::EXECUTE) != 0 {
        return Err(Errno::EINVAL);
    }
    Protection::from_bits(bits).map_err(|_| Errno::EACCES)
}

fn round_up(length: usize) -> Result<usize, Errno> {
    length.checked_next_multiple_of(PAGE).filter(|&length| length <= USER_END).ok_or(Errno::ENOMEM)
}

/// `ENOMEM` if the address space would become larger than the process may have it.
fn require_addresses(process: &Process, more: usize) -> Result<(), Errno> {
    let limit = process.account.address_space();
    if limit == UNLIMITED {
        return Ok(());
    }
    let mapped: u64 = process.space.lock().regions().map(|region| region.range.end - region.range.start).sum();
    if (mapped as usize).saturating_add(more) > limit { Err(Errno::ENOMEM) } else { Ok(()) }
}

/// How a call has begun.
pub(crate) enum Begun {
    /// It is done.
    Done(usize),
    /// It goes on in steps.
    More(Long),
}

/// What is left of a range that is unmapped, protected or mapped over part by part.
struct Rest {
    whole: Range<u64>,
    /// The end of the region that crosses the start of the range: done from its end, so that the region is never split.
    head: Range<u64>,
    /// All behind that, done from its start.
    tail: Range<u64>,
}

impl Rest {
    fn new(space: &AddressSpace, start: usize, length: usize) -> Rest {
        let whole = start as u64..(start + length) as u64;
        let crossing = space.region_at(whole.start).map(|region| region.range);
        let head = match crossing {
            Some(region) if region.start < whole.start && region.end <= whole.end => whole.start..region.end,
            _ => whole.start..whole.start,
        };
        Rest { tail: head.end..whole.end, head, whole }
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

/// What is done with each part of a range.
#[derive(Clone, Copy)]
enum Change {
    Unmap,
    Protect(Protection),
    /// Maps pages of zeros in place of what is there.
    Replace(Protection),
}

impl Change {
    /// Changes the next part of a range, all of it under one lock.
    fn step(self, process: &Process, rest: &mut Rest) -> Result<(), Errno> {
        let mut space = process.space.lock();
        let Some(part) = rest.next(&space) else { return Ok(()) };
        let changed = match self {
            Change::Unmap => space.unmap_part(part, &rest.whole),
            Change::Protect(protection) => space.protect(part, protection),
            Change::Replace(protection) => space
                .map_anonymous(Placement::Fixed(part.start), part.end - part.start, protection, "")
                .map(|(_, flush)| flush),
        };
        drop(space);
        usermode::flush(changed.map_err(map_error)?);
        Ok(())
    }

    /// Changes what is left of a range.
    async fn go_on(self, process: &Process, mut rest: Rest) -> Result<(), Errno> {
        loop {
            self.step(process, &mut rest)?;
            if rest.is_done() {
                return Ok(());
            }
            steps::pause(process).await;
        }
    }

    /// Changes a range: the first part in place, and as much as it takes until there is memory to go on with the rest.
    fn begin(self, process: &Process, start: usize, length: usize) -> Result<Rest, Errno> {
        let mut rest = Rest::new(&process.space.lock(), start, length);
        loop {
            self.step(process, &mut rest)?;
            if rest.is_done() || has_machine_memory() {
                return Ok(rest);
            }
        }
    }

    /// Changes a range; `value` is the result.
    fn carry_out(self, process: &Arc<Process>, start: usize, length: usize, value: usize) -> Result<Begun, Errno> {
        let rest = self.begin(process, start, length)?;
        if rest.is_done() {
            return Ok(Begun::Done(value));
        }
        let process = process.clone();
        Ok(Begun::More(Box::pin(async move {
            steps::pause(&process).await;
            self.go_on(&process, rest).await.map(|()| value)
        })))
    }
}

/// `brk`: Linux's own form, which answers with the end that is in force and never with an error.
pub(crate) fn set_break(process: &Arc<Process>, end: usize) -> Begun {
    let now = process.space.lock().break_end() as usize;
    if end > now && require_addresses(process, end - now).is_err() {
        return Begun::Done(now);
    }
    loop {
        let is_done = move_break(process, end as u64);
        if is_done {
            return Begun::Done(process.space.lock().break_end() as usize);
        }
        if has_machine_memory() {
            break;
        }
    }
    let process = process.clone();
    Begun::More(Box::pin(async move {
        loop {
            steps::pause(&process).await;
            if move_break(&process, end as u64) {
                return Ok(process.space.lock().break_end() as usize);
            }
        }
    }))
}

/// Moves the break a step towards an end; whether it is there, or cannot get there.
fn move_break(process: &Process, end: u64) -> bool {
    let mut space = process.space.lock();
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

/// `mmap`: private mappings, anonymous or with a copy of a file's contents.
pub(crate) fn map(
    process: &Arc<Process>,
    address: usize,
    length: usize,
    bits: u32,
    flags: u32,
    descriptor: usize,
    offset: usize,
) -> Result<Begun, Errno> {
    let protection = decode_protection(bits)?;
    if length == 0 || !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let known = mapping::PRIVATE
        | mapping::FIXED
        | mapping::FIXED_NOREPLACE
        | mapping::ANONYMOUS
        | mapping::NORESERVE
        | mapping::POPULATE
        | mapping::STACK;
    if flags & mapping::SHARED != 0 {
        // Memory is not shared between processes in this version.
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & mapping::PRIVATE == 0 || flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let length = round_up(length)?;
    let content = if flags & mapping::ANONYMOUS != 0 {
        None
    } else {
        let number = usize::try_from(descriptor as i32).map_err(|_| Errno::EBADF)?;
        Some(process.descriptors.lock().get(number)?.clone())
    };
    if let Some(file) = &content {
        file.require_mappable()?;
    }
    let fixed = flags & (mapping::FIXED | mapping::FIXED_NOREPLACE) != 0;
    let is_outside = !address.is_multiple_of(PAGE) || address == 0 || length > USER_END - address.min(USER_END);
    let is_reserved = interrupts::has_send_pages(process, address, length);
    if fixed && (is_outside || is_reserved) {
        return Err(Errno::EINVAL);
    }
    let placement = match (fixed, flags & mapping::FIXED_NOREPLACE != 0) {
        (true, false) => Placement::Fixed(address as u64),
        (true, true) => Placement::FixedIfFree(address as u64),
        (false, _) if address != 0 && !is_reserved => Placement::Near((address - address % PAGE) as u64),
        (false, _) => Placement::Anywhere,
    };
    require_addresses(process, length)?;
    let initial = if content.is_some() { Protection::ReadWrite } else { protection };
    let mut rest = None;
    let start = match placement {
        Placement::Fixed(start) => {
            rest =
                Some(Change::Replace(initial).begin(process, start as usize, length)?).filter(|rest| !rest.is_done());
            start as usize
        }
        _ => {
            let mapped = process.space.lock().map_anonymous(placement, length as u64, initial, "");
            let (start, changed) = mapped.map_err(map_error)?;
            usermode::flush(changed);
            start as usize
        }
    };
    if rest.is_none() && content.is_none() {
        return Ok(Begun::Done(start));
    }
    let process = process.clone();
    Ok(Begun::More(Box::pin(async move {
        if let Some(rest) = rest {
            steps::pause(&process).await;
            Change::Replace(initial).go_on(&process, rest).await?;
        }
        let Some(file) = content else { return Ok(start) };
        match fill(&process, &file, start, length, offset).await {
            Ok(()) => {
                let rest = Rest::new(&process.space.lock(), start, length);
                Change::Protect(protection).go_on(&process, rest).await?;
                Ok(start)
            }
            Err(error) => {
                let rest = Rest::new(&process.space.lock(), start, length);
                Change::Unmap.go_on(&process, rest).await?;
                Err(error)
            }
        }
    })))
}

/// Copies a file to a fresh mapping, as far as the file goes.
///
/// # Cancellation
/// What was copied stays.
async fn fill(process: &Process, file: &OpenFile, start: usize, length: usize, offset: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < length {
        let position = offset.checked_add(done).ok_or(Errno::EOVERFLOW)? as u64;
        match file.read_step(process, UserBuffer::new(start + done, length - done)?, position) {
            Ok(count) if count < steps::BYTES => break,
            Ok(count) => done += count,
            // The mapping is there and writable: what it lacks is memory. (Another worker may have unmapped it, too.)
            Err(_) => return Err(Errno::ENOMEM),
        }
        steps::pause(process).await;
    }
    Ok(())
}

/// `munmap`.
pub(crate) fn unmap(process: &Arc<Process>, address: usize, length: usize) -> Result<Begun, Errno> {
    let is_outside = !address.is_multiple_of(PAGE) || length == 0 || length > USER_END - address.min(USER_END);
    if is_outside || interrupts::has_send_pages(process, address, length) {
        return Err(Errno::EINVAL);
    }
    Change::Unmap.carry_out(process, address, round_up(length)?, 0)
}

/// `mprotect`.
pub(crate) fn protect(process: &Arc<Process>, address: usize, length: usize, bits: u32) -> Result<Begun, Errno> {
    let protection = decode_protection(bits)?;
    if !address.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if length == 0 {
        return Ok(Begun::Done(0));
    }
    if length > USER_END - address.min(USER_END) {
        return Err(Errno::ENOMEM);
    }
    if interrupts::has_send_pages(process, address, length) {
        return Err(Errno::EINVAL);
    }
    Change::Protect(protection).carry_out(process, address, round_up(length)?, 0)
}
