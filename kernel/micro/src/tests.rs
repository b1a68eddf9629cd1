//! Tests on the host: the logic against naive models, and the whole kernel against a hostile thread.

use std::ops::Range;

use abi_queue::{SyscallRequest, SyscallResponse, syscall_buffer};
use abi_sel4::configuration::USER_TOP;
use abi_sel4::{DebugCall, FailedLookup, Invocation, InvocationError, MessageInfo, ObjectType, Operand, Rights};
use hal_host::{Attached, Simulation};
use objects::{
    Capability, Lineage, Ref, Slot, Tcb, ThreadState, claim, claim_slice, fake, frame_words, give_back, own, tag,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::boot::{self, RootTask};
use crate::boot_words::Configuration;
use crate::hart::Harts;
use crate::invocation::NUMBERING;
use crate::ipc::Sending;
use crate::kernel::Kernel;
use crate::message::{ReceiveMode, SendMode};
use crate::node::{Next, ReadyOfDomains};
#[cfg(feature = "smp")]
use crate::smp::Shared;
use crate::{cspace, derivation};

mod armed;
#[cfg(feature = "smp")]
mod harts;
mod spaces;
mod virtualised;

fn slots(bits: u32) -> Ref<Slot> {
    claim_slice(fake(bits + 5), 1 << bits)
}

fn thread(priority: u8) -> Ref<Tcb> {
    let tcb: Ref<Tcb> = claim(fake(11));
    tcb.priority.set(priority);
    tcb
}

/// A capability of the model: its parent is stored and not found by comparison.
#[derive(Clone, Copy, Debug)]
struct Derived {
    badge: u64,
    counts_as_parent: bool,
    parent: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Copy(usize, usize),
    Mint(usize, usize, u64),
    Move(usize, usize),
    Delete(usize),
    Revoke(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let slot = || 0..16usize;
    prop_oneof![
        (slot(), slot()).prop_map(|(from, to)| Step::Copy(from, to)),
        (slot(), slot(), 1..4u64).prop_map(|(from, to, badge)| Step::Mint(from, to, badge)),
        (slot(), slot()).prop_map(|(from, to)| Step::Move(from, to)),
        slot().prop_map(Step::Delete),
        slot().prop_map(Step::Revoke),
    ]
}

/// Returns whether `node` is below `above` in the model.
fn is_below(model: &[Option<Derived>], mut node: usize, above: usize) -> bool {
    while let Some(parent) = model[node].and_then(|derived| derived.parent) {
        if parent == above {
            return true;
        }
        node = parent;
    }
    false
}

fn delete_in_model(model: &mut [Option<Derived>], index: usize) {
    if let Some(gone) = model[index].take() {
        for other in model.iter_mut().flatten().filter(|other| other.parent == Some(index)) {
            other.parent = gone.parent;
        }
    }
}

/// Makes words of harts for one kernel. They are never freed, like a machine's.
fn own_harts() -> &'static Harts {
    Box::leak(Box::new(Harts::new()))
}

/// Logarithm of the number of slots for derivations.
const SLOTS_BITS: u32 = 4;

/// Performs steps on slots and on a model, a tree with parents, and compares the full slots after each step. Returns
/// whether each slot is full at the end.
fn derive_as_a_tree_does(steps: &[Step]) -> Vec<bool> {
    let simulation = Simulation::new();
    let _hart = simulation.attach(0);
    let kernel = Kernel::new(own_harts());
    let (node_memory, root_memory) = (fake(SLOTS_BITS + 5), fake(6));
    let node: Ref<Slot> = claim_slice(node_memory, 1 << SLOTS_BITS);
    let root: Ref<Slot> = claim_slice(root_memory, 2);
    let endpoint_memory = fake(4);
    let original = Capability::Endpoint { endpoint: claim(endpoint_memory), badge: 0, rights: Rights::ALL };
    root.capability.set(Capability::Untyped { base: 0, bits: 4, device: true, used: 0 });
    root.set_lineage(Lineage::Original);
    derivation::insert_new(root, node.slot(0), original);
    let mut model: Vec<Option<Derived>> = vec![None; 16];
    model[0] = Some(Derived { badge: 0, counts_as_parent: true, parent: None });
    for &step in steps {
        match step {
            Step::Copy(from, to) | Step::Mint(from, to, _) if model[from].is_some() && model[to].is_none() => {
                let source = model[from].unwrap();
                // Only a capability without a badge can get one.
                let badge = match step {
                    Step::Mint(_, _, badge) if source.badge == 0 => badge,
                    _ => source.badge,
                };
                // The nearest ancestor that counts as a parent of such a capability.
                let mut parent = Some(from);
                while let Some(index) = parent {
                    let above = model[index].unwrap();
                    if above.counts_as_parent && (above.badge == 0 || above.badge == badge) {
                        break;
                    }
                    parent = above.parent;
                }
                let counts_as_parent = badge != source.badge;
                model[to] = Some(Derived { badge, counts_as_parent, parent });
                let Capability::Endpoint { endpoint, rights, .. } = node.slot(from as u64).capability.get() else {
                    panic!("a slot lost its endpoint");
                };
                let derived = Capability::Endpoint { endpoint, badge, rights };
                derivation::insert_derived(derived, node.slot(from as u64), node.slot(to as u64));
            }
            Step::Move(from, to) if model[from].is_some() && model[to].is_none() => {
                model[to] = model[from].take();
                for other in model.iter_mut().flatten().filter(|other| other.parent == Some(from)) {
                    other.parent = Some(to);
                }
                let (from, to) = (node.slot(from as u64), node.slot(to as u64));
                derivation::move_slot(from.capability.get(), from, to);
            }
            // After the deletion of a badged parent, capabilities with its badge become its parent's children, in the
            // list and in the model.
            Step::Delete(index) if model[index].is_some() => {
                delete_in_model(&mut model, index);
                kernel.delete(node.slot(index as u64)).unwrap();
            }
            Step::Revoke(index) if model[index].is_some() => {
                let below: Vec<usize> = (0..16).filter(|&other| is_below(&model, other, index)).collect();
                below.iter().for_each(|&other| model[other] = None);
                kernel.revoke(node.slot(index as u64)).unwrap();
            }
            _ => {}
        }
        for (index, derived) in model.iter().enumerate() {
            assert_eq!(derived.is_some(), !node.slot(index as u64).is_empty(), "slot {} after {:?}", index, step);
        }
    }
    // The next run of steps reuses the memory.
    give_back(node_memory, SLOTS_BITS + 5);
    give_back(root_memory, 6);
    give_back(endpoint_memory, 4);
    model.iter().map(Option::is_some).collect()
}

/// Tries every history of a few steps over three slots: copies, mints, moves, deletions and revocations.
#[test]
fn every_short_history_of_derivations_agrees_with_the_tree() {
    const SLOTS: usize = 3;
    const LONGEST: usize = if cfg!(miri) { 2 } else { 4 };
    fn go_on(steps: &mut Vec<Step>, count: &mut usize) {
        *count += 1;
        let full = derive_as_a_tree_does(steps);
        if steps.len() == LONGEST {
            return;
        }
        let pairs = (0..SLOTS).flat_map(|from| (0..SLOTS).map(move |to| (from, to)));
        let derived = pairs.filter(|&(from, to)| full[from] && !full[to]).flat_map(|(from, to)| {
            [Step::Copy(from, to), Step::Mint(from, to, 1), Step::Mint(from, to, 2), Step::Move(from, to)]
        });
        let gone = (0..SLOTS).filter(|&slot| full[slot]).flat_map(|slot| [Step::Delete(slot), Step::Revoke(slot)]);
        for step in derived.chain(gone).collect::<Vec<_>>() {
            steps.push(step);
            go_on(steps, count);
            steps.pop();
        }
    }
    let mut count = 0;
    go_on(&mut Vec::new(), &mut count);
    assert!(cfg!(miri) || count > 5_000, "{count}");
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn revocation_deletes_the_subtree_of_a_model_with_parents(steps in vec(step(), 1..60)) {
        derive_as_a_tree_does(&steps);
    }

    #[test]
    fn the_ready_set_is_a_list_for_each_priority(
        steps in vec((0..24usize, any::<u8>(), any::<bool>()), 1..200)
    ) {
        let domains: ReadyOfDomains = ReadyOfDomains::new();
        domains.set(3, claim(fake(12)));
        let ready = domains.of(3);
        let threads: Vec<_> = (0..24).map(|_| thread(0)).collect();
        let mut model: Vec<std::collections::VecDeque<usize>> = vec![Default::default(); 256];
        for (index, priority, front) in steps {
            let queue = threads[index].priority.get() as usize;
            if let Some(place) = model[queue].iter().position(|&other| other == index) {
                model[queue].remove(place);
                ready.remove(threads[index]);
            } else {
                threads[index].priority.set(priority);
                if front {
                    ready.push_front(threads[index]);
                    model[priority as usize].push_front(index);
                } else {
                    ready.push_back(threads[index]);
                    model[priority as usize].push_back(index);
                }
            }
            let highest = model.iter().rposition(|queue| !queue.is_empty());
            prop_assert_eq!(ready.highest().map(usize::from), highest);
            prop_assert_eq!(domains.has_none_above(3, priority), highest.is_none_or(|highest| highest <= priority.into()));
            for (priority, queue) in model.iter().enumerate() {
                let mut next = ready.first(priority as u8);
                for &index in queue {
                    prop_assert!(next == Some(threads[index]));
                    next = threads[index].ready_next.get();
                }
                prop_assert!(next.is_none());
            }
        }
    }

    #[test]
    fn addresses_are_resolved_bit_by_bit(
        address: u64,
        levels in vec((1..6u8, 0..5u8, any::<bool>()), 1..6),
        bits in 1..=64u64,
    ) {
        // A chain of CNodes whose guards match the address, except perhaps one.
        let mut at = bits;
        let mut root = Capability::Null;
        let mut holder: Option<Ref<Slot>> = None;
        let mut expected = None;
        let mut last = None;
        for &(radix, guard_bits, wrong) in &levels {
            let node = slots(radix.into());
            let take = |from: u64, count: u8| {
                (0..u64::from(count)).fold(0, |value, step| match (from - 1).checked_sub(step) {
                    Some(bit) => value << 1 | address >> bit & 1,
                    None => value << 1,
                })
            };
            let right = if u64::from(guard_bits) <= at { take(at, guard_bits) } else { 0 };
            let guard = if wrong && guard_bits > 0 { right ^ 1 } else { right };
            let capability = Capability::CNode { slots: node, radix, guard_bits, guard };
            match holder {
                None => root = capability,
                Some(slot) => slot.capability.set(capability),
            }
            let level = u64::from(radix) + u64::from(guard_bits);
            if guard_bits > 0 && (u64::from(guard_bits) > at || guard != right) {
                let failure = FailedLookup::GuardMismatch {
                    bits_left: at, guard_found: guard, bits_found: guard_bits.into(),
                };
                expected = Some(Err(failure));
                break;
            }
            if level > at {
                expected = Some(Err(FailedLookup::DepthMismatch { bits_left: at, bits_found: level }));
                break;
            }
            at -= u64::from(guard_bits);
            let slot = node.slot(take(at, radix));
            at -= u64::from(radix);
            if at == 0 {
                expected = Some(Ok((slot, 0)));
                break;
            }
            holder = Some(slot);
            last = Some((slot, at));
        }
        let expected = expected.unwrap_or_else(|| last.ok_or(FailedLookup::InvalidRoot));
        let Capability::CNode { slots, radix, guard_bits, guard } = root else { panic!("the first level is a node") };
        let root = objects::CNode::new(slots, radix, guard_bits, guard);
        prop_assert_eq!(cspace::resolve(root, address, bits), expected);
    }
}

/// A booted kernel in fake memory. The test acts as the first thread.
struct Machine {
    kernel: Kernel,
    memory: u64,
    _hart: Attached,
    init: Ref<Tcb>,
    buffer: u64,
    information: u64,
}

/// Logarithm of the size of a fake machine's free memory in bytes.
const MEMORY_BITS: u32 = 22;

/// The next machine reuses the memory, so that there can be any number of machines in one run.
impl Drop for Machine {
    fn drop(&mut self) {
        give_back(self.memory, MEMORY_BITS);
    }
}

impl Machine {
    fn new(simulation: &Simulation) -> Machine {
        Machine::with_slots(simulation, Configuration::default().root_cnode_bits)
    }

    /// A machine for many calls with a check after each, which looks at every slot. The root task's CNode is so small
    /// that most slots are in use.
    fn small(simulation: &Simulation) -> Machine {
        Machine::with_slots(simulation, 8)
    }

    fn with_slots(simulation: &Simulation, root_cnode_bits: u8) -> Machine {
        // Tests set the domain directly.
        let configuration = Configuration { domains: 4, root_cnode_bits, ..Configuration::default() };
        let machine = Machine::told(simulation, &configuration);
        machine.kernel.domains.set_known(1);
        machine
    }

    fn told(simulation: &Simulation, configuration: &Configuration) -> Machine {
        let hart = simulation.attach(0);
        let kernel = Kernel::new(own_harts());
        let memory = fake(MEMORY_BITS);
        let root = RootTask::Loaded {
            start: memory,
            end: memory + 0x4000,
            offset: memory.wrapping_sub(0x10000),
            entry: 0x10000,
        };
        let ranges = [(memory, memory + (1 << MEMORY_BITS))];
        boot::build(&kernel, &ranges, &[(0x1000_0000, 0x1100_0000)], root, &[1; 5000], configuration).unwrap();
        let init = kernel.current();
        let Capability::Frame { base: buffer, .. } = init.own_slot(objects::own::BUFFER).capability.get() else {
            panic!("the first thread has no message buffer");
        };
        let cnode = kernel.root.get().unwrap();
        let Capability::CNode { slots, .. } = cnode.capability.get() else { panic!("the root is no node") };
        let Capability::Frame { base: information, .. } = slots.slot(9).capability.get() else {
            panic!("there is no boot information");
        };
        Machine { kernel, memory, _hart: hart, init, buffer, information }
    }

    fn information(&self, word: usize) -> u64 {
        frame_words(self.information + (word / 128 * 1024) as u64).get(word % 128)
    }

    fn slot(&self, index: u64) -> Ref<Slot> {
        cspace::lookup(self.init, index).unwrap()
    }

    /// Makes the thread trap with this system call and this message, and serves the trap.
    fn trap(&self, number: i64, a0: u64, a1: u64, words: &[u64], capabilities: &[u64]) {
        let thread = self.kernel.current();
        thread.register::<17>().set(number as u64);
        thread.register::<10>().set(a0);
        thread.register::<11>().set(a1);
        thread.pc().set(thread.pc().get().wrapping_add(4));
        let buffer = frame_words(self.buffer);
        for (index, &word) in words.iter().enumerate() {
            match index {
                0..4 => thread.register_at(12 + index).set(word),
                _ => buffer.set(1 + index, word),
            }
        }
        for (index, &capability) in capabilities.iter().enumerate() {
            buffer.set(122 + index, capability);
        }
        self.kernel.handle_call(thread);
        self.kernel.decide();
    }

    /// Makes an invocation by the first thread; returns the answer's label and words.
    fn call(&self, capability: u64, invocation: Invocation, words: &[u64], capabilities: &[u64]) -> (u64, [u64; 4]) {
        let label = invocation.label(NUMBERING).unwrap();
        self.trap(-1, capability, MessageInfo::new(label, capabilities.len(), words.len()).0, words, capabilities);
        let answer = MessageInfo(self.init.register::<11>().get());
        (answer.label(), core::array::from_fn(|index| self.init.register_at(12 + index).get()))
    }

    /// Returns the first untyped memory of at least this size that is not device memory.
    fn untyped(&self, bits: u64) -> u64 {
        let (first, end) = (self.information(19), self.information(20));
        (first..end)
            .find(|index| {
                let word = self.information(22 + 2 * (index - first) as usize);
                word & 255 >= bits && word >> 8 & 1 == 0
            })
            .expect("no memory of this size")
    }

    fn first_empty(&self) -> u64 {
        self.information(5)
    }

    fn retype(&self, untyped: u64, kind: ObjectType, bits: u64, slot: u64, count: u64) -> (u64, [u64; 4]) {
        self.call(untyped, Invocation::UntypedRetype, &[kind as u64, bits, 0, 0, slot, count], &[2])
    }
}

#[test]
fn the_first_thread_finds_the_objects_of_its_boot_information() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    machine.kernel.check();
    assert_eq!(machine.init.register::<10>().get(), 0x15000, "image, buffer, boot information");
    assert_eq!(machine.information(0), 16 + 5000);
    assert_eq!(machine.information(17), 13);
    assert_eq!((machine.information(9), machine.information(10)), (20, 24), "four pages of image");
    assert_eq!((machine.information(15), machine.information(16)), (18, 20), "two pages of device tree");
    for (index, tag) in [(1, 12), (2, 10), (3, 3), (4, 14), (5, 11), (6, 13), (9, 1), (10, 1), (11, 20), (7, 0)] {
        assert_eq!(machine.slot(index).capability.get().tag(), tag, "slot {index}");
    }
    let (first, end) = (machine.information(19), machine.information(20));
    let mut total = 0;
    for index in first..end {
        let (base, word) = (
            machine.information(21 + 2 * (index - first) as usize),
            machine.information(22 + 2 * (index - first) as usize),
        );
        let Capability::Untyped { base: capability_base, bits, device, .. } = machine.slot(index).capability.get()
        else {
            panic!("slot {index} is not untyped");
        };
        assert_eq!((base, word), (capability_base, u64::from(bits) | u64::from(device) << 8));
        assert!(base.is_multiple_of(1 << bits));
        total += if device { 0 } else { 1u64 << bits };
    }
    assert!(total < 1 << MEMORY_BITS && total > (1 << MEMORY_BITS) - (512 << 10));
    assert!(machine.slot(end).is_empty());
}

