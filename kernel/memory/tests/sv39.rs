//! Page tables against a map from page to frame, and against a fake TLB that holds every entry that it could.

use memory::sv39::{
    Access, DEVICE_RANGES, DevicePage, Edge, InvalidDevices, KernelHalf, Leaf, MapError, PageTable, Protection,
    RootSize, Scope, Translation, USER, WritableAndExecutable, permit_devices,
};
use memory::{Block, Frame, PAGE_SIZE, fake, frames};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    fake::init(64 << 20);
    // Only the first call of the program counts.
    let _ = permit_devices(std::slice::from_ref(&(0x1000_0000..0x2000_0000)));
    guard
}

/// Reads an entry as the hardware would: a word of physical memory. Fake memory has a frame for each address.
fn walk(table: &PageTable, address: u64) -> Option<(u64, u64)> {
    let offset = {
        let probe = Block::allocate_zeroed(0).expect("there is memory");
        (probe.pointer().as_ptr().expose_provenance() as u64).wrapping_sub(probe.physical_address())
    };
    let mut at = table.root_address();
    for level in [2, 1, 0] {
        let index = address >> (12 + 9 * level) & 511;
        let pointer = std::ptr::with_exposed_provenance::<u64>((at + index * 8).wrapping_add(offset) as usize);
        // SAFETY: the tables are fake memory, and do not change during the test.
        let entry = unsafe { pointer.read_volatile() };
        if entry & 1 == 0 {
            return None;
        }
        let next = (entry >> 10 & ((1 << 44) - 1)) << 12;
        if entry & 0b1110 != 0 {
            return (level == 0).then_some((next + address % PAGE_SIZE, entry & 0xff));
        }
        assert_eq!(entry & 0xff, 1, "a pointer to a table has no other bits");
        at = next;
    }
    None
}

fn bits(protection: Protection) -> u64 {
    match protection {
        Protection::None => 0,
        Protection::Read => 0b0010,
        Protection::ReadWrite => 0b0110,
        Protection::Execute => 0b1000,
        Protection::ReadExecute => 0b1010,
    }
}

const PROTECTIONS: [Protection; 5] =
    [Protection::None, Protection::Read, Protection::ReadWrite, Protection::Execute, Protection::ReadExecute];

#[derive(Clone, Debug)]
enum Step {
    Map(u64, usize, bool),
    Unmap(u64, u64),
    Protect(u64, u64, usize),
}

