//! Events of watched files (inotify(7)).
//!
//! A program has a queue behind a descriptor, and watches: each names a file, the kinds of events that it wants of it,
//! and a number under which they are told. A file system tells everything that happens to a watched file, or to a name
//! in a watched directory ([`filesystem::event`]); [`observe`] finds the watches of that file and puts a record into
//! each of their queues. Files that nobody watches are not looked up here.
//!
//! # Bounds
//! The process that changes a watched file pays for the telling with its time. So a file has at most
//! [`MOST_OF_A_FILE`] watches, a queue [`MOST_WATCHES`] watches and [`MOST_EVENTS`] events. The owner of the queue pays
//! for the memory; an event for which there is no room or no memory is lost, and the first that is lost leaves a mark
//! in the queue (`IN_Q_OVERFLOW`).
//!
//! # Ends
//! A watch keeps its file and the use of its mount; that of a file on a volume as long as the file has a name. It ends
//! when it is removed, after its first event if it was for one, when nothing but watches keeps the file any more, or
//! with its queue. A queue leaves thousands of watches as [remains](crate::files::remains).
//!
//! # Locks
//! The table of watched files, then one queue. Both may be taken while the position of an open file is locked, and
//! whenever a file is let go of. No file is let go of under them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::{Status, epoll, file_event as flag};
use filesystem::{Event, FileKind, event};
use spin::{Mutex, Once};
use tables::{Ordered, Table};
use waiters::Waiters;

use crate::files::file::{Attempt, FileOperations, status_of_anonymous};
use crate::files::mounts::{Node, Place};
use crate::files::remains::{Remain, leave};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{Caller, UserBuffer};
use crate::random;
use crate::scheduling::steps;

/// Watches of one file.
const MOST_OF_A_FILE: usize = 24;
/// Watches of one queue.
const MOST_WATCHES: usize = 8192;
/// Events in one queue.
const MOST_EVENTS: usize = 16384;
/// Bytes of a watch: itself, the file if it is the first, and their places in tables.
const MEMORY_OF_A_WATCH: usize = size_of::<WatchedFile>() + 2 * size_of::<Watch>() + 128;
/// Bytes of an event beside its name.
const MEMORY_OF_AN_EVENT: usize = size_of::<(u64, Queued)>() + 32;
/// Events that one call gives.
const EVENTS_AT_A_TIME: usize = 32;

/// The identity of a file, as its file system tells it.
type Identity = (usize, u32);

/// A watch of a file.
struct Watch {
    queue: Arc<EventQueue>,
    number: i32,
    /// The kinds of events, and whether it is for one.
    mask: u32,
}

/// A watched file.
struct WatchedFile {
    identity: Identity,
    /// `None` for a file of a volume without a name, which ends with its other uses.
    place: Option<Place>,
    watches: Vec<Watch>,
}

static WATCHED: Mutex<Table<WatchedFile>> = Mutex::new(Table::new());

/// Returns the hash of an identity. Programs choose files, and may not choose their places in the table.
fn hash((tree, file): Identity) -> u32 {
    static FACTORS: Once<[u64; 2]> = Once::new();
    let [of_tree, of_file] = FACTORS.call_once(|| [random::word() | 1, random::word() | 1]);
    let sum = (tree as u64).wrapping_mul(*of_tree).wrapping_add(u64::from(file).wrapping_mul(*of_file));
    (sum >> 32 ^ sum >> 48) as u32
}

fn find(watched: &Table<WatchedFile>, identity: Identity) -> Option<usize> {
    watched.find(hash(identity), |file| file.identity == identity)
}

/// Returns the identity of a file that can be watched. `EOPNOTSUPP` for others.
fn identity_of(node: &Node) -> Result<Identity, Errno> {
    match node {
        Node::Stored(node) => Ok(node.identity()),
        Node::OnVolume(node) => Ok(node.identity()),
        Node::Generated(_) => Err(Errno::EOPNOTSUPP),
    }
}

fn set_watched(node: &Node, is_watched: bool) {
    match (node, is_watched) {
        (Node::Stored(node), true) => node.watch(),
        (Node::Stored(node), false) => node.unwatch(),
        (Node::OnVolume(node), true) => node.watch(),
        (Node::OnVolume(node), false) => node.unwatch(),
        (Node::Generated(_), _) => {}
    }
}

/// Takes a file without watches out of the table. To be dropped without its lock.
fn forget(watched: &mut Table<WatchedFile>, at: usize) -> Option<WatchedFile> {
    let file = watched.remove(at)?;
    // Under the lock of the table: another watch may be made next.
    if let Some(place) = &file.place {
        set_watched(&place.node, false);
    }
    Some(file)
}

/// Lets a file of a volume go that has lost its last name.
pub(crate) fn let_go(identity: Identity) {
    // Perhaps its last use, without the lock.
    let _place = {
        let mut watched = WATCHED.lock();
        find(&watched, identity).and_then(|at| watched.get_mut(at)?.place.take())
    };
}

/// Whether a watch keeps a file: one of a volume without a name is not kept.
fn is_kept(node: &Node) -> bool {
    match node {
        Node::OnVolume(node) => node.attributes().links > 0,
        Node::Stored(_) | Node::Generated(_) => true,
    }
}

