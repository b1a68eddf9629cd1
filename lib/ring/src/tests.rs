//! Compares rings with a trivial queue, and exposes them to nonsense.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

use abi_queue::request::{AWAKE, SLEEPING};
use abi_queue::{Completion, CompletionHeader, Request, RequestHeader, completion, request};
use proptest::prelude::*;

use crate::{Broken, Completions, Consumer, Full, Producer, Requests, Words, must_be_called, trusting};

struct Memory {
    tail: AtomicU64,
    head: AtomicU64,
    state: AtomicU64,
    entries: Vec<[AtomicU64; 2]>,
}

impl Memory {
    fn new(capacity: usize) -> Memory {
        let entries = (0..capacity).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect();
        Memory { tail: AtomicU64::new(0), head: AtomicU64::new(0), state: AtomicU64::new(AWAKE), entries }
    }
}

impl Words<2> for Memory {
    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }
    fn head(&self) -> &AtomicU64 {
        &self.head
    }
    fn read(&self, place: usize) -> [u64; 2] {
        [0, 1].map(|index| self.entries[place][index].load(Ordering::Relaxed))
    }
    fn write(&self, place: usize, entry: [u64; 2]) {
        for (word, value) in self.entries[place].iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// An empty ring through which `start` entries have gone, modulo 2^64.
fn started_at(memory: &Memory, capacity: usize, start: u64) -> (Producer, Consumer) {
    let (mut producer, mut consumer) = (Producer::new(capacity), Consumer::new(capacity));
    (producer.tail, producer.published, producer.head) = (start, start, start);
    (consumer.head, consumer.tail) = (start, start);
    memory.tail.store(start, Ordering::Relaxed);
    memory.head.store(start, Ordering::Relaxed);
    (producer, consumer)
}

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Publish,
    Look,
    Take,
    TakeAndLeave,
    HandBack,
    Sleep,
    Call,
    Resize(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u64>().prop_map(Step::Push),
        2 => Just(Step::Publish),
        2 => Just(Step::Look),
        4 => Just(Step::Take),
        1 => Just(Step::TakeAndLeave),
        2 => Just(Step::HandBack),
        1 => Just(Step::Sleep),
        1 => Just(Step::Call),
        1 => (0u32..4).prop_map(Step::Resize),
    ]
}

proptest! {
    #![proptest_config(property::cases(256))]

    /// For any order of steps: entries are taken as published, in order; full and empty are reported correctly.
    #[test]
    fn a_ring_behaves_like_a_queue(
        steps in prop::collection::vec(step(), 1..400),
        bits in 0u32..4,
        start in property::edges(0..u64::MAX, &[u64::MAX - 8, 1 << 32]),
    ) {
        let mut capacity = 1usize << bits;
        let memory = Memory::new(8);
        let (mut producer, mut consumer) = started_at(&memory, capacity, start);
        // Not yet published; published and not seen; seen; taken and not handed back.
        let (mut made, mut shown, mut seen, mut taken) = (VecDeque::new(), VecDeque::new(), VecDeque::new(), 0usize);
        let (mut sleeps, mut published) = (false, start);
        for step in steps {
            match step {
                Step::Push(value) => {
                    let used = made.len() + shown.len() + seen.len() + taken;
                    let expected = if used < capacity { Ok(()) } else { Err(Full) };
                    prop_assert_eq!(producer.push(&memory, [value, !value]), expected);
                    if expected.is_ok() {
                        made.push_back(value);
                    }
                    prop_assert_eq!(producer.unpublished(), made.len() as u64);
                }
                Step::Publish => {
                    producer.publish(&memory);
                    published = published.wrapping_add(made.len() as u64);
                    shown.append(&mut made);
                    prop_assert_eq!(producer.published(), published);
                }
                Step::Look => {
                    seen.append(&mut shown);
                    prop_assert_eq!(consumer.look(&memory), Ok(seen.len()));
                }
                Step::Take => {
                    let expected = seen.pop_front().map(|value: u64| [value, !value]);
                    taken += usize::from(expected.is_some());
                    prop_assert_eq!(consumer.take(&memory), expected);
                }
                Step::TakeAndLeave => {
                    let expected = seen.front().map(|&value: &u64| [value, !value]);
                    prop_assert_eq!(consumer.take(&memory), expected);
                    if expected.is_some() {
                        consumer.leave_last();
                    }
                }
                Step::HandBack => {
                    consumer.hand_back(&memory);
                    taken = 0;
                }
                Step::Sleep => {
                    seen.append(&mut shown);
                    sleeps = seen.is_empty();
                    prop_assert_eq!(consumer.fall_asleep(&memory, &memory.state), Ok(sleeps));
                }
                Step::Call => {
                    prop_assert_eq!(must_be_called(&memory.state), sleeps);
                    memory.state.store(AWAKE, Ordering::Relaxed);
                    sleeps = false;
                }
                Step::Resize(bits) => {
                    let idle = made.len() + shown.len() + seen.len() + taken == 0;
                    let wanted = 1usize << bits;
                    prop_assert_eq!(producer.resize(&memory, wanted).is_ok(), idle);
                    if idle {
                        capacity = wanted;
                        prop_assert_eq!(producer.capacity(), capacity);
                        // The consumer's side learns it from the call that resizes.
                        consumer.capacity = wanted as u64;
                    }
                }
            }
        }
    }

    /// Indexes and entries of nonsense: an error, or no more entries than the capacity, and never a panic.
    #[test]
    fn nonsense_is_survived(
        tails in prop::collection::vec(property::edges(0..u64::MAX, &[5, 13, 8]), 1..50),
        near in any::<bool>(),
    ) {
        let memory = Memory::new(8);
        let mut consumer = Consumer::new(8);
        for tail in tails {
            let tail = if near { consumer.taken().wrapping_add(tail % 20).wrapping_sub(5) } else { tail };
            memory.tail.store(tail, Ordering::Relaxed);
            let ahead = tail.wrapping_sub(consumer.taken());
            match consumer.look(&memory) {
                Ok(count) => {
                    prop_assert!(count <= 8 && count as u64 == ahead);
                    let mut taken = 0;
                    while consumer.take(&memory).is_some() {
                        taken += 1;
                    }
                    prop_assert_eq!(taken, count);
                }
                Err(Broken) => {
                    prop_assert!(ahead > 8);
                    prop_assert_eq!(consumer.fall_asleep(&memory, &memory.state), Err(Broken));
                }
            }
        }
    }

    /// A head of nonsense makes the ring full, or lets the producer overwrite entries; it never leaves the ring.
    #[test]
    fn a_hostile_consumer_harms_itself(heads in prop::collection::vec(property::edges(0..u64::MAX, &[8]), 1..50)) {
        let memory = Memory::new(8);
        let mut producer = Producer::new(8);
        for head in heads {
            memory.head.store(head, Ordering::Relaxed);
            let free = producer.free(&memory);
            prop_assert!(free <= 8);
            for _ in 0..free {
                prop_assert!(producer.post(&memory, [1, 2]).is_ok());
            }
            prop_assert_eq!(memory.tail.load(Ordering::Relaxed), producer.published());
        }
    }
}

