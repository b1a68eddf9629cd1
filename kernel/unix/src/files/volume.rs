//! Mounted volumes of ext4: one stack for each, on which the library works, and the files that are in use.
//!
//! The library ([`ext4`]) is synchronous and does one operation of a volume at a time. Other coroutines
//! [submit](MountedVolume::submit) a [`VolumeRequest`] and wait for its [`VolumeAnswer`]; a coroutine of the kernel for
//! each volume takes them in their order, on a stack of its own ([`kernel_thread`]), where a request to the disk waits
//! ([`device`]). The process whose request is being done pays for it.
//!
//! Bytes of files that are in memory are read and changed without it ([`pages`]), and names that are known are found
//! without it ([`names`]). A request for bytes that are not in memory has the disk read them first, and waits aside
//! ([`loading`]): so the disk works for many requests at once, and the stack for others meanwhile.
//!
//! # Files in use
//! A [`VolumeNode`] is a use of a file: an open file, a working directory, a step of a path. Uses of one file share its
//! attributes, which the volume's coroutine keeps as they are on the volume; so `stat` of an open file waits for
//! nothing. A use is made on the volume's stack, so that no file goes between the look at its name and its first use. A
//! file without a name ends after its last use, in steps.
//!
//! # Failures
//! A volume whose disk has failed is what it was when it was synchronised last ([`Backing::access`] becomes less then):
//! names and files that were made since are not there, and their numbers may be those of others. So the coroutine looks
//! at the access after each operation. If it has become less by itself, every open file is told of the failure, all
//! names are forgotten, and files in use that are not the same on the volume any more are lost: operations on them fail
//! (`EIO`).
//!
//! # The end
//! When its mount has gone the volume does what was submitted, writes what was changed, ends files without names, and
//! is unmounted.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::ops::Range;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use abi_queue::Priority;
use abi_queue::pages::PAGE_SIZE;
use abi_unix::Errno;
use ext4::{
    Access, AttributeMode, Attributes, Change, Entry, Growth, ListingPlace, NewFile, RangeChange, Replacement, Special,
    Stamp, Usage, Volume, kind,
};
use filesystem::rights::{self, Ownership, Subject, WRITE};
use filesystem::{
    Contents, DeviceNumber, FileKind, Meeting, MeetingPlace, Metadata, Timestamp, Writers, Writes, event,
};
use hal_api::Machine as _;
use memory::{Frame, MemoryObject, SharedFrame};
use platform::{Machine, println};
use smallvec::SmallVec;
use spin::Mutex;
use tables::Ordered;

use crate::files::disk::{self, Disk};
use crate::files::file_events;
use crate::files::host_folder::HostFolder;
use crate::files::shared_memory::LostPages;
use crate::files::tree;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::identity::{self, Whom};
use crate::process::user::{Caller, UserBuffer};
use crate::scheduling::{executor, payers, steps};
use crate::time;

mod backing;
mod device;
pub(crate) mod file;
mod host_files;
pub(crate) mod loading;
mod names;
mod pages;
mod places;
mod watching;

use backing::Backing;
use device::{Blocks, WaitsOnStack};
use host_files::HostFiles;
use loading::{LoadingRequest, NearRuns};
use names::KnownNames;
use pages::{CachedPages, ChangedPiece, Spares};
pub(crate) use places::PathOnVolume;
use places::{Above, Released};

/// Number of requests that wait for a volume; more fail with `EAGAIN`. Each is a call that waits, or a step of one.
const MOST_REQUESTS: usize = 4096;
/// Number of the root directory.
const ROOT: u32 = 2;
/// Bytes that a use of a file takes, with the longest name, which a rename may give it.
pub(crate) const MEMORY_OF_A_NODE: usize =
    size_of::<Inode>() + 64 + filesystem::MAX_NAME_LENGTH + host_files::MEMORY_OF_A_FILE;
/// Number of files without names that are on a volume, in use or not ended yet, when no other file in use loses its
/// name. The library looks at all of them for each one that comes or goes.
const MOST_NAMELESS: usize = 256;
/// Number of requests that may wait for a volume when one more comes for bytes that nobody waits for yet.
const MOST_BEFORE_READ_AHEAD: usize = 64;
/// Pages that are read ahead of the kernel, which loads a program.
const FETCHED_AHEAD: u64 = 16;
/// Pages that are written at a time.
const WRITTEN_AT_A_TIME: usize = 4;
/// Time after which changes of the volume last without a call for it (Linux: the option `commit` of ext4).
const COMMIT_NS: u64 = 5_000_000_000;
/// Number of files whose numbers are remembered because they were made since all changes lasted.
const MOST_MADE: usize = 1024;
/// Seconds to which hosts may round the times of changes (FAT: 2), in which their clock may differ.
const LONGEST_TICK_SECONDS: u64 = 2;
/// Number of groups of pages that are looked at for some to give back, at a time, and of them for which a file counts.
const GROUPS_AT_A_TIME: usize = 192;
const GROUPS_OF_A_LOOK: usize = 4;

/// The present time, for changes.
fn now() -> Stamp {
    let now = crate::files::tree::now();
    Stamp { seconds: now.seconds, nanoseconds: now.nanoseconds }
}

/// An operation of a volume.
pub(crate) enum VolumeRequest {
    /// Mount it.
    Mount(Access),
    /// Give the root directory.
    Root,
    /// Find a name in a directory, with the target of a symbolic link.
    LookUp(VolumeNode, Vec<u8>),
    /// Find a name in a directory, or make a file with these permissions.
    Open { directory: VolumeNode, name: Vec<u8>, permissions: u16, must_be_new: bool },
    /// Make a directory with these permissions.
    MakeDirectory(VolumeNode, Vec<u8>, u16),
    /// Make a FIFO or the name of a socket.
    MakeSpecial(VolumeNode, Vec<u8>, Special, u16),
    /// Make a symbolic link with this target.
    MakeLink(VolumeNode, Vec<u8>, Vec<u8>),
    /// Give a file another name.
    Link(VolumeNode, VolumeNode, Vec<u8>),
    /// Remove a name of a file, or of a directory.
    Remove { directory: VolumeNode, name: Vec<u8>, is_directory: bool },
    /// Rename.
    Rename([(VolumeNode, Vec<u8>); 2], Replacement),
    /// Read the target of a symbolic link.
    ReadLink(VolumeNode),
    /// Read from a place into these bytes.
    Read { node: VolumeNode, offset: u64, bytes: Vec<u8> },
    /// Have so many pages from this one on in memory.
    ReadAhead { node: VolumeNode, first: u64, count: u64 },
    /// Have so many pages from this one on in memory, to be mapped; perhaps the first ones of a mapping.
    Map { node: VolumeNode, first: u64, count: u64, stores: bool, is_new: bool },
    /// Write these bytes to a place, or to the end.
    Write { node: VolumeNode, offset: Option<u64>, bytes: Vec<u8> },
    /// Open a file for the uses that a program will make of it, without its bytes or with them.
    OpenBytes { node: VolumeNode, access: filesystem::Access, writes: Writes, contents: Contents },
    /// Give a file another length.
    Truncate(VolumeNode, u64),
    /// Change a part of a file.
    ChangeRange(VolumeNode, Range<u64>, RangeChange),
    /// Find the next byte of a file from a place on that is in a hole, or one that is in none.
    Find(VolumeNode, u64, Sought),
    /// Change attributes.
    Change(VolumeNode, AttributeChange),
    /// List names from a place on, which may be known exactly.
    List(VolumeNode, u64, Option<ListingPlace>, usize),
    /// Give a file an extended attribute.
    SetAttribute { node: VolumeNode, name: Vec<u8>, value: Vec<u8>, mode: AttributeMode },
    /// Read an extended attribute.
    GetAttribute(VolumeNode, Vec<u8>),
    /// List the names of extended attributes.
    ListAttributes(VolumeNode),
    /// Take an extended attribute from a file.
    RemoveAttribute(VolumeNode, Vec<u8>),
    /// Have all changes last, of a file or of all.
    Synchronise(Option<VolumeNode>),
    /// Have the bytes of a file last, with all that is needed to find them.
    SynchroniseData(VolumeNode),
    /// Change the access.
    Remount(Access),
    /// Unmount it.
    Unmount,
}

/// A byte that `lseek` seeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    /// One that is in no hole (`SEEK_DATA`).
    Data,
    /// One that is in a hole (`SEEK_HOLE`). The end of a file is one.
    Hole,
}

/// A change of a file's attributes that a process wishes. Whether it may is decided when it is made.
pub(crate) enum AttributeChange {
    /// Other permissions.
    Permissions(u16),
    /// Another user and another group; `None` leaves one as it is.
    Owner(Option<u32>, Option<u32>),
    /// Other times of the last access and of the last change of contents, which are those of the present or not.
    Times([Option<Stamp>; 2], bool),
}

impl AttributeChange {
    /// Returns the event by which those who watch the file are told.
    fn event(&self) -> Option<u32> {
        match self {
            AttributeChange::Times([None, None], _) => None,
            AttributeChange::Times([Some(_), None], _) => Some(event::ACCESSED),
            AttributeChange::Times([None, Some(_)], _) => Some(event::MODIFIED),
            _ => Some(event::ATTRIBUTES),
        }
    }

    /// Returns the change of a file of this kind, made for a user.
    fn made_for(
        &self,
        subject: Option<&Subject>,
        file: Ownership,
        kind: FileKind,
    ) -> Result<Change, filesystem::Error> {
        let unchanged = Change::default();
        match *self {
            AttributeChange::Permissions(permissions) => {
                let permissions = Some(rights::changed_permissions(subject, file, permissions)?);
                Ok(Change { permissions, ..unchanged })
            }
            AttributeChange::Owner(user, group) => {
                let new = rights::changed_owner(subject, file, kind, user, group)?;
                let permissions = Some(new.permissions).filter(|permissions| *permissions != file.permissions);
                Ok(Change { permissions, owner: Some((new.user, new.group)), ..unchanged })
            }
            AttributeChange::Times([accessed, modified], are_present) => {
                rights::permit_times(subject, file, are_present)?;
                Ok(Change { accessed, modified, ..unchanged })
            }
        }
    }
}

impl VolumeRequest {
    /// Whether it is about a file that was lost.
    fn is_of_a_lost_file(&self) -> bool {
        use VolumeRequest::*;
        match self {
            // Changes of lost files are given up when they are synchronised.
            Mount(_) | Root | Synchronise(_) | SynchroniseData(_) | Remount(_) | Unmount => false,
            LookUp(node, _)
            | Open { directory: node, .. }
            | MakeDirectory(node, ..)
            | MakeSpecial(node, ..)
            | MakeLink(node, ..)
            | Remove { directory: node, .. }
            | ReadLink(node)
            | Read { node, .. }
            | ReadAhead { node, .. }
            | Map { node, .. }
            | Write { node, .. }
            | OpenBytes { node, .. }
            | Truncate(node, _)
            | ChangeRange(node, ..)
            | Find(node, ..)
            | Change(node, _)
            | SetAttribute { node, .. }
            | GetAttribute(node, _)
            | ListAttributes(node)
            | RemoveAttribute(node, _)
            | List(node, ..) => node.0.is_lost(),
            Link(file, directory, _) => file.0.is_lost() || directory.0.is_lost(),
            Rename(places, _) => places.iter().any(|(directory, _)| directory.0.is_lost()),
        }
    }
}

/// The result of an operation that was done.
pub(crate) enum VolumeAnswer {
    Done,
    /// A file; and the target of a symbolic link that was looked up.
    File(VolumeNode, Option<Vec<u8>>),
    /// A file that was made to be opened.
    Made(VolumeNode),
    /// There is no such name.
    Missing,
    /// Bytes, of which so many were read.
    Bytes(Vec<u8>, usize),
    /// So many bytes were written, up to this place.
    Written {
        count: usize,
        end: u64,
    },
    Entries(Vec<Entry>),
    /// A place of a file.
    Place(u64),
    /// The volume was mounted.
    Mounted(Arc<MountedVolume>),
}

/// Place for the answer to a request.
#[derive(Default)]
struct Reply {
    answer: Option<Result<VolumeAnswer, Errno>>,
    waker: Option<Waker>,
}

/// A request that was submitted. Dropping it leaves the request to be done, without anybody who waits for it.
pub(crate) struct VolumeSubmission(Arc<Mutex<Reply>>);

impl VolumeSubmission {
    /// Returns the answer when it is there, once. Registers the waker before it answers `Pending`.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Result<VolumeAnswer, Errno>> {
        let mut reply = self.0.lock();
        match reply.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                reply.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// Registers the waker; wakes it if the answer is there already.
    fn register(&self, waker: &Waker) {
        let mut reply = self.0.lock();
        match &reply.answer {
            Some(_) => waker.wake_by_ref(),
            None => reply.waker = Some(waker.clone()),
        }
    }

    /// Whether the answer is there.
    fn is_answered(&self) -> bool {
        self.0.lock().answer.is_some()
    }

    /// Waits for the answer.
    ///
    /// # Cancellation
    /// The request is done.
    pub(crate) async fn answer(self) -> Result<VolumeAnswer, Errno> {
        poll_fn(|cx| self.poll(cx.waker())).await
    }
}

/// A request with all that it needs.
struct Job {
    request: VolumeRequest,
    reply: Arc<Mutex<Reply>>,
    account: Arc<Account>,
    payer: u32,
    /// The user for whom it is done.
    whom: Whom,
    /// The disk has read what it needs.
    is_loaded: bool,
}

impl Job {
    fn reply(&self, answer: Result<VolumeAnswer, Errno>) {
        let waker = {
            let mut reply = self.reply.lock();
            reply.answer = Some(answer);
            reply.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The requests of a volume, and its coroutine that waits for them.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    worker: Option<Waker>,
    /// The mount has gone.
    is_ending: bool,
    /// The coroutine has ended.
    has_ended: bool,
    /// The next turn is the coroutine's own work, if there is any, and not that of a request.
    is_own_turn: bool,
    /// The time at which changes are to be written.
    alarm: Option<time::Alarm>,
}

/// The files with changed pages.
#[derive(Default)]
struct ChangedFiles {
    /// By their inodes. They stay in use until their changes are written.
    files: Ordered<Arc<Inode>>,
    /// Time at which the oldest change is to be written, in ticks.
    expires: u64,
}

/// The place of a volume's files.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// A volume of ext4.
    Disk(&'static Disk),
    /// A folder of the host.
    Folder(&'static HostFolder),
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::Disk(disk) => disk.name(),
            Source::Folder(folder) => folder.name(),
        }
    }

    /// Whether both are the same, or one is a part of the other.
    fn overlaps(self, other: Source) -> bool {
        match (self, other) {
            (Source::Disk(one), Source::Disk(other)) => one.overlaps(other),
            (Source::Folder(one), Source::Folder(other)) => core::ptr::eq(one, other),
            _ => false,
        }
    }

    fn disk(self) -> Option<&'static Disk> {
        match self {
            Source::Disk(disk) => Some(disk),
            Source::Folder(_) => None,
        }
    }

