//! The machine runs out of memory at every possible point: each operation fails with an error or works, and a failed
//! one changed nothing.

use std::ops::ControlFlow;

use filesystem::cpio::Writer;
use filesystem::{Access, Creation, Error, Filesystem, LastLink, OpenOptions, PopulateError, Replacement, Timestamp};
use property::{Limited, with_memory};

#[global_allocator]
static MEMORY: Limited = Limited;

const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

type Step = fn(&Filesystem) -> Result<(), Error>;

const STEPS: [Step; 9] = [
    |filesystem| filesystem.make_directory(&filesystem.root(), b"d", 0o755, NOW).map(drop),
    |filesystem| {
        let options =
            OpenOptions { access: Access::ReadWrite, creation: Creation::IfMissing, ..OpenOptions::default() };
        let file = filesystem.open(&filesystem.root(), b"d/f", &options, NOW)?;
        let before = filesystem.usage();
        match file.write(&[7; 20_000], NOW) {
            // A part of it may have been written.
            Ok(count) => {
                assert_eq!(file.node().metadata().size, count as u64);
                Ok(())
            }
            Err(error) => {
                assert_eq!(before, filesystem.usage());
                Err(error)
            }
        }
    },
    |filesystem| {
        let root = filesystem.root();
        filesystem.make_symbolic_link(&root, b"l", b"d/../d/./f", NOW).map(drop)
    },
    |filesystem| {
        let root = filesystem.root();
        filesystem.look_up(&root, b"l", LastLink::Follow).map(drop)
    },
    |filesystem| {
        let root = filesystem.root();
        filesystem.link(&root, b"d/f", LastLink::Keep, &root, b"g", NOW)
    },
    |filesystem| {
        let root = filesystem.root();
        filesystem.rename(&root, b"g", &root, b"d/g", Replacement::Replace, NOW)
    },
    |filesystem| {
        let root = filesystem.root();
        let directory = filesystem.look_up(&root, b"d", LastLink::Follow)?;
        filesystem.path_of(&directory).map(drop)
    },
    |filesystem| {
        for number in 0..100u8 {
            let name = [b'0' + number / 10, b'0' + number % 10];
            filesystem.make_file(&filesystem.root(), &name, b"data", 0o644, NOW)?;
        }
        Ok(())
    },
    |filesystem| filesystem.root().read_directory(0, |_| ControlFlow::Continue(())).map(drop),
];

#[test]
fn running_out_of_memory_is_an_error() {
    let mut writer = Writer::new(0);
    writer.directory(b"bin", 0o755).unwrap();
    for number in 0..100 {
        writer.file(format!("bin/{number}").as_bytes(), 0o755, b"data").unwrap();
    }
    let archive: &'static [u8] = writer.finish().leak();

    let mut failures = 0;
    // From nothing to enough memory for all, in steps small enough to stop at every allocation of more than a few
    // bytes.
    for bytes in (0..80_000).step_by(23) {
        let filesystem = Filesystem::new(1 << 30).unwrap();
        let empty = filesystem.usage();
        let mut results = [Ok(()); STEPS.len()];
        with_memory(bytes, || {
            for (result, step) in results.iter_mut().zip(STEPS) {
                *result = step(&filesystem);
            }
        });
        for result in results {
            match result {
                Ok(()) => {}
                // A file that an earlier step could not make.
                Err(Error::NotFound) => assert!(results.contains(&Err(Error::OutOfMemory))),
                Err(error) => {
                    assert_eq!(error, Error::OutOfMemory);
                    failures += 1;
                }
            }
        }
        clear(&filesystem, b"/");
        assert_eq!(filesystem.usage(), empty);

        let populated = with_memory(bytes, || filesystem.populate(archive));
        match populated {
            Ok(()) => assert_eq!(filesystem.usage().inodes, 102),
            Err(PopulateError::Entry { error, .. }) => assert_eq!(error, Error::OutOfMemory),
            Err(error) => panic!("{error}"),
        }
        clear(&filesystem, b"/");
        assert_eq!(filesystem.usage(), empty);
        if bytes > 75_000 {
            assert!(results.iter().all(Result::is_ok) && populated.is_ok());
        }
    }
    assert!(failures > 1000, "only {failures} steps failed");
}

/// Pages of large files are freed later, and at once if there is no memory for the record of them.
#[test]
fn pages_that_cannot_be_freed_later_are_freed_at_once() {
    const LENGTH: usize = 200 * 4096;
    let filesystem = Filesystem::new(1 << 30).unwrap();
    let options = OpenOptions { access: Access::ReadWrite, creation: Creation::IfMissing, ..OpenOptions::default() };
    for length in [0, 1] {
        let file = filesystem.open(&filesystem.root(), b"large", &options, NOW).unwrap();
        let before = filesystem.usage();
        assert_eq!(file.write(&vec![7; LENGTH], NOW), Ok(LENGTH));
        assert_eq!(filesystem.usage().used, before.used + LENGTH as u64);
        with_memory(0, || file.truncate(length, NOW)).unwrap();
        assert!(!filesystem.free_remains(), "something was left for later");
        assert_eq!(filesystem.usage().used, before.used + length * 4096);
        drop(file);
        filesystem.unlink(&filesystem.root(), b"large", NOW).unwrap();
    }
}

fn clear(filesystem: &Filesystem, path: &[u8]) {
    let root = filesystem.root();
    let directory = filesystem.look_up(&root, path, LastLink::Keep).unwrap();
    let mut names = Vec::new();
    directory
        .read_directory(2, |entry| {
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    for name in names {
        let path = [path, b"/", &name].concat();
        if filesystem.unlink(&root, &path, NOW) == Err(Error::IsADirectory) {
            clear(filesystem, &path);
            filesystem.remove_directory(&root, &path, NOW).unwrap();
        }
    }
}
