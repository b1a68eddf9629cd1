//! The longest wait of the most important thread for its interrupt while another thread makes long invocations.
//!
//! The alarm of the clock is set a few hundred to a few thousand instructions ahead, at random, again and again until
//! the invocation of the other thread is done. One measurement is the time from the alarm to the moment at which the
//! thread of the highest priority has read the clock. The emulator counts a nanosecond for each instruction
//! (`-icount shift=0`), so the clock is sufficient.
//!
//! Each row reports the worst wait (`wait-…`), and the instructions of the other thread's whole invocation without
//! interrupts (`whole-…`).
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi_sel4::message::MAXIMUM_LENGTH;
use abi_sel4::{Invocation, SystemCall};
use drivers::Registers as _;
use sel4::capability::{
    AsidPool, Endpoint, IrqHandler, Notification, Page, PageTable, Slot, Spaces, Thread, Untyped, initial,
};
use sel4::device::DeviceMemory;
use sel4::mapping::Window;
use sel4::shared::Registers;
use sel4::syscall_buffer::{SyscallBuffer, request, result};
use sel4::thread::{Start, spawn};
use sel4::{Allocator, BootInformation, CNodeData, Message, ObjectType, Result, Rights, println};

/// Priority of the thread that waits for interrupts, and that of the one that makes invocations.
const HIGHEST: u64 = 255;
const LOWER: u64 = 100;
/// Priority of threads that have done their part.
const LOWEST: u64 = 1;
/// The real-time clock of the board: its registers and its interrupt.
const CLOCK: (u64, u64) = (0x10_1000, 11);
/// An interrupt that no device of the board uses.
const UNUSED_IRQ: u64 = 33;
/// Offsets of the clock's registers.
mod clock {
    pub const TIME_LOW: usize = 0x00;
    pub const TIME_HIGH: usize = 0x04;
    pub const ALARM_LOW: usize = 0x08;
    pub const ALARM_HIGH: usize = 0x0c;
    pub const ENABLE: usize = 0x10;
    pub const CLEAR_ALARM: usize = 0x14;
    pub const CLEAR_INTERRUPT: usize = 0x1c;
}

/// Bits of the notification: an alarm has come; the invocation is done.
const ALARM: u64 = 1;
const DONE: u64 = 2;
/// Least distance of an alarm, and largest addition to it.
const AHEAD: (u64, u64) = (900, 6000);

/// Number of objects of a row.
const OBJECTS: u64 = 256;
/// Pages of the address space that is revoked.
const PAGES: u64 = 512;
/// Slots of the large node, as a power of two.
const LARGE_NODE_BITS: usize = 18;
/// Bytes that are cleared at once, as a power of two.
const CLEARED_BITS: usize = 26;
/// Levels of nodes, each of which holds the last capability to the next.
const LEVELS: u64 = 512;
/// Messages that are sent in a row.
const MESSAGES: u64 = 40;
/// Places for requests.
const REQUESTS: usize = 64;
/// Threads that wait at the deleted object.
const WAITERS: u64 = 64;
/// Address of the pages in the address space that is revoked.
const MAPPED: u64 = 0x1000_0000;

/// An invocation of the other thread, with its slots.
#[derive(Clone, Copy)]
enum Operation {
    /// Counts only, for this many rounds.
    Spin(u64),
    Revoke(u64),
    Delete(u64),
    CancelBadgedSends(u64),
    /// Takes the notification of an interrupt away.
    Clear(u64),
    /// Sends long messages with capabilities to this endpoint.
    Send(u64),
    /// Has the requests in the thread's SyscallBuffer carried out.
    Serve,
    Retype {
        untyped: Untyped,
        kind: ObjectType,
        bits: usize,
        first: u64,
        count: u64,
    },
}

