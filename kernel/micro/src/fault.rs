//! Faults: what a thread did wrong becomes a message to its fault handler, and the answer makes it go on.

use abi_sel4::fault::status;
use abi_sel4::{MessageInfo, Rights, message};
use hal_api::{Access, Trap};
use objects::{Fault, Ref, Tcb, ThreadState, Words};

use crate::cspace;
use crate::error::failure_words;
use crate::ipc::{MAY_BE_ANSWERED, Sending};
use crate::kernel::Kernel;
use crate::message::{buffer, message_register, set_message_register};

/// The registers that an unknown system call shows and takes back, by number, after the address: sp, ra, a0 to a6.
const SYSTEM_CALL_REGISTERS: [usize; 9] = [2, 1, 10, 11, 12, 13, 14, 15, 16];

impl Kernel {
    /// A thread did something wrong: tells its handler, or stops it.
    #[inline(never)]
    pub(crate) fn fault(&self, thread: Ref<Tcb>, fault: Fault) {
        let handler = cspace::lookup(thread, thread.fault_handler.get());
        if let Some((endpoint, badge, rights)) = handler.ok().and_then(|slot| slot.capability.endpoint())
            && rights.contains(Rights::WRITE)
            && rights.intersects(MAY_BE_ANSWERED)
        {
            thread.set_fault(fault);
            let rights = rights.union(Rights::GRANT_REPLY);
            return self.send_message(thread, endpoint, Sending { is_blocking: true, is_call: true, badge, rights });
        }
        if cfg!(feature = "debug-calls") {
            self.report_unhandled(thread, fault);
        }
        self.set_state(thread, ThreadState::Inactive);
        self.deactivate(thread);
    }

    /// Says on the console that a thread stopped for good.
    fn report_unhandled(&self, thread: Ref<Tcb>, fault: Fault) {
        let pc = thread.fault_pc.get();
        crate::console::print(format_args!(
            "thread at {:#x} has no fault handler: {fault:x?}, pc {pc:#x}\n",
            thread.physical()
        ));
    }

    /// Writes a fault as a message to the receiver; says its label and length.
    pub(crate) fn transfer_fault(
        &self,
        sender: Ref<Tcb>,
        receiver: Ref<Tcb>,
        buffer: Option<Ref<Words>>,
    ) -> (u64, usize) {
        let mut length = 0;
        let mut put = |value| {
            if set_message_register(receiver, buffer, length, value) {
                length += 1;
            }
        };
        let fault = sender.fault();
        match fault {
            Fault::None => {}
            Fault::Capability { address, receiving, failure } => {
                put(sender.fault_pc.get());
                put(address);
                put(receiving.into());
                let (words, count) = failure_words(failure);
                words[..count].iter().for_each(|&word| put(word));
            }
            Fault::UnknownSystemCall { number } => {
                put(sender.fault_pc.get());
                SYSTEM_CALL_REGISTERS.iter().for_each(|&register| put(sender.register_at(register).get()));
                put(number);
            }
            Fault::User { .. } | Fault::Memory { .. } => {
                if let Some(words) = short_message(sender, sender.fault_pc.get(), fault) {
                    put_four(receiver, words);
                    length = words.len();
                }
            }
        }
        (fault.label(), length)
    }

    /// Takes the answer to a fault; says whether the thread goes on.
    pub(crate) fn answer_fault(&self, receiver: Ref<Tcb>, sender: Ref<Tcb>) -> bool {
        let information = MessageInfo(sender.register::<11>().get());
        let length = information.length();
        let words = buffer(sender, false);
        // What the sender says beyond its buffer's existence is not copied.
        let readable = if words.is_some() { length } else { length.min(message::REGISTERS) };
        let word = |index| message_register(sender, words, index);
        match receiver.fault() {
            Fault::UnknownSystemCall { .. } => {
                if readable > 0 {
                    receiver.fault_pc.set(word(0));
                }
                for (index, &register) in SYSTEM_CALL_REGISTERS.iter().enumerate().take(readable.saturating_sub(1)) {
                    receiver.register_at(register).set(word(index + 1));
                }
                information.label() == 0
            }
            Fault::User { .. } => {
                if readable > 0 {
                    receiver.fault_pc.set(word(0));
                }
                if readable > 1 {
                    receiver.register::<2>().set(word(1));
                }
                information.label() == 0
            }
            Fault::None | Fault::Capability { .. } | Fault::Memory { .. } => true,
        }
    }
}

/// What a trap means for the thread that it came from; `None` if that has done nothing wrong.
#[inline(always)]
pub fn of_trap(trap: Trap) -> Option<Fault> {
    let memory = |address, access| {
        let status = match access {
            Access::Read => status::LOAD,
            Access::Write => status::STORE,
            Access::Execute => status::FETCH,
        };
        Some(Fault::Memory { address, status, instruction: access == Access::Execute })
    };
    let user = |number| Some(Fault::User { number, code: 0 });
    match trap {
        Trap::PageFault { address, access } | Trap::AccessFault { address, access } => memory(address, access),
        Trap::IllegalInstruction { .. } => user(2),
        Trap::Breakpoint => user(3),
        Trap::Misaligned { access: Access::Execute, .. } => user(0),
        Trap::Misaligned { access: Access::Read, .. } => user(4),
        Trap::Misaligned { access: Access::Write, .. } => user(6),
        Trap::Other { cause, .. } => user(cause),
        Trap::SystemCall | Trap::Interrupt => None,
    }
}

/// The message about a fault at this address, if it fits into registers.
#[inline(always)]
pub fn short_message(sender: Ref<Tcb>, pc: u64, fault: Fault) -> Option<[u64; 4]> {
    match fault {
        Fault::User { number, code } => Some([pc, sender.register::<2>().get(), number, code]),
        Fault::Memory { address, status, instruction } => Some([pc, address, instruction.into(), status]),
        Fault::None | Fault::Capability { .. } | Fault::UnknownSystemCall { .. } => None,
    }
}

/// Writes a message that fits into registers.
#[inline(always)]
pub fn put_four(receiver: Ref<Tcb>, words: [u64; 4]) {
    receiver.register::<12>().set(words[0]);
    receiver.register::<13>().set(words[1]);
    receiver.register::<14>().set(words[2]);
    receiver.register::<15>().set(words[3]);
}
