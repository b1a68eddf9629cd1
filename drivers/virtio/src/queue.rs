//! A split virtqueue of single descriptors (virtio 1.2 section 2.7).
//!
//! Descriptor number *i* always describes buffer number *i*, so there is no free list here and no chain: offering a
//! buffer writes its number into the available ring. A buffer may be a table of descriptors (section 2.7.5.3), as a
//! disk's requests are, which have parts. The layout is the one that legacy devices assume, which suits
//! modern ones as well:
//!
//! ```text
//! descriptors   16 bytes each: address, length, flags
//! available     flags, index, one number each, used_event
//! (next page)
//! used          flags, index, (number, length) each, avail_event
//! ```
//!
//! Fields of 16 bits are read and written as halves of 32-bit words. If the other half is the device's to read, it is
//! rewritten with its old value.

use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};

use drivers::Registers;

use crate::transport::{PAGE, QueueAddresses, Transport};
use crate::{Error, Memory};

const DEVICE_WRITES: u32 = 2;
const IS_TABLE: u32 = 4;
/// Flag of a descriptor in a table that the next one continues.
pub(crate) const HAS_NEXT: u32 = 1;

/// Writer of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToDevice,
    FromDevice,
    /// The buffer is a table of descriptors, each with a direction of its own.
    Table,
}

impl Direction {
    /// Returns the flags of a descriptor.
    pub(crate) fn flags(self) -> u32 {
        match self {
            Direction::ToDevice => 0,
            Direction::FromDevice => DEVICE_WRITES,
            Direction::Table => IS_TABLE,
        }
    }
}

/// A buffer that the device has finished with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) buffer: u16,
    /// Number of bytes that it has written there.
    pub(crate) length: u32,
}

/// Whether the device must be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Notify {
    Needed,
    NotNeeded,
}

pub(crate) struct Queue<M: Memory> {
    memory: M,
    size: u16,
    available: usize,
    used: usize,
    event_index: bool,
    /// Buffers of the device: the limit of each offered buffer, at least 1, or 0.
    offered: Vec<u32>,
    /// The most bytes that the device may write to each buffer.
    limits: Vec<u32>,
    /// Number of buffers offered since the beginning, and number of these that were published.
    offers: u16,
    published: u16,
    /// Number of buffers that were published when the device was notified last.
    notified: u16,
    /// Number of buffers used by the device since the beginning, as far as we have looked.
    taken: u16,
    armed: Armed,
}

/// Requested interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    None,
    /// One, when the device uses a buffer beyond this number.
    At(u16),
    /// One for each buffer.
    Always,
}

/// Returns the size of a queue in bytes.
pub(crate) fn bytes(size: u16) -> usize {
    let size = usize::from(size);
    used_offset(size) + 8 + 8 * size
}

/// Returns the size of a queue: as wanted or, if the device's largest is less, the largest power of two up to that.
pub(crate) fn fitting_size(wanted: u16, largest: u32) -> u16 {
    let size = wanted.min(largest.min(1 << 15) as u16);
    if size.is_power_of_two() { size } else { size.next_power_of_two() / 2 }
}

fn used_offset(size: usize) -> usize {
    (16 * size + 6 + 2 * size).next_multiple_of(PAGE)
}

impl<M: Memory> Queue<M> {
    /// Makes queue number `number` of a device, with `size` buffers (a power of two). `memory` has at least [`bytes`]
    /// zeros.
    pub(crate) fn new<R: Registers>(
        transport: &mut Transport<R>,
        number: u32,
        size: u16,
        memory: M,
        event_index: bool,
    ) -> Result<Self, Error> {
        if !size.is_power_of_two() || size < 2 || transport.largest_queue(number) < size.into() {
            return Err(Error::Unsupported);
        }
        let address = memory.physical_address();
        if memory.length() < bytes(size) || !address.is_multiple_of(PAGE as u64) {
            return Err(Error::OutOfMemory);
        }
        let available = 16 * usize::from(size);
        let used = used_offset(size.into());
        let mut offered = Vec::new();
        let mut limits = Vec::new();
        for list in [&mut offered, &mut limits] {
            list.try_reserve_exact(size.into()).map_err(|_| Error::OutOfMemory)?;
            list.resize(size.into(), 0);
        }
        transport.set_queue(
            number,
            size,
            QueueAddresses { descriptors: address, driver: address + available as u64, device: address + used as u64 },
        )?;
        Ok(Queue {
            memory,
            size,
            available,
            used,
            event_index,
            offered,
            limits,
            offers: 0,
            published: 0,
            notified: 0,
            taken: 0,
            // This is the meaning of zeroed memory.
            armed: if event_index { Armed::At(0) } else { Armed::Always },
        })
    }

    /// [Abandons](Memory::abandon) the queue's memory.
    pub(crate) fn abandon(&mut self) {
        self.memory.abandon();
    }

    /// Sets the address of a buffer. Only for a buffer that the device does not have.
    pub(crate) fn describe(&mut self, buffer: u16, address: u64, length: u32, direction: Direction) {
        let at = 16 * usize::from(buffer);
        self.memory.store(at, address as u32);
        self.memory.store(at + 4, (address >> 32) as u32);
        self.memory.store(at + 12, direction.flags());
        self.set_length(buffer, length);
    }

    /// Changes the length of a buffer that the device does not have, and may then write as a whole.
    pub(crate) fn set_length(&mut self, buffer: u16, length: u32) {
        self.set_length_and_limit(buffer, length, length);
    }

