//! Memory that a device can reach.

/// A piece of physically contiguous memory shared with a device. The device may change it at any time, so it
/// is accessed by copies and single words only, never by reference.
///
/// Accesses outside of the piece read as zero and write nothing.
pub trait Memory {
    /// Returns the physical address of the first byte. A multiple of 4,096.
    fn physical_address(&self) -> u64;

    /// Returns the size in bytes.
    fn length(&self) -> usize;

    /// Reads the aligned 32-bit word at a byte offset, in one access.
    fn load(&self, offset: usize) -> u32;

    /// Writes the aligned 32-bit word at a byte offset, in one access.
    fn store(&self, offset: usize, value: u32);

    /// Copies from the memory; each byte is read once.
    fn read(&self, offset: usize, into: &mut [u8]);

    /// Copies to the memory.
    fn write(&self, offset: usize, from: &[u8]);

    /// Keeps the memory from any later owner: dropping this does not give it back. A driver calls it for the memory of
    /// a device that could not be stopped and may write there at any time, and does not access the memory afterwards.
    fn abandon(&mut self);
}
