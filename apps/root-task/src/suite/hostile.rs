//! A thread that makes random system calls with random capabilities.
//!
//! It has an address space of its own, in which it sees this program's code but none of its data, and a CSpace of its
//! own with an object of each kind. Its calls must not affect others. When it faults or waits it is restarted; when
//! restarts no longer help everything that it had is revoked, and it gets another life.

use core::ops::RangeInclusive;

use sel4::abi::{CapabilityTag, DebugCall, MessageInfo, Numbering, SlotRegion, SystemCall};
use sel4::allocator::Slots;
use sel4::capability::{AsidPool, CNode, Endpoint, Page, PageTable, Slot, Spaces, initial};
use sel4::thread::{Start, registers};
use sel4::{Allocator, CNodeData, ObjectType, Rights, mapping, raw};

use crate::check;
use crate::harness::{Bench, Outcome, PRIORITY, Wrong, let_run};
use crate::memory::{self, read, write};

/// Slots of the thread's CSpace, as a power of two.
const SLOT_BITS: usize = 6;

/// Slots that one life of it may use.
const LIFE_SLOTS: u64 = 200;

/// First address of this program's image, as in its linker script.
const IMAGE: u64 = 0x1_0000;

/// Addresses of the thread's stack, its IPC buffer, and the page that it shares with the test.
const STACK: u64 = 0x20_0000_0000;
const BUFFER: u64 = 0x20_0001_0000;
const SHARED: u64 = 0x20_0002_0000;

/// Address of the shared page in the test.
const SEEN: u64 = 0x18_0000_0000;

/// Offsets of fields of the IPC buffer.
pub const MESSAGE: u64 = 8;
pub const CAPABILITIES: u64 = 976;
const RECEIVE_SLOT: u64 = 1000;

/// Number of lives of the thread, and of its calls in each.
const LIVES: u64 = 100;
const CALLS: u64 = 4_000;

/// Returns the seeds of so many lives: a kernel for one hart meets others than a kernel for several.
pub fn seeds(lives: u64) -> RangeInclusive<u64> {
    match raw::numbering() {
        Numbering::Multiprocessor => 1..=lives,
        _ => lives + 1..=2 * lives,
    }
}

/// Marsaglia's xorshift: good enough, and repeatable.
pub struct Random(u64);

impl Random {
    /// Begins with a seed that is not 0.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.bits()
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.bits() >> 8) % end
    }

    /// Returns a pointer, mostly to a slot of the CSpace.
    pub fn pointer(&mut self) -> u64 {
        match self.below(40) {
            0 => self.bits(),
            1 => 1 << SLOT_BITS,
            _ => self.below(1 << SLOT_BITS),
        }
    }

    /// Returns an argument of any kind.
    pub fn word(&mut self) -> u64 {
        match self.below(12) {
            0..=2 => self.below(16),
            3..=4 => self.below(1 << SLOT_BITS),
            5..=6 => 64,
            7 => 1 << self.below(64),
            8 => STACK + (self.below(64) << 12),
            9 => self.bits(),
            10 => u64::MAX - self.below(4096),
            _ => 0,
        }
    }

    /// Returns a call number: mostly a call, sometimes one that may wait, and sometimes a number that does not exist.
    fn call(&mut self) -> isize {
        let call = match self.below(64) {
            0..=47 => SystemCall::Call,
            48..=51 => SystemCall::NBSend,
            52..=55 => SystemCall::NBRecv,
            56..=57 => SystemCall::Yield,
            58..=59 => SystemCall::Reply,
            60 if self.below(2) == 0 => return const { DebugCall::DebugCapIdentify.fixed_number() },
            60 => SystemCall::ReturnFromUserInterrupt,
            61 => SystemCall::Send,
            62 => [SystemCall::Recv, SystemCall::ReplyRecv, SystemCall::SignalRecv][self.below(3) as usize],
            // Numbers above zero and far below: the debug calls in between would print, or end the machine.
            _ => {
                return if self.below(2) == 0 {
                    self.bits() as isize | 1 << 20
                } else {
                    -100 - self.below(1000) as isize
                };
            }
        };
        call.number()
    }
}

/// Runs as the hostile thread. It uses no data of the program, which are not mapped for it.
fn attack(shared: u64) {
    let mut random = Random(read(shared + 8));
    loop {
        write(shared, read(shared) + 1);
        for index in 4..12 {
            write(BUFFER + MESSAGE + 8 * index, random.word());
        }
        for index in 0..3 {
            write(BUFFER + CAPABILITIES + 8 * index, random.pointer());
            write(BUFFER + RECEIVE_SLOT + 8 * index, random.pointer());
        }
        let length = if random.below(16) == 0 { random.below(128) } else { random.below(12) };
        let label = random.below(48);
        let info = MessageInfo::new(label, random.below(4) as usize, length as usize);
        let words = [random.word(), random.word(), random.word(), random.word()];
        let number = random.call();
        raw::system_call(number, [random.pointer(), info.0, words[0], words[1], words[2], words[3]]);
    }
}

