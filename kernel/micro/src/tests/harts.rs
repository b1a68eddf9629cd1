//! Several harts: the order at the lock, threads that become ready on another hart, and pages that another hart uses.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use abi_sel4::{Invocation, ObjectType};
use hal_api::{Flush, HartSet, Scope};
use hal_host::Simulation;
use objects::{PriorityQueues, Ref, Tcb, claim, fake};

use super::{Machine, own_harts};
use crate::hart::{IN_KERNEL, OVERTAKINGS};
use crate::smp::Shared;
use crate::state::Period;

const OTHER: usize = 1;

#[test]
fn a_hart_that_was_interrupted_is_overtaken_a_few_times_only() {
    const ENTRIES: u32 = 100;
    let simulation = Simulation::new();
    let harts = own_harts();
    let shared = Shared::new(harts);
    harts.expect(OTHER);
    let entries = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (simulation, shared, entries) = (&simulation, &shared, &entries);
        scope.spawn(move || {
            let _hart = simulation.attach(0);
            for _ in 0..ENTRIES {
                let entered = shared.enter(0);
                entries.fetch_add(1, Ordering::Relaxed);
                drop(entered);
            }
        });
        while entries.load(Ordering::Relaxed) < OVERTAKINGS {
            std::thread::yield_now();
        }
        let _hart = simulation.attach(OTHER);
        let _entered = shared.enter(OTHER);
        assert_eq!(entries.load(Ordering::Relaxed), OVERTAKINGS);
    });
    assert_eq!(entries.into_inner(), ENTRIES);
}

/// A fake machine of two harts, without ticks. The test acts as the first thread on hart 0, and executes the kernel
/// entries of hart 1, whose programs only compute.
struct Pair<'a> {
    simulation: &'a Simulation,
    machine: Machine,
    /// Number of interrupts that the other hart has taken.
    taken: Cell<usize>,
    /// Two stopped threads of hart 0.
    threads: [u64; 2],
}

