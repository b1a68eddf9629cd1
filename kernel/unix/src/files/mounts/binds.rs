//! Binds: mounts that show a directory, or another file, of a file system that is mounted already.
//!
//! A bind of a directory shows the directory alone, or all that is mounted below as well (`MS_REC`). Copies of these
//! mounts are made one after the other, in steps, and put into their places together or not at all. Only mounts that
//! are there before that are copied, so that a directory can be bound to a place below itself.
//!
//! Rejected: binds that are entries of a directory in two trees. A directory has one `..`, and a file system one set of
//! flags.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::Errno;
use filesystem::FileKind;

use super::{MOST, Mount, Node, Place, enter, exclusive, leave, next, require_root, root};
use crate::files::volume::MEMORY_OF_A_NODE;
use crate::process::accounts::{Account, Resource};

/// A bind that is being made.
pub(crate) struct Bind {
    source: Place,
    /// The path of the source in its mount, to find the mounts below it.
    path: Vec<u8>,
    at: Place,
    /// Place in the order of mounts up to which they were looked at.
    order: u64,
    /// Each mount that is copied, with its copy and the place of that; the first one is the source's.
    copies: Vec<(Arc<Mount>, Arc<Mount>, Place)>,
}

impl Bind {
    /// Begins a bind of a file to a place. `ENOTDIR` if one of the two is a directory and the other is not, `EBUSY` for
    /// the root of all paths.
    #[doc(alias = "do_loopback")]
    pub(crate) fn begin(source: Place, at: Place, account: &Arc<Account>) -> Result<Bind, Errno> {
        let is_directory = |place: &Place| place.node.kind() == FileKind::Directory;
        if is_directory(&source) != is_directory(&at) {
            return Err(Errno::ENOTDIR);
        }
        if at == root() {
            return Err(Errno::EBUSY);
        }
        let mut copies = Vec::new();
        copies.try_reserve_exact(MOST).map_err(|_| Errno::ENOMEM)?;
        let copy = copy(&source.mount, source.node.clone(), &at, account)?;
        copies.push((source.mount.clone(), copy, at.clone()));
        Ok(Bind { source, path: Vec::new(), at, order: 0, copies })
    }

    /// Copies the next mount that is below the source, if there is one; returns whether there may be more.
    pub(crate) fn copy_next(&mut self, account: &Arc<Account>) -> Result<bool, Errno> {
        if self.order == 0 {
            self.path = self.source.path_in_mount()?;
        }
        let Some((mount, order)) = next(self.order) else { return Ok(false) };
        self.order = order;
        let Some(covered) = mount.covers.lock().clone() else { return Ok(true) };
        let above = self.copies.iter().find(|(original, ..)| Arc::ptr_eq(original, &covered.mount));
        let Some((_, above, _)) = above else { return Ok(true) };
        let above = above.clone();
        if Arc::ptr_eq(&covered.mount, &self.source.mount) && !self.is_below(&covered)? {
            return Ok(true);
        }
        let at = Place { node: covered.node, mount: above };
        let copy = copy(&mount, mount.root.clone(), &at, account)?;
        self.copies.push((mount, copy, at));
        Ok(true)
    }

    /// Whether a place in the source's mount is the source, or below it.
    fn is_below(&self, place: &Place) -> Result<bool, Errno> {
        if self.path == b"/" {
            return Ok(true);
        }
        let path = place.path_in_mount()?;
        Ok(path.strip_prefix(&self.path[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/'))
    }

    /// Puts all copies into their places. `EINVAL` if the source or the place is in a mount that has been taken away.
    pub(crate) fn finish(self) -> Result<(), Errno> {
        // Dropped without a lock.
        let mut places = Vec::new();
        places.try_reserve_exact(self.copies.len()).map_err(|_| Errno::ENOMEM)?;
        let mut table = exclusive();
        if !self.source.mount.is_attached(&table) || !self.at.mount.is_attached(&table) {
            return Err(Errno::EINVAL);
        }
        let mut entered = Ok(());
        let mut count = 0;
        for (_, copy, at) in &self.copies {
            entered = enter(&mut table, copy.clone(), at.clone());
            if entered.is_err() {
                break;
            }
            count += 1;
        }
        // A directory whose mount was copied may have been removed meanwhile.
        if entered.is_err() {
            places.extend(self.copies[..count].iter().map(|(_, copy, _)| leave(&mut table, copy)));
        }
        drop(table);
        entered
    }
}

/// Makes a mount that shows the files of another one from a root on, with its flags.
fn copy(mount: &Arc<Mount>, root: Node, at: &Place, account: &Arc<Account>) -> Result<Arc<Mount>, Errno> {
    let on_volume = |node: &Node| if matches!(node, Node::OnVolume(_)) { MEMORY_OF_A_NODE } else { 0 };
    let memory = size_of::<Mount>() + 64 + on_volume(&root) + on_volume(&at.node);
    let charge = account.charge(Resource::Memory, memory)?;
    let copy = Mount::of(mount.files.clone(), root, Some(charge))?;
    copy.set_own_flags(mount.own_flags())?;
    Ok(copy)
}

/// Changes the flags of the mount whose root this is, and of no other mount of its file system. `EINVAL` if it is none;
/// `EBUSY` to make it read-only while a file is open for writing by it.
pub(crate) fn set_flags(at: &Place, flags: u32) -> Result<(), Errno> {
    require_root(at)?;
    let table = exclusive();
    if !at.mount.is_attached(&table) {
        return Err(Errno::EINVAL);
    }
    at.mount.set_own_flags(flags)
}
