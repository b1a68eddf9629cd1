//! A root task with a network: it starts the network server and the servers that use it, each a program of its own.
//!
//! ```text
//!   device, clock <--> network-server <==rings==> matrix-service
//!                                     <==rings==> echo-service
//! ```
//!
//! It finds the devices in the device tree, gives the network server their registers and interrupts, connects the
//! others to it, and then waits for the end of any of them, which it reports. The connection of a service that ends is
//! closed; the end of the network server ends the system.
#![no_std]
#![no_main]

extern crate alloc;

mod machine;

use alloc::string::String;
use alloc::vec::Vec;

use filesystem::cpio;
use sel4::capability::{Endpoint, IrqHandler, Slot, initial};
use sel4::channel::{self, Connection, Side};
use sel4::device::DeviceMemory;
use sel4::mapping::Window;
use sel4::process::{Ending, Process, Program};
use sel4::{Allocator, BootInformation, ObjectType, Rights, println};
use sockets::{CAPACITY, DATA_PAGES};

use machine::{Device, Machine};

/// The archive of contained programs.
static CONTAINED: &[u8] = include_bytes!(env!("COPS_CONTAINED_PROGRAMS"));

/// The clients of the network server, in the order of their importance.
const SERVICES: [&str; 2] = ["matrix-service", "echo-service"];

/// The network server is more important than its clients: arrived frames are handled before they continue.
const SERVER_PRIORITY: u64 = 110;
const SERVICE_PRIORITY: u64 = 100;

/// A running program, and its connection to the network server.
struct Running {
    process: Process,
    connection: Option<Connection>,
}

/// Description of a failure.
struct Problem(String);

impl<E: core::fmt::Display> From<E> for Problem {
    #[track_caller]
    fn from(error: E) -> Problem {
        Problem(alloc::format!("{error} (line {})", core::panic::Location::caller().line()))
    }
}

fn contained(name: &str) -> Result<&'static [u8], Problem> {
    let path = alloc::format!("bin/{name}");
    let mut entries = cpio::entries(CONTAINED).filter_map(Result::ok);
    let entry = entries.find(|entry| entry.path == path.as_bytes());
    Ok(entry.ok_or_else(|| Problem(alloc::format!("there is no program {name}")))?.data)
}

/// The resources to hand out.
struct System {
    allocator: Allocator,
    window: Window,
    devices: DeviceMemory,
    supervisor: Endpoint,
    cores: u64,
}

impl System {
    /// Loads a program; `badge` identifies it, and chooses its core.
    fn load(&mut self, program: Program<'_>, badge: u64) -> Result<Process, Problem> {
        // The first core is left to this program, if there are others.
        let core = if self.cores > 1 { 1 + badge % (self.cores - 1) } else { 0 };
        let program = Program { core, ..program };
        Ok(Process::load(&mut self.allocator, &mut self.window, &program, self.supervisor, badge)?)
    }

    /// Grants a program a device: its registers as the next region, and its interrupt.
    fn give(&mut self, process: &mut Process, device: Device) -> Result<u64, Problem> {
        let page = match device.page {
            Some(page) => page,
            None => self.devices.page(&mut self.allocator, device.address)?,
        };
        process.share(&mut self.allocator, &[page])?;
        let slot = self.allocator.slot()?;
        initial::IRQ_CONTROL.get(device.interrupt, Slot::own(slot))?;
        // All rights: a handler's capability has no separate rights.
        Ok(process.grant_copy(IrqHandler::from_pointer(slot).pointer(), Rights::ALL)?)
    }

    fn start(&mut self, machine: Machine) -> Result<Vec<Running>, Problem> {
        let network = Program {
            memory_bits: 26,
            own_bits: 25,
            slot_bits: 12,
            ..Program::new("network-server", contained("network-server")?, SERVER_PRIORITY)
        };
        let mut server = self.load(network, 0)?;
        let of_server = server.notification(&mut self.allocator)?;
        let mut running = Vec::new();
        for (badge, name) in (1..).zip(SERVICES) {
            let file = contained(name)?;
            let program = Program { memory_bits: 25, own_bits: 24, ..Program::new(name, file, SERVICE_PRIORITY) };
            let mut process = self.load(program, badge)?;
            let notification = process.notification(&mut self.allocator)?;
            let connection = channel::connect(
                &mut self.allocator,
                &mut self.window,
                CAPACITY,
                DATA_PAGES,
                Side { process: &mut process, notification },
                Side { process: &mut server, notification: of_server },
            )?;
            running.push(Running { process, connection: Some(connection) });
        }
        let device = self.give(&mut server, machine.network)?;
        let clock = self.give(&mut server, machine.clock)?;
        for word in [device, clock, machine.ticks_per_second].into_iter().chain(machine.seed) {
            server.argument(word);
        }
        running.insert(0, Running { process: server, connection: None });
        for program in &mut running {
            program.process.start(&mut self.allocator)?;
        }
        Ok(running)
    }
}

fn run(boot: &BootInformation) -> Result<(), Problem> {
    let mut allocator = Allocator::new(boot);
    let mut window = Window::new(0x10_0000_0000, 0x18_0000_0000);
    sel4::heap::grow(&mut allocator, &mut window, 2)?;
    let mut devices = DeviceMemory::new(boot);
    let tree = boot.device_tree().ok_or("the kernel has passed on no device tree")?;
    let machine = machine::find(tree, &mut allocator, &mut window, &mut devices)?;
    let supervisor = Endpoint::from_pointer(allocator.object(ObjectType::Endpoint)?);
    let mut system = System { allocator, window, devices, supervisor, cores: boot.cores().1 };
    let mut running: Vec<_> = system.start(machine)?.into_iter().map(Some).collect();
    loop {
        let received = supervisor.receive();
        let Some(ended) = running.get_mut(received.badge() as usize).and_then(Option::take) else { continue };
        match Ending::of(&received) {
            Some(Ending::Exited(status)) => println!("{} has ended with status {status}", ended.process.name()),
            Some(Ending::Faulted(fault)) => println!("{} has ended: {fault:?}", ended.process.name()),
            None => println!("{} has sent something else than a fault", ended.process.name()),
        }
        let was_server = ended.connection.is_none();
        if let Some(connection) = ended.connection {
            connection.close()?;
        }
        ended.process.end(&mut system.allocator)?;
        if was_server {
            return Err(Problem("without the network server there is no network".into()));
        }
    }
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    if let Err(Problem(problem)) = run(&boot) {
        println!("network-system: {problem}");
    }
}
