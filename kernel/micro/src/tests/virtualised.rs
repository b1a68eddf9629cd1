//! Virtualised threads: the state that stays in a hart between two entries of a thread, and everything that must end
//! that.

use std::sync::atomic::Ordering;

use abi_sel4::call::number;
use abi_sel4::{Invocation, MessageInfo, ObjectType};
use hal_api::{Access, Machine as _, Trap, UserContext};
use hal_host::{Simulation, VirtualisedState};
use objects::{Capability, Ref, Tcb, ThreadState, enter_virtualised, prepare_virtualised};
use platform::Machine as Host;

use super::Machine;
use crate::invocation::NUMBERING;
use crate::node::Next;

/// The hint of every thread here, and the identity that a store of it has.
const HINT: u64 = 4;
const IDENTITY: u64 = 3;
/// The handlers' addresses.
const HANDLER: u64 = 0x1000;
const VECTOR: u64 = 0x2000;

/// A fake machine with two guest interrupt files on each hart.
struct Virtual<'a> {
    simulation: &'a Simulation,
    machine: Machine,
    next: std::cell::Cell<u64>,
}

/// A virtualised thread: the slots of its capability and of its notification, and its object.
#[derive(Clone, Copy)]
struct Thread {
    slot: u64,
    notification: u64,
    tcb: Ref<Tcb>,
}

impl<'a> Virtual<'a> {
    /// The first thread is less important than all others.
    fn new(simulation: &'a Simulation) -> Virtual<'a> {
        simulation.add_guest_files(2);
        let machine = Machine::new(simulation);
        let next = std::cell::Cell::new(machine.first_empty());
        let machine = Virtual { simulation, machine, next };
        machine.ask(1, Invocation::TcbSetPriority, &[50], &[1]);
        machine
    }

    fn ask(&self, slot: u64, invocation: Invocation, words: &[u64], capabilities: &[u64]) {
        assert_eq!(self.machine.call(slot, invocation, words, capabilities).0, 0, "{invocation:?}");
    }

    fn objects(&self, kind: ObjectType, count: u64) -> u64 {
        let first = self.next.get();
        self.next.set(first + count);
        assert_eq!(self.machine.retype(self.machine.untyped(16), kind, 0, first, count).0, 0);
        first
    }

    /// Makes a stopped thread that takes its hint as a store.
    fn thread(&self, priority: u64) -> Thread {
        let (slot, notification) = (self.objects(ObjectType::Tcb, 1), self.objects(ObjectType::Notification, 1));
        self.ask(slot, Invocation::TcbSetSpace, &[0, 0, 0], &[2, 3]);
        self.ask(slot, Invocation::TcbSetPriority, &[priority], &[1]);
        self.ask(slot, Invocation::TcbBindNotification, &[], &[notification]);
        self.ask(slot, Invocation::TcbRegisterUserInterrupts, &[HANDLER, HINT, VECTOR], &[notification]);
        let Capability::Thread { tcb } = self.machine.slot(slot).capability.get() else { panic!("no thread") };
        assert!(tcb.interrupts.own() == Some(objects::OwnInterrupts::Virtualised));
        Thread { slot, notification, tcb }
    }

    fn resume(&self, thread: Thread) {
        self.ask(thread.slot, Invocation::TcbResume, &[], &[]);
    }

    fn state(&self) -> VirtualisedState {
        self.simulation.virtualised(0)
    }

    /// Leaves the kernel to this virtualised thread.
    fn enter(&self, thread: Thread) {
        match self.machine.kernel.leave_and_poke() {
            Next::RunVirtualised(next) => assert_eq!(next, thread.tcb),
            _ => panic!("the hart does not run a virtualised thread"),
        }
        prepare_virtualised::<Host>(thread.tcb, thread.file());
    }

    /// Leaves the kernel to the first thread, which is an ordinary one.
    fn enter_first(&self) {
        match self.machine.kernel.leave_and_poke() {
            Next::Run(next) => assert_eq!(next, self.machine.init),
            _ => panic!("the hart does not run the first thread"),
        }
        assert_eq!(self.state().root, None);
    }

    /// The virtualised thread that the hart has entered does this; returns whether the hart can enter it again without
    /// preparation.
    fn visit(&self, thread: Thread, program: impl FnOnce(&mut UserContext) -> Trap + Send + 'static) -> bool {
        self.simulation.script(program);
        let trap = enter_virtualised::<Host>(thread.tcb, thread.file());
        self.machine.kernel.serve_virtualised(thread.tcb, trap, thread.file())
    }

    /// As [`visit`](Virtual::visit), for a system call.
    fn call(&self, thread: Thread, number: u64, a0: u64, information: MessageInfo) -> bool {
        self.visit(thread, move |context| {
            context.set_register(17, number);
            context.set_register(10, a0);
            context.set_register(11, information.0);
            context.pc += 4;
            Trap::SystemCall
        })
    }

    fn poll(&self, thread: Thread) -> bool {
        self.call(thread, number::NBRecv, thread.notification, MessageInfo(0))
    }

    /// The thread waits for its notification.
    fn wait(&self, thread: Thread) {
        assert!(!self.call(thread, number::Recv, thread.notification, MessageInfo(0)));
        assert_eq!(thread.tcb.state(), ThreadState::AwaitingSignal);
    }
}

impl Thread {
    fn file(self) -> usize {
        self.tcb.interrupts.file_or_slot.get() as usize
    }
}

#[test]
fn a_thread_that_polls_and_signals_is_entered_again_without_preparation() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let (thread, other) = (machine.thread(100), machine.objects(ObjectType::Notification, 1));
    machine.resume(thread);
    machine.enter(thread);
    let before = machine.state();
    assert_eq!((before.activations, before.loads, before.file), (1, 1, 1));
    for _ in 0..3 {
        assert!(machine.poll(thread));
        assert!(machine.call(thread, number::Send, other, MessageInfo::new(0, 0, 0)));
        assert!(machine.call(thread, number::Call, other, MessageInfo::new(0, 0, 0)));
        simulation.store(0, 1, IDENTITY);
        assert!(machine.poll(thread));
        assert_eq!(thread.tcb.register::<10>().get(), HINT, "a store counts as a signal");
    }
    assert_eq!(machine.state(), before);
    machine.machine.kernel.check();
}

