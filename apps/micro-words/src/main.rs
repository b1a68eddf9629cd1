//! Measures the effects of boot words through seL4's interface, and prints one line for each: `told NAME=VALUE`.
//! `cargo xtask test micro` compares them with the words that it passed.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use abi_sel4::call::number;
use abi_sel4::configuration::{ERROR_TEXT_START, ERROR_TEXT_WORDS, MAXIMUM_DOMAINS};
use abi_sel4::debug_call::{Benchmarks, Build, Counter, Debugging, EntryPath, KernelEntry, LogEntry, Release};
use abi_sel4::fault::status;
use abi_sel4::object::MEGA_PAGE_BITS;
use abi_sel4::{CapabilityTag, DebugCall, Error, Invocation, ObjectType, Rights};
use sel4::capability::{Endpoint, Notification, Slot, Thread, initial};
use sel4::fault::Fault;
use sel4::mapping::Window;
use sel4::message::{Message, reply};
use sel4::raw::{self, buffer_word, numbering, set_buffer_word, system_call};
use sel4::thread::{Start, prepare, spawn};
use sel4::{Allocator, BootInformation, println};

/// Numbers of the tried calls: behind those that every kernel for debugging has.
const TRIED: core::ops::RangeInclusive<isize> = 15..=30;
/// Domains whose threads must have their turn, if there are as many domains.
const TURNS: [u64; 2] = [7, 15];
/// Label of a message whose entry is looked for in the log.
const WORKING: u64 = 55;
/// Message of a thread that has tried all calls.
const DONE: u64 = 77;

/// Progress of the thread of each domain.
static COUNTED: [AtomicU64; MAXIMUM_DOMAINS] = [const { AtomicU64::new(0) }; MAXIMUM_DOMAINS];

#[sel4::root_task]
fn main(boot: BootInformation) {
    let mut finder = Finder {
        allocator: Allocator::new(&boot),
        window: Window::new(0x10_0000_0000, 0x10_1000_0000),
        cores: boot.cores().1,
    };
    let outcome = root_cnode(&boot)
        .and_then(|()| finder.domains())
        .and_then(|()| finder.calls())
        .and_then(|()| finder.cores_run());
    println!("told untypeds={}", boot.untypeds().count());
    println!("told error-text={}", error_text());
    match outcome {
        Ok(()) => println!("1 passed, 0 failed"),
        Err(failure) => println!("0 passed, 1 failed: {failure}"),
    }
}

struct Finder {
    allocator: Allocator,
    window: Window,
    cores: u64,
}

/// Checks that the last slot can be used, and that none is behind it.
fn root_cnode(boot: &BootInformation) -> sel4::Result<()> {
    let bits = boot.raw().cnode_size_bits;
    let copy = |index| Slot::own(index).copy_from(Slot::own(initial::CNODE.pointer()), Rights::ALL);
    copy((1 << bits) - 1)?;
    Slot::own((1 << bits) - 1).delete()?;
    assert_eq!(boot.empty_slots().end, 1 << bits, "boot information knows of another number of slots");
    let behind = copy(1 << bits).expect_err("there is a slot behind the last");
    println!("told root-cnode-bits={bits} ({behind})");
    Ok(())
}

