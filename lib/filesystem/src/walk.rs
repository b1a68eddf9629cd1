//! Path resolution: from a path to a place in the tree.
//!
//! A walk goes from directory to directory and stops *before* the last component, whose treatment depends on the
//! operation: opening follows a symbolic link there, removing does not, creating requires it to be missing.
//!
//! A symbolic link on the way is followed by putting its target in front of the rest of the path, and walking on. So a
//! link needs no recursion, which a kernel's stack would not bear, and a trailing slash after a link keeps its meaning.
//!
//! The walk holds no lock when it returns. An operation that changes a directory looks again under that directory's
//! lock.
//!
//! # Long paths
//!
//! A path may have two thousand components, and lead through forty links whose targets have as many. A file system that
//! is [walked in steps](crate::Filesystem::walk_in_steps_of) ends a walk when it has done the work of one; the caller
//! goes on from there ([`Departure::Later`]) when others have had their turn.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::error::Error;
use crate::memory;
use crate::node::{Base, FileKind, Node};
use crate::rights::{self, EXECUTE, Subject};
use crate::table::{Content, Held, ROOT};

/// The longest name of one component, in bytes.
pub const MAX_NAME_LENGTH: usize = 255;

/// The longest path and the longest target of a symbolic link, in bytes; the terminating zero makes it 4096.
pub const MAX_PATH_LENGTH: usize = 4095;

/// Maximum number of symbolic links that one lookup follows.
pub const MAX_SYMBOLIC_LINKS: usize = 40;

/// The longest path with the targets of the links that were put in front of its rest, in bytes.
pub const MAX_WAY_LENGTH: usize = 2 * MAX_PATH_LENGTH;

/// Bytes of a path that are as much work as a component.
const BYTES_OF_A_COMPONENT: usize = 64;

/// Treatment of a symbolic link as the last component of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastLink {
    /// Follow it.
    #[default]
    Follow,
    /// Stay at the link itself, unless a slash after it demands a directory.
    Keep,
}

/// Interest of an operation in the last component of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastComponent {
    /// The file, which must be there.
    File(LastLink),
    /// A file that may have to be made. It cannot be a directory, so that a slash after its name is an error.
    Made(LastLink),
    /// The name itself, as for removing it: a symbolic link is not followed.
    Name,
}

impl From<LastLink> for LastComponent {
    fn from(last: LastLink) -> LastComponent {
        LastComponent::File(last)
    }
}

/// Reason why a path goes on in another file system.
#[derive(Debug, PartialEq, Eq)]
pub enum Departure {
    /// This directory is covered: the rest begins in the root of the file system that covers it.
    Down(Node),
    /// The rest begins with `..`, in the root of this file system.
    Up,
    /// The rest is absolute.
    Root,
    /// The walk has done the work of a step: the rest, which is relative, begins in this directory.
    Later(Node),
}

/// The part of a path that this file system cannot follow.
#[derive(Debug, PartialEq, Eq)]
pub struct WayOn {
    /// Reason.
    pub departure: Departure,
    /// The rest of the path; empty at its end.
    pub rest: Vec<u8>,
    /// Number of symbolic links that were followed.
    pub links: usize,
}

/// Place for the way on, for the walks that are made to find it.
pub(crate) type Note<'note> = Option<&'note mut Option<WayOn>>;

/// Ends a walk that cannot go on in this file system.
#[cold]
fn depart(note: Note<'_>, departure: impl FnOnce() -> Departure, rest: &[u8], links: usize) -> Error {
    if let Some(note) = note {
        let mut copy = Vec::new();
        if let Err(error) = memory::reserve(&mut copy, rest.len()) {
            return error;
        }
        copy.extend_from_slice(rest);
        *note = Some(WayOn { departure: departure(), rest: copy, links });
    }
    Error::Crossing
}

/// The last component of a path.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Last {
    /// There is none: the path consists of slashes.
    Root,
    /// `.`
    Current,
    /// `..`
    Parent,
    /// A name: these bytes of the path.
    Name(Range<usize>),
}