/// Pages around the borders of tables of every level, so that all of them appear and vanish.
fn page() -> impl Strategy<Value = u64> {
    let borders = prop_oneof![Just(0u64), Just(0x20_0000), Just(0x4000_0000), Just(0x3f_c000_0000), Just(USER.end)];
    (borders, -6i64..6).prop_map(|(border, pages)| border.wrapping_add_signed(pages * 4096))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (page(), 0..5usize, any::<bool>()).prop_map(|(page, protection, device)| Step::Map(page, protection, device)),
        2 => (page(), page()).prop_map(|(start, end)| Step::Unmap(start.min(end), start.max(end))),
        1 => (page(), page(), 0..5usize).prop_map(|(start, end, protection)| {
            Step::Protect(start.min(end), start.max(end), protection)
        }),
    ]
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn tables_behave_like_a_map(steps in prop::collection::vec(step(), 1..120), large in any::<bool>()) {
        let _alone = alone();
        let before = frames::free_frames();
        {
            let size = if large { RootSize::Shared } else { RootSize::Page };
            let mut table = PageTable::new(&KernelHalf::empty(), size).expect("there is memory");
            let empty = table.table_frames();
            prop_assert_eq!(empty, if large { 4 } else { 1 });
            let mut model = BTreeMap::<u64, (u64, Protection)>::new();
            for (count, step) in steps.into_iter().enumerate() {
                let old = model.clone();
                let mut scope = Scope::Nothing;
                match step {
                    Step::Map(page, protection, device) => {
                        let protection = PROTECTIONS[protection];
                        let leaf = if device {
                            Leaf::Device(DevicePage::new(0x1000_0000 + count as u64 * PAGE_SIZE).expect("no memory"))
                        } else {
                            Leaf::Owned(Frame::allocate_zeroed().expect("there is memory"))
                        };
                        let address = match &leaf {
                            Leaf::Owned(frame) => frame.physical_address(),
                            Leaf::Device(_) => 0x1000_0000 + count as u64 * PAGE_SIZE,
                        };
                        match table.map(page, leaf, protection) {
                            Ok(()) => {
                                prop_assert!(USER.contains(&page));
                                prop_assert!(model.insert(page, (address, protection)).is_none());
                            }
                            Err((MapError::Occupied, _)) => prop_assert!(model.contains_key(&page)),
                            Err((MapError::InvalidAddress, _)) => prop_assert!(!USER.contains(&page)),
                            Err((MapError::OutOfMemory, _)) => prop_assert!(false, "there is memory"),
                        }
                    }
                    Step::Unmap(start, end) => {
                        let unmapped = table.unmap(start..end);
                        scope = unmapped.scope().clone();
                        let gone = model.range(start..end).filter(|(_, (at, _))| *at >= fake::BASE).count();
                        prop_assert_eq!(unmapped.pages(), gone);
                        model.retain(|page, _| !(start..end).contains(page));
                        unmapped.after(|_| ());
                    }
                    Step::Protect(start, end, protection) => {
                        let protection = PROTECTIONS[protection];
                        let unmapped = table.protect(start..end, protection);
                        scope = unmapped.scope().clone();
                        prop_assert_eq!(unmapped.pages(), 0);
                        for (_, entry) in model.range_mut(start..end) {
                            entry.1 = protection;
                        }
                        unmapped.after(|_| ());
                    }
                }
                // Every changed page that a TLB could hold must be named.
                for (page, was) in &old {
                    if was.1 != Protection::None && model.get(page) != Some(was) {
                        let named = match &scope {
                            Scope::Nothing => false,
                            Scope::Pages(pages) => pages.contains(page),
                            Scope::All => true,
                        };
                        prop_assert!(named, "{page:#x} changed, but only {scope:?} is to be flushed");
                    }
                }
                for page in old.keys().chain(model.keys()) {
                    let expected = model.get(page);
                    let found = table.translate(page + 5);
                    prop_assert_eq!(
                        found,
                        expected.map(|&(at, protection)| Translation { address: at + 5, protection })
                    );
                    // The hardware's view: readable, writable, executable, user, accessed, dirty, not global.
                    let visible = expected.filter(|(_, protection)| *protection != Protection::None);
                    prop_assert_eq!(
                        walk(&table, page + 5),
                        visible.map(|&(at, protection)| (at + 5, bits(protection) | 0b1101_0001))
                    );
                }
            }
            let unmapped = table.unmap(0..!0xfff);
            unmapped.after(|_| ());
            prop_assert_eq!(table.table_frames(), empty);
        }
        prop_assert_eq!(frames::free_frames(), before);
    }
}

/// Pages of the small space: two of one table, one of the next table, and one under the next entry of the root.
const SMALL: [u64; 4] = [0x1f_e000, 0x1f_f000, 0x20_0000, 0x4000_0000];

/// Ranges of the small space: each page, pages of two tables, and all that one entry of each level covers.
const RANGES: [(u64, u64); 9] = [
    (SMALL[0], SMALL[0] + PAGE_SIZE),
    (SMALL[1], SMALL[1] + PAGE_SIZE),
    (SMALL[2], SMALL[2] + PAGE_SIZE),
    (SMALL[3], SMALL[3] + PAGE_SIZE),
    (SMALL[1], SMALL[2] + PAGE_SIZE),
    (0x1000, 0x20_0000),
    (0x20_0000, 0x40_0000),
    (0x1000, 0x4000_0000),
    (0x1000, USER.end),
];

/// Way in which a range is unmapped.
#[derive(Clone, Copy, Debug)]
enum Portion {
    AtOnce,
    From(Edge),
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Map { page: usize, is_device: bool, protection: Protection },
    Unmap((u64, u64), Portion),
    Protect((u64, u64), Protection),
}

/// A page of the naive map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NaivePage {
    is_device: bool,
    is_accessible: bool,
}

/// The naive map: pages, and the first addresses of the tables of both levels below the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Naive {
    pages: BTreeMap<u64, NaivePage>,
    bottom: BTreeSet<u64>,
    middle: BTreeSet<u64>,
}

/// Bytes that a table of the last level maps, and one of the level above it.
const SPANS: [u64; 2] = [0x20_0000, 0x4000_0000];

