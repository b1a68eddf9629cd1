//! The tests, and their few means: a page table, user programs of a few instructions, work for other harts.
//!
//! With `echo` on the command line the kernel then reads a line from the console and writes it back.
//!
//! With `fault=NAME` on the command line the kernel makes the mistake of that name after the tests; the machine must
//! then report it and end as failed. Without, it ends with success exactly if every test passed.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use drivers::uintc::{self, Slot, Uintc};
use hal_api::{
    Access, BootInformation, Flush, HartSet, InterruptRegisters, MAXIMUM_HARTS, Machine as _, PAGE_SIZE, Scope,
    SenderTable, Status, Trap, UserContext,
};
use platform::{Machine, Platform, poll_interrupts, println};

use crate::programs;

/// Runs on the hart that booted.
pub fn main(boot: &'static BootInformation) -> ! {
    let platform = match platform::start(boot) {
        Ok(platform) => platform,
        Err(damaged) => {
            println!("the device tree cannot be used: {damaged}");
            platform::shut_down(Status::Failure(2))
        }
    };
    let mut suite = Suite { platform, next_frame: platform.free_memory[0].0, code: 0, passed: 0, failed: 0 };
    println!("{} harts, {} MiB free, {:x?}", platform.hart_ids.len(), platform.free_bytes() >> 20, platform.controller);
    suite.run();
    println!("hal: {} passed, {} failed", suite.passed, suite.failed);
    platform::console_flush();
    if platform.arguments.split(' ').any(|argument| argument == "echo") {
        echo();
    }
    if let Some(name) = platform.arguments.split(' ').find_map(|argument| argument.strip_prefix("fault=")) {
        commit(name);
    }
    platform::shut_down(if suite.failed == 0 { Status::Success } else { Status::Failure(1) })
}

/// Reads typed characters up to the end of a line, looking only after an interrupt, and prints them.
fn echo() {
    static TYPED: AtomicUsize = AtomicUsize::new(0);
    platform::set_console_listener(|| _ = TYPED.fetch_add(1, AcqRel));
    println!("type a line");
    let mut line = [0; 80];
    let mut length = 0;
    while !line[..length].contains(&b'\n') && length < line.len() {
        let before = TYPED.load(Acquire);
        length += match platform::console_try_read(&mut line[length..]) {
            0 => {
                while TYPED.load(Acquire) == before {
                    Machine::wait_for_interrupt();
                    let _ = poll_interrupts();
                }
                0
            }
            count => count,
        };
    }
    println!("you typed {}", line[..length].escape_ascii());
    platform::console_flush();
}

/// Makes the mistake of this name.
fn commit(name: &str) {
    let text = main as *const () as usize;
    match name {
        "panic" => panic!("as the command line asks"),
        "panic-elsewhere" => on_hart(platform::get().hart_ids.len() - 1, || panic!("as the command line asks")),
        "panic-during-output" => {
            on_another_hart_without_end(write_without_end);
            panic!("as the command line asks");
        }
        "overflow" => {
            println!("{}", overflow(0));
        }
        // SAFETY: none; the machine must refuse each of these, and report it.
        "write-text" => unsafe { (text as *mut u8).write_volatile(0) },
        // SAFETY: as above.
        "write-text-alias" => unsafe {
            Machine::direct_map(hal_riscv64::image_to_physical(text)).write_volatile(0);
        },
        "execute-data" => {
            static DATA: AtomicU64 = AtomicU64::new(0x8082);
            // SAFETY: as above.
            let function = unsafe { core::mem::transmute::<usize, fn()>(DATA.as_ptr() as usize) };
            function();
        }
        "null" => {
            // SAFETY: as above.
            println!("{}", unsafe { (core::hint::black_box(8) as *const u8).read_volatile() });
        }
        // SAFETY: as above: an instruction of the floating-point unit, which is off until a program has used it.
        "floating-point" => unsafe { core::arch::asm!("fcvt.d.w f0, zero") },
        _ => println!("there is no fault called {name}"),
    }
    println!("the machine let {name} pass");
}

/// Lets another hart run endless work, and gives it the time to begin.
fn on_another_hart_without_end(work: fn()) {
    let hart = platform::get().hart_ids.len() - 1;
    if hart > 0 {
        WORK[hart].store(work as *mut (), Release);
        Machine::send_ipi(hart);
        let enough = Machine::now() + platform::get().ticks(50_000_000);
        wait_until(|| Machine::now() > enough);
    }
}

/// Writes to the console for ever.
fn write_without_end() {
    loop {
        println!("another hart that has much to say, in the middle of everything");
    }
}

#[inline(never)]
#[expect(unconditional_recursion, reason = "this is the mistake")]
fn overflow(depth: usize) -> usize {
    let room = core::hint::black_box([depth; 64]);
    overflow(depth + 1) + room[depth % 64]
}

/// Work of each hart; null if it has none.
static WORK: [AtomicPtr<()>; MAXIMUM_HARTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAXIMUM_HARTS];
static IPIS: [AtomicUsize; MAXIMUM_HARTS] = [const { AtomicUsize::new(0) }; MAXIMUM_HARTS];
static RUNNING: AtomicUsize = AtomicUsize::new(1);

