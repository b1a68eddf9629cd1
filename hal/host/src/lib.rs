//! A pretend machine, so that kernels test on the host.
#![no_std]