impl Naive {
    /// Carries out a move; returns the required flush, and the number of owned pages that are gone.
    fn change(&mut self, step: Move) -> (Scope, usize) {
        match step {
            Move::Map { page, is_device, protection } => {
                let address = SMALL[page];
                let is_accessible = protection != Protection::None;
                self.pages.entry(address).or_insert(NaivePage { is_device, is_accessible });
                self.bottom.insert(address / SPANS[0] * SPANS[0]);
                self.middle.insert(address / SPANS[1] * SPANS[1]);
                (Scope::Nothing, 0)
            }
            Move::Unmap((start, end), _) => {
                let gone: Vec<_> = self.pages.extract_if(start..end, |_, _| true).collect();
                let tables = self.bottom.len() + self.middle.len();
                // The very first page belongs to no table.
                let is_covered = |table: u64, span| start <= table.max(USER.start) && end >= table + span;
                self.bottom.retain(|&table| !is_covered(table, SPANS[0]));
                self.middle.retain(|&table| !is_covered(table, SPANS[1]));
                let owned = gone.iter().filter(|(_, page)| !page.is_device).count();
                if self.bottom.len() + self.middle.len() < tables {
                    return (Scope::All, owned);
                }
                (Self::hull(gone.iter().filter(|(_, page)| page.is_accessible).map(|(address, _)| *address)), owned)
            }
            Move::Protect((start, end), protection) => {
                let is_accessible = protection != Protection::None;
                let mut changed = Vec::new();
                for (address, page) in self.pages.range_mut(start..end) {
                    if page.is_accessible && !is_accessible {
                        changed.push(*address);
                    }
                    page.is_accessible = is_accessible;
                }
                (Self::hull(changed.into_iter()), 0)
            }
        }
    }

    /// The smallest range with all these pages.
    fn hull(pages: impl Iterator<Item = u64> + Clone) -> Scope {
        match (pages.clone().min(), pages.max()) {
            (Some(first), Some(last)) => Scope::Pages(first..last + PAGE_SIZE),
            _ => Scope::Nothing,
        }
    }
}

/// A table and a naive map that have had the same moves.
struct Both {
    table: PageTable,
    naive: Naive,
    /// Physical addresses of the pages.
    addresses: BTreeMap<u64, u64>,
}

impl Both {
    fn new() -> Both {
        let table = PageTable::new(&KernelHalf::empty(), RootSize::Page).expect("there is memory");
        Both { table, naive: Naive::default(), addresses: BTreeMap::new() }
    }

    /// Carries out a move on both and compares the results.
    fn change(&mut self, step: Move) {
        let before = self.naive.clone();
        let (scope, gone) = self.naive.change(step);
        match step {
            Move::Map { page, is_device, protection } => {
                let device = 0x1000_0000 + page as u64 * PAGE_SIZE;
                let leaf = if is_device {
                    Leaf::Device(DevicePage::new(device).expect("no memory"))
                } else {
                    Leaf::Owned(Frame::allocate_zeroed().expect("there is memory"))
                };
                let address = match &leaf {
                    Leaf::Owned(frame) => frame.physical_address(),
                    Leaf::Device(_) => device,
                };
                match self.table.map(SMALL[page], leaf, protection) {
                    Ok(()) => assert!(self.addresses.insert(SMALL[page], address).is_none(), "{before:?} {step:?}"),
                    Err((error, _)) => {
                        assert_eq!(error, MapError::Occupied, "{before:?} {step:?}");
                        assert!(before.pages.contains_key(&SMALL[page]), "{before:?} {step:?}");
                    }
                }
            }
            Move::Unmap((start, end), Portion::AtOnce) => {
                let unmapped = self.table.unmap(start..end);
                assert_eq!((unmapped.scope(), unmapped.pages()), (&scope, gone), "{before:?} {step:?}");
                unmapped.after(|_| ());
            }
            Move::Unmap((start, end), Portion::From(edge)) => {
                let (mut rest, mut pages, mut flushed) = (start..end, 0, Vec::new());
                while !rest.is_empty() {
                    let part = self.table.reach(rest.clone(), edge);
                    assert!(!part.is_empty(), "{before:?} {step:?}");
                    let unmapped = self.table.unmap_part(part.clone(), &(start..end));
                    pages += unmapped.pages();
                    flushed.push(unmapped.scope().clone());
                    unmapped.after(|_| ());
                    match edge {
                        Edge::Start => rest.start = part.end,
                        Edge::End => rest.end = part.start,
                    }
                }
                assert_eq!(pages, gone, "{before:?} {step:?}");
                // Each part names its own pages; together they must cover the required ones.
                let is_named = |page: u64| {
                    flushed.iter().any(|scope| match scope {
                        Scope::Nothing => false,
                        Scope::Pages(pages) => pages.contains(&page),
                        Scope::All => true,
                    })
                };
                match scope {
                    Scope::All => assert!(flushed.contains(&Scope::All), "{before:?} {step:?}"),
                    _ => {
                        let was = before.pages.range(start..end).filter(|(_, page)| page.is_accessible);
                        assert!(was.map(|(address, _)| *address).all(is_named), "{before:?} {step:?}: {flushed:?}");
                    }
                }
            }
            Move::Protect((start, end), protection) => {
                let unmapped = self.table.protect(start..end, protection);
                assert_eq!((unmapped.scope(), unmapped.pages()), (&scope, 0), "{before:?} {step:?}");
                unmapped.after(|_| ());
            }
        }
        self.addresses.retain(|address, _| self.naive.pages.contains_key(address));
    }

