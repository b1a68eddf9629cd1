//! Files of volumes that are watched for changes (inotify(7)): everything that happens to one, or to a name in a
//! watched directory, is told to [`file_events`].
//!
//! A file that is no directory is told in the directory of its [place](super::places), under its name there; one that
//! has lost this name is told to no directory. While no file of a volume is watched, an operation looks at one word.
//! Changes by the host of a folder are not seen, nor are stores of programs to mapped pages.
//!
//! # The end of a file
//! A watch keeps its file in use. When a file without a name is closed, or loses the name, and nothing but its watches
//! and its changes uses it any more, [`event::SELF_DELETED`] is told for it, upon which its watches let it go.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use ext4::{Attributes, Replacement, kind};
use filesystem::{Event, FileKind, event};

use super::device::WaitsOnStack;
use super::{Desk, Inode, MountedVolume, VolumeNode};
use crate::files::file_events;

/// A directory, and a name in it.
type NameIn = (VolumeNode, Vec<u8>);

impl MountedVolume {
    /// Whether files of the volume are watched at all.
    // Relaxed: it only tells when nothing is to be looked for.
    fn are_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) != 0
    }
}

impl Inode {
    /// Tells those who watch the file, of itself or of a name in it.
    fn tell(&self, name: Option<&[u8]>, what: u32, is_directory: bool, cookie: u32) {
        if self.is_watched.load(Ordering::Relaxed) {
            let watched = (core::ptr::from_ref(self).addr(), 0);
            file_events::observe(&Event { watched, name, what, is_directory, cookie });
        }
    }

    /// Tells those who watch the file alone.
    fn tell_itself(&self, what: u32) {
        self.tell(None, what, self.kind == kind::DIRECTORY, 0);
    }

    /// Tells the end of a file without a name that only its watches, its changes and so many others use.
    pub(super) fn tell_end(self: &Arc<Inode>, others: usize) {
        if !self.is_watched.load(Ordering::Relaxed) || self.attributes.lock().links > 0 {
            return;
        }
        let changes = usize::from(self.volume.changed.lock().files.get(self.number.into()).is_some());
        // All watches of a file have one use of it.
        if Arc::strong_count(self) <= others + changes + 1 {
            self.tell_itself(event::SELF_DELETED);
        }
    }
}

impl VolumeNode {
    /// Has everything that happens to the file told.
    pub(crate) fn watch(&self) {
        if !self.0.is_watched.swap(true, Ordering::Relaxed) {
            self.volume().watched.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends what [`watch`](Self::watch) began.
    pub(crate) fn unwatch(&self) {
        if self.0.is_watched.swap(false, Ordering::Relaxed) {
            self.volume().watched.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Tells that this has happened to the file, to those who watch it or the directory with its name.
    #[inline]
    pub(super) fn tell(&self, what: u32) {
        if self.volume().are_watched() {
            self.tell_of_watched(what);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_of_watched(&self, what: u32) {
        let mut name = [0; filesystem::MAX_NAME_LENGTH];
        let place = {
            let above = self.0.above.lock();
            let above = above.as_ref().filter(|above| above.directory.is_watched.load(Ordering::Relaxed));
            above.filter(|_| self.0.attributes.lock().links > 0).map(|above| {
                name[..above.name().len()].copy_from_slice(above.name());
                (above.directory.clone(), above.name().len())
            })
        };
        let is_directory = self.is(kind::DIRECTORY);
        if let Some((directory, length)) = place {
            directory.tell(Some(&name[..length]), what, is_directory, 0);
            self.volume().release(directory);
        }
        self.0.tell_itself(what);
    }

    /// Tells those who watch the file alone.
    pub(super) fn tell_itself(&self, what: u32) {
        self.0.tell_itself(what);
    }

    /// Tells those who watch this directory of a name in it.
    pub(super) fn tell_of_name(&self, name: &[u8], what: u32, kind: FileKind) {
        self.0.tell(Some(name), what, kind == FileKind::Directory, 0);
    }

    /// Tells that an open file was closed, and perhaps with it the file's end.
    pub(super) fn tell_closed(&self, what: u32) {
        if self.volume().are_watched() {
            self.tell_of_watched(what);
            // That of the open file.
            self.0.tell_end(1);
        }
    }
}

impl<W: WaitsOnStack> Desk<'_, W> {
    /// Tells the end of a file that has just lost its last name, if nothing uses it any more.
    pub(super) fn tell_end(&self, nameless: Option<u32>) {
        if !self.shared.are_watched() {
            return;
        }
        if let Some(used) = nameless.and_then(|nameless| self.shared.used(nameless)) {
            used.tell_end(1);
        }
    }

    /// Tells of a rename of this file over that one.
    pub(super) fn tell_renamed(
        &self,
        [from, to]: &[NameIn; 2],
        found: [Option<Attributes>; 2],
        used: &[Option<Arc<Inode>>; 2],
        replacement: Replacement,
    ) {
        let ([Some(moved), replaced], true) = (found, self.shared.are_watched()) else { return };
        if replaced.is_some_and(|replaced| replaced.inode == moved.inode) {
            return;
        }
        let move_one = |from: &NameIn, to: &NameIn, moved: Attributes, used: Option<&Arc<Inode>>| {
            let (cookie, is_directory) = (filesystem::next_cookie(), moved.is(kind::DIRECTORY));
            from.0.0.tell(Some(&from.1), event::MOVED_FROM, is_directory, cookie);
            to.0.0.tell(Some(&to.1), event::MOVED_TO, is_directory, cookie);
            if let Some(used) = used {
                used.tell_itself(event::SELF_MOVED);
            }
        };
        move_one(from, to, moved, used[0].as_ref());
        match (replaced, replacement) {
            (Some(replaced), Replacement::Exchange) => move_one(to, from, replaced, used[1].as_ref()),
            _ => {
                if let Some(used) = &used[1] {
                    used.tell_itself(event::ATTRIBUTES);
                }
            }
        }
    }
}
