//! Armed threads: the slots of receivers, the entries of senders, and everything that must end them.

use abi_sel4::call::number;
use abi_sel4::{Invocation, MessageInfo, ObjectType, Rights};
use drivers::Registers as _;
use drivers::uintc::{LENGTH, Slot, Uintc};
use hal_api::{Access, InterruptRegisters, Trap, UserContext, UserLevel as _};
use hal_host::{Simulation, UserLevelState};
use objects::{Capability, OwnInterrupts, Ref, Tcb, ThreadState, enter_armed, fake, frame_words, save_armed};
use platform::{Machine as Host, Mapped};

use super::Machine;
use crate::node::{MAXIMUM_NODES, Next};

/// The hint of every thread here, and its vector.
const HINT: u64 = 4;
const VECTOR: u64 = 2;
/// The handlers' addresses.
const HANDLER: u64 = 0x1000;
const OWN_HANDLER: u64 = 0x2000;
/// Addresses of sender pages.
const PAGES: u64 = 0x2_0000;
const CONTROLLER: u64 = 0x2f1_0000;
/// The machine's number of the hart.
const HART: u16 = 7;

/// A fake machine with UINTC.
struct Armed<'a> {
    simulation: &'a Simulation,
    machine: Machine,
    controller: Uintc<Mapped>,
    next: std::cell::Cell<u64>,
    /// The notification at which the first thread waits while others run.
    back: u64,
}

/// A thread: the slots of its capability and of its notification, and its object.
#[derive(Clone, Copy)]
struct Thread {
    slot: u64,
    notification: u64,
    tcb: Ref<Tcb>,
}

