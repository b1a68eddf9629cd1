//! Faults: the message to the handler, and the continuation of the thread.

use core::sync::atomic::{AtomicU64, Ordering};

use sel4::abi::fault::status;
use sel4::abi::{Fault as Label, LookupFailureKind, Registers};
use sel4::capability::{Endpoint, Page, initial};
use sel4::fault::Fault;
use sel4::message::reply;
use sel4::raw;
use sel4::thread::{Start, Started};
use sel4::{Failure, Message, Numbering, ObjectType, Rights};

use crate::harness::{Bench, Outcome, PRIORITY, Wrong, let_run};
use crate::{check, equal, memory};

static RESULT: AtomicU64 = AtomicU64::new(0);

/// An address that tests leave unmapped, or map a page of their own at.
const NOWHERE: u64 = 0x10_3f00_0000;

/// Starts a thread whose faults come to an endpoint with the badge 1.
fn faulting(bench: &mut Bench<'_>, function: fn(u64), argument: u64) -> Result<(Started, Endpoint), Failure> {
    let endpoint = bench.endpoint()?;
    let handler = bench.badged(endpoint.pointer(), Rights::ALL, 1)?;
    let start = Start { fault_endpoint: handler, ..Start::new(function, argument, PRIORITY) };
    Ok((bench.spawn_with(start)?, endpoint))
}

/// Receives the next fault.
fn next(endpoint: Endpoint) -> Result<Fault, Wrong> {
    let received = endpoint.receive();
    match Fault::from_message(&received) {
        Some(fault) if received.badge() == 1 => Ok(fault),
        _ => Err(Wrong::new(format_args!("no fault: label {}, badge {}", received.label(), received.badge()))),
    }
}

fn load(address: u64) {
    RESULT.store(memory::read(address), Ordering::Relaxed);
}

fn store(address: u64) {
    memory::write(address, 1);
    RESULT.store(1, Ordering::Relaxed);
}

fn jump(address: u64) {
    memory::jump(address);
    RESULT.store(2, Ordering::Relaxed);
}

pub fn missing_pages_are_reported_and_provided(bench: &mut Bench<'_>) -> Outcome {
    let cases = [
        (load as fn(u64), false, status::LOAD, memory::RETURN),
        (store, false, status::STORE, 1),
        (jump, true, status::FETCH, 2),
    ];
    for (index, (function, fetched, expected, result)) in cases.into_iter().enumerate() {
        RESULT.store(0, Ordering::Relaxed);
        let address = NOWHERE + 0x10_0000 * index as u64;
        let (started, endpoint) = faulting(bench, function, address)?;
        let Fault::Memory { ip, address: found, fetch, status } = next(endpoint)? else {
            return Err(Wrong::new(format_args!("another fault")));
        };
        equal!((found, fetch, status), (address, fetched, expected));
        equal!(started.thread.read_registers()?.pc, ip);
        let page = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
        sel4::mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, page, address, Rights::READ_WRITE, 0)?;
        memory::write(address, memory::RETURN);
        reply(&Message::default());
        let_run(PRIORITY)?;
        equal!(RESULT.load(Ordering::Relaxed), result);
        started.delete()?;
    }
    Ok(())
}

fn store_for_ever(address: u64) {
    loop {
        memory::write(address, 1);
        RESULT.fetch_add(1, Ordering::Relaxed);
    }
}

/// A page that this core unmaps is not used on another core any more: the next access faults there.
pub fn a_page_that_another_core_unmaps_faults(bench: &mut Bench<'_>) -> Outcome {
    let (_, cores) = bench.boot.cores();
    if raw::numbering() == Numbering::Uniprocessor || cores < 2 {
        return Ok(());
    }
    let page = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
    for round in 0..20 {
        RESULT.store(0, Ordering::Relaxed);
        sel4::mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, page, NOWHERE, Rights::READ_WRITE, 0)?;
        let (started, endpoint) = faulting(bench, store_for_ever, NOWHERE)?;
        started.thread.set_affinity(1 + round % (cores - 1))?;
        while RESULT.load(Ordering::Relaxed) == 0 {
            equal!(endpoint.receive_now(), None);
        }
        page.unmap()?;
        let stopped_at = match next(endpoint)? {
            Fault::Memory { address: NOWHERE, fetch: false, status: status::STORE, .. } => {
                RESULT.load(Ordering::Relaxed)
            }
            other => return Err(Wrong::new(format_args!("another fault: {other:?}"))),
        };
        equal!(RESULT.load(Ordering::Relaxed), stopped_at);
        started.delete()?;
    }
    Ok(())
}

pub fn pages_are_used_only_as_mapped(bench: &mut Bench<'_>) -> Outcome {
    let page = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
    sel4::mapping::map(
        &mut bench.allocator,
        initial::ADDRESS_SPACE,
        page,
        NOWHERE,
        Rights::READ,
        sel4::abi::message::EXECUTE_NEVER,
    )?;
    for (function, fetched, expected) in [(store as fn(u64), false, status::STORE), (jump, true, status::FETCH)] {
        let (_, endpoint) = faulting(bench, function, NOWHERE)?;
        let Fault::Memory { address, fetch, status, .. } = next(endpoint)? else {
            return Err(Wrong::new(format_args!("another fault")));
        };
        equal!((address, fetch, status), (NOWHERE, fetched, expected));
    }
    equal!(memory::read(NOWHERE), 0);
    Ok(())
}