    /// Returns the number of failures to write that nobody was told of.
    fn write_errors(self) -> u64 {
        self.disk().map_or(0, Disk::write_errors)
    }
}

/// A mounted volume.
pub(crate) struct MountedVolume {
    source: Source,
    queue: Mutex<Queue>,
    /// The files in use, by their inodes.
    inodes: Mutex<Ordered<Weak<Inode>>>,
    /// Files without names whose last use has gone. There is room for all that are in use.
    nameless: Mutex<Vec<u32>>,
    /// Number of watched files.
    watched: AtomicU32,
    /// Access to it, with the number of files that are open for writing.
    writers: Mutex<(Access, usize)>,
    usage: Mutex<Usage>,
    changed: Mutex<ChangedFiles>,
    /// Requests that wait until the disk has read what they need.
    #[expect(clippy::vec_box, reason = "a list that grows has room for twice as many, and each is large")]
    loading: Mutex<Vec<Box<LoadingRequest>>>,
    /// Time at which changes of the volume are to last, in ticks; 0 without any.
    commit_at: AtomicU64,
    names: Mutex<KnownNames>,
    /// Directories whose last use has gone with that of a file in them.
    released: Mutex<Released>,
    /// Number of changes of the places of directories.
    moves: AtomicU64,
    /// Number of failures to have changes last that are not those of one file.
    failures: AtomicU32,
    /// Number of failures to have changes of single files last.
    failures_of_files: AtomicU32,
    /// The file at which the next look for pages to give back begins, and the number of files without any since the
    /// last one that had some.
    hand: AtomicU32,
    looks: AtomicUsize,
    /// Number of the disk's failures to write of which the volume knows.
    told_write_errors: AtomicU64,
    reservation: time::Reservation,
    /// The process for whose request the coroutine works, and the tick up to which it was charged.
    payer: AtomicU32,
    charged_until: AtomicU64,
    _charge: Charge,
}

static VOLUMES: Mutex<Vec<Weak<MountedVolume>>> = Mutex::new(Vec::new());

/// Returns the mounted volumes.
pub(crate) fn all() -> Vec<Arc<MountedVolume>> {
    VOLUMES.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Gives back memory of pages that are as on a volume, and has others written; returns whether there was any, or may be
/// at the next look.
pub(crate) fn give_back() -> bool {
    // A program may lack memory while it looks at the list.
    let Some(volumes) = VOLUMES.try_lock() else { return false };
    let found = volumes.iter().filter_map(Weak::upgrade).collect::<SmallVec<[_; 8]>>();
    drop(volumes);
    found.iter().any(|volume| volume.give_back())
}

/// Has all changes of all volumes last; returns the first failure.
///
/// # Cancellation
/// The volumes whose turn has not come are left out.
pub(crate) async fn synchronise_all(account: &Arc<Account>, payer: u32) -> Result<(), Errno> {
    let mut result = Ok(());
    for volume in all() {
        let done = match volume.submit(account, payer, VolumeRequest::Synchronise(None)) {
            Ok(submission) => submission.answer().await.map(drop),
            // It has ended.
            Err(_) => Ok(()),
        };
        result = result.and(done);
    }
    result
}

/// Writes all changes of all volumes and unmounts them, at the end of the machine: whoever still uses their files gets
/// `EIO`.
///
/// # Cancellation
/// The volumes whose turn has not come are left out.
async fn unmount_all(account: &Arc<Account>, payer: u32) {
    for volume in all() {
        loop {
            match volume.submit(account, payer, VolumeRequest::Unmount) {
                Ok(submission) => {
                    let _ = submission.answer().await;
                    break;
                }
                // It has ended, and is unmounted.
                Err(Errno::EIO) => break,
                // It has as many requests as it takes, or there is no memory for one more.
                Err(_) => executor::yield_now().await,
            }
        }
    }
}

/// Has everything that was written to volumes and disks last, before the machine ends.
///
/// # Cancellation
/// Changes may be lost.
pub(crate) async fn leave_disks(account: &Arc<Account>, payer: u32) {
    // Volumes first, whose changes are on the disks then.
    unmount_all(account, payer).await;
    disk::synchronise_all().await;
}

impl MountedVolume {
    /// Begins to mount the volume of a disk: returns it with the submission of that, whose answer says whether it is.
    /// `EBUSY` if a volume of the disk, of a partition of it or of the disk of this partition is mounted,
    /// `ENOMEM`.
    pub(crate) fn begin(
        source: Source,
        access: Access,
        account: &Arc<Account>,
        payer: u32,
    ) -> Result<VolumeSubmission, Errno> {
        let has_disk = |other: Arc<MountedVolume>| other.source.overlaps(source);
        // Also for a process that could not pay for another one.
        if all().into_iter().any(has_disk) {
            return Err(Errno::EBUSY);
        }
        let charge = account.charge(Resource::Memory, size_of::<MountedVolume>() + device::MEMORY + names::MEMORY)?;
        let volume = Arc::new(MountedVolume {
            source,
            queue: Mutex::default(),
            inodes: Mutex::new(Ordered::default()),
            nameless: Mutex::default(),
            watched: AtomicU32::new(0),
            writers: Mutex::new((access, 0)),
            usage: Mutex::default(),
            changed: Mutex::default(),
            loading: Mutex::default(),
            commit_at: AtomicU64::new(0),
            names: Mutex::default(),
            released: Mutex::default(),
            moves: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            failures_of_files: AtomicU32::new(0),
            hand: AtomicU32::new(0),
            looks: AtomicUsize::new(0),
            told_write_errors: AtomicU64::new(source.write_errors()),
            reservation: time::Reservation::new()?,
            payer: AtomicU32::new(0),
            charged_until: AtomicU64::new(0),
            _charge: charge,
        });
        {
            let mut volumes = VOLUMES.lock();
            volumes.retain(|other| other.strong_count() > 0);
            if volumes.iter().filter_map(Weak::upgrade).any(has_disk) {
                return Err(Errno::EBUSY);
            }
            volumes.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            volumes.push(Arc::downgrade(&volume));
        }
        let submission = volume.submit(account, payer, VolumeRequest::Mount(access))?;
        device::start(&volume)?;
        Ok(submission)
    }

    /// Submits a request that needs no rights, which this process pays for. `EIO` when the volume has ended, `EAGAIN`
    /// if too many wait.
    pub(crate) fn submit(
        &self,
        account: &Arc<Account>,
        payer: u32,
        request: VolumeRequest,
    ) -> Result<VolumeSubmission, Errno> {
        self.submit_for(None, (account, payer), request)
    }

    /// Submits a request that is done for a user, with the rights of that one.
    pub(crate) fn submit_for(
        &self,
        whom: Whom,
        (account, payer): (&Arc<Account>, u32),
        request: VolumeRequest,
    ) -> Result<VolumeSubmission, Errno> {
        let reply = Arc::new(Mutex::new(Reply::default()));
        let job = Job { request, reply: reply.clone(), account: account.clone(), payer, whom, is_loaded: false };
        let mut queue = self.queue.lock();
        if queue.has_ended {
            return Err(Errno::EIO);
        }
        let most = match job.request {
            VolumeRequest::ReadAhead { .. } => MOST_BEFORE_READ_AHEAD,
            _ => MOST_REQUESTS,
        };
        if queue.jobs.len() >= most {
            return Err(Errno::EAGAIN);
        }
        queue.jobs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        queue.jobs.push_back(job);
        let worker = queue.worker.take();
        drop(queue);
        if let Some(worker) = worker {
            worker.wake();
        }
        Ok(VolumeSubmission(reply))
    }

    /// Ends the volume as soon as everything that was submitted is done.
    pub(crate) fn end(&self) {
        let worker = {
            let mut queue = self.queue.lock();
            queue.is_ending = true;
            queue.worker.take()
        };
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Returns the name of its disk.
    pub(crate) fn device_name(&self) -> &'static str {
        self.source.name()
    }

    /// Whether its files are those of a folder of the host, which others may change.
    pub(crate) fn is_of_host(&self) -> bool {
        matches!(self.source, Source::Folder(_))
    }

    /// Whether it must not be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.writers.lock().0 == Access::Read
    }

    /// Returns the number of failures to have any changes last.
    fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed).wrapping_add(self.failures_of_files.load(Ordering::Relaxed))
    }

    /// Returns its sizes, as of the last operation.
    pub(crate) fn usage(&self) -> Usage {
        *self.usage.lock()
    }

    /// Begins a remount: from now on no file is opened for writing that must not be. Returns the submission, if there
    /// is anything to do. `EBUSY` if files are open for writing.
    pub(crate) fn begin_remount(
        &self,
        access: Access,
        account: &Arc<Account>,
        payer: u32,
    ) -> Result<Option<VolumeSubmission>, Errno> {
        let mut writers = self.writers.lock();
        if writers.0 == access {
            return Ok(None);
        }
        if access == Access::Read {
            if writers.1 > 0 {
                return Err(Errno::EBUSY);
            }
            writers.0 = Access::Read;
        }
        drop(writers);
        self.submit(account, payer, VolumeRequest::Remount(access)).map(Some)
    }

    /// Does a job, or without one a step of the end of a file.
    fn serve<W: WaitsOnStack>(&self, desk: &mut Desk<'_, W>, job: Option<Job>) {
        desk.payer = job.as_ref().map_or(0, |job| job.payer);
        self.account_for(desk.payer);
        match job {
            Some(job) if desk.has_room_for(&job) => desk.waiting.push_back(job),
            Some(job) => {
                let Some(job) = desk.load(job) else {
                    self.account_for(0);
                    return;
                };
                let answer = desk.perform(&job);
                // Everything that was done for it is paid before it goes on.
                self.account_for(0);
                job.reply(answer);
            }
            None => desk.work_unasked(),
        }
    }

    /// Ends the coroutine's work: unmounts, and answers those that came too late.
    fn finish<W: WaitsOnStack>(&self, desk: &mut Desk<'_, W>) {
        desk.unmount_at_the_end();
        let late = {
            let mut queue = self.queue.lock();
            queue.has_ended = true;
            core::mem::take(&mut queue.jobs)
        };
        self.close_released();
        // At the end of the machine files are in use, and may have been changed since everything was written.
        let is_in_use = !self.inodes.lock().is_empty();
        for job in late {
            job.reply(late_answer(&job.request, is_in_use));
        }
    }

    /// Returns the next job, or none for a step of the coroutine's own work, in turns; `None` at the end.
    fn next(&self, desk: DeskState, waker: &Waker) -> Poll<Option<Option<Job>>> {
        let has_to_write = desk.is_mounted && (self.has_to_write() || self.has_to_commit());
        let has_endings = !self.nameless.lock().is_empty() || self.has_released();
        let has_work = has_to_write || desk.has_work || has_endings;
        // Not twice before the coroutine's own work, which would wait for ever otherwise.
        let is_own_turn = has_work && !self.queue.lock().is_own_turn;
        let loaded = if is_own_turn { None } else { self.take_loaded() };
        let mut queue = self.queue.lock();
        if let Some(alarm) = queue.alarm.take() {
            time::clear(alarm);
        }
        queue.is_own_turn = loaded.is_none() && !queue.is_own_turn && has_work;
        if queue.is_own_turn {
            return Poll::Ready(Some(None));
        }
        if let Some(job) = loaded.or_else(|| queue.jobs.pop_front()) {
            return Poll::Ready(Some(Some(job)));
        }
        if has_work {
            return Poll::Ready(Some(None));
        }
        // Only the first job mounts it: a volume that is not there now is not mounted, or not any more.
        if (queue.is_ending || !desk.is_mounted) && self.loading.lock().is_empty() {
            return Poll::Ready(None);
        }
        queue.worker = Some(waker.clone());
        // An end that has come since the look above has found no worker to wake.
        if !self.nameless.lock().is_empty() || self.has_released() || self.has_loaded() {
            return Poll::Ready(Some(None));
        }
        let expires = {
            let changed = self.changed.lock();
            (!changed.files.is_empty()).then_some(changed.expires)
        };
        let commits = Some(self.commit_at.load(Ordering::Relaxed)).filter(|at| *at > 0 && desk.is_mounted);
        if let Some(at) = expires.into_iter().chain(commits).min() {
            queue.alarm = Some(self.reservation.set(at, waker));
        }
        Poll::Pending
    }

    /// Whether changes of the volume are old enough to be made lasting.
    fn has_to_commit(&self) -> bool {
        let at = self.commit_at.load(Ordering::Relaxed);
        at > 0 && Machine::now() >= at
    }

    /// Whether changes are old enough to be written, or too many.
    fn has_to_write(&self) -> bool {
        let changed = self.changed.lock();
        !changed.files.is_empty() && (Machine::now() >= changed.expires || pages::many_changed())
    }

    /// Wakes the coroutine.
    fn wake(&self) {
        let worker = self.queue.lock().worker.take();
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Gives back pages of a file; returns whether there were any, or not all files were seen. Has changes written.
    fn give_back(&self) -> bool {
        let has_given = self.give_back_some();
        if let Some(mut changed) = self.changed.try_lock()
            && !changed.files.is_empty()
        {
            changed.expires = 0;
            drop(changed);
            self.wake();
        }
        has_given
    }

    /// Gives back pages of the first file that has some, after the one that had some last; returns whether there is one
    /// or not all files were seen. A page fault waits for it, so it looks at a bounded number of files and pages.
    fn give_back_some(&self) -> bool {
        let mut groups = GROUPS_AT_A_TIME;
        while groups >= GROUPS_OF_A_LOOK {
            groups -= GROUPS_OF_A_LOOK;
            // A lock that is taken is that of a task which perhaps lacks memory itself.
            let Some(inodes) = self.inodes.try_lock() else { return false };
            // Pages that were used go as well, if all files were seen without finding others.
            let (looks, files) = (self.looks.load(Ordering::Relaxed), inodes.len());
            if looks >= 2 * files {
                self.looks.store(0, Ordering::Relaxed);
                return false;
            }
            let spares = if looks < files { Spares::Used } else { Spares::Nothing };
            let hand = self.hand.load(Ordering::Relaxed).into();
            let found = inodes.first_from(hand).or_else(|| inodes.first_from(0));
            let inode = found.and_then(|number| inodes.get(number)).and_then(Weak::upgrade);
            drop(inodes);
            let Some(found) = found else { return false };
            let given = inode.as_ref().and_then(|inode| inode.pages.try_lock()?.give_back(spares, &mut groups));
            match given {
                Some(0) => {}
                Some(_) => {
                    self.looks.store(0, Ordering::Relaxed);
                    return true;
                }
                None => {
                    self.looks.store(looks + 1, Ordering::Relaxed);
                    self.hand.store(found as u32 + 1, Ordering::Relaxed);
                }
            }
        }
        true
    }

    /// Charges the present payer for the time since the last charge, and begins to work for another one.
    fn account_for(&self, payer: u32) {
        let now = Machine::now();
        let since = self.charged_until.swap(now, Ordering::Relaxed);
        let before = self.payer.swap(payer, Ordering::Relaxed);
        if before != 0 {
            payers::work_for(before);
            payers::charge(before, now.saturating_sub(since));
        }
    }

    /// Polls the coroutine's work, and charges the processes for which it works.
    fn poll_charged(&self, work: Pin<&mut impl Future<Output = ()>>, cx: &mut Context<'_>) -> Poll<()> {
        self.charged_until.store(Machine::now(), Ordering::Relaxed);
        let result = work.poll(cx);
        self.account_for(self.payer.load(Ordering::Relaxed));
        result
    }
}