impl<'a> Armed<'a> {
    /// The first thread is more important than all others.
    fn new(simulation: &'a Simulation) -> Armed<'a> {
        simulation.add_slots(CONTROLLER, LENGTH);
        let machine = Machine::new(simulation);
        let controller = Uintc::new(Mapped::new((CONTROLLER, LENGTH)).unwrap());
        machine.kernel.start_slots(Some(controller));
        machine.kernel.nodes.iter().for_each(|node| node.sender_table.claim(fake(12)));
        machine.kernel.node().hart_id.set(HART);
        let next = std::cell::Cell::new(machine.first_empty());
        let machine = Armed { simulation, machine, controller, next, back: 0 };
        let back = machine.object(ObjectType::Notification);
        Armed { back, ..machine }
    }

    fn ask(&self, slot: u64, invocation: Invocation, words: &[u64], capabilities: &[u64]) -> u64 {
        let (label, answer) = self.machine.call(slot, invocation, words, capabilities);
        assert_eq!(label, 0, "{invocation:?}");
        answer[0]
    }

    fn slots(&self, count: u64) -> u64 {
        self.next.replace(self.next.get() + count)
    }

    fn object(&self, kind: ObjectType) -> u64 {
        let slot = self.slots(1);
        assert_eq!(self.machine.retype(self.machine.untyped(16), kind, 0, slot, 1).0, 0);
        slot
    }

    /// Makes a stopped thread in an address space.
    fn plain(&self, priority: u64, space: u64) -> (u64, Ref<Tcb>) {
        let slot = self.object(ObjectType::Tcb);
        self.ask(slot, Invocation::TcbSetSpace, &[0, 0, 0], &[2, space]);
        self.ask(slot, Invocation::TcbSetPriority, &[priority], &[1]);
        let Capability::Thread { tcb } = self.machine.slot(slot).capability.get() else { panic!("no thread") };
        (slot, tcb)
    }

    fn register(&self, thread: Thread) {
        let words = [HANDLER, HINT, OWN_HANDLER];
        let arrival = self.ask(thread.slot, Invocation::TcbRegisterUserInterrupts, &words, &[thread.notification]);
        assert_eq!((arrival, thread.tcb.interrupts.own()), (2, Some(OwnInterrupts::Armed)));
    }

    /// Makes a stopped thread that takes its hint itself.
    fn thread(&self, priority: u64) -> Thread {
        let ((slot, tcb), notification) = (self.plain(priority, 3), self.object(ObjectType::Notification));
        self.ask(slot, Invocation::TcbBindNotification, &[], &[notification]);
        let thread = Thread { slot, notification, tcb };
        self.register(thread);
        thread
    }

    /// Makes a sender of a thread's hint in an address space. Returns its slot and its index.
    fn sender_in(&self, space: u64, thread: Thread, page: u64) -> (u64, u64) {
        let slot = self.slots(1);
        let words = [slot, 64, thread.notification, 64, Rights::WRITE.word(), HINT];
        self.ask(2, Invocation::CNodeMint, &words, &[2]);
        (slot, self.ask(space, Invocation::PageTableMapSender, &[PAGES + page * 0x1000], &[slot]))
    }

    fn sender(&self, thread: Thread, page: u64) -> (u64, u64) {
        self.sender_in(3, thread, page)
    }

    /// Makes an address space with the page tables of sender pages.
    fn space(&self) -> u64 {
        let space = self.object(ObjectType::PageTable);
        self.ask(6, Invocation::AsidPoolAssign, &[], &[space]);
        for _ in 0..2 {
            let table = self.object(ObjectType::PageTable);
            self.ask(table, Invocation::PageTableMap, &[PAGES, 0], &[space]);
        }
        space
    }

    fn resume(&self, thread: Thread) {
        self.ask(thread.slot, Invocation::TcbResume, &[], &[]);
    }

    fn state(&self) -> UserLevelState {
        self.simulation.user_level(0)
    }

    /// The first thread waits, and the hart enters this armed thread.
    fn run(&self, tcb: Ref<Tcb>) {
        self.machine.trap(number::Recv as i64, self.back, 0, &[], &[]);
        self.enter(tcb);
    }

    /// The armed thread wakes the first thread, which is more important, and stays ready.
    fn preempt(&self, tcb: Ref<Tcb>) {
        assert!(!self.call(tcb, number::NBSend, self.back));
        self.enter_first();
    }

    /// Leaves the kernel to this armed thread.
    fn enter(&self, tcb: Ref<Tcb>) {
        match self.machine.kernel.leave_and_poke() {
            Next::RunArmed(next) => assert_eq!(next, tcb),
            _ => panic!("the hart does not run an armed thread"),
        }
        assert_eq!(self.state().slot, tcb.slot());
        self.interrupt();
        if let Some(slot) = tcb.slot() {
            assert_eq!(self.mode(slot), u64::from(HART) << 16 | 3);
        }
    }

    /// Leaves the kernel to the first thread, which is an ordinary one. No slot is active then.
    fn enter_first(&self) {
        match self.machine.kernel.leave_and_poke() {
            Next::Run(next) => assert_eq!(next, self.machine.init),
            _ => panic!("the hart does not run the first thread"),
        }
        assert_eq!(self.state(), UserLevelState::default());
        assert!((0..8).all(|slot| self.mode(slot) & 1 == 0));
    }

    fn mode(&self, slot: u16) -> u64 {
        drivers::uintc::Slots::read(&Mapped::new((CONTROLLER, LENGTH)).unwrap(), usize::from(slot) * 32 + 8)
    }

    /// The armed thread that the hart has entered does this; returns whether the hart entered it again at once.
    fn visit(&self, tcb: Ref<Tcb>, program: impl FnOnce(&mut UserContext) -> Trap + Send + 'static) -> bool {
        self.simulation.script(program);
        let trap = enter_armed::<Host>(tcb);
        if MAXIMUM_NODES > 1 {
            save_armed::<Host>(tcb);
        }
        let again = self.machine.kernel.serve_armed(tcb, trap);
        assert!(again || self.state() == UserLevelState::default(), "a hart that does not go on holds nothing");
        self.interrupt();
        again
    }

    /// Raises the armed thread's interrupt if its slot is active and has vectors, as the machine does.
    fn interrupt(&self) {
        let Some(slot) = self.state().slot.filter(|&slot| self.mode(slot) & 1 != 0) else { return };
        let registers = Mapped::new((CONTROLLER, LENGTH)).unwrap();
        let has_vectors = [16, 20].iter().any(|part| registers.read32(usize::from(slot) * 32 + part) != 0);
        if has_vectors {
            Host::raise_user_interrupt();
        }
    }

    /// Lets a thread poll its notification; returns what it takes. The thread goes on in user mode as it is.
    fn poll(&self, thread: Thread) -> u64 {
        assert!(self.call(thread.tcb, number::NBRecv, thread.notification));
        thread.tcb.register::<10>().get()
    }

    fn call(&self, tcb: Ref<Tcb>, number: u64, a0: u64) -> bool {
        self.visit(tcb, move |context| {
            context.set_register(17, number);
            context.set_register(10, a0);
            context.set_register(11, MessageInfo(0).0);
            context.pc += 4;
            Trap::SystemCall
        })
    }

    /// The thread waits for its notification.
    fn wait(&self, thread: Thread) {
        assert!(!self.call(thread.tcb, number::Recv, thread.notification));
        assert_eq!((thread.tcb.state(), thread.tcb.slot()), (ThreadState::AwaitingSignal, None));
    }

    /// Two threads of one address space, the first less important and with a sender of the second's hint, whose index
    /// is 1: the second has run and is ready, and the entry is valid. The first thread of the machine runs.
    fn pair(&self) -> (Thread, Thread, u64) {
        let (sender, receiver) = (self.thread(100), self.thread(110));
        let (right, index) = self.sender(receiver, 0);
        assert_eq!(index, 1);
        self.resume(receiver);
        self.run(receiver.tcb);
        self.preempt(receiver.tcb);
        // Of the same priority it waits behind the sender.
        self.ask(receiver.slot, Invocation::TcbSetPriority, &[90], &[1]);
        self.resume(sender);
        self.run(sender.tcb);
        let pc = sender.tcb.pc().get();
        assert!(!self.send(sender.tcb, index), "the first send makes the entry valid");
        assert!(self.entry(index).is_some());
        assert_eq!(sender.tcb.pc().get(), pc + 4, "and it is not repeated, where it could be refused again");
        assert_eq!(self.controller.take(Slot::new(receiver.tcb.slot().unwrap()).unwrap()), 1 << VECTOR);
        self.preempt(sender.tcb);
        (sender, receiver, right)
    }

    /// No hart has an entry with index 1 any more.
    fn has_no_entry(&self) -> bool {
        self.machine.kernel.nodes.iter().all(|node| node.sender_table.entry(1) == 0)
    }

    /// The valid entry of this index in the table of the thread that is armed.
    fn entry(&self, index: u64) -> Option<u64> {
        let table = self.state().table?;
        Some(frame_words(table.first_frame << 12).get(index as usize)).filter(|&entry| entry != 0)
    }

    /// The armed thread sends, as the machine does it. Returns whether the hart did it without the kernel.
    fn send(&self, tcb: Ref<Tcb>, index: u64) -> bool {
        if let Some(entry) = self.entry(index) {
            assert_eq!((entry >> 16) as u8 as u64, VECTOR);
            self.controller.send(Slot::new((entry >> 48) as u16).unwrap(), VECTOR as u8);
            self.interrupt();
            return true;
        }
        self.refused(tcb, index);
        false
    }

    /// The machine refuses the thread's send.
    fn refused(&self, tcb: Ref<Tcb>, index: u64) -> bool {
        self.visit(tcb, move |context| {
            context.set_register(10, index);
            Trap::IllegalInstruction { bits: 10 << 15 | 6 << 12 | 0x7b }
        })
    }

    fn signals(&self, thread: Thread) -> Option<u64> {
        let Capability::Notification { notification, .. } = self.machine.slot(thread.notification).capability.get()
        else {
            panic!("no notification")
        };
        (notification.is_active.get() != 0).then(|| notification.take())
    }

    fn check(&self) {
        self.machine.kernel.check();
    }
}

#[test]
fn a_thread_sends_to_itself_without_the_kernel() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let thread = machine.thread(100);
    let (_, index) = machine.sender(thread, 0);
    machine.resume(thread);
    machine.run(thread.tcb);
    assert_eq!(machine.state().registers.unwrap().vector, OWN_HANDLER);
    assert!(!machine.send(thread.tcb, index), "no entry is valid yet");
    for _ in 0..3 {
        assert!(machine.send(thread.tcb, index));
        assert_eq!(machine.poll(thread), HINT, "a send counts as a signal");
        assert_eq!(machine.poll(thread), 0);
    }
    // A poll of another notification does not take it: the handler of signals is entered.
    assert!(machine.send(thread.tcb, index));
    assert!(!machine.call(thread.tcb, number::NBRecv, machine.back));
    machine.enter(thread.tcb);
    assert_eq!(thread.tcb.pc().get(), HANDLER);
    machine.check();
}

