//! The fastpath: a short message from a client to a waiting server, the reply, a fault whose handler waits, and a
//! signal that wakes a thread and precedes a wait (`SignalRecv`).
//!
//! Most system calls of a system built on a microkernel call a server or reply to a client. The fastpath serves them
//! under these conditions:
//!
//! * the message fits into registers and carries no capabilities;
//! * the capability lookups succeed, and the capabilities have the necessary rights;
//! * the other side waits: for a reply and receive, the caller waits for a reply to a call and not to a fault, no
//!   thread waits to send at the endpoint, and the bound notification has no signals;
//! * no ready thread of the domain is more important than the other thread, unless that is at least as important as the
//!   current one;
//! * the other thread is on this hart and has a valid cached address space; SPACE-EPOCH makes that imply the current
//!   domain.
//!
//! All conditions are checked first. Then no step can fail, and the hart continues directly with the other thread. The
//! effect is exactly that of the slowpath; every other case is left to the slowpath, with no state changed. A fault
//! whose message fits into registers is such a call, too.

use abi_sel4::call::number;
use abi_sel4::{MessageInfo, Rights};
use objects::{Endpoint, Queue, Ref, Slot, Space, Tcb, ThreadFault, ThreadState, own};

use crate::kernel::Kernel;
use crate::node::Decision;
use crate::{cspace, fault, ipc};

impl Kernel {
    /// Serves a system call if the conditions of the fastpath hold; returns the thread that runs next.
    #[inline(always)]
    pub(crate) fn fastpath(&self, thread: Ref<Tcb>) -> Option<Ref<Tcb>> {
        match thread.register::<17>().get() {
            number::Call => self.short_call(thread),
            number::ReplyRecv => self.short_reply_receive(thread),
            _ => None,
        }
    }

    #[inline(always)]
    fn short_call(&self, thread: Ref<Tcb>) -> Option<Ref<Tcb>> {
        let information = MessageInfo(thread.register::<11>().get());
        let length = information.length_in_registers()?;
        let slot = cspace::lookup(thread, thread.register::<10>().get()).ok()?;
        let (endpoint, badge, rights) = slot.capability.endpoint()?;
        if !rights.contains(Rights::WRITE) || !rights.intersects(ipc::MAY_BE_ANSWERED) || endpoint.is_sending.get() != 0
        {
            return None;
        }
        let receiver = endpoint.queue.head.get()?;
        let space = self.can_hand_over(thread, receiver)?;

        thread.fault_pc.set(thread.pc().get().wrapping_sub(4));
        begin_call(thread, endpoint, receiver);
        self.hand_over(thread, receiver, badge, (information, length), space);
        Some(receiver)
    }

    /// Serves a fault if the conditions of the fastpath hold; returns whether the handler runs next.
    #[inline(always)]
    pub(crate) fn short_fault(&self, thread: Ref<Tcb>, fault: ThreadFault) -> bool {
        self.try_short_fault(thread, fault).is_some()
    }

    #[inline(always)]
    fn try_short_fault(&self, thread: Ref<Tcb>, fault: ThreadFault) -> Option<()> {
        let slot = cspace::lookup(thread, thread.fault_handler.get()).ok()?;
        let (endpoint, badge, rights) = slot.capability.endpoint()?;
        if !rights.contains(Rights::WRITE) || !rights.intersects(ipc::MAY_BE_ANSWERED) || endpoint.is_sending.get() != 0
        {
            return None;
        }
        let receiver = endpoint.queue.head.get()?;
        let space = self.can_hand_over(thread, receiver)?;
        let pc = thread.pc().get();
        let words = fault::short_message(thread, pc, fault)?;

        thread.fault_pc.set(pc);
        thread.set_fault(fault);
        begin_call(thread, endpoint, receiver);
        fault::put_four(receiver, words);
        self.hand_over(thread, receiver, badge, (MessageInfo::new(fault.kind().label(), 0, words.len()), 0), space);
        Some(())
    }