pub fn addresses_of_the_kernel_are_no_programs(bench: &mut Bench<'_>) -> Outcome {
    for address in [0xffff_ffff_8020_0000, 0xffff_ffc0_8020_0000, 0x40_0000_0000, 0x3f_ffff_f000, 0, u64::MAX - 7] {
        let (_, endpoint) = faulting(bench, load, address)?;
        let Fault::Memory { address: found, fetch, status, .. } = next(endpoint)? else {
            return Err(Wrong::new(format_args!("another fault for {address:#x}")));
        };
        equal!((found, fetch, status), (address, false, status::LOAD));
    }
    Ok(())
}

fn unknown_call(_: u64) {
    let [result, ..] = raw::system_call(-1000, [11, 12, 13, 14, 15, 16]);
    RESULT.store(result, Ordering::Relaxed);
}

pub fn unknown_calls_can_be_answered(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let (started, endpoint) = faulting(bench, unknown_call, 0)?;
    let received = endpoint.receive();
    equal!((received.label(), received.length()), (Label::UnknownSyscall.label(), Label::UnknownSyscall.words().len()));
    let mut words: [u64; 11] = core::array::from_fn(|index| received.word(index).unwrap_or(0));
    let registers = started.thread.read_registers()?;
    equal!(words[0], registers.pc);
    equal!(words[1], registers.sp);
    equal!(words[2], registers.ra);
    equal!(words[3..9], [11, 12, 13, 14, 15, 16]);
    equal!(words[10] as i64, -1000);
    // The answer is written into the thread, which continues behind the instruction.
    words[0] += 4;
    words[3] = 99;
    reply(&Message::new(0, &words));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 99);
    Ok(())
}

pub fn an_answer_with_a_label_leaves_the_thread_stopped(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let (started, endpoint) = faulting(bench, unknown_call, 0)?;
    check!(matches!(next(endpoint)?, Fault::UnknownSystemCall { number, .. } if number as i64 == -1000));
    let pc = started.thread.read_registers()?.pc;
    // One word only: the instruction's address.
    reply(&Message::new(1, &[pc + 4]));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 0);
    equal!(started.thread.read_registers()?.pc, pc + 4);
    started.thread.resume()?;
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 11);
    Ok(())
}

pub fn instructions_that_do_not_exist(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let (address, _) = bench.window.pages(&mut bench.allocator, 1)?;
    // unimp, unimp, ret
    memory::write(address, 0xc000_1073_c000_1073);
    memory::write(address + 8, memory::RETURN);
    let (_, endpoint) = faulting(bench, jump, address)?;
    let received = endpoint.receive();
    equal!((received.label(), received.length()), (Label::UserException.label(), 4));
    equal!((received.word(0), received.word(2)), (Some(address), Some(2)));
    let sp = received.word(1).unwrap_or(0);
    reply(&Message::new(0, &[address + 4, sp]));
    let Fault::Exception { ip, cause, .. } = next(endpoint)? else {
        return Err(Wrong::new(format_args!("another fault")));
    };
    equal!((ip, cause), (address + 4, 2));
    reply(&Message::new(0, &[address + 8]));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 2);
    Ok(())
}

fn receive_from(pointer: u64) {
    Endpoint::from_pointer(pointer).receive();
    RESULT.store(1, Ordering::Relaxed);
}

fn call_to(pointer: u64) {
    Endpoint::from_pointer(pointer).call(&Message::default());
    RESULT.store(1, Ordering::Relaxed);
}

pub fn capabilities_that_are_not_found(bench: &mut Bench<'_>) -> Outcome {
    let bits = bench.boot.raw().cnode_size_bits;
    let guard = 64 - bits;
    let outside = 1 << bits;
    for (function, pointer, receiving) in [(call_to as fn(u64), outside, false), (receive_from, outside, true)] {
        let (started, endpoint) = faulting(bench, function, pointer)?;
        let Fault::Capability { ip, pointer: found, receiving: phase, reason, details } = next(endpoint)? else {
            return Err(Wrong::new(format_args!("another fault")));
        };
        equal!((found, phase, reason), (pointer, receiving, Some(LookupFailureKind::GuardMismatch)));
        equal!(details, [64, 0, guard]);
        equal!(started.thread.read_registers()?.pc, ip);
    }
    // These capabilities cannot be received from: an empty slot, a thread, an endpoint without the right to read.
    let endpoint = bench.endpoint()?;
    let writing = bench.badged(endpoint.pointer(), Rights::WRITE, 0)?;
    let empty = bench.slot()?.index;
    for pointer in [empty, initial::THREAD.pointer(), writing] {
        let (_, endpoint) = faulting(bench, receive_from, pointer)?;
        let Fault::Capability { pointer: found, receiving, reason, .. } = next(endpoint)? else {
            return Err(Wrong::new(format_args!("another fault")));
        };
        equal!((found, receiving, reason), (pointer, true, Some(LookupFailureKind::MissingCapability)));
    }
    Ok(())
}

