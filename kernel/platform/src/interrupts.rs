//! From a device's wire to the function that serves it.
//!
//! Each source has a slot with its handler and the hart that takes it. A handler runs on that hart, called by [`poll`],
//! so in the middle of nothing: it makes the device take its request back, and wakes waiting tasks. It runs under its
//! slot's lock, so that a source is never moved to another hart, or taken away, while it is being served; it must
//! therefore not register or remove its own source.
//!
//! Sources are spread over the harts that have joined, in the order in which they were registered.

use core::sync::atomic::{AtomicUsize, Ordering};

use drivers::Registers;
use drivers::aplic::Aplic;
use drivers::imsic;
use drivers::plic::Plic;
use hal_api::{MAXIMUM_HARTS, Machine as _, Virtualisation as _};
use spin::{Mutex, Once};

use crate::description::{self, Description, Interrupt, MAXIMUM_SOURCE};
use crate::registers::Mapped;
use crate::{Machine, machine};

/// Serves an interrupt; the argument is the value that was registered with it.
pub type Handler = fn(usize);

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
/// Identity of interprocessor interrupts; that of source `n` is `n + 1`.
const IPI_IDENTITY: u32 = 1;

struct Slot {
    handler: Handler,
    data: usize,
    interrupt: Interrupt,
    number: usize,
    hart: usize,
}

static SLOTS: [Mutex<Option<Slot>>; MAXIMUM_SOURCE as usize + 1] =
    [const { Mutex::new(None) }; MAXIMUM_SOURCE as usize + 1];
static CONTROLLER: Once<Controller> = Once::new();
/// Number of sources that were ever registered.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);
/// Number of harts that take interrupts; they are the first ones.
static JOINED: AtomicUsize = AtomicUsize::new(1);

struct Controller {
    kind: Kind,
    sources: u32,
    /// The controller's number of each hart.
    positions: [Option<u32>; MAXIMUM_HARTS],
    /// Whether harts can run virtualised programs, which may have guest interrupt files.
    virtualises: bool,
}

enum Kind {
    /// The lock serialises changes of enable bits.
    Plic(Plic<Mapped>, Mutex<()>),
    Aplic(Aplic<Mapped>, Option<description::Imsic>),
}

/// Prepares the controller and this hart, the first.
pub fn start(description: &Description) {
    let controller = match &description.controller {
        description::Controller::None => None,
        description::Controller::Plic { registers, sources, contexts } => Mapped::new(*registers).map(|registers| {
            let plic = Plic::new(registers);
            for source in 1..=*sources {
                plic.set_priority(source, 0);
            }
            Controller {
                kind: Kind::Plic(plic, Mutex::new(())),
                sources: *sources,
                positions: *contexts,
                virtualises: false,
            }
        }),
        description::Controller::Aplic { registers, sources, delivery, positions, imsic } => Mapped::new(*registers)
            .map(|registers| {
                let aplic = Aplic::new(registers, *delivery);
                aplic.reset(*sources);
                Controller {
                    kind: Kind::Aplic(aplic, *imsic),
                    sources: *sources,
                    positions: *positions,
                    virtualises: description.has_hypervisor
                        && description.has_timer_register
                        && imsic.is_some_and(|imsic| imsic.guest_index_bits > 0),
                }
            }),
    };
    if let Some(controller) = controller {
        CONTROLLER.call_once(|| controller);
        prepare_hart(0);
    }
}

