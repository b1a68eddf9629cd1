//! Notifications as user interrupts: a signal interrupts a running thread.
//!
//! A thread with a bound notification can have a *handler*. A signal that arrives while the thread neither waits for it
//! nor is stopped makes the thread continue in the handler, as if the handler had been called between two instructions.
//! As binding requires, a thread has one notification and a notification one thread. A sender needs only a capability,
//! whose badge the handler receives; revoking or deleting the capability ends the right to send at once. Signals that
//! are not taken stay in the notification's word, on whichever hart the thread is and whether or not it runs: either
//! the handler or the thread's next wait takes each signal, once.
//!
//! # The handler's contract
//!
//! The handler finds the badge in `a0` and the address of the interrupted instruction in `a7`; all other registers are
//! the interrupted code's, including the stack pointer. The kernel saves `a0` and `a7`, and accesses none of the
//! program's memory. `ReturnFromUserInterrupt` restores them and continues at the address that the handler passes, so
//! that the handler can restart a sequence that must not be interrupted. The handler itself is not interrupted: signals
//! that arrive meanwhile are delivered when it has returned. A thread may block in its handler as usual.
//!
//! # Delivery
//!
//! A thread can be interrupted only when its registers are complete: just before a hart enters it. Such a thread is
//! marked by an invalid cached address space (SPACE-EPOCH): the hart then has to look the space up, and delivers
//! pending signals (`Kernel::find_space`). So the fastpath contains no check for user interrupts. A thread that runs on
//! another hart is first stopped there; a system call that it was about to make is restarted after the handler.
//!
//! A thread with hints can also be interrupted without the kernel, in a second handler (`user_interrupt_imsic`,
//! `user_interrupt_uintc`). The two handlers may interrupt each other.
//!
//! # Rate limit
//!
//! A sender must not be able to stop the receiver's progress, for which with several harts a loop around a signal would
//! suffice. Between two ticks of its hart a thread is interrupted at most [`DELIVERIES`] times. Further signals stay in
//! the notification's word until the next tick or the thread's next wait.

use abi_sel4::{InvocationError, Rights};
use objects::{Capability, OwnInterrupts, Ref, Space, Tcb};

use crate::invocation::Arguments;
use crate::kernel::Kernel;
use crate::machine;
use crate::node::Next;
use crate::user_interrupt_imsic::HINTS;

/// The largest number of interrupts of a thread between two ticks.
const DELIVERIES: u64 = 256;

/// The way in which hints arrive on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// As signals, like all other bits.
    Signals,
    /// As stores to a sender page (`user_interrupt_imsic`).
    Stores,
    /// As instructions that send through a sender table (`user_interrupt_uintc`).
    Instructions,
}

impl Arrival {
    /// Returns the number of the way for programs.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Arrival::Signals => 0,
            Arrival::Stores => 1,
            Arrival::Instructions => 2,
        }
    }
}

/// A checked registration.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Address of the handler; 0 ends an earlier registration.
    handler: u64,
    /// Bits of badges that may arrive as stores.
    hints: u64,
    /// Address of the handler for these.
    vector: u64,
}

/// Checks a registration.
pub fn decode(thread: Ref<Tcb>, arguments: &Arguments) -> Result<Registration, InvocationError> {
    let [handler] = arguments.at_least::<1>()?;
    if handler == 0 {
        return Ok(Registration { handler, hints: 0, vector: 0 });
    }
    let [_, hints, vector] = arguments.at_least::<3>()?;
    if !handler.is_multiple_of(2) || !vector.is_multiple_of(4) {
        return Err(InvocationError::AlignmentError);
    }
    let registration = Registration { handler, hints: hints & HINTS, vector };
    match arguments.capability(0)?.capability.get() {
        Capability::Notification { notification, rights, .. } if rights.contains(Rights::READ) => {
            if thread.bound.get() == Some(notification) {
                Ok(registration)
            } else {
                Err(InvocationError::IllegalOperation)
            }
        }
        _ => Err(InvocationError::InvalidCapability(1)),
    }
}

impl Kernel {
    /// Returns the way in which hints arrive on this machine.
    pub(crate) fn arrival(&self) -> Arrival {
        if self.interrupt_slots.exist() {
            Arrival::Instructions
        } else if machine::guest_files() > 0 {
            Arrival::Stores
        } else {
            Arrival::Signals
        }
    }