#[test]
fn retype_checks_its_arguments_in_the_order_of_the_manual() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, free) = (machine.untyped(16), machine.first_empty());
    let bits = match machine.slot(untyped).capability.get() {
        Capability::Untyped { bits, .. } => u64::from(bits),
        _ => unreachable!(),
    };
    let retype = |words: &[u64], capabilities: &[u64]| {
        let (label, answer) = machine.call(untyped, Invocation::UntypedRetype, words, capabilities);
        (label, [answer[0], answer[1], answer[2]])
    };
    assert_eq!(retype(&[2, 0, 0, 0, free], &[2]).0, 7, "too few words");
    assert_eq!(retype(&[2, 0, 0, 0, free, 1], &[]).0, 7, "no root");
    assert_eq!(retype(&[9, 0, 0, 0, free, 1], &[2]), (1, [0, 0, 0]), "no such type");
    assert_eq!(retype(&[0, 64, 0, 0, free, 1], &[2]).0, 4);
    assert_eq!(retype(&[4, 34, 0, 0, free, 1], &[2]), (4, [0, 38, 0]), "too large");
    assert_eq!(retype(&[4, 0, 0, 0, free, 1], &[2]), (1, [1, 0, 0]), "a node of no bits");
    assert_eq!(retype(&[0, 3, 0, 0, free, 1], &[2]), (1, [1, 3, 0]), "untyped too small");
    assert_eq!(retype(&[2, 0, 0, 0, free, 1], &[1]).0, 6, "the root is no node");
    assert_eq!(retype(&[2, 0, 0, 0, 8192, 1], &[2]), (4, [0, 8191, 0]));
    assert_eq!(retype(&[2, 0, 0, 0, free, 0], &[2]), (4, [1, 256, 0]));
    assert_eq!(retype(&[2, 0, 0, 0, free, 257], &[2]), (4, [1, 256, 0]));
    assert_eq!(retype(&[2, 0, 0, 0, 8191, 2], &[2]), (4, [1, 1, 0]));
    assert_eq!(retype(&[2, 0, 0, 0, 1, 1], &[2]).0, 8, "a slot that is in use");
    assert_eq!(retype(&[0, bits, 0, 0, free, 2], &[2]), (10, [1 << bits, bits, 0]));
    let device = machine.information(19);
    assert_eq!(machine.retype(device, ObjectType::Endpoint, 0, free, 1).0, 1, "only pages are made of devices");
    assert_eq!(retype(&[2, 0, 0, 0, free, 3], &[2]).0, 0);
    machine.kernel.check();
}

#[test]
fn memory_is_used_from_the_beginning_once_nothing_is_left_of_it() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, free) = (machine.untyped(13), machine.first_empty());
    assert_eq!(machine.retype(untyped, ObjectType::Page, 0, free, 1).0, 0);
    let Capability::Frame { base, .. } = machine.slot(free).capability.get() else { panic!("no page") };
    frame_words(base).set(3, 77);
    assert_eq!(machine.retype(untyped, ObjectType::Endpoint, 0, free + 1, 2).0, 0);
    let Capability::Endpoint { endpoint, .. } = machine.slot(free + 2).capability.get() else { panic!("no endpoint") };
    assert_eq!(endpoint.physical(), base + 4096 + 16, "one behind the other");
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[untyped, 64], &[]).0, 0);
    assert!((0..3).all(|index| machine.slot(free + index).is_empty()));
    assert_eq!(machine.retype(untyped, ObjectType::Page, 0, free, 1).0, 0);
    assert!(matches!(machine.slot(free).capability.get(), Capability::Frame { base: again, .. } if again == base));
    assert_eq!(frame_words(base).get(3), 0, "the old contents are cleared");
}

#[test]
fn a_long_revocation_stops_for_interrupts_and_goes_on() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, free) = (machine.untyped(12), machine.first_empty());
    assert_eq!(machine.retype(untyped, ObjectType::Endpoint, 0, free, 1).0, 0);
    for index in 1..1000 {
        assert_eq!(machine.call(2, Invocation::CNodeCopy, &[free + index, 64, free, 64, 15], &[2]).0, 0);
    }
    simulation.set_external(0, true);
    let before = machine.init.pc().get();
    machine.call(2, Invocation::CNodeRevoke, &[free, 64], &[]);
    assert_eq!(machine.init.pc().get(), before, "the call is to be made again");
    let left = (1..1000).filter(|&index| !machine.slot(free + index).is_empty()).count();
    assert!(left > 0 && left < 999, "{left} are left");
    machine.kernel.check();
    simulation.set_external(0, false);
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[free, 64], &[]).0, 0);
    assert!((1..1000).all(|index| machine.slot(free + index).is_empty()));
    assert!(!machine.slot(free).is_empty());
}

#[test]
fn nodes_that_hold_each_other_can_be_deleted() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, free) = (machine.untyped(14), machine.first_empty());
    assert_eq!(machine.retype(untyped, ObjectType::CapTable, 4, free, 2).0, 0);
    // Each CNode holds the last capability to the other one.
    let moves = |from: u64, root: u64, index: u64| {
        machine.call(2, Invocation::CNodeCopy, &[free + 2, 64, root, 64, 15], &[2]);
        machine.call(root, Invocation::CNodeMove, &[index, 4, from, 64], &[2]).0
    };
    assert_eq!(moves(free + 1, free, 3), 0);
    machine.kernel.check();
    assert_eq!(machine.call(2, Invocation::CNodeDelete, &[free, 64], &[]).0, 0);
    assert!(machine.slot(free).is_empty());
    machine.kernel.check();
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[untyped, 64], &[]).0, 0);
    let Capability::Untyped { .. } = machine.slot(untyped).capability.get() else { panic!("the memory is gone") };
    assert!(!derivation::has_children(machine.slot(untyped)));
    machine.kernel.check();
}

impl Machine {
    /// Makes an invocation of the root CNode on a slot, with an interrupt pending; returns whether the invocation was
    /// completed and not preempted.
    fn call_interrupted(&self, invocation: Invocation, slot: u64) -> bool {
        let before = self.init.pc().get();
        self.call(2, invocation, &[slot, 64], &[]);
        self.init.pc().get() != before
    }

    /// Repeats a preempted invocation until it is completed; returns the number of calls.
    fn call_in_steps(&self, simulation: &Simulation, invocation: Invocation, slot: u64) -> usize {
        simulation.set_external(0, true);
        let steps = (1..).find(|_| {
            let is_done = self.call_interrupted(invocation, slot);
            self.kernel.check();
            is_done
        });
        simulation.set_external(0, false);
        steps.unwrap()
    }

    fn is_unused(&self, untyped: u64) -> bool {
        let slot = self.slot(untyped);
        !slot.is_empty() && !derivation::has_children(slot)
    }
}

#[test]
fn nodes_in_nodes_are_emptied_to_the_last_in_short_steps() {
    const DEPTH: u64 = 300;
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, other, free) = (machine.untyped(16), machine.untyped(12), machine.first_empty());
    for begin in (0..DEPTH).step_by(100) {
        assert_eq!(machine.retype(untyped, ObjectType::CapTable, 1, free + begin, 100).0, 0);
    }
    // Each CNode also holds an endpoint of other memory, in the slot that is visited last.
    let endpoint = free + DEPTH;
    assert_eq!(machine.retype(other, ObjectType::Endpoint, 0, endpoint, 1).0, 0);
    for index in (0..DEPTH).rev() {
        let node = free + index;
        assert_eq!(machine.call(node, Invocation::CNodeCopy, &[0, 1, endpoint, 64, 15], &[2]).0, 0);
        if index + 1 < DEPTH {
            assert_eq!(machine.call(node, Invocation::CNodeMove, &[1, 1, node + 1, 64], &[2]).0, 0);
        }
    }
    assert_eq!(machine.call(2, Invocation::CNodeDelete, &[endpoint, 64], &[]).0, 0);
    machine.kernel.check();
    assert!(!machine.is_unused(untyped) && !machine.is_unused(other));
    let steps = machine.call_in_steps(&simulation, Invocation::CNodeDelete, free);
    assert!(machine.slot(free).is_empty());
    assert!(
        machine.is_unused(untyped) && machine.is_unused(other),
        "the contents of CNodes are deleted with them, at any depth"
    );
    assert!((DEPTH as usize..6 * DEPTH as usize).contains(&steps), "{steps} steps");
}

#[test]
fn a_deletion_goes_on_with_another_one_that_it_meets() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, free) = (machine.untyped(16), machine.first_empty());
    let (outer, inner, innermost) = (free, free + 1, free + 2);
    assert_eq!(machine.retype(untyped, ObjectType::CapTable, 3, outer, 3).0, 0);
    assert_eq!(machine.retype(untyped, ObjectType::Tcb, 0, free + 3, 8).0, 0);
    let moves = |node: u64, index: u64, from: u64| {
        assert_eq!(machine.call(node, Invocation::CNodeMove, &[index, 3, from, 64], &[2]).0, 0);
    };
    (0..4).for_each(|index| moves(innermost, index, free + 3 + index));
    (4..8).for_each(|index| moves(inner, index, free + 3 + index));
    moves(inner, 2, innermost);
    // The inner CNode's deletion begins, makes some steps, and is abandoned.
    simulation.set_external(0, true);
    for _ in 0..20 {
        assert!(!machine.call_interrupted(Invocation::CNodeDelete, inner));
        machine.kernel.check();
    }
    simulation.set_external(0, false);
    let remains = machine.slot(inner).capability.get().tag();
    assert_eq!(remains, tag::ZOMBIE);
    assert_eq!(
        machine.call(2, Invocation::CNodeCopy, &[free + 20, 64, inner, 64, 15], &[2]).0,
        3,
        "it cannot be copied"
    );
    // The remains can be moved like a capability.
    moves(outer, 5, inner);
    machine.kernel.check();
    machine.call_in_steps(&simulation, Invocation::CNodeDelete, outer);
    assert!(machine.is_unused(untyped));
}