#[test]
fn a_receiver_that_is_ready_finds_in_its_slot_what_has_come() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let (sender, receiver, _) = machine.pair();
    let slot = receiver.tcb.slot().unwrap();
    machine.run(sender.tcb);
    assert!(machine.send(sender.tcb, 1));
    machine.preempt(sender.tcb);
    assert_eq!((machine.signals(receiver), receiver.tcb.slot()), (None, Some(slot)));
    machine.ask(receiver.slot, Invocation::TcbSetPriority, &[120], &[1]);
    // Its slot becomes active again, and the vector is still there.
    machine.run(receiver.tcb);
    assert_eq!(machine.controller.take(Slot::new(slot).unwrap()), 1 << VECTOR);
    machine.check();
}

#[test]
fn a_receiver_that_waits_has_no_entries_and_is_woken_by_a_refused_send() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let (sender, receiver, _) = machine.pair();
    // A vector that has come before it waits ends the wait.
    machine.run(sender.tcb);
    assert!(machine.send(sender.tcb, 1));
    machine.preempt(sender.tcb);
    machine.ask(receiver.slot, Invocation::TcbSetPriority, &[120], &[1]);
    machine.run(receiver.tcb);
    assert!(machine.call(receiver.tcb, number::Recv, receiver.notification));
    assert_eq!(receiver.tcb.register::<10>().get(), HINT);
    machine.wait(receiver);
    assert!(machine.has_no_entry());
    machine.enter(sender.tcb);
    assert!(!machine.send(sender.tcb, 1));
    machine.enter(receiver.tcb);
    assert_eq!((receiver.tcb.register::<10>().get(), machine.signals(receiver)), (HINT, None));
    assert!(receiver.tcb.slot().is_some());
    machine.check();
}