/// Puts an event into the queues of those who watch the file.
#[doc(alias = "fsnotify")]
pub(crate) fn observe(event: &Event<'_>) {
    let is_gone = event.what == event::SELF_DELETED;
    // As on Linux, of its own end and its own name a directory is told as any file.
    let is_itself = event.what & (event::SELF_DELETED | event::SELF_MOVED) != 0;
    let subject = event.what | if event.is_directory && !is_itself { flag::IS_DIRECTORY } else { 0 };
    let _gone = {
        let mut watched = WATCHED.lock();
        let Some(at) = find(&watched, event.watched) else { return };
        let Some(file) = watched.get_mut(at) else { return };
        file.watches.retain(|watch| {
            let is_wanted = watch.mask & event.what != 0;
            if is_wanted {
                watch.queue.push(watch.number, subject, event.cookie, event.name.unwrap_or_default());
            }
            let ends = is_gone || is_wanted && watch.mask & flag::ONCE != 0;
            if ends {
                watch.queue.ends_watch(watch.number);
            }
            !ends
        });
        if file.watches.is_empty() { forget(&mut watched, at) } else { None }
    };
}

/// An event in a queue.
struct Queued {
    watch: i32,
    mask: u32,
    cookie: u32,
    name: Vec<u8>,
}

/// Bytes of a record before the name.
const HEAD: usize = 16;
/// Bytes of the longest record.
const LONGEST: usize = HEAD + (filesystem::MAX_NAME_LENGTH + 1).next_multiple_of(HEAD);

/// Returns the bytes of a record with a name of this length.
fn size_with(name: usize) -> usize {
    HEAD + if name == 0 { 0 } else { (name + 1).next_multiple_of(HEAD) }
}

impl Queued {
    fn size(&self) -> usize {
        size_with(self.name.len())
    }

    /// Writes the record (`struct inotify_event`): the watch, the events, the cookie, the length of the name with its
    /// padding, and the name.
    fn write(&self, bytes: &mut [u8; LONGEST]) -> usize {
        let size = self.size();
        bytes[..4].copy_from_slice(&self.watch.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.mask.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.cookie.to_le_bytes());
        bytes[12..HEAD].copy_from_slice(&((size - HEAD) as u32).to_le_bytes());
        bytes[HEAD..size].fill(0);
        bytes[HEAD..HEAD + self.name.len()].copy_from_slice(&self.name);
        size
    }
}

/// The part of a queue that changes.
struct QueueState {
    /// The events, by their numbers.
    events: Ordered<Queued>,
    /// The number of the next event.
    next: u64,
    /// The number that the mark of lost events has.
    lost: Option<u64>,
    /// Bytes of all records, without the mark.
    bytes: usize,
    /// Bytes of all names.
    names: usize,
    /// The watched files, by the numbers of the watches.
    watches: Ordered<Identity>,
    last_watch: i32,
    charge: Charge,
    readers: Waiters,
    is_closed: bool,
}

/// The events and watches of a program.
#[doc(alias = "fsnotify_group")]
struct EventQueue {
    state: Mutex<QueueState>,
    /// Held by a call that reads, so that two calls do not give the same events.
    reading: Mutex<()>,
    owner: u32,
}

impl QueueState {
    /// Charges what there is, and so many more watches and events with names of so many bytes.
    fn charge(&mut self, watches: usize, events: usize, names: usize) -> Result<(), Errno> {
        let watches = (self.watches.len() + watches) * MEMORY_OF_A_WATCH;
        let events = (self.events.len() + events) * MEMORY_OF_AN_EVENT + self.names + names;
        self.charge.resize(watches + events)
    }

    /// Adds an event, unless there is no memory for it.
    fn add(&mut self, watch: i32, mask: u32, cookie: u32, name: &[u8]) -> Result<(), Errno> {
        // The change of the file was not admitted for this.
        self.charge.account().admit()?;
        self.charge(0, 1, name.len())?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(name.len()).map_err(|_| Errno::ENOMEM)?;
        copy.extend_from_slice(name);
        let event = Queued { watch, mask, cookie, name: copy };
        let size = event.size();
        self.events.insert(self.next, event).map_err(|_| Errno::ENOMEM)?;
        self.next += 1;
        self.bytes += size;
        self.names += name.len();
        Ok(())
    }

    /// Returns the number of the first event, or of the mark of lost ones.
    fn first(&self) -> Option<u64> {
        let event = self.events.first_from(0);
        match (event, self.lost) {
            (Some(event), Some(lost)) => Some(event.min(lost)),
            (event, lost) => event.or(lost),
        }
    }

    /// Takes an event out.
    fn take(&mut self, number: u64) {
        if self.lost == Some(number) {
            self.lost = None;
        } else if let Some(event) = self.events.remove(number) {
            self.bytes -= event.size();
            self.names -= event.name.len();
        }
    }
}