/// Runs on every other hart.
pub fn hart_main(hart: usize) -> ! {
    platform::join();
    assert_eq!(hart, Machine::hart());
    RUNNING.fetch_add(1, AcqRel);
    loop {
        Machine::wait_for_interrupt();
        if poll_interrupts().ipi {
            IPIS[hart].fetch_add(1, AcqRel);
        }
        let work = WORK[hart].load(Acquire);
        if !work.is_null() {
            // SAFETY: only functions of this type are ever stored.
            let work = unsafe { core::mem::transmute::<*mut (), fn()>(work) };
            work();
            WORK[hart].store(core::ptr::null_mut(), Release);
        }
    }
}

/// Runs a function on another hart, and waits until it has returned.
fn on_hart(hart: usize, work: fn()) {
    if hart == Machine::hart() {
        return work();
    }
    WORK[hart].store(work as *mut (), Release);
    Machine::send_ipi(hart);
    assert!(wait_until(|| WORK[hart].load(Acquire).is_null()), "hart {hart} does not do its work");
}

/// Polls interrupts until a condition holds, for two seconds at most.
fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let deadline = Machine::now() + platform::get().ticks(2_000_000_000);
    while !done() {
        if Machine::now() > deadline {
            return false;
        }
        // Sleeping and not spinning: an emulator that counts instructions runs the harts in turn, and a spinning hart
        // keeps its turn for long.
        Machine::set_timer(Machine::now() + platform::get().ticks(20_000));
        Machine::wait_for_interrupt();
        let _ = poll_interrupts();
    }
    Machine::set_timer(u64::MAX);
    true
}

struct Suite {
    platform: &'static Platform,
    next_frame: u64,
    /// The frame of the programs.
    code: u64,
    passed: usize,
    failed: usize,
}

/// User addresses of the tests' mappings.
const CODE: u64 = 0x1_0000;
const DATA: u64 = 0x2_0000;
const STACK: u64 = DATA + PAGE_SIZE as u64;

const VALID: u64 = 1;
const READ: u64 = 2;
const WRITE: u64 = 4;
const EXECUTE: u64 = 8;
const USER: u64 = 16;
const ACCESSED_DIRTY: u64 = 0xc0;

/// A context that several harts use in turn.
struct Shared(UnsafeCell<UserContext>);
// SAFETY: one hart at a time runs work, and `on_hart` waits for it.
unsafe impl Sync for Shared {}
static CONTEXT: Shared = Shared(UnsafeCell::new(UserContext::new(0, 0)));
static ROOT: AtomicU64 = AtomicU64::new(0);

impl Suite {
    fn run(&mut self) {
        self.test("the page table never allows writing and executing", Suite::no_page_is_writable_and_executable);
        self.test("text and constants have no writable alias", Suite::constants_have_no_writable_alias);
        self.test("free memory can be written", Suite::free_memory_can_be_written);
        self.test("the section .vdso has pages of its own", Suite::vdso_has_its_own_pages);
        self.test("bytes are copied and set wherever they lie", Suite::memory_functions);
        self.test("the timer interrupts when its time has come", Suite::timer);
        self.test("device registers can be read", Suite::devices);
        self.test("the serial line interrupts", Suite::serial_interrupts);
        self.test("a hart that does not come is given up", Suite::hart_does_not_come);
        self.test("all harts start, whichever way they come in", Suite::harts_start);
        self.test("each hart gets interprocessor interrupts", Suite::interprocessor_interrupts);
        self.test("interrupts move to other harts", Suite::interrupts_move);
        self.make_address_space();
        self.test("a system call keeps every register", Suite::system_call);
        self.test("faults tell address and access", Suite::faults);
        self.test("the timer ends an endless loop", Suite::endless_loop);
        self.test("user code sees time and counters", Suite::counters);
        self.test("floating-point contexts are kept apart", Suite::floating_point);
        self.test("floating-point contexts move between harts", Suite::floating_point_moves);
        self.test("translations are forgotten on every hart", Suite::flush);
        self.test("instructions are looked at anew on every hart", Suite::instructions);
        self.test("a round trip is short", Suite::round_trip);
        if self.platform.user_interrupts.is_some() {
            self.test("a program interrupts itself without the kernel", Suite::user_interrupts);
            self.test("a user interrupt waits for a program that is away", Suite::user_interrupts_wait);
            self.test("a program's own timer interrupts it without the kernel", Suite::user_timer);
            self.test("a program that is not armed has no part of user interrupts", Suite::user_interrupts_are_off);
        }
    }

    fn test(&mut self, name: &str, test: fn(&mut Suite) -> Result<(), &'static str>) {
        match test(self) {
            Ok(()) => {
                self.passed += 1;
                println!("ok      {name}");
            }
            Err(reason) => {
                self.failed += 1;
                println!("FAILED  {name}: {reason}");
            }
        }
    }

    /// Visits each leaf of the kernel's table: virtual address, physical address, length, flags.
    fn each_leaf(mut visit: impl FnMut(u64, u64, u64, u64)) {
        fn table(ppn: u64, base: u64, level: u32, visit: &mut impl FnMut(u64, u64, u64, u64)) {
            for index in 0..512 {
                let entry = word(ppn << 12 | index << 3);
                let cover = 1 << (12 + 9 * level);
                let mut address = base + index * cover;
                if level == 2 && index >= 256 {
                    address |= 0xffff_ff80_0000_0000;
                }
                if entry & VALID == 0 {
                    continue;
                }
                if entry & (READ | WRITE | EXECUTE) != 0 {
                    visit(address, entry >> 10 << 12, cover, entry & 0x3ff);
                } else {
                    table(entry >> 10, address, level - 1, visit);
                }
            }
        }
        table(Machine::kernel_root_ppn(), 0, 2, &mut visit);
    }

