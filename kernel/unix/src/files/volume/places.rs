//! The places of a volume's files in use: the directory in which each was found, and its name there.
//!
//! A file in use keeps the directory in which it was found in use, and so all directories up to the root. So `..`
//! leads up, and a path is made, without the volume's stack, at any time and as the names are then: the stack brings
//! places to their state after each rename and removal, as with [`names`](super::names). A file with several names has
//! the place of the last one that was looked up.
//!
//! Directories can be nested without end. So the end of the last use of a deep one does not end the uses of those above
//! it, each in the end of another: a directory whose last use goes with that of a file in it is *released*, and the
//! volume's coroutine ends its use. Released directories are a list through themselves, because the end of a use must
//! not need memory.
//!
//! The volume pays for some files in use. A process that uses more pays for each, as long as anything uses it.
//!
//! Rejected: paths from the names on the disk, one level after the other. Not every list that tells a path can wait,
//! and a file's inode does not lead to its directory.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi_unix::Errno;
use ext4::{Attributes, Entry, Replacement, kind};

use super::device::WaitsOnStack;
use super::{Desk, Inode, MountedVolume, ROOT, VolumeAnswer, VolumeNode};
use crate::process::accounts::Account;
use crate::process::user::LONGEST_PATH;

/// Entries that are looked at for the name of a directory, at a time.
const ENTRIES_AT_A_TIME: usize = 64;
/// Directories that are looked at, at a time.
const DIRECTORIES_AT_A_TIME: usize = 64;

/// The place of a file in use.
pub(super) struct Above {
    pub(super) directory: Arc<Inode>,
    name: Box<[u8]>,
}

impl Above {
    /// Returns the place of this name in a directory. `ENOMEM`.
    pub(super) fn new(directory: &VolumeNode, name: &[u8]) -> Result<Above, Errno> {
        let mut copy = Vec::new();
        copy.try_reserve_exact(name.len()).map_err(|_| Errno::ENOMEM)?;
        copy.extend_from_slice(name);
        Ok(Above { directory: directory.0.clone(), name: copy.into_boxed_slice() })
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    fn is(&self, directory: &VolumeNode, name: &[u8]) -> bool {
        Arc::ptr_eq(&self.directory, &directory.0) && *self.name == *name
    }
}

/// Directories whose last use has gone with that of a file in them.
#[derive(Default)]
pub(super) struct Released {
    first: Option<Arc<Inode>>,
    /// No coroutine ends their uses any more.
    is_closed: bool,
}

impl Inode {
    /// Sets its place, and lets the one before go.
    fn set_place(&self, place: Option<Above>) {
        let before = core::mem::replace(&mut *self.above.lock(), place);
        self.volume.moves.fetch_add(1, Ordering::Release);
        if let Some(before) = before {
            self.volume.release(before.directory);
        }
    }

    /// Gives it the place of this name. Without memory for that, it has none.
    pub(super) fn enter_place(&self, directory: &VolumeNode, name: &[u8]) {
        if !self.above.lock().as_ref().is_some_and(|above| above.is(directory, name)) {
            self.set_place(Above::new(directory, name).ok());
        }
    }

    /// Takes the place of this name from it, if it has that.
    pub(super) fn leave_place(&self, directory: &VolumeNode, name: &[u8]) {
        if self.above.lock().as_ref().is_some_and(|above| above.is(directory, name)) {
            self.set_place(None);
        }
    }

    /// Returns the directory in which it is.
    fn directory_above(&self) -> Option<Arc<Inode>> {
        self.above.lock().as_ref().map(|above| above.directory.clone())
    }
}

impl VolumeNode {
    /// Returns the directory above this one, if it is known.
    pub(crate) fn above(&self) -> Option<VolumeNode> {
        self.0.directory_above().filter(|_| !self.0.is_lost()).map(VolumeNode)
    }

    /// Whether its place is known, or it has none to be known.
    pub(super) fn is_placed(&self) -> bool {
        self.is_root() || self.0.above.lock().is_some()
    }
}

impl MountedVolume {
    /// Ends a use of a directory, soon.
    pub(super) fn release(&self, directory: Arc<Inode>) {
        // The list has a use of its own: a directory is there once.
        if Arc::strong_count(&directory) > 1 {
            return;
        }
        let mut released = self.released.lock();
        if !released.is_closed {
            *directory.next_released.lock() = released.first.take();
            released.first = Some(directory);
            drop(released);
            return self.wake();
        }
        drop(released);
        let mut next = Some(directory);
        while let Some(directory) = next {
            let last = Arc::into_inner(directory);
            next = last.and_then(|mut directory| directory.above.get_mut().take()).map(|above| above.directory);
        }
    }

