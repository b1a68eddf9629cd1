//! The coroutine that takes back the registrations of epolls and lists that have gone.

use abi_queue::Priority;

use crate::files::epoll::{self, CLEANER};
use crate::files::remains::{self, Remains};
use crate::process::table;
use crate::scheduling::{self, executor, standing, steps};

/// Starts the coroutine.
pub(crate) fn start() {
    remains::register(Remains { free_some: epoll::free_remains, are_left: epoll::has_remains });
    executor::spawn_for_kernel(standing::worth_of(Priority::DEFAULT), clean());
}

/// Takes back registrations that dropped calls have left, for ever: they hold files open. Their owners pay.
async fn clean() {
    loop {
        CLEANER.summoned().await;
        while epoll::free_remains_for_owners(|owner, step| match table::find(owner) {
            Some(process) => scheduling::charging(&process, step),
            None => step(),
        }) {
            steps::pause_at_the_end().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use core::task::Waker;

    use abi_unix::types::epoll as event;

    use super::*;
    use crate::files::epoll::{PollEntries, Remain, leave};
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
            leave(Remain::List { entries, waker: None, owner: process.id });
            assert!(epoll::has_remains());
            program.sleep_ns(1_000_000);
            assert!(!epoll::has_remains());
            let charged = process.cpu_ticks() - before;
            assert!(charged >= LONG, "{charged}");
        });
    }
}
