//! What a machine must provide to a kernel.
#![no_std]