    fn no_page_is_writable_and_executable(&mut self) -> Result<(), &'static str> {
        let (mut writable, mut executable, mut both, mut user) = (0, 0, 0, 0);
        Suite::each_leaf(|_, _, length, flags| {
            writable += if flags & WRITE != 0 { length } else { 0 };
            executable += if flags & EXECUTE != 0 { length } else { 0 };
            both += (flags & WRITE != 0 && flags & EXECUTE != 0) as usize;
            user += (flags & USER != 0) as usize;
        });
        check(writable > self.platform.free_bytes(), "the direct map is missing")?;
        check(executable > 0 && executable < 16 << 20, "the text is missing, or too much is executable")?;
        check(both == 0, "a page is both")?;
        check(user == 0, "a kernel page is open to user code")
    }

    fn constants_have_no_writable_alias(&mut self) -> Result<(), &'static str> {
        let text = hal_riscv64::image_to_physical(main as *const () as usize);
        let constant = hal_riscv64::image_to_physical(programs::all().as_ptr() as usize);
        let mut aliases = 0;
        let mut writable = 0;
        Suite::each_leaf(|_, physical, length, flags| {
            for address in [text, constant] {
                if (physical..physical + length).contains(&address) {
                    aliases += 1;
                    writable += (flags & WRITE != 0) as usize;
                }
            }
        });
        check(aliases == 4, "each should be in the image and in the direct map")?;
        check(writable == 0, "one of them can be written")
    }

    fn free_memory_can_be_written(&mut self) -> Result<(), &'static str> {
        for &(start, end) in &self.platform.free_memory {
            for address in [start, end - 8, ((start + end) / 2) & !7] {
                set_word(address, address ^ 0x5555);
                check(word(address) == address ^ 0x5555, "memory does not keep written words")?;
            }
        }
        Ok(())
    }

    fn vdso_has_its_own_pages(&mut self) -> Result<(), &'static str> {
        let (start, end) = hal_riscv64::vdso_pages();
        check(start % 4096 == 0 && end == start + 4096, "the section is not one page")?;
        check(word(start) & 0xffff_ffff == u64::from(programs::VDSO[0]), "the section has another content")?;
        let mut found = false;
        Suite::each_leaf(|_, physical, length, flags| {
            found |= (physical..physical + length).contains(&start) && flags & EXECUTE != 0;
        });
        check(found, "the section is not executable")
    }

    /// Copies and sets each short length between all alignments, and looks at the bytes around.
    fn memory_functions(&mut self) -> Result<(), &'static str> {
        const ROOM: usize = 192;
        const FREE: u8 = 0xa5;
        let mut source = [0u64; ROOM / 8];
        for (index, byte) in bytes_of(&mut source).iter_mut().enumerate() {
            *byte = (index * 7 + 3) as u8;
        }
        let mut destination = [0u64; ROOM / 8];
        let expect = |bytes: &[u8], to: usize, length: usize, byte: &dyn Fn(usize) -> u8| {
            bytes
                .iter()
                .enumerate()
                .all(|(at, &found)| found == if (to..to + length).contains(&at) { byte(at - to) } else { FREE })
        };
        for (from, to) in (0..64).map(|pair| (pair / 8, pair % 8)) {
            for length in 0..ROOM - 8 {
                // Lengths that the compiler does not know become calls.
                let length = core::hint::black_box(length);
                let bytes = bytes_of(&mut destination);
                bytes.iter_mut().for_each(|byte| *byte = core::hint::black_box(FREE));
                bytes[to..to + length].copy_from_slice(&bytes_of(&mut source)[from..from + length]);
                let is_copied = expect(bytes, to, length, &|at| ((from + at) * 7 + 3) as u8);
                check(is_copied, "a copy is wrong")?;
                let byte = core::hint::black_box((length * 5) as u8);
                bytes.iter_mut().for_each(|byte| *byte = core::hint::black_box(FREE));
                bytes[to..to + length].fill(byte);
                check(expect(bytes, to, length, &|_| byte), "bytes are set wrongly")?;
            }
        }
        Ok(())
    }

    fn timer(&mut self) -> Result<(), &'static str> {
        for microseconds in [0, 100, 2000] {
            let start = Machine::now();
            let deadline = start + self.platform.ticks(microseconds * 1000);
            Machine::set_timer(deadline);
            loop {
                Machine::wait_for_interrupt();
                if poll_interrupts().timer {
                    break;
                }
                check(Machine::now() < start + self.platform.timebase_frequency, "it does not interrupt")?;
            }
            check(Machine::now() >= deadline, "it interrupts too early")?;
            check(!poll_interrupts().timer, "it interrupts twice")?;
        }
        Machine::set_timer(Machine::now());
        Machine::set_timer(u64::MAX);
        check(!poll_interrupts().timer, "a deadline cannot be taken back")?;
        check(self.platform.nanoseconds(self.platform.timebase_frequency) == 1_000_000_000, "a second is not a second")
    }

    fn devices(&mut self) -> Result<(), &'static str> {
        use drivers::Registers;
        let (virtio, ethernet) = (&self.platform.virtio, &self.platform.ethernet);
        check(!virtio.is_empty() || !ethernet.is_empty(), "there are no devices")?;
        for ethernet in ethernet {
            /// Register with the number of the module, which is 2 or more in controllers for gigabits.
            const IDENTIFICATION: usize = 0xfc;
            let device = &ethernet.device;
            let registers = platform::Mapped::new((device.address, device.length)).ok_or("a device is not mapped")?;
            let number = registers.read32(IDENTIFICATION) >> 16 & 0xfff;
            check(number >= 2, "a controller of Ethernet has the wrong number")?;
            check(device.interrupt.is_some(), "a device has no interrupt")?;
        }
        for device in virtio {
            let registers = platform::Mapped::new((device.address, device.length)).ok_or("a device is not mapped")?;
            check(registers.read32(0) == 0x7472_6976, "a virtio device has the wrong magic number")?;
            check(device.interrupt.is_some(), "a device has no interrupt")?;
        }
        check(platform::Mapped::new((self.next_frame, 4096)).is_none(), "memory can be had as a device")
    }

    fn serial_interrupts(&mut self) -> Result<(), &'static str> {
        platform::console_flush();
        platform::console_write(&[b'.'; 200]);
        platform::console_write(b"\n");
        check(platform::console_waiting() > 0, "everything was sent by polling")?;
        check(wait_until(|| platform::console_waiting() == 0), "waiting output is not taken")
    }

    fn hart_does_not_come(&mut self) -> Result<(), &'static str> {
        const NOBODY: u64 = 12_345;
        let last = MAXIMUM_HARTS - 1;
        check(hal_riscv64::start_hart(last, NOBODY).is_err(), "the firmware starts a hart that is not there")?;
        check(!hal_riscv64::has_arrived(last), "a hart that is not there has come")?;
        check(hal_riscv64::give_up_hart(last), "a hart that is not there has come after all")
    }

    fn harts_start(&mut self) -> Result<(), &'static str> {
        unsafe extern "C" {
            fn _start();
            fn _start_hart();
        }
        let hart_ids = &self.platform.hart_ids;
        let count = hart_ids.len();
        // Firmware may send a hart to the boot entry, or to the right one with a wrong argument, before it is expected:
        // the harts wait to be let in, and the firmware refuses to start them again.
        for (index, entry) in [(count - 1, _start as *const ()), (count.saturating_sub(2), _start_hart as *const ())] {
            if index > 0 {
                let entry = hal_riscv64::image_to_physical(entry as usize);
                check(firmware_starts(hart_ids[index], entry) == 0, "the firmware does not start a hart by hand")?;
            }
        }
        let patience = Machine::now() + self.platform.ticks(10_000_000);
        wait_until(|| Machine::now() > patience);
        check(RUNNING.load(Acquire) == 1, "a hart is in before it is expected")?;
        check(platform::start_harts(MAXIMUM_HARTS) == count, "the firmware refuses one")?;
        check(wait_until(|| RUNNING.load(Acquire) == count), "one does not arrive")
    }

    fn interprocessor_interrupts(&mut self) -> Result<(), &'static str> {
        for (hart, count) in IPIS.iter().enumerate().take(self.platform.hart_ids.len()).skip(1) {
            for _ in 0..10 {
                let before = count.load(Acquire);
                Machine::send_ipi(hart);
                check(wait_until(|| count.load(Acquire) > before), "a hart does not notice")?;
            }
        }
        Machine::send_ipi(0);
        Machine::wait_for_interrupt();
        check(poll_interrupts().ipi, "a hart does not reach itself")?;
        check(!poll_interrupts().ipi, "one interrupt comes twice")?;
        // A hart that does not exist receives nothing.
        Machine::send_ipi(MAXIMUM_HARTS + 5);
        Ok(())
    }

    fn interrupts_move(&mut self) -> Result<(), &'static str> {
        static SERVED: AtomicUsize = AtomicUsize::new(0);
        fn serve(data: usize) -> bool {
            SERVED.fetch_or(1 << Machine::hart(), AcqRel);
            assert_eq!(data, 77);
            platform::serve_console();
            true
        }
        let interrupt = self.platform.serial.and_then(|serial| serial.device.interrupt).ok_or("no serial line")?;
        check(
            platform::register_interrupt(interrupt, serve, 77) == Err(platform::RegisterError::Taken),
            "a source can be taken twice",
        )?;
        let harts = self.platform.hart_ids.len();
        for _ in 0..harts {
            platform::console_flush();
            platform::remove_interrupt(interrupt.source);
            platform::register_interrupt(interrupt, serve, 77).map_err(|_| "a source cannot be taken again")?;
            platform::console_write(&[b'.'; 100]);
            platform::console_write(b"\n");
            check(wait_until(|| platform::console_waiting() == 0), "the source is not served")?;
        }
        check(SERVED.load(Acquire) == (1 << harts) - 1, "not every hart had its turn")
    }

    fn frame(&mut self) -> u64 {
        let frame = self.next_frame;
        self.next_frame += 4096;
        for offset in (0..4096).step_by(8) {
            set_word(frame + offset, 0);
        }
        frame
    }

    /// Maps one page of user space.
    fn map(&mut self, root: u64, address: u64, physical: u64, flags: u64) {
        let mut table = root;
        for level in [2, 1] {
            let slot = table + (address >> (12 + 9 * level) & 511) * 8;
            if word(slot) == 0 {
                let new = self.frame();
                set_word(slot, new >> 2 | VALID);
            }
            table = word(slot) >> 10 << 12;
        }
        set_word(table + (address >> 12 & 511) * 8, physical >> 2 | flags | VALID | USER | ACCESSED_DIRTY);
    }

    /// Maps a page of code and two of data for every test, and the kernel's half.
    fn make_address_space(&mut self) {
        let root = self.frame();
        for index in 256..512 {
            set_word(root + index * 8, word(Machine::kernel_root_ppn() << 12 | index << 3));
        }
        let code = self.frame();
        for (position, &instruction) in programs::all().iter().enumerate() {
            let place = Machine::direct_map(code + position as u64 * 4);
            // SAFETY: the frame is free memory without other users.
            unsafe { place.cast::<u32>().write_volatile(instruction) };
        }
        self.map(root, CODE, code, READ | EXECUTE);
        let data = self.frame();
        self.map(root, DATA, data, READ | WRITE);
        ROOT.store(root, Release);
        self.code = code;
        for hart in 0..self.platform.hart_ids.len() {
            on_hart(hart, activate);
        }
        Machine::synchronise_instructions(HartSet::first(MAXIMUM_HARTS));
    }

    fn system_call(&mut self) -> Result<(), &'static str> {
        let mut context = UserContext::new(entry(programs::Program::IncrementAll), STACK);
        for number in 1..32 {
            context.set_register(number, 0x1234_5678_9abc_0000 + number as u64 * 0x101);
        }
        let before = context.clone();
        check(enter(&mut context) == Trap::SystemCall, "it is no system call")?;
        for number in 1..32 {
            check(context.register(number) == before.register(number) + 1, "a register is wrong")?;
        }
        let behind = before.pc + 32 * 4;
        check(context.pc == behind, "pc is not behind the call")?;
        // The program continues behind the call: a breakpoint.
        check(enter(&mut context) == Trap::Breakpoint, "it does not go on behind the call")?;
        check(context.pc == behind, "pc is not on the breakpoint")
    }

    fn faults(&mut self) -> Result<(), &'static str> {
        use Access::*;
        let kernel = Suite::run as *const () as u64;
        for address in [0, 0x5000, DATA - 1, kernel, Machine::direct_map(self.next_frame) as u64] {
            let mut context = UserContext::new(entry(programs::Program::Load), STACK);
            context.set_register(10, address);
            let trap = enter(&mut context);
            check(trap == Trap::PageFault { address, access: Read }, "a load is not refused")?;
            check(context.pc == entry(programs::Program::Load), "pc is not on the instruction")?;

            let mut context = UserContext::new(entry(programs::Program::Store), STACK);
            context.set_register(10, address);
            let trap = enter(&mut context);
            check(trap == Trap::PageFault { address, access: Write }, "a store is not refused")?;

            if address & 1 == 0 {
                let trap = enter(&mut UserContext::new(address, STACK));
                check(trap == Trap::PageFault { address, access: Execute }, "a fetch is not refused")?;
            }
        }
        let mut context = UserContext::new(entry(programs::Program::Store), STACK);
        context.set_register(10, CODE);
        let trap = enter(&mut context);
        check(trap == Trap::PageFault { address: CODE, access: Write }, "code can be written")?;
        let trap = enter(&mut UserContext::new(DATA, STACK));
        check(trap == Trap::PageFault { address: DATA, access: Execute }, "data can be executed")?;

        for program in [programs::Program::Privileged, programs::Program::Illegal] {
            let trap = enter(&mut UserContext::new(entry(program), STACK));
            let bits = u64::from(programs::first_instruction(program));
            check(trap == Trap::IllegalInstruction { bits }, "an illegal instruction is not refused")?;
        }
        let mut context = UserContext::new(entry(programs::Program::Load), STACK);
        // An address that the page table maps to physical addresses without memory or device.
        let nothing = 0x1_0000_0000_u64 * 12;
        self.map(ROOT.load(Acquire), 0x40_0000, nothing, READ | WRITE);
        context.set_register(10, 0x40_0000);
        let trap = enter(&mut context);
        check(trap == Trap::AccessFault { address: 0x40_0000, access: Read }, "an access to nothing is not refused")
    }

    fn endless_loop(&mut self) -> Result<(), &'static str> {
        let mut context = UserContext::new(entry(programs::Program::Endless), STACK);
        // A busy host may let the whole time pass before the first instruction; some of many rounds must run.
        let mut ran = 0;
        for _ in 0..20 {
            Machine::set_timer(Machine::now() + self.platform.ticks(500_000));
            let counted = context.register(10);
            let mut timer = false;
            while !timer {
                check(Machine::enter_user(&mut context) == Trap::Interrupt, "something else ended it")?;
                timer = poll_interrupts().timer;
            }
            ran += (context.register(10) > counted) as usize;
            check(context.pc - entry(programs::Program::Endless) < 8, "pc left the loop")?;
        }
        check(ran > 0, "it never runs")
    }

    fn counters(&mut self) -> Result<(), &'static str> {
        let mut context = UserContext::new(entry(programs::Program::Counters), STACK);
        let before = Machine::now();
        check(enter(&mut context) == Trap::SystemCall, "a counter cannot be read")?;
        let after = Machine::now();
        check((before..=after).contains(&context.register(10)), "user code sees another time")
    }

    fn floating_point(&mut self) -> Result<(), &'static str> {
        let mut contexts = [const { UserContext::new(0, STACK) }; 3];
        for round in 0..4_u64 {
            for (number, context) in contexts.iter_mut().enumerate() {
                let seed = 1000 * number as u64 + 1 + 64 * round;
                add_to_floating_point(context, seed)?;
                check(context.floating_point().f[31] == sum(number as u64, round) + 31 * (round + 1), "f31 is wrong")?;
            }
        }
        // Contents stay in the hart from one call to the next.
        let mut staying = UserContext::new(0, STACK);
        for _ in 0..3 {
            staying.pc = entry(programs::Program::AddFloatingPoint);
            staying.set_register(10, 20);
            while Machine::enter_user(&mut staying) == Trap::Interrupt {
                let _ = poll_interrupts();
            }
        }
        Machine::keep_floating_point(&mut staying);
        check((0..32).all(|n| staying.floating_point().f[n as usize] == 3 * (20 + n)), "contents do not stay")?;
        // A program that does not touch the unit keeps its contents too.
        let mut context = contexts[1].clone();
        context.pc = entry(programs::Program::IncrementAll);
        check(enter(&mut context) == Trap::SystemCall, "it is no system call")?;
        check(context.floating_point() == contexts[1].floating_point(), "contents changed")?;
        // Copies are independent from then on.
        let mut copy = contexts[1].clone();
        add_to_floating_point(&mut contexts[1], 5)?;
        let expected = copy.floating_point().f[7] + 9 + 7;
        add_to_floating_point(&mut copy, 9)?;
        check(copy.floating_point().f[7] == expected, "a copy sees the other's changes")?;
        // The kernel's own changes are visible.
        copy.floating_point_mut().f[7] = 70;
        copy.floating_point_mut().fcsr = 0x20;
        add_to_floating_point(&mut copy, 1)?;
        check(copy.floating_point().f[7] == 78, "the kernel's change is lost")?;
        check(copy.floating_point().fcsr == 0x20, "the rounding mode is lost")
    }

    fn floating_point_moves(&mut self) -> Result<(), &'static str> {
        static FAILURES: AtomicUsize = AtomicUsize::new(0);
        fn step() {
            // SAFETY: one hart at a time; `on_hart` waits.
            let context = unsafe { &mut *CONTEXT.0.get() };
            if add_to_floating_point(context, 10).is_err() {
                FAILURES.fetch_add(1, AcqRel);
            }
        }
        let harts = self.platform.hart_ids.len();
        for round in 1..=3 * harts as u64 {
            on_hart(round as usize % harts, step);
            // SAFETY: as above.
            let f = unsafe { (*CONTEXT.0.get()).floating_point().f };
            check((0..32).all(|n| f[n] == round * (10 + n as u64)), "contents are stale on another hart")?;
        }
        check(FAILURES.load(Acquire) == 0, "the program failed")
    }

    fn flush(&mut self) -> Result<(), &'static str> {
        static SEEN: AtomicU64 = AtomicU64::new(0);
        fn look() {
            let mut context = UserContext::new(entry(programs::Program::Load), STACK);
            context.set_register(10, DATA + 8);
            let _ = enter(&mut context);
            SEEN.store(context.register(11), Release);
        }
        let root = ROOT.load(Acquire);
        let pages = [self.frame(), self.frame()];
        for (value, page) in pages.iter().enumerate() {
            set_word(page + 8, 100 + value as u64);
        }
        let harts = self.platform.hart_ids.len();
        let scopes = [
            Scope::All,
            Scope::AddressSpace { asid: 0 },
            Scope::Page { address: DATA as usize + 8, asid: 0 },
            Scope::Range { start: DATA as usize, length: 1, asid: 0 },
            Scope::Range { start: 0, length: 1 << 30, asid: 0 },
        ];
        for (round, scope) in scopes.iter().enumerate() {
            self.map(root, DATA, pages[round % 2], READ | WRITE);
            Machine::flush_tlb(Flush::Remote(HartSet::first(MAXIMUM_HARTS), *scope));
            for hart in 0..harts {
                on_hart(hart, look);
                check(SEEN.load(Acquire) == 100 + round as u64 % 2, "a hart sees the old page")?;
            }
        }
        check(Machine::maximum_asid() > 0, "there are no identifiers of address spaces")?;
        // SAFETY: a table made by `make_address_space`.
        unsafe { Machine::activate(root >> 12, Machine::maximum_asid()) };
        look();
        activate();
        check(SEEN.load(Acquire) == 100, "another identifier sees another page")
    }

    fn instructions(&mut self) -> Result<(), &'static str> {
        /// Offset behind all programs.
        const PLACE: u64 = programs::LENGTH as u64 - 64;
        static SEEN: AtomicU64 = AtomicU64::new(0);
        fn look() {
            let mut context = UserContext::new(CODE + PLACE, STACK);
            let _ = enter(&mut context);
            SEEN.store(context.register(10), Release);
        }
        let everybody = HartSet::first(MAXIMUM_HARTS);
        for round in 0..20 {
            // addi a0, zero, round; ecall
            set_word(self.code + PLACE, 0x73 << 32 | round << 20 | 0x513);
            Machine::synchronise_instructions(everybody);
            for hart in 0..self.platform.hart_ids.len() {
                on_hart(hart, look);
                check(SEEN.load(Acquire) == round, "a hart runs stale instructions")?;
            }
        }
        Ok(())
    }

    fn round_trip(&mut self) -> Result<(), &'static str> {
        const ROUNDS: u64 = 1000;
        let mut context = UserContext::new(entry(programs::Program::EcallLoop), STACK);
        check(enter(&mut context) == Trap::SystemCall, "it is no system call")?;
        check(wait_until(|| platform::console_waiting() == 0), "the serial line is stuck")?;
        let start = hal_riscv64::instructions();
        for _ in 0..ROUNDS {
            if Machine::enter_user(&mut context) != Trap::SystemCall {
                return Err("it is no system call");
            }
        }
        let trip = (hal_riscv64::instructions() - start) / ROUNDS;
        println!("        {trip} instructions for each round trip");
        // An emulator that does not count instructions reports elapsed time; the check applies only with `counted` on
        // the command line.
        let counted = self.platform.arguments.split(' ').any(|argument| argument == "counted");
        check(!counted || trip <= 130, "a round trip is long")
    }
}

