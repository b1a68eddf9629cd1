//! From a device's wire to the function that serves it.
//!
//! Each source has a slot with its handler and the hart that takes it. A handler runs on that hart, called by [`poll`],
//! so in the middle of nothing: it makes the device take its request back, and wakes waiting tasks. It runs under its
//! slot's lock, so that a source is never moved to another hart, or taken away, while it is being served; it must
//! therefore not register or remove its own source.
//!
//! A wire can be that of several functions of PCI, all of which are served then; messages of functions are sources
//! without a wire. A source that interrupts again and again, and is of no device that has asked, is switched off: while
//! its level stays, the hart would come to nothing else.
//!
//! Sources are spread over the harts that have joined, in the order in which they were registered.

use core::sync::atomic::{AtomicUsize, Ordering};

use drivers::aplic::Trigger;
use drivers::pci::Messages;
use drivers::{Registers, imsic};
use hal_api::Machine as _;
use heapless::Vec;
use spin::{Mutex, Once};

use crate::controller::{Claim, InterruptController};
use crate::description::{Description, Interrupt, MAXIMUM_SOURCE};
use crate::registers::Mapped;
use crate::{Machine, machine};

/// Serves an interrupt, and returns whether its device had asked for that, or may have. The argument is the value that
/// was registered with it.
pub type InterruptHandler = fn(usize) -> bool;

/// An interrupt could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// This machine has no such source; poll the device.
    NoSuchSource,
    /// The source has a handler already.
    Taken,
}

/// Maximum number of interrupts served in one visit; a device that interrupts for ever must not keep the hart.
const MAXIMUM_CLAIMS: usize = 64;

/// Number of interrupts of a source, one after the other, for which no device has asked, that switch it off.
const MOST_UNASKED: u32 = 1000;

/// Most functions that share a wire.
const MOST_SHARING: usize = 8;

struct SourceSlot {
    handlers: Vec<(InterruptHandler, usize), MOST_SHARING>,
    source: u32,
    path: Path,
    is_shared: bool,
    number: usize,
    hart: usize,
    /// Number of interrupts for which no device has asked, since one had.
    unasked: u32,
}

/// The way of an interrupt to the controller.
enum Path {
    Wire(Trigger),
    /// The first message of a function's table.
    Message(Messages<Mapped>),
}

static SLOTS: [Mutex<Option<SourceSlot>>; MAXIMUM_SOURCE as usize + 1] =
    [const { Mutex::new(None) }; MAXIMUM_SOURCE as usize + 1];
static CONTROLLER: Once<InterruptController> = Once::new();
/// Number of sources that were ever registered.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);
/// Number of harts that take interrupts; they are the first ones.
// Release and acquire: a hart that is counted has enabled its part of the controller.
static JOINED: AtomicUsize = AtomicUsize::new(1);

/// Takes over the controller and prepares this hart, the first.
pub fn start(description: &Description) {
    if let Some(controller) = InterruptController::new(description) {
        CONTROLLER.call_once(|| controller);
        prepare_hart(0);
    }
}

fn prepare_hart(hart: usize) {
    prepare_user_level();
    let Some(controller) = CONTROLLER.get() else { return };
    controller.prepare_hart(hart);
    if let Some(window) = controller.doorbell(hart) {
        machine::set_doorbell(hart, &window);
    }
}

/// Prepares the calling hart for programs that take interrupts in user mode, where the machine has them. Each hart does
/// it for itself before it runs a program.
pub fn prepare_user_level() {
    if let Some((controller, _)) = crate::get().user_interrupts {
        machine::prepare_user_level(controller);
    }
}

/// Makes the calling hart take its share of the interrupts.
pub fn join() {
    let hart = Machine::hart();
    if hart == 0 {
        return;
    }
    prepare_hart(hart);
    // Harts join in any order, but a share is only given to harts all of whose predecessors have joined too.
    static HERE: Mutex<u64> = Mutex::new(1);
    let mut here = HERE.lock();
    *here |= 1 << hart;
    JOINED.store(here.trailing_ones() as usize, Ordering::Release);
    for slot in &SLOTS {
        if let Some(slot) = &mut *slot.lock() {
            assign(slot);
        }
    }
}

/// Registers `handler`, to be called with `data` at each interrupt of the source.
///
/// [`RegisterError`]; nothing has changed then.
#[doc(alias = "request_irq")]
pub fn register_interrupt(interrupt: Interrupt, handler: InterruptHandler, data: usize) -> Result<(), RegisterError> {
    register(interrupt, false, (handler, data))
}

/// As [`register_interrupt`], for a device that may share its wire: with others that do, all are served.
pub fn register_shared_interrupt(
    interrupt: Interrupt,
    handler: InterruptHandler,
    data: usize,
) -> Result<(), RegisterError> {
    register(interrupt, true, (handler, data))
}

fn register(interrupt: Interrupt, is_shared: bool, handler: (InterruptHandler, usize)) -> Result<(), RegisterError> {
    let Interrupt { source, trigger } = interrupt;
    let controller = CONTROLLER.get().ok_or(RegisterError::NoSuchSource)?;
    if source == 0 || source > controller.sources() {
        return Err(RegisterError::NoSuchSource);
    }
    let mut place = SLOTS[source as usize].lock();
    match &mut *place {
        Some(slot) if is_shared && slot.is_shared => slot.handlers.push(handler).map_err(|_| RegisterError::Taken),
        Some(_) => Err(RegisterError::Taken),
        None => {
            assign(place.insert(SourceSlot::new(source, Path::Wire(trigger), is_shared, handler)));
            Ok(())
        }
    }
}