/// The other side writes arbitrary words into the ring, between any two steps.
#[test]
fn fuzz_ring() {
    let seeds: [&[u8]; 2] =
        [&[3, 1, 0, 1, 1, 4, 6, 2, 3, 0, 4, 5], &[3, 8, 255, 255, 255, 255, 255, 255, 255, 255, 6, 1, 1, 4]];
    property::fuzz("ring", &seeds, |input| {
        let mut numbers = property::Numbers::new(input);
        let capacity = 1usize << (numbers.byte() % 4);
        let memory = Memory::new(8);
        let (mut producer, mut consumer) = started_at(&memory, capacity, numbers.number());
        while !numbers.is_empty() {
            match numbers.byte() % 8 {
                0 => memory.tail.store(consumer.taken().wrapping_add(numbers.number()), Ordering::Relaxed),
                1 => memory.head.store(producer.published().wrapping_sub(numbers.number()), Ordering::Relaxed),
                2 => memory.state.store(numbers.number(), Ordering::Relaxed),
                3 => {
                    let free = producer.free(&memory);
                    assert!(free <= capacity);
                    assert_eq!(producer.push(&memory, [1, 2]).is_ok(), free > 0);
                }
                4 => producer.publish(&memory),
                5 => {
                    let before = consumer.taken();
                    while consumer.take(&memory).is_some() {}
                    assert!(consumer.taken().wrapping_sub(before) <= capacity as u64);
                    consumer.hand_back(&memory);
                }
                6 => {
                    let ahead = memory.tail.load(Ordering::Relaxed).wrapping_sub(consumer.taken());
                    match consumer.look(&memory) {
                        Ok(count) => assert!(count <= capacity && count as u64 == ahead),
                        Err(Broken) => assert!(ahead > capacity as u64),
                    }
                }
                _ => {
                    let _ = consumer.fall_asleep(&memory, &memory.state);
                    must_be_called(&memory.state);
                }
            }
        }
    });
}