fn count(domain: u64) {
    loop {
        COUNTED[domain as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Tries calls, and reports when it is done.
fn try_calls(endpoint: u64) {
    for number in TRIED {
        system_call(-number, [0; 6]);
    }
    Endpoint::from_pointer(endpoint).send(&Message::new(DONE, &[]));
}

/// Calls, and reads where nothing is mapped.
fn call_and_fault(endpoint: u64) {
    Endpoint::from_pointer(endpoint).call(&Message::new(WORKING, &[]));
    // SAFETY: the null page is not mapped, and the fault is what is wanted.
    unsafe { core::arch::asm!("lw zero, 0(zero)", options(nostack)) };
}

fn signal(pointer: u64) {
    Notification::from_pointer(pointer).signal();
}

impl Finder {
    /// Prints the number of domains, and checks that all domains of the schedule have their turns.
    fn domains(&mut self) -> sel4::Result<()> {
        let thread = Thread::from_pointer(self.allocator.object(ObjectType::Tcb)?);
        let domains = (0..=MAXIMUM_DOMAINS as u64).find(|&domain| initial::DOMAIN.set(domain, thread).is_err());
        let domains = domains.expect("there are more domains than the most");
        println!("told domains={domains}");
        if TURNS.iter().all(|&domain| domain < domains) {
            for domain in TURNS {
                let started = prepare(&mut self.allocator, &mut self.window, Start::new(count, domain, 200))?;
                initial::DOMAIN.set(domain, started.thread)?;
                started.thread.resume()?;
            }
            while TURNS.iter().any(|&domain| COUNTED[domain as usize].load(Ordering::Relaxed) == 0) {
                raw::yield_now();
            }
            println!("told schedule=0,7,15");
        }
        Ok(())
    }

    /// Prints the available calls for debugging and measuring.
    fn calls(&mut self) -> sel4::Result<()> {
        let endpoint = self.allocator.object(ObjectType::Endpoint)?;
        let start = Start { fault_endpoint: endpoint, ..Start::new(try_calls, endpoint, 100) };
        let started = spawn(&mut self.allocator, &mut self.window, start)?;
        let mut known: isize = 0;
        loop {
            let received = Endpoint::from_pointer(endpoint).receive();
            if received.label() == DONE {
                break;
            }
            let Some(Fault::UnknownSystemCall { number, .. }) = Fault::from_message(&received) else {
                panic!("the thread faulted in another way");
            };
            let mut words: [u64; 11] = core::array::from_fn(|index| received.word(index).unwrap_or(0));
            words[0] += 4;
            known |= 1 << number.wrapping_neg();
            reply(&Message::new(0, &words));
        }
        let first_unknown = TRIED.clone().find(|number| known >> number & 1 != 0).unwrap_or(*TRIED.end());
        println!("told calls={}", first_unknown - TRIED.start());
        let measuring = [Benchmarks::Calls, Benchmarks::Utilisation];
        let builds = [Release::Fifteen, Release::Sixteen].into_iter().flat_map(|release| {
            let of = move |benchmarks| Build { release, cores: numbering(), debugging: Debugging::On, benchmarks };
            measuring.map(of)
        });
        // No two of them have as many calls.
        let last = |build| DebugCall::ALL.iter().filter_map(|call| call.number(build)).min();
        let Some(build) = builds.into_iter().find(|&build| last(build) == Some(1 - first_unknown)) else {
            return Ok(());
        };
        self.log(build)?;
        match build.benchmarks {
            Benchmarks::Utilisation => self.utilisation(build, started.thread),
            _ => Ok(()),
        }
    }

    /// Prints whether the kernel logs its entries. If so, the log must have the entries that were made.
    fn log(&mut self, build: Build) -> sel4::Result<()> {
        const REFUSED: u64 = Error::IllegalOperation.number() as u64;
        let call = |call: DebugCall, argument: u64| {
            let number = call.number(build).expect("the build has it");
            system_call(number, [argument, 0, 0, 0, 0, 0])[0]
        };
        let set = |slot: u64| call(DebugCall::BenchmarkSetLogBuffer, slot);
        let null = || call(DebugCall::BenchmarkNullSyscall, 0);
        let (address, page) = self.window.mega_pages(&mut self.allocator, 1)?;
        let copies = [self.allocator.slot()?, self.allocator.slot()?];
        for (copy, rights) in copies.iter().zip([Rights::READ, Rights::READ_WRITE]) {
            Slot::own(*copy).copy_from(Slot::own(page.pointer()), rights)?;
        }
        let small = self.allocator.object(ObjectType::Page)?;
        for wrong in [0, u64::MAX, initial::THREAD.pointer(), small, copies[0]] {
            assert_eq!(set(wrong), REFUSED, "a log in the capability {wrong:#x}");
        }
        let buffer_is_set = set(page.pointer());
        let is_started = call(DebugCall::BenchmarkResetLog, 0);
        if buffer_is_set != 0 {
            assert_eq!((buffer_is_set, is_started), (REFUSED, 0));
            assert_eq!(call(DebugCall::BenchmarkFinalizeLog, 0), 0);
            println!("told log=none");
            return Ok(());
        }
        assert_eq!(is_started, 0);
        let record = |index: u64| {
            let word = |offset: u64| {
                let pointer = core::ptr::with_exposed_provenance_mut(address as usize + (index * 16 + offset) as usize);
                // SAFETY: the page at this address is mapped, readable and writable, and no reference to it exists; the
                // kernel writes aligned words of it, and `index` is below its number of records.
                unsafe { AtomicU64::from_ptr(pointer) }.load(Ordering::Relaxed)
            };
            LogEntry::from_words([word(0), word(8)])
        };
        // An invocation that is refused, a message to a waiting thread, and a fault, each with its answer.
        let endpoint = self.allocator.object(ObjectType::Endpoint)?;
        let start = Start { fault_endpoint: endpoint, ..Start::new(call_and_fault, endpoint, 100) };
        let started = prepare(&mut self.allocator, &mut self.window, start)?;
        assert_eq!(call(DebugCall::BenchmarkResetLog, 0), 0);
        null();
        raw::yield_now();
        started.thread.set_priority(initial::THREAD, u64::MAX).expect_err("there is no such priority");
        started.thread.resume()?;
        Endpoint::from_pointer(endpoint).receive();
        reply(&Message::new(0, &[]));
        let faulted = Fault::from_message(&Endpoint::from_pointer(endpoint).receive());
        assert!(matches!(faulted, Some(Fault::Memory { .. })), "{faulted:?}");
        let count = call(DebugCall::BenchmarkFinalizeLog, 0);
        let behind = record(count);
        null();
        assert_eq!(record(count), behind, "the log goes on");
        let mut end = 0;
        for index in 0..count {
            let LogEntry { start, duration, entry } = record(index);
            assert!(start >= end && duration > 0, "{index}: {entry:?} at {start}, after {end}");
            end = start + u64::from(duration);
        }
        let label = Invocation::TcbSetPriority.label(build.cores).expect("every build has it");
        let called =
            |number: u64, tag, label| KernelEntry::system_call(number.wrapping_neg() as u32, tag, label as u32);
        let null_number = DebugCall::BenchmarkNullSyscall.number(build).unwrap_or_default() as u32;
        let [thread, endpoint] = [CapabilityTag::Thread, CapabilityTag::Endpoint].map(|tag| tag as u32);
        let mut expected = [
            KernelEntry::other(EntryPath::UnknownSystemCall, 0, null_number),
            called(number::Yield, 0, 0),
            called(number::Call, thread, label),
            called(number::Call, endpoint, WORKING).on_fastpath(),
            KernelEntry::other(EntryPath::VmFault, 0, status::LOAD as u32),
        ]
        .into_iter()
        .peekable();
        for index in 0..count {
            expected.next_if(|expected| *expected == record(index).entry);
        }
        assert_eq!(expected.next(), None, "the log lacks it");
        self.full_and_lost_logs(call, record, copies[1])
    }

    /// Checks the log when its page is full, and when a capability of the page is deleted.
    fn full_and_lost_logs(
        &mut self,
        call: impl Fn(DebugCall, u64) -> u64,
        record: impl Fn(u64) -> LogEntry,
        copy: u64,
    ) -> sel4::Result<()> {
        let capacity = (1 << MEGA_PAGE_BITS) / size_of::<LogEntry>() as u64;
        call(DebugCall::BenchmarkResetLog, 0);
        for _ in 0..capacity + 10 {
            call(DebugCall::BenchmarkNullSyscall, 0);
        }
        assert_eq!(call(DebugCall::BenchmarkFinalizeLog, 0), capacity);
        assert_ne!(record(capacity - 1).start, 0, "the last record is empty");
        call(DebugCall::BenchmarkResetLog, 0);
        call(DebugCall::BenchmarkNullSyscall, 0);
        let first = record(0);
        Slot::own(copy).delete()?;
        for _ in 0..10 {
            call(DebugCall::BenchmarkNullSyscall, 0);
        }
        let deleted = (0..10).map(&record).filter(|record| record.start >= first.start).count();
        assert!(deleted <= 3, "{deleted} entries, after a capability of the page was deleted");
        let refused = call(DebugCall::BenchmarkResetLog, 0);
        assert_eq!(refused, Error::IllegalOperation.number() as u64, "a log without a page");
        println!("told log=kept");
        Ok(())
    }

    /// Prints the counters of a thread while another one waits for it.
    fn utilisation(&mut self, build: Build, idle: Thread) -> sel4::Result<()> {
        let call = |call: DebugCall, argument: u64| {
            let number = call.number(build).expect("the build has it");
            system_call(number, [argument, 0, 0, 0, 0, 0])[0]
        };
        let notification = self.allocator.object(ObjectType::Notification)?;
        let start = Start::new(signal, notification, 100);
        call(DebugCall::BenchmarkResetLog, 0);
        let started = spawn(&mut self.allocator, &mut self.window, start)?;
        Notification::from_pointer(notification).wait();
        let counters = |thread: Thread| {
            for word in 0..=Counter::TotalEntries as usize {
                set_buffer_word(word, u64::MAX);
            }
            call(DebugCall::BenchmarkGetThreadUtilisation, thread.pointer());
            |counter: Counter| buffer_word(counter as usize)
        };
        let read = counters(started.thread);
        let [time, kernel, total] = [Counter::Thread, Counter::ThreadKernel, Counter::Total].map(read);
        assert!(0 < time && time < total, "{time} of {total} cycles");
        assert!(0 < kernel && kernel < time, "{kernel} of {time} cycles");
        let [schedules, entries] = [Counter::ThreadSchedules, Counter::ThreadEntries].map(read);
        assert!(schedules == 1 && entries >= 1 && entries < read(Counter::TotalEntries), "{schedules} {entries}");
        assert!(read(Counter::TotalSchedules) >= 2 && read(Counter::TotalKernel) > kernel);
        call(DebugCall::BenchmarkResetThreadUtilisation, started.thread.pointer());
        assert_eq!(counters(started.thread)(Counter::Thread), 0, "the counter was not started anew");
        assert_eq!(counters(idle)(Counter::ThreadSchedules), 0, "a thread is counted that did not run");
        call(DebugCall::BenchmarkResetAllThreadsUtilisation, 0);
        call(DebugCall::BenchmarkFinalizeLog, 0);
        let stopped = counters(initial::THREAD)(Counter::Total);
        assert_eq!(counters(initial::THREAD)(Counter::Total), stopped, "the counters run on");
        println!("told utilisation=counted");
        Ok(())
    }

    /// Checks that a thread runs on every core, whatever the other words.
    fn cores_run(&mut self) -> sel4::Result<()> {
        for core in 1..self.cores {
            let notification = self.allocator.object(ObjectType::Notification)?;
            let start = Start::new(signal, notification, 100);
            let started = prepare(&mut self.allocator, &mut self.window, start)?;
            started.thread.set_affinity(core)?;
            started.thread.resume()?;
            Notification::from_pointer(notification).wait();
        }
        println!("told cores={}", self.cores);
        Ok(())
    }
}

/// Returns the text of an error; empty if there is none.
fn error_text() -> impl core::fmt::Display {
    for word in 0..ERROR_TEXT_WORDS {
        set_buffer_word(ERROR_TEXT_START + word, 0);
    }
    Slot::own(u64::MAX).delete().expect_err("there is no such slot");
    let mut text = heapless::String::<{ ERROR_TEXT_WORDS * 8 }>::new();
    let bytes = (0..ERROR_TEXT_WORDS).flat_map(|word| buffer_word(ERROR_TEXT_START + word).to_le_bytes());
    for byte in bytes.take_while(|&byte| byte != 0) {
        let _ = text.push(byte.into());
    }
    text
}