/// The volume's coroutine at its work.
struct Desk<'a, W: WaitsOnStack> {
    volume: Option<Backing<'a, W>>,
    shared: &'a Arc<MountedVolume>,
    /// Files without names and uses that are to be ended, beside those of the list that all share.
    endings: Vec<u32>,
    /// The one whose end is under way.
    ending: Option<u32>,
    /// Number of files without names on the volume.
    nameless: usize,
    /// Requests to have changes last. They are done one after the other, in steps between those of others.
    waiting: VecDeque<Job>,
    /// The file and the page with which the first of them goes on.
    synchronised_up_to: (u64, u64),
    /// The file and the page with which writing old changes goes on.
    written_up_to: Option<(u64, u64)>,
    /// The access at the last look.
    access: Access,
    made: MadeFiles,
    /// The process for whose request it works; 0 for none.
    payer: u32,
    /// Place for some pages.
    buffer: Vec<u8>,
    /// Places on the disk of the bytes that the present request needs.
    near: NearRuns,
    waits: &'a W,
}

/// The numbers of the files that were made since all changes lasted.
#[derive(Default)]
struct MadeFiles {
    numbers: Vec<u32>,
    /// There were more, or no memory for them.
    are_more: bool,
}

impl MadeFiles {
    fn note(&mut self, made: &Attributes) {
        if self.numbers.len() >= MOST_MADE || self.numbers.try_reserve(1).is_err() {
            self.are_more = true;
        } else {
            self.numbers.push(made.inode);
        }
    }

    /// Whether a file with this number may have been made.
    fn may_have(&self, number: u32) -> bool {
        self.are_more || self.numbers.contains(&number)
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.are_more = false;
    }
}

/// The part of a desk on which its next job depends.
#[derive(Clone, Copy)]
struct DeskState {
    is_mounted: bool,
    /// There are files to be ended or to be synchronised.
    has_work: bool,
}

