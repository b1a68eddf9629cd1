//! The network device (virtio 1.2 section 5.1).

use alloc::vec::Vec;

use drivers::Registers;
use ethernet::{LARGEST_FRAME, ReceivedFrame};

use crate::checksum;
use crate::queue::{self, Direction, Notify, Queue};
use crate::transport::{Acknowledger, Interrupt, Kind, Release, Transport, feature};
use crate::{Error, Memory};

const RECEIVE: u32 = 0;
const TRANSMIT: u32 = 1;

/// Bytes of memory for each frame with its header; two in a page.
const BUFFER: usize = 2048;
/// Place of a frame in its buffer, behind the header of 10 or 12 bytes: two bytes behind a word, so that the packet
/// behind the Ethernet header of 14 bytes begins with a word.
const FRAME: usize = 18;
const WORD: usize = size_of::<u64>();
/// Number of frames that may arrive between two looks, and number that may be on their way out. Four more pages for
/// each eight of these.
const RECEIVE_BUFFERS: u16 = 256;
const TRANSMIT_BUFFERS: u16 = 256;
/// Minimum number of buffers for which the device is driven.
const FEWEST_BUFFERS: u16 = 8;

mod network_feature {
    /// The device fills in checksums of outgoing frames.
    pub const CHECKSUM: u64 = 1;
    /// The device has an address.
    pub const ADDRESS: u64 = 1 << 5;
    /// The device reports the state of the link.
    pub const STATUS: u64 = 1 << 16;
}

/// Whether the cable is plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// Frames get through.
    Up,
    /// No frames get through.
    Down,
    /// The device does not report it.
    Unknown,
}

/// Counts of the device's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounters {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that were not sent because all buffers were on their way.
    pub dropped: u64,
    /// Number of notifications to the device.
    pub notifications: u64,
}

/// A network device. Frames go out and come in by the trait [`ethernet::Link`].
///
/// All buffers exist from the beginning. A received frame is copied out and its buffer offered again at once; a frame
/// to be sent is copied into a free buffer, and buffers that the device has sent are reclaimed when the next one is
/// needed. The device is notified of new buffers once for each batch, and interrupts only when frames have arrived
/// since the driver last found none.
pub struct Network<R: Registers, M: Memory> {
    transport: Transport<R>,
    receive: Queue<M>,
    receive_memory: M,
    /// Number of buffers with frames that were not taken yet.
    kept: u16,
    transmit: Queue<M>,
    transmit_memory: M,
    free: Vec<u16>,
    /// Header and frame being written, at their places in a buffer.
    departing: Vec<u8>,
    /// Place of the header in a buffer.
    header: usize,
    address: [u8; 6],
    offload: Offload,
    tells_status: bool,
    failure: Option<Error>,
    counters: NetworkCounters,
}

/// Side that computes the transport checksums of outgoing frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offload {
    Stack,
    Device,
}

fn zeros(length: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Error::OutOfMemory)?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Makes a queue with buffers for all of its descriptors: as many as wanted, or as memory allows.
fn queue_with_buffers<R: Registers, M: Memory>(
    transport: &mut Transport<R>,
    number: u32,
    wanted: u16,
    event_index: bool,
    allocate: &mut impl FnMut(usize) -> Option<M>,
) -> Result<(Queue<M>, M, u16), Error> {
    let largest = transport.largest_queue(number);
    if largest < FEWEST_BUFFERS.into() {
        return Err(Error::Unsupported);
    }
    let mut size = queue::fitting_size(wanted, largest);
    while size >= FEWEST_BUFFERS {
        let buffers = allocate(usize::from(size) * BUFFER);
        let memory = allocate(queue::bytes(size));
        if let (Some(buffers), Some(memory)) = (buffers, memory)
            && buffers.length() >= usize::from(size) * BUFFER
        {
            let queue = Queue::new(transport, number, size, memory, event_index)?;
            return Ok((queue, buffers, size));
        }
        size /= 2;
    }
    Err(Error::OutOfMemory)
}

