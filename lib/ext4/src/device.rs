//! The device of a volume.

/// The device has not done what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFailed;

/// A block device, or a part of one. Copies are the same device.
///
/// Written bytes may be lost with the power, each sector for itself and in any order, until a flush has returned.
pub trait Device: Clone {
    /// Returns the size in bytes.
    fn bytes(&self) -> u64;

    /// Whether it cannot be written.
    fn is_read_only(&self) -> bool;

    /// Reads whole sectors, which are on the device.
    ///
    /// # Errors
    /// [`DeviceFailed`].
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceFailed>;

    /// Writes whole sectors, which are on the device.
    ///
    /// # Errors
    /// [`DeviceFailed`].
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFailed>;

    /// Returns when everything that was written cannot be lost with the power any more.
    ///
    /// # Errors
    /// [`DeviceFailed`], also if a write before has failed unnoticed.
    fn flush(&self) -> Result<(), DeviceFailed>;

    /// Lets others go on, between the blocks of long work.
    fn pause(&self) {}
}
