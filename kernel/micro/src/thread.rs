//! Invocations of threads.

use abi_sel4::object::IPC_BUFFER_BITS;
use abi_sel4::registers::FRAME_COUNT;
use abi_sel4::{Invocation, InvocationError, Rights, message, registers};
use objects::{
    Capability, FloatingPointUse, Lineage, Notification, OwnInterrupts, Ref, Slot, Space, Tcb, ThreadState, own,
};
use platform::Machine;

use crate::capability::Badges;
use crate::invocation::{Arguments, Done, Preempted};
use crate::kernel::{EPOCH, Kernel};
use crate::message::{receive_buffer, set_message_register};
use crate::{asynchronous, capability, derivation, user_interrupt};

/// Number of registers in messages, including `pc`, as a message word for comparisons.
const REGISTERS: u64 = registers::COUNT as u64;

/// A checked capability for one of a thread's own slots.
#[derive(Clone, Copy, Debug)]
pub struct Installed {
    capability: Capability,
    source: Ref<Slot>,
}

/// A checked IPC buffer for a thread.
#[derive(Clone, Copy, Debug)]
pub struct NewBuffer {
    address: u64,
    frame: Option<Installed>,
}

/// A decoded invocation.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are the invocations' own")]
pub enum ThreadCall {
    ReadRegisters { flags: u64, count: u64 },
    WriteRegisters { flags: u64, count: u64 },
    CopyRegisters { flags: u64, source: Ref<Tcb> },
    SetSpace { fault_handler: u64, cspace: Installed, vspace: Installed, buffer: Option<NewBuffer> },
    SetBuffer { buffer: NewBuffer },
    SetPriority { priority: Option<u8>, maximum: Option<u8> },
    Suspend,
    Resume,
    Bind { notification: Ref<Notification> },
    Unbind,
    SetAffinity { node: u8 },
    SetThreadPointer { value: u64 },
    SetFlags { clear: u64, set: u64 },
    RegisterAsyncSyscall { handler: Option<asynchronous::NewHandler> },
    RegisterUserInterrupts { registration: user_interrupt::Registration },
}

impl Kernel {
    /// Decodes an invocation of a thread.
    pub(crate) fn decode_thread(
        &self,
        invocation: Option<Invocation>,
        tcb: Ref<Tcb>,
        arguments: &Arguments,
    ) -> Result<ThreadCall, InvocationError> {
        use Invocation::*;
        match invocation {
            Some(TcbReadRegisters) => self.decode_read(tcb, arguments),
            Some(TcbWriteRegisters) => self.decode_write(tcb, arguments),
            Some(TcbCopyRegisters) => decode_copy(arguments),
            Some(TcbConfigure) => self.decode_configure(tcb, arguments),
            Some(TcbSetSpace) => self.decode_set_space(tcb, arguments),
            Some(TcbSetIPCBuffer) => {
                let [address] = arguments.at_least::<1>()?;
                Ok(ThreadCall::SetBuffer { buffer: decode_buffer(address, arguments.capability(0)?)? })
            }
            Some(invocation @ (TcbSetPriority | TcbSetMCPriority | TcbSetSchedParams)) => {
                decode_priorities(invocation, arguments)
            }
            Some(TcbSuspend) => Ok(ThreadCall::Suspend),
            Some(TcbResume) => Ok(ThreadCall::Resume),
            Some(TcbBindNotification) => decode_bind(tcb, arguments),
            Some(TcbUnbindNotification) if tcb.bound.get().is_some() => Ok(ThreadCall::Unbind),
            Some(TcbSetAffinity) => {
                let [node] = arguments.at_least::<1>()?;
                if node >= self.node_count.get() as u64 {
                    return Err(InvocationError::IllegalOperation);
                }
                Ok(ThreadCall::SetAffinity { node: node as u8 })
            }
            Some(TcbSetTLSBase) => {
                let [value] = arguments.at_least::<1>()?;
                Ok(ThreadCall::SetThreadPointer { value })
            }
            Some(TcbSetFlags) => {
                let [clear, set] = arguments.at_least::<2>()?;
                Ok(ThreadCall::SetFlags { clear, set })
            }
            Some(TcbRegisterAsyncSyscall) => {
                Ok(ThreadCall::RegisterAsyncSyscall { handler: asynchronous::decode(arguments)? })
            }
            Some(TcbRegisterUserInterrupts) => {
                Ok(ThreadCall::RegisterUserInterrupts { registration: user_interrupt::decode(tcb, arguments)? })
            }
            _ => Err(InvocationError::IllegalOperation),
        }
    }