/// The slot and the vector of the tests of user interrupts, and the number of interrupts of the longest.
const SLOT: u16 = 5;
const VECTOR: u8 = 7;
const SENDS: u64 = 1000;

/// The program counter in the program that sends user interrupts to itself.
fn sender(offset: u64) -> u64 {
    entry(programs::Program::SendUserInterrupts) + offset
}

/// A program that waits to be interrupted, when it is away.
static REGISTERS: Away = Away(UnsafeCell::new(InterruptRegisters::NEW));
struct Away(UnsafeCell<InterruptRegisters>);
// SAFETY: one hart at a time runs work, and `on_hart` waits for it.
unsafe impl Sync for Away {}

impl Suite {
    /// Returns the controller and the slot of the tests.
    fn slot(&self) -> Result<(Uintc<platform::Mapped>, Slot), &'static str> {
        let registers = self.platform.user_interrupts.and_then(platform::Mapped::new).ok_or("no controller")?;
        Ok((Uintc::new(registers), Slot::new(SLOT).ok_or("no slot")?))
    }

    /// Returns the registers of a program with this handler that is interrupted by software or its timer.
    fn receiver(handler: u64) -> InterruptRegisters {
        InterruptRegisters { status: 1, enabled: 0x11, vector: sender(handler), ..InterruptRegisters::NEW }
    }

    fn prepare_user_interrupts(&self) -> Result<(Uintc<platform::Mapped>, Slot), &'static str> {
        fn prepare() {
            let (address, _) = platform::get().user_interrupts.unwrap_or((0, 0));
            hal_riscv64::prepare_user_level(address);
        }
        for hart in 0..self.platform.hart_ids.len() {
            on_hart(hart, prepare);
        }
        let (controller, slot) = self.slot()?;
        controller.reset(slot);
        Ok((controller, slot))
    }

    fn user_interrupts(&mut self) -> Result<(), &'static str> {
        let (controller, slot) = self.prepare_user_interrupts()?;
        let table = self.frame();
        set_word(table, uintc::entry(slot, VECTOR).ok_or("no vector")?);
        let mut context = UserContext::new(sender(0), STACK);
        context.set_register(10, SENDS);
        check(wait_until(|| platform::console_waiting() == 0), "the serial line is stuck")?;
        let table = SenderTable { first_frame: table >> 12, frames: 1 };
        hal_riscv64::arm(&Suite::receiver(programs::HANDLER), Some(SLOT), Some(table));
        controller.activate(slot, self.platform.hart_ids[0] as u16);
        let before = hal_riscv64::instructions();
        // One entry into user mode, one trap: the call at the end.
        let trap = Machine::enter_user(&mut context);
        let each = (hal_riscv64::instructions() - before) / SENDS;
        controller.deactivate(slot);
        let registers = hal_riscv64::disarm();
        check(trap == Trap::SystemCall, "the kernel was entered")?;
        check(context.register(11) == SENDS, "an interrupt is lost")?;
        check(context.register(12) == 1 << VECTOR, "the vector is another")?;
        check(registers.cause == 1 << 63 && registers.vector == sender(programs::HANDLER), "a register is lost")?;
        println!("        {each} instructions for each send with its handler");
        Ok(())
    }

    fn user_interrupts_wait(&mut self) -> Result<(), &'static str> {
        static TRAP_IS_CALL: AtomicUsize = AtomicUsize::new(0);
        /// Brings the program to this hart until its next call.
        fn visit() {
            let hart_id = platform::get().hart_ids[Machine::hart()] as u16;
            let registers = platform::get().user_interrupts.and_then(platform::Mapped::new);
            let (Some(registers), Some(slot)) = (registers, Slot::new(SLOT)) else { return };
            let controller = Uintc::new(registers);
            // SAFETY: one hart at a time; `on_hart` waits.
            let (context, away) = unsafe { (&mut *CONTEXT.0.get(), &mut *REGISTERS.0.get()) };
            hal_riscv64::arm(away, Some(SLOT), None);
            controller.activate(slot, hart_id);
            let trap = enter(context);
            controller.deactivate(slot);
            *away = hal_riscv64::disarm();
            TRAP_IS_CALL.fetch_add((trap == Trap::SystemCall) as usize, AcqRel);
        }
        let (controller, slot) = self.prepare_user_interrupts()?;
        let harts = self.platform.hart_ids.len();
        for round in 1..=2 * harts {
            // Sent while the program runs nowhere; the hart's next program is not interrupted.
            controller.send(slot, VECTOR);
            controller.send(slot, VECTOR + 1);
            let mut other = UserContext::new(sender(programs::COUNT), STACK);
            other.set_register(10, 100);
            check(enter(&mut other) == Trap::SystemCall, "another program is disturbed")?;
            check(other.register(11) == 0, "another program is interrupted")?;
            // SAFETY: as above.
            unsafe {
                *CONTEXT.0.get() = UserContext::new(sender(programs::WAIT), STACK);
                *REGISTERS.0.get() = Suite::receiver(programs::HANDLER);
            }
            on_hart(round % harts, visit);
            check(TRAP_IS_CALL.load(Acquire) == round, "the program does not come to its end")?;
            // SAFETY: as above.
            let context = unsafe { &*CONTEXT.0.get() };
            check(context.register(11) == 1, "two vectors are not one interrupt")?;
            check(context.register(12) == 3 << VECTOR, "a vector is lost")?;
        }
        Ok(())
    }

    fn user_timer(&mut self) -> Result<(), &'static str> {
        self.prepare_user_interrupts()?;
        let mut context = UserContext::new(sender(programs::WAIT), STACK);
        context.set_register(13, u64::MAX);
        check(wait_until(|| platform::console_waiting() == 0), "the serial line is stuck")?;
        let deadline = Machine::now() + self.platform.ticks(1_000_000);
        let registers = InterruptRegisters { deadline, ..Suite::receiver(programs::TIMER_HANDLER) };
        hal_riscv64::arm(&registers, None, None);
        let trap = Machine::enter_user(&mut context);
        let after = Machine::now();
        let registers = hal_riscv64::disarm();
        check(trap == Trap::SystemCall, "the kernel was entered")?;
        check(after >= deadline && context.register(11) == 1, "the timer does not interrupt once")?;
        check(registers.cause == 1 << 63 | 4 && registers.deadline == u64::MAX, "a register is lost")
    }

    fn user_interrupts_are_off(&mut self) -> Result<(), &'static str> {
        self.prepare_user_interrupts()?;
        for (offset, bits) in [(0, 0x607b), (programs::HANDLER, 0x0200_62fb), (programs::HANDLER + 4, 0x0440_f073)] {
            let trap = enter(&mut UserContext::new(sender(offset), STACK));
            check(trap == Trap::IllegalInstruction { bits }, "an instruction is not refused")?;
        }
        Ok(())
    }
}

