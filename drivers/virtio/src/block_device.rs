//! The block device (virtio 1.2 section 5.2): a disk.

use alloc::vec::Vec;

use drivers::Registers;

use crate::queue::{self, Direction, Notify, Queue, Used};
use crate::transport::{Interrupt, Kind, Release, Transport, feature};
use crate::{Error, Memory};

/// The unit of positions and lengths, whatever the size of the device's blocks.
pub const SECTOR: u64 = 512;

/// Most parts of a request's data.
pub const MOST_PARTS: usize = 59;

/// Most requests at once; each takes a kilobyte.
const REQUESTS: u16 = 128;
/// Fewest requests for which the device is driven.
const FEWEST_REQUESTS: u16 = 2;

/// The layout of a request's own memory: its table of descriptors, of which two are the header's and the status's, and
/// these two themselves.
mod layout {
    use super::MOST_PARTS;

    pub const STRIDE: usize = 1024;
    pub const HEADER: usize = 16 * (MOST_PARTS + 2);
    pub const HEADER_SIZE: u32 = 16;
    /// The sectors that a request without data is about.
    pub const RANGE: usize = HEADER + 16;
    pub const RANGE_SIZE: u32 = 16;
    pub const STATUS: usize = RANGE + 16;
    const _: () = assert!(STATUS + 4 <= STRIDE);
}

mod block_feature {
    /// The device tells the most parts of a request.
    pub const MOST_PARTS: u64 = 1 << 2;
    pub const READ_ONLY: u64 = 1 << 5;
    pub const BLOCK_SIZE: u64 = 1 << 6;
    /// The device may keep what was written in a cache of its own until it is flushed.
    pub const FLUSH: u64 = 1 << 9;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// Offsets in the device's configuration.
mod configuration {
    pub const CAPACITY: usize = 0;
    pub const MOST_PARTS: usize = 12;
    pub const BLOCK_SIZE: usize = 20;
    pub const MOST_DISCARDED: usize = 36;
    pub const MOST_ZEROED: usize = 48;
}

/// The device's word for what a request does.
mod request {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// The status of a request before the device has written it.
const NO_STATUS: u32 = 0xff;

/// Memory of a request's data, which belongs to the request until it has ended.
pub trait Data {
    /// Returns the physical address and the length of each part; at most [`MOST_PARTS`], and the same ones each time.
    fn parts(&self) -> impl Iterator<Item = (u64, u32)>;

    /// Keeps the memory from any later owner, as [`Memory::abandon`] does; it has no parts afterwards.
    fn abandon(&mut self);
}

/// A request to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads into the data from a sector on.
    Read(u64),
    /// Writes the data from a sector on.
    Write(u64),
    /// Makes lasting all that was written by requests that ended before.
    Flush,
    /// Tells that so many sectors from one on are not needed any more; what they hold then is not known.
    Discard(u64, u32),
    /// Fills so many sectors from one on with zeros.
    WriteZeroes(u64, u32),
}

/// The number of a request, until it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u16);

impl Ticket {
    /// Returns the number, below [`Disk::most_requests`].
    pub fn number(self) -> usize {
        self.0.into()
    }
}

/// Reason why a request was not begun, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// As many requests as there may be are under way; one that ends makes room.
    Full,
    /// It is not within the disk, is empty, or is not made of whole sectors; or it has more parts or sectors than a
    /// request may have.
    Invalid,
    /// The disk is read-only.
    ReadOnly,
    /// The device does not know requests of this kind.
    Unsupported,
    /// The device could not carry it out.
    Failed,
    /// The device has broken the rules, or was given up; it may have carried it out or not.
    Gone,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Ended<D> {
    /// Its number, which may now be another's.
    pub ticket: Ticket,
    /// Its data; what a device that could not be stopped may still write to is [abandoned](Data::abandon).
    pub data: D,
    /// Its outcome.
    pub outcome: Result<(), RequestError>,
}

/// A disk. Many requests may be under way, which the device carries out in any order; only a flush is after those that
/// had ended before.
///
/// Each request has one descriptor, which leads to a table of its own (virtio 1.2 section 2.7.5.3): the number of parts
/// takes nothing from other requests, and a request's number is its descriptor's. The data is never copied.
pub struct Disk<R: Registers, M: Memory, D: Data> {
    transport: Transport<R>,
    queue: Queue<M>,
    memory: M,
    /// The data of requests that are under way, by their number.
    pending: Vec<Option<D>>,
    free: Vec<u16>,
    features: u64,
    most_parts: usize,
    failure: Option<Error>,
    /// The number from which on to look for requests to give back after a failure.
    given_back: usize,
}

impl<R: Registers, M: Memory, D: Data> Disk<R, M, D> {
    /// Starts the device. `allocate` returns at least that many bytes of zeros; it is called a few times.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not a disk or an unusable one, [`Error::OutOfMemory`].
    pub fn new(mut transport: Transport<R>, allocate: impl FnMut(usize) -> Option<M>) -> Result<Self, Error> {
        if transport.kind() != Kind::Block {
            return Err(Error::Unsupported);
        }
        let (queue, memory, features, (pending, free)) = Self::start(&mut transport, allocate)?;
        let most_parts = match features & block_feature::MOST_PARTS {
            0 => MOST_PARTS,
            _ => transport.configuration_word(configuration::MOST_PARTS).clamp(1, MOST_PARTS as u32) as usize,
        };
        transport.finish();
        let mut disk =
            Disk { transport, queue, memory, pending, free, features, most_parts, failure: None, given_back: 0 };
        disk.queue.arm();
        Ok(disk)
    }

