//! Notifications as user interrupts: a thread that runs is told of a signal without asking.
//!
//! A thread to which a notification is bound can have a *handler*. A signal that comes while the thread neither waits
//! for it nor is stopped makes it go on in the handler, as if that had been called between two instructions. So one
//! thread has one notification and the other way round, as binding has it; and a sender has nothing but its capability,
//! whose badge says what the handler is told: revoking or deleting it ends the right to send at once. What nobody has
//! taken stays in the notification's word, wherever the thread is and whether it runs: the handler gets it, or the
//! thread itself when it waits, whoever looks first, and once.
//!
//! # The handler's contract
//!
//! It finds the badge in `a0` and where the thread was interrupted in `a7`; all other registers are the interrupted
//! code's, the stack pointer too. The kernel keeps `a0` and `a7`, and touches none of the program's memory.
//! `ReturnFromUserInterrupt` puts them back and goes on where the handler says, which is how it makes a sequence that
//! must not be interrupted begin again. There is no interrupt in the handler: what comes meanwhile comes when it has
//! returned. A thread that blocks in its handler waits as ever.
//!
//! # When
//!
//! A thread can be interrupted only when its registers are complete: just before a hart enters it. What marks it is
//! that its address space is not noted (SPACE-EPOCH): the hart then has to look for it, and delivers what there is
//! (`Kernel::find_space`). So nothing on the fastpaths asks for interrupts. A thread that runs on another hart is
//! taken away from there first; a system call that it was about to make is made again after the handler.
//!
//! A thread with hints can be interrupted without the kernel, too, in a handler of its own (`interrupt_file`). The two
//! may interrupt each other.
//!
//! # How often
//!
//! Who may signal must not keep the receiver from all else, which with several harts would need no more than a loop
//! around a signal. Between two ticks of its hart a thread is interrupted [`DELIVERIES`] times. What comes then waits
//! in the notification's word, for the next tick or for the thread to look.

use abi_sel4::{InvocationError, Rights};
use hal_api::Virtualisation as _;
use objects::{Capability, Ref, Tcb};
use platform::Machine;

use crate::interrupt_file::HINTS;
use crate::invocation::Arguments;
use crate::kernel::Kernel;

/// How often a thread is interrupted between two ticks.
const DELIVERIES: u64 = 256;

/// A checked registration.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// The handler's address; 0 for the end of an earlier registration.
    handler: u64,
    /// Bits of badges that may come as stores.
    hints: u64,
    /// Where the thread takes these.
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
    /// Gives a thread a handler, or takes it away; one that runs goes on and can return. Gives the system calls and
    /// faults that the thread has made since it is virtualised.
    pub(crate) fn set_interrupts(&self, thread: Ref<Tcb>, registration: Registration) -> u64 {
        let interrupts = &thread.interrupts;
        self.deactivate(thread);
        interrupts.handler.set(registration.handler);
        let hints = if Machine::guest_files() > 0 { registration.hints } else { 0 };
        interrupts.hints.set(hints);
        if hints != 0 {
            self.stop_elsewhere(thread);
            thread.forget_space();
            let node = &self.nodes[self.node_of(thread)];
            if node.entered.get() == Some(thread) {
                node.entered.set(None);
            }
            thread.take_own_interrupts(registration.vector);
            interrupts.set_virtualised();
        }
        self.interrupt_if_signalled(thread);
        interrupts.entries.take()
    }

    /// A thread is in no handler any more, however that came: what has come meanwhile interrupts it.
    pub(crate) fn leave_handler(&self, thread: Ref<Tcb>) {
        thread.interrupts.set_in_handler(false);
        self.interrupt_if_signalled(thread);
    }

    /// The same for a thread that goes on somewhere else, which has left the handler that it has without the kernel,
    /// too.
    pub(crate) fn leave_handlers(&self, thread: Ref<Tcb>) {
        if thread.interrupts.is_virtualised() {
            thread.enable_own_interrupts();
        }
        self.leave_handler(thread);
    }

    fn interrupt_if_signalled(&self, thread: Ref<Tcb>) {
        if thread.bound.get().is_some_and(|notification| notification.is_active.get() != 0) {
            self.interrupt(thread);
        }
    }

    /// A signal has come for a thread that does not wait for it: if it has a handler, that is entered before the thread
    /// goes on.
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
        let node = self.node();
        if node.entered.get() == Some(thread) {
            node.entered.set(None);
        }
    }

    /// Whether a thread's next interrupt has to wait for a tick of its hart.
    fn was_interrupted_enough(&self, thread: Ref<Tcb>) -> bool {
        let interrupts = &thread.interrupts;
        let next_tick = self.nodes[self.node_of(thread)].next_tick.get();
        interrupts.stretch.get() == next_tick && interrupts.deliveries.get() >= DELIVERIES
    }

    /// After a tick: what had to wait for it waits no longer.
    pub(crate) fn interrupt_after_tick(&self) {
        if let Some(current) = self.node().current.get()
            && current.interrupts.handler.get() != 0
        {
            self.interrupt_if_signalled(current);
        }
    }

    /// Makes a thread, which is about to be entered, go on in its handler if there is something for it. Says whether
    /// that needs not be asked again until the next signal.
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

    /// The system call that ends a handler; says whether the thread is in one.
    pub(crate) fn return_from_interrupt(&self, thread: Ref<Tcb>) -> bool {
        let interrupts = &thread.interrupts;
        if !interrupts.is_in_handler() {
            return false;
        }
        let [a0, a7] = interrupts.interrupted.get();
        // Whatever the address is: a wrong one faults in the program.
        thread.pc().set(thread.register::<10>().get() & !1);
        thread.register::<10>().set(a0);
        thread.register::<17>().set(a7);
        self.leave_handler(thread);
        true
    }
}