    fn decode_read(&self, tcb: Ref<Tcb>, arguments: &Arguments) -> Result<ThreadCall, InvocationError> {
        let [flags, count] = arguments.at_least::<2>()?;
        if !(1..=REGISTERS).contains(&count) {
            return Err(InvocationError::RangeError { minimum: 1, maximum: REGISTERS });
        }
        if self.node().current.get() == Some(tcb) {
            return Err(InvocationError::IllegalOperation);
        }
        Ok(ThreadCall::ReadRegisters { flags, count })
    }

    fn decode_write(&self, tcb: Ref<Tcb>, arguments: &Arguments) -> Result<ThreadCall, InvocationError> {
        let [flags, count] = arguments.at_least::<2>()?;
        if arguments.length() - 2 < count {
            return Err(InvocationError::TruncatedMessage);
        }
        if self.node().current.get() == Some(tcb) {
            return Err(InvocationError::IllegalOperation);
        }
        Ok(ThreadCall::WriteRegisters { flags, count })
    }

    fn decode_configure(&self, tcb: Ref<Tcb>, arguments: &Arguments) -> Result<ThreadCall, InvocationError> {
        let [fault_handler, cspace_data, vspace_data, address] = arguments.at_least::<4>()?;
        let cspace = arguments.capability(0)?;
        let vspace = arguments.capability(1)?;
        let frame = arguments.capability(2)?;
        let buffer = decode_buffer(address, frame)?;
        let (cspace, vspace) = self.decode_space(tcb, cspace, cspace_data, vspace, vspace_data)?;
        Ok(ThreadCall::SetSpace { fault_handler, cspace, vspace, buffer: Some(buffer) })
    }

    fn decode_set_space(&self, tcb: Ref<Tcb>, arguments: &Arguments) -> Result<ThreadCall, InvocationError> {
        let [fault_handler, cspace_data, vspace_data] = arguments.at_least::<3>()?;
        let (cspace, vspace) = (arguments.capability(0)?, arguments.capability(1)?);
        let (cspace, vspace) = self.decode_space(tcb, cspace, cspace_data, vspace, vspace_data)?;
        Ok(ThreadCall::SetSpace { fault_handler, cspace, vspace, buffer: None })
    }

    fn decode_space(
        &self,
        tcb: Ref<Tcb>,
        cspace: Ref<Slot>,
        cspace_data: u64,
        vspace: Ref<Slot>,
        vspace_data: u64,
    ) -> Result<(Installed, Installed), InvocationError> {
        if self.may_take_steps(tcb.own_slot(own::CSPACE)) || self.may_take_steps(tcb.own_slot(own::VSPACE)) {
            return Err(InvocationError::IllegalOperation);
        }
        let changed = |slot: Ref<Slot>, data| match data {
            0 => slot.capability.get(),
            _ => capability::with_data(Badges::Set, data, slot.capability.get()),
        };
        let root = derivation::copy_of(cspace, changed(cspace, cspace_data))?;
        if !matches!(root, Capability::CNode { .. }) {
            return Err(InvocationError::IllegalOperation);
        }
        let table = derivation::copy_of(vspace, changed(vspace, vspace_data))?;
        if !matches!(table, Capability::PageTable { mapping: Some(_), .. }) {
            return Err(InvocationError::IllegalOperation);
        }
        Ok((Installed { capability: root, source: cspace }, Installed { capability: table, source: vspace }))
    }

