//! What no capability understands.

use sel4::abi::{Invocation, boot::slot};
use sel4::raw::{invoke_label, numbering};
use sel4::{Error, ObjectType};

use crate::harness::{Bench, Outcome};
use crate::{check, equal};

/// Every label to every kind of object that is not a message's.
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

/// Every invocation without a word and without a capability.
pub fn empty_messages(bench: &mut Bench<'_>) -> Outcome {
    let interrupt = bench.slot()?;
    sel4::capability::initial::IRQ_CONTROL.get(30, interrupt)?;
    for &invocation in Invocation::ALL {
        let Some(label) = invocation.label(numbering()) else { continue };
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
        let error = invoke_label(pointer, label, &[], &[]).err().map(|failure| failure.error);
        equal!((invocation.name(), error), (invocation.name(), Some(Error::TruncatedMessage)));
    }
    check!(true);
    Ok(())
}
