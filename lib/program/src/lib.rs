//! What a loader needs to start a program: the parts of an executable file, and the first stack.
//!
//! A program file comes from somebody who may be careless or hostile, and a loader that trusts it maps memory where it
//! should not. So the two halves of loading are kept apart. This crate does the half that needs no machine: it reads
//! the file, refuses everything a loader would have to worry about, and returns plain data. The kernel does the other
//! half: it maps what [`Image::segments`] lists, without a check of its own, because an [`Image`] cannot exist unless
//!
//! * every segment lies inside [`USER_ADDRESSES`] and starts where the page offset of its file range says,
//! * segments ascend and no two of them touch the same page,
//! * no segment is both writable and executable,
//! * every file range lies inside the file, and
//! * the entry point lies in an executable segment.
//!
//! [`layout`] says where everything goes, at random. [`stack`] lays out the arguments, the environment and the
//! auxiliary vector as Linux does on riscv64, which is what C libraries read before `main`.
//!
//! Dynamic linking is out of scope: a program is one file, linked at a fixed address or as a *static*
//! position-independent executable. The latter relocates itself when it starts, so that the loader applies no
//! relocations.
//!
//! The crate never panics on any input and allocates only in ways that can fail.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod image;
pub mod layout;
pub mod stack;

pub use image::{
    DEFAULT_BASE, HEAD_LENGTH, Image, ImageError, MAX_SEGMENTS, PAGE_SIZE, Placement, ProgramHeaders, Protection,
    Segment, StackRequest, ThreadStorage, USER_ADDRESSES,
};
