//! Page tables against a list of mappings, in every possible state of a small address space.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use abi_sel4::{Invocation, ObjectType};
use hal_host::Simulation;
use objects::{Capability, FrameSize, PageRights, PageTable, Ref, claim};

use super::Machine;
use crate::derivation;

/// Number of bits of an address that one entry covers, from the root down.
const LEVELS: [u32; 3] = [30, 21, 12];
/// Addresses under one entry and under different entries of each level.
const ADDRESSES: [u64; 3] = [0, 0x20_0000, 0x4000_0000];
/// Logarithms of the sizes of pages: two small ones, of which the second is for one address only, a large one and a
/// huge one.
const PAGES: [u32; 4] = [12, 12, 21, 30];
const OTHER: usize = 1;
const TABLES: usize = 2;

const READ: u64 = 2;
const READ_WRITE: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum Move {
    MapTable(usize, u64),
    UnmapTable(usize),
    MapPage(usize, u64, u64),
    UnmapPage(usize),
}

/// A mapping as stored in its capability, which may still exist or have been removed with a table above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    address: u64,
    /// Number of bits of an address that it covers.
    bits: u32,
    rights: u64,
    is_there: bool,
}

impl Known {
    fn covers(&self, address: u64) -> bool {
        self.is_there && address >> self.bits == self.address >> self.bits
    }
}

/// The mappings stored in the capabilities: ranges without a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Naive {
    tables: [Option<Known>; TABLES],
    pages: [Option<Known>; PAGES.len()],
}

const DONE: u64 = 0;
const INVALID_ARGUMENT: u64 = 1;
const INVALID_CAPABILITY: u64 = 2;
const ALIGNMENT: u64 = 5;
const FAILED_LOOKUP: u64 = 6;
const DELETE_FIRST: u64 = 8;

impl Naive {
    /// Returns the number of mapped tables that cover an address.
    fn depth(&self, address: u64) -> usize {
        self.tables.iter().flatten().filter(|table| table.covers(address)).count()
    }

    fn page_at(&self, address: u64) -> Option<usize> {
        (0..PAGES.len()).find(|&page| self.pages[page].is_some_and(|known| known.covers(address)))
    }

    /// Performs a move; returns the answer to its invocation.
    fn change(&mut self, step: Move) -> u64 {
        match step {
            Move::MapTable(table, address) => {
                let depth = self.depth(address);
                if self.tables[table].is_some() {
                    return INVALID_CAPABILITY;
                }
                if depth == TABLES || self.page_at(address).is_some() {
                    return DELETE_FIRST;
                }
                // A table is identified by the range that it covers, which is one entry of the table above it.
                let bits = LEVELS[depth];
                self.tables[table] = Some(Known { address: address >> bits << bits, bits, rights: 0, is_there: true });
            }
            Move::UnmapTable(table) => {
                if let Some(gone) = self.tables[table].take() {
                    let below = |known: &&mut Known| gone.covers(known.address) && known.bits < gone.bits;
                    let known = self.tables.iter_mut().chain(&mut self.pages).flatten();
                    known.filter(below).for_each(|known| known.is_there = false);
                }
            }
            Move::MapPage(page, address, rights) => {
                let bits = PAGES[page];
                if address % (1 << bits) != 0 {
                    return ALIGNMENT;
                }
                if LEVELS[self.depth(address)] != bits {
                    return FAILED_LOOKUP;
                }
                let there = self.page_at(address);
                match self.pages[page] {
                    Some(known) if known.address != address => return INVALID_ARGUMENT,
                    None if there.is_some() => return DELETE_FIRST,
                    _ => {}
                }
                // A page whose table was removed can be mapped again, in place of any page there.
                if let Some(other) = there.and_then(|other| self.pages[other].as_mut()) {
                    other.is_there = false;
                }
                self.pages[page] = Some(Known { address, bits, rights, is_there: true });
            }
            Move::UnmapPage(page) => self.pages[page] = None,
        }
        DONE
    }
}

/// A machine with an address space whose tables and pages are capabilities of the first thread.
struct Space {
    machine: Machine,
    root: Ref<PageTable>,
    space: u64,
}

impl Space {
    fn new(simulation: &Simulation) -> Space {
        let machine = Machine::new(simulation);
        let (untyped, space) = (machine.untyped(16), machine.first_empty());
        assert_eq!(machine.retype(untyped, ObjectType::PageTable, 0, space, 1 + TABLES as u64).0, DONE);
        assert_eq!(machine.call(6, Invocation::AsidPoolAssign, &[], &[space]).0, DONE);
        let Capability::PageTable { table: root, .. } = machine.slot(space).capability.get() else {
            panic!("no root");
        };
        let space = Space { machine, root, space };
        // Pages of a device, because the fake memory has no room for huge ones.
        let device = space.machine.slot(space.machine.information(19));
        for (page, bits) in PAGES.into_iter().enumerate() {
            let size = [FrameSize::Small, FrameSize::Mega, FrameSize::Giga].into_iter().find(|it| it.bits() == bits);
            let (base, size) = (Space::base(page), size.expect("the machine has pages of these sizes"));
            let rights = PageRights::ReadWrite;
            let frame = Capability::Frame { base, size, rights, device: true, mapping: None };
            derivation::insert_new(device, space.machine.slot(space.page(page)), frame);
        }
        space
    }

