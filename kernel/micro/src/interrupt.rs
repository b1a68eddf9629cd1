//! Interrupts of devices: each number has one handler capability's worth of state and a slot for one notification.
//!
//! When an interrupt arrives, the kernel masks its source and signals the notification; acknowledging it unmasks the
//! source. So a device that keeps interrupting costs one kernel entry for each acknowledgement of its driver.

use abi_sel4::{Invocation, InvocationError, Rights, Trigger};
use objects::{Capability, Ref, Slot};

use crate::invocation::{Arguments, Done, Preempted};
use crate::kernel::Kernel;
use crate::state::IrqUse;
use crate::{console, cspace, derivation, machine};

/// The largest number of a device's interrupt.
pub const MAXIMUM_IRQ: u64 = 95;
/// A decoded invocation.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are the invocations' own")]
pub enum IrqCall {
    Issue { irq: u16, control: Ref<Slot>, slot: Ref<Slot>, trigger: Trigger },
    Acknowledge { irq: u16 },
    SetNotification { irq: u16, notification: Capability, source: Ref<Slot> },
    Clear { irq: u16 },
}

impl Kernel {
    /// Decodes an invocation of the IRQ control capability.
    pub(crate) fn decode_irq_control(
        &self,
        invocation: Option<Invocation>,
        control: Ref<Slot>,
        arguments: &Arguments,
    ) -> Result<IrqCall, InvocationError> {
        let (irq, trigger, index, depth) = match invocation {
            Some(Invocation::IrqControlGet) => {
                let [irq, index, depth] = arguments.at_least::<3>()?;
                (irq, Trigger::Level, index, depth)
            }
            Some(Invocation::IrqControlGetTrigger) => {
                let [irq, trigger, index, depth] = arguments.at_least::<4>()?;
                (irq, Trigger::from_word(trigger), index, depth)
            }
            _ => return Err(InvocationError::IllegalOperation),
        };
        let root = arguments.capability(0)?;
        if !(1..=MAXIMUM_IRQ).contains(&irq) {
            return Err(InvocationError::RangeError { minimum: 1, maximum: MAXIMUM_IRQ });
        }
        if self.interrupts.use_of(irq as u32) != Some(IrqUse::Free) {
            return Err(InvocationError::RevokeFirst);
        }
        let slot = cspace::empty_target(root.capability.get(), index, depth)?;
        Ok(IrqCall::Issue { irq: irq as u16, control, slot, trigger })
    }

    /// Decodes an invocation of an IRQ handler.
    pub(crate) fn decode_irq_handler(
        &self,
        invocation: Option<Invocation>,
        irq: u16,
        arguments: &Arguments,
    ) -> Result<IrqCall, InvocationError> {
        match invocation {
            Some(Invocation::IrqHandlerAck) => Ok(IrqCall::Acknowledge { irq }),
            Some(Invocation::IrqHandlerSetNotification) => {
                let source = arguments.capability(0)?;
                match source.capability.get() {
                    notification @ Capability::Notification { rights, .. } if rights.contains(Rights::WRITE) => {
                        let notification = derivation::copy_of(source, notification)?;
                        Ok(IrqCall::SetNotification { irq, notification, source })
                    }
                    _ => Err(InvocationError::InvalidCapability(0)),
                }
            }
            Some(Invocation::IrqHandlerClear) => Ok(IrqCall::Clear { irq }),
            _ => Err(InvocationError::IllegalOperation),
        }
    }

    /// Performs a decoded invocation.
    pub(crate) fn invoke_irq(&self, call: IrqCall) -> Result<Done, Preempted> {
        match call {
            IrqCall::Issue { irq, control, slot, trigger } => {
                self.interrupts.set_use(irq, IrqUse::Handled);
                machine::enable_irq(irq.into(), trigger);
                derivation::insert_derived(Capability::IrqHandler { irq }, control, slot);
            }
            IrqCall::Acknowledge { irq } => machine::unmask_irq(irq.into()),
            IrqCall::SetNotification { irq, notification, source } => {
                if let Some(slot) = self.interrupts.slot(irq) {
                    // The notification that was there may go, with all threads that wait for it.
                    self.delete(slot)?;
                    derivation::insert_derived(notification, source, slot);
                }
            }
            IrqCall::Clear { irq } => {
                if let Some(slot) = self.interrupts.slot(irq) {
                    self.delete(slot)?;
                }
            }
        }
        Ok(Done::Plain)
    }

    /// Disables an interrupt without a handler.
    pub(crate) fn release_irq(&self, irq: u16) {
        if self.interrupts.set_use(irq, IrqUse::Free) {
            machine::disable_irq(irq.into());
        }
    }

    /// Signals the notification of a device's interrupt. The interrupt's source is masked already.
    pub(crate) fn device_interrupt(&self, irq: u32) {
        if self.interrupts.use_of(irq) != Some(IrqUse::Handled) {
            return console::print(format_args!("interrupt {irq} has no handler\n"));
        }
        if let Some(slot) = self.interrupts.slot(irq as u16)
            && let Some((notification, badge)) = slot.capability.signal()
        {
            self.signal(notification, badge);
        }
    }
}