impl Last {
    /// Returns the meaning of a component that is no name.
    #[inline]
    fn special(component: &[u8]) -> Option<Last> {
        match component {
            b"." => Some(Last::Current),
            b".." => Some(Last::Parent),
            _ => None,
        }
    }
}

/// Result of a walk.
pub(crate) struct Position<'shared, 'path> {
    /// The directory of the last component.
    pub(crate) directory: Held<'shared>,
    pub(crate) last: Last,
    /// Whether a slash follows the last component: only a directory will do.
    pub(crate) has_trailing_slash: bool,
    /// File that a [`Last::Name`] named when the walk passed.
    found: Option<Held<'shared>>,
    path: Path<'path>,
    links: usize,
    top: u32,
}

impl<'shared> Position<'shared, '_> {
    /// Returns the number of symbolic links that were followed.
    pub(crate) fn links(&self) -> usize {
        self.links
    }

    pub(crate) fn name(&self) -> Option<&[u8]> {
        match &self.last {
            Last::Name(range) => Some(&self.path.bytes()[range.clone()]),
            _ => None,
        }
    }

    pub(crate) fn is_found(&self) -> bool {
        self.found.is_some()
    }

    /// Lets go of the file that was found, for an operation that removes its name.
    pub(crate) fn without_found(self) -> Self {
        Position { found: None, ..self }
    }

    /// Returns the file at the whole path.
    pub(crate) fn target(self) -> Result<Held<'shared>, Error> {
        self.target_noting(None)
    }

    /// Does so, and notes where a path goes on that leads out of this file system.
    pub(crate) fn target_noting(self, note: Note<'_>) -> Result<Held<'shared>, Error> {
        let target = match self.last {
            Last::Root | Last::Current => self.directory,
            Last::Parent if self.directory.index == self.top => {
                return Err(depart(note, || Departure::Up, b"..", self.links));
            }
            Last::Parent => parent_within(&self.directory, self.top)?,
            Last::Name(_) => self.found.ok_or(Error::NotFound)?,
        };
        if self.has_trailing_slash && !target.is_directory() {
            return Err(Error::NotADirectory);
        }
        if target.is_covered && self.last != Last::Current {
            return Err(depart(note, || Departure::Down(Node::new(&target)), b"", self.links));
        }
        Ok(target)
    }
}

/// The caller's path, or one made by following links.
enum Path<'path> {
    Given(&'path [u8]),
    Made(Vec<u8>),
}

impl Path<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Path::Given(bytes) => bytes,
            Path::Made(bytes) => bytes,
        }
    }
}

/// The beginning of a walk, and the user for whom it is made.
pub(crate) struct Begin<'shared, 'subject> {
    directory: Held<'shared>,
    subject: Option<&'subject Subject>,
    /// The directory whose `..` leads out of the tree, as absolute paths do; [`NO_TOP`] if none does.
    top: u32,
}

/// Stands for the top of a tree that no path leaves.
const NO_TOP: u32 = u32::MAX;

impl<'a> Begin<'a, 'a> {
    pub(crate) fn new(base: Base<'a>) -> Begin<'a, 'a> {
        let (shared, _) = base.node.parts();
        let top = match base.part.root {
            Some(root) => root.parts().1,
            None if shared.is_below => ROOT,
            None => NO_TOP,
        };
        Begin { directory: base.node.held(), subject: base.subject, top }
    }
}

/// Fails if a directory must not be searched. A path of one dot names the directory at which it begins, and searches
/// none: paths that end at the root of a mount go on so.
#[inline]
fn permit_search(directory: &Held<'_>, path: &[u8], subject: Option<&Subject>) -> Result<(), Error> {
    match subject {
        Some(_) if path != b"." => rights::permit(subject, directory.inode().ownership(), EXECUTE),
        _ => Ok(()),
    }
}

/// Walks `path` from `base`.
pub(crate) fn walk<'shared, 'path>(
    base: Begin<'shared, '_>,
    path: &'path [u8],
    last: LastComponent,
) -> Result<Position<'shared, 'path>, Error> {
    walk_noting(base, path, last, None)
}

