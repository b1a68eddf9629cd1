//! Pages of files that are mapped and not in memory yet: touched by a program, or by the kernel on its behalf.
//!
//! A mapping in common with a file of a volume has no pages at first but those that are in memory anyhow. A program
//! that touches another one waits in its own coroutine while the volume reads the page and its neighbours, needs no
//! stack for that, and repeats the instruction then.
//!
//! The kernel's own copies cannot wait: they are in the middle of something. So a call looks at its buffers before it
//! begins, also at those of vectors and messages, and waits for the pages that it will touch. This costs calls of other
//! processes nothing: where [traps are watched](trace::traps_are_watched) anyhow, the space is asked. Addresses that
//! are found in further structures are met in the middle: the call fails with `EFAULT`, waits for the page, and is made
//! again. The calls of rings do not wait; a process that has one has all pages of its mappings in memory.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;

use abi_unix::call::{Argument, NUMBER_MASK};
use abi_unix::{Errno, SystemCall};
use hal_api::UserContext;
use memory::AddressSpace;
use smallvec::SmallVec;

use crate::calls::call::Pause;
use crate::calls::mapping::Kept;
use crate::files::volume::file::MOST_AHEAD;
use crate::observing::trace;
use crate::process::Process;
use crate::process::user::USER_END;
use crate::process::worker::{PagesOf, Worker};
use crate::scheduling::steps::{self, Long};

const PAGE: u64 = abi_queue::pages::PAGE_SIZE as u64;
/// Pages that are read for one that is touched: it and its neighbours (Linux: `read_ahead_kb`, 128 KiB).
const AROUND: u64 = 32;
/// Bytes of a structure whose size the table of calls does not tell.
const STRUCTURE: usize = 256;
/// Number of pages of its buffers that a call looks at: the copy misses those behind them, and is shorter then.
const MOST_LOOKED_AT: u64 = 1024;
/// Number of entries of a vector (Linux: `UIO_MAXIOV`).
const MOST_ENTRIES: usize = 1024;
/// Bytes of an entry of a vector, of the header of a message, and of one of several.
const ENTRY: usize = 16;
const HEADER: usize = 56;
const HEADER_OF_SEVERAL: usize = 64;

/// Buffers of a call.
type Buffers = SmallVec<[Range<u64>; 8]>;

/// Pages of one mapping.
pub(crate) struct Fetch {
    process: Arc<Process>,
    kept: Arc<Kept>,
    pages: Range<u64>,
}

impl Fetch {
    /// Finds what must be fetched before a program touches an address; `None` if that would be of no use.
    pub(crate) fn at(process: &Arc<Process>, address: u64) -> Option<Fetch> {
        Fetch::of(process, &process.space().lock(), address / PAGE * PAGE, None)
    }

    /// Finds what must be fetched so that a range can be touched, whose first page has to be; without one its
    /// neighbours.
    fn of(process: &Arc<Process>, space: &AddressSpace, page: u64, range: Option<Range<u64>>) -> Option<Fetch> {
        let (region, object) = space.uniform(&(page..page + PAGE))?;
        let object = object.filter(|object| object.object.is_fetched())?;
        let kept = object.keeps?.downcast::<Kept>().ok()?;
        // Numbers of pages of the file.
        let first = object.first;
        let all = first - (page - region.range.start) / PAGE..first + (region.range.end - page) / PAGE;
        let pages = match range {
            Some(range) => first..first + (range.end - page).div_ceil(PAGE),
            None => first / AROUND * AROUND..(first / AROUND + 1) * AROUND,
        };
        Some(Fetch { process: process.clone(), kept, pages: pages.start.max(all.start)..pages.end.min(all.end) })
    }