impl<R: Registers, M: Memory> Network<R, M> {
    /// Starts the device. `allocate` returns at least that many bytes of zeros; it is called a few times.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not a network device or an unusable one, [`Error::OutOfMemory`].
    pub fn new(mut transport: Transport<R>, mut allocate: impl FnMut(usize) -> Option<M>) -> Result<Self, Error> {
        if transport.kind() != Kind::Network {
            return Err(Error::Unsupported);
        }
        let parts = Self::start(&mut transport, &mut allocate)?;
        let (agreed, receive, receive_memory, transmit, transmit_memory, sizes) = parts;
        let mut free = Vec::new();
        let enough = free.try_reserve_exact(sizes.1.into()).is_ok();
        let departing = match zeros(BUFFER) {
            Ok(departing) if enough => departing,
            _ => {
                let _ = transport.stop();
                return Err(Error::OutOfMemory);
            }
        };
        // The number of buffers at the end of the header exists since version 1.
        let header = FRAME - if agreed & feature::VERSION_1 != 0 { 12 } else { 10 };
        let mut address = [0; 6];
        for (offset, byte) in address.iter_mut().enumerate() {
            *byte = transport.configuration(offset);
        }
        let mut device = Network {
            transport,
            receive,
            receive_memory,
            kept: 0,
            transmit,
            transmit_memory,
            free,
            departing,
            header,
            address,
            offload: if agreed & network_feature::CHECKSUM != 0 { Offload::Device } else { Offload::Stack },
            tells_status: agreed & network_feature::STATUS != 0,
            failure: None,
            counters: NetworkCounters::default(),
        };
        for buffer in 0..sizes.0 {
            let at = device.receive_memory.physical_address() + (usize::from(buffer) * BUFFER + header) as u64;
            device.receive.describe(buffer, at, (BUFFER - header) as u32, Direction::FromDevice);
            device.receive.offer(buffer);
        }
        for buffer in 0..sizes.1 {
            let at = device.transmit_memory.physical_address() + (usize::from(buffer) * BUFFER + header) as u64;
            device.transmit.describe(buffer, at, 0, Direction::ToDevice);
            device.free.push(buffer);
        }
        device.transmit.disarm();
        device.transport.finish();
        device.receive.arm();
        device.notify();
        Ok(device)
    }

    #[expect(clippy::type_complexity, reason = "one caller, just above")]
    fn start(
        transport: &mut Transport<R>,
        allocate: &mut impl FnMut(usize) -> Option<M>,
    ) -> Result<(u64, Queue<M>, M, Queue<M>, M, (u16, u16)), Error> {
        let wanted = feature::EVENT_INDEX | network_feature::CHECKSUM | network_feature::STATUS;
        transport.start(wanted, network_feature::ADDRESS, |transport, agreed| {
            let event_index = agreed & feature::EVENT_INDEX != 0;
            let (receive, receive_memory, receive_size) =
                queue_with_buffers(transport, RECEIVE, RECEIVE_BUFFERS, event_index, allocate)?;
            let (transmit, transmit_memory, transmit_size) =
                queue_with_buffers(transport, TRANSMIT, TRANSMIT_BUFFERS, event_index, allocate)?;
            Ok((agreed, receive, receive_memory, transmit, transmit_memory, (receive_size, transmit_size)))
        })
    }

    /// Returns the device's own address.
    pub fn address(&self) -> [u8; 6] {
        self.address
    }

    /// Returns the present state of the link.
    pub fn link_status(&self) -> LinkStatus {
        match self.tells_status {
            true if self.transport.configuration(6) & 1 != 0 => LinkStatus::Up,
            true => LinkStatus::Down,
            false => LinkStatus::Unknown,
        }
    }

    /// Acknowledges the device's interrupt. Do this before polling; see [`Acknowledger`].
    pub fn acknowledge_interrupt(&self) -> Interrupt {
        self.transport.acknowledge()
    }

    /// Returns a handle that acknowledges interrupts without the driver, for an interrupt handler.
    pub fn acknowledger(&self) -> Acknowledger<R>
    where
        R: Clone,
    {
        self.transport.acknowledger()
    }

    /// Returns the counts of traffic so far.
    pub fn counters(&self) -> NetworkCounters {
        self.counters
    }

    /// Returns the reason why the device is no longer used, if it is not.
    pub fn failure(&self) -> Option<Error> {
        self.failure
    }

    pub(crate) fn offload(&self) -> Offload {
        self.offload
    }

    fn fail(&mut self, error: Error) {
        self.failure = Some(error);
        let release = self.transport.stop();
        self.release(release);
    }

    fn release(&mut self, release: Release) {
        if release == Release::Never {
            for queue in [&mut self.receive, &mut self.transmit] {
                queue.abandon();
            }
            for memory in [&mut self.receive_memory, &mut self.transmit_memory] {
                memory.abandon();
            }
        }
    }

