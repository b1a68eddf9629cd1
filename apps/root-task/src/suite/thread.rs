//! Threads: their registers, priorities and spaces.

use core::sync::atomic::{AtomicU64, Ordering};

use sel4::abi::{Invocation, Registers, message, registers};
use sel4::capability::{CNode, Notification, Page, PageTable, Slot, Spaces, Thread, initial};
use sel4::raw::invoke;
use sel4::thread::Start;
use sel4::{CNodeData, Numbering, ObjectType, Rights};

use crate::harness::{Bench, Outcome, PRIORITY, let_run};
use crate::{check, equal, refused};

/// Counter of a thread.
static COUNT: AtomicU64 = AtomicU64::new(0);

fn count(step: u64) {
    COUNT.fetch_add(step, Ordering::Relaxed);
}

/// Returns registers that differ from each other, for a thread that does not run.
fn distinct() -> Registers {
    Registers::from_words(core::array::from_fn(|index| 0x1000 + 8 * index as u64))
}

pub fn registers_are_written_and_read(bench: &mut Bench<'_>) -> Outcome {
    let thread = bench.thread()?;
    let written = distinct();
    thread.write_registers(&written)?;
    equal!(thread.read_registers()?, written);
    // Only as many registers as are given.
    let mut words = [0; 6];
    words[1] = 4;
    words[2..].copy_from_slice(&[0x2000, 0x2008, 0x2010, 0x2018]);
    invoke(thread.pointer(), Invocation::TcbWriteRegisters, &words, &[])?;
    let expected = Registers { pc: 0x2000, ra: 0x2008, sp: 0x2010, gp: 0x2018, ..written };
    equal!(thread.read_registers()?, expected);
    thread.set_thread_pointer(0x3000)?;
    equal!(thread.read_registers()?, Registers { tp: 0x3000, ..expected });
    Ok(())
}

pub fn register_counts_are_checked(bench: &mut Bench<'_>) -> Outcome {
    let thread = bench.thread()?;
    let read = |count| invoke(thread.pointer(), Invocation::TcbReadRegisters, &[0, count], &[]);
    for count in [0, registers::COUNT as u64 + 1, u64::MAX] {
        let failure = refused!(read(count), RangeError);
        equal!((failure.details[0], failure.details[1]), (1, registers::COUNT as u64));
    }
    equal!(read(1)?.length, 1);
    equal!(read(32)?.length, 32);
    // More registers than the message has.
    refused!(invoke(thread.pointer(), Invocation::TcbWriteRegisters, &[0, 4, 0, 0, 0], &[]), TruncatedMessage);
    refused!(invoke(thread.pointer(), Invocation::TcbWriteRegisters, &[0], &[]), TruncatedMessage);
    refused!(invoke(thread.pointer(), Invocation::TcbReadRegisters, &[0], &[]), TruncatedMessage);
    Ok(())
}

pub fn a_thread_does_not_touch_its_own_registers(_: &mut Bench<'_>) -> Outcome {
    refused!(initial::THREAD.read_registers(), IllegalOperation);
    refused!(initial::THREAD.write_registers(&distinct()), IllegalOperation);
    Ok(())
}

pub fn registers_are_copied_in_two_groups(bench: &mut Bench<'_>) -> Outcome {
    let (source, target) = (bench.thread()?, bench.thread()?);
    source.write_registers(&distinct())?;
    let words = distinct().to_words();
    for (flags, range) in [
        (message::COPY_REGISTERS_FRAME, 0..registers::FRAME_COUNT),
        (message::COPY_REGISTERS_INTEGER, registers::FRAME_COUNT..registers::COUNT),
        (0, 0..0),
    ] {
        target.write_registers(&Registers::default())?;
        target.copy_registers(source, flags)?;
        let found = target.read_registers()?.to_words();
        for (index, (found, word)) in found.iter().zip(words).enumerate() {
            equal!((flags, index, *found), (flags, index, if range.contains(&index) { word } else { 0 }));
        }
    }
    refused!(target.copy_registers(Thread::from_pointer(initial::CNODE.pointer()), 0), InvalidCapability);
    refused!(invoke(target.pointer(), Invocation::TcbCopyRegisters, &[0], &[]), TruncatedMessage);
    Ok(())
}

