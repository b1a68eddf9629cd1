//! Every interleaving of small cases, with the memory model's weakest behaviour.

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use crate::{Consumer, Producer, Words, must_be_called, trusting};

const WORDS: usize = 2;

struct Memory {
    tail: AtomicU64,
    head: AtomicU64,
    state: AtomicU64,
    entries: Vec<[AtomicU64; WORDS]>,
}

impl Memory {
    fn new(capacity: usize) -> Memory {
        let entries = (0..capacity).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect();
        Memory { tail: AtomicU64::new(0), head: AtomicU64::new(0), state: AtomicU64::new(0), entries }
    }
}

impl Words<WORDS> for Memory {
    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }
    fn head(&self) -> &AtomicU64 {
        &self.head
    }
    fn read(&self, place: usize) -> [u64; WORDS] {
        [0, 1].map(|index| self.entries[place][index].load(Ordering::Relaxed))
    }
    fn write(&self, place: usize, entry: [u64; WORDS]) {
        for (word, value) in self.entries[place].iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// Entries are taken whole, once and in order, also when places are used again.
#[test]
fn entries_arrive_whole_and_in_order() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(2));
        let other = memory.clone();
        let producing = thread::spawn(move || {
            let mut producer = Producer::new(2);
            let mut made = 0;
            for number in 1..=3 {
                // Does not wait: the room depends on the interleaving.
                made += u64::from(producer.post(&*other, [number, number * 10]).is_ok());
                if made < number {
                    break;
                }
            }
            made
        });
        let mut consumer = Consumer::new(2);
        let mut taken = VecDeque::new();
        let mut take = |consumer: &mut Consumer| {
            consumer.look(&*memory).unwrap();
            while let Some(entry) = consumer.take(&*memory) {
                taken.push_back(entry);
            }
            consumer.hand_back(&*memory);
        };
        take(&mut consumer);
        take(&mut consumer);
        let made = producing.join().unwrap();
        take(&mut consumer);
        assert!(made >= 2);
        assert_eq!(taken.len() as u64, made);
        for (index, entry) in taken.into_iter().enumerate() {
            let number = index as u64 + 1;
            assert_eq!(entry, [number, number * 10]);
        }
    });
}

/// A batch becomes visible as a whole.
#[test]
fn a_batch_is_one_step() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(4));
        let other = memory.clone();
        let producing = thread::spawn(move || {
            let mut producer = Producer::new(4);
            producer.push(&*other, [1, 10]).unwrap();
            producer.push(&*other, [2, 20]).unwrap();
            producer.publish(&*other);
        });
        let mut consumer = Consumer::new(4);
        let count = consumer.look(&*memory).unwrap();
        assert!(count == 0 || count == 2);
        if count == 2 {
            assert_eq!(consumer.take(&*memory), Some([1, 10]));
            assert_eq!(consumer.take(&*memory), Some([2, 20]));
        }
        assert_eq!(consumer.take(&*memory), None);
        producing.join().unwrap();
    });
}

/// Whenever the consumer has gone to sleep with an entry in the ring, the producer calls it.
#[test]
fn no_consumer_sleeps_beside_a_request() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(2));
        let called = Arc::new(AtomicBool::new(false));
        let (other, calls) = (memory.clone(), called.clone());
        let producing = thread::spawn(move || {
            let mut producer = Producer::new(2);
            producer.post(&*other, [1, 10]).unwrap();
            if must_be_called(&other.state) {
                calls.store(true, Ordering::Relaxed);
            }
        });
        let mut consumer = Consumer::new(2);
        let sleeps = consumer.fall_asleep(&*memory, &memory.state).unwrap();
        producing.join().unwrap();
        if sleeps {
            assert!(called.load(Ordering::Relaxed), "it sleeps, and was not called");
        } else {
            assert_eq!(consumer.take(&*memory), Some([1, 10]));
        }
    });
}

/// A consumer serves, sleeps, and may be called in between: nothing is left at the end.
#[test]
fn everything_is_served_before_the_last_sleep() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(2));
        let calls = Arc::new(AtomicU64::new(0));
        let (other, called) = (memory.clone(), calls.clone());
        let producing = thread::spawn(move || {
            let mut producer = Producer::new(2);
            for number in 1..=2 {
                producer.post(&*other, [number, number]).unwrap();
                if must_be_called(&other.state) {
                    called.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut consumer = Consumer::new(2);
        let mut taken = 0;
        let mut serve = |consumer: &mut Consumer| {
            loop {
                while consumer.take(&*memory).is_some() {
                    taken += 1;
                }
                consumer.hand_back(&*memory);
                if consumer.fall_asleep(&*memory, &memory.state).unwrap() {
                    break;
                }
            }
        };
        serve(&mut consumer);
        producing.join().unwrap();
        if calls.load(Ordering::Relaxed) > 0 {
            serve(&mut consumer);
        }
        assert_eq!(taken, 2);
    });
}

/// Two takers in a process that exclude each other, as the runtime's workers do.
#[test]
fn takers_that_exclude_each_other_take_each_once() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(2));
        let busy = Arc::new(AtomicBool::new(false));
        let mut producer = Producer::new(2);
        producer.post(&*memory, [1, 10]).unwrap();
        fn take(memory: &Memory, busy: &AtomicBool) -> u64 {
            let mut sum = 0;
            while !trusting::is_empty(memory) {
                if busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
                    break;
                }
                while let Some([number, tenfold]) = trusting::peek(memory, 2) {
                    assert_eq!(tenfold, number * 10);
                    sum += number;
                    trusting::advance(memory, 1);
                }
                busy.store(false, Ordering::Release);
            }
            sum
        }
        let (other, lock) = (memory.clone(), busy.clone());
        let taking = thread::spawn(move || take(&other, &lock));
        producer.post(&*memory, [2, 20]).unwrap();
        let own = take(&memory, &busy);
        let others = taking.join().unwrap();
        let rest = take(&memory, &busy);
        assert_eq!(own + others + rest, 3);
    });
}

/// Takers that take all available entries at a time, in a full ring that fills up again meanwhile.
#[test]
fn entries_taken_together_are_taken_once() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(2));
        let mut producer = Producer::new(2);
        producer.post(&*memory, [1, 10]).unwrap();
        producer.post(&*memory, [2, 20]).unwrap();
        let other = memory.clone();
        let producing = thread::spawn(move || {
            while producer.post(&*other, [3, 30]).is_err() {
                thread::yield_now();
            }
        });
        let mut sum = 0;
        while sum < 6 {
            let count = trusting::count(&*memory);
            for [number, tenfold] in trusting::peek_all(&*memory, 2, count) {
                assert_eq!(tenfold, number * 10);
                sum += number;
            }
            trusting::advance(&*memory, count);
            thread::yield_now();
        }
        assert_eq!(sum, 6);
        producing.join().unwrap();
        assert!(trusting::is_empty(&*memory));
    });
}

/// For any value of the producer's index, the consumer gets no more entries than the capacity.
#[test]
fn a_hostile_tail_is_an_error_or_a_few_entries() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(2));
        let other = memory.clone();
        let scribbling = thread::spawn(move || {
            other.tail.store(u64::MAX, Ordering::Relaxed);
            other.entries[0][1].store(99, Ordering::Relaxed);
            other.tail.store(1, Ordering::Relaxed);
        });
        let mut consumer = Consumer::new(2);
        if let Ok(count) = consumer.look(&*memory) {
            assert!(count <= 2);
            let mut taken = 0;
            while consumer.take(&*memory).is_some() {
                taken += 1;
            }
            assert_eq!(taken, count);
        }
        scribbling.join().unwrap();
    });
}
