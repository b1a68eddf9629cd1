//! Independent parts of the kernel's state, each with the operations that concern no other part.

use core::cell::Cell;

use abi_sel4::configuration::{DOMAIN_DURATION_BITS, DOMAIN_SCHEDULE_LENGTH, DOMAINS};
use hal_api::Scope;
use objects::{Endpoint, Mapping, Notification, Ref, Slot, Tcb};

/// Number of slots for interrupts' notifications, one for each interrupt number.
pub const IRQ_SLOTS: u64 = 128;
/// The largest number of sender pages.
pub const SENDERS: usize = 128;
/// The largest number of sender pages in one address space.
pub const SENDERS_OF_A_SPACE: usize = 16;

/// The cancellation of the sends with one badge that is under way: it takes several steps, between which threads come
/// to the endpoint's queue and leave it. Of the threads before `next` none waits with this badge, since threads come at
/// the end: so it does not matter which thread's call goes on with it. Starting another cancellation replaces the
/// record; the first then begins again.
pub struct Cancellation {
    endpoint: Cell<Option<Ref<Endpoint>>>,
    badge: Cell<u64>,
    next: Cell<Option<Ref<Tcb>>>,
}

impl Cancellation {
    /// Makes a state without a cancellation.
    pub const fn new() -> Cancellation {
        Cancellation { endpoint: Cell::new(None), badge: Cell::new(0), next: Cell::new(None) }
    }

    /// Returns the endpoint and the next thread.
    pub fn state(&self) -> Option<(Ref<Endpoint>, u64, Ref<Tcb>)> {
        Some((self.endpoint.get()?, self.badge.get(), self.next.get()?))
    }

    /// Begins a cancellation at the head of the queue, or goes on with it.
    pub fn begin(&self, endpoint: Ref<Endpoint>, badge: u64) {
        if self.endpoint.get() != Some(endpoint) || self.badge.get() != badge {
            self.endpoint.set(Some(endpoint));
            self.badge.set(badge);
            self.go_on_at(endpoint.queue.head.get());
        }
    }

    fn go_on_at(&self, next: Option<Ref<Tcb>>) {
        self.next.set(next);
        if next.is_none() {
            self.endpoint.set(None);
        }
    }

    /// Takes the next thread. The cancellation is over after the last one.
    pub fn take(&self) -> Option<Ref<Tcb>> {
        let next = self.next.get()?;
        self.go_on_at(next.wait_next.get());
        Some(next)
    }

    /// Leaves out a thread that is about to leave its queue.
    #[inline(always)]
    pub fn leave_out(&self, thread: Ref<Tcb>) {
        if self.next.get() == Some(thread) {
            self.take();
        }
    }
}

/// An entry of the domain schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The domain whose threads run.
    pub domain: u8,
    /// Duration in ticks; 0 ends the schedule.
    pub ticks: u64,
}

/// The current domain, its remaining time, and the domain schedule. The domain comes first, so that the offsets of
/// instructions reach it.
#[repr(C)]
pub struct Domains {
    current: Cell<u8>,
    known: Cell<u8>,
    ticks_left: Cell<u64>,
    schedule: [Cell<Period>; DOMAIN_SCHEDULE_LENGTH],
    index: Cell<usize>,
    start: Cell<usize>,
}

impl Period {
    /// The largest duration of an entry in ticks.
    pub const EVER: u64 = (1 << DOMAIN_DURATION_BITS) - 1;
}

impl Domains {
    /// Makes a state in which the first domain runs, for ever.
    pub const fn new() -> Domains {
        Domains {
            current: Cell::new(0),
            known: Cell::new(DOMAINS as u8),
            ticks_left: Cell::new(u64::MAX),
            schedule: [const { Cell::new(Period { domain: 0, ticks: 0 }) }; DOMAIN_SCHEDULE_LENGTH],
            index: Cell::new(0),
            start: Cell::new(0),
        }
    }

    /// Returns the domain whose threads run.
    #[inline(always)]
    pub fn current(&self) -> u8 {
        self.current.get()
    }

    /// Returns the number of domains that programs can use.
    pub fn known(&self) -> u64 {
        self.known.get().into()
    }

    /// Sets the number of domains, at boot.
    pub fn set_known(&self, known: u8) {
        self.known.set(known);
    }

    /// Returns whether the domain's time is over.
    pub fn is_over(&self) -> bool {
        self.ticks_left.get() == 0
    }

