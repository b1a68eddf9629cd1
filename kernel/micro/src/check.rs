//! The consistency checker: walks everything that can be reached and compares what is said twice.
//!
//! It is for tests and debugging builds. What it finds is a mistake of the kernel, never of a program.

use objects::{Capability, Ref, Slot, TCB_SLOTS, Tcb, ThreadState};

use crate::{Kernel, capability};

/// Nodes that are looked into, at most: a program can build more than a check should take.
const LIMIT: usize = 1 << 16;

impl Kernel {
    /// Checks queues, the derivation list, and bindings.
    ///
    /// # Panics
    /// If something does not agree.
    pub fn check(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            for (domain, ready) in node.ready.iter().enumerate() {
                for priority in 0..=u8::MAX {
                    let mut previous = None;
                    let mut next = ready.first(priority);
                    while let Some(thread) = next {
                        assert_eq!(thread.priority.get(), priority, "a thread is in another priority's queue");
                        assert_eq!(usize::from(thread.domain.get()), domain, "a thread is in another domain's queue");
                        assert_eq!(self.node_of(thread), index, "a thread is in another hart's queue");
                        assert_eq!(thread.is_queued.get(), 1, "a thread does not know that it is queued");
                        assert!(thread.state().is_runnable(), "a thread is queued that cannot run");
                        assert_eq!(thread.ready_previous.get(), previous, "a ready queue is torn");
                        previous = Some(thread);
                        next = thread.ready_next.get();
                    }
                }
            }
        }
        if let Some(root) = self.root.get() {
            let mut budget = LIMIT;
            self.check_slot(root, &mut budget, 0);
        }
    }

    fn check_slot(&self, slot: Ref<Slot>, budget: &mut usize, depth: usize) {
        if *budget == 0 || depth > 4 {
            return;
        }
        *budget -= 1;
        if let Some(next) = slot.next.get() {
            assert_eq!(next.previous.get(), Some(slot), "the derivation list is torn behind a slot");
            assert!(!next.is_empty(), "an empty slot is in the derivation list");
        }
        if let Some(previous) = slot.previous.get() {
            assert_eq!(previous.next.get(), Some(slot), "the derivation list is torn before a slot");
        }
        match slot.capability.get() {
            Capability::Null => {
                assert_eq!((slot.previous.get(), slot.next.get()), (None, None), "an empty slot is linked");
            }
            Capability::Untyped { base, bits, used, .. } => {
                assert!(used <= 1 << bits, "more of an untyped memory is used than there is");
                if let Some(next) = slot.next.get()
                    && crate::derivation::is_parent(&slot, &next)
                    && let Some((start, end)) = capability::extent(&next.capability.get())
                {
                    assert!(base <= start && end < base + used, "an object is behind its memory's mark");
                }
            }
            Capability::CNode { slots, radix, .. } => {
                for index in 0..1u64 << radix {
                    let inner = slots.slot(index);
                    if inner != slot {
                        self.check_slot(inner, budget, depth + 1);
                    }
                }
            }
            Capability::Thread { tcb } => {
                check_thread(tcb);
                for index in 0..TCB_SLOTS {
                    let own = tcb.own_slot(index);
                    // What a thread's capability space holds is checked where it was found first.
                    if !matches!(own.capability.get(), Capability::CNode { .. }) {
                        self.check_slot(own, budget, depth + 1);
                    }
                }
            }
            _ => {}
        }
    }
}

fn check_thread(thread: Ref<Tcb>) {
    if let Some(notification) = thread.bound.get() {
        assert_eq!(notification.bound.get(), Some(thread), "a thread is bound to a notification that does not know it");
    }
    let is_receiver = thread.interrupts.handler.get() != 0;
    assert!(!is_receiver || thread.bound.get().is_some(), "a thread is interrupted by no notification");
    let waits = |head: Option<Ref<Tcb>>| {
        let mut next = head;
        while let Some(other) = next {
            if other == thread {
                return true;
            }
            next = other.wait_next.get();
        }
        false
    };
    match thread.state() {
        ThreadState::BlockedOnSend | ThreadState::BlockedOnReceive => {
            let endpoint = thread.waits_at.get().expect("a thread waits at no endpoint");
            assert!(waits(endpoint.queue.head.get()), "a thread is not in the queue where it waits");
            let sends = thread.state() == ThreadState::BlockedOnSend;
            assert_eq!(endpoint.is_sending.get() != 0, sends, "an endpoint's queue holds senders and receivers");
        }
        ThreadState::BlockedOnNotification => {
            let notification = thread.waits_for.get().expect("a thread waits for no notification");
            assert!(waits(notification.queue.head.get()), "a thread is not in the queue where it waits");
            assert_eq!(notification.is_active.get(), 0, "a thread waits for signals that are there");
        }
        _ => {}
    }
}
