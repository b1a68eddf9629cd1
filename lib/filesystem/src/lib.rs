//! In-memory files: cpio archives and a tmpfs.
#![no_std]
