//! A fake machine for tests of kernels on the host.
//!
//! [`Host`] implements [`hal_api::Machine`] over a [`Simulation`], which a test creates and inspects: a script supplies
//! the traps of user mode, time is a counter that the test advances, interprocessor interrupts and flushes are
//! recorded, and memory is an ordinary allocation. Each test has a simulation of its own: the thread that calls
//! [`Simulation::attach`] becomes one of its harts, independent of tests that run in parallel.
//!
//! ```
//! use hal_api::{Machine, Trap, UserContext};
//! use hal_host::{Host, Simulation};
//!
//! let simulation = Simulation::new();
//! let _hart = simulation.attach(0);
//! simulation.script(|context| {
//!     context.set_register(17, 93);
//!     Trap::SystemCall
//! });
//! let mut context = UserContext::new(0x1000, 0);
//! assert_eq!(Host::enter_user(&mut context), Trap::SystemCall);
//! assert_eq!(context.call_number(), 93);
//! ```
//!
//! Shutting the machine down panics with [`Ended`], which [`Simulation::run`] turns back into the status.
// The one unsafe item is the declaration of `activate`; there is no unsafe block.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use hal_api::{
    Configuration, Errata, Flush, HartSet, InterruptRegisters, Interrupts, MAXIMUM_HARTS, Machine, Scope, SenderTable,
    Status, Trap, UserContext, UserLevel, Virtualisation,
};

/// Physical address of the first byte of the fake memory.
pub const MEMORY_START: u64 = 0x8000_0000;

/// The fake machine of which the calling thread is a hart.
#[derive(Clone, Copy, Debug)]
pub struct Host;

/// Panic payload of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub Status);

/// One entry to user mode in a script: changes the context as the program would, and returns the trap.
pub type Step = Box<dyn FnOnce(&mut UserContext) -> Trap + Send>;

/// A machine as seen by the test. Clones share one machine.
#[derive(Clone)]
pub struct Simulation(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    memory: &'static [Page],
    memory_pointer: std::sync::atomic::AtomicPtr<u8>,
}

/// A page of fake memory; aligned, and shared by all users of its address.
#[repr(C, align(4096))]
struct Page([u8; 4096]);

#[derive(Default)]
struct State {
    now: u64,
    harts: [Hart; MAXIMUM_HARTS],
    user_level: [UserLevelState; MAXIMUM_HARTS],
    guest_files: usize,
    /// Whether the page tables' translations have no identifiers.
    lacks_asids: bool,
    virtualised: [VirtualisedState; MAXIMUM_HARTS],
    tokens: u64,
    script: VecDeque<Step>,
    flushes: Vec<Flush>,
    synchronised: Vec<HartSet>,
    ipis: Vec<usize>,
    started: Vec<usize>,
    lost: Vec<usize>,
    output: Vec<u8>,
    devices: Vec<Range<u64>>,
    registers: BTreeMap<u64, u8>,
    /// Addresses of the controller of user interrupts.
    slots: Range<u64>,
    ends_when_idle: bool,
}

/// A hart's part in user-level interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLevelState {
    /// The registers of the program that is armed.
    pub registers: Option<InterruptRegisters>,
    /// The slot in which it receives.
    pub slot: Option<u16>,
    /// The table through which it sends.
    pub table: Option<SenderTable>,
}

/// A hart's part in running programs virtualised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualisedState {
    /// Root frame of the table under which programs run virtualised; `None` if they do not.
    pub root: Option<u64>,
    /// Number of times that such a table was activated.
    pub activations: usize,
    /// The supervisor registers in the hart.
    pub registers: Option<InterruptRegisters>,
    /// Number of times that supervisor registers were loaded.
    pub loads: usize,
    /// The file of the program whose registers these are.
    pub file: usize,
    /// The files that interrupt the kernel, as bits.
    pub watched: u64,
    /// Number of times that files were watched or not any more.
    pub watches: usize,
    /// For each file, the enabled identities and the pending ones, as bits.
    pub files: [(u64, u64); FILES],
    /// The files that do not interrupt although an identity is pending, as bits.
    unnoticed: u64,
    token: u64,
}

