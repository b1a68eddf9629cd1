//! Tests of separate programs: their start, their authority, their end.

use sel4::ObjectType;
use sel4::Rights;
use sel4::capability::{Endpoint, Slot};
use sel4::fault::Fault;
use sel4::process::{Ending, LoadError, PANICKED, Process, Program};

use crate::{Bench, Outcome, PRIORITY, Wrong, contained, equal};

/// Roles of `ipc-peer`; see there.
pub const SERVE: u64 = 0;
pub const EXIT: u64 = 2;
pub const PANIC: u64 = 3;
pub const READ: u64 = 4;
pub const SCRIBBLE: u64 = 5;
pub const CALL: u64 = 6;
pub const OVERFLOW: u64 = 7;
pub const SERVE_BY_STORES: u64 = 8;

impl From<LoadError> for Wrong {
    fn from(error: LoadError) -> Wrong {
        Wrong(alloc::format!("the program cannot be started: {error}"))
    }
}

/// Describes the peer, on another hart if there is one.
pub fn program(bench: &Bench<'_>) -> Program<'static> {
    Program { core: 1 % bench.boot.cores().1, ..Program::new("peer", contained("ipc-peer"), PRIORITY) }
}

/// Runs the peer in a role to its end.
fn run(bench: &mut Bench<'_>, role: u64, parameter: u64) -> Result<Ending, Wrong> {
    let supervisor = Endpoint::from_pointer(bench.allocator.object(ObjectType::Endpoint)?);
    let program = program(bench);
    let mut process = Process::load(&mut bench.allocator, &mut bench.window, &program, supervisor, 77)?;
    [role, parameter].into_iter().for_each(|word| process.argument(word));
    process.start(&mut bench.allocator)?;
    let received = supervisor.receive();
    let ending = Ending::of(&received).filter(|_| received.badge() == 77);
    process.end(&mut bench.allocator)?;
    ending.ok_or(Wrong(alloc::format!("the message is no fault: {received:?}")))
}

pub fn they_end_in_every_way(bench: &mut Bench<'_>) -> Outcome {
    equal!(run(bench, EXIT, 7)?, Ending::Exited(7));
    equal!(run(bench, PANIC, 0)?, Ending::Exited(PANICKED));
    // No page is mapped at 0, and the supervisor's heap is not in the peer's address space.
    for address in [0, 0x10_0000_0000] {
        match run(bench, READ, address)? {
            Ending::Faulted(Fault::Memory { address: found, fetch: false, .. }) => equal!(found, address),
            other => return Err(Wrong(alloc::format!("{other:?}"))),
        }
    }
    // The stack is the beginning of the image, and the memory below is unmapped.
    match run(bench, OVERFLOW, 0)? {
        Ending::Faulted(Fault::Memory { address: 0xe000..0x1_0000, fetch: false, .. }) => Ok(()),
        other => Err(Wrong(alloc::format!("{other:?}"))),
    }
}

pub fn memory_and_slots_of_ended_programs_are_used_again(bench: &mut Bench<'_>) -> Outcome {
    run(bench, EXIT, 0)?;
    let before = (bench.allocator.bytes_left() >> 20, bench.allocator.slots_left());
    for status in 0..10 {
        equal!(run(bench, EXIT, status)?, Ending::Exited(status));
    }
    let (bytes, slots) = (bench.allocator.bytes_left() >> 20, bench.allocator.slots_left());
    // Each test here makes an endpoint; the objects of a program are far larger.
    equal!(before.0 - bytes < 8 && before.1 - slots < 40, true);
    Ok(())
}

pub fn files_that_are_none_are_refused(bench: &mut Bench<'_>) -> Outcome {
    let supervisor = Endpoint::from_pointer(bench.allocator.object(ObjectType::Endpoint)?);
    let good = contained("ipc-peer");
    for file in [&good[..0], &good[..100], &b"#!/bin/sh\n"[..], &good[..8192]] {
        let program = Program { file, ..program(bench) };
        let loaded = Process::load(&mut bench.allocator, &mut bench.window, &program, supervisor, 1);
        equal!(matches!(loaded, Err(LoadError::Image(_))), true);
    }
    // Too little memory: it fails, and the objects made until then are deleted.
    let before = bench.allocator.bytes_left() >> 20;
    let program = Program { memory_bits: 16, own_bits: 15, ..program(bench) };
    let loaded = Process::load(&mut bench.allocator, &mut bench.window, &program, supervisor, 1);
    equal!(matches!(loaded, Err(LoadError::Failed(_))), true);
    equal!(before - (bench.allocator.bytes_left() >> 20) <= 1, true);
    Slot::own(supervisor.pointer()).revoke()?;
    let copy = bench.allocator.slot()?;
    Slot::own(copy).copy_from(Slot::own(supervisor.pointer()), Rights::ALL)?;
    Ok(())
}