    /// Finds what must be fetched before a call is made, which the worker is about to make.
    pub(crate) fn before_call(worker: &Worker, context: &UserContext) -> Option<Fetch> {
        let process = &worker.process;
        let mut space = process.space().lock();
        if !space.has_fetched() {
            return None;
        }
        let call = SystemCall::from_number(context.call_number() as usize & NUMBER_MASK)?;
        let arguments = context.arguments().map(|argument| argument as usize);
        // Of an earlier call.
        let _ = space.take_missed();
        worker.keep_argument(context.register(10));
        let mut most = MOST_LOOKED_AT;
        let mut find = |space: &AddressSpace, buffers: &Buffers| {
            let mut buffers = buffers.iter();
            buffers.find_map(|range| {
                let end = range.end.min(range.start.saturating_add(most * PAGE));
                let page = space.first_elsewhere(range.clone(), &mut most)?;
                Fetch::of(process, space, page, Some(page..end))
            })
        };
        let buffers = buffers_of(call, &arguments);
        let found = find(&space, &buffers);
        if found.is_some() {
            return found;
        }
        let further = further_buffers(&mut space, call, &arguments);
        find(&space, &further)
    }

    /// Finds what must be fetched because the kernel has missed it in a call that has failed for it.
    pub(crate) fn missed(process: &Arc<Process>, error: Errno) -> Option<Fetch> {
        if error != Errno::EFAULT {
            return None;
        }
        let mut space = process.space().lock();
        let page = space.take_missed()?;
        Fetch::of(process, &space, page, None)
    }

    /// Returns the work, for the coroutine of a worker. Few pages are asked for at once: all that a thread keeps while
    /// it waits for a page is the place of the answer.
    pub(crate) fn into_work(self) -> Long {
        if self.pages.end - self.pages.start > MOST_AHEAD {
            return Box::pin(self.carry_out());
        }
        let asked = self.kept.ask(&self.process, self.pages);
        Box::pin(async move { asked?.answer().await.map(|_| 0) })
    }

    /// Returns the pause of a worker for which pages have to be fetched.
    #[cold]
    #[inline(never)]
    pub(crate) fn pause(worker: &Worker, context: &mut UserContext) -> Pause {
        let (fetch, address) = match worker.take_pages_to_fetch() {
            PagesOf::Instruction { address } => (Fetch::at(&worker.process, address), Some(address)),
            PagesOf::NextCall => (Fetch::before_call(worker, context), None),
            PagesOf::LastCall => {
                context.pc = context.pc.wrapping_sub(4);
                context.set_register(10, worker.kept_argument());
                (Fetch::missed(&worker.process, Errno::EFAULT), None)
            }
        };
        match fetch {
            Some(fetch) => Pause::Fetch(fetch.into_work(), address),
            // They have come meanwhile, or there is no mapping any more, which the next attempt finds out.
            None => Pause::GiveWay,
        }
    }

    fn carry_out(self) -> impl Future<Output = Result<usize, Errno>> + Send {
        let Fetch { process, kept, pages } = self;
        async move { kept.fetch(&process, pages)?.await.map(|()| 0) }
    }
}

/// Has all pages of a range in memory, as far as files reach that are mapped there.
///
/// # Cancellation
/// Pages that were asked for are read.
pub(super) async fn fetch_range(process: &Arc<Process>, range: Range<u64>) -> Result<(), Errno> {
    let mut at = range.start;
    while at < range.end {
        let (next, fetch) = {
            let space = process.space().lock();
            let Some(region) = space.region_above(at).filter(|region| region.range.start < range.end) else { break };
            let (page, end) = (region.range.start.max(at), region.range.end.min(range.end));
            (end, Fetch::of(process, &space, page, Some(page..end)))
        };
        if let Some(fetch) = fetch {
            fetch.carry_out().await?;
        }
        at = next;
        steps::pause(&**process).await;
    }
    Ok(())
}

/// Has the pages of all files in memory that are mapped, for a process whose calls do not wait for them.
///
/// # Cancellation
/// As for [`fetch_range`].
pub(crate) async fn fetch_all(process: &Arc<Process>) -> Result<(), Errno> {
    if !process.space().lock().has_fetched() {
        return Ok(());
    }
    fetch_range(process, 0..USER_END as u64).await
}