    #[expect(clippy::type_complexity, reason = "one caller, just above")]
    fn start(
        transport: &mut Transport<R>,
        mut allocate: impl FnMut(usize) -> Option<M>,
    ) -> Result<(Queue<M>, M, u64, (Vec<Option<D>>, Vec<u16>)), Error> {
        use block_feature::{BLOCK_SIZE, DISCARD, FLUSH, READ_ONLY, WRITE_ZEROES};
        let wanted = feature::EVENT_INDEX | block_feature::MOST_PARTS | READ_ONLY | BLOCK_SIZE;
        let wanted = wanted | FLUSH | DISCARD | WRITE_ZEROES;
        transport.start(wanted, feature::INDIRECT, |transport, features| {
            let size = queue::fitting_size(REQUESTS, transport.largest_queue(0));
            if size < FEWEST_REQUESTS {
                return Err(Error::Unsupported);
            }
            // Before the device knows the queue, whose memory must not go while it does.
            let (mut pending, mut free) = (Vec::new(), Vec::new());
            pending.try_reserve_exact(size.into()).map_err(|_| Error::OutOfMemory)?;
            free.try_reserve_exact(size.into()).map_err(|_| Error::OutOfMemory)?;
            let bytes = usize::from(size) * layout::STRIDE;
            let memory = allocate(bytes).filter(|memory| memory.length() >= bytes).ok_or(Error::OutOfMemory)?;
            let queue = allocate(queue::bytes(size)).ok_or(Error::OutOfMemory)?;
            let mut queue = Queue::new(transport, 0, size, queue, features & feature::EVENT_INDEX != 0)?;
            for number in (0..size).rev() {
                let table = memory.physical_address() + u64::from(number) * layout::STRIDE as u64;
                queue.describe(number, table, 0, Direction::Table);
                pending.push(None);
                free.push(number);
            }
            Ok((queue, memory, features, (pending, free)))
        })
    }

    /// Returns the size of the disk in sectors, as the device tells it now.
    pub fn sectors(&self) -> u64 {
        // Two words, between which the device may change it.
        let words = || (self.word(configuration::CAPACITY), self.word(configuration::CAPACITY + 4));
        let mut read = words();
        for _ in 0..8 {
            let again = words();
            if again == read {
                break;
            }
            read = again;
        }
        u64::from(read.0) | u64::from(read.1) << 32
    }

    /// Returns the size in bytes of the blocks that the device prefers; reads and writes of whole sectors are possible
    /// anyhow.
    pub fn block_size(&self) -> u32 {
        match self.features & block_feature::BLOCK_SIZE {
            0 => SECTOR as u32,
            _ => self.word(configuration::BLOCK_SIZE).max(SECTOR as u32),
        }
    }

    /// Returns whether the disk refuses to be written.
    pub fn is_read_only(&self) -> bool {
        self.features & block_feature::READ_ONLY != 0
    }

    /// Returns whether the device may lose what was written until a [`Request::Flush`] has ended. If it never does,
    /// such a request ends at once.
    pub fn has_cache(&self) -> bool {
        self.features & block_feature::FLUSH != 0
    }

    /// Returns the most sectors that one [`Request::Discard`] may be about; 0 if the device knows none.
    pub fn most_discarded(&self) -> u32 {
        match self.features & block_feature::DISCARD {
            0 => 0,
            _ => self.word(configuration::MOST_DISCARDED),
        }
    }

