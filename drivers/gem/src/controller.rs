//! The controller: its start, its two rings, its interrupts.

use alloc::vec::Vec;

use drivers::{Memory, Registers};
use ethernet::{LARGEST_FRAME, ReceivedFrame};

use crate::Error;
use crate::descriptor::{self, DESCRIPTORS, DescriptorForm, DescriptorRings, DescriptorState};
use crate::phy::{Management, Speed};
use crate::register::{self, configuration, control, design, dma, interrupt};

/// Bytes of registers.
pub const LENGTH: u64 = 0x1000;

/// Bytes for each frame; two in a page. The device is told of fewer, so that it writes no frame that is too long.
const BUFFER: usize = 2048;
/// Bytes that the device may write to a buffer: a multiple of 64.
const RECEIVABLE: usize = 1536;
/// Number of buffers for frames that arrive: one for each descriptor, and as many that frames may be kept in.
const RECEIVE_BUFFERS: u16 = 2 * DESCRIPTORS;
/// The least identity of a GEM; smaller ones are its predecessor's.
const FIRST_IDENTITY: u32 = 2;

/// Interrupts that are enabled all the time.
const ALWAYS: u32 = interrupt::RECEIVED
    | interrupt::NO_BUFFER
    | interrupt::TRANSMIT_ERRORS
    | interrupt::OVERRUN
    | interrupt::BUS_RESPONSE;

/// Causes of an interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// Frames have arrived, or could not.
    pub received: bool,
    /// Frames that were sent have left, or could not; reported only after a frame found no room.
    pub sent: bool,
}

/// Acknowledges a device's interrupts, apart from its driver: an interrupt handler need not wait for the user of the
/// driver. Acknowledge *before* the driver looks at its rings.
pub struct CauseReader<R: Registers>(R);

impl<R: Registers> CauseReader<R> {
    /// Acknowledges the interrupt; returns its causes.
    pub fn acknowledge(&self) -> Causes {
        let status = self.0.read32(register::INTERRUPT_STATUS);
        // Some devices clear the register as it is read, others where ones are written.
        self.0.write32(register::INTERRUPT_STATUS, status);
        const SENT: u32 = interrupt::SENT | interrupt::TRANSMIT_ERRORS;
        Causes { received: status & (ALWAYS & !interrupt::TRANSMIT_ERRORS) != 0, sent: status & SENT != 0 }
    }
}

/// Counts of the device's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames received.
    pub received: u64,
    /// Descriptors that came back without a whole frame of a possible length.
    pub refused: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that were lost because the transmitter had stopped.
    pub lost: u64,
    /// Number of times that the receiver had run out of descriptors.
    pub shortages: u64,
}

/// A controller. Frames go out and come in by the trait [`ethernet::Link`].
///
/// All buffers exist from the beginning. A received frame is copied out, and its descriptor offered again at once; a
/// frame to be sent is copied into the buffer of the next descriptor. The device interrupts when frames have arrived,
/// and when frames have left only if one found no room.
pub struct Gem<R: Registers, M: Memory> {
    registers: R,
    address: [u8; 6],
    phy: Option<u32>,
    rings: DescriptorRings<M>,
    receive_buffers: M,
    /// The buffer of each receive descriptor.
    buffers: Vec<u16>,
    /// Buffers of no descriptor and no kept frame.
    spare: Vec<u16>,
    /// The next receive descriptor that the device gives back.
    arriving: u16,
    transmit_buffers: M,
    /// The oldest transmit descriptor that the device has.
    leaving: u16,
    /// The number of transmit descriptors that the device has: one fewer than there are at most, so that it always
    /// finds an end.
    in_flight: u16,
    /// The frame being written.
    departing: Vec<u8>,
    has_written: bool,
    awaits_room: bool,
    traffic: Traffic,
}

fn with_room<T>(capacity: usize) -> Result<Vec<T>, Error> {
    let mut list = Vec::new();
    list.try_reserve_exact(capacity).map_err(|_| Error::OutOfMemory)?;
    Ok(list)
}

fn next(index: u16) -> u16 {
    (index + 1) % DESCRIPTORS
}

/// Returns whether this is an address of one device.
fn is_usable(address: &[u8; 6]) -> bool {
    address[0] & 1 == 0 && *address != [0; 6]
}

