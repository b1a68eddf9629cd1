//! The slowpath: system calls, and the decoding of messages into invocations.
//!
//! Every invocation is first *decoded*: capability, arguments and the state of all objects are checked, which can fail
//! and changes nothing, and yields a value. Then it is *invoked*, which cannot fail. Long invocations may be
//! *preempted*: the thread then restarts the system call, which continues where it stopped.

use abi_sel4::call::number;
use abi_sel4::configuration::{ERROR_TEXT_START, ERROR_TEXT_WORDS};
use abi_sel4::fault::Phase;
use abi_sel4::message::{MAXIMUM_CAPABILITIES, MAXIMUM_LENGTH, REGISTERS};
use abi_sel4::{FailedLookup, Invocation, InvocationError, MessageInfo, Rights};
use hal_api::{Access, Trap};
use objects::{Capability, Ref, Slot, Tcb, ThreadFault, ThreadState, Words, own, tag};

use crate::boot_words::ErrorText;
use crate::invocation::{Arguments, Done, NUMBERING, Preempted};
use crate::ipc::Sending;
use crate::kernel::Kernel;
use crate::message::{ReceiveMode, SendMode, receive_buffer, send_buffer, sent_capability, set_message_register};
use crate::{cnode, cspace, derivation, domain, fault, interrupt, message, thread, untyped, vspace};

impl Kernel {
    /// Serves a system call of the current thread.
    #[inline(always)]
    pub(crate) fn handle_call(&self, thread: Ref<Tcb>) {
        thread.fault_pc.set(thread.pc().get().wrapping_sub(4));
        self.system_call(thread);
    }

    /// Serves a trap other than a system call.
    #[inline(always)]
    pub(crate) fn handle_other(&self, thread: Ref<Tcb>, trap: Trap) {
        thread.fault_pc.set(thread.pc().get());
        if trap == Trap::Interrupt {
            return self.serve_interrupts();
        }
        // The function gets the fault and not the trap, which would need a place in memory for all other traps, too.
        // The number of ways to send is a word, which needs no masking.
        let ways_to_send = match trap {
            Trap::PageFault { access, .. } => (access == Access::Write).into(),
            Trap::IllegalInstruction { .. } => self.sending_instructions.get(),
            _ => 0,
        };
        if let Some(fault) = fault::of_trap(trap) {
            self.exception(thread, ways_to_send, fault);
        }
    }

    #[inline(always)]
    fn system_call(&self, thread: Ref<Tcb>) {
        let result = match thread.register::<17>().get() {
            number::Call => self.invoke(thread, SendMode::Call),
            number::ReplyRecv => {
                self.reply_to_caller(thread);
                self.receive(thread, ReceiveMode::Blocking);
                Ok(())
            }
            number::Send => self.invoke(thread, SendMode::Blocking),
            number::NBSend => self.invoke(thread, SendMode::NonBlocking),
            number::Recv => {
                self.receive(thread, ReceiveMode::Blocking);
                Ok(())
            }
            number::Reply => {
                self.reply_to_caller(thread);
                Ok(())
            }
            number::Yield => {
                self.yield_turn();
                Ok(())
            }
            number::NBRecv => {
                self.receive(thread, ReceiveMode::NonBlocking);
                Ok(())
            }
            number => {
                self.other_call(thread, number);
                Ok(())
            }
        };
        if let Err(Preempted) = result {
            self.serve_interrupts();
        }
    }

    /// Sends for a thread that has tried it by a store to a sender page, or by an instruction of user interrupts.
    /// Returns whether the thread continues.
    #[cold]
    #[inline(never)]
    fn send_instead(&self, thread: Ref<Tcb>, fault: ThreadFault) -> bool {
        match fault {
            ThreadFault::Memory { address, .. } => self.store_without_page(thread, address),
            // A machine with UIPI brings every illegal instruction here, and the others are faults without delay.
            ThreadFault::User { code: bits, .. } if Trap::is_in_group_of_uipi(bits) => {
                self.complete_refused(thread, bits)
            }
            _ => false,
        }
    }

