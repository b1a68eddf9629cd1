//! Invocations that no capability accepts.

use sel4::abi::{Invocation, boot::slot};
use sel4::raw::{invoke, invoke_label, numbering};
use sel4::{Error, ObjectType};

use crate::harness::{Bench, Outcome, has_seen};
use crate::{equal, refused};

/// Sends every label to every kind of object that is not a message's.
pub fn labels_that_an_object_does_not_know(bench: &mut Bench<'_>) -> Outcome {
    let objects = [
        (bench.allocator.object(ObjectType::Tcb)?, "TCB"),
        (bench.allocator.make(ObjectType::CapTable, 4, 1)?, "CNode"),
        (bench.allocator.make(ObjectType::Untyped, 12, 1)?, "Untyped"),
        (bench.allocator.object(ObjectType::Page)?, "RISCV_Page"),
        (bench.allocator.object(ObjectType::PageTable)?, "RISCV_PageTable"),
        (slot::ASID_POOL as u64, "RISCV_ASIDPool"),
        (slot::ASID_CONTROL as u64, "RISCV_ASIDControl"),
        (slot::IRQ_CONTROL as u64, "IRQControl"),
        (slot::DOMAIN as u64, "DomainSet"),
    ];
    for (pointer, kind) in objects {
        for label in (0..64).chain([1 << 20, (1 << 52) - 1]) {
            if Invocation::from_label(label, numbering()).is_some_and(|invocation| invocation.object() == kind) {
                continue;
            }
            let error = invoke_label(pointer, label, &[], &[]).err().map(|failure| failure.error);
            equal!((kind, label, error), (kind, label, Some(Error::IllegalOperation)));
        }
    }
    Ok(())
}

/// Sends every invocation without a word and without a capability.
pub fn empty_messages(bench: &mut Bench<'_>) -> Outcome {
    let interrupt = bench.slot()?;
    sel4::capability::initial::IRQ_CONTROL.get(30, interrupt)?;
    for &invocation in Invocation::ALL {
        if invocation.label(numbering()).is_none() {
            continue;
        }
        if invocation.words().is_empty() && invocation.capabilities().is_empty() {
            continue;
        }
        let pointer = match invocation.object() {
            "TCB" => bench.allocator.object(ObjectType::Tcb)?,
            "CNode" => bench.allocator.make(ObjectType::CapTable, 4, 1)?,
            "Untyped" => bench.allocator.make(ObjectType::Untyped, 12, 1)?,
            "RISCV_Page" => bench.allocator.object(ObjectType::Page)?,
            "RISCV_PageTable" => bench.allocator.object(ObjectType::PageTable)?,
            "RISCV_ASIDPool" => slot::ASID_POOL as u64,
            "RISCV_ASIDControl" => slot::ASID_CONTROL as u64,
            "IRQControl" => slot::IRQ_CONTROL as u64,
            "IRQHandler" => interrupt.index,
            _ => slot::DOMAIN as u64,
        };
        refused!(invoke(pointer, invocation, &[], &[]), TruncatedMessage);
    }
    Ok(())
}

/// The last of all tests: all errors in the interface's table have been seen by a test, and no others.
pub fn every_error_of_every_invocation_is_seen(_: &mut Bench<'_>) -> Outcome {
    let mut wrong = 0;
    for &invocation in Invocation::ALL {
        if invocation.label(numbering()).is_none() {
            continue;
        }
        for error in Error::ALL {
            let (is_listed, is_seen) = (invocation.errors().contains(error), has_seen(invocation, *error));
            // Tests of capabilities that are null, or of another kind.
            let is_everywhere = matches!(error, Error::IllegalOperation | Error::InvalidCapability);
            if is_listed && !is_seen || is_seen && !is_listed && !is_everywhere {
                let what = if is_listed { "is seen by no test" } else { "is not in the table" };
                sel4::println!("note: {} with {} {what}", invocation.name(), error.name());
                wrong += 1;
            }
        }
    }
    equal!(wrong, 0);
    Ok(())
}