    /// Performs a decoded invocation.
    pub(crate) fn invoke_thread(
        &self,
        tcb: Ref<Tcb>,
        slot: Ref<Slot>,
        call: ThreadCall,
        arguments: &Arguments,
    ) -> Result<Done, Preempted> {
        match call {
            ThreadCall::ReadRegisters { flags, count } => return Ok(self.read_registers(tcb, flags, count, arguments)),
            ThreadCall::WriteRegisters { flags, count } => self.write_registers(tcb, flags, count, arguments),
            ThreadCall::CopyRegisters { flags, source } => self.copy_registers(tcb, flags, source),
            ThreadCall::SetSpace { fault_handler, cspace, vspace, buffer } => {
                tcb.fault_handler.set(fault_handler);
                self.replace_own(tcb, slot, own::CSPACE, Some(cspace))?;
                self.replace_own(tcb, slot, own::VSPACE, Some(vspace))?;
                if let Some(buffer) = buffer {
                    self.set_buffer(tcb, slot, buffer)?;
                }
            }
            ThreadCall::SetBuffer { buffer } => self.set_buffer(tcb, slot, buffer)?,
            ThreadCall::SetPriority { priority, maximum } => {
                if let Some(maximum) = maximum {
                    tcb.maximum_priority.set(maximum);
                }
                if let Some(priority) = priority {
                    self.change_priority(tcb, priority);
                }
            }
            ThreadCall::Suspend => self.make_inactive(tcb),
            ThreadCall::RegisterAsyncSyscall { handler } => self.register_handler(tcb, handler)?,
            ThreadCall::RegisterUserInterrupts { registration } => {
                let entries = self.set_interrupts(tcb, registration);
                if arguments.is_call() {
                    let asking = arguments.thread();
                    set_message_register(asking, None, 0, self.arrival().number());
                    set_message_register(asking, None, 1, entries);
                    return Ok(Done::Answer { length: 2 });
                }
            }
            ThreadCall::Resume => self.make_active(tcb),
            ThreadCall::Bind { notification } => self.bind(tcb, notification),
            ThreadCall::Unbind => self.unbind_thread(tcb),
            ThreadCall::SetAffinity { node } => self.move_to_hart(tcb, node),
            ThreadCall::SetThreadPointer { value } => {
                self.stop_elsewhere(tcb);
                tcb.register::<4>().set(value);
                self.choose_anew_if_current(tcb);
            }
            ThreadCall::SetFlags { clear, set } => return Ok(self.set_flags(tcb, clear, set, arguments)),
        }
        Ok(Done::Plain)
    }

    fn read_registers(&self, tcb: Ref<Tcb>, flags: u64, count: u64, arguments: &Arguments) -> Done {
        if flags & message::READ_REGISTERS_SUSPEND != 0 {
            self.make_inactive(tcb);
        } else {
            self.stop_elsewhere(tcb);
        }
        if !arguments.is_call() {
            return Done::Plain;
        }
        let asking = arguments.thread();
        let words = receive_buffer(asking);
        let mut length = 0;
        for index in 0..count as usize {
            if set_message_register(asking, words, index, read_register(tcb, index)) {
                length += 1;
            }
        }
        Done::Answer { length }
    }

    fn write_registers(&self, tcb: Ref<Tcb>, flags: u64, count: u64, arguments: &Arguments) {
        self.stop_elsewhere(tcb);
        for index in 0..count.min(REGISTERS) as usize {
            write_register(tcb, index, arguments.word(index + 2));
        }
        tcb.pc().set(tcb.fault_pc.get());
        self.leave_handlers(tcb);
        if flags & message::WRITE_REGISTERS_RESUME != 0 {
            self.make_active(tcb);
        }
        self.choose_anew_if_current(tcb);
    }

    fn copy_registers(&self, tcb: Ref<Tcb>, flags: u64, source: Ref<Tcb>) {
        if flags & message::COPY_REGISTERS_SUSPEND_SOURCE != 0 {
            self.make_inactive(source);
        } else {
            self.stop_elsewhere(source);
        }
        if flags & message::COPY_REGISTERS_RESUME_TARGET != 0 {
            self.make_active(tcb);
        }
        self.stop_elsewhere(tcb);
        if flags & message::COPY_REGISTERS_FRAME != 0 {
            for index in 0..FRAME_COUNT {
                write_register(tcb, index, read_register(source, index));
            }
            tcb.pc().set(tcb.fault_pc.get());
            self.leave_handlers(tcb);
        }
        if flags & message::COPY_REGISTERS_INTEGER != 0 {
            for index in FRAME_COUNT..registers::COUNT {
                write_register(tcb, index, read_register(source, index));
            }
        }
        self.choose_anew_if_current(tcb);
    }

    /// Changes a thread's flags; the answer contains the new flags.
    #[inline]
    fn set_flags(&self, tcb: Ref<Tcb>, clear: u64, set: u64, arguments: &Arguments) -> Done {
        self.stop_elsewhere(tcb);
        let flags = tcb.flags.get() & !clear | set & message::TCB_FLAG_FPU_DISABLED;
        tcb.flags.set(flags);
        let forbidden = flags & message::TCB_FLAG_FPU_DISABLED != 0;
        tcb.use_floating_point(if forbidden { FloatingPointUse::Forbidden } else { FloatingPointUse::Allowed });
        if !arguments.is_call() {
            return Done::Plain;
        }
        set_message_register(arguments.thread(), None, 0, flags);
        Done::Answer { length: 1 }
    }