/// The root of the hart's table points to the thread's own, so that changes of the latter need no copy.
#[test]
fn a_hart_runs_a_thread_under_the_root_of_its_own_address_space() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let thread = machine.thread(100);
    machine.resume(thread);
    machine.enter(thread);
    let root: Ref<objects::PageTable> = objects::claim(machine.state().root.unwrap() << 12);
    let (own, _) = thread.tcb.own_slot(objects::own::VSPACE).capability.mapped_table().unwrap();
    let entries: Vec<u64> = root.entries.iter().map(|entry| entry.load(Ordering::Relaxed)).collect();
    assert_eq!(entries[0], own.physical() >> 12 << 10 | 1);
    assert!(entries[1..].iter().all(|&entry| entry == 0));
}

#[test]
fn everything_that_may_concern_a_thread_prepares_it_anew() {
    let invocation = MessageInfo::new(Invocation::TcbResume.label(NUMBERING).unwrap(), 0, 0);
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let thread = machine.thread(100);
    machine.resume(thread);
    let prepared = |count: usize| {
        machine.enter(thread);
        let state = machine.state();
        assert_eq!((state.activations, state.loads), (count, 1));
    };
    prepared(1);
    assert!(!machine.call(thread, number::Call, thread.slot, invocation), "an invocation may change translations");
    prepared(2);
    assert!(!machine.visit(thread, |_| Trap::Interrupt));
    prepared(3);
    // A signal that it does not wait for, and its way back out of the handler with another one pending.
    assert!(!machine.call(thread, number::Send, thread.notification, MessageInfo(0)));
    prepared(4);
    assert_eq!(thread.tcb.pc().get(), HANDLER);
    assert!(machine.call(thread, number::Send, thread.notification, MessageInfo(0)), "the handler is not interrupted");
    assert!(!machine.call(thread, number::ReturnFromUserInterrupt, 0x40, MessageInfo(0)));
    prepared(5);
    assert_eq!((thread.tcb.pc().get(), thread.tcb.register::<17>().get()), (HANDLER, 0x40));
    // A fault, which ends it.
    assert!(!machine.visit(thread, |_| Trap::PageFault { address: 0, access: Access::Write }));
    assert_eq!(thread.tcb.state(), ThreadState::Inactive);
    machine.enter_first();
}

