//! The device of a volume, and its face to `rsext4`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use rsext4::{BlockIo, DeviceCapabilities, DeviceGeometry, Ext4Error, Ext4Result, SectorId};

use spin::Mutex;

use crate::Clock;
use crate::superblock;
use crate::transactions::{BLOCK, NotWritten, Transactions};

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

    /// Treatment whole sectors, which are on the device.
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

/// Number of sectors of a journal that are replayed in memory.
const MOST_COVERED: usize = 16 * 1024;

/// The transactions of a volume, which one stack alone uses: nobody waits for the lock.
pub(crate) type SharedTransactions = Arc<Mutex<Transactions>>;

/// Treatment of what the library writes.
enum Treatment {
    /// It goes to the device.
    Through,
    /// It stays in memory: sectors that lie over those of the device.
    Covering(BTreeMap<u64, Box<[u8; SECTOR as usize]>>),
    /// It goes through the journal, of which the library does not know; with the clock of commits.
    Journaled(SharedTransactions, Clock),
}

/// A device as `rsext4` sees it.
pub(crate) struct Sectors<D> {
    device: D,
    writes: Treatment,
}

impl<D: Device> Sectors<D> {
    /// Makes the face of a device, whose changes stay in memory if it is `covered`.
    pub(crate) fn new(device: D, is_covered: bool) -> Sectors<D> {
        Sectors { device, writes: if is_covered { Treatment::Covering(BTreeMap::new()) } else { Treatment::Through } }
    }

    /// Makes the face of a device of a volume whose journal is empty, and is hidden from the library.
    pub(crate) fn journaled(device: D, transactions: SharedTransactions, clock: Clock) -> Sectors<D> {
        Sectors { device, writes: Treatment::Journaled(transactions, clock) }
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

fn not_written(failure: NotWritten) -> Ext4Error {
    match failure {
        NotWritten::Device => Ext4Error::io(),
        NotWritten::OutOfMemory => Ext4Error::no_memory(),
    }
}

impl<D: Device> BlockIo for Sectors<D> {
    fn write(&mut self, buffer: &[u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        let offset = self.offset(sector, count, buffer.len())?;
        match &mut self.writes {
            Treatment::Through => match superblock::still_in_use(offset, buffer) {
                Some(other) => self.device.write(offset, &other),
                None => self.device.write(offset, buffer),
            }
            .map_err(failed),
            Treatment::Covering(covering) => {
                for (at, bytes) in (sector.raw()..).zip(buffer.as_chunks().0) {
                    if covering.len() >= MOST_COVERED {
                        return Err(Ext4Error::no_memory());
                    }
                    covering.insert(at, Box::new(*bytes));
                }
                Ok(())
            }
            Treatment::Journaled(transactions, _) => {
                if !offset.is_multiple_of(BLOCK as u64) || !buffer.len().is_multiple_of(BLOCK) {
                    return Err(Ext4Error::corrupted().with_operation("device:part_of_a_block"));
                }
                let mut transactions = transactions.lock();
                match superblock::with_journal(offset, buffer) {
                    Some(other) => transactions.write(&self.device, offset, &other),
                    None => transactions.write(&self.device, offset, buffer),
                }
                .map_err(not_written)
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        let offset = self.offset(sector, count, buffer.len())?;
        let is_here = match &self.writes {
            Treatment::Journaled(transactions, _) => transactions.lock().covers(offset, buffer.len()),
            _ => false,
        };
        if !is_here {
            self.device.read(offset, buffer).map_err(failed)?;
        }
        match &self.writes {
            Treatment::Through => {}
            Treatment::Covering(covering) => {
                for (at, bytes) in covering.range(sector.raw()..) {
                    // Only those of this request.
                    let piece = buffer.chunks_exact_mut(SECTOR as usize).nth((at - sector.raw()) as usize);
                    let Some(piece) = piece else { break };
                    piece.copy_from_slice(&bytes[..]);
                }
            }
            Treatment::Journaled(transactions, _) => {
                transactions.lock().lay_over(offset, buffer);
                superblock::hide_journal(offset, buffer);
            }
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
        match &self.writes {
            Treatment::Through => self.device.flush(),
            Treatment::Covering(_) => Ok(()),
            Treatment::Journaled(transactions, clock) => transactions.lock().flush(&self.device, clock().seconds),
        }
        .map_err(failed)
    }
}