    /// Returns the most sectors that one [`Request::WriteZeroes`] may be about; 0 if the device knows none.
    pub fn most_zeroed(&self) -> u32 {
        match self.features & block_feature::WRITE_ZEROES {
            0 => 0,
            _ => self.word(configuration::MOST_ZEROED),
        }
    }

    /// Returns the most parts of a request's data, at least 1 and at most [`MOST_PARTS`].
    pub fn most_parts(&self) -> usize {
        self.most_parts
    }

    /// Returns the most requests at once.
    pub fn most_requests(&self) -> usize {
        self.pending.len()
    }

    /// Returns the reason why the device is no longer used, if it is not.
    pub fn failure(&self) -> Option<Error> {
        self.failure
    }

    /// Acknowledges the device's interrupt. Do this before taking requests that have ended; see
    /// [`Acknowledger`](crate::Acknowledger).
    pub fn acknowledge_interrupt(&self) -> Interrupt {
        self.transport.acknowledge()
    }

    /// Begins a request; the device sees it with the next [`notify`](Self::notify). The data is that of reads and
    /// writes; that of other requests has no parts.
    ///
    /// # Errors
    /// The reason, and the data back.
    pub fn submit(&mut self, request: Request, data: D) -> Result<Ticket, (RequestError, D)> {
        let (kind, sector) = match self.check(request, &data) {
            Ok(checked) => checked,
            Err(error) => return Err((error, data)),
        };
        let Some(number) = self.free.pop() else { return Err((RequestError::Full, data)) };
        let own = usize::from(number) * layout::STRIDE;
        let address = self.memory.physical_address() + own as u64;
        let mut table = Table { memory: &self.memory, own, entries: 0, writable: 0 };
        self.memory.store(own + layout::HEADER, kind);
        self.memory.store(own + layout::HEADER + 4, 0);
        self.memory.store(own + layout::HEADER + 8, sector as u32);
        self.memory.store(own + layout::HEADER + 12, (sector >> 32) as u32);
        table.add(address + layout::HEADER as u64, layout::HEADER_SIZE, Direction::ToDevice);
        match request {
            Request::Discard(start, sectors) | Request::WriteZeroes(start, sectors) => {
                let words = [start as u32, (start >> 32) as u32, sectors, 0];
                for (place, word) in words.into_iter().enumerate() {
                    self.memory.store(own + layout::RANGE + 4 * place, word);
                }
                table.add(address + layout::RANGE as u64, layout::RANGE_SIZE, Direction::ToDevice);
            }
            Request::Read(_) | Request::Write(_) | Request::Flush => {
                let direction =
                    if matches!(request, Request::Read(_)) { Direction::FromDevice } else { Direction::ToDevice };
                for (address, length) in data.parts().take(self.most_parts) {
                    table.add(address, length, direction);
                }
            }
        }
        self.memory.store(own + layout::STATUS, NO_STATUS);
        table.add(address + layout::STATUS as u64, 1, Direction::FromDevice);
        let (bytes, writable) = table.end();
        self.queue.set_length_and_limit(number, bytes, writable);
        self.queue.offer(number);
        self.pending[usize::from(number)] = Some(data);
        Ok(Ticket(number))
    }

    /// Checks a request; returns the device's word for it, and the sector for its header.
    fn check(&self, request: Request, data: &D) -> Result<(u32, u64), RequestError> {
        if self.failure.is_some() {
            return Err(RequestError::Gone);
        }
        let (mut parts, mut bytes) = (0, 0u64);
        for (_, length) in data.parts() {
            if length == 0 {
                return Err(RequestError::Invalid);
            }
            parts += 1;
            bytes += u64::from(length);
        }
        let is_transfer = matches!(request, Request::Read(_) | Request::Write(_));
        if is_transfer != (parts > 0) || parts > self.most_parts || !bytes.is_multiple_of(SECTOR) {
            return Err(RequestError::Invalid);
        }
        let (start, sectors, most) = match request {
            Request::Flush => return Ok((request::FLUSH, 0)),
            Request::Read(start) | Request::Write(start) => (start, bytes / SECTOR, u64::MAX),
            Request::Discard(start, sectors) => (start, sectors.into(), self.most_discarded().into()),
            Request::WriteZeroes(start, sectors) => (start, sectors.into(), self.most_zeroed().into()),
        };
        if self.is_read_only() && !matches!(request, Request::Read(_)) {
            return Err(RequestError::ReadOnly);
        }
        if most == 0 {
            return Err(RequestError::Unsupported);
        }
        let end = start.checked_add(sectors).filter(|end| *end <= self.sectors());
        if sectors == 0 || sectors > most || end.is_none() {
            return Err(RequestError::Invalid);
        }
        Ok(match request {
            Request::Read(_) => (request::READ, start),
            Request::Write(_) => (request::WRITE, start),
            Request::Flush => (request::FLUSH, 0),
            Request::Discard(..) => (request::DISCARD, 0),
            Request::WriteZeroes(..) => (request::WRITE_ZEROES, 0),
        })
    }