/// The kernel takes signals out of the file before a call that could take them, and it is about another object.
#[test]
fn a_store_before_a_poll_of_another_notification_interrupts_the_thread() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let (thread, other) = (machine.thread(100), machine.objects(ObjectType::Notification, 1));
    machine.resume(thread);
    machine.enter(thread);
    simulation.store(0, 1, IDENTITY);
    assert!(!machine.call(thread, number::NBRecv, other, MessageInfo(0)));
    machine.enter(thread);
    assert_eq!(thread.tcb.pc().get(), HANDLER);
    // In its handler it is not interrupted, and finds them by a poll.
    simulation.store(0, 1, IDENTITY);
    assert!(machine.call(thread, number::NBRecv, other, MessageInfo(0)));
    assert!(machine.poll(thread));
    assert_eq!(thread.tcb.register::<10>().get(), HINT);
    machine.machine.kernel.check();
}

#[test]
fn a_thread_whose_file_is_taken_away_is_prepared_anew() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let thread = machine.thread(100);
    machine.resume(thread);
    machine.enter(thread);
    let kernel = &machine.machine.kernel;
    assert!(kernel.node().is_virtualised.get());
    assert_eq!(kernel.give_up_file(thread.tcb), 0);
    assert!(!kernel.node().is_virtualised.get());
    machine.enter(thread);
    assert!(machine.poll(thread));
}

#[test]
fn registers_stay_in_the_hart_while_ordinary_threads_run() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let thread = machine.thread(100);
    machine.resume(thread);
    machine.enter(thread);
    machine.visit(thread, |context| {
        context.supervisor.scratch = 7;
        Trap::Interrupt
    });
    machine.enter(thread);
    for count in 1..4 {
        machine.wait(thread);
        machine.enter_first();
        machine.machine.trap(number::NBSend as i64, thread.notification, 0, &[], &[]);
        machine.enter(thread);
        let state = machine.state();
        assert_eq!((state.activations, state.loads), (2 + count, 1));
        assert_eq!(state.registers.unwrap().scratch, 7);
    }
}

#[test]
fn two_virtualised_threads_find_their_own_registers() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let threads = [machine.thread(100), machine.thread(150)];
    for (thread, scratch) in threads.into_iter().zip(1..) {
        machine.resume(thread);
        machine.enter(thread);
        assert_eq!(machine.state().registers.unwrap().scratch, 0, "nothing of another thread");
        machine.visit(thread, move |context| {
            context.supervisor.scratch = scratch;
            Trap::Interrupt
        });
        machine.enter(thread);
        machine.wait(thread);
        machine.enter_first();
    }
    for (thread, scratch) in threads.into_iter().zip(1..) {
        machine.machine.trap(number::NBSend as i64, thread.notification, 0, &[], &[]);
        machine.enter(thread);
        let state = machine.state();
        assert_eq!((state.registers.unwrap().scratch, state.file), (scratch, thread.file()));
        machine.wait(thread);
        machine.enter_first();
    }
}