impl Operation {
    fn run(self) -> Result<()> {
        match self {
            Operation::Spin(rounds) => {
                (0..rounds).for_each(|_| core::hint::spin_loop());
                Ok(())
            }
            Operation::Revoke(slot) => Slot::own(slot).revoke(),
            Operation::Delete(slot) => Slot::own(slot).delete(),
            Operation::CancelBadgedSends(slot) => Slot::own(slot).cancel_badged_sends(),
            Operation::Clear(handler) => IrqHandler::from_pointer(handler).clear(),
            Operation::Send(endpoint) => {
                // The first two are unwrapped to badges, the third is copied.
                let capabilities = [endpoint, endpoint, BEGIN.load(Relaxed)];
                let message = Message { label: 0, words: &[0; MAXIMUM_LENGTH], capabilities: &capabilities };
                (0..MESSAGES).for_each(|_| Endpoint::from_pointer(endpoint).send(&message));
                Ok(())
            }
            Operation::Serve => {
                // The last request leaves a mark. Alarms make the thread go on before.
                let (mark, seen) = (Slot::own(MARK.load(Relaxed)), Slot::own(MARK.load(Relaxed) + 1));
                loop {
                    sel4::raw::system_call(SystemCall::WakeSyscallHandler.number(), [0; 6]);
                    if seen.move_from(mark).is_ok() {
                        return seen.delete();
                    }
                }
            }
            Operation::Retype { untyped, kind, bits, first, count } => {
                untyped.retype(kind, bits, Slot { root: initial::CNODE, index: 0, depth: 0 }, first, count)
            }
        }
    }
}

/// The operation for the other thread, as words: its number, and its arguments.
static REQUEST: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
/// Whether the invocation failed.
static REFUSED: AtomicU64 = AtomicU64::new(0);

fn ask(operation: Operation) {
    let words = match operation {
        Operation::Spin(rounds) => [0, rounds, 0, 0, 0, 0],
        Operation::Revoke(slot) => [1, slot, 0, 0, 0, 0],
        Operation::Delete(slot) => [2, slot, 0, 0, 0, 0],
        Operation::CancelBadgedSends(slot) => [3, slot, 0, 0, 0, 0],
        Operation::Retype { untyped, kind, bits, first, count } => {
            [4, untyped.pointer(), kind.number() as u64, bits as u64, first, count]
        }
        Operation::Clear(handler) => [5, handler, 0, 0, 0, 0],
        Operation::Send(endpoint) => [6, endpoint, 0, 0, 0, 0],
        Operation::Serve => [7, 0, 0, 0, 0, 0],
    };
    REQUEST.iter().zip(words).for_each(|(place, word)| place.store(word, Relaxed));
}

fn requested() -> Operation {
    let [number, first, second, third, fourth, fifth] = [0, 1, 2, 3, 4, 5].map(|index| REQUEST[index].load(Relaxed));
    match number {
        1 => Operation::Revoke(first),
        2 => Operation::Delete(first),
        3 => Operation::CancelBadgedSends(first),
        4 => Operation::Retype {
            untyped: Untyped::from_pointer(first),
            kind: ObjectType::from_number(second as usize).unwrap_or(ObjectType::Untyped),
            bits: third as usize,
            first: fourth,
            count: fifth,
        },
        5 => Operation::Clear(first),
        6 => Operation::Send(first),
        7 => Operation::Serve,
        _ => Operation::Spin(first),
    }
}

/// The two notifications by which the threads hand over to each other.
static BEGIN: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
/// The slot in which a thread receives capabilities.
static RECEIVED: AtomicU64 = AtomicU64::new(0);
/// The slot that the last request fills; the next one is empty.
static MARK: AtomicU64 = AtomicU64::new(0);

fn work(_: u64) {
    loop {
        Notification::from_pointer(BEGIN.load(Relaxed)).wait();
        if requested().run().is_err() {
            REFUSED.fetch_add(1, Relaxed);
        }
        Notification::from_pointer(END.load(Relaxed)).signal();
    }
}

fn wait_for_ever(notification: u64) {
    Notification::from_pointer(notification).wait();
}

/// Sends with a badge to an endpoint without a receiver.
fn send_for_ever(endpoint: u64) {
    Endpoint::from_pointer(endpoint).send(&Message::new(0, &[]));
}

/// Receives messages with a capability, which it deletes.
fn receive_for_ever(endpoint: u64) {
    let slot = Slot::own(RECEIVED.load(Relaxed));
    sel4::raw::set_receive_slot(slot.root.pointer(), slot.index, slot.depth);
    loop {
        let received = Endpoint::from_pointer(endpoint).receive();
        if (received.length(), received.capabilities()) != (MAXIMUM_LENGTH, 3) || slot.delete().is_err() {
            REFUSED.fetch_add(1, Relaxed);
        }
    }
}