impl<R: Registers, M: Memory> Gem<R, M> {
    /// Starts the device. It has the address that the firmware has given it, or else `address`, from the device tree.
    /// `allocate` returns at least that many bytes of zeros; it is called a few times.
    ///
    /// # Errors
    /// [`Error`]; the device is stopped then.
    pub fn new(
        registers: R,
        address: Option<[u8; 6]>,
        mut allocate: impl FnMut(usize) -> Option<M>,
    ) -> Result<Self, Error> {
        if registers.read32(register::IDENTITY) >> 16 & 0xfff < FIRST_IDENTITY {
            return Err(Error::Unsupported);
        }
        let own = own_address(&registers);
        stop(&registers);
        let address = Some(own).into_iter().chain(address).find(is_usable).ok_or(Error::NoAddress)?;

        let design = registers.read32(register::DESIGN_6);
        let form = if design & design::WIDE_ADDRESSES != 0 { DescriptorForm::Wide } else { DescriptorForm::Narrow };
        let mut reachable = |bytes: usize| {
            let memory = allocate(bytes).filter(|memory| memory.length() >= bytes).ok_or(Error::OutOfMemory)?;
            let reaches = form.reaches(memory.physical_address() + memory.length() as u64);
            if reaches { Ok(memory) } else { Err(Error::OutOfMemory) }
        };
        let mut controller = Gem {
            address,
            phy: None,
            rings: DescriptorRings::new(reachable(descriptor::LENGTH)?, form),
            receive_buffers: reachable(usize::from(RECEIVE_BUFFERS) * BUFFER)?,
            buffers: with_room(DESCRIPTORS.into())?,
            spare: with_room(RECEIVE_BUFFERS.into())?,
            arriving: 0,
            transmit_buffers: reachable(usize::from(DESCRIPTORS) * BUFFER)?,
            leaving: 0,
            in_flight: 0,
            departing: with_room(LARGEST_FRAME)?,
            has_written: false,
            awaits_room: false,
            traffic: Traffic::default(),
            registers,
        };
        controller.departing.resize(LARGEST_FRAME, 0);
        for index in 0..DESCRIPTORS {
            controller.buffers.push(index);
            controller.rings.offer(index, controller.receive_buffer(index));
            let buffer = controller.transmit_buffers.physical_address() + u64::from(index) * BUFFER as u64;
            controller.rings.describe(index, buffer);
        }
        controller.spare.extend(DESCRIPTORS..RECEIVE_BUFFERS);
        controller.withhold_other_queues(design & design::QUEUES);
        controller.start(form);
        Ok(controller)
    }

    /// Gives every queue but the first a ring in which the device has no descriptor: it looks there, too.
    fn withhold_other_queues(&self, queues: u32) {
        for queue in (1..8).filter(|queue| queues & 1 << queue != 0) {
            let offset = (queue - 1) * 4;
            let address = |ring| self.rings.address(ring) as u32;
            let registers = &self.registers;
            registers.write32(register::OTHER_RECEIVE_QUEUES + offset, address(descriptor::UNUSED_RECEIVE));
            registers.write32(register::OTHER_TRANSMIT_QUEUES + offset, address(descriptor::UNUSED_TRANSMIT));
        }
    }

    fn start(&mut self, form: DescriptorForm) {
        let registers = &self.registers;
        let [a, b, c, d, e, f] = self.address;
        registers.write32(register::ADDRESS_BOTTOM, u32::from_le_bytes([a, b, c, d]));
        // The filter is on once the upper part is written.
        registers.write32(register::ADDRESS_TOP, u32::from_le_bytes([e, f, 0, 0]));
        // Frames to all groups: IPv6 needs some, and the stack knows which.
        registers.write32(register::HASH_BOTTOM, u32::MAX);
        registers.write32(register::HASH_TOP, u32::MAX);

        registers.write32(register::NETWORK_CONTROL, control::MANAGEMENT);
        let given = registers.read32(register::NETWORK_CONFIGURATION) & configuration::OF_THE_BOARD;
        let always =
            configuration::MULTICAST_HASH | configuration::REMOVE_CHECK_SEQUENCE | configuration::SLOWEST_MANAGEMENT;
        registers.write32(register::NETWORK_CONFIGURATION, given | always);
        self.phy = Management(registers).find();
        if let Some(speed) = self.phy.and_then(|phy| Management(registers).speed(phy)) {
            let speed_bits = match speed {
                Speed::Ten => 0,
                Speed::Hundred => configuration::SPEED_100,
                Speed::Thousand => configuration::GIGABIT,
            };
            let others = given & !(configuration::SPEED_100 | configuration::GIGABIT);
            let all = others | speed_bits | configuration::FULL_DUPLEX | always;
            registers.write32(register::NETWORK_CONFIGURATION, all);
        }

        let wide = if form == DescriptorForm::Wide { dma::WIDE_ADDRESSES } else { 0 };
        let size = ((RECEIVABLE / 64) as u32) << dma::BUFFER_SIZE_SHIFT;
        registers.write32(register::DMA_CONFIGURATION, dma::BURST_16 | dma::WHOLE_PACKET_MEMORY | size | wide);
        let receive = self.rings.address(descriptor::RECEIVE);
        let transmit = self.rings.address(descriptor::TRANSMIT);
        if form == DescriptorForm::Wide {
            registers.write32(register::RECEIVE_QUEUE_TOP, (receive >> 32) as u32);
            registers.write32(register::TRANSMIT_QUEUE_TOP, (transmit >> 32) as u32);
        }
        registers.write32(register::RECEIVE_QUEUE, receive as u32);
        registers.write32(register::TRANSMIT_QUEUE, transmit as u32);
        registers.write32(register::INTERRUPT_ENABLE, ALWAYS);
        registers.write32(register::NETWORK_CONTROL, RUNNING);
    }