/// Every history of seven steps of both sides, over rings of one and of two entries, from the first index and across
/// the largest: entries are taken as published, in order.
#[test]
fn every_short_history_is_one_of_a_queue() {
    const STEPS: u32 = if cfg!(miri) { 3 } else { 7 };
    for capacity in [1, 2] {
        for start in [0, u64::MAX - 1, u64::MAX] {
            for history in 0..5u32.pow(STEPS) {
                let memory = Memory::new(2);
                let (mut producer, mut consumer) = started_at(&memory, capacity, start);
                // Entries made, shown, seen, taken and handed back so far.
                let (mut made, mut shown, mut seen, mut taken, mut back) = (0u64, 0u64, 0u64, 0u64, 0u64);
                let mut rest = history;
                for _ in 0..STEPS {
                    match rest % 5 {
                        0 => {
                            let fits = made - back < capacity as u64;
                            assert_eq!(producer.push(&memory, [made, !made]).is_ok(), fits, "{history}");
                            made += u64::from(fits);
                        }
                        1 => {
                            producer.publish(&memory);
                            shown = made;
                        }
                        2 => {
                            assert_eq!(consumer.look(&memory), Ok((shown - taken) as usize), "{history}");
                            seen = shown;
                        }
                        3 => {
                            let expected = (taken < seen).then_some([taken, !taken]);
                            assert_eq!(consumer.take(&memory), expected, "{history}");
                            taken += u64::from(expected.is_some());
                        }
                        _ => {
                            consumer.hand_back(&memory);
                            back = taken;
                        }
                    }
                    rest /= 5;
                }
                assert_eq!(producer.free(&memory), capacity - (made - back) as usize, "{history}");
            }
        }
    }
}

#[test]
fn indexes_wrap() {
    let memory = Memory::new(4);
    let (mut producer, mut consumer) = started_at(&memory, 4, u64::MAX - 5);
    for number in 0..20u64 {
        assert_eq!(producer.post(&memory, [number, 0]), Ok(()));
        assert_eq!(consumer.look(&memory), Ok(1));
        assert_eq!(consumer.take(&memory), Some([number, 0]));
        consumer.hand_back(&memory);
    }
}

#[test]
fn a_sleeping_consumer_is_called_once_there_is_something() {
    let memory = Memory::new(4);
    let (mut producer, mut consumer) = (Producer::new(4), Consumer::new(4));
    assert!(!must_be_called(&memory.state));
    assert_eq!(consumer.fall_asleep(&memory, &memory.state), Ok(true));
    assert_eq!(memory.state.load(Ordering::Relaxed), SLEEPING);
    producer.post(&memory, [1, 2]).unwrap();
    assert!(must_be_called(&memory.state));
    assert_eq!(consumer.fall_asleep(&memory, &memory.state), Ok(false));
    assert!(!must_be_called(&memory.state));
    assert_eq!(consumer.take(&memory), Some([1, 2]));
}

fn zeros<T>(count: usize, zero: impl Fn() -> T) -> Vec<T> {
    (0..count).map(|_| zero()).collect()
}

#[test]
fn completions_arrive_in_order_and_a_full_ring_refuses() {
    let header = CompletionHeader::new();
    let entries: Vec<completion::Entry> = zeros(64, Default::default);
    let ring = Completions::new(&header, &entries);
    let mut producer = Producer::new(64);
    let completion = |n: u64| Completion { token: n, cid: n + 1, result: n + 2 };
    for round in 0..3u64 {
        for n in 0..64 {
            assert_eq!(producer.post(&ring, completion(round * 1000 + n).to_words()), Ok(()));
        }
        assert_eq!(producer.post(&ring, completion(0).to_words()), Err(Full));
        assert!(!ring.is_empty());
        for n in 0..64 {
            assert_eq!(ring.peek(), Some(completion(round * 1000 + n)));
            assert_eq!(ring.take(), Some(completion(round * 1000 + n)));
        }
        assert_eq!(ring.take(), None);
        assert_eq!(ring.take_all(|_| unreachable!()), 0);
        // All at once, across the ring's end.
        for n in 0..40 {
            assert_eq!(producer.post(&ring, completion(n).to_words()), Ok(()));
        }
        let mut taken = Vec::new();
        assert_eq!(ring.take_all(|completion| taken.push(completion)), 40);
        assert_eq!(taken, (0..40).map(completion).collect::<Vec<_>>());
        assert!(ring.is_empty() && trusting::is_empty(&ring));
    }
    assert_eq!(producer.published(), 3 * (64 + 40));
}

#[test]
fn requests_raise_their_urgency() {
    let header = RequestHeader::new();
    let entries: Vec<request::Entry> = zeros(64, Default::default);
    let ring = Requests::new(&header, &entries);
    let (mut producer, mut consumer) = (Producer::new(64), Consumer::new(64));
    let request = |call| Request { call, token: 7, arguments: [1, 2, 3, 4, 5, 6] };
    for (call, urgency, expected) in [(1, 5, 5), (2, 3, 5), (3, 60, 60)] {
        assert_eq!(ring.submit(&mut producer, request(call), urgency), Ok(()));
        assert_eq!(ring.header().urgency.load(Ordering::Relaxed), expected);
    }
    assert_eq!(consumer.look(&ring), Ok(3));
    for call in 1..=3 {
        assert_eq!(consumer.take(&ring).map(Request::from_words), Some(request(call)));
    }
}
