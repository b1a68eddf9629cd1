//! What a COPS program links: main coroutine, async calls, sockets, files.
#![no_std]