#[test]
fn a_revocation_takes_an_object_out_of_a_deletion_that_is_under_way() {
    for (interrupted, node_first) in [(3, false), (7, false), (12, false), (3, true), (9, true), (25, true)] {
        let simulation = Simulation::new();
        let machine = Machine::new(&simulation);
        let free = machine.first_empty();
        let (first, second, outer, inner) = (free + 2, free + 3, free, free + 1);
        assert_eq!(machine.retype(machine.untyped(16), ObjectType::Untyped, 13, first, 2).0, 0);
        let (outer_memory, inner_memory) = if node_first { (first, second) } else { (second, first) };
        assert_eq!(machine.retype(outer_memory, ObjectType::CapTable, 4, outer, 1).0, 0);
        assert_eq!(machine.retype(inner_memory, ObjectType::CapTable, 4, inner, 1).0, 0);
        for index in 0..15 {
            assert_eq!(machine.call(inner, Invocation::CNodeCopy, &[index, 4, 2, 64, 15], &[2]).0, 0);
            assert_eq!(machine.call(outer, Invocation::CNodeCopy, &[index, 4, 2, 64, 15], &[2]).0, 0);
        }
        assert_eq!(machine.call(outer, Invocation::CNodeMove, &[15, 4, inner, 64], &[2]).0, 0);
        simulation.set_external(0, true);
        for _ in 0..interrupted {
            assert!(!machine.call_interrupted(Invocation::CNodeDelete, outer));
            machine.kernel.check();
        }
        machine.call_in_steps(&simulation, Invocation::CNodeRevoke, inner_memory);
        assert!(machine.is_unused(inner_memory));
        // Its memory is reused at once, while the other deletion has made no progress.
        assert_eq!(machine.retype(inner_memory, ObjectType::Endpoint, 0, free + 10, 100).0, 0);
        machine.kernel.check();
        machine.call_in_steps(&simulation, Invocation::CNodeDelete, outer);
        assert!(machine.is_unused(outer_memory), "{interrupted} steps");
        assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[inner_memory, 64], &[]).0, 0);
        assert!(machine.is_unused(inner_memory));
        machine.kernel.check();
    }
}

/// Number of threads that wait at an object which is deleted.
const WAITERS: u64 = 60;

impl Machine {
    /// Makes an object at which threads wait; it uses slots from `free` on, the first for the object.
    fn waiters(&self, kind: ObjectType, untyped: u64, other: u64, free: u64) -> Vec<Ref<Tcb>> {
        assert_eq!(self.retype(untyped, ObjectType::Tcb, 0, free + 1, WAITERS).0, 0);
        assert_eq!(self.retype(other, kind, 0, free, 1).0, 0);
        let threads: Vec<_> = (free + 1..=free + WAITERS)
            .map(|slot| match self.slot(slot).capability.get() {
                Capability::Thread { tcb } => (slot, tcb),
                _ => panic!("no thread"),
            })
            .collect();
        for &(slot, tcb) in &threads {
            assert_eq!(self.call(slot, Invocation::TcbSetSpace, &[0, 0, 0], &[2, 3]).0, 0);
            tcb.register::<10>().set(free);
            match self.slot(free).capability.get() {
                Capability::Endpoint { endpoint, rights, .. } => {
                    self.kernel.receive_message(tcb, endpoint, rights, ReceiveMode::Blocking)
                }
                Capability::Notification { notification, .. } => {
                    self.kernel.receive_signals(tcb, notification, ReceiveMode::Blocking)
                }
                _ => panic!("nothing to wait for"),
            }
        }
        self.kernel.check();
        threads.into_iter().map(|(_, tcb)| tcb).collect()
    }

    /// Makes an invocation again until it is done, interrupted at every look. Each time it wakes a few threads at most,
    /// and all of them in the end.
    fn release_in_steps(&self, simulation: &Simulation, threads: &[Ref<Tcb>], call: impl Fn()) {
        let running = || threads.iter().filter(|tcb| tcb.state() == ThreadState::Restarting).count();
        simulation.set_external(0, true);
        let mut woken = 0;
        let steps = (1..=3 * WAITERS).find(|_| {
            let before = self.init.pc().get();
            call();
            assert!(running() - woken <= 8, "a step wakes {}", running() - woken);
            woken = running();
            self.kernel.check();
            self.init.pc().get() != before
        });
        simulation.set_external(0, false);
        assert!(steps.is_some_and(|steps| steps >= WAITERS / 8), "{steps:?} steps");
        assert_eq!(woken, threads.len());
    }
}

#[test]
fn waiters_at_a_deleted_object_are_released_in_short_steps() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, other, free) = (machine.untyped(18), machine.untyped(12), machine.first_empty());
    for kind in [ObjectType::Endpoint, ObjectType::Notification] {
        let threads = machine.waiters(kind, untyped, other, free);
        machine.release_in_steps(&simulation, &threads, || {
            machine.call_interrupted(Invocation::CNodeDelete, free);
        });
        assert!(machine.is_unused(other));
        assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[untyped, 64], &[]).0, 0);
    }
}

/// The right to make IRQ handlers, and an interrupt without a device.
const IRQ_CONTROL: u64 = 4;
const IRQ: u64 = 33;

#[test]
fn waiters_for_the_last_notification_of_an_interrupt_are_released_in_short_steps() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, other, free) = (machine.untyped(18), machine.untyped(12), machine.first_empty());
    let (handler, replacement, node) = (free + 100, free + 101, free + 102);
    let small = machine.untyped(15);
    assert_eq!(machine.retype(small, ObjectType::Notification, 0, replacement, 1).0, 0);
    for way in 0..5 {
        assert_eq!(machine.call(IRQ_CONTROL, Invocation::IrqControlGet, &[IRQ, handler, 64], &[2]).0, 0);
        let threads = machine.waiters(ObjectType::Notification, untyped, other, free);
        assert_eq!(machine.call(handler, Invocation::IrqHandlerSetNotification, &[], &[free]).0, 0);
        assert_eq!(machine.call(2, Invocation::CNodeDelete, &[free, 64], &[]).0, 0);
        assert!(!machine.is_unused(other), "the interrupt keeps its notification");
        if way == 4 {
            // The handler's last capability goes with the CNode that holds it.
            assert_eq!(machine.retype(small, ObjectType::CapTable, 2, node, 1).0, 0);
            assert_eq!(machine.call(node, Invocation::CNodeMove, &[2, 2, handler, 64], &[2]).0, 0);
        }
        machine.release_in_steps(&simulation, &threads, || match way {
            0 => drop(machine.call(handler, Invocation::IrqHandlerClear, &[], &[])),
            1 => drop(machine.call(handler, Invocation::IrqHandlerSetNotification, &[], &[replacement])),
            2 => drop(machine.call(2, Invocation::CNodeDelete, &[handler, 64], &[])),
            3 => drop(machine.call(2, Invocation::CNodeRevoke, &[IRQ_CONTROL, 64], &[])),
            _ => drop(machine.call(2, Invocation::CNodeDelete, &[node, 64], &[])),
        });
        assert!(machine.is_unused(other), "way {way}");
        assert_eq!(machine.kernel.interrupts.in_use(), usize::from(way < 2));
        if way == 1 {
            let slot = machine.kernel.interrupts.slot(IRQ as u16).unwrap();
            assert!(slot.capability.signal().is_some(), "the replacement is there");
        }
        assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[IRQ_CONTROL, 64], &[]).0, 0);
        assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[untyped, 64], &[]).0, 0);
        assert_eq!(machine.kernel.interrupts.in_use(), 0);
        machine.kernel.check();
    }
}

#[test]
fn waiters_for_the_last_notification_of_a_handler_are_released_in_short_steps() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, other, free) = (machine.untyped(18), machine.untyped(12), machine.first_empty());
    let (pages, owner) = (free + 100, free + 110);
    for way in 0..4 {
        let memory = machine.untyped(15);
        assert_eq!(machine.retype(memory, ObjectType::Page, 0, pages, BUFFER_FRAMES).0, 0);
        assert_eq!(machine.retype(memory, ObjectType::Tcb, 0, owner, 1).0, 0);
        let threads = machine.waiters(ObjectType::Notification, untyped, other, free);
        let words = [64, pages, BUFFER_FRAMES];
        assert_eq!(machine.call(owner, Invocation::TcbRegisterAsyncSyscall, &words, &[free]).0, 0);
        assert_eq!(machine.call(2, Invocation::CNodeDelete, &[free, 64], &[]).0, 0);
        let Capability::Thread { tcb } = machine.slot(owner).capability.get() else { panic!("no thread") };
        if way == 3 {
            // A handler that has lost a frame ends in one step, which leaves the notification's remains.
            assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[pages, 64], &[]).0, 0);
            assert!(!machine.kernel.wake_handler(tcb));
            assert_eq!(tcb.own_slot(own::DOORBELL).capability.tag(), tag::ZOMBIE);
            machine.kernel.check();
        }
        machine.release_in_steps(&simulation, &threads, || match way {
            0 | 3 => drop(machine.call(owner, Invocation::TcbRegisterAsyncSyscall, &[0, 0, 0], &[2])),
            1 => drop(machine.call(2, Invocation::CNodeDelete, &[owner, 64], &[])),
            _ => drop(machine.call(2, Invocation::CNodeRevoke, &[memory, 64], &[])),
        });
        assert!(machine.is_unused(other), "way {way}");
        assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[memory, 64], &[]).0, 0);
        assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[untyped, 64], &[]).0, 0);
        machine.kernel.check();
    }
}

/// Cancels the sends of one of three badges in steps. Between the steps threads leave the queue, among them the next
/// one, and come back.
#[test]
fn sends_with_a_badge_are_cancelled_in_short_steps_while_the_queue_changes() {
    const THREADS: u64 = 90;
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let kernel = &machine.kernel;
    let (untyped, other, free) = (machine.untyped(18), machine.untyped(12), machine.first_empty());
    assert_eq!(machine.retype(untyped, ObjectType::Tcb, 0, free + 1, THREADS).0, 0);
    assert_eq!(machine.retype(other, ObjectType::Endpoint, 0, free, 1).0, 0);
    let badged = free + 1 + THREADS;
    for badge in 1..=3 {
        let words = [badged + badge, 64, free, 64, Rights::ALL.word(), badge];
        assert_eq!(machine.call(2, Invocation::CNodeMint, &words, &[2]).0, 0);
    }
    let Capability::Endpoint { endpoint, .. } = machine.slot(free).capability.get() else { panic!("no endpoint") };
    let send = |thread: Ref<Tcb>, badge| {
        kernel.send_message(thread, endpoint, Sending { mode: SendMode::Blocking, badge, rights: Rights::ALL });
        assert_eq!(thread.state(), ThreadState::Sending);
    };
    let threads: Vec<_> = (0..THREADS)
        .map(|index| match machine.slot(free + 1 + index).capability.get() {
            Capability::Thread { tcb } => tcb,
            _ => panic!("no thread"),
        })
        .collect();
    for (index, &thread) in threads.iter().enumerate() {
        let slot = free + 1 + index as u64;
        assert_eq!(machine.call(slot, Invocation::TcbSetSpace, &[0, 0, 0], &[2, 3]).0, 0);
        send(thread, index as u64 % 3 + 1);
    }
    kernel.check();
    let restarted = || threads.iter().filter(|thread| thread.state() == ThreadState::Restarting).count();
    simulation.set_external(0, true);
    let mut steps = 0;
    loop {
        let before = restarted();
        let is_done = machine.call_interrupted(Invocation::CNodeCancelBadgedSends, badged + 2);
        assert!(restarted() - before <= 8);
        kernel.check();
        steps += 1;
        if is_done {
            break;
        }
        // The next one leaves and comes back with the badge that is cancelled, at the end; another one leaves for ever.
        let (.., next) = kernel.cancellation.state().expect("it is under way");
        if steps == 2 || steps == 4 {
            kernel.make_inactive(next);
            kernel.check();
            if steps == 2 {
                send(next, 2);
            }
        }
        // Another cancellation takes the place of this one, which begins again.
        if steps == 6 {
            assert!(!machine.call_interrupted(Invocation::CNodeCancelBadgedSends, badged + 3));
            kernel.check();
        }
    }
    simulation.set_external(0, false);
    assert!(steps > THREADS / 8, "{steps} steps");
    assert!(kernel.cancellation.state().is_none());
    for (index, thread) in threads.iter().enumerate() {
        let waits = thread.state() == ThreadState::Sending;
        assert!(!waits || thread.wait_badge.get() != 2, "thread {index} was passed over");
        assert!(waits || index % 3 != 0 || thread.state() == ThreadState::Inactive);
    }
    // Deleting the endpoint in the middle of a cancellation ends it.
    simulation.set_external(0, true);
    assert!(!machine.call_interrupted(Invocation::CNodeCancelBadgedSends, badged + 1));
    simulation.set_external(0, false);
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[other, 64], &[]).0, 0);
    assert!(kernel.cancellation.state().is_none() && machine.is_unused(other));
    kernel.check();
}