impl<'a, W: WaitsOnStack> Desk<'a, W> {
    fn new(shared: &'a Arc<MountedVolume>, waits: &'a W) -> Desk<'a, W> {
        Desk {
            volume: None,
            shared,
            endings: Vec::new(),
            ending: None,
            nameless: 0,
            waiting: VecDeque::new(),
            synchronised_up_to: (0, 0),
            written_up_to: None,
            access: Access::Read,
            made: MadeFiles::default(),
            payer: 0,
            buffer: Vec::new(),
            near: NearRuns::default(),
            waits,
        }
    }

    fn state(&self) -> DeskState {
        DeskState { is_mounted: self.volume.is_some(), has_work: self.has_endings() || !self.waiting.is_empty() }
    }

    /// Whether a request is one to have changes last, which can wait for its steps.
    fn has_room_for(&mut self, job: &Job) -> bool {
        matches!(job.request, VolumeRequest::Synchronise(_) | VolumeRequest::SynchroniseData(_))
            && self.waiting.len() < MOST_REQUESTS
            && self.waiting.try_reserve(1).is_ok()
    }

    fn has_endings(&self) -> bool {
        self.ending.is_some() || !self.endings.is_empty()
    }

    /// Does a request, and looks at what it has changed.
    fn perform(&mut self, job: &Job) -> Result<VolumeAnswer, Errno> {
        match job.request {
            VolumeRequest::Mount(access) => return self.mount(access),
            VolumeRequest::Unmount => {
                self.unmount_at_the_end();
                return Ok(VolumeAnswer::Done);
            }
            _ if job.request.is_of_a_lost_file() => return Err(Errno::EIO),
            _ => {}
        }
        self.find_runs(&job.request);
        let answer = self.act(job);
        if let Some(volume) = &mut self.volume {
            volume.let_unused_go();
        }
        self.near = NearRuns::default();
        // Also after a failure, before which something may have changed.
        self.look_at_changes(&job.request);
        self.look_at_names(&job.request);
        self.look_at_access();
        self.note_changes();
        answer
    }

    /// Notes that the volume has changes that are to last soon.
    fn note_changes(&self) {
        let has_changed = self.volume.as_ref().is_some_and(Backing::has_changed);
        if has_changed && self.shared.commit_at.load(Ordering::Relaxed) == 0 {
            self.shared.commit_at.store(Machine::now() + time::ticks_at_ns(COMMIT_NS), Ordering::Relaxed);
        }
    }

    /// Has changes of the volume last that are old.
    fn commit_old(&mut self) {
        self.shared.commit_at.store(0, Ordering::Relaxed);
        let committed = self.volume.as_mut().map_or(Ok(()), Backing::commit);
        if committed.is_err() {
            self.shared.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does a request with the volume.
    fn act(&mut self, job: &Job) -> Result<VolumeAnswer, Errno> {
        let shared = self.shared;
        let subject = identity::subject(&job.whom);
        if let Some(subject) = subject {
            self.permit(subject, &job.request)?;
        }
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        let node = |attributes, above| VolumeNode::of(shared, attributes, &job.account, above);
        let with_target = |volume: &mut Backing<'a, W>, found: Attributes, above| {
            let is_link = found.is(kind::SYMBOLIC_LINK);
            let target = is_link.then(|| volume.read_link(found.inode)).transpose()?;
            node(found, above).map(|found| VolumeAnswer::File(found, target))
        };
        match &job.request {
            VolumeRequest::Mount(_) | VolumeRequest::Unmount => Ok(VolumeAnswer::Done),
            VolumeRequest::Root => {
                let root = volume.root();
                let root = node(volume.attributes(root)?, None)?;
                Ok(VolumeAnswer::File(root, None))
            }
            VolumeRequest::LookUp(directory, name) => {
                let answer = match volume.look_up(directory.number(), name)? {
                    None => Ok(VolumeAnswer::Missing),
                    Some(found) => {
                        let above = (!matches!(&name[..], b"." | b"..")).then_some((directory, &name[..]));
                        let answer = with_target(volume, found, above);
                        self.place_found(&answer, above);
                        answer
                    }
                };
                let forgotten = match &answer {
                    // Others may change the names.
                    _ if shared.is_of_host() => None,
                    Ok(VolumeAnswer::Missing) => shared.names.lock().enter(directory.number(), name, None),
                    // Links are read each time.
                    Ok(VolumeAnswer::File(file, None)) => {
                        shared.names.lock().enter(directory.number(), name, Some(file.clone()))
                    }
                    _ => None,
                };
                drop(forgotten);
                answer
            }
            VolumeRequest::Open { directory, name, permissions, must_be_new } => {
                let known = shared.names.lock().find(directory.number(), name);
                let found = match known {
                    Some(None) => None,
                    _ => volume.look_up(directory.number(), name)?,
                };
                match found {
                    Some(_) if *must_be_new => Err(Errno::EEXIST),
                    Some(found) => {
                        let above = Some((directory, &name[..]));
                        let answer = with_target(volume, found, above);
                        self.place_found(&answer, above);
                        answer
                    }
                    None => {
                        let file = new_file(subject, directory, *permissions, FileKind::Regular);
                        let made = volume.create(directory.number(), name, file)?;
                        self.made.note(&made);
                        self.tell_of_name(&job.request, (directory, name), event::CREATED, false);
                        node(made, Some((directory, name))).map(VolumeAnswer::Made)
                    }
                }
            }
            VolumeRequest::MakeDirectory(directory, name, permissions) => {
                let file = new_file(subject, directory, *permissions, FileKind::Directory);
                let made = volume.make_directory(directory.number(), name, file)?;
                self.made.note(&made);
                self.tell_of_name(&job.request, (directory, name), event::CREATED, true);
                Ok(VolumeAnswer::Done)
            }
            VolumeRequest::MakeSpecial(directory, name, special, permissions) => {
                let kind = if *special == Special::Fifo { FileKind::Fifo } else { FileKind::Socket };
                let file = new_file(subject, directory, *permissions, kind);
                let made = volume.make_special(directory.number(), name, *special, file)?;
                self.made.note(&made);
                self.tell_of_name(&job.request, (directory, name), event::CREATED, false);
                Ok(VolumeAnswer::Done)
            }
            VolumeRequest::MakeLink(directory, name, target) => {
                let owner = new_file(subject, directory, 0o777, FileKind::SymbolicLink).owner;
                let made = volume.make_symbolic_link(directory.number(), name, target, owner)?;
                self.made.note(&made);
                self.tell_of_name(&job.request, (directory, name), event::CREATED, false);
                Ok(VolumeAnswer::Done)
            }
            VolumeRequest::Link(file, directory, name) => {
                volume.link(file.number(), directory.number(), name)?;
                file.tell_itself(event::ATTRIBUTES);
                self.tell_of_name(&job.request, (directory, name), event::CREATED, false);
                Ok(VolumeAnswer::Done)
            }
            VolumeRequest::Remove { directory, name, is_directory } => {
                self.remove(directory, name, *is_directory, &job.request).map(|()| VolumeAnswer::Done)
            }
            VolumeRequest::Rename(places, replacement) => {
                self.rename(places, *replacement, &job.request).map(|()| VolumeAnswer::Done)
            }
            VolumeRequest::ReadLink(link) => volume.read_link(link.number()).map(all_bytes),
            VolumeRequest::Read { node, offset, bytes } => self.read(node, *offset, bytes.capacity()),
            VolumeRequest::ReadAhead { node, first, count } => {
                self.read_ahead(node, *first..first.saturating_add(*count))
            }
            VolumeRequest::Map { node, first, count, stores, is_new } => {
                if *is_new {
                    self.look_at_host(node);
                }
                self.bring_in(node, *first..first.saturating_add(*count), *stores)
            }
            VolumeRequest::Write { node, offset, bytes } => self.write(node, *offset, bytes),
            VolumeRequest::OpenBytes { node, access, writes, contents } => {
                volume.open(node.number(), *access, *writes)?;
                match contents {
                    Contents::Keep => Ok(VolumeAnswer::Done),
                    Contents::Discard => self.truncate(node, 0),
                }
            }
            VolumeRequest::Truncate(node, length) => {
                let done = self.truncate(node, *length)?;
                node.tell(event::MODIFIED);
                Ok(done)
            }
            VolumeRequest::ChangeRange(node, range, change) => {
                self.change_range(node, range, *change)?;
                node.tell(event::MODIFIED);
                Ok(VolumeAnswer::Done)
            }
            VolumeRequest::Find(node, from, sought) => self.find(node, *from, *sought).map(VolumeAnswer::Place),
            VolumeRequest::Change(node, change) => {
                // As the file is now: another process may have changed it after the request.
                let what = change.event();
                let change = change.made_for(subject, node.ownership(), node.kind()).map_err(tree::errno_of)?;
                if change.modified.is_some() {
                    node.0.pages.lock().modified = None;
                }
                volume.set_attributes(node.number(), change)?;
                if let Some(what) = what {
                    node.tell(what);
                }
                Ok(VolumeAnswer::Done)
            }
            VolumeRequest::List(directory, place, exact, most) => {
                let listed = match exact {
                    // Its places are exact by themselves.
                    Some(_) if shared.is_of_host() => volume.list(directory.number(), *place, *most),
                    Some(exact) => volume.list_from(directory.number(), *exact, *most),
                    None => volume.list(directory.number(), *place, *most),
                };
                listed.map(VolumeAnswer::Entries)
            }
            VolumeRequest::SetAttribute { node, name, value, mode } => {
                volume.set_extended_attribute(node.number(), name, value, *mode)?;
                node.tell(event::ATTRIBUTES);
                Ok(VolumeAnswer::Done)
            }
            VolumeRequest::GetAttribute(node, name) => volume.extended_attribute(node.number(), name).map(all_bytes),
            VolumeRequest::ListAttributes(node) => volume.extended_attributes(node.number()).map(all_bytes),
            VolumeRequest::RemoveAttribute(node, name) => {
                volume.remove_extended_attribute(node.number(), name)?;
                node.tell(event::ATTRIBUTES);
                Ok(VolumeAnswer::Done)
            }
            VolumeRequest::Synchronise(node) => self.write_and_synchronise(node.as_ref()),
            VolumeRequest::SynchroniseData(node) => self.write_and_synchronise(Some(node)),
            VolumeRequest::Remount(access) => self.remount(*access),
        }
    }

    /// Fails with `EACCES` or `EPERM` if a user must not change names as a request does. Names that are there, or not
    /// there, where they must not be fail otherwise.
    fn permit(&mut self, subject: &Subject, request: &VolumeRequest) -> Result<(), Errno> {
        let subject = Some(subject);
        let of = |found: &Attributes| ownership_of(found);
        let permitted = match request {
            VolumeRequest::Open { directory, name, .. }
            | VolumeRequest::MakeDirectory(directory, name, _)
            | VolumeRequest::MakeSpecial(directory, name, ..)
            | VolumeRequest::MakeLink(directory, name, _)
            | VolumeRequest::Link(_, directory, name) => match self.found_at(directory, name)? {
                Some(_) => Ok(()),
                None => rights::permit_creation(subject, directory.ownership()),
            },
            VolumeRequest::Remove { directory, name, .. } => match self.found_at(directory, name)? {
                Some(found) => rights::permit_removal(subject, directory.ownership(), of(&found)),
                None => Ok(()),
            },
            VolumeRequest::Rename([from, to], replacement) => {
                let (Some(moved), replaced) = (self.found_at(&from.0, &from.1)?, self.found_at(&to.0, &to.1)?) else {
                    return Ok(());
                };
                if replaced.is_some_and(|replaced| replaced.inode == moved.inode || *replacement == Replacement::Refuse)
                {
                    return Ok(());
                }
                let moves = |file: &Attributes| match from.0 != to.0 && file.is(kind::DIRECTORY) {
                    true => rights::permit(subject, of(file), WRITE),
                    false => Ok(()),
                };
                rights::permit_removal(subject, from.0.ownership(), of(&moved))
                    .and_then(|()| match &replaced {
                        Some(replaced) => rights::permit_removal(subject, to.0.ownership(), of(replaced)),
                        None => rights::permit_creation(subject, to.0.ownership()),
                    })
                    .and_then(|()| moves(&moved))
                    .and_then(|()| match &replaced {
                        Some(replaced) if *replacement == Replacement::Exchange => moves(replaced),
                        _ => Ok(()),
                    })
            }
            _ => Ok(()),
        };
        permitted.map_err(tree::errno_of)
    }

    /// Removes a name.
    fn remove(
        &mut self,
        directory: &VolumeNode,
        name: &[u8],
        is_directory: bool,
        request: &VolumeRequest,
    ) -> Result<(), Errno> {
        let found = self.found_at(directory, name)?;
        self.admit_nameless(found, request)?;
        let used = found.and_then(|found| self.shared.used(found.inode));
        // A file of another kind is refused by the volume.
        let moved = used.as_ref().filter(|used| (used.kind == kind::DIRECTORY) == is_directory);
        let moving = self.keep_mounts_away(moved)?;
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        let nameless = if is_directory {
            volume.remove_directory(directory.number(), name)?
        } else {
            let gone = volume.unlink(directory.number(), name)?;
            if let Some(used) = &used {
                used.leave_place(directory, name);
                if !gone.is_nameless
                    && let Ok(attributes) = volume.attributes(gone.inode)
                {
                    used.renew(attributes);
                }
            }
            gone.is_nameless.then_some(gone.inode)
        };
        // A mount that comes from now on finds that it has no name.
        if let Some(used) = used.as_ref().filter(|_| nameless.is_some()) {
            used.attributes.lock().links = 0;
        }
        if let Some(used) = used.as_ref().filter(|_| !is_directory) {
            used.tell_itself(event::ATTRIBUTES);
        }
        // Uses of its own are none of others.
        drop((used, moving));
        self.lost_its_name(nameless, request);
        self.tell_of_name(request, (directory, name), event::DELETED, is_directory);
        Ok(())
    }

    /// Returns the attributes of the file with a name, if there is one.
    fn found_at(&mut self, directory: &VolumeNode, name: &[u8]) -> Result<Option<Attributes>, Errno> {
        let known = self.shared.names.lock().find(directory.number(), name);
        match known {
            Some(None) => return Ok(None),
            Some(Some(file)) if !file.0.is_lost() => return Ok(Some(file.attributes())),
            _ => {}
        }
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        volume.find(directory.number(), name)
    }

    /// Renames a file. `EBUSY` for a directory that is covered, after the other errors, as on Linux.
    fn rename(
        &mut self,
        places: &[(VolumeNode, Vec<u8>); 2],
        replacement: Replacement,
        request: &VolumeRequest,
    ) -> Result<(), Errno> {
        let [from, to] = places;
        let found = [self.found_at(&from.0, &from.1)?, self.found_at(&to.0, &to.1)?];
        if replacement == Replacement::Replace {
            self.admit_nameless(found[1], request)?;
        }
        let used = found.map(|found| found.and_then(|found| self.shared.used(found.inode)));
        let moving = [self.keep_mounts_away(used[0].as_ref()), self.keep_mounts_away(used[1].as_ref())];
        if moving.iter().any(Result::is_err) {
            let [moved, replaced] = found;
            let moved = moved.ok_or(Errno::ENOENT)?;
            return match replaced.map(|found| (found, found.is(kind::DIRECTORY))) {
                Some(_) if replacement == Replacement::Refuse => Err(Errno::EEXIST),
                Some((replaced, _)) if replaced.inode == moved.inode => Ok(()),
                Some((_, true)) if !moved.is(kind::DIRECTORY) && replacement == Replacement::Replace => {
                    Err(Errno::EISDIR)
                }
                Some((_, false)) if moved.is(kind::DIRECTORY) && replacement == Replacement::Replace => {
                    Err(Errno::ENOTDIR)
                }
                _ => Err(Errno::EBUSY),
            };
        }
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        let renamed = volume.rename((from.0.number(), &from.1), (to.0.number(), &to.1), replacement);
        let nameless = renamed?;
        self.lost_its_name(nameless, request);
        let watched = self.shared.are_watched().then(|| used.clone());
        self.enter_renamed(places, used, replacement);
        if let Some(used) = watched {
            self.tell_renamed(request, places, found, &used, replacement);
        }
        Ok(())
    }

    /// Keeps mounts away from a file, which may be removed or get another name, as long as the result lives. `EBUSY` if
    /// it is covered.
    fn keep_mounts_away(&mut self, used: Option<&Arc<Inode>>) -> Result<Option<Moving>, Errno> {
        // A file that nobody uses has no mount, and gets a user on this stack alone.
        let Some(inode) = used else { return Ok(None) };
        match inode.mounting.compare_exchange(UNCOVERED, MOVING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Some(Moving(inode.clone()))),
            // Both names of a rename may be those of one file.
            Err(MOVING) => Ok(None),
            Err(_) => Err(Errno::EBUSY),
        }
    }

    /// Has pages of a file in memory, as far as there is room and no failure. Those of a host's file are kept for
    /// mappings alone.
    fn read_ahead(&mut self, node: &VolumeNode, pages: Range<u64>) -> Result<VolumeAnswer, Errno> {
        if self.shared.is_of_host() {
            return Ok(VolumeAnswer::Done);
        }
        let end = node.size().div_ceil(PAGE_SIZE as u64);
        for page in pages.start..pages.end.min(end) {
            if node.0.pages.lock().has(page) {
                continue;
            }
            if self.fill(node, page)?.is_none() {
                break;
            }
            self.pause();
        }
        Ok(VolumeAnswer::Done)
    }

    /// Brings a file of the host to its present state there, before a mapping of it: pages of an earlier one are stale,
    /// unless others have them mapped.
    fn look_at_host(&mut self, node: &VolumeNode) {
        if !self.shared.is_of_host() {
            return;
        }
        let Some(Ok(present)) = self.volume.as_mut().map(|volume| volume.attributes(node.number())) else { return };
        node.0.renew(present);
        let times = [present.times[1], present.times[2]];
        let seconds = now().seconds;
        // One more change could have the same time.
        let is_recent = times.iter().any(|time| time.seconds.abs_diff(seconds) <= LONGEST_TICK_SECONDS);
        let state = (!is_recent).then_some((present.size, times));
        {
            let mut pages = node.0.pages.lock();
            if pages.is_empty() {
                pages.seen = state;
                return;
            }
            if state.is_some() && pages.seen == state || !pages.is_for_one() {
                return;
            }
        }
        // Stores of mappings that were come first.
        self.write_file(&node.0);
        let mut next = Some(0);
        while let Some(from) = next {
            next = node.0.pages.lock().spoil(from);
            self.pause();
        }
        node.0.pages.lock().seen = state;
    }

    /// Has pages of a file in memory that are mapped, and keeps them there.
    fn bring_in(&mut self, node: &VolumeNode, pages: Range<u64>, stores: bool) -> Result<VolumeAnswer, Errno> {
        let end = node.size().div_ceil(PAGE_SIZE as u64);
        for page in pages.start..pages.end.min(end) {
            {
                // Others may have stored to a page that they have mapped, however old it is.
                let pages = node.0.pages.lock();
                if pages.has_fresh(page) || pages.has(page) && !pages.is_for_one() {
                    continue;
                }
            }
            if self.fill(node, page)?.is_none() {
                return Err(Errno::ENOMEM);
            }
            self.pause();
        }
        // Also those behind the end, which were cut off and may be the file's again.
        let mut next = Some(pages.start).filter(|_| stores);
        while let Some(from) = next {
            next = node.0.pages.lock().store(from..pages.end);
            self.pause();
        }
        Ok(VolumeAnswer::Done)
    }

    /// Writes to a place, or to the end.
    fn write(&mut self, node: &VolumeNode, offset: Option<u64>, bytes: &[u8]) -> Result<VolumeAnswer, Errno> {
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        // The host is not asked: it would tell of the file at a path, which can be another one.
        let size = if self.shared.is_of_host() { node.size() } else { volume.attributes(node.number())?.size };
        let (count, end) = match offset {
            Some(offset) => {
                let count = volume.write(node.number(), offset, bytes)?;
                (count, offset + count as u64)
            }
            None => volume.append(node.number(), bytes)?,
        };
        let has_pages = !node.0.pages.lock().is_empty();
        // Others may have written to the end at this moment.
        if offset.is_some() || !has_pages || volume.attributes(node.number()).is_ok_and(|present| present.size == end) {
            self.enter_written(node, end - count as u64, &bytes[..count], size);
        }
        Ok(VolumeAnswer::Written { count, end })
    }

    /// Gives a file another length.
    fn truncate(&mut self, node: &VolumeNode, length: u64) -> Result<VolumeAnswer, Errno> {
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        volume.truncate(node.number(), length)?;
        self.cut(node, length);
        Ok(VolumeAnswer::Done)
    }

    /// Changes a part of a file, in steps: of the volume and of the pages in memory.
    fn change_range(&mut self, node: &VolumeNode, range: &Range<u64>, change: RangeChange) -> Result<(), Errno> {
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        // As far as that is known, a change is not begun that cannot be done.
        if change != RangeChange::Punch {
            volume.require_range(node.number(), range.clone())?;
        }
        let mut from = range.start;
        while from < range.end {
            let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
            let reached = volume.change_range(node.number(), from..range.end, change)?;
            if !matches!(change, RangeChange::Reserve(_)) {
                self.clear(node, from..reached);
            }
            if let RangeChange::Reserve(Growth::Grow) | RangeChange::Zero(Growth::Grow) = change
                && reached > node.size()
            {
                self.cut(node, reached);
            }
            from = reached;
            self.pause();
        }
        Ok(())
    }

    /// Finds the next byte of a file from a place on that is in a hole, or one that is in none. `ENXIO` behind the end,
    /// and behind the last byte that is in none.
    fn find(&mut self, node: &VolumeNode, from: u64, sought: Sought) -> Result<u64, Errno> {
        let mut at = from;
        loop {
            let size = node.size();
            if at >= size {
                return if from < size && sought == Sought::Hole { Ok(size) } else { Err(Errno::ENXIO) };
            }
            let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
            let (mut is_hole, mut end) = volume.stretch(node.number(), at..size)?;
            if is_hole {
                // Programs may have stored to its pages.
                let unit = PAGE_SIZE as u64;
                let (is_changed, behind) = node.0.pages.lock().unwritten(at / unit..end.div_ceil(unit));
                (is_hole, end) = (!is_changed, end.min(behind * unit));
            }
            if is_hole == (sought == Sought::Hole) {
                return Ok(at);
            }
            at = end;
            self.pause();
        }
    }

    /// Brings the pages in memory to the state after bytes of the file have become zeros.
    fn clear(&mut self, node: &VolumeNode, range: Range<u64>) {
        let size = PAGE_SIZE as u64;
        let (first, last) = (range.start.next_multiple_of(size), range.end / size * size);
        // Parts of pages; both are one if the range is within a page.
        for part in [range.start..first.min(range.end), last.max(first.min(range.end))..range.end] {
            if !part.is_empty() {
                node.0.pages.lock().clear_part(&part);
            }
        }
        self.forget_pages(node, first / size..last / size);
    }

    /// Forgets pages of a file, of which it has no bytes any more.
    fn forget_pages(&mut self, node: &VolumeNode, pages: Range<u64>) {
        let mut from = 0;
        loop {
            let next = node.0.pages.lock().forget(&pages, from);
            let Some(next) = next else { break };
            from = next;
            self.pause();
        }
    }

    /// Has all changes last, of a file or of all.
    fn write_and_synchronise(&mut self, node: Option<&VolumeNode>) -> Result<VolumeAnswer, Errno> {
        match node {
            Some(node) => self.write_file(&node.0),
            None => self.write_all(),
        }
        let of = node.map(VolumeNode::number);
        self.synchronise_by(|volume| volume.synchronise(of)).map(|()| VolumeAnswer::Done)
    }

    /// Changes the access; before, everything that was changed is written.
    fn remount(&mut self, access: Access) -> Result<VolumeAnswer, Errno> {
        self.write_all();
        self.look_at_access();
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        if self.access == Access::Read {
            // Nothing of the volume was written meanwhile.
            self.shared.told_write_errors.store(self.shared.source.write_errors(), Ordering::Relaxed);
        }
        let result = volume.remount(access);
        self.shared.writers.lock().0 = volume.access();
        if result.is_ok() {
            // It is less because that was asked for.
            self.access = access;
        }
        result.map(|()| VolumeAnswer::Done)
    }

    fn mount(&mut self, access: Access) -> Result<VolumeAnswer, Errno> {
        self.buffer.try_reserve_exact(WRITTEN_AT_A_TIME * PAGE_SIZE).map_err(|_| Errno::ENOMEM)?;
        self.buffer.resize(WRITTEN_AT_A_TIME * PAGE_SIZE, 0);
        let disk = match self.shared.source {
            Source::Disk(disk) => disk,
            Source::Folder(folder) => {
                let files = HostFiles::mount(self.shared, folder, self.waits, access)?;
                *self.shared.usage.lock() = files.usage();
                (self.volume, self.access) = (Some(Backing::Host(files)), access);
                return Ok(VolumeAnswer::Mounted(self.shared.clone()));
            }
        };
        let device = Blocks::new(self.shared, disk, self.waits);
        match Volume::mount(device, now, access).map(Backing::Ext4) {
            Ok(volume) => {
                *self.shared.usage.lock() = volume.usage().unwrap_or_default();
                (self.volume, self.access) = (Some(volume), access);
                Ok(VolumeAnswer::Mounted(self.shared.clone()))
            }
            Err(refusal) => {
                println!("ext4: {} is not mounted: {refusal}", self.shared.device_name());
                Err(match refusal {
                    ext4::Refusal::OutOfMemory => Errno::ENOMEM,
                    ext4::Refusal::Device => Errno::EIO,
                    _ => Errno::EINVAL,
                })
            }
        }
    }

    /// Brings the attributes of files in use to the state after a request.
    fn look_at_changes(&mut self, request: &VolumeRequest) {
        let Some(volume) = self.volume.as_mut() else { return };
        let mut look = |node: &VolumeNode| {
            if let Ok(attributes) = volume.attributes(node.number()) {
                node.0.renew(attributes);
            }
        };
        match request {
            VolumeRequest::Open { directory, .. }
            | VolumeRequest::MakeDirectory(directory, ..)
            | VolumeRequest::MakeSpecial(directory, ..)
            | VolumeRequest::MakeLink(directory, ..)
            | VolumeRequest::Remove { directory, .. } => look(directory),
            VolumeRequest::Link(file, directory, _) => {
                look(file);
                look(directory);
            }
            VolumeRequest::Rename(places, _) => places.iter().for_each(|(directory, _)| look(directory)),
            VolumeRequest::Write { node, .. }
            | VolumeRequest::Truncate(node, _)
            | VolumeRequest::ChangeRange(node, ..)
            | VolumeRequest::OpenBytes { node, contents: Contents::Discard, .. }
            | VolumeRequest::SetAttribute { node, .. }
            | VolumeRequest::RemoveAttribute(node, _)
            | VolumeRequest::Change(node, _) => look(node),
            _ => return,
        }
        if let Ok(usage) = volume.usage() {
            *self.shared.usage.lock() = usage;
        }
    }

    /// Forgets the names that a request may have changed.
    fn look_at_names(&self, request: &VolumeRequest) {
        let forget = |directory: &VolumeNode, name: &[u8]| {
            let forgotten = self.shared.names.lock().forget(directory.number(), name);
            drop(forgotten);
        };
        match request {
            VolumeRequest::Open { directory, name, .. }
            | VolumeRequest::MakeDirectory(directory, name, _)
            | VolumeRequest::MakeSpecial(directory, name, ..)
            | VolumeRequest::MakeLink(directory, name, _)
            | VolumeRequest::Link(_, directory, name)
            | VolumeRequest::Remove { directory, name, .. } => forget(directory, name),
            VolumeRequest::Rename(places, _) => places.iter().for_each(|(directory, name)| forget(directory, name)),
            _ => {}
        }
    }

    /// Forgets the names of a directory, or all.
    fn forget_names(&self, directory: Option<u32>) {
        let mut from = 0;
        loop {
            let found = self.shared.names.lock().forget_from(from, directory);
            let Some((next, file)) = found else { break };
            // Perhaps its last use.
            drop(file);
            from = next;
            self.pause();
        }
    }

    /// Makes room for one more file without a name, if this one may lose its last name. `ENOSPC` if it is in use and
    /// too many others that are in use have none. A host has no list of them.
    fn admit_nameless(&mut self, found: Option<Attributes>, request: &VolumeRequest) -> Result<(), Errno> {
        if self.shared.is_of_host() {
            return Ok(());
        }
        let loses_its_last = |found: &Attributes| found.links <= 1 || found.is(kind::DIRECTORY);
        let Some(found) = found.filter(loses_its_last) else { return Ok(()) };
        while self.nameless >= MOST_NAMELESS {
            if self.shared.has_released() {
                self.shared.end_released();
            } else if self.has_endings() || !self.shared.nameless.lock().is_empty() {
                self.end_some();
            } else {
                // The name that is known and changes that wait are uses that end with the file's name.
                self.look_at_names(request);
                let used = self.shared.used(found.inode);
                let own = 1 + usize::from(self.shared.changed.lock().files.get(found.inode.into()).is_some());
                let own = own + usize::from(used.as_ref().is_some_and(|used| used.is_watched.load(Ordering::Relaxed)));
                let is_in_use = used.is_some_and(|used| Arc::strong_count(&used) > own);
                return if is_in_use { Err(Errno::ENOSPC) } else { Ok(()) };
            }
            self.pause();
        }
        Ok(())
    }

    /// Notes that a file has lost its last name by a request.
    fn lost_its_name(&mut self, nameless: Option<u32>, request: &VolumeRequest) {
        let Some(inode) = nameless else { return };
        self.nameless += 1;
        // The name that is known is a use of the file.
        self.look_at_names(request);
        // Another directory may get its number.
        self.forget_names(Some(inode));
        if let Some(used) = self.shared.used(inode) {
            // There is room for it when its last use goes.
            let has_room = self.shared.nameless.lock().try_reserve(1 + self.shared.inodes.lock().len()).is_ok();
            used.attributes.lock().links = 0;
            file_events::let_go(VolumeNode(used.clone()).identity());
            // Changes that wait to be written are nobody's, and would keep its blocks.
            let unwritten = used.is_ending().then(|| self.shared.changed.lock().files.remove(inode.into()));
            drop(unwritten);
            if !has_room {
                println!("ext4: no memory for the end of file {inode}, which ends at the next mount");
            }
            return;
        }
        // Without memory for it, it ends when the volume is mounted the next time.
        if self.endings.try_reserve(1).is_ok() {
            self.endings.push(inode);
        }
    }

    /// Does a step of the end of a file without a name.
    fn end_some(&mut self) {
        let next = self.ending.take().or_else(|| self.endings.pop());
        let Some(inode) = next.or_else(|| self.shared.nameless.lock().pop()) else { return };
        let Some(volume) = self.volume.as_mut() else { return };
        match volume.end_file(inode) {
            Ok(false) => self.ending = Some(inode),
            Ok(true) => self.nameless = self.nameless.saturating_sub(1),
            // It stays in the list of the volume.
            Err(_) => {}
        }
        if let Ok(usage) = volume.usage() {
            *self.shared.usage.lock() = usage;
        }
    }

    /// Does a step of the work that is no request's turn: has changes last, writes old ones, or ends files.
    fn work_unasked(&mut self) {
        if !self.waiting.is_empty() {
            self.synchronise_some();
        } else if self.shared.has_to_commit() {
            self.commit_old();
        } else if self.shared.has_to_write() {
            self.write_some();
        } else if self.shared.has_released() {
            self.shared.end_released();
        } else {
            self.end_some();
        }
        self.look_at_access();
        self.note_changes();
        self.pause();
    }

    /// Lets others go on.
    fn pause(&self) {
        device::pause(self.waits);
    }

    /// Has a page of a file in memory, which was not, or was stale, and returns it; `None` if there is no room for it:
    /// its bytes are at the start of the buffer then.
    fn fill(&mut self, node: &VolumeNode, page: u64) -> Result<Option<SharedFrame>, Errno> {
        if self.has_room()
            && let Some(frame) = self.take_near(node, page)
            && let Ok(entered) = node.0.pages.lock().enter(page, frame)
        {
            return Ok(Some(entered));
        }
        if !self.read_near(node, page) {
            let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
            let bytes = &mut self.buffer[..PAGE_SIZE];
            let read = volume.read(node.number(), page * PAGE_SIZE as u64, bytes)?;
            bytes[read..].fill(0);
        }
        let mut pages = node.0.pages.lock();
        if pages.has(page) {
            if let Some(bytes) = self.buffer.first_chunk() {
                pages.renew(page, bytes);
            }
            return Ok(pages.page(page));
        }
        drop(pages);
        if !self.has_room() {
            return Ok(None);
        }
        Ok(self.shared.enter(node, page, &self.buffer[..PAGE_SIZE]))
    }

    /// Whether there is room for one more page, perhaps in the place of others.
    fn has_room(&self) -> bool {
        while !pages::is_one_free() {
            if !give_back() {
                return false;
            }
            self.pause();
        }
        true
    }

    /// Reads from a place, up to the end of the file: the pages are in memory then, as far as there is room.
    fn read(&mut self, node: &VolumeNode, offset: u64, length: usize) -> Result<VolumeAnswer, Errno> {
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        // Stores of programs to a file of the host are in memory alone until they are written.
        let is_of_host = self.shared.is_of_host();
        if is_of_host && !node.0.pages.lock().has_changes() {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
            bytes.resize(length, 0);
            let count = volume.read(node.number(), offset, &mut bytes)?;
            return Ok(VolumeAnswer::Bytes(bytes, count));
        }
        let size = volume.attributes(node.number())?.size;
        let count = size.saturating_sub(offset).min(length as u64) as usize;
        let mut read = Vec::new();
        read.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        read.resize(count, 0);
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE_SIZE as u64, at as usize % PAGE_SIZE);
            let piece = done..count.min(done + PAGE_SIZE - within);
            done = piece.end;
            let found = match is_of_host {
                true => node.0.pages.lock().stored_page(page),
                false => node.0.pages.lock().page(page),
            };
            match found {
                Some(frame) => drop(frame.read(within, &mut read[piece])),
                None if is_of_host => {
                    let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
                    // Where it has become shorter there are zeros, as in a hole.
                    volume.read(node.number(), at, &mut read[piece])?;
                }
                None => match self.fill(node, page)? {
                    Some(frame) => drop(frame.read(within, &mut read[piece])),
                    None => {
                        let length = piece.len();
                        read[piece].copy_from_slice(&self.buffer[within..within + length]);
                    }
                },
            }
        }
        Ok(VolumeAnswer::Bytes(read, count))
    }

    /// Brings the pages in memory to the state after a write to the volume, which had this size before: they have their
    /// blocks now.
    fn enter_written(&mut self, node: &VolumeNode, offset: u64, bytes: &[u8], size: u64) {
        if offset + bytes.len() as u64 > size {
            node.0.pages.lock().clear_behind(size);
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE_SIZE as u64, at as usize % PAGE_SIZE);
            let piece = &bytes[done..bytes.len().min(done + PAGE_SIZE - within)];
            done += piece.len();
            if !node.0.pages.lock().has(page) {
                if self.shared.is_of_host() {
                    continue;
                }
                // Without memory or an answer of the disk, the page is read when it is wanted.
                let _ = match piece.len() {
                    PAGE_SIZE if self.has_room() => Ok(self.shared.enter(node, page, piece)),
                    PAGE_SIZE => Ok(None),
                    // The file had no bytes there.
                    _ if page * PAGE_SIZE as u64 >= size && self.has_room() => Ok(self.shared.enter(node, page, &[])),
                    _ => self.fill(node, page),
                };
            }
            let mut pages = node.0.pages.lock();
            if pages.has(page) {
                pages.write_known(page, within, piece);
                pages.place(page);
            }
        }
    }

    /// Brings the pages in memory to the state after a change of the file's length.
    fn cut(&mut self, node: &VolumeNode, length: u64) {
        let lost = {
            // Together, or a writer would write behind the new end.
            let mut pages = node.0.pages.lock();
            let mut attributes = node.0.attributes.lock();
            pages.clear_behind(attributes.size.min(length));
            attributes.size = length;
            pages.set_length(length)
        };
        if let Some(object) = lost {
            let mut lost = LostPages::of(object);
            while !lost.step() {
                self.pause();
            }
        }
        self.forget_pages(node, length.div_ceil(PAGE_SIZE as u64)..u64::MAX);
    }

    /// Writes a piece of a file's changes from a page on, and returns the page to go on with; `None` if there are none
    /// behind it.
    fn write_piece(&mut self, inode: &Arc<Inode>, from: u64) -> Option<u64> {
        let (piece, mut size, payer) = {
            let mut pages = inode.pages.lock();
            let piece = pages.take_changed(from, &mut self.buffer)?;
            // Changes are paid for by their maker, comparisons by the one who wants them.
            let payer = if piece.is_changed || self.payer == 0 { pages.payer } else { self.payer };
            (piece, inode.attributes.lock().size, payer)
        };
        self.shared.account_for(payer);
        if piece.note.is_some()
            && let Some(Ok(present)) = self.volume.as_mut().map(|volume| volume.attributes(inode.number))
        {
            // The host may have made it shorter.
            inode.renew(present);
            size = present.size;
        }
        let start = piece.first * PAGE_SIZE as u64;
        let length = (piece.count * PAGE_SIZE).min(size.saturating_sub(start) as usize);
        // The bytes of a file that ends are nobody's.
        if length > 0
            && !inode.is_ending()
            && let Err(error) = self.write_to(inode, &piece, length)
        {
            inode.failures.fetch_add(1, Ordering::Relaxed);
            self.shared.failures_of_files.fetch_add(1, Ordering::Relaxed);
            self.look_at_access();
            if error == Errno::ENOSPC {
                // There may be room another time.
                inode.pages.lock().store(piece.first..piece.first + 1);
            }
        }
        self.shared.account_for(self.payer);
        Some(piece.first + piece.count as u64)
    }

    /// Writes a piece of a file's changes, which is in the buffer, if it is not on the volume.
    fn write_to(&mut self, inode: &Arc<Inode>, piece: &ChangedPiece, length: usize) -> Result<(), Errno> {
        let volume = self.volume.as_mut().filter(|_| !inode.is_lost()).ok_or(Errno::EIO)?;
        let start = piece.first * PAGE_SIZE as u64;
        let (bytes, present) = self.buffer.split_at_mut(if piece.is_changed { length } else { PAGE_SIZE });
        let bytes = &bytes[..length];
        if !piece.is_changed {
            let present = &mut present[..length];
            let read = volume.read(inode.number, start, present)?;
            if present[..read] == bytes[..read] && bytes[read..].iter().all(|byte| *byte == 0) {
                if let Some(note) = piece.note {
                    inode.pages.lock().note(piece.first, note);
                }
                return Ok(());
            }
            match piece.note {
                // The host notes the time itself.
                Some(note) => {
                    volume.write_whole(inode.number, start, bytes)?;
                    inode.pages.lock().note(piece.first, note);
                    return Ok(());
                }
                None => inode.pages.lock().modified = Some(now()),
            }
        }
        match piece.is_placed {
            true => volume.overwrite(inode.number, start, bytes),
            false => {
                match volume.write_whole(inode.number, start, bytes) {
                    // A page that was read has no note of its block, which may be there.
                    Err(Errno::ENOSPC) if volume.has_blocks(inode.number, start, length as u64) == Ok(true) => {
                        volume.overwrite(inode.number, start, bytes)
                    }
                    written => written,
                }?;
                inode.pages.lock().place(piece.first);
                Ok(())
            }
        }
    }

    /// Tells the volume when a file was changed last, if all its changes are written, and lets it go then.
    fn end_writing(&mut self, inode: &Arc<Inode>) {
        let modified = {
            let mut pages = inode.pages.lock();
            pages.modified.take()
        };
        if let (Some(stamp), Some(volume)) = (modified, self.volume.as_mut())
            && !inode.is_ending()
            && !inode.is_lost()
        {
            let change = Change { modified: Some(stamp), ..Change::default() };
            if let Ok(attributes) = volume.set_attributes(inode.number, change) {
                inode.renew(attributes);
            }
        }
        let pages = inode.pages.lock();
        // Another file may have the number of a lost one, which nothing saves.
        let is_done = !pages.has_changes() || inode.is_lost();
        let gone = is_done.then(|| self.shared.changed.lock().files.remove(inode.number.into()));
        drop(pages);
        // Perhaps its last use.
        drop(gone);
    }

    /// Writes the changes of a file up to now.
    fn write_file(&mut self, inode: &Arc<Inode>) {
        let mut from = 0;
        while let Some(next) = self.write_piece(inode, from) {
            from = next;
            self.pause();
        }
        self.end_writing(inode);
    }

    /// Writes the changes of all files up to now.
    fn write_all(&mut self) {
        let mut number = 0;
        while let Some(inode) = self.shared.changed_from(number) {
            number = u64::from(inode.number) + 1;
            self.write_file(&inode);
            self.pause();
        }
    }

    /// Writes a piece of the changes that are old.
    fn write_some(&mut self) {
        let (number, from) = self.written_up_to.unwrap_or_default();
        let Some(inode) = self.shared.changed_from(number) else {
            // All were seen: those that are left, or have come meanwhile, are young.
            self.written_up_to = None;
            self.shared.changed.lock().expires = Machine::now() + time::ticks_at_ns(pages::EXPIRES_NS);
            return;
        };
        let from = if u64::from(inode.number) == number { from } else { 0 };
        self.written_up_to = Some(match self.write_piece(&inode, from) {
            Some(next) => (inode.number.into(), next),
            None => {
                self.end_writing(&inode);
                (u64::from(inode.number) + 1, 0)
            }
        });
    }

    /// Does a step of the first request to have changes last: writes a piece of them, or answers it.
    fn synchronise_some(&mut self) {
        let Some(job) = self.waiting.pop_front() else { return };
        self.payer = job.payer;
        self.shared.account_for(job.payer);
        let (number, from) = self.synchronised_up_to;
        let is_of_data = matches!(job.request, VolumeRequest::SynchroniseData(_));
        let inode = match &job.request {
            // After its file there is no other one.
            VolumeRequest::Synchronise(Some(node)) | VolumeRequest::SynchroniseData(node) => {
                Some(node.0.clone()).filter(|_| number <= node.number().into())
            }
            _ => self.shared.changed_from(number),
        };
        let Some(inode) = inode else {
            self.synchronised_up_to = (0, 0);
            let of = match &job.request {
                VolumeRequest::Synchronise(Some(node)) | VolumeRequest::SynchroniseData(node) => Some(node.number()),
                _ => None,
            };
            let answer = self.synchronise_by(|volume| match is_of_data {
                true => volume.synchronise_data(of),
                false => volume.synchronise(of),
            });
            let answer = answer.map(|()| VolumeAnswer::Done);
            self.look_at_access();
            self.shared.account_for(0);
            job.reply(answer);
            return;
        };
        let from = if u64::from(inode.number) == number { from } else { 0 };
        self.synchronised_up_to = match self.write_piece(&inode, from) {
            Some(next) => (inode.number.into(), next),
            None => {
                // The time of the change is told with the next old changes.
                if !is_of_data {
                    self.end_writing(&inode);
                }
                (u64::from(inode.number) + 1, 0)
            }
        };
        self.shared.account_for(0);
        // There is room, from which it was taken.
        self.waiting.push_front(job);
    }

    /// Has everything that was written last, in this way. A failure is one of all open files, but that of a host's
    /// file, which is noted for itself.
    fn synchronise_by(
        &mut self,
        synchronise: impl FnOnce(&mut Backing<'a, W>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let volume = self.volume.as_mut().ok_or(Errno::EIO)?;
        let done = synchronise(volume);
        let has_changed = volume.has_changed();
        if !has_changed {
            self.shared.commit_at.store(0, Ordering::Relaxed);
        }
        match done {
            Ok(()) if has_changed => Ok(()),
            Ok(()) => {
                self.made.clear();
                Ok(())
            }
            Err(error) => {
                if !self.shared.is_of_host() {
                    self.shared.failures.fetch_add(1, Ordering::Relaxed);
                }
                self.look_at_access();
                Err(error)
            }
        }
    }

    /// Looks whether the volume has gone back to its last state that lasts, because its disk has failed.
    fn look_at_access(&mut self) {
        let Some(access) = self.volume.as_ref().map(Backing::access) else { return };
        if core::mem::replace(&mut self.access, access) == Access::Write && access == Access::Read {
            self.go_back();
        }
    }

    /// Brings names and files in use to the state to which the volume has gone back, and has nobody write to it.
    #[cold]
    fn go_back(&mut self) {
        self.shared.writers.lock().0 = Access::Read;
        println!("ext4: {} is read-only from now on: the disk has failed", self.shared.device_name());
        self.shared.failures.fetch_add(1, Ordering::Relaxed);
        self.forget_names(None);
        // Files without names have them again, or are not there.
        (self.ending, self.endings, self.nameless) = (None, Vec::new(), 0);
        self.shared.nameless.lock().clear();
        let mut from = 0;
        loop {
            let found = self.shared.inodes.lock().first_from(from);
            let Some(number) = found else { break };
            if let Some(inode) = self.shared.used(number as u32) {
                self.keep_or_lose(&inode);
            }
            from = number + 1;
            self.pause();
        }
        self.restore_places();
        self.made.clear();
        if let Some(Ok(usage)) = self.volume.as_ref().map(Backing::usage) {
            *self.shared.usage.lock() = usage;
        }
    }

    /// Looks for the places of all files in use, which the volume may have put elsewhere.
    fn restore_places(&mut self) {
        let mut from = 0;
        loop {
            let found = self.shared.inodes.lock().first_from(from);
            let Some(number) = found else { break };
            if let Some(inode) = self.shared.used(number as u32) {
                self.restore_place(&inode);
            }
            from = number + 1;
            self.pause();
        }
    }

    /// Keeps a file in use if it is the same on the volume that has gone back, or loses it.
    fn keep_or_lose(&mut self, inode: &Arc<Inode>) {
        let present = self.volume.as_mut().and_then(|volume| volume.attributes(inode.number).ok());
        let before = *inode.attributes.lock();
        let is_same = |present: &Attributes| {
            let sides = [present, &before].map(|side| (side.mode, side.owner, side.size, side.times[1], side.device));
            sides[0] == sides[1] && !self.made.may_have(inode.number)
        };
        // No path would lead any more to what is mounted on it.
        let is_covered =
            |present: &Attributes| inode.mounting.load(Ordering::Acquire) == COVERED && present.is(inode.kind);
        match present {
            // The mount has the root as long as it lasts.
            Some(present) if inode.number == ROOT || is_same(&present) || is_covered(&present) => inode.renew(present),
            _ if inode.number == ROOT => {}
            _ => {
                inode.is_lost.store(true, Ordering::Relaxed);
                // Its number leads to another file from now on.
                self.shared.inodes.lock().remove(inode.number.into());
                file_events::let_go(VolumeNode(inode.clone()).identity());
                // Its changes fail, and then nothing keeps its pages.
                self.write_file(inode);
                while inode.pages.lock().give_back(Spares::Nothing, &mut 1).is_some() {
                    self.pause();
                }
            }
        }
    }

    fn unmount_at_the_end(&mut self) {
        while !self.waiting.is_empty() {
            self.synchronise_some();
            self.pause();
        }
        self.write_all();
        self.forget_names(None);
        // Changes that could not be written do not last.
        let files = core::mem::take(&mut self.shared.changed.lock().files);
        drop(files);
        while self.has_endings() || !self.shared.nameless.lock().is_empty() || self.shared.has_released() {
            self.shared.end_released();
            self.end_some();
            self.pause();
        }
        if let Some(mut volume) = self.volume.take()
            && let Err(error) = volume.unmount()
        {
            println!("ext4: {} was not unmounted properly ({error:?})", self.shared.device_name());
        }
    }
}

