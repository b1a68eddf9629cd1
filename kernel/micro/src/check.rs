//! The consistency checker: walks all objects and compares redundant state.
//!
//! It is for tests, and for kernels that are built with the feature `checks`, which run it after kernel entries. A
//! violation is a defect of the kernel, never of a program. The checker needs no memory: it finds capabilities through
//! the derivation lists, each once (ONE-LIST), and marks each mapping with a capability in the page table, in a bit
//! that the machine reserves for software.
//!
//! ONE-LIST: every capability is in exactly one list; the first of a list is in a slot of a CNode or a thread. A walk
//! that begins with the slots of the root CNode, follows the lists that begin there, and continues with each CNode and
//! thread in these lists therefore visits every capability that a program can use or delete.

use objects::{
    Capability, Dying, Endpoint, FrameSize, HandlerState, Notification, Queue, Ref, Ring, Slot, TCB_SLOTS, Tcb,
    ThreadState, own,
};

use crate::capability::{extent, is_within, share_object};
use crate::kernel::Kernel;
use crate::node::{Decision, Links, Node, Ready};
use crate::state::IrqUse;
use crate::vspace;

/// The largest depth of lists that begin in a CNode or thread of another list.
const DEPTH: usize = 12;

/// A kernel with the feature `checks` checks itself after each of this many entries ...
const STRETCH: u64 = 1 << 8;
/// ... out of this many ...
const ROUND: u64 = 1 << 15;
/// ... and otherwise after one of this many: a check takes as long as thousands of entries.
const SELDOM: u64 = 1 << 8;

/// Counters of the walk.
#[derive(Default)]
struct Found {
    pools: usize,
    interrupts: usize,
    handlers_awake: u32,
    senders: usize,
    log_page: bool,
}

impl Kernel {
    /// Checks the kernel's state after some entries, chosen by the number of the entry.
    #[cold]
    pub(crate) fn check_now_and_then(&self, entry: u64) {
        if entry % ROUND < STRETCH || entry.is_multiple_of(SELDOM) {
            self.check();
        }
    }

    /// Checks queues, derivation lists, objects, bindings and mappings. Called at the end of a kernel entry, after
    /// scheduling.
    ///
    /// # Panics
    /// If the state is inconsistent.
    pub fn check(&self) {
        self.check_queues();
        let Some(Capability::CNode { slots, radix, .. }) = self.root.get().map(|root| root.capability.get()) else {
            return;
        };
        let mut found = Found::default();
        self.check_slots(slots, 1 << radix, slots, &mut found, 0);
        let pools = self.asid_pools.iter().filter(|pool| pool.get().is_some()).count();
        assert!(found.pools >= pools, "an ASID pool has no capability");
        for (index, pool) in self.asid_pools.iter().enumerate() {
            if let Some(pool) = pool.get() {
                vspace::check_pool(pool, index);
            }
        }
        assert_eq!(found.interrupts, self.interrupts.in_use(), "an interrupt in use has no capability");
        assert_eq!(found.senders, self.senders.in_use(), "a sender page has no capability");
        assert!(found.log_page || !self.log.has_page(), "the log's page has no capability");
        assert_eq!(found.handlers_awake, self.handlers_awake.get(), "the count of awake handlers is wrong");
    }

    fn check_queues(&self) {
        if let Some((endpoint, badge, next)) = self.cancellation.state() {
            let (mut before, mut is_there) = (true, false);
            check_queue(&endpoint.queue, |thread| {
                is_there |= thread == next;
                before &= thread != next;
                assert!(!before || thread.wait_badge.get() != badge, "a cancellation has passed a thread over");
            });
            assert!(is_there, "a cancellation goes on with a thread that waits elsewhere");
        }
        for (index, node) in self.nodes.iter().enumerate() {
            for (domain, ready) in node.ready.iter().enumerate() {
                ready.check(|thread| {
                    assert_eq!(usize::from(thread.domain.get()), domain, "a thread is in another domain's queue");
                    assert_eq!(self.node_of(thread), index, "a thread is in another hart's queue");
                    assert_eq!(thread.is_queued.get(), 1, "a queued thread is not marked as queued");
                    assert!(thread.state().is_runnable(), "a thread is queued that cannot run");
                });
            }
            let asid = node.asid.get();
            assert!(asid == 0 || self.root_of(asid).is_some(), "a hart uses a deleted address space");
        }
        for handlers in self.handlers.iter() {
            handlers
                .check(|thread| assert_eq!(thread.handler.state(), HandlerState::Queued, "a handler is not queued"));
        }
    }

