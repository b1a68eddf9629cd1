//! The host bridge of PCI Express, as the device tree describes it, and the functions behind it.
//!
//! Apart from the [`Description`], which both kernels read: only one of them uses functions.

use drivers::aplic::Trigger;
use drivers::pci::{self, Function, Window};
use heapless::Vec;

use crate::description::{
    Controller, Description, Interrupt, NOT_COHERENT, bytes, cells, each_node, is_compatible, is_enabled, number, wide,
};
use crate::device_tree::Node;
use crate::registers::Mapped;

/// Maximum number of entries of the map of interrupts; a host has four wires for each of at most 32 devices.
const MAXIMUM_WIRES: usize = 128;
/// Cells of an address on the bus: a word of flags and an address of two cells.
const ADDRESS: usize = 3;
/// Cells of a length.
const LENGTH: usize = 2;

/// A host bridge.
#[derive(Clone, Debug)]
pub struct Host {
    /// Physical address and bytes of the functions' configurations.
    configuration: (u64, u64),
    /// Addresses on the bus for registers.
    window: Window,
    /// Bits of a device's number that the map below compares.
    device_mask: u8,
    wires: Vec<Wire, MAXIMUM_WIRES>,
}

/// An entry of the map of interrupts.
#[derive(Clone, Copy, Debug)]
struct Wire {
    device: u8,
    number: u8,
    interrupt: Interrupt,
}

impl Host {
    /// Finds the host bridge; an error is the property that makes it useless, and the reason.
    pub(crate) fn find(tree: &[u8], description: &Description) -> Result<Option<Host>, (&'static str, &'static str)> {
        let Some(root) = Node::root(tree) else { return Ok(None) };
        let mut found = Ok(None);
        each_node(root, &mut |node, bus| {
            if matches!(found, Ok(Some(_))) || !is_enabled(node) || !is_compatible(node, "pci-host-ecam-generic") {
                return;
            }
            if !bus.is_coherent(node) {
                found = Err(NOT_COHERENT);
                return;
            }
            found = match bus.registers(node).filter(|(_, length)| *length >= pci::BUS) {
                None => Err(("reg", "has no configurations of functions that can be reached: no device there is used")),
                Some(configuration) => match window(node, |address, length| bus.physical(address, length)) {
                    None => Err(("ranges", "passes no memory on below 4 GiB: no device there is used")),
                    Some(window) => {
                        let (device_mask, wires) = wires(root, node, description);
                        Ok(Some(Host { configuration, window, device_mask, wires }))
                    }
                },
            };
        });
        found
    }

    /// Gives all functions addresses, and calls `found` with each. Once, before any is used.
    pub fn enumerate(&self, found: &mut dyn FnMut(Function<Mapped>)) {
        let (address, length) = self.configuration;
        let buses = (length / pci::BUS).min(256);
        if let Some(registers) = Mapped::new((address, buses * pci::BUS)) {
            pci::enumerate(&registers, buses, &mut self.window.clone(), found);
        }
    }

    /// Returns the source of a function's wire.
    pub fn interrupt(&self, wire: (u8, u8)) -> Option<Interrupt> {
        let (device, number) = wire;
        let is_meant = |wire: &&Wire| wire.number == number && wire.device == device & self.device_mask;
        self.wires.iter().find(is_meant).map(|wire| wire.interrupt)
    }
}

/// Returns the first window of memory below 4 GiB.
fn window(node: Node, physical: impl Fn(u64, u64) -> Option<u64>) -> Option<Window> {
    /// Kinds of addresses, in bits 24 and 25 of the word of flags.
    const MEMORY: u32 = 2;
    let parent = outer_cells(node)?;
    let entries = bytes(node, "ranges")?.chunks_exact((ADDRESS + parent + LENGTH) * 4);
    entries
        .filter_map(|entry| {
            let (flags, rest) = entry.split_at(4);
            let (start, rest) = rest.split_at(8);
            let (target, length) = rest.split_at(parent * 4);
            let (start, target, length) = (wide(start), wide(target), wide(length));
            let is_memory = wide(flags) as u32 >> 24 & 3 == MEMORY;
            let fits = is_memory && length > 0 && start.checked_add(length)? <= 1 << 32;
            Some(Window::new(start, physical(target, length).filter(|_| fits)?, length))
        })
        .next()
}