    /// Makes a thread in any state inactive.
    pub(crate) fn make_inactive(&self, thread: Ref<Tcb>) {
        self.stop_elsewhere(thread);
        match thread.state() {
            ThreadState::Inactive => {}
            state if state.is_runnable() => {
                self.leave_queue(thread);
                if state == ThreadState::Running {
                    // `pc` may be behind a system call; the thread continues from there.
                    thread.fault_pc.set(thread.pc().get());
                }
            }
            _ => self.cancel_waiting(thread),
        }
        self.change_state(thread, ThreadState::Inactive);
        self.deactivate(thread);
    }

    /// Makes a thread that is inactive or waits runnable: it restarts.
    #[inline]
    pub(crate) fn make_active(&self, thread: Ref<Tcb>) {
        if thread.state().is_runnable() {
            return;
        }
        self.cancel_waiting(thread);
        self.provide_reply_master(thread);
        self.change_state(thread, ThreadState::Restarting);
        self.make_ready(thread);
        self.wake_handler(thread);
    }

    /// Gives a thread its master reply capability, if it has none.
    #[inline]
    pub(crate) fn provide_reply_master(&self, thread: Ref<Tcb>) {
        let slot = thread.own_slot(own::REPLY);
        if slot.is_empty() {
            slot.capability.set(Capability::Reply { caller: thread, master: true, grant: true });
            slot.previous.set(None);
            slot.next.set(None);
            slot.set_lineage(Lineage::Original);
        }
    }

    fn choose_anew_if_current(&self, tcb: Ref<Tcb>) {
        if self.node().current.get() == Some(tcb) {
            self.choose_anew();
        }
    }

    /// Replaces the capability in one of a thread's own slots, if the source slot still holds a capability of the same
    /// object.
    fn replace_own(
        &self,
        tcb: Ref<Tcb>,
        slot: Ref<Slot>,
        index: usize,
        installed: Option<Installed>,
    ) -> Result<(), Preempted> {
        let destination = tcb.own_slot(index);
        self.stop_elsewhere(tcb);
        // The thread may be the last one that this hart entered, and its address space changes.
        self.node().entered.set(None);
        tcb.forget_space();
        self.delete(destination)?;
        // Deleting the old capability may have deleted the new one, or even the thread.
        if let Some(Installed { capability, source }) = installed
            && capability::share_object(&capability, &source.capability.get())
            && slot.capability.get() == (Capability::Thread { tcb })
        {
            derivation::insert_derived(capability, source, destination);
        }
        Ok(())
    }

    fn set_buffer(&self, tcb: Ref<Tcb>, slot: Ref<Slot>, buffer: NewBuffer) -> Result<(), Preempted> {
        self.stop_elsewhere(tcb);
        self.delete(tcb.own_slot(own::BUFFER))?;
        tcb.buffer_address.set(buffer.address);
        if let Some(frame) = buffer.frame
            && capability::share_object(&frame.capability, &frame.source.capability.get())
            && slot.capability.get() == (Capability::Thread { tcb })
        {
            derivation::insert_derived(frame.capability, frame.source, tcb.own_slot(own::BUFFER));
        }
        self.choose_anew_if_current(tcb);
        Ok(())
    }

    /// Returns a thread's address space; the kernel's, in which the thread has no access, if it has none that is alive.
    ///
    /// SPACE-EPOCH: the result is cached in the thread, and valid while the kernel's epoch is unchanged. The epoch
    /// changes whenever a capability to a mapped page table is deleted, including a thread's own, and whenever an ASID
    /// is assigned or freed. Its low bits are the current domain, and those of the cached epoch the thread's domain, so
    /// that a thread of another domain has a stale cache: the fastpath needs no other check of domains.
    #[inline(always)]
    pub(crate) fn space_of(&self, thread: Ref<Tcb>) -> Space {
        match thread.space_in(self.space_epoch.get()) {
            Some(space) => space,
            None => self.find_space(thread),
        }
    }

    #[inline(never)]
    fn find_space(&self, thread: Ref<Tcb>) -> Space {
        let is_settled = self.deliver_interrupt(thread);
        // One comparison for the threads without interrupts of their own, which are nearly all.
        if thread.interrupts.has_own() {
            return self.own_space(thread);
        }
        let Some(space) = self.address_space(thread) else { return Space::kernel::<Machine>() };
        if is_settled {
            let epoch = (self.space_epoch.get() / EPOCH * EPOCH) | u64::from(thread.domain.get());
            thread.note_space(space, epoch);
        }
        space
    }