    /// Counts a tick; returns whether the domain's time is over.
    pub fn tick(&self) -> bool {
        let left = self.ticks_left.get();
        if left == u64::MAX {
            return false;
        }
        self.ticks_left.set(left.saturating_sub(1));
        left <= 1
    }

    /// Returns an entry of the schedule.
    ///
    /// # Panics
    /// If the index is too large.
    pub fn period(&self, index: usize) -> Period {
        self.schedule[index].get()
    }

    /// Changes an entry of the schedule.
    ///
    /// # Panics
    /// If the index is too large.
    pub fn set_period(&self, index: usize, period: Period) {
        self.schedule[index].set(period);
    }

    /// Returns the entry with which the schedule begins.
    pub fn start(&self) -> usize {
        self.start.get()
    }

    /// Starts the schedule at this entry.
    ///
    /// # Panics
    /// If the index is too large.
    pub fn start_at(&self, index: usize) {
        self.start.set(index);
        self.enter(index);
    }

    /// Continues with the next entry of the schedule.
    pub fn go_on(&self) {
        let next = self.index.get() + 1;
        let is_end = self.schedule.get(next).is_none_or(|period| period.get().ticks == 0);
        self.enter(if is_end { self.start.get() } else { next });
    }

    fn enter(&self, index: usize) {
        let Period { domain, ticks } = self.schedule[index].get();
        self.index.set(index);
        self.current.set(domain);
        self.ticks_left.set(ticks);
    }

    /// Sets the current domain and the number of domains.
    #[cfg(test)]
    pub fn force(&self, current: u8, known: u8) {
        self.current.set(current);
        self.known.set(known);
    }
}

/// The use of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqUse {
    /// A handler capability can be made.
    Free,
    /// A handler capability exists, or what is left of the last one.
    Handled,
}

/// The device interrupts, by number.
pub struct Interrupts {
    uses: [Cell<IrqUse>; IRQ_SLOTS as usize],
    /// The first of the slots for interrupts' notifications.
    slots: Cell<Option<Ref<Slot>>>,
}

impl Interrupts {
    /// Makes a state without used interrupts and without slots.
    pub const fn new() -> Interrupts {
        Interrupts { uses: [const { Cell::new(IrqUse::Free) }; IRQ_SLOTS as usize], slots: Cell::new(None) }
    }

    /// Sets the first of [`IRQ_SLOTS`] slots for notifications.
    pub fn set_slots(&self, first: Ref<Slot>) {
        self.slots.set(Some(first));
    }

    /// Returns the slot for an interrupt's notification.
    pub fn slot(&self, irq: u16) -> Option<Ref<Slot>> {
        let first = self.slots.get()?;
        (u64::from(irq) < IRQ_SLOTS).then(|| first.slot(irq.into()))
    }

    /// Returns the use of an interrupt; `None` if the number is too large.
    pub fn use_of(&self, irq: u32) -> Option<IrqUse> {
        self.uses.get(irq as usize).map(Cell::get)
    }

    /// Sets the use of an interrupt; returns whether the number is valid.
    pub fn set_use(&self, irq: u16, new: IrqUse) -> bool {
        let place = self.uses.get(usize::from(irq));
        if let Some(place) = place {
            place.set(new);
        }
        place.is_some()
    }

    /// Returns the number of used interrupts.
    pub fn in_use(&self) -> usize {
        self.uses.iter().filter(|place| place.get() != IrqUse::Free).count()
    }
}

/// TLB flushes deferred until the end of a row of requests, for one address space at most.
pub struct DeferredFlushes {
    is_deferring: Cell<bool>,
    /// ASID of the address space; 0 for no flush.
    asid: Cell<u16>,
    /// The page, or `usize::MAX` for several.
    address: Cell<usize>,
}

impl DeferredFlushes {
    const SEVERAL: usize = usize::MAX;

    /// Makes a state without deferred flushes.
    pub const fn new() -> DeferredFlushes {
        DeferredFlushes { is_deferring: Cell::new(false), asid: Cell::new(0), address: Cell::new(0) }
    }

    /// Returns whether flushes are deferred at present.
    #[inline(always)]
    pub fn is_deferring(&self) -> bool {
        self.is_deferring.get()
    }

    /// Sets whether flushes are deferred; returns the old value.
    #[inline(always)]
    pub fn set_deferring(&self, is_deferring: bool) -> bool {
        self.is_deferring.replace(is_deferring)
    }