/// Returns the cells of an address on the bus above a host, from the length of an entry of its `ranges`.
fn outer_cells(node: Node) -> Option<usize> {
    let length = bytes(node, "ranges")?.len() / 4;
    // Two cells first: the bus of a host is the root nearly always.
    [2, 1].into_iter().find(|cells| length > 0 && length.is_multiple_of(ADDRESS + cells + LENGTH))
}

/// Reads the map of interrupts. Entries of other controllers, and those that name no source, are left out.
fn wires(root: Node, node: Node, description: &Description) -> (u8, Vec<Wire, MAXIMUM_WIRES>) {
    let mut wires = Vec::new();
    let mut mask = cells(bytes(node, "interrupt-map-mask").unwrap_or(&[]));
    let device_mask = (mask.next().unwrap_or(0xf800) >> 11) as u8 & 31;
    let (sources, has_trigger) = match description.controller {
        Controller::None => return (device_mask, wires),
        Controller::Plic { sources, .. } => (sources, false),
        Controller::Aplic { sources, .. } => (sources, true),
    };
    let Some(controller) = description.controller_phandle else { return (device_mask, wires) };
    // The cells of the controller's address, which nothing uses.
    let unused = crate::description::find(root, |node| crate::description::phandle(node) == Some(controller))
        .and_then(|(node, _)| number(node, "#address-cells"))
        .unwrap_or(0)
        .min(2) as usize;
    let length = ADDRESS + 2 + unused + 1 + usize::from(has_trigger);
    for entry in bytes(node, "interrupt-map").unwrap_or(&[]).chunks_exact(4 * length) {
        let mut entry = cells(entry);
        let mut next = || entry.next().unwrap_or(0);
        let device = (next() >> 11) as u8 & 31;
        let _ = (next(), next());
        let number = next() as u8;
        let parent = next();
        (0..unused).for_each(|_| _ = next());
        let source = next();
        let trigger = if has_trigger { Trigger::from_device_tree(next()) } else { Trigger::HighLevel };
        if parent == controller && (1..=sources).contains(&source) {
            // With more than the list holds, the rest is left out.
            let _ = wires.push(Wire { device: device & device_mask, number, interrupt: Interrupt { source, trigger } });
        }
    }
    (device_mask, wires)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_api::BootInformation;
    use proptest::prelude::*;

    const AIA: &[u8] = include_bytes!("../fixtures/virt-aia.dtb");
    const PLIC: &[u8] = include_bytes!("../fixtures/virt-plic.dtb");

    fn description(hart: u64, tree: &[u8]) -> Option<Description<'_>> {
        let boot = BootInformation {
            device_tree: &[],
            device_tree_address: 0x8700_0000,
            boot_hart_id: hart,
            image: (0x8020_0000, 0x8040_0000),
        };
        Description::read(&boot, tree).ok()
    }

    #[test]
    fn the_host_of_qemu() {
        for (tree, first) in [(AIA, 32), (PLIC, 32)] {
            let host = Host::find(tree, &description(0, tree).unwrap()).unwrap().unwrap();
            assert_eq!(host.configuration, (0x3000_0000, 0x1000_0000));
            assert_eq!(host.window, Window::new(0x4000_0000, 0x4000_0000, 0x4000_0000));
            // Four wires, exchanged by the number of the device.
            for device in 0..32u8 {
                for number in 1..=4u8 {
                    let source = first + u32::from((device + number - 1) % 4);
                    let interrupt = Interrupt { source, trigger: Trigger::HighLevel };
                    assert_eq!(host.interrupt((device, number)), Some(interrupt), "{device} {number}");
                }
            }
            assert_eq!(host.interrupt((0, 5)), None);
        }
    }

    #[test]
    fn machines_without_a_host() {
        let tree = crate::boards_tests::SIFIVE_U;
        assert!(Host::find(tree, &description(1, tree).unwrap()).unwrap().is_none());
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// No damage of the host's properties is more than an error, or fewer wires.
        #[test]
        fn damaged_trees(damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
            let whole = description(0, AIA).unwrap();
            let mut tree = AIA.to_vec();
            let start = tree.windows(4).position(|bytes| bytes == b"pci@").unwrap();
            for (place, value) in damages {
                let place = start + place.index(1200);
                tree[place] = value;
            }
            if let Ok(Some(host)) = Host::find(&tree, &whole) {
                prop_assert!(host.configuration.1 >= pci::BUS);
                let _ = host.interrupt((3, 1));
            }
        }
    }
}
