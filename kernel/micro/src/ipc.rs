//! Messages and signals: endpoints, notifications, replies.
//!
//! A waiting thread is in the queue of one endpoint or one notification; its state tells which, and whether it sends or
//! receives. The second thread that arrives at the endpoint performs the whole transfer and makes the first one
//! runnable.

use abi_sel4::message::{MAXIMUM_CAPABILITIES, MAXIMUM_LENGTH, REGISTERS};
use abi_sel4::{MessageInfo, Rights};
use objects::{Capability, Endpoint, Lineage, Notification, Queue, Ref, Slot, Tcb, ThreadState, Words, own};

use crate::invocation::Preempted;
use crate::kernel::Kernel;
use crate::message::{ReceiveMode, SendMode, receive_buffer, send_buffer, sent_capability, word};
use crate::{cspace, derivation};

/// The rights of which a caller needs one for a reply; without any, it becomes inactive once its message is delivered.
pub const MAY_BE_ANSWERED: Rights = Rights::GRANT.union(Rights::GRANT_REPLY);

#[inline]
pub fn enqueue_waiting(queue: &Queue, thread: Ref<Tcb>) {
    let tail = queue.tail.get();
    thread.wait_previous.set(tail);
    thread.wait_next.set(None);
    match tail {
        Some(tail) => tail.wait_next.set(Some(thread)),
        None => queue.head.set(Some(thread)),
    }
    queue.tail.set(Some(thread));
}

#[inline]
fn dequeue_waiting(queue: &Queue, thread: Ref<Tcb>) {
    let (previous, next) = (thread.wait_previous.get(), thread.wait_next.get());
    match previous {
        Some(previous) => previous.wait_next.set(next),
        None => queue.head.set(next),
    }
    match next {
        Some(next) => next.wait_previous.set(previous),
        None => queue.tail.set(previous),
    }
}

/// Gives a thread a reply capability for its caller. The caller's master reply capability has no other child.
#[inline(always)]
pub fn give_reply_right(caller: Ref<Tcb>, receiver: Ref<Tcb>, grant: bool) {
    let (master, place) = (&caller.slots[own::REPLY], &receiver.slots[own::CALLER]);
    place.capability.set(Capability::Reply { caller, master: false, grant });
    place.set_lineage(Lineage::Copy);
    place.previous.set(Some(caller.own_slot(own::REPLY)));
    place.next.set(None);
    master.next.set(Some(receiver.own_slot(own::CALLER)));
}

/// Number of waiting threads that a step of a cancellation looks at.
const STEP: usize = 8;

/// Parameters of sending a message.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// The mode of the sender's system call.
    pub mode: SendMode,
    /// The badge of the sender's capability.
    pub badge: u64,
    /// The rights of the sender's capability.
    pub rights: Rights,
}

impl Kernel {
    /// Sends the message in a thread's registers and IPC buffer, or its fault.
    #[inline]
    pub(crate) fn send_message(&self, sender: Ref<Tcb>, endpoint: Ref<Endpoint>, how: Sending) {
        let waiting = endpoint.queue.head.get();
        let receiver = match waiting {
            Some(receiver) if endpoint.is_sending.get() == 0 => receiver,
            _ => {
                if how.mode.is_blocking() {
                    sender.waits_at.set(Some(endpoint));
                    sender.wait_badge.set(how.badge);
                    sender.wait_rights.set(how.rights.0 | if how.mode.is_call() { Tcb::IS_CALL } else { 0 });
                    endpoint.is_sending.set(1);
                    enqueue_waiting(&endpoint.queue, sender);
                    self.change_state(sender, ThreadState::Sending);
                }
                return;
            }
        };
        dequeue_waiting(&endpoint.queue, receiver);
        self.transfer(sender, Some(endpoint), how.badge, how.rights.contains(Rights::GRANT), receiver);
        let reply_can_grant = Rights(receiver.wait_rights.get()).contains(Rights::GRANT);
        self.change_state(receiver, ThreadState::Running);
        self.make_ready(receiver);
        if how.mode.is_call() {
            self.await_reply(sender, receiver, how.rights, reply_can_grant);
        }
    }