impl EventQueue {
    /// Adds an event behind the others, unless it is the same as the last one.
    fn push(&self, watch: i32, mask: u32, cookie: u32, name: &[u8]) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        let last = state.next.checked_sub(1).and_then(|last| state.events.get(last));
        let is_same =
            |last: &Queued| (last.watch, last.mask, last.cookie, &last.name[..]) == (watch, mask, cookie, name);
        if last.is_some_and(is_same) {
            return;
        }
        if (state.events.len() >= MOST_EVENTS || state.add(watch, mask, cookie, name).is_err()) && state.lost.is_none()
        {
            state.lost = Some(state.next);
            state.next += 1;
        }
        state.readers.wake_all();
    }

    /// Notes that a watch has ended, which nothing is told of any more. Called with the table of watched files locked.
    fn ends_watch(&self, number: i32) {
        self.push(number, flag::IGNORED, 0, &[]);
        let mut state = self.state.lock();
        state.watches.remove(number as u64);
        // Less than before, which cannot fail.
        let _ = state.charge(0, 0, 0);
    }

    /// Copies the first event into these bytes; returns its number and its size.
    fn first(&self, bytes: &mut [u8; LONGEST], waker: Option<&Waker>) -> Result<Option<(u64, usize)>, Errno> {
        let mut state = self.state.lock();
        let Some(number) = state.first() else {
            if let Some(waker) = waker {
                state.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Ok(None);
        };
        let size = match state.events.get(number) {
            Some(event) => event.write(bytes),
            None => Queued { watch: -1, mask: flag::LOST, cookie: 0, name: Vec::new() }.write(bytes),
        };
        Ok(Some((number, size)))
    }
}

/// The object of `inotify_init1`.
pub(crate) struct EventFile(Arc<EventQueue>);

impl EventFile {
    /// Makes one for this process, which pays with this account.
    pub(crate) fn new(owner: u32, account: &Arc<Account>) -> EventFile {
        let state = QueueState {
            events: Ordered::default(),
            next: 0,
            lost: None,
            bytes: 0,
            names: 0,
            watches: Ordered::default(),
            last_watch: 0,
            charge: account.nothing(Resource::Memory),
            readers: Waiters::new(),
            is_closed: false,
        };
        EventFile(Arc::new(EventQueue { state: Mutex::new(state), reading: Mutex::new(()), owner }))
    }

    /// Watches a file for the events of a mask, or changes the mask of the watch of that file; returns its number.
    /// `ENOTDIR` if it must be a directory, `EEXIST` if it must not be watched yet, `ENOSPC` beyond the bounds.
    pub(crate) fn watch(&self, place: Place, mask: u32) -> Result<i32, Errno> {
        if mask & flag::ONLY_DIRECTORY != 0 && place.node.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let identity = identity_of(&place.node)?;
        let kinds = mask & (flag::ALL | flag::ONCE);
        let mut watched = WATCHED.lock();
        let at = find(&watched, identity);
        if let Some(file) = at.and_then(|at| watched.get_mut(at)) {
            if let Some(watch) = file.watches.iter_mut().find(|watch| Arc::ptr_eq(&watch.queue, &self.0)) {
                if mask & flag::MUST_BE_NEW != 0 {
                    return Err(Errno::EEXIST);
                }
                watch.mask = kinds | if mask & flag::ADD != 0 { watch.mask } else { 0 };
                return Ok(watch.number);
            }
            if file.watches.len() >= MOST_OF_A_FILE {
                return Err(Errno::ENOSPC);
            }
        }
        let mut state = self.0.state.lock();
        if state.watches.len() >= MOST_WATCHES {
            return Err(Errno::ENOSPC);
        }
        state.charge(1, 0, 0)?;
        let number = state.last_watch.checked_add(1).ok_or(Errno::ENOSPC)?;
        let watch = Watch { queue: self.0.clone(), number, mask: kinds };
        match at.and_then(|at| watched.get_mut(at)) {
            Some(file) => {
                file.watches.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                state.watches.insert(number as u64, identity).map_err(|_| Errno::ENOMEM)?;
                file.watches.push(watch);
            }
            None => {
                let mut watches = Vec::new();
                watches.try_reserve_exact(1).map_err(|_| Errno::ENOMEM)?;
                watched.reserve().map_err(|_| Errno::ENOMEM)?;
                state.watches.insert(number as u64, identity).map_err(|_| Errno::ENOMEM)?;
                watches.push(watch);
                set_watched(&place.node, true);
                // Under the lock of the table, as the look of a name that goes meanwhile.
                let place = is_kept(&place.node).then(|| place.clone());
                watched.insert(hash(identity), WatchedFile { identity, place, watches });
            }
        }
        state.last_watch = number;
        drop((state, watched));
        // The caller's own use of the file comes last.
        drop(place);
        Ok(number)
    }

    /// Ends a watch. `EINVAL` if there is none with this number.
    pub(crate) fn end_watch(&self, number: i32) -> Result<(), Errno> {
        let number_of_entry = u64::try_from(number).map_err(|_| Errno::EINVAL)?;
        let _gone = {
            let mut watched = WATCHED.lock();
            let identity = *self.0.state.lock().watches.get(number_of_entry).ok_or(Errno::EINVAL)?;
            self.0.ends_watch(number);
            remove(&mut watched, identity, &self.0)
        };
        Ok(())
    }
}

