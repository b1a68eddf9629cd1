//! Completions on their way to a process: its completion ring, and those that found the ring full.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use ::ring::Producer;
use abi_queue::pages::PAGE_SIZE;
use abi_queue::{Completion, Priority, completion};
use abi_unix::Errno;
use memory::SharedFrame;
use tables::Queue;

use crate::asynchronous::ring_words::CompletionView;
use crate::process::accounts::{Account, Batch, Charge, Resource};
use crate::process::shared::Shared;
use crate::scheduling::steps;

/// Number of places for completions that are kept beyond those needed.
const SPARE_COMPLETIONS: usize = 1024;

/// Completions on their way to the process.
pub(crate) struct Completions {
    pub(super) producer: Producer,
    /// The frames of the ring.
    pub(super) frames: Vec<SharedFrame>,
    /// Number of places in the ring that are promised to requests that are being performed.
    pub(super) promised: usize,
    /// Charge for calls in flight and for completions that wait.
    pub(super) charged: Batch,
    /// Charge for the frames that the ring was given beyond its first ones.
    pub(super) more_frames: Charge,
    /// Completions that found the ring full. Room is reserved when a call is submitted, so this never fails.
    pub(super) waiting: Queue<Completion>,
    /// Priority of the most important completion in the ring.
    pub(super) most_important: Priority,
}

impl Completions {
    /// Creates the completions of a process that begins, with the frames of a ring that is empty.
    pub(super) fn new(shared: &Shared, account: &Arc<Account>, memory_of_a_call: usize) -> Completions {
        Completions::with_frames(shared.ring().to_vec(), account, memory_of_a_call)
    }

    /// Resets it to the state after [`new`](Self::new), without any memory, and returns the old state.
    pub(super) fn begin_anew(
        &mut self,
        shared: &Shared,
        account: &Arc<Account>,
        memory_of_a_call: usize,
    ) -> Completions {
        let mut frames = core::mem::take(&mut self.frames);
        // There is room: the list began with as many frames.
        frames.clear();
        frames.extend_from_slice(shared.ring());
        core::mem::replace(self, Completions::with_frames(frames, account, memory_of_a_call))
    }

    pub(super) fn with_frames(
        frames: Vec<SharedFrame>,
        account: &Arc<Account>,
        memory_of_a_call: usize,
    ) -> Completions {
        let producer = Producer::new(completion::INITIAL_CAPACITY);
        let completions = Completions {
            producer,
            frames,
            promised: 0,
            charged: Batch::new(account, Resource::Calls, memory_of_a_call),
            more_frames: account.nothing(Resource::Memory),
            waiting: Queue::new(),
            most_important: Priority::LOWEST,
        };
        completions.tell_capacity();
        completions
    }

    /// Returns the priority of the most important completion that the process has not taken, if there is one.
    pub(super) fn most_important(&mut self) -> Option<Priority> {
        let is_empty = self.producer.free(&CompletionView::new(&self.frames)) == self.producer.capacity();
        if is_empty { None } else { Some(self.most_important) }
    }

    /// Returns the number of frames that the ring needs for this capacity beyond its present ones. `EBUSY` if it needs
    /// more, and is not empty.
    pub(super) fn missing_frames(&mut self, capacity: usize) -> Result<usize, Errno> {
        if capacity <= self.producer.capacity() {
            return Ok(0);
        }
        let is_idle = self.promised == 0 && self.waiting.is_empty();
        let free = self.producer.free(&CompletionView::new(&self.frames));
        if !is_idle || free != self.producer.capacity() {
            return Err(Errno::EBUSY);
        }
        Ok(completion::pages(capacity) - self.frames.len())
    }

    /// Publishes the number of entries to the process.
    pub(super) fn tell_capacity(&self) {
        let capacity = self.frames[0].bytes().atomic_u64(completion::CAPACITY_OFFSET);
        let capacity = capacity.expect("offsets of the ring's layout are aligned and inside");
        capacity.store(self.producer.capacity() as u64, Ordering::Relaxed);
    }

    /// Puts completions, of this priority at most, into the ring, or into the queue of those that wait.
    #[inline(always)]
    pub(super) fn post(&mut self, completions: impl Iterator<Item = Completion>, priority: Priority) {
        let words = CompletionView::new(&self.frames);
        // Read anew: an impossible index of the process has to mean "full" immediately.
        let is_empty = self.producer.free(&words) == self.producer.capacity();
        if is_empty || priority.is_more_important_than(self.most_important) {
            self.most_important = priority;
        }
        for completion in completions {
            if !self.waiting.is_empty() || self.producer.push(&words, completion.to_words()).is_err() {
                self.waiting.push_back(completion);
            }
        }
        Self::publish(&mut self.producer, &words);
    }

    /// Makes room for so many completions in the queue, with those that wait already.
    #[cold]
    pub(super) fn reserve(&mut self, places: usize) -> Result<(), Errno> {
        self.waiting.reserve(places).map_err(|_| Errno::ENOMEM)
    }

    /// Gives back some of the room that many calls have left, when so many are in flight.
    #[inline(always)]
    pub(super) fn trim(&mut self, calls: usize) {
        let needed = self.waiting.len() + calls + self.promised;
        if self.waiting.capacity() > needed + SPARE_COMPLETIONS {
            self.waiting.trim(needed);
        }
    }

    /// Makes the pushed completions visible. If there are none, the process's words stay as they are.
    pub(super) fn publish(producer: &mut Producer, words: &CompletionView<'_>) {
        if producer.unpublished() > 0 {
            producer.publish(words);
        }
    }
}

/// Drops completions that waited, and their room, in steps.
pub(super) async fn drop_in_steps(waiting: Queue<Completion>) {
    for (number, segment) in waiting.into_segments().enumerate() {
        drop(segment);
        if number % steps::ENTRIES == 0 {
            steps::pause_at_the_end().await;
        }
    }
}

/// Returns the number of entries of a completion ring with so many frames.
pub(super) fn completions_capacity(frames: usize) -> usize {
    (frames - 1) * (PAGE_SIZE / completion::ENTRY_SIZE)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::TimeSpec;

    use super::*;
    use crate::testing::run;

    #[test]
    fn the_most_important_completion_is_known_until_it_is_taken() {
        run(|program| {
            let process = program.process();
            let most_important = || process.completions.lock().most_important();
            assert_eq!(most_important(), None);
            let time = program.store(&TimeSpec::from_ns(1_000_000).to_bytes());
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 1), None);
            program.sleep_ns(5_000_000);
            assert!(most_important().is_some());
            assert_eq!(program.completions().len(), 1);
            assert_eq!(most_important(), None);
        });
    }

    #[test]
    fn the_capacity_follows_from_the_frames() {
        for capacity in [completion::INITIAL_CAPACITY, 4 * completion::INITIAL_CAPACITY] {
            assert_eq!(completions_capacity(completion::pages(capacity)), capacity);
        }
    }
}
