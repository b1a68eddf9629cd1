//! The contents of a core file, written in steps.
//!
//! The places of all parts are decided first, from the list of regions; then the file is written from its beginning to
//! its end. Pages that were never touched are left out, and are holes in the file. Memory for one piece of the file and
//! for the list of regions is all that this needs.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;

use ::program::MAX_SEGMENTS;
use ::program::core_file::{self, DumpedSegment, DumpedThread, MappedFile, Note, Numbers, access};
use ::signals::Information;
use abi_unix::Errno;
use abi_unix::trace::ProgramName;
use abi_unix::types::limit;
use memory::space::{DumpedRegion, PageOwner};
use memory::sv39::Protection;
use tables::Queue;

use super::{LeftThread, Stop, filter};
use crate::files::file::FileOperations;
use crate::files::shared_memory::{FILE_NAME, SHARED_NAME};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::identity::Whom;
use crate::process::user::{Caller, UserBuffer, UserMemory};
use crate::process::{Process, program};
use crate::scheduling::{executor, steps};
use crate::time;

const PAGE: usize = abi_queue::pages::PAGE_SIZE;
/// Bytes that are collected before they are written.
const BUFFER: usize = 2 * PAGE;
/// Bytes of the largest piece between two looks for room in the buffer.
const LARGEST_PIECE: usize = 512;
/// Pairs of the longest auxiliary vector.
const MOST_AUXILIARY: usize = 32;
/// Parts of the list of regions whose memory is charged together.
const CHARGED: usize = 64;

/// Regions that are listed in a step: each one's page tables are looked at.
const LISTED_AT_A_TIME: usize = 4;

/// A region in the file.
#[derive(Clone, Copy)]
struct PlannedRegion {
    start: u64,
    end: u64,
    /// The end of the pages that the file has.
    dumped: u64,
    access: u32,
}

/// The file, and the piece of it that was not written yet.
struct Sink<'a> {
    process: &'a Arc<Process>,
    file: &'a dyn FileOperations,
    buffer: Vec<u8>,
    /// Place of the buffer in the file.
    at: u64,
    written: u64,
    limit: u64,
    _charge: Charge,
}

/// The process as a writer of bytes of the kernel's.
struct KernelBytes<'a> {
    process: &'a Arc<Process>,
    bytes: &'a [u8],
}

impl UserMemory for KernelBytes<'_> {
    fn copy_in(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        let end = address.checked_add(bytes.len()).ok_or(Errno::EFAULT)?;
        bytes.copy_from_slice(self.bytes.get(address..end).ok_or(Errno::EFAULT)?);
        Ok(())
    }

    fn copy_out(&self, _: usize, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
}

impl steps::Ends for KernelBytes<'_> {
    fn has_ended(&self) -> bool {
        !self.process.dump.is_wanted()
    }
}

impl Caller for KernelBytes<'_> {
    fn number(&self) -> u32 {
        self.process.id
    }

    fn account(&self) -> &Arc<Account> {
        &self.process.account
    }

    fn whom(&self) -> Whom {
        self.process.whom()
    }

    fn has_no_reader(&self) {}

    fn zero(&self, _: UserBuffer) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
}

