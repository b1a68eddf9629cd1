//! Faults: what a thread did wrong becomes a message to its fault handler, and the answer makes it go on.

use abi_sel4::{MessageInfo, Rights, message};
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
            Fault::User { number, code } => {
                let stack = sender.register::<2>().get();
                put_four(receiver, [sender.fault_pc.get(), stack, number, code]);
                length = 4;
            }
            Fault::Memory { address, status, instruction } => {
                put_four(receiver, [sender.fault_pc.get(), address, instruction.into(), status]);
                length = 4;
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

/// Writes a message that fits into registers.
#[inline(always)]
fn put_four(receiver: Ref<Tcb>, words: [u64; 4]) {
    receiver.register::<12>().set(words[0]);
    receiver.register::<13>().set(words[1]);
    receiver.register::<14>().set(words[2]);
    receiver.register::<15>().set(words[3]);
}