/// The largest number of guest interrupt files of a hart, plus one, because there is no file 0.
pub const FILES: usize = 8;

#[derive(Clone, Copy, Default)]
struct Hart {
    deadline: Option<u64>,
    ipi: bool,
    external: bool,
    active: (u64, u16),
}

thread_local! {
    static CURRENT: RefCell<Option<(Simulation, usize)>> = const { RefCell::new(None) };
}

/// Guard of an attached thread: the calling thread is a hart until the guard is dropped.
#[must_use]
pub struct Attached(());

impl Drop for Attached {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| *current = None);
    }
}

impl Default for Simulation {
    fn default() -> Self {
        Simulation::new()
    }
}

impl Simulation {
    /// Creates a machine without memory, at time 0.
    pub fn new() -> Simulation {
        Simulation::with_memory(0)
    }

    /// Creates a machine with this many pages of memory, at [`MEMORY_START`]. The memory is never freed.
    pub fn with_memory(pages: usize) -> Simulation {
        let memory = Box::leak((0..pages).map(|_| Page([0; 4096])).collect::<Box<[Page]>>());
        let memory_pointer = memory.as_mut_ptr().cast();
        Simulation(Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            memory_pointer: std::sync::atomic::AtomicPtr::new(memory_pointer),
            memory,
        }))
    }

    /// Makes the calling thread this hart of the machine.
    ///
    /// # Panics
    /// If the thread is a hart already, or the hart cannot exist.
    pub fn attach(&self, hart: usize) -> Attached {
        assert!(hart < MAXIMUM_HARTS);
        CURRENT.with_borrow_mut(|current| {
            assert!(current.is_none(), "this thread is a hart already");
            *current = Some((self.clone(), hart));
        });
        Attached(())
    }

    /// Runs a kernel as hart 0 until it shuts the machine down, and returns the status.
    ///
    /// # Panics
    /// If the kernel panics or returns.
    pub fn run(&self, kernel: impl FnOnce()) -> Status {
        let _hart = self.attach(0);
        match panic::catch_unwind(AssertUnwindSafe(kernel)) {
            Ok(()) => panic!("the kernel returned"),
            Err(payload) => match payload.downcast::<Ended>() {
                Ok(ended) => ended.0,
                Err(payload) => panic::resume_unwind(payload),
            },
        }
    }

    /// Appends a step to the script: one more entry to user mode.
    pub fn script(&self, step: impl FnOnce(&mut UserContext) -> Trap + Send + 'static) {
        self.state().script.push_back(Box::new(step));
    }

    /// Shuts the machine down when a hart next waits for an interrupt. Needed by kernels whose last program runs within
    /// a scheduler: a shutdown is a panic here, and panics cannot unwind through `extern "C"` functions.
    pub fn end_when_idle(&self) {
        self.state().ends_when_idle = true;
    }

    /// Adds device registers at these physical addresses; a new machine has none.
    pub fn add_registers(&self, address: u64, length: u64) {
        self.state().devices.push(address..address + length);
    }

    /// Lets time pass.
    pub fn advance(&self, ticks: u64) {
        self.state().now += ticks;
        self.0.changed.notify_all();
    }

    /// Makes a device interrupt pending for a hart, or not.
    pub fn set_external(&self, hart: usize, pending: bool) {
        self.state().harts[hart].external = pending;
        self.0.changed.notify_all();
    }

    /// Returns the flushes so far, in order.
    pub fn flushes(&self) -> Vec<Flush> {
        self.state().flushes.clone()
    }

    /// Returns the harts whose instruction fetch was synchronised so far, in order.
    pub fn synchronised(&self) -> Vec<HartSet> {
        self.state().synchronised.clone()
    }

    /// Returns the harts to which interprocessor interrupts were sent so far, in order.
    pub fn ipis(&self) -> Vec<usize> {
        self.state().ipis.clone()
    }

    /// Returns the harts that were started so far, in order. The test runs them, in threads that attach.
    pub fn started(&self) -> Vec<usize> {
        self.state().started.clone()
    }

    /// Makes the firmware refuse to start a hart, so that it never arrives.
    pub fn lose_hart(&self, hart: usize) {
        self.state().lost.push(hart);
    }

    /// Returns the deadline of a hart's timer.
    pub fn deadline(&self, hart: usize) -> Option<u64> {
        self.state().harts[hart].deadline
    }

    /// Returns the page table that is active on a hart: root frame and identifier.
    pub fn active(&self, hart: usize) -> (u64, u16) {
        self.state().harts[hart].active
    }

    /// Returns the program that is armed on a hart, with its slot and its table.
    pub fn user_level(&self, hart: usize) -> UserLevelState {
        self.state().user_level[hart].clone()
    }

    /// Enables the interrupts of the program that is armed on a hart, as a program does by an instruction.
    ///
    /// # Panics
    /// If there is none.
    pub fn enable_user_interrupts(&self, hart: usize) {
        self.state().user_level[hart].registers.as_mut().expect("no program is armed").enabled = u64::MAX;
    }

    /// Adds the controller of user interrupts, whose slots remember their vectors and interrupt nobody.
    pub fn add_slots(&self, address: u64, length: u64) {
        self.add_registers(address, length);
        self.state().slots = address..address + length;
    }

    /// Takes the identifiers of address spaces from the machine; a new one has all of them.
    pub fn remove_asids(&self) {
        self.state().lacks_asids = true;
    }

    /// Gives each hart guest interrupt files; a new machine has none.
    ///
    /// # Panics
    /// If they are too many.
    pub fn add_guest_files(&self, count: usize) {
        assert!(count < FILES);
        self.state().guest_files = count;
    }

    /// Stores an identity to a hart's guest interrupt file, as a program with a mapping of its page does.
    pub fn store(&self, hart: usize, file: usize, identity: u64) {
        self.state().virtualised[hart].files[file].1 |= 1 << identity;
        self.0.changed.notify_all();
    }

    /// Stores as [`store`](Simulation::store) does, where the file does not interrupt until the hart next accesses it,
    /// as an emulator may have it.
    pub fn store_unnoticed(&self, hart: usize, file: usize, identity: u64) {
        let state = &mut self.state().virtualised[hart];
        state.files[file].1 |= 1 << identity;
        state.unnoticed |= 1 << file;
    }

    /// Returns a hart's part in running programs virtualised.
    pub fn virtualised(&self, hart: usize) -> VirtualisedState {
        self.state().virtualised[hart].clone()
    }

    /// Returns the console output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.state().output).into_owned()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that fails with the lock held has failed; the others do not share it.
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// Returns the files of a hart in which an enabled identity is pending.
    fn pending_files(&self, hart: usize) -> u64 {
        let files = self.virtualised[hart].files.iter().enumerate();
        let pending: u64 =
            files.filter(|(_, (enabled, pending))| enabled & pending != 0).map(|(file, _)| 1 << file).sum();
        pending & !self.virtualised[hart].unnoticed
    }

    fn pending(&self, hart: usize) -> Interrupts {
        let guest = self.pending_files(hart) & self.virtualised[hart].watched != 0;
        let hart = &self.harts[hart];
        Interrupts {
            timer: hart.deadline.is_some_and(|deadline| deadline <= self.now),
            ipi: hart.ipi,
            external: hart.external,
            guest,
        }
    }
}