    /// Returns the slot of a table.
    fn table(&self, table: usize) -> u64 {
        self.space + 1 + table as u64
    }

    /// Returns the slot of a page.
    fn page(&self, page: usize) -> u64 {
        self.table(TABLES) + page as u64
    }

    /// Returns the physical address of a page.
    fn base(page: usize) -> u64 {
        (1 + page as u64) << 32
    }

    fn change(&self, step: Move) -> u64 {
        let call = |slot, invocation, words: &[u64]| self.machine.call(slot, invocation, words, &[self.space]).0;
        match step {
            Move::MapTable(table, address) => call(self.table(table), Invocation::PageTableMap, &[address, 0]),
            Move::UnmapTable(table) => call(self.table(table), Invocation::PageTableUnmap, &[]),
            Move::MapPage(page, address, rights) => call(self.page(page), Invocation::PageMap, &[address, rights, 1]),
            Move::UnmapPage(page) => call(self.page(page), Invocation::PageUnmap, &[]),
        }
    }

    /// Unmaps all pages and tables.
    fn clear(&self) {
        let pages = (0..PAGES.len()).map(Move::UnmapPage);
        for step in pages.chain((0..TABLES).map(Move::UnmapTable)) {
            assert_eq!(self.change(step), DONE);
        }
        assert!(self.root.entries[..256].iter().all(|entry| entry.load(Ordering::Relaxed) == 0));
    }

    /// Translates as the machine does: returns the physical address and whether the page is writable.
    fn translate(&self, address: u64) -> Option<(u64, bool)> {
        let mut table = self.root;
        for bits in LEVELS {
            let entry = table.entries[(address >> bits) as usize & 511].load(Ordering::Relaxed);
            if entry & 1 == 0 {
                return None;
            }
            let target = (entry >> 10 & ((1 << 44) - 1)) << 12;
            if entry & 0b1110 != 0 {
                assert_eq!(target % (1 << bits), 0, "a large page is aligned");
                assert_eq!(entry & 0xff & !0b100, 0b1101_0011, "readable, for user mode, accessed, dirty");
                return Some((target + address % (1 << bits), entry & 0b100 != 0));
            }
            assert_eq!(entry & 0xff, 1, "an entry that leads to a table has no other bits");
            table = claim(target);
        }
        panic!("there is a table below the last one");
    }

    /// Compares the machine's translations with the list.
    fn check(&self, naive: &Naive, step: Move) {
        for start in ADDRESSES {
            for address in [start, start + 0xfff, start + 0x1000, start + 0x1f_ffff] {
                let page = naive.page_at(address).and_then(|page| naive.pages[page].map(|known| (page, known)));
                let expected = page
                    .map(|(page, known)| (Space::base(page) + address % (1 << known.bits), known.rights == READ_WRITE));
                assert_eq!(self.translate(address), expected, "{address:#x} in {naive:?} after {step:?}");
            }
        }
    }
}

/// Tries every history of any length of a small space: visits each reachable state and tries each move in it, until no
/// move leads to a new state.
#[test]
fn every_history_of_a_small_address_space_agrees_with_a_list() {
    let simulation = Simulation::new();
    let space = Space::new(&simulation);
    let mut moves = Vec::new();
    for address in ADDRESSES {
        moves.extend((0..TABLES).map(|table| Move::MapTable(table, address)));
        moves.extend((0..PAGES.len()).filter(|&page| page != OTHER).map(|page| Move::MapPage(page, address, READ)));
    }
    moves.extend([Move::MapPage(0, 0, READ_WRITE), Move::MapPage(OTHER, 0, READ_WRITE)]);
    moves.extend((0..TABLES).map(Move::UnmapTable).chain((0..PAGES.len()).map(Move::UnmapPage)));
    let mut known = BTreeSet::from([Naive::default()]);
    let mut new = VecDeque::from([(Naive::default(), Vec::<Move>::new())]);
    while let Some((naive, history)) = new.pop_front() {
        for &step in &moves {
            history.iter().for_each(|&earlier| assert_eq!(space.change(earlier), DONE));
            let mut after = naive.clone();
            let expected = after.change(step);
            assert_eq!(space.change(step), expected, "{step:?} in {naive:?}");
            space.check(&after, step);
            if known.insert(after.clone()) {
                space.machine.kernel.check();
                new.push_back((after, history.iter().copied().chain([step]).collect()));
            }
            space.clear();
        }
        if cfg!(miri) && known.len() > 20 {
            return;
        }
    }
    // A smaller number would mean that moves have no effect.
    assert_eq!(known.len(), 3552);
}
