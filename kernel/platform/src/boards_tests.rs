//! The device trees of the boards, whole and with one property changed at a time: each change is found, said with node
//! and property, or harmless.

use std::vec;
use std::vec::Vec;

use drivers::uart::UartKind;
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node as _, Property as _};
use hal_api::BootInformation;

use crate::description::{Controller, Damaged, Description, Ethernet, NOT_COHERENT};
use crate::pci::Host;

/// SiFive's HiFive Unleashed, as QEMU makes it for five harts and 1 GiB.
pub const SIFIVE_U: &[u8] = include_bytes!("../fixtures/sifive-u.dtb");
/// Microchip's Icicle Kit: boards/icicle.dts.
pub const ICICLE: &[u8] = include_bytes!("../fixtures/icicle.dtb");

/// A node that can be changed.
#[derive(Clone)]
struct Branch {
    name: Vec<u8>,
    properties: Vec<(Vec<u8>, Vec<u8>)>,
    children: Vec<Branch>,
}

impl Branch {
    fn of(node: FdtNode) -> Branch {
        Branch {
            name: node.name().as_bytes().to_vec(),
            properties: node
                .properties()
                .map(|property| (property.name().as_bytes().to_vec(), property.value().to_vec()))
                .collect(),
            children: node.children().map(Branch::of).collect(),
        }
    }

    fn find(&mut self, path: &str) -> &mut Branch {
        path.split('/').filter(|name| !name.is_empty()).fold(self, |node, name| {
            let found = node.children.iter_mut().find(|child| child.name == name.as_bytes());
            found.unwrap_or_else(|| panic!("there is no {name} of {path}"))
        })
    }

    fn remove(&mut self, property: &str) {
        let before = self.properties.len();
        self.properties.retain(|(name, _)| name != property.as_bytes());
        assert_eq!(self.properties.len() + 1, before, "there is no {property}");
    }

    fn set(&mut self, property: &str, value: &[u8]) {
        self.properties.retain(|(name, _)| name != property.as_bytes());
        self.properties.push((property.into(), value.into()));
    }

    fn write(&self, structure: &mut Vec<u8>, strings: &mut Vec<u8>) {
        let pad = |structure: &mut Vec<u8>| structure.resize(structure.len().next_multiple_of(4), 0);
        structure.extend(1_u32.to_be_bytes());
        structure.extend(&self.name);
        structure.push(0);
        pad(structure);
        for (name, value) in &self.properties {
            let words = [3, value.len() as u32, strings.len() as u32];
            structure.extend(words.iter().flat_map(|word| word.to_be_bytes()));
            structure.extend(value);
            pad(structure);
            strings.extend(name);
            strings.push(0);
        }
        self.children.iter().for_each(|child| child.write(structure, strings));
        structure.extend(2_u32.to_be_bytes());
    }

    fn flatten(&self) -> Vec<u8> {
        let (mut structure, mut strings) = (Vec::new(), Vec::new());
        self.write(&mut structure, &mut strings);
        structure.extend(9_u32.to_be_bytes());
        let behind = 56 + structure.len() as u32;
        let sizes = [strings.len() as u32, structure.len() as u32];
        let header = [0xd00d_feed, behind + sizes[0], 56, behind, 40, 17, 16, 0, sizes[0], sizes[1]];
        let words = header.iter().chain(&[0; 4]).flat_map(|word: &u32| word.to_be_bytes());
        words.chain(structure).chain(strings).collect()
    }
}

fn cells(cells: &[u32]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
}

fn read(tree: &[u8]) -> Result<Description<'_>, Damaged> {
    let boot = BootInformation {
        device_tree: &[],
        device_tree_address: 0x8700_0000,
        boot_hart_id: 1,
        image: (0x8020_0000, 0x8040_0000),
    };
    Description::read(&boot, tree)
}

/// Paths of a board's nodes.
struct Paths {
    tree: &'static [u8],
    plic: &'static str,
    serial: &'static str,
    ethernet: &'static str,
}