#[test]
fn a_thread_deleted_with_its_own_cspace_stops_and_leaves_nothing() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, free) = (machine.untyped(16), machine.first_empty());
    let (node, thread, right) = (free, free + 1, free + 2);
    assert_eq!(machine.retype(untyped, ObjectType::CapTable, 2, node, 1).0, 0);
    assert_eq!(machine.retype(untyped, ObjectType::Tcb, 0, thread, 1).0, 0);
    assert_eq!(machine.retype(untyped, ObjectType::Endpoint, 0, right, 1).0, 0);
    let Capability::Thread { tcb } = machine.slot(thread).capability.get() else { panic!("no thread") };
    // The thread's own capability space is the CNode that holds the last capability to the thread: a cycle through the
    // thread's slots.
    assert_eq!(machine.call(thread, Invocation::TcbSetSpace, &[0, 0, 0], &[node, 3]).0, 0);
    assert_eq!(machine.call(thread, Invocation::TcbWriteRegisters, &[1, 1, 0x4000], &[]).0, 0);
    assert_eq!(machine.call(node, Invocation::CNodeMove, &[3, 2, thread, 64], &[2]).0, 0);
    assert_eq!(machine.call(2, Invocation::CNodeDelete, &[node, 64], &[]).0, 0);
    assert_eq!(tcb.state(), ThreadState::Restarting, "the thread keeps itself");
    machine.call_in_steps(&simulation, Invocation::CNodeRevoke, untyped);
    assert_eq!(tcb.state(), ThreadState::Inactive);
    assert!(machine.is_unused(untyped));
}

#[test]
fn a_pool_goes_at_once_with_all_its_address_spaces() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (memory, tables, free) = (machine.first_empty() + 40, machine.untyped(18), machine.first_empty());
    assert_eq!(machine.retype(machine.untyped(14), ObjectType::Untyped, 12, memory, 1).0, 0);
    assert_eq!(machine.call(4, Invocation::AsidControlMakePool, &[free, 64], &[memory, 2]).0, 3, "not the right");
    assert_eq!(machine.call(5, Invocation::AsidControlMakePool, &[free, 64], &[memory, 2]).0, 0);
    assert_eq!(machine.retype(tables, ObjectType::PageTable, 0, free + 1, 30).0, 0);
    for index in 1..=30 {
        assert_eq!(machine.call(free, Invocation::AsidPoolAssign, &[], &[free + index]).0, 0);
    }
    machine.kernel.check();
    assert_eq!(machine.call_in_steps(&simulation, Invocation::CNodeDelete, free), 1);
    assert!(machine.is_unused(memory));
    // The tables still exist, but no address space.
    assert_eq!(machine.call(6, Invocation::AsidPoolAssign, &[], &[free + 1]).0, 2, "it remembers that it was a root");
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[tables, 64], &[]).0, 0);
    assert!(machine.is_unused(tables));
    machine.kernel.check();
}

/// Deletes and revokes CNodes, threads, endpoints and interrupts that hold each other in any way, or at which threads
/// wait, from several places in turn, each a few steps at a time.
fn tear_down_in_turns(seed: u64) {
    const PLACES: u64 = 24;
    let simulation = Simulation::new();
    let machine = Machine::small(&simulation);
    let mut random = Random(seed | 1);
    let free = machine.first_empty();
    let memory = [0, 1, 2].map(|index| free + 2 * PLACES + index);
    assert_eq!(machine.retype(machine.untyped(16), ObjectType::Untyped, 14, memory[0], 3).0, 0);
    // An invocation of another capability than a CNode's would be a message.
    let is_node = |slot: u64| [tag::CNODE, tag::NULL].contains(&machine.slot(slot).capability.tag());
    for index in 0..PLACES {
        let kind = random.choose([4, 4, 4, 1, 2, 3, IRQ]);
        if let Some(kind) = ObjectType::from_number(kind as usize) {
            machine.retype(random.choose(memory), kind, 1 + random.below(3), free + index, 1);
        } else {
            machine.call(IRQ_CONTROL, Invocation::IrqControlGet, &[IRQ + random.below(4), free + index, 64], &[2]);
        }
    }
    // Each step links two of them in a random direction, mostly by moving, so that they hold each other's last
    // capabilities.
    for _ in 0..200 {
        let (node, from) = (free + random.below(PLACES), free + random.below(PLACES));
        let index = random.below(8);
        match random.below(5) {
            4 if machine.slot(node).capability.tag() == tag::IRQ_HANDLER => {
                machine.call(node, Invocation::IrqHandlerSetNotification, &[], &[from])
            }
            4 => {
                if let (Capability::Thread { tcb }, Capability::Notification { notification, .. }) =
                    (machine.slot(node).capability.get(), machine.slot(from).capability.get())
                    && tcb.state() == ThreadState::Inactive
                {
                    machine.kernel.receive_signals(tcb, notification, ReceiveMode::Blocking);
                }
                continue;
            }
            0 if is_node(node) => machine.call(node, Invocation::CNodeCopy, &[index, 3, from, 64, 15], &[2]),
            1 if machine.slot(from).capability.tag() == tag::THREAD => {
                machine.call(from, Invocation::TcbSetSpace, &[0, 0, 0], &[node, 3])
            }
            _ if is_node(node) => machine.call(node, Invocation::CNodeMove, &[index, 3, from, 64], &[2]),
            _ => continue,
        };
    }
    machine.kernel.check();
    for _ in 0..400 {
        simulation.set_external(0, random.below(8) != 0);
        match random.below(6) {
            0 => machine.call(2, Invocation::CNodeRevoke, &[random.choose(memory), 64], &[]),
            1 => {
                let (to, from) = (free + random.below(2 * PLACES), free + random.below(PLACES));
                machine.call(2, Invocation::CNodeMove, &[to, 64, from, 64], &[2])
            }
            2 => {
                let [to, pivot, from] = [0; 3].map(|_: u64| free + random.below(2 * PLACES));
                machine.call(2, Invocation::CNodeRotate, &[to, 64, 0, pivot, 64, 0, from, 64], &[2, 2])
            }
            3 => {
                // Memory that has become free is reused at once.
                machine.retype(random.choose(memory), ObjectType::CapTable, 2, free + random.below(PLACES), 1)
            }
            4 => {
                let node = free + random.below(PLACES);
                if !is_node(node) {
                    continue;
                }
                let from = free + random.below(2 * PLACES);
                machine.call(node, Invocation::CNodeMove, &[random.below(4), 2, from, 64], &[2])
            }
            _ => machine.call(2, Invocation::CNodeDelete, &[free + random.below(2 * PLACES), 64], &[]),
        };
        machine.kernel.check();
    }
    simulation.set_external(0, false);
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[IRQ_CONTROL, 64], &[]).0, 0);
    assert_eq!(machine.kernel.interrupts.in_use(), 0, "seed {seed}");
    for untyped in memory {
        assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[untyped, 64], &[]).0, 0);
        assert!(machine.is_unused(untyped), "seed {seed}");
        machine.kernel.check();
    }
    let tags: Vec<u64> = (0..2 * PLACES).map(|index| machine.slot(free + index).capability.tag()).collect();
    assert!(tags.iter().all(|&tag| tag == 0), "seed {seed}: {tags:?} are left of memory that is free");
}

#[test]
fn deletions_that_meet_leave_nothing_behind() {
    (0..60).for_each(|seed| tear_down_in_turns(seed * 0x9e37_79b9 + 1));
}

#[test]
fn a_message_meets_its_receiver_and_the_answer_comes_back() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, free) = (machine.untyped(14), machine.first_empty());
    let (server, meeting) = (free, free + 1);
    assert_eq!(machine.retype(untyped, ObjectType::Tcb, 0, server, 1).0, 0);
    assert_eq!(machine.retype(untyped, ObjectType::Endpoint, 0, meeting, 1).0, 0);
    assert_eq!(machine.call(server, Invocation::TcbSetSpace, &[0, 0, 0], &[2, 3]).0, 0);
    assert_eq!(machine.call(server, Invocation::TcbSetPriority, &[200], &[1]).0, 0);
    assert_eq!(machine.call(2, Invocation::CNodeMint, &[free + 2, 64, meeting, 64, 15, 0x77], &[2]).0, 0);
    assert_eq!(machine.call(server, Invocation::TcbWriteRegisters, &[1, 1, 0x4000], &[]).0, 0);
    let Capability::Thread { tcb } = machine.slot(server).capability.get() else { panic!("no thread") };
    assert_eq!(tcb.state(), ThreadState::Restarting);
    // The first thread calls and waits; then the server runs and receives.
    machine.trap(-1, free + 2, MessageInfo::new(9, 0, 3).0, &[10, 20, 30], &[]);
    assert_eq!(machine.init.state(), ThreadState::Sending);
    assert_eq!(machine.kernel.current(), tcb);
    tcb.register::<15>().set(5555);
    machine.trap(-5, meeting, 0, &[], &[]);
    assert_eq!(tcb.register::<10>().get(), 0x77);
    assert_eq!(MessageInfo(tcb.register::<11>().get()), MessageInfo::new(9, 0, 3));
    assert_eq!([12, 13, 14, 15].map(|register| tcb.register_at(register).get()), [10, 20, 30, 5555]);
    assert_eq!(machine.init.state(), ThreadState::AwaitingReply);
    machine.kernel.check();
    machine.trap(-2, meeting, MessageInfo::new(1, 0, 1).0, &[99], &[]);
    assert_eq!(machine.kernel.current(), machine.init);
    assert_eq!(MessageInfo(machine.init.register::<11>().get()), MessageInfo::new(1, 0, 1));
    assert_eq!(machine.init.register::<12>().get(), 99);
    assert_eq!(tcb.state(), ThreadState::Receiving);
    // The endpoint is deleted: the server restarts its call, and faults without a fault handler.
    assert_eq!(machine.call(2, Invocation::CNodeDelete, &[free + 2, 64], &[]).0, 0);
    assert_eq!(machine.call(2, Invocation::CNodeDelete, &[meeting, 64], &[]).0, 0);
    assert_eq!(tcb.state(), ThreadState::Restarting);
    machine.kernel.check();
}

/// Every combination of the woken thread's and a third thread's priority, of a source with and without signals, of
/// missing rights, and of address spaces that are cached and not: so with and without the short way.
#[test]
fn a_signal_before_a_wait_wakes_its_thread_and_then_waits() {
    const OWN: u8 = 100;
    for combination in 0..3 * 3 * 2 * 3 * 2 {
        let mut digits = combination;
        let mut choose = |count: usize| {
            let choice = digits % count;
            digits /= count;
            choice
        };
        let [waiter_at, third_at] = [choose(3), choose(3)];
        let (has_signals, rights, is_cached) = (choose(2) == 1, choose(3), choose(2) == 1);
        let simulation = Simulation::new();
        let machine = Machine::new(&simulation);
        let (kernel, free) = (&machine.kernel, machine.first_empty());
        let (memory, [target, source, badged]) = (machine.untyped(16), [free, free + 1, free + 2]);
        assert_eq!(machine.retype(memory, ObjectType::Notification, 0, target, 2).0, 0);
        // Without the right to signal or to wait that half of the call has no effect, or is a fault.
        let granted = if rights == 1 { Rights::READ } else { Rights::WRITE };
        assert_eq!(machine.call(2, Invocation::CNodeMint, &[badged, 64, target, 64, granted.word(), 7], &[2]).0, 0);
        assert_eq!(machine.retype(memory, ObjectType::Tcb, 0, free + 3, 2).0, 0);
        assert_eq!(machine.call(1, Invocation::TcbSetPriority, &[OWN.into()], &[1]).0, 0);
        let others =
            [(free + 3, [50, OWN, 150][waiter_at]), (free + 4, [0, 60, OWN][third_at])].map(|(slot, priority)| {
                assert_eq!(machine.call(slot, Invocation::TcbSetSpace, &[0, 0, 0], &[2, 3]).0, 0);
                assert_eq!(machine.call(slot, Invocation::TcbSetPriority, &[u64::from(priority)], &[1]).0, 0);
                let Capability::Thread { tcb } = machine.slot(slot).capability.get() else { panic!("no thread") };
                tcb
            });
        let [waiter, third] = others;
        let notification = |slot| match machine.slot(slot).capability.get() {
            Capability::Notification { notification, .. } => notification,
            other => panic!("{other:?} is no notification"),
        };
        kernel.receive_signals(waiter, notification(target), ReceiveMode::Blocking);
        if third_at > 0 {
            third.set_state_word(ThreadState::Running);
            kernel.queue_last(third);
        }
        if has_signals {
            kernel.signal(notification(source), 9);
        }
        if is_cached {
            kernel.space_of(waiter);
            assert!(waiter.space_in(kernel.space_epoch.get()).is_some());
        }
        let waits_at = if rights == 2 { badged } else { source };
        machine.trap(-66, waits_at, badged, &[], &[]);

        let is_woken = rights != 1;
        assert_eq!(waiter.state() == ThreadState::Running, is_woken, "{combination}");
        let state = match rights {
            2 => ThreadState::Inactive,
            _ if has_signals => ThreadState::Running,
            _ => ThreadState::AwaitingSignal,
        };
        assert_eq!(machine.init.state(), state, "{combination}");
        if is_woken {
            assert_eq!(waiter.register::<10>().get(), 7);
        }
        if state == ThreadState::Running {
            assert_eq!(machine.init.register::<10>().get(), 9);
        }
        // The woken thread comes before others of its priority, and the current one stays unless it is less important.
        let ready = [
            (state == ThreadState::Running).then_some((OWN, 2, machine.init)),
            is_woken.then_some((waiter.priority.get(), 1, waiter)),
            (third_at > 0).then_some((third.priority.get(), 0, third)),
        ];
        let best = ready.into_iter().flatten().max_by_key(|&(priority, place, _)| (priority, place));
        assert_eq!(kernel.node().current.get(), best.map(|(.., thread)| thread), "{combination}");
        kernel.check();
    }
}

