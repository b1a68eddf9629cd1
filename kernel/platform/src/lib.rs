//! From the device tree to a running machine: harts, interrupts, console, time.
//!
//! A kernel calls [`start`] first. It reads the device tree, tells the machine the addresses of memory and devices,
//! takes over the serial line and the interrupt controller, and returns the [`Platform`], on which the kernel is built.
//! Nothing here needs a heap, because the heap is built from the memory that this crate finds.
//!
//! **Interrupts** are polled, never taken in kernel code: [`poll_interrupts`] is called after a trap, after
//! [`wait_for_interrupt`](hal_api::Machine::wait_for_interrupt), and at other times of the kernel's choice. It serves
//! devices by calling the functions given to [`register_interrupt`], which wake wakers, and reports timer and
//! interprocessor interrupts, which are the kernel's own affair.
//!
//! **Harts**: [`start_harts`] starts the others; each calls [`join`] first.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

#[cfg(test)]
mod boards_tests;
mod console;
mod controller;
pub mod description;
mod device_tree;
mod interrupts;
pub mod pci;
mod registers;

use core::ops::Deref;

use hal_api::{BootInformation, Configuration, Machine as _, Status};
use spin::Once;

pub use console::{
    console_flush, console_is_silent, console_room, console_try_read, console_try_write, console_waiting,
    console_write, print, serve_console, set_break_listener, set_console_listener,
};
pub use controller::{Claim, InterruptController};
pub use description::{Controller, Damaged, Description, Device, Ethernet, Interrupt, Serial};
pub use interrupts::{
    InterruptHandler, RegisterError, guest_page, has_messages, notify_guest_file, prepare_user_level,
    register_interrupt, register_message, register_shared_interrupt, remove_interrupt,
};
pub use registers::Mapped;

/// The crate of the machine that this kernel is built for.
#[cfg(not(target_os = "none"))]
pub use hal_host as machine;
/// The crate of the machine that this kernel is built for.
#[cfg(target_os = "none")]
pub use hal_riscv64 as machine;

/// The machine that this kernel is built for.
#[cfg(not(target_os = "none"))]
pub type Machine = hal_host::Host;
/// The machine that this kernel is built for.
#[cfg(target_os = "none")]
pub type Machine = hal_riscv64::Riscv64;

/// The machine that was found. It dereferences to its [`Description`].
#[derive(Debug)]
pub struct Platform {
    description: Description<'static>,
    device_tree: &'static [u8],
    /// Whether the device tree names a timer register that does not work.
    lacks_timer_register: bool,
    /// Whether the device tree names types of memory that do not work.
    lacks_page_types: bool,
}

impl Deref for Platform {
    type Target = Description<'static>;

    fn deref(&self) -> &Description<'static> {
        &self.description
    }
}

impl Platform {
    /// Says what the kernel works around.
    fn tell_errata() {
        let errata = machine::errata();
        if errata.flushes_leave_pages {
            println!("processor: SiFive's erratum CIP-1200: all translations of a hart are invalidated for one page");
        }
        if errata.fetch_faults_lack_sign {
            println!("processor: SiFive's erratum CIP-453: addresses of failed fetches are mended");
        }
    }

    /// Says what the kernel does without.
    fn tell_remarks(&self) {
        for remark in &self.description.remarks {
            println!("device tree: {remark}");
        }
        if self.lacks_timer_register {
            println!("device tree: the harts' timer registers (Sstc) do not work; the firmware's timer is used");
        }
        if self.lacks_page_types {
            println!(
                "device tree: types of memory (Svpbmt) do not work; devices are as the machine has them by itself"
            );
        }
    }

    /// Returns the host bridge of PCI Express, if there is one that can be used.
    pub fn pci_host(&self) -> Option<pci::Host> {
        pci::Host::find(self.device_tree, &self.description).unwrap_or_else(|(property, text)| {
            println!("device tree: the host bridge of PCI: `{property}` {text}");
            None
        })
    }