const BOARDS: [Paths; 2] = [
    Paths {
        tree: SIFIVE_U,
        plic: "/soc/interrupt-controller@c000000",
        serial: "/soc/serial@10010000",
        ethernet: "/soc/ethernet@10090000",
    },
    Paths {
        tree: ICICLE,
        plic: "/soc/interrupt-controller@c000000",
        serial: "/soc/serial@20000000",
        ethernet: "/soc/ethernet@20110000",
    },
];

impl Paths {
    /// Changes the tree; the result is what the kernel says, in words, if anything.
    fn changed(&self, change: impl FnOnce(&mut Branch)) -> Vec<u8> {
        let mut tree = Branch::of(Fdt::new(self.tree).unwrap().root());
        change(&mut tree);
        tree.flatten()
    }

    /// Changes a node; the tree must be refused with these words.
    fn refused(&self, path: &str, words: &[&str], change: impl FnOnce(&mut Branch)) {
        let tree = self.changed(|tree| change(tree.find(path)));
        let said = read(&tree).expect_err(path).0;
        assert!(words.iter().all(|word| said.contains(word)), "{path}: {said}");
    }

    /// Changes a node; the tree must be accepted, with a remark of these words.
    fn remarked(&self, path: &str, words: &[&str], change: impl FnOnce(&mut Branch)) {
        let tree = self.changed(|tree| change(tree.find(path)));
        let found = read(&tree).unwrap();
        let said: Vec<_> = found.remarks.iter().map(|remark| std::format!("{remark}")).collect();
        let is_said = said.iter().any(|said| words.iter().all(|word| said.contains(word)));
        assert!(is_said, "{path}: {said:?}");
    }
}

#[test]
fn the_boards_are_recognised() {
    let unleashed = read(SIFIVE_U).unwrap();
    assert_eq!(unleashed.hart_ids, [1, 2, 3, 4]);
    assert_eq!(unleashed.timebase_frequency, 1_000_000);
    assert_eq!(unleashed.memory, [(0x8000_0000, 0xc000_0000)]);
    assert!(!unleashed.has_timer_register && !unleashed.has_hypervisor);
    let serial = unleashed.serial.unwrap();
    assert_eq!((serial.device.address, serial.kind), (0x1001_0000, UartKind::SiFive));
    assert_eq!(serial.device.interrupt.unwrap().source, 4);
    let [Ethernet { device, .. }] = unleashed.ethernet[..] else { panic!() };
    assert_eq!((device.address, device.interrupt.unwrap().source), (0x1009_0000, 53));
    assert!(unleashed.remarks.is_empty() && unleashed.virtio.is_empty());
    let Controller::Plic { contexts, sources, .. } = unleashed.controller else { panic!() };
    assert_eq!((contexts[..4].to_vec(), sources), ([2, 4, 6, 8].map(Some).to_vec(), 53));

    let icicle = read(ICICLE).unwrap();
    assert_eq!(icicle.hart_ids, [1, 2, 3, 4]);
    assert_eq!(icicle.memory, [(0x8000_0000, 0xc000_0000)]);
    let serial = icicle.serial.unwrap();
    assert_eq!((serial.device.address, serial.kind), (0x2000_0000, UartKind::Ns16550 { shift: 2 }));
    let [Ethernet { device, .. }] = icicle.ethernet[..] else { panic!() };
    assert_eq!((device.address, device.interrupt.unwrap().source), (0x2011_0000, 64));
    let remarks: Vec<_> = icicle.remarks.iter().map(|remark| std::format!("{remark}")).collect();
    assert_eq!(remarks, ["memory@1000000000: `reg` has 513 MiB above 64 GiB: they are not used"]);
}