#[test]
fn pages_are_mapped_where_there_is_a_table_and_forgotten_with_it() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, free) = (machine.untyped(16), machine.first_empty());
    let (space, table, lower, page) = (free, free + 1, free + 2, free + 3);
    assert_eq!(machine.retype(untyped, ObjectType::PageTable, 0, space, 3).0, 0);
    assert_eq!(machine.retype(untyped, ObjectType::Page, 0, page, 1).0, 0);
    let map = |cap: u64, address: u64| machine.call(cap, Invocation::PageMap, &[address, 3, 0], &[space]);
    assert_eq!(map(page, 0x1000).0, 2, "no address space yet");
    assert_eq!(machine.call(6, Invocation::AsidPoolAssign, &[], &[space]).0, 0);
    assert_eq!(machine.call(6, Invocation::AsidPoolAssign, &[], &[space]).0, 2, "it has an identifier");
    assert_eq!(map(page, 0x1000), (6, [0, 2, 30, 0]), "a table is missing");
    assert_eq!(map(page, USER_TOP).0, 1);
    assert_eq!(map(page, 0x1001).0, 5);
    let map_table = |cap: u64, address: u64| machine.call(cap, Invocation::PageTableMap, &[address, 0], &[space]).0;
    assert_eq!(map_table(table, USER_TOP), 1);
    assert_eq!(map_table(table, 0x1000), 0);
    assert_eq!(map_table(table, 0x1000), 2, "it is mapped");
    assert_eq!(map_table(lower, 0x1000), 0);
    assert_eq!(map(page, 0x1000).0, 0);
    assert_eq!(map(page, 0x1000).0, 0, "again, with other rights perhaps");
    assert_eq!(map(page, 0x2000).0, 1, "elsewhere");
    let Capability::PageTable { table: leaf, .. } = machine.slot(lower).capability.get() else { panic!("no table") };
    assert_ne!(leaf.entries[1].load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(machine.call(page, Invocation::PageUnmap, &[], &[]).0, 0);
    assert_eq!(leaf.entries[1].load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(map(page, 0x3000).0, 0);
    assert_eq!(machine.call(2, Invocation::CNodeDelete, &[space, 64], &[]).0, 0);
    assert_eq!(machine.call(page, Invocation::PageUnmap, &[], &[]).0, 0, "the space is gone; so is the mapping");
    machine.kernel.check();
}

/// Threads of one space, and the kernel, keep their translations on a machine that cannot tell spaces apart.
#[test]
fn a_machine_without_identifiers_flushes_where_the_address_space_changes_alone() {
    use hal_api::{Flush, Machine as _, Scope};
    let simulation = Simulation::new();
    simulation.remove_asids();
    let machine = Machine::new(&simulation);
    let (untyped, spaces) = (machine.untyped(16), machine.first_empty());
    assert_eq!(machine.retype(untyped, ObjectType::PageTable, 0, spaces, 2).0, 0);
    let space = |slot: u64| {
        assert_eq!(machine.call(6, Invocation::AsidPoolAssign, &[], &[slot]).0, 0);
        let Capability::PageTable { table, mapping: Some(mapping) } = machine.slot(slot).capability.get() else {
            panic!("no address space")
        };
        objects::Space::new::<platform::Machine>(table, mapping.asid)
    };
    let (one, other) = (space(spaces), space(spaces + 1));
    let flushes_of = |space| {
        let before = simulation.flushes().len();
        objects::activate::<platform::Machine>(space);
        simulation.flushes().split_off(before)
    };
    let flush = [Flush::Local(Scope::AddressSpace { asid: 0 })];
    assert_eq!(flushes_of(one), flush);
    assert_eq!(flushes_of(one), []);
    assert_eq!(flushes_of(other), flush);
    assert_eq!(flushes_of(one), flush);
    assert_eq!(simulation.active(0).1, 0);
    assert_eq!(platform::Machine::maximum_asid(), 0);
}

/// On a machine that cannot tell spaces apart, a root whose memory becomes a root again is activated as what it was
/// before, with the same identifier; so only the deletion can make the hart forget.
#[test]
fn a_root_that_is_freed_and_used_again_brings_no_translations_back_without_identifiers() {
    use hal_api::{Flush, Machine as _, Scope};
    let simulation = Simulation::new();
    simulation.remove_asids();
    let machine = Machine::new(&simulation);
    let (untyped, space) = (machine.untyped(16), machine.first_empty());
    let begin = || {
        assert_eq!(machine.retype(untyped, ObjectType::PageTable, 0, space, 1).0, 0);
        assert_eq!(machine.call(6, Invocation::AsidPoolAssign, &[], &[space]).0, 0);
        let Capability::PageTable { table, mapping: Some(mapping) } = machine.slot(space).capability.get() else {
            panic!("no address space")
        };
        objects::activate::<platform::Machine>(objects::Space::new::<platform::Machine>(table, mapping.asid));
        assert_eq!(simulation.active(0), (table.physical() >> 12, 0));
        (table, mapping.asid)
    };
    let first = begin();
    // By its capability, and by the memory's.
    for (invocation, slot) in [(Invocation::CNodeDelete, space), (Invocation::CNodeRevoke, untyped)] {
        let before = simulation.flushes().len();
        assert_eq!(machine.call(2, invocation, &[slot, 64], &[]).0, 0);
        assert_eq!(simulation.active(0).0, platform::Machine::kernel_root_ppn(), "the hart stays in a free table");
        let flushes = simulation.flushes().split_off(before);
        assert!(flushes.contains(&Flush::Local(Scope::All)), "{invocation:?} leaves translations: {flushes:?}");
        assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[untyped, 64], &[]).0, 0);

        let before = simulation.flushes().len();
        assert_eq!(begin(), first, "the memory is another's");
        let flushes = simulation.flushes().split_off(before);
        assert!(flushes.contains(&Flush::Local(Scope::AddressSpace { asid: 0 })), "{flushes:?}");
    }
    machine.kernel.check();
}

/// LEFT-SPACE, on two threads of the host.
#[cfg(feature = "smp")]
#[test]
fn a_hart_that_waits_for_the_lock_leaves_an_address_space_that_goes() {
    use hal_api::Machine as _;
    use std::sync::mpsc;
    const OTHER: usize = 3;
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (untyped, space) = (machine.untyped(16), machine.first_empty());
    assert_eq!(machine.retype(untyped, ObjectType::PageTable, 0, space, 1).0, 0);
    assert_eq!(machine.call(6, Invocation::AsidPoolAssign, &[], &[space]).0, 0);
    let Capability::PageTable { table, mapping: Some(mapping) } = machine.slot(space).capability.get() else {
        panic!("no address space")
    };
    machine.kernel.node_count.set(OTHER + 1);
    // The other hart entered from this address space, and its thread was stopped.
    machine.kernel.nodes[OTHER].asid.set(mapping.asid);
    // Another kernel is behind the lock: only the words of the harts are shared.
    let shared = Shared::new(machine.kernel.harts);
    std::thread::scope(|scope| {
        let held = shared.lock();
        let (inside, arrived) = mpsc::channel();
        let (simulation, shared) = (&simulation, &shared);
        scope.spawn(move || {
            let _hart = simulation.attach(OTHER);
            objects::activate::<platform::Machine>(objects::Space::new::<platform::Machine>(table, mapping.asid));
            inside.send(()).unwrap();
            drop(shared.enter(OTHER));
        });
        arrived.recv().unwrap();
        assert_eq!(simulation.active(OTHER).0, table.physical() >> 12);
        assert_eq!(machine.call(2, Invocation::CNodeDelete, &[space, 64], &[]).0, 0);
        assert_eq!(simulation.active(OTHER).0, platform::Machine::kernel_root_ppn());
        assert_eq!(machine.kernel.nodes[OTHER].asid.get(), 0);
        drop(held);
    });
    machine.kernel.check();
}

/// The buffer of asynchronous invocations of a fake machine's first thread. Its frames are contiguous.
struct SyscallBuffer<'a> {
    machine: &'a Machine,
    base: u64,
    capacity: usize,
    requests: u64,
    responses: u64,
}

/// Number of frames of the smallest buffer.
const BUFFER_FRAMES: u64 = 4;