/// The resources of all measurements.
struct Latency {
    allocator: Allocator,
    window: Window,
    clock: Registers,
    handler: IrqHandler,
    notification: Notification,
    /// Memory of which all objects of the rows are made, and slots for them.
    memory: Untyped,
    slots: u64,
    random: u64,
    /// The thread that makes the invocations.
    worker: Thread,
}

/// Takes all responses; none may be an error.
fn check_responses(buffer: &mut SyscallBuffer) {
    while let Some(response) = buffer.take() {
        if result(&response).is_err() {
            REFUSED.fetch_add(1, Relaxed);
        }
    }
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    match Latency::prepare(&boot).and_then(|mut latency| latency.run()) {
        Ok(()) if REFUSED.load(Relaxed) == 0 => {}
        Ok(()) => println!("the benchmark cannot go on: an invocation was refused"),
        Err(failure) => println!("the benchmark cannot go on: {failure}"),
    }
}

/// Kinds of objects that are made and deleted in numbers, with their size in bits.
const KINDS: [(&str, ObjectType, usize); 4] = [
    ("tcbs", ObjectType::Tcb, 0),
    ("tables", ObjectType::PageTable, 0),
    ("pages", ObjectType::Page, 0),
    ("cnodes", ObjectType::CapTable, 8),
];

impl Latency {
    fn prepare(boot: &BootInformation) -> Result<Latency> {
        let mut allocator = Allocator::new(boot);
        let mut window = Window::new(0x10_0000_0000, 0x10_1000_0000);
        let (clock, _) = DeviceMemory::new(boot).registers(&mut allocator, &mut window, CLOCK.0)?;
        let notification = Notification::from_pointer(allocator.object(ObjectType::Notification)?);
        let begin = allocator.object(ObjectType::Notification)?;
        let badged = |allocator: &mut Allocator, badge| -> Result<u64> {
            let slot = allocator.slot()?;
            Slot::own(slot).mint_from(Slot::own(notification.pointer()), Rights::WRITE, badge)?;
            Ok(slot)
        };
        let alarm = badged(&mut allocator, ALARM)?;
        let end = badged(&mut allocator, DONE)?;
        let handler = allocator.slot()?;
        initial::IRQ_CONTROL.get(CLOCK.1, Slot::own(handler))?;
        let handler = IrqHandler::from_pointer(handler);
        handler.set_notification(Notification::from_pointer(alarm))?;
        BEGIN.store(begin, Relaxed);
        END.store(end, Relaxed);
        let worker = spawn(&mut allocator, &mut window, Start::new(work, 0, LOWER))?.thread;
        let memory = allocator.memory(CLEARED_BITS)?.untyped();
        let slots = allocator.slots(3 * PAGES)?;
        let random = 0x9e37_79b9_7f4a_7c15;
        Ok(Latency { allocator, window, clock, handler, notification, memory, slots, random, worker })
    }

    fn now(&self) -> u64 {
        let low = u64::from(self.clock.read32(clock::TIME_LOW));
        u64::from(self.clock.read32(clock::TIME_HIGH)) << 32 | low
    }

    fn ahead(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        AHEAD.0 + self.random % AHEAD.1
    }

    /// Has the other thread carry out an operation while alarms come; returns the longest wait of one.
    fn wait_during(&mut self, operation: Operation) -> Result<u64> {
        ask(operation);
        let mut worst = 0;
        Notification::from_pointer(BEGIN.load(Relaxed)).signal();
        loop {
            let alarm = self.now() + self.ahead();
            self.clock.write32(clock::ENABLE, 1);
            self.clock.write32(clock::ALARM_HIGH, (alarm >> 32) as u32);
            self.clock.write32(clock::ALARM_LOW, alarm as u32);
            let word = self.notification.wait();
            let now = self.now();
            if word & ALARM != 0 {
                worst = worst.max(now.saturating_sub(alarm));
                self.clock.write32(clock::CLEAR_INTERRUPT, 1);
                self.handler.acknowledge()?;
            }
            if word & DONE != 0 {
                self.clock.write32(clock::CLEAR_ALARM, 1);
                self.clock.write32(clock::ENABLE, 0);
                self.clock.write32(clock::CLEAR_INTERRUPT, 1);
                // An alarm may have come just now.
                if self.notification.poll().is_some_and(|word| word & ALARM != 0) {
                    self.handler.acknowledge()?;
                }
                return Ok(worst);
            }
        }
    }