/// Returns the range of a buffer, which may not be the program's at all.
fn range_of(address: usize, length: usize) -> Option<Range<u64>> {
    let end = address.checked_add(length).filter(|end| *end <= USER_END && length > 0)?;
    Some(address as u64..end as u64)
}

/// Returns the buffers of a call that its arguments tell.
fn buffers_of(call: SystemCall, arguments: &[usize; 6]) -> Buffers {
    let table = call.arguments();
    let mut buffers = Buffers::new();
    for (number, (_, kind)) in table.iter().enumerate() {
        let length = match (kind, table.get(number + 1)) {
            (Argument::Input | Argument::Output, Some((_, Argument::Length))) => arguments[number + 1],
            (Argument::Input, _) if is_of_vectors(call) => arguments[2].min(MOST_ENTRIES) * ENTRY,
            (Argument::Input | Argument::Output, _) => STRUCTURE,
            (Argument::Path, _) => 1,
            _ => continue,
        };
        buffers.extend(range_of(arguments[number], length));
    }
    buffers
}

fn is_of_vectors(call: SystemCall) -> bool {
    use SystemCall::*;
    matches!(
        call,
        ReadVector | WriteVector | ReadVectorAt | WriteVectorAt | ReadVectorWith | WriteVectorWith | SpliceMemory
    )
}

/// Returns the buffers of a call that it finds in memory, as far as they can be read now.
fn further_buffers(space: &mut AddressSpace, call: SystemCall, arguments: &[usize; 6]) -> Buffers {
    let mut buffers = Buffers::new();
    if is_of_vectors(call) {
        add_vector(space, arguments[1], arguments[2], &mut buffers);
    }
    let headers = match call {
        SystemCall::SendMessage | SystemCall::ReceiveMessage => 1,
        SystemCall::SendMessages | SystemCall::ReceiveMessages => arguments[2].min(MOST_ENTRIES),
        _ => 0,
    };
    for number in 0..headers {
        let header = arguments[1].checked_add(number * HEADER_OF_SEVERAL).and_then(|at| range_of(at, HEADER));
        let Some(header) = header else { break };
        if buffers.len() >= MOST_ENTRIES || !add_message(space, header, &mut buffers) {
            break;
        }
    }
    buffers
}

/// Adds the buffers of a message, as far as it can be read; returns whether its header can be.
fn add_message(space: &mut AddressSpace, header: Range<u64>, buffers: &mut Buffers) -> bool {
    let mut bytes = [0; HEADER];
    if space.copy_in(header.start, &mut bytes).is_err() {
        buffers.push(header);
        return false;
    }
    let word =
        |number: usize| bytes.as_chunks::<8>().0.get(number).map_or(0, |word| u64::from_le_bytes(*word)) as usize;
    buffers.extend(range_of(word(0), word(1) & u32::MAX as usize));
    buffers.extend(range_of(word(4), word(5)));
    buffers.extend(range_of(word(2), word(3).min(MOST_ENTRIES) * ENTRY));
    add_vector(space, word(2), word(3), buffers);
    true
}

/// Adds the buffers of a vector, as far as it can be read.
fn add_vector(space: &mut AddressSpace, address: usize, count: usize, buffers: &mut Buffers) {
    for number in 0..count.min(MOST_ENTRIES.saturating_sub(buffers.len())) {
        let mut entry = [0; ENTRY];
        let Some(at) = address.checked_add(number * ENTRY) else { return };
        if space.copy_in(at as u64, &mut entry).is_err() {
            return;
        }
        let [address, length] =
            [0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|byte| entry[at + byte])) as usize);
        buffers.extend(range_of(address, length));
    }
}

/// Traps are watched as long as there is a value of this.
pub(super) struct Watching;