impl MountedVolume {
    /// Notes a failure to have changes of a file last.
    fn note_failure_of(&self, inode: u32) {
        if let Some(used) = self.used(inode) {
            used.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.failures_of_files.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a file in use.
    fn used(&self, inode: u32) -> Option<Arc<Inode>> {
        self.inodes.lock().get(inode.into()).and_then(Weak::upgrade)
    }

    /// Returns the first file with changes from this number on.
    fn changed_from(&self, number: u64) -> Option<Arc<Inode>> {
        let changed = self.changed.lock();
        changed.files.first_from(number).and_then(|number| changed.files.get(number)).cloned()
    }

    /// Enters a page with these bytes, or without any with zeros, into those of a file, which has not got it; `None` if
    /// there is no room for it.
    fn enter(&self, node: &VolumeNode, page: u64, bytes: &[u8]) -> Option<SharedFrame> {
        if !memory::frames::available_to_programs(2) {
            return None;
        }
        let frame = Frame::allocate().ok()?;
        match bytes {
            [] => frame.zero(),
            bytes => drop(frame.write(0, bytes)),
        }
        node.0.pages.lock().enter(page, frame).ok()
    }
}

/// A file in use.
struct Inode {
    volume: Arc<MountedVolume>,
    number: u32,
    /// The kind of the file, which never changes.
    kind: u16,
    attributes: Mutex<Attributes>,
    pages: Mutex<CachedPages>,
    /// Number of failures to write its changes.
    failures: AtomicU32,
    /// It is not on the volume any more, which has gone back after a failure.
    is_lost: AtomicBool,
    /// Those that have it open for writing, or run it.
    writers: Writers,
    /// Whether somebody watches it.
    is_watched: AtomicBool,
    /// The value in which the openings of a FIFO meet, if there are some.
    meeting: Mutex<MeetingPlace>,
    /// Whether the root of a mount covers the file: [`UNCOVERED`], [`COVERED`] or [`MOVING`].
    mounting: AtomicU8,
    /// Its place, if that is known; the root has none.
    above: Mutex<Option<Above>>,
    /// The next of the released directories, for one of them.
    next_released: Mutex<Option<Arc<Inode>>>,
    /// `None` if the volume pays for it.
    _charge: Option<Charge>,
}

/// No mount covers a file, and one may.
const UNCOVERED: u8 = 0;
/// The roots of mounts cover a file, which keeps its name.
const COVERED: u8 = 1;
/// A file is being removed or renamed, and is not covered meanwhile.
const MOVING: u8 = 2;

/// A file that is being removed or renamed.
struct Moving(Arc<Inode>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.mounting.store(UNCOVERED, Ordering::Release);
    }
}

impl Inode {
    /// Brings the attributes to their state on the volume, which has not been told of the last changes of pages.
    fn renew(&self, mut attributes: Attributes) {
        let mut pages = self.pages.lock();
        let mut present = self.attributes.lock();
        if attributes.size > present.size {
            pages.set_length(attributes.size);
        }
        if pages.modified.is_some() {
            attributes.times[1..].copy_from_slice(&present.times[1..]);
        }
        *present = attributes;
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether it has neither a name nor another use than its changes.
    fn is_ending(self: &Arc<Inode>) -> bool {
        // That of the volume's coroutine, and that of the list of changed files.
        Arc::strong_count(self) <= 2 && self.attributes.lock().links == 0
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.tell_end();
        {
            let mut inodes = self.volume.inodes.lock();
            // Another use may have begun meanwhile.
            if inodes.get(self.number.into()).is_some_and(|inode| inode.strong_count() == 0) {
                inodes.remove(self.number.into());
            }
        }
        // The host holds each file that is in use.
        if (self.attributes.lock().links == 0 || self.volume.is_of_host()) && !self.is_lost() {
            let mut nameless = self.volume.nameless.lock();
            if nameless.len() < nameless.capacity() {
                nameless.push(self.number);
            }
            drop(nameless);
            let worker = self.volume.queue.lock().worker.take();
            if let Some(worker) = worker {
                worker.wake();
            }
        }
        if let Some(above) = self.above.get_mut().take() {
            self.volume.release(above.directory);
        }
    }
}

/// A use of a file of a volume.
#[derive(Clone)]
pub(crate) struct VolumeNode(Arc<Inode>);

impl PartialEq for VolumeNode {
    fn eq(&self, other: &VolumeNode) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl VolumeNode {
    /// Makes a use of the file with these attributes, which was found by this name of a directory, for a process with
    /// this account. The volume pays for some uses, the process for more. `ENOMEM`.
    fn of(
        volume: &Arc<MountedVolume>,
        attributes: Attributes,
        account: &Arc<Account>,
        found_at: Option<(&VolumeNode, &[u8])>,
    ) -> Result<VolumeNode, Errno> {
        if let Some(used) = volume.used(attributes.inode) {
            used.renew(attributes);
            // A directory has its place, or gets it with more care.
            if let Some((directory, name)) = found_at.filter(|_| used.kind != kind::DIRECTORY) {
                used.enter_place(directory, name);
            }
            return Ok(VolumeNode(used));
        }
        account.admit()?;
        let above = found_at.map(|(directory, name)| Above::new(directory, name)).transpose()?;
        let in_use = volume.inodes.lock().len();
        let is_free = in_use < names::MOST;
        if volume.is_of_host() {
            // So that there is room for it when its last use goes.
            volume.nameless.lock().try_reserve(1 + in_use).map_err(|_| Errno::ENOMEM)?;
        }
        let charge = if is_free { None } else { Some(account.charge(Resource::Memory, MEMORY_OF_A_NODE)?) };
        let inode = Arc::new(Inode {
            volume: volume.clone(),
            number: attributes.inode,
            kind: attributes.mode & kind::MASK,
            attributes: Mutex::new(attributes),
            pages: Mutex::new(if volume.is_of_host() { CachedPages::of_host() } else { CachedPages::default() }),
            failures: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
            writers: Writers::new(),
            is_watched: AtomicBool::new(false),
            meeting: Mutex::new(MeetingPlace::default()),
            mounting: AtomicU8::new(UNCOVERED),
            above: Mutex::new(above),
            next_released: Mutex::new(None),
            _charge: charge,
        });
        let entered = volume.inodes.lock().insert(attributes.inode.into(), Arc::downgrade(&inode));
        entered.map_err(|_| Errno::ENOMEM)?;
        Ok(VolumeNode(inode))
    }

    fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns those that have the file open for writing, or run it.
    pub(crate) fn writers(&self) -> &Writers {
        &self.0.writers
    }

    /// Returns the answer to a look for a name in the directory, if it is known.
    pub(crate) fn known(&self, name: &[u8]) -> Option<VolumeAnswer> {
        let Some(file) = self.volume().names.lock().find(self.number(), name)? else {
            return Some(VolumeAnswer::Missing);
        };
        if !file.is_placed() {
            if file.is(kind::DIRECTORY) {
                return None;
            }
            file.0.enter_place(self, name);
        }
        Some(VolumeAnswer::File(file, None))
    }

    /// Returns its volume.
    pub(crate) fn volume(&self) -> &Arc<MountedVolume> {
        &self.0.volume
    }

    /// Lets the roots of mounts cover the file; one may do so already, in another mount of the volume. `EBUSY` if the
    /// file is being removed or renamed at this moment; `ENOENT` if it has been removed, `EINVAL` for a symbolic link.
    pub(crate) fn cover(&self) -> Result<(), Errno> {
        let change = self.0.mounting.compare_exchange(UNCOVERED, COVERED, Ordering::AcqRel, Ordering::Acquire);
        match change {
            Ok(_) if !self.is(kind::SYMBOLIC_LINK) => {}
            Ok(_) => {
                self.uncover();
                return Err(Errno::EINVAL);
            }
            Err(COVERED) => return Ok(()),
            Err(_) => return Err(Errno::EBUSY),
        }
        // A removal that has ended before has left its note.
        if self.attributes().links == 0 || self.0.is_lost() {
            self.uncover();
            return Err(Errno::ENOENT);
        }
        Ok(())
    }

    /// Ends what [`cover`](Self::cover) began, when no mount covers the file any more.
    pub(crate) fn uncover(&self) {
        self.0.mounting.store(UNCOVERED, Ordering::Release);
    }

    /// Whether the root of a mount covers the file.
    pub(crate) fn is_covered(&self) -> bool {
        self.0.mounting.load(Ordering::Acquire) == COVERED
    }

    /// Returns the number of failures to have its changes last, for an open file that reports each once.
    fn failures(&self) -> u32 {
        self.0.failures.load(Ordering::Relaxed).wrapping_add(self.volume().failures.load(Ordering::Relaxed))
    }

    /// Enters the file into the list of those that were changed; returns whether it is the first one, for which the
    /// coroutine must be woken.
    fn enter_changed(&self) -> Result<bool, Errno> {
        let mut changed = self.volume().changed.lock();
        let is_first = changed.files.is_empty();
        if is_first {
            changed.expires = Machine::now() + time::ticks_at_ns(pages::EXPIRES_NS);
        }
        if changed.files.get(self.number().into()).is_none() {
            changed.files.insert(self.number().into(), self.0.clone()).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(is_first)
    }

    /// Returns the memory of the file's pages for a mapping, and a value that lasts as long as it.
    fn map(&self, caller: &dyn Caller, stores: bool) -> Result<(Arc<MemoryObject>, VolumeMapping), Errno> {
        let charge = caller.account().charge(Resource::Memory, size_of::<VolumeMapping>() + 64)?;
        let mut pages = self.0.pages.lock();
        if self.0.is_lost() {
            return Err(Errno::EIO);
        }
        let is_first = stores && self.enter_changed()?;
        // Together, as in `renew`: a page is behind the end or is fetched.
        let length = self.0.attributes.lock().size;
        let object = pages.map(length, stores);
        if stores {
            pages.payer = caller.number();
        }
        drop(pages);
        if is_first {
            self.volume().wake();
        }
        Ok((object, VolumeMapping { node: self.clone(), stores, _charge: charge }))
    }

    /// Whether its pages are fetched when programs touch them, and not when they map them.
    pub(crate) fn is_fetched(&self) -> bool {
        !self.volume().is_of_host()
    }

    /// Returns the numbers of pages of a range, up to the end, that are in memory and that are not.
    pub(crate) fn count_pages(&self, pages: Range<u64>) -> (u64, u64) {
        let end = self.size().div_ceil(PAGE_SIZE as u64).clamp(pages.start, pages.end.max(pages.start));
        let there = self.0.pages.lock().count(pages.start..end);
        (there, end - pages.start - there)
    }

    /// Whether the first of these pages, few neighbours that are mapped, are in memory up to the file's end; notes then
    /// that programs can store to all of them, if they can.
    fn has_pages(&self, range: Range<u64>, end: u64, stores: bool) -> bool {
        let mut pages = self.0.pages.lock();
        if !pages.has_all(range.start..range.end.min(end)) {
            return false;
        }
        let mut next = Some(range.start).filter(|_| stores);
        while let Some(from) = next {
            next = pages.store(from..range.end);
        }
        true
    }

    /// Reads a step's bytes from a place, if they are in memory and there is no end before them; returns their number,
    /// and the file's length.
    fn read_in_place(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        offset: u64,
    ) -> Option<Result<(usize, u64), Errno>> {
        if self.volume().is_of_host() {
            return None;
        }
        let size = self.0.attributes.lock().size;
        let length = size.saturating_sub(offset).min(buffer.len().min(steps::BYTES) as u64) as usize;
        let within = offset as usize % PAGE_SIZE;
        if length > 0 && within + length <= PAGE_SIZE {
            let frame = self.0.pages.lock().page(offset / PAGE_SIZE as u64)?;
            let copied = disk::copy_out(caller, &frame, within, buffer.address(), length);
            return Some(copied.map(|()| (length, size)));
        }
        self.read_pages_in_place(caller, buffer, offset, length).map(|read| read.map(|count| (count, size)))
    }

    #[inline(never)]
    fn read_pages_in_place(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        offset: u64,
        length: usize,
    ) -> Option<Result<usize, Errno>> {
        let mut frames = SmallVec::<[_; PAGES_OF_A_STEP]>::new();
        if length > 0 {
            let mut pages = self.0.pages.lock();
            for page in pages_of(offset, length) {
                frames.push(pages.page(page)?);
            }
        }
        let mut done = 0;
        for frame in frames {
            let within = (offset + done as u64) as usize % PAGE_SIZE;
            let piece = (PAGE_SIZE - within).min(length - done);
            match disk::copy_out(caller, &frame, within, buffer.address() + done, piece) {
                Ok(()) => done += piece,
                Err(error) if done == 0 => return Some(Err(error)),
                Err(_) => break,
            }
        }
        Some(Ok(done))
    }

    /// Reads bytes from a place for the kernel, if they are in memory; fewer than wanted only at the end.
    pub(crate) fn read_for_kernel(&self, offset: u64, bytes: &mut [u8]) -> Option<usize> {
        if self.volume().is_of_host() {
            return None;
        }
        let size = self.0.attributes.lock().size;
        let length = size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let frame = self.0.pages.lock().page(at / PAGE_SIZE as u64)?;
            done += frame.read(at as usize % PAGE_SIZE, &mut bytes[done..length]);
        }
        Some(done)
    }

    /// Reads bytes from a place for the kernel, which this process pays for, and has the ones behind read, too.
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    pub(crate) async fn fetch(
        &self,
        account: &Arc<Account>,
        payer: u32,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Errno> {
        let _charge = account.charge(Resource::Memory, length)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        let submission =
            self.volume().submit(account, payer, VolumeRequest::Read { node: self.clone(), offset, bytes })?;
        let first = (offset + length as u64).div_ceil(PAGE_SIZE as u64);
        if first * (PAGE_SIZE as u64) < self.size() {
            let ahead = VolumeRequest::ReadAhead { node: self.clone(), first, count: FETCHED_AHEAD };
            // Without it the next bytes are waited for.
            let _ = self.volume().submit(account, payer, ahead);
        }
        match submission.answer().await? {
            VolumeAnswer::Bytes(mut bytes, count) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            _ => Err(Errno::EIO),
        }
    }

    /// Writes a step's bytes to a place, if the pages there are in memory with their blocks, and the file does not end
    /// before.
    fn write_in_place(&self, caller: &dyn Caller, buffer: UserBuffer, offset: u64) -> Option<Result<usize, Errno>> {
        let (inode, volume) = (&self.0, self.volume());
        if pages::too_many_changed() || volume.is_of_host() || volume.is_read_only() || inode.is_lost() {
            return None;
        }
        let length = buffer.len().min(steps::BYTES);
        let stamp = now();
        let mut pages = inode.pages.lock();
        {
            let attributes = inode.attributes.lock();
            // The volume takes the bits to set user and group from a file at once, and not when the pages are stored:
            // the program would run with others' bytes until then.
            let file = ownership_of(&attributes);
            if offset + length as u64 > attributes.size || rights::after_write(file) != file.permissions {
                return None;
            }
        }
        let mut frames = SmallVec::<[_; PAGES_OF_A_STEP]>::new();
        for page in pages_of(offset, length) {
            frames.push((page, pages.placed_page(page)?));
        }
        let is_first = !pages.has_changes() && self.enter_changed().ok()?;
        // Under the lock: a page that is cut off meanwhile must not get bytes behind the new end.
        let (mut done, mut result) = (0, Ok(()));
        for (page, frame) in frames {
            let within = (offset + done as u64) as usize % PAGE_SIZE;
            let piece = (PAGE_SIZE - within).min(length - done);
            let (copied, copy) = disk::copy_in(caller, &frame, within, buffer.address() + done, piece);
            done += copied;
            if copied > 0 {
                pages.change(page);
            }
            if copy.is_err() {
                result = copy;
                break;
            }
        }
        if done > 0 {
            pages.modified = Some(stamp);
            pages.payer = caller.number();
            inode.attributes.lock().times[1..].fill(stamp);
        }
        drop(pages);
        if is_first {
            volume.wake();
        }
        Some(match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        })
    }

    /// Returns its attributes.
    pub(crate) fn attributes(&self) -> Attributes {
        *self.0.attributes.lock()
    }

    /// Returns its length.
    pub(crate) fn size(&self) -> u64 {
        self.0.attributes.lock().size
    }

    /// Whether it is a file of this [`kind`].
    fn is(&self, kind: u16) -> bool {
        self.0.kind == kind
    }

    /// Returns its owner, group and permissions.
    pub(crate) fn ownership(&self) -> Ownership {
        ownership_of(&self.attributes())
    }

    /// Returns the value in which the openings of a FIFO meet: the one that some of them hold, or else one that is
    /// made.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn meeting(&self, make: impl FnOnce() -> Result<Meeting, Errno>) -> Result<Meeting, Errno> {
        self.0.meeting.lock().meet(make)
    }