/// Every end of a sender or of its receiver clears its entry, also in the table of a hart on which it was valid
/// before. Nothing that was sent until then is lost while the notification exists.
#[test]
fn every_end_of_a_right_clears_its_entries() {
    type End = fn(&Armed, Thread, u64);
    let ends: [(End, bool); 8] = [
        (|machine, _, right| _ = machine.ask(2, Invocation::CNodeDelete, &[right, 64], &[]), false),
        (|machine, receiver, _| _ = machine.ask(2, Invocation::CNodeRevoke, &[receiver.notification, 64], &[]), false),
        (|machine, _, right| _ = machine.ask(3, Invocation::PageTableMapSender, &[0], &[right]), false),
        (|machine, receiver, _| _ = machine.ask(receiver.slot, Invocation::TcbSuspend, &[], &[]), true),
        (|machine, receiver, _| _ = machine.ask(receiver.slot, Invocation::TcbUnbindNotification, &[], &[]), true),
        (|machine, receiver, _| _ = machine.ask(receiver.slot, Invocation::TcbRegisterUserInterrupts, &[0], &[]), true),
        (|machine, receiver, _| _ = machine.ask(2, Invocation::CNodeDelete, &[receiver.slot, 64], &[]), true),
        (|machine, receiver, _| machine.machine.kernel.move_to_hart(receiver.tcb, 0), true),
    ];
    for (number, (end, gives_up)) in ends.into_iter().enumerate() {
        let simulation = Simulation::new();
        let machine = Armed::new(&simulation);
        let (sender, receiver, right) = machine.pair();
        let slot = receiver.tcb.slot().unwrap();
        machine.run(sender.tcb);
        assert!(machine.send(sender.tcb, 1));
        machine.preempt(sender.tcb);
        end(&machine, receiver, right);
        assert!(machine.has_no_entry(), "end {number}");
        if gives_up {
            assert_eq!(machine.signals(receiver), Some(HINT), "end {number}");
            assert!(!machine.machine.kernel.interrupt_slots.is_taken(slot));
        } else {
            assert_eq!(receiver.tcb.slot(), Some(slot), "end {number}");
        }
        // A send under way is refused, and sends nothing more without the right.
        machine.run(sender.tcb);
        machine.refused(sender.tcb, 1);
        assert_eq!(sender.tcb.state(), ThreadState::Running);
        let has_right = number > 2;
        let pending = machine.controller.take(Slot::new(slot).unwrap());
        assert_eq!(pending, if gives_up { 0 } else { 1 << VECTOR }, "end {number}");
        assert_eq!(machine.signals(receiver), has_right.then_some(HINT), "end {number}");
        machine.check();
    }
}