pub fn handlers_that_are_dead_or_none(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let notification = bench.notification()?;
    let endpoint = bench.endpoint()?;
    let powerless = bench.badged(endpoint.pointer(), Rights::READ_WRITE, 1)?;
    let empty = bench.slot()?.index;
    for handler in [0, empty, notification.pointer(), powerless, 1 << 40] {
        let start = Start { fault_endpoint: handler, ..Start::new(load, NOWHERE, PRIORITY) };
        let started = bench.spawn_with(start)?;
        let_run(PRIORITY)?;
        equal!(RESULT.load(Ordering::Relaxed), 0);
        // No handler was called; the thread is where it was and can still be read.
        equal!(endpoint.receive_now(), None);
        started.thread.read_registers()?;
        started.delete()?;
    }
    // The handler's endpoint is deleted while the fault waits in it.
    let (started, endpoint) = faulting(bench, load, NOWHERE)?;
    let_run(PRIORITY)?;
    sel4::capability::Slot::own(endpoint.pointer()).revoke()?;
    sel4::capability::Slot::own(endpoint.pointer()).delete()?;
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 0);
    started.delete()?;
    Ok(())
}

/// Sets all registers, lets the thread make one system call, and returns the registers with which it reaches the next
/// instruction.
fn registers_after(
    bench: &mut Bench<'_>,
    number: i64,
    arguments: [u64; 6],
    meanwhile: impl FnOnce(),
) -> Result<(Registers, Registers), Wrong> {
    let endpoint = bench.endpoint()?;
    let handler = bench.badged(endpoint.pointer(), Rights::ALL, 1)?;
    let start = Start { fault_endpoint: handler, ..Start::new(load, 0, PRIORITY) };
    let started = bench.prepare(start)?;
    let mut before = Registers::from_words(core::array::from_fn(|index| 0x7000_0000 + 0x11 * index as u64));
    before.pc = memory::ecall_address();
    [before.a0, before.a1, before.a2, before.a3, before.a4, before.a5] = arguments;
    before.a7 = number as u64;
    started.thread.write_registers_and_resume(&before)?;
    let_run(PRIORITY)?;
    meanwhile();
    let Fault::Exception { ip, cause: 2, .. } = next(endpoint)? else {
        return Err(Wrong::new(format_args!("another fault")));
    };
    let after = started.thread.read_registers()?;
    equal_or(ip, before.pc + 4)?;
    before.pc += 4;
    started.delete()?;
    Ok((before, after))
}

fn equal_or(found: u64, expected: u64) -> Outcome {
    equal!(found, expected);
    Ok(())
}

pub fn system_calls_preserve_registers(bench: &mut Bench<'_>) -> Outcome {
    let info = |length: usize| sel4::abi::MessageInfo::new(5, 0, length).0;
    // Yielding changes no register.
    let (before, after) = registers_after(bench, -7, [1, 2, 3, 4, 5, 6], || ())?;
    equal!(after, before);
    // Nor does sending, received or lost.
    let endpoint = bench.endpoint()?;
    for length in [0, 4, 8] {
        let (before, after) = registers_after(bench, -4, [endpoint.pointer(), info(length), 3, 4, 5, 6], || ())?;
        equal!(after, before);
        let (before, after) =
            registers_after(bench, -3, [endpoint.pointer(), info(length), 3, 4, 5, 6], || _ = endpoint.receive())?;
        equal!(after, before);
    }
    // A signal changes the badge only.
    let notification = bench.notification()?;
    let signaller =
        sel4::capability::Notification::from_pointer(bench.badged(notification.pointer(), Rights::ALL, 8)?);
    for number in [-5, -8] {
        signaller.signal();
        let (mut before, after) = registers_after(bench, number, [notification.pointer(), 2, 3, 4, 5, 6], || ())?;
        before.a0 = 8;
        equal!(after, before);
    }
    let (mut before, after) = registers_after(bench, -8, [notification.pointer(), 2, 3, 4, 5, 6], || ())?;
    before.a0 = 0;
    equal!(after, before);
    // A message changes badge, description and as many words as it has.
    for length in 0..6 {
        let words = [21, 22, 23, 24, 25, 26];
        let sender = Endpoint::from_pointer(bench.badged(endpoint.pointer(), Rights::ALL, 9)?);
        let send = || sender.send(&Message::new(5, &words[..length]));
        let (mut before, after) = registers_after(bench, -5, [endpoint.pointer(), 2, 3, 4, 5, 6], send)?;
        (before.a0, before.a1) = (9, info(length));
        for (register, word) in
            [&mut before.a2, &mut before.a3, &mut before.a4, &mut before.a5].into_iter().zip(&words[..length])
        {
            *register = *word;
        }
        equal!(after, before);
    }
    Ok(())
}