    /// Returns the device's own address.
    pub fn address(&self) -> [u8; 6] {
        self.address
    }

    /// Returns whether frames get through the line; `None` if there is no PHY that says so.
    pub fn is_up(&self) -> Option<bool> {
        Management(&self.registers).is_up(self.phy?)
    }

    /// Returns the counts of traffic so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Returns a handle that acknowledges interrupts without the driver, for an interrupt handler.
    pub fn cause_reader(&self) -> CauseReader<R>
    where
        R: Clone,
    {
        CauseReader(self.registers.clone())
    }

    fn receive_buffer(&self, buffer: u16) -> u64 {
        self.receive_buffers.physical_address() + u64::from(buffer) * BUFFER as u64
    }

    /// Copies the next frame that has arrived to the beginning of `room`. Of a frame longer than `enough` only so many
    /// bytes are copied, and its buffer is kept until it is [given back](Self::give_back), if there is a spare one. A
    /// frame that does not fit is dropped.
    pub(crate) fn next_frame_into(&mut self, room: &mut [u8], enough: usize) -> Option<ReceivedFrame> {
        // A device that gives back descriptors without frames must not hold the hart.
        for _ in 0..=DESCRIPTORS {
            let index = self.arriving;
            let arrived = self.rings.arrived(index);
            if arrived == DescriptorState::Nothing {
                break;
            }
            self.arriving = next(index);
            let buffer = self.buffers[usize::from(index)];
            let length = match arrived {
                DescriptorState::Frame(length) if (1..=RECEIVABLE.min(room.len())).contains(&length) => length,
                _ => {
                    self.traffic.refused += 1;
                    self.rings.offer(index, self.receive_buffer(buffer));
                    continue;
                }
            };
            let spare = if length > enough { self.spare.pop() } else { None };
            self.read_frame(buffer, &mut room[..if spare.is_some() { enough } else { length }]);
            self.buffers[usize::from(index)] = spare.unwrap_or(buffer);
            self.rings.offer(index, self.receive_buffer(spare.unwrap_or(buffer)));
            self.traffic.received += 1;
            return Some(ReceivedFrame { length, kept: spare.is_some().then_some(buffer) });
        }
        self.end_shortage();
        None
    }

    /// Makes a receiver look again that has found no free descriptor: some have read it ahead.
    fn end_shortage(&mut self) {
        if self.registers.read32(register::RECEIVE_STATUS) & register::NO_BUFFER != 0 {
            self.traffic.shortages += 1;
            self.registers.write32(register::RECEIVE_STATUS, register::NO_BUFFER);
            self.registers.write32(register::NETWORK_CONTROL, RUNNING);
        }
    }

    /// Copies the beginning of the frame in a buffer.
    pub(crate) fn read_frame(&self, buffer: u16, into: &mut [u8]) {
        let length = into.len().min(RECEIVABLE);
        self.receive_buffers.read(usize::from(buffer) * BUFFER, &mut into[..length]);
    }

    /// Makes the buffer of a kept frame a spare one.
    pub(crate) fn give_back(&mut self, buffer: u16) {
        // There is room for every buffer, and a kept frame is given back once.
        if self.spare.len() < self.spare.capacity() {
            self.spare.push(buffer);
        }
    }