    /// Makes a caller wait for the reply after its call was delivered; without the right to a reply it becomes
    /// inactive.
    #[inline]
    fn await_reply(&self, caller: Ref<Tcb>, receiver: Ref<Tcb>, rights: Rights, grant: bool) {
        if rights.intersects(MAY_BE_ANSWERED) {
            self.change_state(caller, ThreadState::AwaitingReply);
            give_reply_right(caller, receiver, grant);
        } else {
            self.change_state(caller, ThreadState::Inactive);
        }
    }

    /// Receives a message, or waits for one.
    #[inline]
    pub(crate) fn receive_message(&self, thread: Ref<Tcb>, endpoint: Ref<Endpoint>, rights: Rights, mode: ReceiveMode) {
        if let Some(notification) = thread.bound.get()
            && notification.is_active.get() != 0
        {
            return self.take_signals(thread, notification);
        }
        let sender = match endpoint.queue.head.get() {
            Some(sender) if endpoint.is_sending.get() != 0 => sender,
            _ => {
                if mode == ReceiveMode::Blocking {
                    thread.waits_at.set(Some(endpoint));
                    thread.wait_rights.set(rights.0);
                    endpoint.is_sending.set(0);
                    enqueue_waiting(&endpoint.queue, thread);
                    self.change_state(thread, ThreadState::Receiving);
                } else {
                    thread.register::<10>().set(0);
                }
                return;
            }
        };
        self.dequeue_sender(endpoint, sender);
        let sent = sender.wait_rights.get();
        let sender_rights = Rights(sent & Rights::ALL.0);
        self.transfer(sender, Some(endpoint), sender.wait_badge.get(), sender_rights.contains(Rights::GRANT), thread);
        if sent & Tcb::IS_CALL != 0 {
            self.await_reply(sender, thread, sender_rights, rights.contains(Rights::GRANT));
        } else {
            self.change_state(sender, ThreadState::Running);
            self.make_ready(sender);
        }
    }

    /// Replies to a waiting thread; the reply capability is consumed.
    pub(crate) fn reply(&self, sender: Ref<Tcb>, receiver: Ref<Tcb>, slot: Ref<Slot>, grant: bool) {
        debug_assert_eq!(receiver.state(), ThreadState::AwaitingReply);
        if receiver.has_no_fault() {
            self.transfer(sender, None, 0, grant, receiver);
            derivation::remove(slot);
            self.change_state(receiver, ThreadState::Running);
            self.make_ready(receiver);
            return;
        }
        derivation::remove(slot);
        let restarts = self.answer_fault(receiver, sender);
        receiver.clear_fault();
        if restarts {
            self.change_state(receiver, ThreadState::Restarting);
            self.make_ready(receiver);
        } else {
            self.change_state(receiver, ThreadState::Inactive);
        }
    }

    /// Transfers a message, or a fault.
    #[inline]
    fn transfer(&self, sender: Ref<Tcb>, endpoint: Option<Ref<Endpoint>>, badge: u64, grant: bool, receiver: Ref<Tcb>) {
        let words = receive_buffer(receiver);
        if sender.has_no_fault() {
            self.transfer_message(sender, endpoint, badge, grant, receiver, words);
        } else {
            let (label, length) = self.transfer_fault(sender, receiver, words);
            receiver.register::<11>().set(MessageInfo::new(label, 0, length).0);
            receiver.register::<10>().set(badge);
        }
    }

    #[inline]
    fn transfer_message(
        &self,
        sender: Ref<Tcb>,
        endpoint: Option<Ref<Endpoint>>,
        badge: u64,
        grant: bool,
        receiver: Ref<Tcb>,
        to: Option<Ref<Words>>,
    ) {
        let information = MessageInfo(sender.register::<11>().get());
        let mut length = information.length().min(MAXIMUM_LENGTH);
        // Registers first; a message that fits into them and carries no capabilities needs no IPC buffer.
        for index in 0..length.min(REGISTERS) {
            receiver.register_at(12 + index).set(sender.register_at(12 + index).get());
        }
        let (mut moved, mut unwrapped) = (0, 0);
        if length > REGISTERS || information.capabilities() != 0 {
            let from = send_buffer(sender);
            if length > REGISTERS {
                match (from, to) {
                    (Some(from), Some(to)) => {
                        for index in word::MESSAGE + REGISTERS..word::MESSAGE + length {
                            to.set(index, from.get(index));
                        }
                    }
                    _ => length = REGISTERS,
                }
            }
            if let (Some(from), Some(to), true) = (from, to, grant && information.capabilities() != 0) {
                (moved, unwrapped) =
                    transfer_capabilities(sender, from, information.capabilities(), endpoint, receiver, to);
            }
        }
        let answer = MessageInfo::new(information.label(), moved, length).with_unwrapped(unwrapped);
        receiver.register::<11>().set(answer.0);
        receiver.register::<10>().set(badge);
    }

