//! A call on its way from registers to its outcome: the caller, the arguments, and the possible outcomes.
//!
//! Arguments are unvalidated. A register becomes a number, a descriptor, a length or an address by the accessor that
//! the call's family uses, and nowhere else; an address stays a number, or a [`UserBuffer`], until the address space
//! has validated it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::pin::Pin;

use ::signals::Set;
use abi_unix::call::ASYNCHRONOUS;
use abi_unix::{Errno, SystemCall};
use hal_api::UserContext;
use memory::faults;

use crate::asynchronous::operation::Operation;
use crate::files::file::OpenFile;
use crate::process::accounts::MEMORY_OF_A_WAIT;
use crate::process::fork::Copied;
use crate::process::program::Execution;
use crate::process::signals::SignalWait;
use crate::process::user::UserBuffer;
use crate::process::worker::Worker;
use crate::process::{Process, signal_delivery};
use crate::scheduling::steps::Long;

/// The end of a visit to user mode, and its reason.
#[must_use]
pub(crate) enum Pause {
    /// Something at least as important is ready, or the worker lets others run.
    GiveWay,
    /// A call must wait.
    Wait(Operation),
    /// Pages are fetched that the program touches by an instruction at this address, or by its next call.
    Fetch(Long, Option<u64>),
    /// A call must wait for a signal.
    WaitForSignal(SignalWait),
    /// The process is stopped.
    Stopped,
    /// The worker has nothing to run: it sleeps until completions beyond `seen`, or until a tick.
    Park { seen: u64, deadline: Option<u64> },
    /// The process wants another program.
    Execute(Execution),
    /// The process starts another one in its memory.
    Lend(Box<Copied>),
    /// The worker must move to a kernel thread, if it does not have one already (a model for comparison).
    MoveToThread,
    /// The worker leaves.
    Leave,
}

/// The outcome of a call that was made.
#[must_use]
pub(crate) enum Outcome {
    /// The call is done: this value goes to `a0`.
    Done(usize),
    /// The call is done, and has set the registers itself.
    Unchanged,
    /// The worker cannot go on at once.
    Pause(Pause),
}

/// A decoded call: its outcome, or an operation that is still to be attempted.
#[must_use]
pub(crate) enum Decoded {
    Outcome(Outcome),
    Operation(Operation),
}

/// The answer of every function that decodes a call.
pub(crate) type Decoding = Result<Decoded, Errno>;

impl From<usize> for Decoded {
    fn from(value: usize) -> Decoded {
        Decoded::Outcome(Outcome::Done(value))
    }
}

impl From<()> for Decoded {
    fn from((): ()) -> Decoded {
        Decoded::Outcome(Outcome::Done(0))
    }
}

impl From<Pause> for Decoded {
    fn from(pause: Pause) -> Decoded {
        Decoded::Outcome(Outcome::Pause(pause))
    }
}

impl From<Operation> for Decoded {
    fn from(operation: Operation) -> Decoded {
        Decoded::Operation(operation)
    }
}

/// Place of a call's arguments.
pub(crate) enum ArgumentSource<'a> {
    /// The registers of the worker or thread that calls.
    Registers(&'a mut UserContext),
    /// An entry of the worker's request ring, which was copied.
    Request(&'a [u64; 6]),
}

/// A call on behalf of its caller.
#[doc(alias = "pt_regs")]
pub(crate) struct Call<'a> {
    /// The calling worker or thread, or the worker through whose request ring the call came.
    pub worker: &'a Arc<Worker>,
    /// The call's line in the table of calls.
    pub number: SystemCall,
    source: ArgumentSource<'a>,
}