/// Maps this program's code and constants in another address space, read-only.
pub fn show_code(bench: &Bench<'_>, own: &mut Allocator, space: PageTable) -> Result<(), Wrong> {
    for (index, page) in bench.boot.image_pages().enumerate() {
        let address = IMAGE + ((index as u64) << 12);
        // Writable data begin behind the constants.
        if !(memory::text_start()..memory::data_start()).contains(&address) {
            continue;
        }
        let copy = own.slot()?;
        Slot::own(copy).copy_from(Slot::own(page.pointer()), Rights::READ)?;
        mapping::map(own, space, Page::from_pointer(copy), address, Rights::READ, 0)?;
    }
    Ok(())
}

/// Makes the thread and lets it run until it has made its calls or can make no more. Returns their number.
fn live(bench: &mut Bench<'_>, mut own: Allocator, seed: u64) -> Result<u64, Wrong> {
    let space = PageTable::from_pointer(own.object(ObjectType::PageTable)?);
    let pool_memory = own.memory(12)?.untyped();
    let pool = Slot::own(own.slot()?);
    initial::ASID_CONTROL.make_pool(pool_memory, pool)?;
    AsidPool::from_pointer(pool.index).assign(space)?;
    show_code(bench, &mut own, space)?;
    let mut pages = [Page::from_pointer(0); 4];
    for (page, address) in pages.iter_mut().zip([STACK, STACK + 0x1000, BUFFER, SHARED]) {
        *page = Page::from_pointer(own.object(ObjectType::Page)?);
        mapping::map(&mut own, space, *page, address, Rights::READ_WRITE, 0)?;
    }
    let seen = own.slot()?;
    Slot::own(seen).copy_from(Slot::own(pages[3].pointer()), Rights::ALL)?;
    mapping::map(&mut own, initial::ADDRESS_SPACE, Page::from_pointer(seen), SEEN, Rights::READ_WRITE, 0)?;
    write(SEEN + 8, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);

    // One object of each kind, and an untyped memory to make more.
    let table = CNode::from_pointer(own.make(ObjectType::CapTable, SLOT_BITS, 1)?);
    let faults = Endpoint::from_pointer(own.object(ObjectType::Endpoint)?);
    let interrupt = own.slot()?;
    initial::IRQ_CONTROL.get(40, Slot::own(interrupt))?;
    let objects = [
        own.object(ObjectType::Tcb)?,
        own.object(ObjectType::Tcb)?,
        table.pointer(),
        space.pointer(),
        own.make(ObjectType::Untyped, 16, 1)?,
        own.object(ObjectType::Endpoint)?,
        own.object(ObjectType::Notification)?,
        own.object(ObjectType::Page)?,
        own.object(ObjectType::Page)?,
        own.make(ObjectType::CapTable, 3, 1)?,
        pool.index,
        interrupt,
    ];
    for (index, object) in objects.into_iter().enumerate() {
        // The thread has copies, so that it cannot delete objects that the test still needs.
        table.slot(1 + index as u64, SLOT_BITS).copy_from(Slot::own(object), Rights::ALL)?;
    }
    table.slot(20, SLOT_BITS).move_from(Slot::own(own.object(ObjectType::PageTable)?))?;
    table.slot(30, SLOT_BITS).mint_from(Slot::own(faults.pointer()), Rights::ALL, 1)?;

    let thread = sel4::capability::Thread::from_pointer(own.object(ObjectType::Tcb)?);
    let spaces = Spaces {
        fault_endpoint: 30,
        cspace: table,
        cspace_data: CNodeData::new(0, 64 - SLOT_BITS),
        address_space: space,
    };
    thread.configure(spaces, BUFFER, pages[2])?;
    thread.set_priority(initial::THREAD, PRIORITY)?;
    let start = Start::new(attack, SHARED, PRIORITY);
    thread.write_registers_and_resume(&registers(&start, thread, BUFFER, STACK + 0x2000))?;

    let mut before = 0;
    let mut useless = 0;
    while read(SEEN) < CALLS && useless < 3 {
        let_run(PRIORITY)?;
        let calls = read(SEEN);
        let told = faults.receive_now().is_some();
        if told || calls == before {
            // It faulted, or waits for ever: it is restarted with another seed.
            write(SEEN + 8, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(calls << 1) | 1);
            thread.write_registers_and_resume(&registers(&start, thread, BUFFER, STACK + 0x2000))?;
        }
        // A thread without its address space or its stack makes no more calls.
        useless = if calls == before { useless + 1 } else { 0 };
        before = calls;
    }
    let calls = read(SEEN);
    thread.suspend()?;
    Slot::own(interrupt).delete()?;
    Ok(calls)
}

pub fn random_calls_concern_no_other_thread(bench: &mut Bench<'_>) -> Outcome {
    let canary = bench.endpoint()?;
    // The memory and the slots of one life are used again in the next.
    let mut arena = bench.allocator.memory(21)?;
    let first = bench.allocator.slots(LIFE_SLOTS)?;
    let region = SlotRegion { start: first, end: first + LIFE_SLOTS };
    let mut calls = 0;
    for seed in seeds(LIVES) {
        calls += live(bench, Allocator::over(Slots::new(region), arena), seed)?;
        for slot in region.start..region.end {
            Slot::own(slot).delete()?;
        }
        arena.revoke()?;
    }
    sel4::println!("note: {calls} random calls");
    check!(calls > 1_000);
    check!(raw::debug_identify(canary.pointer()) == Some(CapabilityTag::Endpoint));
    Ok(())
}