    /// Defers a flush of an address space; returns `false` if a flush of another address space is deferred already.
    #[inline(always)]
    pub fn note(&self, asid: u16, scope: Scope) -> bool {
        let address = match (self.asid.get(), scope) {
            (0, Scope::Page { address, .. }) => address,
            (noted, _) if noted == 0 || noted == asid => DeferredFlushes::SEVERAL,
            _ => return false,
        };
        self.asid.set(asid);
        self.address.set(address);
        true
    }

    /// Takes the deferred flush: the ASID and the scope.
    #[inline]
    pub fn take(&self) -> Option<(u16, Scope)> {
        let scope = match (self.asid.take(), self.address.get()) {
            (0, _) => return None,
            (asid, DeferredFlushes::SEVERAL) => (asid, Scope::AddressSpace { asid }),
            (asid, address) => (asid, Scope::Page { address, asid }),
        };
        Some(scope)
    }
}

/// A sender page.
pub struct Sender {
    /// The notification that a store signals; `None` if the entry is free.
    pub(crate) notification: Cell<Option<Ref<Notification>>>,
    pub(crate) badge: Cell<u64>,
    /// Location of the page; `None` after the address space was deleted.
    pub(crate) mapping: Cell<Option<Mapping>>,
    /// Physical address that is mapped there; 0 for none.
    pub(crate) physical: Cell<u64>,
    /// The index in the sender table of its address space, on machines with UINTC.
    pub(crate) index: Cell<u16>,
    /// Whether its entry may be valid in a hart's sender table.
    pub(crate) is_valid: Cell<bool>,
}

impl Sender {
    /// Makes an entry that is not used.
    const fn free() -> Sender {
        Sender {
            notification: Cell::new(None),
            badge: Cell::new(0),
            mapping: Cell::new(None),
            physical: Cell::new(0),
            index: Cell::new(0),
            is_valid: Cell::new(false),
        }
    }
}

/// The table of sender pages. Capabilities contain indexes into it.
pub struct Senders {
    each: [Sender; SENDERS],
    in_use: Cell<usize>,
    had_any: Cell<bool>,
}

impl Senders {
    /// Makes a table of free entries.
    pub const fn new() -> Senders {
        Senders { each: [const { Sender::free() }; SENDERS], in_use: Cell::new(0), had_any: Cell::new(false) }
    }

    /// Returns the entry with this number.
    pub fn get(&self, page: u8) -> Option<&Sender> {
        self.each.get(usize::from(page))
    }

    /// Returns all entries, including free ones.
    pub fn iter(&self) -> core::slice::Iter<'_, Sender> {
        self.each.iter()
    }

    /// Returns the number of used entries.
    pub fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// Returns whether no entry is free.
    pub fn is_full(&self) -> bool {
        self.in_use.get() == SENDERS
    }

    /// Returns whether an entry was ever used.
    pub fn had_any(&self) -> bool {
        self.had_any.get()
    }

    /// Allocates a free entry; returns its number.
    pub fn take(&self, notification: Ref<Notification>, badge: u64, mapping: Mapping) -> Option<u8> {
        let page = self.each.iter().position(|sender| sender.notification.get().is_none())?;
        let sender = &self.each[page];
        sender.notification.set(Some(notification));
        sender.badge.set(badge);
        sender.index.set(self.free_index(mapping.asid));
        sender.mapping.set(Some(mapping));
        self.in_use.set(self.in_use.get() + 1);
        self.had_any.set(true);
        Some(page as u8)
    }

    /// Returns the lowest index that no sender of an address space has. Entry 0 is nobody's.
    fn free_index(&self, asid: u16) -> u16 {
        let is_here = |sender: &&Sender| sender.mapping.get().is_some_and(|mapping| mapping.asid == asid);
        let used = self.each.iter().filter(is_here).fold(1_u64, |used, sender| used | 1 << sender.index.get());
        used.trailing_ones() as u16
    }

    /// Returns the sender with this index in an address space.
    pub fn of_index(&self, asid: u16, index: u16) -> Option<&Sender> {
        let is_meant = |sender: &&Sender| {
            sender.index.get() == index && sender.mapping.get().is_some_and(|mapping| mapping.asid == asid)
        };
        self.each.iter().find(is_meant)
    }

    /// Frees a used entry, whose page must not be mapped.
    pub fn give_back(&self, sender: &Sender) {
        sender.notification.set(None);
        sender.mapping.set(None);
        self.in_use.set(self.in_use.get() - 1);
    }
}
