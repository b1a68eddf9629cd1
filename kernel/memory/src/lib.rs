//! Physical frames, the kernel heap and Sv39 address spaces.
#![no_std]