fn current() -> (Simulation, usize) {
    CURRENT.with_borrow(Clone::clone).expect("the calling thread is no hart of a simulation: call `Simulation::attach`")
}

impl Machine for Host {
    fn hart() -> usize {
        current().1
    }

    fn now() -> u64 {
        current().0.state().now
    }

    fn set_timer(deadline_ticks: u64) {
        let (simulation, hart) = current();
        simulation.state().harts[hart].deadline = (deadline_ticks != u64::MAX).then_some(deadline_ticks);
    }

    /// Returns when an interrupt is pending. If only time can bring one, time passes at once.
    fn wait_for_interrupt() {
        let (simulation, hart) = current();
        let mut state = simulation.state();
        if state.ends_when_idle {
            drop(state);
            Host::shutdown(Status::Success);
        }
        while state.pending(hart).is_empty() {
            if let Some(deadline) = state.harts[hart].deadline {
                state.now = state.now.max(deadline);
            } else {
                state = simulation.0.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }

    fn send_ipi(hart: usize) {
        let (simulation, _) = current();
        let mut state = simulation.state();
        if let Some(receiver) = state.harts.get_mut(hart) {
            receiver.ipi = true;
            state.ipis.push(hart);
        }
        drop(state);
        simulation.0.changed.notify_all();
    }

    /// Runs the next step of the script; a pending interrupt comes first.
    ///
    /// # Panics
    /// If the script is at its end.
    fn enter_user(context: &mut UserContext) -> Trap {
        let (simulation, hart) = current();
        let mut state = simulation.state();
        if !state.pending(hart).is_empty() {
            return Trap::Interrupt;
        }
        let step = state.script.pop_front().expect("user mode is entered once more than the script says");
        drop(state);
        step(context)
    }

    /// Does nothing: the script's programs have their registers in the context.
    fn keep_floating_point(_: &mut UserContext) {}

    fn flush_tlb(flush: Flush) {
        current().0.state().flushes.push(flush);
    }

    fn synchronise_instructions(harts: HartSet) {
        current().0.state().synchronised.push(harts);
    }

    #[allow(unsafe_code)]
    unsafe fn activate(root_ppn: u64, asid: u16) {
        let (simulation, hart) = current();
        let mut state = simulation.state();
        state.harts[hart].active = (root_ppn, asid);
        state.virtualised[hart].root = None;
    }

    #[allow(unsafe_code)]
    unsafe fn activate_without_asid(root_ppn: u64) {
        let (simulation, hart) = current();
        let mut state = simulation.state();
        if std::mem::replace(&mut state.harts[hart].active, (root_ppn, 0)) != (root_ppn, 0) {
            state.flushes.push(Flush::Local(Scope::AddressSpace { asid: 0 }));
        }
        state.virtualised[hart].root = None;
    }

    fn kernel_root_ppn() -> u64 {
        MEMORY_START >> 12
    }

    fn maximum_asid() -> u16 {
        if current().0.state().lacks_asids { 0 } else { u16::MAX }
    }

    /// # Panics
    /// If there is no memory at this address.
    fn direct_map(physical: u64) -> *mut u8 {
        let (simulation, _) = current();
        let offset = physical.checked_sub(MEMORY_START).expect("below the fake memory") as usize;
        assert!(offset < simulation.0.memory.len() * 4096, "behind the fake memory");
        let start = simulation.0.memory_pointer.load(std::sync::atomic::Ordering::Relaxed);
        start.wrapping_add(offset)
    }

    fn shutdown(status: Status) -> ! {
        panic::resume_unwind(Box::new(Ended(status)))
    }

    /// Shuts the fake machine down; the test may start another.
    fn restart() -> ! {
        Host::shutdown(Status::Success)
    }
}

/// Calls `act` with the part of the calling hart in running programs virtualised.
fn with_virtualised<R>(act: impl FnOnce(&mut VirtualisedState) -> R) -> R {
    let (simulation, hart) = current();
    act(&mut simulation.state().virtualised[hart])
}

impl Virtualisation for Host {
    /// # Panics
    /// Always: the kernels' tests on this machine use tables of four levels.
    #[allow(unsafe_code)]
    unsafe fn activate_virtualised(_root_ppn: u64) {
        panic!("the fake machine has tables of four levels only");
    }

    #[allow(unsafe_code)]
    unsafe fn activate_virtualised_above(root_ppn: u64) {
        assert!(Host::has_four_levels(), "the fake machine has no guest interrupt files");
        with_virtualised(|state| {
            state.root = Some(root_ppn);
            state.activations += 1;
        });
    }

    fn has_four_levels() -> bool {
        Host::guest_files() > 0
    }

    fn guest_files() -> usize {
        current().0.state().guest_files
    }

    fn load_supervisor(registers: &InterruptRegisters, file: usize) {
        with_virtualised(|state| {
            state.registers = Some(registers.clone());
            state.loads += 1;
            state.file = file;
            state.token = 0;
        });
    }

    fn save_supervisor(registers: &mut InterruptRegisters) {
        *registers = with_virtualised(|state| state.registers.take()).expect("no registers are loaded");
    }

    fn resume_supervisor(context: &mut UserContext, file: usize) {
        if with_virtualised(|state| state.token == 0 || state.token != context.supervisor_token()) {
            Host::load_supervisor(&context.supervisor, file);
            let (simulation, hart) = current();
            let mut state = simulation.state();
            state.tokens += 1;
            state.virtualised[hart].token = state.tokens;
            context.set_supervisor_token(state.tokens);
        }
        with_virtualised(|state| state.file = file);
    }

    /// The registers are those that the script's step has left in the context.
    fn keep_supervisor(context: &mut UserContext, file: usize) {
        with_virtualised(|state| {
            assert_eq!((state.token, state.file), (context.supervisor_token(), file), "other registers are loaded");
            state.registers = Some(context.supervisor.clone());
        });
    }

    fn notify_virtualised() {
        with_virtualised(|state| {
            if let Some(registers) = &mut state.registers {
                registers.notified = 1;
            }
        });
    }

    fn disable_supervisor_interrupts() {
        with_virtualised(|state| state.registers.iter_mut().for_each(|registers| registers.enabled = 0));
    }

    fn prepare_guest_file(file: usize, identities: u64) {
        with_virtualised(|state| state.files[file] = (identities, 0));
    }

    fn drain_guest_file(file: usize) -> u64 {
        with_virtualised(|state| core::mem::take(&mut state.files[file]).1)
    }

    fn take_guest_file(file: usize) -> u64 {
        with_virtualised(|state| {
            state.unnoticed &= !(1 << file);
            core::mem::take(&mut state.files[file].1)
        })
    }

    fn enable_guest_file(file: usize, identities: u64) {
        with_virtualised(|state| state.files[file].0 = identities);
    }

    fn watch_guest_files(files: u64) {
        with_virtualised(|state| {
            state.watched = files;
            state.watches += 1;
        });
    }

    fn choose_guest_file(file: usize) {
        with_virtualised(|state| state.file = file);
    }

    fn watched_guest_files() -> u64 {
        with_virtualised(|state| state.watched)
    }

    fn pending_guest_files() -> u64 {
        let (simulation, hart) = current();
        simulation.state().pending_files(hart)
    }
}

impl UserLevel for Host {
    fn arm(registers: &InterruptRegisters) {
        let (simulation, hart) = current();
        simulation.state().user_level[hart] =
            UserLevelState { registers: Some(registers.clone()), ..UserLevelState::default() };
    }

    fn save_armed(registers: &mut InterruptRegisters) {
        let (simulation, hart) = current();
        *registers = simulation.state().user_level[hart].registers.clone().expect("no program is armed");
    }

    fn forget_armed() {
        let (simulation, hart) = current();
        simulation.state().user_level[hart] = UserLevelState::default();
    }

    fn receive_in(slot: Option<u16>) {
        let (simulation, hart) = current();
        simulation.state().user_level[hart].slot = slot;
    }

    fn send_through(table: Option<SenderTable>) {
        let (simulation, hart) = current();
        simulation.state().user_level[hart].table = table;
    }

    fn raise_user_interrupt() {
        let (simulation, hart) = current();
        if let Some(registers) = &mut simulation.state().user_level[hart].registers {
            registers.notified = 1;
        }
    }

    fn disable_user_interrupts() {
        let (simulation, hart) = current();
        simulation.state().user_level[hart].registers.iter_mut().for_each(|registers| registers.enabled = 0);
    }

    fn is_user_interrupt_pending() -> bool {
        let (simulation, hart) = current();
        simulation.state().user_level[hart].registers.as_ref().is_some_and(|registers| registers.notified != 0)
    }

    fn lower_user_interrupt() {
        let (simulation, hart) = current();
        if let Some(registers) = &mut simulation.state().user_level[hart].registers {
            registers.notified = 0;
        }
    }
}

/// Checks the number of harts and stores nothing: the fake machine needs no configuration.
///
/// # Errors
/// A sentence if there are more harts than can exist.
pub fn configure(configuration: &Configuration) -> Result<(), &'static str> {
    if configuration.hart_ids.len() > MAXIMUM_HARTS { Err("there are too many harts") } else { Ok(()) }
}

/// Returns whether a timer register that the device tree names works: always, on the fake machine.
pub fn has_timer_register() -> bool {
    true
}

/// Returns whether types of memory that the device tree names work: always, on the fake machine.
pub fn has_page_types() -> bool {
    true
}

/// Returns the faults of the processor: none.
pub fn errata() -> Errata {
    Errata::default()
}

/// Does nothing: the fake machine's status always reaches the test.
pub fn use_test_device(_address: u64) {}

/// Records that a hart was started.
///
/// # Errors
/// An error number if the test has [lost](Simulation::lose_hart) that hart.
pub fn start_hart(index: usize, _hart_id: u64) -> Result<(), isize> {
    let (simulation, _) = current();
    let mut state = simulation.state();
    if state.lost.contains(&index) {
        return Err(-1);
    }
    state.started.push(index);
    Ok(())
}

/// Returns whether a hart has arrived; a started hart arrives at once.
pub fn has_arrived(index: usize) -> bool {
    current().0.state().started.contains(&index)
}

/// Gives up waiting for a hart; `false` if it has arrived after all.
pub fn give_up_hart(index: usize) -> bool {
    !has_arrived(index)
}

/// Writes to the console.
pub fn early_write(bytes: &[u8]) {
    current().0.state().output.extend_from_slice(bytes);
}

/// Does nothing: a panic of the fake machine is a panic of the host.
pub fn set_panic_writer(_writer: fn(&[u8])) {}

/// Does nothing: the fake machine has no guest interrupt files.
pub fn use_guest_files(_limit: usize, _identities: u32) {}

/// Does nothing: harts of the fake machine can be armed at any time.
pub fn prepare_user_level(_controller: u64) {}

/// Returns the calling hart's cycle counter, which is the fake machine's time.
pub fn cycles() -> u64 {
    current().0.state().now
}

/// Returns the interrupts that are pending on the calling hart.
pub fn pending() -> Interrupts {
    let (simulation, hart) = current();
    let state = simulation.state();
    state.pending(hart)
}

/// Clears the calling hart's interprocessor interrupt.
pub fn clear_ipi() {
    let (simulation, hart) = current();
    simulation.state().harts[hart].ipi = false;
}

/// Claims nothing: the fake machine has no interrupt files.
pub fn claim_external() -> u32 {
    0
}

/// Returns 0: the fake machine has no interrupt files.
pub fn read_imsic(_register: u64) -> u64 {
    0
}

/// Does nothing: the fake machine has no interrupt files.
pub fn write_imsic(_register: u64, _value: u64) {}

/// Does nothing: interprocessor interrupts need no doorbell here.
pub fn set_doorbell(_hart: usize, _window: &Window) {}

/// Bytes of a slot of the controller of user interrupts, and the offset of its pending vectors.
const SLOT_LENGTH: usize = 32;
const PENDING: usize = 0x10;

/// Device registers. They exist at the addresses given to [`Simulation::add_registers`], and keep the last value
/// written.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    physical: u64,
    length: u64,
}

