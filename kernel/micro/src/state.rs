//! The parts of the kernel's state that stand for themselves: each with the operations that concern nothing else.

use core::cell::Cell;

use abi_sel4::configuration::{DOMAIN_SCHEDULE_LENGTH, DOMAINS};
use hal_api::Scope;
use objects::{Mapping, Notification, Ref, Slot};

use crate::node::MAXIMUM_DOMAINS;

/// Places for interrupts, one for each number.
pub const IRQ_SLOTS: u64 = 128;
/// Pages for sending.
pub const SENDERS: usize = 128;

/// An entry of the schedule of domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The domain whose threads run.
    pub domain: u8,
    /// For how many ticks; 0 ends the schedule.
    pub ticks: u64,
}

/// Which domain runs, and for how long. The domain comes first, so that instructions reach it with its offset.
#[repr(C)]
pub struct Domains {
    current: Cell<u8>,
    known: Cell<u8>,
    ticks_left: Cell<u64>,
    schedule: [Cell<Period>; DOMAIN_SCHEDULE_LENGTH],
    index: Cell<usize>,
    start: Cell<usize>,
}

impl Domains {
    /// The first domain runs, for ever.
    pub const fn new() -> Domains {
        let known = if cfg!(feature = "domains") { MAXIMUM_DOMAINS } else { DOMAINS };
        Domains {
            current: Cell::new(0),
            known: Cell::new(known as u8),
            ticks_left: Cell::new(u64::MAX),
            schedule: [const { Cell::new(Period { domain: 0, ticks: 0 }) }; DOMAIN_SCHEDULE_LENGTH],
            index: Cell::new(0),
            start: Cell::new(0),
        }
    }

    /// The domain whose threads run.
    #[inline(always)]
    pub fn current(&self) -> u8 {
        self.current.get()
    }

    /// As [`current`](Domains::current), as an index of what there is for each domain.
    #[inline(always)]
    pub fn index(&self) -> usize {
        usize::from(self.current.get()) % MAXIMUM_DOMAINS
    }

    /// How many domains programs know.
    pub fn known(&self) -> u64 {
        self.known.get().into()
    }

    /// Whether the domain's time is over.
    pub fn is_over(&self) -> bool {
        self.ticks_left.get() == 0
    }

    /// Counts a tick; says whether the domain's time is over.
    pub fn tick(&self) -> bool {
        let left = self.ticks_left.get();
        if left == u64::MAX {
            return false;
        }
        self.ticks_left.set(left.saturating_sub(1));
        left <= 1
    }

    /// An entry of the schedule.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn period(&self, index: usize) -> Period {
        self.schedule[index].get()
    }

    /// Changes an entry of the schedule.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn set_period(&self, index: usize, period: Period) {
        self.schedule[index].set(period);
    }

    /// The entry with which the schedule begins.
    pub fn start(&self) -> usize {
        self.start.get()
    }

    /// Begins the schedule at this entry.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn start_at(&self, index: usize) {
        self.start.set(index);
        self.enter(index);
    }

    /// Goes to the next entry of the schedule.
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

    /// Makes this the current domain, and this many be known.
    #[cfg(test)]
    pub fn force(&self, current: u8, known: u8) {
        self.current.set(current);
        self.known.set(known);
    }
}

/// What an interrupt is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqState {
    /// Nothing.
    Inactive,
    /// A handler capability exists.
    Signal,
}

/// The interrupts of devices, by number.
pub struct Interrupts {
    states: [Cell<IrqState>; IRQ_SLOTS as usize],
    /// The first of the slots that hold interrupts' notifications.
    slots: Cell<Option<Ref<Slot>>>,
}

impl Interrupts {
    /// No interrupt is used, and there are no slots yet.
    pub const fn new() -> Interrupts {
        Interrupts { states: [const { Cell::new(IrqState::Inactive) }; IRQ_SLOTS as usize], slots: Cell::new(None) }
    }

    /// Keeps notifications in a row of [`IRQ_SLOTS`] slots from this one on.
    pub fn set_slots(&self, first: Ref<Slot>) {
        self.slots.set(Some(first));
    }

