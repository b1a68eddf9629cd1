//! The suite of the microkernel programs' library: a root task that tests the parts of `user/sel4` that need the
//! machine.
//!
//! Its last line is `N passed, N failed`. Parts that need no machine are tested on the host, with the library itself.
#![no_std]
#![no_main]

extern crate alloc;

mod asynchronous;
mod coroutines;
mod heap;
mod messages;
mod programs;

use alloc::string::String;
use core::fmt::Debug;

use filesystem::cpio;
use sel4::capability::Slot;
use sel4::mapping::Window;
use sel4::{Allocator, BootInformation, Failure, Rights, println};

/// Addresses for the mappings of tests.
const WINDOW: (u64, u64) = (0x10_0000_0000, 0x18_0000_0000);

/// Steps by which the heap grows at first.
const HEAP_STEPS: u64 = 4;

/// The priority of threads and programs that tests start.
const PRIORITY: u64 = 100;

/// The archive of contained programs.
static CONTAINED: &[u8] = include_bytes!(env!("COPS_CONTAINED_PROGRAMS"));

/// Returns the file of a contained program; empty if there is none.
fn contained(name: &str) -> &'static [u8] {
    let path = alloc::format!("bin/{name}");
    let mut entries = cpio::entries(CONTAINED).filter_map(Result::ok);
    entries.find(|entry| entry.path == path.as_bytes()).map_or(&[], |entry| entry.data)
}

/// The resources of a test.
struct Bench<'a> {
    boot: &'a BootInformation,
    allocator: Allocator,
    window: Window,
}

impl Bench<'_> {
    /// Makes a copy of the capability to a notification, to signal with this badge.
    fn badged(&mut self, notification: u64, badge: u64) -> sel4::Result<u64> {
        let slot = self.allocator.slot()?;
        Slot::own(slot).mint_from(Slot::own(notification), Rights::WRITE, badge)?;
        Ok(slot)
    }
}

/// Description of a failure.
struct Wrong(String);

impl From<Failure> for Wrong {
    #[track_caller]
    fn from(failure: Failure) -> Wrong {
        Wrong(alloc::format!("{}: {failure}", core::panic::Location::caller()))
    }
}

impl From<String> for Wrong {
    fn from(text: String) -> Wrong {
        Wrong(text)
    }
}

type Outcome = Result<(), Wrong>;

/// Fails unless two values are equal.
#[macro_export]
macro_rules! equal {
    ($found:expr, $expected:expr) => {
        $crate::compare(&$found, &$expected, stringify!($found))?
    };
}

/// Compares two values; `source` is the expression of the first.
#[track_caller]
fn compare<F: Debug + PartialEq<E>, E: Debug>(found: &F, expected: &E, source: &str) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let place = core::panic::Location::caller();
    Err(alloc::format!("{}:{}: {found:?}, not {expected:?}: {source}", place.file(), place.line()))
}

/// A test: its name and its function.
type Test = (&'static str, fn(&mut Bench<'_>) -> Outcome);

macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => { &[$((concat!(stringify!($module), "::", stringify!($name)), $module::$name)),*] };
}

const TESTS: &[Test] = tests![
    heap::blocks_are_separate_and_come_back,
    heap::threads_of_all_priorities_allocate,
    coroutines::the_most_important_runs_first,
    coroutines::a_signal_wakes_its_waiter,
    coroutines::another_thread_wakes_a_coroutine,
    coroutines::a_signal_interrupts_a_worker_that_never_sleeps,
    asynchronous::more_coroutines_than_places_map_and_unmap,
    asynchronous::dropped_invocations_give_their_places_back,
    asynchronous::requests_are_made_before_the_first_poll,
    asynchronous::slots_are_filled_and_emptied,
    programs::they_end_in_every_way,
    programs::memory_and_slots_of_ended_programs_are_used_again,
    programs::files_that_are_none_are_refused,
    messages::calls_are_answered_by_another_program,
    messages::a_server_has_many_clients,
    messages::a_server_that_dies_ends_all_calls,
    messages::a_client_that_dies_ends_its_requests,
    messages::a_client_that_rings_with_stores_outlives_its_server,
    messages::a_peer_that_scribbles_ends_only_its_connection,
    messages::the_data_behind_the_rings_is_shared,
];

#[sel4::root_task]
fn main(boot: BootInformation) {
    let mut bench = Bench { boot: &boot, allocator: Allocator::new(&boot), window: Window::new(WINDOW.0, WINDOW.1) };
    if let Err(failure) = sel4::heap::grow(&mut bench.allocator, &mut bench.window, HEAP_STEPS) {
        println!("there is no memory for the heap: {failure}");
        return;
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in TESTS {
        match test(&mut bench) {
            Ok(()) => {
                passed += 1;
                println!("test {name} ... ok");
            }
            Err(Wrong(what)) => {
                failed += 1;
                println!("test {name} ... FAILED: {what}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
}