#[test]
fn what_a_kernel_needs_is_missed_by_name() {
    for board in BOARDS {
        board.refused("/", &["/cpus"], |root| root.children.retain(|child| child.name != b"cpus"));
        board.refused("/cpus", &["/cpus", "`timebase-frequency`"], |cpus| cpus.remove("timebase-frequency"));
        board.refused("/cpus", &["/cpus", "`timebase-frequency`"], |cpus| cpus.set("timebase-frequency", &[0; 4]));
        board.refused("/cpus/cpu@1", &["/cpus/cpu", "`reg`"], |cpu| cpu.remove("reg"));
        board.refused("/cpus/cpu@1", &["/cpus/cpu", "`reg`"], |cpu| cpu.set("reg", &[0, 1]));
        board.refused("/cpus/cpu@1", &["/cpus/cpu", "`status`"], |cpu| cpu.set("status", b"disabled\0"));
        board.refused("/cpus/cpu@1", &["/cpus/cpu", "`mmu-type`"], |cpu| cpu.remove("mmu-type"));
        board.refused("/cpus/cpu@1", &["/cpus/cpu", "`mmu-type`"], |cpu| cpu.set("mmu-type", b"riscv,sv32\0"));
        let memory = "/memory@80000000";
        let outside = ["/memory", "`reg`", "the kernel lies outside"];
        board.refused(memory, &outside, |memory| memory.remove("reg"));
        board.refused(memory, &outside, |memory| memory.set("reg", &[0; 7]));
        board.refused(memory, &outside, |memory| memory.remove("device_type"));
        board.refused(memory, &outside, |memory| memory.set("reg", &cells(&[0, 0x9000_0000, 0, 0x1000])));
        board.refused("/", &outside, |root| root.set("#address-cells", &cells(&[3])));
        let pieces: Vec<u32> = (0..40).flat_map(|piece| [0, 0x8000_0000 + piece * 0x10_0000, 0, 0x1000]).collect();
        board.refused(memory, &["too many pieces", "/memory", "`reg`"], |memory| memory.set("reg", &cells(&pieces)));
        board.refused("/chosen", &["/chosen", "`linux,initrd-start`"], |chosen| {
            chosen.set("linux,initrd-start", &cells(&[0x1000]));
            chosen.set("linux,initrd-end", &cells(&[0x2000]));
        });
    }
}

#[test]
fn what_a_kernel_can_do_without_is_left_out_with_a_remark() {
    for board in BOARDS {
        let Paths { plic, serial, ethernet, .. } = board;
        board.remarked(plic, &["interrupt-controller@c000000", "`riscv,ndev`"], |plic| plic.remove("riscv,ndev"));
        board.remarked(plic, &["interrupt-controller@c000000", "`riscv,ndev`"], |plic| plic.set("riscv,ndev", &[0; 4]));
        board.remarked(plic, &["interrupt-controller@c000000", "`reg`"], |plic| plic.remove("reg"));
        let short = cells(&[0, 0xc00_0000, 0, 0x20_0000]);
        board.remarked(plic, &["interrupt-controller@c000000", "`reg`"], |plic| plic.set("reg", &short));
        let nobody = ["interrupt-controller@c000000", "`interrupts-extended`"];
        board.remarked(plic, &nobody, |plic| plic.set("interrupts-extended", &cells(&[99, 9])));
        board.remarked(plic, &nobody, |plic| plic.remove("interrupts-extended"));
        board.remarked(serial, &["serial@", "`reg`"], |serial| serial.remove("reg"));
        board.remarked(serial, &["serial@", "`reg`"], |serial| serial.set("reg", &cells(&[0, 0x2000_0000, 0, 4])));
        let beyond = cells(&[u32::MAX, u32::MAX, 0, 0x1000]);
        board.remarked(serial, &["serial@", "`reg`"], |serial| serial.set("reg", &beyond));
        for source in [0, 1000, u32::MAX] {
            let source = cells(&[source]);
            board.remarked(serial, &["serial@", "`interrupts`"], |serial| serial.set("interrupts", &source));
            board.remarked(ethernet, &["ethernet@", "`interrupts`"], |ethernet| ethernet.set("interrupts", &source));
        }
        board.remarked(serial, &["serial@", "`interrupts`"], |serial| serial.remove("interrupts"));
        board.remarked(ethernet, &["ethernet@", "`reg`"], |ethernet| ethernet.set("reg", &[1; 15]));
        board.remarked("/chosen", &["chosen", "`bootargs`"], |chosen| chosen.set("bootargs", &[0xff, 0]));
        board.remarked("/chosen", &["chosen", "`linux,initrd-end`"], |chosen| {
            chosen.properties.retain(|(name, _)| name != b"linux,initrd-end");
            chosen.set("linux,initrd-start", &cells(&[0x8800_0000]));
        });
        board.remarked("/soc", &["interrupt-controller@c000000", "`reg`"], |soc| soc.remove("ranges"));
        board.remarked("/soc", &["serial@", "`reg`"], |soc| soc.set("ranges", &[0; 3]));
        board.remarked("/memory@80000000", &["memory@80000000", "`reg`", "MiB above 64 GiB"], |memory| {
            memory.set("reg", &cells(&[0, 0x8000_0000, u32::MAX, u32::MAX]));
        });
        board.remarked("/cpus", &["cpus", "`reg`", "eight harts"], |cpus| {
            for number in 5..10_u32 {
                let mut cpu = cpus.children.last().unwrap().clone();
                cpu.name = std::format!("cpu@{number}").into_bytes();
                cpu.set("reg", &cells(&[number]));
                cpus.children.push(cpu);
            }
        });
    }
    // Of the 16550 alone.
    BOARDS[1].remarked(BOARDS[1].serial, &["serial@", "`reg-shift`"], |serial| serial.set("reg-shift", &cells(&[4])));
}

