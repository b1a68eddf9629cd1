//! Several threads work on one tree at once. Afterwards, and in between where possible, it is checked to be a tree.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use filesystem::{
    Access, Creation, Error, FileKind, Filesystem, LastLink, Node, OpenOptions, RenameSoFar, Replacement, Timestamp,
    Writes,
};

const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
const THREADS: u64 = 4;

/// Runs a test that must not stand still: locks here spin, and a deadlock would otherwise last for ever.
fn within_minutes(test: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || {
        test();
        // The receiver is gone if it took too long.
        let _ = sender.send(());
    });
    match receiver.recv_timeout(Duration::from_secs(240)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the threads stand still"),
        _ => worker.join().unwrap(),
    }
}

/// Numbers that look random and are the same each time (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn path(&mut self) -> Vec<u8> {
        let mut path = Vec::new();
        for _ in 0..=self.below(4) {
            let part = match self.below(12) {
                0 => &b".."[..],
                1 => b"link",
                2..5 => b"a",
                5..8 => b"b",
                _ => b"c",
            };
            path.extend_from_slice(part);
            path.push(b'/');
        }
        path.pop();
        path
    }
}

/// One random operation. Its result depends on the other threads; it only has to return.
fn step(filesystem: &Filesystem, bases: &mut Vec<Node>, numbers: &mut Numbers) {
    let base = &bases[numbers.below(bases.len() as u64) as usize];
    let (one, other) = (numbers.path(), numbers.path());
    let result = match numbers.below(12) {
        0..3 => filesystem.make_directory(base, &one, 0o755, NOW).map(|_| ()),
        3 => filesystem.make_symbolic_link(base, &one, &other, NOW).map(|_| ()),
        4 => {
            let options =
                OpenOptions { access: Access::ReadWrite, creation: Creation::IfMissing, ..OpenOptions::default() };
            filesystem.open(base, &one, &options, NOW).and_then(|file| file.write(&[1; 5000], NOW)).map(|_| ())
        }
        5 => filesystem.link(base, &one, LastLink::Keep, base, &other, NOW),
        6 => filesystem.unlink(base, &one, NOW),
        7 => filesystem.remove_directory(base, &one, NOW),
        8..10 => {
            let replacement = match numbers.below(3) {
                0 => Replacement::Exchange,
                _ => Replacement::Replace,
            };
            let new_base = &bases[numbers.below(bases.len() as u64) as usize];
            let mut so_far = RenameSoFar::new(numbers.below(4) as usize);
            loop {
                let (old, new) = ((base, &one[..]), (new_base, &other[..]));
                match filesystem.rename_in_parts(&mut so_far, old, new, replacement, NOW) {
                    Err(Error::Unfinished) => {}
                    result => break result,
                }
            }
        }
        10 => filesystem
            .look_up(base, &one, LastLink::Follow)
            .and_then(|node| node.read_directory(0, |_| ControlFlow::Continue(())))
            .map(|_| ()),
        _ => filesystem.look_up(base, &one, LastLink::Follow).map(|node| {
            if node.kind() == FileKind::Directory {
                let _ = filesystem.path_of(&node);
                if bases.len() == 6 {
                    bases.swap_remove(1);
                }
                bases.push(node);
            }
        }),
    };
    assert!(!matches!(result, Err(Error::OutOfMemory | Error::NoSpace | Error::CrossFilesystem)));
}

