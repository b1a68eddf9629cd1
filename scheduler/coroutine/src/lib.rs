//! The Rust face of the scheduler: spawn, join, wakers, cancellation.
#![no_std]
