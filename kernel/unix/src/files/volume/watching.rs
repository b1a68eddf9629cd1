//! Files of volumes that are watched for changes (inotify(7)): everything that happens to one, or to a name in a
//! watched directory, is told to [`file_events`].
//!
//! A file that is no directory is told in the directory of its [place](super::places), under its name there; one that
//! has lost this name is told to no directory. While no file of a volume is watched, an operation looks at one word.
//! Changes by the host of a folder are not seen, nor are stores of programs to mapped pages.
//!
//! # The end of a file
//! A watch keeps its file in use as long as that has a name. Then the file ends with its other uses, and
//! [`event::SELF_DELETED`] is told, upon which its watches end.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use ext4::{Attributes, Replacement, kind};
use filesystem::{Event, event};

use super::device::WaitsOnStack;
use super::{Desk, Inode, MountedVolume, VolumeNode, VolumeRequest};
use crate::files::file_events;

/// A directory, and a name in it.
type NameIn = (VolumeNode, Vec<u8>);

impl MountedVolume {
    /// Whether files of the volume are watched at all.
    // Relaxed: it only tells when nothing is to be looked for.
    pub(super) fn are_watched(&self) -> bool {
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
    pub(super) fn tell_itself(&self, what: u32) {
        self.tell(None, what, self.kind == kind::DIRECTORY, 0);
    }

    /// Tells the end of the file, whose last use goes.
    pub(super) fn tell_end(&mut self) {
        if *self.is_watched.get_mut() {
            self.tell_itself(event::SELF_DELETED);
            self.volume.watched.fetch_sub(1, Ordering::Relaxed);
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
}

impl<W: WaitsOnStack> Desk<'_, W> {
    /// Tells that a name has come or gone. Those who are told find it as it is.
    pub(super) fn tell_of_name(
        &self,
        request: &VolumeRequest,
        (directory, name): (&VolumeNode, &[u8]),
        what: u32,
        is_directory: bool,
    ) {
        if self.shared.are_watched() {
            self.look_at_names(request);
            directory.0.tell(Some(name), what, is_directory, 0);
        }
    }

    /// Tells of a rename of this file over that one.
    pub(super) fn tell_renamed(
        &self,
        request: &VolumeRequest,
        [from, to]: &[NameIn; 2],
        found: [Option<Attributes>; 2],
        used: &[Option<Arc<Inode>>; 2],
        replacement: Replacement,
    ) {
        let [Some(moved), replaced] = found else { return };
        self.look_at_names(request);
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