    /// Serves a fault. If the thread may have tried to send a user interrupt, that is done instead.
    #[inline(never)]
    fn exception(&self, thread: Ref<Tcb>, ways_to_send: u32, fault: ThreadFault) {
        if ways_to_send != 0 && self.send_instead(thread, fault) {
            return;
        }
        if !self.short_fault(thread, fault) {
            self.fault(thread, fault);
        }
    }

    /// Invokes a capability, or sends a message through it.
    #[inline]
    fn invoke(&self, thread: Ref<Tcb>, mode: SendMode) -> Result<(), Preempted> {
        let address = thread.register::<10>().get();
        let information = MessageInfo(thread.register::<11>().get());
        let slot = match cspace::lookup(thread, address) {
            Ok(slot) => slot,
            Err(failure) => {
                if mode.is_blocking() {
                    self.fault(thread, ThreadFault::Capability { address, phase: Phase::Send, failure });
                }
                return Ok(());
            }
        };
        // A message without capabilities to an endpoint needs no decoding.
        if information.capabilities() == 0
            && let Some((endpoint, badge, rights)) = slot.capability.endpoint()
            && rights.contains(Rights::WRITE)
        {
            self.send_message(thread, endpoint, Sending { mode, badge, rights });
            return Ok(());
        }
        // Neither does a signal.
        if information.capabilities() == 0
            && let Some((notification, badge)) = slot.capability.signal()
        {
            self.signal(notification, badge);
            self.answer_success(thread, mode);
            return Ok(());
        }
        let words = send_buffer(thread);
        let mut length = information.length().min(MAXIMUM_LENGTH) as u64;
        let mut capabilities = [None; MAXIMUM_CAPABILITIES];
        if let Some(words) = words {
            for (index, place) in capabilities.iter_mut().enumerate().take(information.capabilities()) {
                let address = sent_capability(words, index);
                match cspace::lookup(thread, address) {
                    Ok(slot) => *place = Some(slot),
                    Err(failure) => {
                        if mode.is_blocking() {
                            self.fault(thread, ThreadFault::Capability { address, phase: Phase::Send, failure });
                        }
                        return Ok(());
                    }
                }
            }
        } else {
            length = length.min(REGISTERS as u64);
        }
        let arguments = Arguments::of_call(thread, words, length, capabilities, mode);
        let invocation = Invocation::from_label(information.label(), NUMBERING);
        // Each kind that is invoked often has a function of its own, which unpacks this kind only.
        match slot.capability.tag() {
            tag::FRAME => self.serve_frame(slot, invocation, &arguments),
            tag::PAGE_TABLE => self.serve_table(slot, invocation, &arguments),
            tag::CNODE => self.serve_cnode(slot, invocation, &arguments),
            tag::UNTYPED => self.serve_untyped(slot, invocation, &arguments),
            tag::THREAD => self.serve_tcb(slot, invocation, &arguments),
            _ => self.serve_object(slot, invocation, &arguments),
        }
    }

    #[inline(always)]
    fn answer_success(&self, thread: Ref<Tcb>, mode: SendMode) {
        if mode.is_call() {
            thread.register::<10>().set(0);
            thread.register::<11>().set(0);
        }
    }

    /// Answers with an error, or returns the decoded invocation.
    #[inline(always)]
    fn accept<Call>(&self, arguments: &Arguments, decoded: Result<Call, InvocationError>) -> Option<Call> {
        match decoded {
            Ok(call) => {
                // During the invocation the thread's state is to restart the call.
                arguments.thread().set_state_word(ThreadState::Restarting);
                Some(call)
            }
            Err(error) => {
                self.answer_error(arguments.thread(), error, arguments.mode());
                None
            }
        }
    }

    /// Answers after an invocation was performed.
    #[inline(always)]
    fn complete(&self, arguments: &Arguments, done: Done) {
        let thread = arguments.thread();
        // The call may have stopped the thread that made it.
        if thread.state() == ThreadState::Restarting {
            if arguments.is_call() {
                let length = match done {
                    Done::Plain => 0,
                    Done::Answer { length } => length,
                };
                thread.register::<10>().set(0);
                thread.register::<11>().set(MessageInfo::new(0, 0, length).0);
            }
            thread.set_state_word(ThreadState::Running);
        }
    }