#[test]
fn a_notification_that_is_deleted_takes_entries_and_slot_with_it() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let (sender, receiver, _) = machine.pair();
    let slot = receiver.tcb.slot().unwrap();
    machine.ask(2, Invocation::CNodeRevoke, &[receiver.notification, 64], &[]);
    machine.ask(2, Invocation::CNodeDelete, &[receiver.notification, 64], &[]);
    assert!(machine.has_no_entry() && !machine.machine.kernel.interrupt_slots.is_taken(slot));
    machine.run(sender.tcb);
    machine.refused(sender.tcb, 1);
    assert_eq!(sender.tcb.state(), ThreadState::Running);
    machine.check();
}

#[cfg(feature = "smp")]
#[test]
fn entries_on_another_hart_are_cleared_too() {
    const OTHER: usize = 1;
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let kernel = &machine.machine.kernel;
    let (_, _, right) = machine.pair();
    kernel.node_count.set(OTHER + 1);
    // The other hart has run a thread of this address space, and the entry becomes valid in its table, too.
    kernel.nodes[OTHER].sender_table.begin(1);
    let Capability::Notification { page: Some(page), .. } = machine.machine.slot(right).capability.get() else {
        panic!("no sender")
    };
    kernel.make_entries(kernel.senders.get(page).unwrap());
    assert_ne!(kernel.nodes[OTHER].sender_table.entry(1), 0);
    machine.ask(2, Invocation::CNodeDelete, &[right, 64], &[]);
    assert!(machine.has_no_entry());
}