/// The hart holds the registers of a thread that is deleted; the next one has the same memory.
#[test]
fn a_thread_in_the_memory_of_a_deleted_one_gets_none_of_its_registers() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let piece = machine.next.get();
    machine.next.set(piece + 1);
    assert_eq!(machine.machine.retype(machine.machine.untyped(16), ObjectType::Untyped, 12, piece, 1).0, 0);
    let notification = machine.objects(ObjectType::Notification, 1);
    let mut places = Vec::new();
    for scratch in [0, 1, 2] {
        let slot = machine.next.get();
        assert_eq!(machine.machine.retype(piece, ObjectType::Tcb, 0, slot, 1).0, 0);
        machine.ask(slot, Invocation::TcbSetSpace, &[0, 0, 0], &[2, 3]);
        machine.ask(slot, Invocation::TcbSetPriority, &[100], &[1]);
        machine.ask(slot, Invocation::TcbBindNotification, &[], &[notification]);
        machine.ask(slot, Invocation::TcbRegisterUserInterrupts, &[HANDLER, HINT, VECTOR], &[notification]);
        let Capability::Thread { tcb } = machine.machine.slot(slot).capability.get() else { panic!("no thread") };
        let thread = Thread { slot, notification, tcb };
        machine.resume(thread);
        machine.enter(thread);
        let state = machine.state();
        assert_eq!((state.registers.unwrap().scratch, state.loads), (0, scratch as usize + 1));
        machine.visit(thread, move |context| {
            context.supervisor.scratch = scratch + 1;
            Trap::Interrupt
        });
        machine.enter(thread);
        machine.wait(thread);
        machine.enter_first();
        places.push(tcb.physical());
        machine.ask(2, Invocation::CNodeRevoke, &[piece, 64], &[]);
    }
    assert!(places.iter().all(|&place| place == places[0]));
    machine.machine.kernel.check();
}

#[test]
fn a_file_that_is_taken_away_is_not_assigned_to_its_former_owner() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    // More threads than files.
    let threads = [machine.thread(100), machine.thread(101), machine.thread(102)];
    for thread in threads {
        machine.resume(thread);
        machine.enter(thread);
        machine.wait(thread);
        machine.enter_first();
    }
    assert_eq!(threads.map(Thread::file), [1, 2, 0]);
    // The first waits no more, and its file is free; a signal that is on its way is not lost.
    simulation.store(0, 1, IDENTITY);
    machine.ask(threads[0].slot, Invocation::TcbSuspend, &[], &[]);
    let notification = threads[0].tcb.bound.get().unwrap();
    assert_eq!((threads[0].file(), notification.is_active.get(), notification.badge.get()), (0, 1, HINT));
    machine.machine.trap(number::NBSend as i64, threads[2].notification, 0, &[], &[]);
    machine.enter(threads[2]);
    assert_eq!((machine.state().file, threads[2].file()), (1, 1));
    machine.wait(threads[2]);
    machine.enter_first();
    machine.resume(threads[0]);
    machine.enter(threads[0]);
    assert_eq!((machine.state().file, threads[0].file()), (0, 0));
    machine.machine.kernel.check();
}

#[test]
fn a_file_is_watched_exactly_while_its_owner_waits() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let thread = machine.thread(100);
    let kernel = &machine.machine.kernel;
    machine.resume(thread);
    machine.enter(thread);
    assert!(machine.poll(thread));
    assert_eq!((machine.state().watched, machine.state().watches), (0, 0));
    let signal_and_wait = || {
        thread.tcb.register::<11>().set(0);
        assert!(!machine.call(thread, number::SignalRecv, thread.notification, MessageInfo(0)));
    };
    let waits: [&dyn Fn(); 2] = [&|| machine.wait(thread), &signal_and_wait];
    for (index, wait) in waits.into_iter().enumerate() {
        wait();
        assert_eq!((machine.state().watched, thread.tcb.state()), (1 << 1, ThreadState::AwaitingSignal));
        machine.enter_first();
        assert!(!platform::machine::pending().guest);
        simulation.store(0, 1, IDENTITY);
        assert!(platform::machine::pending().guest);
        kernel.serve_interrupts();
        machine.enter(thread);
        assert_eq!(machine.state().watched, 0, "way {index}");
        assert_eq!(thread.tcb.register::<10>().get(), HINT);
        simulation.store(0, 1, IDENTITY);
        assert!(!platform::machine::pending().guest, "its own handler takes it");
        assert!(machine.poll(thread));
    }
    // A signal through the kernel ends the wait, too.
    machine.wait(thread);
    machine.enter_first();
    machine.machine.trap(number::NBSend as i64, thread.notification, 0, &[], &[]);
    machine.enter(thread);
    assert_eq!(machine.state().watched, 0);
}

