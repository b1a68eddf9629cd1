//! The network device in this program: registers that were mapped for it, and memory of its own that the device can
//! reach.

use core::sync::atomic::Ordering;

use sel4::SharedMemory;

/// Memory that the device reaches, and its physical address.
pub struct Piece {
    pub memory: SharedMemory,
    pub physical: u64,
}

impl virtio::Memory for Piece {
    fn physical_address(&self) -> u64 {
        self.physical
    }

    fn length(&self) -> usize {
        self.memory.len()
    }

    fn load(&self, offset: usize) -> u32 {
        self.memory.half_words().get(offset / 4).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, offset: usize, value: u32) {
        if let Some(word) = self.memory.half_words().get(offset / 4) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        // All of it, or else as much as there is, and zeros.
        if !self.memory.read(offset, into) {
            into.fill(0);
            let inside = into.len().min(self.memory.len().saturating_sub(offset));
            let _ = self.memory.read(offset, &mut into[..inside]);
        }
    }

    fn write(&self, offset: usize, from: &[u8]) {
        let inside = from.len().min(self.memory.len().saturating_sub(offset));
        let _ = self.memory.write(offset, &from[..inside]);
    }

    fn abandon(&mut self) {
        // The program's own, as long as it runs.
    }
}
