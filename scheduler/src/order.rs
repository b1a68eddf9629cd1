//! The scheduling policy: in which order equally important coroutines get their turns.
//!
//! The scheduler itself fixes one thing only: a ready coroutine of a more important priority runs before a less
//! important one. The order among equals is an [`Order`], the type parameter of [`Executor`](crate::Executor).
//! [`Image`] is the order of the shared image, and so of the Unix-like kernel and of every process.
//!
//! # The published word is independent of the order
//!
//! Bit *p* of a worker's ready word is set while the list of priority *p* is not empty. Kernel, other harts and other
//! processes compare lowest set bits, and never look at keys. So an order decides among the coroutines of one priority
//! in one shard, which no other part of the system can observe, and none of the bitmap's readers has to change with it.
//!
//! # Cost
//!
//! A coroutine that becomes ready is put in front of those at the end of its list that it precedes. Under [`Fifo`]
//! there are none and the compiler removes the comparison, so the instructions are those of a queue without a policy.
//! Under any other order the walk is as long as the number of coroutines that are passed, under the shard's lock.

/// An order among equally important coroutines of one shard.
#[doc(alias("scheduling policy", "EDF", "sched_class"))]
pub trait Order: 'static {
    /// Property of a coroutine that the order compares; it lies in the coroutine's [`Header`](crate::Header).
    ///
    /// It changes only while the coroutine is not ready, see [`Header::set_key`](crate::Header::set_key).
    type Key: Copy + Default + Send;

    /// Returns whether a coroutine with the key `newer` runs before one with the key `older` that became ready before
    /// it.
    ///
    /// A strict weak order keeps each list sorted. With any other answers each ready coroutine is still in its list
    /// exactly once, in an unspecified place.
    fn precedes(newer: Self::Key, older: Self::Key) -> bool;
}

/// First in, first out: turns in the order in which coroutines became ready.
#[derive(Clone, Copy, Debug)]
pub enum Fifo {}

impl Order for Fifo {
    type Key = ();

    #[inline(always)]
    fn precedes(_: (), _: ()) -> bool {
        false
    }
}

/// The order of the image that kernels and processes share. The book's chapter "Changing the scheduler" lists
/// everything that depends on this line.
pub type Image = Fifo;

#[cfg(all(test, not(loom)))]
mod tests {
    use core::cell::Cell;
    use core::ffi::c_void;
    use std::alloc::{Layout, alloc_zeroed};

    use proptest::prelude::*;

    use super::Order;
    use crate::{
        CHUNK_BYTES, DONE, Executor, Fifo, Header, Hooks, Outcome, PENDING, ReadyWord, SHARDS, Signals, StepOf,
        YIELDED, step_of,
    };

    enum EarliestDeadlineFirst {}

    impl Order for EarliestDeadlineFirst {
        type Key = u64;

        fn precedes(newer: u64, older: u64) -> bool {
            newer < older
        }
    }

    /// A coroutine that records its number at each poll and returns its answer once, then PENDING for ever.
    #[repr(C)]
    struct Task<O: Order> {
        header: Header<O>,
        number: usize,
        answer: Cell<u32>,
    }

    unsafe extern "C" fn step<O: Order>(header: *mut Header<O>, argument: *mut c_void, cid: u64) -> u32 {
        let StepOf::Poll { frame: turns, .. } = step_of(argument, cid) else { return DONE };
        // SAFETY: the header is the first field of a task; the frame is a vector, see `turn`.
        let (task, turns) = unsafe { (&*header.cast::<Task<O>>(), &mut *turns.cast::<Vec<usize>>()) };
        turns.push(task.number);
        task.answer.replace(PENDING)
    }

    struct World<O: Order + 'static> {
        executor: &'static Executor<O>,
        ready: &'static [ReadyWord; SHARDS],
        tasks: Vec<(u64, &'static Task<O>)>,
        turns: Vec<usize>,
    }

    impl<O: Order> World<O> {
        fn new() -> World<O> {
            let ready: &'static [ReadyWord; SHARDS] = Box::leak(Box::new([const { ReadyWord::new() }; SHARDS]));
            // SAFETY: fresh memory of the right layout and size, never freed; one thread uses it.
            let executor = unsafe {
                let memory = alloc_zeroed(Layout::new::<Executor<O>>()).cast::<Executor<O>>();
                Executor::initialise(memory, ready, Hooks::NONE);
                let slots = alloc_zeroed(Layout::from_size_align(CHUNK_BYTES, 16).unwrap());
                assert_eq!((*memory).add_slots(slots.cast(), 0), Ok(()));
                (*memory).add_worker(0, Signals::NONE);
                &*memory
            };
            World { executor, ready, tasks: Vec::new(), turns: Vec::new() }
        }

        fn spawn(&mut self, priority: u8, key: O::Key) -> usize {
            let number = self.tasks.len();
            let header = Header::new(step::<O>, 0, priority).with_key(key).blocked();
            let task: &'static Task<O> = Box::leak(Box::new(Task { header, number, answer: Cell::new(PENDING) }));
            // Of the whole task, since `poll` reaches beyond the header.
            let header = core::ptr::from_ref(task).cast_mut().cast::<Header<O>>();
            // SAFETY: the header is fresh, the first field of a task, and the task never freed.
            let cid = unsafe { self.executor.spawn(header, 0) }.unwrap();
            self.tasks.push((cid, task));
            number
        }