    /// Checks the lists that begin in these slots.
    fn check_slots(&self, first: Ref<Slot>, count: u64, root: Ref<Slot>, found: &mut Found, depth: usize) {
        assert!(depth < DEPTH, "lists are nested too deeply");
        for index in 0..count {
            let slot = first.slot(index);
            if slot.is_empty() {
                assert!(slot.previous.get().is_none() && slot.next.get().is_none(), "an empty slot is linked");
            } else if slot.previous.get().is_none() {
                self.check_list(slot, root, found, depth);
            }
        }
    }

    fn check_list(&self, first: Ref<Slot>, root: Ref<Slot>, found: &mut Found, depth: usize) {
        let mut before: Option<(Ref<Slot>, Capability)> = None;
        let mut next = Some(first);
        while let Some(slot) = next {
            let capability = slot.capability.get();
            assert!(capability != Capability::Null, "an empty slot is in a derivation list");
            assert_eq!(slot.previous.get(), before.map(|(slot, _)| slot), "the links of a derivation list disagree");
            let mut is_first = true;
            if let Some((_, above)) = before {
                is_first = !share_object(&above, &capability);
                check_places(&above, &capability);
            }
            self.check_capability(slot, is_first, root, found, depth);
            before = Some((slot, capability));
            next = slot.next.get();
        }
    }

    /// Checks a capability, and its object if the previous capability in the list refers to another one.
    fn check_capability(&self, place: Ref<Slot>, is_first: bool, root: Ref<Slot>, found: &mut Found, depth: usize) {
        if let Capability::Frame { base, .. } = place.capability.get() {
            found.log_page |= self.log.is_in(base);
        }
        match place.capability.get() {
            Capability::Untyped { bits, used, .. } => assert!(used <= 1 << bits, "more memory is used than there is"),
            Capability::Frame { base, size, mapping: Some(mapping), .. } => {
                if let Some(place) = self.page_place(base, size, mapping) {
                    place.mark();
                }
            }
            Capability::Notification { notification, badge, page: Some(page), .. } => {
                found.senders += 1;
                if let Some((physical, mapping)) = self.sender_page(page, notification, badge)
                    && let Some(place) = self.page_place(physical, FrameSize::Small, mapping)
                {
                    place.mark();
                }
                if is_first {
                    check_notification(notification);
                }
            }
            Capability::PageTable { table, mapping: Some(mapping) } => {
                match self.root_of(mapping.asid) == Some(table) {
                    true => vspace::mark_root(table),
                    false => {
                        if let Some(place) = self.table_place(table, mapping) {
                            place.mark();
                        }
                    }
                }
            }
            Capability::Reply { caller, master: false, .. } => {
                assert_eq!(
                    caller.state(),
                    ThreadState::AwaitingReply,
                    "a reply capability exists for a thread that does not wait for a reply"
                );
            }
            Capability::Endpoint { endpoint, .. } if is_first => check_endpoint(endpoint),
            Capability::Notification { notification, .. } if is_first => check_notification(notification),
            Capability::CNode { slots, radix, .. } if is_first && slots != root => {
                self.check_slots(slots, 1 << radix, root, found, depth + 1);
            }
            Capability::Remains { object, ring } => {
                let is_here = |slot: Ref<Slot>, link: fn(Ring) -> Ref<Slot>| match slot.capability.get() {
                    Capability::Remains { ring, .. } => link(ring) == place,
                    _ => false,
                };
                assert!(is_here(ring.next, |ring| ring.previous), "the links of a ring disagree");
                assert!(is_here(ring.previous, |ring| ring.next), "the links of a ring disagree");
                match object {
                    Dying::Endpoint(endpoint) => check_endpoint(endpoint),
                    Dying::Notification(notification) => check_notification(notification),
                    Dying::Interrupt { irq, .. } => {
                        let state = self.interrupts.use_of(irq.into());
                        assert_eq!(state, Some(IrqUse::Handled), "an interrupt without a handler is free too early");
                        found.interrupts += 1;
                    }
                    Dying::Thread(_) | Dying::CNode { .. } => {}
                }
                if let Some((slots, count)) = object.slots().filter(|(slots, _)| *slots != root) {
                    let left = place.left();
                    self.check_slots(slots, left, root, found, depth + 1);
                    let is_done = |index| slots.slot(index).is_empty() || slots.slot(index) == place;
                    assert!((left..count).all(is_done), "a dying object has left a slot behind");
                }
            }
            Capability::Thread { tcb } if is_first => {
                self.check_thread(tcb, found);
                self.check_slots(tcb.own_slot(0), TCB_SLOTS as u64, root, found, depth + 1);
            }
            Capability::IrqHandler { irq } if is_first => {
                let state = self.interrupts.use_of(irq.into());
                assert_eq!(state, Some(IrqUse::Handled), "an interrupt with a capability is not in use");
                found.interrupts += 1;
            }
            Capability::AsidPool { pool, base } if is_first => {
                let known = self.asid_pools[usize::from(base) / pool.roots.len()].get();
                assert_eq!(known, Some(pool), "an ASID pool with a capability is not registered");
                found.pools += 1;
            }
            _ => {}
        }
    }

