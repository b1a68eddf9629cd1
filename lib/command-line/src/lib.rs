//! The language of the shell, without a system below it: the text of commands becomes a tree ([`parse`]), the words of
//! a command become its arguments ([`expansion`], [`arithmetic`]), and keys become a line ([`mod@line`]). The list of
//! file systems that the first shell mounts is read here, too ([`file_systems`]).
//!
//! The language is the part of the POSIX shell's that people use at a prompt and in short scripts. Everything else is
//! refused with an error that names the token, and never passed to a program as an argument.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arithmetic;
pub mod expansion;
pub mod file_systems;
pub mod line;
mod parser;
pub mod pattern;
pub mod syntax;

pub use parser::{DEEPEST, SyntaxError, is_name, parse};
