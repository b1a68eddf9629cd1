//! System calls of the Unix kernel, raw and typed.
#![no_std]