    /// Shows the device the requests that were begun, and notifies it if it sleeps.
    pub fn notify(&mut self) {
        if self.failure.is_none() && self.queue.publish() == Notify::Needed {
            self.transport.notify(0);
        }
    }

    /// Takes a request that has ended. If there is none, the device interrupts when the next one ends.
    pub fn take(&mut self) -> Option<Ended<D>> {
        loop {
            if self.failure.is_some() {
                return self.give_back();
            }
            match self.queue.take() {
                Ok(Some(used)) => match self.end(used) {
                    Ok(ended) => return Some(ended),
                    Err(error) => self.fail(error),
                },
                Ok(None) => {
                    if !self.queue.arm() {
                        return None;
                    }
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn end(&mut self, used: Used) -> Result<Ended<D>, Error> {
        const OK: u32 = 0;
        const FAILED: u32 = 1;
        const UNSUPPORTED: u32 = 2;
        let number = used.buffer;
        let status = self.memory.load(usize::from(number) * layout::STRIDE + layout::STATUS) & 0xff;
        let outcome = match status {
            OK if used.length == self.queue.limit(number) => Ok(()),
            // Of a read that was not written the data is what was there before.
            OK => Err(RequestError::Failed),
            FAILED => Err(RequestError::Failed),
            UNSUPPORTED => Err(RequestError::Unsupported),
            _ => return Err(Error::Misbehaved),
        };
        let data = self.pending.get_mut(usize::from(number)).and_then(Option::take).ok_or(Error::Misbehaved)?;
        // `free` has room for every number there is, and each is under way once.
        self.free.push(number);
        Ok(Ended { ticket: Ticket(number), data, outcome })
    }

    /// Gives a device up that does not answer: it is stopped, and [`take`](Self::take) returns all requests as
    /// [`RequestError::Gone`].
    pub fn give_up(&mut self) {
        self.fail(Error::Misbehaved);
    }

    fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            self.failure = Some(error);
            // From here on it does not touch the requests' data, or that gets no other owner.
            let release = self.transport.stop();
            self.release(release);
        }
    }

    fn release(&mut self, release: Release) {
        if release == Release::Never {
            self.queue.abandon();
            self.memory.abandon();
            self.pending.iter_mut().flatten().for_each(Data::abandon);
        }
    }

    fn give_back(&mut self) -> Option<Ended<D>> {
        while let Some(pending) = self.pending.get_mut(self.given_back) {
            let ticket = Ticket(self.given_back as u16);
            self.given_back += 1;
            if let Some(data) = pending.take() {
                return Some(Ended { ticket, data, outcome: Err(RequestError::Gone) });
            }
        }
        None
    }

    fn word(&self, offset: usize) -> u32 {
        self.transport.configuration_word(offset)
    }
}

impl<R: Registers, M: Memory, D: Data> Drop for Disk<R, M, D> {
    fn drop(&mut self) {
        let release = self.transport.end();
        self.release(release);
    }
}

/// The table of a request's descriptors while it is written.
struct Table<'a, M: Memory> {
    memory: &'a M,
    /// Offset of the request's own memory.
    own: usize,
    entries: u16,
    /// Number of bytes that the device may write.
    writable: u32,
}

impl<M: Memory> Table<'_, M> {
    fn add(&mut self, address: u64, length: u32, direction: Direction) {
        let at = self.own + 16 * usize::from(self.entries);
        self.memory.store(at, address as u32);
        self.memory.store(at + 4, (address >> 32) as u32);
        self.memory.store(at + 8, length);
        self.entries += 1;
        if direction == Direction::FromDevice {
            self.writable = self.writable.saturating_add(length);
        }
        self.memory.store(at + 12, direction.flags() | queue::HAS_NEXT | u32::from(self.entries) << 16);
    }

    /// Ends the table with the last descriptor added; returns its length, and the number of bytes that the device may
    /// write.
    fn end(self) -> (u32, u32) {
        let last = self.own + 16 * (usize::from(self.entries) - 1) + 12;
        let flags = self.memory.load(last) & 0xffff & !queue::HAS_NEXT;
        self.memory.store(last, flags);
        (16 * u32::from(self.entries), self.writable)
    }
}
