//! A flattened device tree (Devicetree Specification 0.4, chapter 5), read in place.
//!
//! [`Node::root`] walks the whole tree once and refuses one that is torn or badly nested; after that nodes and
//! properties are found by walking tokens again, which is quick enough for a boot. Each access is checked all the same,
//! and one that fails ends the walk: nothing here can panic. A crate for device trees (dtoolkit, which programs use)
//! was tried here, and was a twelfth of the microkernel's text, with the texts of panics that its own checks rule out.

use core::iter;

const MAGIC: u32 = 0xd00d_feed;
/// The version whose readers can read a tree that this module reads.
const VERSION: u32 = 17;

/// Offsets of the header's fields.
mod header {
    pub const TOTAL_SIZE: usize = 4;
    pub const STRUCTURE: usize = 8;
    pub const STRINGS: usize = 12;
    pub const RESERVATIONS: usize = 16;
    pub const VERSION: usize = 20;
    pub const LAST_COMPATIBLE_VERSION: usize = 24;
}

/// An item of the structure block.
enum Token<'a> {
    /// A node of this name begins.
    Begin(&'a [u8]),
    /// A property of the node that began last and has not ended.
    Property { name: &'a [u8], value: &'a [u8] },
    /// A node ends.
    End,
    /// The tree ends.
    Finish,
}

/// A node of a device tree.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    tree: &'a [u8],
    name: &'a [u8],
    /// Offset of the first token behind the name.
    contents: usize,
}

impl<'a> Node<'a> {
    /// Checks a tree and returns its root; `None` if it is no device tree or a damaged one.
    pub fn root(tree: &'a [u8]) -> Option<Node<'a>> {
        if word(tree, 0)? != MAGIC
            || word(tree, header::VERSION)? < VERSION
            || word(tree, header::LAST_COMPATIBLE_VERSION)? > VERSION
        {
            return None;
        }
        let tree = tree.get(..word(tree, header::TOTAL_SIZE)? as usize)?;
        let mut at = word(tree, header::STRUCTURE)? as usize;
        let Token::Begin(name) = next(tree, &mut at)? else { return None };
        let root = Node { tree, name, contents: at };
        let mut depth = 1;
        while depth > 0 {
            match next(tree, &mut at)? {
                Token::Begin(_) => depth += 1,
                Token::End => depth -= 1,
                Token::Property { .. } => {}
                Token::Finish => return None,
            }
        }
        matches!(next(tree, &mut at)?, Token::Finish).then_some(root)
    }

    /// Returns the node's name without the address behind `@`.
    pub fn name(self) -> &'a [u8] {
        let end = self.name.iter().position(|&byte| byte == b'@');
        end.and_then(|end| self.name.get(..end)).unwrap_or(self.name)
    }

    /// Returns whether this node and one of the same tree are the same.
    pub fn is(self, other: Node) -> bool {
        self.contents == other.contents
    }

    /// Returns the node's name with the address.
    pub fn full_name(self) -> &'a [u8] {
        self.name
    }

    /// Returns the nodes directly below this one.
    pub fn children(self) -> impl Iterator<Item = Node<'a>> {
        let Node { tree, contents: mut at, .. } = self;
        let mut depth = 0;
        iter::from_fn(move || {
            loop {
                match next(tree, &mut at)? {
                    Token::Begin(name) => {
                        depth += 1;
                        if depth == 1 {
                            return Some(Node { tree, name, contents: at });
                        }
                    }
                    Token::End if depth > 0 => depth -= 1,
                    Token::Property { .. } => {}
                    Token::End | Token::Finish => {
                        // Nothing follows for one who asks again.
                        at = tree.len();
                        return None;
                    }
                }
            }
        })
    }

    /// Returns the value of a property.
    pub fn property(self, wanted: &str) -> Option<&'a [u8]> {
        let mut at = self.contents;
        while let Token::Property { name, value } = next(self.tree, &mut at)? {
            if name == wanted.as_bytes() {
                return Some(value);
            }
        }
        None
    }

    /// Returns address and size of each range in the tree's list of reserved memory.
    pub fn reservations(self) -> impl Iterator<Item = (u64, u64)> {
        let tree = self.tree;
        let mut at = word(tree, header::RESERVATIONS).map_or(tree.len(), |start| start as usize);
        iter::from_fn(move || {
            let mut wide = || {
                let value = tree.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
                at += 8;
                value
            };
            Some((wide()?, wide()?)).filter(|&reservation| reservation != (0, 0))
        })
    }
}

/// Returns the item at `at`, and moves `at` behind it. All sums are below 2^34, since the tree's words have 32 bits.
fn next<'a>(tree: &'a [u8], at: &mut usize) -> Option<Token<'a>> {
    const BEGIN: u32 = 1;
    const END: u32 = 2;
    const PROPERTY: u32 = 3;
    const NOTHING: u32 = 4;
    const FINISH: u32 = 9;
    loop {
        let kind = word(tree, *at)?;
        *at += 4;
        return match kind {
            BEGIN => {
                let name = text(tree, *at)?;
                *at = (*at + name.len() + 1).next_multiple_of(4);
                Some(Token::Begin(name))
            }
            PROPERTY => {
                let (length, name) = (word(tree, *at)? as usize, word(tree, *at + 4)? as usize);
                let name = text(tree, word(tree, header::STRINGS)? as usize + name)?;
                let value = tree.get(*at + 8..*at + 8 + length)?;
                *at = (*at + 8 + length).next_multiple_of(4);
                Some(Token::Property { name, value })
            }
            END => Some(Token::End),
            FINISH => Some(Token::Finish),
            NOTHING => continue,
            _ => None,
        };
    }
}