/// Counts the files in a directory and below, and checks the invariants of every directory.
fn check(filesystem: &Filesystem, directory: &Node, parent: u64, names: &mut Vec<(u64, u32)>) {
    let inode = directory.metadata().inode;
    let mut entries = Vec::new();
    directory
        .read_directory(0, |entry| {
            entries.push((entry.name.to_vec(), entry.inode, entry.kind));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((&entries[0].0[..], entries[0].1), (&b"."[..], inode));
    assert_eq!((&entries[1].0[..], entries[1].1), (&b".."[..], parent));
    let mut subdirectories = 0;
    for (name, number, kind) in entries.drain(2..) {
        let node = filesystem.look_up(directory, &name, LastLink::Keep).unwrap();
        assert_eq!((node.metadata().inode, node.kind()), (number, kind));
        if kind == FileKind::Directory {
            subdirectories += 1;
            names.push((number, 1));
            check(filesystem, &node, inode, names);
        } else {
            names.push((number, node.metadata().links));
        }
    }
    assert_eq!(directory.metadata().links, 2 + subdirectories);
}

fn clear(filesystem: &Filesystem, directory: &Node) {
    let mut entries = Vec::new();
    directory
        .read_directory(2, |entry| {
            entries.push((entry.name.to_vec(), entry.kind));
            ControlFlow::Continue(())
        })
        .unwrap();
    for (name, kind) in entries {
        if kind == FileKind::Directory {
            let child = filesystem.look_up(directory, &name, LastLink::Keep).unwrap();
            clear(filesystem, &child);
            filesystem.remove_directory(directory, &name, NOW).unwrap();
        } else {
            filesystem.unlink(directory, &name, NOW).unwrap();
        }
    }
}

#[test]
fn tree_stays_a_tree() {
    within_minutes(|| {
        for round in 0..20 {
            let filesystem = Filesystem::new(1 << 40).unwrap();
            let root = filesystem.root();
            let empty = filesystem.usage();
            let together = &Barrier::new(THREADS as usize);
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (filesystem, root) = (&filesystem, &root);
                    scope.spawn(move || {
                        let mut numbers = Numbers(1 + thread * 7919 + round * 104_729);
                        let mut bases = vec![root.clone()];
                        together.wait();
                        for _ in 0..4000 {
                            step(filesystem, &mut bases, &mut numbers);
                        }
                    });
                }
            });
            let mut names = Vec::new();
            check(&filesystem, &root, root.metadata().inode, &mut names);
            // Each file has as many names as it reports, and no file without a name is left.
            names.sort();
            for (inode, links) in &names {
                let count = names.iter().filter(|name| name.0 == *inode).count();
                assert_eq!(count, *links as usize);
            }
            names.dedup();
            assert_eq!(filesystem.usage().inodes, names.len() as u64 + 1);
            clear(&filesystem, &root);
            assert_eq!(filesystem.usage(), empty);
        }
    });
}

#[test]
fn appended_records_are_whole() {
    within_minutes(|| {
        const RECORD: usize = 24;
        const COUNT: usize = 100_000;
        let filesystem = Filesystem::new(1 << 30).unwrap();
        let root = filesystem.root();
        let options = OpenOptions {
            access: Access::ReadWrite,
            creation: Creation::IfMissing,
            writes: Writes::AtEnd,
            ..OpenOptions::default()
        };
        let together = &Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let file = filesystem.open(&root, b"log", &options, NOW).unwrap();
                scope.spawn(move || {
                    let record = [thread as u8 + 1; RECORD];
                    together.wait();
                    for number in 0..COUNT {
                        // Both ways to append.
                        if number % 2 == 0 {
                            assert_eq!(file.write(&record, NOW), Ok(RECORD));
                        } else {
                            assert_eq!(file.node().append(&record, NOW).map(|written| written.1), Ok(RECORD));
                        }
                    }
                });
            }
        });
        let file = filesystem.open(&root, b"log", &options, NOW).unwrap();
        let mut counts = [0; THREADS as usize + 1];
        let mut record = [0; RECORD];
        while file.read(&mut record) == Ok(RECORD) {
            assert!(record.iter().all(|byte| *byte == record[0]));
            counts[usize::from(record[0])] += 1;
        }
        assert_eq!(counts[1..], [COUNT; THREADS as usize]);
    });
}