    #[inline(always)]
    fn short_reply_receive(&self, thread: Ref<Tcb>) -> Option<Ref<Tcb>> {
        let information = MessageInfo(thread.register::<11>().get());
        let length = information.length_in_registers()?;
        let slot = cspace::lookup(thread, thread.register::<10>().get()).ok()?;
        let (endpoint, _, rights) = slot.capability.endpoint()?;
        let queue = &endpoint.queue;
        let tail = queue.tail.get();
        if !rights.contains(Rights::READ) || tail.is_some() && endpoint.is_sending.get() != 0 {
            return None;
        }
        if thread.bound.get().is_some_and(|bound| bound.is_active.get() != 0) {
            return None;
        }
        let own = &thread.slots[own::CALLER];
        let (caller, _) = own.capability.reply()?;
        if !caller.has_no_fault() {
            return None;
        }
        let space = self.can_hand_over(thread, caller)?;

        // The current thread waits for the next message.
        thread.wait_previous.set(tail);
        thread.wait_next.set(None);
        match tail {
            Some(tail) => tail.wait_next.set(Some(thread)),
            None => queue.head.set(Some(thread)),
        }
        queue.tail.set(Some(thread));
        endpoint.is_sending.set(0);
        thread.waits_at.set(Some(endpoint));
        thread.wait_rights.set(rights.0);
        thread.fault_pc.set(thread.pc().get().wrapping_sub(4));
        thread.set_state_word(ThreadState::Receiving);
        // The reply capability is consumed.
        forget(own);
        self.hand_over(thread, caller, 0, (information, length), space);
        Some(caller)
    }

    /// Serves a signal that wakes a thread and the wait that follows it, if the conditions of the fastpath hold and the
    /// source of the wait has no signals. Called from the slowpath: a test for its number would cost other calls time.
    #[inline]
    pub(crate) fn short_signal_receive(&self, thread: Ref<Tcb>) -> Option<()> {
        let (notification, badge) = cspace::lookup(thread, thread.register::<11>().get()).ok()?.capability.signal()?;
        let woken = notification.queue.head.get()?;
        let slot = cspace::lookup(thread, thread.register::<10>().get()).ok()?;
        let source = slot.capability.source_of_signals()?;
        if source.is_active.get() != 0 || source.bound.get().is_some_and(|bound| bound != thread) {
            return None;
        }
        let space = self.can_hand_over(thread, woken)?;

        remove_first(&notification.queue, woken);
        woken.register::<10>().set(badge);
        woken.set_state_word(ThreadState::Running);
        thread.waits_for.set(Some(source));
        ipc::enqueue_waiting(&source.queue, thread);
        thread.set_state_word(ThreadState::AwaitingSignal);
        self.node().current.set(Some(woken));
        self.enter_space(woken, space);
        Some(())
    }

    /// Checks whether a thread could run at once if the current one stopped; returns its cached address space, whose
    /// validity implies the current domain (SPACE-EPOCH).
    #[inline(always)]
    fn can_hand_over(&self, thread: Ref<Tcb>, other: Ref<Tcb>) -> Option<Space> {
        // A running thread has no fault, and this kernel entry has made no scheduling decision yet.
        debug_assert!(thread.has_no_fault() && self.node().decision.get() == Decision::Keep);
        let priority = other.priority.get();
        if priority < thread.priority.get() && !self.is_highest(priority) {
            return None;
        }
        if cfg!(feature = "smp") && self.node_of(other) != self.here() {
            return None;
        }
        other.space_in(self.space_epoch.get())
    }

    /// Copies a short message, with its message information and length, to a thread, which becomes the current one.
    #[inline(always)]
    fn hand_over(&self, from: Ref<Tcb>, to: Ref<Tcb>, badge: u64, message: (MessageInfo, usize), space: Space) {
        let (information, length) = message;
        if length > 0 {
            to.register::<12>().set(from.register::<12>().get());
        }
        if length > 1 {
            to.register::<13>().set(from.register::<13>().get());
        }
        if length > 2 {
            to.register::<14>().set(from.register::<14>().get());
        }
        if length > 3 {
            to.register::<15>().set(from.register::<15>().get());
        }
        to.register::<10>().set(badge);
        to.register::<11>().set(information.without_capabilities().0);
        to.set_state_word(ThreadState::Running);
        self.node().current.set(Some(to));
        self.enter_space(to, space);
    }
}

/// Makes a thread wait for a receiver's reply, and removes the receiver from the queue, whose first thread it is.
#[inline(always)]
fn begin_call(thread: Ref<Tcb>, endpoint: Ref<Endpoint>, receiver: Ref<Tcb>) {
    remove_first(&endpoint.queue, receiver);
    let grant = Rights(receiver.wait_rights.get()).contains(Rights::GRANT);
    ipc::give_reply_right(thread, receiver, grant);
    thread.set_state_word(ThreadState::AwaitingReply);
}

/// Removes the first thread of a queue.
#[inline(always)]
fn remove_first(queue: &Queue, first: Ref<Tcb>) {
    let next = first.wait_next.get();
    queue.head.set(next);
    match next {
        Some(next) => next.wait_previous.set(None),
        None => queue.tail.set(None),
    }
}

/// Empties a slot with a reply capability: the capability before it in the list is the caller's master reply
/// capability, and none follows.
#[inline(always)]
fn forget(slot: &Slot) {
    if let Some(previous) = slot.previous.get() {
        previous.next.set(slot.next.get());
    }
    slot.reset();
}