    /// Signals a notification.
    #[inline]
    pub(crate) fn signal(&self, notification: Ref<Notification>, badge: u64) {
        match notification.queue.head.get() {
            Some(waiter) => self.signal_waiter(notification, waiter, badge),
            None => self.signal_without_waiters(notification, badge),
        }
    }

    /// Wakes the first thread that waits for a notification. Out of line, so that the caller has no registers to save.
    #[inline(never)]
    fn signal_waiter(&self, notification: Ref<Notification>, waiter: Ref<Tcb>, badge: u64) {
        dequeue_waiting(&notification.queue, waiter);
        self.change_state(waiter, ThreadState::Running);
        waiter.register::<10>().set(badge);
        self.make_ready_here(waiter);
    }

    /// Signals a notification without waiting threads.
    #[inline]
    fn signal_without_waiters(&self, notification: Ref<Notification>, badge: u64) {
        if notification.is_active.get() == 0 {
            let bound = notification.bound.get();
            if let Some(thread) = bound
                && thread.state() == ThreadState::Receiving
            {
                self.cancel_waiting(thread);
                self.change_state(thread, ThreadState::Running);
                thread.register::<10>().set(badge);
                self.make_ready(thread);
                return;
            }
            notification.is_active.set(1);
            notification.badge.set(badge);
            if let Some(thread) = bound {
                self.interrupt(thread);
            }
        } else {
            notification.badge.set(notification.badge.get() | badge);
        }
    }

    /// Takes the signals of a notification, or waits for them.
    #[inline]
    pub(crate) fn receive_signals(&self, thread: Ref<Tcb>, notification: Ref<Notification>, mode: ReceiveMode) {
        if notification.is_active.get() != 0 {
            self.take_signals(thread, notification);
        } else if mode == ReceiveMode::Blocking {
            thread.waits_for.set(Some(notification));
            enqueue_waiting(&notification.queue, thread);
            self.change_state(thread, ThreadState::AwaitingSignal);
        } else {
            thread.register::<10>().set(0);
        }
    }

    #[inline]
    fn take_signals(&self, thread: Ref<Tcb>, notification: Ref<Notification>) {
        thread.register::<10>().set(notification.take());
    }

    /// Cancels a thread's wait; the thread is inactive afterwards.
    pub(crate) fn cancel_waiting(&self, thread: Ref<Tcb>) {
        match thread.state() {
            ThreadState::Sending | ThreadState::Receiving => {
                if let Some(endpoint) = thread.waits_at.take() {
                    self.dequeue_sender(endpoint, thread);
                }
                thread.clear_fault();
                self.change_state(thread, ThreadState::Inactive);
            }
            ThreadState::AwaitingSignal => {
                if let Some(notification) = thread.waits_for.take() {
                    dequeue_waiting(&notification.queue, thread);
                }
                self.change_state(thread, ThreadState::Inactive);
            }
            ThreadState::AwaitingReply => {
                thread.clear_fault();
                // The reply capability is the only possible child of the thread's master reply capability.
                if let Some(right) = thread.own_slot(own::REPLY).next.get() {
                    derivation::remove(right);
                }
            }
            ThreadState::Inactive | ThreadState::Running | ThreadState::Restarting => {}
        }
    }

    /// Restarts some of the threads of a queue; returns whether the queue is empty afterwards.
    pub(crate) fn release_waiting(&self, queue: &Queue, limit: usize) -> bool {
        for _ in 0..limit {
            let Some(thread) = queue.head.get() else { break };
            self.cancellation.leave_out(thread);
            dequeue_waiting(queue, thread);
            self.begin_again(thread);
        }
        queue.head.get().is_none()
    }

