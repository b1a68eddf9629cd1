//! Faults: a fault becomes a message to the thread's fault handler, and the reply lets the thread continue.

use abi_sel4::fault::{CapFault, UnknownSyscall, UserException, VMFault, status};
use abi_sel4::{Fault, MessageInfo, Rights, message};
use hal_api::{Access, Trap};
use objects::{Ref, Tcb, ThreadFault, ThreadState, Words};

use crate::cspace;
use crate::ipc::{MAY_BE_ANSWERED, Sending};
use crate::kernel::Kernel;
use crate::message::{SendMode, message_register, send_buffer, set_message_register};

impl Kernel {
    /// Sends a thread's fault to its fault handler, or stops the thread if it has none.
    #[inline(never)]
    pub(crate) fn fault(&self, thread: Ref<Tcb>, fault: ThreadFault) {
        let handler = cspace::lookup(thread, thread.fault_handler.get());
        if let Some((endpoint, badge, rights)) = handler.ok().and_then(|slot| slot.capability.endpoint())
            && rights.contains(Rights::WRITE)
            && rights.intersects(MAY_BE_ANSWERED)
        {
            thread.set_fault(fault);
            let rights = rights.union(Rights::GRANT_REPLY);
            return self.send_message(thread, endpoint, Sending { mode: SendMode::Call, badge, rights });
        }
        if cfg!(feature = "debug-calls") {
            self.report_unhandled(thread, fault);
        }
        self.change_state(thread, ThreadState::Inactive);
        self.deactivate(thread);
    }

    /// Reports on the console that a thread has stopped for good.
    fn report_unhandled(&self, thread: Ref<Tcb>, fault: ThreadFault) {
        let pc = thread.fault_pc.get();
        let (kind, detail) = match fault {
            ThreadFault::None => ("none", 0),
            ThreadFault::Capability { address, .. } => ("capability", address),
            ThreadFault::UnknownSystemCall { number } => ("system call", number),
            ThreadFault::User { number, .. } => ("exception", number),
            ThreadFault::Memory { address, .. } => ("memory", address),
        };
        crate::console::print(format_args!(
            "thread at {:#x} has no fault handler: {kind} {detail:#x}, pc {pc:#x}\n",
            thread.physical()
        ));
    }

    /// Writes a fault message to the receiver; returns its label and length.
    pub(crate) fn transfer_fault(
        &self,
        sender: Ref<Tcb>,
        receiver: Ref<Tcb>,
        buffer: Option<Ref<Words>>,
    ) -> (u64, usize) {
        let mut length = 0;
        let put = |value| {
            if set_message_register(receiver, buffer, length, value) {
                length += 1;
            }
        };
        let fault = sender.fault();
        let pc = sender.fault_pc.get();
        match fault {
            ThreadFault::None => {}
            ThreadFault::Capability { address, phase, failure } => {
                let (fault, count) = CapFault::new(pc, address, phase, failure);
                fault.to_words().into_iter().take(count).for_each(put);
            }
            ThreadFault::UnknownSystemCall { number } => {
                let mut words = [0; UnknownSyscall::WORDS];
                let [first, registers @ .., last] = &mut words;
                (*first, *last) = (pc, number);
                for (word, &register) in registers.iter_mut().zip(Fault::UnknownSyscall.registers()) {
                    *word = sender.register_at(register).get();
                }
                words.into_iter().for_each(put);
            }
            ThreadFault::User { .. } | ThreadFault::Memory { .. } => {
                if let Some(words) = short_message(sender, pc, fault) {
                    put_four(receiver, words);
                    length = words.len();
                }
            }
        }
        (fault.kind().label(), length)
    }

    /// Processes the reply to a fault; returns whether the thread continues.
    pub(crate) fn answer_fault(&self, receiver: Ref<Tcb>, sender: Ref<Tcb>) -> bool {
        let information = MessageInfo(sender.register::<11>().get());
        match receiver.fault_kind() {
            Fault::UnknownSyscall => write_back(receiver, Fault::UnknownSyscall.registers(), sender, information),
            Fault::UserException => write_back(receiver, Fault::UserException.registers(), sender, information),
            Fault::NullFault | Fault::CapFault | Fault::VMFault => return true,
        }
        information.label() == 0
    }
}

/// Writes the words of a reply, the first of which is an address, to the registers of the faulting thread. Inlined, so
/// that the registers are constants.
#[inline(always)]
fn write_back(receiver: Ref<Tcb>, registers: &'static [usize], sender: Ref<Tcb>, information: MessageInfo) {
    let length = information.length();
    let words = send_buffer(sender);
    // Without an IPC buffer only the words in registers are copied.
    let readable = if words.is_some() { length } else { length.min(message::REGISTERS) };
    let word = |index| message_register(sender, words, index);
    if readable > 0 {
        receiver.fault_pc.set(word(0));
    }
    for (index, &register) in (1..readable).zip(registers) {
        receiver.register_at(register).set(word(index));
    }
}

/// Converts a trap into the thread's fault; `None` for system calls and interrupts.
#[inline(always)]
pub fn of_trap(trap: Trap) -> Option<ThreadFault> {
    let memory = |address, access| {
        let status = match access {
            Access::Read => status::LOAD,
            Access::Write => status::STORE,
            Access::Execute => status::FETCH,
        };
        Some(ThreadFault::Memory { address, status, instruction: access == Access::Execute })
    };
    let user = |number| Some(ThreadFault::User { number, code: 0 });
    match trap {
        Trap::PageFault { address, access } | Trap::AccessFault { address, access } => memory(address, access),
        // The code is the kernel's affair, and is in no message.
        Trap::IllegalInstruction { bits } => Some(ThreadFault::User { number: 2, code: bits }),
        Trap::Breakpoint => user(3),
        Trap::Misaligned { access: Access::Execute, .. } => user(0),
        Trap::Misaligned { access: Access::Read, .. } => user(4),
        Trap::Misaligned { access: Access::Write, .. } => user(6),
        Trap::Other { cause, .. } => user(cause),
        Trap::SystemCall | Trap::Interrupt => None,
    }
}

/// Returns the fault message for a fault at this address, if it fits into registers.
#[inline(always)]
pub fn short_message(sender: Ref<Tcb>, pc: u64, fault: ThreadFault) -> Option<[u64; 4]> {
    match fault {
        ThreadFault::User { number, .. } => {
            Some(UserException { fault_ip: pc, sp: sender.register::<2>().get(), number, code: 0 }.to_words())
        }
        ThreadFault::Memory { address, status, instruction } => {
            Some(VMFault { ip: pc, address, instruction_fetch: instruction.into(), status }.to_words())
        }
        ThreadFault::None | ThreadFault::Capability { .. } | ThreadFault::UnknownSystemCall { .. } => None,
    }
}

/// Writes a message of four words to the receiver's registers.
#[inline(always)]
pub fn put_four(receiver: Ref<Tcb>, words: [u64; 4]) {
    receiver.register::<12>().set(words[0]);
    receiver.register::<13>().set(words[1]);
    receiver.register::<14>().set(words[2]);
    receiver.register::<15>().set(words[3]);
}