/// Prepares the calling hart's part of the controller. Each hart does it for itself, when it runs: the firmware closes
/// a hart's context of a PLIC when it starts the hart, and only the hart itself reaches its interrupt file.
fn prepare_hart(hart: usize) {
    let Some(controller) = CONTROLLER.get() else { return };
    let Some(position) = controller.positions[hart] else { return };
    match &controller.kind {
        Kind::Plic(plic, _) => plic.reset_context(position, controller.sources),
        Kind::Aplic(aplic, None) => aplic.enable_delivery(position),
        Kind::Aplic(_, Some(description)) => {
            imsic::initialise(&OwnFile, description.identities);
            let page = description.pages.0 + imsic::page_offset(position, description.guest_index_bits, 0);
            if let Some(window) = machine::Window::new(page, imsic::PAGE) {
                machine::set_doorbell(hart, &window);
            }
            if controller.virtualises {
                machine::use_guest_files((1 << description.guest_index_bits) - 1, description.identities);
            }
        }
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
pub fn register_interrupt(interrupt: Interrupt, handler: Handler, data: usize) -> Result<(), RegisterError> {
    let controller = CONTROLLER.get().ok_or(RegisterError::NoSuchSource)?;
    if interrupt.source == 0 || interrupt.source > controller.sources {
        return Err(RegisterError::NoSuchSource);
    }
    let mut place = SLOTS[interrupt.source as usize].lock();
    if place.is_some() {
        return Err(RegisterError::Taken);
    }
    let number = REGISTERED.fetch_add(1, Ordering::Relaxed);
    let slot = place.insert(Slot { handler, data, interrupt, number, hart: usize::MAX });
    assign(slot);
    Ok(())
}

/// Stops the interrupt. When this returns its handler does not run and will not run again.
#[doc(alias = "free_irq")]
pub fn remove_interrupt(source: u32) {
    let (Some(controller), Some(place)) = (CONTROLLER.get(), SLOTS.get(source as usize)) else { return };
    let mut place = place.lock();
    let Some(slot) = place.take() else { return };
    match &controller.kind {
        Kind::Plic(plic, lock) => {
            let _one_at_a_time = lock.lock();
            plic.set_priority(source, 0);
            if let Some(context) = controller.positions[slot.hart] {
                plic.disable(context, source);
            }
        }
        Kind::Aplic(aplic, _) => aplic.disable(source),
    }
}

/// Assigns a source to the next hart in turn.
fn assign(slot: &mut Slot) {
    let Some(controller) = CONTROLLER.get() else { return };
    let joined = JOINED.load(Ordering::Acquire);
    let usable = |hart: &usize| controller.positions[*hart].is_some();
    let count = (0..joined).filter(usable).count().max(1);
    let hart = (0..joined).filter(usable).nth(slot.number % count).unwrap_or(0);
    if hart == slot.hart {
        return;
    }
    let (old, source) = (slot.hart, slot.interrupt.source);
    slot.hart = hart;
    let Some(position) = controller.positions[hart] else { return };
    match &controller.kind {
        Kind::Plic(plic, lock) => {
            let _one_at_a_time = lock.lock();
            if let Some(Some(context)) = controller.positions.get(old) {
                plic.disable(*context, source);
            }
            plic.enable(position, source);
            // Last, and even if it is set already: QEMU looks for interrupts that were pending before only now.
            plic.set_priority(source, 1);
        }
        Kind::Aplic(aplic, _) if old == usize::MAX => {
            aplic.enable(source, slot.interrupt.trigger, position, source + IPI_IDENTITY);
        }
        Kind::Aplic(aplic, _) => aplic.set_target(source, position, source + IPI_IDENTITY),
    }
}

/// Serves every external interrupt that is pending for this hart; returns whether an interprocessor interrupt was among
/// them.
pub fn poll() -> bool {
    let Some(controller) = CONTROLLER.get() else { return false };
    let Some(position) = controller.positions[Machine::hart()] else { return false };
    let mut ipi = false;
    for _ in 0..MAXIMUM_CLAIMS {
        match &controller.kind {
            Kind::Plic(plic, lock) => {
                let Some(source) = plic.claim(position) else { break };
                let place = SLOTS.get(source as usize).map(|slot| slot.lock());
                let slot = place.as_ref().and_then(|slot| slot.as_ref());
                serve(slot);
                // The controller ignores a completion by a context that the source is no longer enabled for, and would
                // wait for one for ever.
                let is_ours = slot.is_some_and(|slot| slot.hart == Machine::hart());
                if is_ours {
                    plic.complete(position, source);
                } else {
                    let _one_at_a_time = lock.lock();
                    plic.enable(position, source);
                    plic.complete(position, source);
                    plic.disable(position, source);
                }
            }
            Kind::Aplic(aplic, None) => {
                let Some(source) = aplic.claim(position) else { break };
                serve_source(source);
            }
            Kind::Aplic(aplic, Some(_)) => match machine::claim_external() {
                0 => break,
                IPI_IDENTITY => ipi = true,
                identity => {
                    let source = identity - IPI_IDENTITY;
                    serve_source(source);
                    if source <= controller.sources {
                        aplic.retrigger(source);
                    }
                }
            },
        }
    }
    ipi
}

fn serve_source(source: u32) {
    if let Some(place) = SLOTS.get(source as usize) {
        serve(place.lock().as_ref());
    }
}

fn serve(slot: Option<&Slot>) {
    if let Some(slot) = slot {
        (slot.handler)(slot.data);
    }
}

/// Returns the physical address of the page of a hart's guest interrupt file, to which a store of an identity makes it
/// pending. `None` if there is no such file.
pub fn guest_page(hart: usize, file: usize) -> Option<u64> {
    let controller = CONTROLLER.get()?;
    let position = (*controller.positions.get(hart)?)?;
    match &controller.kind {
        Kind::Aplic(_, Some(imsic)) if (1..=Machine::guest_files()).contains(&file) => {
            Some(imsic.pages.0 + imsic::page_offset(position, imsic.guest_index_bits, file as u32))
        }
        _ => None,
    }
}

/// Makes an identity pending in a hart's guest interrupt file.
pub fn notify_guest_file(hart: usize, file: usize, identity: u32) {
    if let Some(registers) = guest_page(hart, file).and_then(|page| Mapped::new((page, imsic::PAGE))) {
        registers.write32(0, identity);
    }
}

/// The interrupt file of the calling hart.
struct OwnFile;

impl imsic::InterruptFile for OwnFile {
    fn read(&self, register: u64) -> u64 {
        machine::read_imsic(register)
    }
    fn write(&self, register: u64, value: u64) {
        machine::write_imsic(register, value);
    }
    fn claim(&self) -> u32 {
        machine::claim_external()
    }
}