impl<'a> Pair<'a> {
    fn new(simulation: &'a Simulation) -> Pair<'a> {
        let machine = Machine::new(simulation);
        machine.kernel.node_count.set(OTHER + 1);
        let queues = claim(fake(size_of::<PriorityQueues>().next_power_of_two().ilog2()));
        machine.kernel.nodes[OTHER].ready.set(0, queues);
        let threads = [0, 1].map(|index| machine.first_empty() + index);
        assert_eq!(machine.retype(machine.untyped(16), ObjectType::Tcb, 0, threads[0], 2).0, 0);
        for thread in threads {
            assert_eq!(machine.call(thread, Invocation::TcbSetSpace, &[0, 0, 0], &[2, 3]).0, 0);
        }
        Pair { simulation, machine, taken: Cell::new(0), threads }
    }

    fn tcb(&self, index: usize) -> Ref<Tcb> {
        match self.machine.slot(self.threads[index]).capability.get() {
            objects::Capability::Thread { tcb } => tcb,
            other => panic!("no thread: {other:?}"),
        }
    }

    /// Makes an invocation of a thread on hart 0.
    fn call(&self, index: usize, invocation: Invocation, words: &[u64], capabilities: &[u64]) {
        assert_eq!(self.machine.call(self.threads[index], invocation, words, capabilities).0, 0);
        self.machine.kernel.poke_others();
    }

    fn set_priority(&self, index: usize, priority: u64) {
        self.call(index, Invocation::TcbSetPriority, &[priority], &[1]);
    }

    /// Returns the number of interrupts that are pending on the other hart.
    fn pending(&self) -> usize {
        self.simulation.ipis().iter().filter(|&&hart| hart == OTHER).count() - self.taken.get()
    }

    /// The other hart takes its interrupt, and leaves the kernel to its next thread or to idle. It counts as back in
    /// the kernel at once, so that hart 0 never waits for it.
    fn take_interrupt(&self) {
        let kernel = &self.machine.kernel;
        self.taken.set(self.taken.get() + self.pending());
        kernel.here.set(OTHER);
        kernel.choose_anew();
        kernel.leave_and_poke();
        kernel.harts.each[OTHER].place.store(IN_KERNEL, Ordering::Release);
        kernel.here.set(0);
    }

    fn current(&self) -> Option<Ref<Tcb>> {
        self.machine.kernel.nodes[OTHER].current.get()
    }
}

/// Operations of hart 0 on a thread.
const OPERATIONS: [fn(&Pair<'_>); 6] = [
    |pair| pair.call(0, Invocation::TcbResume, &[], &[]),
    |pair| pair.call(0, Invocation::TcbSuspend, &[], &[]),
    |pair| pair.call(0, Invocation::TcbSetAffinity, &[0], &[]),
    |pair| pair.call(0, Invocation::TcbSetAffinity, &[OTHER as u64], &[]),
    |pair| pair.set_priority(0, 50),
    |pair| pair.set_priority(0, 150),
];

/// Number of operations in a row.
const LENGTH: u32 = 3;

/// Every row of operations on a thread, interleaved in every way with the other hart's going idle and waking up. No
/// clock helps: the interrupts of `poke_others` alone let that hart run the most important thread in the end.
#[test]
fn a_thread_that_becomes_ready_on_another_hart_is_chosen_there_in_every_interleaving() {
    for (is_busy, first) in [false, true].into_iter().flat_map(|busy| (0..OPERATIONS.len()).map(move |op| (busy, op))) {
        let simulation = Simulation::new();
        let pair = Pair::new(&simulation);
        if is_busy {
            pair.set_priority(1, 100);
            pair.call(1, Invocation::TcbSetAffinity, &[OTHER as u64], &[]);
            pair.call(1, Invocation::TcbResume, &[], &[]);
            assert_eq!(pair.pending(), 1);
            pair.take_interrupt();
        }
        let (thread, competitor) = (pair.tcb(0), is_busy.then(|| pair.tcb(1)));
        for rest in 0..OPERATIONS.len().pow(LENGTH - 1) {
            for wakes in 0..1 << LENGTH {
                pair.call(0, Invocation::TcbSuspend, &[], &[]);
                pair.call(0, Invocation::TcbSetAffinity, &[OTHER as u64], &[]);
                pair.set_priority(0, 150);
                let row = (0..LENGTH).map(|at| match at {
                    0 => first,
                    _ => rest / OPERATIONS.len().pow(at - 1) % OPERATIONS.len(),
                });
                for (at, operation) in row.enumerate() {
                    OPERATIONS[operation](&pair);
                    if wakes >> at & 1 != 0 && pair.pending() > 0 {
                        pair.take_interrupt();
                    }
                }
                while pair.pending() > 0 {
                    pair.take_interrupt();
                }
                let is_there = thread.state().is_runnable() && usize::from(thread.affinity.get()) == OTHER;
                let wins = is_there && (!is_busy || thread.priority.get() > 100);
                assert_eq!(
                    pair.current(),
                    if wins { Some(thread) } else { competitor },
                    "busy {is_busy}, {first} and {rest}, wakes {wakes:b}"
                );
            }
        }
        pair.machine.kernel.check();
    }
}

#[test]
fn a_domain_that_begins_interrupts_the_other_hart() {
    let simulation = Simulation::new();
    let pair = Pair::new(&simulation);
    let kernel = &pair.machine.kernel;
    let queues = claim(fake(size_of::<PriorityQueues>().next_power_of_two().ilog2()));
    kernel.nodes[OTHER].ready.set(1, queues);
    pair.call(0, Invocation::TcbSetAffinity, &[OTHER as u64], &[]);
    pair.call(0, Invocation::TcbResume, &[], &[]);
    pair.take_interrupt();
    assert_eq!(pair.current(), Some(pair.tcb(0)));
    kernel.domains.set_known(2);
    for (index, domain) in [0, 0, 1].into_iter().enumerate() {
        kernel.domains.set_period(index, Period { domain, ticks: 1 });
    }
    kernel.start_schedule(0);
    kernel.leave_and_poke();
    kernel.tick();
    kernel.leave_and_poke();
    assert_eq!((kernel.domains.current(), pair.pending()), (0, 0), "the domain is the same");
    kernel.tick();
    kernel.leave_and_poke();
    assert_eq!((kernel.domains.current(), pair.pending()), (1, 1));
    pair.take_interrupt();
    assert_eq!(pair.current(), None, "the thread belongs to the other domain");
}

/// A frame of the first thread's image, and the space in which all threads of the machine run.
const IMAGE_FRAME: u64 = 20;
const PAGE: Scope = Scope::Page { address: 0x10000, asid: 1 };

#[test]
fn a_page_is_flushed_on_the_hart_that_uses_it_before_the_unmapping_returns() {
    let simulation = Simulation::new();
    let pair = Pair::new(&simulation);
    pair.call(0, Invocation::TcbSetAffinity, &[OTHER as u64], &[]);
    pair.call(0, Invocation::TcbResume, &[], &[]);
    pair.take_interrupt();
    assert_eq!(pair.current(), Some(pair.tcb(0)));
    assert_eq!(pair.machine.call(IMAGE_FRAME, Invocation::PageUnmap, &[], &[]).0, 0);
    let both = HartSet::EMPTY.with(0).with(OTHER);
    assert_eq!(simulation.flushes().last(), Some(&Flush::Remote(both, PAGE)));
}

#[test]
fn a_hart_that_was_idle_during_an_unmapping_flushes_before_it_runs_a_thread() {
    let simulation = Simulation::new();
    let pair = Pair::new(&simulation);
    pair.take_interrupt();
    assert_eq!(pair.machine.call(IMAGE_FRAME, Invocation::PageUnmap, &[], &[]).0, 0);
    assert_eq!(simulation.flushes().last(), Some(&Flush::Remote(HartSet::EMPTY.with(0), PAGE)));
    pair.call(0, Invocation::TcbSetAffinity, &[OTHER as u64], &[]);
    pair.call(0, Invocation::TcbResume, &[], &[]);
    assert_eq!(simulation.flushes().last(), Some(&Flush::Remote(HartSet::EMPTY.with(0), PAGE)));
    pair.take_interrupt();
    assert_eq!(simulation.flushes().last(), Some(&Flush::Local(Scope::All)));
    assert_eq!(pair.current(), Some(pair.tcb(0)));
}
