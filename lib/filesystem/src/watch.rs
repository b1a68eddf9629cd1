//! Files that are watched for changes (inotify(7)).
//!
//! A bit in the word that counts an inode's references says that somebody watches it, so that files that nobody watches
//! cost the look at one word. Everything that happens to a watched file, or to a file that has a name in a watched
//! directory, is told to the tree's observer. A file that is no directory is told under the name with which it was
//! made, or which a rename has given it last; one that has lost this name is told to no directory.
//!
//! The observer is called when the operation is done, with no lock of an inode held; a file's position may be locked.
//!
//! # The end of a file
//! A watch holds a [`Node`] and so keeps the file. When nothing else keeps it any more, [`event::SELF_DELETED`] is told
//! for it, upon which the observer's owner must drop that node, after [`Node::unwatch`].

use core::sync::atomic::{AtomicU32, Ordering};

use crate::node::{FileKind, Node};
use crate::table::{Inode, ROOT, Shared};
use crate::tree::Filesystem;

/// The kinds of events, with Linux's bits.
pub mod event {
    /// A file was read from.
    pub const ACCESSED: u32 = 0x1;
    /// A file was written to or cut off.
    pub const MODIFIED: u32 = 0x2;
    /// Attributes or the number of links have changed.
    pub const ATTRIBUTES: u32 = 0x4;
    /// A file that was open for writing was closed.
    pub const CLOSED_WRITTEN: u32 = 0x8;
    /// A file or directory that was not open for writing was closed.
    pub const CLOSED: u32 = 0x10;
    /// A file or directory was opened.
    pub const OPENED: u32 = 0x20;
    /// A name has gone from a directory by a rename.
    pub const MOVED_FROM: u32 = 0x40;
    /// A name has come into a directory by a rename.
    pub const MOVED_TO: u32 = 0x80;
    /// A name was made in a directory.
    pub const CREATED: u32 = 0x100;
    /// A name was removed from a directory.
    pub const DELETED: u32 = 0x200;
    /// The watched file itself is gone.
    pub const SELF_DELETED: u32 = 0x400;
    /// The watched file itself was renamed.
    pub const SELF_MOVED: u32 = 0x800;
}

/// Something that has happened to a watched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'name> {
    /// The identity of the watched file ([`Node::identity`]).
    pub watched: (usize, u32),
    /// The name in the watched directory that it has happened to; `None` for the watched file itself.
    pub name: Option<&'name [u8]>,
    /// One of [`event`].
    pub what: u32,
    /// Whether it has happened to a directory.
    pub is_directory: bool,
    /// A number that both events of one rename have, and 0 for other events.
    pub cookie: u32,
}