#[test]
fn a_slot_of_another_owner_has_none_of_the_former_vectors() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    machine.machine.kernel.interrupt_slots.leave_free(1);
    let (sender, receiver, _) = machine.pair();
    let (slot, other) = (receiver.tcb.slot().unwrap(), machine.thread(130));
    assert_eq!(sender.tcb.slot(), None, "there are more receivers than slots");
    let (_, index) = machine.sender(other, 1);
    machine.run(sender.tcb);
    assert!(machine.send(sender.tcb, 1));
    // Through the kernel, since it has no slot either.
    assert!(!machine.send(sender.tcb, index));
    assert_eq!(machine.signals(other), Some(HINT));
    machine.preempt(sender.tcb);
    machine.ask(receiver.slot, Invocation::TcbSuspend, &[], &[]);
    assert_eq!(machine.signals(receiver), Some(HINT));
    machine.resume(other);
    machine.run(other.tcb);
    assert_eq!(other.tcb.slot(), Some(slot));
    assert_eq!(machine.controller.take(Slot::new(slot).unwrap()), 0);
    machine.wait(other);
    machine.enter(sender.tcb);
    assert_eq!(sender.tcb.slot(), Some(slot), "a thread takes a slot when it is entered");
    machine.machine.kernel.interrupt_slots.leave_free(0);
}

/// A handler may lose its slot before it takes the vectors: it finds none.
#[test]
fn taking_without_a_slot_finds_nothing() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    machine.machine.kernel.interrupt_slots.leave_free(0);
    let thread = machine.thread(100);
    machine.resume(thread);
    machine.run(thread.tcb);
    let take = |destination: u64| {
        machine.visit(thread.tcb, move |context| {
            context.set_register(10, 77);
            Trap::IllegalInstruction { bits: 1 << 25 | 6 << 12 | destination << 7 | 0x7b }
        })
    };
    let pc = thread.tcb.pc().get();
    assert!(take(10));
    assert_eq!((thread.tcb.register::<10>().get(), thread.tcb.pc().get()), (0, pc + 4));
    assert!(take(0));
    assert_eq!((thread.tcb.register::<10>().get(), thread.tcb.pc().get()), (77, pc + 8));
}

/// Vectors that a handler writes back to a slot which it has lost are not lost; it need not know whether it has one.
#[test]
fn writing_without_a_slot_signals_and_activating_does_nothing() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    machine.machine.kernel.interrupt_slots.leave_free(0);
    let thread = machine.thread(100);
    machine.resume(thread);
    machine.run(thread.tcb);
    let execute = |function: u64, register: u64, value: u64| {
        machine.visit(thread.tcb, move |context| {
            context.set_register(10, value);
            Trap::IllegalInstruction { bits: function << 25 | register << 15 | 6 << 12 | 0x7b }
        })
    };
    let pc = thread.tcb.pc().get();
    assert!(execute(3, 0, 0) && execute(4, 0, 0));
    // Vectors that are no hints, and a register without any.
    assert!(execute(2, 10, !HINT) && execute(2, 0, HINT));
    assert_eq!((thread.tcb.pc().get(), machine.signals(thread)), (pc + 16, None));
    assert!(!execute(2, 10, HINT | 1), "the handler of signals is entered");
    machine.enter(thread.tcb);
    assert_eq!((thread.tcb.pc().get(), thread.tcb.register::<10>().get()), (HANDLER, HINT));
    machine.check();
}

/// The interrupt of vectors that a poll has taken is not pending any more.
#[test]
fn a_poll_takes_the_interrupt_with_its_vectors() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let thread = machine.thread(100);
    let (_, index) = machine.sender(thread, 0);
    machine.resume(thread);
    machine.run(thread.tcb);
    assert!(!machine.send(thread.tcb, index) && Host::is_user_interrupt_pending());
    assert_eq!(machine.poll(thread), HINT);
    assert_eq!(machine.state().registers.map(|registers| registers.notified), Some(0));
}

/// A vector that comes between the look at the interrupt and the end of the wait's kernel entry is taken with the slot.
#[test]
fn a_wait_takes_a_vector_that_comes_after_its_look() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let thread = machine.thread(100);
    machine.resume(thread);
    machine.run(thread.tcb);
    // The look finds no interrupt.
    machine.controller.send(Slot::new(thread.tcb.slot().unwrap()).unwrap(), VECTOR as u8);
    assert!(!Host::is_user_interrupt_pending());
    assert!(!machine.call(thread.tcb, number::Recv, thread.notification));
    machine.enter(thread.tcb);
    assert_eq!((thread.tcb.register::<10>().get(), machine.signals(thread)), (HINT, None));
    assert!(!Host::is_user_interrupt_pending());
    machine.check();
}

