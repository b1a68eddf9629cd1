//! The network as a program: a virtio network device and TCP/IP, served to other programs over asynchronous IPC.
//!
//! The driver is the crate `virtio` and the stack the crate `network`, as in the Unix kernel. This program provides the
//! services of a kernel to them: registers and memory, the device's interrupts, the time, and waiting. Its protocol is
//! [`sockets::protocol`].
//!
//! ```text
//!   device --interrupt--> arrivals (most important): takes frames, wakes the requests that wait for them
//!   requests of all programs: receive and send, on the stack's buffers
//!   departures (least important): hands the device all pending data, in one go
//!   clock  --interrupt--> arrivals: expired timers
//! ```
//!
//! **Trust.** Clients are not trusted: sockets are numbers in a table of each connection, and offsets are checked. When
//! a program's connection ends, its sockets are closed. The device is trusted with the memory that it was given, but
//! its descriptions of that memory are not trusted (see `virtio`).
#![no_std]
#![no_main]

extern crate alloc;

mod device;
mod serve;

use alloc::sync::Arc;
use core::future::poll_fn;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Poll;

use coroutine::Priority;
use drivers::rtc::RealTimeClock;
use network::{Address, Addressing, Configuration, Seeds, Stack};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sel4::capability::{IrqHandler, Notification, Slot};
use sel4::channel::Server;
use sel4::mapping::Window;
use sel4::shared::Registers;
use sel4::{Allocator, BootInformation, Rights, channel, executor, println};
use spin::{Mutex, Once};
use virtio::Transport;

use device::Piece;
use serve::Customer;

/// Address of this machine in QEMU's user network, which could otherwise be learnt only by DHCP.
const ADDRESS: Address =
    Address { address: Ipv4Addr::new(10, 0, 2, 15), prefix: 24, gateway: Some(Ipv4Addr::new(10, 0, 2, 2)) };

/// Steps of the heap, which holds the buffers of connections.
const HEAP_STEPS: u64 = 12;

/// Bits of the doorbell's badge.
const DEVICE: u32 = 1;
const CLOCK: u32 = 2;

/// Clients have the priorities behind that of arrivals, in the order of their connections.
const FIRST_CUSTOMER: u64 = 1;

type Card = virtio::Network<Registers, Piece>;

/// The stack and its drivers.
pub struct Network {
    /// Held for an operation, never across an `await`.
    stack: Mutex<Stack<Card>>,
    /// Whether data was left to be sent.
    departing: AtomicBool,
    departures: atomic_waker::AtomicWaker,
    clock: Clock,
}

impl Network {
    /// Schedules the sending of the data that operations have left, after all more important coroutines.
    fn departs(&self) {
        if !self.departing.swap(true, Ordering::Release) {
            self.departures.wake();
        }
    }
}

/// The alarm of the machine's real-time clock.
struct Clock {
    clock: RealTimeClock<Registers>,
    /// Time of the alarm; `u64::MAX` for none.
    set: AtomicU64,
}

impl Clock {
    /// Sets the alarm to this time, unless it is set to an earlier one. Without a deadline it stays set: a spurious
    /// alarm costs less than three registers for each packet.
    fn wish(&self, deadline: Option<u64>) {
        let Some(deadline) = deadline else { return };
        if deadline < self.set.load(Ordering::Relaxed) {
            self.set.store(deadline, Ordering::Relaxed);
            let ahead = deadline.saturating_sub(now_ns());
            self.clock.set_alarm(self.clock.nanoseconds() + ahead);
        }
    }
}

/// Returns nanoseconds since the machine was started.
fn now_ns() -> u64 {
    sel4::time::now() * NANOSECONDS_PER_TICK.get().copied().unwrap_or(100)
}

static NANOSECONDS_PER_TICK: Once<u64> = Once::new();

/// Takes arrived frames and handles expired timers.
async fn arrivals(network: Arc<Network>, interrupt: IrqHandler) {
    loop {
        let next = {
            let mut stack = network.stack.lock();
            // Before the look: an interrupt for later frames stays pending.
            stack.link().acknowledge_interrupt();
            let next = stack.poll(now_ns());
            if let Some(failure) = stack.link().failure() {
                println!("network-server: the device cannot be used any more: {failure}");
                sel4::exit(1);
            }
            next
        };
        match next {
            // There are more frames: after other coroutines have run.
            Some(at) if at <= now_ns() => coroutine::yield_now().await,
            deadline => {
                network.clock.wish(deadline);
                let _ = interrupt.acknowledge();
                executor::signal(DEVICE).await;
            }
        }
    }
}