/// A function that is told everything that happens to watched files.
pub type Observer = fn(&Event<'_>);

impl Node {
    /// Has everything that happens to the file told to the observer of its tree.
    #[doc(alias = "inotify_add_watch")]
    pub fn watch(&self) {
        // Without another handle, whose release could be the end of which is told.
        let (shared, index) = self.parts();
        if shared.inode(index).set_watched(true) {
            shared.watched.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends what [`watch`](Self::watch) began.
    pub fn unwatch(&self) {
        let (shared, index) = self.parts();
        if shared.inode(index).set_watched(false) {
            shared.watched.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Filesystem {
    /// Sets the function that is told what happens to watched files of this tree, and of those that are made
    /// [`beside`](Filesystem::beside) it from then on.
    pub fn observed_by(&self, observer: Observer) {
        self.shared.observer.call_once(|| observer);
    }
}

/// Returns a new number for the two events of a rename.
pub fn next_cookie() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Shared {
    #[cold]
    #[inline(never)]
    fn tell(&self, watched: u32, name: Option<&[u8]>, what: u32, kind: FileKind, cookie: u32) {
        if let Some(observer) = self.observer.get() {
            let watched = (core::ptr::from_ref(self).addr(), watched);
            observer(&Event { watched, name, what, is_directory: kind == FileKind::Directory, cookie });
        }
    }

    /// Returns whether files of the tree are watched at all.
    #[inline(always)]
    pub(crate) fn are_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) != 0
    }

    /// Tells of a name in a directory.
    pub(crate) fn tell_of_name(&self, directory: u32, name: &[u8], what: u32, kind: FileKind, cookie: u32) {
        if self.are_watched() && self.inode(directory).is_watched() {
            self.tell(directory, Some(name), what, kind, cookie);
        }
    }

    /// Tells the watched file itself.
    pub(crate) fn tell_itself(&self, file: u32, what: u32, kind: FileKind) {
        if self.are_watched() && self.inode(file).is_watched() {
            self.tell(file, None, what, kind, 0);
        }
    }

    /// Tells of a file: the directory with its name, and the file itself.
    #[inline(always)]
    pub(crate) fn tell_of_file(&self, file: u32, kind: FileKind, what: u32) {
        if self.are_watched() {
            self.tell_of_watched(file, kind, what);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_of_watched(&self, file: u32, kind: FileKind, what: u32) {
        let inode = self.inode(file);
        if self.inode(inode.parent()).is_watched() && file != ROOT {
            self.tell_parent(file, inode, kind, what);
        }
        self.tell_itself(file, what, kind);
    }

    fn tell_parent(&self, file: u32, inode: &Inode, kind: FileKind, what: u32) {
        let mut name = [0; crate::MAX_NAME_LENGTH];
        let found = {
            // Without the rename lock: the parent may be another directory by now, or anything, and then the entry is
            // not this file's.
            let parent = inode.parent();
            let content = self.inode(parent).shared();
            let entry = content.directory().ok().and_then(|directory| directory.entry_at(inode.cursor()));
            entry.filter(|entry| entry.inode == file).map(|entry| {
                name[..entry.name().len()].copy_from_slice(entry.name());
                (parent, entry.name().len())
            })
        };
        if let Some((parent, length)) = found {
            self.tell_of_name(parent, &name[..length], what, kind, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;
    use std::sync::Mutex;
    use std::vec::Vec;

    use super::*;
    use crate::{Access, Creation, LastLink, OpenOptions, Timestamp};

    static TOLD: Mutex<Vec<(u32, u32, String)>> = Mutex::new(Vec::new());

    fn note(event: &Event<'_>) {
        let name = String::from_utf8(event.name.unwrap_or_default().to_vec()).unwrap();
        TOLD.lock().unwrap().push((event.watched.1, event.what, name));
    }

    /// Only watched files are told of, under their present names, and once that nothing else keeps them.
    #[test]
    fn watched_files_are_told_of_until_they_are_gone() {
        let told = || core::mem::take(&mut *TOLD.lock().unwrap());
        let name = |what: u32, name: &str| (0, what, String::from(name));
        let tree = Filesystem::new(1 << 20).unwrap();
        tree.observed_by(note);
        let (root, now) = (tree.root(), Timestamp::default());
        let options =
            OpenOptions { access: Access::ReadWrite, creation: Creation::IfMissing, ..OpenOptions::default() };
        drop(tree.open(&root, b"before", &options, now).unwrap());
        assert_eq!(told(), []);
        root.watch();
        root.watch();
        let file = tree.open(&root, b"file", &options, now).unwrap();
        let watched = tree.look_up(&root, b"file", LastLink::Keep).unwrap();
        let number = watched.identity().1;
        watched.watch();
        assert_eq!(told(), [name(event::CREATED, "file"), name(event::OPENED, "file")]);
        file.write(b"text", now).unwrap();
        assert_eq!(told(), [name(event::MODIFIED, "file"), (number, event::MODIFIED, String::new())]);
        tree.rename(&root, b"file", &root, b"other", crate::Replacement::Replace, now).unwrap();
        let moved = [name(event::MOVED_FROM, "file"), name(event::MOVED_TO, "other")];
        assert_eq!(told(), [&moved[..], &[(number, event::SELF_MOVED, String::new())]].concat());
        tree.unlink(&root, b"other", now).unwrap();
        let changed = (number, event::ATTRIBUTES, String::new());
        assert_eq!(told(), [changed, name(event::DELETED, "other")]);
        file.read(&mut [0; 4]).unwrap();
        assert_eq!(told(), [], "it was at the end");
        drop(file);
        let closed = (number, event::CLOSED_WRITTEN, String::new());
        assert_eq!(told(), [closed, (number, event::SELF_DELETED, String::new())]);
        let inodes = tree.usage().inodes;
        watched.unwatch();
        drop(watched);
        assert_eq!((told(), tree.usage().inodes), (Vec::new(), inodes - 1));
        root.unwatch();
        drop(tree.open(&root, b"after", &options, now).unwrap());
        assert_eq!(told(), []);
    }
}