    /// The slot for an interrupt's notification.
    pub fn slot(&self, irq: u16) -> Option<Ref<Slot>> {
        let first = self.slots.get()?;
        (u64::from(irq) < IRQ_SLOTS).then(|| first.slot(irq.into()))
    }

    /// What an interrupt is used for; `None` if the kernel knows no such interrupt.
    pub fn state(&self, irq: u32) -> Option<IrqState> {
        self.states.get(irq as usize).map(Cell::get)
    }

    /// Changes that; says whether the kernel knows the interrupt.
    pub fn set_state(&self, irq: u16, state: IrqState) -> bool {
        let place = self.states.get(usize::from(irq));
        if let Some(place) = place {
            place.set(state);
        }
        place.is_some()
    }

    /// How many interrupts are used.
    pub fn in_use(&self) -> usize {
        self.states.iter().filter(|state| state.get() != IrqState::Inactive).count()
    }
}

/// What harts are told to forget only after a row of requests: of one address space at most.
pub struct DeferredFlushes {
    is_deferring: Cell<bool>,
    /// The identifier of the address space; 0 for nothing.
    asid: Cell<u16>,
    /// The page, or `usize::MAX` for several.
    address: Cell<usize>,
}

impl DeferredFlushes {
    const SEVERAL: usize = usize::MAX;

    /// Nothing is deferred.
    pub const fn new() -> DeferredFlushes {
        DeferredFlushes { is_deferring: Cell::new(false), asid: Cell::new(0), address: Cell::new(0) }
    }

    /// Whether a flush is deferred now.
    #[inline(always)]
    pub fn is_deferring(&self) -> bool {
        self.is_deferring.get()
    }

    /// Changes that; says what it was.
    #[inline(always)]
    pub fn set_deferring(&self, is_deferring: bool) -> bool {
        self.is_deferring.replace(is_deferring)
    }

    /// Notes what is to be forgotten of an address space; says whether that could be, because nothing of another one
    /// is noted.
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

    /// Takes out what was noted: the identifier of the address space, and what is to be forgotten of it.
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

/// A page for sending.
pub struct Sender {
    /// The notification that a store signals; `None` if this is free.
    pub(crate) notification: Cell<Option<Ref<Notification>>>,
    pub(crate) badge: Cell<u64>,
    /// Where it is; `None` when the address space is gone.
    pub(crate) mapping: Cell<Option<Mapping>>,
    /// What is mapped there; 0 for nothing.
    pub(crate) physical: Cell<u64>,
}

/// Pages for sending, whose numbers capabilities have.
pub struct Senders {
    each: [Sender; SENDERS],
    in_use: Cell<usize>,
    had_any: Cell<bool>,
}

impl Senders {
    /// All are free.
    pub const fn new() -> Senders {
        const FREE: Sender = Sender {
            notification: Cell::new(None),
            badge: Cell::new(0),
            mapping: Cell::new(None),
            physical: Cell::new(0),
        };
        Senders { each: [const { FREE }; SENDERS], in_use: Cell::new(0), had_any: Cell::new(false) }
    }

    /// The page with this number.
    pub fn get(&self, page: u8) -> Option<&Sender> {
        self.each.get(usize::from(page))
    }

    /// All pages, those that are free too.
    pub fn iter(&self) -> core::slice::Iter<'_, Sender> {
        self.each.iter()
    }

    /// How many are not free.
    pub fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// Whether none is free.
    pub fn is_full(&self) -> bool {
        self.in_use.get() == SENDERS
    }

    /// Whether any was ever used.
    pub fn had_any(&self) -> bool {
        self.had_any.get()
    }

    /// Uses a free page: its number.
    pub fn take(&self, notification: Ref<Notification>, badge: u64, mapping: Mapping) -> Option<u8> {
        let page = self.each.iter().position(|sender| sender.notification.get().is_none())?;
        let sender = &self.each[page];
        sender.notification.set(Some(notification));
        sender.badge.set(badge);
        sender.mapping.set(Some(mapping));
        self.in_use.set(self.in_use.get() + 1);
        self.had_any.set(true);
        Some(page as u8)
    }

    /// Gives a page back that is used and mapped nowhere.
    pub fn give_back(&self, sender: &Sender) {
        sender.notification.set(None);
        sender.mapping.set(None);
        self.in_use.set(self.in_use.get() - 1);
    }
}