/// Vectors in a slot that its thread has made inactive wait until it is active again.
#[test]
fn a_poll_finds_nothing_in_a_slot_that_its_thread_made_inactive() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let thread = machine.thread(100);
    machine.resume(thread);
    machine.run(thread.tcb);
    let slot = Slot::new(thread.tcb.slot().unwrap()).unwrap();
    let poll = || machine.poll(thread);
    machine.controller.deactivate(slot);
    machine.controller.send(slot, VECTOR as u8);
    assert_eq!((poll(), machine.mode(slot.number()) & 1), (0, 0), "an entry does not make it active");
    machine.preempt(thread.tcb);
    machine.run(thread.tcb);
    assert_eq!((poll(), poll()), (HINT, 0));
    machine.check();
}

/// Values that a thread writes in user mode are in the hart while it goes on, are kept while it waits, and are seen by
/// no other thread.
#[test]
fn registers_are_those_of_the_thread_that_runs() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let (sender, receiver, _) = machine.pair();
    machine.ask(receiver.slot, Invocation::TcbSetPriority, &[110], &[1]);
    machine.run(receiver.tcb);
    let scratch = || machine.state().registers.unwrap().scratch;
    for value in [77, 78] {
        let UserLevelState { registers, slot, table } = machine.state();
        Host::arm(&InterruptRegisters { scratch: value, ..registers.unwrap() });
        Host::receive_in(slot);
        Host::send_through(table);
        assert!(machine.call(receiver.tcb, number::NBRecv, receiver.notification));
        assert_eq!((scratch(), machine.state().slot), (value, slot));
        machine.wait(receiver);
        machine.enter(sender.tcb);
        assert_eq!(scratch(), 0);
        assert!(!machine.send(sender.tcb, 1));
        machine.enter(receiver.tcb);
        assert_eq!(scratch(), value);
    }
    machine.check();
}

/// A thread that suspends itself has no slot any more, and nothing of it is left in the hart.
#[test]
fn a_thread_that_suspends_itself_leaves_nothing_in_the_hart() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let (sender, receiver, _) = machine.pair();
    let slot = receiver.tcb.slot().unwrap();
    machine.ask(receiver.slot, Invocation::TcbSetPriority, &[110], &[1]);
    machine.run(receiver.tcb);
    let again = machine.visit(receiver.tcb, move |context| {
        context.set_register(17, number::Send);
        context.set_register(10, receiver.slot);
        context.set_register(11, MessageInfo::new(Invocation::TcbSuspend as u64, 0, 0).0);
        context.pc += 4;
        Trap::SystemCall
    });
    assert!(!again && machine.has_no_entry() && !machine.machine.kernel.interrupt_slots.is_taken(slot));
    assert_eq!(receiver.tcb.state(), ThreadState::Inactive);
    machine.enter(sender.tcb);
    machine.check();
}