/// Takes the watch of a queue from a file; returns the file if it is watched no more.
fn remove(watched: &mut Table<WatchedFile>, identity: Identity, queue: &Arc<EventQueue>) -> Option<WatchedFile> {
    let at = find(watched, identity)?;
    let file = watched.get_mut(at)?;
    file.watches.retain(|watch| !Arc::ptr_eq(&watch.queue, queue));
    if file.watches.is_empty() { forget(watched, at) } else { None }
}

impl FileOperations for EventFile {
    fn status(&self) -> Status {
        status_of_anonymous()
    }

    /// Tries to read events: as many as there are and the buffer has room for, and no part of one.
    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        let _reading = self.0.reading.lock();
        let (mut bytes, mut done) = ([0; LONGEST], 0);
        for _ in 0..EVENTS_AT_A_TIME {
            let waker = waker.filter(|_| done == 0);
            let Some((number, size)) = self.0.first(&mut bytes, waker)? else { break };
            if size > buffer.len() - done {
                return Poll::Ready(if done == 0 { Err(Errno::EINVAL) } else { Ok(done) });
            }
            if let Err(error) = caller.copy_out(buffer.address() + done, &bytes[..size]) {
                return Poll::Ready(if done == 0 { Err(error) } else { Ok(done) });
            }
            let mut state = self.0.state.lock();
            state.take(number);
            // Less than before, which cannot fail.
            let _ = state.charge(0, 0, 0);
            done += size;
        }
        if done == 0 { Poll::Pending } else { Poll::Ready(Ok(done)) }
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut state = self.0.state.lock();
        if let Some(waker) = waker {
            state.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(if state.first().is_some() { epoll::IN | epoll::RDNORM } else { 0 })
    }

    fn forget_reader(&self, waker: &Waker) {
        self.0.state.lock().readers.forget(waker);
    }

    fn unread(&self) -> Result<usize, Errno> {
        let state = self.0.state.lock();
        Ok(state.bytes + state.lost.map_or(0, |_| HEAD))
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        leave(ClosedQueue(self.0.clone()));
    }
}

/// The watches and events of a queue that was closed.
struct ClosedQueue(Arc<EventQueue>);

impl Remain for ClosedQueue {
    fn owner(&self) -> Option<u32> {
        Some(self.0.owner)
    }

    fn step(&mut self) -> bool {
        for _ in 0..steps::ENTRIES / 2 {
            let _gone = {
                let mut watched = WATCHED.lock();
                let popped = self.0.state.lock().watches.pop_last();
                let Some((_, identity)) = popped else { break };
                remove(&mut watched, identity, &self.0)
            };
        }
        let mut state = self.0.state.lock();
        for _ in 0..steps::ENTRIES {
            drop(state.events.pop_last());
        }
        state.watches.is_empty() && state.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use abi_unix::types::{AT_FDCWD, AT_REMOVEDIR, open};
    use abi_unix::{SystemCall, errno};
    use proptest::prelude::*;
    use rustix::fs::{self as host, AtFlags, Mode, OFlags, Timespec, Timestamps, inotify};

    use super::*;
    use crate::files::volume::tests::{mount, unmount, with_volume};
    use crate::testing::{Program, run};

    const HERE: usize = AT_FDCWD as usize;

    /// The directory, files and directories in it, and some in those.
    const PATHS: [&str; 8] = [".", "a", "b", "d", "e", "d/a", "d/b", "d/f"];

    /// A change, or a watch, of these paths.
    #[derive(Clone, Debug)]
    enum Change {
        Watch(usize, u32),
        EndWatch(i32),
        Open(usize, u32),
        Read,
        Write,
        Cut(u64),
        List,
        Close,
        MakeDirectory(usize),
        Remove(usize, bool),
        Rename(usize, usize, u32),
        SetMode(usize),
        SetTimes(usize, bool, bool),
        MakeLink(usize),
    }

    fn change() -> impl Strategy<Value = Change> {
        let path = || 0..PATHS.len();
        let flags = prop_oneof![
            Just(open::RDONLY),
            Just(open::WRONLY | open::CREAT),
            Just(open::RDWR | open::CREAT | open::TRUNC),
            Just(open::RDONLY | open::DIRECTORY),
            Just(open::RDWR | open::CREAT | open::EXCL),
        ];
        let mask = prop_oneof![
            6 => Just(flag::ALL),
            1 => Just(event::MODIFIED | event::CREATED),
            1 => Just(event::SELF_DELETED | event::SELF_MOVED | event::ATTRIBUTES),
            1 => Just(flag::ALL | flag::ONCE),
            1 => Just(flag::ALL | flag::ONLY_DIRECTORY),
            1 => Just(event::OPENED | flag::ADD),
            1 => Just(flag::ALL | flag::MUST_BE_NEW),
            1 => Just(flag::ONCE),
            1 => Just(event::OPENED | flag::ADD | flag::MUST_BE_NEW),
        ];
        prop_oneof![
            5 => (path(), mask).prop_map(|(path, mask)| Change::Watch(path, mask)),
            1 => (-1..5i32).prop_map(Change::EndWatch),
            6 => (path(), flags).prop_map(|(path, flags)| Change::Open(path, flags)),
            2 => Just(Change::Read),
            3 => Just(Change::Write),
            1 => (0..9u64).prop_map(Change::Cut),
            1 => Just(Change::List),
            4 => Just(Change::Close),
            3 => path().prop_map(Change::MakeDirectory),
            4 => (path(), any::<bool>()).prop_map(|(path, is_directory)| Change::Remove(path, is_directory)),
            5 => (path(), path(), prop_oneof![4 => Just(0u32), 1 => Just(1), 1 => Just(2)])
                .prop_map(|(old, new, how)| Change::Rename(old, new, how)),
            1 => path().prop_map(Change::SetMode),
            1 => (path(), any::<bool>(), any::<bool>()).prop_map(|(path, one, two)| Change::SetTimes(path, one, two)),
            1 => path().prop_map(Change::MakeLink),
        ]
    }

    type Told = Vec<(i32, u32, bool, Vec<u8>)>;

    /// Decodes records; of cookies it is told that there is one.
    fn told(mut bytes: &[u8]) -> Told {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let size = HEAD + word(12) as usize;
            let name = bytes[HEAD..size].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
            events.push((word(0) as i32, word(4), word(8) != 0, name));
            bytes = &bytes[size..];
        }
        events
    }