#[test]
fn devices_that_do_not_see_the_caches_are_not_used() {
    let found = |board: &Paths, path: &str, change: &dyn Fn(&mut Branch)| {
        let tree = board.changed(|tree| {
            change(tree.find(board.ethernet));
            tree.find(path).set("dma-noncoherent", &[]);
        });
        read(&tree).unwrap().ethernet.len()
    };
    for board in BOARDS {
        for path in ["/", "/soc", board.ethernet] {
            let words = ["ethernet@", "`dma-noncoherent`", "not used"];
            board.remarked(path, &words, |node| node.set("dma-noncoherent", &[]));
            assert_eq!(found(&board, path, &|_| {}), 0, "{path}");
        }
        // The nearest mark counts, and a device that reads no memory needs none.
        assert_eq!(found(&board, "/soc", &|ethernet| ethernet.set("dma-coherent", &[])), 1);
        assert_eq!(found(&board, board.serial, &|_| {}), 1);
    }
}

#[test]
fn a_host_of_pci_that_does_not_see_the_caches_is_not_used() {
    let machine = Paths { tree: include_bytes!("../fixtures/virt-plic.dtb"), ..BOARDS[0] };
    let found = |tree: &[u8]| Host::find(tree, &read(&machine.changed(|_| ())).unwrap()).map(|host| host.is_some());
    let host = "/soc/pci@30000000";
    let changed = |mark: &str| {
        machine.changed(|tree| {
            tree.find("/soc").set("dma-noncoherent", &[]);
            tree.find(host).properties.retain(|(name, _)| !name.starts_with(b"dma-"));
            tree.find(host).set(mark, &[]);
        })
    };
    assert_eq!(found(&changed("dma-coherent")), Ok(true));
    assert_eq!(found(&changed("other")), Err(NOT_COHERENT));
}