impl<'a> Sink<'a> {
    fn new(process: &'a Arc<Process>, file: &'a dyn FileOperations) -> Result<Sink<'a>, Errno> {
        let charge = process.account.charge(Resource::Memory, BUFFER)?;
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(BUFFER).map_err(|_| Errno::ENOMEM)?;
        let limit = process.account.setting(limit::CORE as usize).soft as u64;
        Ok(Sink { process, file, buffer, at: 0, written: 0, limit, _charge: charge })
    }

    /// Returns the place behind everything that was added.
    fn place(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    /// Adds a piece, for which there is [room](Self::make_room).
    fn add(&mut self, piece: &[u8]) {
        debug_assert!(self.buffer.len() + piece.len() <= BUFFER);
        self.buffer.extend_from_slice(&piece[..piece.len().min(BUFFER - self.buffer.len())]);
    }

    /// Makes room for a piece, and ends a step of work.
    async fn make_room(&mut self) -> Result<(), Stop> {
        if self.buffer.len() + LARGEST_PIECE > BUFFER {
            self.flush().await?;
        }
        Ok(())
    }

    /// Adds bytes of any number.
    async fn add_all(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        for piece in bytes.chunks(LARGEST_PIECE) {
            self.make_room().await?;
            self.add(piece);
        }
        Ok(())
    }

    /// Adds zeros up to a multiple of so many bytes.
    async fn fill(&mut self, multiple: u64) -> Result<(), Stop> {
        while !self.place().is_multiple_of(multiple) {
            self.make_room().await?;
            let missing = self.place().next_multiple_of(multiple) - self.place();
            self.add(&[0; LARGEST_PIECE][..(missing as usize).min(LARGEST_PIECE)]);
        }
        Ok(())
    }

    /// Goes on at a later place; the bytes between are a hole.
    async fn skip_to(&mut self, place: u64) -> Result<(), Stop> {
        self.flush().await?;
        self.at = place;
        Ok(())
    }

    /// Writes the buffer, and ends a step of work.
    async fn flush(&mut self) -> Result<(), Stop> {
        let mut done = 0;
        while done < self.buffer.len() {
            let room = usize::try_from(self.limit - self.written.min(self.limit)).unwrap_or(usize::MAX);
            let piece = &self.buffer[done..];
            let piece = &piece[..piece.len().min(room)];
            if piece.is_empty() {
                return Err(Stop::Limit);
            }
            let memory = KernelBytes { process: self.process, bytes: piece };
            let (length, place, file) = (piece.len(), self.at + done as u64, self.file);
            let count =
                poll_fn(|cx| file.poll_write_at(&memory, UserBuffer::of_kernel(length), place, steps::waker_of(cx)))
                    .await?;
            if count == 0 {
                return Err(Stop::Failed(Errno::ENOSPC));
            }
            done += count;
            self.written += count as u64;
            end_step(self.process).await?;
        }
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Ends a step of work: others may have had the hart, with the priority that the process has by now, and the process
/// may have been killed.
async fn end_step(process: &Process) -> Result<(), Stop> {
    executor::set_priority(executor::current(), process.own_priority());
    steps::pause_at_the_end().await;
    if process.dump.is_wanted() { Ok(()) } else { Err(Stop::GivenUp) }
}

/// Writes the file; returns the number of bytes that were written, also with an error.
pub(super) async fn write(
    process: &Arc<Process>,
    file: &dyn FileOperations,
    threads: &Queue<LeftThread>,
    death: (Information, u32),
) -> Result<u64, (u64, Stop)> {
    let mut sink = Sink::new(process, file).map_err(|error| (0, error.into()))?;
    match write_all(&mut sink, threads, death).await {
        Ok(()) => Ok(sink.written),
        Err(stop) => Err((sink.written, stop)),
    }
}

async fn write_all(sink: &mut Sink<'_>, threads: &Queue<LeftThread>, death: (Information, u32)) -> Result<(), Stop> {
    let process = sink.process;
    let (parts, _charge) = parts(process).await?;
    let notes = Notes::read(process).await?;
    let count = parts.len();
    let before = (core_file::HEADER + core_file::PROGRAM_HEADER * (count + 1)) as u64;
    let length = notes.length(threads.len());
    let first = (before + length).next_multiple_of(PAGE as u64);
    sink.add(&core_file::header(count as u16 + 1));
    let about = DumpedSegment { access: 0, offset: before, address: 0, in_file: length, in_memory: 0 };
    sink.add(&about.to_bytes());
    let mut offset = first;
    for number in 0..count {
        sink.make_room().await?;
        let Some(part) = parts.get(number) else { break };
        let (in_file, in_memory) = (part.dumped - part.start, part.end - part.start);
        let segment = DumpedSegment { access: part.access, offset, address: part.start, in_file, in_memory };
        sink.add(&segment.to_bytes());
        offset += in_file;
    }
    notes.write(sink, threads, death).await?;
    sink.fill(PAGE as u64).await?;
    let mut offset = first;
    for number in 0..count {
        // Thousands of regions may have no pages.
        if number % steps::ENTRIES == 0 {
            end_step(process).await?;
        }
        let Some(part) = parts.get(number).copied() else { break };
        write_pages(sink, part, offset).await?;
        offset += part.dumped - part.start;
    }
    sink.flush().await?;
    if sink.at < offset {
        // The last pages are a hole.
        process.set_length(sink.file, offset).await?;
    }
    Ok(())
}

/// Writes the pages of a part that are there; its place in the file is `offset`.
async fn write_pages(sink: &mut Sink<'_>, part: PlannedRegion, offset: u64) -> Result<(), Stop> {
    let process = sink.process;
    let mut at = part.start;
    while at < part.dumped {
        let found = process.space().lock().next_dumped_page(at..part.dumped);
        match found {
            Ok(page) => {
                let place = offset + (page - part.start);
                if sink.place() != place || sink.buffer.len() + PAGE > BUFFER {
                    sink.skip_to(place).await?;
                }
                let length = sink.buffer.len();
                sink.buffer.resize(length + PAGE, 0);
                if !process.space().lock().copy_dumped_page(page, &mut sink.buffer[length..]) {
                    sink.buffer.truncate(length);
                    end_step(process).await?;
                }
                at = page + PAGE as u64;
            }
            Err(next) => {
                at = next.max(at + PAGE as u64);
                end_step(process).await?;
            }
        }
    }
    Ok(())
}

/// Lists the regions, in steps; their memory is charged as long as the charge lives.
async fn parts(process: &Arc<Process>) -> Result<(Queue<PlannedRegion>, Charge), Stop> {
    let mut parts = Queue::new();
    let mut charge = process.account.charge(Resource::Memory, 0)?;
    let mut at = 0;
    loop {
        if parts.len().is_multiple_of(CHARGED) {
            charge.resize((parts.len() + CHARGED) * size_of::<PlannedRegion>())?;
            parts.reserve(parts.len() + CHARGED).map_err(|_| Errno::ENOMEM)?;
        }
        if parts.len().is_multiple_of(LISTED_AT_A_TIME) {
            end_step(process).await?;
        }
        let Some(region) = process.space().lock().dumped_region_above(at) else { return Ok((parts, charge)) };
        at = region.view.range.end;
        if parts.len() + 1 == core_file::MOST_SEGMENTS {
            return Ok((parts, charge));
        }
        parts.push_back(part_of(process, &region));
    }
}

fn part_of(process: &Process, region: &DumpedRegion) -> PlannedRegion {
    let view = &region.view;
    let (start, end) = (view.range.start, view.range.end);
    let chosen = process.dump.filter();
    let is_executable = matches!(view.protection, Protection::Execute | Protection::ReadExecute);
    let kind = match region.owner {
        PageOwner::Device => 0,
        // Pages that the process shares with the kernel, few, and its only way to tell what its executor did.
        PageOwner::Kernel => chosen | filter::PRIVATE,
        // A private mapping of a file is a copy of it. One of code cannot have been changed.
        PageOwner::Process if view.name == FILE_NAME && is_executable => filter::PRIVATE_FILES,
        PageOwner::Process => filter::PRIVATE,
        PageOwner::Object if view.name == SHARED_NAME => filter::COMMON,
        PageOwner::Object if view.name == FILE_NAME => filter::COMMON_FILES,
        PageOwner::Object => filter::PRIVATE_FILES,
    };
    let chosen = if region.owner == PageOwner::Kernel { filter::ALL } else { chosen };
    let is_of_file = kind & (filter::PRIVATE_FILES | filter::COMMON_FILES) != 0;
    // Private memory that was never touched, as a reserve of addresses, takes no room in the file.
    let is_untouched = region.owner == PageOwner::Process
        && process.space().lock().next_dumped_page(start..end).is_err_and(|next| next >= end);
    let dumped = if region.view.is_undumped || is_untouched {
        start
    } else if kind & chosen != 0 {
        end
    } else if is_of_file && chosen & filter::HEADERS != 0 && begins_file(process, start) {
        start + PAGE as u64
    } else {
        start
    };
    let access = match view.protection {
        Protection::None => 0,
        Protection::Read => access::READ,
        Protection::ReadWrite => access::READ | access::WRITE,
        Protection::Execute => access::EXECUTE,
        Protection::ReadExecute => access::READ | access::EXECUTE,
    };
    PlannedRegion { start, end, dumped, access }
}

/// Returns whether an ELF file begins at a page.
fn begins_file(process: &Process, page: u64) -> bool {
    let mut magic = [0; 4];
    process.space().lock().copy_dumped_page(page, &mut magic) && &magic == b"\x7fELF"
}

/// Contents of the notes about the process.
struct Notes {
    auxiliary: heapless::Vec<u8, { 16 * MOST_AUXILIARY }>,
    files: heapless::Vec<MappedFile, MAX_SEGMENTS>,
    path: Vec<u8>,
}

impl Notes {
    async fn read(process: &Arc<Process>) -> Result<Notes, Stop> {
        let executable = process.executable.lock().clone();
        let mut files = heapless::Vec::new();
        let mut path = Vec::new();
        if let Some(running) = executable {
            let place = running.place();
            program::mapped_files(place, process.shared.program_bias() as u64, |file| {
                // A program has no more segments than there is room for.
                let _ = files.push(file);
            });
            // A program without a name any more is one without files.
            path = place.path_in_steps(&steps::Endless).await.unwrap_or_default();
        }
        if path.is_empty() {
            files.clear();
        }
        Ok(Notes { auxiliary: auxiliary(process), files, path })
    }

    /// Bytes of the list of files, without its note's header.
    fn length_of_files(&self) -> usize {
        let each = core_file::FILES_ENTRY + self.path.len() + 1;
        core_file::FILES_HEAD + self.files.len() * each
    }

    /// Bytes of all notes, with so many threads.
    fn length(&self, threads: usize) -> u64 {
        let of_threads = threads * (core_file::STATUS + core_file::FLOATING_POINT);
        let others = [Information::SIZE, self.auxiliary.len(), self.length_of_files().next_multiple_of(4)];
        let others: usize = others.iter().map(|length| core_file::NOTE_HEADER + length).sum();
        (of_threads + core_file::PROCESS + others) as u64
    }

    async fn write(
        &self,
        sink: &mut Sink<'_>,
        threads: &Queue<LeftThread>,
        (information, met_by): (Information, u32),
    ) -> Result<(), Stop> {
        let process = sink.process;
        let signal = information.signal.number();
        // The thread that died first, then those about the process, then the others.
        let mut first = 0;
        for number in 0..threads.len() {
            if threads.get(number).is_some_and(|kept| kept.thread.thread_id() == met_by) {
                first = number;
                break;
            }
            if number % steps::ENTRIES == 0 {
                end_step(process).await?;
            }
        }
        if let Some(kept) = threads.get(first) {
            sink.make_room().await?;
            sink.add(&of_thread(kept, signal).status());
        }
        sink.make_room().await?;
        sink.add(&about(process));
        sink.make_room().await?;
        sink.add(&Note::Signal.header(Information::SIZE as u32));
        sink.add(&information.to_bytes());
        sink.make_room().await?;
        sink.add(&Note::Auxiliary.header(self.auxiliary.len() as u32));
        sink.add_all(&self.auxiliary).await?;
        sink.make_room().await?;
        sink.add(&Note::Files.header(self.length_of_files() as u32));
        sink.add(&core_file::files_head(self.files.len()));
        for file in &self.files {
            sink.make_room().await?;
            sink.add(&file.to_bytes());
        }
        for _ in &self.files {
            sink.add_all(&self.path).await?;
            sink.add_all(&[0]).await?;
        }
        sink.fill(4).await?;
        if let Some(kept) = threads.get(first) {
            sink.make_room().await?;
            sink.add(&of_thread(kept, signal).floating_point());
        }
        for number in (0..threads.len()).filter(|number| *number != first) {
            let Some(kept) = threads.get(number) else { break };
            sink.make_room().await?;
            sink.add(&of_thread(kept, signal).status());
            sink.make_room().await?;
            sink.add(&of_thread(kept, signal).floating_point());
        }
        Ok(())
    }
}

fn numbers(process: &Process, own: u32) -> Numbers {
    Numbers { own, parent: process.parent(), group: process.group(), session: process.session() }
}

fn of_thread(kept: &LeftThread, signal: u8) -> DumpedThread<'_> {
    let (thread, context) = (&kept.thread, &kept.context);
    let floating_point = context.floating_point();
    DumpedThread {
        numbers: numbers(&thread.process, thread.thread_id()),
        signal,
        blocked: thread.signals.blocked().bits(),
        used_us: time::ns_at_ticks(thread.cpu_ticks()) / 1000,
        pc: context.pc,
        registers: &context.x,
        floating_point: &floating_point.f,
        fcsr: floating_point.fcsr,
    }
}

/// Returns the note about the process.
fn about(process: &Process) -> [u8; core_file::PROCESS] {
    let name = ProgramName::from_words(process.name());
    let mut command = [0; core_file::COMMAND];
    let [start, end, _] = process.shared.texts();
    let length = (end.saturating_sub(start) as usize).min(command.len() - 1);
    if process.copy_in(start as usize, &mut command[..length]).is_err() {
        command = [0; core_file::COMMAND];
    }
    let length = command[..length].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    command[..length].iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    core_file::process(numbers(process, process.id), process.nice(), name.as_bytes(), &command[..length])
}

/// Returns the auxiliary vector as it is in memory, up to the pair that ends it.
fn auxiliary(process: &Process) -> heapless::Vec<u8, { 16 * MOST_AUXILIARY }> {
    let mut vector = heapless::Vec::new();
    let start = process.shared.auxiliary();
    for at in 0..MOST_AUXILIARY {
        let mut pair = [0; 16];
        if start == 0 || process.copy_in(start as usize + 16 * at, &mut pair).is_err() {
            break;
        }
        let _ = vector.extend_from_slice(&pair);
        if pair[..8] == [0; 8] {
            break;
        }
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn the_regions_of_a_process_are_planned_in_their_order() {
        run(|program| {
            let process = program.process();
            let ranges = process.space().lock().regions().map(|region| region.range).collect::<Vec<_>>();
            let mut planned = Vec::new();
            let mut at = 0;
            loop {
                let Some(region) = process.space().lock().dumped_region_above(at) else { break };
                at = region.view.range.end;
                planned.push(part_of(&process, &region));
            }
            assert!(planned.iter().map(|part| part.start..part.end).eq(ranges.iter().cloned()));
            assert!(planned.iter().all(|part| (part.start..=part.end).contains(&part.dumped)));
        });
    }
}