impl<'a> SyscallBuffer<'a> {
    /// Registers a buffer; uses five slots from `first` on.
    fn register(machine: &'a Machine, memory: u64, first: u64) -> SyscallBuffer<'a> {
        assert_eq!(machine.retype(memory, ObjectType::Page, 0, first, BUFFER_FRAMES).0, 0);
        assert_eq!(machine.retype(memory, ObjectType::Notification, 0, first + BUFFER_FRAMES, 1).0, 0);
        let Capability::Frame { base, .. } = machine.slot(first).capability.get() else { panic!("no page") };
        let words = [64, first, BUFFER_FRAMES];
        let answer = machine.call(1, Invocation::TcbRegisterAsyncSyscall, &words, &[first + BUFFER_FRAMES]);
        assert_eq!(answer.0, 0, "{answer:?}");
        SyscallBuffer { machine, base, capacity: 64, requests: 0, responses: 0 }
    }

    fn set(&self, offset: usize, value: u64) {
        frame_words(self.base + (offset as u64 & !1023)).set(offset % 1024 / 8, value);
    }

    fn get(&self, offset: usize) -> u64 {
        frame_words(self.base + (offset as u64 & !1023)).get(offset % 1024 / 8)
    }

    fn put(&mut self, request: SyscallRequest) {
        let place = self.requests as usize % self.capacity;
        for (word, value) in request.to_words().into_iter().enumerate() {
            self.set(syscall_buffer::request_word(self.capacity, place, word), value);
        }
        self.requests += 1;
    }

    /// Publishes the requests, wakes the handler, and runs it until it sleeps.
    fn wake(&self) {
        self.set(syscall_buffer::REQUEST_TAIL_OFFSET, self.requests);
        self.machine.trap(-64, 0, 0, &[], &[]);
        self.work();
    }

    fn work(&self) {
        while self.machine.kernel.node().serving.get().is_some() {
            self.machine.kernel.serve();
        }
        self.machine.kernel.decide();
    }

    fn take(&mut self) -> Option<SyscallResponse> {
        if self.get(syscall_buffer::RESPONSE_TAIL_OFFSET) == self.responses {
            return None;
        }
        let place = self.responses as usize % self.capacity;
        let words = core::array::from_fn(|word| self.get(syscall_buffer::response_word(self.capacity, place, word)));
        self.responses += 1;
        self.set(syscall_buffer::RESPONSE_HEAD_OFFSET, self.responses);
        Some(SyscallResponse::from_words(words))
    }

    /// Takes all responses; returns their number.
    fn take_all(&mut self) -> usize {
        std::iter::from_fn(|| self.take()).count()
    }
}

fn request(capability: u64, invocation: Invocation, words: &[u64], capabilities: &[u64]) -> SyscallRequest {
    let mut request = SyscallRequest { cid: 7, capability, ..SyscallRequest::default() };
    let label = invocation.label(NUMBERING).unwrap();
    request.information = MessageInfo::new(label, capabilities.len(), words.len()).0;
    request.arguments[..words.len()].copy_from_slice(words);
    request.capabilities[..capabilities.len()].copy_from_slice(capabilities);
    request
}

/// An invocation that can be made by a system call and by a request: capability, label, words, capabilities.
type Asked = (u64, Invocation, Vec<u64>, Vec<u64>);

/// A hostile thread: system calls, invocations and messages of any form, over memory that it retypes meanwhile. A
/// forbidden operation returns an error, and the consistency checker finds no violation after any operation.
#[test]
fn fuzz_messages() {
    let seeds: [&[u8]; 2] = [
        &[0, 5, 1, 2, 1, 1, 6, 1, 0, 1, 0, 1, 0, 1, 1, 1, 3, 0, 2, 3, 4, 1, 5, 1, 1, 2, 1, 3],
        &[1, 0, 9, 4, 2, 1, 2, 3, 1, 1, 0, 7, 3, 2, 1, 0, 0, 2, 8, 4],
    ];
    property::fuzz("messages", &seeds, |input| {
        use abi_sel4::Invocation::*;
        const INVOCATIONS: [Invocation; 20] = [
            UntypedRetype,
            CNodeCopy,
            CNodeMint,
            CNodeMove,
            CNodeMutate,
            CNodeRotate,
            CNodeDelete,
            CNodeRevoke,
            CNodeCancelBadgedSends,
            CNodeSaveCaller,
            TcbBindNotification,
            TcbUnbindNotification,
            TcbSetPriority,
            TcbReadRegisters,
            PageTableMap,
            PageTableUnmap,
            PageMap,
            PageUnmap,
            PageGetAddress,
            AsidPoolAssign,
        ];
        let mut numbers = property::Numbers::new(input);
        let simulation = Simulation::new();
        let machine = Machine::new(&simulation);
        let (memory, free) = (machine.untyped(15), machine.first_empty());
        for _ in 0..64 {
            // The first thread is the only one with a program, so the run ends when it cannot run.
            if numbers.is_empty() || machine.init.state() != ThreadState::Running {
                break;
            }
            // Initial capabilities, created ones, and arbitrary addresses.
            let slot = |numbers: &mut property::Numbers| match numbers.byte() {
                0..16 => 2,
                16..32 => memory,
                byte @ 32..200 => free + u64::from(byte - 32) % PLAYGROUND,
                byte @ 200..250 => u64::from(byte - 200) % 16,
                _ => numbers.number(),
            };
            let to = slot(&mut numbers);
            let kind = numbers.byte();
            let words: Vec<u64> = (0..numbers.byte() % 9)
                .map(|_| match numbers.byte() % 3 {
                    0 => numbers.number(),
                    1 => 64,
                    _ => slot(&mut numbers),
                })
                .collect();
            let capabilities: Vec<u64> = (0..numbers.byte() % 4).map(|_| slot(&mut numbers)).collect();
            match kind {
                0..200 => {
                    let Some(label) = INVOCATIONS[usize::from(kind) % INVOCATIONS.len()].label(NUMBERING) else {
                        continue;
                    };
                    machine.trap(
                        -1,
                        to,
                        MessageInfo::new(label, capabilities.len(), words.len()).0,
                        &words,
                        &capabilities,
                    );
                }
                // A raw message: random number of the call, label and lengths.
                _ => {
                    let (call, information) = (-(i64::from(kind - 199) % 16), numbers.number());
                    // This call shuts the machine down.
                    if call == DebugCall::DebugHalt.fixed_number() as i64 {
                        break;
                    }
                    machine.trap(call, to, information, &words, &capabilities);
                }
            }
            machine.kernel.check();
        }
    });
}

/// Number of slots for random invocations, from the first empty slot on.
const PLAYGROUND: u64 = 40;

/// Makes random invocations that are often nearly valid. No capability address is random beyond the slots in use.
fn random_invocations(random: &mut Random, machine: &Machine, count: usize) -> Vec<Asked> {
    use Invocation::*;
    let free = machine.first_empty();
    let memory = [machine.untyped(13), machine.untyped(15)];
    let slot = |random: &mut Random| free + random.below(PLAYGROUND);
    let depth = |random: &mut Random| if random.below(12) == 0 { random.below(70) } else { 64 };
    let address =
        |random: &mut Random| random.choose([0x1000, 0x2000, 0x3000, 0x20_0000, 0x4000_0000, 0x3f_ffff_f000, 0x123]);
    // The root CNode, and sometimes another slot.
    let root = |random: &mut Random| if random.below(12) == 0 { slot(random) } else { 2 };
    let space = |random: &mut Random| if random.below(3) == 0 { slot(random) } else { 3 };
    let mut asked: Vec<Asked> = (0..count)
        .map(|_| {
            let (to, from) = (slot(random), slot(random));
            let (to_depth, from_depth, root) = (depth(random), depth(random), root(random));
            match random.below(20) {
                0..=3 => {
                    let kind = random.choose([0, 1, 2, 3, 4, 6, 6, 6, 8, 8, 9]);
                    let words = vec![kind, random.below(6), 0, 0, to, 1 + random.below(3)];
                    (random.choose(memory), UntypedRetype, words, vec![root])
                }
                4 => (root, CNodeCopy, vec![to, to_depth, from, from_depth, random.below(16)], vec![2]),
                5 => (2, CNodeMint, vec![to, 64, from, from_depth, 15, random.below(4)], vec![root]),
                6 => (2, CNodeMove, vec![to, to_depth, from, 64], vec![root]),
                7 => (2, CNodeMutate, vec![to, 64, from, from_depth, random.below(99)], vec![root]),
                8 => {
                    let pivot = slot(random);
                    (2, CNodeRotate, vec![to, 64, 0, pivot, to_depth, 0, from, from_depth], vec![2, root])
                }
                9 => (root, CNodeDelete, vec![to, to_depth], vec![]),
                10 => (root, CNodeRevoke, vec![to, to_depth], vec![]),
                11 => (2, CNodeCancelBadgedSends, vec![to, to_depth], vec![]),
                12 => (to, TcbBindNotification, vec![], vec![from]),
                13 => (to, TcbUnbindNotification, vec![], vec![]),
                14 => (to, PageTableMap, vec![address(random), 0], vec![space(random)]),
                15 => (to, PageTableUnmap, vec![], vec![]),
                16 | 17 => (to, PageMap, vec![address(random), 3, random.below(2)], vec![space(random)]),
                18 => (to, PageUnmap, vec![], vec![]),
                _ => (to, PageGetAddress, vec![], vec![]),
            }
        })
        .collect();
    for (_, _, words, capabilities) in &mut asked {
        match random.below(30) {
            0 => drop(words.pop()),
            1 => drop(capabilities.pop()),
            _ => {}
        }
    }
    asked
}

/// Returns the visible state of the slots: kinds, neighbours in the derivation list, and mappings of pages.
fn visible_state(machine: &Machine) -> Vec<String> {
    let free = machine.first_empty();
    let node = machine.slot(0).physical();
    let index_of = |slot: Option<Ref<Slot>>| {
        slot.map(|slot| slot.physical().wrapping_sub(node) / 32).filter(|&index| index < 8192)
    };
    (free..free + PLAYGROUND)
        .map(|index| {
            let slot = machine.slot(index);
            let detail = match slot.capability.get() {
                Capability::Frame { size, rights, mapping, .. } => format!("{size:?} {rights:?} {mapping:?}"),
                Capability::PageTable { mapping, .. } => format!("{mapping:?}"),
                Capability::Untyped { bits, used, .. } => format!("{bits} {used}"),
                Capability::Endpoint { badge, rights, .. } => format!("{badge} {rights:?}"),
                Capability::Notification { badge, rights, notification, .. } => {
                    format!("{badge} {rights:?} {}", notification.bound.get().is_some())
                }
                Capability::CNode { radix, guard, guard_bits, .. } => format!("{radix} {guard} {guard_bits}"),
                Capability::Thread { tcb } => format!("{}", tcb.bound.get().is_some()),
                _ => String::new(),
            };
            let (previous, next) = (index_of(slot.previous.get()), index_of(slot.next.get()));
            format!("{} {detail} {previous:?} {next:?}", slot.capability.get().tag())
        })
        .collect()
}

/// Makes addresses in an answer relative to the machine's first byte, which differs between machines.
fn relative(machine: &Machine, invocation: Invocation, (label, mut words): (u64, Vec<u64>)) -> (u64, Vec<u64>) {
    if invocation == Invocation::PageGetAddress && label == 0 {
        words[0] -= machine.information & !((1 << MEMORY_BITS) - 1);
    }
    (label, words)
}

/// Makes rows of requests that map and unmap pages, some in another address space, through other tables or not
/// possible, with other invocations in between that take away what the requests of a row have in common.
fn rows_of_pages(random: &mut Random, machine: &Machine, count: usize) -> Vec<Asked> {
    use Invocation::*;
    // Slots of small pages, tables, a root with its own ASID, a large page, copies, and none.
    const PAGES: u64 = 8;
    let free = machine.first_empty();
    let (table, other, root, large) = (free + PAGES, free + PAGES + 1, free + PAGES + 2, free + PAGES + 3);
    let regions = [0x4000_0000, 0x4020_0000];
    let small = |slot, count| vec![6, 0, 0, 0, slot, count];
    let mut asked: Vec<Asked> = vec![
        (machine.untyped(15), UntypedRetype, small(free, 6), vec![2]),
        (machine.untyped(15), UntypedRetype, vec![8, 0, 0, 0, table, 2], vec![2]),
        (machine.untyped(13), UntypedRetype, vec![8, 0, 0, 0, root, 1], vec![2]),
        (2, CNodeCopy, vec![free + 6, 64, free, 64, 15], vec![2]),
        (2, CNodeMint, vec![free + 7, 64, free + 1, 64, 2, 0], vec![2]),
        (table, PageTableMap, vec![regions[0], 0], vec![3]),
        (table, PageTableMap, vec![regions[0], 0], vec![3]),
        (other, PageTableMap, vec![regions[0], 0], vec![3]),
        (other, PageTableMap, vec![regions[1], 0], vec![3]),
    ];
    for _ in asked.len()..count {
        let page = free + random.below(PAGES);
        let region = random.choose(regions);
        let address = match random.below(16) {
            0 => {
                random.choose([0, 0x123, region + 0x123, region + 0x40_0000, 0x3f_ffff_f000, 0x40_0000_0000, u64::MAX])
            }
            _ => region + (random.below(4) << 12),
        };
        let space = if random.below(12) == 0 { random.choose([root, table, page, 2, 0, 5000]) } else { 3 };
        let page = if random.below(20) == 0 { random.choose([large, table, 2, 0, 5000]) } else { page };
        asked.push(match random.below(40) {
            0 => (random.choose([table, other]), PageTableUnmap, vec![], vec![]),
            1..=3 => (random.choose([table, other]), PageTableMap, vec![region, 0], vec![3]),
            4 => (2, CNodeDelete, vec![page, 64], vec![]),
            5 => (2, CNodeMove, vec![free + random.below(PAGES), 64, page, 64], vec![2]),
            6 => (2, CNodeCopy, vec![free + random.below(PAGES), 64, page, 64, random.below(16)], vec![2]),
            7 => (page, PageGetAddress, vec![], vec![]),
            8 => (page, PageMap, vec![address, 3], vec![space]),
            9 => (page, PageMap, vec![address, 3, 0], vec![space, random.choose([3, 0, 5000])]),
            10 => (page, PageUnmap, vec![address], vec![random.choose([3, 0, 5000])]),
            11..=24 => (page, PageUnmap, vec![], vec![]),
            _ => (page, PageMap, vec![address, random.below(16), random.below(2)], vec![space]),
        });
    }
    asked
}

/// Makes invocations as system calls and as requests, on two machines; compares all answers, and the state at the end.
fn compare_both_ways(asked: impl Fn(&Machine) -> Vec<Asked>) -> Result<(), TestCaseError> {
    let run = |is_asynchronous: bool| {
        let simulation = Simulation::new();
        let machine = Machine::new(&simulation);
        let asked = asked(&machine);
        let mut buffer = SyscallBuffer::register(&machine, machine.untyped(16), machine.first_empty() + PLAYGROUND);
        let mut answers = Vec::new();
        for (chunk, group) in asked.chunks(60).enumerate() {
            if is_asynchronous {
                for (target, invocation, words, capabilities) in group {
                    buffer.put(request(*target, *invocation, words, capabilities));
                }
                buffer.wake();
                for (_, invocation, ..) in group {
                    let response = buffer.take().expect("every request is answered");
                    assert_eq!(response.cid, 7);
                    let information = MessageInfo(response.information);
                    let words = response.results[..information.length()].to_vec();
                    answers.push(relative(&machine, *invocation, (information.label(), words)));
                }
                assert!(buffer.take().is_none());
            } else {
                for (target, invocation, words, capabilities) in group {
                    // These invocations would send a message, which requests do not do.
                    if [tag::ENDPOINT, tag::NOTIFICATION, tag::REPLY].contains(&machine.slot(*target).capability.tag())
                    {
                        answers.push((3, Vec::new()));
                        continue;
                    }
                    let (label, _) = machine.call(*target, *invocation, words, capabilities);
                    let length = MessageInfo(machine.init.register::<11>().get()).length();
                    let word = |index: usize| match index {
                        0..4 => machine.init.register_at(12 + index).get(),
                        _ => frame_words(machine.buffer).get(1 + index),
                    };
                    answers.push(relative(&machine, *invocation, (label, (0..length).map(word).collect())));
                }
            }
            machine.kernel.check();
            assert_eq!(machine.init.state(), ThreadState::Running, "group {chunk}");
        }
        (answers, visible_state(&machine))
    };
    let (synchronous, asynchronous) = (run(false), run(true));
    for (index, (one, other)) in synchronous.0.iter().zip(&asynchronous.0).enumerate() {
        prop_assert_eq!(one, other, "invocation {}", index);
    }
    prop_assert_eq!(synchronous, asynchronous);
    Ok(())
}

proptest! {
    #![proptest_config(property::cases(200))]

    #[test]
    fn both_ways_give_the_same_answers_and_the_same_state(seed: u64) {
        compare_both_ways(|machine| random_invocations(&mut Random(seed | 1), machine, 300))?;
    }

    #[test]
    fn both_ways_give_the_same_answers_in_rows_of_pages(seed: u64) {
        compare_both_ways(|machine| rows_of_pages(&mut Random(seed | 1), machine, 300))?;
    }

    #[test]
    fn nonsense_in_a_buffer_harms_no_other_thread(seed: u64) {
        put_nonsense_into_a_buffer(seed);
    }
}

/// Writes random words to the buffer of asynchronous invocations, with valid requests in between.
fn put_nonsense_into_a_buffer(seed: u64) {
    let simulation = Simulation::new();
    let machine = Machine::small(&simulation);
    let mut random = Random(seed | 1);
    let first = machine.first_empty() + PLAYGROUND;
    let mut buffer = SyscallBuffer::register(&machine, machine.untyped(16), first);
    for round in 0..200 {
        for _ in 0..random.below(40) {
            let offset = match random.below(6) {
                0 => random.choose([0, 8, 64, 72, 80, 128]),
                _ => random.below(syscall_buffer::size(64) as u64 / 8) * 8,
            };
            let value = match random.below(4) {
                0 => random.next(),
                1 => machine.first_empty() + random.below(64),
                2 => MessageInfo::new(random.below(48), random.below(4) as usize, random.below(12) as usize).0,
                _ => random.below(80),
            };
            buffer.set(offset as usize, value);
        }
        // Valid requests in between delete objects, sometimes the buffer's own.
        for (target, invocation, words, capabilities) in random_invocations(&mut random, &machine, 3) {
            buffer.put(request(target, invocation, &words, &capabilities));
        }
        if random.below(8) == 0 {
            buffer.put(request(2, Invocation::CNodeRevoke, &[first + random.below(5), 64], &[]));
        }
        buffer.wake();
        machine.kernel.check();
        if machine.init.handler.state() == objects::HandlerState::None {
            // A random request may have deleted the thread's own capability space: its next call is a fault without a
            // handler. Or it has put another capability into the CNode's slot: a call of an endpoint there would wait.
            if machine.init.own_slot(own::CSPACE).is_empty()
                || !matches!(machine.slot(2).capability.get(), Capability::CNode { .. })
            {
                break;
            }
            for index in 0..5 {
                machine.call(2, Invocation::CNodeDelete, &[first + index, 64], &[]);
            }
            let memory = machine.untyped(16);
            machine.call(2, Invocation::CNodeRevoke, &[memory, 64], &[]);
            // The memory's slot may contain another capability, too.
            if !matches!(machine.slot(memory).capability.get(), Capability::Untyped { .. }) {
                break;
            }
            // A random request may have deleted the thread's own capability, without which it cannot register a buffer;
            // or its IPC buffer, without which it cannot pass capabilities.
            let is_itself = machine.slot(1).capability.get() == (Capability::Thread { tcb: machine.init });
            if !is_itself || machine.init.own_slot(own::BUFFER).is_empty() {
                break;
            }
            buffer = SyscallBuffer::register(&machine, memory, first);
        }
        assert_eq!(machine.init.state(), ThreadState::Running, "round {}", round);
    }
}

#[test]
fn nonsense_that_deletes_its_own_memory_harms_no_other_thread() {
    put_nonsense_into_a_buffer(5_632_170_323_087_330_452);
}

#[test]
fn a_buffer_is_checked_when_it_is_registered() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let (memory, free) = (machine.untyped(16), machine.first_empty());
    let notification = free + 8;
    assert_eq!(machine.retype(memory, ObjectType::Page, 0, free, 8).0, 0);
    assert_eq!(machine.retype(memory, ObjectType::Notification, 0, notification, 1).0, 0);
    let register = |capacity: u64, first: u64, count: u64, notification: u64| {
        machine.call(1, Invocation::TcbRegisterAsyncSyscall, &[capacity, first, count], &[notification])
    };
    let range = |(label, words): (u64, [u64; 4])| (label, words[0], words[1]);
    assert_eq!(range(register(32, free, 4, notification)), (4, 64, 4096));
    assert_eq!(range(register(8192, free, 4, notification)), (4, 64, 4096));
    assert_eq!(register(100, free, 4, notification).0, 1);
    assert_eq!(range(register(64, free, 9, notification)), (4, 1, 8));
    assert_eq!(range(register(64, free, 3, notification)), (4, 4, 8), "too small");
    assert_eq!(range(register(256, free, 8, notification)), (4, 14, 8), "never large enough");
    assert_eq!(register(64, free, 4, free).0, 2, "no notification");
    assert_eq!(register(64, free + 5, 4, notification).0, 1, "one of them is no page");
    assert_eq!(machine.call(1, Invocation::TcbRegisterAsyncSyscall, &[64, free], &[notification]).0, 7);
    machine.trap(-64, 0, 0, &[], &[]);
    assert_eq!(machine.init.register::<10>().get(), 1, "there is no handler to call");
    assert_eq!(register(128, free, 8, notification).0, 0);
    // The buffer's frames are in the derivation tree, like those of IPC buffers.
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[free + 2, 64], &[]).0, 0);
    machine.trap(-64, 0, 0, &[], &[]);
    assert_eq!(machine.init.register::<10>().get(), 1, "a frame is gone");
    assert_eq!(machine.init.handler.state(), objects::HandlerState::None);
    assert_eq!(register(64, free, 4, notification).0, 0);
    assert_eq!(register(0, 0, 0, notification).0, 0, "it is taken away");
    assert_eq!(machine.init.handler.state(), objects::HandlerState::None);
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[memory, 64], &[]).0, 0);
    machine.kernel.check();
}

