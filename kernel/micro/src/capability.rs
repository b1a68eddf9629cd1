//! Comparison of capabilities, and derivation with fewer rights, a badge or a guard.

use abi_sel4::object::{
    ASID_POOL_BITS, ENDPOINT_BITS, NOTIFICATION_BITS, PAGE_TABLE_BITS, SLOT_BITS, TCB_BITS, WORD_BITS,
};
use abi_sel4::{CNodeData, Rights};
use objects::{Capability, Dying, PageRights};

/// Returns whether the second capability's object is the first's or a part of it.
pub fn covers(above: &Capability, below: &Capability) -> bool {
    use Capability::*;
    match (above, below) {
        (Untyped { base, bits, .. }, other) => is_within(*base, *bits, other),
        (Frame { base, size, .. }, Frame { base: other, size: other_size, .. }) => {
            let end = base + (1 << size.bits()) - 1;
            let other_end = other + (1 << other_size.bits()) - 1;
            base <= other && other_end <= end
        }
        (Endpoint { endpoint, .. }, Endpoint { endpoint: other, .. }) => endpoint == other,
        (Notification { notification, .. }, Notification { notification: other, .. }) => notification == other,
        (CNode { slots, radix, .. }, CNode { slots: other, radix: other_radix, .. }) => {
            slots == other && radix == other_radix
        }
        (Thread { tcb }, Thread { tcb: other }) => tcb == other,
        (Reply { caller, .. }, Reply { caller: other, .. }) => caller == other,
        (Domain, Domain) => true,
        (IrqControl, IrqControl | IrqHandler { .. } | Remains { object: Dying::Interrupt { .. }, .. }) => true,
        (IrqHandler { irq }, IrqHandler { irq: other }) => irq == other,
        (PageTable { table, .. }, PageTable { table: other, .. }) => table == other,
        (AsidControl, AsidControl) => true,
        (AsidPool { pool, .. }, AsidPool { pool: other, .. }) => pool == other,
        _ => false,
    }
}

/// Returns whether both capabilities refer to the same object.
#[inline]
pub fn share_object(first: &Capability, second: &Capability) -> bool {
    use Capability::*;
    match (first, second) {
        (Untyped { .. }, _) | (IrqControl, IrqHandler { .. } | Remains { .. }) => false,
        (Frame { base, size, device, .. }, Frame { base: other, size: other_size, device: other_device, .. }) => {
            base == other && size == other_size && device == other_device
        }
        _ => covers(first, second),
    }
}

/// Returns whether a capability's object lies in this memory.
#[inline]
pub fn is_within(base: u64, bits: u8, capability: &Capability) -> bool {
    extent(capability).is_some_and(|(start, end)| base <= start && end - base < 1 << bits)
}

/// Returns the physical memory of a capability's object: first and last byte. `None` for an object without memory.
#[inline]
pub fn extent(capability: &Capability) -> Option<(u64, u64)> {
    use Capability::*;
    let range = |start: u64, bits: usize| Some((start, start + ((1u64 << bits) - 1)));
    match capability {
        Untyped { base, bits, .. } => range(*base, (*bits).into()),
        Endpoint { endpoint, .. } => range(endpoint.physical(), ENDPOINT_BITS),
        Notification { notification, .. } => range(notification.physical(), NOTIFICATION_BITS),
        CNode { slots, radix, .. } => range(slots.physical(), usize::from(*radix) + SLOT_BITS),
        Thread { tcb } => range(tcb.physical(), TCB_BITS),
        Remains { object, .. } => match object {
            Dying::Thread(tcb) => range(tcb.physical(), TCB_BITS),
            Dying::CNode { slots, radix } => range(slots.physical(), usize::from(*radix) + SLOT_BITS),
            Dying::Endpoint(endpoint) => range(endpoint.physical(), ENDPOINT_BITS),
            Dying::Notification(notification) => range(notification.physical(), NOTIFICATION_BITS),
            Dying::Interrupt { .. } => None,
        },
        Frame { base, size, .. } => range(*base, size.bits() as usize),
        PageTable { table, .. } => range(table.physical(), PAGE_TABLE_BITS),
        AsidPool { pool, .. } => range(pool.physical(), ASID_POOL_BITS),
        Null | Reply { .. } | IrqControl | IrqHandler { .. } | Domain | AsidControl => None,
    }
}

/// Masks a capability's rights with a user's rights word.
#[inline]
pub fn restrict(capability: Capability, allowed: u64) -> Capability {
    let allowed_rights = Rights::from_word(allowed);
    match capability {
        Capability::Endpoint { endpoint, badge, rights } => {
            Capability::Endpoint { endpoint, badge, rights: rights.intersection(allowed_rights) }
        }
        Capability::Notification { notification, badge, rights, page } => {
            Capability::Notification { notification, badge, rights: rights.intersection(allowed_rights), page }
        }
        Capability::Reply { caller, master, grant } => {
            Capability::Reply { caller, master, grant: grant && allowed_rights.contains(Rights::GRANT) }
        }
        Capability::Frame { base, size, rights, device, mapping } => {
            Capability::Frame { base, size, rights: restrict_page(rights, allowed_rights), device, mapping }
        }
        other => other,
    }
}

/// Masks a page's rights.
#[inline]
pub fn restrict_page(rights: PageRights, allowed: Rights) -> PageRights {
    let (write, read) = (allowed.contains(Rights::WRITE), allowed.contains(Rights::READ));
    match rights {
        PageRights::Read if read => PageRights::Read,
        PageRights::ReadWrite if read && write => PageRights::ReadWrite,
        PageRights::ReadWrite if read => PageRights::Read,
        _ => PageRights::None,
    }
}

/// The treatment of badges when a word of data is set in a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Badges {
    /// The word becomes the badge of a capability without a badge.
    Set,
    /// Capabilities of objects with badges cannot get a word.
    Keep,
}

/// Sets a capability's badge or guard; [`Capability::Null`] if the capability cannot have this one.
#[inline]
pub fn with_data(badges: Badges, data: u64, capability: Capability) -> Capability {
    match capability {
        Capability::Endpoint { endpoint, badge: 0, rights } if badges == Badges::Set => {
            Capability::Endpoint { endpoint, badge: data, rights }
        }
        Capability::Notification { notification, badge: 0, rights, page } if badges == Badges::Set => {
            Capability::Notification { notification, badge: data, rights, page }
        }
        Capability::Endpoint { .. } | Capability::Notification { .. } => Capability::Null,
        Capability::CNode { slots, radix, .. } => {
            let data = CNodeData(data);
            let guard_bits = data.guard_size() as u8;
            if usize::from(guard_bits + radix) > WORD_BITS {
                return Capability::Null;
            }
            let guard = data.guard() & low_bits(guard_bits);
            Capability::CNode { slots, radix, guard_bits, guard }
        }
        other => other,
    }
}

/// Returns a word with the lowest `count` bits set.
#[inline(always)]
pub fn low_bits(count: u8) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