impl Window {
    /// Opens the registers at these physical addresses; `None` if there are none.
    pub fn new(physical: u64, length: u64) -> Option<Window> {
        let end = physical.checked_add(length)?;
        let (simulation, _) = current();
        let state = simulation.state();
        let exists = state.devices.iter().any(|device| device.start <= physical && end <= device.end);
        (length > 0 && exists).then_some(Window { physical, length })
    }

    /// Reads the 8-bit register at this offset.
    pub fn read8(&self, offset: usize) -> u8 {
        assert!((offset as u64) < self.length);
        current().0.state().registers.get(&(self.physical + offset as u64)).copied().unwrap_or(0)
    }

    /// Writes the 8-bit register at this offset.
    pub fn write8(&self, offset: usize, value: u8) {
        assert!((offset as u64) < self.length);
        current().0.state().registers.insert(self.physical + offset as u64, value);
    }

    /// Reads the 16-bit register at this offset.
    pub fn read16(&self, offset: usize) -> u16 {
        u16::from_le_bytes([0, 1].map(|byte| self.read8(offset + byte)))
    }

    /// Writes the 16-bit register at this offset.
    pub fn write16(&self, offset: usize, value: u16) {
        for (byte, &value) in value.to_le_bytes().iter().enumerate() {
            self.write8(offset + byte, value);
        }
    }