pub fn threads_run_stop_and_go_on(bench: &mut Bench<'_>) -> Outcome {
    COUNT.store(0, Ordering::Relaxed);
    let start = Start::new(
        |_| loop {
            count(1)
        },
        0,
        PRIORITY,
    );
    let started = bench.prepare(start)?;
    let_run(PRIORITY)?;
    equal!(COUNT.load(Ordering::Relaxed), 0);
    started.thread.resume()?;
    let_run(PRIORITY)?;
    let first = COUNT.load(Ordering::Relaxed);
    check!(first > 0);
    started.thread.suspend()?;
    let stopped = COUNT.load(Ordering::Relaxed);
    let_run(PRIORITY)?;
    equal!(COUNT.load(Ordering::Relaxed), stopped);
    started.thread.resume()?;
    let_run(PRIORITY)?;
    check!(COUNT.load(Ordering::Relaxed) > stopped);
    // Reading can stop a thread, writing can start it.
    let registers = started.thread.suspend_and_read_registers()?;
    let stopped = COUNT.load(Ordering::Relaxed);
    let_run(PRIORITY)?;
    equal!(COUNT.load(Ordering::Relaxed), stopped);
    started.thread.write_registers_and_resume(&registers)?;
    let_run(PRIORITY)?;
    check!(COUNT.load(Ordering::Relaxed) > stopped);
    Ok(())
}

pub fn copying_registers_stops_and_starts(bench: &mut Bench<'_>) -> Outcome {
    COUNT.store(0, Ordering::Relaxed);
    let first = bench.spawn(
        |_| loop {
            count(1)
        },
        0,
    )?;
    let_run(PRIORITY)?;
    check!(COUNT.load(Ordering::Relaxed) > 0);
    // The second thread continues where the first has stopped, on the same stack.
    let second = bench.prepare(Start::new(|_| (), 0, PRIORITY))?;
    let flags = message::COPY_REGISTERS_SUSPEND_SOURCE
        | message::COPY_REGISTERS_RESUME_TARGET
        | message::COPY_REGISTERS_FRAME
        | message::COPY_REGISTERS_INTEGER;
    second.thread.copy_registers(first.thread, flags)?;
    let before = COUNT.load(Ordering::Relaxed);
    let_run(PRIORITY)?;
    check!(COUNT.load(Ordering::Relaxed) > before);
    second.thread.suspend()?;
    let before = COUNT.load(Ordering::Relaxed);
    let_run(PRIORITY)?;
    equal!(COUNT.load(Ordering::Relaxed), before);
    Ok(())
}

pub fn priorities_are_limited_by_the_authority(bench: &mut Bench<'_>) -> Outcome {
    let (thread, authority) = (bench.thread()?, bench.thread()?);
    // A new thread may set nothing above 0.
    thread.set_priority(authority, 0)?;
    let failure = refused!(thread.set_priority(authority, 1), RangeError);
    equal!((failure.details[0], failure.details[1]), (0, 0));
    refused!(thread.set_maximum_controlled_priority(authority, 1), RangeError);
    refused!(thread.set_scheduling(authority, 1, 0), RangeError);
    refused!(thread.set_scheduling(authority, 0, 1), RangeError);
    authority.set_maximum_controlled_priority(initial::THREAD, 10)?;
    thread.set_priority(authority, 10)?;
    thread.set_scheduling(authority, 10, 10)?;
    let failure = refused!(thread.set_priority(authority, 11), RangeError);
    equal!((failure.details[0], failure.details[1]), (0, 10));
    refused!(thread.set_priority(initial::THREAD, 256), RangeError);
    refused!(thread.set_priority(initial::THREAD, u64::MAX), RangeError);
    let none = Thread::from_pointer(initial::CNODE.pointer());
    equal!(refused!(thread.set_priority(none, 0), InvalidCapability).details[0], 1);
    equal!(refused!(thread.set_maximum_controlled_priority(none, 0), InvalidCapability).details[0], 1);
    equal!(refused!(thread.set_scheduling(none, 0, 0), InvalidCapability).details[0], 1);
    refused!(invoke(thread.pointer(), Invocation::TcbSetPriority, &[0], &[]), TruncatedMessage);
    refused!(
        invoke(thread.pointer(), Invocation::TcbSetMCPriority, &[], &[initial::THREAD.pointer()]),
        TruncatedMessage
    );
    refused!(
        invoke(thread.pointer(), Invocation::TcbSetSchedParams, &[0], &[initial::THREAD.pointer()]),
        TruncatedMessage
    );
    Ok(())
}