    /// Reads the real-time clock: nanoseconds since 1970. `None` if there is no such clock, or if it is centuries off.
    pub fn real_time_ns(&self) -> Option<u64> {
        let registers = Mapped::new(self.description.real_time_clock?)?;
        let now = drivers::rtc::RealTimeClock::new(registers).nanoseconds();
        // A value that does not fit into a signed number is no time for programs.
        (now <= i64::MAX as u64).then_some(now)
    }

    /// Converts ticks into nanoseconds.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        scale(ticks, 1_000_000_000, self.description.timebase_frequency)
    }

    /// Converts a span of time into ticks of [`now`](hal_api::Machine::now), rounded up, so that waiting for it is
    /// never too short.
    pub fn ticks(&self, nanoseconds: u64) -> u64 {
        let (whole, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
        let frequency = self.description.timebase_frequency;
        let rest = (u128::from(rest) * u128::from(frequency)).div_ceil(1_000_000_000) as u64;
        whole.saturating_mul(frequency).saturating_add(rest)
    }
}

fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    (u128::from(value) * u128::from(numerator) / u128::from(denominator)).try_into().unwrap_or(u64::MAX)
}

static PLATFORM: Once<Platform> = Once::new();

/// Identifies the machine and takes it over. Once, on the boot hart, before anything else.
///
/// # Errors
/// [`Damaged`] if the device tree cannot be used; the console still works, through the firmware.
pub fn start(boot: &'static BootInformation) -> Result<&'static Platform, Damaged> {
    let platform = identify(boot)?;
    let description = &platform.description;
    if let Some(serial) = &description.serial {
        console::start(serial);
    }
    platform.tell_remarks();
    Platform::tell_errata();
    interrupts::start(description);
    if let Some(serial) = &description.serial {
        console::use_interrupts(serial);
    }
    Ok(platform)
}

/// Prepares the platform as [`start`] does, but leaves serial line and interrupt controller alone, for a kernel that
/// gives devices to programs. Text still goes to the firmware's console.
///
/// # Errors
/// As `start`.
// Not inlined into a kernel, of which it would take on the optimisation for speed.
#[inline(never)]
pub fn prepare(boot: &'static BootInformation) -> Result<&'static Platform, Damaged> {
    let platform = identify(boot)?;
    platform.tell_remarks();
    Ok(platform)
}

/// Identifies the machine, and tells the crate of the machine.
fn identify(boot: &'static BootInformation) -> Result<&'static Platform, Damaged> {
    let mut description = Description::read(boot, boot.device_tree).inspect_err(|_| {
        // Even then the machine should end with a status.
        if let Some(address) = description::find_test_device(boot.device_tree) {
            machine::use_test_device(address);
        }
    })?;
    machine::configure(&Configuration {
        memory: &description.memory,
        not_devices: &description.not_devices,
        hart_ids: &description.hart_ids,
        has_timer_register: description.has_timer_register,
        has_page_types: description.has_page_types,
        test_device: description.test_device,
    })
    .map_err(Damaged)?;
    let lacks_timer_register = description.has_timer_register && !machine::has_timer_register();
    let lacks_page_types = description.has_page_types && !machine::has_page_types();
    description.has_timer_register &= !lacks_timer_register;
    description.has_page_types &= !lacks_page_types;
    let device_tree = boot.device_tree;
    Ok(PLATFORM.call_once(|| Platform { description, device_tree, lacks_timer_register, lacks_page_types }))
}

/// The beginning of the line with the machine's status, for a host that reads the console of a machine which cannot
/// pass its status on.
const STATUS_LINE: &str = "COPS: ended with status ";

/// Shuts the machine down after all output has left it. A machine that cannot pass the status on prints it.
#[doc(alias = "machine_halt")]
pub fn shut_down(status: Status) -> ! {
    if PLATFORM.get().is_none_or(|platform| platform.test_device.is_none()) {
        let code = match status {
            Status::Success => 0,
            Status::Failure(code) => code.max(1),
        };
        println!("{STATUS_LINE}{code}");
    }
    console_flush();
    Machine::shutdown(status)
}

/// Returns the platform that [`start`] found.
///
/// # Panics
/// If it was not called, or failed.
pub fn get() -> &'static Platform {
    PLATFORM.get().expect("the platform is not started")
}

/// Time limit for the arrival of a hart after the request to the firmware. Emulators on busy hosts are slow, and the
/// firmware's refusals are not always meant: see [`machine::start_hart`].
const ARRIVAL_LIMIT_NS: u64 = 5_000_000_000;
/// Interval between looks for an awaited hart.
const ARRIVAL_LOOK_NS: u64 = 50_000;

/// Starts the harts 1 to `count - 1`; each goes to the kernel's function for other harts, which calls [`join`] first.
/// Returns the number of harts that run then, this one included: fewer if the machine has fewer, or one does not come.
/// Called once, by the boot hart, before it uses its timer.
#[doc(alias = "smp_init")]
#[doc(alias = "HSM")]
pub fn start_harts(count: usize) -> usize {
    let hart_ids = &get().hart_ids;
    let mut running = 1;
    for (index, &hart_id) in hart_ids.iter().enumerate().take(count).skip(1) {
        let answer = machine::start_hart(index, hart_id);
        if !arrives(index) {
            match answer {
                Ok(()) => println!("hart {hart_id} does not come in, although the firmware started it"),
                Err(error) => println!("the firmware does not start hart {hart_id}: error {error}"),
            }
            break;
        }
        running = index + 1;
    }
    running
}

/// Waits until a started hart has arrived, up to a limit; returns whether it has.
fn arrives(index: usize) -> bool {
    let platform = get();
    let deadline = Machine::now() + platform.ticks(ARRIVAL_LIMIT_NS);
    let mut arrived = machine::has_arrived(index);
    while !arrived {
        let now = Machine::now();
        if now >= deadline {
            arrived = !machine::give_up_hart(index);
            break;
        }
        // Sleeping and not spinning: an emulator that runs the harts in turn would let this one spin for long.
        Machine::set_timer(now + platform.ticks(ARRIVAL_LOOK_NS));
        Machine::wait_for_interrupt();
        let _ = poll_interrupts();
        arrived = machine::has_arrived(index);
    }
    Machine::set_timer(u64::MAX);
    arrived
}

/// Makes the calling hart take part in interrupts; the first call of a started hart.
pub fn join() {
    interrupts::join();
}

/// Interrupts that [`poll_interrupts`] leaves to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// The deadline of the timer has passed. The interrupt is acknowledged; set the next deadline.
    pub timer: bool,
    /// Another hart has sent an interrupt, which is acknowledged; look at the messages between harts.
    pub ipi: bool,
    /// An interrupt is pending in a watched guest interrupt file; stop watching it, or it stays pending.
    pub guest: bool,
}

/// Returns whether an interrupt is pending on this hart. It stays so.
#[must_use]
#[inline]
pub fn has_interrupts() -> bool {
    !machine::pending().is_empty()
}

/// Serves all interrupts pending on this hart. Costs one read of a register if there are none.
#[must_use]
#[inline]
pub fn poll_interrupts() -> Pending {
    let pending = machine::pending();
    if pending.is_empty() {
        return Pending::default();
    }
    serve(pending)
}

#[cold]
fn serve(pending: hal_api::Interrupts) -> Pending {
    let mut found = Pending { timer: pending.timer, ipi: pending.ipi, guest: pending.guest };
    if pending.timer {
        Machine::set_timer(u64::MAX);
    }
    if pending.ipi {
        machine::clear_ipi();
    }
    if pending.external {
        found.ipi |= interrupts::poll();
    }
    // The sender's writes before its interrupt must be visible to the kernel's reads from here on.
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    found
}
