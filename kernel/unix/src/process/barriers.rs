//! Barriers of memory on all harts of a process (membarrier(2)).
//!
//! A program that pairs rare stores with very frequent loads can leave the fence of the loads out, and have one made on
//! every hart that could have needed it. The harts that are in the process's memory now get theirs in machine mode, as
//! they flush translations there. A thread that is on no hart has let go of its last one under a lock that this call
//! takes after that, and takes its next one under a lock that this call has released before: its accesses are ordered
//! by these.
//!
//! A barrier on all harts, whatever they run, interrupts programs that have nothing to do with the caller. So such
//! barriers come at most once in [`BETWEEN_NS`], whoever asks for them, and each serves everybody who has asked before
//! it: callers wait for that long at most, as they do on Linux. A caller that finds no recent one waits for nothing.
//!
//! Registration has no effect but that the barriers are permitted, as on Linux: nothing here costs a process that uses
//! none.

use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Poll;

use abi_unix::Errno;
use abi_unix::types::memory_barrier as command;
use hal_api::Machine as _;
use platform::Machine;
use spin::Mutex;
use usermode::Space;

use crate::machine;
use crate::scheduling::steps::{self, Ends};
use crate::time;
use crate::time::limit::TimeLimit;

/// Time between two barriers on all harts.
const BETWEEN_NS: u64 = 1_000_000;

/// All commands but `MEMBARRIER_CMD_QUERY`, which tells them.
const ALL: u32 = command::GLOBAL
    | command::PRIVATE
    | command::REGISTER_PRIVATE
    | command::PRIVATE_INSTRUCTIONS
    | command::REGISTER_PRIVATE_INSTRUCTIONS
    | command::REGISTRATIONS;

/// The barriers on all harts so far.
struct Rounds {
    count: u64,
    /// The tick before which there is no other.
    next: u64,
}

static ROUNDS: Mutex<Rounds> = Mutex::new(Rounds { count: 0, next: 0 });

/// An alarm that is taken back.
struct Armed(TimeLimit);

impl Drop for Armed {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Performs the barrier on all harts, or waits for one that begins after this call.
///
/// # Cancellation
/// Dropping it has no effect.
#[doc(alias = "synchronize_rcu")]
pub(crate) async fn order_all(payer: Arc<impl Ends>) -> Result<usize, Errno> {
    let seen = ROUNDS.lock().count;
    loop {
        let next = {
            let mut rounds = ROUNDS.lock();
            if rounds.count != seen {
                return Ok(0);
            }
            let now = Machine::now();
            if now >= rounds.next {
                // Under the lock, so that each begins after those who count on it have asked.
                usermode::order_accesses_of((1 << machine::harts()) - 1);
                *rounds = Rounds { count: seen + 1, next: now + time::ticks_at_ns(BETWEEN_NS) };
                return Ok(0);
            }
            rounds.next
        };
        let mut alarm = Armed(TimeLimit::At(next));
        let has_come = poll_fn(|cx| {
            if alarm.0.has_passed() || payer.has_ended() {
                return Poll::Ready(Ok(()));
            }
            match steps::waker_of(cx).map_or(Ok(()), |waker| alarm.0.arm(waker)) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        });
        if has_come.await.is_err() {
            // Without memory for an alarm it looks again and again.
            steps::pause(&payer).await;
        }
    }
}

/// The barriers that a process has registered for, as the bits of the commands that register.
#[derive(Default)]
pub(crate) struct Barriers(AtomicU32);

impl Barriers {
    /// Takes over those of the process of which this one is a copy.
    pub(crate) fn inherit(&self, other: &Barriers) {
        self.0.store(other.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Forgets all: another program begins.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn register(&self, which: u32) {
        self.0.fetch_or(which, Ordering::Relaxed);
    }

    fn require(&self, which: u32) -> Result<(), Errno> {
        if self.0.load(Ordering::Relaxed) & which != 0 { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Performs `membarrier` for a process in this space, but for the barrier on all harts.
    #[doc(alias = "sys_membarrier")]
    pub(crate) fn perform(&self, space: &Space, which: u32) -> Result<usize, Errno> {
        match which {
            command::QUERY => return Ok(ALL as usize),
            command::REGISTRATIONS => return Ok(self.0.load(Ordering::Relaxed) as usize),
            command::REGISTER_PRIVATE | command::REGISTER_PRIVATE_INSTRUCTIONS => self.register(which),
            command::PRIVATE => {
                self.require(command::REGISTER_PRIVATE)?;
                space.order_accesses();
            }
            command::PRIVATE_INSTRUCTIONS => {
                self.require(command::REGISTER_PRIVATE_INSTRUCTIONS)?;
                // Others fetch anew when they enter.
                space.fetch_anew();
                space.order_accesses();
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run};

    fn barrier(program: &mut Program, which: u32) -> Result<usize, Errno> {
        program.call(SystemCall::MemoryBarrier, [which as usize, 0, 0])
    }

    #[test]
    fn barriers_need_their_registration_which_copies_have_and_other_programs_do_not() {
        run(|program| {
            assert_eq!(barrier(program, command::QUERY), Ok(ALL as usize));
            assert_eq!(program.call(SystemCall::MemoryBarrier, [0, 1, 0]), Err(Errno::EINVAL));
            for which in [3, command::PRIVATE | command::GLOBAL, 1 << 30, u32::MAX, 2, 4, 128, 256] {
                assert_eq!(barrier(program, which), Err(Errno::EINVAL), "{which}");
            }
            for which in [command::PRIVATE, command::PRIVATE_INSTRUCTIONS] {
                assert_eq!(barrier(program, which), Err(Errno::EPERM), "{which}");
            }
            let begin = time::now_ns();
            for _ in 0..10 {
                assert_eq!(barrier(program, command::GLOBAL), Ok(0));
            }
            assert!(time::now_ns() - begin >= 9 * BETWEEN_NS, "they interrupt others");
            assert_eq!(barrier(program, command::REGISTER_PRIVATE), Ok(0));
            assert_eq!(barrier(program, command::PRIVATE), Ok(0));
            assert_eq!(barrier(program, command::PRIVATE_INSTRUCTIONS), Err(Errno::EPERM), "the other one");
            assert_eq!(barrier(program, command::REGISTER_PRIVATE_INSTRUCTIONS), Ok(0));
            assert_eq!(barrier(program, command::PRIVATE_INSTRUCTIONS), Ok(0));
            let both = command::REGISTER_PRIVATE | command::REGISTER_PRIVATE_INSTRUCTIONS;
            assert_eq!(barrier(program, command::REGISTRATIONS), Ok(both as usize));
            let copy = program.fork(move |program| {
                assert_eq!(barrier(program, command::REGISTRATIONS), Ok(both as usize));
                let path = program.store(crate::testing::PATH);
                program.goes_on_as(|program| assert_eq!(barrier(program, command::REGISTRATIONS), Ok(0)));
                let _ = program.call(SystemCall::Execute, [path, 0, 0]);
            });
            let copy = copy.unwrap();
            assert_eq!(program.wait_for(copy), Ok((copy, 0)));
        });
    }
}