    /// Reads the 32-bit register at this offset.
    pub fn read32(&self, offset: usize) -> u32 {
        u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.read8(offset + byte)))
    }

    /// Writes the 32-bit register at this offset.
    pub fn write32(&self, offset: usize, value: u32) {
        for (byte, &value) in value.to_le_bytes().iter().enumerate() {
            self.write8(offset + byte, value);
        }
    }

    /// Reads the 64-bit register at this offset. Reading the pending vectors of a slot takes them.
    pub fn read64(&self, offset: usize) -> u64 {
        let value = self.look64(offset);
        if self.is_slot() && offset % SLOT_LENGTH == PENDING {
            self.put64(offset, 0);
        }
        value
    }

    /// Writes the 64-bit register at this offset. Sending to a slot makes a vector pending.
    pub fn write64(&self, offset: usize, value: u64) {
        match offset % SLOT_LENGTH {
            0 if self.is_slot() => self.put64(offset + PENDING, self.look64(offset + PENDING) | 1 << value),
            PENDING if self.is_slot() => self.put64(offset, self.look64(offset) | value),
            _ => self.put64(offset, value),
        }
    }

    fn is_slot(&self) -> bool {
        current().0.state().slots.contains(&self.physical)
    }

    fn look64(&self, offset: usize) -> u64 {
        u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| self.read8(offset + byte)))
    }

    fn put64(&self, offset: usize, value: u64) {
        for (byte, &value) in value.to_le_bytes().iter().enumerate() {
            self.write8(offset + byte, value);
        }
    }

    /// Returns the physical address of the first register; the fake machine does not map registers.
    pub fn address(&self) -> usize {
        self.physical as usize
    }

    /// Returns the length of the window in bytes.
    pub fn length(&self) -> usize {
        self.length as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_api::Scope;

    #[test]
    fn the_script_runs_in_order_and_interrupts_come_first() {
        let simulation = Simulation::new();
        let _hart = simulation.attach(2);
        simulation.script(|context| {
            context.pc += 4;
            Trap::SystemCall
        });
        simulation.script(|_| Trap::Breakpoint);
        let mut context = UserContext::new(0x1000, 0);
        Host::set_timer(10);
        simulation.advance(10);
        assert_eq!(Host::enter_user(&mut context), Trap::Interrupt);
        assert!(pending().timer);
        Host::set_timer(u64::MAX);
        assert_eq!(Host::enter_user(&mut context), Trap::SystemCall);
        assert_eq!(context.pc, 0x1004);
        assert_eq!(Host::enter_user(&mut context), Trap::Breakpoint);
        assert_eq!(Host::hart(), 2);
    }

    #[test]
    fn waiting_lets_time_pass_to_the_deadline() {
        let simulation = Simulation::new();
        let _hart = simulation.attach(0);
        Host::set_timer(500);
        Host::wait_for_interrupt();
        assert_eq!(Host::now(), 500);
    }

    #[test]
    fn harts_wake_each_other() {
        let simulation = Simulation::new();
        let other = simulation.clone();
        let thread = std::thread::spawn(move || {
            let _hart = other.attach(1);
            Host::wait_for_interrupt();
            let found = pending();
            clear_ipi();
            (found.ipi, pending().ipi)
        });
        let _hart = simulation.attach(0);
        Host::send_ipi(1);
        assert_eq!(thread.join().unwrap(), (true, false));
        assert_eq!(simulation.ipis(), [1]);
    }

    #[test]
    fn registers_are_only_where_the_test_puts_them() {
        let simulation = Simulation::new();
        let _hart = simulation.attach(0);
        assert!(Window::new(0x1000, 16).is_none());
        simulation.add_registers(0x1000, 32);
        let window = Window::new(0x1000, 16).unwrap();
        window.write32(8, 0x1234_5678);
        assert_eq!((window.read32(8), window.read8(9), window.read8(0)), (0x1234_5678, 0x56, 0));
        assert!(Window::new(0x1010, 17).is_none());
    }

    #[test]
    fn an_armed_program_has_its_registers_until_it_is_disarmed() {
        let simulation = Simulation::new();
        let _hart = simulation.attach(1);
        let mut registers = InterruptRegisters { vector: 0x40, ..InterruptRegisters::NEW };
        Host::arm(&registers);
        Host::receive_in(Some(7));
        Host::send_through(Some(SenderTable { first_frame: 9, frames: 1 }));
        Host::raise_user_interrupt();
        let state = simulation.user_level(1);
        assert_eq!((state.slot, state.table.map(|table| table.first_frame)), (Some(7), Some(9)));
        Host::save_armed(&mut registers);
        assert_eq!((registers.notified, simulation.user_level(1)), (1, state));
        simulation.enable_user_interrupts(1);
        Host::disable_user_interrupts();
        Host::save_armed(&mut registers);
        assert_eq!((registers.enabled, registers.notified), (0, 1));
        assert!(Host::is_user_interrupt_pending());
        Host::lower_user_interrupt();
        assert!(!Host::is_user_interrupt_pending());
        Host::disarm(&mut registers);
        assert_eq!((registers.vector, registers.notified), (0x40, 0));
        assert_eq!(simulation.user_level(1), UserLevelState::default());
        // An interrupt without a program is lost.
        Host::raise_user_interrupt();
        assert_eq!(simulation.user_level(1).registers, None);
    }

    #[test]
    fn flushes_and_the_end_are_recorded() {
        let simulation = Simulation::with_memory(2);
        let flush = Flush::Remote(HartSet::first(2), Scope::All);
        let status = simulation.run(|| {
            Host::flush_tlb(flush);
            Host::synchronise_instructions(HartSet::only(3));
            assert_eq!(Host::direct_map(MEMORY_START + 4096).addr() % 4096, 0);
            early_write(b"over");
            Host::shutdown(Status::Failure(3))
        });
        assert_eq!(status, Status::Failure(3));
        assert_eq!(simulation.flushes(), [flush]);
        assert_eq!(simulation.synchronised(), [HartSet::only(3)]);
        assert_eq!(simulation.output(), "over");
    }
}
