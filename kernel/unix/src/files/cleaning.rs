//! The coroutine that does the rest of what calls have left ([`remains`]), for their owners. The remains of a process
//! whose budget is used up fall behind all other work, as everything of such a process does.

use alloc::sync::Arc;
use core::cell::Cell;
use core::future::poll_fn;
use core::task::{Poll, Waker};

use abi_queue::Priority;
use hal_api::Machine as _;
use memory::MemoryObject;
use platform::Machine;

use crate::files::mounts;
use crate::files::remains::{self, CLEANER, OfFileSystems};
use crate::files::shared_memory;
use crate::process::table;
use crate::scheduling::payers::Since;
use crate::scheduling::{self, executor, standing, steps};

/// Starts the coroutine.
pub(crate) fn start() {
    remains::register(OfFileSystems {
        free_some: || mounts::top().tree().free_remains(),
        are_left: || mounts::top().tree().has_remains(),
    });
    shared_memory::register(take_lost_pages);
    executor::spawn_for_kernel(standing::worth_of(Priority::DEFAULT), clean());
}

/// Takes pages behind the end of an object from the space of the first process from a number on, from an address on;
/// returns where to go on.
fn take_lost_pages(object: &Arc<MemoryObject>, (number, address): (u32, u64)) -> Option<(u32, u64)> {
    let process = table::next_after(number.saturating_sub(1))?;
    let from = if process.id == number { address } else { 0 };
    let (flush, next) = process.space().lock().leave_lost_pages(object, from);
    usermode::flush(flush);
    Some(next.map_or((process.id + 1, 0), |address| (process.id, address)))
}

/// Frees what calls have left, for ever: registrations, for one, hold files open.
async fn clean() {
    loop {
        CLEANER.summoned().await;
        let mut unseen = remains::number_to_look_at();
        poll_fn(|cx| clean_until_wanted(&mut unseen, cx.waker())).await;
    }
}

/// Frees remains until there are none or the hart is wanted. Owners pay for all of the turn, looks and
/// searches too: a step is short beside these.
fn clean_until_wanted(unseen: &mut usize, waker: &Waker) -> Poll<()> {
    let since = Cell::new(Since::at(Machine::now()));
    loop {
        if remains::free_for_owners(|owner, step| charging(owner, step, &since)) {
            if steps::must_pause(&steps::Endless, Some(waker)) {
                return Poll::Pending;
            }
        } else if *unseen > 0 {
            *unseen -= 1;
            remains::bring_forward();
        } else {
            return Poll::Ready(());
        }
    }
}

/// Does a step for the process with this number, which pays for the time since the last payment; `None` if it has no
/// budget left, and pays for being looked at.
fn charging(owner: u32, step: &mut dyn FnMut() -> bool, since: &Cell<Since>) -> Option<bool> {
    let Some(process) = table::find(owner) else { return Some(step()) };
    let result = (!scheduling::has_no_claim(&process)).then(step);
    since.set(scheduling::charge_since(&process, since.get()));
    result
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use core::task::Waker;

    use abi_unix::SystemCall;
    use abi_unix::types::epoll as event;
    use hal_api::Machine as _;
    use platform::Machine;

    use super::*;
    use crate::files::epoll::{ListRegistrations, PollEntries};
    use crate::files::remains::leave;
    use crate::testing::{run, simulation};

    /// A clock that goes on by so many ticks when it is woken: work that takes long.
    struct LongWork;

    const LONG: u64 = 1_000_000;

    impl Wake for LongWork {
        fn wake(self: Arc<LongWork>) {
            simulation().advance(LONG);
        }
    }

    /// The coroutine that takes back registrations works for the process that has left them.
    #[test]
    fn the_process_that_leaves_registrations_pays_for_taking_them_back() {
        run(|program| {
            let process = program.process();
            let (reader, writer) = program.pipe(0);
            let [file, other_end] = [reader, writer].map(|end| process.descriptors.lock().get(end).unwrap().clone());
            program.close(reader).unwrap();
            // The end of the reader, which only the list holds now, wakes it.
            let waker = Waker::from(Arc::new(LongWork));
            other_end.readiness(&*process, event::OUT, Some(&waker)).unwrap();
            // The last piece goes first, at once.
            let entries = PollEntries::from_iter([vec![(event::IN, Some(file))], vec![]]);
            let before = process.cpu_ticks();
            leave(ListRegistrations { entries, waker: None, owner: process.id });
            assert!(remains::has_left());
            program.sleep_ns(1_000_000);
            assert!(!remains::has_left());
            let charged = process.cpu_ticks() - before;
            assert!(charged >= LONG, "{charged}");
        });
    }

    /// Registrations of a process whose budget is used up wait while anything else is ready, and are taken back when
    /// its budget is refilled, or when nothing is.
    #[test]
    fn registrations_of_an_exhausted_process_fall_behind() {
        run(|program| {
            let (reader, _writer) = program.pipe(0);
            let file = program.process().descriptors.lock().get(reader).unwrap().clone();
            let owner = program.spawn(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
            program.sleep_ns(1_000_000);
            let process = table::find(owner as u32).unwrap();
            let list = || {
                let entries = (0..3).map(|_| vec![(event::IN, Some(file.clone()))]);
                ListRegistrations { entries: entries.collect(), waker: None, owner: process.id }
            };
            let exhaust = || scheduling::charge(&process, u64::MAX, Machine::now());
            // Nothing less important than the cleaner runs, and all of it is done in its turn.
            leave(list());
            let _ = program.call(SystemCall::Yield, []);
            assert!(!remains::has_left() && remains::number_behind() == 0, "it has budget");

            exhaust();
            leave(list());
            for _ in 0..10 {
                let _ = program.call(SystemCall::Yield, []);
            }
            assert_eq!((remains::has_left(), remains::number_behind()), (false, 1), "it has none");
            // A process that closes something does not do the other's work.
            program.close(reader).unwrap();
            assert_eq!(remains::number_behind(), 1);
            program.sleep_ns(1000);
            assert_eq!(remains::number_behind(), 0, "nothing else was ready");

            leave(list());
            let _ = program.call(SystemCall::Yield, []);
            assert_eq!(remains::number_behind(), 1);
            let charged = process.cpu_ticks();
            // The machine is never idle, and its budget is refilled after some periods.
            simulation().advance(crate::time::ticks_at_ns(10_000_000_000));
            for _ in 0..10 {
                let _ = program.call(SystemCall::Yield, []);
            }
            assert!(!remains::has_left() && remains::number_behind() == 0);
            assert!(process.cpu_ticks() >= charged);
            process.end(crate::process::exit_status::Ending::Killed(9));
            program.wait_for(owner).unwrap();
        });
    }
}
