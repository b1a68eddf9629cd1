//! The network device under the stack: the first virtio network device of the machine, or else its first Ethernet
//! controller of Cadence, or none.

use core::sync::atomic::Ordering;

use ethernet::{ChecksumOffload, Link, NoLink, ReceivedFrame};
use gem::{CauseReader, Causes, Gem};
use memory::Block;
use platform::{Mapped, Platform, println};
use spin::{Mutex, Once};
use virtio::{Acknowledger, Kind, Network};

use crate::machine::virtio::{DevicePlace, InterruptLine, VirtioDevice, devices};
use crate::observing::latency;

/// Physically contiguous memory for a device, given back when the driver goes.
pub(crate) struct DmaBuffer(Block);

impl DmaBuffer {
    /// Allocates at least this many bytes of zeros; `None` if there is no memory.
    pub(crate) fn allocate(bytes: usize) -> Option<DmaBuffer> {
        Block::allocate_bytes(bytes).ok().map(DmaBuffer)
    }
}

impl virtio::Memory for DmaBuffer {
    fn physical_address(&self) -> u64 {
        self.0.physical_address()
    }

    fn length(&self) -> usize {
        self.0.len()
    }

    fn load(&self, offset: usize) -> u32 {
        self.0.bytes().atomic_u32(offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, offset: usize, value: u32) {
        if let Some(word) = self.0.bytes().atomic_u32(offset) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        let count = self.0.read(offset, into);
        if count < into.len() {
            into[count..].fill(0);
        }
    }

    fn write(&self, offset: usize, from: &[u8]) {
        self.0.write(offset, from);
    }

    fn abandon(&mut self) {
        let kib = self.0.len() / 1024;
        if kib > 0 {
            println!("device: one does not stop when told to: {kib} KiB of memory that it reaches are not used again");
        }
        self.0.leak();
    }
}

type Card = Network<Mapped, DmaBuffer>;
type Controller = Gem<Mapped, DmaBuffer>;

/// Link through which the stack sends.
#[doc(alias = "net_device")]
#[allow(clippy::large_enum_variant)] // There is one value, and it never moves.
pub(crate) enum NetworkLink {
    /// A virtio device.
    Card(Card),
    /// A controller of Cadence.
    Gem(Controller),
    /// No device was found.
    Nothing(NoLink),
}

/// The permission of one of the devices to send a frame.
pub(crate) enum FramePermit<'a> {
    Card(<Card as Link>::Departing<'a>),
    Gem(<Controller as Link>::Departing<'a>),
}

impl ethernet::Departing for FramePermit<'_> {
    #[inline]
    fn send<R>(self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            FramePermit::Card(card) => card.send(length, write),
            FramePermit::Gem(gem) => gem.send(length, write),
        }
    }
}

/// Acknowledges the device's interrupt before the handler looks at its queues.
enum DeviceInterrupt {
    Card(Acknowledger<Mapped>),
    Gem(CauseReader<Mapped>),
}

/// The interrupt of the device that is served. Written while no source is registered with [`serve`] alone.
static DEVICE_INTERRUPT: Mutex<Option<DeviceInterrupt>> = Mutex::new(None);
static ON_INTERRUPT: Once<fn()> = Once::new();

fn serve(_: usize) -> bool {
    let has_asked = match &*DEVICE_INTERRUPT.lock() {
        Some(DeviceInterrupt::Card(card)) => card.acknowledge().is_some(),
        Some(DeviceInterrupt::Gem(gem)) => gem.acknowledge() != Causes::default(),
        None => false,
    };
    latency::card_interrupts();
    if let Some(on_interrupt) = ON_INTERRUPT.get() {
        on_interrupt();
    }
    has_asked
}

/// Has a device's interrupt served; returns whether there is one.
fn connect(place: DevicePlace, line: InterruptLine, interrupt: DeviceInterrupt) -> bool {
    // Before it can interrupt for the first time.
    *DEVICE_INTERRUPT.lock() = Some(interrupt);
    let is_connected = line.register(serve, 0).is_ok();
    if !is_connected {
        *DEVICE_INTERRUPT.lock() = None;
        // Its queues would never be looked at.
        println!("network: {place} has no interrupt");
    }
    is_connected
}

/// Starts a virtio network device.
fn start_card(device: VirtioDevice) -> Option<NetworkLink> {
    let VirtioDevice { transport, line, place } = device;
    let acknowledger = transport.acknowledger();
    match Network::new(transport, DmaBuffer::allocate) {
        Ok(card) => connect(place, line, DeviceInterrupt::Card(acknowledger)).then_some(NetworkLink::Card(card)),
        Err(error) => {
            println!("network: {place} cannot be used: {error}");
            None
        }
    }
}

/// Starts a controller of Cadence.
fn start_gem(ethernet: &platform::Ethernet) -> Option<NetworkLink> {
    let device = &ethernet.device;
    let registers = Mapped::new((device.address, device.length)).filter(|_| device.length >= gem::LENGTH)?;
    let place = DevicePlace::Address(device.address);
    match Gem::new(registers, ethernet.address, DmaBuffer::allocate) {
        Ok(gem) => {
            if gem.is_up() == Some(false) {
                println!("network: the line of {place} is down");
            }
            let line = device.interrupt.map_or(InterruptLine::None, InterruptLine::Wire);
            connect(place, line, DeviceInterrupt::Gem(gem.cause_reader())).then_some(NetworkLink::Gem(gem))
        }
        Err(error) => {
            println!("network: {place} cannot be used: {error}");
            None
        }
    }
}