    /// Returns whether there is room for a frame. If not, the device interrupts when there is.
    pub(crate) fn can_send(&mut self) -> bool {
        if self.in_flight < DESCRIPTORS - 1 {
            return true;
        }
        self.reclaim();
        if self.in_flight == DESCRIPTORS - 1 && !self.awaits_room {
            self.awaits_room = true;
            self.registers.write32(register::INTERRUPT_ENABLE, interrupt::SENT);
            // One may have left before the request.
            self.reclaim();
        }
        self.in_flight < DESCRIPTORS - 1
    }

    /// Takes back the descriptors of frames that have left.
    fn reclaim(&mut self) {
        let before = self.in_flight;
        while self.in_flight > 0 && self.rings.is_sent(self.leaving) {
            self.leaving = next(self.leaving);
            self.in_flight -= 1;
        }
        if self.awaits_room && self.in_flight < before {
            self.awaits_room = false;
            self.registers.write32(register::INTERRUPT_DISABLE, interrupt::SENT);
        }
    }

    /// Sends a frame of `length` bytes that `fill` writes, once [`can_send`](Self::can_send) has said that there is
    /// room. The device is told by the next [`flush`](Self::flush_frames).
    pub(crate) fn send<T>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> T) -> T {
        // The stack keeps to the largest frame; longer ones are cut off.
        let length = length.min(LARGEST_FRAME);
        let frame = &mut self.departing[..length];
        let result = fill(frame);
        if self.in_flight < DESCRIPTORS - 1 && length > 0 {
            let index = (self.leaving + self.in_flight) % DESCRIPTORS;
            self.transmit_buffers.write(usize::from(index) * BUFFER, frame);
            self.rings.send(index, length);
            self.in_flight += 1;
            self.traffic.sent += 1;
            self.has_written = true;
        }
        result
    }

    /// Starts sending everything that was written.
    pub(crate) fn flush_frames(&mut self) {
        if !core::mem::take(&mut self.has_written) {
            return;
        }
        if self.registers.read32(register::TRANSMIT_STATUS) & register::TRANSMIT_ERRORS != 0 {
            self.restart_transmitter();
            return;
        }
        self.registers.write32(register::NETWORK_CONTROL, RUNNING | control::START_TRANSMISSION);
    }

    /// Starts a transmitter again that has stopped over an error. It has forgotten its position; frames that it had are
    /// lost, as on a line.
    fn restart_transmitter(&mut self) {
        self.registers.write32(register::NETWORK_CONTROL, RUNNING & !control::TRANSMIT);
        self.registers.write32(register::TRANSMIT_STATUS, u32::MAX);
        self.reclaim();
        self.traffic.lost += u64::from(self.in_flight);
        (0..DESCRIPTORS).for_each(|index| self.rings.keep(index));
        (self.leaving, self.in_flight) = (0, 0);
        self.registers.write32(register::TRANSMIT_QUEUE, self.rings.address(descriptor::TRANSMIT) as u32);
        self.registers.write32(register::NETWORK_CONTROL, RUNNING);
    }
}

/// The control of a running device.
const RUNNING: u32 = control::RECEIVE | control::TRANSMIT | control::MANAGEMENT;

fn own_address(registers: &impl Registers) -> [u8; 6] {
    let [a, b, c, d] = registers.read32(register::ADDRESS_BOTTOM).to_le_bytes();
    let [e, f, ..] = registers.read32(register::ADDRESS_TOP).to_le_bytes();
    [a, b, c, d, e, f]
}

/// Stops the device: it neither touches memory nor interrupts any more.
fn stop(registers: &impl Registers) {
    registers.write32(register::NETWORK_CONTROL, control::CLEAR_STATISTICS);
    registers.write32(register::NETWORK_CONTROL, 0);
    registers.write32(register::INTERRUPT_DISABLE, u32::MAX);
    registers.write32(register::TRANSMIT_STATUS, u32::MAX);
    registers.write32(register::RECEIVE_STATUS, u32::MAX);
    let pending = registers.read32(register::INTERRUPT_STATUS);
    registers.write32(register::INTERRUPT_STATUS, pending);
}

impl<R: Registers, M: Memory> Drop for Gem<R, M> {
    fn drop(&mut self) {
        // Before its memory gets another owner.
        stop(&self.registers);
    }
}