pub fn spaces_are_checked(bench: &mut Bench<'_>) -> Outcome {
    let thread = bench.thread()?;
    let good = Spaces {
        fault_endpoint: 0,
        cspace: initial::CNODE,
        cspace_data: CNodeData::default(),
        address_space: initial::ADDRESS_SPACE,
    };
    thread.set_space(good)?;
    let no_cnode = Spaces { cspace: CNode::from_pointer(initial::THREAD.pointer()), ..good };
    refused!(thread.set_space(no_cnode), IllegalOperation);
    let no_table = Spaces { address_space: PageTable::from_pointer(initial::THREAD.pointer()), ..good };
    refused!(thread.set_space(no_table), IllegalOperation);
    // A page table that is no address space.
    let table = PageTable::from_pointer(bench.allocator.object(ObjectType::PageTable)?);
    refused!(thread.set_space(Spaces { address_space: table, ..good }), IllegalOperation);
    // A guard that does not fit.
    refused!(thread.set_space(Spaces { cspace_data: CNodeData::new(0, 60), ..good }), IllegalOperation);
    let page = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
    for wrong in [no_cnode, no_table, Spaces { address_space: table, ..good }] {
        refused!(thread.configure(wrong, 0x1000, page), IllegalOperation);
    }
    refused!(
        invoke(thread.pointer(), Invocation::TcbSetSpace, &[0, 0, 0], &[initial::CNODE.pointer()]),
        TruncatedMessage
    );
    refused!(
        invoke(
            thread.pointer(),
            Invocation::TcbSetSpace,
            &[0, 0],
            &[initial::CNODE.pointer(), initial::ADDRESS_SPACE.pointer()]
        ),
        TruncatedMessage
    );
    refused!(invoke(thread.pointer(), Invocation::TcbConfigure, &[0, 0, 0, 0], &[]), TruncatedMessage);
    refused!(thread.configure(good, 0x1008, page), AlignmentError);
    // Memory with objects cannot be copied, which is checked before the kind.
    let mut arena = bench.allocator.memory(12)?;
    arena.make(ObjectType::Endpoint, 0, bench.slot()?.index, 1)?;
    let memory = arena.untyped().pointer();
    refused!(thread.set_space(Spaces { cspace: CNode::from_pointer(memory), ..good }), RevokeFirst);
    refused!(thread.configure(good, 0x1000, Page::from_pointer(memory)), RevokeFirst);
    refused!(thread.set_ipc_buffer(0x1000, Page::from_pointer(memory)), RevokeFirst);
    Ok(())
}

pub fn ipc_buffers_are_checked(bench: &mut Bench<'_>) -> Outcome {
    let thread = bench.thread()?;
    let page = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
    for offset in [1, 8, 512, 1000] {
        refused!(thread.set_ipc_buffer(0x1000 + offset, page), AlignmentError);
    }
    for offset in [0, 1024, 3072] {
        thread.set_ipc_buffer(0x1000 + offset, page)?;
    }
    thread.set_ipc_buffer(0, Page::from_pointer(0))?;
    thread.set_ipc_buffer(0, Page::from_pointer(initial::CNODE.pointer()))?;
    refused!(thread.set_ipc_buffer(0x1000, Page::from_pointer(initial::CNODE.pointer())), IllegalOperation);
    refused!(thread.set_ipc_buffer(0x1000, Page::from_pointer(0)), IllegalOperation);
    refused!(invoke(thread.pointer(), Invocation::TcbSetIPCBuffer, &[0x1000], &[]), TruncatedMessage);
    // The thread's buffer is independent of this capability, which can be deleted.
    thread.set_ipc_buffer(0x1000, page)?;
    Slot::own(page.pointer()).delete()?;
    Ok(())
}