    trait Watching {
        fn change(&mut self, change: &Change) -> Result<i32, u16>;
        fn told(&mut self) -> Told;
    }

    struct Cops<'a> {
        program: &'a mut Program,
        queue: usize,
        file: Option<usize>,
        top: std::string::String,
    }

    impl Cops<'_> {
        fn path(&mut self, index: usize) -> usize {
            self.program.store(std::format!("{}/{}\0", self.top, PATHS[index]).as_bytes())
        }
    }

    impl Watching for Cops<'_> {
        fn change(&mut self, change: &Change) -> Result<i32, u16> {
            let file = self.file.unwrap_or(999);
            let result = match *change {
                Change::Watch(path, mask) => {
                    let path = self.path(path);
                    self.program.call(SystemCall::WatchFile, [self.queue, path, mask as usize])
                }
                Change::EndWatch(watch) => self.program.call(SystemCall::EndWatch, [self.queue, watch as usize]),
                Change::Open(path, flags) => {
                    let path = self.path(path);
                    if let Some(file) = self.file.take() {
                        self.program.close(file).unwrap();
                    }
                    let opened = self.program.call(SystemCall::Open, [HERE, path, flags as usize, 0o644]);
                    self.file = opened.ok();
                    opened.map(|_| 0)
                }
                Change::Read => self.program.read_from(file, 4).map(|bytes| bytes.len()),
                Change::Write => self.program.write_to(file, b"text"),
                Change::Cut(length) => self.program.call(SystemCall::Truncate, [file, length as usize]),
                Change::List => {
                    let place = self.program.place(512);
                    self.program.call(SystemCall::ReadDirectory, [file, place, 512]).map(|_| 0)
                }
                Change::Close => match self.file.take() {
                    Some(file) => self.program.close(file),
                    None => Err(Errno::EBADF),
                },
                Change::MakeDirectory(path) => {
                    let path = self.path(path);
                    self.program.call(SystemCall::MakeDirectory, [HERE, path, 0o755])
                }
                Change::Remove(path, is_directory) => {
                    let path = self.path(path);
                    let flags = if is_directory { AT_REMOVEDIR as usize } else { 0 };
                    self.program.call(SystemCall::Unlink, [HERE, path, flags])
                }
                Change::Rename(old, new, how) => {
                    let (old, new) = (self.path(old), self.path(new));
                    self.program.call(SystemCall::Rename, [HERE, old, HERE, new, how as usize])
                }
                Change::SetMode(path) => {
                    let path = self.path(path);
                    self.program.call(SystemCall::ChangeModeAt, [HERE, path, 0o755])
                }
                Change::SetTimes(path, accessed, modified) => {
                    let path = self.path(path);
                    let time = |is_set: bool| [5, if is_set { 7 } else { (1 << 30) - 2 }];
                    let times = [time(accessed), time(modified)].concat();
                    let times =
                        self.program.store(&times.iter().flat_map(|word: &u64| word.to_le_bytes()).collect::<Vec<_>>());
                    self.program.call(SystemCall::SetTimes, [HERE, path, times, 0])
                }
                Change::MakeLink(path) => {
                    let (target, path) = (self.program.store(b"a\0"), self.path(path));
                    self.program.call(SystemCall::SymbolicLink, [target, HERE, path])
                }
            };
            result.map(|value| value as i32).map_err(errno::Errno::number)
        }

        fn told(&mut self) -> Told {
            let mut bytes = Vec::new();
            loop {
                match self.program.read_from(self.queue, 4096) {
                    Ok(more) => bytes.extend(more),
                    Err(error) => {
                        assert_eq!(error, Errno::EAGAIN);
                        return told(&bytes);
                    }
                }
            }
        }
    }

    struct Linux {
        directory: PathBuf,
        queue: OwnedFd,
        file: Option<OwnedFd>,
    }

    impl Watching for Linux {
        fn change(&mut self, change: &Change) -> Result<i32, u16> {
            let path = |index: usize| self.directory.join(PATHS[index]);
            let done = |result: rustix::io::Result<()>| result.map(|()| 0);
            let file = self.file.as_ref().ok_or(rustix::io::Errno::BADF);
            let result = match *change {
                Change::Watch(index, mask) => {
                    // As here: files that have lost their names are told to no directory.
                    let mask = if path(index).is_dir() { mask | flag::EXCEPT_UNLINKED } else { mask };
                    let mask = inotify::WatchFlags::from_bits_retain(mask);
                    inotify::add_watch(&self.queue, path(index), mask)
                }
                Change::EndWatch(watch) => done(inotify::remove_watch(&self.queue, watch)),
                Change::Open(index, flags) => {
                    drop(self.file.take());
                    let flags = OFlags::from_bits_retain(host_flags(flags));
                    let opened = host::open(self.directory.join(PATHS[index]), flags, Mode::from_bits_retain(0o644));
                    opened.map(|file| {
                        self.file = Some(file);
                        0
                    })
                }
                Change::Read => file.and_then(|file| rustix::io::read(file, &mut [0u8; 4]).map(|count| count as i32)),
                Change::Write => file.and_then(|file| rustix::io::write(file, b"text").map(|count| count as i32)),
                Change::Cut(length) => file.and_then(|file| done(host::ftruncate(file, length))),
                Change::List => file.and_then(|file| {
                    let mut room = [core::mem::MaybeUninit::uninit(); 512];
                    let mut names = host::RawDir::new(file, &mut room);
                    names.next().map_or(Ok(0), |name| name.map(|_| 0))
                }),
                Change::Close => self.file.take().map(|_| 0).ok_or(rustix::io::Errno::BADF),
                Change::MakeDirectory(index) => done(host::mkdir(path(index), Mode::from_bits_retain(0o755))),
                Change::Remove(index, true) => done(host::rmdir(path(index))),
                Change::Remove(index, false) => done(host::unlink(path(index))),
                Change::Rename(old, new, how) => {
                    let how = host::RenameFlags::from_bits_retain(how);
                    done(host::renameat_with(host::CWD, path(old), host::CWD, path(new), how))
                }
                Change::SetMode(index) => done(host::chmod(path(index), Mode::from_bits_retain(0o755))),
                Change::SetTimes(index, accessed, modified) => {
                    let time = |is_set: bool| Timespec { tv_sec: 5, tv_nsec: if is_set { 7 } else { (1 << 30) - 2 } };
                    let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
                    done(host::utimensat(host::CWD, path(index), &times, AtFlags::empty()))
                }
                Change::MakeLink(index) => done(host::symlink("a", path(index))),
            };
            result.map_err(|error| error.raw_os_error() as u16)
        }

        fn told(&mut self) -> Told {
            let (mut bytes, mut room) = (Vec::new(), [0; 4096]);
            loop {
                match rustix::io::read(&self.queue, &mut room) {
                    Ok(count) => bytes.extend_from_slice(&room[..count]),
                    Err(error) => {
                        assert_eq!(error, rustix::io::Errno::AGAIN);
                        return told(&bytes);
                    }
                }
            }
        }
    }

    /// Returns the bits of the host for flags of `open`: those of another architecture.
    fn host_flags(flags: u32) -> u32 {
        let mut bits = flags & 3;
        for (flag, there) in [
            (open::CREAT, OFlags::CREATE),
            (open::TRUNC, OFlags::TRUNC),
            (open::DIRECTORY, OFlags::DIRECTORY),
            (open::EXCL, OFlags::EXCL),
        ] {
            if flags & flag != 0 {
                bits |= there.bits();
            }
        }
        bits
    }

    fn compare(program: &mut Program, changes: &[Change], above: &str) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(std::format!("cops-watched-{}-{number}", std::process::id()));
        host::mkdir(&directory, Mode::from_bits_retain(0o755)).unwrap();
        let queue = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let mut linux = Linux { directory: directory.clone(), queue, file: None };
        let top = std::format!("{above}/watched{number}");
        let path = program.store(std::format!("{top}\0").as_bytes());
        program.call(SystemCall::MakeDirectory, [HERE, path, 0o755]).unwrap();
        let queue = program.call(SystemCall::EventFile, [open::NONBLOCK as usize]).unwrap();
        let mut cops = Cops { program, queue, file: None, top };
        for (number, change) in changes.iter().enumerate() {
            // Linux tells a directory of this although the file has lost its name.
            let has_name = |file: &OwnedFd| host::fstat(file).is_ok_and(|status| status.st_nlink > 0);
            if matches!(change, Change::Cut(_)) && !linux.file.as_ref().is_some_and(has_name) {
                continue;
            }
            let results = (cops.change(change), linux.change(change));
            // A directory that was listed to its end gives another error than one that was not.
            let both_fail = results.0.is_err() && results.1.is_err() && matches!(change, Change::Read);
            assert!(both_fail || results.0 == results.1, "step {number}: {results:?}, {change:?} of {changes:?}");
            assert_eq!(cops.told(), linux.told(), "step {number}: {change:?} of {changes:?}");
        }
        let Cops { program, queue, file, top } = cops;
        program.close(queue).unwrap();
        if let Some(file) = file {
            program.close(file).unwrap();
        }
        drop(linux);
        std::fs::remove_dir_all(&directory).unwrap();
        let names = ["a", "b", "d", "e", "f"];
        let below = names.iter().flat_map(|first| names.map(|second| std::format!("/{first}/{second}")));
        let paths = below.chain(names.map(|name| std::format!("/{name}"))).chain([std::string::String::new()]);
        for path in paths {
            let path = program.store(std::format!("{top}{path}\0").as_bytes());
            let _ = program.call(SystemCall::Unlink, [HERE, path, 0]);
            let _ = program.call(SystemCall::Unlink, [HERE, path, AT_REMOVEDIR as usize]);
        }
        assert!(WATCHED.lock().is_empty());
    }

    proptest! {
        #![proptest_config(property::cases(64))]

        /// Changes of files and watches, made here and by the host's Linux, have the same results and are told alike.
        #[test]
        fn events_are_those_of_linux(changes in prop::collection::vec(change(), 0..40)) {
            run(move |program| compare(program, &changes, "/tmp"));
        }
    }

    proptest! {
        #![proptest_config(property::cases(48))]

        /// So are those on volumes.
        #[test]
        fn events_on_volumes_are_those_of_linux(changes in prop::collection::vec(change(), 0..40)) {
            with_volume(move |program| {
                mount(program, 0).unwrap();
                compare(program, &changes, "/tmp/volume");
                assert_eq!(unmount(program), Ok(0));
            });
        }
    }

    /// A file of a volume without a name ends with its last use, whatever that is, and is told then.
    #[test]
    fn the_end_of_a_file_is_told_at_its_last_use() {
        with_volume(|program| {
            mount(program, 0).unwrap();
            let queue = program.call(SystemCall::EventFile, [open::NONBLOCK as usize]).unwrap();
            let told = move |program: &mut Program| -> Vec<_> {
                match program.read_from(queue, 4096) {
                    Ok(bytes) => told(&bytes).into_iter().map(|(watch, what, ..)| (watch, what)).collect(),
                    Err(_) => Vec::new(),
                }
            };
            let watch = |program: &mut Program, path: &str| {
                let path = program.store(std::format!("{path}\0").as_bytes());
                let mask = event::SELF_DELETED as usize;
                program.call(SystemCall::WatchFile, [queue, path, mask]).unwrap() as i32
            };
            let remove = |program: &mut Program, path: &str, flags: u32| {
                let path = program.store(std::format!("{path}\0").as_bytes());
                assert_eq!(program.call(SystemCall::Unlink, [HERE, path, flags as usize]), Ok(0));
            };
            let ended = |number| std::vec![(number, event::SELF_DELETED), (number, flag::IGNORED)];
            // A mapping.
            let file = program.create(b"/tmp/volume/mapped\0", open::RDWR);
            assert_eq!(program.write_to(file, &[1; 100]), Ok(100));
            let number = watch(program, "/tmp/volume/mapped");
            let (protection, shared) = (3, abi_unix::types::mapping::SHARED as usize);
            let mapped = program.call(SystemCall::Map, [0, 4096, protection, shared, file, 0]).unwrap();
            remove(program, "/tmp/volume/mapped", 0);
            program.close(file).unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(told(program), []);
            assert_eq!(program.call(SystemCall::Unmap, [mapped, 4096]), Ok(0));
            // Its page counts as changed until it was looked at once more.
            for _ in 0..2 {
                assert_eq!(program.call(SystemCall::Synchronise, []), Ok(0));
            }
            program.sleep_ns(1_000_000);
            assert_eq!(told(program), ended(number));
            // A working directory.
            let path = program.store(b"/tmp/volume/directory\0");
            assert_eq!(program.call(SystemCall::MakeDirectory, [HERE, path, 0o755]), Ok(0));
            let number = watch(program, "/tmp/volume/directory");
            assert_eq!(program.call(SystemCall::ChangeDirectory, [path]), Ok(0));
            remove(program, "/tmp/volume/directory", AT_REMOVEDIR);
            program.sleep_ns(1_000_000);
            assert_eq!(told(program), []);
            let top = program.store(b"/\0");
            assert_eq!(program.call(SystemCall::ChangeDirectory, [top]), Ok(0));
            program.sleep_ns(1_000_000);
            assert_eq!(told(program), ended(number));
            // A file without a name can be watched, too.
            let file = program.create(b"/tmp/volume/nameless\0", open::RDWR);
            remove(program, "/tmp/volume/nameless", 0);
            let number = watch(program, &std::format!("/proc/self/fd/{file}"));
            program.close(file).unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(told(program), ended(number));
            program.close(queue).unwrap();
            assert_eq!(unmount(program), Ok(0));
            assert!(WATCHED.lock().is_empty());
        });
    }

    /// Events that find no room leave one mark, and later ones come behind it.
    #[test]
    fn lost_events_leave_a_mark() {
        run(|program| {
            let file = program.create(b"/tmp/lost\0", open::RDWR);
            let other = program.create(b"/tmp/other\0", open::RDWR);
            let queue = program.call(SystemCall::EventFile, [open::NONBLOCK as usize]).unwrap();
            let (path, second) = (program.store(b"/tmp/lost\0"), program.store(b"/tmp/other\0"));
            assert_eq!(program.call(SystemCall::WatchFile, [queue, path, 2]), Ok(1));
            assert_eq!(program.call(SystemCall::WatchFile, [queue, second, 2]), Ok(2));
            let descriptors = program.process();
            let events = descriptors.descriptors.lock().get(queue).cloned().unwrap();
            let events = events.as_kind::<EventFile>().unwrap();
            for number in 0..MOST_EVENTS {
                events.0.push(1, 2, number as u32, &[]);
            }
            for _ in 0..2 {
                program.write_to(file, b"x").unwrap();
                program.write_to(other, b"x").unwrap();
            }
            let used = program.process().account.used(Resource::Memory);
            let mut count = 0;
            while count < MOST_EVENTS {
                let bytes = program.read_from(queue, 4096).unwrap();
                count += bytes.len() / HEAD;
                if count < MOST_EVENTS {
                    assert_eq!(told(&bytes)[0], (1, 2, count > 32, Vec::new()));
                } else {
                    assert_eq!(count, MOST_EVENTS, "a read gives whole numbers of them");
                }
            }
            program.write_to(file, b"x").unwrap();
            let bytes = program.read_from(queue, 4096).unwrap();
            assert_eq!(told(&bytes), [(-1, flag::LOST, false, Vec::new()), (1, 2, false, Vec::new())]);
            assert!(program.process().account.used(Resource::Memory) < used - MOST_EVENTS * MEMORY_OF_AN_EVENT / 2);
            for file in [file, other] {
                program.close(file).unwrap();
            }
            program.remove(b"/tmp/lost\0");
            program.remove(b"/tmp/other\0");
        });
    }

    /// Errors, readiness, a waiting reader, and names that are padded; the end of a process takes its watches with it.
    #[test]
    fn a_queue_is_a_file_that_is_waited_for() {
        run(|program| {
            assert_eq!(program.call(SystemCall::EventFile, [1]), Err(Errno::EINVAL));
            let queue = program.call(SystemCall::EventFile, [open::CLOEXEC as usize]).unwrap();
            assert_eq!(program.call(SystemCall::FileControl, [queue, 1, 0]), Ok(1));
            let (reader, _writer) = program.pipe(0);
            let (top, missing) = (program.store(b"/tmp\0"), program.store(b"/tmp/missing\0"));
            let generated = program.store(b"/proc/version\0");
            let watch = |program: &mut Program, queue: usize, path: usize, mask: u32| {
                program.call(SystemCall::WatchFile, [queue, path, mask as usize])
            };
            assert_eq!(watch(program, reader, top, 2), Err(Errno::EINVAL));
            assert_eq!(watch(program, 999, top, 2), Err(Errno::EBADF));
            assert_eq!(watch(program, queue, top, 1 << 12), Err(Errno::EINVAL));
            assert_eq!(watch(program, queue, missing, 2), Err(Errno::ENOENT));
            assert_eq!(watch(program, queue, generated, 2), Err(Errno::EOPNOTSUPP));
            assert_eq!(watch(program, queue, 0x1000, 2), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::EndWatch, [queue, 1]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::EndWatch, [reader, 1]), Err(Errno::EINVAL));
            assert_eq!(watch(program, queue, top, event::CREATED), Ok(1));
            let list = program.store(&[(queue as u32).to_le_bytes(), epoll::IN.to_le_bytes()].concat());
            let now = program.store(&[0; 16]);
            assert_eq!(program.call(SystemCall::Poll, [list, 1, now, 0, 0]), Ok(0));
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    let file = program.create(b"/tmp/sixteen-letters!\0", open::RDWR);
                    program.close(file).unwrap();
                    program.remove(b"/tmp/sixteen-letters!\0");
                })
                .unwrap();
            let bytes = program.read_from(queue, 1000).unwrap();
            assert_eq!(bytes.len(), 16 + 32);
            assert_eq!(told(&bytes), [(1, event::CREATED, false, b"sixteen-letters!".to_vec())]);
            let child = program.fork(|program| {
                let queue = program.call(SystemCall::EventFile, [0]).unwrap();
                let top = program.store(b"/tmp\0");
                assert_eq!(program.call(SystemCall::WatchFile, [queue, top, flag::ALL as usize]), Ok(1));
                let file = program.create(b"/tmp/more\0", open::RDWR);
                assert_eq!(program.read_from(queue, 16), Err(Errno::EINVAL), "there is no room for one");
                program.close(file).unwrap();
                program.remove(b"/tmp/more\0");
                let unread = program.place(4);
                assert_eq!(program.call(SystemCall::DeviceControl, [queue, 0x541b, unread]), Ok(0));
                assert_eq!(program.read_u32(unread) as usize, program.read_from(queue, 4096).unwrap().len());
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(WATCHED.lock().len(), 1);
            program.close(queue).unwrap();
            assert!(WATCHED.lock().is_empty());
        });
    }
}
