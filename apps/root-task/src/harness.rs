//! The resources of tests, and their execution.
//!
//! A test gets slots and one untyped memory of its own. Afterwards all of its slots are emptied and the memory is
//! revoked, so that all objects of a test, threads included, are gone before the next one starts, and so that every
//! test also tests deletion.

use core::fmt::{self, Write};
use core::panic::Location;
use core::sync::atomic::{AtomicU16, Ordering};

use sel4::abi::{Invocation, SlotRegion};
use sel4::allocator::{Arena, Slots};
use sel4::capability::{Endpoint, Notification, Slot, Thread, initial};
use sel4::mapping::Window;
use sel4::thread::{self, Start, Started};
use sel4::{Allocator, BootInformation, Error, Failure, ObjectType, Rights, println};

/// Slots of one test.
const SLOTS: u64 = 1024;

/// Bytes of one test, as a power of two.
const MEMORY_BITS: usize = 23;

/// Addresses for the mappings of tests.
const WINDOW: (u64, u64) = (0x10_0000_0000, 0x10_4000_0000);

/// The priority of threads that tests start: below the initial thread's, which is the most important.
pub const PRIORITY: u64 = 100;

/// The result of a test.
pub type Outcome = Result<(), Wrong>;

/// A test.
pub struct Test {
    /// Name of the test.
    pub name: &'static str,
    /// Its function.
    pub body: fn(&mut Bench<'_>) -> Outcome,
}

/// Names tests by their paths.
#[macro_export]
macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        &[$($crate::harness::Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            body: $crate::suite::$module::$name,
        }),*]
    };
}

/// Description of a failure, with its place.
pub struct Wrong(heapless::String<112>);

impl Wrong {
    /// Describes an unexpected result. A text that is too long is cut.
    #[track_caller]
    pub fn new(text: fmt::Arguments<'_>) -> Wrong {
        let place = Location::caller();
        let mut wrong = Wrong(heapless::String::new());
        let file = place.file().rsplit('/').next().unwrap_or_default();
        let _ = write!(wrong.0, "{file}:{}: {text}", place.line());
        wrong
    }
}

impl From<Failure> for Wrong {
    #[track_caller]
    fn from(failure: Failure) -> Wrong {
        Wrong::new(format_args!("{failure}"))
    }
}

/// Fails unless a condition is true.
#[macro_export]
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            return Err($crate::harness::Wrong::new(format_args!("not so: {}", stringify!($condition))));
        }
    };
}

/// Fails unless two values are equal.
#[macro_export]
macro_rules! equal {
    ($found:expr, $expected:expr) => {
        match (&$found, &$expected) {
            (found, expected) if found == expected => {}
            (found, expected) => {
                return Err($crate::harness::Wrong::new(format_args!(
                    "{found:?}, not {expected:?}: {}",
                    stringify!($found)
                )));
            }
        }
    };
}

/// The errors with which tests have seen invocations refused, as bits.
static SEEN: [AtomicU16; Invocation::ALL.len() + 1] = [const { AtomicU16::new(0) }; Invocation::ALL.len() + 1];

/// Records that a test has seen the expected error.
pub fn note_refusal(failure: &Failure) {
    if let Some(invocation) = failure.invocation {
        SEEN[invocation as usize].fetch_or(1 << failure.error.number(), Ordering::Relaxed);
    }
}

/// Returns whether a test has seen this error of an invocation.
pub fn has_seen(invocation: Invocation, error: Error) -> bool {
    SEEN[invocation as usize].load(Ordering::Relaxed) >> error.number() & 1 != 0
}

/// Fails unless an invocation fails with this error; returns the failure.
#[macro_export]
macro_rules! refused {
    ($invocation:expr, $error:ident) => {
        match $invocation {
            Err(failure) if failure.error == sel4::Error::$error => {
                $crate::harness::note_refusal(&failure);
                failure
            }
            Err(failure) => {
                return Err($crate::harness::Wrong::new(format_args!(
                    "{} is refused with {failure}, not {}",
                    stringify!($invocation),
                    stringify!($error)
                )));
            }
            Ok(_) => {
                return Err($crate::harness::Wrong::new(format_args!(
                    "{} is done, not refused with {}",
                    stringify!($invocation),
                    stringify!($error)
                )));
            }
        }
    };
}

