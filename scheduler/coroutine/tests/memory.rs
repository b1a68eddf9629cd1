//! A spawn without enough memory returns the future, and frees all memory that it allocated.

use coroutine::{Executor, Outcome, Platform, Priority, ReadyWord, Signals, SpawnError, Table};
use property::{Limited, with_memory};

#[global_allocator]
static MEMORY: Limited = Limited;

struct OneWorker;

impl Platform for OneWorker {
    fn worker(&self) -> usize {
        0
    }
    fn notify(&self, _: usize) {}
}

fn executor() -> &'static Executor {
    let executor: &'static Executor = Box::leak(Box::new(Executor::new()));
    let ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    executor.initialise(Table::native(), ready, &OneWorker).unwrap();
    executor
}

fn is_there_memory(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

/// A coroutine that identifies the returned future.
async fn give(letter: char) -> char {
    letter
}

fn spawn(executor: &'static Executor) -> Result<(), SpawnError<impl Future<Output = char>>> {
    executor.try_spawn(Priority::DEFAULT, 0, give('x')).map(|handle| handle.detach())
}

fn letter(future: impl Future<Output = char>) -> char {
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(context) {
        std::task::Poll::Ready(letter) => letter,
        std::task::Poll::Pending => panic!("it does not wait"),
    }
}

#[test]
fn a_spawn_without_memory_gives_the_future_and_the_memory_back() {
    let page = scheduler::CHUNK_BYTES;
    let executor = executor();
    for bytes in [0, 64, page - 1, page] {
        let refused = with_memory(bytes, || {
            let refused = spawn(executor).err();
            (refused, is_there_memory(bytes), is_there_memory(bytes + 1))
        });
        let (Some(SpawnError(future)), true, false) = refused else { panic!("with {bytes} bytes: {:?}", refused.1) };
        assert_eq!(letter(future), 'x');
    }
    let mut worker = executor.worker(0, Signals::default()).unwrap();
    // A page and a block suffice; afterwards a block alone suffices.
    assert!(with_memory(page + 1000, || spawn(executor).is_ok()));
    assert!(with_memory(1000, || spawn(executor).is_ok()));
    assert_eq!(worker.run(), Outcome::Idle);
}

#[test]
fn a_page_beyond_the_last_is_given_back() {
    let executor = executor();
    let mut worker = executor.worker(0, Signals::default()).unwrap();
    for _ in 0..scheduler::CHUNKS * scheduler::SLOTS_IN_CHUNK {
        spawn(executor).unwrap_or_else(|_| panic!("there is memory"));
    }
    let bytes = 2 * scheduler::CHUNK_BYTES;
    let (is_refused, is_all_there) = with_memory(bytes, || (spawn(executor).is_err(), is_there_memory(bytes)));
    assert!(is_refused && is_all_there);
    assert_eq!(worker.run(), Outcome::Idle);
}