    /// Forgets that value if nothing holds it any more: called when it is dropped, so that its memory is freed.
    pub(crate) fn end_meeting(&self) {
        self.0.meeting.lock().end();
    }

    /// Whether it is the root of its volume.
    pub(crate) fn is_root(&self) -> bool {
        self.number() == ROOT
    }

    /// Returns numbers that it has in common with no other file in use.
    pub(crate) fn identity(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.0).addr(), 0)
    }

    /// Returns the kind of the file.
    pub(crate) fn kind(&self) -> FileKind {
        match self.0.kind {
            kind::REGULAR => FileKind::Regular,
            kind::DIRECTORY => FileKind::Directory,
            kind::SYMBOLIC_LINK => FileKind::SymbolicLink,
            0o020_000 => FileKind::CharacterDevice,
            0o060_000 => FileKind::BlockDevice,
            kind::SOCKET => FileKind::Socket,
            _ => FileKind::Fifo,
        }
    }

    /// Returns the metadata.
    pub(crate) fn metadata(&self) -> Metadata {
        let attributes = self.attributes();
        let time = |stamp: Stamp| Timestamp { seconds: stamp.seconds, nanoseconds: stamp.nanoseconds };
        Metadata {
            inode: attributes.inode.into(),
            kind: self.kind(),
            permissions: attributes.mode & 0o7777,
            user: attributes.owner.0,
            group: attributes.owner.1,
            links: attributes.links.into(),
            size: attributes.size,
            allocated: attributes.sectors * 512,
            blocks: attributes.sectors,
            device: DeviceNumber { major: attributes.device.0, minor: attributes.device.1 },
            accessed: time(attributes.times[0]),
            modified: time(attributes.times[1]),
            changed: time(attributes.times[2]),
        }
    }
}

