//! The interrupt controller for the microkernel: claims interrupts, and masks single sources.
//!
//! The platform's own table of handlers is not used: its handlers serve a device, while here a source stays masked
//! until a program has served the device.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use abi_sel4::Trigger;
use drivers::aplic::{self, Aplic};
use drivers::imsic;
use drivers::plic::Plic;
use hal_api::{MAXIMUM_HARTS, Machine as _, Virtualisation as _};
use platform::description::Imsic;
use platform::{Controller, Description, Machine, Mapped};
use spin::Once;

enum Kind {
    Plic(Plic<Mapped>),
    Aplic(Aplic<Mapped>),
    /// With an IMSIC: the identity of source `n` is `n + 1`.
    Messages(Aplic<Mapped>),
}

struct Interrupts {
    kind: Kind,
    sources: u32,
    /// The boot hart's number at the controller. The boot hart takes all interrupts, as in seL4.
    position: u32,
}

/// The interrupt files of virtualised programs.
struct GuestFiles {
    imsic: Imsic,
    /// Number of each hart in the IMSIC.
    positions: [Option<u32>; MAXIMUM_HARTS],
}

static GUEST_FILES: Once<GuestFiles> = Once::new();

/// Prepares the calling hart to virtualise programs, if all harts can.
pub fn prepare_guest_files() {
    if let Some(files) = GUEST_FILES.get() {
        let count = (1 << files.imsic.guest_index_bits) - 1;
        platform::machine::use_guest_files(count, files.imsic.identities);
    }
}

/// Returns the physical address of a guest interrupt file's page. A store of an identity to the page makes the identity
/// pending.
pub fn guest_page(hart: usize, file: usize) -> Option<u64> {
    let files = GUEST_FILES.get()?;
    let position = (*files.positions.get(hart)?)?;
    let page = imsic::page_offset(position, files.imsic.guest_index_bits, file as u32);
    (1..=Machine::guest_files()).contains(&file).then_some(files.imsic.pages.0 + page)
}

static INTERRUPTS: Once<Interrupts> = Once::new();

/// Initialises the interrupt controller. Called on the hart that booted.
pub fn start(description: &Description) {
    let found = match &description.controller {
        Controller::None => None,
        Controller::Plic { registers, sources, contexts } => {
            Mapped::new(*registers).zip(contexts[0]).map(|(registers, position)| {
                let plic = Plic::new(registers);
                for source in 1..=*sources {
                    plic.set_priority(source, 0);
                }
                plic.reset_context(position, *sources);
                Interrupts { kind: Kind::Plic(plic), sources: *sources, position }
            })
        }
        Controller::Aplic { registers, sources, delivery, positions, imsic } => {
            Mapped::new(*registers).zip(positions[0]).map(|(registers, position)| {
                let aplic = Aplic::new(registers, *delivery);
                aplic.reset(*sources);
                let kind = match imsic {
                    None => {
                        aplic.enable_delivery(position);
                        Kind::Aplic(aplic)
                    }
                    Some(files) => {
                        imsic::initialise(&OwnFile, files.identities);
                        if description.has_hypervisor && description.has_timer_register && files.guest_index_bits > 0 {
                            GUEST_FILES.call_once(|| GuestFiles { imsic: *files, positions: *positions });
                            prepare_guest_files();
                        }
                        Kind::Messages(aplic)
                    }
                };
                Interrupts { kind, sources: *sources, position }
            })
        }
    };
    if let Some(found) = found {
        INTERRUPTS.call_once(|| found);
    }
}

fn with(source: u32, act: impl FnOnce(&Interrupts)) {
    if let Some(interrupts) = INTERRUPTS.get()
        && (1..=interrupts.sources).contains(&source)
    {
        act(interrupts);
    }
}

/// Whether each source is edge-triggered (rising edge) and not level-triggered (high).
static IS_EDGE: [AtomicBool; 256] = [const { AtomicBool::new(false) }; 256];

/// Enables a source and unmasks it.
pub fn enable_irq(source: u32, trigger: Trigger) {
    if let Some(place) = IS_EDGE.get(source as usize) {
        place.store(trigger == Trigger::Edge, Relaxed);
    }
    with(source, |interrupts| {
        if let Kind::Plic(plic) = &interrupts.kind {
            plic.enable(interrupts.position, source);
        }
    });
    unmask_irq(source);
}

/// Unmasks a source.
pub fn unmask_irq(source: u32) {
    let is_edge = IS_EDGE.get(source as usize).is_some_and(|edge| edge.load(Relaxed));
    let trigger = if is_edge { aplic::Trigger::RisingEdge } else { aplic::Trigger::HighLevel };
    with(source, |interrupts| match &interrupts.kind {
        // A source without priority never interrupts.
        Kind::Plic(plic) => plic.set_priority(source, 1),
        Kind::Aplic(aplic) => aplic.enable(source, trigger, interrupts.position, source + 1),
        Kind::Messages(aplic) => {
            aplic.enable(source, trigger, interrupts.position, source + 1);
            if !is_edge {
                aplic.retrigger(source);
            }
        }
    });
}

/// Disables a source.
pub fn disable_irq(source: u32) {
    with(source, |interrupts| match &interrupts.kind {
        Kind::Plic(plic) => {
            plic.set_priority(source, 0);
            plic.disable(interrupts.position, source);
        }
        Kind::Aplic(aplic) | Kind::Messages(aplic) => aplic.disable(source),
    });
}

/// Claims the most important external interrupt, and masks its source. Only hart 0 finds one.
pub fn take_irq() -> Option<u32> {
    let interrupts = INTERRUPTS.get().filter(|_| Machine::hart() == 0)?;
    match &interrupts.kind {
        Kind::Plic(plic) => {
            let source = plic.claim(interrupts.position)?;
            // QEMU's controller needs the completion at once; then the source is masked until its driver has
            // acknowledged.
            plic.complete(interrupts.position, source);
            plic.set_priority(source, 0);
            Some(source)
        }
        Kind::Aplic(aplic) => {
            let source = aplic.claim(interrupts.position)?;
            aplic.disable(source);
            Some(source)
        }
        Kind::Messages(aplic) => match platform::machine::claim_external() {
            0 | 1 => None,
            identity => {
                if identity - 1 <= interrupts.sources {
                    aplic.disable(identity - 1);
                }
                Some(identity - 1)
            }
        },
    }
}

/// The interrupt file of the calling hart.
struct OwnFile;

impl imsic::InterruptFile for OwnFile {
    fn read(&self, register: u64) -> u64 {
        platform::machine::read_imsic(register)
    }
    fn write(&self, register: u64, value: u64) {
        platform::machine::write_imsic(register, value);
    }
    fn claim(&self) -> u32 {
        platform::machine::claim_external()
    }
}
