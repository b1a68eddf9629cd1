//! Loading programs, without the machine: the parts of an executable file, and the first stack.
//!
//! A program file may come from a careless or hostile author, and a loader that trusts it maps memory where it should
//! not. So the two halves of loading are kept apart. This crate does the half that needs no machine: it reads the file,
//! refuses everything that a loader would have to check, and returns plain data. The kernel does the other half: it
//! maps the list [`Image::segments`], without a check of its own, because an [`Image`] cannot exist unless
//!
//! * every segment lies inside [`USER_ADDRESSES`] and starts where the page offset of its file range says,
//! * segments ascend and no two of them touch the same page,
//! * no segment is both writable and executable,
//! * every file range lies inside the file, and
//! * the entry point lies in an executable segment.
//!
//! [`layout`] chooses the addresses, at random. [`stack`] lays out the arguments, the environment and the auxiliary
//! vector as Linux does on riscv64, for C libraries to read before `main`.
//!
//! A program is one file, linked at a fixed address or position-independent, or two: a dynamically linked program
//! names its dynamic linker, an image of its own that is loaded beside it and gets control first. Both relocate
//! themselves, so that the kernel applies no relocations. A [`script`] names the program that runs it. A program that
//! dies leaves a [`core_file`].
//!
//! The crate never panics on any input and allocates only in ways that can fail.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod core_file;
mod image;
pub mod layout;
pub mod script;
pub mod stack;

pub use image::{
    DEFAULT_BASE, FOR_COPS, HEAD_LENGTH, Image, ImageError, LONGEST_INTERPRETER, MAX_SEGMENTS, PAGE_SIZE, Placement,
    ProgramHeaders, Protection, Segment, StackRequest, ThreadStorage, USER_ADDRESSES,
};
