//! The interrupt controller for the microkernel: claims interrupts, and masks single sources.
//!
//! The platform's own table of handlers is not used: its handlers serve a device, while here a source stays masked
//! until a program has served the device.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use abi_sel4::Trigger;
use drivers::aplic;
use drivers::uintc::Uintc;
use hal_api::{Machine as _, Virtualisation as _};
use platform::{Claim, Description, InterruptController, Machine, Mapped};
use spin::Once;

/// The hart that takes all interrupts: the hart that booted, as in seL4.
const HART: usize = 0;

static CONTROLLER: Once<InterruptController> = Once::new();

/// Takes over the interrupt controller. Called on the hart that booted.
pub fn start(description: &Description) {
    if let Some(controller) = InterruptController::new(description) {
        CONTROLLER.call_once(|| controller).prepare_hart(HART);
    }
}

/// Takes over the controller of user interrupts, if the machine has one.
pub fn user_interrupts(description: &Description) -> Option<Uintc<Mapped>> {
    description.user_interrupts.and_then(Mapped::new).map(Uintc::new)
}

/// Prepares the calling hart to virtualise programs, if all harts can.
pub fn prepare_guest_files() {
    if let Some(controller) = CONTROLLER.get() {
        controller.prepare_guest_files();
    }
}

/// Returns the number of guest interrupt files of each hart; 0 if threads cannot run virtualised on this machine. The
/// table of a virtualised thread has a level more than the thread's own.
pub fn guest_files() -> usize {
    if Machine::has_four_levels() { Machine::guest_files() } else { 0 }
}

/// Returns the physical address of a guest interrupt file's page. A store of an identity to the page makes the identity
/// pending.
pub fn guest_page(hart: usize, file: usize) -> Option<u64> {
    CONTROLLER.get()?.guest_page(hart, file)
}

fn controller_of(source: u32) -> Option<&'static InterruptController> {
    CONTROLLER.get().filter(|controller| (1..=controller.sources()).contains(&source))
}

/// Whether each source is edge-triggered (rising edge) and not level-triggered (high).
static IS_EDGE: [AtomicBool; 256] = [const { AtomicBool::new(false) }; 256];

/// Enables a source and unmasks it.
pub fn enable_irq(source: u32, trigger: Trigger) {
    if let Some(place) = IS_EDGE.get(source as usize) {
        place.store(trigger == Trigger::Edge, Relaxed);
    }
    if let Some(controller) = controller_of(source) {
        controller.route(source, trigger_of(source), None, HART);
    }
}

fn trigger_of(source: u32) -> aplic::Trigger {
    let is_edge = IS_EDGE.get(source as usize).is_some_and(|edge| edge.load(Relaxed));
    if is_edge { aplic::Trigger::RisingEdge } else { aplic::Trigger::HighLevel }
}

/// Unmasks a source.
pub fn unmask_irq(source: u32) {
    if let Some(controller) = controller_of(source) {
        controller.unmask(source, trigger_of(source), HART);
    }
}

/// Disables a source.
#[inline(always)]
pub fn disable_irq(source: u32) {
    if let Some(controller) = controller_of(source) {
        controller.remove(source, HART);
    }
}

/// Claims the most important external interrupt, and masks its source. Only the hart that booted finds one.
pub fn take_irq() -> Option<u32> {
    let controller = CONTROLLER.get().filter(|_| Machine::hart() == HART)?;
    match controller.claim_masked(HART)? {
        Claim::Interprocessor => None,
        Claim::Source(source) => Some(source),
    }
}