impl NetworkLink {
    /// Looks for a device and starts it; `on_interrupt` is called when its interrupt comes.
    pub(crate) fn find(platform: &'static Platform, on_interrupt: fn()) -> NetworkLink {
        ON_INTERRUPT.call_once(|| on_interrupt);
        let mut cards = devices(platform, Kind::Network).into_iter().filter_map(start_card);
        let mut controllers = platform.ethernet.iter().filter_map(start_gem);
        cards.next().or_else(|| controllers.next()).unwrap_or(NetworkLink::Nothing(NoLink))
    }

    /// Returns whether there is a device.
    pub(crate) fn is_connected(&self) -> bool {
        !matches!(self, NetworkLink::Nothing(_))
    }
}

impl Link for NetworkLink {
    type Departing<'a> = FramePermit<'a>;

    fn hardware_address(&self) -> [u8; 6] {
        match self {
            NetworkLink::Card(card) => card.hardware_address(),
            NetworkLink::Gem(gem) => gem.hardware_address(),
            NetworkLink::Nothing(none) => none.hardware_address(),
        }
    }

    fn checksum_offload(&self) -> ChecksumOffload {
        match self {
            NetworkLink::Card(card) => card.checksum_offload(),
            NetworkLink::Gem(gem) => gem.checksum_offload(),
            NetworkLink::Nothing(none) => none.checksum_offload(),
        }
    }

    fn depart(&mut self) -> Option<FramePermit<'_>> {
        match self {
            NetworkLink::Card(card) => card.depart().map(FramePermit::Card),
            NetworkLink::Gem(gem) => gem.depart().map(FramePermit::Gem),
            NetworkLink::Nothing(_) => None,
        }
    }

    fn flush(&mut self) {
        match self {
            NetworkLink::Card(card) => card.flush(),
            NetworkLink::Gem(gem) => gem.flush(),
            NetworkLink::Nothing(none) => none.flush(),
        }
    }

    fn receive_into(&mut self, room: &mut [u8]) -> Option<ReceivedFrame> {
        match self {
            NetworkLink::Card(card) => card.receive_into(room),
            NetworkLink::Gem(gem) => gem.receive_into(room),
            NetworkLink::Nothing(_) => None,
        }
    }

    fn take_kept(&mut self, kept: u16, room: &mut [u8]) {
        match self {
            NetworkLink::Card(card) => card.take_kept(kept, room),
            NetworkLink::Gem(gem) => gem.take_kept(kept, room),
            NetworkLink::Nothing(_) => {}
        }
    }

    fn drop_kept(&mut self, kept: u16) {
        match self {
            NetworkLink::Card(card) => card.drop_kept(kept),
            NetworkLink::Gem(gem) => gem.drop_kept(kept),
            NetworkLink::Nothing(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use virtio::Memory as _;

    use super::*;

    #[test]
    fn a_buffer_gives_zeros_beyond_its_end_and_keeps_nothing_there() {
        let _guard = crate::testing::alone();
        memory::fake::init(64 << 20);
        let buffer = DmaBuffer::allocate(5000).expect("there is memory");
        assert!(buffer.length() >= 5000);
        assert_eq!(buffer.physical_address() % 4096, 0);
        let mut bytes = [1; 16];
        buffer.read(0, &mut bytes);
        assert_eq!(bytes, [0; 16], "fresh memory is zero");
        buffer.store(4, 0x0403_0201);
        assert_eq!(buffer.load(4), 0x0403_0201);
        buffer.write(6, &[9, 8, 7]);
        assert_eq!((buffer.load(4), buffer.load(8)), (0x0809_0201, 7));
        let end = buffer.length();
        buffer.write(end - 2, &[5, 6, 7, 8]);
        let mut bytes = [1; 6];
        buffer.read(end - 2, &mut bytes);
        assert_eq!(bytes[2..], [0; 4]);
        buffer.store(end, 1);
        assert_eq!((buffer.load(end), buffer.load(end - 2 + 1)), (0, 0), "outside, and not aligned");
    }

    #[test]
    fn an_abandoned_buffer_is_never_used_again() {
        let _guard = crate::testing::alone();
        let _hart = crate::testing::simulation().attach(0);
        memory::fake::init(64 << 20);
        let buffers = || [2, 3].map(|pages| DmaBuffer::allocate(pages * 4096).expect("there is memory"));
        drop(buffers());
        let before = memory::frames::free_frames();
        let [mut abandoned, other] = buffers();
        abandoned.abandon();
        // Once is enough, and it has no bytes any more.
        abandoned.abandon();
        assert_eq!((abandoned.length(), abandoned.load(0)), (0, 0));
        drop((abandoned, other));
        assert_eq!(memory::frames::free_frames(), before - 2);
    }

    #[test]
    fn without_a_device_nothing_comes_and_nothing_goes() {
        let _guard = crate::testing::alone();
        let _hart = crate::testing::simulation().attach(0);
        let mut wire = NetworkLink::Nothing(NoLink);
        assert!(!wire.is_connected());
        assert!(wire.depart().is_none());
        let mut room = [7; 64];
        assert!(wire.receive_into(&mut room).is_none());
        wire.take_kept(0, &mut room);
        wire.drop_kept(0);
        wire.flush();
        assert_eq!(room, [7; 64]);
        assert_eq!(wire.hardware_address(), NoLink.hardware_address());
    }
}