    /// Returns the instructions of an operation of the other thread, including both switches.
    fn whole_of(&mut self, operation: Operation) -> u64 {
        ask(operation);
        let begin = self.now();
        Notification::from_pointer(BEGIN.load(Relaxed)).signal();
        self.notification.wait();
        self.now() - begin
    }

    /// Measures an operation several times, each prepared anew, and reports the row.
    fn row(
        &mut self,
        id: &str,
        rounds: u64,
        mut prepare: impl FnMut(&mut Latency) -> Result<Operation>,
    ) -> Result<(u64, u64)> {
        let mut worst = 0;
        for _ in 0..rounds {
            let operation = prepare(self)?;
            worst = worst.max(self.wait_during(operation)?);
            Slot::own(self.memory.pointer()).revoke()?;
        }
        let operation = prepare(self)?;
        let whole = self.whole_of(operation);
        Slot::own(self.memory.pointer()).revoke()?;
        println!("bench: {{\"id\": \"wait-{id}\", \"value\": {worst}, \"unit\": \"instructions\"}}");
        println!("bench: {{\"id\": \"whole-{id}\", \"value\": {whole}, \"unit\": \"instructions\"}}");
        Ok((worst, whole))
    }

    fn make(&self, kind: ObjectType, bits: usize, first: u64, count: u64) -> Result<()> {
        self.memory.retype(kind, bits, Slot { root: initial::CNODE, index: 0, depth: 0 }, first, count)
    }

