//! Invocations of the domain capability: threads' domains and the domain schedule.

use abi_sel4::configuration::{DOMAIN_DURATION_BITS, DOMAIN_SCHEDULE_LENGTH};
use abi_sel4::{Invocation, InvocationError};
use objects::{Capability, Ref, Tcb};

use crate::invocation::{Arguments, Done};
use crate::kernel::Kernel;
use crate::state::Period;

/// Number of entries of the domain schedule, as a message word for comparison with indexes.
const ENTRIES: u64 = DOMAIN_SCHEDULE_LENGTH as u64;

/// A decoded invocation.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are the invocations' own")]
pub enum DomainCall {
    Set { tcb: Ref<Tcb>, domain: u8 },
    Configure { index: usize, domain: u8, duration: u64 },
    Start { index: usize },
}

fn range(limit: u64) -> InvocationError {
    InvocationError::RangeError { minimum: 0, maximum: limit - 1 }
}

impl Kernel {
    /// Decodes an invocation.
    pub(crate) fn decode_domain(
        &self,
        invocation: Option<Invocation>,
        arguments: &Arguments,
    ) -> Result<DomainCall, InvocationError> {
        let domains = self.domains.known();
        match invocation {
            Some(Invocation::DomainSetSet) => {
                let [domain] = arguments.at_least::<1>()?;
                if domain >= domains {
                    return Err(InvocationError::InvalidArgument(0));
                }
                match arguments.capability(0)?.capability.get() {
                    Capability::Thread { tcb } => Ok(DomainCall::Set { tcb, domain: domain as u8 }),
                    _ => Err(InvocationError::InvalidArgument(1)),
                }
            }
            Some(Invocation::DomainSetScheduleConfigure) => {
                let [index, domain, duration] = arguments.at_least::<3>()?;
                // The last entry always ends the schedule.
                if index >= ENTRIES - 1 {
                    return Err(range(ENTRIES - 1));
                }
                if domain >= domains {
                    return Err(range(domains));
                }
                if duration == 0 && domain != 0 {
                    return Err(InvocationError::InvalidArgument(1));
                }
                if duration == 0 && index == self.domains.start() as u64 || duration >> DOMAIN_DURATION_BITS != 0 {
                    return Err(InvocationError::InvalidArgument(2));
                }
                Ok(DomainCall::Configure { index: index as usize, domain: domain as u8, duration })
            }
            Some(Invocation::DomainSetScheduleSetStart) => {
                let [index] = arguments.at_least::<1>()?;
                if index >= ENTRIES {
                    return Err(range(ENTRIES));
                }
                if self.domains.period(index as usize).ticks == 0 {
                    return Err(InvocationError::InvalidArgument(0));
                }
                Ok(DomainCall::Start { index: index as usize })
            }
            _ => Err(InvocationError::IllegalOperation),
        }
    }

    /// Performs a decoded invocation.
    pub(crate) fn invoke_domain(&self, call: DomainCall) -> Done {
        match call {
            DomainCall::Set { tcb, domain } => self.move_to_domain(tcb, domain),
            DomainCall::Configure { index, domain, duration } => {
                self.domains.set_period(index, Period { domain, ticks: duration });
            }
            DomainCall::Start { index } => self.start_schedule(index),
        }
        Done::Plain
    }
}
