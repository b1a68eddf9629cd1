//! The device tree for the kernel: the firmware's, with the boot words and the archive in `/chosen`.

use alloc::vec::Vec;
use core::ops::Range;

use dtoolkit::fdt::Fdt;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use dtoolkit::{Node as _, Property as _};

use crate::Reason;

/// A device tree for the kernel.
#[derive(Debug)]
pub struct Prepared {
    /// The tree.
    pub tree: Vec<u8>,
    /// The hart that starts, if the firmware's tree names it.
    pub hart: Option<u64>,
}

/// Returns a copy of a device tree with these boot words, and an archive at these addresses.
///
/// # Errors
///
/// It is no device tree.
pub fn prepare(tree: &[u8], words: &str, archive: Range<u64>) -> Result<Prepared, Reason> {
    let mut tree = DeviceTree::from_fdt(&Fdt::new(tree).map_err(|_| Reason::BadDeviceTree)?);
    if tree.root.child("chosen").is_none() {
        tree.root.add_child(DeviceTreeNode::new_unchecked("chosen"));
    }
    let chosen = tree.root.child_mut("chosen").ok_or(Reason::BadDeviceTree)?;
    let hart = chosen.property("boot-hartid").and_then(|property| number(property.value()));
    let mut set = |property: DeviceTreeProperty| {
        chosen.remove_property((&property).name());
        chosen.add_property(property);
    };
    set(DeviceTreeProperty::new_unchecked("bootargs", words));
    set(DeviceTreeProperty::new_unchecked("linux,initrd-start", archive.start));
    set(DeviceTreeProperty::new_unchecked("linux,initrd-end", archive.end));
    Ok(Prepared { tree: tree.to_dtb(), hart })
}

/// Reads one cell, or two.
fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        4 => Some(u32::from_be_bytes(value.try_into().ok()?).into()),
        8 => Some(u64::from_be_bytes(value.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(chosen: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tree = DeviceTree::new();
        let mut memory = DeviceTreeNode::new_unchecked("memory@80000000");
        memory.add_property(DeviceTreeProperty::new_unchecked("device_type", "memory"));
        tree.root.add_child(memory);
        if !chosen.is_empty() {
            let mut node = DeviceTreeNode::new_unchecked("chosen");
            for (name, value) in chosen {
                node.add_property(DeviceTreeProperty::new_unchecked(*name, *value));
            }
            tree.root.add_child(node);
        }
        tree.to_dtb()
    }

    fn of_chosen(tree: &[u8], name: &str) -> Option<Vec<u8>> {
        let tree = DeviceTree::from_fdt(&Fdt::new(tree).unwrap());
        Some(tree.root.child("chosen")?.property(name)?.value().to_vec())
    }

    #[test]
    fn words_and_archive_stand_in_chosen() {
        let others: &[(&str, &[u8])] = &[("stdout-path", b"/serial\0"), ("bootargs", b"quiet\0")];
        for chosen in [&[][..], others] {
            let prepared = prepare(&tree(chosen), "init=/bin/hello", 0x8400_0000..0x1_0000_0000).unwrap();
            let of = |name| of_chosen(&prepared.tree, name);
            assert_eq!(of("bootargs").unwrap(), b"init=/bin/hello\0");
            assert_eq!(of("linux,initrd-start").unwrap(), 0x8400_0000_u64.to_be_bytes());
            assert_eq!(of("linux,initrd-end").unwrap(), 0x1_0000_0000_u64.to_be_bytes());
            assert_eq!(of("stdout-path").is_some(), !chosen.is_empty());
            let tree = DeviceTree::from_fdt(&Fdt::new(&prepared.tree).unwrap());
            assert!(tree.root.child("memory@80000000").is_some());
        }
    }

    #[test]
    fn the_hart_is_one_cell_or_two() {
        let hart = |value: &[u8]| prepare(&tree(&[("boot-hartid", value)]), "", 0..0).unwrap().hart;
        assert_eq!(hart(&3_u32.to_be_bytes()), Some(3));
        assert_eq!(hart(&5_u64.to_be_bytes()), Some(5));
        assert_eq!(hart(b"abc"), None);
    }

    #[test]
    fn damaged_trees_are_refused() {
        let whole = tree(&[("bootargs", b"x\0")]);
        for length in 0..whole.len() {
            assert!(prepare(&whole[..length], "", 0..0).is_err(), "{length}");
        }
        for place in 0..whole.len() {
            for value in [0, 1, 2, 3, 9, 0xff] {
                let mut tree = whole.clone();
                tree[place] = value;
                let _ = prepare(&tree, "", 0..0);
            }
        }
    }
}
