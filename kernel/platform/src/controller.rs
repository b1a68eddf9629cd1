//! The interrupt controller of the machine: a PLIC, an APLIC with wires, or an APLIC that sends messages to an IMSIC.
//!
//! Both kernels use it through one type. Sources have the numbers of the controller, harts their dense indexes. One
//! source interrupts one hart at a time: the hart of its last [`route`](InterruptController::route).

use drivers::aplic::{Aplic, Trigger};
use drivers::imsic;
use drivers::plic::Plic;
use hal_api::{MAXIMUM_HARTS, Virtualisation as _};
use spin::Mutex;

use crate::description::{self, Description, Imsic};
use crate::registers::Mapped;
use crate::{Machine, machine};

/// Identity of interprocessor interrupts; that of source `n` is `n + 1`.
const IPI_IDENTITY: u32 = 1;

/// A claimed interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A device's source, which does not interrupt again before it is completed or unmasked.
    Source(u32),
    /// A message of another hart.
    Interprocessor,
}

/// The interrupt controller.
#[derive(Debug)]
pub struct InterruptController {
    kind: Kind,
    sources: u32,
    /// The controller's number of each hart.
    positions: [Option<u32>; MAXIMUM_HARTS],
    /// Whether harts can run virtualised programs, which may have guest interrupt files.
    virtualises: bool,
}

// With a tag of its own: one hidden in a field's unused values takes four instructions more to read.
#[repr(u8)]
#[derive(Debug)]
enum Kind {
    /// The lock serialises changes of enable bits, of which one word holds those of many sources.
    Plic(Plic<Mapped>, Mutex<()>),
    Wires(Aplic<Mapped>),
    Messages(Aplic<Mapped>, Imsic),
}

impl InterruptController {
    /// Takes over the controller of the description, with all sources masked. Returns `None` if there is none.
    pub fn new(description: &Description) -> Option<InterruptController> {
        match &description.controller {
            description::Controller::None => None,
            description::Controller::Plic { registers, sources, contexts } => {
                let plic = Plic::new(Mapped::new(*registers)?);
                for source in 1..=*sources {
                    plic.set_priority(source, 0);
                }
                let kind = Kind::Plic(plic, Mutex::new(()));
                Some(InterruptController { kind, sources: *sources, positions: *contexts, virtualises: false })
            }
            description::Controller::Aplic { registers, sources, delivery, positions, imsic } => {
                let aplic = Aplic::new(Mapped::new(*registers)?, *delivery);
                aplic.reset(*sources);
                let has_guest_files = imsic.is_some_and(|imsic| imsic.guest_index_bits > 0);
                Some(InterruptController {
                    kind: match imsic {
                        None => Kind::Wires(aplic),
                        Some(imsic) => Kind::Messages(aplic, *imsic),
                    },
                    sources: *sources,
                    positions: *positions,
                    virtualises: description.has_hypervisor && description.has_timer_register && has_guest_files,
                })
            }
        }
    }

    /// Largest source.
    #[inline]
    pub fn sources(&self) -> u32 {
        self.sources
    }

    /// Returns the numbers of sources that are no wires: functions of PCI send them as messages. Empty if the
    /// controller takes none.
    pub fn messages(&self) -> core::ops::RangeInclusive<u32> {
        let last = match &self.kind {
            Kind::Messages(_, imsic) => imsic.identities - IPI_IDENTITY,
            Kind::Plic(..) | Kind::Wires(_) => 0,
        };
        self.sources + 1..=last
    }

    /// Returns the physical address and the value of the message that makes such a source interrupt a hart.
    pub fn message(&self, source: u32, hart: usize) -> Option<(u64, u32)> {
        let (Kind::Messages(_, imsic), Some(position)) = (&self.kind, self.position(hart)) else { return None };
        let page = imsic::page_offset(position, imsic.guest_index_bits, 0);
        self.messages().contains(&source).then_some((imsic.pages.0 + page, source + IPI_IDENTITY))
    }

    /// Returns whether the hart can take interrupts.
    pub fn serves(&self, hart: usize) -> bool {
        self.position(hart).is_some()
    }

    #[inline]
    fn position(&self, hart: usize) -> Option<u32> {
        *self.positions.get(hart)?
    }

    /// Prepares the calling hart's part of the controller. Each hart does it for itself, when it runs: the firmware
    /// closes a hart's context of a PLIC when it starts the hart, and only the hart itself reaches its interrupt file.
    pub fn prepare_hart(&self, hart: usize) {
        let Some(position) = self.position(hart) else { return };
        match &self.kind {
            Kind::Plic(plic, _) => plic.reset_context(position, self.sources),
            Kind::Wires(aplic) => aplic.enable_delivery(position),
            Kind::Messages(_, imsic) => {
                imsic::initialise(&OwnFile, imsic.identities);
                self.prepare_guest_files();
            }
        }
    }

    /// Gives the calling hart its guest interrupt files, where harts can run virtualised programs.
    pub fn prepare_guest_files(&self) {
        if let Kind::Messages(_, imsic) = &self.kind
            && self.virtualises
        {
            machine::use_guest_files((1 << imsic.guest_index_bits) - 1, imsic.identities);
        }
    }

    /// Returns the page of a hart's own interrupt file; a store there of [`Claim::Interprocessor`]'s identity
    /// interrupts the hart. `None` if the controller sends no messages.
    pub fn doorbell(&self, hart: usize) -> Option<machine::Window> {
        let (Kind::Messages(_, imsic), Some(position)) = (&self.kind, self.position(hart)) else { return None };
        machine::Window::new(imsic.pages.0 + imsic::page_offset(position, imsic.guest_index_bits, 0), imsic::PAGE)
    }

