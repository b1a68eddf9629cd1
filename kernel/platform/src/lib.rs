//! From the device tree to a running machine: harts, interrupts, console, time.
#![no_std]
