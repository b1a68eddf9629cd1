//! Interrupts as notifications.

use sel4::abi::{CapabilityTag, Invocation};
use sel4::capability::{CNode, IrqHandler, Notification, Page, Slot, initial};
use sel4::raw::invoke;
use sel4::{ObjectType, Rights};

use crate::harness::{Bench, Outcome, Wrong};
use crate::{equal, memory, refused};

/// The real-time clock of the board: its registers and its interrupt.
const CLOCK: (u64, u64) = (0x10_1000, 11);

pub fn handlers_are_made_once(bench: &mut Bench<'_>) -> Outcome {
    let (slot, other) = (bench.slot()?, bench.slot()?);
    refused!(initial::IRQ_CONTROL.get(10_000, slot), RangeError);
    refused!(initial::IRQ_CONTROL.get(u64::MAX, slot), RangeError);
    refused!(initial::IRQ_CONTROL.get(0, slot), RangeError);
    refused!(initial::IRQ_CONTROL.get(20, Slot { depth: 65, ..slot }), RangeError);
    refused!(
        initial::IRQ_CONTROL.get(20, Slot { root: CNode::from_pointer(initial::THREAD.pointer()), ..slot }),
        FailedLookup
    );
    initial::IRQ_CONTROL.get(20, slot)?;
    equal!(sel4::raw::debug_identify(slot.index), Some(CapabilityTag::IrqHandler));
    refused!(initial::IRQ_CONTROL.get(20, other), RevokeFirst);
    refused!(initial::IRQ_CONTROL.get(21, slot), DeleteFirst);
    refused!(
        invoke(initial::IRQ_CONTROL.pointer(), Invocation::IrqControlGet, &[21, other.index, 64], &[]),
        TruncatedMessage
    );
    slot.delete()?;
    initial::IRQ_CONTROL.get(20, other)?;
    Ok(())
}

pub fn handlers_with_a_trigger_are_made_once(bench: &mut Bench<'_>) -> Outcome {
    let (slot, other) = (bench.slot()?, bench.slot()?);
    let control = initial::IRQ_CONTROL.pointer();
    let get = |irq: u64, at: Slot| {
        let words = [irq, 0, at.index, at.depth];
        invoke(control, Invocation::IrqControlGetTrigger, &words, &[at.root.pointer()])
    };
    refused!(get(0, slot), RangeError);
    refused!(get(10_000, slot), RangeError);
    refused!(get(22, Slot { depth: 65, ..slot }), RangeError);
    refused!(get(22, Slot { root: CNode::from_pointer(initial::THREAD.pointer()), ..slot }), FailedLookup);
    get(22, slot)?;
    equal!(sel4::raw::debug_identify(slot.index), Some(CapabilityTag::IrqHandler));
    refused!(get(22, other), RevokeFirst);
    refused!(get(23, slot), DeleteFirst);
    let words = [23, 0, other.index, 64];
    refused!(invoke(control, Invocation::IrqControlGetTrigger, &words, &[]), TruncatedMessage);
    Ok(())
}

pub fn handlers_signal_notifications_only(bench: &mut Bench<'_>) -> Outcome {
    let slot = bench.slot()?;
    initial::IRQ_CONTROL.get(20, slot)?;
    let handler = IrqHandler::from_pointer(slot.index);
    let notification = bench.notification()?;
    let reading = bench.badged(notification.pointer(), Rights::READ, 1)?;
    equal!(refused!(handler.set_notification(Notification::from_pointer(reading)), InvalidCapability).details[0], 0);
    let endpoint = bench.endpoint()?;
    refused!(handler.set_notification(Notification::from_pointer(endpoint.pointer())), InvalidCapability);
    refused!(invoke(handler.pointer(), Invocation::IrqHandlerSetNotification, &[], &[]), TruncatedMessage);
    handler.set_notification(notification)?;
    handler.acknowledge()?;
    handler.clear()?;
    handler.clear()?;
    Ok(())
}

pub fn an_interrupt_arrives_once_for_each_acknowledgement(bench: &mut Bench<'_>) -> Outcome {
    let device = bench.boot.untypeds().find(|(_, description)| {
        let start = description.physical_address;
        description.is_device == 1 && (start..start + (1 << description.size_bits)).contains(&CLOCK.0)
    });
    let Some((device, description)) = device else {
        return Err(Wrong::new(format_args!("the clock is not given out")));
    };
    // Pages are cut off from the start; this is the distance to the clock's.
    let before = (CLOCK.0 - description.physical_address) >> 12;
    let slots = bench.allocator.slots(1)?;
    let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
    for _ in 0..before {
        device.retype(ObjectType::Page, 0, root, slots, 1)?;
        // Kept by a copy, so that the watermark does not fall.
        let keep = bench.slot()?;
        keep.move_from(Slot::own(slots))?;
    }
    device.retype(ObjectType::Page, 0, root, slots, 1)?;
    let page = Page::from_pointer(slots);
    equal!(page.physical_address()?, CLOCK.0);
    let clock = 0x18_0000_0000;
    sel4::mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, page, clock, Rights::READ_WRITE, 0)?;

    let slot = bench.slot()?;
    initial::IRQ_CONTROL.get(CLOCK.1, slot)?;
    let handler = IrqHandler::from_pointer(slot.index);
    let notification = bench.notification()?;
    let badged = Notification::from_pointer(bench.badged(notification.pointer(), Rights::ALL, 0x40)?);
    handler.set_notification(badged)?;
    for _ in 0..3 {
        let low = u64::from(memory::read_register(clock));
        let alarm = (u64::from(memory::read_register(clock + 4)) << 32 | low) + 1_000_000;
        memory::write_register(clock + 0x10, 1);
        memory::write_register(clock + 0xc, (alarm >> 32) as u32);
        memory::write_register(clock + 8, alarm as u32);
        equal!(notification.wait(), 0x40);
        // The line is still asserted; no further interrupt comes before the acknowledgement.
        equal!(notification.poll(), None);
        memory::write_register(clock + 0x1c, 1);
        handler.acknowledge()?;
    }
    equal!(notification.poll(), None);
    handler.clear()?;
    Ok(())
}