impl Watching {
    pub(super) fn begin() -> Watching {
        trace::watch_traps();
        Watching
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        trace::end_watch_of_traps();
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::types::{self, mapping, open, protection};
    use hal_api::Access;

    use super::*;
    use crate::files::disk::tests::{SECOND, SECOND_IS_BAD_AT, place_on_second, silence_second};
    use crate::files::volume::loading::tests::{PAGES, make};
    use crate::files::volume::tests::{mount, open, unmount, with_volume};
    use crate::process::accounts::Resource;
    use crate::testing::Program;

    const PAGE: usize = abi_queue::pages::PAGE_SIZE;
    const LENGTH: usize = PAGES * PAGE;

    /// Makes a file whose pages have their numbers from 1 on and are on the disk alone, and maps it; returns its
    /// descriptor and its place.
    fn begin(program: &mut Program, flags: u32) -> (usize, usize) {
        make(program);
        let file = open(program, "file", open::RDWR).unwrap();
        (file, map(program, file, flags).unwrap())
    }

    fn map(program: &mut Program, file: usize, flags: u32) -> Result<usize, Errno> {
        let rights = (protection::READ | protection::WRITE) as usize;
        program.call(SystemCall::Map, [0, LENGTH, rights, (mapping::SHARED | flags) as usize, file, 0])
    }

    fn end(program: &mut Program, file: usize, place: usize) {
        assert_eq!(program.call(SystemCall::Unmap, [place, LENGTH]), Ok(0));
        program.call(SystemCall::Close, [file]).unwrap();
        assert_eq!(unmount(program), Ok(0));
    }

    /// Whether a page is in memory: the kernel cannot copy others.
    fn is_there(program: &Program, place: usize, page: usize) -> bool {
        program.process().copy_in(place + page * PAGE, &mut [0]).is_ok()
    }

    #[test]
    fn pages_come_with_their_neighbours_when_they_are_touched() {
        with_volume(|program| {
            let watchers = trace::trap_watchers();
            let (file, place) = begin(program, 0);
            assert_eq!(trace::trap_watchers(), watchers + 1);
            let before = program.process().account.own(Resource::Memory);
            let charged = |program: &Program| program.process().account.own(Resource::Memory) - before;
            assert!((0..PAGES).all(|page| !is_there(program, place, page)));
            program.touch(place + 5 * PAGE, 1, Access::Read);
            assert_eq!(program.read(place + 5 * PAGE, PAGE), [6; PAGE]);
            assert!((0..AROUND as usize).all(|page| is_there(program, place, page)));
            assert!((AROUND as usize..PAGES).all(|page| !is_there(program, place, page)));
            assert!((32 * PAGE..40 * PAGE).contains(&charged(program)), "{}", charged(program));
            program.touch(place + LENGTH - PAGE, 1, Access::Write);
            program.write(place + LENGTH - PAGE, &[77; PAGE]);
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            assert!(SECOND.lock().unwrap().chunks(PAGE).any(|block| block == [77; PAGE]));
            end(program, file, place);
            assert_eq!(trace::trap_watchers(), watchers, "calls look no more");
        });
    }

    #[test]
    fn pages_are_there_at_once_where_that_is_asked_for() {
        with_volume(|program| {
            let (file, place) = begin(program, mapping::POPULATE);
            assert!((0..PAGES).all(|page| is_there(program, place, page)));
            end(program, file, place);
        });
        with_volume(|program| {
            let (file, place) = begin(program, 0);
            assert_eq!(program.call(SystemCall::UnlockMemory, [place, LENGTH]), Ok(0));
            assert!(!is_there(program, place, 3));
            assert_eq!(program.call(SystemCall::LockMemory, [place, LENGTH]), Ok(0));
            assert!((0..PAGES).all(|page| is_there(program, place, page)));
            end(program, file, place);
        });
    }

    /// Its calls do not wait for pages.
    #[test]
    fn a_process_with_a_ring_has_its_pages_in_memory() {
        with_volume(|program| {
            let (file, place) = begin(program, 0);
            assert_eq!(program.call(SystemCall::RingSetup, [64, 0]).map(drop), Ok(()));
            assert!((0..PAGES).all(|page| is_there(program, place, page)));
            assert_eq!(program.call(SystemCall::Unmap, [place, LENGTH]), Ok(0));
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
            let (file, place) = begin_again(program);
            assert!((0..PAGES).all(|page| is_there(program, place, page)));
            end(program, file, place);
        });
    }

    fn begin_again(program: &mut Program) -> (usize, usize) {
        assert_eq!(mount(program, 0), Ok(0));
        let file = open(program, "file", open::RDWR).unwrap();
        (file, map(program, file, 0).unwrap())
    }

    /// Each call finds no page of its buffers in memory.
    #[test]
    fn calls_wait_for_the_pages_of_their_buffers() {
        with_volume(|program| {
            let (file, place) = begin(program, 0);
            let words = |words: &[usize]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
            let (reader, writer) = program.pipe(0);
            let (first, second) = program.socket_pair(types::SOCK_DGRAM);
            let mut page = 3;
            let mut fresh = |program: &mut Program| {
                // Before the next call nothing is in memory.
                assert_eq!(program.call(SystemCall::Unmap, [place, LENGTH]), Ok(0));
                assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
                while crate::files::volume::give_back() {}
                let rights = (protection::READ | protection::WRITE) as usize;
                let flags = (mapping::SHARED | mapping::FIXED) as usize;
                assert_eq!(program.call(SystemCall::Map, [place, LENGTH, rights, flags, file, 0]), Ok(place));
                page += 1;
                assert!(!is_there(program, place, page));
                (place + page * PAGE, page as u8 + 1)
            };
            // A buffer with its length.
            let (at, byte) = fresh(program);
            assert_eq!(program.call(SystemCall::Write, [writer, at, 100]), Ok(100));
            assert_eq!(program.read_from(reader, 100), Ok(vec![byte; 100]));
            // Over the end of what comes with the first page.
            let (_, _) = fresh(program);
            let at = place + (AROUND as usize - 1) * PAGE;
            assert_eq!(program.call(SystemCall::Write, [writer, at, 2 * PAGE]), Ok(2 * PAGE));
            let expected = [[AROUND as u8; PAGE], [AROUND as u8 + 1; PAGE]].concat();
            assert_eq!(program.read_from(reader, 2 * PAGE), Ok(expected));
            // Buffers of a vector.
            let (at, byte) = fresh(program);
            let vector = program.store(&words(&[at, 10, at + 36 * PAGE - page_of(at, place) * PAGE, 10]));
            assert_eq!(program.call(SystemCall::WriteVector, [writer, vector, 2]), Ok(20));
            assert_eq!(program.read_from(reader, 20), Ok([[byte; 10], [37; 10]].concat()));
            // The vector itself.
            let (at, _) = fresh(program);
            let text = program.store(b"a vector");
            program.touch(at, 1, Access::Write);
            program.write(at, &words(&[text, 8]));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            let before = at;
            fresh(program);
            assert_eq!(program.call(SystemCall::WriteVector, [writer, before, 1]), Ok(8));
            assert_eq!(program.read_from(reader, 8), Ok(b"a vector".to_vec()));
            // A message, which is received once.
            let (at, byte) = fresh(program);
            let entry = program.store(&words(&[at, 20]));
            let message = program.store(&words(&[0, 0, entry, 1, 0, 0, 0]));
            assert_eq!(program.call(SystemCall::SendMessage, [first, message, 0]), Ok(20));
            let (to, _) = fresh(program);
            let entry = program.store(&words(&[to, 64]));
            let message = program.store(&words(&[0, 0, entry, 1, 0, 0, 0]));
            assert_eq!(program.call(SystemCall::ReceiveMessage, [second, message, 0]), Ok(20));
            assert_eq!(program.read(to, 20), vec![byte; 20]);
            // One of several, which is received once too.
            let (at, byte) = fresh(program);
            let entry = program.store(&words(&[at, 30]));
            let messages = program.store(&words(&[0, 0, entry, 1, 0, 0, 0, 0]));
            assert_eq!(program.call(SystemCall::SendMessages, [first, messages, 1, 0]), Ok(1));
            let (to, _) = fresh(program);
            let entry = program.store(&words(&[to, 64]));
            let messages = program.store(&words(&[0, 0, entry, 1, 0, 0, 0, 0]));
            assert_eq!(program.call(SystemCall::ReceiveMessages, [second, messages, 1, 0, 0]), Ok(1));
            assert_eq!(program.read(to, 30), vec![byte; 30]);
            // A word that the table of calls does not call an address, and that is found in the middle of a call.
            let (at, byte) = fresh(program);
            let value = u32::from_le_bytes([byte; 4]) as usize;
            assert_eq!(program.call(SystemCall::Futex, [at, 0, value + 1, 0]), Err(Errno::EAGAIN));
            // An asynchronous call.
            let (at, byte) = fresh(program);
            let done = program.submit(SystemCall::Write, [writer, at, 40], 7);
            let done = done.map(|result| (7, result)).into_iter().collect::<Vec<_>>();
            let done = if done.is_empty() { program.await_completions() } else { done };
            assert_eq!(done, [(7, Ok(40))]);
            assert_eq!(program.read_from(reader, 40), Ok(vec![byte; 40]));
            for descriptor in [reader, writer, first, second] {
                program.call(SystemCall::Close, [descriptor]).unwrap();
            }
            end(program, file, place);
        });
    }

    fn page_of(at: usize, place: usize) -> usize {
        (at - place) / PAGE
    }

    /// Faults and calls that wait are given up with their process, and leave nothing.
    #[test]
    fn those_who_wait_for_a_page_can_be_killed() {
        with_volume(|program| {
            let (file, place) = begin(program, 0);
            let (_, writer) = program.pipe(0);
            silence_second(true);
            let touches: fn(&mut Program, usize, usize) = |program, place, _| program.touch(place, 1, Access::Read);
            let writes: fn(&mut Program, usize, usize) = |program, place, writer| {
                let _ = program.call(SystemCall::Write, [writer, place + PAGE, 10]);
            };
            for waits in [touches, writes] {
                let child = program
                    .fork(move |program| {
                        waits(program, place, writer);
                        panic!("the disk has not answered");
                    })
                    .unwrap();
                program.sleep_ns(1_000_000);
                let signal = types::signal::KILL;
                assert_eq!(program.call(SystemCall::Kill, [child, signal as usize]), Ok(0));
                assert_eq!(program.wait_for(child), Ok((child, signal)));
            }
            silence_second(false);
            program.touch(place, 1, Access::Read);
            assert_eq!(program.read(place, 1), [1]);
            end(program, file, place);
        });
    }

    /// A call is told, and a program that touches it gets a signal.
    #[test]
    fn a_page_that_cannot_be_read_is_an_error() {
        with_volume(|program| {
            let (file, place) = begin(program, 0);
            let bad = 5;
            let at = place_on_second(bad as u8 + 1);
            SECOND_IS_BAD_AT.store(at, core::sync::atomic::Ordering::Relaxed);
            let (_, writer) = program.pipe(0);
            let call = [writer, place + bad * PAGE, 10];
            assert_eq!(program.call(SystemCall::Write, call), Err(Errno::EFAULT));
            let child = program.fork(move |program| program.touch(place + bad * PAGE, 1, Access::Read)).unwrap();
            assert_eq!(program.wait_for(child), Ok((child, types::signal::BUS)));
            SECOND_IS_BAD_AT.store(0, core::sync::atomic::Ordering::Relaxed);
            assert_eq!(program.call(SystemCall::Write, call), Ok(10));
            end(program, file, place);
        });
    }
}
