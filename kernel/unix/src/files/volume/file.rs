//! Files and directories of volumes: a kind of open file.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Poll, Waker};

use abi_queue::pages::PAGE_SIZE;
use abi_unix::Errno;
use abi_unix::types::{self, Status, open};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ext4::{Entry, ListingPlace, kind};
use filesystem::{Access, event};
use memory::space::Sharing;
use spin::Mutex;
use waiters::Waiters;

use crate::files::file::{Attempt, CommonMemory, FileOperations, Properties, position_behind};
use crate::files::mounts::{Mount, Node, Place};
use crate::files::stored::{DirectoryRecord, status_on_volume};
use crate::files::tree::errno_of;
use crate::files::volume::{MEMORY_OF_A_NODE, VolumeAnswer, VolumeNode, VolumeRequest, VolumeSubmission};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{Caller, UserBuffer};
use crate::scheduling::steps::{self, Ends};

/// Number of pages that are read ahead of a reader that goes from page to page: at first, and at most.
const LEAST_AHEAD: u64 = 8;
pub(crate) const MOST_AHEAD: u64 = 64;
/// Number of pieces of a mapping whose pages are found in memory between two looks for others that wait.
const PIECES_AT_ONCE: u64 = 32;
/// Bytes of a write that are given to the volume at once.
const MOST_GIVEN: usize = 32 * 1024;
/// Bytes of which places, lengths and addresses of direct transfers are multiples (`O_DIRECT`): a sector.
const DIRECT_UNIT: u64 = 512;
/// Number of transfers of one open file that are under way at once.
const MOST_TRANSFERS: usize = 64;

/// The pages before a reader that goes from page to page.
#[derive(Default)]
struct ReadAhead {
    /// The place at which the last read has ended.
    read_up_to: u64,
    /// Number of pages that are read at a time; 0 for a reader that goes here and there.
    window: u64,
    /// The page up to which they were asked for.
    asked_up_to: u64,
    /// The requests for the last ones: the disk reads the ones of the second while those of the first are entered into
    /// the file's pages.
    submissions: [Option<VolumeSubmission>; 2],
}

impl ReadAhead {
    /// Notes a read of these bytes, and returns whether it goes on where the last one has ended.
    #[inline]
    fn goes_on(&mut self, offset: u64, count: usize) -> bool {
        let goes_on = offset == self.read_up_to;
        self.read_up_to = offset + count as u64;
        if !goes_on {
            (self.window, self.asked_up_to) = (0, 0);
        }
        goes_on
    }

    /// Returns the pages to ask for after a read that has gone on, of which all bytes were in memory or not.
    fn wanted(&mut self, was_there: bool, size: u64) -> Option<(u64, u64)> {
        let end = self.read_up_to;
        let next = end.div_ceil(PAGE_SIZE as u64);
        // The next ones are asked for when the reader begins with the last but one, so that they come meanwhile.
        let enough = self.submissions.len() as u64 * self.window;
        if was_there && (self.asked_up_to == 0 || next + enough < self.asked_up_to) {
            return None;
        }
        self.place()?;
        self.window = (2 * self.window).clamp(LEAST_AHEAD, MOST_AHEAD);
        let first = next.max(self.asked_up_to);
        let count = size.div_ceil(PAGE_SIZE as u64).saturating_sub(first).min(self.window);
        self.asked_up_to = first + count;
        (count > 0).then_some((first, count))
    }

    /// Returns a place for one more request, if there is one.
    fn place(&mut self) -> Option<&mut Option<VolumeSubmission>> {
        self.submissions.iter_mut().find(|place| place.as_ref().is_none_or(VolumeSubmission::is_answered))
    }
}

/// A transfer that was submitted.
struct VolumeTransfer {
    submission: VolumeSubmission,
    /// The waker of the task whose transfer it is: a task makes one at a time.
    owner: Waker,
    /// The place that is read; a write is done as it was submitted.
    reads_from: Option<u64>,
    length: usize,
    /// The place up to which the bytes were written that are to last.
    written_to: Option<u64>,
    charge: Charge,
}

impl VolumeTransfer {
    /// Returns the parts of the transfer that has these bytes last, which were written up to a place.
    fn lasting(self, count: usize, end: u64) -> (Option<u64>, usize, Option<u64>, Charge) {
        (None, count, Some(end), self.charge)
    }
}

/// The changing parts of an open file.
#[derive(Default)]
struct Stage {
    position: u64,
    /// The place of a listing that has come to the position of this number.
    listed: Option<(u64, ListingPlace)>,
    appends: bool,
    /// Transfers are of whole sectors (`O_DIRECT`).
    is_direct: bool,
    transfers: Vec<VolumeTransfer>,
    waiters: Waiters,
    ahead: ReadAhead,
}

impl Stage {
    /// Returns the place of the transfer of this task among those that are under way.
    fn place_of(&self, waker: &Waker) -> Option<usize> {
        self.transfers.iter().position(|transfer| transfer.owner.will_wake(waker))
    }

    /// Whether a transfer of this task is under way.
    fn is_of(&self, waker: Option<&Waker>) -> bool {
        !self.transfers.is_empty() && waker.is_some_and(|waker| self.place_of(waker).is_some())
    }
}

/// The way in which transfers of an open file are after one another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransferTurn {
    /// It waits for all others: it moves the position, or writes at the end.
    Own,
    /// It waits for none.
    Any,
}

/// An open file or directory of a volume. Transfers with the volume that move the position or write at the end are
/// under way one at a time, others together. Bytes in memory are read and changed in place, also meanwhile.
pub(crate) struct VolumeFile {
    node: VolumeNode,
    mount: Arc<Mount>,
    access: Access,
    stage: Mutex<Stage>,
    /// The flags by which each write lasts when it returns (`O_SYNC` or `O_DSYNC`).
    lasting: u32,
    /// Number of failures that it has reported, or that were before it was opened.
    reported: AtomicU32,
    /// Number of failures of all files of the volume, likewise.
    reported_of_all: AtomicU32,
    _charge: Charge,
}

impl VolumeFile {
    /// Opens a file. To write, `EROFS` where that is not possible, `ETXTBSY` if a program is run from it.
    pub(crate) fn open(
        node: VolumeNode,
        mount: Arc<Mount>,
        access: Access,
        flags: u32,
        is_cut: bool,
        account: &Arc<Account>,
    ) -> Result<Box<VolumeFile>, Errno> {
        let charge = account.charge(Resource::Memory, MEMORY_OF_A_NODE)?;
        if access != Access::Read {
            let mut writers = node.volume().writers.lock();
            if writers.0 == ext4::Access::Read {
                return Err(Errno::EROFS);
            }
            if node.is(kind::REGULAR) {
                node.writers().begin().map_err(errno_of)?;
            }
            if let Err(error) = mount.begin_writing() {
                if node.is(kind::REGULAR) {
                    node.writers().end();
                }
                return Err(error);
            }
            writers.1 += 1;
        }
        let reported = AtomicU32::new(node.failures());
        let reported_of_all = AtomicU32::new(node.volume().failures());
        node.tell(event::OPENED);
        if is_cut {
            node.tell(event::MODIFIED);
        }
        // In place: it is large.
        Ok(Box::new(VolumeFile {
            node,
            mount,
            access,
            stage: Mutex::new(Stage {
                appends: flags & open::APPEND != 0,
                is_direct: flags & open::DIRECT != 0,
                ..Stage::default()
            }),
            lasting: flags & open::SYNC,
            reported,
            reported_of_all,
            _charge: charge,
        }))
    }