// All of them inlined: an accessor is a load, and a function that is called from the dispatcher can make every call
// save more registers.
impl<'a> Call<'a> {
    #[inline(always)]
    pub(crate) fn new(worker: &'a Arc<Worker>, number: SystemCall, source: ArgumentSource<'a>) -> Call<'a> {
        Call { worker, number, source }
    }

    /// Returns the calling process.
    #[inline(always)]
    pub(crate) fn process(&self) -> &'a Arc<Process> {
        &self.worker.process
    }

    /// Returns the calling process, for a call that needs memory. `ENOMEM` if there is none for programs now.
    #[inline(always)]
    pub(crate) fn admitted(&self) -> Result<&'a Arc<Process>, Errno> {
        self.process().account.admit()?;
        Ok(self.process())
    }

    /// Returns the caller's registers. `EOPNOTSUPP` for a call that came through a ring.
    #[inline(always)]
    pub(crate) fn registers(self) -> Result<&'a mut UserContext, Errno> {
        match self.source {
            ArgumentSource::Registers(context) => Ok(context),
            ArgumentSource::Request(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Returns whether the call came through a request ring.
    #[inline(always)]
    pub(crate) fn is_from_ring(&self) -> bool {
        matches!(self.source, ArgumentSource::Request(_))
    }

    /// Returns an argument as the whole register.
    #[inline(always)]
    pub(crate) fn word(&self, argument: usize) -> usize {
        match &self.source {
            ArgumentSource::Registers(context) => context.arguments()[argument] as usize,
            ArgumentSource::Request(arguments) => arguments[argument] as usize,
        }
    }

    /// Returns an argument as a C `unsigned int`: only the lower half counts.
    #[inline(always)]
    pub(crate) fn unsigned(&self, argument: usize) -> u32 {
        self.word(argument) as u32
    }

    /// Returns an argument as a C `int`: only the lower half counts.
    #[inline(always)]
    pub(crate) fn signed(&self, argument: usize) -> i32 {
        self.word(argument) as i32
    }

    /// Returns an address in the caller's memory; 0 often means none.
    #[inline(always)]
    pub(crate) fn address(&self, argument: usize) -> usize {
        self.word(argument)
    }

    /// Returns a length in bytes.
    #[inline(always)]
    pub(crate) fn length(&self, argument: usize) -> usize {
        self.word(argument)
    }

    /// Returns a place in a file. `EINVAL` before its beginning.
    #[inline(always)]
    pub(crate) fn offset(&self, argument: usize) -> Result<u64, Errno> {
        u64::try_from(self.word(argument) as i64).map_err(|_| Errno::EINVAL)
    }

    /// Returns a buffer: its address in this argument, its length in the next. `EFAULT` outside the user half.
    #[inline(always)]
    pub(crate) fn buffer(&self, argument: usize) -> Result<UserBuffer, Errno> {
        UserBuffer::new(self.word(argument), self.word(argument + 1))
    }

    /// Returns a descriptor's number, which need not be in use. `EBADF` if it is negative.
    #[inline(always)]
    pub(crate) fn descriptor(&self, argument: usize) -> Result<usize, Errno> {
        usize::try_from(self.signed(argument)).map_err(|_| Errno::EBADF)
    }

    /// Returns the open file of a descriptor. `EBADF` if there is none.
    #[inline(always)]
    pub(crate) fn file(&self, argument: usize) -> Result<Arc<OpenFile>, Errno> {
        let descriptor = self.descriptor(argument)?;
        Ok(self.process().descriptors.lock().get(descriptor)?.clone())
    }

    /// Reads the signals that are blocked instead of the present ones while the call waits: their address in this
    /// argument, their size in the next.
    pub(crate) fn signal_mask(&self, argument: usize) -> Result<Option<Set>, Errno> {
        self.signal_mask_at(self.address(argument), self.length(argument + 1))
    }

    /// Reads signals of this size at this address; `None` if the address is 0.
    pub(crate) fn signal_mask_at(&self, address: usize, size: usize) -> Result<Option<Set>, Errno> {
        match (address, size) {
            (0, _) => Ok(None),
            (address, 8) => {
                let mut bytes = [0; 8];
                self.process().copy_in(address, &mut bytes)?;
                Ok(Some(Set::mask(u64::from_le_bytes(bytes))))
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns whether the caller waits in its worker until the call is over.
    pub(crate) fn is_synchronous(&self) -> bool {
        match &self.source {
            ArgumentSource::Registers(context) => context.call_number() as usize & ASYNCHRONOUS == 0,
            ArgumentSource::Request(_) => false,
        }
    }

    /// Blocks these signals until the call is over. A call that does not wait in its worker is not interrupted, and
    /// replaces nothing.
    pub(crate) fn replace_signal_mask(&self, mask: Option<Set>) {
        if let Some(mask) = mask.filter(|_| self.is_synchronous()) {
            signal_delivery::replace_blocked(self.worker, mask);
        }
    }
}

/// Puts the state of a wait into the memory that was kept free for a wait of its worker: such calls need no admission,
/// and work when there is no other memory. A call that goes on asynchronously is admitted afterwards, before the worker
/// makes its next call.
// Inlined as Box::new was: a function that is called from the dispatcher can make every call save more registers.
#[inline(always)]
pub(crate) fn kept<T>(value: T) -> Box<T> {
    const { assert!(size_of::<T>() <= MEMORY_OF_A_WAIT) };
    faults::from_what_is_kept(|| Box::new(value))
}

/// Decodes a call that was not admitted into steps in which it goes on, in [`kept`] memory.
pub(crate) fn kept_steps(
    call: SystemCall,
    work: impl Future<Output = Result<usize, Errno>> + Send + 'static,
) -> Decoded {
    let work: Long = Box::into_pin(kept(work));
    Operation::Long(call, work).into()
}

/// Puts long work of an admitted call into its place until it is done. It is as small as everything that one admission
/// covers.
#[inline(always)]
pub(crate) fn admitted<T>(work: T) -> Pin<Box<T>> {
    const { assert!(size_of::<T>() <= memory::heap::LARGEST_CLASS) };
    Box::pin(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DATA, run};

    /// Registers and requests are read alike, and each accessor takes the part that C would.
    #[test]
    fn arguments_are_the_same_in_registers_and_requests() {
        run(|program| {
            let worker = program.process().worker(0).unwrap();
            let words = [1u64 << 32 | 3, u64::MAX, 1 << 31, DATA as u64, 100, 1 << 62];
            let mut context = UserContext::new(0, 0);
            for (index, word) in words.into_iter().enumerate() {
                context.set_register(10 + index, word);
            }
            let direct = Call::new(&worker, SystemCall::Read, ArgumentSource::Registers(&mut context));
            let request = Call::new(&worker, SystemCall::Read, ArgumentSource::Request(&words));
            for call in [&direct, &request] {
                assert_eq!(core::array::from_fn(|index| call.word(index) as u64), words);
                assert_eq!((call.unsigned(0), call.signed(1), call.unsigned(2)), (3, -1, 1 << 31));
                assert_eq!((call.descriptor(0), call.descriptor(1)), (Ok(3), Err(Errno::EBADF)));
                assert_eq!(call.descriptor(2), Err(Errno::EBADF), "negative as a C int");
                assert_eq!(call.offset(1), Err(Errno::EINVAL));
                assert_eq!(call.offset(2), Ok(1 << 31));
                let buffer = call.buffer(3).unwrap();
                assert_eq!((buffer.address(), buffer.len()), (DATA, 100));
                assert!(call.buffer(1).is_err());
                assert_eq!(call.file(0).err(), Some(Errno::EBADF));
            }
            assert!(!direct.is_from_ring() && request.is_from_ring());
            assert_eq!(request.registers().err(), Some(Errno::EOPNOTSUPP));
            assert_eq!(direct.registers().map(|context| context.register(13)), Ok(DATA as u64));
        });
    }

    #[test]
    fn a_signal_mask_has_one_size_and_is_read() {
        run(|program| {
            let worker = program.process().worker(0).unwrap();
            let mask = program.place(8) as u64;
            let check = |address: u64, size: u64| {
                Call::new(&worker, SystemCall::Poll, ArgumentSource::Request(&[0, 0, 0, address, size, 0]))
                    .signal_mask(3)
            };
            assert_eq!((check(0, 99), check(mask, 8)), (Ok(None), Ok(Some(Set::EMPTY))));
            assert_eq!((check(mask, 4), check(mask, 16)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
            assert_eq!(check(0x1000, 8), Err(Errno::EFAULT));
        });
    }
}
