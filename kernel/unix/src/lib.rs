//! The Unix-like kernel.
#![no_std]