    /// Changes the length of a buffer that the device does not have, and the most bytes that it may write there.
    pub(crate) fn set_length_and_limit(&mut self, buffer: u16, length: u32, limit: u32) {
        if let Some(slot) = self.limits.get_mut(usize::from(buffer)) {
            *slot = limit;
            self.memory.store(16 * usize::from(buffer) + 8, length);
        }
    }

    /// Returns the most bytes that the device may write to a buffer.
    pub(crate) fn limit(&self, buffer: u16) -> u32 {
        self.limits.get(usize::from(buffer)).copied().unwrap_or(0)
    }

    /// Puts a buffer into the ring; the device sees it after [`publish`](Self::publish). Only for a buffer that was
    /// described and that the device does not have.
    pub(crate) fn offer(&mut self, buffer: u16) {
        let index = usize::from(buffer);
        let (Some(offered), Some(limit)) = (self.offered.get_mut(index), self.limits.get(index)) else {
            return;
        };
        *offered = (*limit).max(1);
        // Two numbers share a word.
        let slot = usize::from(self.offers & (self.size - 1));
        let at = self.available + 4 + 2 * (slot & !1);
        let word = self.memory.load(at);
        self.memory.store(
            at,
            if slot & 1 == 0 {
                word & 0xffff_0000 | u32::from(buffer)
            } else {
                word & 0xffff | u32::from(buffer) << 16
            },
        );
        self.offers = self.offers.wrapping_add(1);
    }

    /// Returns the number of buffers.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// Returns the number of offered buffers that were not published yet.
    pub(crate) fn unpublished(&self) -> u16 {
        self.offers.wrapping_sub(self.published)
    }

    /// Publishes the offered buffers, and returns whether the device must be notified.
    pub(crate) fn publish(&mut self) -> Notify {
        if self.offers == self.published {
            return Notify::NotNeeded;
        }
        // The contents of the buffers come before their publication.
        fence(Ordering::Release);
        let word = self.memory.load(self.available);
        self.memory.store(self.available, word & 0xffff | u32::from(self.offers) << 16);
        self.published = self.offers;
        // The publication comes before the check whether the device sleeps. Without this fence both sides could go to
        // sleep, each having missed the other's write.
        fence(Ordering::SeqCst);
        let needed = if self.event_index {
            // The device requests a notification when a certain buffer is published: was it among those since the last
            // notification? All modulo 2^16. It may be one of an earlier publication: QEMU before version 8.0 leaves
            // out the barriers of machines with one hart, so that the request is seen too late now and then. A device
            // that sleeps has no older request than the queue is long.
            let event = self.memory.load(self.used + 4 + 8 * usize::from(self.size)) as u16;
            let recent = self.published.wrapping_sub(self.notified).min(self.size);
            self.notified = self.published.wrapping_sub(recent);
            self.published.wrapping_sub(event).wrapping_sub(1) < recent
        } else {
            self.memory.load(self.used) & 1 == 0
        };
        if needed {
            self.notified = self.published;
            Notify::Needed
        } else {
            Notify::NotNeeded
        }
    }

    /// Takes the next buffer that the device has finished with.
    ///
    /// # Errors
    /// [`Error::Misbehaved`] if the device did not have the buffer, or wrote more than it may, or has used more
    /// buffers than were offered.
    pub(crate) fn take(&mut self) -> Result<Option<Used>, Error> {
        let index = (self.memory.load(self.used) >> 16) as u16;
        let ready = index.wrapping_sub(self.taken);
        if ready == 0 {
            return Ok(None);
        }
        if ready > self.size {
            return Err(Error::Misbehaved);
        }
        // The index comes before the entry and the buffer.
        fence(Ordering::Acquire);
        let at = self.used + 4 + 8 * usize::from(self.taken & (self.size - 1));
        let number = self.memory.load(at);
        let length = self.memory.load(at + 4);
        let offered = self.offered.get_mut(number as usize).ok_or(Error::Misbehaved)?;
        if *offered == 0 || length > *offered {
            return Err(Error::Misbehaved);
        }
        *offered = 0;
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(Used { buffer: number as u16, length }))
    }

    /// Requests an interrupt when the device finishes the next buffer. Returns whether it already has: then there will
    /// be none, and the caller must look again. Call this when [`take`](Self::take) has just found nothing.
    pub(crate) fn arm(&mut self) -> bool {
        match self.armed {
            // It was requested before, and no buffer was used since then: the request still stands.
            Armed::Always => return false,
            Armed::At(taken) if taken == self.taken => return false,
            Armed::At(_) | Armed::None => {}
        }
        if self.event_index {
            self.set_used_event(self.taken);
            self.armed = Armed::At(self.taken);
        } else {
            let word = self.memory.load(self.available);
            self.memory.store(self.available, word & 0xffff_0000);
            self.armed = Armed::Always;
        }
        // The request comes before the look, as in `publish`.
        fence(Ordering::SeqCst);
        (self.memory.load(self.used) >> 16) as u16 != self.taken
    }

    /// Requests no interrupts.
    pub(crate) fn disarm(&mut self) {
        self.armed = Armed::None;
        if self.event_index {
            // The event furthest away: the one just passed. It must be moved along before the device comes round to it,
            // which `taken` does on every call.
            self.set_used_event(self.taken.wrapping_sub(1));
        } else {
            let word = self.memory.load(self.available);
            self.memory.store(self.available, word | 1);
        }
    }

    fn set_used_event(&mut self, event: u16) {
        self.memory.store(self.available + 4 + 2 * usize::from(self.size), u32::from(event));
    }
}