/// A use of a file's pages by a mapping.
struct VolumeMapping {
    node: VolumeNode,
    stores: bool,
    _charge: Charge,
}

impl Drop for VolumeMapping {
    fn drop(&mut self) {
        if self.stores {
            self.node.0.pages.lock().unmap();
        }
    }
}

/// Pages that a step's bytes lie in.
const PAGES_OF_A_STEP: usize = steps::BYTES / PAGE_SIZE + 1;

/// Returns the pages in which bytes lie, of which there are some.
fn pages_of(offset: u64, length: usize) -> core::ops::RangeInclusive<u64> {
    offset / PAGE_SIZE as u64..=(offset + length as u64 - 1) / PAGE_SIZE as u64
}

/// Returns the answer with these bytes, all of which were read.
fn all_bytes(bytes: Vec<u8>) -> VolumeAnswer {
    let length = bytes.len();
    VolumeAnswer::Bytes(bytes, length)
}

/// Returns owner, group and permissions of a file with these attributes.
fn ownership_of(attributes: &Attributes) -> Ownership {
    let (user, group) = attributes.owner;
    Ownership { user, group, permissions: attributes.mode & 0o7777 }
}

/// Returns a new file of a directory, made for a user.
fn new_file(subject: Option<&Subject>, directory: &VolumeNode, permissions: u16, kind: FileKind) -> NewFile {
    let new = rights::of_new(subject, directory.ownership(), permissions, kind);
    NewFile { owner: (new.user, new.group), permissions: new.permissions }
}