    /// Sets or removes a thread's handler; a handler that runs continues and can return. Returns the number of system
    /// calls and faults of the thread since the last call, counted while it is virtualised.
    pub(crate) fn set_interrupts(&self, thread: Ref<Tcb>, registration: Registration) -> u64 {
        let interrupts = &thread.interrupts;
        self.deactivate(thread);
        interrupts.handler.set(registration.handler);
        let own = match self.arrival() {
            Arrival::Signals => None,
            Arrival::Stores => Some(OwnInterrupts::Virtualised),
            Arrival::Instructions => Some(OwnInterrupts::Armed),
        };
        interrupts.hints.set(if own.is_some() { registration.hints } else { 0 });
        if let Some(own) = own.filter(|_| registration.hints != 0) {
            self.stop_elsewhere(thread);
            thread.forget_space();
            self.nodes[self.node_of(thread)].prepare_anew(thread);
            thread.take_own_interrupts(own, registration.vector);
        }
        self.interrupt_if_signalled(thread);
        interrupts.entries.take()
    }

    /// Prepares this hart to enter a thread with interrupts of its own.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter_prepared(&self, thread: Ref<Tcb>, space: Space) -> Next {
        match thread.interrupts.own() {
            Some(OwnInterrupts::Armed) => self.enter_armed(thread, space),
            _ => self.enter_virtualised(thread, space),
        }
    }

    /// Records that a thread has left its handler, for any reason; pending signals interrupt it.
    #[inline]
    pub(crate) fn leave_handler(&self, thread: Ref<Tcb>) {
        thread.interrupts.set_in_handler(false);
        self.interrupt_if_signalled(thread);
    }

    /// Records that a thread has left both handlers, because it continues at another address.
    #[inline]
    pub(crate) fn leave_handlers(&self, thread: Ref<Tcb>) {
        thread.enable_own_interrupts();
        self.leave_handler(thread);
    }

    #[inline]
    pub(crate) fn interrupt_if_signalled(&self, thread: Ref<Tcb>) {
        if thread.bound.get().is_some_and(|notification| notification.is_active.get() != 0) {
            self.interrupt(thread);
        }
    }

    /// Interrupts a thread, for which a signal has arrived that it does not wait for: if it has a handler, the handler
    /// is entered before the thread continues.
    #[cold]
    #[inline(never)]
    pub(crate) fn interrupt(&self, thread: Ref<Tcb>) {
        let interrupts = &thread.interrupts;
        if interrupts.handler.get() == 0 || interrupts.is_in_handler() {
            return;
        }
        thread.forget_space();
        if self.was_interrupted_enough(thread) {
            return;
        }
        self.stop_elsewhere(thread);
        self.node().prepare_anew(thread);
    }

    /// Returns whether a thread's next interrupt must wait for a tick of its hart.
    fn was_interrupted_enough(&self, thread: Ref<Tcb>) -> bool {
        let interrupts = &thread.interrupts;
        let next_tick = self.nodes[self.node_of(thread)].next_tick.get();
        interrupts.stretch.get() == next_tick && interrupts.deliveries.get() >= DELIVERIES
    }

    /// Delivers signals that had to wait for a tick.
    pub(crate) fn interrupt_after_tick(&self) {
        if let Some(current) = self.node().current.get()
            && current.interrupts.handler.get() != 0
        {
            self.interrupt_if_signalled(current);
        }
    }

    /// Makes a thread that is about to be entered continue in its handler if a signal is pending. Returns `false` if
    /// the check must be repeated before the next signal.
    pub(crate) fn deliver_interrupt(&self, thread: Ref<Tcb>) -> bool {
        let interrupts = &thread.interrupts;
        if interrupts.handler.get() == 0 || interrupts.is_in_handler() {
            return true;
        }
        let Some(notification) = thread.bound.get().filter(|notification| notification.is_active.get() != 0) else {
            return true;
        };
        if self.was_interrupted_enough(thread) {
            return false;
        }
        let next_tick = self.node().next_tick.get();
        if interrupts.stretch.replace(next_tick) != next_tick {
            interrupts.deliveries.set(0);
        }
        interrupts.deliveries.set(interrupts.deliveries.get() + 1);
        let pc = thread.pc().get();
        interrupts.interrupted.set([thread.register::<10>().get(), thread.register::<17>().get()]);
        interrupts.set_in_handler(true);
        thread.register::<10>().set(notification.take());
        thread.register::<17>().set(pc);
        thread.pc().set(interrupts.handler.get());
        true
    }

    /// Performs the system call that ends a handler; returns whether the thread is in one.
    pub(crate) fn return_from_interrupt(&self, thread: Ref<Tcb>) -> bool {
        let interrupts = &thread.interrupts;
        if !interrupts.is_in_handler() {
            return false;
        }
        let [a0, a7] = interrupts.interrupted.get();
        // The address needs no check: a wrong address faults in the program.
        thread.pc().set(thread.register::<10>().get() & !1);
        thread.register::<10>().set(a0);
        thread.register::<17>().set(a7);
        self.leave_handler(thread);
        true
    }
}