pub fn notifications_are_bound_once(bench: &mut Bench<'_>) -> Outcome {
    let (thread, other) = (bench.thread()?, bench.thread()?);
    let (notification, second) = (bench.notification()?, bench.notification()?);
    refused!(thread.unbind_notification(), IllegalOperation);
    let writing = bench.badged(notification.pointer(), Rights::WRITE, 0)?;
    refused!(thread.bind_notification(Notification::from_pointer(writing)), IllegalOperation);
    refused!(thread.bind_notification(Notification::from_pointer(initial::CNODE.pointer())), IllegalOperation);
    refused!(invoke(thread.pointer(), Invocation::TcbBindNotification, &[], &[]), TruncatedMessage);
    thread.bind_notification(notification)?;
    refused!(thread.bind_notification(second), IllegalOperation);
    refused!(other.bind_notification(notification), IllegalOperation);
    thread.unbind_notification()?;
    other.bind_notification(notification)?;
    // Deleting the notification deletes the binding.
    Slot::own(notification.pointer()).revoke()?;
    Slot::own(notification.pointer()).delete()?;
    refused!(other.unbind_notification(), IllegalOperation);
    other.bind_notification(second)?;
    Slot::own(other.pointer()).delete()?;
    thread.bind_notification(second)?;
    Ok(())
}

pub fn affinity(bench: &mut Bench<'_>) -> Outcome {
    let thread = bench.thread()?;
    let (_, cores) = bench.boot.cores();
    match sel4::raw::numbering() {
        Numbering::Uniprocessor => {
            refused!(thread.set_affinity(0), IllegalOperation);
        }
        Numbering::Multiprocessor => {
            for core in 0..cores {
                thread.set_affinity(core)?;
            }
            refused!(thread.set_affinity(cores), IllegalOperation);
            refused!(thread.set_affinity(u64::MAX), IllegalOperation);
            refused!(invoke(thread.pointer(), Invocation::TcbSetAffinity, &[], &[]), TruncatedMessage);
        }
    }
    Ok(())
}

pub fn flags_keep_from_the_fpu(bench: &mut Bench<'_>) -> Outcome {
    let thread = bench.thread()?;
    equal!(thread.set_flags(0, 0)?, 0);
    equal!(thread.set_flags(0, message::TCB_FLAG_FPU_DISABLED)?, 1);
    equal!(thread.set_flags(0, 0)?, 1);
    equal!(thread.set_flags(message::TCB_FLAG_FPU_DISABLED, 0)?, 0);
    // Flags that do not exist are ignored.
    equal!(thread.set_flags(0, u64::MAX)?, 1);
    equal!(thread.set_flags(u64::MAX, 0)?, 0);
    refused!(invoke(thread.pointer(), Invocation::TcbSetFlags, &[0], &[]), TruncatedMessage);
    Ok(())
}

pub fn the_thread_pointer_of_oneself_can_be_set(_: &mut Bench<'_>) -> Outcome {
    let own = invoke(initial::THREAD.pointer(), Invocation::TcbSetTLSBase, &[], &[]);
    refused!(own, TruncatedMessage);
    Ok(())
}

pub fn a_thread_can_be_deleted_in_every_state(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let functions: [fn(u64); 6] = [
        |_| loop {
            count(1)
        },
        |pointer| sel4::capability::Endpoint::from_pointer(pointer).send(&sel4::Message::default()),
        |pointer| _ = sel4::capability::Endpoint::from_pointer(pointer).call(&sel4::Message::default()),
        |pointer| _ = sel4::capability::Endpoint::from_pointer(pointer).receive(),
        |_| (),
        |_| _ = crate::memory::read(0x8),
    ];
    for function in functions {
        let started = bench.spawn(function, endpoint.pointer())?;
        let_run(PRIORITY)?;
        started.delete()?;
        equal!(endpoint.receive_now(), None);
    }
    Ok(())
}