/// Bytes of a name with its zero. The specification allows 31, and twice as many with a unit's address.
const LONGEST_NAME: usize = 256;

fn word(tree: &[u8], at: usize) -> Option<u32> {
    tree.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Returns the name from `at` to the next zero, which must not be far.
fn text(tree: &[u8], at: usize) -> Option<&[u8]> {
    let rest = tree.get(at..)?;
    rest.get(..rest.iter().take(LONGEST_NAME).position(|&byte| byte == 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtoolkit::fdt::{Fdt, FdtNode};
    use dtoolkit::{Node as _, Property as _};

    const TREES: [&[u8]; 3] = [
        include_bytes!("../fixtures/virt-aia.dtb"),
        include_bytes!("../fixtures/virt-plic.dtb"),
        include_bytes!("../fixtures/virt-uintc.dtb"),
    ];

    /// A tree of these structure words, with the strings `a` and `b`.
    fn tree(structure: &[u32]) -> Vec<u8> {
        let strings = 56 + structure.len() as u32 * 4;
        let header = [MAGIC, strings + 4, 56, strings, 40, VERSION, 16, 0, 4, structure.len() as u32 * 4];
        let none = [0; 4];
        let words = header.iter().chain(&none).chain(structure).flat_map(|word| word.to_be_bytes());
        words.chain(*b"a\0b\0").collect()
    }

    #[test]
    fn badly_nested_and_torn_trees_are_refused() {
        let accepts = |structure: &[u32]| Node::root(&tree(structure)).is_some();
        assert!(accepts(&[1, 0, 2, 9]));
        for structure in [
            &[][..],
            &[9],
            &[2, 9],
            &[1, 0, 9],
            &[1, 0, 2],
            &[1, 0, 2, 2, 9],
            &[1, 0, 1, 0, 2, 9],
            &[1, 0, 5, 2, 9],
            // A property outside of a node, one longer than the tree, one whose name is behind the strings.
            &[3, 0, 0, 1, 0, 2, 9],
            &[1, 0, 3, u32::MAX, 0, 2, 9],
            &[1, 0, 3, 0, u32::MAX, 2, 9],
        ] {
            assert!(!accepts(structure), "{structure:?}");
        }
        let whole = tree(&[1, 0, 2, 9]);
        for length in 0..whole.len() {
            assert!(Node::root(&whole[..length]).is_none(), "{length} bytes");
        }
        // Magic, size, structure, version, and the version that a reader needs.
        for (field, value) in [(0, 0), (4, u32::MAX), (8, u32::MAX), (20, 16), (24, 18)] {
            let mut damaged = whole.clone();
            damaged[field..field + 4].copy_from_slice(&u32::to_be_bytes(value));
            assert!(Node::root(&damaged).is_none(), "{value:#x} at {field}");
        }
    }

    #[test]
    fn properties_belong_to_their_own_node_and_nothing_words_are_passed_over() {
        let name = u32::from_be_bytes(*b"n@1\0");
        let bytes = tree(&[4, 1, 0, 3, 4, 0, 7, 4, 1, name, 3, 3, 2, 0x6162_6300, 2, 2, 4, 9]);
        let root = Node::root(&bytes).unwrap();
        assert_eq!(root.property("a"), Some(&[0, 0, 0, 7][..]));
        assert_eq!(root.property("b"), None);
        let mut children = root.children();
        let child = children.next().unwrap();
        assert!(children.next().is_none() && children.next().is_none());
        assert_eq!((child.name(), child.property("b")), (&b"n"[..], Some(&b"abc"[..])));
        assert_eq!((child.property("a"), child.children().count()), (None, 0));
    }

    fn compare(ours: Node, other: FdtNode) -> usize {
        assert_eq!(ours.name(), other.name_without_address().as_bytes());
        for property in other.properties() {
            assert_eq!(ours.property(property.name()), Some(property.value()));
        }
        assert_eq!(ours.property("no such property"), None);
        let (mine, others): (Vec<_>, Vec<_>) = (ours.children().collect(), other.children().collect());
        assert_eq!(mine.len(), others.len());
        1 + mine.into_iter().zip(others).map(|(ours, other)| compare(ours, other)).sum::<usize>()
    }

    #[test]
    fn trees_have_the_contents_that_another_reader_finds() {
        for bytes in TREES {
            let (ours, other) = (Node::root(bytes).unwrap(), Fdt::new(bytes).unwrap());
            assert!(compare(ours, other.root()) > 20);
            let reservations = other.memory_reservations().map(|entry| (entry.address(), entry.size()));
            assert!(ours.reservations().eq(reservations));
        }
    }

    #[test]
    fn reservations_end_with_zeros_or_with_the_tree() {
        let mut bytes = tree(&[1, 0, 2, 9]);
        assert_eq!(Node::root(&bytes).unwrap().reservations().count(), 0);
        bytes[47] = 3;
        bytes[55] = 5;
        let root = Node::root(&bytes).unwrap();
        assert_eq!(root.reservations().next(), Some((3, 5)));
        assert!(root.reservations().count() < 5, "the list runs into the structure, and ends with it");
    }
}