    /// Compares the visible state of the table with the naive map.
    fn check(&self, step: Move) {
        let tables = 1 + self.naive.bottom.len() + self.naive.middle.len();
        assert_eq!(self.table.table_frames(), tables, "{:?} after {step:?}", self.naive);
        for page in SMALL {
            for address in [page - PAGE_SIZE, page, page + 5, page + PAGE_SIZE] {
                let known = self.naive.pages.get(&(address / PAGE_SIZE * PAGE_SIZE));
                let physical =
                    self.addresses.get(&(address / PAGE_SIZE * PAGE_SIZE)).map(|at| at + address % PAGE_SIZE);
                let protection = known.map(|page| match page.is_accessible {
                    true => Protection::ReadWrite,
                    false => Protection::None,
                });
                let expected = physical.zip(protection);
                let found = self.table.translate(address).map(|found| (found.address, found.protection));
                assert_eq!(found, expected, "{:?} after {step:?}", self.naive);
                let visible = expected.filter(|(_, protection)| *protection != Protection::None);
                let hardware = visible.map(|(at, protection)| (at, bits(protection) | 0b1101_0001));
                assert_eq!(walk(&self.table, address), hardware, "{:?} after {step:?}", self.naive);
            }
        }
    }
}

/// Every history of any length over the small space: each state of the naive map that moves lead to is visited, and
/// each move is tried in it, until no move leads to a new state.
#[test]
fn every_history_of_a_small_space_agrees_with_a_map() {
    let _alone = alone();
    let protections = [Protection::None, Protection::ReadWrite];
    let portions = [Portion::AtOnce, Portion::From(Edge::Start), Portion::From(Edge::End)];
    let maps = (0..SMALL.len()).flat_map(|page| [false, true].map(|is_device| (page, is_device)));
    let mut moves: Vec<Move> = maps
        .flat_map(|(page, is_device)| protections.map(|protection| Move::Map { page, is_device, protection }))
        .collect();
    moves.extend(RANGES.iter().flat_map(|&range| portions.map(|portion| Move::Unmap(range, portion))));
    moves.extend(RANGES.iter().flat_map(|&range| protections.map(|protection| Move::Protect(range, protection))));
    let before = frames::free_frames();
    let mut known = BTreeSet::from([Naive::default()]);
    let mut new = VecDeque::from([Vec::new()]);
    while let Some(history) = new.pop_front() {
        for &step in &moves {
            let mut both = Both::new();
            for &step in history.iter().chain([&step]) {
                both.change(step);
            }
            both.check(step);
            if known.insert(both.naive.clone()) {
                new.push_back(history.iter().copied().chain([step]).collect());
            }
            drop(both);
            assert_eq!(frames::free_frames(), before, "after {history:?} and {step:?}");
        }
    }
    // A table has its pages, none of them, or is not there: fewer states would mean that moves do nothing.
    assert_eq!(known.len(), (26 * 6 + 1) * 6);
}