    fn check_thread(&self, thread: Ref<Tcb>, found: &mut Found) {
        if let Some(notification) = thread.bound.get() {
            assert_eq!(
                notification.bound.get(),
                Some(thread),
                "a thread is bound to a notification that is not bound to it"
            );
        }
        let is_receiver = thread.interrupts.handler.get() != 0;
        assert!(!is_receiver || thread.bound.get().is_some(), "a thread is interrupted by no notification");
        let hints = thread.interrupts.hints.get();
        assert!(hints == 0 || is_receiver, "a thread has hints and no handler");
        let file = thread.interrupts.file_or_slot.get() as usize;
        match thread.slot() {
            Some(slot) => {
                assert!(hints != 0 && self.interrupt_slots.is_taken(slot), "a thread has a slot that is free");
                assert!(thread.state().is_runnable(), "a thread that does not run has a slot");
            }
            None => {
                let owner = || self.nodes[self.node_of(thread)].files[file].get();
                assert!(file == 0 || hints != 0 && owner() == Some(thread), "a thread has another's interrupt file");
            }
        }
        match thread.state() {
            ThreadState::Sending | ThreadState::Receiving => {
                let endpoint = thread.waits_at.get().expect("a thread waits at no endpoint");
                assert!(holds(&endpoint.queue, thread), "a thread is not in the queue where it waits");
                let sends = thread.state() == ThreadState::Sending;
                assert_eq!(endpoint.is_sending.get() != 0, sends, "an endpoint's queue holds senders and receivers");
            }
            ThreadState::AwaitingSignal => {
                let notification = thread.waits_for.get().expect("a thread waits for no notification");
                assert!(holds(&notification.queue, thread), "a thread is not in the queue where it waits");
            }
            // A thread that waits for a reply need not have a reply capability: it may have been deleted.
            ThreadState::AwaitingReply | ThreadState::Inactive | ThreadState::Running | ThreadState::Restarting => {}
        }
        if let Some(right) = thread.slots[own::REPLY].next.get().map(|slot| slot.capability.get()) {
            let is_right = matches!(right, Capability::Reply { caller, master: false, .. } if caller == thread);
            assert!(is_right, "a master reply capability has a child that is no reply capability for its thread");
        }
        let is_current = self.nodes.iter().any(|node| node.current.get() == Some(thread));
        let is_chosen = self.nodes.iter().any(|node| node.decision.get() == Decision::Challenged(thread));
        let is_queued = thread.is_queued.get() != 0;
        assert!(!is_queued || !is_current, "a current thread is queued");
        let has_turn = is_current || is_chosen || is_queued;
        assert!(has_turn || !thread.state().is_runnable(), "a runnable thread is neither queued nor current");
        // SPACE-EPOCH
        if let Some(space) = thread.space_in(self.space_epoch.get()) {
            assert_eq!(Some(space), self.address_space(thread), "the cached address space of a thread is wrong");
        }
        match thread.handler.state() {
            HandlerState::None | HandlerState::Asleep => {}
            HandlerState::Queued => found.handlers_awake += 1,
            HandlerState::Served => {
                let serves = |node: &Node| node.serving.get() == Some(thread);
                assert!(self.nodes.iter().any(serves), "no hart runs a handler that is served");
                found.handlers_awake += 1;
            }
        }
    }
}

