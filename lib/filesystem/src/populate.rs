//! Making a tree of an archive.

use core::fmt;

use hashbrown::HashMap;

use crate::cpio::{self, ArchiveError, Entry, EntryKind};
use crate::error::Error;
use crate::node::{FileKind, Node, Timestamp};
use crate::tree::{Filesystem, SpecialFile};
use crate::walk::LastLink;

/// Permissions of directories that the archive uses but does not contain.
const DIRECTORY_PERMISSIONS: u16 = 0o755;

/// Reason why an archive did not become a tree. The entries before the failed one are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopulateError<'archive> {
    /// The archive cannot be read.
    Archive(ArchiveError),
    /// An entry cannot be made.
    Entry {
        /// Its path.
        path: &'archive [u8],
        /// Failure.
        error: Error,
    },
    /// An entry is neither a file nor a directory, a symbolic link or a character device.
    Unsupported {
        /// Its path.
        path: &'archive [u8],
    },
}

impl fmt::Display for PopulateError<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PopulateError::Archive(error) => error.fmt(formatter),
            PopulateError::Entry { path, error } => {
                write!(formatter, "{}: {error}", path.escape_ascii())
            }
            PopulateError::Unsupported { path } => write!(
                formatter,
                "{}: only files, directories, symbolic links and character devices are supported",
                path.escape_ascii()
            ),
        }
    }
}

impl core::error::Error for PopulateError<'_> {}

type Identity = (u32, u32, u32);

impl Filesystem {
    /// Makes the files of a cpio archive, below the root. Files refer to the archive until they are written to.
    ///
    /// Missing directories on the way are made. A file at an existing path is replaced, except that a directory stays
    /// and only takes the permissions. Entries with several links become one file with several names.
    ///
    /// # Errors
    /// [`PopulateError`]: the archive is damaged, or an entry cannot be made.
    #[doc(alias = "initramfs")]
    pub fn populate(&self, archive: &'static [u8]) -> Result<(), PopulateError<'static>> {
        let root = self.root();
        let mut linked = HashMap::new();
        for entry in cpio::entries(archive) {
            let entry = entry.map_err(PopulateError::Archive)?;
            if let EntryKind::Other(_) = entry.kind {
                return Err(PopulateError::Unsupported { path: entry.path });
            }
            self.add(&root, &entry, &mut linked).map_err(|error| PopulateError::Entry { path: entry.path, error })?;
        }
        Ok(())
    }

    fn add(&self, root: &Node, entry: &Entry<'static>, linked: &mut HashMap<Identity, Node>) -> Result<(), Error> {
        let now = Timestamp { seconds: i64::from(entry.modified), nanoseconds: 0 };
        self.make_parents(root, entry.path, now)?;
        let (path, permissions) = (entry.path, entry.permissions);
        match self.look_up(root, path, LastLink::Keep) {
            Ok(node) if node.kind() == FileKind::Directory => {
                if entry.kind != EntryKind::Directory {
                    return Err(Error::IsADirectory);
                }
                node.set_permissions(permissions, now);
                return Ok(());
            }
            Ok(_) => self.unlink(root, path, now)?,
            Err(Error::NotFound) => {}
            Err(error) => return Err(error),
        }
        match entry.kind {
            EntryKind::Regular if entry.links > 1 => {
                self.add_linked(root, entry, linked, now)?;
            }
            EntryKind::Regular => {
                self.make_file(root, path, entry.data, permissions, now)?;
            }
            EntryKind::Directory => {
                self.make_directory(root, path, permissions, now)?;
            }
            EntryKind::SymbolicLink => {
                self.make_symbolic_link(root, path, entry.data, now)?;
            }
            EntryKind::CharacterDevice(device) => {
                self.make_special_file(root, path, SpecialFile::CharacterDevice(device), permissions, now)?;
            }
            EntryKind::Other(_) => return Err(Error::InvalidArgument),
        }
        Ok(())
    }

    /// Adds one of several names of a file. The data is with one of them, usually the last.
    fn add_linked(
        &self,
        root: &Node,
        entry: &Entry<'static>,
        linked: &mut HashMap<Identity, Node>,
        now: Timestamp,
    ) -> Result<(), Error> {
        if let Some(node) = linked.get(&entry.identity) {
            self.link_node(node, root, entry.path, now)?;
            if !entry.data.is_empty() {
                node.set_backing(entry.data)?;
            }
            return Ok(());
        }
        linked.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        let node = self.make_file(root, entry.path, entry.data, entry.permissions, now)?;
        linked.insert(entry.identity, node);
        Ok(())
    }

    fn make_parents(&self, root: &Node, path: &[u8], now: Timestamp) -> Result<(), Error> {
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let parent = &path[..at];
            let is_last = path[at..].iter().all(|byte| *byte == b'/');
            if is_last || parent.iter().all(|byte| *byte == b'/') {
                continue;
            }
            match self.look_up(root, parent, LastLink::Follow) {
                Ok(_) => {}
                Err(Error::NotFound) => {
                    self.make_directory(root, parent, DIRECTORY_PERMISSIONS, now)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
