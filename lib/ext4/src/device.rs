//! The device of a volume, and its face to `rsext4`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use rsext4::{BlockIo, DeviceCapabilities, DeviceGeometry, Ext4Error, Ext4Result, SectorId};

use crate::superblock;

/// Bytes of a sector, the unit of requests.
const SECTOR: u64 = 512;

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
}

/// Number of sectors of a journal that are replayed in memory.
const MOST_COVERED: usize = 16 * 1024;

/// A device as `rsext4` sees it.
pub(crate) struct Sectors<D> {
    device: D,
    /// Sectors that lie over those of the device, if nothing is to be written.
    covering: Option<BTreeMap<u64, Box<[u8; SECTOR as usize]>>>,
}

impl<D: Device> Sectors<D> {
    /// Makes the face of a device, whose changes stay in memory if it is `covered`.
    pub(crate) fn new(device: D, is_covered: bool) -> Sectors<D> {
        Sectors { device, covering: is_covered.then(BTreeMap::new) }
    }

    /// Returns the offset of a request, if all of it is on the device.
    fn offset(&self, sector: SectorId, count: u32, length: usize) -> Ext4Result<u64> {
        let bytes = u64::from(count) * SECTOR;
        let offset = sector.raw().checked_mul(SECTOR).ok_or_else(Ext4Error::overflow)?;
        let end = offset.checked_add(bytes).ok_or_else(Ext4Error::overflow)?;
        if bytes != length as u64 || end > self.device.bytes() {
            return Err(Ext4Error::corrupted().with_operation("device:range"));
        }
        Ok(offset)
    }
}

fn failed(DeviceFailed: DeviceFailed) -> Ext4Error {
    Ext4Error::io()
}

impl<D: Device> BlockIo for Sectors<D> {
    fn write(&mut self, buffer: &[u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        let offset = self.offset(sector, count, buffer.len())?;
        let Some(covering) = &mut self.covering else {
            let written = match superblock::still_in_use(offset, buffer) {
                Some(other) => self.device.write(offset, &other),
                None => self.device.write(offset, buffer),
            };
            return written.map_err(failed);
        };
        for (at, bytes) in (sector.raw()..).zip(buffer.as_chunks().0) {
            if covering.len() >= MOST_COVERED {
                return Err(Ext4Error::no_memory());
            }
            covering.insert(at, Box::new(*bytes));
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        let offset = self.offset(sector, count, buffer.len())?;
        self.device.read(offset, buffer).map_err(failed)?;
        for (at, bytes) in self.covering.iter().flat_map(|covering| covering.range(sector.raw()..)) {
            // Only those of this request.
            let Some(piece) = buffer.chunks_exact_mut(SECTOR as usize).nth((at - sector.raw()) as usize) else { break };
            piece.copy_from_slice(&bytes[..]);
        }
        Ok(())
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry::new(SECTOR as u32, self.device.bytes() / SECTOR)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities { flush: true, ..DeviceCapabilities::default() }
    }

    fn flush(&mut self) -> Ext4Result<()> {
        if self.covering.is_some() { Ok(()) } else { self.device.flush().map_err(failed) }
    }
}