    /// Answers with an error, or performs the decoded invocation and answers.
    #[inline(always)]
    fn carry_out<Call>(
        &self,
        arguments: &Arguments,
        decoded: Result<Call, InvocationError>,
        invoke: impl FnOnce(Call) -> Result<Done, Preempted>,
    ) -> Result<(), Preempted> {
        if let Some(call) = self.accept(arguments, decoded) {
            let done = invoke(call)?;
            self.complete(arguments, done);
        }
        Ok(())
    }

    /// Decodes an invocation of a frame and performs it. All functions named `serve` do both, for one kind of
    /// capability; those named `invoke`, in the modules of the objects, perform a decoded invocation.
    #[inline(always)]
    pub(crate) fn serve_frame(
        &self,
        slot: Ref<Slot>,
        invocation: Option<Invocation>,
        arguments: &Arguments,
    ) -> Result<(), Preempted> {
        let decoded = self.decode_frame(invocation, slot.capability.get_here(), arguments);
        // Not through a closure, which would not be inlined.
        if let Some(call) = self.accept(arguments, decoded) {
            let done = self.invoke_vspace(slot, call, arguments)?;
            self.complete(arguments, done);
        }
        Ok(())
    }

    /// Decodes an invocation of a page table and performs it.
    #[inline(never)]
    pub(crate) fn serve_table(
        &self,
        slot: Ref<Slot>,
        invocation: Option<Invocation>,
        arguments: &Arguments,
    ) -> Result<(), Preempted> {
        if invocation == Some(Invocation::PageTableMapSender) {
            return self.serve_sender(slot, arguments);
        }
        let decoded = match slot.capability.get_here() {
            Capability::PageTable { table, mapping } => self.decode_table(invocation, slot, table, mapping, arguments),
            _ => Err(InvocationError::InvalidCapability(0)),
        };
        self.carry_out(arguments, decoded, |call| self.invoke_vspace(slot, call, arguments))
    }

    /// Decodes the mapping of a sender of user interrupts and performs it.
    #[cold]
    #[inline(never)]
    fn serve_sender(&self, slot: Ref<Slot>, arguments: &Arguments) -> Result<(), Preempted> {
        let decoded = self.decode_sender(slot, arguments);
        self.carry_out(arguments, decoded, |new| {
            let index = self.set_sender(new);
            if arguments.is_call() {
                set_message_register(arguments.thread(), None, 0, index.into());
                return Ok(Done::Answer { length: 1 });
            }
            Ok(Done::Plain)
        })
    }

    /// Decodes an invocation of a CNode and performs it.
    #[inline(never)]
    pub(crate) fn serve_cnode(
        &self,
        slot: Ref<Slot>,
        invocation: Option<Invocation>,
        arguments: &Arguments,
    ) -> Result<(), Preempted> {
        let decoded = cnode::decode_cnode(invocation, slot.capability.get(), arguments);
        self.carry_out(arguments, decoded, |call| self.invoke_cnode(call).map(|()| Done::Plain))
    }

    /// Decodes an invocation of untyped memory and performs it.
    #[inline(never)]
    pub(crate) fn serve_untyped(
        &self,
        slot: Ref<Slot>,
        invocation: Option<Invocation>,
        arguments: &Arguments,
    ) -> Result<(), Preempted> {
        let decoded = match invocation {
            Some(Invocation::UntypedRetype) => untyped::decode_untyped(slot, slot.capability.get_here(), arguments),
            _ => Err(InvocationError::IllegalOperation),
        };
        if let Some(call) = self.accept(arguments, decoded) {
            self.invoke_untyped(call)?;
            self.complete(arguments, Done::Plain);
        }
        Ok(())
    }

    /// Decodes an invocation of a thread and performs it.
    #[inline(never)]
    pub(crate) fn serve_tcb(
        &self,
        slot: Ref<Slot>,
        invocation: Option<Invocation>,
        arguments: &Arguments,
    ) -> Result<(), Preempted> {
        let Capability::Thread { tcb } = slot.capability.get_here() else { return Ok(()) };
        let decoded = self.decode_thread(invocation, tcb, arguments);
        self.carry_out(arguments, decoded, |call| self.invoke_thread(tcb, slot, call, arguments))
    }