/// Returns the answer to a request that has come after the end of its volume, of which files may be in use.
fn late_answer(request: &VolumeRequest, is_in_use: bool) -> Result<VolumeAnswer, Errno> {
    match request {
        VolumeRequest::Unmount => Ok(VolumeAnswer::Done),
        // Everything that was changed before the end lasts.
        VolumeRequest::Synchronise(None) if !is_in_use => Ok(VolumeAnswer::Done),
        _ => Err(Errno::EIO),
    }
}

/// Spawns the coroutine of a volume.
fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    executor::spawn_for_kernel(Priority::DEFAULT, work);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::format;
    use std::process::Command;

    use abi_unix::SystemCall;
    use abi_unix::types::mounting::flag;
    use abi_unix::types::{AT_FDCWD, AT_REMOVEDIR, open};

    use super::*;
    use crate::files::disk::tests::{SECOND, SECOND_SIZE, replace_second};
    use crate::process::authority;
    use crate::testing::{Program, run};

    const HERE: usize = AT_FDCWD as usize;

    /// Runs a tool of e2fsprogs on a copy of the second disk, outside of programs; `None` if it is not installed.
    fn tool(words: &[&str], bytes: &[u8]) -> Option<(bool, Vec<u8>)> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cops-volume-{}-{number}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        // Until it is another program, a child has all files of this process: local sockets that another test closes
        // would stay open in it.
        let guard = crate::testing::alone();
        let ran = Command::new(format!("/usr/sbin/{}", words[0])).args(&words[1..]).arg(&path).output();
        drop(guard);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        Some((ran.ok()?.status.success(), bytes))
    }

    /// Runs a check in a directory in memory, and in the same one when a volume is mounted there.
    pub(crate) fn in_memory_and_on_a_volume(check: fn(&mut Program)) {
        with_volume(move |program| {
            check(program);
            mount(program, 0).unwrap();
            check(program);
            unmount(program).unwrap();
        });
    }

    /// Runs a program with a fresh volume on the second disk, which must be whole afterwards.
    pub(crate) fn with_volume(body: impl FnOnce(&mut Program) + Send + 'static) {
        let made = tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096"], &std::vec![0; SECOND_SIZE]);
        let Some((true, volume)) = made else {
            std::eprintln!("left out: e2fsprogs are not installed");
            return;
        };
        let (sender, receiver) = std::sync::mpsc::channel();
        run(move |program| {
            replace_second(volume);
            let held = abi_unix::authority::Held::of(abi_unix::authority::CapabilitySet::only(
                abi_unix::authority::Capability::Administration,
            ));
            let first = crate::process::table::find(1).unwrap();
            authority::give(&first, &program.process(), held).unwrap();
            let at = text(program, "/tmp/volume");
            program.call(SystemCall::MakeDirectory, [HERE, at, 0o755]).unwrap();
            body(program);
            program.call(SystemCall::Unlink, [HERE, at, AT_REMOVEDIR as usize]).unwrap();
            // The disk is another test's afterwards.
            sender.send(SECOND.lock().unwrap().clone()).unwrap();
        });
        assert_eq!(tool(&["e2fsck", "-fn"], &receiver.recv().unwrap()).map(|(is_whole, _)| is_whole), Some(true));
    }

    pub(crate) fn text(program: &mut Program, text: &str) -> usize {
        program.store(format!("{text}\0").as_bytes())
    }

    pub(crate) fn mount(program: &mut Program, flags: u32) -> Result<usize, Errno> {
        let words = ["/dev/vdb", "/tmp/volume", "ext4"].map(|word| text(program, word));
        program.call(SystemCall::Mount, [words[0], words[1], words[2], flags as usize, 0])
    }

    pub(crate) fn unmount(program: &mut Program) -> Result<usize, Errno> {
        let at = text(program, "/tmp/volume");
        program.call(SystemCall::Unmount, [at, 0])
    }

    pub(crate) fn open(program: &mut Program, name: &str, flags: u32) -> Result<usize, Errno> {
        let path = text(program, &format!("/tmp/volume/{name}"));
        program.call(SystemCall::Open, [HERE, path, flags as usize, 0o644])
    }

    fn of_names(program: &mut Program, call: SystemCall, names: &[&str], last: usize) -> Result<usize, Errno> {
        let paths: Vec<usize> = names.iter().map(|name| text(program, &format!("/tmp/volume/{name}"))).collect();
        match paths[..] {
            [one] => program.call(call, [HERE, one, last]),
            [one, other] => program.call(call, [HERE, one, HERE, other, last]),
            _ => unreachable!("one or two names"),
        }
    }

    #[test]
    fn a_volume_is_busy_while_it_is_used_and_whole_afterwards() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            assert_eq!(mount(program, 0), Err(Errno::EBUSY));
            let file = open(program, "file", open::CREAT | open::RDWR).unwrap();
            assert_eq!(open(program, "file", open::CREAT | open::EXCL), Err(Errno::EEXIST));
            let data = program.store(b"text");
            assert_eq!(program.call(SystemCall::Write, [file, data, 4]), Ok(4));
            assert_eq!(unmount(program), Err(Errno::EBUSY));
            assert_eq!(mount(program, flag::REMOUNT | flag::READ_ONLY), Err(Errno::EBUSY));
            // A file without a name lives until its last use.
            assert_eq!(of_names(program, SystemCall::Unlink, &["file"], 0), Ok(0));
            assert_eq!(open(program, "file", 0), Err(Errno::ENOENT));
            let place = program.place(4);
            assert_eq!(program.call(SystemCall::ReadAt, [file, place, 4, 0]), Ok(4));
            assert_eq!(program.read(place, 4), b"text");
            program.call(SystemCall::Close, [file]).unwrap();
            for name in ["a", "b"] {
                let file = open(program, name, open::CREAT).unwrap();
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(of_names(program, SystemCall::MakeDirectory, &["d"], 0o755), Ok(0));
            assert_eq!(of_names(program, SystemCall::Rename, &["a", "d"], 0), Err(Errno::EISDIR));
            assert_eq!(of_names(program, SystemCall::Rename, &["a", "b"], 0), Ok(0));
            assert_eq!(of_names(program, SystemCall::Rename, &["b", "d/c"], 0), Ok(0));
            assert_eq!(of_names(program, SystemCall::Unlink, &["d"], AT_REMOVEDIR as usize), Err(Errno::ENOTEMPTY));
            assert_eq!(mount(program, flag::REMOUNT | flag::READ_ONLY), Ok(0));
            assert_eq!(open(program, "d/c", open::RDWR), Err(Errno::EROFS));
            assert_eq!(of_names(program, SystemCall::Unlink, &["d/c"], 0), Err(Errno::EROFS));
            assert_eq!(unmount(program), Ok(0));
            assert_eq!(all().len(), 0);
        });
    }

    /// Files in use that lose their last names have a limit, because the library looks at all of them each time. Others
    /// are removed all the same.
    #[test]
    fn files_without_names_are_limited() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let unlink = |program: &mut Program, name: &str| of_names(program, SystemCall::Unlink, &[name], 0);
            let mut files = Vec::new();
            for number in 0..MOST_NAMELESS {
                let name = format!("n{number}");
                files.push(open(program, &name, open::CREAT | open::RDWR).unwrap());
                assert_eq!(unlink(program, &name), Ok(0), "{number}");
            }
            let last = open(program, "last", open::CREAT | open::RDWR).unwrap();
            assert_eq!(unlink(program, "last"), Err(Errno::ENOSPC));
            assert_eq!(of_names(program, SystemCall::MakeDirectory, &["d"], 0o755), Ok(0));
            for name in ["other", "another"] {
                let other = open(program, name, open::CREAT | open::RDWR).unwrap();
                program.call(SystemCall::Close, [other]).unwrap();
            }
            assert_eq!(of_names(program, SystemCall::Rename, &["other", "last"], 0), Err(Errno::ENOSPC));
            assert_eq!(unlink(program, "other"), Ok(0), "nobody uses it");
            assert_eq!(of_names(program, SystemCall::Unlink, &["d"], AT_REMOVEDIR as usize), Ok(0));
            // A name of two can go.
            assert_eq!(
                {
                    let paths = ["last", "second"].map(|name| text(program, &format!("/tmp/volume/{name}")));
                    program.call(SystemCall::Link, [HERE, paths[0], HERE, paths[1], 0])
                },
                Ok(0)
            );
            assert_eq!(unlink(program, "second"), Ok(0));
            program.call(SystemCall::Close, [files.pop().unwrap()]).unwrap();
            assert_eq!(of_names(program, SystemCall::Rename, &["another", "last"], 0), Ok(0), "there is room");
            for file in files.into_iter().chain([last]) {
                program.call(SystemCall::Close, [file]).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// Only what lasts is acknowledged after the end of a volume.
    #[test]
    fn late_requests_are_answered_as_it_is() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let volume = all().pop().unwrap();
            let root = VolumeNode(volume.used(ROOT).unwrap());
            for is_in_use in [false, true] {
                let answer = |request| late_answer(&request, is_in_use).map(drop);
                assert_eq!(answer(VolumeRequest::Unmount), Ok(()));
                assert_eq!(answer(VolumeRequest::Synchronise(Some(root.clone()))), Err(Errno::EIO));
                let all = if is_in_use { Err(Errno::EIO) } else { Ok(()) };
                assert_eq!(answer(VolumeRequest::Synchronise(None)), all);
                assert_eq!(answer(VolumeRequest::ReadLink(root.clone())), Err(Errno::EIO));
            }
            drop((root, volume));
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn volumes_are_refused_where_there_is_none() {
        with_volume(|program| {
            let damaged = {
                let mut disk = SECOND.lock().unwrap().clone();
                // A feature that must be known, which is not.
                disk[1024 + 0x60 + 3] |= 0x80;
                disk
            };
            let whole = core::mem::take(&mut *SECOND.lock().unwrap());
            replace_second(damaged);
            assert_eq!(mount(program, 0), Err(Errno::EINVAL));
            replace_second(Vec::new());
            assert_eq!(mount(program, 0), Err(Errno::EINVAL));
            replace_second(whole);
            assert_eq!(mount(program, flag::READ_ONLY), Ok(0));
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// A directory of a volume takes a mount, keeps its name meanwhile, and is what it was before afterwards.
    #[test]
    fn directories_are_covered_and_keep_their_names() {
        with_volume(|program| {
            let here = AT_FDCWD as usize;
            let path = |program: &mut Program, name: &str| text(program, &format!("/tmp/volume/{name}"));
            assert_eq!(mount(program, 0), Ok(0));
            let [above, point, below, other] = ["a", "a/m", "a/m/file", "a/other"].map(|name| path(program, name));
            let kind = text(program, "tmpfs");
            let cover = |program: &mut Program, at| program.call(SystemCall::Mount, [kind, at, kind, 0, 0]);
            assert_eq!(cover(program, point), Err(Errno::ENOENT));
            for directory in [above, point] {
                assert_eq!(program.call(SystemCall::MakeDirectory, [here, directory, 0o755]), Ok(0));
            }
            let create = |program: &mut Program, name| {
                let file = program.call(SystemCall::Open, [here, name, open::CREAT as usize, 0o644])?;
                program.call(SystemCall::Close, [file])
            };
            assert_eq!(create(program, other), Ok(0));
            assert_eq!(cover(program, other), Err(Errno::ENOTDIR));
            assert_eq!(cover(program, point), Ok(0));
            assert_eq!(create(program, below), Ok(0));
            // The covered directory keeps its place, and the ones above may move.
            let moved = path(program, "b");
            let rename = |program: &mut Program, from, to| program.call(SystemCall::Rename, [here, from, here, to, 0]);
            let remove = |program: &mut Program, name, flags| program.call(SystemCall::Unlink, [here, name, flags]);
            assert_eq!(remove(program, point, AT_REMOVEDIR as usize), Err(Errno::EBUSY));
            assert_eq!(rename(program, point, moved), Err(Errno::EBUSY));
            assert_eq!(rename(program, other, point), Err(Errno::EISDIR));
            assert_eq!(rename(program, below, other), Err(Errno::EXDEV));
            assert_eq!(rename(program, above, moved), Ok(0));
            let [point, below, outside] = ["b/m", "b/m/file", "b/m/../other"].map(|name| path(program, name));
            let status = program.place(256);
            let look = |program: &mut Program, name| program.call(SystemCall::StatusAt, [here, name, status, 0]);
            assert_eq!((look(program, below), look(program, outside)), (Ok(0), Ok(0)));
            // The working directory is found with its path as it is now.
            assert_eq!(program.call(SystemCall::ChangeDirectory, [point]), Ok(0));
            assert_eq!(unmount(program), Err(Errno::EBUSY), "a mount is inside");
            assert_eq!(program.call(SystemCall::Unmount, [point, 0]), Err(Errno::EBUSY), "a working directory");
            let root = text(program, "/");
            assert_eq!(program.call(SystemCall::ChangeDirectory, [root]), Ok(0));
            assert_eq!(program.call(SystemCall::Unmount, [point, 0]), Ok(0));
            assert_eq!(look(program, below), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::Unmount, [point, 0]), Err(Errno::EINVAL));
            // Mounted once more and detached with all above it.
            assert_eq!(cover(program, point), Ok(0));
            assert_eq!(cover(program, point), Ok(0), "over the root of that one");
            assert_eq!(program.call(SystemCall::Unmount, [point, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Unmount, [point, 0]), Ok(0));
            assert_eq!(remove(program, point, AT_REMOVEDIR as usize), Ok(0));
            assert_eq!(unmount(program), Ok(0));
        });
    }
}
