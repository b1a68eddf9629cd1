//! The value in which the openings of a FIFO meet.

use std::sync::Arc;

use filesystem::{Error, FileKind, Filesystem, LastLink, OpenOptions, SpecialFile, Timestamp};

const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

#[test]
fn only_a_fifo_has_a_meeting() {
    let filesystem = Filesystem::new(1 << 20).unwrap();
    let root = filesystem.root();
    let file = filesystem.make_file(&root, b"file", &[], 0o644, NOW).unwrap();
    for node in [&root, &file] {
        assert_eq!(node.meeting(|| panic!("it is made")).err(), Some(Error::InvalidArgument));
        node.end_meeting();
    }
    assert_eq!(
        filesystem.make_special_file(&root, b"file", SpecialFile::Fifo, 0o644, NOW).err(),
        Some(Error::AlreadyExists)
    );
    assert_eq!(
        filesystem.make_special_file(&root, b"fifo/", SpecialFile::Fifo, 0o644, NOW).err(),
        Some(Error::NotFound)
    );
    filesystem.set_read_only(true).unwrap();
    assert_eq!(
        filesystem.make_special_file(&root, b"fifo", SpecialFile::Fifo, 0o644, NOW).err(),
        Some(Error::ReadOnly)
    );
}

#[test]
fn openings_meet_in_one_value_as_long_as_there_is_one() {
    let filesystem = Filesystem::new(1 << 20).unwrap();
    let root = filesystem.root();
    let fifo = filesystem.make_special_file(&root, b"fifo", SpecialFile::Fifo, 0o7640, NOW).unwrap();
    assert_eq!((fifo.kind(), fifo.metadata().mode()), (FileKind::Fifo, 0o017_640));
    assert_eq!(fifo.meeting(|| Err(Error::OutOfMemory)).err(), Some(Error::OutOfMemory));
    let first = fifo.meeting(|| Ok(Arc::new(1u32))).unwrap();
    fifo.end_meeting();
    filesystem.link(&root, b"fifo", LastLink::Keep, &root, b"other", NOW).unwrap();
    let opened = filesystem.open(&root, b"other", &OpenOptions::default(), NOW).unwrap();
    filesystem.unlink(&root, b"fifo", NOW).unwrap();
    filesystem.unlink(&root, b"other", NOW).unwrap();
    let second = opened.node().meeting(|| panic!("there is one")).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    drop((first, second));
    let third = fifo.meeting(|| Ok(Arc::new(3u32))).unwrap();
    assert_eq!(third.downcast_ref(), Some(&3u32));
    // The end of an earlier one does not end it.
    fifo.end_meeting();
    assert!(Arc::ptr_eq(&third, &fifo.meeting(|| panic!("there is one")).unwrap()));
    let weak = Arc::downgrade(&third);
    drop(third);
    assert_eq!(weak.weak_count(), 0, "nothing is left");
    fifo.end_meeting();
}