    /// Returns `EIO` if anything could not be written since this was last reported for the open file.
    pub(crate) fn report_failures(&self) -> Result<(), Errno> {
        let failures = self.node.failures();
        if self.reported.swap(failures, Ordering::Relaxed) == failures { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Returns `EIO` if anything of the volume could not be written since this was last reported for the open file.
    pub(crate) fn report_failures_of_all(&self) -> Result<(), Errno> {
        let failures = self.node.volume().failures();
        if self.reported_of_all.swap(failures, Ordering::Relaxed) == failures { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Returns the file.
    pub(crate) fn node(&self) -> &VolumeNode {
        &self.node
    }

    fn is_directory(&self) -> bool {
        self.node.is(kind::DIRECTORY)
    }

    /// Submits a request for the file.
    pub(crate) fn submit(&self, caller: &dyn Caller, request: VolumeRequest) -> Result<VolumeSubmission, Errno> {
        self.node.volume().submit(caller.account(), caller.number(), request)
    }

    /// Notes that programs can store to pages that are in memory. Others are noted when they come.
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    pub(crate) async fn note_stores<C: Caller + Ends + Sync>(&self, caller: &C, pages: Range<u64>, sharing: Sharing) {
        let mut next = Some(pages.start).filter(|_| sharing == Sharing::ReadWrite);
        while let Some(from) = next {
            next = self.node.0.pages.lock().store(from..pages.end);
            steps::pause(caller).await;
        }
    }

    /// Has pages in memory that are mapped, up to the end of the file.
    ///
    /// # Cancellation
    /// Pages that were asked for are read.
    // The arguments of an async function would be there twice.
    pub(crate) fn bring_in<'a, C: Caller + Ends + Sync>(
        &'a self,
        caller: &'a C,
        pages: Range<u64>,
        sharing: Sharing,
    ) -> impl Future<Output = Result<(), Errno>> + Send + 'a {
        let (mut first, last, stores) = (pages.start, pages.end, sharing == Sharing::ReadWrite);
        async move {
            if self.node.volume().is_of_host() {
                // It tells the length as it is now.
                let (node, count) = (self.node.clone(), 1);
                let request = VolumeRequest::Map { node, first, count, stores, is_new: true };
                self.submit(caller, request)?.answer().await?;
            }
            let end = self.node.size().div_ceil(PAGE_SIZE as u64);
            while first < last.min(end) || stores && first < last {
                // There are no pages to be read behind the end.
                let next = if first < end { last.min(first + MOST_AHEAD) } else { last };
                if first >= end || !self.node.has_pages(first..next, end, stores) {
                    self.ask_for_pages(caller, first..next, stores)?.answer().await?;
                } else if (first / MOST_AHEAD).is_multiple_of(PIECES_AT_ONCE) {
                    steps::pause(caller).await;
                }
                first = next;
            }
            Ok(())
        }
    }

    /// Asks for pages that are mapped, of which there are not more than are read at once.
    pub(crate) fn ask_for_pages(
        &self,
        caller: &dyn Caller,
        pages: Range<u64>,
        stores: bool,
    ) -> Result<VolumeSubmission, Errno> {
        let (node, first, count) = (self.node.clone(), pages.start, pages.end - pages.start);
        self.submit(caller, VolumeRequest::Map { node, first, count, stores, is_new: false })
    }

    /// Returns the place of the listing, exactly unless a program has chosen it.
    pub(crate) fn listed_up_to(&self) -> (u64, Option<ListingPlace>) {
        let stage = self.stage.lock();
        let exact = stage.listed.filter(|(position, _)| *position == stage.position);
        (stage.position, exact.map(|(_, place)| place))
    }

    /// Writes names that were listed from a place on to a buffer, and moves the place behind those that fit. `EINVAL`
    /// if not even one does.
    pub(crate) fn write_entries(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        entries: &[Entry],
    ) -> Result<usize, Errno> {
        let mut done = 0;
        for entry in entries {
            let record = DirectoryRecord::of_kind(entry.inode.into(), entry.next, entry.kind, &entry.name);
            if done + record.bytes().len() > buffer.len() {
                if done == 0 {
                    return Err(Errno::EINVAL);
                }
                break;
            }
            match caller.copy_out(buffer.address() + done, record.bytes()) {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += record.bytes().len();
            let mut stage = self.stage.lock();
            (stage.position, stage.listed) = (entry.next, Some((entry.next, entry.after)));
        }
        self.node.tell(event::ACCESSED);
        Ok(done)
    }

    /// Tells those who watch the file of a transfer of some bytes, which has ended.
    #[inline]
    fn told(&self, what: u32, attempt: Attempt) -> Attempt {
        if let Poll::Ready(Ok(1..)) = attempt {
            self.node.tell(what);
        }
        attempt
    }

    /// Fails with `EINVAL` for a direct transfer that is not of whole sectors.
    fn require_sectors(&self, stage: &Stage, buffer: UserBuffer, offset: u64) -> Result<(), Errno> {
        if !stage.is_direct || !self.node.is(kind::REGULAR) || self.node.volume().is_of_host() {
            return Ok(());
        }
        let all = buffer.address() as u64 | buffer.len() as u64 | offset;
        if all.is_multiple_of(DIRECT_UNIT) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Looks at the transfer of this task that is under way; `None` if it can begin one.
    fn look(
        stage: &mut Stage,
        waker: &Waker,
        turn: TransferTurn,
    ) -> Option<Poll<Result<(VolumeTransfer, VolumeAnswer), Errno>>> {
        let Some(place) = stage.place_of(waker) else {
            let most = if turn == TransferTurn::Own { 1 } else { MOST_TRANSFERS };
            if stage.transfers.len() < most {
                return None;
            }
            return Some(match stage.waiters.register(waker) {
                Ok(()) => Poll::Pending,
                Err(_) => Poll::Ready(Err(Errno::ENOMEM)),
            });
        };
        let Poll::Ready(answer) = stage.transfers[place].submission.poll(waker) else { return Some(Poll::Pending) };
        let transfer = stage.transfers.swap_remove(place);
        stage.waiters.wake_all();
        Some(Poll::Ready(answer.map(|answer| (transfer, answer))))
    }

    /// Reads at a place, or at the position, which moves.
    fn read_from(&self, caller: &dyn Caller, buffer: UserBuffer, at: Option<u64>, waker: Option<&Waker>) -> Attempt {
        if self.is_directory() {
            return Poll::Ready(Err(Errno::EISDIR));
        }
        let mut stage = self.stage.lock();
        let offset = at.unwrap_or(stage.position);
        // Behind the end there is nothing to read, whatever the places, as on Linux.
        if stage.is_direct && !buffer.is_empty() && offset < self.node.size() {
            self.require_sectors(&stage, buffer, offset)?;
        }
        if !stage.is_of(waker)
            && let Some(read) = self.node.read_in_place(caller, buffer, offset)
        {
            let (count, size) = read?;
            if at.is_none() {
                stage.position = offset + count as u64;
            }
            if stage.ahead.goes_on(offset, count) {
                self.read_ahead(&mut stage, caller, size, true);
            }
            return Poll::Ready(Ok(count));
        }
        // A transfer is its task's, which has a waker. The first attempt in place has none.
        let Some(waker) = waker else { return Poll::Pending };
        let turn = if at.is_some() { TransferTurn::Any } else { TransferTurn::Own };
        match Self::look(&mut stage, waker, turn) {
            None => {}
            Some(Poll::Pending) => return Poll::Pending,
            Some(Poll::Ready(Err(error))) => return Poll::Ready(Err(error)),
            Some(Poll::Ready(Ok((transfer, answer)))) => {
                if let (Some(from), VolumeAnswer::Bytes(bytes, count)) = (transfer.reads_from, answer)
                    && from == offset
                {
                    let count = count.min(buffer.len());
                    caller.copy_out(buffer.address(), &bytes[..count])?;
                    if at.is_none() {
                        stage.position = offset + count as u64;
                    }
                    return Poll::Ready(Ok(count));
                }
                // Of an earlier call that was given up, or another thread has moved the position: once more.
            }
        }
        let length = buffer.len().min(steps::BYTES);
        // The end of a file of the host is where that says.
        let is_of_host = self.node.volume().is_of_host();
        if length == 0 || offset >= self.node.size() && !is_of_host {
            return Poll::Ready(Ok(0));
        }
        let charge = caller.account().charge(Resource::Memory, length)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        let request = VolumeRequest::Read { node: self.node.clone(), offset, bytes };
        let begun = self.begin(&mut stage, caller, waker, request, (Some(offset), length, None, charge));
        if stage.ahead.goes_on(offset, length) {
            self.read_ahead(&mut stage, caller, self.node.size(), false);
        }
        begun
    }

    /// Asks for the pages before a reader that goes from page to page in a file of this size.
    #[inline(never)]
    fn read_ahead(&self, stage: &mut Stage, caller: &dyn Caller, size: u64, was_there: bool) {
        if self.node.volume().is_of_host() {
            return;
        }
        if let Some((first, count)) = stage.ahead.wanted(was_there, size) {
            // Without it the reader waits a little longer.
            let submitted = self.submit(caller, VolumeRequest::ReadAhead { node: self.node.clone(), first, count });
            if let Some(place) = stage.ahead.place() {
                *place = submitted.ok();
            }
        }
    }

    /// Writes at a place, or at the position, which moves.
    fn write_to(&self, caller: &dyn Caller, buffer: UserBuffer, at: Option<u64>, waker: Option<&Waker>) -> Attempt {
        let mut stage = self.stage.lock();
        let offset = at.unwrap_or(stage.position);
        let is_plain = !stage.is_direct && self.lasting == 0;
        if stage.is_direct {
            self.require_sectors(&stage, buffer, if stage.appends { self.node.size() } else { offset })?;
        }
        if is_plain && !stage.is_of(waker) && !stage.appends && !buffer.is_empty() && offset < i64::MAX as u64 {
            caller.account().admit()?;
            if let Some(written) = self.node.write_in_place(caller, buffer, offset) {
                let count = written?;
                if at.is_none() {
                    stage.position = offset + count as u64;
                }
                return Poll::Ready(Ok(count));
            }
        }
        let Some(waker) = waker else { return Poll::Pending };
        let length = buffer.len().min(MOST_GIVEN);
        let turn = if at.is_some() && !stage.appends { TransferTurn::Any } else { TransferTurn::Own };
        match Self::look(&mut stage, waker, turn) {
            None => {}
            Some(Poll::Pending) => return Poll::Pending,
            Some(Poll::Ready(Err(error))) => return Poll::Ready(Err(error)),
            Some(Poll::Ready(Ok((transfer, answer)))) => {
                let written = match (transfer.reads_from, answer) {
                    (None, VolumeAnswer::Written { count, end }) if self.lasting != 0 => {
                        let request = self.lasting_request();
                        return self.begin(&mut stage, caller, waker, request, transfer.lasting(count, end));
                    }
                    (None, VolumeAnswer::Written { count, end }) => Some((count, end)),
                    (None, VolumeAnswer::Done) => transfer.written_to.map(|end| (transfer.length, end)),
                    // Of an earlier call that was given up.
                    _ => None,
                };
                if let Some((count, end)) = written {
                    if at.is_none() {
                        stage.position = end;
                    }
                    if self.lasting != 0 {
                        self.report_failures()?;
                    }
                    return Poll::Ready(Ok(count));
                }
            }
        }
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        caller.account().admit()?;
        let offset = match at {
            // As on Linux, the place does not count for a file that is written at its end.
            _ if stage.appends => None,
            at => Some(at.unwrap_or(stage.position)),
        };
        if offset.is_some_and(|offset| offset.checked_add(length as u64).is_none_or(|end| end > i64::MAX as u64)) {
            return Poll::Ready(Err(Errno::EFBIG));
        }
        let charge = caller.account().charge(Resource::Memory, length)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(length, 0);
        caller.copy_in(buffer.address(), &mut bytes)?;
        let request = VolumeRequest::Write { node: self.node.clone(), offset, bytes };
        self.begin(&mut stage, caller, waker, request, (None, length, None, charge))
    }

    /// Returns the request to have a write last.
    fn lasting_request(&self) -> VolumeRequest {
        match self.lasting {
            open::DSYNC => VolumeRequest::SynchroniseData(self.node.clone()),
            _ => VolumeRequest::Synchronise(Some(self.node.clone())),
        }
    }

    fn begin(
        &self,
        stage: &mut Stage,
        caller: &dyn Caller,
        waker: &Waker,
        request: VolumeRequest,
        (reads_from, length, written_to, charge): (Option<u64>, usize, Option<u64>, Charge),
    ) -> Attempt {
        debug_assert!(!waker.will_wake(steps::IN_PLACE), "the answer would wake nobody");
        stage.transfers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let submission = self.submit(caller, request)?;
        submission.register(waker);
        let transfer = VolumeTransfer { submission, owner: waker.clone(), reads_from, length, written_to, charge };
        stage.transfers.push(transfer);
        Poll::Pending
    }

    fn forget(&self, waker: &Waker) {
        let mut stage = self.stage.lock();
        if let Some(place) = stage.place_of(waker) {
            stage.transfers.swap_remove(place);
            stage.waiters.wake_all();
        } else {
            stage.waiters.forget(waker);
        }
    }
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        self.node.tell(if self.access == Access::Read { event::CLOSED } else { event::CLOSED_WRITTEN });
        if self.access != Access::Read {
            self.node.volume().writers.lock().1 -= 1;
            self.mount.end_writing();
            if self.node.is(kind::REGULAR) {
                self.node.writers().end();
            }
        }
    }
}

impl FileOperations for VolumeFile {
    fn properties(&self) -> Properties {
        // As a disk.
        Properties::IN_STEPS
    }

    fn status(&self) -> Status {
        status_on_volume(&self.node, &self.mount)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        self.told(event::ACCESSED, self.read_from(caller, buffer, None, waker))
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        let rest = UserBuffer::new(buffer.address() + *done, buffer.len() - *done)?;
        let attempt = self.told(event::MODIFIED, self.write_to(caller, rest, None, waker));
        if let Poll::Ready(Ok(written)) = attempt {
            *done += written;
        }
        attempt
    }

    fn forget_reader(&self, waker: &Waker) {
        self.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        self.forget(waker);
    }

    fn directory(&self) -> Result<Place, Errno> {
        if !self.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        Ok(Place { node: Node::OnVolume(self.node.clone()), mount: self.mount.clone() })
    }

    fn place(&self) -> Option<Place> {
        Some(Place { node: Node::OnVolume(self.node.clone()), mount: self.mount.clone() })
    }

    fn mount(&self) -> Option<&Arc<Mount>> {
        Some(&self.mount)
    }

    fn length(&self) -> Option<u64> {
        Some(self.node.size())
    }

    fn unread(&self) -> Result<usize, Errno> {
        if !self.node.is(kind::REGULAR) {
            return Err(Errno::ENOTTY);
        }
        Ok(self.node.size().saturating_sub(self.stage.lock().position) as usize)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<usize, Errno> {
        let mut stage = self.stage.lock();
        let to = position_behind(offset, whence, stage.position, || self.node.size())?;
        if whence != types::SEEK_CUR || offset != 0 {
            stage.listed = None;
        }
        stage.position = to;
        Ok(to as usize)
    }

    fn poll_read_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, waker: Option<&Waker>) -> Attempt {
        if self.access == Access::Write {
            return Poll::Ready(Err(Errno::EBADF));
        }
        self.told(event::ACCESSED, self.read_from(caller, buffer, Some(offset), waker))
    }

    fn poll_write_at(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64, waker: Option<&Waker>) -> Attempt {
        if self.access == Access::Read {
            return Poll::Ready(Err(Errno::EBADF));
        }
        self.told(event::MODIFIED, self.write_to(caller, buffer, Some(offset), waker))
    }

    fn require_mappable(&self, access: Access) -> Result<(), Errno> {
        match access {
            _ if !self.node.is(kind::REGULAR) => Err(Errno::ENODEV),
            Access::Write => Err(Errno::EACCES),
            _ => Ok(()),
        }
    }

    fn common_memory(&self, caller: &dyn Caller, sharing: Sharing) -> Result<CommonMemory, Errno> {
        caller.account().admit()?;
        let (object, mapping) = self.node.map(caller, sharing == Sharing::ReadWrite)?;
        Ok((object, Arc::new(mapping)))
    }

    fn flags(&self) -> u32 {
        let stage = self.stage.lock();
        let of = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        of(stage.appends, open::APPEND) | of(stage.is_direct, open::DIRECT) | self.lasting
    }

    fn set_flags(&self, flags: u32) {
        let mut stage = self.stage.lock();
        stage.appends = flags & open::APPEND != 0;
        stage.is_direct = flags & open::DIRECT != 0;
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::allocation;
    use proptest::prelude::*;
    use std::vec;

    use super::*;
    use crate::files::disk::tests::{
        SECOND, SECOND_ENDS_AT, SECOND_FAILS, SECOND_IS_BAD_AT, SECOND_REFUSES_WRITES, place_on_second, replace_second,
    };
    use crate::files::volume::Inode;
    use crate::files::volume::pages::EXPIRES_NS;
    use crate::files::volume::tests::{mount, open, text, unmount, with_volume};
    use crate::testing::Program;

    const CREATED: u32 = types::open::CREAT | types::open::RDWR;
    /// The modes of `fallocate`.
    const MODES: [u32; 5] = [
        0,
        allocation::KEEP_SIZE,
        allocation::KEEP_SIZE | allocation::PUNCH_HOLE,
        allocation::ZERO_RANGE,
        allocation::KEEP_SIZE | allocation::ZERO_RANGE,
    ];

    /// A listing goes on from where it was, exactly: the number of the place may be that of several names. After a seek
    /// the number alone counts.
    #[test]
    fn a_listing_goes_on_exactly() {
        with_volume(|program| {
            const ROOM_FOR_ONE: usize = 32;
            assert_eq!(mount(program, 0), Ok(0));
            for number in 0..4 {
                let file = open(program, &std::format!("f{number}"), CREATED).unwrap();
                program.close(file).unwrap();
            }
            let listing = open(program, "", 0).unwrap();
            let file = program.process().descriptors.lock().get(listing).unwrap().clone();
            let listed = file.as_kind::<VolumeFile>().unwrap();
            assert_eq!(listed.listed_up_to(), (0, None));
            let buffer = program.place(ROOM_FOR_ONE);
            assert!(program.call(SystemCall::ReadDirectory, [listing, buffer, ROOM_FOR_ONE]).is_ok());
            let (place, exact) = listed.listed_up_to();
            assert!(exact.is_some());
            assert_eq!(program.call(SystemCall::Seek, [listing, 0, types::SEEK_CUR as usize]), Ok(place as usize));
            assert_eq!(listed.listed_up_to(), (place, exact));
            let mut names = 1;
            while program.call(SystemCall::ReadDirectory, [listing, buffer, ROOM_FOR_ONE]).unwrap() > 0 {
                names += 1;
            }
            assert_eq!(names, 4 + [".", "..", "lost+found"].len());
            let set = [listing, place as usize, types::SEEK_SET as usize];
            assert_eq!(program.call(SystemCall::Seek, set), Ok(place as usize));
            assert_eq!(listed.listed_up_to(), (place, None));
            drop(file);
            program.close(listing).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize, usize),
        Read(usize, usize),
        Truncate(usize),
        /// A part, and a mode of `fallocate`.
        Change(usize, usize, u32),
        Append(usize),
        Synchronise,
        /// The first page again and again, which is in memory.
        Overwrite(usize),
        GiveBack,
        OpenAgain,
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = || prop_oneof![0..100usize, 4000..4200usize, 8000..20_000usize];
        let length = || prop_oneof![1..50usize, 4090..4100usize, 9000..12_000usize];
        prop_oneof![
            3 => (place(), length()).prop_map(|(at, length)| Step::Write(at, length)),
            3 => (place(), length()).prop_map(|(at, length)| Step::Read(at, length)),
            1 => place().prop_map(Step::Truncate),
            2 => (place(), length(), prop::sample::select(&MODES[..]))
                .prop_map(|(at, length, mode)| Step::Change(at, length, mode)),
            1 => length().prop_map(Step::Append),
            1 => Just(Step::Synchronise),
            3 => (1..4096usize).prop_map(Step::Overwrite),
            1 => Just(Step::GiveBack),
            1 => Just(Step::OpenAgain),
        ]
    }

    /// Does the steps with a file and with a vector, which agree, also after an unmount.
    fn compare(program: &mut Program, steps: &[Step]) {
        assert_eq!(mount(program, 0), Ok(0));
        let (mut file, mut model) = (open(program, "file", CREATED).unwrap(), Vec::new());
        let place = program.place(20_000);
        let put = |model: &mut Vec<u8>, at: usize, bytes: &[u8]| {
            model.resize(model.len().max(at + bytes.len()), 0);
            model[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let check = |program: &mut Program, file: usize, model: &[u8], at: usize, length: usize| {
            let expected = model.get(at..model.len().min(at + length)).unwrap_or_default();
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, length, at]), Ok(expected.len()));
            assert!(program.read(place, expected.len()) == expected, "{length} bytes from {at} on");
        };
        for (number, step) in steps.iter().enumerate() {
            let bytes = |length: usize| (0..length).map(|index| (index + 7 * number) as u8).collect::<Vec<_>>();
            let (at, bytes) = match *step {
                Step::Write(at, length) => (at, bytes(length)),
                Step::Append(length) => (model.len(), bytes(length)),
                Step::Overwrite(length) => (0, bytes(length)),
                Step::Read(at, length) => {
                    check(program, file, &model, at, length);
                    continue;
                }
                Step::Truncate(length) => {
                    assert_eq!(program.call(SystemCall::Truncate, [file, length]), Ok(0));
                    model.resize(length, 0);
                    continue;
                }
                Step::Change(at, length, mode) => {
                    assert_eq!(program.call(SystemCall::Allocate, [file, mode as usize, at, length]), Ok(0));
                    let (end, is_kept) = (at + length, mode & allocation::KEEP_SIZE != 0);
                    if mode & !allocation::KEEP_SIZE != 0 {
                        let size = model.len();
                        model[at.min(size)..end.min(size)].fill(0);
                    }
                    model.resize(if is_kept { model.len() } else { model.len().max(end) }, 0);
                    continue;
                }
                Step::Synchronise => {
                    assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
                    continue;
                }
                Step::GiveBack => {
                    crate::files::volume::give_back();
                    continue;
                }
                Step::OpenAgain => {
                    program.call(SystemCall::Close, [file]).unwrap();
                    file = open(program, "file", CREATED).unwrap();
                    continue;
                }
            };
            program.write(place, &bytes);
            assert_eq!(program.call(SystemCall::WriteAt, [file, place, bytes.len(), at]), Ok(bytes.len()));
            put(&mut model, at, &bytes);
        }
        check(program, file, &model, 0, 20_000);
        check(program, file, &model, 20_000, 20_000);
        assert_eq!(length_of(program, file), model.len());
        program.call(SystemCall::Close, [file]).unwrap();
        assert_eq!(unmount(program), Ok(0));
        assert_eq!(mount(program, 0), Ok(0));
        let file = open(program, "file", 0).unwrap();
        check(program, file, &model, 0, 20_000);
        check(program, file, &model, 20_000, 20_000);
        program.call(SystemCall::Close, [file]).unwrap();
        assert_eq!(unmount(program), Ok(0));
    }

    proptest! {
        #![proptest_config(property::cases(24))]

        #[test]
        fn a_file_of_a_volume_behaves_as_a_vector_and_lasts(steps in prop::collection::vec(step(), 0..24)) {
            with_volume(move |program| compare(program, &steps));
        }
    }

    /// Parts of a file as ext4 of Linux changes them; but what is more than there is, is not begun.
    #[test]
    fn parts_of_files_are_reserved_cleared_and_freed() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let allocate = |program: &mut Program, mode: u32, at: usize, length: usize| {
                program.call(SystemCall::Allocate, [file, mode as usize, at, length])
            };
            let [keep, punch, zero] = [allocation::KEEP_SIZE, allocation::PUNCH_HOLE, allocation::ZERO_RANGE];
            for mode in [punch, punch | zero, keep | punch | zero, 4, 8, 32, 64, keep | 64] {
                assert_eq!(allocate(program, mode, 0, 4096), Err(Errno::EOPNOTSUPP), "{mode}");
            }
            assert_eq!(allocate(program, 0, 0, 0), Err(Errno::EINVAL));
            assert_eq!(allocate(program, 0, 1 << 43, 1 << 43), Err(Errno::EFBIG));
            let reader = open(program, "file", 0).unwrap();
            assert_eq!(program.call(SystemCall::Allocate, [reader, 0, 0, 1]), Err(Errno::EBADF));
            program.close(reader).unwrap();
            for mode in [0, zero] {
                assert_eq!(allocate(program, mode, 0, 64 << 20), Err(Errno::ENOSPC));
            }
            assert_eq!((length_of(program, file), blocks_of(program, file)), (0, 0));
            assert_eq!(allocate(program, keep, 0, 40_960), Ok(0));
            assert_eq!((length_of(program, file), blocks_of(program, file)), (0, 80));
            assert_eq!(allocate(program, 0, 20_000, 50), Ok(0));
            assert_eq!((length_of(program, file), blocks_of(program, file)), (20_050, 80));
            let place = program.store(&vec![5; 20_480]);
            assert_eq!(program.call(SystemCall::WriteAt, [file, place, 20_480, 0]), Ok(20_480));
            // Programs that have mapped the file see the zeros, and what they store then lasts.
            let shared = map(program, file, 20_480, types::mapping::SHARED).unwrap();
            assert_eq!(program.read(shared, 20_480), vec![5; 20_480]);
            assert_eq!(allocate(program, keep | punch, 4000, 8300), Ok(0));
            assert_eq!((length_of(program, file), blocks_of(program, file)), (20_480, 64));
            assert_eq!(allocate(program, zero, 16_000, 1 << 20), Ok(0));
            assert_eq!(length_of(program, file), 16_000 + (1 << 20));
            let expected = [vec![5; 4000], vec![0; 8300], vec![5; 3700], vec![0; 4480]].concat();
            assert!(program.read(shared, 20_480) == expected);
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, 20_480, 0]), Ok(20_480));
            assert!(program.read(place, 20_480) == expected);
            program.write(shared + 8192, b"a store to the middle of a hole.");
            program.call(SystemCall::Unmap, [shared, 20_480]).unwrap();
            program.close(file).unwrap();
            assert_eq!(unmount(program), Ok(0));
            assert!(is_on_the_disk(b"a store to the middle of a hole."));
        });
    }

    /// The blocks are the file's, whoever fills the volume.
    #[test]
    fn writes_to_reserved_blocks_are_not_refused_on_a_full_volume() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            assert_eq!(program.call(SystemCall::Allocate, [file, 0, 0, 1 << 20]), Ok(0));
            let full = open(program, "full", CREATED).unwrap();
            let place = program.store(&vec![5; 65_536]);
            let last = (0..1000).find_map(|_| program.call(SystemCall::Write, [full, place, 65_536]).err());
            assert_eq!(last, Some(Errno::ENOSPC));
            for at in (0..1 << 20).step_by(65_536 + 8192) {
                assert_eq!(program.call(SystemCall::WriteAt, [file, place, 5000, at]), Ok(5000));
            }
            assert_eq!(program.call(SystemCall::WriteAt, [file, place, 65_536, 1 << 20]), Err(Errno::ENOSPC));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            program.close(file).unwrap();
            program.close(full).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// Returns a number of a file's status.
    fn status_word(program: &mut Program, file: usize, offset: usize) -> usize {
        let status = program.place(128);
        program.call(SystemCall::Status, [file, status]).unwrap();
        u64::from_le_bytes(program.read(status + offset, 8).try_into().unwrap()) as usize
    }

    fn length_of(program: &mut Program, file: usize) -> usize {
        status_word(program, file, 48)
    }

    fn blocks_of(program: &mut Program, file: usize) -> usize {
        status_word(program, file, 64)
    }

    fn is_on_the_disk(bytes: &[u8]) -> bool {
        SECOND.lock().unwrap().windows(bytes.len()).step_by(4096).any(|block| block == bytes)
    }

    /// Makes a file of one page, which is on the disk, and returns a change of it that is in memory.
    fn changed(program: &mut Program, file: usize) -> [u8; 32] {
        let place = program.store(&[1; 4096]);
        assert_eq!(program.call(SystemCall::WriteAt, [file, place, 4096, 0]), Ok(4096));
        assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
        let change = *b"these bytes are changed in place";
        let place = program.store(&change);
        assert_eq!(program.call(SystemCall::WriteAt, [file, place, 32, 0]), Ok(32));
        assert!(!is_on_the_disk(&change), "the change waits");
        change
    }

    /// Direct transfers are of whole sectors, and see what others see (`O_DIRECT`).
    #[test]
    fn direct_transfers_are_of_whole_sectors() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let plain = open(program, "file", CREATED).unwrap();
            let place = program.place(3 * 4096).next_multiple_of(4096);
            program.write(place, &[7; 4096]);
            assert_eq!(program.call(SystemCall::WriteAt, [plain, place, 4000, 0]), Ok(4000));
            let direct = open(program, "file", types::open::RDWR | types::open::DIRECT).unwrap();
            let flags = |program: &mut Program, file| program.call(SystemCall::FileControl, [file, 3, 0]);
            let expected = (types::open::RDWR | types::open::DIRECT) as usize;
            assert_eq!(flags(program, direct), Ok(expected));
            for call in [SystemCall::ReadAt, SystemCall::WriteAt] {
                for [address, length, at] in [[place + 8, 512, 0], [place, 100, 0], [place, 512, 100]] {
                    assert_eq!(program.call(call, [direct, address, length, at]), Err(Errno::EINVAL), "{call:?}");
                }
            }
            assert_eq!(program.call(SystemCall::ReadAt, [direct, place + 512, 4096, 0]), Ok(4000));
            assert_eq!(program.read(place + 512, 4000), [7; 4000]);
            program.write(place, &[8; 512]);
            assert_eq!(program.call(SystemCall::WriteAt, [direct, place, 512, 512]), Ok(512));
            assert_eq!(program.call(SystemCall::ReadAt, [plain, place, 2, 1023]), Ok(2));
            assert_eq!(program.read(place, 2), [8, 7]);
            // The flag can be taken away, and given.
            let set =
                |program: &mut Program, flags: u32| program.call(SystemCall::FileControl, [direct, 4, flags as usize]);
            assert_eq!(set(program, 0), Ok(0));
            assert_eq!(program.call(SystemCall::ReadAt, [direct, place, 100, 1]), Ok(100));
            assert_eq!(set(program, types::open::DIRECT), Ok(0));
            assert_eq!(program.call(SystemCall::ReadAt, [direct, place, 100, 1]), Err(Errno::EINVAL));
            for file in [plain, direct] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// A write of a file that was opened for that lasts when it returns, and a failure is told by it.
    #[test]
    fn writes_last_when_they_return_if_they_are_to() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            for (turn, flag) in [types::open::DSYNC, types::open::SYNC].into_iter().enumerate() {
                let file = open(program, "file", CREATED | flag).unwrap();
                let flags = program.call(SystemCall::FileControl, [file, 3, 0]);
                assert_eq!(flags, Ok((types::open::RDWR | flag) as usize));
                for number in 0..3u8 {
                    // The first write gives the page its block, the others change it.
                    let bytes = [0xa0 + 16 * turn as u8 + number; 4096];
                    let place = program.store(&bytes);
                    assert_eq!(program.call(SystemCall::Write, [file, place, 4096]), Ok(4096));
                    assert!(is_on_the_disk(&bytes));
                    assert_eq!(program.call(SystemCall::Seek, [file, 0, types::SEEK_CUR as usize]), Ok(4096));
                    assert_eq!(program.call(SystemCall::Seek, [file, 0, types::SEEK_SET as usize]), Ok(0));
                }
                program.call(SystemCall::Close, [file]).unwrap();
            }
            let file = open(program, "file", CREATED | types::open::SYNC).unwrap();
            let place = program.store(&[1; 100]);
            SECOND_FAILS.store(true, Ordering::Relaxed);
            assert_eq!(program.call(SystemCall::WriteAt, [file, place, 100, 0]), Err(Errno::EIO));
            SECOND_FAILS.store(false, Ordering::Relaxed);
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn changes_are_written_after_some_time() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let change = changed(program, file);
            // Also of a file that nobody has open.
            program.call(SystemCall::Close, [file]).unwrap();
            program.sleep_ns(EXPIRES_NS as usize / 2);
            assert!(!is_on_the_disk(&change));
            program.sleep_ns(EXPIRES_NS as usize);
            let volume = crate::files::volume::all().pop().unwrap();
            assert!(volume.changed.lock().files.is_empty(), "the volume has it, whose own caches go on");
            assert_eq!(program.call(SystemCall::Synchronise, []), Ok(0));
            assert!(is_on_the_disk(&change));
            drop(volume);
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn a_change_that_cannot_be_written_is_told_once_to_each_open_file() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let (first, second) = (open(program, "file", CREATED).unwrap(), open(program, "file", CREATED).unwrap());
            let _ = changed(program, first);
            SECOND_FAILS.store(true, Ordering::Relaxed);
            let results = [first, first, second, second].map(|file| program.call(SystemCall::SynchroniseFile, [file]));
            assert_eq!(results, [Err(Errno::EIO), Ok(0), Err(Errno::EIO), Ok(0)]);
            SECOND_FAILS.store(false, Ordering::Relaxed);
            let place = program.place(10);
            // The disk could not be read either when the volume was to go on for reading.
            assert_eq!(program.call(SystemCall::WriteAt, [first, place, 10, 0]), Err(Errno::EIO));
            for file in [first, second] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// The disk's cache writes pages by itself, and fails to, before anybody asks for them to last.
    #[test]
    fn a_failure_to_write_before_a_flush_is_told_by_it() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let place = program.store(&vec![5; 20_000]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 20_000]), Ok(20_000));
            SECOND_FAILS.store(true, Ordering::Relaxed);
            let before = crate::files::disk::all()[1].write_errors();
            // The first disk may have pages of other tests.
            while crate::files::disk::give_back() {}
            program.sleep_ns(100_000_000);
            assert_ne!(crate::files::disk::all()[1].write_errors(), before, "the disk has tried to write");
            SECOND_FAILS.store(false, Ordering::Relaxed);
            let results = [file, file].map(|file| program.call(SystemCall::SynchroniseFile, [file]));
            assert_eq!(results, [Err(Errno::EIO), Ok(0)]);
            // It goes on for reading, and may be mounted for writing again.
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "other", CREATED).unwrap();
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// Bytes behind the end cannot be read, and all are there when the disk is as long as it was before.
    #[test]
    fn a_disk_that_shrinks_fails_what_lies_behind_its_end() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let page = program.store(&[0; 4096]);
            for (name, byte) in [("one", 5), ("two", 6)] {
                let file = open(program, name, CREATED).unwrap();
                program.write(page, &[byte; 4096]);
                assert_eq!(program.call(SystemCall::Write, [file, page, 4096]), Ok(4096));
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
            let disk = SECOND.lock().unwrap().clone();
            let end = place_on_second(6);
            assert!(place_on_second(5) < end);
            replace_second(disk);
            assert_eq!(mount(program, 0), Ok(0));
            SECOND_ENDS_AT.store(end, Ordering::Relaxed);
            let [one, two] = ["one", "two"].map(|name| open(program, name, types::open::RDWR).unwrap());
            let read = |program: &mut Program, file| program.call(SystemCall::ReadAt, [file, page, 4096, 0]);
            assert_eq!([read(program, one), read(program, two)], [Ok(4096), Err(Errno::EIO)]);
            let write = |program: &mut Program| program.call(SystemCall::WriteAt, [one, page, 100, 0]);
            assert_eq!(write(program), Ok(100));
            let new = open(program, "new", CREATED).unwrap();
            assert_eq!(program.call(SystemCall::SynchroniseFile, [new]), Ok(0));
            // It gets a place behind the end.
            assert_eq!(program.call(SystemCall::Write, [new, page, 4096]), Ok(4096));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [new]), Err(Errno::EIO));
            assert_eq!(write(program), Err(Errno::EROFS));
            assert_eq!([read(program, one), read(program, two)], [Ok(4096), Err(Errno::EIO)]);
            for file in [one, two, new] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
            SECOND_ENDS_AT.store(0, Ordering::Relaxed);
            assert_eq!(mount(program, 0), Ok(0));
            for (name, byte) in [("one", 5), ("two", 6)] {
                let file = open(program, name, types::open::RDWR).unwrap();
                assert_eq!(read(program, file), Ok(4096));
                assert_eq!(program.read(page + 200, 3000), [byte; 3000]);
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn a_write_that_fails_loses_what_did_not_last_and_every_open_file_is_told() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let (page, mut names) = (program.store(&[6; 4096]), [0; 3]);
            for (path, name) in names.iter_mut().zip(["bad", "old", "new"]) {
                *path = text(program, &std::format!("/tmp/volume/{name}"));
            }
            let [point, inside, kind] =
                ["/tmp/volume/m", "/tmp/volume/m/file", "tmpfs"].map(|name| text(program, name));
            let here = types::AT_FDCWD as usize;
            assert_eq!(program.call(SystemCall::MakeDirectory, [here, point, 0o755]), Ok(0));
            // The second one has no blocks: a write after the end of a file with blocks has everything last.
            for (name, length) in [("bad", 4096), ("old", 0)] {
                let file = open(program, name, CREATED).unwrap();
                program.write(page, &[5; 4096]);
                assert_eq!(program.call(SystemCall::Write, [file, page, length]), Ok(length));
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
            // From the beginning, without anything in memory.
            let disk = SECOND.lock().unwrap().clone();
            let bad = disk.chunks(4096).position(|block| block.iter().all(|byte| *byte == 5)).unwrap() * 4096;
            replace_second(disk);
            assert_eq!(mount(program, 0), Ok(0));
            // A directory that changes, and is covered.
            assert_eq!(program.call(SystemCall::ChangeModeAt, [here, point, 0o700]), Ok(0));
            assert_eq!(program.call(SystemCall::Mount, [kind, point, kind, 0, 0]), Ok(0));
            let covering = program.call(SystemCall::Open, [here, inside, types::open::CREAT as usize, 0o644]).unwrap();
            program.call(SystemCall::Close, [covering]).unwrap();
            // A new file perhaps gets the number of one that has gone.
            assert_eq!(program.call(SystemCall::Unlink, [here, names[1], 0]), Ok(0));
            program.sleep_ns(1_000_000);
            let (reader, file) = (open(program, "bad", 0).unwrap(), open(program, "new", CREATED).unwrap());
            program.write(page, &[7; 4096]);
            assert_eq!(program.call(SystemCall::Write, [file, page, 4096]), Ok(4096));
            let status = program.place(128);
            assert_eq!(program.call(SystemCall::StatusAt, [here, names[2], status, 0]), Ok(0));
            // A read that fails is nobody else's.
            SECOND_IS_BAD_AT.store(bad, Ordering::Relaxed);
            assert_eq!(program.call(SystemCall::ReadAt, [reader, page, 4096, 0]), Err(Errno::EIO));
            SECOND_IS_BAD_AT.store(0, Ordering::Relaxed);
            assert_eq!(program.call(SystemCall::StatusAt, [here, names[2], status, 0]), Ok(0));
            SECOND_REFUSES_WRITES.store(true, Ordering::Relaxed);
            let synchronised = program.call(SystemCall::SynchroniseFile, [file]);
            SECOND_REFUSES_WRITES.store(false, Ordering::Relaxed);
            assert_eq!(synchronised, Err(Errno::EIO));
            let told = [file, reader, reader].map(|file| program.call(SystemCall::SynchroniseFile, [file]));
            assert_eq!(told, [Ok(0), Err(Errno::EIO), Ok(0)]);
            // The names are those of the volume, and the file's pages are nobody else's.
            assert_eq!(program.call(SystemCall::StatusAt, [here, names[2], status, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::StatusAt, [here, names[1], status, 0]), Ok(0));
            // It stays covered, and is as it was.
            assert_eq!(program.call(SystemCall::StatusAt, [here, inside, status, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Unmount, [point, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::StatusAt, [here, point, status, 0]), Ok(0));
            assert_eq!(program.read_u32(status + 16) & 0o777, 0o755);
            while crate::files::volume::give_back() {}
            assert_eq!(program.call(SystemCall::ReadAt, [file, page, 4096, 0]), Err(Errno::EIO));
            assert_eq!(program.call(SystemCall::WriteAt, [file, page, 4096, 0]), Err(Errno::EIO));
            assert_eq!(map(program, file, 4096, types::mapping::SHARED), Err(Errno::EIO));
            assert_eq!(program.call(SystemCall::ReadAt, [reader, page, 4096, 0]), Ok(4096));
            assert_eq!(program.read(page, 4096), [5; 4096]);
            assert_eq!(open(program, "more", CREATED), Err(Errno::EROFS));
            // The volume can be changed again if that is asked for, and the lost file stays lost.
            assert_eq!(mount(program, types::mounting::flag::REMOUNT), Ok(0));
            let more = open(program, "more", CREATED).unwrap();
            assert_eq!(program.call(SystemCall::Write, [more, page, 4096]), Ok(4096));
            assert_eq!(program.call(SystemCall::WriteAt, [file, page, 4096, 0]), Err(Errno::EIO));
            assert_eq!(program.call(SystemCall::SynchroniseFile, [more]), Ok(0));
            for file in [reader, file, more] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn a_reader_of_pages_in_memory_needs_no_disk() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let place = program.store(&vec![9; 20_000]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 20_000]), Ok(20_000));
            SECOND_FAILS.store(true, Ordering::Relaxed);
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, 19_000, 500]), Ok(19_000));
            SECOND_FAILS.store(false, Ordering::Relaxed);
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    fn map(program: &mut Program, file: usize, length: usize, flags: u32) -> Result<usize, Errno> {
        let protection = types::protection::READ | types::protection::WRITE;
        program.call(SystemCall::Map, [0, length, protection as usize, flags as usize, file, 0])
    }

    /// The call that maps it waits for the volume, at each attempt but the first as a task of its own.
    #[test]
    fn a_private_mapping_has_pages_that_were_not_in_memory() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let place = program.store(&vec![5; 9000]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 9000]), Ok(9000));
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", 0).unwrap();
            let copy = map(program, file, 9000, types::mapping::PRIVATE).unwrap();
            assert_eq!(program.read(copy, 9000), vec![5; 9000]);
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn stores_to_a_mapping_reach_the_disk_and_a_copy_keeps_its_bytes() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let place = program.store(&vec![5; 9000]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 9000]), Ok(9000));
            let copy = map(program, file, 12_288, types::mapping::PRIVATE).unwrap();
            let shared = map(program, file, 20_000, types::mapping::SHARED).unwrap();
            assert_eq!((program.read(copy, 9000), program.read(shared, 9000)), (vec![5; 9000], vec![5; 9000]));
            assert_eq!(program.read(shared + 9000, 3288), vec![0; 3288], "behind the end of the file");
            assert_eq!(program.process().copy_in(shared + 12_288, &mut [0]), Err(Errno::EFAULT), "beyond it");
            let change = *b"a store by a program to a mapped";
            program.write(shared + 4096, &change);
            program.write(shared + 9000, b"not of the file");
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, 32, 4096]), Ok(32));
            assert_eq!(program.read(place, 32), change);
            assert_eq!(program.read(copy + 4096, 32), vec![5; 32]);
            assert!(!is_on_the_disk(&change));
            let synchronous = types::memory_synchronisation::SYNC as usize;
            assert_eq!(program.call(SystemCall::SynchroniseMemory, [shared, 12_288, synchronous]), Ok(0));
            assert!(is_on_the_disk(&change));
            // A file that grows shows zeros, whatever a program has stored behind its end.
            assert_eq!(program.call(SystemCall::Truncate, [file, 9100]), Ok(0));
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, 200, 9000]), Ok(100));
            assert_eq!(program.read(place, 100), vec![0; 100]);
            // The last stores are written after the mapping has gone.
            let last = *b"this store comes before the end.";
            program.write(shared, &last);
            for (at, length) in [(shared, 20_000), (copy, 12_288)] {
                program.call(SystemCall::Unmap, [at, length]).unwrap();
            }
            program.call(SystemCall::Close, [file]).unwrap();
            program.sleep_ns(3 * EXPIRES_NS as usize);
            assert_eq!(program.call(SystemCall::Synchronise, []), Ok(0));
            assert!(is_on_the_disk(&last));
            let volume = crate::files::volume::all().pop().unwrap();
            assert!(volume.changed.lock().files.is_empty(), "nothing is left to be compared");
            drop(volume);
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn stores_to_pages_that_were_cut_off_before_the_mapping_reach_the_disk() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let place = program.store(&vec![5; 40_960]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 40_960]), Ok(40_960));
            // A mapping keeps the pages.
            let (reader, read) = (open(program, "file", 0).unwrap(), types::protection::READ as usize);
            let shared_flag = types::mapping::SHARED as usize;
            let kept = program.call(SystemCall::Map, [0, 40_960, read, shared_flag, reader, 0]).unwrap();
            assert_eq!(program.call(SystemCall::Truncate, [file, 0]), Ok(0));
            let shared = map(program, file, 40_960, types::mapping::SHARED).unwrap();
            let id = program.process().id;
            let volume = crate::files::volume::all().pop().unwrap();
            let pays = |(_, inode): (u64, &alloc::sync::Weak<Inode>)| inode.upgrade().unwrap().pages.lock().payer == id;
            assert!(volume.inodes.lock().iter().any(pays), "comparisons that nobody asks for are the mapper's");
            drop(volume);
            assert_eq!(program.call(SystemCall::Truncate, [file, 40_960]), Ok(0));
            program.touch(shared, 40_960, hal_api::Access::Write);
            let change = *b"stored to a page cut off before.";
            program.write(shared + 7 * 4096, &change);
            for at in [shared, kept] {
                program.call(SystemCall::Unmap, [at, 40_960]).unwrap();
            }
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            assert!(is_on_the_disk(&change));
            while crate::files::volume::give_back() {}
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, 32, 7 * 4096]), Ok(32));
            assert_eq!(program.read(place, 32), change);
            for file in [file, reader] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn stores_need_no_room_where_there_is_a_block_and_wait_for_room_elsewhere() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let place = program.store(&vec![5; 65_536]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 4096]), Ok(4096));
            assert_eq!(program.call(SystemCall::Truncate, [file, 8192]), Ok(0));
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
            assert_eq!(mount(program, 0), Ok(0));
            let (file, full) =
                (open(program, "file", types::open::RDWR).unwrap(), open(program, "full", CREATED).unwrap());
            let last = (0..1000).find_map(|_| program.call(SystemCall::Write, [full, place, 65_536]).err());
            assert_eq!(last, Some(Errno::ENOSPC));
            let shared = map(program, file, 8192, types::mapping::SHARED).unwrap();
            program.touch(shared, 8192, hal_api::Access::Write);
            let changes = [*b"to a page that has its own block", *b"to a page that has no block yet."];
            program.write(shared, &changes[0]);
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            assert!(is_on_the_disk(&changes[0]));
            program.write(shared + 4096, &changes[1]);
            program.call(SystemCall::Unmap, [shared, 8192]).unwrap();
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Err(Errno::EIO));
            program.call(SystemCall::Close, [full]).unwrap();
            let path = text(program, "/tmp/volume/full");
            assert_eq!(program.call(SystemCall::Unlink, [types::AT_FDCWD as usize, path, 0]), Ok(0));
            program.sleep_ns(10_000_000);
            assert_eq!(program.call(SystemCall::SynchroniseFile, [file]), Ok(0));
            assert!(is_on_the_disk(&changes[1]));
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// Enters its number into a list when it is woken.
    struct Noted(u32, Arc<std::sync::Mutex<Vec<u32>>>);

    impl std::task::Wake for Noted {
        fn wake(self: Arc<Noted>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn requests_of_others_are_done_while_changes_are_written() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let place = program.store(&vec![5; 40_960]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 40_960]), Ok(40_960));
            let shared = map(program, file, 40_960, types::mapping::SHARED).unwrap();
            let (volume, account) = (crate::files::volume::all().pop().unwrap(), program.process().account.clone());
            let node = {
                let inodes = volume.inodes.lock();
                let mut used = inodes.iter().filter_map(|(_, inode)| inode.upgrade());
                VolumeNode(used.find(|inode| inode.attributes.lock().size == 40_960).unwrap())
            };
            let order = Arc::default();
            let requests =
                [VolumeRequest::Synchronise(Some(node)), VolumeRequest::Synchronise(None), VolumeRequest::Root];
            let mut submissions = Vec::new();
            for (number, request) in requests.into_iter().enumerate() {
                let submission = volume.submit(&account, 0, request).unwrap();
                submission.register(&Waker::from(Arc::new(Noted(number as u32, Arc::clone(&order)))));
                submissions.push(submission);
            }
            program.sleep_ns(100_000_000);
            assert_eq!(*order.lock().unwrap(), [2, 0, 1]);
            drop((submissions, volume));
            program.call(SystemCall::Unmap, [shared, 40_960]).unwrap();
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn pages_that_a_mapping_keeps_are_in_the_charge_of_its_maker() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "file", CREATED).unwrap();
            let place = program.store(&vec![5; 40_000]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 40_000]), Ok(40_000));
            let charged = |program: &mut Program| program.process().account.own(Resource::Memory);
            let before = charged(program);
            let shared = map(program, file, 1 << 20, types::mapping::SHARED).unwrap();
            let during = charged(program) - before;
            assert!((40_960..49_152).contains(&during), "{during}");
            program.call(SystemCall::Unmap, [shared, 1 << 20]).unwrap();
            assert!(charged(program) < before + 4096);
            program.call(SystemCall::Close, [file]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn changes_of_a_file_that_has_gone_keep_no_blocks() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let volume = crate::files::volume::all().pop().unwrap();
            let file = open(program, "file", CREATED).unwrap();
            let _ = changed(program, file);
            program.call(SystemCall::Close, [file]).unwrap();
            let path = text(program, "/tmp/volume/file");
            let (here, status) = (types::AT_FDCWD as usize, program.place(128));
            assert_eq!(program.call(SystemCall::StatusAt, [here, path, status, 0]), Ok(0));
            let before = volume.usage().blocks.1;
            assert_eq!(program.call(SystemCall::Unlink, [here, path, 0]), Ok(0));
            program.sleep_ns(10_000_000);
            assert!(volume.changed.lock().files.is_empty());
            assert_eq!(volume.usage().blocks.1, before + 1);
            drop(volume);
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn a_look_for_pages_to_give_back_is_short_and_the_next_one_goes_on() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let place = program.store(&[1; 4096]);
            let files: Vec<usize> = (0..100)
                .map(|number| {
                    let file = open(program, &std::format!("file-{number}"), CREATED).unwrap();
                    assert_eq!(program.call(SystemCall::Write, [file, place, 4096]), Ok(4096));
                    file
                })
                .collect();
            let volume = crate::files::volume::all().pop().unwrap();
            let with_pages = || {
                let inodes = volume.inodes.lock();
                inodes.iter().filter_map(|(_, inode)| inode.upgrade()).filter(|inode| inode.pages.lock().has(0)).count()
            };
            let (mut before, mut looks) = (with_pages(), 0);
            assert_eq!(before, 100);
            while crate::files::volume::give_back() {
                let now = with_pages();
                assert!(before - now <= 1, "the pages of a group at most");
                (before, looks) = (now, looks + 1);
            }
            assert_eq!(before, 0);
            assert!((100..200).contains(&looks), "{looks}");
            drop(volume);
            for file in files {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn a_failure_of_any_file_is_told_once_to_each_file_that_synchronises_all() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let (file, other) = (open(program, "file", CREATED).unwrap(), open(program, ".", 0).unwrap());
            let _ = changed(program, file);
            SECOND_FAILS.store(true, Ordering::Relaxed);
            let told = [other, other, file].map(|file| program.call(SystemCall::SynchroniseFileSystem, [file]));
            assert_eq!(told, [Err(Errno::EIO), Ok(0), Err(Errno::EIO)]);
            SECOND_FAILS.store(false, Ordering::Relaxed);
            for file in [file, other] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn mappings_of_files_that_cannot_be_read_or_mapped_are_refused() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let directory = open(program, ".", 0).unwrap();
            assert_eq!(map(program, directory, 4096, types::mapping::SHARED), Err(Errno::ENODEV));
            let file = open(program, "file", CREATED).unwrap();
            let written = open(program, "file", types::open::WRONLY).unwrap();
            assert_eq!(map(program, written, 4096, types::mapping::SHARED), Err(Errno::EACCES));
            let read = open(program, "file", types::open::RDONLY).unwrap();
            assert_eq!(map(program, read, 4096, types::mapping::SHARED), Err(Errno::EACCES));
            let place = program.store(&vec![5; 5000]);
            assert_eq!(program.call(SystemCall::Write, [file, place, 5000]), Ok(5000));
            // A mapping keeps its volume in use.
            let shared = map(program, file, 4096, types::mapping::SHARED).unwrap();
            for file in [directory, file, written, read] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Err(Errno::EBUSY));
            crate::files::volume::give_back();
            assert_eq!(program.read(shared, 4096), vec![5; 4096]);
            program.call(SystemCall::Unmap, [shared, 4096]).unwrap();
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn a_reader_that_goes_on_has_more_and_more_pages_read_ahead() {
        let note = |ahead: &mut ReadAhead, offset, count, was_there, size| {
            ahead.goes_on(offset, count).then(|| ahead.wanted(was_there, size)).flatten()
        };
        let mut ahead = ReadAhead::default();
        let size = 1 << 20;
        assert_eq!(note(&mut ahead, 0, 8192, false, size), Some((2, 8)));
        assert_eq!(note(&mut ahead, 8192, 4096, true, size), Some((10, 16)), "while it reads the ones before");
        assert_eq!(note(&mut ahead, 12_288, 4096, true, size), Some((26, 32)));
        assert_eq!(note(&mut ahead, 16_384, 4096, true, size), Some((58, 64)));
        assert_eq!(note(&mut ahead, 20_480, 4096, true, size), Some((122, 64)), "two requests are before it");
        assert_eq!(note(&mut ahead, 24_576, 4096, true, size), None, "there is enough before it");
        assert_eq!(note(&mut ahead, 0, 4096, true, size), None, "it has gone back");
        assert_eq!(note(&mut ahead, 4096, 4096, false, size), Some((2, 8)));
        let mut end = ReadAhead::default();
        assert_eq!(note(&mut end, 0, 4096, false, 4097), Some((1, 1)), "up to the end of the file");
        assert_eq!(note(&mut end, 4096, 1, false, 4097), None);
    }

    #[test]
    fn files_have_positions_and_directories_entries() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let flags = types::open::CREAT | types::open::RDWR;
            let file = open(program, "file", flags).unwrap();
            let (data, place) = (program.store(&[7; 6000]), program.place(6000));
            assert_eq!(program.call(SystemCall::Write, [file, data, 6000]), Ok(6000));
            assert_eq!(program.call(SystemCall::Read, [file, place, 10]), Ok(0));
            assert_eq!(program.call(SystemCall::WriteAt, [file, data, 1, 9999]), Ok(1));
            assert_eq!(
                program.call(SystemCall::Seek, [file, 0usize.wrapping_sub(4001), types::SEEK_END as usize]),
                Ok(5999)
            );
            assert_eq!(program.call(SystemCall::Read, [file, place, 3]), Ok(3));
            assert_eq!(program.read(place, 3), [7, 0, 0], "between two writes there are zeros");
            assert_eq!(program.call(SystemCall::Seek, [file, 0, types::SEEK_CUR as usize]), Ok(6002));
            assert_eq!(program.call(SystemCall::Read, [file, 8, 3]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::WriteAt, [file, data, 1, usize::MAX >> 1]), Err(Errno::EFBIG));
            let end = open(program, "file", types::open::WRONLY | types::open::APPEND).unwrap();
            assert_eq!(program.call(SystemCall::Write, [end, data, 2]), Ok(2));
            assert_eq!(program.call(SystemCall::ReadAt, [end, place, 1, 0]), Err(Errno::EBADF));
            let status = program.place(128);
            program.call(SystemCall::Status, [file, status]).unwrap();
            assert_eq!(program.read_u64(status + 48), 10_002);
            let root = open(program, ".", 0).unwrap();
            assert_eq!(program.call(SystemCall::Read, [root, place, 1]), Err(Errno::EISDIR));
            assert_eq!(program.call(SystemCall::ReadDirectory, [root, place, 10]), Err(Errno::EINVAL));
            let length = program.call(SystemCall::ReadDirectory, [root, place, 4096]).unwrap();
            let listed = program.read(place, length);
            assert!(
                listed.windows(4).any(|name| name == b"file") && listed.windows(10).any(|name| name == b"lost+found")
            );
            assert_eq!(program.call(SystemCall::ReadDirectory, [root, place, 4096]), Ok(0));
            for file in [file, end, root] {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }
}
