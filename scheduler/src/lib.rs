//! The priority coroutine scheduler: ready sets, states, many workers.
#![no_std]