#[test]
fn shared_position_gives_each_byte_to_one_reader() {
    within_minutes(|| {
        const LENGTH: usize = 500_000;
        let filesystem = Filesystem::new(1 << 30).unwrap();
        let root = filesystem.root();
        let together = Barrier::new(THREADS as usize);
        let node = filesystem.make_file(&root, b"f", b"", 0o644, NOW).unwrap();
        node.write_at(0, &[1; LENGTH], NOW).unwrap();
        let file = filesystem.open(&root, b"f", &OpenOptions::default(), NOW).unwrap();
        let total: usize = thread::scope(|scope| {
            let readers: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut total = 0;
                        let mut buffer = [0; 7];
                        together.wait();
                        loop {
                            match file.read(&mut buffer).unwrap() {
                                0 => return total,
                                count => total += count,
                            }
                        }
                    })
                })
                .collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        assert_eq!(total, LENGTH);
    });
}

#[test]
fn replaced_file_is_always_there_and_whole() {
    within_minutes(|| {
        let filesystem = Filesystem::new(1 << 30).unwrap();
        let root = filesystem.root();
        let publish = |number: u8| {
            let new = filesystem.make_file(&root, b"new", b"", 0o644, NOW).unwrap();
            new.write_at(0, &[number; 6000], NOW).unwrap();
            filesystem.rename(&root, b"new", &root, b"f", Replacement::Replace, NOW).unwrap();
        };
        publish(0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 1..THREADS {
                scope.spawn(|| {
                    let mut buffer = [0; 7000];
                    while !is_over.load(Ordering::Relaxed) {
                        let file = filesystem.look_up(&root, b"f", LastLink::Follow).unwrap();
                        assert_eq!(file.read_at(0, &mut buffer), Ok(6000));
                        assert!(buffer[..6000].iter().all(|byte| *byte == buffer[0]));
                    }
                });
            }
            for number in 0..2000u32 {
                publish(number as u8);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(filesystem.usage().inodes, 2);
    });
}

/// Two threads try to move each of two directories into the other. If both succeeded, both would be gone from the tree.
#[test]
fn directories_do_not_swallow_each_other() {
    within_minutes(|| {
        let filesystem = Filesystem::new(1 << 30).unwrap();
        let root = filesystem.root();
        // In directories of their own: otherwise the lock of the one they share would be enough.
        for path in [&b"p"[..], b"p/a", b"q", b"q/b"] {
            filesystem.make_directory(&root, path, 0o755, NOW).unwrap();
        }
        let together = Barrier::new(2);
        thread::scope(|scope| {
            for (outside, inside) in [(&b"p/a"[..], &b"q/b/a"[..]), (b"q/b", b"p/a/b")] {
                let (filesystem, root, together) = (&filesystem, &root, &together);
                scope.spawn(move || {
                    together.wait();
                    let mut moves = 0;
                    for _ in 0..100_000 {
                        let there = filesystem.rename(root, outside, root, inside, Replacement::Replace, NOW);
                        if there.is_ok() {
                            moves += 1;
                            filesystem.rename(root, inside, root, outside, Replacement::Replace, NOW).unwrap();
                        }
                    }
                    assert!(moves > 0);
                });
            }
        });
        let mut names = Vec::new();
        check(&filesystem, &root, root.metadata().inode, &mut names);
        assert_eq!(names.len(), 4);
    });
}

/// A rename out of a directory locks it and its parent; so does its removal. Neither waits for the other for ever.
#[test]
fn renames_and_removals_agree_on_an_order() {
    within_minutes(|| {
        let filesystem = Filesystem::new(1 << 30).unwrap();
        let root = filesystem.root();
        filesystem.make_directory(&root, b"d", 0o755, NOW).unwrap();
        filesystem.make_file(&root, b"d/f", b"", 0o644, NOW).unwrap();
        filesystem.make_file(&root, b"d/stays", b"", 0o644, NOW).unwrap();
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                for _ in 0..100_000 {
                    filesystem.rename(&root, b"d/f", &root, b"f", Replacement::Replace, NOW).unwrap();
                    filesystem.rename(&root, b"f", &root, b"d/f", Replacement::Replace, NOW).unwrap();
                }
            });
            scope.spawn(|| {
                together.wait();
                for _ in 0..200_000 {
                    assert_eq!(filesystem.remove_directory(&root, b"d", NOW), Err(Error::DirectoryNotEmpty));
                }
            });
        });
    });
}
