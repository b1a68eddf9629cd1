//! RISC-V 64: all kernel assembly.
#![no_std]