#[test]
fn a_pointer_to_nowhere_in_a_row_of_pages_fails_alone() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let free = machine.first_empty();
    let mut buffer = SyscallBuffer::register(&machine, machine.untyped(16), free + PLAYGROUND);
    let failed_lookup = InvocationError::FailedLookup {
        operand: Operand::Destination,
        failure: FailedLookup::GuardMismatch { bits_left: 64, guard_found: 0, bits_found: 51 },
    };
    let failed = failed_lookup.kind().number() as u64;
    let made = |kind, slot| (machine.untyped(15), Invocation::UntypedRetype, vec![kind, 0, 0, 0, slot, 1], vec![2]);
    let map = |page, space| (page, Invocation::PageMap, vec![0x4000_0000, 3, 0], vec![space]);
    let unmap = |page| (page, Invocation::PageUnmap, vec![], vec![]);
    let far = [1 << 13, 1 << 40, u64::MAX];
    let mut asked: Vec<(Asked, u64)> = vec![
        (made(6, free), 0),
        (made(8, free + 1), 0),
        ((free + 1, Invocation::PageTableMap, vec![0x4000_0000, 0], vec![3]), 0),
        (made(8, free + 2), 0),
        ((free + 2, Invocation::PageTableMap, vec![0x4000_0000, 0], vec![3]), 0),
    ];
    for pointer in far {
        // The index of each is that of the page, or of the address space, in its lowest bits.
        asked.push((map(pointer | free, 3), failed));
        asked.push((map(free, pointer | 3), failed));
        asked.push((map(free, 3), 0));
        asked.push((unmap(pointer | free), failed));
        asked.push((unmap(free), 0));
    }
    for ((target, invocation, words, capabilities), _) in &asked {
        buffer.put(request(*target, *invocation, words, capabilities));
    }
    buffer.wake();
    for (index, (_, label)) in asked.iter().enumerate() {
        let response = buffer.take().expect("every request is answered");
        assert_eq!(MessageInfo(response.information).label(), *label, "request {index}");
    }
    machine.kernel.check();
}

#[test]
fn a_full_buffer_keeps_requests_and_a_sleeping_receiver_is_told() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let free = machine.first_empty();
    let mut buffer = SyscallBuffer::register(&machine, machine.untyped(16), free);
    let Capability::Notification { notification, .. } = machine.slot(free + 4).capability.get() else { panic!() };
    let ask = request(free, Invocation::PageGetAddress, &[], &[]);
    (0..64).for_each(|_| buffer.put(ask));
    buffer.wake();
    assert_eq!(notification.is_active.get(), 0, "no side sleeps");
    assert_eq!(buffer.get(syscall_buffer::HANDLER_OFFSET), syscall_buffer::SLEEPING);
    // There is no room for a response: the request stays.
    buffer.put(ask);
    buffer.wake();
    assert_eq!(buffer.get(syscall_buffer::REQUEST_HEAD_OFFSET), 64);
    buffer.set(syscall_buffer::RECEIVER_OFFSET, syscall_buffer::SLEEPING);
    assert!((0..64).all(|_| buffer.take().is_some_and(|response| response.results[0] == buffer.base)));
    buffer.wake();
    assert_eq!(buffer.get(syscall_buffer::REQUEST_HEAD_OFFSET), 65);
    assert_eq!(notification.is_active.get(), 1, "the receiver is told once");
    assert_eq!(buffer.get(syscall_buffer::RECEIVER_OFFSET), syscall_buffer::AWAKE);
    assert!(buffer.take().is_some());
    // An invalid index removes the handler.
    buffer.requests += 1000;
    buffer.wake();
    assert_eq!(buffer.get(syscall_buffer::HANDLER_OFFSET), syscall_buffer::BROKEN);
    assert_eq!(machine.init.handler.state(), objects::HandlerState::None);
    machine.kernel.check();
}

/// Fills slots with copies of a capability.
fn copy_into(machine: &Machine, source: u64, slots: Range<u64>) {
    for slot in slots {
        assert_eq!(machine.call(2, Invocation::CNodeCopy, &[slot, 64, source, 64, 15], &[2]).0, 0);
    }
}

/// Counts the slots that hold a capability.
fn count_full(machine: &Machine, slots: Range<u64>) -> usize {
    slots.filter(|&slot| !machine.slot(slot).is_empty()).count()
}

/// Makes an endpoint in the first of some slots and copies its capability to the others; returns the copies' slots.
fn endpoint_with_copies(machine: &Machine, slots: Range<u64>) -> Range<u64> {
    assert_eq!(machine.retype(machine.untyped(12), ObjectType::Endpoint, 0, slots.start, 1).0, 0);
    let copies = slots.start + 1..slots.end;
    copy_into(machine, slots.start, copies.clone());
    copies
}

/// Requests a revocation that is preempted at its first preemption point.
fn ask_for_interrupted_revocation(simulation: &Simulation, buffer: &mut SyscallBuffer, source: u64) {
    buffer.put(request(2, Invocation::CNodeRevoke, &[source, 64], &[]));
    simulation.set_external(0, true);
    buffer.set(syscall_buffer::REQUEST_TAIL_OFFSET, 1);
    buffer.machine.trap(-64, 0, 0, &[], &[]);
}

#[test]
fn a_revocation_that_is_interrupted_goes_on_from_the_buffer() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let free = machine.first_empty();
    let mut buffer = SyscallBuffer::register(&machine, machine.untyped(16), free);
    let original = free + 10;
    let copies = endpoint_with_copies(&machine, original..original + 1000);
    ask_for_interrupted_revocation(&simulation, &mut buffer, original);
    machine.kernel.serve();
    let left = count_full(&machine, copies.clone());
    assert!(left > 0 && left < 999, "{left} are left");
    assert!(buffer.take().is_none());
    simulation.set_external(0, false);
    buffer.work();
    assert_eq!(count_full(&machine, copies), 0);
    assert_eq!(buffer.take().map(|response| response.information), Some(0));
    machine.kernel.check();
}

#[test]
fn an_interrupted_revocation_of_the_buffer_itself_leaves_its_memory_alone() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let free = machine.first_empty();
    let memory = machine.untyped(16);
    assert_eq!(machine.retype(memory, ObjectType::Page, 0, free, 4).0, 0);
    assert_eq!(machine.retype(memory, ObjectType::Notification, 0, free + 4, 1).0, 0);
    // The capability derived last is revoked first: the handler's capability to the frame is deleted, and copies of the
    // program's remain.
    let copies = free + 10..free + 1010;
    copy_into(&machine, free, copies.clone());
    assert_eq!(machine.call(1, Invocation::TcbRegisterAsyncSyscall, &[64, free, 4], &[free + 4]).0, 0);
    let Capability::Frame { base, .. } = machine.slot(free).capability.get() else { panic!("no frame") };
    let mut buffer = SyscallBuffer { machine: &machine, base, capacity: 64, requests: 0, responses: 0 };
    ask_for_interrupted_revocation(&simulation, &mut buffer, free);
    let words = || (0..512).map(|word| frame_words(base + word / 128 * 1024).get(word as usize % 128));
    let before: Vec<u64> = words().collect();
    machine.kernel.serve();
    assert!(count_full(&machine, copies) > 0, "the revocation was not interrupted");
    assert!(before.into_iter().eq(words()), "the kernel has written to a frame whose capability it has no more");
    assert_eq!(machine.init.handler.state(), objects::HandlerState::None);
    machine.kernel.check();
    simulation.set_external(0, false);
    assert_eq!(machine.call(2, Invocation::CNodeRevoke, &[free, 64], &[]).0, 0, "the program goes on by a system call");
    machine.kernel.check();
}

/// Makes a thread that is more important than the first one, in an empty slot.
fn more_important_thread(machine: &Machine, slot: u64) -> Ref<Tcb> {
    assert_eq!(machine.retype(machine.untyped(14), ObjectType::Tcb, 0, slot, 1).0, 0);
    assert_eq!(machine.call(slot, Invocation::TcbSetSpace, &[0, 0, 0], &[2, 3]).0, 0);
    assert_eq!(machine.call(slot, Invocation::TcbSetPriority, &[200], &[1]).0, 0);
    assert_eq!(machine.call(1, Invocation::TcbSetPriority, &[100], &[1]).0, 0);
    let Capability::Thread { tcb } = machine.slot(slot).capability.get() else { panic!("no thread") };
    tcb
}

#[test]
fn requests_of_a_less_important_thread_delay_a_more_important_one_by_one_at_most() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let free = machine.first_empty();
    let mut buffer = SyscallBuffer::register(&machine, machine.untyped(16), free);
    let thread = free + 10;
    let important = more_important_thread(&machine, thread);
    let ask = request(free, Invocation::PageGetAddress, &[], &[]);
    (0..20).for_each(|_| buffer.put(ask));
    buffer.set(syscall_buffer::REQUEST_TAIL_OFFSET, 20);
    machine.trap(-64, 0, 0, &[], &[]);
    let kernel = &machine.kernel;
    // An interrupt arrives while requests are executed: it is served after the current request.
    simulation.set_external(0, true);
    kernel.serve();
    assert_eq!(buffer.take_all(), 1);
    assert!(matches!(kernel.leave_to_handler_after_scheduling(), Some(Next::Serve)));
    // It makes the more important thread ready, and the decision comes before the next request.
    kernel.look_or_serve();
    kernel.make_active(important);
    assert_eq!(buffer.take_all(), 0);
    assert!(kernel.leave_to_handler_after_scheduling().is_none());
    assert_eq!(kernel.current(), important);
    assert_eq!(buffer.take_all(), 0);
    simulation.set_external(0, false);
    // No request is executed in its turn either, nor in that of another domain.
    kernel.tick();
    assert!(kernel.leave_to_handler_after_scheduling().is_none());
    assert_eq!((kernel.current(), buffer.take_all()), (important, 0));
    kernel.make_inactive(important);
    kernel.force_domain(1, 1);
    kernel.choose_anew();
    assert!(kernel.leave_to_handler_after_scheduling().is_none());
    assert_eq!(buffer.take_all(), 0);
    kernel.force_domain(0, 1);
    kernel.choose_anew();
    kernel.leave_to_handler_after_scheduling();
    buffer.work();
    assert_eq!(buffer.take_all(), 19);
    kernel.check();
}