/// Walks so, and notes where a path goes on that leads out of this file system ([`Error::Crossing`]).
pub(crate) fn walk_noting<'shared, 'path>(
    base: Begin<'shared, '_>,
    path: &'path [u8],
    last: LastComponent,
    note: Note<'_>,
) -> Result<Position<'shared, 'path>, Error> {
    check(path)?;
    let Begin { directory: base, subject, top } = base;
    let shared = base.shared;
    let mut directory = base;
    let mut path = Path::Given(path);
    let mut at = 0;
    let mut links = 0;
    let most = shared.work_of_a_step.load(Ordering::Relaxed).max(1);
    let mut work = 0;
    if path.bytes()[0] == b'/' {
        if top != NO_TOP {
            return Err(depart(note, || Departure::Root, path.bytes(), links));
        }
        directory = Held::root(shared);
    } else if !directory.is_directory() {
        return Err(Error::NotADirectory);
    }

    loop {
        let Some(step) = Step::next(path.bytes(), at) else {
            let (last, has_trailing_slash) = (Last::Root, true);
            return Ok(Position { directory, last, has_trailing_slash, found: None, path, links, top });
        };
        if work >= most {
            // From the next component on: the slashes before it would make the rest absolute.
            let rest = &path.bytes()[step.name.start..];
            return Err(depart(note, || Departure::Later(Node::new(&directory)), rest, links));
        }
        work += 1 + (step.name.end - at) / BYTES_OF_A_COMPONENT;
        permit_search(&directory, path.bytes(), subject)?;
        let name = &path.bytes()[step.name.clone()];
        let special = Last::special(name);
        let found = match special {
            Some(_) => None,
            None if step.is_last && step.has_slash && matches!(last, LastComponent::Made(_)) => {
                return Err(Error::IsADirectory);
            }
            None => look_up(&directory, name)?,
        };

        if let Some(link) = &found
            && link.kind == FileKind::SymbolicLink
            && step.follows(last)
        {
            links += 1;
            if links > MAX_SYMBOLIC_LINKS {
                return Err(Error::TooManySymbolicLinks);
            }
            // The walk goes on with the target and the rest of the path, from the link's directory or from the root.
            let made = splice(link, &path.bytes()[step.name.end..])?;
            if made[0] == b'/' {
                if top != NO_TOP {
                    return Err(depart(note, || Departure::Root, &made, links));
                }
                directory = Held::root(shared);
            }
            work += made.len() / BYTES_OF_A_COMPONENT;
            path = Path::Made(made);
            at = 0;
            continue;
        }
        if step.is_last {
            return Ok(Position {
                directory,
                last: special.unwrap_or(Last::Name(step.name)),
                has_trailing_slash: step.has_slash,
                found,
                path,
                links,
                top,
            });
        }
        if special == Some(Last::Parent) && directory.index == top {
            return Err(depart(note, || Departure::Up, &path.bytes()[step.name.start..], links));
        }
        let stays = special == Some(Last::Current);
        directory = enter(directory, special, found, top)?;
        at = step.name.end;
        if directory.is_covered && !stays {
            return Err(depart(note, || Departure::Down(Node::new(&directory)), &path.bytes()[at..], links));
        }
    }
}

/// Checks a path without a look at files.
fn check(path: &[u8]) -> Result<(), Error> {
    if path.is_empty() {
        return Err(Error::NotFound);
    }
    // The length of a path that a program gives is its reader's to check.
    if path.len() > MAX_WAY_LENGTH {
        return Err(Error::NameTooLong);
    }
    // No link's target has a zero either.
    if path.contains(&0) {
        return Err(Error::InvalidArgument);
    }
    Ok(())
}

/// Returns the directory behind a component in the middle of a path: a special one, or a name at which a file was
/// `found`.
#[inline]
fn enter<'shared>(
    directory: Held<'shared>,
    special: Option<Last>,
    found: Option<Held<'shared>>,
    top: u32,
) -> Result<Held<'shared>, Error> {
    match (special, found) {
        (Some(Last::Parent), _) => parent_within(&directory, top),
        (Some(_), _) => Ok(directory),
        (None, None) => Err(Error::NotFound),
        (None, Some(next)) if next.is_directory() => Ok(next),
        (None, Some(_)) => Err(Error::NotADirectory),
    }
}