    /// Whether there are released directories.
    pub(super) fn has_released(&self) -> bool {
        self.released.lock().first.is_some()
    }

    /// Ends the use of a released directory.
    pub(super) fn end_released(&self) {
        let first = {
            let mut released = self.released.lock();
            let first = released.first.take();
            released.first = first.as_ref().and_then(|first| first.next_released.lock().take());
            first
        };
        // Perhaps its last use.
        drop(first);
    }

    /// Has the uses of released directories end at once, because the coroutine goes.
    pub(super) fn close_released(&self) {
        self.released.lock().is_closed = true;
        while self.has_released() {
            self.end_released();
        }
    }
}

impl<W: WaitsOnStack> Desk<'_, W> {
    /// Brings the places of files in use to their state after a rename of this one over that one.
    pub(super) fn enter_renamed(
        &mut self,
        [from, to]: &[(VolumeNode, Vec<u8>); 2],
        [moved, replaced]: [Option<Arc<Inode>>; 2],
        replacement: Replacement,
    ) {
        if let (Some(moved), Some(replaced)) = (&moved, &replaced)
            && Arc::ptr_eq(moved, replaced)
        {
            return;
        }
        if let Some(replaced) = &replaced {
            match replacement {
                Replacement::Exchange => self.move_to(replaced, &from.0, &from.1),
                // A directory keeps the one above it, to which `..` leads.
                _ if replaced.attributes.lock().is(kind::DIRECTORY) => {}
                _ => replaced.leave_place(&to.0, &to.1),
            }
        }
        if let Some(moved) = &moved {
            self.move_to(moved, &to.0, &to.1);
        }
    }

    /// Gives a directory, which was found by this name, its place if it has none. It has one name, whatever a damaged
    /// volume or a host says; a rename tells of another one.
    pub(super) fn place_found(&self, answer: &Result<VolumeAnswer, Errno>, at: Option<(&VolumeNode, &[u8])>) {
        if let (Ok(VolumeAnswer::File(found, _)), Some((directory, name))) = (answer, at)
            && found.is(kind::DIRECTORY)
            && !found.is_placed()
        {
            self.move_to(&found.0, directory, name);
        }
    }

    /// Gives a file a place, but not one below itself, as damaged directories might say. The coroutine alone gives
    /// directories other places, so that none is above itself.
    fn move_to(&self, inode: &Arc<Inode>, directory: &VolumeNode, name: &[u8]) {
        let mut above = Some(directory.0.clone()).filter(|_| inode.attributes.lock().is(kind::DIRECTORY));
        let mut looks = 0;
        while let Some(here) = above {
            if Arc::ptr_eq(&here, inode) {
                return inode.set_place(None);
            }
            above = here.directory_above();
            looks += 1;
            if looks % DIRECTORIES_AT_A_TIME == 0 {
                self.pause();
            }
        }
        inode.enter_place(directory, name);
    }

    /// Looks for the place of a file in use on the volume, which has gone back to what it was before.
    pub(super) fn restore_place(&mut self, inode: &Arc<Inode>) {
        let mut here = inode.clone();
        while here.number != ROOT && !self.is_in_its_place(&here) {
            here.set_place(None);
            let Some((above, name)) = self.find_above(&here) else { return };
            let Ok(above) = VolumeNode::of(self.shared, above, Account::first(), None) else { return };
            self.move_to(&here, &above, &name);
            here = above.0;
            self.pause();
        }
    }

    fn is_in_its_place(&mut self, inode: &Arc<Inode>) -> bool {
        // Without the lock from here on, because the look waits.
        let place = inode.above.lock().as_ref().map(|above| (above.directory.clone(), above.name.clone()));
        let Some((directory, name)) = place.filter(|(directory, _)| !directory.is_lost()) else { return false };
        let directory = directory.number;
        let found = self.volume.as_mut().and_then(|volume| volume.look_up(directory, &name).ok()?);
        found.is_some_and(|found| found.inode == inode.number)
    }