/// Checks that two adjacent capabilities of a list have the same object, that one object is a part of the other, or
/// that the two have no byte in common.
fn check_places(above: &Capability, below: &Capability) {
    let (Some((first, last)), Some((start, end))) = (extent(above), extent(below)) else { return };
    if let Capability::Untyped { base, bits, used, .. } = *above
        && is_within(base, bits, below)
    {
        return assert!(end < base + used, "an object lies behind its memory's watermark");
    }
    assert!(last < start || end < first || (first, last) == (start, end), "two objects overlap");
}

fn holds(queue: &Queue, thread: Ref<Tcb>) -> bool {
    let mut next = queue.head.get();
    while let Some(other) = next {
        if other == thread {
            return true;
        }
        next = other.wait_next.get();
    }
    false
}

/// Calls `look` with each thread of a queue.
fn check_queue(queue: &Queue, mut look: impl FnMut(Ref<Tcb>)) {
    let mut previous = None;
    let mut next = queue.head.get();
    while let Some(thread) = next {
        assert_eq!(thread.wait_previous.get(), previous, "the links of a queue disagree");
        look(thread);
        previous = Some(thread);
        next = thread.wait_next.get();
    }
    assert_eq!(queue.tail.get(), previous, "the tail of a queue is wrong");
}

fn check_endpoint(endpoint: Ref<Endpoint>) {
    let expected = if endpoint.is_sending.get() != 0 { ThreadState::Sending } else { ThreadState::Receiving };
    check_queue(&endpoint.queue, |thread| {
        assert_eq!(
            (thread.state(), thread.waits_at.get()),
            (expected, Some(endpoint)),
            "a queue holds a thread that does not wait there"
        );
    });
}

fn check_notification(notification: Ref<Notification>) {
    if let Some(thread) = notification.bound.get() {
        assert_eq!(
            thread.bound.get(),
            Some(notification),
            "a notification is bound to a thread that is not bound to it"
        );
    }
    check_queue(&notification.queue, |thread| {
        let waits = (thread.state(), thread.waits_for.get());
        assert_eq!(
            waits,
            (ThreadState::AwaitingSignal, Some(notification)),
            "a queue holds a thread that does not wait there"
        );
        assert_eq!(notification.is_active.get(), 0, "a thread waits at a notification with signals");
    });
}

impl<Kind: Links> Ready<'_, Kind> {
    /// Calls `look` with each thread.
    fn check(&self, look: impl Fn(Ref<Tcb>)) {
        for priority in 0..=u8::MAX {
            let mut previous = None;
            let mut next = self.first(priority);
            assert_eq!(
                self.is_marked(priority),
                next.is_some(),
                "a queue of threads is not marked, or an empty one is"
            );
            while let Some(thread) = next {
                assert_eq!(thread.priority.get(), priority, "a thread is in another priority's queue");
                let (following, before) = Kind::of(&thread);
                assert_eq!(before.get(), previous, "the links of a ready queue disagree");
                look(thread);
                previous = Some(thread);
                next = following.get();
            }
        }
    }
}