    /// Returns the physical address of the page of a hart's guest interrupt file, to which a store of an identity makes
    /// it pending. `None` if there is no such file.
    pub fn guest_page(&self, hart: usize, file: usize) -> Option<u64> {
        let Kind::Messages(_, imsic) = &self.kind else { return None };
        let position = self.position(hart)?;
        let page = imsic::page_offset(position, imsic.guest_index_bits, file as u32);
        (1..=Machine::guest_files()).contains(&file).then_some(imsic.pages.0 + page)
    }

    /// Lets a source interrupt `to`, and no longer `from`, the hart of its last route if it has one.
    pub fn route(&self, source: u32, trigger: Trigger, from: Option<usize>, to: usize) {
        let Some(position) = self.position(to) else { return };
        match &self.kind {
            Kind::Plic(plic, lock) => {
                let _one_at_a_time = lock.lock();
                if let Some(context) = from.and_then(|hart| self.position(hart)) {
                    plic.disable(context, source);
                }
                plic.enable(position, source);
                // Last, and even if it is set already: QEMU looks for interrupts that were pending before only now.
                plic.set_priority(source, 1);
            }
            Kind::Wires(aplic) | Kind::Messages(aplic, _) if from.is_some() => {
                aplic.set_target(source, position, source + IPI_IDENTITY);
            }
            Kind::Wires(_) | Kind::Messages(..) => self.unmask(source, trigger, to),
        }
    }

    /// Ends the route of a source to `hart`.
    pub fn remove(&self, source: u32, hart: usize) {
        match &self.kind {
            Kind::Plic(plic, lock) => {
                let _one_at_a_time = lock.lock();
                plic.set_priority(source, 0);
                if let Some(context) = self.position(hart) {
                    plic.disable(context, source);
                }
            }
            Kind::Wires(aplic) | Kind::Messages(aplic, _) => aplic.disable(source),
        }
    }

    /// Claims the most important pending interrupt of the calling hart.
    #[inline]
    pub fn claim(&self, hart: usize) -> Option<Claim> {
        match &self.kind {
            Kind::Plic(plic, _) => plic.claim(self.position(hart)?).map(Claim::Source),
            Kind::Wires(aplic) => aplic.claim(self.position(hart)?).map(Claim::Source),
            Kind::Messages(..) => claimed_message(),
        }
    }

    /// Completes a claimed source whose device was served, so that it may interrupt again: at once if the wire
    /// `is_level` and is still high. `route` is the hart that the source is routed to now.
    pub fn complete(&self, source: u32, hart: usize, route: Option<usize>, is_level: bool) {
        match &self.kind {
            Kind::Plic(plic, lock) => {
                let Some(position) = self.position(hart) else { return };
                if route == Some(hart) {
                    plic.complete(position, source);
                } else {
                    // The controller ignores a completion by a context that the source is no longer enabled for, and
                    // would wait for one for ever.
                    let _one_at_a_time = lock.lock();
                    plic.enable(position, source);
                    plic.complete(position, source);
                    plic.disable(position, source);
                }
            }
            Kind::Wires(_) => {}
            Kind::Messages(aplic, _) => {
                // To a source of edges it would be one more edge.
                if source <= self.sources && is_level {
                    aplic.retrigger(source);
                }
            }
        }
    }

    /// Claims the most important pending interrupt of the calling hart, and masks its source until
    /// [`unmask`](Self::unmask). In one function, because the microkernel does both at each interrupt of a device.
    #[inline]
    pub fn claim_masked(&self, hart: usize) -> Option<Claim> {
        match &self.kind {
            Kind::Plic(plic, _) => {
                let position = self.position(hart)?;
                let source = plic.claim(position)?;
                // QEMU's controller needs the completion at once.
                plic.complete(position, source);
                plic.set_priority(source, 0);
                Some(Claim::Source(source))
            }
            Kind::Wires(aplic) => {
                let source = aplic.claim(self.position(hart)?)?;
                aplic.disable(source);
                Some(Claim::Source(source))
            }
            Kind::Messages(aplic, _) => {
                let claim = claimed_message()?;
                if let Claim::Source(source) = claim
                    && source <= self.sources
                {
                    aplic.disable(source);
                }
                Some(claim)
            }
        }
    }

    /// Unmasks a source that is routed to `hart`. A level that is still active interrupts again.
    pub fn unmask(&self, source: u32, trigger: Trigger, hart: usize) {
        match &self.kind {
            // A source without priority never interrupts.
            Kind::Plic(plic, _) => plic.set_priority(source, 1),
            Kind::Wires(aplic) | Kind::Messages(aplic, _) => {
                let Some(position) = self.position(hart) else { return };
                aplic.enable(source, trigger, position, source + IPI_IDENTITY);
                if matches!(&self.kind, Kind::Messages(..)) && trigger == Trigger::HighLevel {
                    aplic.retrigger(source);
                }
            }
        }
    }
}

/// Claims the most important message in the calling hart's interrupt file.
#[inline]
fn claimed_message() -> Option<Claim> {
    match machine::claim_external() {
        0 => None,
        IPI_IDENTITY => Some(Claim::Interprocessor),
        identity => Some(Claim::Source(identity - IPI_IDENTITY)),
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
