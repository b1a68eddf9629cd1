//! Memory shared by a process and a kernel: priority pages, completion ring.
#![no_std]