#[test]
fn harmless_differences_of_boards_are_none() {
    for board in BOARDS {
        // Harts without paging are not used, whatever the tree calls that.
        for mmu in [&b"riscv,none\0"[..], b"riscv,sv32\0", b"\0"] {
            let tree = board.changed(|tree| tree.find("/cpus/cpu@3").set("mmu-type", mmu));
            assert_eq!(read(&tree).unwrap().hart_ids, [1, 2, 4]);
        }
        // Memory that is reserved by its size alone, for a kernel to find a place.
        let tree = board.changed(|tree| {
            let (address, size) = (cells(&[2]), cells(&[0, 0x1000_0000]));
            let pool = Branch { name: b"pool".into(), properties: vec![(b"size".into(), size)], children: vec![] };
            let cells = [b"#address-cells".into(), b"#size-cells".into()].map(|name: Vec<u8>| (name, address.clone()));
            let name = b"reserved-memory".into();
            tree.children.push(Branch { name, properties: cells.into(), children: vec![pool] });
        });
        let found = read(&tree).unwrap();
        assert_eq!(found.memory, [(0x8000_0000, 0xc000_0000)]);
        // A bus that adds to addresses, in a bus that does, too; and one with addresses of one cell.
        let tree = board.changed(|tree| {
            let soc = tree.find("/soc");
            soc.set("ranges", &cells(&[0, 0, 0x1, 0, 0, 0x4000_0000, 0, 0, 0x2, 0, 1, 0]));
            let at = soc.children.iter().position(|child| board.ethernet.ends_with(text(&child.name))).unwrap();
            let mut ethernet = soc.children.remove(at);
            ethernet.set("reg", &cells(&[0x1000, 0x2000]));
            let ranges = cells(&[0, 0, 0x3000_0000, 0x10_0000]);
            let one = cells(&[1]);
            let properties = [("ranges", ranges), ("#address-cells", one.clone()), ("#size-cells", one)];
            let properties = properties.map(|(name, value)| (name.into(), value)).into();
            soc.children.push(Branch { name: b"bus".into(), properties, children: vec![ethernet] });
        });
        let found = read(&tree).unwrap();
        assert_eq!(found.ethernet[0].device.address, 0x1_3000_1000);
        let Controller::Plic { registers, .. } = found.controller else { panic!() };
        assert_eq!(registers.0, 0x1_0c00_0000);
        // A register that the window of the bus cuts.
        let tree = board.changed(|tree| tree.find("/soc").set("ranges", &cells(&[0, 0, 0, 0, 0, 0x0c00_1000])));
        let found = read(&tree).unwrap();
        assert_eq!((found.controller, found.serial), (Controller::None, None));
        // Sources beyond 255.
        let tree = board.changed(|tree| {
            tree.find(board.plic).set("riscv,ndev", &cells(&[0x1000]));
            tree.find(board.serial).set("interrupts", &cells(&[1023]));
        });
        assert_eq!(read(&tree).unwrap().serial.unwrap().device.interrupt.unwrap().source, 1023);
        // Hardware addresses are six bytes.
        for (bytes, expected) in [(&[2, 1, 2, 3, 4, 5][..], Some([2, 1, 2, 3, 4, 5])), (&[1; 5], None), (&[], None)] {
            let tree = board.changed(|tree| tree.find(board.ethernet).set("local-mac-address", bytes));
            assert_eq!(read(&tree).unwrap().ethernet[0].address, expected);
        }
        let tree = board.changed(|tree| tree.find(board.ethernet).set("status", b"disabled\0"));
        assert!(read(&tree).unwrap().ethernet.is_empty());
        // The console is the one that the firmware names, or else the first.
        for path in ["", "/", "/soc/nothing", "nothing", "nothing:115200", "/soc/ethernet", ":"] {
            let tree = board
                .changed(|tree| tree.find("/chosen").set("stdout-path", [path.as_bytes(), b"\0"].concat().as_slice()));
            assert_eq!(read(&tree).unwrap().serial, read(board.tree).unwrap().serial);
        }
    }
    for path in [&b"/soc/serial@10011000\0"[..], b"second:115200n8\0"] {
        let tree = BOARDS[0].changed(|tree| {
            tree.find("/chosen").set("stdout-path", path);
            tree.find("/aliases").set("second", b"/soc/serial@10011000\0");
        });
        assert_eq!(read(&tree).unwrap().serial.unwrap().device.address, 0x1001_1000);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