/// The resources of a test.
pub struct Bench<'a> {
    /// The boot information.
    pub boot: &'a BootInformation,
    /// Slots and memory of the test.
    pub allocator: Allocator,
    /// Addresses of the test.
    pub window: Window,
}

impl Bench<'_> {
    /// Makes an endpoint.
    pub fn endpoint(&mut self) -> Result<Endpoint, Failure> {
        self.allocator.object(ObjectType::Endpoint).map(Endpoint::from_pointer)
    }

    /// Makes a notification.
    pub fn notification(&mut self) -> Result<Notification, Failure> {
        self.allocator.object(ObjectType::Notification).map(Notification::from_pointer)
    }

    /// Makes a thread without any settings.
    pub fn thread(&mut self) -> Result<Thread, Failure> {
        self.allocator.object(ObjectType::Tcb).map(Thread::from_pointer)
    }

    /// Takes an empty slot.
    pub fn slot(&mut self) -> Result<Slot, Failure> {
        self.allocator.slot().map(Slot::own)
    }

    /// Copies a capability with a badge and these rights.
    pub fn badged(&mut self, capability: u64, rights: Rights, badge: u64) -> Result<u64, Failure> {
        let slot = self.slot()?;
        slot.mint_from(Slot::own(capability), rights, badge)?;
        Ok(slot.index)
    }

    /// Starts a thread.
    pub fn spawn(&mut self, function: fn(u64), argument: u64) -> Result<Started, Failure> {
        self.spawn_with(Start::new(function, argument, PRIORITY))
    }

    /// Starts a thread with other properties.
    pub fn spawn_with(&mut self, start: Start) -> Result<Started, Failure> {
        thread::spawn(&mut self.allocator, &mut self.window, start)
    }

    /// Makes a thread that is not started yet.
    pub fn prepare(&mut self, start: Start) -> Result<Started, Failure> {
        thread::prepare(&mut self.allocator, &mut self.window, start)
    }
}

/// Lets threads of this priority and above run until all of them wait.
pub fn let_run(priority: u64) -> Result<(), Failure> {
    initial::THREAD.set_priority(initial::THREAD, priority)?;
    // One turn for each ready thread: they may go to the end of the queue behind this thread.
    for _ in 0..4 {
        sel4::raw::yield_now();
    }
    initial::THREAD.set_priority(initial::THREAD, sel4::abi::configuration::MAXIMUM_PRIORITY as u64)
}

/// Runs tests and prints their results. Returns the numbers of passed and failed tests.
pub fn run(boot: &BootInformation, tests: &[Test]) -> (usize, usize) {
    let mut all = Allocator::new(boot);
    let Ok(arena) = all.memory(MEMORY_BITS) else {
        println!("there is no untyped memory of 2^{MEMORY_BITS} bytes");
        return (0, 1);
    };
    let Ok(first) = all.slots(SLOTS) else {
        println!("there are no {SLOTS} empty slots");
        return (0, 1);
    };
    let (mut passed, mut failed) = (0, 0);
    for test in tests {
        match run_one(boot, test, first, arena) {
            Ok(()) => {
                passed += 1;
                println!("test {} ... ok", test.name);
            }
            Err(wrong) => {
                failed += 1;
                println!("test {} ... FAILED: {}", test.name, wrong.0);
            }
        }
    }
    (passed, failed)
}

fn run_one(boot: &BootInformation, test: &Test, first: u64, mut arena: Arena) -> Outcome {
    let slots = Slots::new(SlotRegion { start: first, end: first + SLOTS });
    let allocator = Allocator::over(slots, arena);
    let mut bench = Bench { boot, allocator, window: Window::new(WINDOW.0, WINDOW.1) };
    let outcome = (test.body)(&mut bench);
    let used = SLOTS - bench.allocator.slots_left();
    // All objects are deleted even if the test failed; its own failure matters more than a later one.
    let cleaned = (first..first + used).try_for_each(|slot| Slot::own(slot).delete());
    let revoked = arena.revoke();
    outcome?;
    cleaned?;
    revoked?;
    Ok(())
}