    /// Finds the directory above this one and its name there, on the volume.
    fn find_above(&mut self, directory: &Inode) -> Option<(Attributes, Vec<u8>)> {
        if !directory.attributes.lock().is(kind::DIRECTORY) {
            return None;
        }
        let above = self.volume.as_mut()?.look_up(directory.number, b"..").ok()??;
        let (mut place, mut exact) = (0, None);
        loop {
            let volume = self.volume.as_mut()?;
            let entries = match exact {
                Some(exact) => volume.list_from(above.inode, exact, ENTRIES_AT_A_TIME),
                None => volume.list(above.inode, place, ENTRIES_AT_A_TIME),
            };
            let entries = entries.ok()?;
            let (next, after) = entries.last().map(|last| (last.next, last.after))?;
            // A directory that is damaged could lead back.
            if next < place || exact == Some(after) {
                return None;
            }
            (place, exact) = (next, Some(after));
            let is_meant = |entry: &Entry| entry.inode == directory.number && entry.name != b"." && entry.name != b"..";
            if let Some(found) = entries.into_iter().find(is_meant) {
                return Some((above, found.name));
            }
            self.pause();
        }
    }
}

/// The path of a file on its volume, which is made in steps, because it can be two thousand directories deep.
pub(crate) struct PathOnVolume {
    file: VolumeNode,
    /// The inode at which the path begins.
    top: u32,
    /// The directory to go on with, and the number of moves when the path was begun.
    at: Option<(Arc<Inode>, u64)>,
    /// From its end.
    path: Vec<u8>,
    beginnings: usize,
}

impl PathOnVolume {
    /// Number of times that a path is begun anew because something was moved meanwhile. Then each of its names is that
    /// of the moment at which it was looked at.
    const MOST_BEGINNINGS: usize = 8;

    /// Begins the path of a file.
    pub(crate) fn new(file: &VolumeNode) -> PathOnVolume {
        PathOnVolume { file: file.clone(), top: ROOT, at: None, path: Vec::new(), beginnings: 0 }
    }

    /// Makes the path begin at this file, which is above the other one or that itself: `ENOENT` if it is not.
    pub(crate) fn beginning_at(mut self, root: &VolumeNode) -> PathOnVolume {
        self.top = root.number();
        self
    }

    /// Goes up by at most so many directories; returns the path when it is complete, with a slash before each name, and
    /// empty for the root. `ENOENT` if the file has no name there, `ENAMETOOLONG` if it is deeper than a path can say.
    pub(crate) fn extend(&mut self, directories: usize) -> Result<Option<Vec<u8>>, Errno> {
        let moves = self.file.volume().moves.load(Ordering::Acquire);
        let is_as_begun = self.at.as_ref().is_some_and(|(_, seen)| *seen == moves);
        if self.at.is_none() || !is_as_begun && self.beginnings <= PathOnVolume::MOST_BEGINNINGS {
            self.path.clear();
            if let Some((here, _)) = self.at.replace((self.file.0.clone(), moves)) {
                self.file.volume().release(here);
            }
            self.beginnings += 1;
        }
        for _ in 0..directories {
            let Some((here, seen)) = &mut self.at else { break };
            if here.number == self.top {
                let is_as_begun = self.file.volume().moves.load(Ordering::Acquire) == *seen;
                if !is_as_begun && self.beginnings <= PathOnVolume::MOST_BEGINNINGS {
                    return Ok(None);
                }
                let mut path = core::mem::take(&mut self.path);
                path.reverse();
                return Ok(Some(path));
            }
            if here.attributes.lock().links == 0 || here.is_lost() {
                return Err(Errno::ENOENT);
            }
            let next = {
                let above = here.above.lock();
                let above = above.as_ref().ok_or(Errno::ENOENT)?;
                if self.path.len() + above.name.len() >= LONGEST_PATH {
                    return Err(Errno::ENAMETOOLONG);
                }
                self.path.try_reserve(above.name.len() + 1).map_err(|_| Errno::ENOMEM)?;
                self.path.extend(above.name.iter().rev());
                self.path.push(b'/');
                above.directory.clone()
            };
            self.file.volume().release(core::mem::replace(here, next));
        }
        Ok(None)
    }
}