/// Requests the firmware to start a hart at a physical address, with an arbitrary argument; returns its error number
/// (SBI specification, hart state management).
fn firmware_starts(hart_id: u64, entry: u64) -> isize {
    let error;
    // SAFETY: both entries let a hart in only when it is expected, and until then it uses no memory.
    unsafe {
        core::arch::asm!(
            "ecall",
            inlateout("a0") hart_id => error,
            inlateout("a1") entry => _,
            in("a2") 0x1111_1111,
            in("a6") 0,
            in("a7") 0x48_534d,
            options(nostack),
        );
    }
    error
}

fn activate() {
    // SAFETY: `make_address_space` made the table with the kernel's upper half, and it is never freed.
    unsafe { Machine::activate(ROOT.load(Acquire) >> 12, 0) };
}

/// Runs a program until it stops for a reason of its own.
fn enter(context: &mut UserContext) -> Trap {
    loop {
        let trap = Machine::enter_user(context);
        if trap != Trap::Interrupt {
            Machine::keep_floating_point(context);
            return trap;
        }
        let _ = poll_interrupts();
    }
}

/// Returns the user address of a program.
fn entry(program: programs::Program) -> u64 {
    CODE + program as u64 * programs::SPACE
}

/// Lets a program add `seed + n` to the bits of each register f`n`.
fn add_to_floating_point(context: &mut UserContext, seed: u64) -> Result<(), &'static str> {
    let before = context.floating_point().f;
    context.pc = entry(programs::Program::AddFloatingPoint);
    context.set_register(10, seed);
    check(enter(context) == Trap::SystemCall, "the program does not come to its end")?;
    let after = context.floating_point().f;
    check((0..32).all(|n| after[n] == before[n] + seed + n as u64), "a floating-point register is wrong")
}

/// Returns the sum of the additions of the rounds up to `round` to each register of the context with this number, apart
/// from the register's own number.
fn sum(number: u64, round: u64) -> u64 {
    (0..=round).map(|round| 1000 * number + 1 + 64 * round).sum()
}

/// Returns the bytes of some words.
fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: all bytes of the words, which any value may have.
    unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

fn check(condition: bool, reason: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(reason) }
}

/// Reads memory through the direct map.
fn word(physical: u64) -> u64 {
    // SAFETY: the tests pass addresses of tables and of free memory, which are mapped; they may change meanwhile.
    unsafe { Machine::direct_map(physical).cast::<u64>().read_volatile() }
}

/// Writes memory through the direct map.
fn set_word(physical: u64, value: u64) {
    // SAFETY: the tests pass addresses of free memory without other users.
    unsafe { Machine::direct_map(physical).cast::<u64>().write_volatile(value) };
}