#[test]
fn the_kernel_s_half_is_copied() {
    let _alone = alone();
    let mut entries = [0u64; 256];
    for (index, entry) in entries.iter_mut().enumerate() {
        *entry = 0x2000_0001 + (index as u64) * 0x400;
    }
    let before = frames::free_frames();
    let table = PageTable::new(&KernelHalf::new(entries), RootSize::Shared).expect("there is memory");
    assert!(table.root_address().is_multiple_of(0x4000));
    let mut root = vec![0u8; 0x4000];
    let probe = Block::allocate_zeroed(0).expect("there is memory");
    let offset = (probe.pointer().as_ptr().expose_provenance() as u64).wrapping_sub(probe.physical_address());
    let start = std::ptr::with_exposed_provenance::<u8>(table.root_address().wrapping_add(offset) as usize);
    // SAFETY: the root is 16 KiB of fake memory.
    unsafe { start.copy_to(root.as_mut_ptr(), root.len()) };
    let words: Vec<u64> =
        root.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
    assert!(words[..256].iter().all(|&word| word == 0));
    assert_eq!(words[256..512], entries);
    assert!(words[512..].iter().all(|&word| word == 0));
    drop((table, probe));
    // Dropping the table frees nothing of the kernel's.
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn addresses_outside_the_user_half_are_rejected() {
    let _alone = alone();
    let mut table = PageTable::new(&KernelHalf::empty(), RootSize::Page).expect("there is memory");
    for address in [0, 1, 0x1001, USER.end, 0xffff_ffc0_0000_0000, 1 << 39, 1 << 38 | 0x1000, !0xfff] {
        let frame = Frame::allocate_zeroed().expect("there is memory");
        let (error, _) = table.map(address, Leaf::Owned(frame), Protection::Read).expect_err("rejected");
        assert_eq!(error, MapError::InvalidAddress, "{address:#x}");
        assert_eq!(table.translate(address), None);
        table.unmap(address & !0xfff..(address & !0xfff).saturating_add(4096) & !0xfff).after(|_| unreachable!());
    }
    assert_eq!(table.table_frames(), 1);
}

#[test]
fn nothing_is_writable_and_executable() {
    assert_eq!(Protection::from_bits(6), Err(WritableAndExecutable));
    assert_eq!(Protection::from_bits(7), Err(WritableAndExecutable));
    assert!(WritableAndExecutable.to_string().contains("map it writable, fill it, then make it executable"));
    assert_eq!(Protection::from_bits(0), Ok(Protection::None));
    assert_eq!(Protection::from_bits(1), Ok(Protection::Read));
    assert_eq!(Protection::from_bits(2), Ok(Protection::ReadWrite));
    assert_eq!(Protection::from_bits(3), Ok(Protection::ReadWrite));
    assert_eq!(Protection::from_bits(4), Ok(Protection::Execute));
    assert_eq!(Protection::from_bits(5), Ok(Protection::ReadExecute));
    for protection in PROTECTIONS {
        assert!(!(protection.allows(Access::Write) && protection.allows(Access::Execute)));
    }
}

#[test]
fn memory_is_no_device() {
    let _alone = alone();
    let frame = Frame::allocate_zeroed().expect("there is memory");
    assert_eq!(DevicePage::new(frame.physical_address()), None);
    assert_eq!(DevicePage::new(0), None);
    assert_eq!(DevicePage::new(0x8000_0000 - PAGE_SIZE), None);
    assert_eq!(DevicePage::new(0x2000_0000), None);
    assert_eq!(permit_devices(&[]), Err(InvalidDevices));
    assert_eq!(permit_devices(&vec![0..0; DEVICE_RANGES + 1]), Err(InvalidDevices));
    assert_eq!(DevicePage::new(0x1000_0001), None);
    assert_eq!(DevicePage::new(!0xfff), None);
    assert!(DevicePage::new(0x1000_0000).is_some());
}

#[test]
fn frames_are_kept_until_the_flush() {
    let _alone = alone();
    let before = frames::free_frames();
    let mut table = PageTable::new(&KernelHalf::empty(), RootSize::Page).expect("there is memory");
    let frame = Frame::allocate_zeroed().expect("there is memory");
    table.map(0x5000, Leaf::Owned(frame), Protection::ReadWrite).map_err(|(error, _)| error).expect("free");
    assert_eq!(before - frames::free_frames(), 4);
    let unmapped = table.unmap(0x5000..0x6000);
    assert_eq!(*unmapped.scope(), Scope::Pages(0x5000..0x6000));
    assert_eq!(before - frames::free_frames(), 4);
    unmapped.after(|_| assert_eq!(before - frames::free_frames(), 4));
    assert_eq!(before - frames::free_frames(), 3);
    // The tables are removed with all that they cover, and then harts must flush those too.
    let unmapped = table.unmap(USER.start..0x20_0000);
    assert_eq!(*unmapped.scope(), Scope::All);
    unmapped.after(|_| assert_eq!(before - frames::free_frames(), 3));
    assert_eq!(before - frames::free_frames(), 2);
    table.unmap(USER).after(|scope| assert_eq!(*scope, Scope::All));
    assert_eq!(before - frames::free_frames(), 1);
}