impl Drop for PathOnVolume {
    fn drop(&mut self) {
        if let Some((here, _)) = self.at.take() {
            self.file.volume().release(here);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use abi_unix::SystemCall;
    use abi_unix::types::mounting::removal;
    use abi_unix::types::{AT_FDCWD, AT_REMOVEDIR, open as how};

    use super::*;
    use crate::files::mounts::Node;
    use crate::files::volume::tests::{mount, open, text, unmount, with_volume};
    use crate::testing::Program;

    const HERE: usize = AT_FDCWD as usize;

    fn on_path(program: &mut Program, call: SystemCall, path: &str, last: usize) -> Result<usize, Errno> {
        let path = text(program, path);
        program.call(call, [HERE, path, last])
    }

    fn make_directory(program: &mut Program, path: &str) {
        assert_eq!(on_path(program, SystemCall::MakeDirectory, path, 0o755), Ok(0), "{path}");
    }

    fn change_directory(program: &mut Program, path: &str) {
        let at = text(program, path);
        assert_eq!(program.call(SystemCall::ChangeDirectory, [at]), Ok(0), "{path}");
    }

    fn rename(program: &mut Program, from: &str, to: &str) {
        let (from, to) = (text(program, from), text(program, to));
        assert_eq!(program.call(SystemCall::Rename, [HERE, from, HERE, to, 0]), Ok(0));
    }

    fn working_directory(program: &mut Program) -> Result<String, Errno> {
        let place = program.place(4096);
        let length = program.call(SystemCall::GetCurrentDirectory, [place, 4096])?;
        Ok(String::from_utf8(program.read(place, length - 1)).unwrap())
    }

    fn link(program: &mut Program, path: &str) -> String {
        let (path, place) = (text(program, path), program.place(4096));
        let length = program.call(SystemCall::ReadLink, [HERE, path, place, 4096]).unwrap();
        String::from_utf8(program.read(place, length)).unwrap()
    }

    fn mounts(program: &mut Program) -> String {
        let path = text(program, "/proc/mounts");
        let file = program.call(SystemCall::Open, [HERE, path, 0, 0]).unwrap();
        let bytes = program.read_from(file, 4096).unwrap();
        program.close(file).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Paths are those of the moment at which they are asked for, also below what is mounted.
    #[test]
    fn paths_follow_renames() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            for path in ["/tmp/volume/a", "/tmp/volume/a/b", "/tmp/volume/a/b/m", "/tmp/volume/c"] {
                make_directory(program, path);
            }
            let (kind, at) = (text(program, "tmpfs"), text(program, "/tmp/volume/a/b/m"));
            assert_eq!(program.call(SystemCall::Mount, [kind, at, kind, 0, 0]), Ok(0));
            make_directory(program, "/tmp/volume/a/b/m/inside");
            change_directory(program, "/tmp/volume/a/b/m/inside");
            let file = open(program, "a/b/file", how::CREAT).unwrap();
            let shown = format!("/proc/self/fd/{file}");
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp/volume/a/b/m/inside"));
            assert_eq!(link(program, &shown), "/tmp/volume/a/b/file");
            rename(program, "/tmp/volume/a", "/tmp/volume/c/z");
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp/volume/c/z/b/m/inside"));
            assert_eq!(link(program, "/proc/self/cwd"), "/tmp/volume/c/z/b/m/inside");
            assert_eq!(link(program, &shown), "/tmp/volume/c/z/b/file");
            assert!(mounts(program).contains(" /tmp/volume/c/z/b/m tmpfs "), "{}", mounts(program));
            rename(program, "/tmp/volume/c/z/b/file", "/tmp/volume/name");
            assert_eq!(link(program, &shown), "/tmp/volume/name");
            assert_eq!(on_path(program, SystemCall::Unlink, "/tmp/volume/name", 0), Ok(0));
            assert_eq!(link(program, &shown), "(deleted)");
            program.close(file).unwrap();
            change_directory(program, "/tmp/volume/c/z/b");
            assert_eq!(on_path(program, SystemCall::MakeDirectory, "gone", 0o755), Ok(0));
            change_directory(program, "gone");
            assert_eq!(on_path(program, SystemCall::Unlink, "../gone", AT_REMOVEDIR as usize), Ok(0));
            assert_eq!(working_directory(program), Err(Errno::ENOENT));
            change_directory(program, "..");
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp/volume/c/z/b"));
            change_directory(program, "/");
            let at = text(program, "/tmp/volume/c/z/b/m");
            assert_eq!(program.call(SystemCall::Unmount, [at, removal::DETACH as usize]), Ok(0));
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// A file with two names has the path of the one that was used, and of the other when that has gone.
    #[test]
    fn a_file_has_the_path_of_a_name_that_is_there() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let file = open(program, "one", how::CREAT).unwrap();
            let shown = format!("/proc/self/fd/{file}");
            let (one, two) = (text(program, "/tmp/volume/one"), text(program, "/tmp/volume/two"));
            assert_eq!(program.call(SystemCall::Link, [HERE, one, HERE, two, 0]), Ok(0));
            assert_eq!(link(program, &shown), "/tmp/volume/one");
            let other = open(program, "two", 0).unwrap();
            assert_eq!(link(program, &shown), "/tmp/volume/two");
            let again = open(program, "one", 0).unwrap();
            assert_eq!(on_path(program, SystemCall::Unlink, "/tmp/volume/one", 0), Ok(0));
            let last = open(program, "two", 0).unwrap();
            assert_eq!(link(program, &shown), "/tmp/volume/two");
            for file in [file, other, again, last] {
                program.close(file).unwrap();
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// A path comes to its end in steps, whatever is moved meanwhile.
    #[test]
    fn a_path_is_made_in_steps_among_moves() {
        with_volume(|program| {
            const DEPTH: usize = 20;
            assert_eq!(mount(program, 0), Ok(0));
            change_directory(program, "/tmp/volume");
            for _ in 0..DEPTH {
                make_directory(program, "d");
                change_directory(program, "d");
            }
            let place = program.process().directory.lock().clone();
            let Node::OnVolume(node) = &place.node else { panic!("a directory of a volume") };
            let mut making = PathOnVolume::new(node);
            let mut steps = 0;
            let path = loop {
                node.volume().moves.fetch_add(1, Ordering::Relaxed);
                steps += 1;
                match making.extend(1).unwrap() {
                    Some(path) => break path,
                    None => assert!(steps < 10 * DEPTH, "it comes to no end"),
                }
            };
            assert_eq!(path, b"/d".repeat(DEPTH));
            assert!(steps > DEPTH, "{steps} steps of one directory each");
            drop((making, place));
            change_directory(program, "/");
            for depth in (0..DEPTH).rev() {
                let path = format!("/tmp/volume{}", "/d".repeat(depth + 1));
                assert_eq!(on_path(program, SystemCall::Unlink, &path, AT_REMOVEDIR as usize), Ok(0));
            }
            assert_eq!(unmount(program), Ok(0));
        });
    }

    /// The path of a deep directory is made and let go in steps, and one that is too deep has none.
    #[test]
    fn deep_directories_have_paths() {
        with_volume(|program| {
            const DEPTH: usize = 500;
            assert_eq!(mount(program, 0), Ok(0));
            change_directory(program, "/tmp/volume");
            let long = "n".repeat(20);
            let name = |depth| if depth % 2 == 0 { "d" } else { &long };
            let mut path = String::from("/tmp/volume");
            for depth in 0..DEPTH {
                make_directory(program, name(depth));
                change_directory(program, name(depth));
                path = format!("{path}/{}", name(depth));
                let expected = if path.len() < 4096 { Ok(&path[..]) } else { Err(Errno::ENAMETOOLONG) };
                if depth % 50 == 0 || path.len() > 4080 && path.len() < 4110 {
                    assert_eq!(working_directory(program).as_deref(), expected.as_ref().map(|path| *path));
                }
            }
            assert_eq!(working_directory(program), Err(Errno::ENAMETOOLONG));
            // The link has no text, and leads there all the same.
            let (shown, place) = (text(program, "/proc/self/cwd"), program.place(4096));
            let read = program.call(SystemCall::ReadLink, [HERE, shown, place, 4096]);
            assert_eq!(read, Err(Errno::ENAMETOOLONG));
            change_directory(program, "/proc/self/cwd");
            assert_eq!(working_directory(program), Err(Errno::ENAMETOOLONG));
            for depth in (0..DEPTH).rev() {
                change_directory(program, "..");
                let flags = AT_REMOVEDIR as usize;
                assert_eq!(on_path(program, SystemCall::Unlink, name(depth), flags), Ok(0));
            }
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp/volume"));
            // The last use of a deep one goes at once.
            for depth in 0..DEPTH {
                make_directory(program, name(depth));
                change_directory(program, name(depth));
            }
            change_directory(program, "/");
            assert_eq!(unmount(program), Ok(0));
        });
    }
}