/// Returns the number of slashes with which a path begins.
pub fn leading_slashes(path: &[u8]) -> usize {
    const SLASHES: [u8; 16] = [b'/'; 16];
    // A path may have thousands of them.
    let whole = path.chunks_exact(SLASHES.len()).take_while(|chunk| **chunk == SLASHES).count() * SLASHES.len();
    whole + path[whole..].iter().take_while(|byte| **byte == b'/').count()
}

/// One component of a path.
struct Step {
    name: Range<usize>,
    has_slash: bool,
    is_last: bool,
}

impl Step {
    fn next(path: &[u8], at: usize) -> Option<Step> {
        let start = at + leading_slashes(&path[at..]);
        if start == path.len() {
            return None;
        }
        let length = path[start..].iter().position(|byte| *byte == b'/');
        let end = length.map_or(path.len(), |length| start + length);
        let is_last = end + leading_slashes(&path[end..]) == path.len();
        Some(Step { name: start..end, has_slash: end < path.len(), is_last })
    }

    fn follows(&self, last: LastComponent) -> bool {
        !self.is_last
            || match last {
                LastComponent::File(LastLink::Follow) | LastComponent::Made(LastLink::Follow) => true,
                LastComponent::File(LastLink::Keep) => self.has_slash,
                LastComponent::Made(LastLink::Keep) | LastComponent::Name => false,
            }
    }
}

/// Returns the file that `name` names in `directory`.
fn look_up<'shared>(directory: &Held<'shared>, name: &[u8]) -> Result<Option<Held<'shared>>, Error> {
    let content = directory.inode().shared();
    if content.directory()?.is_removed {
        return Ok(None);
    }
    if name.len() > MAX_NAME_LENGTH {
        return Err(Error::NameTooLong);
    }
    // The entry is a link, and stays one while the lock is held.
    Ok(content.directory()?.find(name).map(|entry| Held::take(directory.shared, entry.inode, entry.kind)))
}

/// Returns the parent of a directory that is not the top of its walk. `NotFound` above the root of a tree of which the
/// walk sees a part, out of which the directory was moved.
#[inline]
fn parent_within<'shared>(directory: &Held<'shared>, top: u32) -> Result<Held<'shared>, Error> {
    if directory.index == ROOT && top != NO_TOP { Err(Error::NotFound) } else { Ok(parent(directory)) }
}

/// Returns the parent (`..`): the root is its own parent.
pub(crate) fn parent<'shared>(directory: &Held<'shared>) -> Held<'shared> {
    let inode = directory.inode();
    // Under its lock a directory keeps its parent, and so the handle on it.
    let _content = inode.shared();
    Held::take(directory.shared, inode.parent(), FileKind::Directory)
}

/// Returns the link's target followed by the rest of the path.
fn splice(link: &Held<'_>, rest: &[u8]) -> Result<Vec<u8>, Error> {
    let content = link.inode().shared();
    let Content::SymbolicLink(target) = &*content else {
        return Err(Error::InvalidArgument);
    };
    let length = target.len() + rest.len();
    // A link whose target leads through itself makes the path longer each time: a loop, as on Linux, which looks at no
    // length here.
    if length > MAX_WAY_LENGTH {
        return Err(Error::TooManySymbolicLinks);
    }
    let mut path = Vec::new();
    memory::reserve(&mut path, length)?;
    path.extend_from_slice(target);
    path.extend_from_slice(rest);
    Ok(path)
}

/// Walks a path to its end.
pub(crate) fn resolve<'shared>(base: Begin<'shared, '_>, path: &[u8], last: LastLink) -> Result<Held<'shared>, Error> {
    resolve_noting(base, path, last, None)
}

/// Does so, and notes where a path goes on that leads out of this file system.
pub(crate) fn resolve_noting<'shared>(
    base: Begin<'shared, '_>,
    path: &[u8],
    last: LastLink,
    mut note: Note<'_>,
) -> Result<Held<'shared>, Error> {
    walk_noting(base, path, last.into(), note.as_deref_mut())?.target_noting(note)
}
