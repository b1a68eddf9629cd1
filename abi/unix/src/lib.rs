//! The Unix kernel's system-call table, errno values and structures.
#![no_std]