    /// Serves all other kinds of capabilities.
    #[inline(never)]
    fn serve_object(
        &self,
        slot: Ref<Slot>,
        invocation: Option<Invocation>,
        arguments: &Arguments,
    ) -> Result<(), Preempted> {
        let (thread, mode) = (arguments.thread(), arguments.mode());
        match slot.capability.get_here() {
            Capability::Endpoint { endpoint, badge, rights } if rights.contains(Rights::WRITE) => {
                self.send_message(thread, endpoint, Sending { mode, badge, rights });
                Ok(())
            }
            Capability::Notification { notification, badge, rights, .. } if rights.contains(Rights::WRITE) => {
                self.signal(notification, badge);
                self.answer_success(thread, mode);
                Ok(())
            }
            Capability::Reply { caller, master: false, grant } => {
                self.reply(thread, caller, slot, grant);
                self.answer_success(thread, mode);
                Ok(())
            }
            Capability::IrqControl => {
                let decoded = self.decode_irq_control(invocation, slot, arguments);
                self.carry_out(arguments, decoded, |call| self.invoke_irq(call))
            }
            Capability::IrqHandler { irq } => {
                let decoded = self.decode_irq_handler(invocation, irq, arguments);
                self.carry_out(arguments, decoded, |call| self.invoke_irq(call))
            }
            Capability::Domain => {
                let decoded = self.decode_domain(invocation, arguments);
                self.carry_out(arguments, decoded, |call| Ok(self.invoke_domain(call)))
            }
            Capability::AsidControl => {
                let decoded = self.decode_asid_control(invocation, arguments);
                self.carry_out(arguments, decoded, |call| self.invoke_vspace(slot, call, arguments))
            }
            Capability::AsidPool { pool, base } => {
                let decoded = self.decode_asid_pool(invocation, pool, base, arguments);
                self.carry_out(arguments, decoded, |call| self.invoke_vspace(slot, call, arguments))
            }
            _ => {
                self.answer_error(thread, InvocationError::InvalidCapability(0), mode);
                Ok(())
            }
        }
    }

    #[cold]
    fn answer_error(&self, thread: Ref<Tcb>, error: InvocationError, mode: SendMode) {
        if mode.is_call() {
            let (words, count) = error.to_words();
            let place = receive_buffer(thread);
            if self.error_text.get() == ErrorText::On
                && let Some(place) = place
            {
                write_error_text(thread, place, error);
            }
            let mut length = 0;
            for (index, &word) in words.iter().enumerate().take(count) {
                if set_message_register(thread, place, index, word) {
                    length += 1;
                }
            }
            thread.register::<10>().set(0);
            thread.register::<11>().set(MessageInfo::new(error.kind().number() as u64, 0, length).0);
        }
    }

    #[inline]
    fn reply_to_caller(&self, thread: Ref<Tcb>) {
        if let Some((caller, grant)) = thread.slots[own::CALLER].capability.reply() {
            self.reply_with_own_right(thread, caller, grant);
        }
    }

    /// Replies with the thread's own reply capability. Out of line, so that the slot is computed only when it is
    /// needed.
    #[inline(never)]
    fn reply_with_own_right(&self, thread: Ref<Tcb>, caller: Ref<Tcb>, grant: bool) {
        self.reply(thread, caller, thread.own_slot(own::CALLER), grant);
    }

    /// Waits for a message or a signal.
    #[inline]
    fn receive(&self, thread: Ref<Tcb>, mode: ReceiveMode) {
        let address = thread.register::<10>().get();
        let failure = match cspace::lookup(thread, address) {
            Ok(slot) => match slot.capability.get_here() {
                Capability::Endpoint { endpoint, rights, .. } if rights.contains(Rights::READ) => {
                    // The reply capability for the last caller is lost now.
                    let caller = thread.own_slot(own::CALLER);
                    if !caller.is_empty() {
                        derivation::remove(caller);
                    }
                    return self.receive_message(thread, endpoint, rights, mode);
                }
                Capability::Notification { notification, rights, .. }
                    if rights.contains(Rights::READ)
                        && notification.bound.get().is_none_or(|bound| bound == thread) =>
                {
                    return self.receive_signals(thread, notification, mode);
                }
                _ => FailedLookup::MissingCapability { bits_left: 0 },
            },
            Err(failure) => failure,
        };
        self.fault(thread, ThreadFault::Capability { address, phase: Phase::Receive, failure });
    }