    /// Restarts all threads that wait to send with this badge, in steps.
    pub(crate) fn cancel_badged_sends(&self, endpoint: Ref<Endpoint>, badge: u64) -> Result<(), Preempted> {
        if endpoint.is_sending.get() == 0 {
            return Ok(());
        }
        self.cancellation.begin(endpoint, badge);
        self.choose_anew();
        loop {
            for _ in 0..STEP {
                let Some(thread) = self.cancellation.take() else { return Ok(()) };
                if thread.wait_badge.get() == badge {
                    dequeue_waiting(&endpoint.queue, thread);
                    self.begin_again(thread);
                }
            }
            if self.cancellation.state().is_some() {
                self.look_for_interrupts()?;
            }
        }
    }

    /// Removes a thread that waits to send.
    #[inline]
    fn dequeue_sender(&self, endpoint: Ref<Endpoint>, thread: Ref<Tcb>) {
        self.cancellation.leave_out(thread);
        dequeue_waiting(&endpoint.queue, thread);
    }

    /// Restarts the system call of a thread that waited, or the instruction whose fault was to be sent.
    fn begin_again(&self, thread: Ref<Tcb>) {
        thread.clear_fault();
        thread.waits_at.set(None);
        thread.waits_for.set(None);
        self.change_state(thread, ThreadState::Restarting);
        self.queue_first(thread);
    }

    /// Binds a notification to a thread.
    pub(crate) fn bind(&self, thread: Ref<Tcb>, notification: Ref<Notification>) {
        notification.bound.set(Some(thread));
        thread.bound.set(Some(notification));
    }

    /// Undoes [`bind`](Kernel::bind), from the thread's side.
    pub(crate) fn unbind_thread(&self, thread: Ref<Tcb>) {
        if let Some(notification) = thread.bound.get() {
            let signals = self.give_up_file(thread);
            notification.bound.set(None);
            thread.bound.set(None);
            thread.interrupts.handler.set(0);
            thread.interrupts.hints.set(0);
            if signals != 0 {
                self.signal(notification, signals);
            }
        }
    }

    /// Undoes [`bind`](Kernel::bind), from the notification's side.
    pub(crate) fn unbind_notification(&self, notification: Ref<Notification>) {
        if let Some(thread) = notification.bound.get() {
            // Signals pending in the file are discarded with the notification.
            self.give_up_file(thread);
            notification.bound.set(None);
            thread.bound.set(None);
            thread.interrupts.handler.set(0);
            thread.interrupts.hints.set(0);
        }
    }
}

/// Transfers capabilities; returns the number of transferred capabilities, and a bit for each that was unwrapped to its
/// badge.
fn transfer_capabilities(
    sender: Ref<Tcb>,
    from: Ref<Words>,
    count: usize,
    endpoint: Option<Ref<Endpoint>>,
    receiver: Ref<Tcb>,
    to: Ref<Words>,
) -> (usize, usize) {
    // All lookups must succeed, or no capability is sent.
    let mut slots = [None; MAXIMUM_CAPABILITIES];
    for (index, place) in slots.iter_mut().enumerate().take(count) {
        match cspace::lookup(sender, sent_capability(from, index)) {
            Ok(slot) => *place = Some(slot),
            Err(_) => return (0, 0),
        }
    }
    let mut destination = receive_slot(receiver, to);
    let mut unwrapped = 0;
    for (index, slot) in slots.iter().enumerate().take(count) {
        let Some(slot) = *slot else { return (index, unwrapped) };
        let sent = slot.capability.get();
        match sent {
            Capability::Null => return (index, unwrapped),
            Capability::Endpoint { endpoint: meant, badge, .. } if Some(meant) == endpoint => {
                to.set(word::CAPABILITIES + index, badge);
                unwrapped |= 1 << index;
            }
            _ => {
                let Some(place) = destination.take() else { return (index, unwrapped) };
                match derivation::copy_of(slot, sent) {
                    Ok(Capability::Null) | Err(_) => return (index, unwrapped),
                    Ok(derived) => derivation::insert_derived(derived, slot, place),
                }
            }
        }
    }
    (count, unwrapped)
}

/// Returns the empty slot in which a thread receives a capability.
fn receive_slot(receiver: Ref<Tcb>, buffer: Ref<Words>) -> Option<Ref<Slot>> {
    let root = cspace::lookup(receiver, buffer.get(word::RECEIVE_CNODE)).ok()?.capability.get();
    let (index, depth) = (buffer.get(word::RECEIVE_INDEX), buffer.get(word::RECEIVE_DEPTH));
    cspace::empty_target(root, index, depth).ok()
}