#[test]
fn a_sender_in_another_address_space_has_its_own_indexes() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let (sender, receiver, _) = machine.pair();
    let (space, slot) = (machine.space(), receiver.tcb.slot().unwrap());
    let (other_slot, other) = machine.plain(105, space);
    // Of another thread, and with the same index as the sender of the first address space.
    assert_eq!(machine.sender_in(space, sender, 0).1, 1);
    machine.ask(other_slot, Invocation::TcbResume, &[], &[]);
    machine.machine.trap(number::Recv as i64, machine.back, 0, &[], &[]);
    let kernel = &machine.machine.kernel;
    let Next::Run(next) = kernel.leave_and_poke() else { panic!("the thread is armed already") };
    assert_eq!((next, other.interrupts.own()), (other, None));
    // Its first send arms it.
    other.register::<10>().set(1);
    kernel.handle_other(other, Trap::IllegalInstruction { bits: 10 << 15 | 6 << 12 | 0x7b });
    assert!(!kernel.goes_on(other));
    machine.enter(other);
    assert_eq!(other.slot(), None);
    assert!(machine.send(other, 1));
    assert_eq!(machine.controller.take(Slot::new(slot).unwrap()), 0, "it has another receiver");
    assert_eq!(machine.controller.take(Slot::new(sender.tcb.slot().unwrap()).unwrap()), 1 << VECTOR);
    machine.preempt(other);
    // The first address space finds none of its entries.
    machine.ask(other_slot, Invocation::TcbSuspend, &[], &[]);
    machine.run(sender.tcb);
    assert_eq!(machine.entry(1), None);
    assert!(!machine.send(sender.tcb, 1) && machine.send(sender.tcb, 1));
    assert_eq!(machine.controller.take(Slot::new(slot).unwrap()), 1 << VECTOR);
    machine.check();
}

#[test]
fn an_address_space_with_the_identifier_of_a_deleted_one_has_none_of_its_senders() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    let (_, receiver, _) = machine.pair();
    let space = machine.space();
    let (slot, thread) = machine.plain(105, space);
    thread.give_own_registers(OwnInterrupts::Armed);
    assert_eq!(machine.sender_in(space, receiver, 0).1, 1);
    machine.ask(slot, Invocation::TcbResume, &[], &[]);
    machine.run(thread);
    assert!(!machine.send(thread, 1) && machine.send(thread, 1));
    machine.preempt(thread);
    machine.ask(slot, Invocation::TcbSuspend, &[], &[]);
    let asid = |space: u64| machine.machine.slot(space).capability.mapped_table().unwrap().1;
    let before = asid(space);
    machine.ask(2, Invocation::CNodeRevoke, &[space, 64], &[]);
    machine.ask(2, Invocation::CNodeDelete, &[space, 64], &[]);
    assert!(machine.has_no_entry());
    let space = machine.space();
    assert_eq!(asid(space), before);
    machine.ask(slot, Invocation::TcbSetSpace, &[0, 0, 0], &[2, space]);
    machine.ask(slot, Invocation::TcbResume, &[], &[]);
    machine.run(thread);
    assert_eq!(machine.entry(1), None);
    let taken = machine.controller.take(Slot::new(receiver.tcb.slot().unwrap()).unwrap());
    assert_eq!(taken, 1 << VECTOR);
    assert!(!machine.send(thread, 1) && !machine.send(thread, 1), "it has no right");
    assert_eq!(machine.signals(receiver), None);
    machine.check();
}

#[test]
fn indexes_that_no_sender_can_have_are_faults_and_others_send_nothing() {
    let simulation = Simulation::new();
    let machine = Armed::new(&simulation);
    for index in [0, 17, 511, 512, u64::MAX, 1, 16] {
        let thread = machine.thread(100);
        machine.resume(thread);
        machine.run(thread.tcb);
        let pc = thread.tcb.pc().get();
        let again = machine.refused(thread.tcb, index);
        if (1..=16).contains(&index) {
            assert!(again && thread.tcb.pc().get() == pc + 4);
            machine.visit(thread.tcb, |_| Trap::PageFault { address: 0, access: Access::Read });
        }
        // Without a fault handler it is over, and has no slot.
        assert_eq!((thread.tcb.state(), thread.tcb.slot()), (ThreadState::Inactive, None));
        machine.wake_first();
    }
    machine.check();
}

impl Armed<'_> {
    /// Wakes the first thread where no other thread runs.
    fn wake_first(&self) {
        let Capability::Notification { notification, .. } = self.machine.slot(self.back).capability.get() else {
            panic!("no notification")
        };
        self.machine.kernel.signal(notification, 1);
        self.enter_first();
    }
}
