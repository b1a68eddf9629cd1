//! The devices that a network needs, found in the device tree.

use dtoolkit::Node;
use dtoolkit::Property;
use dtoolkit::fdt::{Fdt, FdtNode};
use sel4::Allocator;
use sel4::capability::Page;
use sel4::device::DeviceMemory;
use sel4::mapping::Window;
use virtio::{Kind, Transport};

use crate::Problem;

/// Largest depth of nested buses.
const DEPTH: usize = 4;

/// A device: address of its registers, and its interrupt.
#[derive(Clone, Copy)]
pub struct Device {
    pub address: u64,
    pub interrupt: u64,
    /// Page of the registers, if it was made already.
    pub page: Option<Page>,
}

/// The grants to the network server.
pub struct Machine {
    pub network: Device,
    /// A clock with an alarm.
    pub clock: Device,
    pub ticks_per_second: u64,
    /// The firmware's seed for random numbers; zeros if it gives none.
    pub seed: [u64; 4],
}

fn cells(node: FdtNode<'_>, name: &str) -> impl Iterator<Item = u32> {
    let property = node.properties().find(|property| property.name() == name);
    let bytes = property.and_then(|property| property.value_as::<&[u8]>().ok()).unwrap_or(&[]);
    bytes.chunks_exact(4).map(|cell| u32::from_be_bytes([cell[0], cell[1], cell[2], cell[3]]))
}

fn is_compatible(node: FdtNode<'_>, name: &str) -> bool {
    let property = node.properties().find(|property| property.name() == "compatible");
    let list = property.and_then(|property| property.value_as::<&[u8]>().ok()).unwrap_or(&[]);
    list.split(|byte| *byte == 0).any(|entry| entry == name.as_bytes())
}

/// Visits all nodes below a node.
fn walk<'a>(node: FdtNode<'a>, depth: usize, visit: &mut dyn FnMut(FdtNode<'a>)) {
    for child in node.children() {
        visit(child);
        if depth < DEPTH {
            walk(child, depth + 1, visit);
        }
    }
}

/// Returns the device of a node; registers have two cells each for address and length on 64-bit machines.
fn device(node: FdtNode<'_>) -> Option<Device> {
    let mut registers = cells(node, "reg");
    let address = u64::from(registers.next()?) << 32 | u64::from(registers.next()?);
    Some(Device { address, interrupt: cells(node, "interrupts").next()?.into(), page: None })
}

/// Finds the first network device, and the clock.
pub fn find(
    tree: &[u8],
    allocator: &mut Allocator,
    window: &mut Window,
    devices: &mut DeviceMemory,
) -> Result<Machine, Problem> {
    let tree = Fdt::new(tree).map_err(|_| Problem("the device tree is damaged".into()))?;
    let (mut candidates, mut clock, mut ticks, mut seed) = (alloc::vec::Vec::new(), None, None, [0; 4]);
    walk(tree.root(), 0, &mut |node| {
        if is_compatible(node, "virtio,mmio") {
            candidates.extend(device(node));
        } else if is_compatible(node, "google,goldfish-rtc") {
            clock = clock.or(device(node));
        }
        ticks = ticks.or(cells(node, "timebase-frequency").next());
        for (position, cell) in cells(node, "rng-seed").enumerate() {
            seed[position / 2 % seed.len()] ^= u64::from(cell) << (position % 2 * 32);
        }
    });
    let mut network = None;
    for candidate in candidates {
        let (registers, page) = devices.registers(allocator, window, candidate.address)?;
        let is_network = matches!(Transport::probe(registers).map(|transport| transport.kind()), Ok(Kind::Network));
        page.unmap()?;
        if is_network {
            network = Some(Device { page: Some(page), ..candidate });
            break;
        }
    }
    Ok(Machine {
        network: network.ok_or("the machine has no network device")?,
        clock: clock.ok_or("the machine has no clock with an alarm")?,
        ticks_per_second: ticks.ok_or("the device tree does not say how fast the time passes")?.into(),
        seed,
    })
}