    /// Makes threads that do the same at one object, and wait there.
    fn threads(&mut self, first: u64, count: u64, function: fn(u64), argument: u64) -> Result<()> {
        self.make(ObjectType::Tcb, 0, first, count)?;
        let (stack, _) = self.window.pages(&mut self.allocator, 1)?;
        let (buffer, page) = self.window.pages(&mut self.allocator, 1)?;
        for thread in (first..first + count).map(Thread::from_pointer) {
            let spaces = Spaces {
                fault_endpoint: 0,
                cspace: initial::CNODE,
                cspace_data: CNodeData::default(),
                address_space: initial::ADDRESS_SPACE,
            };
            // They run one after the other, and none returns: one stack is enough.
            thread.configure(spaces, buffer, page)?;
            thread.set_scheduling(initial::THREAD, HIGHEST, HIGHEST)?;
            let start = Start::new(function, argument, HIGHEST);
            thread.write_registers_and_resume(&sel4::thread::registers(&start, thread, buffer, stack + 0x1000))?;
            sel4::raw::yield_now();
            // When released they are less important than all other threads here.
            thread.set_priority(initial::THREAD, LOWEST)?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let (base, _) = self.row("nothing", 1, |_| Ok(Operation::Spin(200_000)))?;
        let parts = [Latency::objects, Latency::spaces, Latency::waiters, Latency::requests];
        let mut worst = 0;
        for part in parts {
            worst = worst.max(part(self)?);
        }
        println!("bench: {{\"id\": \"worst_latency\", \"value\": {worst}, \"unit\": \"instructions\"}}");
        println!(
            "bench: {{\"id\": \"longest_stretch\", \"value\": {}, \"unit\": \"instructions\"}}",
            worst.saturating_sub(base)
        );
        Ok(())
    }

    /// Measures objects that are made and deleted in numbers; returns the longest wait.
    fn objects(&mut self) -> Result<u64> {
        let (first, memory) = (self.slots, self.memory);
        let mut worst = 0;
        let (wait, whole) = self.row("delete-large-cnode", 1, |latency| {
            latency.make(ObjectType::CapTable, LARGE_NODE_BITS, first, 1)?;
            Ok(Operation::Delete(first))
        })?;
        worst = worst.max(wait);
        println!(
            "bench: {{\"id\": \"slot_delete\", \"value\": {}, \"unit\": \"instructions\"}}",
            whole.div_ceil(1 << LARGE_NODE_BITS)
        );
        for (name, kind, bits) in KINDS {
            let revoke = match name {
                "tcbs" => "revoke-256-tcbs",
                "tables" => "revoke-256-tables",
                "pages" => "revoke-256-pages",
                _ => "revoke-256-cnodes",
            };
            let (wait, _) = self.row(revoke, 4, |latency| {
                latency.make(kind, bits, first, OBJECTS)?;
                Ok(Operation::Revoke(memory.pointer()))
            })?;
            worst = worst.max(wait);
            let retype = match name {
                "tcbs" => "retype-256-tcbs",
                "tables" => "retype-256-tables",
                "pages" => "retype-256-pages",
                _ => "retype-256-cnodes",
            };
            let (wait, _) =
                self.row(retype, 48, |_| Ok(Operation::Retype { untyped: memory, kind, bits, first, count: OBJECTS }))?;
            worst = worst.max(wait);
        }
        Ok(worst)
    }

    /// Measures address spaces, and memory that is cleared; returns the longest wait.
    fn spaces(&mut self) -> Result<u64> {
        let (first, memory) = (self.slots, self.memory);
        let mut worst = 0;
        let (wait, _) = self.row("revoke-space", 4, |latency| {
            latency.make(ObjectType::PageTable, 0, first, 3)?;
            latency.make(ObjectType::Page, 0, first + 3, OBJECTS)?;
            latency.make(ObjectType::Page, 0, first + 3 + OBJECTS, OBJECTS)?;
            let [space, middle, last] = [0, 1, 2].map(|index| PageTable::from_pointer(first + index));
            initial::ASID_POOL.assign(space)?;
            middle.map(space, MAPPED, 0)?;
            last.map(space, MAPPED, 0)?;
            for index in 0..PAGES {
                let page = Page::from_pointer(first + 3 + index);
                page.map(space, MAPPED + (index << 12), Rights::READ_WRITE, 0)?;
            }
            Ok(Operation::Revoke(memory.pointer()))
        })?;
        worst = worst.max(wait);
        let (wait, _) = self.row("delete-asid-pool", 8, |latency| {
            latency.make(ObjectType::Untyped, 12, first, 1)?;
            let pool = AsidPool::from_pointer(first + 1);
            initial::ASID_CONTROL.make_pool(Untyped::from_pointer(first), Slot::own(pool.pointer()))?;
            latency.make(ObjectType::PageTable, 0, first + 2, OBJECTS)?;
            latency.make(ObjectType::PageTable, 0, first + 2 + OBJECTS, OBJECTS)?;
            (0..PAGES).try_for_each(|index| pool.assign(PageTable::from_pointer(first + 2 + index)))?;
            Ok(Operation::Delete(pool.pointer()))
        })?;
        worst = worst.max(wait);
        let (wait, whole) = self.row("clear", 1, |latency| {
            // All of the memory becomes pages, and is revoked: it is cleared before it is used anew.
            latency.make(ObjectType::MegaPage, 0, first, (1 << CLEARED_BITS) >> 21)?;
            Slot::own(memory.pointer()).revoke()?;
            Ok(Operation::Retype { untyped: memory, kind: ObjectType::Page, bits: 0, first, count: 1 })
        })?;
        worst = worst.max(wait);
        println!(
            "bench: {{\"id\": \"clear_kib\", \"value\": {}, \"unit\": \"instructions\"}}",
            whole.div_ceil(1 << (CLEARED_BITS - 10))
        );
        Ok(worst)
    }

    /// Measures nested CNodes, and objects for which threads wait; returns the longest wait.
    fn waiters(&mut self) -> Result<u64> {
        let first = self.slots;
        let mut worst = 0;
        let (wait, _) = self.row("delete-nested-cnodes", 2, |latency| {
            latency.make(ObjectType::CapTable, 1, first, OBJECTS)?;
            latency.make(ObjectType::CapTable, 1, first + OBJECTS, OBJECTS)?;
            for index in (first + 1..first + LEVELS).rev() {
                let root = sel4::capability::CNode::from_pointer(index - 1);
                Slot { root, index: 1, depth: 1 }.move_from(Slot::own(index))?;
            }
            Ok(Operation::Delete(first))
        })?;
        worst = worst.max(wait);
        let (wait, _) = self.row("delete-notification", 2, |latency| {
            latency.make(ObjectType::Notification, 0, first, 1)?;
            latency.threads(first + 1, WAITERS, wait_for_ever, first)?;
            Ok(Operation::Delete(first))
        })?;
        worst = worst.max(wait);
        // The interrupt has the last capability to a notification for which threads wait.
        let handler = self.allocator.slot()?;
        let prepare = |latency: &mut Latency| -> Result<()> {
            Slot::own(handler).delete()?;
            initial::IRQ_CONTROL.get(UNUSED_IRQ, Slot::own(handler))?;
            latency.make(ObjectType::Notification, 0, first, 1)?;
            latency.threads(first + 1, WAITERS, wait_for_ever, first)?;
            IrqHandler::from_pointer(handler).set_notification(Notification::from_pointer(first))?;
            Slot::own(first).delete()
        };
        let (wait, _) = self.row("clear-irq-notification", 2, |latency| {
            prepare(latency)?;
            Ok(Operation::Clear(handler))
        })?;
        worst = worst.max(wait);
        let (wait, _) = self.row("delete-irq-handler", 2, |latency| {
            prepare(latency)?;
            Ok(Operation::Delete(handler))
        })?;
        worst = worst.max(wait);
        let (wait, _) = self.row("cancel-badged-sends", 2, |latency| {
            latency.make(ObjectType::Endpoint, 0, first, 1)?;
            Slot::own(first + 1).mint_from(Slot::own(first), Rights::ALL, 7)?;
            latency.threads(first + 2, WAITERS, send_for_ever, first + 1)?;
            Ok(Operation::CancelBadgedSends(first + 1))
        })?;
        worst = worst.max(wait);
        Ok(worst)
    }

    /// Measures messages with capabilities, and asynchronous requests; returns the longest wait.
    fn requests(&mut self) -> Result<u64> {
        let (first, memory) = (self.slots, self.memory);
        let mut worst = 0;
        let endpoint = self.allocator.object(ObjectType::Endpoint)?;
        RECEIVED.store(self.allocator.slot()?, Relaxed);
        // It is more important than the sender, so that each message finds it waiting.
        spawn(&mut self.allocator, &mut self.window, Start::new(receive_for_ever, endpoint, LOWER + 1))?;
        let (wait, _) = self.row("send-capabilities", 4, |_| Ok(Operation::Send(endpoint)))?;
        worst = worst.max(wait);
        let mut buffer = SyscallBuffer::new(&mut self.allocator, &mut self.window, REQUESTS)?;
        let doorbell = Notification::from_pointer(self.allocator.object(ObjectType::Notification)?);
        buffer.register(self.worker, doorbell)?;
        let mark = self.allocator.slots(2)?;
        MARK.store(mark, Relaxed);
        let (wait, _) = self.row("serve-requests", 4, |_| {
            check_responses(&mut buffer);
            let (cnode, memory, mark) = (initial::CNODE.pointer(), Slot::own(memory.pointer()), Slot::own(mark));
            let copied = Slot::own(doorbell.pointer());
            let copy = [mark.index, mark.depth, copied.index, copied.depth, Rights::ALL.word()];
            let rows = (0..REQUESTS / 2 - 1).zip(KINDS.into_iter().cycle()).flat_map(|(_, (_, kind, bits))| {
                let words = [kind.number() as u64, bits as u64, 0, 0, first, OBJECTS];
                let retype = request(0, memory.index, Invocation::UntypedRetype, &words, &[cnode]);
                [retype, request(0, cnode, Invocation::CNodeRevoke, &[memory.index, memory.depth], &[])]
            });
            for request in rows.chain([request(0, cnode, Invocation::CNodeCopy, &copy, &[cnode])]) {
                if buffer.submit(request).is_err() {
                    REFUSED.fetch_add(1, Relaxed);
                }
            }
            buffer.publish();
            Ok(Operation::Serve)
        })?;
        check_responses(&mut buffer);
        worst = worst.max(wait);
        Ok(worst)
    }
}
