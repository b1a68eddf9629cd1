//! Trees that are mounted on each other: the points at which a walk leaves a tree, and the end of a whole tree.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use filesystem::{
    Access, Base, Contents, Departure, Error, Filesystem, LastComponent, LastLink, MAX_SYMBOLIC_LINKS, Maker, Node,
    OpenOptions, Owner, Part, PathSoFar, Replacement, Timestamp, WayOn,
};

const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

/// Counts the charged bytes.
#[derive(Default)]
struct Payer(AtomicU64);

impl Owner for Payer {
    fn charge(&self, bytes: u64) -> bool {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    fn refund(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn top() -> (Filesystem, Node) {
    let top = Filesystem::new(1 << 24).unwrap();
    let root = top.root();
    for path in ["/a", "/a/covered", "/a/covered/below"] {
        top.make_directory(&root, path.as_bytes(), 0o755, NOW).unwrap();
    }
    top.make_symbolic_link(&root, b"/link", b"a/covered", NOW).unwrap();
    let covered = top.look_up(&root, b"/a/covered", LastLink::Follow).unwrap();
    (top, covered)
}

fn way(tree: &Filesystem, base: &Node, path: &str, last: LastComponent) -> Option<WayOn> {
    tree.way_on(base, path.as_bytes(), last).unwrap()
}

#[test]
fn a_path_stops_at_a_covered_directory_and_names_the_rest() {
    let (top, covered) = top();
    let root = top.root();
    assert!(!covered.is_covered());
    covered.cover().unwrap();
    assert!(covered.is_covered());
    assert_eq!(covered.cover(), Ok(()), "by another mount");
    for (path, rest, links) in
        [("/a/covered/x/y", "/x/y", 0), ("a/covered", "", 0), ("/a/covered/", "", 0), ("/link/z", "/z", 1)]
    {
        assert_eq!(top.look_up(&root, path.as_bytes(), LastLink::Follow), Err(Error::Crossing), "{path}");
        let found = way(&top, &root, path, LastLink::Follow.into()).unwrap();
        assert_eq!(found, WayOn { departure: Departure::Down(covered.clone()), rest: rest.into(), links }, "{path}");
    }
    let made = LastComponent::Made(LastLink::Follow);
    for (path, rest, links) in [("/a/covered", "", 0), ("/link", "", 1), ("/link/new", "/new", 1)] {
        let found = way(&top, &root, path, made).unwrap();
        assert_eq!(found, WayOn { departure: Departure::Down(covered.clone()), rest: rest.into(), links }, "{path}");
    }
    for path in ["/new", "/a/new", "/a"] {
        assert_eq!(way(&top, &root, path, made), None, "{path}");
    }
    // The name itself is this tree's, and stays.
    assert_eq!(way(&top, &root, "/a/covered", LastComponent::Name), None);
    assert_eq!(top.remove_directory(&root, b"/a/covered/below", NOW), Err(Error::Crossing));
    assert_eq!(top.remove_directory(&root, b"/a/covered", NOW), Err(Error::Busy));
    let rename = |old: &[u8], new: &[u8], how| top.rename(&root, old, &root, new, how, NOW);
    assert_eq!(rename(b"/a/covered", b"/b", Replacement::Replace), Err(Error::Busy));
    assert_eq!(rename(b"/link", b"/a/covered", Replacement::Exchange), Err(Error::Busy));
    assert_eq!(rename(b"/a/covered", b"/a/covered", Replacement::Replace), Ok(()), "nothing happens");
    assert_eq!(rename(b"/link", b"/a/covered", Replacement::Refuse), Err(Error::AlreadyExists));
    assert_eq!(rename(b"/link", b"/a/covered", Replacement::Replace), Err(Error::IsADirectory));
    assert_eq!(top.make_directory(&root, b"/a/covered", 0o755, NOW).err(), Some(Error::AlreadyExists));
    assert_eq!(rename(b"/a", b"/b", Replacement::Replace), Ok(()), "a directory above it can be renamed");
    assert_eq!(top.look_up(&root, b"/b/covered", LastLink::Follow), Err(Error::Crossing));
    // A walk that begins in the covered directory, or stays there, does not leave it.
    assert!(top.look_up(&covered, b"below", LastLink::Follow).is_ok());
    assert!(top.look_up(&covered, b".", LastLink::Follow).is_ok());
    let below = top.look_up(&covered, b"below", LastLink::Follow).unwrap();
    assert_eq!(top.look_up(&below, b"..", LastLink::Follow), Err(Error::Crossing));
    covered.uncover();
    assert!(top.look_up(&root, b"/b/covered/below", LastLink::Follow).is_ok());
    assert_eq!(way(&top, &root, "/b/covered/below", LastLink::Follow.into()), None);
}

/// A mount can show a part of a tree: paths leave it at its root, and nowhere else.
#[test]
fn a_part_of_a_tree_is_left_at_its_own_root() {
    let (top, covered) = top();
    let root = top.root();
    let below = top.look_up(&root, b"/a/covered/below", LastLink::Follow).unwrap();
    let part = Part { root: Some(&covered), is_read_only: false };
    let from = |node| Base::from(node).within(part);
    let name = LastComponent::Name;
    for (node, path, departure, rest) in [
        (&covered, "..", Departure::Up, ".."),
        (&below, "../../x", Departure::Up, "../x"),
        (&below, "/a", Departure::Root, "/a"),
    ] {
        assert_eq!(top.look_up(from(node), path.as_bytes(), LastLink::Follow), Err(Error::Crossing), "{path}");
        let way = top.way_on(from(node), path.as_bytes(), LastLink::Follow.into()).unwrap();
        assert_eq!(way, Some(WayOn { departure, rest: rest.into(), links: 0 }), "{path}");
    }
    assert_eq!(top.way_on(from(&covered), b"below/../new", name).unwrap(), None);
    assert_eq!(top.look_up(from(&below), b"..", LastLink::Follow), Ok(covered.clone()));
    let path = |file: &Node| top.extend_path(&mut PathSoFar::new(file).beginning_at(&covered), usize::MAX);
    assert_eq!(path(&below), Ok(Some(b"/below".to_vec())));
    assert_eq!(path(&covered), Ok(Some(b"/".to_vec())));
    assert_eq!(path(&root), Err(Error::NotFound));
    // A directory that was moved out of the part leads nowhere but down, and at last nowhere.
    top.rename(&root, b"/a/covered/below", &root, b"/moved", Replacement::Replace, NOW).unwrap();
    assert_eq!(top.look_up(from(&below), b"../..", LastLink::Follow), Err(Error::NotFound));
    assert_eq!(path(&below), Err(Error::NotFound));
}

/// A mount that is read-only changes nothing, and its errors come where those of a tree that is read-only come.
#[test]
fn a_part_that_is_read_only_changes_nothing() {
    let (top, _) = top();
    let root = top.root();
    top.make_file(&root, b"/file", b"", 0o644, NOW).unwrap();
    let base = Base::from(&root).within(Part { root: None, is_read_only: true });
    let read_only = Some(Error::ReadOnly);
    assert_eq!(top.make_directory(base, b"/new", 0o755, NOW).err(), read_only);
    assert_eq!(top.make_directory(base, b"/a", 0o755, NOW).err(), Some(Error::AlreadyExists));
    assert_eq!(top.unlink(base, b"/file", NOW).err(), read_only);
    assert_eq!(top.link(base, b"/file", LastLink::Keep, base, b"/new", NOW).err(), read_only);
    assert_eq!(top.rename(base, b"/file", base, b"/new", Replacement::Replace, NOW).err(), read_only);
    let open = |options: OpenOptions| top.open(base, b"/file", &options, NOW).err();
    assert_eq!(open(OpenOptions { access: Access::Write, ..OpenOptions::default() }), read_only);
    assert_eq!(open(OpenOptions { contents: Contents::Discard, ..OpenOptions::default() }), read_only);
    assert_eq!(open(OpenOptions::default()), None);
    assert!(top.open(&root, b"/file", &OpenOptions { access: Access::Write, ..OpenOptions::default() }, NOW).is_ok());
}

/// Files that are no directories can be covered, too, and keep all their names then.
#[test]
fn a_covered_file_is_left_and_keeps_its_names() {
    let (top, _) = top();
    let root = top.root();
    let file = top.make_file(&root, b"/file", b"", 0o644, NOW).unwrap();
    top.link(&root, b"/file", LastLink::Keep, &root, b"/other", NOW).unwrap();
    file.cover().unwrap();
    for path in ["/file", "/other"] {
        assert_eq!(top.look_up(&root, path.as_bytes(), LastLink::Follow), Err(Error::Crossing));
        let way = way(&top, &root, path, LastLink::Follow.into());
        assert_eq!(way, Some(WayOn { departure: Departure::Down(file.clone()), rest: Vec::new(), links: 0 }));
        assert_eq!(top.unlink(&root, path.as_bytes(), NOW), Err(Error::Busy));
        let replaced = top.rename(&root, b"/link", &root, path.as_bytes(), Replacement::Replace, NOW);
        assert_eq!(replaced, Err(Error::Busy));
    }
    for path in ["/file/", "/file/x"] {
        assert_eq!(top.look_up(&root, path.as_bytes(), LastLink::Follow), Err(Error::NotADirectory), "{path}");
    }
    assert_eq!(file.metadata().links, 2);
    file.uncover();
    for path in ["/file", "/other"] {
        top.unlink(&root, path.as_bytes(), NOW).unwrap();
    }
    assert!(file.is_last_reference());
    assert_eq!(file.cover(), Err(Error::NotFound));
}

#[test]
fn a_removed_directory_and_a_link_are_not_covered() {
    let (top, covered) = top();
    let root = top.root();
    top.remove_directory(&root, b"/a/covered/below", NOW).unwrap();
    top.remove_directory(&root, b"/a/covered", NOW).unwrap();
    assert_eq!(covered.cover(), Err(Error::NotFound));
    let link = top.look_up(&root, b"/link", LastLink::Keep).unwrap();
    assert_eq!(link.cover(), Err(Error::InvalidArgument));
}

#[test]
fn a_tree_below_another_is_left_at_its_root_and_by_absolute_paths() {
    let (top, _) = top();
    let below = top.beside(1 << 20, None).unwrap();
    let root = below.root();
    below.make_directory(&root, b"d", 0o755, NOW).unwrap();
    below.make_symbolic_link(&root, b"absolute", b"/etc/x", NOW).unwrap();
    below.make_symbolic_link(&root, b"up", b"d/../../y", NOW).unwrap();
    let (last, name) = (LastLink::Follow.into(), LastComponent::Name);
    for (path, last, departure, rest, links) in [
        ("..", last, Departure::Up, "..", 0),
        ("d/../../x", last, Departure::Up, "../x", 0),
        ("../x", name, Departure::Up, "../x", 0),
        ("up", last, Departure::Up, "../y", 1),
        ("absolute", last, Departure::Root, "/etc/x", 1),
        ("absolute/z", name, Departure::Root, "/etc/x/z", 1),
        ("/d", last, Departure::Root, "/d", 0),
        ("absolute", LastComponent::Made(LastLink::Follow), Departure::Root, "/etc/x", 1),
    ] {
        assert_eq!(way(&below, &root, path, last), Some(WayOn { departure, rest: rest.into(), links }), "{path}");
    }
    assert_eq!(way(&below, &root, "absolute", name), None);
    assert_eq!(way(&below, &root, "d/..", last), None);
    assert_eq!(below.way_on(&root, b"missing", last), Err(Error::NotFound));
    assert_eq!(below.way_on(&root, b"missing/x", name), Err(Error::NotFound));
    for last in [name, LastComponent::Made(LastLink::Follow)] {
        assert_eq!(way(&below, &root, "missing", last), None);
    }
    assert_eq!(below.look_up(&root, b"..", LastLink::Follow), Err(Error::Crossing));
    assert_eq!(top.look_up(&root, b"d", LastLink::Follow), Err(Error::CrossFilesystem));
}

/// A whole tree goes in pieces, and everything that was charged for it is given back.
#[test]
fn a_tree_that_is_given_up_is_freed_in_pieces() {
    let (top, _) = top();
    let payer = Arc::new(Payer::default());
    let owner: Arc<dyn Owner> = payer.clone();
    let below = top.beside(1 << 26, Some(&owner)).unwrap();
    assert!(payer.0.load(Ordering::Relaxed) > 10_000, "an empty tree takes memory");
    let root = below.root();
    let by = Maker { now: NOW, owner: Some(&owner) };
    for directory in 0..40 {
        let name = format!("d{directory}");
        below.make_directory(&root, name.as_bytes(), 0o755, by).unwrap();
        for number in 0..100 {
            let path = format!("d{directory}/f{number}");
            let options = OpenOptions {
                access: filesystem::Access::Write,
                creation: filesystem::Creation::Always,
                ..OpenOptions::default()
            };
            let file = below.open(&root, path.as_bytes(), &options, by).unwrap();
            let length = if number == 0 { 1 << 19 } else { 100 };
            file.write_with(Some(&owner), length, NOW, |piece| piece.len()).unwrap();
        }
    }
    for number in 0..30 {
        below.remove_directory(&root, b"d0", NOW).unwrap_err();
        below.unlink(&root, format!("d0/f{number}").as_bytes(), NOW).unwrap();
    }
    assert!(payer.0.load(Ordering::Relaxed) > 39 << 19);
    drop(root);
    below.give_up();
    assert!(top.has_remains());
    let mut pieces = 0;
    let mut before = payer.0.load(Ordering::Relaxed);
    while top.free_remains() {
        pieces += 1;
        let now = payer.0.load(Ordering::Relaxed);
        assert!(before - now < 300_000, "{before} {now}");
        before = now;
    }
    assert!(pieces > 1000, "{pieces}");
    assert_eq!(payer.0.load(Ordering::Relaxed), 0);
    assert!(!top.has_remains());
}

#[test]
fn trees_that_are_given_up_together_all_go() {
    let (top, _) = top();
    let payer = Arc::new(Payer::default());
    let owner: Arc<dyn Owner> = payer.clone();
    let trees: Vec<_> = (0..5).map(|_| top.beside(1 << 20, Some(&owner)).unwrap()).collect();
    for tree in trees {
        tree.make_directory(&tree.root(), b"d", 0o755, Maker { now: NOW, owner: Some(&owner) }).unwrap();
        tree.give_up();
    }
    while top.free_remains() {}
    assert_eq!(payer.0.load(Ordering::Relaxed), 0);
}

/// Every change of a tree that must not be changed is refused; a tree that is being changed is not locked.
#[test]
fn a_read_only_tree_refuses_every_change() {
    let (top, _) = top();
    let root = top.root();
    let write = OpenOptions { access: filesystem::Access::Write, ..OpenOptions::default() };
    let make = OpenOptions { creation: filesystem::Creation::IfMissing, ..OpenOptions::default() };
    let cut = OpenOptions { contents: filesystem::Contents::Discard, ..OpenOptions::default() };
    top.make_file(&root, b"/file", b"text", 0o644, NOW).unwrap();
    let file = top.open(&root, b"/file", &write, NOW).unwrap();
    assert_eq!(top.set_read_only(true), Err(Error::Busy));
    assert!(!top.is_read_only());
    drop(file);
    assert_eq!([top.set_read_only(true), top.set_read_only(true)], [Ok(()), Ok(())]);
    assert!(top.is_read_only());
    let open = |path: &[u8], options| top.open(&root, path, options, NOW).map(|_| ());
    assert_eq!([open(b"/file", &write), open(b"/file", &cut)], [Err(Error::ReadOnly); 2]);
    assert_eq!([open(b"/file", &make), open(b"/new", &make)], [Ok(()), Err(Error::ReadOnly)]);
    assert_eq!(open(b"/a", &write), Err(Error::IsADirectory));
    let make = |path: &[u8]| top.make_directory(&root, path, 0o755, NOW).map(|_| ());
    assert_eq!([make(b"/a"), make(b"/new")], [Err(Error::AlreadyExists), Err(Error::ReadOnly)]);
    assert_eq!(top.make_symbolic_link(&root, b"/new", b"x", NOW).err(), Some(Error::ReadOnly));
    assert_eq!(top.link(&root, b"/file", LastLink::Keep, &root, b"/new", NOW), Err(Error::ReadOnly));
    assert_eq!(top.unlink(&root, b"/file", NOW), Err(Error::ReadOnly));
    assert_eq!(top.remove_directory(&root, b"/a/covered/below", NOW), Err(Error::ReadOnly));
    assert_eq!(top.rename(&root, b"/file", &root, b"/b", Replacement::Replace, NOW), Err(Error::ReadOnly));
    assert_eq!([top.set_read_only(false), top.set_read_only(false)], [Ok(()), Ok(())]);
    assert_eq!(top.unlink(&root, b"/file", NOW), Ok(()));
}

#[test]
fn a_limit_can_be_changed_to_any_that_is_not_exceeded() {
    let (top, _) = top();
    let root = top.root();
    let used = top.usage().used;
    assert_eq!(top.set_limit(used - 1), Err(Error::InvalidArgument));
    assert_eq!(top.set_limit(used), Ok(()));
    assert_eq!(top.make_directory(&root, b"new", 0o755, NOW).err(), Some(Error::NoSpace));
    assert_eq!(top.set_limit(used + 10_000), Ok(()));
    assert!(top.make_directory(&root, b"new", 0o755, NOW).is_ok());
}

/// A tree that follows paths in steps leads to where one leads that follows them at once, and counts as many links.
#[test]
fn a_walk_in_steps_arrives_where_one_without_does() {
    let parts = ["a", "a", "b", "..", "..", "..", ".", "l", "l", "n", "r", ""];
    let trees = [usize::MAX, 1, 2, 3, 5].map(|components| {
        let tree = Filesystem::new(1 << 24).unwrap();
        let root = tree.root();
        for path in ["/a", "/a/b", "/a/b/a", "/b"] {
            tree.make_directory(&root, path.as_bytes(), 0o755, NOW).unwrap();
        }
        tree.make_file(&root, b"/a/x", b"", 0o644, NOW).unwrap();
        for (path, target) in [
            ("/l", "a//b/./../b"),
            ("/a/l", "../l/.."),
            ("/a/b/l", "/a/m"),
            ("/a/m", "l/x"),
            ("/n", "n/a"),
            ("/r", "//"),
        ] {
            tree.make_symbolic_link(&root, path.as_bytes(), target.as_bytes(), NOW).unwrap();
        }
        tree.walk_in_steps_of(components);
        tree
    });
    let arrive = |tree: &Filesystem, path: &[u8]| {
        let (mut base, mut path, mut links) = (tree.root(), path.to_vec(), 0);
        loop {
            match tree.look_up(&base, &path, LastLink::Follow) {
                Err(Error::Crossing) => {}
                found => {
                    let node = found?;
                    links += tree.links_on(&base, &path, LastLink::Follow.into())?;
                    let is_too_long = links > MAX_SYMBOLIC_LINKS;
                    return if is_too_long {
                        Err(Error::TooManySymbolicLinks)
                    } else {
                        Ok((tree.path_of(&node)?, links))
                    };
                }
            }
            let way = tree.way_on(&base, &path, LastLink::Follow.into()).unwrap().unwrap();
            let Departure::Later(directory) = way.departure else { panic!("{:?}", way.departure) };
            assert!(!way.rest.is_empty() && !way.rest.starts_with(b"/"), "{:?}", way.rest);
            (base, path, links) = (directory, way.rest, links + way.links);
            if links > MAX_SYMBOLIC_LINKS {
                return Err(Error::TooManySymbolicLinks);
            }
        }
    };
    let (mut found, mut seed) = (0, 1u64);
    for _ in 0..3000 {
        let mut path = String::new();
        for _ in 0..7 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            path += parts[(seed >> 33) as usize % parts.len()];
            path += "/";
        }
        let path = if seed >> 40 & 1 == 0 { &path[..] } else { path.trim_end_matches('/') };
        let whole = arrive(&trees[0], path.as_bytes());
        found += usize::from(whole.is_ok());
        for tree in &trees[1..] {
            assert_eq!(arrive(tree, path.as_bytes()), whole, "{path}");
        }
    }
    assert!(found > 100, "{found} of the paths lead somewhere");
}