    /// Copies the next frame that has arrived to the beginning of `room`. Of a frame longer than `enough` only so many
    /// bytes are copied, and its buffer is kept until it is [given back](Self::give_back), unless half of the buffers
    /// are kept. A frame that does not fit is dropped.
    pub(crate) fn next_frame_into(&mut self, room: &mut [u8], enough: usize) -> Option<ReceivedFrame> {
        loop {
            if self.failure.is_some() {
                return None;
            }
            match self.receive.take() {
                Ok(Some(used)) => {
                    let length =
                        (used.length as usize).checked_sub(FRAME - self.header).filter(|&length| length <= room.len());
                    // A frame that is too short or too long is dropped.
                    let Some(length) = length else {
                        self.offer(used.buffer);
                        continue;
                    };
                    let keeps = length > enough && self.kept < self.receive.size() / 2;
                    self.read_frame(used.buffer, &mut room[..if keeps { enough } else { length }]);
                    match keeps {
                        true => self.kept += 1,
                        false => self.offer(used.buffer),
                    }
                    self.counters.received += 1;
                    return Some(ReceivedFrame { length, kept: keeps.then_some(used.buffer) });
                }
                Ok(None) => {
                    if !self.receive.arm() {
                        return None;
                    }
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn offer(&mut self, buffer: u16) {
        self.receive.offer(buffer);
        // Offer buffers in good time, lest the device run out of them during a long batch.
        if self.receive.unpublished() >= RECEIVE_BUFFERS / 4 {
            self.notify();
        }
    }

    /// Copies the beginning of the frame in a buffer.
    pub(crate) fn read_frame(&self, buffer: u16, into: &mut [u8]) {
        self.receive_memory.read(usize::from(buffer) * BUFFER + FRAME, into);
    }

    /// Offers the buffer of a kept frame again.
    pub(crate) fn give_back(&mut self, buffer: u16) {
        self.kept -= 1;
        self.offer(buffer);
    }

    /// Finds a free buffer; returns whether there is one.
    pub(crate) fn can_send(&mut self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        if self.free.is_empty() {
            self.reclaim();
        }
        !self.free.is_empty() && self.failure.is_none()
    }

    /// Reclaims the buffers that the device has sent.
    fn reclaim(&mut self) {
        loop {
            match self.transmit.take() {
                // `free` has room for every buffer there is, and `take` returns each once.
                Ok(Some(used)) => self.free.push(used.buffer),
                Ok(None) => break,
                Err(error) => {
                    self.fail(error);
                    break;
                }
            }
        }
        self.transmit.disarm();
    }

    /// Sends a frame of `length` bytes that `fill` writes; drops it if there is no free buffer. The device sees it
    /// with the next [`notify`](Self::notify).
    pub(crate) fn send<T>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> T) -> T {
        const NEEDS_CHECKSUM: u8 = 1;
        // The stack keeps to the device's largest frame; longer ones are cut off.
        let end = FRAME + length.min(LARGEST_FRAME);
        let (before, frame) = self.departing[..end].split_at_mut(FRAME);
        let result = fill(frame);
        // Without the feature the header always is zeros.
        if self.offload == Offload::Device {
            let header = &mut before[self.header..];
            header.fill(0);
            if let Some(request) = checksum::prepare(frame) {
                header[0] = NEEDS_CHECKSUM;
                header[6..8].copy_from_slice(&request.start.to_le_bytes());
                header[8..10].copy_from_slice(&request.offset.to_le_bytes());
            }
        }
        match self.free.pop() {
            Some(buffer) => {
                // In whole words; the device is told of nothing before the header, and of nothing behind the frame.
                let words = &self.departing[..end.next_multiple_of(WORD)];
                self.transmit_memory.write(usize::from(buffer) * BUFFER, words);
                self.transmit.set_length(buffer, (end - self.header) as u32);
                self.transmit.offer(buffer);
                self.counters.sent += 1;
            }
            None => self.counters.dropped += 1,
        }
        result
    }

    /// Publishes the offered buffers of both queues, and notifies the device if it sleeps.
    pub(crate) fn notify(&mut self) {
        if self.failure.is_some() {
            return;
        }
        for (number, queue) in [(RECEIVE, &mut self.receive), (TRANSMIT, &mut self.transmit)] {
            if queue.publish() == Notify::Needed {
                self.counters.notifications += 1;
                self.transport.notify(number);
            }
        }
    }
}

impl<R: Registers, M: Memory> Drop for Network<R, M> {
    fn drop(&mut self) {
        let release = self.transport.end();
        self.release(release);
    }
}