/// Returns whether one more function of PCI can interrupt by messages here.
pub fn has_messages() -> bool {
    let free = |source: u32| SLOTS.get(source as usize).is_some_and(|slot| slot.lock().is_none());
    CONTROLLER.get().is_some_and(|controller| controller.messages().any(free))
}

/// Registers `handler`, to be called with `data` at each first message of a function's table, which is set and
/// unmasked.
///
/// [`RegisterError`]; nothing has changed then.
pub fn register_message(
    messages: Messages<Mapped>,
    handler: InterruptHandler,
    data: usize,
) -> Result<(), RegisterError> {
    let controller = CONTROLLER.get().ok_or(RegisterError::NoSuchSource)?;
    for source in controller.messages() {
        let mut place = SLOTS.get(source as usize).ok_or(RegisterError::NoSuchSource)?.lock();
        if place.is_none() {
            assign(place.insert(SourceSlot::new(source, Path::Message(messages), false, (handler, data))));
            return Ok(());
        }
    }
    Err(RegisterError::NoSuchSource)
}

impl SourceSlot {
    fn new(source: u32, path: Path, is_shared: bool, handler: (InterruptHandler, usize)) -> SourceSlot {
        let mut handlers = Vec::new();
        // There is room for one.
        let _ = handlers.push(handler);
        let number = REGISTERED.fetch_add(1, Ordering::Relaxed);
        SourceSlot { handlers, source, path, is_shared, number, hart: usize::MAX, unasked: 0 }
    }

    /// Calls the handlers; returns whether too many such interrupts were of no device.
    fn serve(&mut self) -> bool {
        let mut has_asked = false;
        for (handler, data) in &self.handlers {
            has_asked |= handler(*data);
        }
        self.unasked = if has_asked { 0 } else { self.unasked.saturating_add(1) };
        self.unasked == MOST_UNASKED
    }
}

/// Stops the interrupts of a source.
fn switch_off(controller: &InterruptController, slot: &SourceSlot) {
    match &slot.path {
        Path::Wire(_) => controller.remove(slot.source, slot.hart),
        Path::Message(messages) => messages.mask(0),
    }
}

/// Stops the interrupt. When this returns its handler does not run and will not run again.
#[doc(alias = "free_irq")]
pub fn remove_interrupt(source: u32) {
    let (Some(controller), Some(place)) = (CONTROLLER.get(), SLOTS.get(source as usize)) else { return };
    let mut place = place.lock();
    if let Some(slot) = place.take() {
        switch_off(controller, &slot);
    }
}

/// Assigns a source to the next hart in turn.
fn assign(slot: &mut SourceSlot) {
    let Some(controller) = CONTROLLER.get() else { return };
    let joined = JOINED.load(Ordering::Acquire);
    let usable = |hart: &usize| controller.serves(*hart);
    let count = (0..joined).filter(usable).count().max(1);
    let hart = (0..joined).filter(usable).nth(slot.number % count).unwrap_or(0);
    if hart == slot.hart {
        return;
    }
    let from = (slot.hart != usize::MAX).then_some(slot.hart);
    slot.hart = hart;
    match &slot.path {
        Path::Wire(trigger) => controller.route(slot.source, *trigger, from, hart),
        Path::Message(messages) => {
            if let Some((address, value)) = controller.message(slot.source, hart) {
                messages.set(0, address, value);
            }
        }
    }
}

/// Serves every external interrupt that is pending for this hart; returns whether an interprocessor interrupt was among
/// them.
pub fn poll() -> bool {
    let Some(controller) = CONTROLLER.get() else { return false };
    let hart = Machine::hart();
    let mut ipi = false;
    for _ in 0..MAXIMUM_CLAIMS {
        match controller.claim(hart) {
            None => break,
            Some(Claim::Interprocessor) => ipi = true,
            Some(Claim::Source(source)) => {
                // The slot stays locked until the source is completed, so that its route does not change meanwhile.
                let mut slot = SLOTS.get(source as usize).map(|slot| slot.lock());
                let mut slot = slot.as_mut().and_then(|slot| slot.as_mut());
                let is_stuck = slot.as_mut().is_some_and(|slot| slot.serve());
                let is_level = slot.as_ref().is_some_and(|slot| matches!(slot.path, Path::Wire(Trigger::HighLevel)));
                controller.complete(source, hart, slot.as_ref().map(|slot| slot.hart), is_level);
                if let (true, Some(slot)) = (is_stuck, slot) {
                    switch_off(controller, slot);
                    crate::println!("interrupts: source {source} is switched off: none of its devices asks for it");
                }
            }
        }
    }
    ipi
}

/// Returns the physical address of the page of a hart's guest interrupt file, to which a store of an identity makes it
/// pending. `None` if there is no such file.
pub fn guest_page(hart: usize, file: usize) -> Option<u64> {
    CONTROLLER.get()?.guest_page(hart, file)
}

/// Makes an identity pending in a hart's guest interrupt file.
pub fn notify_guest_file(hart: usize, file: usize, identity: u32) {
    if let Some(registers) = guest_page(hart, file).and_then(|page| Mapped::new((page, imsic::PAGE))) {
        registers.write32(0, identity);
    }
}
