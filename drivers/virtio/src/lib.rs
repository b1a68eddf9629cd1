//! Virtio devices: network.
#![no_std]