        fn wake(&self, number: usize) {
            assert_eq!(self.executor.wake(self.tasks[number].0), Ok(()));
        }

        fn answer(&self, number: usize, answer: u32) {
            self.tasks[number].1.answer.set(answer);
        }

        /// Runs one turn of the worker; returns the number of the coroutine that had it.
        fn turn(&mut self) -> Option<usize> {
            // SAFETY: there is one thread, and the frame has the type that `poll` expects.
            match unsafe { self.executor.run_one(0, (&raw mut self.turns).cast()) } {
                Outcome::Ran => self.turns.last().copied(),
                outcome => {
                    assert_eq!(outcome, Outcome::Idle);
                    None
                }
            }
        }
    }

    #[test]
    fn a_header_without_a_key_is_as_large_as_the_image_says() {
        assert_eq!(size_of::<Header<Fifo>>(), size_of::<Header>());
        assert_eq!(size_of::<Header<EarliestDeadlineFirst>>(), size_of::<Header>() + size_of::<u64>());
    }

    #[test]
    fn the_key_decides_among_equals_and_the_priority_before_it() {
        let mut world = World::<EarliestDeadlineFirst>::new();
        for (priority, deadline) in [(1, 30), (1, 10), (1, 20), (0, 90), (2, 1), (1, 10)] {
            let number = world.spawn(priority, deadline);
            world.wake(number);
        }
        // Bit p means that the list of priority p is not empty, for any keys.
        assert_eq!(world.ready[0].0.load(crate::sync::Ordering::Relaxed), 0b111);
        // 1 and 5 have equal deadlines: they run in the order in which they became ready.
        assert_eq!(core::iter::from_fn(|| world.turn()).collect::<Vec<_>>(), [3, 1, 5, 2, 0, 4]);
    }

    #[test]
    fn a_yielding_coroutine_goes_on_until_an_earlier_deadline_is_ready() {
        let mut world = World::<EarliestDeadlineFirst>::new();
        let (late, early) = (world.spawn(0, 50), world.spawn(0, 5));
        world.answer(late, YIELDED);
        world.wake(late);
        assert_eq!(world.turn(), Some(late));
        world.wake(early);
        world.answer(early, YIELDED);
        assert_eq!(world.turn(), Some(early));
        assert_eq!(world.turn(), Some(early), "it yields to nothing that is more urgent");
        assert_eq!(world.turn(), Some(late));
        assert_eq!(world.turn(), None);
    }

    #[test]
    fn a_key_that_was_changed_counts_from_the_next_wake() {
        let mut world = World::<EarliestDeadlineFirst>::new();
        let (first, second) = (world.spawn(0, 1), world.spawn(0, 2));
        // SAFETY: it is blocked.
        unsafe { world.tasks[first].1.header.set_key(3) };
        world.wake(first);
        world.wake(second);
        assert_eq!((world.turn(), world.turn(), world.turn()), (Some(second), Some(first), None));
    }

    proptest! {
        #![proptest_config(property::cases(64))]

        /// Against a list that is sorted anew before each turn: by priority, deadline, and arrival.
        #[test]
        fn turns_are_those_of_a_sorted_list(
            steps in proptest::collection::vec((0usize..12, 0u8..3, 0u64..6, any::<bool>()), 1..120),
        ) {
            let mut world = World::<EarliestDeadlineFirst>::new();
            let mut model: Vec<(u8, u64, usize, usize)> = Vec::new();
            let mut properties = Vec::new();
            for (arrival, (index, priority, deadline, takes)) in steps.into_iter().enumerate() {
                if properties.len() <= index {
                    let number = world.spawn(priority, deadline);
                    properties.push((priority, deadline));
                    world.answer(number, if deadline == 0 { DONE } else { PENDING });
                    world.wake(number);
                    model.push((priority, deadline, arrival, number));
                } else if !world.turns.contains(&index) || properties[index].1 != 0 {
                    if model.iter().all(|one| one.3 != index) {
                        world.wake(index);
                        model.push((properties[index].0, properties[index].1, arrival, index));
                    } else {
                        // A ready coroutine goes behind its new equals that do not have a later deadline.
                        prop_assert_eq!(world.executor.set_priority(world.tasks[index].0, priority), Ok(()));
                        let place = model.iter().position(|one| one.3 == index).unwrap();
                        if properties[index].0 != priority {
                            model[place] = (priority, properties[index].1, arrival, index);
                            properties[index].0 = priority;
                        }
                    }
                }
                if takes {
                    model.sort();
                    let wanted = (!model.is_empty()).then(|| model.remove(0).3);
                    prop_assert_eq!(world.turn(), wanted);
                }
            }
            model.sort();
            for wanted in model {
                prop_assert_eq!(world.turn(), Some(wanted.3));
            }
            prop_assert_eq!(world.turn(), None);
        }
    }

    #[test]
    fn the_book_quotes_the_trait() {
        let lines = |text: &'static str| {
            let code = text.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.is_empty());
            code.collect::<std::vec::Vec<_>>()
        };
        let book = include_str!("../../docs/book/changing-the-scheduler.md");
        let (_, snippet) = book.split_once("```rust,ignore\n").unwrap();
        let quoted = lines(snippet.split("```").next().unwrap());
        let source = lines(include_str!("order.rs"));
        assert!(source.windows(quoted.len()).any(|window| window == quoted), "{quoted:?}");
    }
}