    /// Returns how a thread with interrupts of its own is entered.
    #[inline]
    fn own_space(&self, thread: Ref<Tcb>) -> Space {
        match (self.address_space(thread), thread.interrupts.own()) {
            (Some(space), _) => space.with_own_interrupts(),
            // Even without an address space it is entered as an armed thread, and its fault served as that of one.
            (None, Some(OwnInterrupts::Armed)) => Space::kernel::<Machine>().with_own_interrupts(),
            (None, _) => Space::kernel::<Machine>(),
        }
    }

    /// Returns a thread's address space, if it has one that is alive.
    #[inline]
    pub(crate) fn address_space(&self, thread: Ref<Tcb>) -> Option<Space> {
        let (table, asid) = thread.own_slot(own::VSPACE).capability.mapped_table()?;
        (self.root_of(asid) == Some(table)).then(|| Space::new::<Machine>(table, asid))
    }

    /// Invalidates all cached address spaces.
    pub(crate) fn begin_space_epoch(&self) {
        self.space_epoch.set(self.space_epoch.get() + EPOCH);
    }
}

fn decode_copy(arguments: &Arguments) -> Result<ThreadCall, InvocationError> {
    let [flags] = arguments.at_least::<1>()?;
    match arguments.capability(0)?.capability.get() {
        Capability::Thread { tcb: source } => Ok(ThreadCall::CopyRegisters { flags, source }),
        _ => Err(InvocationError::InvalidCapability(1)),
    }
}

fn decode_priorities(invocation: Invocation, arguments: &Arguments) -> Result<ThreadCall, InvocationError> {
    let [first] = arguments.at_least::<1>()?;
    match invocation {
        Invocation::TcbSetPriority => {
            let maximum = authority(arguments)?;
            Ok(ThreadCall::SetPriority { priority: Some(limited(first, maximum)?), maximum: None })
        }
        Invocation::TcbSetMCPriority => {
            let maximum = authority(arguments)?;
            Ok(ThreadCall::SetPriority { priority: None, maximum: Some(limited(first, maximum)?) })
        }
        _ => {
            let [new_maximum, priority] = arguments.at_least::<2>()?;
            let maximum = authority(arguments)?;
            let new_maximum = limited(new_maximum, maximum)?;
            Ok(ThreadCall::SetPriority { priority: Some(limited(priority, maximum)?), maximum: Some(new_maximum) })
        }
    }
}

fn decode_bind(tcb: Ref<Tcb>, arguments: &Arguments) -> Result<ThreadCall, InvocationError> {
    let notification = arguments.capability(0)?.capability.get();
    if tcb.bound.get().is_some() {
        return Err(InvocationError::IllegalOperation);
    }
    match notification {
        Capability::Notification { notification, rights, .. }
            if rights.contains(Rights::READ)
                && notification.queue.head.get().is_none()
                && notification.bound.get().is_none() =>
        {
            Ok(ThreadCall::Bind { notification })
        }
        _ => Err(InvocationError::IllegalOperation),
    }
}

/// Returns the maximum controlled priority of the authority, the thread whose capability is the first of the message.
fn authority(arguments: &Arguments) -> Result<u8, InvocationError> {
    match arguments.capability(0)?.capability.get() {
        Capability::Thread { tcb } => Ok(tcb.maximum_priority.get()),
        _ => Err(InvocationError::InvalidCapability(1)),
    }
}

fn limited(priority: u64, maximum: u8) -> Result<u8, InvocationError> {
    if priority > maximum.into() {
        return Err(InvocationError::RangeError { minimum: 0, maximum: maximum.into() });
    }
    Ok(priority as u8)
}

fn decode_buffer(address: u64, source: Ref<Slot>) -> Result<NewBuffer, InvocationError> {
    if address == 0 {
        return Ok(NewBuffer { address, frame: None });
    }
    let capability = derivation::copy_of(source, source.capability.get())?;
    let Capability::Frame { device: false, .. } = capability else { return Err(InvocationError::IllegalOperation) };
    if !address.is_multiple_of(1 << IPC_BUFFER_BITS) {
        return Err(InvocationError::AlignmentError);
    }
    Ok(NewBuffer { address, frame: Some(Installed { capability, source }) })
}

/// Reads a register by its index in messages.
fn read_register(tcb: Ref<Tcb>, index: usize) -> u64 {
    match index {
        0 if tcb.state() == ThreadState::Running => tcb.pc().get(),
        0 => tcb.fault_pc.get(),
        _ => tcb.register_at(registers::NUMBERS[index]).get(),
    }
}

fn write_register(tcb: Ref<Tcb>, index: usize, value: u64) {
    match index {
        0 => tcb.fault_pc.set(value),
        _ => tcb.register_at(registers::NUMBERS[index]).set(value),
    }
}