/// An emulator may lose the interrupt of a store.
#[test]
fn a_tick_finds_a_store_whose_interrupt_was_lost() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let thread = machine.thread(100);
    let kernel = &machine.machine.kernel;
    kernel.tick_length.set(1000);
    kernel.start_ticks();
    machine.resume(thread);
    machine.enter(thread);
    machine.wait(thread);
    machine.enter_first();
    let tick = || {
        simulation.advance(kernel.node().next_tick.get() - Host::now());
        kernel.serve_interrupts();
    };
    tick();
    assert_eq!((machine.state().watched, thread.tcb.state()), (1 << 1, ThreadState::AwaitingSignal));
    simulation.store_unnoticed(0, 1, IDENTITY);
    assert!(platform::machine::pending().is_empty());
    tick();
    machine.enter(thread);
    assert_eq!((machine.state().watched, thread.tcb.register::<10>().get()), (0, HINT));
}

/// Writing a thread's registers ends both of its handlers.
#[test]
fn a_change_of_supervisor_registers_in_memory_reaches_the_hart() {
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let thread = machine.thread(100);
    machine.resume(thread);
    machine.enter(thread);
    let in_handler = |context: &mut UserContext| {
        context.supervisor.status = 0;
        Trap::Interrupt
    };
    assert!(!machine.visit(thread, in_handler));
    machine.enter(thread);
    machine.wait(thread);
    machine.enter_first();
    machine.ask(thread.slot, Invocation::TcbWriteRegisters, &[1, 1, 0x40], &[]);
    machine.enter(thread);
    let state = machine.state();
    assert_eq!((state.registers.unwrap().status, state.loads), (2, 2));
}

#[cfg(feature = "smp")]
#[test]
fn a_thread_that_comes_back_from_another_hart_finds_the_registers_that_it_left_there() {
    use objects::{PriorityQueues, claim, fake};
    const OTHER: usize = 1;
    let simulation = Simulation::new();
    let machine = Virtual::new(&simulation);
    let kernel = &machine.machine.kernel;
    kernel.node_count.set(OTHER + 1);
    kernel.nodes[OTHER].ready.set(0, claim(fake(size_of::<PriorityQueues>().next_power_of_two().ilog2())));
    kernel.nodes[OTHER].virtual_root.set(kernel.nodes[0].virtual_root.get());
    let thread = machine.thread(100);
    machine.resume(thread);
    for scratch in 1..4 {
        machine.enter(thread);
        assert_eq!(machine.state().registers.unwrap().scratch, scratch - 1);
        machine.wait(thread);
        machine.enter_first();
        machine.ask(thread.slot, Invocation::TcbSetAffinity, &[OTHER as u64], &[]);
        machine.machine.trap(number::NBSend as i64, thread.notification, 0, &[], &[]);
        // The other hart, on a thread of the host's, since registers are a hart's.
        kernel.here.set(OTHER);
        kernel.choose_anew();
        let file = match kernel.leave() {
            Next::RunVirtualised(next) if next == thread.tcb => thread.file(),
            _ => panic!("the other hart does not run the thread"),
        };
        let (tcb, simulation) = (thread.tcb, &simulation);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _hart = simulation.attach(OTHER);
                platform::machine::clear_ipi();
                prepare_virtualised::<Host>(tcb, file);
                assert_eq!(simulation.virtualised(OTHER).registers.unwrap().scratch, scratch - 1);
                simulation.script(move |context| {
                    context.supervisor.scratch = scratch;
                    Trap::Interrupt
                });
                assert_eq!(enter_virtualised::<Host>(tcb, file), Trap::Interrupt);
            });
        });
        kernel.harts.each[OTHER].place.store(crate::hart::IN_KERNEL, Ordering::Release);
        kernel.here.set(0);
        // The other hart empties the file, which only it can, while it waits for the lock.
        let (alive, until) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (harts, alive) = (kernel.harts, alive);
            scope.spawn(move || {
                let _hart = simulation.attach(OTHER);
                while until.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    harts.obey(OTHER);
                }
            });
            machine.ask(thread.slot, Invocation::TcbSetAffinity, &[0], &[]);
            drop(alive);
        });
        kernel.choose_anew();
    }
    kernel.check();
}