/// Hands over the data that requests have left to be sent.
async fn departures(network: Arc<Network>) {
    loop {
        poll_fn(|context| {
            network.departures.register(context.waker());
            if network.departing.swap(false, Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let deadline = network.stack.lock().flush(now_ns());
        network.clock.wish(deadline);
    }
}

/// Handles expired timers without an arrival.
async fn expiries(network: Arc<Network>, interrupt: IrqHandler) {
    loop {
        let _ = interrupt.acknowledge();
        executor::signal(CLOCK).await;
        network.clock.clock.acknowledge();
        network.clock.set.store(u64::MAX, Ordering::Relaxed);
        let deadline = network.stack.lock().poll(now_ns());
        network.clock.wish(deadline.map(|deadline| deadline.max(now_ns() + 1)));
    }
}

/// Makes the handler in this slot signal this bit from now on.
fn handler(allocator: &mut Allocator, doorbell: Notification, pointer: u64, bit: u32) -> sel4::Result<IrqHandler> {
    let slot = allocator.slot()?;
    Slot::own(slot).mint_from(Slot::own(doorbell.pointer()), Rights::WRITE, 1 << bit)?;
    let handler = IrqHandler::from_pointer(pointer);
    handler.set_notification(Notification::from_pointer(slot))?;
    Ok(handler)
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    let (mut allocator, mut window) = (Allocator::new(&boot), Window::new(0x10_0000_0000, 0x11_0000_0000));
    sel4::heap::grow(&mut allocator, &mut window, HEAP_STEPS).expect("it has memory for a heap");
    let doorbell = boot.notification().expect("it has a notification");
    // Registers of the device and of the clock; interrupts of both, ticks of the time in a second, and a seed.
    let mut regions = boot.regions();
    let mut arguments = boot.arguments();
    let mut argument = || arguments.next().expect("it has all its arguments");
    let mut registers = || Registers::new(regions.next().expect("it has all its regions"));
    let (device, clock) = (registers(), registers());
    let (device_interrupt, clock_interrupt) = (argument(), argument());
    NANOSECONDS_PER_TICK.call_once(|| 1_000_000_000 / argument().max(1));
    // The firmware's seed; without one the time of the start makes two boots differ.
    let mut seed = [0; 32];
    for part in seed.chunks_exact_mut(8) {
        part.copy_from_slice(&(argument() ^ sel4::time::now()).to_le_bytes());
    }
    let mut random = ChaCha20Rng::from_seed(seed);

    let transport = Transport::probe(device).expect("it has a virtio device");
    let memory = |bytes: usize| {
        let pages = bytes.div_ceil(4096) as u64;
        let (memory, physical) = window.device_reachable(&mut allocator, pages).ok()?;
        Some(Piece { memory, physical })
    };
    let card = Card::new(transport, memory).expect("the device is a network device that can be driven");
    let configuration = Configuration {
        address: Addressing::Fixed(ADDRESS),
        seeds: Seeds::draw(|bytes| random.fill_bytes(bytes)),
        ..Configuration::default()
    };
    let stack = Stack::new(card, &configuration, now_ns()).expect("there is memory for the stack");
    let network = Arc::new(Network {
        stack: Mutex::new(stack),
        departing: AtomicBool::new(false),
        departures: atomic_waker::AtomicWaker::new(),
        clock: Clock { clock: RealTimeClock::new(clock), set: AtomicU64::new(u64::MAX) },
    });
    let device_interrupt =
        handler(&mut allocator, doorbell, device_interrupt, DEVICE).expect("it was given the device's interrupt");
    let clock_interrupt =
        handler(&mut allocator, doorbell, clock_interrupt, CLOCK).expect("it was given the clock's interrupt");

    executor::run(doorbell, async move {
        executor::spawn(Priority::HIGHEST, arrivals(network.clone(), device_interrupt)).detach();
        executor::spawn(Priority::HIGHEST, expiries(network.clone(), clock_interrupt)).detach();
        executor::spawn(Priority::LOWEST, departures(network.clone())).detach();
        for (number, end) in (FIRST_CUSTOMER..).zip(channel::ends(&boot)) {
            let customer = Customer::new(network.clone(), end.data());
            let priority = Priority::saturating(number.min(u64::from(Priority::LOWEST.number()) - 1));
            executor::spawn(priority, Server::new(end).serve(move |message| customer.request(message))).detach();
        }
        core::future::pending::<()>().await;
    });
}
