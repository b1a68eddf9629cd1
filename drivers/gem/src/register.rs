//! Offsets of the registers, and their bits.

pub const NETWORK_CONTROL: usize = 0x000;
pub mod control {
    pub const RECEIVE: u32 = 1 << 2;
    pub const TRANSMIT: u32 = 1 << 3;
    pub const MANAGEMENT: u32 = 1 << 4;
    pub const CLEAR_STATISTICS: u32 = 1 << 5;
    pub const START_TRANSMISSION: u32 = 1 << 9;
}

pub const NETWORK_CONFIGURATION: usize = 0x004;
pub mod configuration {
    pub const SPEED_100: u32 = 1 << 0;
    pub const FULL_DUPLEX: u32 = 1 << 1;
    /// Frames to groups are accepted if the hash of their address is in the table.
    pub const MULTICAST_HASH: u32 = 1 << 6;
    pub const GIGABIT: u32 = 1 << 10;
    /// Received frames come without their check sequence.
    pub const REMOVE_CHECK_SEQUENCE: u32 = 1 << 17;
    /// The management clock: the bus clock by 224, which is slow enough for every board.
    pub const SLOWEST_MANAGEMENT: u32 = 7 << 18;
    /// Width of the bus and other properties of the board, which the firmware has set.
    pub const OF_THE_BOARD: u32 = SPEED_100 | FULL_DUPLEX | GIGABIT | 3 << 21 | 1 << 11 | 1 << 27;
}

pub const NETWORK_STATUS: usize = 0x008;
/// The management interface has nothing to do.
pub const MANAGEMENT_IDLE: u32 = 1 << 2;

pub const DMA_CONFIGURATION: usize = 0x010;
pub mod dma {
    /// Bursts of 16.
    pub const BURST_16: u32 = 1 << 4;
    /// All of the receiver's and the transmitter's own memory is used.
    pub const WHOLE_PACKET_MEMORY: u32 = 3 << 8 | 1 << 10;
    /// Shift of the size of receive buffers, in units of 64 bytes.
    pub const BUFFER_SIZE_SHIFT: u32 = 16;
    /// Descriptors have four words, with addresses of 64 bits.
    pub const WIDE_ADDRESSES: u32 = 1 << 30;
}

pub const TRANSMIT_STATUS: usize = 0x014;
/// Retry limit, bus error, underrun, late collision, bus response: the transmitter has stopped.
pub const TRANSMIT_ERRORS: u32 = 1 << 2 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8;
pub const RECEIVE_QUEUE: usize = 0x018;
pub const TRANSMIT_QUEUE: usize = 0x01c;
pub const RECEIVE_STATUS: usize = 0x020;
/// The receiver has met a descriptor that was not free.
pub const NO_BUFFER: u32 = 1 << 0;

pub const INTERRUPT_STATUS: usize = 0x024;
pub const INTERRUPT_ENABLE: usize = 0x028;
pub const INTERRUPT_DISABLE: usize = 0x02c;
pub mod interrupt {
    pub const RECEIVED: u32 = 1 << 1;
    pub const NO_BUFFER: u32 = 1 << 2;
    /// Underrun, retry limit, bus error.
    pub const TRANSMIT_ERRORS: u32 = 1 << 4 | 1 << 5 | 1 << 6;
    pub const SENT: u32 = 1 << 7;
    pub const OVERRUN: u32 = 1 << 10;
    pub const BUS_RESPONSE: u32 = 1 << 11;
}

pub const PHY_MAINTENANCE: usize = 0x034;
pub const HASH_BOTTOM: usize = 0x080;
pub const HASH_TOP: usize = 0x084;
pub const ADDRESS_BOTTOM: usize = 0x088;
pub const ADDRESS_TOP: usize = 0x08c;
pub const IDENTITY: usize = 0x0fc;
pub const DESIGN_6: usize = 0x294;
pub mod design {
    /// Queues beside the first, a bit for each from bit 1.
    pub const QUEUES: u32 = 0xfe;
    /// Addresses of 64 bits are possible.
    pub const WIDE_ADDRESSES: u32 = 1 << 23;
}
/// Bases of the transmit queues beside the first.
pub const OTHER_TRANSMIT_QUEUES: usize = 0x440;
/// Bases of the receive queues beside the first.
pub const OTHER_RECEIVE_QUEUES: usize = 0x480;
/// Upper halves of the addresses of all transmit and of all receive queues.
pub const TRANSMIT_QUEUE_TOP: usize = 0x4c8;
pub const RECEIVE_QUEUE_TOP: usize = 0x4d4;