/// The more important handler is queued as if by another hart, while this hart waited for the lock to execute the
/// requests of a less important thread in that thread's own turn. This hart is not notified.
#[test]
fn requests_of_a_more_important_thread_are_not_delayed_by_others_requests() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let kernel = &machine.kernel;
    let free = machine.first_empty();
    let mut buffer = SyscallBuffer::register(&machine, machine.untyped(16), free);
    let thread = free + 10;
    let important = more_important_thread(&machine, thread);
    // The more important thread has a buffer of its own.
    let memory = free + 11;
    assert_eq!(machine.retype(machine.untyped(16), ObjectType::Page, 0, memory, BUFFER_FRAMES).0, 0);
    let words = [64, memory, BUFFER_FRAMES];
    let register = Invocation::TcbRegisterAsyncSyscall;
    assert_eq!(machine.call(thread, register, &words, &[free + BUFFER_FRAMES]).0, 0);
    let Capability::Frame { base, .. } = machine.slot(memory).capability.get() else { panic!("no page") };
    let mut other = SyscallBuffer { machine: &machine, base, capacity: 64, requests: 0, responses: 0 };
    let ask = request(free, Invocation::PageGetAddress, &[], &[]);
    for buffer in [&mut buffer, &mut other] {
        (0..40).for_each(|_| buffer.put(ask));
        buffer.set(syscall_buffer::REQUEST_TAIL_OFFSET, 40);
    }
    machine.trap(-64, 0, 0, &[], &[]);
    assert_eq!(kernel.node().serving.get(), Some(machine.init), "it is carried out in the caller's own turn");
    important.set_state_word(ThreadState::AwaitingReply);
    kernel.wake_handler(important);
    assert_eq!(important.handler.state(), objects::HandlerState::Queued);
    let mut order = Vec::new();
    for _ in 0..40 {
        kernel.look_or_serve();
        order.push((buffer.take_all(), other.take_all()));
        kernel.leave();
    }
    let after = order.iter().rposition(|&(_, important)| important > 0).expect("its requests are carried out");
    let (less, more): (Vec<_>, Vec<_>) = order[..=after].iter().copied().unzip();
    assert_eq!((less.iter().sum::<usize>(), more.iter().sum::<usize>()), (0, 40));
    assert_eq!(order[after..].iter().map(|&(less, _)| less).sum::<usize>(), 40);
    // A thread that another hart has made ready here is not delayed either, nor is another domain.
    for round in 0..2 {
        (0..40).for_each(|_| buffer.put(ask));
        buffer.set(syscall_buffer::REQUEST_TAIL_OFFSET, buffer.requests);
        machine.trap(-64, 0, 0, &[], &[]);
        assert_eq!(kernel.node().serving.get(), Some(machine.init));
        if round == 0 {
            important.set_state_word(ThreadState::Restarting);
            kernel.queue_first(important);
        } else {
            kernel.force_domain(1, 1);
        }
        kernel.look_or_serve();
        assert_eq!(buffer.take_all(), 0);
        kernel.leave();
        assert_eq!((kernel.node().current.get() == Some(important), buffer.take_all()), (round == 0, 0));
        kernel.make_inactive(important);
        kernel.force_domain(0, 1);
        kernel.choose_anew();
        kernel.leave();
        while kernel.handlers_awake.get() != 0 {
            kernel.look_or_serve();
            kernel.leave();
        }
        assert_eq!(buffer.take_all(), 40);
    }
    kernel.check();
}

impl Kernel {
    fn leave_to_handler_after_scheduling(&self) -> Option<Next> {
        self.decide();
        self.leave_to_handler()
    }
}

#[cfg(feature = "smp")]
#[test]
fn a_hart_that_waits_for_the_lock_waits_for_one_step_only() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    let free = machine.first_empty();
    let mut buffer = SyscallBuffer::register(&machine, machine.untyped(16), free);
    let original = free + 10;
    let copies = endpoint_with_copies(&machine, original..original + 100);
    let left = || count_full(&machine, copies.clone());
    machine.kernel.harts.begins_to_wait(1);
    assert!(!machine.call_interrupted(Invocation::CNodeRevoke, original));
    assert_eq!(left(), 98);
    let ask = request(free, Invocation::PageGetAddress, &[], &[]);
    (0..20).for_each(|_| buffer.put(ask));
    buffer.set(syscall_buffer::REQUEST_TAIL_OFFSET, 20);
    machine.trap(-64, 0, 0, &[], &[]);
    machine.kernel.serve();
    machine.kernel.harts.has_taken(1);
    assert_eq!(buffer.take_all(), 1);
    buffer.work();
    assert!(machine.call_interrupted(Invocation::CNodeRevoke, original));
    assert_eq!(left(), 0);
}

/// A random generator with a seed, for reproducible calls.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    fn choose<const COUNT: usize>(&mut self, from: [u64; COUNT]) -> u64 {
        from[self.below(COUNT as u64) as usize]
    }
}

const CALL: u64 = -1i64 as u64;
/// Number of hostile runs, and of calls in each: a million calls in all.
const RUNS: u64 = if cfg!(feature = "smp") { 4 } else { 40 };
const CALLS: usize = 25_000;

/// Makes random calls from every thread that runs, with capabilities and arguments that are often nearly valid. Returns
/// the number of completed invocations.
fn be_hostile(seed: u64) -> usize {
    let simulation = Simulation::new();
    let machine = Machine::small(&simulation);
    let mut random = Random(seed);
    let free = machine.first_empty();
    let untyped = [machine.untyped(12), machine.untyped(14), machine.untyped(16), machine.information(19)];
    let init = machine.init;
    let (mut calls, mut done) = (0, 0);
    while calls < CALLS {
        // If no thread runs any more, the first thread is resumed, as if an interrupt had woken it.
        if machine.kernel.node().current.get().is_none() || machine.init.state() == ThreadState::Inactive {
            machine.kernel.make_inactive(init);
            machine.kernel.make_active(init);
            machine.kernel.choose_anew();
            machine.kernel.decide();
        }
        let slot = |random: &mut Random| match random.below(12) {
            0 => random.below(16),
            1 => random.choose(untyped),
            2 => random.next(),
            _ => free + random.below(48),
        };
        let word = |random: &mut Random| match random.below(9) {
            0 => random.next(),
            1 => random.below(64) * 4096,
            2 => 64,
            3 => random.choose([0x1000, 0x20_0000, 0x4000_0000, 0x3f_ffff_e000, 0x4000]),
            4 => 1 << random.below(64),
            5 => free + random.below(48),
            _ => random.below(32),
        };
        let number = random.choose(
            [-1, -1, -1, -1, -1, -1, -1, -2, -3, -4, -5, -6, -7, -8, -12, -14, -64, -65]
                .map(|number: i64| number as u64),
        );
        let capability = slot(&mut random);
        let length = random.below(10);
        let mut words: Vec<u64> = (0..length).map(|_| word(&mut random)).collect();
        let mut capabilities: Vec<u64> = (0..random.below(4)).map(|_| slot(&mut random)).collect();
        let mut label = random.below(Invocation::first_free_label(NUMBERING) + 1);
        // Half of the calls are plausible.
        let mut target = capability;
        match random.below(8) {
            0 => {
                label = 1;
                target = random.choose(untyped);
                words = vec![random.below(10), random.below(8), 0, 0, free + random.below(48), 1 + random.below(3)];
                capabilities = vec![2];
            }
            1 | 2 => {
                let labels =
                    [Invocation::CNodeCopy, Invocation::CNodeMint, Invocation::CNodeMove, Invocation::CNodeMutate];
                label = labels[random.below(4) as usize].label(NUMBERING).unwrap();
                target = 2;
                words =
                    vec![free + random.below(48), 64, free + random.below(48), 64, random.below(16), random.below(4)];
                capabilities = vec![2];
            }
            3 => {
                let labels = [Invocation::CNodeRevoke, Invocation::CNodeDelete, Invocation::CNodeCancelBadgedSends];
                label = labels[random.below(3) as usize].label(NUMBERING).unwrap();
                target = 2;
                words = vec![free + random.below(48), 64];
            }
            _ => {}
        }
        // The first thread keeps its CNode, itself and its address space, because it must continue to make calls.
        let fixed = |slot: u64| slot < 16;
        if target == 2 && words.iter().take(4).step_by(2).any(|&index| fixed(index))
            || fixed(target) && target != 2 && random.below(4) != 0
        {
            continue;
        }
        let information = MessageInfo::new(label, capabilities.len(), words.len()).0;
        if target == 1
            && matches!(
                Invocation::from_label(label, NUMBERING),
                Some(Invocation::TcbSetSpace | Invocation::TcbConfigure | Invocation::TcbSetIPCBuffer)
            )
        {
            continue;
        }
        let caller = machine.kernel.current();
        // Long invocations are preempted, and abandoned for others.
        simulation.set_external(0, random.below(4) == 0);
        machine.trap(number as i64, target, information, &words, &capabilities);
        calls += 1;
        let is_answer = number == CALL && caller.state().is_runnable();
        done += usize::from(is_answer && MessageInfo(caller.register::<11>().get()).label() == 0);
        machine.kernel.check();
        if random.below(50) == 0 && machine.kernel.node().current.get().is_some() {
            machine.kernel.tick();
            machine.kernel.decide();
        }
    }
    done
}

#[test]
fn a_million_hostile_calls_break_nothing() {
    let halves = std::thread::scope(|scope| {
        let half = |first| {
            scope.spawn(move || (first..RUNS).step_by(2).map(|run| be_hostile((run + 1) * 0x9e37_79b9)).sum::<usize>())
        };
        [half(0), half(1)].map(|half| half.join().unwrap())
    });
    // Most calls are invalid, as intended, but not all.
    let done: usize = halves.iter().sum();
    assert!(done > RUNS as usize * CALLS / 50, "only {done} invocations were carried out");
}

#[test]
fn turns_and_domains_are_as_the_kernel_was_told() {
    let simulation = Simulation::new();
    let told = "root-cnode-bits=9 untypeds=3 slice=3 domains=3 schedule=1:4,2:1,0:2";
    let machine = Machine::told(&simulation, &Configuration::read(&[told]).unwrap());
    assert_eq!(machine.kernel.domains.known(), 3);
    let node = machine.kernel.node();
    // The first thread belongs to the first domain of the schedule.
    assert_eq!((machine.init.domain.get(), machine.init.time_slice.get()), (1, 3));
    let Capability::CNode { radix, .. } = machine.kernel.root.get().unwrap().capability.get() else {
        panic!("the root is no node")
    };
    assert_eq!(radix, 9);
    let turns: Vec<_> = (0..14)
        .map(|_| {
            let turn = (machine.kernel.domains.current(), node.current.get().is_some(), machine.init.time_slice.get());
            machine.kernel.tick();
            machine.kernel.decide();
            machine.kernel.check();
            turn
        })
        .collect();
    let round = |left: [u16; 4]| {
        let rest = if left[3] == 1 { 3 } else { left[3] - 1 };
        let own = left.map(|left| (1, true, left));
        [own.as_slice(), &[(2, false, rest), (0, false, rest), (0, false, rest)]].concat()
    };
    assert_eq!(turns, [round([3, 2, 1, 3]), round([2, 1, 3, 2])].concat());
}

#[test]
fn domains_take_turns_by_their_schedule() {
    let simulation = Simulation::new();
    let machine = Machine::new(&simulation);
    machine.kernel.force_domain(0, 4);
    let domain = 11;
    let configure = |index: u64, domain_number: u64, duration: u64| {
        machine.call(domain, Invocation::DomainSetScheduleConfigure, &[index, domain_number, duration], &[]).0
    };
    let start = |index: u64| machine.call(domain, Invocation::DomainSetScheduleSetStart, &[index], &[]).0;
    assert_eq!((start(0), start(100), start(1)), (0, 4, 1));
    assert_eq!(configure(99, 0, 5), 4, "the last entry always ends the schedule");
    assert_eq!((configure(0, 0, 0), configure(0, 4, 1), configure(1, 1, 0), configure(0, 0, 1 << 56)), (1, 4, 1, 1));
    for index in 1..95 {
        assert_eq!(configure(index, 0, 0xffff_ffff_ffff), 0);
    }
    assert_eq!((configure(95, 0, 3), configure(96, 1, 2), configure(97, 2, 1), configure(98, 2, 1)), (0, 0, 0, 0));
    assert_eq!(start(95), 0);
    assert_eq!(machine.kernel.current(), machine.init);
    let run = |ticks: usize| {
        let mut turns = Vec::new();
        for _ in 0..ticks {
            turns.push((machine.kernel.domains.current(), machine.kernel.node().current.get().is_some()));
            machine.kernel.tick();
            machine.kernel.decide();
            machine.kernel.check();
        }
        turns
    };
    let round = [(0, true), (0, true), (0, true), (1, false), (1, false), (2, false), (2, false)];
    assert_eq!(run(14), [round, round].concat());
    // In another domain the thread runs in that domain's time.
    machine.call(domain, Invocation::DomainSetSet, &[2], &[1]);
    let round = [(0, false), (0, false), (0, false), (1, false), (1, false), (2, true), (2, true)];
    assert_eq!(run(14), [round, round].concat());
}