    /// Signals a notification, then waits for a message or a signal.
    #[inline]
    fn signal_and_receive(&self, thread: Ref<Tcb>) {
        if self.short_signal_receive(thread).is_some() {
            return;
        }
        let target = cspace::lookup(thread, thread.register::<11>().get()).ok();
        if let Some((notification, badge)) = target.and_then(|slot| slot.capability.signal()) {
            self.signal(notification, badge);
        }
        self.receive(thread, ReceiveMode::Blocking);
    }

    /// Serves system calls beyond seL4's eight, which the match above distinguishes.
    #[inline(never)]
    fn other_call(&self, thread: Ref<Tcb>, number: u64) {
        if number == number::SignalRecv {
            return self.signal_and_receive(thread);
        }
        if number == number::WakeSyscallHandler {
            let is_there = self.wake_handler(thread);
            return thread.register::<10>().set(u64::from(!is_there));
        }
        if number == number::ReturnFromUserInterrupt && self.return_from_interrupt(thread) {
            return;
        }
        self.debug_call(thread, number);
    }

    /// Serves all pending interrupts.
    pub(crate) fn serve_interrupts(&self) {
        let pending = platform::machine::pending();
        if pending.timer {
            self.timer_interrupt();
        }
        if pending.ipi {
            platform::machine::clear_ipi();
            self.choose_anew();
        }
        if pending.guest {
            self.serve_files();
        }
        if pending.external
            && let Some(irq) = crate::machine::take_irq()
        {
            self.device_interrupt(irq);
        }
    }

    /// Serves as preemption point between two steps of a long operation: the operation stops if an interrupt is pending
    /// or a hart waits for the lock. The check is a few instructions, and each step before it is progress that is not
    /// lost.
    #[inline]
    pub(crate) fn look_for_interrupts(&self) -> Result<(), Preempted> {
        if self.must_stop() { Err(Preempted) } else { Ok(()) }
    }

    /// Returns whether a long operation must stop for an interrupt or for a hart that waits for the lock.
    #[inline(always)]
    pub(crate) fn must_stop(&self) -> bool {
        !platform::machine::pending().is_empty() || self.others_wait()
    }
}

/// Writes the text of an error to the IPC buffer of the invoking thread, with a final NUL, at the place where seL4's
/// library reads it.
#[cold]
#[inline(never)]
fn write_error_text(thread: Ref<Tcb>, place: Ref<Words>, error: InvocationError) {
    let mut text: heapless::Vec<u8, { ERROR_TEXT_WORDS * size_of::<u64>() }> = heapless::Vec::new();
    let label = MessageInfo(thread.register::<11>().get()).label();
    let name = Invocation::from_label(label, NUMBERING).map_or("an unknown invocation", Invocation::name);
    let mut add = |part: &str| {
        let room = text.capacity() - 1 - text.len();
        let _ = text.extend_from_slice(&part.as_bytes()[..part.len().min(room)]);
    };
    add(name);
    add(": ");
    add(error.kind().name());
    let _ = text.push(0);
    for (index, bytes) in text.chunks(size_of::<u64>()).enumerate() {
        let mut word = [0; size_of::<u64>()];
        word[..bytes.len()].copy_from_slice(bytes);
        place.set(message::word::MESSAGE + ERROR_TEXT_START + index, u64::from_le_bytes(word));
    }
}

/// Limits the size of decoded invocations, which are on the stack of every system call that decodes.
const _: () = {
    assert!(size_of::<vspace::VSpaceCall>() <= 128);
    assert!(size_of::<thread::ThreadCall>() <= 256);
    assert!(size_of::<interrupt::IrqCall>() <= 128);
    assert!(size_of::<domain::DomainCall>() <= 64);
};
