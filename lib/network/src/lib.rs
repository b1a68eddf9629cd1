//! TCP/IP with a constant-time connection table over smoltcp.
#![no_std]
